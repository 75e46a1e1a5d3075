/* Outputs at odd addresses: the library writes all their bytes, and no byte beside them. A packed structure of a
 * program, or a buffer that it received, may put an output anywhere. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

/* Returns a place for an output, at an odd address. The bytes on both sides of it hold a mark. */
static unsigned char space[16 + 1 + sizeof(struct dlm_stats) + 16];

static void *odd(void)
{
    unsigned char *at = space + 16;
    memset(space, 0xa5, sizeof space);
    if (((size_t)at & 1) == 0)
        at++;
    return at;
}

/* Copies an output from its odd address, and checks that its neighbours are as they were. */
static void take(void *at, void *out, size_t size)
{
    unsigned char *byte;
    for (byte = space; byte < space + sizeof space; byte++)
        CHECK((byte >= (unsigned char *)at && byte < (unsigned char *)at + size) || *byte == 0xa5);
    memcpy(out, at, size);
}

/* Calls `call` with `out` at an odd address, and copies what it wrote to `variable`. */
#define TAKE(variable, out, call)                                                                  \
    do {                                                                                           \
        void *at_ = odd();                                                                         \
        out = at_;                                                                                 \
        OK(call);                                                                                  \
        take(at_, &(variable), sizeof(variable));                                                  \
    } while (0)

int main(int argc, char **argv)
{
    struct dlm_error *error = NULL, *moved;
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *lease, *other;
    struct dlm_latch *latch;
    struct dlm_watch *watch;
    struct dlm_stats stats;
    int64_t number;
    uint64_t stored;
    int32_t fd;
    void *at;
    char uri[4096];

    struct dlm_manager **manager_out;
    struct dlm_lock **lock_out;
    struct dlm_lease **lease_out;
    struct dlm_latch **latch_out;
    struct dlm_watch **watch_out;
    struct dlm_error **error_out;
    struct dlm_stats *stats_out;
    int64_t *number_out;
    int32_t *fd_out;

    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "%s?client=misaligned&farm=f&ttl=10m&timeout=60s", argv[1]);
    TAKE(manager, manager_out, dlm_manager_open(uri, NULL, manager_out, &error));
    TAKE(lock, lock_out, dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, lock_out, &error));
    TAKE(lease, lease_out, dlm_lock_try_acquire(lock, NULL, lease_out, &error));
    TAKE(number, number_out, dlm_manager_setting_ms(manager, "ttl", number_out, &error));
    CHECK(number == 600000);
    TAKE(stats, stats_out, dlm_manager_stats(manager, stats_out, sizeof stats, &error));
    CHECK(stats.leases_held == 1);
    TAKE(fd, fd_out, dlm_lease_lost_fd(lease, fd_out, &error));
    CHECK(fd >= 0);
    TAKE(latch, latch_out,
         dlm_manager_latch(manager, "l", DLM_LEVEL_DC, DLM_LATCH_COUNT_DOWN, DLM_DEFAULT, latch_out, &error));
    OK(dlm_latch_create(latch, 3, &error));
    TAKE(number, number_out, dlm_latch_count(latch, number_out, &error));
    CHECK(number == 3);
    TAKE(watch, watch_out, dlm_latch_watch(latch, watch_out, &error));

    /* A refused call writes its output and its error too. */
    at = odd();
    lease_out = at;
    CHECK(dlm_lock_try_acquire(lock, NULL, lease_out, &error) == DLM_LOCK_UNAVAILABLE);
    take(at, &other, sizeof other);
    CHECK(other == NULL);
    dlm_error_free(error);
    error = NULL;
    at = odd();
    error_out = at;
    CHECK(dlm_lock_try_acquire(lock, NULL, &other, error_out) == DLM_LOCK_UNAVAILABLE);
    take(at, &moved, sizeof moved);
    CHECK(dlm_error_status(moved) == DLM_LOCK_UNAVAILABLE);
    dlm_error_free(moved);

    stored = dlm_lease_fence(lease);
    CHECK(stored > 0);
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    dlm_watch_free(watch);
    dlm_latch_free(latch);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

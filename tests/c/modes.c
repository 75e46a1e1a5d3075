/* Locks in all modes, changes of mode, and semaphores. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <poll.h>

static struct dlm_error *error;

static struct dlm_lease *acquired(struct dlm_lock *lock, int32_t mode, const struct dlm_lease *nested_in)
{
    struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
    struct dlm_lease *lease;
    how.wait_ms = 0;
    how.mode = mode;
    how.nested_in = nested_in;
    OK(dlm_lock_acquire(lock, &how, &lease, &error));
    return lease;
}

static void is_refused(struct dlm_lock *lock, int32_t mode, enum dlm_status status, const char *word)
{
    struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
    struct dlm_lease *lease;
    how.mode = mode;
    CHECK(dlm_lock_try_acquire(lock, &how, &lease, &error) == status && lease == NULL);
    if (strstr(dlm_error_message(error), word) == NULL) {
        fprintf(stderr, "%s is not in: %s\n", word, dlm_error_message(error));
        abort();
    }
    dlm_error_free(error);
    error = NULL;
}

/* Returns the lease that goes on, and frees the one before. */
static struct dlm_lease *changed(struct dlm_lease *from, int32_t mode)
{
    struct dlm_lease *to;
    if (mode == DLM_MODE_EXCLUSIVE)
        OK(dlm_lease_upgrade(from, 0, NULL, &to, &error));
    else
        OK(dlm_lease_downgrade(from, mode, &to, &error));
    EXPECT(DLM_LEASE_LOST, dlm_lease_check(from, &error));
    OK(dlm_lease_check(to, &error));
    CHECK(dlm_lease_mode(to) == mode);
    dlm_lease_free(from);
    OK(dlm_lease_check(to, &error));
    return to;
}

/* Readers beside an updater, which writes when they have left. */
static void modes(struct dlm_manager *manager)
{
    struct dlm_lock *lock, *reading, *again;
    struct dlm_lease *one, *other, *updating, *none, *token_of;
    struct dlm_lock_list *holders;
    struct dlm_inspection seen;
    struct dlm_cancel *cancel;
    uint64_t epoch, fence;
    const char *token;
    size_t at, shared = 0;

    OK(dlm_manager_lock(manager, "prices", DLM_LEVEL_XDC, &lock, &error));
    OK(dlm_lock_in_mode(lock, DLM_MODE_SHARED, &reading, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_in_mode(lock, DLM_MODE_PERMIT, &again, &error));
    is_refused(lock, 4, DLM_INVALID_ARGUMENT, "mode 4 is not allowed");
    is_refused(lock, -1, DLM_INVALID_ARGUMENT, "mode -1 is not allowed");

    one = acquired(reading, 0, NULL);
    other = acquired(lock, DLM_MODE_SHARED, one);
    updating = acquired(lock, DLM_MODE_UPDATE, NULL);
    CHECK(dlm_lease_mode(one) == DLM_MODE_SHARED && dlm_lease_mode(updating) == DLM_MODE_UPDATE);
    epoch = dlm_lease_epoch(one);
    CHECK(epoch > 0 && epoch == dlm_lease_epoch(other) && dlm_lease_permit(one) == -1);
    /* Several have it, so it is no fence. */
    CHECK(dlm_lease_fence(one) == 0);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_guard(one, &fence, &error));
    is_refused(lock, 0, DLM_LOCK_UNAVAILABLE, "this process");
    is_refused(lock, DLM_MODE_UPDATE, DLM_LOCK_UNAVAILABLE, "UPDATE");

    OK(dlm_lock_holders(lock, &holders, &error));
    CHECK(dlm_lock_list_count(holders) == 3 && dlm_lock_list_next(holders)[0] == '\0');
    for (at = 0; at < 3; at++) {
        OK(dlm_lock_list_inspection(holders, at, &seen, sizeof seen, &error));
        CHECK(seen.is_held && seen.permit == 0);
        shared += seen.mode == DLM_MODE_SHARED;
        CHECK(strcmp(dlm_lock_list_key(holders, at), dlm_lock_name(lock)) == 0);
    }
    CHECK(shared == 2);
    dlm_lock_list_free(holders);

    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lease_upgrade(updating, 0, NULL, &none, &error));
    cancel = dlm_cancel_new();
    OK(dlm_cancel_trigger(cancel, &error));
    EXPECT(DLM_CANCELLED, dlm_lease_upgrade(updating, DLM_FOREVER, cancel, &none, &error));
    dlm_cancel_free(cancel);
    OK(dlm_lease_check(updating, &error));
    EXPECT(DLM_UNSUPPORTED_CONVERSION, dlm_lease_upgrade(one, 0, NULL, &none, &error));
    EXPECT(DLM_UNSUPPORTED_CONVERSION, dlm_lease_downgrade(one, DLM_MODE_UPDATE, &none, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_downgrade(updating, 7, &none, &error));
    CHECK(none == NULL);
    dlm_lease_free(other);
    dlm_lease_free(one);
    updating = changed(updating, DLM_MODE_EXCLUSIVE);
    OK(dlm_lease_guard(updating, &fence, &error));
    CHECK(fence > epoch);
    is_refused(reading, 0, DLM_LOCK_UNAVAILABLE, "is held");
    updating = changed(updating, DLM_MODE_UPDATE);
    updating = changed(updating, DLM_MODE_SHARED);
    CHECK(dlm_lease_epoch(updating) > fence);
    one = acquired(reading, 0, NULL);
    CHECK(dlm_lease_epoch(one) == dlm_lease_epoch(updating));

    OK(dlm_lease_into_token(one, &token, &error));
    OK(dlm_lock_adopt(lock, token, &token_of, &error));
    CHECK(dlm_lease_mode(token_of) == DLM_MODE_SHARED);
    OK(dlm_lease_check(token_of, &error));
    dlm_lease_free(one);
    dlm_lease_free(token_of);
    dlm_lease_free(updating);
    dlm_lock_free(reading);
    dlm_lock_free(lock);
}

/* Locks of two modes that are acquired together. */
static void together(struct dlm_manager *manager)
{
    struct dlm_lock *locks[2], *lock;
    struct dlm_lease_set *set;
    struct dlm_lease *beside;

    OK(dlm_manager_lock(manager, "read", DLM_LEVEL_XDC, &lock, &error));
    OK(dlm_lock_in_mode(lock, DLM_MODE_SHARED, &locks[0], &error));
    OK(dlm_manager_lock(manager, "written", DLM_LEVEL_XDC, &locks[1], &error));
    OK(dlm_manager_acquire_all(manager, locks, 2, HOW(DLM_DEFAULT, 0), &set, &error));
    beside = acquired(locks[0], 0, NULL);
    is_refused(locks[1], DLM_MODE_SHARED, DLM_LOCK_UNAVAILABLE, "is held");
    dlm_lease_free(beside);
    dlm_lease_set_free(set);
    dlm_lock_free(locks[0]);
    dlm_lock_free(locks[1]);
    dlm_lock_free(lock);
}

static void semaphores(struct dlm_manager *manager)
{
    struct dlm_semaphore *semaphore, *other, *larger;
    struct dlm_lease *permits[2], *more[2];
    struct dlm_pending *pending;
    struct dlm_lock_list *holders;
    struct dlm_inspection seen;
    struct pollfd polled = {0};
    uint64_t fence, later;
    int32_t available;

    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_semaphore(manager, "s", DLM_LEVEL_XDC, 0, &semaphore, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_semaphore(manager, "s", DLM_LEVEL_XDC, 257, &semaphore, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_semaphore(manager, "s", DLM_LEVEL_XDC, -65535, &semaphore, &error));
    OK(dlm_manager_semaphore(manager, "s", DLM_LEVEL_XDC, 3, &semaphore, &error));
    CHECK(dlm_semaphore_permits(semaphore) == 3 && strstr(dlm_semaphore_name(semaphore), "#s") != NULL);
    EXPECT(DLM_NOT_FOUND, dlm_semaphore_resize(semaphore, 2, &other, &error));

    OK(dlm_semaphore_try_acquire(semaphore, 2, NULL, permits, &error));
    CHECK(dlm_lease_permit(permits[0]) == 0 && dlm_lease_permit(permits[1]) == 1);
    CHECK(dlm_lease_mode(permits[0]) == DLM_MODE_PERMIT && dlm_lease_epoch(permits[0]) == 0);
    OK(dlm_lease_guard(permits[1], &fence, &error));
    OK(dlm_semaphore_available(semaphore, &available, &error));
    CHECK(available == 1);
    memset(more, 0xa5, sizeof more);
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_semaphore_acquire(semaphore, 2, HOW(DLM_DEFAULT, 30), more, &error));
    CHECK(more[0] == NULL && more[1] == NULL);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_semaphore_acquire(semaphore, 0, NULL, more, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_semaphore_acquire_start(semaphore, (size_t)65537, NULL, &pending, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_semaphore_try_acquire(semaphore, 1, HOW(DLM_DEFAULT, 30), more, &error));
    OK(dlm_manager_semaphore(manager, "s", DLM_LEVEL_XDC, 4, &other, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_semaphore_try_acquire(other, 1, NULL, more, &error));
    dlm_semaphore_free(other);

    OK(dlm_semaphore_holders(semaphore, &holders, &error));
    CHECK(dlm_lock_list_count(holders) == 2);
    OK(dlm_lock_list_inspection(holders, 1, &seen, sizeof seen, &error));
    CHECK(seen.is_held && seen.mode == DLM_MODE_PERMIT && seen.permit == 1);
    dlm_lock_list_free(holders);

    /* One that waits gets its permits when both are free. */
    OK(dlm_semaphore_acquire_start(semaphore, 2, NULL, &pending, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_pending_take(pending, &more[0], &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_pending_take_permits(pending, more, 1, &error));
    OK(dlm_pending_take_permits(pending, more, 2, &error));
    CHECK(more[0] == NULL && more[1] == NULL);
    OK(dlm_lease_release(permits[1], NULL, &error));
    dlm_lease_free(permits[1]);
    OK(dlm_pending_fd(pending, &polled.fd, &error));
    polled.events = POLLIN;
    CHECK(poll(&polled, 1, 60000) == 1);
    OK(dlm_pending_take_permits(pending, more, 2, &error));
    CHECK(dlm_lease_permit(more[0]) == 1 && dlm_lease_permit(more[1]) == 2);
    OK(dlm_lease_guard(more[0], &later, &error));
    CHECK(later > fence);
    dlm_lease_free(permits[0]);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_pending_take_permits(pending, permits, 2, &error));
    dlm_pending_free(pending);

    OK(dlm_semaphore_resize(semaphore, 256, &larger, &error));
    CHECK(dlm_semaphore_permits(larger) == 256);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_semaphore_try_acquire(semaphore, 1, NULL, permits, &error));
    /* One that nobody takes is released. */
    OK(dlm_semaphore_acquire_start(larger, 2, NULL, &pending, &error));
    dlm_pending_free(pending);
    dlm_lease_free(more[0]);
    dlm_lease_free(more[1]);
    dlm_semaphore_free(larger);
    dlm_semaphore_free(semaphore);
}

int main(int argc, char **argv)
{
    struct dlm_options *options = dlm_options_new();
    struct dlm_manager *manager;

    CHECK(argc == 2);
    OK(dlm_options_set(options, "client", "modes", &error));
    OK(dlm_options_set(options, "retry", "20ms", &error));
    OK(dlm_options_set(options, "ttl", "10m", &error));
    OK(dlm_options_set(options, "timeout", "60s", &error));
    OK(dlm_manager_open(argv[1], options, &manager, &error));
    dlm_options_free(options);
    OK(dlm_manager_initialize(manager, &error));
    modes(manager);
    together(manager);
    semaphores(manager);
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

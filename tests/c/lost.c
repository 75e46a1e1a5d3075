/* The descriptor of a lease becomes readable when the lease ends: by time, by release or by close. A renewal moves
 * that moment. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <poll.h>
#include <unistd.h>

static struct dlm_error *error;

static int readable(int fd, int wait_ms)
{
    struct pollfd polled = {0, POLLIN, 0};
    polled.fd = fd;
    return poll(&polled, 1, wait_ms);
}

/* Returns whether a call has failed because its lease had ended before, which happens on a busy machine. Frees the
 * error. */
static bool is_late(enum dlm_status status)
{
    CHECK(status == DLM_OK || status == DLM_LEASE_LOST || status == DLM_RETRIES_EXHAUSTED);
    dlm_error_free(error);
    error = NULL;
    return status != DLM_OK;
}

/* A lease that is too short for a keeper. */
static void is_too_short(struct dlm_lock *lock)
{
    struct dlm_lease *lease;
    int tries = 0;

    while (is_late(dlm_lock_acquire(lock, HOW(50, DLM_DEFAULT), &lease, &error)))
        CHECK(tries++ < 100);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_keep(lease, DLM_FOREVER, &error));
    dlm_lease_free(lease);
}

static void is_kept_or_not(struct dlm_lock *lock)
{
    struct dlm_lease *lease;

    OK(dlm_lock_acquire(lock, HOW(600000, DLM_DEFAULT), &lease, &error));
    CHECK(dlm_lease_state(lease) == DLM_STATE_HELD);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_keep(lease, 0, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_keep(lease, DLM_DEFAULT, &error));
    OK(dlm_lease_keep(lease, 1200000, &error));
    CHECK(dlm_lease_state(lease) == DLM_STATE_RENEWING);
    OK(dlm_lease_stop_keeping(lease, &error));
    CHECK(dlm_lease_state(lease) == DLM_STATE_HELD);
    dlm_lease_free(lease);
}

/* A lease that is kept alive is at risk when its longest time is nearly over, and then lost. Returns false if this
 * machine was too slow for the TTL. */
static bool is_kept_for_a_while(struct dlm_lock *lock, int64_t ttl_ms)
{
    struct dlm_lease *lease;
    struct dlm_error *why = NULL;
    int lost, risk;
    int32_t reason;

    if (is_late(dlm_lock_acquire(lock, HOW(ttl_ms, DLM_DEFAULT), &lease, &error)))
        return false;
    OK(dlm_lease_lost_fd(lease, &lost, &error));
    OK(dlm_lease_at_risk_fd(lease, &risk, &error));
    if (is_late(dlm_lease_keep(lease, ttl_ms * 5 / 2, &error))) {
        dlm_lease_free(lease);
        return false;
    }
    CHECK(readable(risk, 120000) == 1);
    CHECK(dlm_lease_state(lease) >= DLM_STATE_AT_RISK);
    CHECK(readable(lost, 120000) == 1);
    reason = dlm_lease_lost_reason(lease);
    /* The second one on a machine that is too busy to renew. */
    CHECK(reason == DLM_LOST_EXPIRED || reason == DLM_LOST_PROCESS_STOPPED);
    CHECK(dlm_lease_state(lease) == DLM_STATE_LOST);
    CHECK(dlm_lease_check(lease, &why) == DLM_LEASE_LOST && dlm_error_lost_reason(why) == reason);
    dlm_error_free(why);
    EXPECT(DLM_LEASE_LOST, dlm_lease_keep(lease, DLM_FOREVER, &error));
    dlm_lease_free(lease);
    return true;
}

/* Another holder of the token releases the lock. The next renewal finds that out. Returns false if this machine was too
 * slow for the TTL. */
static bool is_released_by_another(struct dlm_lock *lock, int64_t ttl_ms)
{
    struct dlm_lease *lease, *copy;
    struct dlm_error *why = NULL;
    int lost;
    bool late;
    const char *token;
    struct dlm_lease *given;

    if (is_late(dlm_lock_acquire(lock, HOW(ttl_ms, DLM_DEFAULT), &lease, &error)))
        return false;
    late = is_late(dlm_lease_into_token(lease, &token, &error));
    if (!late) {
        CHECK(dlm_lease_state(lease) == DLM_STATE_RELEASED && dlm_lease_lost_reason(lease) == DLM_LOST_NOT);
        CHECK(dlm_lease_check(lease, &why) == DLM_LEASE_LOST && dlm_error_lost_reason(why) == DLM_LOST_NOT);
        dlm_error_free(why);
    }
    given = lease;
    if (late) {
        dlm_lease_free(given);
        return false;
    }
    OK(dlm_lock_adopt(lock, token, &lease, &error));
    OK(dlm_lock_adopt(lock, token, &copy, &error));
    dlm_lease_free(given);
    late = is_late(dlm_lease_keep(lease, DLM_FOREVER, &error)) || is_late(dlm_lease_release(copy, NULL, &error));
    if (!late) {
        OK(dlm_lease_lost_fd(lease, &lost, &error));
        CHECK(readable(lost, 120000) == 1);
        CHECK(dlm_lease_lost_reason(lease) == DLM_LOST_RECORD_GONE ||
              dlm_lease_lost_reason(lease) == DLM_LOST_EXPIRED);
    }
    dlm_lease_free(copy);
    dlm_lease_free(lease);
    return !late;
}

static void is_kept(const char *uri)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    int64_t ttl_ms;

    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_lock(manager, "kept", DLM_LEVEL_DC, &lock, &error));
    is_too_short(lock);
    is_kept_or_not(lock);
    for (ttl_ms = 2000; !is_kept_for_a_while(lock, ttl_ms); ttl_ms *= 4)
        CHECK(ttl_ms < 30000);
    for (ttl_ms = 2000; !is_released_by_another(lock, ttl_ms); ttl_ms *= 4)
        CHECK(ttl_ms < 30000);

    CHECK(dlm_lease_state(NULL) == DLM_STATE_RELEASED && dlm_lease_lost_reason(NULL) == DLM_LOST_NOT);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
}

int main(int argc, char **argv)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    int fd, again;
    int64_t ttl_ms;
    char uri[4096];

    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "%s?client=lost&farm=dc1&wait=10m&timeout=60s", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_DC, &lock, &error));

    for (ttl_ms = 3000; is_late(dlm_lock_acquire(lock, HOW(ttl_ms, DLM_DEFAULT), &lease, &error)); ttl_ms *= 4)
        CHECK(ttl_ms < 10000);
    OK(dlm_lease_lost_fd(lease, &fd, &error));
    OK(dlm_lease_lost_fd(lease, &again, &error));
    CHECK(fd == again && fd >= 0);
    CHECK(readable(fd, 60000) == 1);
    EXPECT(DLM_LEASE_LOST, dlm_lease_check(lease, &error));
    CHECK(readable(fd, 0) == 1);
    dlm_lease_free(lease);
    CHECK(readable(fd, 0) == 1); /* closed: POLLNVAL */

    OK(dlm_lock_acquire(lock, HOW(600000, DLM_DEFAULT), &lease, &error));
    OK(dlm_lease_lost_fd(lease, &fd, &error));
    CHECK(readable(fd, 0) == 0);
    OK(dlm_lease_renew(lease, 3600000, &error));
    CHECK(readable(fd, 0) == 0);
    OK(dlm_lease_renew(lease, 1, &error));
    CHECK(readable(fd, 60000) == 1);
    dlm_lease_free(lease);

    OK(dlm_lock_acquire(lock, HOW(60000, DLM_DEFAULT), &lease, &error));
    OK(dlm_lease_lost_fd(lease, &fd, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    CHECK(readable(fd, 0) == 1);
    dlm_lease_free(lease);

    OK(dlm_lock_acquire(lock, HOW(60000, DLM_DEFAULT), &lease, &error));
    OK(dlm_lease_lost_fd(lease, &fd, &error));
    OK(dlm_manager_close(manager, &error));
    CHECK(readable(fd, 0) == 1);
    dlm_lease_free(lease);

    dlm_lock_free(lock);
    dlm_manager_free(manager);
    is_kept(uri);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

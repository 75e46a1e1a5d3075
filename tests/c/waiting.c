/* For callers that wait by themselves: dlm_lock_look() acquires nothing and reports how long the holder may keep the
 * lock, and dlm_manager_setting_ms() returns the manager's settings. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

static struct dlm_error *error;

static int64_t setting(struct dlm_manager *manager, const char *key)
{
    int64_t ms;
    OK(dlm_manager_setting_ms(manager, key, &ms, &error));
    return ms;
}

int main(int argc, char **argv)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *lease, *other;
    struct dlm_stats stats;
    int64_t left, ms;
    int round;
    char uri[4096];

    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "%s?client=waiting&ttl=10m&retry=20ms", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    CHECK(setting(manager, "ttl") == 600000);
    CHECK(setting(manager, "wait") == 90000);
    CHECK(setting(manager, "retry") == 20);
    CHECK(setting(manager, "timeout") == 10000);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_setting_ms(manager, "client", &ms, &error));

    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, &lock, &error));
    for (round = 0; round < 2; round++) {
        OK(dlm_lock_look(lock, &error));
        OK(dlm_manager_stats(manager, &stats, sizeof stats, &error));
        CHECK(stats.leases_held == 0);
    }

    OK(dlm_lock_try_acquire(lock, NULL, &lease, &error));
    for (round = 0; round < 2; round++) {
        CHECK(round ? dlm_lock_try_acquire(lock, NULL, &other, &error) == DLM_LOCK_UNAVAILABLE
                    : dlm_lock_look(lock, &error) == DLM_LOCK_UNAVAILABLE);
        left = dlm_error_holder_left_ms(error);
        CHECK(left > 1000 && left <= 600000);
        CHECK(dlm_error_is_retryable(error));
        CHECK(strstr(dlm_error_message(error), "is held by pid "));
        dlm_error_free(error);
    }
    CHECK(dlm_error_holder_left_ms(NULL) == -1);
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    OK(dlm_lock_look(lock, &error));

    OK(dlm_manager_close(manager, &error));
    CHECK(dlm_lock_look(lock, &error) == DLM_CLOSED);
    CHECK(dlm_error_holder_left_ms(error) == -1);
    dlm_error_free(error);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

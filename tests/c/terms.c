/* Several locks at once, elections, minimum holds, and what the library says of its objects.
 *
 *   terms URI */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <poll.h>
#include <pthread.h>

static struct dlm_error *error;

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static int64_t boot_ns(void)
{
    struct timespec now;
    CHECK(clock_gettime(7 /* CLOCK_BOOTTIME */, &now) == 0);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct dlm_lock *lock_of(struct dlm_manager *manager, const char *id)
{
    struct dlm_lock *lock;
    OK(dlm_manager_lock(manager, id, DLM_LEVEL_XDC, &lock, &error));
    return lock;
}

static void sets(struct dlm_manager *manager, struct dlm_manager *other)
{
    struct dlm_lock *b = lock_of(manager, "b"), *a = lock_of(manager, "a"), *theirs = lock_of(other, "a");
    struct dlm_lock *both[] = {b, a}, *twice[] = {a, a}, *mixed[] = {b, theirs}, *none[] = {a, NULL};
    struct dlm_lease_set *set;
    struct dlm_lease *lease;
    uint64_t fences[2];
    bool freed;

    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_acquire_all(manager, both, 0, HOW(DLM_DEFAULT, 0), &set, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_acquire_all(manager, twice, 2, HOW(DLM_DEFAULT, 0), &set, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_acquire_all(manager, mixed, 2, HOW(DLM_DEFAULT, 0), &set, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_acquire_all(manager, none, 2, HOW(DLM_DEFAULT, 0), &set, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_acquire_all(manager, both, 2, HOW(50, 0), &set, &error));
    CHECK(set == NULL);

    OK(dlm_manager_acquire_all(manager, both, LENGTH(both), HOW(60000, DLM_DEFAULT), &set, &error));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_try_acquire(theirs, NULL, &lease, &error));
    OK(dlm_lease_set_check(set, &error));
    OK(dlm_lease_set_guard(set, fences, 2, &error));
    CHECK(fences[0] > 0 && fences[1] > 0);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_set_guard(set, fences, 1, &error));
    CHECK(fences[0] == 0);
    OK(dlm_lease_set_renew(set, &error));
    OK(dlm_lease_set_keep(set, DLM_FOREVER, &error));
    CHECK(dlm_lease_set_remaining_ms(set) > 0);
    OK(dlm_lease_set_release(set, &freed, &error));
    CHECK(freed && dlm_lease_set_remaining_ms(set) == 0);
    EXPECT(DLM_LEASE_LOST, dlm_lease_set_guard(set, fences, 2, &error));
    OK(dlm_lease_set_release(set, &freed, &error));
    CHECK(!freed);
    dlm_lease_set_free(set);

    /* All or none. */
    OK(dlm_lock_try_acquire(b, NULL, &lease, &error));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_manager_acquire_all(manager, both, 2, HOW(DLM_DEFAULT, 0), &set, &error));
    dlm_lease_free(lease);
    OK(dlm_lock_try_acquire(theirs, NULL, &lease, &error));
    dlm_lease_free(lease);
    OK(dlm_manager_acquire_all(manager, both, 2, HOW(DLM_DEFAULT, 0), &set, &error));
    dlm_lease_set_free(set);
    OK(dlm_lock_try_acquire(theirs, NULL, &lease, &error));
    dlm_lease_free(lease);
    dlm_lock_free(a);
    dlm_lock_free(b);
    dlm_lock_free(theirs);
}

static void *candidate(void *lock)
{
    struct dlm_lease *lease;
    CHECK(dlm_lock_campaign(lock, NULL, &lease, NULL) == DLM_OK);
    return lease;
}

static void elections(struct dlm_manager *manager, struct dlm_manager *other)
{
    struct dlm_lock *lock = lock_of(manager, "election"), *theirs = lock_of(other, "election");
    struct dlm_inspection seen = {0};
    struct dlm_cancel *cancel = dlm_cancel_new();
    struct dlm_lease *lease, *next;
    uint64_t fence, later;
    pthread_t thread;
    bool changed;

    OK(dlm_lock_observe(theirs, 0, NULL, &seen, sizeof seen, &changed, &error));
    CHECK(!changed && !seen.is_held);
    OK(dlm_lock_campaign(lock, HOW(60000, DLM_DEFAULT), &lease, &error));
    CHECK(dlm_lease_state(lease) == DLM_STATE_RENEWING);
    OK(dlm_lease_guard(lease, &fence, &error));
    OK(dlm_lock_observe(theirs, DLM_FOREVER, NULL, &seen, sizeof seen, &changed, &error));
    CHECK(changed && seen.is_held && seen.fence == fence && seen.pid > 0);
    OK(dlm_lock_observe(theirs, 1, NULL, &seen, sizeof seen, &changed, &error));
    CHECK(!changed && seen.fence == fence);
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_campaign(theirs, HOW(DLM_DEFAULT, 1), &next, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_observe(theirs, 0, NULL, &seen, 8, &changed, &error));

    CHECK(pthread_create(&thread, NULL, candidate, theirs) == 0);
    OK(dlm_lease_release(lease, NULL, &error));
    CHECK(pthread_join(thread, (void **)&next) == 0);
    OK(dlm_lease_guard(next, &later, &error));
    CHECK(later > fence);
    EXPECT(DLM_LEASE_LOST, dlm_lease_guard(lease, &fence, &error));
    /* The fence is another one, although the process is the same. */
    do
        OK(dlm_lock_observe(lock, DLM_FOREVER, NULL, &seen, sizeof seen, &changed, &error));
    while (!seen.is_held);
    CHECK(changed && seen.fence == later);
    dlm_lease_free(lease);
    OK(dlm_cancel_trigger(cancel, &error));
    EXPECT(DLM_CANCELLED, dlm_lock_observe(lock, DLM_FOREVER, cancel, &seen, sizeof seen, &changed, &error));
    EXPECT(DLM_CANCELLED, dlm_lock_campaign(lock, HOW_WITH(DLM_DEFAULT, DLM_FOREVER, 0, cancel), &lease, &error));
    CHECK(lease == NULL);
    dlm_lease_free(next);
    dlm_cancel_free(cancel);
    dlm_lock_free(lock);
    dlm_lock_free(theirs);
}

static void holds(struct dlm_manager *manager, struct dlm_manager *other)
{
    struct dlm_lock *lock = lock_of(manager, "hold"), *theirs = lock_of(other, "hold");
    struct dlm_lease *lease;
    int64_t granted;
    bool freed;

    OK(dlm_lock_try_acquire(lock, HOW(60000, 0), &lease, &error));
    granted = boot_ns();
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_hold_at_least(lease, 60001, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_hold_at_least(lease, -1, &error));
    OK(dlm_lease_hold_at_least(lease, 300, &error));
    OK(dlm_lease_release(lease, &freed, &error));
    CHECK(freed && dlm_lease_state(lease) == DLM_STATE_RELEASED);
    EXPECT(DLM_LEASE_LOST, dlm_lease_hold_at_least(lease, 1, &error));
    dlm_lease_free(lease);
    OK(dlm_lock_acquire(theirs, NULL, &lease, &error));
    CHECK(boot_ns() - granted >= 299000000);
    dlm_lease_free(lease);
    dlm_lock_free(lock);
    dlm_lock_free(theirs);
}

static void wait_for(struct dlm_call *call)
{
    struct pollfd polled = {0, POLLIN, 0};
    int32_t fd;
    OK(dlm_call_fd(call, &fd, &error));
    polled.fd = fd;
    CHECK(poll(&polled, 1, 60000) == 1);
}

static void calls(struct dlm_manager *manager, struct dlm_manager *other)
{
    struct dlm_lock *lock = lock_of(manager, "call"), *theirs = lock_of(other, "call");
    struct dlm_lease *lease;
    struct dlm_call *call;
    bool done, freed;

    OK(dlm_lock_try_acquire(lock, HOW(60000, 0), &lease, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_renew_start(lease, 0, &call, &error));
    OK(dlm_lease_renew_start(lease, 120000, &call, &error));
    wait_for(call);
    OK(dlm_call_take(call, &done, NULL, &error));
    CHECK(done && dlm_lease_ttl_ms(lease) == 120000);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_call_take(call, &done, NULL, &error));
    dlm_call_free(call);

    OK(dlm_lease_release_start(lease, &call, &error));
    wait_for(call);
    OK(dlm_call_take(call, &done, &freed, &error));
    CHECK(done && freed && dlm_lease_state(lease) == DLM_STATE_RELEASED);
    dlm_call_free(call);
    OK(dlm_lease_renew_start(lease, DLM_DEFAULT, &call, &error));
    wait_for(call);
    EXPECT(DLM_LEASE_LOST, dlm_call_take(call, &done, NULL, &error));
    dlm_call_free(call);
    dlm_lease_free(lease);
    OK(dlm_lock_try_acquire(theirs, NULL, &lease, &error));
    OK(dlm_lease_release_start(lease, &call, &error));
    dlm_call_free(call);
    dlm_lease_free(lease);
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    dlm_lease_free(lease);
    dlm_lock_free(lock);
    dlm_lock_free(theirs);
}

static void descriptions(struct dlm_manager *manager)
{
    struct dlm_lock *lock = lock_of(manager, "described");
    struct dlm_latch *latch;
    struct dlm_texts *names;
    struct dlm_lease *lease;
    const char *participants[] = {"x", "y"};
    bool is_safe;
    int64_t ends;
    size_t at;

    CHECK(strcmp(dlm_lock_name(lock), "XDC#terms#described") == 0 && dlm_lock_name(lock) == dlm_lock_name(lock));
    CHECK(dlm_lock_name(NULL)[0] == 0);
    OK(dlm_lock_try_acquire(lock, HOW(60000, 0), &lease, &error));
    CHECK(strcmp(dlm_lease_name(lease), "XDC#terms#described") == 0);
    ends = dlm_lease_ends_ns(lease) - boot_ns();
    CHECK(dlm_lease_ttl_ms(lease) == 60000 && ends > 0 && ends <= 60000000000);
    OK(dlm_lease_renew(lease, 120000, &error));
    CHECK(dlm_lease_ttl_ms(lease) == 120000);
    dlm_lease_free(lease);

    OK(dlm_manager_latch(manager, "described", DLM_LEVEL_DC, DLM_LATCH_COUNT_DOWN, DLM_DEFAULT, &latch, &error));
    CHECK(strstr(dlm_latch_name(latch), "described") != NULL);
    OK(dlm_latch_create_for(latch, participants, 2, &error));
    OK(dlm_latch_count_down_as(latch, "y", NULL, &error));
    OK(dlm_latch_arrived(latch, &names, &error));
    CHECK(dlm_texts_count(names) == 1 && strcmp(dlm_texts_at(names, 0), "y") == 0);
    dlm_texts_free(names);
    dlm_latch_free(latch);

    CHECK(strncmp(dlm_manager_store(manager), "embedded:", 9) == 0);
    OK(dlm_manager_diagnose(manager, &names, &is_safe, &error));
    CHECK(is_safe && dlm_texts_count(names) > 0);
    for (at = 0; at < dlm_texts_count(names); at++)
        CHECK(strncmp(dlm_texts_at(names, at), "FAIL", 4) != 0);
    dlm_texts_free(names);

#if DLM_VERSION_NUMBER < 1000
#error "there was no such version"
#endif
    CHECK(dlm_version_number() == DLM_VERSION_NUMBER);
    dlm_lock_free(lock);
}

int main(int argc, char **argv)
{
    char uri[4096];
    struct dlm_manager *manager, *other;

    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "%s?client=terms&farm=f&retry=5ms&ttl=10m&timeout=60s", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_open(uri, NULL, &other, &error));
    sets(manager, other);
    elections(manager, other);
    holds(manager, other);
    calls(manager, other);
    descriptions(manager);
    dlm_manager_free(manager);
    dlm_manager_free(other);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

/* Every function for managers, locks, leases, options and cancel objects, on the given store. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

static struct dlm_error *error;

static struct dlm_manager *opened(const char *uri, const char *client)
{
    struct dlm_options *options = dlm_options_new();
    struct dlm_manager *manager;
    OK(dlm_options_set(options, "client", "overwritten", &error));
    OK(dlm_options_set(options, "client", client, &error));
    OK(dlm_options_set(options, "farm", "dc1", &error));
    OK(dlm_options_set(options, "purpose", "tour", &error));
    OK(dlm_options_set(options, "retry", "20ms", &error));
    OK(dlm_options_set(options, "ttl", "10m", &error));
    OK(dlm_options_set(options, "timeout", "60s", &error));
    OK(dlm_manager_open(uri, options, &manager, &error));
    dlm_options_free(options);
    OK(dlm_manager_initialize(manager, &error));
    return manager;
}

static void refuses_what_is_wrong(const char *uri)
{
    struct dlm_options *options = dlm_options_new();
    struct dlm_manager *manager = (struct dlm_manager *)&options;
    struct dlm_lock *lock;

    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_open("redis://localhost", NULL, &manager, &error));
    CHECK(manager == NULL);
    OK(dlm_options_set(options, "client", "c", &error));
    OK(dlm_options_set(options, "tll", "5s", &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_open(uri, options, &manager, &error));
    CHECK(dlm_manager_open(uri, options, &manager, &error) == DLM_INVALID_ARGUMENT);
    CHECK(strstr(dlm_error_message(error), "tll") != NULL);
    CHECK(!dlm_error_is_retryable(error));
    dlm_error_free(error);
    error = NULL;
    EXPECT(DLM_INVALID_ARGUMENT, dlm_options_set(options, "client", "\xff\xfe", &error));
    /* Without error_out, only the status reports the error. */
    CHECK(dlm_options_set(options, "client", "\xc3\x28", NULL) == DLM_INVALID_ARGUMENT);
    dlm_options_free(options);

    manager = opened(uri, "refusing");
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_lock(manager, "", DLM_LEVEL_DC, &lock, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_lock(manager, "a", 0, &lock, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_lock(manager, "a", 3, &lock, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_lock(manager, "\xff", DLM_LEVEL_DC, &lock, &error));
    CHECK(lock == NULL);
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, &lock, &error));
    {
        const int64_t ttls[] = {0, DLM_FOREVER, -3, INT64_MIN, INT64_MAX};
        struct dlm_lease *lease;
        size_t i;
        for (i = 0; i < sizeof ttls / sizeof *ttls; i++)
            EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_try_acquire(lock, HOW(ttls[i], 0), &lease, &error));
        CHECK(dlm_lock_try_acquire(lock, HOW(-3, 0), &lease, &error) == DLM_INVALID_ARGUMENT);
        CHECK(strstr(dlm_error_message(error), "ttl_ms -3 is not allowed: 1 ms to 365 days") != NULL);
        dlm_error_free(error);
        error = NULL;
        EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_acquire(lock, HOW(1000, -3), &lease, &error));
        CHECK(lease == NULL);
    }
    dlm_lock_free(lock);
    dlm_manager_free(manager);
}

/* Asks who waits for a lock. `hears` says that its holder hears notices. */
static void who_waits(struct dlm_lock *lock, bool hears)
{
    struct dlm_lease *held;
    struct dlm_pending *pending;
    bool known = true;
    uint64_t threads = 7, processes = 7;
    int64_t longest = 7;
    int tries;

    OK(dlm_lock_waiting(lock, &known, &threads, &processes, &longest, &error));
    CHECK(!known && threads == 0 && processes == 0 && longest == 0);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_waiting(lock, &known, &threads, NULL, &longest, &error));
    OK(dlm_lock_try_acquire(lock, HOW(600000, 0), &held, &error));
    OK(dlm_lock_acquire_start(lock, HOW(600000, DLM_FOREVER), &pending, &error));
    /* An answer may come late on a busy machine. */
    for (tries = 0; hears && !(known && threads == 1); tries++) {
        CHECK(tries < 3000);
        OK(dlm_lock_waiting(lock, &known, &threads, &processes, &longest, &error));
        CHECK(processes == 0 && longest >= 0 && (longest == 0 || threads > 0));
        sleep_us(20000);
    }
    dlm_pending_free(pending);
    dlm_lease_free(held);
}

static void holds_renews_and_releases(const char *uri)
{
    struct dlm_manager *manager = opened(uri, "tour"), *other = opened(uri, "tour");
    struct dlm_lock *lock, *same, *another;
    struct dlm_lease *lease, *second, *given;
    struct dlm_stats stats;
    struct dlm_texts *text;
    struct dlm_inspection seen;
    const char *token, *none;
    uint64_t fence, guarded;
    bool freed;
    int64_t left;

    OK(dlm_manager_lock(manager, "order-42", DLM_LEVEL_DC, &lock, &error));
    /* Two managers do not share a memory store, so that store is tested with one manager. */
    OK(dlm_manager_lock(strcmp(uri, "memory:") ? other : manager, "order-42", DLM_LEVEL_DC, &same, &error));

    OK(dlm_lock_try_acquire(lock, HOW(600000, 0), &lease, &error));
    OK(dlm_lease_check(lease, &error));
    left = dlm_lease_remaining_ms(lease);
    CHECK(left > 0 && left <= 600000);
    fence = dlm_lease_fence(lease);
    CHECK(fence > 0);
    OK(dlm_lease_guard(lease, &guarded, &error));
    CHECK(guarded == fence);
    OK(dlm_manager_stats(manager, &stats, sizeof stats, &error));
    CHECK(stats.leases_held == 1 && stats.threads_waiting == 0);
    /* Of a store in memory. */
    CHECK(stats.stale_numbers == 0 && stats.reads_after_refusal == 0 && stats.fences_seeded == 0);
    CHECK(stats.notices_sent == 0 && stats.notices_unsent == 0 && stats.notices_ignored == 0 && stats.early_asks == 0);

    OK(dlm_manager_metrics_text(manager, &text, &error));
    CHECK(dlm_texts_count(text) == 1);
    CHECK(strstr(dlm_texts_at(text, 0), "\ndlm_leases_held{class=\"order\",mode=\"EXCLUSIVE\"} 1\n") != NULL);
    dlm_texts_free(text);

    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_try_acquire(same, NULL, &second, &error));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_acquire(same, HOW(DLM_DEFAULT, 30), &second, &error));
    CHECK(second == NULL);
    CHECK(dlm_lock_try_acquire(same, NULL, &second, &error) == DLM_LOCK_UNAVAILABLE);
    CHECK(dlm_error_is_retryable(error) && strstr(dlm_error_message(error), "order-42"));
    dlm_error_free(error);
    error = NULL;

    OK(dlm_lock_inspect(same, &seen, sizeof seen, &error));
    CHECK(seen.is_held && seen.fence == fence && seen.pid == getpid() && strcmp(seen.purpose, "tour") == 0);
    CHECK(seen.left_ms > 0 && seen.start_ms > 0 && seen.host[0] != '\0');
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_inspect(same, &seen, offsetof(struct dlm_inspection, mode) - 1, &error));
    CHECK(!seen.is_held && seen.host[0] == '\0');

    /* The list has this lock once, and its holder is broken only if it is the one that was seen. */
    {
        struct dlm_lock_list *list;
        struct dlm_lock *hung, *named;
        struct dlm_lease *held;
        struct dlm_seen *what;
        struct dlm_history *history;
        struct dlm_history_entry entry;
        bool broken = true, recorded = false;
        uint64_t higher = 1;
        OK(dlm_manager_list(manager, "DC#", true, NULL, &list, &error));
        CHECK(dlm_lock_list_count(list) == 1 && dlm_lock_list_is_named(list, 0));
        CHECK(strstr(dlm_lock_list_key(list, 0), "#order-42") && !dlm_lock_list_next(list)[0]);
        CHECK(!dlm_lock_list_key(list, 1)[0]);
        OK(dlm_lock_list_inspection(list, 0, &seen, sizeof seen, &error));
        CHECK(seen.is_held && seen.pid == getpid());
        EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_list_inspection(list, 1, &seen, sizeof seen, &error));
        OK(dlm_manager_lock_named(manager, dlm_lock_list_key(list, 0), &named, &error));
        OK(dlm_lock_inspect(named, &seen, sizeof seen, &error));
        CHECK(seen.is_held);
        dlm_lock_free(named);
        dlm_lock_list_free(list);

        OK(dlm_manager_lock(manager, "hung", DLM_LEVEL_XDC, &hung, &error));
        OK(dlm_lock_try_acquire(hung, HOW(600000, 0), &held, &error));
        OK(dlm_lock_see(hung, &what, &error));
        OK(dlm_seen_inspection(what, &seen, sizeof seen, &error));
        CHECK(seen.is_held);
        OK(dlm_seen_break(what, "it hangs", &broken, &higher, &recorded, &error));
        CHECK(broken && recorded && higher > dlm_lease_fence(held));
        OK(dlm_seen_break(what, "it hangs", &broken, &higher, &recorded, &error));
        CHECK(!broken && !recorded && higher == 0);
        CHECK(dlm_lease_renew(held, DLM_DEFAULT, &error) == DLM_LEASE_LOST);
        CHECK(dlm_error_lost_reason(error) == DLM_LOST_BROKEN);
        CHECK(strstr(dlm_error_message(error), "because \"it hangs\""));
        dlm_error_free(error);
        error = NULL;
        OK(dlm_lock_history(hung, 0, 10, &history, &error));
        CHECK(dlm_history_count(history) == 3 && dlm_history_at(history, 0, &entry, sizeof entry));
        CHECK(entry.at_ms > 0 && entry.took_ms == -1 && entry.kind[0] && entry.by[0]);
        CHECK(strcmp(entry.text, "it hangs") == 0 && entry.victim != NULL && entry.mode == 0 && entry.mode_before == 0);
        CHECK(!dlm_history_at(history, 3, &entry, sizeof entry) && entry.kind == NULL && entry.at_ms == 0);
        /* As long as in the first version at least. */
        CHECK(dlm_history_at(history, 0, &entry, offsetof(struct dlm_history_entry, mode)));
        CHECK(!dlm_history_at(history, 0, &entry, offsetof(struct dlm_history_entry, mode) - 1));
        CHECK(!dlm_history_at(history, 0, &entry, 0));
        CHECK(!dlm_history_at(NULL, 0, &entry, sizeof entry) && dlm_history_at(history, 0, NULL, 0));
        dlm_history_free(history);
        dlm_seen_free(what);
        dlm_lease_free(held);
        who_waits(hung, strncmp(uri, "embedded:", 9) == 0);
        dlm_lock_free(hung);
    }

    OK(dlm_lease_renew(lease, 1200000, &error));
    CHECK(dlm_lease_remaining_ms(lease) > 600000);
    OK(dlm_lease_renew(lease, DLM_DEFAULT, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_renew(lease, 0, &error));
    /* The lease goes to another manager, as to another process. */
    OK(dlm_lease_into_token(lease, &token, &error));
    EXPECT(DLM_LEASE_LOST, dlm_lease_into_token(lease, &none, &error));
    CHECK(none == NULL);
    EXPECT(DLM_LEASE_LOST, dlm_lease_check(lease, &error));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_try_acquire(lock, NULL, &second, &error));
    given = lease;
    OK(dlm_manager_lock(manager, "order-43", DLM_LEVEL_DC, &another, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_adopt(another, token, &lease, &error));
    dlm_lock_free(another);
    OK(dlm_lock_adopt(same, token, &lease, &error));
    dlm_lease_free(given);
    CHECK(dlm_lease_fence(lease) == fence);
    OK(dlm_lease_check(lease, &error));
    OK(dlm_lease_renew(lease, DLM_DEFAULT, &error));
    OK(dlm_lease_release(lease, &freed, &error));
    CHECK(freed);
    OK(dlm_lease_release(lease, &freed, &error));
    CHECK(!freed);
    EXPECT(DLM_LEASE_LOST, dlm_lease_check(lease, &error));
    EXPECT(DLM_LEASE_LOST, dlm_lease_guard(lease, &guarded, &error));
    CHECK(guarded == 0);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_guard(lease, NULL, &error));
    EXPECT(DLM_LEASE_LOST, dlm_lease_renew(lease, DLM_DEFAULT, &error));
    EXPECT(DLM_LEASE_LOST, dlm_lease_into_token(lease, &none, &error));
    CHECK(none == NULL && dlm_lease_remaining_ms(lease) == 0);
    OK(dlm_lock_inspect(same, &seen, sizeof seen, &error));
    CHECK(!seen.is_held && seen.pid == -1 && seen.left_ms == -1);
    /* The embedded store does not keep the number of a free lock. */
    CHECK(seen.fence == fence || seen.fence == 0);

    OK(dlm_lock_acquire(same, NULL, &second, &error));
    CHECK(dlm_lease_fence(second) > fence);
    /* Handles may be freed in any order. Freeing the lease releases the lock. */
    dlm_manager_free(manager);
    dlm_manager_free(other);
    dlm_lock_free(same);
    OK(dlm_lease_check(second, &error));
    dlm_lease_free(second);
    dlm_lease_free(lease);
    OK(dlm_lock_try_acquire(lock, NULL, &lease, &error));
    dlm_lock_free(lock);
    dlm_lease_free(lease);
}

static void tells_what_is_stale(const char *uri)
{
    struct dlm_manager *manager = opened(uri, "stale");
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    struct dlm_cancel *cancel = dlm_cancel_new();
    struct dlm_error *kept;
    uint64_t fence;
    bool freed;

    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_DC, &lock, &error));
    OK(dlm_lock_try_acquire(lock, NULL, &lease, &error));
    dlm_lease_free(lease);
    EXPECT(DLM_CLOSED, dlm_lease_check(lease, &error));
    EXPECT(DLM_CLOSED, dlm_lease_release(lease, NULL, &error));
    CHECK(dlm_lease_fence(lease) == 0 && dlm_lease_remaining_ms(lease) == 0);
    dlm_lease_free(lease);
    /* A handle of another type, and values that were never handles. */
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_check((struct dlm_lease *)(void *)lock, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_check((struct dlm_lease *)(void *)&lease, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_check((struct dlm_lease *)1, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_check((struct dlm_lease *)UINTPTR_MAX, &error));
    dlm_lock_free((struct dlm_lock *)(void *)manager);

    dlm_cancel_free(cancel);
    EXPECT(DLM_CLOSED, dlm_cancel_trigger(cancel, &error));
    EXPECT(DLM_CLOSED, dlm_lock_acquire(lock, HOW_WITH(DLM_DEFAULT, DLM_DEFAULT, 0, cancel), &lease, &error));

    OK(dlm_lock_try_acquire(lock, NULL, &lease, &error));
    OK(dlm_manager_close(manager, &error));
    OK(dlm_manager_close(manager, &error));
    EXPECT(DLM_LEASE_LOST, dlm_lease_check(lease, &error));
    CHECK(dlm_lease_guard(lease, &fence, &error) == DLM_LEASE_LOST && fence == 0);
    CHECK(strstr(dlm_error_message(error), "its manager was closed") != NULL);
    dlm_error_free(error);
    error = NULL;
    OK(dlm_lease_release(lease, &freed, &error));
    CHECK(!freed);
    EXPECT(DLM_CLOSED, dlm_lease_renew(lease, DLM_DEFAULT, &error));
    dlm_lease_free(lease);
    EXPECT(DLM_CLOSED, dlm_lock_try_acquire(lock, NULL, &lease, &error));
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    CHECK(dlm_manager_close(manager, &kept) == DLM_CLOSED);
    dlm_error_free(kept);
    CHECK(strcmp(dlm_error_message(kept), "no error") == 0);
    dlm_error_free(kept);
}

struct waiter {
    struct dlm_lock *lock;
    struct dlm_cancel *cancel;
    enum dlm_status status;
};

static void *wait_for_it(void *argument)
{
    struct waiter *waiter = argument;
    struct dlm_lease *lease;
    waiter->status = dlm_lock_acquire(waiter->lock, HOW_WITH(DLM_DEFAULT, DLM_FOREVER, 0, waiter->cancel), &lease, NULL);
    dlm_lease_free(lease);
    return NULL;
}

static void wait_until(struct dlm_manager *manager, uint64_t waiting)
{
    struct dlm_stats stats = {0};
    int i;
    for (i = 0; i < 60000 && stats.threads_waiting != waiting; i++) {
        sleep_us(1000);
        OK(dlm_manager_stats(manager, &stats, sizeof stats, &error));
    }
    CHECK(stats.threads_waiting == waiting);
}

static void ends_waits(const char *uri)
{
    struct dlm_manager *manager = opened(uri, "waits");
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    struct waiter cancelled = {0}, closed = {0}, orphan = {0};
    pthread_t threads[3];

    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_DC, &lock, &error));
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_DC, &cancelled.lock, &error));
    closed.lock = lock;
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_DC, &orphan.lock, &error));
    cancelled.cancel = dlm_cancel_new();
    OK(dlm_lock_try_acquire(lock, NULL, &lease, &error));
    CHECK(pthread_create(&threads[0], NULL, wait_for_it, &cancelled) == 0);
    CHECK(pthread_create(&threads[1], NULL, wait_for_it, &closed) == 0);
    CHECK(pthread_create(&threads[2], NULL, wait_for_it, &orphan) == 0);
    wait_until(manager, 3);
    /* The handle is freed while a thread waits with it. The thread continues to wait. */
    dlm_lock_free(orphan.lock);
    OK(dlm_cancel_trigger(cancelled.cancel, &error));
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(cancelled.status == DLM_CANCELLED);
    wait_until(manager, 2);
    OK(dlm_manager_close(manager, &error));
    CHECK(pthread_join(threads[1], NULL) == 0);
    CHECK(pthread_join(threads[2], NULL) == 0);
    CHECK(closed.status == DLM_CLOSED && orphan.status == DLM_CLOSED);
    dlm_cancel_free(cancelled.cancel);
    dlm_lock_free(cancelled.lock);
    dlm_lock_free(lock);
    dlm_lease_free(lease);
    dlm_manager_free(manager);
}

/* A program that is older than the library, a newer one, and invalid sizes. */
static void writes_structs_of_the_size_that_the_program_has(const char *uri)
{
    struct dlm_manager *manager = opened(uri, "numbers");
    struct dlm_lock *lock;
    uint64_t numbers[16], wanted[16];
    struct {
        struct dlm_inspection known;
        uint64_t newer;
    } grown;
    bool changed;

    memset(wanted, 0xee, sizeof wanted);
    memset(numbers, 0xee, sizeof numbers);
    OK(dlm_manager_stats(manager, (struct dlm_stats *)numbers, sizeof(struct dlm_stats) + 16, &error));
    CHECK(numbers[0] == 0 && numbers[11] == 0 && numbers[12] == wanted[0]);
    /* No version is so small. The bytes that the program has are written, and nothing after them. */
    memset(numbers, 0xee, sizeof numbers);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_stats(manager, (struct dlm_stats *)numbers, 12, &error));
    memset(wanted, 0, 12);
    CHECK(memcmp(numbers, wanted, sizeof wanted) == 0);
    /* No object has this size. Only the fields of the first version are written. */
    memset(numbers, 0xee, sizeof numbers);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_stats(manager, (struct dlm_stats *)numbers, SIZE_MAX, &error));
    CHECK(numbers[0] == 0 && numbers[9] == 0 && numbers[10] != 0);
    memset(numbers, 0xee, sizeof numbers);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_stats(manager, (struct dlm_stats *)numbers, 0, &error));
    CHECK(numbers[0] != 0);

    /* What a call reads and writes. */
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, &lock, &error));
    memset(&grown, 0, sizeof grown);
    OK(dlm_lock_observe(lock, 0, NULL, &grown.known, sizeof grown, &changed, &error));
    grown.newer = 1;
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_observe(lock, 0, NULL, &grown.known, sizeof grown, &changed, &error));
    grown.newer = 0;
    memset(&grown, 2, 1); /* is_held */
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_observe(lock, 0, NULL, &grown.known, sizeof grown, &changed, &error));
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    EXPECT(DLM_CLOSED, dlm_manager_stats(manager, (struct dlm_stats *)numbers, sizeof(struct dlm_stats), &error));
    CHECK(numbers[0] == 0 && numbers[9] == 0);
}

static void refused_options(struct dlm_lock *lock, const struct dlm_acquire_options *how)
{
    struct dlm_lease *lease;
    struct dlm_pending *pending;
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_acquire(lock, how, &lease, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_try_acquire(lock, how, &lease, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_campaign(lock, how, &lease, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_acquire_start(lock, how, &pending, &error));
}

/* The options of a program that is as old as the library, newer, or wrong. */
static void takes_options_by_their_size(const char *uri)
{
    const struct dlm_acquire_options by_default = DLM_ACQUIRE_OPTIONS;
    struct dlm_manager *manager = opened(uri, "options");
    struct dlm_lock *lock;
    struct dlm_lease *lease, *again, *other;
    struct dlm_pending *pending;
    struct {
        struct dlm_acquire_options known;
        uint64_t newer[2];
    } grown = {by_default, {0, 0}};
    struct dlm_acquire_options how;
    size_t i;

    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, &lock, &error));
    OK(dlm_lock_acquire(lock, &by_default, &lease, &error));
    dlm_lease_free(lease);
    OK(dlm_lock_try_acquire(lock, &by_default, &lease, &error));
    dlm_lease_free(lease);
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    CHECK(dlm_lease_state(lease) == DLM_STATE_HELD);
    dlm_lease_free(lease);
    grown.known.size = sizeof grown;
    OK(dlm_lock_acquire(lock, &grown.known, &lease, &error));
    dlm_lease_free(lease);
    grown.newer[1] = 1;
    refused_options(lock, &grown.known);
    {
        const size_t sizes[] = {0, 1, offsetof(struct dlm_acquire_options, nested_in) - 1, 4097, SIZE_MAX};
        for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            how = by_default;
            how.size = sizes[i];
            refused_options(lock, &how);
        }
        /* No version ends within a pointer. A part of this one would be read as a text. */
        for (i = 1; i < sizeof how.owner; i++) {
            how = by_default;
            how.owner = "order-7";
            how.size = offsetof(struct dlm_acquire_options, owner) + i;
            refused_options(lock, &how);
        }
    }
    /* A program of the first version has no last field. */
    how = by_default;
    how.size = offsetof(struct dlm_acquire_options, nested_in);
    how.nested_in = (struct dlm_lease *)(void *)lock;
    OK(dlm_lock_acquire(lock, &how, &lease, &error));
    dlm_lease_free(lease);
    how.size = sizeof how;
    refused_options(lock, &how);
    how = by_default;
    how.mode = DLM_MODE_PERMIT;
    refused_options(lock, &how);
    how.mode = DLM_MODE_SHARED;
    how.owner = "order-7";
    refused_options(lock, &how);
    how.mode = DLM_MODE_EXCLUSIVE;
    how.owner = "";
    refused_options(lock, &how);
    how.owner = "order-7";
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_acquire_start(lock, &how, &pending, &error));
    OK(dlm_lock_acquire(lock, &how, &lease, &error));
    OK(dlm_lock_acquire(lock, &how, &again, &error));
    CHECK(dlm_lease_fence(lease) == dlm_lease_fence(again));
    how.owner = "order-8";
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_try_acquire(lock, &how, &other, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    EXPECT(DLM_LEASE_LOST, dlm_lease_check(lease, &error));
    OK(dlm_lease_check(again, &error));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_try_acquire(lock, &how, &other, &error));
    dlm_lease_free(again);
    dlm_lease_free(lease);
    OK(dlm_lock_try_acquire(lock, &how, &other, &error));
    dlm_lease_free(other);
    how = by_default;
    how.reserved[2] = 1;
    refused_options(lock, &how);
    how = by_default;
    memset((char *)&how + offsetof(struct dlm_acquire_options, dies_with_process), 7, 1);
    refused_options(lock, &how);
    how = by_default;
    how.min_hold_ms = -1;
    refused_options(lock, &how);
    how = by_default;
    how.cancel = (struct dlm_cancel *)(void *)lock;
    refused_options(lock, &how);
    /* A call that does not wait has no wait. */
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_try_acquire(lock, HOW(DLM_DEFAULT, 5), &lease, &error));
    CHECK(dlm_lock_try_acquire(lock, HOW(DLM_DEFAULT, DLM_FOREVER), &lease, &error) == DLM_INVALID_ARGUMENT);
    CHECK(strstr(dlm_error_message(error), "wait_ms DLM_FOREVER is not allowed: 0 or DLM_DEFAULT") != NULL);
    dlm_error_free(error);
    error = NULL;

    /* Each field has its effect. */
    how = by_default;
    how.ttl_ms = 600000;
    how.max_hold_ms = DLM_FOREVER;
    OK(dlm_lock_try_acquire(lock, &how, &lease, &error));
    CHECK(dlm_lease_ttl_ms(lease) == 600000 && dlm_lease_state(lease) == DLM_STATE_RENEWING);
    dlm_lease_free(lease);
    how.max_hold_ms = 0;
    how.min_hold_ms = 600000;
    OK(dlm_lock_try_acquire(lock, &how, &lease, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_try_acquire(lock, NULL, &lease, &error));
    dlm_lock_free(lock);
    OK(dlm_manager_lock(manager, "b", DLM_LEVEL_XDC, &lock, &error));
    how.min_hold_ms = 0;
    how.dies_with_process = true;
    if (strncmp(uri, "embedded:", 9) == 0) {
        OK(dlm_lock_try_acquire(lock, &how, &lease, &error));
        dlm_lease_free(lease);
    } else {
        EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_try_acquire(lock, &how, &lease, &error));
    }
    dlm_lock_free(lock);
    dlm_manager_free(manager);
}

static void writes_outputs_wherever_they_are(const char *uri)
{
    char memory[sizeof(void *) + 1];
    struct dlm_manager *manager;
    CHECK(dlm_manager_open(uri, NULL, (struct dlm_manager **)(void *)(memory + 1), NULL) == DLM_INVALID_ARGUMENT);
    memcpy(&manager, memory + 1, sizeof manager);
    CHECK(manager == NULL);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    OK(dlm_abi_check(DLM_ABI, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_abi_check(DLM_ABI + 1, &error));
    CHECK(strcmp(dlm_version(), DLM_VERSION) == 0);
    CHECK(strcmp(dlm_status_name(DLM_LEASE_LOST), "LEASE_LOST") == 0);
    CHECK(strcmp(dlm_status_name(-1), "UNKNOWN") == 0);
    refuses_what_is_wrong(argv[1]);
    holds_renews_and_releases(argv[1]);
    tells_what_is_stale(argv[1]);
    ends_waits(argv[1]);
    writes_structs_of_the_size_that_the_program_has(argv[1]);
    takes_options_by_their_size(argv[1]);
    writes_outputs_wherever_they_are(argv[1]);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

/* Random sequences of calls with handles that are valid, freed, freed twice, of the wrong type or NULL. The library
 * reports which, never crashes and leaks nothing.
 *
 *   random URI SEQUENCES SEED */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include "../../go/dlm_go.h"

#include <pthread.h>

enum { SLOTS = 2, CALLS = 24, WAIT_EVERY = 64 };

/* A handle that was created earlier, and whether it is still valid. */
struct slot {
    void *handle;
    bool alive;
};

static struct slot managers[SLOTS], locks[SLOTS], leases[SLOTS], cancels[SLOTS], options[SLOTS], ids[SLOTS],
    keys[SLOTS], latches[SLOTS], watches[SLOTS], names[SLOTS], pendings[SLOTS], completions[SLOTS],
    sets[SLOTS], calls[SLOTS], semaphores[SLOTS];
static uint64_t state, told_stale, worked;
static const char *store;
static struct dlm_error *error;

static uint64_t below(uint64_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % bound;
}

static struct slot *any(struct slot *slots) { return &slots[below(SLOTS)]; }

/* Checks that a call with this handle may return this status. */
static void judge(const struct slot *slot, enum dlm_status status)
{
    CHECK(status != DLM_PANIC && status != DLM_INTERNAL_ERROR && status != DLM_FORKED);
    if (slot->handle == NULL)
        CHECK(status == DLM_INVALID_ARGUMENT);
    else if (!slot->alive)
        CHECK(status == DLM_CLOSED);
    CHECK((error != NULL) == (status != DLM_OK));
    told_stale += status == DLM_CLOSED;
    worked += status == DLM_OK;
    if (below(2))
        dlm_error_free(error);
    CHECK(error == NULL || dlm_error_message(error) != NULL);
    dlm_error_free(error);
    error = NULL;
}

static void put(struct slot *slots, void *handle)
{
    size_t i;
    CHECK(handle != NULL);
    for (i = 0; i < SLOTS; i++) {
        if (!slots[i].alive) {
            slots[i].handle = handle;
            slots[i].alive = true;
            return;
        }
    }
    abort();
}

static bool full(const struct slot *slots)
{
    size_t i;
    for (i = 0; i < SLOTS; i++)
        if (!slots[i].alive)
            return false;
    return true;
}

static const char *any_name(void)
{
    static const char *const all[] = {"a", "b", "", "\xff"};
    return all[below(4)];
}

/* Options of an acquisition. Now and then a byte of them is anything. */
static const struct dlm_acquire_options *any_how(int64_t ttl_ms, int64_t wait_ms, int64_t max_hold_ms, void *cancel)
{
    static struct {
        struct dlm_acquire_options known;
        unsigned char newer[4096];
    } how;
    memset(&how, 0, sizeof how);
    how.known = *HOW_WITH(ttl_ms, wait_ms, max_hold_ms, cancel);
    if (below(8) == 0)
        how.known.size = (size_t)below(sizeof how);
    if (below(8) == 0)
        ((unsigned char *)&how)[sizeof how.known.size + below(sizeof how - sizeof how.known.size)] = (unsigned char)below(256);
    /* A wait or a minimum of any time would take long. */
    if (how.known.wait_ms != wait_ms)
        how.known.wait_ms = 0;
    how.known.min_hold_ms = 0;
    /* A text, and no handle: the library reads it. */
    how.known.owner = below(4) == 0 ? any_name() : NULL;
    return &how.known;
}

static void make(void)
{
    struct slot *from;
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    struct slot given = {(void *)1, true};
    enum dlm_status status;
    struct dlm_latch *latch;
    struct dlm_watch *watch;
    struct dlm_texts *pending;

    struct dlm_pending *started;
    struct dlm_lease_set *set;
    struct dlm_lock *some[2];
    struct dlm_call *call;
    bool turn;

    switch (below(15)) {
    case 14:
        if (full(calls))
            return;
        from = any(leases);
        status = below(2) ? dlm_lease_release_start(from->handle, &call, &error)
                          : dlm_lease_renew_start(from->handle, (int64_t)below(9000) - 3, &call, &error);
        if (status == DLM_OK)
            put(calls, call);
        judge(from, status);
        return;
    case 12:
        if (full(sets))
            return;
        from = any(managers);
        some[0] = locks[0].handle;
        some[1] = locks[below(SLOTS)].handle;
        status = dlm_manager_acquire_all(from->handle, some, (size_t)below(3), any_how((int64_t)below(4000) - 3, 0, 0, NULL),
                                         &set, &error);
        if (status == DLM_OK)
            put(sets, set);
        judge(from, status);
        return;
    case 13:
        if (full(leases))
            return;
        from = any(locks);
        status = dlm_lock_campaign(from->handle, any_how((int64_t)below(4000) - 3, 0, 0, NULL), &lease, &error);
        if (status == DLM_OK)
            put(leases, lease);
        judge(from, status);
        return;
    case 10:
        if (full(pendings))
            return;
        from = any(locks);
        status = below(2) ? dlm_lock_acquire_start(
                                from->handle,
                                any_how(DLM_DEFAULT, (int64_t)below(4) - 2, below(4) ? 0 : DLM_FOREVER, NULL),
                                &started, &error)
                          : dlm_lock_acquire_start_here(from->handle,
                                                        any_how(DLM_DEFAULT, (int64_t)below(4) - 2, 0, NULL),
                                                        &started, &turn, &error);
        if (status == DLM_OK)
            put(pendings, started);
        judge(from, status);
        return;
    case 11:
        if (!full(completions))
            put(completions, dlm_completions_new());
        return;
    case 0:
        if (full(managers))
            return;
        from = any(options);
        status = dlm_manager_open(store, from->handle, &manager, &error);
        if (status == DLM_OK)
            put(managers, manager);
        judge(from->handle ? from : &given, status);
        return;
    case 1:
        if (full(locks))
            return;
        from = any(managers);
        status = dlm_manager_lock(from->handle, any_name(), (int32_t)below(4), &lock, &error);
        if (status == DLM_OK)
            put(locks, lock);
        judge(from, status);
        return;
    case 2:
        if (full(leases))
            return;
        from = any(locks);
        if (below(2)) {
            status = dlm_lock_try_acquire(from->handle, below(8) == 0 ? NULL : any_how((int64_t)below(4000) - 3, 0, 0, NULL), &lease, &error);
        } else {
            struct slot *cancel = any(cancels);
            status = dlm_lock_acquire(from->handle, HOW_WITH(DLM_DEFAULT, below(32) == 0, 0, cancel->handle), &lease, &error);
            if (from->alive && cancel->handle && !cancel->alive)
                CHECK(status == DLM_CLOSED || status == DLM_INVALID_ARGUMENT);
        }
        if (status == DLM_OK)
            put(leases, lease);
        judge(from, status);
        return;
    case 3:
        if (!full(cancels))
            put(cancels, dlm_cancel_new());
        return;
    case 4:
        if (!full(options))
            put(options, dlm_options_new());
        return;
    case 5:
        if (!full(ids))
            put(ids, dlm_id_lock_new());
        return;
    case 6:
        if (full(latches))
            return;
        from = any(managers);
        status = dlm_manager_latch(from->handle, any_name(), (int32_t)below(4), (int32_t)below(4),
                                   (int64_t)below(4000) - 3, &latch, &error);
        if (status == DLM_OK)
            put(latches, latch);
        judge(from, status);
        return;
    case 7:
        if (full(watches))
            return;
        from = any(latches);
        status = dlm_latch_watch(from->handle, &watch, &error);
        if (status == DLM_OK)
            put(watches, watch);
        judge(from, status);
        return;
    case 8:
        if (full(names))
            return;
        from = any(latches);
        status = dlm_latch_pending(from->handle, &pending, &error);
        if (status == DLM_OK)
            put(names, pending);
        judge(from, status);
        return;
    default:
        if (!full(keys))
            put(keys, dlm_key_lock_new());
    }
}

/* Makes a call with a latch, a watch or names. */
static void use_latch(void)
{
    struct slot *slot = any(latches), *cancel;
    const char *participants[] = {any_name(), any_name()};
    enum dlm_status status;
    int64_t count;
    bool yes;
    int fd;

    switch (below(15)) {
    case 12:
        judge(slot, dlm_latch_reset(slot->handle, (int64_t)below(4) - 1, &error));
        return;
    case 13:
        judge(slot, dlm_latch_reset_for(slot->handle, participants, (size_t)below(3), &error));
        return;
    case 14:
        judge(slot, dlm_latch_delete(slot->handle, &error));
        return;
    case 0:
        judge(slot, dlm_latch_create(slot->handle, (int64_t)below(4) - 1, &error));
        return;
    case 1:
        judge(slot, dlm_latch_create_for(slot->handle, participants, (size_t)below(3), &error));
        return;
    case 2:
    case 3:
        judge(slot,
              dlm_latch_get_or_create(slot->handle, (int64_t)below(4) - 1, below(2) ? &yes : NULL, &error));
        return;
    case 4:
        judge(slot, dlm_latch_count(slot->handle, &count, &error));
        return;
    case 5:
        judge(slot, dlm_latch_count_down(slot->handle, &error));
        return;
    case 6:
        judge(slot, dlm_latch_count_up(slot->handle, &error));
        return;
    case 7:
        judge(slot, dlm_latch_count_down_as(slot->handle, any_name(), below(2) ? &yes : NULL, &error));
        return;
    case 8:
        cancel = any(cancels);
        status = dlm_latch_await_open(slot->handle, below(32) == 0, cancel->handle, &yes, &error);
        if (slot->alive && cancel->handle && !cancel->alive)
            CHECK(status == DLM_CLOSED);
        judge(slot, status);
        return;
    case 9:
        slot = any(watches);
        judge(slot, dlm_watch_is_open(slot->handle, &yes, &error));
        return;
    case 10:
        slot = any(watches);
        judge(slot, dlm_watch_fd(slot->handle, &fd, &error));
        return;
    default:
        slot = any(names);
        count = (int64_t)dlm_texts_count(slot->handle);
        CHECK(slot->alive || count == 0);
        CHECK(count > 0 || *dlm_texts_at(slot->handle, below(3)) == '\0');
    }
}

/* Makes a call with a pending acquisition or with a list of completions. */
static void use_pending(void)
{
    struct slot *slot = any(pendings), *list = any(completions);
    struct dlm_lease *lease;
    enum dlm_status status;
    struct dlm_completion what = {0};
    bool found;
    int32_t fd;

    switch (below(8)) {
    case 6:
        status = dlm_completions_wait(list->handle, below(32) == 0, &what, below(4) ? sizeof what : (size_t)below(sizeof what),
                                      &found, &error);
        CHECK(found == (what.kind != 0) || status != DLM_OK);
        judge(list, status);
        return;
    case 7:
        slot = any(leases);
        status = dlm_lease_notify(slot->handle, list->handle, 1 + below(9), &error);
        if (slot->alive && list->handle && !list->alive)
            CHECK(status == DLM_CLOSED);
        judge(slot, status);
        return;
    case 0:
        status = dlm_pending_take(slot->handle, &lease, &error);
        if (status == DLM_OK && lease && !full(leases))
            put(leases, lease);
        else
            dlm_lease_free(lease);
        judge(slot, status);
        return;
    case 1:
        judge(slot, dlm_pending_fd(slot->handle, &fd, &error));
        return;
    case 2:
        judge(slot, dlm_pending_cancel(slot->handle, &error));
        return;
    case 3:
        judge(slot, dlm_pending_ask(slot->handle, &error));
        return;
    case 4:
        status = dlm_pending_notify(slot->handle, list->handle, 1 + below(9), &error);
        if (slot->alive && list->handle && !list->alive)
            CHECK(status == DLM_CLOSED);
        judge(slot, status);
        return;
    default:
        found = dlm_completions_next(list->handle, &what, sizeof what);
        CHECK(found == (what.tag != 0) && found == (what.kind != 0) && (list->alive || !found));
        judge(list, dlm_completions_fd(list->handle, &fd, &error));
    }
}

/* Makes a call with a set of leases, or with a call that does not block. */
static void use_set(void)
{
    struct slot *slot = any(sets);
    uint64_t fences[2];
    bool freed, done;
    int32_t fd;

    switch (below(8)) {
    case 6:
        slot = any(calls);
        judge(slot, dlm_call_take(slot->handle, &done, below(2) ? &freed : NULL, &error));
        return;
    case 7:
        slot = any(calls);
        judge(slot, dlm_call_fd(slot->handle, &fd, &error));
        return;
    case 0:
        judge(slot, dlm_lease_set_guard(slot->handle, fences, (size_t)below(3), &error));
        return;
    case 1:
        judge(slot, dlm_lease_set_check(slot->handle, &error));
        return;
    case 2:
        judge(slot, dlm_lease_set_keep(slot->handle, (int64_t)below(300) - 1, &error));
        return;
    case 3:
        judge(slot, dlm_lease_set_renew(slot->handle, &error));
        return;
    case 4:
        judge(slot, dlm_lease_set_release(slot->handle, below(2) ? &freed : NULL, &error));
        return;
    default:
        CHECK(slot->alive || dlm_lease_set_remaining_ms(slot->handle) == 0);
    }
}

/* Makes a lease of a call, or frees it if there is no room. */
static void put_lease(struct dlm_lease *lease)
{
    if (lease != NULL && !full(leases))
        put(leases, lease);
    else
        dlm_lease_free(lease);
}

/* Makes a call about the mode of a lock or a lease. */
static void use_mode(void)
{
    struct slot *slot = any(leases);
    struct dlm_lease *lease;
    struct dlm_lock *lock;
    enum dlm_status status;
    int32_t mode = (int32_t)below(5) - 1;

    switch (below(4)) {
    case 0:
        status = dlm_lease_downgrade(slot->handle, mode, &lease, &error);
        put_lease(lease);
        break;
    case 1:
        status = dlm_lease_upgrade(slot->handle, below(2) ? 0 : 1, NULL, &lease, &error);
        put_lease(lease);
        break;
    case 2:
        CHECK(slot->alive || (dlm_lease_mode(slot->handle) == 0 && dlm_lease_permit(slot->handle) == -1));
        return;
    default:
        if (full(locks))
            return;
        slot = any(locks);
        status = dlm_lock_in_mode(slot->handle, mode, &lock, &error);
        if (status == DLM_OK)
            put(locks, lock);
    }
    judge(slot, status);
}

/* Makes a call with a semaphore. */
static void use_semaphore(void)
{
    struct slot *slot = any(semaphores);
    struct dlm_lease *permits[3];
    struct dlm_semaphore *other;
    struct dlm_pending *started;
    struct dlm_lock_list *list;
    enum dlm_status status;
    size_t count = (size_t)below(4), at;
    int32_t number;
    bool turn;

    switch (below(8)) {
    case 0:
        if (full(semaphores))
            return;
        slot = any(managers);
        status = dlm_manager_semaphore(slot->handle, any_name(), (int32_t)below(4), (int32_t)below(4), &other, &error);
        if (status == DLM_OK)
            put(semaphores, other);
        break;
    case 1:
        status = dlm_semaphore_resize(slot->handle, (int32_t)below(4), &other, &error);
        if (status == DLM_OK && !full(semaphores))
            put(semaphores, other);
        else
            dlm_semaphore_free(other);
        break;
    case 2:
        status = dlm_semaphore_available(slot->handle, &number, &error);
        CHECK((number >= 0) == (status == DLM_OK));
        break;
    case 3:
        status = dlm_semaphore_holders(slot->handle, &list, &error);
        CHECK(dlm_lock_list_count(list) <= 3);
        dlm_lock_list_free(list);
        break;
    case 4:
        if (full(pendings))
            return;
        status = below(2) ? dlm_semaphore_acquire_start(slot->handle, count, any_how(DLM_DEFAULT, 0, 0, NULL), &started, &error)
                          : dlm_semaphore_acquire_start_here(slot->handle, count, any_how(DLM_DEFAULT, 0, 0, NULL),
                                                             &started, &turn, &error);
        if (status == DLM_OK)
            put(pendings, started);
        break;
    case 5:
        slot = any(pendings);
        status = dlm_pending_take_permits(slot->handle, permits, count, &error);
        for (at = 0; at < count; at++)
            put_lease(permits[at]);
        break;
    case 6:
        CHECK((dlm_semaphore_permits(slot->handle) != 0) == slot->alive);
        CHECK((dlm_semaphore_name(slot->handle)[0] != 0) == slot->alive);
        return;
    default:
        status = below(2) ? dlm_semaphore_try_acquire(slot->handle, count, any_how(DLM_DEFAULT, 0, 0, NULL), permits, &error)
                          : dlm_semaphore_acquire(slot->handle, count, any_how(DLM_DEFAULT, 0, 0, NULL), permits, &error);
        for (at = 0; at < count; at++)
            put_lease(permits[at]);
    }
    judge(slot, status);
}

/* Makes a call that describes an object or the store. */
static void describe(void)
{
    struct slot *slot;
    struct dlm_texts *list;
    struct dlm_inspection seen = {0};
    bool changed;

    switch (below(8)) {
    case 0:
        slot = any(locks);
        CHECK((dlm_lock_name(slot->handle)[0] != 0) == slot->alive);
        return;
    case 1:
        slot = any(leases);
        CHECK((dlm_lease_name(slot->handle)[0] != 0) == slot->alive);
        return;
    case 2:
        slot = any(latches);
        CHECK((dlm_latch_name(slot->handle)[0] != 0) == slot->alive);
        return;
    case 3:
        slot = any(managers);
        CHECK((dlm_manager_store(slot->handle)[0] != 0) == slot->alive);
        return;
    case 4:
        slot = any(locks);
        judge(slot, dlm_lock_observe(slot->handle, 0, NULL, &seen, sizeof seen, &changed, &error));
        return;
    case 5:
        slot = any(leases);
        judge(slot, dlm_lease_hold_at_least(slot->handle, (int64_t)below(2) - 1, &error));
        CHECK(slot->alive || dlm_lease_ttl_ms(slot->handle) == 0);
        CHECK(slot->alive || dlm_lease_ends_ns(slot->handle) == 0);
        return;
    case 6:
        if (full(names))
            return;
        slot = any(latches);
        if (dlm_latch_arrived(slot->handle, &list, &error) == DLM_OK) {
            put(names, list);
            judge(slot, DLM_OK);
        } else
            judge(slot, dlm_error_status(error));
        return;
    default:
        slot = any(managers);
        if (below(16) == 0) {
            enum dlm_status status = dlm_manager_diagnose(slot->handle, &list, &changed, &error);
            dlm_texts_free(list);
            judge(slot, status);
        }
    }
}

static void use(void)
{
    struct slot *slot;
    struct dlm_stats stats;
    struct dlm_inspection seen;
    const char *token;
    const char *words[] = {"purpose", "retry", "x", "2s"};
    uint64_t many[3];
    bool freed;
    int fd, i;

    switch (below(17)) {
    case 16:
        slot = any(locks);
        judge(slot, dlm_lock_inspect(slot->handle, &seen, sizeof seen, &error));
        if (below(8) == 0) {
            slot = any(leases);
            judge(slot, dlm_lease_into_token(slot->handle, &token, &error));
        }
        return;
    case 0:
        slot = any(leases);
        judge(slot, below(2) ? dlm_lease_check(slot->handle, &error) : dlm_lease_guard(slot->handle, many, &error));
        return;
    case 1:
        slot = any(leases);
        judge(slot, dlm_lease_release(slot->handle, below(2) ? &freed : NULL, &error));
        return;
    case 2:
        slot = any(leases);
        judge(slot, dlm_lease_renew(slot->handle, (int64_t)below(9000) - 3, &error));
        return;
    case 3:
        slot = any(leases);
        judge(slot, below(2) ? dlm_lease_lost_fd(slot->handle, &fd, &error)
                             : dlm_lease_at_risk_fd(slot->handle, &fd, &error));
        return;
    case 4:
        slot = any(leases);
        CHECK((dlm_lease_fence(slot->handle) != 0 || dlm_lease_epoch(slot->handle) != 0) == slot->alive);
        CHECK(slot->alive || dlm_lease_state(slot->handle) == DLM_STATE_RELEASED);
        if (below(4))
            judge(slot, dlm_lease_keep(slot->handle, (int64_t)below(300) - 1, &error));
        else
            judge(slot, dlm_lease_stop_keeping(slot->handle, &error));
        CHECK(slot->alive || dlm_lease_lost_reason(slot->handle) == DLM_LOST_NOT);
        CHECK(slot->alive || dlm_lease_remaining_ms(slot->handle) == 0);
        return;
    case 5:
        slot = any(managers);
        judge(slot, dlm_manager_stats(slot->handle, &stats, below(4) ? sizeof stats : (size_t)below(sizeof stats), &error));
        return;
    case 6:
        slot = any(managers);
        judge(slot, dlm_manager_initialize(slot->handle, &error));
        return;
    case 7:
        slot = any(managers);
        if (below(4) == 0)
            judge(slot, dlm_manager_close(slot->handle, &error));
        return;
    case 8:
        slot = any(cancels);
        if (below(8) == 0) {
            judge(slot, dlm_cancel_signal_fd(slot->handle, &fd, &error));
            if (below(2))
                dlm_cancel_trigger_fd(fd);
            return;
        }
        judge(slot, dlm_cancel_trigger(slot->handle, &error));
        return;
    case 9:
        slot = any(options);
        judge(slot, dlm_options_set(slot->handle, words[below(3)], words[below(4)], &error));
        return;
    case 10:
    case 11:
        slot = any(ids);
        judge(slot, dlm_id_lock_acquire(slot->handle, below(3), below(32) == 0, &error));
        return;
    case 12:
        slot = any(ids);
        judge(slot, dlm_id_lock_release(slot->handle, below(3), &error));
        return;
    case 13:
        slot = any(ids);
        for (i = 0; i < 3; i++)
            many[i] = below(4);
        if (below(2))
            judge(slot, dlm_id_lock_acquire_many(slot->handle, many, (size_t)below(4), 0, &error));
        else
            judge(slot, dlm_id_lock_release_many(slot->handle, many, (size_t)below(4), &error));
        return;
    case 14:
        slot = any(keys);
        judge(slot, dlm_key_lock_acquire(slot->handle, "abc", (size_t)below(4), 0, &error));
        return;
    default:
        slot = any(keys);
        judge(slot, dlm_key_lock_release(slot->handle, "abc", (size_t)below(4), &error));
        CHECK(slot->alive || dlm_key_lock_count(slot->handle) == 0);
    }
}

/* Frees a handle. If it was freed before, nothing happens. */
static void let_go(struct slot *slots, size_t at, void (*free_it)(struct slot *))
{
    free_it(&slots[at]);
    slots[at].alive = false;
}

static void free_manager(struct slot *slot) { dlm_manager_free(slot->handle); }
static void free_lock(struct slot *slot) { dlm_lock_free(slot->handle); }
static void free_lease(struct slot *slot) { dlm_lease_free(slot->handle); }
static void free_cancel(struct slot *slot) { dlm_cancel_free(slot->handle); }
static void free_options(struct slot *slot) { dlm_options_free(slot->handle); }
static void free_ids(struct slot *slot) { dlm_id_lock_free(slot->handle); }
static void free_keys(struct slot *slot) { dlm_key_lock_free(slot->handle); }
static void free_latch(struct slot *slot) { dlm_latch_free(slot->handle); }
static void free_watch(struct slot *slot) { dlm_watch_free(slot->handle); }
static void free_names(struct slot *slot) { dlm_texts_free(slot->handle); }
static void free_pending(struct slot *slot) { dlm_pending_free(slot->handle); }
static void free_call(struct slot *slot) { dlm_call_free(slot->handle); }
static void free_set(struct slot *slot) { dlm_lease_set_free(slot->handle); }
static void free_semaphore(struct slot *slot) { dlm_semaphore_free(slot->handle); }
static void free_completions(struct slot *slot) { dlm_completions_free(slot->handle); }

static const struct {
    struct slot *slots;
    void (*free_it)(struct slot *);
} kinds[] = {{managers, free_manager}, {locks, free_lock}, {leases, free_lease}, {cancels, free_cancel},
             {options, free_options}, {ids, free_ids},     {keys, free_keys},   {latches, free_latch},
             {watches, free_watch},   {names, free_names},
             {pendings, free_pending}, {completions, free_completions},
             {sets, free_set}, {calls, free_call}, {semaphores, free_semaphore}};

enum { KINDS = sizeof kinds / sizeof *kinds };

static void drop_one(void)
{
    uint64_t kind = below(KINDS), other = below(KINDS);
    if (below(8) == 0 && other != kind) {
        /* A handle of the wrong type: nothing happens. */
        kinds[other].free_it(any(kinds[kind].slots));
        return;
    }
    let_go(kinds[kind].slots, below(SLOTS), kinds[kind].free_it);
}

struct waiter {
    void *lock, *latch, *cancel, *ids;
    enum dlm_status lease_status, latch_status, id_status;
};

static void *wait_for_lease(void *argument)
{
    struct waiter *waiter = argument;
    struct dlm_lease *lease;
    waiter->lease_status =
        dlm_lock_acquire(waiter->lock, HOW_WITH(DLM_DEFAULT, DLM_FOREVER, 0, waiter->cancel), &lease, NULL);
    dlm_lease_free(lease);
    return NULL;
}

static void *wait_for_latch(void *argument)
{
    struct waiter *waiter = argument;
    bool open;
    waiter->latch_status = dlm_latch_await_open(waiter->latch, DLM_FOREVER, waiter->cancel, &open, NULL);
    return NULL;
}

static void *wait_for_id(void *argument)
{
    struct waiter *waiter = argument;
    waiter->id_status = dlm_id_lock_acquire(waiter->ids, 1, DLM_FOREVER, NULL);
    return NULL;
}

/* Frees all handles while three threads wait with them. */
static void free_under_waiters(void)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_latch *latch;
    struct dlm_watch *watch;
    struct dlm_lease *held;
    struct waiter waiter = {0};
    pthread_t threads[3];
    char uri[4096];
    bool cancelled = below(2);
    int i;

    snprintf(uri, sizeof uri, "%s?client=waiters&farm=f", store);
    CHECK(dlm_manager_open(uri, NULL, &manager, NULL) == DLM_OK);
    CHECK(dlm_manager_lock(manager, "w", DLM_LEVEL_XDC, &lock, NULL) == DLM_OK);
    CHECK(dlm_lock_try_acquire(lock, NULL, &held, NULL) == DLM_OK);
    CHECK(dlm_manager_latch(manager, "w", DLM_LEVEL_DC, DLM_LATCH_COUNT_DOWN, DLM_DEFAULT, &latch, NULL) ==
          DLM_OK);
    CHECK(dlm_latch_get_or_create(latch, 1, NULL, NULL) == DLM_OK);
    CHECK(dlm_latch_watch(latch, &watch, NULL) == DLM_OK);
    waiter.lock = lock;
    waiter.latch = latch;
    waiter.cancel = dlm_cancel_new();
    waiter.ids = dlm_id_lock_new();
    CHECK(dlm_id_lock_acquire(waiter.ids, 1, 0, NULL) == DLM_OK);
    CHECK(pthread_create(&threads[0], NULL, wait_for_lease, &waiter) == 0);
    CHECK(pthread_create(&threads[1], NULL, wait_for_id, &waiter) == 0);
    CHECK(pthread_create(&threads[2], NULL, wait_for_latch, &waiter) == 0);
    sleep_us((long)below(300));
    dlm_lock_free(lock);
    dlm_latch_free(latch);
    if (cancelled)
        CHECK(dlm_cancel_trigger(waiter.cancel, NULL) == DLM_OK);
    else
        CHECK(dlm_manager_close(manager, NULL) == DLM_OK);
    dlm_manager_free(manager);
    dlm_cancel_free(waiter.cancel);
    dlm_id_lock_free(waiter.ids);
    dlm_id_lock_free(waiter.ids);
    dlm_watch_free(watch);
    for (i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    /* Also CLOSED if the thread started its call after the handles were freed. */
    CHECK(waiter.lease_status == DLM_CLOSED || (cancelled && waiter.lease_status == DLM_CANCELLED));
    CHECK(waiter.latch_status == DLM_CLOSED || (cancelled && waiter.latch_status == DLM_CANCELLED));
    CHECK(waiter.id_status == DLM_CLOSED);
    dlm_lease_free(held);
}

/* Creates one valid handle of most types, for the calls that follow. */
static void begin(void)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_latch *latch;
    struct dlm_semaphore *semaphore;
    size_t k;
    for (k = 0; k < KINDS; k++)
        memset(kinds[k].slots, 0, SLOTS * sizeof(struct slot));
    put(options, dlm_options_new());
    CHECK(dlm_options_set(options[0].handle, "client", "random", NULL) == DLM_OK);
    CHECK(dlm_options_set(options[0].handle, "farm", "f", NULL) == DLM_OK);
    CHECK(dlm_manager_open(store, options[0].handle, &manager, NULL) == DLM_OK);
    put(managers, manager);
    CHECK(dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, &lock, NULL) == DLM_OK);
    put(locks, lock);
    CHECK(dlm_manager_latch(manager, "a", DLM_LEVEL_DC, DLM_LATCH_COUNT_UP_DOWN, DLM_DEFAULT, &latch, NULL) ==
          DLM_OK);
    put(latches, latch);
    CHECK(dlm_manager_semaphore(manager, "s", DLM_LEVEL_XDC, 3, &semaphore, NULL) == DLM_OK);
    put(semaphores, semaphore);
    put(cancels, dlm_cancel_new());
    put(ids, dlm_id_lock_new());
    put(keys, dlm_key_lock_new());
}

int main(int argc, char **argv)
{
    unsigned long sequences, sequence, call, i, k;

    CHECK(argc == 4);
    store = argv[1];
    sequences = strtoul(argv[2], NULL, 10);
    state = strtoull(argv[3], NULL, 10) | 1;
    for (sequence = 0; sequence < sequences; sequence++) {
        begin();
        for (call = 0; call < CALLS; call++) {
            uint64_t what = below(10);
            if (what < 4)
                make();
            else if (what < 6)
                use_latch();
            else if (what < 8)
                use();
            else if (what < 9)
                switch (below(5)) {
                case 0:
                    use_pending();
                    break;
                case 3:
                    use_mode();
                    break;
                case 4:
                    use_semaphore();
                    break;
                case 1:
                    use_set();
                    break;
                default:
                    describe();
                }
            else
                drop_one();
        }
        if (sequence % WAIT_EVERY == 0)
            free_under_waiters();
        for (k = 0; k < KINDS; k++)
            for (i = 0; i < SLOTS; i++)
                let_go(kinds[k].slots, i, kinds[k].free_it);
        CHECK(dlm_handles_open() == 0);
    }
    /* Enough calls must have succeeded, and enough must have been refused because of a freed handle. */
    CHECK(worked > sequences && told_stale > sequences / 10);
    printf("%lu sequences, %llu calls succeeded, %llu had a freed handle\n", sequences,
           (unsigned long long)worked, (unsigned long long)told_stale);
    return 0;
}

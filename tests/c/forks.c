/* A forked child cannot use its parent's handles, also if another thread was inside the library during the fork. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 100 };

static struct dlm_error *error;
static struct dlm_manager *manager;
static struct dlm_lock *lock;
static struct dlm_lease *lease;
static struct dlm_id_lock *ids;
static struct dlm_key_lock *keys;
static struct dlm_options *options;
static struct dlm_cancel *cancel;
static struct dlm_pending *pending;
static struct dlm_completions *completions;
static volatile int busy = 1;

/* Uses the library's internal locks all the time. Some forks then happen while one of them is held. */
static void *be_busy(void *unused)
{
    (void)unused;
    while (busy) {
        struct dlm_lock *other;
        struct dlm_lease *held;
        CHECK(dlm_manager_lock(manager, "busy", DLM_LEVEL_DC, &other, NULL) == DLM_OK);
        CHECK(dlm_lock_acquire(other, NULL, &held, NULL) == DLM_OK);
        dlm_lease_free(held);
        dlm_lock_free(other);
        CHECK(dlm_id_lock_acquire(ids, 5, DLM_FOREVER, NULL) == DLM_OK);
        CHECK(dlm_id_lock_release(ids, 5, NULL) == DLM_OK);
    }
    return NULL;
}

static void child(const char *uri)
{
    struct dlm_manager *own;
    struct dlm_lock *own_lock, *none;
    struct dlm_lease *own_lease;
    struct dlm_pending *none_pending, *own_pending;
    struct pollfd polled = {0};
    struct dlm_error *inherited;
    struct dlm_stats stats;
    struct dlm_completion completion;
    uint64_t id = 1;
    bool found;
    int fd;

    alarm(300);
    CHECK(dlm_lease_check(lease, &inherited) == DLM_FORKED);
    CHECK(dlm_error_status(inherited) == DLM_FORKED && !dlm_error_is_retryable(inherited));
    dlm_error_free(inherited);
    EXPECT(DLM_FORKED, dlm_lease_renew(lease, DLM_DEFAULT, &error));
    EXPECT(DLM_FORKED, dlm_lease_release(lease, NULL, &error));
    EXPECT(DLM_FORKED, dlm_lease_lost_fd(lease, &fd, &error));
    CHECK(fd == -1 && dlm_lease_fence(lease) == 0 && dlm_lease_remaining_ms(lease) == 0);
    EXPECT(DLM_FORKED, dlm_lock_try_acquire(lock, NULL, &own_lease, &error));
    EXPECT(DLM_FORKED, dlm_lock_acquire(lock, NULL, &own_lease, &error));
    EXPECT(DLM_FORKED, dlm_manager_reach(manager, DLM_FOREVER, &error));
    EXPECT(DLM_FORKED, dlm_manager_initialize(manager, &error));
    EXPECT(DLM_FORKED, dlm_manager_lock(manager, "a", DLM_LEVEL_DC, &none, &error));
    EXPECT(DLM_FORKED, dlm_manager_stats(manager, &stats, sizeof stats, &error));
    EXPECT(DLM_FORKED, dlm_manager_close(manager, &error));
    EXPECT(DLM_FORKED, dlm_options_set(options, "client", "c", &error));
    EXPECT(DLM_FORKED, dlm_manager_open("memory:", options, &own, &error));
    EXPECT(DLM_FORKED, dlm_cancel_trigger(cancel, &error));
    EXPECT(DLM_FORKED, dlm_cancel_signal_fd(cancel, &fd, &error));
    EXPECT(DLM_FORKED, dlm_lock_acquire_start(lock, HOW(DLM_DEFAULT, 0), &none_pending, &error));
    EXPECT(DLM_FORKED, dlm_pending_take(pending, &own_lease, &error));
    EXPECT(DLM_FORKED, dlm_pending_fd(pending, &fd, &error));
    EXPECT(DLM_FORKED, dlm_pending_cancel(pending, &error));
    EXPECT(DLM_FORKED, dlm_pending_notify(pending, completions, 1, &error));
    EXPECT(DLM_FORKED, dlm_completions_fd(completions, &fd, &error));
    CHECK(!dlm_completions_next(completions, &completion, sizeof completion) && completion.kind == 0);
    EXPECT(DLM_FORKED, dlm_completions_wait(completions, 0, &completion, sizeof completion, &found, &error));
    EXPECT(DLM_FORKED, dlm_lease_notify(lease, completions, 1, &error));
    id = 1;
    EXPECT(DLM_FORKED, dlm_id_lock_acquire(ids, 1, DLM_FOREVER, &error));
    EXPECT(DLM_FORKED, dlm_id_lock_release(ids, 1, &error));
    EXPECT(DLM_FORKED, dlm_id_lock_acquire_many(ids, &id, 1, DLM_FOREVER, &error));
    EXPECT(DLM_FORKED, dlm_id_lock_release_many(ids, &id, 1, &error));
    EXPECT(DLM_FORKED, dlm_key_lock_acquire(keys, "a", 1, DLM_FOREVER, &error));
    EXPECT(DLM_FORKED, dlm_key_lock_release(keys, "a", 1, &error));
    CHECK(dlm_id_lock_count(ids) == 0 && dlm_key_lock_count(keys) == 0);
    CHECK(dlm_handles_open() == 0);
    dlm_lease_free(lease);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    dlm_options_free(options);
    dlm_cancel_free(cancel);
    dlm_pending_free(pending);
    dlm_completions_free(completions);
    dlm_id_lock_free(ids);
    dlm_key_lock_free(keys);

    /* The child's own handles are new. The parent still holds its lock. */
    OK(dlm_manager_open(uri, NULL, &own, &error));
    OK(dlm_manager_lock(own, "a", DLM_LEVEL_DC, &own_lock, &error));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_try_acquire(own_lock, NULL, &own_lease, &error));
    dlm_lock_free(own_lock);
    OK(dlm_manager_lock(own, "b", DLM_LEVEL_DC, &own_lock, &error));
    OK(dlm_lock_try_acquire(own_lock, NULL, &own_lease, &error));
    OK(dlm_lock_acquire_start(own_lock, HOW(DLM_DEFAULT, DLM_FOREVER), &own_pending, &error));
    dlm_lease_free(own_lease);
    OK(dlm_pending_fd(own_pending, &polled.fd, &error));
    polled.events = POLLIN;
    CHECK(poll(&polled, 1, 60000) == 1);
    OK(dlm_pending_take(own_pending, &own_lease, &error));
    dlm_pending_free(own_pending);
    dlm_lease_free(own_lease);
    dlm_lock_free(own_lock);
    OK(dlm_manager_close(own, &error));
    dlm_manager_free(own);
    CHECK(dlm_handles_open() == 0);
    _exit(0);
}

int main(int argc, char **argv)
{
    char uri[4096];
    pthread_t thread;
    int round, status, fd;

    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "%s?client=forks&farm=dc1&retry=10ms&ttl=10m&wait=10m&timeout=60s", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_initialize(manager, &error));
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_DC, &lock, &error));
    OK(dlm_lock_try_acquire(lock, HOW(600000, 0), &lease, &error));
    ids = dlm_id_lock_new();
    keys = dlm_key_lock_new();
    options = dlm_options_new();
    cancel = dlm_cancel_new();
    OK(dlm_cancel_signal_fd(cancel, &fd, &error));
    completions = dlm_completions_new();
    OK(dlm_completions_fd(completions, &fd, &error));
    OK(dlm_lock_acquire_start(lock, HOW(DLM_DEFAULT, DLM_FOREVER), &pending, &error));
    OK(dlm_id_lock_acquire(ids, 1, 0, &error));
    CHECK(pthread_create(&thread, NULL, be_busy, NULL) == 0);
    for (round = 0; round < ROUNDS; round++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            child(uri);
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        OK(dlm_lease_check(lease, &error));
    }
    busy = 0;
    CHECK(pthread_join(thread, NULL) == 0);
    OK(dlm_lease_renew(lease, DLM_DEFAULT, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    dlm_id_lock_free(ids);
    dlm_key_lock_free(keys);
    dlm_options_free(options);
    dlm_pending_free(pending);
    dlm_completions_free(completions);
    dlm_cancel_free(cancel);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

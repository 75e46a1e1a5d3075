/* Children forked without exec, as a prefork server makes them, while the parent's threads wait for each other in the
 * library. Each child has handles and threads of its own. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONTENDERS = 8, CHILD_THREADS = 3 };

static char uri[4096];
static struct dlm_manager *manager;
static struct dlm_id_lock *ids;
static volatile int busy = 1;

/* Two ids and two locks for eight threads: most of them wait for another one. */
static void *contend(void *argument)
{
    int number = *(int *)argument;
    struct dlm_error *error;
    struct dlm_lock *lock;
    struct dlm_lease *lease;

    OK(dlm_manager_lock(manager, number % 2 ? "odd" : "even", DLM_LEVEL_DC, &lock, &error));
    while (busy) {
        int round;
        for (round = 0; round < 100 && busy; round++) {
            OK(dlm_id_lock_acquire(ids, (uint64_t)(number % 2), DLM_FOREVER, &error));
            OK(dlm_id_lock_release(ids, (uint64_t)(number % 2), &error));
        }
        OK(dlm_lock_acquire(lock, NULL, &lease, &error));
        dlm_lease_free(lease);
    }
    dlm_lock_free(lock);
    return NULL;
}

/* Opens and closes stores, and starts and ends the library's threads. */
static void *open_and_close(void *unused)
{
    struct dlm_error *error;
    struct dlm_manager *own;
    struct dlm_lock *lock;
    struct dlm_lease *lease;

    (void)unused;
    while (busy) {
        OK(dlm_manager_open(uri, NULL, &own, &error));
        OK(dlm_manager_lock(own, "opened", DLM_LEVEL_DC, &lock, &error));
        OK(dlm_lock_acquire(lock, NULL, &lease, &error));
        dlm_lease_free(lease);
        dlm_lock_free(lock);
        OK(dlm_manager_close(own, &error));
        dlm_manager_free(own);
    }
    return NULL;
}

static struct dlm_manager *childs_manager;
static struct dlm_id_lock *childs_ids;

static void *work(void *unused)
{
    struct dlm_error *error;
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    int round;

    (void)unused;
    OK(dlm_manager_lock(childs_manager, "child", DLM_LEVEL_DC, &lock, &error));
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    OK(dlm_lease_check(lease, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    dlm_lock_free(lock);
    for (round = 0; round < 200; round++) {
        OK(dlm_id_lock_acquire(childs_ids, 1, DLM_FOREVER, &error));
        OK(dlm_id_lock_release(childs_ids, 1, &error));
    }
    return NULL;
}

static void child(void)
{
    struct dlm_error *error;
    pthread_t threads[CHILD_THREADS];
    int i;

    /* A child that hangs is killed. */
    alarm(300);
    EXPECT(DLM_FORKED, dlm_id_lock_acquire(ids, 1, DLM_FOREVER, &error));
    EXPECT(DLM_FORKED, dlm_manager_initialize(manager, &error));
    childs_ids = dlm_id_lock_new();
    OK(dlm_manager_open(uri, NULL, &childs_manager, &error));
    for (i = 0; i < CHILD_THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    for (i = 0; i < CHILD_THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    OK(dlm_manager_close(childs_manager, &error));
    dlm_manager_free(childs_manager);
    dlm_id_lock_free(childs_ids);
    CHECK(dlm_handles_open() == 0);
    _exit(0);
}

/* Arguments: the URI of a store without options, and the number of forks. */
int main(int argc, char **argv)
{
    pthread_t threads[CONTENDERS + 1];
    int numbers[CONTENDERS], i, round, status;
    struct dlm_error *error;

    CHECK(argc == 3);
    snprintf(uri, sizeof uri, "%s?client=prefork&farm=dc1&retry=10ms&wait=10m&timeout=60s", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_initialize(manager, &error));
    ids = dlm_id_lock_new();
    for (i = 0; i < CONTENDERS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, contend, &numbers[i]) == 0);
    }
    CHECK(pthread_create(&threads[CONTENDERS], NULL, open_and_close, NULL) == 0);
    for (round = 0; round < atoi(argv[2]); round++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            child();
        CHECK(waitpid(pid, &status, 0) == pid);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "child %d ended with %s %d\n", round, WIFSIGNALED(status) ? "signal" : "status",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            return 1;
        }
    }
    busy = 0;
    for (i = 0; i <= CONTENDERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    dlm_id_lock_free(ids);
    OK(dlm_manager_close(manager, &error));
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

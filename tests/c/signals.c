/* A thousand signals a second neither end a wait early nor make it long, and no call fails over them. */
#define _XOPEN_SOURCE 700
#include "check.h"

#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t signals;

static void count(int number)
{
    (void)number;
    signals++;
}

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    struct dlm_error *error;
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *lease, *none;
    struct dlm_id_lock *ids = dlm_id_lock_new();
    struct itimerval every_ms = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    struct sigaction action;
    char uri[4096];
    double began;
    int rounds = 0;

    CHECK(argc == 2);
    memset(&action, 0, sizeof action);
    action.sa_handler = count; /* without SA_RESTART */
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &every_ms, NULL) == 0);

    snprintf(uri, sizeof uri, "%s?client=signals&retry=20ms&ttl=10m&timeout=60s", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, &lock, &error));
    OK(dlm_lock_try_acquire(lock, NULL, &lease, &error));
    OK(dlm_id_lock_acquire(ids, 1, 0, &error));
    /* On a busy machine fewer signals arrive in a second. */
    do {
        CHECK(rounds++ < 60);
        began = seconds();
        EXPECT(DLM_LOCK_UNAVAILABLE, dlm_lock_acquire(lock, HOW(DLM_DEFAULT, 500), &none, &error));
        CHECK(seconds() - began >= 0.5 && seconds() - began < 30);
        began = seconds();
        EXPECT(DLM_LOCK_UNAVAILABLE, dlm_id_lock_acquire(ids, 1, 500, &error));
        CHECK(seconds() - began >= 0.5 && seconds() - began < 30);
    } while (signals <= 100);
    OK(dlm_lease_release(lease, NULL, &error));

    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    dlm_lease_free(lease);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    dlm_id_lock_free(ids);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

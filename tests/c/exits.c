/* Programs that exit: one whose exit handler releases its lease, and one that leaves everything open. In both,
 * threads of the library are running. This program starts itself again as these programs. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static struct dlm_error *error;
static struct dlm_manager *manager;
static struct dlm_lock *lock;
static struct dlm_lease *lease;
static struct dlm_latch *latch;
static struct dlm_pending *pending;

static void open_all(const char *store)
{
    struct dlm_options *options = dlm_options_new();
    OK(dlm_options_set(options, "client", "exits", &error));
    OK(dlm_options_set(options, "farm", "dc1", &error));
    OK(dlm_options_set(options, "poll", "10ms", &error));
    OK(dlm_options_set(options, "timeout", "60s", &error));
    OK(dlm_manager_open(store, options, &manager, &error));
    dlm_options_free(options);
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, &lock, &error));
    OK(dlm_manager_latch(manager, "a", DLM_LEVEL_XDC, DLM_LATCH_COUNT_DOWN, DLM_DEFAULT, &latch, &error));
}

/* Body of a thread that waits for the latch. It keeps a thread of the library busy until the program ends. */
static void *await_open(void *unused)
{
    bool open = false;
    (void)unused;
    (void)!dlm_latch_await_open(latch, DLM_FOREVER, NULL, &open, NULL);
    return NULL;
}

static void start_waiting(void)
{
    pthread_t thread;
    CHECK(dlm_latch_create(latch, 1, NULL) != DLM_PANIC);
    CHECK(pthread_create(&thread, NULL, await_open, NULL) == 0);
    sleep_us(50000);
}

static void give_back(void)
{
    bool ours = false;
    OK(dlm_lease_release(lease, &ours, &error));
    CHECK(ours);
    OK(dlm_manager_close(manager, &error));
    dlm_pending_free(pending);
    dlm_lease_free(lease);
    dlm_latch_free(latch);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
}

/* Runs this program with the argument `how`, and expects that it exits with status 0. */
static void ends(const char *self, const char *store, const char *how)
{
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl(self, self, store, how, (char *)NULL);
        abort();
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    if (argc > 2) {
        /* Registered before the first call of the library. Exit handlers run in reverse order, so it runs after any
         * handler of the library. */
        if (strcmp(argv[2], "handler") == 0)
            CHECK(atexit(give_back) == 0);
        open_all(argv[1]);
        if (strcmp(argv[2], "handler") != 0) {
            OK(dlm_lock_acquire(lock, HOW(60000, 60000), &lease, &error));
            OK(dlm_lease_keep(lease, DLM_FOREVER, &error));
            start_waiting();
            return 0;
        }
        OK(dlm_lock_acquire(lock, HOW(60000, 0), &lease, &error));
        OK(dlm_lease_keep(lease, DLM_FOREVER, &error));
        /* An acquisition that waits when the program ends. */
        OK(dlm_lock_acquire_start(lock, HOW(DLM_DEFAULT, DLM_FOREVER), &pending, &error));
        start_waiting();
        exit(0);
    }
    ends(argv[0], argv[1], "handler");
    /* The handler has released the lock. */
    open_all(argv[1]);
    OK(dlm_lock_try_acquire(lock, HOW(600000, 0), &lease, &error));
    give_back();
    ends(argv[0], argv[1], "open");
    return 0;
}

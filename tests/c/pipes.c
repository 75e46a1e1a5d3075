/* A store whose peer closes its connections. The program leaves SIGPIPE at its default, receives errors and is not
 * killed. A SIGPIPE that was pending before stays pending, and the library adds none. */
#define _XOPEN_SOURCE 700
#include "check.h"

#include <signal.h>
#include <unistd.h>

#define CALLS 3

static struct dlm_error *error;

static bool pending(void)
{
    sigset_t set;
    CHECK(sigpending(&set) == 0);
    return sigismember(&set, SIGPIPE);
}

static sigset_t mask(void)
{
    sigset_t set;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &set) == 0);
    return set;
}

static void same_mask(const sigset_t *before)
{
    sigset_t now = mask();
    int number;
    for (number = 1; number <= SIGRTMAX; number++)
        CHECK(sigismember(before, number) == sigismember(&now, number));
}

/* Opens a manager, makes calls that fail, and frees it. The signal mask must not change. */
static void calls(const char *uri)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    sigset_t before = mask();
    int call;

    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, &lock, &error));
    for (call = 0; call < CALLS; call++) {
        CHECK(dlm_lock_try_acquire(lock, NULL, &lease, &error) != DLM_OK);
        CHECK(lease == NULL && error != NULL);
        printf("%s\n", dlm_error_message(error));
        dlm_error_free(error);
        error = NULL;
        same_mask(&before);
    }
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    same_mask(&before);
}

static void take(void)
{
    struct timespec now = {0, 0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    CHECK(sigtimedwait(&set, NULL, &now) == SIGPIPE);
}

int main(int argc, char **argv)
{
    struct sigaction action;
    sigset_t set;

    CHECK(argc == 2);
    /* The parent process may ignore the signal, and this program would inherit that. */
    CHECK(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
    calls(argv[1]);

    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    calls(argv[1]);
    CHECK(!pending());

    CHECK(raise(SIGPIPE) == 0);
    calls(argv[1]);
    CHECK(pending());
    take();
    CHECK(!pending());

    /* Pending for the process, not for this thread. */
    CHECK(kill(getpid(), SIGPIPE) == 0);
    calls(argv[1]);
    CHECK(pending());
    take();

    CHECK(sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

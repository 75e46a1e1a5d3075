/* A poll() loop that waits for a lock beside its other work, and holds the lock for a while. No call blocks, except the
 * release. SIGINT and SIGTERM end the wait: their handler makes the one call that a signal handler may make.
 *
 *   ./poll_loop [STORE] */
#define _POSIX_C_SOURCE 200809L
#include <dlm.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TTL_MS = 30000, WAIT_MS = 60000, WORK_MS = 200 };

static int32_t cancel_fd = -1;

static void stop(int number)
{
    (void)number;
    dlm_cancel_trigger_fd(cancel_fd);
}

/* Takes the error by pointer: C may evaluate the arguments of a call in any order. */
static void check(enum dlm_status status, struct dlm_error **error)
{
    if (status == DLM_OK)
        return;
    fprintf(stderr, "%s: %s\n", dlm_status_name(status), dlm_error_message(*error));
    dlm_error_free(*error);
    exit(EXIT_FAILURE);
}

int main(int argc, char **argv)
{
    char uri[4096];
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_cancel *cancel = dlm_cancel_new();
    struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
    struct dlm_pending *pending;
    struct dlm_lease *lease = NULL;
    struct dlm_error *error;
    struct sigaction action;
    struct pollfd fds[1]; /* a program adds its own descriptors */

    snprintf(uri, sizeof uri, "%s?client=poll-loop&farm=dc1", argc > 1 ? argv[1] : "embedded:");
    check(dlm_manager_open(uri, NULL, &manager, &error), &error);
    check(dlm_manager_initialize(manager, &error), &error);
    check(dlm_manager_lock(manager, "report", DLM_LEVEL_DC, &lock, &error), &error);

    check(dlm_cancel_signal_fd(cancel, &cancel_fd, &error), &error);
    memset(&action, 0, sizeof action);
    action.sa_handler = stop;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    /* The library keeps the lease alive for as long as the program holds it. */
    how.ttl_ms = TTL_MS;
    how.wait_ms = WAIT_MS;
    how.max_hold_ms = DLM_FOREVER;
    how.cancel = cancel;
    check(dlm_lock_acquire_start(lock, &how, &pending, &error), &error);
    check(dlm_pending_fd(pending, &fds[0].fd, &error), &error);
    fds[0].events = POLLIN;
    while (lease == NULL) {
        if (poll(fds, 1, -1) > 0) /* do not read the descriptor */
            check(dlm_pending_take(pending, &lease, &error), &error);
    }
    dlm_pending_free(pending); /* closes the descriptor */
    printf("acquired\n");

    /* The loop goes on with its work, and watches the lease. */
    check(dlm_lease_lost_fd(lease, &fds[0].fd, &error), &error);
    if (poll(fds, 1, WORK_MS) == 0)
        printf("worked with fence %s0\n", dlm_lease_fence(lease) > 0 ? "above " : "");
    check(dlm_lease_release(lease, NULL, &error), &error);
    printf("released\n");

    dlm_lease_free(lease);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    dlm_cancel_free(cancel);
    dlm_lock_free(lock);
    check(dlm_manager_close(manager, &error), &error);
    dlm_manager_free(manager);
    return EXIT_SUCCESS;
}

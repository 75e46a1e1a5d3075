/* An event loop that holds a lock. It renews the lease in time, and polls a file descriptor that reports the loss of
 * the lease. This example stops renewing after a few rounds and lets the lease expire.
 *
 *   ./event_loop [STORE] */
#include <dlm.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { TTL_MS = 12000, RENEW_MS = 1000, ROUNDS = 3 };

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
    struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
    struct dlm_lease *lease;
    struct dlm_error *error;
    struct pollfd fds[1]; /* a program adds its own descriptors */
    int round = 0;

    snprintf(uri, sizeof uri, "%s?client=scheduler&farm=dc1", argc > 1 ? argv[1] : "embedded:");
    check(dlm_manager_open(uri, NULL, &manager, &error), &error);
    check(dlm_manager_initialize(manager, &error), &error);
    check(dlm_manager_lock(manager, "leader", DLM_LEVEL_DC, &lock, &error), &error);
    how.ttl_ms = TTL_MS;
    how.wait_ms = 30000;
    check(dlm_lock_acquire(lock, &how, &lease, &error), &error);
    check(dlm_lease_lost_fd(lease, &fds[0].fd, &error), &error);
    fds[0].events = POLLIN;

    for (;;) {
        int ready = poll(fds, 1, round < ROUNDS ? RENEW_MS : -1);
        if (ready > 0) {
            /* Do not read the descriptor. Check the lease. */
            enum dlm_status status = dlm_lease_check(lease, &error);
            printf("%s\n", dlm_status_name(status));
            dlm_error_free(error);
            if (status != DLM_OK)
                break;
        } else if (ready == 0) {
            /* Blocks for one call to the store, at most for the remaining time of the lease. */
            check(dlm_lease_renew(lease, DLM_DEFAULT, &error), &error);
            printf("renewed\n");
            round++;
        }
    }

    dlm_lease_free(lease); /* closes the descriptor */
    dlm_lock_free(lock);
    check(dlm_manager_close(manager, &error), &error);
    dlm_manager_free(manager);
    return EXIT_SUCCESS;
}

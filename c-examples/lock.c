/* Acquires a lock, does its work, and releases the lock.
 *
 *   ./lock [STORE]     STORE: embedded: (default), hbase://master:16000/table, ... */
#include <dlm.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Prints the error of a failed call and ends the program. Takes the error by pointer: C may evaluate the arguments of a
 * call in any order. */
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
    const char *store = argc > 1 ? argv[1] : "embedded:";
    struct dlm_options *options = dlm_options_new();
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
    struct dlm_lease *lease;
    struct dlm_error *error;
    enum dlm_status status;
    uint64_t fence;

    check(dlm_abi_check(DLM_ABI, &error), &error);
    check(dlm_options_set(options, "client", "order-service", &error), &error);
    check(dlm_options_set(options, "farm", "dc1", &error), &error);
    check(dlm_manager_open(store, options, &manager, &error), &error);
    dlm_options_free(options);
    check(dlm_manager_initialize(manager, &error), &error);
    check(dlm_manager_lock(manager, "order-42", DLM_LEVEL_DC, &lock, &error), &error);

    how.ttl_ms = 30000; /* how long the lease lasts unless it is renewed */
    how.wait_ms = 5000; /* how long to wait for the lock */
    status = dlm_lock_acquire(lock, &how, &lease, &error);
    if (status == DLM_LOCK_UNAVAILABLE) {
        printf("%s\n", dlm_error_message(error)); /* names the holder */
        dlm_error_free(error);
    } else {
        check(status, &error);
        /* Call this before each step that needs the lock. It takes nanoseconds and does no I/O. */
        check(dlm_lease_guard(lease, &fence, &error), &error);
        printf("writing with fence %" PRIu64 "\n", fence);
        check(dlm_lease_renew(lease, DLM_DEFAULT, &error), &error);
        check(dlm_lease_release(lease, NULL, &error), &error);
        dlm_lease_free(lease);
    }

    dlm_lock_free(lock);
    check(dlm_manager_close(manager, &error), &error);
    dlm_manager_free(manager);
    return EXIT_SUCCESS;
}

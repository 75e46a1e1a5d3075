/* A pool of five licences: at most five programs work at one time, on all machines that share the store. Each has a number, which
 * says which licence it is.
 *
 *   ./licences [STORE]     STORE: embedded: (default), hbase://master:16000/table?layout=own, ... */
#include <dlm.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { LICENCES = 5 };

/* Prints the error of a failed call and ends the program. */
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
    struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
    struct dlm_manager *manager;
    struct dlm_semaphore *licences;
    struct dlm_lease *licence;
    struct dlm_error *error;
    enum dlm_status status;
    uint64_t fence;
    int32_t left;

    check(dlm_options_set(options, "client", "compiler", &error), &error);
    check(dlm_manager_open(store, options, &manager, &error), &error);
    dlm_options_free(options);
    check(dlm_manager_initialize(manager, &error), &error);
    check(dlm_manager_semaphore(manager, "licences", DLM_LEVEL_XDC, LICENCES, &licences, &error), &error);

    how.wait_ms = 60000;
    how.max_hold_ms = DLM_FOREVER; /* kept alive until it is released, or until this program dies */
    status = dlm_semaphore_acquire(licences, 1, &how, &licence, &error);
    if (status == DLM_LOCK_UNAVAILABLE) {
        printf("all licences are in use: %s\n", dlm_error_message(error));
        dlm_error_free(error);
    } else {
        check(status, &error);
        check(dlm_lease_guard(licence, &fence, &error), &error);
        check(dlm_semaphore_available(licences, &left, &error), &error);
        printf("licence %" PRId32 " with fence %" PRIu64 ", %" PRId32 " are left\n", dlm_lease_permit(licence), fence, left);
        check(dlm_lease_release(licence, NULL, &error), &error);
        dlm_lease_free(licence);
    }

    dlm_semaphore_free(licences);
    check(dlm_manager_close(manager, &error), &error);
    dlm_manager_free(manager);
    return EXIT_SUCCESS;
}

/* Reads lines of a verb, the id of a lock or latch if it needs one, and the URI of a store, with tabs between. Prints what
 * the call says: the name of its status, and the message. */
#include "check.h"

static struct dlm_error *error;

static enum dlm_status acquire(struct dlm_manager *manager, const char *id)
{
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    enum dlm_status status = dlm_manager_lock(manager, id, DLM_LEVEL_XDC, &lock, &error);
    if (status != DLM_OK)
        return status;
    status = dlm_lock_acquire(lock, NULL, &lease, &error);
    if (status == DLM_OK)
        dlm_lease_free(lease);
    dlm_lock_free(lock);
    return status;
}

static enum dlm_status count_down(struct dlm_manager *manager, const char *id)
{
    struct dlm_latch *latch;
    enum dlm_status status =
        dlm_manager_latch(manager, id, DLM_LEVEL_XDC, DLM_LATCH_COUNT_DOWN, DLM_DEFAULT, &latch, &error);
    if (status != DLM_OK)
        return status;
    status = dlm_latch_count_down(latch, &error);
    dlm_latch_free(latch);
    return status;
}

int main(void)
{
    char line[4096];
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *id = strchr(line, '\t'), *uri;
        struct dlm_manager *manager;
        enum dlm_status status;
        CHECK(id != NULL);
        *id++ = '\0';
        uri = strchr(id, '\t');
        CHECK(uri != NULL);
        *uri++ = '\0';
        uri[strcspn(uri, "\n")] = '\0';
        status = dlm_manager_open(uri, NULL, &manager, &error);
        if (status == DLM_OK) {
            if (strcmp(line, "reach") == 0)
                status = dlm_manager_reach(manager, DLM_FOREVER, &error);
            else
                status = strcmp(line, "acquire") == 0 ? acquire(manager, id) : count_down(manager, id);
            dlm_manager_free(manager);
        }
        printf("%s: %s\n", dlm_status_name((int32_t)status), error != NULL ? dlm_error_message(error) : "");
        dlm_error_free(error);
        error = NULL;
    }
    return 0;
}

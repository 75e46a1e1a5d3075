/* Waits until three workers have counted down. Here they are threads. They could be processes on other machines.
 *
 *   ./latch [STORE] */
#include <dlm.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const workers[] = {"worker-1", "worker-2", "worker-3"};

static struct dlm_latch *latch;

/* Takes the error by pointer: C may evaluate the arguments of a call in any order. */
static void check(enum dlm_status status, struct dlm_error **error)
{
    if (status == DLM_OK)
        return;
    fprintf(stderr, "%s: %s\n", dlm_status_name(status), dlm_error_message(*error));
    dlm_error_free(*error);
    exit(EXIT_FAILURE);
}

static void *work(void *name)
{
    struct dlm_error *error;
    /* Counts at most once per name. */
    check(dlm_latch_count_down_as(latch, name, NULL, &error), &error);
    return NULL;
}

int main(int argc, char **argv)
{
    char uri[4096];
    struct dlm_manager *manager;
    struct dlm_texts *missing;
    struct dlm_error *error;
    pthread_t threads[3];
    bool open;
    size_t i;

    snprintf(uri, sizeof uri, "%s?client=loader&farm=dc1", argc > 1 ? argv[1] : "embedded:");
    check(dlm_manager_open(uri, NULL, &manager, &error), &error);
    check(dlm_manager_initialize_latches(manager, &error), &error);
    /* The latch expires one minute after its last change. */
    check(dlm_manager_latch(manager, "loaded", DLM_LEVEL_DC, DLM_LATCH_COUNT_DOWN, 60000, &latch, &error), &error);
    if (dlm_latch_create_for(latch, workers, 3, &error) == DLM_ALREADY_EXISTS) {
        printf("%s\n", dlm_error_message(error)); /* another loader has created it */
        dlm_error_free(error);
        return EXIT_FAILURE;
    }

    for (i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, (void *)workers[i]);
    check(dlm_latch_await_open(latch, 30000, NULL, &open, &error), &error);
    if (open) {
        printf("all have arrived\n");
    } else {
        check(dlm_latch_pending(latch, &missing, &error), &error);
        for (i = 0; i < dlm_texts_count(missing); i++)
            printf("%s has not arrived\n", dlm_texts_at(missing, i));
        dlm_texts_free(missing);
    }
    for (i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);

    dlm_latch_free(latch);
    check(dlm_manager_close(manager, &error), &error);
    dlm_manager_free(manager);
    return EXIT_SUCCESS;
}

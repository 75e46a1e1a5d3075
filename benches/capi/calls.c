/* Measures a call through C for benches/capi.rs: `calls ids|check|lease URI CALLS` prints ns per call. */
#define _POSIX_C_SOURCE 200809L
#include <dlm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void must(enum dlm_status status)
{
    if (status != DLM_OK) {
        fprintf(stderr, "%s\n", dlm_status_name((int32_t)status));
        exit(EXIT_FAILURE);
    }
}

int main(int argc, char **argv)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    struct dlm_id_lock *ids = dlm_id_lock_new();
    long calls, i;
    double began;

    if (argc != 4)
        return EXIT_FAILURE;
    calls = atol(argv[3]);
    must(dlm_manager_open(argv[2], NULL, &manager, NULL));
    must(dlm_manager_lock(manager, "c", DLM_LEVEL_XDC, &lock, NULL));
    must(dlm_lock_try_acquire(lock, NULL, &lease, NULL));
    began = now_ns();
    if (strcmp(argv[1], "ids") == 0) {
        for (i = 0; i < calls; i++) {
            must(dlm_id_lock_acquire(ids, (uint64_t)i % 1024, DLM_FOREVER, NULL));
            must(dlm_id_lock_release(ids, (uint64_t)i % 1024, NULL));
        }
    } else if (strcmp(argv[1], "check") == 0) {
        for (i = 0; i < calls; i++)
            must(dlm_lease_check(lease, NULL));
    } else {
        for (i = 0; i < calls; i++) {
            must(dlm_lease_release(lease, NULL, NULL));
            dlm_lease_free(lease);
            must(dlm_lock_try_acquire(lock, NULL, &lease, NULL));
        }
    }
    printf("%.1f\n", (now_ns() - began) / (double)calls);
    dlm_lease_free(lease);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    dlm_id_lock_free(ids);
    return EXIT_SUCCESS;
}

/* pthread_cancel() does not end a thread inside a call. It ends the thread after the call. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>

enum { WAITS = 3 };

static struct dlm_manager *manager;
static struct dlm_lock *lock;
static struct dlm_id_lock *ids;
static struct dlm_latch *latch;
static int begun, ended;

/* Gives back what a call of a cancelled thread has returned. */
static void free_lease(void *lease)
{
    dlm_lease_free(*(struct dlm_lease **)lease);
}

static void *wait_for(void *argument)
{
    struct dlm_error *error;
    struct dlm_lease *lease = NULL;
    bool is_open = false;
    int state;

    pthread_cleanup_push(free_lease, &lease);
    __atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
    switch (*(int *)argument) {
    case 0:
        OK(dlm_lock_acquire(lock, NULL, &lease, &error));
        break;
    case 1:
        OK(dlm_id_lock_acquire(ids, 1, DLM_FOREVER, &error));
        OK(dlm_id_lock_release(ids, 1, &error));
        break;
    default:
        OK(dlm_latch_await_open(latch, DLM_FOREVER, NULL, &is_open, &error));
        CHECK(is_open);
    }
    __atomic_fetch_add(&ended, 1, __ATOMIC_SEQ_CST);
    /* The calls have left the thread as it was. */
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0 && state == PTHREAD_CANCEL_ENABLE);
    pthread_testcancel();
    pthread_cleanup_pop(1);
    return NULL;
}

static void *cancelled_before(void *unused)
{
    struct dlm_error *error;
    struct dlm_lock *other;
    struct dlm_lease *lease;

    (void)unused;
    CHECK(pthread_cancel(pthread_self()) == 0);
    OK(dlm_manager_lock(manager, "b", DLM_LEVEL_DC, &other, &error));
    OK(dlm_lock_acquire(other, NULL, &lease, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    dlm_lock_free(other);
    __atomic_fetch_add(&ended, 1, __ATOMIC_SEQ_CST);
    pthread_testcancel();
    return NULL;
}

int main(int argc, char **argv)
{
    char uri[4096];
    pthread_t threads[WAITS], before;
    int numbers[WAITS], i;
    struct dlm_error *error;
    struct dlm_lease *lease;
    void *result;

    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "%s?client=cancelled&farm=dc1&retry=10ms&poll=10ms&wait=10m&timeout=60s", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_initialize(manager, &error));
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_DC, &lock, &error));
    OK(dlm_manager_latch(manager, "a", DLM_LEVEL_DC, DLM_LATCH_COUNT_DOWN, DLM_DEFAULT, &latch, &error));
    OK(dlm_latch_create(latch, 1, &error));
    ids = dlm_id_lock_new();
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    OK(dlm_id_lock_acquire(ids, 1, 0, &error));

    for (i = 0; i < WAITS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, wait_for, &numbers[i]) == 0);
    }
    while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < WAITS)
        sleep_us(1000);
    /* So that they wait by now. */
    sleep_us(100000);
    for (i = 0; i < WAITS; i++)
        CHECK(pthread_cancel(threads[i]) == 0);
    sleep_us(100000);
    CHECK(__atomic_load_n(&ended, __ATOMIC_SEQ_CST) == 0);
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    OK(dlm_id_lock_release(ids, 1, &error));
    OK(dlm_latch_count_down(latch, &error));
    for (i = 0; i < WAITS; i++)
        CHECK(pthread_join(threads[i], &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(__atomic_load_n(&ended, __ATOMIC_SEQ_CST) == WAITS);
    CHECK(pthread_create(&before, NULL, cancelled_before, NULL) == 0);
    CHECK(pthread_join(before, &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(__atomic_load_n(&ended, __ATOMIC_SEQ_CST) == WAITS + 1);

    dlm_latch_free(latch);
    dlm_lock_free(lock);
    dlm_id_lock_free(ids);
    OK(dlm_manager_close(manager, &error));
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

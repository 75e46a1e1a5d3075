/* Locks by id and by key: exclusion, time-outs, and freeing an object while threads wait in it. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 20000, IDS = 3 };

static struct dlm_error *error;
static struct dlm_id_lock *ids;
static long counters[IDS];

static void *count(void *unused)
{
    int i;
    (void)unused;
    for (i = 0; i < ROUNDS; i++) {
        CHECK(dlm_id_lock_acquire(ids, (uint64_t)(i % IDS), DLM_FOREVER, NULL) == DLM_OK);
        counters[i % IDS]++;
        CHECK(dlm_id_lock_release(ids, (uint64_t)(i % IDS), NULL) == DLM_OK);
    }
    return NULL;
}

static void excludes(void)
{
    pthread_t threads[THREADS];
    long sum = 0;
    int i;
    ids = dlm_id_lock_new();
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, count, NULL) == 0);
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (i = 0; i < IDS; i++)
        sum += counters[i];
    CHECK(sum == (long)THREADS * ROUNDS);
    CHECK(dlm_id_lock_count(ids) == 0);
    dlm_id_lock_free(ids);
}

static void says_what_is_held(void)
{
    const uint64_t many[] = {7, 3, 7, 5}, clash[] = {9, 5};
    ids = dlm_id_lock_new();
    OK(dlm_id_lock_acquire(ids, 1, 0, &error));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_id_lock_acquire(ids, 1, 0, &error));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_id_lock_acquire(ids, 1, 10, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_id_lock_acquire(ids, 2, DLM_DEFAULT, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_id_lock_acquire(ids, 2, -7, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_id_lock_release(ids, 2, &error));
    OK(dlm_id_lock_release(ids, 1, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_id_lock_release(ids, 1, &error));

    OK(dlm_id_lock_acquire_many(ids, many, 4, DLM_FOREVER, &error));
    CHECK(dlm_id_lock_count(ids) == 3);
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_id_lock_acquire_many(ids, clash, 2, 5, &error));
    CHECK(dlm_id_lock_count(ids) == 3);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_id_lock_release_many(ids, clash, 2, &error));
    CHECK(dlm_id_lock_count(ids) == 2);
    OK(dlm_id_lock_acquire(ids, 5, 0, &error));
    OK(dlm_id_lock_release_many(ids, many, 4, &error));
    CHECK(dlm_id_lock_count(ids) == 0);
    dlm_id_lock_free(ids);
    dlm_id_lock_free(ids);
    EXPECT(DLM_CLOSED, dlm_id_lock_acquire(ids, 1, 0, &error));
    CHECK(dlm_id_lock_count(ids) == 0);
}

static void locks_any_bytes(void)
{
    struct dlm_key_lock *keys = dlm_key_lock_new();
    char *large = calloc(1, 65537);
    CHECK(large != NULL);
    OK(dlm_key_lock_acquire(keys, "a\0b", 3, 0, &error));
    OK(dlm_key_lock_acquire(keys, "a\0c", 3, 0, &error));
    OK(dlm_key_lock_acquire(keys, "", 0, 0, &error));
    OK(dlm_key_lock_acquire(keys, large, 65536, 0, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_key_lock_acquire(keys, large, 65537, 0, &error));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_key_lock_acquire(keys, "a\0b", 3, 5, &error));
    CHECK(dlm_key_lock_count(keys) == 4);
    OK(dlm_key_lock_release(keys, "a\0b", 3, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_key_lock_release(keys, "a\0b", 3, &error));
    dlm_key_lock_free(keys);
    EXPECT(DLM_CLOSED, dlm_key_lock_release(keys, "a\0c", 3, &error));
    free(large);
}

static void *wait_for_id(void *status)
{
    *(enum dlm_status *)status = dlm_id_lock_acquire(ids, 1, DLM_FOREVER, NULL);
    return NULL;
}

static void wakes_those_who_wait_for_what_is_freed(void)
{
    struct dlm_id_lock *next;
    enum dlm_status answers[THREADS];
    pthread_t threads[THREADS];
    int round, i;
    for (round = 0; round < 50; round++) {
        ids = dlm_id_lock_new();
        OK(dlm_id_lock_acquire(ids, 1, 0, &error));
        for (i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, wait_for_id, &answers[i]) == 0);
        sleep_us(round * 40);
        dlm_id_lock_free(ids);
        /* The new object may use the same memory. The old waiters must not be in it. */
        next = dlm_id_lock_new();
        OK(dlm_id_lock_acquire(next, 1, 0, &error));
        for (i = 0; i < THREADS; i++) {
            CHECK(pthread_join(threads[i], NULL) == 0);
            CHECK(answers[i] == DLM_CLOSED);
        }
        CHECK(dlm_id_lock_count(next) == 1);
        OK(dlm_id_lock_release(next, 1, &error));
        dlm_id_lock_free(next);
    }
}

int main(void)
{
    excludes();
    says_what_is_held();
    locks_any_bytes();
    wakes_those_who_wait_for_what_is_freed();
    CHECK(dlm_handles_open() == 0);
    return 0;
}

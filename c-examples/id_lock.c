/* Threads work on many accounts, one thread at a time on each account. All locks are in this process: no store.
 *
 *   ./id_lock */
#include <dlm.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, TRANSFERS = 100000, ACCOUNTS = 16 };

static struct dlm_id_lock *accounts;
static long balance[ACCOUNTS];

static void *transfer(void *seed)
{
    unsigned state = *(unsigned *)seed;
    int i;

    for (i = 0; i < TRANSFERS; i++) {
        uint64_t pair[2];
        state = state * 1664525 + 1013904223;
        pair[0] = state >> 16 & (ACCOUNTS - 1);
        pair[1] = state >> 24 & (ACCOUNTS - 1);
        /* Locks both or none. The library sorts the ids, so this cannot deadlock. */
        if (dlm_id_lock_acquire_many(accounts, pair, 2, DLM_FOREVER, NULL) != DLM_OK)
            abort();
        balance[pair[0]]--;
        balance[pair[1]]++;
        if (dlm_id_lock_release_many(accounts, pair, 2, NULL) != DLM_OK)
            abort();
    }
    return NULL;
}

int main(void)
{
    unsigned seeds[THREADS];
    pthread_t threads[THREADS];
    long sum = 0;
    int i;

    accounts = dlm_id_lock_new();
    for (i = 0; i < THREADS; i++) {
        seeds[i] = (unsigned)i + 1;
        pthread_create(&threads[i], NULL, transfer, &seeds[i]);
    }
    for (i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (i = 0; i < ACCOUNTS; i++)
        sum += balance[i];
    printf("the balances add up to %ld\n", sum);
    dlm_id_lock_free(accounts);
    return sum == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

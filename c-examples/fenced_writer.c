/* A holder is paused for too long and writes after the next holder. HBase refuses the write.
 *
 *   ./fenced_writer STORE hbase://master:16000/table?family=d
 *
 * STORE holds the lock. It may be any store that has fences. The table may be in the same HBase or in another. */
#define _POSIX_C_SOURCE 200809L
#include <dlm_rows.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Takes the error by pointer: C may evaluate the arguments of a call in any order. */
static void check(enum dlm_status status, struct dlm_error **error)
{
    if (status == DLM_OK)
        return;
    fprintf(stderr, "%s: %s\n", dlm_status_name((int32_t)status), dlm_error_message(*error));
    dlm_error_free(*error);
    exit(EXIT_FAILURE);
}

int main(int argc, char **argv)
{
    const struct dlm_family families[] = {{"d", 1}};
    const struct dlm_cell by_first[] = {{DLM_TEXT("d:report"), DLM_TEXT("by the first"), DLM_FOREVER}};
    const struct dlm_cell by_second[] = {{DLM_TEXT("d:report"), DLM_TEXT("by the second"), DLM_FOREVER}};
    const struct timespec pause = {3, 0};
    struct dlm_options *options = dlm_options_new();
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
    struct dlm_lease *first, *second;
    struct dlm_table *table;
    struct dlm_row *row_of_first, *row_of_second;
    struct dlm_row_cells *cells;
    struct dlm_row_cell report;
    struct dlm_error *error;
    enum dlm_status status;
    uint64_t fence, stored;

    if (argc != 3) {
        fprintf(stderr, "usage: %s STORE 'hbase://master:16000/table?family=d'\n", argv[0]);
        return EXIT_FAILURE;
    }
    check(dlm_options_set(options, "client", "reports", &error), &error);
    check(dlm_manager_open(argv[1], options, &manager, &error), &error);
    check(dlm_manager_initialize(manager, &error), &error);
    check(dlm_manager_lock(manager, "nightly", DLM_LEVEL_XDC, &lock, &error), &error);
    check(dlm_table_open(argv[2], &table, &error), &error);
    check(dlm_table_create_if_missing(table, families, 1, sizeof *families, NULL, 0, &error), &error);

    /* A short lease, which expires while its holder is paused. */
    how.ttl_ms = 2000;
    check(dlm_lock_acquire(lock, &how, &first, &error), &error);
    check(dlm_lease_row(first, table, DLM_TEXT("report"), &row_of_first, &error), &error);
    check(dlm_row_put(row_of_first, by_first, 1, sizeof *by_first, &error), &error);
    nanosleep(&pause, NULL);

    how.ttl_ms = 30000;
    check(dlm_lock_acquire(lock, &how, &second, &error), &error);
    check(dlm_lease_row(second, table, DLM_TEXT("report"), &row_of_second, &error), &error);
    check(dlm_row_put(row_of_second, by_second, 1, sizeof *by_second, &error), &error);

    status = dlm_row_put(row_of_first, by_first, 1, sizeof *by_first, &error);
    if (status == DLM_STALE_FENCE && dlm_error_fences(error, &fence, &stored))
        printf("refused: %s fence than the row has\n", fence < stored ? "a lower" : "no lower");
    dlm_error_free(error);
    check(dlm_row_get(row_of_second, &cells, &error), &error);
    if (dlm_row_cells_find(cells, DLM_TEXT("d:report"), &report, sizeof report))
        printf("the report is %.*s\n", (int)report.value_size, (const char *)report.value);

    dlm_row_cells_free(cells);
    dlm_row_free(row_of_first);
    dlm_row_free(row_of_second);
    dlm_table_free(table);
    dlm_lease_free(first);
    dlm_lease_free(second);
    dlm_lock_free(lock);
    check(dlm_manager_close(manager, &error), &error);
    dlm_manager_free(manager);
    dlm_options_free(options);
    return EXIT_SUCCESS;
}

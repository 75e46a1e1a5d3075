/* Every function for rows, on the given HBase: ./rows STORE TABLE_URI. The table must not exist: the program creates
 * it. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <dlm_rows.h>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static struct dlm_error *error;

static struct dlm_row *row_of(struct dlm_table *table, const char *key)
{
    struct dlm_row *row;
    OK(dlm_table_row(table, key, strlen(key), &row, &error));
    return row;
}

static bool holds(struct dlm_row *row, const char *column, const char *value)
{
    struct dlm_row_cells *cells;
    struct dlm_row_cell cell;
    bool found;

    OK(dlm_row_get(row, &cells, &error));
    found = dlm_row_cells_find(cells, column, strlen(column), &cell, sizeof(struct dlm_row_cell));
    CHECK(found == (cell.value != NULL));
    found = found && cell.value_size == strlen(value) && memcmp(cell.value, value, cell.value_size) == 0;
    dlm_row_cells_free(cells);
    return found;
}

static void made_and_changed(struct dlm_row *row)
{
    const struct dlm_cell first[] = {{DLM_TEXT("d:id"), DLM_TEXT("1"), DLM_FOREVER},
                                     {DLM_TEXT("e:\0\xff:"), DLM_TEXT("\0b"), DLM_FOREVER}};
    const struct dlm_cell second[] = {{DLM_TEXT("d:id"), DLM_TEXT("2"), DLM_FOREVER}};
    const struct dlm_cell empty[] = {{DLM_TEXT("d:empty"), DLM_TEXT(""), DLM_FOREVER}};
    struct dlm_row_cells *cells;
    struct dlm_row_cell cell;
    bool done;

    OK(dlm_row_update(row, first, 2, sizeof(struct dlm_cell), &done, &error));
    CHECK(!done);
    OK(dlm_row_create(row, first, 2, sizeof(struct dlm_cell), &done, &error));
    CHECK(done);
    OK(dlm_row_create(row, second, 1, sizeof(struct dlm_cell), &done, &error));
    CHECK(!done);
    CHECK(holds(row, "d:id", "1"));
    OK(dlm_row_update(row, second, 1, sizeof(struct dlm_cell), &done, &error));
    CHECK(done);
    OK(dlm_row_put(row, empty, 1, sizeof(struct dlm_cell), &error));

    OK(dlm_row_get(row, &cells, &error));
    CHECK(dlm_row_cells_count(cells) == 3);
    CHECK(dlm_row_cells_at(cells, 0, &cell, sizeof(struct dlm_row_cell)));
    CHECK(cell.column_size == 7 && memcmp(cell.column, "d:empty", 7) == 0);
    CHECK(cell.value != NULL && cell.value_size == 0);
    CHECK(dlm_row_cells_at(cells, 1, &cell, sizeof(struct dlm_row_cell)) && cell.written_ms > 1500000000000u);
    CHECK(dlm_row_cells_find(cells, DLM_TEXT("e:\0\xff:"), &cell, sizeof(struct dlm_row_cell)));
    CHECK(cell.value_size == 2 && memcmp(cell.value, "\0b", 2) == 0);
    CHECK(dlm_row_cells_find(cells, DLM_TEXT("d:id"), NULL, sizeof(struct dlm_row_cell)));
    memset(&cell, 1, sizeof cell);
    CHECK(!dlm_row_cells_at(cells, 3, &cell, sizeof(struct dlm_row_cell)));
    CHECK(cell.value == NULL && cell.column == NULL && cell.value_size == 0 && cell.written_ms == 0);
    CHECK(!dlm_row_cells_find(cells, DLM_TEXT("d:none"), &cell, sizeof(struct dlm_row_cell)));
    dlm_row_cells_free(cells);
    CHECK(dlm_row_cells_count(cells) == 0 && !dlm_row_cells_at(cells, 0, &cell, sizeof(struct dlm_row_cell)));

    /* NULL means no cell, "" means an empty cell. */
    OK(dlm_row_compare_and_set(row, DLM_TEXT("d:empty"), NULL, 0, DLM_TEXT("x"), &done, &error));
    CHECK(!done);
    OK(dlm_row_compare_and_set(row, DLM_TEXT("d:empty"), DLM_TEXT(""), DLM_TEXT("x"), &done, &error));
    CHECK(done);
    OK(dlm_row_compare_and_set(row, DLM_TEXT("d:empty"), DLM_TEXT("x"), NULL, 0, &done, &error));
    CHECK(done && !holds(row, "d:empty", "x"));
    OK(dlm_row_compare_and_set(row, DLM_TEXT("d:empty"), DLM_TEXT(""), DLM_TEXT("x"), &done, &error));
    CHECK(!done);
    OK(dlm_row_compare_and_set(row, DLM_TEXT("d:empty"), NULL, 0, DLM_TEXT(""), &done, &error));
    CHECK(done);
}

static void counted(struct dlm_row *row)
{
    struct dlm_row_cells *cells;
    int64_t sum;
    bool known;

    OK(dlm_row_increment(row, DLM_TEXT("d:n"), 5, &sum, &known, &error));
    CHECK(known && sum == 5);
    OK(dlm_row_increment(row, DLM_TEXT("d:n"), -7, &sum, &known, &error));
    CHECK(known && sum == -2);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_increment(row, DLM_TEXT("d:id"), 1, &sum, &known, &error));
    CHECK(!known && sum == 0);
    OK(dlm_row_get(row, &cells, &error));
    CHECK(dlm_row_cells_counter(cells, DLM_TEXT("d:n"), &sum) && sum == -2);
    CHECK(!dlm_row_cells_counter(cells, DLM_TEXT("d:id"), &sum) && sum == 0);
    CHECK(!dlm_row_cells_counter(cells, DLM_TEXT("d:none"), &sum));
    dlm_row_cells_free(cells);
}

static void committed(struct dlm_row *row, struct dlm_row *other)
{
    const struct dlm_bytes columns[] = {{DLM_TEXT("d:id")}, {DLM_TEXT("d:absent")}};
    const struct dlm_cell meddling[] = {{DLM_TEXT("d:absent"), DLM_TEXT(""), DLM_FOREVER}};
    const struct dlm_change changes[] = {
        {.kind = DLM_CHANGE_PUT, .column = "d:id", .column_size = 4, .value = "3", .value_size = 1, .ttl_ms = DLM_FOREVER},
        {.kind = DLM_CHANGE_ADD, .column = "d:n", .column_size = 3, .by = 12},
        {.kind = DLM_CHANGE_DELETE, .column = "d:absent", .column_size = 8},
    };
    const struct dlm_change nothing[] = {{.kind = DLM_CHANGE_DELETE, .column = "d:absent", .column_size = 8}};
    struct dlm_row_cells *read, *whole;
    bool done;

    OK(dlm_row_get_columns(row, columns, 2, &read, &error));
    CHECK(dlm_row_cells_count(read) == 1);
    /* A requested column that did not exist now exists. */
    OK(dlm_row_put(row, meddling, 1, sizeof(struct dlm_cell), &error));
    OK(dlm_row_commit_if_unchanged(row, read, changes, 3, sizeof(struct dlm_change), &done, &error));
    CHECK(!done && !holds(row, "d:id", "3"));
    dlm_row_cells_free(read);
    OK(dlm_row_get_columns(row, columns, 2, &read, &error));
    CHECK(dlm_row_cells_count(read) == 2);
    OK(dlm_row_commit_if_unchanged(row, read, changes, 3, sizeof(struct dlm_change), &done, &error));
    CHECK(done && holds(row, "d:id", "3") && !holds(row, "d:absent", ""));
    OK(dlm_row_commit_if_unchanged(row, read, changes, 3, sizeof(struct dlm_change), &done, &error));
    CHECK(!done);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_commit_if_unchanged(other, read, changes, 3, sizeof(struct dlm_change), &done, &error));
    dlm_row_cells_free(read);
    OK(dlm_row_get_columns(row, columns, 2, &read, &error));
    OK(dlm_row_commit_if_unchanged(row, read, nothing, 1, sizeof(struct dlm_change), &done, &error));
    CHECK(done);
    OK(dlm_row_get(row, &whole, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_commit_if_unchanged(row, whole, changes, 3, sizeof(struct dlm_change), &done, &error));
    dlm_row_cells_free(whole);
    dlm_row_cells_free(read);
    /* A row that does not exist. */
    OK(dlm_row_get_columns(other, columns, 2, &read, &error));
    CHECK(dlm_row_cells_count(read) == 0);
    OK(dlm_row_commit_if_unchanged(other, read, changes, 1, sizeof(struct dlm_change), &done, &error));
    CHECK(done);
    OK(dlm_row_commit_if_unchanged(other, read, changes, 1, sizeof(struct dlm_change), &done, &error));
    CHECK(!done);
    dlm_row_cells_free(read);
}

static void deleted(struct dlm_row *row)
{
    struct dlm_row_cells *cells;
    bool done;

    OK(dlm_row_delete_if(row, DLM_TEXT("d:id"), DLM_TEXT("1"), &done, &error));
    CHECK(!done);
    OK(dlm_row_delete_if(row, DLM_TEXT("d:id"), DLM_TEXT("3"), &done, &error));
    CHECK(done);
    OK(dlm_row_get(row, &cells, &error));
    CHECK(dlm_row_cells_count(cells) == 0);
    dlm_row_cells_free(cells);
}

static void each_way(struct dlm_table *table, const char *key, struct dlm_row *row)
{
    char of_other[64];
    struct dlm_row *other;

    snprintf(of_other, sizeof of_other, "%s-other", key);
    other = row_of(table, of_other);
    made_and_changed(row);
    counted(row);
    committed(row, other);
    deleted(row);
    dlm_row_free(other);
    dlm_row_free(row);
    EXPECT(DLM_CLOSED, dlm_row_put(row, NULL, 0, sizeof(struct dlm_cell), &error));
}

static struct dlm_lease *locked(struct dlm_manager *manager)
{
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    OK(dlm_manager_lock(manager, "guard", DLM_LEVEL_XDC, &lock, &error));
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    dlm_lock_free(lock);
    return lease;
}

static void fenced(struct dlm_manager *manager, struct dlm_table *table)
{
    const struct dlm_cell cells[] = {{DLM_TEXT("d:a"), DLM_TEXT("1"), 600000}};
    struct dlm_lease *lease = locked(manager);
    struct dlm_row *early, *once, *late, *plain = row_of(table, "guarded");
    struct dlm_texts *lock;
    uint64_t first = dlm_lease_fence(lease), second, fence, stored;

    OK(dlm_row_fence(plain, &fence, &lock, &error));
    CHECK(fence == 0 && dlm_texts_count(lock) == 0);
    dlm_texts_free(lock);
    OK(dlm_lease_row(lease, table, DLM_TEXT("guarded"), &early, &error));
    OK(dlm_row_exactly_once(early, &once, &error));
    OK(dlm_row_put(early, cells, 1, sizeof(struct dlm_cell), &error));
    OK(dlm_row_fence(plain, &fence, &lock, &error));
    CHECK(fence == first && dlm_texts_count(lock) == 1 && strstr(dlm_texts_at(lock, 0), "guard") != NULL);
    dlm_texts_free(lock);
    OK(dlm_row_fence(plain, &fence, NULL, &error));
    CHECK(fence == first);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_raise_fence(plain, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);

    lease = locked(manager);
    second = dlm_lease_fence(lease);
    OK(dlm_lease_row(lease, table, DLM_TEXT("guarded"), &late, &error));
    OK(dlm_row_raise_fence(late, &error));
    CHECK(dlm_row_put(early, cells, 1, sizeof(struct dlm_cell), &error) == DLM_STALE_FENCE);
    CHECK(dlm_error_fences(error, &fence, &stored) && fence == first && stored == second);
    dlm_error_free(error);
    EXPECT(DLM_STALE_FENCE, dlm_row_put(once, cells, 1, sizeof(struct dlm_cell), &error));
    OK(dlm_row_put(late, cells, 1, sizeof(struct dlm_cell), &error));
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    dlm_row_free(early);
    dlm_row_free(once);
    dlm_row_free(late);
    dlm_row_free(plain);
}

static void refused(struct dlm_table *table, struct dlm_manager *manager)
{
    struct dlm_row *row = row_of(table, "refused"), *none;
    struct dlm_table *other;
    struct dlm_row_cells *cells;
    struct dlm_lease *lease = locked(manager);
    const struct dlm_cell bad[] = {
        {DLM_TEXT("d"), DLM_TEXT("1"), DLM_FOREVER}, /* no family */
        {DLM_TEXT("d:a"), NULL, 0, DLM_FOREVER},
        {NULL, 3, DLM_TEXT("1"), DLM_FOREVER},
        {DLM_TEXT("d:a"), DLM_TEXT("1"), 0}, /* a forgotten TTL */
        {DLM_TEXT("d:a"), DLM_TEXT("1"), DLM_DEFAULT},
        {DLM_TEXT("d:\0dlm_op_1"), DLM_TEXT("1"), DLM_FOREVER},
        {DLM_TEXT("d:_fence"), DLM_TEXT("1"), DLM_FOREVER},
    };
    const struct dlm_change bad_changes[] = {
        {0, DLM_TEXT("d:a"), NULL, 0, 0, 0},
        {4, DLM_TEXT("d:a"), NULL, 0, 0, 0},
        {DLM_CHANGE_PUT, DLM_TEXT("d:a"), NULL, 0, DLM_FOREVER, 0},
        {DLM_CHANGE_PUT, DLM_TEXT("d:a"), DLM_TEXT("1"), 0, 0},
        {DLM_CHANGE_PUT, DLM_TEXT("d:a"), DLM_TEXT("1"), DLM_FOREVER, 1},
        {DLM_CHANGE_ADD, DLM_TEXT("d:a"), DLM_TEXT("1"), 0, 1},
        {DLM_CHANGE_DELETE, DLM_TEXT("d:a"), DLM_TEXT("1"), 0, 0},
        {DLM_CHANGE_DELETE, DLM_TEXT("d:a"), NULL, 0, 0, 1},
        {DLM_CHANGE_DELETE, DLM_TEXT("d:b"), NULL, 0, 0, 0}, /* was not read */
    };
    const struct dlm_bytes column[] = {{DLM_TEXT("d:a")}}, no_family[] = {{DLM_TEXT("a")}}, null[] = {{NULL, 0}};
    const struct dlm_family no_versions[] = {{"d", 0}}, missing[] = {{"x", 1}};
    char *key = calloc(1, 32768);
    int64_t number;
    bool done;
    size_t i;

    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT(DLM_INVALID_ARGUMENT, dlm_row_put(row, &bad[i], 1, sizeof(struct dlm_cell), &error));
        EXPECT(DLM_INVALID_ARGUMENT, dlm_row_create(row, &bad[i], 1, sizeof(struct dlm_cell), &done, &error));
    }
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_put(row, bad, 0, sizeof(struct dlm_cell), &error));
    OK(dlm_row_get_columns(row, column, 1, &cells, &error));
    for (i = 0; i < sizeof bad_changes / sizeof *bad_changes; i++)
        EXPECT(DLM_INVALID_ARGUMENT, dlm_row_commit_if_unchanged(row, cells, &bad_changes[i], 1, sizeof(struct dlm_change), &done, &error));
    dlm_row_cells_free(cells);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_get_columns(row, column, 0, &cells, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_get_columns(row, no_family, 1, &cells, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_get_columns(row, null, 1, &cells, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_compare_and_set(row, DLM_TEXT("d:a"), NULL, 1, NULL, 0, &done, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_row_delete_if(row, DLM_TEXT("d:a"), NULL, 0, &done, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_table_row(table, "", 0, &none, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_table_row(table, key, 32768, &none, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_row(lease, table, "", 0, &none, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_table_create_if_missing(table, no_versions, 1, sizeof(struct dlm_family), NULL, 0, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_table_create_if_missing(table, missing, 0, sizeof(struct dlm_family), NULL, 0, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_table_create_if_missing(table, missing, 1, sizeof(struct dlm_family), NULL, 1, &error));
    EXPECT(DLM_TABLE_CREATION_ERROR, dlm_table_create_if_missing(table, missing, 1, sizeof(struct dlm_family), NULL, 0, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_table_open("memory:", &other, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_table_open("hbase://127.0.0.1:1/t?client=c", &other, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_table_setting(table, "ttl", &number, &error));
    OK(dlm_table_open("hbase://127.0.0.1:1/t?timeout=300ms&attempts=7", &other, &error));
    OK(dlm_table_setting(other, "timeout", &number, &error));
    CHECK(number == 300);
    OK(dlm_table_setting(other, "attempts", &number, &error));
    CHECK(number == 7);
    OK(dlm_table_setting(other, "max_value", &number, &error));
    CHECK(number == 4194304);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_row(lease, other, "k", 1, &none, &error)); /* no family */
    dlm_row_free(row);
    row = row_of(other, "k");
    dlm_table_free(other);
    EXPECT(DLM_CONNECTION_ERROR, dlm_row_get(row, &cells, &error));
    dlm_row_free(row);
    EXPECT(DLM_CLOSED, dlm_table_row(other, "k", 1, &row, &error));
    dlm_lease_free(lease);
    free(key);
}

/* Threads that share one handle. Each adds to a number with its own loop of read and conditional commit. */
enum { THREADS = 4, TURNS = 20 };

static void *adds(void *shared)
{
    struct dlm_row *row = shared;
    const struct dlm_bytes columns[] = {{DLM_TEXT("d:text")}};
    struct dlm_row_cells *read;
    struct dlm_row_cell cell;
    struct dlm_change change = {DLM_CHANGE_PUT, DLM_TEXT("d:text"), NULL, 0, DLM_FOREVER, 0};
    char text[32] = "";
    int turn;

    for (turn = 0; turn < TURNS;) {
        bool done;
        int number = 0;
        CHECK(dlm_row_get_columns(row, columns, 1, &read, NULL) == DLM_OK);
        if (dlm_row_cells_find(read, DLM_TEXT("d:text"), &cell, sizeof(struct dlm_row_cell))) {
            memcpy(text, cell.value, cell.value_size);
            text[cell.value_size] = 0;
            number = atoi(text);
        }
        change.value = text;
        change.value_size = (size_t)snprintf(text, sizeof text, "%d", number + 1);
        CHECK(dlm_row_commit_if_unchanged(row, read, &change, 1, sizeof(struct dlm_change), &done, NULL) == DLM_OK);
        dlm_row_cells_free(read);
        turn += done;
    }
    return NULL;
}

static void shared_by_threads(struct dlm_table *table)
{
    struct dlm_row *row = row_of(table, "shared");
    pthread_t threads[THREADS];
    char sum[16];
    int i;

    for (i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, adds, row) == 0);
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    snprintf(sum, sizeof sum, "%d", THREADS * TURNS);
    CHECK(holds(row, "d:text", sum));
    dlm_row_free(row);
}

static void forked(struct dlm_table *table, const char *uri)
{
    struct dlm_row *row = row_of(table, "forked");
    const struct dlm_cell cells[] = {{DLM_TEXT("d:a"), DLM_TEXT("child"), DLM_FOREVER}};
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        struct dlm_table *own;
        struct dlm_row *none;
        EXPECT(DLM_FORKED, dlm_table_row(table, "k", 1, &none, &error));
        EXPECT(DLM_FORKED, dlm_row_put(row, cells, 1, sizeof(struct dlm_cell), &error));
        dlm_row_free(row);
        OK(dlm_table_open(uri, &own, &error));
        row = row_of(own, "forked");
        OK(dlm_row_put(row, cells, 1, sizeof(struct dlm_cell), &error));
        dlm_row_free(row);
        dlm_table_free(own);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(holds(row, "d:a", "child"));
    dlm_row_free(row);
}

int main(int argc, char **argv)
{
    struct dlm_manager *manager;
    struct dlm_options *options = dlm_options_new();
    struct dlm_table *table;
    struct dlm_lease *lease;
    struct dlm_row *row, *once;
    const struct dlm_family families[] = {{"d", 1}, {"e", 1}};
    const struct dlm_bytes splits[] = {{DLM_TEXT("m")}};

    CHECK(argc >= 3);
    OK(dlm_options_set(options, "client", "rows", &error));
    OK(dlm_options_set(options, "ttl", "10m", &error));
    OK(dlm_options_set(options, "timeout", "60s", &error));
    OK(dlm_manager_open(argv[1], options, &manager, &error));
    dlm_options_free(options);
    OK(dlm_table_open(argv[2], &table, &error));
    OK(dlm_table_create_if_missing(table, families, 2, sizeof(struct dlm_family), splits, 1, &error));
    OK(dlm_table_create_if_missing(table, families, 2, sizeof(struct dlm_family), NULL, 0, &error));

    /* The sanitizer's memory allocator may be locked in a forked child. With a sanitizer, argc is 4. */
    if (argc == 3)
        forked(table, argv[2]);
    each_way(table, "plain", row_of(table, "plain"));
    row = row_of(table, "once");
    OK(dlm_row_exactly_once(row, &once, &error));
    dlm_row_free(row);
    each_way(table, "once", once);
    lease = locked(manager);
    OK(dlm_lease_row(lease, table, DLM_TEXT("zfenced"), &row, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    each_way(table, "zfenced", row);
    fenced(manager, table);
    refused(table, manager);
    shared_by_threads(table);

    dlm_table_free(table);
    OK(dlm_manager_close(manager, &error));
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}

/* Several processes create the same rows. For each row, one process learns that it created the row, and the others
 * add to it. No lock is needed.
 *
 *   ./create_or_update hbase://master:16000/table */
#define _POSIX_C_SOURCE 200809L
#include <dlm_rows.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* A child's exit status is NONE_MADE plus the number of rows that it created. */
enum { PROCESSES = 4, ROWS = 25, NONE_MADE = 100 };

/* Takes the error by pointer: C may evaluate the arguments of a call in any order. */
static void check(enum dlm_status status, struct dlm_error **error)
{
    if (status == DLM_OK)
        return;
    fprintf(stderr, "%s: %s\n", dlm_status_name((int32_t)status), dlm_error_message(*error));
    dlm_error_free(*error);
    exit(EXIT_FAILURE);
}

/* Returns true if this process created the row. */
static bool visit(const struct dlm_table *table, int number)
{
    /* The first cell is the anchor, which says if the row exists. Its value must not be empty. */
    const struct dlm_cell first[] = {{DLM_TEXT("d:state"), DLM_TEXT("new"), DLM_FOREVER}};
    struct dlm_row *plain, *row;
    struct dlm_error *error;
    char key[32];
    bool created, known;
    int64_t visits;

    check(dlm_table_row(table, key, (size_t)snprintf(key, sizeof key, "order-%d", number), &plain, &error), &error);
    /* Even if a reply is lost, the process learns if it created the row. */
    check(dlm_row_exactly_once(plain, &row, &error), &error);
    check(dlm_row_create(row, first, 1, sizeof *first, &created, &error), &error);
    check(dlm_row_increment(row, DLM_TEXT("d:visits"), 1, &visits, &known, &error), &error);
    dlm_row_free(row);
    dlm_row_free(plain);
    return created;
}

/* One process. Returns the number of rows that it created. A child cannot use handles from before fork(), so each
 * process opens the table itself. */
static int run(const char *uri)
{
    struct dlm_table *table;
    struct dlm_error *error;
    int number, created = 0;

    check(dlm_table_open(uri, &table, &error), &error);
    for (number = 0; number < ROWS; number++)
        created += visit(table, number);
    dlm_table_free(table);
    return created;
}

int main(int argc, char **argv)
{
    const struct dlm_family families[] = {{"d", 1}};
    struct dlm_table *table;
    struct dlm_error *error;
    int process, created = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: %s hbase://master:16000/table\n", argv[0]);
        return EXIT_FAILURE;
    }
    for (process = 0; process < PROCESSES; process++) {
        pid_t child = fork();
        if (child < 0)
            return EXIT_FAILURE;
        if (child == 0) {
            /* Many processes may call this at once. */
            check(dlm_table_open(argv[1], &table, &error), &error);
            check(dlm_table_create_if_missing(table, families, 1, sizeof *families, NULL, 0, &error), &error);
            dlm_table_free(table);
            return NONE_MADE + run(argv[1]);
        }
    }
    for (process = 0; process < PROCESSES; process++) {
        int status;
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) < NONE_MADE)
            return EXIT_FAILURE;
        created += WEXITSTATUS(status) - NONE_MADE;
    }
    printf("%d processes created %d of %d rows\n", PROCESSES, created, ROWS);
    return EXIT_SUCCESS;
}

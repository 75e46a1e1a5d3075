/* dlm_rows.h: rows of an application's own tables in HBase. Their changes can carry the fence of a lease.
 * Generated from src/capi by build.rs; do not edit. The rules of dlm.h apply. */
#ifndef DLM_ROWS_H
#define DLM_ROWS_H

#include "dlm.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dlm_row;
struct dlm_row_cells;
struct dlm_table;

/// Kind of a change that writes a cell, see dlm_cell.
#define DLM_CHANGE_PUT 1

/// Kind of a change that adds to an 8-byte counter, like dlm_row_increment().
#define DLM_CHANGE_ADD 2

/// Kind of a change that deletes a column with all its versions. The column must be one of those that were read. If
/// it did not exist then, the change does nothing.
#define DLM_CHANGE_DELETE 3

/// One row of a table: its key, and how its changes are made. Every change of a row from dlm_lease_row() carries
/// the lease's fence. HBase refuses the change after a later holder of the lock has changed the row through its own
/// fenced row, or raised its fence. A row from dlm_row_exactly_once() sends a change again if its reply was lost.
///
/// Calls that read or change the row in HBase block, at most for the table's option timeout. dlm_row_delete_if(),
/// and a dlm_row_compare_and_set() that deletes, read the row first and may take twice that time. Their errors:
/// * DLM_INVALID_ARGUMENT before any I/O: a column, value or TTL is not allowed. After a read: the row has the fence
///   of another lock. The call had no effect.
/// * DLM_TABLE_CREATION_ERROR: the table does not exist, is disabled, or lacks the family.
/// * DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_INTERNAL_ERROR, DLM_CLOSED: the call had no effect.
/// * DLM_IN_DOUBT, for changes only: the change may have taken effect, or may still take effect. For a row from
///   dlm_row_exactly_once() this happens only if the timeout was too short to find out, or if a server answered
///   with an error that does not say whether the change was made.
/// * DLM_STALE_FENCE, for changes of a row from dlm_lease_row(): a later holder of the lock has changed the row
///   through its own fenced row, or raised its fence. The change had no effect.
struct dlm_row;

/// Cells that were read from a row, all at the same moment. They never change.
struct dlm_row_cells;

/// An application's own table in HBase. Its rows are created and changed safely without row locks. Open one and
/// share it.
struct dlm_table;

/// A column family of a table to create. Later versions append fields.
struct dlm_family {
    /// The name of the family.
    const char *name;
    /// Number of versions that HBase keeps of each cell. 1 unless the program reads old versions.
    uint64_t versions;
};

/// Bytes of a key or a column. Calls copy them. This struct never gets more fields.
struct dlm_bytes {
    /// Must not be NULL, even if `size` is 0.
    const void *bytes;
    /// Number of bytes. The NUL at the end of a text does not count, see DLM_TEXT.
    size_t size;
};

/// A cell to write. A column is a family, a colon and a qualifier of any bytes. Calls copy column and value. With
/// DLM_TEXT: {DLM_TEXT("d:state"), DLM_TEXT("new"), DLM_FOREVER}. Later versions append fields.
struct dlm_cell {
    /// The column, as family:qualifier.
    const void *column;
    /// Size of the column in bytes.
    size_t column_size;
    /// The value. Must not be NULL, even for an empty value.
    const void *value;
    /// Size of the value in bytes, up to the table's option max_value.
    size_t value_size;
    /// DLM_FOREVER, or the time in milliseconds, 1 or more, after which the server drops the cell. It must not be
    /// shorter than the remaining time of an older version of the cell: HBase would then return that version again.
    int64_t ttl_ms;
};

/// One of the changes that dlm_row_commit_if_unchanged() makes. Fields that its kind does not use must be NULL or 0.
/// Later versions append fields.
struct dlm_change {
    /// DLM_CHANGE_PUT, DLM_CHANGE_ADD or DLM_CHANGE_DELETE.
    int64_t kind;
    /// The column, as family:qualifier. Each column may occur once.
    const void *column;
    /// Size of the column in bytes.
    size_t column_size;
    /// PUT: the value, as in dlm_cell.
    const void *value;
    /// PUT: size of the value in bytes.
    size_t value_size;
    /// PUT: the cell's TTL, as in dlm_cell.
    int64_t ttl_ms;
    /// ADD: the number to add.
    int64_t by;
};

/// A cell that was read. Column and value live until the dlm_row_cells is freed. They do not end with NUL. Later
/// versions append fields.
struct dlm_row_cell {
    /// The column, as family:qualifier.
    const void *column;
    /// Size of the column in bytes.
    size_t column_size;
    /// The value. NULL only if there is no cell. A value may be empty.
    const void *value;
    /// Size of the value in bytes.
    size_t value_size;
    /// Timestamp of the cell: milliseconds since 1970 by the server's clock.
    uint64_t written_ms;
};

/// Opens the table at `uri`: "hbase://master1:16000,master2:16000/table", with options as "?key=value&key=value":
///
/// | key | default | |
/// |---|---|---|
/// | family | none | the family that keeps the fences of fenced rows |
/// | anchor | none | the column that shows that a row exists, as family:qualifier |
/// | timeout | 10s | the time limit of one call |
/// | max_value | 4194304 | the most bytes in one value, 1 to 10000000 |
/// | attempts | 100 | the most attempts of one modify, 1 to 10000 |
/// | fence_ttl | 30d | how long a fence is kept after it was raised, 1m or more |
/// | fence_column | _fence | the qualifier of the fence |
/// | fence_of_column | _fence_of | the qualifier of the name of the lock that the fence belongs to |
/// | connect_timeout | 3s | 10ms to 10m |
/// | user | $USER | the name that the servers log |
/// | auth | simple | simple, kerberos: how servers know who we are |
/// | protection | authentication | authentication, integrity, privacy: the least protection of what is sent, with auth=kerberos |
/// | principal | none | our principal; by default that of the ticket cache or of the keytab's first key |
/// | keytab | none | the file with our principal's keys; by default tickets come from the ticket cache |
/// | ticket_cache | none | the ticket cache, such as FILE:/tmp/krb5cc_0; by default that of the process |
/// | server_principal | hbase/_HOST | the principal of the RegionServers; _HOST is the server's name |
/// | master_principal | none | the principal of the masters; by default that of the RegionServers |
/// | tls | off | on, off |
/// | tls_ca | none | PEM file: the authority that signed the servers' certificates |
/// | tls_cert | none | PEM file: our certificate |
/// | tls_key | none | PEM file: its key |
///
/// Reads the TLS files, if any. The first call that needs HBase contacts it. On DLM_OK the caller owns
/// `*table_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also for unknown keys, and always if the library was built without HBase.
DLM_NODISCARD
enum dlm_status dlm_table_open(const char *uri,
                               struct dlm_table **table_out,
                               struct dlm_error **error_out);

/// Creates the table unless it exists, with these families and split at these keys, and waits until it serves
/// requests. `family_size` is sizeof(struct dlm_family). Safe to repeat, and to call in many processes at once. `splits` may be NULL if `split_count` is 0.
/// Blocks for up to a minute.
///
/// Errors: DLM_TABLE_CREATION_ERROR with the cause, also if the table exists and lacks one of the families;
/// DLM_CONNECTION_ERROR; DLM_RETRIES_EXHAUSTED.
DLM_NODISCARD
enum dlm_status dlm_table_create_if_missing(struct dlm_table *table,
                                            const struct dlm_family *families,
                                            size_t family_count,
                                            size_t family_size,
                                            const struct dlm_bytes *splits,
                                            size_t split_count,
                                            struct dlm_error **error_out);

/// Creates a handle of the row whose key is the `key_size` bytes at `key`, 1 to 32000. Does no I/O and creates
/// nothing in HBase: see dlm_row_create(). Never blocks. On DLM_OK the caller owns `*row_out`, which may outlive
/// `table`.
DLM_NODISCARD
enum dlm_status dlm_table_row(const struct dlm_table *table,
                              const void *key,
                              size_t key_size,
                              struct dlm_row **row_out,
                              struct dlm_error **error_out);

/// Writes a setting of the table, either the value that was set or the default, to `*number_out`: "timeout" in
/// milliseconds, "max_value" in bytes, or "attempts". Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also for other keys.
DLM_NODISCARD
enum dlm_status dlm_table_setting(const struct dlm_table *table,
                                  const char *key,
                                  int64_t *number_out,
                                  struct dlm_error **error_out);

/// Frees a table. NULL is allowed. Its rows continue to work. Freeing the last of them closes the connections.
void dlm_table_free(struct dlm_table *table);

/// Creates a row whose changes all carry the fence of `lease`. The table needs its option family. The row may
/// outlive the lease. After the lease has ended, changes still succeed until a later holder of the lock has
/// changed the row through its own fenced row, or raised its fence. From then on they fail with DLM_STALE_FENCE.
/// Does no I/O and never blocks. On DLM_OK the caller owns `*row_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also if the key is not 1 to 32000 bytes, the table lacks the option family, or
/// the lease has no fence because the option fence of its store is off.
DLM_NODISCARD
enum dlm_status dlm_lease_row(const struct dlm_lease *lease,
                              const struct dlm_table *table,
                              const void *key,
                              size_t key_size,
                              struct dlm_row **row_out,
                              struct dlm_error **error_out);

/// Creates a handle of the same row that makes each change exactly once. A change also writes an idempotency mark
/// in the same atomic step. A change whose reply was lost is sent again until a server answers, at most for the
/// table's option timeout. A mark is a cell of some 100 bytes in the row. It expires after a few minutes, or after
/// two hours if a request stayed unanswered. Never blocks. On DLM_OK the caller owns `*row_out`. It still owns `row`.
DLM_NODISCARD
enum dlm_status dlm_row_exactly_once(const struct dlm_row *row,
                                     struct dlm_row **row_out,
                                     struct dlm_error **error_out);

/// Reads the whole row, except the library's own columns. There are no cells if the row does not exist. On DLM_OK
/// the caller owns `*cells_out`. Blocks and fails as described at dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_get(const struct dlm_row *row,
                            struct dlm_row_cells **cells_out,
                            struct dlm_error **error_out);

/// Reads one or more columns, each named family:qualifier. dlm_row_commit_if_unchanged() accepts the result. On
/// DLM_OK the caller owns `*cells_out`. Blocks and fails as described at dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_get_columns(const struct dlm_row *row,
                                    const struct dlm_bytes *columns,
                                    size_t count,
                                    struct dlm_row_cells **cells_out,
                                    struct dlm_error **error_out);

/// Creates the row unless it exists. `cell_size` is sizeof(struct dlm_cell). If several clients call this at once, `*created_out` is true for one of them. A
/// row exists if its anchor has a value that is not empty. The anchor is the column that the table's option anchor
/// names, by default the first of `cells`. It must be among `cells`, with a value that is not empty. Blocks and
/// fails as described at dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_create(struct dlm_row *row,
                               const struct dlm_cell *cells,
                               size_t count,
                               size_t cell_size,
                               bool *created_out,
                               struct dlm_error **error_out);

/// Writes the cells if the row exists, see dlm_row_create(). If it does not, `*updated_out` is false and nothing is
/// written. Without the option anchor, the first of `cells` must be a column that the row has. Blocks and fails as
/// described at dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_update(struct dlm_row *row,
                               const struct dlm_cell *cells,
                               size_t count,
                               size_t cell_size,
                               bool *updated_out,
                               struct dlm_error **error_out);

/// Writes the cells in one atomic step, whether the row exists or not. Blocks and fails as described at dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_put(struct dlm_row *row,
                            const struct dlm_cell *cells,
                            size_t count,
                            size_t cell_size,
                            struct dlm_error **error_out);

/// Writes `new_value` into a column if it holds `expected`. `*set_out` is true if it did. Either value may be NULL
/// with size 0. NULL means that there is no cell, which differs from an empty value. A NULL `new_value` deletes the
/// cell. Blocks and fails as described at dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_compare_and_set(struct dlm_row *row,
                                        const void *column,
                                        size_t column_size,
                                        const void *expected,
                                        size_t expected_size,
                                        const void *new_value,
                                        size_t new_size,
                                        bool *set_out,
                                        struct dlm_error **error_out);

/// Adds `by` to an 8-byte big-endian counter and writes the sum to `*sum_out`. A counter starts at 0 and wraps around
/// at the limits of int64_t. For a row from dlm_row_exactly_once(), `*known_out` may be false on DLM_OK: the number
/// was added once, but the reply with the sum was lost, and `*sum_out` is 0. Blocks and fails as described at
/// dlm_row. DLM_INVALID_ARGUMENT also if the cell is not 8 bytes long.
DLM_NODISCARD
enum dlm_status dlm_row_increment(struct dlm_row *row,
                                  const void *column,
                                  size_t column_size,
                                  int64_t by,
                                  int64_t *sum_out,
                                  bool *known_out,
                                  struct dlm_error **error_out);

/// Deletes the cells of the row if `column` holds `expected`. `*deleted_out` is true if it did. Cells that other
/// clients write during the call stay. The library's own cells stay too. Blocks and fails as described at dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_delete_if(struct dlm_row *row,
                                  const void *column,
                                  size_t column_size,
                                  const void *expected,
                                  size_t expected_size,
                                  bool *deleted_out,
                                  struct dlm_error **error_out);

/// Makes the changes in one atomic step if the columns of `as_read` are unchanged. These are all columns that were passed to
/// dlm_row_get_columns(), even those that did not exist. The changes may be in these columns or in others. `change_size` is
/// sizeof(struct dlm_change).
/// A column that was changed and changed back counts as unchanged.
///
/// `*committed_out` is false if a column was changed. Then nothing is written: read the columns again and compute the
/// changes again. Limit the number of tries, and wait for a random time between them. `*committed_out` is also true
/// if there is nothing to do because the changes only delete columns that do not exist.
///
/// Blocks and fails as described at dlm_row. DLM_INVALID_ARGUMENT also if `as_read` is from another row, or from
/// dlm_row_get(), which does not say which columns the changes depend on.
DLM_NODISCARD
enum dlm_status dlm_row_commit_if_unchanged(struct dlm_row *row,
                                            const struct dlm_row_cells *as_read,
                                            const struct dlm_change *changes,
                                            size_t count,
                                            size_t change_size,
                                            bool *committed_out,
                                            struct dlm_error **error_out);

/// Writes the lease's fence into a row from dlm_lease_row() and changes nothing else. From then on, HBase refuses
/// changes by earlier holders. Every change of such a row also raises the fence. Call this function if the first
/// change comes late. Blocks and fails as described at dlm_row. DLM_INVALID_ARGUMENT also for other rows. After
/// DLM_IN_DOUBT it is safe to call again.
DLM_NODISCARD
enum dlm_status dlm_row_raise_fence(struct dlm_row *row,
                                    struct dlm_error **error_out);

/// Reads the fence of the row, the highest so far. `*fence_out` is 0 if the row has none. `names_out` may be NULL. On
/// DLM_OK the caller owns `*names_out`. It has the stored name of the fence's lock, or no name if there is no fence.
/// The table needs its option family. Blocks and fails as described at dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_fence(const struct dlm_row *row,
                              uint64_t *fence_out,
                              struct dlm_texts **names_out,
                              struct dlm_error **error_out);

/// Frees the handle of a row. The row in HBase is unchanged. NULL is allowed. Calls in progress continue.
void dlm_row_free(struct dlm_row *row);

/// Returns the number of cells that were read: 0 if the row does not exist, or has none of the requested columns. 0
/// for NULL. Never blocks.
size_t dlm_row_cells_count(const struct dlm_row_cells *cells);

/// Writes the cell at `index`, from 0, to `*cell_out`. `cell_size` is sizeof(struct dlm_row_cell). Cells are in the order of their columns. Returns false after
/// the last cell and for NULL: all fields are then NULL or 0. Never blocks.
bool dlm_row_cells_at(const struct dlm_row_cells *cells,
                      size_t index,
                      struct dlm_row_cell *cell_out,
                      size_t cell_size);

/// Writes the cell of a column, named family:qualifier, to `*cell_out`, which may be NULL. Returns false if there is
/// no such cell, if it was not requested, and for NULL: all fields are then NULL or 0. Never blocks.
bool dlm_row_cells_find(const struct dlm_row_cells *cells,
                        const void *column,
                        size_t column_size,
                        struct dlm_row_cell *cell_out,
                        size_t cell_size);

/// Writes the value of a counter's cell to `*number_out`. Returns false and writes 0 if there is no such cell, if it
/// is not 8 bytes long, and for NULL. Never blocks.
bool dlm_row_cells_counter(const struct dlm_row_cells *cells,
                           const void *column,
                           size_t column_size,
                           int64_t *number_out);

/// Frees cells. NULL is allowed. Never blocks.
void dlm_row_cells_free(struct dlm_row_cells *cells);

#ifdef __cplusplus
}
#endif

#endif

// dlm_rows.hpp: rows of an application's own tables in HBase, for C++17. dlm_rows.h describes each function in full. The rules of
// dlm.hpp apply.
#ifndef DLM_ROWS_HPP
#define DLM_ROWS_HPP

#include <dlm.hpp>
#include <dlm_rows.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace dlm {

// Cells to write in one atomic step. A column is family:qualifier. Values are any bytes. Both are copied.
//
//   row.create(dlm::Cells().put("d:id", "42").put("d:state", "new"))
class Cells {
  public:
    // An empty value is a value: the cell exists.
    Cells &put(std::string_view column, std::string_view value) & {
        cells_.push_back({std::string(column), std::string(value), DLM_FOREVER});
        return *this;
    }
    Cells &&put(std::string_view column, std::string_view value) && { return std::move(put(column, value)); }
    // A cell that the server drops after this time, which must not be shorter than the remaining time of an older
    // version.
    Cells &put_for(std::string_view column, std::string_view value, Ttl ttl) & {
        cells_.push_back({std::string(column), std::string(value), ttl.ms()});
        return *this;
    }
    Cells &&put_for(std::string_view column, std::string_view value, Ttl ttl) && {
        return std::move(put_for(column, value, ttl));
    }

  private:
    friend class Row;
    struct New {
        std::string column, value;
        std::int64_t ttl_ms;
    };
    std::vector<dlm_cell> lent() const {
        std::vector<dlm_cell> cells;
        for (const New &cell : cells_)
            cells.push_back({cell.column.data(), cell.column.size(), cell.value.data(), cell.value.size(), cell.ttl_ms});
        return cells;
    }

    std::vector<New> cells_;
};

// Changes of a row that Row::modify() makes in one atomic step. Each column may occur once.
class Changes {
  public:
    // Like Cells::put() and Cells::put_for().
    Changes &put(std::string_view column, std::string_view value) & {
        return add(DLM_CHANGE_PUT, column, value, DLM_FOREVER, 0);
    }
    Changes &&put(std::string_view column, std::string_view value) && { return std::move(put(column, value)); }
    Changes &put_for(std::string_view column, std::string_view value, Ttl ttl) & {
        return add(DLM_CHANGE_PUT, column, value, ttl.ms(), 0);
    }
    Changes &&put_for(std::string_view column, std::string_view value, Ttl ttl) && {
        return std::move(put_for(column, value, ttl));
    }
    // Adds to an 8-byte counter.
    Changes &add(std::string_view column, std::int64_t by) & { return add(DLM_CHANGE_ADD, column, {}, 0, by); }
    Changes &&add(std::string_view column, std::int64_t by) && { return std::move(add(column, by)); }
    // Deletes a column. It must be one of those that were read. If it did not exist, nothing is deleted.
    Changes &erase(std::string_view column) & { return add(DLM_CHANGE_DELETE, column, {}, 0, 0); }
    Changes &&erase(std::string_view column) && { return std::move(erase(column)); }

  private:
    friend class Row;
    struct New {
        std::int32_t kind;
        std::string column, value;
        std::int64_t ttl_ms, by;
    };
    Changes &add(std::int32_t kind, std::string_view column, std::string_view value, std::int64_t ttl_ms,
                 std::int64_t by) {
        changes_.push_back({kind, std::string(column), std::string(value), ttl_ms, by});
        return *this;
    }
    std::vector<dlm_change> lent() const {
        std::vector<dlm_change> changes;
        for (const New &of : changes_) {
            const char *value = of.kind == DLM_CHANGE_PUT ? of.value.data() : nullptr;
            changes.push_back(
                {of.kind, of.column.data(), of.column.size(), value, of.value.size(), of.ttl_ms, of.by});
        }
        return changes;
    }

    std::vector<New> changes_;
};

// A cell that was read. The views are valid until the RowCells is destroyed.
struct RowCell {
    std::string_view column, value;
    // Timestamp of the cell, by the server's clock.
    std::chrono::system_clock::time_point written;
};

// Cells that were read from a row, all at the same moment. The views that it returns are valid until it is destroyed.
class RowCells {
  public:
    explicit RowCells(dlm_row_cells *handle) noexcept : handle_(handle) {}

    // Number of cells that were read. 0 if the row does not exist, or has none of the requested columns.
    std::size_t size() const noexcept { return dlm_row_cells_count(get()); }
    bool empty() const noexcept { return size() == 0; }
    // The value of a cell. std::nullopt if there is no such cell. A cell with an empty value gives an empty view.
    std::optional<std::string_view> value(std::string_view column) const & {
        dlm_row_cell cell;
        if (!dlm_row_cells_find(get(), detail::bytes(column), column.size(), &cell, sizeof cell))
            return std::nullopt;
        return detail::view(cell.value, cell.value_size);
    }
    std::optional<std::string_view> value(std::string_view column) const && = delete;
    // The value of a counter. std::nullopt if there is no such cell, or it is not 8 bytes long.
    std::optional<std::int64_t> counter(std::string_view column) const {
        std::int64_t number = 0;
        if (!dlm_row_cells_counter(get(), detail::bytes(column), column.size(), &number))
            return std::nullopt;
        return number;
    }
    // The cell at `index`, from 0, in the order of the columns. After the last cell, all fields are empty.
    RowCell at(std::size_t index) const & {
        dlm_row_cell cell;
        (void)dlm_row_cells_at(get(), index, &cell, sizeof cell);
        const std::chrono::milliseconds written(static_cast<std::int64_t>(cell.written_ms));
        return {detail::view(cell.column, cell.column_size), detail::view(cell.value, cell.value_size),
                std::chrono::system_clock::time_point(written)};
    }
    RowCell at(std::size_t index) const && = delete;
    dlm_row_cells *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_row_cells, dlm_row_cells_free> handle_;
};

// Results of Row::create() and Row::update().
enum class [[nodiscard]] Creation { created, already_exists };
enum class [[nodiscard]] Update { updated, not_found };

// Result of Row::modify().
struct [[nodiscard]] Modified {
    // Whether the row now has the changes. False if the function returned no changes.
    bool changed;
    // Number of times that the row was read and the function called.
    std::int64_t attempts;
};

// The fence in a row, and the stored name of its lock.
struct StoredFence {
    std::uint64_t fence;
    std::string lock;
};

// One row: its key, and how its changes are made. See dlm_row in dlm_rows.h. Changes throw StaleFence after a later holder
// of the lock has changed the row through its own fenced row, or raised its fence.
class Row {
  public:
    // The same row, with changes that are made exactly once, even if a reply is lost. See dlm_row_exactly_once().
    [[nodiscard]] Row exactly_once() const {
        detail::ErrorOut error;
        dlm_row *row = nullptr;
        error.check(dlm_row_exactly_once(get(), &row, error));
        return Row(row, attempts_, timeout_);
    }
    // Reads the whole row.
    RowCells read() const {
        detail::ErrorOut error;
        dlm_row_cells *cells = nullptr;
        error.check(dlm_row_get(get(), &cells, error));
        return RowCells(cells);
    }
    // Reads these columns, one or more.
    RowCells read(const std::vector<std::string_view> &columns) const {
        detail::ErrorOut error;
        std::vector<dlm_bytes> lent;
        for (const std::string_view column : columns)
            lent.push_back({detail::bytes(column), column.size()});
        lent.push_back({}); // an empty vector may have no array
        dlm_row_cells *cells = nullptr;
        error.check(dlm_row_get_columns(get(), lent.data(), columns.size(), &cells, error));
        return RowCells(cells);
    }
    // Creates the row unless it exists. If several clients call this at once, one of them gets Creation::created.
    Creation create(const Cells &cells) const {
        return written(dlm_row_create, cells) ? Creation::created : Creation::already_exists;
    }
    // Writes the cells if the row exists.
    Update update(const Cells &cells) const {
        return written(dlm_row_update, cells) ? Update::updated : Update::not_found;
    }
    // Writes the cells, whether the row exists or not.
    void put(const Cells &cells) const {
        detail::ErrorOut error;
        const auto lent = cells.lent();
        error.check(dlm_row_put(get(), lent.data(), lent.size(), sizeof(dlm_cell), error));
    }
    // Writes `value` into a column if it holds `expected`. Returns true if it did. std::nullopt means that there is
    // no cell, which differs from an empty value.
    [[nodiscard]] bool compare_and_set(std::string_view column, std::optional<std::string_view> expected,
                                       std::optional<std::string_view> value) const {
        detail::ErrorOut error;
        bool set = false;
        error.check(dlm_row_compare_and_set(get(), detail::bytes(column), column.size(),
                                            expected ? detail::bytes(*expected) : nullptr, expected ? expected->size() : 0,
                                            value ? detail::bytes(*value) : nullptr, value ? value->size() : 0, &set,
                                            error));
        return set;
    }
    // Adds to an 8-byte counter, which starts at 0, and returns the sum. Empty only for a row from exactly_once():
    // the number was added once, but the reply with the sum was lost.
    std::optional<std::int64_t> increment(std::string_view column, std::int64_t by) const {
        detail::ErrorOut error;
        std::int64_t sum = 0;
        bool known = false;
        error.check(dlm_row_increment(get(), detail::bytes(column), column.size(), by, &sum, &known, error));
        return known ? std::optional(sum) : std::nullopt;
    }
    // Deletes the cells of the row if `column` holds `expected`. Returns true if it did. See dlm_row_delete_if().
    [[nodiscard]] bool delete_if(std::string_view column, std::string_view expected) const {
        detail::ErrorOut error;
        bool deleted = false;
        error.check(dlm_row_delete_if(get(), detail::bytes(column), column.size(), detail::bytes(expected),
                                      expected.size(), &deleted, error));
        return deleted;
    }
    // Makes the changes if the columns of `as_read` are unchanged. Returns true if it did.
    [[nodiscard]] bool commit_if_unchanged(const RowCells &as_read, const Changes &changes) const {
        detail::ErrorOut error;
        bool committed = false;
        const auto lent = changes.lent();
        error.check(dlm_row_commit_if_unchanged(get(), as_read.get(), lent.data(), lent.size(), sizeof(dlm_change),
                                                &committed, error));
        return committed;
    }
    // Reads these columns, calls `change` to compute the changes, and makes them if none of the columns has changed
    // since. Otherwise tries again after a random pause, up to the limits of the table's options attempts and
    // timeout. `change` takes a const RowCells & and returns a std::optional<Changes>. If that is empty, the row
    // stays unchanged. `change` is called for each try and must have no side effects. Throws with
    // DLM_RETRIES_EXHAUSTED if other clients changed the columns at each try.
    template <typename Change>
    Modified modify(const std::vector<std::string_view> &columns, Change &&change) const {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point end = Clock::now() + timeout_;
        std::chrono::microseconds pause(1000);
        for (std::int64_t attempt = 1;; attempt++) {
            const RowCells cells = read(columns);
            const std::optional<Changes> changes = change(cells);
            if (!changes)
                return {false, attempt};
            if (commit_if_unchanged(cells, *changes))
                return {true, attempt};
            if (attempt >= attempts_ || Clock::now() + pause >= end)
                throw Error(DLM_RETRIES_EXHAUSTED,
                            "others changed the row at each of " + std::to_string(attempt) + " tries", true);
            thread_local std::minstd_rand random{std::random_device{}()};
            std::this_thread::sleep_for(
                std::chrono::microseconds(std::uniform_int_distribution<std::int64_t>(0, pause.count())(random)));
            pause = std::min(pause * 2, std::chrono::microseconds(64000));
        }
    }
    // Writes the lease's fence and changes nothing else. Throws with DLM_INVALID_ARGUMENT for a row that is not from
    // Lease::row().
    void raise_fence() const {
        detail::ErrorOut error;
        error.check(dlm_row_raise_fence(get(), error));
    }
    // The fence of the row, the highest so far. Empty if there is none.
    std::optional<StoredFence> fence() const {
        detail::ErrorOut error;
        std::uint64_t fence = 0;
        dlm_texts *names = nullptr;
        error.check(dlm_row_fence(get(), &fence, &names, error));
        const detail::Owner<dlm_texts, dlm_texts_free> owner(names);
        if (dlm_texts_count(names) == 0)
            return std::nullopt;
        return StoredFence{fence, dlm_texts_at(names, 0)};
    }
    dlm_row *get() const noexcept { return handle_.get(); }

  private:
    friend class Table;
    friend class Lease;
    Row(dlm_row *handle, std::int64_t attempts, std::chrono::milliseconds timeout) noexcept
        : handle_(handle), attempts_(attempts), timeout_(timeout) {}

    template <typename Call> bool written(Call call, const Cells &cells) const {
        detail::ErrorOut error;
        bool done = false;
        const auto lent = cells.lent();
        error.check(call(get(), lent.data(), lent.size(), sizeof(dlm_cell), &done, error));
        return done;
    }

    detail::Owner<dlm_row, dlm_row_free> handle_;
    std::int64_t attempts_;
    std::chrono::milliseconds timeout_;
};

// A column family of a table to create.
struct Family {
    std::string name;
    // Number of versions that HBase keeps of each cell.
    std::uint32_t versions = 1;
};

// An application's own table in HBase. Rows may outlive it.
class Table {
  public:
    // Opens the table. See dlm_table_open() for the options.
    explicit Table(const std::string &uri) : handle_(opened(uri)) {}

    // Creates the table unless it exists, split at these keys.
    void create_if_missing(const std::vector<Family> &families, const std::vector<std::string_view> &splits = {}) const {
        detail::ErrorOut error;
        std::vector<dlm_family> lent;
        for (const Family &family : families)
            lent.push_back({detail::text(family.name), family.versions});
        lent.push_back({});
        std::vector<dlm_bytes> keys;
        for (const std::string_view key : splits)
            keys.push_back({detail::bytes(key), key.size()});
        error.check(dlm_table_create_if_missing(get(), lent.data(), families.size(), sizeof(dlm_family), keys.data(),
                                                keys.size(), error));
    }
    // The row with this key. Does no I/O.
    [[nodiscard]] Row row(std::string_view key) const {
        detail::ErrorOut error;
        dlm_row *row = nullptr;
        error.check(dlm_table_row(get(), detail::bytes(key), key.size(), &row, error));
        return with_settings(row);
    }
    dlm_table *get() const noexcept { return handle_.get(); }

  private:
    friend class Lease;
    static dlm_table *opened(const std::string &uri) {
        detail::ErrorOut error;
        error.check(dlm_abi_check(DLM_ABI, error));
        detail::ErrorOut failed;
        dlm_table *table = nullptr;
        failed.check(dlm_table_open(detail::text(uri), &table, failed));
        return table;
    }
    Row with_settings(dlm_row *handle) const {
        detail::Owner<dlm_row, dlm_row_free> row(handle);
        const std::int64_t attempts = setting("attempts"), timeout = setting("timeout");
        return Row(row.release(), attempts, std::chrono::milliseconds(timeout));
    }
    std::int64_t setting(const char *key) const {
        detail::ErrorOut error;
        std::int64_t number = 0;
        error.check(dlm_table_setting(get(), key, &number, error));
        return number;
    }

    detail::Owner<dlm_table, dlm_table_free> handle_;
};

inline Row Lease::row(const Table &table, std::string_view key) const {
    detail::ErrorOut error;
    dlm_row *row = nullptr;
    error.check(dlm_lease_row(get(), table.get(), detail::bytes(key), key.size(), &row, error));
    return table.with_settings(row);
}

} // namespace dlm

#endif

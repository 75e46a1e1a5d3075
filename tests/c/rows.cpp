// Rows through dlm.hpp, on the given HBase: ./rows STORE TABLE_URI. The table must not exist: the program creates it.
#include <dlm_rows.hpp>

#include <cstdlib>
#include <iostream>
#include <thread>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            std::cerr << __FILE__ << ':' << __LINE__ << ": check failed: " << #what << '\n';                           \
            std::abort();                                                                                              \
        }                                                                                                              \
    } while (0)

using dlm::Cells;
using dlm::Changes;
using dlm::Creation;
using dlm::RowCells;
using dlm::Update;
using namespace std::chrono_literals;

static_assert(std::is_nothrow_move_constructible_v<dlm::Row> && !std::is_copy_constructible_v<dlm::Row>);
static_assert(std::is_nothrow_move_constructible_v<dlm::Table> && !std::is_copy_constructible_v<RowCells>);

template <typename Call> static dlm_status status_of(Call call) {
    try {
        call();
    } catch (const dlm::Error &error) {
        return error.status();
    }
    return DLM_OK;
}

static void each_way(const dlm::Row &row, const dlm::Row &same) {
    CHECK(row.update(Cells().put("d:id", "1")) == Update::not_found);
    CHECK(row.read().empty());
    const auto before = std::chrono::system_clock::now();
    CHECK(row.create(Cells().put("d:id", "1").put(std::string_view("e:\0", 3), "")) == Creation::created);
    CHECK(row.create(Cells().put("d:id", "2")) == Creation::already_exists);
    CHECK(row.update(Cells().put("d:id", "3")) == Update::updated);
    Cells more;
    more.put("d:x", "x").put_for("d:short", "s", dlm::Ttl(1h));
    row.put(more);
    {
        const RowCells cells = row.read();
        CHECK(cells.size() == 4 && cells.value("d:id") == "3" && cells.value(std::string_view("e:\0", 3)) == "");
        CHECK(!cells.value("d:none") && !cells.value("") && !cells.counter("d:id"));
        CHECK(cells.at(0).column == "d:id" && cells.at(0).value == "3" && cells.at(4).column.empty());
        CHECK(cells.at(0).written > before - 24h && cells.at(0).written < before + 24h);
    }
    CHECK(row.read({"d:x", "d:short"}).size() == 2);

    // No value, and empty views with and without an address.
    CHECK(!row.compare_and_set("d:empty", "", "x") && !row.compare_and_set("d:empty", std::string_view(), "x"));
    CHECK(row.compare_and_set("d:empty", std::nullopt, std::string_view()));
    CHECK(!row.compare_and_set("d:empty", std::nullopt, "x"));
    CHECK(row.compare_and_set("d:empty", std::string_view(), "x"));
    CHECK(row.compare_and_set("d:empty", "x", std::nullopt) && !row.read({"d:empty"}).counter("d:empty"));

    CHECK(row.increment("d:n", 40) == 40 && row.increment("d:n", 2) == 42);
    CHECK(row.read().counter("d:n") == 42);

    int calls = 0;
    const auto modified = row.modify({"d:x", "d:none"}, [&](const RowCells &cells) -> std::optional<Changes> {
        if (++calls == 1)
            same.put(Cells().put("d:none", ""));
        else
            CHECK(cells.value("d:none") == "");
        return Changes().put("d:x", std::string(*cells.value("d:x")) + "y").add("d:n", 8).erase("d:none");
    });
    CHECK(modified.changed && modified.attempts == 2 && calls == 2);
    const RowCells now = row.read();
    CHECK(now.value("d:x") == "xy" && now.counter("d:n") == 50 && !now.value("d:none"));
    const auto left = row.modify({"d:x"}, [](const RowCells &) { return std::optional<Changes>(); });
    CHECK(!left.changed && left.attempts == 1);
    CHECK(status_of([&] { (void)row.commit_if_unchanged(now, Changes().put("d:x", "z")); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { (void)row.read(std::vector<std::string_view>()); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { row.put(Cells()); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { row.put(Cells().put_for("d:x", "1", dlm::use_default)); }) == DLM_INVALID_ARGUMENT);

    CHECK(!row.delete_if("d:id", "1") && row.delete_if("d:id", "3") && row.read().empty());
}

// Every try of modify() finds that the row has changed.
static void never_wins(const std::string &uri) {
    const dlm::Table table(uri + "&attempts=3");
    const dlm::Row row = table.row("loser");
    int calls = 0;
    try {
        (void)row.modify({"d:a"}, [&](const RowCells &) {
            row.put(Cells().put("d:a", std::to_string(++calls)));
            return std::optional(Changes().put("d:b", "never"));
        });
        CHECK(false);
    } catch (const dlm::Error &error) {
        CHECK(error.status() == DLM_RETRIES_EXHAUSTED && error.retryable() && calls == 3);
        CHECK(std::string(error.what()).find("3 tries") != std::string::npos);
    }
    CHECK(!row.read({"d:b"}).counter("d:b"));
}

static void many_modify(const dlm::Table &table) {
    const dlm::Row row = table.row("shared");
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (int turn = 0; turn < 10; turn++)
                CHECK(row.modify({"d:text"}, [](const RowCells &cells) {
                             const auto text = cells.value("d:text");
                             const int number = text ? std::stoi(std::string(*text)) : 0;
                             return std::optional(Changes().put("d:text", std::to_string(number + 1)));
                         }).changed);
        });
    for (std::thread &thread : threads)
        thread.join();
    const RowCells cells = row.read();
    CHECK(cells.value("d:text") == "40");
}

static void fenced(const dlm::Manager &manager, const dlm::Table &table) {
    const dlm::Lock lock = manager.lock("guard", dlm::Level::xdc);
    dlm::Lease first = lock.acquire().lease();
    const dlm::Row early = first.row(table, "guarded");
    CHECK(!early.fence());
    early.put(Cells().put("d:a", "first"));
    CHECK(early.fence()->fence == first.fence() && early.fence()->lock.find("guard") != std::string::npos);
    first.release();
    const dlm::Lease second = lock.acquire().lease();
    const dlm::Row late = second.row(table, "guarded");
    late.raise_fence();
    try {
        early.put(Cells().put("d:a", "late"));
        CHECK(false);
    } catch (const dlm::StaleFence &error) {
        CHECK(error.status() == DLM_STALE_FENCE && !error.retryable());
        CHECK(error.fence() == first.fence() && error.stored() == second.fence());
    }
    const RowCells cells = late.read();
    CHECK(cells.size() == 1 && cells.value("d:a") == "first");
    each_way(second.row(table, "fenced"), table.row("fenced"));
    second.release();
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    {
        const dlm::Manager manager(argv[1], {{"client", "rows"}, {"ttl", "10m"}, {"timeout", "60s"}});
        const dlm::Table table(argv[2]);
        table.create_if_missing({{"d"}, {"e", 2}}, {"m"});
        table.create_if_missing({{"d"}});
        CHECK(status_of([&] { table.create_if_missing({}); }) == DLM_INVALID_ARGUMENT);
        CHECK(status_of([&] { (void)table.row(""); }) == DLM_INVALID_ARGUMENT);
        CHECK(status_of([] { dlm::Table("hbase://127.0.0.1:1/t?client=c"); }) == DLM_INVALID_ARGUMENT);
        each_way(table.row("plain"), table.row("plain"));
        each_way(table.row("once").exactly_once(), table.row("once"));
        never_wins(argv[2]);
        many_modify(table);
        fenced(manager, table);
    }
    CHECK(dlm_handles_open() == 0);
}

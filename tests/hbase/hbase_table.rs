//! Rows of an application's table in a real HBase: what each call does and returns.
#![cfg(all(feature = "hbase", feature = "embedded"))]

use std::thread;
use std::time::Duration;

use dlm::hbase::{Cells, Changes, Column, Creation, Row, Select, Table, Update};
use dlm::store::{TABLE_OPTIONS, schemes};
use dlm::{Code, Fence, Level, Lock, LockManager, Mode, Moment};
#[cfg(feature = "gateway")]
use dlm_testkit::eventually;
use dlm_testkit::{LONG, until};

use super::rows;

/// A TTL that is longer than any test takes.
const TTL: Duration = Duration::from_secs(1800);

fn cells(text: &[(&str, &str)]) -> Cells {
    text.iter().fold(Cells::new(), |cells, (column, value)| cells.put(*column, *value))
}

fn text(row: &Row, column: &str) -> Option<String> {
    let found = row.get().unwrap()?;
    found.value(column).map(|value| String::from_utf8(value.to_vec()).unwrap())
}

#[track_caller]
fn code<T: std::fmt::Debug>(answer: dlm::Result<T>) -> Code {
    answer.expect_err("this must fail").code()
}

/// Calls `body` with a new row for each way of changes: plain, exactly-once, fenced, and both.
fn each_way(test: &str, body: impl Fn(&Row)) {
    let Some(table) = rows::table(test, "") else { return };
    let (_place, lock) = locks();
    let lease = lock.acquire_with_ttl(TTL).unwrap();
    let plain = |key: &str| table.row(key);
    let fenced = |key: &str| lease.row(&table, key).unwrap();
    body(&plain("plain"));
    body(&plain("once").exactly_once());
    body(&fenced("fenced"));
    body(&fenced("both").exactly_once());
    // Other cells in the row do not affect the answers.
    for (key, row) in [("plain2", plain("plain2")), ("once2", plain("once2").exactly_once())] {
        table.row(key).put(&cells(&[("e:other", "")])).unwrap();
        body(&row);
        assert_eq!(text(&table.row(key), "e:other").as_deref(), Some(""));
    }
    table.row("fenced2").put(&cells(&[("e:other", "")])).unwrap();
    body(&fenced("fenced2"));
}

/// Returns a lock in a new store, and the directory of the store.
fn locks() -> (tempfile::TempDir, Lock) {
    let place = tempfile::tempdir().unwrap();
    let manager = LockManager::builder()
        .store_uri(&format!("embedded:{}", place.path().display()))
        .client("rows")
        .retry(Duration::from_millis(10))
        .timeout(LONG)
        .ttl(TTL)
        .open()
        .unwrap();
    (place, manager.lock("guard", Level::Xdc).unwrap())
}

#[test]
fn a_row_is_created_once_and_updated_only_where_it_is() {
    each_way("create", |row| {
        assert_eq!(row.update(&cells(&[("d:id", "1")])).unwrap(), Update::NotFound);
        assert_eq!(text(row, "d:id"), None);
        assert_eq!(row.create(&cells(&[("d:id", "1"), ("e:x", "first")])).unwrap(), Creation::Created);
        assert_eq!(row.create(&cells(&[("d:id", "2"), ("e:x", "second")])).unwrap(), Creation::AlreadyExists);
        assert_eq!(text(row, "e:x").as_deref(), Some("first"));
        assert_eq!(row.update(&cells(&[("d:id", "3"), ("d:y", "new")])).unwrap(), Update::Updated);
        assert_eq!(text(row, "d:id").as_deref(), Some("3"));
        row.put(&cells(&[("d:y", "newer")])).unwrap();
        assert_eq!(text(row, "d:y").as_deref(), Some("newer"));
    });
}

#[test]
fn an_empty_cell_and_no_cell_are_told_apart() {
    each_way("empty", |row| {
        assert!(!row.compare_and_set("d:a", Some(b""), Some(b"x")).unwrap(), "absent was read as empty");
        assert!(row.compare_and_set("d:a", None, Some(b"")).unwrap());
        assert!(!row.compare_and_set("d:a", None, Some(b"x")).unwrap(), "empty was read as absent");
        assert_eq!(text(row, "d:a").as_deref(), Some(""));
        assert!(row.compare_and_set("d:a", Some(b""), Some(b"1")).unwrap());
        assert!(!row.compare_and_set("d:a", Some(b""), Some(b"2")).unwrap());
        assert!(!row.compare_and_set("d:a", Some(b"2"), Some(b"3")).unwrap());
        assert!(row.compare_and_set("d:a", Some(b"1"), Some(b"3")).unwrap());
        assert!(row.compare_and_set("d:a", Some(b"3"), None).unwrap());
        assert_eq!(text(row, "d:a"), None);
        assert!(row.compare_and_set("d:a", None, Some(b"4")).unwrap());
        assert_eq!(text(row, "d:a").as_deref(), Some("4"));
    });
}

#[test]
fn counters_add_wrap_around_and_refuse_what_is_no_counter() {
    each_way("increment", |row| {
        assert_eq!(row.increment("d:n", 5).unwrap(), Some(5));
        assert_eq!(row.increment("d:n", -7).unwrap(), Some(-2));
        assert_eq!(row.increment("d:n", 0).unwrap(), Some(-2));
        // Not with `put`: after several additions in a millisecond, the cell's timestamp is ahead of the clock.
        let (before, most) = ((-2i64).to_be_bytes(), i64::MAX.to_be_bytes());
        assert!(row.compare_and_set("d:n", Some(&before), Some(&most)).unwrap());
        assert_eq!(row.increment("d:n", 1).unwrap(), Some(i64::MIN));
        assert_eq!(row.get().unwrap().unwrap().counter("d:n"), Some(i64::MIN));
        row.put(&cells(&[("d:text", "abc")])).unwrap();
        assert_eq!(code(row.increment("d:text", 1)), Code::InvalidArgument);
        assert_eq!(text(row, "d:text").as_deref(), Some("abc"));
    });
}

#[test]
fn a_row_is_modified_on_what_was_read() {
    each_way("modify", |row| {
        let both = ["d:a", "e:b"];
        let modified = row.modify(&both, |found| {
            assert!(found.is_empty());
            Some(Changes::new().put("d:a", "1").put("e:b", "").add("d:n", 3))
        });
        let modified = modified.unwrap();
        assert!(modified.changed && modified.attempts == 1);
        // Another client changes a column that was read, once.
        let mut calls = 0;
        let modified = row.modify(&both, |found| {
            calls += 1;
            if calls == 1 {
                assert_eq!((found.value("d:a"), found.value("e:b")), (Some(&b"1"[..]), Some(&b""[..])));
                row.table().row(row.key()).put(&cells(&[("e:b", "2")])).unwrap();
            } else {
                assert_eq!(found.value("e:b"), Some(&b"2"[..]));
                // Without the library's own columns, as in the first try.
                let columns: Vec<_> = found.iter().map(|(column, _)| column.to_string()).collect();
                assert_eq!(columns, both);
            }
            Some(Changes::new().put("d:c", "3").delete("d:a"))
        });
        let modified = modified.unwrap();
        assert!(modified.changed && modified.attempts == 2 && calls == 2);
        assert_eq!((text(row, "d:a"), text(row, "d:c").as_deref()), (None, Some("3")));
        // A column that was absent when it was read exists now.
        let mut calls = 0;
        let modified = row.modify(&["d:a"], |found| {
            calls += 1;
            if calls == 1 {
                row.table().row(row.key()).put(&cells(&[("d:a", "")])).unwrap();
                return Some(Changes::new().put("d:z", "never"));
            }
            assert_eq!(found.value("d:a"), Some(&b""[..]));
            None
        });
        assert!(!modified.unwrap().changed && calls == 2);
        assert_eq!(text(row, "d:z"), None);
        assert_eq!(row.get().unwrap().unwrap().counter("d:n"), Some(3));
    });
}

/// The timestamps of a counter run ahead of the server's clock.
#[test]
fn what_is_written_over_a_counter_is_seen_though_it_was_added_to_in_the_same_millisecond() {
    each_way("stamps", |row| {
        let (plain, mut sum) = (row.table().row(row.key()), 0i64);
        let counted = |sum: i64| row.get().unwrap().unwrap().counter("d:n") == Some(sum);
        for round in 0..24i64 {
            for _ in 0..3 {
                plain.increment("d:n", 1).unwrap();
            }
            sum += 3;
            let add = |found: &dlm::hbase::RowCells| {
                let sum = found.counter("d:n").unwrap() + 10;
                Some(Changes::new().put("d:n", sum.to_be_bytes()).put("d:other", round.to_string()))
            };
            // In every other round, the first column by name is not the one with the latest timestamp.
            let columns: &[&str] = if round % 2 == 0 { &["d:n"] } else { &["d:a", "d:n"] };
            plain.put(&cells(&[("d:a", "")])).unwrap();
            assert!(row.modify(columns, add).unwrap().changed);
            sum += 10;
            assert!(counted(sum), "{round}: the written value is hidden");
            plain.increment("d:n", 1).unwrap();
            let (before, after) = ((sum + 1).to_be_bytes(), (sum + 2).to_be_bytes());
            assert!(row.compare_and_set("d:n", Some(&before), Some(&after)).unwrap());
            sum += 2;
            assert!(counted(sum), "{round}: the set value is hidden");
        }
    });
}

#[test]
fn a_modification_that_never_wins_says_how_often_it_tried() {
    let Some(table) = rows::table("attempts", "&attempts=3") else { return };
    let row = table.row("r");
    let mut n = 0u32;
    let error = row.modify(&["d:a"], |_| {
        n += 1;
        row.put(&Cells::new().put("d:a", n.to_string())).unwrap();
        Some(Changes::new().put("d:b", "never"))
    });
    let error = error.unwrap_err();
    assert_eq!(error.code(), Code::RetriesExhausted);
    assert!(error.chain().contains("3 tries") && n == 3, "{}", error.chain());
}

#[test]
fn a_row_is_deleted_if_it_is_as_expected_and_can_be_created_at_once() {
    each_way("delete", |row| {
        for _ in 0..30 {
            assert_eq!(row.create(&cells(&[("d:id", "1"), ("e:x", "")])).unwrap(), Creation::Created);
            assert!(!row.delete_if("d:id", b"2").unwrap());
            assert_eq!(text(row, "d:id").as_deref(), Some("1"));
            assert!(row.delete_if("d:id", b"1").unwrap());
            assert_eq!(row.get().unwrap().map(|found| found.value("d:id").is_some()), None);
            assert!(!row.delete_if("d:id", b"1").unwrap());
            row.table().row(row.key()).put(&cells(&[("e:other", "")])).unwrap();
            assert!(row.compare_and_set("e:other", Some(b""), Some(b"")).unwrap());
        }
    });
}

/// A Delete hides what is put in its millisecond. For clients that race for a row, the row must match the answers.
#[test]
fn of_many_who_create_and_delete_a_row_each_is_told_the_truth() {
    let Some(table) = rows::table("race", "") else { return };
    let turns = |name: &'static str| {
        let row = table.row("r");
        move || {
            let (mut created, mut deleted) = (0, 0);
            for _ in 0..150 {
                if row.create(&cells(&[("d:id", name)])).unwrap() == Creation::Created {
                    created += 1;
                    // Other threads do not delete a row with this name.
                    assert_eq!(text(&row, "d:id").as_deref(), Some(name));
                    deleted += usize::from(row.delete_if("d:id", name.as_bytes()).unwrap());
                }
            }
            (created, deleted)
        }
    };
    thread::scope(|scope| {
        let running: Vec<_> = ["a", "b", "c", "d"].map(|name| scope.spawn(turns(name))).into();
        for of in running {
            let (created, deleted) = of.join().unwrap();
            assert_eq!(created, deleted);
        }
    });
    assert!(table.row("r").get().unwrap().is_none());
}

#[test]
fn cells_live_for_their_ttl_and_versions_are_read_newest_first() {
    let Some(table) = rows::table("ttl", "") else { return };
    let row = table.row("r");
    // Again with a longer TTL if this machine was too slow to see both cells.
    let both_were_seen = [4, 12, 40].map(Duration::from_secs).into_iter().any(|ttl| {
        let asked = Moment::now();
        row.put(&Cells::new().put("d:stays", "1").put_for("d:goes", "2", ttl)).unwrap();
        let is_seen = row.get().unwrap().unwrap().iter().count() == 2;
        assert!(
            is_seen || Moment::now().since(asked) >= ttl,
            "it expired before its TTL of {ttl:?} was over"
        );
        is_seen
    });
    assert!(both_were_seen, "reading takes longer than 40 s");
    until("the cell expires", || text(&row, "d:goes").is_none());
    assert_eq!(text(&row, "d:stays").as_deref(), Some("1"));
    // Family v keeps three versions.
    for value in ["1", "2", "3", "4"] {
        row.put(&cells(&[("v:x", value)])).unwrap();
        thread::sleep(Duration::from_millis(2));
    }
    let found = row.get_only(&Select::all().column("v:x").versions(10)).unwrap().unwrap();
    let values: Vec<_> = found.versions("v:x").map(|version| version.value.to_vec()).collect();
    assert_eq!(values, [b"4", b"3", b"2"]);
    let stamps: Vec<_> = found.versions("v:x").map(|version| version.written_ms).collect();
    assert!(stamps.is_sorted_by(|a, b| a > b), "{stamps:?}");
    assert_eq!(found.iter().count(), 1);
    let family = row.get_only(&Select::all().family("d")).unwrap().unwrap();
    assert_eq!(family.iter().map(|(column, _)| column.to_string()).collect::<Vec<_>>(), ["d:stays"]);
    assert!(row.get_only(&Select::all().column("e:none")).unwrap().is_none());
}

#[test]
fn values_up_to_the_limit_come_back_and_longer_ones_are_refused_before_any_request() {
    let Some(table) = rows::table("large", "") else { return };
    let row = table.row("r");
    let largest = vec![7; table.max_value()];
    row.put(&Cells::new().put("d:a", largest.clone()).put("d:b", largest.clone())).unwrap();
    let found = row.get().unwrap().unwrap();
    assert!(found.value("d:a") == Some(&largest) && found.value("d:b") == Some(&largest));
    let longer = Cells::new().put("d:a", vec![7; table.max_value() + 1]);
    let error = row.put(&longer).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let said = error.to_string();
    assert!(said.contains("4194305 bytes in column d:a") && said.contains("4194304"), "{said}");
    let binary = Column::new("d", [0, 255, b':', 10]);
    row.put(&Cells::new().put(&binary, vec![0, 1, 255])).unwrap();
    assert_eq!(row.get().unwrap().unwrap().value(&binary), Some(&[0, 1, 255][..]));
}

#[test]
fn many_rows_are_answered_in_order_each_with_its_own_outcome() {
    let Some(table) = rows::table("batch", "") else { return };
    let key = |n: usize| format!("{:02x}-{n}", n % 256);
    let all: Vec<_> = (0..1000).map(|n| (key(n), cells(&[("d:id", &n.to_string())]))).collect();
    let odd: Vec<_> = all.iter().skip(1).step_by(2).cloned().collect();
    assert!(table.create_many(&odd).unwrap().into_iter().all(|made| made.unwrap() == Creation::Created));
    let made = table.create_many(&all).unwrap();
    for (n, made) in made.into_iter().enumerate() {
        let expected = if n % 2 == 1 { Creation::AlreadyExists } else { Creation::Created };
        assert_eq!(made.unwrap(), expected, "{n}");
    }
    table.put_many(&odd.iter().map(|(key, _)| (key, cells(&[("e:x", "odd")]))).collect::<Vec<_>>()).unwrap();
    let keys: Vec<_> = all.iter().map(|(key, _)| key).collect();
    let found = table.get_many(&keys, &Select::all()).unwrap();
    for (n, found) in found.into_iter().enumerate() {
        let found = found.unwrap().unwrap();
        assert_eq!(found.value("d:id"), Some(n.to_string().as_bytes()));
        assert_eq!(found.value("e:x").is_some(), n % 2 == 1);
    }
    let none = table.get_many(&["nowhere"], &Select::all()).unwrap().remove(0).unwrap();
    assert!(none.is_none());
    // A row that fails does not stop the others.
    let mixed = [("ok", cells(&[("d:id", "1")])), ("bad", cells(&[("nofamily:id", "1")]))];
    let put = table.put_many(&mixed).unwrap();
    assert!(put[0].is_ok());
    assert_eq!(put[1].as_ref().unwrap_err().code(), Code::TableCreationError);
    assert_eq!(code(table.put_many(&[mixed[0].clone(), mixed[0].clone()])), Code::InvalidArgument);
}

#[test]
fn what_is_not_allowed_is_refused_with_the_value_and_what_is() {
    let table = Table::open("hbase://127.0.0.1:1/t?family=d").unwrap();
    let row = table.row("r");
    let long = "k".repeat(32001);
    let refused = [
        table.row("").put(&cells(&[("d:a", "")])),
        table.row(&long).put(&cells(&[("d:a", "")])),
        row.put(&cells(&[])),
        row.put(&cells(&[("a", "")])),
        row.put(&cells(&[(":a", "")])),
        row.put(&cells(&[("d e:a", "")])),
        row.put(&cells(&[("d:a", "1"), ("d:a", "2")])),
        row.put(&cells(&[("d:_fence", "1")])),
        row.put(&cells(&[("d:_fence_of", "1")])),
        row.put(&cells(&[("d:\0dlm_op_1", "1")])),
        row.put(&Cells::new().put_for("d:a", "", Duration::ZERO)),
        row.create(&cells(&[("d:a", "")])).map(drop),
        row.compare_and_set("a", None, None).map(drop),
        row.increment("a", 1).map(drop),
        row.modify::<&str>(&[], |_| None).map(drop),
        row.get_only(&Select::all().versions(0)).map(drop),
        row.raise_fence(),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(code(refused), Code::InvalidArgument, "{number}");
    }
    for uri in [
        "memory:",
        "hbase://127.0.0.1:1/t?client=a",
        "hbase://127.0.0.1:1/t?fence=row",
        "hbase://127.0.0.1:1/t?max_value=0",
        "hbase://127.0.0.1:1/t?max_value=10000001",
        "hbase://127.0.0.1:1/t?anchor=id",
        "hbase://127.0.0.1:1/t?family=d:x",
        "hbase://127.0.0.1:1/t?fence_ttl=1s&family=d",
        "hbase://127.0.0.1:1/t?fence_column=f",
        "hbase://127.0.0.1:1/t?family=d&fence_column=f&fence_of_column=f",
        "hbase://127.0.0.1:1/t?attempts=0",
        "hbase://127.0.0.1:1/t?timeout=1ms",
    ] {
        assert_eq!(code(Table::open(uri)), Code::InvalidArgument, "{uri}");
    }
    let anchored = Table::open("hbase://127.0.0.1:1/t?anchor=d:id").unwrap().row("r");
    assert_eq!(code(anchored.create(&cells(&[("d:x", "1")]))), Code::InvalidArgument);
    // Options that exist for locks and for tables mean the same for both.
    let hbase = schemes().iter().find(|scheme| scheme.name() == "hbase").unwrap().options();
    for option in TABLE_OPTIONS.iter().flat_map(|(_, known)| *known) {
        assert!(hbase.iter().all(|other| other.key != option.key || other == option), "{}", option.key);
    }
}

#[test]
fn a_table_that_is_missing_or_lacks_the_family_is_told_apart_from_one_that_fails() {
    let Some(table) = rows::table("missing", "") else { return };
    assert_eq!(code(table.row("r").put(&cells(&[("x:a", "1")]))), Code::TableCreationError);
    assert_eq!(code(table.row("r").create(&cells(&[("x:a", "1")]))), Code::TableCreationError);
    let nowhere = Table::open(&rows::uri("dlm_test_no_such_table", "")).unwrap();
    assert_eq!(code(nowhere.row("r").get()), Code::TableCreationError);
    assert_eq!(code(nowhere.row("r").increment("d:n", 1)), Code::TableCreationError);
    let many = nowhere.get_many(&["a", "b"], &Select::all()).unwrap();
    assert!(many.into_iter().all(|row| code(row) == Code::TableCreationError));
}

#[cfg(feature = "gateway")]
#[test]
fn a_table_that_is_disabled_is_told_of_long_before_the_time_is_over() {
    let Some(table) = rows::table("disabled", "&timeout=10m") else { return };
    let name = format!("{table:?}").rsplit('/').next().unwrap().trim_matches(['"', ')']).to_owned();
    table.row("a").put(&cells(&[("d:a", "1")])).unwrap();
    super::raw::Raw::connect(dlm_fixtures::hbase::hbase().thrift, &name).disable_table();
    let began = std::time::Instant::now();
    assert_eq!(code(table.row("a").put(&cells(&[("d:a", "2")]))), Code::TableCreationError);
    let many = table.get_many(&["a", "9"], &Select::all()).unwrap();
    assert!(many.into_iter().all(|row| code(row) == Code::TableCreationError));
    assert!(began.elapsed() < 5 * LONG, "it took until the time-out");
}

#[test]
fn with_an_anchor_rows_are_there_or_not_by_that_column() {
    let Some(table) = rows::table("anchor", "&anchor=d:id") else { return };
    let row = table.row("r");
    row.put(&cells(&[("d:x", "1")])).unwrap();
    assert_eq!(row.update(&cells(&[("d:x", "2")])).unwrap(), Update::NotFound);
    assert_eq!(row.create(&cells(&[("d:x", "3"), ("d:id", "i")])).unwrap(), Creation::Created);
    assert_eq!(row.update(&cells(&[("d:x", "4")])).unwrap(), Update::Updated);
    assert_eq!(text(&row, "d:x").as_deref(), Some("4"));
}

#[test]
fn a_later_holder_shuts_earlier_ones_out_whatever_they_try() {
    let Some(table) = rows::table("stale", "") else { return };
    let (_place, lock) = locks();
    let first = lock.acquire_with_ttl(TTL).unwrap();
    let (early, idle) = (first.row(&table, "r").unwrap(), first.row(&table, "r").unwrap());
    early.put(&cells(&[("d:a", "first")])).unwrap();
    let fence = first.fence().unwrap();
    assert_eq!(early.fence().unwrap(), Some((fence, lock.name().key().to_owned())));
    first.release().unwrap();
    let second = lock.acquire_with_ttl(TTL).unwrap();
    let late = second.row(&table, "r").unwrap();
    // HBase does not know of the successor until it has written the row.
    early.put(&cells(&[("d:a", "again")])).unwrap();
    late.raise_fence().unwrap();
    assert_eq!(text(&late, "d:a").as_deref(), Some("again"));
    let higher = second.fence().unwrap();
    for row in [&early, &idle, &early.exactly_once(), &idle.exactly_once()] {
        let tries: [Box<dyn Fn() -> dlm::Result<()>>; 10] = [
            Box::new(|| row.put(&cells(&[("d:a", "stale")]))),
            Box::new(|| row.create(&cells(&[("d:new", "stale")])).map(drop)),
            Box::new(|| row.update(&cells(&[("d:a", "stale")])).map(drop)),
            Box::new(|| row.compare_and_set("d:a", Some(b"again"), Some(b"stale")).map(drop)),
            Box::new(|| row.compare_and_set("d:new", None, Some(b"stale")).map(drop)),
            Box::new(|| row.compare_and_set("d:a", Some(b"again"), None).map(drop)),
            Box::new(|| row.increment("d:n", 1).map(drop)),
            Box::new(|| row.modify(&["d:a"], |_| Some(Changes::new().put("d:b", "stale"))).map(drop)),
            Box::new(|| row.delete_if("d:a", b"again").map(drop)),
            Box::new(|| row.raise_fence()),
        ];
        for (number, stale) in tries.iter().enumerate() {
            let error = stale().expect_err("a stale fence was accepted");
            assert_eq!(error.code(), Code::StaleFence, "{number}: {}", error.chain());
            assert_eq!(error.stale_fence(), Some((fence, higher)));
            assert!(error.to_string().contains("row \"r\"") && !error.is_retryable());
        }
    }
    let columns: Vec<_> = late.get().unwrap().unwrap().iter().map(|(column, _)| column.to_string()).collect();
    assert_eq!(columns, ["d:a"]);
    late.put(&cells(&[("d:a", "second")])).unwrap();
    assert_eq!(late.increment("d:n", 1).unwrap(), Some(1));
}

#[test]
fn readers_of_one_epoch_read_a_row_and_one_from_before_a_writer_does_not() {
    let Some(table) = rows::table("readers", "") else { return };
    let (_place, lock) = locks();
    let row = table.row("r");
    let [one, other] = [(); 2].map(|()| lock.shared().acquire_with_ttl(TTL).unwrap());
    assert_eq!(row.get_in(&one).unwrap(), None, "there is no such row");
    row.put(&cells(&[("d:a", "plain")])).unwrap();
    assert!(row.get_in(&one).unwrap().is_some(), "no fence in the row");
    one.release().unwrap();
    let early = lock.shared().acquire_with_ttl(Duration::from_millis(50)).unwrap();
    assert_eq!(early.epoch(), other.epoch());
    other.release().unwrap();
    let writer = lock.acquire_with_ttl(TTL).unwrap();
    assert_eq!(code(row.get_in(&early)), Code::LeaseLost, "it is over, and nobody wrote");
    writer.row(&table, "r").unwrap().put(&cells(&[("d:a", "fenced")])).unwrap();
    assert!(row.get_in(&writer).unwrap().is_some(), "its own fence");
    let error = row.get_in(&early).unwrap_err();
    assert_eq!(error.code(), Code::StaleFence, "{}", error.chain());
    assert!(error.to_string().contains("row \"r\"") && error.to_string().contains("epoch"), "{error}");
    let reader = writer.downgrade(Mode::Shared).unwrap();
    let read = row.get_in(&reader).unwrap().unwrap();
    assert_eq!(read.value("d:a"), Some(&b"fenced"[..]));
    assert!(read.iter().all(|(column, _)| column.to_string() == "d:a"), "the fence is the library's");
    // A reader writes nothing with its epoch.
    assert_eq!(code(reader.row(&table, "r")), Code::InvalidArgument);
}

#[test]
fn fences_of_two_locks_are_not_compared() {
    let Some(table) = rows::table("two_locks", "") else { return };
    let (_place, one) = locks();
    let (_other, two) = {
        let (place, _) = locks();
        let uri = format!("embedded:{}", place.path().display());
        let manager = LockManager::builder().store_uri(&uri).client("rows").timeout(LONG).ttl(TTL).open();
        (place, manager.unwrap().lock("another", Level::Xdc).unwrap())
    };
    let (a, b) = (one.acquire().unwrap(), two.acquire().unwrap());
    a.row(&table, "r").unwrap().put(&cells(&[("d:a", "1")])).unwrap();
    for row in [b.row(&table, "r").unwrap(), b.row(&table, "r").unwrap().exactly_once()] {
        let error = row.put(&cells(&[("d:a", "2")])).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains(one.name().key()), "{error}");
        assert_eq!(code(row.raise_fence()), Code::InvalidArgument);
        assert_eq!(code(row.get_in(&b)), Code::InvalidArgument);
    }
    let other = Table::open(&rows::uri("dlm_test_rows", "?family=d&fence_column=f2&fence_of_column=f2_of"));
    b.row(&other.unwrap(), "r2_of_two").unwrap().put(&cells(&[("d:a", "2")])).unwrap();
}

#[test]
fn a_lease_without_a_fence_and_a_table_without_a_family_are_refused() {
    let without = Table::open("hbase://127.0.0.1:1/t").unwrap();
    let with = Table::open("hbase://127.0.0.1:1/t?family=d").unwrap();
    let (_place, lock) = locks();
    let lease = lock.acquire().unwrap();
    assert!(lease.fence() > Some(Fence(0)));
    assert_eq!(code(lease.row(&without, "r")), Code::InvalidArgument);
    assert_eq!(code(lease.row(&with, "")), Code::InvalidArgument);
    assert!(lease.row(&with, "r").is_ok());
    assert_eq!(code(without.row("r").fence()), Code::InvalidArgument);
    assert_eq!(code(without.row("r").get_in(&lease)), Code::InvalidArgument);
}

/// A conditional request to a gateway compares one column and writes one cell.
#[cfg(feature = "gateway")]
#[test]
fn a_gateway_does_what_it_can_and_refuses_the_rest_before_any_change() {
    let Some(table) = rows::table("gateway", "") else { return };
    let name = format!("{table:?}").rsplit('/').next().unwrap().trim_matches(['"', ')']).to_owned();
    let uri = format!("hbase+thrift://{}/{name}", dlm_fixtures::hbase::hbase().thrift);
    let gateway = Table::open(&format!("{uri}?timeout=1m")).unwrap();
    // A gateway that is slow to refuse a change leaves it in doubt. On a busy machine all is done again with another
    // row.
    let mut rows = (0..).map(|number| format!("r{number}"));
    eventually("the gateway is quick", || {
        let key = rows.next().unwrap();
        match does_what_it_can(&gateway.row(&key), &table.row(&key)) {
            Ok(()) => true,
            Err(error) => {
                assert!(error.is_retryable(), "{}", error.chain());
                false
            }
        }
    });
    let (row, plain) = (gateway.row("r"), table.row("r"));
    plain.put(&cells(&[("d:id", "5"), ("d:a", "")])).unwrap();
    assert!(gateway.put_many(&[("p", cells(&[("d:a", "1")]))]).unwrap().remove(0).is_ok());
    let before = plain.get().unwrap();
    let refused = [
        code(row.update(&cells(&[("d:id", "9")]))),
        code(row.create(&cells(&[("d:new", "9"), ("d:other", "9")]))),
        code(row.compare_and_set("d:none", None, Some(b"9"))),
        code(row.compare_and_set("d:a", Some(b""), Some(b"9"))),
        code(row.compare_and_set("d:id", Some(b"5"), None)),
        code(row.modify(&["d:id", "d:a"], |_| Some(Changes::new().put("d:z", "9")))),
        code(row.exactly_once().put(&cells(&[("d:a", "9")]))),
        code(row.delete_if("d:id", b"5")),
        code(gateway.create_if_missing(&[dlm::hbase::Family::new("d")], &[])),
        code(Table::open(&format!("{uri}?family=d"))),
        code(Table::open(&format!("{uri}?max_value=1048576"))),
        code(row.put(&Cells::new().put("d:a", vec![0; 600 << 10]))),
    ];
    assert_eq!(refused, [Code::InvalidArgument; 12]);
    assert!(plain.get().unwrap() == before);
}

/// Makes changes of a new row through a gateway. `direct` is the same row without a gateway.
#[cfg(feature = "gateway")]
fn does_what_it_can(row: &Row, direct: &Row) -> dlm::Result<()> {
    assert!(row.get()?.is_none());
    assert_eq!(row.create(&cells(&[("d:id", "1")]))?, Creation::Created);
    assert_eq!(row.create(&cells(&[("d:id", "2")]))?, Creation::AlreadyExists);
    row.put(&cells(&[("d:a", ""), ("e:b", "2")]))?;
    row.put(&Cells::new().put_for("d:short", "x", Duration::from_millis(500)))?;
    until("the cell expires", || text(direct, "d:short").is_none());
    assert!(row.compare_and_set("d:id", Some(b"1"), Some(b"3"))?);
    assert!(!row.compare_and_set("d:id", Some(b"1"), Some(b"4"))?);
    assert_eq!((row.increment("d:n", 5)?, row.increment("d:n", -7)?), (Some(5), Some(-2)));
    match row.increment("d:id", 1) {
        Err(error) if error.code() == Code::InvalidArgument => {}
        Err(error) => return Err(error),
        Ok(sum) => panic!("added to a text: {sum:?}"),
    }
    assert_eq!(direct.get()?.unwrap().counter("d:n"), Some(-2));
    assert_eq!(row.modify(&["d:id"], |_| Some(Changes::new().put("d:id", "5")))?.attempts, 1);
    let columns =
        |found: dlm::hbase::RowCells| found.iter().map(|(column, _)| column.to_string()).collect::<Vec<_>>();
    assert_eq!(columns(row.get()?.unwrap()), ["d:a", "d:id", "d:n", "e:b"]);
    let some = Select::all().family("e").column("d:a").column("d:none");
    assert_eq!(columns(row.get_only(&some)?.unwrap()), ["d:a", "e:b"]);
    for value in ["1", "2", "3", "4"] {
        row.put(&cells(&[("v:x", value)]))?;
        thread::sleep(Duration::from_millis(2));
    }
    let found = row.get_only(&Select::all().column("v:x").versions(2))?.unwrap();
    assert_eq!(found.versions("v:x").map(|version| version.value.to_vec()).collect::<Vec<_>>(), [b"4", b"3"]);
    Ok(())
}

#[test]
fn a_rows_lock_is_named_after_table_and_row() {
    let place = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}?client=svc&farm=dc1&ttl=10m&timeout=1m", place.path().display());
    let manager = LockManager::open(&uri).unwrap();
    let table = Table::open("hbase://127.0.0.1:1,127.0.0.2:1/shop:orders").unwrap();
    let name = |key: &[u8]| table.row(key).lock(&manager, Level::Dc).map(|lock| lock.name().key().to_owned());
    assert_eq!(name(b"o-42").unwrap(), "DC#dc1#svc#row/shop:orders/o-42");
    assert_eq!(name(&[0, b'/', 255, b'\\']).unwrap(), r"DC#dc1#svc#row/shop:orders/\x00/\xff\\");
    assert_eq!(code(name(b"")), Code::InvalidArgument);
    assert_eq!(code(name(&[b'x'; 1024])), Code::InvalidArgument);
    let lease = table.row("a").lock(&manager, Level::Dc).unwrap().acquire().unwrap();
    assert_eq!(code(table.row("a").lock(&manager, Level::Dc).unwrap().try_acquire()), Code::LockUnavailable);
    assert!(table.row("b").lock(&manager, Level::Dc).unwrap().try_acquire().is_ok());
    lease.release().unwrap();
}

//! Rows are changed while the clock of an HBase server is set back. The server still refuses a stale fence. An
//! exactly-once change is made once. A change of a column that was read is visible to all.
//!
//! A `put`, and a `modify` of a column that was not read, may be hidden by an older cell until the clock reaches
//! the timestamp of that cell again. This concerns every program that writes to HBase.
#![cfg(all(feature = "hbase", feature = "embedded"))]

use std::thread;
use std::time::Duration;

use dlm::Code;
use dlm::hbase::{Cells, Changes, Creation, Row, RowCells, Table};
use dlm_fixtures::clock::Clock;
use dlm_fixtures::guard;
use dlm_fixtures::hbase::{Hbase, Kind, fresh_table};
use dlm_fixtures::rpc_proxy;
use dlm_testkit::{Fault, Proxy, left_to_the_long_run};

/// How far the clock is ahead before it is set back. No call is in flight when the clock jumps this far, because a
/// server would drop it as too old.
const AHEAD: Duration = Duration::from_secs(600);

struct Stage<'a> {
    clock: &'a Clock,
    proxy: Proxy,
    ours: Table,
    theirs: Table,
    master: String,
    name: String,
}

impl Stage<'_> {
    fn ahead<T>(&self, body: impl FnOnce() -> T) -> T {
        self.clock.set_ahead(AHEAD);
        let done = body();
        self.clock.set_ahead(Duration::ZERO);
        done
    }
}

/// One server for all cases, because it takes ten seconds to start.
#[test]
fn a_clock_that_is_set_back_lets_no_stale_holder_in_and_no_change_be_made_twice() {
    if left_to_the_long_run() {
        return;
    }
    let Some(clock) = Clock::new_or_skip() else { return };
    let environment = [("DLM_TEST_PRELOAD", clock.library().into()), clock.environment()];
    let Some(hbase) = Hbase::private_in("row-clock", Kind::Single, &environment) else { return };
    let name = fresh_table("clock");
    let uri = |address: &str, timeout: &str| format!("hbase://{address}/{name}?family=d&timeout={timeout}");
    let theirs = Table::open(&uri(&hbase.masters, "300s")).unwrap();
    theirs.create_if_missing(&super::families(), &[]).unwrap();
    let proxy = rpc_proxy::before(hbase.master);
    let ours = Table::open(&uri(&proxy.address().to_string(), "300s")).unwrap();
    let stage =
        Stage { clock: &clock, proxy, ours, theirs, master: hbase.masters.clone(), name: name.clone() };
    stale_holders_are_refused(&stage);
    marks_are_seen(&stage);
    what_was_read_is_overwritten(&stage);
    deletes_hide_nothing_that_is_put_later(&stage);
    what_cannot_be_seen_is_in_doubt(&stage);
    counters_are_exact(&stage);
}

fn number(found: &RowCells, column: &str) -> i64 {
    found.counter(column).unwrap_or_default()
}

fn counter(row: &Row, column: &str) -> i64 {
    row.get().unwrap().map_or(0, |found| number(&found, column))
}

fn stale_holders_are_refused(stage: &Stage<'_>) {
    let place = tempfile::tempdir().unwrap();
    let lock = guard::guard(place.path());
    // Also with another column in the fence's family whose name begins like the fence's.
    for (number, other) in [None, Some("d:_fence_a"), Some("d:_f")].into_iter().enumerate() {
        let key = format!("stale{number}");
        if let Some(other) = other {
            stage.theirs.row(&key).put(&Cells::new().put(other, "")).unwrap();
        }
        let first = lock.acquire().unwrap();
        let early = first.row(&stage.theirs, &key).unwrap();
        stage.ahead(|| early.put(&Cells::new().put("e:a", "first")).unwrap());
        first.release().unwrap();
        let second = lock.acquire().unwrap();
        let next = second.row(&stage.theirs, &key).unwrap();
        next.put(&Cells::new().put("e:b", "next")).unwrap();
        assert_eq!(next.increment("e:n", 1).unwrap(), Some(1));
        let made_late = first.row(&stage.theirs, &key).unwrap();
        for stale in [&early, &made_late, &early.exactly_once(), &made_late.exactly_once()] {
            let answers = [
                stale.put(&Cells::new().put("e:b", "stale")),
                stale.increment("e:n", 1).map(drop),
                stale.modify(&["e:b"], |_| Some(Changes::new().put("e:b", "stale"))).map(drop),
            ];
            for answer in answers {
                assert_eq!(answer.unwrap_err().code(), Code::StaleFence, "{key}");
            }
        }
        let found = next.get().unwrap().unwrap();
        assert_eq!((found.value("e:b"), found.counter("e:n")), (Some(&b"next"[..]), Some(1)), "{key}");
    }
}

/// If an older mark in the same column hid the new mark, a change that is sent again would be made again.
fn marks_are_seen(stage: &Stage<'_>) {
    let place = tempfile::tempdir().unwrap();
    let lease = guard::guard(place.path()).acquire().unwrap();
    for fenced in [false, true] {
        let key = format!("marks{fenced}");
        let row = if fenced { lease.row(&stage.ours, &key).unwrap() } else { stage.ours.row(&key) };
        let row = row.exactly_once();
        // Cells with the current time, which conditions may compare first: the fence, and a mark in another family.
        row.put(&Cells::new().put("d:", "").put("d:a", "1")).unwrap();
        row.increment("d:n", 1).unwrap();
        let mut sum = 0;
        for round in 0..3 {
            stage.ahead(|| row.increment("e:n", 1).unwrap());
            sum += 1;
            for loss in [Fault::LoseReply, Fault::LoseReply] {
                stage.proxy.next("Multi", loss);
                row.increment("e:n", 1).unwrap();
                sum += 1;
                assert_eq!(counter(&row, "e:n"), sum, "{key} {round}: added twice");
            }
            stage.proxy.next("Multi", Fault::LoseReply);
            let add = |found: &RowCells| {
                assert_eq!(number(found, "e:n"), sum, "{key} {round}: made twice");
                Some(Changes::new().put("e:n", (sum + 1).to_be_bytes()).add("e:times", 1))
            };
            assert!(row.modify(&["e:n", "d:a"], add).unwrap().changed);
            sum += 1;
            assert_eq!((counter(&row, "e:n"), counter(&row, "e:times")), (sum, round + 1), "{key} {round}");
        }
    }
}

fn what_was_read_is_overwritten(stage: &Stage<'_>) {
    let place = tempfile::tempdir().unwrap();
    let lease = guard::guard(place.path()).acquire().unwrap();
    for (number, (once, fenced)) in
        [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
    {
        let key = format!("read{number}");
        let row = if fenced { lease.row(&stage.theirs, &key).unwrap() } else { stage.theirs.row(&key) };
        let row = if once { row.exactly_once() } else { row };
        row.put(&Cells::new().put("d:a", "0").put("e:c", "0")).unwrap();
        // By its name, this column is not the first one that a condition compares.
        stage.ahead(|| row.put(&Cells::new().put("e:b", "0")).unwrap());
        for round in 0..3 {
            let next = (round + 1).to_string();
            let add = |found: &RowCells| {
                let all = ["d:a", "e:b", "e:c"].map(|column| found.value(column).map(<[u8]>::to_vec));
                assert_eq!(all, [(); 3].map(|()| Some(round.to_string().into_bytes())), "{key}");
                Some(Changes::new().put("d:a", &*next).put("e:b", &*next).put("e:c", &*next))
            };
            assert!(row.modify(&["d:a", "e:b", "e:c"], add).unwrap().changed);
        }
        stage.ahead(|| row.put(&Cells::new().put("e:one", "1")).unwrap());
        assert!(row.compare_and_set("e:one", Some(b"1"), Some(b"2")).unwrap(), "{key}");
        assert_eq!(row.get().unwrap().unwrap().value("e:one"), Some(&b"2"[..]), "{key}: the value is hidden");
        stage.ahead(|| row.put(&Cells::new().put("e:one", "1")).unwrap());
        assert!(row.delete_if("e:one", b"1").unwrap(), "{key}");
        assert!(row.get().unwrap().is_none(), "{key}");
    }
}

/// Each Delete carries the timestamp of the cell that it deletes, not the current time.
fn deletes_hide_nothing_that_is_put_later(stage: &Stage<'_>) {
    let whole = Cells::new().put("d:id", "1").put("e:n", 5i64.to_be_bytes());
    for (way, once) in (0..3).flat_map(|way| [(way, false), (way, true)]) {
        let plain = stage.theirs.row(format!("deleted{way}{once}"));
        let row = if once { plain.exactly_once() } else { plain.clone() };
        row.put(&whole).unwrap();
        stage.ahead(|| match way {
            0 => assert!(row.delete_if("d:id", b"1").unwrap()),
            1 => assert!(row.compare_and_set("d:id", Some(b"1"), None).unwrap()),
            _ => {
                let delete = |_: &RowCells| Some(Changes::new().delete("d:id").delete("e:n"));
                assert!(row.modify(&["d:id", "e:n"], delete).unwrap().changed);
            }
        });
        plain.put(&whole).unwrap();
        let found = plain.get().unwrap().unwrap();
        assert!(found.value("d:id").is_some() && found.value("e:n").is_some(), "{way} {once}: {found:?}");
    }
}

/// A Delete with a timestamp in the future hides puts until that time.
fn what_cannot_be_seen_is_in_doubt(stage: &Stage<'_>) {
    for once in [false, true] {
        // Again with a longer time-out if this machine was too slow for a call.
        let shown = ["1s", "5s", "25s"].into_iter().find_map(|timeout| what_is_hidden(stage, once, timeout));
        assert!(shown.is_some(), "a call took longer than 25 s");
    }
}

/// Returns `None` if a call that must succeed took until its time-out.
fn what_is_hidden(stage: &Stage<'_>, once: bool, timeout: &str) -> Option<()> {
    let uri = format!("hbase://{}/{}?family=d&timeout={timeout}", stage.master, stage.name);
    let row = Table::open(&uri).unwrap().row(format!("hidden{once}{timeout}"));
    let row = if once { row.exactly_once() } else { row };
    let is_hidden = stage.ahead(|| {
        row.put(&Cells::new().put("d:id", "1")).ok()?;
        row.delete_if("d:id", b"1").ok()
    });
    assert!(is_hidden?);
    match row.create(&Cells::new().put("d:id", "2")) {
        // A mark with a timestamp in the future is not deleted. The cells that are put with the next mark get its
        // timestamp.
        Ok(made) => {
            assert!(once && made == Creation::Created);
            assert_eq!(row.get().ok()?.unwrap().value("d:id"), Some(&b"2"[..]));
            return Some(());
        }
        // It was not sent.
        Err(error) if error.is_retryable() && !error.is_in_doubt() => return None,
        Err(error) => assert_eq!(error.code(), Code::InDoubt, "{}", error.chain()),
    }
    assert_eq!(row.get().ok()?, None);
    let made = stage.ahead(|| {
        thread::sleep(Duration::from_millis(5));
        row.create(&Cells::new().put("d:id", "2")).ok()
    });
    assert_eq!(made?, Creation::Created);
    Some(())
}

/// The clock jumps and a tenth of the replies are lost.
fn counters_are_exact(stage: &Stage<'_>) {
    const THREADS: i64 = 4;
    const CHANGES: i64 = 100;
    stage.proxy.sometimes("Multi", 10, Fault::LoseReply);
    thread::scope(|scope| {
        let working: Vec<_> = (0..THREADS)
            .map(|thread| {
                let row = stage.ours.row("counters").exactly_once();
                scope.spawn(move || {
                    for change in 0..CHANGES {
                        row.increment("d:n", 1).unwrap();
                        row.increment("e:n", 1).unwrap();
                        let add = |found: &RowCells| {
                            let [m, k] = ["d:m", "e:k"].map(|column| number(found, column) + 1);
                            Some(Changes::new().put("d:m", m.to_be_bytes()).put("e:k", k.to_be_bytes()))
                        };
                        let modified = row.modify(&["d:m", "e:k"], add);
                        modified.unwrap_or_else(|error| panic!("{thread} {change}: {}", error.chain()));
                    }
                })
            })
            .collect();
        let mut ahead = false;
        while working.iter().any(|working| !working.is_finished()) {
            ahead = !ahead;
            stage.clock.set_ahead(if ahead { Duration::from_secs(20) } else { Duration::ZERO });
            thread::sleep(Duration::from_millis(150));
        }
        working.into_iter().for_each(|working| working.join().unwrap());
    });
    stage.clock.set_ahead(Duration::ZERO);
    stage.proxy.heal();
    let row = stage.theirs.row("counters");
    let sums = ["d:n", "e:n", "d:m", "e:k"].map(|column| counter(&row, column));
    println!("{} replies were lost", stage.proxy.hits());
    assert_eq!(sums, [THREADS * CHANGES; 4]);
}

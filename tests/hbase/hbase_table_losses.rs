//! Requests and replies about applications' rows that are lost or late. A change is made exactly once, or it is in
//! doubt and not sent again.
//!
//! The effect of a request that arrives after its call has ended depends on the row:
//!
//! * Exactly-once: it has no effect, for every result of the call.
//! * Fenced: it has no effect after a later holder has changed the row or raised its fence.
//! * Plain: it has the effect of a call at that time. So a conditional change has no effect if another client has
//!   changed the column. A put or an addition takes effect. Its caller has received IN_DOUBT.
#![cfg(all(feature = "hbase", feature = "embedded"))]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlm::hbase::{Cells, Changes, Creation, Row, RowCells, Table, Update};
use dlm::{Code, Lease, Lock};
use dlm_fixtures::guard;
use dlm_fixtures::hbase::{fresh_table, hbase, hbase_or_skip};
use dlm_fixtures::rpc_proxy;
use dlm_testkit::until;
use dlm_testkit::{Fault, Gate, Proxy};

use super::rows;

/// One kind of call. A create finds no row. Any other call finds a row with `d:id` = 1, `d:n` = 5 and `e:x`.
#[derive(Clone, Copy)]
struct Call {
    name: &'static str,
    finds: bool,
    /// Makes the call. Returns whether the change was made.
    make: fn(&Row) -> dlm::Result<bool>,
    /// Returns whether the row shows that the change was made once.
    shows: fn(&RowCells) -> bool,
    /// Whether a late request takes effect in a plain row that another client has changed.
    late: bool,
}

fn number(found: &RowCells, column: &str) -> Option<i64> {
    found.counter(column)
}

fn is(found: &RowCells, column: &str, value: &str) -> bool {
    found.value(column) == Some(value.as_bytes())
}

fn cells(text: &[(&str, &str)]) -> Cells {
    text.iter().fold(Cells::new(), |cells, (column, value)| cells.put(*column, *value))
}

/// Returns whether a call of `increment` returned the right sum, or none.
fn six(sum: Option<i64>) -> bool {
    sum.is_none_or(|sum| sum == 6)
}

const CALLS: [Call; 9] = [
    Call {
        name: "put",
        finds: true,
        make: |row| row.put(&cells(&[("d:a", "ours")])).map(|()| true),
        shows: |found| is(found, "d:a", "ours"),
        late: true,
    },
    Call {
        name: "create",
        finds: false,
        make: |row| {
            row.create(&cells(&[("d:id", "ours"), ("e:y", "ours")])).map(|made| made == Creation::Created)
        },
        shows: |found| is(found, "d:id", "ours") && is(found, "e:y", "ours"),
        late: false,
    },
    Call {
        name: "update",
        finds: true,
        make: |row| row.update(&cells(&[("d:id", "ours")])).map(|made| made == Update::Updated),
        shows: |found| is(found, "d:id", "ours"),
        late: true,
    },
    Call {
        name: "set",
        finds: true,
        make: |row| row.compare_and_set("d:id", Some(b"1"), Some(b"ours")),
        shows: |found| is(found, "d:id", "ours"),
        late: false,
    },
    Call {
        name: "set what is absent",
        finds: true,
        make: |row| row.compare_and_set("d:b", None, Some(b"ours")),
        shows: |found| is(found, "d:b", "ours"),
        late: false,
    },
    Call {
        name: "unset",
        finds: true,
        make: |row| row.compare_and_set("d:id", Some(b"1"), None),
        shows: |found| found.value("d:id").is_none() && found.value("e:x").is_some(),
        late: false,
    },
    Call {
        name: "increment",
        finds: true,
        make: |row| row.increment("d:n", 1).map(six),
        shows: |found| number(found, "d:n") == Some(6),
        late: true,
    },
    Call {
        name: "modify",
        finds: true,
        make: |row| {
            let add = |found: &RowCells| {
                let sum = number(found, "d:n").unwrap() + 1;
                Some(Changes::new().put("d:n", sum.to_be_bytes()).add("d:times", 1))
            };
            row.modify(&["d:n"], add).map(|modified| modified.changed)
        },
        shows: |found| number(found, "d:n") == Some(6) && number(found, "d:times") == Some(1),
        late: false,
    },
    Call {
        name: "delete",
        finds: true,
        make: |row| row.delete_if("d:id", b"1"),
        shows: RowCells::is_empty,
        late: false,
    },
];

/// A table as two clients see it, and a lock. Our client uses a proxy.
struct Stage {
    proxy: Proxy,
    ours: Table,
    theirs: Table,
    lock: Lock,
    _place: tempfile::TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Way {
    once: bool,
    fenced: bool,
}

const WAYS: [Way; 4] = [
    Way { once: false, fenced: false },
    Way { once: false, fenced: true },
    Way { once: true, fenced: false },
    Way { once: true, fenced: true },
];

impl Stage {
    fn new(test: &str) -> Option<Stage> {
        hbase_or_skip()?;
        let name = fresh_table(test);
        let theirs = Table::open(&rows::uri(&name, "?family=d")).unwrap();
        theirs.create_if_missing(&rows::families(), &[]).unwrap();
        let proxy = rpc_proxy::before(hbase().master);
        let uri = format!("hbase://{}/{name}?family=d&timeout=5m", proxy.address());
        let place = tempfile::tempdir().unwrap();
        let lock = guard::guard(place.path());
        Some(Stage { proxy, ours: Table::open(&uri).unwrap(), theirs, lock, _place: place })
    }

    /// Writes the cells that the call must find. Returns the row for our client and the row for the other client.
    fn rows(&self, key: &str, way: Way, lease: &Lease, call: &Call) -> (Row, Row) {
        let theirs = self.theirs.row(key);
        if call.finds {
            let there = cells(&[("d:id", "1"), ("e:x", "")]).put("d:n", 5i64.to_be_bytes());
            theirs.put(&there).unwrap();
        }
        let ours = if way.fenced { lease.row(&self.ours, key).unwrap() } else { self.ours.row(key) };
        // Opens the connections and looks up the region.
        ours.get().unwrap();
        (if way.once { ours.exactly_once() } else { ours }, theirs)
    }

    fn writes(&self) -> usize {
        self.proxy.requests().iter().filter(|method| *method == "Multi").count()
    }
}

fn found(row: &Row) -> Vec<(String, Vec<u8>)> {
    let found = row.get().unwrap();
    let cells = found.iter().flat_map(|found| found.iter());
    cells.map(|(column, value)| (column.to_string(), value.to_vec())).collect()
}

fn shows(call: &Call, row: &Row) -> bool {
    let found = row.get_only(&dlm::hbase::Select::all()).unwrap();
    match found {
        Some(found) => (call.shows)(&found),
        None => call.name == "delete",
    }
}

#[test]
fn a_change_whose_message_is_lost_is_in_doubt_or_made_exactly_once() {
    let Some(stage) = Stage::new("lost") else { return };
    let lease = stage.lock.acquire().unwrap();
    for (number, call) in CALLS.iter().enumerate() {
        for way in WAYS {
            for (loss, made) in
                [(Fault::LoseRequest, false), (Fault::LoseReply, true), (Fault::CutReply(9), true)]
            {
                let what = format!("{} {way:?} {loss:?}", call.name);
                let (ours, theirs) = stage.rows(&format!("{number}{way:?}{loss:?}"), way, &lease, call);
                let (before, writes, hits) = (found(&theirs), stage.writes(), stage.proxy.hits());
                stage.proxy.next("Multi", loss);
                let answer = (call.make)(&ours);
                assert_eq!(stage.proxy.hits(), hits + 1, "{what}");
                let sent = stage.writes() - writes;
                if way.once {
                    assert!(answer.unwrap_or_else(|error| panic!("{what}: {}", error.chain())), "{what}");
                    assert!(shows(call, &theirs), "{what}: {:?}", found(&theirs));
                    assert_eq!(sent, 2, "{what}");
                } else {
                    let error = answer.expect_err(&what);
                    assert_eq!(error.code(), Code::InDoubt, "{what}: {}", error.chain());
                    assert_eq!(sent, 1, "{what}: it was sent again");
                    if made {
                        assert!(shows(call, &theirs), "{what}: {:?}", found(&theirs));
                    } else {
                        let now: Vec<_> = found(&theirs)
                            .into_iter()
                            .filter(|(column, _)| !column.contains("_fence"))
                            .collect();
                        assert_eq!(now, before, "{what}");
                    }
                }
            }
        }
    }
}

/// Three messages in a row are lost, requests and replies in different orders.
#[test]
fn a_change_of_which_many_messages_are_lost_is_made_exactly_once() {
    let Some(stage) = Stage::new("storm") else { return };
    let lease = stage.lock.acquire().unwrap();
    for (number, call) in CALLS.iter().enumerate() {
        for way in WAYS.into_iter().filter(|way| way.once) {
            for pattern in [0b010, 0b101, 0b111] {
                let what = format!("{} {way:?} {pattern}", call.name);
                let (ours, theirs) = stage.rows(&format!("{number}{way:?}{pattern}"), way, &lease, call);
                for bit in 0..3 {
                    let loss = if pattern >> bit & 1 == 0 { Fault::LoseRequest } else { Fault::LoseReply };
                    stage.proxy.next("Multi", loss);
                }
                let answer = (call.make)(&ours);
                assert!(answer.unwrap_or_else(|error| panic!("{what}: {}", error.chain())), "{what}");
                assert!(shows(call, &theirs), "{what}: {:?}", found(&theirs));
                stage.proxy.heal();
            }
        }
    }
}

#[test]
fn a_fence_is_raised_whatever_is_lost() {
    let Some(stage) = Stage::new("raise") else { return };
    let lease = stage.lock.acquire().unwrap();
    for loss in [Fault::LoseRequest, Fault::LoseReply, Fault::CutReply(5)] {
        let row = lease.row(&stage.ours, format!("{loss:?}")).unwrap();
        stage.proxy.next("Multi", loss);
        row.raise_fence().unwrap();
        assert_eq!(row.fence().unwrap().map(|(fence, _)| fence), lease.fence());
    }
    assert_eq!(stage.proxy.hits(), 3);
}

/// The call has ended and another client has changed the row. Then the request arrives.
#[test]
fn a_request_that_arrives_late_undoes_nothing_that_it_must_not() {
    let Some(stage) = Stage::new("late") else { return };
    for (number, call) in CALLS.iter().enumerate() {
        for way in WAYS {
            let what = format!("{} {way:?}", call.name);
            let lease = stage.lock.acquire().unwrap();
            let (ours, theirs) = stage.rows(&format!("{number}{way:?}"), way, &lease, call);
            let (gate, late) = (Arc::new(Gate::default()), stage.proxy.late());
            stage.proxy.next("Multi", Fault::KeepAndBreak(Arc::clone(&gate)));
            let answer = (call.make)(&ours);
            if way.once {
                assert!(answer.unwrap(), "{what}");
                assert!(shows(call, &theirs), "{what}");
            } else {
                assert_eq!(answer.expect_err(&what).code(), Code::InDoubt, "{what}");
            }
            drop(lease);
            let next = stage.lock.acquire().unwrap();
            let theirs = if way.fenced { next.row(&stage.theirs, theirs.key()).unwrap() } else { theirs };
            let mut all =
                cells(&[("d:id", "theirs"), ("d:a", "theirs"), ("d:b", "theirs"), ("e:y", "theirs")]);
            all = all.put("d:n", 50i64.to_be_bytes());
            // A counter's timestamps run ahead of the clock.
            thread::sleep(Duration::from_millis(5));
            theirs.put(&all).unwrap();
            let before = found(&theirs);
            gate.open();
            until("the late request has arrived", || stage.proxy.late() > late);
            let changed = found(&theirs) != before;
            assert_eq!(changed, call.late && way == WAYS[0], "{what}: {:?}", found(&theirs));
        }
    }
}

/// The caller was told that nothing was changed. So the request must have no effect even when its condition holds
/// again.
#[test]
fn a_request_that_arrives_late_does_not_make_what_was_refused() {
    let Some(stage) = Stage::new("refused") else { return };
    let lease = stage.lock.acquire().unwrap();
    for fenced in [false, true] {
        let key = format!("{fenced}");
        let ours = if fenced { lease.row(&stage.ours, &key).unwrap() } else { stage.ours.row(&key) };
        let (ours, theirs) = (ours.exactly_once(), stage.theirs.row(&key));
        theirs.put(&cells(&[("d:id", "1")])).unwrap();
        ours.get().unwrap();
        let (gate, hits, late) = (Arc::new(Gate::default()), stage.proxy.hits(), stage.proxy.late());
        stage.proxy.later("Multi", 0, usize::MAX, Fault::KeepAndBreak(Arc::clone(&gate)));
        let copies = thread::scope(|scope| {
            let setting = scope.spawn(|| ours.compare_and_set("d:id", Some(b"1"), Some(b"ours")));
            until("the request is sent a second time", || stage.proxy.hits() >= hits + 2);
            theirs.put(&cells(&[("d:id", "theirs")])).unwrap();
            stage.proxy.heal();
            assert!(!setting.join().unwrap().unwrap(), "{key}");
            stage.proxy.hits() - hits
        });
        theirs.put(&cells(&[("d:id", "1")])).unwrap();
        gate.open();
        until("all copies have arrived", || stage.proxy.late() >= late + copies);
        assert_eq!(
            theirs.get().unwrap().unwrap().value("d:id"),
            Some(&b"1"[..]),
            "{key}: a refused change was made"
        );
        // The next change is not mistaken for that one.
        assert!(ours.compare_and_set("d:id", Some(b"1"), Some(b"2")).unwrap());
        assert!(ours.compare_and_set("d:id", Some(b"2"), Some(b"1")).unwrap());
    }
}

/// Several copies of a request are in flight when an answer arrives.
#[test]
fn copies_of_a_request_that_was_made_have_no_effect_later() {
    let Some(stage) = Stage::new("copies") else { return };
    for (name, fate) in [("kept", false), ("made", true)] {
        let (ours, theirs) = (stage.ours.row(name).exactly_once(), stage.theirs.row(name));
        assert_eq!(ours.increment("d:n", 1).unwrap(), Some(1));
        let (gate, late) = (Arc::new(Gate::default()), stage.proxy.late());
        if fate {
            stage.proxy.next("Multi", Fault::LoseReply);
        }
        (0..3).for_each(|_| stage.proxy.next("Multi", Fault::KeepAndBreak(Arc::clone(&gate))));
        assert!(ours.increment("d:n", 1).unwrap().is_none_or(|sum| sum == 2));
        for _ in 0..20 {
            ours.increment("d:n", 1).unwrap();
        }
        gate.open();
        until("all copies have arrived", || stage.proxy.late() >= late + 3);
        assert_eq!(theirs.get().unwrap().unwrap().counter("d:n"), Some(22));
    }
}

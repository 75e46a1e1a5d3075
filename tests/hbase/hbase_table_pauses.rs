//! A holder is stopped for longer than its lease, then continues and writes without a check of the lease. HBase
//! itself refuses its writes to rows that its successor has written.
#![cfg(all(feature = "hbase", feature = "embedded"))]

use std::env;
use std::time::Duration;

use dlm::hbase::{Cells, Changes, Row, Table};
use dlm::{Lease, Level};
use dlm_fixtures::dialogue::{Dialogue, next_order, say};
use dlm_fixtures::guard;
use dlm_fixtures::hbase::{fresh_table, hbase, hbase_or_skip};
use dlm_fixtures::role;
use dlm_fixtures::rpc_proxy;

use super::rows;

const URI: &str = "DLM_TEST_URI";
/// TTL of the holder that is stopped. It does not check its leases, so they may also end before that.
const TTL: Duration = Duration::from_secs(2);
/// TTL of its successor.
const NEXT_TTL: Duration = Duration::from_secs(1800);
/// Number of locks. Each guards one row.
const LOCKS: usize = 10;
/// Number of late writes to each row.
const WRITES: usize = 10;

#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((_, place)) = role::asked() else { return };
    let manager = guard::guards(&place, TTL);
    let table = Table::open(&env::var(URI).unwrap()).unwrap();
    let held: Vec<(Lease, Row)> = (0..LOCKS)
        .map(|number| {
            let lock = manager.lock(&number.to_string(), Level::Xdc).unwrap();
            // A grant that comes after the end of its lease is an error.
            let lease = loop {
                match lock.acquire() {
                    Ok(lease) => break lease,
                    Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
                }
            };
            let row = lease.row(&table, number.to_string()).unwrap();
            row.put(&Cells::new().put("d:a", "first").put("d:n", 0i64.to_be_bytes())).unwrap();
            (lease, row)
        })
        .collect();
    say(format_args!("held"));
    assert_eq!(next_order().as_deref(), Some("write"));
    for (number, (lease, early)) in held.iter().enumerate() {
        for write in 0..WRITES {
            // A handle that has raised its fence, and one that is created only now.
            let made_late = lease.row(&table, number.to_string()).unwrap();
            let row = if write % 2 == 0 { early } else { &made_late };
            let row = if write % 4 < 2 { row.clone() } else { row.exactly_once() };
            let answer = match write % 3 {
                0 => row.put(&Cells::new().put("d:a", "stale")),
                1 => row.increment("d:n", 1).map(drop),
                _ => row.modify(&["d:a"], |_| Some(Changes::new().put("d:a", "stale"))).map(drop),
            };
            let error = match answer {
                Ok(()) => "made".to_owned(),
                Err(error) => match error.stale_fence() {
                    Some((ours, stored)) => format!("{} {} {}", error.code().name(), ours.0, stored.0),
                    None => error.chain().replace(' ', "_"),
                },
            };
            say(format_args!("wrote {number} {} {error}", lease.fence().unwrap().0));
        }
    }
}

#[test]
fn what_a_stopped_holder_writes_after_its_successor_is_refused_by_hbase() {
    if hbase_or_skip().is_none() {
        return;
    }
    let name = fresh_table("stopped");
    let table = Table::open(&rows::uri(&name, "?family=d")).unwrap();
    table.create_if_missing(&rows::families(), &[]).unwrap();
    let proxy = rpc_proxy::before(hbase().master);
    let place = tempfile::tempdir().unwrap();
    let mut command = role::process(module_path!(), "hold", place.path());
    command.env(URI, format!("hbase://{}/{name}?family=d&timeout=5m", proxy.address()));
    let mut holder = Dialogue::start(&mut command);
    holder.report("held");
    holder.pause();

    let manager = guard::guards(place.path(), NEXT_TTL);
    let next: Vec<_> = (0..LOCKS)
        .map(|number| {
            let lease = manager.lock(&number.to_string(), Level::Xdc).unwrap().acquire().unwrap();
            let row = lease.row(&table, number.to_string()).unwrap();
            row.put(&Cells::new().put("d:a", "next")).unwrap();
            (lease, row)
        })
        .collect();

    let writes = || proxy.requests().iter().filter(|method| *method == "Multi").count();
    let before = writes();
    holder.order("write");
    holder.go_on();
    let mut refused = 0;
    for _ in 0..LOCKS * WRITES {
        let report = holder.report("wrote");
        let number: usize = report[0].parse().unwrap();
        let stored = next[number].0.fence().unwrap().0.to_string();
        assert_eq!(report[2..], ["STALE_FENCE".to_owned(), report[1].clone(), stored], "{report:?}");
        refused += 1;
    }
    let rest = holder.finish();
    assert!(rest.is_empty(), "{rest:?}");
    let sent = writes() - before;
    println!("{refused} late writes were sent in {sent} requests, and refused");
    assert!(sent >= LOCKS * WRITES, "only {sent} requests: the library itself refused some");
    for (lease, row) in next {
        let found = row.get().unwrap().unwrap();
        assert_eq!((found.value("d:a"), found.counter("d:n")), (Some(&b"next"[..]), Some(0)));
        assert_eq!(row.increment("d:n", 1).unwrap(), Some(1));
        lease.check().unwrap();
    }
}

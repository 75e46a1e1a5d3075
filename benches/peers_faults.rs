//! What faults do to the calls of the Java library, and to this library: how many grants of a lock overlap.
//!
//! `cargo bench --bench peers_faults --all-features` starts an HBase, which needs a JDK and Maven, and an Aerospike if
//! there is an `asd`. It takes two minutes. With `-- --test` it takes one minute, which only proves that it runs.
//!
//! Both sides go through the same order of calls: see [`fault::Fault`]. A grant overlaps if another client was granted
//! the lock, has not released it, and its TTL has not ended. The Java library's calls are those of `Peer.java` in
//! `tests/fixtures`. The exit status is 1 if a grant of this library overlaps or a lock is held by nobody, and also if a
//! fault met too few locks, because then the run proves nothing.

#[path = "peers_faults/fault.rs"]
mod fault;
#[path = "peers_faults/java.rs"]
mod java;
#[path = "peers_faults/ledger.rs"]
mod ledger;
#[path = "peers_faults/ours.rs"]
mod ours;
#[path = "peers_faults/side.rs"]
mod side;

use std::process::{ExitCode, id};

use dlm_fixtures::aerospike::aerospike_or_skip;
use dlm_fixtures::hbase::{Hbase, fresh_table};
use dlm_fixtures::peer::Peer;
use dlm_fixtures::{aerospike_java, aerospike_proxy, rpc_proxy};
use dlm_testkit::skipped;
use fault::{Fault, Outcome};
use java::{JavaCalls, OnAerospike, OnHbase};
use ours::{Ours, Requests};
use side::Side;

fn main() -> ExitCode {
    let is_quick = std::env::args().any(|argument| argument == "--test");
    let mut failures = Vec::new();
    // Its own server, because locks in all regions of two tables take half of its memory.
    if let Some(hbase) = Hbase::private("peers-faults") {
        let (mut java, mut ours) = on_hbase(&hbase);
        measure("HBase", &Fault::ALL, &mut java, &mut ours, is_quick, &mut failures);
    }
    if let Some((mut java, mut ours)) = on_aerospike() {
        // Aerospike's deletes have no timestamp that could hide a record.
        let faults: Vec<_> =
            Fault::ALL.into_iter().filter(|fault| *fault != Fault::SameMillisecond).collect();
        measure("Aerospike", &faults, &mut java, &mut ours, is_quick, &mut failures);
    }
    failures.iter().for_each(|failure| eprintln!("*** {failure}"));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn on_hbase(hbase: &Hbase) -> (JavaCalls<OnHbase>, Ours) {
    let mut peer = Peer::start(hbase);
    // The server of a run that was killed may still be there.
    let [table, ours] = ["faults_java", "faults"].map(fresh_table);
    assert_eq!(peer.ask(&format!("create {table}")), "ok");
    let requests = Requests { acquire: "Multi", release: "Multi", after_release: &["Multi", "Get"] };
    let uri = |address| format!("hbase://{address}/{ours}");
    let ours = Ours::new(hbase.master, rpc_proxy::before(hbase.master), uri, "faults", requests);
    (JavaCalls { calls: OnHbase { peer, table }, kept: Vec::new() }, ours)
}

fn on_aerospike() -> Option<(JavaCalls<OnAerospike>, Ours)> {
    let place = aerospike_or_skip()?;
    let java = match aerospike_java::start(&place) {
        Ok(java) => java,
        Err(why) => {
            skipped("maven", why);
            return None;
        }
    };
    // A server that the environment names keeps the records of earlier runs.
    let run = format!("faults-{:x}-{:x}", dlm::Moment::now().as_nanos(), id());
    let requests = Requests { acquire: "create", release: "delete", after_release: &["delete", "get"] };
    // Each late release waits on a connection of its own.
    let uri = |address| format!("{}?pool=64", place.uri_by(address));
    let ours = Ours::new(place.address, aerospike_proxy::before(place.address), uri, &run, requests);
    Some((JavaCalls { calls: OnAerospike { java, run }, kept: Vec::new() }, ours))
}

/// Runs the faults on both sides and prints a table.
fn measure(
    store: &str,
    faults: &[Fault],
    java: &mut dyn Side,
    ours: &mut dyn Side,
    is_quick: bool,
    failures: &mut Vec<String>,
) {
    println!("\n| {store} | locks | calls of the Java library: overlapping grants | held by nobody | {OURS}");
    println!("|---|---|---|---|---|---|");
    for (number, &fault) in (0..).zip(faults) {
        let from = number * 1_000_000;
        let locks = from..from + if is_quick { 2 } else { locks_of(fault) };
        let (theirs, ours) = (fault.run(java, locks.clone()), fault.run(ours, locks));
        let what = fault.description();
        println!(
            "| {what} | {} | {} of {} | {} | {} of {} | {} |",
            ours.locks,
            theirs.overlapping,
            theirs.grants,
            theirs.held_by_nobody,
            ours.overlapping,
            ours.grants,
            ours.held_by_nobody,
        );
        for (side, outcome) in [("Java's calls", &theirs), ("this library", &ours)] {
            if outcome.bitten * 2 <= outcome.locks {
                let Outcome { bitten, locks, .. } = outcome;
                failures.push(format!("{store}, {what}: met {bitten} of {locks} locks of {side}"));
            }
        }
        // In a quick run, too few locks are released and acquired within one millisecond.
        if theirs.overlapping + theirs.held_by_nobody == 0 && !is_quick {
            failures.push(format!("{store}, {what}: did no harm to Java's calls, so it proves nothing"));
        }
        if ours.overlapping + ours.held_by_nobody > 0 {
            failures.push(format!("{store}, {what}: {ours:?}"));
        }
    }
}

const OURS: &str = "this library: overlapping grants | held by nobody |";

fn locks_of(fault: Fault) -> u64 {
    match fault {
        Fault::Stopped | Fault::SameMillisecond => 300,
        Fault::StoppedOnce | Fault::LateRelease | Fault::ReleaseAgain | Fault::AcquireAgain => 50,
    }
}

//! The torture itself: which faults it counts, and what a failed run leaves behind.

use std::time::Duration;
use std::{fs, panic};

use dlm::Moment;
use dlm_testkit::history::{History, Tolerances, check};

use crate::bites::Tally;
use crate::incidents::{Incidents, Kill, Loss, Stop};
use crate::report;
use crate::subject::Least;

/// A lease from 10 to 110 ms that its holder finds lost at 200 ms, and a call that has no answer. Client 1 of process 0
/// does the first, client 0 of process 1 the second.
const LOG: &str = "\
call p0.0/1 1 10000000 acquire k ttl=100000000 wait=0
return p0.0/1 1 11000000 granted fence=1 ends=110000000
call p0.0/1 2 200000000 release k lease=p0.0/1:1
return p0.0/1 2 201000000 lost
call p1.0/0 1 20000000 acquire k ttl=100000000 wait=0
";

fn at(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

/// Counts the faults that had an effect on the history above: kills, stops, and lost replies.
fn bitten(faults: impl FnOnce(&Incidents)) -> [usize; 3] {
    let directory = tempfile::tempdir().unwrap();
    let incidents = Incidents::logged_in(directory.path());
    faults(&incidents);
    let history = History::parse([LOG]).unwrap();
    let tally = Tally::of(&history, &Tolerances::default(), &incidents, 0);
    [tally.kills_bit, tally.stops_bit, tally.lost_replies]
}

#[test]
fn a_kill_counts_if_the_process_held_a_lock_or_had_called() {
    let kill = |clients: &str, ms| bitten(|it| it.kill(Kill { clients: clients.into(), at: at(ms) }))[0];
    assert_eq!((kill("p0.0/", 9), kill("p0.0/", 50), kill("p0.0/", 150), kill("p0.0/", 200)), (0, 1, 0, 1));
    assert_eq!((kill("p1.0/", 19), kill("p1.0/", 20), kill("p1.1/", 50)), (0, 1, 0));
}

#[test]
fn a_stop_counts_if_a_lease_ended_meanwhile_and_its_holder_went_on() {
    let stop = |clients: &str, from, to| {
        let stop = Stop { clients: clients.into(), from: at(from), to: at(to) };
        bitten(|it| it.stop(stop))[1]
    };
    assert_eq!(stop("p0.0/", 50, 150), 1);
    assert_eq!(stop("p0.0/", 50, 109), 0, "it was over before");
    assert_eq!(stop("p0.0/", 111, 190), 0, "the lease had ended before");
    assert_eq!(stop("p0.0/", 50, 300), 0, "the holder did nothing afterwards");
    assert_eq!(stop("p1.0/", 50, 150), 0);
}

#[test]
fn a_lost_reply_counts_if_a_call_waited_for_it_and_its_request_changes_something() {
    let lost =
        |clients: &str, loss, writes| bitten(|it| it.message(clients, loss, writes, Duration::ZERO))[2];
    assert_eq!(lost("p1.", Loss::Reply, true), 1);
    assert_eq!(lost("p1.", Loss::Reply, false), 0);
    assert_eq!(lost("p1.", Loss::Request, true), 0);
    assert_eq!(lost("p0.", Loss::Reply, true), 0, "all its calls have returned");
}

#[test]
fn a_run_with_too_little_of_anything_proves_nothing() {
    let enough =
        Tally { grants: 20, contended: 1, kills_bit: 4, stops_bit: 2, lost_replies: 6, ..Tally::default() };
    let least = Least { grants: 2.0, kills: 0.4, stops: 0.2, lost_replies: 0.6, ..Least::default() };
    assert!(enough.missing(&least, 10.0).is_empty());
    let missing = |tally: Tally| tally.missing(&least, 10.0).len();
    assert_eq!(missing(Tally { grants: 19, ..enough.clone() }), 1);
    assert_eq!(missing(Tally { contended: 0, ..enough.clone() }), 1);
    assert_eq!(missing(Tally { kills_bit: 3, ..enough.clone() }), 1);
    assert_eq!(missing(Tally { stops_bit: 1, ..enough.clone() }), 1);
    assert_eq!(missing(Tally { lost_replies: 5, ..enough.clone() }), 1);
}

#[test]
fn a_failed_run_leaves_its_seed_its_logs_the_violations_and_pictures() {
    let directory = tempfile::tempdir().unwrap();
    let logs = directory.path();
    // The second one is granted during the lease of the first.
    let second = "call B 1 50000000 acquire k ttl=100000000 wait=0\nreturn B 1 51000000 granted fence=2 ends=150000000\n";
    fs::write(logs.join("log"), [LOG, second].concat()).unwrap();
    let tolerances = Tolerances::default();
    let history = History::read([logs.join("log")]).unwrap();
    let violations = check(&history, &tolerances);
    let failed = panic::catch_unwind(|| -> () { report::fail(logs, 42, &history, &tolerances, &violations) });
    let message = *failed.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("seed 42") && message.contains(&logs.display().to_string()), "{message}");
    let left = |name: &str| fs::read_to_string(logs.join("failed").join(name)).unwrap();
    assert_eq!(left("seed"), "42\n");
    assert!(left("violations.txt").contains("rule A is broken"));
    assert!(left("violation-1.svg").starts_with("<svg"));
    assert!(logs.join("log").exists());
}

//! Processes that campaign, that keep leases alive, and that acquire several locks at once, while some of them are
//! killed or stopped.
#![cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use dlm::{AcquireOptions, Lease, LeaseState, Level, LockManager, LostReason, Moment};
use dlm_fixtures::dialogue::{Dialogue, next_order, say};
use dlm_fixtures::role;
use dlm_testkit::{LONG, LONGEST, eventually, shortened, until};
use tempfile::TempDir;

const TTL: Duration = Duration::from_secs(1);
/// TTLs of leases that are kept until their process is stopped. The next one is used if this machine was so slow that
/// all were lost before.
const KEPT_TTLS: [Duration; 3] = [TTL, Duration::from_secs(5), Duration::from_secs(20)];
const RETRY: Duration = Duration::from_millis(50);
const CANDIDATES: usize = 5;
const KEPT: usize = 10;
/// Locks from which each process takes some.
const LOCKS: usize = 6;
const PROCESSES: usize = 4;

const URI: &str = "DLM_TEST_URI";
const CLIENT: &str = "DLM_TEST_CLIENT";
const PROCESS: &str = "DLM_TEST_PROCESS";
const ROUNDS: &str = "DLM_TEST_ROUNDS";
const TTL_MS: &str = "DLM_TEST_TTL_MS";

/// A store, the client name that the processes of one test share, and a directory for their files.
struct Place {
    uri: String,
    client: String,
    files: TempDir,
}

impl Place {
    fn new(uri: String) -> Place {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        Place { uri, client: format!("terms-{since}"), files: tempfile::tempdir().unwrap() }
    }

    fn start(&self, role: &str, process: usize, rounds: usize) -> Dialogue {
        self.start_with(role, process, rounds, TTL)
    }

    fn start_with(&self, role: &str, process: usize, rounds: usize, ttl: Duration) -> Dialogue {
        let mut command = role::process(module_path!(), role, self.files.path());
        command.env(URI, &self.uri).env(CLIENT, &self.client).env(ROUNDS, rounds.to_string());
        command.env(TTL_MS, ttl.as_millis().to_string());
        Dialogue::start(command.env(PROCESS, process.to_string()))
    }
}

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, files)) = role::asked() else { return };
    let setting = |name: &str| env::var(name).unwrap();
    let manager = LockManager::builder().store_uri(&setting(URI)).client(&setting(CLIENT));
    let ttl = Duration::from_millis(setting(TTL_MS).parse().unwrap());
    let manager = manager.ttl(ttl).wait(LONGEST).timeout(LONG).retry(RETRY).open().unwrap();
    let (process, rounds) = (setting(PROCESS).parse().unwrap(), setting(ROUNDS).parse().unwrap());
    match role.as_str() {
        "campaign" => campaign(&manager, process, &files),
        "keep" => keep(&manager),
        "sets" => take_sets(&manager, rounds, &files),
        other => panic!("no such role: {other}"),
    }
}

// ---- Elections -----------------------------------------------------------------------------------

/// What a candidate writes to the file of all candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// It leads. The moment is after a guard that succeeded.
    Leads,
    /// It still leads. The moment is before a guard that succeeded.
    Goes,
    /// A guard failed.
    Lost,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    word: Word,
    candidate: usize,
    fence: u64,
    at: u64,
}

fn path_of_terms(files: &Path) -> PathBuf {
    files.join("terms")
}

fn campaign(manager: &LockManager, candidate: usize, files: &Path) {
    // Then others lead at once after a kill, and need not wait for the TTL.
    let dies = manager.store().starts_with("embedded:");
    let election = manager.election("e", Level::Xdc).unwrap();
    let mut file = OpenOptions::new().append(true).create(true).open(path_of_terms(files)).unwrap();
    // One write, so that lines of several processes do not mix.
    let mut tell = |word: &str, fence: u64, at: Moment| {
        file.write_all(format!("{word} {candidate} {fence} {}\n", at.as_nanos()).as_bytes()).unwrap();
    };
    let resigns = AtomicBool::new(false);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(order) = next_order() {
                assert_eq!(order, "resign");
                resigns.store(true, Ordering::SeqCst);
            }
            ends.store(true, Ordering::SeqCst);
        });
        while !ends.load(Ordering::SeqCst) {
            let mut options = AcquireOptions::new().wait(TTL);
            if dies {
                options = options.dies_with_process();
            }
            let Ok(term) = election.campaign(&options) else { continue };
            let fence = match term.guard() {
                Ok(fence) => fence.0,
                Err(_) => continue,
            };
            resigns.store(false, Ordering::SeqCst);
            tell("leads", fence, Moment::now());
            while !resigns.load(Ordering::SeqCst) && !ends.load(Ordering::SeqCst) {
                let before = Moment::now();
                if term.guard().is_err() {
                    break;
                }
                tell("goes", fence, before);
                thread::sleep(Duration::from_millis(5));
            }
            match term.state() {
                LeaseState::Lost(_) => tell("lost", fence, Moment::now()),
                // A store that does not answer is no failure of this test.
                _ => drop(term.resign()),
            }
        }
    });
}

fn lines(place: &Place) -> Vec<Line> {
    let text = fs::read_to_string(path_of_terms(place.files.path())).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let word = match words.next()? {
            "leads" => Word::Leads,
            "goes" => Word::Goes,
            _ => Word::Lost,
        };
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(Line { word, candidate: number()? as usize, fence: number()?, at: number()? })
    };
    text.lines().filter_map(line).collect()
}

/// Waits for a leader with a higher fence.
fn leader_after(place: &Place, fence: u64) -> Line {
    let mut found = None;
    eventually("somebody leads", || {
        found = lines(place).into_iter().find(|line| line.word == Word::Leads && line.fence > fence);
        thread::sleep(Duration::from_millis(5));
        found.is_some()
    });
    found.unwrap()
}

/// The leader resigns, is killed or is stopped, again and again.
fn of_five_candidates_never_two_lead_and_one_always_does_soon(place: &Place, rounds: usize) {
    let mut candidates: Vec<_> = (0..CANDIDATES).map(|number| place.start("campaign", number, 0)).collect();
    let mut leader = leader_after(place, 0);
    for round in 0..rounds {
        thread::sleep(Duration::from_millis(fastrand::u64(..30)));
        // On a busy machine, the leader may have changed by itself.
        leader = lines(place).into_iter().rfind(|line| line.word == Word::Leads).unwrap_or(leader);
        let number = leader.candidate;
        match round % 3 {
            0 => candidates[number].order("resign"),
            1 => candidates[number] = place.start("campaign", number, 0),
            _ => candidates[number].pause(),
        }
        let next = leader_after(place, leader.fence);
        if round % 3 == 2 {
            candidates[number].go_on();
            let fence = leader.fence;
            eventually("the stopped leader notices", || {
                let written = lines(place);
                let seen = |line: &Line| line.word == Word::Lost && line.fence == fence;
                // It may have been stopped between two terms.
                written.iter().any(seen)
                    || !written.iter().any(|line| line.word == Word::Goes && line.fence == fence)
            });
        }
        leader = next;
    }
    candidates.into_iter().for_each(|candidate| drop(candidate.finish()));

    let lines = lines(place);
    let mut terms: Vec<_> = lines.iter().filter(|line| line.word == Word::Leads).collect();
    terms.sort_by_key(|line| line.fence);
    assert!(terms.len() > rounds, "{} terms in {rounds} rounds", terms.len());
    for pair in terms.windows(2) {
        assert_ne!(pair[0].fence, pair[1].fence, "one fence for two terms");
        let goes = |line: &&Line| line.word == Word::Goes && line.fence == pair[0].fence;
        let last = lines.iter().filter(goes).map(|line| line.at).max().unwrap_or(0);
        assert!(last <= pair[1].at, "two led at once: {pair:?}, the first until {last}");
    }
}

// ---- Kept leases of a stopped process ------------------------------------------------------------

fn keep(manager: &LockManager) {
    let options = AcquireOptions::new().keep(Duration::MAX);
    let acquire = |number: usize| {
        let lock = manager.lock(&number.to_string(), Level::Xdc).unwrap();
        // A grant that comes after the end of its lease is an error.
        loop {
            match lock.acquire_with(&options) {
                Ok(lease) => break lease,
                Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
            }
        }
    };
    // On a busy machine, a lease may be lost before anybody listens. Nobody is told what was true before.
    let listened = |number| {
        let lease = acquire(number);
        let changes = lease.changes().unwrap();
        let is_to_be_told = lease.state().is_valid();
        (lease, changes, is_to_be_told)
    };
    let leases: Vec<(Lease, _, _)> = (0..KEPT).map(listened).collect();
    say(format_args!("kept"));
    assert_eq!(next_order().as_deref(), Some("tell"));
    for (lease, changes, is_to_be_told) in &leases {
        until("the lease is lost", || !lease.state().is_valid());
        let reason = lease.state().lost().map_or("none", LostReason::name);
        until("the loss is told", || changes.try_recv().is_ok() || !is_to_be_told);
        let refused = lease.guard().unwrap_err();
        assert_eq!(refused.lost_reason().map(LostReason::name), Some(reason));
        say(format_args!("lost {reason}"));
    }
}

fn a_process_that_was_stopped_finds_out_why_its_kept_leases_are_lost(place: &Place) {
    let has_lost = KEPT_TTLS.into_iter().any(|ttl| a_stopped_process_finds_out(place, ttl));
    assert!(has_lost, "no lease was lost because its process was stopped");
}

/// Returns whether a lease was lost because the process was stopped.
fn a_stopped_process_finds_out(place: &Place, ttl: Duration) -> bool {
    let mut holder = place.start_with("keep", 0, 0, ttl);
    holder.report("kept");
    holder.pause();
    // Longer than the lease lasts in the store, with its rounding.
    thread::sleep(3 * ttl);
    holder.go_on();
    holder.order("tell");
    let reasons: Vec<_> = (0..KEPT).map(|_| holder.report("lost").remove(0)).collect();
    let stopped = reasons.iter().filter(|reason| *reason == "PROCESS_STOPPED").count();
    // A renewal under way during the stop may have found out more, or may have failed before it on a busy machine.
    let may_be = ["PROCESS_STOPPED", "RECORD_GONE", "EXPIRED"];
    assert!(reasons.iter().all(|it| may_be.contains(&&**it)), "{reasons:?}");
    holder.finish();
    stopped > 0
}

// ---- Sets of locks -------------------------------------------------------------------------------

/// Takes some of the locks in a random order, `rounds` times. A file for each lock shows that nobody else has it.
fn take_sets(manager: &LockManager, rounds: usize, files: &Path) {
    let locks: Vec<_> =
        (0..LOCKS).map(|number| manager.lock(&format!("set-{number}"), Level::Xdc).unwrap()).collect();
    let options = AcquireOptions::new().ttl(10 * LONG).wait(2 * LONGEST);
    for round in 0..rounds {
        if round % 10 == 0 {
            say(format_args!("goes on"));
        }
        let mut numbers: Vec<usize> = (0..LOCKS).collect();
        fastrand::shuffle(&mut numbers);
        numbers.truncate(fastrand::usize(2..=4));
        let wanted: Vec<_> = numbers.iter().map(|number| &locks[*number]).collect();
        let set = manager.acquire_all(&wanted, &options).unwrap();
        set.check().unwrap();
        let files: Vec<_> = numbers.iter().map(|number| files.join(format!("set-{number}"))).collect();
        for file in &files {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(file)
                .expect("another process has this lock");
        }
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
        assert!(set.release().unwrap());
    }
    say(format_args!("done"));
}

fn processes_that_take_overlapping_sets_never_block_each_other(place: &Place, rounds: usize) {
    let mut processes: Vec<_> =
        (0..PROCESSES).map(|number| place.start("sets", number, rounds / PROCESSES)).collect();
    for process in processes.drain(..) {
        // Each report has its own time limit, so a busy machine may take as long as it needs.
        while process.any_report() != ["done"] {}
        process.finish();
    }
    let manager = LockManager::builder().store_uri(&place.uri).client(&place.client).timeout(LONG);
    let manager = manager.open().unwrap();
    for number in 0..LOCKS {
        let lock = manager.lock(&format!("set-{number}"), Level::Xdc).unwrap();
        assert!(lock.inspect().unwrap().holder.is_none(), "a part of a set is left");
    }
}

#[cfg(feature = "embedded")]
mod embedded {
    use super::*;

    /// The store is beside the files of the processes.
    fn place() -> Place {
        let place = Place::new(String::new());
        Place { uri: format!("embedded:{}", place.files.path().join("store").display()), ..place }
    }

    #[test]
    fn of_five_candidates_never_two_lead_and_one_always_does_soon() {
        let rounds = if shortened("12 rounds of 50") { 12 } else { 50 };
        super::of_five_candidates_never_two_lead_and_one_always_does_soon(&place(), rounds);
    }

    #[test]
    fn a_process_that_was_stopped_finds_out_why_its_kept_leases_are_lost() {
        super::a_process_that_was_stopped_finds_out_why_its_kept_leases_are_lost(&place());
    }

    #[test]
    fn processes_that_take_overlapping_sets_never_block_each_other() {
        let rounds = if shortened("2,000 rounds of 10,000") { 2_000 } else { 10_000 };
        super::processes_that_take_overlapping_sets_never_block_each_other(&place(), rounds);
    }
}

#[cfg(feature = "hbase")]
mod hbase {
    use super::*;
    use dlm_fixtures::{hbase, table};

    fn place() -> Option<Place> {
        table::gateway()?;
        Some(Place::new(format!("hbase://{}/{}", hbase::hbase().masters, table::TABLE)))
    }

    #[test]
    fn of_five_candidates_never_two_lead_and_one_always_does_soon() {
        let Some(place) = place() else { return };
        let rounds = if shortened("6 rounds of 50") { 6 } else { 50 };
        super::of_five_candidates_never_two_lead_and_one_always_does_soon(&place, rounds);
    }

    #[test]
    fn a_process_that_was_stopped_finds_out_why_its_kept_leases_are_lost() {
        let Some(place) = place() else { return };
        super::a_process_that_was_stopped_finds_out_why_its_kept_leases_are_lost(&place);
    }

    #[test]
    fn processes_that_take_overlapping_sets_never_block_each_other() {
        let Some(place) = place() else { return };
        let rounds = if shortened("400 rounds of 4,000") { 400 } else { 4_000 };
        super::processes_that_take_overlapping_sets_never_block_each_other(&place, rounds);
    }
}

#[cfg(feature = "aerospike")]
mod aerospike {
    use super::*;
    use dlm_fixtures::aerospike::aerospike_or_skip;

    #[test]
    fn of_five_candidates_never_two_lead_and_one_always_does_soon() {
        let Some(server) = aerospike_or_skip() else { return };
        let rounds = if shortened("6 rounds of 50") { 6 } else { 50 };
        super::of_five_candidates_never_two_lead_and_one_always_does_soon(&Place::new(server.uri()), rounds);
    }

    #[test]
    fn a_process_that_was_stopped_finds_out_why_its_kept_leases_are_lost() {
        let Some(server) = aerospike_or_skip() else { return };
        super::a_process_that_was_stopped_finds_out_why_its_kept_leases_are_lost(&Place::new(server.uri()));
    }

    #[test]
    fn processes_that_take_overlapping_sets_never_block_each_other() {
        let Some(server) = aerospike_or_skip() else { return };
        let rounds = if shortened("400 rounds of 4,000") { 400 } else { 4_000 };
        super::processes_that_take_overlapping_sets_never_block_each_other(&Place::new(server.uri()), rounds);
    }
}

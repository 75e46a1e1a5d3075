//! Processes that are stopped for longer than their leases and then continue. They find their leases lost and cannot
//! change the next holder's lock. A receiver that compares fences refuses their writes.
#![cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use dlm::{Code, Fence, Lease, Level, Lock, LockManager, Moment};
use dlm_fixtures::dialogue::{Dialogue, next_order, say};
use dlm_fixtures::role;
use dlm_testkit::{LONG, LONGEST, eventually};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// TTLs of leases that expire during a pause, in processes that only hold them. The next one is used if this machine
/// was so slow that most leases expired before.
const IDLE_TTLS: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(12), Duration::from_secs(45)];
/// The same in a process that acquires, renews and releases all the time.
const BUSY_TTL: Duration = Duration::from_secs(1);
/// TTL of a lease that does not expire during a test.
const NEXT_TTL: Duration = LONG.saturating_mul(10);

const URI: &str = "DLM_TEST_URI";
const CLIENT: &str = "DLM_TEST_CLIENT";
const PROCESS: &str = "DLM_TEST_PROCESS";
const LOCKS: &str = "DLM_TEST_LOCKS";
const TTL_MS: &str = "DLM_TEST_TTL_MS";
/// Rounds of pauses until one has interrupted an acquire, and one a renewal.
const ROUNDS_MAX: usize = 10;

/// The store and the client name that the processes of one test share.
struct Place {
    uri: String,
    client: String,
    /// Whether a process that is stopped in the middle of a change blocks all changes of other processes.
    stopped_writer_blocks: bool,
}

impl Place {
    fn new(uri: String) -> Place {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        Place { uri, client: format!("pauses-{since}"), stopped_writer_blocks: false }
    }

    fn manager(&self, ttl: Duration) -> LockManager {
        let builder = LockManager::builder().store_uri(&self.uri).client(&self.client).ttl(ttl);
        builder.wait(LONGEST).timeout(LONGEST).retry(Duration::from_millis(50)).open().unwrap()
    }

    /// Starts this program as a process with this role. It uses `locks` locks, which belong to the number `process`,
    /// for leases of this length.
    fn start(&self, role: &str, process: usize, locks: usize, ttl: Duration) -> Dialogue {
        let mut command = role::process(module_path!(), role, &env::temp_dir());
        command.env(URI, &self.uri).env(CLIENT, &self.client).env(TTL_MS, ttl.as_millis().to_string());
        Dialogue::start(command.env(PROCESS, process.to_string()).env(LOCKS, locks.to_string()))
    }
}

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, _)) = role::asked() else { return };
    let setting = |name: &str| env::var(name).unwrap();
    let place = Place { client: setting(CLIENT), ..Place::new(setting(URI)) };
    let (process, locks) = (setting(PROCESS).parse().unwrap(), setting(LOCKS).parse().unwrap());
    let manager = place.manager(Duration::from_millis(setting(TTL_MS).parse().unwrap()));
    match role.as_str() {
        "ask" => ask(&manager),
        "hold" => hold(&manager, process, locks),
        "work" => work(&manager, process, locks),
        other => panic!("no such role: {other}"),
    }
}

/// Returns one lock of a process.
fn lock(manager: &LockManager, process: usize, number: usize) -> Lock {
    manager.lock(&format!("{process}-{number}"), Level::Xdc).unwrap()
}

fn number(fence: Option<Fence>) -> u64 {
    fence.expect("these stores fence").0
}

/// The service that the locks guard. For each lock it refuses fences below the highest one that it has received.
#[derive(Default)]
struct Sink {
    highest: Mutex<HashMap<(usize, usize), u64>>,
    refused: AtomicUsize,
}

impl Sink {
    /// Returns whether the write is accepted.
    fn write(&self, process: usize, number: usize, fence: u64) -> bool {
        let mut highest = self.highest.lock().unwrap();
        let highest = highest.entry((process, number)).or_default();
        let accepted = fence >= *highest;
        *highest = fence.max(*highest);
        self.refused.fetch_add(usize::from(!accepted), Ordering::SeqCst);
        accepted
    }
}

/// Acquires one lock.
fn ask(manager: &LockManager) {
    let _lease = lock(manager, 0, 0).acquire().unwrap();
    say(format_args!("held"));
    assert_eq!(next_order(), None);
}

// ---- Holders that are stopped while they hold --------------------------------------------------

/// Holds its locks and renews them until the order `still`. Then it checks each lease until the check fails. After
/// that it renews and releases, as a holder would that has not checked.
fn hold(manager: &LockManager, process: usize, locks: usize) {
    let still = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..locks {
            let (lock, still) = (lock(manager, process, number), &still);
            let work = move || hold_one(&lock, number, still);
            thread::Builder::new().name(format!("dlm-test-{number}")).spawn_scoped(scope, work).unwrap();
        }
        assert_eq!(next_order().as_deref(), Some("still"));
        still.store(true, Ordering::SeqCst);
    });
    // A process that has ended cannot be stopped.
    assert_eq!(next_order(), None);
}

fn hold_one(lock: &Lock, number: usize, still: &AtomicBool) {
    let mut lease = acquired(lock);
    say(format_args!("held {number}"));
    while !still.load(Ordering::SeqCst) {
        // If this machine is too slow and the lease is lost, acquire a new one.
        if lease.remaining() < lease.ttl() / 2 && lease.renew().is_err() {
            lease = acquired(lock);
        }
        thread::sleep(Duration::from_millis(5));
    }
    if lease.renew().is_err() {
        lease = acquired(lock);
    }
    let descriptor = lease.lost_fd().unwrap();
    let ends = lease.ends();
    say(format_args!("still {number} {} {}", self::number(lease.fence()), ends.as_nanos()));
    // When the last successful check began.
    let mut last = Moment::from_nanos(0);
    loop {
        let asked = Moment::now();
        match lease.check() {
            Ok(()) => last = asked,
            Err(error) => {
                assert_eq!(error.code(), Code::LeaseLost);
                break;
            }
        }
        thread::sleep(Duration::from_micros(fastrand::u64(..2_000)));
    }
    // The kernel's timer may be late.
    let late = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
    let readable = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&late)).unwrap();
    let fence = self::number(lease.fence());
    // Half of the locks renew first, the others release first. The second call no longer asks the store.
    let (renewed, released) = if number.is_multiple_of(2) {
        let renewed = lease.renew();
        (renewed, lease.release())
    } else {
        let released = lease.release();
        (lease.renew(), released)
    };
    let word = |answer: dlm::Result<bool>| match answer {
        Ok(answer) => answer.to_string(),
        Err(error) => error.code().name().to_owned(),
    };
    let (renewed, released) = (word(renewed.map(|()| true)), word(released));
    let (last, still_lost) = (last.as_nanos(), lease.check().is_err());
    say(format_args!("lost {number} {fence} {last} {readable} {renewed} {released} {still_lost}"));
}

/// Acquires a lock. A grant that comes after the end of its lease is an error.
fn acquired(lock: &Lock) -> Lease {
    loop {
        match lock.acquire() {
            Ok(lease) => return lease,
            Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
        }
    }
}

/// Starts `processes` processes that hold `locks` locks each, and stops them until others have acquired the locks.
fn stopped_holders_find_their_leases_lost_and_harm_no_successor(
    place: &Place,
    processes: usize,
    locks: usize,
) {
    for ttl in IDLE_TTLS {
        let (sink, stopped) = (Sink::default(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for process in 0..processes {
                let (sink, stopped) = (&sink, &stopped);
                let work = move || stop_one_that_holds(place, process, locks, ttl, sink, stopped);
                thread::Builder::new().name(format!("dlm-test-{process}")).spawn_scoped(scope, work).unwrap();
            }
        });
        assert_eq!(sink.refused.into_inner(), processes * locks, "late writes refused");
        // On a slow machine a lease may expire before its holder is stopped, and a late call may get no answer.
        let stopped = stopped.into_inner();
        eprintln!(
            "{stopped} of {} holders were stopped while they held, and refused afterwards",
            processes * locks
        );
        if stopped > processes * locks / 2 {
            return;
        }
    }
    panic!("too few leases lasted until their holder was stopped");
}

fn stop_one_that_holds(
    place: &Place,
    process: usize,
    locks: usize,
    ttl: Duration,
    sink: &Sink,
    stopped: &AtomicUsize,
) {
    let mut holder = place.start("hold", process, locks, ttl);
    (0..locks).for_each(|_| drop(holder.report("held")));
    holder.order("still");
    // The fence of each lock, and the end of its lease.
    let mut held = vec![(0, Moment::from_nanos(0)); locks];
    // On a slow machine some leases end before others are reported.
    let (mut still, mut lost) = (0, Vec::new());
    while still < locks {
        let mut words = holder.any_report();
        match words.remove(0).as_str() {
            "still" => {
                let [number, fence, ends] = numbers(&words);
                held[number as usize] = (fence, Moment::from_nanos(ends));
                assert!(sink.write(process, number as usize, fence));
                still += 1;
            }
            "lost" => lost.push(words),
            other => panic!("{other}: {words:?}"),
        }
    }
    thread::sleep(Duration::from_micros(fastrand::u64(..20_000)));
    holder.pause();
    let pause_began = Moment::now();
    stopped.fetch_add(held.iter().filter(|(_, ends)| pause_began < *ends).count(), Ordering::SeqCst);

    let manager = place.manager(NEXT_TTL);
    let successors: Vec<Lease> = thread::scope(|scope| {
        let waiting: Vec<_> = held
            .iter()
            .enumerate()
            .map(|(number, (fence, ends))| {
                let lock = lock(&manager, process, number);
                let work = move || {
                    let lease = lock.acquire().unwrap();
                    let granted = Moment::now();
                    assert!(granted >= *ends, "{number}: overlap of {:?}", ends.since(granted));
                    assert!(
                        self::number(lease.fence()) > *fence,
                        "{number}: {:?} after {fence}",
                        lease.fence()
                    );
                    assert!(sink.write(process, number, self::number(lease.fence())));
                    lease
                };
                thread::Builder::new().name(format!("dlm-test-{number}")).spawn_scoped(scope, work).unwrap()
            })
            .collect();
        waiting.into_iter().map(|one| one.join().unwrap()).collect()
    });

    let pause_ended = Moment::now();
    holder.go_on();
    while lost.len() < locks {
        lost.push(holder.report("lost"));
    }
    for words in lost {
        let [number, fence, last] = numbers(&words[..3]);
        let (number, last) = (number as usize, Moment::from_nanos(last));
        assert!(last < held[number].1, "{number}: a check succeeded after the end of the lease");
        assert!(last < pause_ended, "{number}: the first check after the pause succeeded");
        let expected = if number.is_multiple_of(2) {
            ["1", "LEASE_LOST", "false", "true"]
        } else {
            ["1", "LEASE_LOST", "LEASE_LOST", "true"]
        };
        // One whose lease ended before the pause may have called before others had the lock. Then the calls find its record.
        let alone = if number.is_multiple_of(2) {
            [["1", "true", "true", "true"], ["1", "true", "LEASE_LOST", "true"]]
        } else {
            [["1", "LEASE_LOST", "true", "true"]; 2]
        };
        let is_as_alone = pause_began >= held[number].1 && alone.iter().any(|alone| words[3..] == *alone);
        // A store that does not answer a late call changes nothing for the successor. It is not counted as a proof.
        let is_unanswered = |word: &String| ["CONNECTION_ERROR", "IN_DOUBT"].contains(&word.as_str());
        let is_refused = |word: &String| is_unanswered(word) || word == "false" || word == "LEASE_LOST";
        let [descriptor, renew, release, for_good] = &words[3..] else { panic!("{words:?}") };
        if is_unanswered(renew) || is_unanswered(release) {
            eprintln!("{number}: the store did not answer: {words:?}");
            stopped.fetch_sub(usize::from(pause_began < held[number].1), Ordering::SeqCst);
            assert_eq!((&**descriptor, &**for_good), ("1", "true"), "{number}: {words:?}");
            assert!(is_refused(renew) && is_refused(release), "{number}: {words:?}");
        } else if !is_as_alone {
            assert_eq!(words[3..], expected, "{number}: descriptor, renew, release, lost for good");
        }
        assert_eq!(fence, held[number].0);
        assert!(!sink.write(process, number, fence), "{number}: a late write was accepted");
    }
    holder.finish();

    for (number, lease) in successors.iter().enumerate() {
        let seen = lock(&manager, process, number).inspect().unwrap();
        let pid = seen.holder.and_then(|holder| holder.identity).map(|identity| identity.pid);
        assert_eq!((pid, seen.fence), (Some(std::process::id()), lease.fence()), "{number}");
        lease.renew().unwrap_or_else(|error| panic!("{number}: {}", error.chain()));
        lease.check().unwrap();
        assert!(sink.write(process, number, self::number(lease.fence())));
        assert!(lease.release().unwrap());
    }
}

fn numbers<const N: usize>(words: &[String]) -> [u64; N] {
    let numbers: Vec<_> = words.iter().map(|word| word.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

// ---- Processes that are stopped in the middle of a call ----------------------------------------

/// The times of one grant as its process knows them, in nanoseconds of the clock that all processes share.
#[derive(Debug, Clone, Copy)]
struct Granted {
    lock: usize,
    fence: u64,
    asked: u64,
    got: u64,
    /// Moment until which the lease lasted for certain: the last renewal plus the TTL, or the release.
    surely: u64,
    /// When the last successful check began.
    checked: u64,
}

/// A call that took long enough to contain a pause.
#[derive(Debug)]
struct LongCall {
    what: String,
    began: u64,
    ended: u64,
}

/// Acquires and releases its locks until no more orders arrive. Then it reports all grants and long calls.
fn work(manager: &LockManager, process: usize, locks: usize) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..locks {
            let (lock, stop) = (lock(manager, process, number), &stop);
            let work = move || work_at_one(&lock, number, stop);
            thread::Builder::new().name(format!("dlm-test-{number}")).spawn_scoped(scope, work).unwrap();
        }
        while next_order().is_some() {}
        stop.store(true, Ordering::SeqCst);
    });
}

fn work_at_one(lock: &Lock, number: usize, stop: &AtomicBool) {
    /// Short, because pauses must interrupt calls. Without it, few threads would do all the work.
    fn rest() {
        thread::sleep(Duration::from_micros(fastrand::u64(..100)));
    }
    let mut calls = Vec::new();
    // Returns whether the call took long enough to contain a pause, and records such a call.
    let mut timed = |what: &'static str, began: Moment| {
        let ended = Moment::now();
        let long = ended.since(began) > BUSY_TTL;
        if long {
            calls.push((what, began, ended));
        }
        long
    };
    // Checks the lease repeatedly, for longer than a successor needs to acquire a free lock.
    let linger = |lease: &Lease, checked: &mut Moment| {
        let over = Moment::now().after(Duration::from_millis(150));
        while Moment::now() < over {
            let asked = Moment::now();
            if lease.check().is_ok() {
                *checked = asked;
            }
            rest();
        }
    };
    let mut grants = Vec::new();
    say(format_args!("works {number}"));
    while !stop.load(Ordering::SeqCst) {
        let asked = Moment::now();
        let lease = lock.acquire();
        let long = timed("acquire", asked);
        let Ok(lease) = lease.map_err(|error| assert!(error.is_retryable(), "{}", error.chain())) else {
            continue;
        };
        let got = Moment::now();
        let (mut since, mut checked) = (asked, Moment::from_nanos(0));
        if long {
            linger(&lease, &mut checked);
        }
        // Half of the threads are in an acquire most of the time, the others in a renewal.
        for _ in 0..if number.is_multiple_of(2) { 0 } else { 20 } {
            rest();
            let asked = Moment::now();
            if lease.check().is_err() {
                break;
            }
            (checked, since) = (asked, if lease.renew().is_ok() { asked } else { since });
            if timed("renew", asked) {
                linger(&lease, &mut checked);
            }
        }
        let asked_last = Moment::now();
        if lease.check().is_ok() {
            checked = asked_last;
        }
        let releasing = Moment::now();
        if let Err(error) = lease.release() {
            assert!(error.is_retryable() || error.code() == Code::LeaseLost, "{}", error.chain());
        }
        timed("release", releasing);
        // Both clocks may be slightly wrong.
        let surely = since.after(BUSY_TTL - BUSY_TTL / 100 - Duration::from_millis(5)).min(releasing);
        let fence = self::number(lease.fence());
        grants.push((fence, asked, got, surely, checked));
        rest();
    }
    for (fence, asked, got, surely, checked) in grants {
        let [asked, got, surely, checked] = [asked, got, surely, checked].map(Moment::as_nanos);
        say(format_args!("granted {number} {fence} {asked} {got} {surely} {checked}"));
    }
    for (what, began, ended) in calls {
        say(format_args!("call {what} {} {}", began.as_nanos(), ended.as_nanos()));
    }
}

/// Stops a process with `locks` threads `pauses` times, each time until others have acquired all its locks. Does so
/// again until the pauses have interrupted calls.
fn a_call_that_a_pause_interrupts_gives_no_lease_that_lasts(place: &Place, locks: usize, pauses: usize) {
    let (mut acquires, mut renewals) = (0, 0);
    for _ in 0..ROUNDS_MAX {
        let hit = interrupted(place, locks, pauses);
        (acquires, renewals) = (acquires + hit[0], renewals + hit[1]);
        if acquires > 0 && renewals > 0 {
            return;
        }
    }
    panic!("no call was interrupted: nothing was tested");
}

/// Returns how many acquires and renewals a pause has interrupted.
fn interrupted(place: &Place, locks: usize, pauses: usize) -> [usize; 2] {
    let worker = place.start("work", 0, locks, BUSY_TTL);
    (0..locks).for_each(|_| drop(worker.report("works")));
    let manager = place.manager(NEXT_TTL);
    let grants = Mutex::new(Vec::new());
    let mut windows = Vec::new();
    for _ in 0..pauses {
        thread::sleep(Duration::from_micros(fastrand::u64(100_000..300_000)));
        worker.pause();
        let began = Moment::now();
        let got = AtomicUsize::new(0);
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..locks)
                .map(|number| {
                    let (lock, got) = (lock(&manager, 0, number), &got);
                    let work = move || {
                        let asked = Moment::now();
                        let lease = lock.acquire().unwrap();
                        got.fetch_add(1, Ordering::SeqCst);
                        (asked, Moment::now(), lease)
                    };
                    thread::Builder::new()
                        .name(format!("dlm-test-{number}"))
                        .spawn_scoped(scope, work)
                        .unwrap()
                })
                .collect();
            let over = began.after(2 * BUSY_TTL);
            eventually("others get the locks of the stopped process", || {
                let all = got.load(Ordering::SeqCst) == locks;
                Moment::now() >= over && (all || place.stopped_writer_blocks)
            });
            windows.push((began.as_nanos(), Moment::now().as_nanos()));
            worker.go_on();
            let leases: Vec<_> = waiting.into_iter().map(|one| one.join().unwrap()).collect();
            // Time for requests that were in flight to arrive, and to do harm if they can.
            thread::sleep(Duration::from_millis(150));
            for (number, (asked, got, lease)) in leases.into_iter().enumerate() {
                let checked = Moment::now();
                lease.check().unwrap();
                lease.renew().unwrap_or_else(|error| panic!("{number}: {}", error.chain()));
                let releasing = Moment::now();
                assert!(lease.release().unwrap());
                let [asked, got, surely, checked] = [asked, got, releasing, checked].map(Moment::as_nanos);
                let fence = self::number(lease.fence());
                grants.lock().unwrap().push(Granted { lock: number, fence, asked, got, surely, checked });
            }
        });
    }
    let (mut grants, mut calls) = (grants.into_inner().unwrap(), Vec::new());
    for report in worker.finish() {
        match report[0].as_str() {
            "granted" => {
                let [lock, fence, asked, got, surely, checked] = numbers(&report[1..]);
                let lock = lock as usize;
                grants.push(Granted { lock, fence, asked, got, surely, checked });
            }
            "call" => {
                let [began, ended] = numbers(&report[2..]);
                calls.push(LongCall { what: report[1].clone(), began, ended });
            }
            other => panic!("{other}"),
        }
    }
    let hit = |what: &str| {
        let holds = |call: &&LongCall| {
            let inside = |(began, ended): &(u64, u64)| call.began <= *began && *ended <= call.ended;
            call.what == what && windows.iter().any(inside)
        };
        calls.iter().filter(holds).count()
    };
    let (acquires, renewals, releases) = (hit("acquire"), hit("renew"), hit("release"));
    eprintln!(
        "{} grants; pauses within an acquire: {acquires}, a renewal: {renewals}, a release: {releases}",
        grants.len()
    );
    for number in 0..locks {
        judge(grants.iter().filter(|grant| grant.lock == number).copied().collect());
    }
    [acquires, renewals]
}

/// Checks all grants of one lock. No two of them may overlap.
fn judge(mut grants: Vec<Granted>) {
    grants.sort_by_key(|grant| grant.got);
    let mut highest = Vec::new();
    for grant in &grants {
        highest.push(highest.last().map_or(grant.fence, |last: &u64| grant.fence.max(*last)));
    }
    for grant in &grants {
        // The highest fence that was granted before this request began.
        let before = grants.partition_point(|other| other.got < grant.asked);
        let highest = before.checked_sub(1).map(|last| highest[last]);
        assert!(highest < Some(grant.fence), "{grant:?} after fence {highest:?}");
    }
    grants.sort_by_key(|grant| grant.fence);
    let mut before = grants[0];
    for grant in &grants[1..] {
        assert_ne!(grant.fence, before.fence, "granted twice");
        assert!(grant.got >= before.surely, "overlap: {grant:?} while {before:?}");
        assert!(grant.got >= before.checked, "a check succeeded after the next grant: {grant:?}, {before:?}");
        let (surely, checked) = (before.surely.max(grant.surely), before.checked.max(grant.checked));
        before = Granted { surely, checked, ..*grant };
    }
}

#[cfg(feature = "embedded")]
mod embedded {
    use super::Place;

    fn place(directory: &tempfile::TempDir) -> Place {
        let uri = format!("embedded:{}", directory.path().display());
        Place { stopped_writer_blocks: true, ..Place::new(uri) }
    }

    #[test]
    fn stopped_holders_find_their_leases_lost_and_harm_no_successor() {
        let directory = tempfile::tempdir().unwrap();
        super::stopped_holders_find_their_leases_lost_and_harm_no_successor(&place(&directory), 4, 25);
    }

    #[test]
    fn a_call_that_a_pause_interrupts_gives_no_lease_that_lasts() {
        let directory = tempfile::tempdir().unwrap();
        super::a_call_that_a_pause_interrupts_gives_no_lease_that_lasts(&place(&directory), 8, 6);
    }
}

#[cfg(feature = "hbase")]
mod hbase {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::{NEXT_TTL, Place};
    use dlm_fixtures::fake::{Answer, Fake, always};
    use dlm_fixtures::{hbase, table};
    use dlm_testkit::until;

    /// Returns the table with a direct connection. If this machine cannot run HBase, says so and returns `None`.
    fn place() -> Option<Place> {
        table::gateway()?;
        let masters = &hbase::hbase().masters;
        Some(Place::new(format!("hbase://{masters}/{}", table::TABLE)))
    }

    #[test]
    fn stopped_holders_find_their_leases_lost_and_harm_no_successor() {
        let Some(place) = place() else { return };
        super::stopped_holders_find_their_leases_lost_and_harm_no_successor(&place, 4, 25);
    }

    #[test]
    fn stopped_holders_behind_a_gateway_find_their_leases_lost_and_harm_no_successor() {
        let Some(gateway) = table::gateway() else { return };
        let place = Place::new(table::uri(gateway));
        super::stopped_holders_find_their_leases_lost_and_harm_no_successor(&place, 1, 10);
    }

    #[test]
    fn a_call_that_a_pause_interrupts_gives_no_lease_that_lasts() {
        let Some(place) = place() else { return };
        super::a_call_that_a_pause_interrupts_gives_no_lease_that_lasts(&place, 8, 6);
    }

    /// When a process goes on, the system interrupts its reads that have a time-out. The connection is as good as before.
    #[test]
    fn a_call_whose_process_is_stopped_for_a_moment_keeps_its_connection_and_is_not_sent_again() {
        let (fake, may_answer) = (Fake::honest(), Arc::new(AtomicBool::new(false)));
        fake.act(always("Multi", Answer::When(Arc::clone(&may_answer))));
        let place = Place::new(format!("hbase://{}/t", fake.address));
        let asking = place.start("ask", 0, 1, NEXT_TTL);
        until("the lock was asked for", || fake.count("Multi") > 0);
        for _ in 0..5 {
            until("it waits for the answer", || asking.is_waiting());
            // Time to begin to read, if its threads waited for something else.
            thread::sleep(Duration::from_millis(20));
            asking.pause();
            asking.go_on();
        }
        may_answer.store(true, Ordering::SeqCst);
        asking.report("held");
        assert_eq!((fake.count("Multi"), fake.connections("ClientService")), (1, 1));
        asking.finish();
    }
}

#[cfg(feature = "aerospike")]
mod aerospike {
    use super::Place;
    use dlm_fixtures::aerospike::aerospike_or_skip;

    #[test]
    fn stopped_holders_find_their_leases_lost_and_harm_no_successor() {
        let Some(server) = aerospike_or_skip() else { return };
        let place = Place::new(server.uri());
        super::stopped_holders_find_their_leases_lost_and_harm_no_successor(&place, 2, 10);
    }

    #[test]
    fn a_call_that_a_pause_interrupts_gives_no_lease_that_lasts() {
        let Some(server) = aerospike_or_skip() else { return };
        let place = Place::new(server.uri());
        super::a_call_that_a_pause_interrupts_gives_no_lease_that_lasts(&place, 8, 6);
    }
}

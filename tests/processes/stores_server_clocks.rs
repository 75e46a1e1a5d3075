//! The wall clock of a server is set while it stores locks. After a step forward, leases end early by the size of the
//! step, and their holders are refused. After a step back, leases last longer by the size of the step. In both cases
//! fences rise and waits end.
#![cfg(any(feature = "aerospike", feature = "hbase"))]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dlm::{Code, Deadline, Fence, Lease, Level, Lock, LockManager, Moment};
use dlm_fixtures::clock::Clock;
use dlm_testkit::{LONG, LONGEST, eventually, left_to_the_long_run};

const HOUR: Duration = Duration::from_secs(3600);
/// How far the clock is set forward and then back again. The second step is longer than the 30 days for which the
/// fence counters are kept.
const STEPS: [Duration; 2] = [LONG.saturating_mul(10), HOUR.saturating_mul(24 * 40)];
/// The same for the layout `own`, in which no lease is longer than 30 days.
#[cfg(feature = "aerospike")]
const STEPS_OF_OWN: [Duration; 2] = [STEPS[0], HOUR.saturating_mul(24 * 25)];
/// TTL of the leases that a step back makes longer. The clock is set back long before their end.
const SHORT: Duration = Duration::from_secs(10);
/// How much longer than its TTL a store may keep a lease.
const ROUNDING: Duration = Duration::from_secs(2);
/// How long a thread waits for a lock that stays held.
const WAIT: Duration = Duration::from_secs(2);
/// Time-out of a call. A server whose clock is set may drop a call, and the caller notices that only then.
const TIMEOUT: Duration = Duration::from_secs(LONG.as_secs() / 2);

/// Two managers. The store sees them as two processes.
struct Test<'a> {
    clock: &'a Clock,
    ours: LockManager,
    theirs: LockManager,
}

impl Test<'_> {
    fn new<'a>(uri: &str, clock: &'a Clock) -> Test<'a> {
        let [ours, theirs] = [(); 2].map(|()| {
            let builder = LockManager::builder().store_uri(uri).client("clocks").ttl(HOUR).wait(LONGEST);
            builder.timeout(TIMEOUT).retry(Duration::from_millis(50)).open().unwrap()
        });
        eventually("the store is initialized", || ours.initialize().is_ok());
        Test { clock, ours, theirs }
    }

    /// Returns the other manager's handle of a lock.
    fn theirs(&self, id: &str) -> Lock {
        self.theirs.lock(id, Level::Xdc).unwrap()
    }

    fn hold(&self, id: &str, ttl: Duration) -> Lease {
        self.ours.lock(id, Level::Xdc).unwrap().acquire_with_ttl(ttl).unwrap()
    }

    #[track_caller]
    fn must_be_held(&self, id: &str) {
        match self.theirs(id).try_acquire() {
            Err(error) => assert_eq!(error.code(), Code::LockUnavailable, "{id}: {}", error.chain()),
            Ok(lease) => panic!("{id} was granted: {lease:?}"),
        }
    }

    /// Acquires the lock through the other manager. Its fence must be higher than that of `before`.
    #[track_caller]
    fn must_be_free(&self, id: &str, before: &Lease) -> Lease {
        let next = self.theirs(id).acquire().unwrap_or_else(|error| panic!("{id}: {}", error.chain()));
        assert!(next.fence() > before.fence(), "{id}: {:?} after {:?}", next.fence(), before.fence());
        next
    }

    /// Sets the clock with `set` while a thread waits for the lock `id`, which stays held. Checks the length of the
    /// wait.
    fn while_one_waits<T>(&self, id: &str, set: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            let wait = || {
                let asked = Moment::now();
                let answer = self.theirs(id).acquire_within(HOUR, WAIT);
                (answer.map(|_| ()).unwrap_err(), Moment::now().since(asked))
            };
            let waiting = thread::Builder::new().name("dlm-test-waits".into()).spawn_scoped(scope, wait);
            eventually("a thread waits", || self.theirs.stats().threads_waiting > 0);
            let done = set();
            let (error, waited) = waiting.unwrap().join().unwrap();
            // Not always LOCK_UNAVAILABLE: by the new time, waiting calls are older than their time-out. A
            // RegionServer drops such calls without an answer.
            assert!(error.is_retryable(), "{}", error.chain());
            // The shortest step is twice as long.
            assert!(waited >= WAIT && waited < WAIT + LONGEST, "{waited:?}");
            done
        })
    }

    fn set_forward(&self, by: Duration) {
        let id = |what: &str| format!("{what} {}", by.as_secs());
        let [early, late] = ["renewed", "released"].map(|what| self.hold(&id(what), by * 5 / 6));
        let long = self.hold(&id("long"), by + HOUR);
        self.must_be_held(&id("renewed"));
        self.while_one_waits(&id("long"), || self.clock.set_ahead(by));

        // The leases end early, and their holders do not know this yet.
        let next = [self.must_be_free(&id("renewed"), &early), self.must_be_free(&id("released"), &late)];
        early.check().expect("the lease ended on the holder's side");
        late.check().expect("the lease ended on the holder's side");
        assert_eq!(early.renew().unwrap_err().code(), Code::LeaseLost);
        assert_eq!(late.release().unwrap_err().code(), Code::LeaseLost);
        for (before, next) in [early, late].into_iter().zip(next) {
            assert_eq!(before.check().unwrap_err().code(), Code::LeaseLost);
            assert!(!before.release().unwrap());
            next.renew().expect("the previous holder removed the next holder's record");
            assert!(next.release().unwrap());
        }
        // A lease that is longer than the step has not ended.
        self.must_be_held(&id("long"));
        long.renew().unwrap();
        assert!(long.release().unwrap());
        assert!(self.must_be_free(&id("long"), &long).release().unwrap());
    }

    /// Sets the clock back to the true time.
    fn set_back(&self, by: Duration) {
        let id = |what: &str| format!("back {what} {}", by.as_secs());
        let long = self.hold(&id("long"), HOUR);
        let short = self.while_one_waits(&id("long"), || {
            let short = self.hold(&id("short"), SHORT);
            self.clock.set_ahead(Duration::ZERO);
            short
        });
        // The holder's lease ends early by a clock margin, and the store may keep it longer.
        let over = short.ends().after(SHORT / 10 + ROUNDING);
        eventually("the lease ends for its holder", || Moment::now() > over);
        assert_eq!(short.check().unwrap_err().code(), Code::LeaseLost);
        // It lasts longer in the store. Its holder may still release it.
        self.must_be_held(&id("short"));
        assert!(short.release().unwrap());
        assert!(self.must_be_free(&id("short"), &short).release().unwrap());

        self.must_be_held(&id("long"));
        long.renew().unwrap();
        assert!(long.release().unwrap());
        assert!(self.must_be_free(&id("long"), &long).release().unwrap());
    }
}

/// A grant: the moments of the request and of the answer, and the fence.
type Granted = (Moment, Moment, Fence);

fn a_clock_that_is_set_moves_the_ends_of_leases_and_no_fence_falls(
    uri: &str,
    clock: &Clock,
    steps: [Duration; 2],
) {
    let test = Test::new(uri, clock);
    let (stop, grants) = (AtomicBool::new(false), Mutex::<Vec<Granted>>::default());
    thread::scope(|scope| {
        // Two threads contend for one lock during the whole test.
        for manager in [&test.ours, &test.theirs] {
            let lock = manager.lock("contended", Level::Xdc).unwrap();
            let work = || contend(lock, &stop, &grants);
            thread::Builder::new().name("dlm-test-contends".into()).spawn_scoped(scope, work).unwrap();
        }
        let go_on = || {
            let before = grants.lock().unwrap().len();
            eventually("locks are granted", || grants.lock().unwrap().len() > before + 20);
        };
        // In a separate thread: if it fails, the other threads must be stopped as well.
        let steps = move || {
            for by in steps {
                go_on();
                test.set_forward(by);
                go_on();
                test.set_back(by);
            }
            go_on();
        };
        let done =
            thread::Builder::new().name("dlm-test-steps".into()).spawn_scoped(scope, steps).unwrap().join();
        stop.store(true, Ordering::SeqCst);
        done.unwrap();
    });
    let mut grants = grants.into_inner().unwrap();
    eprintln!("{} grants", grants.len());
    grants.sort_by_key(|(_, got, _)| *got);
    let mut highest = Vec::new();
    for (_, _, fence) in &grants {
        highest.push(highest.last().map_or(*fence, |last: &Fence| *last.max(fence)));
    }
    for (asked, _, fence) in &grants {
        // The highest fence that was granted before this request began.
        let before = grants.partition_point(|(_, got, _)| got < asked);
        let highest = before.checked_sub(1).map(|last| highest[last]);
        assert!(highest < Some(*fence), "{fence} after {highest:?}");
    }
    grants.sort_by_key(|(_, _, fence)| *fence);
    assert!(grants.is_sorted_by(|(_, _, one), (_, _, other)| one < other), "a fence was granted twice");
}

fn contend(lock: Lock, stop: &AtomicBool, grants: &Mutex<Vec<Granted>>) {
    while !stop.load(Ordering::SeqCst) {
        let asked = Moment::now();
        match lock.acquire() {
            Ok(lease) => {
                grants.lock().unwrap().push((asked, Moment::now(), lease.fence().unwrap()));
                // Retry: the server may drop a call when its clock is set.
                let by = Deadline::after(LONG);
                while let Err(error) = lease.release() {
                    if error.code() == Code::LeaseLost {
                        break;
                    }
                    assert!(error.is_retryable() && !by.passed(), "{}", error.chain());
                }
            }
            Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
        }
        thread::sleep(Duration::from_millis(fastrand::u64(..10)));
    }
}

#[cfg(feature = "hbase")]
#[test]
fn a_clock_of_hbase_that_is_set_moves_the_ends_of_leases_and_no_fence_falls() {
    if left_to_the_long_run() {
        return;
    }
    use dlm_fixtures::hbase::{Hbase, Kind};

    let Some(clock) = Clock::new_or_skip() else { return };
    let environment = [("DLM_TEST_PRELOAD", clock.library().into()), clock.environment()];
    let Some(hbase) = Hbase::private_in("clock", Kind::Single, &environment) else { return };
    let table = dlm_fixtures::hbase::fresh_table("clocks");
    // A gateway creates the table with one region. The 257 regions of a direct connection would take a minute.
    dlm::store::open(&format!("hbase+thrift://{}/{table}", hbase.thrift))
        .unwrap()
        .initialize(Deadline::after(LONGEST))
        .unwrap();
    let uri = format!("hbase://{}/{table}", hbase.masters);
    a_clock_that_is_set_moves_the_ends_of_leases_and_no_fence_falls(&uri, &clock, STEPS);
}

#[cfg(feature = "aerospike")]
#[test]
fn a_clock_of_aerospike_that_is_set_moves_the_ends_of_leases_and_no_fence_falls() {
    if left_to_the_long_run() {
        return;
    }
    use dlm_fixtures::aerospike::{IN_MEMORY, own_server_in_or_skip};

    let Some(clock) = Clock::new_or_skip() else { return };
    let environment = [("LD_PRELOAD", clock.library().into()), clock.environment()];
    let Some(server) = own_server_in_or_skip(IN_MEMORY, &environment) else { return };
    let uri = server.place().uri();
    // In a set of its own: a client of one layout is refused where the other one has locks.
    let own = format!("{}?layout=own", uri.replace("/tests", "/own-tests"));
    for (uri, steps) in [(uri, STEPS), (own, STEPS_OF_OWN)] {
        a_clock_that_is_set_moves_the_ends_of_leases_and_no_fence_falls(&uri, &clock, steps);
    }
}

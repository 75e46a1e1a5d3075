//! Threads that share one socket to a RegionServer. Each thread receives its own replies. A fault in the call of
//! one thread does not affect the others.
#![cfg(feature = "hbase")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::store::LockStore;
use dlm::{Code, Deadline, Level, LockName, Moment, NamePolicy};
use dlm_fixtures::fake::{Answer, Fake, Request, always, holds, thrown};
use dlm_testkit::{LONG, unless_stalled, until};
use parking_lot::Mutex;

/// Time-outs of calls that the server does not answer while it answers others. The next one is used if this machine was
/// so slow that no answer arrived during the call. Then the client rightly takes the socket for dead.
const TIMEOUTS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(25)];
const IO: &str = "java.io.IOException";

/// One store, and locks whose fence counters all have different values.
struct Shared {
    fake: Fake,
    store: Arc<dyn LockStore>,
    names: Vec<LockName>,
}

const COUNTER: u64 = 1 << 41;

fn shared(names: usize) -> Shared {
    let fake = Fake::honest();
    let name = |id: usize| LockName::new(Level::Xdc, "shared", None, &id.to_string(), NamePolicy::Strict);
    let names: Vec<_> = (0..names).map(|id| name(id).unwrap()).collect();
    for (id, name) in names.iter().enumerate() {
        fake.put(HbaseStore::fence_row(name), "F", (COUNTER + id as u64).to_be_bytes().to_vec());
    }
    let store = dlm::store::open(&format!("hbase://{}/t", fake.address)).unwrap();
    let shared = Shared { fake, store, names };
    assert_eq!(shared.counter(0, LONG).unwrap(), COUNTER, "not connected");
    shared
}

impl Shared {
    /// Reads the counter of a lock. This takes two Gets. The answer to the first one is unique to the lock.
    fn counter(&self, id: usize, timeout: Duration) -> dlm::Result<u64> {
        let found = self.store.inspect(&self.names[id], Deadline::after(timeout))?;
        Ok(found.fence.expect("no counter").0)
    }

    fn is_of(request: &Request, name: &LockName) -> bool {
        holds(&request.parameter, &HbaseStore::fence_row(name))
    }
}

#[test]
fn replies_out_of_order_reach_their_callers() {
    const THREADS: usize = 8;
    let shared = shared(THREADS);
    shared.fake.act(always("Get", Answer::Batch(5)));
    thread::scope(|scope| {
        for id in 0..THREADS {
            let shared = &shared;
            let work = move || {
                for _ in 0..40 {
                    assert_eq!(shared.counter(id, LONG).unwrap(), COUNTER + id as u64, "a wrong reply");
                }
            };
            thread::Builder::new().name(format!("dlm-test-{id}")).spawn_scoped(scope, work).unwrap();
        }
    });
    assert_eq!(shared.fake.connections("ClientService"), 1, "not on one socket");
}

/// When the server received calls that it does not answer in time, and when other calls began and were answered.
#[derive(Default)]
struct Traffic {
    received: Mutex<Vec<Moment>>,
    answered: Mutex<Vec<(Moment, Moment)>>,
}

impl Traffic {
    /// Returns whether an answer has arrived between the last unanswered call and its time-out.
    fn was_alive(&self, begin: Moment, timeout: Duration) -> bool {
        let received = self.received.lock();
        let Some(&received) = received.last().filter(|received| **received >= begin) else { return false };
        let arrived =
            |(asked, answered): &(Moment, Moment)| *asked >= received && *answered <= begin.after(timeout);
        self.answered.lock().iter().any(arrived)
    }
}

/// The server answers one caller too late or never. This does not affect the other callers, and nobody receives the
/// late reply.
#[test]
fn a_call_that_times_out_disturbs_no_other_on_its_socket() {
    let was_alive = TIMEOUTS.into_iter().any(calls_that_time_out_disturb_no_other);
    assert!(was_alive, "no answer arrived in {:?}", TIMEOUTS[2]);
}

/// Returns whether answers have arrived during all calls that timed out. Otherwise nothing was shown.
fn calls_that_time_out_disturb_no_other(timeout: Duration) -> bool {
    const THREADS: usize = 4;
    const ROUNDS: usize = 4;
    let shared = shared(THREADS + 1);
    let (slow, traffic) = (shared.names[THREADS].clone(), Arc::new(Traffic::default()));
    let (mut number, seen) = (0, Arc::clone(&traffic));
    shared.fake.act(move |request| {
        if !Shared::is_of(request, &slow) {
            return Answer::Honest;
        }
        seen.received.lock().push(Moment::now());
        number += 1;
        if number % 2 == 0 { Answer::Silence } else { Answer::Late(timeout + timeout / 4) }
    });
    let over = AtomicBool::new(false);
    let mut was_alive = true;
    thread::scope(|scope| {
        for id in 0..THREADS {
            let (shared, over, traffic) = (&shared, &over, &traffic);
            let work = move || {
                while !over.load(Ordering::SeqCst) {
                    let asked = Moment::now();
                    assert_eq!(shared.counter(id, LONG).unwrap(), COUNTER + id as u64, "a wrong reply");
                    traffic.answered.lock().push((asked, Moment::now()));
                    thread::sleep(timeout / 500);
                }
            };
            thread::Builder::new().name(format!("dlm-test-{id}")).spawn_scoped(scope, work).unwrap();
        }
        for _ in 0..ROUNDS {
            let begin = Moment::now();
            let answer = shared.counter(THREADS, timeout);
            was_alive &= traffic.was_alive(begin, timeout);
            // The scope waits for the other threads, also if an assertion fails.
            let is_timeout = matches!(&answer, Err(error) if error.code() == Code::ConnectionError);
            if !is_timeout || Moment::now().since(begin) >= timeout + LONG {
                over.store(true, Ordering::SeqCst);
                panic!("{answer:?} after {:?}", Moment::now().since(begin));
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    let connections = shared.fake.connections("ClientService");
    assert!(connections == 1 || !was_alive, "the socket was closed because of one caller");
    was_alive
}

#[test]
fn a_call_whose_time_is_over_before_it_is_sent_breaks_no_other_on_its_socket() {
    let shared = shared(2);
    let (asked, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let may_answer = Arc::new(AtomicBool::new(false));
    let slow = shared.names[0].clone();
    let (asking, when) = (Arc::clone(&asked), Arc::clone(&may_answer));
    shared.fake.act(move |request| {
        if !Shared::is_of(request, &slow) {
            return Answer::Honest;
        }
        asking.fetch_add(1, Ordering::SeqCst);
        Answer::When(Arc::clone(&when))
    });
    thread::scope(|scope| {
        let work = || {
            assert_eq!(shared.counter(0, LONG).unwrap(), COUNTER);
            answered.fetch_add(1, Ordering::SeqCst);
        };
        thread::Builder::new().name("dlm-test-slow".into()).spawn_scoped(scope, work).unwrap();
        until("a call waits for its reply", || asked.load(Ordering::SeqCst) == 1);
        let errors: Vec<_> =
            (0..20).map(|_| shared.counter(1, Duration::ZERO).map_err(|it| it.code())).collect();
        // Before an assertion can fail, because the scope waits for the other thread.
        may_answer.store(true, Ordering::SeqCst);
        until("the reply arrives", || answered.load(Ordering::SeqCst) == 1);
        assert_eq!(errors, [Err(Code::ConnectionError); 20]);
    });
    assert_eq!(asked.load(Ordering::SeqCst), 1, "the other call was sent again");
    assert_eq!(shared.fake.connections("ClientService"), 1, "the socket was closed because of one caller");
}

#[test]
fn a_socket_on_which_nothing_comes_any_more_is_given_up_for_the_next_call() {
    let shared = shared(2);
    let first = shared.fake.connections("ClientService");
    // As if a firewall forgot the old connections: no request on them is answered.
    let old: BTreeSet<_> = shared.fake.log().iter().map(|(request, _)| request.connection).collect();
    let is_old = {
        let old = old.clone();
        move |request: &Request| old.contains(&request.connection)
    };
    shared.fake.act(move |request| if is_old(request) { Answer::Silence } else { Answer::Honest });
    let unanswered = || {
        let log = shared.fake.log();
        log.iter()
            .filter(|(request, fate)| old.contains(&request.connection) && matches!(fate, Answer::Silence))
            .count()
    };
    shared.counter(1, Duration::from_millis(100)).unwrap_err();
    // On a slow machine, the time of the first call may have been over before it was sent.
    let answer = [LONG / 3, LONG, LONG].into_iter().find_map(|timeout| shared.counter(1, timeout).ok());
    assert_eq!(answer, Some(COUNTER + 1));
    assert!(unanswered() <= 1, "a second call used the socket");
    assert_eq!(shared.fake.connections("ClientService"), first + 1);
}

#[test]
fn a_socket_that_breaks_takes_its_calls_with_it_and_they_are_asked_again() {
    const THREADS: usize = 6;
    let shared = shared(THREADS);
    let mut number = 0;
    shared.fake.act(move |request| {
        number += usize::from(request.method == "Get");
        match request.method.as_str() {
            "Get" if number % 7 == 0 => Answer::Cut(11),
            "Get" => Answer::Batch(3),
            _ => Answer::Honest,
        }
    });
    thread::scope(|scope| {
        for id in 0..THREADS {
            let shared = &shared;
            let work = move || {
                for _ in 0..20 {
                    assert_eq!(shared.counter(id, LONG).unwrap(), COUNTER + id as u64, "a wrong reply");
                }
            };
            thread::Builder::new().name(format!("dlm-test-{id}")).spawn_scoped(scope, work).unwrap();
        }
    });
}

/// The refusal means that the server has run none of the requests. A broken socket does not mean that.
#[test]
fn a_refusal_of_the_whole_connection_reaches_each_call_on_it() {
    const ACCESS_DENIED: &str = "org.apache.hadoop.hbase.security.AccessDeniedException";
    for _ in 0..20 {
        let fake = Fake::honest();
        let uri = format!("hbase://{}/t?client=shared&timeout=5m", fake.address);
        let manager = dlm::LockManager::open(&uri).unwrap();
        let locks = ["a", "b"].map(|id| manager.lock(id, Level::Xdc).unwrap());
        locks.iter().for_each(|lock| assert!(lock.inspect().unwrap().holder.is_none()));
        let mut writes = 0;
        fake.act(move |request| {
            writes += usize::from(request.method == "Multi");
            match writes {
                0 => Answer::Honest,
                1 => Answer::Silence,
                _ => Answer::Fatal(Some(u32::MAX), ACCESS_DENIED, "no"),
            }
        });
        thread::scope(|scope| {
            for lock in &locks {
                let work = || {
                    let error = lock.try_acquire().unwrap_err();
                    assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
                };
                let name = format!("dlm-test-{}", lock.name().key());
                thread::Builder::new().name(name).spawn_scoped(scope, work).unwrap();
            }
        });
        assert_eq!(fake.count("Multi"), 2, "a request was sent again");
    }
}

/// An exception for one call does not concern the connection.
#[test]
fn an_exception_reaches_the_call_it_is_for() {
    let bytes = thrown(Some(3), IO, "x", None);
    assert!(holds(&bytes, b"java.io.IOException"));
    let shared = shared(2);
    let refused = shared.names[1].clone();
    shared.fake.act(move |request| {
        let class = "org.apache.hadoop.hbase.DoNotRetryIOException";
        if Shared::is_of(request, &refused) { Answer::Refuse(class, "x".into()) } else { Answer::Honest }
    });
    thread::scope(|scope| {
        let work = || (0..50).for_each(|_| assert_eq!(shared.counter(0, LONG).unwrap(), COUNTER));
        thread::Builder::new().name("dlm-test-good".into()).spawn_scoped(scope, work).unwrap();
        for _ in 0..50 {
            shared.counter(1, LONG).unwrap_err();
        }
    });
    assert_eq!(shared.fake.connections("ClientService"), 1);
}

/// As if a firewall forgot the existing connections: no request on them is answered.
#[test]
fn a_renewal_over_a_dead_connection_succeeds_over_another_before_the_lease_ends() {
    // The lease leaves seconds for the renewal.
    unless_stalled(Duration::from_millis(500), a_renewal_over_a_dead_connection_succeeds);
}

fn a_renewal_over_a_dead_connection_succeeds() {
    const TTL: Duration = Duration::from_secs(9);
    let fake = Fake::honest();
    let uri = format!("hbase://{}/t?client=shared", fake.address);
    let manager = dlm::LockManager::builder().store_uri(&uri).timeout(LONG).ttl(TTL).open().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let lease = lock.try_acquire().unwrap();
    let dead: BTreeSet<_> = fake.log().iter().map(|(request, _)| request.connection).collect();
    let connections = fake.connections("ClientService");
    fake.act(move |request| match dead.contains(&request.connection) {
        true => Answer::Silence,
        false => Answer::Honest,
    });
    let ends = lease.ends();
    lease.renew().unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(Moment::now() < ends, "the lease ended before the renewal");
    assert!(lease.ends() > ends);
    assert_eq!(fake.connections("ClientService"), connections + 1);
    fake.assert_no_write_was_repeated_blindly();
    assert!(lease.release().unwrap());
}

/// If many threads need the location of a region, one of them reads it from hbase:meta.
#[test]
fn many_threads_that_miss_a_region_look_it_up_once() {
    const THREADS: usize = 32;
    let fake = Fake::honest();
    let answer = Arc::new(AtomicBool::new(false));
    let when = Arc::clone(&answer);
    fake.act(move |request| match request.method.as_str() {
        "Scan" => Answer::When(Arc::clone(&when)),
        _ => Answer::Honest,
    });
    let store = dlm::store::open(&format!("hbase://{}/t", fake.address)).unwrap();
    let begun = AtomicUsize::new(0);
    thread::scope(|scope| {
        for id in 0..THREADS {
            let (store, begun) = (&store, &begun);
            let work = move || {
                let name = LockName::new(Level::Xdc, "shared", None, &id.to_string(), NamePolicy::Strict);
                begun.fetch_add(1, Ordering::SeqCst);
                assert!(store.holder(&name.unwrap(), Deadline::after(LONG)).unwrap().is_none());
            };
            thread::Builder::new().name(format!("dlm-test-{id}")).spawn_scoped(scope, work).unwrap();
        }
        until("all threads have begun", || begun.load(Ordering::SeqCst) == THREADS && fake.count("Scan") > 0);
        // A thread that is slower than this finds the location in the cache.
        thread::sleep(Duration::from_millis(300));
        answer.store(true, Ordering::SeqCst);
    });
    assert_eq!((fake.count("Scan"), fake.count("GetMetaRegionLocations")), (1, 1));
    assert_eq!(fake.count("Get"), THREADS);
}

/// The server is slow with one row and answers other calls. If it no longer had the region, it would answer with an
/// exception.
#[test]
fn a_call_that_times_out_makes_nobody_look_its_region_up_again() {
    let was_alive = TIMEOUTS.into_iter().any(a_time_out_is_no_reason_for_a_look_up);
    assert!(was_alive, "no answer arrived in {:?}", TIMEOUTS[2]);
}

/// Returns whether answers have arrived during the call that timed out. Otherwise nothing was shown.
fn a_time_out_is_no_reason_for_a_look_up(timeout: Duration) -> bool {
    let shared = shared(2);
    let (slow, over) = (shared.names[0].clone(), AtomicBool::new(false));
    let traffic = Arc::new(Traffic::default());
    let seen = Arc::clone(&traffic);
    shared.fake.act(move |request| {
        if !Shared::is_of(request, &slow) {
            return Answer::Honest;
        }
        seen.received.lock().push(Moment::now());
        Answer::Silence
    });
    let begin = thread::scope(|scope| {
        let work = || {
            while !over.load(Ordering::SeqCst) {
                let asked = Moment::now();
                assert_eq!(shared.counter(1, LONG).unwrap(), COUNTER + 1);
                traffic.answered.lock().push((asked, Moment::now()));
                thread::sleep(timeout / 500);
            }
        };
        thread::Builder::new().name("dlm-test-good".into()).spawn_scoped(scope, work).unwrap();
        let begin = Moment::now();
        let answer = shared.counter(0, timeout);
        over.store(true, Ordering::SeqCst);
        assert_eq!(answer.unwrap_err().code(), Code::ConnectionError);
        begin
    });
    assert_eq!(shared.counter(1, LONG).unwrap(), COUNTER + 1);
    let was_alive = traffic.was_alive(begin, timeout);
    let used = (shared.fake.count("Scan"), shared.fake.connections("ClientService"));
    assert!(used == (1, 1) || !was_alive, "look-ups and connections: {used:?}");
    was_alive
}

/// The thread that makes the look-up may have less time than the threads that wait for it, or far more.
#[test]
fn a_look_up_that_hangs_is_made_again_by_one_of_those_who_wait_for_it() {
    const THREADS: usize = 16;
    // The time-outs of the first thread and of the others.
    let times = [(Duration::from_millis(500), LONG), (Duration::from_secs(12), Duration::from_secs(8))];
    for (first, others) in times {
        unless_stalled(Duration::from_millis(50), || hanging_look_up::<THREADS>(first, others));
    }
}

fn hanging_look_up<const THREADS: usize>(first: Duration, others: Duration) {
    let fake = Fake::honest();
    let mut hang = true;
    fake.act(move |request| match request.method.as_str() {
        "Scan" if std::mem::take(&mut hang) => Answer::Silence,
        _ => Answer::Honest,
    });
    let store = dlm::store::open(&format!("hbase://{}/t", fake.address)).unwrap();
    let holder = &|id: usize, time: Duration| {
        let name = LockName::new(Level::Xdc, "shared", None, &id.to_string(), NamePolicy::Strict);
        store.holder(&name.unwrap(), Deadline::after(time))
    };
    thread::scope(|scope| {
        let leader = thread::Builder::new().name("dlm-test-first".into());
        let leader = leader.spawn_scoped(scope, || holder(0, first)).unwrap();
        until("the first thread asks", || fake.count("Scan") == 1 || leader.is_finished());
        assert_eq!(fake.count("Scan"), 1, "the first thread had no time to ask");
        for id in 1..=THREADS {
            let work = move || {
                let found = holder(id, others).unwrap_or_else(|error| panic!("{}", error.chain()));
                assert!(found.is_none());
            };
            thread::Builder::new().name(format!("dlm-test-{id}")).spawn_scoped(scope, work).unwrap();
        }
        let error = leader.join().unwrap().unwrap_err();
        assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
    });
    assert_eq!(fake.count("Scan"), 2, "{first:?}, {others:?}");
}

/// One row of the batch is in a region that is not known yet.
#[test]
fn a_look_up_that_hangs_leaves_time_for_the_rows_whose_region_is_known() {
    unless_stalled(Duration::from_millis(250), a_hanging_look_up_leaves_time);
}

fn a_hanging_look_up_leaves_time() {
    let fake = Fake::honest();
    fake.split(b"m");
    let table = dlm::hbase::Table::open(&format!("hbase://{}/t?timeout=3s", fake.address)).unwrap();
    assert_eq!(table.row("a").get().unwrap(), None);
    fake.act(always("Scan", Answer::Silence));
    let rows = table.get_many(&["z", "a"], &dlm::hbase::Select::all()).unwrap();
    assert_eq!(rows[0].as_ref().unwrap_err().code(), Code::ConnectionError);
    assert_eq!(rows[1].as_ref().unwrap_or_else(|error| panic!("{}", error.chain())), &None);
    assert!(fake.count("Scan") >= 2, "the region of the first row was known already");
}

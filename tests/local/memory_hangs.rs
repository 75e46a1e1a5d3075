//! Managers over a store in memory of which some requests hang until the test lets them go on.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, Inspection, LatchStore, LockStore, MemoryStore, OwnerRecord, Released};
use dlm::{
    AcquireOptions, AwaitOptions, Builder, Code, Deadline, Holder, LatchKind, Level, LockManager, LockName,
    Pending, Result,
};
use dlm_testkit::{LONG, Spy, until};

/// Longer than every test.
const NEVER: Duration = Duration::from_secs(3600);

/// A request of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    Acquire,
    Renew,
    Release,
    Holder,
    Holders,
}

/// A store in which the requests of one kind for locks with `down` in their names hang.
struct Hanging {
    inner: MemoryStore,
    hangs: Request,
    is_hanging: AtomicBool,
    /// Number of requests that hang just now.
    hung: AtomicUsize,
    /// Whether many locks are read with one request.
    reads_many: bool,
    /// How many locks were read with others.
    read_with_others: AtomicUsize,
    asked: AtomicUsize,
}

impl fmt::Debug for Hanging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hanging")
    }
}

impl Hanging {
    fn at(hangs: Request) -> Arc<Hanging> {
        Hanging::new(hangs, false)
    }

    fn new(hangs: Request, reads_many: bool) -> Arc<Hanging> {
        let (hung, asked, read_with_others) = Default::default();
        let (inner, is_hanging) = (MemoryStore::new(), AtomicBool::new(false));
        Arc::new(Hanging { inner, hangs, is_hanging, hung, reads_many, read_with_others, asked })
    }

    fn hang(&self) {
        self.is_hanging.store(true, Ordering::SeqCst);
    }

    fn go_on(&self) {
        self.is_hanging.store(false, Ordering::SeqCst);
    }

    fn hung(&self) -> usize {
        self.hung.load(Ordering::SeqCst)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Not limited by the deadline: a test ends sooner, or fails.
    fn pass(&self, request: Request, name: &LockName) {
        if request == self.hangs && name.key().contains("down") && self.is_hanging.load(Ordering::SeqCst) {
            self.hung.fetch_add(1, Ordering::SeqCst);
            until("the request goes on", || !self.is_hanging.load(Ordering::SeqCst));
            self.hung.fetch_sub(1, Ordering::SeqCst);
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lets the requests go on when a test ends, also when it fails.
struct GoesOn<'a>(&'a Hanging);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.go_on();
    }
}

impl LockStore for Hanging {
    fn describe(&self) -> String {
        "hanging".into()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.inner.initialize(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.pass(Request::Acquire, attempt.name);
        self.inner.acquire(attempt, doubtful)
    }

    fn acquire_with_fences(
        &self,
        attempt: Attempt<'_>,
        fences: u64,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        self.pass(Request::Acquire, attempt.name);
        self.inner.acquire_with_fences(attempt, fences, doubtful)
    }

    fn reserves_fences(&self) -> bool {
        true
    }

    fn renew(
        &self,
        name: &LockName,
        record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.pass(Request::Renew, name);
        self.inner.renew(name, record, ttl, by)
    }

    fn release(&self, name: &LockName, record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.pass(Request::Release, name);
        self.inner.release(name, record, by)
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.pass(Request::Holder, name);
        self.inner.holder(name, by)
    }

    fn holders(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Option<Holder>)) {
        if !self.reads_many {
            return;
        }
        for (at, name) in names.iter().enumerate() {
            self.pass(Request::Holders, name);
            self.read_with_others.fetch_add(1, Ordering::SeqCst);
            report(at, self.inner.holder(name, by).unwrap());
        }
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.inner.inspect(name, by)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.inner.latches()
    }
}

fn builder(store: &Arc<Hanging>) -> Builder {
    let store = Arc::clone(store) as Arc<dyn LockStore>;
    LockManager::builder().store(store).client("hangs").farm("dc1").ttl(NEVER).wait(NEVER).retry(NEVER)
}

/// The store answers no release. The threads that give back locks wait for it.
#[test]
fn locks_that_are_given_back_leave_a_thread_for_latches() {
    let store = Hanging::at(Request::Release);
    let _goes_on = GoesOn(&store);
    let manager = builder(&store).linger(Duration::from_millis(200)).open().unwrap();
    let latch = manager.latch("gate", Level::Xdc, LatchKind::CountDown).unwrap();
    latch.create(1).unwrap();
    for number in 0..40 {
        let lock = manager.lock(&format!("down {number}"), Level::Xdc).unwrap();
        assert!(lock.acquire().unwrap().release().unwrap());
    }
    store.hang();
    until("they are given back", || store.hung() > 0);
    // Those that are due by then hang as well.
    thread::sleep(Duration::from_millis(300));
    let others = builder(&store).open().unwrap();
    let watch = latch.watch().unwrap();
    others.latch("gate", Level::Xdc, LatchKind::CountDown).unwrap().count_down().unwrap();
    assert!(watch.wait(&AwaitOptions::new().wait(LONG)).unwrap(), "nobody read the latch");
    assert!(store.hung() > 0);
    store.go_on();
    until("all are given back", || {
        (0..40).all(|number| {
            let lock = others.lock(&format!("down {number}"), Level::Xdc).unwrap();
            lock.inspect().unwrap().holder.is_none()
        })
    });
}

/// A process may use any number of locks once each.
#[test]
fn no_more_locks_stay_than_a_limit() {
    const LOCKS: usize = 3000;
    let spy = Spy::on(Arc::new(MemoryStore::new()));
    let builder = LockManager::builder().store(spy.clone()).client("hangs").ttl(NEVER).linger(NEVER);
    let manager = builder.open().unwrap();
    for number in 0..LOCKS {
        let lock = manager.lock(&format!("{number}"), Level::Xdc).unwrap();
        assert!(lock.acquire().unwrap().release().unwrap());
    }
    let released = spy.calls_of(dlm_testkit::Call::Release);
    assert!((LOCKS - 1024..LOCKS).contains(&released), "{released}");
    // One without room is released in the store, and its caller is told what that answered.
    let broken = manager.lock("broken", Level::Xdc).unwrap().acquire().unwrap();
    let other = LockManager::builder().store(spy.clone()).client("hangs").open().unwrap();
    let seen = other.lock("broken", Level::Xdc).unwrap().inspected().unwrap();
    assert!(seen.break_holder("it is in the way").unwrap().is_some());
    assert_eq!(broken.release().unwrap_err().code(), Code::LeaseLost);
    let before = spy.calls_of(dlm_testkit::Call::Release);
    manager.close().unwrap();
    assert_eq!(spy.calls_of(dlm_testkit::Call::Release) - before, LOCKS - released);
}

#[test]
fn a_lock_that_stayed_longer_before_stays_no_longer_than_its_next_lease_says() {
    let spy = Spy::on(Arc::new(MemoryStore::new()));
    let builder = LockManager::builder().store(spy.clone()).client("hangs").ttl(NEVER).linger(NEVER);
    let manager = builder.open().unwrap();
    let lock = manager.lock("shorter", Level::Xdc).unwrap();
    assert!(lock.acquire_with_ttl(NEVER).unwrap().release().unwrap());
    // The record for the longer lease is released.
    let shorter = lock.acquire_with_ttl(LONG / 60).unwrap();
    let before = spy.calls_of(dlm_testkit::Call::Release);
    assert!(shorter.release().unwrap());
    until("it is given back", || spy.calls_of(dlm_testkit::Call::Release) > before);
}

fn start_all(manager: &LockManager, locks: usize) -> Vec<Pending> {
    let start = |number| {
        manager.lock(&format!("down {number}"), Level::Xdc).unwrap().start(&AcquireOptions::new()).unwrap()
    };
    (0..locks).map(start).collect()
}

/// All requests of pendings hang. One thread is kept for leases that are held.
#[test]
fn calls_on_held_leases_do_not_wait_for_requests_of_pendings() {
    let store = Hanging::at(Request::Acquire);
    let _goes_on = GoesOn(&store);
    let manager = builder(&store).open().unwrap();
    let held: Vec<_> = (0..20)
        .map(|number| manager.lock(&format!("up {number}"), Level::Xdc).unwrap().acquire().unwrap())
        .collect();
    store.hang();
    let pendings = start_all(&manager, 1000);
    until("their requests hang", || store.hung() >= 4);
    for lease in &held {
        let renewal = lease.start_renewal(None).unwrap();
        until("it is renewed", || renewal.take().unwrap().is_some());
    }
    for lease in &held {
        let release = lease.start_release().unwrap();
        until("it is released", || release.take().unwrap().is_some());
    }
    store.go_on();
    drop(pendings);
}

/// They overtake.
#[test]
fn calls_on_held_leases_go_before_the_requests_of_pendings() {
    const PENDINGS: usize = 400;
    let store = Hanging::at(Request::Acquire);
    let _goes_on = GoesOn(&store);
    let manager = builder(&store).open().unwrap();
    let lease = manager.lock("down", Level::Xdc).unwrap().acquire().unwrap();
    store.hang();
    let pendings = start_all(&manager, PENDINGS);
    until("their requests hang", || store.hung() > 0);
    // It came last, and most of the others have no thread yet.
    let renewal = lease.start_renewal(None).unwrap();
    until("it is renewed", || renewal.take().unwrap().is_some());
    assert!(store.hung() > 0, "those that came first hang still");
    store.go_on();
    drop(pendings);
}

#[test]
fn pendings_that_wait_for_a_thread_read_their_locks_together() {
    const LOCKS: usize = 300;
    let store = Hanging::new(Request::Acquire, true);
    let _goes_on = GoesOn(&store);
    let others = builder(&store).open().unwrap();
    let held: Vec<_> = (0..LOCKS)
        .map(|number| others.lock(&format!("down {number}"), Level::Xdc).unwrap().acquire().unwrap())
        .collect();
    let manager = builder(&store).open().unwrap();
    store.hang();
    let before = store.asked();
    let pendings = start_all(&manager, LOCKS);
    // Some may ask alone, and hang. Those in the same parts of the store wait with them if that takes a second, at most five in
    // each part. All others are read meanwhile.
    until("the others are read together", || store.read_with_others.load(Ordering::SeqCst) >= LOCKS - 40);
    assert!(store.asked() - before <= LOCKS + 10, "some were read again and again");
    store.go_on();
    // What was read as free is acquired by a request of its own.
    drop((held, pendings));
    let pendings = start_all(&manager, LOCKS);
    until("all are acquired", || pendings.iter().all(|pending| !matches!(pending.take(), Ok(None))));
}

/// A renewal by [`start_renewal`](dlm::Lease::start_renewal) hangs.
#[test]
fn dropping_a_lease_does_not_wait_for_a_renewal_that_hangs() {
    for (form, linger) in [("drop", Duration::ZERO), ("drop", NEVER), ("token", Duration::ZERO)] {
        let store = Hanging::at(Request::Renew);
        let _goes_on = GoesOn(&store);
        let manager = builder(&store).linger(linger).open().unwrap();
        let lock = manager.lock("down", Level::Xdc).unwrap();
        let lease = lock.acquire().unwrap();
        store.hang();
        let _renewal = lease.start_renewal(None).unwrap();
        until("it hangs", || store.hung() == 1);
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                match form {
                    "token" => {
                        let token = lease.into_token().unwrap();
                        assert!(manager.adopt(token).unwrap().release().unwrap());
                    }
                    _ => drop(lease),
                }
                ended.store(true, Ordering::SeqCst);
            });
            until("it does not wait", || ended.load(Ordering::SeqCst));
            assert_eq!(store.hung(), 1, "the renewal hangs still");
            store.go_on();
        });
        let other = builder(&store).open().unwrap();
        let other = other.lock("down", Level::Xdc).unwrap();
        until("the lock is free", || other.try_acquire().is_ok());
        manager.close().unwrap();
    }
}

#[test]
fn closing_releases_a_lease_whose_renewal_hangs() {
    let store = Hanging::at(Request::Renew);
    let _goes_on = GoesOn(&store);
    let manager = builder(&store).open().unwrap();
    let lease = manager.lock("down", Level::Xdc).unwrap().acquire().unwrap();
    store.hang();
    thread::scope(|scope| {
        let renews = scope.spawn(|| lease.renew());
        until("it hangs", || store.hung() == 1);
        manager.close().unwrap();
        let other = builder(&store).open().unwrap();
        assert!(other.lock("down", Level::Xdc).unwrap().try_acquire().is_ok(), "it is free");
        assert_eq!(store.hung(), 1, "the renewal hangs still");
        store.go_on();
        assert_eq!(renews.join().unwrap().unwrap_err().code(), Code::LeaseLost);
    });
}

//! Leases that are kept alive over a store in memory that hangs or fails.

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, Inspection, LockStore, MemoryStore, OwnerRecord, Released};
use dlm::{
    AcquireOptions, Code, Deadline, Error, Holder, Lease, LeaseState, Level, LockManager, LockName,
    LostReason, Moment, Result,
};
use dlm_testkit::{LONG, unless_stalled, until};

const SERVES: u8 = 0;
/// No call returns before its deadline.
const HANGS: u8 = 1;
const FAILS: u8 = 2;

/// A store whose locks with `down` in their names are on a server that may be down.
struct Halves {
    inner: MemoryStore,
    down: AtomicU8,
}

impl fmt::Debug for Halves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Halves")
    }
}

impl Halves {
    fn new() -> Arc<Halves> {
        Arc::new(Halves { inner: MemoryStore::new(), down: AtomicU8::new(SERVES) })
    }

    fn check(&self, name: &LockName, by: Deadline) -> Result<()> {
        let down = self.down.load(Ordering::SeqCst);
        if down == SERVES || !name.key().contains("down") {
            return Ok(());
        }
        if down == HANGS {
            thread::sleep(by.remaining());
        }
        Err(Error::Connection { store: "halves".into(), what: "it is down".into(), source: None })
    }
}

impl LockStore for Halves {
    fn describe(&self) -> String {
        "halves".into()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.inner.initialize(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.check(attempt.name, attempt.by)?;
        self.inner.acquire(attempt, doubtful)
    }

    fn renew(
        &self,
        name: &LockName,
        record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.check(name, by)?;
        self.inner.renew(name, record, ttl, by)
    }

    fn release(&self, name: &LockName, record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.check(name, by)?;
        self.inner.release(name, record, by)
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.check(name, by)?;
        self.inner.holder(name, by)
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.check(name, by)?;
        self.inner.inspect(name, by)
    }
}

/// A store that has lost all records by the time of their renewal. It asks this before it says who has a lock.
struct Forgetful {
    inner: MemoryStore,
    on_holder: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Forgetful {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forgetful")
    }
}

impl LockStore for Forgetful {
    fn describe(&self) -> String {
        "forgetful".into()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.inner.initialize(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.inner.acquire(attempt, doubtful)
    }

    fn renew(&self, _: &LockName, _: &OwnerRecord, _: Duration, _: Deadline) -> Result<Option<OwnerRecord>> {
        Ok(None)
    }

    fn release(&self, name: &LockName, record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.inner.release(name, record, by)
    }

    fn holder(&self, _: &LockName, _: Deadline) -> Result<Option<Holder>> {
        (self.on_holder)();
        Ok(None)
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.inner.inspect(name, by)
    }
}

/// For each of many leases that are lost at once, the thread that renews asks why. Each answer may take a second.
#[test]
fn while_the_reasons_of_losses_are_asked_for_other_leases_receive_their_notice() {
    unless_stalled(Duration::from_secs(1), || {
        // Both are taken out at the end: the store holds them, and they hold the store.
        let (manager, other) = (Arc::new(Mutex::new(None::<LockManager>)), Arc::new(Mutex::new(None)));
        let (asked, heard) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let on_holder = {
            let (manager, other) = (Arc::clone(&manager), Arc::clone(&other));
            let (asked, heard) = (Arc::clone(&asked), Arc::clone(&heard));
            move || match asked.fetch_add(1, Ordering::SeqCst) {
                // The first lease may be in a round alone. Then the others are due together.
                0 => thread::sleep(Duration::from_secs(1)),
                1 => {
                    let brief = Duration::from_millis(20);
                    let manager = manager.lock().unwrap().clone().unwrap();
                    let lock = manager.lock("other", Level::Xdc).unwrap();
                    let lease = lock.acquire_with(&AcquireOptions::new().ttl(brief)).unwrap();
                    let changes = lease.changes().unwrap();
                    thread::sleep(2 * brief);
                    *other.lock().unwrap() = Some((lease, changes));
                }
                2 => {
                    let other = other.lock().unwrap();
                    heard.store(!other.as_ref().unwrap().1.is_empty(), Ordering::SeqCst);
                }
                _ => {}
            }
        };
        let store = Arc::new(Forgetful { inner: MemoryStore::new(), on_holder: Box::new(on_holder) });
        let opened = LockManager::builder().store(store).client("kept").open().unwrap();
        *manager.lock().unwrap() = Some(opened.clone());
        let leases: Vec<_> =
            (0..20).map(|number| kept(&opened, &format!("lost {number}"), Duration::from_secs(6))).collect();
        until("the store was asked why", || asked.load(Ordering::SeqCst) >= 3);
        assert!(heard.load(Ordering::SeqCst), "its notice came after the reasons of the others");
        drop((leases, manager.lock().unwrap().take(), other.lock().unwrap().take()));
        opened.close().unwrap();
    });
}

fn manager(store: &Arc<Halves>) -> LockManager {
    let store = Arc::clone(store) as Arc<dyn LockStore>;
    LockManager::builder().store(store).client("kept").timeout(Duration::from_secs(2)).open().unwrap()
}

fn kept(manager: &LockManager, name: &str, ttl: Duration) -> Lease {
    let options = AcquireOptions::new().ttl(ttl).keep(Duration::MAX);
    let (lock, mut lease) = (manager.lock(name, Level::Xdc).unwrap(), None);
    // On a slow machine, a grant may come only after its lease has ended.
    until("a grant comes in time", || {
        lease = lock.acquire_with(&options).ok();
        lease.is_some()
    });
    lease.unwrap()
}

/// Returns the number of threads that renew leases, of all managers of this process.
fn keepers() -> usize {
    let is_keeper = |comm: String| comm.starts_with("dlm-keep-");
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    threads.filter(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(is_keeper)).count()
}

/// What the listener of a lease has seen, in order. Returns `None` if the machine was so slow that a lease was lost while
/// the store was there.
fn story(manager: &LockManager, store: &Arc<Halves>, down: u8, ttl: Duration) -> Option<()> {
    const LEASES: usize = 1000;
    let leases: Vec<_> =
        (0..LEASES).map(|number| kept(manager, &format!("down-{down}-{number}"), ttl)).collect();
    let changes: Vec<_> = leases.iter().map(|lease| lease.changes().unwrap()).collect();
    leases.iter().try_for_each(Lease::check).ok()?;
    store.down.store(down, Ordering::SeqCst);
    let went_down = Moment::now();
    let mut stories = vec![Vec::new(); LEASES];
    until("all leases are lost", || {
        for ((lease, changes), story) in leases.iter().zip(&changes).zip(&mut stories) {
            if changes.try_recv().is_ok() {
                let ends = lease.ends();
                let state = lease.state();
                // A state that is valid was told before the end.
                assert!(!state.is_valid() || lease.check().is_ok() || Moment::now() >= ends);
                story.push(state);
            }
        }
        stories.iter().all(|story| story.last().is_some_and(|state| !state.is_valid()))
    });
    // Two TTLs, in which renewals would be answered if they were sent.
    thread::sleep((2 * ttl).saturating_sub(Moment::now().since(went_down)));
    store.down.store(SERVES, Ordering::SeqCst);
    thread::sleep(ttl);
    for (lease, mut story) in leases.iter().zip(stories) {
        // A renewal that was answered just before the store went down may come first. Two messages may be read so late
        // that both show the same state.
        story.retain(|state| *state != LeaseState::Renewing);
        story.dedup();
        // A busy machine may see only the second of two messages, and may be too busy to renew at all.
        let lost = lease.state();
        let expired = [LostReason::Expired, LostReason::ProcessStopped].map(LeaseState::Lost);
        assert!(expired.contains(&lost), "brought back, or lost for another reason: {lost:?}");
        assert!(story == [LeaseState::AtRisk, lost] || story == [lost], "{story:?}");
        assert_eq!(lease.guard().unwrap_err().code(), Code::LeaseLost);
    }
    Some(())
}

#[test]
fn each_of_a_thousand_leases_over_a_store_that_is_down_is_at_risk_then_lost_and_stays_lost() {
    let before = keepers();
    for down in [HANGS, FAILS] {
        let lasted = [2, 6, 20].map(Duration::from_secs).into_iter().any(|ttl| {
            let store = Halves::new();
            let manager = manager(&store);
            let told = story(&manager, &store, down, ttl);
            // The other tests of this program have such threads, too, for a while.
            let mine = |threads: usize| threads.saturating_sub(before);
            until("two threads renew all leases", || mine(keepers()) <= 2 + 8);
            manager.close().unwrap();
            told.is_some()
        });
        assert!(lasted, "a lease of 20 s was lost while the store was there");
    }
}

/// A renewal by the caller is an exception to "lost is lost": the store says whether the lock is still ours.
#[test]
fn the_caller_may_renew_an_expired_lease_and_it_is_kept_alive_again() {
    let is_renewed = [2, 10, 30].map(Duration::from_secs).into_iter().any(|ttl| {
        let store = Halves::new();
        let manager = manager(&store);
        let lease = kept(&manager, "down", ttl);
        store.down.store(FAILS, Ordering::SeqCst);
        until("the lease expires", || !lease.state().is_valid());
        store.down.store(SERVES, Ordering::SeqCst);
        // The store keeps it for a tenth of its TTL longer, which may be too short on a busy machine.
        let asked = Moment::now();
        if lease.renew().is_err() {
            return false;
        }
        let (state, renewed) = (lease.state(), lease.ends());
        assert!(state == LeaseState::Renewing || Moment::now().since(asked) >= ttl / 2, "{state:?}");
        until("it is kept alive", || lease.ends() > renewed || !lease.state().is_valid());
        lease.state().is_valid()
    });
    assert!(is_renewed, "a lease that had expired a moment ago could not be renewed and kept alive");
}

#[test]
fn a_server_that_hangs_delays_no_renewals_of_others() {
    // Long, because a busy machine may be late, too.
    const TTL: Duration = Duration::from_secs(6);
    unless_stalled(Duration::from_millis(500), || {
        let store = Halves::new();
        let manager = manager(&store);
        let downs: Vec<_> = (0..20).map(|number| kept(&manager, &format!("down-{number}"), TTL)).collect();
        let others: Vec<_> = (0..20).map(|number| kept(&manager, &format!("up-{number}"), TTL)).collect();
        store.down.store(HANGS, Ordering::SeqCst);
        let over = Moment::now().after(3 * TTL);
        while Moment::now() < over {
            for lease in &others {
                assert!(lease.state().is_valid(), "{:?}", lease.state());
            }
            thread::sleep(Duration::from_millis(20));
        }
        assert!(downs.iter().all(|lease| !lease.state().is_valid()));
        store.down.store(SERVES, Ordering::SeqCst);
        assert!(others.iter().all(|lease| lease.release().unwrap()));
    });
}

#[test]
fn closing_waits_for_no_more_than_one_request_of_a_store_that_hangs() {
    let store = Halves::new();
    let manager = manager(&store);
    let lease = kept(&manager, "down", Duration::from_secs(3));
    store.down.store(HANGS, Ordering::SeqCst);
    until("renewals hang", || lease.state() == LeaseState::AtRisk || !lease.state().is_valid());
    let began = Moment::now();
    let _ = manager.close();
    assert!(Moment::now().since(began) < LONG);
    assert!(!lease.state().is_valid());
    assert_eq!(lease.keep(Duration::MAX).unwrap_err().code(), Code::Closed);
}

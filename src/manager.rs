//! The lock manager: what one acquire, release and close mean over any store.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::board::{Board, locks_only};
use crate::builder::Builder;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::ffi::process_mark;
use crate::freeing::{Doubt, Freeing};
use crate::latch::{Latch, LatchKind};
use crate::lease::{Core, Lease};
use crate::lease_token::LeaseToken;
use crate::lock::Lock;
use crate::queue::{Answer, Queue};
use crate::store::{
    Acquired, Attempt, Finding, Grade, Grant, LatchName, LatchStore, Level, LockName, LockStore, Proof,
    Released, Who,
};
use crate::time::{Deadline, Moment, slew_ppm};
use crate::watcher::Watcher;

/// Making a table takes longer than other calls.
const MAKING_TABLES: Duration = Duration::from_secs(60);

/// Takes locks and counts latches in one store for one client id. Cheap to clone; all clones are the same
/// manager.
///
/// It may be used from any number of threads. It starts no thread until a request is in doubt or somebody
/// waits for a latch, and then two at the most (see [`Builder::watchers`]), named `dlm-watcher-1` and so
/// on. [`close`](LockManager::close) releases what is held and joins them; dropping the last clone,
/// [`Lock`], [`Lease`] and [`Latch`] joins them too.
#[derive(Clone)]
pub struct LockManager {
    inner: Arc<Inner>,
}

/// What managers, locks and leases share.
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) settings: Settings,
    pub(crate) queue: Queue,
    pub(crate) board: Arc<Board>,
    who: Who,
    /// The process that opened it, see [`process_mark`].
    process: u64,
    watcher: Arc<Watcher>,
    /// What `close` has to release, by address of the lease's core; `None` once it has run.
    held: Mutex<Option<HashMap<usize, Arc<Core>>>>,
    closed: AtomicBool,
}

/// Answer of [`LockManager::stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Leases acquired here and not released, lost or ended by close. Those whose time is over count
    /// until that is noticed by a call.
    pub leases_held: u64,
    /// Threads of this process that wait for a lock.
    pub threads_waiting: u64,
}

impl LockManager {
    /// The way to a manager: `LockManager::builder().store_uri("embedded:").client("orders").open()`.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens a manager with all settings in the URI, such as
    /// `hbase+thrift://gateway:9090/locks?client=orders&farm=dc1&ttl=30s`.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open(uri: &str) -> Result<LockManager> {
        LockManager::builder().store_uri(uri).open()
    }

    /// No I/O: that is left to the first call. `settings` are checked.
    pub(crate) fn over(store: Arc<dyn LockStore>, settings: Settings, who: Who) -> LockManager {
        let watcher = Arc::new(Watcher::new(settings.watchers));
        let board = Board::new(Arc::clone(&store), Arc::clone(&watcher), settings.poll, settings.timeout);
        let inner = Inner {
            store,
            settings,
            queue: Queue::default(),
            board: Arc::new(board),
            who,
            process: process_mark::current(),
            watcher,
            held: Mutex::new(Some(HashMap::new())),
            closed: AtomicBool::new(false),
        };
        LockManager { inner: Arc::new(inner) }
    }

    /// Creates what is missing in the store (the table), and checks that the store answers. Blocks, for
    /// up to a minute where a table is made. Safe to repeat, and to run in many processes at once.
    ///
    /// # Errors
    /// TABLE_CREATION_ERROR with the cause; CONNECTION_ERROR; CLOSED; FORKED.
    pub fn initialize(&self) -> Result<()> {
        self.inner.usable()?;
        self.inner.store.initialize(self.inner.by_for_tables())
    }

    /// Looks at the store with a lock's eyes: what its version, schema and settings mean, how far its
    /// clock is from ours, whether a lock can be taken, renewed and released, and how long a look takes.
    /// Writes one lock of its own, and what a lock leaves behind. Blocks, up to a few store time-outs.
    ///
    /// A store that cannot be reached is a finding, too.
    ///
    /// # Errors
    /// CLOSED; FORKED.
    pub fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.usable()?;
        let timeout = self.inner.settings.timeout;
        let mut found = match self.inner.store.examine(Deadline::after(timeout)) {
            Ok(found) => found,
            Err(error) => {
                let advice = "check that the store is up, that the URI names it, and what it logs";
                return Ok(vec![Finding::fail("reach", error.chain(), advice)]);
            }
        };
        match self.inner.probe(Deadline::after(timeout)) {
            Ok(look) => {
                found.push(Finding::ok("a lock", "is taken, renewed and released"));
                found.push(Finding::latency(look));
            }
            Err(error) => {
                let advice = "`dlm init` makes what is missing; otherwise see the findings above";
                found.push(Finding::fail("a lock", error.chain(), advice));
            }
        }
        found.extend(slew_ppm().map(|ppm| Finding::slew(ppm, self.inner.settings.clock_margin_ppm)));
        Ok(found)
    }

    /// For `strict`: the first failure that [`examine`](LockManager::examine) finds is an error.
    pub(crate) fn refuse_failures(&self) -> Result<()> {
        match self.examine()?.into_iter().find(|finding| finding.grade == Grade::Fail) {
            None => Ok(()),
            Some(finding) => Err(Error::RetriesExhausted {
                store: self.store(),
                what: format!("strict=true was asked for, and {finding}"),
                source: None,
            }),
        }
    }

    /// The lock `id` of this manager's client id. No I/O.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the id is empty, longer than 1024 bytes or contains NUL, or when a lock of
    /// level DC is asked for and no farm is set.
    pub fn lock(&self, id: &str, level: Level) -> Result<Lock> {
        let settings = &self.inner.settings;
        let name = LockName::new(level, &settings.client, settings.farm.as_deref(), id, settings.names)?;
        Ok(Lock { name, manager: Arc::clone(&self.inner) })
    }

    /// The latch `id` of this manager's client id. No I/O: it is made by [`create`](Latch::create), in this
    /// process or another. All who use it must agree on level and kind.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the id is empty, longer than 1024 bytes or contains NUL, when no farm is set,
    /// or when the store keeps locks only.
    pub fn latch(&self, id: &str, level: Level, kind: LatchKind) -> Result<Latch> {
        let settings = &self.inner.settings;
        let Some(farm) = settings.farm.as_deref() else {
            return Err(Error::invalid("farm id", "", "latches need one, at every level; set it"));
        };
        let name = LatchName::new(&settings.client, farm, id, settings.names)?;
        self.inner.latches()?;
        Ok(Latch::new(name, level, kind, settings.latch_ttl, Arc::clone(&self.inner)))
    }

    /// Creates what latches need in the store (a table), and checks that it answers, as
    /// [`initialize`](LockManager::initialize) does for locks. A latch that is made does it where it is
    /// missing; this is for those who may not create tables later, or would not have the first latch wait
    /// for that.
    ///
    /// # Errors
    /// As `initialize`, and INVALID_ARGUMENT when the store keeps locks only.
    pub fn initialize_latches(&self) -> Result<()> {
        self.inner.usable()?;
        self.inner.latches()?.initialize_latches(self.inner.by_for_tables())
    }

    /// Takes over a lease that another process handed on as text. Does not ask the store: whether the lock
    /// is still ours is learned by renewing or releasing it.
    ///
    /// Between processes of one machine the lease ends here when it would have ended there. From another
    /// machine, from before a restart of this one, from a time namespace with a clock of its own, or as a
    /// text of version 1 (`dlm1.`), its end is not known: wall clocks of two machines are not compared.
    /// [`check`](Lease::check) then answers LEASE_LOST until the first [`renew`](Lease::renew), and so does a
    /// [`release`](Lease::release) that freed the lock although its reply was lost.
    ///
    /// The lease is the caller's now: dropping it releases the lock.
    /// [`into_token`](Lease::into_token) lets go of it again.
    ///
    /// # Errors
    /// CLOSED, FORKED.
    pub fn adopt(&self, token: LeaseToken) -> Result<Lease> {
        let LeaseToken { name, fence, ends, ttl, proof } = token;
        self.inner.usable()?;
        let grant = Grant { proof, fence, since: Moment::now(), may_reappear: false };
        self.inner.hold(Core::adopted(name, grant, ttl, ends))
    }

    #[cfg(any(feature = "capi", test))]
    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// What is going on right now, for a program's own gauges. Takes locks of the library for a moment.
    pub fn stats(&self) -> Stats {
        Stats {
            leases_held: self.inner.held.lock().as_ref().map_or(0, HashMap::len) as u64,
            threads_waiting: self.inner.queue.waiting() as u64,
        }
    }

    /// The store, as a URI without credentials.
    pub fn store(&self) -> String {
        self.inner.store.describe()
    }

    /// Ends the manager: waiting threads return CLOSED, held leases are released, the library's threads are
    /// joined. From now on `check` of a lease answers LEASE_LOST, its `release` `false`, all else CLOSED.
    /// Closing twice does nothing.
    ///
    /// Takes up to one store time-out (10 s unless set) for the releases, another where a renewal or a look
    /// at latches is under way, and a few seconds for the threads.
    ///
    /// # Errors
    /// The first release that failed: that lock is free when its TTL ends. The others were tried all the
    /// same, each with its share of the time.
    pub fn close(&self) -> Result<()> {
        self.inner.close()
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.store())
            .field("settings", &self.inner.settings)
            .finish()
    }
}

impl Inner {
    /// Whether calls may be made: not after `close`, not in a forked child.
    pub(crate) fn usable(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { self.not_forked() }
    }

    pub(crate) fn not_forked(&self) -> Result<()> {
        if process_mark::current() == self.process { Ok(()) } else { Err(Error::Forked) }
    }

    pub(crate) fn latches(&self) -> Result<&dyn LatchStore> {
        self.store.latches().ok_or_else(|| locks_only(&*self.store))
    }

    fn by_for_tables(&self) -> Deadline {
        Deadline::after(self.settings.timeout.max(MAKING_TABLES))
    }

    /// One attempt at the lock.
    pub(crate) fn attempt(self: &Arc<Inner>, name: &LockName, ttl: Duration) -> Result<Answer<Lease>> {
        self.usable()?;
        // A grant that comes back after its lease has ended is none.
        let by = Deadline::after(self.settings.timeout.min(ttl));
        let mut doubtful = Vec::new();
        let answer = self.store.acquire(Attempt { name, ttl, who: &self.who, by }, &mut doubtful);
        for proof in doubtful {
            self.free_in_background(name.clone(), proof, ttl, Doubt::MayBeTaken);
        }
        match answer {
            Ok(Acquired::Held(holder)) => Ok(Answer::Busy(Some(holder))),
            Ok(Acquired::Granted(grant)) => {
                let ends = self.settings.lease_end(grant.since, ttl);
                let lease = self.hold(Core::new(name.clone(), grant, ttl, ends))?;
                if lease.check().is_ok() {
                    return Ok(Answer::Got(lease));
                }
                self.usable()?;
                Err(Error::RetriesExhausted {
                    store: self.store.describe(),
                    what: format!("the grant took longer than the lease of {ttl:?}; ask for a longer TTL"),
                    source: None,
                })
            }
            Err(error) => Err(error.while_(format!("acquiring lock {name}"))),
        }
    }

    /// Takes a lock that nobody else has a use for, through all that may happen to one; how long a look
    /// at it takes.
    fn probe(&self, by: Deadline) -> Result<Duration> {
        const TTL: Duration = Duration::from_secs(60);
        let id = format!("dlm doctor {:016x}", fastrand::u64(..));
        let name = LockName::new(Level::Xdc, &self.settings.client, None, &id, self.settings.names)?;
        let attempt = Attempt { name: &name, ttl: TTL, who: &self.who, by };
        let odd = |what: &str| Error::Internal { what: what.to_owned(), source: None };
        let Acquired::Granted(grant) = self.store.acquire(attempt, &mut Vec::new())? else {
            return Err(odd("a lock of a name that nobody has used is held"));
        };
        let mut look = Duration::MAX;
        for _ in 0..5 {
            let before = Moment::now();
            self.store.holder(&name, by)?.ok_or_else(|| odd("a lock that was granted is free"))?;
            look = look.min(Moment::now().since(before));
        }
        let renewed = self.store.renew(&name, &grant.proof, TTL, by)?;
        let proof = renewed.ok_or_else(|| odd("a lock that was granted cannot be renewed"))?;
        match self.store.release(&name, &proof, by)? {
            Released::NotOurs => Err(odd("a lock that was granted cannot be released")),
            Released::Freed | Released::Gone => Ok(look),
        }
    }

    fn hold(self: &Arc<Inner>, core: Core) -> Result<Lease> {
        let core = Arc::new(core);
        match &mut *self.held.lock() {
            Some(held) => held.insert(address(&core), Arc::clone(&core)),
            None => None,
        };
        let lease = Lease::new(core, Arc::clone(self));
        // Closed while the store was asked: dropping the lease releases it.
        self.usable().map(|()| lease)
    }

    pub(crate) fn forget(&self, core: &Arc<Core>) {
        if let Some(held) = &mut *self.held.lock() {
            held.remove(&address(core));
        }
    }

    /// Releases `proof` in the background, as soon as the store answers. `ttl`: for how long the store may
    /// keep the record.
    pub(crate) fn free_in_background(&self, name: LockName, proof: Proof, ttl: Duration, doubt: Doubt) {
        let mut freeing = Freeing::new(Arc::clone(&self.store), name, proof, ttl, doubt);
        self.watcher.run(Freeing::FIRST_TRY, move || freeing.try_once());
    }

    fn close(&self) -> Result<()> {
        self.not_forked()?;
        self.closed.store(true, Ordering::Release);
        self.queue.close();
        self.board.close();
        let held = self.held.lock().take().unwrap_or_default();
        let by = Deadline::after(self.settings.timeout);
        let mut first_failure = None;
        let mut left = held.len() as u32;
        for core in held.into_values() {
            // One that hangs must leave time for those that do not.
            let share = by.remaining() / left;
            left -= 1;
            match core.release(self, by.sooner(Deadline::after(share))) {
                Err(error) if error.code() != crate::Code::LeaseLost => {
                    first_failure.get_or_insert(error);
                }
                Ok(_) | Err(_) => {}
            }
        }
        self.watcher.stop();
        first_failure.map_or(Ok(()), |error| Err(error.while_("closing the lock manager")))
    }
}

impl Drop for Inner {
    /// Here and not with the last handle of the watcher, which one of its own threads may have.
    fn drop(&mut self) {
        self.watcher.stop();
        if self.not_forked().is_err() {
            // A thread that is not here may have been changing it.
            std::mem::forget(Arc::clone(&self.board));
        }
    }
}

/// Leases are told apart by where their core lies: it stays there while the map holds it.
fn address(core: &Arc<Core>) -> usize {
    Arc::as_ptr(core) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;
    use crate::lease_token::TokenEnd;

    fn manager() -> LockManager {
        LockManager::builder().store_uri("memory:").client("tests").open().unwrap()
    }

    /// However long ago it ended, and however short a time this machine has been up.
    #[test]
    fn an_adopted_lease_that_is_over_is_not_held() {
        let manager = manager();
        let name = manager.lock("a", Level::Xdc).unwrap().name().clone();
        let token = LeaseToken {
            name,
            fence: None,
            ends: TokenEnd::at(Moment::from_nanos(1_000)),
            ttl: Duration::from_secs(365 * 24 * 3600),
            proof: Proof::from_bytes([1; 16]),
        };
        let lease = manager.adopt(token).unwrap();
        assert!(lease.check().is_err() && lease.remaining().is_zero(), "{lease:?}");
    }

    /// A virtual machine that went back to a snapshot has the same boot id and an earlier boot clock.
    #[test]
    fn an_adopted_lease_lasts_no_longer_than_its_ttl_whatever_its_token_says() {
        let manager = manager();
        let ttl = Duration::from_secs(90);
        let token = LeaseToken {
            name: manager.lock("a", Level::Xdc).unwrap().name().clone(),
            fence: None,
            ends: TokenEnd::at(Moment::now().after(1000 * ttl)),
            ttl,
            proof: Proof::from_bytes([1; 16]),
        };
        let lease = manager.adopt(token).unwrap();
        assert!(lease.check().is_ok() && lease.remaining() <= ttl, "{lease:?}");
    }

    /// Its wall clock may be a day ahead of ours, and the lease long over.
    #[test]
    fn the_end_of_a_lease_from_another_machine_is_not_known_until_it_is_renewed() {
        let manager = manager();
        let lock = manager.lock("a", Level::Xdc).unwrap();
        let (fence, token) = {
            let lease = lock.acquire().unwrap();
            (lease.fence(), lease.into_token().unwrap())
        };
        let text = token.to_string();
        let adopted = manager.adopt(text.parse().unwrap()).unwrap();
        adopted.check().expect("the same machine");
        drop(adopted.into_token().unwrap());
        for elsewhere in [token.clone().of_another_boot(), token.in_version_1().parse().unwrap()] {
            let lease = manager.adopt(elsewhere.clone()).unwrap();
            let said = lease.check().unwrap_err();
            assert!(said.code() == Code::LeaseLost && said.to_string().contains("renew"), "{said}");
            assert!(lease.remaining().is_zero() && lease.fence() == fence);
            assert_eq!(lease.into_token().unwrap(), elsewhere, "nothing is lost of what was told");
            let lease = manager.adopt(elsewhere).unwrap();
            lease.renew().unwrap();
            lease.check().unwrap();
            assert!(lease.into_token().unwrap().ends.here().is_some());
        }
        assert_eq!(lock.try_acquire().unwrap_err().code(), Code::LockUnavailable);
    }

    /// chrony slews by up to 83,333 ppm: by a thousandth alone, the holder of a lease of 90 s would go on for
    /// 7 s after the next one was granted.
    #[test]
    fn a_lease_ends_here_sooner_than_in_the_store_by_the_clock_margin() {
        const SECOND: Duration = Duration::from_secs(1);
        let builder = || LockManager::builder().store_uri("memory:").client("tests");
        let managers = [
            (builder().open().unwrap(), 900),
            (builder().option("clock_margin", "160000ppm").open().unwrap(), 840),
            (LockManager::open("memory:?client=tests&clock_margin=50000ppm").unwrap(), 950),
            (builder().clock_margin_ppm(0).open().unwrap(), 1000),
        ];
        for (manager, useful_s) in managers {
            let lock = manager.lock("a", Level::Xdc).unwrap();
            let before = Moment::now();
            let lease = lock.try_acquire_with_ttl(1000 * SECOND).unwrap();
            let useful = |since: Moment| since.after(useful_s * SECOND);
            assert!((useful(before)..=useful(Moment::now())).contains(&lease.ends()), "{useful_s}");
            let before = Moment::now();
            lease.renew().unwrap();
            assert!((useful(before)..=useful(Moment::now())).contains(&lease.ends()), "renewed: {useful_s}");
        }
        assert_eq!(builder().clock_margin_ppm(500_001).open().unwrap_err().code(), Code::InvalidArgument);
    }

    /// A process may take and lose locks for years.
    #[test]
    fn a_manager_keeps_no_lease_that_is_over() {
        let manager = manager();
        let lock = manager.lock("a", Level::Xdc).unwrap();
        let kept = || manager.inner.held.lock().as_ref().expect("it is not closed").len();

        let lease = lock.acquire().unwrap();
        assert_eq!(kept(), 1);
        assert!(lease.release().unwrap());
        assert_eq!(kept(), 0, "released");

        drop(lock.acquire().unwrap());
        assert_eq!(kept(), 0, "dropped");

        let finds: [fn(&Lease) -> Result<()>; 2] = [Lease::renew, |lease| lease.release().map(drop)];
        for finds_it_lost in finds {
            let token = lock.acquire().unwrap().into_token().unwrap();
            assert_eq!(kept(), 0, "handed on");
            let [ours, other] = [(); 2].map(|()| manager.adopt(token.clone()).unwrap());
            assert!(other.release().unwrap());
            assert_eq!(finds_it_lost(&ours).unwrap_err().code(), Code::LeaseLost);
            assert_eq!(kept(), 0, "found lost");
        }
    }
}

//! The lock manager: makes handles of locks and latches.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::events::metrics::family;
use crate::handles::acquire_options::AcquireOptions;
use crate::handles::diagnosis::diagnose;
use crate::handles::election::Election;
use crate::handles::latch::{Latch, LatchKind};
use crate::handles::lease::Lease;
use crate::handles::lease_set::LeaseSet;
use crate::handles::lock::Lock;
use crate::handles::locks::{self, Latches, Locks};
use crate::handles::semaphore::Semaphore;
use crate::lease::token::LeaseToken;
use crate::names::diagnostic::{Diagnostic, Severity};
use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::{Level, LockName};
use crate::names::promise::{Promise, PromiseTopic};
use crate::names::waiters::Waiters;
use crate::runtime::time::Deadline;
use crate::session::Session;
#[cfg(any(feature = "capi", test))]
use crate::settings::manager_options::Settings;
use crate::store::{ListCursor, LockPage, LockQuery, StoreCounters};

/// Shortest time in which [`LockManager::reach`] judges a store.
const REACH_AT_LEAST: Duration = Duration::from_secs(1);

/// Manager of the locks and latches of one client id in one store. Cheap to clone; all clones are the same
/// manager.
///
/// Any number of threads may use it. It starts background threads when a request is in doubt or a latch is
/// waited for: two at most by default, named `dlm-bg-1` and so on. See
/// [`Builder::background_threads`](crate::Builder::background_threads). [`close`](LockManager::close) releases
/// all held leases and joins these threads. Dropping the last clone, [`Lock`], [`Lease`], [`Inspected`](crate::Inspected), [`Latch`]
/// and [`LatchWatch`](crate::LatchWatch) joins them too, which blocks for a few seconds, and for up to one store
/// time-out if a read of latches is under way. At most 8 threads ask the store for acquisitions that do not block, see
/// [`Lock::start`].
#[derive(Clone)]
pub struct LockManager {
    session: Arc<Session>,
}

/// Gauges of a manager and counts of its store, returned by [`LockManager::stats`].
///
/// The counts are those of [`StoreCounters`](crate::store::StoreCounters) since the store was opened. Managers that
/// share a store share them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Leases acquired or adopted here that were not yet released, lost, handed on or closed. An expired lease
    /// counts until a call notices that it has expired.
    pub leases_held: u64,
    /// Threads of this process that wait for a lock of this manager, and [`Pending`](crate::Pending)s that have not
    /// finished.
    pub threads_waiting: u64,
    /// Tries of an acquire that the store refused although the lock was free, because the lock's last number was not
    /// below the number of the try: the clock of another machine is ahead. Counted for HBase with `layout=own`.
    pub stale_numbers: u64,
    /// Reads that were needed to find out who holds a lock after the store refused to create its record. Counted for
    /// HBase and Aerospike.
    pub reads_after_refusal: u64,
    /// Grants of locks for which the store had no number, so that the clock gave the first one: locks that were never
    /// used, and those that were not used for so long that their number expired. Counted for HBase with `layout=own`.
    pub fences_seeded: u64,
    /// Notices that were sent. They may be lost on the way.
    pub notices_sent: u64,
    /// Notices that could not be sent: their receiver has ended, or gets too many.
    pub notices_unsent: u64,
    /// Datagrams that quoted nothing of this manager, and were ignored.
    pub notices_ignored: u64,
    /// Times that a notice made a waiter ask the store earlier.
    pub early_asks: u64,
    /// Leases of locks that had stayed with this process, so that the store was not asked: see
    /// [`Builder::linger`](crate::Builder::linger).
    pub leases_retaken: u64,
}

impl LockManager {
    pub(crate) fn new(session: Session) -> LockManager {
        LockManager { session: Arc::new(session) }
    }

    /// Checks that the store answers, and changes nothing. For programs that should say at their start that their store is
    /// missing, instead of at their first lock: the lock itself waits for a store that is down, for the store time-out. A
    /// service that may start before its store does not call this.
    ///
    /// Blocks for `limit` or the store time-out at most, the shorter one, for about a second longer while it finds out what
    /// is at the address, and while the system's resolver looks up a name. A limit below a second is one second, which a
    /// busy store needs.
    ///
    /// A store that has not answered this manager before fails within a second if its address is wrong: if nothing listens
    /// there, no such host exists, or another service answers. The error names what was found. A store that has answered
    /// before may be down for a moment, and is waited for. Always succeeds for `embedded:` and `memory:`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let manager = dlm::LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// manager.reach(Duration::from_secs(3))?;
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Code::ConnectionError`](crate::Code::ConnectionError),
    ///   [`Code::RetriesExhausted`](crate::Code::RetriesExhausted): the store did not answer.
    /// * [`Code::Closed`](crate::Code::Closed), [`Code::Forked`](crate::Code::Forked).
    pub fn reach(&self, limit: Duration) -> Result<()> {
        self.session.usable()?;
        let limit = limit.max(REACH_AT_LEAST).min(self.session.settings.timeout);
        self.session.store.greet(Deadline::after(limit))
    }

    /// Returns whether a lease can [die with its process](crate::AcquireOptions::dies_with_process) in this store: `false`
    /// for a store on servers, and with a lock delay. Does no I/O and never blocks.
    pub fn can_die_with_process(&self) -> bool {
        self.session.liveness().is_ok()
    }

    /// Creates what is missing in the store (the table) and checks that the store answers. Blocks, up to a
    /// minute when it creates a table. A store that does not answer at all fails after the store time-out, or sooner: see
    /// [`reach`](LockManager::reach). Safe to repeat, and to run in many processes at once.
    ///
    /// # Errors
    /// * [`Code::TableCreationError`](crate::Code::TableCreationError): the table is missing and could not be
    ///   created. The error names the cause.
    /// * [`Code::ConnectionError`](crate::Code::ConnectionError),
    ///   [`Code::RetriesExhausted`](crate::Code::RetriesExhausted): the store does not serve.
    /// * [`Code::Closed`](crate::Code::Closed), [`Code::Forked`](crate::Code::Forked).
    pub fn initialize(&self) -> Result<()> {
        self.reach(self.session.settings.timeout)?;
        self.session.store.initialize(self.session.by_for_tables())
    }

    /// Checks whether the store is safe for locks. The diagnostics report what its version, schema and settings
    /// mean, how far its clock is from ours, whether a lock can be acquired, renewed and released, and how long
    /// a read takes. Blocks, up to a few store time-outs.
    ///
    /// It acquires and releases one lock of its own, which leaves the same traces in the store as every lock.
    /// An unreachable store is reported as a diagnostic, not as an error.
    ///
    /// # Errors
    /// [`Code::Closed`](crate::Code::Closed), [`Code::Forked`](crate::Code::Forked).
    pub fn diagnose(&self) -> Result<Vec<Diagnostic>> {
        self.session.usable()?;
        let mut found = diagnose(&*self.session.store, &self.session.settings, &self.session.identity);
        found.extend(self.session.queue.notices().diagnose());
        Ok(found)
    }

    /// Returns what this store promises with these options, each topic once, weakened by the diagnostics in `found`. No I/O.
    pub fn promises(&self, found: &[Diagnostic]) -> Vec<Promise> {
        let of_store = self.session.store.promises();
        let promise = |topic| {
            let promise = of_store.iter().rev().find(|promise| promise.topic == topic).cloned();
            promise.unwrap_or_else(|| match topic {
                PromiseTopic::Waiting => self.session.queue.notices().promise(),
                topic => Promise::unknown(topic),
            })
        };
        let mut promises: Vec<_> =
            PromiseTopic::ALL.iter().map(|topic| promise(*topic).judged_by(found)).collect();
        if self.session.settings.strict {
            for promise in &mut promises {
                promise.why += "; strict=true refuses a store that fails a check";
            }
        }
        promises
    }

    /// Returns the error of a setting that the store cannot fulfil. No I/O.
    pub(crate) fn refuse_what_the_store_cannot(&self) -> Result<()> {
        if self.session.settings.dies_with_process { self.session.liveness().map(|_| ()) } else { Ok(()) }
    }

    /// For `strict`: returns the first failure that [`diagnose`](LockManager::diagnose) reports as an error.
    pub(crate) fn refuse_failures_if_strict(&self) -> Result<()> {
        if !self.session.settings.strict {
            return Ok(());
        }
        match self.diagnose()?.into_iter().find(|diagnostic| diagnostic.severity == Severity::Fail) {
            None => Ok(()),
            Some(diagnostic) => Err(Error::RetriesExhausted {
                store: self.store(),
                what: format!("strict=true refuses this store: {diagnostic}"),
                source: None,
            }),
        }
    }

    /// Returns a handle of the lock `id` of this manager's client id. No I/O.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the id is empty, longer than 1024 bytes or
    /// contains NUL, or if the level is DC and no farm is set.
    pub fn lock(&self, id: &str, level: Level) -> Result<Lock> {
        Lock::new(&self.session, id, level)
    }

    /// Returns a handle of the semaphore `id` of this manager's client id, with so many permits: 1 to 256. No I/O.
    ///
    /// All processes must use the same number. The first grant decides it, and a handle with another one is refused: see
    /// [`Semaphore::resize`].
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a number that is not allowed, if the store keeps no semaphores,
    /// and those of [`lock`](LockManager::lock).
    pub fn semaphore(&self, id: &str, level: Level, permits: u16) -> Result<Semaphore> {
        Semaphore::new(&self.session, id, level, permits)
    }

    /// Acquires several locks together, waiting for them if necessary: all of them or none. `options` are those of
    /// [`Lock::acquire_with`](Lock::acquire_with). The wait is the time for all locks together.
    ///
    /// The locks are acquired one after the other in one order, whatever the order of `locks` is. So callers of this
    /// method never wait for each other in a circle. A caller that already holds a lock which it acquired otherwise may:
    /// then acquire all with one call, or use short waits.
    ///
    /// While it waits, the background threads renew the leases of the locks that it has. At the end all leases are
    /// checked, and have about the whole TTL left. If one was lost, or a lock cannot be acquired, all are released.
    ///
    /// ```
    /// # use dlm::{AcquireOptions, Level, LockManager};
    /// # let manager = LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// let (from, to) = (manager.lock("account-7", Level::Xdc)?, manager.lock("account-3", Level::Xdc)?);
    /// let both = manager.acquire_all(&[&from, &to], &AcquireOptions::new())?;
    /// let fences = both.guard()?;
    /// assert_eq!(fences.len(), 2);
    /// both.release()?;
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Lock::acquire_with`](Lock::acquire_with) for the first lock that cannot be acquired;
    /// [`Code::LeaseLost`](crate::Code::LeaseLost) if a lease was lost while others were waited for;
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if there is no lock, a lock of another manager or a lock
    /// twice, or if several locks are to be acquired with a TTL below 100 ms.
    pub fn acquire_all(&self, locks: &[&Lock], options: &AcquireOptions) -> Result<LeaseSet> {
        self.session.usable()?;
        if let Some(other) = locks.iter().find(|lock| !lock.is_of(&self.session)) {
            return Err(Error::invalid("locks", other.name().to_string(), "locks of this manager"));
        }
        LeaseSet::acquire(locks, options, &self.session.settings)
    }

    /// Returns a handle of the lock with this full name, which may be one of another client id: for tools that look after
    /// the locks of a fleet. A service acquires its own locks, with [`lock`](LockManager::lock). No I/O.
    pub fn lock_named(&self, name: &LockName) -> Lock {
        Lock::named(&self.session, name)
    }

    /// Lists the locks of the store that `query` asks for, of all client ids, in no particular order. Does no I/O itself:
    /// the iterator reads a page of the store when it needs one, and each page has the time-out of one call. Memory does
    /// not depend on the number of locks.
    ///
    /// The list is no snapshot. A lock that is held all the time is listed exactly once. A lock that is free all the time
    /// is not listed as held. A lock that is acquired or released meanwhile may be in the list or not.
    ///
    /// ```
    /// # use dlm::store::LockQuery;
    /// # use dlm::{Level, LockManager};
    /// # let manager = LockManager::builder().store_uri("memory:").client("orders").open()?;
    /// let lease = manager.lock("order-42", Level::Xdc)?.acquire()?;
    /// for lock in manager.locks(&LockQuery::new().prefix("XDC#orders#").held_only()) {
    ///     let lock = lock?;
    ///     println!("{} is held by {}", lock.key, lock.holder.expect("only held locks"));
    /// }
    /// # assert_eq!(manager.locks(&LockQuery::new()).count(), 1);
    /// # lease.release()?;
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// The iterator returns the first error and ends: those of [`Lock::inspect`], and
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a prefix that no name can have, or a store that cannot
    /// list its locks.
    pub fn locks(&self, query: &LockQuery) -> Locks {
        Locks::new(&self.session, query)
    }

    /// Reads one page of the list that [`locks`](LockManager::locks) returns, for programs that read it in several
    /// requests of their own. `after` is the cursor of the page before; `None` reads the first page. One call to the store.
    ///
    /// # Errors
    /// Those of [`locks`](LockManager::locks), and [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a cursor of
    /// another list.
    pub fn lock_page(&self, query: &LockQuery, after: Option<&ListCursor>) -> Result<LockPage> {
        locks::page(&self.session, query, after)
    }

    /// Returns a handle of the election `id` of this manager's client id. No I/O. It is the lock of the same id and
    /// level, so do not use that lock for something else.
    ///
    /// # Errors
    /// Those of [`lock`](LockManager::lock).
    pub fn election(&self, id: &str, level: Level) -> Result<Election> {
        self.lock(id, level).map(Election::new)
    }

    /// Returns a handle of the latch `id` of this manager's client id. No I/O: [`create`](Latch::create)
    /// creates the latch, in this process or another. All users of a latch must use the same level and kind.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the id is empty, longer than 1024 bytes or
    /// contains NUL, if no farm is set, or if the store keeps locks only.
    pub fn latch(&self, id: &str, level: Level, kind: LatchKind) -> Result<Latch> {
        Latch::new(&self.session, id, level, kind)
    }

    /// Lists the latches of this manager's client id whose ids begin with `prefix` (`""` lists all), in no particular order,
    /// each with the counts of all farms. Does no I/O itself: the iterator reads a page of the store when it needs one, and
    /// each page has the time-out of one call. The list is no snapshot: a latch that exists all the time is listed once.
    ///
    /// In Aerospike, a record that a Java service or an earlier version of this library has created does not contain the name. It
    /// is listed with [`id`](crate::store::ListedLatch::id) `None`, whatever the client and the prefix, until this library resets
    /// it, or counts it for the first time.
    ///
    /// ```
    /// # use dlm::{LatchKind, Level, LockManager};
    /// # let manager = LockManager::builder().store_uri("memory:").client("orders").farm("dc1").open()?;
    /// manager.latch("import-7", Level::Dc, LatchKind::CountDown)?.create(2)?;
    /// for latch in manager.latches("import-") {
    ///     let latch = latch?;
    ///     println!("{} {:?}", latch.key, latch.counts); // orders#import-7 {"dc1": 2}
    /// }
    /// # assert_eq!(manager.latches("").count(), 1);
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// The iterator returns the first error and ends: those of [`Latch::count`] but
    /// [`Code::NotFound`](crate::Code::NotFound), and [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a prefix
    /// that no id can have, or a store that cannot list its latches.
    pub fn latches(&self, prefix: &str) -> Latches {
        Latches::new(&self.session, prefix)
    }

    /// Asks the holders of several locks who waits for them, and returns the answers in the same order: see
    /// [`Lock::waiting`]. The holders come from [`locks`](LockManager::locks) or [`Lock::inspect`]. Blocks for 200 ms at
    /// most for every 64 holders. No requests to the store.
    ///
    /// # Errors
    /// [`Code::Closed`](crate::Code::Closed), [`Code::Forked`](crate::Code::Forked).
    pub fn waiting(&self, holders: &[Holder]) -> Result<Vec<Option<Waiters>>> {
        self.session.usable()?;
        Ok(self.session.waiting(holders))
    }

    /// Creates what latches need in the store (a table) and checks that the store answers, as
    /// [`initialize`](LockManager::initialize) does for locks. [`Latch::create`] also creates a missing table.
    /// Call this if the program may not create tables later, or if its first latch must not wait for a table.
    ///
    /// # Errors
    /// Those of `initialize`, and [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the store keeps
    /// locks only.
    pub fn initialize_latches(&self) -> Result<()> {
        self.session.usable()?;
        let latches = self.session.latches()?;
        self.reach(self.session.settings.timeout)?;
        latches.initialize_latches(self.session.by_for_tables())
    }

    /// Adopts a lease that another process handed on as text. No I/O: only a renewal or release shows whether
    /// the lock is still held.
    ///
    /// A lease from another process of this machine expires here when it would have expired there. The end is
    /// unknown for a lease from another machine, from before a restart of this one, from a time namespace with
    /// another clock, or in a text of version 1 (`dlm1.`): wall clocks of two machines are not compared. Then
    /// [`check`](Lease::check) fails with [`Code::LeaseLost`](crate::Code::LeaseLost) until the first
    /// [`renew`](Lease::renew). So does a [`release`](Lease::release) that freed the lock but lost its reply.
    ///
    /// The caller owns the lease: dropping it releases the lock. [`into_token`](Lease::into_token) hands it on
    /// again.
    ///
    /// # Errors
    /// [`Code::Closed`](crate::Code::Closed), [`Code::Forked`](crate::Code::Forked).
    pub fn adopt(&self, token: LeaseToken) -> Result<Lease> {
        Lease::adopt(&self.session, token)
    }

    /// Returns how the records of this manager's locks describe this process: see [`Holder::identity`](crate::Holder).
    pub fn identity(&self) -> &Identity {
        &self.session.identity
    }

    #[cfg(any(feature = "capi", test))]
    pub(crate) fn settings(&self) -> &Settings {
        &self.session.settings
    }

    #[cfg(test)]
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the current numbers of leases and waiting threads, and what the store has counted. Briefly takes
    /// mutexes of the library. No I/O.
    pub fn stats(&self) -> Stats {
        let StoreCounters { stale_numbers, reads_after_refusal, fences_seeded } =
            self.session.store.counters();
        let notices = self.session.queue.notices().counts();
        Stats {
            leases_held: self.session.leases.count() as u64,
            threads_waiting: self.session.queue.waiting() as u64,
            stale_numbers,
            reads_after_refusal,
            fences_seeded,
            notices_sent: notices.sent,
            notices_unsent: notices.unsent,
            notices_ignored: notices.ignored,
            early_asks: notices.early,
            leases_retaken: self.session.leases.retaken(),
        }
    }

    /// Returns the metrics of this manager as a page in Prometheus' text format, version 0.0.4: what has happened to its
    /// locks since the first call of this method, by class, and its calls to the store. So call it once at the start. See
    /// [the page on metrics](https://github.com/dlm-rs/dlm/blob/main/docs/metrics.md) for the names and the labels.
    ///
    /// Serve it at `/metrics` with the content type `text/plain; version=0.0.4`. Briefly takes mutexes of the library. No
    /// I/O. In a forked child the page is empty.
    pub fn metrics_text(&self) -> String {
        if self.session.not_forked().is_err() {
            return String::new();
        }
        let Stats {
            leases_held: _,
            threads_waiting: _,
            stale_numbers,
            reads_after_refusal,
            fences_seeded,
            notices_sent,
            notices_unsent,
            notices_ignored,
            early_asks,
            leases_retaken,
        } = self.stats();
        self.session.metrics_page(&[
            (family::STALE_NUMBERS, stale_numbers),
            (family::READS_AFTER_REFUSAL, reads_after_refusal),
            (family::FENCES_SEEDED, fences_seeded),
            (family::NOTICES_SENT, notices_sent),
            (family::NOTICES_UNSENT, notices_unsent),
            (family::NOTICES_IGNORED, notices_ignored),
            (family::EARLY_ASKS, early_asks),
            (family::LEASES_RETAKEN, leases_retaken),
        ])
    }

    /// Returns the URI of the store, without credentials.
    pub fn store(&self) -> String {
        self.session.store.describe()
    }

    /// Closes the manager: waiting threads return [`Code::Closed`](crate::Code::Closed), held leases are
    /// released, and the library's threads are joined. Afterwards [`Lease::check`] fails with
    /// [`Code::LeaseLost`](crate::Code::LeaseLost). [`Lease::release`] of a lease that was released returns
    /// `false`. A lease whose release failed can be released again. Other calls that use the store fail with
    /// `Closed`. A second call does nothing.
    ///
    /// Blocks for up to one store time-out (10 s by default) for the releases, another one if a renewal, a read
    /// of latches or a request of a [`Pending`](crate::Pending) is under way, and a few seconds for the threads.
    ///
    /// # Errors
    /// The error of the first release that failed. That lock becomes free when its TTL ends. The other releases
    /// are tried nevertheless, each within its share of the time. [`Code::Forked`](crate::Code::Forked).
    pub fn close(&self) -> Result<()> {
        self.session.close()
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.store())
            .field("settings", &self.session.settings)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Code;
    use crate::lease::token::TokenEnd;
    use crate::names::mode::Mode;
    use crate::names::owner::OwnerRecord;
    use crate::runtime::time::Moment;

    fn manager() -> LockManager {
        LockManager::builder().store_uri("memory:").client("tests").open().unwrap()
    }

    /// In C, whose leases are exclusive.
    #[cfg(feature = "capi")]
    #[test]
    fn a_lock_adopts_tokens_of_its_own_in_any_mode() {
        let (manager, lock_of) =
            (manager(), |manager: &LockManager, id| manager.lock(id, Level::Xdc).unwrap());
        let token = lock_of(&manager, "a").shared().acquire().unwrap().into_token().unwrap();
        let error = lock_of(&manager, "b").adopt(token.clone()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(lock_of(&manager, "a").adopt(token).unwrap().mode(), Mode::Shared);
    }

    /// Even if it expired long ago, or if the machine has just started.
    #[test]
    fn an_adopted_lease_that_is_over_is_not_held() {
        let manager = manager();
        let name = manager.lock("a", Level::Xdc).unwrap().name().clone();
        let token = LeaseToken {
            mode: Mode::Exclusive,
            epoch: None,
            permit: None,
            name,
            fence: None,
            ends: TokenEnd::at(Moment::from_nanos(1_000)),
            ttl: Duration::from_secs(365 * 24 * 3600),
            owner_record: OwnerRecord::from_bytes([1; 16]),
            store: None,
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
            mode: Mode::Exclusive,
            epoch: None,
            permit: None,
            name: manager.lock("a", Level::Xdc).unwrap().name().clone(),
            fence: None,
            ends: TokenEnd::at(Moment::now().after(1000 * ttl)),
            ttl,
            owner_record: OwnerRecord::from_bytes([1; 16]),
            store: None,
        };
        let lease = manager.adopt(token).unwrap();
        assert!(lease.check().is_ok() && lease.remaining() <= ttl, "{lease:?}");
    }

    /// The wall clock of that machine may be a day ahead of ours, and the lease may have expired long ago.
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

    /// chrony slews by up to 83,333 ppm. With a margin of only a thousandth, the holder of a 90 s lease would
    /// go on for 7 s after the next grant.
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

    /// A process may acquire and lose locks for years.
    #[test]
    fn a_manager_keeps_no_lease_that_is_over() {
        let manager = manager();
        let lock = manager.lock("a", Level::Xdc).unwrap();
        let kept = || manager.session.leases.count();

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

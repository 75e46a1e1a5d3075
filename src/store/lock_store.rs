//! The contract between locks and the stores.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::counters::StoreCounters;
use super::grant::{Acquired, Attempt, GrantRecord};
use super::history_store::HistoryStore;
use super::latch_store::LatchStore;
use super::lock_list::{ListCursor, LockPage, LockQuery};
use super::mode_store::ModeStore;
use super::semaphore_store::SemaphoreStore;
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::fence::Fence;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerRecord;
use crate::names::promise::Promise;
use crate::runtime::time::{Deadline, Moment};

/// One lease that [`LockStore::renew_many`] renews.
#[derive(Debug, Clone, Copy)]
pub struct Renewal<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The record that holds the lock.
    pub owner_record: &'a OwnerRecord,
    /// The new length of the lease.
    pub ttl: Duration,
    /// Whether this lease ends so soon that its request must not carry any other lease.
    pub alone: bool,
}

/// What [`LockStore::renew_many`] calls with the answer for one lease: the position of the lease in the list of renewals, a
/// moment before its request was sent, from which the renewed lease counts, and the answer that [`LockStore::renew`] would
/// give.
pub type OnRenewed<'f> = &'f mut dyn FnMut(usize, Moment, Result<Option<OwnerRecord>>);

/// Answer of [`LockStore::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// This owner held the lock. The lock is free now.
    Freed,
    /// This owner did not hold the lock. Nothing was changed.
    NotOurs,
    /// A reply was lost, and this owner does not hold the lock now. This release freed the lock, unless the
    /// lease had expired before.
    Gone,
}

/// Answer of [`LockStore::inspect`].
#[derive(Debug)]
pub struct Inspection {
    /// The holder of the lock; `None` if the lock is free.
    pub holder: Option<Holder>,
    /// The fence that was counted last, if the store still knows it.
    pub fence: Option<Fence>,
    /// The layout in which the store keeps the lock, if the store has several.
    pub layout: Option<&'static str>,
    /// The record of the holder, with which [`Inspected::break_holder`](crate::Inspected::break_holder) breaks just this grant. `None`
    /// if the lock is free, or if the store cannot distinguish one grant of this holder from another.
    pub grant: Option<GrantRecord>,
}

/// A store that keeps locks.
///
/// To keep locks on a server, implement the smaller [`Register`](crate::store::remote::Register) instead:
/// the library then handles lost replies.
///
/// * **Blocking**: a method works in the calling thread and starts no threads of its own. It blocks until it
///   has an answer, and returns by its deadline `by`. [`acquire`](LockStore::acquire) may take up to two seconds
///   longer, to undo an acquisition that failed halfway, and each change a tenth of a second longer, to learn what has
///   become of it.
/// * **Threads**: all methods may be called from many threads at once.
/// * **Atomic changes**: acquire, renew and release each check a condition and write. Check and write must be
///   one step: no other change of the lock takes effect between them.
/// * **Lost replies**: if a method does not know whether its request was applied, it asks the store until `by`.
///   If it cannot find out, it fails with [`Code::InDoubt`].
///
/// # Errors of every method
/// * [`Code::InDoubt`]: the request may have been applied, or may still be applied later.
/// * Any other code, such as [`Code::ConnectionError`], [`Code::RetriesExhausted`],
///   [`Code::TableCreationError`], [`Code::InternalError`] or [`Code::Closed`]: the request was not applied
///   and will not be applied later.
///
/// [`Code::InDoubt`]: crate::Code::InDoubt
/// [`Code::ConnectionError`]: crate::Code::ConnectionError
/// [`Code::RetriesExhausted`]: crate::Code::RetriesExhausted
/// [`Code::TableCreationError`]: crate::Code::TableCreationError
/// [`Code::InternalError`]: crate::Code::InternalError
/// [`Code::Closed`]: crate::Code::Closed
pub trait LockStore: Send + Sync + fmt::Debug + 'static {
    /// Returns the store's URI without credentials. Messages show it.
    fn describe(&self) -> String;

    /// Creates what the store needs, such as a table or a file, and checks that the store answers.
    ///
    /// It may be called again, and by several processes at the same time.
    fn initialize(&self, by: Deadline) -> Result<()>;

    /// Checks that the store answers, and changes nothing. A store that has never answered fails as soon as it is clear
    /// that its address is wrong, for example because nothing listens there, and the error names what was found. A
    /// store that has answered before is waited for until `by`.
    ///
    /// Default: nothing is checked, for a store without servers.
    fn greet(&self, by: Deadline) -> Result<()> {
        let _ = by;
        Ok(())
    }

    /// Acquires the lock if it is free. Never waits for a holder.
    ///
    /// The check that the lock is free and the write of the record must be one atomic step.
    ///
    /// If a reply was lost, the store reads the lock. The answer says what is true after the call.
    /// The store pushes to `doubtful` the owner record of every request that may still take effect after the
    /// call, also if the call succeeds. The library releases these records later, which is always safe:
    /// [`release`](LockStore::release) changes nothing if the owner does not hold the lock.
    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired>;

    /// Acquires the lock as [`acquire`](LockStore::acquire) does, and reserves up to `fences` consecutive fences for the
    /// grant: see [`Grant::fences`](super::Grant::fences). The next grant of the lock has a higher fence than all of them.
    ///
    /// Default: `acquire`, which has one fence. For a store that [reserves](LockStore::reserves_fences) several.
    fn acquire_with_fences(
        &self,
        attempt: Attempt<'_>,
        fences: u64,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let _ = fences;
        self.acquire(attempt, doubtful)
    }

    /// Returns whether a grant can have several fences, so that a lock can stay with the process that has released it.
    /// Does not block. Default: `false`.
    fn reserves_fences(&self) -> bool {
        false
    }

    /// Extends the lease to `ttl` from now if `owner_record` still holds the lock. Returns the owner record to
    /// use from now on, or `None` if `owner_record` does not hold the lock any more.
    ///
    /// The check of the owner and the write of the new end must be one atomic step.
    ///
    /// A store may keep a lease longer than `ttl`, never shorter. A renewal never shortens a lease: if the
    /// record already lasts longer than `ttl`, it keeps its end and the renewal succeeds. This also holds for
    /// a request that arrives late, after one for a longer `ttl`.
    ///
    /// Several threads may renew and release one lease at the same time, so `owner_record` may be what an earlier call was
    /// given: a store that returns another record must still know it as this owner's.
    ///
    /// If a reply was lost, the answer says what is true after the call. A renewal may be repeated, also if it
    /// is in doubt.
    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>>;

    /// Extends several leases, each as [`renew`](LockStore::renew) does. Each is of another lock, or, with
    /// [`modes`](LockStore::modes), another hold of a lock. Calls `report` once
    /// for each lease that was asked for, in any order, and as soon as its answer is known: see [`OnRenewed`]. A lease that
    /// was not reported was not asked for, because the deadline came first.
    ///
    /// A store may ask for several leases in one request. Each lease still has a condition and an answer of its own: a
    /// lease without an answer is in doubt, whatever the answers for the others were. A server that hangs must not delay the
    /// requests to other servers.
    ///
    /// Default: one call of `renew` after the other.
    fn renew_many(&self, renewals: &[Renewal<'_>], by: Deadline, report: OnRenewed<'_>) {
        for (index, renewal) in renewals.iter().enumerate() {
            if by.passed() {
                return;
            }
            let since = Moment::now();
            let answer = self.renew(renewal.name, renewal.owner_record, renewal.ttl, by);
            report(index, since, answer);
        }
    }

    /// Frees the lock if `owner_record` holds it. Never changes the record of another owner.
    ///
    /// The check of the owner and the removal must be one atomic step.
    ///
    /// If a reply was lost and this owner does not hold the lock any more, the answer is [`Released::Gone`].
    /// A release may be repeated, also if it is in doubt.
    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released>;

    /// Releases the lease of another process, which does not know it: an operator breaks it. A store in which its record could
    /// come back must see to it that no later renewal finds it.
    ///
    /// Default: [`release`](LockStore::release).
    fn release_broken(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.release(name, owner_record, by)
    }

    /// Returns a number that identifies the grant with this record, whatever its renewals have changed. It is no
    /// secret. Does no I/O and does not block.
    ///
    /// Default: `None`. Then the error of a holder whose lock was broken does not say by whom.
    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        let _ = owner_record;
        None
    }

    /// Frees the lock if the record with this stamp holds it: see [`GrantRecord::Stamped`]. Never changes another record.
    ///
    /// The check of the stamp and the removal must be one atomic step. If a reply was lost, the answer is as that of
    /// [`release`](LockStore::release). Default: fails with [`Code::InvalidArgument`](crate::Code::InvalidArgument).
    fn release_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Result<Released> {
        let _ = (stamp, by);
        Err(no_stamps(name, &self.describe()))
    }

    /// Returns the current holder, or `None` if the lock is free. Waiters poll with this method, so it should
    /// be the cheapest request of the store.
    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>>;

    /// Reads several locks, each as [`holder`](LockStore::holder) does. Calls `report` with the position of each lock that it
    /// has read, and its holder, as soon as they are known. The caller then reads the others with `holder`.
    ///
    /// Waiters poll with this method if the process waits for many locks. It is worth implementing for a store that
    /// reads many locks in one request. A server that hangs must not delay the answers of other servers.
    ///
    /// Default: reports none.
    fn holders(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Option<Holder>)) {
        let _ = (names, by, report);
    }

    /// Returns the holder and the last fence, for people.
    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection>;

    /// Reads one page of the locks that `query` asks for, at most about `most` locks. `after` is the cursor of the page
    /// before; `None` reads the first page.
    ///
    /// Over all pages, a lock that is held from before the first page until after the last one is listed exactly once. If
    /// only held locks are asked for, a lock that is free all that time is never listed. A page is no snapshot: other locks
    /// come and go between the pages. Memory and time of one page do not depend on the number of locks in the store.
    ///
    /// Default: fails with [`Code::InvalidArgument`](crate::Code::InvalidArgument).
    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        let _ = (query, after, most, by);
        Err(Error::invalid("list", self.describe(), "a store that can list its locks"))
    }

    /// Returns how long after the end of a call a request without an answer may still be applied. The
    /// background threads look for its record at least this long. Does not block.
    ///
    /// Default: five minutes, because a gateway continues a call after its client has given up.
    fn in_flight_for(&self) -> Duration {
        Duration::from_secs(300)
    }

    /// Returns whether a renewal that found a lease lost may leave a part of it in the store. The library then
    /// releases the record in the background. Does not block.
    ///
    /// Default: `false`. `true` is for a store that keeps each lock in several places.
    fn may_leave_parts(&self) -> bool {
        false
    }

    /// Reports what the store's version and configuration mean for locks. Changes nothing in the store.
    ///
    /// Default: reports nothing.
    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        let _ = by;
        Ok(Vec::new())
    }

    /// Returns what this store promises with its options. If a topic comes twice, the later one counts. A store that wraps
    /// another one passes this on. Does no I/O and does not block.
    ///
    /// Default: nothing, and the report says that the store does not say.
    fn promises(&self) -> Vec<Promise> {
        Vec::new()
    }

    /// Returns the part of the store that has this lock, by a number. The library asks a part that fails less often, and the
    /// others as before. A store that wraps another one passes this on. Does no I/O and does not block.
    ///
    /// Default: one of 256 parts, by a hash of the name.
    fn shard(&self, name: &LockName) -> u8 {
        name.spread()
    }

    /// Returns what this store has counted since it was opened. Does no I/O and does not block. A store that wraps
    /// another one passes this on. Default: zeros.
    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }

    /// Returns the histories of locks in the same store, or `None` (the default) if it keeps none. Does not block.
    fn history(&self) -> Option<&dyn HistoryStore> {
        None
    }

    /// Returns the part of this store for locks with several modes. Does not block.
    ///
    /// Default: `None`. Then locks are exclusive.
    fn modes(&self) -> Option<&dyn ModeStore> {
        None
    }

    /// Returns the part of this store for semaphores. Does not block.
    ///
    /// Default: `None`.
    fn semaphores(&self) -> Option<&dyn SemaphoreStore> {
        None
    }

    /// Returns the part of this store for leases that die with their process. Does not block.
    ///
    /// Default: `None`. A store on a server cannot distinguish a process that has died from one that it cannot reach.
    fn liveness(&self) -> Option<&dyn LivenessStore> {
        None
    }

    /// Returns a directory that all processes which use this store share, for the sockets of their notices. Does not block.
    ///
    /// Default: `None`. A store on a server has none.
    fn shared_directory(&self) -> Option<&Path> {
        None
    }

    /// Notes that a process waits until this moment which finds a free lock only by asking for it: it has no notices, or none
    /// for this lock. Does not block. Default: nothing is noted.
    fn note_poller(&self, until: Moment) {
        let _ = until;
    }

    /// Returns whether such a process may wait. Then a lock that processes hand on to each other is left free now and then. Does not
    /// block. Default: `true`, for a store that does not know all who use it.
    fn may_have_pollers(&self) -> bool {
        true
    }

    /// Returns the latches in the same store, or `None` (the default) if the store keeps only locks.
    fn latches(&self) -> Option<&dyn LatchStore> {
        None
    }
}

/// # Errors
/// INVALID_ARGUMENT, for a store that cannot distinguish two grants without owner tokens.
pub(super) fn no_stamps(name: &LockName, store: &str) -> Error {
    let allowed = format!(
        "a lock whose holder uses this library, for {store}: the record has no owner token, and could be that of a later \
         holder. Use hbase:// or aerospike://, or wait until the lease ends"
    );
    Error::invalid("lock to break", name.to_string(), allowed)
}

/// The part of a store for leases that die with their process. See [`LockStore::liveness`].
///
/// The record of such a lease is marked. As soon as the holder's process has died, [`LockStore::acquire`] may replace a
/// marked record, with a higher fence, and [`LockStore::holder`] and [`LockStore::inspect`] report the lock as free. The
/// end of the TTL frees the lock as it does without a mark.
///
/// * **The proof** of a death must come from the kernel that runs the process. A process that is stopped, slow or not
///   found has not died. In doubt a process lives.
/// * **Renewals** leave the mark as it is.
/// * **Calls** block, fail and may be used from several threads as those of [`LockStore`] are.
pub trait LivenessStore: Send + Sync {
    /// Acquires the lock as [`LockStore::acquire`] does, and marks the record in the same atomic step. Only this process
    /// may use the lease, and it keeps the store object until the lease is released.
    fn acquire_until_death(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired>;

    /// Removes the mark if `owner_record` holds the lock, in one atomic step. Afterwards only the end of the TTL takes
    /// the lock from a holder that has died. Returns `false` if `owner_record` does not hold the lock. May be repeated.
    fn outlive_process(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<bool>;

    /// Returns a new descriptor of what proves that this process lives. It is closed on exec. While any process has a
    /// copy of it, this process has not died, as far as others can tell. Returns `None` if the record is not marked, or
    /// if `owner_record` does not hold the lock.
    fn liveness_fd(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        by: Deadline,
    ) -> Result<Option<OwnedFd>>;
}

/// Returns the error of a call on a latch, for a store that has only locks.
pub(crate) fn locks_only(store: &dyn LockStore) -> Error {
    Error::invalid("store", store.describe(), "a store that keeps latches: this one has only locks")
}

//! The layout `both`: each lock is two locks, one in the layout `java` and one in the layout `own`. It is for a fleet that
//! moves from one layout to the other while it works.
//!
//! ```text
//! java ---- both ---- own     Neighbours share a lock, so they exclude each other.
//! ```
//!
//! | call | steps |
//! |---|---|
//! | acquire | the lock `java`; the lock `own` with a fence that is not below the number from `java`; if that fence is higher, the counter of `java` is set to it |
//! | renew | `java`, `own`; if one of them is lost, the lease is lost and the other one is released |
//! | release | `own`, `java` |
//!
//! All clients take the two locks in the same order, and none waits while it holds one. If the second one is held, the
//! first one is given back.
//!
//! **Fences.** A grant has the number of the lock `own`, which is above all earlier numbers there and not below the
//! number that was counted in `java`. The counter of `java` has it too before the grant is returned. So the next client
//! of either layout gets a higher fence. The counter is set by compare-and-set: a copy of the request that is applied late
//! finds another number. If nobody counted since our own count, no other holder was in between. Otherwise a read of the
//! lock `java` shows that it is still ours: then the next holder counts after us.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::diagnostic::{Diagnostic, Severity};
use crate::names::fence::Fence;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerRecord;
use crate::names::promise::Promise;
use crate::runtime::sync::AtomicBool;
use crate::runtime::time::{Deadline, Moment};
use crate::store::counters::StoreCounters;
use crate::store::layout::Layout;
use crate::store::remote::resolve::{Doubt, Pauses, part, until_answered};
use crate::store::remote::{CLEAN_UP, ROUNDS, Register, RemoteStore, Reply, Settled, contended};
use crate::store::{
    Acquired, Attempt, Grant, GrantRecord, HistoryStore, Inspection, LatchStore, ListCursor, LockPage,
    LockQuery, LockStore, OnRenewed, Released, Renewal,
};

/// First byte of the cursor of a list, by the layout whose locks are read.
const IN_JAVA: u8 = 0;
const IN_OWN: u8 = 1;

/// The two stores of a server, and what the layout `both` needs beyond them.
pub(crate) trait LayoutBridge: fmt::Debug + Send + Sync + 'static {
    type Java: Register;
    /// Counts in its records.
    type Own: Register;

    fn java(&self) -> &RemoteStore<Self::Java>;

    fn own(&self) -> &RemoteStore<Self::Own>;

    /// Sets the counter of the lock `java` from one number to a higher one, in one atomic step. `None`: there is no
    /// counter.
    fn set_count(&self, name: &LockName, from: Option<u64>, to: u64, by: Deadline) -> Reply;

    /// Refuses a TTL that one of the two stores would refuse. No I/O.
    fn check_ttl(&self, ttl: Duration) -> Result<()>;

    /// See [`LockStore::promises`].
    fn promises(&self) -> Vec<Promise>;

    /// Reports the locks that are held in one layout only.
    fn unpaired(&self, by: Deadline) -> Result<Vec<Diagnostic>>;
}

/// A [`LockStore`] in the layout `both`.
#[derive(Debug)]
pub(crate) struct BothStore<B> {
    bridge: B,
    /// Whether the store `own` has answered. A wrong table must be reported before a lock of the other store is touched.
    own_answered: AtomicBool,
}

/// The owner records of one grant. One is missing in what an acquire left behind.
#[derive(Clone, Default)]
struct OwnerParts {
    java: Option<OwnerRecord>,
    own: Option<OwnerRecord>,
}

impl OwnerParts {
    /// First byte of the encoded parts. The records of the other layouts begin with other bytes, so each layout refuses
    /// the records of the others.
    const TAG: u8 = 3;

    fn of_java(java: OwnerRecord) -> OwnerParts {
        OwnerParts { java: Some(java), own: None }
    }

    fn of_own(own: OwnerRecord) -> OwnerParts {
        OwnerParts { java: None, own: Some(own) }
    }

    fn seen(&self) -> GrantRecord {
        GrantRecord::Ours(self.encode())
    }

    /// Encodes `tag:u8 java_len:u16 java own`. A record without bytes is a missing one.
    fn encode(&self) -> OwnerRecord {
        let [java, own] =
            [&self.java, &self.own].map(|part| part.as_ref().map_or(&[][..], |it| it.as_bytes()));
        // Fits: the parts of an owner record have at most 255 bytes each.
        let length = (java.len() as u16).to_be_bytes();
        OwnerRecord::from_bytes([&[OwnerParts::TAG], &length[..], java, own].concat())
    }

    fn decode(record: &OwnerRecord) -> Result<OwnerParts> {
        let split = || {
            let rest = record.as_bytes().strip_prefix(&[OwnerParts::TAG])?;
            let (length, rest) = rest.split_first_chunk::<2>()?;
            rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
        };
        let part = |bytes: &[u8]| (!bytes.is_empty()).then(|| OwnerRecord::from_bytes(bytes));
        match split().map(|(java, own)| OwnerParts { java: part(java), own: part(own) }) {
            Some(parts) if parts.java.is_some() || parts.own.is_some() => Ok(parts),
            _ => {
                let allowed = "a lease that was acquired from this kind of store, in the layout both";
                Err(Error::invalid("lease", "(not shown)", allowed))
            }
        }
    }
}

impl<B: LayoutBridge> BothStore<B> {
    /// Creates a store. No I/O.
    pub(crate) fn new(bridge: B) -> BothStore<B> {
        BothStore { bridge, own_answered: AtomicBool::new(false) }
    }

    /// Reads the lock `own`.
    fn own_holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        let holder = self.bridge.own().holder(name, by)?;
        self.own_answered.store(true, Ordering::Relaxed);
        Ok(holder)
    }

    /// Acquires the lock `own` and sets the counter of `java`. Leaves only doubtful records behind without a grant.
    fn acquire_own(
        &self,
        attempt: Attempt<'_>,
        java: &Grant,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let (mut doubts, least) = (Vec::new(), java.fence.map_or(0, |fence| fence.0));
        let answer = self.bridge.own().acquire_from(attempt, Some(least), &mut doubts);
        doubtful.extend(doubts.into_iter().map(|record| OwnerParts::of_own(record).encode()));
        let own = match answer? {
            Acquired::Granted(own) => own,
            held @ Acquired::Held(_) => return Ok(held),
        };
        let number = own.fence.map_or(0, |fence| fence.0);
        let raised = match number > least {
            true => self.raise(attempt, java, number),
            false => Ok(true),
        };
        match raised {
            Ok(true) => Ok(Acquired::Granted(own)),
            ended => {
                self.give_back(attempt, &own, OwnerParts::of_own, doubtful);
                let in_doubt = |error: Error| match error.is_in_doubt() {
                    // Only the number is in doubt. Setting it has no effect on later grants but higher fences.
                    true => Error::RetriesExhausted {
                        store: self.describe(),
                        what: "the fence could not be counted".into(),
                        source: Some(error.into()),
                    },
                    false => error,
                };
                ended.map_err(in_doubt)?;
                // The lock `java` was lost meanwhile.
                Ok(Acquired::Held(Holder::unknown()))
            }
        }
    }

    /// Sets the counter of `java` to `number` at least. Returns whether the lock `java` was ours all the time.
    fn raise(&self, attempt: Attempt<'_>, java: &Grant, number: u64) -> Result<bool> {
        let Attempt { name, by, .. } = attempt;
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        let (mut last, mut others_counted) = (java.fence.map(|fence| fence.0), false);
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            match until_answered(by, || self.bridge.set_count(name, last, number, by).settled()) {
                Ok(Settled::Yes(())) if !others_counted => return Ok(true),
                Ok(Settled::Yes(())) => return self.bridge.java().is_held_by(name, &java.owner_record, by),
                Ok(Settled::No(_)) => {}
                Err(error) => doubt.go_on(error)?,
            }
            others_counted = true;
            let read = until_answered(by, || self.bridge.java().register().last_count(name, by));
            last = read.map_err(|error| doubt.or(error))?;
            if last >= Some(number) {
                return self.bridge.java().is_held_by(name, &java.owner_record, by);
            }
        }
        Err(doubt.or(contended(name)))
    }

    /// Releases one of the two locks after the other one was not granted. Pushes its record to `doubtful` unless it is
    /// certainly free.
    fn give_back(
        &self,
        attempt: Attempt<'_>,
        grant: &Grant,
        part_of: fn(OwnerRecord) -> OwnerParts,
        doubtful: &mut Vec<OwnerRecord>,
    ) {
        let record = part_of(grant.owner_record.clone()).encode();
        let latest = Deadline::at(attempt.by.moment().after(CLEAN_UP));
        let released = self.release(attempt.name, &record, Deadline::after(CLEAN_UP).sooner(latest));
        // A record that a Java client's Delete hides is not released, and it can appear again.
        if grant.may_reappear || !matches!(released, Ok(Released::Freed)) {
            doubtful.push(record);
        }
    }

    /// Releases what is left of a lease of which one half was lost. The caller tries again in the background if this
    /// fails: see [`LockStore::may_leave_parts`].
    fn release_rest(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) {
        if let Err(error) = self.release(name, owner_record, by) {
            log::warn!("one half of lock {name} was lost, and the other could not be released: {error}");
        }
    }

    /// Returns the layout's diagnostics of the table of one half.
    fn of_half(store: &impl LockStore, found: Vec<Diagnostic>) -> impl Iterator<Item = Diagnostic> {
        let half = store.describe();
        found.into_iter().map(move |it| Diagnostic { seen: format!("{half}: {}", it.seen), ..it })
    }
}

/// Releases the halves of a lease that there are.
fn released_both(
    owner_record: &OwnerRecord,
    release_own: impl FnOnce(&OwnerRecord) -> Result<Released>,
    release_java: impl FnOnce(&OwnerRecord) -> Result<Released>,
) -> Result<Released> {
    let OwnerParts { java, own } = OwnerParts::decode(owner_record)?;
    let own = own.as_ref().map(release_own).transpose()?;
    let java = java.as_ref().map(release_java).transpose()?;
    let answers = [own, java];
    let is = |answer| answers.contains(&Some(answer));
    Ok(if is(Released::NotOurs) {
        Released::NotOurs
    } else if is(Released::Gone) {
        Released::Gone
    } else {
        Released::Freed
    })
}

/// Returns the renewals of one half of these leases.
fn half_of<'a>(
    renewals: &[Renewal<'a>],
    halves: impl Iterator<Item = (usize, &'a OwnerRecord)>,
) -> Vec<Renewal<'a>> {
    halves.map(|(at, owner_record)| Renewal { owner_record, ..renewals[at] }).collect()
}

impl<B: LayoutBridge> LockStore for BothStore<B> {
    fn describe(&self) -> String {
        self.bridge.java().describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.bridge.java().initialize(by)?;
        self.bridge.own().initialize(by)
    }

    /// Both layouts are in tables of one cluster.
    fn greet(&self, by: Deadline) -> Result<()> {
        self.bridge.java().greet(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.bridge.check_ttl(attempt.ttl)?;
        if !self.own_answered.load(Ordering::Relaxed)
            && let Some(holder) = self.own_holder(attempt.name, attempt.by)?
        {
            return Ok(Acquired::Held(holder));
        }
        let before = doubtful.len();
        let mut doubts = Vec::new();
        let answer = self.bridge.java().acquire(attempt, &mut doubts);
        doubtful.extend(doubts.into_iter().map(|record| OwnerParts::of_java(record).encode()));
        let java = match answer? {
            Acquired::Granted(java) => java,
            held @ Acquired::Held(_) => return Ok(held),
        };
        match self.acquire_own(attempt, &java, doubtful) {
            Ok(Acquired::Granted(own)) => Ok(Acquired::Granted(Grant {
                owner_record: OwnerParts { java: Some(java.owner_record), own: Some(own.owner_record) }
                    .encode(),
                fence: own.fence,
                epoch: None,
                fences: 1,
                since: java.since.min(own.since),
                may_reappear: java.may_reappear || own.may_reappear,
            })),
            Ok(held) => {
                self.give_back(attempt, &java, OwnerParts::of_java, doubtful);
                Ok(held)
            }
            Err(error) => {
                self.give_back(attempt, &java, OwnerParts::of_java, doubtful);
                if error.is_in_doubt() || doubtful.len() == before {
                    return Err(error);
                }
                Err(Error::InDoubt {
                    what: "an earlier request of this acquire may still be applied".into(),
                    source: Some(error.into()),
                })
            }
        }
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.bridge.check_ttl(ttl)?;
        // The record of one lock is no lease.
        let OwnerParts { java: Some(java), own: Some(own) } = OwnerParts::decode(owner_record)? else {
            return Ok(None);
        };
        let java = self.bridge.java().renew(name, &java, ttl, part(by, 2))?;
        let own = match java {
            Some(_) => self.bridge.own().renew(name, &own, ttl, by)?,
            None => None,
        };
        if java.is_some() && own.is_some() {
            return Ok(Some(OwnerParts { java, own }.encode()));
        }
        self.release_rest(name, owner_record, by);
        Ok(None)
    }

    /// First the locks `java` of all leases, in half of the time, and then the locks `own`.
    fn renew_many(&self, renewals: &[Renewal<'_>], by: Deadline, report: OnRenewed<'_>) {
        let mut halves = Vec::with_capacity(renewals.len());
        let mut lost = Vec::new();
        for (at, renewal) in renewals.iter().enumerate() {
            let parts =
                self.bridge.check_ttl(renewal.ttl).and_then(|()| OwnerParts::decode(renewal.owner_record));
            match parts {
                Ok(OwnerParts { java: Some(java), own: Some(own) }) => halves.push((at, java, own)),
                // The record of one lock is no lease.
                Ok(_) => report(at, Moment::now(), Ok(None)),
                Err(error) => report(at, Moment::now(), Err(error)),
            }
        }
        let mut renewed_java = Vec::with_capacity(halves.len());
        let asked = half_of(renewals, halves.iter().map(|(at, java, _)| (*at, java)));
        self.bridge.java().renew_many(&asked, part(by, 2), &mut |half, since, answer| {
            let (at, _, own) = &halves[half];
            match answer {
                Ok(Some(java)) => renewed_java.push((*at, since, java, own)),
                Ok(None) => lost.push((*at, since)),
                Err(error) => report(*at, since, Err(error)),
            }
        });
        let asked = half_of(renewals, renewed_java.iter().map(|(at, _, _, own)| (*at, *own)));
        let mut has_answer = vec![false; asked.len()];
        self.bridge.own().renew_many(&asked, by, &mut |half, _, answer| {
            // The lease counts from before both requests.
            let (at, since, java, _) = &renewed_java[half];
            has_answer[half] = true;
            let answer = match answer {
                Ok(Some(own)) => Ok(Some(OwnerParts { java: Some(java.clone()), own: Some(own) }.encode())),
                Ok(None) => return lost.push((*at, *since)),
                Err(error) => Err(error),
            };
            report(*at, *since, answer);
        });
        for ((at, since, ..), _) in renewed_java.iter().zip(has_answer).filter(|(_, has_answer)| !has_answer)
        {
            let what = format!("lock {}: there was no time for its second half", renewals[*at].name);
            let error = Error::RetriesExhausted { store: self.describe(), what, source: None };
            report(*at, *since, Err(error));
        }
        for (at, since) in lost {
            self.release_rest(renewals[at].name, renewals[at].owner_record, by);
            report(at, since, Ok(None));
        }
    }

    fn may_leave_parts(&self) -> bool {
        true
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        released_both(
            owner_record,
            |own| self.bridge.own().release(name, own, by),
            |java| self.bridge.java().release(name, java, by),
        )
    }

    /// A break and a release both free the half `own` first. The one that frees it has ended the grant, also if the other one
    /// frees the second half.
    fn release_broken(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        let OwnerParts { java, own } = OwnerParts::decode(owner_record)?;
        let first = own.as_ref().map(|own| self.bridge.own().release_broken(name, own, by)).transpose()?;
        if first == Some(Released::NotOurs) {
            return Ok(Released::NotOurs);
        }
        let second =
            java.as_ref().map(|java| self.bridge.java().release_broken(name, java, by)).transpose()?;
        Ok(first.or(second).unwrap_or(Released::NotOurs))
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        match self.bridge.java().holder(name, by)? {
            Some(holder) => Ok(Some(holder)),
            None => self.own_holder(name, by),
        }
    }

    /// The locks of the layout `java`, and then those that are held in the layout `own` only. A client of this layout holds
    /// both. The cursor begins with the number of the part.
    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        let (part, after) = match after.map(ListCursor::as_bytes) {
            None => (IN_JAVA, None),
            Some([part @ (IN_JAVA | IN_OWN), rest @ ..]) => {
                (*part, (!rest.is_empty()).then(|| ListCursor::from_bytes(rest)))
            }
            Some(other) => return Err(ListCursor::from_bytes(other).refused()),
        };
        let cursor = |part: u8, rest: &[u8]| ListCursor::from_bytes([&[part], rest].concat());
        if part == IN_JAVA {
            let page = self.bridge.java().list(query, after.as_ref(), most, by)?;
            let next = page.next.map_or_else(|| cursor(IN_OWN, b""), |next| cursor(IN_JAVA, next.as_bytes()));
            return Ok(LockPage::new(page.locks, Some(next)));
        }
        let held = query.clone().held_only();
        let mut page = self.bridge.own().list(&held, after.as_ref(), most, by)?;
        // Each lock of this page has a name.
        let names: Vec<_> = page.locks.iter().filter_map(|lock| lock.name.clone()).collect();
        let (java, mut is_in_java) = (self.bridge.java(), vec![None; names.len()]);
        java.holders(&names, by, &mut |index, holder| is_in_java[index] = Some(holder.is_some()));
        let mut own_only = Vec::with_capacity(names.len());
        for ((lock, name), is_in_java) in page.locks.into_iter().zip(&names).zip(is_in_java) {
            if !is_in_java.map_or_else(|| java.holder(name, by).map(|holder| holder.is_some()), Ok)? {
                own_only.push(lock);
            }
        }
        page.locks = own_only;
        page.next = page.next.map(|next| cursor(IN_OWN, next.as_bytes()));
        Ok(page)
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        let java = self.bridge.java().inspect(name, by)?;
        let own = self.bridge.own().inspect(name, by)?;
        self.own_answered.store(true, Ordering::Relaxed);
        let fence: Option<Fence> = java.fence.max(own.fence);
        let is_one_holder = match (&java.holder, &own.holder) {
            (Some(java), Some(own)) => java.identity == own.identity,
            _ => true,
        };
        let grant = match (java.grant, own.grant) {
            (Some(GrantRecord::Ours(java)), Some(GrantRecord::Ours(own))) if is_one_holder => {
                Some(OwnerParts { java: Some(java), own: Some(own) }.seen())
            }
            (Some(GrantRecord::Ours(java)), _) => Some(OwnerParts::of_java(java).seen()),
            // Of a Java client. It holds no lock of the layout `own`.
            (Some(stamped), _) => Some(stamped),
            (None, Some(GrantRecord::Ours(own))) if java.holder.is_none() => {
                Some(OwnerParts::of_own(own).seen())
            }
            (None, _) => None,
        };
        let holder = java.holder.or(own.holder);
        Ok(Inspection { holder, fence, layout: Some(Layout::Both.name()), grant })
    }

    fn release_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Result<Released> {
        self.bridge.java().release_stamped(name, stamp, by)
    }

    /// That of the half `java`, which clients of that layout see too.
    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        let OwnerParts { java, own } = OwnerParts::decode(owner_record).ok()?;
        match (java, own) {
            (Some(java), _) => self.bridge.java().grant_number(&java),
            (None, Some(own)) => self.bridge.own().grant_number(&own),
            (None, None) => None,
        }
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        self.bridge.java().history()
    }

    fn in_flight_for(&self) -> Duration {
        self.bridge.java().in_flight_for().max(self.bridge.own().in_flight_for())
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        let (java, own) = (self.bridge.java(), self.bridge.own());
        let (in_java, in_own) = (java.diagnose(by)?, own.diagnose(by)?);
        let is_usable = |found: &[Diagnostic]| {
            found.iter().all(|it| it.topic != "table" || it.severity != Severity::Fail)
        };
        let exist = is_usable(&in_java) && is_usable(&in_own);
        let mut found: Vec<_> = Self::of_half(java, in_java).collect();
        // The servers are the same.
        found.extend(Self::of_half(own, in_own).filter(|it| it.topic != "version"));
        if exist {
            found.extend(self.bridge.unpaired(by)?);
        }
        Ok(found)
    }

    fn promises(&self) -> Vec<Promise> {
        self.bridge.promises()
    }

    fn shard(&self, name: &LockName) -> u8 {
        self.bridge.java().shard(name)
    }

    fn counters(&self) -> StoreCounters {
        self.bridge.java().counters().plus(self.bridge.own().counters())
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.bridge.java().latches()
    }
}

#[cfg(test)]
pub(crate) mod tests;

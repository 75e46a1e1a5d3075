//! Breaking a lock: an operator takes it from a holder that does not release it.
//!
//! ```text
//! 1  history   two entries: broken by ... because ...    the holder reads that of its grant when it finds that its lease is
//!                                                        lost; the other is for people, who read that of the lock
//! 2  release   the record that was seen, and no other    as its holder would release it
//! 3  acquire   a grant of our own, released at once      its fence shuts out the old holder at receivers of writes
//! ```
//!
//! The second step is the release of the lock protocol, which changes nothing if another record is stored by now, and finds
//! out what happened if a reply was lost. A record without an owner token has a stamp instead. If this process ends between
//! two steps, the lock is held by the old holder or free, and nothing else is left behind.
//!
//! If the holder had gone before the second step, entries take the first ones back. If the second step is in doubt, the
//! first entries stay. A holder that was not broken then, and loses its lease later, receives that break all the same.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::lease::freeing::LockDoubt;
use crate::lease::held_lock::Leftover;
use crate::names::fence::Fence;
use crate::names::history_entry::{HistoryEntry, HistoryKind, checked_reason};
use crate::names::holder::{Identity, PART_BYTES_MAX};
use crate::names::lock_name::LockName;
use crate::runtime::time::Deadline;
use crate::session::Session;
use crate::store::{Acquired, Attempt, GrantRecord, HistoryOf, Inspection, Released};

/// How long the history keeps the entry of a broken lock at least.
pub(crate) const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often an entry is written, if a reply is lost.
const WRITES: usize = 3;
/// TTL of our own grant. It is released at once.
const OWN_TTL: Duration = Duration::from_secs(10);
/// What the record of our own grant says, before the reason.
const PURPOSE: &str = "breaks the lock: ";

/// A holder of a lock at the moment of [`Lock::inspected`](crate::Lock::inspected) or
/// [`Lock::inspected_holds`](crate::Lock::inspected_holds).
pub struct Inspected {
    session: Arc<Session>,
    name: LockName,
    inspection: Inspection,
}

/// A lock that was broken, returned by [`Inspected::break_holder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Broken {
    /// A fence above that of the old holder. A receiver that has seen it refuses the old holder's writes. `None` if fencing
    /// is switched off, if others hold the lock too or another process acquired it first, or if the store failed after the
    /// break. In the last cases the fence of the next exclusive grant is above that of the old holder.
    pub fence: Option<Fence>,
    /// Whether the history of the lock says who broke it and why. If not, the old holder finds its lease lost without being
    /// told why.
    pub is_recorded: bool,
}

impl Inspected {
    pub(crate) fn new(session: &Arc<Session>, name: &LockName, inspection: Inspection) -> Inspected {
        Inspected { session: Arc::clone(session), name: name.clone(), inspection }
    }

    /// Returns the holder and the last fence.
    pub fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    /// Breaks the lock: takes it from the holder that was seen. For an operator, and a holder that does not release the lock
    /// and cannot be reached. `reason` is recorded in the history of the lock, and the holder reads it: 1 to 255 bytes
    /// without control characters.
    ///
    /// Breaks just the grant that was seen, also if others hold the lock beside it. Returns `None` and changes nothing if that
    /// grant is over, although another holder may have the lock by now.
    ///
    /// **The old holder may go on working.** It learns of the break when it renews or releases its lease, which then fails
    /// with [`Code::LeaseLost`](crate::Code::LeaseLost), the reason [`Broken`](crate::LostReason::Broken) and the text of
    /// `reason`. With [`linger`](crate::Builder::linger) it may take the lock again for that time without asking the store.
    /// Only receivers that compare fences are safe: send them the fence of [`Broken`].
    ///
    /// Blocks for a few calls to the store. If this process ends meanwhile, the lock is held by its old holder or free.
    ///
    /// # Errors
    /// * [`Code::InvalidArgument`](crate::Code::InvalidArgument): the lock was free when it was seen; the reason is not
    ///   allowed; the holder is a Java client, and the store is reached through a Thrift gateway.
    /// * [`Code::InDoubt`](crate::Code::InDoubt): the lock may or may not be broken. Look at it again.
    /// * Those of [`Lock::inspect`](crate::Lock::inspect). Nothing was broken.
    pub fn break_holder(&self, reason: &str) -> Result<Option<Broken>> {
        self.session.usable()?;
        checked_reason(reason)?;
        break_holder(&self.session, &self.name, &self.inspection, reason)
    }
}

impl fmt::Debug for Inspected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the record, which is a secret.
        let Inspection { holder, fence, .. } = &self.inspection;
        let name = self.name.to_string();
        f.debug_struct("Inspected")
            .field("lock", &name)
            .field("holder", holder)
            .field("fence", fence)
            .finish_non_exhaustive()
    }
}

fn break_holder(
    session: &Session,
    name: &LockName,
    seen: &Inspection,
    reason: &str,
) -> Result<Option<Broken>> {
    let refused = |allowed: &str| Error::invalid("lock to break", name.to_string(), allowed);
    let holder = seen.holder.as_ref().ok_or_else(|| refused("a lock that was held when it was inspected"))?;
    let Some(record) = &seen.grant else {
        return Err(refused(
            "a lock whose record can be distinguished from that of a later holder. This one has no owner token, so it is not of this \
             library, and its store has no time of the write to compare (use hbase:// instead of hbase+thrift://)",
        ));
    };
    let grant = match record {
        GrantRecord::Ours(owner_record) => session.store.grant_number(owner_record).unwrap_or_default(),
        GrantRecord::Stamped(_) => 0,
    };
    let entry = HistoryEntry {
        text: reason.to_owned(),
        victim: holder.identity.clone(),
        mode: holder.mode,
        fence: seen.fence,
        grant,
        ..HistoryEntry::now(HistoryKind::Broken, &session.identity)
    };
    let (is_in_grant, is_recorded) = record_break(session, name, grant, &entry);
    let by = Deadline::after(session.settings.timeout);
    let released = match record {
        GrantRecord::Ours(owner_record) => session.store.release_broken(name, owner_record, by),
        GrantRecord::Stamped(stamp) => session.store.release_stamped(name, stamp, by),
    };
    let has_gone = match &released {
        Ok(Released::Freed | Released::Gone) => false,
        Ok(Released::NotOurs) => true,
        Err(error) => !error.is_in_doubt(),
    };
    if has_gone && (is_in_grant || is_recorded) {
        let kind = HistoryKind::NotBroken;
        let back = HistoryEntry::now(kind, &session.identity);
        let back = HistoryEntry { text: entry.text, takes_back: entry.id, mode: entry.mode, ..back };
        record_break(session, name, grant, &back);
    }
    match released.map_err(|error| error.context(format!("breaking lock {name}")))? {
        Released::NotOurs => Ok(None),
        Released::Freed | Released::Gone => {
            log::info!("lock {name} of {holder} was broken, because {reason:?}");
            Ok(Some(Broken { fence: raise_fence(session, name, reason), is_recorded }))
        }
    }
}

/// Acquires the lock for a moment. Returns the fence; `None` if that fails or another process was faster.
fn raise_fence(session: &Session, name: &LockName, reason: &str) -> Option<Fence> {
    let mut purpose = format!("{PURPOSE}{reason}");
    while purpose.len() > PART_BYTES_MAX {
        purpose.pop();
    }
    let identity = Identity { purpose, ..session.identity.clone() };
    let by = Deadline::after(session.settings.timeout.min(OWN_TTL));
    let (attempt, mut doubtful) = (Attempt { name, ttl: OWN_TTL, identity: &identity, by }, Vec::new());
    let answer = session.store.acquire(attempt, &mut doubtful);
    let mut fence = None;
    match answer {
        Ok(Acquired::Granted(grant)) => {
            fence = grant.fence;
            let by = Deadline::after(session.settings.timeout);
            if session.store.release(name, &grant.owner_record, by).is_err() {
                doubtful.push(grant.owner_record);
            }
        }
        Ok(Acquired::Held(_)) => {}
        Err(error) => log::warn!("the fence of lock {name} was not raised: {}", error.chain()),
    }
    for record in doubtful {
        let leftover = Leftover { record, ttl: OWN_TTL, doubt: LockDoubt::MayBeTaken };
        session.leases.free(name.clone(), leftover);
    }
    fence
}

/// Adds an entry to those of the grant, where its holder finds it, and to the history of the lock, which later entries push
/// it out of. Returns whether each was confirmed. No holder asks for a grant without a number.
fn record_break(session: &Session, name: &LockName, grant: u64, entry: &HistoryEntry) -> (bool, bool) {
    let is_in_grant = grant != 0 && record_entry(session, HistoryOf::Grant(name, grant), entry);
    (is_in_grant, record_entry(session, HistoryOf::Lock(name), entry))
}

/// Returns `false` if the store keeps no histories, or did not confirm it.
fn record_entry(session: &Session, of: HistoryOf<'_>, entry: &HistoryEntry) -> bool {
    let Some(history) = session.store.history() else { return false };
    let by = Deadline::after(session.settings.timeout);
    let lasts = KEPT.max(session.settings.history);
    for _ in 0..WRITES {
        match history.append(of, entry, lasts, by) {
            Ok(()) => return true,
            // Adding it again changes nothing.
            Err(error) if error.is_in_doubt() && !by.passed() => {}
            Err(error) => {
                log::warn!("the history of lock {} has no entry for a break: {}", of.name(), error.chain());
                return false;
            }
        }
    }
    false
}

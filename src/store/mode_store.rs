//! The contract between locks and the stores that keep them in several modes.

use std::time::Duration;

use super::grant::{Acquired, Attempt, Grant, GrantRecord};
use crate::error::{Error, Result};
use crate::names::fence::{Epoch, Fence};
use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerRecord;
use crate::runtime::random;
use crate::runtime::time::Deadline;

/// Longest life of an [`Intent`]. A process that has died makes readers wait for so long at most.
pub const INTENT_MAX: Duration = Duration::from_secs(3);

/// Longest [turn](ModeTerms::turn) of readers.
pub const TURN_MAX: Duration = Duration::from_secs(3);

/// The part of a store for locks with several modes. See [`LockStore::modes`](super::LockStore::modes).
///
/// A lock has any number of holds at one time, as far as their modes are [compatible](Mode::is_compatible_with). Each hold has
/// an owner record and an end of its own. [`LockStore::renew`](super::LockStore::renew), `renew_many`, `release` and
/// `release_broken` take the owner record of any hold, and touch no other hold. `LockStore::acquire` acquires the lock
/// exclusively: it is refused while anybody holds the lock, in any mode. `LockStore::holder` returns the holder whose lease
/// ends last, and `LockStore::list` lists it.
///
/// * **Numbers**: each grant has a number: a [`Fence`] if it is exclusive, an [`Epoch`] if it is not. A grant begins a new
///   number, higher than all before, if it is exclusive, if it makes less of an exclusive hold, or if nobody holds the lock.
///   Any other grant keeps the number of those that hold the lock. So all holds of one time have one number, and a higher
///   number proves that the holds before are over. A store may keep the number of holds whose processes died for as long as
///   the longest of them could have lasted.
/// * **Unknown holds**: a record that the store does not understand, such as one of a later version, is a hold that is
///   compatible with nothing.
/// * **Versions without modes** use the same store. They find the lock held while anybody holds it in any mode.
/// * **Calls** block, fail and may be used from several threads as those of [`LockStore`](super::LockStore) are. The check
///   of all conditions and the write are one atomic step.
pub trait ModeStore: Send + Sync {
    /// Acquires the lock in a mode, if the holds and the intents that it has allow that. Never waits.
    ///
    /// Fails, answers and uses `doubtful` as [`LockStore::acquire`](super::LockStore::acquire) does. The answer
    /// [`Acquired::Held`] names a hold or an intent that stands in the way, of several intents the one that was announced
    /// first, with how long it has [waited](Holder::waited).
    fn acquire_mode(
        &self,
        attempt: Attempt<'_>,
        terms: ModeTerms<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired>;

    /// Returns whether several threads that acquire one lock in [`Mode::Shared`] at the same time cost the store about as much as
    /// one. Then threads of one process that wait for readers' turn ask at the same time, and else one after the other.
    ///
    /// Default: `false`.
    fn joins_together(&self) -> bool {
        false
    }

    /// Changes the mode of a hold in one step, so that nobody gets the lock in between. The hold gets another owner record,
    /// lasts for the TTL of the attempt from now on, and the earlier record holds nothing any more.
    ///
    /// To fewer rights it never waits. From [`Mode::Update`] to [`Mode::Exclusive`] it is refused while others hold the lock,
    /// and the hold stays as it was.
    ///
    /// The owner record may be what an earlier renewal was given, as for [`LockStore::renew`](super::LockStore::renew).
    ///
    /// If the call is in doubt, the earlier record, or one of those that were pushed to `doubtful`, may hold the lock.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument), without I/O, unless [`Mode::converts_to`] allows the change.
    fn convert(
        &self,
        attempt: Attempt<'_>,
        conversion: Conversion<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Converted>;

    /// Returns a hold or an intent that stands in the way of a grant in this mode; `None` if there is none. Waiters poll with
    /// this method.
    fn blocker(&self, name: &LockName, mode: Mode, by: Deadline) -> Result<Option<Holder>>;

    /// Returns all holds of the lock, for people and for breaking one of them.
    fn holds(&self, name: &LockName, by: Deadline) -> Result<Vec<LockHold>>;

    /// Announces that the process waits for the lock exclusively: until the intent ends, nobody gets the lock in another mode,
    /// see [`ModeTerms`] for the exceptions. Announcing it again lets it last longer. It is no hold, does not depend on who
    /// holds the lock, and does not keep another one from acquiring the lock exclusively. It may be repeated, also if it
    /// is in doubt.
    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()>;

    /// Ends the intent of a process that does not wait any more. May be repeated, also if it is in doubt.
    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()>;
}

/// What is asked for in [`ModeStore::acquire_mode`].
#[derive(Debug, Clone, Copy)]
pub struct ModeTerms<'a> {
    /// The mode.
    pub mode: Mode,
    /// How many consecutive numbers an exclusive grant reserves: see
    /// [`LockStore::acquire_with_fences`](super::LockStore::acquire_with_fences). 1 in any other mode.
    pub fences: u64,
    /// The intent of this process, which an exclusive grant ends in the same step.
    pub intent: Option<IntentId>,
    /// A hold of this lock which the caller has already. While it holds the lock, intents do not stand in the way of a
    /// shared attempt: who waits for them would wait for itself.
    pub nested_in: Option<&'a OwnerRecord>,
    /// If set, no intent stands in the way of this attempt, and if it is granted, none does for so long: it is the turn of
    /// the readers. Zero begins no turn. A store ends it after [`TURN_MAX`], whatever was asked for. One that lasts already is
    /// not prolonged: else readers that poll, one after another, would keep a writer out. For an attempt that is not exclusive.
    ///
    /// Callers set it when they have waited for as long as intents may make them wait. After the hold of a writer they set zero:
    /// each reader that has waited for its end passes alone. A turn would begin only when the first of them polls again, and a
    /// writer that has come back meanwhile would have to poll once more.
    pub turn: Option<Duration>,
}

impl ModeTerms<'_> {
    /// Asks for this mode and nothing else.
    pub fn new(mode: Mode) -> ModeTerms<'static> {
        ModeTerms { mode, fences: 1, intent: None, nested_in: None, turn: None }
    }
}

/// A change of mode: the argument of [`ModeStore::convert`].
#[derive(Debug, Clone, Copy)]
pub struct Conversion<'a> {
    /// The record of the hold.
    pub owner_record: &'a OwnerRecord,
    /// The mode that it has.
    pub from: Mode,
    /// The mode that it is to have.
    pub to: Mode,
    /// The intent of this process, which a grant of [`Mode::Exclusive`] ends in the same step.
    pub intent: Option<IntentId>,
}

/// Answer of [`ModeStore::convert`].
#[derive(Debug)]
pub enum Converted {
    /// The hold has the other mode.
    Granted(Grant),
    /// Others hold the lock. The hold is as it was.
    Held(Holder),
    /// The owner record does not hold the lock in this mode.
    NotOurs,
}

/// One hold of a lock, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHold {
    /// The holder, with the mode.
    pub holder: Holder,
    /// Its number: of an exclusive hold the last of its fences.
    pub epoch: Option<Epoch>,
    /// The record, with which just this hold can be broken.
    pub grant: GrantRecord,
}

impl LockHold {
    /// Returns the last fence of an exclusive hold, or the fence of a permit.
    pub fn fence(&self) -> Option<Fence> {
        let has_fence = matches!(self.holder.mode, Mode::Exclusive | Mode::Permit);
        self.epoch.filter(|_| has_fence).map(|epoch| Fence(epoch.0))
    }
}

/// A process that waits for a lock exclusively.
#[derive(Debug, Clone, Copy)]
pub struct Intent<'a> {
    /// Identifies the wait.
    pub id: IntentId,
    /// The process.
    pub identity: &'a Identity,
    /// How long it lasts from now on. A store ends it after [`INTENT_MAX`], whatever was asked for.
    pub lasts: Duration,
}

/// Identifies one wait for a lock. It is no secret: who knows it can make readers wait no longer and no shorter than anybody
/// who may write to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IntentId(pub u64);

impl IntentId {
    /// Draws a new id.
    ///
    /// # Errors
    /// [`Code::InternalError`](crate::Code::InternalError) if the system provides no random bytes.
    pub fn draw() -> Result<IntentId> {
        random::secret_number().map(IntentId).map_err(|error| Error::Internal {
            what: "the operating system gave no random bytes for the id of a wait".into(),
            source: Some(error.into()),
        })
    }
}

/// Checks a conversion before any I/O.
///
/// # Errors
/// INVALID_ARGUMENT unless the modes allow it.
pub(super) fn check_conversion(name: &LockName, conversion: &Conversion<'_>) -> Result<()> {
    let Conversion { from, to, .. } = conversion;
    if from.converts_to(*to) {
        return Ok(());
    }
    let allowed =
        "to fewer rights (EXCLUSIVE to UPDATE or SHARED, UPDATE to SHARED), or from UPDATE to EXCLUSIVE";
    Err(Error::invalid("conversion", format!("{from} to {to} of lock {name}"), allowed))
}

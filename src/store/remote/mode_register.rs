//! The store interface of the lock protocol for locks with several modes: several records for each lock.

use std::time::Duration;

use super::answers::{Found, Reply};
use super::record::Record;
use crate::error::Result;
use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::time::Deadline;
use crate::store::{Intent, IntentId};

/// The part of a [`Register`](super::Register) for locks with several modes: see [`Register::modes`](super::Register::modes).
///
/// A lock has one exclusive record, or any number of records of other modes, each with a [place](Record::place), a TTL and a
/// token of its own. [`ModeStore`](crate::store::ModeStore) has the rules: which modes go together, and which grants begin a
/// new number. The library turns this part into such a store, and handles lost replies.
///
/// [`Register::replace`](super::Register::replace), `replace_many` and [`remove`](super::Register::remove) take the record of
/// any hold. They change no other hold, and refuse a record of another number than the lock has.
/// [`Register::create`](super::Register::create) is refused while there is any record.
/// [`Register::read`](super::Register::read) returns the record that ends last, and `read_own` that of one hold. The
/// [capability](super::Capabilities::counts_in_record) `counts_in_record` is needed: a record has its number.
///
/// Each change is one atomic step under one condition, as those of a register are.
pub trait ModeRegister: Send + Sync {
    /// Writes the record of a new hold beside those that the lock has. The register chooses its number and its place.
    ///
    /// * Yes: the record that is stored.
    /// * No: a hold or an intent that stands in the way. Nothing was changed, and no request is under way.
    /// * Lost: the record may be stored now, or later. The library reads the lock to find out.
    fn join(&self, join: &Join<'_>, by: Deadline) -> Reply<Record, Holder>;

    /// See [`ModeStore::joins_together`](crate::store::ModeStore::joins_together).
    fn joins_together(&self) -> bool {
        false
    }

    /// Replaces the record of a hold by one of another mode, in one step.
    ///
    /// * Yes: the new record that is stored.
    /// * No: nothing was changed, and no request is under way.
    /// * Lost: either record may be stored. The library reads the lock, and sends the same change again while the old one is.
    fn change_mode(&self, change: &ChangeMode<'_>, by: Deadline) -> Reply<Record, NotChanged>;

    /// Reads everything that the lock has.
    ///
    /// # Errors
    /// As for [`Register::read`](super::Register::read).
    fn read_holds(&self, name: &LockName, by: Deadline) -> Result<StoredHolds>;

    /// See [`ModeStore::announce`](crate::store::ModeStore::announce).
    ///
    /// # Errors
    /// Any. The call may be repeated.
    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()>;

    /// See [`ModeStore::withdraw`](crate::store::ModeStore::withdraw).
    ///
    /// # Errors
    /// Any. The call may be repeated.
    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()>;
}

/// Arguments of [`ModeRegister::join`].
#[derive(Debug)]
pub struct Join<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The record, with its mode, and without number and place.
    pub record: &'a Record,
    /// The least number of a grant that begins one.
    pub least: u64,
    /// The record of a hold of the same process. While it is stored, intents do not stand in the way of a shared hold.
    pub nested_in: Option<&'a Record>,
    /// If set, no intent stands in the way, and if the record is stored, none does for so long:
    /// [`ModeTerms::turn`](crate::store::ModeTerms::turn).
    pub turn: Option<Duration>,
}

/// Arguments of [`ModeRegister::change_mode`].
#[derive(Debug)]
pub struct ChangeMode<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The record that must be stored.
    pub held: &'a Record,
    /// The record that replaces it, with its mode, and without number and place.
    pub record: &'a Record,
    /// The least number of a change that begins one.
    pub least: u64,
    /// The intent that a change to [`Mode::Exclusive`] ends in the same step.
    pub intent: Option<IntentId>,
}

/// Why [`ModeRegister::change_mode`] changed nothing.
#[derive(Debug)]
pub enum NotChanged {
    /// Others hold the lock.
    Held(Holder),
    /// The record is not stored, or another version of it is.
    NotStored,
}

/// What a lock has, as it was read.
#[derive(Debug, Default)]
pub struct StoredHolds {
    /// Its holds: one exclusive one, or several others. One without a record is of a kind that this version does not know, and
    /// excludes all modes.
    pub holds: Vec<Found>,
    /// The processes that wait for it exclusively.
    pub intents: Vec<StoredIntent>,
    /// Whether a turn of the readers lasts.
    pub has_turn: bool,
}

/// A process that waits exclusively, as it was read.
#[derive(Debug)]
pub struct StoredIntent {
    /// The process.
    pub identity: Option<Identity>,
    /// How long it has waited. A hint, by the clocks of two machines.
    pub waited: Duration,
    /// How long the intent still lasts. A hint.
    pub left: Option<Duration>,
}

impl StoredHolds {
    /// Returns the stored version of this record.
    pub fn own(&self, record: &Record) -> Option<&Record> {
        self.holds.iter().filter_map(|found| found.record.as_ref()).find(|stored| stored.same_owner(record))
    }

    /// Returns the hold that ends last.
    pub fn last_to_end(&self) -> Option<&Found> {
        self.holds.iter().max_by_key(|found| found.left)
    }

    /// Returns a hold that this mode does not go beside, or `None`. `except`: a hold that does not count.
    pub fn hold_against(&self, mode: Mode, except: Option<&Record>) -> Option<Holder> {
        let counts = |found: &&Found| match (&found.record, except) {
            (Some(record), Some(except)) => !record.same_owner(except),
            _ => true,
        };
        let excludes = |found: &&Found| match &found.record {
            Some(record) => !mode.is_compatible_with(record.mode()),
            None => true,
        };
        let found = self.holds.iter().filter(counts).filter(excludes).max_by_key(|found| found.left);
        found.map(Found::holder)
    }

    /// Returns the process that has waited longest, as a holder that waits.
    pub fn intent(&self) -> Option<Holder> {
        let first = self.intents.iter().max_by_key(|intent| intent.waited)?;
        let left = self.intents.iter().filter_map(|intent| intent.left).max();
        Some(Holder::new(first.identity.clone(), left, None).waiting(first.waited))
    }

    /// Returns what stands in the way of a new hold of this mode.
    pub fn blocker(&self, mode: Mode, nested_in: Option<&Record>, is_turn: bool) -> Option<Holder> {
        let passes = mode == Mode::Exclusive
            || is_turn
            || self.has_turn
            || (mode == Mode::Shared && nested_in.is_some_and(|outer| self.own(outer).is_some()));
        let hold = self.hold_against(mode, None);
        hold.or_else(|| if passes { None } else { self.intent() })
    }
}

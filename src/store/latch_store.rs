//! The contract between latches and the stores.
//!
//! A latch is one record per client id and latch id, with one count per farm in it. Level says what is
//! read: DC the count of one's own farm, XDC the sum over all farms. A change always concerns the count
//! of one's own farm. So has it the Java library DistributedLatch 1.0.0-2, whose records these are.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::latch_name::LatchName;
use crate::name::Level;
use crate::time::Deadline;

/// Longest name of a participant, in bytes.
pub const PARTICIPANT_BYTES_MAX: usize = 255;

/// A latch to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewLatch<'a> {
    /// The latch, and the farm whose count is made.
    pub name: &'a LatchName,
    /// How many times it must be counted down; never negative.
    pub count: i64,
    /// Who is expected by name; may be empty. No name twice.
    pub roster: &'a [String],
    /// How long the latch lives after its last change.
    pub ttl: Duration,
    /// When the call must have come back.
    pub by: Deadline,
}

/// One change of a count.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The latch, and the farm whose count is changed.
    pub name: &'a LatchName,
    /// What is added: 1 or -1.
    pub add: i64,
    /// In whose name: at most one step per latch, farm and name takes effect.
    pub participant: Option<&'a str>,
    /// The TTL that the latch was made with. A shorter one would let an old count show again in some
    /// stores; those that know the TTL themselves do not look at this.
    pub ttl: Duration,
    /// When the call must have come back.
    pub by: Deadline,
}

/// Answer of [`LatchStore::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// The step took effect, once; this is the farm's count right after it, where the store knows.
    Counted(Option<i64>),
    /// The participant had counted before. Nothing was changed.
    Already,
}

/// Who was expected by name, and who has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster {
    /// Names given when the latch was made and not counted down yet, sorted.
    pub pending: Vec<String>,
    /// Names that have counted down, expected or not, sorted.
    pub arrived: Vec<String>,
}

/// Where latches are kept. Blocking, deadlines, threads and the meaning of errors are those of
/// [`LockStore`](super::LockStore); besides:
///
/// * NOT_FOUND: there is no such latch, or it has expired.
/// * INVALID_ARGUMENT: this store cannot do what was asked; nothing was sent.
pub trait LatchStore: Send + Sync + fmt::Debug + 'static {
    /// Creates what latches need in the store (a table). Safe to repeat and to race with others.
    /// [`create_latch`](LatchStore::create_latch) does it where it is missing.
    fn initialize_latches(&self, by: Deadline) -> Result<()>;

    /// Makes the farm's count unless it exists; whether it did. Never adds to an existing count.
    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool>;

    /// Changes the farm's count exactly once, also where replies are lost; IN_DOUBT if that could not be
    /// settled. The latch lives its whole TTL again from then. The count may go below zero: arrivals too
    /// many are not hidden.
    ///
    /// # Errors
    /// NOT_FOUND when the farm has no count: nothing is created, and this step had no effect. Where a reply was
    /// lost and the latch is gone by then, a store that cannot tell answers IN_DOUBT.
    fn step(&self, step: &Step<'_>) -> Result<Stepped>;

    /// The counts of many latches, in their order, in as few requests as the store can: level DC the
    /// farm's, level XDC the sum over all farms. `None` where there is no such latch.
    ///
    /// # Errors
    /// The outer one when none could be read. An inner one is that latch's alone.
    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>>;

    /// Who was expected by name in this farm, and who has come. NOT_FOUND as for `step`.
    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster>;
}

/// Whether `name` may be that of a participant.
pub(crate) fn check_participant(name: &str) -> Result<()> {
    if (1..=PARTICIPANT_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control) {
        Ok(())
    } else {
        let allowed = format!("1 to {PARTICIPANT_BYTES_MAX} bytes of UTF-8 without control characters");
        Err(Error::invalid("participant", name, allowed))
    }
}

//! The contract between latches and the stores.
//!
//! A latch is one record for each client id and latch id. The record has one count for each farm. The level
//! selects what is read: DC reads the count of the caller's farm, XDC reads the sum over all farms. A change
//! always applies to the count of the caller's farm. The Java library DistributedLatch 1.0.0-2 uses the same
//! records in this way.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::Level;
use crate::names::notice_endpoint::LatchListener;
use crate::names::text::quoted;
use crate::runtime::time::Deadline;
use crate::store::lock_list::ListCursor;

/// Longest name of a participant, in bytes.
pub const PARTICIPANT_BYTES_MAX: usize = 255;

/// The most waiting processes that a store notes for one latch.
pub const LISTENERS_MAX: usize = 256;

/// A latch to create.
#[derive(Debug, Clone, Copy)]
pub struct NewLatch<'a> {
    /// The latch, and the farm whose count is created.
    pub name: &'a LatchName,
    /// The number of count-downs that open the latch. Never negative.
    pub count: i64,
    /// The names of the expected participants. May be empty. Each name occurs once.
    pub roster: &'a [String],
    /// How long the latch lives after its last change.
    pub ttl: Duration,
    /// The deadline of the call.
    pub by: Deadline,
}

/// One change of a count.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The latch, and the farm whose count is changed.
    pub name: &'a LatchName,
    /// The number to add: 1 or -1.
    pub add: i64,
    /// The participant that takes this step. At most one step for each latch, farm and participant takes
    /// effect.
    pub participant: Option<&'a str>,
    /// The TTL that the latch was created with. In some stores a shorter TTL makes an old count appear again.
    /// Stores that keep the TTL themselves ignore this field.
    pub ttl: Duration,
    /// The deadline of the call.
    pub by: Deadline,
}

/// Answer of [`LatchStore::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// The step took effect once. The value is the farm's count right after the step, if the store knows it.
    Counted(Option<i64>),
    /// The participant had counted before. Nothing was changed.
    Already,
}

/// A note that a process waits for a latch.
#[derive(Debug, Clone, Copy)]
pub struct LatchNote<'a> {
    /// The latch that the process waits for.
    pub name: &'a LatchName,
    /// The level at which it waits.
    pub level: Level,
    /// The process. It has one note for each latch: a new note replaces the one with the same endpoint.
    pub listener: LatchListener,
    /// How long the note lasts.
    pub lasts: Duration,
    /// The deadline of the call.
    pub by: Deadline,
}

/// Which latches to list.
#[derive(Debug, Clone, Copy)]
pub struct LatchQuery<'a> {
    /// The client whose latches are listed.
    pub client: &'a str,
    /// How their ids begin. May be empty.
    pub prefix: &'a str,
    /// Where the page begins: the cursor of the page before, with the same client and prefix.
    pub after: Option<&'a ListCursor>,
    /// About how many latches the page should have at most.
    pub most: usize,
    /// The deadline of the call.
    pub by: Deadline,
}

/// A latch in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLatch {
    /// The id of the latch. `None` if its record does not contain its name: a record that the Java library has created in
    /// Aerospike, or an earlier version of this library. Such a latch may be another client's.
    pub id: Option<String>,
    /// The client and the id, `<client>#<id>`. For a record without a name: the set, and the digest of the key in
    /// hexadecimal digits.
    pub key: String,
    /// The count of each farm that has one.
    pub counts: BTreeMap<String, i64>,
}

impl ListedLatch {
    /// Makes an element of a list, for stores.
    pub fn new(client: &str, id: &str, counts: BTreeMap<String, i64>) -> ListedLatch {
        ListedLatch { key: format!("{client}#{id}"), id: Some(id.to_owned()), counts }
    }

    /// Makes an element whose name is not known, for stores. `key` says which record it is.
    pub fn unnamed(key: String, counts: BTreeMap<String, i64>) -> ListedLatch {
        ListedLatch { id: None, key, counts }
    }
}

/// A part of a list of latches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatchPage {
    /// The latches of this page, in no particular order. A page may be empty and not be the last one.
    pub latches: Vec<ListedLatch>,
    /// Where the next page begins; `None` after the last page.
    pub next: Option<ListCursor>,
}

impl LatchPage {
    /// Makes a page, for stores.
    pub fn new(latches: Vec<ListedLatch>, next: Option<ListCursor>) -> LatchPage {
        LatchPage { latches, next }
    }
}

/// The named participants of a latch in one farm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster {
    /// Expected participants that have not counted yet, sorted.
    pub pending: Vec<String>,
    /// Participants that have counted, expected or not, sorted.
    pub arrived: Vec<String>,
}

/// A store that keeps latches.
///
/// The rules of [`LockStore`](super::LockStore) for blocking, deadlines, threads, lost replies and errors also
/// apply here. Two more errors are possible:
///
/// * [`Code::NotFound`]: the latch does not exist, or it has expired.
/// * [`Code::InvalidArgument`]: this store cannot do what was asked. No request was sent.
///
/// [`Code::NotFound`]: crate::Code::NotFound
/// [`Code::InvalidArgument`]: crate::Code::InvalidArgument
pub trait LatchStore: Send + Sync + fmt::Debug + 'static {
    /// Creates what latches need in the store, such as a table.
    ///
    /// It may be called again, and by several processes at the same time.
    /// [`create_latch`](LatchStore::create_latch) also creates what is missing.
    fn initialize_latches(&self, by: Deadline) -> Result<()>;

    /// Creates the farm's count if it does not exist. Returns `true` if this call created it. Never adds to
    /// an existing count.
    ///
    /// The check and the creation must be one atomic step. If a reply was lost, the store must find out
    /// whether its own request created the count.
    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool>;

    /// Changes the farm's count exactly once, also if replies are lost.
    ///
    /// While a latch that was created for named participants waits for one of them, only its participants may count:
    /// another name, or a step without a name, would open it too early. The names of a latch never change, so this
    /// check may be a read before the step. Latches that were created without names accept every step.
    ///
    /// The checks that the count exists and that the participant has not counted yet, and the change itself,
    /// must be one atomic step. The step also starts the latch's whole TTL again. The count may go below
    /// zero, so that extra arrivals can be seen.
    ///
    /// # Errors
    /// * [`Code::NotFound`](crate::Code::NotFound): the farm has no count. The step had no effect and created
    ///   nothing.
    /// * [`Code::InvalidArgument`](crate::Code::InvalidArgument): the latch waits for named participants, and the step
    ///   is by nobody of them. It had no effect.
    /// * [`Code::InDoubt`](crate::Code::InDoubt): a reply was lost, and the store could not find out whether
    ///   the step counted, for example because the latch no longer exists.
    fn step(&self, step: &Step<'_>) -> Result<Stepped>;

    /// Ends the incarnation of the farm's count, and begins a new one with this count and these participants.
    ///
    /// Of the old incarnation, no participant, no mark and no late request has an effect on the new one. The store has
    /// to make sure of that with a condition that no later incarnation meets: a request that is on its way cannot be
    /// called back. If a reply was lost, the store must find out whether its own request had an effect. The default
    /// refuses the call.
    ///
    /// # Errors
    /// * [`Code::NotFound`](crate::Code::NotFound): the farm has no count. None is created.
    /// * [`Code::InDoubt`](crate::Code::InDoubt): the store could not find out whether the new incarnation has begun.
    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        Err(unable("reset of latch", new.name))
    }

    /// Ends the incarnation of the farm's count as [`reset_latch`](LatchStore::reset_latch) does, and begins none: the
    /// farm has no count any more. `ttl` is the TTL that the latch was created with. The default refuses the call.
    ///
    /// # Errors
    /// Those of [`reset_latch`](LatchStore::reset_latch).
    fn delete_latch(&self, name: &LatchName, _ttl: Duration, _by: Deadline) -> Result<()> {
        Err(unable("deletion of latch", name))
    }

    /// Reads a part of the list of one client's latches. What exists all the time is listed once. The default refuses
    /// the call.
    fn list_latches(&self, asked: &LatchQuery<'_>) -> Result<LatchPage> {
        Err(Error::invalid("list of latches", asked.client, UNABLE))
    }

    /// Returns the counts of many latches, in the order of `asked`, with as few requests as the store can.
    ///
    /// For level DC the count is that of the latch's farm, for level XDC the sum over all farms. It is `None`
    /// if there is no such count.
    ///
    /// # Errors
    /// The outer error means that no count could be read. An inner error concerns only its own latch.
    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>>;

    /// Returns the named participants of this farm: those that are still expected, and those that have counted.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): the farm has no count.
    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster>;

    /// Notes that a process waits for the latch. Returns `false` if nothing was noted, because `level` has no count
    /// to wait for, or because this store keeps no notes. This is what the default does.
    ///
    /// A note has its own end. It never creates a latch and never changes how long one lives. The store may drop notes
    /// before their end, those that end first, if there are more than [`LISTENERS_MAX`]. A note that is lost costs its
    /// process only time: it polls.
    fn listen(&self, _note: &LatchNote<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Returns the processes that wait for the latch at any level and in any farm: at most [`LISTENERS_MAX`]. Notes
    /// whose end is not long ago may be among them. The default returns none.
    fn listeners(&self, _name: &LatchName, _by: Deadline) -> Result<Vec<LatchListener>> {
        Ok(Vec::new())
    }
}

/// What a store without a call of this trait allows.
const UNABLE: &str = "nothing: this store cannot do that";

fn unable(what: &'static str, name: &LatchName) -> Error {
    Error::invalid(what, name.id(), UNABLE)
}

/// Returns the error for a step by nobody whom the latch waits for. `pending` are the participants that have not
/// counted yet.
pub(crate) fn unexpected(step: &Step<'_>, pending: &[impl AsRef<str>]) -> Error {
    const SHOWN: usize = 3;
    let mut names: Vec<_> = pending.iter().take(SHOWN).map(|name| quoted(name.as_ref())).collect();
    if pending.len() > SHOWN {
        names.push(format!("{} others", pending.len() - SHOWN));
    }
    let waits = format!("latch {} waits for named participants: {}", step.name, names.join(", "));
    match step.participant {
        Some(name) => Error::invalid("participant", name, waits),
        None => Error::invalid("count without a name", format!("{:+}", step.add), waits),
    }
}

/// Checks whether `name` is allowed as the name of a participant.
pub(crate) fn check_participant(name: &str) -> Result<()> {
    if (1..=PARTICIPANT_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control) {
        Ok(())
    } else {
        let allowed = format!("1 to {PARTICIPANT_BYTES_MAX} bytes of UTF-8 without control characters");
        Err(Error::invalid("participant", name, allowed))
    }
}

//! What the lock protocol asks of a store: one record for each lock, changed under a condition, and a counter.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use super::record::Record;
use crate::diagnostic::Diagnostic;
use crate::error::{Error, Result};
use crate::holder::Holder;
use crate::name::LockName;
use crate::store::LatchStore;
use crate::time::{Deadline, wall_ms};

/// Answer to one request that may change the store.
///
/// `Y` and `N` are what the store brings along. See the table in [`remote`](crate::store::remote) for what each
/// network event means.
#[derive(Debug)]
pub enum Reply<Y = (), N = Option<Standing>> {
    /// The condition held, and the change was made.
    Yes(Y),
    /// The condition did not hold. Nothing was changed.
    No(N),
    /// The change may have been made, or may yet be made. The error must be IN_DOUBT.
    Lost(Error),
    /// The change was not made and will not be made.
    Down(Error),
}

impl<Y, N> Reply<Y, N> {
    /// The reply for a call that answers `Ok(Ok(..))` for yes, `Ok(Err(..))` for no, and whose errors are IN_DOUBT
    /// exactly where the change may have been made.
    pub fn of(answer: Result<std::result::Result<Y, N>>) -> Reply<Y, N> {
        match answer {
            Ok(Ok(yes)) => Reply::Yes(yes),
            Ok(Err(no)) => Reply::No(no),
            Err(error) if error.is_in_doubt() => Reply::Lost(error),
            Err(error) => Reply::Down(error),
        }
    }

    /// The reverse of [`of`](Reply::of).
    pub(super) fn settled(self) -> Result<std::result::Result<Y, N>> {
        match self {
            Reply::Yes(yes) => Ok(Ok(yes)),
            Reply::No(no) => Ok(Err(no)),
            Reply::Lost(error) if !error.is_in_doubt() => {
                Err(Error::InDoubt { what: "a request has no answer".into(), source: Some(error.into()) })
            }
            Reply::Lost(error) | Reply::Down(error) => Err(error),
        }
    }
}

impl Reply {
    /// For stores that answer whether the condition held, and bring nothing along.
    pub fn of_bool(answer: Result<bool>) -> Reply {
        Reply::of(answer.map(|held| if held { Ok(()) } else { Err(None) }))
    }
}

/// What stands in a lock's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing, or a mark that the lock is free.
    Free,
    /// A record: the lock is held.
    Held(Found),
}

/// A record that was read. The suites of the testkit want both hints from a store that fills in either of them: see
/// [`written`](Found::written) and [`lasting`](Found::lasting).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The record; `None` where it is not one of this library's, such as one of the Java library.
    pub record: Option<Record>,
    /// When it was written, by the store's clock, in milliseconds since 1970. A hint for people.
    pub written_ms: Option<u64>,
    /// How long the store keeps it from now on, where the store says so. A hint: no grant depends on it.
    pub left: Option<Duration>,
}

impl Found {
    /// A record that was written at `written_ms` by the store's clock, and that a store keeps for the TTL in it. How
    /// long it has left is a comparison with our clock.
    pub fn written(record: Option<Record>, written_ms: u64) -> Found {
        let left = record.as_ref().map(|record| {
            let ttl = record.ttl();
            let ends_ms = written_ms.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            Duration::from_millis(ends_ms.saturating_sub(wall_ms())).min(ttl)
        });
        Found { record, written_ms: Some(written_ms), left }
    }

    /// A record that the store keeps for `left` from now on, where the store does not say when it was written. That
    /// is a comparison with our clock too.
    pub fn lasting(record: Option<Record>, left: Duration) -> Found {
        let written_ms = record.as_ref().map(|record| {
            let age = record.ttl().saturating_sub(left);
            wall_ms().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
        });
        Found { record, written_ms, left: Some(left) }
    }

    /// What the record says about its holder.
    pub fn holder(&self) -> Holder {
        let since = self.written_ms.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
        Holder::new(self.record.as_ref().and_then(Record::identity), self.left, since)
    }
}

/// Arguments of [`Register::create`].
#[derive(Debug)]
pub struct Create<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The record to create, with its TTL in the same step. The store keeps it for [`Record::ttl`] by its own clock:
    /// never shorter, also when memory is short.
    pub record: &'a Record,
    /// Asks for the lock's next number too, as [`Register::count`] does with this argument. A store that cannot
    /// count in the same request, after the creation, ignores it.
    pub count: Option<u64>,
    /// Asks for a read of the record after the count. A store that cannot read in the same request ignores it.
    pub read_back: bool,
}

/// What came along with the creation of a record.
#[derive(Debug, Default)]
pub struct Created {
    /// The number; `None` if it is still to be counted. Where creation and count were not one atomic step, the
    /// record may have ended in between: bring `standing` too, or ask for [`ReadBack::Always`].
    pub count: Option<u64>,
    /// What stood after the count; `None` if it is still to be read.
    pub standing: Option<Standing>,
}

/// Arguments of [`Register::replace`].
#[derive(Debug)]
pub struct Replace<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The record that must stand: all of it or its token, see [`Compares`].
    pub expected: &'a Record,
    /// The record to put there. It must last for its TTL from now on. With [`Compares::Token`] it has a token and a
    /// TTL and no identity: such a store leaves the record as it is and makes it last longer.
    pub record: &'a Record,
}

/// What a store compares with the expected record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compares {
    /// The whole record: another version of the same grant is refused.
    #[default]
    Record,
    /// The owner token. A replace that is refused although our token stands means that the record lasts longer already.
    Token,
}

/// Whether an acquisition ends with a read of its own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadBack {
    /// After a count that did not come with the creation. A fence is sound only if the record still stood after the
    /// fence was counted. Right for most stores.
    #[default]
    AfterCount,
    /// Always, unless the creation brought it along. For a store in which a peer can hide or delete a record although
    /// the store answered yes.
    Always,
    /// Never. The number is accepted if its answer came while the lease lasts. Only for a store in which nothing but
    /// the end of its TTL or its owner ends a record.
    Never,
}

/// What one store can do that others cannot, and what it does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether locks have fences. `false` only where fencing is switched off in the store's options.
    pub counts: bool,
    /// What a condition on a record compares.
    pub compares: Compares,
    /// When the record is read back.
    pub read_back: ReadBack,
    /// Something between us and the store may send a write a second time by itself. Then No may answer the second
    /// of two writes, of which the first was made.
    pub repeats: bool,
    /// A peer's delete can hide a record that the store said yes to. The record can appear again later.
    pub hides: bool,
    /// How long after the call has ended a request without an answer may still be applied.
    pub in_flight_for: Duration,
}

impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities {
            counts: true,
            compares: Compares::default(),
            read_back: ReadBack::default(),
            repeats: false,
            hides: false,
            in_flight_for: Duration::from_secs(300),
        }
    }
}

/// A store in which locks can be kept: one record for each lock, with a TTL that the store counts, and a counter
/// beside it. [`RemoteStore`](super::RemoteStore) is the lock protocol over it.
///
/// Each method makes one attempt and returns before `by`, or as soon after it as a socket time-out allows. A method may
/// send a request again if that request was certainly not applied; it must never send one again that may have been.
/// Methods are called from many threads at once.
///
/// A store is as safe as its memory: one that forgets an answered change, in a crash or a failover, can grant a lock
/// while another holds it.
pub trait Register: Send + Sync + fmt::Debug + 'static {
    /// What this store is, for messages: a URI without credentials.
    fn describe(&self) -> String;

    /// What this store can do. Must not change while the store is open.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Creates what the store needs, and checks that it answers. Safe to repeat and to race with another creator.
    ///
    /// # Errors
    /// TABLE_CREATION_ERROR, CONNECTION_ERROR and what the store answers.
    fn initialize(&self, by: Deadline) -> Result<()>;

    /// Creates the record where the lock is free. Yes: it was free, and our record stands. No: another record
    /// stands; the store brings it along where that costs no further request.
    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created>;

    /// Replaces the expected record. Yes: it stood, and the new record stands. The store keeps the new record for as
    /// long as it would have kept the old one, and at least for the TTL of the new one, also where requests overtake
    /// each other: a late copy of a short renewal must not shorten a longer one. No: something else stands, or (with
    /// [`Compares::Token`]) what stands lasts longer already.
    fn replace(&self, replace: &Replace<'_>, by: Deadline) -> Reply;

    /// Removes the expected record. Yes: it stood, and the lock is free. No: something else stands.
    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply;

    /// What stands now: the effect of every change that was answered before, whoever made it. A replica that may lag
    /// behind must not be read: its answer decides who holds the lock.
    ///
    /// # Errors
    /// Any code but IN_DOUBT: nothing was learned.
    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing>;

    /// The lock's next number. A number may be skipped, never given out twice, and none is lower than one before.
    ///
    /// The higher of `least` and the last number plus one, in one atomic step, is always right: `least` follows the
    /// clock, so numbers rise also where a store has lost its last writes. A store that never loses an answered write
    /// may use `least` for a new counter only. Numbers are about 2^60, which a floating-point number cannot hold.
    ///
    /// # Errors
    /// IN_DOUBT where a number may have been skipped. It is counted again then.
    fn count(&self, name: &LockName, least: u64, by: Deadline) -> Result<u64>;

    /// The number that was given out last, where the store still knows it. For people.
    ///
    /// # Errors
    /// As for [`read`](Register::read).
    fn last_count(&self, name: &LockName, by: Deadline) -> Result<Option<u64>>;

    /// Covers what a peer's delete may have hidden, for `ttl`, if the lock is free. Called only where
    /// [`Capabilities::hides`] is set.
    ///
    /// # Errors
    /// IN_DOUBT or not: hidden records may appear again.
    fn cover(&self, name: &LockName, ttl: Duration, by: Deadline) -> Result<()> {
        let _ = (name, ttl, by);
        Ok(())
    }

    /// What the store's version and configuration mean for locks. Changes no lock.
    ///
    /// # Errors
    /// As for [`read`](Register::read).
    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        let _ = by;
        Ok(Vec::new())
    }

    /// The latches kept in the same store; `None` where a store has locks only.
    fn latches(&self) -> Option<&dyn LatchStore> {
        None
    }
}

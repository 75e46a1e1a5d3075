//! What a store says: the reply to a change, and what is stored.

use std::time::{Duration, UNIX_EPOCH};

use super::record::Record;
use crate::error::{Error, Result};
use crate::names::holder::Holder;
use crate::names::mode::Mode;
use crate::runtime::time::wall_ms;

/// Answer to one request that may change the store.
///
/// `Y` and `N` are the types of the data that come with the answer. The table in
/// [`remote`](crate::store::remote) gives the reply for each network event. If you are not sure, answer
/// [`Lost`](Reply::Lost).
#[derive(Debug)]
pub enum Reply<Y = (), N = Option<Standing>> {
    /// The condition held, and the change was made.
    Yes(Y),
    /// The condition did not hold. Nothing was changed.
    No(N),
    /// The change may have been made, or may still be made later. The code of the error must be
    /// [`Code::InDoubt`](crate::Code::InDoubt).
    Lost(Error),
    /// The change was not made and will not be made later.
    Down(Error),
}

/// A [`Reply`] that says whether the change was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settled<Y = (), N = Option<Standing>> {
    Yes(Y),
    No(N),
}

impl<Y, N> Reply<Y, N> {
    /// Converts the result of a call: an answer with `decide`, and an error as [`failed`](Reply::failed) does.
    pub fn of<T>(answer: Result<T>, decide: impl FnOnce(T) -> Reply<Y, N>) -> Reply<Y, N> {
        answer.map_or_else(Reply::failed, decide)
    }

    /// An error with [`Code::InDoubt`](crate::Code::InDoubt) is Lost, and any other error is Down.
    pub fn failed(error: Error) -> Reply<Y, N> {
        if error.is_in_doubt() { Reply::Lost(error) } else { Reply::Down(error) }
    }

    pub(crate) fn settled(self) -> Result<Settled<Y, N>> {
        match self {
            Reply::Yes(yes) => Ok(Settled::Yes(yes)),
            Reply::No(no) => Ok(Settled::No(no)),
            Reply::Lost(error) if !error.is_in_doubt() => {
                Err(Error::InDoubt { what: "a request has no answer".into(), source: Some(error.into()) })
            }
            Reply::Lost(error) | Reply::Down(error) => Err(error),
        }
    }
}

/// The result of a call that found out whether the change was made. An error is as [`failed`](Reply::failed) says.
impl<Y, N> From<Result<Settled<Y, N>>> for Reply<Y, N> {
    fn from(answer: Result<Settled<Y, N>>) -> Reply<Y, N> {
        Reply::of(answer, |settled| match settled {
            Settled::Yes(yes) => Reply::Yes(yes),
            Settled::No(no) => Reply::No(no),
        })
    }
}

impl Reply {
    /// Converts the result of a call: `true` is Yes, `false` is No, and an error as [`failed`](Reply::failed) does.
    pub fn of_bool(answer: Result<bool>) -> Reply {
        Reply::of(answer, |held| if held { Reply::Yes(()) } else { Reply::No(None) })
    }
}

/// The state of a lock in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// No record, or a marker that the lock is free.
    Free,
    /// A record: the lock is held.
    Held(Found),
}

/// A record that was read.
///
/// `written_ms` and `left` are hints. The suites of the testkit expect both from a store that sets one of them.
/// [`written`](Found::written) and [`lasting`](Found::lasting) estimate the missing one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The record. `None` if this library did not write it, for example a record of the Java library.
    pub record: Option<Record>,
    /// When the record was written, by the store's clock, in milliseconds since 1970. For people only.
    pub written_ms: Option<u64>,
    /// How long the store keeps the record from now on, if the store reports it. No grant depends on it.
    pub left: Option<Duration>,
    /// Set if a record that this one has replaced may outlast it, so that it could show again: the TTL with which this
    /// record must be written to outlast it. Only for a store that keeps old versions.
    pub beneath: Option<Duration>,
}

impl Found {
    /// Describes a record that was written at `written_ms` by the store's clock, and that the store keeps for the
    /// TTL in the record. `left` is estimated with this machine's clock.
    pub fn written(record: Option<Record>, written_ms: u64) -> Found {
        let left = record.as_ref().map(|record| {
            let ttl = record.ttl();
            let ends_ms = written_ms.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            Duration::from_millis(ends_ms.saturating_sub(wall_ms())).min(ttl)
        });
        Found { record, written_ms: Some(written_ms), left, beneath: None }
    }

    /// Describes a record that the store keeps for `left` from now on. `written_ms` is estimated with this
    /// machine's clock.
    pub fn lasting(record: Option<Record>, left: Duration) -> Found {
        let written_ms = record.as_ref().map(|record| {
            let age = record.ttl().saturating_sub(left);
            wall_ms().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
        });
        Found { record, written_ms, left: Some(left), beneath: None }
    }

    /// Returns the holder that the record names, with the two hints.
    pub fn holder(&self) -> Holder {
        let since = self.written_ms.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
        let holder = Holder::new(self.record.as_ref().and_then(Record::identity), self.left, since);
        match self.record.as_ref().map(|record| (record.mode(), record.place())) {
            Some((Mode::Permit, Some(permit))) => holder.with_permit(permit),
            Some((mode, _)) => holder.with_mode(mode),
            None => holder,
        }
    }
}

//! The store interface of the lock protocol: one record for each lock, conditional changes, and a counter.

use std::fmt;
use std::time::Duration;

#[cfg(doc)]
use super::answers::Found;
use super::answers::{Reply, Standing};
use super::mode_register::ModeRegister;
use super::permit_register::PermitRegister;
use super::record::Record;
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::lock_name::LockName;
use crate::names::promise::Promise;
use crate::runtime::time::{Deadline, Moment};
use crate::store::lock_store::no_stamps;
use crate::store::{HistoryStore, IntentId, LatchStore, ListCursor, LockPage, LockQuery, StoreCounters};

/// Arguments of [`Register::create`].
#[derive(Debug)]
pub struct Create<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The record to create. The store writes the record and its TTL in one step. It keeps the record for at
    /// least [`Record::ttl`] by its own clock, also if memory is short.
    pub record: &'a Record,
    /// If set, the library also asks for the lock's next number, as [`Register::count`] with this value as
    /// `least`. The count must come after the creation. A store that cannot count in the same request ignores
    /// this field.
    pub count: Option<u64>,
    /// How many numbers to count. More than 1 only with [`Capabilities::reserves`]. The number that the store returns or
    /// keeps is the last of them, and `count` is the least first one.
    pub numbers: u64,
    /// If set, the library also asks for a read of the record after the count. A store that cannot read in the
    /// same request ignores this field.
    pub read_back: bool,
    /// The intent of the process that asks, which the creation ends in the same step. Only with
    /// [`modes`](Register::modes).
    pub intent: Option<IntentId>,
}

/// The data that come with the creation of a record.
#[derive(Debug, Default)]
pub struct Created {
    /// The lock's next number. `None` if the library must still count it. With
    /// [`Capabilities::counts_in_record`] it is the number in the stored record. `None` if the library must still ask
    /// for it with [`Register::number_of`].
    ///
    /// If creation and count were not one atomic step, the record may have expired between them. In this case
    /// set `standing` too, or use [`ReadBack::Always`].
    pub count: Option<u64>,
    /// The state of the lock after the count. `None` if the store did not read it.
    pub standing: Option<Standing>,
}

/// One change of a record: the argument of [`Register::replace`].
#[derive(Debug, Clone)]
pub struct Replace<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The record that must exist. The store compares the whole record or its token: see [`Compares`].
    pub expected: Record,
    /// The record to write. It must last for at least its TTL from now on. With [`Compares::Record`] it may have
    /// another token than the expected record: see [`Capabilities::repeats_after`]. With [`Compares::Token`] it has
    /// the same token, and no identity: the store keeps the content of its record and only extends its life.
    pub record: Record,
    /// Whether the request must not carry any other change, because there is little time for it. Matters only to
    /// [`Register::replace_many`].
    pub alone: bool,
    /// Position of the lease among the renewals of one call.
    pub(super) at: usize,
    /// How many changes of this lease were answered before.
    pub(super) round: usize,
}

impl<'a> Replace<'a> {
    /// Creates a change, for tests of a register. Changes for [`Register::replace_many`] come from the library, which knows
    /// them again: a register over another one passes on those.
    pub fn new(name: &'a LockName, expected: Record, record: Record) -> Replace<'a> {
        Replace { name, expected, record, alone: true, at: 0, round: 0 }
    }

    /// Returns the change that renews this record for `ttl`.
    pub(super) fn renewal(name: &'a LockName, stored: Record, ttl: Duration) -> Replace<'a> {
        let record = stored.renewed(ttl);
        Replace::new(name, stored, record)
    }
}

/// What [`Register::replace_many`] calls once for each answer: the change as it was received, a moment before its request was
/// sent, and the reply. Returns the change of the same lock that is to be made next, if there is one.
pub type OnReply<'f, 'a> = &'f mut dyn FnMut(&Replace<'a>, Moment, Reply) -> Option<Replace<'a>>;

/// Makes the changes one after the other with `replace`.
pub(crate) fn replace_one_by_one<'a>(
    replaces: Vec<Replace<'a>>,
    by: Deadline,
    answered: OnReply<'_, 'a>,
    replace: impl Fn(&Replace<'a>) -> Reply,
) {
    for first in replaces {
        let mut next = Some(first);
        while let Some(change) = next.filter(|_| !by.passed()) {
            let since = Moment::now();
            next = answered(&change, since, replace(&change));
        }
    }
}

/// The part of the expected record that a store compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compares {
    /// The whole record. A change that expects another version of the same grant is refused.
    #[default]
    Record,
    /// The owner token. If a replace is refused although our token is stored, the record already lasts longer.
    Token,
}

/// When an acquire ends with a read of its own record, the read-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadBack {
    /// After a count that did not come with the creation. A fence is sound only if the record still existed after
    /// the fence was counted. Right for most stores.
    #[default]
    AfterCount,
    /// Always, unless the read came with the creation. For a store in which a peer can hide or delete a record
    /// after the store answered Yes.
    Always,
    /// Never. The number is accepted if its answer arrived while the lease lasts. Only for a store in which
    /// nothing ends a record except its TTL and its owner.
    Never,
}

/// The abilities of a store, and the faults that the library must expect from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether locks have fences. Default: `true`. Set `false` only if the store's options switch fencing off.
    pub counts: bool,
    /// Whether the record contains its number: [`Register::create`] chooses the number and stores the record with it
    /// ([`Record::numbered`]) in one atomic step. The library then never counts and never reads back. After a lost
    /// reply one read shows whether the lock was acquired, and with which fence. If that record has no number yet, the
    /// library calls [`Register::number_of`]. Default: `false`.
    pub counts_in_record: bool,
    /// Whether the store can count several numbers in one step: [`Create::numbers`] and [`Register::reserve`]. Default:
    /// `false`.
    pub reserves: bool,
    /// The part of a record that a condition compares. Default: [`Compares::Record`].
    pub compares: Compares,
    /// When the library reads the record back. Default: [`ReadBack::AfterCount`].
    pub read_back: ReadBack,
    /// Set if something between the library and the store, such as a gateway, may send a write again by itself: the
    /// shortest time after which it does so. An answer that arrives sooner is that of the only copy. `None` (the
    /// default) if a write is sent at most once.
    ///
    /// After a later answer, a copy of the request may be applied at any time, also after the lease has expired. So
    /// with [`Compares::Record`] the library exchanges a record whose creation was answered that late for one with
    /// a new token: a copy of the creation cannot renew that. With [`Compares::Token`] it cannot exchange a token.
    /// It then looks for the record once more after its release.
    pub repeats_after: Option<Duration>,
    /// Whether a peer's delete can hide a record after the store answered Yes. The record can appear again later.
    /// Default: `false`.
    pub hides: bool,
    /// How long after the end of a call a request without an answer may still be applied. Default: five minutes.
    pub in_flight_for: Duration,
}

impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities {
            counts: true,
            counts_in_record: false,
            reserves: false,
            compares: Compares::default(),
            read_back: ReadBack::default(),
            repeats_after: None,
            hides: false,
            in_flight_for: Duration::from_secs(300),
        }
    }
}

/// A store that keeps one record for each lock, with a TTL that the store counts, and one counter for each lock.
///
/// [`RemoteStore`](super::RemoteStore) adds the lock protocol. It handles lost replies, so a register only has to
/// report them correctly.
///
/// * **Atomic changes**: [`create`](Register::create), [`replace`](Register::replace) and
///   [`remove`](Register::remove) each check a condition and write. The check, the write and the TTL must be one
///   step in the store, such as a script, a conditional update or a transaction. A read followed by a write is not
///   enough. [`count`](Register::count) must be one step too.
/// * **Lost replies**: a method reports a change that may have been applied as [`Reply::Lost`]. It must never send
///   such a request again. It may send a request again that was certainly not applied.
/// * **Blocking**: a method blocks the calling thread for one attempt. It returns by the deadline `by`, or as soon
///   after it as a socket time-out allows.
/// * **Threads**: methods are called from many threads at once.
/// * **Durability**: a store that forgets an answered change, in a crash or a failover, can grant a lock that is
///   held.
pub trait Register: Send + Sync + fmt::Debug + 'static {
    /// Returns the store's URI without credentials. Messages show it. Does not block.
    fn describe(&self) -> String;

    /// Returns the name of the layout in which the store keeps locks, if it has several. `dlm show` prints it. Does not
    /// block. Default: `None`.
    fn layout(&self) -> Option<&'static str> {
        None
    }

    /// See [`LockStore::promises`](crate::store::LockStore::promises).
    fn promises(&self) -> Vec<Promise> {
        Vec::new()
    }

    /// See [`LockStore::shard`](crate::store::LockStore::shard).
    fn shard(&self, name: &LockName) -> u8 {
        name.spread()
    }

    /// Returns what this store can do. The answer must not change while the store is open. Does not block.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Creates what the store needs, such as a table, and checks that the store answers. It may be called again,
    /// and by several processes at the same time.
    ///
    /// # Errors
    /// [`Code::TableCreationError`](crate::Code::TableCreationError),
    /// [`Code::ConnectionError`](crate::Code::ConnectionError), and errors that the store returns.
    fn initialize(&self, by: Deadline) -> Result<()>;

    /// Checks that the store answers: see [`LockStore::greet`](crate::store::LockStore::greet). Default: nothing is
    /// checked.
    fn greet(&self, by: Deadline) -> Result<()> {
        let _ = by;
        Ok(())
    }

    /// Creates the record if the lock is free.
    ///
    /// * Yes: the lock was free, and our record is stored.
    /// * No: another record is stored. The store returns it if that costs no further request, else `None`.
    /// * Lost: our record may be stored now, or later. The library reads the lock to find out.
    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created>;

    /// Replaces the expected record.
    ///
    /// The new record must last at least for its own TTL from now on, and never end before the old one would have
    /// ended. This also holds if requests overtake each other: a late request for a short TTL must not shorten a
    /// lease that was renewed for a longer one.
    ///
    /// * Yes: the expected record was stored, and the new one is stored now.
    /// * No: something else is stored. With [`Compares::Token`] it can also mean that the stored record already
    ///   lasts longer.
    /// * Lost: either record may be stored. The library reads the lock or sends the same change again.
    fn replace(&self, replace: &Replace<'_>, by: Deadline) -> Reply;

    /// Makes several changes, each of another lock and each as [`replace`](Register::replace) does. Calls `answered` for
    /// each answer, in any order and as soon as it is known: see [`OnReply`]. A change whose turn has not come by the
    /// deadline is not answered and will not be made.
    ///
    /// A register may put several changes into one request. Each change still has a condition and an answer of its own:
    /// a change without an answer is Lost, whatever was said about the others. Send the requests to all servers before
    /// waiting for one of them, so a server that hangs delays no change on other servers.
    ///
    /// Default: one call of `replace` after the other.
    fn replace_many<'a>(&self, replaces: Vec<Replace<'a>>, by: Deadline, answered: OnReply<'_, 'a>) {
        replace_one_by_one(replaces, by, answered, |change| self.replace(change, by));
    }

    /// Removes the expected record.
    ///
    /// * Yes: the expected record was stored, and the lock is free now.
    /// * No: something else is stored. Nothing was changed.
    /// * Lost: the record may still be stored. The library reads the lock or sends the same change again.
    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply;

    /// Removes the expected record of a holder that does not know it, as an operator does. In a store that keeps old versions,
    /// no later record of this lock may end before this one would have ended: see [`Found::beneath`].
    ///
    /// Default: [`remove`](Register::remove).
    fn remove_broken(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        self.remove(name, expected, by)
    }

    /// Reads the state of the lock.
    ///
    /// The answer decides who holds the lock. It must include every change that was answered before, from any
    /// process. Do not read from a replica that may lag behind.
    ///
    /// # Errors
    /// Any code except [`Code::InDoubt`](crate::Code::InDoubt). A failed read says nothing about the lock.
    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing>;

    /// Reads the state of the lock, to find the hold of this record: [`Standing::Held`] with the version of it that is stored,
    /// if there is one.
    ///
    /// Default: [`read`](Register::read), which finds it if a lock has one holder at most.
    ///
    /// # Errors
    /// As for [`read`](Register::read).
    fn read_own(&self, name: &LockName, record: &Record, by: Deadline) -> Result<Standing> {
        let _ = record;
        self.read(name, by)
    }

    /// Reads the state of the lock for a grant, as [`read`](Register::read) does. A store may refuse a grant here that would be
    /// unsafe, with [`Code::TableCreationError`](crate::Code::TableCreationError): the lock is then given back.
    ///
    /// Default: [`read`](Register::read).
    fn read_to_grant(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        self.read(name, by)
    }

    /// Reads several locks, each as [`read`](Register::read) does. Calls `report` with the position and the state of each
    /// lock that it has read, as soon as they are known: see [`LockStore::holders`](crate::store::LockStore::holders).
    ///
    /// Default: reports none.
    fn read_many(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Standing)) {
        let _ = (names, by, report);
    }

    /// Returns the lock's next number, which becomes the fence. Every number must be higher than all earlier
    /// numbers of the lock. A number may be skipped.
    ///
    /// In one atomic step the store sets the counter to the higher of `least` and the last number plus one, and
    /// returns it. `least` follows the clock, so numbers keep rising even if the store lost its last writes. A
    /// store that never loses an answered write may use `least` only to start a new counter. Numbers are near
    /// 2^60. A 64-bit floating-point number cannot hold them exactly.
    ///
    /// # Errors
    /// [`Code::InDoubt`](crate::Code::InDoubt) if a number may have been counted and its answer was lost. The
    /// library then counts again and skips that number.
    fn count(&self, name: &LockName, least: u64, by: Deadline) -> Result<u64>;

    /// Counts several consecutive numbers in one step, as [`count`](Register::count) counts one, and returns the last. The
    /// first is at least `least`. Called with more than 1 only if [`Capabilities::reserves`].
    ///
    /// Default: `count`.
    fn reserve(&self, name: &LockName, least: u64, numbers: u64, by: Deadline) -> Result<u64> {
        debug_assert_eq!(numbers, 1);
        self.count(name, least, by)
    }

    /// Gives our stored record the last of so many new numbers, and returns it, if the record was stored without one. Called only if
    /// [`Capabilities::counts_in_record`] is set. Default: fails, for a store whose records always have their number.
    ///
    /// # Errors
    /// [`Code::InDoubt`](crate::Code::InDoubt) if the reply was lost. The library then asks again.
    fn number_of(&self, name: &LockName, record: &Record, numbers: u64, by: Deadline) -> Result<u64> {
        let _ = (record, numbers, by);
        let what = format!("{}: the record of lock {name} has no number", self.describe());
        Err(Error::Internal { what, source: None })
    }

    /// Returns the number that was counted last, if the store still knows it. For people.
    ///
    /// # Errors
    /// As for [`read`](Register::read).
    fn last_count(&self, name: &LockName, by: Deadline) -> Result<Option<u64>>;

    /// Keeps records that a peer's delete may have hidden from appearing again for `ttl`, if the lock is free.
    /// Called only if [`Capabilities::hides`] is set. Default: does nothing.
    ///
    /// # Errors
    /// Any error means that hidden records may appear again.
    fn cover(&self, name: &LockName, ttl: Duration, by: Deadline) -> Result<()> {
        let _ = (name, ttl, by);
        Ok(())
    }

    /// Returns a stamp of the stored record: bytes that no record of another grant of this lock has or will have, such as the
    /// store's own time of the write. Called for a record without an owner token, so that an operator can break just that
    /// grant. Default: `None`, for a store that has no such stamp.
    ///
    /// # Errors
    /// As for [`read`](Register::read).
    fn stamp(&self, name: &LockName, by: Deadline) -> Result<Option<Box<[u8]>>> {
        let _ = (name, by);
        Ok(None)
    }

    /// Removes the record with this stamp.
    ///
    /// * Yes: the record was stored, and the lock is free now.
    /// * No: something else is stored. Nothing was changed.
    /// * Lost: the record may still be stored. The library reads the stamp or sends the same change again.
    ///
    /// Default: Down with [`Code::InvalidArgument`](crate::Code::InvalidArgument).
    fn remove_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Reply {
        let _ = (stamp, by);
        Reply::Down(no_stamps(name, &self.describe()))
    }

    /// Returns the histories of locks in the same store: see
    /// [`LockStore::history`](crate::store::LockStore::history). Default: `None`.
    fn history(&self) -> Option<&dyn HistoryStore> {
        None
    }

    /// Reads one page of the locks: see [`LockStore::list`](crate::store::LockStore::list). The library sets the
    /// [layout](Register::layout) where it is missing. Default: fails with
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument).
    ///
    /// # Errors
    /// As for [`read`](Register::read).
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

    /// Reports what the store's version and configuration mean for locks. Changes no lock. Default: reports
    /// nothing.
    ///
    /// # Errors
    /// As for [`read`](Register::read).
    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        let _ = by;
        Ok(Vec::new())
    }

    /// Returns what this register has counted since it was opened: see [`LiveCounters`](crate::store::LiveCounters).
    /// The library itself counts its reads after a refused creation. Does no I/O and does not block. Default: zeros.
    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }

    /// Returns the part of this register for locks with several modes. Does not block. Default: `None`. Then locks are
    /// exclusive.
    fn modes(&self) -> Option<&dyn ModeRegister> {
        None
    }

    /// Returns the part of this register for semaphores. Does not block. Default: `None`.
    fn permits(&self) -> Option<&dyn PermitRegister> {
        None
    }

    /// Returns the latches in the same store, or `None` (the default) if the store keeps only locks.
    fn latches(&self) -> Option<&dyn LatchStore> {
        None
    }
}

//! Acquire, renew and release over a [`Register`]: the meaning of each reply, and the next step.
//!
//! An acquire draws a new record for each attempt. An attempt is `open` while its request may still take effect.
//! "Late" is an answer after [`Capabilities::repeats_after`]: a copy of the request may still be under way.
//!
//! | state | event | next state |
//! |---|---|---|
//! | creating | Yes | counting |
//! | creating | Yes, late | exchanging |
//! | creating | No | reading; if late, the attempt is open |
//! | creating | Lost | reading; the attempt is open |
//! | creating | Down | end with that error; IN_DOUBT while an attempt is open |
//! | reading | the record of one of our attempts is stored | counting; exchanging if requests are repeated |
//! | reading | another record is stored | end: held |
//! | reading | the lock is free | creating, after a pause while an attempt is open |
//! | reading | the read fails | end: held by an unknown holder; IN_DOUBT while an attempt is open; the error if it is TABLE_CREATION_ERROR |
//! | exchanging | Yes | counting; the old record's attempt is open |
//! | exchanging | Yes, late | exchanging, at most twice |
//! | exchanging | No or Lost | reading; the old attempt is open, and the new one if late or Lost |
//! | exchanging | Down | end: release the lock and return the error |
//! | counting | a number, and our record is read back | end: granted; lengthening if an older record would outlast ours |
//! | counting | a number, and another record is read back | end: held; the attempt is open if records can be hidden |
//! | counting | a number, and the lock is free | creating, 2 ms later; the attempt is open if records can be hidden |
//! | counting | the count or the read-back fails | end: release the lock and return the error |
//! | lengthening | Yes | end: granted |
//! | lengthening | No or Lost | reading; the attempt is open |
//! | lengthening | Down | end: release the lock and return the error |
//! | any | 16 rounds, or no time left | end: held by an unknown holder; IN_DOUBT while an attempt is open |
//!
//! Lengthening writes our record again with a longer TTL. A store that keeps old versions may show one again when the
//! newest one ends. So no record ends before one that it has replaced: if its holder dies, others wait that long.
//!
//! An exchange replaces our record by one with a new token. A copy of the creation can then only bring the old token
//! back, which no lease has and which the background threads release. The lease counts from before the exchange, and
//! the number is counted after it.
//!
//! Create, count and read-back may travel in one request. They always take effect in this order. This keeps fences
//! sound even if messages are lost or late: the next holder creates its record after our read-back and counts after
//! that, so its number is higher. [`ReadBack::AfterCount`] needs no read if creation and count were one step.
//! [`ReadBack::Never`] accepts a number if its answer arrived while the lease lasts. With
//! [`Capabilities::counts_in_record`] "counting" ends at once if the record that was created or read has its number.
//!
//! A renewal and a release send one change. After No or Lost they find out what is stored:
//!
//! | compares | event | renewal | release |
//! |---|---|---|---|
//! | record | another version of our record is stored | try again with that version | try again with that version |
//! | token | Lost | try again: Yes means renewed | try again: Yes means freed |
//! | token | No, and our token is stored | renewed: the stored record already lasts longer | - |
//! | any | our record is not stored | lost | not ours; gone if a reply was lost |
//!
//! Several renewals at once follow the same table, except that a renewal with a lost reply ends in doubt at once: finding
//! out what became of it would take the time of the others. It is safe to repeat.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, UNIX_EPOCH};

use super::answers::{Reply, Settled, Standing};
use super::record::Record;
use super::register::{Capabilities, Compares, Create, Created, ReadBack, Register, Replace};
use super::resolve::{Doubt, Pauses, part, until_answered};
use crate::error::{Code, Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::fence::Fence;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::{OwnerRecord, OwnerToken};
use crate::names::promise::Promise;
use crate::runtime::time::{self, Deadline, Moment};
use crate::store::{
    Acquired, Attempt, Grant, GrantRecord, HistoryStore, Inspection, IntentId, LatchStore, ListCursor,
    LiveCounters, LockPage, LockQuery, LockStore, ModeStore, OnRenewed, Released, Renewal, SemaphoreStore,
    StoreCounters,
};

/// Stands before the token in a lease from a store that counts in the record, so other layouts refuse it.
const NUMBERED: &[u8] = &[2];
/// Stands, with mode and place, before the token in a lease of a hold that others go beside.
const BESIDE: u8 = 3;

/// Bits below the milliseconds in a number's lower bound. Only more than 2^20 grants in each millisecond would
/// outrun the clock.
const FENCE_CLOCK_SHIFT: u32 = 20;
/// The highest clock reading in a number, in the year 2109. A clock that is set later has no further effect.
const FENCE_CLOCK_MAX: u64 = (1 << 42) - 1;

/// Maximum number of rounds of one acquire, release or renewal. Another round is needed only after a lost reply
/// or a change by a peer. There is a pause before each round that follows a lost reply: a server whose errors
/// leave every write in doubt would otherwise receive all rounds at once.
pub(crate) const ROUNDS: usize = 16;
/// Most exchanges of a record before its number is counted. A gateway that answers late every time would otherwise
/// never grant a lock. A lease with the last of these records can be revived only by one late copy of the creation
/// and of each exchange, in this order.
const EXCHANGES: usize = 2;
/// A Java client's Delete hides records that are written in the same millisecond. The next attempt waits longer
/// than that.
const HIDDEN_PAUSE: Duration = Duration::from_millis(2);
/// The read after a refused renewal gets at most this part of the time, if other renewals are under way.
const READ_PARTS: u32 = 4;
/// Extra time after the deadline to undo an acquire that failed halfway.
pub(crate) const CLEAN_UP: Duration = Duration::from_secs(2);

/// A [`LockStore`] over a [`Register`]: the lock protocol.
#[derive(Debug)]
pub struct RemoteStore<R> {
    pub(super) register: R,
    counters: LiveCounters,
}

impl<R: Register> RemoteStore<R> {
    /// Creates a [`LockStore`] over `register`. No I/O.
    pub fn new(register: R) -> RemoteStore<R> {
        RemoteStore { register, counters: LiveCounters::default() }
    }

    /// Returns the register below.
    pub fn register(&self) -> &R {
        &self.register
    }

    /// Acquires the lock. If the register counts in the record, the number is at least `least`; by default the lower
    /// bound comes from the clock.
    pub(crate) fn acquire_from(
        &self,
        attempt: Attempt<'_>,
        least: Option<u64>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        self.acquire_numbers(attempt, least, (1, None), doubtful)
    }

    /// Acquires the lock with so many numbers, if the register can count several, and ends the intent.
    pub(super) fn acquire_numbers(
        &self,
        attempt: Attempt<'_>,
        least: Option<u64>,
        (numbers, intent): (u64, Option<IntentId>),
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let can = self.register.capabilities();
        let numbers = if can.reserves { numbers } else { 1 };
        let (open, lost) = (Vec::new(), None);
        let mut acquisition =
            Acquisition { store: self, can, attempt, least, numbers, intent, open, lost, exchanges: 0 };
        let answer = acquisition.run();
        doubtful.extend(acquisition.open.iter().map(|tried| can.owner_record(&tried.record)));
        answer
    }

    /// Returns whether `owner_record` holds the lock. One read.
    #[cfg(feature = "hbase")]
    pub(crate) fn is_held_by(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        by: Deadline,
    ) -> Result<bool> {
        let record = self.register.capabilities().own_record(owner_record)?;
        let standing = until_answered(by, || self.register.read(name, by))?;
        Ok(own_version(standing, &record).is_some())
    }
}

impl<R: Register> LockStore for RemoteStore<R> {
    fn describe(&self) -> String {
        self.register.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.register.initialize(by)
    }

    fn greet(&self, by: Deadline) -> Result<()> {
        self.register.greet(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.acquire_from(attempt, None, doubtful)
    }

    fn reserves_fences(&self) -> bool {
        self.register.capabilities().reserves
    }

    fn acquire_with_fences(
        &self,
        attempt: Attempt<'_>,
        fences: u64,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        self.acquire_numbers(attempt, None, (fences, None), doubtful)
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        let can = self.register.capabilities();
        let mut change = Replace::renewal(name, can.own_record(owner_record)?, ttl);
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let known = match doubt.ask(|| self.register.replace(&change, by).settled()) {
                Ok(Settled::Yes(())) => return Ok(Some(can.owner_record(&change.record))),
                Ok(Settled::No(known)) => known,
                Err(error) => {
                    doubt.go_on(error)?;
                    // Repeating a renewal that may still be in flight is safe: both require our token, and
                    // the lease counts from before the first.
                    if can.compares == Compares::Token {
                        continue;
                    }
                    None
                }
            };
            // The connection for the read may be dead too. One try of the read gets half of the time.
            let read_by = || if doubt.is_open() { part(by, 2) } else { by };
            let read = || doubt.ask(|| self.register.read_own(name, &change.expected, read_by()));
            let standing = known.map_or_else(read, Ok);
            let standing = standing.map_err(|error| doubt.or(error))?;
            let Some(stored) = own_version(standing, &change.expected) else { return Ok(None) };
            if can.compares == Compares::Token {
                return Ok(Some(can.owner_record(&stored)));
            }
            // Even if it is the version of this renewal: another one for the same TTL may have written it long before.
            change = Replace::renewal(name, stored, ttl);
        }
        Err(doubt.or(contended(name)))
    }

    fn renew_many(&self, renewals: &[Renewal<'_>], by: Deadline, report: OnRenewed<'_>) {
        let can = self.register.capabilities();
        let mut changes = Vec::with_capacity(renewals.len());
        // Leases without an answer, and how many changes of each were answered.
        let mut open = BTreeMap::new();
        for (at, renewal) in renewals.iter().enumerate() {
            match can.own_record(renewal.owner_record) {
                Ok(current) => {
                    let change = Replace::renewal(renewal.name, current, renewal.ttl);
                    changes.push(Replace { at, alone: renewal.alone, ..change });
                    open.insert(at, 0);
                }
                Err(error) => report(at, Moment::now(), Err(error)),
            }
        }
        self.register.replace_many(changes, by, &mut |change, since, reply| {
            // A second answer to one change is ignored.
            let round = *open.get(&change.at)?;
            if round != change.round {
                return None;
            }
            open.remove(&change.at);
            match self.after_reply(can, change, renewals[change.at].ttl, reply, by) {
                ControlFlow::Break(answer) => {
                    report(change.at, since, answer);
                    None
                }
                ControlFlow::Continue(next) => {
                    open.insert(next.at, next.round);
                    Some(next)
                }
            }
        });
        // The deadline came before their next round. The one before changed nothing.
        for (at, _) in open.into_iter().filter(|(_, round)| *round > 0) {
            let what = format!("lock {}: there was no time to renew its newer record", renewals[at].name);
            let error = Error::RetriesExhausted { store: self.describe(), what, source: None };
            report(at, Moment::now(), Err(error));
        }
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.release_with(name, owner_record, by, |current| self.register.remove(name, current, by))
    }

    fn release_broken(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.release_with(name, owner_record, by, |current| self.register.remove_broken(name, current, by))
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        Ok(match self.register.read(name, by)? {
            Standing::Free => None,
            Standing::Held(found) => Some(found.holder()),
        })
    }

    fn holders(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Option<Holder>)) {
        self.register.read_many(names, by, &mut |index, standing| {
            report(
                index,
                match standing {
                    Standing::Free => None,
                    Standing::Held(found) => Some(found.holder()),
                },
            );
        });
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        let can = self.register.capabilities();
        let found = match self.register.read(name, by)? {
            Standing::Free => None,
            Standing::Held(found) => Some(found),
        };
        let grant = match found.as_ref().map(|found| &found.record) {
            None => None,
            Some(Some(record)) => Some(GrantRecord::Ours(can.owner_record(record))),
            Some(None) => self.register.stamp(name, by)?.map(GrantRecord::Stamped),
        };
        // After the record, so that the fence is not below that of the holder.
        let fence = if can.counts { self.register.last_count(name, by)?.map(Fence) } else { None };
        let holder = found.map(|found| found.holder());
        Ok(Inspection { holder, fence, layout: self.register.layout(), grant })
    }

    fn release_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Result<Released> {
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            match doubt.ask(|| self.register.remove_stamped(name, stamp, by).settled()) {
                Ok(Settled::Yes(())) => return Ok(Released::Freed),
                // No other record has this stamp, so this one will not be stored again.
                Ok(Settled::No(_)) if doubt.is_open() => return Ok(Released::Gone),
                Ok(Settled::No(_)) => return Ok(Released::NotOurs),
                // A repetition is harmless for the same reason.
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(contended(name)))
    }

    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        let record = self.register.capabilities().own_record(owner_record).ok()?;
        Some(record.token().hash())
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        self.register.history()
    }

    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        let mut page = self.register.list(query, after, most, by)?;
        for lock in &mut page.locks {
            lock.layout = lock.layout.or(self.register.layout());
        }
        Ok(page)
    }

    fn in_flight_for(&self) -> Duration {
        self.register.capabilities().in_flight_for
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        self.register.diagnose(by)
    }

    fn promises(&self) -> Vec<Promise> {
        self.register.promises()
    }

    fn shard(&self, name: &LockName) -> u8 {
        self.register.shard(name)
    }

    fn counters(&self) -> StoreCounters {
        self.register.counters().plus(self.counters.now())
    }

    fn modes(&self) -> Option<&dyn ModeStore> {
        self.register.modes().map(|_| self as &dyn ModeStore)
    }

    fn semaphores(&self) -> Option<&dyn SemaphoreStore> {
        self.register.permits().map(|_| self as &dyn SemaphoreStore)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.register.latches()
    }
}

impl<R: Register> RemoteStore<R> {
    /// Returns the answer for one renewal among several, or the change that replaces another version of our record, which is
    /// stored instead of the expected one.
    fn after_reply<'a>(
        &self,
        can: Capabilities,
        change: &Replace<'a>,
        ttl: Duration,
        reply: Reply,
        by: Deadline,
    ) -> ControlFlow<Result<Option<OwnerRecord>>, Replace<'a>> {
        let known = match reply.settled() {
            Ok(Settled::Yes(())) => return ControlFlow::Break(Ok(Some(can.owner_record(&change.record)))),
            Ok(Settled::No(known)) => known,
            Err(error) => return ControlFlow::Break(Err(error)),
        };
        // The answers to others wait meanwhile, so a server that does not answer must leave them some time.
        let read = || self.register.read_own(change.name, &change.expected, part(by, READ_PARTS));
        ControlFlow::Break(match known.map_or_else(read, Ok) {
            Err(error) => Err(error),
            Ok(standing) => match own_version(standing, &change.expected) {
                None => Ok(None),
                Some(stored) if can.compares == Compares::Token => Ok(Some(can.owner_record(&stored))),
                Some(_) if change.round == ROUNDS => Err(contended(change.name)),
                Some(stored) => {
                    let Replace { name, alone, at, round, .. } = *change;
                    let next = Replace::renewal(name, stored, ttl);
                    return ControlFlow::Continue(Replace { alone, at, round: round + 1, ..next });
                }
            },
        })
    }

    /// Releases the lease with `remove`, which sends one request.
    fn release_with(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        by: Deadline,
        remove: impl Fn(&Record) -> Reply,
    ) -> Result<Released> {
        let can = self.register.capabilities();
        let mut current = can.own_record(owner_record)?;
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let (sent, mut may_be_freed) = (Moment::now(), false);
            let known = match doubt.ask(|| remove(&current).settled()) {
                Ok(Settled::Yes(())) => return Ok(Released::Freed),
                // No proves that no record with our token is stored.
                Ok(Settled::No(_)) if can.compares == Compares::Token => Some(Standing::Free),
                Ok(Settled::No(known)) => {
                    may_be_freed = can.is_late(sent);
                    known
                }
                Err(error) => {
                    doubt.go_on(error)?;
                    if can.compares == Compares::Token {
                        continue;
                    }
                    None
                }
            };
            let standing = known.map_or_else(|| doubt.ask(|| self.register.read_own(name, &current, by)), Ok);
            let standing = standing.map_err(|error| match doubt.or(error) {
                // The first copy of the request may have freed the lock, which made the second fail.
                error if may_be_freed && !error.is_in_doubt() => Error::InDoubt {
                    what: format!("lock {name} may be released, and could not be read"),
                    source: Some(error.into()),
                },
                error => error,
            })?;
            // A gateway that sent the request twice returns "no" for the second copy. We cannot distinguish
            // this from a lease that was lost before. NotOurs is the safe answer: a false alarm at worst.
            match own_version(standing, &current) {
                Some(stored) => current = stored,
                None if doubt.is_open() => return Ok(Released::Gone),
                None => return Ok(Released::NotOurs),
            }
        }
        Err(doubt.or(contended(name)))
    }

    /// Counts the lock's next numbers, and returns the last.
    fn next_fence(&self, name: &LockName, numbers: u64, by: Deadline) -> Result<Fence> {
        let count = || self.register.reserve(name, least_number(), numbers, by);
        self.number_when_answered(name, by, count).map(Fence)
    }

    /// Asks for the last of so many numbers of our stored record.
    pub(super) fn number_of(
        &self,
        name: &LockName,
        record: &Record,
        numbers: u64,
        by: Deadline,
    ) -> Result<u64> {
        self.number_when_answered(name, by, || self.register.number_of(name, record, numbers, by))
    }

    /// Repeats the request for a number until it is answered, because the lock is already ours. Counting twice skips a
    /// number.
    fn number_when_answered(
        &self,
        name: &LockName,
        by: Deadline,
        mut request: impl FnMut() -> Result<u64>,
    ) -> Result<u64> {
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            match until_answered(by, &mut request) {
                Ok(number) => return Ok(number),
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(contended(name)))
    }
}

impl Capabilities {
    /// Returns the part of `record` that a lease keeps: the part that the store compares.
    pub(super) fn owner_record(&self, record: &Record) -> OwnerRecord {
        match self.compares {
            Compares::Record => OwnerRecord::from_bytes(record.as_bytes()),
            Compares::Token => {
                let token = record.token();
                let owner_record = match record.place() {
                    Some(place) => {
                        [&[BESIDE, record.mode().code(), place], token.as_bytes().as_slice()].concat()
                    }
                    None if self.counts_in_record => [NUMBERED, token.as_bytes()].concat(),
                    None => token.as_bytes().to_vec(),
                };
                OwnerRecord::from_bytes(owner_record)
            }
        }
    }

    /// Whether the answer that has just arrived, to a request that was sent after `since`, took so long that the
    /// request may have been sent twice.
    fn is_late(&self, since: Moment) -> bool {
        self.repeats_after.is_some_and(|limit| Moment::now().since(since) >= limit)
    }

    pub(super) fn own_record(&self, owner_record: &OwnerRecord) -> Result<Record> {
        let bytes = owner_record.as_bytes();
        let record = match self.compares {
            Compares::Record => {
                Record::decode(bytes).filter(|record| record.has_number() == self.counts_in_record)
            }
            Compares::Token => {
                let (beside, token) = match bytes {
                    [BESIDE, code, place, token @ ..] if self.counts_in_record => {
                        let mode = Mode::from_code(*code).filter(|mode| *mode != Mode::Exclusive);
                        (mode.map(|mode| (mode, *place)), mode.map(|_| token))
                    }
                    _ if self.counts_in_record => (None, bytes.strip_prefix(NUMBERED)),
                    _ => (None, Some(bytes)),
                };
                let token = token.and_then(|token| token.try_into().ok()).map(OwnerToken::from_bytes);
                let record = token.map(|token| self.record_of(Record::of_parts(&token, Duration::ZERO, &[])));
                record.map(|record| beside.map_or(record.clone(), |(mode, place)| record.placed(mode, place)))
            }
        };
        record.ok_or_else(|| {
            let allowed = "a lease that was acquired from this kind of store, in the same layout";
            Error::invalid("lease", "(not shown)", allowed)
        })
    }

    /// Returns the drawn record in the format of the store.
    pub(super) fn record_of(&self, drawn: Record) -> Record {
        if self.counts_in_record { drawn.numbered(0) } else { drawn }
    }
}

/// Returns the lower bound of the next number, from the clock. It is above all numbers of a counter that has
/// expired.
///
/// The lower bits count the nanoseconds within the millisecond. They do not fill these bits, so numbers of one clock
/// rise like the clock.
pub(crate) fn least_number() -> u64 {
    let since = time::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX).min(FENCE_CLOCK_MAX);
    ms << FENCE_CLOCK_SHIFT | u64::from(since.subsec_nanos() % 1_000_000)
}

/// Returns the stored version of `record` if its owner still holds the lock.
fn own_version(standing: Standing, record: &Record) -> Option<Record> {
    match standing {
        Standing::Held(found) => found.record.filter(|stored| stored.same_owner(record)),
        Standing::Free => None,
    }
}

pub(crate) fn contended(name: &LockName) -> Error {
    Error::InDoubt { what: format!("lock {name} changed during each of {ROUNDS} tries"), source: None }
}

/// One acquire in progress.
struct Acquisition<'a, R> {
    store: &'a RemoteStore<R>,
    can: Capabilities,
    attempt: Attempt<'a>,
    /// See [`RemoteStore::acquire_from`].
    least: Option<u64>,
    /// How many numbers to count.
    numbers: u64,
    /// The intent that the creation ends.
    intent: Option<IntentId>,
    /// Attempts that may have taken effect or may still take effect.
    open: Vec<Tried>,
    /// The error of the first lost reply, while an attempt is open.
    lost: Option<Error>,
    /// Exchanges since the last creation that were answered with Yes.
    exchanges: usize,
}

struct Tried {
    record: Record,
    since: Moment,
    /// A copy of the request that wrote the record may still be under way.
    may_reappear: bool,
}

/// The result of one round of an acquire.
enum Round {
    Over(Acquired),
    /// The lock seems free, but we do not hold it.
    Again,
    /// It is not known which record is stored.
    Look,
}

impl<R: Register> Acquisition<'_, R> {
    fn run(&mut self) -> Result<Acquired> {
        let (mut pauses, mut look) = (Pauses::until(self.attempt.by), false);
        for _ in 0..ROUNDS {
            // No pause if no reply was lost: a peer has just freed the lock.
            if self.lost.is_some() && !pauses.rest() {
                break;
            }
            let round = if look { self.read_and_settle(None, None) } else { self.create_and_settle() };
            look = match round? {
                Round::Over(answer) => return Ok(answer),
                _ if self.attempt.by.passed() => break,
                round => matches!(round, Round::Look),
            };
        }
        self.give_up()
    }

    fn create_and_settle(&mut self) -> Result<Round> {
        let record = self.can.record_of(Record::draw(self.attempt.ttl, self.attempt.identity)?);
        self.exchanges = 0;
        let tried = Tried { record, since: Moment::now(), may_reappear: false };
        let create = Create {
            name: self.attempt.name,
            record: &tried.record,
            count: self.can.counts.then(|| self.least.unwrap_or_else(least_number)),
            numbers: self.numbers,
            read_back: self.can.read_back == ReadBack::Always,
            intent: self.intent,
        };
        let answer = self.ask(!self.open.is_empty(), |register, by| register.create(&create, by).settled());
        let is_late = self.is_late(tried.since);
        match answer {
            Ok(Settled::Yes(_)) if is_late => self.exchange(tried),
            Ok(Settled::Yes(created)) => self.count_and_read_back(tried, created),
            Ok(Settled::No(known)) => {
                if known.is_none() {
                    self.store.counters.read_after_refusal();
                }
                self.read_and_settle(known, is_late.then_some(tried))
            }
            Err(error) if error.is_in_doubt() => {
                self.open.push(tried);
                self.lost.get_or_insert(error);
                self.read_and_settle(None, None)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Sends a request. If one of our attempts is `in_doubt`, repeats it until it is answered.
    fn ask<T>(&self, in_doubt: bool, request: impl Fn(&R, Deadline) -> Result<T>) -> Result<T> {
        let (register, by) = (&self.store.register, self.attempt.by);
        if in_doubt { until_answered(by, || request(register, by)) } else { request(register, by) }
    }

    fn read(&self, in_doubt: bool) -> Result<Standing> {
        self.ask(in_doubt, |register, by| register.read_to_grant(self.attempt.name, by))
    }

    /// See [`Capabilities::is_late`].
    fn is_late(&self, since: Moment) -> bool {
        self.can.is_late(since)
    }

    /// Finds out who holds the lock, after No or Lost. `known` is the state of the lock if the answer contained
    /// it. `refused` is an attempt that was answered with No so late that it may have been sent twice. Then the
    /// first copy may have created the record that made the second fail, and a third may still come.
    fn read_and_settle(&mut self, known: Option<Standing>, refused: Option<Tried>) -> Result<Round> {
        self.open.extend(refused);
        let in_doubt = !self.open.is_empty();
        let found = match known.map_or_else(|| self.read(in_doubt), Ok) {
            Ok(Standing::Held(found)) => found,
            Ok(Standing::Free) => return Ok(Round::Again),
            // The creation was refused and none of our requests is in flight: the lock is held. The read was
            // only to name the holder. But a store that cannot be used for locks is not a lock that will be free.
            Err(error) if !in_doubt && error.code() != Code::TableCreationError => {
                return Ok(Round::Over(Acquired::Held(Holder::unknown())));
            }
            Err(error) => return Err(self.failed(error)),
        };
        let stands = |tried: &Tried| found.record.as_ref().is_some_and(|it| it.same_owner(&tried.record));
        let Some(at) = self.open.iter().position(stands) else {
            return Ok(Round::Over(Acquired::Held(found.holder())));
        };
        let mut tried = self.open.swap_remove(at);
        if self.open.is_empty() {
            self.lost = None;
        }
        // The stored record may have its number.
        tried.record = found.record.unwrap_or(tried.record);
        match self.can.repeats_after {
            None => self.count_and_read_back(tried, Created::default()),
            Some(_) => self.exchange(tried),
        }
    }

    /// Replaces our record by one with a new token, because a copy of the request that wrote it may still be under
    /// way. Then counts and reads back.
    fn exchange(&mut self, old: Tried) -> Result<Round> {
        let mut old = Tried { may_reappear: true, ..old };
        while self.can.compares == Compares::Record && self.exchanges < EXCHANGES {
            let record = match Record::draw(self.attempt.ttl, self.attempt.identity) {
                Ok(record) => self.can.record_of(record),
                Err(error) => return Err(self.hand_back(old, error)),
            };
            let mut new = Tried { record, since: Moment::now(), may_reappear: false };
            let change = Replace::new(self.attempt.name, old.record.clone(), new.record.clone());
            let answer = self.ask(true, |register, by| register.replace(&change, by).settled());
            new.may_reappear = self.is_late(new.since);
            match answer {
                Ok(Settled::Yes(())) => {
                    self.exchanges += 1;
                    self.open.push(std::mem::replace(&mut old, new));
                    if !old.may_reappear {
                        break;
                    }
                }
                Ok(Settled::No(_)) => {
                    self.open.push(old);
                    self.open.extend(Some(new).filter(|new| new.may_reappear));
                    return Ok(Round::Look);
                }
                Err(error) if error.is_in_doubt() => {
                    self.open.extend([old, new]);
                    self.lost.get_or_insert(error);
                    return Ok(Round::Look);
                }
                Err(error) => return Err(self.hand_back(old, error)),
            }
        }
        self.count_and_read_back(old, Created::default())
    }

    /// Counts and reads back, unless this came with the creation of our record. Both requests are repeated until
    /// they are answered: the lock is ours, and after a failure it would have to be released.
    fn count_and_read_back(&mut self, mut tried: Tried, created: Created) -> Result<Round> {
        let Created { count, standing } = created;
        if self.can.counts_in_record {
            let Attempt { name, by, .. } = self.attempt;
            let number = match tried.record.number().or(count) {
                Some(number) => number,
                None => match self.store.number_of(name, &tried.record, self.numbers, by) {
                    Ok(number) => number,
                    Err(error) => return Err(self.hand_back(tried, error)),
                },
            };
            tried.record = tried.record.numbered(number);
            return Ok(self.granted(&tried, Some(Fence(number)), self.numbers));
        }
        let counted = match (self.can.counts, count) {
            // A read before the count proves nothing.
            (true, None) => self
                .store
                .next_fence(self.attempt.name, self.numbers, self.attempt.by)
                .map(|fence| (Some(fence), None)),
            (true, Some(number)) => Ok((Some(Fence(number)), standing)),
            (false, _) => Ok((None, standing)),
        };
        let alone = self.can.counts && count.is_none();
        let read_back = counted.and_then(|(fence, standing)| match (standing, self.can.read_back) {
            (Some(standing), _) => Ok((fence, Some(standing))),
            (None, ReadBack::Never) => self.while_it_lasts(&tried, fence).map(|fence| (fence, None)),
            (None, ReadBack::AfterCount) if !alone => Ok((fence, None)),
            (None, _) => Ok((fence, Some(self.read(true)?))),
        });
        let (fence, standing) = match read_back {
            Ok(answers) => answers,
            Err(error) => return Err(self.hand_back(tried, error)),
        };
        let other = match standing {
            None => return Ok(self.granted(&tried, fence, self.numbers)),
            Some(Standing::Held(found)) => match found.record {
                Some(record) if record.same_owner(&tried.record) => {
                    return match found.beneath {
                        None => Ok(self.granted(&tried, fence, self.numbers)),
                        Some(beneath) => self.lengthen(tried, beneath, fence),
                    };
                }
                _ => Some(found.holder()),
            },
            Some(Standing::Free) => None,
        };
        // The record expired, or a Java client's Delete of this millisecond deleted or hid it. A hidden record
        // appears again when a compaction removes the Delete, so keep the attempt open.
        if self.can.hides || tried.may_reappear {
            self.open.push(tried);
        }
        match other {
            Some(holder) => Ok(Round::Over(Acquired::Held(holder))),
            None => {
                time::sleep(HIDDEN_PAUSE);
                Ok(Round::Again)
            }
        }
    }

    /// Writes our record again, so that it outlasts what it has replaced.
    fn lengthen(&mut self, mut tried: Tried, beneath: Duration, fence: Option<Fence>) -> Result<Round> {
        let change = Replace::renewal(self.attempt.name, tried.record.clone(), beneath);
        match self.ask(true, |register, by| register.replace(&change, by).settled()) {
            Ok(Settled::Yes(())) => {
                tried.record = change.record;
                Ok(self.granted(&tried, fence, self.numbers))
            }
            Ok(Settled::No(_)) => {
                self.open.push(tried);
                Ok(Round::Look)
            }
            Err(error) if error.is_in_doubt() => {
                self.open.push(tried);
                self.lost.get_or_insert(error);
                Ok(Round::Look)
            }
            Err(error) => Err(self.hand_back(tried, error)),
        }
    }

    /// `last` is the last of so many fences.
    fn granted(&self, tried: &Tried, last: Option<Fence>, fences: u64) -> Round {
        let Tried { record, since, may_reappear } = tried;
        Round::Over(Acquired::Granted(Grant {
            owner_record: self.can.owner_record(record),
            epoch: None,
            fence: last.map(|last| Fence(last.0 - (fences - 1))),
            fences,
            since: *since,
            may_reappear: *may_reappear,
        }))
    }

    /// Returns the fence if the lease still lasts. Then the next holder creates its record after our fence was
    /// counted.
    fn while_it_lasts(&self, tried: &Tried, fence: Option<Fence>) -> Result<Option<Fence>> {
        if fence.is_none() || Moment::now() < tried.since.after(self.attempt.ttl) {
            return Ok(fence);
        }
        Err(Error::RetriesExhausted {
            store: self.store.describe(),
            what: "the lease expired before its fence was counted; use a longer TTL".into(),
            source: None,
        })
    }

    /// Releases a lock that is ours but has no valid fence, and returns the error of the acquire.
    fn hand_back(&mut self, tried: Tried, error: Error) -> Error {
        let by = Deadline::after(CLEAN_UP);
        let released = self.store.release(self.attempt.name, &self.can.owner_record(&tried.record), by);
        // A hidden record cannot be released, and it can appear again.
        let is_gone = if self.can.hides { matches!(released, Ok(Released::Freed)) } else { released.is_ok() };
        let is_gone = is_gone && !tried.may_reappear;
        if !is_gone {
            self.open.push(tried);
        }
        self.failed(error)
    }

    /// Returns the error of the acquire: `error`, or IN_DOUBT while an attempt is open.
    fn failed(&mut self, error: Error) -> Error {
        if self.open.is_empty() && !error.is_in_doubt() {
            return error;
        }
        if self.open.is_empty() {
            // Only the count is in doubt. The lock was released.
            return Error::RetriesExhausted {
                store: self.store.describe(),
                what: "the fence could not be counted".into(),
                source: Some(error.into()),
            };
        }
        match (self.lost.take(), error) {
            (Some(lost), error) if error.is_in_doubt() => lost,
            (Some(lost), error) => Error::InDoubt {
                what: format!(
                    "an earlier request of this acquire may still be applied, and the next one failed ({})",
                    error.chain()
                ),
                source: Some(lost.into()),
            },
            (None, error) if error.is_in_doubt() => error,
            (None, error) => Error::InDoubt {
                what: "an earlier request of this acquire may still be applied".into(),
                source: Some(error.into()),
            },
        }
    }

    /// Ends an acquire that has no rounds or no time left, without a grant.
    fn give_up(&mut self) -> Result<Acquired> {
        let covered = match self.can.hides {
            true => self.store.register.cover(self.attempt.name, self.attempt.ttl, Deadline::after(CLEAN_UP)),
            false => Ok(()),
        };
        match covered {
            Ok(()) if self.open.is_empty() => Ok(Acquired::Held(Holder::unknown())),
            covered => Err(Error::InDoubt {
                what: format!(
                    "lock {1} may still be acquired by this call: {0} of its requests may still be applied, or \
                     its record may be hidden",
                    self.open.len(),
                    self.attempt.name
                ),
                source: self.lost.take().or(covered.err()).map(Into::into),
            }),
        }
    }
}

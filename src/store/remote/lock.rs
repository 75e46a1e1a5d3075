//! Acquire, renew and release over a [`Register`]: what each answer means for the lock, and what comes next.
//!
//! An acquire draws a new record for each attempt. `open` are the attempts that may still take effect.
//!
//! | state | event | next state |
//! |---|---|---|
//! | creating | Yes | counting |
//! | creating | No | looking |
//! | creating | Lost | looking; the attempt is open |
//! | creating | Down | over: that error; IN_DOUBT while an attempt is open |
//! | looking | an open attempt's record stands | counting |
//! | looking | another record stands | over: held |
//! | looking | the lock is free | creating, after a pause while an attempt is open |
//! | looking | the read fails | over: held by an unknown; IN_DOUBT while an attempt is open |
//! | counting | a number, and our record is read back | over: granted |
//! | counting | a number, and another record is read back | over: held; the attempt is open where records can be hidden |
//! | counting | a number, and the lock is free | creating, 2 ms later; the attempt is open where records can be hidden |
//! | counting | it fails | over: the lock is handed back, and the error returned |
//! | any | 16 rounds, or no time left | over: held by an unknown; IN_DOUBT while an attempt is open |
//!
//! Create, count and read back may travel in one request. They take effect in this order in any case, which makes
//! fences sound whatever is lost or late: a later holder counts after its own creation, which comes after our
//! read-back, so its number is higher. A store that reads back only after a separate count may skip the read where
//! both were one step, and [`ReadBack::Never`] accepts a number whose answer came while the lease lasts.
//!
//! A renewal and a release send one change. After No or Lost they find out what stands:
//!
//! | compares | event | renewal | release |
//! |---|---|---|---|
//! | record | our record stands in another version | try again with that version | try again with that version |
//! | record | ours stands as a lost renewal left it | renewed | - |
//! | token | Lost | try again: Yes means renewed | try again: Yes means freed |
//! | token | No, and our token stands | renewed: what stands lasts longer already | - |
//! | any | ours does not stand | lost | not ours; after a Lost request: gone |

use std::time::Duration;

use super::record::Record;
use super::register::{Capabilities, Compares, Create, Created, ReadBack, Register, Replace, Standing};
use super::resolve::{Doubt, Pauses, part, until_answered};
use crate::diagnostic::Diagnostic;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::holder::Holder;
use crate::name::LockName;
use crate::owner::{OwnerRecord, OwnerToken};
use crate::store::{Acquired, Attempt, Grant, Inspection, LatchStore, LockStore, Released};
use crate::time::{self, Deadline, Moment, wall_ms};

/// Bits below the clock in a number's lower bound: as many grants a millisecond would outrun it.
const FENCE_CLOCK_SHIFT: u32 = 20;
/// A clock set to the year 2109 or later is not followed further.
const FENCE_CLOCK_MAX: u64 = (1 << 42) - 1;

/// Rounds of one acquire, release or renewal; each needs a lost reply or a peer in between. A server that
/// answers each write with an error of a kind that proves nothing would get them all: there is a pause
/// before each round that follows a doubt.
const ROUNDS: usize = 16;
/// A record hidden by a Java client's Delete is hidden for the rest of that millisecond.
const HIDDEN_PAUSE: Duration = Duration::from_millis(2);
/// Time beyond the deadline to clean up behind an acquire that fails half-way.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// The lock protocol over a [`Register`].
#[derive(Debug)]
pub struct RemoteStore<R> {
    register: R,
}

impl<R: Register> RemoteStore<R> {
    /// A [`LockStore`] over `register`. No I/O.
    pub fn new(register: R) -> RemoteStore<R> {
        RemoteStore { register }
    }

    /// The store below.
    pub fn register(&self) -> &R {
        &self.register
    }
}

impl<R: Register> LockStore for RemoteStore<R> {
    fn describe(&self) -> String {
        self.register.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.register.initialize(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        let can = self.register.capabilities();
        let mut acquisition = Acquisition { store: self, can, attempt, open: Vec::new(), lost: None };
        let answer = acquisition.run();
        doubtful.extend(acquisition.open.iter().map(|tried| can.owner_record(&tried.record)));
        answer
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        let can = self.register.capabilities();
        let mut current = can.own_record(owner_record)?;
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let renewed = current.renewed(ttl);
            let replace = Replace { name, expected: &current, record: &renewed };
            let known = match doubt.ask(|| self.register.replace(&replace, by).settled()) {
                Ok(Ok(())) => return Ok(Some(can.owner_record(&renewed))),
                Ok(Err(known)) => known,
                Err(error) => {
                    doubt.go_on(error)?;
                    // Asking again for a renewal that may still be under way does no harm: both are
                    // conditional on our token, and the lease counts from before the first.
                    if can.compares == Compares::Token {
                        continue;
                    }
                    None
                }
            };
            // The connection that the read is made over may be as dead as the one before.
            let read_by = || if doubt.is_open() { part(by, 2) } else { by };
            let read = || doubt.ask(|| self.register.read(name, read_by()));
            let standing = known.map_or_else(read, Ok);
            let standing = standing.map_err(|error| doubt.or(error))?;
            let Some(stored) = own_version(standing, &current) else { return Ok(None) };
            let lasts_longer = can.compares == Compares::Token;
            let was_applied = doubt.is_open() && stored == renewed && stored != current;
            if lasts_longer || was_applied {
                return Ok(Some(can.owner_record(&stored)));
            }
            current = stored;
        }
        Err(doubt.or(contended(name)))
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        let can = self.register.capabilities();
        let mut current = can.own_record(owner_record)?;
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let known = match doubt.ask(|| self.register.remove(name, &current, by).settled()) {
                Ok(Ok(())) => return Ok(Released::Freed),
                // Whatever stands, it is not ours.
                Ok(Err(_)) if can.compares == Compares::Token => Some(Standing::Free),
                Ok(Err(known)) => known,
                Err(error) => {
                    doubt.go_on(error)?;
                    if can.compares == Compares::Token {
                        continue;
                    }
                    None
                }
            };
            let standing = known.map_or_else(|| doubt.ask(|| self.register.read(name, by)), Ok);
            let standing = standing.map_err(|error| doubt.or(error))?;
            // A gateway that sent the request twice answers "no" for the second. That this was our own
            // release cannot be told from a lease that was lost before; a false alarm is the safe answer.
            match own_version(standing, &current) {
                Some(stored) => current = stored,
                None if doubt.is_open() => return Ok(Released::Gone),
                None => return Ok(Released::NotOurs),
            }
        }
        Err(doubt.or(contended(name)))
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        Ok(match self.register.read(name, by)? {
            Standing::Free => None,
            Standing::Held(found) => Some(found.holder()),
        })
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        let fence = match self.register.capabilities().counts {
            true => self.register.last_count(name, by)?.map(Fence),
            false => None,
        };
        Ok(Inspection { holder: self.holder(name, by)?, fence })
    }

    fn in_flight_for(&self) -> Duration {
        self.register.capabilities().in_flight_for
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        self.register.diagnose(by)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.register.latches()
    }
}

impl<R: Register> RemoteStore<R> {
    /// The next number of the lock's counter, asked for until it is answered: the lock is ours by then.
    fn next_fence(&self, name: &LockName, by: Deadline) -> Result<Fence> {
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            match until_answered(by, || self.register.count(name, least_number(), by)) {
                Ok(number) => return Ok(Fence(number)),
                // Counting twice skips a number.
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(contended(name)))
    }
}

impl Capabilities {
    /// What a lease keeps of its record: as much as the store compares.
    fn owner_record(&self, record: &Record) -> OwnerRecord {
        match self.compares {
            Compares::Record => OwnerRecord::from_bytes(record.as_bytes()),
            Compares::Token => OwnerRecord::from_bytes(record.token().as_bytes().as_slice()),
        }
    }

    fn own_record(&self, owner_record: &OwnerRecord) -> Result<Record> {
        let token = || owner_record.as_bytes().try_into().ok().map(OwnerToken::from_bytes);
        let record = match self.compares {
            Compares::Record => Record::decode(owner_record.as_bytes()),
            Compares::Token => token().map(|token| Record::of_parts(&token, Duration::ZERO, &[])),
        };
        record.ok_or_else(|| {
            Error::invalid("lease", "(not shown)", "a lease that was acquired from this kind of store")
        })
    }
}

/// What a counter begins with: the clock, which is above all that the counter gave out before it expired.
fn least_number() -> u64 {
    wall_ms().min(FENCE_CLOCK_MAX) << FENCE_CLOCK_SHIFT
}

/// The version of `record` that stands, if its owner still has the lock.
fn own_version(standing: Standing, record: &Record) -> Option<Record> {
    match standing {
        Standing::Held(found) => found.record.filter(|stored| stored.same_owner(record)),
        Standing::Free => None,
    }
}

fn contended(name: &LockName) -> Error {
    Error::InDoubt { what: format!("lock {name} changed under each of {ROUNDS} looks at it"), source: None }
}

/// One acquire on its way.
struct Acquisition<'a, R> {
    store: &'a RemoteStore<R>,
    can: Capabilities,
    attempt: Attempt<'a>,
    /// Attempts that may have taken effect, or may yet.
    open: Vec<Tried>,
    /// Why the first of them has no answer.
    lost: Option<Error>,
}

struct Tried {
    record: Record,
    since: Moment,
    /// It was found in place after No or Lost, through something that may send it again.
    may_reappear: bool,
}

/// What a round of an acquisition found.
enum Round {
    Over(Acquired),
    /// The lock looks free, though we do not hold it.
    Again,
}

impl<R: Register> Acquisition<'_, R> {
    fn run(&mut self) -> Result<Acquired> {
        let mut pauses = Pauses::until(self.attempt.by);
        for _ in 0..ROUNDS {
            // Without a doubt a peer has just freed the lock, and it may be ours at once.
            if self.lost.is_some() && !pauses.rest() {
                break;
            }
            let round = match self.create_and_settle()? {
                Round::Again if self.attempt.by.passed() => break,
                round => round,
            };
            if let Round::Over(answer) = round {
                return Ok(answer);
            }
        }
        self.give_up()
    }

    fn create_and_settle(&mut self) -> Result<Round> {
        let record = Record::draw(self.attempt.ttl, self.attempt.identity)?;
        let tried = Tried { record, since: Moment::now(), may_reappear: false };
        let create = Create {
            name: self.attempt.name,
            record: &tried.record,
            count: self.can.counts.then(least_number),
            read_back: self.can.read_back == ReadBack::Always,
        };
        match self.ask(!self.open.is_empty(), |register, by| register.create(&create, by).settled()) {
            Ok(Ok(created)) => self.count_and_read_back(tried, created),
            Ok(Err(known)) => self.look(known, Some(tried)),
            Err(error) if error.is_in_doubt() => {
                self.open.push(tried);
                self.lost.get_or_insert(error);
                self.look(None, None)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Makes a request: where something of ours may be under way, until it is answered.
    fn ask<T>(&self, in_doubt: bool, request: impl Fn(&R, Deadline) -> Result<T>) -> Result<T> {
        let (register, by) = (&self.store.register, self.attempt.by);
        if in_doubt { until_answered(by, || request(register, by)) } else { request(register, by) }
    }

    fn read(&self, in_doubt: bool) -> Result<Standing> {
        self.ask(in_doubt, |register, by| register.read(self.attempt.name, by))
    }

    /// Finds out who has the lock, after No or Lost. `known`: what stands, where the answer said it.
    /// `refused`: the attempt that was answered with No. A gateway may have sent it twice, and No may be for
    /// the record that the first put there.
    fn look(&mut self, known: Option<Standing>, refused: Option<Tried>) -> Result<Round> {
        let refused = refused.filter(|_| self.can.repeats);
        let in_doubt = refused.is_some() || !self.open.is_empty();
        let found = match known.map_or_else(|| self.read(in_doubt), Ok) {
            Ok(Standing::Held(found)) => found,
            Ok(Standing::Free) => return Ok(Round::Again),
            // Refused, and nothing of ours under way: who holds it was asked for information only.
            Err(_) if !in_doubt => return Ok(Round::Over(Acquired::Held(Holder::unknown()))),
            Err(error) => {
                self.open.extend(refused);
                return Err(self.failed(error));
            }
        };
        let stands = |tried: &Tried| found.record.as_ref().is_some_and(|it| it.same_owner(&tried.record));
        let mine = match self.open.iter().position(stands) {
            Some(at) => Some(self.open.swap_remove(at)),
            None => refused.filter(stands),
        };
        let Some(tried) = mine else { return Ok(Round::Over(Acquired::Held(found.holder()))) };
        if self.open.is_empty() {
            self.lost = None;
        }
        let tried = Tried { may_reappear: self.can.repeats, ..tried };
        self.count_and_read_back(tried, Created::default())
    }

    /// The store put our record in. What did not travel with it is done now. Both requests are repeated until they
    /// are answered: the lock is ours, and to fail now would leave it to be freed.
    fn count_and_read_back(&mut self, tried: Tried, created: Created) -> Result<Round> {
        let Created { count, standing } = created;
        let counted = match (self.can.counts, count) {
            // A read from before the count proves nothing.
            (true, None) => {
                self.store.next_fence(self.attempt.name, self.attempt.by).map(|fence| (Some(fence), None))
            }
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
            None => return Ok(self.granted(&tried, fence)),
            Some(Standing::Held(found)) => match found.record {
                Some(record) if record.same_owner(&tried.record) => return Ok(self.granted(&tried, fence)),
                _ => Some(found.holder()),
            },
            Some(Standing::Free) => None,
        };
        // Expired, or deleted or hidden by a Java client's Delete of this millisecond. Hidden records can
        // show again when the Delete is compacted away: remember it.
        if self.can.hides || self.can.repeats {
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

    fn granted(&self, tried: &Tried, fence: Option<Fence>) -> Round {
        let Tried { record, since, may_reappear } = tried;
        Round::Over(Acquired::Granted(Grant {
            owner_record: self.can.owner_record(record),
            fence,
            since: *since,
            may_reappear: *may_reappear,
        }))
    }

    /// The fence, if the lease lasts: then the next holder creates its record after our fence was counted.
    fn while_it_lasts(&self, tried: &Tried, fence: Option<Fence>) -> Result<Option<Fence>> {
        if fence.is_none() || Moment::now() < tried.since.after(self.attempt.ttl) {
            return Ok(fence);
        }
        Err(Error::RetriesExhausted {
            store: self.store.describe(),
            what: "the fence was counted when the lease was over; ask for a longer TTL".into(),
            source: None,
        })
    }

    /// The lock is ours, and the acquire fails all the same: without its fence it is no grant.
    fn hand_back(&mut self, tried: Tried, error: Error) -> Error {
        let by = Deadline::after(CLEAN_UP);
        let released = self.store.release(self.attempt.name, &self.can.owner_record(&tried.record), by);
        // A hidden record is not there to be released, and can show again.
        let is_gone = if self.can.hides { matches!(released, Ok(Released::Freed)) } else { released.is_ok() };
        let is_gone = is_gone && !tried.may_reappear;
        if !is_gone {
            self.open.push(tried);
        }
        self.failed(error)
    }

    /// `error`, unless something of ours is still open: then the doubt is what the caller must know.
    fn failed(&mut self, error: Error) -> Error {
        if self.open.is_empty() && !error.is_in_doubt() {
            return error;
        }
        if self.open.is_empty() {
            // A doubtful count: the lock itself was handed back.
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
                    "an earlier request of this acquire may yet be applied, and the next one failed ({})",
                    error.chain()
                ),
                source: Some(lost.into()),
            },
            (None, error) if error.is_in_doubt() => error,
            (None, error) => Error::InDoubt {
                what: "an earlier request of this acquire may yet be applied".into(),
                source: Some(error.into()),
            },
        }
    }

    /// Free at every look, and never ours.
    fn give_up(&mut self) -> Result<Acquired> {
        let covered = match self.can.hides {
            true => self.store.register.cover(self.attempt.name, self.attempt.ttl, Deadline::after(CLEAN_UP)),
            false => Ok(()),
        };
        match covered {
            Ok(()) if self.open.is_empty() => Ok(Acquired::Held(Holder::unknown())),
            covered => Err(Error::InDoubt {
                what: format!(
                    "{} requests for lock {} left no trace yet",
                    self.open.len(),
                    self.attempt.name
                ),
                source: self.lost.take().or(covered.err()).map(Into::into),
            }),
        }
    }
}

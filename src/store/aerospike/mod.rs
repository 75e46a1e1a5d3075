//! Locks and latches in Aerospike: one record each, changed by one conditional request at a time.
//!
//! ```text
//! acquire   create the lock's record, with a TTL       refused where there is one
//!           fence = max(fence + 1, the clock)          in a record of its own
//! renew     update if the token in it is ours          with a new TTL, if that is no shorter
//! release   delete if the token in it is ours
//! ```
//!
//! * A grant is one only if the fence came back while the lease lasts: then the next holder acquires
//!   after our fence was counted, and counts after that.
//! * The fence has a record of its own because Java clients delete the lock's. It follows the clock, so
//!   that a server that lost its latest writes, or all of them, does not give out a number twice.
//! * Every attempt draws a new token, so that a request that comes late is recognised as ours.
//! * A record lives a little longer than its TTL, never shorter: servers count whole seconds.

mod client;
mod examine;
mod lanes;
mod latches;
mod options;
mod place;
pub(crate) mod records;

use std::time::{Duration, UNIX_EPOCH};

use self::client::{Change, Client, Datum, Exists, Found, When, Write, Written};
use self::latches::Steps;
use self::options::Setup;
use self::place::{LockPlace, Spot, fence_spot, is_updated, whole_seconds};
use super::doubt::{Doubt, until_answered};
use super::{
    Acquired, Attempt, Fence, Finding, Grant, Holder, Inspection, LatchStore, LockName, LockStore,
    OwnerToken, Proof, Released, Who,
};
use crate::config::Options;
use crate::error::{Error, Result};
use crate::time::{Deadline, Moment, wall_ms};

/// Bins of our own in a lock's record.
const TOKEN: &str = "dlm_token";
const WHO: &str = "dlm_who";
const FENCE: &str = "fence";

/// Fence counters of locks that nobody takes any more go after this time.
const FENCE_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Bits below the clock in a fence: more grants a millisecond than those would outrun it.
const FENCE_CLOCK_SHIFT: u32 = 20;
/// A clock set to the year 2109 or later is not followed further.
const FENCE_CLOCK_MAX: u64 = (1 << 42) - 1;

/// Rounds of one acquire, release or renewal; each needs a lost reply or a peer in between.
const ROUNDS: usize = 16;
/// Time beyond the deadline to clean up behind an acquire that fails half-way.
const CLEAN_UP: Duration = Duration::from_secs(2);
/// Between two tries of [`LockStore::initialize`] at a cluster that is not ready.
const READY_POLL: Duration = Duration::from_millis(100);

/// A [`LockStore`] in a namespace of Aerospike. URI: `aerospike://host:3000,host2/namespace/setSuffix`.
///
/// The layout is that of PhonePe's DLM 1.0.1, and its clients and ours exclude each other; what they
/// do to their own locks (releasing one they lost, trusting one master's word) they can do to ours.
///
/// A grant is as durable as the namespace. One in memory with a single copy forgets its locks when the
/// server restarts; one on disk with a single copy, when the server crashes, those of the last second.
/// Fences go on rising all the same. In a cluster, `conflict-resolution-policy last-update-time` must be
/// set, or a node that comes back may put an old holder's record over the new one's.
#[derive(Debug)]
pub struct AerospikeStore {
    client: Client,
    suffix: String,
    fenced: bool,
    steps: Steps,
}

impl AerospikeStore {
    /// In the namespace of the cluster that any of `hosts` belongs to. No I/O until the first call.
    pub(crate) fn open(
        hosts: &str,
        namespace: &str,
        suffix: &str,
        options: Options,
    ) -> Result<AerospikeStore> {
        let setup = Setup::read(hosts, namespace, suffix, options)?;
        Ok(AerospikeStore {
            client: Client::new(&setup),
            suffix: setup.suffix,
            fenced: setup.fenced,
            steps: Steps::default(),
        })
    }
}

impl LockStore for AerospikeStore {
    fn describe(&self) -> String {
        self.client.place().to_owned()
    }

    /// Nothing has to be created. Waits for the cluster to form, and proves that records with a TTL can
    /// be written and deleted.
    fn initialize(&self, by: Deadline) -> Result<()> {
        let token = OwnerToken::draw()?;
        let key = token.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let spot = Spot { set: format!("D_FNC#{}", self.suffix), key };
        let steps = [Change::Put(TOKEN, Datum::Bytes(token.as_bytes().to_vec()))];
        let write = Write { spot: &spot, exists: Exists::May, when: None, steps: &steps, ttl_s: 1 };
        loop {
            match self.client.write(&write, by) {
                // What is left of it expires.
                Ok(_) => {
                    return self.client.delete(&spot, When::Is(TOKEN, token.as_bytes()), by).map(|_| ());
                }
                Err(error) if error.is_retryable() && by.remaining() > READY_POLL => {
                    std::thread::sleep(READY_POLL);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<Proof>) -> Result<Acquired> {
        let place = LockPlace::of(attempt.name, &self.suffix)?;
        let mut acquisition = Acquisition { store: self, attempt, place, open: Vec::new() };
        let answer = acquisition.run();
        doubtful.extend(acquisition.open.iter().map(|tried| proof(&tried.token)));
        answer
    }

    fn renew(&self, name: &LockName, proof: &Proof, ttl: Duration, by: Deadline) -> Result<Option<Proof>> {
        let (place, token) = (LockPlace::of(name, &self.suffix)?, own_token(proof)?);
        let updated = place.updated_bin();
        let (steps, ttl_s) = ([Change::Put(&updated, Datum::Int(wall_ms() as i64))], whole_seconds(ttl));
        // A request that comes late must not undo a longer renewal that came before it.
        let when = When::IsNoLonger { bin: TOKEN, bytes: token.as_bytes(), left_s: ttl_s };
        let (spot, exists) = (&place.lock, Exists::Must);
        let write = Write { spot, exists, when: Some(when), steps: &steps, ttl_s };
        let mut doubt = Doubt::none(by);
        for _ in 0..ROUNDS {
            match doubt.ask(|| self.client.write(&write, by)) {
                Ok(Written::Done(_)) => return Ok(Some(proof.clone())),
                Ok(Written::Missing) => return Ok(None),
                // Another's, or ours with more time left than was asked for.
                Ok(Written::Refused) => {
                    let found = doubt.ask(|| self.client.read(spot, &[TOKEN], by));
                    let found = found.map_err(|error| doubt.or(error))?;
                    let ours =
                        found.is_some_and(|found| found.bytes(TOKEN) == Some(token.as_bytes().as_slice()));
                    return Ok(ours.then(|| proof.clone()));
                }
                // Asking again for a renewal that may still be under way does no harm: both are
                // conditional on our token, and the lease counts from before the first.
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(restless(name)))
    }

    fn release(&self, name: &LockName, proof: &Proof, by: Deadline) -> Result<Released> {
        let (place, token) = (LockPlace::of(name, &self.suffix)?, own_token(proof)?);
        let mut doubt = Doubt::none(by);
        for _ in 0..ROUNDS {
            let deleted =
                doubt.ask(|| self.client.delete(&place.lock, When::Is(TOKEN, token.as_bytes()), by));
            match deleted {
                Ok(Written::Done(_)) => return Ok(Released::Freed),
                // An earlier request of this release may have done it.
                Ok(_) if doubt.is_open() => return Ok(Released::Gone),
                Ok(_) => return Ok(Released::NotOurs),
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(restless(name)))
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        let place = LockPlace::of(name, &self.suffix)?;
        Ok(self.look(&place, by)?.map(|found| holder(&found)))
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        let fence = match self.fenced {
            true => self.client.read(&fence_spot(name, &self.suffix), &[FENCE], by)?,
            false => None,
        };
        let fence = fence.and_then(|found| found.int(FENCE)).map(|number| Fence(number as u64));
        Ok(Inspection { holder: self.holder(name, by)?, fence })
    }

    fn examine(&self, by: Deadline) -> Result<Vec<Finding>> {
        self.look_over(by)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(self)
    }
}

impl AerospikeStore {
    fn look(&self, place: &LockPlace, by: Deadline) -> Result<Option<Found>> {
        self.client.read(&place.lock, &[], by)
    }

    /// The next number of the lock's counter, asked for until it is answered: the lock is ours by then.
    /// Numbers may be skipped, never repeated.
    fn next_fence(&self, name: &LockName, by: Deadline) -> Result<Fence> {
        let spot = fence_spot(name, &self.suffix);
        let mut doubt = Doubt::none(by);
        for _ in 0..ROUNDS {
            let least = (wall_ms().min(FENCE_CLOCK_MAX) << FENCE_CLOCK_SHIFT) as i64;
            let steps = [Change::Raise(FENCE, least), Change::Tell(FENCE)];
            let ttl_s = whole_seconds(FENCE_TTL);
            let write = Write { spot: &spot, exists: Exists::May, when: None, steps: &steps, ttl_s };
            match until_answered(by, || self.client.write(&write, by)) {
                Ok(Written::Done(Some(number))) => return Ok(Fence(number as u64)),
                Ok(answer) => {
                    let what = format!("the fence of lock {name} was answered with {answer:?}");
                    return Err(Error::Internal { what, source: None });
                }
                // Counting twice skips a number.
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(restless(name)))
    }
}

/// What the record of a lock tells.
fn holder(found: &Found) -> Holder {
    // A lock of level XDC has the farm of whoever took it there.
    let updated = found.bins.iter().find(|(bin, _)| is_updated(bin)).and_then(|(_, datum)| match datum {
        Datum::Int(ms) => u64::try_from(*ms).ok(),
        _ => None,
    });
    let since = updated.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
    Holder::new(found.bytes(WHO).and_then(Who::decode), found.left, since)
}

fn proof(token: &OwnerToken) -> Proof {
    Proof::from_bytes(token.as_bytes().as_slice())
}

fn own_token(proof: &Proof) -> Result<OwnerToken> {
    proof.as_bytes().try_into().map(OwnerToken::from_bytes).map_err(|_| {
        Error::invalid("lease", "(not shown)", "a lease that was acquired from this kind of store")
    })
}

fn restless(name: &LockName) -> Error {
    Error::InDoubt { what: format!("lock {name} changed under each of {ROUNDS} looks at it"), source: None }
}

/// One acquire on its way.
struct Acquisition<'a> {
    store: &'a AerospikeStore,
    attempt: Attempt<'a>,
    place: LockPlace,
    /// Requests that may have taken effect, or may yet.
    open: Vec<Tried>,
}

struct Tried {
    token: OwnerToken,
    since: Moment,
}

impl Acquisition<'_> {
    fn run(&mut self) -> Result<Acquired> {
        let by = self.attempt.by;
        let mut doubt = Doubt::none(by);
        for _ in 0..ROUNDS {
            let tried = Tried { token: OwnerToken::draw()?, since: Moment::now() };
            match doubt.ask(|| self.create(&tried)) {
                Ok(Written::Done(_)) => return self.count(tried),
                Ok(_) => {}
                Err(error) => {
                    if error.is_in_doubt() {
                        self.open.push(tried);
                    }
                    doubt.go_on(error)?;
                }
            }
            let found = match doubt.ask(|| self.store.look(&self.place, by)) {
                Ok(found) => found,
                // Refused, and nothing of ours under way: who holds it was asked for information only.
                Err(_) if self.open.is_empty() => return Ok(Acquired::Held(Holder::unknown())),
                Err(error) => return Err(doubt.or(error)),
            };
            if let Some(found) = found {
                let in_place = |tried: &Tried| found.bytes(TOKEN) == Some(tried.token.as_bytes().as_slice());
                return match self.open.iter().position(in_place) {
                    Some(at) => {
                        let tried = self.open.swap_remove(at);
                        self.count(tried)
                    }
                    None => Ok(Acquired::Held(holder(&found))),
                };
            }
            // Released in between, or a lost request that may yet arrive.
            if by.passed() {
                break;
            }
        }
        match doubt.settled() {
            Ok(()) => Ok(Acquired::Held(Holder::unknown())),
            Err(lost) => Err(lost),
        }
    }

    fn create(&self, tried: &Tried) -> Result<Written> {
        let (data, updated) = (self.place.data_bin(), self.place.updated_bin());
        let mut who = Vec::new();
        self.attempt.who.encode_into(&mut who);
        let steps = [
            Change::Put(&data, Datum::Int(1)),
            Change::Put(&updated, Datum::Int(wall_ms() as i64)),
            Change::Put(TOKEN, Datum::Bytes(tried.token.as_bytes().to_vec())),
            Change::Put(WHO, Datum::Bytes(who)),
        ];
        let write = Write {
            spot: &self.place.lock,
            exists: Exists::MustNot,
            when: None,
            steps: &steps,
            ttl_s: whole_seconds(self.attempt.ttl),
        };
        self.store.client.write(&write, self.attempt.by)
    }

    /// The record is ours. With its fence, before the lease is over, that is a grant.
    fn count(&mut self, tried: Tried) -> Result<Acquired> {
        let fence = match self.store.fenced {
            false => Ok(None),
            true => self.store.next_fence(self.attempt.name, self.attempt.by).map(Some),
        };
        let late = || Error::RetriesExhausted {
            store: self.store.describe(),
            what: "the fence was counted when the lease was over; ask for a longer TTL".into(),
            source: None,
        };
        let fence = fence.and_then(|fence| {
            let lasts = fence.is_none() || Moment::now() < tried.since.after(self.attempt.ttl);
            if lasts { Ok(fence) } else { Err(late()) }
        });
        match fence {
            Ok(fence) => Ok(Acquired::Granted(Grant {
                proof: proof(&tried.token),
                fence,
                since: tried.since,
                may_reappear: false,
            })),
            Err(error) => Err(self.hand_back(tried, error)),
        }
    }

    /// The lock is ours, and the acquire fails all the same: without its fence it is no grant.
    fn hand_back(&mut self, tried: Tried, error: Error) -> Error {
        let by = Deadline::after(CLEAN_UP);
        let released = self.store.release(self.attempt.name, &proof(&tried.token), by);
        if released.is_err() {
            self.open.push(tried);
        }
        self.failed(error)
    }

    /// `error`, unless something of ours is still open: then the doubt is what the caller must know.
    fn failed(&self, error: Error) -> Error {
        match (self.open.is_empty(), error.is_in_doubt()) {
            (true, false) | (false, true) => error,
            // A doubtful count: the lock itself was handed back.
            (true, true) => Error::RetriesExhausted {
                store: self.store.describe(),
                what: "the fence could not be counted".into(),
                source: Some(error.into()),
            },
            (false, false) => Error::InDoubt {
                what: "an earlier request of this acquire may yet be applied".into(),
                source: Some(error.into()),
            },
        }
    }
}

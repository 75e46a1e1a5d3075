//! Latches: one record each, and every change is one conditional request.
//!
//! ```text
//!          condition                              change
//! create   the farm has no count                  write the count, the creation's mark, the expected
//!                                                 participants and the incarnation
//! step     the farm has a count of the            add 1 or -1, mark the step, delete earlier marks of this
//!          incarnation that was read, and         process
//!          this step is not marked yet
//! reset    the count has the incarnation that     write a new incarnation, as create does
//!          was read
//! delete   as reset                               delete the bins of the farm
//! ```
//!
//! * The change that counts a step also marks it, under a unique number or under the participant's name. A request
//!   that is sent again, or arrives late, finds the mark and changes nothing.
//! * The next step of this process deletes the mark of an answered step that has a number. The mark of a step with
//!   a lost answer stays while the latch lives, because its first request may still be in flight. Participants'
//!   marks stay too.
//! * The marks are deleted with the latch. For this reason each incarnation of a count has its own random bytes,
//!   and every step names them. A late step does not count in a new latch with the same name. A count without these
//!   bytes (from Java, or an older version of this library) receives them before its first step.
//! * For the same reason a step is IN_DOUBT if an answer was lost and then the latch does not exist, or has another
//!   incarnation. The step may have counted before the latch ended.
//! * The expected participants of an incarnation never change, and every step names the incarnation. So a read before
//!   the step decides whether the latch waits for somebody else. It is made only for who is not known to be expected.
//! * A process that waits is noted in a map of its own bin. That write leaves the end of the record as it is.
//! * Every other change starts the record's whole TTL again. All farms share the record, so all farms that use a latch
//!   should use the same TTL.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::client::{
    BinOperation, BinValue, Client, FoundRecord, RecordExistsAction, TTL_KEPT, When, Write, Written,
};
use super::keys::{LATCH, LISTENERS, LatchKeys, is_count, whole_seconds};
use super::list;
use super::ready::wait_until_ready;
use crate::error::{Error, Result};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::Level;
use crate::names::notice_endpoint::{LatchListener, NoticeEndpoint};
use crate::names::owner::OwnerToken;
use crate::runtime::sync::real::Mutex;
use crate::runtime::time::{self, Deadline};
use crate::store::latch_store::{LISTENERS_MAX, check_participant, unexpected};
use crate::store::remote::resolve::Doubt;
use crate::store::{LatchNote, LatchPage, LatchQuery, LatchStore, NewLatch, Roster, Step, Stepped};

/// Maximum number of rounds of one change. Another round is needed only after a lost reply or a change by a peer.
const ROUNDS: usize = 16;
/// Maximum number of marks that one change deletes.
const FORGOTTEN_AT_ONCE: usize = 32;
/// Maximum number of latches whose marks and incarnations are remembered. With more latches, a few marks stay in
/// the records and incarnations are read again.
const REMEMBERED: usize = 4096;
/// A process whose note ended this long ago still gets a notice. Machines' clocks differ.
const ENDED_FOR_MS: u64 = 60_000;

/// The steps of this process.
#[derive(Debug, Default)]
struct Steps {
    /// The first half of each step's number. No other process has it, not even a fork of this one.
    process: OnceLock<[u8; 8]>,
    next: AtomicU64,
    /// Answered steps whose marks are still in the latch's record, by the record's key and the bin of the marks.
    answered: Mutex<HashMap<(String, String), Vec<BinValue>>>,
    /// The incarnations that were read or written last, by the same key. The server refuses an old one.
    incarnations: Mutex<HashMap<(String, String), Incarnation>>,
}

/// What never changes while a count exists.
#[derive(Debug, Clone)]
struct Incarnation {
    id: Vec<u8>,
    /// The expected participants. Empty for a latch without names.
    due: Arc<HashSet<String>>,
}

impl Steps {
    /// Returns a number that no other step has.
    fn draw(&self) -> Result<BinValue> {
        let process = match self.process.get() {
            Some(process) => process,
            None => {
                let drawn = OwnerToken::draw()?;
                let half = drawn.as_bytes().first_chunk().expect("a token is longer than that");
                self.process.get_or_init(|| *half)
            }
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(BinValue::Bytes([process.as_slice(), &number.to_be_bytes()].concat()))
    }

    fn to_forget(&self, keys: &LatchKeys) -> Vec<BinValue> {
        let answered = self.answered.lock();
        let steps = answered.get(&key(keys)).map_or(&[][..], Vec::as_slice);
        steps.iter().take(FORGOTTEN_AT_ONCE).cloned().collect()
    }

    fn forgotten(&self, keys: &LatchKeys, forgotten: &[BinValue]) {
        let mut answered = self.answered.lock();
        if let Some(steps) = answered.get_mut(&key(keys)) {
            steps.retain(|step| !forgotten.contains(step));
            if steps.is_empty() {
                answered.remove(&key(keys));
            }
        }
    }

    fn answered(&self, keys: &LatchKeys, step: BinValue) {
        let mut answered = self.answered.lock();
        if answered.len() >= REMEMBERED {
            answered.clear();
        }
        answered.entry(key(keys)).or_default().push(step);
    }

    fn incarnation(&self, keys: &LatchKeys) -> Option<Incarnation> {
        self.incarnations.lock().get(&key(keys)).cloned()
    }

    fn ended(&self, keys: &LatchKeys) {
        self.incarnations.lock().remove(&key(keys));
    }

    fn made(&self, keys: &LatchKeys, incarnation: &Incarnation) {
        let mut incarnations = self.incarnations.lock();
        if incarnations.len() >= REMEMBERED {
            incarnations.clear();
        }
        incarnations.insert(key(keys), incarnation.clone());
    }
}

fn key(keys: &LatchKeys) -> (String, String) {
    (keys.record_key.key.clone(), keys.steps.clone())
}

/// The latches of a namespace, beside its locks.
#[derive(Debug)]
pub(super) struct AerospikeLatches {
    client: Arc<Client>,
    suffix: String,
    steps: Steps,
}

impl LatchStore for AerospikeLatches {
    /// Waits for the cluster. Creates nothing: a latch needs only its record.
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        wait_until_ready(&self.client, format!("D_LTCH#{}", self.suffix), by)
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        let keys = LatchKeys::of(new.name, &self.suffix)?;
        let made = self.steps.draw()?;
        let due = due_list(new.roster);
        let mut doubt = Doubt::none(new.by);
        for _ in 0..ROUNDS {
            // A new one for each request: a late request then has another incarnation.
            let incarnation = OwnerToken::draw()?;
            let steps = [
                BinOperation::Put(&keys.count, BinValue::Int(new.count)),
                BinOperation::Put(&keys.steps, BinValue::Map(vec![(made.clone(), BinValue::Int(0))])),
                BinOperation::Put(&keys.due, BinValue::List(due.clone())),
                BinOperation::Put(&keys.made, BinValue::Bytes(incarnation.as_bytes().to_vec())),
                BinOperation::Put(LATCH, BinValue::Text(latch_text(new.name))),
            ];
            let write = Write {
                record_key: &keys.record_key,
                exists: RecordExistsAction::Update,
                when: Some(When::Lacks(&keys.count)),
                steps: &steps,
                ttl_s: whole_seconds(new.ttl),
            };
            match doubt.ask(|| self.client.write(&write, new.by)) {
                Ok(Written::Done(_)) => {
                    if !doubt.is_open() {
                        let due = Arc::new(new.roster.iter().cloned().collect());
                        let id = incarnation.as_bytes().to_vec();
                        self.steps.made(&keys, &Incarnation { id, due });
                        self.steps.answered(&keys, made);
                    }
                    return Ok(true);
                }
                Ok(_) if !doubt.is_open() => return Ok(false),
                // Created by our own request with a lost answer, or by another process.
                Ok(_) => {
                    let bins = [keys.count.as_str(), &keys.steps];
                    let found =
                        doubt.ask(|| self.client.read_with_collections(&keys.record_key, &bins, new.by));
                    let found = found.map_err(|error| doubt.or(error))?;
                    if let Some(found) = found.filter(|found| found.int(&keys.count).is_some()) {
                        return Ok(mark(&found, &keys, &made).is_some());
                    }
                }
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(contended(new.name)))
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        if let Some(name) = step.participant {
            check_participant(name)?;
        }
        let keys = LatchKeys::of(step.name, &self.suffix)?;
        let number = self.steps.draw()?;
        // The key and the value of the step's mark.
        let (marked, mark_of) = match step.participant {
            Some(name) => (BinValue::Text(name.to_owned()), number),
            None => (number, BinValue::Int(0)),
        };
        let forget = self.steps.to_forget(&keys);
        let mut steps = vec![
            BinOperation::Add(&keys.count, step.add),
            BinOperation::MapPut(&keys.steps, marked.clone(), mark_of.clone()),
        ];
        if !forget.is_empty() {
            steps.push(BinOperation::MapDrop(&keys.steps, forget.clone()));
        }
        steps.push(BinOperation::Read(&keys.count));
        let (exists, ttl_s) = (RecordExistsAction::UpdateOnly, whole_seconds(step.ttl));
        let mut incarnation = match self.steps.incarnation(&keys) {
            Some(incarnation) => incarnation,
            None => self.incarnation(step.name, &keys, step.by)?,
        };
        self.refuse_unexpected(step, &keys, &incarnation)?;
        let mut doubt = Doubt::none(step.by);
        for _ in 0..ROUNDS {
            let (has, is) = (keys.count.as_str(), (keys.made.as_str(), incarnation.id.as_slice()));
            let when = When::LacksKey { has, is, map: &keys.steps, key: &marked };
            let write =
                Write { record_key: &keys.record_key, exists, when: Some(when), steps: &steps, ttl_s };
            match doubt.ask(|| self.client.write(&write, step.by)) {
                Ok(Written::Done(reply)) => {
                    self.steps.forgotten(&keys, &forget);
                    if !doubt.is_open() && step.participant.is_none() {
                        self.steps.answered(&keys, marked);
                    }
                    return Ok(Stepped::Counted(reply.int(&keys.count)));
                }
                Ok(Written::Missing) => return Err(gone(&mut doubt, step.name)),
                Ok(Written::Refused) => {
                    let bins = [keys.count.as_str(), &keys.steps, &keys.made];
                    let found =
                        doubt.ask(|| self.client.read_with_collections(&keys.record_key, &bins, step.by));
                    let found = found.map_err(|error| doubt.or(error))?;
                    let Some(found) = found.filter(|found| found.int(&keys.count).is_some()) else {
                        return Err(gone(&mut doubt, step.name));
                    };
                    let there = mark(&found, &keys, &marked);
                    if there == Some(&mark_of) {
                        return Ok(Stepped::Counted(None));
                    }
                    if found.bytes(&keys.made) == Some(&incarnation.id) {
                        if there.is_some() {
                            return Ok(Stepped::Already);
                        }
                    } else if doubt.is_open() {
                        // The step may have counted in the earlier incarnation.
                        return Err(gone(&mut doubt, step.name));
                    } else {
                        incarnation = self.incarnation(step.name, &keys, step.by)?;
                        self.refuse_unexpected(step, &keys, &incarnation)?;
                    }
                }
                // Sent again with the same number, the step counts once, in either order of arrival.
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(contended(step.name)))
    }

    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        self.replace(new.name, Some(new), new.ttl, new.by)
    }

    fn delete_latch(&self, name: &LatchName, ttl: Duration, by: Deadline) -> Result<()> {
        self.replace(name, None, ttl, by)
    }

    fn list_latches(&self, asked: &LatchQuery<'_>) -> Result<LatchPage> {
        list::latches(&self.client, &self.suffix, asked)
    }

    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let places: Vec<_> = asked.iter().map(|(name, _)| LatchKeys::of(name, &self.suffix)).collect();
        let good =
            places.iter().zip(asked).filter_map(|(keys, (_, level))| Some((keys.as_ref().ok()?, level)));
        let reads: Vec<_> = good
            .map(|(keys, level)| match level {
                Level::Dc => (keys.record_key.clone(), vec![keys.count.as_str()]),
                Level::Xdc => (keys.record_key.clone(), Vec::new()),
            })
            .collect();
        let mut found = self.client.read_many(&reads, by)?.into_iter();
        let counts = places.iter().zip(asked).map(|(keys, (name, level))| {
            let keys = match keys {
                Ok(keys) => keys,
                // Computed again to get its error.
                Err(_) => return LatchKeys::of(name, &self.suffix).map(|_| None),
            };
            let record = found.next().expect("one answer for each request")?;
            Ok(record.and_then(|record| match level {
                Level::Dc => record.int(&keys.count),
                Level::Xdc => sum(&record),
            }))
        });
        Ok(counts.collect())
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        let keys = LatchKeys::of(name, &self.suffix)?;
        self.roster_of(name, &keys, by)
    }

    fn listen(&self, note: &LatchNote<'_>) -> Result<bool> {
        let keys = LatchKeys::of(note.name, &self.suffix)?;
        let mut endpoint = Vec::new();
        note.listener.endpoint.encode_into(&mut endpoint);
        let lasts_ms = u64::try_from(note.lasts.as_millis()).unwrap_or(u64::MAX);
        let noted = note_value(time::wall_ms().saturating_add(lasts_ms), note.listener.nonce);
        let write = Write {
            record_key: &keys.record_key,
            // A record has a count of some farm.
            exists: RecordExistsAction::UpdateOnly,
            when: match note.level {
                Level::Dc => Some(When::Has(&keys.count)),
                Level::Xdc => None,
            },
            steps: &[
                BinOperation::MapPut(LISTENERS, BinValue::Bytes(endpoint), noted),
                BinOperation::MapKeepHighest(LISTENERS, LISTENERS_MAX),
            ],
            ttl_s: TTL_KEPT,
        };
        let written = self.client.write(&write, note.by)?;
        Ok(matches!(written, Written::Done(_)))
    }

    fn listeners(&self, name: &LatchName, by: Deadline) -> Result<Vec<LatchListener>> {
        let keys = LatchKeys::of(name, &self.suffix)?;
        let found = self.client.read_with_collections(&keys.record_key, &[LISTENERS], by)?;
        let now_ms = time::wall_ms();
        let Some(BinValue::Map(notes)) = found.as_ref().and_then(|found| found.bin(LISTENERS)) else {
            return Ok(Vec::new());
        };
        Ok(notes.iter().filter_map(|(endpoint, note)| listener(endpoint, note, now_ms)).collect())
    }
}

/// Returns a note as a value whose order is that of the ends: `end_ms:u64 nonce:u64`, since 1970.
fn note_value(ends_ms: u64, nonce: u64) -> BinValue {
    BinValue::Bytes([ends_ms.to_be_bytes(), nonce.to_be_bytes()].concat())
}

fn listener(endpoint: &BinValue, note: &BinValue, now_ms: u64) -> Option<LatchListener> {
    let (BinValue::Bytes(endpoint), BinValue::Bytes(note)) = (endpoint, note) else { return None };
    let (endpoint, _) = NoticeEndpoint::split(endpoint)?;
    let (ends_ms, nonce) = note.split_first_chunk()?;
    let nonce = u64::from_be_bytes(nonce.try_into().ok()?);
    let has_ended = u64::from_be_bytes(*ends_ms).saturating_add(ENDED_FOR_MS) < now_ms;
    if has_ended { None } else { Some(LatchListener { endpoint, nonce }) }
}

impl AerospikeLatches {
    pub(super) fn new(client: Arc<Client>, suffix: &str) -> AerospikeLatches {
        AerospikeLatches { client, suffix: suffix.to_owned(), steps: Steps::default() }
    }

    fn roster_of(&self, name: &LatchName, keys: &LatchKeys, by: Deadline) -> Result<Roster> {
        let bins = [keys.count.as_str(), &keys.steps, &keys.due];
        let found = self.client.read_with_collections(&keys.record_key, &bins, by)?;
        let found = found.filter(|found| found.int(&keys.count).is_some()).ok_or_else(|| not_found(name))?;
        let mut arrived: Vec<String> = match found.bin(&keys.steps) {
            Some(BinValue::Map(steps)) => {
                steps.iter().filter_map(|(key, _)| text(key)).map(Into::into).collect()
            }
            _ => Vec::new(),
        };
        arrived.sort();
        let mut pending: Vec<String> = due_in(&found, keys).map(Into::into).collect();
        pending.retain(|name| arrived.binary_search(name).is_err());
        Ok(Roster { pending, arrived })
    }

    /// Refuses a step of somebody whom the latch does not expect, while it waits for named participants. No request of
    /// the step has been sent yet. If the latch is created again meanwhile, the server refuses the step.
    fn refuse_unexpected(&self, step: &Step<'_>, keys: &LatchKeys, incarnation: &Incarnation) -> Result<()> {
        let is_due = |name: &str| incarnation.due.contains(name);
        if incarnation.due.is_empty() || step.participant.is_some_and(is_due) {
            return Ok(());
        }
        // The incarnation may be an old one.
        let Roster { pending, arrived } = self.roster_of(step.name, keys, step.by)?;
        let has = |names: &[String], name: &str| names.iter().any(|it| it == name);
        match step.participant {
            _ if pending.is_empty() => Ok(()),
            Some(name) if has(&pending, name) || has(&arrived, name) => Ok(()),
            _ => Err(unexpected(step, &pending)),
        }
    }

    /// Ends the incarnation of the farm's count. `next` is the one that follows.
    fn replace(
        &self,
        name: &LatchName,
        next: Option<&NewLatch<'_>>,
        ttl: Duration,
        by: Deadline,
    ) -> Result<()> {
        let keys = LatchKeys::of(name, &self.suffix)?;
        let fresh = OwnerToken::draw()?;
        let mut incarnation = self.incarnation(name, &keys, by)?;
        let is_alone = next.is_none() && self.is_alone(&keys, by)?;
        let steps = match next {
            Some(new) => vec![
                BinOperation::Put(&keys.count, BinValue::Int(new.count)),
                BinOperation::Put(&keys.steps, BinValue::Map(Vec::new())),
                BinOperation::Put(&keys.due, BinValue::List(due_list(new.roster))),
                BinOperation::Put(&keys.made, BinValue::Bytes(fresh.as_bytes().to_vec())),
                BinOperation::Put(LATCH, BinValue::Text(latch_text(name))),
            ],
            None => {
                let own = [keys.count.as_str(), &keys.steps, &keys.due, &keys.made];
                // If another farm creates its count meanwhile, processes that wait poll, and lists do not name the latch.
                let shared = is_alone.then_some([LISTENERS, LATCH]).into_iter().flatten();
                own.into_iter().chain(shared).map(BinOperation::Drop).collect()
            }
        };
        // Other farms may have their counts in the record.
        let ttl_s = if next.is_some() { whole_seconds(ttl) } else { TTL_KEPT };
        let exists = RecordExistsAction::UpdateOnly;
        let mut doubt = Doubt::none(by);
        for _ in 0..ROUNDS {
            let is_it = [When::Has(&keys.count), When::Is(&keys.made, &incarnation.id)];
            let when = Some(When::Both(Box::new(is_it)));
            let write = Write { record_key: &keys.record_key, exists, when, steps: &steps, ttl_s };
            match doubt.ask(|| self.client.write(&write, by)) {
                Ok(Written::Done(_)) => {
                    self.replaced(&keys, &fresh, next);
                    if next.is_none() && !is_alone {
                        self.drop_rest(&keys, by);
                    }
                    return Ok(());
                }
                Ok(_) => {
                    let bins = [keys.count.as_str(), &keys.made];
                    let found = doubt.ask(|| self.client.read(&keys.record_key, &bins, by));
                    let found = found.map_err(|error| doubt.or(error))?;
                    let found = found.filter(|found| found.int(&keys.count).is_some());
                    let id = found.as_ref().and_then(|found| found.bytes(&keys.made));
                    if id == Some(fresh.as_bytes()) {
                        self.replaced(&keys, &fresh, next);
                        return Ok(());
                    }
                    if id == Some(&incarnation.id[..]) {
                        continue;
                    }
                    match &found {
                        // The count is gone, and a late request does not find the incarnation that it names.
                        None if doubt.is_open() && next.is_none() => {
                            self.replaced(&keys, &fresh, next);
                            if !is_alone {
                                self.drop_rest(&keys, by);
                            }
                            return Ok(());
                        }
                        Some(_) if !doubt.is_open() => incarnation = self.incarnation(name, &keys, by)?,
                        _ => return Err(gone(&mut doubt, name)),
                    }
                }
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(contended(name)))
    }

    /// Remembers what a reset has written.
    fn replaced(&self, keys: &LatchKeys, fresh: &OwnerToken, next: Option<&NewLatch<'_>>) {
        match next {
            Some(new) => {
                let due = Arc::new(new.roster.iter().cloned().collect());
                self.steps.made(keys, &Incarnation { id: fresh.as_bytes().to_vec(), due });
            }
            None => self.steps.ended(keys),
        }
    }

    /// Returns whether no other farm has a count in the record.
    fn is_alone(&self, keys: &LatchKeys, by: Deadline) -> Result<bool> {
        let found = self.client.read_many(&[(keys.record_key.clone(), Vec::new())], by)?;
        let found = found.into_iter().next().transpose()?.flatten();
        let mut bins = found.iter().flat_map(|found| &found.bins);
        Ok(!bins.any(|(bin, _)| is_count(bin) && *bin != keys.count))
    }

    /// Deletes what is left of a record if other farms have deleted their counts meanwhile. Java could not create the latch
    /// beside it. If that fails, or comes between a farm's creation and its first read, lists do not name the latch, or what is
    /// left ends with its TTL.
    fn drop_rest(&self, keys: &LatchKeys, by: Deadline) {
        let is_empty = self.is_alone(keys, by);
        let write = Write {
            record_key: &keys.record_key,
            exists: RecordExistsAction::UpdateOnly,
            when: Some(When::Lacks(&keys.count)),
            steps: &[BinOperation::Drop(LISTENERS), BinOperation::Drop(LATCH)],
            ttl_s: TTL_KEPT,
        };
        let dropped =
            is_empty.and_then(|is_empty| is_empty.then(|| self.client.write(&write, by)).transpose());
        if let Err(error) = dropped {
            log::debug!("what is left of a deleted latch stays until its TTL ends: {}", error.chain());
        }
    }

    /// Reads the incarnation of the current count. Writes a new one if the count has none. No request of the change
    /// has been sent yet, so a failure here never leaves it in doubt.
    fn incarnation(&self, name: &LatchName, keys: &LatchKeys, by: Deadline) -> Result<Incarnation> {
        let mut doubt = Doubt::none(by);
        for _ in 0..ROUNDS {
            let bins = [keys.count.as_str(), &keys.made, &keys.due];
            let found = self.client.read_with_collections(&keys.record_key, &bins, by)?;
            let Some(found) = found.filter(|found| found.int(&keys.count).is_some()) else {
                return Err(not_found(name));
            };
            if let Some(id) = found.bytes(&keys.made) {
                let due = Arc::new(due_in(&found, keys).map(str::to_owned).collect());
                let incarnation = Incarnation { id: id.to_vec(), due };
                self.steps.made(keys, &incarnation);
                return Ok(incarnation);
            }
            let drawn = OwnerToken::draw()?;
            // If this request arrives late, it is harmless in a later latch with the same name too.
            let write = Write {
                record_key: &keys.record_key,
                exists: RecordExistsAction::UpdateOnly,
                when: Some(When::HasLacks { has: &keys.count, lacks: &keys.made }),
                steps: &[
                    BinOperation::Put(&keys.made, BinValue::Bytes(drawn.as_bytes().to_vec())),
                    BinOperation::Put(LATCH, BinValue::Text(latch_text(name))),
                ],
                ttl_s: TTL_KEPT,
            };
            if let Err(error) = self.client.write(&write, by)
                && let Err(error) = doubt.go_on(error)
            {
                return Err(self.not_changed(name, error));
            }
        }
        Err(self.not_changed(name, contended(name)))
    }

    /// Converts an error from before the change was sent. The result is never in doubt.
    fn not_changed(&self, name: &LatchName, error: Error) -> Error {
        if !error.is_in_doubt() {
            return error;
        }
        Error::RetriesExhausted {
            store: self.client.uri().to_owned(),
            what: format!(
                "latch {name} was not changed: the incarnation of its count could not be read or written"
            ),
            source: Some(error.into()),
        }
    }
}

/// Returns the mark under `key` in the farm's steps.
fn mark<'a>(found: &'a FoundRecord, keys: &LatchKeys, key: &BinValue) -> Option<&'a BinValue> {
    match found.bin(&keys.steps) {
        Some(BinValue::Map(steps)) => steps.iter().find(|(marked, _)| marked == key).map(|(_, mark)| mark),
        _ => None,
    }
}

/// Returns the text that lists find the latch by.
fn latch_text(name: &LatchName) -> String {
    format!("{}#{}", name.client(), name.id())
}

/// Returns the expected participants as they are stored: sorted.
fn due_list(roster: &[String]) -> Vec<BinValue> {
    let mut due = roster.to_vec();
    due.sort_unstable();
    due.into_iter().map(BinValue::Text).collect()
}

/// Returns the expected participants of the farm.
fn due_in<'a>(found: &'a FoundRecord, keys: &LatchKeys) -> impl Iterator<Item = &'a str> {
    let due = match found.bin(&keys.due) {
        Some(BinValue::List(due)) => due.as_slice(),
        _ => &[],
    };
    due.iter().filter_map(text)
}

/// Adds up the counts of all farms like the Java library. `None` if no farm has a count.
fn sum(found: &FoundRecord) -> Option<i64> {
    let counts = found.bins.iter().filter_map(|(bin, bin_value)| match bin_value {
        BinValue::Int(count) if is_count(bin) => Some(*count),
        _ => None,
    });
    counts.fold(None, |sum: Option<i64>, count| Some(sum.unwrap_or_default().saturating_add(count)))
}

fn text(bin_value: &BinValue) -> Option<&str> {
    match bin_value {
        BinValue::Text(text) => Some(text),
        _ => None,
    }
}

fn not_found(name: &LatchName) -> Error {
    Error::NotFound { name: name.to_string() }
}

/// Returns the error for a change whose latch does not exist. If an answer was lost, it may have been made before the latch
/// ended.
fn gone(doubt: &mut Doubt, name: &LatchName) -> Error {
    if !doubt.is_open() {
        return not_found(name);
    }
    let lost = doubt.or(not_found(name));
    let what =
        format!("a change of latch {name} was not answered, and the latch has ended or was created again");
    Error::InDoubt { what, source: Some(lost.into()) }
}

fn contended(name: &LatchName) -> Error {
    Error::InDoubt { what: format!("latch {name} changed during each of {ROUNDS} tries"), source: None }
}

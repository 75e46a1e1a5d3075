//! Latches: a record each, every change one conditional request.
//!
//! ```text
//! create   unless the farm has a count    count, an empty list of steps, who is expected, its incarnation
//! step     if the farm has a count,       count + 1 or - 1, the step is noted,
//!          of the incarnation that was read,      earlier steps of ours are forgotten
//!          and not noted this step
//! ```
//!
//! * A step is noted under a number of its own, or under the participant's name, in the same change
//!   that counts it: a request that is sent again, or comes late, finds the note and changes nothing.
//! * A step that was answered is forgotten by the next one of this process. One whose answer was lost
//!   is noted for as long as the latch lives: its first request may still be on its way.
//! * The notes go with the latch. So each incarnation of a count has random bytes of its own, which every step
//!   names: one that comes late does not count in a latch that was made anew under the same name. A count
//!   that has none (from Java, or an older version) is given some before its first step.
//! * For the same reason a step of which an answer was lost, and whose latch is then not there or of another
//!   incarnation, is IN_DOUBT: it may have counted before the latch went.
//! * Every change gives the record its whole TTL again. The record is one for all farms, so farms that
//!   use one latch should give it one TTL.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::client::{
    BinOperation, BinValue, Client, FoundRecord, RecordExistsAction, TTL_KEPT, When, Write, Written,
};
use super::keys::{LatchKeys, is_count, whole_seconds};
use super::ready::wait_until_ready;
use crate::error::{Error, Result};
use crate::latch_name::LatchName;
use crate::name::Level;
use crate::owner::OwnerToken;
use crate::store::latch_store::check_participant;
use crate::store::remote::resolve::Doubt;
use crate::store::{LatchStore, NewLatch, Roster, Step, Stepped};
use crate::time::Deadline;

/// Rounds of one change; each needs a lost reply or a peer in between.
const ROUNDS: usize = 16;
/// Steps of one latch that are forgotten with one change.
const FORGOTTEN_AT_ONCE: usize = 32;
/// Latches whose last steps are remembered to be forgotten, and whose incarnations are known. Beyond, a few notes
/// stay in the records, and incarnations are read again.
const REMEMBERED: usize = 4096;

/// The steps that this process has taken.
#[derive(Debug, Default)]
struct Steps {
    /// Half of each step's number: no other process, and no fork of this one, has it.
    process: OnceLock<[u8; 8]>,
    next: AtomicU64,
    /// Answered, and still noted in the latch's record: by its key and the bin of the notes.
    answered: Mutex<HashMap<(String, String), Vec<BinValue>>>,
    /// The incarnations that were read or written last, by the same. An old one is refused by the server.
    incarnations: Mutex<HashMap<(String, String), Vec<u8>>>,
}

impl Steps {
    /// A number that no other step has.
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

    fn incarnation(&self, keys: &LatchKeys) -> Option<Vec<u8>> {
        self.incarnations.lock().get(&key(keys)).cloned()
    }

    fn made(&self, keys: &LatchKeys, incarnation: &[u8]) {
        let mut incarnations = self.incarnations.lock();
        if incarnations.len() >= REMEMBERED {
            incarnations.clear();
        }
        incarnations.insert(key(keys), incarnation.to_vec());
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
    /// Nothing has to be created.
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        wait_until_ready(&self.client, &self.suffix, by)
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        let keys = LatchKeys::of(new.name, &self.suffix)?;
        let made = self.steps.draw()?;
        let mut due: Vec<_> = new.roster.iter().cloned().map(BinValue::Text).collect();
        due.sort_by(|a, b| text(a).cmp(&text(b)));
        let mut doubt = Doubt::none(new.by);
        for _ in 0..ROUNDS {
            // Of each request: one that comes late is of another incarnation.
            let incarnation = OwnerToken::draw()?;
            let steps = [
                BinOperation::Put(&keys.count, BinValue::Int(new.count)),
                BinOperation::Put(&keys.steps, BinValue::Map(vec![(made.clone(), BinValue::Int(0))])),
                BinOperation::Put(&keys.due, BinValue::List(due.clone())),
                BinOperation::Put(&keys.made, BinValue::Bytes(incarnation.as_bytes().to_vec())),
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
                        self.steps.made(&keys, incarnation.as_bytes());
                        self.steps.answered(&keys, made);
                    }
                    return Ok(true);
                }
                Ok(_) if !doubt.is_open() => return Ok(false),
                // Made by a request of ours whose answer was lost, or by someone else.
                Ok(_) => {
                    let bins = [keys.count.as_str(), &keys.steps];
                    let found = doubt.ask(|| self.client.read(&keys.record_key, &bins, new.by));
                    let found = found.map_err(|error| doubt.or(error))?;
                    if let Some(found) = found.filter(|found| found.int(&keys.count).is_some()) {
                        return Ok(note(&found, &keys, &made).is_some());
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
        // Under which key the step is noted, and as what.
        let (noted, note_of) = match step.participant {
            Some(name) => (BinValue::Text(name.to_owned()), number),
            None => (number, BinValue::Int(0)),
        };
        let forget = self.steps.to_forget(&keys);
        let mut steps = vec![
            BinOperation::Add(&keys.count, step.add),
            BinOperation::MapPut(&keys.steps, noted.clone(), note_of.clone()),
        ];
        if !forget.is_empty() {
            steps.push(BinOperation::MapDrop(&keys.steps, forget.clone()));
        }
        steps.push(BinOperation::Tell(&keys.count));
        let (exists, ttl_s) = (RecordExistsAction::UpdateOnly, whole_seconds(step.ttl));
        let mut incarnation = match self.steps.incarnation(&keys) {
            Some(incarnation) => incarnation,
            None => self.incarnation(step, &keys)?,
        };
        let mut doubt = Doubt::none(step.by);
        for _ in 0..ROUNDS {
            let (has, is) = (keys.count.as_str(), (keys.made.as_str(), incarnation.as_slice()));
            let when = When::LacksKey { has, is, map: &keys.steps, key: &noted };
            let write =
                Write { record_key: &keys.record_key, exists, when: Some(when), steps: &steps, ttl_s };
            match doubt.ask(|| self.client.write(&write, step.by)) {
                Ok(Written::Done(count)) => {
                    self.steps.forgotten(&keys, &forget);
                    if !doubt.is_open() && step.participant.is_none() {
                        self.steps.answered(&keys, noted);
                    }
                    return Ok(Stepped::Counted(count));
                }
                Ok(Written::Missing) => return Err(gone(&mut doubt, step.name)),
                Ok(Written::Refused) => {
                    let bins = [keys.count.as_str(), &keys.steps, &keys.made];
                    let found = doubt.ask(|| self.client.read(&keys.record_key, &bins, step.by));
                    let found = found.map_err(|error| doubt.or(error))?;
                    let Some(found) = found.filter(|found| found.int(&keys.count).is_some()) else {
                        return Err(gone(&mut doubt, step.name));
                    };
                    let there = note(&found, &keys, &noted);
                    if there == Some(&note_of) {
                        return Ok(Stepped::Counted(None));
                    }
                    if found.bytes(&keys.made) == Some(&incarnation) {
                        if there.is_some() {
                            return Ok(Stepped::Already);
                        }
                    } else if doubt.is_open() {
                        // It may have counted in the incarnation before.
                        return Err(gone(&mut doubt, step.name));
                    } else {
                        incarnation = self.incarnation(step, &keys)?;
                    }
                }
                // Sent again under the same number it counts once, whichever comes first.
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(contended(step.name)))
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
                // Made a second time, for its error.
                Err(_) => return LatchKeys::of(name, &self.suffix).map(|_| None),
            };
            let record = found.next().expect("one for each that was asked for")?;
            Ok(record.and_then(|record| match level {
                Level::Dc => record.int(&keys.count),
                Level::Xdc => sum(&record),
            }))
        });
        Ok(counts.collect())
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        let keys = LatchKeys::of(name, &self.suffix)?;
        let found = self.client.read(&keys.record_key, &[&keys.count, &keys.steps, &keys.due], by)?;
        let found = found.filter(|found| found.int(&keys.count).is_some()).ok_or_else(|| not_found(name))?;
        let mut arrived: Vec<String> = match found.bin(&keys.steps) {
            Some(BinValue::Map(steps)) => {
                steps.iter().filter_map(|(key, _)| text(key)).map(Into::into).collect()
            }
            _ => Vec::new(),
        };
        arrived.sort();
        let due = match found.bin(&keys.due) {
            Some(BinValue::List(due)) => due.as_slice(),
            _ => &[],
        };
        let mut pending: Vec<String> = due.iter().filter_map(text).map(Into::into).collect();
        pending.retain(|name| arrived.binary_search(name).is_err());
        Ok(Roster { pending, arrived })
    }
}

impl AerospikeLatches {
    pub(super) fn new(client: Arc<Client>, suffix: &str) -> AerospikeLatches {
        AerospikeLatches { client, suffix: suffix.to_owned(), steps: Steps::default() }
    }

    /// The incarnation of the count that is there now: read, or given to one that has none. Nothing of the step is
    /// under way, so that no failure here is a doubt about it.
    fn incarnation(&self, step: &Step<'_>, keys: &LatchKeys) -> Result<Vec<u8>> {
        let mut doubt = Doubt::none(step.by);
        for _ in 0..ROUNDS {
            let found = self.client.read(&keys.record_key, &[&keys.count, &keys.made], step.by)?;
            let Some(found) = found.filter(|found| found.int(&keys.count).is_some()) else {
                return Err(not_found(step.name));
            };
            if let Some(incarnation) = found.bytes(&keys.made) {
                self.steps.made(keys, incarnation);
                return Ok(incarnation.to_vec());
            }
            let drawn = OwnerToken::draw()?;
            // In a later latch of the name this does no harm either.
            let write = Write {
                record_key: &keys.record_key,
                exists: RecordExistsAction::UpdateOnly,
                when: Some(When::HasLacks { has: &keys.count, lacks: &keys.made }),
                steps: &[BinOperation::Put(&keys.made, BinValue::Bytes(drawn.as_bytes().to_vec()))],
                ttl_s: TTL_KEPT,
            };
            if let Err(error) = self.client.write(&write, step.by)
                && let Err(error) = doubt.go_on(error)
            {
                return Err(self.not_counted(step.name, error));
            }
        }
        Err(self.not_counted(step.name, contended(step.name)))
    }

    /// `error`, of a step that was not sent yet.
    fn not_counted(&self, name: &LatchName, error: Error) -> Error {
        if !error.is_in_doubt() {
            return error;
        }
        Error::RetriesExhausted {
            store: self.client.place().to_owned(),
            what: format!("latch {name} was not counted: what it was made with could not be read"),
            source: Some(error.into()),
        }
    }
}

/// What is noted under `key` among the farm's steps.
fn note<'a>(found: &'a FoundRecord, keys: &LatchKeys, key: &BinValue) -> Option<&'a BinValue> {
    match found.bin(&keys.steps) {
        Some(BinValue::Map(steps)) => steps.iter().find(|(noted, _)| noted == key).map(|(_, note)| note),
        _ => None,
    }
}

/// As the Java library adds up; `None` where no farm has a count.
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

/// The latch that was to be counted is not there. Where an answer was lost, the step may have counted before
/// it went.
fn gone(doubt: &mut Doubt, name: &LatchName) -> Error {
    if !doubt.is_open() {
        return not_found(name);
    }
    let lost = doubt.or(not_found(name));
    let what = format!("a step of latch {name} was not answered, and by now the latch is gone or made anew");
    Error::InDoubt { what, source: Some(lost.into()) }
}

fn contended(name: &LatchName) -> Error {
    Error::InDoubt { what: format!("latch {name} changed under each of {ROUNDS} looks at it"), source: None }
}

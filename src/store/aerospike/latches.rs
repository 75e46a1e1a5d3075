//! Latches: a record each, every change one conditional request.
//!
//! ```text
//! create   unless the farm has a count    count, an empty list of steps, who is expected, its making
//! step     if the farm has a count,       count + 1 or - 1, the step is noted,
//!          of the making that was read,      earlier steps of ours are forgotten
//!          and not noted this step
//! ```
//!
//! * A step is noted under a number of its own, or under the participant's name, in the same change
//!   that counts it: a request that is sent again, or comes late, finds the note and changes nothing.
//! * A step that was answered is forgotten by the next one of this process. One whose answer was lost
//!   is noted for as long as the latch lives: its first request may still be on its way.
//! * The notes go with the latch. So each making of a count has random bytes of its own, which every step
//!   names: one that comes late does not count in a latch that was made anew under the same name. A count
//!   that has none (from Java, or an older version) is given some before its first step.
//! * For the same reason a step of which an answer was lost, and whose latch is then not there or of another
//!   making, is IN_DOUBT: it may have counted before the latch went.
//! * Every change gives the record its whole TTL again. The record is one for all farms, so farms that
//!   use one latch should give it one TTL.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::client::{Change, Datum, Exists, Found, TTL_KEPT, When, Write, Written};
use super::place::{LatchPlace, is_count, whole_seconds};
use super::{AerospikeStore, ROUNDS};
use crate::error::{Error, Result};
use crate::store::doubt::Doubt;
use crate::store::latch_record::check_participant;
use crate::store::{LatchName, LatchStore, Level, NewLatch, OwnerToken, Roster, Step, Stepped};
use crate::time::Deadline;

/// Steps of one latch that are forgotten with one change.
const FORGOTTEN_AT_ONCE: usize = 32;
/// Latches whose last steps are remembered to be forgotten, and whose makings are known. Beyond, a few notes
/// stay in the records, and makings are read again.
const REMEMBERED: usize = 4096;

/// The steps that this process has taken.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Half of each step's number: no other process, and no fork of this one, has it.
    process: OnceLock<[u8; 8]>,
    next: AtomicU64,
    /// Answered, and still noted in the latch's record: by its key and the bin of the notes.
    answered: Mutex<HashMap<(String, String), Vec<Datum>>>,
    /// The makings that were read or written last, by the same. An old one is refused by the server.
    makings: Mutex<HashMap<(String, String), Vec<u8>>>,
}

impl Steps {
    /// A number that no other step has.
    fn draw(&self) -> Result<Datum> {
        let process = match self.process.get() {
            Some(process) => process,
            None => {
                let drawn = OwnerToken::draw()?;
                let half = drawn.as_bytes().first_chunk().expect("a token is longer than that");
                self.process.get_or_init(|| *half)
            }
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(Datum::Bytes([process.as_slice(), &number.to_be_bytes()].concat()))
    }

    fn to_forget(&self, place: &LatchPlace) -> Vec<Datum> {
        let answered = self.answered.lock();
        let steps = answered.get(&key(place)).map_or(&[][..], Vec::as_slice);
        steps.iter().take(FORGOTTEN_AT_ONCE).cloned().collect()
    }

    fn forgotten(&self, place: &LatchPlace, forgotten: &[Datum]) {
        let mut answered = self.answered.lock();
        if let Some(steps) = answered.get_mut(&key(place)) {
            steps.retain(|step| !forgotten.contains(step));
            if steps.is_empty() {
                answered.remove(&key(place));
            }
        }
    }

    fn answered(&self, place: &LatchPlace, step: Datum) {
        let mut answered = self.answered.lock();
        if answered.len() >= REMEMBERED {
            answered.clear();
        }
        answered.entry(key(place)).or_default().push(step);
    }

    fn making(&self, place: &LatchPlace) -> Option<Vec<u8>> {
        self.makings.lock().get(&key(place)).cloned()
    }

    fn made(&self, place: &LatchPlace, making: &[u8]) {
        let mut makings = self.makings.lock();
        if makings.len() >= REMEMBERED {
            makings.clear();
        }
        makings.insert(key(place), making.to_vec());
    }
}

fn key(place: &LatchPlace) -> (String, String) {
    (place.spot.key.clone(), place.steps.clone())
}

impl LatchStore for AerospikeStore {
    /// Nothing has to be created.
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        super::LockStore::initialize(self, by)
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        let place = LatchPlace::of(new.name, &self.suffix)?;
        let made = self.steps.draw()?;
        let mut due: Vec<_> = new.roster.iter().cloned().map(Datum::Text).collect();
        due.sort_by(|a, b| text(a).cmp(&text(b)));
        let mut doubt = Doubt::none(new.by);
        for _ in 0..ROUNDS {
            // Of each request: one that comes late is another making.
            let making = OwnerToken::draw()?;
            let steps = [
                Change::Put(&place.count, Datum::Int(new.count)),
                Change::Put(&place.steps, Datum::Map(vec![(made.clone(), Datum::Int(0))])),
                Change::Put(&place.due, Datum::List(due.clone())),
                Change::Put(&place.made, Datum::Bytes(making.as_bytes().to_vec())),
            ];
            let write = Write {
                spot: &place.spot,
                exists: Exists::May,
                when: Some(When::Lacks(&place.count)),
                steps: &steps,
                ttl_s: whole_seconds(new.ttl),
            };
            match doubt.ask(|| self.client.write(&write, new.by)) {
                Ok(Written::Done(_)) => {
                    if !doubt.is_open() {
                        self.steps.made(&place, making.as_bytes());
                        self.steps.answered(&place, made);
                    }
                    return Ok(true);
                }
                Ok(_) if !doubt.is_open() => return Ok(false),
                // Made by a request of ours whose answer was lost, or by someone else.
                Ok(_) => {
                    let bins = [place.count.as_str(), &place.steps];
                    let found = doubt.ask(|| self.client.read(&place.spot, &bins, new.by));
                    let found = found.map_err(|error| doubt.or(error))?;
                    if let Some(found) = found.filter(|found| found.int(&place.count).is_some()) {
                        return Ok(note(&found, &place, &made).is_some());
                    }
                }
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(restless(new.name)))
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        if let Some(name) = step.participant {
            check_participant(name)?;
        }
        let place = LatchPlace::of(step.name, &self.suffix)?;
        let number = self.steps.draw()?;
        // Under which key the step is noted, and as what.
        let (noted, note_of) = match step.participant {
            Some(name) => (Datum::Text(name.to_owned()), number),
            None => (number, Datum::Int(0)),
        };
        let forget = self.steps.to_forget(&place);
        let mut steps = vec![
            Change::Add(&place.count, step.add),
            Change::MapPut(&place.steps, noted.clone(), note_of.clone()),
        ];
        if !forget.is_empty() {
            steps.push(Change::MapDrop(&place.steps, forget.clone()));
        }
        steps.push(Change::Tell(&place.count));
        let (exists, ttl_s) = (Exists::Must, whole_seconds(step.ttl));
        let mut making = match self.steps.making(&place) {
            Some(making) => making,
            None => self.making(step, &place)?,
        };
        let mut doubt = Doubt::none(step.by);
        for _ in 0..ROUNDS {
            let (has, is) = (place.count.as_str(), (place.made.as_str(), making.as_slice()));
            let when = When::LacksKey { has, is, map: &place.steps, key: &noted };
            let write = Write { spot: &place.spot, exists, when: Some(when), steps: &steps, ttl_s };
            match doubt.ask(|| self.client.write(&write, step.by)) {
                Ok(Written::Done(count)) => {
                    self.steps.forgotten(&place, &forget);
                    if !doubt.is_open() && step.participant.is_none() {
                        self.steps.answered(&place, noted);
                    }
                    return Ok(Stepped::Counted(count));
                }
                Ok(Written::Missing) => return Err(gone(&mut doubt, step.name)),
                Ok(Written::Refused) => {
                    let bins = [place.count.as_str(), &place.steps, &place.made];
                    let found = doubt.ask(|| self.client.read(&place.spot, &bins, step.by));
                    let found = found.map_err(|error| doubt.or(error))?;
                    let Some(found) = found.filter(|found| found.int(&place.count).is_some()) else {
                        return Err(gone(&mut doubt, step.name));
                    };
                    let there = note(&found, &place, &noted);
                    if there == Some(&note_of) {
                        return Ok(Stepped::Counted(None));
                    }
                    if found.bytes(&place.made) == Some(&making) {
                        if there.is_some() {
                            return Ok(Stepped::Already);
                        }
                    } else if doubt.is_open() {
                        // It may have counted in the making before.
                        return Err(gone(&mut doubt, step.name));
                    } else {
                        making = self.making(step, &place)?;
                    }
                }
                // Sent again under the same number it counts once, whichever comes first.
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(restless(step.name)))
    }

    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let places: Vec<_> = asked.iter().map(|(name, _)| LatchPlace::of(name, &self.suffix)).collect();
        let good =
            places.iter().zip(asked).filter_map(|(place, (_, level))| Some((place.as_ref().ok()?, level)));
        let reads: Vec<_> = good
            .map(|(place, level)| match level {
                Level::Dc => (place.spot.clone(), vec![place.count.as_str()]),
                Level::Xdc => (place.spot.clone(), Vec::new()),
            })
            .collect();
        let mut found = self.client.read_many(&reads, by)?.into_iter();
        let counts = places.iter().zip(asked).map(|(place, (name, level))| {
            let place = match place {
                Ok(place) => place,
                // Made a second time, for its error.
                Err(_) => return LatchPlace::of(name, &self.suffix).map(|_| None),
            };
            let record = found.next().expect("one for each that was asked for")?;
            Ok(record.and_then(|record| match level {
                Level::Dc => record.int(&place.count),
                Level::Xdc => sum(&record),
            }))
        });
        Ok(counts.collect())
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        let place = LatchPlace::of(name, &self.suffix)?;
        let found = self.client.read(&place.spot, &[&place.count, &place.steps, &place.due], by)?;
        let found = found.filter(|found| found.int(&place.count).is_some()).ok_or_else(|| not_found(name))?;
        let mut arrived: Vec<String> = match found.bin(&place.steps) {
            Some(Datum::Map(steps)) => {
                steps.iter().filter_map(|(key, _)| text(key)).map(Into::into).collect()
            }
            _ => Vec::new(),
        };
        arrived.sort();
        let due = match found.bin(&place.due) {
            Some(Datum::List(due)) => due.as_slice(),
            _ => &[],
        };
        let mut pending: Vec<String> = due.iter().filter_map(text).map(Into::into).collect();
        pending.retain(|name| arrived.binary_search(name).is_err());
        Ok(Roster { pending, arrived })
    }
}

impl AerospikeStore {
    /// The making of the count that is there now: read, or given to one that has none. Nothing of the step is
    /// under way, so that no failure here is a doubt about it.
    fn making(&self, step: &Step<'_>, place: &LatchPlace) -> Result<Vec<u8>> {
        let mut doubt = Doubt::none(step.by);
        for _ in 0..ROUNDS {
            let found = self.client.read(&place.spot, &[&place.count, &place.made], step.by)?;
            let Some(found) = found.filter(|found| found.int(&place.count).is_some()) else {
                return Err(not_found(step.name));
            };
            if let Some(making) = found.bytes(&place.made) {
                self.steps.made(place, making);
                return Ok(making.to_vec());
            }
            let drawn = OwnerToken::draw()?;
            // In a later latch of the name this does no harm either.
            let write = Write {
                spot: &place.spot,
                exists: Exists::Must,
                when: Some(When::HasLacks { has: &place.count, lacks: &place.made }),
                steps: &[Change::Put(&place.made, Datum::Bytes(drawn.as_bytes().to_vec()))],
                ttl_s: TTL_KEPT,
            };
            if let Err(error) = self.client.write(&write, step.by)
                && let Err(error) = doubt.go_on(error)
            {
                return Err(self.not_counted(step.name, error));
            }
        }
        Err(self.not_counted(step.name, restless(step.name)))
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
fn note<'a>(found: &'a Found, place: &LatchPlace, key: &Datum) -> Option<&'a Datum> {
    match found.bin(&place.steps) {
        Some(Datum::Map(steps)) => steps.iter().find(|(noted, _)| noted == key).map(|(_, note)| note),
        _ => None,
    }
}

/// As the Java library adds up; `None` where no farm has a count.
fn sum(found: &Found) -> Option<i64> {
    let counts = found.bins.iter().filter_map(|(bin, datum)| match datum {
        Datum::Int(count) if is_count(bin) => Some(*count),
        _ => None,
    });
    counts.fold(None, |sum: Option<i64>, count| Some(sum.unwrap_or_default().saturating_add(count)))
}

fn text(datum: &Datum) -> Option<&str> {
    match datum {
        Datum::Text(text) => Some(text),
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

fn restless(name: &LatchName) -> Error {
    Error::InDoubt { what: format!("latch {name} changed under each of {ROUNDS} looks at it"), source: None }
}

//! The mode register of the layout `own`: which changes are sent, and what follows a refusal.
//!
//! Threads of this process that read or leave one lock at the same time do so in one change: see [`gatherings`](super::gatherings).
//!
//! A change is guessed from what this process last saw of the row, and the row is read in the same request. So a guess that was
//! wrong costs one more request, and one that was right costs one.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::gatherings::{Joined, Left, Unanswered};
use super::own_row::{IntentCell, OwnRow, intent};
use super::requests::{self, HoldStep, HoldsStep, NewMember, Passing};
use super::{HbaseOwnStore, TRIES, checked};
use crate::error::{Error, Result};
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::random;
use crate::runtime::time::Deadline;
use crate::store::hbase::cell_store::{Durability, RENEW_PARTS};
use crate::store::hbase::locks::LAZY_RELEASE_TTL;
use crate::store::hbase::own_store::{LockRowChange, LockRowChanged, LockRowStep, NumberTest};
use crate::store::hbase::row_hints::{BaseSeen, RowHint, WaitNumber};
use crate::store::hbase::row_keys::lock_row;
use crate::store::remote::{
    ChangeMode, Found, Join, ModeRegister, NotChanged, Record, Reply, Settled, StoredHolds,
};
use crate::store::{INTENT_MAX, Intent, IntentId};

impl HbaseOwnStore {
    pub(super) fn read_row(&self, row: &[u8], by: Deadline) -> Result<OwnRow> {
        let read = OwnRow::of(self.cells.read_cells(row, by)?);
        self.saw(row, &read);
        Ok(read)
    }

    pub(super) fn saw(&self, row: &[u8], read: &OwnRow) {
        self.hints.saw(row, read.number, read.readers().map(Record::ttl));
        self.hints.saw_permits(row, read.permits_seen());
        self.hints.saw_free(row, read.free.iter().map(|(place, _)| *place));
        self.hints.saw_waits(row, &read.waits);
    }

    /// Chooses a place of which nothing is known but what was last seen.
    fn guess_place(&self, row: &[u8]) -> u8 {
        self.hints.take_free(row, draw).unwrap_or_else(|| draw(256) as u8)
    }

    /// Sends the steps, and reads the row in the same request. Returns the position of the step that was made, or the row.
    pub(super) fn make(
        &self,
        row: &[u8],
        steps: Vec<LockRowStep>,
        parts: u32,
        by: Deadline,
    ) -> Result<Settled<usize, OwnRow>> {
        let change = LockRowChange { row, steps, reads: true, durability: Durability::Sync, parts };
        let read = match self.cells.change(&change, by)? {
            LockRowChanged::Made(step, _) => return Ok(Settled::Yes(step)),
            LockRowChanged::Refused(Some(cells)) => {
                let read = OwnRow::of(cells);
                self.saw(row, &read);
                read
            }
            LockRowChanged::Refused(None) => {
                self.counters.read_after_refusal();
                self.read_row(row, by)?
            }
        };
        Ok(Settled::No(read))
    }

    pub(super) fn made(&self, row: &[u8], step: &LockRowStep, base_ttl: Option<Duration>) {
        self.used.remember(row);
        self.hints.saw(row, Some(step.number), base_ttl);
    }

    /// Adds holds to one lock, all in one step. They differ in their records only. Returns an answer for each.
    fn try_to_join(&self, joins: &[Join<'_>], by: Deadline) -> Result<Vec<Joined>> {
        let Some(first) = joins.first() else { return Ok(Vec::new()) };
        let row = &lock_row(first.name);
        let hint = self.hints.seen(row);
        let places: Vec<_> = joins.iter().map(|_| self.hints.take(row)).collect();
        let answers = self.join_at(row, joins, hint.as_ref(), &places, by);
        let took = answers.iter().flatten().filter_map(|answer| match answer {
            Joined::Yes(record) => record.place(),
            Joined::No(_) => None,
        });
        self.give_back(row, &places, &took.collect::<Vec<_>>());
        answers
    }

    /// Places that were not taken are free for the next holds of this process.
    fn give_back(&self, row: &[u8], places: &[Option<u8>], took: &[u8]) {
        for place in places.iter().flatten().filter(|place| !took.contains(place)) {
            self.hints.left(row, *place);
        }
    }

    /// `places`: for each hold one that this process has left.
    fn join_at(
        &self,
        row: &[u8],
        joins: &[Join<'_>],
        hint: Option<&RowHint>,
        places: &[Option<u8>],
        by: Deadline,
    ) -> Result<Vec<Joined>> {
        let refused = |holder: &Holder| joins.iter().map(|_| Settled::No(holder.clone())).collect();
        let mut planned = match hint {
            Some(hint) => Ok((self.guesses(row, hint, joins, places), None)),
            None => plan(self.read_row(row, by)?, joins, places),
        };
        let mut seen = None;
        for _ in 0..TRIES {
            let (steps, full) = match planned {
                Ok(planned) => planned,
                Err(holder) => return Ok(refused(&holder)),
            };
            let sent = steps.iter().map(|step| step.step.clone()).collect();
            let read = match self.make(row, sent, 1, by)? {
                Settled::Yes(at) => {
                    let made = &steps[at];
                    if made.step.condition.number == NumberTest::Absent {
                        self.counters.fence_seeded();
                    }
                    self.made(row, &made.step, made.base_ttl);
                    // Those for which there was no place are refused.
                    let rest = joins.iter().skip(made.records.len()).filter_map(|_| full.clone());
                    let joined = made.records.iter().cloned().map(Settled::Yes);
                    return Ok(joined.chain(rest.map(Settled::No)).collect());
                }
                Settled::No(read) => read,
            };
            seen = read.stored.holds.first().map(Found::holder).or(seen);
            let stored: Vec<_> = joins.iter().map(|join| read.stored.own(join.record).cloned()).collect();
            // The server ran an earlier copy of this request.
            if stored.iter().any(Option::is_some) {
                let other = || Settled::No(seen.clone().unwrap_or_else(Holder::unknown));
                return Ok(stored.into_iter().map(|own| own.map_or_else(other, Settled::Yes)).collect());
            }
            planned = plan(read, joins, places);
        }
        // Others have come and gone in between each time. Who waits asks again later.
        Ok(refused(&seen.unwrap_or_else(|| Holder::unknown().with_mode(Mode::Shared))))
    }

    /// Returns the changes that would add the holds to the row as it was last seen.
    fn guesses(
        &self,
        row: &[u8],
        hint: &RowHint,
        joins: &[Join<'_>],
        places: &[Option<u8>],
    ) -> Vec<HoldsStep> {
        let mut taken: Vec<u8> = places.iter().flatten().copied().collect();
        let guesses = joins.iter().zip(places).map(|(join, place)| {
            let place = place.unwrap_or_else(|| {
                let mut place = self.guess_place(row);
                while taken.contains(&place) {
                    place = place.wrapping_add(1);
                }
                taken.push(place);
                place
            });
            guesses(hint, join, place)
        });
        requests::join_together(&guesses.collect::<Vec<_>>())
    }

    pub(super) fn contended(&self, name: &LockName) -> Error {
        let what = format!("the holders of lock {name} changed during each of {TRIES} tries");
        Error::RetriesExhausted { store: self.cells.describe(), what, source: None }
    }

    fn try_to_change(&self, change: &ChangeMode<'_>, by: Deadline) -> Result<Settled<Record, NotChanged>> {
        checked(change.record.ttl())?;
        let row = &lock_row(change.name);
        let Some(number) = change.held.number() else { return Ok(Settled::No(NotChanged::NotStored)) };
        let steps_down = change.held.mode() == Mode::Exclusive;
        let place = steps_down.then(|| self.hints.take(row)).flatten();
        let answer = self.change_at(row, number, change, place, by);
        let took = match &answer {
            Ok(Settled::Yes(record)) => record.place(),
            _ => None,
        };
        self.give_back(row, &[place], took.as_slice());
        answer
    }

    /// `place`: one that this process has left, for a hold that was exclusive.
    fn change_at(
        &self,
        row: &[u8],
        number: u64,
        change: &ChangeMode<'_>,
        place: Option<u8>,
        by: Deadline,
    ) -> Result<Settled<Record, NotChanged>> {
        let seen = self.hints.base(row, number, change.held.ttl());
        let steps_down = change.held.mode() == Mode::Exclusive;
        let guess = steps_down.then(|| place.unwrap_or_else(|| self.guess_place(row)));
        let guess = guess.map(|place| (place, change.record.ttl()));
        let wait = self.waits.number(change.intent);
        let mut step = change_of((change, wait), Some(seen), guess, &[]);
        for _ in 0..TRIES {
            let Some(sent) = step else { return Ok(Settled::No(NotChanged::NotStored)) };
            let read = match self.make(row, vec![sent.step.clone()], RENEW_PARTS, by)? {
                Settled::Yes(_) => {
                    self.made(row, &sent.step, sent.base_ttl);
                    let changed = sent.record;
                    self.end_wait(row, change.intent.filter(|_| changed.mode() == Mode::Exclusive));
                    self.left(row, change.held, &changed);
                    return Ok(Settled::Yes(changed));
                }
                Settled::No(read) => read,
            };
            if read.stored.own(change.record).is_some() || read.stored.own(change.held) != Some(change.held) {
                return Ok(Settled::No(NotChanged::NotStored));
            }
            step = match changes(&read, (change, wait), place) {
                Ok(step) => step,
                Err(holder) => return Ok(Settled::No(NotChanged::Held(*holder))),
            };
        }
        Err(self.contended(change.name))
    }

    /// Remembers the place of a record that another one has replaced elsewhere.
    fn left(&self, row: &[u8], held: &Record, changed: &Record) {
        if let Some(place) = held.place().filter(|place| changed.place() != Some(*place)) {
            self.hints.left(row, place);
        }
    }

    /// Renews a hold that others go beside.
    pub(super) fn renew_beside(
        &self,
        name: &LockName,
        stored: &Record,
        renewed: &Record,
        by: Deadline,
    ) -> Reply {
        let Some(number) = stored.number() else { return Reply::No(None) };
        let row = &lock_row(name);
        let seen = self.hints.base(row, number, stored.ttl());
        let answer = checked(renewed.ttl())
            .and_then(|()| self.make(row, vec![requests::renew(stored, renewed, seen)], RENEW_PARTS, by));
        Reply::of(answer, |settled| match settled {
            Settled::Yes(_) => {
                self.hints.saw(row, Some(number), Some(seen.1.max(renewed.ttl())));
                Reply::Yes(())
            }
            Settled::No(read) => Reply::No(Some(read.standing_of(stored))),
        })
    }

    /// Releases a hold that others go beside, together with those that other threads release.
    pub(super) fn release_beside(&self, name: &LockName, stored: &Record, by: Deadline) -> Reply {
        // The record of a hold without an answer. It cannot be stored: a stored record has its number.
        let (Some(number), Some(_)) = (stored.number(), stored.place()) else { return Reply::No(None) };
        let row = lock_row(name);
        let sent = self.leaving.send(&(name.clone(), number), stored.clone(), by, |records, by| {
            self.leave(&row, number, records, by)
        });
        Reply::of(self.answer_of(sent), |left| match left {
            Settled::Yes(()) => Reply::Yes(()),
            Settled::No(standing) => Reply::No(standing),
        })
    }

    /// Releases holds of one number in one step. Returns an answer for each.
    fn leave(&self, row: &[u8], number: u64, records: &[Record], by: Deadline) -> Vec<Result<Left>> {
        let is_lazy = records.iter().all(|record| record.ttl() <= LAZY_RELEASE_TTL);
        let durability = if is_lazy { Durability::Async } else { Durability::Sync };
        let steps = requests::release_together(records, number);
        let change = LockRowChange { row, steps, reads: true, durability, parts: 1 };
        match (self.cells.change(&change, by), records) {
            (Ok(LockRowChanged::Made(step, cells)), _) => {
                let places = records.iter().filter_map(Record::place);
                places.for_each(|place| self.hints.left(row, place));
                if step == 0 {
                    self.hints.saw(row, Some(number), None);
                } else if let Some(cells) = cells {
                    self.free_deserted(row, &OwnRow::of(cells), durability, by);
                }
                records.iter().map(|_| Ok(Settled::Yes(()))).collect()
            }
            (Ok(LockRowChanged::Refused(cells)), [record]) => {
                vec![Ok(Settled::No(cells.map(|cells| OwnRow::of(cells).standing_of(record))))]
            }
            // One of them is over.
            (Ok(LockRowChanged::Refused(_)), _) => records
                .iter()
                .flat_map(|record| self.leave(row, number, slice::from_ref(record), by))
                .collect(),
            (Err(error), _) => to_each(Err(error), records.len()),
        }
    }

    /// Returns the answer to a request that may have been sent with those of others.
    fn answer_of<T>(&self, sent: Result<Result<T>, Unanswered>) -> Result<T> {
        sent.unwrap_or_else(|none| {
            Err(match none {
                Unanswered::NotSent => Error::RetriesExhausted {
                    store: self.cells.describe(),
                    what: "a request of another thread for the same lock took all the time".into(),
                    source: None,
                },
                Unanswered::Panicked => Error::InDoubt {
                    what: "a thread panicked that sent a request for several".into(),
                    source: None,
                },
            })
        })
    }

    /// Frees a lock that has a base and no holds: the last ones left at the same time, or beside records of earlier numbers.
    /// Versions without modes would take it for held until the base ends. Nothing else depends on it, so it is tried once.
    pub(super) fn free_deserted(&self, row: &[u8], read: &OwnRow, durability: Durability, by: Deadline) {
        let Some(step) = requests::free(read) else { return };
        let number = step.number;
        let change = LockRowChange { row, steps: vec![step], reads: false, durability, parts: 1 };
        if matches!(self.cells.change(&change, by), Ok(LockRowChanged::Made(..))) {
            self.hints.saw(row, Some(number), None);
        }
    }

    /// A grant has ended this wait. Its number is free for the next one of this process.
    pub(super) fn end_wait(&self, row: &[u8], intent: Option<IntentId>) {
        if let Some(number) = self.waits.granted(intent) {
            self.hints.ended_wait(row, number);
        }
    }
}

/// Returns the changes that add the holds to the row that was read, or what stands in their way. If there are too few places,
/// the changes are for the first holds only, and what stands in the way of the others is returned as well.
fn plan(
    mut read: OwnRow,
    joins: &[Join<'_>],
    places: &[Option<u8>],
) -> Result<(Vec<HoldsStep>, Option<Holder>), Box<Holder>> {
    let (mut steps, mut full) = (Vec::new(), None);
    for (join, place) in joins.iter().zip(places) {
        match requests::join(&read, join, *place, draw) {
            Ok(of_one) => {
                read.chosen.extend(of_one.iter().filter_map(|step| step.record.place()));
                steps.push(of_one);
            }
            Err(holder) if steps.is_empty() => return Err(holder),
            Err(holder) => {
                full = Some(*holder);
                break;
            }
        }
    }
    Ok((requests::join_together(&steps), full))
}

/// Returns the changes that would add the hold to the row as it was last seen.
fn guesses(hint: &RowHint, join: &Join<'_>, place: u8) -> Vec<HoldStep> {
    let place = (place, join.record.ttl());
    let passing = match join.turn {
        None => vec![(Passing::None, None)],
        Some(Duration::ZERO) => vec![(Passing::All, None)],
        // A turn that lasts is not prolonged.
        turn => vec![(Passing::InTurn, None), (Passing::All, turn)],
    };
    let guesses = passing.iter().flat_map(|(passing, turn)| {
        let new = NewMember { record: join.record, place, turn: *turn, passing, leftovers: &[] };
        let joins = hint.base_ttl.map(|ttl| new.joins((hint.number, ttl)));
        let begins = new.begins(join.least.max(hint.number.saturating_add(1)));
        joins.into_iter().chain([begins])
    });
    guesses.collect()
}

/// Returns the change for the row that was read, whose record of the hold is the expected one; who else holds the lock if that
/// stands in the way; `None` if the hold has no base.
fn changes(
    read: &OwnRow,
    (change, wait): (&ChangeMode<'_>, Option<WaitNumber>),
    preferred: Option<u8>,
) -> Result<Option<HoldStep>, Box<Holder>> {
    let modes = [change.held.mode(), change.record.mode()];
    // To step down, others are in the way too if they are of an unknown kind.
    let in_the_way = read.stored.hold_against(change.record.mode(), Some(change.held));
    if let Some(holder) = in_the_way.filter(|_| modes.contains(&Mode::Exclusive)) {
        return Err(holder.into());
    }
    let seen = read.number.zip(read.readers().map(Record::ttl));
    let place = read.free_place(change.record.ttl(), preferred, draw);
    if place.is_none() && change.held.mode() == Mode::Exclusive {
        // All places have records of earlier numbers.
        return Err(Holder::unknown().into());
    }
    Ok(change_of((change, wait), seen, place, &read.leftovers))
}

/// `seen`: the base, which a hold that is not exclusive needs. `place`: for one that was exclusive.
fn change_of(
    (change, wait): (&ChangeMode<'_>, Option<WaitNumber>),
    seen: Option<BaseSeen>,
    place: Option<(u8, Duration)>,
    leftovers: &[(Vec<u8>, Vec<u8>)],
) -> Option<HoldStep> {
    let ChangeMode { held, record, least, .. } = *change;
    match (held.mode(), record.mode()) {
        (Mode::Exclusive, _) => requests::step_down(held, record, place?, least, leftovers),
        (_, Mode::Exclusive) => Some(requests::upgrade(held, record, seen?, (least, wait), leftovers)),
        _ => requests::share(held, record, seen?),
    }
}

/// Gives each thread its answer, or the error of all.
fn to_each<T>(answers: Result<Vec<T>>, count: usize) -> Vec<Result<T>> {
    match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(error) if count == 1 => vec![Err(error)],
        Err(error) => {
            let error = Arc::new(error);
            (0..count).map(|_| Err(Error::shared(&error))).collect()
        }
    }
}

/// Draws one of so many. Any will do, so a machine without random numbers gets the first.
fn draw(choices: usize) -> usize {
    random::secret_number().map_or(0, |number| number as usize % choices.max(1))
}

impl ModeRegister for HbaseOwnStore {
    fn join(&self, join: &Join<'_>, by: Deadline) -> Reply<Record, Holder> {
        if let Err(error) = checked(join.record.ttl()) {
            return Reply::failed(error);
        }
        let send = |requests: &[(Record, u64)], by| {
            let least = requests.iter().map(|(_, least)| *least).max().unwrap_or(join.least);
            let joins = requests.iter().map(|(record, _)| Join { record, least, ..*join });
            to_each(self.try_to_join(&joins.collect::<Vec<_>>(), by), requests.len())
        };
        let request = (join.record.clone(), join.least);
        // Readers differ in their records only, and do not exclude each other.
        let is_alone = join.record.mode() != Mode::Shared || join.nested_in.is_some();
        let sent = match is_alone {
            true => send(&[request], by).pop().ok_or(Unanswered::NotSent),
            false => self.joining.send(&(join.name.clone(), join.turn), request, by, send),
        };
        self.answer_of(sent).into()
    }

    fn joins_together(&self) -> bool {
        true
    }

    fn change_mode(&self, change: &ChangeMode<'_>, by: Deadline) -> Reply<Record, NotChanged> {
        self.try_to_change(change, by).into()
    }

    fn read_holds(&self, name: &LockName, by: Deadline) -> Result<StoredHolds> {
        Ok(self.read_row(&lock_row(name), by)?.stored)
    }

    fn announce(&self, name: &LockName, asked: Intent<'_>, by: Deadline) -> Result<()> {
        let (row, lasts) = (lock_row(name), asked.lasts.clamp(Duration::from_millis(1), INTENT_MAX));
        let choose = || self.hints.begin_wait(&row, draw);
        let (waited, number) = self.waits.announce(&row, asked.id, choose);
        let value = IntentCell { waited, lasts, identity: asked.identity.clone() }.encode();
        self.cells.put_beside(&row, &intent(number), &value, lasts, by)
    }

    fn withdraw(&self, name: &LockName, id: IntentId, by: Deadline) -> Result<()> {
        if let Some(number) = self.waits.to_withdraw(id) {
            let (row, end) = (lock_row(name), requests::end_intent(number));
            self.cells.put_beside(&row, &end.qualifier, &end.value, end.ttl, by)?;
            self.hints.ended_wait(&row, number);
        }
        self.waits.forget(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::names::owner::OwnerToken;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn of_readers_that_come_together_those_are_refused_for_whom_there_is_no_place() {
        let name = LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap();
        let record = |at| Record::of_parts(&OwnerToken::from_bytes([at; OwnerToken::LEN]), LONG, b"");
        let records: Vec<_> = (0..3).map(|at| record(at).placed(Mode::Shared, 0)).collect();
        let join = |record| Join { name: &name, record, least: 0, nested_in: None, turn: None };
        let joins: Vec<_> = records.iter().map(join).collect();
        let planned = |taken: u8| {
            let read = OwnRow { number: Some(7), chosen: (0..=taken).collect(), ..OwnRow::default() };
            plan(read, &joins, &[None; 3])
        };
        let (steps, full) = planned(253).unwrap();
        let places: Vec<_> = steps[0].records.iter().filter_map(Record::place).collect();
        assert!(places == [254, 255] || places == [255, 254], "{places:?}");
        assert!(full.is_some(), "the third one");
        let (steps, full) = planned(252).unwrap();
        assert_eq!((steps[0].records.len(), full.is_some()), (3, false));
        assert!(planned(255).is_err());
    }
}

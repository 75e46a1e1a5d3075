//! The mode register of the layout `own`: which changes are sent, and what follows a refusal.
//!
//! A change is guessed from what this process last saw of the row, and the row is read in the same request. So a guess that was
//! wrong costs one more request, and one that was right costs one.

use std::time::Duration;

use super::own_row::{IntentCell, OwnRow, intent};
use super::requests::{self, HoldStep, NewMember, Passing};
use super::{HbaseOwnStore, TRIES, checked};
use crate::error::{Error, Result};
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::random;
use crate::runtime::time::{Deadline, Moment};
use crate::store::hbase::cell_store::{Durability, RENEW_PARTS};
use crate::store::hbase::layout::FREE;
use crate::store::hbase::locks::LAZY_RELEASE_TTL;
use crate::store::hbase::own_store::{LockRowChange, LockRowChanged, LockRowStep, NumberTest};
use crate::store::hbase::row_hints::{BaseSeen, RowHint};
use crate::store::hbase::row_keys::lock_row;
use crate::store::remote::{
    ChangeMode, Found, Join, ModeRegister, NotChanged, Record, Reply, Settled, StoredHolds,
};
use crate::store::{INTENT_MAX, Intent, IntentId};

/// Most processes whose waits are remembered. Then those that were not announced again lately are forgotten.
const WAITS: usize = 1024;

impl HbaseOwnStore {
    pub(super) fn read_row(&self, row: &[u8], by: Deadline) -> Result<OwnRow> {
        let read = OwnRow::of(self.cells.read_cells(row, by)?);
        self.saw(row, &read);
        Ok(read)
    }

    pub(super) fn saw(&self, row: &[u8], read: &OwnRow) {
        self.hints.saw(row, read.number, read.base.as_ref().map(Record::ttl));
    }

    /// Sends the steps, and reads the row in the same request. Returns the position of the step that was made, or the row.
    fn make(
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

    fn made(&self, row: &[u8], step: &HoldStep) -> Record {
        self.used.remember(row);
        self.hints.saw(row, Some(step.step.number), step.base_ttl);
        step.record.clone()
    }

    fn try_to_join(&self, join: &Join<'_>, by: Deadline) -> Result<Settled<Record, Holder>> {
        checked(join.record.ttl())?;
        let row = &lock_row(join.name);
        let (hint, place) = self.hints.take(row).unzip();
        let place = place.flatten();
        let answer = self.join_at(row, join, hint.as_ref(), place, by);
        let took = match &answer {
            Ok(Settled::Yes(record)) => record.place(),
            _ => None,
        };
        // It is free for the next hold of this process.
        if let Some(place) = place.filter(|place| took != Some(*place)) {
            self.hints.left(row, place);
        }
        answer
    }

    /// `place`: one that this process has left.
    fn join_at(
        &self,
        row: &[u8],
        join: &Join<'_>,
        hint: Option<&RowHint>,
        place: Option<u8>,
        by: Deadline,
    ) -> Result<Settled<Record, Holder>> {
        let mut steps = match hint {
            Some(hint) => guesses(hint, join, place),
            None => match requests::join(&self.read_row(row, by)?, join, place, draw) {
                Ok(steps) => steps,
                Err(holder) => return Ok(Settled::No(*holder)),
            },
        };
        let mut seen = None;
        for _ in 0..TRIES {
            let sent = steps.iter().map(|step| step.step.clone()).collect();
            let read = match self.make(row, sent, 1, by)? {
                Settled::Yes(at) => {
                    if steps[at].step.condition.number == NumberTest::Absent {
                        self.counters.fence_seeded();
                    }
                    return Ok(Settled::Yes(self.made(row, &steps[at])));
                }
                Settled::No(read) => read,
            };
            // The server ran an earlier copy of this request.
            if let Some(stored) = read.stored.own(join.record) {
                return Ok(Settled::Yes(stored.clone()));
            }
            steps = match requests::join(&read, join, place, draw) {
                Ok(steps) => steps,
                Err(holder) => return Ok(Settled::No(*holder)),
            };
            seen = read.stored.holds.first().map(Found::holder).or(seen);
        }
        // Others have come and gone in between each time. Who waits asks again later.
        Ok(Settled::No(seen.unwrap_or_else(|| Holder::unknown().with_mode(Mode::Shared))))
    }

    fn contended(&self, name: &LockName) -> Error {
        let what = format!("the holders of lock {name} changed during each of {TRIES} tries");
        Error::RetriesExhausted { store: self.cells.describe(), what, source: None }
    }

    fn try_to_change(&self, change: &ChangeMode<'_>, by: Deadline) -> Result<Settled<Record, NotChanged>> {
        checked(change.record.ttl())?;
        let row = &lock_row(change.name);
        let Some(number) = change.held.number() else { return Ok(Settled::No(NotChanged::NotStored)) };
        let seen = self.hints.base(row, number, change.held.ttl());
        let place = (draw(256) as u8, change.record.ttl());
        let mut step = change_of(change, Some(seen), Some(place), &[]);
        for _ in 0..TRIES {
            let Some(sent) = step else { return Ok(Settled::No(NotChanged::NotStored)) };
            let read = match self.make(row, vec![sent.step.clone()], RENEW_PARTS, by)? {
                Settled::Yes(_) => {
                    let changed = self.made(row, &sent);
                    self.forget_wait(change.intent.filter(|_| changed.mode() == Mode::Exclusive));
                    self.left(row, change.held, &changed);
                    return Ok(Settled::Yes(changed));
                }
                Settled::No(read) => read,
            };
            if read.stored.own(change.record).is_some() || read.stored.own(change.held) != Some(change.held) {
                return Ok(Settled::No(NotChanged::NotStored));
            }
            step = match changes(&read, change) {
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

    /// Releases a hold that others go beside.
    pub(super) fn release_beside(&self, name: &LockName, stored: &Record, by: Deadline) -> Reply {
        // The record of a hold without an answer. It cannot be stored: a stored record has its number.
        let (Some(number), Some(place)) = (stored.number(), stored.place()) else { return Reply::No(None) };
        let row = &lock_row(name);
        let durability = if stored.ttl() <= LAZY_RELEASE_TTL { Durability::Async } else { Durability::Sync };
        let steps = requests::release(stored, number);
        let change = LockRowChange { row, steps, reads: true, durability, parts: 1 };
        Reply::of(self.cells.change(&change, by), |changed| match changed {
            LockRowChanged::Made(step, cells) => {
                self.hints.left(row, place);
                if step == 0 {
                    self.hints.saw(row, Some(number), None);
                } else if let Some(cells) = cells {
                    self.free_deserted(row, &OwnRow::of(cells), durability, by);
                }
                Reply::Yes(())
            }
            LockRowChanged::Refused(cells) => {
                Reply::No(cells.map(|cells| OwnRow::of(cells).standing_of(stored)))
            }
        })
    }

    /// Frees a lock that has a base and no holds: the last ones left at the same time, or beside records of earlier numbers.
    /// Versions without modes would take it for held until the base ends. Nothing else depends on it, so it is tried once.
    fn free_deserted(&self, row: &[u8], read: &OwnRow, durability: Durability, by: Deadline) {
        let Some(step) = requests::free(read) else { return };
        let number = step.number;
        let change = LockRowChange { row, steps: vec![step], reads: false, durability, parts: 1 };
        if matches!(self.cells.change(&change, by), Ok(LockRowChanged::Made(..))) {
            self.hints.saw(row, Some(number), None);
        }
    }

    /// Forgets when a wait began that is over.
    pub(super) fn forget_wait(&self, intent: Option<IntentId>) {
        if let Some(id) = intent {
            self.waits.lock().remove(&id.0);
        }
    }

    /// Returns how long the process has announced this wait, and remembers that it did so now.
    fn waited(&self, id: IntentId) -> Duration {
        let (now, mut waits) = (Moment::now(), self.waits.lock());
        if waits.len() >= WAITS {
            waits.retain(|_, (_, last)| now.since(*last) <= 2 * INTENT_MAX);
        }
        let (first, last) = waits.entry(id.0).or_insert((now, now));
        *last = now;
        now.since(*first)
    }
}

/// Returns the changes that would add the hold to the row as it was last seen.
fn guesses(hint: &RowHint, join: &Join<'_>, place: Option<u8>) -> Vec<HoldStep> {
    let place = (place.unwrap_or_else(|| draw(256) as u8), join.record.ttl());
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
fn changes(read: &OwnRow, change: &ChangeMode<'_>) -> Result<Option<HoldStep>, Box<Holder>> {
    let modes = [change.held.mode(), change.record.mode()];
    // To step down, others are in the way too if they are of an unknown kind.
    let in_the_way = read.stored.hold_against(change.record.mode(), Some(change.held));
    if let Some(holder) = in_the_way.filter(|_| modes.contains(&Mode::Exclusive)) {
        return Err(holder.into());
    }
    let seen = read.number.zip(read.base.as_ref().map(Record::ttl));
    let place = read.free_place(change.record.ttl(), None, draw);
    if place.is_none() && change.held.mode() == Mode::Exclusive {
        // All places have records of earlier numbers.
        return Err(Holder::unknown().into());
    }
    Ok(change_of(change, seen, place, &read.leftovers))
}

/// `seen`: the base, which a hold that is not exclusive needs. `place`: for one that was exclusive.
fn change_of(
    change: &ChangeMode<'_>,
    seen: Option<BaseSeen>,
    place: Option<(u8, Duration)>,
    leftovers: &[(Vec<u8>, Vec<u8>)],
) -> Option<HoldStep> {
    let ChangeMode { held, record, least, intent, .. } = *change;
    match (held.mode(), record.mode()) {
        (Mode::Exclusive, _) => requests::step_down(held, record, place?, least, leftovers),
        (_, Mode::Exclusive) => Some(requests::upgrade(held, record, seen?, (least, intent), leftovers)),
        _ => requests::share(held, record, seen?),
    }
}

/// Draws one of so many. Any will do, so a machine without random numbers gets the first.
fn draw(choices: usize) -> usize {
    random::secret_number().map_or(0, |number| number as usize % choices.max(1))
}

impl ModeRegister for HbaseOwnStore {
    fn join(&self, join: &Join<'_>, by: Deadline) -> Reply<Record, Holder> {
        self.try_to_join(join, by).into()
    }

    fn change_mode(&self, change: &ChangeMode<'_>, by: Deadline) -> Reply<Record, NotChanged> {
        self.try_to_change(change, by).into()
    }

    fn read_holds(&self, name: &LockName, by: Deadline) -> Result<StoredHolds> {
        Ok(self.read_row(&lock_row(name), by)?.stored)
    }

    fn announce(&self, name: &LockName, asked: Intent<'_>, by: Deadline) -> Result<()> {
        let lasts = asked.lasts.clamp(Duration::from_millis(1), INTENT_MAX);
        let value =
            IntentCell { waited: self.waited(asked.id), lasts, identity: asked.identity.clone() }.encode();
        self.cells.put_beside(&lock_row(name), &intent(asked.id), &value, lasts, by)
    }

    fn withdraw(&self, name: &LockName, id: IntentId, by: Deadline) -> Result<()> {
        self.forget_wait(Some(id));
        self.cells.put_beside(&lock_row(name), &intent(id), FREE, INTENT_MAX, by)
    }
}

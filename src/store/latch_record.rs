//! A latch as one record that is changed as a whole. The memory store and the embedded store use it.

pub(super) mod listener_set;
pub(super) mod name_set;

use std::collections::BTreeMap;
use std::time::Duration;

use self::name_set::NameSet;
use super::latch_store::{NewLatch, Roster, Step, Stepped, unexpected};
use crate::error::Result;
use crate::names::lock_name::Level;
use crate::runtime::time::Moment;

/// One latch. It expires as a whole, and a change by any farm keeps the counts of all farms. If only one farm's
/// count expired, the latch of level XDC would open too soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LatchRecord {
    pub(super) ends: Moment,
    /// How long the latch lives after each change: the longest TTL that it was created with.
    pub(super) ttl: Duration,
    pub(super) farms: BTreeMap<String, FarmCount>,
}

/// The count and the participants of one farm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FarmCount {
    pub(super) count: i64,
    /// Expected participants that have not counted yet.
    pub(super) pending: NameSet,
    /// Participants that have counted, expected or not.
    pub(super) arrived: NameSet,
}

impl LatchRecord {
    /// Creates the record of a latch that does not exist.
    pub(super) fn absent() -> LatchRecord {
        LatchRecord { ends: Moment::from_nanos(0), ttl: Duration::ZERO, farms: BTreeMap::new() }
    }

    pub(super) fn is_live(&self, now: Moment) -> bool {
        now < self.ends
    }

    /// Creates the farm's count. If it exists, returns `false` and changes nothing.
    pub(super) fn create(&mut self, new: &NewLatch<'_>, now: Moment) -> bool {
        if !self.is_live(now) {
            *self = LatchRecord::absent();
        }
        if self.farms.contains_key(new.name.farm()) {
            return false;
        }
        let pending = new.roster.iter().map(String::as_str).collect();
        let farm = FarmCount { count: new.count, pending, arrived: NameSet::default() };
        self.farms.insert(new.name.farm().to_owned(), farm);
        self.ttl = self.ttl.max(new.ttl);
        self.ends = now.after(self.ttl);
        true
    }

    /// Begins a new incarnation of the farm's count. If it has none, returns `None` and changes nothing.
    pub(super) fn reset(&mut self, new: &NewLatch<'_>, now: Moment) -> Option<()> {
        self.delete(new.name.farm(), now)?;
        self.create(new, now).then_some(())
    }

    /// Removes the farm's count. If it has none, returns `None` and changes nothing.
    pub(super) fn delete(&mut self, farm: &str, now: Moment) -> Option<()> {
        if !self.is_live(now) {
            return None;
        }
        self.farms.remove(farm).map(|_| ())
    }

    /// Takes one step. If the farm has no count, returns `None` and changes nothing.
    ///
    /// # Errors
    /// INVALID_ARGUMENT while the farm waits for named participants and the step is by nobody of them.
    pub(super) fn step(&mut self, step: &Step<'_>, now: Moment) -> Option<Result<Stepped>> {
        let live = self.is_live(now);
        let farm = self.farms.get_mut(step.name.farm()).filter(|_| live)?;
        if step.participant.is_some_and(|participant| farm.arrived.contains(participant)) {
            return Some(Ok(Stepped::Already));
        }
        let is_expected = step.participant.is_some_and(|participant| farm.pending.contains(participant));
        if !is_expected && !farm.pending.is_empty() {
            return Some(Err(unexpected(step, &farm.pending.to_vec())));
        }
        if let Some(participant) = step.participant {
            farm.arrived.insert(participant);
            farm.pending.remove(participant);
        }
        farm.count = farm.count.saturating_add(step.add);
        self.ends = now.after(self.ttl);
        Some(Ok(Stepped::Counted(Some(farm.count))))
    }

    pub(super) fn count(&self, farm: &str, level: Level) -> Option<i64> {
        count_of(self.farms.iter().map(|(name, farm)| (name.as_str(), farm.count)), farm, level)
    }

    pub(super) fn roster(&self, farm: &str) -> Option<Roster> {
        let farm = self.farms.get(farm)?;
        Some(Roster { pending: farm.pending.to_vec(), arrived: farm.arrived.to_vec() })
    }
}

/// Returns the count that `level` reads from a live latch with these counts.
pub(super) fn count_of<'a>(
    mut counts: impl Iterator<Item = (&'a str, i64)>,
    farm: &str,
    level: Level,
) -> Option<i64> {
    match level {
        Level::Dc => counts.find(|(name, _)| *name == farm).map(|(_, count)| count),
        Level::Xdc => counts.map(|(_, count)| count).reduce(i64::saturating_add),
    }
}

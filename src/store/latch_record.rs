//! A latch as one record that is changed as a whole: what stores keep that count for themselves.

pub(super) mod name_set;

use std::collections::BTreeMap;
use std::time::Duration;

use self::name_set::NameSet;
use super::latch_store::{NewLatch, Roster, Step, Stepped};
use crate::name::Level;
use crate::time::Moment;

/// One latch. It ends as a whole: while any farm changes its count, no other farm's is forgotten, which
/// would open the latch of level XDC too soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LatchRecord {
    pub(super) ends: Moment,
    /// How long it lives after each change: the longest it was made with.
    pub(super) ttl: Duration,
    pub(super) farms: BTreeMap<String, FarmCount>,
}

/// The part of one farm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FarmCount {
    pub(super) count: i64,
    /// Expected by name and not come yet.
    pub(super) pending: NameSet,
    /// Come, expected or not.
    pub(super) arrived: NameSet,
}

impl LatchRecord {
    /// Of a latch that is not there.
    pub(super) fn absent() -> LatchRecord {
        LatchRecord { ends: Moment::from_nanos(0), ttl: Duration::ZERO, farms: BTreeMap::new() }
    }

    pub(super) fn is_live(&self, now: Moment) -> bool {
        now < self.ends
    }

    /// Makes the farm's count; `false`, and nothing is changed, where it exists.
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

    /// `None`, and nothing is changed, where the farm has no count.
    pub(super) fn step(&mut self, step: &Step<'_>, now: Moment) -> Option<Stepped> {
        let live = self.is_live(now);
        let farm = self.farms.get_mut(step.name.farm()).filter(|_| live)?;
        if let Some(participant) = step.participant {
            if !farm.arrived.insert(participant) {
                return Some(Stepped::Already);
            }
            farm.pending.remove(participant);
        }
        farm.count = farm.count.saturating_add(step.add);
        self.ends = now.after(self.ttl);
        Some(Stepped::Counted(Some(farm.count)))
    }

    pub(super) fn count(&self, farm: &str, level: Level) -> Option<i64> {
        count_of(self.farms.iter().map(|(name, farm)| (name.as_str(), farm.count)), farm, level)
    }

    pub(super) fn roster(&self, farm: &str) -> Option<Roster> {
        let farm = self.farms.get(farm)?;
        Some(Roster { pending: farm.pending.to_vec(), arrived: farm.arrived.to_vec() })
    }
}

/// What `level` reads of a live latch with these counts.
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

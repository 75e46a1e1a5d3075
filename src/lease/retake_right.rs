//! The right of this process to take a lock again that it has released and keeps in the store. No I/O.
//!
//! The new lease is as safe as one that the store grants:
//!
//! * **The record outlasts it.** The store keeps the record at least for the time that the last confirmed write asked for,
//!   counted from before that write was sent. The clock margin is taken off both: off that time, because the store's clock
//!   may be faster than ours, and off the new lease, because every holder does so. The new lease, and the lock delay after
//!   it, must end before the record does.
//! * **Nobody else has the lock** in a mode that excludes this one, because the record was never freed. Whoever sends a
//!   request that frees it gives up the right first, whatever the answer.
//! * **Fences rise.** The fences of all leases of a record come from the block that its grant reserved, each once. The next
//!   grant of the store has a higher one than all of them.

use std::time::Duration;

use crate::names::fence::Fence;
use crate::runtime::time::Moment;
use crate::settings::manager_options::Settings;

/// The last write of a record that the store has confirmed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordWrite {
    /// A moment before it was sent.
    pub(crate) sent: Moment,
    /// For how long the store was asked to keep the record.
    pub(crate) asked: Duration,
}

/// Fences that were reserved for a record and not used yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpareFences {
    /// `None` if fencing is off: then there is no end of them.
    pub(crate) next: Option<Fence>,
    pub(crate) left: u64,
}

impl SpareFences {
    /// Returns what is left of a block of so many that begins with `first`, after the first one was used.
    pub(crate) fn after(first: Option<Fence>, fences: u64) -> SpareFences {
        SpareFences { next: first.map(|first| Fence(first.0 + 1)), left: fences.saturating_sub(1) }
    }

    /// Takes the next one. `None` if there is none, `Some(None)` if fencing is off.
    fn take(&mut self) -> Option<Option<Fence>> {
        let Some(next) = self.next else { return Some(None) };
        self.left = self.left.checked_sub(1)?;
        self.next = Some(Fence(next.0 + 1));
        Some(Some(next))
    }
}

/// See the top of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetakeRight {
    pub(crate) write: RecordWrite,
    pub(crate) spare: SpareFences,
    /// Longest time for which any write of the record asked. The store may keep the record for that long after each write.
    pub(crate) longest: Duration,
    /// When the right ends: the time of staying counts from the last write of the record.
    pub(crate) until: Moment,
}

/// Why the store must be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRight {
    /// The time of staying is over, or too little of the record is left.
    TimeIsOver,
    /// The record is for a lease of another length, or its fences are used up.
    OtherRecord,
}

impl RetakeRight {
    /// Takes the lock again, for a lease of `ttl`. Returns its fence.
    pub(crate) fn retake(
        &mut self,
        now: Moment,
        ttl: Duration,
        settings: &Settings,
    ) -> Result<Option<Fence>, NoRight> {
        let RecordWrite { sent, asked } = self.write;
        if now >= self.until {
            return Err(NoRight::TimeIsOver);
        }
        // If this process dies, others must not wait longer than for a lease that the store grants.
        let is_short = self.longest <= settings.asked_ttl(ttl);
        let record_ends = settings.lease_end(sent, asked);
        let lasts = settings.lease_end(now, ttl + settings.lock_delay) <= record_ends;
        match (is_short, lasts) {
            (true, true) => self.spare.take().ok_or(NoRight::OtherRecord),
            (true, false) if settings.asked_ttl(ttl) <= asked => Err(NoRight::TimeIsOver),
            (_, _) => Err(NoRight::OtherRecord),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// A margin of a tenth, a TTL of 10 s, and locks that stay for 5 s.
    fn settings(lock_delay: Duration) -> Settings {
        Settings { ttl: 10 * S, linger: 5 * S, lock_delay, ..Settings::default() }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn right(asked: Duration, left: u64) -> RetakeRight {
        let spare = SpareFences { next: Some(Fence(7)), left };
        RetakeRight { write: RecordWrite { sent: at(1000), asked }, spare, longest: asked, until: at(6000) }
    }

    #[test]
    fn the_new_lease_ends_before_the_record() {
        let settings = settings(Duration::ZERO);
        // The record lasts until 1 + 15 * 0.9 = 14.5 s, and a lease of 10 s for 9 s.
        assert_eq!(right(15 * S, 1).retake(at(5500), 10 * S, &settings), Ok(Some(Fence(7))));
        assert_eq!(right(15 * S, 1).retake(at(5501), 10 * S, &settings), Err(NoRight::TimeIsOver));
        // A record that was asked for longer than the new lease would be, lately or before.
        assert_eq!(right(15 * S, 1).retake(at(2000), 9 * S, &settings), Err(NoRight::OtherRecord));
        assert_eq!(right(15 * S, 1).retake(at(2000), 20 * S, &settings), Err(NoRight::OtherRecord));
        let renewed = RetakeRight { longest: 16 * S, ..right(15 * S, 1) };
        assert_eq!({ renewed }.retake(at(2000), 10 * S, &settings), Err(NoRight::OtherRecord));
    }

    #[test]
    fn the_lock_delay_fits_in_as_well() {
        let settings = settings(2 * S);
        assert_eq!(right(15 * S, 1).retake(at(3700), 10 * S, &settings), Ok(Some(Fence(7))));
        assert_eq!(right(15 * S, 1).retake(at(3701), 10 * S, &settings), Err(NoRight::OtherRecord));
    }

    #[test]
    fn the_right_ends_with_its_time_and_with_its_fences() {
        let settings = settings(Duration::ZERO);
        let mut right = right(15 * S, 2);
        let taken: Vec<_> = (0..3).map(|_| right.retake(at(2000), 10 * S, &settings)).collect();
        assert_eq!(taken, [Ok(Some(Fence(7))), Ok(Some(Fence(8))), Err(NoRight::OtherRecord)]);
        right.spare.left = 1;
        right.until = at(2000);
        assert_eq!(right.retake(at(2000), 10 * S, &settings), Err(NoRight::TimeIsOver));
        right.until = at(2001);
        right.spare.next = None;
        assert_eq!(
            right.retake(at(2000), 10 * S, &settings),
            Ok(None),
            "without fences there is no end of them"
        );
    }
}

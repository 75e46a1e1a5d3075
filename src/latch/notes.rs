//! The notes that this process has left at the latches for which it waits. No I/O.

use std::time::Duration;

use crate::names::latch_name::LatchName;
use crate::runtime::sync::HashMap;
use crate::runtime::time::Moment;

/// A note lasts for so many reads at the longest pause. It is written again after half of them.
const POLLS: u32 = 4;
const SHORTEST: Duration = Duration::from_secs(20);
const LONGEST: Duration = Duration::from_secs(10 * 60);

/// Returns how long a note lasts if the longest pause between two reads is `poll`.
pub(super) fn lasting(poll: Duration) -> Duration {
    poll.saturating_mul(POLLS).clamp(SHORTEST, LONGEST)
}

/// Notes by the name of their latch, and by their random bits.
#[derive(Debug, Default)]
pub(super) struct LatchNotes {
    by_name: HashMap<LatchName, WrittenNote>,
    by_nonce: HashMap<u64, LatchName>,
}

#[derive(Debug)]
struct WrittenNote {
    nonce: u64,
    /// When it is written again. [`Moment::OVER`] until the store has answered.
    next: Moment,
}

impl LatchNotes {
    /// Whether a note must be written.
    pub(super) fn is_due(&self, name: &LatchName, now: Moment) -> bool {
        self.by_name.get(name).is_none_or(|note| note.next <= now)
    }

    pub(super) fn has(&self, name: &LatchName) -> bool {
        self.by_name.contains_key(name)
    }

    /// A note is about to be written. Returns its random bits: those of the note that is there, or else `drawn`.
    pub(super) fn write(&mut self, name: &LatchName, drawn: u64) -> u64 {
        if let Some(note) = self.by_name.get(name) {
            return note.nonce;
        }
        self.by_name.insert(name.clone(), WrittenNote { nonce: drawn, next: Moment::OVER });
        self.by_nonce.insert(drawn, name.clone());
        drawn
    }

    /// The store has the note. It must be written again at `next`.
    pub(super) fn written(&mut self, name: &LatchName, next: Moment) {
        if let Some(note) = self.by_name.get_mut(name) {
            note.next = next;
        }
    }

    /// Returns the latch whose note has these random bits. They are good for one notice.
    pub(super) fn take(&mut self, nonce: u64) -> Option<LatchName> {
        let name = self.by_nonce.remove(&nonce)?;
        self.by_name.remove(&name);
        Some(name)
    }

    pub(super) fn forget(&mut self, name: &LatchName) {
        if let Some(note) = self.by_name.remove(name) {
            self.by_nonce.remove(&note.nonce);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::NamePolicy;

    fn name(id: &str) -> LatchName {
        LatchName::new("tests", "dc1", id, NamePolicy::Strict).unwrap()
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_note_is_due_until_the_store_has_it_and_again_later() {
        let (mut notes, name) = (LatchNotes::default(), name("a"));
        assert!(notes.is_due(&name, at(1)));
        assert_eq!(notes.write(&name, 7), 7);
        assert!(notes.is_due(&name, at(1)));
        notes.written(&name, at(10));
        assert!(!notes.is_due(&name, at(9)) && notes.is_due(&name, at(10)));
    }

    /// A notice that is sent again must not cost a second read.
    #[test]
    fn random_bits_are_kept_until_they_are_quoted_once() {
        let mut notes = LatchNotes::default();
        let written = [("a", 7), ("b", 8), ("a", 9)].map(|(id, drawn)| notes.write(&name(id), drawn));
        assert_eq!(written, [7, 8, 7]);
        let taken = [9, 7, 7, 8].map(|nonce| notes.take(nonce));
        assert_eq!(taken, [None, Some(name("a")), None, Some(name("b"))]);
        assert_eq!(notes.write(&name("a"), 1), 1);
        notes.forget(&name("a"));
        assert_eq!((notes.take(1), notes.by_name.len(), notes.by_nonce.len()), (None, 0, 0));
    }

    #[test]
    fn a_note_outlasts_several_polls_within_bounds() {
        let lasts = |seconds| lasting(Duration::from_secs(seconds)).as_secs();
        assert_eq!([0, 5, 30, 3600].map(lasts), [20, 20, 120, 600]);
    }
}

//! The processes that wait for one latch, each with the end of its note.

use crate::names::notice_endpoint::LatchListener;
use crate::runtime::time::Moment;
use crate::store::latch_store::LISTENERS_MAX;

/// Notes by their ends, the first end first. At most [`LISTENERS_MAX`], one for each endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::store) struct ListenerSet {
    notes: Vec<(Moment, LatchListener)>,
}

impl ListenerSet {
    /// Adds a note. Drops those that have ended, and the one that ends first if there are too many.
    pub(in crate::store) fn note(&mut self, listener: LatchListener, ends: Moment, now: Moment) {
        self.notes.retain(|(ends, noted)| now < *ends && noted.endpoint != listener.endpoint);
        let index = self.notes.partition_point(|(before, _)| *before <= ends);
        self.notes.insert(index, (ends, listener));
        if self.notes.len() > LISTENERS_MAX {
            self.notes.remove(0);
        }
    }

    /// Returns the processes whose notes have not ended.
    pub(in crate::store) fn live(&self, now: Moment) -> Vec<LatchListener> {
        self.notes.iter().filter(|(ends, _)| now < *ends).map(|(_, listener)| *listener).collect()
    }

    /// Returns the end of the last note.
    pub(in crate::store) fn ends(&self) -> Moment {
        self.notes.last().map_or(Moment::from_nanos(0), |(ends, _)| *ends)
    }

    #[cfg(any(feature = "embedded", test))]
    pub(in crate::store) fn notes(&self) -> &[(Moment, LatchListener)] {
        &self.notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::notice_endpoint::NoticeEndpoint;

    fn listener(endpoint: u64, nonce: u64) -> LatchListener {
        LatchListener { endpoint: NoticeEndpoint::Local(endpoint), nonce }
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_process_has_one_note_which_ends() {
        let mut set = ListenerSet::default();
        set.note(listener(1, 1), at(10), at(0));
        set.note(listener(2, 2), at(20), at(0));
        set.note(listener(1, 3), at(30), at(5));
        assert_eq!(set.live(at(5)), [listener(2, 2), listener(1, 3)]);
        assert_eq!((set.live(at(20)), set.ends()), (vec![listener(1, 3)], at(30)));
        set.note(listener(4, 4), at(40), at(30));
        assert_eq!(set.notes(), [(at(40), listener(4, 4))]);
    }

    #[test]
    fn of_too_many_notes_those_that_end_first_are_dropped() {
        let mut set = ListenerSet::default();
        let most = LISTENERS_MAX as u64;
        for number in (0..=most).rev() {
            set.note(listener(number, number), at(100 + number), at(0));
        }
        let live = set.live(at(0));
        assert_eq!((live.len(), live[0]), (LISTENERS_MAX, listener(1, 1)));
    }
}

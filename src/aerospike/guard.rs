//! The bins of a record that describe its fenced writers, and what they prove about a request whose reply was
//! lost. Pure functions.
//!
//! | bin | type | content |
//! |---|---|---|
//! | `_fence` | integer | the highest fence of the record's writers |
//! | `_fence_of` | string | the stored name of the lock that granted the fence |
//! | `_fence_ops` | blob | a mark of 16 random bytes for each of the last 8 changes, newest first |
//!
//! Each request contains the state of the record for which it was made, and takes effect only in that state. It
//! adds its own mark to the front. So it takes effect at most once, and never after another change.

use crate::error::{Error, Result};
use crate::names::owner::OwnerToken;
use crate::store::aerospike::client::{BinValue, FoundRecord, When};
use crate::store::aerospike::keys::checked_bin;

/// Number of changes whose marks a record keeps.
const KEPT: usize = 8;
const MARK: usize = OwnerToken::LEN;

/// The names of our three bins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GuardBins {
    pub(super) fence: String,
    pub(super) of: String,
    pub(super) marks: String,
}

impl Default for GuardBins {
    fn default() -> GuardBins {
        GuardBins { fence: "_fence".into(), of: "_fence_of".into(), marks: "_fence_ops".into() }
    }
}

impl GuardBins {
    pub(super) fn all(&self) -> [&str; 3] {
        [&self.fence, &self.of, &self.marks]
    }

    pub(super) fn checked(self) -> Result<GuardBins> {
        for (at, name) in self.all().into_iter().enumerate() {
            checked_bin(name)?;
            if self.all()[..at].contains(&name) {
                return Err(Error::invalid("bin", name, "three different names for fence, lock and marks"));
            }
        }
        Ok(self)
    }

    /// Refuses the library's bins.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one of the three bins.
    pub(super) fn not_ours<'a>(&self, name: &'a str) -> Result<&'a str> {
        if !self.all().contains(&name) {
            return Ok(name);
        }
        let allowed = "a bin of the application; this is a bin of the fence (see Records::fence_bin, lock_bin and \
                       marks_bin)";
        Err(Error::invalid("bin", name, allowed))
    }
}

/// State of a record regarding fences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// The record does not exist.
    Absent,
    /// The record has none of our bins.
    Plain,
    Guarded(Guard),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Guard {
    pub(super) of: String,
    pub(super) fence: i64,
    /// Marks of the last changes, newest first.
    marks: Vec<u8>,
}

impl State {
    /// Reads the state from a record.
    ///
    /// # Errors
    /// The name of one of our bins that is missing, or has a content that no fenced write produces.
    pub(super) fn of<'a>(
        found: Option<&FoundRecord>,
        names: &'a GuardBins,
    ) -> std::result::Result<State, &'a str> {
        let Some(found) = found else { return Ok(State::Absent) };
        if names.all().iter().all(|bin| found.bin(bin).is_none()) {
            return Ok(State::Plain);
        }
        let fence = found.int(&names.fence).ok_or(names.fence.as_str())?;
        let of = match found.bin(&names.of) {
            Some(BinValue::Text(of)) => of.clone(),
            _ => return Err(&names.of),
        };
        let marks = found.bytes(&names.marks).filter(|marks| is_marks(marks)).ok_or(names.marks.as_str())?;
        Ok(State::Guarded(Guard { of, fence, marks: marks.to_vec() }))
    }

    /// Returns the state after a change.
    pub(super) fn changed(&self, of: &str, fence: i64, mark: &OwnerToken) -> Guard {
        let mut marks = mark.as_bytes().to_vec();
        if let State::Guarded(before) = self {
            marks.extend_from_slice(&before.marks);
        }
        marks.truncate(KEPT * MARK);
        Guard { of: of.to_owned(), fence, marks }
    }

    /// Returns a condition that holds only in this state, for writers of the lock `of` whose fence is not lower
    /// than the record's. `None` if there is no record, because servers then check no condition.
    pub(super) fn condition<'a>(&'a self, names: &'a GuardBins, of: &'a str, fence: i64) -> Option<When<'a>> {
        match self {
            State::Absent => None,
            State::Plain => Some(When::LacksAll(names.all())),
            State::Guarded(guard) => Some(When::Guarded {
                of: (&names.of, of),
                fence: (&names.fence, fence),
                marks: (&names.marks, &guard.marks),
            }),
        }
    }

    pub(super) fn has(&self, mark: &OwnerToken) -> bool {
        match self {
            State::Guarded(guard) => guard.marks.chunks(MARK).any(|kept| kept == mark.as_bytes()),
            _ => false,
        }
    }

    /// Returns whether a change that was made for this state, and whose mark is not in `now`, did not happen and
    /// can no longer happen.
    pub(super) fn rules_out(&self, now: &State) -> bool {
        let State::Guarded(now) = now else { return false };
        match self {
            // `now` has the marks of all changes since.
            State::Guarded(before) => {
                now.marks.chunks(MARK).skip(1).any(|kept| kept == &before.marks[..MARK])
            }
            State::Absent | State::Plain => now.marks.len() < KEPT * MARK,
        }
    }
}

impl Guard {
    pub(super) fn marks(&self) -> &[u8] {
        &self.marks
    }
}

fn is_marks(bytes: &[u8]) -> bool {
    bytes.len().is_multiple_of(MARK) && (1..=KEPT).contains(&(bytes.len() / MARK))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(byte: u8) -> OwnerToken {
        OwnerToken::from_bytes([byte; MARK])
    }

    /// Returns the state after these changes, oldest first, of a record that did not exist.
    fn after(changes: &[u8]) -> State {
        changes
            .iter()
            .fold(State::Absent, |state, byte| State::Guarded(state.changed("XDC#a#b", 7, &mark(*byte))))
    }

    #[test]
    fn what_is_written_is_read_back() {
        let names = GuardBins::default();
        let State::Guarded(guard) = after(&[1, 2]) else { panic!() };
        let bins = vec![
            ("_fence".to_owned(), BinValue::Int(guard.fence)),
            ("_fence_of".to_owned(), BinValue::Text(guard.of.clone())),
            ("_fence_ops".to_owned(), BinValue::Bytes(guard.marks().to_vec())),
            ("sum".to_owned(), BinValue::Int(1)),
        ];
        let of = |bins: &[(String, BinValue)]| {
            let found = FoundRecord { bins: bins.to_vec(), ..FoundRecord::default() };
            State::of(Some(&found), &names).map_err(str::to_owned)
        };
        assert_eq!(of(&bins), Ok(State::Guarded(guard)));
        assert_eq!(of(&bins[3..]), Ok(State::Plain));
        assert_eq!(State::of(None, &names), Ok(State::Absent));
        for (at, name) in names.all().into_iter().enumerate() {
            let mut odd = bins.clone();
            odd[at].1 = BinValue::Other;
            assert_eq!(of(&odd), Err(name.to_owned()));
            odd.remove(at);
            assert_eq!(of(&odd), Err(name.to_owned()));
        }
        for length in [0, 1, MARK + 1, (KEPT + 1) * MARK] {
            let mut odd = bins.clone();
            odd[2].1 = BinValue::Bytes(vec![0; length]);
            assert_eq!(of(&odd), Err("_fence_ops".to_owned()), "{length}");
        }
    }

    #[test]
    fn a_record_remembers_its_last_changes_and_no_more() {
        let all: Vec<u8> = (1..=KEPT as u8 + 1).collect();
        let state = after(&all);
        assert!(!state.has(&mark(1)));
        assert!(all[1..].iter().all(|byte| state.has(&mark(*byte))));
    }

    #[test]
    fn a_change_is_ruled_out_only_where_all_that_came_since_is_seen() {
        let all: Vec<u8> = (1..=KEPT as u8 + 1).collect();
        // The state that the change was made for, the one seen now, and whether that rules it out.
        for (before, now, out) in [
            (&[1][..], &[1, 2][..], true),
            (&[1], &all[..KEPT], true),
            (&[1], &all, false),
            (&[1], &[1], false),
            // The record was deleted and created again.
            (&[1], &[2], false),
            (&[1], &[2, 3], false),
            (&[], &[1], true),
            (&[], &all[..KEPT - 1], true),
            (&[], &all[..KEPT], false),
            (&[], &[], false),
            (&[1], &[], false),
        ] {
            assert_eq!(after(before).rules_out(&after(now)), out, "{before:?} {now:?}");
        }
        assert!(State::Plain.rules_out(&after(&[1])));
        assert!(!State::Plain.rules_out(&State::Plain) && !after(&[1]).rules_out(&State::Plain));
    }

    #[test]
    fn names_of_bins_are_three_that_a_server_takes() {
        assert!(GuardBins::default().checked().is_ok());
        for fence in ["", "sixteen-bytes---", "_fence_of", "a\0"] {
            assert!(
                GuardBins { fence: fence.into(), ..GuardBins::default() }.checked().is_err(),
                "{fence:?}"
            );
        }
        assert!(
            GuardBins::default().not_ours("_fence_ops").is_err()
                && GuardBins::default().not_ours("sum").is_ok()
        );
    }
}

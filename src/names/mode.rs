//! The modes in which a lock may be held.

use std::fmt;

/// How a lock is held. The mode says who may hold the lock at the same time:
///
/// | mode | together with |
/// |---|---|
/// | `Exclusive` | nobody |
/// | `Shared` | any number of `Shared`, and one `Update` |
/// | `Update` | any number of `Shared` |
/// | `Permit` | as many `Permit` as the [`Semaphore`](crate::Semaphore) has |
///
/// Take `Update` to read now and perhaps write later: it is the only mode that can be raised to `Exclusive`. Only one
/// holder at a time has it, so two of them never wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Held by one holder at a time.
    #[default]
    Exclusive,
    /// Held by any number of readers.
    Shared,
    /// Held by one reader that may want to write later, beside other readers.
    Update,
    /// One of the permits of a semaphore. Only a [`Semaphore`](crate::Semaphore) acquires it.
    Permit,
}

impl Mode {
    /// All modes. Later versions may add more.
    pub const ALL: [Mode; 4] = [Mode::Exclusive, Mode::Shared, Mode::Update, Mode::Permit];
    /// The modes in which a [`Lock`](crate::Lock) can be acquired.
    pub const OF_LOCKS: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Update];

    /// Returns the name, such as `SHARED`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Exclusive => "EXCLUSIVE",
            Mode::Shared => "SHARED",
            Mode::Update => "UPDATE",
            Mode::Permit => "PERMIT",
        }
    }

    /// Returns the number of the mode in stored records, tokens and the C interface. It never changes.
    ///
    /// 4 to 7 are kept for the other modes of the VMS lock manager, of which `Exclusive` is EX and `Shared` is PR: NL, CR, CW
    /// and PW.
    pub fn code(self) -> u8 {
        match self {
            Mode::Exclusive => 0,
            Mode::Shared => 1,
            Mode::Update => 2,
            Mode::Permit => 3,
        }
    }

    /// Returns the mode with this number. `None` if this version does not know it.
    pub fn from_code(code: u8) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.code() == code)
    }

    /// Whether one holder may hold a lock in this mode while another one holds it in the mode `other`. Permits are also counted.
    pub fn is_compatible_with(self, other: Mode) -> bool {
        matches!(
            (self, other),
            (Mode::Shared, Mode::Shared | Mode::Update)
                | (Mode::Update, Mode::Shared)
                | (Mode::Permit, Mode::Permit)
        )
    }

    /// Whether a holder may change its mode from this one to `to`. A change to fewer rights never waits. The only change to more
    /// rights is from `Update` to `Exclusive`.
    pub fn converts_to(self, to: Mode) -> bool {
        matches!(
            (self, to),
            (Mode::Exclusive, Mode::Update | Mode::Shared) | (Mode::Update, Mode::Shared | Mode::Exclusive)
        )
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are in stored records and tokens, and in programs in C.
    #[test]
    fn the_numbers_of_the_modes_stay_as_they_are() {
        assert_eq!(Mode::ALL.map(Mode::code), [0, 1, 2, 3]);
        for mode in Mode::ALL {
            assert_eq!(Mode::from_code(mode.code()), Some(mode));
        }
        assert_eq!(Mode::from_code(4), None);
    }

    #[test]
    fn modes_are_compatible_both_ways_and_only_readers_are() {
        for mode in Mode::OF_LOCKS {
            assert!(!mode.is_compatible_with(Mode::Permit) && !Mode::Permit.is_compatible_with(mode));
            for other in Mode::OF_LOCKS {
                assert_eq!(mode.is_compatible_with(other), other.is_compatible_with(mode));
                let has_reader = mode == Mode::Shared || other == Mode::Shared;
                let is_exclusive = mode == Mode::Exclusive || other == Mode::Exclusive;
                assert_eq!(mode.is_compatible_with(other), has_reader && !is_exclusive, "{mode} {other}");
            }
        }
    }

    #[test]
    fn only_an_updater_gets_more_rights() {
        let all = Mode::ALL.into_iter().flat_map(|from| Mode::ALL.map(|to| (from, to)));
        let allowed: Vec<_> = all.filter(|(from, to)| from.converts_to(*to)).collect();
        let down =
            [(Mode::Exclusive, Mode::Shared), (Mode::Exclusive, Mode::Update), (Mode::Update, Mode::Shared)];
        let up = (Mode::Update, Mode::Exclusive);
        assert!(down.iter().chain([&up]).all(|step| allowed.contains(step)));
        assert_eq!(allowed.len(), 4);
    }
}

//! The states of a lease, and the reasons for losing one.

use std::fmt;

/// State of a [`Lease`](crate::Lease). The table at the top of `lease/life.rs` shows how one follows another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// Valid, and not kept alive. It ends with its TTL unless the caller renews it.
    Held,
    /// Valid, and kept alive by [`Lease::keep`](crate::Lease::keep).
    Renewing,
    /// Valid and kept alive, but less than a third of it is left: renewals have failed, or its longest time is nearly
    /// over. Finish what the lock guards.
    AtRisk,
    /// Not valid any more.
    Lost(LostReason),
    /// Released, or turned into a token. Also after a release that failed.
    Released,
}

impl LeaseState {
    /// Returns whether the lease is valid in this state.
    pub fn is_valid(self) -> bool {
        matches!(self, LeaseState::Held | LeaseState::Renewing | LeaseState::AtRisk)
    }

    /// Returns why the lease was lost, if it was.
    pub fn lost(self) -> Option<LostReason> {
        if let LeaseState::Lost(reason) = self { Some(reason) } else { None }
    }
}

/// Why a lease was lost. Numbers are the same in every language, and are never reused or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum LostReason {
    /// Its time ran out on this machine's clock: it was not kept alive, every renewal failed, or its longest time was
    /// over.
    Expired = 1,
    /// A renewal or release found the record of another holder.
    TakenOver = 2,
    /// A renewal or release found no record, although the lease had time left: the store lost it, or somebody removed
    /// it.
    RecordGone = 3,
    /// The time ran out while this process did not run, so that nothing could renew the lease: it was stopped or
    /// starved of CPU, or the machine was suspended.
    ProcessStopped = 4,
    /// An operator broke the lock: see [`Inspected::break_holder`](crate::Inspected::break_holder). The error says who, and why.
    Broken = 5,
    /// The end of the lease is not known here, because its token comes from another machine, from before a restart, from
    /// another time namespace, or from an older version. A renewal makes it known.
    EndUnknown = 6,
}

impl LostReason {
    /// All reasons, ordered by number. Later versions may add more.
    pub const ALL: &[LostReason] = &[
        LostReason::Expired,
        LostReason::TakenOver,
        LostReason::RecordGone,
        LostReason::ProcessStopped,
        LostReason::Broken,
        LostReason::EndUnknown,
    ];

    /// Returns the number.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// Returns the name that documentation, logs and the other languages use.
    pub fn name(self) -> &'static str {
        match self {
            LostReason::Expired => "EXPIRED",
            LostReason::TakenOver => "TAKEN_OVER",
            LostReason::RecordGone => "RECORD_GONE",
            LostReason::ProcessStopped => "PROCESS_STOPPED",
            LostReason::Broken => "BROKEN",
            LostReason::EndUnknown => "END_UNKNOWN",
        }
    }

    pub(crate) fn explained(self) -> &'static str {
        match self {
            LostReason::Expired => "it has expired",
            LostReason::TakenOver => "another holder has the lock",
            LostReason::RecordGone => "the store no longer has its record; another may hold the lock",
            LostReason::ProcessStopped => {
                "it has expired while this process did not run in time to renew it: it was stopped or starved, or the \
                 machine was suspended"
            }
            LostReason::Broken => "an operator broke the lock",
            LostReason::EndUnknown => {
                "its end is not known here (it comes from another machine, from before a restart, from another time \
                 namespace, or from an older version); renew it"
            }
        }
    }
}

/// Writes the name.
impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_what_other_languages_were_told() {
        let all: Vec<_> = LostReason::ALL.iter().map(|reason| (reason.number(), reason.name())).collect();
        let expected = [
            (1, "EXPIRED"),
            (2, "TAKEN_OVER"),
            (3, "RECORD_GONE"),
            (4, "PROCESS_STOPPED"),
            (5, "BROKEN"),
            (6, "END_UNKNOWN"),
        ];
        assert_eq!(all, expected);
    }
}

//! The reasons for losing a lease.

use crate::LostReason;

/// The lease was not lost.
pub const DLM_LOST_NOT: i32 = 0;
/// The time of the lease ran out: it was not kept alive, every renewal failed, or its longest time was over.
pub const DLM_LOST_EXPIRED: i32 = 1;
/// A renewal or release found the record of another holder.
pub const DLM_LOST_TAKEN_OVER: i32 = 2;
/// A renewal or release found no record, although the lease had time left.
pub const DLM_LOST_RECORD_GONE: i32 = 3;
/// The time ran out while this process did not run, so that nothing could renew the lease.
pub const DLM_LOST_PROCESS_STOPPED: i32 = 4;
/// An operator broke the lock: see dlm_seen_break(). The error says who, and why.
pub const DLM_LOST_BROKEN: i32 = 5;
/// The end of the lease is not known here, because its token comes from another machine. A renewal makes it known.
pub const DLM_LOST_END_UNKNOWN: i32 = 6;

pub(super) fn reason_number(reason: LostReason) -> i32 {
    match reason {
        LostReason::Expired => DLM_LOST_EXPIRED,
        LostReason::TakenOver => DLM_LOST_TAKEN_OVER,
        LostReason::RecordGone => DLM_LOST_RECORD_GONE,
        LostReason::ProcessStopped => DLM_LOST_PROCESS_STOPPED,
        LostReason::Broken => DLM_LOST_BROKEN,
        LostReason::EndUnknown => DLM_LOST_END_UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_numbers_that_the_library_has_for_them() {
        for reason in LostReason::ALL {
            assert_eq!(reason_number(*reason), reason.number());
        }
    }
}

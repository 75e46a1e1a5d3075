//! The state of a lease, and leases that are kept alive.

use std::os::fd::AsRawFd;
use std::time::Duration;

use super::answer::{answer, status};
use super::arguments::wait_without_default;
use super::error::dlm_error;
use super::guard::value;
use super::lease::dlm_lease;
use super::lost_reason::{DLM_LOST_NOT, reason_number};
use super::process::find;
use super::status::dlm_status;
use crate::LeaseState;

/// The lease was released, or turned into a token. Also after a release that failed, and for NULL and a freed handle.
pub const DLM_STATE_RELEASED: i32 = 0;
/// The lease is valid, and not kept alive.
pub const DLM_STATE_HELD: i32 = 1;
/// The lease is valid, and kept alive: see dlm_lease_keep().
pub const DLM_STATE_RENEWING: i32 = 2;
/// The lease is valid and kept alive, but less than a third of it is left: renewals fail, or its longest time is nearly
/// over. Finish what the lock guards.
pub const DLM_STATE_AT_RISK: i32 = 3;
/// The lease is not valid any more: see dlm_lease_lost_reason().
pub const DLM_STATE_LOST: i32 = 4;

/// Keeps the lease alive: background threads renew it from now on, for `max_hold_ms` at most. No renewal makes it last
/// longer than that from now. DLM_FOREVER sets no limit. A second call sets a new limit. The TTL of the lease must be
/// 100 ms or longer. Does no I/O and never blocks.
///
/// The library renews after a third of the lease, and repeatedly if that fails. If less than a third is left, the
/// state is DLM_STATE_AT_RISK. If every renewal fails until the end, the lease is lost, and no renewal brings it back.
/// All kept leases of a manager share at most two threads. Still call dlm_lease_guard() before each step.
///
/// Errors: DLM_LEASE_LOST if the lease is not valid; DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_keep(
    lease: *mut dlm_lease,
    max_hold_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let lease = find(lease)?;
            let max_hold = wait_without_default("max_hold_ms", max_hold_ms)?.unwrap_or(Duration::MAX);
            Ok(lease.keep(max_hold)?)
        })
    }
}

/// Ends what dlm_lease_keep() has begun: the lease then ends at its end, unless it is renewed. A renewal under way may
/// still make it longer. Does nothing for a lease that is not kept alive. Never blocks for long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_stop_keeping(
    lease: *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(lease)?.stop_keeping()?)) }
}

/// Returns the state of the lease by this machine's clock: one of DLM_STATE_RELEASED, DLM_STATE_HELD,
/// DLM_STATE_RENEWING, DLM_STATE_AT_RISK and DLM_STATE_LOST. Later versions may add some. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_state(lease: *const dlm_lease) -> i32 {
    value(DLM_STATE_RELEASED, || Ok(state_number(find(lease)?.state())))
}

/// Returns why the lease was lost, one of the numbers DLM_LOST_*. DLM_LOST_NOT if its state is not DLM_STATE_LOST.
/// Later versions may add reasons. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_lost_reason(lease: *const dlm_lease) -> i32 {
    value(DLM_LOST_NOT, || Ok(find(lease)?.state().lost().map_or(DLM_LOST_NOT, reason_number)))
}

/// Writes a file descriptor to `*fd_out`, or -1 on failure. It is readable while the lease is at risk, and once
/// dlm_lease_check() would fail. A renewal makes it unreadable again. See dlm_lease_lost_fd(), whose rules hold for
/// this descriptor too.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_at_risk_fd(
    lease: *const dlm_lease,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("fd_out", fd_out, error_out, || Ok(find(lease)?.at_risk_fd()?.as_raw_fd())) }
}

fn state_number(state: LeaseState) -> i32 {
    match state {
        LeaseState::Released => DLM_STATE_RELEASED,
        LeaseState::Held => DLM_STATE_HELD,
        LeaseState::Renewing => DLM_STATE_RENEWING,
        LeaseState::AtRisk => DLM_STATE_AT_RISK,
        LeaseState::Lost(_) => DLM_STATE_LOST,
    }
}

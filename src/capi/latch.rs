use std::ffi::c_char;
use std::os::fd::AsRawFd;

use super::answer::{answer, status};
use super::arguments::{level, slice, text, ttl, wait_without_default};
use super::cancel::dlm_cancel;
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::{freeing, write};
use super::handles::HandleTable;
use super::manager::dlm_manager;
use super::names::{Names, dlm_names};
use super::process::{Handle, PerProcess, find, find_optional, free, keep};
use super::status::dlm_status;
use crate::{AwaitOptions, Latch, LatchKind, LatchWatch};

/// Kind of a latch that goes down only: it opens once, when all have come.
pub const DLM_LATCH_COUNT_DOWN: i32 = 1;
/// Kind of a latch that goes up and down: it opens whenever nobody is left.
pub const DLM_LATCH_COUNT_UP_DOWN: i32 = 2;

/// A count in the store that all processes see, and waiting until it is down to zero. It is never
/// deleted: it is gone its TTL after its last change, and then every call answers DLM_NOT_FOUND.
pub struct dlm_latch(());

/// A latch that is watched for an event loop.
pub struct dlm_watch(());

static LATCHES: PerProcess<HandleTable<Latch>> = PerProcess::new();
static WATCHES: PerProcess<HandleTable<LatchWatch>> = PerProcess::new();

impl Handle for dlm_latch {
    type Object = Latch;
    const NAME: &str = "dlm_latch";
    const KIND: u8 = 9;
    fn table() -> &'static PerProcess<HandleTable<Latch>> {
        &LATCHES
    }
}

impl Handle for dlm_watch {
    type Object = LatchWatch;
    const NAME: &str = "dlm_watch";
    const KIND: u8 = 10;
    fn table() -> &'static PerProcess<HandleTable<LatchWatch>> {
        &WATCHES
    }
}

fn kind(number: i32) -> Outcome<LatchKind> {
    match number {
        DLM_LATCH_COUNT_DOWN => Ok(LatchKind::CountDown),
        DLM_LATCH_COUNT_UP_DOWN => Ok(LatchKind::CountUpDown),
        _ => Err(Failure::invalid(format!(
            "kind {number} is not allowed: DLM_LATCH_COUNT_DOWN or DLM_LATCH_COUNT_UP_DOWN"
        ))),
    }
}

/// The latch `id`. Does no I/O and makes nothing in the store: see dlm_latch_create(). All who use it must
/// agree on `level` (DLM_LEVEL_DC: the count of one's own farm; DLM_LEVEL_XDC: the sum over all farms),
/// `kind` (DLM_LATCH_COUNT_DOWN or DLM_LATCH_COUNT_UP_DOWN) and `ttl_ms`, the time that it lives after each
/// change (DLM_DEFAULT: the option latch_ttl, one day unless set). Never blocks. On DLM_OK the caller owns
/// `*latch_out`.
///
/// DLM_INVALID_ARGUMENT also where the manager has no farm; DLM_CLOSED
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_latch(
    manager: *const dlm_manager,
    id: *const c_char,
    level: i32,
    kind: i32,
    ttl_ms: i64,
    latch_out: *mut *mut dlm_latch,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(latch_out, error_out, || {
            let manager = find(manager)?;
            let latch = manager.latch(text("latch id", id)?, self::level(level)?, self::kind(kind)?)?;
            match ttl(ttl_ms)? {
                None => keep(latch),
                Some(ttl) => keep(latch.with_ttl(ttl)?),
            }
        })
    }
}

/// Makes the latch in the store: from now on it must be counted down `count` times, 0 to 2147483647. For
/// level XDC this makes the count of one's own farm. Blocks for one call to the store.
///
/// DLM_ALREADY_EXISTS, and the count is what it was; DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED,
/// DLM_TABLE_CREATION_ERROR, DLM_INTERNAL_ERROR when the store does not serve; DLM_IN_DOUBT; DLM_CLOSED;
/// DLM_INVALID_ARGUMENT
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_create(
    latch: *const dlm_latch,
    count: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(latch)?.create(count)?)) }
}

/// Makes the latch for `count` participants with names: each counts once, see dlm_latch_count_down_as().
/// Blocks and fails as dlm_latch_create(), DLM_INVALID_ARGUMENT also for a name that is not 1 to 255 bytes
/// or is given twice, and where the store cannot keep names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_create_for(
    latch: *const dlm_latch,
    participants: *const *const c_char,
    count: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let latch = find(latch)?;
            let participants: Outcome<Vec<_>> = slice("participants", participants, count)?
                .iter()
                .map(|name| text("participant", *name))
                .collect();
            Ok(latch.create_for(&participants?)?)
        })
    }
}

/// Makes the latch unless it exists. `created_out` may be NULL: whether this call made it. Blocks and fails
/// as dlm_latch_create(), without DLM_ALREADY_EXISTS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_get_or_create(
    latch: *const dlm_latch,
    count: i64,
    created_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(created_out, false);
        status(error_out, || {
            let created = find(latch)?.get_or_create(count)?;
            write(created_out, created);
            Ok(())
        })
    }
}

/// How many count-downs are missing right now; below zero when more came than were expected. Blocks for
/// one read of the store.
///
/// DLM_NOT_FOUND; DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_INTERNAL_ERROR; DLM_CLOSED
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_count(
    latch: *const dlm_latch,
    count_out: *mut i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer(count_out, error_out, || Ok(find(latch)?.count()?)) }
}

/// Counts one's own farm's count down by one, exactly once, however many replies are lost on the way.
/// Blocks for one call to the store.
///
/// DLM_NOT_FOUND where that count was not made or has expired; DLM_IN_DOUBT when it could not be learned
/// whether it counted: calling again may count twice (dlm_latch_count_down_as() never does); those of
/// dlm_latch_create()
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_count_down(
    latch: *const dlm_latch,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(latch)?.count_down()?)) }
}

/// Counts up by one, for latches of kind DLM_LATCH_COUNT_UP_DOWN. Blocks and fails as
/// dlm_latch_count_down(), DLM_INVALID_ARGUMENT for the other kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_count_up(
    latch: *const dlm_latch,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(latch)?.count_up()?)) }
}

/// Counts down in the name of a participant, at most once per name. `counted_out` may
/// be NULL: true when it counted now, false when that name had counted before. After DLM_IN_DOUBT it is
/// safe to call again. Blocks and fails as dlm_latch_count_down().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_count_down_as(
    latch: *const dlm_latch,
    participant: *const c_char,
    counted_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(counted_out, false);
        status(error_out, || {
            let counted = find(latch)?.count_down_as(text("participant", participant)?)?;
            write(counted_out, counted);
            Ok(())
        })
    }
}

/// The names that are expected in this farm and have not counted down. Blocks for one read of the store.
/// On DLM_OK the caller owns `*names_out`. Fails as dlm_latch_count().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_pending(
    latch: *const dlm_latch,
    names_out: *mut *mut dlm_names,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer(names_out, error_out, || keep(Names::new(find(latch)?.pending()?))) }
}

/// Waits until the latch is open, for up to `wait_ms`: 0 looks once, DLM_FOREVER never gives up. `cancel`
/// may be NULL. `*open_out` is false when the time was over first.
///
/// Blocks; while the store does not serve, the wait goes on. A count-down elsewhere is seen within the
/// option poll, 5 s unless set, and mostly much sooner.
///
/// DLM_NOT_FOUND, also when the latch is gone before it opened; what somebody has to mend first:
/// DLM_TABLE_CREATION_ERROR when the table is disabled or is not one for latches, DLM_INTERNAL_ERROR when the
/// store denies access or holds something that is no count; DLM_CANCELLED; DLM_CLOSED; when the time is
/// over and the store did not serve the last look, what that failed with
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_await_open(
    latch: *const dlm_latch,
    wait_ms: i64,
    cancel: *const dlm_cancel,
    open_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(open_out, error_out, || {
            let latch = find(latch)?;
            let mut how = AwaitOptions::new();
            if let Some(wait) = wait_without_default(wait_ms)? {
                how = how.wait(wait);
            }
            if let Some(cancel) = find_optional(cancel)? {
                how = how.cancel(&cancel);
            }
            Ok(latch.await_open_with(&how)?)
        })
    }
}

/// Watches the latch without a thread of the caller: see dlm_watch_fd(). However many
/// latches are watched, a manager's few threads look at them, and each latch once for all who watch it.
/// Never blocks. On DLM_OK the caller owns `*watch_out`.
///
/// DLM_CLOSED; DLM_INTERNAL_ERROR when the system has no thread for it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_watch(
    latch: *const dlm_latch,
    watch_out: *mut *mut dlm_watch,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer(watch_out, error_out, || keep(find(latch)?.watch()?)) }
}

/// Frees a latch, not what is in the store. NULL is allowed. Threads that wait for it go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_free(latch: *mut dlm_latch) {
    freeing(|| free(latch));
}

/// A descriptor for poll() and the like, readable as soon as dlm_watch_is_open() has something else to
/// say than "not yet". It belongs to the watch, as that of dlm_lease_lost_fd() to its lease.
///
/// DLM_INTERNAL_ERROR when the process has no descriptor left
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_watch_fd(
    watch: *const dlm_watch,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer(fd_out, error_out, || Ok(find(watch)?.fd()?.as_raw_fd())) }
}

/// Whether the latch was seen open. Once true it stays so, also if a latch that counts up and down has
/// closed again. No I/O; never blocks.
///
/// DLM_NOT_FOUND when the latch was never made or is gone, DLM_CLOSED, and what else ends a wait for it
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_watch_is_open(
    watch: *const dlm_watch,
    open_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer(open_out, error_out, || Ok(find(watch)?.is_open()?)) }
}

/// Ends a watch and frees it. NULL is allowed. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_watch_free(watch: *mut dlm_watch) {
    freeing(|| free(watch));
}

/// Creates what latches need in the store (a table). Making a latch does it where it is missing; this is
/// for those who would not have the first latch wait for that. Blocks and fails as
/// dlm_manager_initialize(), DLM_INVALID_ARGUMENT where the store keeps locks only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_initialize_latches(
    manager: *const dlm_manager,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(manager)?.initialize_latches()?)) }
}

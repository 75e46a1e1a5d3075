use std::ffi::c_char;
use std::os::fd::AsRawFd;

use super::answer::{answer, status};
use super::arguments::{level, slice, text, ttl, wait_without_default};
use super::cancel::dlm_cancel;
use super::described::Described;
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::manager::dlm_manager;
use super::process::{Handle, PerProcess, find, find_optional, free, into_handle};
use super::status::dlm_status;
use super::texts::{TextList, dlm_texts};
use crate::{AwaitOptions, Latch, LatchKind, LatchWatch};

/// Kind of a latch that only counts down: it opens once, when its count reaches zero.
pub const DLM_LATCH_COUNT_DOWN: i32 = 1;
/// Kind of a latch that counts up and down: it is open whenever its count is zero or less.
pub const DLM_LATCH_COUNT_UP_DOWN: i32 = 2;

/// A count in the store that all processes share. They can wait until it reaches zero. A latch
/// expires when its TTL has passed since its last change, or ends by dlm_latch_delete(). Then every call
/// except those that create it fails with DLM_NOT_FOUND.
pub struct dlm_latch(());

/// A watch on a latch, for event loops.
pub struct dlm_watch(());

static LATCHES: PerProcess<HandleTable<Described<Latch>>> = PerProcess::new();
static WATCHES: PerProcess<HandleTable<LatchWatch>> = PerProcess::new();

impl Handle for dlm_latch {
    type Object = Described<Latch>;
    const NAME: &str = "dlm_latch";
    const KIND: u8 = 9;
    fn table() -> &'static PerProcess<HandleTable<Described<Latch>>> {
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

/// Creates a handle of the latch `id`. Does no I/O and creates nothing in the store: see
/// dlm_latch_create(). Never blocks. On DLM_OK the caller owns `*latch_out`. All processes that use the
/// latch must agree on:
/// * `level`: DLM_LEVEL_DC is the count of the manager's farm, DLM_LEVEL_XDC the sum of the counts of all
///   farms;
/// * `kind`: DLM_LATCH_COUNT_DOWN or DLM_LATCH_COUNT_UP_DOWN;
/// * `ttl_ms`: how long the latch lives after each change. DLM_DEFAULT: the option latch_ttl, by default
///   one day.
///
/// Errors: DLM_INVALID_ARGUMENT also if the manager has no farm, the id is empty or longer than 1024 bytes,
/// or the store keeps locks only.
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
        answer("latch_out", latch_out, error_out, || {
            let manager = find(manager)?;
            let latch = manager.latch(text("latch id", id)?, self::level(level)?, self::kind(kind)?)?;
            match ttl(ttl_ms)? {
                None => into_handle(latch),
                Some(ttl) => into_handle(latch.with_ttl(ttl)?),
            }
        })
    }
}

/// Creates the latch in the store. It opens after `count` count-downs, 0 to 2147483647. For level XDC this
/// creates the count of the manager's farm. Blocks for one call to the store. The first call may also
/// create a table, see dlm_manager_initialize_latches().
///
/// Errors: DLM_ALREADY_EXISTS if the latch exists: its count is unchanged; DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED, DLM_TABLE_CREATION_ERROR or DLM_INTERNAL_ERROR if the store does not serve the
/// request; DLM_IN_DOUBT if it is unknown whether the latch was created; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_create(
    latch: *mut dlm_latch,
    count: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(latch)?.create(count)?)) }
}

/// Creates the latch for `count` named participants. Each counts down once, see dlm_latch_count_down_as().
/// While one of them is missing, nobody else counts, and no count without a name is possible.
/// Blocks and fails like dlm_latch_create(). DLM_INVALID_ARGUMENT also if a name is not 1 to 255 bytes
/// without control characters, if a name is listed twice, or if the store cannot keep names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_create_for(
    latch: *mut dlm_latch,
    participants: *const *const c_char,
    count: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let latch = find(latch)?;
            Ok(latch.create_for(&names(participants, count)?)?)
        })
    }
}

/// # Safety
/// As the header asks of `participants` and `count`.
unsafe fn names<'a>(participants: *const *const c_char, count: usize) -> Outcome<Vec<&'a str>> {
    // SAFETY: as the caller promises.
    unsafe {
        slice("participants", participants, count)?.iter().map(|name| text("participant", *name)).collect()
    }
}

/// Creates the latch unless it exists. `created_out` may be NULL. `*created_out` is true if this call
/// created the latch. Blocks and fails like dlm_latch_create(), but not with DLM_ALREADY_EXISTS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_get_or_create(
    latch: *mut dlm_latch,
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

/// Begins the latch anew with `count`, 0 to 2147483647, whatever its count is. What was counted before has no
/// effect any more, also if it is still on its way, and everybody may count again. So reset a latch when all
/// have counted, and before anybody counts for the next time. A wait that has not yet seen the latch open waits
/// for its next opening. For level XDC this changes the count of the manager's farm. Blocks for two calls to the store.
///
/// Errors: DLM_NOT_FOUND if that count was never created or has expired; DLM_IN_DOUBT if it is unknown whether the
/// latch was reset: another call resets it once more, with all that was counted in between; DLM_INVALID_ARGUMENT
/// also if the store cannot do this; and the other errors of dlm_latch_create(), except DLM_ALREADY_EXISTS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_reset(
    latch: *mut dlm_latch,
    count: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(latch)?.reset(count)?)) }
}

/// Begins the latch anew for `count` named participants, see dlm_latch_create_for(). Blocks and fails like
/// dlm_latch_reset() and dlm_latch_create_for().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_reset_for(
    latch: *mut dlm_latch,
    participants: *const *const c_char,
    count: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(latch)?.reset_for(&names(participants, count)?)?)) }
}

/// Deletes the count of the manager's farm. If no other farm has one, the latch does not exist any more: every
/// call but those that create it fails with DLM_NOT_FOUND, and so does every wait. Blocks and fails like
/// dlm_latch_reset(). After DLM_IN_DOUBT, a second call that fails with DLM_NOT_FOUND says that the latch is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_delete(
    latch: *mut dlm_latch,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(latch)?.delete()?)) }
}

/// Writes the current count to `*count_out`: the number of missing count-downs, below zero if there were
/// more than expected. Blocks for one read of the store.
///
/// Errors: DLM_NOT_FOUND if the latch was never created or has expired; DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED or DLM_INTERNAL_ERROR if the store does not serve the request; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_count(
    latch: *const dlm_latch,
    count_out: *mut i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("count_out", count_out, error_out, || Ok(find(latch)?.count()?)) }
}

/// Counts down the count of the manager's farm by one. It counts exactly once, even if replies are lost.
/// Blocks for one call to the store.
///
/// Errors: DLM_NOT_FOUND if that count was never created or has expired; DLM_IN_DOUBT if it is unknown
/// whether the call counted: another call may count twice (dlm_latch_count_down_as() never does);
/// DLM_INVALID_ARGUMENT while a latch of dlm_latch_create_for() waits for participants; and the other errors of
/// dlm_latch_create(), except DLM_ALREADY_EXISTS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_count_down(
    latch: *mut dlm_latch,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(latch)?.count_down()?)) }
}

/// Counts up by one. Blocks and fails like dlm_latch_count_down(). DLM_INVALID_ARGUMENT unless the latch is
/// of kind DLM_LATCH_COUNT_UP_DOWN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_count_up(
    latch: *mut dlm_latch,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(latch)?.count_up()?)) }
}

/// Counts down in the name of a participant, at most once per name. `counted_out` may be NULL.
/// `*counted_out` is true if this call counted, and false if that name had counted before. After
/// DLM_IN_DOUBT it is safe to call again. Blocks and fails like dlm_latch_count_down(). DLM_INVALID_ARGUMENT also for
/// a name that a latch of dlm_latch_create_for() does not wait for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_count_down_as(
    latch: *mut dlm_latch,
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

/// Writes to `*names_out` the names that are expected in this farm and have not counted down. On DLM_OK the
/// caller owns it. Blocks and fails like dlm_latch_count(). DLM_INVALID_ARGUMENT also if the store cannot
/// keep names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_pending(
    latch: *const dlm_latch,
    names_out: *mut *mut dlm_texts,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("names_out", names_out, error_out, || into_handle(TextList::new(find(latch)?.pending()?)))
    }
}

/// Writes to `*names_out` the names that have counted down in this farm, expected or not. On DLM_OK the caller owns
/// it. Blocks and fails like dlm_latch_pending().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_arrived(
    latch: *const dlm_latch,
    names_out: *mut *mut dlm_texts,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("names_out", names_out, error_out, || {
            into_handle(TextList::new(find(latch)?.roster()?.arrived))
        })
    }
}

/// Returns the name of the latch. "" for NULL. The text lives until `latch` is freed. Never returns NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_name(latch: *const dlm_latch) -> *const c_char {
    value(c"".as_ptr(), || Ok(find(latch)?.text(|latch| latch.name().to_string())))
}

/// Waits until the latch is open. Blocks for up to `wait_ms`: 0 reads the latch once, DLM_FOREVER waits
/// without limit. `cancel` may be NULL. `*open_out` is false if the wait timed out.
///
/// The wait continues while the store does not serve requests. It detects a count-down by another process
/// within the option poll, by default 5 s, and usually much sooner.
///
/// Errors: DLM_NOT_FOUND if the latch was never created, or expired before it opened; DLM_CANCELLED;
/// DLM_CLOSED. Two errors that only a person can repair: DLM_TABLE_CREATION_ERROR if the table is disabled
/// or is not a table for latches; DLM_INTERNAL_ERROR if the store denies access or its value is not a
/// count. If the wait times out and the last read of the store failed: the error of that read.
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
        answer("open_out", open_out, error_out, || {
            let latch = find(latch)?;
            let mut how = AwaitOptions::new();
            if let Some(wait) = wait_without_default("wait_ms", wait_ms)? {
                how = how.wait(wait);
            }
            if let Some(cancel) = find_optional(cancel)? {
                how = how.cancel(&cancel);
            }
            Ok(latch.await_open_with(&how)?)
        })
    }
}

/// Watches the latch without a thread of the caller: see dlm_watch_fd(). The manager's background threads
/// read all watched latches, and read each latch once for all its watches. Never blocks. On DLM_OK the
/// caller owns `*watch_out`.
///
/// Errors: DLM_INTERNAL_ERROR if the system cannot start a thread; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_watch(
    latch: *const dlm_latch,
    watch_out: *mut *mut dlm_watch,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("watch_out", watch_out, error_out, || into_handle(find(latch)?.watch()?)) }
}

/// Frees the handle of a latch. The latch in the store is unchanged. NULL is allowed. Threads that wait for
/// the latch continue to wait. Blocks only as dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_latch_free(latch: *mut dlm_latch) {
    freeing(|| free(latch));
}

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It becomes
/// readable when the latch was seen open, or dlm_watch_is_open() would fail. The watch owns the descriptor.
/// Every call writes the same one. Do not read or close it. dlm_watch_free() closes it. Never blocks.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_watch_fd(
    watch: *const dlm_watch,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("fd_out", fd_out, error_out, || Ok(find(watch)?.fd()?.as_raw_fd())) }
}

/// Sets `*open_out` to true if the latch was seen open. It then stays true, even if a latch that counts up
/// and down has closed again. Does no I/O and never blocks.
///
/// Errors: DLM_NOT_FOUND if the latch was never created or has expired; DLM_CLOSED; and the other errors
/// that end a wait in dlm_latch_await_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_watch_is_open(
    watch: *const dlm_watch,
    open_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("open_out", open_out, error_out, || Ok(find(watch)?.is_open()?)) }
}

/// Ends a watch and frees it. NULL is allowed. Blocks only as dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_watch_free(watch: *mut dlm_watch) {
    freeing(|| free(watch));
}

/// Creates what latches need in the store (a table) if it is missing, and checks that it answers. Without
/// this call, the first dlm_latch_create() creates the table, and takes longer. Blocks and fails like
/// dlm_manager_initialize(). DLM_INVALID_ARGUMENT also if the store keeps locks only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_initialize_latches(
    manager: *mut dlm_manager,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(manager)?.initialize_latches()?)) }
}

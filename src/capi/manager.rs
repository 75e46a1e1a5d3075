use std::ffi::c_char;

use super::answer::{answer, status};
use super::arguments::{level, text};
use super::error::dlm_error;
use super::failure::Failure;
use super::guard::freeing;
use super::handles::HandleTable;
use super::lock::dlm_lock;
use super::options::{dlm_options, given};
use super::process::{Handle, PerProcess, find, free, keep};
use super::status::dlm_status;
use crate::LockManager;

/// One store and the locks taken in it for one client id. Make one and share it.
pub struct dlm_manager(());

static MANAGERS: PerProcess<HandleTable<LockManager>> = PerProcess::new();

impl Handle for dlm_manager {
    type Object = LockManager;
    const NAME: &str = "dlm_manager";
    const KIND: u8 = 3;
    fn table() -> &'static PerProcess<HandleTable<LockManager>> {
        &MANAGERS
    }
}

/// Numbers about a manager, right now. Later versions append to it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct dlm_stats {
    /// Leases acquired here and not released, lost or ended by close. Those whose time is over count until
    /// that is noticed by a call.
    pub leases_held: u64,
    /// Threads of this process that wait for a lock.
    pub threads_waiting: u64,
}

// Of a `dlm_stats`: in the version that had the fewest fields, and in any to come.
const STATS_SIZE_FIRST: usize = 16;
const STATS_SIZE_MAX: usize = 4096;

/// Opens the store at `uri`: "memory:", "embedded:", "embedded:/path",
/// "hbase://master1:16000,master2:16000/table", "hbase+thrift://host:9090/table" or
/// "aerospike://host1:3000,host2/namespace/setSuffix", with options as "?key=value&key=value". `options`
/// may be NULL, and wins over the URI where both have a key.
///
/// "embedded:" is the directory /var/tmp/dlm-<effective uid>, whatever the environment says, and it is
/// refused in a systemd unit with PrivateTmp=. "embedded:/path?group=on" serves the users of the directory's group: a
/// member can end the other members' processes by SIGBUS, so they must trust each other.
///
/// Creates nothing in the store, see dlm_manager_initialize(). Blocks while an embedded store is opened,
/// for milliseconds; HBase and Aerospike are first asked by the first call that needs them. On DLM_OK the
/// caller owns `*manager_out`.
///
/// The option strict=true diagnoses the store here, and refuses one that fails. That blocks for several of
/// the store's time-outs (the option timeout) at worst, and takes, renews and releases one lock.
///
/// DLM_INVALID_ARGUMENT before any I/O, for unknown keys too; DLM_CONNECTION_ERROR, DLM_INTERNAL_ERROR;
/// DLM_RETRIES_EXHAUSTED with strict=true when the store is not safe for locks
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_open(
    uri: *const c_char,
    options: *const dlm_options,
    manager_out: *mut *mut dlm_manager,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(manager_out, error_out, || {
            let mut builder = LockManager::builder().store_uri(text("store URI", uri)?);
            for (key, value) in given(options)? {
                builder = builder.option(&key, &value);
            }
            keep(builder.open()?)
        })
    }
}

/// Creates what is missing in the store (the table) and checks that the store answers. Safe to repeat,
/// and to run in many processes at once. Blocks, for up to a minute where a table is made.
///
/// DLM_TABLE_CREATION_ERROR, DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_CLOSED
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_initialize(
    manager: *const dlm_manager,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(manager)?.initialize()?)) }
}

/// Makes the lock `id`. Does no I/O and takes nothing: see dlm_lock_acquire(). `level` is DLM_LEVEL_DC or
/// DLM_LEVEL_XDC. Never blocks. On DLM_OK the caller owns `*lock_out`.
///
/// DLM_INVALID_ARGUMENT when the id is empty or longer than 1024 bytes, or for level DC without a farm
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_lock(
    manager: *const dlm_manager,
    id: *const c_char,
    level: i32,
    lock_out: *mut *mut dlm_lock,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(lock_out, error_out, || {
            let manager = find(manager)?;
            keep(manager.lock(text("lock id", id)?, self::level(level)?)?)
        })
    }
}

/// Writes numbers about the manager to `*stats_out`. `size` is sizeof(struct dlm_stats): fields that the
/// library does not know are set to 0. All fields are 0 on failure. Never blocks for long.
///
/// DLM_INVALID_ARGUMENT
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_stats(
    manager: *const dlm_manager,
    stats_out: *mut dlm_stats,
    size: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        // Before anything can fail. A size that no version of the struct has is not trusted.
        if !stats_out.is_null() {
            let size = if size <= STATS_SIZE_MAX { size } else { STATS_SIZE_FIRST };
            stats_out.cast::<u8>().write_bytes(0, size);
        }
        status(error_out, || {
            if stats_out.is_null() {
                return Err(Failure::invalid("the output is NULL"));
            }
            let stats = find(manager)?.stats();
            let numbers = [stats.leases_held, stats.threads_waiting];
            if !size.is_multiple_of(8) || !(8..=STATS_SIZE_MAX).contains(&size) {
                return Err(Failure::invalid(format!(
                    "a size of {size} bytes is not allowed: that of a struct dlm_stats, {}",
                    size_of::<dlm_stats>()
                )));
            }
            for at in 0..size / 8 {
                // As many as the caller's version has, whichever is the older.
                let number = numbers.get(at).copied().unwrap_or_default();
                super::guard::write(stats_out.cast::<u64>().wrapping_add(at), number);
            }
            Ok(())
        })
    }
}

/// Ends the manager: waiting threads return DLM_CLOSED, held leases are released, the library's threads
/// are joined. Its locks and leases answer DLM_CLOSED or DLM_LEASE_LOST from now on; all handles must
/// still be freed. Closing twice does nothing.
///
/// Blocks for up to one store time-out for the releases, another where a renewal is under way, and a few
/// seconds for the threads. On failure: the first release that failed; that lock is free when its TTL
/// ends, and the others were tried all the same.
///
/// DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_close(
    manager: *const dlm_manager,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(manager)?.close()?)) }
}

/// Frees a manager. NULL is allowed. Its locks and leases go on working until they are freed, so close it
/// first to end them. Blocks for a few seconds at the most, and only for the last of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_free(manager: *mut dlm_manager) {
    freeing(|| free(manager));
}

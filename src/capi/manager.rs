use std::ffi::c_char;
use std::time::Duration;

use super::answer::{answer, status};
use super::arguments::{level, output, text, wait_without_default};
use super::described::Described;
use super::error::dlm_error;
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::lock::dlm_lock;
use super::options::{dlm_options, given};
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use super::structs::{Versioned, check_size, write_struct, zero};
use super::texts::{TextList, dlm_texts};
use crate::{LockManager, Severity, Stats};

/// One store, with the locks and latches of one client id in it. Create one and share it.
pub struct dlm_manager(());

static MANAGERS: PerProcess<HandleTable<Described<LockManager>>> = PerProcess::new();

impl Handle for dlm_manager {
    type Object = Described<LockManager>;
    const NAME: &str = "dlm_manager";
    const KIND: u8 = 3;
    fn table() -> &'static PerProcess<HandleTable<Described<LockManager>>> {
        &MANAGERS
    }
}

/// Current numbers of a manager, and counts of its store since it was opened. Later versions append fields.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct dlm_stats {
    /// Leases that this manager acquired, and that were not released, lost or ended by dlm_manager_close().
    /// An expired lease counts until a call notices that it has expired.
    pub leases_held: u64,
    /// Threads of this process that wait for a lock of this manager, and pending acquisitions that have not
    /// finished.
    pub threads_waiting: u64,
    /// Tries of an acquire that the store refused although the lock was free, because the lock's last number was
    /// not below the number of the try: the clock of another machine is ahead. HBase with layout=own.
    pub stale_numbers: u64,
    /// Reads that were needed to find out who holds a lock after the store refused to create its record. HBase
    /// and Aerospike.
    pub reads_after_refusal: u64,
    /// Grants of locks for which the store had no number, so that the clock gave the first one: locks that were
    /// never used, or not for so long that their number expired. HBase with layout=own.
    pub fences_seeded: u64,
    /// Notices that were sent. They may be lost on the way.
    pub notices_sent: u64,
    /// Notices that could not be sent: their receiver has ended, or gets too many.
    pub notices_unsent: u64,
    /// Datagrams that quoted nothing of this manager, and were ignored.
    pub notices_ignored: u64,
    /// Times that a notice made a waiter ask the store earlier.
    pub early_asks: u64,
    /// Leases of locks that had stayed with this process, so that the store was not asked: the option linger.
    pub leases_retaken: u64,
}

// SAFETY: numbers.
unsafe impl Versioned for dlm_stats {
    const NAME: &str = "dlm_stats";
    const FIRST: usize = 80;
}

impl dlm_stats {
    fn of(stats: &Stats) -> dlm_stats {
        dlm_stats {
            leases_held: stats.leases_held,
            threads_waiting: stats.threads_waiting,
            stale_numbers: stats.stale_numbers,
            reads_after_refusal: stats.reads_after_refusal,
            fences_seeded: stats.fences_seeded,
            notices_sent: stats.notices_sent,
            notices_unsent: stats.notices_unsent,
            notices_ignored: stats.notices_ignored,
            early_asks: stats.early_asks,
            leases_retaken: stats.leases_retaken,
        }
    }
}

/// Opens the store at `uri`: "memory:", "embedded:", "embedded:/path",
/// "hbase://master1:16000,master2:16000/table", "hbase+thrift://host:9090/table" or
/// "aerospike://host1:3000,host2/namespace/setSuffix". Options may follow as "?key=value&key=value".
/// `options` may be NULL. If both set a key, `options` wins over the URI. On DLM_OK the caller owns
/// `*manager_out`.
///
/// "embedded:" is the directory /var/tmp/dlm-<effective uid>, regardless of environment variables. It is
/// refused in a systemd unit with PrivateTmp=. "embedded:/path?group=on" serves the users of the
/// directory's group. A member can kill the other members' processes with SIGBUS, so they must trust each
/// other.
///
/// Creates nothing in the store, see dlm_manager_initialize(). Opening an embedded store takes
/// milliseconds, and at most about half a minute while other threads and processes open it. HBase and
/// Aerospike are contacted by the first call that needs them.
///
/// The option strict=true diagnoses the store and refuses it if it is not safe for locks. In the worst case
/// this blocks for several store time-outs (the option timeout). It acquires, renews and releases one lock.
///
/// Errors: DLM_INVALID_ARGUMENT before any I/O, also for unknown keys; DLM_CONNECTION_ERROR or
/// DLM_INTERNAL_ERROR if the store cannot be opened; DLM_RETRIES_EXHAUSTED if strict=true and the store is
/// not safe for locks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_open(
    uri: *const c_char,
    options: *const dlm_options,
    manager_out: *mut *mut dlm_manager,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("manager_out", manager_out, error_out, || {
            let mut builder = LockManager::builder().store_uri(text("store URI", uri)?);
            for (key, value) in given(options)? {
                builder = builder.option(&key, &value);
            }
            into_handle(builder.open()?)
        })
    }
}

/// Checks that the store answers, and changes nothing. For programs that should say at their start that their store is
/// missing, instead of at their first lock. Blocks for `wait_ms` at most, and for about a second longer while it finds out
/// what is at the address, and while the system's resolver looks up a name. DLM_FOREVER means the store time-out, and so
/// does a longer time. A time below a second is one second, which a busy store needs.
///
/// A store that has not answered this manager before fails within a second if nothing listens at its address, if no such
/// host exists, or if another service answers there. The message says what was found. "embedded:" and "memory:" always
/// answer.
///
/// Errors: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_reach(
    manager: *const dlm_manager,
    wait_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let manager = find(manager)?;
            let limit = wait_without_default("wait_ms", wait_ms)?;
            Ok(manager.reach(limit.unwrap_or(Duration::MAX))?)
        })
    }
}

/// Creates what locks need in the store (a table) if it is missing, and checks that the store answers. Safe
/// to repeat, and to call in many processes at once. Blocks, for up to a minute if it creates a table.
///
/// Errors: DLM_TABLE_CREATION_ERROR, DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_initialize(
    manager: *mut dlm_manager,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(manager)?.initialize()?)) }
}

/// Creates a handle of the lock `id`, without acquiring it: see dlm_lock_acquire(). `level` is DLM_LEVEL_DC
/// or DLM_LEVEL_XDC. Does no I/O and never blocks. On DLM_OK the caller owns `*lock_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also if the id is empty or longer than 1024 bytes, or if the level is DC
/// and the manager has no farm.
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
        answer("lock_out", lock_out, error_out, || {
            let manager = find(manager)?;
            into_handle(manager.lock(text("lock id", id)?, self::level(level)?)?)
        })
    }
}

/// Checks whether the store is safe for locks, as `dlm doctor` does. Writes a line for each finding to `*findings_out`:
/// "OK ", "WARN " or "FAIL ", what was checked, and what was found. On DLM_OK the caller owns it. `*is_safe_out` is false
/// if a finding is a failure, and NULL is allowed. Blocks for up to a few store time-outs. Acquires and releases one lock
/// of its own.
///
/// Errors: DLM_CLOSED. A store that does not answer is a finding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_diagnose(
    manager: *mut dlm_manager,
    findings_out: *mut *mut dlm_texts,
    is_safe_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(is_safe_out, false);
        answer("findings_out", findings_out, error_out, || {
            let found = find(manager)?.diagnose()?;
            let list = into_handle(TextList::new(found.iter().map(ToString::to_string).collect()))?;
            write(is_safe_out, found.iter().all(|diagnostic| diagnostic.severity != Severity::Fail));
            Ok(list)
        })
    }
}

/// Returns the URI of the store, without credentials. "" for NULL. The text lives until `manager` is freed. Never returns
/// NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_store(manager: *const dlm_manager) -> *const c_char {
    value(c"".as_ptr(), || Ok(find(manager)?.text(LockManager::store)))
}

/// Writes current numbers of the manager to `*stats_out`. `stats_size` is sizeof(struct dlm_stats). On failure all fields
/// are 0. Never blocks for long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_stats(
    manager: *const dlm_manager,
    stats_out: *mut dlm_stats,
    stats_size: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        zero(stats_out, stats_size);
        status(error_out, || {
            output("stats_out", stats_out)?;
            let manager = find(manager)?;
            check_size::<dlm_stats>(stats_size)?;
            write_struct(stats_out, stats_size, &dlm_stats::of(&manager.stats()));
            Ok(())
        })
    }
}

/// Makes a page of metrics in Prometheus' text format, version 0.0.4: what has happened to the manager's locks since the
/// first call of this function, by class, and its calls to the store. So call it once at the start. docs/metrics.md has the
/// names. `*text_out` is a list of one text: dlm_texts_at(text, 0). On DLM_OK the caller owns it. Never blocks for long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_metrics_text(
    manager: *mut dlm_manager,
    text_out: *mut *mut dlm_texts,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("text_out", text_out, error_out, || {
            into_handle(TextList::new(vec![find(manager)?.metrics_text()]))
        })
    }
}

/// Closes the manager: waiting threads fail with DLM_CLOSED, held leases are released, and the library's
/// threads are joined. From then on, dlm_lease_check() fails with DLM_LEASE_LOST, dlm_lease_release() has
/// nothing to release, unless the release by this call failed, and all other calls that use the store fail
/// with DLM_CLOSED. All handles must still be freed. Closing twice does nothing. It may be called from an exit
/// handler (atexit()).
///
/// Blocks for up to one store time-out for the releases, for another one if a renewal, a read of latches or a
/// request of a pending acquisition is in progress, and for a few seconds for the threads.
///
/// Errors: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED or DLM_IN_DOUBT from the first release that failed.
/// That lock becomes free when its TTL ends. The library has tried to release the other locks as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_close(
    manager: *mut dlm_manager,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(manager)?.close()?)) }
}

/// Frees a manager. NULL is allowed. Its locks, leases, latches and watches continue to work until they are
/// freed. To end them, call dlm_manager_close() first. Freeing the last of all these handles joins the
/// library's threads, which blocks for a few seconds, and for up to one store time-out if a read of latches
/// or a request of a pending acquisition is in progress. Otherwise this function does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_free(manager: *mut dlm_manager) {
    freeing(|| free(manager));
}

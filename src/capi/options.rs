use std::ffi::c_char;

use super::answer::status;
use super::arguments::text;
use super::error::dlm_error;
use super::failure::Outcome;
use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use crate::runtime::sync::real::Mutex;

/// Settings for dlm_manager_open(), by key. The URI of a store takes the same keys.
pub struct dlm_options(());

static OPTIONS: PerProcess<HandleTable<<dlm_options as Handle>::Object>> = PerProcess::new();

impl Handle for dlm_options {
    type Object = Mutex<Vec<(String, String)>>;
    const NAME: &str = "dlm_options";
    const KIND: u8 = 2;
    fn table() -> &'static PerProcess<HandleTable<Self::Object>> {
        &OPTIONS
    }
}

/// Creates an empty set of options. Returns NULL only if too many are open. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_options_new() -> *mut dlm_options {
    value(std::ptr::null_mut(), || into_handle(Mutex::<Vec<_>>::default()))
}

/// Sets `key` to `value`. A later value replaces an earlier one. Never blocks.
///
/// | key | default | |
/// |---|---|---|
/// | client | none | required: the service that uses the locks; part of every name |
/// | farm | none | the data centre; part of the names of level DC; latches need it |
/// | ttl | 90s | how long a lease lasts unless it is renewed |
/// | wait | 90s | how long an acquire waits |
/// | retry | 1s | how long a waiting process pauses between two attempts, plus or minus a tenth |
/// | timeout | 10s | the time limit of one call to the store |
/// | clock_margin | 100000ppm | how much earlier a lease ends for its holder than in the store, in parts per million of its TTL: a tenth |
/// | lock_delay | 0s | how long nobody gets the lock after the lease of a dead holder |
/// | linger | 0s | how long a released lock stays with its process, which takes it again without the store |
/// | history | 0s | how long the store keeps what happened to each lock; 0s writes nothing |
/// | dies_with_process | false | true: others get the lock at once if the process dies (embedded) |
/// | names | strict | compat allows # and control characters in client and farm ids |
/// | purpose | none | a text that others see while the lock is held |
/// | strict | false | true refuses a store that dlm doctor reports as unsafe |
/// | latch_ttl | 1d | how long a latch lives after its last change |
/// | poll | 5s | the longest pause between two reads of an awaited latch, plus or minus a tenth |
/// | background_threads | 2 | the most threads that poll latches and release locks in doubt |
/// | notices | local | local, off, udp://ADDRESS[:PORT]: where waiters receive notices of a release |
/// | notices_all | false | true: nobody polls, so waiters need not leave the lock free now and then |
///
/// Times are whole numbers with a unit: ms, s, m, h or d. HBase and Aerospike have more keys, see docs/hbase.md and
/// docs/aerospike.md. This function does not check keys and values: dlm_manager_open() refuses unknown keys and
/// values that are not allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_options_set(
    options: *mut dlm_options,
    key: *const c_char,
    value: *const c_char,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let options = find(options)?;
            let (key, value) = (text("key", key)?, text("value", value)?);
            options.lock().push((key.to_owned(), value.to_owned()));
            Ok(())
        })
    }
}

/// Returns the options set so far, in order. None for NULL.
pub(super) fn given(options: *const dlm_options) -> Outcome<Vec<(String, String)>> {
    Ok(super::process::find_optional(options)?.map_or_else(Vec::new, |options| options.lock().clone()))
}

/// Frees options. NULL is allowed. Managers that were opened with them do not need them. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_options_free(options: *mut dlm_options) {
    freeing(|| free(options));
}

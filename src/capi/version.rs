use std::ffi::{CStr, c_char};

use super::answer::status;
use super::call::dlm_call;
use super::cancel::dlm_cancel;
use super::completions::dlm_completions;
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::value;
use super::history::dlm_history;
use super::id_lock;
use super::key_lock;
use super::latch::{dlm_latch, dlm_watch};
use super::lease::dlm_lease;
use super::lease_set::dlm_lease_set;
use super::lock::dlm_lock;
use super::lock_list::dlm_lock_list;
use super::manager::dlm_manager;
use super::options::dlm_options;
use super::pending::dlm_pending;
use super::process::open;
use super::row::dlm_row;
use super::row_cells::dlm_row_cells;
use super::seen::dlm_seen;
use super::status::dlm_status;
use super::table::dlm_table;
use super::texts::dlm_texts;

/// Number of this header's binary interface. A change that breaks existing programs increases it. Additions
/// do not.
pub const DLM_ABI: u32 = 1;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version holds no NUL"),
};

const VERSION_NUMBER: u32 = part(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
    + part(env!("CARGO_PKG_VERSION_MINOR")) * 1000
    + part(env!("CARGO_PKG_VERSION_PATCH"));

const fn part(digits: &str) -> u32 {
    match u32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("a part of a version is a number"),
    }
}

/// Returns the version of the loaded library, such as "0.1.0". DLM_VERSION is the version of this header.
/// The text is static. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Returns the version of the loaded library as a number to compare: major * 1,000,000 + minor * 1,000 + patch, such as
/// 1000 for 0.1.0. DLM_VERSION_NUMBER is the number of this header, for `#if` too. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_version_number() -> u32 {
    VERSION_NUMBER
}

/// Checks that the loaded library has the binary interface of this header. Pass DLM_ABI. The number is also
/// part of the shared library's name, so only programs that load the library themselves need this call.
/// Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT if the interfaces differ. The message has both versions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_abi_check(abi: u32, error_out: *mut *mut dlm_error) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || match abi {
            DLM_ABI => Ok(()),
            other => {
                let version = env!("CARGO_PKG_VERSION");
                Err(Failure::invalid(format!(
                    "the program was built for binary interface {other} of libdlm, but {version} has {DLM_ABI}"
                )))
            }
        })
    }
}

/// Returns the number of open handles of all types, including errors: 0 at the end of a program that leaks
/// none. Never blocks for long.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_handles_open() -> u64 {
    value(0, || {
        let open: [fn() -> Outcome<u64>; 21] = [
            open::<dlm_manager>,
            open::<dlm_lock>,
            open::<dlm_lease>,
            open::<dlm_lease_set>,
            open::<dlm_call>,
            open::<dlm_cancel>,
            open::<dlm_pending>,
            open::<dlm_completions>,
            open::<dlm_options>,
            open::<dlm_error>,
            open::<dlm_latch>,
            open::<dlm_watch>,
            open::<dlm_texts>,
            open::<dlm_lock_list>,
            open::<dlm_seen>,
            open::<dlm_history>,
            open::<dlm_table>,
            open::<dlm_row>,
            open::<dlm_row_cells>,
            id_lock::open,
            key_lock::open,
        ];
        open.iter().map(|open| open()).sum()
    })
}

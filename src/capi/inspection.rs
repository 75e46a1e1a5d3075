//! What C sees of the holder of a lock.

use std::ffi::c_char;
use std::mem::offset_of;
use std::time::{SystemTime, UNIX_EPOCH};

use super::answer::status;
use super::arguments::{DLM_MODE_EXCLUSIVE, millis, mode_number, output};
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::lock::dlm_lock;
use super::process::find;
use super::status::dlm_status;
use super::structs::{Versioned, check_size, write_struct, zero};
use crate::handles::election::Term;
use crate::store::Inspection;
use crate::{Fence, store::Identity};

/// Who holds a lock. Later versions append fields. Texts end with NUL.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_inspection {
    /// Whether somebody holds the lock.
    pub is_held: bool,
    /// 0.
    pub reserved: [u8; 7],
    /// The fence that was counted last; 0 if the store does not know it.
    pub fence: u64,
    /// Remaining time of the holder's lease in milliseconds, or -1 if it is not known. The holder may renew the
    /// lease. Only a hint, because it compares clocks of two machines.
    pub left_ms: i64,
    /// When the lock was granted or last renewed, by the store's clock, in milliseconds since 1970. -1 if it is
    /// not known.
    pub since_ms: i64,
    /// Process id of the holder, or -1 if the record does not describe the holder, such as one of the Java
    /// library.
    pub pid: i64,
    /// When the holder opened its manager, in milliseconds since 1970, or -1.
    pub start_ms: i64,
    /// Host name of the holder, or "".
    pub host: [c_char; 256],
    /// What the holder uses its locks for (the option purpose), or "".
    pub purpose: [c_char; 256],
    /// The layout in which the store keeps the lock, or "" if it has only one.
    pub layout: [c_char; 16],
    /// How the holder holds the lock: one of the numbers DLM_MODE_*. 0 also if nobody does.
    pub mode: i32,
    /// Number of the holder's permit, if `mode` is DLM_MODE_PERMIT. 0 otherwise.
    pub permit: i32,
}

/// Writes who holds the lock to `*inspection_out`. `inspection_size` is sizeof(struct dlm_inspection).
/// On failure all fields are 0. Blocks for one or two reads of the store.
///
/// Errors: those of dlm_lock_try_acquire() for a store that does not serve the request, never DLM_IN_DOUBT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_inspect(
    lock: *const dlm_lock,
    inspection_out: *mut dlm_inspection,
    inspection_size: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        inspected(inspection_out, inspection_size, error_out, || {
            Ok(dlm_inspection::of(&find(lock)?.inspect()?))
        })
    }
}

/// Writes an inspection to memory of the caller. On failure all fields are 0.
///
/// # Safety
/// The pointers are NULL or writable; `inspection_out` as [`zero`] says.
pub(super) unsafe fn inspected(
    inspection_out: *mut dlm_inspection,
    size: usize,
    error_out: *mut *mut dlm_error,
    inspect: impl FnOnce() -> Outcome<dlm_inspection>,
) -> dlm_status {
    // SAFETY: the caller guarantees it.
    unsafe {
        zero(inspection_out, size);
        status(error_out, || {
            output("inspection_out", inspection_out)?;
            check_size::<dlm_inspection>(size)?;
            write_struct(inspection_out, size, &inspect()?);
            Ok(())
        })
    }
}

// SAFETY: numbers, and one bool, which is listed.
unsafe impl Versioned for dlm_inspection {
    const NAME: &str = "dlm_inspection";
    const FIRST: usize = 576;
    const BOOLS: &[usize] = &[offset_of!(dlm_inspection, is_held)];
}

impl dlm_inspection {
    pub(super) fn of(inspection: &Inspection) -> dlm_inspection {
        let since_1970 = |time: SystemTime| millis(time.duration_since(UNIX_EPOCH).unwrap_or_default());
        let holder = inspection.holder.as_ref();
        let identity = holder.and_then(|holder| holder.identity.as_ref());
        dlm_inspection {
            is_held: holder.is_some(),
            reserved: [0; 7],
            fence: inspection.fence.map_or(0, |fence| fence.0),
            left_ms: holder.and_then(|holder| holder.remaining).map_or(-1, millis),
            since_ms: holder.and_then(|holder| holder.since).map_or(-1, since_1970),
            pid: identity.map_or(-1, |identity| i64::from(identity.pid)),
            start_ms: identity.map_or(-1, |it| i64::try_from(it.start_ms).unwrap_or(i64::MAX)),
            host: c_text(identity.map_or("", |identity| &identity.host)),
            purpose: c_text(identity.map_or("", |identity| &identity.purpose)),
            layout: c_text(inspection.layout.unwrap_or_default()),
            mode: holder.map_or(DLM_MODE_EXCLUSIVE, |holder| mode_number(holder.mode)),
            permit: holder.and_then(|holder| holder.permit).map_or(0, i32::from),
        }
    }

    /// # Errors
    /// INVALID_ARGUMENT if a program has written to what is reserved.
    pub(super) fn checked(self) -> Outcome<dlm_inspection> {
        match self.reserved {
            [0, 0, 0, 0, 0, 0, 0] => Ok(self),
            other => Err(Failure::invalid(format!("reserved {other:?} is not allowed: 0"))),
        }
    }

    /// Returns which term of which process the struct describes; `None` if nobody holds the lock.
    pub(super) fn term(&self) -> Option<Term> {
        let identity = u32::try_from(self.pid).ok().map(|pid| Identity {
            host: text_of(&self.host),
            pid,
            start_ms: u64::try_from(self.start_ms).unwrap_or_default(),
            purpose: text_of(&self.purpose),
            notices: None,
        });
        let fence = (self.fence != 0).then_some(Fence(self.fence));
        self.is_held.then_some((fence, identity))
    }
}

/// Returns the text in an array that a program may have written.
fn text_of(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|char| *char as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the text up to its first NUL, cut to the length of the array. The last byte is NUL.
fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    let bytes = text.bytes().take_while(|byte| *byte != 0);
    chars[..N - 1].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
    chars
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn each_version_has_its_size_and_no_padding() {
        assert_eq!(offset_of!(dlm_inspection, mode), dlm_inspection::FIRST);
        assert_eq!(size_of::<dlm_inspection>(), dlm_inspection::FIRST + 8);
        assert_eq!(offset_of!(dlm_inspection, fence), offset_of!(dlm_inspection, reserved) + 7);
    }

    #[test]
    fn a_text_is_cut_to_its_array_and_ends_with_nul() {
        let shown = |chars: &[c_char]| {
            // SAFETY: `c_text` ends with NUL.
            unsafe { CStr::from_ptr(chars.as_ptr()) }.to_str().unwrap().to_owned()
        };
        assert_eq!(shown(&c_text::<8>("own")), "own");
        assert_eq!(shown(&c_text::<4>("java")), "jav");
        assert_eq!(shown(&c_text::<8>("a\0b")), "a");
        assert_eq!(shown(&c_text::<1>("")), "");
    }
}

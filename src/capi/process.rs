//! The tables of the C interface, once per process.
//!
//! A forked child has a copy of its parent's memory. Locks in it keep the state in which another thread of the
//! parent left them. The child therefore gets its own tables, and each handle says which process it belongs to.
//! The child's calls with inherited handles are refused before they read any state of the parent.

use std::sync::{Arc, OnceLock};

use super::failure::{Failure, Outcome};
use super::handles::{HandleTable, Missing, PROCESSES, Parts, SlotUse};
use crate::runtime::process::process_mark::ProcessMark;

/// Returns the number of forks between the process that first used the library and this one.
#[inline]
fn forks() -> u8 {
    u8::try_from(ProcessMark::forks()).unwrap_or(u8::MAX).min(PROCESSES - 1)
}

/// One `T` for each process, created on first use.
pub(super) struct PerProcess<T>([OnceLock<T>; PROCESSES as usize]);

impl<T: Default> PerProcess<T> {
    pub(super) const fn new() -> PerProcess<T> {
        PerProcess([const { OnceLock::new() }; PROCESSES as usize])
    }

    /// Returns the `T` of this process.
    ///
    /// # Errors
    /// FORKED in a process that is more than 62 forks deep.
    #[inline]
    pub(super) fn this(&self) -> Outcome<&T> {
        let forks = forks();
        match self.0[usize::from(forks)].get() {
            Some(this) => Ok(this),
            None => self.first_call(forks),
        }
    }

    #[cold]
    fn first_call(&self, forks: u8) -> Outcome<&T> {
        if forks == PROCESSES - 1 {
            return Err(Failure::forked("this process is more than 62 forks deep"));
        }
        Ok(self.0[usize::from(forks)].get_or_init(T::default))
    }
}

/// A handle type of C: a number that names an `Object`.
pub(super) trait Handle: Sized {
    type Object: 'static;
    const NAME: &str;
    /// The type's number in handles.
    const KIND: u8;
    /// The table of the type.
    fn table() -> &'static PerProcess<HandleTable<Self::Object>>;
}

/// Returns the object of a handle.
///
/// # Errors
/// INVALID_ARGUMENT for NULL and for a pointer that never was a handle of this type. CLOSED for a freed handle.
/// FORKED for a handle that a parent process created.
pub(super) fn find<H: Handle>(handle: *const H) -> Outcome<Arc<H::Object>> {
    let slot_use = locate(handle, H::KIND, H::NAME)?;
    H::table().this()?.get(slot_use).map_err(|missing| missing.failure(H::NAME))
}

/// Like [`find`]. Returns `None` for NULL.
pub(super) fn find_optional<H: Handle>(handle: *const H) -> Outcome<Option<Arc<H::Object>>> {
    if handle.is_null() { Ok(None) } else { find(handle).map(Some) }
}

/// Creates a handle for `object`.
pub(super) fn into_handle<H: Handle>(object: impl Into<H::Object>) -> Outcome<*mut H> {
    H::table()
        .this()?
        .insert(object.into())
        .map(|slot_use| handle(H::KIND, slot_use))
        .ok_or_else(|| full(H::NAME))
}

/// Frees a handle. This call drops the object, or the last call that still uses it.
///
/// NULL does nothing. Fails for a handle that was freed before or never was one. The caller logs this failure,
/// because a `_free` function cannot return it.
pub(super) fn free<H: Handle>(handle: *const H) -> Outcome {
    if handle.is_null() {
        return Ok(());
    }
    let slot_use = locate(handle, H::KIND, H::NAME)?;
    let object = H::table().this()?.remove(slot_use).map_err(|missing| missing.failure(H::NAME))?;
    drop(object);
    Ok(())
}

/// Number of open handles of the type in this process.
pub(super) fn open<H: Handle>() -> Outcome<u64> {
    Ok(H::table().this()?.len())
}

/// Returns the slot that a handle of this process names.
#[inline]
pub(super) fn locate<H>(handle: *const H, kind: u8, name: &str) -> Outcome<SlotUse> {
    let parts = Parts::of(handle.addr());
    if parts.kind != kind {
        return Err(not_one(handle.is_null(), name));
    }
    if parts.process != forks() {
        return Err(foreign(parts.process, name));
    }
    Ok((parts.slot, parts.usage))
}

pub(super) fn handle<H>(kind: u8, (slot, usage): SlotUse) -> *mut H {
    let process = forks();
    std::ptr::without_provenance_mut(Parts { kind, process, usage, slot }.bits())
}

#[cold]
fn not_one(null: bool, name: &str) -> Failure {
    if null { Failure::invalid(format!("the {name} is NULL")) } else { Missing::Never.failure(name) }
}

#[cold]
fn foreign(process: u8, name: &str) -> Failure {
    if process < forks() {
        let what = format!("this {name} was created before the process forked; create one in the child");
        Failure::forked(what)
    } else {
        Missing::Never.failure(name)
    }
}

#[cold]
pub(super) fn full(name: &str) -> Failure {
    Failure::internal(format!("too many open handles of type {name}; free those that are not needed"))
}

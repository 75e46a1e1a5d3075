//! What the C interface keeps, once per process.
//!
//! A forked child has a copy of its parent's memory, with every lock in whatever state another thread of
//! the parent had it. So the child gets tables of its own, and handles say which one they belong to:
//! the child's calls with inherited handles are refused before anything of the parent's is looked at.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use super::failure::{Failure, Outcome};
use super::handles::{HandleTable, Missing, PROCESSES, Parts, SlotUse};

/// How often this process and its ancestors were forked since the library was first used.
static FORKS: AtomicU8 = AtomicU8::new(0);

/// One `T` for each process, made when it is first asked for.
pub(super) struct PerProcess<T>([OnceLock<T>; PROCESSES as usize]);

impl<T: Default> PerProcess<T> {
    pub(super) const fn new() -> PerProcess<T> {
        PerProcess([const { OnceLock::new() }; PROCESSES as usize])
    }

    /// # Errors
    /// FORKED in a process whose ancestors were forked more than 62 times, each time from the child.
    #[inline]
    pub(super) fn this(&self) -> Outcome<&T> {
        let forks = FORKS.load(Ordering::Relaxed);
        match self.0[usize::from(forks)].get() {
            Some(this) => Ok(this),
            None => self.first_call(forks),
        }
    }

    #[cold]
    fn first_call(&self, forks: u8) -> Outcome<&T> {
        if forks == PROCESSES - 1 {
            return Err(Failure::forked("this process is the child of too many forks in a row"));
        }
        notice_forks();
        Ok(self.0[usize::from(forks)].get_or_init(T::default))
    }
}

/// Has every fork from now on counted in the child. A child made without the C library's `fork` (by a
/// bare system call) is not noticed here; managers look at the process id besides.
fn notice_forks() {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: Option<extern "C" fn()>,
            parent: Option<extern "C" fn()>,
            child: Option<extern "C" fn()>,
        ) -> c_int;
    }

    extern "C" fn in_child() {
        let forks = FORKS.load(Ordering::Relaxed);
        FORKS.store((forks + 1).min(PROCESSES - 1), Ordering::Relaxed);
    }

    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the declaration is that of POSIX; the hook lives as long as the process (the library
        // is linked so that it is never unloaded) and only touches an atomic, as a hook in a child of a
        // process with threads must.
        let failed = unsafe { pthread_atfork(None, None, Some(in_child)) };
        if failed != 0 {
            ::log::error!("forks will not be noticed: error {failed}");
        }
    });
}

/// A type of C: a number which stands for an `Object`.
pub(super) trait Handle: Sized {
    type Object: 'static;
    const NAME: &str;
    /// Its number among the types.
    const KIND: u8;
    /// Beside the type.
    fn table() -> &'static PerProcess<HandleTable<Self::Object>>;
}

/// The object of a handle.
///
/// # Errors
/// INVALID_ARGUMENT for NULL and for what never was a handle of this type; CLOSED for one that was
/// freed; FORKED for one that a parent process made.
pub(super) fn find<H: Handle>(handle: *const H) -> Outcome<Arc<H::Object>> {
    let slot_use = locate(handle, H::KIND, H::NAME)?;
    H::table().this()?.get(slot_use).map_err(|missing| missing.failure(H::NAME))
}

/// As [`find`], where the caller may leave it out.
pub(super) fn find_optional<H: Handle>(handle: *const H) -> Outcome<Option<Arc<H::Object>>> {
    if handle.is_null() { Ok(None) } else { find(handle).map(Some) }
}

/// Makes a handle for `object`.
pub(super) fn keep<H: Handle>(object: H::Object) -> Outcome<*mut H> {
    H::table().this()?.insert(object).map(|slot_use| handle(H::KIND, slot_use)).ok_or_else(|| full(H::NAME))
}

/// Frees a handle. The object is dropped here, or by the last call that uses it.
///
/// NULL is nothing to be freed. A handle that is freed twice, or never was one, is left alone and
/// reported to the log: the caller has no other place to hear of it.
pub(super) fn free<H: Handle>(handle: *const H) -> Outcome {
    if handle.is_null() {
        return Ok(());
    }
    let slot_use = locate(handle, H::KIND, H::NAME)?;
    let object = H::table().this()?.remove(slot_use).map_err(|missing| missing.failure(H::NAME))?;
    drop(object);
    Ok(())
}

/// How many handles of the type were made here and not freed.
pub(super) fn open<H: Handle>() -> Outcome<u64> {
    Ok(H::table().this()?.len())
}

/// The slot that a handle of this process names.
#[inline]
pub(super) fn locate<H>(handle: *const H, kind: u8, name: &str) -> Outcome<SlotUse> {
    let parts = Parts::of(handle.addr());
    if parts.kind != kind {
        return Err(not_one(handle.is_null(), name));
    }
    if parts.process != FORKS.load(Ordering::Relaxed) {
        return Err(foreign(parts.process, name));
    }
    Ok((parts.slot, parts.usage))
}

pub(super) fn handle<H>(kind: u8, (slot, usage): SlotUse) -> *mut H {
    let process = FORKS.load(Ordering::Relaxed);
    std::ptr::without_provenance_mut(Parts { kind, process, usage, slot }.bits())
}

#[cold]
fn not_one(null: bool, name: &str) -> Failure {
    if null { Failure::invalid(format!("the {name} is NULL")) } else { Missing::Never.failure(name) }
}

#[cold]
fn foreign(process: u8, name: &str) -> Failure {
    if process < FORKS.load(Ordering::Relaxed) {
        let what = format!("this {name} was made before the process was forked; make one in the child");
        Failure::forked(what)
    } else {
        Missing::Never.failure(name)
    }
}

#[cold]
pub(super) fn full(name: &str) -> Failure {
    Failure::internal(format!("there are too many of {name}: free those that are not needed"))
}

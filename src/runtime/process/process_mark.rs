//! A number that distinguishes this process from its forked children. Reading it costs one load.
//!
//! The number is in a page that the kernel fills with zeros in every child (`MADV_WIPEONFORK`, Linux 4.14). So it
//! distinguishes children of the C library's `fork` and of a bare `clone` system call. It does not distinguish a
//! child that shares its parent's memory (`vfork`), but such a child may only call exec.
//!
//! Without such a page, the process id tells, which costs a system call.
//!
//! Marks are counted: the first process has 1, its children have 2, and so on. Threads that draw at the same moment may
//! leave a number out.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::munmap;
#[cfg(all(not(miri), any(target_os = "linux", target_os = "android")))]
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::error::{Error, Result};

/// Length of the mapping. The kernel rounds it up to its page size.
const PAGE_BYTES: usize = 4096;

/// The mark in the page, or null before the first call. The page is never unmapped.
static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// `MARK` points to it if no page can be mapped. The process that drew the last mark, and this mark:
/// `process id << 32 | mark`.
static NO_PAGE: AtomicU64 = AtomicU64::new(0);
/// Number of marks drawn. A child continues the count of its parent, so it draws a mark that no ancestor had.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// The mark of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessMark(u64);

impl ProcessMark {
    /// Returns the mark of this process. It never changes. A child never has the mark of its parent.
    #[inline]
    pub(crate) fn current() -> ProcessMark {
        ProcessMark(current())
    }

    /// Returns whether this process has the mark.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.0 == current()
    }

    /// # Errors
    /// FORKED if this process does not have the mark.
    #[inline]
    pub(crate) fn check(self) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Returns the number of forks between the first process that drew a mark and this one.
    #[cfg(feature = "capi")]
    #[inline]
    pub(crate) fn forks() -> u64 {
        current() - 1
    }
}

#[inline]
fn current() -> u64 {
    let mark = MARK.load(Ordering::Acquire);
    if mark.is_null() || ptr::eq(mark, &raw const NO_PAGE) {
        return current_slow(mark);
    }
    // SAFETY: a pointer other than these two points to a page that `new_page` mapped. The page is readable and
    // writable, aligned, and never unmapped once its address is in `MARK`.
    match unsafe { &*mark }.load(Ordering::Relaxed) {
        0 => current_slow(mark),
        mark => mark,
    }
}

/// The slow path: the first call in a process or in a child, and every call without a page.
#[cold]
fn current_slow(mut mark: *const AtomicU64) -> u64 {
    if mark.is_null() {
        let made = new_page();
        match MARK.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => mark = made,
            Err(other) => {
                free_page(made);
                mark = other;
            }
        }
    }
    if ptr::eq(mark, &raw const NO_PAGE) {
        return without_page();
    }
    // SAFETY: as in `current`.
    let number = unsafe { &*mark };
    loop {
        let drawn = DRAWN.load(Ordering::Relaxed);
        match number.load(Ordering::Relaxed) {
            0 => {}
            mark => return mark,
        }
        if draw(drawn).is_some_and(|mark| {
            number.compare_exchange(0, mark, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        }) {
            return drawn + 1;
        }
    }
}

/// Draws the mark after `drawn`, unless another thread has drawn it.
fn draw(drawn: u64) -> Option<u64> {
    DRAWN.compare_exchange(drawn, drawn + 1, Ordering::Relaxed, Ordering::Relaxed).ok().map(|_| drawn + 1)
}

fn without_page() -> u64 {
    let pid = u64::from(std::process::id()) << 32;
    loop {
        let (drawn, last) = (DRAWN.load(Ordering::Relaxed), NO_PAGE.load(Ordering::Relaxed));
        if last >> 32 == pid >> 32 {
            return last & u64::from(u32::MAX);
        }
        if draw(drawn).is_some_and(|mark| {
            NO_PAGE.compare_exchange(last, pid | mark, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        }) {
            return drawn + 1;
        }
    }
}

/// Miri cannot make such a page.
#[cfg(any(miri, not(any(target_os = "linux", target_os = "android"))))]
fn new_page() -> *mut AtomicU64 {
    (&raw const NO_PAGE).cast_mut()
}

#[cfg(all(not(miri), any(target_os = "linux", target_os = "android")))]
fn new_page() -> *mut AtomicU64 {
    let none = (&raw const NO_PAGE).cast_mut();
    // SAFETY: the kernel chooses the address, so the new mapping replaces nothing.
    let mapped = unsafe {
        mmap_anonymous(ptr::null_mut(), PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let Ok(page) = mapped else { return none };
    // SAFETY: the page was just mapped and no other code uses it. Losing its content in children is intended.
    match unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) } {
        Ok(()) => page.cast(),
        Err(_) => {
            free_page(page.cast());
            none
        }
    }
}

/// Unmaps a page of `new_page` that is not in use.
fn free_page(page: *mut AtomicU64) {
    if ptr::eq(page, &raw const NO_PAGE) {
        return;
    }
    // SAFETY: `new_page` mapped it with this length, and no reference to it was handed out.
    let unmapped = unsafe { munmap(page.cast(), PAGE_BYTES) };
    debug_assert!(unmapped.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fork::{alone, in_child_by_system_call, in_forked_child};

    #[test]
    fn the_mark_stays_and_a_child_has_another_however_it_was_made() {
        if !alone() {
            return;
        }
        let ours = current();
        assert_eq!(current(), ours);
        let differs = || {
            let theirs = current();
            let grandchild = in_forked_child(|| ![ours, theirs].contains(&current()));
            theirs != ours && theirs == current() && grandchild
        };
        assert!(in_forked_child(differs), "fork");
        assert!(in_child_by_system_call(differs), "clone");
        assert_eq!(current(), ours);
    }

    #[test]
    fn threads_agree_on_the_mark() {
        let marks: Vec<_> = (0..8).map(|_| std::thread::spawn(current)).collect();
        assert!(marks.into_iter().all(|mark| mark.join().unwrap() == current()));
    }
}

//! How much of its stack a thread has left. Programs may call the library from threads with small stacks.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use super::descriptors::above_streams;

/// The C library's `pthread_attr_t`. It has 56 bytes in glibc and musl on 64-bit Linux, and fewer elsewhere.
#[repr(C, align(16))]
struct Attributes([u8; 128]);

unsafe extern "C" {
    fn pthread_self() -> usize;
    fn pthread_getattr_np(thread: usize, attributes: *mut Attributes) -> c_int;
    fn pthread_attr_getstack(
        attributes: *const Attributes,
        lowest: *mut *mut c_void,
        bytes: *mut usize,
    ) -> c_int;
    fn pthread_attr_destroy(attributes: *mut Attributes) -> c_int;
}

thread_local! {
    /// The lowest and the highest address of the stack of this thread. `(0, 0)` before the first call, and if they are unknown.
    static BOUNDS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Returns how many bytes of its stack this thread has left. `None` if that is not known: the caller may run on a stack that
/// it has made itself, as coroutines do.
#[inline]
pub(crate) fn left() -> Option<usize> {
    if cfg!(miri) {
        // It keeps local variables anywhere.
        return None;
    }
    let here = 0_u8;
    let here = ptr::from_ref(&here).addr();
    let mut bounds = BOUNDS.get();
    if bounds == (0, 0) {
        bounds = find();
        BOUNDS.set(bounds);
    }
    let (lowest, highest) = bounds;
    (lowest..highest).contains(&here).then(|| here - lowest)
}

#[cold]
fn find() -> (usize, usize) {
    // musl reports only what is mapped so far of the first thread's stack, which grows.
    if cfg!(target_env = "musl") && is_first_thread() {
        return (0, 0);
    }
    let mut attributes = Attributes([0; 128]);
    let (mut lowest, mut bytes) = (ptr::null_mut(), 0);
    // Of the first thread, the C library reads the bounds from a file.
    // SAFETY: the declarations are those of the C library, and `attributes` has room for its type.
    let unknown = above_streams(|| unsafe { pthread_getattr_np(pthread_self(), &raw mut attributes) }) != 0;
    if unknown {
        return (0, 0);
    }
    // SAFETY: the call above has initialized `attributes`, which is not used after it is destroyed.
    let unknown = unsafe {
        let failed = pthread_attr_getstack(&raw const attributes, &raw mut lowest, &raw mut bytes);
        pthread_attr_destroy(&raw mut attributes);
        failed != 0
    };
    if unknown { (0, 0) } else { (lowest.addr(), lowest.addr().saturating_add(bytes)) }
}

fn is_first_thread() -> bool {
    // Process, "task", thread.
    let own = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    own.iter().next() == own.iter().next_back()
}

#[cfg(test)]
mod tests {
    use std::thread::Builder;

    use super::*;

    const USED: usize = 16 << 10;

    #[inline(never)]
    fn deeper() -> usize {
        let used = std::hint::black_box([1_u8; USED]);
        left().unwrap() + usize::from(std::hint::black_box(used)[0]) - 1
    }

    #[test]
    fn a_thread_knows_what_is_left_of_its_stack() {
        for stack in [512 << 10, 1 << 20] {
            let thread = Builder::new().name("dlm-test-stack".into()).stack_size(stack);
            let [before, deeper] = thread.spawn(|| [left().unwrap(), deeper()]).unwrap().join().unwrap();
            // The C library may use the larger stack of a thread that has ended.
            assert!(before >= stack / 2 && before < 1 << 30, "{before} of {stack}");
            assert!(deeper + USED <= before, "{deeper} after {before}");
        }
    }
}

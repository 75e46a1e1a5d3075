//! `pthread_cancel`, which ends a thread by an unwinding that Rust code must not see.

use std::ffi::c_int;
use std::marker::PhantomData;

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
#[cfg(not(any(miri, target_os = "android")))]
const DISABLE: c_int = 1;

#[cfg(not(any(miri, target_os = "android")))]
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// While it lives, `pthread_cancel` does not end this thread. It ends it afterwards.
#[derive(Debug)]
pub(crate) struct CancellationPause {
    /// The state before, or `None` if that is unknown.
    #[cfg_attr(any(miri, target_os = "android"), expect(dead_code, reason = "nothing is to be restored"))]
    before: Option<c_int>,
    /// The state is that of the thread.
    _here: PhantomData<*const ()>,
}

impl CancellationPause {
    #[inline]
    pub(crate) fn new() -> CancellationPause {
        #[cfg(not(any(miri, target_os = "android")))]
        let before = {
            let mut before = 0;
            // SAFETY: the declaration is that of POSIX, and `before` is writable. No thread is ended by this call,
            // because it does not enable cancellation.
            let refused = unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
            (refused == 0).then_some(before)
        };
        // Android has no pthread_cancel, and Miri neither.
        #[cfg(any(miri, target_os = "android"))]
        let before = None;
        CancellationPause { before, _here: PhantomData }
    }
}

impl Drop for CancellationPause {
    #[inline]
    fn drop(&mut self) {
        #[cfg(not(any(miri, target_os = "android")))]
        if let Some(before) = self.before {
            // SAFETY: as above. The call is no cancellation point. A thread of the asynchronous type could be ended here,
            // but such a thread must not call the library, as the header says.
            unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
        }
    }
}

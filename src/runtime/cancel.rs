//! Cancellation of a wait by another thread.

use std::fmt;
use std::os::fd::BorrowedFd;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::sync::{OnceLock, Weak};

use crate::error::{Error, Result};
#[cfg(any(target_os = "linux", target_os = "android"))]
use crate::runtime::process::process_mark::ProcessMark;
#[cfg(any(target_os = "linux", target_os = "android"))]
use crate::runtime::process::threads::WorkerThread;
use crate::runtime::sync::{AtomicBool, HashMap, Mutex};

/// A token that cancels blocking calls from any thread. They then return
/// [`Code::Cancelled`](crate::Code::Cancelled) and hold nothing.
///
/// Clones are the same token. A token stays cancelled: use a new one for the next call. Cancelling does
/// not interrupt a request that is on its way to the store. If that request acquires a lock, the lock
/// is released before the call returns.
#[derive(Clone, Default)]
pub struct CancelToken {
    shared: Arc<TokenState>,
}

#[derive(Default)]
struct TokenState {
    cancelled: AtomicBool,
    wakers: Mutex<Wakers>,
    /// Created by the first call of `signal_fd`, under `wakers`.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    signal: OnceLock<SignalFd>,
}

#[derive(Default)]
struct Wakers {
    next: u64,
    by_number: HashMap<u64, Arc<dyn Fn() + Send + Sync>>,
}

impl CancelToken {
    /// Makes a token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels every current and later call with this token. Returns at once, and never waits for a store.
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::SeqCst);
        // Called without the mutex, because a waker takes other mutexes.
        let wakers: Vec<_> = self.shared.wakers.lock().by_number.values().cloned().collect();
        for wake in wakers {
            wake();
        }
    }

    /// Returns a descriptor by which a signal handler can cancel the token: it writes the 8 bytes of any number but
    /// zero, which is async-signal-safe. The token is cancelled a moment later, as by [`cancel`](CancelToken::cancel).
    ///
    /// The first call starts the thread `dlm-cancel`, which waits for the write. Later calls return the same
    /// descriptor. It belongs to the token: dropping the last clone closes it and ends the thread. It is closed on exec.
    /// In a forked child it belongs to the parent's token. Linux only. Never blocks.
    ///
    /// # Errors
    /// [`Code::InternalError`](crate::Code::InternalError) if the process has no descriptor left, or the thread cannot
    /// be started; [`Code::Forked`](crate::Code::Forked) in a forked child.
    pub fn signal_fd(&self) -> Result<BorrowedFd<'_>> {
        self.find_signal_fd()
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn find_signal_fd(&self) -> Result<BorrowedFd<'_>> {
        let shared = &self.shared;
        let _wakers = shared.wakers.lock();
        let signal = match shared.signal.get() {
            Some(signal) => signal,
            None => {
                let signal = SignalFd::start(Arc::downgrade(shared)).map_err(|error| Error::Internal {
                    what: "no descriptor for a cancel token".into(),
                    source: Some(error.into()),
                })?;
                shared.signal.get_or_init(|| signal)
            }
        };
        signal.process.check()?;
        Ok(signal.fd.as_fd())
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn find_signal_fd(&self) -> Result<BorrowedFd<'_>> {
        let what = "a cancel token has a descriptor on Linux only".into();
        Err(Error::Internal { what, source: None })
    }

    /// Returns whether [`cancel`](CancelToken::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::SeqCst)
    }

    /// Registers `wake`, to be called on cancellation until the registration is dropped. A token that was
    /// cancelled before does not call it: check the token after this call.
    pub(crate) fn on_cancel(&self, wake: Arc<dyn Fn() + Send + Sync>) -> Registration {
        let mut wakers = self.shared.wakers.lock();
        let number = wakers.next;
        wakers.next += 1;
        wakers.by_number.insert(number, wake);
        Registration { shared: Arc::clone(&self.shared), number }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}

/// A descriptor that cancels a token, and the thread that waits for it.
#[cfg(any(target_os = "linux", target_os = "android"))]
struct SignalFd {
    fd: Arc<OwnedFd>,
    /// Set before the thread is woken to end.
    ends: Arc<AtomicBool>,
    thread: Option<WorkerThread>,
    /// The process that the thread belongs to.
    process: ProcessMark,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl SignalFd {
    fn start(token: Weak<TokenState>) -> std::io::Result<SignalFd> {
        use rustix::event::{EventfdFlags, eventfd};

        use crate::runtime::process::descriptors::above_streams;

        let fd = Arc::new(above_streams(|| eventfd(0, EventfdFlags::CLOEXEC))?);
        let ends = Arc::new(AtomicBool::new(false));
        let (read_fd, is_over) = (Arc::clone(&fd), Arc::clone(&ends));
        let run = move || {
            while rustix::io::read(&read_fd, &mut [0; 8]) == Err(rustix::io::Errno::INTR) {}
            if !is_over.load(Ordering::SeqCst)
                && let Some(shared) = token.upgrade()
            {
                CancelToken { shared }.cancel();
            }
        };
        let thread = Some(WorkerThread::start("dlm-cancel", "waits for a cancellation", run)?);
        Ok(SignalFd { fd, ends, thread, process: ProcessMark::current() })
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Drop for SignalFd {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().filter(|_| self.process.is_current()) else {
            // In a forked child, which does not have the thread, and whose write would cancel the parent's token.
            return;
        };
        self.ends.store(true, Ordering::SeqCst);
        let woken = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        if woken.is_ok() {
            thread.join();
        }
    }
}

/// Registration of a waker. Dropping it removes the waker.
pub(crate) struct Registration {
    shared: Arc<TokenState>,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.wakers.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[cfg_attr(miri, ignore = "no eventfd there")]
    fn a_write_to_the_descriptor_cancels_and_dropping_the_token_ends_the_thread() {
        let (token, other) = (CancelToken::new(), CancelToken::new());
        let woken = Arc::new(AtomicUsize::new(0));
        let wake = {
            let woken = Arc::clone(&woken);
            move || {
                woken.fetch_add(1, Ordering::SeqCst);
            }
        };
        let _registration = token.on_cancel(Arc::new(wake));
        rustix::io::write(token.signal_fd().unwrap(), &1_u64.to_ne_bytes()).unwrap();
        crate::testing::patience::until("it is cancelled", || woken.load(Ordering::SeqCst) == 1);
        assert!(token.is_cancelled() && token.signal_fd().is_ok());
        other.signal_fd().unwrap();
        let state = Arc::downgrade(&other.shared);
        let fd = Arc::downgrade(&other.shared.signal.get().unwrap().fd);
        drop(other);
        // The thread had the last other handle of the descriptor.
        assert!(state.upgrade().is_none() && fd.upgrade().is_none());
    }

    #[test]
    fn a_waker_runs_while_registered_and_leaves_nothing_behind() {
        let token = CancelToken::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let count = {
            let calls = Arc::clone(&calls);
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        };
        let kept = token.on_cancel(Arc::new(count.clone()));
        drop(token.on_cancel(Arc::new(count)));
        token.clone().cancel();
        assert_eq!((calls.load(Ordering::SeqCst), token.is_cancelled()), (1, true));
        drop(kept);
        assert!(token.shared.wakers.lock().by_number.is_empty());
    }
}

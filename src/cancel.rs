//! Cancellation of a wait by another thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::sync::{AtomicBool, HashMap, Mutex};

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

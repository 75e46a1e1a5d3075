//! A store that is watched: which calls reach it, and when each has been answered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, LockStore, Proof, Released};
use dlm::{Deadline, Holder, Inspection, LockName, Moment, Result};
use parking_lot::Mutex;

/// A method of [`LockStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Initialize,
    Acquire,
    Renew,
    Release,
    Holder,
    Inspect,
}

type Hook = Box<dyn Fn(Call) + Send + Sync>;

/// Passes every call on, and keeps a list of them.
pub(crate) struct Spy {
    inner: Arc<dyn LockStore>,
    calls: Mutex<Vec<(Call, Moment)>>,
    /// Called when a call has been answered by the store and its caller does not know yet.
    answered: Hook,
}

impl Spy {
    pub(crate) fn on(inner: Arc<dyn LockStore>) -> Arc<Spy> {
        Spy::with_hook(inner, |_| {})
    }

    pub(crate) fn with_hook(
        inner: Arc<dyn LockStore>,
        answered: impl Fn(Call) + Send + Sync + 'static,
    ) -> Arc<Spy> {
        Arc::new(Spy { inner, calls: Mutex::default(), answered: Box::new(answered) })
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls.lock().len()
    }

    /// Calls of one method so far.
    pub(crate) fn calls_of(&self, call: Call) -> usize {
        self.calls.lock().iter().filter(|(made, _)| *made == call).count()
    }

    /// The calls so far, and when each was made.
    #[allow(dead_code, reason = "not every test program asks")]
    pub(crate) fn log(&self) -> Vec<(Call, Moment)> {
        self.calls.lock().clone()
    }

    fn pass<T>(&self, call: Call, to: impl FnOnce(&dyn LockStore) -> T) -> T {
        self.calls.lock().push((call, Moment::now()));
        let answer = to(&*self.inner);
        (self.answered)(call);
        answer
    }
}

impl fmt::Debug for Spy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spy").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl LockStore for Spy {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.pass(Call::Initialize, |store| store.initialize(by))
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<Proof>) -> Result<Acquired> {
        self.pass(Call::Acquire, |store| store.acquire(attempt, doubtful))
    }

    fn renew(&self, name: &LockName, proof: &Proof, ttl: Duration, by: Deadline) -> Result<Option<Proof>> {
        self.pass(Call::Renew, |store| store.renew(name, proof, ttl, by))
    }

    fn release(&self, name: &LockName, proof: &Proof, by: Deadline) -> Result<Released> {
        self.pass(Call::Release, |store| store.release(name, proof, by))
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.pass(Call::Holder, |store| store.holder(name, by))
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.pass(Call::Inspect, |store| store.inspect(name, by))
    }
}

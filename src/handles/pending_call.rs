//! A call to the store that does not block: the release or the renewal of a lease.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::handles::result_slot::ResultSlot;
use crate::names::lock_name::LockName;
use crate::runtime::sync::AtomicBool;
use crate::runtime::time::Moment;
use crate::session::Session;
use crate::wait::asking::{AskKind, Inquiry, NextStep, Served};

/// A release or a renewal under way, from [`Lease::start_release`](crate::Lease::start_release) or
/// [`Lease::start_renewal`](crate::Lease::start_renewal). It costs no thread: at most 8 threads of a manager make all such
/// calls, and those of [`Lock::start`](crate::Lock::start). A call goes before requests for locks that wait for a thread, and
/// one thread makes nothing but such calls.
///
/// No method blocks. Several threads may use it; one of them takes the result. Dropping it changes nothing: the call goes on.
#[must_use = "take returns the result"]
pub struct PendingCall<T: Send + 'static> {
    shared: Arc<CallShared<T>>,
}

/// Makes the call, in a thread of the manager.
type CallBody<T> = dyn Fn(&Session) -> Result<T> + Send + Sync;

struct CallShared<T> {
    session: Arc<Session>,
    name: LockName,
    run: Box<CallBody<T>>,
    /// The call has begun, or never will.
    has_begun: AtomicBool,
    result: ResultSlot<T>,
}

impl<T: Send + 'static> PendingCall<T> {
    /// Leaves `run` to the manager's threads.
    pub(crate) fn start(
        session: &Arc<Session>,
        name: &LockName,
        run: impl Fn(&Session) -> Result<T> + Send + Sync + 'static,
    ) -> Result<PendingCall<T>> {
        session.usable()?;
        let number = session.askers.number();
        let shared = Arc::new(CallShared {
            session: Arc::clone(session),
            name: name.clone(),
            run: Box::new(run),
            has_begun: AtomicBool::new(false),
            result: ResultSlot::open("pending call of lock"),
        });
        let shard = session.store.shard(name);
        let inquiry = Arc::clone(&shared) as Arc<dyn Inquiry>;
        session.askers.add(number, AskKind::Call, shard, inquiry).map_err(|error| {
            session.usable().err().unwrap_or_else(|| Error::Internal {
                what: format!("no thread can be started for lock {name}"),
                source: Some(error.into()),
            })
        })?;
        Ok(PendingCall { shared })
    }

    /// Returns the result of the call once it has finished, and `Ok(None)` before that. Never blocks.
    ///
    /// # Errors
    /// Those of the call; [`Code::Closed`](crate::Code::Closed) if the manager was closed before the call began; [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the
    /// result was taken before; [`Code::Forked`](crate::Code::Forked).
    pub fn take(&self) -> Result<Option<T>> {
        self.shared.session.not_forked()?;
        self.shared.result.take(&self.shared.name)
    }

    /// Returns a descriptor for event loops. It becomes readable when the call has finished, and stays so. Poll the
    /// descriptor, but do not read it. The first call creates it. Later calls return the same descriptor. It belongs to this
    /// object and is closed on exec. Linux only.
    ///
    /// # Errors
    /// [`Code::InternalError`](crate::Code::InternalError) if the process has no descriptor left; [`Code::Forked`](crate::Code::Forked).
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.shared.session.not_forked()?;
        self.shared.result.fd(&self.shared.name)
    }
}

impl<T: Send + 'static> Inquiry for CallShared<T> {
    fn next_step(&self) -> NextStep {
        match self.has_begun.load(Ordering::Acquire) {
            false => NextStep::Ask(Moment::NEVER),
            true if self.result.is_open() => NextStep::LookAt(Moment::NEVER),
            true => NextStep::Done,
        }
    }

    fn ask(&self) -> Served {
        if self.has_begun.swap(true, Ordering::AcqRel) {
            return Served::Unknown;
        }
        let result = catch_unwind(AssertUnwindSafe(|| (self.run)(&self.session))).unwrap_or_else(|_| {
            let what = format!("a call of lock {} panicked", self.name);
            log::error!("{what}");
            Err(Error::Panic { what })
        });
        let served = Served::of(&result);
        self.result.finish(&self.name, result);
        served
    }

    fn stopped(&self) {
        if !self.has_begun.swap(true, Ordering::AcqRel) {
            self.result.finish(&self.name, Err(Error::Closed));
        }
    }
}

impl<T: Send + 'static> Drop for PendingCall<T> {
    fn drop(&mut self) {
        if self.shared.session.not_forked().is_err() {
            // In a forked child, where a thread that does not exist may hold the mutex.
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}

impl<T: Send + 'static> fmt::Debug for PendingCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCall").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

//! An acquisition that does not block: a waiter of the lock's queue without a thread.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result, panic_text};
use crate::events::sinks::OpenSpans;
use crate::handles::acquire::{self, AcquireTerms};
use crate::handles::lease::Lease;
use crate::handles::result_slot::ResultSlot;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::cancel::{CancelToken, Registration};
use crate::runtime::sync::{Mutex, MutexGuard};
use crate::runtime::time::{Deadline, Moment};
use crate::session::Session;
use crate::wait::asking::{AskKind, Inquiry, InquiryNumber, NextStep, Served};
use crate::wait::completions::{CompletionKind, Completions};
use crate::wait::local_queues::{Answer, Ask, Ended, LocalQueues, QueueStep, QueueTicket, Terms};

/// An acquisition under way, from [`Lock::start`](crate::Lock::start) or [`Semaphore::start`](crate::Semaphore::start). It waits in
/// the same queue as the threads that block in [`Lock::acquire`](crate::Lock::acquire), in the order of arrival, and costs no
/// thread. `T` is what it acquires: a [`Lease`], or a [`LeaseSet`](crate::LeaseSet) of permits.
///
/// No method blocks, except that dropping a pending with granted leases releases them. Several threads may use a
/// pending; one of them takes the result.
///
/// | state | `take` | ends by |
/// |---|---|---|
/// | waiting | `Ok(None)` | a grant, the end of the wait, an error of the store, cancellation, closing the manager |
/// | finished | what was acquired, or the error | `take` |
/// | taken | [`Code::InvalidArgument`](crate::Code::InvalidArgument) | - |
///
/// Dropping a pending cancels it. A request to the store that is under way then goes on. If it acquires the lock, the
/// library releases the lock.
#[must_use = "dropping the pending cancels it"]
pub struct Pending<T: Send + 'static = Lease> {
    shared: Arc<PendingShared<T>>,
}

/// What a pending acquires.
pub(crate) struct PendingWork<T> {
    /// Sends one request to the store.
    pub(crate) ask: Box<AskFor<T>>,
    /// Returns the leases in what was acquired.
    pub(crate) leases: fn(&T) -> &[Lease],
}

type AskFor<T> = dyn Fn(Ask, &AcquireTerms) -> Result<Answer<T>> + Send + Sync;

struct PendingShared<T> {
    session: Arc<Session>,
    name: LockName,
    terms: AcquireTerms,
    work: PendingWork<T>,
    /// Number among the inquiries of the manager.
    number: InquiryNumber,
    state: Mutex<PendingState>,
    result: ResultSlot<T>,
}

struct PendingState {
    /// `None` once it has finished.
    ticket: Option<QueueTicket<Arc<LocalQueues>>>,
    /// Whether it has asked the store before: even a wait of zero asks once.
    has_asked: bool,
    is_asking: bool,
    /// The number of local releases when the lock began to be read together with others.
    read_at: u64,
    /// Whether no error needs to be reported to the event sinks: a grant was reported, or nothing was asked.
    is_reported: bool,
    /// Whether the manager's threads know it.
    is_added: bool,
    /// Whether the first request is the caller's, and has not been sent.
    #[cfg(feature = "capi")]
    is_callers: bool,
    registration: Option<Registration>,
    listener: Option<Listener>,
    /// Whether the caller has freed its handle, while another thread is still in a call with it.
    #[cfg(feature = "capi")]
    is_freed: bool,
}

struct Listener {
    completions: Completions,
    tag: u64,
    /// Number of the tag in the list, once it is there.
    number: Option<u64>,
}

/// Who sends the first request, if the new waiter is the first in its queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FirstAsk {
    Library,
    #[cfg(feature = "capi")]
    Caller,
}

impl<T: Send + 'static> Pending<T> {
    /// See [`Lock::start`](crate::Lock::start).
    pub(crate) fn start(
        session: &Arc<Session>,
        name: &LockName,
        terms: AcquireTerms,
        work: PendingWork<T>,
    ) -> Result<Pending<T>> {
        Pending::begin(session, name, terms, work, FirstAsk::Library).map(|(pending, _)| pending)
    }

    /// Starts an acquisition. If it returns `true`, it is this waiter's turn, and the caller should call
    /// [`ask_here`](Pending::ask_here) soon: until then nobody asks the store, because the others in the queue are
    /// behind it.
    #[cfg(feature = "capi")]
    pub(crate) fn start_here(
        session: &Arc<Session>,
        name: &LockName,
        terms: AcquireTerms,
        work: PendingWork<T>,
    ) -> Result<(Pending<T>, bool)> {
        Pending::begin(session, name, terms, work, FirstAsk::Caller)
    }

    fn begin(
        session: &Arc<Session>,
        name: &LockName,
        terms: AcquireTerms,
        work: PendingWork<T>,
        first_ask: FirstAsk,
    ) -> Result<(Pending<T>, bool)> {
        session.usable()?;
        let number = session.askers.number();
        let askers = Arc::downgrade(&session.askers);
        let ticket = session.queue.join_without_thread(name, &terms.of_queue(), move || {
            if let Some(askers) = askers.upgrade() {
                askers.wake(number);
            }
        });
        let cancel = terms.cancel.clone();
        let state = PendingState {
            ticket: Some(ticket),
            has_asked: false,
            is_asking: false,
            read_at: 0,
            is_reported: false,
            is_added: false,
            #[cfg(feature = "capi")]
            is_callers: false,
            registration: None,
            listener: None,
            #[cfg(feature = "capi")]
            is_freed: false,
        };
        let (session, name) = (Arc::clone(session), name.clone());
        let (state, result) = (Mutex::new(state), ResultSlot::open("pending acquisition of"));
        let shared = Arc::new(PendingShared { session, name, terms, work, number, state, result });
        let pending = Pending { shared };
        if let Some(token) = cancel {
            pending.shared.register(&token);
        }
        let is_callers = match first_ask {
            FirstAsk::Library => false,
            #[cfg(feature = "capi")]
            FirstAsk::Caller => pending.shared.leave_to_caller(),
        };
        if !is_callers {
            pending.shared.add().inspect_err(|_| pending.shared.state.lock().is_reported = true)?;
        }
        Ok((pending, is_callers))
    }

    /// Sends the first request from the calling thread, if nobody has done so. Blocks for one call to the store. After
    /// that, the library's threads go on. See [`start_here`](Pending::start_here).
    ///
    /// # Errors
    /// FORKED.
    #[cfg(feature = "capi")]
    pub(crate) fn ask_here(&self) -> Result<()> {
        let shared = &self.shared;
        shared.session.not_forked()?;
        if !std::mem::take(&mut shared.state.lock().is_callers) {
            return Ok(());
        }
        shared.ask();
        if shared.state.lock().ticket.is_some()
            && let Err(error) = shared.add()
        {
            shared.finish(shared.state.lock(), Err(error));
        }
        Ok(())
    }

    /// Returns what was acquired, or the error, once the pending has finished, and `Ok(None)` before that. Never blocks.
    ///
    /// # Errors
    /// * Those of [`Lock::acquire_with`](crate::Lock::acquire_with), of which the grant, the error or the end of the wait was the result.
    /// * [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the result was taken before; [`Code::Closed`](crate::Code::Closed) if the manager was closed since;
    ///   [`Code::Forked`](crate::Code::Forked).
    pub fn take(&self) -> Result<Option<T>> {
        let session = &self.shared.session;
        session.not_forked()?;
        let Some(acquired) = self.shared.result.take(&self.shared.name)? else { return Ok(None) };
        session.usable()?;
        Ok(Some(acquired))
    }

    /// Cancels the acquisition: it finishes at once with [`Code::Cancelled`](crate::Code::Cancelled). A request to the store that is under way
    /// goes on, and the library releases the lock if that request acquires it. Does nothing if the pending has
    /// finished: then [`take`](Pending::take) returns what it returned before. Never blocks.
    pub fn cancel(&self) {
        if self.shared.session.not_forked().is_ok() {
            self.shared.cancel();
        }
    }

    /// Returns a descriptor for event loops. It becomes readable when the pending has finished, and stays so. Poll the
    /// descriptor, but do not read it. The first call creates it. Later calls return the same descriptor. It belongs to
    /// the pending and is closed on exec. Linux only. Programs with thousands of pendings use
    /// [`notify`](Pending::notify) instead.
    ///
    /// # Errors
    /// [`Code::InternalError`](crate::Code::InternalError) if the process has no descriptor left; [`Code::Forked`](crate::Code::Forked).
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.shared.session.not_forked()?;
        self.shared.result.fd(&self.shared.name)
    }

    /// Adds `tag` to `completions` when the pending finishes, or at once if it has finished. Dropping the pending takes the
    /// tag out again. Never blocks.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if it was called before; [`Code::Forked`](crate::Code::Forked).
    pub fn notify(&self, completions: &Completions, tag: u64) -> Result<()> {
        self.shared.session.not_forked()?;
        completions.not_forked()?;
        let mut state = self.shared.state.lock();
        #[cfg(feature = "capi")]
        if state.is_freed {
            return Err(Error::Closed);
        }
        if state.listener.is_some() {
            let name = self.shared.name.key();
            return Err(Error::invalid("pending acquisition of", name, "one without a list of completions"));
        }
        let number =
            if state.ticket.is_none() { Some(completions.push(tag, CompletionKind::Finished)) } else { None };
        state.listener = Some(Listener { completions: completions.clone(), tag, number });
        Ok(())
    }
}

#[cfg(feature = "capi")]
impl<T: Send + 'static> Pending<T> {
    /// Takes the tag of [`notify`](Pending::notify) out of its list, for good.
    pub(crate) fn stop_notifying(&self) {
        if self.shared.session.not_forked().is_ok() {
            let mut state = self.shared.state.lock();
            state.is_freed = true;
            state.stop_notifying();
        }
    }
}

impl<T: Send + 'static> PendingShared<T> {
    fn terms(&self) -> Terms<'_> {
        self.terms.of_queue()
    }

    /// Cancels the pending when the token is cancelled.
    fn register(self: &Arc<Self>, token: &CancelToken) {
        let pending = Arc::downgrade(self);
        let registration = token.on_cancel(Arc::new(move || {
            if let Some(pending) = pending.upgrade() {
                pending.cancel();
            }
        }));
        self.state.lock().registration = Some(registration);
        if token.is_cancelled() {
            self.cancel();
        }
    }

    /// Leaves the pending to the library's threads.
    fn add(self: &Arc<Self>) -> Result<()> {
        let session = &self.session;
        let shard = session.store.shard(&self.name);
        // First, because it may finish meanwhile. If it does, the threads forget it when they look at it.
        self.state.lock().is_added = true;
        let inquiry = Arc::clone(self) as Arc<dyn Inquiry>;
        session.askers.add(self.number, AskKind::Poll, shard, inquiry).map_err(|error: io::Error| {
            session.usable().err().unwrap_or_else(|| Error::Internal {
                what: format!("no thread can be started to acquire lock {}", self.name),
                source: Some(error.into()),
            })
        })
    }

    /// Leaves the first request to the caller if this waiter may send one now.
    #[cfg(feature = "capi")]
    fn leave_to_caller(&self) -> bool {
        let mut state = self.state.lock();
        let step = state.ticket.as_ref().map(|ticket| ticket.step(&self.terms(), state.has_asked));
        state.is_callers = matches!(step, Some(Ok(QueueStep::Ask(..))));
        state.is_callers
    }

    fn cancel(&self) {
        let state = self.state.lock();
        let holder = state.ticket.as_ref().and_then(QueueTicket::holder);
        self.finish(state, Err(self.cancelled(holder)));
    }

    /// Returns the error of a cancelled wait. It says who holds the lock, if that is known.
    fn cancelled(&self, holder: Option<Holder>) -> Error {
        let waited = self.waited();
        let error = Error::Cancelled { waited };
        match holder {
            Some(holder) => {
                let held = acquire::unavailable(&self.session, &self.name, Some(holder), Duration::ZERO);
                error.context(held.to_string())
            }
            None => error,
        }
    }

    /// Returns the error of a wait that ended without the lock.
    fn ended(&self, ended: Ended) -> Error {
        match ended {
            Ended::Unavailable(holder) => {
                let holder = holder.map(|holder| *holder);
                acquire::unavailable(&self.session, &self.name, holder, self.waited())
            }
            Ended::Cancelled => self.cancelled(None),
            Ended::Failed(error) => error,
        }
    }

    /// Sets the result, unless there is one, and leaves the queue.
    fn finish(&self, mut state: MutexGuard<'_, PendingState>, result: Result<T>) {
        let Some(ticket) = state.ticket.take() else {
            drop(state);
            // A lease is released.
            return drop(result);
        };
        let failed = result.as_ref().err().map(Error::code).filter(|_| !state.is_reported);
        // The next waiter may ask now. Before the result can be seen: whoever has it is not in the queue any more.
        drop(ticket);
        self.terms.end_wait();
        self.result.finish(&self.name, result);
        let (registration, is_added) = (state.registration.take(), state.is_added);
        if let Some(listener) = &mut state.listener {
            listener.number = Some(listener.completions.push(listener.tag, CompletionKind::Finished));
        }
        drop(state);
        drop(registration);
        if is_added {
            self.session.askers.remove(self.number);
        }
        if let Some(code) = failed {
            let (wanted, waited) = ((&self.name, self.terms.mode), || self.terms.waited());
            acquire::tell_unavailable(&self.session, wanted, code, waited, OpenSpans::default());
        }
    }

    fn waited(&self) -> Duration {
        Moment::now().since(self.terms.began)
    }

    /// Returns when to give up if no thread has become free to send even the first request.
    fn patience_ends(&self) -> Moment {
        let timeout = self.session.settings.timeout;
        self.terms.by.max(Deadline::at(self.terms.began.after(timeout))).moment()
    }

    /// Returns whether to report the grant to the event sinks: the pending has not finished.
    fn begin_to_tell(&self) -> bool {
        let mut state = self.state.lock();
        state.is_reported = state.ticket.is_some();
        state.is_reported
    }

    /// Sends one request to the store and handles its answer.
    fn send(&self, step: (Ask, u64)) -> Served {
        let (how, releases) = step;
        let asked = catch_unwind(AssertUnwindSafe(|| (self.work.ask)(how, &self.terms)));
        let answer = asked.unwrap_or_else(|payload| {
            let what = format!("acquiring lock {} panicked: {}", self.name, panic_text(&*payload));
            log::error!("{what}");
            Err(Error::Panic { what })
        });
        let served = Served::of(&answer);
        let kept = match &answer {
            Ok(Answer::Got(got)) => self.terms.settle((self.work.leases)(got)),
            Ok(Answer::Busy(_)) | Err(_) => Ok(()),
        };
        if let (Ok(Answer::Got(got)), Ok(())) = (&answer, &kept)
            && self.begin_to_tell()
        {
            // First, because another thread may take the leases and release them.
            for lease in (self.work.leases)(got) {
                lease.tell_acquired(|| self.terms.waited(), OpenSpans::default());
            }
        }
        let mut state = self.state.lock();
        state.is_asking = false;
        let Some(ticket) = &state.ticket else {
            drop(state);
            // It was cancelled or closed during the request. A lease is released.
            drop(answer);
            return served;
        };
        match answer {
            Ok(Answer::Busy(holder)) => ticket.refused(holder, &self.terms.of_queue(), releases),
            Ok(Answer::Got(got)) => {
                ticket.granted(&self.terms.of_queue());
                match kept {
                    Ok(()) => self.finish(state, Ok(got)),
                    Err(error) => {
                        self.finish(state, Err(error));
                        // Releases the lock.
                        drop(got);
                    }
                }
            }
            Err(error) => {
                let error = ticket.failed(error, &self.terms(), releases);
                self.finish(state, Err(error));
            }
        }
        served
    }
}

impl<T: Send + 'static> Inquiry for PendingShared<T> {
    fn next_step(&self) -> NextStep {
        let state = self.state.lock();
        let Some(ticket) = &state.ticket else { return NextStep::Done };
        match ticket.step(&self.terms(), state.has_asked) {
            // The wait ends when the request does.
            Ok(_) | Err(Ended::Unavailable(_)) if state.is_asking => NextStep::LookAt(Moment::NEVER),
            Ok(QueueStep::Ask(..)) if state.has_asked => NextStep::Ask(self.terms.by.moment()),
            Ok(QueueStep::Ask(..)) if Moment::now() < self.patience_ends() => {
                NextStep::Ask(self.patience_ends())
            }
            Ok(QueueStep::Ask(..)) => {
                let what = "no thread was free to ask: all wait for the store".into();
                let store = self.session.store.describe();
                self.finish(state, Err(Error::RetriesExhausted { store, what, source: None }));
                NextStep::Done
            }
            Ok(QueueStep::Park(until)) => NextStep::LookAt(until),
            Err(ended) => {
                let error = self.ended(ended);
                self.finish(state, Err(error));
                NextStep::Done
            }
        }
    }

    fn ask(&self) -> Served {
        let mut state = self.state.lock();
        let step = match &state.ticket {
            Some(ticket) if !state.is_asking => ticket.step(&self.terms(), state.has_asked),
            _ => return Served::Unknown,
        };
        match step {
            Ok(QueueStep::Ask(how, releases)) => {
                state.is_asking = true;
                state.has_asked = true;
                drop(state);
                self.send((how, releases))
            }
            Ok(QueueStep::Park(_)) => Served::Unknown,
            Err(ended) => {
                let error = self.ended(ended);
                self.finish(state, Err(error));
                Served::Unknown
            }
        }
    }

    fn begin_read(&self) -> Option<LockName> {
        // A lock that stays with this process looks held there. It is taken again without the store.
        // And what a reader waits for is more than the holder.
        let is_exclusive = self.terms.mode == Mode::Exclusive;
        if !is_exclusive || self.session.usable().is_err() || self.session.leases.stays(&self.name) {
            return None;
        }
        let mut state = self.state.lock();
        let ticket = state.ticket.as_ref().filter(|_| !state.is_asking)?;
        let Ok(QueueStep::Ask(_, releases)) = ticket.step(&self.terms(), state.has_asked) else {
            return None;
        };
        (state.is_asking, state.read_at) = (true, releases);
        Some(self.name.clone())
    }

    fn end_read(&self, seen: Option<Option<Holder>>) {
        let mut state = self.state.lock();
        state.is_asking = false;
        // It was cancelled or closed meanwhile, or asks alone.
        let (Some(ticket), Some(seen)) = (&state.ticket, seen) else { return };
        match seen {
            Some(holder) => {
                ticket.refused(Some(holder.clone()), &self.terms.of_queue(), state.read_at);
                state.has_asked = true;
                drop(state);
                // It may ask the store.
                self.terms.note_refusal(&self.session, &self.name, &holder, self.terms.by);
            }
            None => ticket.found_free(state.read_at),
        }
    }
}

impl PendingState {
    /// Takes the tag out of its list.
    fn stop_notifying(&mut self) {
        if let Some(Listener { completions, number: Some(number), .. }) = self.listener.take() {
            completions.remove(number);
        }
    }
}

impl<T: Send + 'static> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.shared.session.not_forked().is_err() {
            // In a forked child, where a thread that does not exist may hold the mutex.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        let mut state = self.shared.state.lock();
        state.stop_notifying();
        if state.ticket.is_some() {
            self.shared.finish(state, Err(self.shared.cancelled(None)));
        } else {
            drop(state);
            // A lease that nobody took is released.
            drop(self.shared.result.take(&self.shared.name));
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

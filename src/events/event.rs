//! Events: what happens to locks and leases, reported to code of the program.

use std::fmt;
use std::time::Duration;

use crate::error::Code;
use crate::names::fence::{Epoch, Fence};
use crate::names::lease_state::LostReason;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;

/// Code of the program that receives each [`Event`] of a manager. Set by
/// [`Builder::event_sink`](crate::Builder::event_sink).
///
/// * **Threads**: a sink is called on the thread on which the event happened: a thread of the program, or one of the
///   library, also on several at one time. A slow sink delays that thread. If it is the one that renews leases, it delays
///   renewals. So a sink that does I/O should leave it to a thread of its own.
/// * **Calls back**: no lock of the library is held, so a sink may use the manager and its leases. Each such call may
///   cause further events.
/// * **Panics** of a sink are logged. They neither reach the caller nor end a thread of the library.
/// * **Forks**: no sink is called in a forked child.
///
/// ```
/// use dlm::events::{Event, EventSink};
/// use dlm::{Level, LockManager};
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Default)]
/// struct Grants(Mutex<Vec<String>>);
///
/// impl EventSink for Grants {
///     fn on_event(&self, event: &Event<'_>) {
///         if let Event::Acquired { lock, .. } = event {
///             self.0.lock().unwrap().push(lock.to_string());
///         }
///     }
/// }
///
/// let grants = Arc::new(Grants::default());
/// let builder = LockManager::builder().store_uri("memory:").client("docs").event_sink(grants.clone());
/// let lease = builder.open()?.lock("report", Level::Xdc)?.try_acquire()?;
/// assert_eq!(grants.0.lock().unwrap().len(), 1);
/// # Ok::<(), dlm::Error>(())
/// ```
pub trait EventSink: Send + Sync + 'static {
    /// Called for each event.
    fn on_event(&self, event: &Event<'_>);

    /// Called before work begins whose end is an event, for sinks that measure or trace it. Default: `None`.
    fn on_start(&self, work: &StartedWork<'_>) -> Option<Box<dyn EventSpan>> {
        let _ = work;
        None
    }
}

/// Work that a thread does from its beginning to its end. Later versions may add more.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum StartedWork<'a> {
    /// A call that acquires a lock and blocks. It ends with [`Event::Acquired`] or [`Event::Unavailable`].
    #[non_exhaustive]
    Acquire {
        /// The lock.
        lock: &'a LockName,
        /// How the lock is to be held.
        mode: Mode,
    },
    /// A call to the store. It ends with [`Event::StoreCall`].
    #[non_exhaustive]
    StoreCall {
        /// What is called.
        call: StoreCall,
        /// The lock, if the call is about one lock.
        lock: Option<&'a LockName>,
    },
}

/// Work under way, as a sink sees it. Returned by [`EventSink::on_start`], and ended or dropped on the same thread. It is
/// dropped without an end if the work has no event.
pub trait EventSpan {
    /// Called after the event that ends the work was reported.
    fn end(self: Box<Self>, event: &Event<'_>);
}

/// Something that has happened. Later versions may add events, and fields.
///
/// A lease begins with [`Acquired`](Event::Acquired), unless it was adopted from a token, and has at most one end:
/// [`Lost`](Event::Lost), [`Released`](Event::Released) or [`HandedOn`](Event::HandedOn). Only a renewal by the program can
/// follow `Lost`: then the lease goes on with [`Renewed`](Event::Renewed). A lock that was granted while the caller
/// cancelled its wait is released without either event.
///
/// A [change of mode](Event::ModeChanged) is neither an end nor a beginning, although the program has another lease
/// afterwards: the events of the two leases go on as those of one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The lock was granted to this process, by the store or because it had stayed here. A campaign and a set of locks
    /// acquire their locks one by one.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        lock: &'a LockName,
        /// How the lock is held.
        mode: Mode,
        /// The fence of the grant; `None` unless it is exclusive.
        fence: Option<Fence>,
        /// How long the caller waited: zero if it was to try once.
        waited: Duration,
    },
    /// An acquisition ended without the lock. Not reported for calls that fail before they ask, such as for an argument that
    /// is not allowed.
    #[non_exhaustive]
    Unavailable {
        /// The lock.
        lock: &'a LockName,
        /// How the lock was to be held.
        mode: Mode,
        /// The code of the error: [`Code::LockUnavailable`] if the wait was over.
        code: Code,
        /// How long the caller waited: zero if it was to try once.
        waited: Duration,
    },
    /// The lease was renewed, by the program or in the background.
    #[non_exhaustive]
    Renewed {
        /// The lock.
        lock: &'a LockName,
        /// How the lock is held.
        mode: Mode,
        /// The fence of the lease.
        fence: Option<Fence>,
        /// Remaining time of the lease.
        left: Duration,
    },
    /// A renewal failed, and the lease keeps its end. The background threads try again.
    #[non_exhaustive]
    RenewalFailed {
        /// The lock.
        lock: &'a LockName,
        /// How the lock is held.
        mode: Mode,
        /// The fence of the lease.
        fence: Option<Fence>,
        /// The code of the error.
        code: Code,
        /// Remaining time of the lease.
        left: Duration,
    },
    /// Less than a third of a lease that is [kept alive](crate::Lease::keep) is left. Told once until a renewal, by a
    /// background thread, up to 200 ms late.
    #[non_exhaustive]
    AtRisk {
        /// The lock.
        lock: &'a LockName,
        /// How the lock is held.
        mode: Mode,
        /// The fence of the lease.
        fence: Option<Fence>,
        /// Remaining time of the lease.
        left: Duration,
    },
    /// The lease has ended although the program did not release it. If its time has run out, this is told
    ///
    /// * by a background thread up to 200 ms later, if the lease is kept alive or its changes are listened to,
    /// * otherwise by the next call that looks: [`check`](crate::Lease::check), [`guard`](crate::Lease::guard), a renewal,
    ///   the release, the drop of the lease or the end of the manager. A lease that was released too late was lost, even if
    ///   nobody else had the lock.
    #[non_exhaustive]
    Lost {
        /// The lock.
        lock: &'a LockName,
        /// How the lock was held at the end.
        mode: Mode,
        /// The fence of the lease.
        fence: Option<Fence>,
        /// Why it was lost.
        reason: LostReason,
        /// Time since the lock was granted or adopted, or since its mode was changed.
        held: Duration,
    },
    /// The program released the lock or dropped the lease, or the manager was closed.
    #[non_exhaustive]
    Released {
        /// The lock.
        lock: &'a LockName,
        /// How the lock was held at the end.
        mode: Mode,
        /// The fence of the lease.
        fence: Option<Fence>,
        /// Time since the lock was granted or adopted, or since its mode was changed.
        held: Duration,
        /// Whether the store has confirmed that the lock is free. If not, the lock stays with this process or has a minimum
        /// hold, or a background thread releases it because the release has failed.
        freed: bool,
    },
    /// A lease [goes on](crate::Lease::upgrade) in another mode. Nobody got the lock in between. If the lease ended during the
    /// change and the store made the change all the same, the new lease begins with `Acquired`.
    #[non_exhaustive]
    ModeChanged {
        /// The lock.
        lock: &'a LockName,
        /// How it was held.
        from: Mode,
        /// How it is held now.
        to: Mode,
        /// The fence, if it is held exclusively now.
        fence: Option<Fence>,
        /// The number of the period in which it is held now. `None` if fencing is switched off.
        epoch: Option<Epoch>,
        /// How long the caller waited for readers: zero for fewer rights, and if it was to try once.
        waited: Duration,
        /// Time for which the lock was held in the mode before.
        held: Duration,
    },
    /// A lease did not get another mode. It goes on as it was. If the change is in doubt, it has ended with `Released` before.
    /// Not reported for a change that is not allowed, nor for one of a lease that is over.
    #[non_exhaustive]
    ModeNotChanged {
        /// The lock.
        lock: &'a LockName,
        /// How it was held.
        from: Mode,
        /// How it was to be held.
        to: Mode,
        /// The code of the error: [`Code::LockUnavailable`] if readers held the lock until the wait was over.
        code: Code,
        /// How long the caller waited for readers: zero for fewer rights, and if it was to try once.
        waited: Duration,
    },
    /// The lease was turned into a token. The lock stays held.
    #[non_exhaustive]
    HandedOn {
        /// The lock.
        lock: &'a LockName,
        /// How the lock is held.
        mode: Mode,
        /// The fence of the lease.
        fence: Option<Fence>,
        /// Time since the lock was granted or adopted, or since its mode was changed.
        held: Duration,
    },
    /// A request that changes the lock may have been applied, or may still be. The library releases the lock in the
    /// background if an acquisition was in doubt. The event that ends the call, such as [`Event::Unavailable`], has the mode.
    #[non_exhaustive]
    InDoubt {
        /// The lock.
        lock: &'a LockName,
        /// The request.
        call: StoreCall,
    },
    /// A call to the store has ended. Several requests to servers may be one call.
    #[non_exhaustive]
    StoreCall {
        /// What was called.
        call: StoreCall,
        /// The lock, if the call is about one lock.
        lock: Option<&'a LockName>,
        /// How it ended.
        outcome: StoreOutcome,
        /// How long it took.
        took: Duration,
    },
}

/// The kinds of calls to a store: the methods of [`LockStore`](crate::store::LockStore),
/// [`LatchStore`](crate::store::LatchStore), [`ModeStore`](crate::store::ModeStore) and
/// [`HistoryStore`](crate::store::HistoryStore) that block. `release_stamped` is a `Release`, `acquire_mode` an `Acquire`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the name says which method it is")]
pub enum StoreCall {
    Initialize,
    Acquire,
    Renew,
    RenewMany,
    Release,
    Holder,
    Holders,
    Inspect,
    List,
    Append,
    Entries,
    Diagnose,
    Convert,
    Blocker,
    Holds,
    Announce,
    Withdraw,
    Semaphore,
    Resize,
    OutliveProcess,
    LivenessFd,
    InitializeLatches,
    CreateLatch,
    ResetLatch,
    DeleteLatch,
    ListLatches,
    Step,
    Counts,
    Roster,
    Listen,
    Listeners,
}

impl StoreCall {
    /// All kinds. Later versions may add more.
    pub const ALL: &[StoreCall] = &[
        StoreCall::Initialize,
        StoreCall::Acquire,
        StoreCall::Renew,
        StoreCall::RenewMany,
        StoreCall::Release,
        StoreCall::Holder,
        StoreCall::Holders,
        StoreCall::Inspect,
        StoreCall::List,
        StoreCall::Append,
        StoreCall::Entries,
        StoreCall::Diagnose,
        StoreCall::Convert,
        StoreCall::Blocker,
        StoreCall::Holds,
        StoreCall::Announce,
        StoreCall::Withdraw,
        StoreCall::Semaphore,
        StoreCall::Resize,
        StoreCall::OutliveProcess,
        StoreCall::LivenessFd,
        StoreCall::InitializeLatches,
        StoreCall::CreateLatch,
        StoreCall::ResetLatch,
        StoreCall::DeleteLatch,
        StoreCall::ListLatches,
        StoreCall::Step,
        StoreCall::Counts,
        StoreCall::Roster,
        StoreCall::Listen,
        StoreCall::Listeners,
    ];

    /// Returns the name of the method.
    pub fn name(self) -> &'static str {
        match self {
            StoreCall::Initialize => "initialize",
            StoreCall::Acquire => "acquire",
            StoreCall::Renew => "renew",
            StoreCall::RenewMany => "renew_many",
            StoreCall::Release => "release",
            StoreCall::Holder => "holder",
            StoreCall::Holders => "holders",
            StoreCall::Inspect => "inspect",
            StoreCall::List => "list",
            StoreCall::Append => "append",
            StoreCall::Entries => "entries",
            StoreCall::Diagnose => "diagnose",
            StoreCall::Convert => "convert",
            StoreCall::Blocker => "blocker",
            StoreCall::Holds => "holds",
            StoreCall::Announce => "announce",
            StoreCall::Withdraw => "withdraw",
            StoreCall::Semaphore => "semaphore",
            StoreCall::Resize => "resize",
            StoreCall::OutliveProcess => "outlive_process",
            StoreCall::LivenessFd => "liveness_fd",
            StoreCall::InitializeLatches => "initialize_latches",
            StoreCall::CreateLatch => "create_latch",
            StoreCall::ResetLatch => "reset_latch",
            StoreCall::DeleteLatch => "delete_latch",
            StoreCall::ListLatches => "list_latches",
            StoreCall::Step => "step",
            StoreCall::Counts => "counts",
            StoreCall::Roster => "roster",
            StoreCall::Listen => "listen",
            StoreCall::Listeners => "listeners",
        }
    }
}

impl fmt::Display for StoreCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a call to the store ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOutcome {
    /// It was done.
    Ok,
    /// An acquire found another holder.
    Held,
    /// A renewal or release found that the caller does not hold the lock.
    NotOurs,
    /// It failed. A latch that does not exist is [`Code::NotFound`].
    Failed(Code),
}

impl StoreOutcome {
    /// Returns `ok`, `held`, `not_ours` or the name of the code.
    pub fn name(self) -> &'static str {
        match self {
            StoreOutcome::Ok => "ok",
            StoreOutcome::Held => "held",
            StoreOutcome::NotOurs => "not_ours",
            StoreOutcome::Failed(code) => code.name(),
        }
    }
}

impl fmt::Display for StoreOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

//! Calls and their answers, as clients log them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlm::{Code, Error, Mode, Moment};

/// Names one call: the client that made it, and the number that the client gave it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    /// The client: a thread, or a process with one thread. It has one call under way at a time.
    pub client: Arc<str>,
    /// Counts the calls of the client.
    pub number: u64,
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.number)
    }
}

/// What a client called. A lease is named by the call that acquired it, or that made it from another lease, because a
/// faulty store may grant one fence twice. Another client may use the lease too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Acquires the lock `key` for `ttl`, and waits up to `wait` for it. With a wait of zero it asks the store once.
    /// Answers: [`Answer::Granted`], [`Answer::No`] if the lock is held or kept free for a writer that waits,
    /// [`Answer::InDoubt`], [`Answer::Failed`].
    Acquire {
        /// Length of the lease.
        ttl: Duration,
        /// Longest wait.
        wait: Duration,
        /// How the lock is to be held.
        mode: Mode,
    },
    /// Acquires one permit of the semaphore `key` for `ttl`, and waits up to `wait` for it. Answers: [`Answer::GrantedPermit`],
    /// [`Answer::No`] if no permit is free, [`Answer::InDoubt`], [`Answer::Failed`].
    AcquirePermit {
        /// Length of the lease.
        ttl: Duration,
        /// Longest wait.
        wait: Duration,
        /// The number of permits that the caller counts on.
        permits: u16,
    },
    /// Changes the number of permits of the semaphore `key`. Answers: [`Answer::Ok`], [`Answer::NotFound`], [`Answer::InDoubt`],
    /// [`Answer::Failed`].
    Resize {
        /// The new number.
        permits: u16,
    },
    /// Makes a lease of another mode from a lease, which is over then. The new lease has the name of this call. Only a
    /// conversion to [`Mode::Exclusive`] waits. Answers: [`Answer::Granted`], [`Answer::No`] if others hold the lock:
    /// then the old lease goes on, [`Answer::Lost`], [`Answer::InDoubt`], [`Answer::Failed`]: the old lease goes on.
    Convert {
        /// The old lease.
        lease: CallId,
        /// How the lock is to be held.
        mode: Mode,
        /// Length of the new lease.
        ttl: Duration,
        /// Longest wait.
        wait: Duration,
    },
    /// Renews a lease. Answers: [`Answer::Renewed`], [`Answer::Lost`], [`Answer::InDoubt`], [`Answer::Failed`].
    Renew {
        /// The lease.
        lease: CallId,
        /// New length of the lease, from now.
        ttl: Duration,
    },
    /// Releases a lease. Answers: [`Answer::Ok`] if this call freed the lock, [`Answer::No`] if the lease was over
    /// before, [`Answer::Lost`], [`Answer::InDoubt`], [`Answer::Failed`].
    Release {
        /// The lease.
        lease: CallId,
    },
    /// Asks the library, without I/O, whether the lease still lasts. Answers: [`Answer::Ok`], [`Answer::Lost`].
    Check {
        /// The lease.
        lease: CallId,
    },
    /// Sends a write to a receiver that compares fences. Answers: [`Answer::Ok`], [`Answer::Refused`].
    Write {
        /// The lease.
        lease: CallId,
        /// The fence that is sent along.
        fence: u64,
    },
    /// Sends a read to a receiver that compares epochs. Answers: [`Answer::Ok`], [`Answer::Refused`].
    Read {
        /// The lease.
        lease: CallId,
        /// The epoch that is sent along.
        epoch: u64,
    },
    /// Creates the latch `key`. Answers: [`Answer::Ok`], [`Answer::No`] if it exists.
    CreateLatch {
        /// Initial count.
        count: i64,
        /// Lifetime of the latch after each change.
        ttl: Duration,
    },
    /// Begins the latch anew. Answers: [`Answer::Ok`], [`Answer::NotFound`], [`Answer::InDoubt`].
    ResetLatch {
        /// The new count.
        count: i64,
        /// Lifetime of the latch after each change.
        ttl: Duration,
    },
    /// Deletes the latch. Answers as for [`Operation::ResetLatch`].
    DeleteLatch,
    /// Counts down by one. Answers: [`Answer::Ok`], [`Answer::No`] if the participant has counted before,
    /// [`Answer::NotFound`], [`Answer::InDoubt`].
    CountDown {
        /// Each participant counts once. Calls without a participant all count.
        participant: Option<String>,
    },
    /// Counts up by one. Answers as for [`Operation::CountDown`].
    CountUp,
    /// Reads the count. Answers: [`Answer::Value`], [`Answer::NotFound`].
    ReadCount,
    /// Waits until the latch is open. Answers: [`Answer::Ok`], [`Answer::No`] at the deadline, [`Answer::NotFound`].
    Await {
        /// When the wait times out.
        deadline: Moment,
    },
    /// Creates the row `key`. Answers: [`Answer::Ok`], [`Answer::No`] if it exists.
    CreateRow {
        /// Its value.
        value: i64,
    },
    /// Writes the row, whatever its value. Answers: [`Answer::Ok`].
    Put {
        /// New value.
        value: i64,
    },
    /// Writes the row if it has the expected value. Answers: [`Answer::Ok`], [`Answer::No`] if it has another.
    CompareAndSet {
        /// Expected value; `None` if no row is expected.
        expected: Option<i64>,
        /// New value.
        value: i64,
    },
    /// Reads the row. Answers: [`Answer::Value`].
    Get,
    /// Adds to the value at the server; a missing row counts as zero. Answers: [`Answer::Value`] with the sum, or
    /// [`Answer::Ok`] if the sum is not known.
    Increment {
        /// What to add.
        by: i64,
    },
    /// Reads, adds, compares and sets, until it succeeds. Answers as for [`Operation::Increment`].
    Modify {
        /// What to add.
        by: i64,
    },
    /// A sign of life, which one thread of the workload logs at regular intervals. A gap shows that the machine or
    /// the process was stopped. Answers: [`Answer::Ok`].
    Beat {
        /// The interval.
        every: Duration,
    },
    /// A test delays or loses messages from the call to the return of this event. It logs this itself. The key is the
    /// beginning of the names of the clients whose messages these are. Their calls of this time may take effect up to
    /// `longest` after they have returned. Answers: [`Answer::Ok`].
    Delay {
        /// Longest delay. Zero if messages are only lost.
        longest: Duration,
    },
    /// A server is away from the call to the return of this event. The test that stops it logs this. A server may
    /// forget releases that it answered before: HBase need not write them to its log first. Answers: [`Answer::Ok`].
    Outage,
}

/// What a call returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The call did what was asked.
    Ok,
    /// The call did not do it, for the usual reason: see [`Operation`].
    No,
    /// The lock was acquired, or the lease was converted.
    Granted {
        /// The number of the grant: the fence of an exclusive lease, the epoch of another; `None` if the store does not
        /// fence.
        fence: Option<u64>,
        /// When the lease ends, as the library counts it.
        ends: Moment,
    },
    /// A permit of a semaphore was acquired.
    GrantedPermit {
        /// Its number.
        permit: u8,
        /// Its fence; `None` if the store does not fence.
        fence: Option<u64>,
        /// When the lease ends, as the library counts it.
        ends: Moment,
    },
    /// The lease was renewed.
    Renewed {
        /// When the lease ends now, as the library counts it.
        ends: Moment,
    },
    /// The lease is lost.
    Lost,
    /// The latch does not exist.
    NotFound,
    /// The value that was read or written; `None` if there is none.
    Value(Option<i64>),
    /// The receiver refused the write or the read.
    Refused {
        /// The highest fence that the receiver has seen in a write.
        highest: u64,
    },
    /// The call may have taken effect, or may do so later, or never.
    InDoubt,
    /// The call failed and changed nothing.
    Failed {
        /// The code of the error.
        code: String,
    },
    /// The log has no answer: the client was killed, or the call has not returned. As much in doubt as
    /// [`Answer::InDoubt`].
    Unknown,
}

impl Answer {
    /// Whether a lease was granted.
    pub fn is_grant(&self) -> bool {
        matches!(self, Answer::Granted { .. } | Answer::GrantedPermit { .. })
    }

    /// Whether the call may take effect after it has returned, or has not returned.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self, Answer::InDoubt | Answer::Unknown)
    }
}

/// The answer that an error of the library stands for.
impl From<&Error> for Answer {
    fn from(error: &Error) -> Answer {
        match (error.code(), error.stale_fence()) {
            (_, Some((_, stored))) => Answer::Refused { highest: stored.0 },
            (Code::LockUnavailable | Code::AlreadyExists, _) => Answer::No,
            (Code::LeaseLost, _) => Answer::Lost,
            (Code::NotFound, _) => Answer::NotFound,
            (Code::InDoubt, _) => Answer::InDoubt,
            (code, _) => Answer::Failed { code: code.name().to_owned() },
        }
    }
}

/// One call with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The call.
    pub id: CallId,
    /// The lock, latch or row.
    pub key: Arc<str>,
    /// Read from the clock before the call.
    pub called: Moment,
    /// Read from the clock after the call; `None` if the log has no answer.
    pub returned: Option<Moment>,
    /// What was called.
    pub operation: Operation,
    /// What it returned.
    pub answer: Answer,
}

impl Event {
    /// Returns when the call returned. A call that the log shows no answer of counts as returned when it was called:
    /// nothing is known about it later.
    pub fn last_seen(&self) -> Moment {
        self.returned.unwrap_or(self.called)
    }
}

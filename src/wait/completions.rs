//! A list of pending operations that have finished, and of leases that are at risk or have ended, with one descriptor for all
//! of them.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
#[cfg(feature = "capi")]
use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::lease_state::LostReason;
use crate::runtime::process::process_mark::ProcessMark;
#[cfg(feature = "capi")]
use crate::runtime::sync::Condvar;
use crate::runtime::sync::Mutex;
use crate::runtime::time::Moment;
#[cfg(feature = "capi")]
use crate::runtime::time::{Deadline, LONGEST_PARK};
use crate::runtime::timerfd::Timerfd;

/// A list of the pendings that have finished, for programs with many of them: one descriptor serves any number of
/// pendings, of any managers.
///
/// A program gives each [`Pending`](crate::Pending) a tag, see [`Pending::notify`](crate::Pending::notify), polls
/// [`fd`](Completions::fd), and calls [`next`](Completions::next) until it returns `None`. Clones are the same list. No
/// method blocks.
#[derive(Clone)]
pub struct Completions {
    shared: Arc<CompletionsShared>,
}

struct CompletionsShared {
    state: Mutex<CompletionsState>,
    /// Created by the first call of `fd`, under `state`. Readable while the list is not empty.
    timerfd: OnceLock<Timerfd>,
    /// Wakes those that wait for an entry.
    #[cfg(feature = "capi")]
    more: Condvar,
    /// The process that made the list, see [`ProcessMark`].
    process: ProcessMark,
}

#[derive(Default)]
struct CompletionsState {
    entries: BTreeMap<u64, Completion>,
    drawn: u64,
    /// Whether nobody may wait any more.
    #[cfg(feature = "capi")]
    is_closed: bool,
}

/// One thing that has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) tag: u64,
    pub(crate) kind: CompletionKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "capi"), allow(dead_code, reason = "leases notify only callers in C"))]
pub(crate) enum CompletionKind {
    /// A pending has finished.
    Finished,
    /// A lease is at risk.
    AtRisk,
    /// A lease is not valid any more. `None`: it was released.
    Ended(Option<LostReason>),
}

impl Completions {
    /// Makes an empty list.
    pub fn new() -> Completions {
        let shared = CompletionsShared {
            state: Mutex::default(),
            timerfd: OnceLock::new(),
            #[cfg(feature = "capi")]
            more: Condvar::new(),
            process: ProcessMark::current(),
        };
        Completions { shared: Arc::new(shared) }
    }

    /// Returns a descriptor that is readable while the list is not empty. Poll the descriptor, but do not read it. The
    /// first call creates it. Later calls return the same descriptor. It belongs to the list and is closed on exec.
    /// Linux only.
    ///
    /// # Errors
    /// [`Code::InternalError`](crate::Code::InternalError) if the process has no descriptor left;
    /// [`Code::Forked`](crate::Code::Forked).
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.not_forked()?;
        let shared = &*self.shared;
        if let Some(timerfd) = shared.timerfd.get() {
            return Ok(timerfd.as_fd());
        }
        let state = shared.state.lock();
        let when = if state.entries.is_empty() { Moment::NEVER } else { Moment::OVER };
        let timerfd = Timerfd::at(when).map_err(|error| Error::Internal {
            what: "no descriptor for a list of completions".into(),
            source: Some(error.into()),
        })?;
        Ok(shared.timerfd.get_or_init(|| timerfd).as_fd())
    }

    /// Takes the tag of the pending that finished first out of the list. `None` if the list is empty.
    #[allow(clippy::should_implement_trait, reason = "an empty list may fill again, so it is no iterator")]
    pub fn next(&self) -> Option<u64> {
        self.next_completion().map(|completion| completion.tag)
    }

    /// Like [`next`](Completions::next), with what has happened.
    pub(crate) fn next_completion(&self) -> Option<Completion> {
        self.not_forked().ok()?;
        let mut state = self.shared.state.lock();
        self.pop(&mut state)
    }

    fn pop(&self, state: &mut CompletionsState) -> Option<Completion> {
        let first = state.entries.pop_first().map(|(_, first)| first);
        if state.entries.is_empty() {
            self.set(Moment::NEVER);
        }
        first
    }

    /// Waits for the first entry and takes it out of the list. Returns `None` after this time, and never for `None`.
    ///
    /// # Errors
    /// CLOSED if the list is closed; FORKED.
    #[cfg(feature = "capi")]
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Result<Option<Completion>> {
        self.not_forked()?;
        let by = Deadline::after(limit.unwrap_or(Duration::MAX));
        let mut state = self.shared.state.lock();
        loop {
            if state.is_closed {
                return Err(Error::Closed);
            }
            let (found, left) = (self.pop(&mut state), by.remaining());
            if found.is_some() || left.is_zero() {
                return Ok(found);
            }
            self.shared.more.wait_for(&mut state, left.min(LONGEST_PARK));
        }
    }

    /// Ends the waits for the list.
    #[cfg(feature = "capi")]
    pub(crate) fn close(&self) {
        self.shared.state.lock().is_closed = true;
        self.shared.more.notify_all();
    }

    /// Adds an entry. Returns its number for [`remove`](Completions::remove).
    pub(crate) fn push(&self, tag: u64, kind: CompletionKind) -> u64 {
        let mut state = self.shared.state.lock();
        state.drawn += 1;
        let number = state.drawn;
        state.entries.insert(number, Completion { tag, kind });
        if state.entries.len() == 1 {
            self.set(Moment::OVER);
        }
        #[cfg(feature = "capi")]
        self.shared.more.notify_one();
        number
    }

    /// Takes an entry out of the list, if it is still there.
    pub(crate) fn remove(&self, number: u64) {
        let mut state = self.shared.state.lock();
        if state.entries.remove(&number).is_some() && state.entries.is_empty() {
            self.set(Moment::NEVER);
        }
    }

    /// Changes an entry that nobody has taken out of the list. Returns whether there is one.
    #[cfg(feature = "capi")]
    pub(crate) fn replace(&self, number: u64, kind: CompletionKind) -> bool {
        let mut state = self.shared.state.lock();
        state.entries.get_mut(&number).map(|entry| entry.kind = kind).is_some()
    }

    #[cfg(feature = "capi")]
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.state.lock().is_closed
    }

    pub(crate) fn not_forked(&self) -> Result<()> {
        self.shared.process.check()
    }

    fn set(&self, moment: Moment) {
        if let Some(timerfd) = self.shared.timerfd.get()
            && let Err(error) = timerfd.set(moment)
        {
            log::error!("the descriptor of a list of completions could not be set: {error}");
        }
    }
}

impl Default for Completions {
    fn default() -> Self {
        Completions::new()
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").finish_non_exhaustive()
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::Timespec;

    use super::*;

    fn is_readable(completions: &Completions) -> bool {
        let fd = completions.fd().unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    #[cfg_attr(miri, ignore = "no timers there")]
    fn the_descriptor_is_readable_while_a_tag_is_in_the_list() {
        let completions = Completions::new();
        completions.push(7, CompletionKind::Finished);
        assert!(is_readable(&completions), "created after the first tag");
        let second = completions.push(8, CompletionKind::Finished);
        completions.push(9, CompletionKind::Finished);
        completions.remove(second);
        assert_eq!([completions.next(), completions.next(), completions.next()], [Some(7), Some(9), None]);
        assert!(!is_readable(&completions), "empty");
        let last = completions.push(1, CompletionKind::Finished);
        assert!(is_readable(&completions), "filled again");
        completions.remove(last);
        assert!(!is_readable(&completions), "its last tag was removed");
    }

    #[test]
    #[cfg(feature = "capi")]
    fn a_wait_ends_with_an_entry_with_its_time_or_with_the_list() {
        let completions = Completions::new();
        assert_eq!(completions.wait(Some(Duration::ZERO)).unwrap(), None);
        assert_eq!(completions.wait(Some(Duration::from_millis(1))).unwrap(), None);
        let lost = CompletionKind::Ended(Some(LostReason::Expired));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| completions.wait(None));
            completions.push(7, lost);
            assert_eq!(waiter.join().unwrap().unwrap(), Some(Completion { tag: 7, kind: lost }));
            let waiter = scope.spawn(|| completions.wait(None));
            completions.close();
            assert_eq!(waiter.join().unwrap().unwrap_err().code(), crate::Code::Closed);
        });
    }
}

//! A list of pending operations that have finished, with one descriptor for all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::sync::Mutex;
use crate::runtime::time::Moment;
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
    /// The process that made the list, see [`ProcessMark`].
    process: ProcessMark,
}

#[derive(Default)]
struct CompletionsState {
    tags: BTreeMap<u64, u64>,
    drawn: u64,
}

impl Completions {
    /// Makes an empty list.
    pub fn new() -> Completions {
        let (state, timerfd) = (Mutex::default(), OnceLock::new());
        let shared = CompletionsShared { state, timerfd, process: ProcessMark::current() };
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
        let when = if state.tags.is_empty() { Moment::NEVER } else { Moment::OVER };
        let timerfd = Timerfd::at(when).map_err(|error| Error::Internal {
            what: "no descriptor for a list of completions".into(),
            source: Some(error.into()),
        })?;
        Ok(shared.timerfd.get_or_init(|| timerfd).as_fd())
    }

    /// Takes the tag of the pending that finished first out of the list. `None` if the list is empty.
    #[allow(clippy::should_implement_trait, reason = "an empty list may fill again, so it is no iterator")]
    pub fn next(&self) -> Option<u64> {
        self.not_forked().ok()?;
        let mut state = self.shared.state.lock();
        let tag = state.tags.pop_first().map(|(_, tag)| tag);
        if state.tags.is_empty() {
            self.set(Moment::NEVER);
        }
        tag
    }

    /// Adds a tag. Returns its number for [`remove`](Completions::remove).
    pub(crate) fn push(&self, tag: u64) -> u64 {
        let mut state = self.shared.state.lock();
        state.drawn += 1;
        let number = state.drawn;
        state.tags.insert(number, tag);
        if state.tags.len() == 1 {
            self.set(Moment::OVER);
        }
        number
    }

    /// Takes a tag out of the list, if it is still there.
    pub(crate) fn remove(&self, number: u64) {
        let mut state = self.shared.state.lock();
        if state.tags.remove(&number).is_some() && state.tags.is_empty() {
            self.set(Moment::NEVER);
        }
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
        completions.push(7);
        assert!(is_readable(&completions), "created after the first tag");
        let second = completions.push(8);
        completions.push(9);
        completions.remove(second);
        assert_eq!([completions.next(), completions.next(), completions.next()], [Some(7), Some(9), None]);
        assert!(!is_readable(&completions), "empty");
        let last = completions.push(1);
        assert!(is_readable(&completions), "filled again");
        completions.remove(last);
        assert!(!is_readable(&completions), "its last tag was removed");
    }
}

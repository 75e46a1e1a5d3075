//! A store whose answers a test chooses.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use dlm::store::{
    Acquired, Attempt, Conversion, Converted, HistoryStore, Inspection, Intent, IntentId, LockHold,
    LockStore, MemoryStore, Mode, ModeStore, ModeTerms, OwnerRecord, Released,
};
use dlm::{Deadline, Error, Holder, LockName, Moment, Result};
use parking_lot::Mutex;

type AcquireLine =
    Box<dyn FnOnce(&MemoryStore, Attempt<'_>, &mut Vec<OwnerRecord>) -> Result<Acquired> + Send>;
type ModeLine = Box<
    dyn FnOnce(&MemoryStore, Attempt<'_>, ModeTerms<'_>, &mut Vec<OwnerRecord>) -> Result<Acquired> + Send,
>;
type ConvertLine = Box<
    dyn FnOnce(&MemoryStore, Attempt<'_>, Conversion<'_>, &mut Vec<OwnerRecord>) -> Result<Converted> + Send,
>;
type RenewLine = Box<dyn FnOnce(Option<OwnerRecord>) -> Result<Option<OwnerRecord>> + Send>;

/// The behaviour of one call of [`LockStore::release`].
#[derive(Debug)]
pub enum ReleaseLine {
    /// Releases the lock and returns the true answer.
    Truth,
    /// Does nothing and returns this answer.
    Lie(Result<Released>),
    /// Releases the lock and returns this error.
    Applied(Error),
    /// Does nothing and panics.
    Panics,
}

/// A memory store with a script for its next answers. A call without a line in the script behaves normally.
///
/// ```
/// use std::sync::Arc;
/// use dlm::{Code, Error, Level, LockManager};
/// use dlm_testkit::Scripted;
///
/// let store = Arc::new(Scripted::default());
/// let manager = LockManager::builder().store(store.clone()).client("me").open()?;
/// let lock = manager.lock("a", Level::Xdc)?;
/// store.to_acquire(|memory, attempt, doubtful| {
///     // The store carries out the request, but the reply is lost.
///     let granted = memory.acquire(attempt, doubtful)?;
///     # use dlm::store::LockStore as _;
///     let dlm::store::Acquired::Granted(grant) = granted else { panic!("it is free") };
///     doubtful.push(grant.owner_record);
///     Err(Error::InDoubt { what: "the reply was lost".into(), source: None })
/// });
/// assert_eq!(lock.try_acquire().unwrap_err().code(), Code::InDoubt);
/// # Ok::<(), dlm::Error>(())
/// ```
#[derive(Default)]
pub struct Scripted {
    memory: MemoryStore,
    acquire: Mutex<VecDeque<AcquireLine>>,
    renew: Mutex<VecDeque<RenewLine>>,
    release: Mutex<VecDeque<ReleaseLine>>,
    acquire_mode: Mutex<VecDeque<ModeLine>>,
    convert: Mutex<VecDeque<ConvertLine>>,
    announce: Mutex<VecDeque<Result<()>>>,
    has_no_modes: bool,
    released: Mutex<Vec<(Moment, Duration)>>,
}

impl Scripted {
    /// Makes a store that keeps exclusive locks only.
    pub fn without_modes() -> Scripted {
        Scripted { has_no_modes: true, ..Scripted::default() }
    }

    /// Adds a line for one acquire: a function that acts in place of the store. It receives the memory store that
    /// holds the true state.
    pub fn to_acquire(
        &self,
        line: impl FnOnce(&MemoryStore, Attempt<'_>, &mut Vec<OwnerRecord>) -> Result<Acquired> + Send + 'static,
    ) {
        self.acquire.lock().push_back(Box::new(line));
    }

    /// Adds a line for one renewal: a function that turns the true answer into the answer to return. The renewal
    /// has then been carried out.
    pub fn to_renew(
        &self,
        line: impl FnOnce(Option<OwnerRecord>) -> Result<Option<OwnerRecord>> + Send + 'static,
    ) {
        self.renew.lock().push_back(Box::new(line));
    }

    /// Adds one line for each of the next releases.
    pub fn to_release(&self, lines: impl IntoIterator<Item = ReleaseLine>) {
        self.release.lock().extend(lines);
    }

    /// Adds a line for one acquire in a mode, as [`to_acquire`](Scripted::to_acquire) does.
    pub fn to_acquire_mode(
        &self,
        line: impl FnOnce(&MemoryStore, Attempt<'_>, ModeTerms<'_>, &mut Vec<OwnerRecord>) -> Result<Acquired>
        + Send
        + 'static,
    ) {
        self.acquire_mode.lock().push_back(Box::new(line));
    }

    /// Adds a line for one conversion, as [`to_acquire`](Scripted::to_acquire) does for an acquire.
    pub fn to_convert(
        &self,
        line: impl FnOnce(&MemoryStore, Attempt<'_>, Conversion<'_>, &mut Vec<OwnerRecord>) -> Result<Converted>
        + Send
        + 'static,
    ) {
        self.convert.lock().push_back(Box::new(line));
    }

    /// Adds an answer for one intent, which is then not announced.
    pub fn to_announce(&self, answer: Result<()>) {
        self.announce.lock().push_back(answer);
    }

    /// Returns the number of releases so far.
    pub fn releases(&self) -> usize {
        self.released.lock().len()
    }

    /// Returns when each release was called, and the time until its deadline.
    pub fn release_log(&self) -> Vec<(Moment, Duration)> {
        self.released.lock().clone()
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl LockStore for Scripted {
    fn describe(&self) -> String {
        "scripted:".into()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.memory.initialize(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        let line = self.acquire.lock().pop_front();
        match line {
            Some(line) => line(&self.memory, attempt, doubtful),
            None => self.memory.acquire(attempt, doubtful),
        }
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        let truth = self.memory.renew(name, owner_record, ttl, by)?;
        let line = self.renew.lock().pop_front();
        match line {
            Some(line) => line(truth),
            None => Ok(truth),
        }
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.released.lock().push((Moment::now(), by.remaining()));
        let line = self.release.lock().pop_front();
        match line.unwrap_or(ReleaseLine::Truth) {
            ReleaseLine::Truth => self.memory.release(name, owner_record, by),
            ReleaseLine::Lie(answer) => answer,
            ReleaseLine::Panics => panic!("planted"),
            ReleaseLine::Applied(error) => self.memory.release(name, owner_record, by).and(Err(error)),
        }
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.memory.holder(name, by)
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.memory.inspect(name, by)
    }

    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        self.memory.grant_number(owner_record)
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        self.memory.history()
    }

    fn modes(&self) -> Option<&dyn ModeStore> {
        if self.has_no_modes { None } else { Some(self) }
    }
}

impl ModeStore for Scripted {
    fn acquire_mode(
        &self,
        attempt: Attempt<'_>,
        terms: ModeTerms<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let line = self.acquire_mode.lock().pop_front();
        match line {
            Some(line) => line(&self.memory, attempt, terms, doubtful),
            None => self.memory.acquire_mode(attempt, terms, doubtful),
        }
    }

    fn convert(
        &self,
        attempt: Attempt<'_>,
        conversion: Conversion<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Converted> {
        let line = self.convert.lock().pop_front();
        match line {
            Some(line) => line(&self.memory, attempt, conversion, doubtful),
            None => self.memory.convert(attempt, conversion, doubtful),
        }
    }

    fn blocker(&self, name: &LockName, mode: Mode, by: Deadline) -> Result<Option<Holder>> {
        self.memory.blocker(name, mode, by)
    }

    fn holds(&self, name: &LockName, by: Deadline) -> Result<Vec<LockHold>> {
        self.memory.holds(name, by)
    }

    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()> {
        match self.announce.lock().pop_front() {
            Some(answer) => answer,
            None => self.memory.announce(name, intent, by),
        }
    }

    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()> {
        self.memory.withdraw(name, intent, by)
    }
}

//! Latches: a count that all can see, and waiting until it is down to zero.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::config::checked_ttl;
use crate::error::{Code, Error, Result};
use crate::latch_name::LatchName;
use crate::name::Level;
use crate::session::Session;
use crate::store::{LatchStore, NewLatch, Roster, Step, Stepped, check_participant};
use crate::time::{Deadline, Moment};
use crate::wait::watch::End;
use crate::wait::watched_latch::Subscription;

/// The highest count a latch can be made with: what the Java library has for a count.
const COUNT_MAX: i64 = i32::MAX as i64;

/// Parked threads look up at least this often: their timer stands still while the machine is
/// suspended, the lease clock does not.
const LONGEST_PARK: Duration = Duration::from_secs(10);

/// Which way the count of a latch may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LatchKind {
    /// Down only: opens once, when all have come.
    #[default]
    CountDown,
    /// Up and down: opens whenever nobody is left.
    CountUpDown,
}

/// A latch: a name, a level and a kind. Making this handle does no I/O, and any number of threads may
/// share it.
///
/// The latch itself is in the store, made by whoever [`create`](Latch::create)s it, and shared by all
/// processes that use its name. It is open while its count is zero or less. It is never deleted: it is gone
/// its TTL (one day unless set) after its last change, and then every call answers NOT_FOUND.
///
/// | level | counts | is open when |
/// |---|---|---|
/// | DC | the count of one's own farm | that is 0 or less |
/// | XDC | one count in each farm that made one; changes concern one's own | their sum is 0 or less |
///
/// ```
/// use dlm::{LatchKind, Level, LockManager};
///
/// let manager = LockManager::open("memory:?client=order-service&farm=dc1")?;
/// let loaded = manager.latch("regions-loaded", Level::Dc, LatchKind::CountDown)?;
/// loaded.create(2)?;
/// loaded.count_down()?; // each in a process of its own
/// loaded.count_down()?;
/// loaded.await_open()?;
/// # Ok::<(), dlm::Error>(())
/// ```
#[derive(Clone)]
pub struct Latch {
    name: LatchName,
    level: Level,
    kind: LatchKind,
    ttl: Duration,
    session: Arc<Session>,
}

/// How one wait for a latch is bounded: not at all unless told. See [`Latch::await_open_with`].
#[derive(Debug, Clone, Default)]
#[must_use = "hand it to await_open_with"]
pub struct AwaitOptions {
    wait: Option<Duration>,
    cancel: Option<CancelToken>,
}

impl AwaitOptions {
    /// Until the latch opens, or is gone.
    pub fn new() -> AwaitOptions {
        AwaitOptions::default()
    }

    /// For how long at the most: zero looks once, [`Duration::MAX`] waits for ever.
    pub fn wait(mut self, wait: Duration) -> AwaitOptions {
        self.wait = Some(wait);
        self
    }

    /// Lets another thread end the wait.
    pub fn cancel(mut self, token: &CancelToken) -> AwaitOptions {
        self.cancel = Some(token.clone());
        self
    }
}

impl Latch {
    /// See [`LockManager::latch`](crate::LockManager::latch).
    pub(crate) fn new(session: &Arc<Session>, id: &str, level: Level, kind: LatchKind) -> Result<Latch> {
        let settings = &session.settings;
        let Some(farm) = settings.farm.as_deref() else {
            return Err(Error::invalid("farm id", "", "latches need one at every level: set it"));
        };
        let name = LatchName::new(&settings.client, farm, id, settings.names)?;
        session.latches()?;
        Ok(Latch { name, level, kind, ttl: settings.latch_ttl, session: Arc::clone(session) })
    }

    /// The same latch with another TTL: how long it lives after each change, one day unless set for the
    /// manager. All who change it must give the same, as some stores count what the change says.
    ///
    /// # Errors
    /// INVALID_ARGUMENT unless it is 1 ms to 365 days.
    pub fn with_ttl(mut self, ttl: Duration) -> Result<Latch> {
        self.ttl = checked_ttl(ttl)?;
        Ok(self)
    }

    /// The full name.
    pub fn name(&self) -> &LatchName {
        &self.name
    }

    /// Whether one farm's count is read, or the sum over all.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Which way the count may go.
    pub fn kind(&self) -> LatchKind {
        self.kind
    }

    /// How long it lives after each change.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Makes the latch: from now on it must be counted down so many times (0 to 2,147,483,647; zero is
    /// open at once). For level XDC this makes the count of one's own farm. Blocks for one call to the
    /// store; on HBase the first one makes the table.
    ///
    /// # Errors
    /// ALREADY_EXISTS, and the count is what it was: it is never added to; INVALID_ARGUMENT before any
    /// I/O; CONNECTION_ERROR, RETRIES_EXHAUSTED, TABLE_CREATION_ERROR, INTERNAL_ERROR when the store does
    /// not serve; IN_DOUBT when it could not be learned whether the latch was made; CLOSED, FORKED.
    pub fn create(&self, count: i64) -> Result<()> {
        self.made(self.make(count, &[])?)
    }

    /// Makes the latch for participants with names: its count is their number, each may
    /// [count down](Latch::count_down_as) once, and [`pending`](Latch::pending) tells who has not.
    ///
    /// # Errors
    /// As [`create`](Latch::create); INVALID_ARGUMENT also for a name that is not 1 to 255 bytes without
    /// control characters, for one that is given twice, and where the store cannot keep names.
    pub fn create_for(&self, participants: &[impl AsRef<str>]) -> Result<()> {
        let mut roster: Vec<_> = participants.iter().map(|name| name.as_ref().to_owned()).collect();
        roster.iter().try_for_each(|name| check_participant(name))?;
        roster.sort_unstable();
        if let Some(twice) = roster.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid("participant", &twice[0], "each name only once"));
        }
        self.made(self.make(roster.len() as i64, &roster)?)
    }

    /// This handle, if the latch exists.
    ///
    /// # Errors
    /// NOT_FOUND; and as [`count`](Latch::count).
    pub fn get(self) -> Result<Latch> {
        self.count().map(|_| self)
    }

    /// Makes the latch unless it exists; whether it did. Of many who call this at once, one makes it.
    ///
    /// # Errors
    /// As [`create`](Latch::create), without ALREADY_EXISTS.
    pub fn get_or_create(&self, count: i64) -> Result<bool> {
        self.make(count, &[])
    }

    /// How many count-downs are missing right now: for level XDC the sum over all farms. Below zero when
    /// more came than were expected. Blocks for one read of the store.
    ///
    /// # Errors
    /// NOT_FOUND when the latch was never made, or has expired; CONNECTION_ERROR, RETRIES_EXHAUSTED,
    /// INTERNAL_ERROR when the store does not serve; CLOSED, FORKED.
    pub fn count(&self) -> Result<i64> {
        let store = self.store()?;
        let mut counts =
            store.counts(&[(&self.name, self.level)], self.by()).map_err(self.told("reading"))?;
        let count = counts.pop().unwrap_or(Ok(None)).map_err(self.told("reading"))?;
        count.ok_or_else(|| Error::NotFound { name: self.name.to_string() })
    }

    /// Counts one's own farm's count down by one, exactly once, however many replies are lost on the way.
    /// The latch lives its whole TTL from then. Blocks for one call to the store.
    ///
    /// # Errors
    /// NOT_FOUND when one's own farm has no count, and none is made; IN_DOUBT when it could not be
    /// learned whether it counted: calling again may count twice
    /// ([`count_down_as`](Latch::count_down_as) never does); all of [`create`](Latch::create).
    pub fn count_down(&self) -> Result<()> {
        self.step(-1, None).map(|_| ())
    }

    /// Counts up by one, for latches of kind [`CountUpDown`](LatchKind::CountUpDown).
    ///
    /// # Errors
    /// INVALID_ARGUMENT for the other kind, before any I/O; and as [`count_down`](Latch::count_down).
    pub fn count_up(&self) -> Result<()> {
        if self.kind != LatchKind::CountUpDown {
            let allowed = "only a latch of kind CountUpDown counts up";
            return Err(Error::invalid("latch kind", format!("{:?}", self.kind), allowed));
        }
        self.step(1, None).map(|_| ())
    }

    /// Counts down in the name of a participant, at most once per name. `true`: it
    /// counted now. `false`: that name had counted before, and nothing was changed.
    ///
    /// Any name may count, also one that was not expected. After IN_DOUBT it is safe to call again; the
    /// answer may then be `false` for what the first call did.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a name that is not allowed, and where the store cannot keep names; and as
    /// [`count_down`](Latch::count_down).
    pub fn count_down_as(&self, participant: &str) -> Result<bool> {
        check_participant(participant)?;
        self.step(-1, Some(participant)).map(|stepped| stepped != Stepped::Already)
    }

    /// The names that are expected in this farm and have not counted down, sorted. Empty for a latch that
    /// was made with a number.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where the store cannot keep names; and as [`count`](Latch::count).
    pub fn pending(&self) -> Result<Vec<String>> {
        self.roster().map(|roster| roster.pending)
    }

    /// Who has not counted down by name in one's own farm, and who has.
    ///
    /// # Errors
    /// As [`pending`](Latch::pending).
    pub fn roster(&self) -> Result<Roster> {
        self.store()?.roster(&self.name, self.by()).map_err(self.told("reading"))
    }

    /// Waits until the latch is open, for as long as that takes. Returns at once if it is.
    ///
    /// The thread parks. A count-down in this process that opens the latch of level DC wakes it at once.
    /// One elsewhere is seen at the next look: 50 ms after the wait began or the count changed, then at
    /// doubling intervals up to the poll interval (5 s unless set). While the store does not serve, the
    /// wait goes on.
    ///
    /// # Errors
    /// NOT_FOUND when the latch was never made (also where its table does not exist), or is gone before it
    /// opened. What somebody has to mend first: TABLE_CREATION_ERROR when the table is disabled or is not one
    /// for latches, INTERNAL_ERROR when the store denies access or holds something that is no count,
    /// INVALID_ARGUMENT where the store refuses to be asked. CLOSED, FORKED; PANIC when the store's code
    /// panicked.
    pub fn await_open(&self) -> Result<()> {
        self.await_open_with(&AwaitOptions::new()).map(|_| ())
    }

    /// Waits until the latch is open, for this time at the most; whether it is. Also the shortest wait
    /// looks once, and waits for the store's answer.
    ///
    /// # Errors
    /// As [`await_open`](Latch::await_open); and when the time is over and the store did not serve the last
    /// look, or serves none of this manager's right then, the error of that.
    pub fn await_open_for(&self, wait: Duration) -> Result<bool> {
        self.await_open_with(&AwaitOptions::new().wait(wait))
    }

    /// Waits until the latch is open, as told; whether it is.
    ///
    /// # Errors
    /// As [`await_open_for`](Latch::await_open_for), and CANCELLED.
    pub fn await_open_with(&self, how: &AwaitOptions) -> Result<bool> {
        // Not to ask the store for a wait that has been cancelled.
        if how.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
            self.session.usable()?;
            return Err(Error::Cancelled { waited: Duration::ZERO });
        }
        self.watch()?.wait(how)
    }

    /// Has the library watch the latch, without blocking: for those who wait for many latches with one
    /// thread. It is watched until the answer is dropped. All watches of a manager share its few threads,
    /// and those of one latch share the looks at it.
    ///
    /// # Errors
    /// CLOSED, FORKED; INTERNAL_ERROR when the system has no thread for it.
    pub fn watch(&self) -> Result<LatchWatch> {
        self.session.usable()?;
        let subscription = self.session.poller.join((self.name.clone(), self.level))?;
        Ok(LatchWatch { subscription, began: Moment::now(), session: Arc::clone(&self.session) })
    }

    fn make(&self, count: i64, roster: &[String]) -> Result<bool> {
        if !(0..=COUNT_MAX).contains(&count) {
            return Err(Error::invalid("count", count.to_string(), format!("0 to {COUNT_MAX}")));
        }
        let new = NewLatch { name: &self.name, count, roster, ttl: self.ttl, by: self.by() };
        self.store()?.create_latch(&new).map_err(self.told("making"))
    }

    fn made(&self, made: bool) -> Result<()> {
        if made { Ok(()) } else { Err(Error::AlreadyExists { name: self.name.to_string() }) }
    }

    fn step(&self, add: i64, participant: Option<&str>) -> Result<Stepped> {
        let step = Step { name: &self.name, add, participant, ttl: self.ttl, by: self.by() };
        let (store, poller) = (self.store()?, &self.session.poller);
        let began = poller.begin_step();
        let stepped = store.step(&step);
        match &stepped {
            Ok(Stepped::Counted(count)) => poller.stepped(&self.name, *count, began),
            Err(error) if error.is_in_doubt() => poller.stepped(&self.name, None, began),
            Ok(Stepped::Already) | Err(_) => {}
        }
        stepped.map_err(self.told("counting"))
    }

    fn store(&self) -> Result<&dyn LatchStore> {
        self.session.usable()?;
        self.session.latches()
    }

    fn by(&self) -> Deadline {
        Deadline::after(self.session.settings.timeout)
    }

    /// Errors that do not name the latch are told with it.
    fn told(&self, doing: &'static str) -> impl Fn(Error) -> Error {
        move |error| match error.code() {
            Code::NotFound | Code::InvalidArgument => error,
            _ => error.context(format!("{doing} latch {}", self.name)),
        }
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("name", &self.name)
            .field("level", &self.level)
            .field("kind", &self.kind)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// A latch that is watched. Dropping it ends that; it never blocks.
#[must_use = "dropping it ends the watch"]
pub struct LatchWatch {
    subscription: Subscription,
    began: Moment,
    session: Arc<Session>,
}

impl LatchWatch {
    /// Whether the latch was seen open. No I/O. Once `true`, it stays so, also if a latch that counts up
    /// and down has closed again.
    ///
    /// # Errors
    /// NOT_FOUND and the others that end a wait: see [`Latch::await_open`].
    pub fn is_open(&self) -> Result<bool> {
        // First: in a forked child the lock below may be held by a thread that is not there.
        self.session.not_forked()?;
        self.ended(self.subscription.watch.seen().end.as_ref()).unwrap_or(Ok(false))
    }

    /// A descriptor for event loops: readable as soon as [`is_open`](LatchWatch::is_open) answers `true` or
    /// an error. It belongs to the watch, is the same in each call, and is closed on exec. Poll it, do not
    /// read it. Linux only.
    ///
    /// # Errors
    /// FORKED; INTERNAL_ERROR when the process has no descriptor left.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.session.not_forked()?;
        self.subscription.watch.fd().map_err(|error| Error::Internal {
            what: format!("no descriptor for latch {}", self.subscription.watch.key.0),
            source: Some(error.into()),
        })
    }

    /// Waits as [`Latch::await_open_with`] does. May be called by several threads, and again.
    ///
    /// # Errors
    /// As `await_open_with`.
    pub fn wait(&self, how: &AwaitOptions) -> Result<bool> {
        self.session.not_forked()?;
        let (watch, began) = (&self.subscription.watch, Moment::now());
        let by = began.after(how.wait.unwrap_or(Duration::MAX));
        let _registration = how.cancel.as_ref().map(|token| {
            let watch = Arc::clone(watch);
            token.on_cancel(Arc::new(move || watch.wake_all()))
        });
        let mut seen = watch.seen();
        loop {
            if let Some(answer) = self.ended(seen.end.as_ref()) {
                return answer;
            }
            let now = Moment::now();
            let waited = now.since(began);
            if how.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Err(Error::Cancelled { waited });
            }
            let looked = seen.looks >= self.subscription.first_look;
            let over = now >= by;
            // The first look is waited for, as long as a call to the store may take.
            let patience = self.began.after(self.session.settings.timeout);
            if over && (looked || now >= patience) {
                let trouble = seen.trouble.clone();
                drop(seen);
                return self.not_open(waited, looked, trouble);
            }
            let until = if over { patience } else { by };
            seen.overdue += usize::from(over);
            watch.park(&mut seen, until.since(now).min(LONGEST_PARK));
            seen.overdue -= usize::from(over);
        }
    }

    /// What a wait answers whose time is over: not "no" where nobody knows.
    fn not_open(&self, waited: Duration, looked: bool, trouble: Option<Arc<Error>>) -> Result<bool> {
        let doing =
            || format!("awaiting latch {} for {:.3} s", self.subscription.watch.key.0, waited.as_secs_f64());
        // The last look may have been served, and the next have been due since the store does not serve.
        match trouble.or_else(|| self.session.poller.trouble()) {
            Some(source) => Err(Error::Context { doing: doing(), source }),
            None if looked => Ok(false),
            None => Err(Error::RetriesExhausted {
                store: self.session.store.describe(),
                what: format!("no answer to the first look, {}", doing()),
                source: None,
            }),
        }
    }

    fn ended(&self, end: Option<&End>) -> Option<Result<bool>> {
        Some(match end? {
            End::Open => Ok(true),
            End::Closed => Err(Error::Closed),
            End::Failed(source) => Err(Error::Context {
                doing: format!("awaiting latch {}", self.subscription.watch.key.0),
                source: Arc::clone(source),
            }),
        })
    }
}

impl Drop for LatchWatch {
    fn drop(&mut self) {
        // In a forked child the poller's lock may be held by a thread that is not there.
        if self.session.not_forked().is_ok() {
            self.session.poller.leave(&self.subscription);
        }
    }
}

impl fmt::Debug for LatchWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatchWatch").field("latch", &self.subscription.watch.key).finish_non_exhaustive()
    }
}

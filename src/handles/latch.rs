//! Latches: a shared count, and waiting until it reaches zero.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::latch::watch::End;
use crate::latch::watched_latch::Subscription;
use crate::names::latch_name::LatchName;
use crate::names::lock_name::Level;
use crate::names::notice_endpoint::LatchListener;
use crate::runtime::cancel::CancelToken;
use crate::runtime::time::{Deadline, LONGEST_PARK, Moment};
use crate::session::Session;
use crate::settings::limits::checked_ttl;
use crate::store::{LatchStore, NewLatch, Roster, Step, Stepped, check_participant};

/// Highest initial count of a latch: the Java library keeps counts as 32-bit integers.
const COUNT_MAX: i64 = i32::MAX as i64;

/// Longest time that a count-down spends on finding the processes to notify that the latch is open.
const TELLING: Duration = Duration::from_secs(1);

/// The direction in which the count of a latch may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LatchKind {
    /// Down only. The latch opens once, when all participants have counted down.
    #[default]
    CountDown,
    /// Up and down. The latch opens each time its count reaches zero.
    CountUpDown,
}

/// A latch: a name, a level and a kind. Making this handle does no I/O, and any number of threads may
/// share it.
///
/// The latch itself is in the store. [`create`](Latch::create) creates it, and all processes that use its name
/// share it. It is open while its count is zero or less. [`reset`](Latch::reset) makes it closed again. It expires one TTL
/// (one day by default) after its last change, or ends by [`delete`](Latch::delete). Then every call except those that
/// create it fails with [`Code::NotFound`].
///
/// "This farm" is the farm that the manager was built with.
///
/// | level | reads | changes | is open when |
/// |---|---|---|---|
/// | DC | the count of this farm | the count of this farm | that count is 0 or less |
/// | XDC | the counts of all farms that created one | the count of this farm | their sum is 0 or less |
///
/// ```
/// use dlm::{LatchKind, Level, LockManager};
///
/// let manager = LockManager::open("memory:?client=order-service&farm=dc1")?;
/// let loaded = manager.latch("regions-loaded", Level::Dc, LatchKind::CountDown)?;
/// loaded.create(2)?;
/// loaded.count_down()?; // usually each in its own process
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

/// Options of one wait for a latch. Without any, it waits for ever. See [`Latch::await_open_with`].
#[derive(Debug, Clone, Default)]
#[must_use = "pass it to await_open_with"]
pub struct AwaitOptions {
    wait: Option<Duration>,
    cancel: Option<CancelToken>,
}

impl AwaitOptions {
    /// Returns options that wait until the latch opens or disappears.
    pub fn new() -> AwaitOptions {
        AwaitOptions::default()
    }

    /// Sets the longest time to wait: zero reads the latch once, [`Duration::MAX`] waits for ever.
    pub fn wait(mut self, wait: Duration) -> AwaitOptions {
        self.wait = Some(wait);
        self
    }

    /// Sets a token by which another thread can end the wait.
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

    /// Returns this handle with another TTL: how long the latch lives after each change. Default: the manager's
    /// latch TTL, one day. All processes that change the latch must use the same TTL, because some stores use
    /// the TTL of the last change.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a TTL outside 1 ms to 365 days.
    pub fn with_ttl(mut self, ttl: Duration) -> Result<Latch> {
        self.ttl = checked_ttl(ttl)?;
        Ok(self)
    }

    /// Returns the full name.
    pub fn name(&self) -> &LatchName {
        &self.name
    }

    /// Returns the level: whether reads return the count of this farm or the sum over all farms.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the direction in which the count may change.
    pub fn kind(&self) -> LatchKind {
        self.kind
    }

    /// Returns how long the latch lives after each change.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Creates the latch with this count of expected count-downs: 0 to 2,147,483,647. A latch with count 0 is
    /// open at once. This creates the count of this farm only, also for level XDC. Blocks for one call to the
    /// store; on HBase the first call also creates a missing table.
    ///
    /// # Errors
    /// * [`Code::AlreadyExists`]: the latch exists, and its count is unchanged.
    /// * [`Code::InvalidArgument`], before any I/O.
    /// * [`Code::ConnectionError`], [`Code::RetriesExhausted`], [`Code::TableCreationError`],
    ///   [`Code::InternalError`]: the store does not serve. Nothing was created.
    /// * [`Code::InDoubt`]: the store did not report whether it created the latch.
    /// * [`Code::Closed`], [`Code::Forked`].
    pub fn create(&self, count: i64) -> Result<()> {
        self.made(self.make(count, &[])?)
    }

    /// Creates the latch for named participants. Its count is their number. Each of them may
    /// [count down](Latch::count_down_as) once, and [`pending`](Latch::pending) returns those who have not. While one is
    /// missing, nobody else counts: a name that is spelt wrong, or a count without a name, would open the latch too early.
    /// Java services and earlier versions of this library count without that check.
    ///
    /// # Errors
    /// Those of [`create`](Latch::create). [`Code::InvalidArgument`] also for a name that is not 1 to 255 bytes
    /// without control characters, for a name given twice, and if the store cannot keep names.
    pub fn create_for(&self, participants: &[impl AsRef<str>]) -> Result<()> {
        let roster = checked_roster(participants)?;
        self.made(self.make(roster.len() as i64, &roster)?)
    }

    /// Begins the latch anew with this count, 0 to 2,147,483,647, whatever its count is. It then waits for no named
    /// participant. This changes the count of this farm only, also for level XDC. Blocks for a read and a change of the
    /// store, and at count 0 also for a read of those to notify.
    ///
    /// What belongs to the time before has no effect any more: names that have counted may count again, and the store refuses
    /// a request that is still on its way although its call has ended. A call that is under way meanwhile counts before or
    /// after the reset. So reset a latch when all have counted, and before anybody may count for the next time.
    ///
    /// A wait that has not yet seen the latch open waits for its next opening. So if other processes wait, let each of them
    /// count down a second latch when it has seen the first one open, or give each round a latch of its own.
    ///
    /// A count-down of a Java service, through a Thrift gateway, or by an earlier version of this library that is on its
    /// way counts in the new latch.
    ///
    /// # Errors
    /// * [`Code::NotFound`]: this farm has no count. None is created.
    /// * [`Code::InDoubt`]: the store did not report whether it reset the latch. A second call resets it once more, with
    ///   all that was counted in between.
    /// * [`Code::InvalidArgument`], before any I/O, also if the store cannot do this: through a Thrift gateway.
    /// * The others of [`create`](Latch::create), except [`Code::AlreadyExists`].
    pub fn reset(&self, count: i64) -> Result<()> {
        self.begin_anew(count, &[])
    }

    /// Begins the latch anew for named participants: see [`reset`](Latch::reset) and [`create_for`](Latch::create_for).
    ///
    /// # Errors
    /// Those of these two.
    pub fn reset_for(&self, participants: &[impl AsRef<str>]) -> Result<()> {
        let roster = checked_roster(participants)?;
        self.begin_anew(roster.len() as i64, &roster)
    }

    /// Deletes the count of this farm. If no other farm has one, the latch does not exist any more: every call but those
    /// that create it fails with [`Code::NotFound`], and so does every wait. A request that is still on its way has no
    /// effect, also not on a latch that is created later, with the exceptions of [`reset`](Latch::reset). In Aerospike a
    /// late request of [`create`](Latch::create) may create it once more. Use the TTL that the latch was created with: in
    /// HBase, a shorter one lets the old count show again. Blocks for some reads and one or two changes of the store.
    ///
    /// # Errors
    /// Those of [`reset`](Latch::reset). After [`Code::InDoubt`], a second call that returns [`Code::NotFound`] says that
    /// the latch is gone.
    pub fn delete(&self) -> Result<()> {
        let (store, poller) = (self.store()?, &self.session.poller);
        // A store may delete the notes of those who wait with the latch.
        let listeners = self.listeners(store);
        let began = poller.begin_step();
        let deleted = store.delete_latch(&self.name, self.ttl, self.by());
        self.changed(began, deleted.as_ref().err());
        if deleted.is_ok() {
            self.session.queue.notices().tell_opened(&listeners);
        }
        deleted.map_err(self.context("deleting"))
    }

    /// Returns this handle if the latch exists. Blocks for one read of the store.
    ///
    /// # Errors
    /// Those of [`count`](Latch::count).
    pub fn get(self) -> Result<Latch> {
        self.count().map(|_| self)
    }

    /// Creates the latch unless it exists. Returns whether this call created it. If many callers do this at
    /// once, one of them creates the latch.
    ///
    /// # Errors
    /// Those of [`create`](Latch::create), except [`Code::AlreadyExists`].
    pub fn get_or_create(&self, count: i64) -> Result<bool> {
        self.make(count, &[])
    }

    /// Returns the current count: how many count-downs are missing. For level XDC this is the sum over all
    /// farms. It is below zero after more count-downs than expected. Blocks for one read of the store.
    ///
    /// # Errors
    /// * [`Code::NotFound`]: the latch was never created, or has expired.
    /// * [`Code::ConnectionError`], [`Code::RetriesExhausted`], [`Code::InternalError`]: the store does not serve.
    /// * [`Code::Closed`], [`Code::Forked`].
    pub fn count(&self) -> Result<i64> {
        let store = self.store()?;
        let mut counts =
            store.counts(&[(&self.name, self.level)], self.by()).map_err(self.context("reading"))?;
        let count = counts.pop().unwrap_or(Ok(None)).map_err(self.context("reading"))?;
        count.ok_or_else(|| Error::NotFound { name: self.name.to_string() })
    }

    /// Counts the count of this farm down by one, exactly once even if replies are lost. The TTL of the latch
    /// starts again. Blocks for one call to the store. With notices, a call that opens the latch also reads which processes to notify,
    /// for at most 1 s.
    ///
    /// # Errors
    /// * [`Code::NotFound`]: this farm has no count. None is created.
    /// * [`Code::InDoubt`]: the store did not report whether it counted. A second call may count twice;
    ///   [`count_down_as`](Latch::count_down_as) never does.
    /// * [`Code::InvalidArgument`]: the latch was [created for named participants](Latch::create_for), and one of them is
    ///   missing.
    /// * The others of [`create`](Latch::create), except [`Code::AlreadyExists`].
    pub fn count_down(&self) -> Result<()> {
        self.step(-1, None).map(|_| ())
    }

    /// Counts the count of this farm up by one, as [`count_down`](Latch::count_down) counts it down. Only for
    /// latches of kind [`CountUpDown`](LatchKind::CountUpDown).
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for the other kind, before any I/O. Those of [`count_down`](Latch::count_down).
    pub fn count_up(&self) -> Result<()> {
        if self.kind != LatchKind::CountUpDown {
            let allowed = "only a latch of kind CountUpDown counts up";
            return Err(Error::invalid("latch kind", format!("{:?}", self.kind), allowed));
        }
        self.step(1, None).map(|_| ())
    }

    /// Counts down in the name of a participant, at most once per name. Returns `true` if this call counted, and
    /// `false` if the name had counted before and nothing changed.
    ///
    /// If the latch was created with a number, or by Java, any name may count. After [`Code::InDoubt`] it is safe to call again. The
    /// second call may then return `false` because the first one has counted.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a name that is not allowed or that the latch does not wait for, and if the store
    /// cannot keep names. Those of [`count_down`](Latch::count_down).
    pub fn count_down_as(&self, participant: &str) -> Result<bool> {
        check_participant(participant)?;
        self.step(-1, Some(participant)).map(|stepped| stepped != Stepped::Already)
    }

    /// Returns the names that are expected in this farm and have not counted down, sorted. Empty for a latch that
    /// was created with a number. Blocks for one read of the store.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the store cannot keep names. Those of [`count`](Latch::count).
    pub fn pending(&self) -> Result<Vec<String>> {
        self.roster().map(|roster| roster.pending)
    }

    /// Returns the names of this farm that have not counted down, and those that have. Blocks for one read of
    /// the store.
    ///
    /// # Errors
    /// Those of [`pending`](Latch::pending).
    pub fn roster(&self) -> Result<Roster> {
        self.store()?.roster(&self.name, self.by()).map_err(self.context("reading"))
    }

    /// Waits until the latch is open, with no time limit. Returns at once if it is open.
    ///
    /// The thread parks. A count-down in this process that opens a latch of level DC wakes it at once. Other
    /// changes are seen by the next read. The first read is made at once, the next after 50 ms, then at doubling
    /// intervals up to the poll interval (5 s by default). After a change of the count, the next read follows
    /// after half the time in which the latch would open at that pace, at least 50 ms. The wait goes on while the
    /// store does not serve.
    ///
    /// # Errors
    /// * [`Code::NotFound`]: the latch was never created (or its table does not exist), or it expired before it
    ///   opened.
    /// * [`Code::TableCreationError`]: the table is disabled, or is not a table for latches.
    /// * [`Code::InternalError`]: the store denies access, or holds something that is not a count.
    /// * [`Code::InvalidArgument`]: the store refuses the request.
    /// * [`Code::Panic`]: the store's code panicked.
    /// * [`Code::Closed`], [`Code::Forked`].
    pub fn await_open(&self) -> Result<()> {
        self.await_open_with(&AwaitOptions::new()).map(|_| ())
    }

    /// Waits until the latch is open, for at most `wait`. Returns whether it is open. Even the shortest wait
    /// reads the latch once and waits for the store's reply.
    ///
    /// # Errors
    /// Those of [`await_open`](Latch::await_open). If the wait times out after the last read of this latch failed,
    /// or while the store does not serve, the error of that read. [`Code::RetriesExhausted`] if the first read got
    /// no reply in time.
    pub fn await_open_for(&self, wait: Duration) -> Result<bool> {
        self.await_open_with(&AwaitOptions::new().wait(wait))
    }

    /// Waits until the latch is open, with these options. Returns whether it is open.
    ///
    /// # Errors
    /// Those of [`await_open_for`](Latch::await_open_for), and [`Code::Cancelled`].
    pub fn await_open_with(&self, how: &AwaitOptions) -> Result<bool> {
        // A cancelled wait must not cost a request.
        if how.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
            self.session.usable()?;
            return Err(Error::Cancelled { waited: Duration::ZERO });
        }
        self.watch()?.wait(how)
    }

    /// Watches the latch in the background, without blocking, so one thread can wait for many latches. Dropping
    /// the returned watch ends it. All watches of a manager share its background threads, and all watches of
    /// one latch share its reads.
    ///
    /// # Errors
    /// [`Code::Closed`], [`Code::Forked`]; [`Code::InternalError`] if no thread could be started.
    pub fn watch(&self) -> Result<LatchWatch> {
        self.session.usable()?;
        let subscription = self.session.poller.join((self.name.clone(), self.level))?;
        Ok(LatchWatch { subscription, began: Moment::now(), session: Arc::clone(&self.session) })
    }

    fn make(&self, count: i64, roster: &[String]) -> Result<bool> {
        let new = self.new_latch(count, roster)?;
        self.store()?.create_latch(&new).map_err(self.context("creating"))
    }

    fn new_latch<'a>(&'a self, count: i64, roster: &'a [String]) -> Result<NewLatch<'a>> {
        if !(0..=COUNT_MAX).contains(&count) {
            return Err(Error::invalid("count", count.to_string(), format!("0 to {COUNT_MAX}")));
        }
        Ok(NewLatch { name: &self.name, count, roster, ttl: self.ttl, by: self.by() })
    }

    fn begin_anew(&self, count: i64, roster: &[String]) -> Result<()> {
        let new = self.new_latch(count, roster)?;
        let (store, poller) = (self.store()?, &self.session.poller);
        let began = poller.begin_step();
        let reset = store.reset_latch(&new);
        self.changed(began, reset.as_ref().err());
        if reset.is_ok() && count == 0 {
            self.tell_others(store);
        }
        reset.map_err(self.context("resetting"))
    }

    /// Lets the waits of this process read the latch, unless the change has failed with this error.
    fn changed(&self, began: u64, failed: Option<&Error>) {
        if failed.is_none_or(Error::is_in_doubt) {
            self.session.poller.stepped(&self.name, None, began);
        }
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
        if add < 0 && matches!(stepped, Ok(Stepped::Counted(count)) if count.is_none_or(|count| count <= 0)) {
            self.tell_others(store);
        }
        stepped.map_err(self.context("counting"))
    }

    /// Notifies the other processes that wait for the latch that it is probably open now. Without notices, or if the
    /// store does not answer soon, they find out by polling.
    fn tell_others(&self, store: &dyn LatchStore) {
        self.session.queue.notices().tell_opened(&self.listeners(store));
    }

    /// Returns the processes that wait for the latch: none without notices, or if the store does not answer soon.
    fn listeners(&self, store: &dyn LatchStore) -> Vec<LatchListener> {
        if !self.session.queue.notices().are_open() {
            return Vec::new();
        }
        let by = Deadline::after(self.session.settings.timeout.min(TELLING));
        store.listeners(&self.name, by).unwrap_or_else(|error| {
            log::debug!("those who wait for latch {} poll: {}", self.name, error.chain());
            Vec::new()
        })
    }

    fn store(&self) -> Result<&dyn LatchStore> {
        self.session.usable()?;
        self.session.latches()
    }

    fn by(&self) -> Deadline {
        Deadline::after(self.session.settings.timeout)
    }

    /// Adds the name of the latch to errors that do not have it.
    fn context(&self, doing: &'static str) -> impl Fn(Error) -> Error {
        move |error| match error.code() {
            Code::NotFound | Code::InvalidArgument => error,
            _ => error.context(format!("{doing} latch {}", self.name)),
        }
    }
}

/// Checks the names of a new latch, and sorts them.
fn checked_roster(participants: &[impl AsRef<str>]) -> Result<Vec<String>> {
    let mut roster: Vec<_> = participants.iter().map(|name| name.as_ref().to_owned()).collect();
    roster.iter().try_for_each(|name| check_participant(name))?;
    roster.sort_unstable();
    match roster.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(Error::invalid("participant", &twice[0], "each name only once")),
        None => Ok(roster),
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

/// A watched latch. Dropping it ends the watch. It blocks only if it is the last handle of its manager: see
/// [`LockManager`](crate::LockManager).
#[must_use = "dropping it ends the watch"]
pub struct LatchWatch {
    subscription: Subscription,
    began: Moment,
    session: Arc<Session>,
}

impl LatchWatch {
    /// Returns whether the latch was seen open since the watch began. No I/O. It stays `true`, even if a latch
    /// that counts up and down has closed again.
    ///
    /// # Errors
    /// The errors that end a wait: see [`Latch::await_open`].
    pub fn is_open(&self) -> Result<bool> {
        // First, because in a forked child the mutex below may be held by a thread that does not exist there.
        self.session.not_forked()?;
        self.ended(self.subscription.watch.seen().end.as_ref()).unwrap_or(Ok(false))
    }

    /// Returns a descriptor for event loops. It becomes readable when [`is_open`](LatchWatch::is_open) starts to
    /// return `true` or an error. Poll it, but do not read it. Every call returns the same descriptor, which
    /// belongs to the watch and is closed on exec. Linux only.
    ///
    /// # Errors
    /// [`Code::Forked`]; [`Code::InternalError`] if the process has no descriptor left.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.session.not_forked()?;
        self.subscription.watch.fd().map_err(|error| Error::Internal {
            what: format!("no descriptor for latch {}", self.subscription.watch.key.0),
            source: Some(error.into()),
        })
    }

    /// Waits as [`Latch::await_open_with`] does. Several threads may call it, and repeatedly.
    ///
    /// # Errors
    /// Those of `await_open_with`.
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
            let has_read = seen.looks >= self.subscription.first_look;
            let over = now >= by;
            // Even a shorter wait waits for the first read, for as long as a call to the store may take.
            let patience = self.began.after(self.session.settings.timeout);
            if over && (has_read || now >= patience) {
                let failure = seen.failure.clone();
                drop(seen);
                return self.not_open(waited, has_read, failure);
            }
            let until = if over { patience } else { by };
            seen.overdue += usize::from(over);
            watch.park(&mut seen, until.since(now).min(LONGEST_PARK));
            seen.overdue -= usize::from(over);
        }
    }

    /// Result of a wait that has timed out: `false` only if a read has shown that the latch is not open.
    fn not_open(&self, waited: Duration, has_read: bool, failure: Option<Arc<Error>>) -> Result<bool> {
        let doing =
            || format!("awaiting latch {} for {:.3} s", self.subscription.watch.key.0, waited.as_secs_f64());
        // The last read of this latch may have succeeded, and the next one be late because the store stopped
        // serving.
        match failure.or_else(|| self.session.poller.failure()) {
            Some(source) => Err(Error::Context { doing: doing(), source }),
            None if has_read => Ok(false),
            None => Err(Error::RetriesExhausted {
                store: self.session.store.describe(),
                what: format!("no reply to the first read, {}", doing()),
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
        // In a forked child the poller's mutex may be held by a thread that does not exist there.
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

//! Waiting for a lock that readers hold: intents of the writers of this process, and turns of its readers.
//!
//! A writer that finds readers announces an intent, so that no new ones come. The intent lives for a few seconds in the
//! store, and a background thread announces it again while the writer waits. All writers of this process that wait for
//! one lock share it. The grant ends it in the store.
//!
//! A reader that has waited through the hold of a writer asks again without regard to intents, and so does one that came before
//! the writer that waits: an earlier writer has kept it out. So readers and writers of a lock that is never free take turns, and
//! a writer waits for those only who came before it. It is decided once, when the reader first finds that this writer waits: a
//! reader that passed late would keep the writer waiting for the time of one more hold.
//!
//! A reader that intents keep out takes a turn when it has waited for [`QUANTUM`] retry intervals and for half of the time of
//! the writer. So the turns come after ever longer times, and a writer gets in between two of them however long readers
//! read. In its turn a reader asks without regard to intents, and for a while the store lets other readers in as well. So two
//! processes that hold one lock each and want that of the other get it, although writers wait for both.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::notice_endpoint::GrantEndpoint;
use crate::runtime::background::{Background, JobLane, Next, Ticket};
use crate::runtime::sync::{HashMap, Mutex};
use crate::runtime::time::{Deadline, Moment};
use crate::store::{INTENT_MAX, Intent, IntentId, LockStore, ModeStore, TURN_MAX};
use crate::wait::notices::Notices;

/// An intent is announced again after this time.
const REFRESH: Duration = Duration::from_secs(1);

/// The number of retry intervals for which intents keep a reader out at most.
const QUANTUM: u32 = 10;

/// A reader that came before a writer by less than a retry interval divided by this lets it pass: the store says how long a
/// writer has waited by the clocks of several machines.
const CLOCKS: u32 = 10;

/// By how much the time that a writer has waited may grow less than the reader's clock shows: stores count it in milliseconds, and
/// on another clock.
const WAITED_ERROR: Duration = Duration::from_millis(10);

/// For so many retry intervals after it saw a writer hold the lock, a reader passes the next one. It asks within one of them.
/// Later it would only keep that writer waiting.
const PASSES_FOR: u32 = 2;

/// The intents of one manager.
pub(crate) struct Intents {
    store: Arc<dyn LockStore>,
    background: Arc<Background>,
    notices: Arc<Notices>,
    identity: Identity,
    timeout: Duration,
    state: Mutex<IntentsState>,
}

#[derive(Default)]
struct IntentsState {
    open: HashMap<LockName, OpenIntent>,
    /// Intents that are to end. Their waiters have gone.
    withdrawn: VecDeque<WithdrawnIntent>,
    job: IntentsJob,
    is_closed: bool,
}

/// Its lock, and where the readers that it keeps out are registered.
type WithdrawnIntent = (LockName, IntentId, Option<GrantEndpoint>);

struct OpenIntent {
    id: IntentId,
    /// Where the readers that it keeps out register.
    notices: Option<GrantEndpoint>,
    waiters: usize,
    announced: Moment,
}

/// The job of the background threads that looks after the intents.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum IntentsJob {
    #[default]
    None,
    Waits(Ticket),
    Runs,
}

/// The wait of one writer. Dropping it ends the intent, unless others of this process wait for the lock as well.
pub(crate) struct WaitingWriter {
    intents: Arc<Intents>,
    name: LockName,
    id: IntentId,
}

impl Intents {
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        background: Arc<Background>,
        notices: Arc<Notices>,
        identity: Identity,
        timeout: Duration,
    ) -> Arc<Intents> {
        let (timeout, state) = (timeout.min(REFRESH), Mutex::default());
        Arc::new(Intents { store, background, notices, identity, timeout, state })
    }

    /// Announces that a writer waits for the lock. Blocks for one call to the store, unless another writer of this process has
    /// announced it. `None` if that fails: then the next refusal tries again.
    pub(crate) fn announce(self: &Arc<Self>, name: &LockName) -> Option<WaitingWriter> {
        let modes = self.store.modes()?;
        let (id, is_new) = {
            let mut state = self.state.lock();
            if state.is_closed {
                return None;
            }
            match state.open.get_mut(name) {
                Some(intent) => {
                    intent.waiters += 1;
                    (intent.id, false)
                }
                None => {
                    let id = IntentId::draw().ok()?;
                    let notices = self.notices.announced(name);
                    let intent = OpenIntent { id, notices, waiters: 1, announced: Moment::now() };
                    state.open.insert(name.clone(), intent);
                    (id, true)
                }
            }
        };
        let writer = WaitingWriter { intents: Arc::clone(self), name: name.clone(), id };
        if is_new && !self.announce_one(modes, name, id, Deadline::after(self.timeout)) {
            return None;
        }
        self.look_after();
        Some(writer)
    }

    /// Ends all intents, because the manager is closed, and takes no new ones. Blocks for as many calls to the store as `by`
    /// allows.
    pub(crate) fn close(&self, by: Deadline) {
        let withdrawn: Vec<_> = {
            let mut state = self.state.lock();
            state.is_closed = true;
            let open: Vec<_> =
                state.open.drain().map(|(name, intent)| (name, intent.id, intent.notices)).collect();
            state.withdrawn.drain(..).chain(open).collect()
        };
        let Some(modes) = self.store.modes() else { return };
        for intent in withdrawn.into_iter().take_while(|_| !by.passed()) {
            self.withdraw(modes, intent, by);
        }
    }

    /// Ends an intent in the store, and then notifies those that it kept out: before, they would be refused.
    fn withdraw(&self, modes: &dyn ModeStore, (name, id, notices): WithdrawnIntent, by: Deadline) {
        // It ends by itself soon.
        let _ = modes.withdraw(&name, id, by);
        notices.into_iter().for_each(|writer| self.notices.withdrawn(&name, writer));
    }

    /// Announces one intent. If a grant has ended it meanwhile, it ends again.
    fn announce_one(&self, modes: &dyn ModeStore, name: &LockName, id: IntentId, by: Deadline) -> bool {
        let notices = self.state.lock().open.get(name).and_then(|intent| intent.notices);
        let identity = Identity { notices, ..self.identity.clone() };
        let intent = Intent { id, identity: &identity, lasts: INTENT_MAX };
        let announced = modes.announce(name, intent, by);
        let mut state = self.state.lock();
        match state.open.get_mut(name).filter(|intent| intent.id == id) {
            Some(intent) => intent.announced = Moment::now(),
            None => state.withdrawn.push_back((name.clone(), id, None)),
        }
        drop(state);
        // In doubt, it may be there.
        announced.map_or_else(
            |error| {
                log::debug!("announcing a writer of lock {name}: {}", error.chain());
                error.is_in_doubt()
            },
            |()| true,
        )
    }

    /// Lets a background thread look after the intents: at once if one is to end.
    fn look_after(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let first = state.open.values().map(|intent| intent.announced).min();
        let due = match first {
            _ if !state.withdrawn.is_empty() => Moment::now(),
            Some(announced) => announced.after(REFRESH),
            None => return,
        };
        match state.job {
            // It calls this in the end.
            IntentsJob::Runs => return,
            IntentsJob::Waits(ticket) if ticket.due() <= due => return,
            IntentsJob::Waits(ticket) => self.background.cancel(ticket),
            IntentsJob::None => {}
        }
        let intents = Arc::clone(self);
        let job = self.background.run_at(JobLane::Intents, due, move || {
            let _runs = RunningJob::begin(&intents);
            intents.refresh();
            Next::Done
        });
        // Without it the intents end in the store by themselves, and readers come before the writers.
        state.job = job.map_or(IntentsJob::None, IntentsJob::Waits);
    }

    /// Ends what is to end, and announces again what is open, the oldest first. What there is no time for is left to the next
    /// run: a store that hangs must not hold up other jobs, nor the end of the manager.
    fn refresh(&self) {
        let Some(modes) = self.store.modes() else { return };
        let by = Deadline::after(self.timeout);
        while let Some(intent) = self.next_withdrawn(by) {
            self.withdraw(modes, intent, by);
        }
        let due = Moment::now();
        let mut open: Vec<_> = {
            let state = self.state.lock();
            let is_due = |intent: &OpenIntent| intent.announced.after(REFRESH) <= due;
            let open = state.open.iter().filter(|(_, intent)| is_due(intent));
            open.map(|(name, intent)| (intent.announced, name.clone(), intent.id)).collect()
        };
        open.sort_by_key(|(announced, ..)| *announced);
        for (_, name, id) in open {
            if by.passed() {
                return;
            }
            if self.is_open(&name, id) {
                self.announce_one(modes, &name, id, by);
            }
        }
    }

    fn next_withdrawn(&self, by: Deadline) -> Option<WithdrawnIntent> {
        if by.passed() { None } else { self.state.lock().withdrawn.pop_front() }
    }

    fn is_open(&self, name: &LockName, id: IntentId) -> bool {
        self.state.lock().open.get(name).is_some_and(|intent| intent.id == id)
    }
}

/// The job while it runs. When it ends, also by a panic of the store, the next run is set.
struct RunningJob<'a>(&'a Arc<Intents>);

impl<'a> RunningJob<'a> {
    fn begin(intents: &'a Arc<Intents>) -> RunningJob<'a> {
        intents.state.lock().job = IntentsJob::Runs;
        RunningJob(intents)
    }
}

impl Drop for RunningJob<'_> {
    fn drop(&mut self) {
        self.0.state.lock().job = IntentsJob::None;
        self.0.look_after();
    }
}

impl WaitingWriter {
    pub(crate) fn id(&self) -> IntentId {
        self.id
    }

    /// Whether the store still has it, as far as this process knows.
    pub(crate) fn is_open(&self) -> bool {
        self.intents.is_open(&self.name, self.id)
    }

    /// The store has ended the intent with a grant, of which the notices know.
    pub(crate) fn granted(self) {
        let mut state = self.intents.state.lock();
        let is_open = state.open.get(&self.name).is_some_and(|intent| intent.id == self.id);
        let intent = if is_open { state.open.remove(&self.name) } else { None };
        drop(state);
        let notices = intent.and_then(|intent| intent.notices);
        notices.into_iter().for_each(|writer| self.intents.notices.withdrawn(&self.name, writer));
    }
}

impl Drop for WaitingWriter {
    fn drop(&mut self) {
        let mut state = self.intents.state.lock();
        let Some(intent) = state.open.get_mut(&self.name).filter(|intent| intent.id == self.id) else {
            return;
        };
        intent.waiters -= 1;
        if intent.waiters > 0 {
            return;
        }
        let notices = state.open.remove(&self.name).and_then(|intent| intent.notices);
        state.withdrawn.push_back((self.name.clone(), self.id, notices));
        drop(state);
        self.intents.look_after();
    }
}

/// A writer that waits, as a reader has seen it.
struct WriterSeen {
    /// The answer in which the reader first found it.
    first: WriterAnswer,
    /// By how much it came after the reader, about, as far as that answer shows it.
    younger_by: Duration,
    /// How long it had waited in the last answer.
    waited: Duration,
}

/// An answer of the store that names a writer which waits.
struct WriterAnswer {
    identity: Option<Identity>,
    waited: Duration,
    /// A moment after the answer.
    at: Moment,
}

impl WriterSeen {
    /// Whether an answer to a request that was sent at `asked` is about the same writer. Two writers of one process without
    /// notices differ only by their times.
    fn is(&self, holder: &Holder, waited: Duration, asked: Moment) -> bool {
        let notices = |identity: &Option<Identity>| identity.as_ref().and_then(|it| it.notices);
        // It has waited longer by the time between the answers at least.
        let least = self.first.waited.saturating_add(asked.since(self.first.at));
        self.first.identity == holder.identity
            && notices(&self.first.identity) == notices(&holder.identity)
            && waited.saturating_add(WAITED_ERROR) >= least
    }
}

/// What one wait has seen of writers and readers.
pub(crate) struct ModeWait {
    began: Moment,
    /// A moment before the last request was sent.
    asked: Moment,
    /// Of a writer: its intent.
    writer: Option<WaitingWriter>,
    /// Of a reader: the writer whose intent keeps it out.
    kept_out_by: Option<WriterSeen>,
    /// Of a reader: when a writer held the lock, as it or another waiter of this process has seen.
    saw_writer: Option<Moment>,
    /// Nobody waits any more.
    is_over: bool,
}

impl ModeWait {
    pub(crate) fn since(began: Moment) -> ModeWait {
        ModeWait { began, asked: began, writer: None, kept_out_by: None, saw_writer: None, is_over: false }
    }

    /// Returns the intent that a grant ends.
    pub(crate) fn intent(&self) -> Option<IntentId> {
        self.writer.as_ref().filter(|writer| writer.is_open()).map(WaitingWriter::id)
    }

    /// Returns how long a turn the reader may take now. Zero: it passes intents alone.
    pub(crate) fn turn(&self, retry: Duration) -> Option<Duration> {
        let passes_for = retry.saturating_mul(PASSES_FOR);
        if self.saw_writer.is_some_and(|at| Moment::now().since(at) <= passes_for) {
            return Some(Duration::ZERO);
        }
        let writer = self.kept_out_by.as_ref()?;
        if writer.younger_by > retry / CLOCKS {
            return Some(Duration::ZERO);
        }
        let quantum = retry.saturating_mul(QUANTUM);
        let is_due = Moment::now().since(self.began) >= quantum.max(writer.waited / 2);
        is_due.then(|| (retry + retry / 5).min(TURN_MAX))
    }

    /// The store is asked now.
    pub(crate) fn asks(&mut self) {
        self.asked = Moment::now();
    }

    /// Remembers what stood in the way of an attempt in this mode. Returns whether a writer should announce itself.
    pub(crate) fn refused(&mut self, mode: Mode, holder: &Holder) -> bool {
        match (mode, holder.mode) {
            (Mode::Exclusive, held) => held != Mode::Exclusive && !self.is_over && self.intent().is_none(),
            (_, _) if holder.is_waiting => {
                self.kept_out(holder);
                false
            }
            (_, held) => {
                if held == Mode::Exclusive {
                    self.saw_writer = Some(Moment::now());
                }
                false
            }
        }
    }

    /// A writer keeps this reader out.
    fn kept_out(&mut self, writer: &Holder) {
        let waited = writer.waited.unwrap_or_default();
        match &mut self.kept_out_by {
            Some(seen) if seen.is(writer, waited, self.asked) => seen.waited = waited,
            kept_out_by => {
                let younger_by = self.asked.since(self.began).saturating_sub(waited);
                let first = WriterAnswer { identity: writer.identity.clone(), waited, at: Moment::now() };
                *kept_out_by = Some(WriterSeen { first, younger_by, waited });
            }
        }
    }

    /// A writer held the lock at this time, as a waiter of this process has seen.
    pub(crate) fn saw_writer(&mut self, at: Moment) {
        self.saw_writer = Some(at).filter(|at| *at >= self.began).max(self.saw_writer);
    }

    /// Keeps the intent. If nobody waits any more, it ends.
    pub(crate) fn announced(&mut self, writer: Option<WaitingWriter>) {
        self.writer = writer.filter(|_| !self.is_over);
    }

    /// The wait has ended with a grant, which has ended the intent.
    pub(crate) fn granted(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.granted();
        }
    }

    /// The wait has ended. Returns the intent, which ends when it is dropped.
    pub(crate) fn end(&mut self) -> Option<WaitingWriter> {
        self.is_over = true;
        self.writer.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::settings::limits::NoticesSetting;
    use crate::store::{MemoryStore, ModeTerms};
    use crate::testing::patience::until;
    use crate::wait::notices::{Arrival, LocalWaiters};

    const LONG: Duration = Duration::from_secs(60);

    fn name() -> LockName {
        LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap()
    }

    fn identity() -> Identity {
        Identity { host: "h".into(), pid: 1, start_ms: 7, purpose: String::new(), notices: None }
    }

    fn waiting() -> Holder {
        Holder::new(Some(identity()), None, None).waiting(Duration::ZERO)
    }

    fn held(mode: Mode) -> Holder {
        Holder::new(Some(identity()), None, None).with_mode(mode)
    }

    /// Returns the store, and the intents of two managers.
    fn stage() -> (Arc<MemoryStore>, [Arc<Intents>; 2]) {
        let store = Arc::new(MemoryStore::new());
        let intents = [(); 2].map(|()| {
            let (background, notices) = (Arc::new(Background::new(2)), Arc::new(Notices::off()));
            Intents::new(store.clone(), background, notices, identity(), Duration::from_secs(10))
        });
        (store, intents)
    }

    fn is_reserved(store: &MemoryStore) -> bool {
        let blocker = store.blocker(&name(), Mode::Shared, Deadline::after(LONG)).unwrap();
        blocker.is_some_and(|blocker| blocker.is_waiting)
    }

    /// Whether there is nothing to do for the background threads.
    fn is_idle(intents: &Intents) -> bool {
        let state = intents.state.lock();
        state.withdrawn.is_empty() && state.job == IntentsJob::None
    }

    #[test]
    fn a_reader_takes_a_turn_after_a_quantum_of_intents_or_after_a_writer() {
        let retry = Duration::from_millis(2);
        let mut kept_out = ModeWait::since(Moment::now());
        assert!(!kept_out.refused(Mode::Shared, &waiting()), "readers announce nothing");
        assert_eq!(kept_out.turn(Duration::from_secs(60)), None, "not yet");
        thread::sleep(retry * QUANTUM);
        assert_eq!(kept_out.turn(retry), Some(retry + retry / 5));
        let mut since_boot = ModeWait::since(Moment::from_nanos(0));
        since_boot.refused(Mode::Shared, &waiting());
        assert_eq!(since_boot.turn(Duration::from_secs(5)), Some(TURN_MAX));
        let since_long = Holder::new(None, None, None).waiting(LONG);
        kept_out.refused(Mode::Shared, &since_long);
        assert_eq!(kept_out.turn(retry), None, "the writer has waited far longer");
        let mut beside = ModeWait::since(Moment::from_nanos(0));
        beside.refused(Mode::Update, &held(Mode::Update));
        assert_eq!(beside.turn(retry), None, "no intent keeps it out");
        assert_eq!(kept_out.turn(Duration::from_secs(60)), None, "ten of its own intervals");

        let mut behind = ModeWait::since(Moment::now());
        behind.refused(Mode::Update, &held(Mode::Update));
        assert_eq!(behind.turn(retry), None, "an updater is no writer");
        behind.refused(Mode::Update, &held(Mode::Exclusive));
        assert_eq!(behind.turn(Duration::from_secs(60)), Some(Duration::ZERO), "it passes alone");

        let mut beside_one = ModeWait::since(Moment::now());
        let seen = Moment::now();
        beside_one.saw_writer(seen);
        assert_eq!(
            beside_one.turn(LONG),
            Some(Duration::ZERO),
            "another waiter of its process has seen the writer"
        );
        assert_eq!(beside_one.turn(Duration::from_nanos(1)), None, "it is too late to pass");
        let mut later = ModeWait::since(Moment::now().after(LONG));
        later.saw_writer(seen);
        assert_eq!(later.turn(LONG), None, "the writer was there before it came");
    }

    /// An earlier writer has kept it out. One that comes back at once would keep it out again and again.
    #[test]
    fn a_reader_passes_a_writer_that_came_after_it() {
        let (retry, second) = (Duration::from_secs(10), Duration::from_secs(1));
        let mut wait = ModeWait::since(Moment::now());
        let mut turn_beside = |writer| {
            wait.refused(Mode::Shared, &Holder::new(None, None, None).waiting(writer));
            wait.turn(retry)
        };
        assert_eq!(turn_beside(Duration::ZERO), None, "it has only begun to wait");
        wait.asked = wait.began.after(30 * second);
        let mut turn_beside = |writer| {
            wait.refused(Mode::Shared, &Holder::new(None, None, None).waiting(writer));
            wait.turn(retry)
        };
        assert_eq!(turn_beside(28 * second), Some(Duration::ZERO), "it passes alone");
        assert_eq!(turn_beside(Duration::from_millis(29_500)), None, "clocks differ");
        assert_eq!(turn_beside(31 * second), None, "this one came first");
        // An answer that comes late makes nobody older.
        let mut new = ModeWait::since(Moment::now());
        thread::sleep(Duration::from_millis(5));
        new.refused(Mode::Shared, &waiting());
        assert_eq!(new.turn(Duration::from_millis(1)), None);
        thread::sleep(2 * WAITED_ERROR);
        new.asks();
        new.refused(Mode::Shared, &waiting());
        assert_eq!(new.turn(Duration::from_millis(1)), Some(Duration::ZERO), "another writer");
    }

    /// The first answer took long, so the reader could not know that it came first. If it passed later, the writer would wait for
    /// one more hold.
    #[test]
    fn a_reader_decides_once_for_each_writer_whether_it_passes() {
        let (retry, second) = (Duration::from_secs(10), Duration::from_secs(1));
        let other = || Holder::new(Some(Identity { pid: 2, ..identity() }), None, None);
        let began = Moment::now();
        // It is refused after 6 seconds because of a writer that has waited for 3 seconds, and asks again 20 seconds later.
        let sees_again = |writer: Holder| {
            let mut wait = ModeWait::since(began);
            wait.refused(Mode::Shared, &waiting().waiting(3 * second));
            assert_eq!(wait.turn(retry), None, "it may have come after the writer");
            wait.kept_out_by.as_mut().unwrap().first.at = wait.began.after(6 * second);
            wait.asked = wait.began.after(26 * second);
            wait.refused(Mode::Shared, &writer);
            wait.turn(retry)
        };
        assert_eq!(sees_again(waiting().waiting(23 * second)), None, "the same writer, by quick answers");
        assert_eq!(sees_again(waiting().waiting(23 * second - WAITED_ERROR)), None, "by other clocks");
        assert_eq!(sees_again(waiting().waiting(20 * second)), Some(Duration::ZERO), "one that came later");
        assert_eq!(sees_again(other().waiting(23 * second)), Some(Duration::ZERO), "one of another process");
    }

    #[test]
    fn a_writer_announces_itself_if_readers_are_in_its_way() {
        let (store, [intents, _]) = stage();
        let mut wait = ModeWait::since(Moment::now());
        assert!(!wait.refused(Mode::Exclusive, &held(Mode::Exclusive)), "no readers come in anyway");
        for mode in [Mode::Shared, Mode::Update] {
            assert!(wait.refused(Mode::Exclusive, &held(mode)));
        }
        wait.announced(intents.announce(&name()));
        assert!(wait.intent().is_some() && is_reserved(&store));
        assert!(!wait.refused(Mode::Exclusive, &held(Mode::Shared)), "once is enough");
        wait.granted();
        assert_eq!(wait.intent(), None);
        assert!(is_reserved(&store), "the grant ends it in the store");
    }

    #[test]
    fn writers_of_one_process_share_an_intent_which_ends_with_the_last_of_them() {
        let (store, [ours, theirs]) = stage();
        let [first, second] = [(); 2].map(|()| ours.announce(&name()).unwrap());
        assert_eq!(first.id(), second.id());
        let other = theirs.announce(&name()).unwrap();
        assert_ne!(first.id(), other.id());
        drop(other);
        drop(first);
        until("that of the other process has ended", || is_idle(&theirs));
        assert!(is_reserved(&store) && second.is_open());
        drop(second);
        until("nobody waits", || !is_reserved(&store));
        until("nothing is looked after", || is_idle(&ours));
        assert!(ours.state.lock().open.is_empty());
    }

    /// It would end by itself, so it must end before that.
    #[test]
    fn the_intent_of_a_writer_that_has_gone_ends_at_once() {
        let (store, [intents, _]) = stage();
        for _ in 0..10 {
            let writer = intents.announce(&name()).unwrap();
            let began = Moment::now();
            drop(writer);
            until("it has ended", || !is_reserved(&store));
            if Moment::now().since(began) < INTENT_MAX - REFRESH {
                return;
            }
        }
        panic!("it ends only by itself");
    }

    /// A reader of another process, which notes whether the intent was in the store when it was told to ask.
    struct Reader {
        store: Arc<MemoryStore>,
        is_registered: AtomicBool,
        kept_out: Mutex<Option<bool>>,
    }

    impl LocalWaiters for Reader {
        fn ask_now(&self, _: &LockName, _: Duration) -> bool {
            *self.kept_out.lock() = Some(is_reserved(&self.store));
            true
        }

        fn read_now(&self, _: &LockName) {}

        fn pause(&self, _: &LockName, _: Moment) {}

        fn acknowledged(&self, _: &LockName) {
            self.is_registered.store(true, Ordering::SeqCst);
        }

        fn waiting_for(&self, _: &LockName) -> (usize, Duration) {
            (1, Duration::ZERO)
        }
    }

    /// Before, they would ask in vain.
    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn readers_are_told_that_a_writer_gives_up_when_the_store_knows_it() {
        let store = Arc::new(MemoryStore::new());
        let notices = || {
            let udp = NoticesSetting::Udp(([127, 0, 0, 1], 0).into());
            Arc::new(Notices::new(&udp, false, None).unwrap())
        };
        let background = Arc::new(Background::new(1));
        let of_background = Arc::clone(&background);
        let intents = Intents::new(store.clone(), of_background, notices(), identity(), LONG);
        let writer = intents.announce(&name()).unwrap();
        let blocker = store.blocker(&name(), Mode::Shared, Deadline::after(LONG)).unwrap().unwrap();
        let key = blocker.identity.unwrap().notices;

        let (is_registered, kept_out) = (AtomicBool::new(false), Mutex::default());
        let reader = Arc::new(Reader { store: store.clone(), is_registered, kept_out });
        let of_reader = notices();
        let waiters: Weak<Reader> = Arc::downgrade(&reader);
        of_reader.set_waiters(waiters);
        assert!(of_reader.for_grant(&name(), Mode::Shared).is_some(), "it receives from now on");
        of_reader.refused(&name(), key, true, Arrival { at: Moment::now(), mode: Mode::Shared });
        until("it waits with the writer", || reader.is_registered.load(Ordering::SeqCst));

        // The only background thread is busy.
        let (end, ends) = std::sync::mpsc::channel();
        let (begin, begins) = std::sync::mpsc::channel();
        let busy = move || {
            begin.send(()).unwrap();
            ends.recv().unwrap();
            Next::Done
        };
        background.run_at(JobLane::Latches, Moment::now(), busy).unwrap();
        begins.recv().unwrap();
        drop(writer);
        thread::sleep(Duration::from_millis(50));
        end.send(()).unwrap();
        until("it was told", || reader.kept_out.lock().is_some());
        assert_eq!(*reader.kept_out.lock(), Some(false));
    }

    /// The retry interval of a writer may be longer than an intent lives.
    #[test]
    fn an_intent_lasts_as_long_as_its_writer_waits() {
        let (store, [intents, _]) = stage();
        let writer = intents.announce(&name()).unwrap();
        let began = Moment::now();
        while Moment::now().since(began) < INTENT_MAX + REFRESH {
            assert!(is_reserved(&store));
            thread::sleep(Duration::from_millis(20));
        }
        drop(writer);
    }

    /// It was cancelled while its first announcement was under way.
    #[test]
    fn a_wait_that_ends_while_it_is_announced_leaves_nothing() {
        let (store, [intents, _]) = stage();
        let mut wait = ModeWait::since(Moment::now());
        assert!(wait.refused(Mode::Exclusive, &held(Mode::Shared)));
        let announced = intents.announce(&name());
        drop(wait.end());
        wait.announced(announced);
        assert!(!wait.refused(Mode::Exclusive, &held(Mode::Shared)), "nobody waits");
        until("it has ended", || !is_reserved(&store));
        assert!(intents.state.lock().open.is_empty());
    }

    #[test]
    fn closing_ends_all_intents_and_takes_no_new_ones() {
        let (store, [intents, _]) = stage();
        let writer = intents.announce(&name()).unwrap();
        intents.close(Deadline::after(LONG));
        assert!(!is_reserved(&store) && !writer.is_open());
        drop(writer);
        assert!(intents.announce(&name()).is_none());
        assert!(!is_reserved(&store));
    }

    /// Another writer of this process must announce itself anew.
    #[test]
    fn a_grant_ends_the_intent_of_all_writers_of_the_process() {
        let (store, [intents, _]) = stage();
        let [first, second] = [(); 2].map(|()| intents.announce(&name()).unwrap());
        let identity = identity();
        let by = Deadline::after(LONG);
        let attempt = crate::store::Attempt { name: &name(), ttl: LONG, identity: &identity, by };
        let terms = ModeTerms { intent: Some(first.id()), ..ModeTerms::new(Mode::Exclusive) };
        store.acquire_mode(attempt, terms, &mut Vec::new()).unwrap();
        first.granted();
        assert!(!second.is_open());
        let again = intents.announce(&name()).unwrap();
        assert_ne!(again.id(), second.id());
        drop(second);
        assert!(again.is_open(), "a stale one ends nothing");
    }
}

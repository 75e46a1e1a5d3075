//! Waiting for latches: how often the store is read, by how many threads, and how waits end when the store loses
//! replies, fails or panics. A separate program, because it counts the threads of its process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::{
    Acquired, Attempt, Inspection, LatchStore, LockStore, MemoryStore, NewLatch, OwnerRecord, Released,
    Roster, Step, Stepped,
};
use dlm::{
    AwaitOptions, Builder, Code, Deadline, Error, Holder, Latch, LatchKind, LatchName, LatchWatch, Level,
    LockManager, LockName, Moment, Result,
};
use dlm_testkit::{Call, LONG, Spy, until};
use parking_lot::Mutex;

/// A poll interval that is longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

/// A memory store whose latch calls fail as the test chooses.
#[derive(Default)]
struct Faulty {
    memory: MemoryStore,
    /// Every read fails.
    down: AtomicBool,
    /// Every read returns this count instead of the true one.
    claimed: Mutex<Option<i64>>,
    /// Number of reads that panic.
    panics: AtomicUsize,
    /// Every call that reads this latch panics, for all latches of the call.
    poison: Mutex<Option<String>>,
    /// Only reads of this latch fail.
    spoilt: Mutex<Option<String>>,
    /// Every read fails with this error.
    failing: Mutex<Option<fn() -> Error>>,
    /// Only reads of the latch `1` fail with this error.
    failing_one: Mutex<Option<fn() -> Error>>,
    /// Percentage of steps whose reply is lost. Half of these steps do not take effect.
    lost: AtomicUsize,
    reads: AtomicUsize,
    steps: AtomicUsize,
    /// Steps that took effect and whose reply was lost.
    applied_in_doubt: AtomicUsize,
    /// While set, reads and count-downs take effect at once, but return only when it is cleared.
    late: AtomicBool,
    /// Number of late answers.
    kept: AtomicUsize,
}

impl Faulty {
    fn keep_back(&self) {
        if self.late.load(Ordering::SeqCst) {
            self.kept.fetch_add(1, Ordering::SeqCst);
            until("late answers are sent", || !self.late.load(Ordering::SeqCst));
        }
    }

    /// Runs `ask` in a thread, and runs `meanwhile` while the answer to it is kept back.
    fn late<T: Send, U>(&self, ask: impl FnOnce() -> T + Send, meanwhile: impl FnOnce() -> U) -> (T, U) {
        let before = self.kept.load(Ordering::SeqCst);
        self.late.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let asked = thread::Builder::new().name("dlm-test-late".into()).spawn_scoped(scope, ask).unwrap();
            until("an answer is kept back", || self.kept.load(Ordering::SeqCst) > before);
            let done = meanwhile();
            self.late.store(false, Ordering::SeqCst);
            (asked.join().unwrap(), done)
        })
    }
}

fn no_connection() -> Error {
    Error::Connection { store: "faulty:".into(), what: "planted".into(), source: None }
}

impl LatchStore for Faulty {
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        self.memory.initialize_latches(by)
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        self.memory.create_latch(new)
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        self.steps.fetch_add(1, Ordering::SeqCst);
        let lost = fastrand::usize(..100) < self.lost.load(Ordering::SeqCst);
        let in_doubt = || Error::InDoubt { what: "planted".into(), source: None };
        if lost && fastrand::bool() {
            return Err(in_doubt());
        }
        let stepped = self.memory.step(step);
        if lost && stepped.is_ok() {
            let counted = matches!(stepped, Ok(Stepped::Counted(_)));
            self.applied_in_doubt.fetch_add(usize::from(counted), Ordering::SeqCst);
            return Err(in_doubt());
        }
        if step.add < 0 {
            self.keep_back();
        }
        stepped
    }

    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            panic!("planted");
        }
        let poison = self.poison.lock().clone();
        assert!(!asked.iter().any(|(name, _)| poison.as_deref() == Some(name.id())), "planted");
        if self.down.load(Ordering::SeqCst) {
            return Err(no_connection());
        }
        if let Some(failing) = *self.failing.lock() {
            return Err(failing());
        }
        if let Some(claimed) = *self.claimed.lock() {
            return Ok(asked.iter().map(|_| Ok(Some(claimed))).collect());
        }
        let (spoilt, failing) = (self.spoilt.lock().clone(), *self.failing_one.lock());
        let counts = self.memory.counts(asked, by)?;
        let told = counts.into_iter().zip(asked).map(|(count, (name, _))| match failing {
            Some(failing) if name.id() == "1" => Err(failing()),
            _ if spoilt.as_deref() == Some(name.id()) => Err(no_connection()),
            _ => count,
        });
        let told = told.collect();
        self.keep_back();
        Ok(told)
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        self.memory.roster(name, by)
    }
}

impl LockStore for Faulty {
    fn describe(&self) -> String {
        "faulty:".into()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.memory.initialize(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.memory.acquire(attempt, doubtful)
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.memory.renew(name, owner_record, ttl, by)
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.memory.release(name, owner_record, by)
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.memory.holder(name, by)
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.memory.inspect(name, by)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(self)
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

fn builder(store: Arc<dyn LockStore>) -> Builder {
    LockManager::builder().store(store).client("latches").farm("dc1").timeout(LONG)
}

fn manager(store: Arc<dyn LockStore>, poll: Duration) -> LockManager {
    builder(store).poll(poll).open().unwrap()
}

fn latch(manager: &LockManager, id: &str) -> Latch {
    manager.latch(id, Level::Dc, LatchKind::CountDown).unwrap()
}

/// Creates `many` latches with a count of one.
fn latches(manager: &LockManager, many: usize) -> Vec<Latch> {
    let latches: Vec<_> = (0..many).map(|id| latch(manager, &id.to_string())).collect();
    latches.iter().for_each(|latch| latch.create(1).unwrap());
    latches
}

fn spawn<T: Send + 'static>(name: &str, job: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    // Two thousand threads at the same time must not need two thousand large stacks.
    let builder = thread::Builder::new().name(format!("dlm-test-{name}")).stack_size(256 << 10);
    builder.spawn(job).unwrap()
}

fn open_in_time(watch: &LatchWatch) {
    assert!(watch.wait(&AwaitOptions::new().wait(LONG)).unwrap());
}

/// Returns the number of background threads of the library in this process. Tests run at the same time, so a test
/// can only check an upper limit.
fn background_thread_count() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("dlm-bg")).count()
}

#[test]
fn lost_replies_make_no_named_participant_count_twice_or_never() {
    const THREADS: usize = 8;
    const NAMES: usize = 1250;
    let faulty = Arc::new(Faulty::default());
    let latch = latch(&manager(faulty.clone(), NEVER), "a");
    let names: Vec<_> = (0..THREADS * NAMES).map(|name| format!("worker-{name}")).collect();
    latch.create_for(&names).unwrap();
    faulty.lost.store(20, Ordering::SeqCst);
    let doubts = AtomicUsize::new(0);
    thread::scope(|scope| {
        for names in names.chunks(NAMES) {
            let (latch, doubts) = (self::latch(&manager(faulty.clone(), NEVER), "a"), &doubts);
            scope.spawn(move || {
                for name in names {
                    while let Err(error) = latch.count_down_as(name) {
                        assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
                        doubts.fetch_add(1, Ordering::SeqCst);
                    }
                    assert!(latch.count().unwrap() >= 0, "{name} or another name counted twice");
                }
            });
        }
    });
    assert_eq!((latch.count().unwrap(), latch.pending().unwrap().len()), (0, 0));
    assert!(doubts.into_inner() > NAMES, "too few replies were lost: nothing was tested");
}

#[test]
fn a_count_down_in_doubt_is_told_and_never_sent_again() {
    const STEPS: usize = 5_000;
    let faulty = Arc::new(Faulty::default());
    let latch = latch(&manager(faulty.clone(), NEVER), "a");
    latch.create(STEPS as i64).unwrap();
    faulty.lost.store(20, Ordering::SeqCst);
    let mut doubts = 0;
    for _ in 0..STEPS {
        match latch.count_down() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
                doubts += 1;
            }
        }
    }
    assert_eq!(faulty.steps.load(Ordering::SeqCst), STEPS, "a change was sent again blindly");
    let unsettled = doubts - faulty.applied_in_doubt.load(Ordering::SeqCst);
    assert_eq!(latch.count().unwrap(), unsettled as i64);
    assert!(doubts > STEPS / 10, "too few replies were lost: nothing was tested");
}

#[test]
fn a_store_that_is_down_for_a_while_loses_no_waiter_and_is_not_stormed() {
    const POLL: Duration = Duration::from_millis(20);
    let faulty = Arc::new(Faulty::default());
    let manager = manager(faulty.clone(), POLL);
    let latches = latches(&manager, 600);
    let watches: Vec<_> = latches.iter().map(|latch| latch.watch().unwrap()).collect();
    let waiters: Vec<_> = (0..8)
        .map(|number| {
            let latch = latches[number % 4].clone();
            spawn("waiter", move || latch.await_open())
        })
        .collect();
    until("the latches are watched", || faulty.reads.load(Ordering::SeqCst) > 4);
    faulty.down.store(true, Ordering::SeqCst);
    until("reads in progress have ended", || {
        let reads = faulty.reads.load(Ordering::SeqCst);
        thread::sleep(4 * POLL);
        faulty.reads.load(Ordering::SeqCst) <= reads + 4
    });
    let (began, before) = (Moment::now(), faulty.reads.load(Ordering::SeqCst));
    until("several reads have failed", || faulty.reads.load(Ordering::SeqCst) >= before + 6);
    let (took, reads) = (Moment::now().since(began), faulty.reads.load(Ordering::SeqCst) - before);
    // One read at a time for all 600 latches. The pauses between reads grow to eight poll intervals.
    let most = (took.as_secs_f64() / (0.9 * POLL.as_secs_f64())) as usize + 2;
    assert!(reads <= most, "{reads} reads in {took:?}");
    assert!(watches.iter().all(|watch| !watch.is_open().unwrap()));
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "an error ended a wait without a time limit");
    // A wait with a time limit fails, because the state of the latch is not known.
    assert_eq!(latches[0].await_open_for(POLL).unwrap_err().code(), Code::ConnectionError);

    for latch in &latches {
        faulty.memory.step(&step(latch)).unwrap();
    }
    faulty.down.store(false, Ordering::SeqCst);
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
    watches.iter().for_each(open_in_time);
}

/// Returns a step for the memory store. The manager under test does not notice it.
fn step(latch: &Latch) -> Step<'_> {
    Step { name: latch.name(), add: -1, participant: None, ttl: NEVER, by: Deadline::after(LONG) }
}

#[test]
fn a_panic_in_the_store_is_told_to_those_who_wait_and_ends_no_thread() {
    let faulty = Arc::new(Faulty::default());
    let manager =
        builder(faulty.clone()).poll(Duration::from_millis(20)).background_threads(1).open().unwrap();
    let latches = latches(&manager, 2);
    let waiter = {
        let latch = latches[0].clone();
        spawn("waiter", move || latch.await_open())
    };
    until("the latch is watched", || faulty.reads.load(Ordering::SeqCst) > 2);
    faulty.panics.store(1, Ordering::SeqCst);
    let told = waiter.join().unwrap().unwrap_err();
    assert_eq!(told.code(), Code::Panic, "{}", told.chain());
    assert!(told.chain().contains("planted"), "{}", told.chain());
    let watch = latches[1].watch().unwrap();
    faulty.memory.step(&step(&latches[1])).unwrap();
    open_in_time(&watch);
}

#[test]
fn a_latch_that_makes_the_store_panic_ends_no_wait_for_another() {
    let faulty = Arc::new(Faulty::default());
    let manager =
        builder(faulty.clone()).poll(Duration::from_millis(20)).background_threads(1).open().unwrap();
    let latches = latches(&manager, 4);
    let ((), watches) = faulty.late(
        || assert!(!latches[3].await_open_for(Duration::ZERO).unwrap()),
        || {
            *faulty.poison.lock() = Some("1".into());
            // The only thread that reads is kept back, so the next call reads all three.
            [0, 1, 2].map(|number| latches[number].watch().unwrap())
        },
    );
    let told = watches[1].wait(&AwaitOptions::new().wait(LONG)).unwrap_err();
    assert_eq!(told.code(), Code::Panic, "{}", told.chain());
    for number in [0, 2] {
        assert!(!watches[number].is_open().unwrap());
        faulty.memory.step(&step(&latches[number])).unwrap();
        open_in_time(&watches[number]);
    }
}

/// That read is the one that checks whether the store serves again.
#[test]
fn a_panic_of_the_first_read_after_an_outage_leaves_nobody_waiting() {
    let faulty = Arc::new(Faulty::default());
    let manager =
        builder(faulty.clone()).poll(Duration::from_millis(20)).background_threads(1).open().unwrap();
    let latches = latches(&manager, 2);
    let watches: Vec<_> = latches.iter().map(|latch| latch.watch().unwrap()).collect();
    faulty.down.store(true, Ordering::SeqCst);
    let told = latches[0].await_open_for(Duration::ZERO).unwrap_err();
    assert_eq!(told.code(), Code::ConnectionError, "{}", told.chain());
    faulty.panics.store(1, Ordering::SeqCst);
    until("the read has panicked", || faulty.panics.load(Ordering::SeqCst) == 0);
    faulty.down.store(false, Ordering::SeqCst);
    let mut panics = 0;
    for (latch, watch) in latches.iter().zip(&watches) {
        faulty.memory.step(&step(latch)).unwrap();
        match watch.wait(&AwaitOptions::new().wait(LONG)) {
            Ok(open) => assert!(open),
            // This latch was the only one in the read that panicked.
            Err(error) => {
                assert_eq!(error.code(), Code::Panic, "{}", error.chain());
                panics += 1;
            }
        }
    }
    assert!(panics <= 1);
}

/// The next read may be a long time away. So the wait must return the error of the outage, and not "not open".
#[test]
fn a_wait_that_ends_during_an_outage_says_so_whenever_the_latch_was_read_last() {
    let is_in_time = [1, 8, 60].into_iter().any(|limit_s| outage_is_told(Duration::from_secs(limit_s)));
    assert!(is_in_time, "no read failed in a minute");
}

/// Returns `false` if the machine was so slow that the first read did not fail in this time.
fn outage_is_told(timeout: Duration) -> bool {
    let faulty = Arc::new(Faulty::default());
    let manager = builder(faulty.clone()).poll(NEVER).timeout(timeout).open().unwrap();
    let latches = latches(&manager, 3);
    let read_before = latches[0].watch().unwrap();
    // Its pauses are now a second and more, so it is not read together with the others.
    until("reads have become rare", || faulty.reads.load(Ordering::SeqCst) >= 6);
    faulty.down.store(true, Ordering::SeqCst);
    let began = Moment::now();
    let first = latches[1].await_open_for(Duration::ZERO).unwrap_err();
    if first.code() == Code::RetriesExhausted && Moment::now().since(began) >= timeout {
        return false;
    }
    let second = latches[2].await_open_for(Duration::ZERO).unwrap_err();
    let third = read_before.wait(&AwaitOptions::new().wait(Duration::ZERO)).unwrap_err();
    for told in [first, second, third] {
        assert_eq!(told.code(), Code::ConnectionError, "{}", told.chain());
    }
    true
}

/// Waiting cannot help: somebody has to change something in the store first.
#[test]
fn an_error_that_cannot_pass_ends_a_wait_without_a_limit() {
    let denied = || Error::Internal { what: "planted refusal".into(), source: None };
    let disabled =
        || Error::TableCreation { table: "t".into(), what: "planted refusal".into(), source: None };
    let errors: [(fn() -> Error, Code); 2] =
        [(denied, Code::InternalError), (disabled, Code::TableCreationError)];
    for (error, code) in errors {
        let faulty = Arc::new(Faulty::default());
        let manager = manager(faulty.clone(), Duration::from_millis(20));
        let latches = latches(&manager, 3);
        let wait = |latch: &Latch| {
            let latch = latch.clone();
            spawn("waiter", move || latch.await_open())
        };
        let waiters: Vec<_> = latches.iter().map(wait).collect();
        until("the latches are watched", || faulty.reads.load(Ordering::SeqCst) > 4);
        // First reads of one latch fail, then reads of all.
        *faulty.failing_one.lock() = Some(error);
        until("the wait for that one ends", || waiters[1].is_finished());
        assert!(!waiters[0].is_finished() && !waiters[2].is_finished(), "{code}: it ended other waits");
        *faulty.failing.lock() = Some(error);
        for waiter in waiters {
            let error = waiter.join().unwrap().unwrap_err();
            assert_eq!(error.code(), code, "{}", error.chain());
            assert!(error.chain().contains("planted refusal"), "{}", error.chain());
        }
        // A wait that begins now fails, too. The error is not remembered after the store serves again.
        assert_eq!(latches[0].await_open().unwrap_err().code(), code);
        (*faulty.failing.lock(), *faulty.failing_one.lock()) = (None, None);
        faulty.memory.step(&step(&latches[0])).unwrap();
        latches[0].await_open().unwrap();
    }
}

#[test]
fn an_error_that_may_pass_ends_no_wait_without_a_limit() {
    let unserved =
        || Error::RetriesExhausted { store: "faulty:".into(), what: "planted".into(), source: None };
    let errors: [fn() -> Error; 2] = [no_connection, unserved];
    for error in errors {
        let faulty = Arc::new(Faulty::default());
        let manager = manager(faulty.clone(), Duration::from_millis(20));
        let latches = latches(&manager, 2);
        let waiter = {
            let latch = latches[0].clone();
            spawn("waiter", move || latch.await_open())
        };
        *faulty.failing.lock() = Some(error);
        let before = faulty.reads.load(Ordering::SeqCst);
        until("several reads have failed", || faulty.reads.load(Ordering::SeqCst) >= before + 6);
        assert!(!waiter.is_finished());
        faulty.memory.step(&step(&latches[0])).unwrap();
        *faulty.failing.lock() = None;
        waiter.join().unwrap().unwrap();
    }
}

#[test]
fn an_error_of_one_latch_is_its_own_and_passes() {
    let faulty = Arc::new(Faulty::default());
    let manager = manager(faulty.clone(), Duration::from_millis(20));
    let latches = latches(&manager, 3);
    *faulty.spoilt.lock() = Some("1".into());
    let watches: Vec<_> = latches.iter().map(|latch| latch.watch().unwrap()).collect();
    for latch in &latches {
        faulty.memory.step(&step(latch)).unwrap();
    }
    open_in_time(&watches[0]);
    open_in_time(&watches[2]);
    assert_eq!(latches[1].await_open_for(Duration::ZERO).unwrap_err().code(), Code::ConnectionError);
    assert!(!watches[1].is_open().unwrap());
    *faulty.spoilt.lock() = None;
    open_in_time(&watches[1]);
}

/// A thread may create a latch or count it up and then wait for it. A read from before that must not end its wait.
#[test]
fn a_look_that_was_under_way_tells_a_newcomer_nothing() {
    let faulty = Arc::new(Faulty::default());
    let manager = manager(faulty.clone(), NEVER);
    let latch = manager.latch("a", Level::Dc, LatchKind::CountUpDown).unwrap();
    let first = latch.watch().unwrap();
    assert_eq!(first.wait(&AwaitOptions::new()).unwrap_err().code(), Code::NotFound);
    let (missed, made) = faulty.late(
        || latch.await_open(),
        || {
            latch.create(1).unwrap();
            latch.watch().unwrap()
        },
    );
    assert_eq!(missed.unwrap_err().code(), Code::NotFound);
    assert!(!made.wait(&AwaitOptions::new().wait(Duration::ZERO)).unwrap());
    latch.count_down().unwrap();
    open_in_time(&made);

    let (opened, busy) = faulty.late(
        || latch.await_open_for(LONG),
        || {
            latch.count_up().unwrap();
            latch.watch().unwrap()
        },
    );
    assert!(opened.unwrap(), "the latch was open when the wait began");
    assert!(!busy.wait(&AwaitOptions::new().wait(Duration::ZERO)).unwrap(), "it was counted up before");
    latch.count_down().unwrap();
    open_in_time(&busy);
    assert_eq!(first.is_open().unwrap_err().code(), Code::NotFound, "the result of an ended watch changed");
}

#[test]
fn a_count_down_that_is_told_late_tells_a_newcomer_nothing() {
    let faulty = Arc::new(Faulty::default());
    let manager = manager(faulty.clone(), NEVER);
    let latch = manager.latch("a", Level::Dc, LatchKind::CountUpDown).unwrap();
    latch.create(1).unwrap();
    let (counted, busy) = faulty.late(
        || latch.count_down(),
        || {
            latch.count_up().unwrap();
            latch.watch().unwrap()
        },
    );
    counted.unwrap();
    assert!(!busy.wait(&AwaitOptions::new().wait(Duration::ZERO)).unwrap(), "it was counted up before");
    latch.count_down().unwrap();
    open_in_time(&busy);
}

#[test]
fn a_count_down_in_this_process_opens_without_another_look() {
    let faulty = Arc::new(Faulty::default());
    *faulty.claimed.lock() = Some(1);
    let manager = manager(faulty.clone(), NEVER);
    let latch = latch(&manager, "a");
    latch.create(2).unwrap();
    // The subscriptions begin here, even if the threads start to wait later.
    let waiters = [(); 3].map(|()| {
        let watch = latch.watch().unwrap();
        spawn("waiter", move || watch.wait(&AwaitOptions::new()))
    });
    let watch = latch.watch().unwrap();
    until("the latch is watched", || faulty.reads.load(Ordering::SeqCst) > 0);
    latch.count_down().unwrap();
    assert!(!watch.is_open().unwrap());
    latch.count_down().unwrap();
    assert!(watch.is_open().unwrap(), "the last count-down returned before the watch was open");
    assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap().unwrap()));

    // The sum over all farms must be read from the store. A count-down causes that read at once.
    assert!((6..10).any(one_read_opens_a_sum), "the machine was too slow each time");
}

/// The pause after so many reads with a poll interval of hours: 50, 100, 200 ms and so on, plus or minus a tenth. At least.
fn pause_after(reads: usize) -> Duration {
    Duration::from_millis(50 << (reads - 1)).mul_f64(0.85)
}

/// Counts down a latch when it has been read so often. Returns `false` if the machine was so slow that the next read was
/// due.
fn one_read_opens_a_sum(reads: usize) -> bool {
    let spy = Spy::on(Arc::new(MemoryStore::new()));
    let manager = manager(spy.clone(), NEVER);
    let sum = manager.latch("b", Level::Xdc, LatchKind::CountDown).unwrap();
    sum.create(1).unwrap();
    let watch = sum.watch().unwrap();
    until("reads have become rare", || spy.reads().len() >= reads);
    let (before, last) = (spy.reads().len(), last_read(&spy));
    sum.count_down().unwrap();
    open_in_time(&watch);
    let is_in_time = Moment::now().since(last) < pause_after(before);
    assert!(!is_in_time || spy.reads().len() == before + 1, "{} reads", spy.reads().len() - before);
    is_in_time
}

/// Returns when a latch was read last.
fn last_read(spy: &Spy) -> Moment {
    let log = spy.log();
    log.iter().rfind(|(call, _)| matches!(call, Call::Counts(_))).expect("it was read").1
}

#[test]
fn a_newcomer_has_a_latch_looked_at_though_looks_have_become_rare() {
    assert!((7..10).any(newcomer_is_looked_after), "the machine was too slow each time");
}

/// A second wait begins when the latch has been read so often. Returns `false` if the machine was so slow that the next
/// read was due.
fn newcomer_is_looked_after(reads: usize) -> bool {
    let spy = Spy::on(Arc::new(MemoryStore::new()));
    let manager = manager(spy.clone(), NEVER);
    let latch = &latches(&manager, 1)[0];
    let _watched = latch.watch().unwrap();
    until("reads have become rare", || spy.reads().len() >= reads);
    let (before, last) = (spy.reads().len(), last_read(&spy));
    assert!(!latch.await_open_for(Duration::ZERO).unwrap());
    if Moment::now().since(last) >= pause_after(before) {
        return false;
    }
    assert!(spy.reads().len() > before);
    spy.latches().unwrap().step(&step(latch)).unwrap();
    assert!(latch.await_open_for(Duration::ZERO).unwrap(), "an old read was used as the answer");
    true
}

#[test]
fn ten_thousand_latches_are_watched_by_two_threads_in_few_reads_and_all_open_in_time() {
    const LATCHES: usize = 10_000;
    const POLL: Duration = Duration::from_secs(1);
    /// How late a machine with two busy cores may be.
    const SLACK: Duration = Duration::from_secs(30);
    let memory = Arc::new(MemoryStore::new());
    let spy = Spy::on(memory.clone());
    let manager = manager(spy.clone(), POLL);
    let latches = latches(&manager, LATCHES);
    let before = background_thread_count();
    let watches: Vec<_> = latches.iter().map(|latch| latch.watch().unwrap()).collect();
    until("all have been read", || spy.reads().iter().sum::<usize>() >= LATCHES);
    // Threads of other tests start and end. 10,000 threads of this test would still be noticed.
    assert!(background_thread_count() <= before + 2 * 12, "{} threads", background_thread_count());
    // Time for the pauses to grow to the poll interval.
    thread::sleep(3 * POLL);
    let (began, from) = (Moment::now(), spy.reads().len());
    thread::sleep(3 * POLL);
    let (took, reads) = (Moment::now().since(began), spy.reads()[from..].to_vec());
    // In each interval, all latches are read in batches of 512. A few more reads are for latches that do not share a
    // batch yet. Jitter and early reads shorten the interval.
    let intervals = took.as_secs_f64() / (0.75 * POLL.as_secs_f64()) + 1.0;
    let most = (intervals * (LATCHES.div_ceil(512) + 10) as f64) as usize;
    assert!(reads.len() <= most, "{} reads in {took:?}, {most} are allowed", reads.len());
    assert!(reads.iter().all(|asked| *asked <= 512));
    let asked: usize = reads.iter().sum();
    println!("{} reads of {} latches each in {took:?}", reads.len(), asked / reads.len().max(1));

    let mut opened = Vec::with_capacity(LATCHES);
    for latch in &latches {
        memory.step(&step(latch)).unwrap();
        opened.push(Moment::now());
    }
    let mut latest = Duration::ZERO;
    let mut late: Vec<_> = (0..LATCHES).collect();
    until("all are open", || {
        late.retain(|&at| !watches[at].is_open().unwrap());
        let now = Moment::now();
        latest = late.iter().map(|&at| now.since(opened[at])).fold(latest, Duration::max);
        late.is_empty()
    });
    println!("the last latch opened after {latest:?}");
    assert!(latest <= POLL + POLL / 10 + SLACK, "one was woken {latest:?} after its last count-down");
    let reads = spy.reads().len();
    thread::sleep(2 * POLL);
    assert_eq!(spy.reads().len(), reads, "the store is read although nobody waits");
}

#[test]
fn two_thousand_threads_that_wait_are_all_woken() {
    const THREADS: usize = 2_000;
    let memory = Arc::new(MemoryStore::new());
    let manager = manager(memory.clone(), Duration::from_millis(500));
    let latches = latches(&manager, THREADS / 2);
    let waiters: Vec<_> = (0..THREADS)
        .map(|number| {
            let latch = latches[number / 2].clone();
            spawn("waiter", move || latch.await_open())
        })
        .collect();
    for latch in &latches {
        memory.step(&step(latch)).unwrap();
    }
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
}

#[test]
fn closing_while_latches_are_read_ends_every_wait_and_hangs_on_none() {
    for _ in 0..20 {
        let manager = builder(Arc::new(MemoryStore::new())).poll(Duration::from_millis(10)).open().unwrap();
        let watches: Vec<_> = latches(&manager, 50).iter().map(|latch| latch.watch().unwrap()).collect();
        let closer = manager.clone();
        let closing = spawn("closer", move || closer.close());
        for watch in &watches {
            let ended = watch.wait(&AwaitOptions::new().wait(LONG));
            assert_eq!(ended.unwrap_err().code(), Code::Closed);
        }
        closing.join().unwrap().unwrap();
        drop(manager);
        // The watches are dropped after the manager was closed, and after its last other handle.
        drop(watches);
    }
}

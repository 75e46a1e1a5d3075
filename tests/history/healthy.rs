//! Stores without a defect break no rule, also on a busy machine and in a process that is stopped now and then.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::{LockStore, MemoryStore};
use dlm::{Deadline, Mode};
use dlm_fixtures::role;
use dlm_testkit::LONG;
use dlm_testkit::history::{History, Operation, Tolerances, check};
use dlm_testkit::mutants::{ModelRow, Receiver};
use dlm_testkit::workload::{LatchWorkload, LockWorkload, RowWorkload};
use rustix::process::{Pid, Signal, kill_process};

#[track_caller]
pub(crate) fn assert_clean(history: &History) {
    let violations = check(history, &Tolerances::default());
    let texts: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(texts.is_empty(), "{}", texts.join("\n"));
}

/// Runs `work` while more threads than the machine has cores are busy.
fn on_a_busy_machine(work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    let cores = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..2 * cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // Also after a panic, for which the scope waits.
        let _over = OnDrop(|| over.store(true, Ordering::Relaxed));
        work();
    });
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

fn lock_history(seed: u64) -> History {
    let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    LockWorkload::new(seed).run(&store, &Receiver::new())
}

fn mode_history(seed: u64) -> History {
    let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    mode_history_of(&store, seed)
}

fn mode_history_of(store: &Arc<dyn LockStore>, seed: u64) -> History {
    let other_ttls = seed.is_multiple_of(2);
    LockWorkload { modes: true, other_ttls, ..LockWorkload::new(seed) }.run(store, &Receiver::new())
}

fn latch_history(seed: u64) -> History {
    let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    LatchWorkload::new(seed).run(&store)
}

#[cfg(feature = "embedded")]
#[test]
fn locks_and_latches_of_the_embedded_store_break_no_rule() {
    let directory = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}", directory.path().display());
    let store = dlm::store::open(&uri).unwrap();
    let seed = 1;
    assert_clean(&LockWorkload::new(seed).run(&store, &Receiver::new()));
    assert_clean(&LatchWorkload::new(seed).run(&store));
}

#[cfg(feature = "embedded")]
#[test]
fn locks_of_the_embedded_store_in_all_modes_break_no_rule() {
    let directory = tempfile::tempdir().unwrap();
    let store = dlm::store::open(&format!("embedded:{}", directory.path().display())).unwrap();
    for seed in 1..4 {
        assert_clean(&mode_history_of(&store, seed));
    }
}

fn calls(history: &History, wanted: fn(&Operation) -> bool) -> usize {
    history.events().iter().filter(|event| wanted(&event.operation)).count()
}

/// Whether a call is of a kind.
type Kind = fn(&Operation) -> bool;

/// Runs a workload with one seed after another, on a slow machine with more than one, until it has made more than so many
/// calls of each kind: until it has done what the rules are about. No history may break a rule.
fn run_until_enough(run: fn(u64) -> History, kinds: &[(Kind, usize)]) {
    let (by, mut made) = (Deadline::after(LONG), vec![0; kinds.len()]);
    for seed in 1.. {
        let history = run(seed);
        assert_clean(&history);
        for (made, (kind, _)) in made.iter_mut().zip(kinds) {
            *made += calls(&history, *kind);
        }
        if made.iter().zip(kinds).all(|(made, (_, enough))| made > enough) {
            return;
        }
        assert!(!by.passed(), "only {made:?} calls in {seed} runs");
    }
}

#[test]
fn locks_of_the_memory_store_break_no_rule() {
    run_until_enough(
        lock_history,
        &[
            (|operation| matches!(operation, Operation::Acquire { .. }), 50),
            (|operation| matches!(operation, Operation::Renew { .. }), 5),
            (|operation| matches!(operation, Operation::Release { .. }), 5),
            (|operation| matches!(operation, Operation::Write { .. }), 5),
        ],
    );
}

/// Whether a call asks for a lock in this mode.
fn acquires(operation: &Operation, wanted: Mode) -> bool {
    matches!(operation, Operation::Acquire { mode, .. } if *mode == wanted)
}

/// Whether a call asks for another mode of a lease, which is this one.
fn converts(operation: &Operation, wanted: Mode) -> bool {
    matches!(operation, Operation::Convert { mode, .. } if *mode == wanted)
}

#[test]
fn locks_of_the_memory_store_in_all_modes_break_no_rule() {
    run_until_enough(
        mode_history,
        &[
            (|operation| acquires(operation, Mode::Shared), 200),
            (|operation| acquires(operation, Mode::Update), 50),
            (|operation| acquires(operation, Mode::Exclusive), 50),
            (|operation| converts(operation, Mode::Shared), 10),
            (|operation| converts(operation, Mode::Update), 5),
            (|operation| converts(operation, Mode::Exclusive), 10),
            (|operation| matches!(operation, Operation::Renew { .. }), 20),
            (|operation| matches!(operation, Operation::Read { .. }), 50),
            (|operation| matches!(operation, Operation::Write { .. }), 20),
        ],
    );
}

fn permit_history_of(store: &Arc<dyn LockStore>, seed: u64) -> History {
    let resizes = seed.is_multiple_of(2);
    let workload = LockWorkload { permits: 2, locks: 1, resizes, ..LockWorkload::new(seed) };
    workload.run(store, &Receiver::new())
}

fn permit_history(seed: u64) -> History {
    permit_history_of(&(Arc::new(MemoryStore::new()) as Arc<dyn LockStore>), seed)
}

#[test]
fn semaphores_of_the_memory_store_break_no_rule() {
    run_until_enough(
        permit_history,
        &[
            (|operation| matches!(operation, Operation::AcquirePermit { .. }), 200),
            (|operation| matches!(operation, Operation::Resize { .. }), 5),
            (|operation| matches!(operation, Operation::Renew { .. }), 20),
            (|operation| matches!(operation, Operation::Write { .. }), 50),
        ],
    );
}

#[cfg(feature = "embedded")]
#[test]
fn semaphores_of_the_embedded_store_break_no_rule() {
    let directory = tempfile::tempdir().unwrap();
    let store = dlm::store::open(&format!("embedded:{}", directory.path().display())).unwrap();
    for seed in 0..2 {
        assert_clean(&permit_history_of(&store, seed));
    }
}

#[test]
fn a_quiet_lock_is_used_by_one_client_and_is_never_busy_unless_that_client_left_it() {
    // On a slow machine, some clients may not come to all their locks in a short time.
    let all_were_used =
        [1500, 6_000, 24_000].map(Duration::from_millis).into_iter().any(quiet_locks_are_quiet);
    assert!(all_were_used);
}

/// Returns whether all locks were used.
fn quiet_locks_are_quiet(lasts: Duration) -> bool {
    let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    let workload = LockWorkload { quiet_locks: 2, outlast_one_in: 64, lasts, ..LockWorkload::new(1) };
    let history = workload.run(&store, &Receiver::new());
    assert_clean(&history);
    let (mut quiet, mut contended) = (0, 0);
    for (key, events) in history.by_key() {
        let used = events.iter().filter(|event| &*event.id.client != "last");
        let clients: HashSet<_> = used.map(|event| &event.id.client).collect();
        match (key.starts_with("quiet-"), clients.len()) {
            (true, 1) => quiet += 1,
            (true, 2..) => panic!("{key} was used by {clients:?}"),
            (false, 2..) => contended += 1,
            // Used by nobody or by one client only, or no lock.
            _ => {}
        }
    }
    (quiet, contended) == (12, 2)
}

#[test]
fn latches_of_the_memory_store_break_no_rule() {
    run_until_enough(
        latch_history,
        &[
            (|operation| matches!(operation, Operation::CreateLatch { .. }), 5),
            (|operation| matches!(operation, Operation::CountDown { .. }), 20),
            (|operation| matches!(operation, Operation::ReadCount), 20),
            (|operation| matches!(operation, Operation::Await { .. }), 5),
        ],
    );
}

fn row_history(seed: u64) -> History {
    RowWorkload::new(seed).run(&[ModelRow::new(), ModelRow::new()])
}

#[test]
fn rows_of_the_model_break_no_rule() {
    (1..3).for_each(|seed| assert_clean(&row_history(seed)));
}

#[test]
fn nothing_breaks_a_rule_on_a_busy_machine() {
    on_a_busy_machine(|| {
        (3..6).for_each(|seed| assert_clean(&lock_history(seed)));
        (3..6).for_each(|seed| assert_clean(&mode_history(seed)));
        (3..6).for_each(|seed| assert_clean(&latch_history(seed)));
        assert_clean(&row_history(3));
    });
}

#[cfg(feature = "embedded")]
#[test]
fn leases_of_many_lengths_break_no_rule_for_a_long_time() {
    if dlm_testkit::left_to_the_long_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let stores = [format!("embedded:{}", directory.path().display()), "memory:".to_owned()];
    for seed in 0..32 {
        let ttl = Duration::from_millis([8, 20, 60, 150][seed as usize / 2 % 4]);
        let store = dlm::store::open(&stores[seed as usize % 2]).unwrap();
        for modes in [false, true] {
            let locks = LockWorkload { ttl, clients: 8, modes, ..LockWorkload::new(seed) };
            assert_clean(&locks.run(&store, &Receiver::new()));
        }
        assert_clean(&LatchWorkload { ttl: 3 * ttl, ..LatchWorkload::new(seed) }.run(&store));
    }
}

/// In the directory of a test: its process has been stopped often enough.
const ENOUGH: &str = "enough";

/// What the process of a test does.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((_, dir)) = role::asked() else { return };
    for seed in 10.. {
        thread::scope(|scope| {
            scope.spawn(|| assert_clean(&lock_history(seed)));
            scope.spawn(|| assert_clean(&latch_history(seed)));
        });
        if dir.join(ENOUGH).exists() {
            return;
        }
    }
}

/// The pauses are longer than leases and latches live.
#[test]
fn a_process_that_is_stopped_and_goes_on_breaks_no_rule() {
    let directory = tempfile::tempdir().unwrap();
    let mut child =
        role::process(module_path!(), "stopped", directory.path()).spawn().map(role::Running).unwrap();
    let pid = Pid::from_child(&child.0);
    let mut random = fastrand::Rng::with_seed(1);
    let mut stops = 0;
    let status = loop {
        thread::sleep(Duration::from_millis(random.u64(20..200)));
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        kill_process(pid, Signal::STOP).unwrap();
        thread::sleep(Duration::from_millis(random.u64(20..400)));
        kill_process(pid, Signal::CONT).unwrap();
        stops += 1;
        if stops == 4 {
            fs::write(directory.path().join(ENOUGH), "").unwrap();
        }
    };
    assert!(status.success() && stops > 3, "{status}, {stops} stops");
}

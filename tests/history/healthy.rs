//! Stores without a defect break no rule, also on a busy machine and in a process that is stopped now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dlm::store::{LockStore, MemoryStore};
use dlm_testkit::history::{History, Operation, Tolerances, check};
use dlm_testkit::mutants::Receiver;
use dlm_testkit::workload::LockWorkload;

#[track_caller]
fn assert_clean(history: &History) {
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
        work();
        over.store(true, Ordering::Relaxed);
    });
}

fn lock_history(seed: u64) -> History {
    let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    LockWorkload::new(seed).run(&store, &Receiver::new())
}

#[test]
fn locks_of_the_memory_store_break_no_rule() {
    let history = lock_history(1);
    assert_clean(&history);
    let calls = |wanted: fn(&Operation) -> bool| {
        history.events().iter().filter(|event| wanted(&event.operation)).count()
    };
    // The workload does what the rules are about.
    assert!(calls(|operation| matches!(operation, Operation::Acquire { .. })) > 50);
    assert!(calls(|operation| matches!(operation, Operation::Renew { .. })) > 5);
    assert!(calls(|operation| matches!(operation, Operation::Release { .. })) > 5);
    assert!(calls(|operation| matches!(operation, Operation::Write { .. })) > 5);
}

#[test]
fn locks_of_the_memory_store_break_no_rule_on_a_busy_machine() {
    on_a_busy_machine(|| (2..6).for_each(|seed| assert_clean(&lock_history(seed))));
}

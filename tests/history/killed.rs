//! Processes that are killed or stopped while they use locks: what they have logged breaks no rule.

use std::fs;
use std::path::Path;
use std::process;
use std::thread;
use std::time::Duration;

use dlm::Deadline;
use dlm_fixtures::role::{self, Running};
use dlm_testkit::history::{Answer, History, Recorder};
use dlm_testkit::workload::LockWorkload;
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::healthy::assert_clean;

const PROCESSES: usize = 4;
const LASTS: Duration = Duration::from_secs(3);

/// What a process of the test does until it is killed.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((_, directory)) = role::asked() else { return };
    let store = dlm::store::open(&format!("embedded:{}", directory.join("store").display())).unwrap();
    let number = u64::from(process::id());
    let name = format!("process-{number}");
    let mut log = Recorder::append(&name, directory.join("logs").join(&name)).unwrap();
    let workload = LockWorkload { lasts: 10 * LASTS, ..LockWorkload::new(1) };
    workload.run_client(&store, "killed", number, None, &mut log);
}

fn start(directory: &Path) -> Running {
    role::process(module_path!(), "work", directory).spawn().map(Running).unwrap()
}

#[test]
fn processes_that_are_killed_or_stopped_break_no_rule() {
    let directory = tempfile::tempdir().unwrap();
    let logs = directory.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let mut random = Rng::with_seed(1);
    let mut running: Vec<Running> = (0..PROCESSES).map(|_| start(directory.path())).collect();
    let by = Deadline::after(LASTS);
    while !by.passed() {
        thread::sleep(Duration::from_millis(random.u64(20..120)));
        let chosen = &mut running[random.usize(..PROCESSES)];
        if random.bool() {
            // Dropping it kills the process before.
            *chosen = start(directory.path());
        } else {
            let pid = Pid::from_child(&chosen.0);
            kill_process(pid, Signal::STOP).unwrap();
            thread::sleep(Duration::from_millis(random.u64(10..150)));
            kill_process(pid, Signal::CONT).unwrap();
        }
    }
    drop(running);
    let history = History::read(fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().path())).unwrap();
    assert_clean(&history);
    let count =
        |wanted: fn(&Answer) -> bool| history.events().iter().filter(|event| wanted(&event.answer)).count();
    let (granted, unknown) = (
        count(|answer| matches!(answer, Answer::Granted { .. })),
        count(|answer| *answer == Answer::Unknown),
    );
    println!("{} calls, {granted} grants, {unknown} without an answer", history.events().len());
    assert!(granted > PROCESSES, "{granted} grants");
}

//! Logs: what is written is what is read, also after the writer was killed.

use std::collections::HashSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

use dlm::{Mode, Moment};
use dlm_fixtures::role;
use dlm_testkit::history::{Answer, CallId, History, Operation, Recorder};
use dlm_testkit::until;

use crate::sketch::{Sketch, at, ms};

/// What the process of a test does: it logs a call and never returns from it.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((_, directory)) = role::asked() else { return };
    let mut log = Recorder::append("child", log_in(&directory)).unwrap();
    let get = log.call("k", Operation::Get);
    log.returned(&get, Answer::Value(None));
    log.call("k", Operation::Put { value: 1 });
    loop {
        thread::park();
    }
}

fn log_in(directory: &Path) -> std::path::PathBuf {
    directory.join("log")
}

fn all_operations() -> Vec<Operation> {
    let lease = CallId { client: "B c:1%".into(), number: 7 };
    let (ttl, wait) = (ms(60), Duration::ZERO);
    vec![
        Operation::Acquire { ttl, wait, mode: Mode::Exclusive },
        Operation::Acquire { ttl, wait, mode: Mode::Shared },
        Operation::Acquire { ttl, wait: ttl, mode: Mode::Update },
        Operation::Convert { lease: lease.clone(), mode: Mode::Exclusive, ttl, wait: 2 * ttl },
        Operation::Convert { lease: lease.clone(), mode: Mode::Shared, ttl, wait },
        Operation::Convert { lease: lease.clone(), mode: Mode::Update, ttl, wait },
        Operation::Renew { lease: lease.clone(), ttl },
        Operation::Release { lease: lease.clone() },
        Operation::Check { lease: lease.clone() },
        Operation::Write { lease: lease.clone(), fence: u64::MAX },
        Operation::Read { lease, epoch: u64::MAX },
        Operation::CreateLatch { count: 3, ttl },
        Operation::CountDown { participant: None },
        Operation::CountDown { participant: Some("größe = 1\n".to_owned()) },
        Operation::CountUp,
        Operation::ReadCount,
        Operation::Await { deadline: at(5) },
        Operation::CreateRow { value: i64::MIN },
        Operation::Put { value: -1 },
        Operation::CompareAndSet { expected: None, value: 1 },
        Operation::CompareAndSet { expected: Some(-5), value: 1 },
        Operation::Get,
        Operation::Increment { by: -1 },
        Operation::Modify { by: 2 },
        Operation::Beat { every: ms(10) },
        Operation::Delay { longest: ms(40) },
        Operation::Outage,
    ]
}

fn all_answers() -> Vec<Answer> {
    vec![
        Answer::Ok,
        Answer::No,
        Answer::Granted { fence: Some(17), ends: at(9) },
        Answer::Granted { fence: None, ends: at(9) },
        Answer::Renewed { ends: at(9) },
        Answer::Lost,
        Answer::NotFound,
        Answer::Value(Some(-3)),
        Answer::Value(None),
        Answer::Refused { highest: 18 },
        Answer::InDoubt,
        Answer::Failed { code: "CONNECTION_ERROR".to_owned() },
    ]
}

#[test]
fn every_call_and_every_answer_is_read_as_it_was_written() {
    let mut log = Recorder::new("client one", Vec::new());
    let mut written = Vec::new();
    for (number, operation) in all_operations().into_iter().enumerate() {
        for answer in all_answers() {
            let key = format!("key {number}=\u{e9}");
            let id = log.call(&key, operation.clone());
            log.returned(&id, answer.clone());
            written.push((id, key, operation.clone(), answer));
        }
    }
    let text = String::from_utf8(log.into_inner()).unwrap();
    let mut events = History::parse([text]).unwrap().events().to_vec();
    events.sort_by_key(|event| event.id.number);
    let read: Vec<_> = events
        .into_iter()
        .map(|event| (event.id, event.key.to_string(), event.operation, event.answer))
        .collect();
    assert_eq!(read, written);
}

/// Logs are kept, and are drawn and judged again later.
#[test]
fn a_log_of_before_the_modes_is_one_of_exclusive_locks_and_is_still_written_so() {
    let old = "call A 1 0 acquire k ttl=60 wait=5\nreturn A 1 9 granted fence=17 ends=9\n";
    let history = History::parse([old]).unwrap();
    let operation = history.events()[0].operation.clone();
    let (ttl, wait) = (Duration::from_nanos(60), Duration::from_nanos(5));
    assert_eq!(operation, Operation::Acquire { ttl, wait, mode: Mode::Exclusive });
    assert_eq!(history.events()[0].answer, Answer::Granted { fence: Some(17), ends: Moment::from_nanos(9) });

    let written = |operation: Operation| {
        let mut log = Recorder::new("A", Vec::new());
        log.call("k", operation);
        let text = String::from_utf8(log.into_inner()).unwrap();
        text.split_once(" k ").unwrap().1.to_owned()
    };
    assert_eq!(written(operation), "ttl=60 wait=5\n");
    assert_eq!(written(Operation::Acquire { ttl, wait, mode: Mode::Shared }), "ttl=60 wait=5 mode=SHARED\n");
}

#[test]
fn a_call_of_a_killed_process_has_no_answer() {
    let directory = tempfile::tempdir().unwrap();
    let child = role::process(module_path!(), "log", directory.path()).spawn().unwrap();
    let mut child = role::Running(child);
    let log = log_in(directory.path());
    let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    until("the process has logged its calls", || lines() == 3);
    child.0.kill().unwrap();
    child.0.wait().unwrap();

    // Two clients may append to one file.
    let mut recorder = Recorder::append("parent", &log).unwrap();
    let id = recorder.call("k", Operation::Get);
    recorder.returned(&id, Answer::Value(Some(1)));
    let history = History::read([&log]).unwrap();
    let seen: Vec<_> =
        history.events().iter().map(|event| (&*event.id.client, &event.answer, event.returned)).collect();
    assert_eq!((seen[0].0, seen[0].1), ("child", &Answer::Value(None)));
    assert_eq!(seen[1], ("child", &Answer::Unknown, None));
    assert_eq!((seen[2].0, seen[2].1), ("parent", &Answer::Value(Some(1))));
    assert!(history.events()[2].called > history.events()[0].returned.unwrap());
    assert!(history.events()[2].called <= Moment::now());
}

#[test]
fn a_last_line_that_was_cut_is_ignored_and_every_other_fault_is_reported() {
    let whole = "call A 1 10 get k\nreturn A 1 11 value is=5\n";
    for cut in 0..whole.len() {
        let history = History::parse([&whole[..cut]]).unwrap();
        let returned = history.events().first().is_some_and(|event| event.returned.is_some());
        assert!(history.events().len() <= 1 && !returned, "{cut}");
    }
    assert!(History::parse([whole]).unwrap().events()[0].returned.is_some());
    for bad in [
        "call A 1 10 get\n",
        "call A 1 ten get k\n",
        "call A 1 10 fetch k\n",
        "call A 1 10 put k\n",
        "call A 1 10 acquire k ttl=1 wait=0 mode=shared\n",
        "call A 1 10 convert k mode=SHARED ttl=1 wait=0\n",
        "cal A 1 10 get k\n",
        "return A 1 11 value is=5\n",
        "call A 1 10 get k\nreturn A 1 9 value is=5\n",
        "call A 1 10 get k\ncall A 1 11 get k\n",
        "call A 1 10 get k\nreturn A 1 11 ok\nreturn A 1 12 ok\n",
        "call %zz 1 10 get k\n",
        "call A 1 10 get \u{20ac}%\u{20ac}\n",
        "\n\n",
    ] {
        let error = History::parse([bad]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{bad:?}");
    }
}

#[test]
fn a_return_may_be_in_another_log_than_its_call() {
    let history = History::parse(["return A 1 11 value is=5\n", "call A 1 10 get k\n"]).unwrap();
    assert_eq!(history.events()[0].answer, Answer::Value(Some(5)));
}

#[test]
fn a_stall_is_seen_in_the_gaps_between_signs_of_life() {
    let mut sketch = Sketch::default();
    for time in [0, 10, 20, 30, 130, 140, 200] {
        sketch.add("beat", time..time, Operation::Beat { every: ms(10) }, Answer::Ok);
    }
    let history = sketch.history();
    assert_eq!(history.stalled_within(at(0), at(1000)), ms(100 + 60));
    assert_eq!(history.stalled_within(at(50), at(60)), ms(10));
    assert_eq!(history.stalled_within(at(0), at(30)), Duration::ZERO);
    let clients: HashSet<_> = history.events().iter().map(|event| &event.id.client).collect();
    assert_eq!(clients.len(), 1);
}

//! `dlm demo`: it finds no overlap, ends, and leaves no process behind.

use std::time::Instant;

use dlm_testkit::{LONG, until};
use rustix::process::{Pid, Signal, kill_process};

use super::{Done, Running, Shell, is_running};

/// Returns the process ids of a demo's workers.
fn workers_of(demo: &mut Running) -> Vec<Pid> {
    let parent = demo.child().id();
    let children = format!("/proc/{parent}/task/{parent}/children");
    let pids = std::fs::read_to_string(children).unwrap_or_default();
    pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
}

#[test]
fn the_demo_ends_with_no_overlap_and_a_picture() {
    let shell = Shell::new();
    // Rounds and no seconds, so that each lock is taken on a busy machine too.
    let mut command = shell.dlm(&["demo", "--rounds", "15", "--workers", "5", "--locks", "2"]);
    let done = Running(Some(command.env("COLUMNS", "100").spawn().unwrap())).finish().ok();
    assert!(done.out.contains("0 overlaps, fences rose with every grant"), "{}", done.out);
    for lock in ["demo-1", "demo-2"] {
        let row = done.out.lines().find(|line| line.starts_with(&format!("  {lock}"))).unwrap();
        assert!(row.contains(['A', 'B', 'C', 'D', 'E']) && row.chars().count() <= 100, "{row}");
    }
    assert!(done.out.contains("A B C D E met at the latch"), "{}", done.out);
    assert!(!done.out.contains('\x1b'), "colours where there is no terminal");
    assert_eq!(done.err, "");
}

#[test]
fn the_demo_in_numbers_counts_what_every_worker_got() {
    let shell = Shell::new();
    let demo = shell.json(&["demo", "--json", "--rounds", "3", "--workers", "3", "--locks", "1"]);
    assert_eq!((&demo["overlaps"], &demo["fences_fell"], &demo["grants"]), (&0.into(), &0.into(), &9.into()));
    let grants: Vec<_> = demo["workers"].as_array().unwrap().iter().map(|one| &one["grants"]).collect();
    assert_eq!(grants, [3, 3, 3]);
    assert!(!shell.json(&["show", "--json", "--level", "xdc", "demo-1"])["held"].as_bool().unwrap());
}

/// Returns whether the workers contend.
fn locks_are_taken(shell: &Shell) -> bool {
    let held = |lock| shell.json(&["show", "--json", "--level", "xdc", lock])["held"] == true;
    ["demo-1", "demo-2", "demo-3"].into_iter().any(held)
}

#[test]
fn a_worker_that_is_killed_is_reported_and_the_others_go_on() {
    for early in [true, false] {
        // On a busy machine a short demo may be over before the worker is killed.
        let done =
            ["2", "10", "50"].into_iter().find_map(|seconds| demo_with_a_killed_worker(seconds, early));
        let done = done.expect("the demo of 50 s was over before its worker was killed").ok();
        assert!(done.out.contains("worker B was killed by SIGKILL"), "{}", done.out);
        assert!(done.out.contains("0 overlaps"), "{}", done.out);
    }
}

/// Kills the second worker of a demo. `None` if the workers had ended before.
fn demo_with_a_killed_worker(seconds: &str, early: bool) -> Option<Done> {
    let shell = Shell::new();
    let mut demo = shell.start(&["demo", "--seconds", seconds, "--workers", "3"]);
    if early {
        // Probably before the worker is ready.
        let by = Instant::now() + LONG;
        while workers_of(&mut demo).len() < 2 {
            assert!(Instant::now() < by, "no second worker");
        }
    } else {
        let has_ended = |demo: &mut Running| demo.child().try_wait().unwrap().is_some();
        until("a lock is taken", || locks_are_taken(&shell) || has_ended(&mut demo));
    }
    let workers = workers_of(&mut demo);
    let worker = *workers.get(1).filter(|_| early || workers.len() == 3)?;
    // A stopped worker does not end by itself.
    kill_process(worker, Signal::STOP).ok()?;
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
        stat.rsplit(')').next().unwrap().starts_with(" T")
    };
    until("the worker stops", || is_stopped() || !is_running(worker));
    if !is_running(worker) {
        return None;
    }
    kill_process(worker, Signal::KILL).unwrap();
    Some(demo.finish())
}

#[test]
fn an_interrupted_demo_leaves_no_process_behind() {
    for (signal, status) in [(Signal::TERM, Some(143)), (Signal::INT, Some(130)), (Signal::KILL, None)] {
        let shell = Shell::new();
        let mut demo = shell.start(&["demo", "--seconds", "600", "--workers", "3"]);
        until("a lock is taken", || locks_are_taken(&shell));
        let workers = workers_of(&mut demo);
        assert_eq!(workers.len(), 3);
        demo.signal(signal);
        let done = demo.finish();
        assert_eq!(done.status.code(), status, "{}", done.err);
        until("the workers end", || !workers.iter().any(|pid| is_running(*pid)));
    }
}

//! `dlm elect`: one candidate leads at a time.

use std::fs::File;
use std::time::Duration;

use dlm_testkit::until;
use rustix::process::Signal;

use super::{Running, Shell, catches, is_running};

/// Writes its fence to the file `terms` and its process id to the file of this candidate, and runs until it is ended.
fn script(candidate: &str) -> String {
    format!("echo {candidate} $DLM_FENCE >>terms; echo $$ >{candidate}; exec sleep 300")
}

fn candidate(shell: &Shell, name: &str, ttl: &str) -> Running {
    shell.start(&["elect", "--ttl", ttl, "--retry", "20ms", "e", "--", "sh", "-c", &script(name)])
}

/// Returns the candidates that have led, in order. Their fences must rise.
fn terms(shell: &Shell) -> Vec<String> {
    let text = std::fs::read_to_string(shell.path("terms")).unwrap_or_default();
    let terms: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
    let fences: Vec<u64> = terms.iter().map(|(_, fence)| fence.parse().unwrap()).collect();
    assert!(fences.is_sorted() && fences.windows(2).all(|pair| pair[0] != pair[1]), "{fences:?}");
    terms.iter().map(|(name, _)| (*name).to_owned()).collect()
}

fn until_led(shell: &Shell, expected: &[&str]) {
    until(&format!("the terms are {expected:?}"), || terms(shell).len() >= expected.len());
    assert_eq!(terms(shell), expected);
}

#[test]
fn the_next_candidate_leads_at_once_when_the_command_ends_or_its_dlm_is_killed() {
    let shell = Shell::new();
    // A candidate that leads within a minute has not waited for the end of a lease.
    let mut first = candidate(&shell, "a", "1d");
    until_led(&shell, &["a"]);
    let mut second = candidate(&shell, "b", "1d");
    // The process catches signals before it is a candidate.
    catches(&mut second, Signal::TERM);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(terms(&shell), ["a"], "two lead at once");
    first.signal(Signal::KILL);
    until_led(&shell, &["a", "b"]);

    let last = candidate(&shell, "c", "1d");
    second.signal(Signal::TERM);
    second.finish().ends_with(143);
    until_led(&shell, &["a", "b", "c"]);
    drop(last);
    let done = shell.run(&["elect", "other", "--", "sh", "-c", "exit 3"]).ends_with(3);
    assert_eq!(done.err, "");
    assert!(!shell.is_held("other"));
}

/// The first `dlm` is stopped for longer than its lease lasts.
#[test]
fn a_leader_that_loses_its_lock_ends_its_command_and_is_a_candidate_again() {
    let shell = Shell::new();
    let mut first = candidate(&shell, "a", "5s");
    until_led(&shell, &["a"]);
    let pid = shell.pid_in("a");
    first.signal(Signal::STOP);
    let mut second = candidate(&shell, "b", "60s");
    until_led(&shell, &["a", "b"]);
    first.signal(Signal::CONT);
    until("the command of the first is ended", || !is_running(pid));
    second.signal(Signal::TERM);
    second.finish().ends_with(143);
    until_led(&shell, &["a", "b", "a"]);
    first.signal(Signal::TERM);
    let done = first.finish().ends_with(143);
    assert!(done.err.contains("a candidate again"), "{}", done.err);
    assert!(!shell.is_held("e"));
}

#[test]
fn a_signal_ends_a_candidate() {
    let shell = Shell::new();
    let lease = shell.acquire("e");
    let mut waiting = candidate(&shell, "a", "60s");
    catches(&mut waiting, Signal::INT);
    waiting.signal(Signal::INT);
    assert!(waiting.finish().fails_with(130).contains("INT"));
    shell.run(&["release", &lease]).ok();
    assert!(terms(&shell).is_empty());
}

#[test]
fn an_observer_prints_a_line_for_each_change() {
    let shell = Shell::new();
    let watch = |json: bool, file: &str| {
        let mut arguments = vec!["elect", "--retry", "20ms", "--observe", "e"];
        if json {
            arguments.insert(0, "--json");
        }
        Running(Some(shell.dlm(&arguments).stdout(File::create(shell.path(file)).unwrap()).spawn().unwrap()))
    };
    let lines = |file: &str| {
        let text = std::fs::read_to_string(shell.path(file)).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let _observers = [watch(false, "text"), watch(true, "json")];
    until("the observers have begun", || lines("text").len() == 1 && lines("json").len() == 1);
    let mut leader = candidate(&shell, "a", "60s");
    until("the leader is seen", || lines("text").len() == 2 && lines("json").len() == 2);
    let pid = leader.child().id();
    leader.signal(Signal::TERM);
    leader.finish().ends_with(143);
    until("the end of the term is seen", || lines("text").len() == 3 && lines("json").len() == 3);
    let text = lines("text");
    assert!(text[0] == "nobody leads" && text[2] == "nobody leads", "{text:?}");
    let expected = format!("leader: pid {pid} on ");
    assert!(text[1].starts_with(&expected) && text[1].contains("elect sh"), "{text:?}");
    let seen: Vec<serde_json::Value> =
        lines("json").iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(seen[0]["leader"].is_null() && seen[2]["leader"].is_null(), "{seen:?}");
    assert_eq!(seen[1]["leader"]["pid"], pid);
    assert!(seen[1]["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert!(seen.iter().all(|line| line["election"] == "DC#local#dlm#e"));
}

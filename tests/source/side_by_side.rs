//! `tests/side_by_side` runs commands at once, shows what failed, and leaves no process behind.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use dlm_testkit::{LONG, until};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// More threads than any machine that runs these tests has to do with.
const RUNNABLE: &str = "1000000";

fn start(dir: &Path, list: &str, budget: [&str; 3]) -> Child {
    let script = dlm_fixtures::root().join("tests/side_by_side");
    // The program that started the tests may ignore signals, which a shell cannot undo.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM"]).arg(script).arg(dir.join("out")).current_dir(dir);
    command.envs([("DLM_TEST_BUDGET_THREADS", budget[0]), ("DLM_TEST_BUDGET_MIB", budget[1])]);
    command.env("DLM_TEST_RUNNABLE_MAX", budget[2]);
    command.env("DLM_TEST_LIMIT_S", LONG.as_secs().to_string());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    child
}

fn run(dir: &Path, list: &str, budget: [&str; 3]) -> (i32, String) {
    let Output { status, stdout, stderr } = start(dir, list, budget).wait_with_output().unwrap();
    let text = [stdout, stderr].map(|it| String::from_utf8(it).unwrap()).concat();
    (status.code().unwrap(), text)
}

fn waits_for(file: &str) -> String {
    format!("until [ -e {file} ]; do sleep 0.01; done")
}

#[test]
fn commands_run_at_once_within_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    // The first two need each other. The third has room only when one of them has ended, and the last one is larger than
    // the budget.
    let list = format!(
        "a|4|10|.|touch a; {}; touch done\nb|4|10|.|touch b; {}; touch done\nc|1|10|.|[ -e done ] && touch c\nd|9|99|.|[ -e c ]\n",
        waits_for("b"),
        waits_for("a"),
    );
    let (status, text) = run(dir.path(), &list, ["8", "50", RUNNABLE]);
    assert_eq!(status, 0, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 4, "{text}");
}

/// More commands would only take from those that run the processor that their servers need.
#[test]
fn no_command_is_started_beside_others_while_the_machine_has_too_much_to_do() {
    let dir = tempfile::tempdir().unwrap();
    // The script itself is a thread that runs when it looks.
    let list = "a|1|1|.|mkdir one && sleep 3 && rmdir one\nb|1|1|.|mkdir one && sleep 3 && rmdir one\n";
    let (status, text) = run(dir.path(), list, ["8", "50", "0"]);
    assert_eq!(status, 0, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 2, "{text}");
}

#[test]
fn all_of_a_failure_is_shown_and_the_times_of_all_cases_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let list = "good|1|1|.|echo quiet; echo 'test a::b ... ok <1.250s>'; echo 'test result: ok. 1 passed; 0 failed; 2 ignored; rest'\n\
                bad|1|1|/|echo shown; pwd; echo 'left test c ... FAILED <12.000s>'; echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored; rest'; exit 3\n";
    let (status, text) = run(dir.path(), list, ["8", "50", RUNNABLE]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("bad: shown\nbad: /\n") && !text.contains("quiet"), "{text}");
    assert!(text.contains("1 passed, 0 failed, 2 ignored") && text.ends_with("*** FAILED: bad\n"), "{text}");
    assert!(text.contains("\nAll of them: ") && text.contains(", 1 passed, 1 failed, 2 ignored\n"), "{text}");
    let results = fs::read_to_string(dir.path().join("out/results")).unwrap();
    let [bad, good] = results.lines().collect::<Vec<_>>().try_into().unwrap();
    assert!(bad.starts_with("bad: test result: FAILED. 0 passed; 1 failed;"), "{results}");
    assert!(good.starts_with("good: test result: ok. 1 passed;"), "{results}");
    let times = fs::read_to_string(dir.path().join("out/times.tsv")).unwrap();
    assert_eq!(times, "bad\tc\t12\ngood\ta::b\t1.25\n");
    let [slow, quick] = ["bad c\n", "good a::b\n"].map(|name| text.find(name).expect("it is shown"));
    assert!(slow < quick, "{text}");
}

/// A run has thousands of cases.
#[test]
fn many_cases_and_no_failure_are_a_success() {
    let dir = tempfile::tempdir().unwrap();
    // The fields of a line are separated by `|`, but the command is the last one.
    let list = "many|1|1|.|seq 9000 | sed 's/.*/test a::case_number_& ... ok <0.&s>/'\n";
    let (status, text) = run(dir.path(), list, ["8", "50", RUNNABLE]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("\nAll of them: "), "{text}");
    let times = fs::read_to_string(dir.path().join("out/times.tsv")).unwrap();
    assert_eq!(times.lines().count(), 9000);
}

/// `tests/run` also ends those in sessions of their own, which it knows by a variable.
#[test]
fn a_signal_ends_every_process() {
    for signal in [Signal::INT, Signal::TERM] {
        let dir = tempfile::tempdir().unwrap();
        // Both ignore the polite signal.
        let list =
            "a|1|1|.|trap '' TERM; sleep 1000 & echo $! >child; echo $$ >pid.new; mv pid.new pid; wait\n";
        let mut child = start(dir.path(), list, ["8", "50", RUNNABLE]);
        until("it runs", || dir.path().join("pid").exists());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(if signal == Signal::INT { 130 } else { 143 }));
        for file in ["pid", "child"] {
            let pid: i32 = fs::read_to_string(dir.path().join(file)).unwrap().trim().parse().unwrap();
            until("it has ended", || test_kill_process(Pid::from_raw(pid).unwrap()).is_err());
        }
    }
}

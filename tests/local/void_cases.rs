//! Cases about real time are repeated if this machine stood still, and only then.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use dlm_fixtures::role;
use dlm_testkit::unless_stalled;

/// Returns what the process with this role wrote to the list of void cases. It writes to no other list.
fn void_lines(role: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("void");
    let mut process = role::process(module_path!(), role, dir.path());
    assert!(process.env("DLM_TEST_VOID", &list).status().unwrap().success());
    fs::read_to_string(list).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Not a test: the code of the processes that the tests start.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, _)) = role::asked() else { return };
    let mut runs = 0;
    let mut fails = |gap: Duration| {
        let case = || {
            runs += 1;
            panic!("as the case says");
        };
        catch_unwind(AssertUnwindSafe(|| unless_stalled::<()>(gap, case))).unwrap_err()
    };
    match role.as_str() {
        // No machine stands still for that long.
        "goes on" => {
            let panic = fails(Duration::from_secs(3600));
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"as the case says"));
            assert_eq!(runs, 1);
        }
        // Each machine does for that long.
        "always" => {
            fails(Duration::ZERO);
            assert_eq!(runs, 4);
        }
        "stopped once" => unless_stalled(Duration::from_millis(400), || {
            runs += 1;
            if runs == 1 {
                // A busy machine stops the threads late, and the end of a stop undoes one that has not begun.
                let stop = r#"kill -STOP $PPID
                    until [ "$(cat /proc/$PPID/task/*/status | grep -c '^State:.T')" = "$(ls /proc/$PPID/task | wc -l)" ]
                    do sleep 0.01; done
                    sleep 0.5; kill -CONT $PPID"#;
                assert!(Command::new("sh").args(["-c", stop]).status().unwrap().success());
                panic!("it came too late");
            }
        }),
        other => panic!("no such role: {other}"),
    }
}

#[test]
fn a_failure_on_a_machine_that_goes_on_is_a_failure() {
    assert_eq!(void_lines("goes on"), [""; 0]);
}

#[test]
fn a_void_case_is_repeated_three_times_at_most() {
    assert_eq!(void_lines("always").len(), 3);
}

#[test]
fn a_case_during_which_the_process_was_stopped_is_void_and_listed() {
    let lines = void_lines("stopped once");
    assert!(lines.iter().all(|line| line.contains("void") && line.contains("void_cases.rs:")), "{lines:?}");
    // On a busy machine it may stand still in a repetition too.
    assert!(!lines.is_empty());
}

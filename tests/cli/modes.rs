//! Locks in other modes and semaphores, in the shell.

use super::Shell;
use dlm_testkit::until;

#[test]
fn commands_that_read_run_together_and_one_that_writes_waits_for_them() {
    let shell = Shell::new();
    let hold = |option: &str| shell.run(&["acquire", "--ttl", "10m", option, "prices"]).ok().out;
    let (one, _updating) = (hold("--shared"), hold("--update"));
    assert!(one.starts_with("dlm4."));
    shell.run(&["run", "--shared", "--no-wait", "prices", "--", "true"]).ok();
    for option in ["--update", "--no-wait"] {
        let line = shell.run(&["run", "--wait", "1ms", option, "prices", "--", "true"]);
        if option == "--update" {
            assert!(line.fails_with(75).contains("(UPDATE)"));
        }
    }
    let line = shell.run(&["run", "--no-wait", "prices", "--", "true"]).fails_with(75);
    assert!(line.contains("is held by"), "{line}");
    let shown = shell.run(&["show", "--json", "prices"]).ok().out;
    assert!(shown.contains(r#""mode":"SHARED""#) && shown.contains(r#""mode":"UPDATE""#), "{shown}");
    assert!(!shown.contains("permit"), "{shown}");
    for command in ["renew", "release"] {
        shell.run(&[command, one.trim()]).ok();
    }
    let line = shell.run(&["run", "--shared", "--update", "prices", "--", "true"]).fails_with(64);
    assert!(line.contains("--shared") && line.contains("--update"), "{line}");
    // Several have it, so it is no fence.
    let script = "echo ${DLM_FENCE-none}";
    let out = shell.run(&["run", "--shared", "prices", "--", "sh", "-c", script]).ok().out;
    assert_eq!(out, "none\n");
}

#[test]
fn at_most_as_many_commands_run_as_the_semaphore_has_permits() {
    let shell = Shell::new();
    let script =
        "echo $DLM_LOCK $DLM_PERMIT $DLM_FENCE >out.$DLM_PERMIT; while [ ! -e go ]; do sleep 0.05; done";
    let start = || shell.start(&["run", "--permits", "2", "licences", "--", "sh", "-c", script]);
    let commands = [start(), start()];
    for permit in ["0", "1"] {
        let file = shell.path(&format!("out.{permit}"));
        let read = || std::fs::read_to_string(&file).unwrap_or_default();
        until("the command has written", || read().ends_with('\n'));
        let line = read();
        let words: Vec<_> = line.split(' ').collect();
        assert!(words[..2] == ["licences", permit] && words[2].trim().parse::<u64>().is_ok(), "{line}");
    }
    let line = shell.run(&["acquire", "--no-wait", "--permits", "2", "licences"]).fails_with(75);
    assert!(line.contains("(PERMIT "), "{line}");
    let line = shell.run(&["acquire", "--no-wait", "--permits", "3", "licences"]).fails_with(64);
    assert!(line.contains('3') && line.contains("2: so many has semaphore"), "{line}");
    let shown = shell.run(&["semaphore", "licences"]).ok().out;
    let rows: Vec<_> =
        shown.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>()).collect();
    assert_eq!(rows[1..3], [["permits", "2"], ["free", "0"]]);
    assert!(shown.contains("(PERMIT 0)") && shown.contains("(PERMIT 1)"), "{shown}");
    std::fs::write(shell.path("go"), "").unwrap();
    for command in commands {
        command.finish().ok();
    }
    let shown = shell.run(&["semaphore", "--resize", "3", "--json", "licences"]).ok().out;
    assert!(shown.contains(r#""free":3,"holders":[],"permits":3"#), "{shown}");
    let taken = shell.run(&["acquire", "--json", "--permits", "3", "licences"]).ok().out;
    assert!(taken.contains(r#""mode":"PERMIT""#) && taken.contains(r#""permit":0"#), "{taken}");
    let shown = shell.run(&["show", "licences"]).ok().out;
    assert!(shown.contains("mode  PERMIT 0"), "{shown}");
    shell.run(&["semaphore", "--resize", "3", "no such"]).fails_with(66);
    assert!(shell.run(&["semaphore", "no such"]).ok().out.contains("not known"));
    for wrong in ["0", "257", "x"] {
        shell.run(&["run", "--permits", wrong, "a", "--", "true"]).fails_with(64);
    }
    let two = ["run", "--permits", "2", "--lock", "a", "--lock", "b", "--", "true"];
    assert!(shell.run(&two).fails_with(64).contains("one semaphore"));
}

/// A `dlm` that would wait for the one around it says so before it waits, also if it is not a child of it.
#[test]
fn a_command_learns_at_once_that_the_dlm_around_it_holds_what_it_asks_for() {
    let shell = Shell::new();
    let dlm = env!("CARGO_BIN_EXE_dlm");
    let inside = |outer: &[&str], inner: &str| {
        let script = format!("{dlm} run --wait 10m {inner} -- true; echo $?");
        let args = [&["run"], outer, &["job", "--", "sh", "-c", &script]].concat();
        shell.run(&args).ok()
    };
    for (outer, inner, status) in [
        (&[][..], "job", "75"),
        (&[][..], "--shared job", "75"),
        (&["--shared"][..], "job", "75"),
        (&["--shared"][..], "--shared job", "0"),
        (&["--permits", "1"][..], "--permits 1 job", "75"),
        (&["--permits", "2"][..], "--permits 2 job", "0"),
        (&[][..], "other", "0"),
        (&[][..], "DC#local#dlm#job", "75"),
    ] {
        if outer.first() == Some(&"--permits") {
            // Each number is another semaphore here.
            shell.run(&["semaphore", "--resize", outer[1], "job"]);
        }
        let done = inside(outer, inner);
        assert_eq!(done.out.trim(), status, "{outer:?} {inner}: {}", done.err);
        assert_eq!(
            done.err.contains("it waits for itself"),
            status == "75",
            "{outer:?} {inner}: {}",
            done.err
        );
    }
    // It is two of them, of which each has its lines.
    let innermost = format!("{dlm} run other -- {dlm} run --wait 10m job -- true; echo $?");
    let done = shell.run(&["run", "job", "--", "sh", "-c", &innermost]).ok();
    assert_eq!(done.out.trim(), "75", "{}", done.err);
    // One that goes on when the outer one has ended, waits like any other.
    let left = format!(
        "(while [ ! -e go ]; do sleep 0.05; done; {dlm} run --no-wait job -- true; echo $? >left) >/dev/null 2>&1 &"
    );
    shell.run(&["run", "job", "--", "sh", "-c", &left]).ok();
    std::fs::write(shell.path("go"), "").unwrap();
    until("the process that was left has ended", || {
        std::fs::read_to_string(shell.path("left")).is_ok_and(|text| text == "0\n")
    });
}

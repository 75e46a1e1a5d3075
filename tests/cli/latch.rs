//! `dlm latch`: counts that processes share.

use dlm_testkit::until;
use rustix::process::{Pid, Signal};

use super::{Shell, is_running};

#[test]
fn a_latch_opens_for_whoever_waits_when_all_have_come() {
    let shell = Shell::new();
    shell.run(&["latch", "create", "loaded", "2"]).ok();
    let waiting = shell.start(&["latch", "await", "loaded"]);
    for left in ["2", "1"] {
        assert_eq!(shell.run(&["latch", "count", "loaded"]).ok().out, format!("{left}\n"));
        assert_eq!(shell.run(&["latch", "down", "loaded"]).ok().out, "");
    }
    assert_eq!(waiting.finish().ok().out, "");
    assert_eq!(shell.json(&["--json", "latch", "await", "loaded"])["open"], true);
    assert_eq!(shell.json(&["--json", "latch", "count", "loaded"])["count"], 0);
    shell.run(&["latch", "up", "loaded"]).ok();
    assert_eq!(shell.json(&["--json", "latch", "count", "loaded"])["open"], false);
}

#[test]
fn a_latch_that_is_not_open_in_time_is_75() {
    let shell = Shell::new();
    shell.run(&["latch", "create", "loaded", "2"]).ok();
    let line = shell.run(&["latch", "await", "--timeout", "100ms", "loaded"]).fails_with(75);
    assert!(line.contains("loaded") && line.contains("--timeout"), "{line}");
    let done = shell.run(&["latch", "await", "--timeout", "0s", "--json", "loaded"]);
    let told: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&told["open"], done.status.code()), (&false.into(), Some(75)));
}

#[test]
fn a_latch_that_exists_is_73_and_one_that_does_not_66() {
    let shell = Shell::new();
    shell.run(&["latch", "create", "a", "2"]).ok();
    shell.run(&["latch", "create", "a", "5"]).fails_with(73);
    assert_eq!(shell.run(&["latch", "count", "a"]).ok().out, "2\n", "the count changed");
    for verb in ["down", "up", "count", "pending", "await"] {
        shell.run(&["latch", verb, "b"]).fails_with(66);
    }
    shell.run(&["latch", "create", "--ttl", "1ms", "b", "1"]).ok();
    until("the latch has expired", || shell.run(&["latch", "count", "b"]).status.code() == Some(66));
}

#[test]
fn a_latch_is_reset_deleted_and_listed() {
    let shell = Shell::new();
    for verb in [&["reset", "a", "3"][..], &["rm", "a"]] {
        shell.run(&[&["latch"], verb].concat()).fails_with(66);
    }
    let none = shell.run(&["latch", "ls"]).ok();
    assert!(none.out.is_empty() && none.err.contains("has no latch of client"), "{}", none.err);
    shell.run(&["latch", "create", "a", "--for", "x"]).ok();
    shell.run(&["--farm", "dc2", "latch", "create", "a", "7"]).ok();
    shell.run(&["latch", "create", "b", "1"]).ok();
    shell.run(&["latch", "down", "--as", "x", "a"]).ok();
    assert_eq!(shell.json(&["--json", "latch", "reset", "a", "--for", "x", "--for", "y"])["count"], 2);
    assert_eq!(shell.run(&["latch", "pending", "a"]).ok().out, "x\ny\n");
    shell.run(&["latch", "reset", "b", "4"]).ok();
    let mut listed: Vec<_> = shell.run(&["latch", "ls"]).ok().out.lines().map(str::to_owned).collect();
    listed.sort();
    let farm = shell.json(&["--json", "latch", "count", "a"])["farm"].as_str().unwrap().to_owned();
    assert!(
        listed.len() == 2 && listed[0].contains("dc2: 7") && listed[0].contains(&format!("{farm}: 2")),
        "{listed:?}"
    );
    let told = shell.json(&["--json", "latch", "ls", "b"]);
    assert_eq!((told["counts"][&farm].as_i64(), told["record"].is_null()), (Some(4), true));
    assert_eq!(shell.json(&["--json", "latch", "rm", "b"])["deleted"], true);
    assert_eq!(shell.run(&["latch", "ls", "b"]).ok().out, "");
    shell.run(&["latch", "count", "b"]).fails_with(66);
    for verb in [&["reset", "a"][..], &["reset", "a", "3", "--for", "x"], &["reset", "a", "-1"]] {
        shell.run(&[&["latch"], verb].concat()).fails_with(64);
    }
}

#[test]
fn participants_count_once_and_those_missing_are_named() {
    let shell = Shell::new();
    shell.run(&["latch", "create", "loaded", "--for", "b", "--for", "a"]).ok();
    assert_eq!(shell.run(&["latch", "pending", "loaded"]).ok().out, "a\nb\n");
    for counted in [true, false, false] {
        let told = shell.json(&["--json", "latch", "down", "--as", "a", "loaded"]);
        assert_eq!(told["counted"], counted);
    }
    // A name that is spelt wrong, and a count without a name.
    let line = shell.run(&["latch", "down", "--as", "B", "loaded"]).fails_with(64);
    assert!(
        line.contains("participant \"B\"") && line.contains("waits for named participants: \"b\""),
        "{line}"
    );
    for verb in ["down", "up"] {
        assert!(shell.run(&["latch", verb, "loaded"]).fails_with(64).contains("--as"));
    }
    assert_eq!(shell.run(&["latch", "count", "loaded"]).ok().out, "1\n");
    let told = shell.json(&["--json", "latch", "pending", "loaded"]);
    assert_eq!((&told["pending"], &told["arrived"]), (&["b"][..].into(), &["a"][..].into()));
    shell.run(&["latch", "down", "--as", "b", "loaded"]).ok();
    assert_eq!(shell.run(&["latch", "pending", "loaded"]).ok().out, "");
    shell.run(&["latch", "await", "loaded"]).ok();
}

#[test]
fn each_farm_counts_for_itself_and_xdc_reads_the_sum() {
    let shell = Shell::new();
    for (farm, count) in [("dc1", "1"), ("dc2", "2")] {
        shell.run(&["--farm", farm, "latch", "create", "a", count]).ok();
    }
    let count = |farm, level| shell.run(&["--farm", farm, "latch", "count", "--level", level, "a"]).ok().out;
    assert_eq!([count("dc1", "dc"), count("dc2", "dc"), count("dc1", "xdc")], ["1\n", "2\n", "3\n"]);
    shell.run(&["--store", "hbase+thrift://127.0.0.1:1/t", "latch", "count", "a"]).fails_with(64);
}

#[test]
fn bad_input_for_a_latch_is_64() {
    let shell = Shell::new();
    let long = "x".repeat(256);
    let cases: &[&[&str]] = &[
        &[],
        &["create", "a"],
        &["create", "a", "1", "--for", "x"],
        &["create", "a", "many"],
        &["create", "a", "--", "-1"],
        &["create", "a", "--for", "x", "--for", "x"],
        &["create", "a", "--for", &long],
        &["create", "a", "1", "--ttl", "0s"],
        &["create", "", "1"],
        &["down", "a", "--as", ""],
        &["await", "a", "--poll", "1ms"],
        &["await", "a", "--timeout", "soon"],
        &["count", "a", "--level", "all"],
    ];
    for args in cases {
        shell.run(&[&["latch"], *args].concat()).fails_with(64);
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_latch() {
    let shell = Shell::new();
    shell.run(&["latch", "create", "a", "1"]).ok();
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut waiting = shell.start(&["latch", "await", "a"]);
        let pid = Pid::from_raw(waiting.child().id() as i32).unwrap();
        // `dlm` catches signals before it waits. When a background thread runs, it waits.
        until("dlm waits", || {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
            names.into_iter().any(|name| name.starts_with("dlm-bg"))
        });
        waiting.signal(signal);
        waiting.finish().ends_with(status);
        assert!(!is_running(pid));
    }
}

#[test]
fn a_latch_that_does_not_exist_yet_can_be_waited_for() {
    let shell = Shell::new();
    let waiting = shell.start(&["latch", "await", "--until-created", "--poll", "20ms", "l"]);
    std::thread::sleep(std::time::Duration::from_millis(100));
    shell.run(&["latch", "create", "l", "1"]).ok();
    shell.run(&["latch", "down", "l"]).ok();
    waiting.finish().ok();
    shell.run(&["latch", "await", "other"]).fails_with(66);
    let args = ["latch", "await", "--until-created", "--timeout", "200ms", "other"];
    assert!(shell.run(&args).fails_with(75).contains("did not open"));
    let mut waiting = shell.start(&["latch", "await", "--until-created", "other"]);
    super::catches(&mut waiting, rustix::process::Signal::TERM);
    waiting.signal(rustix::process::Signal::TERM);
    waiting.finish().fails_with(143);
}

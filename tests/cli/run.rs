//! `dlm run`: the command, its lock and its signals.

use std::process::{Command, Stdio};
use std::time::Duration;

use dlm_testkit::{skipped, unless_stalled, until};
use rustix::process::{Pid, Signal};

use super::{Running, Shell, is_running, line_in};

/// A script that writes its process id and that of a child to files, and runs until it is ended.
const LONG: &str = "sleep 300 >/dev/null 2>&1 & echo $! >child; echo $$ >pid; wait";

fn no_longer_run(pids: &[Pid]) {
    for pid in pids {
        until("the command's processes end", || !is_running(*pid));
    }
}

#[test]
fn the_command_gets_name_fence_deadline_input_and_output_and_its_status_is_passed_on() {
    let shell = Shell::new();
    let script = r#"read line; echo "$line $DLM_LOCK $DLM_FENCE $DLM_DEADLINE_MS"; echo oops >&2; exit 3"#;
    let mut command = shell.dlm(&["run", "--ttl", "600s", "the lock", "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"hello\n").unwrap();
    let done = Running(Some(child)).finish().ends_with(3);
    assert_eq!(done.err, "oops\n");
    let rest = done.out.strip_prefix("hello the lock ").expect(&done.out);
    let numbers: Vec<u64> = rest.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let left = numbers[1] as i128 - now.as_millis() as i128;
    assert!((1..=600_010).contains(&left), "{left}");
    let again = shell.run(&["run", "the lock", "--", "sh", "-c", "echo $DLM_FENCE"]).ok().out;
    assert!(again.trim().parse::<u64>().unwrap() > numbers[0]);
    assert!(!shell.is_held("the lock"));
}

#[test]
fn a_command_ended_by_a_signal_is_128_and_the_signal() {
    let shell = Shell::new();
    let done = shell.run(&["run", "x", "--", "sh", "-c", "kill -USR1 $$"]).ends_with(138);
    assert_eq!(done.err, "");
    shell.run(&["run", "x", "--", "sh", "-c", "kill -KILL $$"]).ends_with(137);
    assert!(!shell.is_held("x"));
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_is_no_program_126() {
    let shell = Shell::new();
    std::fs::write(shell.path("data"), "x").unwrap();
    assert!(shell.run(&["run", "x", "--", "no-such-command"]).fails_with(127).contains("no-such-command"));
    assert!(shell.run(&["run", "x", "--", "./data"]).fails_with(126).contains("data"));
    assert!(!shell.is_held("x"));
}

#[test]
fn commands_of_several_processes_exclude_each_other() {
    let shell = Shell::new();
    std::fs::write(shell.path("counter"), "0\n").unwrap();
    // Not atomic, and so slow that two at a time would lose an increment.
    let script = "n=$(cat counter); sleep 0.03; echo $((n + 1)) >counter";
    let start = |_| shell.start(&["run", "--retry", "5ms", "counter", "--", "sh", "-c", script]);
    for _ in 0..3 {
        let running: Vec<Running> = (0..6).map(start).collect();
        running.into_iter().for_each(|one| drop(one.finish().ok()));
    }
    assert_eq!(std::fs::read_to_string(shell.path("counter")).unwrap(), "18\n");
}

#[test]
fn a_command_may_run_for_longer_than_the_ttl() {
    let script = "echo go >began; while [ ! -e done ]; do sleep 0.1; done";
    // `dlm` has to renew the lease in time.
    unless_stalled(Duration::from_secs(1), || {
        let shell = Shell::new();
        let running = shell.start(&["run", "--ttl", "10s", "x", "--", "sh", "-c", script]);
        shell.content("began");
        std::thread::sleep(Duration::from_secs(12));
        shell.run(&["run", "--no-wait", "x", "--", "true"]).fails_with(75);
        std::fs::write(shell.path("done"), "").unwrap();
        assert_eq!(running.finish().ok().err, "");
        assert!(!shell.is_held("x"));
    });
}

#[test]
fn signals_sent_to_dlm_reach_the_command_and_its_answer_counts() {
    let shell = Shell::new();
    let signals = [
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ];
    for (signal, name) in signals {
        let script = format!("trap 'exit 42' {name}; echo $$ >pid.{name}; while :; do sleep 0.02; done");
        let mut running = shell.start(&["run", "x", "--", "sh", "-c", &script]);
        shell.content(&format!("pid.{name}"));
        running.signal(signal);
        running.finish().ends_with(42);
        assert!(!shell.is_held("x"));
    }
}

#[test]
fn what_a_shell_started_does_not_go_on_after_the_shell_was_told_to_end() {
    let shell = Shell::new();
    let mut running = shell.start(&["run", "x", "--", "sh", "-c", LONG]);
    let pids = [shell.pid_in("pid"), shell.pid_in("child")];
    running.signal(Signal::TERM);
    running.finish().ends_with(143);
    assert!(!pids.iter().any(|pid| is_running(*pid)), "the lock is free, but the work goes on");
    assert!(!shell.is_held("x"));
}

#[test]
fn what_a_command_leaves_in_the_background_is_not_waited_for() {
    let shell = Shell::new();
    let script = "sleep 300 >/dev/null 2>&1 & echo $! >child";
    shell.run(&["run", "x", "--", "sh", "-c", script]).ok();
    let left = shell.pid_in("child");
    assert!(is_running(left));
    rustix::process::kill_process(left, Signal::KILL).unwrap();
}

/// Returns a command that runs `script` as the first process of a PID namespace, with the `/proc` of this one. Its
/// arguments are those of `dlm` with `args`. `None` if that is not possible here.
fn with_a_foreign_proc(shell: &Shell, script: &str, args: &[&str]) -> Option<Command> {
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-c"]);
        unshare
    };
    let works = unshare().arg("echo 1000 >/proc/sys/kernel/ns_last_pid").output();
    if !works.as_ref().is_ok_and(|done| done.status.success()) {
        skipped("unshare", format!("only root can have a PID namespace here: {works:?}"));
        return None;
    }
    let dlm = shell.dlm(args);
    let mut command = unshare();
    command.arg(script).arg("sh").arg(dlm.get_program()).args(dlm.get_args());
    for (key, value) in dlm.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.current_dir(shell.dir.path());
    Some(command)
}

/// The numbers in its `/proc` are those of other processes.
#[test]
fn beside_the_proc_of_another_pid_namespace_it_signals_no_strangers() {
    let shell = Shell::new();
    // In the new namespace, `dlm` gets the number that this process has here, and a stranger that of a child.
    let script = r#"
        numbers=/proc/sys/kernel/ns_last_pid
        echo $(($STRANGER - 1)) >$numbers
        sleep 300 &
        test $! = $STRANGER || exit 99
        echo $(($ITSELF - 1)) >$numbers
        "$@"
        echo dlm $?
        kill -KILL $STRANGER
        wait $STRANGER
        echo stranger $?"#;
    let told = "test $PPID = $ITSELF || exit 99; kill -TERM $PPID; exec sleep 300";
    let Some(mut command) = with_a_foreign_proc(&shell, script, &["run", "x", "--", "sh", "-c", told]) else {
        return;
    };
    let mut child = Command::new("sleep").arg("300").spawn().unwrap();
    command.env("STRANGER", child.id().to_string()).env("ITSELF", std::process::id().to_string());
    let done = command.output().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(out, "dlm 143\nstranger 137\n", "{err}");
    assert!(!shell.is_held("x"));
}

#[test]
fn as_the_first_process_of_a_pid_namespace_it_ends_with_its_command() {
    let shell = Shell::new();
    let told = "test $PPID = 1 || exit 99; kill -TERM 1; exec sleep 300";
    let without =
        r#"mkdir -p proc/sys && mount --bind /proc/sys proc/sys && mount --rbind proc /proc && exec "$@""#;
    for script in [r#"exec "$@""#, without] {
        let args = ["run", "x", "--", "sh", "-c", told];
        let Some(mut command) = with_a_foreign_proc(&shell, script, &args) else { return };
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(143), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(!shell.is_held("x"));
    }
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let shell = Shell::new();
    let script = format!(
        "trap '' HUP; exec {} run x -- sh -c 'echo $$ >pid; while [ ! -e done ]; do sleep 0.02; done'",
        env!("CARGO_BIN_EXE_dlm")
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).env("DLM_STORE", &shell.store).current_dir(shell.dir.path());
    let mut running = Running(Some(command.spawn().unwrap()));
    let pid = shell.pid_in("pid");
    running.signal(Signal::HUP);
    rustix::process::kill_process(pid, Signal::HUP).unwrap();
    std::fs::write(shell.path("done"), "").unwrap();
    running.finish().ok();
}

/// Much longer than a test takes: a lock that is free sooner was taken over.
const DAY: [&str; 2] = ["--ttl", "1d"];

#[test]
fn a_killed_dlm_takes_its_command_along_and_the_next_gets_the_lock_at_once() {
    let shell = Shell::new();
    let [ttl, day] = DAY;
    let mut running = shell.start(&["run", ttl, day, "x", "--", "sh", "-c", "echo $$ >pid; exec sleep 300"]);
    let pid = shell.pid_in("pid");
    shell.run(&["run", "--no-wait", "x", "--", "true"]).fails_with(75);
    running.signal(Signal::KILL);
    no_longer_run(&[pid]);
    shell.run(&["run", "--wait", "60s", "--retry", "50ms", "x", "--", "true"]).ok();
    assert!(!shell.is_held("x"));
}

/// The command is killed with `dlm`, but not what it has started.
#[test]
fn the_lock_of_a_killed_dlm_lasts_as_long_as_any_process_of_its_command() {
    let shell = Shell::new();
    let [ttl, day] = DAY;
    let mut running = shell.start(&["run", ttl, day, "x", "--", "sh", "-c", LONG]);
    let [pid, child] = [shell.pid_in("pid"), shell.pid_in("child")];
    running.signal(Signal::KILL);
    no_longer_run(&[pid]);
    for _ in 0..5 {
        assert!(is_running(child));
        shell.run(&["run", "--no-wait", "x", "--", "true"]).fails_with(75);
    }
    rustix::process::kill_process(child, Signal::KILL).unwrap();
    shell.run(&["run", "--wait", "60s", "--retry", "50ms", "x", "--", "true"]).ok();
}

#[test]
fn a_lock_that_others_must_wait_for_is_not_taken_over() {
    let shell = Shell::new();
    let [ttl, day] = DAY;
    let delayed = format!("{}?lock_delay=1s", shell.store);
    let script = ["--", "sh", "-c", "echo $$ >pid; exec sleep 300"];
    let no_takeover = ["run", "--store", &shell.store, ttl, day, "--no-takeover", "x"];
    let with_delay = ["run", "--store", &delayed, ttl, day, "--wait=0s", "y"];
    for args in [no_takeover, with_delay] {
        let lock = args[6];
        let mut running = shell.start(&[&args[..], &script].concat());
        let pid = shell.pid_in("pid");
        running.signal(Signal::KILL);
        no_longer_run(&[pid]);
        for _ in 0..5 {
            shell.run(&["run", "--no-wait", lock, "--", "true"]).fails_with(75);
        }
        std::fs::remove_file(shell.path("pid")).unwrap();
    }
}

/// `dlm acquire` ends at once, and its lease lasts.
#[test]
fn a_lease_that_was_printed_outlives_its_process() {
    let shell = Shell::new();
    let lease = shell.acquire_for("x", "1d");
    for _ in 0..5 {
        shell.run(&["acquire", "--no-wait", "x"]).fails_with(75);
    }
    shell.run(&["renew", &lease]).ok();
    assert!(shell.is_held("x"));
    shell.run(&["release", &lease]).ok();
}

#[test]
fn a_killed_dlm_without_takeover_leaves_its_lock_until_the_ttl_ends() {
    let shell = Shell::new();
    let script = "echo $$ >pid; exec sleep 300";
    let (_running, pids) = signalled(&shell, &["--no-takeover"], script, ["pid"], Signal::KILL);
    no_longer_run(&pids);
    shell.run(&["run", "--wait", "60s", "--retry", "50ms", "x", "--", "true"]).ok();
}

/// Starts `dlm run` with a short TTL, and sends it this signal when the command has written these files. Returns the
/// process ids in them. A busy machine may lose the lease before that; then it is tried with a longer TTL.
fn signalled<const N: usize>(
    shell: &Shell,
    options: &[&str],
    script: &str,
    files: [&str; N],
    signal: Signal,
) -> (Running, [Pid; N]) {
    for ttl in ["1s", "5s", "20s"] {
        let tail: &[&str] = &["x", "--", "sh", "-c", script];
        let mut running = shell.start(&[&["run", "--ttl", ttl][..], options, tail].concat());
        let are_written = || files.iter().all(|file| line_in(&shell.path(file)));
        let has_ended = |running: &mut Running| running.child().try_wait().unwrap().is_some();
        until("the command has begun", || are_written() || has_ended(&mut running));
        if !has_ended(&mut running) {
            running.signal(signal);
            let pids = files.map(|file| shell.pid_in(file));
            if signal == Signal::KILL || pids.iter().all(|pid| is_running(*pid)) {
                return (running, pids);
            }
        }
        drop(running);
        for file in files {
            let _ = std::fs::remove_file(shell.path(file));
        }
    }
    panic!("a lease of 20 s was lost before its command had begun");
}

/// `dlm` is stopped for longer than its lease, and another process acquires the lock.
#[test]
fn a_command_whose_lease_was_lost_is_ended_with_all_it_started_and_the_next_holder_is_left_alone() {
    let shell = Shell::new();
    let stubborn = format!("trap '' TERM; {LONG}");
    for script in [LONG, &stubborn] {
        let (mut running, pids) = signalled(&shell, &[], script, ["pid", "child"], Signal::STOP);
        let next = shell.acquire("x");
        assert!(is_running(pids[0]), "the command ended while dlm was stopped");
        running.signal(Signal::CONT);
        let line = running.finish().fails_with(77);
        assert!(line.contains("lease") && line.contains("ended"), "{line}");
        assert!(!pids.iter().any(|pid| is_running(*pid)));
        assert!(shell.is_held("x"), "the next holder lost its lock");
        shell.run(&["release", &next]).ok();
        for file in ["pid", "child"] {
            std::fs::remove_file(shell.path(file)).unwrap();
        }
    }
}

/// A store that is deleted does not end the lease at once, but the command must end before the lease does.
#[test]
fn a_command_is_ended_before_the_lease_ends_when_the_store_stays_away() {
    let script = format!("trap 'date +%s%3N >ended; exit 0' TERM; echo $DLM_DEADLINE_MS >deadline; {LONG}");
    // `dlm` and the shell have to run within the last quarter of the TTL.
    unless_stalled(Duration::from_secs(1), || {
        let shell = Shell::new();
        let running = shell.start(&["run", "--ttl", "30s", "x", "--", "sh", "-c", &script]);
        let pids = [shell.pid_in("pid"), shell.pid_in("child")];
        std::fs::remove_dir_all(shell.path("store")).unwrap();
        let done = running.finish().ends_with(77);
        assert!(
            done.err.contains("not renewed yet") && done.err.contains("could not be renewed"),
            "{}",
            done.err
        );
        assert!(!pids.iter().any(|pid| is_running(*pid)));
        let told: u64 = shell.content("ended").trim().parse().unwrap();
        let deadline: u64 = shell.content("deadline").trim().parse().unwrap();
        // TERM arrives a quarter of the TTL before the end and not much earlier, because the store may come back.
        assert!((deadline - 8000..deadline).contains(&told), "{told} {deadline}");
    });
}

#[test]
fn several_locks_are_acquired_together_and_each_has_its_variables() {
    let shell = Shell::new();
    let script = r#"echo "$DLM_LOCK $DLM_LOCK_2 $DLM_LOCK_3|$DLM_FENCE $DLM_FENCE_2 $DLM_FENCE_3"; echo go >began; while [ ! -e over ]; do sleep 0.05; done"#;
    let locks = ["--lock", "b", "--lock", "a"];
    let running = shell.start(&[&["run"][..], &locks, &["c", "--", "sh", "-c", script]].concat());
    shell.content("began");
    for lock in ["a", "b", "c"] {
        shell.run(&["run", "--no-wait", lock, "--", "true"]).fails_with(75);
    }
    shell.run(&["run", "--no-wait", "--lock", "d", "--lock", "b", "--", "true"]).fails_with(75);
    assert!(!shell.is_held("d"), "all or none");
    let held = ["c", "b", "a"]
        .map(|lock| shell.json(&["show", "--json", lock])["fence"].as_str().unwrap().to_owned());
    std::fs::write(shell.path("over"), "").unwrap();
    let out = running.finish().ok().out;
    let (names, fences) = out.trim_end().split_once('|').unwrap();
    assert_eq!(names, "c b a");
    assert_eq!(fences, held.join(" "), "each fence with the name of its lock");
    assert!(!["a", "b", "c"].into_iter().any(|lock| shell.is_held(lock)));
    // A run within it has one lock, and none of the other names.
    let inner = format!("{} run d -- env", env!("CARGO_BIN_EXE_dlm"));
    let out = shell.run(&[&["run"][..], &locks, &["--", "sh", "-c", &inner]].concat()).ok().out;
    assert!(out.contains("DLM_LOCK=d") && !out.contains("DLM_LOCK_2"), "{out}");
    shell.run(&["run", "--", "true"]).fails_with(64);
    shell.run(&["run", "--lock", "a", "a", "--", "true"]).fails_with(64);
}

/// One of several locks is lost: its holder was broken.
#[test]
fn the_loss_of_one_of_several_locks_ends_the_command() {
    let shell = Shell::new();
    let script = "echo $$ >pid; exec sleep 300";
    let running =
        shell.start(&["run", "--ttl", "3s", "--lock", "a", "--lock", "b", "--", "sh", "-c", script]);
    let pid = shell.pid_in("pid");
    shell.run(&["break", "--yes", "--reason", "test", "a"]).ok();
    let line = running.finish().fails_with(77);
    assert!(line.contains("#a") && line.contains("ended"), "{line}");
    no_longer_run(&[pid]);
    assert!(!shell.is_held("b"));
    // One that nobody has noticed when the command ends.
    let broken = format!("{} break --yes --reason test a", env!("CARGO_BIN_EXE_dlm"));
    let args = ["run", "--ttl", "1h", "--lock", "b", "--lock", "a", "--", "sh", "-c", &broken];
    let said = shell.run(&[&["--json"][..], &args].concat()).ends_with(77).err;
    assert!(said.contains("#a") && said.contains(r#""code":"LEASE_LOST""#), "{said}");
    assert!(!shell.is_held("b"));
}

#[test]
fn a_minimum_hold_keeps_the_lock_after_the_command() {
    let shell = Shell::new();
    let began = std::time::Instant::now();
    let running = shell.start(&["run", "--min-hold", "3s", "x", "--", "sh", "-c", "echo go >began; exit 3"]);
    shell.content("began");
    running.finish().ends_with(3);
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(!shell.is_held("x"), "it was not released");
    shell.run(&["run", "--ttl", "1m", "--min-hold", "2m", "y", "--", "true"]).fails_with(64);
    // A signal ends the wait, and the lock stays.
    let mut running = shell.start(&["run", "--min-hold", "80s", "z", "--", "sh", "-c", "echo go >over"]);
    shell.content("over");
    shell.run(&["run", "--no-wait", "z", "--", "true"]).fails_with(75);
    std::thread::sleep(Duration::from_millis(200));
    running.signal(Signal::TERM);
    let _ = running.finish();
    assert!(shell.is_held("z"));
}

#[test]
fn a_wait_may_last_for_ever() {
    let shell = Shell::new();
    let lease = shell.acquire("x");
    let waiting = shell.start(&["run", "--wait", "forever", "--retry", "20ms", "x", "--", "echo", "ran"]);
    std::thread::sleep(Duration::from_millis(100));
    shell.run(&["release", &lease]).ok();
    assert_eq!(waiting.finish().ok().out, "ran\n");
    assert!(shell.run(&["run", "--wait", "never", "x", "--", "true"]).fails_with(64).contains("forever"));
}

//! `dlm` on a terminal, and in a process whose signals and limits are unusual.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dlm_testkit::{skipped, unless_stalled, until};
use rustix::process::{Pid, Signal, kill_process};

use super::{Running, Shell, catches, catches_as, is_running};

const DLM: &str = env!("CARGO_BIN_EXE_dlm");

/// Runs a line of the shell on a terminal of its own, as the leader of its session. Killing the returned process closes the
/// terminal. What is written to its input is typed.
fn on_terminal(shell: &Shell, line: &str) -> Option<Running> {
    let mut command = Command::new("script");
    command.args(["-q", "-f", "-e", "-c", line, "/dev/null"]).env("SHELL", "/bin/sh");
    for (key, value) in shell.dlm(&[]).get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.current_dir(shell.dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match command.spawn() {
        Ok(child) => Some(Running(Some(child))),
        Err(error) => {
            skipped("script", error);
            None
        }
    }
}

fn have_ended(pids: &[Pid]) {
    until("they end", || !pids.iter().any(|pid| is_running(*pid)));
}

/// The kernel sends HUP to the leader of the session alone.
#[test]
fn a_command_ends_with_its_terminal() {
    let shell = Shell::new();
    let command = "trap 'echo hup >got; exit 3' HUP; echo $$ >pid; while :; do sleep 0.05; done";
    let leader = format!(r#"echo $$ >dlm; exec {DLM} run x -- sh -c "$COMMAND""#);
    let beside = format!(r#"{DLM} run x -- sh -c "$COMMAND"; true"#);
    for (line, is_leader) in [(leader, true), (beside, false)] {
        let line = format!("COMMAND='{}'; {line}", command.replace('\'', r"'\''"));
        let Some(mut terminal) = on_terminal(&shell, &line) else { return };
        let mut pids = vec![shell.pid_in("pid")];
        if is_leader {
            pids.push(shell.pid_in("dlm"));
        }
        terminal.signal(Signal::KILL);
        have_ended(&pids);
        assert_eq!(shell.content("got"), "hup\n");
        until("the lock is free", || !shell.is_held("x"));
        for file in ["pid", "got"] {
            std::fs::remove_file(shell.path(file)).unwrap();
        }
    }
}

#[test]
fn whatever_waits_ends_with_its_terminal() {
    let shell = Shell::new();
    let _lease = shell.acquire("x");
    shell.run(&["latch", "create", "l", "1"]).ok();
    let verbs = [
        ("run x -- true", true),
        ("acquire x", true),
        ("elect x -- true", true),
        ("latch await l", true),
        ("demo --seconds 300", true),
        ("elect --observe x", false),
        ("top", false),
    ];
    let mut all = Vec::new();
    for (at, (verb, has_handler)) in verbs.iter().enumerate() {
        let line = format!("echo $$ >dlm.{at}; exec {DLM} {verb}");
        let Some(terminal) = on_terminal(&shell, &line) else { return };
        all.push((terminal, shell.pid_in(&format!("dlm.{at}")), *has_handler));
    }
    for (terminal, pid, has_handler) in &mut all {
        if *has_handler {
            super::catches_as(*pid, Signal::HUP);
        }
        terminal.signal(Signal::KILL);
    }
    have_ended(&all.iter().map(|(_, pid, _)| *pid).collect::<Vec<_>>());
    assert!(shell.is_held("x"));
}

/// The command has left the job, so Ctrl-C reaches only `dlm`. Otherwise it reaches both, and is not sent twice.
#[test]
fn a_key_reaches_the_command_once() {
    let shell = Shell::new();
    for own_session in [true, false] {
        let setsid = if own_session { "setsid" } else { "" };
        let command = "trap \"echo x >>got\" INT; echo $$ >pid; while [ ! -e over ]; do sleep 0.05; done";
        let Some(mut terminal) =
            on_terminal(&shell, &format!("exec {DLM} run x -- {setsid} sh -c '{command}'"))
        else {
            return;
        };
        shell.pid_in("pid");
        terminal.child().stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
        assert_eq!(shell.content("got"), "x\n");
        std::fs::write(shell.path("over"), "").unwrap();
        let _ = terminal.finish();
        assert_eq!(shell.content("got"), "x\n");
        for file in ["pid", "got", "over"] {
            std::fs::remove_file(shell.path(file)).unwrap();
        }
    }
}

/// Like [`Shell::dlm`], but with all signals blocked.
fn blocked(shell: &Shell, args: &[&str]) -> Running {
    let usual = shell.dlm(args);
    let mut command = Command::new("env");
    command.args(["--default-signal", "--block-signal"]).args(usual.get_args().skip(1));
    for (key, value) in usual.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.current_dir(shell.dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running(Some(command.spawn().unwrap()))
}

fn blocks(pid: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

#[test]
fn signals_that_were_blocked_at_the_start_end_a_command_and_whatever_waits() {
    let shell = Shell::new();
    let mut running = blocked(&shell, &["run", "x", "--", "sh", "-c", "echo $$ >pid; exec sleep 300"]);
    let command = shell.pid_in("pid");
    let dlm = Pid::from_raw(running.child().id() as i32).unwrap();
    let caught =
        [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::CHILD];
    // A process blocks every signal for as long as it makes another. That one may run before its parent goes on.
    until("neither blocks what dlm catches", || {
        !caught.iter().any(|signal| blocks(dlm, *signal) || blocks(command, *signal))
    });
    assert!(blocks(command, Signal::WINCH), "what dlm does not use stays as it was");
    running.signal(Signal::TERM);
    running.finish().ends_with(143);

    let _lease = shell.acquire("x");
    shell.run(&["latch", "create", "l", "1"]).ok();
    let waits: [&[&str]; 5] = [
        &["run", "x", "--", "true"],
        &["acquire", "x"],
        &["elect", "x", "--", "true"],
        &["latch", "await", "l"],
        &["demo", "--seconds", "300"],
    ];
    for args in waits {
        let mut running = blocked(&shell, args);
        catches(&mut running, Signal::TERM);
        running.signal(Signal::TERM);
        running.finish().ends_with(143);
    }
    for args in [&["elect", "--observe", "x"][..], &["top"]] {
        let mut running = blocked(&shell, args);
        running.signal(Signal::TERM);
        assert_eq!(running.finish().status.signal(), Some(Signal::TERM.as_raw()), "{args:?}");
    }
}

#[test]
fn a_signal_that_comes_as_soon_as_it_is_caught_is_not_lost() {
    if !Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success())
    {
        return skipped("strace", "strace is not installed, or may not trace");
    }
    let shell = Shell::new();
    let _lease = shell.acquire("x");
    let usual = shell.dlm(&["acquire", "x"]);
    let mut traced = Command::new("env");
    // The process stays in the kernel for a while after it has got a handler.
    traced.args([
        "--default-signal",
        "strace",
        "-o",
        "/dev/null",
        "-e",
        "inject=rt_sigaction:delay_exit=200000",
    ]);
    traced.args(usual.get_args().skip(1)).current_dir(shell.dir.path());
    for (key, value) in usual.get_envs() {
        match value {
            Some(value) => traced.env(key, value),
            None => traced.env_remove(key),
        };
    }
    traced.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(Some(traced.spawn().unwrap()));
    let strace = running.child().id();
    let children = format!("/proc/{strace}/task/{strace}/children");
    let is_dlm =
        |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "dlm\n");
    let traced = || {
        std::fs::read_to_string(&children).unwrap().split_whitespace().find(|pid| is_dlm(pid))?.parse().ok()
    };
    until("strace starts dlm", || traced().is_some());
    let dlm = Pid::from_raw(traced().unwrap()).unwrap();
    catches_as(dlm, Signal::TERM);
    kill_process(dlm, Signal::TERM).unwrap();
    running.finish().ends_with(143);
}

/// Under `ulimit -f`, a write beyond the limit ends a process that does not expect that (SIGXFSZ).
#[test]
fn a_file_that_may_not_grow_is_an_error_and_the_command_is_not_spared() {
    let shell = Shell::new();
    let lease = shell.acquire("x");
    // Only stores of groups are sure to be written by calls.
    let of_a_group = format!("embedded:{}?group=on", shell.dir.path().join("group").display());
    let groups_lease = shell.run(&["acquire", "x", "--store", &of_a_group]).ok().out;
    let limited = |args: &str, store: &str, lease: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -f 0; exec {DLM} {args}")]);
        command.env("DLM_STORE", store).env("LEASE", lease.trim()).current_dir(shell.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap())).finish()
    };
    for args in [
        "acquire y",
        "run y -- true",
        "renew $LEASE",
        "latch create l 1",
        "acquire y --store embedded:$PWD/new",
    ] {
        let done = limited(args, &of_a_group, &groups_lease);
        assert!(done.err.contains("File too large"), "{args}: {:?} {}", done.status, done.err);
        assert!(done.status.code().is_some_and(|code| [69, 74].contains(&code)), "{args}: {:?}", done.status);
    }
    // The file has its place already.
    limited("renew $LEASE", &shell.store, &lease).ok();
    shell.run(&["release", &lease]).ok();
    // The limit for the output, not for the store.
    let line = format!("ulimit -f 0; exec {DLM} show x >out");
    let mut limited = Command::new("sh");
    limited.args(["-c", &line]).env("DLM_STORE", &shell.store).current_dir(shell.dir.path());
    let done = limited.output().unwrap();
    assert_eq!(done.status.code(), Some(70), "{done:?}");
    let ignored = shell.run(&["run", "x", "--", "grep", "SigIgn", "/proc/self/status"]).ok().out;
    let mask = u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & 1 << (Signal::XFSZ.as_raw() - 1), 0, "the command ignores SIGXFSZ");
}

/// Returns what a terminal shows until it has this text.
fn shows(terminal: &mut Running, text: &str) -> String {
    let mut screen = terminal.child().stdout.take().unwrap();
    let (mut all, mut bytes) = (String::new(), [0; 4096]);
    while !all.contains(text) {
        let count = std::io::Read::read(&mut screen, &mut bytes).unwrap();
        assert_ne!(count, 0, "the terminal has shown only {all:?}");
        all += &String::from_utf8_lossy(&bytes[..count]);
    }
    all
}

#[test]
fn who_waits_on_a_terminal_sees_whom_for_and_how_long() {
    let shell = Shell::new();
    let _lease = shell.acquire("x");
    shell.run(&["latch", "create", "l", "--for", "eu", "--for", "us"]).ok();
    let waits = [
        ("run --wait 5m x -- true", ["waiting for lock", "is held by pid", "waits for another 29"]),
        ("acquire --wait forever x", ["waiting for lock", "is held by pid", "waits without limit"]),
        ("elect x -- true", ["waiting for lock", "is held by pid", "waits without limit"]),
        ("latch await l", ["waiting for latch", "2 count-downs are missing: eu, us", "waits without limit"]),
    ];
    let terminals: Vec<_> =
        waits.iter().filter_map(|(verb, _)| on_terminal(&shell, &format!("exec {DLM} {verb}"))).collect();
    for (mut terminal, (verb, texts)) in terminals.into_iter().zip(waits) {
        let all = shows(&mut terminal, "Ctrl-C ends the wait");
        assert!(texts.iter().all(|text| all.contains(text)), "{verb}: {all}");
    }
    // Nobody is told who does not wait, or has no terminal.
    let done = shell.run(&["run", "--wait", "2500ms", "x", "--", "true"]);
    assert!(!done.fails_with(75).contains("waiting for"));
}

#[test]
fn more_words_tell_what_happens_to_the_lock_and_each_call_to_the_store() {
    let shell = Shell::new();
    let told = |options: &str| {
        let args = ["run", "--ttl", "3s", options, "x", "--", "sleep", "1.5"];
        let args: Vec<_> = args.into_iter().filter(|arg| !arg.is_empty()).collect();
        shell.run(&args).ok().err
    };
    assert_eq!(told(""), "");
    let few = told("-v");
    for text in ["acquired after", ", fence ", "renewed; ", "released after"] {
        assert!(few.contains(text), "{text}: {few}");
    }
    assert!(!few.contains("debug:"), "{few}");
    let more = told("-vv");
    for text in ["acquired after", "debug: acquire of", ": ok, ", "debug: release of"] {
        assert!(more.contains(text), "{text}: {more}");
    }
    // Also without a terminal.
    let lease = shell.acquire("x");
    let waited = shell.run(&["run", "-v", "--wait", "3s", "x", "--", "true"]).ends_with(75).err;
    assert!(waited.contains("waiting for lock") && waited.contains("not acquired after"), "{waited}");
    shell.run(&["release", &lease]).ok();
}

fn has_thread(pid: Pid, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .any(|it| it.trim() == name)
}

fn is_stopped(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("State:\tT"))
}

/// Of two locks, the one that another process holds is in the way, and not the one that this process has already.
#[test]
fn who_waits_for_several_locks_sees_the_one_that_is_in_the_way() {
    let shell = Shell::new();
    let lease = shell.acquire("b");
    let waiting = shell.start(&["-v", "run", "--lock", "a", "--lock", "b", "--", "true"]);
    until("it has the first", || shell.is_held("a"));
    let dlm = Pid::from_raw(waiting.0.as_ref().unwrap().id() as i32).unwrap();
    // A thread has its name only after it has begun. If this one is not seen, its time is over all the same.
    let (mut seen, began) = (false, Instant::now());
    until("its line is due", || {
        let has = has_thread(dlm, "dlm-late-line");
        seen |= has || began.elapsed() > Duration::from_secs(5);
        seen && !has
    });
    shell.run(&["release", &lease]).ok();
    let said = waiting.finish().ok().err;
    let line = said.lines().find(|line| line.contains("waiting for lock")).unwrap_or_default();
    assert!(line.contains("#b") && line.contains("is held by"), "{said}");
}

/// A terminal with `stty tostop` stops a job in the background that writes to it.
#[test]
fn a_job_in_the_background_goes_on_waiting_and_writes_nothing() {
    let shell = Shell::new();
    let lease = shell.acquire("x");
    let line = format!("set -m; stty tostop; {DLM} run --wait 300s x -- touch ran & echo $! >pid; sleep 300");
    let Some(_terminal) = on_terminal(&shell, &line) else { return };
    let dlm = shell.pid_in("pid");
    until("it has begun to wait", || has_thread(dlm, "dlm-late-line"));
    until("its line is due", || !has_thread(dlm, "dlm-late-line") || is_stopped(dlm));
    shell.run(&["release", &lease]).ok();
    until("the command runs", || shell.path("ran").exists());
}

/// The threads that renew leases write what they do. The reader of standard error may stand still.
#[test]
fn a_standard_error_that_blocks_holds_up_no_renewal_and_no_end() {
    unless_stalled(Duration::from_millis(300), || {
        let shell = Shell::new();
        let (reader, writer) = std::io::pipe().unwrap();
        // As much as a pipe takes.
        let mut fill = Command::new("head");
        fill.args(["-c", "65536", "/dev/zero"]).stdout(writer.try_clone().unwrap());
        assert!(fill.status().unwrap().success());
        let args = ["-v", "run", "--ttl", "2s", "x", "--", "sh", "-c", "echo $$ >pid; exec sleep 300 2>&-"];
        let child =
            shell.dlm(&args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
        let mut running = Running(Some(child));
        let command = shell.pid_in("pid");
        let holder = || shell.json(&["show", "--json", "x"])["holder"]["pid"].clone();
        let before = holder();
        thread::sleep(Duration::from_secs(4));
        assert!(is_running(command) && holder() == before, "the lease was lost");
        running.signal(Signal::TERM);
        running.finish().ends_with(143);
        assert!(!is_running(command));
        drop(reader);
    });
}

#[test]
fn the_command_keeps_variables_that_only_begin_like_those_of_locks() {
    let shell = Shell::new();
    let print = "echo $DLM_LOCK_DIR $DLM_FENCE_FILE ${DLM_LOCK_7-none} ${DLM_FENCE_7-none}";
    let mut run = shell.dlm(&["run", "x", "--", "sh", "-c", print]);
    run.envs([("DLM_LOCK_DIR", "/d"), ("DLM_FENCE_FILE", "/f"), ("DLM_LOCK_7", "old"), ("DLM_FENCE_7", "7")]);
    let printed = run.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), "/d /f none none\n");
}

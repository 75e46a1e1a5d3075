//! `dlm ls`, `break`, `history`, `why`, `top` and `doctor --report`, each in a separate process.

use std::process::{Command, Stdio};
use std::time::Duration;

use dlm_fixtures::role;
use dlm_testkit::{LONG, LONGEST, skipped, until};

use super::Shell;

fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_locks_of_all_clients_are_listed() {
    let shell = Shell::new();
    shell.acquire("a");
    shell.acquire("b");
    shell.run(&["--client", "orders", "acquire", "--ttl", "10m", "--level", "xdc", "c"]).ok();
    let free = shell.acquire("free");
    shell.run(&["release", &free]).ok();
    let listed = lines(&shell.run(&["ls", "--held", "--json"]).ok().out);
    let names: Vec<_> = listed.iter().map(|lock| lock["lock"].as_str().unwrap()).collect();
    assert_eq!(names, ["DC#local#dlm#a", "DC#local#dlm#b", "XDC#orders#c"]);
    for lock in &listed {
        assert!(lock["holder"]["pid"].is_number() && lock["fence"].is_string(), "{lock}");
    }
    let text = shell.run(&["ls", "XDC#"]).ok().out;
    assert!(text.starts_with(r#""XDC#orders#c"  held by pid "#) && text.lines().count() == 1, "{text}");
    assert_eq!(shell.run(&["ls", "nothing"]).ok().out, "");
    // A reader that needs one line only.
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{} --store {} ls | head -1", env!("CARGO_BIN_EXE_dlm"), shell.store)]);
    assert!(command.output().unwrap().stderr.is_empty());
}

#[test]
fn a_lock_is_broken_and_its_holder_and_its_history_say_why() {
    let shell = Shell::new();
    let lease = shell.acquire("job");
    let before = shell.json(&["show", "--json", "job"]);
    let refused = shell.run(&["break", "job", "--reason", "it hangs"]).fails_with(64);
    assert!(refused.contains("--yes") && shell.is_held("job"), "{refused}");
    shell.run(&["break", "job", "--yes", "--reason", ""]).fails_with(64);
    let broken = shell.json(&["break", "--json", "--yes", "job", "--reason", "it hangs"]);
    assert_eq!((&broken["broken"], &broken["recorded"]), (&true.into(), &true.into()));
    let fence = |json: &serde_json::Value| json["fence"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(fence(&broken) > fence(&before));
    assert!(!shell.is_held("job"));
    let told = shell.run(&["renew", &lease]).fails_with(77);
    assert!(told.contains(r#"broken by pid "#) && told.contains(r#"because "it hangs""#), "{told}");
    let history = shell.run(&["history", "job"]).ok().out;
    assert!(history.contains(r#"because "it hangs""#) && history.lines().count() == 1, "{history}");
    assert_eq!(shell.run(&["history", "--since", "0s", "job"]).ok().out, "");
    assert!(shell.run(&["break", "job", "--yes", "--reason", "again"]).ok().out.contains("is free"));
    // By the full name, as `dlm ls` prints it.
    shell.acquire("job");
    let full = ["break", "--full", "--yes", "--reason", "it hangs", "DC#local#dlm#job"];
    assert!(shell.run(&full).ok().out.starts_with(r#"lock "DC#local#dlm#job" was broken"#));
    shell.run(&["break", "--full", "--yes", "--reason", "it hangs", "job"]).fails_with(64);
}

#[test]
fn why_shows_the_holder_and_the_last_holds() {
    let mut shell = Shell::new();
    assert!(shell.run(&["why", "job"]).ok().out.contains("no history"));
    shell.store += "?history=1h";
    for _ in 0..12 {
        shell.run(&["run", "job", "--", "true"]).ok();
    }
    shell.acquire("job");
    let why = shell.json(&["why", "--json", "job"]);
    assert!(why["holder"]["pid"].is_number());
    assert_eq!(why["holds"].as_array().unwrap().len(), 10);
    assert!(why["holds"][0]["took_ms"].is_number() && why["holds"][0]["kind"] == "released");
    let text = shell.run(&["why", "job"]).ok().out;
    assert_eq!(text.lines().filter(|line| line.starts_with("hold ")).count(), 10, "{text}");
    assert_eq!(lines(&shell.run(&["history", "--json", "job"]).ok().out).len(), 25);
}

#[test]
fn why_and_top_ask_the_holder_who_waits() {
    let shell = Shell::new();
    let run = |command: &[&str]| {
        let dlm = Command::new(env!("CARGO_BIN_EXE_dlm"))
            .args(["--store", &shell.store, "run", "--wait", "600s", "job", "--"])
            .args(command)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Killed(dlm.unwrap())
    };
    let _holder = run(&["sleep", "600"]);
    until("it holds the lock", || shell.is_held("job"));
    assert!(shell.run(&["why", "job"]).ok().out.contains("waits nobody with notices"));
    let _waiters = [run(&["true"]), run(&["true"])];
    let waiting =
        || shell.json(&["why", "--json", "job"])["waiting"]["processes"].as_array().map_or(0, Vec::len);
    until("both are known", || waiting() == 2);
    let text = shell.run(&["why", "job"]).ok().out;
    assert_eq!(text.matches("waits the process at notices-").count(), 2, "{text}");
    let top = shell.json(&["top", "--once", "--json"]);
    assert_eq!(top["locks"][0]["waiting"], 2, "{top}");
}

/// The command itself acquires no lock in another mode, so a program of the test does.
fn program(shell: &Shell) -> dlm::LockManager {
    let builder = dlm::LockManager::builder().store_uri(&shell.store).client("prices").purpose("reader");
    builder.ttl(Duration::from_secs(3600)).timeout(LONG).open().unwrap()
}

fn modes(holders: &serde_json::Value) -> Vec<&str> {
    holders.as_array().unwrap().iter().map(|holder| holder["mode"].as_str().unwrap()).collect()
}

#[test]
fn all_holders_are_shown_with_their_modes() {
    let shell = Shell::new();
    let manager = program(&shell);
    let lock = manager.lock("list", dlm::Level::Xdc).unwrap();
    // The one whose lease ends last is the first.
    let long = Duration::from_secs(7200);
    let _reader = lock.shared().acquire_with_ttl(long).unwrap();
    let updater = lock.update().acquire().unwrap();
    let name = lock.name().key();
    for command in [&["show", "--json", name][..], &["why", "--json", name], &["ls", "--json", name]] {
        let json = shell.json(command);
        assert_eq!(modes(&json["holders"]), ["SHARED", "UPDATE"], "{command:?}: {json}");
        assert_eq!(json["holder"]["mode"], "SHARED", "{command:?}");
    }
    let top = shell.json(&["top", "--once", "--json"]);
    assert_eq!(modes(&top["locks"][0]["holders"]), ["SHARED", "UPDATE"], "{top}");
    let show = shell.run(&["show", name]).ok().out;
    assert!(show.contains("\nmode  SHARED\n"), "{show}");
    let also: Vec<_> = show.lines().filter(|line| line.starts_with("also  pid ")).collect();
    assert!(also.len() == 1 && also[0].contains("(UPDATE)"), "{show}");
    let why = shell.run(&["why", name]).ok().out;
    assert!(why.contains("\nstate held by pid ") && why.contains("(SHARED)"), "{why}");
    assert!(
        why.lines().any(|line| line.starts_with("also  held by pid ") && line.contains("(UPDATE)")),
        "{why}"
    );
    let ls = shell.run(&["ls"]).ok().out;
    assert!(ls.lines().count() == 1 && ls.contains("(SHARED)") && ls.contains("; and by pid "), "{ls}");
    assert!(ls.contains("(UPDATE)"), "{ls}");
    let top = shell.run(&["top", "--once"]).ok().out;
    assert!(top.contains("SHARED pid "), "{top}");
    // An exclusive holder is one, and is shown as before.
    updater.release().unwrap();
    drop(_reader);
    let _writing = lock.acquire().unwrap();
    assert_eq!(modes(&shell.json(&["show", "--json", name])["holders"]), ["EXCLUSIVE"]);
    let shown = ["show", "ls", "why"].map(|verb| shell.run(&[verb, name]).ok().out).concat();
    assert!(!shown.contains("EXCLUSIVE") && !shown.contains("also"), "{shown}");
}

#[test]
fn of_several_holders_one_or_all_are_broken_and_never_all_by_mistake() {
    let shell = Shell::new();
    let manager = program(&shell);
    let lock = manager.lock("list", dlm::Level::Xdc).unwrap();
    let name = lock.name().key();
    let holds = || shell.json(&["show", "--json", name])["holders"].as_array().unwrap().len();
    let readers = [lock.shared(), lock.shared(), lock.update()].map(|lock| lock.acquire().unwrap());
    let this = shell.json(&["show", "--json", name])["holders"][0].clone();
    let me = format!("{}@{}", this["pid"], this["host"].as_str().unwrap());
    assert_eq!((holds(), this["pid"].as_u64()), (3, Some(u64::from(std::process::id()))));

    let refused = shell.run(&["break", name, "--yes", "--reason", "it hangs"]).fails_with(64);
    assert_eq!(refused.matches(&format!("--holder {me}  pid ")).count(), 3, "{refused}");
    assert!(
        refused.contains("has 3 holds") && refused.contains("(UPDATE)") && refused.contains("--all"),
        "{refused}"
    );
    shell.run(&["break", name, "--yes", "--all", "--holder", &me, "--reason", "x"]).fails_with(64);
    shell.run(&["break", name, "--yes", "--holder", "me", "--reason", "x"]).fails_with(64);
    let gone = shell.run(&["break", name, "--yes", "--holder", "1@nowhere", "--reason", "x"]).fails_with(75);
    assert!(gone.contains("pid 1 on nowhere does not hold lock") && gone.contains(&me), "{gone}");
    let asked = shell.run(&["break", name, "--all", "--reason", "it hangs"]).fails_with(64);
    assert!(asked.contains("and by pid ") && asked.contains("--yes"), "{asked}");
    assert_eq!(holds(), 3, "nothing was broken");

    let broken = shell.json(&["break", name, "--json", "--yes", "--all", "--reason", "it hangs"]);
    assert_eq!(broken["holders"].as_array().unwrap().len(), 3, "{broken}");
    assert!(broken["fence"].is_string() && broken["recorded"] == true, "{broken}");
    for reader in &readers {
        let error = reader.renew().unwrap_err();
        assert!(error.to_string().contains("because \"it hangs\""), "{error}");
    }
    assert!(!shell.is_held(name));
    let history = shell.run(&["history", name]).ok().out;
    assert_eq!(history.matches("broken by pid ").count(), 3, "{history}");
    assert_eq!(history.matches("(SHARED)").count(), 2, "{history}");
}

/// A process that reads until it is killed.
#[test]
#[ignore = "a process of the test below"]
fn role() {
    let Some((_, dir)) = role::asked() else { return };
    let shell = Shell { store: format!("embedded:{}", dir.join("store").display()), ..Shell::new() };
    let manager = program(&shell);
    let _reader = manager.lock("list", dlm::Level::Xdc).unwrap().shared().acquire().unwrap();
    std::thread::sleep(LONGEST);
}

#[test]
fn the_holds_of_one_process_are_broken_and_the_others_go_on() {
    let shell = Shell::new();
    let manager = program(&shell);
    let lock = manager.lock("list", dlm::Level::Xdc).unwrap();
    let name = lock.name().key();
    let reader = lock.shared().acquire().unwrap();
    let other = role::process(module_path!(), "reads", shell.dir.path()).spawn().unwrap();
    let other = Killed(other);
    until("it reads", || lock.holders().unwrap().len() == 2);
    let host = shell.json(&["show", "--json", name])["holder"]["host"].as_str().unwrap().to_owned();
    let holder = format!("{}@{host}", other.0.id());
    let text = shell.run(&["break", name, "--yes", "--holder", &holder, "--reason", "it hangs"]).ok().out;
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("a hold of lock \"XDC#prices#list\" was broken: that of pid "), "{text}");
    assert_eq!(lines[1..], ["one other hold goes on"]);
    reader.renew().unwrap();
    let left = lock.holders().unwrap();
    assert_eq!(
        left.iter().map(|it| it.identity.as_ref().unwrap().pid).collect::<Vec<_>>(),
        [std::process::id()]
    );
    // One holder needs no choice.
    let text = shell.run(&["break", name, "--yes", "--reason", "it hangs"]).ok().out;
    assert!(text.starts_with("lock \"XDC#prices#list\" was broken; it was held by pid "), "{text}");
    assert!(text.contains("(SHARED)") && text.contains("\nfence "), "{text}");
}

#[test]
fn a_history_shows_modes_and_one_line_for_each_change() {
    let mut shell = Shell::new();
    shell.store += "?history=1h";
    let manager = program(&shell);
    let lock = manager.lock("list", dlm::Level::Xdc).unwrap();
    let writing = lock.update().acquire().unwrap().upgrade(LONG).unwrap();
    writing.downgrade(dlm::Mode::Shared).unwrap().release().unwrap();
    manager.close().unwrap();
    let name = lock.name().key();
    let history = shell.run(&["history", name]).ok().out;
    assert_eq!(history.lines().count(), 4, "{history}");
    for line in [
        " for \"reader\" (UPDATE), waited ",
        "  mode changed by pid ",
        " for \"reader\" from UPDATE to EXCLUSIVE, held before for ",
        " for \"reader\" from EXCLUSIVE to SHARED, held before for ",
        " for \"reader\" (SHARED), held for ",
    ] {
        assert!(history.contains(line), "{line}: {history}");
    }
    let json = lines(&shell.run(&["history", "--json", name]).ok().out);
    let count = |key: &str, value: &str| json.iter().filter(|entry| entry[key] == value).count();
    assert_eq!((count("kind", "mode changed"), count("mode_before", "UPDATE")), (2, 1));
    assert_eq!((count("mode", "UPDATE"), count("mode", "EXCLUSIVE"), count("mode", "SHARED")), (1, 1, 2));
    // The hold in each mode is one, and so long as it was.
    let why = shell.json(&["why", "--json", name]);
    assert_eq!((why["holds"].as_array().unwrap().len(), why["waits_ms"].as_array().unwrap().len()), (3, 1));
}

/// Kills a process in the end.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn top_draws_the_held_locks_once_or_again_and_again() {
    let shell = Shell::new();
    shell.acquire("a");
    shell.acquire_for("first", "5m");
    let screen = shell.run(&["top", "--once"]).ok().out;
    let rows: Vec<_> = screen.lines().collect();
    assert!(rows[0].ends_with(": 2 held, 1 % of 1 GiB used") && rows[1].starts_with("LOCK"), "{screen}");
    assert!(rows[2].contains("first") && rows[3].contains("#a") && rows[2].contains("##"), "{screen}");
    assert!(!screen.contains('\x1b'));
    let json = shell.json(&["top", "--once", "--json"]);
    assert_eq!((&json["held"], json["locks"].as_array().unwrap().len()), (&2.into(), 2));
    assert_eq!(json["room"], "1 % of 1 GiB used");
    shell.run(&["top", "--interval", "1ms"]).fails_with(64);
}

/// In a real terminal, with the size and the escape codes of one.
#[test]
fn top_in_a_terminal_is_drawn_over_the_last_screen() {
    let shell = Shell::new();
    shell.acquire("deploy");
    let log = shell.path("typescript");
    let dlm = format!("{} --store {} top --interval 100ms", env!("CARGO_BIN_EXE_dlm"), shell.store);
    let script = format!("stty rows 10 cols 90; timeout -s INT 60 {dlm}");
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &script]).arg(&log).stdin(Stdio::null()).stdout(Stdio::null());
    let mut terminal = match terminal.spawn() {
        Ok(terminal) => terminal,
        Err(error) => return skipped("script", error),
    };
    until("several screens were drawn", || {
        let drawn = std::fs::read(&log).unwrap_or_default();
        String::from_utf8_lossy(&drawn).matches("\x1b[H\x1b[J").count() >= 3
    });
    let _ = terminal.kill();
    let _ = terminal.wait();
    let drawn = std::fs::read(&log).unwrap();
    let drawn = String::from_utf8_lossy(&drawn);
    let screen = drawn.split("\x1b[H\x1b[J").nth(2).unwrap();
    assert!(screen.contains("1 held, 0 hand-overs in 0.1 s") && screen.contains("#deploy"), "{screen}");
    assert!(screen.lines().all(|line| line.trim_end().chars().count() <= 90), "{screen}");
}

#[test]
fn the_report_says_of_each_promise_whether_it_holds_and_what_proves_it() {
    let shell = Shell::new();
    let text = shell.run(&["doctor", "--report"]).ok().out;
    assert!(text.contains("holds    while a lease lasts, there is no other holder"), "{text}");
    assert!(text.contains("proof: tests/run -- torture_breaks_no_rule_on_the_embedded_store"), "{text}");
    let promises = lines(&shell.run(&["doctor", "--report", "--json"]).ok().out);
    assert!(promises.len() >= 9);
    assert!(promises.iter().all(|promise| promise["verdict"] == "holds"), "{promises:?}");
    let off = Shell { store: format!("{}?notices=off", shell.store), ..Shell::new() };
    let promises = lines(&off.run(&["doctor", "--report", "--json"]).ok().out);
    assert!(promises.iter().any(|promise| promise["verdict"] == "limited"));
}

/// Ten thousand locks are listed page by page.
#[test]
fn ten_thousand_locks_are_listed() {
    let shell = Shell::new();
    let manager = dlm::LockManager::builder().store_uri(&shell.store).client("many");
    let manager = manager.ttl(Duration::from_secs(3600)).timeout(LONG).open().unwrap();
    let leases: Vec<_> = (0..10_000)
        .map(|number| manager.lock(&format!("lock-{number}"), dlm::Level::Xdc).unwrap().acquire().unwrap())
        .collect();
    assert_eq!(shell.run(&["ls", "--held"]).ok().out.lines().count(), leases.len());
    assert!(shell.run(&["top", "--once"]).ok().out.contains("... and 9960 that end later"));
}

//! `dlm acquire`, `renew`, `release` and `show`, each in a separate process.

use std::fs::File;
use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use dlm::{Level, LockManager};
use rustix::process::Signal;

use super::{Running, Shell, catches};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Parses the fence. It is a string, because many JSON readers round numbers of this size.
fn fence_of(answer: &serde_json::Value) -> u64 {
    answer["fence"].as_str().unwrap().parse().unwrap()
}

#[test]
fn a_lease_is_renewed_and_released_by_other_processes() {
    let shell = Shell::new();
    let lease = shell.acquire("job");
    assert!(shell.is_held("job"));
    assert_eq!(shell.run(&["renew", "--ttl", "20m", &lease]).ok().out, "");
    let left = shell.json(&["show", "--json", "job"])["holder"]["remaining_ms"].as_u64().unwrap();
    assert!(left > 600_000, "{left}");
    assert_eq!(shell.run(&["release", &lease]).ok().out, "");
    assert!(!shell.is_held("job"));
    shell.run(&["release", &lease]).fails_with(77);
    shell.run(&["renew", &lease]).fails_with(77);
}

/// The command acquires locks exclusively, and shows what programs hold.
#[test]
fn all_holders_of_a_lock_are_shown_with_their_modes() {
    let shell = Shell::new();
    let free = shell.json(&["show", "--json", "job"]);
    let parts: Vec<_> = free["lock"].as_str().unwrap().split('#').collect();
    let ["DC", farm, client, "job"] = parts[..] else { panic!("{free}") };
    let builder = LockManager::builder().store_uri(&shell.store).farm(farm).client(client);
    let manager = builder.purpose("reports").ttl(Duration::from_secs(600)).open().unwrap();
    let lock = manager.lock("job", Level::Dc).unwrap();
    let long = lock.shared().acquire_with_ttl(Duration::from_secs(900)).unwrap();
    let short = lock.update().acquire().unwrap();
    let shown = shell.json(&["show", "--json", "job"]);
    assert_eq!(shown["holder"]["mode"], "SHARED");
    let modes: Vec<_> = shown["holders"].as_array().unwrap().iter().map(|holder| &holder["mode"]).collect();
    assert_eq!(modes, ["SHARED", "UPDATE"]);
    assert_eq!(fence_of(&shown), long.epoch().unwrap().0);
    let text = shell.run(&["show", "job"]).ok().out;
    assert!(text.contains("mode  SHARED\n") && text.contains("also  pid "), "{text}");
    assert!(text.contains("for \"reports\" (UPDATE), "), "{text}");
    let refused = shell.run(&["acquire", "--wait", "0s", "job"]).fails_with(75);
    assert!(refused.contains("(SHARED)"), "{refused}");
    drop((long, short));
    assert_eq!(shell.json(&["show", "--json", "job"])["holders"], serde_json::json!([]));
    let _held = shell.acquire("job");
    assert_eq!(shell.json(&["show", "--json", "job"])["holders"][0]["mode"], "EXCLUSIVE");
}

/// Three different things, of which only one is a reason to stop the work.
#[test]
fn a_lease_of_another_store_one_that_was_released_and_one_that_is_lost_have_three_sentences() {
    let shell = Shell::new();
    let (lease, gone) = (shell.acquire("job"), shell.acquire("other"));
    let other = format!("embedded:{}", shell.path("other").display());
    for verb in ["release", "renew"] {
        let line = shell.run(&["--store", &other, verb, &lease]).fails_with(77);
        assert!(line.contains("is not held: ") && line.contains("another store granted it"), "{line}");
        assert!(line.contains(&other) && !line.contains("stop the work"), "{line}");
        assert!(shell.is_held("job"), "{verb}");
    }
    // A token that a renewal has printed, and those of earlier versions.
    let renewed = shell.json(&["renew", "--json", &lease])["lease"].as_str().unwrap().to_owned();
    assert!(lease.starts_with("dlm3.") && renewed.starts_with("dlm3."));
    shell.run(&["release", &gone]).ok();
    let line = shell.run(&["release", &gone]).fails_with(77);
    assert!(line.contains("is not held: it was released before"), "{line}");
    assert!(!line.contains("stop the work") && !line.contains("lost:"), "{line}");
    let line = shell.run(&["renew", &gone]).fails_with(77);
    assert!(line.contains("is lost: it was released before, or") && line.contains("stop the work"), "{line}");

    let late = shell.acquire_briefly("late");
    let _next = shell.acquire("late");
    let line = shell.run(&["release", &late]).fails_with(77);
    assert!(line.contains("is lost: it has expired") && line.contains("stop the work"), "{line}");
    shell.run(&["release", &renewed]).ok();
}

#[test]
fn tokens_of_the_formats_before_this_one_renew_and_release() {
    let shell = Shell::new();
    // Format 3 is format 2 with eight bytes more, and that is format 1 with 24 bytes more.
    let without = |lease: &str, bytes: usize| {
        let hex = lease.strip_prefix("dlm3.").unwrap();
        let key = 2 * usize::from(u16::from_str_radix(&hex[..4], 16).unwrap());
        let (boot, store) = (4 + key + 48, 4 + key + 48 + 48);
        match bytes {
            8 => format!("dlm2.{}{}", &hex[..store], &hex[store + 16..]),
            _ => format!("dlm1.{}{}", &hex[..boot], &hex[store + 16..]),
        }
    };
    for bytes in [8, 32] {
        let old = without(&shell.acquire("job"), bytes);
        let renewed = shell.json(&["renew", "--json", &old])["lease"].as_str().unwrap().to_owned();
        assert!(renewed.starts_with("dlm3."), "the renewal shows whose it is: {renewed}");
        shell.run(&["release", &old]).ok();
        assert!(!shell.is_held("job"));
        // Without the mark nothing is said about another store.
        let other = format!("embedded:{}", shell.path("other").display());
        let line = shell.run(&["--store", &other, "release", &old]).fails_with(77);
        assert!(!line.contains("another store"), "{line}");
    }
}

#[test]
fn a_failed_renewal_does_not_release_the_lock() {
    let shell = Shell::new();
    let lease = shell.acquire("job");
    // The other store has no record of this lease.
    let other = format!("embedded:{}", shell.path("other").display());
    shell.run(&["--store", &other, "renew", &lease]).fails_with(77);
    shell.run(&["renew", "--ttl", "0s", &lease]).fails_with(64);
    assert!(shell.is_held("job"));
    shell.run(&["renew", &lease]).ok();
    assert!(shell.is_held("job"), "a successful renewal released the lock");
}

#[test]
fn a_late_release_is_77_and_leaves_the_next_holder_alone() {
    let shell = Shell::new();
    let late = shell.acquire_briefly("job");
    let next = shell.acquire("job");
    for command in ["release", "renew"] {
        assert!(shell.run(&[command, &late]).fails_with(77).contains("lost"));
        assert!(shell.is_held("job"), "{command} took the lock from its holder");
    }
    shell.run(&["release", &next]).ok();
}

#[test]
fn a_lease_read_from_standard_input_is_in_no_process_list() {
    let shell = Shell::new();
    let lease = shell.acquire("job");
    for command in ["renew", "release"] {
        let mut child = shell.dlm(&[command, "-"]).stdin(Stdio::piped()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "{lease}").unwrap();
        Running(Some(child)).finish().ok();
    }
    assert!(!shell.is_held("job"));
    // Standard input is empty.
    shell.run(&["release", "-"]).fails_with(64);
}

#[test]
fn a_held_lock_is_75_at_once_or_after_the_wait_or_what_was_asked_for() {
    let shell = Shell::new();
    let _lease = shell.acquire("job");
    for command in ["acquire", "run"] {
        let with = |args: &[&'static str]| {
            let tail: &[&str] = if command == "run" { &["job", "--", "touch", "ran"] } else { &["job"] };
            shell.run(&[&[command], args, tail].concat())
        };
        let line = with(&["--no-wait"]).fails_with(75);
        assert!(line.contains("is held by pid") && line.contains("--wait"), "{line}");
        let line = with(&["--wait", "50ms", "--retry", "10ms"]).fails_with(75);
        assert!(line.contains("waited"), "{line}");
        with(&["--no-wait", "-E", "9"]).fails_with(9);
    }
    assert!(!shell.path("ran").exists());
}

#[test]
fn json_has_what_a_script_needs() {
    let shell = Shell::new();
    let before = now_ms();
    let got = shell.json(&["acquire", "--json", "--ttl", "600s", "job"]);
    let (lease, fence) = (got["lease"].as_str().unwrap(), fence_of(&got));
    let deadline = got["deadline_ms"].as_u64().unwrap();
    // The holder's lease ends a tenth of the TTL before its end in the store. The lease clock and the wall clock
    // drift apart by less than the tolerance.
    assert!((before + 500_000..=now_ms() + 540_010).contains(&deadline), "{before} {deadline}");
    assert!(got["waited_ms"].is_u64());

    let shown = shell.json(&["show", "--json", "job"]);
    assert_eq!((shown["held"].as_bool(), fence_of(&shown)), (Some(true), fence));
    let holder = &shown["holder"];
    assert!(holder["pid"].is_u64() && holder["host"].is_string() && holder["purpose"].is_string());
    assert!(holder["since_ms"].as_u64().unwrap() >= before && holder["remaining_ms"].is_u64());

    let renewed = shell.json(&["renew", "--json", "--ttl", "20m", lease]);
    assert!(renewed["deadline_ms"].as_u64().unwrap() > deadline);
    // The old line and the new one are both valid.
    shell.run(&["renew", renewed["lease"].as_str().unwrap()]).ok();
    assert_eq!(shell.json(&["release", "--json", lease])["released"], true);

    let free = shell.json(&["show", "--json", "job"]);
    assert_eq!((free["held"].as_bool(), free["holder"].is_null()), (Some(false), true));
    let again = shell.json(&["acquire", "--json", "job"]);
    assert!(fence_of(&again) > fence, "the fence did not rise");
}

#[test]
fn show_tells_people_who_holds_it() {
    let shell = Shell::new();
    let free = shell.run(&["--client", "dlm", "show", "job"]).ok().out;
    assert_eq!(free, "lock  \"DC#local#dlm#job\"\nstate free\n");
    let _lease = shell.acquire("job");
    let text = shell.run(&["show", "job"]).ok().out;
    for word in ["state held", "by    pid ", " on ", "since ", "left  ", "fence "] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_lease_that_nobody_can_have_read_is_given_back() {
    let shell = Shell::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let child = shell.dlm(&["acquire", "job"]).stdout(full).spawn().unwrap();
    Running(Some(child)).finish().fails_with(70);
    assert!(!shell.is_held("job"));

    let mut child = shell.dlm(&["acquire", "--json", "job"]).spawn().unwrap();
    drop(child.stdout.take());
    Running(Some(child)).finish().fails_with(70);
    assert!(!shell.is_held("job"));
}

#[test]
fn a_signal_ends_the_wait_and_nothing_is_held() {
    let shell = Shell::new();
    let lease = shell.acquire("job");
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        for command in [&["acquire", "-vv", "job"][..], &["run", "-vv", "job", "--", "touch", "ran"]] {
            let mut waiting = shell.start(command);
            catches(&mut waiting, signal);
            waiting.signal(signal);
            waiting.finish().ends_with(status);
        }
    }
    shell.run(&["release", &lease]).ok();
    assert!(!shell.is_held("job") && !shell.path("ran").exists());
}

#[test]
fn a_waiting_acquire_gets_the_lock_when_it_is_released() {
    let shell = Shell::new();
    let lease = shell.acquire("job");
    let mut waiting = shell.start(&["acquire", "--json", "--retry", "20ms", "job"]);
    // The process catches signals before it asks for the lock.
    catches(&mut waiting, Signal::TERM);
    std::thread::sleep(Duration::from_millis(200));
    shell.run(&["release", &lease]).ok();
    let got: serde_json::Value = serde_json::from_str(&waiting.finish().ok().out).unwrap();
    assert!(got["lease"].as_str().unwrap().starts_with("dlm3."));
}

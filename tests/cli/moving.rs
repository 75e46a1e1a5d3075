//! The commands of docs/moving.md with the real `flock`, etcd and Redis. They are unchanged, except for times that a
//! busy machine does not keep.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use dlm_fixtures::console::Console;
use dlm_fixtures::etcd::etcd_or_skip;
use dlm_fixtures::redis::redis_or_skip;
use dlm_testkit::unless_stalled;

use super::Running;
use super::tables::{code_in, rows_after};

const PAGE: &str = include_str!("../../docs/moving.md");

fn console() -> Console {
    Console::new(Path::new(env!("CARGO_BIN_EXE_dlm")))
}

#[test]
fn what_the_page_shows_of_flock_is_so() {
    console().run_blocks_of(PAGE, "what_the_page_shows_of_flock_is_so");
}

#[test]
fn what_the_page_shows_of_etcdctl_is_so() {
    let Some(etcd) = etcd_or_skip() else { return };
    // The command has to print its message before it is ended.
    let mut console = console().place("timeout 1 etcdctl", "timeout 5 etcdctl");
    console.run(&format!("export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={etcd}"));
    console.run("export ETCDCTL_COMMAND_TIMEOUT=60s ETCDCTL_DIAL_TIMEOUT=60s");
    console.run_blocks_of(PAGE, "what_the_page_shows_of_etcdctl_is_so");
}

#[test]
fn what_the_page_shows_of_redis_is_so() {
    let Some(redis) = redis_or_skip() else { return };
    let program = Command::new("sh").args(["-c", "command -v redis-cli"]).output().unwrap();
    let program = String::from_utf8(program.stdout).unwrap();
    let wrapper = format!("#!/bin/sh\nexec {} -p {} \"$@\"\n", program.trim(), redis.port());
    let begun = "until [ -e begun ]; do sleep 0.1; done";
    // The lease of 5 s is renewed by a process of its own, which must not stand still.
    unless_stalled(Duration::from_secs(1), || {
        // The page gives each step a second. Here the first command waits until the second one has ended.
        let mut console = console()
            .file("bin/redis-cli", &wrapper)
            .file(
                "until-over",
                "#!/bin/sh\necho >begun; until [ -e over ]; do sleep 0.1; done; rm -f begun over\n",
            )
            .place("night 200 sleep 2 & sleep 1;", &format!("night 200 ./until-over & {begun}; sleep 1;"))
            .place(
                "500ms night -- sleep 2 & sleep 1;",
                &format!("5s night -- ./until-over & {begun}; sleep 6;"),
            )
            .place("wait %1", "echo >over; wait %1")
            .place("--ttl 100ms week); sleep 0.3;", "--ttl 2s week); sleep 2.1;");
        console.run("redis-cli DEL report night week");
        console.run_blocks_of(PAGE, "what_the_page_shows_of_redis_is_so");
    });
}

/// Runs the jobs as cron does: by `sh`, with few variables.
#[test]
fn the_lines_of_the_crontab_exclude_each_other() {
    let (_, block) = PAGE.split_once("```text\nPATH=").expect("a crontab");
    let (path, jobs) = block.split_once("```").unwrap().0.split_once('\n').unwrap();
    let console = console().file("report.sh", "#!/bin/sh\necho working\n");
    let (dir, bin) = (console.dir().to_owned(), console.dir().join("bin"));
    let cron = |job: &str| {
        let job = job.replace("/var/lock", dir.to_str().unwrap());
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &job]).current_dir(&dir).env_clear();
        shell.env("PATH", path.replace("/usr/local/bin", bin.to_str().unwrap()));
        shell.env("HOME", &dir).env("DLM_STORE", format!("embedded:{}", dir.join("store").display()));
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(shell.spawn().unwrap())).finish()
    };
    let jobs: Vec<_> = jobs.lines().map(|line| line.splitn(6, ' ').nth(5).unwrap()).collect();
    let [file, store, both] = jobs[..] else { panic!("three jobs: {jobs:?}") };
    for job in [file, store, both] {
        assert_eq!(cron(job).ok().out, "working\n");
    }
    // Another job has the file, and then the lock in the store.
    let file_held = |job: &str| cron(&format!("exec 8>/var/lock/report.lock; flock 8; {job}"));
    let store_held = |job: &str| cron(&format!("dlm run report -- sh -c '{job}'"));
    for (job, of_file, of_store) in [(file, 1, 0), (store, 0, 75), (both, 1, 75)] {
        file_held(job).ends_with(of_file);
        store_held(job).ends_with(of_store);
    }
}

/// Each command runs with a free lock, and with one that another process gives up half a second later, or after the
/// command if it does not wait.
#[test]
fn every_row_of_flock_and_dlm_does_what_it_says() {
    let mut console = console();
    let rows = rows_after(PAGE, "\n### The same lines\n");
    assert_eq!(rows.len(), 5);
    // The holder gives up the lock when the file `go` exists.
    let script = "'echo >held; until [ -e go ]; do sleep 0.01; done; echo >over'";
    let hold = [("flock lock sh -c", "`flock`"), ("dlm run lock -- sh -c", "`dlm`")];
    for row in &rows {
        let waits = !["try once", "another status if the lock is held"].contains(&row[0].as_str());
        for ((hold, name), command) in hold.iter().zip(row[1..].iter().map(|cell| code_in(cell)[0])) {
            assert_eq!(console.run(command).0, 0, "{name}: {command}");
            console.run(&format!(
                "rm -f held go over; {hold} {script} & until [ -e held ]; do sleep 0.01; done"
            ));
            if waits {
                console.run("{ sleep 0.5; echo >go; } &");
            }
            let (status, printed) = console.run(command);
            let expected = match (row[0].as_str(), *name) {
                ("try once", "`flock`") => 1,
                ("try once", _) => 75,
                ("another status if the lock is held", _) => 9,
                _ => 0,
            };
            assert_eq!(status, expected, "{name}: {command}: {printed}");
            let was_over = console.run("[ -e over ]").0 == 0;
            assert_eq!(was_over, waits, "{name}: {command}: ran beside the holder, or after it");
            console.run("echo >go; wait");
        }
    }
}

#[test]
fn every_exit_status_of_flock_and_dlm_is_as_the_page_says() {
    let mut console = console().file("no-program", "");
    console.run("chmod a-x no-program; exec 9>held.lock; flock 9; dlm acquire --ttl 10m held");
    let mut checked = 0;
    for row in rows_after(PAGE, "\n### Exit statuses\n") {
        let [what, of_flock, of_dlm] = &row[..] else { panic!("{row:?}") };
        let (flock, dlm) = match what.as_str() {
            "the command ended" => ("-n lock sh -c 'exit 3'", "lock -- sh -c 'exit 3'"),
            "signal 9 ended the command" => ("-n lock sh -c 'kill -9 $$'", "lock -- sh -c 'kill -9 $$'"),
            "another holder has the lock" => ("-n held.lock true", "--no-wait held -- true"),
            "the command is not found" => ("-n lock no-such-program", "lock -- no-such-program"),
            "the command cannot be executed" => ("-n lock ./no-program", "lock -- ./no-program"),
            "the lock file or the store cannot be reached" => {
                ("-n no-such-directory/lock true", "--store embedded:/dev/null/store lock -- true")
            }
            "wrong usage" => ("--no-such-option", "--no-such-option"),
            // Has tests of its own, which the other table names.
            "the lease was lost, and the command was ended" => continue,
            other => panic!("nothing checks the row {other:?}"),
        };
        for (command, told) in [(format!("flock {flock}"), of_flock), (format!("dlm run {dlm}"), of_dlm)] {
            let expected = if told == "its status" { 3 } else { told.parse().unwrap() };
            let (status, printed) = console.run(&command);
            assert_eq!(status, expected, "$ {command}\n{printed}");
            checked += 1;
        }
    }
    assert_eq!(checked, 14);
}

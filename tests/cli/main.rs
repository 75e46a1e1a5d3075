//! Tests of the `dlm` command: each test runs the built program.

mod default_store;
mod demo;
mod elect;
mod fleet;
mod hbase;
mod latch;
mod lease;
mod modes;
mod moving;
mod moving_java;
mod names;
mod run;
mod spellings;
mod strangers;
mod tables;
mod terminal;
mod trying;
mod tuning;
mod usage;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use dlm_testkit::{LONG, until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A temporary directory with a store, and the command on that store.
struct Shell {
    dir: TempDir,
    store: String,
}

/// Exit status and output of a finished process.
struct Done {
    status: ExitStatus,
    out: String,
    err: String,
}

impl Shell {
    fn new() -> Shell {
        let dir = tempfile::tempdir().unwrap();
        Shell { store: format!("embedded:{}", dir.path().join("store").display()), dir }
    }

    /// Like [`new`](Shell::new), but on another store.
    fn on(store: String) -> Shell {
        Shell { store, ..Shell::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns `dlm` with these arguments. Resets the variables that the test has inherited, and the signals that it
    /// ignores (as under `nohup`), because `dlm` would ignore them as well.
    fn dlm(&self, args: &[&str]) -> Command {
        let mut command = Command::new("env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_dlm")]);
        for variable in
            ["DLM_CLIENT", "DLM_FARM", "DLM_LOG", "DLM_LOCK", "DLM_FENCE", "DLM_HELD", "NO_COLOR", "COLUMNS"]
        {
            command.env_remove(variable);
        }
        command.env("DLM_STORE", &self.store).current_dir(self.dir.path());
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, args: &[&str]) -> Running {
        Running(Some(self.dlm(args).spawn().unwrap()))
    }

    /// Runs `dlm` and waits for its end.
    fn run(&self, args: &[&str]) -> Done {
        self.start(args).finish()
    }

    /// Acquires a lock for ten minutes. Returns its lease line.
    fn acquire(&self, name: &str) -> String {
        self.acquire_for(name, "10m")
    }

    /// Acquires a lock for a short time. Returns its lease line.
    fn acquire_briefly(&self, name: &str) -> String {
        // On a busy machine the grant may take longer than a very short lease.
        for ttl in ["100ms", "1s"] {
            let done = self.run(&["acquire", "--ttl", ttl, "--retry", "10ms", name]);
            if done.status.success() {
                return done.out.trim_end().to_owned();
            }
            assert!(done.err.contains(TOOK_TOO_LONG), "{}", done.err);
        }
        self.acquire_for(name, "10s")
    }

    fn acquire_for(&self, name: &str, ttl: &str) -> String {
        self.run(&["acquire", "--ttl", ttl, "--retry", "10ms", name]).ok().out.trim_end().to_owned()
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        let done = self.run(args).ok();
        assert_eq!(done.out.lines().count(), 1, "{}", done.out);
        serde_json::from_str(&done.out).unwrap()
    }

    fn is_held(&self, name: &str) -> bool {
        self.json(&["show", "--json", name])["held"].as_bool().unwrap()
    }

    /// Waits for the process id that a command under test writes to the file `name`.
    fn pid_in(&self, name: &str) -> Pid {
        Pid::from_raw(self.content(name).trim().parse().unwrap()).unwrap()
    }

    /// Waits until the file `name` has a whole line. Returns its content.
    fn content(&self, name: &str) -> String {
        let path = self.path(name);
        until(&format!("{name} is written"), || line_in(&path));
        std::fs::read_to_string(path).unwrap()
    }
}

/// A part of the message of an acquire whose lease was over before it was granted.
const TOOK_TOO_LONG: &str = "took longer than the lease";

/// Waits until the process has a handler for the signal.
fn catches(process: &mut Running, signal: Signal) {
    catches_as(Pid::from_raw(process.child().id() as i32).unwrap(), signal);
}

/// The same by process id.
fn catches_as(pid: Pid, signal: Signal) {
    let path = format!("/proc/{}/status", pid.as_raw_pid());
    until("the process catches the signal", || {
        let status = std::fs::read_to_string(&path).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
    });
}

fn line_in(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n'))
}

/// A process. Dropping it kills it if the test has failed before its end.
struct Running(Option<Child>);

impl Running {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn signal(&mut self, signal: Signal) {
        let pid = Pid::from_raw(self.child().id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the process has ended, and all processes that write to its output.
    fn finish(mut self) -> Done {
        let child = self.child();
        let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
        // A command may make several calls that last for up to a minute each.
        let by = Instant::now() + 5 * LONG;
        let status = loop {
            match self.child().try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < by, "the process does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let whole = |text: Receiver<String>| text.recv_timeout(LONG).expect("the output does not end");
        Done { status, out: whole(out), err: whole(err) }
    }
}

/// Reads a pipe in a thread, which ends with the pipe. Returns an empty text without a pipe.
fn collect(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, text) = channel();
    std::thread::spawn(move || {
        let mut all = String::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_string(&mut all).unwrap();
        }
        let _ = sender.send(all);
    });
    text
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Done {
    fn ok(self) -> Done {
        self.ends_with(0)
    }

    fn ends_with(self, status: i32) -> Done {
        assert_eq!(self.status.code(), Some(status), "out: {}\nerr: {}", self.out, self.err);
        self
    }

    /// Asserts that the process failed with this status and one line on standard error. Returns that line.
    fn fails_with(self, status: i32) -> String {
        let mut done = self.ends_with(status);
        if let Ok(object) = serde_json::from_str::<serde_json::Value>(&done.err) {
            // With --json.
            let error = &object["error"];
            assert_eq!(error["status"], status, "{error}");
            done.err = format!("dlm: {}\n", error["message"].as_str().unwrap());
        }
        assert!(done.err.starts_with("dlm: "), "{:?}", done.err);
        assert_eq!(done.err.matches('\n').count(), 1, "more than a line: {}", done.err);
        assert!(!done.err.contains("panicked"), "{}", done.err);
        done.err
    }
}

/// Returns whether the process still runs. A zombie does not run.
fn is_running(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

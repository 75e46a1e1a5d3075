//! A process of a test that takes orders and reports, a line each. It is this test program again, with a
//! role: see `role.rs`.

#![allow(dead_code, reason = "no test program uses all of it")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::patience::{LONG, until};

/// Stands before each report: the test harness writes on the same output.
const MARK: &str = "dlm-test> ";
/// Longer than a process of these tests takes for one step, which may include a long wait for a lock.
const REPORT_TIMEOUT: Duration = LONG.saturating_mul(2);

/// Dropping it kills the process.
pub(crate) struct Dialogue {
    child: Child,
    orders: Option<ChildStdin>,
    reports: Receiver<String>,
}

impl Dialogue {
    pub(crate) fn start(command: &mut Command) -> Dialogue {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (sender, reports) = channel();
        // Ends with the process, or when nobody listens any more.
        let read = move || {
            for line in lines {
                let Some((_, report)) = line.split_once(MARK) else { continue };
                if sender.send(report.to_owned()).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("dlm-test-reports".into()).spawn(read).unwrap();
        Dialogue { orders: child.stdin.take(), child, reports }
    }

    pub(crate) fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("open until finished");
        writeln!(orders, "{order}").expect("the process has ended");
    }

    /// The words of the next report.
    #[track_caller]
    pub(crate) fn any_report(&self) -> Vec<String> {
        let report = self.reports.recv_timeout(REPORT_TIMEOUT);
        let report = report.unwrap_or_else(|error| panic!("nothing was reported: {error}"));
        report.split_whitespace().map(str::to_owned).collect()
    }

    /// The words behind `word` in the next report, which must begin with it.
    #[track_caller]
    pub(crate) fn report(&self, word: &str) -> Vec<String> {
        let mut report = self.any_report();
        assert_eq!(report[0], word, "{report:?}");
        report.split_off(1)
    }

    /// All reports until the process ends, which it must do well.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Vec<Vec<String>> {
        self.orders = None;
        let mut reports = Vec::new();
        // The end of the process closes the channel.
        while let Ok(report) = self.reports.recv_timeout(REPORT_TIMEOUT) {
            reports.push(report.split_whitespace().map(str::to_owned).collect());
        }
        until("the process ends", || self.child.try_wait().unwrap().is_some());
        assert!(self.child.wait().unwrap().success(), "the process failed");
        reports
    }

    /// SIGSTOP. Returns when all its threads have stopped.
    #[track_caller]
    pub(crate) fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        until("the process stops", || self.is_paused());
    }

    /// SIGCONT.
    #[track_caller]
    pub(crate) fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn is_paused(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it runs");
        // A thread's name stands in parentheses, and its state behind.
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat"));
            stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T")))
        })
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        // Fails when it has ended. A stopped process dies as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports a line, in a process of a test.
pub(crate) fn say(report: std::fmt::Arguments<'_>) {
    // On a line of its own, and in one write.
    println!("\n{MARK}{report}");
}

/// The next order, in a process of a test; `None` when no more come.
pub(crate) fn next_order() -> Option<String> {
    std::io::stdin().lines().next()?.ok()
}

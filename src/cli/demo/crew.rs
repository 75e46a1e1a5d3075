//! The worker processes of the demo: starts them, reads their output, and ends them when it is dropped.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use dlm::{Deadline, Moment};

use super::history::History;
use super::words::{Word, letter};
use crate::cli::args::{Demo, Global};
use crate::cli::exit::CommandFailure;

/// Time for a worker to end after its standard input was closed. After that it is killed.
const END_GRACE: Duration = Duration::from_secs(1);
/// Longest time of a demo with `--rounds`.
const ROUNDS_MAX: Duration = Duration::from_secs(120);

/// A message about a worker.
#[derive(Debug)]
pub(crate) enum Heard {
    Word(u8, Word),
    /// The worker's output ended at this moment.
    End(u8, Moment),
}

#[derive(Debug)]
pub(crate) struct Crew {
    /// By worker. `None` after the process was waited for.
    children: Vec<Option<Child>>,
    heard: Receiver<Heard>,
    /// The threads `dlm-demo-A` and so on. Each ends with the output of its worker.
    readers: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts the workers. `start` is the latch at which they meet. Without one they wait for [`go`](Crew::go).
    pub(crate) fn start(global: &Global, args: &Demo, start: Option<&str>) -> Result<Crew, CommandFailure> {
        let (sender, heard) = unbounded();
        let mut crew = Crew { children: Vec::new(), heard, readers: Vec::new() };
        for worker in 0..args.workers {
            crew.start_one(global, args, start, worker, sender.clone()).map_err(|error| {
                CommandFailure::internal(format!("worker {} cannot be started: {error}", letter(worker)))
            })?;
        }
        Ok(crew)
    }

    fn start_one(
        &mut self,
        global: &Global,
        args: &Demo,
        start: Option<&str>,
        worker: u8,
        heard: Sender<Heard>,
    ) -> std::io::Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("__demo-worker").arg("--letter").arg(letter(worker).to_string());
        command.arg("--locks").arg(args.locks.to_string());
        command.arg("--seconds").arg(longest(args).as_secs().to_string());
        if let Some(rounds) = args.rounds {
            command.arg("--rounds").arg(rounds.to_string());
        }
        if let Some(start) = start {
            command.arg("--start").arg(start);
        }
        command.env("DLM_STORE", &global.store);
        for (key, value) in [("DLM_CLIENT", &global.client), ("DLM_FARM", &global.farm)] {
            if let Some(value) = value {
                command.env(key, value);
            }
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take();
        self.children.push(Some(child));
        let thread = std::thread::Builder::new().name(format!("dlm-demo-{}", letter(worker)));
        self.readers.push(thread.spawn(move || listen(worker, output, &heard))?);
        Ok(())
    }

    pub(crate) fn heard(&self) -> &Receiver<Heard> {
        &self.heard
    }

    /// Returns the numbers of the workers that have not ended.
    pub(crate) fn running(&self) -> impl Iterator<Item = usize> {
        (0..).zip(&self.children).filter_map(|(worker, child)| child.as_ref().map(|_| worker))
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running().next().is_some()
    }

    /// Lets the workers begin if there is no start latch.
    pub(crate) fn go(&mut self) {
        for child in self.children.iter_mut().flatten() {
            if let Some(input) = &mut child.stdin {
                // The end of a worker is reported by its reader.
                let _ = input.write_all(b"go\n");
            }
        }
    }

    /// Waits for a worker whose output has ended. Returns how it died if it was killed.
    pub(crate) fn bury(&mut self, worker: u8) -> Option<String> {
        let mut child = self.children.get_mut(usize::from(worker))?.take()?;
        drop(child.stdin.take());
        let by = Deadline::after(END_GRACE);
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if by.passed() => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Some("did not end and was killed".into());
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Some(format!("ended with an unknown status: {error}")),
            }
        };
        status.signal().map(|signal| {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
            format!("was killed by {name}")
        })
    }

    /// Kills the workers that are still running after their time.
    pub(crate) fn give_up(&mut self, history: &mut History) {
        for (worker, child) in self.children.iter_mut().enumerate() {
            if let Some(mut child) = child.take() {
                let _ = child.kill();
                let _ = child.wait();
                let how = Some("did not end in time and was killed".into());
                history.end(worker as u8, Moment::now(), how);
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // First close all inputs: the workers share one grace time.
        for child in self.children.iter_mut().flatten() {
            drop(child.stdin.take());
        }
        let by = Deadline::after(END_GRACE);
        for child in self.children.iter_mut().flatten() {
            while !by.passed() && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// Returns the longest time that the workers contend.
pub(crate) fn longest(args: &Demo) -> Duration {
    if args.rounds.is_some() { ROUNDS_MAX } else { Duration::from_secs(args.seconds.into()) }
}

/// Runs in a reader thread. Forwards the worker's messages, and skips other lines.
fn listen(worker: u8, output: Option<ChildStdout>, heard: &Sender<Heard>) {
    for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok) {
        if let Ok(word) = line.parse() {
            let _ = heard.send(Heard::Word(worker, word));
        }
    }
    let _ = heard.send(Heard::End(worker, Moment::now()));
}

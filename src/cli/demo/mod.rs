//! `dlm demo`: worker processes contend for a few locks, and this process watches them.
//!
//! ```text
//! dlm demo ── starts ──> dlm __demo-worker (A, B, C ...)      each acquires, holds and releases locks
//!    ▲                        │ standard output: a line for each grant and release, with the time of
//!    └── history <────────────┘ the boot clock, which all processes of the machine share
//!          │
//!       picture, and the check: no overlaps, fences rise
//! ```
//!
//! The workers meet at a latch before they begin. A progress bar shows how many have arrived.
//!
//! A worker ends when its standard input is closed, so it does not outlive the demo, even if the demo is killed.

mod crew;
mod history;
mod picture;
mod start;
mod words;
pub(crate) mod worker;

use std::time::Duration;

use crossbeam_channel::{select, tick};
use dlm::{Deadline, LockManager, Moment};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use self::crew::{Crew, Heard, longest};
use self::history::{Check, History};
use self::start::{START_MAX, Start};
use self::words::Word;
use crate::cli::args::{Demo, Global};
use crate::cli::exit::{CommandFailure, CommandOutcome, INTERNAL, UNREACHABLE};
use crate::cli::signals::{ENDING, Signals};
use crate::cli::{exit, open, output};

/// Time for the last calls of a worker to the store, after the time of the demo. Then it is killed.
const LAST_CALLS_MAX: Duration = Duration::from_secs(15);
const TICK: Duration = Duration::from_millis(100);

/// `dlm demo`
pub(crate) fn demo(global: &Global, args: &Demo) -> CommandOutcome {
    let signals = Signals::catch(&ENDING)?;
    let manager = prepare(global)?;
    let (store, start) = (manager.store(), Start::create(&manager, args.workers)?);
    if !global.json {
        output::show(&headline(args, &store))?;
    }
    let crew = Crew::start(global, args, start.as_ref().map(Start::name))?;
    let mut run = Run { args, quiet: global.json, bar: progress_bar(args), signals: &signals, start };
    let history = run.run(crew)?;
    report(global, args, &store, &history)
}

/// Opens the store and creates its table.
fn prepare(global: &Global) -> Result<LockManager, CommandFailure> {
    let manager = open::manager(global, None, "demo")?;
    open::reach(&manager, None)?;
    manager.initialize()?;
    Ok(manager)
}

fn headline(args: &Demo, store: &str) -> String {
    let plural = |n: u8| if n == 1 { "" } else { "s" };
    let length = match args.rounds {
        Some(rounds) => format!("{rounds} grants each"),
        None => format!("{} s", args.seconds),
    };
    format!(
        "{} process{} contend{} for {} lock{} in {store}, {length}",
        args.workers,
        if args.workers == 1 { "" } else { "es" },
        if args.workers == 1 { "s" } else { "" },
        args.locks,
        plural(args.locks),
    )
}

/// Returns the length of the progress bar while the workers contend: grants or milliseconds.
fn length(args: &Demo) -> u64 {
    match args.rounds {
        Some(rounds) => u64::from(rounds) * u64::from(args.workers),
        None => u64::from(args.seconds) * 1000,
    }
}

/// Creates the progress bar. At first it counts the workers that have arrived at the start.
fn progress_bar(args: &Demo) -> ProgressBar {
    // On standard error. It draws nothing if that is not a terminal.
    let bar = ProgressBar::new(args.workers.into());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_bar:.cyan/blue} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// The part between the start of the workers and their end.
struct Run<'a> {
    args: &'a Demo,
    /// Print nothing to standard output.
    quiet: bool,
    bar: ProgressBar,
    signals: &'a Signals,
    start: Option<Start>,
}

impl Run<'_> {
    fn run(&mut self, mut crew: Crew) -> Result<History, CommandFailure> {
        let mut history = History::new(self.args.locks, self.args.workers);
        let ticks = tick(TICK);
        let mut ready = vec![false; self.args.workers.into()];
        let mut began = None;
        let mut by = Deadline::after(START_MAX);
        while crew.is_running() {
            select! {
                recv(crew.heard()) -> heard => match heard {
                    Ok(Heard::Word(worker, Word::Ready)) => ready[usize::from(worker)] = true,
                    Ok(Heard::Word(worker, word)) => history.add(worker, word),
                    Ok(Heard::End(worker, at)) => {
                        history.end(worker, at, crew.bury(worker));
                        if let Some(start) = self.start.as_ref().filter(|_| began.is_none()) {
                            start.excuse(worker);
                        }
                    }
                    Err(_) => break,
                },
                recv(self.signals.received()) -> signal => if let Ok(signal) = signal {
                    self.bar.finish_and_clear();
                    drop(crew);
                    return Err(interrupted(signal.number));
                },
                recv(ticks) -> _ => {}
            }
            // A worker that ended before it was ready is not waited for.
            let together = match &self.start {
                Some(start) => start.is_open(),
                None => crew.running().all(|worker| ready[worker]),
            };
            if began.is_none() && together {
                self.go(&mut crew)?;
                began = Some(Moment::now());
                by = Deadline::after(longest(self.args) + LAST_CALLS_MAX);
            }
            self.draw(&history, began);
            if by.passed() {
                crew.give_up(&mut history);
                break;
            }
        }
        self.bar.finish_and_clear();
        Ok(history)
    }

    fn go(&mut self, crew: &mut Crew) -> Result<(), CommandFailure> {
        crew.go();
        self.bar.set_length(length(self.args));
        let Some(line) = self.start.as_mut().and_then(Start::opened).filter(|_| !self.quiet) else {
            return Ok(());
        };
        self.bar.suspend(|| output::show(&line))
    }

    fn draw(&self, history: &History, began: Option<Moment>) {
        let grants = history.grants();
        match (began, self.args.rounds) {
            (None, _) => {
                let (there, text) = self.start.as_ref().map_or((0, "starting".into()), Start::progress);
                self.bar.set_position(there);
                self.bar.set_message(text);
            }
            (Some(_), Some(_)) => self.bar.set_position(grants as u64),
            (Some(began), None) => {
                let elapsed = Moment::now().since(began).as_millis();
                self.bar.set_position(u64::try_from(elapsed).unwrap_or(u64::MAX));
            }
        }
        if began.is_some() {
            self.bar.set_message(format!("{grants} grants"));
        }
    }
}

fn interrupted(signal: i32) -> CommandFailure {
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
    CommandFailure::new(
        exit::of_signal(signal),
        format!(
            "the demo was ended by {name}; locks that were still held are free within {} s",
            worker::TTL.as_secs()
        ),
    )
}

/// Prints the picture or JSON, and returns the verdict.
fn report(global: &Global, args: &Demo, store: &str, history: &History) -> CommandOutcome {
    let check = history.check();
    if global.json {
        output::show(&as_json(args, store, history, &check).to_string())?;
    } else if history.grants() > 0 {
        output::show(&picture::picture(history, &check, &picture::Canvas::of_stdout()))?;
    }
    verdict(history, &check)
}

fn verdict(history: &History, check: &Check) -> CommandOutcome {
    if check.overlaps > 0 || check.fences_fell > 0 {
        return Err(CommandFailure::internal(format!(
            "{} overlaps and {} fences that did not rise: this store's locks are not safe; please report it with \
             the output above",
            check.overlaps, check.fences_fell
        )));
    }
    match history.failures().first() {
        Some((worker, status, line)) => Err(CommandFailure::new(*status, format!("worker {worker}: {line}"))),
        None if history.grants() == 0 => Err(CommandFailure::new(
            if history.deaths().is_empty() { UNREACHABLE } else { INTERNAL },
            "no lock was granted; check the store's load, and try --seconds 30",
        )),
        None => Ok(0),
    }
}

fn as_json(args: &Demo, store: &str, history: &History, check: &Check) -> serde_json::Value {
    let of_worker = |worker: u8| {
        json!({
            "worker": words::letter(worker).to_string(),
            "grants": history.holds().iter().filter(|hold| hold.worker == worker).count(),
        })
    };
    json!({
        "store": store,
        "grants": history.grants(),
        "overlaps": check.overlaps,
        "fences_fell": check.fences_fell,
        "longest_wait_ms": check.longest_wait.as_millis() as u64,
        "leases_run_out": check.run_out,
        "workers": (0..args.workers).map(of_worker).collect::<Vec<_>>(),
        "deaths": history.deaths(),
        "troubles": history.troubles(),
    })
}

//! The logger of the command: each record becomes one line on standard error.
//!
//! A thread of its own writes the lines, because standard error may block: the threads that renew leases, and the one that
//! ends a command whose lease is lost, must go on.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use dlm::Deadline;
use log::{LevelFilter, Log, Metadata, Record};

use crate::cli::exit::{CommandFailure, to_stderr};

const VARIABLE: &str = "DLM_LOG";

/// So many lines wait for standard error at most.
const LINES_MAX: usize = 1024;
/// Longest time for which the end of this process waits for lines that are not written.
const LAST_LINES: Duration = Duration::from_millis(500);

struct Logger {
    /// Of the thread that writes. `None` if it cannot be started: then each thread writes its lines.
    lines: OnceLock<Option<Sender<String>>>,
    /// Lines that are not written yet.
    open: AtomicUsize,
    /// Lines for which there was no room.
    dropped: AtomicUsize,
}

static LOGGER: Logger =
    Logger { lines: OnceLock::new(), open: AtomicUsize::new(0), dropped: AtomicUsize::new(0) };

impl Logger {
    fn start_thread() -> Option<Sender<String>> {
        let (sender, lines) = bounded::<String>(LINES_MAX);
        let write = move || {
            for line in lines {
                match LOGGER.dropped.swap(0, Ordering::Relaxed) {
                    0 => {}
                    dropped => to_stderr(&format!(
                        "warning: {dropped} lines were not written, because standard error was blocked"
                    )),
                }
                to_stderr(&line);
                LOGGER.open.fetch_sub(1, Ordering::Release);
            }
        };
        std::thread::Builder::new().name("dlm-log".into()).spawn(write).ok().map(|_| sender)
    }

    fn write(&self, line: String) {
        let Some(sender) = self.lines.get_or_init(Logger::start_thread) else { return to_stderr(&line) };
        self.open.fetch_add(1, Ordering::Relaxed);
        if sender.try_send(line).is_err() {
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // A server that is down makes other crates log as well. The library reports it in one error of its own.
        let ours = metadata.target().split("::").next() == Some("dlm");
        metadata.level() <= log::max_level() && (ours || log::max_level() >= LevelFilter::Debug)
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = match record.level() {
                log::Level::Error => "error",
                log::Level::Warn => "warning",
                log::Level::Info => "info",
                log::Level::Debug => "debug",
                log::Level::Trace => "trace",
            };
            self.write(format!("{level}: {}", record.args()));
        }
    }

    /// Waits for the lines that are not written yet, for half a second at most.
    fn flush(&self) {
        let by = Deadline::after(LAST_LINES);
        while self.open.load(Ordering::Acquire) > 0 && !by.passed() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Sets the logger and its level: warnings and errors, more with each `-v`. `DLM_LOG` overrides `-v`. At `debug`
/// and `trace`, records of other crates are shown as well.
pub(crate) fn start(verbose: u8) -> Result<(), CommandFailure> {
    let level = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse().map_err(|_| {
            CommandFailure::usage(format!(
                "{VARIABLE}={text:?} is not allowed: off, error, warn, info, debug or trace"
            ))
        })?,
        _ => match verbose {
            0 => LevelFilter::Warn,
            1 => LevelFilter::Info,
            2 => LevelFilter::Debug,
            _ => LevelFilter::Trace,
        },
    };
    // Fails only if a logger was set before.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(level);
    Ok(())
}

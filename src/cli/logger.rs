//! The logger of the command: each record becomes one line on standard error.

use log::{LevelFilter, Log, Metadata, Record};

use crate::cli::exit::{CommandFailure, tell};

const VARIABLE: &str = "DLM_LOG";

struct Logger;

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
            tell(&format!("{level}: {}", record.args()));
        }
    }

    fn flush(&self) {}
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
    static LOGGER: Logger = Logger;
    // Fails only if a logger was set before.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(level);
    Ok(())
}

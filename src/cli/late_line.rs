//! A line about something that takes long, for a person who waits for it.

use std::io::IsTerminal as _;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, TryRecvError, bounded};
use log::LevelFilter;

use crate::cli::exit;

/// A line that is written once, unless this is dropped before. On a terminal, and elsewhere with `-v`.
#[derive(Debug)]
pub(crate) struct LateLine {
    _goes_on: Sender<()>,
}

impl LateLine {
    /// Writes `line` after `pause`. It may block: a thread of its own calls it, and nobody waits for that thread.
    pub(crate) fn after(pause: Duration, line: impl FnOnce() -> String + Send + 'static) -> Option<LateLine> {
        if !std::io::stderr().is_terminal() && log::max_level() < LevelFilter::Info {
            return None;
        }
        let (goes_on, over) = bounded(0);
        let print = move || {
            if over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let line = line();
            if over.try_recv() == Err(TryRecvError::Empty) && exit::may_write() {
                exit::to_stderr(&line);
            }
        };
        // Without a thread there is no line.
        std::thread::Builder::new().name("dlm-late-line".into()).spawn(print).ok()?;
        Some(LateLine { _goes_on: goes_on })
    }
}

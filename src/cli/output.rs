//! Standard output: it may be closed, or full.

use std::io::{self, ErrorKind, Write as _};

use crate::cli::exit::CommandFailure;

/// Writes `text` and a line end.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// As [`line`], for what a reader may have seen enough of: a closed pipe is no failure.
pub(crate) fn show(text: &str) -> Result<(), CommandFailure> {
    match line(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(CommandFailure::internal(format!(
            "standard output cannot be written: {error}; check where it goes"
        ))),
        _ => Ok(()),
    }
}

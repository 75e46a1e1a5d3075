//! Standard output: it may be closed, or full.

use std::io::{self, ErrorKind, Write as _};

use crate::cli::exit::CommandFailure;

/// Writes `text` and a newline to standard output, and flushes it.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Like [`line`], but ignores a closed pipe, because the reader may need only the beginning.
pub(crate) fn show(text: &str) -> Result<(), CommandFailure> {
    match line(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(CommandFailure::internal(format!(
            "standard output cannot be written: {error}; check where it goes"
        ))),
        _ => Ok(()),
    }
}

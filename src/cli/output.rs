//! Standard output: it may be closed, or full.

use std::io::{self, ErrorKind, Write as _};

use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};

use crate::cli::exit::CommandFailure;
pub(crate) use crate::cli::objects::line as json;

/// Writes `text` and a newline to standard output, and flushes it.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Refuses a standard output that was closed when the process began (`>&-`), for a command whose output must not be lost.
///
/// Rust opens `/dev/null` for reading and writing in its place. A shell opens it for writing alone.
pub(crate) fn refuse_closed() -> Result<(), CommandFailure> {
    let out = io::stdout();
    let both = OFlags::RDWR;
    let is_replaced = fcntl_getfl(&out).is_ok_and(|flags| flags & OFlags::ACCMODE == both)
        && fstat(&out)
            .and_then(|out| Ok((out.st_rdev, stat("/dev/null")?.st_rdev)))
            .is_ok_and(|(out, null)| out == null);
    match is_replaced {
        true => Err(CommandFailure::internal(
            "standard output is closed, so the lease would be lost; redirect it to a file or a pipe",
        )),
        false => Ok(()),
    }
}

/// Like [`line`], but ignores a closed pipe, because the reader may need only the beginning.
pub(crate) fn show(text: &str) -> Result<(), CommandFailure> {
    line_is_read(text).map(|_| ())
}

/// Like [`line`], and returns whether somebody still reads: `false` after the pipe was closed.
pub(crate) fn line_is_read(text: &str) -> Result<bool, CommandFailure> {
    match line(text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let what = format!("standard output cannot be written: {error}; check where it goes");
            Err(CommandFailure::internal(what))
        }
    }
}

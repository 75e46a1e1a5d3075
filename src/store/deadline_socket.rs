//! A blocking socket on which every wait has a deadline. One thread may send while another thread receives.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::runtime::process::descriptors::above_streams;
use crate::runtime::time::Deadline;

/// Longest single wait on a socket. A longer wait consists of several such pieces, so the socket's time-out need
/// not be set again for every call.
const PIECE: Duration = Duration::from_secs(1);

pub(super) struct DeadlineSocket {
    stream: TcpStream,
    /// Whether the read time-out of the socket is `PIECE`.
    reads_in_pieces: AtomicBool,
    /// Whether the write time-out of the socket is `PIECE`.
    writes_in_pieces: AtomicBool,
}

/// What has arrived on a socket from which nobody receives.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    Nothing,
    Bytes,
    /// The peer closed the connection, or the connection broke.
    End,
}

impl DeadlineSocket {
    pub(super) fn connect(address: &SocketAddr, by: Deadline) -> io::Result<DeadlineSocket> {
        let left = left(by)?;
        let stream = above_streams(|| TcpStream::connect_timeout(address, left))?;
        stream.set_nodelay(true)?;
        let unset = || AtomicBool::new(false);
        Ok(DeadlineSocket { stream, reads_in_pieces: unset(), writes_in_pieces: unset() })
    }

    /// Receives some bytes, at least one.
    pub(super) fn read_some(&self, out: &mut [u8], by: Deadline) -> io::Result<usize> {
        loop {
            patiently(&self.reads_in_pieces, by, |time| self.stream.set_read_timeout(Some(time)))?;
            match (&self.stream).read(out) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // Sockets report an expired time-out as `WouldBlock`.
                Err(error) if is_temporary(&error) => {}
                received => return received,
            }
        }
    }

    pub(super) fn write_all(&self, bytes: &[u8], by: Deadline) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            patiently(&self.writes_in_pieces, by, |time| self.stream.set_write_timeout(Some(time)))?;
            match (&self.stream).write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => rest = &rest[taken..],
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns what has arrived, as far as this side knows. Takes no bytes.
    pub(super) fn arrived(&self) -> Arrived {
        let mut byte = [0; 1];
        match rustix::net::recv(&self.stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Arrived::End,
            Ok(_) => Arrived::Bytes,
            Err(Errno::WOULDBLOCK) => Arrived::Nothing,
            Err(_) => Arrived::End,
        }
    }

    /// Returns the address of the other side.
    #[cfg(feature = "hbase")]
    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Closes the connection in both directions. A thread that is receiving returns.
    #[cfg(feature = "hbase")]
    pub(super) fn shut(&self) {
        // Fails only if the server has closed the connection already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Returns the time until the deadline. Never zero, which sockets do not accept: fails with `TimedOut` instead.
pub(super) fn left(by: Deadline) -> io::Result<Duration> {
    match by.remaining() {
        left if left.is_zero() => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// Sets the time-out of the socket so the next wait ends by `by`. Fails with `TimedOut` if `by` has passed.
fn patiently(
    in_pieces: &AtomicBool,
    by: Deadline,
    set: impl Fn(Duration) -> io::Result<()>,
) -> io::Result<()> {
    let left = left(by)?;
    let piece = left >= PIECE;
    // Only one thread reads and only one thread writes at a time. Each of them has its own flag.
    if !piece || !in_pieces.load(Ordering::Relaxed) {
        set(left.min(PIECE))?;
        in_pieces.store(piece, Ordering::Relaxed);
    }
    Ok(())
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

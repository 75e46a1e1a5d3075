//! Bytes from the network, taken one part after the other.

use std::io;

/// Bytes that were not parsed yet.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl<'a> Rest<'a> {
    pub(super) fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| bad("a reply ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes a field or an operation.
    pub(super) fn part(&mut self) -> io::Result<&'a [u8]> {
        let length = self.take(4)?;
        self.take(u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize)
    }
}

pub(super) fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

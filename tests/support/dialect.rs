//! The protocols that the proxy understands: as far as telling messages apart takes.

use std::net::SocketAddr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Thrift's binary encoding without frames, as HBase's gateway speaks it.
    Thrift,
    /// Version, type and 48 bits of length, then the message.
    Aerospike,
}

impl Dialect {
    /// Where the message at the beginning of `bytes` ends; `None` when that is not there yet.
    pub(super) fn end_of_message(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Dialect::Thrift => end_of_thrift(bytes),
            Dialect::Aerospike => {
                let header = u64::from_be_bytes(*bytes.first_chunk()?);
                let end = 8 + (header & 0xffff_ffff_ffff) as usize;
                (bytes.len() >= end).then_some(end)
            }
        }
    }

    /// What the request asks for.
    pub(super) fn method(self, request: &[u8]) -> String {
        match self {
            Dialect::Thrift => thrift_method(request),
            Dialect::Aerospike => aerospike_method(request).to_owned(),
        }
    }

    /// A node of Aerospike tells its clients where to find it.
    pub(super) fn readdressed(self, reply: Vec<u8>, gateway: SocketAddr, proxy: SocketAddr) -> Vec<u8> {
        if self == Dialect::Thrift || reply[1] != INFO {
            return reply;
        }
        let text = String::from_utf8_lossy(&reply[8..]);
        let body = text.replace(&gateway.to_string(), &proxy.to_string()).into_bytes();
        let header = (2u64 << 56) | (u64::from(INFO) << 48) | body.len() as u64;
        [header.to_be_bytes().to_vec(), body].concat()
    }
}

/// Type of a message in which text asks about the server.
const INFO: u8 = 1;
/// Type of a message that concerns records.
const RECORDS: u8 = 3;

/// `info`, `login`, `get`, `batch`; of writes, `fence` for that of a lock, `create` for what must be new,
/// `delete`, or `change`.
fn aerospike_method(request: &[u8]) -> &'static str {
    const BATCH: u8 = 1 << 3;
    const WRITE: u8 = 1;
    const CREATE_ONLY: u8 = 1 << 5;
    match (request[1], request[9], request[10]) {
        (INFO, ..) => "info",
        (kind, ..) if kind != RECORDS => "login",
        (_, read, _) if read & BATCH != 0 => "batch",
        (_, _, write) if write & WRITE == 0 => "get",
        _ if contains(request, b"D_FNC#") => "fence",
        (_, _, write) if write & CREATE_ONLY != 0 => "create",
        _ if deletes(request) => "delete",
        _ => "change",
    }
}

/// Whether the last of the request's operations is a delete: four bytes of length, the operation, a type
/// and two more.
fn deletes(request: &[u8]) -> bool {
    const DELETE: u8 = 14;
    request.ends_with(&[0, 0, 0, 4, DELETE, 0, 0, 0])
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The name in a message's header: version and kind, length, name, sequence number.
fn thrift_method(message: &[u8]) -> String {
    let length = u32::from_be_bytes(message[4..8].try_into().unwrap()) as usize;
    String::from_utf8_lossy(&message[8..8 + length]).into_owned()
}

/// Where the message at the beginning of `bytes` ends; `None` when that is not there yet.
fn end_of_thrift(bytes: &[u8]) -> Option<usize> {
    let mut at = Walk { bytes, at: 4 };
    at.string()?;
    at.skip(4)?;
    at.structure()?;
    Some(at.at)
}

/// A walk through Thrift's binary encoding.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    fn skip(&mut self, count: usize) -> Option<()> {
        self.at = self.at.checked_add(count).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        self.skip(1)?;
        Some(self.bytes[self.at - 1])
    }

    fn count(&mut self) -> Option<usize> {
        self.skip(4)?;
        Some(u32::from_be_bytes(self.bytes[self.at - 4..self.at].try_into().ok()?) as usize)
    }

    fn string(&mut self) -> Option<()> {
        let length = self.count()?;
        self.skip(length)
    }

    fn structure(&mut self) -> Option<()> {
        loop {
            match self.byte()? {
                0 => return Some(()),
                kind => {
                    self.skip(2)?;
                    self.value(kind)?;
                }
            }
        }
    }

    fn value(&mut self, kind: u8) -> Option<()> {
        match kind {
            2 | 3 => self.skip(1),
            6 => self.skip(2),
            8 => self.skip(4),
            4 | 10 => self.skip(8),
            11 => self.string(),
            12 => self.structure(),
            13 => {
                let kinds = [self.byte()?, self.byte()?];
                (0..self.count()?).try_for_each(|_| kinds.iter().try_for_each(|kind| self.value(*kind)))
            }
            14 | 15 => {
                let kind = self.byte()?;
                (0..self.count()?).try_for_each(|_| self.value(kind))
            }
            other => panic!("type {other} is none of Thrift's"),
        }
    }
}

//! Who holds a lock: what a record tells about its holder.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result, quoted};
use crate::time;

/// Longest host or purpose in a record, in bytes: a record is read by every waiter.
const PART_BYTES_MAX: usize = 255;

/// A process that takes locks, as it describes itself in its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// Host name.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// When the lock manager was opened, in milliseconds since 1970: tells two processes with one pid apart.
    pub start_ms: u64,
    /// What the caller says it wants its locks for; may be empty.
    pub purpose: String,
}

impl Who {
    /// This process.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when `purpose` is longer than 255 bytes or contains control characters.
    pub fn this_process(purpose: &str) -> Result<Who> {
        if purpose.len() > PART_BYTES_MAX || purpose.chars().any(char::is_control) {
            return Err(Error::invalid("purpose", purpose, "at most 255 bytes without control characters"));
        }
        let mut host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        while host.len() > PART_BYTES_MAX {
            host.pop();
        }
        Ok(Who { host, pid: std::process::id(), start_ms: time::wall_ms(), purpose: purpose.to_owned() })
    }

    /// `pid:u32 start:u64 host_len:u8 host purpose_len:u8 purpose`, integers big-endian. Part of the
    /// records of HBase and of the embedded store.
    #[cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]
    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pid.to_be_bytes());
        out.extend_from_slice(&self.start_ms.to_be_bytes());
        for part in [&self.host, &self.purpose] {
            // Both are at most PART_BYTES_MAX by construction; a caller's own Who is cut at a byte,
            // and read back with replacement characters.
            let bytes = &part.as_bytes()[..part.len().min(PART_BYTES_MAX)];
            out.push(bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
    }

    /// What [`encode_into`](Who::encode_into) wrote; `None` for anything else. Bytes behind it are
    /// left to later versions.
    #[cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Who> {
        let (pid, rest) = bytes.split_first_chunk::<4>()?;
        let (start_ms, rest) = rest.split_first_chunk::<8>()?;
        let (host, rest) = part(rest)?;
        let (purpose, _) = part(rest)?;
        Some(Who { host, pid: u32::from_be_bytes(*pid), start_ms: u64::from_be_bytes(*start_ms), purpose })
    }
}

#[cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]
fn part(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    let (part, rest) = rest.split_at_checked(usize::from(len))?;
    Some((String::from_utf8_lossy(part).into_owned(), rest))
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} on {}", self.pid, self.host.escape_debug())?;
        if self.purpose.is_empty() { Ok(()) } else { write!(f, " for {}", quoted(&self.purpose)) }
    }
}

/// The holder of a lock as one look at the store showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Who it is; `None` when the record is not ours to read, such as one of the Java library.
    pub who: Option<Who>,
    /// How long the lease has left if it is not renewed, where the store tells. A hint: it compares
    /// clocks of two machines.
    pub remaining: Option<Duration>,
    /// When the lock was granted or last renewed, by the store's clock.
    pub since: Option<SystemTime>,
}

impl Holder {
    /// A holder of which nothing more is known.
    pub fn unknown() -> Holder {
        Holder { who: None, remaining: None, since: None }
    }

    /// For stores.
    pub fn new(who: Option<Who>, remaining: Option<Duration>, since: Option<SystemTime>) -> Holder {
        Holder { who, remaining, since }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Some(who) => who.fmt(f)?,
            None => f.write_str("a client that does not say who it is")?,
        }
        match self.remaining {
            Some(left) => write!(f, ", {:.1} s left", left.as_secs_f64()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]
    fn sample() -> Who {
        Who { host: "höst-1".into(), pid: 4242, start_ms: 1_700_000_000_123, purpose: "nightly job".into() }
    }

    #[cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]
    #[test]
    fn what_is_written_is_read_back_and_cut_records_are_refused() {
        let mut bytes = Vec::new();
        sample().encode_into(&mut bytes);
        assert_eq!(Who::decode(&bytes), Some(sample()));
        for cut in 0..bytes.len() {
            assert_eq!(Who::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        bytes.push(7);
        assert_eq!(Who::decode(&bytes), Some(sample()), "later versions may append");
    }

    #[cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]
    #[test]
    fn an_overlong_part_is_cut_not_wrapped() {
        let who = Who { purpose: "p".repeat(300), ..sample() };
        let mut bytes = Vec::new();
        who.encode_into(&mut bytes);
        assert_eq!(Who::decode(&bytes).unwrap().purpose.len(), PART_BYTES_MAX);
    }

    #[test]
    fn this_process_is_described_and_bad_purposes_are_refused() {
        let who = Who::this_process("tests").unwrap();
        assert_eq!((who.pid, who.purpose.as_str()), (std::process::id(), "tests"));
        assert!(!who.host.is_empty());
        assert!(Who::this_process(&"p".repeat(256)).is_err());
        assert!(Who::this_process("a\nb").is_err());
    }
}

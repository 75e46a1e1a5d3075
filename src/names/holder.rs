//! The holder of a lock, as its record describes it.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::names::mode::Mode;
use crate::names::notice_endpoint::GrantEndpoint;
use crate::names::text::quoted;

/// Longest host or purpose in a record, in bytes. Every waiter reads the record.
pub(crate) const PART_BYTES_MAX: usize = 255;

/// A process that uses locks, as it describes itself in its records. Two are equal if they describe the same process.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Host name.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// When the lock manager was opened, in milliseconds since 1970. Distinguishes two processes with the same pid.
    pub start_ms: u64,
    /// What the process uses its locks for, as set by [`Builder::purpose`](crate::Builder::purpose). May be empty.
    pub purpose: String,
    /// Where it receives notices for this grant. `None` if its notices are off.
    pub notices: Option<GrantEndpoint>,
}

impl Identity {
    /// Appends `pid:u32 start:u64 host_len:u8 host purpose_len:u8 purpose`, integers big-endian, and the
    /// [`GrantEndpoint`] if there is one. Part of the records of all stores.
    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pid.to_be_bytes());
        out.extend_from_slice(&self.start_ms.to_be_bytes());
        for part in [&self.host, &self.purpose] {
            // This process's own parts are at most PART_BYTES_MAX. Those of an Identity made by a caller may be
            // longer: they are cut at a byte, and read back with replacement characters.
            let bytes = &part.as_bytes()[..part.len().min(PART_BYTES_MAX)];
            out.push(bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
        if let Some(notices) = self.notices {
            notices.encode_into(out);
        }
    }

    /// Reads what [`encode_into`](Identity::encode_into) wrote; `None` for anything else. Ignores the bytes
    /// after it, which are for later versions.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Identity> {
        Identity::split(bytes).map(|(identity, _)| identity)
    }

    /// Reads what [`encode_into`](Identity::encode_into) wrote, and returns it with the bytes after it.
    pub(crate) fn split(bytes: &[u8]) -> Option<(Identity, &[u8])> {
        let (pid, rest) = bytes.split_first_chunk::<4>()?;
        let (start_ms, rest) = rest.split_first_chunk::<8>()?;
        let (host, rest) = part(rest)?;
        let (purpose, rest) = part(rest)?;
        let (pid, start_ms) = (u32::from_be_bytes(*pid), u64::from_be_bytes(*start_ms));
        let (notices, rest) = match GrantEndpoint::split(rest) {
            Some((notices, rest)) => (Some(notices), rest),
            None => (None, rest),
        };
        Some((Identity { host, pid, start_ms, purpose, notices }, rest))
    }
}

fn part(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    let (part, rest) = rest.split_at_checked(usize::from(len))?;
    Some((String::from_utf8_lossy(part).into_owned(), rest))
}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        // Not where it receives notices, which differs from grant to grant.
        (self.pid, self.start_ms, &self.host, &self.purpose)
            == (other.pid, other.start_ms, &other.host, &other.purpose)
    }
}

impl Eq for Identity {}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} on {}", self.pid, self.host.escape_debug())?;
        if self.purpose.is_empty() { Ok(()) } else { write!(f, " for {}", quoted(&self.purpose)) }
    }
}

/// The holder of a lock, as read from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The process that holds the lock. `None` if the record does not describe it, such as one of the Java
    /// library.
    pub identity: Option<Identity>,
    /// Remaining lease time, if the store reports it. The holder may renew the lease. Only a hint, because it
    /// compares clocks of two machines.
    pub remaining: Option<Duration>,
    /// When the lock was granted or last renewed, by the store's clock, if the store reports it.
    pub since: Option<SystemTime>,
    /// How it holds the lock, or would hold it.
    pub mode: Mode,
    /// The number of the permit, if it holds one of a semaphore.
    pub permit: Option<u8>,
    /// Whether it does not hold the lock but waits for it, and new readers must let it pass.
    pub is_waiting: bool,
    /// How long it has waited, if it waits.
    pub waited: Option<Duration>,
}

impl Holder {
    /// Returns a holder of which nothing is known.
    pub fn unknown() -> Holder {
        Holder::new(None, None, None)
    }

    /// Makes the holder of an exclusive lock, for stores.
    pub fn new(identity: Option<Identity>, remaining: Option<Duration>, since: Option<SystemTime>) -> Holder {
        let mode = Mode::Exclusive;
        Holder { identity, remaining, since, mode, permit: None, is_waiting: false, waited: None }
    }

    /// Returns the same holder with this mode, for stores.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Holder {
        Holder { mode, ..self }
    }

    /// Returns the same process as the holder of this permit of a semaphore, for stores.
    #[must_use]
    pub fn with_permit(self, permit: u8) -> Holder {
        Holder { mode: Mode::Permit, permit: Some(permit), ..self }
    }

    /// Returns the same process as one that has waited so long for the lock, for stores.
    #[must_use]
    pub fn waiting(self, waited: Duration) -> Holder {
        Holder { is_waiting: true, waited: Some(waited), ..self }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.identity {
            Some(identity) => identity.fmt(f)?,
            None => f.write_str("a client that does not identify itself")?,
        }
        if self.is_waiting {
            return f.write_str(", which waits for the lock, and for which new readers make way");
        }
        match (self.mode, self.permit) {
            (Mode::Exclusive, _) => {}
            (mode, Some(permit)) => write!(f, " ({mode} {permit})")?,
            (mode, None) => write!(f, " ({mode})")?,
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
    use crate::names::notice_endpoint::NoticeEndpoint;

    fn sample() -> Identity {
        Identity {
            host: "höst-1".into(),
            pid: 4242,
            start_ms: 1_700_000_000_123,
            purpose: "nightly job".into(),
            notices: None,
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_cut_records_are_refused() {
        let mut bytes = Vec::new();
        sample().encode_into(&mut bytes);
        assert_eq!(Identity::decode(&bytes), Some(sample()));
        for cut in 0..bytes.len() {
            assert_eq!(Identity::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        bytes.push(7);
        assert_eq!(Identity::decode(&bytes), Some(sample()), "later versions may append");
    }

    #[test]
    fn where_notices_are_heard_stands_behind_the_rest_which_earlier_versions_ignore() {
        let grant = GrantEndpoint { endpoint: NoticeEndpoint::Local(7), grant: 8 };
        let (mut before, mut bytes) = (Vec::new(), Vec::new());
        sample().encode_into(&mut before);
        Identity { notices: Some(grant), ..sample() }.encode_into(&mut bytes);
        assert!(bytes.starts_with(&before));
        bytes.push(7);
        let (identity, rest) = Identity::split(&bytes).unwrap();
        assert_eq!((identity.notices, rest), (Some(grant), &[7][..]));
        assert_eq!(identity, sample(), "the same process");
        assert_eq!(Identity::decode(&bytes[..bytes.len() - 2]).unwrap().notices, None, "cut");
    }

    #[test]
    fn an_overlong_part_is_cut_not_wrapped() {
        let identity = Identity { purpose: "p".repeat(300), ..sample() };
        let mut bytes = Vec::new();
        identity.encode_into(&mut bytes);
        assert_eq!(Identity::decode(&bytes).unwrap().purpose.len(), PART_BYTES_MAX);
    }
}

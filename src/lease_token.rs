//! A lease as one line of text, to be handed to another process.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::config::checked_ttl;
use crate::error::{Error, Result};
use crate::store::{Fence, LockName, Proof};

/// Version and kind of the text; a later format gets another.
const PREFIX: &str = "dlm1.";

/// A lease in words: what renews and releases a lock from any process that reaches the same store.
///
/// Its text (`to_string`, `parse`) proves ownership, so treat it as a password: it is not shown by
/// `Debug`, and does not belong in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseToken {
    pub(crate) name: LockName,
    pub(crate) fence: Option<Fence>,
    pub(crate) ends_ms: u64,
    pub(crate) ttl: Duration,
    pub(crate) proof: Proof,
}

impl LeaseToken {
    /// The lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// See [`Lease::fence`](crate::Lease::fence).
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// When the lease ends unless renewed, in milliseconds since 1970 by the clock of the machine that
    /// acquired it.
    pub fn ends_ms(&self) -> u64 {
        self.ends_ms
    }

    /// `key_len:u16 key fence:u64 (0 = none) ends_ms:u64 ttl_ms:u64 proof_len:u16 proof`, big-endian.
    fn encode(&self) -> Vec<u8> {
        let key = self.name.key().as_bytes();
        let mut bytes = Vec::with_capacity(26 + key.len() + self.proof.as_bytes().len());
        // A name is at most about 1.6 KiB (checked when it is made).
        bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
        bytes.extend_from_slice(key);
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        for number in [self.fence.map_or(0, |fence| fence.0), self.ends_ms, ttl_ms] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        // So is a proof: a store's record with parts of at most 255 bytes.
        bytes.extend_from_slice(&(self.proof.as_bytes().len() as u16).to_be_bytes());
        bytes.extend_from_slice(self.proof.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<LeaseToken> {
        let (key_len, rest) = bytes.split_first_chunk::<2>()?;
        let (key, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*key_len)))?;
        let (fence, rest) = rest.split_first_chunk::<8>()?;
        let (ends_ms, rest) = rest.split_first_chunk::<8>()?;
        let (ttl_ms, rest) = rest.split_first_chunk::<8>()?;
        let (proof_len, proof) = rest.split_first_chunk::<2>()?;
        // A text cut short by a careless copy is refused here, not taken for someone else's lease.
        if proof.is_empty() || proof.len() != usize::from(u16::from_be_bytes(*proof_len)) {
            return None;
        }
        let fence = u64::from_be_bytes(*fence);
        let ttl = checked_ttl(Duration::from_millis(u64::from_be_bytes(*ttl_ms))).ok()?;
        Some(LeaseToken {
            name: LockName::from_key(std::str::from_utf8(key).ok()?).ok()?,
            fence: (fence != 0).then_some(Fence(fence)),
            ends_ms: u64::from_be_bytes(*ends_ms),
            ttl,
            proof: Proof::from_bytes(proof),
        })
    }
}

/// The secret text itself.
impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.encode().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for LeaseToken {
    type Err = Error;

    /// # Errors
    /// INVALID_ARGUMENT when the text is not a whole lease. The message does not repeat the text.
    fn from_str(text: &str) -> Result<LeaseToken> {
        text.trim()
            .strip_prefix(PREFIX)
            .and_then(unhex)
            .and_then(|bytes| LeaseToken::decode(&bytes))
            .ok_or_else(|| Error::InvalidArgument {
                what: "lease",
                value: "(not shown)".into(),
                allowed: "the whole line that `dlm acquire` printed".into(),
            })
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseToken")
            .field("name", &self.name)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Level, NamePolicy};

    fn sample(proof_len: usize) -> LeaseToken {
        LeaseToken {
            name: LockName::new(Level::Dc, "svc", Some("dc1"), "a#b é", NamePolicy::Strict).unwrap(),
            fence: Some(Fence(77)),
            ends_ms: 1_800_000_000_000,
            ttl: Duration::from_secs(90),
            proof: Proof::from_bytes(vec![0xab; proof_len]),
        }
    }

    #[test]
    fn a_lease_survives_the_way_through_text() {
        for proof_len in [1, 16, 255, 700] {
            let token = sample(proof_len);
            assert_eq!(format!(" {token}\n").parse::<LeaseToken>().unwrap(), token);
        }
        let unfenced = LeaseToken { fence: None, ..sample(16) };
        assert_eq!(unfenced.to_string().parse::<LeaseToken>().unwrap().fence(), None);
    }

    #[test]
    fn a_cut_or_foreign_text_is_refused_without_repeating_it() {
        let text = sample(16).to_string();
        for cut in 0..text.len() {
            assert!(text[..cut].parse::<LeaseToken>().is_err(), "cut at {cut}");
        }
        for text in ["", "dlm1.", "dlm1.zz", "dlm1.é0", "dlm2.00", "+1"] {
            let error = text.parse::<LeaseToken>().unwrap_err();
            assert_eq!(error.code(), crate::Code::InvalidArgument);
        }
        let error = "dlm1.534543524554".parse::<LeaseToken>().unwrap_err();
        assert!(!error.to_string().contains("53454"), "{error}");
    }

    #[test]
    fn debug_output_does_not_hold_the_proof() {
        assert!(!format!("{:?}", sample(16)).contains("ab, ab"));
        assert!(!format!("{:?}", sample(16)).contains("abab"));
    }
}

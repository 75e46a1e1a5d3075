//! Owner tokens and records, which distinguish our record in a store from others.

use std::fmt;

use crate::error::{Error, Result};
use crate::names::fnv::fnv1a;
use crate::runtime::random;

/// 128 random bits, drawn for every attempt to acquire a lock. Anyone who knows them can release the lock,
/// so they never appear in logs, errors or `Debug` output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnerToken([u8; OwnerToken::LEN]);

impl OwnerToken {
    /// Bytes in a token.
    pub const LEN: usize = 16;

    /// Draws a new token from the operating system's random numbers.
    ///
    /// # Errors
    /// [`Code::InternalError`](crate::Code::InternalError) if the system provides no random bytes.
    pub fn draw() -> Result<OwnerToken> {
        let mut token = [0; OwnerToken::LEN];
        random::secret(&mut token).map_err(|error| Error::Internal {
            what: "the operating system gave no random bytes for an owner token".into(),
            source: Some(error.into()),
        })?;
        Ok(OwnerToken(token))
    }

    /// Makes the token with these bytes.
    pub fn from_bytes(bytes: [u8; OwnerToken::LEN]) -> OwnerToken {
        OwnerToken(bytes)
    }

    /// Returns a number that identifies this token: its FNV-1a hash. The number is no secret, because 64 bits do not
    /// determine the token's 128.
    pub(crate) fn hash(&self) -> u64 {
        fnv1a(&self.0)
    }

    /// Returns the bytes, for storing them.
    pub fn as_bytes(&self) -> &[u8; OwnerToken::LEN] {
        &self.0
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(***)")
    }
}

/// The record of one grant as the store wrote it, which it needs to renew or release the lock. Only that store
/// interprets it. It contains the owner token, so it is as secret.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnerRecord(Box<[u8]>);

impl OwnerRecord {
    /// Makes a record from bytes, for stores and for a lease that comes from another process.
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> OwnerRecord {
        OwnerRecord(bytes.into())
    }

    /// Returns the bytes, for stores and for a lease that goes to another process.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for OwnerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerRecord(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_shows_in_debug_output() {
        let token = OwnerToken::from_bytes(*b"SECRETSECRETSECR");
        let owner_record = OwnerRecord::from_bytes(token.as_bytes().as_slice());
        assert_eq!(format!("{token:?} {owner_record:?}"), "OwnerToken(***) OwnerRecord(***)");
    }

    /// Holders and those who break locks compare the numbers.
    #[test]
    fn the_hash_of_a_token_stays_as_it_is() {
        assert_eq!(OwnerToken::from_bytes([0; 16]).hash(), 0x8820_1fb9_60ff_6465);
        assert_eq!(OwnerToken::from_bytes(*b"SECRETSECRETSECR").hash(), 0xc392_5dd1_b881_f810);
    }

    #[test]
    fn two_tokens_differ() {
        assert_ne!(OwnerToken::draw().unwrap(), OwnerToken::draw().unwrap());
    }
}

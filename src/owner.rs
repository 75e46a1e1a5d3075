//! What tells our record in a store from another's.

use std::fmt;

use crate::error::{Error, Result};
use crate::random;

/// 128 random bits drawn for every attempt to take a lock. Whoever knows them may release the lock,
/// so they are in no log, no error and no `Debug` output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnerToken([u8; OwnerToken::LEN]);

impl OwnerToken {
    /// Bytes in a token.
    pub const LEN: usize = 16;

    /// A fresh one, from the operating system.
    ///
    /// # Errors
    /// INTERNAL_ERROR when the system has no randomness to give.
    pub fn draw() -> Result<OwnerToken> {
        let mut token = [0; OwnerToken::LEN];
        random::secret(&mut token).map_err(|error| Error::Internal {
            what: "the operating system gave no random bytes for an owner token".into(),
            source: Some(error.into()),
        })?;
        Ok(OwnerToken(token))
    }

    /// The token with these bytes.
    pub fn from_bytes(bytes: [u8; OwnerToken::LEN]) -> OwnerToken {
        OwnerToken(bytes)
    }

    /// The bytes, to be stored.
    pub fn as_bytes(&self) -> &[u8; OwnerToken::LEN] {
        &self.0
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(***)")
    }
}

/// What a store needs to renew or release one grant: the record as it wrote it. Opaque to all but the
/// store that made it, and as secret as the owner token inside.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnerRecord(Box<[u8]>);

impl OwnerRecord {
    /// For stores, and for a lease that comes from another process.
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> OwnerRecord {
        OwnerRecord(bytes.into())
    }

    /// For stores, and for a lease that goes to another process.
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

    #[test]
    fn two_tokens_differ() {
        assert_ne!(OwnerToken::draw().unwrap(), OwnerToken::draw().unwrap());
    }
}

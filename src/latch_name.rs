//! Names of latches, and the row that a latch has in HBase. As in [`name`](crate::name), the Java library computes the
//! same.

use std::fmt;

use crate::error::Result;
use crate::name::{NamePolicy, check_id, check_part, salted};
use crate::text::quoted;

/// The full name of a latch: client, farm and id. Checked when made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LatchName {
    client: String,
    farm: String,
    id: String,
    policy: NamePolicy,
}

impl LatchName {
    /// The name of latch `id` of `client`, whose count for `farm` is meant by changes and by reads of
    /// level DC.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when a part is empty, too long or contains what would make it meet another name.
    pub fn new(client: &str, farm: &str, id: &str, policy: NamePolicy) -> Result<LatchName> {
        check_part("client id", client, policy)?;
        check_part("farm id", farm, policy)?;
        check_id("latch id", id)?;
        Ok(LatchName { client: client.into(), farm: farm.into(), id: id.into(), policy })
    }

    /// The client id.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The farm whose count is one's own.
    pub fn farm(&self) -> &str {
        &self.farm
    }

    /// The latch's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the client and farm ids were allowed to contain: a store whose key has another delimiter
    /// than `#` checks it by the same policy.
    pub fn policy(&self) -> NamePolicy {
        self.policy
    }

    /// Row of the latch in HBase: hash byte, then `<client>_<id>`.
    pub fn hbase_row(&self) -> Vec<u8> {
        salted(format!("{}_{}", self.client, self.id).as_bytes(), &[])
    }
}

/// `<client>#<id>`, escaped for people.
impl fmt::Display for LatchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted(&format!("{}#{}", self.client, self.id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_is_that_of_the_java_library() {
        let name = LatchName::new("client", "dc1", "latch", NamePolicy::Strict).unwrap();
        assert_eq!(name.hbase_row(), b"\xafclient_latch");
    }

    #[test]
    fn a_part_that_would_meet_another_name_is_refused() {
        for (client, farm, id) in [
            ("", "dc1", "a"),
            ("a#b", "dc1", "a"),
            ("a", "", "a"),
            ("a", "d#", "a"),
            ("a", "d", ""),
            ("a", "d", "\0"),
        ] {
            assert!(
                LatchName::new(client, farm, id, NamePolicy::Strict).is_err(),
                "{client:?} {farm:?} {id:?}"
            );
        }
    }
}

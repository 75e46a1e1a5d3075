//! Names of latches.

use std::fmt;

use crate::error::Result;
use crate::names::lock_name::{NamePolicy, check_id, check_part};
use crate::names::text::quoted;

/// The full name of a latch: client, farm and id. Its parts have been checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LatchName {
    client: String,
    farm: String,
    id: String,
    policy: NamePolicy,
}

impl LatchName {
    /// Makes the name of latch `id` of `client`. Changes, and reads of level DC, use its count for `farm`.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if a part is empty, too long or contains a
    /// character that is not allowed: see [`NamePolicy`].
    pub fn new(client: &str, farm: &str, id: &str, policy: NamePolicy) -> Result<LatchName> {
        check_part("client id", client, policy)?;
        check_part("farm id", farm, policy)?;
        check_id("latch id", id)?;
        Ok(LatchName { client: client.into(), farm: farm.into(), id: id.into(), policy })
    }

    /// Returns the client id.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Returns the farm id. Changes, and reads of level DC, use the count of this farm.
    pub fn farm(&self) -> &str {
        &self.farm
    }

    /// Returns the id of the latch.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the policy by which the client and farm ids were checked. A store with another delimiter than `#`
    /// in its keys checks that delimiter by the same policy.
    pub fn policy(&self) -> NamePolicy {
        self.policy
    }
}

/// Writes `<client>#<id>`, escaped.
impl fmt::Display for LatchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted(&format!("{}#{}", self.client, self.id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

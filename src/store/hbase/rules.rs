//! The options of a store that change the protocol. `docs/hbase.md` says when each is right.

use crate::error::{Error, Result};
use crate::options::Options;

/// Where a lock's fence is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FencePlace {
    /// In a row beside the lock's: a Java client's Delete of the lock's row does not reach it.
    #[default]
    Row,
    /// In the lock's row, in one atomic step with the record: for tables that no Java client uses.
    LockRow,
    /// Nowhere.
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) fence: FencePlace,
    /// Whether clients of the Java library may use the table: their Deletes can hide a record that the
    /// server said yes to.
    pub(super) mixed_fleet: bool,
}

impl Rules {
    pub(super) fn take(options: &mut Options) -> Result<Rules> {
        let fence = match options.take("fence").as_deref() {
            None | Some("row") => FencePlace::Row,
            Some("lock_row") => FencePlace::LockRow,
            Some("off") => FencePlace::Off,
            Some(other) => return Err(Error::invalid("fence", other, "row, lock_row or off")),
        };
        let mixed_fleet = match options.take("mixed_fleet").as_deref() {
            None => fence != FencePlace::LockRow,
            Some("on") => true,
            Some("off") => false,
            Some(other) => return Err(Error::invalid("mixed_fleet", other, "on or off")),
        };
        if mixed_fleet && fence == FencePlace::LockRow {
            let why =
                "off where fence=lock_row: a Java client's Delete of the lock's row would set the fence back";
            return Err(Error::invalid("mixed_fleet", "on", why));
        }
        Ok(Rules { fence, mixed_fleet })
    }

    /// Whether an acquisition ends with a look at its record: against peers that delete, and because a
    /// fence counted in another row is sound only if the lock is still held after the count.
    pub(super) fn verifies(self) -> bool {
        self.mixed_fleet || self.fence == FencePlace::Row
    }
}

//! The store options that change the protocol. `docs/hbase.md` says when to use each of them.

use crate::error::{Error, Result};
use crate::settings::options::Options;

/// The cell that counts a lock's fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FencePlace {
    /// A separate row beside the lock's row. A Java client's Delete of the lock's row does not delete it.
    #[default]
    Row,
    /// The lock's row, in one atomic step with the record. Only for tables that no Java client uses.
    LockRow,
    /// No cell: locks have no fence.
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) fence: FencePlace,
    /// Whether clients of the Java library may use the table. Their Deletes can hide a record although the server
    /// answered yes to its Put.
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
                "off with fence=lock_row: a Java client's Delete of the lock's row would reset the fence";
            return Err(Error::invalid("mixed_fleet", "on", why));
        }
        Ok(Rules { fence, mixed_fleet })
    }
}

/// Refuses the option `own_table` in a layout that has one table for locks.
pub(super) fn refuse_own_table(options: &mut Options) -> Result<()> {
    match options.take("own_table") {
        None => Ok(()),
        Some(table) => Err(Error::invalid("own_table", table, "no such option without layout=both")),
    }
}

//! The store options that change the protocol. `docs/hbase.md` says when to use each of them.

use crate::error::{Error, Result};
use crate::settings::options::Options;

/// Returns whether locks have fences.
pub(super) fn take_fence(options: &mut Options) -> Result<bool> {
    match options.take("fence").as_deref() {
        None | Some("row") => Ok(true),
        Some("off") => Ok(false),
        Some("lock_row") => {
            let allowed = "row or off: lock_row is gone; layout=own keeps record and fence in one row. The \
                           section \"From fence=lock_row\" of docs/hbase.md says how to move a table";
            Err(Error::invalid("fence", "lock_row", allowed))
        }
        Some(other) => Err(Error::invalid("fence", other, "row or off")),
    }
}

/// Refuses the option `own_table` in a layout that has one table for locks.
pub(super) fn refuse_own_table(options: &mut Options) -> Result<()> {
    match options.take("own_table") {
        None => Ok(()),
        Some(table) => Err(Error::invalid("own_table", table, "no such option without layout=both")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_fence_that_is_gone_is_refused_with_what_to_do_instead() {
        let taken = |value: &str| {
            let mut options = Options::default();
            options.insert("fence".into(), value.into()).unwrap();
            take_fence(&mut options)
        };
        let error = taken("lock_row").unwrap_err().to_string();
        assert!(error.starts_with("fence \"lock_row\"") && error.contains("layout=own"), "{error}");
        for (value, has_fences) in [("row", true), ("off", false)] {
            assert_eq!(taken(value).unwrap(), has_fences);
        }
    }
}

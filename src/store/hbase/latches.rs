//! Latches in HBase: rows and columns, which are those of the Java library DistributedLatch 1.0.0-2, and
//! what both ways to them have in common.
//!
//! ```text
//! table D_LTCH_<suffix>, family C, row  h(k) ++ k  with  k = <client>_<latch>
//!
//!   count_<farm>              the farm's count: 8 bytes, big-endian
//!   op_<slot>_<farm>          0, operation            whether a change took effect
//!   made_<farm>               0, incarnation           which incarnation of the latch the names belong to
//!   due_<farm> 00 <name>      0, incarnation           expected by name
//!   came_<farm> 00 <name>     0, incarnation, operation    has counted
//! ```
//!
//! The Java library reads each column of the family as a number and adds them up (level XDC). It looks at
//! eight bytes of a value and no further: `0` stands for eight zero bytes, and what follows them is ours.
//! No farm has a NUL in its name, so that no two pairs of farm and name share a column.

use super::cell_store::{Content, NO_TABLE};
use crate::error::{Error, Result};
use crate::latch_name::LatchName;
use crate::name::{Level, NamePolicy, checked_table};
use crate::text::quoted;

const COUNTS: &[u8] = b"count_";

/// The table for latches: named by the option `latches`, or else after the table for locks.
///
/// # Errors
/// INVALID_ARGUMENT when HBase has no such names.
pub(super) fn table_name(suffix: Option<&str>, lock_table: &str) -> Result<String> {
    let suffix = suffix.unwrap_or(lock_table);
    let name = match suffix.split_once(':') {
        Some((namespace, rest)) => format!("{namespace}:D_LTCH_{rest}"),
        None => format!("D_LTCH_{suffix}"),
    };
    // By itself as well: it must not be empty, nor be cut at a second colon.
    checked_table(suffix).and_then(|_| checked_table(&name)).map_err(|_| {
        Error::invalid("latches", suffix, "[namespace:]suffix of ASCII letters, digits, '_', '-' and '.'")
    })
}

/// The latch's row.
///
/// # Errors
/// INVALID_ARGUMENT for a client whose name could end elsewhere: (`a_b`, `c`) and (`a`, `b_c`) have one row.
pub(super) fn row_of(name: &LatchName) -> Result<Vec<u8>> {
    if name.policy() == NamePolicy::Strict && name.client().contains('_') {
        let allowed = "without '_' for latches in HBase, where it ends the client's part of the key \
                       (names=compat allows it in a fleet that has such ids)";
        return Err(Error::invalid("client id", name.client(), allowed));
    }
    Ok(name.hbase_row())
}

pub(super) fn count_column(farm: &str) -> Vec<u8> {
    [COUNTS, farm.as_bytes()].concat()
}

/// How the columns of all farms' counts begin.
pub(super) fn count_columns() -> Vec<u8> {
    COUNTS.to_vec()
}

/// What `level` reads in these columns and their values, whatever else lies among them.
///
/// # Errors
/// INTERNAL_ERROR, naming the column, where a count is no count.
pub(super) fn count_in<'a>(
    cells: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    name: &LatchName,
    level: Level,
) -> Result<Option<i64>> {
    let own = count_column(name.farm());
    let mut sum: Option<i64> = None;
    for (column, value) in cells {
        let asked = match level {
            Level::Dc => column == own,
            Level::Xdc => column.starts_with(COUNTS),
        };
        if let Some(count) = asked.then(|| number(name, column, value)).transpose()?.flatten() {
            let total = sum.unwrap_or(0).checked_add(count).ok_or_else(|| Error::Internal {
                what: format!("the counts of latch {name} add up to more than 64 bits hold"),
                source: None,
            })?;
            sum = Some(total);
        }
    }
    Ok(sum)
}

/// The count in a column; `None` where it is empty, which is as if it were not there.
fn number(name: &LatchName, column: &[u8], value: &[u8]) -> Result<Option<i64>> {
    if value.is_empty() {
        return Ok(None);
    }
    let bytes = value.try_into().map_err(|_| Error::Internal {
        what: format!(
            "column {} of latch {name} holds {} bytes, where a count has 8",
            quoted(&format!("{}:{}", Content::Latches.family(), String::from_utf8_lossy(column))),
            value.len()
        ),
        source: None,
    })?;
    Ok(Some(i64::from_be_bytes(bytes)))
}

pub(super) fn not_found(name: &LatchName) -> Error {
    Error::NotFound { name: name.to_string() }
}

/// Where there is no table there is no latch.
pub(super) fn is_no_table(error: &Error) -> bool {
    matches!(error, Error::TableCreation { what, .. } if what == NO_TABLE)
}

/// `error`, or that there is no such latch, where that is what it means.
pub(super) fn or_not_found(error: Error, name: &LatchName) -> Error {
    if is_no_table(&error) { not_found(name) } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    fn name(client: &str, policy: NamePolicy) -> LatchName {
        LatchName::new(client, "dc1", "a", policy).unwrap()
    }

    #[test]
    fn the_table_is_named_after_that_of_the_locks_unless_told_otherwise() {
        for (suffix, locks, table) in [
            (None, "locks", "D_LTCH_locks"),
            (None, "ns:locks", "ns:D_LTCH_locks"),
            (Some("jobs"), "ns:locks", "D_LTCH_jobs"),
            (Some("ns:jobs"), "locks", "ns:D_LTCH_jobs"),
        ] {
            assert_eq!(table_name(suffix, locks).unwrap(), table);
        }
        for suffix in ["", ":", "a:", ":a", "a:b:c", "a b", "é", "a/b", &"x".repeat(250)] {
            let error = table_name(Some(suffix), "locks").unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{suffix:?}");
        }
    }

    /// `_` is what the Java library ends the client with.
    #[test]
    fn two_strict_names_never_share_a_row() {
        let error = row_of(&name("a_b", NamePolicy::Strict)).unwrap_err();
        assert!(error.to_string().contains("names=compat"), "{error}");
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(row_of(&name("a_b", NamePolicy::Compat)).unwrap()[1..], *b"a_b_a");
        assert_eq!(row_of(&name("a-b", NamePolicy::Strict)).unwrap()[1..], *b"a-b_a");
    }

    #[test]
    fn each_level_reads_the_counts_that_are_its_own_and_nothing_else() {
        let (two, minus) = (2i64.to_be_bytes(), (-5i64).to_be_bytes());
        let cells: Vec<(&[u8], &[u8])> = vec![
            (b"came_dc1\0w", &two),
            (b"count_dc1", &two),
            (b"count_dc10", &minus),
            (b"count_dc2", b""),
            (b"op_x_dc1", b"anything"),
        ];
        let name = name("a", NamePolicy::Strict);
        let read = |level| count_in(cells.iter().copied(), &name, level).unwrap();
        assert_eq!((read(Level::Dc), read(Level::Xdc)), (Some(2), Some(-3)));
        assert_eq!(count_in([cells[0], cells[3]], &name, Level::Xdc).unwrap(), None);
        assert_eq!(count_in([cells[2]], &name, Level::Dc).unwrap(), None, "of another farm");
    }

    #[test]
    fn what_is_no_count_is_an_error_that_names_the_column_and_never_a_guess() {
        let name = name("a", NamePolicy::Strict);
        for value in [&b"3"[..], &[0; 7], &[0; 9]] {
            let error = count_in([(&b"count_dc1"[..], value)], &name, Level::Dc).unwrap_err();
            assert_eq!(error.code(), Code::InternalError);
            assert!(error.to_string().contains("C:count_dc1"), "{error}");
        }
        let most = i64::MAX.to_be_bytes();
        let both: [(&[u8], &[u8]); 2] = [(b"count_a", &most), (b"count_b", &most)];
        assert_eq!(count_in(both, &name, Level::Xdc).unwrap_err().code(), Code::InternalError);
    }
}

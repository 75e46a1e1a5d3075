//! Latches in HBase: the rows and columns of the Java library DistributedLatch 1.0.0-2, and the code that both
//! transports share.
//!
//! ```text
//! table D_LTCH_<suffix>, family C, row  h(k) ++ k  with  k = <client>_<latch>
//!
//!   count_<farm>              the farm's count: 8 bytes, big-endian
//!                             D, random bits              the count was deleted: fewer than 8 bytes
//!   op_<slot>_<farm>          0, operation                 idempotency mark: this change took effect
//!   made_<farm>               0, incarnation               the incarnation of the count, if it has names or was reset
//!   due_<farm> 00 <name>      0, incarnation               this participant is expected
//!   came_<farm> 00 <name>     0, incarnation, operation    this participant has counted
//!   hears_<address>           0, random bits               the process at this address waits
//! ```
//!
//! At level XDC the Java library reads each column of the family as a number and adds these numbers. It reads
//! only the first eight bytes of a value. In this table `0` means eight zero bytes; the bytes after them belong
//! to this library. Farm names contain no NUL, so two pairs of farm and name never share a column.

use std::collections::BTreeMap;
use std::fmt;

use super::cell_store::{Content, NO_TABLE};
use super::list::{in_ranges, of_each_hash};
use super::marks::ZERO;
use crate::error::{Error, Result};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::{Level, NamePolicy};
use crate::names::notice_endpoint::{LatchListener, NoticeEndpoint};
use crate::names::owner::OwnerToken;
use crate::names::text::quoted;
use crate::store::hbase::row_keys::{latch_row, salted};
use crate::store::hbase::table_name::checked_table;
use crate::store::{LatchPage, LatchQuery, ListedLatch};

const COUNTS: &[u8] = b"count_";

/// Returns the name of the table for latches. Its suffix is the option `latches`, by default the name of the
/// table for locks.
///
/// # Errors
/// INVALID_ARGUMENT when HBase does not allow such a table name.
pub(super) fn table_name(suffix: Option<&str>, lock_table: &str) -> Result<String> {
    let suffix = suffix.unwrap_or(lock_table);
    // The suffix is checked by itself too: it must not be empty, and it must not contain a second colon.
    let name = checked_table(suffix).and_then(|suffix| {
        checked_table(&match suffix.split_once(':') {
            Some((namespace, rest)) => format!("{namespace}:D_LTCH_{rest}"),
            None => format!("D_LTCH_{suffix}"),
        })
    });
    name.map_err(|_| {
        Error::invalid("latches", suffix, "[namespace:]suffix of ASCII letters, digits, '_', '-' and '.'")
    })
}

/// Returns the row key of a latch.
///
/// # Errors
/// INVALID_ARGUMENT for a client id with `_`. It would make keys ambiguous: (`a_b`, `c`) and (`a`, `b_c`) would
/// have the same row.
pub(super) fn row_of(name: &LatchName) -> Result<Vec<u8>> {
    if name.policy() == NamePolicy::Strict && name.client().contains('_') {
        let allowed = "without '_' for latches in HBase, where it ends the client's part of the key \
                       (names=compat allows it, for services that already have such ids)";
        return Err(Error::invalid("client id", name.client(), allowed));
    }
    Ok(latch_row(name))
}

pub(super) fn count_column(farm: &str) -> Vec<u8> {
    [COUNTS, farm.as_bytes()].concat()
}

pub(super) fn made_column(farm: &str) -> Vec<u8> {
    format!("made_{farm}").into()
}

pub(super) fn due_column(farm: &str, name: &str) -> Vec<u8> {
    format!("due_{farm}\0{name}").into()
}

pub(super) fn came_column(farm: &str, name: &str) -> Vec<u8> {
    format!("came_{farm}\0{name}").into()
}

/// Returns the prefix of the count columns of all farms.
pub(super) fn count_columns() -> Vec<u8> {
    COUNTS.to_vec()
}

/// Computes the count that `level` reads from these columns and values. Ignores columns that are not counts.
///
/// # Errors
/// INTERNAL_ERROR when the value of a count column is not a count; the message names the column.
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
                what: format!("the sum of the counts of latch {name} does not fit into 64 bits"),
                source: None,
            })?;
            sum = Some(total);
        }
    }
    Ok(sum)
}

/// How the value of a deleted count begins. No count has so many, and the Java library reads no number from a value that is so
/// short.
pub(super) const DELETED: &[u8] = b"D";

/// Returns the value of a count that is deleted now. It is unique, so a creation can say which deletion it follows: the
/// request of an earlier one does not.
pub(super) fn deleted_value() -> Result<[u8; 7]> {
    let mut value = [0; 7];
    let token = OwnerToken::draw()?;
    for (to, from) in value.iter_mut().zip(DELETED.iter().chain(token.as_bytes())) {
        *to = *from;
    }
    Ok(value)
}

pub(super) fn is_deleted(value: &[u8]) -> bool {
    value.starts_with(DELETED) && value.len() == 7
}

/// Decodes the count in a column. An empty value means that there is no count, and so does that of a deleted one.
fn number(name: &dyn fmt::Display, column: &[u8], value: &[u8]) -> Result<Option<i64>> {
    if value.is_empty() || is_deleted(value) {
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

/// Reads a part of the list of a client's latches. `read` reads the rows of a range, each with its count columns: see
/// [`in_ranges`].
pub(super) fn page(
    asked: &LatchQuery<'_>,
    read: impl Fn(&[u8], &[u8], usize) -> Result<(Vec<LatchRow>, Option<Vec<u8>>)>,
) -> Result<LatchPage> {
    let begin = format!("{}_", asked.client);
    let ranges = of_each_hash(vec![format!("{begin}{}", asked.prefix).into_bytes()]);
    let read = in_ranges(ranges, asked.after, asked.most.max(1), asked.by, |from, to, most| {
        let (rows, next) = read(from, to, most)?;
        let listed = rows.iter().map(|(row, cells)| listed(asked.client, &begin, row, cells));
        Ok((listed.filter_map(Result::transpose).collect::<Result<_>>()?, next))
    });
    match read {
        Ok((latches, next)) => Ok(LatchPage::new(latches, next)),
        Err(error) if is_no_table(&error) => Ok(LatchPage::default()),
        Err(error) => Err(error),
    }
}

/// The key of a row and its columns.
pub(super) type LatchRow = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

/// Returns `None` for a row without counts, and for one that is not a latch's.
fn listed(
    client: &str,
    begin: &str,
    row: &[u8],
    cells: &[(Vec<u8>, Vec<u8>)],
) -> Result<Option<ListedLatch>> {
    let key = row.get(1..).and_then(|key| std::str::from_utf8(key).ok());
    let Some(id) =
        key.filter(|key| salted(key.as_bytes(), &[]) == row).and_then(|key| key.strip_prefix(begin))
    else {
        return Ok(None);
    };
    let mut counts = BTreeMap::new();
    for (column, value) in cells {
        let Some(farm) = column.strip_prefix(COUNTS) else { continue };
        let farm = String::from_utf8_lossy(farm).into_owned();
        if let Some(count) = number(&quoted(&format!("{client}#{id}")), column, value)? {
            counts.insert(farm, count);
        }
    }
    Ok((!counts.is_empty()).then(|| ListedLatch::new(client, id, counts)))
}

/// Prefix of the columns of processes that wait.
const HEARS: &str = "hears_";

/// Returns the prefix of the columns of all processes that wait.
pub(super) fn listener_columns() -> Vec<u8> {
    HEARS.into()
}

/// Returns the column of a process that waits. `None` for an address that has no meaning on other machines.
pub(super) fn listener_column(endpoint: NoticeEndpoint) -> Option<Vec<u8>> {
    match endpoint {
        NoticeEndpoint::Udp(address) => Some(format!("{HEARS}{address}").into()),
        NoticeEndpoint::Local(_) => None,
    }
}

/// Returns the value of the column of a process that waits. Its first eight bytes are zero, because the Java library
/// takes them for a count.
pub(super) fn listener_value(listener: LatchListener) -> Vec<u8> {
    [ZERO, listener.nonce.to_be_bytes()].concat()
}

/// Decodes the column of a process that waits. `None` for any other column.
pub(super) fn listener_in(column: &[u8], value: &[u8]) -> Option<LatchListener> {
    let address = std::str::from_utf8(column).ok()?.strip_prefix(HEARS)?.parse().ok()?;
    let nonce = value.strip_prefix(&ZERO)?.try_into().ok()?;
    Some(LatchListener { endpoint: NoticeEndpoint::Udp(address), nonce: u64::from_be_bytes(nonce) })
}

pub(super) fn not_found(name: &LatchName) -> Error {
    Error::NotFound { name: name.to_string() }
}

/// Returns whether the error says that the table does not exist. Then no latch exists either.
pub(super) fn is_no_table(error: &Error) -> bool {
    matches!(error, Error::TableCreation { what, .. } if what == NO_TABLE)
}

/// Converts "the table does not exist" to NOT_FOUND for this latch. Returns any other error unchanged.
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
            (Some("default:jobs"), "ns:locks", "D_LTCH_jobs"),
        ] {
            assert_eq!(table_name(suffix, locks).unwrap(), table);
        }
        for suffix in ["", ":", "a:", ":a", "a:b:c", "a b", "é", "a/b", &"x".repeat(250)] {
            let error = table_name(Some(suffix), "locks").unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{suffix:?}");
        }
    }

    /// The Java library puts `_` between the client and the latch.
    #[test]
    fn two_strict_names_never_share_a_row() {
        let error = row_of(&name("a_b", NamePolicy::Strict)).unwrap_err();
        assert!(error.to_string().contains("names=compat"), "{error}");
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(row_of(&name("a_b", NamePolicy::Compat)).unwrap()[1..], *b"a_b_a");
        assert_eq!(row_of(&name("a-b", NamePolicy::Strict)).unwrap()[1..], *b"a-b_a");
    }

    const DELETED_DC3: [u8; 7] = *b"D-rando";

    #[test]
    fn a_deleted_count_is_none_and_no_number_for_java() {
        let value = deleted_value().unwrap();
        assert!(is_deleted(&value) && value != deleted_value().unwrap() && value.len() < 8);
        for count in [0, 1, -1, i64::from(i32::MAX), i64::from(i32::MIN)] {
            assert!(!is_deleted(&count.to_be_bytes()));
        }
        assert!(!is_deleted(b"") && !is_deleted(b"D") && is_deleted(&DELETED_DC3));
    }

    #[test]
    fn each_level_reads_the_counts_that_are_its_own_and_nothing_else() {
        let (two, minus) = (2i64.to_be_bytes(), (-5i64).to_be_bytes());
        let cells: Vec<(&[u8], &[u8])> = vec![
            (b"came_dc1\0w", &two),
            (b"count_dc1", &two),
            (b"count_dc10", &minus),
            (b"count_dc2", b""),
            (b"count_dc3", &DELETED_DC3),
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

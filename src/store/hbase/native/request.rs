//! Builds the conditions, mutations and reads of requests to a region, and decodes their results. Locks, latches
//! and rows use these functions.
//!
//! A `MultiRequest` contains region actions. The server runs them one after another in the order of the request
//! (`RSRpcServices.multi`). A region action with a condition is atomic. One without a condition may be atomic, or a
//! list of independent actions.

use std::time::Duration;

use super::exception::Exception;
use super::filter::{self, COMPARATOR, FilterTest};
use super::messages::{
    ASYNC_WAL, Action, BinaryComparator, Cell, Column, ColumnValue, Comparable, Comparator, Condition,
    DELETE, DELETE_COLUMN, Get, INCREMENT, MutationProto, NameBytesPair, PUT, QualifierValue, RegionAction,
    RegionActionResult, SYNC_WAL,
};
use super::region::Region;
use super::send_error::{SendError, protocol_violation};
use crate::store::hbase::cell_store::Durability;

/// Operation attribute with the TTL of a mutation's cells: milliseconds, 8 bytes, big-endian.
const TTL: &str = "_ttl";

/// Builds a read of the newest versions of some columns of one family, or of all its columns if none is given.
pub(super) fn get(row: &[u8], family: &[u8], qualifiers: &[&[u8]]) -> Get {
    let qualifier = qualifiers.iter().map(|qualifier| qualifier.to_vec()).collect();
    Get { row: row.to_vec(), column: vec![Column { family: family.to_vec(), qualifier }], ..Get::default() }
}

/// Builds a Put of cells of one family. The server sets their timestamp, so only its clock counts. Without a TTL
/// they live as long as the family allows.
pub(super) fn put(
    row: &[u8],
    family: &[u8],
    cells: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ttl: Option<Duration>,
) -> MutationProto {
    mutation(PUT, row, family, cells, ttl)
}

/// Builds a Put of cells of several families. See [`put`].
pub(super) fn puts(
    row: &[u8],
    families: impl IntoIterator<Item = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>)>,
    ttl: Option<Duration>,
) -> MutationProto {
    let mut put = mutation(PUT, row, b"", [], ttl);
    put.column_value = families.into_iter().map(|(family, cells)| column_value(&family, cells)).collect();
    put
}

/// Builds a Delete of the versions of these columns that are not newer than a timestamp. It must be the timestamp
/// of a cell that was read: a Delete hides every put with its timestamp or an older one, even a put that arrives
/// later.
pub(super) fn delete(
    row: &[u8],
    families: impl IntoIterator<Item = (Vec<u8>, Vec<(Vec<u8>, u64)>)>,
) -> MutationProto {
    let column = |(qualifier, written_ms)| QualifierValue {
        qualifier,
        value: None,
        timestamp: Some(written_ms),
        delete_type: Some(DELETE_COLUMN),
    };
    let mut delete = mutation(DELETE, row, b"", [], None);
    let families = families.into_iter().map(|(family, qualifiers)| ColumnValue {
        family,
        qualifier_value: qualifiers.into_iter().map(column).collect(),
    });
    delete.column_value = families.collect();
    delete
}

/// Builds an addition to an 8-byte counter. Without a TTL the cell keeps its own TTL, which starts again.
pub(super) fn increment(
    row: &[u8],
    family: &[u8],
    qualifier: &[u8],
    by: i64,
    ttl: Option<Duration>,
) -> MutationProto {
    mutation(INCREMENT, row, family, [(qualifier.to_vec(), by.to_be_bytes().to_vec())], ttl)
}

fn mutation(
    kind: i32,
    row: &[u8],
    family: &[u8],
    cells: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ttl: Option<Duration>,
) -> MutationProto {
    let ttl_ms = ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
    let lives = |ms: i64| NameBytesPair { name: TTL.into(), value: ms.to_be_bytes().to_vec() };
    MutationProto {
        row: row.to_vec(),
        kind: Some(kind),
        column_value: vec![column_value(family, cells)],
        attribute: ttl_ms.map(lives).into_iter().collect(),
        durability: None,
    }
}

fn column_value(family: &[u8], cells: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> ColumnValue {
    let cell =
        |(qualifier, value)| QualifierValue { qualifier, value: Some(value), ..QualifierValue::default() };
    ColumnValue { family: family.to_vec(), qualifier_value: cells.into_iter().map(cell).collect() }
}

/// Sets the durability of a mutation. With `Durability::UseDefault` the table's settings decide.
pub(super) fn durable(durability: Durability, mutation: MutationProto) -> MutationProto {
    let durability = match durability {
        Durability::UseDefault => None,
        Durability::Sync => Some(SYNC_WAL),
        Durability::Async => Some(ASYNC_WAL),
    };
    MutationProto { durability, ..mutation }
}

/// Builds a condition on one column. It holds if "`with` `compare` cell" is true, in this order
/// (`HRegion.matches`). An empty `with` means an empty cell or no cell. The server gives a Put under this condition
/// a timestamp that is not older than the cell that it compared (HBASE-14054).
pub(super) fn comparing(row: &[u8], family: &[u8], qualifier: &[u8], compare: i32, with: &[u8]) -> Condition {
    let comparator = BinaryComparator { comparable: Some(Comparable { value: Some(with.to_vec()) }) };
    Condition {
        row: row.to_vec(),
        family: family.to_vec(),
        qualifier: qualifier.to_vec(),
        compare: Some(compare),
        comparator: Some(Comparator {
            name: COMPARATOR.into(),
            serialized: prost::Message::encode_to_vec(&comparator),
        }),
        filter: None,
    }
}

/// Builds a condition on several columns. It never holds for a row without cells. The server gives a Put under this
/// condition a timestamp that is not older than the first cell, by family and qualifier, that the tests read.
pub(super) fn filtering(row: &[u8], tests: &[FilterTest]) -> Condition {
    Condition { row: row.to_vec(), filter: Some(filter::all(tests)), ..Condition::default() }
}

/// Builds a condition like [`filtering`]. The server gives a Put under it a timestamp that is not older than the
/// cell of the first test. That test must require a cell that exists.
pub(super) fn stamped_by_the_first(row: &[u8], tests: &[FilterTest]) -> Condition {
    let filter = Some(filter::all_stamped_as_the_first(tests));
    Condition { row: row.to_vec(), filter, ..Condition::default() }
}

/// Builds a region action that applies all mutations or none, in one atomic step with the condition. They must be
/// mutations of the condition's row.
pub(super) fn conditional(
    region: &Region,
    condition: Condition,
    mutations: Vec<MutationProto>,
) -> RegionAction {
    RegionAction { condition: Some(condition), ..together(region, mutations) }
}

/// Builds a region action that applies all mutations of one row or none.
pub(super) fn together(region: &Region, mutations: Vec<MutationProto>) -> RegionAction {
    RegionAction { atomic: true, ..in_turn(region, mutations.into_iter().map(changing).collect()) }
}

/// Builds a region action whose actions the server runs one after another.
pub(super) fn in_turn(region: &Region, actions: Vec<Action>) -> RegionAction {
    let action = (0..).zip(actions).map(|(index, action)| Action { index: Some(index), ..action }).collect();
    RegionAction { region: region.specifier(), atomic: false, action, condition: None }
}

pub(super) fn changing(mutation: MutationProto) -> Action {
    Action { index: None, mutation: Some(mutation), get: None }
}

pub(super) fn reading(get: Get) -> Action {
    Action { index: None, mutation: None, get: Some(get) }
}

/// Fails with the exception of the region action or of one of its actions, if there is one.
pub(super) fn check(result: &RegionActionResult) -> Result<(), SendError> {
    let inner = result.result_or_exception.iter().find_map(|part| part.exception.clone());
    match result.exception.clone().or(inner) {
        Some(exception) => Err(Exception::from(exception).into()),
        None => Ok(()),
    }
}

/// Returns whether the condition held.
pub(super) fn processed(result: &RegionActionResult) -> Result<bool, SendError> {
    check(result)?;
    result.processed.ok_or_else(protocol_violation)
}

/// Returns the cells that were read, or the cells after an increment. The cells of an increment are in the first
/// part of the answer, not at the index of its action.
pub(super) fn cells(result: &RegionActionResult) -> Result<impl Iterator<Item = &Cell>, SendError> {
    check(result)?;
    let rows = result.result_or_exception.iter().filter_map(|part| part.result.as_ref());
    Ok(rows.flat_map(|row| &row.cell))
}

/// Returns the sum after the first increment of an action.
pub(super) fn counted(result: &RegionActionResult) -> Result<i64, SendError> {
    let cell = cells(result)?.next();
    let bytes = cell.and_then(|cell| cell.value.as_slice().try_into().ok());
    bytes.map(i64::from_be_bytes).ok_or_else(protocol_violation)
}

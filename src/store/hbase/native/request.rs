//! Builds the conditions, mutations and reads of requests to a region, and decodes their results. Locks, latches
//! and rows use these functions.
//!
//! A `MultiRequest` contains region actions. The server runs them one after another in the order of the request
//! (`RSRpcServices.multi`). A region action with a condition is atomic. One without a condition may be atomic, or a
//! list of independent actions.

use std::time::Duration;

use prost::bytes::Bytes;

use super::bytes::constant;
use super::exception::Exception;
use super::filter::{self, COMPARATOR, CellFilter, FilterTest, comparator};
use super::messages::{
    ASYNC_WAL, Action, Attribute, Cell, Column, ColumnValue, Condition, DELETE, DELETE_COLUMN,
    DELETE_FAMILY_VERSION, Get, INCREMENT, MutationProto, PUT, QualifierValue, RegionAction,
    RegionActionResult, SYNC_WAL,
};
use super::region::Region;
use super::send_error::{SendError, protocol_violation};
use crate::store::hbase::cell_store::Durability;

/// Operation attribute with the TTL of a mutation's cells: milliseconds, 8 bytes, big-endian.
const TTL: &str = "_ttl";

/// Builds a read of the newest versions of some columns of one family, or of all its columns if none is given.
pub(super) fn get(row: &Bytes, family: &Bytes, qualifiers: &[Bytes]) -> Get {
    let column = Column { family: family.clone(), qualifier: qualifiers.to_vec() };
    Get { row: row.clone(), column: vec![column], ..Get::default() }
}

/// Builds a Put of cells of one family. The server sets their timestamp, so only its clock counts. Without a TTL
/// they live as long as the family allows.
pub(super) fn put(
    row: &Bytes,
    family: &Bytes,
    cells: impl IntoIterator<Item = (Bytes, Bytes)>,
    ttl: Option<Duration>,
) -> MutationProto {
    mutation(PUT, row, vec![column_value(family, cells)], ttl)
}

/// Builds a Put of cells of several families. See [`put`].
pub(super) fn puts(
    row: &Bytes,
    families: impl IntoIterator<Item = (Bytes, Vec<(Bytes, Bytes)>)>,
    ttl: Option<Duration>,
) -> MutationProto {
    let families = families.into_iter().map(|(family, cells)| column_value(&family, cells));
    mutation(PUT, row, families.collect(), ttl)
}

/// Builds a Delete of the versions of these columns that are not newer than a timestamp. It must be the timestamp
/// of a cell that was read: a Delete hides every put with its timestamp or an older one, even a put that arrives
/// later.
pub(super) fn delete(
    row: &Bytes,
    families: impl IntoIterator<Item = (Bytes, Vec<(Bytes, u64)>)>,
) -> MutationProto {
    let column = |(qualifier, written_ms)| QualifierValue {
        qualifier,
        value: None,
        timestamp: Some(written_ms),
        delete_type: Some(DELETE_COLUMN),
    };
    let families = families.into_iter().map(|(family, qualifiers)| ColumnValue {
        family,
        qualifier_value: qualifiers.into_iter().map(column).collect(),
    });
    mutation(DELETE, row, families.collect(), None)
}

/// Builds a Delete of the cells of a family with this timestamp. It hides every put with this timestamp, even one that
/// arrives later.
///
/// A Delete of one version of a column would not do. It lies among the versions of its column, and a flush drops it with
/// those that newer puts have replaced. A Delete of a family lies before all columns.
pub(super) fn delete_written_at(row: &Bytes, family: &Bytes, written_ms: u64) -> MutationProto {
    let version = QualifierValue {
        qualifier: Bytes::new(),
        value: None,
        timestamp: Some(written_ms),
        delete_type: Some(DELETE_FAMILY_VERSION),
    };
    mutation(DELETE, row, vec![ColumnValue { family: family.clone(), qualifier_value: vec![version] }], None)
}

/// Builds an addition to an 8-byte counter. Without a TTL the cell keeps its own TTL, which starts again.
pub(super) fn increment(
    row: &Bytes,
    family: &Bytes,
    qualifier: &Bytes,
    by: i64,
    ttl: Option<Duration>,
) -> MutationProto {
    let cell = (qualifier.clone(), Bytes::copy_from_slice(&by.to_be_bytes()));
    mutation(INCREMENT, row, vec![column_value(family, [cell])], ttl)
}

fn mutation(kind: i32, row: &Bytes, column_value: Vec<ColumnValue>, ttl: Option<Duration>) -> MutationProto {
    let ttl_ms = ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
    let lives = |ms: i64| Attribute { name: constant(TTL), value: ms.to_be_bytes().to_vec() };
    MutationProto {
        row: row.clone(),
        kind: Some(kind),
        column_value,
        attribute: ttl_ms.map(lives),
        durability: None,
    }
}

fn column_value(family: &Bytes, cells: impl IntoIterator<Item = (Bytes, Bytes)>) -> ColumnValue {
    let cell =
        |(qualifier, value)| QualifierValue { qualifier, value: Some(value), ..QualifierValue::default() };
    ColumnValue { family: family.clone(), qualifier_value: cells.into_iter().map(cell).collect() }
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
pub(super) fn comparing(
    row: &Bytes,
    family: &Bytes,
    qualifier: &Bytes,
    compare: i32,
    with: &Bytes,
) -> Condition {
    Condition {
        row: row.clone(),
        family: family.clone(),
        qualifier: qualifier.clone(),
        compare: Some(compare),
        comparator: Some(comparator(COMPARATOR, with)),
        filter: None,
    }
}

/// Builds a condition on several columns. It never holds for a row without cells. The server gives a Put under this
/// condition a timestamp that is not older than the first cell, by family and qualifier, that the tests read.
pub(super) fn filtering(row: &Bytes, tests: &[FilterTest]) -> Condition {
    Condition { row: row.clone(), filter: Some(filter::all(tests)), ..Condition::default() }
}

/// Builds a condition like [`filtering`], which also requires that each cell of the row passes one of these filters.
pub(super) fn filtering_all(row: &Bytes, tests: &[FilterTest], cells: Vec<CellFilter>) -> Condition {
    Condition {
        row: row.clone(),
        filter: Some(filter::all_and_each_cell(tests, cells)),
        ..Condition::default()
    }
}

/// Builds a condition like [`filtering`]. The server gives a Put under it a timestamp that is not older than the
/// cell of the first test. That test must require a cell that exists.
pub(super) fn stamped_by_the_first(row: &Bytes, tests: &[FilterTest]) -> Condition {
    let filter = Some(filter::all_stamped_as_the_first(tests));
    Condition { row: row.clone(), filter, ..Condition::default() }
}

/// Builds a condition on the value and the timestamp of one column's newest cell. The server gives a Put under this
/// condition a timestamp that is not older.
pub(super) fn written_at(row: &Bytes, test: FilterTest, written_ms: u64) -> Condition {
    let filter = Some(filter::written_at(&test, written_ms));
    Condition { row: row.clone(), filter, ..Condition::default() }
}

/// Builds a region action that applies all mutations or none, in one atomic step with the condition. They must be
/// mutations of the condition's row.
pub(super) fn conditional(
    region: &Region,
    condition: Condition,
    mutations: impl IntoIterator<Item = MutationProto>,
) -> RegionAction {
    RegionAction { condition: Some(condition), ..together(region, mutations) }
}

/// Builds the same for a region that is not known yet.
pub(super) fn conditional_somewhere(
    condition: Condition,
    mutations: impl IntoIterator<Item = MutationProto>,
) -> RegionAction {
    let action = numbered(mutations.into_iter().map(changing).collect());
    RegionAction { region: None, atomic: true, action, condition: Some(condition) }
}

/// Builds a read of one row of a region that is not known yet.
pub(super) fn reading_somewhere(get: Get) -> RegionAction {
    RegionAction { region: None, atomic: false, action: numbered(vec![reading(get)]), condition: None }
}

/// Builds a region action that applies all mutations of one row or none.
pub(super) fn together(region: &Region, mutations: impl IntoIterator<Item = MutationProto>) -> RegionAction {
    RegionAction { atomic: true, ..in_turn(region, mutations.into_iter().map(changing).collect()) }
}

/// Builds a region action whose actions the server runs one after another.
pub(super) fn in_turn(region: &Region, action: Vec<Action>) -> RegionAction {
    RegionAction { region: region.specifier(), atomic: false, action: numbered(action), condition: None }
}

fn numbered(mut actions: Vec<Action>) -> Vec<Action> {
    for (index, action) in (0..).zip(&mut actions) {
        action.index = Some(index);
    }
    actions
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

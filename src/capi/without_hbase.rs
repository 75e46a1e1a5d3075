//! Replaces `crate::hbase` in a build without the feature. The C functions exist in every build and need its names.
//! No table can be opened, so no method of these types is ever called.

use std::time::Duration;

use crate::names::fence::Fence;
use crate::{Error, Lease, Result};

pub(super) enum Table {}

#[derive(Clone)]
pub(super) enum Row {}

pub(super) enum RowCells {}

pub(super) struct Cells;
pub(super) struct Changes;
pub(super) struct Column;
pub(super) struct Family;

pub(super) struct FoundCell {
    pub(super) column: ColumnName,
    pub(super) value: Vec<u8>,
    pub(super) written_ms: u64,
}

pub(super) struct ColumnName {
    pub(super) family: Vec<u8>,
    pub(super) qualifier: Vec<u8>,
}

#[derive(PartialEq)]
pub(super) enum Creation {
    Created,
}

#[derive(PartialEq)]
pub(super) enum Update {
    Updated,
}

#[allow(dead_code, reason = "nothing is committed")]
pub(super) enum Commit {
    Refused(()),
}

impl Lease {
    pub(super) fn row(&self, table: &Table, _: &[u8]) -> Result<Row> {
        match *table {}
    }
}

impl Table {
    pub(super) fn open(_: &str) -> Result<Table> {
        // The URI may have a password.
        Err(Error::invalid("table", "(not shown)", "this build lacks the feature `hbase`"))
    }

    pub(super) fn create_if_missing(&self, _: &[Family], _: &[&[u8]]) -> Result<()> {
        match *self {}
    }

    pub(super) fn row(&self, _: &[u8]) -> Row {
        match *self {}
    }

    pub(super) fn timeout(&self) -> Duration {
        match *self {}
    }

    pub(super) fn max_value(&self) -> usize {
        match *self {}
    }

    pub(super) fn attempts(&self) -> u32 {
        match *self {}
    }
}

impl Row {
    pub(super) fn checked(self) -> Result<Row> {
        match self {}
    }

    pub(super) fn is_same(&self, _: &Row) -> bool {
        match *self {}
    }

    pub(super) fn exactly_once(&self) -> Row {
        match *self {}
    }

    pub(super) fn read_whole(&self) -> Result<RowCells> {
        match *self {}
    }

    pub(super) fn read_columns(&self, _: &[Column]) -> Result<RowCells> {
        match *self {}
    }

    pub(super) fn create(&self, _: &Cells) -> Result<Creation> {
        match *self {}
    }

    pub(super) fn update(&self, _: &Cells) -> Result<Update> {
        match *self {}
    }

    pub(super) fn put(&self, _: &Cells) -> Result<()> {
        match *self {}
    }

    pub(super) fn compare_and_set(&self, _: Column, _: Option<&[u8]>, _: Option<&[u8]>) -> Result<bool> {
        match *self {}
    }

    pub(super) fn increment(&self, _: Column, _: i64) -> Result<Option<i64>> {
        match *self {}
    }

    pub(super) fn delete_if(&self, _: Column, _: &[u8]) -> Result<bool> {
        match *self {}
    }

    pub(super) fn commit(&self, _: &[Column], _: &RowCells, _: &Changes) -> Result<Commit> {
        match *self {}
    }

    pub(super) fn raise_fence(&self) -> Result<()> {
        match *self {}
    }

    pub(super) fn fence(&self) -> Result<Option<(Fence, String)>> {
        match *self {}
    }
}

impl RowCells {
    pub(super) fn found(&self) -> &[FoundCell] {
        match *self {}
    }

    pub(super) fn counter(&self, _: Column) -> Option<i64> {
        match *self {}
    }
}

impl Cells {
    pub(super) fn new() -> Cells {
        Cells
    }

    pub(super) fn put(self, _: Column, _: &[u8]) -> Cells {
        self
    }

    pub(super) fn put_for(self, _: Column, _: &[u8], _: Duration) -> Cells {
        self
    }
}

impl Changes {
    pub(super) fn new() -> Changes {
        Changes
    }

    pub(super) fn put(self, _: Column, _: &[u8]) -> Changes {
        self
    }

    pub(super) fn put_for(self, _: Column, _: &[u8], _: Duration) -> Changes {
        self
    }

    pub(super) fn add(self, _: Column, _: i64) -> Changes {
        self
    }

    pub(super) fn delete(self, _: Column) -> Changes {
        self
    }
}

impl Column {
    pub(super) fn parse(_: &[u8]) -> Column {
        Column
    }
}

impl Family {
    pub(super) fn new(_: &str) -> Family {
        Family
    }

    pub(super) fn versions(self, _: u32) -> Family {
        self
    }
}

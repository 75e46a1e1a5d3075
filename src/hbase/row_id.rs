//! Which row of which table.

use super::table::Table;
use crate::store::hbase::steps::shown;

#[derive(Clone)]
pub(super) struct RowId {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
}

impl RowId {
    /// The key for people.
    pub(super) fn shown(&self) -> String {
        shown(&self.key)
    }

    /// Table and key for people.
    pub(super) fn described(&self) -> String {
        format!("{}, row \"{}\",", self.table.inner.store.describe(), self.shown())
    }
}

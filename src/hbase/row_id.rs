//! Identity of a row: its table and key.

use super::table::Table;
use crate::store::hbase::steps::shown;

#[derive(Clone)]
pub(super) struct RowId {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
}

impl RowId {
    /// Returns the key for messages.
    pub(super) fn shown(&self) -> String {
        shown(&self.key)
    }

    /// Returns table and key for messages.
    pub(super) fn described(&self) -> String {
        format!("{}, row \"{}\",", self.table.inner.store.describe(), self.shown())
    }
}

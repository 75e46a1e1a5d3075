use std::ffi::c_void;

use super::arguments::slice;
use super::failure::Outcome;
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free};
use super::structs::{Versioned, found_struct};
#[cfg(not(feature = "hbase"))]
use super::without_hbase as hbase;
#[cfg(feature = "hbase")]
use crate::hbase;
use hbase::{Column, Row, RowCells};

/// Cells that were read from a row, all at the same moment. They never change.
pub struct dlm_row_cells(());

static ROW_CELLS: PerProcess<HandleTable<Read>> = PerProcess::new();

impl Handle for dlm_row_cells {
    type Object = Read;
    const NAME: &str = "dlm_row_cells";
    const KIND: u8 = 14;
    fn table() -> &'static PerProcess<HandleTable<Read>> {
        &ROW_CELLS
    }
}

/// A cell that was read. Column and value live until the dlm_row_cells is freed. They do not end with NUL. Later
/// versions append fields.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_row_cell {
    /// The column, as family:qualifier.
    pub column: *const c_void,
    /// Size of the column in bytes.
    pub column_size: usize,
    /// The value. NULL only if there is no cell. A value may be empty.
    pub value: *const c_void,
    /// Size of the value in bytes.
    pub value_size: usize,
    /// Timestamp of the cell: milliseconds since 1970 by the server's clock.
    pub written_ms: u64,
}

// SAFETY: numbers and pointers.
unsafe impl Versioned for dlm_row_cell {
    const NAME: &str = "dlm_row_cell";
    const FIRST: usize = 40;
}

/// The result of one read.
pub(super) struct Read {
    pub(super) row: Row,
    /// The columns that were requested. `None` for a whole row.
    pub(super) columns: Option<Vec<Column>>,
    pub(super) cells: RowCells,
    /// Column names of the cells, in the same order.
    names: Vec<Vec<u8>>,
}

impl Read {
    /// Reads these columns, or the whole row for `None`.
    pub(super) fn of(row: &Row, columns: Option<Vec<Column>>) -> Outcome<Read> {
        let cells = match &columns {
            Some(columns) => row.read_columns(columns)?,
            None => row.read_whole()?,
        };
        let names = cells.found().iter();
        let names = names
            .map(|cell| [cell.column.family.as_slice(), b":", cell.column.qualifier.as_slice()].concat());
        Ok(Read { row: row.clone(), names: names.collect(), columns, cells })
    }

    fn at(&self, index: usize) -> Option<dlm_row_cell> {
        let (cell, name) = (self.cells.found().get(index)?, self.names.get(index)?);
        Some(dlm_row_cell {
            column: name.as_ptr().cast(),
            column_size: name.len(),
            // An empty Vec has a dangling address, which C must not see.
            value: if cell.value.is_empty() { c"".as_ptr().cast() } else { cell.value.as_ptr().cast() },
            value_size: cell.value.len(),
            written_ms: cell.written_ms,
        })
    }

    /// Finds a cell by the bytes of its name. These are unique, because no family contains a colon.
    fn find(&self, name: &[u8]) -> Option<dlm_row_cell> {
        self.at(self.names.iter().position(|of| of == name)?)
    }
}

/// Returns the number of cells that were read: 0 if the row does not exist, or has none of the requested columns. 0
/// for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_cells_count(cells: *const dlm_row_cells) -> usize {
    value(0, || Ok(find(cells)?.names.len()))
}

/// Writes the cell at `index`, from 0, to `*cell_out`. `cell_size` is sizeof(struct dlm_row_cell). Cells are in the order of their columns. Returns false after
/// the last cell and for NULL: all fields are then NULL or 0. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_cells_at(
    cells: *const dlm_row_cells,
    index: usize,
    cell_out: *mut dlm_row_cell,
    cell_size: usize,
) -> bool {
    // SAFETY: the output is as the header asks.
    unsafe { found_struct(cell_out, cell_size, || Ok(find(cells)?.at(index))) }
}

/// Writes the cell of a column, named family:qualifier, to `*cell_out`, which may be NULL. Returns false if there is
/// no such cell, if it was not requested, and for NULL: all fields are then NULL or 0. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_cells_find(
    cells: *const dlm_row_cells,
    column: *const c_void,
    column_size: usize,
    cell_out: *mut dlm_row_cell,
    cell_size: usize,
) -> bool {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        found_struct(cell_out, cell_size, || {
            Ok(find(cells)?.find(slice("bytes of the column", column.cast::<u8>(), column_size)?))
        })
    }
}

/// Writes the value of a counter's cell to `*number_out`. Returns false and writes 0 if there is no such cell, if it
/// is not 8 bytes long, and for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_cells_counter(
    cells: *const dlm_row_cells,
    column: *const c_void,
    column_size: usize,
    number_out: *mut i64,
) -> bool {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        let number = value(None, || {
            let column = slice("bytes of the column", column.cast::<u8>(), column_size)?;
            Ok(find(cells)?.cells.counter(Column::parse(column)))
        });
        write(number_out, number.unwrap_or_default());
        number.is_some()
    }
}

/// Frees cells. NULL is allowed. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_cells_free(cells: *mut dlm_row_cells) {
    freeing(|| free(cells));
}

//! Reads rows of a range, page by page. Lists of locks, histories and the doctor do this. An operation on a lock reads its
//! row.

use super::bytes::constant;
use super::filter::{self, FilterTest};
use super::messages::{Cell, Column, Filter, Scan, ScanRequest, ScanResponse};
use super::rpc::Native;
use super::send_error::SendError;
use super::servers::CLIENT_SERVICE;
use crate::error::Result;
use crate::runtime::time::Deadline;
use crate::store::hbase::cell_store::{self, RowPage, RowScan, ScannedRow};
use crate::store::request_kind::RequestKind;

/// Most rows of one request. A record has at most about 600 bytes, and a reply 4 MiB.
pub(in crate::store::hbase) const PAGE: usize = 500;

/// The cells of a row. Not empty.
type FoundCells = Vec<Cell>;

/// The rows that [`Native::scan_range`] reads.
pub(super) struct RowRange<'a> {
    pub(super) from: &'a [u8],
    /// The first row behind the range. Empty: the range has no end.
    pub(super) to: &'a [u8],
    /// Most rows of the page, at least 1.
    pub(super) most: usize,
    /// Columns of these families that are read; all of a family without any.
    pub(super) columns: Vec<Column>,
    pub(super) filter: Option<Filter>,
}

impl Native {
    /// See [`LockTable::scan`](crate::store::hbase::cell_store::LockTable::scan).
    pub(super) fn scan_page(&self, rows: &RowScan<'_>, by: Deadline) -> Result<RowPage> {
        let RowScan { column, beside, from, to, filled, most } = *rows;
        let (family, qualifier) = (constant(column.family), constant(column.qualifier));
        let beside = beside.map(|column| constant(column.qualifier));
        let qualifiers = [&qualifier].into_iter().chain(&beside).cloned().collect();
        let filter = filled.then(|| match &beside {
            None => filter::all(&[FilterTest::some(&family, &qualifier)]),
            Some(beside) => {
                filter::all(&[FilterTest::some(&family, beside), FilterTest::some(&family, &qualifier)])
            }
        });
        let columns = vec![Column { family: family.clone(), qualifier: qualifiers }];
        let (found, next) = self.scan_range(&RowRange { from, to, most, columns, filter }, by)?;
        let rows = found.into_iter().filter_map(|row| {
            let (mut own, mut second) = (None, None);
            for found in row {
                let is_own = found.qualifier == qualifier;
                *(if is_own { &mut own } else { &mut second }) = Some(found);
            }
            let own = own?;
            Some(ScannedRow { row: own.row.clone(), cell: cell(own), beside: second.map(cell) })
        });
        Ok(RowPage { rows: rows.collect(), next })
    }

    /// Reads rows in their order, and where the next page begins. One request, which reads one region at most.
    pub(super) fn scan_range(
        &self,
        rows: &RowRange<'_>,
        by: Deadline,
    ) -> Result<(Vec<FoundCells>, Option<Vec<u8>>)> {
        let RowRange { from, to, most, columns, filter } = rows;
        let most = (*most).clamp(1, PAGE);
        self.on_region(RequestKind::Read, "Scan", from, by, |region, by| {
            let ends_here = region.end.is_empty() || (!to.is_empty() && *to <= &region.end[..]);
            let stop = if ends_here { to } else { &region.end[..] };
            let scan = Scan {
                column: columns.clone(),
                start_row: from.to_vec(),
                stop_row: stop.to_vec(),
                filter: filter.clone(),
                max_versions: 1,
                reversed: false,
                caching: most as u32,
                include_start_row: true,
                include_stop_row: false,
            };
            let request = ScanRequest {
                region: region.specifier(),
                scan: Some(scan),
                number_of_rows: most as u32,
                close_scanner: true,
                limit_of_rows: most as u32,
            };
            let found: ScanResponse = self
                .locator
                .servers()
                .call(&region.server, CLIENT_SERVICE, "Scan", &request, by)
                .map_err(SendError::Call)?;
            let is_over = found.more_results_in_region == Some(false) && found.results.len() < most;
            let last = found.results.last().and_then(|row| row.cell.first()).map(|cell| cell.row.clone());
            // The server may end a page early. Unless it says that it has read the region, only a page without rows ends
            // it.
            let next = match last {
                Some(last) if !is_over => Some([&last, &b"\0"[..]].concat()),
                _ if ends_here => None,
                _ => Some(region.end.to_vec()),
            };
            Ok((found.results.into_iter().map(|row| row.cell).collect(), next))
        })
    }
}

pub(super) fn cell(cell: Cell) -> cell_store::Cell {
    cell_store::Cell { value: cell.value, written_ms: cell.timestamp }
}

//! Reads the rows of held locks, page by page. Only the doctor does this: an operation on a lock reads its row.

use super::bytes::constant;
use super::filter::{self, FilterTest};
use super::messages::{Column, Scan, ScanRequest, ScanResponse};
use super::rpc::Native;
use super::send_error::SendError;
use super::servers::CLIENT_SERVICE;
use crate::error::Result;
use crate::store::hbase::cell_store::CellColumn;
use crate::store::request_kind::RequestKind;
use crate::time::Deadline;

/// Most rows of one page. A record has at most about 600 bytes, and a reply 4 MiB.
const PAGE: u32 = 500;

/// Some of the rows whose cell in a column is not empty.
#[derive(Debug)]
pub(in crate::store::hbase) struct HeldPage {
    pub(in crate::store::hbase) rows: Vec<Vec<u8>>,
    /// Where the next page begins; `None` after the last one.
    pub(in crate::store::hbase) next: Option<Vec<u8>>,
}

impl Native {
    /// Reads the rows from `start` on whose cell in this column is not empty. One call, which reads one region at most.
    pub(in crate::store::hbase) fn held_page(
        &self,
        column: CellColumn,
        start: &[u8],
        by: Deadline,
    ) -> Result<HeldPage> {
        let (family, qualifier) = (constant(column.family), constant(column.qualifier));
        self.on_region(RequestKind::Read, "Scan", start, by, |region, by| {
            let scan = Scan {
                column: vec![Column { family: family.clone(), qualifier: vec![qualifier.clone()] }],
                start_row: start.to_vec(),
                stop_row: region.end.clone(),
                filter: Some(filter::all(&[FilterTest::some(&family, &qualifier)])),
                max_versions: 1,
                reversed: false,
                caching: PAGE,
                include_start_row: true,
                include_stop_row: false,
            };
            let request = ScanRequest {
                region: region.specifier(),
                scan: Some(scan),
                number_of_rows: PAGE,
                close_scanner: true,
                limit_of_rows: PAGE,
            };
            let found: ScanResponse = self
                .locator
                .servers()
                .call(&region.server, CLIENT_SERVICE, "Scan", &request, by)
                .map_err(SendError::Call)?;
            let rows = found.results.into_iter().filter_map(|row| Some(row.cell.into_iter().next()?.row));
            let rows: Vec<_> = rows.collect();
            // The server may end a page early. Only a page without rows ends the region.
            let next = match rows.last() {
                Some(last) => Some([last, &b"\0"[..]].concat()),
                None => Some(region.end.clone()).filter(|end| !end.is_empty()),
            };
            Ok(HeldPage { rows, next })
        })
    }
}

//! Regions of a table, and their rows in hbase:meta.

use prost::Message;
use prost::bytes::Bytes;

use super::address::Address;
use super::connection::CallFailure;
use super::messages::{REGION_NAME, RegionInfo, RegionSpecifier, RowResult, ServerName};

/// One region of the table, and the server that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) name: Bytes,
    pub(super) start: Vec<u8>,
    /// First row after the region; empty for the last region.
    pub(super) end: Vec<u8>,
    pub(super) server: Address,
}

/// Failure of a look-up of a region, of hbase:meta or of the active master.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lookup {
    /// The table does not exist.
    #[error("the table does not exist")]
    NoTable,
    /// No server serves the region at the moment.
    #[error("no server serves the region at the moment")]
    NotServed,
    /// The call to a master or to hbase:meta failed.
    #[error("{0}")]
    Call(&'static str, #[source] CallFailure),
    /// The answer of a master or of hbase:meta cannot be read.
    #[error("the answer of a master or of hbase:meta cannot be read")]
    Garbage,
}

impl Region {
    pub(super) fn specifier(&self) -> Option<RegionSpecifier> {
        Some(RegionSpecifier { kind: REGION_NAME, value: self.name.clone() })
    }

    pub(super) fn holds(&self, row: &[u8]) -> bool {
        lies_between(row, &self.start, &self.end)
    }
}

pub(super) fn lies_between(row: &[u8], start: &[u8], end: &[u8]) -> bool {
    start <= row && (end.is_empty() || row < end)
}

impl TryFrom<ServerName> for Address {
    type Error = Lookup;

    fn try_from(name: ServerName) -> Result<Address, Lookup> {
        let port = u16::try_from(name.port).map_err(|_| Lookup::Garbage)?;
        Address::from_server(&name.host, port).ok_or(Lookup::Garbage)
    }
}

/// Returns a value from a row of hbase:meta, and the name of the region of that row.
fn value<'a>(result: &'a RowResult, qualifier: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let cell = result.cell.iter().find(|cell| cell.family == b"info" && cell.qualifier == qualifier);
    cell.map(|cell| (cell.row.as_slice(), cell.value.as_slice()))
}

/// Decodes the region of a row of hbase:meta. Returns its name and its description.
pub(super) fn described<'a>(result: &'a RowResult, table: &[u8]) -> Result<(&'a [u8], RegionInfo), Lookup> {
    const MAGIC: &[u8] = b"PBUF";
    let (name, info) = value(result, b"regioninfo").ok_or(Lookup::Garbage)?;
    let info =
        info.strip_prefix(MAGIC).and_then(|info| RegionInfo::decode(info).ok()).ok_or(Lookup::Garbage)?;
    // The row may belong to another table, whose name sorts before this one. Then this table has no row.
    let of = info.table.as_ref().ok_or(Lookup::Garbage)?;
    let full = if of.namespace == b"default" {
        of.qualifier.clone()
    } else {
        [&of.namespace[..], b":", &of.qualifier].concat()
    };
    if full == table { Ok((name, info)) } else { Err(Lookup::NoTable) }
}

/// Decodes the region and its server from a row of hbase:meta.
pub(super) fn catalogued(result: &RowResult, table: &[u8]) -> Result<Region, Lookup> {
    let (name, info) = described(result, table)?;
    if info.offline || info.split {
        return Err(Lookup::NotServed);
    }
    let (_, server) = value(result, b"server").ok_or(Lookup::NotServed)?;
    let server = std::str::from_utf8(server).ok().and_then(|server| server.rsplit_once(':'));
    let (host, port) = server.ok_or(Lookup::NotServed)?;
    let port = port.parse().map_err(|_| Lookup::Garbage)?;
    let server = Address::from_server(host, port).ok_or(Lookup::Garbage)?;
    Ok(Region { name: Bytes::copy_from_slice(name), start: info.start_key, end: info.end_key, server })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(namespace: &str, qualifier: &str, change: impl FnOnce(&mut RegionInfo)) -> RowResult {
        let mut info = RegionInfo {
            region_id: 1,
            table: Some(super::super::messages::TableName {
                namespace: namespace.into(),
                qualifier: qualifier.into(),
            }),
            start_key: b"a".to_vec(),
            end_key: b"b".to_vec(),
            offline: false,
            split: false,
        };
        change(&mut info);
        let cell = |qualifier: &str, value: Vec<u8>| super::super::messages::Cell {
            row: b"t,a,1.x.".to_vec(),
            family: b"info".to_vec(),
            qualifier: qualifier.into(),
            timestamp: 1,
            value,
        };
        let info = [b"PBUF", info.encode_to_vec().as_slice()].concat();
        RowResult { cell: vec![cell("regioninfo", info), cell("server", b"host:16020".to_vec())] }
    }

    #[test]
    fn a_row_of_the_catalogue_is_the_tables_own_or_there_is_no_table() {
        let found = catalogued(&row("default", "t", |_| {}), b"t").unwrap();
        assert_eq!((&found.name[..], found.server.port), (&b"t,a,1.x."[..], 16020));
        assert!(found.holds(b"a") && found.holds(b"azz") && !found.holds(b"b") && !found.holds(b"Z"));
        catalogued(&row("ns", "t", |_| {}), b"ns:t").unwrap();
        assert!(matches!(catalogued(&row("default", "s", |_| {}), b"t"), Err(Lookup::NoTable)));
        assert!(matches!(catalogued(&row("ns", "t", |_| {}), b"t"), Err(Lookup::NoTable)));
        let split = row("default", "t", |info| info.split = true);
        assert!(matches!(catalogued(&split, b"t"), Err(Lookup::NotServed)));
    }

    #[test]
    fn a_row_of_the_catalogue_that_says_too_little_is_no_region() {
        let mut closed = row("default", "t", |_| {});
        closed.cell.pop();
        assert!(matches!(catalogued(&closed, b"t"), Err(Lookup::NotServed)));
        for server in
            ["", "host", "host:", "host:x", "host:99999", ":", ":1", "host:0", "ho\nst:1", "\u{1b}[31m:1"]
        {
            let mut odd = row("default", "t", |_| {});
            odd.cell[1].value = server.into();
            assert!(catalogued(&odd, b"t").is_err(), "{server:?}");
        }
        let whole = row("default", "t", |_| {});
        for cut in 0..whole.cell[0].value.len() {
            let mut odd = whole.clone();
            odd.cell[0].value.truncate(cut);
            let _ = catalogued(&odd, b"t"); // no panic
        }
    }
}

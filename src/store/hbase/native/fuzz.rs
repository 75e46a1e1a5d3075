//! All parsers of server replies, run on arbitrary bytes. `tests/fuzz` generates the bytes; the test below mutates
//! real replies.

use prost::Message;

use super::address::Address;
use super::exception::{Exception, RetryClass};
use super::frame;
use super::locks::found;
use super::messages::{
    CreateTableResponse, ForeignException, GetActiveMasterResponse, GetClusterStatusResponse,
    GetMetaRegionLocationsResponse, GetProcedureResultResponse, GetResponse, GetTableDescriptorsResponse,
    MultiResponse, ScanResponse,
};
use super::region::catalogued;
use super::request::{cells, counted, processed};
use super::scan::cell;
use crate::store::hbase::cell_store::Cell;
use crate::store::hbase::locks::standing;
use crate::store::remote::{Record, Standing};

/// Parses `bytes` as a reply without its length, as each message, and as the record in a cell.
pub(in crate::store::hbase) fn read_all(bytes: &[u8]) {
    if let Some(prefix) = bytes.first_chunk::<4>() {
        let _ = frame::reply_length(*prefix, frame::FRAME_BYTES_MAX);
        let _ = frame::long_reply(u32::from_be_bytes(*prefix), &bytes[4..]);
    }
    if let Ok(reply) = frame::reply(bytes) {
        match reply.outcome {
            Ok(message) => read_messages(&message),
            Err(exception) => read_exception(exception.into()),
        }
    }
    read_messages(bytes);
    read_record(bytes);
}

fn read_messages(bytes: &[u8]) {
    if let Ok(answer) = MultiResponse::decode(bytes) {
        for result in answer.region_action_result {
            let _ = (processed(&result).is_ok(), counted(&result).is_ok());
            if let Some(exception) = result.exception.clone() {
                read_exception(exception.into());
            }
            let _ = cells(&result).map(Iterator::count);
            if let Ok(Some(cell)) = found(result) {
                read_record(&cell.value);
            }
        }
    }
    if let Ok(answer) = GetResponse::decode(bytes)
        && let Some(first) = answer.result.unwrap_or_default().cell.into_iter().next()
    {
        read_record(&cell(first).value);
    }
    if let Ok(answer) = ScanResponse::decode(bytes) {
        for row in &answer.results {
            if let Ok(region) = catalogued(row, b"t") {
                let _ = (region.specifier(), region.holds(b""), region.holds(&[0xff; 9]));
            }
        }
    }
    if let Ok(answer) = GetMetaRegionLocationsResponse::decode(bytes) {
        let names = answer.locations.into_iter().filter_map(|location| location.server_name);
        names.for_each(|name| drop(Address::try_from(name)));
    }
    if let Ok(answer) = GetActiveMasterResponse::decode(bytes) {
        drop(answer.server_name.map(Address::try_from));
    }
    let _ = GetTableDescriptorsResponse::decode(bytes);
    let _ = CreateTableResponse::decode(bytes);
    let _ = GetClusterStatusResponse::decode(bytes);
    if let Ok(answer) = GetProcedureResultResponse::decode(bytes)
        && let Some(ForeignException { generic_exception: Some(told) }) = answer.exception
    {
        read_exception(Exception::from_server(&told.class_name, &told.message));
    }
}

/// Checks that text which becomes part of an error is short and contains no control characters.
fn read_exception(exception: Exception) {
    for text in [exception.to_string(), exception.of_connection().to_string()] {
        assert!(text.len() < 4 * 600 && !text.contains(char::is_control), "{text:?}");
    }
    if let RetryClass::Elsewhere(Some(to)) = exception.retry_class() {
        assert!(to.host.len() < 256 && !to.host.contains(char::is_control), "{to:?}");
    }
    let _ = exception.may_pass();
}

fn read_record(bytes: &[u8]) {
    let holder = match standing(Some(Cell { value: bytes.to_vec(), written_ms: 1 })) {
        Standing::Free => None,
        Standing::Held(found) => Some(found.holder()),
    };
    assert_eq!(holder.is_none(), bytes.is_empty(), "only an empty cell is free");
    if let Some(holder) = holder {
        let shown = holder.to_string();
        assert!(!shown.contains(char::is_control), "{shown:?}");
    }
    if let Some(record) = Record::decode(bytes) {
        let renewed = record.renewed(record.ttl());
        assert!(renewed == record && renewed.same_owner(&record));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::messages::{Cell, NameBytesPair, RegionActionResult, ResultOrException, RowResult};
    use super::*;
    use crate::names::holder::Identity;

    /// Returns replies of a real server, and one with a record of this process.
    fn seeds() -> Vec<Vec<u8>> {
        let record = Record::draw(Duration::from_secs(9), &Identity::this_process("fuzz").unwrap());
        let value = record.unwrap().as_bytes().to_vec();
        let cell = Cell { row: b"r".to_vec(), timestamp: 5, value: value.clone(), ..Default::default() };
        let part = ResultOrException { result: Some(RowResult { cell: vec![cell] }), exception: None };
        let moved = NameBytesPair {
            name: "org.apache.hadoop.hbase.exceptions.RegionMovedException".into(),
            value: b"Region moved to: hostname=h port=16020 startCode=17. As of locationSeqNum=5.\n at"
                .to_vec(),
        };
        let answer = MultiResponse {
            region_action_result: vec![
                RegionActionResult {
                    result_or_exception: vec![part],
                    exception: None,
                    processed: Some(true),
                },
                RegionActionResult { exception: Some(moved), ..Default::default() },
            ],
        };
        let body = answer.encode_length_delimited_to_vec();
        let mut seeds = vec![value, [&[2, 8, 3][..], &body].concat()];
        let stored = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/seeds/hbase_replies");
        // A published package does not contain them.
        for entry in std::fs::read_dir(stored).into_iter().flatten() {
            seeds.push(std::fs::read(entry.unwrap().path()).unwrap());
        }
        seeds
    }

    fn mutate(bytes: &mut Vec<u8>) {
        for _ in 0..fastrand::usize(1..5) {
            let at = fastrand::usize(..=bytes.len());
            match fastrand::u8(..6) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, fastrand::u8(..)),
                // Varints that do not end, and lengths that are far too large.
                2 => drop(bytes.splice(at..at, [0xff; 9])),
                3 => drop(bytes.splice(at..at, bytes[at..].to_vec())),
                _ if at < bytes.len() => bytes[at] = fastrand::u8(..),
                _ => {}
            }
        }
        bytes.truncate(1 << 16);
    }

    #[test]
    fn replies_that_were_changed_anywhere_are_read_or_refused_and_nothing_else() {
        let seeds = seeds();
        seeds.iter().for_each(|seed| read_all(seed));
        for round in 0..100_000 {
            fastrand::seed(round);
            let mut bytes = seeds[fastrand::usize(..seeds.len())].clone();
            mutate(&mut bytes);
            if std::panic::catch_unwind(|| read_all(&bytes)).is_err() {
                panic!("seed {round}: {bytes:?}");
            }
        }
    }
}

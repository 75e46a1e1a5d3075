//! Aerospike's wire format: a request for one record, and its reply. Bytes from the network are parsed only here, and
//! `tests/fuzz` feeds this file.
//!
//! ```text
//! message     version 2, type 3, length of the rest (6 bytes); header of 22 bytes; fields; operations
//! header      its length, three bytes of flags, 0, result, generation (4), TTL (4), time-out in ms (4),
//!             number of fields (2), number of operations (2)
//! field       length (4), type (1), bytes
//! operation   length (4), kind (1), type of the value (1), 0, length of the name (1), name, value
//! ```
//!
//! A batch is a message without operations and with one field, [`BATCH`], which has a row for each record:
//!
//! ```text
//! batch       number of rows (4), flags (1), rows
//! row         index (4), hash of the key (20), which of the following are there (1), three bytes of flags as in a header,
//!             generation (2), TTL (4), number of fields (2), number of operations (2), fields, operations
//! ```
//!
//! The reply consists of messages with one part for each row, in any order. A part is like a reply, with the row's index in
//! place of the time-out. The last part has the flag [`LAST`]. It has no row, or an error of the whole batch.
//!
//! Numbers are big-endian. The names and numbers are those of the servers' `proto.h`, versions 6 to 8.
//!
//! The protocol has no request ids. So each request also asks for the value of a constant, its number, under the name
//! [`NUMBER`]. A reply that reports success without this number answers another request.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use ripemd::{Digest, Ripemd160};

use super::expression::Packer;
use super::msgpack;
use super::operation::{BinOperation, BinValue, FoundRecord, RecordExistsAction, Write};
use super::rest::{Rest, bad};
use crate::runtime::time::wall;
use crate::store::aerospike::keys::RecordKey;

/// The name of the answer with the number of the request. No bin of the library has it.
const NUMBER: &str = "#";
/// The limit for a reply. Servers keep records of at most 8 MiB.
const REPLY_BYTES_MAX: u64 = 16 << 20;

/// Bytes before the header.
pub(super) const PREFIX: usize = 8;
const HEADER: usize = 22;
const VERSION: u8 = 2;
const TYPE_RECORD: u8 = 3;

/// Flags of the first byte. The second of them reads from all copies while a partition moves.
const READ: u8 = 1;
const IS_BATCH: u8 = 1 << 3;
const READ_ALL_COPIES: u8 = 1 << 6;
const READ_ALL_BINS: u8 = 1 << 1;
/// Flags of the second byte.
const WRITE: u8 = 1;
const CREATE_ONLY: u8 = 1 << 5;
/// Flags of the third byte. The first is in replies to batches.
const LAST: u8 = 1;
const UPDATE_ONLY: u8 = 1 << 3;
const CREATE_OR_REPLACE: u8 = 1 << 4;
const REPLACE_ONLY: u8 = 1 << 5;

/// Types of a field.
const NAMESPACE: u8 = 0;
const SET: u8 = 1;
const DIGEST: u8 = 4;
const BATCH: u8 = 41;
const FILTER: u8 = 43;

/// What a row of a batch has: flags, generation and TTL.
const ROW_HAS: u8 = 2 | 4 | 8;
/// Flags of a batch: the node may carry it out in the thread that received it, answers each row whatever became of the
/// others, and gives the reason if it stops.
const BATCH_FLAGS: u8 = 1 | 4 | 8;

/// Kinds of an operation.
const OP_READ: u8 = 1;
const OP_WRITE: u8 = 2;
const OP_ADD: u8 = 5;
const OP_READ_EXPRESSION: u8 = 7;
const OP_WRITE_EXPRESSION: u8 = 8;
const OP_DELETE: u8 = 14;

/// Types of a value.
const NOTHING: u8 = 0;
const INTEGER: u8 = 1;
const STRING: u8 = 3;
const BLOB: u8 = 4;
const MAP: u8 = 19;
const LIST: u8 = 20;

/// A TTL in a read that does not extend the record's life.
const DO_NOT_TOUCH: u32 = u32::MAX;

/// The hash of a record's set and key. Its first bits select the record's partition.
pub(crate) struct RecordDigest([u8; 20]);

impl RecordDigest {
    pub(crate) fn of(record_key: &RecordKey) -> RecordDigest {
        let mut hash = Ripemd160::new();
        hash.update(record_key.set.as_bytes());
        hash.update([STRING]);
        hash.update(record_key.key.as_bytes());
        RecordDigest(hash.finalize().into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }

    pub(super) fn partition(&self) -> usize {
        usize::from(u16::from_le_bytes([self.0[0], self.0[1]])) % PARTITIONS
    }
}

/// The number of partitions of a namespace.
pub(crate) const PARTITIONS: usize = 4096;

/// A request for one record.
#[derive(Clone, Copy)]
pub(super) enum Asked<'a> {
    Write(&'a Write<'a>),
    /// Reads these bins, or all if there are none.
    Read(&'a [&'a str]),
    /// Reads with [`BinOperation::Read`] and [`BinOperation::ReadAge`].
    ReadSteps(&'a [BinOperation<'a>]),
}

impl Asked<'_> {
    /// Returns whether this file can write the request: it has no lists and no maps.
    pub(super) fn is_plain(&self) -> bool {
        match self {
            Asked::Write(write) => write.steps.iter().all(|step| match step {
                BinOperation::Put(_, bin_value) => {
                    matches!(bin_value, BinValue::Int(_) | BinValue::Bytes(_) | BinValue::Text(_))
                }
                BinOperation::MapPut(..) | BinOperation::MapDrop(..) | BinOperation::MapKeepHighest(..) => {
                    false
                }
                _ => true,
            }),
            Asked::Read(_) | Asked::ReadSteps(_) => true,
        }
    }

    /// Returns whether a successful reply contains the number of the request. The servers ignore all other questions
    /// of a request for all bins.
    fn is_numbered(&self) -> bool {
        !matches!(self, Asked::Read([]))
    }
}

/// Writes the request to `out`, which is cleared first.
pub(super) fn request(
    out: &mut Vec<u8>,
    (namespace, record_key, digest): (&str, &RecordKey, &RecordDigest),
    asked: Asked<'_>,
    number: u32,
    left_ms: u32,
) {
    out.clear();
    out.resize(PREFIX, 0);
    let mut flags = [READ | READ_ALL_COPIES, 0, 0];
    let (mut ttl, mut filter) = (DO_NOT_TOUCH, None);
    let questions = match asked {
        Asked::Write(write) => {
            write_flags(&mut flags, write);
            (ttl, filter) = (write.ttl_s, write.when.as_ref());
            write.steps.len()
        }
        Asked::Read([]) => {
            flags[0] |= READ_ALL_BINS;
            0
        }
        Asked::Read(bins) => bins.len(),
        Asked::ReadSteps(steps) => steps.len(),
    };
    out.extend_from_slice(&[HEADER as u8, flags[0], flags[1], flags[2], 0, 0]);
    for number in [0, ttl, left_ms] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    let (fields, questions) = (3 + u16::from(filter.is_some()), questions + usize::from(asked.is_numbered()));
    out.extend_from_slice(&fields.to_be_bytes());
    out.extend_from_slice(&(questions as u16).to_be_bytes());
    field(out, NAMESPACE, |out| out.extend_from_slice(namespace.as_bytes()));
    field(out, SET, |out| out.extend_from_slice(record_key.set.as_bytes()));
    field(out, DIGEST, |out| out.extend_from_slice(&digest.0));
    if let Some(when) = filter {
        field(out, FILTER, |out| Packer(out).condition(when));
    }
    if asked.is_numbered() {
        expression(out, OP_READ_EXPRESSION, NUMBER, |packer| packer.int(i64::from(number)));
    }
    operations(out, asked);
    finish(out);
}

fn operations(out: &mut Vec<u8>, asked: Asked<'_>) {
    match asked {
        Asked::Write(Write { steps, .. }) => steps.iter().for_each(|step| operation(out, step)),
        Asked::ReadSteps(steps) => steps.iter().for_each(|step| operation(out, step)),
        Asked::Read(bins) => bins.iter().for_each(|bin| step(out, OP_READ, NOTHING, bin, |_| {})),
    }
}

/// Writes a batch to `out`, which is cleared first. The index of a row is its position in `rows`. Its number is that of
/// [`row_number`]. A row that reads must name its bins: otherwise its answer would have no number.
pub(super) fn batch<'a>(
    out: &mut Vec<u8>,
    namespace: &str,
    rows: &[(&'a RecordKey, Asked<'a>, &'a RecordDigest)],
    number: u32,
    left_ms: u32,
) {
    out.clear();
    out.resize(PREFIX, 0);
    out.extend_from_slice(&[HEADER as u8, IS_BATCH | READ_ALL_COPIES, 0, 0, 0, 0]);
    for number in [0, 0, left_ms] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(&[0, 1, 0, 0]);
    field(out, BATCH, |out| {
        out.extend_from_slice(&(rows.len() as u32).to_be_bytes());
        out.push(BATCH_FLAGS);
        for (index, (record_key, asked, digest)) in (0..).zip(rows) {
            let mut flags = [READ, 0, 0];
            let (mut ttl, mut filter) = (DO_NOT_TOUCH, None);
            let questions = match asked {
                Asked::Write(write) => {
                    write_flags(&mut flags, write);
                    (ttl, filter) = (write.ttl_s, write.when.as_ref());
                    write.steps.len()
                }
                Asked::Read(bins) => bins.len(),
                Asked::ReadSteps(steps) => steps.len(),
            };
            out.extend_from_slice(&u32::to_be_bytes(index));
            out.extend_from_slice(&digest.0);
            out.push(ROW_HAS);
            out.extend_from_slice(&flags);
            out.extend_from_slice(&[0, 0]);
            out.extend_from_slice(&ttl.to_be_bytes());
            out.extend_from_slice(&(2 + u16::from(filter.is_some())).to_be_bytes());
            out.extend_from_slice(&(questions as u16 + 1).to_be_bytes());
            field(out, NAMESPACE, |out| out.extend_from_slice(namespace.as_bytes()));
            field(out, SET, |out| out.extend_from_slice(record_key.set.as_bytes()));
            if let Some(when) = filter {
                field(out, FILTER, |out| Packer(out).condition(when));
            }
            expression(out, OP_READ_EXPRESSION, NUMBER, |packer| packer.int(row_number(number, index)));
            operations(out, *asked);
        }
    });
    finish(out);
}

/// Returns the number of a row of the batch with this number.
fn row_number(number: u32, index: u32) -> i64 {
    i64::from(number) << 31 ^ i64::from(index)
}

fn write_flags(flags: &mut [u8; 3], write: &Write<'_>) {
    flags[1] |= WRITE;
    match write.exists {
        RecordExistsAction::Update => {}
        RecordExistsAction::UpdateOnly => flags[2] |= UPDATE_ONLY,
        RecordExistsAction::Replace => flags[2] |= CREATE_OR_REPLACE,
        RecordExistsAction::ReplaceOnly => flags[2] |= REPLACE_ONLY,
        RecordExistsAction::CreateOnly => flags[1] |= CREATE_ONLY,
    }
}

/// Writes the prefix of a message.
fn finish(out: &mut [u8]) {
    let length = (out.len() - PREFIX) as u64;
    let prefix = u64::from(VERSION) << 56 | u64::from(TYPE_RECORD) << 48 | length;
    out[..PREFIX].copy_from_slice(&prefix.to_be_bytes());
}

fn operation(out: &mut Vec<u8>, asked: &BinOperation<'_>) {
    match asked {
        BinOperation::Put(bin, BinValue::Int(number)) => {
            step(out, OP_WRITE, INTEGER, bin, |out| out.extend_from_slice(&number.to_be_bytes()));
        }
        BinOperation::Put(bin, BinValue::Bytes(bytes)) => {
            step(out, OP_WRITE, BLOB, bin, |out| out.extend_from_slice(bytes));
        }
        BinOperation::Put(bin, BinValue::Text(text)) => {
            step(out, OP_WRITE, STRING, bin, |out| out.extend_from_slice(text.as_bytes()));
        }
        BinOperation::Add(bin, number) => {
            step(out, OP_ADD, INTEGER, bin, |out| out.extend_from_slice(&number.to_be_bytes()));
        }
        BinOperation::Raise(bin, least) => {
            expression(out, OP_WRITE_EXPRESSION, bin, |packer| packer.raised(bin, *least));
        }
        BinOperation::Climb { bin, by, least, sign } => {
            expression(out, OP_WRITE_EXPRESSION, bin, |packer| packer.climbed(bin, (*by, *least), *sign));
        }
        BinOperation::Compute(bin, value) => {
            expression(out, OP_WRITE_EXPRESSION, bin, |packer| packer.expression(value));
        }
        BinOperation::Read(bin) => step(out, OP_READ, NOTHING, bin, |_| {}),
        BinOperation::ReadAge(name) => expression(out, OP_READ_EXPRESSION, name, |packer| packer.age()),
        BinOperation::ReadWritten(name) => {
            expression(out, OP_READ_EXPRESSION, name, |packer| packer.written());
        }
        BinOperation::Drop(bin) => step(out, OP_WRITE, NOTHING, bin, |_| {}),
        BinOperation::Delete => step(out, OP_DELETE, NOTHING, "", |_| {}),
        BinOperation::Put(..)
        | BinOperation::MapPut(..)
        | BinOperation::MapDrop(..)
        | BinOperation::MapKeepHighest(..) => {
            unreachable!("such a request is not plain")
        }
    }
}

fn field(out: &mut Vec<u8>, kind: u8, value: impl FnOnce(&mut Vec<u8>)) {
    with_length(out, |out| {
        out.push(kind);
        value(out);
    });
}

fn step(out: &mut Vec<u8>, kind: u8, type_: u8, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    with_length(out, |out| {
        out.extend_from_slice(&[kind, type_, 0, name.len() as u8]);
        out.extend_from_slice(name.as_bytes());
        value(out);
    });
}

/// Writes an operation whose value is an expression and its flags, of which there are none.
fn expression(out: &mut Vec<u8>, kind: u8, name: &str, pack: impl FnOnce(&mut Packer<'_>)) {
    step(out, kind, BLOB, name, |out| {
        let mut packer = Packer(out);
        packer.array(2);
        pack(&mut packer);
        packer.int(0);
    });
}

fn with_length(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// A reply.
#[derive(Debug)]
pub(super) struct RecordReply {
    /// 0, or the reason why the servers did not do it.
    pub(super) code: u8,
    pub(super) found: FoundRecord,
    number: Option<i64>,
}

impl RecordReply {
    /// Returns whether this may be the reply to the request with this number.
    pub(super) fn answers(&self, asked: Asked<'_>, number: u32) -> bool {
        // A refusal has no answers, so it has no number.
        self.code != 0 || !asked.is_numbered() || self.number == Some(i64::from(number))
    }
}

impl RecordReply {
    /// Returns the answer of a node that refused a request.
    pub(super) fn refusal(code: u8) -> RecordReply {
        RecordReply { code, found: FoundRecord::default(), number: None }
    }
}

#[cfg(test)]
impl RecordReply {
    pub(super) fn number(&self) -> Option<i64> {
        self.number
    }
}

/// Returns the number of bytes after the prefix of a reply.
pub(super) fn reply_length(prefix: [u8; PREFIX]) -> io::Result<usize> {
    let prefix = u64::from_be_bytes(prefix);
    let (start, length) = (prefix >> 48, prefix & 0xffff_ffff_ffff);
    if start != u64::from(VERSION) << 8 | u64::from(TYPE_RECORD) {
        return Err(bad("the server does not speak Aerospike's protocol"));
    }
    if !(HEADER as u64..=REPLY_BYTES_MAX).contains(&length) {
        return Err(bad("a reply has an impossible length"));
    }
    Ok(length as usize)
}

/// Parses a reply without its prefix.
pub(super) fn reply(bytes: &[u8]) -> io::Result<RecordReply> {
    let mut rest = Rest(bytes);
    let reply = part(&mut rest)?.reply;
    match rest.0 {
        [] => Ok(reply),
        _ => Err(bad("a reply has bytes beyond its end")),
    }
}

/// A part of the reply to a batch.
#[derive(Debug)]
pub(super) struct BatchPart {
    /// The index of the row.
    index: u32,
    is_last: bool,
    reply: RecordReply,
}

impl BatchPart {
    /// Returns the end of the batch: a code that is not 0 if the node stopped early.
    pub(super) fn end(&self) -> Option<u8> {
        self.is_last.then_some(self.reply.code)
    }

    /// Returns the row and its answer, if this part is of the batch with this number and so many rows.
    pub(super) fn row(self, number: u32, rows: usize) -> io::Result<(usize, RecordReply)> {
        let index = usize::try_from(self.index).unwrap_or(usize::MAX);
        // As in `RecordReply::answers`.
        let is_ours = self.reply.code != 0 || self.reply.number == Some(row_number(number, self.index));
        if index < rows && is_ours {
            Ok((index, self.reply))
        } else {
            Err(bad("a row answers another request"))
        }
    }
}

/// Parses a message of the reply to a batch, without its prefix.
pub(super) fn batch_parts(bytes: &[u8]) -> io::Result<Vec<BatchPart>> {
    let (mut rest, mut parts) = (Rest(bytes), Vec::new());
    while !rest.0.is_empty() {
        parts.push(part(&mut rest)?);
    }
    Ok(parts)
}

fn part(rest: &mut Rest<'_>) -> io::Result<BatchPart> {
    let header = rest.take(HEADER)?;
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    // A longer header of a later version.
    rest.take(usize::from(header[0]).checked_sub(HEADER).ok_or_else(|| bad("a reply has a short header"))?)?;
    let mut reply = RecordReply {
        code: header[5],
        found: FoundRecord { bins: Vec::new(), left: left(number(10)), generation: number(6) },
        number: None,
    };
    for _ in 0..count(18) {
        rest.part()?;
    }
    for _ in 0..count(20) {
        let mut part = Rest(rest.part()?);
        let head = part.take(4)?;
        let name = std::str::from_utf8(part.take(usize::from(head[3]))?)
            .map_err(|_| bad("a bin's name is not text"))?;
        let bin_value = value(head[1], part.0)?;
        match bin_value {
            BinValue::Int(number) if name == NUMBER => reply.number = Some(number),
            _ => reply.found.bins.push((name.to_owned(), bin_value)),
        }
    }
    Ok(BatchPart { index: number(14), is_last: header[3] & LAST != 0, reply })
}

fn value(kind: u8, bytes: &[u8]) -> io::Result<BinValue> {
    Ok(match kind {
        INTEGER => {
            let bytes = bytes.try_into().map_err(|_| bad("a number does not have eight bytes"))?;
            BinValue::Int(i64::from_be_bytes(bytes))
        }
        BLOB => BinValue::Bytes(bytes.to_vec()),
        STRING => match std::str::from_utf8(bytes) {
            Ok(text) => BinValue::Text(text.to_owned()),
            Err(_) => BinValue::Other,
        },
        // An application's bin may be deeper than ours. The others of the reply are read all the same.
        MAP | LIST => msgpack::value(bytes).unwrap_or(BinValue::Other),
        _ => BinValue::Other,
    })
}

/// Returns the remaining life of a record that expires at this second since 2010, by our clock. Never zero, because
/// the record still existed. `None` if it does not expire.
fn left(expires: u32) -> Option<Duration> {
    const YEAR_2010_S: u64 = 1_262_304_000;
    let now = wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    (expires != 0).then(|| Duration::from_secs((YEAR_2010_S + u64::from(expires)).saturating_sub(now).max(1)))
}

/// Parses `bytes` as a prefix, and as a reply with and without its prefix.
#[cfg(any(test, fuzzing))]
pub(super) fn read_all(bytes: &[u8]) {
    if let Some((prefix, rest)) = bytes.split_first_chunk() {
        if let Ok(length) = reply_length(*prefix) {
            assert!(length as u64 <= REPLY_BYTES_MAX);
        }
        let _ = reply(rest);
        let _ = batch_parts(rest);
    }
    if let Ok(reply) = reply(bytes) {
        let parsed: usize = reply.found.bins.iter().map(|(name, _)| name.len()).sum();
        assert!(parsed <= bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds() -> Vec<Vec<u8>> {
        let stored = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/seeds/aerospike_replies");
        // A published package does not contain them.
        let stored = std::fs::read_dir(stored).into_iter().flatten();
        stored.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn replies_of_a_real_server_are_read() {
        let (mut numbered, mut names) = (0, std::collections::BTreeSet::new());
        for seed in seeds() {
            let length = reply_length(*seed.first_chunk().unwrap()).unwrap();
            assert_eq!(length, seed.len() - PREFIX);
            let reply = reply(&seed[PREFIX..]).unwrap();
            assert!(matches!(reply.code, 0 | 2 | 5 | 27), "{reply:?}");
            numbered += usize::from(reply.number.is_some());
            names.extend(reply.found.bins.into_iter().map(|(name, _)| name));
        }
        assert!(numbered > 0 || seeds().is_empty());
        assert!(seeds().is_empty() || names.contains("own_fence"), "{names:?}");
    }

    #[test]
    fn replies_that_were_changed_anywhere_are_read_or_refused_and_nothing_else() {
        let mut seeds = seeds();
        seeds.push(vec![0; PREFIX + HEADER]);
        for seed in &seeds {
            for length in 0..seed.len() {
                read_all(&seed[..length]);
                assert!(
                    length < PREFIX || reply(&seed[PREFIX..length]).is_err(),
                    "a part of a reply is no reply"
                );
            }
        }
        for round in 0..100_000 {
            fastrand::seed(round);
            let mut bytes = seeds[fastrand::usize(..seeds.len())].clone();
            for _ in 0..fastrand::usize(1..5) {
                let at = fastrand::usize(..=bytes.len());
                match fastrand::u8(..5) {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, fastrand::u8(..)),
                    2 => drop(bytes.splice(at..at, [0xff; 4])),
                    _ if at < bytes.len() => bytes[at] = fastrand::u8(..),
                    _ => {}
                }
            }
            if std::panic::catch_unwind(|| read_all(&bytes)).is_err() {
                panic!("seed {round}: {bytes:?}");
            }
        }
    }

    #[test]
    fn lengths_that_no_reply_has_are_refused_before_allocation() {
        let prefix =
            |version: u64, kind: u64, length: u64| (version << 56 | kind << 48 | length).to_be_bytes();
        assert_eq!(reply_length(prefix(2, 3, 22)).unwrap(), 22);
        for (version, kind, length) in
            [(2, 3, 21), (2, 3, REPLY_BYTES_MAX + 1), (2, 1, 22), (3, 3, 22), (2, 4, 99)]
        {
            assert!(reply_length(prefix(version, kind, length)).is_err(), "{version} {kind} {length}");
        }
    }

    #[test]
    fn a_success_without_the_number_of_the_request_answers_another_one() {
        let reply = |code, number| RecordReply { code, found: FoundRecord::default(), number };
        let numbered = Asked::ReadSteps(&[]);
        assert!(reply(0, Some(7)).answers(numbered, 7));
        assert!(!reply(0, Some(6)).answers(numbered, 7));
        assert!(!reply(0, None).answers(numbered, 7));
        assert!(reply(27, None).answers(numbered, 7), "a refusal has no number");
        assert!(reply(0, None).answers(Asked::Read(&[]), 7), "nor has a request for all bins");
    }

    #[test]
    fn a_list_or_a_map_that_is_not_understood_is_another_value() {
        for bytes in [&[0x91; 100][..], &[0xc1], &[0x92, 1]] {
            assert_eq!(value(LIST, bytes).unwrap(), BinValue::Other);
            assert_eq!(value(MAP, bytes).unwrap(), BinValue::Other);
        }
    }

    #[test]
    fn a_digest_is_that_of_the_vendors_client() {
        for (set, key) in [("XDC#tests", "client#id"), ("DC#f#s", ""), ("", "k")] {
            let record_key = RecordKey { set: set.into(), key: key.into() };
            let theirs = aerospike::Key::new("test", set, aerospike::Value::from(key)).unwrap();
            assert_eq!(RecordDigest::of(&record_key).0, theirs.digest());
        }
    }

    #[test]
    fn requests_with_lists_and_maps_are_left_to_the_crate() {
        let record_key = RecordKey { set: "s".into(), key: "k".into() };
        let is_plain = |step: BinOperation<'_>| {
            let (exists, steps) = (RecordExistsAction::Update, [step]);
            Asked::Write(&Write { record_key: &record_key, exists, when: None, steps: &steps, ttl_s: 1 })
                .is_plain()
        };
        assert!(is_plain(BinOperation::Put("b", BinValue::Int(1))));
        assert!(is_plain(BinOperation::Delete));
        assert!(!is_plain(BinOperation::Put("b", BinValue::List(Vec::new()))));
        assert!(!is_plain(BinOperation::Put("b", BinValue::Other)));
        assert!(!is_plain(BinOperation::MapPut("b", BinValue::Int(1), BinValue::Int(1))));
        assert!(!is_plain(BinOperation::MapDrop("b", Vec::new())));
    }
}

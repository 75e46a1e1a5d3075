//! Requests for one record, and their answers.

use std::time::Duration;

pub(crate) use aerospike::RecordExistsAction;

use super::expr::Expr;
use crate::store::aerospike::keys::RecordKey;

/// A value in a bin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BinValue {
    Int(i64),
    Bytes(Vec<u8>),
    Text(String),
    List(Vec<BinValue>),
    Map(Vec<(BinValue, BinValue)>),
    /// A type that the library does not write.
    Other,
}

/// A [`Write::ttl_s`] that leaves the end of the record's life as it is.
pub(crate) const TTL_KEPT: u32 = u32::MAX - 1;
/// A [`Write::ttl_s`] for a record that does not expire.
pub(crate) const TTL_NEVER: u32 = u32::MAX;

/// One atomic change of a record.
pub(crate) struct Write<'a> {
    pub(crate) record_key: &'a RecordKey,
    pub(crate) exists: RecordExistsAction,
    pub(crate) when: Option<When<'a>>,
    pub(crate) steps: &'a [BinOperation<'a>],
    /// The record's TTL from now on in seconds, or [`TTL_KEPT`] or [`TTL_NEVER`].
    pub(crate) ttl_s: u32,
}

/// One of many changes, each of another record.
pub(crate) struct ManyWrite<'a> {
    pub(crate) write: Write<'a>,
    /// Whether the request must not carry any other change.
    pub(crate) alone: bool,
}

/// The condition that an existing record must meet for the change.
pub(crate) enum When<'a> {
    /// The bin holds these bytes.
    Is(&'a str, &'a [u8]),
    /// Like `Is`, and the record has at most `left_s` seconds left. A TTL of `left_s` then does not shorten its
    /// life.
    IsNoLonger {
        bin: &'a str,
        bytes: &'a [u8],
        left_s: u32,
    },
    /// The bin exists.
    Has(&'a str),
    /// The bin does not exist.
    Lacks(&'a str),
    /// The bin `has` exists, and the bin `lacks` does not.
    HasLacks {
        has: &'a str,
        lacks: &'a str,
    },
    /// The bin `has` exists, the bin `is` holds these bytes, and the map in the bin `map` does not have the `key`.
    LacksKey {
        has: &'a str,
        is: (&'a str, &'a [u8]),
        map: &'a str,
        key: &'a BinValue,
    },
    /// None of these bins exists.
    LacksAll([&'a str; 3]),
    /// The bin `of` holds this text, the bin `fence` holds at most this number, and the bin `marks` holds these
    /// bytes.
    Guarded {
        of: (&'a str, &'a str),
        fence: (&'a str, i64),
        marks: (&'a str, &'a [u8]),
    },
    /// A lock in the layout `own` that is free: the bin `lasts_ms` holds less than the milliseconds since the last
    /// write. A record without this bin is not free.
    Free {
        lasts_ms: &'a str,
    },
    /// A held lock in either layout: the bin `lasts_ms` is missing, or holds at least the milliseconds since the last write.
    HeldInAny {
        lasts_ms: &'a str,
    },
    /// A lock in the layout `own` whose lease has this token and has not ended.
    Held(OwnLease<'a>),
    /// Like `Held`, and the lease has at most `left_ms` left.
    HeldNoLonger(OwnLease<'a>, i64),
    /// The record was written after this time, in milliseconds since 1970.
    WrittenAfter(i64),
    /// The record was last written at this time of its node, in nanoseconds since 1970.
    WrittenAt(i64),
    /// The bin does not exist, or holds an integer to which this number can be added without overflow.
    CanAdd(&'a str, i64),
    Both(Box<[When<'a>; 2]>),
    /// The expression is true.
    Meets(Expr),
}

/// A lease in the layout `own`: its token, and the name of the bin with its length in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct OwnLease<'a> {
    pub(crate) token: (&'a str, &'a [u8]),
    pub(crate) lasts_ms: &'a str,
}

/// Some partitions of a set.
pub(crate) struct SetPart<'a> {
    pub(crate) set: &'a str,
    /// The first partition.
    pub(crate) begin: usize,
    /// The number of partitions.
    pub(crate) count: usize,
}

pub(crate) enum BinOperation<'a> {
    Put(&'a str, BinValue),
    Add(&'a str, i64),
    /// Sets the bin to the higher of its number plus the first of these numbers and the second.
    Raise(&'a str, (i64, i64)),
    /// Sets the bin to the higher of its number plus `by` and `least`, without regard to the sign of its number.
    Climb {
        bin: &'a str,
        by: i64,
        least: i64,
        sign: Sign,
    },
    /// Sets the bin to the value of the expression.
    Compute(&'a str, Expr),
    MapPut(&'a str, BinValue, BinValue),
    MapDrop(&'a str, Vec<BinValue>),
    /// Removes all entries of the map but so many, those with the highest values.
    MapKeepHighest(&'a str, usize),
    /// Returns the value in this bin, after the operations before this one.
    Read(&'a str),
    /// Returns the milliseconds since the record was written, by the clock of its node, under this name.
    ReadAge(&'a str),
    /// Returns the time at which the record was last written, by the clock of its node, in nanoseconds since 1970, under this
    /// name.
    ReadWritten(&'a str),
    /// Deletes the bin.
    Drop(&'a str),
    /// Deletes the record.
    Delete,
}

/// The sign of the number that a [`BinOperation::Climb`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    Positive,
    /// That of the number before. Negative if there was none.
    Kept,
}

#[derive(Debug)]
pub(crate) enum Written {
    /// The change was made. The record has the answers to [`BinOperation::Read`].
    Done(FoundRecord),
    /// The record does not exist.
    Missing,
    /// The record exists but should be new, or it does not meet the condition. Nothing was changed.
    Refused,
}

/// A record that was read.
#[derive(Debug, Default)]
pub(crate) struct FoundRecord {
    pub(crate) bins: Vec<(String, BinValue)>,
    /// Remaining life in whole seconds, by our clock.
    pub(crate) left: Option<Duration>,
    /// The number of writes since the record was created. It has 16 bits and starts again.
    pub(crate) generation: u32,
}

impl FoundRecord {
    pub(crate) fn bin(&self, name: &str) -> Option<&BinValue> {
        self.bins.iter().find(|(bin, _)| bin == name).map(|(_, bin_value)| bin_value)
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        match self.bin(name) {
            Some(&BinValue::Int(number)) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.bin(name) {
            Some(BinValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.bin(name) {
            Some(BinValue::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

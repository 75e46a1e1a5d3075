//! What is asked of one record, and what comes back.

use std::time::Duration;

pub(crate) use aerospike::RecordExistsAction;

use crate::store::aerospike::keys::RecordKey;

/// A value in a bin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BinValue {
    Int(i64),
    Bytes(Vec<u8>),
    Text(String),
    List(Vec<BinValue>),
    Map(Vec<(BinValue, BinValue)>),
    /// Nothing that we write.
    Other,
}

/// As a [`Write::ttl_s`]: the record lives for as long as it would have.
pub(crate) const TTL_KEPT: u32 = u32::MAX - 1;
/// As a [`Write::ttl_s`]: the record does not expire.
pub(crate) const TTL_NEVER: u32 = u32::MAX;

/// One change of a record: all of it or nothing.
pub(crate) struct Write<'a> {
    pub(crate) record_key: &'a RecordKey,
    pub(crate) exists: RecordExistsAction,
    pub(crate) when: Option<When<'a>>,
    pub(crate) steps: &'a [BinOperation<'a>],
    /// The record's whole life from now on, [`TTL_KEPT`] or [`TTL_NEVER`].
    pub(crate) ttl_s: u32,
}

/// What a record that is there must look like for the change to happen.
pub(crate) enum When<'a> {
    Is(&'a str, &'a [u8]),
    /// As `Is`, and the record has at the most `left_s` seconds left, so that giving it as many does not
    /// make its life shorter.
    IsNoLonger {
        bin: &'a str,
        bytes: &'a [u8],
        left_s: u32,
    },
    Lacks(&'a str),
    /// The bin `has` is there, and the bin `lacks` is not.
    HasLacks {
        has: &'a str,
        lacks: &'a str,
    },
    /// The bin `has` is there, the bin `is` holds these bytes, and the map in the bin `map` has no such
    /// `key`.
    LacksKey {
        has: &'a str,
        is: (&'a str, &'a [u8]),
        map: &'a str,
        key: &'a BinValue,
    },
    /// None of these bins is there.
    LacksAll([&'a str; 3]),
    /// The bin `of` holds this text, the bin `fence` this number or a lower one, and the bin `marks` these
    /// bytes.
    Guarded {
        of: (&'a str, &'a str),
        fence: (&'a str, i64),
        marks: (&'a str, &'a [u8]),
    },
    /// The bin is not there, or holds an integer to which so much can be added.
    CanAdd(&'a str, i64),
    Both(Box<[When<'a>; 2]>),
}

pub(crate) enum BinOperation<'a> {
    Put(&'a str, BinValue),
    Add(&'a str, i64),
    /// The bin becomes one more, and at the least so much.
    Raise(&'a str, i64),
    MapPut(&'a str, BinValue, BinValue),
    MapDrop(&'a str, Vec<BinValue>),
    /// Answer the number in this bin, as it is after the changes before.
    Tell(&'a str),
    /// The bin goes.
    Drop(&'a str),
    /// The record goes.
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// It happened; what [`BinOperation::Tell`] asked for.
    Done(Option<i64>),
    /// There is no such record.
    Missing,
    /// The record is there, and was to be new or to look otherwise. Nothing was changed.
    Refused,
}

/// A record that was read.
#[derive(Debug)]
pub(crate) struct FoundRecord {
    pub(crate) bins: Vec<(String, BinValue)>,
    /// How long it has left, in whole seconds, by our clock.
    pub(crate) left: Option<Duration>,
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

    pub(crate) fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.bin(name) {
            Some(BinValue::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

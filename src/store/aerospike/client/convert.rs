//! Conversion of requests and records to the types of the crate `aerospike`, and back.

use aerospike::expressions::{self as exp, Expression};
use aerospike::operations::exp::{ExpReadFlags, ExpWriteFlags, read_exp, write_exp};
use aerospike::operations::maps::{self, MapOrder};
use aerospike::operations::{Operation, scalar};
use aerospike::{
    BasePolicy, Bin, Bins, CommitLevel, Expiration, MapPolicy, MapReturnType, MapWriteFlags, ReadModeAp,
    ReadTouchTtl, Record, Replica, Value, WritePolicy,
};

use super::expression::Packer;
use super::operation::{BinOperation, BinValue, FoundRecord, TTL_KEPT, TTL_NEVER, When, Write};

/// Reads return the effect of the last acknowledged write. The crate retries nothing.
pub(super) fn base_policy(left_ms: u32, filter: Option<Expression>) -> BasePolicy {
    BasePolicy {
        read_mode_ap: ReadModeAp::All,
        replica: Replica::Master,
        socket_timeout: left_ms,
        total_timeout: left_ms,
        max_retries: 0,
        filter_expression: filter,
        // A read must not count as a change: it would extend leases of the layout `own`.
        read_touch_ttl: ReadTouchTtl::DontReset,
        ..BasePolicy::default()
    }
}

pub(super) fn write_policy(write: &Write<'_>, left_ms: u32) -> WritePolicy {
    WritePolicy {
        base_policy: base_policy(left_ms, write.when.as_ref().map(filter)),
        record_exists_action: write.exists,
        commit_level: CommitLevel::CommitAll,
        expiration: match write.ttl_s {
            TTL_KEPT => Expiration::DontUpdate,
            TTL_NEVER => Expiration::Never,
            seconds => Expiration::Seconds(seconds),
        },
        ..WritePolicy::default()
    }
}

pub(super) fn filter(when: &When<'_>) -> Expression {
    packed(|packer| packer.condition(when))
}

fn packed(pack: impl FnOnce(&mut Packer<'_>)) -> Expression {
    let mut bytes = Vec::new();
    pack(&mut Packer(&mut bytes));
    exp::from_packed_bytes(bytes)
}

pub(super) fn plain_put(step: &BinOperation<'_>) -> Option<Bin> {
    match step {
        BinOperation::Put(bin, bin_value) => Some(Bin::new(*bin, value(bin_value))),
        BinOperation::Drop(bin) => Some(Bin::new(*bin, Value::Nil)),
        _ => None,
    }
}

pub(super) fn operation(step: &BinOperation<'_>) -> Operation {
    const IN_KEY_ORDER: MapPolicy = MapPolicy::new(MapOrder::KeyOrdered, MapWriteFlags::DEFAULT);
    match step {
        BinOperation::Put(bin, bin_value) => scalar::put(&Bin::new(*bin, value(bin_value))),
        BinOperation::Add(bin, number) => scalar::add(&Bin::new(*bin, Value::Int(*number))),
        BinOperation::Raise(bin, least) => {
            write_exp(*bin, packed(|packer| packer.raised(bin, *least)), ExpWriteFlags::DEFAULT)
        }
        BinOperation::Climb { bin, by, least, sign } => write_exp(
            *bin,
            packed(|packer| packer.climbed(bin, (*by, *least), *sign)),
            ExpWriteFlags::DEFAULT,
        ),
        BinOperation::Compute(bin, value) => {
            write_exp(*bin, packed(|packer| packer.expression(value)), ExpWriteFlags::DEFAULT)
        }
        BinOperation::MapPut(bin, key, bin_value) => {
            maps::put(&IN_KEY_ORDER, *bin, value(key), value(bin_value))
        }
        BinOperation::MapDrop(bin, keys) => {
            maps::remove_by_key_list(*bin, keys.iter().map(value).collect(), MapReturnType::NONE)
        }
        BinOperation::MapKeepHighest(bin, count) => {
            let others = MapReturnType::NONE.inverted();
            maps::remove_by_rank_range_from(*bin, -(*count as i64), others)
        }
        BinOperation::Read(bin) => scalar::get_bin(*bin),
        BinOperation::ReadAge(name) => read_exp(*name, packed(|packer| packer.age()), ExpReadFlags::DEFAULT),
        BinOperation::ReadWritten(name) => {
            read_exp(*name, packed(|packer| packer.written()), ExpReadFlags::DEFAULT)
        }
        BinOperation::Drop(bin) => scalar::put(&Bin::new(*bin, Value::Nil)),
        BinOperation::Delete => scalar::delete(),
    }
}

pub(super) fn wanted(bins: &[&str]) -> Bins {
    if bins.is_empty() { Bins::All } else { Bins::from(bins) }
}

pub(super) fn found(record: &Record) -> FoundRecord {
    FoundRecord {
        bins: record.bins.iter().map(|(name, value)| (name.clone(), bin_value(value))).collect(),
        left: record.time_to_live(),
        generation: record.generation,
    }
}

fn value(bin_value: &BinValue) -> Value {
    match bin_value {
        BinValue::Int(number) => Value::Int(*number),
        BinValue::Bytes(bytes) => Value::Blob(bytes.clone()),
        BinValue::Text(text) => Value::String(text.clone()),
        BinValue::List(items) => Value::List(items.iter().map(value).collect()),
        BinValue::Map(entries) => {
            Value::SortedMap(entries.iter().map(|(key, item)| (value(key), value(item))).collect())
        }
        BinValue::Other => Value::Nil,
    }
}

fn bin_value(value: &Value) -> BinValue {
    if let Value::MultiResult(answers) = value {
        // Several operations used the bin. Operations that only write answer with nothing.
        return answers
            .iter()
            .rev()
            .map(bin_value)
            .find(|it| *it != BinValue::Other)
            .unwrap_or(BinValue::Other);
    }
    let pair = |(key, item): (&Value, &Value)| (bin_value(key), bin_value(item));
    match value {
        Value::Int(number) => BinValue::Int(*number),
        Value::Blob(bytes) => BinValue::Bytes(bytes.clone()),
        Value::String(text) => BinValue::Text(text.clone()),
        Value::List(items) => BinValue::List(items.iter().map(bin_value).collect()),
        Value::HashMap(map) => BinValue::Map(map.iter().map(pair).collect()),
        Value::OrderedMap(map) => BinValue::Map(map.iter().map(pair).collect()),
        Value::SortedMap(map) => BinValue::Map(map.iter().map(pair).collect()),
        _ => BinValue::Other,
    }
}

//! Conversion of requests and records to the types of the crate `aerospike`, and back.

use aerospike::expressions::{self as exp, ExpType, Expression};
use aerospike::operations::exp::{ExpWriteFlags, write_exp};
use aerospike::operations::maps::{self, MapOrder};
use aerospike::operations::{Operation, scalar};
use aerospike::{
    BasePolicy, Bin, Bins, CommitLevel, Expiration, MapPolicy, MapReturnType, MapWriteFlags, ReadModeAp,
    Record, Replica, Value, WritePolicy,
};

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

fn filter(when: &When<'_>) -> Expression {
    match when {
        When::Is(bin, bytes) => exp::eq(exp::blob_bin(*bin), exp::blob_val(bytes.to_vec())),
        When::IsNoLonger { bin, bytes, left_s } => exp::and(vec![
            filter(&When::Is(bin, bytes)),
            // Whole seconds, by the same clock that the write counts from: an equal TTL keeps the current end.
            // A record that never expires has a TTL below zero.
            exp::ge(exp::ttl(), exp::int_val(0)),
            exp::le(exp::ttl(), exp::int_val(i64::from(*left_s))),
        ]),
        When::Lacks(bin) => exp::not(exp::bin_exists(*bin)),
        When::HasLacks { has, lacks } => exp::and(vec![exp::bin_exists(*has), filter(&When::Lacks(lacks))]),
        When::LacksKey { has, is: (marked, mark), map, key } => {
            let key = match key {
                BinValue::Text(text) => exp::string_val(text.as_str()),
                BinValue::Bytes(bytes) => exp::blob_val(bytes.clone()),
                other => unreachable!("no map has such keys: {other:?}"),
            };
            let bin = exp::map_bin(*map);
            let found =
                aerospike::expressions::maps::get_by_key(MapReturnType::COUNT, ExpType::Int, key, bin, &[]);
            let lacks = exp::or(vec![exp::not(exp::bin_exists(*map)), exp::eq(found, exp::int_val(0))]);
            exp::and(vec![exp::bin_exists(*has), filter(&When::Is(marked, mark)), lacks])
        }
        When::LacksAll(bins) => exp::and(bins.iter().map(|bin| filter(&When::Lacks(bin))).collect()),
        When::Guarded { of: (of, name), fence: (fence, number), marks: (marks, bytes) } => exp::and(vec![
            exp::eq(exp::string_bin(*of), exp::string_val(*name)),
            exp::le(exp::int_bin(*fence), exp::int_val(*number)),
            filter(&When::Is(marks, bytes)),
        ]),
        When::CanAdd(bin, by) => {
            // The servers wrap around on overflow. For a bin of another type neither comparison is true.
            let bounded = match i64::MAX.checked_sub(*by) {
                Some(most) if *by >= 0 => exp::le(exp::int_bin(*bin), exp::int_val(most)),
                _ => exp::ge(exp::int_bin(*bin), exp::int_val(i64::MIN - *by)),
            };
            exp::or(vec![filter(&When::Lacks(bin)), bounded])
        }
        When::Both(both) => exp::and(both.iter().map(filter).collect()),
    }
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
            let next = exp::num_add(vec![exp::int_bin(*bin), exp::int_val(1)]);
            let raised = exp::max(vec![next, exp::int_val(*least)]);
            let first = exp::int_val(*least);
            let number = exp::cond(vec![exp::bin_exists(*bin), raised, first]);
            write_exp(*bin, number, ExpWriteFlags::DEFAULT)
        }
        BinOperation::MapPut(bin, key, bin_value) => {
            maps::put(&IN_KEY_ORDER, *bin, value(key), value(bin_value))
        }
        BinOperation::MapDrop(bin, keys) => {
            maps::remove_by_key_list(*bin, keys.iter().map(value).collect(), MapReturnType::NONE)
        }
        BinOperation::Tell(bin) => scalar::get_bin(*bin),
        BinOperation::Drop(bin) => scalar::put(&Bin::new(*bin, Value::Nil)),
        BinOperation::Delete => scalar::delete(),
    }
}

/// Returns the number in the bin that a [`BinOperation::Tell`] asked for. If the bin has several answers, the last
/// one counts.
pub(super) fn told(record: &Record, steps: &[BinOperation<'_>]) -> Option<i64> {
    let asked = steps.iter().find_map(|step| match step {
        BinOperation::Tell(bin) => Some(*bin),
        _ => None,
    })?;
    let number = |answer: &Value| match answer {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    match record.bins.get(asked)? {
        Value::MultiResult(answers) => answers.iter().rev().find_map(number),
        answer => number(answer),
    }
}

pub(super) fn wanted(bins: &[&str]) -> Bins {
    if bins.is_empty() { Bins::All } else { Bins::from(bins) }
}

pub(super) fn found(record: &Record) -> FoundRecord {
    FoundRecord {
        bins: record.bins.iter().map(|(name, value)| (name.clone(), bin_value(value))).collect(),
        left: record.time_to_live(),
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

//! Conversion of requests and records to the types of the crate `aerospike`, and back.

use aerospike::expressions::{self as exp, ExpType, Expression};
use aerospike::operations::exp::{ExpReadFlags, ExpWriteFlags, read_exp, write_exp};
use aerospike::operations::maps::{self, MapOrder};
use aerospike::operations::{Operation, scalar};
use aerospike::{
    BasePolicy, Bin, Bins, CommitLevel, Expiration, MapPolicy, MapReturnType, MapWriteFlags, ReadModeAp,
    ReadTouchTtl, Record, Replica, Value, WritePolicy,
};

use super::operation::{
    BinOperation, BinValue, FoundRecord, OwnLease, Sign, TTL_KEPT, TTL_NEVER, When, Write,
};

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
    match when {
        When::Is(bin, bytes) => exp::eq(exp::blob_bin(*bin), exp::blob_val(bytes.to_vec())),
        When::IsNoLonger { bin, bytes, left_s } => exp::and(vec![
            filter(&When::Is(bin, bytes)),
            // Whole seconds, by the same clock that the write counts from: an equal TTL keeps the current end.
            // A record that never expires has a TTL below zero.
            exp::ge(exp::ttl(), exp::int_val(0)),
            exp::le(exp::ttl(), exp::int_val(i64::from(*left_s))),
        ]),
        When::Has(bin) => exp::bin_exists(*bin),
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
        When::Free { lasts_ms } => exp::gt(exp::since_update(), exp::int_bin(*lasts_ms)),
        When::Held(OwnLease { token: (bin, bytes), lasts_ms }) => exp::and(vec![
            filter(&When::Is(bin, bytes)),
            exp::le(exp::since_update(), exp::int_bin(*lasts_ms)),
        ]),
        When::HeldNoLonger(lease, left_ms) => {
            let left = exp::num_sub(vec![exp::int_bin(lease.lasts_ms), exp::since_update()]);
            exp::and(vec![filter(&When::Held(*lease)), exp::le(left, exp::int_val(*left_ms))])
        }
        When::WrittenAfter(ms) => exp::gt(exp::last_update(), exp::int_val(ms.saturating_mul(1_000_000))),
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
        BinOperation::Climb { bin, least, sign } => {
            let number = || exp::int_bin(*bin);
            let next = exp::num_add(vec![exp::num_abs(number()), exp::int_val(1)]);
            let next = exp::max(vec![next, exp::int_val(*least)]);
            let is_first = exp::not(exp::bin_exists(*bin));
            let climbed = match sign {
                Sign::Positive => exp::cond(vec![is_first, exp::int_val(*least), next]),
                Sign::Kept => {
                    let was_negative = exp::lt(number(), exp::int_val(0));
                    let negative = exp::num_sub(vec![exp::int_val(0), next.clone()]);
                    exp::cond(vec![is_first, exp::int_val(-*least), was_negative, negative, next])
                }
            };
            write_exp(*bin, climbed, ExpWriteFlags::DEFAULT)
        }
        BinOperation::MapPut(bin, key, bin_value) => {
            maps::put(&IN_KEY_ORDER, *bin, value(key), value(bin_value))
        }
        BinOperation::MapDrop(bin, keys) => {
            maps::remove_by_key_list(*bin, keys.iter().map(value).collect(), MapReturnType::NONE)
        }
        BinOperation::Tell(bin) => scalar::get_bin(*bin),
        BinOperation::TellAge(name) => read_exp(*name, exp::since_update(), ExpReadFlags::DEFAULT),
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

//! The conditions and the computed numbers of a request, in the servers' expression language.
//!
//! An expression is a MessagePack array: an operator and its arguments. A literal string or blob begins with a byte
//! for its type. The numbers of the operators are those of the servers' `exp.h`, versions 6 to 8.

mod build;

use super::expr::Expr;
use super::operation::{BinValue, OwnLease, Sign, When};

const EQ: i64 = 1;
const NE: i64 = 2;
const GT: i64 = 3;
const GE: i64 = 4;
const LT: i64 = 5;
const LE: i64 = 6;
const AND: i64 = 16;
const OR: i64 = 17;
const NOT: i64 = 18;
const ADD: i64 = 20;
const SUB: i64 = 21;
const ABS: i64 = 27;
const MAX: i64 = 51;
const LAST_UPDATE: i64 = 66;
const SINCE_UPDATE: i64 = 67;
const TTL: i64 = 69;
const BIN: i64 = 81;
const BIN_TYPE: i64 = 82;
const COND: i64 = 123;
const CALL: i64 = 127;

/// Types of a bin in an expression.
const INT: i64 = 2;
const STRING: i64 = 3;
const MAP: i64 = 5;
const BLOB: i64 = 6;

/// The arguments of a call that counts the entries of a map with a key: the family of calls, the call, and the wish
/// for a count.
const CDT: i64 = 0;
const MAP_GET_BY_KEY: i64 = 97;
const RETURN_COUNT: i64 = 5;

/// The first byte of a literal.
const LITERAL_STRING: u8 = 3;
const LITERAL_BLOB: u8 = 4;

/// Appends expressions to a message.
pub(super) struct Packer<'a>(pub(super) &'a mut Vec<u8>);

impl Packer<'_> {
    /// Packs a condition that is true or false.
    pub(super) fn condition(&mut self, when: &When<'_>) {
        match when {
            When::Is(bin, bytes) => {
                self.operator(EQ, 2);
                self.bin(BLOB, bin);
                self.literal(LITERAL_BLOB, bytes);
            }
            When::IsNoLonger { bin, bytes, left_s } => {
                self.operator(AND, 3);
                self.condition(&When::Is(bin, bytes));
                // Whole seconds, by the same clock that the write counts from: an equal TTL keeps the current end.
                // A record that never expires has a TTL below zero.
                self.operator(GE, 2);
                self.operator(TTL, 0);
                self.int(0);
                self.operator(LE, 2);
                self.operator(TTL, 0);
                self.int(i64::from(*left_s));
            }
            When::Has(bin) => self.bin_exists(bin),
            When::Lacks(bin) => {
                self.operator(NOT, 1);
                self.bin_exists(bin);
            }
            When::HasLacks { has, lacks } => self.all(&[When::Has(has), When::Lacks(lacks)]),
            When::LacksKey { has, is: (marked, mark), map, key } => {
                self.operator(AND, 3);
                self.condition(&When::Has(has));
                self.condition(&When::Is(marked, mark));
                self.operator(OR, 2);
                self.condition(&When::Lacks(map));
                self.operator(EQ, 2);
                self.count_of_key(map, key);
                self.int(0);
            }
            When::LacksAll(bins) => self.all(&bins.map(When::Lacks)),
            When::Guarded { of: (of, name), fence: (fence, number), marks: (marks, bytes) } => {
                self.operator(AND, 3);
                self.operator(EQ, 2);
                self.bin(STRING, of);
                self.literal(LITERAL_STRING, name.as_bytes());
                self.operator(LE, 2);
                self.bin(INT, fence);
                self.int(*number);
                self.condition(&When::Is(marks, bytes));
            }
            When::CanAdd(bin, by) => {
                self.operator(OR, 2);
                self.condition(&When::Lacks(bin));
                // The servers wrap around on overflow. For a bin of another type neither comparison is true.
                let (comparison, limit) = match i64::MAX.checked_sub(*by) {
                    Some(most) if *by >= 0 => (LE, most),
                    _ => (GE, i64::MIN - *by),
                };
                self.operator(comparison, 2);
                self.bin(INT, bin);
                self.int(limit);
            }
            When::Free { lasts_ms } => {
                self.operator(GT, 2);
                self.operator(SINCE_UPDATE, 0);
                self.bin(INT, lasts_ms);
            }
            When::HeldInAny { lasts_ms } => {
                self.operator(OR, 2);
                self.condition(&When::Lacks(lasts_ms));
                self.operator(LE, 2);
                self.operator(SINCE_UPDATE, 0);
                self.bin(INT, lasts_ms);
            }
            When::Held(lease) => {
                self.operator(AND, 2);
                self.held(lease);
            }
            When::HeldNoLonger(lease, left_ms) => {
                self.operator(AND, 3);
                self.held(lease);
                self.operator(LE, 2);
                self.operator(SUB, 2);
                self.bin(INT, lease.lasts_ms);
                self.operator(SINCE_UPDATE, 0);
                self.int(*left_ms);
            }
            When::WrittenAfter(ms) => {
                self.operator(GT, 2);
                self.operator(LAST_UPDATE, 0);
                self.int(ms.saturating_mul(1_000_000));
            }
            When::WrittenAt(ns) => {
                self.operator(EQ, 2);
                self.operator(LAST_UPDATE, 0);
                self.int(*ns);
            }
            When::Both(both) => self.all(&**both),
            When::Meets(expression) => self.expression(expression),
        }
    }

    /// Packs the higher of the bin's number plus `by` and `least`.
    pub(super) fn raised(&mut self, bin: &str, (by, least): (i64, i64)) {
        self.operator(COND, 3);
        self.bin_exists(bin);
        self.operator(MAX, 2);
        self.operator(ADD, 2);
        self.bin(INT, bin);
        self.int(by);
        self.int(least);
        self.int(least);
    }

    /// Packs the higher of the bin's number plus `by` and `least`, without regard to the sign of the bin's number.
    pub(super) fn climbed(&mut self, bin: &str, (by, least): (i64, i64), sign: Sign) {
        let is_positive = sign == Sign::Positive;
        self.operator(COND, if is_positive { 3 } else { 5 });
        self.condition(&When::Lacks(bin));
        self.int(if is_positive { least } else { -least });
        if !is_positive {
            self.operator(LT, 2);
            self.bin(INT, bin);
            self.int(0);
            self.operator(SUB, 2);
            self.int(0);
            self.next(bin, by, least);
        }
        self.next(bin, by, least);
    }

    /// Packs an expression that was put together before.
    pub(super) fn expression(&mut self, expression: &Expr) {
        self.0.extend_from_slice(&expression.0);
    }

    /// Packs the milliseconds since the record was written.
    pub(super) fn age(&mut self) {
        self.operator(SINCE_UPDATE, 0);
    }

    /// Packs the time of the last write.
    pub(super) fn written(&mut self) {
        self.operator(LAST_UPDATE, 0);
    }

    fn next(&mut self, bin: &str, by: i64, least: i64) {
        self.operator(MAX, 2);
        self.operator(ADD, 2);
        self.operator(ABS, 1);
        self.bin(INT, bin);
        self.int(by);
        self.int(least);
    }

    /// Packs two arguments: the lease is ours, and it has not ended.
    fn held(&mut self, OwnLease { token: (bin, bytes), lasts_ms }: &OwnLease<'_>) {
        self.condition(&When::Is(bin, bytes));
        self.operator(LE, 2);
        self.operator(SINCE_UPDATE, 0);
        self.bin(INT, lasts_ms);
    }

    fn all(&mut self, conditions: &[When<'_>]) {
        self.operator(AND, conditions.len());
        conditions.iter().for_each(|when| self.condition(when));
    }

    fn bin_exists(&mut self, name: &str) {
        self.operator(NE, 2);
        self.operator(BIN_TYPE, 1);
        self.text(name);
        // The type of a bin that does not exist.
        self.int(0);
    }

    fn count_of_key(&mut self, map: &str, key: &BinValue) {
        self.operator(CALL, 4);
        self.int(INT);
        self.int(CDT);
        self.array(3);
        self.int(MAP_GET_BY_KEY);
        self.int(RETURN_COUNT);
        match key {
            BinValue::Text(text) => self.literal(LITERAL_STRING, text.as_bytes()),
            BinValue::Bytes(bytes) => self.literal(LITERAL_BLOB, bytes),
            other => unreachable!("no map has such keys: {other:?}"),
        }
        self.bin(MAP, map);
    }

    fn bin(&mut self, kind: i64, name: &str) {
        self.operator(BIN, 2);
        self.int(kind);
        self.text(name);
    }

    fn operator(&mut self, operator: i64, arguments: usize) {
        self.array(1 + arguments);
        self.int(operator);
    }

    pub(super) fn array(&mut self, items: usize) {
        debug_assert!(items < 16);
        self.0.push(0x90 | items as u8);
    }

    pub(super) fn int(&mut self, number: i64) {
        match number {
            -0x20..0x80 => self.0.push(number as u8),
            0x80..0x100 => self.0.extend_from_slice(&[0xcc, number as u8]),
            0x100..0x1_0000 => self.sized(0xcd, &(number as u16).to_be_bytes()),
            0x1_0000..0x1_0000_0000 => self.sized(0xce, &(number as u32).to_be_bytes()),
            0x1_0000_0000.. => self.sized(0xcf, &number.to_be_bytes()),
            -0x80..-0x20 => self.0.extend_from_slice(&[0xd0, number as u8]),
            -0x8000..-0x80 => self.sized(0xd1, &(number as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.sized(0xd2, &(number as i32).to_be_bytes()),
            _ => self.sized(0xd3, &number.to_be_bytes()),
        }
    }

    /// Packs the name of a bin.
    fn text(&mut self, text: &str) {
        self.string_length(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn literal(&mut self, kind: u8, bytes: &[u8]) {
        self.string_length(1 + bytes.len());
        self.0.push(kind);
        self.0.extend_from_slice(bytes);
    }

    fn string_length(&mut self, length: usize) {
        match length {
            0..32 => self.0.push(0xa0 | length as u8),
            32..0x100 => self.0.extend_from_slice(&[0xd9, length as u8]),
            0x100..0x1_0000 => self.sized(0xda, &(length as u16).to_be_bytes()),
            _ => self.sized(0xdb, &(length as u32).to_be_bytes()),
        }
    }

    fn sized(&mut self, marker: u8, bytes: &[u8]) {
        self.0.push(marker);
        self.0.extend_from_slice(bytes);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use aerospike::MapReturnType;
    use aerospike::expressions::{self as exp, ExpType, Expression, maps};

    use super::*;

    fn packed(pack: impl FnOnce(&mut Packer<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(&mut Packer(&mut bytes));
        bytes
    }

    /// What the crate packs.
    pub(super) fn theirs(expression: Expression) -> Vec<u8> {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.decode(expression.base64().unwrap()).unwrap()
    }

    fn is(bin: &str, bytes: &[u8]) -> Expression {
        exp::eq(exp::blob_bin(bin), exp::blob_val(bytes.to_vec()))
    }

    fn lacks(bin: &str) -> Expression {
        exp::not(exp::bin_exists(bin))
    }

    #[test]
    fn conditions_are_packed_as_the_vendors_client_packs_them() {
        let lease = OwnLease { token: ("token", &[7; 16]), lasts_ms: "lasts" };
        let in_time = || exp::le(exp::since_update(), exp::int_bin("lasts"));
        let left = exp::num_sub(vec![exp::int_bin("lasts"), exp::since_update()]);
        let count = |key: Expression| {
            let found = maps::get_by_key(MapReturnType::COUNT, ExpType::Int, key, exp::map_bin("map"), &[]);
            let free = exp::or(vec![lacks("map"), exp::eq(found, exp::int_val(0))]);
            exp::and(vec![exp::bin_exists("has"), is("is", b"mark"), free])
        };
        let (text, bytes) = (BinValue::Text("peer".into()), BinValue::Bytes(vec![1; 40]));
        let both = Box::new([When::Has("b"), When::Lacks("c")]);
        for (when, expected) in [
            (When::Is("b", &[9; 300]), is("b", &[9; 300])),
            (
                When::IsNoLonger { bin: "b", bytes: b"x", left_s: 70_000 },
                exp::and(vec![
                    is("b", b"x"),
                    exp::ge(exp::ttl(), exp::int_val(0)),
                    exp::le(exp::ttl(), exp::int_val(70_000)),
                ]),
            ),
            (When::Has("b"), exp::bin_exists("b")),
            (When::Lacks("b"), lacks("b")),
            (When::HasLacks { has: "b", lacks: "c" }, exp::and(vec![exp::bin_exists("b"), lacks("c")])),
            (
                When::LacksKey { has: "has", is: ("is", b"mark"), map: "map", key: &text },
                count(exp::string_val("peer")),
            ),
            (
                When::LacksKey { has: "has", is: ("is", b"mark"), map: "map", key: &bytes },
                count(exp::blob_val(vec![1; 40])),
            ),
            (When::LacksAll(["a", "b", "c"]), exp::and(vec![lacks("a"), lacks("b"), lacks("c")])),
            (
                When::Guarded { of: ("of", "name"), fence: ("f", 1 << 40), marks: ("m", b"") },
                exp::and(vec![
                    exp::eq(exp::string_bin("of"), exp::string_val("name")),
                    exp::le(exp::int_bin("f"), exp::int_val(1 << 40)),
                    is("m", b""),
                ]),
            ),
            (
                When::CanAdd("n", 5),
                exp::or(vec![lacks("n"), exp::le(exp::int_bin("n"), exp::int_val(i64::MAX - 5))]),
            ),
            (
                When::CanAdd("n", -5),
                exp::or(vec![lacks("n"), exp::ge(exp::int_bin("n"), exp::int_val(i64::MIN + 5))]),
            ),
            (When::Free { lasts_ms: "lasts" }, exp::gt(exp::since_update(), exp::int_bin("lasts"))),
            (When::Held(lease), exp::and(vec![is("token", &[7; 16]), in_time()])),
            (
                When::HeldNoLonger(lease, 300),
                exp::and(vec![is("token", &[7; 16]), in_time(), exp::le(left, exp::int_val(300))]),
            ),
            (When::HeldInAny { lasts_ms: "lasts" }, exp::or(vec![lacks("lasts"), in_time()])),
            (When::WrittenAt(9), exp::eq(exp::last_update(), exp::int_val(9))),
            (When::WrittenAfter(9), exp::gt(exp::last_update(), exp::int_val(9_000_000))),
            (When::Both(both), exp::and(vec![exp::bin_exists("b"), lacks("c")])),
        ] {
            let expected = theirs(expected);
            assert_eq!(packed(|packer| packer.condition(&when)), expected);
        }
    }

    #[test]
    fn numbers_are_packed_as_the_vendors_client_packs_them() {
        for shift in 0..64 {
            for near in [-1, 0, 1] {
                let number = (1i64 << shift).wrapping_add(near);
                for number in [number, number.wrapping_neg()] {
                    let expected = theirs(exp::int_val(number));
                    assert_eq!(packed(|packer| packer.int(number)), expected, "{number}");
                }
            }
        }
        let next = exp::num_add(vec![exp::int_bin("f"), exp::int_val(7)]);
        let raised = exp::max(vec![next, exp::int_val(900)]);
        let raised = exp::cond(vec![exp::bin_exists("f"), raised, exp::int_val(900)]);
        assert_eq!(packed(|packer| packer.raised("f", (7, 900))), theirs(raised));

        let next = || {
            let next = exp::num_add(vec![exp::num_abs(exp::int_bin("f")), exp::int_val(7)]);
            exp::max(vec![next, exp::int_val(900)])
        };
        let climbed = exp::cond(vec![lacks("f"), exp::int_val(900), next()]);
        assert_eq!(packed(|packer| packer.climbed("f", (7, 900), Sign::Positive)), theirs(climbed));
        let was_negative = exp::lt(exp::int_bin("f"), exp::int_val(0));
        let negative = exp::num_sub(vec![exp::int_val(0), next()]);
        let climbed = exp::cond(vec![lacks("f"), exp::int_val(-900), was_negative, negative, next()]);
        assert_eq!(packed(|packer| packer.climbed("f", (7, 900), Sign::Kept)), theirs(climbed));
        assert_eq!(packed(|packer| packer.age()), theirs(exp::since_update()));
    }
}

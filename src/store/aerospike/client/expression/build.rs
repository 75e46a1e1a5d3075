//! Expressions that other files of the store put together.

use super::{
    ADD, AND, BLOB, CALL, CDT, COND, EQ, GE, GT, INT, LAST_UPDATE, LITERAL_BLOB, LT, MAP, MAP_GET_BY_KEY,
    MAX, OR, Packer, RETURN_COUNT, SINCE_UPDATE, SUB,
};
use crate::store::aerospike::client::expr::Expr;
use crate::store::aerospike::client::operation::{Sign, When};

const NS_OF_MS: i64 = 1_000_000;
const DIV: i64 = 23;
const VAR: i64 = 124;
const LET: i64 = 125;
const QUOTED: i64 = 126;

const LIST: i64 = 4;

/// In place of [`CDT`], for a call that returns the changed list or map.
const CDT_MODIFY: i64 = 0x40;

const LIST_APPEND: i64 = 1;
const LIST_SIZE: i64 = 16;
const LIST_GET_BY_INDEX: i64 = 19;
const LIST_GET_BY_VALUE_INTERVAL: i64 = 25;
const MAP_PUT: i64 = 67;
const MAP_REMOVE_BY_KEY: i64 = 76;
const MAP_REMOVE_BY_VALUE_INTERVAL: i64 = 86;
const MAP_SIZE: i64 = 96;
const MAP_GET_BY_RANK: i64 = 100;
const MAP_GET_BY_KEY_INTERVAL: i64 = 103;
const MAP_GET_BY_VALUE_INTERVAL: i64 = 105;

const RETURN_NOTHING: i64 = 0;
const RETURN_VALUE: i64 = 7;
/// The order of a map that a call creates or changes.
const KEY_ORDERED: i64 = 1;

impl Expr {
    fn packed(pack: impl FnOnce(&mut Packer<'_>)) -> Expr {
        let mut bytes = Vec::new();
        pack(&mut Packer(&mut bytes));
        Expr(bytes)
    }

    fn of(operator: i64, arguments: &[&Expr]) -> Expr {
        Expr::packed(|packer| {
            packer.operator(operator, arguments.len());
            arguments.iter().for_each(|argument| packer.0.extend_from_slice(&argument.0));
        })
    }

    pub(crate) fn int(number: i64) -> Expr {
        Expr::packed(|packer| packer.int(number))
    }

    pub(crate) fn bytes(bytes: &[u8]) -> Expr {
        Expr::packed(|packer| packer.literal(LITERAL_BLOB, bytes))
    }

    pub(crate) fn empty_map() -> Expr {
        Expr(vec![0x80])
    }

    fn empty_list() -> Expr {
        Expr::packed(|packer| {
            packer.operator(QUOTED, 1);
            packer.array(0);
        })
    }

    pub(crate) fn list(items: &[Expr]) -> Expr {
        let append = |list: Expr, item: &Expr| {
            let plain = Expr::int(0);
            list.call(LIST, CDT_MODIFY, &[&Expr::int(LIST_APPEND), item, &plain, &plain])
        };
        items.iter().fold(Expr::empty_list(), append)
    }

    pub(crate) fn int_bin(name: &str) -> Expr {
        Expr::packed(|packer| packer.bin(INT, name))
    }

    pub(crate) fn bytes_bin(name: &str) -> Expr {
        Expr::packed(|packer| packer.bin(BLOB, name))
    }

    pub(crate) fn map_bin(name: &str) -> Expr {
        Expr::packed(|packer| packer.bin(MAP, name))
    }

    pub(crate) fn has_bin(name: &str) -> Expr {
        Expr::packed(|packer| packer.bin_exists(name))
    }

    pub(crate) fn lacks_bin(name: &str) -> Expr {
        Expr::packed(|packer| packer.condition(&When::Lacks(name)))
    }

    /// What [`BinOperation::Climb`](super::super::BinOperation::Climb) writes.
    pub(crate) fn climbed(bin: &str, (by, least): (i64, i64), sign: Sign) -> Expr {
        Expr::packed(|packer| packer.climbed(bin, (by, least), sign))
    }

    /// The milliseconds since the record was written, as the server counts them.
    pub(crate) fn since_update() -> Expr {
        Expr::of(SINCE_UPDATE, &[])
    }

    /// When the record was written, in milliseconds since 1970. Within a write, its own time.
    pub(crate) fn last_update() -> Expr {
        Expr::of(DIV, &[&Expr::of(LAST_UPDATE, &[]), &Expr::int(NS_OF_MS)])
    }

    /// The higher of the server's clock and the time of the last write, in milliseconds since 1970. It never falls from
    /// one write of a record to the next.
    pub(crate) fn now() -> Expr {
        Expr::last_update().plus(&Expr::since_update())
    }

    pub(crate) fn all(conditions: &[Expr]) -> Expr {
        Expr::of(AND, &conditions.iter().collect::<Vec<_>>())
    }

    pub(crate) fn any(conditions: &[Expr]) -> Expr {
        Expr::of(OR, &conditions.iter().collect::<Vec<_>>())
    }

    pub(crate) fn is(&self, other: &Expr) -> Expr {
        Expr::of(EQ, &[self, other])
    }

    pub(crate) fn is_above(&self, other: &Expr) -> Expr {
        Expr::of(GT, &[self, other])
    }

    pub(crate) fn is_at_least(&self, other: &Expr) -> Expr {
        Expr::of(GE, &[self, other])
    }

    pub(crate) fn is_below(&self, other: &Expr) -> Expr {
        Expr::of(LT, &[self, other])
    }

    pub(crate) fn plus(&self, other: &Expr) -> Expr {
        Expr::of(ADD, &[self, other])
    }

    pub(crate) fn minus(&self, other: &Expr) -> Expr {
        Expr::of(SUB, &[self, other])
    }

    pub(crate) fn or_if_higher(&self, other: &Expr) -> Expr {
        Expr::of(MAX, &[self, other])
    }

    /// `yes` where this is true, or else `no`. The other one is not evaluated.
    pub(crate) fn choose(&self, yes: &Expr, no: &Expr) -> Expr {
        Expr::of(COND, &[self, yes, no])
    }

    /// This expression, in which the names stand for the others. Each may use those before it.
    pub(crate) fn with(&self, names: &[(&str, Expr)]) -> Expr {
        Expr::packed(|packer| {
            packer.operator(LET, 2 * names.len() + 1);
            for (name, value) in names {
                packer.text(name);
                packer.0.extend_from_slice(&value.0);
            }
            packer.0.extend_from_slice(&self.0);
        })
    }

    /// What a name stands for: see [`with`](Expr::with).
    pub(crate) fn named(name: &str) -> Expr {
        Expr::packed(|packer| {
            packer.operator(VAR, 1);
            packer.text(name);
        })
    }

    // ---- This is a map ---------------------------------------------------------------------------------------------

    pub(crate) fn map_size(&self) -> Expr {
        self.call(INT, CDT, &[&Expr::int(MAP_SIZE)])
    }

    pub(crate) fn has_key(&self, key: &Expr) -> Expr {
        let arguments = [&Expr::int(MAP_GET_BY_KEY), &Expr::int(RETURN_COUNT), key];
        self.call(INT, CDT, &arguments).is(&Expr::int(1))
    }

    /// The value of a key, which is a list.
    pub(crate) fn list_of_key(&self, key: &Expr) -> Expr {
        self.call(LIST, CDT, &[&Expr::int(MAP_GET_BY_KEY), &Expr::int(RETURN_VALUE), key])
    }

    /// The highest value, which is a list.
    pub(crate) fn highest_list(&self) -> Expr {
        self.call(LIST, CDT, &[&Expr::int(MAP_GET_BY_RANK), &Expr::int(RETURN_VALUE), &Expr::int(-1)])
    }

    /// A list of the values whose keys are at least `from` and below `to`.
    pub(crate) fn values_of_keys(&self, from: &Expr, to: &Expr) -> Expr {
        let get = Expr::int(MAP_GET_BY_KEY_INTERVAL);
        self.call(LIST, CDT, &[&get, &Expr::int(RETURN_VALUE), from, to])
    }

    /// How many values are at least `from` and below `to`.
    pub(crate) fn count_of_values(&self, from: &Expr, to: &Expr) -> Expr {
        let get = Expr::int(MAP_GET_BY_VALUE_INTERVAL);
        self.call(INT, CDT, &[&get, &Expr::int(RETURN_COUNT), from, to])
    }

    /// The map without the entries whose values are at least `from` and below `to`.
    pub(crate) fn without_values(&self, from: &Expr, to: &Expr) -> Expr {
        let remove = Expr::int(MAP_REMOVE_BY_VALUE_INTERVAL);
        self.call(MAP, CDT_MODIFY, &[&remove, &Expr::int(RETURN_NOTHING), from, to])
    }

    pub(crate) fn with_entry(&self, key: &Expr, value: &Expr) -> Expr {
        self.call(MAP, CDT_MODIFY, &[&Expr::int(MAP_PUT), key, value, &Expr::int(KEY_ORDERED)])
    }

    pub(crate) fn without_key(&self, key: &Expr) -> Expr {
        let remove = Expr::int(MAP_REMOVE_BY_KEY);
        self.call(MAP, CDT_MODIFY, &[&remove, &Expr::int(RETURN_NOTHING), key])
    }

    // ---- This is a list --------------------------------------------------------------------------------------------

    pub(crate) fn list_size(&self) -> Expr {
        self.call(INT, CDT, &[&Expr::int(LIST_SIZE)])
    }

    /// How many items are at least `from` and below `to`.
    pub(crate) fn count_of_items(&self, from: &Expr, to: &Expr) -> Expr {
        let get = Expr::int(LIST_GET_BY_VALUE_INTERVAL);
        self.call(INT, CDT, &[&get, &Expr::int(RETURN_COUNT), from, to])
    }

    pub(crate) fn int_at(&self, index: i64) -> Expr {
        self.item_at(INT, index)
    }

    pub(crate) fn bytes_at(&self, index: i64) -> Expr {
        self.item_at(BLOB, index)
    }

    fn item_at(&self, kind: i64, index: i64) -> Expr {
        self.call(kind, CDT, &[&Expr::int(LIST_GET_BY_INDEX), &Expr::int(RETURN_VALUE), &Expr::int(index)])
    }

    /// Calls an operation of this list or map, with a result of type `kind`.
    fn call(&self, kind: i64, family: i64, arguments: &[&Expr]) -> Expr {
        Expr::packed(|packer| {
            packer.operator(CALL, 4);
            packer.int(kind);
            packer.int(family);
            packer.array(arguments.len());
            arguments.iter().for_each(|argument| packer.0.extend_from_slice(&argument.0));
            packer.0.extend_from_slice(&self.0);
        })
    }
}

#[cfg(test)]
mod tests {
    use aerospike::expressions::{self as exp, ExpType, lists, maps};
    use aerospike::operations::lists::{ListPolicy, ListReturnType};
    use aerospike::operations::maps::{MapOrder, MapPolicy, MapReturnType, MapWriteFlags};

    use super::super::tests::theirs;
    use super::*;

    #[test]
    fn expressions_are_packed_as_the_vendors_client_packs_them() {
        let (map, their_map) = (|| Expr::map_bin("m"), || exp::map_bin("m"));
        let (one, two) = (Expr::int(1), Expr::int(2));
        let (one_, two_) = (|| exp::int_val(1), || exp::int_val(2));
        let (value, count, none) = (MapReturnType::VALUE, MapReturnType::COUNT, MapReturnType::NONE);
        let ordered = MapPolicy::new(MapOrder::KeyOrdered, MapWriteFlags::DEFAULT);
        let last_update = || exp::num_div(vec![exp::last_update(), exp::int_val(1_000_000)]);
        let append = |list| lists::append(ListPolicy::default(), one_(), list, &[]);
        for (ours, expected) in [
            (Expr::now(), exp::num_add(vec![last_update(), exp::since_update()])),
            (Expr::bytes(&[7; 40]), exp::blob_val(vec![7; 40])),
            (Expr::bytes_bin("b"), exp::blob_bin("b")),
            (Expr::has_bin("b"), exp::bin_exists("b")),
            (one.is(&two), exp::eq(one_(), two_())),
            (one.is_above(&two), exp::gt(one_(), two_())),
            (one.is_at_least(&two), exp::ge(one_(), two_())),
            (one.is_below(&two), exp::lt(one_(), two_())),
            (one.minus(&two), exp::num_sub(vec![one_(), two_()])),
            (one.or_if_higher(&two), exp::max(vec![one_(), two_()])),
            (Expr::all(&[one.is(&two)]), exp::and(vec![exp::eq(one_(), two_())])),
            (Expr::any(&[one.is(&two)]), exp::or(vec![exp::eq(one_(), two_())])),
            (Expr::has_bin("b").choose(&one, &two), exp::cond(vec![exp::bin_exists("b"), one_(), two_()])),
            (
                Expr::named("n").plus(&one).with(&[("n", two.clone())]),
                exp::exp_let(vec![exp::def("n", two_()), exp::num_add(vec![exp::var("n"), one_()])]),
            ),
            (map().map_size(), maps::size(their_map(), &[])),
            (
                map().has_key(&one),
                exp::eq(maps::get_by_key(count, ExpType::Int, one_(), their_map(), &[]), one_()),
            ),
            (map().list_of_key(&one), maps::get_by_key(value, ExpType::List, one_(), their_map(), &[])),
            (
                map().highest_list(),
                maps::get_by_rank(value, ExpType::List, exp::int_val(-1), their_map(), &[]),
            ),
            (
                map().values_of_keys(&one, &two),
                maps::get_by_key_range(value, Some(one_()), Some(two_()), their_map(), &[]),
            ),
            (
                map().count_of_values(&one, &two),
                maps::get_by_value_range(count, Some(one_()), Some(two_()), their_map(), &[]),
            ),
            (
                map().without_values(&one, &two),
                maps::remove_by_value_range(none, Some(one_()), Some(two_()), their_map(), &[]),
            ),
            (map().with_entry(&one, &two), maps::put(&ordered, one_(), two_(), their_map(), &[])),
            (map().without_key(&one), maps::remove_by_key(none, one_(), their_map(), &[])),
            (Expr::list(&[]), exp::list_val(vec![])),
            (
                Expr::list(std::slice::from_ref(&one)).list_size(),
                lists::size(append(exp::list_val(vec![])), &[]),
            ),
            (
                Expr::list(&[]).count_of_items(&one, &two),
                lists::get_by_value_range(
                    ListReturnType::COUNT,
                    Some(one_()),
                    Some(two_()),
                    exp::list_val(vec![]),
                    &[],
                ),
            ),
            (
                Expr::list(&[]).int_at(1),
                lists::get_by_index(ListReturnType::VALUES, ExpType::Int, one_(), exp::list_val(vec![]), &[]),
            ),
            (
                Expr::list(&[]).bytes_at(1),
                lists::get_by_index(
                    ListReturnType::VALUES,
                    ExpType::Blob,
                    one_(),
                    exp::list_val(vec![]),
                    &[],
                ),
            ),
        ] {
            assert_eq!(ours.0, theirs(expected));
        }
    }
}

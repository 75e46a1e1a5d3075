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

/// Most bytes of a number, or of an operator with a type.
const NUMBER: usize = 9;

impl Expr {
    /// Packs about so many bytes.
    fn packed(about: usize, pack: impl FnOnce(&mut Packer<'_>)) -> Expr {
        let mut bytes = Vec::with_capacity(about);
        pack(&mut Packer(&mut bytes));
        Expr(bytes)
    }

    fn of(operator: i64, arguments: &[&Expr]) -> Expr {
        Expr::packed(NUMBER + length(arguments), |packer| {
            packer.operator(operator, arguments.len());
            packer.expressions(arguments);
        })
    }

    pub(crate) fn int(number: i64) -> Expr {
        Expr::packed(NUMBER, |packer| packer.int(number))
    }

    pub(crate) fn bytes(bytes: &[u8]) -> Expr {
        Expr::packed(NUMBER + bytes.len(), |packer| packer.literal(LITERAL_BLOB, bytes))
    }

    pub(crate) fn empty_map() -> Expr {
        Expr(vec![0x80])
    }

    /// A list is packed as one item after the other that is appended to an empty one, the last of them first.
    pub(crate) fn list(items: &[Expr]) -> Expr {
        let about = NUMBER + items.iter().map(|item| NUMBER + item.0.len()).sum::<usize>();
        Expr::packed(about, |packer| {
            for item in items.iter().rev() {
                packer.call(LIST, CDT_MODIFY, 4);
                packer.int(LIST_APPEND);
                packer.expression(item);
                // A plain list without conditions.
                packer.int(0);
                packer.int(0);
            }
            packer.operator(QUOTED, 1);
            packer.array(0);
        })
    }

    pub(crate) fn int_bin(name: &str) -> Expr {
        Expr::packed(NUMBER + name.len(), |packer| packer.bin(INT, name))
    }

    pub(crate) fn bytes_bin(name: &str) -> Expr {
        Expr::packed(NUMBER + name.len(), |packer| packer.bin(BLOB, name))
    }

    pub(crate) fn map_bin(name: &str) -> Expr {
        Expr::packed(NUMBER + name.len(), |packer| packer.bin(MAP, name))
    }

    pub(crate) fn has_bin(name: &str) -> Expr {
        Expr::packed(NUMBER + name.len(), |packer| packer.bin_exists(name))
    }

    pub(crate) fn lacks_bin(name: &str) -> Expr {
        Expr::packed(NUMBER + name.len(), |packer| packer.condition(&When::Lacks(name)))
    }

    /// What [`BinOperation::Climb`](super::super::BinOperation::Climb) writes.
    pub(crate) fn climbed(bin: &str, (by, least): (i64, i64), sign: Sign) -> Expr {
        Expr::packed(8 * NUMBER, |packer| packer.climbed(bin, (by, least), sign))
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

    pub(crate) fn all(conditions: &[&Expr]) -> Expr {
        Expr::of(AND, conditions)
    }

    pub(crate) fn any(conditions: &[&Expr]) -> Expr {
        Expr::of(OR, conditions)
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
        let about = names.iter().map(|(name, value)| NUMBER + name.len() + value.0.len()).sum::<usize>();
        Expr::packed(NUMBER + about + self.0.len(), |packer| {
            packer.operator(LET, 2 * names.len() + 1);
            for (name, value) in names {
                packer.text(name);
                packer.expression(value);
            }
            packer.expression(self);
        })
    }

    /// What a name stands for: see [`with`](Expr::with).
    pub(crate) fn named(name: &str) -> Expr {
        Expr::packed(NUMBER + name.len(), |packer| {
            packer.operator(VAR, 1);
            packer.text(name);
        })
    }

    // ---- This is a map ---------------------------------------------------------------------------------------------

    pub(crate) fn map_size(&self) -> Expr {
        self.read(INT, &[MAP_SIZE], &[])
    }

    pub(crate) fn has_key(&self, key: &Expr) -> Expr {
        self.read(INT, &[MAP_GET_BY_KEY, RETURN_COUNT], &[key]).is(&Expr::int(1))
    }

    /// The value of a key, which is a list.
    pub(crate) fn list_of_key(&self, key: &Expr) -> Expr {
        self.read(LIST, &[MAP_GET_BY_KEY, RETURN_VALUE], &[key])
    }

    /// The highest value, which is a list.
    pub(crate) fn highest_list(&self) -> Expr {
        self.read(LIST, &[MAP_GET_BY_RANK, RETURN_VALUE, -1], &[])
    }

    /// A list of the values whose keys are at least `from` and below `to`.
    pub(crate) fn values_of_keys(&self, from: &Expr, to: &Expr) -> Expr {
        self.read(LIST, &[MAP_GET_BY_KEY_INTERVAL, RETURN_VALUE], &[from, to])
    }

    /// How many values are at least `from` and below `to`.
    pub(crate) fn count_of_values(&self, from: &Expr, to: &Expr) -> Expr {
        self.read(INT, &[MAP_GET_BY_VALUE_INTERVAL, RETURN_COUNT], &[from, to])
    }

    /// The map without the entries whose values are at least `from` and below `to`.
    pub(crate) fn without_values(&self, from: &Expr, to: &Expr) -> Expr {
        self.changed(&[MAP_REMOVE_BY_VALUE_INTERVAL, RETURN_NOTHING], &[from, to])
    }

    pub(crate) fn with_entry(&self, key: &Expr, value: &Expr) -> Expr {
        self.changed(&[MAP_PUT], &[key, value, &Expr::int(KEY_ORDERED)])
    }

    pub(crate) fn without_key(&self, key: &Expr) -> Expr {
        self.changed(&[MAP_REMOVE_BY_KEY, RETURN_NOTHING], &[key])
    }

    // ---- This is a list --------------------------------------------------------------------------------------------

    pub(crate) fn list_size(&self) -> Expr {
        self.read(INT, &[LIST_SIZE], &[])
    }

    /// How many items are at least `from` and below `to`.
    pub(crate) fn count_of_items(&self, from: &Expr, to: &Expr) -> Expr {
        self.read(INT, &[LIST_GET_BY_VALUE_INTERVAL, RETURN_COUNT], &[from, to])
    }

    pub(crate) fn int_at(&self, index: i64) -> Expr {
        self.read(INT, &[LIST_GET_BY_INDEX, RETURN_VALUE, index], &[])
    }

    pub(crate) fn bytes_at(&self, index: i64) -> Expr {
        self.read(BLOB, &[LIST_GET_BY_INDEX, RETURN_VALUE, index], &[])
    }

    /// Calls an operation of this list or map, with a result of type `kind`. Its arguments are numbers and then expressions.
    fn read(&self, kind: i64, numbers: &[i64], arguments: &[&Expr]) -> Expr {
        self.called((kind, CDT), numbers, arguments)
    }

    /// Calls an operation that returns the changed map.
    fn changed(&self, numbers: &[i64], arguments: &[&Expr]) -> Expr {
        self.called((MAP, CDT_MODIFY), numbers, arguments)
    }

    fn called(&self, (kind, family): (i64, i64), numbers: &[i64], arguments: &[&Expr]) -> Expr {
        let about = (2 + numbers.len()) * NUMBER + length(arguments) + self.0.len();
        Expr::packed(about, |packer| {
            packer.call(kind, family, numbers.len() + arguments.len());
            numbers.iter().for_each(|number| packer.int(*number));
            packer.expressions(arguments);
            packer.expression(self);
        })
    }
}

impl Packer<'_> {
    /// Begins a call with so many arguments. The list or map comes after them.
    fn call(&mut self, kind: i64, family: i64, arguments: usize) {
        self.operator(CALL, 4);
        self.int(kind);
        self.int(family);
        self.array(arguments);
    }

    fn expressions(&mut self, expressions: &[&Expr]) {
        expressions.iter().for_each(|expression| self.expression(expression));
    }
}

fn length(expressions: &[&Expr]) -> usize {
    expressions.iter().map(|expression| expression.0.len()).sum()
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
        let append = |list, item| lists::append(ListPolicy::default(), item, list, &[]);
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
            (Expr::all(&[&one.is(&two)]), exp::and(vec![exp::eq(one_(), two_())])),
            (Expr::any(&[&one.is(&two)]), exp::or(vec![exp::eq(one_(), two_())])),
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
                lists::size(append(exp::list_val(vec![]), one_()), &[]),
            ),
            (Expr::list(&[one.clone(), two.clone()]), append(append(exp::list_val(vec![]), one_()), two_())),
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

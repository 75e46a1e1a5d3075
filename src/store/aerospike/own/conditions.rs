//! The expressions for locks with holds in several modes: see [`modes`](super::modes).

use crate::names::mode::Mode;
use crate::names::owner::OwnerToken;
use crate::store::INTENT_MAX;
use crate::store::aerospike::client::{Expr, Sign};
use crate::store::aerospike::keys::own_bins::{FENCE, HOLDS, LASTS_MS, RELEASED, SIZE, TOKEN, TURN, WAITS};
use crate::store::aerospike::keys::{BASE, hold_key};

/// Most holds of one lock beside each other.
pub(super) const HOLDS_MAX: usize = 256;

/// The modes of this version have the keys from that of the first code to that of the code after the last.
const FIRST: u8 = 1;
const SHARED_END: u8 = 2;
const KNOWN_END: u8 = 3;
/// The same of permits of semaphores, which are compatible with each other only.
const PERMIT: u8 = 3;
const PERMIT_END: u8 = 4;

/// What a grant of permits has read, and expects to be the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenRecord {
    pub(super) token: Vec<u8>,
    pub(super) fence: Option<i64>,
    pub(super) size: Option<i64>,
    pub(super) waits: Option<i64>,
    /// The number of holds that lived.
    pub(super) holds: usize,
}

/// What a new hold does about the intents, which are in another record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IntentRule {
    /// They were not read. The lock's record says that there are none.
    NotRead,
    /// They were read, and so were the bins `own_token` and `own_waits`, which must be the same still: then none was announced
    /// since, also not during a lease in between. `are_noted`: these bins say all that was read.
    Read { token: Vec<u8>, waits: Option<i64>, are_noted: bool },
    /// It is the turn of the readers.
    Passed,
}

/// Expressions that are the same in each request, packed once.
#[derive(Debug)]
pub(super) struct Packed {
    /// The conditions of new shared and new update holds for which no intents were read.
    joins: [Expr; 2],
    /// [`lasts_for_all`].
    pub(super) lasts_for_all: Expr,
    /// The time in [`WAITS`] before the token of a member is written. What was announced while there was no member could not be
    /// noted.
    pub(super) waits_of_first: Expr,
}

impl Packed {
    pub(super) fn new() -> Packed {
        let is_first = Expr::all(&[&Expr::has_bin(TOKEN), &is_base()]);
        Packed {
            joins: [Mode::Shared, Mode::Update]
                .map(|mode| condition_of_join(mode, &IntentRule::NotRead, None)),
            lasts_for_all: lasts_for_all(),
            waits_of_first: is_first.choose(&number_or(WAITS, 0), &not_before(WAITS, intent_max_ms())),
        }
    }

    /// The condition of a new hold.
    pub(super) fn may_join(&self, mode: Mode, intents: &IntentRule, nested_in: Option<&Expr>) -> Expr {
        let [shared, update] = &self.joins;
        match (mode, intents, nested_in) {
            (Mode::Shared, IntentRule::NotRead, None) => shared.clone(),
            (Mode::Update, IntentRule::NotRead, _) => update.clone(),
            _ => condition_of_join(mode, intents, nested_in),
        }
    }
}

/// The condition of a new hold. Only a shared one may be nested.
fn condition_of_join(mode: Mode, intents: &IntentRule, nested_in: Option<&Expr>) -> Expr {
    let compatible_end = if mode == Mode::Shared { KNOWN_END } else { SHARED_END };
    let others = Expr::named("c");
    let fits = Expr::all(&[
        &others.is_below(&Expr::int(HOLDS_MAX as i64)),
        // The base lasts as long as the last of them. If none is there, it is that of a kind without an entry.
        &others.is_above(&Expr::int(0)),
        // So each other hold is of a kind that this mode goes beside, and of a kind that this version knows.
        &others.is(&alive_between(FIRST, compatible_end)),
    ]);
    let fits = fits.with(&[("c", alive())]);
    let is_open = Expr::any(&[&is_free(), &Expr::all(&[&is_base(), &fits])]);
    let own = Expr::has_bin(LASTS_MS);
    with_holds(match intents {
        IntentRule::Passed => Expr::all(&[&own, &is_open]),
        IntentRule::Read { token, waits, .. } => {
            let same_token = Expr::bytes_bin(TOKEN).is(&Expr::bytes(token));
            let same_waits = match waits {
                Some(waits) => Expr::int_bin(WAITS).is(&Expr::int(*waits)),
                None => Expr::lacks_bin(WAITS),
            };
            Expr::all(&[&own, &is_open, &same_token, &same_waits])
        }
        IntentRule::NotRead => {
            let is_over = number_or(WAITS, 0).is_below(&now());
            let is_turn = number_or(TURN, 0).is_at_least(&now());
            let passes = match nested_in.filter(|_| mode == Mode::Shared) {
                Some(outer) => Expr::any(&[&is_over, &is_turn, &lives(outer)]),
                None => Expr::any(&[&is_over, &is_turn]),
            };
            Expr::all(&[&own, &is_open, &is_base(), &passes])
        }
    })
}

/// The condition of a grant of permits.
pub(super) fn may_grant(seen: &SeenRecord) -> Expr {
    let SeenRecord { token, fence, size, waits, holds } = seen;
    let is_as_seen = |bin: &str, number: &Option<i64>| match number {
        Some(number) => Expr::int_bin(bin).is(&Expr::int(*number)),
        None => Expr::lacks_bin(bin),
    };
    let others = Expr::named("c");
    let fits = Expr::all(&[
        &others.is_below(&Expr::int(*holds as i64 + 1)),
        &others.is(&alive_between(PERMIT, PERMIT_END)),
    ]);
    let is_open = Expr::any(&[&is_free(), &Expr::all(&[&is_base(), &fits.with(&[("c", alive())])])]);
    with_holds(Expr::all(&[
        &Expr::has_bin(LASTS_MS),
        &is_as_seen(FENCE, fence),
        &is_as_seen(SIZE, size),
        &is_as_seen(WAITS, waits),
        &Expr::bytes_bin(TOKEN).is(&Expr::bytes(token)),
        &is_open,
    ]))
}

/// The condition of another size: no exclusive hold lives, whose end the write would move.
pub(super) fn may_resize(size: i64) -> Expr {
    Expr::all(&[&Expr::has_bin(SIZE), &Expr::int_bin(SIZE).is(&Expr::int(size)), &may_be_noted()])
}

/// The holds that live, and these new permits: the key, the length, the holder and the number of each. Their fence is the bin's.
pub(super) fn holds_with_permits<'a>(permits: impl Iterator<Item = (Expr, i64, &'a [u8], u8)>) -> Expr {
    let entry = |lasts_ms: i64, identity: &[u8], permit: u8| {
        let (end, number) = (now().plus(&Expr::int(lasts_ms)), Expr::int(permit.into()));
        Expr::list(&[end, Expr::int(lasts_ms), Expr::bytes(identity), number, Expr::int_bin(FENCE)])
    };
    with_holds(permits.fold(living(), |holds, (key, lasts_ms, identity, permit)| {
        holds.with_entry(&key, &entry(lasts_ms, identity, permit))
    }))
}

/// The holds with a later end of this permit.
pub(super) fn permit_renewed(key: &Expr, lasts_ms: i64) -> Expr {
    let stored = holds().list_of_key(key);
    let end = stored.int_at(0).or_if_higher(&now().plus(&Expr::int(lasts_ms)));
    let kept = [stored.bytes_at(2), stored.int_at(3), stored.int_at(4)];
    let [who, permit, fence] = kept;
    with_holds(holds().with_entry(key, &Expr::list(&[end, Expr::int(lasts_ms), who, permit, fence])))
}

/// The condition of a change of one hold.
pub(super) fn is_held(key: &Expr) -> Expr {
    with_holds(lives(key))
}

/// The condition of an upgrade: nobody else holds the lock.
pub(super) fn is_held_alone(key: &Expr) -> Expr {
    with_holds(Expr::all(&[&lives(key), &alive().is(&Expr::int(1))]))
}

/// The condition of the first number that is told: the hold lives, and the fence is negative.
pub(super) fn is_held_unnumbered(key: &Expr) -> Expr {
    with_holds(Expr::all(&[&lives(key), &Expr::int_bin(FENCE).is_below(&Expr::int(0))]))
}

/// The condition of a note that processes wait: no exclusive hold lives, whose end the write would move.
pub(super) fn may_be_noted() -> Expr {
    Expr::all(&[&Expr::has_bin(LASTS_MS), &Expr::any(&[&is_free(), &is_base()])])
}

/// The number for a new hold: that of the others, or the next one if there are none.
pub(super) fn number_of_join(least: i64, sign: Sign) -> Expr {
    let next = Expr::climbed(FENCE, (1, least), sign);
    with_holds(alive().is_above(&Expr::int(0)).choose(&Expr::int_bin(FENCE), &next))
}

/// The holds that live, and this new one.
pub(super) fn holds_with(key: &Expr, lasts_ms: i64, identity: &[u8]) -> Expr {
    with_holds(living().with_entry(key, &entry(now().plus(&Expr::int(lasts_ms)), lasts_ms, identity)))
}

/// A new hold alone.
pub(super) fn hold_alone(key: &Expr, lasts_ms: i64, identity: &[u8]) -> Expr {
    Expr::empty_map().with_entry(key, &entry(Expr::now().plus(&Expr::int(lasts_ms)), lasts_ms, identity))
}

/// The holds with this one in place of another one.
pub(super) fn holds_exchanged(gone: &Expr, key: &Expr, lasts_ms: i64, identity: &[u8]) -> Expr {
    let new = entry(now().plus(&Expr::int(lasts_ms)), lasts_ms, identity);
    with_holds(living().without_key(gone).with_entry(key, &new))
}

/// The holds with a later end of this one. A late request for a shorter time shortens nothing.
pub(super) fn holds_renewed(key: &Expr, lasts_ms: i64) -> Expr {
    let stored = holds().list_of_key(key);
    let end = stored.int_at(0).or_if_higher(&now().plus(&Expr::int(lasts_ms)));
    let renewed = Expr::list(&[end, Expr::int(lasts_ms), stored.bytes_at(2)]);
    with_holds(holds().with_entry(key, &renewed))
}

pub(super) fn holds_without(key: &Expr) -> Expr {
    with_holds(living().without_key(key))
}

/// How long the base record must last, after [`HOLDS`] was written: as long as the hold that ends last.
pub(super) fn lasts_for_all() -> Expr {
    lasts_for(&Expr::map_bin(HOLDS))
}

/// How long it must last if the holds are as they were.
pub(super) fn lasts_as_before() -> Expr {
    with_holds(lasts_for(&holds()))
}

/// The token, or the base in a new record.
pub(super) fn token_as_before() -> Expr {
    Expr::has_bin(TOKEN).choose(&Expr::bytes_bin(TOKEN), &Expr::bytes(&BASE))
}

/// The end of the turn of the readers: that of one that lasts, or so much from now on.
pub(super) fn turn_of(lasts_ms: i64) -> Expr {
    let lasts = number_or(TURN, 0).is_at_least(&Expr::now());
    lasts.choose(&Expr::int_bin(TURN), &Expr::now().plus(&Expr::int(lasts_ms)))
}

/// A time in a bin that moves to so much from now on, and never back.
pub(super) fn not_before(bin: &str, lasts_ms: i64) -> Expr {
    number_or(bin, 0).or_if_higher(&Expr::now().plus(&Expr::int(lasts_ms)))
}

pub(super) fn intent_max_ms() -> i64 {
    INTENT_MAX.as_millis() as i64
}

/// Returns the key of a hold in [`HOLDS`].
pub(super) fn key(mode: Mode, token: &OwnerToken) -> Expr {
    Expr::bytes(&hold_key(mode, token))
}

fn is_base() -> Expr {
    Expr::bytes_bin(TOKEN).is(&Expr::bytes(&BASE))
}

fn is_free() -> Expr {
    Expr::since_update().is_above(&Expr::int_bin(LASTS_MS))
}

fn number_or(bin: &str, default: i64) -> Expr {
    Expr::has_bin(bin).choose(&Expr::int_bin(bin), &Expr::int(default))
}

/// An entry begins with its end, in every version, so that the last end of all is known also with kinds to come.
fn entry(end_ms: Expr, lasts_ms: i64, identity: &[u8]) -> Expr {
    Expr::list(&[end_ms, Expr::int(lasts_ms), Expr::bytes(identity)])
}

fn lasts_for(map: &Expr) -> Expr {
    let left = map.highest_list().int_at(0).minus(&Expr::last_update());
    let none = Expr::int(RELEASED);
    map.map_size().is(&Expr::int(0)).choose(&none, &left.or_if_higher(&none))
}

/// Names what most expressions here use several times.
fn with_holds(expression: Expr) -> Expr {
    // Entries beside the token of an exclusive lease are leftovers, and those of a lock that was broken hold nothing.
    let lasts = Expr::int_bin(LASTS_MS).is_at_least(&Expr::int(0));
    let count = Expr::all(&[&Expr::has_bin(HOLDS), &is_base(), &lasts]);
    let stored = count.choose(&Expr::map_bin(HOLDS), &Expr::empty_map());
    let ended = Expr::list(&[now()]);
    expression.with(&[("h", stored), ("n", Expr::now()), ("e", ended)])
}

fn holds() -> Expr {
    Expr::named("h")
}

fn now() -> Expr {
    Expr::named("n")
}

/// Of lists that begin with a number, those below these two have ended. Anything else in the map counts as living.
fn ended() -> [Expr; 2] {
    [Expr::list(&[Expr::int(0)]), Expr::named("e")]
}

fn living() -> Expr {
    let [from, to] = ended();
    holds().without_values(&from, &to)
}

/// How many holds live.
fn alive() -> Expr {
    let [from, to] = ended();
    holds().map_size().minus(&holds().count_of_values(&from, &to))
}

/// How many holds with keys between these live.
fn alive_between(from_code: u8, to_code: u8) -> Expr {
    let values = holds().values_of_keys(&Expr::bytes(&[from_code]), &Expr::bytes(&[to_code]));
    let [from, to] = ended();
    values.list_size().minus(&values.count_of_items(&from, &to))
}

fn lives(key: &Expr) -> Expr {
    let end = holds().list_of_key(key).int_at(0);
    Expr::all(&[&holds().has_key(key), &end.is_at_least(&now())])
}

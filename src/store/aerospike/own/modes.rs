//! Locks in several modes in the layout `own`. They have the record of the lock, with more bins:
//!
//! ```text
//! own_token     the base, a constant, while the lock is held in other modes than exclusive
//! own_lasts_ms  as long as the hold that ends last
//! own_who       the holder that joined last, for versions without modes
//! own_holds     code of the mode and token of a hold -> [end_ms, lasts_ms, who]
//! own_turn      the end of the turn of the readers
//! own_waits     until then processes may wait exclusively
//! ```
//!
//! | step | condition | what the server writes |
//! |---|---|---|
//! | join | free, or the base and all holds that live go beside this mode; and no intent | the base, the hold, the fence: as it is if a hold lives, or else the next one |
//! | renew | the hold lives | its end, never an earlier one |
//! | release | the hold lives | the other holds |
//! | less of an exclusive hold | the token, not over | the base, the hold, the next fence |
//! | shared instead of update | the hold lives | the new hold in its place |
//! | exclusive instead of update | the hold lives and no other one | the token and `own_lasts_ms` as of any exclusive lease, the next fence |
//!
//! * **Versions without modes** find the lock held by the token of the base, which no lease has, for `own_lasts_ms`. Each write
//!   of a member sets it from the end of the hold that ends last. So an exclusive acquire needs no other condition.
//! * **Ends of holds** are times of the server, with the slack in them. "Now" is `last_update + since_update`, in milliseconds:
//!   the higher of the server's clock and the last write. So a hold that has ended before a write never lives after it.
//! * **The end of an exclusive lease** counts from the last update of the record, as in every version. While it lives, only its
//!   holder writes to the record: each condition here requires the base, or that nobody holds the lock. This is why intents have a
//!   [record](super::intents) of their own, and why a lock that was only ever taken exclusively has no bins for modes.
//! * **The map counts** while the token is the base and `own_lasts_ms` is not negative. Entries beside the token of a lease
//!   are leftovers, and an older version that breaks the base breaks all holds.
//! * **Unknown kinds** are entries with another first byte in their key. While one lives, nobody joins: the
//!   holds that live must be as many as those with known keys. Every entry, also of a kind to come, begins with its end. A kind
//!   without an entry has another token than the base, or is alone under it.
//! * **Keys** are tokens instead of numbered places, so that no two clients choose the same one, and a join needs no read. The
//!   server counts the holds: [`HOLDS_MAX`] at most.
//! * **Intents**: an announcement writes its record and then `own_waits`, unless the lock is held exclusively. So a join in one
//!   request requires the base and that `own_waits` is over. If it is refused, both records are read. The next request requires
//!   that `own_token` and `own_waits` are as they were read. The first hold after an exclusive lease comes this way, since the announcements
//!   during that lease could not be noted.
//!
//! Seen on servers 8.1.2, each with a request of its own:
//!
//! * A filter evaluates `last_update` and `since_update` of the record as it was. The operations of the same write evaluate those
//!   of the new version: `since_update` is 0, and `last_update` is the time of this write, also in a record that it creates.
//!   Their sum is the same in both, except for the time in between.
//! * A later operation of a request reads what an earlier one has written.
//! * A filter is not evaluated for a record that does not exist.
//! * Lists are compared item by item, and one that ends sooner is the lower one. So `[now]` is above all holds that end
//!   earlier, and below those that end now or later. A value that is no list is in no interval between lists.
//! * `and`, `or` and `cond` do not evaluate what they do not need. An item of an empty list or map fails the expression.

use std::time::Duration;

use super::conditions::{self, HOLDS_MAX, IntentRule, SeenRecord};
use super::{AerospikeOwnStore, check_ttl, intents, lease_of};
use crate::error::Result;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::time::Deadline;
use crate::store::aerospike::client::{
    BinOperation, BinValue, FoundRecord, RecordExistsAction, Sign, When, Written,
};
use crate::store::aerospike::keys::own_bins::{FENCE, HOLDS, LASTS_MS, NAME, SIZE, TOKEN, TURN, WAITS, WHO};
use crate::store::aerospike::keys::{self, BASE, LockKeys, RecordKey, fence_key, waits_key};
use crate::store::aerospike::standing::{STANDING_READS, has_turn, holds};
use crate::store::remote::resolve::part;
use crate::store::remote::{ChangeMode, Join, ModeRegister, NotChanged, Record, Reply, Settled, StoredHolds};
use crate::store::{Intent, IntentId, TURN_MAX};

/// A grant waits for so long at most for the end of its intent.
const END_INTENT: Duration = Duration::from_millis(500);
/// How often a join is tried that was refused although nothing stood in the way afterwards.
const ROUNDS: usize = 16;

/// What a lock has in both records.
pub(super) struct BothRecords {
    pub(super) holds: StoredHolds,
    /// The record of the lock, if it exists.
    lock: Option<FoundRecord>,
}

impl BothRecords {
    /// Returns the size of a semaphore. One that no version writes is a size that nobody asks for.
    pub(super) fn size(&self) -> Option<u16> {
        self.lock.as_ref()?.int(SIZE).map(|size| size.try_into().unwrap_or(u16::MAX))
    }

    /// Returns what a grant of permits expects to be as it was read.
    pub(super) fn seen(&self) -> SeenRecord {
        let int = |bin| self.lock.as_ref().and_then(|lock| lock.int(bin));
        let token = self.lock.as_ref().and_then(|lock| lock.bytes(TOKEN)).unwrap_or_default().to_vec();
        SeenRecord {
            token,
            fence: int(FENCE),
            size: int(SIZE),
            waits: int(WAITS),
            holds: self.holds.holds.len(),
        }
    }
}

impl AerospikeOwnStore {
    /// Returns the record that is stored, or a holder that stands in the way.
    fn try_to_join(&self, join: &Join<'_>, by: Deadline) -> Result<Settled<Record, Holder>> {
        let (mode, is_turn) = (join.record.mode(), join.turn.is_some());
        check_ttl(join.record.ttl())?;
        let (key, checked) = (&LockKeys::of(join.name, &self.suffix)?.lock, self.checked(by)?);
        let lasts_ms = self.lasts_ms(join.record.ttl(), checked.is_alone);
        let sign = if checked.has_java_fences { Sign::Kept } else { Sign::Positive };
        let mut intents = if is_turn { IntentRule::Passed } else { IntentRule::NotRead };
        for _ in 0..ROUNDS {
            let nested_in = join.nested_in.map(|outer| conditions::key(outer.mode(), &outer.token()));
            let when = When::Meets(self.packed.may_join(mode, &intents, nested_in.as_ref()));
            let exists = match &intents {
                // There is no condition for a record that does not exist.
                IntentRule::NotRead => RecordExistsAction::UpdateOnly,
                _ => RecordExistsAction::Update,
            };
            let steps = self.steps_of_join(join, lasts_ms, sign, &intents);
            if let Written::Done(reply) = self.change(key, exists, when, &steps, by)? {
                if reply.generation == 1 {
                    self.counters.fence_seeded();
                }
                return Ok(Settled::Yes(numbered(join.record, &reply)));
            }
            let both = self.read_both(join.name, by)?;
            let in_the_way = both.holds.blocker(mode, join.nested_in, is_turn);
            let is_full = both.holds.holds.len() >= HOLDS_MAX;
            let in_the_way =
                in_the_way.or_else(|| both.holds.last_to_end().filter(|_| is_full).map(|it| it.holder()));
            if let Some(holder) = in_the_way {
                return Ok(Settled::No(holder));
            }
            if !is_turn {
                let waits = both.lock.as_ref().and_then(|lock| lock.int(WAITS));
                let are_noted = both.holds.intents.is_empty();
                let token =
                    both.lock.as_ref().and_then(|lock| lock.bytes(TOKEN)).unwrap_or_default().to_vec();
                intents = IntentRule::Read { token, waits, are_noted };
            }
        }
        Ok(Settled::No(Holder::unknown()))
    }

    fn steps_of_join(
        &self,
        join: &Join<'_>,
        lasts_ms: i64,
        sign: Sign,
        intents: &IntentRule,
    ) -> Vec<BinOperation<'static>> {
        let identity = join.record.identity_bytes();
        let key = conditions::key(join.record.mode(), &join.record.token());
        let least = join.least.max(1) as i64;
        // The first two depend on what the token was.
        let mut steps = vec![
            BinOperation::Compute(FENCE, conditions::number_of_join(least, sign)),
            BinOperation::Compute(HOLDS, conditions::holds_with(&key, lasts_ms, identity)),
        ];
        if !matches!(intents, IntentRule::NotRead | IntentRule::Read { are_noted: true, .. }) {
            steps.push(BinOperation::Compute(WAITS, self.packed.waits_of_first.clone()));
        }
        if let Some(turn) = join.turn.filter(|turn| !turn.is_zero()) {
            let turn_ms = turn.min(TURN_MAX).as_millis() as i64;
            steps.push(BinOperation::Compute(TURN, conditions::turn_of(turn_ms)));
        }
        steps.extend([
            BinOperation::Put(TOKEN, BinValue::Bytes(BASE.to_vec())),
            BinOperation::Put(WHO, BinValue::Bytes(identity.to_vec())),
            BinOperation::Put(NAME, BinValue::Text(join.name.key().to_owned())),
            BinOperation::Compute(LASTS_MS, self.packed.lasts_for_all.clone()),
            BinOperation::Read(FENCE),
        ]);
        steps
    }

    fn try_to_change(&self, change: &ChangeMode<'_>, by: Deadline) -> Result<Settled<Record, NotChanged>> {
        let (from, to, token) = (change.held.mode(), change.record.mode(), change.held.token());
        check_ttl(change.record.ttl())?;
        let (key, checked) = (&LockKeys::of(change.name, &self.suffix)?.lock, self.checked(by)?);
        let lasts_ms = self.lasts_ms(change.record.ttl(), checked.is_alone);
        let sign = if checked.has_java_fences { Sign::Kept } else { Sign::Positive };
        let identity = change.record.identity_bytes();
        let held = conditions::key(from, &token);
        let new = conditions::key(to, &change.record.token());
        let climb = BinOperation::Climb { bin: FENCE, by: 1, least: change.least.max(1) as i64, sign };
        let put = |token: &[u8]| BinOperation::Put(TOKEN, BinValue::Bytes(token.to_vec()));
        let who = BinOperation::Put(WHO, BinValue::Bytes(identity.to_vec()));
        let read = BinOperation::Read(FENCE);
        let lasts = BinOperation::Compute(LASTS_MS, self.packed.lasts_for_all.clone());
        let (when, steps) = match (from, to) {
            (Mode::Exclusive, _) => {
                let alone = BinOperation::Compute(HOLDS, conditions::hold_alone(&new, lasts_ms, identity));
                // Those that were announced during the exclusive hold.
                let waits = conditions::not_before(WAITS, conditions::intent_max_ms());
                let waits = BinOperation::Compute(WAITS, waits);
                (When::Held(lease_of(&token)), vec![climb, alone, put(&BASE), who, lasts, waits, read])
            }
            (_, Mode::Exclusive) => {
                let token = put(change.record.token().as_bytes());
                let lasts = BinOperation::Put(LASTS_MS, BinValue::Int(lasts_ms));
                let when = When::Meets(conditions::is_held_alone(&held));
                (when, vec![climb, token, who, lasts, BinOperation::Drop(HOLDS), read])
            }
            _ => {
                let exchanged = conditions::holds_exchanged(&held, &new, lasts_ms, identity);
                let exchanged = BinOperation::Compute(HOLDS, exchanged);
                (When::Meets(conditions::is_held(&held)), vec![exchanged, who, lasts, read])
            }
        };
        if let Written::Done(reply) = self.change(key, RecordExistsAction::UpdateOnly, when, &steps, by)? {
            if to == Mode::Exclusive {
                self.end_intent(change.name, change.intent, by);
            }
            return Ok(Settled::Yes(numbered(change.record, &reply)));
        }
        if to != Mode::Exclusive {
            return Ok(Settled::No(NotChanged::NotStored));
        }
        let stored = self.read_both(change.name, by)?.holds;
        let others = stored.own(change.held).and_then(|_| stored.hold_against(to, Some(change.held)));
        Ok(Settled::No(others.map_or(NotChanged::NotStored, NotChanged::Held)))
    }

    /// Ends an intent whose process holds the lock exclusively. If that fails, it ends by itself: until the holder makes less
    /// of its hold, or releases it, it makes no difference.
    pub(super) fn end_intent(&self, name: &LockName, intent: Option<IntentId>, by: Deadline) {
        if let Some(id) = intent {
            let by = by.sooner(Deadline::after(END_INTENT));
            let _ = intents::withdraw(&self.client, &waits_key(name, &self.suffix), id, by);
        }
    }

    /// Reads the holds and the intents, in one request if one node has both records.
    pub(super) fn read_both(&self, name: &LockName, by: Deadline) -> Result<BothRecords> {
        let more = [TURN, WAITS, SIZE, intents::INTENTS].map(BinOperation::Read);
        let steps: Vec<_> = STANDING_READS.into_iter().chain(more).collect();
        let record_keys = [LockKeys::of(name, &self.suffix)?.lock, waits_key(name, &self.suffix)];
        let mut found = [const { None }; 2];
        self.client.read_steps_many(&record_keys, &steps, part(by, 2), &mut |at, answer| {
            found[at] = Some(answer);
        });
        let mut read = |at: usize| match found[at].take() {
            Some(answer) => Ok(answer),
            None => self.client.read_steps(&record_keys[at], &steps, by),
        };
        let (lock, waiting) = (read(0)?, read(1)?);
        let holds = StoredHolds {
            holds: lock.as_ref().map(holds).unwrap_or_default(),
            intents: waiting.as_ref().map(intents::living).unwrap_or_default(),
            has_turn: lock.as_ref().is_some_and(has_turn),
        };
        Ok(BothRecords { holds, lock })
    }

    /// Raises the number of a hold that is not exclusive above the fence of the layout `java`, which the other holds may have
    /// done already.
    pub(super) fn number_of_hold(
        &self,
        key: &RecordKey,
        name: &LockName,
        record: &Record,
        by: Deadline,
    ) -> Result<Option<i64>> {
        let found = self.client.read(&fence_key(name, &self.suffix), &[keys::FENCE], by)?;
        let java = found.and_then(|found| found.int(keys::FENCE)).unwrap_or_default();
        let least = java.saturating_add(1);
        let steps = [
            BinOperation::Climb { bin: FENCE, by: 1, least, sign: Sign::Positive },
            BinOperation::Compute(LASTS_MS, conditions::lasts_as_before()),
            BinOperation::Read(FENCE),
        ];
        let when = conditions::is_held_unnumbered(&conditions::key(record.mode(), &record.token()));
        match self.change(key, RecordExistsAction::UpdateOnly, When::Meets(when), &steps, by)? {
            Written::Done(reply) => Ok(reply.int(FENCE)),
            Written::Missing | Written::Refused => {
                let stored = self.read_both(name, by)?.holds;
                let number = stored.own(record).and_then(Record::number);
                Ok(number.map(|number| number as i64))
            }
        }
    }
}

/// Returns the record with the number in this answer, or without one if it must still be raised.
fn numbered(record: &Record, reply: &FoundRecord) -> Record {
    let number = reply.int(FENCE).and_then(|number| u64::try_from(number).ok());
    record.numbered(number.unwrap_or_default())
}

impl ModeRegister for AerospikeOwnStore {
    fn join(&self, join: &Join<'_>, by: Deadline) -> Reply<Record, Holder> {
        self.try_to_join(join, by).into()
    }

    fn change_mode(&self, change: &ChangeMode<'_>, by: Deadline) -> Reply<Record, NotChanged> {
        self.try_to_change(change, by).into()
    }

    fn read_holds(&self, name: &LockName, by: Deadline) -> Result<StoredHolds> {
        Ok(self.read_both(name, by)?.holds)
    }

    /// The record of the lock comes second: who reads the intents between the two has begun before the end of this call. If the
    /// lock has none, it gets that of a free lock, so that there is a place for the note.
    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()> {
        intents::announce(&self.client, &waits_key(name, &self.suffix), intent, by)?;
        let steps = [
            BinOperation::Compute(WAITS, conditions::not_before(WAITS, intents::lasts_ms(&intent))),
            BinOperation::Compute(LASTS_MS, conditions::lasts_as_before()),
            BinOperation::Compute(TOKEN, conditions::token_as_before()),
            BinOperation::Put(NAME, BinValue::Text(name.key().to_owned())),
        ];
        let key = &LockKeys::of(name, &self.suffix)?.lock;
        let when = When::Meets(conditions::may_be_noted());
        self.change(key, RecordExistsAction::Update, when, &steps, by).map(drop)
    }

    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()> {
        intents::withdraw(&self.client, &waits_key(name, &self.suffix), intent, by)
    }
}

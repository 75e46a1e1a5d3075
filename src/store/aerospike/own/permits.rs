//! Semaphores in the layout `own`. They have the record of a lock with holds, see [`modes`](super::modes), and one more bin:
//!
//! ```text
//! own_holds  code of the mode and token of a permit -> [end_ms, lasts_ms, who, number of the permit, fence]
//! own_size   the number of permits
//! ```
//!
//! | step | condition | what the server writes |
//! |---|---|---|
//! | grant | `own_fence`, `own_size`, token and note of intents as they were read; free, or the base and no holds but permits, and not more than were read | the base, the permits, the size, the next fence |
//! | renew, release | the permit lives | as for any hold |
//! | resize | `own_size` as it was read, and no exclusive hold | the size |
//!
//! * Each grant takes the next fence, and so does each lock. So who has read a record without other holds knows that until the
//!   fence changes permits can only go. The server counts them all the same: on another node, whose clock is behind, one may
//!   live that had ended.
//! * A grant is two requests: a read of both records, and the write.
//! * While the namespace has fences of the layout `java`, the grant must be above that of this lock. It is read before and after the
//!   write, and permits that are not above it are released again.

use super::conditions;
use super::{AerospikeOwnStore, check_ttl};
use crate::error::{Error, Result};
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::time::Deadline;
use crate::store::aerospike::client::{BinOperation, BinValue, RecordExistsAction, Sign, When, Written};
use crate::store::aerospike::keys::own_bins::{FENCE, HOLDS, LASTS_MS, NAME, SIZE, TOKEN, WHO};
use crate::store::aerospike::keys::{self, BASE, LockKeys, fence_key};
use crate::store::remote::{GrantPermits, NotGranted, PermitRegister, Record, Reply, Settled, StoredHolds};

/// How often a change is tried that was refused because others came in between.
const ROUNDS: usize = 16;

impl AerospikeOwnStore {
    fn try_to_grant(
        &self,
        asked: &GrantPermits<'_>,
        by: Deadline,
    ) -> Result<Settled<Vec<Record>, NotGranted>> {
        asked.records.iter().try_for_each(|record| check_ttl(record.ttl()))?;
        let (key, checked) = (&LockKeys::of(asked.name, &self.suffix)?.lock, self.checked(by)?);
        for _ in 0..ROUNDS {
            let java = if checked.has_java_fences { self.java_fence(asked.name, by)? } else { 0 };
            let read = self.read_both(asked.name, by)?;
            // The server ran an earlier copy of this request.
            if let Some(own) = GrantPermits::stored(asked.records, &read.holds) {
                return Ok(Settled::Yes(own));
            }
            let free = match asked.choose(read.size(), &read.holds) {
                Ok(free) => free,
                Err(why) => return Ok(Settled::No(*why)),
            };
            let least = (asked.least.max(1) as i64).max(java.saturating_add(1));
            let permits: Vec<_> = asked.records.iter().zip(free).collect();
            let entries = permits.iter().map(|(record, permit)| {
                let lasts_ms = self.lasts_ms(record.ttl(), checked.is_alone);
                (conditions::key(Mode::Permit, &record.token()), lasts_ms, record.identity_bytes(), *permit)
            });
            let holds = conditions::holds_with_permits(entries);
            let who = asked.records.first().map(Record::identity_bytes).unwrap_or_default();
            // The permits have the number that the first step makes.
            let steps = [
                BinOperation::Climb { bin: FENCE, by: 1, least, sign: Sign::Positive },
                BinOperation::Compute(HOLDS, holds),
                BinOperation::Put(SIZE, BinValue::Int(asked.permits.into())),
                BinOperation::Put(TOKEN, BinValue::Bytes(BASE.to_vec())),
                BinOperation::Put(WHO, BinValue::Bytes(who.to_vec())),
                BinOperation::Put(NAME, BinValue::Text(asked.name.key().to_owned())),
                BinOperation::Compute(LASTS_MS, self.packed.lasts_for_all.clone()),
                BinOperation::Read(FENCE),
            ];
            let when = When::Meets(conditions::may_grant(&read.seen()));
            let Written::Done(reply) = self.change(key, RecordExistsAction::Update, when, &steps, by)? else {
                continue;
            };
            if reply.generation == 1 {
                self.counters.fence_seeded();
            }
            let number = reply.int(FENCE).and_then(|number| u64::try_from(number).ok());
            let number = number.ok_or_else(|| Error::InDoubt {
                what: format!("{}: semaphore {}: the answer has no fence", self.client.uri(), asked.name),
                source: None,
            })?;
            let granted =
                |(record, permit): &(&Record, u8)| record.placed(Mode::Permit, *permit).numbered(number);
            return Ok(Settled::Yes(permits.iter().map(granted).collect()));
        }
        Ok(Settled::No(NotGranted::Held(Holder::unknown())))
    }

    /// Returns the fence of the layout `java`.
    fn java_fence(&self, name: &LockName, by: Deadline) -> Result<i64> {
        let found = self.client.read(&fence_key(name, &self.suffix), &[keys::FENCE], by)?;
        Ok(found.and_then(|found| found.int(keys::FENCE)).unwrap_or_default())
    }
}

impl PermitRegister for AerospikeOwnStore {
    fn grant(&self, asked: &GrantPermits<'_>, by: Deadline) -> Reply<Vec<Record>, NotGranted> {
        self.try_to_grant(asked, by).into()
    }

    fn confirm(&self, name: &LockName, stored: &[Record], by: Deadline) -> Result<bool> {
        let lowest = stored.iter().filter_map(Record::number).min().unwrap_or_default();
        Ok(!self.checked(by)?.has_java_fences || self.java_fence(name, by)? < lowest as i64)
    }

    fn read_permits(&self, name: &LockName, by: Deadline) -> Result<(Option<u16>, StoredHolds)> {
        let read = self.read_both(name, by)?;
        Ok((read.size(), read.holds))
    }

    fn resize(&self, name: &LockName, permits: u16, by: Deadline) -> Result<Option<u16>> {
        let key = &LockKeys::of(name, &self.suffix)?.lock;
        for _ in 0..ROUNDS {
            let Some(size) = self.read_both(name, by)?.size() else { return Ok(None) };
            let steps = [
                BinOperation::Put(SIZE, BinValue::Int(permits.into())),
                BinOperation::Compute(LASTS_MS, conditions::lasts_as_before()),
            ];
            let when = When::Meets(conditions::may_resize(size.into()));
            if let Written::Done(_) = self.change(key, RecordExistsAction::UpdateOnly, when, &steps, by)? {
                return Ok(Some(size));
            }
        }
        let what = format!("semaphore {name} is held as a lock, or others resize it");
        Err(Error::RetriesExhausted { store: self.client.uri().to_owned(), what, source: None })
    }
}

//! Locks in several modes. Each change of a lock is one transaction, whichever of its two records it needs.
//!
//! | | reads | writes |
//! |---|---|---|
//! | acquires, renews or releases exclusively | the record of the lock | the record of the lock |
//! | the same, and its process had announced it | both | both |
//! | acquires, renews, converts or releases otherwise | both | both |
//! | announces or withdraws | both | the record beside it |

use std::sync::Arc;

use super::embedded_store::EmbeddedStore;
use super::hold_codec;
use super::lock_records::LockRecords;
use super::record::{DeadHolder, Record};
use super::room::{ChangeError, ChangeResult, Room};
use crate::error::{Error, Result};
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::{OwnerRecord, OwnerToken};
use crate::runtime::time::{Deadline, Moment};
use crate::store::embedded::lmdb::{Reader, TxnEnd, Writer};
use crate::store::lock_holds::{HoldChange, NewHold, grant_of};
use crate::store::mode_store::check_conversion;
use crate::store::{
    Acquired, AcquiredPermits, Attempt, Conversion, Converted, GrantRecord, Inspection, Intent, IntentId,
    LockHold, ModeStore, ModeTerms, PermitTerms, SemaphoreState, SemaphoreStore,
};

impl EmbeddedStore {
    /// Returns what the lock has, and the exclusive holder whose process has died, which holds nothing any more. Both records
    /// are from one state of the file.
    fn snapshot(&self, name: &LockName, by: Deadline) -> Result<(LockRecords, Option<DeadHolder>)> {
        let key = hold_codec::key(name);
        let look = |reader: &Reader<'_>| {
            let primary = self.records.record(name, reader.get(name.key().as_bytes())?);
            let second = reader.get(&key)?;
            Ok(primary.and_then(|primary| self.records.lock(name, primary, second, Moment::now())))
        };
        let records = self.environment.read(by, look)??;
        let dead = records.primary().and_then(|record| Some((record.clone(), self.death_of(record)?)));
        Ok(if dead.is_some() { (records.without_primary(), dead) } else { (records, None) })
    }

    /// Runs `change` on both records in a transaction that changes of other threads may share, and writes them if it
    /// commits. It may run several times.
    fn change_records<T, F>(
        &self,
        room: Room,
        name: &LockName,
        by: Deadline,
        dead: Option<&DeadHolder>,
        change: Arc<F>,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&mut Writer<'_>, &LockName, &mut LockRecords, Moment) -> ChangeResult<TxnEnd<T>>
            + Send
            + Sync
            + 'static,
    {
        let (all, dead) = (self.records.clone(), dead.map(|(record, _)| record.clone()));
        let change = move |writer: &mut Writer<'_>, name: &LockName, found: Option<Record>| {
            // The proof is about the record that was read before. Another one is that of another holder.
            let found = found.filter(|record| dead.as_ref() != Some(record));
            all.change_found(writer, name, found, |writer, records, now| change(writer, name, records, now))
        };
        self.change_in_group(room, name, by, Arc::new(change))
    }

    pub(super) fn inspect_records(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        let (records, _) = self.snapshot(name, by)?;
        let last = records.holds.last_to_end();
        Ok(Inspection {
            fence: records.primary().map(|record| record.fence),
            grant: last.map(|hold| GrantRecord::Ours(hold.owner_record())),
            holder: last.and_then(|_| records.primary()).map(Record::holder),
            layout: None,
        })
    }
}

/// Ends a change that needs a number and has got none. It is made again when others are reserved.
fn without_number<T>(error: Option<ChangeError>) -> ChangeResult<TxnEnd<Option<T>>> {
    error.map_or(Ok(TxnEnd::Abandon(None)), Err)
}

impl ModeStore for EmbeddedStore {
    /// A refused attempt only reads and needs no write lock.
    fn acquire_mode(
        &self,
        attempt: Attempt<'_>,
        terms: ModeTerms<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let (name, by, mode) = (attempt.name, attempt.by, terms.mode);
        if mode == Mode::Exclusive {
            return self.acquire_lock(attempt, false, terms.fences, terms.intent, doubtful);
        }
        let (records, dead) = self.snapshot(name, by)?;
        if let Some(blocker) = records.holds.blocker(&terms) {
            return Ok(Acquired::Held(blocker));
        }
        let owner = OwnerToken::draw()?;
        let (all, ttl, identity) = (self.records.clone(), attempt.ttl, attempt.identity.clone());
        let ModeTerms { fences, intent, turn, .. } = terms;
        let nested_in = terms.nested_in.cloned();
        let grant = move |writer: &mut Writer<'_>,
                          name: &LockName,
                          records: &mut LockRecords,
                          now: Moment| {
            let terms = ModeTerms { mode, fences, intent, nested_in: nested_in.as_ref(), turn };
            if let Some(blocker) = records.holds.blocker(&terms) {
                return Ok(TxnEnd::Abandon(Some(Acquired::Held(blocker))));
            }
            let attempt = Attempt { name, ttl, identity: &identity, by };
            let new = NewHold::new(owner, mode, &attempt, now);
            Ok(match records.holds.grant(new, &terms, now, || all.next_number(writer, now)) {
                Ok(number) => TxnEnd::Commit(Some(Acquired::Granted(grant_of(&owner, mode, number, 1, now)))),
                Err(error) => return without_number(error),
            })
        };
        let grant = Arc::new(grant);
        let answer = self.with_fences(1, by, || {
            self.change_records(Room::Grant, name, by, dead.as_ref(), Arc::clone(&grant))
        });
        if answer.as_ref().is_err_and(Error::is_in_doubt) {
            doubtful.push(OwnerRecord::from_bytes(owner.as_bytes().as_slice()));
        }
        if let (Some(dead), Ok(Acquired::Granted(_))) = (dead, &answer) {
            self.bury(name, dead, by);
        }
        answer
    }

    /// A lease that dies with its process ends with its TTL once its mode has changed.
    fn convert(
        &self,
        attempt: Attempt<'_>,
        conversion: Conversion<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Converted> {
        check_conversion(attempt.name, &conversion)?;
        let (owner, by) = (OwnerToken::draw()?, attempt.by);
        let (all, ttl, identity) = (self.records.clone(), attempt.ttl, attempt.identity.clone());
        let Conversion { from, to, intent, .. } = conversion;
        let owner_record = conversion.owner_record.clone();
        let change =
            move |writer: &mut Writer<'_>, name: &LockName, records: &mut LockRecords, now: Moment| {
                let conversion = Conversion { owner_record: &owner_record, from, to, intent };
                let attempt = Attempt { name, ttl, identity: &identity, by };
                let new = NewHold::new(owner, to, &attempt, now);
                Ok(match records.holds.convert(new, &conversion, || all.next_number(writer, now)) {
                    Ok(HoldChange::Made(number)) => {
                        TxnEnd::Commit(Some(Converted::Granted(grant_of(&owner, to, number, 1, now))))
                    }
                    Ok(HoldChange::Refused(holder)) => TxnEnd::Abandon(Some(Converted::Held(holder))),
                    Ok(HoldChange::NotOurs) => TxnEnd::Abandon(Some(Converted::NotOurs)),
                    Err(error) => return without_number(error),
                })
            };
        let change = Arc::new(change);
        let answer = self.with_fences(1, by, || {
            self.change_records(Room::Held, attempt.name, by, None, Arc::clone(&change))
        });
        if answer.as_ref().is_err_and(Error::is_in_doubt) {
            doubtful.push(OwnerRecord::from_bytes(owner.as_bytes().as_slice()));
        }
        answer
    }

    fn blocker(&self, name: &LockName, mode: Mode, by: Deadline) -> Result<Option<Holder>> {
        if mode == Mode::Exclusive {
            return Ok(self.held(name, by)?.map(|record| record.holder()));
        }
        let (records, _) = self.snapshot(name, by)?;
        Ok(records.holds.blocker(&ModeTerms::new(mode)))
    }

    fn holds(&self, name: &LockName, by: Deadline) -> Result<Vec<LockHold>> {
        let (records, _) = self.snapshot(name, by)?;
        Ok(records.holds.holds.iter().map(|hold| records.describe(hold)).collect())
    }

    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()> {
        self.change(Room::Grant, name, by, |writer, found| {
            let now = Moment::now();
            let mut records = self.records.lock(name, found, writer.get(&hold_codec::key(name))?, now)?;
            if records.is_second_new() {
                self.records.sweep(writer, now)?;
            }
            records.holds.announce(&intent, now);
            records.put_waiting(writer, name)?;
            Ok(TxnEnd::Commit(()))
        })
    }

    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()> {
        self.change(Room::Held, name, by, |writer, found| {
            let ended = self.records.end_intent(writer, name, found, intent)?;
            Ok(if ended { TxnEnd::Commit(()) } else { TxnEnd::Abandon(()) })
        })
    }
}

impl SemaphoreStore for EmbeddedStore {
    /// A refused attempt only reads and needs no write lock.
    fn acquire_permits(
        &self,
        attempt: Attempt<'_>,
        terms: PermitTerms,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<AcquiredPermits> {
        let (name, by) = (attempt.name, attempt.by);
        let (records, dead) = self.snapshot(name, by)?;
        if let Err(refused) = records.holds.free_permits(terms) {
            return Ok(*refused);
        }
        let owners: Vec<_> = (0..terms.count).map(|_| OwnerToken::draw()).collect::<Result<_>>()?;
        let (all, ttl, identity) = (self.records.clone(), attempt.ttl, attempt.identity.clone());
        let tokens = owners.clone();
        let grant =
            move |writer: &mut Writer<'_>, name: &LockName, records: &mut LockRecords, now: Moment| {
                let free = match records.holds.free_permits(terms) {
                    Ok(free) => free,
                    Err(refused) => return Ok(TxnEnd::Abandon(Some(*refused))),
                };
                let new: Vec<_> = free.into_iter().zip(tokens.iter().copied()).collect();
                let attempt = Attempt { name, ttl, identity: &identity, by };
                let next = || all.next_number(writer, now);
                Ok(match records.holds.grant_permits(&new, terms.permits, (&attempt, now), next) {
                    Ok(grants) => TxnEnd::Commit(Some(AcquiredPermits::Granted(grants))),
                    Err(error) => return without_number(error),
                })
            };
        let grant = Arc::new(grant);
        let answer = self.with_fences(1, by, || {
            self.change_records(Room::Grant, name, by, dead.as_ref(), Arc::clone(&grant))
        });
        if answer.as_ref().is_err_and(Error::is_in_doubt) {
            doubtful.extend(owners.iter().map(|owner| OwnerRecord::from_bytes(owner.as_bytes().as_slice())));
        }
        if let (Some(dead), Ok(AcquiredPermits::Granted(_))) = (dead, &answer) {
            self.bury(name, dead, by);
        }
        answer
    }

    fn semaphore(&self, name: &LockName, by: Deadline) -> Result<Option<SemaphoreState>> {
        let (records, _) = self.snapshot(name, by)?;
        Ok(records.holds.semaphore(|hold| records.describe(hold)))
    }

    fn resize(&self, name: &LockName, permits: u16, by: Deadline) -> Result<Option<u16>> {
        // The record of the lock stays as it is: it may be that of a process whose death others would notice.
        self.change(Room::Held, name, by, |writer, found| {
            let now = Moment::now();
            let mut records = self.records.lock(name, found, writer.get(&hold_codec::key(name))?, now)?;
            let before = records.holds.resize(permits, now);
            if before.is_none() {
                return Ok(TxnEnd::Abandon(None));
            }
            records.put_waiting(writer, name)?;
            Ok(TxnEnd::Commit(before))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Code;
    use crate::names::fence::Epoch;
    use crate::names::holder::Identity;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::runtime::time::wall_ms;
    use crate::store::embedded::record::Header;
    use crate::store::embedded::sweep::sweep;
    use crate::store::{Grant, INTENT_MAX, LivenessStore, LockQuery, LockStore, Released};
    use crate::testing::patience::LONG;

    const TTL: Duration = Duration::from_secs(3600);

    /// What versions without modes read of the record of a lock, and write.
    #[derive(Debug, PartialEq, Eq)]
    struct Before {
        token: [u8; 16],
        fence: u64,
        ends: u64,
        pid: u32,
        purpose: String,
    }

    impl Before {
        /// Reads what they read. They ignore the rest.
        fn read(bytes: &[u8]) -> Before {
            let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(bytes[0], 1, "the only version that they know");
            let host = usize::from(bytes[61]);
            let purpose = 62 + host;
            let purpose = &bytes[purpose + 1..][..usize::from(bytes[purpose])];
            Before {
                token: bytes[1..17].try_into().unwrap(),
                fence: number(17),
                ends: number(25),
                pid: u32::from_be_bytes(bytes[49..53].try_into().unwrap()),
                purpose: String::from_utf8(purpose.to_vec()).unwrap(),
            }
        }

        /// Writes what they write for a grant.
        fn write(&self) -> Vec<u8> {
            let mut bytes = [&[1][..], &self.token].concat();
            for number in [self.fence, self.ends, wall_ms(), 90_000_000_000] {
                bytes.extend_from_slice(&number.to_be_bytes());
            }
            bytes.extend_from_slice(&self.pid.to_be_bytes());
            bytes.extend_from_slice(&[0; 8]);
            bytes.extend_from_slice(b"\x01h");
            bytes.push(self.purpose.len() as u8);
            bytes.extend_from_slice(self.purpose.as_bytes());
            bytes
        }
    }

    struct Site {
        _dir: tempfile::TempDir,
        store: EmbeddedStore,
    }

    fn soon() -> Deadline {
        Deadline::after(LONG)
    }

    fn lock() -> LockName {
        LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap()
    }

    fn identity(purpose: &str) -> Identity {
        Identity::this_process(purpose).unwrap()
    }

    impl Site {
        fn new() -> Site {
            let dir = tempfile::tempdir().unwrap();
            let store = EmbeddedStore::open(dir.path()).unwrap();
            Site { _dir: dir, store }
        }

        fn try_acquire(&self, terms: ModeTerms<'_>, ttl: Duration, purpose: &str) -> Result<Acquired> {
            let (name, identity) = (lock(), identity(purpose));
            let attempt = Attempt { name: &name, ttl, identity: &identity, by: soon() };
            self.store.acquire_mode(attempt, terms, &mut Vec::new())
        }

        fn acquire(&self, mode: Mode, ttl: Duration, purpose: &str) -> Grant {
            match self.try_acquire(ModeTerms::new(mode), ttl, purpose).unwrap() {
                Acquired::Granted(grant) => grant,
                Acquired::Held(holder) => panic!("held by {holder}"),
            }
        }

        fn refused(&self, mode: Mode) -> Holder {
            match self.try_acquire(ModeTerms::new(mode), TTL, "").unwrap() {
                Acquired::Granted(_) => panic!("granted beside a hold"),
                Acquired::Held(holder) => holder,
            }
        }

        fn raw(&self, key: &[u8]) -> Option<Vec<u8>> {
            let look = |reader: &Reader<'_>| Ok(reader.get(key)?.map(<[u8]>::to_vec));
            self.store.environment.read(soon(), look).unwrap()
        }

        fn put(&self, key: &[u8], value: Option<&[u8]>) {
            let put = |writer: &mut Writer<'_>| {
                match value {
                    Some(value) => writer.put(key, value)?,
                    None => writer.delete(key)?,
                }
                Ok(TxnEnd::Commit(()))
            };
            self.store.environment.write(soon(), put).unwrap();
        }

        /// The record of the lock, as versions without modes read it.
        fn before(&self) -> Option<Before> {
            self.raw(lock().key().as_bytes()).map(|bytes| Before::read(&bytes))
        }

        fn second(&self) -> Option<Vec<u8>> {
            self.raw(&hold_codec::key(&lock()))
        }

        fn renew(&self, grant: &Grant, ttl: Duration) -> bool {
            self.store.renew(&lock(), &grant.owner_record, ttl, soon()).unwrap().is_some()
        }

        fn release(&self, grant: &Grant) -> bool {
            self.store.release(&lock(), &grant.owner_record, soon()).unwrap() == Released::Freed
        }

        fn announce(&self, id: u64) {
            let intent = Intent { id: IntentId(id), identity: &identity("writer"), lasts: INTENT_MAX };
            self.store.announce(&lock(), intent, soon()).unwrap();
        }

        /// Runs the sweep over the whole file, at another time.
        fn sweep(&self, now: Moment) {
            let swept =
                |writer: &mut Writer<'_>| Ok(TxnEnd::Commit(sweep(writer, &mut Vec::new(), now, 100)?));
            assert!(self.store.environment.write(soon(), swept).unwrap());
        }
    }

    #[test]
    fn versions_without_modes_see_one_holder_that_lasts_as_long_as_any() {
        let site = Site::new();
        let short = site.acquire(Mode::Shared, TTL, "short");
        let first = site.before().unwrap();
        assert_eq!((first.purpose.as_str(), first.pid), ("short", std::process::id()));
        let long = site.acquire(Mode::Update, 2 * TTL, "long");
        let both = site.before().unwrap();
        assert_eq!((both.token, both.purpose.as_str()), (first.token, "long"));
        assert!(both.ends >= first.ends + TTL.as_nanos() as u64);
        for grant in [&short, &long] {
            assert_ne!(grant.owner_record.as_bytes(), both.token, "they could renew it");
            assert_eq!(grant.epoch, Some(Epoch(both.fence)));
        }
        assert!(site.renew(&short, 3 * TTL));
        let renewed = site.before().unwrap();
        assert!(renewed.ends > both.ends && renewed.purpose == "short", "{renewed:?}");
        // A hold that ends sooner may become the last one.
        assert!(site.release(&short));
        assert_eq!(site.before().unwrap(), both);
        assert!(site.release(&long) && !site.release(&long));
        assert_eq!((site.before(), site.second()), (None, None), "a free lock has no record");
    }

    #[test]
    fn whoever_breaks_the_lock_without_modes_ends_all_holds() {
        let site = Site::new();
        let held = [site.acquire(Mode::Shared, TTL, ""), site.acquire(Mode::Update, TTL, "")];
        let (old, second) = (site.before().unwrap(), site.second().unwrap());
        site.put(lock().key().as_bytes(), None);
        assert_eq!(site.store.holds(&lock(), soon()).unwrap(), []);
        assert!(!held.iter().any(|grant| site.renew(grant, TTL) || site.release(grant)));
        // They acquire it, and release it.
        let theirs = Before { token: [5; 16], pid: 1, purpose: "old".into(), ..old };
        site.put(lock().key().as_bytes(), Some(&theirs.write()));
        assert!(!held.iter().any(|grant| site.renew(grant, TTL) || site.release(grant)));
        assert_eq!(site.refused(Mode::Shared).identity.unwrap().purpose, "old");
        assert_eq!(site.before(), Some(Before { ..theirs }), "their record was changed");
        site.put(lock().key().as_bytes(), None);
        let next = site.acquire(Mode::Shared, TTL, "");
        assert!(next.epoch > held[0].epoch, "{next:?}");
        assert!(!held.iter().any(|grant| site.renew(grant, TTL) || site.release(grant)));
        assert_eq!(site.store.holds(&lock(), soon()).unwrap().len(), 1);
        // Beside the base of others, the holds that were broken are void too.
        site.put(&hold_codec::key(&lock()), Some(&second));
        assert!(!held.iter().any(|grant| site.renew(grant, TTL) || site.release(grant)));
    }

    /// It may be that of a process whose death others would notice.
    #[test]
    fn a_resize_leaves_the_record_of_an_exclusive_lock_as_it_is() {
        let site = Site::new();
        let (name, identity) = (lock(), identity("permit"));
        let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
        let terms = PermitTerms { permits: 5, count: 1 };
        let AcquiredPermits::Granted(permits) =
            site.store.acquire_permits(attempt, terms, &mut Vec::new()).unwrap()
        else {
            panic!("it is free")
        };
        assert!(site.release(&permits[0].grant));
        site.store.acquire_until_death(attempt, &mut Vec::new()).unwrap();
        let before = site.raw(name.key().as_bytes()).unwrap();
        assert_eq!(site.store.resize(&name, 3, soon()).unwrap(), Some(5));
        assert_eq!(site.raw(name.key().as_bytes()), Some(before));
        assert_eq!(site.store.semaphore(&name, soon()).unwrap().map(|it| it.permits), Some(3));
    }

    /// The sweep is that of versions without modes. Their lists pass over the record too.
    #[test]
    fn the_sweep_deletes_the_holds_with_their_base_and_no_sooner() {
        let site = Site::new();
        let held = site.acquire(Mode::Shared, TTL, "");
        site.acquire(Mode::Shared, TTL / 2, "");
        let ends = Moment::from_nanos(site.before().unwrap().ends);
        site.sweep(Moment::from_nanos(ends.as_nanos() - 1));
        assert!(site.before().is_some() && site.second().is_some());
        let listed = site.store.list(&LockQuery::new(), None, 10, soon()).unwrap().locks;
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].holder.as_ref().unwrap().mode, Mode::Shared);
        assert!(site.renew(&held, TTL));
        site.sweep(Moment::from_nanos(site.before().unwrap().ends));
        assert_eq!((site.before(), site.second()), (None, None));
    }

    #[test]
    fn who_only_waits_holds_nothing_and_makes_readers_wait() {
        let site = Site::new();
        site.announce(1);
        assert_eq!(site.before(), None);
        assert_eq!(site.store.holder(&lock(), soon()).unwrap(), None);
        assert!(site.store.list(&LockQuery::new(), None, 10, soon()).unwrap().locks.is_empty());
        let blocker = site.refused(Mode::Shared);
        assert!(blocker.is_waiting && blocker.identity.unwrap().purpose == "writer");
        // Another one acquires the lock, and the intent stays.
        let other = site.acquire(Mode::Exclusive, TTL, "");
        assert!(site.release(&other) && site.refused(Mode::Update).is_waiting);
        let terms = ModeTerms { intent: Some(IntentId(1)), ..ModeTerms::new(Mode::Exclusive) };
        let Acquired::Granted(own) = site.try_acquire(terms, TTL, "").unwrap() else { panic!("held") };
        assert_eq!(site.second(), None, "its intent has ended with its grant");
        assert!(site.release(&own));
        // The sweep deletes one that nobody withdraws.
        site.announce(2);
        site.sweep(Moment::now().after(INTENT_MAX));
        assert_eq!(site.second(), None);
        site.announce(3);
        site.store.withdraw(&lock(), IntentId(4), soon()).unwrap();
        assert!(site.second().is_some());
        site.store.withdraw(&lock(), IntentId(3), soon()).unwrap();
        assert_eq!(site.second(), None);
    }

    /// If it were read, the calls would fail: it cannot be decoded.
    #[test]
    fn who_acquires_exclusively_does_not_read_the_second_record() {
        let site = Site::new();
        let key = hold_codec::key(&lock());
        site.put(&key, Some(b"damaged"));
        for ttl in [TTL, Duration::ZERO] {
            let held = site.acquire(Mode::Exclusive, ttl, "");
            assert_eq!(site.renew(&held, ttl), ttl == TTL);
            assert_eq!(site.store.holder(&lock(), soon()).unwrap().is_some(), ttl == TTL);
            assert_eq!(site.release(&held), ttl == TTL);
            assert!(!site.release(&held) && !site.renew(&held, TTL));
        }
        let expired = site.acquire(Mode::Exclusive, Duration::ZERO, "");
        let held = site.acquire(Mode::Exclusive, TTL, "");
        assert!(!site.renew(&expired, TTL) && site.release(&held));
        let refused = site.try_acquire(ModeTerms::new(Mode::Shared), TTL, "").unwrap_err();
        assert_eq!(refused.code(), Code::InternalError);
        assert_eq!(site.raw(&key).unwrap(), b"damaged");
    }

    #[test]
    fn a_base_whose_holds_cannot_be_read_or_are_missing_is_a_hold_of_somebody() {
        let site = Site::new();
        let (key, held) = (hold_codec::key(&lock()), site.acquire(Mode::Shared, TTL, "known"));
        let second = site.second().unwrap();
        site.put(&key, Some(b"damaged"));
        site.refused(Mode::Exclusive);
        for result in [
            site.try_acquire(ModeTerms::new(Mode::Shared), TTL, "").map(|_| ()),
            site.store.renew(&lock(), &held.owner_record, TTL, soon()).map(|_| ()),
            site.store.release(&lock(), &held.owner_record, soon()).map(|_| ()),
            site.store.blocker(&lock(), Mode::Shared, soon()).map(|_| ()),
        ] {
            assert_eq!(result.unwrap_err().code(), Code::InternalError);
        }
        site.put(&key, None);
        assert_eq!(site.refused(Mode::Shared).identity.unwrap().purpose, "known");
        site.refused(Mode::Exclusive);
        assert!(!site.renew(&held, TTL) && !site.release(&held));
        // A process that waits changes nothing of that.
        site.announce(1);
        site.store.withdraw(&lock(), IntentId(1), soon()).unwrap();
        site.refused(Mode::Shared);
        let [hold] = &site.store.holds(&lock(), soon()).unwrap()[..] else { panic!("no hold") };
        assert_eq!((hold.fence(), hold.epoch), (None, None), "it may be a hold in any mode");
        // The record that is there again counts again.
        site.put(&key, Some(&second));
        assert!(site.renew(&held, 2 * TTL));
        site.put(&key, None);
        let Some(GrantRecord::Ours(seen)) = site.store.inspect(&lock(), soon()).unwrap().grant else {
            panic!("nothing to break")
        };
        assert_eq!(site.store.release_broken(&lock(), &seen, soon()).unwrap(), Released::Freed);
        site.acquire(Mode::Exclusive, TTL, "");
    }

    #[test]
    fn holds_of_a_later_version_exclude_everybody_and_stay_as_they_are() {
        let site = Site::new();
        let (key, held) = (hold_codec::key(&lock()), site.acquire(Mode::Shared, TTL, ""));
        let (mut bytes, mode_at) = (site.second().unwrap(), 51);
        assert_eq!(bytes[mode_at], Mode::Shared.code());
        bytes[mode_at] = 200;
        site.put(&key, Some(&bytes));
        for mode in Mode::OF_LOCKS {
            site.refused(mode);
        }
        assert!(site.renew(&held, 2 * TTL));
        assert_eq!(site.second().unwrap()[mode_at], 200);
        assert!(site.raw(lock().key().as_bytes()).unwrap().ends_with(&[2, 200]));
        assert!(site.release(&held));
        // A kind that is not known, beside a hold that is.
        let held = site.acquire(Mode::Update, TTL, "");
        let entry = [&[4][..], &u64::MAX.to_be_bytes(), &[0, 3], b"new"].concat();
        let mut bytes = [site.second().unwrap(), entry.clone()].concat();
        bytes[39] += 1;
        site.put(&key, Some(&bytes));
        site.refused(Mode::Shared);
        assert!(site.renew(&held, 2 * TTL));
        assert_eq!(site.before().unwrap().ends, u64::MAX);
        let (name, identity) = (lock(), identity(""));
        let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
        let convert = |to: Mode| {
            let owner_record = &held.owner_record;
            let conversion = Conversion { owner_record, from: Mode::Update, to, intent: None };
            site.store.convert(attempt, conversion, &mut Vec::new()).unwrap()
        };
        assert!(matches!(convert(Mode::Exclusive), Converted::Held(_)));
        let Converted::Granted(less) = convert(Mode::Shared) else { panic!("refused") };
        assert!(site.release(&less) && site.second().unwrap().ends_with(&entry));
        site.refused(Mode::Exclusive);
    }

    /// Grants that join others need no number, so only the first one counts.
    #[test]
    fn only_a_new_epoch_takes_a_number_of_the_store() {
        let site = Site::new();
        let counted = || Header::decode(&site.raw(Header::KEY).unwrap()).unwrap().fence;
        let before = counted();
        let first = site.acquire(Mode::Shared, TTL, "");
        let (second, update) = (site.acquire(Mode::Shared, TTL, ""), site.acquire(Mode::Update, TTL, ""));
        assert_eq!(counted(), before + 1);
        assert!(site.release(&first) && site.release(&second));
        let (name, identity) = (lock(), identity(""));
        let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
        let (from, to, owner_record) = (Mode::Update, Mode::Exclusive, &update.owner_record);
        let conversion = Conversion { owner_record, from, to, intent: None };
        let Converted::Granted(writer) = site.store.convert(attempt, conversion, &mut Vec::new()).unwrap()
        else {
            panic!("refused")
        };
        assert_eq!((counted(), writer.fence.unwrap().0), (before + 2, before + 2));
        assert_eq!(site.second(), None, "an exclusive hold has one record");
        assert_eq!(site.before().unwrap().token, writer.owner_record.as_bytes());
        assert!(site.release(&writer));
    }
}

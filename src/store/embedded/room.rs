//! The file has a limit. What matters less is refused before it is full, so the rest stays for what matters most.
//!
//! | up to this part of the file | may write |
//! |---|---|
//! | 60 % | entries of histories |
//! | 75 % | new latches, and notes of those who wait for one |
//! | 90 % | grants of locks, and intents of those who wait for one |
//! | all of it | renewals, releases, changes of modes, count-downs of latches that exist, marks of leases, records of breaks |
//!
//! A change that finds too little room deletes expired records in transactions of their own, and tries once more. If it did
//! both in one transaction, a full file would undo the deletions too, and stay full for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::record::Header;
use super::sweep::sweep;
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::runtime::sync::real::TimedMutex;
use crate::runtime::time::{Deadline, Moment};
use crate::store::embedded::lmdb::{Environment, Fault, TxnEnd, Writer, is_disk_full, is_full};

/// Number of records that the first transaction checks which only deletes. Each page that it changes needs a free one.
const CHECKED_FIRST: usize = 16;
/// Number of records that one transaction checks at most. It takes a tenth of a millisecond. Each of them that is deleted may take
/// pages.
const CHECKED_AT_ONCE: usize = 200;
/// Longest time that one call spends on deleting.
const DELETE_FOR: Duration = Duration::from_secs(2);
/// If nothing more can be deleted, nobody of this process looks again before this time.
const PAUSE: Duration = Duration::from_secs(1);
/// So many percent more than needed are freed, so that the next call does not delete too.
const FURTHER: u64 = 2;

/// What a change is for. It says how full the file may be after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    History,
    Latch,
    Grant,
    Held,
}

/// Why a change was not made.
#[derive(Debug)]
pub(super) enum ChangeError {
    /// The file failed.
    Fault(Fault),
    /// The store refuses the change.
    Refused(Error),
}

impl From<Fault> for ChangeError {
    fn from(fault: Fault) -> ChangeError {
        ChangeError::Fault(fault)
    }
}

impl From<Error> for ChangeError {
    fn from(error: Error) -> ChangeError {
        ChangeError::Refused(error)
    }
}

/// Result of a part of a change.
pub(super) type ChangeResult<T> = Result<T, ChangeError>;

/// What this store object has found about its file.
#[derive(Debug, Default)]
pub(super) struct RoomState {
    /// Until then nothing can be deleted.
    pause: TimedMutex<Option<Deadline>>,
    told: [AtomicBool; 4],
}

impl Room {
    fn percent_max(self) -> u64 {
        match self {
            Room::History => 60,
            Room::Latch => 75,
            Room::Grant => 90,
            Room::Held => 100,
        }
    }

    fn refused(self) -> &'static str {
        match self {
            Room::History => "entries of histories",
            Room::Latch => "new latches",
            Room::Grant | Room::Held => "grants of locks",
        }
    }
}

impl RoomState {
    /// Runs `change` as one transaction, if the file has room for it. It may run twice.
    pub(super) fn write<T>(
        &self,
        environment: &Environment,
        store: &str,
        room: Room,
        by: Deadline,
        mut change: impl FnMut(&mut Writer<'_>) -> ChangeResult<TxnEnd<T>>,
    ) -> Result<T> {
        let once = || environment.write(by, |writer| within(room, change(writer), writer));
        self.write_or_make_room(environment, store, room, by, once)
    }

    /// Like [`write`](RoomState::write), but several threads may make their changes in one transaction. `change` may run up to
    /// four times: with others and alone, and both again when there is room.
    pub(super) fn write_in_group<T: Send + 'static>(
        &self,
        environment: &Environment,
        store: &str,
        room: Room,
        by: Deadline,
        change: impl Fn(&mut Writer<'_>) -> ChangeResult<TxnEnd<T>> + Send + Sync + 'static,
    ) -> Result<T> {
        let change = Arc::new(change);
        let once = || {
            let change = Arc::clone(&change);
            environment.write_in_group(by, move |writer| within(room, change(writer), writer))
        };
        self.write_or_make_room(environment, store, room, by, once)
    }

    /// Runs `once`, and once more after expired records were deleted if it returns `None`.
    fn write_or_make_room<T>(
        &self,
        environment: &Environment,
        store: &str,
        room: Room,
        by: Deadline,
        mut once: impl FnMut() -> Result<Option<Result<T>>>,
    ) -> Result<T> {
        match once() {
            Ok(Some(answer)) => return answer,
            Ok(None) => {}
            Err(error) if is_full(&error) => {}
            Err(error) => return Err(error),
        }
        self.delete_expired(environment, room, by);
        match once()? {
            Some(answer) => answer,
            None => Err(self.no_room(environment, store, room)),
        }
    }

    /// Deletes expired records until there is some room, or none is left.
    fn delete_expired(&self, environment: &Environment, room: Room, by: Deadline) {
        let by = by.sooner(Deadline::after(DELETE_FOR));
        // One thread at a time. The others wait for what it frees.
        let Some(mut pause) = self.pause.try_lock_for(by.remaining()) else { return };
        if pause.is_some_and(|pause: Deadline| !pause.passed()) {
            return;
        }
        let (mut at_once, mut rounds) = (CHECKED_FIRST, 0);
        while !by.passed() {
            let deleted = environment.write(by, |writer| {
                // Readers of the header report that it cannot be decoded.
                let Some(mut header) = writer.get(Header::KEY)?.and_then(Header::decode) else {
                    return Ok(TxnEnd::Abandon(None));
                };
                let is_round = sweep(writer, &mut header.swept, Moment::now(), at_once)?;
                writer.put(Header::KEY, &header.encode())?;
                Ok(TxnEnd::Commit(Some((is_round, writer.percent()?))))
            });
            match deleted {
                Ok(None) => return,
                Ok(Some((_, percent))) if percent + FURTHER <= room.percent_max() => return,
                Ok(Some((is_round, _))) => {
                    rounds += u32::from(is_round);
                    at_once = (2 * at_once).min(CHECKED_AT_ONCE);
                }
                Err(error) if has_no_room(&error) && at_once > 1 => at_once = (at_once / 4).max(1),
                Err(error) => {
                    log::debug!("{}", error.chain());
                    return;
                }
            }
            // The first round may have begun behind records that have expired.
            if rounds == 2 {
                break;
            }
        }
        *pause = Some(Deadline::after(PAUSE));
    }

    fn no_room(&self, environment: &Environment, store: &str, room: Room) -> Error {
        let what = format!(
            "its file is too full: above {} % of {}, {} are refused, so that locks that are held can be renewed and \
             released",
            room.percent_max(),
            size(environment.limit()),
            room.refused()
        );
        if !self.told[room as usize].swap(true, Ordering::Relaxed) {
            log::warn!("{store}: {what}");
        }
        Error::RetriesExhausted { store: store.to_owned(), what, source: None }
    }
}

fn has_no_room(error: &Error) -> bool {
    is_full(error) || is_disk_full(error)
}

/// Returns how the transaction ends after a change. `None` if the file has too little room for it.
fn within<T>(
    room: Room,
    end: ChangeResult<TxnEnd<T>>,
    writer: &Writer<'_>,
) -> Result<TxnEnd<Option<Result<T>>>, Fault> {
    if room != Room::Held && matches!(end, Ok(TxnEnd::Commit(_))) {
        writer.keep_reserve()?;
    }
    Ok(match end {
        Ok(TxnEnd::Commit(_)) if writer.percent()? > room.percent_max() => TxnEnd::Abandon(None),
        Ok(TxnEnd::Commit(answer)) => TxnEnd::Commit(Some(Ok(answer))),
        Ok(TxnEnd::Abandon(answer)) => TxnEnd::Abandon(Some(Ok(answer))),
        Err(ChangeError::Refused(error)) => TxnEnd::Abandon(Some(Err(error))),
        Err(ChangeError::Fault(fault)) => return Err(fault),
    })
}

/// Reports how full the file is.
pub(super) fn diagnose(environment: &Environment, by: Deadline) -> Result<Diagnostic> {
    let percent = environment.read(by, |reader| reader.percent())?;
    let seen = format!("{percent} % of {} used", size(environment.limit()));
    let refused: Vec<_> = [Room::History, Room::Latch, Room::Grant]
        .into_iter()
        .filter(|room| percent >= room.percent_max())
        .map(Room::refused)
        .collect();
    if refused.is_empty() {
        return Ok(Diagnostic::ok("room", seen));
    }
    let seen = format!("{seen}, so {} are refused", refused.join(" and "));
    Ok(Diagnostic::warn("room", seen, "keep histories for a shorter time, or use several directories"))
}

fn size(bytes: usize) -> String {
    if bytes < 1 << 30 { format!("{} MiB", bytes >> 20) } else { format!("{} GiB", bytes >> 30) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::names::history_entry::{HistoryEntry, HistoryKind};
    use crate::names::holder::Identity;
    use crate::names::latch_name::LatchName;
    use crate::names::lock_name::{Level, LockName, NamePolicy};
    use crate::names::owner::OwnerToken;
    use crate::runtime::random;
    use crate::store::HistoryOf;
    use crate::store::embedded::EmbeddedStore;
    use crate::store::embedded::record::Record;
    use crate::store::{
        Acquired, Attempt, Conversion, Converted, Grant, HISTORY_MAX, HistoryStore, INTENT_MAX, Intent,
        IntentId, LatchStore, LockStore, Mode, ModeStore, ModeTerms, NewLatch, Released, Step,
    };
    use crate::testing::patience::LONG;

    const TTL: Duration = Duration::from_secs(3600);
    const SMALL: usize = 1 << 20;
    /// More than fits into a small file.
    const MANY: usize = 100_000;

    fn soon() -> Deadline {
        Deadline::after(LONG)
    }

    fn small() -> (tempfile::TempDir, EmbeddedStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open_small(dir.path(), SMALL).unwrap();
        (dir, store)
    }

    fn lock(id: &str) -> LockName {
        LockName::new(Level::Xdc, "tests", None, id, NamePolicy::Strict).unwrap()
    }

    fn acquire(store: &EmbeddedStore, id: &str) -> Result<Grant> {
        let (name, identity) = (lock(id), Identity::this_process("").unwrap());
        let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
        match store.acquire(attempt, &mut Vec::new())? {
            Acquired::Granted(grant) => Ok(grant),
            Acquired::Held(holder) => panic!("held by {holder}"),
        }
    }

    fn append(store: &EmbeddedStore, id: &str) -> Result<()> {
        let entry = HistoryEntry::now(HistoryKind::Acquired, &Identity::this_process("").unwrap());
        store.append(HistoryOf::Lock(&lock(id)), &entry, TTL, soon())
    }

    fn latch(id: &str) -> LatchName {
        LatchName::new("tests", "dc1", id, NamePolicy::Strict).unwrap()
    }

    fn create(store: &EmbeddedStore, id: &str) -> Result<bool> {
        store.create_latch(&NewLatch { name: &latch(id), count: 2, roster: &[], ttl: TTL, by: soon() })
    }

    fn percent(store: &EmbeddedStore) -> u64 {
        store.environment.read(soon(), |reader| reader.percent()).unwrap()
    }

    /// Does this until it is refused, and returns how often it was done.
    fn until_refused(mut run: impl FnMut(usize) -> Result<()>) -> usize {
        for number in 0..MANY {
            if let Err(error) = run(number) {
                assert_eq!(error.code(), Code::RetriesExhausted, "{}", error.chain());
                return number;
            }
        }
        panic!("it was never refused");
    }

    /// Versions that refused nothing filled the file to its end. A grant that also swept could not free it.
    #[test]
    fn a_file_that_is_full_of_what_has_expired_is_used_again() {
        let (_dir, store) = small();
        let record = Record {
            owner: OwnerToken::draw().unwrap(),
            fence: crate::Fence(1),
            ends: Moment::from_nanos(1),
            since_ms: 0,
            ttl: TTL,
            identity: Identity::this_process("").unwrap(),
            mark: None,
            base: None,
        };
        // The last transaction has found no free page.
        while store.environment.size() <= SMALL {
            let put = |writer: &mut Writer<'_>| {
                let id = format!("{}", (random::fraction() * 1e9) as u64);
                writer.put(lock(&id).key().as_bytes(), &record.encode())?;
                Ok(TxnEnd::Commit(()))
            };
            store.environment.write(soon(), put).unwrap();
        }
        assert!(percent(&store) > 90, "{} %", percent(&store));
        let held = acquire(&store, "a").unwrap();
        assert!(create(&store, "a").unwrap());
        append(&store, "a").unwrap();
        assert_eq!(store.release(&lock("a"), &held.owner_record, soon()).unwrap(), Released::Freed);
        assert!(percent(&store) <= 60, "{} %", percent(&store));
        let size = store.environment.size();
        for _ in 0..100 {
            let held = acquire(&store, "b").unwrap();
            assert_eq!(store.release(&lock("b"), &held.owner_record, soon()).unwrap(), Released::Freed);
        }
        assert_eq!(store.environment.size(), size, "the file grows on");
    }

    #[test]
    fn what_matters_less_is_refused_first_and_what_is_held_stays_in_use() {
        let (_dir, store) = small();
        let held = acquire(&store, "held").unwrap();
        assert!(create(&store, "open").unwrap());
        let entries = until_refused(|number| append(&store, &format!("history-{}", number / 200)));
        let after_history = percent(&store);
        let latches = until_refused(|number| create(&store, &format!("latch-{number}")).map(|_| ()));
        let after_latches = percent(&store);
        let mut grants = Vec::new();
        let locks = until_refused(|number| {
            grants.push(acquire(&store, &format!("lock-{number}"))?);
            Ok(())
        });
        let at = (after_history, after_latches, percent(&store));
        assert!(entries > 100 && latches > 100 && locks > 100, "{entries}, {latches}, {locks}");
        assert_eq!((at.0 / 10, at.1 / 5, at.2 / 5), (6, 15, 18), "{at:?}");
        let found = store.diagnose(soon()).unwrap();
        let room = found.iter().find(|found| found.topic == "room").unwrap();
        assert!(room.seen.contains("of 1 MiB") && room.seen.contains("histories"), "{room}");
        // All that is held can be renewed, counted down and released.
        for (number, grant) in grants.iter().enumerate() {
            let name = lock(&format!("lock-{number}"));
            assert!(store.renew(&name, &grant.owner_record, 2 * TTL, soon()).unwrap().is_some());
        }
        let broken = HistoryEntry::now(HistoryKind::Broken, &Identity::this_process("").unwrap());
        store.append(HistoryOf::Lock(&lock("held")), &broken, TTL, soon()).unwrap();
        let step = Step { name: &latch("open"), add: -1, participant: None, ttl: TTL, by: soon() };
        store.step(&step).unwrap();
        assert!(!create(&store, "open").unwrap(), "it exists, so nothing is written");
        for (number, grant) in grants.iter().enumerate() {
            let name = lock(&format!("lock-{number}"));
            assert_eq!(store.release(&name, &grant.owner_record, soon()).unwrap(), Released::Freed);
        }
        assert_eq!(store.release(&lock("held"), &held.owner_record, soon()).unwrap(), Released::Freed);
        acquire(&store, "another").unwrap();
        assert_eq!(append(&store, "another").unwrap_err().code(), Code::RetriesExhausted);
    }

    /// Readers of one lock are all in one record, which each change writes anew.
    #[test]
    fn holds_of_all_modes_stay_in_use_in_a_full_file() {
        let (_dir, store) = small();
        let identity = Identity::this_process("").unwrap();
        let hold = |id: &str, mode| {
            let (name, by) = (lock(id), soon());
            let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by };
            store.acquire_mode(attempt, ModeTerms::new(mode), &mut Vec::new())
        };
        let granted = |answer: Result<Acquired>| match answer.unwrap() {
            Acquired::Granted(grant) => grant.owner_record,
            Acquired::Held(holder) => panic!("held by {holder}"),
        };
        let name = lock("held");
        let readers: Vec<_> = (0..20).map(|_| granted(hold("held", Mode::Shared))).collect();
        let mut updater = granted(hold("held", Mode::Update));
        until_refused(|number| acquire(&store, &format!("lock-{number}")).map(|_| ()));
        until_refused(|number| hold(&format!("reader-{number}"), Mode::Shared).map(|_| ()));
        until_refused(|number| {
            let intent = Intent { id: IntentId(number as u64), identity: &identity, lasts: INTENT_MAX };
            store.announce(&lock(&format!("intent-{number}")), intent, soon())
        });
        for reader in &readers {
            assert!(store.renew(&name, reader, 2 * TTL, soon()).unwrap().is_some());
        }
        for reader in &readers {
            assert_eq!(store.release(&name, reader, soon()).unwrap(), Released::Freed);
        }
        for (from, to) in [(Mode::Update, Mode::Exclusive), (Mode::Exclusive, Mode::Shared)] {
            let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
            let conversion = Conversion { owner_record: &updater, from, to, intent: None };
            match store.convert(attempt, conversion, &mut Vec::new()).unwrap() {
                Converted::Granted(grant) => updater = grant.owner_record,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(store.release(&name, &updater, soon()).unwrap(), Released::Freed);
        assert!(store.holds(&name, soon()).unwrap().is_empty());
    }

    #[test]
    fn a_lock_has_at_most_so_many_entries() {
        let (_dir, store) = small();
        for _ in 0..HISTORY_MAX + 20 {
            append(&store, "a").unwrap();
        }
        append(&store, "b").unwrap();
        let count = |writer: &mut Writer<'_>| Ok(TxnEnd::Abandon(writer.count(b"LATCH#\0\0", MANY)?));
        assert_eq!(store.environment.write(soon(), count).unwrap(), HISTORY_MAX + 1);
        assert_eq!(store.entries(HistoryOf::Lock(&lock("a")), 0, MANY, soon()).unwrap().len(), HISTORY_MAX);
    }
}

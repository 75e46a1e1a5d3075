//! The embedded store: one file with the records of locks, and one transaction for each change.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::data_dir::DataDir;
use super::latch_codec::{BEHIND_LATCHES, is_key};
use super::liveness::{DeathProof, LivenessFiles, LivenessId, LivenessRef, leftovers};
use super::record::{DeadHolder, Header, Record};
use super::records::StoreRecords;
use super::room::{self, ChangeResult, Room, RoomState};
use super::unit::is_private_to_unit;
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::holder::Holder;
use crate::names::lock_name::{KEY_BYTES_MAX, LockName};
use crate::names::mode::Mode;
use crate::names::owner::{OwnerRecord, OwnerToken};
use crate::names::promise::{Promise, PromiseTopic, Verdict, of_any_store, suite};
use crate::names::text::quoted;
use crate::runtime::time::{self, Deadline, Moment};
use crate::store::embedded::lmdb::{Access, Environment, LIMIT, Reader, Turn, TxnEnd, Writer};
use crate::store::lock_holds::grant_of;
use crate::store::{
    Acquired, Attempt, HistoryStore, Inspection, IntentId, LatchStore, ListCursor, ListedLock, LivenessStore,
    LockPage, LockQuery, LockStore, ModeStore, Released, SemaphoreStore,
};

/// Maximum number of tries to open a generation that others delete.
const OPEN_TRIES: u32 = 20;
/// Maximum number of tries of a grant that finds all reserved fences used up.
const FENCE_TRIES: u32 = 3;
/// Number of records that one read transaction searches for the names of liveness files. It takes about a millisecond.
pub(super) const SEARCHED_AT_ONCE: usize = 1000;

/// A [`LockStore`] and [`LatchStore`] for the processes of one machine. URI: `embedded:`, `embedded:/path` or
/// `embedded:/path?group=on`.
///
/// * **Directory**: `embedded:` uses the directory `/var/tmp/dlm-<uid>` of the effective user. No environment
///   variable changes that, so login shells, cron jobs and units of one user exclude each other. If this directory
///   cannot be used, opening fails. There is no other default.
/// * **Private `/var/tmp`**: processes with a private `/var/tmp` have a separate default store. A unit with
///   `PrivateTmp=` is refused. Containers and `pam_namespace` are not noticed: give them an `embedded:/path` that
///   all processes can see.
/// * **Cleaning**: systemd-tmpfiles deletes files in `/var/tmp` that were not used for 30 days, but no files with
///   the sticky bit. Every file of a store has it. `tmpreaper` and `tmpwatch` ignore that bit: exclude
///   `/var/tmp/dlm-*` from them. `RemoveIPC=` and a logout do not touch the store. It stays until somebody deletes
///   it.
/// * **Speed**: microseconds per operation. On ext4 and tmpfs, the file of one user is changed through the memory map. Nothing is synced to disk. There is one writer at a time on the
///   machine. Threads of one process that write at the same time share its transactions, so many of them are faster than
///   one.
/// * **Crashes**: a process may be killed at any moment. Its locks become free when their leases expire, or at once if
///   they [die with the process](crate::AcquireOptions::dies_with_process). A restart of the machine ends every lease.
/// * **Fences** come from one counter for all locks of the store, so the fences of each lock rise. After a restart
///   of the machine they continue to rise if the directory is on a disk, as `/var/tmp` is on most machines. If it
///   is in memory, they fall if the wall clock has gone back.
/// * **Waiting**: a call that changes something waits for other writers, at most until its deadline, even if a
///   writer was stopped in the middle. If another thread of the process has begun to make its change and stands still, it
///   waits a tenth of a second longer and fails with [`Code::InDoubt`](crate::Code::InDoubt). Reads do not wait for writers. A process that is stopped in the tenth of a
///   microsecond in which it registers as a reader, or in which it ends a change, blocks other readers until it continues. A process that is
///   stopped while it reads keeps old pages from reuse until it continues. The file may then grow to its limit of 1
///   GiB.
/// * **Users**: `embedded:` and `embedded:/path` serve one user. With `group=on` a directory serves the users of
///   its group: see [`open_group`](EmbeddedStore::open_group).
/// * **Containers** may share a directory if they share the process-id and time namespaces of one machine, also if they
///   read different boot ids. Two machines must never share a directory: network and FUSE file systems are refused.
/// * **Deleting** the directory while it is in use frees its locks. A process that has it open notices this with
///   its next change, which fails with [`Code::ConnectionError`](crate::Code::ConnectionError).
/// * **fork**: in a child every method fails with [`Code::Forked`](crate::Code::Forked). The child may open the
///   store again.
///
/// All methods may be called from many threads. If a process opens one directory several times, the stores share
/// their files. Dropping the last one closes the files.
#[derive(Debug)]
pub struct EmbeddedStore {
    pub(super) environment: Environment,
    pub(super) records: StoreRecords,
    dir: PathBuf,
    /// The directory of this boot's generation, in `dir`.
    generation: PathBuf,
    access: Access,
    liveness: LivenessFiles,
    room: RoomState,
}

impl EmbeddedStore {
    /// Opens the store in the directory `path`. Creates the directory (mode 0700) if it is missing. Blocks at most
    /// about half a minute while other threads and processes open it.
    ///
    /// # Errors
    /// * [`Code::ConnectionError`](crate::Code::ConnectionError): the directory or its files cannot be used. There
    ///   is no permission or no space, or the directory belongs to another user, is writable by others, or is on a
    ///   network file system.
    /// * [`Code::InternalError`](crate::Code::InternalError): the files are damaged. Not every damage is noticed.
    pub fn open(path: &Path) -> Result<EmbeddedStore> {
        EmbeddedStore::open_for(path, Access::Owner, LIMIT)
    }

    /// Opens the store in the directory `path` for all users of a group, like `embedded:/path?group=on`.
    ///
    /// **Only for users who trust each other.** A member of the group can truncate the file that the processes of
    /// other members have mapped. The system then kills those processes with SIGBUS. A member can also free the
    /// locks of others.
    ///
    /// If the directory is missing, it is created with mode 2770, independent of the umask. Its parent must exist.
    /// Its group is the group of the creating process, or of the parent if the parent has the set-group-ID bit. To
    /// choose the group, create the directory first: `install -d -m 2770 -g locks /srv/locks`. All processes must
    /// open it with `group=on`.
    ///
    /// # Errors
    /// As for [`open`](EmbeddedStore::open). [`Code::ConnectionError`](crate::Code::ConnectionError) also if the
    /// directory belongs to one user only (its group has no write permission, or the set-group-ID bit is missing),
    /// if all users may write to it, or if this user is not in its group.
    pub fn open_group(path: &Path) -> Result<EmbeddedStore> {
        EmbeddedStore::open_for(path, Access::Group, LIMIT)
    }

    /// Opens a store whose file is small. All users of it in all processes must do so.
    #[cfg(test)]
    pub(super) fn open_small(path: &Path, limit: usize) -> Result<EmbeddedStore> {
        EmbeddedStore::open_for(path, Access::Owner, limit)
    }

    fn open_for(path: &Path, access: Access, limit: usize) -> Result<EmbeddedStore> {
        let data_dir = DataDir::at(path, access, limit)?;
        let mut turn = Turn::take(&data_dir.store)?;
        let mut tries = 1;
        let (generation, environment) = loop {
            let generation = data_dir.generation(&turn)?;
            match turn.open(&data_dir.store, &generation, access, data_dir.limit)? {
                Some(environment) => break (generation, environment),
                // A process with another boot id had the proof that nobody used it.
                None if tries < OPEN_TRIES => tries += 1,
                None => {
                    let what = "other processes delete its files while they are opened".into();
                    return Err(Error::Connection { store: data_dir.store, what, source: None });
                }
            }
        };
        drop(turn);
        let store = EmbeddedStore::new(data_dir, environment, generation);
        store.check()?;
        Ok(store)
    }

    /// Returns the held lock whose lease ends last in the store in `data_dir`, and its holder. Creates no files,
    /// and works like any other reader.
    pub(super) fn last_to_end(data_dir: DataDir) -> Result<Option<(String, Holder)>> {
        let Some(generation) = data_dir.present()? else { return Ok(None) };
        let mut turn = Turn::take(&data_dir.store)?;
        let environment = turn.open(&data_dir.store, &generation, data_dir.access, data_dir.limit)?;
        let Some(environment) = environment else { return Ok(None) };
        drop(turn);
        let store = EmbeddedStore::new(data_dir, environment, generation);
        store.environment.read(Deadline::after(Duration::from_secs(1)), |reader| {
            let now = Moment::now();
            let mut last: Option<(String, Record)> = None;
            let mut key = Header::KEY.to_vec();
            while let Some((next, value)) = reader.after(&key)? {
                key = next.to_vec();
                if is_key(next) {
                    continue;
                }
                let lock = quoted(&String::from_utf8_lossy(next));
                let Some(record) = Record::decode(value) else {
                    return Ok(Err(store.records.unreadable(format!("lock {lock}"))));
                };
                if record.is_live(now) && last.as_ref().is_none_or(|(_, last)| last.ends < record.ends) {
                    last = Some((lock, record));
                }
            }
            Ok(Ok(last.map(|(lock, record)| (lock, record.holder()))))
        })?
    }

    fn new(data_dir: DataDir, environment: Environment, generation: PathBuf) -> EmbeddedStore {
        let DataDir { dir, store, access, limit: _ } = data_dir;
        EmbeddedStore {
            environment,
            records: StoreRecords { store: store.into() },
            dir,
            generation,
            access,
            liveness: LivenessFiles::default(),
            room: RoomState::default(),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let header = self.environment.read(Deadline::after(Duration::from_secs(1)), |reader| {
            Ok(self.records.header(reader.get(Header::KEY)?))
        })??;
        match self.environment.engine() {
            // Others would write it in the other way.
            Some(engine) if engine != header.engine => Err(self.records.unreadable("the header".into())),
            _ => Ok(()),
        }
    }

    /// Reports which processes exclude each other through this store.
    fn reach(&self) -> Diagnostic {
        let id = |id: fn(&fs::Metadata) -> u32| {
            fs::metadata(&self.dir).map_or_else(|_| "?".to_owned(), |found| id(&found).to_string())
        };
        let users = match self.access {
            Access::Owner => format!("user {}", rustix::process::geteuid().as_raw()),
            Access::Group => format!("the users in group {}", id(MetadataExt::gid)),
        };
        let seen = format!("the processes of {users} on this machine that use {}", self.records.store);
        if is_private_to_unit(&self.dir) {
            let seen = format!("{seen}, within the unit of this process (PrivateTmp=)");
            return Diagnostic::warn("reach", seen, "use a directory outside of /tmp and /var/tmp");
        }
        Diagnostic::ok("reach", seen)
    }

    /// Returns the record of `name` while its lease lasts.
    fn live(&self, name: &LockName, by: Deadline) -> Result<Option<Record>> {
        let look = |reader: &Reader<'_>| Ok(self.records.record(name, reader.get(name.key().as_bytes())?));
        let record = self.environment.read(by, look)??;
        Ok(record.filter(|record| record.is_live(Moment::now())))
    }

    /// Returns the record of `name` while its lease lasts and its process may live.
    pub(super) fn held(&self, name: &LockName, by: Deadline) -> Result<Option<Record>> {
        let record = self.live(name, by)?;
        Ok(record.filter(|record| self.death_of(record).is_none()))
    }

    /// Returns the proof that the process of this record has died.
    pub(super) fn death_of(&self, record: &Record) -> Option<DeathProof> {
        record.mark.as_ref()?.prove_death(&self.generation)
    }

    /// See [`LockStore::acquire`], [`LivenessStore::acquire_until_death`] and [`ModeStore::acquire_mode`]. Reads only the
    /// record of the lock, which says whether anybody holds it in any mode.
    pub(super) fn acquire_lock(
        &self,
        attempt: Attempt<'_>,
        until_death: bool,
        fences: u64,
        intent: Option<IntentId>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let name = attempt.name;
        let dead = match self.live(name, attempt.by)? {
            None => None,
            Some(record) => match self.death_of(&record) {
                None => return Ok(Acquired::Held(record.holder())),
                Some(proof) => Some((record, proof)),
            },
        };
        let mark = if until_death { Some(self.mark(attempt.by)?) } else { None };
        let owner = OwnerToken::draw()?;
        let (records, ttl, identity) = (self.records.clone(), attempt.ttl, attempt.identity.clone());
        let dead_record = dead.as_ref().map(|(record, _)| record.clone());
        let grant =
            move |writer: &mut Writer<'_>, name: &LockName, found: Option<Record>| -> ChangeResult<_> {
                // Read the clock here, after the wait for other writers, which must not shorten the lease. Nothing has
                // taken effect yet.
                let since = Moment::now();
                // The proof is about the record that was read before. Another one is that of another holder.
                let is_dead = |record: &Record| dead_record.as_ref() == Some(record);
                if let Some(record) = found.filter(|record| record.is_live(since) && !is_dead(record)) {
                    return Ok(TxnEnd::Abandon(Some(Acquired::Held(record.holder()))));
                }
                let Some(last) = records.next_fence(writer, fences, since)? else {
                    return Ok(TxnEnd::Abandon(None));
                };
                let record = Record {
                    owner,
                    fence: last,
                    ends: since.after(ttl),
                    since_ms: time::wall_ms(),
                    ttl,
                    identity: identity.clone(),
                    mark,
                    base: None,
                };
                writer.put(name.key().as_bytes(), &record.encode())?;
                if let Some(intent) = intent {
                    records.end_intent(writer, name, Some(record), intent)?;
                }
                let grant = grant_of(&owner, Mode::Exclusive, last.0, fences, since);
                Ok(TxnEnd::Commit(Some(Acquired::Granted(grant))))
            };
        let grant = Arc::new(grant);
        let answer = self.with_fences(fences, attempt.by, || {
            self.change_in_group(Room::Grant, name, attempt.by, Arc::clone(&grant))
        });
        if answer.as_ref().is_err_and(Error::is_in_doubt) {
            doubtful.push(OwnerRecord::from_bytes(owner.as_bytes().as_slice()));
        }
        if let (Some(dead), Ok(Acquired::Granted(_))) = (dead, &answer) {
            self.bury(name, dead, attempt.by);
        }
        answer
    }

    /// Repeats a change until there were enough reserved fences for it.
    pub(super) fn with_fences<T>(
        &self,
        fences: u64,
        by: Deadline,
        mut change: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        for _ in 1..FENCE_TRIES {
            if let Some(answer) = change()? {
                return Ok(answer);
            }
            self.reserve_further_fences(fences, by)?;
        }
        change()?.ok_or_else(|| {
            let what = "other processes use up all fences that are reserved".to_owned();
            Error::RetriesExhausted { store: self.records.store.to_string(), what, source: None }
        })
    }

    /// Deletes the liveness file of a process that has died, after one of its locks was taken over.
    pub(super) fn bury(&self, name: &LockName, (record, proof): DeadHolder, by: Deadline) {
        log::info!("lock {name}: the process of its holder, {}, has died", record.identity);
        // Only a short search: a process that has died may have held many locks.
        self.delete_if_unnamed(vec![proof], SEARCHED_AT_ONCE, by);
    }

    /// Returns the mark of a lease that dies with this process.
    fn mark(&self, by: Deadline) -> Result<LivenessRef> {
        let marked = self.liveness.mark(&self.generation, self.access).map_err(|error| {
            let what = "no liveness file can be created in its directory: check permissions, free space and \
                        descriptors";
            Error::RetriesExhausted {
                store: self.records.store.to_string(),
                what: what.into(),
                source: Some(error.into()),
            }
        })?;
        if marked.is_new {
            self.delete_if_unnamed(leftovers(&self.generation), usize::MAX, by);
        }
        Ok(marked.mark)
    }

    /// Deletes the liveness files that no record names. Their processes have died, so no record will name them. Searches
    /// at most `most` records, and deletes none if there are more.
    fn delete_if_unnamed(&self, proofs: Vec<DeathProof>, most: usize, by: Deadline) {
        if proofs.is_empty() {
            return;
        }
        match self.named_files(most, by) {
            Ok(Some(named)) => {
                proofs.into_iter().filter(|proof| !named.contains(&proof.id())).for_each(DeathProof::delete);
            }
            Ok(None) => {}
            Err(error) => log::debug!("{}", error.chain()),
        }
    }

    /// Returns the liveness files that live records name; `None` if there are more than `most` records.
    fn named_files(&self, most: usize, by: Deadline) -> Result<Option<BTreeSet<LivenessId>>> {
        let (mut named, mut seen) = (BTreeSet::new(), 0);
        let mut from = Header::KEY.to_vec();
        loop {
            if seen >= most || by.passed() {
                return Ok(None);
            }
            let (found, next) = self.environment.read(by, |reader| {
                let (now, mut found, mut key) = (Moment::now(), Vec::new(), from.clone());
                for _ in 0..SEARCHED_AT_ONCE {
                    let Some((next, value)) = reader.after(&key)? else { return Ok((found, None)) };
                    key = next.to_vec();
                    let record = if is_key(next) { None } else { Record::decode(value) };
                    found.extend(record.filter(|record| record.is_live(now)).and_then(|record| record.mark));
                }
                Ok((found, Some(key)))
            })?;
            named.extend(found.into_iter().map(|mark: LivenessRef| mark.id));
            seen += SEARCHED_AT_ONCE;
            match next {
                Some(next) => from = next,
                None => return Ok(Some(named)),
            }
        }
    }

    /// Runs `change` on the record of `name` as one transaction. It may run twice, see [`write`](EmbeddedStore::write).
    pub(super) fn change<T>(
        &self,
        room: Room,
        name: &LockName,
        by: Deadline,
        mut change: impl FnMut(&mut Writer<'_>, Option<Record>) -> ChangeResult<TxnEnd<T>>,
    ) -> Result<T> {
        self.write(room, by, |writer| {
            let found = self.records.record(name, writer.get(name.key().as_bytes())?)?;
            change(writer, found)
        })
    }

    /// Like [`change`](EmbeddedStore::change), but several threads may make their changes in one transaction. For what many
    /// threads do at one time. `change` may run several times.
    pub(super) fn change_in_group<T, F>(
        &self,
        room: Room,
        name: &LockName,
        by: Deadline,
        change: Arc<F>,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&mut Writer<'_>, &LockName, Option<Record>) -> ChangeResult<TxnEnd<T>> + Send + Sync + 'static,
    {
        let (records, name) = (self.records.clone(), name.clone());
        let change = move |writer: &mut Writer<'_>| {
            let found = records.record(&name, writer.get(name.key().as_bytes())?)?;
            change(writer, &name, found)
        };
        self.write_in_group(room, by, change)
    }

    /// Runs `change` as one transaction, if the file has room for it. It may run twice.
    pub(super) fn write<T>(
        &self,
        room: Room,
        by: Deadline,
        change: impl FnMut(&mut Writer<'_>) -> ChangeResult<TxnEnd<T>>,
    ) -> Result<T> {
        self.room.write(&self.environment, &self.records.store, room, by, change)
    }

    /// Like [`write`](EmbeddedStore::write), but several threads may make their changes in one transaction.
    pub(super) fn write_in_group<T: Send + 'static>(
        &self,
        room: Room,
        by: Deadline,
        change: impl Fn(&mut Writer<'_>) -> ChangeResult<TxnEnd<T>> + Send + Sync + 'static,
    ) -> Result<T> {
        self.room.write_in_group(&self.environment, &self.records.store, room, by, change)
    }

    /// Reserves another range of fences, if the present one is used up. It is above all that was reserved before.
    fn reserve_further_fences(&self, fences: u64, by: Deadline) -> Result<()> {
        let (dir, store) = (self.dir.clone(), self.records.store.to_string());
        let data_dir = DataDir { dir, store, access: self.access, limit: self.environment.limit() };
        let (start, limit) = data_dir.reserve_further_fences(by)?;
        log::warn!("{}: its fences are used up, so others are reserved from {start} on", self.records.store);
        self.write(Room::Held, by, |writer| {
            let header = self.records.header(writer.get(Header::KEY)?)?;
            // Another process may have been faster.
            if header.limit.saturating_sub(header.fence) >= fences || header.limit > start {
                return Ok(TxnEnd::Abandon(()));
            }
            writer.put(Header::KEY, &Header { fence: start, limit, ..header }.encode())?;
            Ok(TxnEnd::Commit(()))
        })
    }
}

impl LockStore for EmbeddedStore {
    fn describe(&self) -> String {
        self.records.store.to_string()
    }

    fn promises(&self) -> Vec<Promise> {
        const TESTS: &str = "embedded_contract";
        let mut promises = of_any_store(TESTS);
        promises.extend([
            Promise::new(
                PromiseTopic::Exclusion,
                Verdict::Holds,
                "one transaction checks and writes; the kernel's clock ends leases",
                "tests/run -- torture_breaks_no_rule_on_the_embedded_store",
            ),
            Promise::new(
                PromiseTopic::Durability,
                Verdict::Holds,
                "there is no server; a restart of the machine ends every lease",
                "tests/run -- embedded_processes",
            ),
            Promise::new(
                PromiseTopic::Outcomes,
                Verdict::Holds,
                "there is no reply that could be lost",
                suite(TESTS, "stores"),
            ),
            Promise::new(
                PromiseTopic::DeadHolder,
                Verdict::Holds,
                "at once if its lease dies with it (dies_with_process, `dlm run`), otherwise at the end of the TTL",
                "tests/run -- embedded_liveness",
            ),
        ]);
        promises
    }

    fn initialize(&self, _by: Deadline) -> Result<()> {
        self.check()
    }

    /// A refused attempt only reads and needs no write lock. This matters if many processes wait.
    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.acquire_lock(attempt, false, 1, None, doubtful)
    }

    fn reserves_fences(&self) -> bool {
        true
    }

    fn acquire_with_fences(
        &self,
        attempt: Attempt<'_>,
        fences: u64,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        self.acquire_lock(attempt, false, fences, None, doubtful)
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        let (records, owner_record) = (self.records.clone(), owner_record.clone());
        let renew = move |writer: &mut Writer<'_>, name: &LockName, found: Option<Record>| {
            let now = Moment::now();
            if found.as_ref().is_some_and(|record| record.is_live_base(now)) {
                return records.renew_beside(writer, name, found, &owner_record, ttl);
            }
            let Some(mut record) =
                found.filter(|record| record.is_live(now) && record.is_owner(&owner_record))
            else {
                return Ok(TxnEnd::Abandon(None));
            };
            record.ends = record.ends.max(now.after(ttl));
            record.ttl = ttl;
            writer.put(name.key().as_bytes(), &record.encode())?;
            Ok(TxnEnd::Commit(Some(owner_record.clone())))
        };
        self.change_in_group(Room::Held, name, by, Arc::new(renew))
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        let (records, owner_record) = (self.records.clone(), owner_record.clone());
        let release = move |writer: &mut Writer<'_>, name: &LockName, found: Option<Record>| {
            let now = Moment::now();
            if found.as_ref().is_some_and(|record| record.is_live_base(now)) {
                return records.release_beside(writer, name, found, &owner_record);
            }
            let Some(record) = found else { return Ok(TxnEnd::Abandon(Released::NotOurs)) };
            let live = record.is_live(now);
            if live && !record.is_owner(&owner_record) {
                return Ok(TxnEnd::Abandon(Released::NotOurs));
            }
            writer.delete(name.key().as_bytes())?;
            Ok(TxnEnd::Commit(if live { Released::Freed } else { Released::NotOurs }))
        };
        self.change_in_group(Room::Held, name, by, Arc::new(release))
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        Ok(self.held(name, by)?.map(|record| record.holder()))
    }

    /// The fence of a free lock is not known, because a free lock has no record.
    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.inspect_records(name, by)
    }

    /// Free locks have no record. One read transaction for each page. The cursor is the last key that was read.
    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        let prefix = query.prefix_text().as_bytes();
        if let Some(cursor) = after
            .filter(|after| !after.as_bytes().starts_with(prefix) || after.as_bytes().len() > KEY_BYTES_MAX)
        {
            return Err(cursor.refused());
        }
        let (found, last) = self.environment.read(by, |reader| {
            let (now, mut found) = (Moment::now(), Vec::new());
            let mut key = after.map_or(Header::KEY, ListCursor::as_bytes).to_vec();
            // The first key that begins with the prefix may be the prefix itself.
            if after.is_none() && !prefix.is_empty() {
                if let Some(value) = reader.get(prefix)? {
                    found.push((prefix.to_vec(), Record::decode(value)));
                }
                key = prefix.to_vec();
            }
            for _ in 0..SEARCHED_AT_ONCE {
                if found.len() >= most.max(1) {
                    break;
                }
                let next = reader.after(&key)?.filter(|(next, _)| next.starts_with(prefix));
                let Some((next, value)) = next else { return Ok((found, None)) };
                if is_key(next) {
                    key = BEHIND_LATCHES.to_vec();
                    continue;
                }
                key = next.to_vec();
                let record = Record::decode(value);
                if record.as_ref().is_none_or(|record| record.is_live(now)) {
                    found.push((key.clone(), record));
                }
            }
            Ok((found, Some(key)))
        })?;
        let mut locks = Vec::with_capacity(found.len());
        for (key, record) in found {
            let key = String::from_utf8_lossy(&key).into_owned();
            let (Ok(name), Some(record)) = (LockName::from_key(&key), record) else {
                return Err(self.records.unreadable(format!("lock {}", quoted(&key))));
            };
            if record.is_live(Moment::now()) && self.death_of(&record).is_none() {
                let (holder, fence) = (Some(record.holder()), Some(record.fence));
                locks.push(ListedLock { holder, fence, ..ListedLock::new(name) });
            }
        }
        Ok(LockPage::new(locks, last.map(ListCursor::from_bytes)))
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        self.check()?;
        Ok(vec![
            self.reach(),
            Diagnostic::ok(
                "files",
                match self.access {
                    Access::Owner => "exist, belong to this user only, and can be read",
                    Access::Group => "exist, belong to this group only, and can be read",
                },
            ),
            room::diagnose(&self.environment, by)?,
            Diagnostic::ok("durability", "a restart ends all leases, so nothing has to be synced to disk"),
        ])
    }

    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        owner_record.as_bytes().try_into().ok().map(|token| OwnerToken::from_bytes(token).hash())
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        Some(self)
    }

    fn shared_directory(&self) -> Option<&Path> {
        Some(&self.generation)
    }

    fn note_poller(&self, until: Moment) {
        self.environment.note_poller(until);
    }

    fn may_have_pollers(&self) -> bool {
        self.environment.may_have_pollers()
    }

    fn modes(&self) -> Option<&dyn ModeStore> {
        Some(self)
    }

    fn semaphores(&self) -> Option<&dyn SemaphoreStore> {
        Some(self)
    }

    fn liveness(&self) -> Option<&dyn LivenessStore> {
        Some(self)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(self)
    }
}

impl LivenessStore for EmbeddedStore {
    fn acquire_until_death(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.acquire_lock(attempt, true, 1, None, doubtful)
    }

    fn outlive_process(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<bool> {
        self.change(Room::Held, name, by, |writer, found| {
            let now = Moment::now();
            if found.as_ref().is_some_and(|record| record.is_live_base(now)) {
                // No hold beside a base has a mark.
                return Ok(TxnEnd::Abandon(self.records.is_beside(writer, name, found, owner_record)?));
            }
            let ours = found.filter(|record| record.is_live(now));
            let Some(mut record) = ours.filter(|record| record.is_owner(owner_record)) else {
                return Ok(TxnEnd::Abandon(false));
            };
            if record.mark.take().is_none() {
                return Ok(TxnEnd::Abandon(true));
            }
            writer.put(name.key().as_bytes(), &record.encode())?;
            Ok(TxnEnd::Commit(true))
        })
    }

    fn liveness_fd(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        by: Deadline,
    ) -> Result<Option<OwnedFd>> {
        let record = self.live(name, by)?.filter(|record| record.is_owner(owner_record));
        let descriptor = record.and_then(|record| self.liveness.descriptor(&record.mark?));
        descriptor.transpose().map_err(|error| Error::Internal {
            what: format!("{}: no descriptor of the liveness file for lock {name}", self.records.store),
            source: Some(error.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::mem;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::names::holder::Identity;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::store::{Grant, ModeTerms};
    use crate::testing::fork::{alone, in_abandoned_child, in_forked_child};
    use crate::testing::patience::{LONG, until};

    const TTL: Duration = Duration::from_secs(24 * 3600);

    fn soon() -> Deadline {
        Deadline::after(LONG)
    }

    fn name() -> LockName {
        LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap()
    }

    /// Tries to acquire the lock, for a lease that dies with this process.
    fn attempt(store: &EmbeddedStore) -> Option<Grant> {
        let (name, identity) = (name(), Identity::this_process("").unwrap());
        let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
        match store.acquire_until_death(attempt, &mut Vec::new()).unwrap() {
            Acquired::Granted(grant) => Some(grant),
            Acquired::Held(_) => None,
        }
    }

    /// Lets a process acquire the lock and die.
    fn dead_holder(store: &Path) {
        assert!(in_forked_child(|| {
            let store = EmbeddedStore::open(store).unwrap();
            let held = attempt(&store).is_some();
            mem::forget(store);
            held
        }));
    }

    /// The dead holder may have been followed by one that has ended its lease, and that by one that lives.
    #[test]
    fn a_record_that_was_written_after_the_proof_is_not_taken_over() {
        if !alone() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        dead_holder(dir.path());
        let store = EmbeddedStore::open(dir.path()).unwrap();
        let found = store.live(&name(), soon()).unwrap().unwrap();
        let next = Record { owner: OwnerToken::draw().unwrap(), ..found.clone() };
        let is_proven = AtomicBool::new(false);
        // This test's own look may lock the file for a moment. Then an attempt finds no proof, and another one follows.
        let late_attempt = || loop {
            match attempt(&store) {
                None if !is_proven.load(Ordering::SeqCst) => {}
                answer => break answer,
            }
        };
        thread::scope(|scope| {
            let late = store.environment.write(soon(), |writer| {
                let late = scope.spawn(late_attempt);
                // It has the proof, and waits for this transaction.
                until("the file is locked", || found.mark.unwrap().prove_death(&store.generation).is_none());
                is_proven.store(true, Ordering::SeqCst);
                writer.put(name().key().as_bytes(), &next.encode())?;
                Ok(TxnEnd::Commit(late))
            });
            assert!(late.unwrap().join().unwrap().is_none(), "another holder's record was replaced");
        });
        assert_eq!(store.live(&name(), soon()).unwrap(), Some(next));
    }

    #[test]
    fn a_reader_too_gets_the_lock_of_a_dead_holder_at_once() {
        if !alone() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        dead_holder(dir.path());
        let store = EmbeddedStore::open(dir.path()).unwrap();
        let last = store.live(&name(), soon()).unwrap().unwrap().fence;
        assert_eq!(store.blocker(&name(), Mode::Shared, soon()).unwrap(), None);
        let (name, identity) = (name(), Identity::this_process("").unwrap());
        let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
        let acquired = store.acquire_mode(attempt, ModeTerms::new(Mode::Shared), &mut Vec::new()).unwrap();
        let Acquired::Granted(grant) = acquired else { panic!("held by a process that has died") };
        assert!(grant.epoch.unwrap().0 > last.0);
        assert!(store.outlive_process(&name, &grant.owner_record, soon()).unwrap(), "it has no mark");
        assert!(super::tests::attempt(&store).is_none(), "acquired beside a reader");
    }

    /// A range lasts for years, unless grants reserve many fences each.
    #[test]
    fn when_the_fences_of_a_boot_are_used_up_others_are_reserved_above_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path()).unwrap();
        let identity = Identity::this_process("").unwrap();
        let limit = 1_000_000
            + (fs::read_to_string(dir.path().join("fence-floor")).unwrap().trim().parse::<u64>().unwrap());
        fs::write(dir.path().join("fence-floor"), limit.to_string()).unwrap();
        let engine = store.environment.engine().unwrap();
        let put = |writer: &mut Writer<'_>| {
            let header = Header { engine, fence: limit - 40, limit, swept: Vec::new() };
            writer.put(Header::KEY, &header.encode())?;
            Ok(TxnEnd::Commit(()))
        };
        store.environment.write(soon(), put).unwrap();
        let grant = |id: String| {
            let name = LockName::new(Level::Xdc, "tests", None, &id, NamePolicy::Strict).unwrap();
            let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
            match store.acquire_with_fences(attempt, 16, &mut Vec::new()).unwrap() {
                Acquired::Granted(grant) => grant.fence.unwrap().0,
                Acquired::Held(holder) => panic!("held by {holder}"),
            }
        };
        let firsts: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|at| scope.spawn(move || (0..3).map(|n| grant(format!("{at}-{n}"))).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let mut sorted = firsts.clone();
        sorted.sort_unstable();
        assert!(
            sorted.windows(2).all(|pair| pair[1] - pair[0] >= 16),
            "one fence was given twice: {sorted:?}"
        );
        assert_eq!(sorted.iter().filter(|fence| **fence < limit).count(), 2, "{sorted:?} at {limit}");
        let floor: u64 = fs::read_to_string(dir.path().join("fence-floor")).unwrap().trim().parse().unwrap();
        assert!(sorted.iter().all(|fence| fence + 15 <= floor), "{sorted:?} above {floor}");
    }

    #[test]
    fn a_forked_child_keeps_others_waiting_while_it_lives_and_its_end_changes_nothing_for_its_parent() {
        if !alone() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (path, may_end) = (dir.path().join("store"), dir.path().join("may end"));
        // The holder dies, and its child lives.
        assert!(in_forked_child(|| {
            let store = EmbeddedStore::open(&path).unwrap();
            let held = attempt(&store).is_some();
            in_abandoned_child(|| until("the child may end", || may_end.exists()));
            mem::forget(store);
            held
        }));
        let store = EmbeddedStore::open(&path).unwrap();
        for _ in 0..20 {
            assert!(attempt(&store).is_none(), "taken over although a copy of the descriptor is open");
            thread::sleep(Duration::from_millis(5));
        }
        fs::write(&may_end, "").unwrap();
        let mut taken = None;
        until("the child's copy is closed", || {
            taken = attempt(&store);
            taken.is_some()
        });
        // A child drops its copy of the store, and ends.
        let mut store = Some(store);
        assert!(in_forked_child(|| {
            drop(store.take());
            let own = EmbeddedStore::open(&path).unwrap();
            attempt(&own).is_none()
        }));
        let other = EmbeddedStore::open(&path).unwrap();
        let files = fs::read_dir(&other.generation).unwrap().flatten();
        let files = files.filter(|file| file.file_name().to_str().unwrap().starts_with("alive-"));
        assert_eq!(files.count(), 1, "a child has deleted the file of its parent");
        assert!(attempt(&other).is_none(), "a child has unlocked the file of its parent");
        let store = store.unwrap();
        assert!(store.outlive_process(&name(), &taken.unwrap().owner_record, soon()).unwrap());
        drop(store);
        assert!(attempt(&other).is_none(), "the mark is still there");
    }
}

//! Locks and latches between the processes of one machine and user, in an LMDB file. Nothing to install or
//! start.
//!
//! One write transaction takes, renews or frees a lock, makes a latch or changes its count. Reads come from LMDB's
//! snapshots and wait for nobody. The record of a lock is deleted when it is freed, and all locks share
//! one fence counter, so a lock that nobody holds leaves nothing behind.

mod default_place;
mod latches;
mod place;
mod record;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{
    Acquired, Attempt, Fence, Finding, Grant, Holder, Inspection, LatchStore, LockName, LockStore,
    OwnerToken, Proof, Released,
};
use crate::error::{Error, Result, quoted};
use crate::ffi::lmdb::{Access, Change, Environment, Fault, Reader, Turn, Writer};
use crate::time::{self, Deadline, Moment};
use place::Place;
use record::{Ledger, Record};

/// Records looked at for the sweep with each grant and each new latch. More than one, so that the sweep
/// gains on locks that are taken once and never released, and on latches, which nobody deletes.
const SWEPT_AT_ONCE: usize = 2;

/// A [`LockStore`] and [`LatchStore`] for the processes of one machine. URI: `embedded:`, `embedded:/path` or
/// `embedded:/path?group=on`.
///
/// * **Place**: `embedded:` is the directory `/var/tmp/dlm-<uid>` of the effective user. No variable of the
///   environment changes that, so a login shell, cron and units of one user exclude each other. There is no
///   second place: where this one cannot be used, opening fails.
/// * **Private `/var/tmp`**: processes with a `/var/tmp` of their own have a default store of their own. A
///   unit with `PrivateTmp=` is refused. A container and `pam_namespace` are not noticed: give those an
///   `embedded:/path` that all can see.
/// * **Cleaning**: systemd-tmpfiles deletes files in `/var/tmp` that were not used for 30 days, but none with
///   the sticky bit, which every file of a store has. `tmpreaper` and `tmpwatch` do not respect that bit:
///   exclude `/var/tmp/dlm-*` from them. `RemoveIPC=` and a logout do not touch the store. It stays until
///   somebody deletes it.
/// * **Speed**: microseconds per operation; nothing is synced to disk. One writer at a time, machine-wide.
/// * **Crashes**: a process may be killed at any moment; its locks are free when their leases end. A
///   restart of the machine ends every lease.
/// * **Fences** come from one counter for all locks of the store, so each lock's rise. They do not go back
///   over a restart of the machine while the directory is on a disk, as `/var/tmp` is on most machines; where
///   it is in memory they go back over a restart if the wall clock does.
/// * **Waiting**: calls that change something wait until other writers are done, at most until their
///   deadline, also when a writer was stopped in the middle. Reads wait for nobody, with one exception: a process
///   stopped within the tenth of a microsecond in which it enters itself as reader blocks readers until
///   it goes on. One that is stopped while reading keeps old pages from being used again until then;
///   the file may grow to its limit of 1 GiB meanwhile.
/// * **Users**: `embedded:` and `embedded:/path` serve one user. With `group=on` a directory serves the users
///   of its group: see [`open_group`](EmbeddedStore::open_group).
/// * **Containers** may share a directory if they share the process-id and time namespaces of one
///   machine. Two machines must never share one: network and FUSE file systems are refused.
/// * **Deleting** the directory while it is in use frees its locks. Processes that have it open notice
///   with the next change they try, and get CONNECTION_ERROR.
/// * **fork**: a child gets FORKED from every method and may open the store anew.
///
/// All methods may be called from many threads. Stores that one process opens in one directory share
/// their files; the last one dropped closes them.
#[derive(Debug)]
pub struct EmbeddedStore {
    environment: Environment,
    store: String,
    dir: PathBuf,
    access: Access,
}

impl EmbeddedStore {
    /// The store in the directory `path`, which is made (mode 0700) if it is missing. Waits at most
    /// some ten seconds for other processes that open it.
    ///
    /// # Errors
    /// CONNECTION_ERROR when the directory or its files cannot be used: no permission, no space,
    /// another user's, writable by others, on a network file system. INTERNAL_ERROR when the files are
    /// damaged, as far as that can be told.
    pub fn open(path: &Path) -> Result<EmbeddedStore> {
        EmbeddedStore::open_for(path, Access::Owner)
    }

    /// The store in the directory `path` for all users of a group, as `embedded:/path?group=on` opens it.
    ///
    /// **Only for users who trust each other.** A member of the group can cut the file that the other
    /// members' processes have mapped, and the system then ends those processes with SIGBUS. It can also free
    /// their locks.
    ///
    /// The directory is made if it is missing, with mode 2770 whatever the umask is; its parent must be
    /// there. It gets the group of the process that makes it, or of the parent where that has the
    /// set-group-ID bit. To choose the group, make it first: `install -d -m 2770 -g locks /srv/locks`. All
    /// processes must open it with `group=on`.
    ///
    /// # Errors
    /// As [`open`](EmbeddedStore::open). CONNECTION_ERROR also when the directory is one user's (its group
    /// may not write it, or it lacks the set-group-ID bit), when all users may write it, and when this user
    /// is not in its group.
    pub fn open_group(path: &Path) -> Result<EmbeddedStore> {
        EmbeddedStore::open_for(path, Access::Group)
    }

    fn open_for(path: &Path, access: Access) -> Result<EmbeddedStore> {
        let place = Place::at(path, access)?;
        let mut turn = Turn::take(&place.store)?;
        let generation = place.generation(&turn)?;
        let environment = turn.open(&place.store, &generation, access)?;
        drop(turn);
        let store = EmbeddedStore { environment, store: place.store, dir: place.dir, access };
        store.check()?;
        Ok(store)
    }

    /// The directory of the default store of this user: `/var/tmp/dlm-<effective uid>`, which is made (mode
    /// 0700) if it is missing. No variable of the environment decides.
    ///
    /// # Errors
    /// CONNECTION_ERROR when that directory cannot be made or is not this user's alone, when
    /// `/var/tmp` is private to the unit of this process (`PrivateTmp=`), and while a process of an older
    /// version holds a lock in one of the places where that version kept the default store:
    /// `$XDG_RUNTIME_DIR/dlm`, `/run/user/<uid>/dlm`, `$TMPDIR/dlm-<uid>` and `/tmp/dlm-<uid>`. Its latches
    /// are not looked at, and a lock that it takes later is not noticed, so upgrade all processes.
    pub fn default_path() -> Result<PathBuf> {
        default_place::path()
    }

    /// The lock whose lease ends last in the store at `place`, if one lasts, and its holder. Makes nothing,
    /// and takes part as any reader does.
    fn last_to_end(place: &Place) -> Result<Option<(String, Holder)>> {
        let Some(generation) = place.present()? else { return Ok(None) };
        let mut turn = Turn::take(&place.store)?;
        let environment = turn.open(&place.store, &generation, place.access)?;
        drop(turn);
        let (store, dir) = (place.store.clone(), place.dir.clone());
        let store = EmbeddedStore { environment, store, dir, access: place.access };
        store.environment.read(Deadline::after(Duration::from_secs(1)), |reader| {
            let now = Moment::now();
            let mut last: Option<(String, Record)> = None;
            let mut key = Ledger::KEY.to_vec();
            while let Some((next, value)) = reader.after(&key)? {
                key = next.to_vec();
                if latches::is_key(next) {
                    continue;
                }
                let lock = quoted(&String::from_utf8_lossy(next));
                let Some(record) = Record::decode(value) else {
                    return Ok(Err(store.unreadable(format!("lock {lock}"))));
                };
                if record.is_live(now) && last.as_ref().is_none_or(|(_, last)| last.ends < record.ends) {
                    last = Some((lock, record));
                }
            }
            Ok(Ok(last.map(|(lock, record)| (lock, record.holder()))))
        })?
    }

    fn check(&self) -> Result<()> {
        self.environment.read(Deadline::after(Duration::from_secs(1)), |reader| {
            Ok(self.ledger(reader.get(Ledger::KEY)?).map(|_| ()))
        })?
    }

    fn ledger(&self, bytes: Option<&[u8]>) -> Result<Ledger> {
        bytes.and_then(Ledger::decode).ok_or_else(|| self.unreadable("the ledger".into()))
    }

    /// What `bytes`, the record of `name`, say. Never "free" for what cannot be read.
    fn record(&self, name: &LockName, bytes: Option<&[u8]>) -> Result<Option<Record>> {
        bytes
            .map(|bytes| {
                Record::decode(bytes).ok_or_else(|| self.unreadable(format!("lock {}", quoted(name.key()))))
            })
            .transpose()
    }

    /// Which processes exclude each other through this store.
    fn reach(&self) -> Finding {
        let id = |id: fn(&fs::Metadata) -> u32| {
            fs::metadata(&self.dir).map_or_else(|_| "?".to_owned(), |found| id(&found).to_string())
        };
        let users = match self.access {
            Access::Owner => format!("user {}", rustix::process::geteuid().as_raw()),
            Access::Group => format!("the users in group {}", id(MetadataExt::gid)),
        };
        let seen = format!("the processes of {users} on this machine that use {}", self.store);
        if default_place::is_private_to_unit(&self.dir) {
            let seen = format!("{seen}, within the unit of this process (PrivateTmp=)");
            return Finding::warn("reach", seen, "use a directory outside of /tmp and /var/tmp");
        }
        Finding::ok("reach", seen)
    }

    fn unreadable(&self, what: String) -> Error {
        Error::Internal {
            what: format!(
                "{}: the record of {what} cannot be read: it is damaged, or of another version of this library",
                self.store
            ),
            source: None,
        }
    }

    /// The record of `name` while its lease lasts.
    fn live(&self, name: &LockName, by: Deadline) -> Result<Option<Record>> {
        let look = |reader: &Reader<'_>| Ok(self.record(name, reader.get(name.key().as_bytes())?));
        let record = self.environment.read(by, look)??;
        Ok(record.filter(|record| record.is_live(Moment::now())))
    }

    /// Runs `change` on the record of `name` as one transaction.
    fn change<T>(
        &self,
        name: &LockName,
        by: Deadline,
        change: impl FnOnce(&mut Writer<'_>, Option<Record>) -> Result<Result<Change<T>>, Fault>,
    ) -> Result<T> {
        self.environment.write(by, |writer| {
            let found = match self.record(name, writer.get(name.key().as_bytes())?) {
                Ok(found) => found,
                Err(error) => return Ok(Change::Abandon(Err(error))),
            };
            Ok(match change(writer, found)? {
                Ok(Change::Commit(answer)) => Change::Commit(Ok(answer)),
                Ok(Change::Abandon(answer)) => Change::Abandon(Ok(answer)),
                Err(error) => Change::Abandon(Err(error)),
            })
        })?
    }

    /// The sweep's share of a change that adds a record and no fence.
    fn sweep(&self, writer: &mut Writer<'_>, now: Moment) -> Result<Result<()>, Fault> {
        let mut ledger = match self.ledger(writer.get(Ledger::KEY)?) {
            Ok(ledger) => ledger,
            Err(error) => return Ok(Err(error)),
        };
        sweep(writer, &mut ledger.swept, now)?;
        writer.put(Ledger::KEY, &ledger.encode())?;
        Ok(Ok(()))
    }

    /// The next fence, and the sweep's share of this grant.
    fn next_fence(&self, writer: &mut Writer<'_>, now: Moment) -> Result<Result<Fence>, Fault> {
        let mut ledger = match self.ledger(writer.get(Ledger::KEY)?) {
            Ok(ledger) => ledger,
            Err(error) => return Ok(Err(error)),
        };
        if ledger.fence >= ledger.limit {
            let what =
                format!("{}: the fences reserved for this boot of the machine are used up", self.store);
            return Ok(Err(Error::Internal { what, source: None }));
        }
        ledger.fence += 1;
        sweep(writer, &mut ledger.swept, now)?;
        writer.put(Ledger::KEY, &ledger.encode())?;
        Ok(Ok(Fence(ledger.fence)))
    }
}

/// Deletes expired records, of locks and of latches, among the next few behind the key `swept`, and moves it on.
fn sweep(writer: &mut Writer<'_>, swept: &mut Vec<u8>, now: Moment) -> Result<(), Fault> {
    for _ in 0..SWEPT_AT_ONCE {
        let from = swept.as_slice().max(Ledger::KEY);
        let Some((key, value)) = writer.after(from)? else {
            swept.clear();
            return Ok(());
        };
        // What cannot be read is not ours to delete.
        let expired = if latches::is_key(key) {
            latches::Head::decode(value).is_some_and(|(head, _)| !head.is_live(now))
        } else {
            Record::decode(value).is_some_and(|record| !record.is_live(now))
        };
        *swept = key.to_vec();
        if expired {
            writer.delete(swept)?;
        }
    }
    Ok(())
}

impl LockStore for EmbeddedStore {
    fn describe(&self) -> String {
        self.store.clone()
    }

    fn initialize(&self, _by: Deadline) -> Result<()> {
        self.check()
    }

    /// A refused attempt only reads: it costs no write lock, which matters when many wait.
    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<Proof>) -> Result<Acquired> {
        let name = attempt.name;
        if let Some(record) = self.live(name, attempt.by)? {
            return Ok(Acquired::Held(record.holder()));
        }
        let owner = OwnerToken::draw()?;
        let proof = Proof::from_bytes(owner.as_bytes().as_slice());
        let answer = self.change(name, attempt.by, |writer, found| {
            // Read here, behind the wait for other writers: however long that took, the lease is new,
            // and it is still before anything has taken effect.
            let since = Moment::now();
            if let Some(record) = found.filter(|record| record.is_live(since)) {
                return Ok(Ok(Change::Abandon(Acquired::Held(record.holder()))));
            }
            let fence = match self.next_fence(writer, since)? {
                Ok(fence) => fence,
                Err(error) => return Ok(Err(error)),
            };
            let record = Record {
                owner,
                fence,
                ends: since.after(attempt.ttl),
                since_ms: time::wall_ms(),
                ttl: attempt.ttl,
                who: attempt.who.clone(),
            };
            writer.put(name.key().as_bytes(), &record.encode())?;
            let grant = Grant { proof: proof.clone(), fence: Some(fence), since, may_reappear: false };
            Ok(Ok(Change::Commit(Acquired::Granted(grant))))
        });
        if answer.as_ref().is_err_and(Error::is_in_doubt) {
            doubtful.push(proof);
        }
        answer
    }

    fn renew(&self, name: &LockName, proof: &Proof, ttl: Duration, by: Deadline) -> Result<Option<Proof>> {
        self.change(name, by, |writer, found| {
            let now = Moment::now();
            let Some(mut record) = found.filter(|record| record.is_live(now) && record.is_proven(proof))
            else {
                return Ok(Ok(Change::Abandon(None)));
            };
            record.ends = record.ends.max(now.after(ttl));
            record.ttl = ttl;
            writer.put(name.key().as_bytes(), &record.encode())?;
            Ok(Ok(Change::Commit(Some(proof.clone()))))
        })
    }

    fn release(&self, name: &LockName, proof: &Proof, by: Deadline) -> Result<Released> {
        self.change(name, by, |writer, found| {
            let Some(record) = found else { return Ok(Ok(Change::Abandon(Released::NotOurs))) };
            let live = record.is_live(Moment::now());
            if live && !record.is_proven(proof) {
                return Ok(Ok(Change::Abandon(Released::NotOurs)));
            }
            writer.delete(name.key().as_bytes())?;
            Ok(Ok(Change::Commit(if live { Released::Freed } else { Released::NotOurs })))
        })
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        Ok(self.live(name, by)?.map(|record| record.holder()))
    }

    /// The fence of a lock that nobody holds is not known: it left nothing behind.
    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        let record = self.live(name, by)?;
        Ok(Inspection {
            fence: record.as_ref().map(|record| record.fence),
            holder: record.map(|record| record.holder()),
        })
    }

    fn examine(&self, _by: Deadline) -> Result<Vec<Finding>> {
        self.check()?;
        Ok(vec![
            self.reach(),
            Finding::ok(
                "files",
                match self.access {
                    Access::Owner => "are there, ours alone, and can be read",
                    Access::Group => "are there, this group's alone, and can be read",
                },
            ),
            Finding::ok("durability", "locks end with the machine; nothing has to be written to the disk"),
        ])
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(self)
    }
}

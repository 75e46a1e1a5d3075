//! The store: one file, its records of locks, and one transaction for each change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::data_dir::DataDir;
use super::latch_codec::{Head, is_key};
use super::record::{Header, Record};
use super::unit::is_private_to_unit;
use crate::diagnostic::Diagnostic;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::holder::Holder;
use crate::name::LockName;
use crate::owner::{OwnerRecord, OwnerToken};
use crate::store::embedded::lmdb::{Access, Environment, Fault, Reader, Turn, TxnEnd, Writer};
use crate::store::{Acquired, Attempt, Grant, Inspection, LatchStore, LockStore, Released};
use crate::text::quoted;
use crate::time::{self, Deadline, Moment};

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
    pub(super) environment: Environment,
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
        let data_dir = DataDir::at(path, access)?;
        let mut turn = Turn::take(&data_dir.store)?;
        let generation = data_dir.generation(&turn)?;
        let environment = turn.open(&data_dir.store, &generation, access)?;
        drop(turn);
        let store = EmbeddedStore { environment, store: data_dir.store, dir: data_dir.dir, access };
        store.check()?;
        Ok(store)
    }

    /// The lock whose lease ends last in the store in `data_dir`, if one lasts, and its holder. Makes nothing,
    /// and takes part as any reader does.
    pub(super) fn last_to_end(data_dir: &DataDir) -> Result<Option<(String, Holder)>> {
        let Some(generation) = data_dir.present()? else { return Ok(None) };
        let mut turn = Turn::take(&data_dir.store)?;
        let environment = turn.open(&data_dir.store, &generation, data_dir.access)?;
        drop(turn);
        let (store, dir) = (data_dir.store.clone(), data_dir.dir.clone());
        let store = EmbeddedStore { environment, store, dir, access: data_dir.access };
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
                    return Ok(Err(store.unreadable(format!("lock {lock}"))));
                };
                if record.is_live(now) && last.as_ref().is_none_or(|(_, last)| last.ends < record.ends) {
                    last = Some((lock, record));
                }
            }
            Ok(Ok(last.map(|(lock, record)| (lock, record.holder()))))
        })?
    }

    pub(super) fn check(&self) -> Result<()> {
        self.environment.read(Deadline::after(Duration::from_secs(1)), |reader| {
            Ok(self.header(reader.get(Header::KEY)?).map(|_| ()))
        })?
    }

    fn header(&self, bytes: Option<&[u8]>) -> Result<Header> {
        bytes.and_then(Header::decode).ok_or_else(|| self.unreadable("the header".into()))
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
    fn reach(&self) -> Diagnostic {
        let id = |id: fn(&fs::Metadata) -> u32| {
            fs::metadata(&self.dir).map_or_else(|_| "?".to_owned(), |found| id(&found).to_string())
        };
        let users = match self.access {
            Access::Owner => format!("user {}", rustix::process::geteuid().as_raw()),
            Access::Group => format!("the users in group {}", id(MetadataExt::gid)),
        };
        let seen = format!("the processes of {users} on this machine that use {}", self.store);
        if is_private_to_unit(&self.dir) {
            let seen = format!("{seen}, within the unit of this process (PrivateTmp=)");
            return Diagnostic::warn("reach", seen, "use a directory outside of /tmp and /var/tmp");
        }
        Diagnostic::ok("reach", seen)
    }

    pub(super) fn unreadable(&self, what: String) -> Error {
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
        change: impl FnOnce(&mut Writer<'_>, Option<Record>) -> Result<Result<TxnEnd<T>>, Fault>,
    ) -> Result<T> {
        self.environment.write(by, |writer| {
            let found = match self.record(name, writer.get(name.key().as_bytes())?) {
                Ok(found) => found,
                Err(error) => return Ok(TxnEnd::Abandon(Err(error))),
            };
            Ok(match change(writer, found)? {
                Ok(TxnEnd::Commit(answer)) => TxnEnd::Commit(Ok(answer)),
                Ok(TxnEnd::Abandon(answer)) => TxnEnd::Abandon(Ok(answer)),
                Err(error) => TxnEnd::Abandon(Err(error)),
            })
        })?
    }

    /// The sweep's share of a change that adds a record and no fence.
    pub(super) fn sweep(&self, writer: &mut Writer<'_>, now: Moment) -> Result<Result<()>, Fault> {
        let mut header = match self.header(writer.get(Header::KEY)?) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        sweep(writer, &mut header.swept, now)?;
        writer.put(Header::KEY, &header.encode())?;
        Ok(Ok(()))
    }

    /// The next fence, and the sweep's share of this grant.
    fn next_fence(&self, writer: &mut Writer<'_>, now: Moment) -> Result<Result<Fence>, Fault> {
        let mut header = match self.header(writer.get(Header::KEY)?) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        if header.fence >= header.limit {
            let what =
                format!("{}: the fences reserved for this boot of the machine are used up", self.store);
            return Ok(Err(Error::Internal { what, source: None }));
        }
        header.fence += 1;
        sweep(writer, &mut header.swept, now)?;
        writer.put(Header::KEY, &header.encode())?;
        Ok(Ok(Fence(header.fence)))
    }
}

/// Deletes expired records, of locks and of latches, among the next few behind the key `swept`, and moves it on.
fn sweep(writer: &mut Writer<'_>, swept: &mut Vec<u8>, now: Moment) -> Result<(), Fault> {
    for _ in 0..SWEPT_AT_ONCE {
        let from = swept.as_slice().max(Header::KEY);
        let Some((key, value)) = writer.after(from)? else {
            swept.clear();
            return Ok(());
        };
        // What cannot be read is not ours to delete.
        let expired = if is_key(key) {
            Head::decode(value).is_some_and(|(head, _)| !head.is_live(now))
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
    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        let name = attempt.name;
        if let Some(record) = self.live(name, attempt.by)? {
            return Ok(Acquired::Held(record.holder()));
        }
        let owner = OwnerToken::draw()?;
        let owner_record = OwnerRecord::from_bytes(owner.as_bytes().as_slice());
        let answer = self.change(name, attempt.by, |writer, found| {
            // Read here, behind the wait for other writers: however long that took, the lease is new,
            // and it is still before anything has taken effect.
            let since = Moment::now();
            if let Some(record) = found.filter(|record| record.is_live(since)) {
                return Ok(Ok(TxnEnd::Abandon(Acquired::Held(record.holder()))));
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
                identity: attempt.identity.clone(),
            };
            writer.put(name.key().as_bytes(), &record.encode())?;
            let grant =
                Grant { owner_record: owner_record.clone(), fence: Some(fence), since, may_reappear: false };
            Ok(Ok(TxnEnd::Commit(Acquired::Granted(grant))))
        });
        if answer.as_ref().is_err_and(Error::is_in_doubt) {
            doubtful.push(owner_record);
        }
        answer
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.change(name, by, |writer, found| {
            let now = Moment::now();
            let Some(mut record) =
                found.filter(|record| record.is_live(now) && record.is_owner(owner_record))
            else {
                return Ok(Ok(TxnEnd::Abandon(None)));
            };
            record.ends = record.ends.max(now.after(ttl));
            record.ttl = ttl;
            writer.put(name.key().as_bytes(), &record.encode())?;
            Ok(Ok(TxnEnd::Commit(Some(owner_record.clone()))))
        })
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.change(name, by, |writer, found| {
            let Some(record) = found else { return Ok(Ok(TxnEnd::Abandon(Released::NotOurs))) };
            let live = record.is_live(Moment::now());
            if live && !record.is_owner(owner_record) {
                return Ok(Ok(TxnEnd::Abandon(Released::NotOurs)));
            }
            writer.delete(name.key().as_bytes())?;
            Ok(Ok(TxnEnd::Commit(if live { Released::Freed } else { Released::NotOurs })))
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

    fn diagnose(&self, _by: Deadline) -> Result<Vec<Diagnostic>> {
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
            Diagnostic::ok("durability", "a restart ends all leases, so nothing has to be synced to disk"),
        ])
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(self)
    }
}

//! Where an embedded store lies on disk, and what survives a restart of the machine.
//!
//! ```text
//! <directory>/                 0700, ours; for a group 2770
//!   boot-<boot id>/            one generation: everything since the machine started; modes as above
//!     locks, locks-lock        LMDB's file and its lock table
//!     gate                     see `lmdb`
//!     clock                    which boot clock its leases are measured on
//!   fence-floor                decimal: no fence given so far is above it
//!   creating                   locked while a generation is made
//!   new-<pid>/                 a generation in the making, or left by a process that was killed at it
//!   creating-<pid>             the same of `creating`, in a group's directory
//! ```
//!
//! Files have mode 1600, for a group 1660: systemd-tmpfiles deletes what was not used for some days, but
//! no file with the sticky bit (tmpfiles.d(5), "age"). A lease may last longer than those days.
//!
//! A generation is made complete under another name and then renamed, so that whoever sees it can use
//! it; whoever finds none makes it. Those of earlier boots hold only leases that have ended: they are
//! deleted unread. Unread, because without fsync a crash of the machine may have torn them.
//!
//! **Fences across restarts.** A new generation counts from the wall clock (milliseconds << 20), or
//! from the number in `fence-floor` where that is higher, and before it is used raises that number by
//! 2^44, synced to disk. No fence above the number is ever given. So fences never go back over a
//! restart, even when the clock does, as long as `fence-floor` is kept. On a file system in memory it
//! is not, and then fences rise over a restart only if the clock did.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;

use super::record::Header;
use crate::boot;
use crate::error::{Error, Result};
use crate::store::embedded::lmdb;
use crate::store::embedded::lmdb::Access;
use crate::time::{self, Deadline};

/// Fences reserved per restart of the machine. At 250,000 grants a second they last two years. By the
/// wall clock they are five hours: how far fences may run ahead of it with each restart.
const FENCES_RESERVED: u64 = 1 << 44;
/// Keeps fences made from a clock that is set absurdly far ahead below the end of the numbers.
const FENCE_FROM_CLOCK_MAX: u64 = 1 << 63;
/// Making a generation takes two fsyncs; longer means that whoever is at it was stopped.
const CREATE_WAIT: Duration = Duration::from_secs(10);

const FENCE_FLOOR: &str = "fence-floor";
const CREATING: &str = "creating";

/// The directory of one embedded store.
#[derive(Debug)]
pub(super) struct DataDir {
    pub(super) dir: PathBuf,
    /// `embedded:<directory>`, for messages.
    pub(super) store: String,
    pub(super) access: Access,
}

impl DataDir {
    /// The store in `path`, a directory that is made if it is missing.
    pub(super) fn at(path: &Path, access: Access) -> Result<DataDir> {
        let store = describe(path);
        let unable = |error: io::Error| Error::Connection {
            store: store.clone(),
            what: "the directory cannot be created or entered: check the path and its permissions".into(),
            source: Some(error.into()),
        };
        if !path.is_dir() {
            match access {
                Access::Owner => {
                    DirBuilder::new().mode(0o700).recursive(true).create(path).map_err(unable)?
                }
                Access::Group => make_for_group(path).map_err(unable)?,
            }
        }
        let dir = path.canonicalize().map_err(unable)?;
        let store = describe(&dir);
        lmdb::check_private(&store, &dir, access)?;
        Ok(DataDir { dir, store, access })
    }

    /// The store that may be in `dir`, of which nothing is made.
    pub(super) fn found(dir: PathBuf) -> DataDir {
        DataDir { store: describe(&dir), dir, access: Access::Owner }
    }

    /// The directory of this boot's generation, if there is one.
    pub(super) fn present(&self) -> Result<Option<PathBuf>> {
        let dir = self.dir.join(format!("boot-{}", self.boot_id()?));
        if !dir.is_dir() {
            return Ok(None);
        }
        self.check_clock(&dir)?;
        if !lmdb::has_files(&dir) {
            let what = format!("{dir:?} lacks some of its files");
            return Err(Error::Connection { store: self.store.clone(), what, source: None });
        }
        Ok(Some(dir))
    }

    /// The directory of this boot's generation, made by whoever comes first.
    pub(super) fn generation(&self, turn: &lmdb::Turn) -> Result<PathBuf> {
        let current = format!("boot-{}", self.boot_id()?);
        let dir = self.dir.join(&current);
        if !dir.is_dir() {
            let _creating = self.lock_creation()?;
            if !dir.is_dir() {
                self.remove_leftovers(&current);
                self.create(turn, &dir)?;
            }
        }
        self.check_clock(&dir)?;
        self.keep_from_ageing(&dir);
        Ok(dir)
    }

    /// An earlier version may have made the files, without the sticky bit. It knew no groups.
    fn keep_from_ageing(&self, generation: &Path) {
        if self.access == Access::Group {
            return;
        }
        let inside = fs::read_dir(generation).into_iter().flatten().flatten().map(|entry| entry.path());
        // The directory may have files in it that are not the store's.
        let beside = [FENCE_FLOOR, CREATING].map(|name| self.dir.join(name));
        for path in inside.chain(beside) {
            // By path: a descriptor of a file, once closed, would end this process's record locks on it.
            if let Ok(found) = fs::symlink_metadata(&path)
                && found.is_file()
                && found.mode() & 0o7777 == 0o600
                && let Err(error) =
                    fs::set_permissions(&path, Permissions::from_mode(self.access.file_mode()))
            {
                log::debug!("{}: {path:?} stays without the sticky bit: {error}", self.store);
            }
        }
    }

    fn create(&self, turn: &lmdb::Turn, dir: &Path) -> Result<()> {
        let staging = self.dir.join(format!("new-{}", std::process::id()));
        let io = |doing: &'static str| move |error| self.unable(doing, error);
        DirBuilder::new()
            .mode(self.access.dir_mode())
            .create(&staging)
            .and_then(|()| self.access.settle_at(&staging))
            .map_err(io("creating a directory in it"))?;
        self.write_file(&staging.join("clock"), &boot::clock_offset()).map_err(io("writing a file in it"))?;
        let (fence, limit) = self.reserve_fences()?;
        let header = Header { fence, limit, swept: Vec::new() };
        turn.create(&self.store, &staging, self.access, (Header::KEY, &header.encode()))?;
        fs::rename(&staging, dir).map_err(io("renaming a directory in it"))
    }

    /// The fence to count from, and the one to stop at: a stretch that no earlier generation used and,
    /// once this has returned, no later one will.
    fn reserve_fences(&self) -> Result<(u64, u64)> {
        let path = self.dir.join(FENCE_FLOOR);
        let floor = match fs::read_to_string(&path) {
            Ok(text) => text.trim_end().parse().map_err(|_| Error::Internal {
                what: format!(
                    "{}: {path:?} is damaged, so fences could go back: write the highest fence seen by any \
                     guarded resource into it, or delete it if none checks fences",
                    self.store
                ),
                source: None,
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(self.unable("reading its fence floor", error)),
        };
        let from_clock = time::wall_ms().min(FENCE_FROM_CLOCK_MAX >> 20) << 20;
        let start = u64::max(from_clock, floor);
        let limit = start.checked_add(FENCES_RESERVED).ok_or_else(|| Error::Internal {
            what: format!("{}: the fences of {path:?} are used up", self.store),
            source: None,
        })?;
        self.replace_synced(&path, &format!("{limit}\n"))
            .map_err(|error| self.unable("writing its fence floor", error))?;
        Ok((start, limit))
    }

    /// Replaces the file at `path` as one step that a power cut does not undo once it has returned.
    fn replace_synced(&self, path: &Path, content: &str) -> io::Result<()> {
        let next = path.with_extension("new");
        self.write_file(&next, content)?;
        fs::rename(&next, path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Writes a file of ours anew, synced.
    fn write_file(&self, path: &Path, content: &str) -> io::Result<()> {
        let mut file = self.new_file(path)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()
    }

    /// A file of ours in place of what a killed process, of another member of the group maybe, left.
    fn new_file(&self, path: &Path) -> io::Result<File> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(self.access.file_mode()).open(path)?;
        self.access.settle(&file)?;
        Ok(file)
    }

    /// Leases are moments on the boot clock, which a time namespace may shift: processes that disagree
    /// on it must not share them.
    fn check_clock(&self, generation: &Path) -> Result<()> {
        let theirs = fs::read_to_string(generation.join("clock"))
            .map_err(|error| self.unable("reading its clock file", error))?;
        if theirs == boot::clock_offset() {
            return Ok(());
        }
        Err(Error::Connection {
            store: self.store.clone(),
            what: "it is used from another time namespace, where the boot clock differs: use a directory of \
                   its own in each"
                .into(),
            source: None,
        })
    }

    fn boot_id(&self) -> Result<String> {
        boot::id().map_err(|error| Error::Connection {
            store: self.store.clone(),
            what: "the kernel's boot id cannot be read, and leases must end with a restart of the machine"
                .into(),
            source: Some(error.into()),
        })
    }

    /// One maker at a time. The lock ends with the process that holds it, and with the file returned.
    fn lock_creation(&self) -> Result<File> {
        let by = Deadline::after(CREATE_WAIT);
        let file = self.open_creating(by).map_err(|error| self.unable("creating a file in it", error))?;
        loop {
            match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::AGAIN | Errno::ACCESS) if !by.passed() => {
                    time::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(self.unable("locking its creation", error.into())),
            }
        }
    }

    fn open_creating(&self, by: Deadline) -> io::Result<File> {
        let path = self.dir.join(CREATING);
        let mut options = File::options();
        options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        if self.access == Access::Owner {
            return options.create(true).truncate(false).mode(self.access.file_mode()).open(path);
        }
        loop {
            match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !by.passed() => {}
                opened => return opened,
            }
            // Complete under another name first: a process killed before the file has the group's rights
            // would leave one that shuts the other members out. Another process may delete it at any moment,
            // as left over.
            let made = self.dir.join(format!("creating-{}", std::process::id()));
            self.new_file(&made)?;
            let linked = fs::hard_link(&made, &path);
            let _ = fs::remove_file(&made);
            match linked {
                // Another process was faster, or has deleted it.
                Err(error)
                    if !matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) =>
                {
                    return Err(error);
                }
                _ => {}
            }
        }
    }

    /// Deletes generations of earlier boots and half-made ones. The caller has the creation lock.
    fn remove_leftovers(&self, current: &str) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| *name != current) else { continue };
            let boot = name.strip_prefix("boot-").is_some_and(boot::is_id);
            let by_process = |prefix| name.strip_prefix(prefix).is_some_and(|pid| pid.parse::<u32>().is_ok());
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            let removed = if kind.is_dir() && (boot || by_process("new-")) {
                // An empty one may not have the group's rights yet, and then only this way is open.
                fs::remove_dir(&path).or_else(|_| fs::remove_dir_all(&path))
            } else if kind.is_file() && by_process("creating-") {
                fs::remove_file(&path)
            } else {
                continue;
            };
            if let Err(error) = removed {
                log::warn!("{}: {path:?}, which was left over, cannot be deleted: {error}", self.store);
            }
        }
    }

    fn unable(&self, doing: &str, error: io::Error) -> Error {
        Error::Connection {
            store: self.store.clone(),
            what: format!("{doing} failed: check its permissions and free space"),
            source: Some(error.into()),
        }
    }
}

pub(super) fn describe(path: &Path) -> String {
    format!("embedded:{}", path.to_string_lossy().escape_debug())
}

/// Makes a directory that its group's members share. Its parent must be there.
///
/// It gets the group of the process, or of the parent where that has the set-group-ID bit.
fn make_for_group(path: &Path) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    // Another member must not find it before it has the group's rights, so it is renamed when it has.
    let mut staging = name.to_owned();
    staging.push(format!(".new-{}", std::process::id()));
    let staging = path.with_file_name(staging);
    let _ = fs::remove_dir(&staging);
    DirBuilder::new().mode(Access::Group.dir_mode()).create(&staging)?;
    let made = Access::Group.settle_at(&staging).and_then(|()| fs::rename(&staging, path));
    if made.is_err() {
        let _ = fs::remove_dir(&staging);
        if path.is_dir() {
            return Ok(());
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data_dir() -> (tempfile::TempDir, DataDir) {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::at(&dir.path().join("store"), Access::Owner).unwrap();
        (dir, data_dir)
    }

    #[test]
    fn fences_of_a_later_boot_are_above_all_reserved_before_even_if_the_clock_went_back() {
        let (_dir, data_dir) = data_dir();
        let (_, first_limit) = data_dir.reserve_fences().unwrap();
        // The clock has hardly moved, so by it alone the next boot would start below the limit.
        let (start, limit) = data_dir.reserve_fences().unwrap();
        assert!(start >= first_limit, "{start} < {first_limit}");
        assert_eq!(limit, start + FENCES_RESERVED);
    }

    #[test]
    fn a_damaged_fence_floor_is_refused_rather_than_taken_for_zero() {
        let (_dir, data_dir) = data_dir();
        fs::write(data_dir.dir.join("fence-floor"), "12x\n").unwrap();
        let error = data_dir.reserve_fences().unwrap_err();
        assert!(error.to_string().contains("fence-floor"), "{error}");
        fs::write(data_dir.dir.join("fence-floor"), u64::MAX.to_string()).unwrap();
        assert!(data_dir.reserve_fences().is_err(), "fences must not wrap");
    }

    #[test]
    fn leftovers_are_deleted_and_nothing_that_is_not_ours() {
        let (_dir, data_dir) = data_dir();
        let old = "boot-01234567-89ab-cdef-0123-456789abcdef";
        let current = "boot-11111111-2222-3333-4444-555555555555";
        let kept = ["boot-notours", "new-x", "documents", current];
        for name in [old, "new-4711"].iter().chain(&kept) {
            fs::create_dir(data_dir.dir.join(name)).unwrap();
            fs::write(data_dir.dir.join(name).join("locks"), "x").unwrap();
        }
        fs::write(data_dir.dir.join("new-4712"), "a file").unwrap();
        data_dir.remove_leftovers(current);
        assert!(!data_dir.dir.join(old).exists() && !data_dir.dir.join("new-4711").exists());
        assert!(kept.iter().all(|name| data_dir.dir.join(name).join("locks").exists()));
        assert!(data_dir.dir.join("new-4712").exists());
    }
}

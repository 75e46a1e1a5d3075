//! The files of an embedded store, and what survives a restart of the machine.
//!
//! ```text
//! <directory>/                 mode 0700, one user's; for a group 2770
//!   boot-<boot id>/            one generation: everything since the machine started; modes as above
//!     locks, locks-lock        LMDB's data file and its lock table
//!     gate                     the file of the writer lock, see `lmdb`; its end tells that the files were deleted
//!     words                    the writer lock of a data file that is changed through the memory map, and who polls
//!     clock                    the offset of the boot clock that measures its leases
//!     alive-<random>           locked while a process lives, see `liveness`
//!     notices-<random>         the socket at which a process receives notices, see `wait/notices`
//!   fence-floor                a decimal number; all fences so far are at most this number
//!   creating                   locked while a generation is created
//!   new-<pid>/                 an incomplete generation, also after its creator was killed
//!   creating-<pid>             an incomplete `creating`, in a group's directory
//! ```
//!
//! Files have mode 1600, for a group 1660. systemd-tmpfiles deletes files that were not used for some days, but no
//! file with the sticky bit (tmpfiles.d(5), "age"). A lease may last longer than those days.
//!
//! A generation is created under another name and renamed when it is complete. Every process that sees it can use
//! it. A process that finds none creates it. One that lacks files, because somebody deleted them or an earlier version left
//! it half made, is completed if no process uses it.
//!
//! **One generation.** Generations of earlier boots hold only leases that have ended, so they are deleted. They are not
//! read, because a crash of the machine may have damaged them: they are written without fsync. But a boot id proves nothing:
//! a container may have one of its own. So a generation with another boot id is deleted by whoever has the proof that no
//! process uses it (`DirLock`). If a process does, the generation is of this boot, and all others use it too.
//!
//! **Fences across restarts.** A new generation counts from the wall clock (milliseconds << 20), or from the number
//! in `fence-floor` if that is higher. Before the generation is used, it writes the start plus 2^44 to
//! `fence-floor` and syncs it to disk. No fence is ever above this number. So fences rise over a restart even if
//! the clock goes back, as long as `fence-floor` is kept. If all of them are used up, another range is reserved. On a file system in memory it is not kept. Then fences
//! rise over a restart only if the clock has advanced.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::record::Header;
use crate::error::{Error, Result};
use crate::runtime::boot;
use crate::runtime::process::descriptors::StreamsTaken;
use crate::runtime::process::signals::NoSignal;
use crate::runtime::time::{self, Deadline};
use crate::store::embedded::lmdb;
use crate::store::embedded::lmdb::{Access, DirLock, OfdLock};

/// Number of fences that are reserved at once. At 250,000 grants a second of one fence each they last two years. They
/// equal five hours of the wall clock: each restart may move fences ahead of the clock by this time.
const FENCES_RESERVED: u64 = 1 << 44;
/// Limits fences from a clock that is set far too high, to leave numbers above them.
const FENCE_FROM_CLOCK_MAX: u64 = 1 << 63;
/// Creating a generation takes two fsyncs. If it takes longer than this, the creating process was stopped.
const CREATE_WAIT: Duration = Duration::from_secs(10);

const FENCE_FLOOR: &str = "fence-floor";
const CREATING: &str = "creating";
const CLOCK: &str = "clock";
/// Begin of the name of a generation. A boot id follows.
const GENERATION: &str = "boot-";

/// The directory of one embedded store.
#[derive(Debug)]
pub(super) struct DataDir {
    pub(super) dir: PathBuf,
    /// `embedded:<directory>`, for messages.
    pub(super) store: String,
    pub(super) access: Access,
    /// The size at which its file is full.
    pub(super) limit: usize,
}

impl DataDir {
    /// Returns the store in the directory `path`. Creates the directory if it is missing.
    pub(super) fn at(path: &Path, access: Access, limit: usize) -> Result<DataDir> {
        let _taken = StreamsTaken::new();
        let store = describe(path);
        let unable = |error: io::Error| Error::Connection {
            store: store.clone(),
            what: "the directory cannot be created or entered: check the path and its permissions".into(),
            source: Some(error.into()),
        };
        if !path.is_dir() {
            match access {
                Access::Owner => make_for_owner(path).map_err(unable)?,
                Access::Group => make_for_group(path).map_err(unable)?,
            }
        }
        let dir = path.canonicalize().map_err(unable)?;
        let store = describe(&dir);
        lmdb::check_private(&store, &dir, access)?;
        Ok(DataDir { dir, store, access, limit })
    }

    /// Returns the store that may exist in `dir`. Creates nothing.
    pub(super) fn found(dir: PathBuf) -> DataDir {
        DataDir { store: describe(&dir), dir, access: Access::Owner, limit: lmdb::LIMIT }
    }

    /// Returns the directory of this boot's generation, if it exists.
    pub(super) fn present(&self) -> Result<Option<PathBuf>> {
        let _taken = StreamsTaken::new();
        let mut dir = self.own_generation()?;
        if !dir.is_dir() {
            let used = self.generations()?.into_iter().find_map(|other| match self.prove_unused(&other) {
                Ok(Use::Unused(_) | Use::Gone) => None,
                Ok(Use::Used) => Some(Ok(other)),
                Err(error) => Some(Err(error)),
            });
            match used.transpose()? {
                Some(used) => dir = used,
                None => return Ok(None),
            }
        }
        if !is_complete(&dir) {
            let what = format!("{dir:?} lacks some of its files");
            return Err(Error::Connection { store: self.store.clone(), what, source: None });
        }
        self.check_clock(&dir)?;
        Ok(Some(dir))
    }

    /// Returns the directory of this boot's generation. Creates it if it does not exist.
    pub(super) fn generation(&self, turn: &lmdb::Turn) -> Result<PathBuf> {
        let choose = || {
            let own = self.own_generation()?;
            if is_complete(&own) && self.generations()?.len() == 1 {
                return Ok(own);
            }
            let _creating = self.lock_creation(Deadline::after(CREATE_WAIT))?;
            self.choose(turn, own)
        };
        let mut dir = choose()?;
        if self.check_clock(&dir).is_err() && !dir.is_dir() {
            // A process with another boot id had the proof that nobody used it.
            dir = choose()?;
        }
        self.check_clock(&dir)?;
        self.keep_from_ageing(&dir);
        Ok(dir)
    }

    /// Returns the directory of this boot's generation, which is `own` unless processes use another. Deletes those that no
    /// process uses. The caller holds the creation lock.
    ///
    /// Two processes of one boot may read different boot ids: some containers have their own, such as those of LXC and
    /// systemd-nspawn. Only a lock of the kernel proves of which boot a generation is.
    fn choose(&self, turn: &lmdb::Turn, own: PathBuf) -> Result<PathBuf> {
        let mut used = None;
        for other in self.generations()?.into_iter().filter(|other| *other != own) {
            match self.prove_unused(&other)? {
                Use::Used => used = Some(other),
                // Nobody can begin to use it before it is deleted.
                Use::Unused(_unused) => self.remove(&other, fs::remove_dir_all(&other)),
                Use::Gone => {}
            }
        }
        self.remove_leftovers();
        if let Some(used) = used {
            if !own.is_dir() {
                return Ok(used);
            }
            match self.prove_unused(&own)? {
                Use::Unused(_unused) => self.remove(&own, fs::remove_dir_all(&own)),
                Use::Gone => {}
                // An earlier version has created one of them.
                Use::Used => {
                    log::warn!("{}: processes with different boot ids use {used:?} and {own:?}", self.store);
                    return Ok(own);
                }
            }
            return Ok(used);
        }
        if !own.is_dir() {
            self.create(turn, &own)?;
        } else if !is_complete(&own) {
            self.complete(turn, &own)?;
        }
        Ok(own)
    }

    /// Returns the generation with the boot id that this process reads. It may not exist.
    fn own_generation(&self) -> Result<PathBuf> {
        Ok(self.dir.join(format!("{GENERATION}{}", self.boot_id()?)))
    }

    /// Returns all generations.
    fn generations(&self) -> Result<Vec<PathBuf>> {
        let unable = |error| self.unable("reading the directory", error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(unable)? {
            let entry = entry.map_err(unable)?;
            let name = entry.file_name();
            let is_generation =
                name.to_str().and_then(|name| name.strip_prefix(GENERATION)).is_some_and(boot::is_id);
            if is_generation && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path());
            }
        }
        found.sort();
        Ok(found)
    }

    /// Finds out whether a process uses the generation in `dir`.
    fn prove_unused(&self, dir: &Path) -> Result<Use> {
        match DirLock::prove_unused(dir, Deadline::after(CREATE_WAIT)) {
            Ok(Some(unused)) => Ok(Use::Unused(unused)),
            Ok(None) => Ok(Use::Used),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Use::Gone),
            Err(error) => Err(Error::Connection {
                store: self.store.clone(),
                what: format!("cannot find out if processes of this boot use {dir:?}"),
                source: Some(error.into()),
            }),
        }
    }

    /// Sets the sticky bit on files that an earlier version created without it. That version had no groups.
    fn keep_from_ageing(&self, generation: &Path) {
        if self.access == Access::Group {
            return;
        }
        let inside = fs::read_dir(generation).into_iter().flatten().flatten().map(|entry| entry.path());
        // The directory may also contain files of others.
        let beside = [FENCE_FLOOR, CREATING].map(|name| self.dir.join(name));
        for path in inside.chain(beside) {
            // By path, because closing a descriptor of a file releases this process's record locks on it.
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
        if let Err(error) = lmdb::change_in_place(&staging) {
            log::debug!("{}: its files are copied on write: {error}", self.store);
        }
        self.fill(turn, &staging)?;
        fs::rename(&staging, dir).map_err(io("renaming a directory in it"))
    }

    /// Creates the files that the generation in `dir` lacks. The records that it has stay.
    fn complete(&self, turn: &lmdb::Turn, dir: &Path) -> Result<()> {
        let Use::Unused(_unused) = self.prove_unused(dir)? else {
            let what = format!("{dir:?} lacks some of its files, and other processes use it: end them");
            return Err(Error::Connection { store: self.store.clone(), what, source: None });
        };
        log::warn!("{}: {dir:?} lacks some of its files, which are created anew", self.store);
        self.fill(turn, dir)
    }

    /// Creates the files of a generation that are not in `dir`. Nobody else uses it.
    fn fill(&self, turn: &lmdb::Turn, dir: &Path) -> Result<()> {
        let clock = dir.join(CLOCK);
        if !clock.is_file() {
            self.write_file(&clock, &boot::clock_offset())
                .map_err(|error| self.unable("writing a file in it", error))?;
        }
        turn.fill(&self.store, dir, self.access, self.limit, Header::KEY, |engine| {
            let (fence, limit) = self.reserve_fences()?;
            Ok(Header { engine, fence, limit, swept: Vec::new() }.encode())
        })
    }

    /// Reserves another range of fences for a generation in use, whose range is used up. See
    /// [`reserve_fences`](DataDir::reserve_fences).
    pub(super) fn reserve_further_fences(&self, by: Deadline) -> Result<(u64, u64)> {
        let (_taken, _quiet) = (StreamsTaken::new(), NoSignal::file_size());
        let _creating = self.lock_creation(by)?;
        self.reserve_fences()
    }

    /// Returns the fence to count from and the fence to stop at. No earlier generation used these fences, and after
    /// this call no later one will.
    fn reserve_fences(&self) -> Result<(u64, u64)> {
        let path = self.dir.join(FENCE_FLOOR);
        let floor = match fs::read_to_string(&path) {
            Ok(text) => text.trim_end().parse().map_err(|_| Error::Internal {
                what: format!(
                    "{}: {path:?} is damaged, so fences could go back: write the highest fence seen by any \
                     guarded resource into it, or delete it if no resource checks fences",
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

    /// Replaces the file at `path` in one step. After this returns, a power cut does not undo it.
    fn replace_synced(&self, path: &Path, content: &str) -> io::Result<()> {
        let next = path.with_extension("new");
        self.write_file(&next, content)?;
        fs::rename(&next, path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Creates the file at `path` with this content and syncs it. Replaces an old file.
    fn write_file(&self, path: &Path, content: &str) -> io::Result<()> {
        let mut file = self.new_file(path)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()
    }

    /// Creates a new file. Deletes an old one first, which a killed process may have left, also one of another
    /// member of the group.
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

    /// Refuses a generation of another time namespace. Leases end at moments on the boot clock, and a time
    /// namespace may shift that clock.
    fn check_clock(&self, generation: &Path) -> Result<()> {
        let theirs = fs::read_to_string(generation.join(CLOCK))
            .map_err(|error| self.unable("reading its clock file", error))?;
        if theirs == boot::clock_offset() {
            return Ok(());
        }
        Err(Error::Connection {
            store: self.store.clone(),
            what: "it is used from another time namespace, where the boot clock differs: use a separate \
                   directory in each"
                .into(),
            source: None,
        })
    }

    fn boot_id(&self) -> Result<String> {
        boot::id().map_err(|error| Error::Connection {
            store: self.store.clone(),
            what: format!(
                "the kernel's boot id cannot be read; it is needed to end leases with a restart of the machine: let \
                 this process read {} (a unit needs ProcSubset=all, a container a /proc without subset=pid)",
                boot::BOOT_ID_FILE
            ),
            source: Some(error.into()),
        })
    }

    /// Locks the creation of generations: one copy of this library at a time.
    fn lock_creation(&self, by: Deadline) -> Result<CreationLock> {
        let file = self.open_creating(by).map_err(|error| self.unable("creating a file in it", error))?;
        loop {
            match OfdLock::Exclusive.try_set(&file, 0, 0) {
                Ok(true) => return Ok(CreationLock(file)),
                Ok(false) if !by.passed() => time::sleep(Duration::from_millis(1)),
                Ok(false) => return Err(self.unable("locking its creation", io::ErrorKind::TimedOut.into())),
                Err(error) => return Err(self.unable("locking its creation", error)),
            }
        }
    }

    fn open_creating(&self, by: Deadline) -> io::Result<File> {
        let path = self.dir.join(CREATING);
        let mut options = File::options();
        options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        if self.access == Access::Owner {
            options.create(true).truncate(false).mode(self.access.file_mode());
            let file = match options.open(&path) {
                // Another process has just created it, under a umask that takes its own rights away.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.access.settle_at(&path)?;
                    options.open(&path)?
                }
                opened => opened?,
            };
            if file.metadata()?.mode() & 0o7777 != self.access.file_mode() {
                self.access.settle(&file)?;
            }
            return Ok(file);
        }
        loop {
            match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !by.passed() => {}
                opened => return opened,
            }
            // Create the file completely under another name first. If a process were killed before the file has
            // the group's rights, it would lock the other members out. Another process may delete the new file
            // at any moment as a leftover.
            let made = self.dir.join(format!("creating-{}", std::process::id()));
            self.new_file(&made)?;
            let linked = fs::hard_link(&made, &path);
            let _ = fs::remove_file(&made);
            match linked {
                // Another process was faster, or has deleted the file.
                Err(error)
                    if !matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) =>
                {
                    return Err(error);
                }
                _ => {}
            }
        }
    }

    /// Deletes what killed processes left while they created a generation. The caller holds the creation lock.
    fn remove_leftovers(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let by_process = |prefix| name.strip_prefix(prefix).is_some_and(|pid| pid.parse::<u32>().is_ok());
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if kind.is_dir() && by_process("new-") {
                // An empty directory may not have the group's rights yet. Then only `remove_dir` works.
                self.remove(&path, fs::remove_dir(&path).or_else(|_| fs::remove_dir_all(&path)));
            } else if kind.is_file() && by_process("creating-") {
                self.remove(&path, fs::remove_file(&path));
            }
        }
    }

    /// Reports what could not be deleted.
    fn remove(&self, path: &Path, removed: io::Result<()>) {
        if let Err(error) = removed {
            log::warn!("{}: {path:?} cannot be deleted: {error}", self.store);
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

/// The right to create and delete generations. Dropping it gives it back. So does the end of the process, unless a child
/// that was forked meanwhile lives.
struct CreationLock(File);

impl Drop for CreationLock {
    fn drop(&mut self) {
        let _ = OfdLock::None.try_set(&self.0, 0, 0);
    }
}

/// Whether a process uses a generation.
enum Use {
    Used,
    /// Nobody uses it, or can begin to, while this lives.
    Unused(DirLock),
    /// It was deleted meanwhile.
    Gone,
}

/// Returns whether a generation has all files that are created with it.
fn is_complete(generation: &Path) -> bool {
    generation.join(CLOCK).is_file() && lmdb::has_files(generation)
}

pub(super) fn describe(path: &Path) -> String {
    format!("embedded:{}", path.to_string_lossy().escape_debug())
}

/// Creates a directory for its user alone, and the directories above it that are missing.
fn make_for_owner(path: &Path) -> io::Result<()> {
    let mut missing: Vec<_> =
        path.ancestors().take_while(|it| !it.as_os_str().is_empty() && !it.is_dir()).collect();
    while let Some(dir) = missing.pop() {
        match DirBuilder::new().mode(Access::Owner.dir_mode()).create(dir) {
            Ok(()) => Access::Owner.settle_at(dir)?,
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Creates a directory for the members of its group. Its parent must exist.
///
/// Its group is the group of the process, or of the parent if the parent has the set-group-ID bit.
fn make_for_group(path: &Path) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    // Renamed when it has the group's rights: other members must not find it before.
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
    use rustix::fs::{FlockOperation, fcntl_lock};

    use super::*;
    use crate::testing::fork::{alone, in_forked_child};

    fn data_dir() -> (tempfile::TempDir, DataDir) {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::at(&dir.path().join("store"), Access::Owner, lmdb::LIMIT).unwrap();
        (dir, data_dir)
    }

    #[test]
    fn fences_of_a_later_boot_are_above_all_reserved_before_even_if_the_clock_went_back() {
        let (_dir, data_dir) = data_dir();
        let (_, first_limit) = data_dir.reserve_fences().unwrap();
        // The clock has hardly advanced. The clock alone would start the next boot below the limit.
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

    /// Creates what may be in the directory of a store.
    fn put(data_dir: &DataDir, names: &[&str]) {
        for name in names {
            fs::create_dir(data_dir.dir.join(name)).unwrap();
            fs::write(data_dir.dir.join(name).join("locks"), "x").unwrap();
        }
    }

    const OLD: &str = "boot-01234567-89ab-cdef-0123-456789abcdef";

    #[test]
    fn leftovers_are_deleted_and_nothing_that_is_not_ours() {
        let (_dir, data_dir) = data_dir();
        let kept = ["boot-notours", "new-x", "documents"];
        put(&data_dir, &[OLD, "new-4711"]);
        put(&data_dir, &kept);
        fs::write(data_dir.dir.join("new-4712"), "a file").unwrap();
        let turn = lmdb::Turn::take("test").unwrap();
        let chosen = data_dir.generation(&turn).unwrap();
        assert_eq!(data_dir.generations().unwrap(), [chosen]);
        assert!(!data_dir.dir.join(OLD).exists() && !data_dir.dir.join("new-4711").exists());
        assert!(kept.iter().all(|name| data_dir.dir.join(name).join("locks").exists()));
        assert!(data_dir.dir.join("new-4712").exists());
    }

    /// A backup, a scanner or another copy of the library may close the file in this process.
    #[test]
    fn whatever_closes_the_file_in_this_process_nobody_else_creates_a_generation() {
        if !alone() {
            return;
        }
        let (_dir, data_dir) = data_dir();
        let creating = data_dir.lock_creation(Deadline::after(CREATE_WAIT)).unwrap();
        let path = data_dir.dir.join(CREATING);
        let others_may = || {
            in_forked_child(|| {
                let file = File::options().read(true).write(true).open(&path).unwrap();
                // As earlier versions lock it, and as this one does.
                fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                    && fcntl_lock(&file, FlockOperation::NonBlockingUnlock).is_ok()
                    && OfdLock::Exclusive.try_set(&file, 0, 0).unwrap()
            })
        };
        drop(File::open(&path).unwrap());
        assert!(!others_may());
        // Nor another copy in this process.
        let second = File::options().read(true).write(true).open(&path).unwrap();
        assert!(!OfdLock::Exclusive.try_set(&second, 0, 0).unwrap());
        drop(creating);
        assert!(others_may());
    }
}

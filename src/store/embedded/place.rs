//! Where an embedded store lies on disk, and what survives a restart of the machine.
//!
//! ```text
//! <directory>/                 0700, ours
//!   boot-<boot id>/            one generation: everything since the machine started
//!     locks, locks-lock        LMDB's file and its lock table
//!     gate                     see `lmdb`
//!     clock                    which boot clock its leases are measured on
//!   fence-floor                decimal: no fence given so far is above it
//!   creating                   locked while a generation is made
//!   new-<pid>/                 a generation in the making, or left by who was killed at it
//! ```
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

use std::env;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use super::record::Ledger;
use crate::error::{Error, Result};
use crate::ffi::lmdb;
use crate::time::{self, Deadline};

/// Fences reserved per restart of the machine. At 250,000 grants a second they last two years. By the
/// wall clock they are five hours: how far fences may run ahead of it with each restart.
const FENCES_RESERVED: u64 = 1 << 44;
/// Keeps fences made from a clock that is set absurdly far ahead below the end of the numbers.
const FENCE_FROM_CLOCK_MAX: u64 = 1 << 63;
/// Making a generation takes two fsyncs; longer means that whoever is at it was stopped.
const CREATE_WAIT: Duration = Duration::from_secs(10);

const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
const CLOCK_OFFSETS_FILE: &str = "/proc/self/timens_offsets";

/// The directory of one embedded store.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    /// `embedded:<directory>`, for messages.
    pub(super) store: String,
}

/// `$XDG_RUNTIME_DIR/dlm`, or `dlm-<uid>` in the directory for temporary files.
pub(super) fn default_path() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    if let Some(dir) = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        // Under sudo it may be another user's, where we must not leave files of ours.
        let ours = fs::metadata(&dir).is_ok_and(|found| found.is_dir() && found.uid() == user);
        if dir.is_absolute() && ours {
            return Ok(dir.join("dlm"));
        }
    }
    let dir = env::temp_dir().join(format!("dlm-{user}"));
    // Anyone may make files there: the name may be taken by someone who means harm.
    let refused = |what: String, source| Error::Connection { store: describe(&dir), what, source };
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(refused("the directory cannot be created".into(), Some(error.into())));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&dir)
        .map_err(|error| refused("the directory cannot be looked at".into(), Some(error.into())))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        let what = format!(
            "{dir:?} is not a directory that belongs to user {user} and only they may write: someone else \
             made it; set XDG_RUNTIME_DIR or TMPDIR, or name a directory"
        );
        return Err(refused(what, None));
    }
    Ok(dir)
}

impl Place {
    /// The store in `path`, a directory that is made if it is missing.
    pub(super) fn at(path: &Path) -> Result<Place> {
        let store = describe(path);
        let unable = |error: io::Error| Error::Connection {
            store: store.clone(),
            what: "the directory cannot be created or entered: check the path and its permissions".into(),
            source: Some(error.into()),
        };
        if !path.is_dir() {
            DirBuilder::new().mode(0o700).recursive(true).create(path).map_err(unable)?;
        }
        let dir = path.canonicalize().map_err(unable)?;
        let store = describe(&dir);
        lmdb::check_private(&store, &dir)?;
        Ok(Place { dir, store })
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
        Ok(dir)
    }

    fn create(&self, turn: &lmdb::Turn, dir: &Path) -> Result<()> {
        let staging = self.dir.join(format!("new-{}", std::process::id()));
        let io = |doing: &'static str| move |error| self.unable(doing, error);
        DirBuilder::new().mode(0o700).create(&staging).map_err(io("creating a directory in it"))?;
        write_file(&staging.join("clock"), &clock_offset()).map_err(io("writing a file in it"))?;
        let (fence, limit) = self.reserve_fences()?;
        let ledger = Ledger { fence, limit, swept: Vec::new() };
        turn.create(&self.store, &staging, Ledger::KEY, &ledger.encode())?;
        fs::rename(&staging, dir).map_err(io("renaming a directory in it"))
    }

    /// The fence to count from, and the one to stop at: a stretch that no earlier generation used and,
    /// once this has returned, no later one will.
    fn reserve_fences(&self) -> Result<(u64, u64)> {
        let path = self.dir.join("fence-floor");
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
        write_file(&next, content)?;
        fs::rename(&next, path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Leases are moments on the boot clock, which a time namespace may shift: processes that disagree
    /// on it must not share them.
    fn check_clock(&self, generation: &Path) -> Result<()> {
        let theirs = fs::read_to_string(generation.join("clock"))
            .map_err(|error| self.unable("reading its clock file", error))?;
        if theirs == clock_offset() {
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
        let unable = |source| Error::Connection {
            store: self.store.clone(),
            what: format!("{BOOT_ID_FILE} cannot be read, and leases must end with a restart of the machine"),
            source,
        };
        let id = fs::read_to_string(BOOT_ID_FILE).map_err(|error| unable(Some(error.into())))?;
        let id = id.trim_end();
        if is_boot_id(id) { Ok(id.to_owned()) } else { Err(unable(None)) }
    }

    /// One maker at a time. The lock ends with the process that holds it, and with the file returned.
    fn lock_creation(&self) -> Result<File> {
        let by = Deadline::after(CREATE_WAIT);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.dir.join("creating"))
            .map_err(|error| self.unable("creating a file in it", error))?;
        loop {
            match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::AGAIN | Errno::ACCESS) if !by.passed() => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(self.unable("locking its creation", error.into())),
            }
        }
    }

    /// Deletes generations of earlier boots and half-made ones. The caller has the creation lock.
    fn remove_leftovers(&self, current: &str) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| *name != current) else { continue };
            let boot = name.strip_prefix("boot-").is_some_and(is_boot_id);
            let half_made = name.strip_prefix("new-").is_some_and(|pid| pid.parse::<u32>().is_ok());
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir
                && (boot || half_made)
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                log::warn!(
                    "{}: {:?} of an earlier boot cannot be deleted: {error}",
                    self.store,
                    entry.path()
                );
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

fn describe(path: &Path) -> String {
    format!("embedded:{}", path.to_string_lossy().escape_debug())
}

/// 8-4-4-4-12 lower-case hexadecimal digits: nothing else may become part of a path.
fn is_boot_id(id: &str) -> bool {
    let groups: Vec<&str> = id.split('-').collect();
    let hex = |group: &&str| group.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(hex)
}

/// By how much this process's boot clock is shifted; kernels without time namespaces do not shift it.
fn clock_offset() -> String {
    let offsets = fs::read_to_string(CLOCK_OFFSETS_FILE).unwrap_or_default();
    let line = offsets.lines().find(|line| line.starts_with("boottime"));
    let numbers = line.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" "));
    numbers.unwrap_or_else(|| "0 0".into())
}

/// Writes a file of ours anew, synced.
fn write_file(path: &Path, content: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Place) {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::at(&dir.path().join("store")).unwrap();
        (dir, place)
    }

    #[test]
    fn fences_of_a_later_boot_are_above_all_reserved_before_even_if_the_clock_went_back() {
        let (_dir, place) = place();
        let (_, first_limit) = place.reserve_fences().unwrap();
        // The clock has hardly moved, so by it alone the next boot would start below the limit.
        let (start, limit) = place.reserve_fences().unwrap();
        assert!(start >= first_limit, "{start} < {first_limit}");
        assert_eq!(limit, start + FENCES_RESERVED);
    }

    #[test]
    fn a_damaged_fence_floor_is_refused_rather_than_taken_for_zero() {
        let (_dir, place) = place();
        fs::write(place.dir.join("fence-floor"), "12x\n").unwrap();
        let error = place.reserve_fences().unwrap_err();
        assert!(error.to_string().contains("fence-floor"), "{error}");
        fs::write(place.dir.join("fence-floor"), u64::MAX.to_string()).unwrap();
        assert!(place.reserve_fences().is_err(), "fences must not wrap");
    }

    #[test]
    fn leftovers_are_deleted_and_nothing_that_is_not_ours() {
        let (_dir, place) = place();
        let old = "boot-01234567-89ab-cdef-0123-456789abcdef";
        let current = "boot-11111111-2222-3333-4444-555555555555";
        let kept = ["boot-notours", "new-x", "documents", current];
        for name in [old, "new-4711"].iter().chain(&kept) {
            fs::create_dir(place.dir.join(name)).unwrap();
            fs::write(place.dir.join(name).join("locks"), "x").unwrap();
        }
        fs::write(place.dir.join("new-4712"), "a file").unwrap();
        place.remove_leftovers(current);
        assert!(!place.dir.join(old).exists() && !place.dir.join("new-4711").exists());
        assert!(kept.iter().all(|name| place.dir.join(name).join("locks").exists()));
        assert!(place.dir.join("new-4712").exists());
    }

    #[test]
    fn only_a_boot_id_becomes_part_of_a_path() {
        assert!(is_boot_id("01234567-89ab-cdef-0123-456789abcdef"));
        for bad in ["", "..", "01234567-89ab-cdef-0123-456789abcde/", "01234567-89AB-cdef-0123-456789abcdef"]
        {
            assert!(!is_boot_id(bad), "{bad}");
        }
    }
}

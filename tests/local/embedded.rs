//! Helpers for the tests of the embedded store: they acquire locks and find the store's files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, EmbeddedStore, Grant, Identity, Level, LockName, LockStore, NamePolicy};
use dlm::{Deadline, Result};
use dlm_testkit::LONG;

/// Longer than any test takes: no lease of this length expires.
pub(crate) const TTL: Duration = Duration::from_secs(1800);

pub(crate) fn soon() -> Deadline {
    Deadline::after(LONG)
}

pub(crate) fn name(id: &str) -> LockName {
    LockName::new(Level::Xdc, "tests", None, id, NamePolicy::Strict).unwrap()
}

/// Opens a store in a new temporary directory.
pub(crate) fn open() -> (tempfile::TempDir, EmbeddedStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    (dir, store)
}

pub(crate) fn attempt(store: &EmbeddedStore, name: &LockName, ttl: Duration) -> Result<Acquired> {
    let identity = Identity::this_process("testing").unwrap();
    let mut doubtful = Vec::new();
    let acquired = store.acquire(Attempt { name, ttl, identity: &identity, by: soon() }, &mut doubtful);
    assert!(doubtful.is_empty());
    acquired
}

/// Tries to acquire the lock. Returns `None` if it is held.
pub(crate) fn grant(store: &EmbeddedStore, name: &LockName, ttl: Duration) -> Option<Grant> {
    match attempt(store, name, ttl).unwrap() {
        Acquired::Granted(grant) => Some(grant),
        Acquired::Held(_) => None,
    }
}

/// Tries to acquire the lock until it is free. Panics after five minutes.
pub(crate) fn wait_for(store: &EmbeddedStore, name: &LockName, ttl: Duration) -> Grant {
    let by = Deadline::after(5 * LONG);
    loop {
        if let Some(grant) = grant(store, name, ttl) {
            return grant;
        }
        assert!(!by.passed(), "the lock never became free");
        thread::sleep(Duration::from_micros(200));
    }
}

pub(crate) fn fence(grant: &Grant) -> u64 {
    grant.fence.unwrap().0
}

/// Returns whether the directory contains an incomplete generation of a store.
pub(crate) fn has_half_made(store: &Path) -> bool {
    fs::read_dir(store).unwrap().any(|entry| entry.unwrap().file_name().to_str().unwrap().starts_with("new-"))
}

/// Returns the file with the locks.
pub(crate) fn data_file(store: &Path) -> PathBuf {
    let generation =
        fs::read_dir(store).unwrap().flatten().map(|entry| entry.path()).find(|path| path.is_dir());
    generation.unwrap().join("locks")
}

/// Returns how much of the disk the locks take.
pub(crate) fn data_size(store: &Path) -> u64 {
    512 * fs::metadata(data_file(store)).unwrap().blocks()
}

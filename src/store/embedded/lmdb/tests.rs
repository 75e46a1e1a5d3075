//! Tests that need a process that may fork.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::*;
use crate::error::Code;
use crate::names::holder::Identity;
use crate::names::lock_name::{Level, LockName, NamePolicy};
use crate::names::owner::OwnerRecord;
use crate::store::{Acquired, Attempt, EmbeddedStore, LockStore, Released};
use crate::testing::fork::{alone, in_forked_child};
use crate::testing::patience::LONG;

/// Where LMDB's lock table has the readers, 64 bytes each: the number of the transaction, that of the process, and that
/// of the thread.
const READERS_AT: u64 = 128;

fn name(id: &str) -> LockName {
    LockName::new(Level::Xdc, "tests", None, id, NamePolicy::Strict).unwrap()
}

fn acquire(store: &EmbeddedStore, id: &str) -> Result<Option<OwnerRecord>> {
    let (identity, ttl, by) = (Identity::this_process("")?, Duration::from_secs(3600), soon());
    match store.acquire(Attempt { name: &name(id), ttl, identity: &identity, by }, &mut Vec::new())? {
        Acquired::Granted(grant) => Ok(Some(grant.owner_record)),
        Acquired::Held(_) => Ok(None),
    }
}

fn soon() -> Deadline {
    Deadline::after(LONG)
}

#[test]
fn a_forked_child_is_refused_until_it_opens_the_store_anew_and_the_parent_is_unhurt() {
    if !alone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut store = Some(EmbeddedStore::open(dir.path()).unwrap());
    let held = acquire(store.as_ref().unwrap(), "held").unwrap().unwrap();
    for round in 0..20 {
        let ran = in_forked_child(|| {
            let inherited = store.take().unwrap();
            let refused = [
                acquire(&inherited, "mine").map(|_| ()),
                inherited.release(&name("held"), &held, soon()).map(|_| ()),
                inherited.renew(&name("held"), &held, Duration::ZERO, soon()).map(|_| ()),
                inherited.holder(&name("held"), soon()).map(|_| ()),
            ];
            let refused =
                refused.iter().all(|answer| answer.as_ref().is_err_and(|e| e.code() == Code::Forked));
            if round % 2 == 0 {
                drop(inherited);
            } else {
                mem::forget(inherited);
            }
            let own = EmbeddedStore::open(dir.path()).unwrap();
            let excluded = acquire(&own, "held").unwrap().is_none();
            let mine = acquire(&own, "mine").unwrap().unwrap();
            refused && excluded && own.release(&name("mine"), &mine, soon()).unwrap() == Released::Freed
        });
        assert!(ran, "round {round}");
        let store = store.as_ref().unwrap();
        assert!(
            store.holder(&name("held"), soon()).unwrap().is_some(),
            "the child's exit freed the parent's lock"
        );
        let other = acquire(store, "other").unwrap().unwrap();
        assert_eq!(store.release(&name("other"), &other, soon()).unwrap(), Released::Freed);
    }
    assert_eq!(store.unwrap().release(&name("held"), &held, soon()).unwrap(), Released::Freed);
    let left = fs::read_dir(dir.path()).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let files: usize = left.map(|generation| fs::read_dir(generation.path()).unwrap().count()).sum();
    assert_eq!(files, 4, "a second name for the files was left behind");
}

#[test]
fn a_program_started_by_this_one_inherits_no_file_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path()).unwrap();
    let listing = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    assert!(listing.contains("/proc"), "{listing}");
    assert!(!listing.contains("boot-"), "{listing}");
    drop(store);
}

/// The files in the directory of the generation.
fn generation(store: &Path) -> PathBuf {
    let dirs = fs::read_dir(store).unwrap().flatten().map(|entry| entry.path());
    dirs.into_iter().find(|path| path.is_dir()).unwrap()
}

/// As a backup, a scanner or another copy of the library does.
fn open_and_close(file: &Path) {
    drop(File::open(file).unwrap());
}

/// A reader's page would be written anew if another process took the reader for a dead one, or forgot it.
#[test]
fn what_opens_and_closes_the_files_in_a_process_takes_no_lock_from_it() {
    if !alone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path()).unwrap();
    let key = b"record";
    let put = |store: &EmbeddedStore, value: &str| {
        let put = |writer: &mut Writer<'_>| {
            writer.put(key, value.as_bytes())?;
            Ok(TxnEnd::Commit(()))
        };
        store.environment.write(soon(), put).unwrap();
    };
    put(&store, "before");
    for file in fs::read_dir(generation(dir.path())).unwrap() {
        open_and_close(&file.unwrap().path());
    }
    let read = store.environment.read(soon(), |reader| {
        let before = reader.get(key)?.map(<[u8]>::to_vec);
        let ran = in_forked_child(|| {
            let own = EmbeddedStore::open(dir.path()).unwrap();
            (0..50).for_each(|number| put(&own, &format!("later {number}")));
            drop(own);
            EmbeddedStore::open(dir.path()).is_ok()
        });
        Ok((ran, before, reader.get(key)?.map(<[u8]>::to_vec)))
    });
    let (ran, before, after) = read.unwrap();
    assert!(ran, "another process could not use the store");
    assert_eq!(before.as_deref(), Some(&b"before"[..]));
    assert_eq!(after, before, "a page was written while it was read");
    assert!(acquire(&store, "a").unwrap().is_some());
}

/// A program with libdlm.a may load a library that brings libdlm.so.
#[test]
fn a_second_copy_of_the_library_in_a_process_is_refused_and_harms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path()).unwrap();
    let held = acquire(&store, "held").unwrap().unwrap();
    let files = generation(dir.path());
    let id = check_private("second", &files, Access::Owner).unwrap();
    let second = || {
        let in_use = DirLock::share(&files, soon()).unwrap().unwrap();
        EnvironmentInner::open("second", &files, id, in_use, LIMIT, soon())
    };
    let refused = second().unwrap_err();
    assert_eq!(refused.code(), Code::ConnectionError);
    assert!(refused.to_string().contains("another copy of this library"), "{refused}");
    assert!(acquire(&store, "held").unwrap().is_none());
    assert_eq!(store.release(&name("held"), &held, soon()).unwrap(), Released::Freed);
    drop(store);
    second().unwrap();
}

/// LMDB would take the readers of a killed process for those of a later one with its number, as every container has.
#[test]
fn readers_that_a_killed_process_left_are_not_taken_for_those_of_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(dir.path()).unwrap());
    let table = File::options().read(true).write(true).open(generation(dir.path()).join(LOCK_FILE)).unwrap();
    let mut reader = [0; 64];
    reader[0] = 1;
    reader[8..12].copy_from_slice(&std::process::id().to_ne_bytes());
    let mut before = [0; 64];
    table.read_exact_at(&mut before, READERS_AT).unwrap();
    assert_eq!((&before[..8], &before[8..12]), (&[0xff; 8][..], &[0; 4][..]), "another place for readers");
    table.write_all_at(&reader, READERS_AT).unwrap();
    drop(table);
    let store = EmbeddedStore::open(dir.path()).unwrap();
    let size = || fs::metadata(generation(dir.path()).join(DATA_FILE)).unwrap().len();
    let before = size();
    for _ in 0..200 {
        let held = acquire(&store, "a").unwrap().unwrap();
        store.release(&name("a"), &held, soon()).unwrap();
    }
    assert!(size() < before + (1 << 20), "no page was used again: {before} became {}", size());
}

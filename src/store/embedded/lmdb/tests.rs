//! Tests that need a process that may fork.

use std::time::Duration;

use super::*;
use crate::error::Code;
use crate::holder::Identity;
use crate::name::{Level, LockName, NamePolicy};
use crate::owner::OwnerRecord;
use crate::patience::LONG;
use crate::process::fork::{alone, in_forked_child};
use crate::store::{Acquired, Attempt, EmbeddedStore, LockStore, Released};
use crate::{AwaitOptions, LatchKind, LockManager};

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

/// The library's threads run and hold its mutexes while the process is forked.
#[test]
fn a_forked_child_is_refused_latches_and_hangs_on_none_and_the_parent_is_unhurt() {
    if !alone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}?client=tests&farm=dc1&poll=10ms&timeout=60s", dir.path().display());
    let manager = LockManager::open(&uri).unwrap();
    let latch = manager.latch("a", Level::Dc, LatchKind::CountDown).unwrap();
    latch.create(1).unwrap();
    let watch = latch.watch().unwrap();
    let mut inherited = Some((manager, latch.clone(), latch.watch().unwrap()));
    for round in 0..50 {
        let ran = in_forked_child(|| {
            let (manager, latch, watch) = inherited.take().unwrap();
            let refused = [
                latch.count().map(|_| ()),
                latch.count_down(),
                latch.create(1),
                latch.await_open(),
                latch.watch().map(|_| ()),
                watch.is_open().map(|_| ()),
                watch.wait(&AwaitOptions::new()).map(|_| ()),
                manager.close(),
            ];
            let refused =
                refused.iter().all(|answer| answer.as_ref().is_err_and(|e| e.code() == Code::Forked));
            drop((watch, latch, manager));
            let own = LockManager::open(&uri).unwrap();
            let own = own.latch("a", Level::Dc, LatchKind::CountDown).unwrap();
            refused && !own.await_open_for(Duration::from_millis(1)).unwrap()
        });
        assert!(ran, "round {round}");
    }
    latch.count_down().unwrap();
    assert!(watch.wait(&AwaitOptions::new().wait(LONG)).unwrap());
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

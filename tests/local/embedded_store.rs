//! Tests of the embedded store beyond the contract of all stores: its files, its longest names and times, several
//! handles and hundreds of threads on one directory.
#![cfg(feature = "embedded")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::embedded::{TTL, data_size, fence, grant, name, open, soon, wait_for};
use dlm::store::{EmbeddedStore, Level, LockName, LockStore, NamePolicy, Released};

#[test]
fn renewing_never_shortens_a_lease() {
    let (_dir, store) = open();
    let held = grant(&store, &name("a"), TTL).unwrap();
    let owner_record =
        store.renew(&name("a"), &held.owner_record, TTL / 100, soon()).unwrap().expect("still ours");
    let remaining = store.holder(&name("a"), soon()).unwrap().unwrap().remaining.unwrap();
    assert!(remaining > TTL / 2, "a renewal shortened the lease to {remaining:?}");
    assert_eq!(store.release(&name("a"), &owner_record, soon()).unwrap(), Released::Freed);
}

#[test]
fn leases_and_fences_outlive_the_store_that_gave_them() {
    let (dir, store) = open();
    let held = grant(&store, &name("a"), TTL).unwrap();
    drop(store);
    let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    assert!(grant(&store, &name("a"), TTL).is_none(), "the lease ended when the store was closed");
    let next = grant(&store, &name("b"), TTL).unwrap();
    assert!(fence(&next) > fence(&held), "{} after {}", fence(&next), fence(&held));
}

#[test]
fn a_released_lock_leaves_nothing_behind() {
    let (dir, store) = open();
    let cycle = |id: u32| {
        let name = name(&format!("{id}-{}", "x".repeat(900)));
        let held = grant(&store, &name, TTL).unwrap();
        assert_eq!(store.release(&name, &held.owner_record, soon()).unwrap(), Released::Freed);
    };
    (0..200).for_each(cycle);
    let size = data_size(&dir.path().join("store"));
    (200..3_000).for_each(cycle);
    let grown = data_size(&dir.path().join("store"));
    assert!(grown <= size + 512 * 1024, "{size} grew to {grown} bytes");
}

#[test]
fn expired_locks_nobody_comes_back_to_are_swept_by_later_grants() {
    let (dir, store) = open();
    let cycle = |id: u32| {
        let abandoned = name(&format!("{id}-{}", "x".repeat(900)));
        grant(&store, &abandoned, Duration::from_micros(1)).unwrap();
    };
    (0..500).for_each(cycle);
    let size = data_size(&dir.path().join("store"));
    (500..5_000).for_each(cycle);
    let grown = data_size(&dir.path().join("store"));
    assert!(grown <= 2 * size, "{size} grew to {grown} bytes");
}

#[test]
fn the_longest_and_oddest_names_are_kept_apart() {
    let (_dir, store) = open();
    let (client, farm) = ("c".repeat(255), "f".repeat(255));
    let odd = ["#", "ü\n", " ", "\u{1F512}", &"i".repeat(1024), &"i".repeat(1023)];
    let named = |id: &str| LockName::new(Level::Dc, &client, Some(&farm), id, NamePolicy::Strict).unwrap();
    let held: Vec<_> = odd.iter().map(|id| grant(&store, &named(id), TTL).expect("names collide")).collect();
    for (id, grant) in odd.iter().zip(&held) {
        assert_eq!(store.release(&named(id), &grant.owner_record, soon()).unwrap(), Released::Freed);
    }
}

#[test]
fn absurd_lease_times_neither_overflow_nor_expire_early() {
    let (_dir, store) = open();
    let held = grant(&store, &name("a"), Duration::MAX).unwrap();
    assert!(grant(&store, &name("a"), TTL).is_none());
    assert!(store.renew(&name("a"), &held.owner_record, Duration::MAX, soon()).unwrap().is_some());
    assert!(grant(&store, &name("b"), Duration::ZERO).is_some());
    assert!(grant(&store, &name("b"), TTL).is_some(), "a lease with a TTL of 0 did not expire at once");
}

#[test]
fn two_stores_of_one_process_in_one_directory_are_one_store() {
    let (dir, first) = open();
    let path = dir.path().join("store");
    std::os::unix::fs::symlink(&path, dir.path().join("alias")).unwrap();
    let second = EmbeddedStore::open(&dir.path().join("alias")).unwrap();
    let held = grant(&first, &name("a"), TTL).unwrap();
    assert!(grant(&second, &name("a"), TTL).is_none(), "two holders");
    drop(first);
    assert_eq!(second.release(&name("a"), &held.owner_record, soon()).unwrap(), Released::Freed);
    drop(second);
    assert!(grant(&EmbeddedStore::open(&path).unwrap(), &name("a"), TTL).is_some());
}

#[test]
fn opening_and_closing_in_many_threads_loses_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let inside = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let store = EmbeddedStore::open(&path).unwrap();
                    let held = wait_for(&store, &name("a"), TTL);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(
                        store.release(&name("a"), &held.owner_record, soon()).unwrap(),
                        Released::Freed
                    );
                }
            });
        }
    });
}

#[test]
fn hundreds_of_polling_threads_need_no_reader_slot_each() {
    let (_dir, store) = open();
    let held = grant(&store, &name("a"), TTL).unwrap();
    let store = Arc::new(store);
    let threads: Vec<_> = (0..500)
        .map(|number| {
            let store = Arc::clone(&store);
            thread::Builder::new()
                .name(format!("dlm-test-polling-{number}"))
                .stack_size(64 * 1024)
                .spawn(move || (0..5).all(|_| store.holder(&name("a"), soon()).unwrap().is_some()))
                .unwrap()
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    assert_eq!(store.release(&name("a"), &held.owner_record, soon()).unwrap(), Released::Freed);
}

//! The embedded store on disks that are full, small, read-only or under a quota, on the file systems that people have, and with
//! files that are damaged or deleted. An error names the cause, and no lock has two holders.
#![cfg(feature = "embedded")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dlm::store::{Acquired, EmbeddedStore, LatchStore, LockName, LockStore, NewLatch, Released};
use dlm::{Code, LatchName, NamePolicy};
use dlm_testkit::{skipped, until};

use super::embedded::{TTL, attempt, data_file, fence, grant, name, open, soon};

#[test]
fn a_full_disk_refuses_grants_clearly_and_recovers() {
    full_disk_refuses_grants(EmbeddedStore::open);
    full_disk_refuses_grants(EmbeddedStore::open_group);
}

fn full_disk_refuses_grants(open: fn(&Path) -> dlm::Result<EmbeddedStore>) {
    let Some(disk) = SmallDisk::in_memory("size=4m") else {
        return skipped("tmpfs", NO_DISK);
    };
    let store = open(&disk.path.join("store")).unwrap();
    let held = grant(&store, &name("first"), TTL).unwrap();
    let mut granted = Vec::new();
    let error = (0..10_000)
        .find_map(|id| {
            let name = name(&format!("{id}-{}", "x".repeat(1000)));
            match attempt(&store, &name, TTL) {
                Ok(Acquired::Granted(grant)) => granted.push((name, grant)),
                Ok(Acquired::Held(_)) => panic!("nobody else is here"),
                Err(error) => return Some((name, error)),
            }
            None
        })
        .expect("4 MiB did not become full");
    assert_eq!(error.1.code(), Code::RetriesExhausted, "{}", error.1.chain());
    assert!(error.1.to_string().contains("free space"), "{}", error.1);
    assert!(store.holder(&error.0, soon()).unwrap().is_none(), "a failed grant was written");
    assert!(store.holder(&name("first"), soon()).unwrap().is_some(), "a held lock was lost");
    // Even a release needs free space. Without it, the leases have to expire. Here the disk grows instead.
    assert!(
        Command::new("mount").args(["-o", "remount,size=16m"]).arg(&disk.path).status().unwrap().success()
    );
    for (name, grant) in &granted {
        assert_eq!(store.release(name, &grant.owner_record, soon()).unwrap(), Released::Freed);
    }
    let next = grant(&store, &name("next"), TTL).unwrap();
    assert!(fence(&next) > fence(&held));
    drop(store);
    open(&disk.path.join("store")).unwrap();
}

/// In a store of one user, a part of the file is kept for them. Nothing may be written where the disk has no place: that would
/// kill the process.
#[test]
fn on_a_full_disk_all_that_is_held_can_be_renewed_and_released() {
    match SmallDisk::in_memory("size=8m") {
        Some(disk) => full_disk_renews_and_releases(&disk),
        None => skipped("tmpfs", NO_DISK),
    }
    match SmallDisk::in_file("ext4", 24) {
        Some(disk) => full_disk_renews_and_releases(&disk),
        None => skipped("ext4", NO_DISK),
    }
}

fn full_disk_renews_and_releases(disk: &SmallDisk) {
    let store = EmbeddedStore::open(&disk.path.join("store")).unwrap();
    let held: Vec<_> = (0..100).map(|id| (long(id), grant(&store, &long(id), TTL).unwrap())).collect();
    let filler = disk.fill();
    let refused = (100..10_000).find_map(|id| attempt(&store, &long(id), TTL).err()).unwrap();
    assert!(refused.to_string().contains("free space"), "{refused}");
    let latch = |id| {
        let (name, by) = (LatchName::new("tests", "dc1", id, NamePolicy::Strict).unwrap(), soon());
        store.create_latch(&NewLatch { name: &name, count: 1, roster: &[], ttl: TTL, by })
    };
    assert!(latch("refused").unwrap_err().to_string().contains("free space"));
    for round in 1..=3 {
        for (name, grant) in &held {
            let renewed = store.renew(name, &grant.owner_record, round * TTL, soon()).unwrap();
            assert!(renewed.is_some());
        }
    }
    for (name, grant) in &held {
        assert_eq!(store.release(name, &grant.owner_record, soon()).unwrap(), Released::Freed);
    }
    fs::remove_file(filler).unwrap();
    until("the disk has room", || attempt(&store, &name("a"), TTL).is_ok());
}

/// Whichever way the file is changed. On a file system that copies on write, a renewal may need a new place, too.
#[test]
fn a_full_disk_of_any_kind_refuses_grants_and_loses_none() {
    for (kind, mib) in [("ext4", 24), ("xfs", 320), ("btrfs", 120)] {
        for open in [EmbeddedStore::open, EmbeddedStore::open_group] {
            if kind == "btrfs" && linux() < (6, 16) {
                skipped(
                    kind,
                    "before Linux 6.16 it ends processes that change a mapped file when it is full",
                );
                break;
            }
            let Some(disk) = SmallDisk::in_file(kind, mib) else {
                skipped(kind, NO_DISK);
                break;
            };
            full_disk_loses_nothing(kind, &disk, open);
        }
    }
}

fn full_disk_loses_nothing(what: &str, disk: &SmallDisk, open: fn(&Path) -> dlm::Result<EmbeddedStore>) {
    let dir = disk.path.join("store");
    let store = open(&dir).unwrap();
    let held: Vec<_> = (0..100).map(|id| (long(id), grant(&store, &long(id), TTL).unwrap())).collect();
    let filler = disk.fill();
    let mut granted = Vec::new();
    let (refused, error) = (100..10_000)
        .find_map(|id| match attempt(&store, &long(id), TTL) {
            Ok(Acquired::Granted(grant)) => {
                granted.push((long(id), grant));
                None
            }
            Ok(Acquired::Held(_)) => panic!("nobody else is here"),
            Err(error) => Some((long(id), error)),
        })
        .unwrap_or_else(|| panic!("{what}: there was room for all"));
    assert_eq!(error.code(), Code::RetriesExhausted, "{what}: {}", error.chain());
    assert!(error.to_string().contains("free space"), "{what}: {error}");
    assert!(store.holder(&refused, soon()).unwrap().is_none(), "{what}: a failed grant was written");
    for (name, grant) in &held {
        assert!(store.holder(name, soon()).unwrap().is_some(), "{what}: a held lock was lost");
        match store.renew(name, &grant.owner_record, TTL, soon()) {
            Ok(renewed) => assert!(renewed.is_some(), "{what}"),
            Err(error) => assert!(error.to_string().contains("free space"), "{what}: {error}"),
        }
    }
    fs::remove_file(filler).unwrap();
    let mut next = None;
    until("the disk has room", || {
        next = attempt(&store, &name("next"), TTL).ok();
        next.is_some()
    });
    let Some(Acquired::Granted(next)) = next else { panic!("{what}: nobody else is here") };
    for (name, grant) in held.iter().chain(&granted) {
        assert!(fence(&next) > fence(grant), "{what}");
        assert_eq!(store.release(name, &grant.owner_record, soon()).unwrap(), Released::Freed, "{what}");
    }
    drop(store);
    open(&dir).unwrap();
}

fn linux() -> (u32, u32) {
    let uname = rustix::system::uname();
    let mut numbers =
        uname.release().to_str().unwrap().split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A name of which few fit into a page.
fn long(id: u32) -> LockName {
    name(&format!("{id}-{}", "x".repeat(1000)))
}

#[test]
fn a_disk_without_room_for_the_files_is_an_error_and_leaves_no_half_made_store() {
    let Some(disk) = SmallDisk::in_memory("size=64k") else {
        return skipped("tmpfs", NO_DISK);
    };
    for _ in 0..3 {
        let error = EmbeddedStore::open(&disk.path.join("store")).unwrap_err();
        assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
        assert!(error.chain().contains("No space"), "{}", error.chain());
    }
    assert!(
        Command::new("mount").args(["-o", "remount,size=4m"]).arg(&disk.path).status().unwrap().success()
    );
    let store = EmbeddedStore::open(&disk.path.join("store")).unwrap();
    assert!(grant(&store, &name("a"), TTL).is_some());
}

#[test]
fn a_read_only_disk_is_an_error_at_opening_and_harmless_once_it_is_writable_again() {
    let Some(disk) = SmallDisk::in_memory("size=4m") else {
        return skipped("tmpfs", NO_DISK);
    };
    let remount =
        |how: &str| Command::new("mount").args(["-o", how]).arg(&disk.path).status().unwrap().success();
    drop(EmbeddedStore::open(&disk.path.join("store")).unwrap());
    // The disk is busy while child processes that other tests start have its files open.
    until("the disk is read-only", || remount("remount,ro"));
    let error = EmbeddedStore::open(&disk.path.join("store")).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
    assert!(error.chain().contains("Read-only"), "{}", error.chain());
    assert!(remount("remount,rw"));
    assert!(grant(&EmbeddedStore::open(&disk.path.join("store")).unwrap(), &name("a"), TTL).is_some());
}

#[test]
fn damaged_files_are_an_error_not_a_crash() {
    type Damage = (&'static str, fn(&Path));
    let damage: [Damage; 6] = [
        ("garbage", |file| fs::write(file, vec![0xa5; 64 * 1024]).unwrap()),
        ("cut within the header", |file| {
            File::options().write(true).open(file).unwrap().set_len(100).unwrap()
        }),
        ("cut behind the header", |file| {
            File::options().write(true).open(file).unwrap().set_len(8192).unwrap()
        }),
        ("cut at its end", |file| {
            let file = File::options().write(true).open(file).unwrap();
            file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
        }),
        ("zeros", |file| fs::write(file, vec![0; 1 << 20]).unwrap()),
        ("empty", |file| File::create(file).unwrap().set_len(0).unwrap()),
    ];
    for (what, damage) in damage {
        let (dir, store) = open();
        grant(&store, &name("a"), TTL).unwrap();
        drop(store);
        damage(&data_file(&dir.path().join("store")));
        let error = EmbeddedStore::open(&dir.path().join("store")).expect_err(what);
        assert_eq!(error.code(), Code::InternalError, "{what}: {}", error.chain());
        assert!(error.to_string().contains("damaged"), "{what}: {error}");
    }
}

/// Earlier versions could leave such a generation, and nobody could open it again.
#[test]
fn a_store_that_lacks_files_is_completed_by_the_next_unless_somebody_uses_it() {
    for lacks in 1..32_u32 {
        let (dir, store) = open();
        let path = dir.path().join("store");
        let mut files = vec!["clock", "gate", "locks-lock", "locks", "words"];
        files.retain(|file| data_file(&path).with_file_name(file).exists());
        if lacks >= 1 << files.len() {
            // Only a file that is changed through the memory map has the last one.
            return;
        }
        let first = grant(&store, &name("a"), TTL).unwrap();
        let generation = data_file(&path).parent().unwrap().to_owned();
        let lacking = files.iter().enumerate().filter(|(at, _)| lacks & 1 << at != 0).map(|(_, file)| *file);
        let lacking: Vec<_> = lacking.collect();
        let delete = || lacking.iter().for_each(|file| fs::remove_file(generation.join(file)).unwrap());
        drop(store);
        delete();
        let store =
            EmbeddedStore::open(&path).unwrap_or_else(|error| panic!("{lacking:?}: {}", error.chain()));
        let held = grant(&store, &name("a"), TTL).is_none();
        assert_eq!(held, !lacking.contains(&"locks"), "{lacking:?}: the records that are there stay");
        assert!(fence(&grant(&store, &name("b"), TTL).unwrap()) > fence(&first), "{lacking:?}");
        assert_eq!(fs::read_dir(&generation).unwrap().count(), files.len(), "{lacking:?}");
        delete();
        let error = EmbeddedStore::open(&path).map(drop).unwrap_err();
        assert!(error.to_string().contains("other processes use it"), "{lacking:?}: {error}");
    }
}

#[test]
fn deleted_files_are_noticed_before_two_processes_hold_one_lock() {
    let (dir, store) = open();
    let held = grant(&store, &name("a"), TTL).unwrap();
    fs::remove_dir_all(dir.path().join("store")).unwrap();
    let error = attempt(&store, &name("b"), TTL).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError);
    assert!(error.to_string().contains("deleted"), "{error}");
    assert!(
        store.renew(&name("a"), &held.owner_record, TTL, soon()).is_err(),
        "renewed in files that no other process uses"
    );
    let anew = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    assert!(grant(&anew, &name("a"), TTL).is_some());
}

const NO_DISK: &str = "cannot make a small file system and mount it";

/// A file system with little room. Dropping it unmounts it.
struct SmallDisk {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl SmallDisk {
    fn in_memory(options: &str) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("mode=0700,{options}");
        SmallDisk::mount(dir, ["-t", "tmpfs", "-o", &options, "dlm-test"])
    }

    /// In a file, which the kernel takes for a disk.
    fn in_file(kind: &str, mib: u64) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(mib << 20).unwrap();
        let mut mkfs = Command::new(format!("mkfs.{kind}"));
        let made = mkfs.arg("-q").arg(&image).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let image = image.to_str().unwrap();
        made.is_ok_and(|status| status.success())
            .then(|| SmallDisk::mount(dir, ["-t", kind, "-o", "loop", image]))?
    }

    fn mount<const N: usize>(dir: tempfile::TempDir, options: [&str; N]) -> Option<SmallDisk> {
        let path = dir.path().join("disk");
        fs::create_dir(&path).unwrap();
        let mount = Command::new("mount").args(options).arg(&path).stderr(Stdio::null()).status();
        let mounted = rustix::process::geteuid().is_root() && mount.is_ok_and(|status| status.success());
        mounted.then_some(SmallDisk { path, _dir: dir })
    }

    /// Takes all that is free, as another program might. Returns the file that has it.
    fn fill(&self) -> PathBuf {
        let path = self.path.join("filler");
        let mut filler = File::create(&path).unwrap();
        // What was written may take less than was set aside for it.
        for _ in 0..2 {
            for size in [1 << 20, 64 << 10, 4 << 10] {
                while filler.write_all(&vec![1; size]).is_ok() {}
            }
            let _ = filler.sync_all();
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount, because a failed test may still have files open.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

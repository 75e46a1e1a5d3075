//! Tests that need a process that may fork.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};

use super::*;
use crate::error::Code;
use crate::names::holder::Identity;
use crate::names::lock_name::{Level, LockName, NamePolicy};
use crate::names::owner::OwnerRecord;
use crate::store::{Acquired, Attempt, EmbeddedStore, LockStore, Released};
use crate::testing::fork::{alone, in_abandoned_child, in_forked_child};
use crate::testing::kills::killed_after;
#[cfg(target_arch = "x86_64")]
use crate::testing::kills::{End, killed_at_change};
use crate::testing::patience::{LONG, until};

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
    let store = store.unwrap();
    let is_mapped = store.environment.engine() == Some(Engine::Map);
    assert_eq!(store.release(&name("held"), &held, soon()).unwrap(), Released::Freed);
    drop(store);
    let left = fs::read_dir(dir.path()).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let files: usize = left.map(|generation| fs::read_dir(generation.path()).unwrap().count()).sum();
    assert_eq!(files, if is_mapped { 5 } else { 4 }, "a second name for the files was left behind");
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
    let size = || store.environment.size();
    let before = size();
    for _ in 0..200 {
        let held = acquire(&store, "a").unwrap().unwrap();
        store.release(&name("a"), &held, soon()).unwrap();
    }
    assert!(size() < before + (1 << 20), "no page was used again: {before} became {}", size());
}

/// Both records always have the same value.
const PAIR: [&[u8]; 2] = [b"one of two", b"two of two"];

fn put_pair(store: &EmbeddedStore, value: u64) {
    let put = |writer: &mut Writer<'_>| {
        PAIR.iter().try_for_each(|key| writer.put(key, &value.to_be_bytes()))?;
        Ok(TxnEnd::Commit(()))
    };
    store.environment.write(soon(), put).unwrap();
}

fn pair(store: &EmbeddedStore) -> u64 {
    let read = store
        .environment
        .read(soon(), |reader| Ok(PAIR.map(|key| reader.get(key).unwrap().map(|value| value.to_owned()))));
    let [one, two] = read.unwrap().map(|value| u64::from_be_bytes(value.unwrap().try_into().unwrap()));
    assert_eq!(one, two, "half of a transaction has happened");
    one
}

/// A store whose file is changed through the memory map, with its data file and its lock table. Its last transactions have put the
/// values 1 and 2. `None` if files are not changed so here.
fn mapped_store() -> Option<(tempfile::TempDir, File, File)> {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path()).unwrap();
    if store.environment.engine() != Some(Engine::Map) {
        eprintln!("*** SKIPPED: the folder for temporary files is not on ext4 or tmpfs");
        return None;
    }
    put_pair(&store, 1);
    put_pair(&store, 2);
    let open = |name| File::options().read(true).write(true).open(generation(dir.path()).join(name)).unwrap();
    let (data, table) = (open(DATA_FILE), open(LOCK_FILE));
    Some((dir, data, table))
}

/// Where a data file and a lock table have what a commit changes. `mapped_file` has the same numbers.
const MARK_AT: u64 = 2048;
const STATE_AT: u64 = MARK_AT + 8;
const ALLOCATED_AT: u64 = MARK_AT + 16;
const PAGE_SIZE_AT: u64 = MARK_AT + 24;
const TXN_AT: u64 = 0x90;
const LAST_TXN_AT: u64 = 8;

fn number_at(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).unwrap();
    u64::from_ne_bytes(bytes)
}

fn set(file: &File, at: u64, number: u64) {
    file.write_all_at(&number.to_ne_bytes(), at).unwrap();
}

/// The number of the last complete transaction, the count of commits, and the phase: 1 committing, 2 undoing.
fn state(complete: u64, count: u64, phase: u64) -> u64 {
    complete << 18 | count << 2 | phase
}

/// The place of the number in the page that completes this transaction.
fn number_of(data: &File, txn: u64) -> u64 {
    txn % 2 * number_at(data, PAGE_SIZE_AT) + TXN_AT
}

/// What a killed process can have left of a commit. The compiler chooses in which order LMDB writes the page that completes it, so
/// the number may be there although all else is still that of the transaction before the last one.
#[test]
fn nobody_sees_a_commit_that_a_killed_process_left_half_made_and_the_next_one_undoes_it() {
    type Step = fn(&File, &File, u64);
    let steps: [Step; 4] = [
        |data, _, txn| set(data, STATE_AT, state(txn - 1, 7, 1)),
        |data, _, txn| set(data, number_of(data, txn), 0),
        |data, _, txn| set(data, number_of(data, txn), txn),
        |_, table, txn| set(table, LAST_TXN_AT, txn),
    ];
    let undoing: Step = |data, _, txn| set(data, STATE_AT, state(txn - 1, 7, 2));
    for (made, undo) in (1..=steps.len()).flat_map(|made| [(made, false), (made, true)]) {
        for next in ["reads", "writes", "opens"] {
            let Some((dir, data, table)) = mapped_store() else { return };
            let mut open = (next != "opens").then(|| EmbeddedStore::open(dir.path()).unwrap());
            let txn = number_at(&table, LAST_TXN_AT) + 1;
            steps[..made].iter().for_each(|step| step(&data, &table, txn));
            if undo {
                undoing(&data, &table, txn);
            }
            let store = open.take().unwrap_or_else(|| EmbeddedStore::open(dir.path()).unwrap());
            if next == "writes" {
                put_pair(&store, 3);
            }
            assert_eq!(pair(&store), if next == "writes" { 3 } else { 2 }, "{made} steps, then one {next}");
            for value in 4..9 {
                put_pair(&store, value);
                assert_eq!(pair(&store), value, "{made} steps, then one {next}");
            }
            let ended = number_at(&data, STATE_AT);
            assert_eq!((ended & 3, ended >> 18), (0, number_at(&table, LAST_TXN_AT)));
        }
    }
}

/// A reader may be stopped between the moment at which LMDB gives it a transaction and the one at which it looks whether that
/// is complete. Meanwhile the page may be written anew.
#[test]
fn a_reader_uses_a_transaction_only_if_it_was_complete_before_and_its_page_is_still_there() {
    let Some((dir, data, table)) = mapped_store() else { return };
    let store = EmbeddedStore::open(dir.path()).unwrap();
    let open = store.environment.inner().open.read();
    let opened = open.as_ref().unwrap();
    let mapped = opened.mapped.as_ref().unwrap();
    let last = number_at(&table, LAST_TXN_AT);
    let before = mapped.complete();
    assert_eq!(before, last);
    assert!(mapped.is_usable(last, before) && mapped.is_usable(last - 1, before));
    let undone = mapped.begin(last + 1);
    assert!(mapped.is_usable(last, before), "the one before stays in use");
    assert!(!mapped.is_usable(last - 1, before), "its page is written anew");
    set(&data, number_of(&data, last + 1), last + 1);
    assert!(!mapped.is_usable(last + 1, mapped.complete()), "it is being committed");
    opened.undo_unfinished().unwrap();
    assert!(!mapped.is_usable(last + 1, mapped.complete()), "it was undone");
    let begun = mapped.begin(last + 1);
    assert!(!mapped.end(&undone), "the one that was undone ends the one that has its number now");
    set(&data, number_of(&data, last + 1), last + 1);
    assert!(!mapped.end(&undone) && mapped.end(&begun));
    assert!(!mapped.is_usable(last + 1, before), "it was not complete when the reader began with its number");
    assert!(mapped.is_usable(last + 1, mapped.complete()));
}

/// Anything in a process that closes the file `words` frees its lock. Then another process may take a commit for one that was
/// left.
#[test]
fn a_commit_that_was_taken_for_one_of_a_killed_process_is_told_as_not_made() {
    let Some((dir, ..)) = mapped_store() else { return };
    let store = EmbeddedStore::open(dir.path()).unwrap();
    let open = store.environment.inner().open.read();
    let opened = open.as_ref().unwrap();
    let begun = opened.mapped.as_ref().unwrap().begin(opened.mapped.as_ref().unwrap().complete() + 1);
    put_pair(&store, 4);
    assert_eq!(pair(&store), 4);
    assert!(!opened.mapped.as_ref().unwrap().end(&begun), "it has ended what another process has undone");
    assert_eq!(pair(&store), 4);
    put_pair(&store, 5);
    assert_eq!(pair(&store), 5);
}

/// Nobody writes after the killed process, so nobody else undoes its commit.
#[test]
fn a_reader_without_time_undoes_a_commit_that_was_left() {
    let Some((dir, data, table)) = mapped_store() else { return };
    let store = EmbeddedStore::open(dir.path()).unwrap();
    let txn = number_at(&table, LAST_TXN_AT) + 1;
    set(&data, STATE_AT, state(txn - 1, 7, 1));
    set(&table, LAST_TXN_AT, txn);
    let found = store
        .environment
        .read(Deadline::after(Duration::ZERO), |reader| Ok(reader.get(PAIR[0])?.map(<[u8]>::to_vec)));
    assert_eq!(found.unwrap(), Some(2_u64.to_be_bytes().to_vec()));
}

/// Kills a process at each of its stores to what a commit changes, one after the other.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_process_killed_at_any_store_of_a_commit_leaves_all_of_it_or_nothing() {
    if !alone() {
        return;
    }
    let Some((dir, data, table)) = mapped_store() else { return };
    let word = File::open(generation(dir.path()).join(SHARED_WORDS_FILE)).unwrap();
    let look = || {
        let parts = [(&data, 2 * number_at(&data, PAGE_SIZE_AT) as usize), (&table, 16), (&word, 8)];
        let mut seen = Vec::new();
        for (file, bytes) in parts {
            let begin = seen.len();
            seen.resize(begin + bytes, 0);
            file.read_exact_at(&mut seen[begin..], 0).unwrap();
        }
        seen
    };
    let mut last = 2;
    let mut happened = Vec::new();
    loop {
        let value = last + 1;
        let end = killed_at_change(
            happened.len() + 1,
            look,
            || EmbeddedStore::open(dir.path()).unwrap(),
            |store| put_pair(&store, value),
        );
        if end == End::Refused {
            return eprintln!("*** SKIPPED: this system does not allow to trace a process");
        }
        let store = EmbeddedStore::open(dir.path()).unwrap();
        let found = pair(&store);
        assert!(
            found == last || found == value,
            "{found} after {last}, killed at store {}",
            happened.len() + 1
        );
        if end == End::Done {
            assert_eq!(found, value);
            break;
        }
        happened.push(found == value);
        put_pair(&store, value + 1);
        assert_eq!(pair(&store), value + 1);
        last = value + 1;
    }
    // The writer, the note, the number cleared, some words of LMDB's, the note that it is complete, and no writer.
    let before = happened.iter().take_while(|happened| !**happened).count();
    assert!(before > 5, "{before} stores were seen: {happened:?}");
    assert_eq!(&happened[before..], [true, true], "it has happened before LMDB's last store");
}

#[test]
fn processes_killed_at_random_moments_leave_all_of_a_change_or_nothing() {
    if !alone() {
        return;
    }
    let Some((dir, ..)) = mapped_store() else { return };
    let mut last = 2;
    for round in 0..1_000 {
        killed_after(Duration::from_micros(fastrand::u64(1_000..4_000)), || {
            let store = EmbeddedStore::open(dir.path()).unwrap();
            (last + 1..u64::MAX).for_each(|value| put_pair(&store, value));
        });
        let store = EmbeddedStore::open(dir.path()).unwrap();
        let found = pair(&store);
        assert!(found >= last, "round {round}: {found} after {last}");
        last = found;
    }
}

/// A child that the writer has forked lives on. It shares what its parent has open, but is not the writer.
#[test]
fn whoever_waits_takes_the_place_of_a_writer_that_was_killed_although_its_child_lives() {
    if !alone() {
        return;
    }
    let Some((dir, ..)) = mapped_store() else { return };
    let store = EmbeddedStore::open(dir.path()).unwrap();
    killed_after(LONG, || {
        let own = EmbeddedStore::open(dir.path()).unwrap();
        let kill = |writer: &mut Writer<'_>| -> Result<TxnEnd<()>, Fault> {
            writer.put(PAIR[0], b"half")?;
            in_abandoned_child(|| until("the test is over", || !dir.path().exists()));
            kill_process(getpid(), Signal::KILL).unwrap();
            unreachable!("it was killed");
        };
        let _ = own.environment.write(soon(), kill);
    });
    assert_eq!(pair(&store), 2);
    let put = |writer: &mut Writer<'_>| {
        PAIR.iter().try_for_each(|key| writer.put(key, &4_u64.to_be_bytes()))?;
        Ok(TxnEnd::Commit(()))
    };
    let by = soon();
    store.environment.write(by, put).unwrap();
    assert!(!by.passed(), "it has waited until its deadline");
    assert_eq!(pair(&store), 4);
}

/// Until a generation is complete, nobody else uses it.
#[test]
fn a_store_that_lacks_its_shared_words_is_completed_while_nobody_uses_it() {
    let Some((dir, ..)) = mapped_store() else { return };
    let path = generation(dir.path()).join(SHARED_WORDS_FILE);
    for left in [None, Some(&[0; 8][..])] {
        let used = EmbeddedStore::open(dir.path()).unwrap();
        fs::remove_file(&path).unwrap();
        if let Some(left) = left {
            fs::write(&path, left).unwrap();
        }
        put_pair(&used, 3);
        drop(used);
        let store = EmbeddedStore::open(dir.path()).unwrap();
        assert_eq!((pair(&store), fs::metadata(&path).unwrap().len()), (3, shared_words::FILE_BYTES as u64));
        put_pair(&store, 4);
    }
}

/// The limit of a file is as good as a disk that is full, but of this process only.
#[test]
fn grants_leave_a_part_of_a_full_disk_to_what_is_held() {
    if !alone() {
        return;
    }
    let Some((dir, data, _)) = mapped_store() else { return };
    assert!(in_forked_child(|| {
        let store = EmbeddedStore::open(dir.path()).unwrap();
        let held = acquire(&store, "held").unwrap().unwrap();
        let full = Rlimit { current: Some(number_at(&data, ALLOCATED_AT)), maximum: None };
        setrlimit(Resource::Fsize, full).unwrap();
        let refused = (0..100_000).find_map(|id| acquire(&store, &format!("{id}")).err()).unwrap();
        assert_eq!(refused.code(), Code::RetriesExhausted, "{refused}");
        let left = number_at(&data, ALLOCATED_AT) - store.environment.size() as u64;
        assert!(left >= 256 * number_at(&data, PAGE_SIZE_AT), "only {left} bytes are left");
        store.renew(&name("held"), &held, Duration::from_secs(7200), soon()).unwrap().is_some()
            && store.release(&name("held"), &held, soon()).unwrap() == Released::Freed
    }));
}

/// Until a machine starts again, its store stays as it was made.
#[test]
fn a_store_that_is_written_by_calls_is_used_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    drop(EmbeddedStore::open_group(&path).unwrap());
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set(&path, 0o700);
    set(&generation(&path), 0o700);
    let store = EmbeddedStore::open(&path).unwrap();
    assert_eq!(store.environment.engine(), Some(Engine::Calls));
    let held = acquire(&store, "a").unwrap().unwrap();
    drop(store);
    let store = EmbeddedStore::open(&path).unwrap();
    assert!(acquire(&store, "a").unwrap().is_none());
    assert_eq!(store.release(&name("a"), &held, soon()).unwrap(), Released::Freed);
}

/// The header says how the file is changed. If the mark in the file says something else, one of them is damaged.
#[test]
fn a_store_whose_mark_is_gone_is_refused() {
    let Some((dir, data, _)) = mapped_store() else { return };
    data.write_all_at(&[0; 8], MARK_AT).unwrap();
    let refused = EmbeddedStore::open(dir.path()).unwrap_err();
    assert_eq!(refused.code(), Code::InternalError, "{refused}");
    assert!(refused.to_string().contains("header"), "{refused}");
}

//! What `Inspected::break_holder` promises over every store, and the contract of `dlm::store::HistoryStore`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::{HISTORY_MAX, HistoryKind, HistoryOf};
use dlm::{AcquireOptions, Code, Deadline, Lease, LeaseState, Level, LockManager, LostReason, Moment};

use super::{HELD, LONG, Site, code, eventually, in_time, patiently, spawn};
use crate::long::shortened;

/// A store without histories says so.
fn keeps_history(site: &Site) -> bool {
    let manager = site.manager();
    if !site.history {
        let lock = manager.lock("a", Level::Xdc).unwrap();
        assert_eq!(code(lock.history(None, 10)), Code::InvalidArgument);
    }
    site.history
}

/// Acquires the lock, and breaks it as another process would.
fn broken(site: &Site, holder: &LockManager, id: &str) -> (Lease, dlm::Broken) {
    let lease = holder.lock(id, Level::Xdc).unwrap().acquire().unwrap();
    let breaker = site.manager();
    let lock = breaker.lock(id, Level::Xdc).unwrap();
    let (seen, began) = (lock.inspected().unwrap(), Moment::now());
    let broken = seen.break_holder("it hangs").unwrap().expect("the holder still has it");
    // The grant of the break lasts for 10 s. If the store is slower than that, the break has no fence.
    let is_slow = Moment::now().since(began) >= Duration::from_secs(5);
    assert!(broken.fence > lease.fence() || (is_slow && broken.fence.is_none()), "{broken:?}");
    (lease, broken)
}

/// Asserts that the holder of a lease was told that it was broken, and why.
fn assert_told<T: std::fmt::Debug>(site: &Site, lease: &Lease, answer: dlm::Result<T>) {
    let error = answer.unwrap_err();
    assert_eq!(error.code(), Code::LeaseLost);
    assert!(lease.check().is_err());
    if site.history {
        assert_eq!(lease.state(), LeaseState::Lost(LostReason::Broken), "{error}");
        for text in [error.to_string(), lease.check().unwrap_err().to_string()] {
            assert!(text.contains("was broken by pid") && text.contains(r#"because "it hangs""#), "{text}");
        }
    }
}

pub fn a_broken_lock_is_free_with_a_higher_fence_and_its_holder_is_told_why(site: &Site) {
    let holder = site.manager();
    for (id, renews) in [("renews", true), ("releases", false)] {
        let (lease, broken) = broken(site, &holder, id);
        assert_eq!(broken.is_recorded, site.history);
        let lock = site.manager().lock(id, Level::Xdc).unwrap();
        // A grant of the break that came too late is released in the background.
        let next = if broken.fence.is_some() { lock.try_acquire() } else { lock.acquire() }.unwrap();
        assert!(next.fence() > broken.fence.max(lease.fence()));
        if renews {
            assert_told(site, &lease, lease.renew());
        } else {
            assert_told(site, &lease, lease.release());
        }
        assert!(next.renew().is_ok(), "the next holder is not touched");
        assert!(next.release().unwrap());
    }
}

pub fn the_holder_of_a_broken_lock_that_is_kept_alive_is_told_why(site: &Site) {
    // The thread that renews asks for the reason once, for up to a second.
    const ANSWERED: Duration = Duration::from_secs(10);
    patiently(|ttl| {
        let id = format!("{ttl:?}");
        let (manager, breaker) = (site.manager(), site.manager());
        let lock = manager.lock(&id, Level::Xdc).unwrap();
        let lease = in_time(lock.acquire_with(&AcquireOptions::new().ttl(ttl).keep(Duration::MAX)))?;
        let seen = breaker.lock(&id, Level::Xdc).unwrap().inspected().unwrap();
        let is_held = seen.inspection().holder.is_some();
        if !is_held || seen.break_holder("it hangs").unwrap().is_none() {
            assert!(lease.check().is_err(), "a lease that is kept alive has another grant, or none");
            return None;
        }
        eventually("the holder notices", || lease.check().is_err());
        if !site.history {
            return Some(());
        }
        let by = Deadline::after(ANSWERED);
        eventually("the holder is told", || {
            lease.state() == LeaseState::Lost(LostReason::Broken) || by.passed()
        });
        if lease.state() != LeaseState::Lost(LostReason::Broken) {
            // The machine was too slow for the renewal, or for the read of the reason.
            return None;
        }
        let text = lease.check().unwrap_err().to_string();
        assert!(text.contains(r#"because "it hangs""#), "{text}");
        Some(())
    });
}

pub fn only_the_grant_that_was_seen_is_broken(site: &Site) {
    let (holder, breaker) = (site.manager(), site.manager());
    let (held, lock) = (holder.lock("a", Level::Xdc).unwrap(), breaker.lock("a", Level::Xdc).unwrap());
    let first = held.acquire().unwrap();
    let seen = lock.inspected().unwrap();
    // The same process holds the lock again: another grant.
    assert!(first.release().unwrap());
    assert_eq!(seen.break_holder("it hangs").unwrap(), None, "a free lock");
    let second = held.acquire().unwrap();
    assert_eq!(seen.break_holder("it hangs").unwrap(), None, "another grant was broken");
    second.renew().unwrap();
    // A renewal does not make it another grant.
    let seen = lock.inspected().unwrap();
    second.renew_for(2 * HELD).unwrap();
    assert!(seen.break_holder("it hangs").unwrap().is_some());
    assert_told(site, &second, second.renew());
    if site.history {
        let kinds: Vec<_> = lock.history(None, 100).unwrap().iter().map(|entry| entry.kind).collect();
        let count = |kind| kinds.iter().filter(|it| **it == kind).count();
        assert_eq!((count(HistoryKind::Broken), count(HistoryKind::NotBroken)), (3, 2));
    }
}

pub fn a_holder_that_lost_its_lease_otherwise_is_not_told_of_an_older_break(site: &Site) {
    let holder = site.manager();
    drop(broken(site, &holder, "a"));
    let lease = holder.lock("a", Level::Xdc).unwrap().acquire().unwrap();
    let name = lease.name().clone();
    // Somebody removes the record.
    let seen = site.store().inspect(&name, super::soon()).unwrap();
    let Some(dlm::store::GrantRecord::Ours(record)) = seen.grant else { panic!("no record") };
    site.store().release(&name, &record, super::soon()).unwrap();
    assert_eq!(code(lease.renew()), Code::LeaseLost);
    assert_eq!(lease.state(), LeaseState::Lost(LostReason::RecordGone));
}

pub fn breaks_that_make_no_sense_are_refused(site: &Site) {
    let manager = site.manager();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let free = lock.inspected().unwrap();
    assert_eq!(code(free.break_holder("it hangs")), Code::InvalidArgument);
    let lease = lock.acquire().unwrap();
    let seen = lock.inspected().unwrap();
    for reason in ["", "a\nb", &"x".repeat(256)] {
        assert_eq!(code(seen.break_holder(reason)), Code::InvalidArgument);
    }
    lease.renew().unwrap();
    manager.close().unwrap();
    assert_eq!(code(seen.break_holder("it hangs")), Code::Closed);
}

/// Holders acquire, renew, release and let go, while others break what they see.
pub fn breaks_under_fire_touch_no_other_grant(site: &Site) {
    // A store with few rounds is slow.
    let hold = Duration::from_secs(1) / site.rounds as u32;
    let breaker = site.manager();
    let lock = breaker.lock("hot", Level::Xdc).unwrap();
    // The first grant of a lock may take more requests, because its fence must be above those of another layout.
    drop(lock.acquire().unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let holders: Vec<_> = (0..3)
        .map(|_| {
            let (manager, over) = (site.manager(), Arc::clone(&over));
            spawn("holder", move || {
                let lock = manager.lock("hot", Level::Xdc).unwrap();
                let (mut last, mut told, mut kept) = (None, 0, 0_u32);
                while !over.load(Ordering::Relaxed) {
                    let Ok(lease) = lock.acquire_within(HELD, Duration::from_millis(50)) else { continue };
                    assert!(lease.fence() > last, "{:?} after {last:?}", lease.fence());
                    last = lease.fence();
                    // Long enough to be seen and broken, and sometimes not.
                    thread::sleep(hold * (kept % 3));
                    let answers = [lease.renew(), lease.release().map(drop)];
                    match answers.into_iter().find_map(Result::err) {
                        None => kept += 1,
                        Some(error) => {
                            assert_eq!(error.code(), Code::LeaseLost, "{error}");
                            told += usize::from(lease.state() == LeaseState::Lost(LostReason::Broken));
                        }
                    }
                }
                (told, kept)
            })
        })
        .collect();
    let (mut broke, mut fence) = (0, None);
    let wanted = match shortened("some breaks of 1,000") {
        true => (site.rounds / 8).max(5),
        false => 1000,
    };
    let by = Deadline::after(10 * LONG);
    while broke < wanted && !by.passed() {
        let seen = lock.inspected().unwrap();
        if seen.inspection().holder.is_none() {
            continue;
        }
        if let Some(broken) = seen.break_holder("it hangs").unwrap() {
            broke += 1;
            assert!(broken.fence.is_none() || broken.fence > fence, "{broken:?} after {fence:?}");
            fence = broken.fence.max(fence);
        }
    }
    over.store(true, Ordering::Relaxed);
    let ends: Vec<_> = holders.into_iter().map(|holder| holder.join().unwrap()).collect();
    let told: usize = ends.iter().map(|(told, _)| told).sum();
    assert_eq!(broke, wanted);
    // Each break took the lock from one holder, which was told when it renewed or released. An acquire of several requests
    // may also find, before it ends, that its record is gone. Then it tries again.
    if site.history {
        assert!(told <= broke && told > 0, "{ends:?}");
        assert!(told == broke || site.rounds < 200, "{ends:?}");
    }
}

pub fn entries_of_a_history_come_newest_first_and_end(site: &Site) {
    if !keeps_history(site) {
        return;
    }
    let (manager, store) = (site.manager(), site.store());
    let history = store.history().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    assert_eq!(lock.history(None, 10).unwrap(), []);
    let (_, _) = broken(site, &manager, "a");
    let entry = lock.history(None, 10).unwrap().remove(0);
    let later = |ms| entry.numbered(entry.at_ms + ms, 1000 + ms);
    for ms in [3, 1, 2, 1] {
        history.append(HistoryOf::Lock(lock.name()), &later(ms), HELD, super::soon()).unwrap();
    }
    let times = |most, since_ms| {
        let read = history.entries(HistoryOf::Lock(lock.name()), since_ms, most, super::soon()).unwrap();
        read.iter().map(|found| found.at_ms - entry.at_ms).collect::<Vec<_>>()
    };
    assert_eq!(times(10, 0), [3, 2, 1, 0]);
    assert_eq!(times(2, 0), [3, 2]);
    assert_eq!(times(10, entry.at_ms + 2), [3, 2]);
    assert_eq!(times(10, entry.at_ms + 4), [0; 0]);
    // Locks whose names begin alike have histories of their own.
    for id in ["a#", "aa", "A"] {
        assert_eq!(manager.lock(id, Level::Xdc).unwrap().history(None, 10).unwrap(), [], "{id}");
    }
    // An entry ends.
    let other = manager.lock("short", Level::Xdc).unwrap();
    history.append(HistoryOf::Lock(other.name()), &later(0), Duration::from_secs(1), super::soon()).unwrap();
    eventually("the entry ends", || other.history(None, 10).unwrap().is_empty());
}

pub fn a_long_history_keeps_its_newest_entries(site: &Site) {
    if !keeps_history(site) {
        return;
    }
    let (manager, store) = (site.manager(), site.store());
    let history = store.history().unwrap();
    let (_, _) = broken(site, &manager, "model");
    let entry = manager.lock("model", Level::Xdc).unwrap().history(None, 1).unwrap().remove(0);
    let lock = manager.lock("long", Level::Xdc).unwrap();
    let count = HISTORY_MAX as u64 + 20;
    for number in 0..count {
        let entry = entry.numbered(entry.at_ms + number, number);
        history.append(HistoryOf::Lock(lock.name()), &entry, HELD, super::soon()).unwrap();
    }
    let read = lock.history(None, usize::MAX).unwrap();
    assert_eq!(read.len(), HISTORY_MAX);
    let times: Vec<_> = read.iter().map(|found| found.at_ms - entry.at_ms).collect();
    assert_eq!(times, (20..count).rev().collect::<Vec<_>>());
}

/// A busy lock has so many newer entries in seconds.
pub fn a_holder_is_told_why_whatever_was_added_to_the_history_since(site: &Site) {
    if !keeps_history(site) {
        return;
    }
    let (holder, store) = (site.manager(), site.store());
    let history = store.history().unwrap();
    let (lease, _) = broken(site, &holder, "busy");
    let lock = holder.lock("busy", Level::Xdc).unwrap();
    let mut later = lock.history(None, 1).unwrap().remove(0);
    later.kind = HistoryKind::Acquired;
    for number in 1..HISTORY_MAX as u64 + 2 {
        let entry = later.numbered(later.at_ms + number, number);
        history.append(HistoryOf::Lock(lock.name()), &entry, HELD, super::soon()).unwrap();
    }
    let left = lock.history(None, usize::MAX).unwrap();
    assert!(left.iter().all(|entry| entry.kind == HistoryKind::Acquired), "{left:?}");
    assert_told(site, &lease, lease.renew());
}

pub fn a_manager_with_a_history_writes_what_happened_to_its_locks(site: &Site) {
    if !keeps_history(site) {
        let refused = site.builder().store(site.store()).history(HELD).open();
        assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
        return;
    }
    let manager = site.builder().store(site.store()).history(HELD).open().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let (first, second) = (lock.acquire().unwrap(), lock.try_acquire());
    assert_eq!(code(second), Code::LockUnavailable);
    let fence = first.fence();
    assert!(first.release().unwrap());
    let lost = lock.acquire().unwrap();
    let breaker = site.manager();
    let seen = breaker.lock("a", Level::Xdc).unwrap();
    seen.inspected().unwrap().break_holder("it hangs").unwrap().unwrap();
    assert_eq!(code(lost.renew()), Code::LeaseLost);
    // Closing writes what is left.
    manager.close().unwrap();
    let mut entries = seen.history(None, 100).unwrap();
    entries.sort_by_key(|entry| (entry.fence, entry.kind as u8));
    let kinds: Vec<_> = entries.iter().map(|entry| entry.kind).collect();
    let expected = [HistoryKind::Acquired, HistoryKind::Released, HistoryKind::Acquired, HistoryKind::Lost];
    assert_eq!(kinds[..4], expected, "{entries:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == HistoryKind::Broken).count(), 1);
    assert_eq!(entries[0].fence, fence);
    assert!(entries[..2].iter().all(|entry| entry.took.is_some() && entry.by.purpose == "contract"));
    let lost = entries.iter().find(|entry| entry.kind == HistoryKind::Lost).unwrap();
    assert_eq!(lost.text, "BROKEN");
    let broken = entries.iter().find(|entry| entry.kind == HistoryKind::Broken).unwrap();
    assert_eq!(broken.text, "it hangs");
    assert_eq!(broken.victim.as_ref().map(|victim| victim.pid), Some(std::process::id()));
}

//! The contract of `dlm::store::SemaphoreStore`, and what semaphores promise over any store that keeps them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dlm::store::{
    Acquired, AcquiredPermits, Attempt, GrantRecord, Intent, IntentId, LockName, LockStore, Mode, ModeTerms,
    PERMITS_MAX, PermitGrant, PermitTerms, Released, Renewal, SemaphoreState, SemaphoreStore,
};
use dlm::{
    AcquireOptions, CancelToken, Code, Error, Holder, LeaseState, LeaseToken, Level, LockManager, Moment,
    Semaphore,
};
use parking_lot::Mutex;

use super::modes::{ask, ends_within, holds, modes, number, process, refused, release, take, take_as};
use super::{HELD, LONGEST, Site, code, eventually, in_time, patiently, soon, spawn};

fn semaphores(store: &dyn LockStore) -> &dyn SemaphoreStore {
    store.semaphores().expect("this suite is for stores that keep semaphores")
}

/// Asks for permits of a semaphore of this size.
fn ask_for(
    store: &dyn LockStore,
    name: &LockName,
    count: u16,
    permits: u16,
    ttl: Duration,
) -> AcquiredPermits {
    let (identity, mut doubtful) = (process("contract"), Vec::new());
    let attempt = Attempt { name, ttl, identity: &identity, by: soon() };
    let answer = semaphores(store).acquire_permits(attempt, PermitTerms { permits, count }, &mut doubtful);
    assert!(doubtful.is_empty(), "a healthy store leaves no doubt");
    answer.unwrap_or_else(|error| panic!("{}", error.chain()))
}

/// Acquires permits that are free.
#[track_caller]
fn get(store: &dyn LockStore, name: &LockName, count: u16, permits: u16) -> Vec<PermitGrant> {
    match ask_for(store, name, count, permits, HELD) {
        AcquiredPermits::Granted(grants) => {
            assert_eq!(grants.len(), usize::from(count));
            assert!(grants.windows(2).all(|pair| pair[0].permit < pair[1].permit), "they are in order");
            assert!(grants.iter().all(|it| it.grant.fence.is_some() && it.grant.epoch.is_none()));
            grants
        }
        other => panic!("{count} of {permits} permits of {name} should be free: {other:?}"),
    }
}

/// Asks for permits that cannot be had, and returns what stands in the way.
#[track_caller]
fn refuses(store: &dyn LockStore, name: &LockName, count: u16, permits: u16) -> Holder {
    match ask_for(store, name, count, permits, HELD) {
        AcquiredPermits::Held(holder) => holder,
        other => panic!("{count} of {permits} permits of {name}: {other:?}"),
    }
}

fn numbers(grants: &[PermitGrant]) -> Vec<u8> {
    grants.iter().map(|it| it.permit).collect()
}

#[track_caller]
fn give_back(store: &dyn LockStore, name: &LockName, grants: Vec<PermitGrant>) {
    grants.iter().for_each(|it| release(store, name, &it.grant));
}

fn state(store: &dyn LockStore, name: &LockName) -> SemaphoreState {
    semaphores(store).semaphore(name, soon()).unwrap().expect("it is known")
}

fn fence(grant: &PermitGrant) -> u64 {
    grant.grant.fence.expect("a permit has a fence").0
}

pub fn permits_have_numbers_and_are_granted_up_to_the_size(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    assert!(semaphores(&*store).semaphore(&name, soon()).unwrap().is_none());
    let held: Vec<_> = (0..3).map(|_| get(&*store, &name, 1, 3).remove(0)).collect();
    let mut found = numbers(&held);
    found.sort_unstable();
    assert_eq!(found, [0, 1, 2]);
    let holder = refuses(&*store, &name, 1, 3);
    assert!(holder.mode == Mode::Permit && holder.permit.is_some_and(|permit| permit < 3), "{holder:?}");
    let SemaphoreState { permits, held: listed } = state(&*store, &name);
    let mut listed: Vec<_> = listed.iter().map(|hold| (hold.holder.permit, hold.fence())).collect();
    listed.sort_unstable();
    let mut expected: Vec<_> = held.iter().map(|it| (Some(it.permit), it.grant.fence)).collect();
    expected.sort_unstable();
    assert_eq!((permits, listed), (3, expected));
    release(&*store, &name, &held[1].grant);
    let again = get(&*store, &name, 1, 3).remove(0);
    assert_eq!(again.permit, held[1].permit, "the only one that is free");
    assert!(fence(&again) > fence(&held[1]));
}

pub fn several_permits_are_granted_in_one_step_or_none(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let three = get(&*store, &name, 3, 5);
    refuses(&*store, &name, 3, 5);
    assert_eq!(state(&*store, &name).held.len(), 3, "a refusal takes none");
    let two = get(&*store, &name, 2, 5);
    let mut all = [numbers(&three), numbers(&two)].concat();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4]);
    refuses(&*store, &name, 1, 5);
    give_back(&*store, &name, three);
    give_back(&*store, &name, two);
    semaphores(&*store).resize(&name, PERMITS_MAX, soon()).unwrap();
    let whole = get(&*store, &name, PERMITS_MAX, PERMITS_MAX);
    assert_eq!(numbers(&whole), (0..=u8::MAX).collect::<Vec<_>>());
    refuses(&*store, &name, 1, PERMITS_MAX);
    give_back(&*store, &name, whole);
}

/// All that have ever been granted, also together.
pub fn the_fences_of_a_semaphore_rise(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let writer = take(&*store, &name, Mode::Exclusive);
    let mut last = writer.fence.unwrap().0;
    release(&*store, &name, &writer);
    for round in 0..10 {
        let grants = get(&*store, &name, 1 + round % 3, 3);
        let lowest = grants.iter().map(fence).min().unwrap();
        assert!(lowest > last, "{lowest} after {last}");
        last = grants.iter().map(fence).max().unwrap();
        give_back(&*store, &name, grants);
    }
    assert!(take(&*store, &name, Mode::Exclusive).fence.unwrap().0 > last);
}

pub fn each_permit_is_renewed_released_and_broken_alone(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let grants = get(&*store, &name, 4, 4);
    let renewed = store.renew(&name, &grants[0].grant.owner_record, HELD, soon()).unwrap().unwrap();
    release(&*store, &name, &grants[1].grant);
    assert_eq!(store.release(&name, &grants[1].grant.owner_record, soon()).unwrap(), Released::NotOurs);
    let found = holds(&*store, &name);
    assert_eq!(found.len(), 3);
    let broken = found.iter().find(|hold| hold.holder.permit == Some(grants[2].permit)).unwrap();
    let GrantRecord::Ours(record) = &broken.grant else { panic!("{broken:?}") };
    assert_eq!(store.release_broken(&name, record, soon()).unwrap(), Released::Freed);
    assert_eq!(store.renew(&name, &grants[2].grant.owner_record, HELD, soon()).unwrap(), None);
    let left: Vec<_> = state(&*store, &name).held.iter().map(|hold| hold.holder.permit).collect();
    assert_eq!(left.len(), 2);
    assert!([0, 3].iter().all(|at| left.contains(&Some(grants[*at].permit))));
    assert_eq!(store.release(&name, &renewed, soon()).unwrap(), Released::Freed);
    release(&*store, &name, &grants[3].grant);
    let lock = take(&*store, &name, Mode::Exclusive);
    release(&*store, &name, &lock);
}

/// Its process has died, and others renew theirs.
pub fn a_permit_that_is_not_renewed_is_free_when_its_ttl_ends(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let others = get(&*store, &name, 2, 3);
    let ttl = Duration::from_millis(300);
    let AcquiredPermits::Granted(mut dead) = ask_for(&*store, &name, 1, 3, ttl) else {
        panic!("one is free")
    };
    let dead = dead.remove(0);
    ends_within(site, ttl, "the permit of a process that has died", || {
        match ask_for(&*store, &name, 1, 3, HELD) {
            AcquiredPermits::Granted(grants) => {
                assert_eq!(grants[0].permit, dead.permit);
                assert!(fence(&grants[0]) > fence(&dead));
                true
            }
            AcquiredPermits::Held(_) => false,
            AcquiredPermits::OtherSize(size) => panic!("{size}"),
        }
    });
    assert_eq!(store.renew(&name, &dead.grant.owner_record, HELD, soon()).unwrap(), None);
    give_back(&*store, &name, others);
}

/// Nobody has released them.
pub fn locks_follow_permits_that_ran_out_and_permits_follow_such_locks(site: &Site) {
    let (store, name, ttl) = (site.store(), site.name("a"), Duration::from_millis(200));
    let mut last = 0;
    for mode in Mode::OF_LOCKS {
        for count in [1, 2] {
            let AcquiredPermits::Granted(permits) = ask_for(&*store, &name, count, 2, ttl) else {
                panic!("they are free")
            };
            assert!(permits.iter().all(|it| fence(it) > last));
            last = permits.iter().map(fence).max().unwrap();
            let mut lock = None;
            ends_within(site, ttl, "permits of a process that has died", || {
                match ask(&*store, &name, ModeTerms::new(mode)) {
                    Acquired::Granted(grant) => lock = Some(grant),
                    Acquired::Held(holder) => assert_eq!(holder.mode, Mode::Permit),
                }
                lock.is_some()
            });
            release(&*store, &name, &lock.unwrap());
            let lock = take_as("dies", &*store, &name, mode, ttl);
            assert!(number(&lock) > last, "{mode}");
            last = number(&lock);
            let mut permits = None;
            ends_within(site, ttl, "the lock of a process that has died", || {
                match ask_for(&*store, &name, count, 2, HELD) {
                    AcquiredPermits::Granted(grants) => permits = Some(grants),
                    AcquiredPermits::Held(holder) => assert_eq!(holder.mode, mode),
                    AcquiredPermits::OtherSize(size) => panic!("{size}"),
                }
                permits.is_some()
            });
            let permits = permits.unwrap();
            assert!(permits.iter().all(|it| fence(it) > last));
            last = permits.iter().map(fence).max().unwrap();
            give_back(&*store, &name, permits);
        }
    }
}

/// A version without modes knows them as an exclusive holder.
pub fn versions_without_semaphores_find_the_lock_held_until_the_last_permit_is_released(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let permits = get(&*store, &name, 3, 3);
    for permit in permits {
        let answer = super::attempt(&*store, &name, HELD).unwrap();
        assert!(matches!(answer, Acquired::Held(_)), "{answer:?}");
        release(&*store, &name, &permit.grant);
    }
    let Acquired::Granted(grant) = super::attempt(&*store, &name, HELD).unwrap() else {
        panic!("it is free")
    };
    release(&*store, &name, &grant);
}

/// Each lasts for as long as was asked for, whatever the others do.
pub fn a_long_permit_is_not_shortened_by_short_ones(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let long = get(&*store, &name, 1, 3).remove(0);
    let ttl = Duration::from_millis(200);
    for _ in 0..3 {
        let AcquiredPermits::Granted(short) = ask_for(&*store, &name, 1, 3, ttl) else {
            panic!("one is free")
        };
        let short = short.into_iter().next().unwrap();
        ends_within(site, ttl, "a short permit", || {
            state(&*store, &name).held.iter().all(|hold| hold.holder.permit != Some(short.permit))
        });
        assert!(matches!(super::attempt(&*store, &name, HELD).unwrap(), Acquired::Held(_)));
        assert_eq!(state(&*store, &name).held.len(), 1);
    }
    let renewed = store.renew(&name, &long.grant.owner_record, HELD, soon()).unwrap().expect("it lives");
    assert_eq!(store.release(&name, &renewed, soon()).unwrap(), Released::Freed);
    assert_eq!(store.holder(&name, soon()).unwrap(), None);
}

/// As the threads that keep leases alive renew them.
pub fn of_many_renewals_of_permits_each_has_its_own_answer(site: &Site) {
    let (store, others) = (site.store(), site.store());
    let names: Vec<_> = (0..3).map(|at| site.name(&at.to_string())).collect();
    let mut grants = Vec::new();
    for name in &names {
        grants.extend(get(&*store, name, 3, 4).into_iter().map(|it| (name, it.grant)));
    }
    for (at, (name, grant)) in grants.iter().enumerate() {
        if at % 4 == 1 {
            release(&*store, name, grant);
        }
    }
    // Others come in between, which changes what the store knows of the semaphore.
    for name in &names {
        get(&*others, name, 1, 4);
    }
    let renewals: Vec<_> = grants
        .iter()
        .map(|(name, grant)| Renewal { name, owner_record: &grant.owner_record, ttl: HELD, alone: false })
        .collect();
    for _ in 0..3 {
        let mut answers: Vec<_> = grants.iter().map(|_| None).collect();
        store.renew_many(&renewals, soon(), &mut |at, _, answer| {
            answers[at] = Some(answer.unwrap().is_some());
        });
        let expected: Vec<_> = (0..grants.len()).map(|at| Some(at % 4 != 1)).collect();
        assert_eq!(answers, expected);
    }
}

pub fn another_size_is_refused_and_names_that_in_the_store(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let held = get(&*store, &name, 1, 3);
    for size in [1, 2, 4, PERMITS_MAX] {
        let answer = ask_for(&*store, &name, 1, size, HELD);
        assert!(matches!(answer, AcquiredPermits::OtherSize(3)), "{size}: {answer:?}");
    }
    assert_eq!(state(&*store, &name).held.len(), 1);
    give_back(&*store, &name, held);
}

pub fn a_semaphore_that_gets_smaller_grants_nothing_before_higher_permits_are_free(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    assert_eq!(semaphores(&*store).resize(&name, 2, soon()).unwrap(), None, "nobody has used it");
    assert!(semaphores(&*store).semaphore(&name, soon()).unwrap().is_none());
    let mut held = get(&*store, &name, 5, 5);
    assert_eq!(semaphores(&*store).resize(&name, 2, soon()).unwrap(), Some(5));
    assert!(matches!(ask_for(&*store, &name, 1, 5, HELD), AcquiredPermits::OtherSize(2)));
    // Those at and above the new size go one by one. All below are free.
    let highest = held.split_off(2);
    give_back(&*store, &name, held);
    for grant in highest {
        let holder = refuses(&*store, &name, 1, 2);
        assert!(holder.permit.is_some_and(|permit| permit >= 2), "{holder:?}");
        let renewed = store.renew(&name, &grant.grant.owner_record, HELD, soon()).unwrap();
        assert!(renewed.is_some(), "it goes on");
        assert_eq!(store.release(&name, &renewed.unwrap(), soon()).unwrap(), Released::Freed);
    }
    let both = get(&*store, &name, 2, 2);
    refuses(&*store, &name, 1, 2);
    assert_eq!(semaphores(&*store).resize(&name, 3, soon()).unwrap(), Some(2));
    assert_eq!(numbers(&get(&*store, &name, 1, 3)), [2]);
    give_back(&*store, &name, both);
}

pub fn locks_and_permits_exclude_each_other(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    for mode in Mode::OF_LOCKS {
        let lock = take(&*store, &name, mode);
        assert_eq!(refuses(&*store, &name, 1, 2).mode, mode);
        release(&*store, &name, &lock);
        let permits = get(&*store, &name, 1, 2);
        assert_eq!(refused(&*store, &name, mode).mode, Mode::Permit, "{mode}");
        let blocker = modes(&*store).blocker(&name, mode, soon()).unwrap();
        assert_eq!(blocker.map(|holder| holder.mode), Some(Mode::Permit));
        let holder = store.holder(&name, soon()).unwrap().expect("it is held");
        assert!(!holder.is_waiting);
        give_back(&*store, &name, permits);
        assert_eq!(store.holder(&name, soon()).unwrap(), None);
    }
    // A process that waits for the lock exclusively keeps new permits out.
    let permits = get(&*store, &name, 1, 2);
    let (id, identity) = (IntentId::draw().unwrap(), process("writer"));
    let intent = Intent { id, identity: &identity, lasts: dlm::store::INTENT_MAX };
    modes(&*store).announce(&name, intent, soon()).unwrap();
    patiently(|_| {
        let announced = Moment::now();
        modes(&*store).announce(&name, intent, soon()).unwrap();
        let answer = ask_for(&*store, &name, 1, 2, HELD);
        if Moment::now().since(announced) >= dlm::store::INTENT_MAX {
            // It has ended meanwhile.
            if let AcquiredPermits::Granted(grants) = answer {
                give_back(&*store, &name, grants);
            }
            return None;
        }
        assert!(matches!(answer, AcquiredPermits::Held(Holder { is_waiting: true, .. })), "{answer:?}");
        Some(())
    });
    give_back(&*store, &name, permits);
    let terms = ModeTerms { intent: Some(id), ..ModeTerms::new(Mode::Exclusive) };
    assert!(matches!(ask(&*store, &name, terms), Acquired::Granted(_)));
}

pub fn of_many_who_ask_never_more_have_permits_than_there_are(site: &Site) {
    const SIZE: u16 = 3;
    let (stores, name) = ([site.store(), site.store()], site.name("a"));
    let (stop, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let held = Arc::new(Mutex::new(HashMap::<u8, u64>::new()));
    let workers: Vec<_> = (0..6_u16)
        .map(|worker| {
            let (store, name) = (Arc::clone(&stores[usize::from(worker % 2)]), name.clone());
            let (stop, granted, held) = (Arc::clone(&stop), Arc::clone(&granted), Arc::clone(&held));
            spawn("worker", move || {
                while !stop.load(Ordering::SeqCst) {
                    let AcquiredPermits::Granted(grants) =
                        ask_for(&*store, &name, 1 + worker % SIZE, SIZE, LONGEST)
                    else {
                        continue;
                    };
                    for grant in &grants {
                        let before = held.lock().insert(grant.permit, fence(grant));
                        assert_eq!(before, None, "permit {} is held twice", grant.permit);
                    }
                    assert!(held.lock().len() <= usize::from(SIZE));
                    std::thread::yield_now();
                    for grant in &grants {
                        held.lock().remove(&grant.permit);
                    }
                    granted.fetch_add(1, Ordering::SeqCst);
                    give_back(&*store, &name, grants);
                }
            })
        })
        .collect();
    eventually("many are granted", || {
        granted.load(Ordering::SeqCst) >= 60 || workers.iter().any(std::thread::JoinHandle::is_finished)
    });
    stop.store(true, Ordering::SeqCst);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!(state(&*stores[0], &name).held.len(), 0);
}

pub fn a_call_about_permits_that_is_late_already_leaves_nothing_behind(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let held = get(&*store, &name, 1, 2);
    let late = dlm::Deadline::at(Moment::from_nanos(0));
    let (identity, mut doubtful) = (process("late"), Vec::new());
    let attempt = Attempt { name: &name, ttl: HELD, identity: &identity, by: late };
    let answer =
        semaphores(&*store).acquire_permits(attempt, PermitTerms { permits: 2, count: 1 }, &mut doubtful);
    match answer {
        Ok(AcquiredPermits::Granted(grants)) => give_back(&*store, &name, grants),
        Ok(other) => panic!("{other:?}"),
        Err(error) => assert!(error.is_retryable(), "{error}"),
    }
    for record in doubtful {
        store.release(&name, &record, soon()).unwrap();
    }
    let _ = semaphores(&*store).semaphore(&name, late);
    eventually("one permit is free", || {
        matches!(ask_for(&*store, &name, 1, 2, HELD), AcquiredPermits::Granted(_))
    });
    give_back(&*store, &name, held);
}

fn semaphore(manager: &LockManager, permits: u16) -> Semaphore {
    manager.semaphore("a", Level::Xdc, permits).unwrap()
}

pub fn a_semaphore_lets_in_as_many_as_it_has_permits(site: &Site) {
    let [ours, theirs] = [site.manager(), site.manager()];
    let [one, other] = [&ours, &theirs].map(|manager| semaphore(manager, 3));
    assert_eq!((one.permits(), one.available().unwrap()), (3, 3));
    let two = one.acquire(2).unwrap();
    assert_eq!(two.permits(), [0, 1]);
    for lease in two.leases() {
        assert_eq!((lease.mode(), lease.epoch()), (Mode::Permit, None));
        assert_eq!(lease.guard().unwrap(), lease.fence().unwrap());
    }
    assert_eq!(code(other.try_acquire(2)), Code::LockUnavailable);
    let third = other.try_acquire(1).unwrap();
    assert_eq!((third.permits(), other.available().unwrap()), (vec![2], 0));
    let error = other.acquire_with(1, &AcquireOptions::new().wait(Duration::from_millis(50))).unwrap_err();
    let text = error.to_string();
    assert!(
        error.code() == Code::LockUnavailable && text.contains("PERMIT") && text.contains("waited"),
        "{text}"
    );
    let holders = one.holders().unwrap();
    assert_eq!(holders.iter().map(|holder| holder.permit).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    assert!(two.release().unwrap());
    assert_eq!(other.available().unwrap(), 2);
    drop(third);
    eventually("a drop gives the permit back", || one.available().unwrap() == 3);
}

/// Later ones, who ask for fewer, do not go before.
pub fn threads_of_one_process_get_permits_in_the_order_in_which_they_came(site: &Site) {
    let manager = site.manager();
    let pool = semaphore(&manager, 2);
    let first = pool.acquire(1).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = [(1_u64, 2), (2, 1), (3, 1)]
        .into_iter()
        .map(|(number, count)| {
            let (pool, order) = (pool.clone(), Arc::clone(&order));
            let waiter = spawn("waiter", move || {
                let permits = pool.acquire(count).unwrap();
                order.lock().push(number);
                std::thread::sleep(Duration::from_millis(20));
                assert!(permits.release().unwrap());
            });
            eventually("it waits", || manager.stats().threads_waiting == number);
            waiter
        })
        .collect();
    assert!(first.release().unwrap());
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    let order = order.lock().clone();
    assert_eq!(order[0], 1, "{order:?}");
}

pub fn a_wait_for_permits_ends_by_a_release_a_cancellation_or_the_end_of_its_manager(site: &Site) {
    let [ours, theirs] = [site.manager(), site.manager()];
    let (pool, held) = (semaphore(&theirs, 1), semaphore(&ours, 1).acquire(1).unwrap());
    let waits = |how: AcquireOptions| {
        let pool = pool.clone();
        let waiter = spawn("waiter", move || pool.acquire_with(1, &how));
        eventually("it waits", || theirs.stats().threads_waiting == 1);
        waiter
    };
    let cancel = CancelToken::new();
    let cancelled = waits(AcquireOptions::new().cancel(&cancel));
    cancel.cancel();
    assert_eq!(code(cancelled.join().unwrap()), Code::Cancelled);
    let granted = waits(AcquireOptions::new());
    assert!(held.release().unwrap());
    let granted = granted.join().unwrap().unwrap();
    let closed = waits(AcquireOptions::new());
    theirs.close().unwrap();
    assert_eq!(code(closed.join().unwrap()), Code::Closed);
    assert!(granted.check().is_err(), "closing releases permits");
    assert_eq!(semaphore(&ours, 1).available().unwrap(), 1);
}

pub fn permits_are_kept_alive_and_one_that_was_broken_is_lost_alone(site: &Site) {
    let [ours, theirs] = [site.manager(), site.manager()];
    let pool = semaphore(&ours, 3);
    let how = AcquireOptions::new().ttl(Duration::from_secs(2)).keep(Duration::MAX);
    let permits = pool.acquire_with(3, &how).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    permits.check().unwrap();
    assert_eq!(semaphore(&theirs, 3).available().unwrap(), 0);
    let lock = theirs.lock("a", Level::Xdc).unwrap();
    let inspected = lock.inspected_holds().unwrap();
    let wanted = |holder: &Holder| holder.permit == Some(permits.permits()[1]);
    let one = inspected.iter().find(|it| it.inspection().holder.as_ref().is_some_and(wanted)).unwrap();
    assert!(one.break_holder("it hangs").unwrap().is_some());
    let broken = &permits.leases()[1];
    eventually("it is lost", || matches!(broken.state(), LeaseState::Lost(_)));
    permits.leases()[0].check().unwrap();
    permits.leases()[2].check().unwrap();
    assert_eq!(semaphore(&theirs, 3).available().unwrap(), 1);
    drop(permits);
}

pub fn a_token_of_a_permit_is_renewed_and_released_by_another_process(site: &Site) {
    let [ours, theirs] = [site.manager(), site.manager()];
    let pool = semaphore(&ours, 2);
    let first = pool.acquire(1).unwrap();
    let second = ours.semaphore("a", Level::Xdc, 2).unwrap().acquire(1).unwrap();
    let (permit, fence) = (second.permits()[0], second.leases()[0].fence());
    let token: LeaseToken = second.into_leases().remove(0).into_token().unwrap().to_string().parse().unwrap();
    assert_eq!(
        (token.mode(), token.permit(), token.fence(), token.epoch()),
        (Mode::Permit, Some(permit), fence, None)
    );
    let adopted = theirs.adopt(token).unwrap();
    adopted.renew().unwrap();
    assert_eq!((adopted.permit(), adopted.fence()), (Some(permit), fence));
    assert_eq!(pool.available().unwrap(), 0);
    assert!(adopted.release().unwrap());
    assert_eq!(pool.available().unwrap(), 1);
    first.release().unwrap();
}

pub fn another_number_of_permits_is_an_error_that_names_both(site: &Site) {
    let [ours, theirs] = [site.manager(), site.manager()];
    let (three, five) = (semaphore(&ours, 3), semaphore(&theirs, 5));
    assert_eq!(code(three.resize(4)), Code::NotFound);
    let held = three.acquire(1).unwrap();
    for error in [five.try_acquire(1).unwrap_err(), five.acquire(1).unwrap_err()] {
        let text = error.to_string();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(text.contains("\"5\"") && text.contains('3'), "{text}");
    }
    let resized = three.resize(5).unwrap();
    assert_eq!(resized.permits(), 5);
    let others = five.acquire(4).unwrap();
    assert_eq!(code(three.try_acquire(1)), Code::InvalidArgument);
    let six = five.resize(6).unwrap();
    assert_eq!((six.size().unwrap(), six.available().unwrap()), (Some(6), 1));
    let three = six.resize(3).unwrap();
    let mut leases = others.into_leases();
    leases.drain(..3).for_each(|lease| assert!(lease.release().unwrap()));
    // One of three is free, and nobody gets it while that with the highest number is held.
    assert_eq!((three.available().unwrap(), code(three.try_acquire(1))), (0, Code::LockUnavailable));
    assert!(leases[0].release().unwrap());
    assert_eq!(three.available().unwrap(), 2);
    assert!(held.release().unwrap());
}

pub fn what_no_semaphore_can_have_is_refused_before_any_request(site: &Site) {
    let manager = site.manager();
    for permits in [0, PERMITS_MAX + 1, u16::MAX] {
        assert_eq!(code(manager.semaphore("a", Level::Xdc, permits)), Code::InvalidArgument, "{permits}");
    }
    let pool = semaphore(&manager, 3);
    for count in [0, 4, u16::MAX] {
        assert_eq!(code(pool.try_acquire(count)), Code::InvalidArgument, "{count}");
        assert_eq!(code(pool.acquire(count)), Code::InvalidArgument, "{count}");
    }
    for size in [0, PERMITS_MAX + 1] {
        assert_eq!(code(pool.resize(size)), Code::InvalidArgument, "{size}");
    }
    let options = AcquireOptions::new();
    for mode in Mode::OF_LOCKS {
        assert_eq!(code(pool.acquire_with(1, &options.clone().mode(mode))), Code::InvalidArgument);
    }
    let lock = manager.lock("a", Level::Xdc).unwrap();
    assert_eq!(code(lock.acquire_with(&options.clone().mode(Mode::Permit))), Code::InvalidArgument);
    assert_eq!(code(pool.acquire_with(1, &options.clone().dies_with_process())), Code::InvalidArgument);
    let reader = lock.shared().acquire().unwrap();
    assert_eq!(code(pool.acquire_with(1, &options.nested_in(&reader))), Code::InvalidArgument);
    let permit = {
        reader.release().unwrap();
        pool.acquire(1).unwrap().into_leases().remove(0)
    };
    let converted = permit.downgrade(Mode::Shared);
    assert!(
        matches!(&converted, Err(Error::InvalidArgument { .. } | Error::UnsupportedConversion { .. })),
        "{converted:?}"
    );
    assert!(in_time(permit.check()).is_some());
    permit.release().unwrap();
}

//! Latches and waiting for them, over any store.

use std::thread;
use std::time::Duration;

use dlm::{AwaitOptions, Builder, CancelToken, Code, Error, Latch, LatchKind, Level, LockManager, Moment};

use super::stores::ODD_IDS;
use super::{LONG, LONGEST, Site, code, eventually, patiently, soon, spawn};
use crate::{Call, Spy};

/// A poll interval that is longer than any wait, so the waiter must be woken.
const NEVER: Duration = Duration::from_secs(3600);
const POLL: Duration = Duration::from_millis(50);

fn builder(site: &Site) -> Builder {
    site.builder().poll(POLL)
}

fn manager(site: &Site) -> LockManager {
    builder(site).store(site.store()).open().unwrap()
}

/// Opens the latch as another process would.
fn latch(site: &Site, id: &str) -> Latch {
    latch_of(&manager(site), id)
}

fn latch_of(manager: &LockManager, id: &str) -> Latch {
    manager.latch(id, Level::Dc, LatchKind::CountDown).unwrap()
}

fn count_down(site: &Site, latch: &Latch) {
    eventually("the count-down is not refused", || match latch.count_down() {
        Ok(()) => true,
        Err(error) if !site.settles && error.is_retryable() && !error.is_in_doubt() => false,
        Err(error) => panic!("{}", error.chain()),
    });
}

pub fn making_a_latch_again_says_so_and_changes_nothing(site: &Site) {
    let (ours, theirs) = (latch(site, "a"), latch(site, "a"));
    ours.create(3).unwrap();
    for latch in [&ours, &theirs] {
        assert_eq!(code(latch.create(3)), Code::AlreadyExists);
        assert_eq!(latch.count().unwrap(), 3);
    }
    theirs.count_down().unwrap();
    assert_eq!(code(ours.create(3)), Code::AlreadyExists);
    assert_eq!((ours.count().unwrap(), theirs.get().unwrap().count().unwrap()), (2, 2));
}

fn not_found_by_every_call(site: &Site, latch: &Latch) {
    assert_eq!(code(latch.count()), Code::NotFound);
    assert_eq!(code(latch.count_down()), Code::NotFound);
    assert_eq!(code(latch.count_up()), Code::NotFound);
    assert_eq!(code(latch.clone().get()), Code::NotFound);
    if site.names {
        assert_eq!(code(latch.count_down_as("a")), Code::NotFound);
        assert_eq!(code(latch.pending()), Code::NotFound);
    }
    assert_eq!(code(latch.await_open()), Code::NotFound);
    assert_eq!(code(latch.await_open_for(LONGEST)), Code::NotFound);
    assert_eq!(code(latch.await_open_for(Duration::ZERO)), Code::NotFound);
    assert_eq!(code(latch.count()), Code::NotFound, "a call created the latch");
}

pub fn a_missing_latch_is_not_found_by_every_call_and_ends_every_wait(site: &Site) {
    let manager = manager(site);
    for level in [Level::Dc, Level::Xdc] {
        let latch = manager.latch("a", level, LatchKind::CountUpDown).unwrap();
        not_found_by_every_call(site, &latch);
    }
}

pub fn a_latch_that_expires_ends_every_wait_with_not_found(site: &Site) {
    patiently(|ttl| {
        let manager = manager(site);
        let latch = manager.latch(&format!("{ttl:?}"), Level::Dc, LatchKind::CountUpDown).unwrap();
        let latch = latch.with_ttl(ttl).unwrap();
        let made = Moment::now();
        latch.create(3).unwrap();
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let latch = latch.clone();
                spawn("waiter", move || latch.await_open())
            })
            .collect();
        let watched = latch.watch().unwrap();
        // On a slow machine the latch has expired before they wait. They must notice that.
        for waiter in waiters {
            assert_eq!(code(waiter.join().unwrap()), Code::NotFound);
        }
        let gone = Moment::now().since(made);
        assert!(gone >= ttl - Duration::from_millis(5), "gone after {gone:?}");
        assert_eq!(code(watched.wait(&AwaitOptions::new())), Code::NotFound);
        assert_eq!(code(watched.is_open()), Code::NotFound);
        not_found_by_every_call(site, &latch);
        latch.create(1).unwrap();
        let seen = latch.count();
        // The new latch may also have expired by now.
        seen.is_ok().then_some(())
    });
}

pub fn a_latch_that_is_reset_opens_a_second_time(site: &Site) {
    if !site.names {
        return;
    }
    let (ours, theirs) = (latch(site, "a"), latch(site, "a"));
    ours.create_for(&["x"]).unwrap();
    for round in 0..2 {
        theirs.count_down_as("x").unwrap();
        ours.await_open().unwrap();
        ours.reset_for(&["x", "y"]).unwrap();
        assert_eq!(theirs.pending().unwrap(), ["x", "y"], "round {round}");
        let watched = theirs.watch().unwrap();
        assert!(!theirs.await_open_for(Duration::ZERO).unwrap(), "round {round}");
        assert!(theirs.count_down_as("x").unwrap() && theirs.count_down_as("y").unwrap());
        watched.wait(&AwaitOptions::new()).unwrap();
        ours.reset(1).unwrap();
        assert!(!theirs.await_open_for(Duration::ZERO).unwrap(), "round {round}");
    }
    // A reset to zero opens it.
    let waiting = spawn("waiter", move || theirs.await_open());
    ours.reset(0).unwrap();
    waiting.join().unwrap().unwrap();
    assert_eq!(code(ours.reset(-1)), Code::InvalidArgument);
    assert_eq!(code(ours.reset_for(&["a", "a"])), Code::InvalidArgument);
}

pub fn a_latch_that_is_deleted_ends_every_wait_with_not_found(site: &Site) {
    if !site.names {
        return;
    }
    let (ours, theirs) = (manager(site), manager(site));
    let of = |manager: &LockManager| manager.latch("a", Level::Dc, LatchKind::CountUpDown).unwrap();
    of(&ours).create(3).unwrap();
    let waiters: Vec<_> = [&ours, &theirs]
        .map(|manager| {
            let latch = of(manager);
            // The first read has seen it.
            assert!(!latch.await_open_for(Duration::ZERO).unwrap());
            spawn("waiter", move || latch.await_open())
        })
        .into();
    of(&theirs).delete().unwrap();
    for waiter in waiters {
        assert_eq!(code(waiter.join().unwrap()), Code::NotFound);
    }
    not_found_by_every_call(site, &of(&ours));
    let named =
        |manager: &LockManager| manager.latches("").filter_map(|latch| latch.unwrap().id).collect::<Vec<_>>();
    assert_eq!(named(&ours), [""; 0]);
    of(&ours).create(1).unwrap();
    assert_eq!(of(&theirs).count().unwrap(), 1);
    assert_eq!(named(&theirs), ["a"]);
    assert_eq!(code(theirs.latches("a\0").next().unwrap()), Code::InvalidArgument);
}

pub fn get_or_create_makes_a_latch_once(site: &Site) {
    const ASKING: usize = 6;
    let made: Vec<bool> = thread::scope(|scope| {
        let asking = (0..ASKING).map(|_| {
            let latch = latch(site, "a");
            scope.spawn(move || latch.get_or_create(7).unwrap())
        });
        let asking: Vec<_> = asking.collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|made| **made).count(), 1);
    let latch = latch(site, "a");
    assert_eq!(latch.count().unwrap(), 7);
    latch.count_down().unwrap();
    assert!(!latch.get_or_create(7).unwrap());
    assert_eq!(latch.count().unwrap(), 6);
}

pub fn a_latch_counts_down_to_zero_and_below_and_up_only_if_it_may(site: &Site) {
    let spy = Spy::on(site.store());
    let manager = builder(site).store(spy.clone()).open().unwrap();
    let latch = manager.latch("a", Level::Dc, LatchKind::CountUpDown).unwrap();
    latch.create(1).unwrap();
    latch.count_up().unwrap();
    assert!(!latch.await_open_for(Duration::ZERO).unwrap());
    for expected in [1, 0, -1] {
        latch.count_down().unwrap();
        assert_eq!(latch.count().unwrap(), expected);
    }
    assert!(latch.await_open_for(LONGEST).unwrap());
    for _ in 0..2 {
        latch.count_up().unwrap();
    }
    assert!(!latch.await_open_for(POLL).unwrap(), "it must be closed again");
    // A read of the wait before, or its note, may still be under way.
    let of_wait = |call: &Call| matches!(call, Call::Counts(_) | Call::Listen);
    let calls = || spy.log().iter().filter(|(call, _)| !of_wait(call)).count();
    let before = calls();
    assert_eq!(code(latch_of(&manager, "a").count_up()), Code::InvalidArgument);
    assert_eq!(calls(), before, "the store was asked");
}

pub fn a_latch_of_zero_is_open_at_once(site: &Site) {
    let latch = latch(site, "a");
    latch.create(0).unwrap();
    latch.await_open().unwrap();
    assert!(latch.await_open_for(Duration::ZERO).unwrap());
}

pub fn bad_input_for_latches_is_refused_before_any_io(site: &Site) {
    let spy = Spy::on(site.store());
    let open = || site.builder().store(spy.clone());
    for poll in [Duration::ZERO, Duration::from_millis(9), 2 * NEVER, Duration::MAX] {
        assert_eq!(code(open().poll(poll).open()), Code::InvalidArgument, "{poll:?}");
    }
    for background_threads in [0, 65, usize::MAX] {
        assert_eq!(
            code(open().background_threads(background_threads).open()),
            Code::InvalidArgument,
            "{background_threads}"
        );
    }
    assert_eq!(code(open().latch_ttl(Duration::ZERO).open()), Code::InvalidArgument);

    let manager = open().open().unwrap();
    let too_long = "x".repeat(1025);
    for id in ["", "a\0b", &too_long] {
        assert_eq!(code(manager.latch(id, Level::Dc, LatchKind::CountDown)), Code::InvalidArgument, "{id:?}");
    }
    let nowhere = LockManager::builder().store(spy.clone()).client("a").open().unwrap();
    for level in [Level::Dc, Level::Xdc] {
        assert_eq!(code(nowhere.latch("a", level, LatchKind::CountDown)), Code::InvalidArgument, "no farm");
    }
    let latch = latch_of(&manager, "a");
    for ttl in [Duration::ZERO, Duration::from_nanos(999_999), 366 * 24 * NEVER, Duration::MAX] {
        assert_eq!(code(latch.clone().with_ttl(ttl)), Code::InvalidArgument, "{ttl:?}");
    }
    for count in [-1, i64::MIN, i64::from(i32::MAX) + 1, i64::MAX] {
        assert_eq!(code(latch.create(count)), Code::InvalidArgument, "{count}");
        assert_eq!(code(latch.get_or_create(count)), Code::InvalidArgument, "{count}");
    }
    let too_long = "x".repeat(256);
    for name in ["", "a\nb", "a\0", &too_long] {
        assert_eq!(code(latch.count_down_as(name)), Code::InvalidArgument, "{name:?}");
        assert_eq!(code(latch.create_for(&["a", name])), Code::InvalidArgument, "{name:?}");
    }
    assert_eq!(code(latch.create_for(&["a", "b", "a"])), Code::InvalidArgument, "one name twice");
    assert_eq!(code(latch.count_up()), Code::InvalidArgument);
    assert_eq!(spy.calls(), 0, "bad input reached the store");
}

pub fn levels_farms_and_clients_have_latches_as_they_should(site: &Site) {
    let store = site.store();
    let open = |client: &str, farm: &str, id: &str, level| {
        let manager = LockManager::builder().store(store.clone()).client(client).farm(farm).open().unwrap();
        manager.latch(id, level, LatchKind::CountDown).unwrap()
    };
    let stranger = format!("{}-b", site.client());
    let here = open(site.client(), "dc1", "a", Level::Dc);
    here.create(3).unwrap();
    let there = open(site.client(), "dc2", "a", Level::Dc);
    assert_eq!(code(there.count()), Code::NotFound);
    assert_eq!(code(there.count_down()), Code::NotFound);
    there.create(4).unwrap();
    open(&stranger, "dc1", "a", Level::Dc).create(100).unwrap();
    for id in ODD_IDS.iter().filter(|id| **id != "a") {
        open(site.client(), "dc1", id, Level::Dc).create(1000).unwrap();
    }
    assert_eq!((here.count().unwrap(), there.count().unwrap()), (3, 4));
    for farm in ["dc1", "dc2", "dc3"] {
        assert_eq!(open(site.client(), farm, "a", Level::Xdc).count().unwrap(), 7, "{farm}");
    }
    let everywhere = open(site.client(), "dc2", "a", Level::Xdc);
    everywhere.count_down().unwrap();
    assert_eq!((here.count().unwrap(), there.count().unwrap(), everywhere.count().unwrap()), (3, 3, 6));
    assert_eq!(code(everywhere.create(1)), Code::AlreadyExists);
    assert_eq!(code(open(site.client(), "dc3", "a", Level::Xdc).count_down()), Code::NotFound);
}

pub fn named_participants_are_counted_once_and_told(site: &Site) {
    let (ours, theirs) = (latch(site, "a"), latch(site, "a"));
    let made = ours.create_for(&["worker-2", "worker-1", "worker-3"]);
    if !site.names {
        assert_eq!(code(made), Code::InvalidArgument);
        assert_eq!(code(ours.count()), Code::NotFound);
        return;
    }
    made.unwrap();
    assert_eq!(code(theirs.create_for(&["worker-9"])), Code::AlreadyExists);
    assert_eq!(ours.pending().unwrap(), ["worker-1", "worker-2", "worker-3"]);
    assert!(theirs.count_down_as("worker-2").unwrap());
    for latch in [&ours, &theirs] {
        assert!(!latch.count_down_as("worker-2").unwrap(), "counted twice");
        assert_eq!(latch.count().unwrap(), 2);
        assert_eq!(latch.pending().unwrap(), ["worker-1", "worker-3"]);
        assert_eq!(latch.roster().unwrap().arrived, ["worker-2"]);
    }
    // Of several calls with the same name, exactly one counts.
    let counted: Vec<bool> = thread::scope(|scope| {
        let counting = (0..6).map(|_| {
            let latch = latch(site, "a");
            scope.spawn(move || latch.count_down_as("worker-1").unwrap())
        });
        let counting: Vec<_> = counting.collect();
        counting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(counted.iter().filter(|counted| **counted).count(), 1);
    assert_eq!((ours.count().unwrap(), ours.pending().unwrap()), (1, vec!["worker-3".to_owned()]));
    assert!(!ours.await_open_for(POLL).unwrap());
    assert!(ours.count_down_as("worker-3").unwrap());
    assert!(theirs.await_open_for(LONGEST).unwrap() && theirs.pending().unwrap().is_empty());
}

/// Waits until the manager has polled the store once more. Then at least one wait is active.
fn until_watched(spy: &Spy) {
    let before = spy.reads().len();
    eventually("the latch is polled", || spy.reads().len() > before);
}

pub fn a_wait_ends_when_another_process_opens_the_latch(site: &Site) {
    let spy = Spy::on(site.store());
    let ours = latch_of(&builder(site).store(spy.clone()).open().unwrap(), "a");
    let theirs = latch(site, "a");
    ours.create(2).unwrap();
    let waiter = {
        let ours = ours.clone();
        spawn("waiter", move || ours.await_open())
    };
    theirs.count_down().unwrap();
    // The first of these reads may have begun before the count-down. When the third begins, the second was answered.
    (0..3).for_each(|_| until_watched(&spy));
    assert!(!waiter.is_finished(), "woken with one count missing");
    theirs.count_down().unwrap();
    waiter.join().unwrap().unwrap();
    // A later waiter finds the latch open.
    assert!(ours.await_open_for(LONGEST).unwrap() && theirs.await_open_for(Duration::ZERO).unwrap());
}

pub fn a_count_down_in_this_process_wakes_its_waiters_at_once(site: &Site) {
    for level in [Level::Dc, Level::Xdc] {
        let manager = site.builder().store(site.store()).poll(NEVER).open().unwrap();
        let latch = manager.latch(&format!("{level:?}"), level, LatchKind::CountDown).unwrap();
        latch.create(2).unwrap();
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let latch = latch.clone();
                spawn("waiter", move || latch.await_open())
            })
            .collect();
        let watched = latch.watch().unwrap();
        // The polls become rare. After this wait, the next poll would be too late.
        assert!(!latch.await_open_for(20 * POLL).unwrap());
        count_down(site, &latch);
        assert!(!watched.is_open().unwrap());
        count_down(site, &latch);
        assert!(watched.wait(&AwaitOptions::new().wait(LONGEST)).unwrap());
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
    }
}

pub fn a_sum_over_farms_opens_when_the_last_farm_is_done(site: &Site) {
    let open = |farm| {
        let manager = builder(site).store(site.store()).farm(farm).open().unwrap();
        manager.latch("a", Level::Xdc, LatchKind::CountDown).unwrap()
    };
    let [one, two] = ["dc1", "dc2"].map(open);
    one.create(1).unwrap();
    two.create(1).unwrap();
    let watched = one.watch().unwrap();
    one.count_down().unwrap();
    assert!(!watched.wait(&AwaitOptions::new().wait(4 * POLL)).unwrap(), "the other farm is not done");
    two.count_down().unwrap();
    assert!(watched.wait(&AwaitOptions::new().wait(LONGEST)).unwrap());
}

/// Checks that nothing reads the store for some time.
fn is_quiet(spy: &Spy) {
    let calls = spy.calls();
    thread::sleep(12 * POLL);
    // A call that was under way when the last waiter left may still be made, however late.
    assert!(spy.calls() <= calls + 1, "the store is read although nobody waits");
}

pub fn a_wait_that_is_over_says_no_and_leaves_nothing_behind(site: &Site) {
    let spy = Spy::on(site.store());
    let latch = latch_of(&builder(site).store(spy.clone()).open().unwrap(), "a");
    latch.create(1).unwrap();
    let (began, wait) = (Moment::now(), 4 * POLL);
    assert!(!latch.await_open_for(wait).unwrap());
    assert!(Moment::now().since(began) >= wait);
    is_quiet(&spy);
    drop(latch.watch().unwrap());
    is_quiet(&spy);
    latch.count_down().unwrap();
    assert!(latch.await_open_for(LONGEST).unwrap());
    is_quiet(&spy);
}

pub fn a_wait_of_zero_for_a_latch_looks_once(site: &Site) {
    let spy = Spy::on(site.store());
    let latch = latch_of(&site.builder().store(spy.clone()).poll(NEVER).open().unwrap(), "a");
    latch.create(1).unwrap();
    for expected in [1, 2, 3] {
        assert!(!latch.await_open_for(Duration::ZERO).unwrap());
        assert_eq!(spy.reads(), vec![1; expected]);
    }
    // The same while another waiter exists, whose last poll is old.
    let _watched = latch.watch().unwrap();
    until_watched(&spy);
    self::latch(site, "a").count_down().unwrap();
    assert!(latch.await_open_for(Duration::ZERO).unwrap(), "the wait returned the result of an old poll");
}

pub fn a_cancelled_wait_for_a_latch_ends_and_leaves_nothing_behind(site: &Site) {
    let spy = Spy::on(site.store());
    let latch = latch_of(&builder(site).store(spy.clone()).open().unwrap(), "a");
    latch.create(1).unwrap();
    let mut token = CancelToken::new();
    let mut least = LONG;
    for _ in 0..3 {
        token = CancelToken::new();
        let (other, how) = (latch.watch().unwrap(), AwaitOptions::new().wait(LONGEST).cancel(&token));
        let latch = latch.clone();
        let waiter = spawn("waiter", move || latch.await_open_with(&how));
        until_watched(&spy);
        let cancelled = Moment::now();
        token.cancel();
        match waiter.join().unwrap() {
            Err(Error::Cancelled { .. }) => {}
            other => panic!("{other:?}"),
        }
        least = least.min(Moment::now().since(cancelled));
        assert!(!other.is_open().unwrap(), "another wait was ended");
    }
    // A parked thread checks every ten seconds even if nobody wakes it.
    assert!(least < Duration::from_secs(5), "at the earliest {least:?} after a cancellation");
    is_quiet(&spy);
    let calls = spy.calls();
    let cancelled = latch.await_open_with(&AwaitOptions::new().cancel(&token));
    assert_eq!(code(cancelled), Code::Cancelled, "a token stays cancelled");
    assert_eq!(spy.calls(), calls);
}

pub fn closing_wakes_every_waiter_of_every_latch(site: &Site) {
    let spy = Spy::on(site.store());
    let manager = builder(site).store(spy.clone()).open().unwrap();
    let latches: Vec<_> = (0..4).map(|id| latch_of(&manager, &id.to_string())).collect();
    latches.iter().for_each(|latch| latch.create(1).unwrap());
    let waiters: Vec<_> = (0..8)
        .map(|number| {
            let latch = latches[number % 4].clone();
            spawn("waiter", move || latch.await_open())
        })
        .collect();
    let watched = latches[0].watch().unwrap();
    until_watched(&spy);
    manager.close().unwrap();
    for waiter in waiters {
        assert_eq!(code(waiter.join().unwrap()), Code::Closed);
    }
    assert_eq!(code(watched.is_open()), Code::Closed);
    let calls = spy.calls();
    let latch = &latches[0];
    assert_eq!(code(latch.await_open()), Code::Closed);
    assert_eq!(code(latch.watch()), Code::Closed);
    assert_eq!(code(latch.count()), Code::Closed);
    assert_eq!(code(latch.count_down()), Code::Closed);
    assert_eq!(code(latch.create(1)), Code::Closed);
    assert_eq!(code(latch.pending()), Code::Closed);
    assert_eq!(code(manager.initialize_latches()), Code::Closed);
    drop(watched);
    thread::sleep(2 * POLL);
    assert_eq!(spy.calls(), calls, "a closed manager asked its store");
    assert_eq!(self::latch(site, "0").count().unwrap(), 1);
}

pub fn many_waiters_of_one_latch_cost_one_look_at_a_time(site: &Site) {
    const WAITERS: usize = 40;
    let spy = Spy::on(site.store());
    let latch = latch_of(&builder(site).store(spy.clone()).open().unwrap(), "a");
    latch.create(1).unwrap();
    let watched: Vec<_> = (0..WAITERS).map(|_| latch.watch().unwrap()).collect();
    let began = Moment::now();
    let before = spy.reads().len();
    eventually("it was polled for a while", || {
        assert!(!latch.await_open_for(20 * POLL).unwrap());
        spy.reads().len() >= before + 3
    });
    let (reads, took) = (spy.reads().len() - before, Moment::now().since(began));
    // One read per poll interval, which jitter shortens by up to a tenth and early reading by up to an eighth.
    let most = (took.as_secs_f64() / (0.75 * POLL.as_secs_f64())) as usize + 4;
    assert!(reads <= most, "{reads} polls in {took:?}");
    assert!(spy.reads().iter().all(|asked| *asked == 1));
    self::latch(site, "a").count_down().unwrap();
    for watch in &watched {
        assert!(watch.wait(&AwaitOptions::new().wait(LONGEST)).unwrap());
    }
    assert_eq!(spy.calls_of(Call::Step), 0);
}

pub fn processes_that_count_down_open_the_latch_exactly(site: &Site) {
    const PROCESSES: usize = 4;
    let rounds = site.rounds.div_ceil(8);
    let ours = latch(site, "a");
    ours.create((PROCESSES * rounds + 1) as i64).unwrap();
    let watched = ours.watch().unwrap();
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            let latch = latch(site, "a");
            scope.spawn(move || (0..rounds).for_each(|_| count_down(site, &latch)));
        }
    });
    assert_eq!(ours.count().unwrap(), 1);
    assert!(!watched.is_open().unwrap(), "opened with one count missing");
    latch(site, "a").count_down().unwrap();
    assert!(watched.wait(&AwaitOptions::new().wait(LONGEST)).unwrap());
    assert_eq!(ours.count().unwrap(), 0);
}

/// With a poll interval of an hour the pause between two reads doubles each time, from 50 ms on.
pub fn whoever_opens_a_latch_tells_those_who_wait(site: &Site) {
    if !site.listeners {
        return;
    }
    // Pauses of 3, 6 and 13 s.
    let is_told = [7, 8, 9].into_iter().any(|reads| are_told(site, reads));
    assert!(is_told, "the machine was so slow that the latch was found open by polling each time");
}

/// Opens a latch when two waits have read it so often. Returns `false` if the machine was too slow: the next read was due.
fn are_told(site: &Site, reads: usize) -> bool {
    let (notices, id) = ("udp://127.0.0.1", reads.to_string());
    let (spy, store) = (Spy::on(site.store()), site.store());
    let waits = builder(site).store(spy.clone()).poll(NEVER).option("notices", notices).open().unwrap();
    let opens = builder(site).store(site.store()).option("notices", notices).open().unwrap();
    let levels = [Level::Dc, Level::Xdc];
    let waiting = levels.map(|level| waits.latch(&id, level, LatchKind::CountUpDown).unwrap());
    let latch = latch_of(&opens, &id);
    latch.create(2).unwrap();
    let is_noted = || !store.latches().unwrap().listeners(latch.name(), soon()).unwrap().is_empty();
    // The subscriptions begin here, even if the threads start to wait later.
    let watches = waiting.each_ref().map(|latch| latch.watch().unwrap());
    let is_told = thread::scope(|scope| {
        let waiters =
            watches.map(|watch| scope.spawn(move || watch.wait(&AwaitOptions::new().wait(LONGEST)).unwrap()));
        eventually("they are noted and read seldom", || {
            spy.reads().iter().sum::<usize>() >= levels.len() * reads && is_noted()
        });
        let reads_so_far =
            || spy.log().into_iter().filter(|(call, _)| matches!(call, Call::Counts(_))).collect::<Vec<_>>();
        let before = reads_so_far();
        count_down(site, &latch);
        assert_eq!(opens.stats().notices_sent, 0, "told of a latch that is closed");
        count_down(site, &latch);
        // Such a read may have seen the first change, and then begins with short pauses again.
        let was_read_meanwhile = reads_so_far().len() > before.len();
        for waiter in waiters {
            assert!(waiter.join().unwrap());
        }
        let since = Moment::now().since(before.last().expect("it was read").1);
        // One of the two may have been read less often than the other.
        let pause = Duration::from_millis(50 << (reads - 1)) / 4;
        let is_told = waits.stats().early_asks == 1;
        assert!(
            is_told || was_read_meanwhile || since >= pause,
            "found by polling {since:?} after the last read"
        );
        is_told
    });
    assert_eq!(opens.stats().notices_sent, 1, "one process is told once");
    is_told
}

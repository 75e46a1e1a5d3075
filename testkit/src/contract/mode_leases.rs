//! What locks promise in their modes, over any store that keeps modes: readers, writers, changes of mode, and waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlm::{
    AcquireOptions, CancelToken, Code, Epoch, Error, HistoryKind, Lease, LeaseState, LeaseToken, Level, Lock,
    LockManager, Mode, Moment,
};

use super::{HELD, LONGEST, Site, code, eventually, in_time, patiently, spawn};

fn lock(site: &Site) -> Lock {
    lock_of(&site.manager(), "a")
}

fn lock_of(manager: &LockManager, id: &str) -> Lock {
    manager.lock(id, Level::Xdc).unwrap()
}

/// Returns whether the refusal of an attempt names a process that waits.
fn is_reserved(answer: &dlm::Result<Lease>) -> bool {
    match answer {
        Err(Error::LockUnavailable { holder: Some(holder), .. }) => holder.is_waiting,
        _ => false,
    }
}

/// A writer that waits in a thread of its own.
struct Writer {
    thread: std::thread::JoinHandle<dlm::Result<Lease>>,
    is_over: Arc<AtomicBool>,
}

impl Writer {
    /// Starts it, and returns when it keeps new readers out of the lock of `observer`.
    fn waiting(writer: &Lock, observer: &Lock) -> Writer {
        let (writer, is_over) = (writer.clone(), Arc::new(AtomicBool::new(false)));
        let over = Arc::clone(&is_over);
        let thread = spawn("writer", move || {
            let answer = writer.acquire();
            over.store(true, Ordering::SeqCst);
            answer
        });
        eventually("the writer keeps new readers out", || is_reserved(&observer.shared().try_acquire()));
        Writer { thread, is_over }
    }

    fn waits(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn lease(self) -> Lease {
        self.thread.join().unwrap().unwrap()
    }
}

pub fn readers_share_a_lock_and_its_epoch_and_a_writer_has_it_alone(site: &Site) {
    let [ours, theirs] = [lock(site), lock(site)];
    assert_eq!([ours.mode(), ours.shared().mode(), ours.update().mode()], Mode::OF_LOCKS);
    let before = ours.acquire().unwrap();
    let fence = before.fence().unwrap();
    assert_eq!((before.mode(), before.epoch()), (Mode::Exclusive, Some(Epoch::from(fence))));
    assert_eq!(code(theirs.shared().try_acquire()), Code::LockUnavailable);
    before.release().unwrap();
    let readers = [ours.shared().acquire().unwrap(), theirs.shared().acquire().unwrap()];
    let updater = theirs.acquire_with(&AcquireOptions::new().mode(Mode::Update)).unwrap();
    let epoch = updater.epoch().unwrap();
    assert!(!epoch.is_before(fence) && epoch > Epoch::from(fence));
    for (lease, mode) in readers.iter().zip([Mode::Shared; 2]).chain([(&updater, Mode::Update)]) {
        lease.check().unwrap();
        assert_eq!((lease.mode(), lease.epoch(), lease.fence()), (mode, Some(epoch), None));
        assert_eq!(code(lease.guard()), Code::InvalidArgument, "a reader has no fence for writes");
    }
    assert_eq!(code(ours.update().try_acquire()), Code::LockUnavailable, "one updater at a time");
    assert_eq!(code(ours.try_acquire()), Code::LockUnavailable);
    for lease in readers.into_iter().chain([updater]) {
        assert!(lease.release().unwrap() && !lease.release().unwrap());
    }
    let after = theirs.try_acquire().unwrap();
    assert!(epoch.is_before(after.fence().unwrap()));
}

pub fn a_refusal_says_in_which_mode_the_lock_is_held_and_if_this_process_holds_it(site: &Site) {
    let [ours, theirs] = [lock(site), lock(site)];
    let _reader = ours.shared().acquire().unwrap();
    for (lock, here) in [(&ours, true), (&theirs, false)] {
        let error = lock.try_acquire().unwrap_err();
        assert!(error.to_string().contains("(SHARED)"), "{error}");
        // Managers of one process that were opened in one millisecond are one to this rule.
        assert!(!here || error.to_string().contains("which is this process"), "{error}");
    }
    let error = ours.acquire_within(HELD, Duration::from_millis(50)).unwrap_err();
    assert!(
        error.to_string().contains("which is this process") && error.to_string().contains("waited"),
        "{error}"
    );
}

pub fn a_writer_waits_for_all_readers_and_readers_wait_for_a_writer(site: &Site) {
    let [ours, theirs] = [lock(site), lock(site)];
    let readers: Vec<_> = (0..3).map(|_| ours.shared().acquire().unwrap()).collect();
    let writer = Writer::waiting(&theirs, &lock(site));
    for reader in readers {
        assert!(writer.waits(), "a reader is still there");
        reader.release().unwrap();
    }
    let writing = writer.lease();
    let reader = {
        let ours = ours.clone();
        spawn("reader", move || ours.shared().acquire().unwrap())
    };
    std::thread::sleep(Duration::from_millis(60));
    assert!(!reader.is_finished() && writing.check().is_ok());
    writing.release().unwrap();
    let reading = reader.join().unwrap();
    assert!(reading.epoch().unwrap() > writing.epoch().unwrap());
}

/// A thread that waits for readers of its own process waits like any other.
pub fn threads_of_one_manager_are_readers_and_writers_like_any_others(site: &Site) {
    let manager = site.manager();
    let lock = lock_of(&manager, "a");
    let reader = lock.shared().acquire().unwrap();
    let writer = Writer::waiting(&lock, &self::lock(site));
    assert!(writer.waits());
    reader.release().unwrap();
    let writing = writer.lease();
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let lock = lock.shared();
            spawn("reader", move || lock.acquire().unwrap())
        })
        .collect();
    eventually("all readers wait", || manager.stats().threads_waiting == 4);
    writing.release().unwrap();
    // They are let in together: none of them ends before all are in.
    let leases: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    assert!(leases.iter().all(|lease| lease.check().is_ok() && lease.epoch() == leases[0].epoch()));
}

/// The first one begins an epoch and the last one ends it, so what each finds changes all the time.
pub fn readers_that_come_and_go_never_keep_each_other_out(site: &Site) {
    let readers = [0; 3].map(|_| {
        let lock = lock(site);
        spawn("reader", move || {
            for _ in 0..150 {
                assert!(lock.shared().acquire().unwrap().release().unwrap());
            }
        })
    });
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(lock(site).acquire().unwrap().release().unwrap());
}

pub fn a_waiting_writer_keeps_new_readers_out_until_it_has_had_its_turn(site: &Site) {
    let [ours, theirs, others] = [lock(site), lock(site), lock(site)];
    let reader = ours.shared().acquire().unwrap();
    let writer = Writer::waiting(&theirs, &others);
    assert!(is_reserved(&others.update().try_acquire()));
    let error = others.shared().try_acquire().unwrap_err();
    assert!(error.to_string().contains("reserved") && error.to_string().contains("waits"), "{error}");
    // The reader renews, and its process may read again: the writer waits for it.
    reader.renew().unwrap();
    let nested = AcquireOptions::new().nested_in(&reader).wait(Duration::ZERO);
    let nested = ours.shared().acquire_with(&nested).unwrap();
    nested.release().unwrap();
    assert!(is_reserved(&ours.shared().try_acquire()), "another reader of that process is a new one");
    assert!(writer.waits());
    reader.release().unwrap();
    let writing = writer.lease();
    writing.release().unwrap();
    others.shared().try_acquire().expect("the intent has ended with the grant").release().unwrap();
}

pub fn a_writer_that_gives_up_lets_readers_in(site: &Site) {
    let [ours, theirs, others] = [lock(site), lock(site), lock(site)];
    let _reader = ours.shared().acquire().unwrap();
    assert_eq!(code(theirs.acquire_within(HELD, Duration::from_millis(100))), Code::LockUnavailable);
    eventually("a new reader gets in", || others.shared().try_acquire().is_ok());
    // A try leaves nothing behind.
    assert_eq!(code(theirs.try_acquire()), Code::LockUnavailable);
    others.shared().try_acquire().unwrap().release().unwrap();
}

pub fn a_reader_that_a_writer_keeps_out_for_long_takes_its_turn(site: &Site) {
    let [ours, theirs, others] = [lock(site), lock(site), lock(site)];
    let reader = ours.shared().acquire().unwrap();
    let writer = Writer::waiting(&theirs, &others);
    let began = Moment::now();
    let late = others.shared().acquire().unwrap();
    // Ten intervals of 20 ms.
    assert!(Moment::now().since(began) >= Duration::from_millis(200));
    assert!(writer.waits());
    reader.release().unwrap();
    late.release().unwrap();
    writer.lease().release().unwrap();
}

/// Writers that come one after another would keep it out for as long as they come.
pub fn a_reader_that_came_before_a_writer_passes_it(site: &Site) {
    let [ours, theirs, observer] = [lock(site), lock(site), lock(site)];
    let second = site.manager();
    // Intents keep it out for ten of its intervals.
    let slow = site.builder().retry(Duration::from_secs(2)).store(site.store()).open().unwrap();
    let reader = ours.shared().acquire().unwrap();
    let gives_up = CancelToken::new();
    let first = {
        let how = AcquireOptions::new().cancel(&gives_up);
        spawn("writer", move || code(theirs.acquire_with(&how)))
    };
    eventually("the writer keeps new readers out", || is_reserved(&observer.shared().try_acquire()));
    let began = Moment::now();
    let late = {
        let lock = lock_of(&slow, "a").shared();
        spawn("reader", move || lock.acquire().unwrap())
    };
    eventually("the reader waits", || slow.stats().threads_waiting == 1);
    // Longer than the clocks may differ.
    std::thread::sleep(Duration::from_millis(400));
    let writer = Writer::waiting(&lock_of(&second, "a"), &observer);
    eventually("the other writer waits", || second.stats().threads_waiting == 1);
    std::thread::sleep(Duration::from_millis(200));
    gives_up.cancel();
    assert_eq!(first.join().unwrap(), Code::Cancelled);
    let late = late.join().unwrap();
    assert!(Moment::now().since(began) < Duration::from_secs(15), "it came in only by a turn");
    assert!(writer.waits());
    for lease in [reader, late] {
        lease.release().unwrap();
    }
    writer.lease().release().unwrap();
}

/// Two processes that read one lock and want to read the other, while a writer waits for each: nobody could go on.
pub fn readers_that_want_each_others_locks_go_on_though_writers_wait_for_both(site: &Site) {
    let managers = [site.manager(), site.manager(), site.manager(), site.manager(), site.manager()];
    let [one, other] = [0, 1].map(|at| lock_of(&managers[at], ["a", "b"][at]).shared().acquire().unwrap());
    let observer = |id| lock_of(&managers[4], id);
    let writers =
        [(2, "a"), (3, "b")].map(|(at, id)| Writer::waiting(&lock_of(&managers[at], id), &observer(id)));
    let wants = [(0, "b"), (1, "a")].map(|(at, id)| {
        let lock = lock_of(&managers[at], id).shared();
        spawn("reader", move || lock.acquire().unwrap())
    });
    let both = wants.map(|want| want.join().unwrap());
    assert!(writers.iter().all(Writer::waits), "the readers got in before them");
    assert!(both.iter().chain([&one, &other]).all(|lease| lease.check().is_ok()));
    for lease in both.into_iter().chain([one, other]) {
        lease.release().unwrap();
    }
    writers.into_iter().for_each(|writer| _ = writer.lease().release().unwrap());
}

/// The same with both writers in the processes of the readers, in front of them in the queue.
pub fn readers_that_want_each_others_locks_go_on_though_writers_of_their_processes_wait(site: &Site) {
    let [one, other] = [site.manager(), site.manager()];
    let observer = site.manager();
    let held =
        [(&one, "a"), (&other, "b")].map(|(manager, id)| lock_of(manager, id).shared().acquire().unwrap());
    let writers = [(&one, "b"), (&other, "a")]
        .map(|(manager, id)| Writer::waiting(&lock_of(manager, id), &lock_of(&observer, id)));
    let wants = [(&one, "b"), (&other, "a")].map(|(manager, id)| {
        let lock = lock_of(manager, id).shared();
        spawn("reader", move || lock.acquire().unwrap())
    });
    let both = wants.map(|want| want.join().unwrap());
    assert!(writers.iter().all(Writer::waits), "the readers got in before them");
    for lease in both.into_iter().chain(held) {
        lease.check().unwrap();
        lease.release().unwrap();
    }
    writers.into_iter().for_each(|writer| _ = writer.lease().release().unwrap());
}

/// Threads of one process that read, so that there is always one.
fn reading_on(
    lock: &Lock,
    threads: usize,
    read: Duration,
) -> (Arc<AtomicBool>, Vec<std::thread::JoinHandle<()>>) {
    let stop = Arc::new(AtomicBool::new(false));
    let readers = (0..threads)
        .map(|_| {
            let (lock, stop) = (lock.shared(), Arc::clone(&stop));
            spawn("reader", move || {
                while !stop.load(Ordering::SeqCst) {
                    let lease = lock.acquire().unwrap();
                    std::thread::sleep(read);
                    lease.release().unwrap();
                }
            })
        })
        .collect();
    (stop, readers)
}

pub fn a_process_whose_readers_overlap_lets_writers_and_updaters_in(site: &Site) {
    let (manager, theirs) = (site.manager(), lock(site));
    let ours = lock_of(&manager, "a");
    // Less than the ten intervals after which readers take a turn, and more.
    for read in [10, 600].map(Duration::from_millis) {
        let (stop, readers) = reading_on(&ours, 6, read);
        for writer in [&theirs, &ours] {
            writer.acquire().expect("a writer gets its turn").release().unwrap();
            let update = writer.update().acquire().expect("nothing is in its way");
            update.upgrade(LONGEST).expect("it gets its turn").release().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }
}

/// The other updater waits for the hold that is raised, and the upgrade would wait for it.
pub fn an_upgrade_is_not_passed_by_another_updater_of_its_process(site: &Site) {
    let (manager, theirs) = (site.manager(), lock(site));
    let ours = lock_of(&manager, "a");
    let (updater, reader) = (ours.update().acquire().unwrap(), theirs.shared().acquire().unwrap());
    let other = {
        let lock = ours.update();
        spawn("other", move || lock.acquire().unwrap())
    };
    eventually("another updater waits", || manager.stats().threads_waiting == 1);
    let upgrading = spawn("updater", move || updater.upgrade(LONGEST).unwrap());
    eventually("the upgrade waits", || manager.stats().threads_waiting == 2);
    // Longer than the ten intervals after which a reader takes its turn.
    std::thread::sleep(Duration::from_millis(300));
    reader.release().unwrap();
    upgrading.join().unwrap().release().unwrap();
    other.join().unwrap().release().unwrap();
}

/// Not behind a writer of its own process either.
pub fn a_nested_reader_passes_a_writer_of_its_process_at_once(site: &Site) {
    let manager = site.builder().store(site.store()).retry(Duration::from_secs(3600)).open().unwrap();
    let ours = lock_of(&manager, "a");
    let outer = ours.shared().acquire().unwrap();
    let writer = Writer::waiting(&ours, &lock(site));
    let nested = ours.shared().acquire_with(&AcquireOptions::new().nested_in(&outer)).unwrap();
    assert!(writer.waits());
    nested.release().unwrap();
    outer.release().unwrap();
    writer.lease().release().unwrap();
}

pub fn an_election_has_one_leader(site: &Site) {
    let election = site.manager().election("a", Level::Xdc).unwrap();
    for mode in [Mode::Shared, Mode::Update] {
        assert_eq!(code(election.campaign(&AcquireOptions::new().mode(mode))), Code::InvalidArgument);
    }
    let leads = election.campaign(&AcquireOptions::new().mode(Mode::Exclusive)).unwrap();
    leads.guard().unwrap();
}

pub fn a_lease_goes_on_with_fewer_rights_and_nobody_gets_the_lock_in_between(site: &Site) {
    let [ours, theirs] = [lock(site), lock(site)];
    for to in [Mode::Shared, Mode::Update] {
        let writing = ours.acquire().unwrap();
        let (stop, contender) = (Arc::new(AtomicBool::new(false)), theirs.clone());
        let stopped = Arc::clone(&stop);
        let contender = spawn("contender", move || {
            while !stopped.load(Ordering::SeqCst) {
                assert_eq!(code(contender.try_acquire()), Code::LockUnavailable);
            }
        });
        let reading = writing.downgrade(to).unwrap();
        assert_eq!((reading.mode(), reading.fence()), (to, None));
        assert!(reading.epoch() > writing.epoch(), "what was written before is before the readers");
        assert_eq!(writing.state(), LeaseState::Released);
        assert_eq!(code(writing.check()), Code::LeaseLost);
        assert_eq!(code(writing.renew()), Code::LeaseLost);
        assert!(!writing.release().unwrap(), "there is nothing left to release");
        drop(writing);
        let beside = theirs.shared().try_acquire().unwrap();
        assert_eq!(beside.epoch(), reading.epoch());
        let reading = match to {
            Mode::Update => {
                let shared = reading.downgrade(Mode::Shared).unwrap();
                assert_eq!(shared.epoch(), reading.epoch(), "no writer came");
                theirs.update().try_acquire().expect("there is no updater").release().unwrap();
                shared
            }
            _ => reading,
        };
        reading.renew().unwrap();
        stop.store(true, Ordering::SeqCst);
        contender.join().unwrap();
        assert!(beside.release().unwrap() && reading.release().unwrap());
    }
}

pub fn an_updater_writes_when_the_readers_have_left_and_before_other_writers(site: &Site) {
    let [ours, theirs, others] = [lock(site), lock(site), lock(site)];
    let updater = ours.update().acquire().unwrap();
    let readers: Vec<_> = (0..2).map(|_| theirs.shared().acquire().unwrap()).collect();
    let writer = Writer::waiting(&others, &lock(site));
    let refused = updater.upgrade(Duration::ZERO);
    assert_eq!(code(refused), Code::LockUnavailable);
    updater.check().expect("the lease is as it was");
    updater.renew().unwrap();
    let upgrading = {
        let lock = lock(site);
        spawn("updater", move || {
            let writing = updater.upgrade(LONGEST).unwrap();
            assert_eq!(code(updater.check()), Code::LeaseLost);
            assert_eq!(code(lock.shared().try_acquire()), Code::LockUnavailable);
            writing
        })
    };
    for reader in readers {
        assert!(!upgrading.is_finished(), "a reader is still there");
        reader.release().unwrap();
    }
    let writing = upgrading.join().unwrap();
    assert!(writer.waits(), "the updater comes first");
    assert_eq!(writing.mode(), Mode::Exclusive);
    let fence = writing.guard().unwrap();
    assert!(writing.release().unwrap());
    let next = writer.lease();
    assert!(next.fence().unwrap() > fence);
}

pub fn a_change_of_mode_that_is_not_allowed_leaves_the_lease_as_it_was(site: &Site) {
    let lock = lock(site);
    let shared = lock.shared().acquire().unwrap();
    let error = shared.upgrade(LONGEST).unwrap_err();
    assert_eq!(error.code(), Code::UnsupportedConversion, "at once");
    assert!(error.to_string().contains("UPDATE"), "{error}");
    assert_eq!(code(shared.downgrade(Mode::Update)), Code::UnsupportedConversion);
    assert_eq!(code(shared.downgrade(Mode::Exclusive)), Code::UnsupportedConversion);
    assert_eq!(code(shared.downgrade(Mode::Shared)), Code::InvalidArgument);
    let update = lock.update().acquire().unwrap();
    assert_eq!(code(update.downgrade(Mode::Update)), Code::InvalidArgument);
    assert_eq!(code(update.downgrade(Mode::Exclusive)), Code::InvalidArgument, "it is more, and may wait");
    assert!(shared.check().is_ok() && update.check().is_ok());
    assert!(shared.release().unwrap() && update.release().unwrap());
    let exclusive = lock.acquire().unwrap();
    assert_eq!(code(exclusive.upgrade(LONGEST)), Code::InvalidArgument);
    exclusive.check().unwrap();
}

pub fn a_lease_that_is_over_changes_no_mode(site: &Site) {
    let [ours, theirs] = [lock(site), lock(site)];
    let released = ours.acquire().unwrap();
    released.release().unwrap();
    assert_eq!(code(released.downgrade(Mode::Shared)), Code::LeaseLost);
    patiently(|ttl| {
        let expired = in_time(ours.update().try_acquire_with_ttl(ttl))?;
        let other = theirs.update().acquire().unwrap();
        assert_eq!(code(expired.downgrade(Mode::Shared)), Code::LeaseLost);
        assert_eq!(code(expired.upgrade(Duration::ZERO)), Code::LeaseLost);
        other.check().unwrap();
        assert!(other.release().unwrap());
        Some(())
    });
}

pub fn a_lease_that_is_kept_alive_stays_so_in_its_next_mode(site: &Site) {
    let [ours, theirs] = [lock(site), lock(site)];
    let ttl = Duration::from_secs(2);
    let keep = AcquireOptions::new().ttl(ttl).keep(Duration::MAX);
    let writing = ours.acquire_with(&keep).unwrap();
    let reading = writing.downgrade(Mode::Update).unwrap();
    drop(writing);
    assert!(matches!(reading.state(), LeaseState::Renewing | LeaseState::AtRisk), "{:?}", reading.state());
    let other = theirs.shared().acquire_with(&keep).unwrap();
    let began = Moment::now();
    while Moment::now().since(began) < ttl * 3 / 2 {
        assert!(reading.state().is_valid() && other.state().is_valid());
        std::thread::sleep(Duration::from_millis(50));
    }
    other.release().unwrap();
    let writing = reading.upgrade(LONGEST).unwrap();
    assert!(matches!(writing.state(), LeaseState::Renewing | LeaseState::AtRisk));
    assert_eq!(writing.ttl(), ttl);
}

pub fn each_reader_ends_with_its_own_ttl(site: &Site) {
    let [ours, theirs] = [lock(site), lock(site)];
    patiently(|ttl| {
        let long = theirs.shared().acquire().unwrap();
        let short = in_time(ours.shared().try_acquire_with_ttl(ttl))?;
        std::thread::sleep(short.remaining() + Duration::from_millis(5));
        assert_eq!(code(short.check()), Code::LeaseLost);
        long.check().unwrap();
        assert_eq!(code(lock(site).try_acquire()), Code::LockUnavailable, "the other reader is there");
        long.renew().unwrap();
        long.release().unwrap();
        // The store may keep a record a little longer than its lease.
        let writing = lock(site).acquire().unwrap();
        assert!(matches!(short.release(), Err(ref error) if error.code() == Code::LeaseLost));
        assert!(writing.release().unwrap());
        Some(())
    });
}

pub fn a_token_of_a_reader_is_renewed_and_released_by_another_process(site: &Site) {
    let [ours, theirs] = [lock(site), lock(site)];
    let beside = theirs.shared().acquire().unwrap();
    let lease = ours.shared().acquire().unwrap();
    let epoch = lease.epoch();
    let text = lease.into_token().unwrap().to_string();
    let token: LeaseToken = text.parse().unwrap();
    assert_eq!((token.mode(), token.epoch(), token.fence()), (Mode::Shared, epoch, None));
    let manager = site.manager();
    let adopted = manager.adopt(token).unwrap();
    assert_eq!((adopted.mode(), adopted.epoch(), adopted.fence()), (Mode::Shared, epoch, None));
    adopted.renew().unwrap();
    beside.release().unwrap();
    assert_eq!(code(ours.try_acquire()), Code::LockUnavailable, "the adopted lease holds it");
    assert!(adopted.release().unwrap());
    assert!(ours.try_acquire().unwrap().release().unwrap());
}

pub fn locks_of_several_modes_are_acquired_together(site: &Site) {
    let (manager, other) = (site.manager(), site.manager());
    let [a, b, c] = ["a", "b", "c"].map(|id| lock_of(&manager, id));
    let reader = lock_of(&other, "a").shared().acquire().unwrap();
    let set = manager.acquire_all(&[&c, &a.shared(), &b.update()], &AcquireOptions::new()).unwrap();
    let modes: Vec<_> = set.leases().iter().map(Lease::mode).collect();
    assert_eq!(modes, [Mode::Exclusive, Mode::Shared, Mode::Update]);
    assert_eq!(set.leases()[1].epoch(), reader.epoch());
    assert!(set.fences()[0].is_some() && set.fences()[1].is_none());
    assert!(set.release().unwrap());
    let twice = manager.acquire_all(&[&a, &a.shared()], &AcquireOptions::new());
    assert_eq!(code(twice), Code::InvalidArgument, "one lock in two modes");
}

pub fn pendings_in_all_modes_wait_in_one_queue(site: &Site) {
    let (manager, other) = (site.manager(), site.manager());
    let lock = lock_of(&manager, "a");
    let writing = lock_of(&other, "a").acquire().unwrap();
    let pendings: Vec<_> = [lock.shared(), lock.update(), lock.shared(), lock.clone()]
        .iter()
        .map(|lock| lock.start(&AcquireOptions::new()).unwrap())
        .collect();
    writing.release().unwrap();
    let mut leases = Vec::new();
    for pending in &pendings[..3] {
        eventually("a reader gets in", || match pending.take().unwrap() {
            Some(lease) => {
                leases.push(lease);
                true
            }
            None => false,
        });
    }
    assert!(leases.iter().all(|lease| lease.check().is_ok()));
    assert!(pendings[3].take().unwrap().is_none(), "the writer waits for them");
    leases.into_iter().for_each(|lease| _ = lease.release().unwrap());
    let mut last = None;
    eventually("the writer gets the lock", || {
        last = pendings[3].take().unwrap();
        last.is_some()
    });
    assert_eq!(last.unwrap().mode(), Mode::Exclusive);
}

pub fn closing_releases_readers_and_ends_an_upgrade_that_waits(site: &Site) {
    let (manager, lock) = (site.manager(), lock(site));
    let reader = lock.shared().acquire().unwrap();
    let ours = lock_of(&manager, "a");
    let beside = ours.shared().acquire().unwrap();
    let updater = ours.update().acquire().unwrap();
    let upgrading = spawn("updater", move || updater.upgrade(LONGEST).map(drop));
    eventually("the updater waits", || is_reserved(&self::lock(site).shared().try_acquire()));
    manager.close().unwrap();
    assert_eq!(code(upgrading.join().unwrap()), Code::Closed);
    assert!(!beside.release().unwrap_or(false));
    reader.release().unwrap();
    // Nothing of the closed manager holds the lock.
    assert!(lock.acquire().unwrap().release().unwrap());
}

pub fn a_minimum_hold_of_a_reader_keeps_writers_out_until_it_is_over(site: &Site) {
    let [ours, theirs] = [lock(site), lock(site)];
    let min_hold = Duration::from_millis(300);
    let began = Moment::now();
    let lease = ours.shared().acquire_with(&AcquireOptions::new().min_hold(min_hold)).unwrap();
    assert!(lease.release().unwrap());
    let writing = theirs.acquire().unwrap();
    assert!(Moment::now().since(began) >= min_hold);
    writing.release().unwrap();
}

pub fn options_that_no_reader_can_have_are_refused(site: &Site) {
    let lock = lock(site);
    for mode in [Mode::Shared, Mode::Update] {
        let how = AcquireOptions::new().mode(mode).dies_with_process();
        assert_eq!(code(lock.acquire_with(&how)), Code::InvalidArgument);
    }
    let outer = lock.shared().acquire().unwrap();
    let nested = AcquireOptions::new().nested_in(&outer);
    assert_eq!(code(lock.acquire_with(&nested)), Code::InvalidArgument);
    assert_eq!(code(lock_of(&site.manager(), "b").shared().acquire_with(&nested)), Code::InvalidArgument);
    outer.release().unwrap();
    // The options of a call come before the mode of the handle.
    let lease = lock.shared().acquire_with(&AcquireOptions::new().mode(Mode::Exclusive)).unwrap();
    assert_eq!(lease.mode(), Mode::Exclusive);
}

pub fn of_several_readers_one_is_broken_and_told_why(site: &Site) {
    let [ours, theirs, breaker] = [lock(site), lock(site), lock(site)];
    assert!(breaker.inspected_holds().unwrap().is_empty());
    // The lease that ends last is the first.
    let long = theirs.shared().acquire_with_ttl(2 * HELD).unwrap();
    let short = ours.update().acquire().unwrap();
    let seen = breaker.inspected_holds().unwrap();
    let modes: Vec<_> = seen.iter().map(|it| it.inspection().holder.as_ref().map(|it| it.mode)).collect();
    assert_eq!(modes, [Some(Mode::Shared), Some(Mode::Update)]);
    let broken = seen[1].break_holder("it hangs").unwrap().unwrap();
    assert_eq!((broken.fence, broken.is_recorded), (None, site.history), "another one holds the lock");
    assert!(seen[1].break_holder("again").unwrap().is_none());
    let error = short.renew().unwrap_err();
    assert_eq!(error.code(), Code::LeaseLost);
    assert!(!site.history || error.to_string().contains("because \"it hangs\""), "{error}");
    long.renew().unwrap();
    // The last one: the lock is free, and its number higher.
    let broken = breaker.inspected_holds().unwrap().remove(0).break_holder("it hangs too").unwrap().unwrap();
    assert!(long.epoch().unwrap().is_before(broken.fence.unwrap()));
    assert_eq!(code(long.renew()), Code::LeaseLost);
    if site.history {
        let entries = breaker.history(None, 100).unwrap();
        let broken = entries.iter().filter(|entry| entry.kind == HistoryKind::Broken);
        let modes: Vec<_> = broken.map(|entry| (entry.text.as_str(), entry.mode)).collect();
        assert!(modes.contains(&("it hangs", Mode::Update)), "{modes:?}");
        assert!(modes.contains(&("it hangs too", Mode::Shared)), "{modes:?}");
    }
    // An exclusive holder is one.
    let _writing = ours.acquire().unwrap();
    assert_eq!(breaker.inspected_holds().unwrap().len(), 1);
}

pub fn a_history_has_the_modes_of_holds_and_one_entry_for_each_change(site: &Site) {
    if !site.history {
        return;
    }
    let manager = site.builder().store(site.store()).history(HELD).open().unwrap();
    let lock = lock_of(&manager, "a");
    let writing = lock.update().acquire().unwrap().upgrade(LONGEST).unwrap();
    let fence = writing.fence();
    assert!(writing.downgrade(Mode::Shared).unwrap().release().unwrap());
    // Closing writes what is left.
    manager.close().unwrap();
    let mut entries = self::lock(site).history(None, 100).unwrap();
    // Entries of one millisecond are in no order.
    entries.sort_by_key(|entry| {
        (
            entry.at_ms,
            entry.kind != HistoryKind::Acquired,
            entry.mode_before != Some(Mode::Update),
            entry.kind == HistoryKind::Released,
        )
    });
    let found: Vec<_> = entries.iter().map(|it| (it.kind, it.mode_before, it.mode, it.fence)).collect();
    let expected = [
        (HistoryKind::Acquired, None, Mode::Update, None),
        (HistoryKind::ModeChanged, Some(Mode::Update), Mode::Exclusive, fence),
        (HistoryKind::ModeChanged, Some(Mode::Exclusive), Mode::Shared, None),
        (HistoryKind::Released, None, Mode::Shared, None),
    ];
    assert_eq!(found, expected);
    assert!(entries.iter().all(|entry| entry.took.is_some()), "{entries:?}");
}

//! Notices between managers of one process, and what hostile datagrams do.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlm::store::{
    Acquired, Attempt, GrantEndpoint, Identity, LatchListener, LatchStore, LockStore, MemoryStore,
    NoticeEndpoint,
};
use dlm::{AcquireOptions, Code, Deadline, LatchKind, Lease, Level, Lock, LockManager};
use dlm_testkit::{Call, LONG, Spy, skipped, until};

/// Longer than every test.
const RETRY: Duration = Duration::from_secs(3600);

/// A manager that hears notices, its store, and a lock.
fn manager(store: &Arc<MemoryStore>, notices: &str) -> (LockManager, Arc<Spy>, Lock) {
    let (manager, spy, lock, _) = counting_manager(store, notices);
    (manager, spy, lock)
}

/// The same, and the number of requests that the store has answered.
fn counting_manager(
    store: &Arc<MemoryStore>,
    notices: &str,
) -> (LockManager, Arc<Spy>, Lock, Arc<AtomicUsize>) {
    let answered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&answered);
    let spy = Spy::with_hook(Arc::clone(store) as _, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let builder = LockManager::builder().store(Arc::clone(&spy) as _).client("tests").notices(notices);
    let manager = builder.retry(RETRY).ttl(RETRY).wait(5 * LONG).open().unwrap();
    let lock = manager.lock("told", Level::Xdc).unwrap();
    (manager, spy, lock, answered)
}

/// Waits until so many other processes have registered with the holder of the lock.
fn until_registered(lock: &Lock, processes: usize) {
    // The holder has 200 ms to answer.
    until("they have registered with the holder", || {
        lock.waiting().unwrap().is_some_and(|line| line.processes.len() == processes)
    });
}

/// Returns where the holder of the lock hears notices.
fn address(lock: &Lock) -> SocketAddr {
    let identity = lock.inspect().unwrap().holder.unwrap().identity.unwrap();
    match identity.notices.expect("it hears notices").endpoint {
        NoticeEndpoint::Udp(address) => address,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_waiter_is_told_and_asks_the_store_once_more_in_whatever_form_it_waits() {
    let store = Arc::new(MemoryStore::new());
    let (_first, _, lock) = manager(&store, "udp://127.0.0.1");
    for without_a_thread in [false, true] {
        let (_second, spy, theirs) = manager(&store, "udp://127.0.0.1");
        let held = lock.acquire().unwrap();
        std::thread::scope(|scope| {
            let pending = without_a_thread.then(|| theirs.start(&Default::default()).unwrap());
            let blocked = (!without_a_thread).then(|| scope.spawn(|| theirs.acquire().unwrap()));
            until("it is refused", || spy.calls() > 0);
            // It may not have registered yet. If it registers after the release, it is told then.
            assert!(held.release().unwrap());
            let lease: Lease = match (pending, blocked) {
                (Some(pending), _) => {
                    let mut lease = None;
                    until("it is granted", || {
                        lease = pending.take().unwrap();
                        lease.is_some()
                    });
                    lease.unwrap()
                }
                (None, Some(thread)) => thread.join().unwrap(),
                (None, None) => unreachable!(),
            };
            let calls = (spy.calls_of(Call::Acquire), spy.calls_of(Call::Holder));
            assert!(calls.0 + calls.1 <= 3, "{calls:?}");
            assert!(lease.release().unwrap());
        });
    }
}

#[test]
fn who_does_not_wait_asks_the_holder_once_and_is_not_told() {
    let store = Arc::new(MemoryStore::new());
    let (first, _, lock) = manager(&store, "udp://127.0.0.1");
    let (second, _, theirs) = manager(&store, "udp://127.0.0.1");
    let held = lock.acquire().unwrap();
    for _ in 0..3 {
        assert_eq!(theirs.acquire_within(LONG, Duration::ZERO).unwrap_err().code(), Code::LockUnavailable);
    }
    assert!(held.release().unwrap());
    assert_eq!((first.stats().notices_sent, second.stats().notices_sent), (0, 3));
}

#[test]
fn a_waiter_is_told_of_a_lease_that_is_dropped() {
    let store = Arc::new(MemoryStore::new());
    let (_first, _, lock) = manager(&store, "udp://127.0.0.1");
    let (_second, spy, theirs) = manager(&store, "udp://127.0.0.1");
    let held = lock.acquire().unwrap();
    let pending = theirs.start(&Default::default()).unwrap();
    until("it is refused", || spy.calls() > 0);
    until_registered(&lock, 1);
    drop(held);
    until("it is granted", || pending.take().unwrap().is_some());
}

#[test]
fn without_notices_nobody_is_told() {
    let store = Arc::new(MemoryStore::new());
    for (ours, theirs) in [("off", "udp://127.0.0.1"), ("udp://127.0.0.1", "off"), ("local", "local")] {
        let (_first, _, lock) = manager(&store, ours);
        let (second, _, other, answered) = counting_manager(&store, theirs);
        let held = lock.acquire().unwrap();
        let pending = other.start(&Default::default()).unwrap();
        // With notices it looks once more, because it does not know whether the holder hears them.
        let looks = if theirs.starts_with("udp") { 2 } else { 1 };
        until("it is refused", || answered.load(Ordering::SeqCst) == looks);
        std::thread::sleep(Duration::from_millis(300));
        assert!(held.release().unwrap());
        std::thread::sleep(Duration::from_millis(200));
        assert!(pending.take().unwrap().is_none(), "{ours}, {theirs}");
        drop(pending);
        second.close().unwrap();
    }
}

#[test]
fn a_token_goes_to_another_process_without_a_notice_to_the_waiters() {
    let store = Arc::new(MemoryStore::new());
    let (_first, _, lock) = manager(&store, "udp://127.0.0.1");
    let (_second, spy, theirs) = manager(&store, "udp://127.0.0.1");
    let lease = lock.acquire().unwrap();
    let token = lease.into_token().unwrap();
    let pending = theirs.start(&Default::default()).unwrap();
    until("it is refused", || spy.calls() > 0);
    std::thread::sleep(Duration::from_millis(300));
    // It looks a few times, because the lock is not where the record says.
    assert!(spy.calls() < 20, "{}", spy.calls());
    assert!(pending.take().unwrap().is_none());
    drop(token);
}

#[test]
fn datagrams_that_match_nothing_cost_no_request_and_grant_nothing() {
    let store = Arc::new(MemoryStore::new());
    let (_first, ours, lock) = manager(&store, "udp://127.0.0.1");
    let (second, theirs, other) = manager(&store, "udp://127.0.0.1");
    let free = second.lock("elsewhere", Level::Xdc).unwrap();
    let elsewhere = free.acquire().unwrap();
    let held = lock.acquire().unwrap();
    let (at_holder, at_waiter) = (address(&lock), address(&free));
    let holders = [&lock, &free].map(|lock| lock.inspect().unwrap().holder.unwrap());
    let pending = other.start(&Default::default()).unwrap();
    until("it is refused", || theirs.calls_of(Call::Acquire) > 1);
    until_registered(&lock, 1);
    let before = (ours.calls(), theirs.calls());
    let attacker = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    for number in 0..100_000_u32 {
        let mut datagram = b"dlmN\x01".to_vec();
        datagram.push(random.u8(0..10));
        datagram.extend((0..random.usize(0..100)).map(|_| random.u8(..)));
        let _ = attacker.send_to(&datagram, if number % 2 == 0 { at_holder } else { at_waiter });
    }
    // A process answers a question only after it has read all earlier datagrams. This makes no request to the store.
    until("both have read all", || second.waiting(&holders).unwrap().iter().all(Option::is_some));
    assert_eq!((ours.calls(), theirs.calls()), before);
    assert!(pending.take().unwrap().is_none());
    assert!(held.check().is_ok());
    // Both still hear notices.
    assert!(held.release().unwrap());
    until("it is granted", || pending.take().unwrap().is_some());
    assert!(elsewhere.release().unwrap());
}

/// Returns what the datagrams of this kind have after it, and passes over others.
fn receive(socket: &UdpSocket, kind: u8) -> (SocketAddr, Vec<u8>) {
    let mut bytes = [0; 2000];
    loop {
        let (len, from) = socket.recv_from(&mut bytes).unwrap();
        if bytes[..len].starts_with(&[b'd', b'l', b'm', b'N', 1, kind]) {
            return (from, bytes[6..len].to_vec());
        }
    }
}

fn send(socket: &UdpSocket, to: SocketAddr, kind: u8, fields: &[u8]) {
    let datagram = [b"dlmN\x01".as_slice(), &[kind], fields].concat();
    socket.send_to(&datagram, to).unwrap();
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

/// The fields of a register, as every version sends them. `entries` are other processes, with the number 1 each.
fn register(lock: &Lock, nonce: u64, entries: &[SocketAddr]) -> Vec<u8> {
    let identity = lock.inspect().unwrap().holder.unwrap().identity.unwrap();
    let mut fields = identity.notices.unwrap().grant.to_be_bytes().to_vec();
    fields.extend(nonce.to_be_bytes());
    fields.extend([0, 0, 0, 9, entries.len() as u8]);
    for entry in entries {
        fields.extend([1, 127, 0, 0, 1]);
        fields.extend(entry.port().to_be_bytes());
        fields.extend(1_u64.to_be_bytes());
        fields.extend([0, 0, 0, 9]);
    }
    fields.resize(fields.len().max(35), 0);
    fields
}

/// A reader of the lock's record sends registrations.
#[test]
fn an_address_that_does_not_answer_gets_no_notice_of_a_release() {
    let store = Arc::new(MemoryStore::new());
    let (_first, _, lock) = manager(&store, "udp://127.0.0.1");
    let held = lock.acquire().unwrap();
    let (attacker, foreign) = (socket(), [socket(), socket(), socket()]);
    let addresses: Vec<_> = foreign.iter().map(|it| it.local_addr().unwrap()).collect();
    send(&attacker, address(&lock), 1, &register(&lock, 5, &addresses));
    // A register that quotes nothing is answered, after all datagrams before it were heard.
    send(&attacker, address(&lock), 1, &[0; 21]);
    receive(&attacker, 4);
    assert_eq!(lock.waiting().unwrap().map(|line| line.processes), Some(vec![]));
    assert!(held.release().unwrap());
    for socket in foreign {
        socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 2000];
        let lengths: Vec<_> = std::iter::from_fn(|| socket.recv(&mut bytes).ok()).collect();
        assert_eq!(lengths, [27], "one challenge, and no notice");
    }
}

/// A process of the version before, which knows neither challenges nor that a waiter may leave.
#[test]
fn a_waiter_of_an_earlier_version_is_registered_and_told() {
    let store = Arc::new(MemoryStore::new());
    let (_first, _, lock) = manager(&store, "udp://127.0.0.1");
    let held = lock.acquire().unwrap();
    let waiter = socket();
    send(&waiter, address(&lock), 1, &register(&lock, 5, &[]));
    // It answers each register that quotes nothing of its own.
    let (from, challenge) = receive(&waiter, 1);
    assert_eq!((from, &challenge[..8]), (address(&lock), &[0; 8][..]));
    send(&waiter, from, 4, &challenge[8..16]);
    assert_eq!(receive(&waiter, 2).1, 5_u64.to_be_bytes());
    until_registered(&lock, 1);
    assert!(held.release().unwrap());
    assert_eq!(receive(&waiter, 5).1[..8], 5_u64.to_be_bytes());
}

#[test]
fn whoever_has_given_up_is_in_no_line_and_the_others_are_told() {
    #[cfg(feature = "embedded")]
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new());
    let over_udp = || manager(&store, "udp://127.0.0.1").2;
    #[cfg(feature = "embedded")]
    let local = || {
        let uri = format!("embedded:{}?client=tests&timeout=60s&ttl=1h&retry=1h", directory.path().display());
        LockManager::open(&uri).unwrap().lock("told", Level::Xdc).unwrap()
    };
    let cases: &[&dyn Fn() -> Lock] = &[
        &over_udp,
        #[cfg(feature = "embedded")]
        &local,
    ];
    for lock in cases {
        let (holder, gone, stays) = (lock(), [lock(), lock()], lock());
        let held = holder.acquire().unwrap();
        let waits: Vec<_> = gone.iter().map(|it| it.start(&Default::default()).unwrap()).collect();
        until_registered(&holder, 2);
        let pending = stays.start(&Default::default()).unwrap();
        until_registered(&holder, 3);
        drop(waits);
        until_registered(&holder, 1);
        assert!(held.release().unwrap());
        until("the one that waits is told", || pending.take().unwrap().is_some());
    }
}

/// The holder is a socket of this test. It says anything that it likes.
#[test]
fn a_waiter_polls_on_although_its_holder_tells_it_to_wait_for_weeks() {
    const WEEKS_MS: u32 = u32::MAX;
    let (store, by) = (Arc::new(MemoryStore::new()), Deadline::after(LONG));
    let holder = socket();
    let endpoint = NoticeEndpoint::Udp(holder.local_addr().unwrap());
    let notices = Some(GrantEndpoint { endpoint, grant: 5 });
    let identity = Identity { host: "h".into(), pid: 1, start_ms: 1, purpose: String::new(), notices };
    let builder = LockManager::builder().store(Arc::clone(&store) as _).client("tests");
    let builder = builder.notices("udp://127.0.0.1").retry(Duration::from_millis(100)).wait(LONG);
    let lock = builder.open().unwrap().lock("told", Level::Xdc).unwrap();
    let attempt = Attempt { name: lock.name(), ttl: RETRY, identity: &identity, by };
    let Ok(Acquired::Granted(grant)) = store.acquire(attempt, &mut Vec::new()) else { panic!("it is free") };
    let pending = lock.start(&Default::default()).unwrap();

    let (waiter, registered) = receive(&holder, 1);
    let nonce = &registered[8..16];
    send(&holder, waiter, 2, nonce);
    send(&holder, waiter, 8, &[nonce, &WEEKS_MS.to_be_bytes()].concat());
    // A register that quotes nothing is answered, after all datagrams before it were heard.
    send(&holder, waiter, 1, &[0; 21]);
    receive(&holder, 4);
    store.release(lock.name(), &grant.owner_record, by).unwrap();
    until("it is granted", || pending.take().unwrap().is_some());
}

/// Returns the note of the only process that waits for the latch.
fn note_at(store: &MemoryStore, name: &dlm::LatchName) -> Option<LatchListener> {
    store.listeners(name, Deadline::after(LONG)).unwrap().pop()
}

/// The datagram that says that a latch was opened.
fn opened(nonce: u64) -> Vec<u8> {
    [b"dlmN\x01\x09".as_slice(), &nonce.to_be_bytes()].concat()
}

#[test]
fn a_forged_word_that_a_latch_is_open_costs_one_read_if_it_quotes_the_note_and_none_otherwise() {
    let store = Arc::new(MemoryStore::new());
    let spy = Spy::on(Arc::clone(&store) as _);
    let builder = LockManager::builder().store(Arc::clone(&spy) as _).client("tests").farm("dc1");
    let manager = builder.notices("udp://127.0.0.1").poll(RETRY).open().unwrap();
    let latch = manager.latch("forged", Level::Dc, LatchKind::CountDown).unwrap();
    latch.create(2).unwrap();
    let watch = latch.watch().unwrap();
    // From now on it reads after 3 s or later: with a poll interval of an hour each pause is twice as long. On a slow machine
    // a few of these reads fall into the test.
    const FEW: usize = 10;
    until("it reads seldom", || spy.reads().len() >= 7);
    let listener = note_at(&store, latch.name()).expect("its note");
    let NoticeEndpoint::Udp(address) = listener.endpoint else { panic!("{:?}", listener.endpoint) };
    let attacker = UdpSocket::bind("127.0.0.1:0").unwrap();
    let reads = spy.reads().len();
    for nonce in 0..100 {
        attacker.send_to(&opened(nonce), address).unwrap();
    }
    until("they were heard", || manager.stats().notices_ignored >= 100);
    assert_eq!(manager.stats().early_asks, 0);
    assert!(spy.reads().len() < reads + FEW, "{} reads", spy.reads().len() - reads);
    let reads = spy.reads().len();
    for _ in 0..3 {
        attacker.send_to(&opened(listener.nonce), address).unwrap();
    }
    until("they were heard", || manager.stats().notices_ignored >= 102);
    until("the first one made it read", || spy.reads().len() > reads);
    assert_eq!(manager.stats().early_asks, 1);
    assert!(!watch.is_open().unwrap());
    // The next note has other random bits.
    until("it waits on", || note_at(&store, latch.name()).is_some_and(|note| note.nonce != listener.nonce));
}

#[test]
fn who_finds_a_latch_open_at_once_leaves_no_note() {
    let store = Arc::new(MemoryStore::new());
    let builder = LockManager::builder().store(Arc::clone(&store) as _).client("tests").farm("dc1");
    let manager = builder.notices("udp://127.0.0.1").open().unwrap();
    let latch = manager.latch("open", Level::Dc, LatchKind::CountUpDown).unwrap();
    latch.create(0).unwrap();
    latch.await_open().unwrap();
    latch.count_up().unwrap();
    assert!(!latch.await_open_for(Duration::ZERO).unwrap());
    assert_eq!(note_at(&store, latch.name()), None);
}

#[test]
fn an_address_that_cannot_be_used_is_refused_before_anything_else() {
    let open =
        |notices: &str| LockManager::builder().store_uri("memory:").client("a").notices(notices).open();
    assert_eq!(open("udp://0.0.0.0:1").unwrap_err().code(), Code::InvalidArgument);
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = open(&format!("udp://{address}")).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[cfg(feature = "embedded")]
#[test]
fn nothing_is_left_behind_by_close_or_by_the_last_handle() {
    let directory = tempfile::tempdir().unwrap();
    let sockets = || {
        let generations = std::fs::read_dir(directory.path()).unwrap().flatten();
        let generation = generations.map(|it| it.path()).find(|it| it.join("locks").exists()).unwrap();
        let names = std::fs::read_dir(generation).unwrap().flatten().map(|it| it.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("notices-")).count()
    };
    let uri = format!("embedded:{}?client=tests&timeout=60s", directory.path().display());
    let open = || LockManager::open(&uri).unwrap();
    let manager = open();
    assert_eq!(sockets(), 1);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    assert!(lock.acquire().unwrap().release().unwrap());
    assert_eq!(sockets(), 1);
    manager.close().unwrap();
    assert_eq!(sockets(), 0);
    let lease = open().lock("a", Level::Xdc).unwrap().acquire().unwrap();
    assert_eq!(sockets(), 1);
    drop(lease);
    assert_eq!(sockets(), 0);
}

#[test]
fn whoever_asks_the_holder_learns_who_waits() {
    let store = Arc::new(MemoryStore::new());
    let (_first, _, lock) = manager(&store, "udp://127.0.0.1");
    let (operator, _, seen) = manager(&store, "off");
    assert_eq!(seen.waiting().unwrap(), None, "a free lock");
    let held = lock.acquire().unwrap();
    // The holder has 200 ms to answer, which may be too short on a slow machine.
    let line = || {
        let mut line = None;
        until("the holder answers", || {
            line = seen.waiting().unwrap();
            line.is_some()
        });
        line.unwrap()
    };
    let first = line();
    assert_eq!((first.threads, &first.processes[..], first.longest()), (0, &[][..], None));

    let ours: Vec<_> = (0..3).map(|_| lock.start(&Default::default()).unwrap()).collect();
    let others: Vec<_> = (0..2).map(|_| manager(&store, "udp://127.0.0.1")).collect();
    let theirs: Vec<_> = others.iter().map(|(_, _, it)| it.start(&Default::default()).unwrap()).collect();
    until("all are known", || line().threads == 3 && line().processes.len() == 2);
    // Waits are told in whole milliseconds, so the first may be zero.
    until("waits grow", || {
        line().threads_waited > Duration::ZERO && line().processes[1].waited > Duration::ZERO
    });
    let line = line();
    assert!(line.processes[0].waited >= line.processes[1].waited, "in order of arrival");
    assert_eq!(line.longest(), Some(line.threads_waited.max(line.processes[0].waited)));

    // Many locks with one call, and none of an operator that has closed.
    let holder = lock.inspect().unwrap().holder.unwrap();
    until("the holder answers for many", || {
        let answers = operator.waiting(&vec![holder.clone(); 200]).unwrap();
        assert!(answers.len() == 200 && answers.iter().flatten().all(|line| line.threads == 3));
        answers.iter().flatten().count() > 150
    });
    drop((ours, theirs));
    assert!(held.release().unwrap());
    assert_eq!(operator.waiting(&[holder]).unwrap(), [None], "an old record");
    operator.close().unwrap();
    assert_eq!(seen.waiting().unwrap_err().code(), Code::Closed);
}

#[test]
fn a_holder_without_notices_is_not_asked_who_waits() {
    let store = Arc::new(MemoryStore::new());
    let (_first, _, lock) = manager(&store, "off");
    let (_second, _, seen) = manager(&store, "udp://127.0.0.1");
    let _held = lock.acquire().unwrap();
    assert_eq!(seen.waiting().unwrap(), None);
}

/// A local socket keeps ten datagrams only, so a burst of questions or answers would be lost.
#[cfg(feature = "embedded")]
#[test]
fn a_holder_of_many_locks_in_the_directory_of_a_store_answers_for_each() {
    let directory = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}?client=tests&timeout=60s&ttl=1h", directory.path().display());
    let (holder, operator) = (LockManager::open(&uri).unwrap(), LockManager::open(&uri).unwrap());
    let lock = holder.lock("held", Level::Xdc).unwrap();
    let _held = lock.acquire().unwrap();
    let seen = lock.inspect().unwrap().holder.unwrap();
    // So many are asked at once, and have 200 ms to answer.
    const AT_ONCE: usize = 64;
    for _ in 0..3 {
        until("it answers for each", || {
            operator.waiting(&vec![seen.clone(); AT_ONCE]).unwrap().iter().all(Option::is_some)
        });
    }
}

/// Nothing is sent to the store when the holder releases the lock. The waiters are told when the minimum is over.
#[test]
fn a_waiter_is_told_at_the_end_of_a_minimum_hold() {
    let store = Arc::new(MemoryStore::new());
    let (_first, _, lock) = manager(&store, "udp://127.0.0.1");
    let (_second, spy, theirs) = manager(&store, "udp://127.0.0.1");
    let held = lock.acquire_with(&AcquireOptions::new().min_hold(Duration::from_secs(1))).unwrap();
    let pending = theirs.start(&Default::default()).unwrap();
    until("it is refused", || spy.calls() > 0);
    until_registered(&lock, 1);
    assert!(held.release().unwrap());
    until("it is granted", || pending.take().unwrap().is_some());
}

/// A program that tries once a minute must find a lock free now and then that processes with notices pass on to each other.
#[cfg(feature = "embedded")]
#[test]
fn who_ends_without_the_lock_may_come_back() {
    type Ends = fn(&Lock) -> Option<Code>;
    let ends: [Ends; 3] = [
        |lock| lock.try_acquire().err().map(|error| error.code()),
        |lock| lock.acquire_within(RETRY, Duration::from_millis(1)).err().map(|error| error.code()),
        |lock| {
            let pending = lock.start(&AcquireOptions::new().wait(Duration::ZERO)).unwrap();
            let mut code = None;
            until("it has ended", || {
                code = pending.take().err().map(|error| error.code());
                code.is_some()
            });
            code
        },
    ];
    for ends in ends {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn LockStore> = Arc::new(dlm::store::EmbeddedStore::open(directory.path()).unwrap());
        if !store.shared_directory().unwrap().join("words").exists() {
            return skipped("ext4", "the folder for temporary files is on another file system");
        }
        let managers = [(); 2].map(|()| {
            LockManager::builder().store(Arc::clone(&store)).client("tests").retry(RETRY).open().unwrap()
        });
        let [ours, theirs] = managers.each_ref().map(|manager| manager.lock("told", Level::Xdc).unwrap());
        let _held = ours.acquire().unwrap();
        assert!(!store.may_have_pollers());
        assert_eq!(ends(&theirs), Some(Code::LockUnavailable));
        assert!(store.may_have_pollers());
    }
}

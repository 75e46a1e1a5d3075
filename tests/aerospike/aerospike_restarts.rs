//! Servers that are killed and started again. Data in memory is lost. Data on a disk may come back.
#![cfg(feature = "aerospike")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dlm::store::LockStore;
use dlm::{Code, Diagnostic, Error, Fence, LatchKind, Lease, Level, Lock, LockManager, Moment, Severity};
use dlm_fixtures::aerospike::{
    DIRECTORY, IN_MEMORY, Server, info, own_cluster_or_skip, own_server_or_skip, wait_joined,
};
use dlm_testkit::{LONG, Spy, until};

/// A TTL that does not end during a test. Tests of expiry use shorter ones.
const TTL: Duration = Duration::from_secs(1800);

/// Time-out of calls to a server that is down. They last until then.
const SHORT: Duration = Duration::from_secs(5);

fn lock(server: &Server, client: &str) -> Lock {
    lock_with(server, client, LONG)
}

fn lock_with(server: &Server, client: &str, timeout: Duration) -> Lock {
    let builder = LockManager::builder().store_uri(&server.place().uri()).client(client).ttl(TTL);
    let manager = builder.wait(2 * LONG).retry(Duration::from_millis(20)).timeout(timeout).open();
    manager.unwrap().lock("a", Level::Xdc).unwrap()
}

/// Makes a call with a short time-out to a server that is up, again if the time was over too soon.
#[track_caller]
fn answered<T>(mut call: impl FnMut() -> dlm::Result<T>) -> dlm::Result<T> {
    let mut answer = None;
    until("the server answers in time", || {
        let told = call();
        let is_answer = !told.as_ref().is_err_and(|error| error.is_retryable());
        answer = Some(told);
        is_answer
    });
    answer.expect("it was called")
}

/// Checks the error of a request to a server that is down, or up but not ready.
#[track_caller]
fn must_be_retryable(error: &Error) {
    assert!(error.is_retryable(), "{}", error.chain());
}

#[test]
fn a_lock_in_memory_is_gone_with_its_server_and_its_holder_is_told() {
    let Some(mut server) = own_server_or_skip(IN_MEMORY) else { return };
    let [ours, theirs] = [(); 2].map(|()| lock_with(&server, "gone", SHORT));
    let leases = [answered(|| ours.try_acquire()).unwrap()];
    server.kill();
    must_be_retryable(&theirs.try_acquire().unwrap_err());
    must_be_retryable(&leases[0].renew().unwrap_err());
    server.restart();
    // The namespace has forgotten the lock, so another process gets it. The fence is still higher.
    let next = answered(|| theirs.acquire()).unwrap();
    assert!(next.fence() > leases[0].fence(), "{:?} after {:?}", next.fence(), leases[0].fence());
    assert_eq!(answered(|| leases[0].renew()).unwrap_err().code(), Code::LeaseLost);
    assert_eq!(leases[0].check().unwrap_err().code(), Code::LeaseLost);
    answered(|| next.renew()).expect("the first holder replaced the next one's record");
    assert!(answered(|| next.release()).unwrap());
}

/// A server that already answers info requests refuses writes with code 11 for half a second or more.
#[test]
fn a_cluster_that_is_still_forming_is_waited_for_by_initialize_and_retryable_elsewhere() {
    let Some(mut server) = own_server_or_skip(IN_MEMORY) else { return };
    for _ in 0..3 {
        server.restart_unready();
        let builder = LockManager::builder().store_uri(&server.place().uri()).client("forming");
        let manager = builder.timeout(LONG).open().unwrap();
        let lock = manager.lock("a", Level::Xdc).unwrap();
        if let Err(error) = lock.try_acquire() {
            must_be_retryable(&error);
        }
        manager.initialize().unwrap();
        assert!(lock.acquire().unwrap().release().unwrap());
    }
}

#[test]
fn servers_that_restart_under_contention_never_give_out_a_fence_twice() {
    const THREADS: usize = 4;
    let Some(mut server) = own_server_or_skip(IN_MEMORY) else { return };
    let stop = AtomicBool::new(false);
    let grants: Mutex<Vec<(Moment, Moment, Fence)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (lock, stop, grants) = (lock(&server, "contention"), &stop, &grants);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let asked = Moment::now();
                    match lock.acquire() {
                        Ok(lease) => {
                            grants.lock().unwrap().push((asked, Moment::now(), lease.fence().unwrap()));
                            match lease.release() {
                                Ok(_) => {}
                                Err(error) if error.code() == Code::LeaseLost => {}
                                Err(error) => must_be_retryable(&error),
                            }
                        }
                        Err(error) => must_be_retryable(&error),
                    }
                }
            });
        }
        for _ in 0..3 {
            let before = grants.lock().unwrap().len();
            until("locks are granted", || grants.lock().unwrap().len() > before + 50);
            server.kill();
            server.restart();
        }
        let before = grants.lock().unwrap().len();
        until("locks are granted again", || grants.lock().unwrap().len() > before + 50);
        stop.store(true, Ordering::SeqCst);
    });
    let mut grants = grants.into_inner().unwrap();
    grants.sort_by_key(|(_, granted, _)| *granted);
    for (at, (_, granted, fence)) in grants.iter().enumerate() {
        for (asked, _, later) in &grants[at + 1..] {
            assert_ne!(fence, later, "granted twice");
            assert!(asked <= granted || later > fence, "{later} was requested after {fence} was granted");
        }
    }
    // Only acquires in doubt leave a record, and the library releases it.
    assert!(lock(&server, "contention").acquire().unwrap().release().unwrap());
}

/// Returns the settings of a namespace on a disk, with this number of copies of each record.
fn on_disk(copies: usize) -> String {
    format!(
        "replication-factor {copies}\nnsup-period 1\nstorage-engine device {{\n\
         file {DIRECTORY}/records\nfilesize 512M\n}}\n"
    )
}

/// Returns how often the server has written records to its file.
fn flushes(server: &Server) -> u64 {
    let told = info(server.place().address, "namespace/test").unwrap_or_default();
    let counts = told.split(';').filter(|it| it.starts_with("storage-engine.file[") && it.contains("]."));
    let counts = counts.filter_map(|it| it.split_once("].")?.1.split_once('='));
    counts
        .filter(|(name, _)| ["writes", "partial_writes"].contains(name))
        .map(|(_, count)| count.parse::<u64>().unwrap())
        .sum()
}

/// A deleted record may come back from the disk until it expires. A fence must not fall.
#[test]
fn a_lock_on_a_disk_outlives_its_server_and_a_released_one_is_free_after_its_ttl_at_the_latest() {
    let Some(mut server) = own_server_or_skip(&on_disk(1)) else { return };
    let ours = lock(&server, "disk");
    let held = ours.try_acquire().unwrap();
    let other = lock(&server, "released");
    // On a busy machine a short lease may end before it is released.
    let released = [3, 15, 45].map(Duration::from_secs).into_iter().find_map(|ttl| {
        let asked = Moment::now();
        let released = other.acquire_with_ttl(ttl).and_then(|lease| Ok((lease.release()?, lease.fence())));
        match released {
            Ok((true, fence)) => Some(fence),
            other => {
                assert!(Moment::now().since(asked) > ttl / 2, "{other:?}");
                None
            }
        }
    });
    let first = released.expect("45 s are enough for two calls");
    let more = lock(&server, "more");
    // The first flush may have begun before these records were written. The second one begins after the first.
    for _ in 0..2 {
        let before = flushes(&server);
        assert!(more.try_acquire().unwrap().release().unwrap());
        until("the server writes to its disk", || flushes(&server) > before);
    }
    server.restart();
    assert_eq!(lock(&server, "disk").try_acquire().unwrap_err().code(), Code::LockUnavailable);
    held.renew().unwrap();
    assert!(held.release().unwrap());
    let next = other.acquire().unwrap();
    assert!(next.fence() > first);
    assert!(next.release().unwrap());
}

/// Requests wait in the sockets of a stopped server. It carries them out when it continues.
#[test]
fn an_acquire_that_a_stopped_server_carries_out_late_is_freed() {
    let Some(mut server) = own_server_or_skip(IN_MEMORY) else { return };
    let builder = LockManager::builder().store_uri(&server.place().uri()).client("stopped").ttl(TTL);
    let hasty = builder.timeout(Duration::from_millis(500)).open().unwrap().lock("a", Level::Xdc).unwrap();
    // On a busy machine the first connection may take longer than the time-out.
    until("a lock is granted in time", || {
        hasty.try_acquire().is_ok_and(|lease| lease.release().unwrap_or(false))
    });
    server.pause();
    until("the request is in the socket", || {
        let error = hasty.try_acquire().expect_err("granted by a stopped server");
        // On a busy machine the time may be over before the request is sent. This is a CONNECTION_ERROR.
        must_be_retryable(&error);
        error.code() == Code::InDoubt
    });
    server.go_on();
    // The late record has a TTL of half an hour, so it was released.
    assert!(lock(&server, "stopped").acquire().unwrap().release().unwrap());
}

/// The other node has a copy of each record. Calls are answered when the cluster has noticed the death.
#[test]
fn a_node_that_dies_takes_no_lock_with_it_and_no_call_fails_over_it() {
    const LOCKS: usize = 12;
    let namespace = IN_MEMORY.replace("replication-factor 1", "replication-factor 2");
    let Some([stays, mut dies]) = own_cluster_or_skip(&namespace) else { return };
    let uri = format!("aerospike://{},{}/test/tests", stays.place().address, dies.place().address);
    let [ours, theirs] = [(); 2].map(|()| {
        let builder = LockManager::builder().store_uri(&uri).client("node").ttl(TTL);
        // A write that a node holds back takes half of this time.
        builder.timeout(LONG / 2).open().unwrap()
    });
    let lock = |manager: &LockManager, number: usize| manager.lock(&number.to_string(), Level::Xdc).unwrap();
    let leases: Vec<_> = (0..LOCKS).map(|number| lock(&ours, number).try_acquire().unwrap()).collect();
    dies.kill();
    // All calls at once, before the cluster has noticed. Some go to the dead node, some to the node that waits for
    // it.
    thread::scope(|scope| {
        for (number, lease) in leases.iter().enumerate() {
            let theirs = lock(&theirs, number);
            let work = move || {
                lease.renew().unwrap_or_else(|error| panic!("{number}: {}", error.chain()));
                let refused = theirs.try_acquire().expect_err("the other node had no copy");
                assert_eq!(refused.code(), Code::LockUnavailable, "{}", refused.chain());
            };
            thread::Builder::new().name(format!("dlm-test-{number}")).spawn_scoped(scope, work).unwrap();
        }
    });
    for (number, lease) in leases.iter().enumerate() {
        assert!(lease.release().unwrap());
        let next = lock(&theirs, number).try_acquire().unwrap();
        assert!(next.fence() > lease.fence(), "{:?} after {:?}", next.fence(), lease.fence());
    }
}

/// Diagnoses the store at `uri` as `dlm doctor` does. Returns the diagnostic for `topic`.
fn diagnostic(uri: &str, topic: &str) -> Diagnostic {
    let found = LockManager::open(&format!("{uri}?client=doctor&timeout=60s")).unwrap().diagnose().unwrap();
    found.into_iter().find(|diagnostic| diagnostic.topic == topic).expect(topic)
}

/// Changes a setting while the server runs, as an operator does.
fn set(server: &Server, setting: &str) {
    let change = format!("set-config:context=namespace;namespace=test;{setting}");
    let mut answer = None;
    until("the server answers", || {
        answer = info(server.place().address, &change).ok();
        answer.is_some()
    });
    assert_eq!(answer.as_deref(), Some("ok"), "{setting}");
}

/// In a batch, each record that the dead node should return fails separately.
#[test]
fn waits_for_latches_go_on_while_a_node_dies() {
    const LATCHES: usize = 24;
    let namespace = IN_MEMORY.replace("replication-factor 1", "replication-factor 2");
    let Some([stays, mut dies]) = own_cluster_or_skip(&namespace) else { return };
    let uri = format!("aerospike://{},{}/test/tests", stays.place().address, dies.place().address);
    let manager = |store: Arc<dyn LockStore>| {
        let builder = LockManager::builder().store(store).client("latches").farm("dc1");
        builder.poll(Duration::from_millis(50)).timeout(LONG / 2).open().unwrap()
    };
    let spy = Spy::on(dlm::store::open(&uri).unwrap());
    let (waiting, counting) = (manager(spy.clone()), manager(dlm::store::open(&uri).unwrap()));
    let latches = |manager: &LockManager| -> Vec<_> {
        let latch = |number: usize| manager.latch(&number.to_string(), Level::Dc, LatchKind::CountDown);
        (0..LATCHES).map(|number| latch(number).unwrap()).collect()
    };
    let counted = latches(&counting);
    counted.iter().for_each(|latch| latch.create(1).unwrap());
    thread::scope(|scope| {
        let waits: Vec<_> = latches(&waiting)
            .into_iter()
            .map(|latch| {
                let thread = thread::Builder::new().name("dlm-test-waits".into());
                thread.spawn_scoped(scope, move || latch.await_open_for(5 * LONG)).unwrap()
            })
            .collect();
        until("the latches are read", || spy.reads().iter().sum::<usize>() > LATCHES);
        dies.kill();
        // The time until the cluster notices, and some time after it.
        thread::sleep(Duration::from_secs(5));
        for (latch, wait) in counted.iter().zip(&waits) {
            assert!(!wait.is_finished(), "a wait ended though the latch is closed");
            latch.count_down().unwrap();
        }
        for wait in waits {
            assert!(wait.join().unwrap().unwrap_or_else(|error| panic!("{}", error.chain())));
        }
    });
}

/// The server crashes right after it granted a lock. It writes to its disk up to `flush-max-ms`, a second, later.
/// So it may forget the grant. The next holder then has a higher fence.
#[test]
fn a_grant_that_a_server_had_not_written_when_it_crashed_may_be_forgotten_and_fences_rise_over_it() {
    const ROUNDS: usize = 4;
    let Some(mut server) = own_server_or_skip(&on_disk(1)) else { return };
    let durability = diagnostic(&server.place().uri(), "durability");
    assert_eq!(durability.severity, Severity::Warn, "{durability}");
    for told in ["up to 1000 ms", "commit-to-device true", "replication-factor 2"] {
        assert!(durability.to_string().contains(told), "{durability}");
    }
    let mut forgotten = 0;
    for round in 0..ROUNDS {
        let [ours, theirs] = [(); 2].map(|()| lock(&server, &format!("crash-{round}")));
        theirs.inspect().unwrap();
        let lease = ours.try_acquire().unwrap();
        server.kill();
        server.restart();
        match theirs.try_acquire() {
            Ok(next) => {
                forgotten += 1;
                assert!(next.fence() > lease.fence(), "{:?} after {:?}", next.fence(), lease.fence());
                let late = if round % 2 == 0 { lease.renew() } else { lease.release().map(|_| ()) };
                assert_eq!(late.unwrap_err().code(), Code::LeaseLost);
                next.renew().expect("the first holder replaced the next one's record");
                assert!(next.release().unwrap());
            }
            // The server had written the grant.
            Err(error) => {
                assert_eq!(error.code(), Code::LockUnavailable, "{}", error.chain());
                lease.renew().unwrap();
                assert!(lease.release().unwrap());
            }
        }
    }
    eprintln!("{forgotten} of {ROUNDS} grants were forgotten");
}

/// The remedy in the Community edition.
#[test]
fn a_grant_with_two_copies_outlives_the_crash_of_a_node_right_after_it() {
    const LOCKS: usize = 8;
    let namespace = format!("{}conflict-resolution-policy last-update-time\n", on_disk(2));
    let Some(mut both) = own_cluster_or_skip(&namespace) else { return };
    let uri = format!("aerospike://{},{}/test/tests", both[0].place().address, both[1].place().address);
    for topic in ["durability", "replication", "conflicts"] {
        assert_eq!(diagnostic(&uri, topic).severity, Severity::Ok, "{}", diagnostic(&uri, topic));
    }
    let [ours, theirs] = [(); 2].map(|()| {
        let builder = LockManager::builder().store_uri(&uri).client("crash").ttl(TTL);
        builder.timeout(LONG / 2).open().unwrap()
    });
    for round in 0..4 {
        let lock =
            |manager: &LockManager, number| manager.lock(&format!("{round}-{number}"), Level::Xdc).unwrap();
        let leases: Vec<_> = (0..LOCKS).map(|number| lock(&ours, number).try_acquire().unwrap()).collect();
        let crashes = &mut both[round % 2];
        crashes.kill();
        crashes.restart();
        wait_joined(&both);
        for (number, lease) in leases.iter().enumerate() {
            let refused = lock(&theirs, number).try_acquire().expect_err("the grant was forgotten");
            assert_eq!(refused.code(), Code::LockUnavailable, "{}", refused.chain());
            lease.renew().unwrap();
            assert!(lease.release().unwrap());
        }
    }
}

/// Leases that were granted while a node was away, and whether the next renewal of each returned LEASE_LOST.
type Grants = Vec<(Lease, bool)>;

/// Restarts a node while locks change hands. The node comes back with its old records.
fn grants_while_a_node_was_away(policy: &str) -> Option<([Server; 2], Grants)> {
    const LOCKS: usize = 12;
    let mut both = own_cluster_or_skip(&format!("{}{policy}", on_disk(2)))?;
    let addresses = [0, 1].map(|node: usize| both[node].place().address);
    let uri = format!("aerospike://{},{}/test/tests", addresses[0], addresses[1]);
    let [ours, theirs] = [(); 2].map(|()| {
        let builder = LockManager::builder().store_uri(&uri).client("away").ttl(TTL);
        builder.timeout(LONG / 2).open().unwrap()
    });
    let lock = |manager: &LockManager, number: usize| manager.lock(&number.to_string(), Level::Xdc).unwrap();
    let leases: Vec<_> = (0..LOCKS).map(|number| lock(&ours, number).try_acquire().unwrap()).collect();
    for lease in &leases {
        for _ in 0..10 {
            lease.renew().unwrap();
        }
    }
    both[1].shut_down();
    let grants: Vec<_> = (0..LOCKS)
        .map(|number| {
            assert!(leases[number].release().unwrap());
            lock(&theirs, number).try_acquire().unwrap()
        })
        .collect();
    both[1].restart();
    wait_joined(&both);
    let grants = grants.into_iter().map(|grant| {
        grant.check().unwrap();
        let renewed = grant.renew();
        let lost = renewed.as_ref().is_err_and(|error| error.code() == Code::LeaseLost);
        assert!(lost || renewed.is_ok(), "{renewed:?}");
        (grant, lost)
    });
    let grants = grants.collect();
    Some((both, grants))
}

/// The servers' default: the copy with the higher generation stays. That is the copy that was renewed more often.
#[test]
fn by_generation_a_node_that_comes_back_replaces_newer_grants_and_the_doctor_fails_it() {
    let Some((both, grants)) = grants_while_a_node_was_away("") else { return };
    let lost = grants.iter().filter(|(_, lost)| *lost).count();
    assert!(lost > 0, "this policy does no harm now: the doctor need not fail it");
    // A holder learns of the loss at its next renewal, not before.
    let uri = format!("aerospike://{},{}/test/tests", both[0].place().address, both[1].place().address);
    for set_on in [None, Some(0)] {
        // One node with the default policy is enough for a failure.
        if let Some(node) = set_on {
            set(&both[node], "conflict-resolution-policy=last-update-time");
        }
        let conflicts = diagnostic(&uri, "conflicts");
        assert_eq!(conflicts.severity, Severity::Fail, "{conflicts}");
        assert!(conflicts.advice.contains("conflict-resolution-policy last-update-time"), "{conflicts}");
        let strict = format!("{uri}?client=doctor&strict=true&timeout=60s");
        let error = LockManager::open(&strict).expect_err("strict");
        assert!(error.chain().contains("conflict-resolution-policy"), "{}", error.chain());
    }
    set(&both[1], "conflict-resolution-policy=last-update-time");
    assert_eq!(diagnostic(&uri, "conflicts").severity, Severity::Ok);
    LockManager::open(&format!("{uri}?client=doctor&strict=true&timeout=60s")).unwrap();
}

#[test]
fn by_last_update_time_a_node_that_comes_back_leaves_newer_grants_alone() {
    let policy = "conflict-resolution-policy last-update-time\n";
    let Some((_both, grants)) = grants_while_a_node_was_away(policy) else { return };
    for (grant, lost) in grants {
        assert!(!lost, "an older holder's record replaced {}", grant.name());
        assert!(grant.release().unwrap());
    }
}

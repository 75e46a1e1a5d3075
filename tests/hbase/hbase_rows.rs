//! The stored cells of locks in a real HBase, locks under load, and peers that act like the Java library.
#![cfg(feature = "gateway")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, Grant, Identity, LockStore, Released};
use dlm::{Code, Deadline, Fence, Level, Lock, LockManager, LockName, Moment, NamePolicy};
use dlm_fixtures::{hbase, table};
use dlm_testkit::{LONG, LONGEST, shortened, unless_stalled, until};
use parking_lot::Mutex;

use super::raw::Raw;

/// A TTL that does not end during a test. Tests of expiry use shorter ones.
const TTL: Duration = Duration::from_secs(1800);

/// A lock, its store, and raw access to its row. Tests share the table, but not the lock.
struct Stage {
    gateway: SocketAddr,
    client: String,
    name: LockName,
    lock: Lock,
    store: Arc<dyn LockStore>,
    raw: Raw,
}

/// If no HBase can run on this machine, it says so and returns `None`.
fn stage(test: &str) -> Option<Stage> {
    let gateway = table::gateway()?;
    let client = hbase::fresh_table(test);
    let lock = manager(gateway, &client).lock("a", Level::Xdc).unwrap();
    let (store, raw) = (dlm::store::open(&table::uri(gateway)).unwrap(), Raw::connect(gateway, table::TABLE));
    Some(Stage { gateway, name: lock.name().clone(), client, lock, store, raw })
}

fn manager(gateway: SocketAddr, client: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(&table::uri(gateway)).client(client).ttl(TTL);
    builder.wait(LONGEST).retry(Duration::from_millis(10)).timeout(2 * LONG).open().unwrap()
}

fn soon() -> Deadline {
    Deadline::after(2 * LONG)
}

/// Runs `part` with leases of two seconds, and with longer ones if this machine was too slow. It returns `None` when
/// its lease ended, by the clock, before the part did.
fn patiently<T>(mut part: impl FnMut(Duration) -> Option<T>) -> T {
    let ttls = [2, 8, 30].map(Duration::from_secs);
    ttls.into_iter().find_map(&mut part).expect("a lease of 30 s ended before a few calls did")
}

/// Returns the value of a call that needs a lease to last, or `None` if it failed because the lease, which was asked
/// for at that moment, has ended.
#[track_caller]
fn while_it_lasts<T>(answer: dlm::Result<T>, asked: Moment, ttl: Duration) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(_) if Moment::now().since(asked) >= ttl / 2 => None,
        Err(error) => panic!("{}", error.chain()),
    }
}

#[track_caller]
fn code<T: std::fmt::Debug>(answer: dlm::Result<T>) -> Code {
    answer.expect_err("this must fail").code()
}

/// Checks a lock without the store: at most one thread holds it, and its fences rise.
#[derive(Default)]
struct Watch {
    holders: AtomicUsize,
    last_fence: Mutex<Option<Fence>>,
    grants: AtomicUsize,
}

impl Watch {
    fn granted(&self, fence: Option<Fence>) {
        assert_eq!(self.holders.fetch_add(1, Ordering::SeqCst), 0, "granted while another holds it");
        self.grants.fetch_add(1, Ordering::SeqCst);
        if let Some(fence) = fence {
            let before = self.last_fence.lock().replace(fence);
            assert!(Some(fence) > before, "fence {fence} after {before:?}");
        }
    }

    fn before_release(&self) {
        assert_eq!(self.holders.fetch_sub(1, Ordering::SeqCst), 1, "another holds it as well");
    }
}

#[test]
fn five_thousand_cycles_as_fast_as_they_go_grant_no_lock_twice_and_lose_none() {
    const THREADS: usize = 6;
    const LOCKS: usize = 3;
    let Some(stage) = stage("cycles") else { return };
    let cycles = if shortened("1,000 cycles of 5,000") { 1000 } else { 5000 };
    let watches: Vec<_> = (0..LOCKS).map(|_| Watch::default()).collect();
    let left = AtomicUsize::new(cycles);
    let managers = [(); 2].map(|()| manager(stage.gateway, &stage.client));
    let work = |number: usize| {
        let locks =
            managers.each_ref().map(|manager| manager.lock(&(number % LOCKS).to_string(), Level::Xdc));
        let [ours, theirs] = locks.map(Result::unwrap);
        let (ours, theirs) = if number < THREADS / 2 { (ours, theirs) } else { (theirs, ours) };
        let watch = &watches[number % LOCKS];
        while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            // Released and acquired again at once. This detects a release that hides a record of the same
            // millisecond.
            for _ in 0..2 {
                let lease = ours.acquire().unwrap();
                watch.granted(lease.fence());
                if lease.fence().unwrap().0 % 4 == 0 {
                    assert_eq!(code(theirs.try_acquire()), Code::LockUnavailable, "granted while held");
                }
                watch.before_release();
                assert!(lease.release().unwrap());
            }
        }
    };
    thread::scope(|scope| {
        let threads = (0..THREADS).map(|number| {
            let name = format!("dlm-test-cycles-{number}");
            thread::Builder::new().name(name).spawn_scoped(scope, move || work(number)).unwrap()
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    });
    let grants: usize = watches.iter().map(|watch| watch.grants.load(Ordering::SeqCst)).sum();
    assert_eq!(grants, 2 * cycles);
}

#[test]
fn a_released_lock_is_an_empty_cell_with_a_ttl_and_no_tombstone() {
    let Some(Stage { lock, name, mut raw, .. }) = stage("marker") else { return };
    assert_eq!(raw.lock_cell(&name), None);
    let freed_at = patiently(|ttl| {
        let asked = Moment::now();
        let lease = while_it_lasts(lock.acquire_with_ttl(ttl), asked, ttl)?;
        let held = raw.lock_cell(&name);
        let began = Moment::now();
        let released = lease.release();
        let cell = raw.lock_cell(&name);
        // After that, the record may have expired before the release.
        let in_time = Moment::now().since(asked) < ttl / 2;
        if !in_time {
            return None;
        }
        let (held, held_at) = held.unwrap();
        assert_eq!((held[0], held[1]), (b'M', 1), "not a record that Java reads as held");
        assert!(released.unwrap());
        let (free, freed_at) = cell.expect("a release deleted the cell");
        assert!(free.is_empty() && freed_at >= held_at);
        // The record below it lives for this TTL. It would show again if the empty cell expired earlier.
        while Moment::now().since(began) < ttl + ttl / 2 {
            let (value, _) = raw.lock_cell(&name).expect("the empty cell lasts as long as the fence");
            assert!(value.is_empty(), "the released record shows again");
            thread::sleep(ttl / 20);
        }
        Some(freed_at)
    });
    // A tombstone would hide this put, which has the timestamp of the release.
    raw.put_at(&name, b"x", freed_at);
    assert_eq!(raw.lock_cell(&name), Some((b"x".to_vec(), freed_at)), "a tombstone hides the put");
}

#[test]
fn whatever_is_written_to_a_lock_goes_by_itself() {
    let Some(Stage { store, name, mut raw, .. }) = stage("ttl") else { return };
    let identity = Identity::this_process("test").unwrap();
    let take = |ttl| {
        let (asked, attempt) = (Moment::now(), Attempt { name: &name, ttl, identity: &identity, by: soon() });
        match while_it_lasts(store.acquire(attempt, &mut Vec::new()), asked, ttl)? {
            Acquired::Granted(grant) => Some(grant),
            Acquired::Held(holder) => {
                assert!(Moment::now().since(asked) >= ttl / 2, "held by {holder}");
                None
            }
        }
    };
    patiently(|ttl| {
        let grant = take(ttl);
        until("the record expires", || raw.lock_cell(&name).is_none());
        let grant = grant?;
        assert_eq!(store.release(&name, &grant.owner_record, soon()).unwrap(), Released::NotOurs);
        let (grant, asked) = (take(ttl), Moment::now());
        let renew = |grant: Grant| store.renew(&name, &grant.owner_record, ttl, soon());
        let renewed = grant.and_then(|grant| while_it_lasts(renew(grant), asked, ttl));
        until("the record expires again", || raw.lock_cell(&name).is_none());
        renewed.flatten().map(drop)
    });
    let (fence, _) = raw.fence_cell(&name).expect("the fence expired with the lease");
    assert_eq!(fence.len(), 8, "not a counter that HBase can increment");
}

#[test]
fn a_release_covers_the_longest_ttl_that_the_lease_ever_had() {
    let Some(Stage { lock, name, mut raw, .. }) = stage("cover") else { return };
    let (began, long) = patiently(|ttl| {
        let (asked, long) = (Moment::now(), 2 * ttl);
        let lease = while_it_lasts(lock.acquire_with_ttl(ttl), asked, ttl)?;
        while_it_lasts(lease.renew_for(long), asked, ttl)?;
        // It waits no longer than half a second, which a busy machine may need.
        let brief = lease.renew_for(Duration::from_millis(500));
        let (began, released) = (Moment::now(), lease.release());
        if Moment::now().since(asked) >= ttl / 2 {
            // The record may have expired before the release.
            return None;
        }
        assert!(brief.as_ref().err().is_none_or(dlm::Error::is_retryable), "{brief:?}");
        assert!(released.unwrap());
        Some((began, long))
    });
    while Moment::now().since(began) < 2 * long {
        let cell = raw.lock_cell(&name);
        assert!(cell.is_none_or(|(value, _)| value.is_empty()), "a released record came back");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_lock_and_one_of_the_java_library_exclude_each_other() {
    let Some(Stage { lock, name, mut raw, .. }) = stage("java") else { return };
    assert!(raw.java_acquires(&name, TTL));
    match lock.try_acquire() {
        Err(dlm::Error::LockUnavailable { holder, .. }) => {
            let holder = holder.expect("the holder was not read");
            assert_eq!((holder.identity, holder.remaining), (None, None), "Java stores neither");
        }
        other => panic!("granted over Java's M: {other:?}"),
    }
    assert!(lock.inspect().unwrap().holder.is_some());
    raw.java_releases(&name);

    let lease = lock.acquire().unwrap();
    assert!(!raw.java_acquires(&name, TTL), "Java was granted over our record");
    lease.renew().unwrap();
    assert!(!raw.java_acquires(&name, TTL), "Java was granted over our renewed record");
    assert!(lease.release().unwrap());
    assert!(raw.java_acquires(&name, TTL), "Java reads our empty cell as held");
    assert_eq!(raw.lock_cell(&name).unwrap().0, b"M");
    assert_eq!(code(lock.try_acquire()), Code::LockUnavailable);

    // Java's release deletes any record, also ours. Our holder must notice that.
    raw.java_releases(&name);
    until("Java's tombstone no longer hides records", || {
        lock.try_acquire().is_ok_and(|lease| lease.release().unwrap())
    });
    let lease = lock.acquire().unwrap();
    raw.java_releases(&name);
    assert_eq!(code(lease.renew()), Code::LeaseLost);
}

/// A Delete hides what is written in its millisecond or before. The server still answers that the put succeeded.
#[test]
fn an_acquire_right_after_a_delete_by_java_is_no_false_grant() {
    let Some(Stage { store, name, mut raw, .. }) = stage("masked") else { return };
    let identity = Identity::this_process("test").unwrap();
    let mut last = None;
    for round in 0..400 {
        // There is no pause between them, because both must happen in the same millisecond.
        assert!((0..10_000).any(|_| raw.java_acquires(&name, TTL)), "not granted to Java, in round {round}");
        raw.java_releases(&name);
        let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
        let Acquired::Granted(grant) = store.acquire(attempt, &mut Vec::new()).unwrap() else {
            panic!("a free lock was refused, in round {round}");
        };
        let (value, _) = raw.lock_cell(&name).unwrap_or_else(|| panic!("hidden, in round {round}"));
        assert!(value.len() > 1, "round {round}");
        assert!(!raw.java_acquires(&name, TTL), "granted to Java as well, in round {round}");
        assert!(grant.fence > last, "{:?} after {last:?}", grant.fence);
        last = grant.fence;
        assert_eq!(store.release(&name, &grant.owner_record, soon()).unwrap(), Released::Freed);
    }
}

#[test]
fn in_a_mixed_fleet_no_two_hold_a_lock_at_once() {
    const GRANTS: usize = 150;
    let Some(stage) = stage("fleet") else { return };
    let (watch, stop) = (Watch::default(), AtomicBool::new(false));
    let granted = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let ours = || {
        let lock = manager(stage.gateway, &stage.client).lock("a", Level::Xdc).unwrap();
        while !stop.load(Ordering::SeqCst) {
            let Ok(lease) = lock.try_acquire() else { continue };
            watch.granted(lease.fence());
            granted[0].fetch_add(1, Ordering::SeqCst);
            watch.before_release();
            assert!(lease.release().unwrap());
        }
    };
    // The Java library itself trusts the server's answer. This client also reads the cell, so it never holds the
    // lock with a hidden record.
    let java = || {
        let mut raw = Raw::connect(stage.gateway, table::TABLE);
        while !stop.load(Ordering::SeqCst) {
            let acquired = raw.java_acquires(&stage.name, TTL);
            if !acquired || raw.lock_cell(&stage.name).is_none_or(|(value, _)| value != b"M") {
                continue;
            }
            watch.granted(None);
            granted[1].fetch_add(1, Ordering::SeqCst);
            watch.before_release();
            raw.java_releases(&stage.name);
        }
    };
    let enough = || granted.iter().all(|count| count.load(Ordering::SeqCst) >= GRANTS);
    thread::scope(|scope| {
        let named = |name: &str| thread::Builder::new().name(format!("dlm-test-{name}"));
        let threads = [
            named("ours-0").spawn_scoped(scope, ours).unwrap(),
            named("ours-1").spawn_scoped(scope, ours).unwrap(),
            named("java").spawn_scoped(scope, java).unwrap(),
        ];
        let deadline = Deadline::after(LONGEST);
        while !enough() && !deadline.passed() && threads.iter().all(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert!(enough(), "grants to us and to Java: {granted:?}");
}

/// With Deletes instead of empty cells, an acquire would take three times as long and more. The hot lock is
/// compared with locks that were acquired once before. Their cycles alternate, so other programs slow down both.
#[test]
fn a_hot_lock_does_not_grow_slower() {
    const COMPARED: usize = 400;
    let Some(Stage { store, name, client, .. }) = stage("hot") else { return };
    let before = if shortened("after 1,000 cycles, not 4,000") { 1000 } else { 4000 };
    let identity = Identity::this_process("test").unwrap();
    let cycle = |name: &LockName| {
        let began = Moment::now();
        let attempt = Attempt { name, ttl: TTL, identity: &identity, by: soon() };
        let Acquired::Granted(grant) = store.acquire(attempt, &mut Vec::new()).unwrap() else {
            panic!("our own lock was refused");
        };
        let took = Moment::now().since(began);
        store.release(name, &grant.owner_record, soon()).unwrap();
        took
    };
    for _ in 0..before {
        cycle(&name);
    }
    let mut others = (0..).map(|number: u32| {
        let id = format!("fresh-{number}");
        LockName::new(Level::Xdc, &client, None, &id, NamePolicy::Strict).unwrap()
    });
    unless_stalled(Duration::from_millis(20), || {
        let (mut hot, mut fresh) = (Vec::new(), Vec::new());
        for other in others.by_ref().take(COMPARED) {
            hot.push(cycle(&name));
            // The first cycle also creates the fence's counter, which the hot lock has already.
            cycle(&other);
            fresh.push(cycle(&other));
        }
        let median = |times: &mut [Duration]| times.select_nth_unstable(COMPARED / 2).1.as_secs_f64();
        let ratio = median(&mut hot) / median(&mut fresh);
        assert!(ratio < 1.5, "an acquire takes {ratio:.2} times as long as one of a fresh lock");
    });
}

#[test]
fn a_missing_table_is_said_and_made_once_by_all_who_ask() {
    let Some(hbase) = hbase::hbase_or_skip() else { return };
    let table = hbase::fresh_table("dlm_test_made");
    let uri = format!("hbase+thrift://{}/{table}?client=test&timeout=5m&ttl=10m", hbase.thrift);
    let lock = LockManager::open(&uri).unwrap().lock("a", Level::Xdc).unwrap();
    let error = lock.try_acquire().unwrap_err();
    assert_eq!(error.code(), Code::TableCreationError);
    assert!(error.chain().contains(&table) && error.chain().contains("dlm init"), "{}", error.chain());
    assert_eq!(code(lock.inspect()), Code::TableCreationError);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| LockManager::open(&uri).unwrap().initialize().unwrap());
        }
    });
    assert!(lock.try_acquire().unwrap().release().unwrap());
    let mut raw = Raw::connect(hbase.thrift, &table);
    assert_eq!(raw.families(), [("D:".to_owned(), 1, "GZ".to_owned())]);
    raw.drop_table();
}

#[test]
fn a_table_of_something_else_is_refused() {
    let Some(hbase) = hbase::hbase_or_skip() else { return };
    let table = hbase::fresh_table("dlm_test_other");
    let mut raw = Raw::connect(hbase.thrift, &table);
    raw.create_table("X:");
    let uri = format!("hbase+thrift://{}/{table}?client=test&timeout=5m", hbase.thrift);
    let manager = LockManager::open(&uri).unwrap();
    for error in
        [manager.initialize().unwrap_err(), manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap_err()]
    {
        assert_eq!(error.code(), Code::TableCreationError, "{}", error.chain());
        assert!(error.chain().contains("family D"), "{}", error.chain());
    }
    raw.drop_table();
}

/// The Java library computed these rows. Other runs of this test may use the same lock at the same time.
#[test]
fn rows_lie_where_the_java_library_looks_for_them() {
    let Some(Stage { gateway, mut raw, .. }) = stage("rows") else { return };
    let builder = LockManager::builder().store_uri(&table::uri(gateway)).client("CLIENT_ID").farm("FA1");
    let manager = builder.ttl(2 * LONG).wait(LONGEST).timeout(2 * LONG).open().unwrap();
    for (level, row) in
        [(Level::Xdc, &b"\xd2XDC#CLIENT_ID#LOCK_ID"[..]), (Level::Dc, b"\xcbDC#FA1#CLIENT_ID#LOCK_ID")]
    {
        let lease = manager.lock("LOCK_ID", level).unwrap().acquire().unwrap();
        let (value, _) = raw.cell(row.to_vec(), b"D:L").unwrap();
        assert_eq!(value[0], b'M');
        assert!(lease.release().unwrap());
    }
}

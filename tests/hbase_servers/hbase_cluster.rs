//! Locks are held and contended while regions move and split, and while RegionServers and a master die.
//!
//! Only this program uses the cluster: two RegionServers, two masters and a ZooKeeper, each in its own JVM.
//! Together they take 1.3 gigabytes. HBase's Java client does what an administrator would do.
#![cfg(feature = "hbase")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::store::{LatchName, NewLatch, Step};
use dlm::{Code, Deadline, Fence, Lease, Level, Lock, LockManager, Moment, NamePolicy};
use dlm_fixtures::hbase::{Hbase, Kind};
use dlm_fixtures::peer::{Peer, hex};
use dlm_fixtures::watch::{self, Watch, Workers};
use dlm_testkit::left_to_the_long_run;

/// Time limit of steps that take seconds on an idle machine. The death of a RegionServer is noticed after twenty
/// seconds.
const LONG: Duration = Duration::from_secs(300);
/// A TTL that does not end during a test.
const TTL: Duration = Duration::from_secs(1800);
const TABLE: &str = "locks";
const HELD: usize = 3;
const CONTENDED: usize = 3;

/// Not a test: the code of the processes that other tests start.
#[test]
fn worker() {
    watch::work();
}

#[test]
fn locks_and_latches_live_through_moves_splits_and_the_death_of_region_servers_and_of_a_master() {
    if left_to_the_long_run() {
        return;
    }
    locks_and_latches_live_through_it("java");
}

#[test]
fn locks_of_the_layout_own_live_through_moves_splits_and_the_death_of_region_servers_and_of_a_master() {
    if !left_to_the_long_run() {
        locks_and_latches_live_through_it("own");
    }
}

fn locks_and_latches_live_through_it(layout: &str) {
    let kind = Kind::Cluster { servers: 2, masters: 2 };
    let Some(hbase) = Hbase::private_of(&format!("cluster-{layout}"), kind) else { return };
    let uri = uri(&hbase, TABLE, layout);
    let manager = create(&uri);
    let held: Vec<Held> = (0..HELD).map(|number| Held::new(&manager, &uri, number)).collect();
    let workers = Workers::start(module_path!(), &[uri.clone(), uri.clone()], "cluster");
    let watches: [Watch; CONTENDED] = Default::default();
    let (stop, errors) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut admin = Admin::new(&hbase);
    count_latches_through_moves(&hbase, &mut admin);
    thread::scope(|scope| {
        // Two threads for each lock, one in each manager. They contend in HBase.
        let managers = [&manager, &open(&uri)];
        for number in 0..2 * CONTENDED {
            let (lock, watch) =
                (contended(managers[number / CONTENDED], number), &watches[number % CONTENDED]);
            let name = format!("dlm-test-contend-{number}");
            let (stop, errors) = (&stop, &errors);
            thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, move || contend(&lock, watch, stop, errors))
                .unwrap();
        }
        let _ended = Stop(&stop);
        let progress = |what: &str| until_granted_anew(what, &watches, &workers);

        let rows: Vec<Rows> = (0..CONTENDED)
            .map(|number| Rows::of(&contended(&manager, number)))
            .chain(held.iter().map(|held| Rows::of(&held.lock)))
            .chain([Rows::of(&lock(&manager_of(&uri, "cluster"), "0"))])
            .collect();
        for split in [false, true] {
            for rows in &rows {
                admin.moves(TABLE, &rows.lock);
                if split {
                    admin.splits(rows);
                    admin.moves(TABLE, &rows.lock);
                }
            }
            admin.moves("hbase:meta", b"");
            held.iter().for_each(Held::is_intact);
            progress("moves and splits");
        }
        // Both servers die, one after the other, so one of them dies with hbase:meta. The first one starts again
        // after the other has taken over. The second one starts again at once.
        for number in [1, 2] {
            hbase.kill_region_server(number);
            admin.kills += 1;
            if number == 1 {
                held.iter().for_each(Held::is_intact);
                progress("the death of a RegionServer");
            }
            hbase.start();
            admin.both_serve();
            progress("its return");
            admin.moves(TABLE, &rows[0].lock);
        }
        lose_the_active_master(&hbase, &manager, layout);
        held.iter().for_each(Held::is_intact);
        progress("all of it");
    });
    let done = workers.finish();
    println!("{} moves, {} splits, {} kills", admin.moves, admin.splits, admin.kills);
    println!("processes: {done:?}");
    for watch in &watches {
        let seen = watch.seen();
        println!(
            "threads: {} grants, longest stall {:?}, last fence {:?}",
            seen.grants, seen.stall, seen.fence
        );
    }
    println!("errors of threads: {}", errors.load(Ordering::SeqCst));
    for held in held {
        held.is_intact();
        assert!(held.lease.release().unwrap(), "a lock was lost before its release");
    }
    assert!(admin.moves >= 15 && admin.splits >= 4, "too few moves and splits to show anything");
}

fn uri(hbase: &Hbase, table: &str, layout: &str) -> String {
    format!("hbase://{}/{table}?layout={layout}&timeout=300s&ttl=30m&wait=10m", hbase.masters)
}

/// Look-ups continue at once, because a standby master answers them too. Tables are created as soon as it has taken
/// over. `manager` has used the master that dies.
fn lose_the_active_master(hbase: &Hbase, manager: &LockManager, layout: &str) {
    hbase.kill_master(1);
    let begin = Moment::now();
    let took =
        |what: &str| println!("{what} {:?} after the active master's death", Moment::now().since(begin));
    // A new manager, which has looked up nothing yet.
    let lease =
        lock(&open(&uri(hbase, TABLE, layout)), "found").acquire().expect("the other master was not asked");
    assert!(lease.release().unwrap());
    took("a lock was acquired");
    open(&uri(hbase, "made_later", layout)).initialize().expect("the other master does not create tables");
    took("a table was created");
    manager.initialize().expect("the dead master was still asked");
    let lease = lock(&open(&uri(hbase, "made_later", layout)), "a").acquire().unwrap();
    assert!(lease.release().unwrap());
}

/// Each change counts once although regions move meanwhile. One call reads many counts, although two servers have
/// them.
fn count_latches_through_moves(hbase: &Hbase, admin: &mut Admin) {
    const LATCHES: usize = 30;
    const MOVED: usize = 4;
    let moves = admin.moves;
    let store = dlm::store::open(&format!("hbase://{}/{TABLE}", hbase.masters)).unwrap();
    let store = store.latches().unwrap();
    let name = |id: usize| LatchName::new("moves", "dc1", &id.to_string(), NamePolicy::Strict).unwrap();
    let names: Vec<_> = (0..LATCHES).map(name).collect();
    for (count, name) in (0..).zip(&names) {
        // The first one creates the table.
        let new = NewLatch { name, count, roster: &[], ttl: TTL, by: Deadline::after(5 * LONG) };
        assert!(store.create_latch(&new).unwrap());
    }
    let latch_table = format!("D_LTCH_{TABLE}");
    let stop = AtomicBool::new(false);
    let steps = thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let mut steps = 0;
            while !stop.load(Ordering::SeqCst) {
                for name in &names[..MOVED] {
                    let by = Deadline::after(LONG);
                    store.step(&Step { name, add: 1, participant: None, ttl: TTL, by }).unwrap();
                }
                steps += 1;
            }
            steps
        });
        let _ended = Stop(&stop);
        for name in names[..MOVED].iter().cycle().take(3 * MOVED) {
            admin.moves(&latch_table, &HbaseStore::latch_row(name));
        }
        stop.store(true, Ordering::SeqCst);
        counting.join().unwrap()
    });
    let asked: Vec<_> = names.iter().map(|name| (name, Level::Dc)).collect();
    let counts = store.counts(&asked, Deadline::after(LONG)).unwrap();
    for (id, count) in counts.into_iter().enumerate() {
        let stepped = if id < MOVED { steps } else { 0 };
        assert_eq!(count.unwrap(), Some((id + stepped) as i64), "latch {id}");
    }
    let servers: HashSet<_> = names
        .iter()
        .map(|name| admin.peer.ask(&format!("where {latch_table} {}", hex(&HbaseStore::latch_row(name)))))
        .collect();
    let moves = admin.moves - moves;
    println!("latches: {moves} moves during {steps} steps, {} servers", servers.len());
    assert!(moves >= MOVED && servers.len() == 2, "too few moves to show anything");
}

/// Creates the table as soon as the cluster serves.
fn create(uri: &str) -> LockManager {
    let (manager, deadline) = (open(uri), Deadline::after(LONG));
    while let Err(error) = manager.initialize() {
        assert!(!deadline.passed(), "{}", error.chain());
        thread::sleep(Duration::from_millis(500));
    }
    manager
}

fn open(uri: &str) -> LockManager {
    manager_of(uri, "threads")
}

fn manager_of(uri: &str, client: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client(client);
    builder.retry(Duration::from_millis(20)).open().unwrap()
}

fn lock(manager: &LockManager, id: &str) -> Lock {
    manager.lock(id, Level::Xdc).unwrap()
}

fn contended(manager: &LockManager, number: usize) -> Lock {
    lock(manager, &format!("contended-{}", number % CONTENDED))
}

/// Acquires and releases the lock again and again, and reports to `watch`.
fn contend(lock: &Lock, watch: &Watch, stop: &AtomicBool, errors: &AtomicUsize) {
    while !stop.load(Ordering::SeqCst) {
        match lock.acquire() {
            Ok(lease) => {
                watch.granted(lease.fence());
                thread::sleep(Duration::from_millis(fastrand::u64(..5)));
                watch.before_release();
                if let Err(error) = lease.release() {
                    // In doubt: the library keeps trying to release it.
                    assert_ne!(error.code(), Code::LeaseLost, "a lock was lost: {}", error.chain());
                    println!("release: {}", error.chain());
                    errors.fetch_add(1, Ordering::SeqCst);
                }
            }
            Err(error) => {
                println!("acquire: {}", error.chain());
                errors.fetch_add(1, Ordering::SeqCst);
            }
        }
        thread::sleep(Duration::from_millis(fastrand::u64(..20)));
    }
}

/// Stops the threads when it is dropped, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits until each contended lock was granted three more times, which shows that the waiters continue.
fn until_granted_anew(after: &str, watches: &[Watch], workers: &Workers) {
    let grants = || watches.iter().map(|watch| watch.seen().grants as u64).chain([workers.grants()]);
    let before: Vec<_> = grants().collect();
    let (deadline, begin) = (Deadline::after(LONG), Moment::now());
    while !grants().zip(&before).all(|(now, before)| now >= before + 3) {
        assert!(
            !deadline.passed(),
            "after {after}, waiters make no progress: {before:?} {:?}",
            grants().collect::<Vec<_>>()
        );
        thread::sleep(Duration::from_millis(20));
    }
    println!("granted again {:?} after {after}", Moment::now().since(begin));
}

/// A lock that is held during the whole test, while others try to acquire it.
struct Held {
    lock: Lock,
    lease: Lease,
    other: Lock,
}

impl Held {
    fn new(manager: &LockManager, uri: &str, number: usize) -> Held {
        let lock = lock(manager, &format!("held-{number}"));
        let lease = lock.acquire_with_ttl(TTL).unwrap();
        let other = self::lock(&open(uri), &format!("held-{number}"));
        Held { lock, lease, other }
    }

    #[track_caller]
    fn is_intact(&self) {
        self.lease.renew().expect("a lock was lost");
        let refused = self.other.try_acquire().map(|lease| lease.fence());
        let error = refused.expect_err("a lock was granted twice");
        assert_eq!(error.code(), Code::LockUnavailable, "{}", error.chain());
        // A refused attempt may use up a number. A number is never used again.
        let last: Option<Fence> = self.other.inspect().unwrap().fence;
        assert!(last >= self.lease.fence(), "the fence fell: {last:?}");
    }
}

/// The row keys of a lock and of its fence.
struct Rows {
    lock: Vec<u8>,
    fence: Vec<u8>,
}

impl Rows {
    fn of(lock: &Lock) -> Rows {
        Rows { lock: HbaseStore::lock_row(lock.name()), fence: HbaseStore::fence_row(lock.name()) }
    }

    /// Returns a key between the two. A split at this key puts them into different regions.
    fn between(&self) -> Vec<u8> {
        self.lock.clone().max(self.fence.clone())
    }
}

/// An administrator, and the number of operations of each kind.
struct Admin {
    peer: Peer,
    moves: usize,
    splits: usize,
    kills: usize,
}

impl Admin {
    fn new(hbase: &Hbase) -> Admin {
        let mut admin = Admin { peer: Peer::start(hbase), moves: 0, splits: 0, kills: 0 };
        admin.both_serve();
        admin
    }

    /// Moves a region to the other server. A refused move is not counted. The region may be moving already.
    fn moves(&mut self, table: &str, row: &[u8]) {
        // The request consists of words, and none may be empty.
        let row = if row.is_empty() { "00".to_owned() } else { hex(row) };
        self.count(&format!("move {table} {row}"), |admin| &mut admin.moves);
    }

    fn splits(&mut self, rows: &Rows) {
        self.count(&format!("split {TABLE} {}", hex(&rows.between())), |admin| &mut admin.splits);
    }

    fn count(&mut self, request: &str, counter: impl Fn(&mut Admin) -> &mut usize) {
        let begin = Moment::now();
        match self.peer.try_ask(request) {
            refused if refused.starts_with("error") => println!("{request:.60}: {refused:.200}"),
            _ => *counter(self) += 1,
        }
        assert!(Moment::now().since(begin) < LONG, "{request} took too long");
    }

    fn both_serve(&mut self) {
        let deadline = Deadline::after(LONG);
        while self.peer.ask("servers").split(' ').count() < 2 {
            assert!(!deadline.passed(), "a RegionServer did not come back");
            thread::sleep(Duration::from_millis(200));
        }
    }
}

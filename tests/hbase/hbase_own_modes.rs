//! Shared and update locks in the layout `own`, on a real HBase: what the cells say, how many requests a change takes, and
//! what flushes, cells of other versions and lost messages do. The contract of modes is in `hbase_own.rs`.
#![cfg(feature = "gateway")]

use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use dlm::hbase::{Cells, Column, RowCells, Table};
use dlm::store::{
    Acquired, AcquiredPermits, Attempt, Conversion, Converted, Grant, HbaseStore, Identity, Intent, IntentId,
    LockQuery, LockStore, ModeTerms, OwnerRecord, PermitTerms, Released, Renewal,
};
use dlm::{Code, Deadline, Holder, Level, LockManager, LockName, Mode, Moment, NamePolicy, Severity};
use dlm_fixtures::hbase::{Hbase, fresh_table, hbase_or_skip};
use dlm_fixtures::peer::Peer;
use dlm_fixtures::rpc_proxy;
use dlm_testkit::{Fault, Gate, LONG, LONGEST, Proxy, eventually};

const TABLE: &str = "dlm_test_own";

/// TTL of holds that do not end during a test.
const HELD: Duration = Duration::from_secs(1800);
/// Time-out of calls that must time out.
const SHORT: Duration = Duration::from_secs(2);
/// The ways to lose a message.
const LOSSES: [Fault; 2] = [Fault::LoseRequest, Fault::LoseReply];

const FENCE: &[u8] = b"F";
const LOCK: &[u8] = b"L";
/// The token of a base: see `src/store/hbase/own/own_row.rs`.
const BASE_TOKEN: &[u8] = b"shared-or-update";

fn uri(address: impl std::fmt::Display) -> String {
    format!("hbase://{address}/{TABLE}?layout=own")
}

fn created() -> Option<&'static Hbase> {
    static CREATED: Once = Once::new();
    let hbase = hbase_or_skip()?;
    CREATED.call_once(|| {
        let store = dlm::store::open(&uri(hbase.master)).unwrap();
        store.initialize(Deadline::after(LONGEST)).unwrap();
    });
    Some(hbase)
}

/// Returns the name of a lock that no other test uses.
fn fresh(test: &str) -> LockName {
    LockName::new(Level::Xdc, &fresh_table(test), None, "a", NamePolicy::Strict).unwrap()
}

fn soon() -> Deadline {
    Deadline::after(LONG)
}

/// The store of one process.
struct Process {
    store: Arc<dyn LockStore>,
    identity: Identity,
}

impl Process {
    fn at(address: SocketAddr) -> Process {
        let identity = Identity::this_process("modes").unwrap();
        Process { store: dlm::store::open(&uri(address)).unwrap(), identity }
    }

    /// Makes one attempt. Returns the answer, and the records that may still be stored.
    fn ask(
        &self,
        name: &LockName,
        (mode, ttl): (Mode, Duration),
        by: Deadline,
    ) -> (dlm::Result<Acquired>, Vec<OwnerRecord>) {
        let (attempt, mut doubtful) = (Attempt { name, ttl, identity: &self.identity, by }, Vec::new());
        let modes = self.store.modes().unwrap();
        let answer = modes.acquire_mode(attempt, ModeTerms::new(mode), &mut doubtful);
        (answer, doubtful)
    }

    #[track_caller]
    fn take(&self, name: &LockName, mode: Mode, ttl: Duration) -> Grant {
        match self.ask(name, (mode, ttl), soon()).0 {
            Ok(Acquired::Granted(grant)) => grant,
            other => panic!("{mode}: {other:?}"),
        }
    }

    #[track_caller]
    fn refused(&self, name: &LockName, mode: Mode) -> Holder {
        match self.ask(name, (mode, HELD), soon()).0 {
            Ok(Acquired::Held(holder)) => holder,
            other => panic!("{mode} was let in: {other:?}"),
        }
    }

    fn renew(&self, name: &LockName, grant: &Grant, ttl: Duration) -> Option<OwnerRecord> {
        self.store.renew(name, &grant.owner_record, ttl, soon()).unwrap()
    }

    fn convert(
        &self,
        name: &LockName,
        grant: &Grant,
        (from, to): (Mode, Mode),
        by: Deadline,
    ) -> (dlm::Result<Converted>, Vec<OwnerRecord>) {
        let (attempt, mut doubtful) = (Attempt { name, ttl: HELD, identity: &self.identity, by }, Vec::new());
        let conversion = Conversion { owner_record: &grant.owner_record, from, to, intent: None };
        let answer = self.store.modes().unwrap().convert(attempt, conversion, &mut doubtful);
        (answer, doubtful)
    }

    #[track_caller]
    fn converted(&self, name: &LockName, grant: &Grant, step: (Mode, Mode)) -> Grant {
        match self.convert(name, grant, step, soon()).0 {
            Ok(Converted::Granted(grant)) => grant,
            other => panic!("{step:?}: {other:?}"),
        }
    }

    fn release(&self, name: &LockName, record: &OwnerRecord) -> Released {
        self.store.release(name, record, soon()).unwrap()
    }

    #[track_caller]
    fn free(&self, name: &LockName, grant: &Grant) {
        assert_eq!(self.release(name, &grant.owner_record), Released::Freed);
    }

    /// Asserts that nothing is left of any hold.
    #[track_caller]
    fn assert_free(&self, name: &LockName) {
        assert!(self.store.modes().unwrap().holds(name, soon()).unwrap().is_empty());
        let grant = self.take(name, Mode::Exclusive, HELD);
        self.free(name, &grant);
    }
}

#[track_caller]
fn number(grant: &Grant) -> u64 {
    grant.fence.map(|it| it.0).or(grant.epoch.map(|it| it.0)).expect("each grant has a number")
}

/// The cells of a lock, as any client of HBase reads and writes them.
struct Raw(dlm::hbase::Row);

impl Raw {
    fn of(hbase: &Hbase, name: &LockName) -> Raw {
        let table = Table::open(&format!("hbase://{}/{TABLE}?family=O&timeout=1m", hbase.master)).unwrap();
        Raw(table.row(HbaseStore::lock_row(name)))
    }

    fn read(&self) -> RowCells {
        self.0.get().unwrap().expect("the row has cells")
    }

    fn put(&self, qualifier: &[u8], value: &[u8], ttl: Duration) {
        self.0.put(&Cells::new().put_for(Column::new("O", qualifier), value, ttl)).unwrap();
    }
}

fn value<'a>(row: &'a RowCells, qualifier: &[u8]) -> &'a [u8] {
    row.value(Column::new("O", qualifier)).unwrap_or_default()
}

/// Returns the number of the row.
fn fence(row: &RowCells) -> u64 {
    u64::from_be_bytes(value(row, FENCE).try_into().unwrap())
}

/// Returns the records in the places of the row, with their names.
fn members(row: &RowCells) -> Vec<(Vec<u8>, Vec<u8>)> {
    let cells = row.iter().map(|(column, value)| (column.qualifier().to_vec(), value.to_vec()));
    cells.filter(|(qualifier, value)| qualifier[0] == b's' && value.first() == Some(&b'M')).collect()
}

/// Returns the TTL in a record.
fn ttl_of(record: &[u8]) -> Duration {
    Duration::from_millis(u64::from_be_bytes(record[18..26].try_into().unwrap()))
}

/// Asserts what a version without modes needs to see, and that the number has the newest timestamp.
#[track_caller]
fn assert_base(row: &RowCells) {
    let base = value(row, LOCK);
    assert!(base.starts_with(b"M\x02") && base[2..18] == *BASE_TOKEN, "no base: {base:?}");
    assert_eq!(base[26..], fence(row).to_be_bytes(), "another number, or more bytes");
    let longest = members(row).iter().map(|(_, record)| ttl_of(record)).max();
    assert!(longest.is_some_and(|longest| ttl_of(base) >= longest), "the base ends before a hold");
    let written = |column: &Column| row.versions(column.clone()).next().map(|it| it.written_ms);
    let of_fence = written(&Column::new("O", FENCE));
    for (column, _) in row.iter() {
        assert!(written(&column) <= of_fence, "{column} is newer than the number");
    }
}

/// Returns the requests that a call sends.
fn sent<T>(proxy: &Proxy, call: impl FnOnce() -> T) -> (T, Vec<String>) {
    let before = proxy.requests().len();
    let answer = call();
    let requests = proxy.requests().split_off(before);
    (answer, requests.into_iter().filter(|it| ["Multi", "Get"].contains(&it.as_str())).collect())
}

/// Returns another lock whose row is in the same region.
fn neighbour(name: &LockName) -> LockName {
    let first = HbaseStore::lock_row(name)[0];
    let mut others = (0..).map(|id: u32| {
        LockName::new(
            Level::Xdc,
            "neighbours",
            None,
            &format!("{}-{id}", name.key().len()),
            NamePolicy::Strict,
        )
        .unwrap()
    });
    others.find(|other| HbaseStore::lock_row(other)[0] == first).unwrap()
}

/// A process whose requests can be counted. It knows where the region of the lock is, and nothing of its row.
fn counted(hbase: &Hbase, name: &LockName) -> (Proxy, Process) {
    let proxy = rpc_proxy::before(hbase.master);
    let process = Process::at(proxy.address());
    process.store.holder(&neighbour(name), soon()).unwrap();
    (proxy, process)
}

#[test]
fn a_change_takes_one_request_and_another_one_only_where_others_have_changed_the_row() {
    let Some(hbase) = created() else { return };
    let name = fresh("counted");
    let (proxy, ours) = counted(hbase, &name);
    let theirs = Process::at(hbase.master);
    let one = |what: &str, requests: &[String]| assert_eq!(requests, ["Multi"], "{what}");
    let two =
        |what: &str, requests: &[String]| assert!((1..=2).contains(&requests.len()), "{what}: {requests:?}");
    let mut number = 0;
    for beside in [false, true] {
        let other = beside.then(|| theirs.take(&name, Mode::Shared, HELD));
        let (mut grant, requests) = sent(&proxy, || ours.take(&name, Mode::Shared, HELD));
        two("first touch", &requests);
        for _ in 0..3 {
            let (renewed, requests) = sent(&proxy, || ours.renew(&name, &grant, HELD));
            assert!(renewed.is_some());
            one("renewal", &requests);
            let ((), requests) = sent(&proxy, || ours.free(&name, &grant));
            one("release", &requests);
            let (again, requests) = sent(&proxy, || ours.take(&name, Mode::Shared, HELD));
            one("acquired again", &requests);
            assert!(self::number(&again) >= self::number(&grant));
            grant = again;
        }
        ours.free(&name, &grant);
        if let Some(other) = other {
            theirs.free(&name, &other);
        }
        // Another epoch.
        let writer = theirs.take(&name, Mode::Exclusive, HELD);
        theirs.free(&name, &writer);
        let (grant, requests) = sent(&proxy, || ours.take(&name, Mode::Shared, HELD));
        two("changed epoch", &requests);
        assert!(self::number(&grant) > self::number(&writer) && self::number(&writer) > number);
        number = self::number(&grant);
        ours.free(&name, &grant);
    }
    let (update, requests) = sent(&proxy, || ours.take(&name, Mode::Update, HELD));
    one("update", &requests);
    let (writer, requests) = sent(&proxy, || ours.converted(&name, &update, (Mode::Update, Mode::Exclusive)));
    one("upgrade", &requests);
    let (update, requests) = sent(&proxy, || ours.converted(&name, &writer, (Mode::Exclusive, Mode::Update)));
    one("step down", &requests);
    let (shared, requests) = sent(&proxy, || ours.converted(&name, &update, (Mode::Update, Mode::Shared)));
    one("update to shared", &requests);
    ours.free(&name, &shared);
}

#[test]
fn a_lock_that_is_only_held_exclusively_takes_as_many_requests_as_without_modes() {
    let Some(hbase) = created() else { return };
    let name = fresh("alone");
    let (proxy, ours) = counted(hbase, &name);
    for _ in 0..3 {
        let (grant, requests) = sent(&proxy, || ours.take(&name, Mode::Exclusive, HELD));
        assert_eq!(requests, ["Multi"], "acquire");
        assert_eq!(sent(&proxy, || ours.refused(&name, Mode::Exclusive)).1, ["Multi"], "refused");
        assert_eq!(sent(&proxy, || ours.renew(&name, &grant, HELD)).1, ["Multi"], "renewal");
        assert_eq!(sent(&proxy, || ours.free(&name, &grant)).1, ["Multi"], "release");
    }
    let row = Raw::of(hbase, &name).read();
    let cells: Vec<_> = row.iter().map(|(column, _)| column.qualifier().to_vec()).collect();
    assert_eq!(cells, [FENCE, LOCK]);
}

#[test]
fn twenty_shared_leases_are_renewed_together_in_a_few_requests() {
    let Some(hbase) = created() else { return };
    let names: Vec<_> = (0..20).map(|_| fresh("together")).collect();
    let (proxy, ours) = counted(hbase, &names[0]);
    let theirs = Process::at(hbase.master);
    let held: Vec<_> = names
        .iter()
        .map(|name| (ours.take(name, Mode::Shared, HELD), theirs.take(name, Mode::Shared, HELD)))
        .collect();
    let renew_all = |ttl| {
        let renewals: Vec<_> = names
            .iter()
            .zip(&held)
            .map(|(name, (grant, _))| Renewal { name, owner_record: &grant.owner_record, ttl, alone: false })
            .collect();
        let mut renewed = 0;
        ours.store.renew_many(&renewals, soon(), &mut |_, _, answer| {
            renewed += usize::from(answer.unwrap().is_some());
        });
        renewed
    };
    for (ttl, most) in [(HELD, 4), (HELD, 4), (2 * HELD, 4)] {
        let (renewed, requests) = sent(&proxy, || renew_all(ttl));
        assert_eq!(renewed, names.len());
        assert!(requests.len() <= most, "{requests:?}");
    }
    // The records have changed, and so have the bases. Each is read once.
    let (renewed, requests) = sent(&proxy, || renew_all(HELD));
    assert_eq!(renewed, names.len());
    assert!(requests.len() <= 12, "{requests:?}");
    for (name, (_, other)) in names.iter().zip(&held) {
        assert!(theirs.renew(name, other, HELD).is_some());
        assert_base(&Raw::of(hbase, name).read());
    }
}

#[test]
fn a_version_without_modes_sees_a_record_that_lasts_as_long_as_every_hold() {
    let Some(hbase) = created() else { return };
    let (name, ours, theirs) = (fresh("base"), Process::at(hbase.master), Process::at(hbase.master));
    let (raw, seconds) = (Raw::of(hbase, &name), |it| HELD + Duration::from_secs(it));
    let base_ttl = |what: &str| {
        let row = raw.read();
        assert_base(&row);
        println!("{what}: {:?}", ttl_of(value(&row, LOCK)));
        ttl_of(value(&row, LOCK))
    };
    let first = ours.take(&name, Mode::Shared, seconds(10));
    assert_eq!(base_ttl("a first hold"), seconds(10));
    let second = theirs.take(&name, Mode::Update, seconds(60));
    assert_eq!(base_ttl("a longer one"), seconds(60));
    assert!(ours.renew(&name, &first, seconds(90)).is_some());
    assert_eq!(base_ttl("a longer renewal"), seconds(90));
    assert!(theirs.renew(&name, &second, seconds(5)).is_some());
    assert_eq!(base_ttl("a shorter renewal"), seconds(90));
    let short = ours.take(&name, Mode::Shared, seconds(1));
    assert_eq!(base_ttl("a shorter hold"), seconds(90));
    let shared = theirs.converted(&name, &second, (Mode::Update, Mode::Shared));
    assert_eq!(base_ttl("fewer rights"), seconds(90));
    assert_eq!(ours.release(&name, &first.owner_record), Released::Freed);
    assert_eq!(base_ttl("the longest has left"), seconds(90));
    ours.free(&name, &short);
    theirs.free(&name, &shared);
    let row = raw.read();
    assert_eq!((value(&row, LOCK), fence(&row)), (&b""[..], number(&first)), "free, with its number");
    let writer = ours.take(&name, Mode::Exclusive, seconds(70));
    let record = raw.read();
    assert!(value(&record, LOCK).starts_with(b"M\x02") && value(&record, LOCK)[2..18] != *BASE_TOKEN);
    let reader = ours.converted(&name, &writer, (Mode::Exclusive, Mode::Shared));
    assert_eq!(base_ttl("a step down"), HELD);
    assert_eq!(fence(&raw.read()), number(&reader));
    assert!(number(&reader) > number(&writer));
    ours.free(&name, &reader);
    theirs.assert_free(&name);
}

/// By the server's clock, and not by what the record says.
#[test]
fn no_hold_outlives_its_base() {
    let Some(hbase) = created() else { return };
    let (name, ours, theirs) = (fresh("ends"), Process::at(hbase.master), Process::at(hbase.master));
    let (raw, second) = (Raw::of(hbase, &name), Duration::from_secs(1));
    let first = ours.take(&name, Mode::Shared, 2 * second);
    theirs.take(&name, Mode::Shared, 3 * second);
    ours.take(&name, Mode::Shared, second);
    // On a slow machine they end first.
    let _ = ours.renew(&name, &first, 4 * second);
    let mut reads = 0;
    eventually("they end", || {
        let row = raw.read();
        let held = members(&row);
        if !held.is_empty() {
            reads += 1;
            assert_base(&row);
        }
        held.is_empty()
    });
    println!("read {reads} times with holds");
    theirs.assert_free(&name);
}

/// It writes an empty cell over the record that it has read, and knows nothing of the places.
#[test]
fn a_version_without_modes_that_breaks_the_base_ends_all_holds() {
    let Some(hbase) = created() else { return };
    let (ours, theirs) = (Process::at(hbase.master), Process::at(hbase.master));
    for mode in Mode::OF_LOCKS {
        let name = fresh("broken");
        let held = [Mode::Shared, Mode::Shared, Mode::Update].map(|mode| ours.take(&name, mode, HELD));
        let base = OwnerRecord::from_bytes(value(&Raw::of(hbase, &name).read(), LOCK));
        assert_eq!(theirs.store.release_broken(&name, &base, soon()).unwrap(), Released::Freed);
        assert_eq!(value(&Raw::of(hbase, &name).read(), LOCK), b"");
        assert_eq!(theirs.store.holder(&name, soon()).unwrap(), None);
        let next = theirs.take(&name, mode, HELD);
        assert!(number(&next) > number(&held[0]), "{mode}");
        for grant in &held {
            assert_eq!(ours.renew(&name, grant, HELD), None);
            assert_eq!(ours.release(&name, &grant.owner_record), Released::NotOurs);
        }
        assert!(theirs.renew(&name, &next, HELD).is_some(), "a broken hold took the lock from {mode}");
        assert_eq!(theirs.store.modes().unwrap().holds(&name, soon()).unwrap().len(), 1);
        // This process believes that the base stands.
        if mode == Mode::Shared {
            let beside = ours.take(&name, Mode::Shared, HELD);
            assert_eq!(number(&beside), number(&next));
            ours.free(&name, &beside);
        } else {
            ours.refused(&name, Mode::Update);
        }
        theirs.free(&name, &next);
        // The broken records stand for half an hour. The version that has broken them must get the lock.
        assert_eq!(value(&Raw::of(hbase, &name).read(), LOCK), b"", "{mode} has left its base");
        theirs.assert_free(&name);
    }
}

/// Each may find that it is not the last one.
#[test]
fn of_holders_that_leave_at_once_the_last_one_frees_the_lock() {
    let Some(hbase) = created() else { return };
    let (ours, theirs) = (Process::at(hbase.master), Process::at(hbase.master));
    let name = fresh("at-once");
    let raw = Raw::of(hbase, &name);
    for _ in 0..50 {
        let held = [&ours, &theirs].map(|process| (process, process.take(&name, Mode::Shared, HELD)));
        thread::scope(|scope| {
            for (process, grant) in &held {
                let name = &name;
                let leaves = move || process.free(name, grant);
                thread::Builder::new().name("dlm-test-leaves".into()).spawn_scoped(scope, leaves).unwrap();
            }
        });
        assert_eq!(value(&raw.read(), LOCK), b"", "a base without holds");
    }
}

/// A cell that no client of this version writes.
struct Hostile {
    what: &'static str,
    qualifier: Vec<u8>,
    value: Vec<u8>,
    /// Modes that must be refused beside it, whatever the process has seen of the row.
    excludes: &'static [Mode],
}

/// Returns cells beside that of this reader, each in another place.
fn hostile_cells(reader: &[u8]) -> Vec<Hostile> {
    const ALL: &[Mode] = &Mode::OF_LOCKS;
    const WRITERS: &[Mode] = &[Mode::Exclusive];
    const READERS: &[Mode] = &[Mode::Shared, Mode::Update];
    let cell = |what, qualifier: &[u8], value: &[u8], excludes| Hostile {
        what,
        qualifier: qualifier.to_vec(),
        value: value.to_vec(),
        excludes,
    };
    let at = |place: u8| [b's', place ^ reader[34]];
    vec![
        cell("a hold of a mode to come", &at(1), b"M\x13permit", ALL),
        cell("an exclusive record in a place", &at(2), b"M\x02", ALL),
        cell("garbage in a place", &at(3), b"\xff\x00", ALL),
        cell("garbage that sorts before all values", &at(4), b"\x00", ALL),
        cell("a cell of a kind to come", b"x", b"\x01", ALL),
        cell("a cell without a name", b"", b"\x01", ALL),
        // Of a kind that this version knows.
        cell("a record of another place", &at(5), reader, WRITERS),
        cell("a record that was cut", &at(6), &reader[..20], WRITERS),
        cell("an intent to come", b"i12345678", b"\x02", READERS),
    ]
}

#[test]
fn a_cell_that_is_not_known_is_a_holder_until_it_ends() {
    let Some(hbase) = created() else { return };
    let (ours, stranger) = (Process::at(hbase.master), Process::at(hbase.master));
    let builder = LockManager::builder().store_uri(&uri(hbase.master)).client("hostile").timeout(LONG);
    let manager = builder.open().unwrap();
    let run = |ttl: Duration| {
        (0..hostile_cells(&[0; 40]).len()).all(|at| {
            let name = fresh(&format!("hostile{at}"));
            let raw = Raw::of(hbase, &name);
            let reader = ours.take(&name, Mode::Shared, HELD);
            let stored = members(&raw.read()).remove(0).1;
            let Hostile { what, qualifier, value, excludes } = hostile_cells(&stored).swap_remove(at);
            let put = Moment::now();
            raw.put(&qualifier, &value, ttl);
            // One process guesses from what it has seen before, and another one reads first.
            let refused: Vec<_> = [&ours, &stranger]
                .into_iter()
                .flat_map(|process| excludes.iter().map(move |mode| (process, *mode)))
                .map(|(process, mode)| (mode, process.ask(&name, (mode, ttl), soon()).0))
                .collect();
            let modes = ours.store.modes().unwrap();
            let shown = (
                modes.holds(&name, soon()).unwrap().len(),
                ours.store.holder(&name, soon()).unwrap().is_some(),
                ours.store.inspect(&name, soon()).unwrap().holder.is_some(),
                ours.store.list(&LockQuery::new().prefix(name.key()), None, 9, soon()).unwrap().locks.len(),
                modes.blocker(&name, excludes[0], soon()).unwrap().is_some(),
            );
            if Moment::now().since(put) >= ttl {
                return false;
            }
            for (mode, answer) in refused {
                assert!(matches!(answer, Ok(Acquired::Held(_))), "{mode} beside {what}: {answer:?}");
            }
            let is_intent = qualifier.first() == Some(&b'i');
            assert_eq!(shown, (2 - usize::from(is_intent), true, true, 1, true), "{what}");
            assert!(ours.renew(&name, &reader, HELD).is_some(), "{what}");
            ours.free(&name, &reader);
            eventually(what, || value_is_gone(&raw, &qualifier));
            eventually("the lock is free", || {
                matches!(stranger.ask(&name, (Mode::Exclusive, HELD), soon()).0, Ok(Acquired::Granted(_)))
            });
            true
        })
    };
    assert!([5, 30, 120].into_iter().any(|ttl| run(Duration::from_secs(ttl))), "a case took two minutes");
    let found = manager.diagnose().unwrap();
    let conditions = found.iter().find(|it| it.topic == "conditions").expect("not checked");
    assert_eq!(conditions.severity, Severity::Ok, "{found:?}");
}

fn value_is_gone(raw: &Raw, qualifier: &[u8]) -> bool {
    value(&raw.read(), qualifier).is_empty()
}

/// The step down would be refused each time.
#[test]
fn a_hold_steps_down_beside_no_cell_that_is_not_known_and_stays_as_it_was() {
    let Some(hbase) = created() else { return };
    let (name, ours) = (fresh("hostile-down"), Process::at(hbase.master));
    let writer = ours.take(&name, Mode::Exclusive, HELD);
    let raw = Raw::of(hbase, &name);
    raw.put(b"x", b"\x01", HELD);
    let answer = ours.convert(&name, &writer, (Mode::Exclusive, Mode::Shared), soon()).0.unwrap();
    assert!(matches!(answer, Converted::Held(_)), "{answer:?}");
    assert!(ours.renew(&name, &writer, HELD).is_some());
    raw.put(b"x", b"", HELD);
    let reader = ours.converted(&name, &writer, (Mode::Exclusive, Mode::Shared));
    ours.free(&name, &reader);
}

/// Runs a case with short holds of a second, and then with longer ones if a flush came after their end: it then dropped
/// nothing that lasts longer.
#[track_caller]
fn in_time(mut case: impl FnMut(Duration) -> Option<()>) {
    let in_time = [1, 5, 20, 60].into_iter().any(|seconds| case(Duration::from_secs(seconds)).is_some());
    assert!(in_time, "a flush took longer than a minute");
}

/// Waits until what has lasted for so long since `began` has ended, and asserts that no hold which lasts longer is seen, except
/// so many.
#[track_caller]
fn nobody_comes_back(process: &Process, name: &LockName, (began, ttl): (Moment, Duration), holders: usize) {
    let over = began.after(ttl + Duration::from_secs(1));
    loop {
        let last = Moment::now() >= over;
        let held = process.store.modes().unwrap().holds(name, soon()).unwrap();
        let long = held.iter().filter(|hold| hold.holder.remaining.is_none_or(|left| left > ttl));
        assert!(long.count() <= holders, "seen again: {held:?}");
        if last {
            assert_eq!(held.len(), holders, "has not ended: {held:?}");
            return;
        }
        thread::sleep(ttl / 10);
    }
}

/// Beside another reader the number stays, so a record that is seen again would be a hold.
#[test]
fn a_reader_that_was_released_does_not_come_back_after_a_shorter_one_and_a_flush() {
    let Some(hbase) = created() else { return };
    let mut peer = Peer::start(hbase);
    for last in Mode::OF_LOCKS {
        in_time(|ttl| {
            let (name, ours, theirs) = (fresh("ghost"), Process::at(hbase.master), Process::at(hbase.master));
            let row = HbaseStore::lock_row(&name);
            let keeper = (last != Mode::Exclusive).then(|| theirs.take(&name, Mode::Shared, HELD));
            let long = ours.take(&name, Mode::Shared, HELD);
            peer.flushes(TABLE, &row);
            ours.free(&name, &long);
            // The process would use the place again that it has left, if the short record could cover it.
            let began = Moment::now();
            let short = ours.take(&name, last, ttl);
            if keeper.is_some() {
                assert_eq!(number(&short), number(&long));
                let _ = ours.release(&name, &short.owner_record);
            }
            peer.flushes(TABLE, &row);
            (Moment::now().since(began) < ttl).then_some(())?;
            nobody_comes_back(&ours, &name, (began, ttl), usize::from(keeper.is_some()));
            assert_eq!(ours.renew(&name, &long, HELD), None);
            if let Some(keeper) = keeper {
                theirs.free(&name, &keeper);
            }
            let next = ours.take(&name, Mode::Exclusive, HELD);
            assert!(number(&next) > number(&short));
            ours.free(&name, &next);
            Some(())
        });
    }
}

/// The base below is that of an earlier number.
#[test]
fn a_base_that_a_flush_brings_back_holds_nobody_out() {
    let Some(hbase) = created() else { return };
    let mut peer = Peer::start(hbase);
    in_time(|ttl| {
        let (name, ours) = (fresh("old-base"), Process::at(hbase.master));
        let row = HbaseStore::lock_row(&name);
        let long = ours.take(&name, Mode::Shared, HELD);
        peer.flushes(TABLE, &row);
        ours.free(&name, &long);
        // Its process dies.
        let began = Moment::now();
        let short = ours.take(&name, Mode::Shared, ttl);
        peer.flushes(TABLE, &row);
        (Moment::now().since(began) < ttl).then_some(())?;
        nobody_comes_back(&ours, &name, (began, ttl), 0);
        let seen = Raw::of(hbase, &name).read();
        println!("the record that stands is {} bytes long", value(&seen, LOCK).len());
        let next = Process::at(hbase.master).take(&name, Mode::Update, HELD);
        assert!(number(&next) > number(&short));
        Some(())
    });
}

#[test]
fn a_flush_drops_no_base_that_a_hold_needs() {
    let Some(hbase) = created() else { return };
    let mut peer = Peer::start(hbase);
    let (name, ours, theirs) = (fresh("kept-base"), Process::at(hbase.master), Process::at(hbase.master));
    let row = HbaseStore::lock_row(&name);
    let long = ours.take(&name, Mode::Shared, HELD);
    for _ in 0..3 {
        peer.flushes(TABLE, &row);
        let second = Duration::from_secs(1);
        let began = Moment::now();
        let short = theirs.take(&name, Mode::Shared, second);
        let _ = theirs.renew(&name, &short, second);
        peer.flushes(TABLE, &row);
        thread::sleep(began.after(2 * second).since(Moment::now()));
        assert_base(&Raw::of(hbase, &name).read());
        theirs.refused(&name, Mode::Exclusive);
    }
    assert!(ours.renew(&name, &long, HELD).is_some());
    ours.free(&name, &long);
    theirs.assert_free(&name);
}

#[test]
fn a_lock_has_256_holders_and_the_next_one_is_refused_as_held() {
    const THREADS: usize = 8;
    let Some(hbase) = created() else { return };
    let (name, ours) = (fresh("many"), Process::at(hbase.master));
    let join = || {
        let asked = Instant::now();
        let grant = ours.take(&name, Mode::Shared, HELD);
        (grant, asked.elapsed())
    };
    let mut grants: Vec<Grant> = thread::scope(|scope| {
        let joining: Vec<_> = (0..THREADS)
            .map(|thread| {
                let work = move || (0..250 / THREADS).map(|_| join().0).collect::<Vec<_>>();
                thread::Builder::new().name(format!("dlm-test-{thread}")).spawn_scoped(scope, work).unwrap()
            })
            .collect();
        joining.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    while grants.len() < 250 {
        grants.push(join().0);
    }
    let mut times: Vec<_> = (0..100)
        .map(|_| {
            let (grant, took) = join();
            ours.free(&name, &grant);
            took
        })
        .collect();
    times.sort();
    println!("a join beside 250 readers: p50 {:?}, p99 {:?}", times[50], times[98]);
    assert!(times[98] < LONG / 10, "{times:?}");
    let updater = Process::at(hbase.master);
    let update = updater.take(&name, Mode::Update, HELD);
    while grants.len() < 254 {
        grants.push(join().0);
    }
    // It moves the base, so the first guess of the updater is wrong, and it needs no place.
    grants.push(ours.take(&name, Mode::Shared, 2 * HELD));
    grants.push(updater.converted(&name, &update, (Mode::Update, Mode::Shared)));
    for process in [&ours, &Process::at(hbase.master)] {
        assert_eq!(process.refused(&name, Mode::Shared).mode, Mode::Shared);
        assert_eq!(process.refused(&name, Mode::Update).mode, Mode::Shared);
    }
    let row = Raw::of(hbase, &name).read();
    assert_base(&row);
    assert_eq!(members(&row).len(), 256);
    assert!(grants.iter().all(|grant| number(grant) == number(&grants[0])));
    for grant in &grants[1..] {
        ours.free(&name, grant);
    }
    ours.refused(&name, Mode::Exclusive);
    ours.free(&name, &grants[0]);
    ours.assert_free(&name);
}

/// Readers of one process that call at the same time.
const READERS: usize = 8;

impl Lossy {
    /// Calls in several threads: in one, and in the others while the request of that one is under way. Then the request that
    /// follows meets the fault. Returns the answers, and the requests.
    fn at_once<T: Send>(
        &self,
        fault: Option<&Fault>,
        call: impl Fn(usize) -> T + Sync,
    ) -> (Vec<T>, Vec<String>) {
        let (gate, call, hits) = (Arc::new(Gate::default()), &call, self.proxy.hits());
        self.proxy.next("Multi", Fault::Keep(Arc::clone(&gate)));
        sent(&self.proxy, || {
            thread::scope(|scope| {
                let first = scope.spawn(move || call(0));
                eventually("the first request is under way", || self.proxy.hits() > hits);
                let others: Vec<_> = (1..READERS).map(|at| scope.spawn(move || call(at))).collect();
                // They gather behind it. On a busy machine some come later.
                thread::sleep(Duration::from_millis(300));
                fault.into_iter().for_each(|fault| self.proxy.next("Multi", fault.clone()));
                gate.open();
                [first].into_iter().chain(others).map(|thread| thread.join().unwrap()).collect()
            })
        })
    }

    /// Asserts that the row has the holds of all readers, each in a place of its own.
    #[track_caller]
    fn assert_readers(&self, hbase: &Hbase, grants: &[Grant]) {
        let row = Raw::of(hbase, &self.name).read();
        assert_base(&row);
        assert_eq!(members(&row).len(), READERS);
        assert!(grants.iter().all(|grant| number(grant) == fence(&row)));
        self.beside(Mode::Shared);
    }
}

/// The server makes the changes of one row one after another. So each of many readers would wait for those of all others.
#[test]
fn readers_of_one_process_that_come_or_go_at_the_same_time_do_so_in_one_request() {
    let Some(hbase) = created() else { return };
    let it = Lossy::new(hbase);
    for _ in 0..20 {
        let take = |_| it.ours.take(&it.name, Mode::Shared, HELD);
        let (grants, joins) = it.at_once(None, take);
        it.assert_readers(hbase, &grants);
        let (_, leaves) = it.at_once(None, |at| it.ours.free(&it.name, &grants[at]));
        it.theirs.assert_free(&it.name);
        // One for the first of them, and one for the others. The row was seen by another process meanwhile.
        if joins.len() <= 3 && leaves.len() == 2 {
            return;
        }
    }
    panic!("each has asked alone, in each of 20 rounds");
}

#[test]
fn readers_whose_common_request_loses_a_message_all_come_and_all_go() {
    let Some(hbase) = created() else { return };
    let it = Lossy::new(hbase);
    for fault in &LOSSES {
        let ask = |_| it.ours.ask(&it.name, (Mode::Shared, HELD), soon());
        let (answers, _) = it.at_once(Some(fault), ask);
        let grants: Vec<_> = answers
            .into_iter()
            .map(|(answer, doubtful)| {
                it.clean_up(&doubtful);
                match answer {
                    Ok(Acquired::Granted(grant)) => grant,
                    other => panic!("{other:?}"),
                }
            })
            .collect();
        it.assert_readers(hbase, &grants);
        it.at_once(Some(fault), |at| it.ours.free_or_gone(&it.name, &grants[at]));
        it.theirs.assert_free(&it.name);
    }
}

#[test]
fn a_grant_of_permits_takes_two_requests_and_its_renewal_and_release_one_each() {
    let Some(hbase) = created() else { return };
    let name = fresh("permits");
    let (proxy, ours) = counted(hbase, &name);
    let theirs = Process::at(hbase.master);
    let ask = |process: &Process| {
        let attempt = Attempt { name: &name, ttl: HELD, identity: &process.identity, by: soon() };
        let (terms, semaphores) = (PermitTerms { permits: 3, count: 1 }, process.store.semaphores().unwrap());
        match semaphores.acquire_permits(attempt, terms, &mut Vec::new()) {
            Ok(AcquiredPermits::Granted(mut grants)) => grants.remove(0).grant,
            other => panic!("{other:?}"),
        }
    };
    let renew = |grant: &Grant| sent(&proxy, || ours.renew(&name, grant, HELD));
    for _ in 0..3 {
        let (grant, requests) = sent(&proxy, || ask(&ours));
        assert_eq!(requests, ["Get", "Multi"], "grant");
        let (renewed, requests) = renew(&grant);
        assert!(renewed.is_some());
        assert_eq!(requests, ["Multi"], "renewal");
        // Another process has changed the row.
        let other = ask(&theirs);
        let (renewed, requests) = renew(&grant);
        assert!(renewed.is_some());
        assert_eq!(requests, ["Multi"; 2], "renewal after a grant of another process");
        // A longer one changes the base, which this process knows then.
        let mut record = grant.owner_record.clone();
        for _ in 0..2 {
            let longer = || ours.store.renew(&name, &record, 2 * HELD, soon()).unwrap();
            let (renewed, requests) = sent(&proxy, longer);
            assert_eq!(requests, ["Multi"], "longer renewal");
            record = renewed.expect("it is held");
        }
        let grant = Grant { owner_record: record, ..grant };
        assert_eq!(sent(&proxy, || ours.free(&name, &grant)).1, ["Multi"], "release");
        theirs.free(&name, &other);
    }
}

#[test]
fn permits_whose_requests_lose_a_message_are_granted_together_and_go_alone() {
    let Some(hbase) = created() else { return };
    let it = Lossy::new(hbase);
    let ask = |process: &Process, count| {
        let attempt = Attempt { name: &it.name, ttl: HELD, identity: &process.identity, by: soon() };
        let (terms, mut doubtful) = (PermitTerms { permits: 3, count }, Vec::new());
        let semaphores = process.store.semaphores().unwrap();
        let answer = semaphores.acquire_permits(attempt, terms, &mut doubtful);
        it.clean_up(&doubtful);
        match answer {
            Ok(AcquiredPermits::Granted(grants)) => grants,
            other => panic!("{other:?}"),
        }
    };
    for fault in &LOSSES {
        for beside in [0, 1] {
            let others: Vec<_> = (0..beside).flat_map(|_| ask(&it.theirs, 1)).collect();
            let grants = it.losing(fault, || ask(&it.ours, 2));
            let state = it.theirs.store.semaphores().unwrap().semaphore(&it.name, soon()).unwrap().unwrap();
            assert_eq!(state.held.len(), 2 + beside, "{fault:?}");
            assert!(it.losing(fault, || it.ours.renew(&it.name, &grants[0].grant, HELD)).is_some());
            it.losing(fault, || it.ours.free_or_gone(&it.name, &grants[0].grant));
            it.ours.free(&it.name, &grants[1].grant);
            others.iter().for_each(|other| it.theirs.free(&it.name, &other.grant));
            it.theirs.assert_free(&it.name);
        }
    }
}

/// A row would fill with cells of places that were used once, and every read of it reads them all.
#[test]
fn a_process_takes_places_that_others_have_left_also_if_it_does_not_read_the_row_first() {
    let Some(hbase) = created() else { return };
    let name = fresh("left");
    let [theirs, ours] = [(); 2].map(|()| Process::at(hbase.master));
    let places = |row: &RowCells| -> Vec<_> {
        row.iter().map(|(column, _)| column.qualifier().to_vec()).filter(|it| it[0] == b's').collect()
    };
    let take = |process: &Process, count: usize| -> Vec<_> {
        (0..count).map(|_| process.take(&name, Mode::Shared, HELD)).collect()
    };
    take(&theirs, 40).iter().for_each(|grant| theirs.free(&name, grant));
    let raw = Raw::of(hbase, &name);
    let left = places(&raw.read());
    assert!(left.len() == 40, "{}", left.len());
    // Its first call reads the row, and its next ones guess. It leaves 16 places, which others may choose at the same time.
    let grants = take(&ours, 20);
    assert_eq!(places(&raw.read()), left);
    grants.iter().for_each(|grant| ours.free(&name, grant));
    theirs.assert_free(&name);
}

/// One whose hold is over does not keep the others from leaving.
#[test]
fn of_readers_that_go_in_one_request_one_may_be_over() {
    let Some(hbase) = created() else { return };
    let it = Lossy::new(hbase);
    let grants: Vec<_> = (0..READERS).map(|_| it.ours.take(&it.name, Mode::Shared, HELD)).collect();
    it.theirs.free(&it.name, &grants[READERS / 2]);
    let (released, requests) = it.at_once(None, |at| it.ours.release(&it.name, &grants[at].owner_record));
    for (at, released) in released.into_iter().enumerate() {
        assert_eq!(released == Released::Freed, at != READERS / 2, "{at}: {released:?}");
    }
    // The others need not read the row to see that theirs are not over.
    let reads = requests.iter().filter(|it| *it == "Get").count();
    assert!(reads <= 1, "{requests:?}");
    it.theirs.assert_free(&it.name);
}

/// A lock that two processes see. One reaches the server through a proxy.
struct Lossy {
    proxy: Proxy,
    ours: Process,
    theirs: Process,
    name: LockName,
}

impl Lossy {
    fn new(hbase: &Hbase) -> Lossy {
        let name = fresh("losses");
        let (proxy, ours) = counted(hbase, &name);
        Lossy { proxy, ours, theirs: Process::at(hbase.master), name }
    }

    /// Makes a call of which one message is lost.
    #[track_caller]
    fn losing<T>(&self, fault: &Fault, call: impl FnOnce() -> T) -> T {
        let hits = self.proxy.hits();
        self.proxy.next("Multi", fault.clone());
        let answer = call();
        assert_eq!(self.proxy.hits(), hits + 1, "nothing was lost");
        answer
    }

    /// Releases what may be left of an attempt, as the background threads do.
    #[track_caller]
    fn clean_up(&self, doubtful: &[OwnerRecord]) {
        for record in doubtful {
            let released = self.ours.release(&self.name, record);
            assert_ne!(released, Released::Gone);
        }
    }

    #[track_caller]
    fn joins(&self, fault: &Fault, mode: Mode) -> Grant {
        let (answer, doubtful) = self.losing(fault, || self.ours.ask(&self.name, (mode, HELD), soon()));
        self.clean_up(&doubtful);
        match answer {
            Ok(Acquired::Granted(grant)) => grant,
            other => panic!("{mode}: {other:?}"),
        }
    }

    #[track_caller]
    fn changes(&self, fault: &Fault, grant: &Grant, step: (Mode, Mode)) -> Grant {
        let (answer, doubtful) = self.losing(fault, || self.ours.convert(&self.name, grant, step, soon()));
        assert!(doubtful.is_empty());
        match answer {
            Ok(Converted::Granted(changed)) => {
                assert_eq!(self.ours.renew(&self.name, grant, HELD), None, "the earlier record holds too");
                changed
            }
            other => panic!("{step:?}: {other:?}"),
        }
    }

    /// Asserts who is let in beside our hold.
    #[track_caller]
    fn beside(&self, held: Mode) {
        for mode in Mode::OF_LOCKS {
            if held.is_compatible_with(mode) {
                let grant = self.theirs.take(&self.name, mode, HELD);
                self.theirs.free(&self.name, &grant);
            } else {
                self.theirs.refused(&self.name, mode);
            }
        }
    }
}

#[test]
fn each_change_of_which_one_message_is_lost_is_made_once_and_leaves_nothing_behind() {
    let Some(hbase) = created() else { return };
    let it = Lossy::new(hbase);
    let mut last = 0;
    for fault in &LOSSES {
        for mode in [Mode::Shared, Mode::Update] {
            // First as the first hold, then beside a reader.
            let first = it.joins(fault, mode);
            assert!(number(&first) > last, "{mode}");
            it.beside(mode);
            it.losing(fault, || it.ours.free_or_gone(&it.name, &first));
            let reader = it.theirs.take(&it.name, Mode::Shared, HELD);
            let grant = it.joins(fault, mode);
            assert_eq!(number(&grant), number(&reader));
            it.beside(mode);
            assert!(it.losing(fault, || it.ours.renew(&it.name, &grant, HELD)).is_some(), "{mode}");
            let renewed = it.losing(fault, || it.ours.renew(&it.name, &grant, 2 * HELD)).unwrap();
            assert_base(&Raw::of(hbase, &it.name).read());
            let grant = Grant { owner_record: renewed, ..grant };
            it.beside(mode);
            it.losing(fault, || it.ours.free_or_gone(&it.name, &grant));
            assert!(it.theirs.renew(&it.name, &reader, HELD).is_some());
            it.theirs.free(&it.name, &reader);
            it.theirs.assert_free(&it.name);
            last = number(&grant);
        }
        let update = it.joins(fault, Mode::Update);
        let writer = it.changes(fault, &update, (Mode::Update, Mode::Exclusive));
        assert!(number(&writer) > number(&update) && writer.fence.is_some());
        it.beside(Mode::Exclusive);
        let update = it.changes(fault, &writer, (Mode::Exclusive, Mode::Update));
        assert!(number(&update) > number(&writer) && update.epoch.is_some());
        it.beside(Mode::Update);
        let shared = it.changes(fault, &update, (Mode::Update, Mode::Shared));
        assert_eq!(number(&shared), number(&update));
        it.beside(Mode::Shared);
        it.losing(fault, || it.ours.free_or_gone(&it.name, &shared));
        it.theirs.assert_free(&it.name);
        let writer = it.ours.take(&it.name, Mode::Exclusive, HELD);
        let shared = it.changes(fault, &writer, (Mode::Exclusive, Mode::Shared));
        it.beside(Mode::Shared);
        it.ours.free(&it.name, &shared);
        it.theirs.assert_free(&it.name);
        last = number(&shared);
    }
}

impl Process {
    /// Releases a hold. If a reply was lost, it cannot be told from one that had ended.
    #[track_caller]
    fn free_or_gone(&self, name: &LockName, grant: &Grant) {
        let released = self.release(name, &grant.owner_record);
        assert!(matches!(released, Released::Freed | Released::Gone), "{released:?}");
    }
}

#[test]
fn an_intent_of_which_a_message_is_lost_is_announced_and_withdrawn() {
    let Some(hbase) = created() else { return };
    let it = Lossy::new(hbase);
    let modes = it.ours.store.modes().unwrap();
    let reader = it.theirs.take(&it.name, Mode::Shared, HELD);
    for fault in &LOSSES {
        let id = IntentId::draw().unwrap();
        eventually("an intent keeps readers out", || {
            let intent = Intent { id, identity: &it.ours.identity, lasts: Duration::from_secs(3) };
            it.losing(fault, || modes.announce(&it.name, intent, soon())).unwrap();
            // It ends within 3 s, which a slow machine may need for the next call.
            matches!(it.theirs.ask(&it.name, (Mode::Update, HELD), soon()).0,
                Ok(Acquired::Held(holder)) if holder.is_waiting)
                || {
                    let record = it.theirs.take(&it.name, Mode::Shared, HELD);
                    it.theirs.free(&it.name, &record);
                    false
                }
        });
        it.losing(fault, || modes.withdraw(&it.name, id, soon())).unwrap();
        let next = it.theirs.take(&it.name, Mode::Shared, HELD);
        it.theirs.free(&it.name, &next);
    }
    it.theirs.free(&it.name, &reader);
    it.theirs.assert_free(&it.name);
}

/// The store does not answer until the time is over. Then nobody can say what was done, except by looking later.
#[test]
fn a_change_without_any_answer_is_in_doubt_and_excludes_others_until_it_is_released() {
    let Some(hbase) = created() else { return };
    let it = Lossy::new(hbase);
    let in_doubt = |what: &str, call: &dyn Fn(Deadline) -> (dlm::Result<()>, Vec<OwnerRecord>)| {
        for timeout in [SHORT, 4 * SHORT, 16 * SHORT] {
            // It connects again, and knows the row. Otherwise it would read first.
            it.ours.store.holder(&it.name, soon()).unwrap();
            it.proxy.next("Multi", Fault::LoseReply);
            it.proxy.later("*", 0, usize::MAX, Fault::LoseRequest);
            let (answer, doubtful) = call(Deadline::after(timeout));
            it.proxy.heal();
            let error = answer.expect_err(what);
            match error.code() {
                Code::InDoubt => return doubtful,
                // The machine was too slow to send it in this time.
                _ => assert!(error.is_retryable() && doubtful.is_empty(), "{what}: {}", error.chain()),
            }
        }
        panic!("{what}: nothing was sent in half a minute")
    };
    it.theirs.assert_free(&it.name);
    for mode in [Mode::Shared, Mode::Update] {
        let doubtful = in_doubt("join", &|by| {
            let (answer, doubtful) = it.ours.ask(&it.name, (mode, HELD), by);
            (answer.map(drop), doubtful)
        });
        assert!(!doubtful.is_empty());
        it.theirs.refused(&it.name, Mode::Exclusive);
        it.clean_up(&doubtful);
        it.theirs.assert_free(&it.name);
    }
    let steps = [
        (Mode::Exclusive, Mode::Shared),
        (Mode::Exclusive, Mode::Update),
        (Mode::Update, Mode::Exclusive),
        (Mode::Update, Mode::Shared),
    ];
    for step in steps {
        let held = it.ours.take(&it.name, step.0, HELD);
        let doubtful = in_doubt("conversion", &|by| {
            let (answer, doubtful) = it.ours.convert(&it.name, &held, step, by);
            (answer.map(drop), doubtful)
        });
        assert_eq!(doubtful.len(), 1, "{step:?}");
        it.beside(step.1);
        assert_eq!(it.ours.release(&it.name, &held.owner_record), Released::NotOurs);
        it.clean_up(&doubtful);
        it.theirs.assert_free(&it.name);
    }
}

/// The background threads of a process find what is left of a call in doubt.
#[test]
fn what_is_left_of_a_reader_in_doubt_is_released_in_the_background() {
    let Some(hbase) = created() else { return };
    let (proxy, client) = (rpc_proxy::before(hbase.master), fresh_table("background"));
    let manager = |address: SocketAddr, timeout| {
        let builder = LockManager::builder().store_uri(&uri(address)).client(&client).timeout(timeout);
        builder.ttl(HELD).wait(LONGEST).retry(Duration::from_millis(20)).open().unwrap()
    };
    let (ours, theirs) = (manager(proxy.address(), SHORT), manager(hbase.master, LONG));
    let lock = |manager: &LockManager| manager.lock("a", Level::Xdc).unwrap();
    let reader = lock(&ours).shared().acquire().unwrap();
    assert!(reader.release().unwrap());
    for mode in [Mode::Shared, Mode::Update] {
        let handle = if mode == Mode::Shared { lock(&ours).shared() } else { lock(&ours).update() };
        proxy.next("Multi", Fault::LoseReply);
        proxy.later("*", 0, usize::MAX, Fault::LoseRequest);
        let error = handle.try_acquire().expect_err("the reply was lost");
        assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
        proxy.heal();
        // It would last for half an hour.
        let writer = lock(&theirs).acquire().unwrap();
        assert!(writer.release().unwrap());
    }
}

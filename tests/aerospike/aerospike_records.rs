//! Records that refuse writes with a stale fence, on a real Aerospike: with lost, late and cut messages, stopped
//! holders and restarted servers.
#![cfg(feature = "aerospike")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use ::aerospike as raw;
use dlm::aerospike::{Bins, Record, Records, Value};
use dlm::{Code, Error, Lease, Level, Lock, LockManager, Mode, Moment};
use dlm_fixtures::aerospike::{
    DIRECTORY, IN_MEMORY, Place, aerospike_or_skip, own_cluster_or_skip, own_server_or_skip, wait_joined,
};
use dlm_fixtures::aerospike_proxy;
use dlm_fixtures::dialogue::{Dialogue, next_order, say};
use dlm_fixtures::role;
use dlm_testkit::{Fault, Gate, LONG, Proxy, left_to_the_long_run, until};

use crate::aerospike_raw::{client_policy, read_policy, write_policy};

const SET: &str = "records";

/// The records as two processes see them. One reaches the server through a proxy, the other one directly.
struct Stage {
    place: Place,
    proxy: Proxy,
    ours: Records,
    theirs: Records,
    locks: LockManager,
}

fn uri(place: &Place, address: SocketAddr) -> String {
    uri_within(place, address, LONG)
}

/// The same with another time-out of the calls.
fn uri_within(place: &Place, address: SocketAddr, timeout: Duration) -> String {
    format!("aerospike://{address}/{}/{SET}?timeout={}ms", place.namespace, timeout.as_millis())
}

fn stage() -> Option<Stage> {
    let place = aerospike_or_skip()?;
    let proxy = aerospike_proxy::before(place.address);
    let ours = Records::open(&uri(&place, proxy.address())).unwrap();
    let theirs = Records::open(&uri(&place, place.address)).unwrap();
    let locks = in_memory("records");
    Some(Stage { place, proxy, ours, theirs, locks })
}

/// Makes a manager of locks that only this test uses.
fn in_memory(client: &str) -> LockManager {
    let builder = LockManager::builder().store_uri("memory:").client(client).ttl(10 * LONG);
    builder.timeout(LONG).open().unwrap()
}

/// Returns a key that no other test uses, and that no earlier run has used.
fn fresh_key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    format!("{since}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Stage {
    /// Acquires and releases the lock, `N` times. Returns the leases. Each fence is higher than the one before.
    fn holders<const N: usize>(&self, lock: &str) -> [Lease; N] {
        let lock = self.locks.lock(lock, Level::Xdc).unwrap();
        [(); N].map(|()| {
            let lease = lock.try_acquire().unwrap();
            assert!(lease.release().unwrap());
            lease
        })
    }

    /// Reads the record. `None` if it does not exist.
    fn stored(&self, key: &str) -> Option<raw::Record> {
        let answer = raw_request(&self.place, key, async |client, key| {
            client.get(&read_policy(), key, raw::Bins::All).await
        });
        match answer {
            Ok(record) => Some(record),
            Err(error) => {
                let raw::ErrorKind::Server { rc, .. } = error.kind() else { panic!("{error}") };
                assert!(matches!(rc, raw::ResultCode::KeyNotFoundError), "{error}");
                None
            }
        }
    }

    /// Writes as programs without fences do.
    fn write(&self, key: &str, bins: &[(&str, raw::Value)]) {
        let bins: Vec<_> = bins.iter().map(|(name, value)| raw::Bin::new(*name, value.clone())).collect();
        raw_request(&self.place, key, async |client, key| {
            let policy = raw::WritePolicy { expiration: raw::Expiration::Never, ..write_policy() };
            client.put(&policy, key, &bins).await.unwrap();
        });
    }

    fn delete(&self, key: &str) {
        raw_request(&self.place, key, async |client, key| {
            assert!(client.delete(&write_policy(), key).await.unwrap(), "no record");
        });
    }
}

fn raw_request<T>(place: &Place, key: &str, request: impl AsyncFnOnce(&raw::Client, &raw::Key) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = raw::Client::new(&client_policy(), &place.address.to_string()).await.unwrap();
        let key = raw::Key::new(place.namespace.as_str(), SET, key.into()).unwrap();
        request(&client, &key).await
    })
}

#[track_caller]
fn code<T: std::fmt::Debug>(answer: dlm::Result<T>) -> Code {
    answer.expect_err("this must fail").code()
}

/// Makes the bin `sum` with this number.
fn sum(number: i64) -> Bins {
    Bins::new().with("sum", number)
}

fn stored_sum(record: &Record) -> Option<i64> {
    record.get().unwrap().and_then(|bins| bins.int("sum"))
}

// ---- What a record contains --------------------------------------------------------------------

#[test]
fn what_is_put_is_read_back_and_lies_in_the_bins_that_are_documented() {
    let Some(stage) = stage() else { return };
    let ([lease], key) = (stage.holders("a"), fresh_key());
    let record = lease.record(&stage.theirs, &key).unwrap();
    assert_eq!((record.get().unwrap(), Some(record.fence())), (None, lease.fence()));
    let bins = Bins::new().with("sum", -5).with("name", "\u{e9}").with("raw", vec![0, 255]);
    record.put(&bins).unwrap();
    assert_eq!(record.get().unwrap(), Some(bins.clone()));
    record.put(&Bins::new().with("sum", i64::MAX)).unwrap();
    let bins = bins.with("sum", i64::MAX);
    assert_eq!(record.get().unwrap(), Some(bins), "other bins stay");

    let stored = stage.stored(&key).unwrap();
    assert_eq!(stored.bins["_fence"], raw::Value::Int(lease.fence().unwrap().0 as i64));
    assert_eq!(stored.bins["_fence_of"], raw::Value::String(lease.name().key().into()));
    let raw::Value::Blob(marks) = &stored.bins["_fence_ops"] else { panic!("{stored:?}") };
    assert_eq!((marks.len(), stored.bins.len()), (2 * 16, 6));
    assert_eq!(stored.time_to_live(), None, "the record expires");

    // A list is reported, but its value is not.
    let deep = (0..12).fold(raw::Value::from(1), |inner, _| raw::Value::List(vec![inner]));
    stage.write(&key, &[("deep", deep), ("list", raw::Value::List(vec![1.into()]))]);
    assert_eq!(record.get().unwrap().unwrap().value("deep"), Some(&Value::Other));
    assert_eq!(record.get().unwrap().unwrap().value("list"), Some(&Value::Other));
}

#[test]
fn bins_may_have_other_names_and_a_record_of_an_application_keeps_its_own() {
    let Some(stage) = stage() else { return };
    let ([stale, lease], key) = (stage.holders("a"), fresh_key());
    // The application already has a bin with this name.
    stage.write(&key, &[("_fence", "of wood".into()), ("sum", 3.into())]);
    for holder in [&stale, &lease] {
        let error = holder.record(&stage.theirs, &key).unwrap().put(&sum(1)).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("\"_fence\"") && error.to_string().contains(&key), "{error}");
    }
    let named = |records: &Records| {
        records.clone().fence_bin("f").unwrap().lock_bin("f_of").unwrap().marks_bin("f_ops").unwrap()
    };
    let record = lease.record(&named(&stage.theirs), &key).unwrap();
    assert_eq!(record.add("sum", 4).unwrap(), 7);
    assert_eq!(record.get().unwrap().unwrap().text("_fence"), Some("of wood"));
    let mut names: Vec<_> = stage.stored(&key).unwrap().bins.into_keys().collect();
    names.sort();
    assert_eq!(names, ["_fence", "f", "f_of", "f_ops", "sum"]);
    let late = stale.record(&named(&stage.theirs), &key).unwrap();
    assert_eq!(code(late.put(&sum(1))), Code::StaleFence);

    for name in ["", "sixteen-bytes---", "_fence_of", "_fence_ops"] {
        assert_eq!(code(stage.theirs.clone().fence_bin(name)), Code::InvalidArgument, "{name:?}");
    }
    assert_eq!(code(stage.theirs.clone().lock_bin("_fence")), Code::InvalidArgument);
    assert_eq!(code(stage.theirs.clone().marks_bin("_fence_of")), Code::InvalidArgument);
}

/// Otherwise the record would seem to have no fence.
#[test]
fn a_record_that_lost_one_of_the_bins_is_an_error_and_not_a_new_one() {
    let Some(stage) = stage() else { return };
    let [stale, lease] = stage.holders("a");
    for bin in ["_fence", "_fence_of", "_fence_ops"] {
        let key = fresh_key();
        let record = lease.record(&stage.theirs, &key).unwrap();
        record.put(&sum(1)).unwrap();
        stage.write(&key, &[(bin, raw::Value::Nil)]);
        for holder in [&lease, &stale] {
            let again = holder.record(&stage.theirs, &key).unwrap();
            let error = again.put(&sum(2)).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.to_string().contains(&format!("\"{bin}\"")), "{error}");
        }
        assert_eq!(code(record.put(&sum(2))), Code::InvalidArgument, "with the remembered state");
        assert_eq!(stored_sum(&record), Some(1));
    }
}

#[test]
fn bad_input_is_refused_before_anything_is_sent() {
    let Some(stage) = stage() else { return };
    let ([lease], key) = (stage.holders("a"), fresh_key());
    let records = stage.ours.clone().max_value(20).unwrap();
    let record = lease.record(&records, &key).unwrap();
    let refused = |answer: dlm::Result<()>, said: &str| {
        let error = answer.expect_err(said);
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains(said), "{error}");
    };
    refused(record.put(&Bins::new()), "at least one");
    refused(record.put(&Bins::new().with("sum", "x".repeat(18))), "at most 20");
    refused(record.put(&Bins::new().with("sixteen-bytes---", 1)), "1 to 15 bytes");
    refused(record.put(&Bins::new().with("sum", Value::Other)), "an integer, a string or a blob");
    refused(record.put_for(&sum(1), Duration::ZERO), "1ms to 365 days");
    refused(record.delete_bins(&[]), "at least one");
    for name in ["_fence", "_fence_of", "_fence_ops"] {
        refused(record.put(&Bins::new().with(name, 1)), "of the fence");
        refused(record.add(name, 1).map(drop), "of the fence");
        refused(record.delete_bins(&["sum", name]), "of the fence");
    }
    for max in [0, 8 * 1024 * 1024 + 1] {
        refused(stage.ours.clone().max_value(max).map(drop), "1 to 8388608 bytes");
    }
    for key in ["", &"k".repeat(1025)] {
        refused(lease.record(&stage.ours, key).map(drop), "1 to 1024 bytes");
    }
    assert_eq!(stage.proxy.connections(), 0);
    record.put(&Bins::new().with("sum", "x".repeat(17))).unwrap();
    // The server also has a limit, for the whole record.
    let large = stage.theirs.clone().max_value(8 * 1024 * 1024).unwrap();
    let answer = lease.record(&large, &key).unwrap().put(&Bins::new().with("a", vec![0; 7 << 20]));
    refused(answer, "max-record-size");
}

/// Checks the costs that docs/aerospike.md states.
#[test]
fn a_change_of_a_record_that_is_known_is_one_request() {
    let Some(stage) = stage() else { return };
    let ([stale, lease], key) = (stage.holders("a"), fresh_key());
    let [late, record] = [&stale, &lease].map(|lease| lease.record(&stage.ours, &key).unwrap());
    let mut seen = 0;
    let mut requests = || {
        let about_records = |method: &String| method != "info";
        let all: Vec<_> = stage.proxy.requests().into_iter().filter(about_records).collect();
        let new = all[seen..].join(" ");
        seen = all.len();
        new
    };
    late.put(&sum(1)).unwrap();
    assert_eq!(requests(), "get create");
    record.put(&sum(1)).unwrap();
    assert_eq!(requests(), "get change");
    for (change, expected) in [(0, "change"), (2, "change"), (3, "change"), (4, "get change"), (5, "change")]
    {
        CHANGES[change].1(&record).unwrap();
        assert_eq!(requests(), expected, "{}", CHANGES[change].0);
    }
    // The refused change, and a read that shows why.
    for _ in 0..2 {
        assert_eq!(code(late.put(&sum(2))), Code::StaleFence);
        assert_eq!(requests(), "change get");
    }
    record.put(&sum(2)).unwrap();
    assert_eq!(requests(), "change");
}

#[test]
fn the_address_of_records_is_checked_and_unknown_options_are_refused() {
    let open = |rest: &str| Records::open(&format!("aerospike://h:3000/{rest}"));
    for good in [
        "n/s",
        "n/s?timeout=3s&connect_timeout=2s&pool=3&services_alternate=on&strong_consistency=require",
        "n/s?user=u&password=p&plain_credentials=allow&auth=external",
        &format!("n/{}", "s".repeat(63)),
    ] {
        open(good).unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    for (bad, said) in [
        ("n/", "the set is missing"),
        (&format!("n/{}", "s".repeat(64)), "1 to 63 bytes"),
        ("n/a:b", "1 to 63 bytes"),
        ("/s", "the namespace is missing"),
        ("n/DC%23dc1%23tests", "locks and latches"),
        ("n/XDC%23tests", "locks and latches"),
        ("n/D_WAIT%23tests", "locks and latches"),
        ("n/s?fence=off", "one of timeout, strong_consistency, pool"),
        ("n/s?client=a", "one of timeout"),
        ("n/s?timeout=1ms", "10ms to 10m"),
        ("n/s?user=u&password=SECRET", "plain_credentials"),
    ] {
        let error = open(bad).expect_err(bad);
        assert_eq!(error.code(), Code::InvalidArgument, "{bad}");
        assert!(error.to_string().contains(said) && !error.to_string().contains("SECRET"), "{error}");
    }
    let other = Records::open("hbase://h:1/t").unwrap_err();
    assert!(other.to_string().contains("aerospike://host:3000"), "{other}");
    let shown = format!("{:?}", open("n/s?user=u&password=SECRET&plain_credentials=allow").unwrap());
    assert!(shown.contains("aerospike://h:3000/n/s") && !shown.contains("SECRET"), "{shown}");
}

#[test]
fn a_lease_without_a_fence_has_no_records() {
    let Some(place) = aerospike_or_skip() else { return };
    let manager =
        LockManager::open(&format!("{}?client=unfenced&fence=off&timeout=60s", place.uri())).unwrap();
    let lease = manager.lock(&fresh_key(), Level::Xdc).unwrap().try_acquire().unwrap();
    let records = Records::open(&uri(&place, place.address)).unwrap();
    let error = lease.record(&records, "a").unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.to_string().contains("fence=off"), "{error}");
    let error = lease.guard().unwrap_err();
    assert!(error.code() == Code::InvalidArgument && error.to_string().contains("fence=off"), "{error}");
}

// ---- Readers -----------------------------------------------------------------------------------

#[test]
fn readers_of_one_epoch_read_a_record_and_one_from_before_a_writer_does_not() {
    let Some(stage) = stage() else { return };
    let (records, key) = (&stage.theirs, fresh_key());
    let manager = LockManager::open("memory:?client=readers&ttl=1h").unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let [one, other] = [(); 2].map(|()| lock.shared().acquire().unwrap());
    assert_eq!(records.get_in(&one, &key).unwrap(), None, "there is no such record");
    stage.write(&key, &[("sum", 1.into())]);
    assert_eq!(records.get_in(&one, &key).unwrap(), Some(sum(1)), "no fence in the record");
    one.release().unwrap();
    let early = lock.shared().acquire_with_ttl(Duration::from_millis(50)).unwrap();
    assert_eq!(early.epoch(), other.epoch());
    other.release().unwrap();
    let writer = lock.acquire().unwrap();
    assert_eq!(code(records.get_in(&early, &key)), Code::LeaseLost, "it is over, and nobody wrote");
    writer.record(records, &key).unwrap().put(&sum(2)).unwrap();
    assert_eq!(records.get_in(&writer, &key).unwrap(), Some(sum(2)), "its own fence");
    let error = records.get_in(&early, &key).unwrap_err();
    assert_eq!(error.code(), Code::StaleFence, "{}", error.chain());
    assert!(error.to_string().contains(&key) && error.to_string().contains("epoch"), "{error}");
    let reader = writer.downgrade(Mode::Shared).unwrap();
    assert_eq!(records.get_in(&reader, &key).unwrap(), Some(sum(2)));
    // A reader writes nothing with its epoch.
    assert_eq!(code(reader.record(records, &key)), Code::InvalidArgument);
    let another = manager.lock("b", Level::Xdc).unwrap().shared().acquire().unwrap();
    let error = records.get_in(&another, &key).unwrap_err();
    assert!(
        error.code() == Code::InvalidArgument && error.to_string().contains(lock.name().key()),
        "{error}"
    );
    assert_eq!(code(records.get_in(&reader, "")), Code::InvalidArgument);
}

// ---- Fences ------------------------------------------------------------------------------------

type Make = fn(&Record) -> dlm::Result<()>;

/// All kinds of changes, with their names.
const CHANGES: [(&str, Make); 6] = [
    ("put", |record| record.put(&sum(-1))),
    ("put for", |record| record.put_for(&sum(-1), LONG)),
    ("add", |record| record.add("sum", -1).map(drop)),
    ("delete bins", |record| record.delete_bins(&["sum"])),
    ("clear", Record::clear),
    ("raise fence", Record::raise_fence),
];

#[test]
fn each_change_of_a_stale_holder_is_refused_and_says_by_which_fence() {
    let Some(stage) = stage() else { return };
    for (what, change) in CHANGES {
        for raised_only in [false, true] {
            let ([stale, next], key) = (stage.holders("a"), fresh_key());
            let [ours, theirs] = [&stale, &next].map(|lease| lease.record(&stage.theirs, &key).unwrap());
            ours.put(&sum(5)).unwrap();
            if raised_only {
                theirs.raise_fence().unwrap();
            } else {
                theirs.put(&sum(5)).unwrap();
            }
            let before = stage.stored(&key).unwrap();
            // With the remembered state, with the state after the refusal, and with no state.
            for record in [&ours, &ours, &stale.record(&stage.theirs, &key).unwrap()] {
                let error = change(record).expect_err(what);
                assert_eq!(error.code(), Code::StaleFence, "{what}: {}", error.chain());
                assert_eq!(error.stale_fence(), Some((stale.fence().unwrap(), next.fence().unwrap())));
                assert!(error.to_string().contains(&format!("record \"{key}\" of aerospike://")), "{error}");
            }
            let now = stage.stored(&key).unwrap();
            assert_eq!((now.bins, now.generation), (before.bins, before.generation), "{what}");
            theirs.put(&sum(6)).unwrap();
        }
    }
}

/// A server checks the condition of a write only if the record exists. It refuses no write that creates the record.
/// So the library sends every write as a create or as an update, never as both.
#[test]
fn a_server_does_not_look_at_the_condition_of_a_write_that_creates_the_record() {
    let Some(stage) = stage() else { return };
    let write = |key: &str, action| {
        raw_request(&stage.place, key, async |client, key| {
            let never =
                raw::expressions::eq(raw::expressions::int_bin("_fence"), raw::expressions::int_val(0));
            let base_policy =
                raw::BasePolicy { filter_expression: Some(never), ..write_policy().base_policy };
            let policy = raw::WritePolicy { base_policy, record_exists_action: action, ..write_policy() };
            client.put(&policy, key, &[raw::Bin::new("sum", 1.into())]).await
        })
    };
    let (key, other) = (fresh_key(), fresh_key());
    write(&key, raw::RecordExistsAction::Update).expect("the condition was checked");
    write(&key, raw::RecordExistsAction::Update).expect_err("the condition was not checked");
    write(&other, raw::RecordExistsAction::UpdateOnly).expect_err("a record was created");
    assert!(stage.stored(&other).is_none());
}

#[test]
fn a_stale_holder_makes_a_record_until_its_successor_has_raised_the_fence() {
    let Some(stage) = stage() else { return };
    for raised in [false, true] {
        let ([stale, next], key) = (stage.holders("a"), fresh_key());
        let [ours, theirs] = [&stale, &next].map(|lease| lease.record(&stage.theirs, &key).unwrap());
        if raised {
            theirs.raise_fence().unwrap();
            assert_eq!(theirs.get().unwrap(), None, "nothing but the fence");
        }
        let answer = ours.put(&sum(1));
        if raised {
            assert_eq!(code(answer), Code::StaleFence);
        } else {
            answer.expect("refused, but the server knows no higher fence");
            theirs.raise_fence().unwrap();
        }
        assert_eq!(code(ours.put(&sum(2))), Code::StaleFence);
        assert_eq!(stored_sum(&theirs), (!raised).then_some(1));
    }
}

#[test]
fn a_record_that_two_locks_guard_is_an_error_that_names_both() {
    let Some(stage) = stage() else { return };
    let ([one], [other, higher]) = (stage.holders("one"), stage.holders("other"));
    for (what, change) in CHANGES {
        // It does not matter which lock has the higher fence.
        for intruder in [&other, &higher] {
            let key = fresh_key();
            let record = one.record(&stage.theirs, &key).unwrap();
            record.put(&sum(5)).unwrap();
            let before = stage.stored(&key).unwrap();
            let error = change(&intruder.record(&stage.theirs, &key).unwrap()).expect_err(what);
            assert_eq!(error.code(), Code::InvalidArgument, "{what}: {}", error.chain());
            for told in ["\"XDC#records#one\"", "\"XDC#records#other\"", &format!("\"{key}\"")] {
                assert!(error.to_string().contains(told), "{told}: {error}");
            }
            assert_eq!(stage.stored(&key).unwrap().bins, before.bins, "{what}");
            record.put(&sum(6)).unwrap();
        }
    }
}

#[test]
fn clearing_and_deleting_leave_the_fence() {
    let Some(stage) = stage() else { return };
    let ([stale, lease], key) = (stage.holders("a"), fresh_key());
    let record = lease.record(&stage.theirs, &key).unwrap();
    record.put(&sum(1).with("a", "b").with("c", "d")).unwrap();
    record.delete_bins(&["sum", "missing"]).unwrap();
    assert_eq!(record.get().unwrap(), Some(Bins::new().with("a", "b").with("c", "d")));
    stage.write(&key, &[("unfenced", 1.into())]);
    record.clear().unwrap();
    assert_eq!(record.get().unwrap(), None);
    let mut names: Vec<_> = stage.stored(&key).unwrap().bins.into_keys().collect();
    names.sort();
    assert_eq!(names, ["_fence", "_fence_of", "_fence_ops"]);
    assert_eq!(code(stale.record(&stage.theirs, &key).unwrap().put(&sum(1))), Code::StaleFence);
    // The same for a record that does not exist.
    let (one, other) = (fresh_key(), fresh_key());
    lease.record(&stage.theirs, &one).unwrap().clear().unwrap();
    lease.record(&stage.theirs, &other).unwrap().delete_bins(&["a"]).unwrap();
    for key in [one, other] {
        assert_eq!(code(stale.record(&stage.theirs, &key).unwrap().put(&sum(1))), Code::StaleFence);
    }
}

#[test]
fn a_sum_is_an_integer_of_64_bits_or_an_error_that_changes_nothing() {
    let Some(stage) = stage() else { return };
    let ([lease], key) = (stage.holders("a"), fresh_key());
    let record = lease.record(&stage.theirs, &key).unwrap();
    assert_eq!(record.add("sum", -3).unwrap(), -3, "in a new record");
    assert_eq!((record.add("sum", 5).unwrap(), record.add("new", 1).unwrap()), (2, 1));
    record.put(&Bins::new().with("max", i64::MAX).with("min", i64::MIN).with("text", "1")).unwrap();
    stage.write(&key, &[("float", raw::Value::Float(1.5.into()))]);
    for (bin, by, said) in [
        ("max", 1, "64 bits"),
        ("max", i64::MAX, "64 bits"),
        ("min", -1, "64 bits"),
        ("min", i64::MIN, "64 bits"),
        ("text", 1, "a bin with an integer"),
        ("float", 1, "a bin with an integer"),
    ] {
        let before = stage.stored(&key).unwrap().bins;
        // With the remembered state, and with a read.
        for record in [&record, &lease.record(&stage.theirs, &key).unwrap()] {
            let error = record.add(bin, by).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{}", error.chain());
            assert!(error.to_string().contains(said), "{error}");
        }
        assert_eq!(stage.stored(&key).unwrap().bins, before, "{bin} {by}");
    }
    assert_eq!(record.add("max", i64::MIN).unwrap(), -1);
    assert_eq!(record.add("min", i64::MAX).unwrap(), -1);
    assert_eq!(record.add("max", 0).unwrap(), -1);
}

#[test]
fn a_ttl_is_of_the_whole_record_and_the_fence_goes_with_it() {
    let Some(stage) = stage() else { return };
    let ([stale, lease], key) = (stage.holders("a"), fresh_key());
    let record = lease.record(&stage.theirs, &key).unwrap();
    let left = || stage.stored(&key).unwrap().time_to_live();
    let asked = Moment::now();
    record.put_for(&sum(1), Duration::from_millis(999_001)).unwrap();
    let first = left().expect("it expires");
    let all = first + Moment::now().since(asked);
    assert!(all > Duration::from_secs(990) && first <= Duration::from_secs(1001), "{first:?} of {all:?}");
    record.add("sum", 1).unwrap();
    record.delete_bins(&["x"]).unwrap();
    record.raise_fence().unwrap();
    record.clear().unwrap();
    let then = left().expect("a change removed the expiry");
    let all = then + Moment::now().since(asked);
    assert!(then <= first && all > Duration::from_secs(900), "{then:?} of {all:?}");
    record.put(&sum(2)).unwrap();
    assert_eq!(left(), None, "the put kept the earlier TTL");
    // A record that another change without a TTL creates lasts for ever too.
    for change in [2, 3, 4, 5] {
        let key = fresh_key();
        CHANGES[change].1(&lease.record(&stage.theirs, &key).unwrap()).unwrap();
        assert_eq!(stage.stored(&key).unwrap().time_to_live(), None, "{}", CHANGES[change].0);
    }

    record.put_for(&sum(3), Duration::from_millis(1)).unwrap();
    until("it has expired", || record.get().unwrap().is_none());
    stale.record(&stage.theirs, &key).unwrap().put(&sum(4)).expect("the expired fence refuses it");
    record.add("sum", 1).expect("refused by a lower fence");
    assert_eq!(code(stale.record(&stage.theirs, &key).unwrap().put(&sum(5))), Code::StaleFence);
}

// ---- Lost, late and cut messages ---------------------------------------------------------------

/// The state of the record before a change.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Before {
    Absent,
    Plain,
    /// Written by the same lease, which remembers the state.
    Ours,
    /// Written by an earlier holder.
    Earlier,
}

const BEFORE: [Before; 4] = [Before::Absent, Before::Plain, Before::Ours, Before::Earlier];

impl Stage {
    /// Makes a record in this state. The returned handle uses the proxy.
    fn record(&self, before: Before) -> Record {
        let ([earlier, lease], key) = (self.holders("a"), fresh_key());
        let ours = lease.record(&self.ours, &key).unwrap();
        match before {
            Before::Absent => {}
            Before::Plain => self.write(&key, &[("sum", 10.into()), ("other", 1.into())]),
            Before::Ours => ours.put(&sum(10).with("other", 1)).unwrap(),
            Before::Earlier => {
                earlier.record(&self.theirs, &key).unwrap().put(&sum(10).with("other", 1)).unwrap();
            }
        }
        ours
    }

    /// Returns the proxy's name of the request that makes the change.
    fn request(before: Before) -> &'static str {
        if before == Before::Absent { "create" } else { "change" }
    }
}

fn losses() -> [Fault; 4] {
    // The shortest reply has 30 bytes: a protocol header of 8 bytes and a message header of 22 bytes.
    [Fault::LoseReply, Fault::LoseRequest, Fault::CutReply(0), Fault::CutReply(29)]
}

#[test]
fn a_change_of_which_a_message_is_lost_happens_once() {
    let Some(stage) = stage() else { return };
    let mut hits = 0;
    for before in BEFORE {
        let there = before != Before::Absent;
        for loss in losses() {
            for (what, change) in CHANGES {
                let context = format!("{what}, {before:?}, {loss:?}");
                let record = stage.record(before);
                stage.proxy.next(Stage::request(before), loss.clone());
                change(&record).unwrap_or_else(|error| panic!("{context}: {}", error.chain()));
                hits += 1;
                assert_eq!(stage.proxy.hits(), hits, "{context}");
                let expected = match what {
                    "put" | "put for" => Some(-1),
                    "add" => Some(if there { 9 } else { -1 }),
                    "delete bins" | "clear" => None,
                    _ => there.then_some(10),
                };
                assert_eq!(stored_sum(&record), expected, "{context}");
                // The change has left one mark.
                let raw::Value::Blob(marks) = &stage.stored(record.key()).unwrap().bins["_fence_ops"] else {
                    panic!("{context}")
                };
                let changes = 1 + usize::from(matches!(before, Before::Ours | Before::Earlier));
                assert_eq!(marks.len() / 16, changes, "{context}");
                record.put(&sum(77)).unwrap();
                assert_eq!(stored_sum(&record), Some(77), "{context}");
            }
        }
    }
}

/// The library then reads the sum from the record.
#[test]
fn a_sum_whose_reply_was_lost_is_told_all_the_same() {
    let Some(stage) = stage() else { return };
    for (before, expected) in [(Before::Absent, 4), (Before::Plain, 14), (Before::Ours, 14)] {
        for loss in losses() {
            let record = stage.record(before);
            stage.proxy.next(Stage::request(before), loss);
            assert_eq!(record.add("sum", 4).unwrap(), expected);
        }
    }
}

/// The request was sent again meanwhile, and other changes have followed. The late copy must not undo them.
#[test]
fn a_request_that_comes_late_changes_nothing_that_was_written_since() {
    let Some(stage) = stage() else { return };
    let mut late = 0;
    for before in BEFORE {
        for (what, change) in CHANGES {
            for others in [1, 12] {
                let record = stage.record(before);
                let gate = Arc::new(Gate::default());
                stage.proxy.next(Stage::request(before), Fault::KeepAndBreak(Arc::clone(&gate)));
                change(&record).unwrap_or_else(|error| panic!("{what}, {before:?}: {}", error.chain()));
                for number in 1..=others {
                    record.put(&sum(100 + number)).unwrap();
                }
                let stands = stage.stored(record.key()).unwrap();
                gate.open();
                late += 1;
                until("the late request is carried out", || stage.proxy.late() == late);
                let now = stage.stored(record.key()).unwrap();
                assert_eq!(
                    (now.bins, now.generation),
                    (stands.bins, stands.generation),
                    "{what}, {before:?}"
                );
            }
        }
    }
}

/// The marks are deleted with the record. A request that should change the record must not create it again.
#[test]
fn a_request_that_comes_late_does_not_bring_back_a_record_that_is_gone() {
    let Some(stage) = stage() else { return };
    let mut late = 0;
    for before in [Before::Plain, Before::Ours, Before::Earlier] {
        for (what, change) in CHANGES {
            let record = stage.record(before);
            let gate = Arc::new(Gate::default());
            stage.proxy.next("change", Fault::KeepAndBreak(Arc::clone(&gate)));
            change(&record).unwrap();
            stage.delete(record.key());
            gate.open();
            late += 1;
            until("the late request is carried out", || stage.proxy.late() == late);
            assert!(stage.stored(record.key()).is_none(), "{what}, {before:?}");
        }
    }
}

/// The sender received IN_DOUBT, and then writes something else.
#[test]
fn a_request_in_doubt_is_kept_from_overwriting_the_next_one() {
    let Some(stage) = stage() else { return };
    let short = uri_within(&stage.place, stage.proxy.address(), Duration::from_millis(500));
    let short = Records::open(&short).unwrap();
    for (what, change) in CHANGES {
        let [lease] = stage.holders("a");
        let (gate, mut delayed) = (Arc::new(Gate::default()), None);
        // On a busy machine the short time may be over before a request is sent. Then another record is tried.
        until("a request is delayed", || {
            let key = fresh_key();
            let record = lease.record(&short, &key).unwrap();
            if !is_put_in_time(&record, 10) {
                return false;
            }
            let hits = stage.proxy.hits();
            // Delays all requests about this record, and breaks their connections.
            stage.proxy.naming(key_digest(&stage, &key).as_slice(), Fault::KeepAndBreak(Arc::clone(&gate)));
            let error = change(&record).expect_err(what);
            stage.proxy.heal();
            let is_delayed = stage.proxy.hits() > hits;
            assert!(
                matches!(error.code(), Code::InDoubt | Code::ConnectionError | Code::RetriesExhausted),
                "{what}: {}",
                error.chain()
            );
            if what != "clear" && is_delayed {
                assert_eq!(error.code(), Code::InDoubt, "{what}: {}", error.chain());
            }
            delayed = is_delayed.then_some((key, record));
            is_delayed
        });
        let (key, record) = delayed.expect("a request is delayed");
        let direct = lease.record(&stage.theirs, &key).unwrap();
        direct.put(&sum(20)).unwrap();
        gate.open();
        until("the late requests are carried out", || stage.proxy.late() == stage.proxy.hits());
        let settled = stage.stored(&key).unwrap();
        assert_eq!(settled.bins["sum"], raw::Value::Int(20), "{what}");
        until("a put is answered in time", || is_put_in_time(&record, 30));
        assert_eq!(stored_sum(&direct), Some(30));
    }
}

/// Puts this sum. Returns `false` if the time-out was too short.
#[track_caller]
fn is_put_in_time(record: &Record, number: i64) -> bool {
    let answer = record.put(&sum(number));
    assert!(!answer.as_ref().is_err_and(|error| !error.is_retryable()), "{answer:?}");
    answer.is_ok()
}

/// Returns the bytes that name the record in a request.
fn key_digest(stage: &Stage, key: &str) -> Vec<u8> {
    raw::Key::new(stage.place.namespace.as_str(), SET, key.into()).unwrap().digest().to_vec()
}

/// The holder's own mark shows whether its change happened before the successor's.
#[test]
fn a_change_in_doubt_is_settled_also_after_the_successor_has_written() {
    let Some(stage) = stage() else { return };
    for (what, change) in CHANGES {
        // The loss, the number of writes by the successor, and the error that the holder receives.
        for (loss, writes, told) in [
            (Fault::LoseReply, 1, None),
            (Fault::LoseReply, 7, None),
            (Fault::LoseReply, 8, Some(Code::InDoubt)),
            (Fault::LoseRequest, 1, Some(Code::StaleFence)),
            (Fault::LoseRequest, 7, Some(Code::StaleFence)),
            (Fault::LoseRequest, 8, Some(Code::InDoubt)),
        ] {
            let context = format!("{what}, {loss:?}, {writes} writes");
            let ([ours, next], key) = (stage.holders("a"), fresh_key());
            let record = ours.record(&stage.ours, &key).unwrap();
            record.put(&sum(10)).unwrap();
            let (gate, hits) = (Arc::new(Gate::default()), stage.proxy.hits());
            stage.proxy.next("change", loss.clone());
            // Delays the read that settles the doubt. Only a clear also reads before its change.
            stage.proxy.later("get", usize::from(what == "clear"), 1, Fault::Keep(Arc::clone(&gate)));
            let answer = thread::scope(|scope| {
                let changing = thread::Builder::new().name("dlm-test-changing".into());
                let changing = changing.spawn_scoped(scope, || change(&record)).unwrap();
                until("the record is read", || stage.proxy.hits() == hits + 2);
                let theirs = next.record(&stage.theirs, &key).unwrap();
                for number in 0..writes {
                    theirs.put(&sum(100 + number)).unwrap();
                }
                gate.open();
                changing.join().unwrap()
            });
            assert_eq!(answer.map_err(|error| error.code()).err(), told, "{context}");
            assert_eq!(stage.stored(&key).unwrap().bins["sum"], raw::Value::Int(99 + writes), "{context}");
            assert_eq!(code(record.put(&sum(1))), Code::StaleFence, "{context}");
        }
    }
}

/// The change may have happened before the record was deleted.
#[test]
fn a_change_whose_reply_was_lost_and_whose_record_is_gone_is_in_doubt() {
    let Some(stage) = stage() else { return };
    for (what, change) in CHANGES {
        for anew in [false, true] {
            let record = stage.record(Before::Ours);
            let (gate, hits) = (Arc::new(Gate::default()), stage.proxy.hits());
            stage.proxy.next("change", Fault::LoseReply);
            stage.proxy.later("get", usize::from(what == "clear"), 1, Fault::Keep(Arc::clone(&gate)));
            let answer = thread::scope(|scope| {
                let changing = thread::Builder::new().name("dlm-test-changing".into());
                let changing = changing.spawn_scoped(scope, || change(&record)).unwrap();
                until("the record is read", || stage.proxy.hits() == hits + 2);
                stage.delete(record.key());
                if anew {
                    stage.write(record.key(), &[("sum", 50.into())]);
                }
                gate.open();
                changing.join().unwrap()
            });
            assert_eq!(code(answer), Code::InDoubt, "{what}, anew: {anew}");
            // No message of this change is lost.
            assert_eq!(record.add("sum", 1).unwrap(), if anew { 51 } else { 1 }, "{what}");
        }
    }
}

/// The threads share one handle, or each has its own handle of the same lease.
#[test]
fn sums_of_threads_with_one_lease_are_exact() {
    const THREADS: usize = 4;
    const EACH: usize = 25;
    let Some(stage) = stage() else { return };
    for own in [false, true] {
        let ([lease], key) = (stage.holders("a"), fresh_key());
        let shared = lease.record(&stage.theirs, &key).unwrap();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let (lease, key, shared, stage) = (&lease, &key, &shared, &stage);
                scope.spawn(move || {
                    let own = own.then(|| lease.record(&stage.theirs, key).unwrap());
                    for _ in 0..EACH {
                        own.as_ref().unwrap_or(shared).add("sum", 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(stored_sum(&shared), Some((THREADS * EACH) as i64), "own: {own}");
    }
}

/// When other threads with the same fence write in between, a read may not settle the doubt. The call then returns
/// IN_DOUBT.
#[test]
fn sums_of_threads_with_one_lease_differ_by_the_doubts_only_though_messages_are_lost() {
    const THREADS: usize = 3;
    const EACH: usize = 25;
    let Some(stage) = stage() else { return };
    stage.proxy.storm(storm());
    let ([lease], key) = (stage.holders("a"), fresh_key());
    let [sure, doubts, begun, over] = [(); 4].map(|()| AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let record = lease.record(&stage.ours, &key).unwrap();
                for _ in 0..EACH {
                    let over_before = over.load(Ordering::SeqCst);
                    begun.fetch_add(1, Ordering::SeqCst);
                    let answer = record.add("sum", 1);
                    // Additions of the other threads that may have happened during this one.
                    let others = begun.load(Ordering::SeqCst) - 1 - over_before;
                    over.fetch_add(1, Ordering::SeqCst);
                    let counted = match answer {
                        Ok(_) => &sure,
                        Err(error) if error.is_in_doubt() => {
                            assert!(others >= MARKS, "in doubt after {others} changes: {}", error.chain());
                            &doubts
                        }
                        Err(error) => panic!("{}", error.chain()),
                    };
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    stage.proxy.heal();
    let (sure, doubts) = (sure.into_inner(), doubts.into_inner());
    let sum = stored_sum(&lease.record(&stage.theirs, &key).unwrap()).unwrap() as usize;
    let faults = stage.proxy.hits();
    eprintln!("{sure} sure, {doubts} in doubt, {sum} stored, {faults} faults");
    assert!((sure..=sure + doubts).contains(&sum), "{sure} and {doubts} in doubt: {sum}");
    assert_eq!(sure + doubts, THREADS * EACH);
    assert!(faults >= THREADS * EACH / 5 && doubts <= faults, "{doubts} in doubt after {faults} faults");
}

/// Number of changes whose marks a record keeps. A read settles a doubt unless so many others have followed.
const MARKS: usize = 8;

/// Of each five changes, makes one meet one of the losses.
fn storm() -> impl FnMut(&str) -> Option<Fault> + Send {
    let (mut changes, mut next) = (0, 0);
    move |method| {
        if !matches!(method, "change" | "create") {
            return None;
        }
        if changes % 5 == 0 {
            next = changes + fastrand::usize(..5);
        }
        changes += 1;
        (changes == next + 1).then(|| losses()[fastrand::usize(..4)].clone())
    }
}

// ---- Processes ---------------------------------------------------------------------------------

const LOCKS: &str = "DLM_TEST_URI";
const RECORDS: &str = "DLM_TEST_RECORDS";
const NAME: &str = "DLM_TEST_NAME";

/// Not a test: the code of the processes that the tests start.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, _)) = role::asked() else { return };
    let setting = |name: &str| env::var(name).unwrap();
    let records = Records::open(&setting(RECORDS)).unwrap();
    let (locks, name) = (setting(LOCKS), setting(NAME));
    match role.as_str() {
        "hold" => hold(&locks, &records, &name),
        "add" => add(&locks, &records, &name),
        other => panic!("no such role: {other}"),
    }
}

fn process(role: &str, place: &Place, records: SocketAddr, name: &str) -> Dialogue {
    let mut command = role::process(module_path!(), role, &env::temp_dir());
    command.env(LOCKS, place.uri()).env(RECORDS, uri(place, records));
    Dialogue::start(command.env(NAME, name))
}

fn locks(uri: &str, name: &str, ttl: Duration) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client(name).ttl(ttl).wait(5 * LONG);
    builder.timeout(LONG).retry(Duration::from_millis(20)).open().unwrap()
}

/// Number of locks of the stopped holder, and of records that each lock guards.
const GUARDING: usize = 10;
const GUARDED: usize = 10;

fn key_of(name: &str, lock: usize, record: usize) -> String {
    format!("{name}-{lock}-{record}")
}

/// Acquires the locks and writes the records. On the order `write` it writes each record once more, without a check
/// of its leases.
fn hold(locks_at: &str, records: &Records, name: &str) {
    let manager = locks(locks_at, name, Duration::from_secs(2));
    let mut held = Vec::new();
    for lock in 0..GUARDING {
        let lease = acquire_briefly(&manager.lock(&lock.to_string(), Level::Xdc).unwrap());
        for number in 0..GUARDED {
            let record = lease.record(records, &key_of(name, lock, number)).unwrap();
            record.put(&sum(number as i64)).unwrap();
            held.push((record, lock));
        }
        say(format_args!("holds {lock} {}", lease.fence().unwrap()));
        std::mem::forget(lease);
    }
    say(format_args!("holds all"));
    // The process is stopped here. Only the code below runs afterwards.
    assert_eq!(next_order().as_deref(), Some("write"));
    for (at, (record, lock)) in held.iter().enumerate() {
        let (what, change) = CHANGES[at % CHANGES.len()];
        match change(record) {
            Ok(()) => say(format_args!("wrote {lock} {what}")),
            Err(error) => {
                let (fence, stored) =
                    error.stale_fence().map_or((0, 0), |(fence, stored)| (fence.0, stored.0));
                say(format_args!("refused {lock} {fence} {stored} {}", error.code()));
            }
        }
    }
}

/// Acquires a lock with a short TTL. On a busy machine a grant may take longer than its lease, and is tried again.
fn acquire_briefly(lock: &Lock) -> Lease {
    let mut lease = None;
    until("a grant comes in time", || {
        lease = match lock.acquire() {
            Ok(lease) => Some(lease),
            Err(error) => {
                assert_eq!(error.code(), Code::RetriesExhausted, "{}", error.chain());
                None
            }
        };
        lease.is_some()
    });
    lease.expect("it was granted")
}

#[test]
fn of_100_late_writes_of_a_stopped_holder_the_server_refuses_each() {
    let Some(stage) = stage() else { return };
    let name = format!("stopped-{}", fresh_key());
    let mut holder = process("hold", &stage.place, stage.proxy.address(), &name);
    let fences: Vec<u64> = (0..GUARDING)
        .map(|lock| {
            let words = holder.report("holds");
            assert_eq!(words[0], lock.to_string());
            words[1].parse().unwrap()
        })
        .collect();
    holder.report("holds");
    holder.pause();

    // The next holders acquire the locks when the leases have ended. They write half of the records. In the other
    // half they only raise the fence.
    let manager = locks(&stage.place.uri(), &name, 10 * LONG);
    let mut successors = Vec::new();
    for (lock, fence) in fences.iter().enumerate() {
        let lease = manager.lock(&lock.to_string(), Level::Xdc).unwrap().acquire().unwrap();
        assert!(lease.fence().unwrap().0 > *fence);
        for number in 0..GUARDED {
            let record = lease.record(&stage.theirs, &key_of(&name, lock, number)).unwrap();
            if number % 2 == 0 { record.put(&sum(1000)) } else { record.raise_fence() }.unwrap();
        }
        successors.push(lease);
    }
    let keys = (0..GUARDING).flat_map(|lock| (0..GUARDED).map(move |number| (lock, number)));
    let stored = || -> Vec<_> {
        let one = |(lock, number)| stage.stored(&key_of(&name, lock, number)).unwrap();
        keys.clone().map(one).map(|record| (record.bins, record.generation)).collect()
    };
    let (before, requests) = (stored(), stage.proxy.requests().len());

    holder.go_on();
    holder.order("write");
    for at in 0..GUARDING * GUARDED {
        let words = holder.report("refused");
        let lock: usize = words[0].parse().unwrap();
        assert_eq!(lock, at / GUARDED);
        let [fence, higher] = [&words[1], &words[2]].map(|word| word.parse::<u64>().unwrap());
        assert_eq!((fence, Some(higher)), (fences[lock], successors[lock].fence().map(|fence| fence.0)));
        assert_eq!(words[3], "STALE_FENCE");
    }
    holder.finish();
    // Each change was sent to the server, and had no effect.
    let sent = stage.proxy.requests().split_off(requests);
    let changes = sent.iter().filter(|method| *method == "change").count();
    assert_eq!(changes, GUARDING * GUARDED, "{sent:?}");
    assert_eq!(stored(), before);
}

const ADDS: usize = 25;

/// Adds while it holds the lock. Other processes do the same.
fn add(locks_at: &str, records: &Records, name: &str) {
    let lock = locks(locks_at, name, 10 * LONG).lock("a", Level::Xdc).unwrap();
    for _ in 0..ADDS {
        let lease = lock.acquire().unwrap();
        let record = lease.record(records, name).unwrap();
        let before = record.get().unwrap().and_then(|bins| bins.int("sum")).unwrap_or_default();
        for by in [1, 10] {
            record.add("sum", by).unwrap();
        }
        assert_eq!(stored_sum(&record), Some(before + 11));
        assert!(lease.release().unwrap());
        // The test waits for each report for a limited time.
        say(format_args!("added"));
    }
}

#[test]
fn sums_of_processes_are_exact_though_a_fifth_of_the_messages_is_lost() {
    const PROCESSES: usize = 3;
    let Some(stage) = stage() else { return };
    stage.proxy.storm(storm());
    let name = format!("sums-{}", fresh_key());
    let processes: Vec<_> =
        (0..PROCESSES).map(|_| process("add", &stage.place, stage.proxy.address(), &name)).collect();
    processes.into_iter().for_each(|process| drop(process.finish()));
    // Each lease makes two changes.
    let faults = stage.proxy.hits();
    assert!(faults >= PROCESSES * ADDS * 2 / 5, "{faults} faults");
    let stored = stage.stored(&name).unwrap();
    assert_eq!(stored.bins["sum"], raw::Value::Int((PROCESSES * ADDS * 11) as i64));
}

// ---- Servers -----------------------------------------------------------------------------------

/// Checks what docs/aerospike.md states about namespaces in memory.
#[test]
fn a_server_in_memory_forgets_fences_when_it_restarts_until_they_are_raised_again() {
    let Some(mut server) = own_server_or_skip(IN_MEMORY) else { return };
    let locks = in_memory("restart");
    let lock = locks.lock("a", Level::Xdc).unwrap();
    let [stale, next] = [(); 2].map(|()| {
        let lease = lock.try_acquire().unwrap();
        assert!(lease.release().unwrap());
        lease
    });
    let records = |timeout| {
        let place = server.place();
        Records::open(&uri_within(&place, place.address, timeout)).unwrap()
    };
    // A call to a server that is down lasts until its time-out.
    let (records, short) = (records(LONG), records(Duration::from_secs(5)));
    let [ours, theirs] = [&stale, &next].map(|lease| lease.record(&records, "a").unwrap());
    let hasty = next.record(&short, "a").unwrap();
    ours.put(&sum(1)).unwrap();
    theirs.put(&sum(2)).unwrap();
    until("a put is answered in time", || is_put_in_time(&hasty, 2));
    assert_eq!(code(ours.put(&sum(3))), Code::StaleFence);
    server.kill();
    let down: Error = hasty.put(&sum(4)).unwrap_err();
    assert!(down.is_retryable() && !down.is_in_doubt(), "{}", down.chain());
    server.restart();
    assert_eq!(ours.get().unwrap(), None);
    ours.put(&sum(5)).expect("refused, but the new server knows no higher fence");
    theirs.raise_fence().unwrap();
    assert_eq!(code(ours.put(&sum(6))), Code::StaleFence);
    assert_eq!(stored_sum(&theirs), Some(5));
}

/// The default TTL of a namespace does not apply to records that have a fence.
#[test]
fn records_that_are_made_without_a_ttl_do_not_expire_by_default() {
    let namespace = IN_MEMORY.replace("nsup-period 1", "nsup-period 1\ndefault-ttl 1000");
    let Some(server) = own_server_or_skip(&namespace) else { return };
    let locks = in_memory("ttl");
    let lease = locks.lock("a", Level::Xdc).unwrap().try_acquire().unwrap();
    let place = server.place();
    let records = Records::open(&uri(&place, place.address)).unwrap();
    for (what, change) in CHANGES.into_iter().filter(|(what, _)| *what != "put for") {
        let record = lease.record(&records, what).unwrap();
        for _ in 0..2 {
            change(&record).unwrap();
            let stored = raw_request(&place, what, async |client, key| {
                client.get(&read_policy(), key, raw::Bins::All).await.unwrap()
            });
            assert_eq!(stored.time_to_live(), None, "{what}");
        }
    }
}

/// The namespace has no sweep of expired records.
#[test]
fn a_namespace_that_refuses_ttls_takes_records_without() {
    let Some(server) = own_server_or_skip(&IN_MEMORY.replace("nsup-period 1", "nsup-period 0")) else {
        return;
    };
    let locks = in_memory("ttl");
    let lease = locks.lock("a", Level::Xdc).unwrap().try_acquire().unwrap();
    let place = server.place();
    let records = Records::open(&uri(&place, place.address)).unwrap();
    let record = lease.record(&records, "a").unwrap();
    for (what, change) in CHANGES {
        let answer = change(&record);
        if what == "put for" {
            let error = answer.unwrap_err();
            assert_eq!(error.code(), Code::TableCreationError);
            assert!(error.chain().contains("`nsup-period`"), "{}", error.chain());
        } else {
            answer.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
        }
    }
}

/// In a cluster of two nodes, a first holder writes the records, and another program touches each of them `touches`
/// times. Then the next holder writes them while a node is away. The node comes back with its old records. Returns
/// the results of late writes by the first holder.
fn late_writes_after_a_node_was_away(
    policy: &str,
    records: usize,
    touches: u32,
) -> Option<Vec<dlm::Result<()>>> {
    let namespace = format!(
        "replication-factor 2\nnsup-period 1\n{policy}storage-engine device {{\n\
         file {DIRECTORY}/records\nfilesize 512M\n}}\n"
    );
    let mut both = own_cluster_or_skip(&namespace)?;
    let place = both[0].place();
    let [one, other] = [0, 1].map(|node: usize| both[node].place().address);
    let set = Records::open(&format!("aerospike://{one},{other}/test/{SET}?timeout=30s")).unwrap();
    let locks = in_memory("away");
    let leases = [(); 2].map(|()| {
        let lease = locks.lock("a", Level::Xdc).unwrap().try_acquire().unwrap();
        assert!(lease.release().unwrap());
        lease
    });
    let of = |lease: &Lease| -> Vec<Record> {
        (0..records).map(|number| lease.record(&set, &number.to_string()).unwrap()).collect()
    };
    let [ours, theirs] = [&leases[0], &leases[1]].map(of);
    for record in &ours {
        record.put(&sum(1)).unwrap();
        raw_request(&place, record.key(), async |client, key| {
            for _ in 0..touches {
                client.touch(&write_policy(), key).await.unwrap();
            }
        });
    }
    both[1].shut_down();
    for record in &theirs {
        record.raise_fence().unwrap();
        (0..20).for_each(|number| record.put(&sum(number)).unwrap());
    }
    both[1].restart();
    wait_joined(&both);
    Some(ours.iter().map(|record| record.put(&sum(-1))).collect())
}

const LAST_UPDATE_TIME: &str = "conflict-resolution-policy last-update-time\n";

/// The library never deletes a record, so the copy with the higher generation is the newer one. For locks this is
/// not true.
#[test]
fn a_node_that_comes_back_brings_no_lower_fence_whichever_way_conflicts_are_resolved() {
    for policy in ["", LAST_UPDATE_TIME] {
        let Some(answers) = late_writes_after_a_node_was_away(policy, 12, 10) else { return };
        for answer in answers {
            assert_eq!(code(answer), Code::StaleFence, "{policy}");
        }
    }
}

/// A generation has 16 bits. After the highest one it starts again at the lowest, which loses against an old copy.
#[test]
fn by_generation_a_node_that_comes_back_brings_a_lower_fence_to_a_record_of_65_535_writes() {
    if left_to_the_long_run() {
        return;
    }
    const TOUCHES: u32 = 65_529;
    let Some(answers) = late_writes_after_a_node_was_away(LAST_UPDATE_TIME, 1, TOUCHES) else { return };
    assert!(answers.into_iter().all(|answer| code(answer) == Code::StaleFence));
    let Some(answers) = late_writes_after_a_node_was_away("", 1, TOUCHES) else { return };
    let harmed = answers.iter().all(|answer| answer.is_ok());
    assert!(harmed, "this policy does no harm now: adapt docs/aerospike.md: {answers:?}");
}

/// The example of docs/aerospike.md, except for its addresses.
fn example(locks: &str, records: &str) -> dlm::Result<()> {
    let manager = LockManager::open(locks)?;
    let records = Records::open(records)?; // namespace shop, set orders

    let lease = manager.lock("order-42", Level::Dc)?.acquire()?;
    let order = lease.record(&records, "order-42")?; // the record with this key (a string)
    order.raise_fence()?; // from now on the server refuses the holders before
    let sum = order.get()?.and_then(|bins| bins.int("sum")).unwrap_or(0);
    match order.put(&Bins::new().with("sum", sum + 5).with("state", "packed")) {
        Err(error) if error.code() == Code::StaleFence => eprintln!("another holds the lock: {error}"),
        done => done?,
    }
    order.add("parcels", 1)?; // once, whatever was lost or late
    lease.release()?;
    Ok(())
}

#[test]
fn the_example_of_the_documentation_runs() {
    let page = include_str!("../../docs/aerospike.md");
    let shown = page.split("```rust,no_run\n").nth(1).unwrap().split("```").next().unwrap();
    let here = include_str!("aerospike_records.rs").split("fn example(").nth(1).unwrap();
    let body = shown.split("fn main() -> dlm::Result<()> {\n").nth(1).unwrap();
    for line in body.lines().filter(|line| !line.contains("::open(")) {
        assert!(here.contains(&format!("{line}\n")), "{line}");
    }
    let Some(server) = own_server_or_skip(IN_MEMORY) else { return };
    let place = server.place();
    let (locks, records) =
        (format!("{}?client=orders&farm=dc1&timeout=60s", place.uri()), uri(&place, place.address));
    for _ in 0..2 {
        example(&locks, &records).unwrap();
    }
    let stored = raw_request(&place, "order-42", async |client, key| {
        client.get(&read_policy(), key, raw::Bins::All).await.unwrap()
    });
    assert_eq!([&stored.bins["sum"], &stored.bins["parcels"]], [10, 2].map(raw::Value::Int).each_ref());
}

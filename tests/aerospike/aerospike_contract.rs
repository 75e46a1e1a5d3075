//! The contract suites, and special cases of Aerospike, over a real server.
#![cfg(feature = "aerospike")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dlm::{Code, Level, LockManager, Severity};
use dlm_fixtures::aerospike::{IN_MEMORY, aerospike_or_skip, info, own_server_or_skip};
use dlm_testkit::LONG;
use dlm_testkit::contract::Site;

use crate::aerospike_raw::{client_policy, write_policy};

fn site(test: &str) -> Option<Site> {
    let uri = aerospike_or_skip()?.uri();
    Some(Site::new(test, 200, move || dlm::store::open(&uri).unwrap()).with_many_reads())
}

dlm_testkit::contract!(site);
dlm_testkit::latch_contract!(site);
dlm_testkit::linger_contract!(site);

/// A manager whose leases and calls do not end before a case does.
fn manager(uri: &str, client: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client(client).ttl(10 * LONG);
    builder.timeout(LONG).open().unwrap()
}

/// Releases and acquires within the same millisecond, in which a careless store grants a lock twice.
#[test]
fn of_five_thousand_tight_cycles_none_overlaps_and_fences_rise() {
    const THREADS: usize = 5;
    let Some(site) = site("tight") else { return };
    let (held, last) = (AtomicBool::new(false), Mutex::new(None));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let builder = site.builder().store(site.store()).timeout(LONG);
            let manager = builder.retry(Duration::from_millis(1)).open().unwrap();
            let (held, last) = (&held, &last);
            scope.spawn(move || {
                let lock = manager.lock("a", Level::Xdc).unwrap();
                for _ in 0..5000 / THREADS {
                    let lease = lock.acquire_within(10 * LONG, 5 * LONG).unwrap();
                    assert!(!held.swap(true, Ordering::SeqCst), "granted twice");
                    let before = std::mem::replace(&mut *last.lock().unwrap(), lease.fence());
                    assert!(lease.fence() > before, "{:?} after {before:?}", lease.fence());
                    held.store(false, Ordering::SeqCst);
                    assert!(lease.release().unwrap());
                }
            });
        }
    });
}

/// As after a crash of a server that had not written its latest fences to the disk.
#[test]
fn a_fence_that_a_server_has_forgotten_is_not_given_out_again() {
    let Some(place) = aerospike_or_skip() else { return };
    let client = format!("forgotten-{}", std::process::id());
    let manager = manager(&place.uri(), &client);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let lease = lock.try_acquire().unwrap();
    let before = lease.fence();
    assert!(lease.release().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let raw = ::aerospike::Client::new(&client_policy(), &place.address.to_string()).await.unwrap();
        let name = ::aerospike::Value::from(format!("XDC#{client}#a"));
        let key = ::aerospike::Key::new(place.namespace, "D_FNC#tests", name).unwrap();
        let fallen = [::aerospike::Bin::new("fence", ::aerospike::Value::Int(7))];
        raw.put(&write_policy(), &key, &fallen).await.unwrap();
    });
    assert!(lock.try_acquire().unwrap().fence() > before);
}

/// A renewal never shortens the life of a record, and a record that never expires lives longest.
#[test]
fn a_record_that_an_operator_let_last_for_ever_is_given_no_end_by_a_renewal() {
    let Some(place) = aerospike_or_skip() else { return };
    let client = format!("for-ever-{}", std::process::id());
    let manager = manager(&place.uri(), &client);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let lease = lock.try_acquire().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let raw = ::aerospike::Client::new(&client_policy(), &place.address.to_string()).await.unwrap();
        let name = ::aerospike::Value::from(format!("{client}#a"));
        let key = ::aerospike::Key::new(place.namespace, "XDC#tests", name).unwrap();
        let expiration = ::aerospike::Expiration::Never;
        let policy = ::aerospike::WritePolicy { expiration, ..write_policy() };
        raw.touch(&policy, &key).await.unwrap();
    });
    lease.renew().unwrap();
    assert_eq!(lock.inspect().unwrap().holder.expect("no holder").remaining, None);
    assert!(lease.release().unwrap());
}

/// A farm that is too long for a bin's name, a namespace that does not exist, and one without strong consistency.
#[test]
fn what_aerospike_cannot_do_is_said_with_what_it_could() {
    let Some(place) = aerospike_or_skip() else { return };
    let open = |uri: &str, farm: &str| {
        let builder = LockManager::builder().store_uri(uri).client("limits").farm(farm);
        builder.timeout(LONG).open().unwrap()
    };
    let manager = open(&place.uri(), "ten-bytes-");
    let error = manager.lock("a", Level::Dc).unwrap().try_acquire().unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.chain().contains("at most 9 bytes"), "{}", error.chain());
    // A lock of level XDC does not contain the farm.
    assert!(manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap().release().unwrap());

    let missing = open(&format!("aerospike://{}/nowhere/tests", place.address), "dc1");
    for error in [
        missing.initialize().unwrap_err(),
        missing.lock("a", Level::Dc).unwrap().try_acquire().unwrap_err(),
        missing.lock("a", Level::Dc).unwrap().inspect().unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::TableCreationError, "{}", error.chain());
        assert!(error.chain().contains("\"nowhere\""), "{}", error.chain());
    }

    let strict = open(&format!("{}?strong_consistency=require", place.uri()), "dc1");
    let error = strict.lock("a", Level::Dc).unwrap().try_acquire().unwrap_err();
    assert!(error.chain().contains("strong-consistency true"), "{}", error.chain());
}

/// With `nsup-period 0`, a namespace refuses TTLs and does not sweep expired records.
#[test]
fn a_namespace_that_refuses_ttls_is_an_error_that_names_the_setting() {
    let namespace = IN_MEMORY.replace("nsup-period 1", "nsup-period 0");
    let Some(server) = own_server_or_skip(&namespace) else { return };
    let manager = manager(&server.place().uri(), "ttl");
    let lock = manager.lock("a", Level::Xdc).unwrap();
    for error in [manager.initialize().unwrap_err(), lock.try_acquire().unwrap_err()] {
        assert_eq!(error.code(), Code::TableCreationError, "{}", error.chain());
        assert!(error.chain().contains("`nsup-period`"), "{}", error.chain());
    }
    assert!(lock.inspect().unwrap().holder.is_none());

    let found = manager.diagnose().unwrap();
    let severity = |topic| found.iter().find(|diagnostic| diagnostic.topic == topic).expect(topic).severity;
    assert_eq!((severity("TTL"), severity("a lock")), (Severity::Fail, Severity::Fail), "{found:?}");
    let uri = format!("{}?strict=true&client=ttl&timeout=60s", server.place().uri());
    let error = LockManager::open(&uri).expect_err("strict");
    assert!(error.chain().contains("nsup-period"), "{}", error.chain());
}

/// A server of one node in memory gets warnings. They do not fail `strict=true`.
#[test]
fn the_doctor_reads_the_settings_of_a_real_server() {
    let Some(server) = own_server_or_skip(IN_MEMORY) else { return };
    let uri = format!("{}?strict=true&client=doctor&timeout=60s", server.place().uri());
    let manager = LockManager::open(&uri).unwrap();
    let found = manager.diagnose().unwrap();
    let seen: Vec<_> = found.iter().map(|diagnostic| (diagnostic.topic, diagnostic.severity)).collect();
    let expected = [
        ("version", Severity::Ok),
        ("cluster", Severity::Ok),
        ("TTL", Severity::Ok),
        ("writes", Severity::Ok),
        ("eviction", Severity::Ok),
        ("replication", Severity::Warn),
        ("consistency", Severity::Warn),
        ("durability", Severity::Warn),
        ("clocks", Severity::Ok),
        ("a lock", Severity::Ok),
        ("latency", Severity::Ok),
    ];
    assert_eq!(seen[..10], expected[..10], "{found:?}");

    let evicting = IN_MEMORY.replace("data-size 512M", "data-size 512M\nevict-used-pct 60");
    let Some(server) = own_server_or_skip(&evicting) else { return };
    let manager = LockManager::open(&format!("{}?client=doctor&timeout=60s", server.place().uri())).unwrap();
    let found = manager.diagnose().unwrap();
    let eviction = found.iter().find(|diagnostic| diagnostic.topic == "eviction").unwrap();
    assert_eq!(eviction.severity, Severity::Warn, "{eviction}");
    assert!(eviction.seen.contains("evict-used-pct 60"), "{eviction}");
}

/// A server without users refuses clients that log in.
#[test]
fn a_server_that_knows_no_users_is_not_entered_with_a_password() {
    let Some(place) = aerospike_or_skip() else { return };
    if !info(place.address, "edition").unwrap().contains("Community") {
        return;
    }
    let uri = format!("{}?user=u&password=SECRET&plain_credentials=allow", place.uri());
    let manager = LockManager::builder().store_uri(&uri).client("login").open().unwrap();
    let error = manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap_err();
    assert!(error.chain().contains(&place.address.to_string()), "{}", error.chain());
    for text in [error.chain(), format!("{error:?} {manager:?}")] {
        assert!(!text.contains("SECRET"), "{text}");
    }
}

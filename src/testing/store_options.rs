//! Options of stores and managers, as those who open managers see them.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "gateway")]
use crate::Level;
use crate::settings::manager_options::MANAGER;
#[cfg(feature = "gateway")]
use crate::store::HbaseStore;
use crate::store::MemoryStore;
use crate::{Error, LockManager};

#[test]
fn a_password_is_in_no_message_of_a_manager() {
    for uri in ["aerospike://me:hunter2?@host/n/s", "aerospike://host/n/s?password=hunter2"] {
        let builder = LockManager::builder().store_uri(uri);
        let builder = builder.option("password", "hunter2").store(Arc::new(MemoryStore::new()));
        let (shown, error) = (format!("{builder:?}"), builder.open().unwrap_err().chain());
        assert!(!shown.contains("hunter2") && !error.contains("hunter2"), "{shown}: {error}");
    }
}

#[test]
fn an_unknown_option_is_answered_with_those_that_are_taken_there() {
    let alone = crate::store::open("memory:?tll=5s").unwrap_err().to_string();
    assert!(alone.ends_with("has no options of its own"), "{alone}");
    let managed = LockManager::open("memory:?client=a&tll=5s").unwrap_err();
    assert_eq!(offered(&managed), MANAGER.map(|option| option.key));
}

#[cfg(feature = "gateway")]
#[test]
fn a_stores_own_options_are_offered_with_a_managers_or_alone() {
    let uri = "hbase+thrift://127.0.0.1:1/t?tll=5s";
    let alone = crate::store::open(uri).unwrap_err();
    assert!(offered(&alone).contains(&"pool".into()), "{alone}");
    assert!(!offered(&alone).iter().any(|key| MANAGER.iter().any(|option| option.key == key)), "{alone}");
    let managed = LockManager::open(&format!("{uri}&client=a")).unwrap_err();
    assert_eq!(
        offered(&managed),
        [&MANAGER.map(|option| option.key.to_owned())[..], &offered(&alone)].concat()
    );
}

/// Returns the keys that a message about an unknown key lists.
fn offered(error: &Error) -> Vec<String> {
    let said = error.to_string();
    let (_, keys) = said.split_once(": one of ").unwrap_or_else(|| panic!("{said}"));
    keys.split(", ").map(str::to_owned).collect()
}

#[test]
fn a_wrong_setting_of_the_builder_is_named_by_its_own_option() {
    let builder = || LockManager::builder().store_uri("memory:").client("a");
    for (builder, named) in [
        (builder().ttl(Duration::ZERO), "ttl \"0ns\""),
        (builder().latch_ttl(Duration::ZERO), "latch_ttl \"0ns\""),
        (builder().lock_delay(Duration::from_secs(7200)), "lock_delay \"7200s\""),
        (builder().linger(Duration::from_secs(7200)), "linger \"7200s\""),
        (builder().poll(Duration::ZERO), "poll \"0ns\""),
        (builder().clock_margin_ppm(2_000_000), "clock_margin \"2000000ppm\""),
    ] {
        let error = builder.open().unwrap_err().to_string();
        assert!(error.starts_with(named), "{error}");
    }
}

#[cfg(feature = "gateway")]
#[test]
fn the_part_of_a_store_that_may_fail_is_passed_on_by_every_wrapper() {
    for uri in ["hbase://127.0.0.1:1/t", "hbase+thrift://127.0.0.1:1/t"] {
        for layout in ["java", "own", "both"].iter().take(if uri.contains("thrift") { 1 } else { 3 }) {
            let manager = LockManager::open(&format!("{uri}?client=a&layout={layout}")).unwrap();
            for id in 0..8 {
                let lock = manager.lock(&format!("{id}"), Level::Xdc).unwrap();
                let region = HbaseStore::lock_row(lock.name())[0];
                assert_eq!(manager.session().store.shard(lock.name()), region, "{uri} {layout}");
            }
        }
    }
}

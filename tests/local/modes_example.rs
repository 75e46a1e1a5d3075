//! The example of readers and one that writes.

#[path = "../../examples/shared_cache.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has a main function")]
mod shared_cache;

#[test]
fn of_many_readers_that_find_a_stale_cache_one_rebuilds_it() {
    assert_eq!(shared_cache::run("memory:").unwrap(), (1, 2));
}

//! The layout `both`, seen by those who hold locks in it.

use std::sync::Arc;

use crate::store::both::tests::{Fate, JAVA, TTL, are_held, plan, store};
use crate::testing::patience::until;
use crate::{Code, Level, LockManager};

#[test]
fn what_a_lost_lease_left_behind_is_released_in_the_background() {
    let (store, server) = store();
    let manager = LockManager::builder().store(Arc::new(store)).client("tests").ttl(TTL).open().unwrap();
    let lease = manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap();
    server.lock().records[JAVA] = None;
    plan(&server, "own remove", Fate::Down);
    assert_eq!(lease.renew().unwrap_err().code(), Code::LeaseLost);
    let (held, removes) = {
        let server = server.lock();
        let removes = server.requests.iter().filter(|request| **request == "own remove").count();
        (server.records.each_ref().map(Option::is_some), removes)
    };
    // The background threads may have released it already, with a second request.
    assert!(removes > 0 && held == [false, removes == 1], "{removes} requests, {held:?}");
    until("it is released", || are_held(&server) == [false, false]);
}

//! The example store `examples/redis_store.rs`, which `docs/stores.md` shows, over a real Redis: the contract
//! suite, and the suite for lost, late and cut messages.

#[path = "../../examples/redis_store.rs"]
#[expect(dead_code, reason = "the example's main")]
mod redis_store;

use std::net::SocketAddr;

use dlm::Code;
use dlm_fixtures::redis::redis_or_skip;
use dlm_testkit::contract::Site;
use dlm_testkit::losses::{SHORT, Target};
use dlm_testkit::{Dialect, Proxy};

fn address() -> Option<SocketAddr> {
    redis_or_skip()
}

fn uri(address: SocketAddr) -> String {
    format!("redis://{address}/locks")
}

fn site(test: &str) -> Option<Site> {
    let uri = uri(address()?);
    Some(Site::new(test, 200, move || dlm::store::open(&uri).unwrap()).without_lists().without_history())
}

dlm_testkit::contract!(site);

/// Redis's protocol: arrays of texts, and replies. The comment at the beginning of a script is the request's name.
struct Resp;

impl Dialect for Resp {
    fn end_of_message(&self, bytes: &[u8]) -> Option<usize> {
        let end = bytes.windows(2).position(|two| two == b"\r\n")? + 2;
        let number = std::str::from_utf8(&bytes[1..end - 2]).ok().and_then(|text| text.parse::<usize>().ok());
        match (bytes[0], number) {
            (b'*', Some(items)) => {
                (0..items).try_fold(end, |at, _| Some(at + self.end_of_message(&bytes[at..])?))
            }
            (b'$', Some(length)) => (bytes.len() >= end + length + 2).then_some(end + length + 2),
            _ => Some(end),
        }
    }

    fn method(&self, request: &[u8]) -> String {
        let text = String::from_utf8_lossy(request);
        let name = text.split_once("-- ").and_then(|(_, rest)| rest.lines().next());
        name.unwrap_or("?").to_owned()
    }
}

static TARGET: Target = Target {
    server: address,
    proxy: |server| Proxy::speaking(Resp, server),
    uri,
    requests: &["create", "count", "replace", "remove", "read", "last"],
    // This request also counts the fence.
    acquire: &["create"],
    settle: &["read", "count", "read"],
    seed: &[("create", 0)],
    renew: ["replace", "read"],
    release: ["remove", "read"],
    reply_bytes: ":1\r\n".len(),
    down: SHORT,
    silent: Code::InDoubt,
};

dlm_testkit::losses!(TARGET);

#[test]
fn the_example_is_at_most_200_lines() {
    assert!(include_str!("../../examples/redis_store.rs").lines().count() <= 200);
}

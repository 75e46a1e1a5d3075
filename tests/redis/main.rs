//! The example store `examples/redis_store.rs`, which `docs/stores.md` shows, over a real Redis: the contract
//! suite, and the suite for lost, late and cut messages.

#[path = "../../examples/redis_store.rs"]
#[expect(dead_code, reason = "the example's main")]
mod redis_store;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use dlm::Code;
use dlm_testkit::contract::Site;
use dlm_testkit::losses::{SHORT, Target};
use dlm_testkit::{Dialect, Proxy, skipped, until};

/// A Redis server. Its keeper stops it when this program has ended, even if this program was killed.
struct Server {
    address: SocketAddr,
    _keeper: (Child, Mutex<ChildStdin>),
}

static SERVER: LazyLock<Option<Server>> = LazyLock::new(|| {
    let found = Command::new("redis-server").arg("--version").output();
    if let Err(error) = found {
        skipped("redis", format_args!("redis-server: {error}"));
        return None;
    }
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let script = r#"redis-server --bind 127.0.0.1 --port "$1" --save "" --appendonly no >/dev/null 2>&1 </dev/null &
        pid=$!; cat >/dev/null; kill $pid; wait $pid"#;
    let mut keeper = Command::new("sh");
    keeper.args(["-c", script, "redis", &address.port().to_string()]);
    let mut keeper = keeper.stdin(Stdio::piped()).spawn().unwrap();
    let stdin = Mutex::new(keeper.stdin.take().unwrap());
    until("the server answers", || {
        TcpStream::connect(address).is_ok_and(|mut stream| stream.write_all(b"PING\r\n").is_ok())
    });
    Some(Server { address, _keeper: (keeper, stdin) })
});

fn address() -> Option<SocketAddr> {
    SERVER.as_ref().map(|server| server.address)
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

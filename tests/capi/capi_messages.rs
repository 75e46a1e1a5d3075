//! What an error says: one line with its subject and its cause, and the same line in Rust, C, C++ and Go.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use dlm::{LatchKind, Level, LockManager};
use dlm_fixtures::c::{self, Link};
use dlm_fixtures::go;

use super::capi_programs::{Place, has};

/// A verb, an id if it needs one, a URI, and what the message says.
struct Case {
    verb: &'static str,
    id: &'static str,
    uri: String,
    says: Vec<String>,
}

fn case(verb: &'static str, id: &'static str, uri: &str, says: &[&str]) -> Case {
    let separator = if uri.contains('?') { '&' } else { '?' };
    let uri = format!("{uri}{separator}client=tests&farm=dc1&wait=1s&timeout=2s");
    Case { verb, id, uri, says: says.iter().map(ToString::to_string).collect() }
}

/// Returns an address where nothing listens. The port stays bound, so that no other test gets it.
fn refused() -> (rustix::fd::OwnedFd, String) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = std::net::SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, address.to_string())
}

/// Serves HTTP until the test program ends. Returns its address.
fn http() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    };
    std::thread::Builder::new().name("dlm-test-http".into()).spawn(serve).unwrap();
    address
}

fn in_rust(case: &Case) -> String {
    let called = || -> dlm::Result<()> {
        let manager = LockManager::open(&case.uri)?;
        match case.verb {
            "reach" => manager.reach(Duration::MAX),
            "acquire" => manager.lock(case.id, Level::Xdc)?.acquire().map(drop),
            _ => manager.latch(case.id, Level::Xdc, LatchKind::CountDown)?.count_down(),
        }
    };
    match called() {
        Ok(()) => "OK: ".into(),
        Err(error) => format!("{}: {error}", error.code()),
    }
}

fn printed(program: &mut Command, cases: &[Case]) -> Vec<String> {
    let lines: String = cases.iter().map(|it| format!("{}\t{}\t{}\n", it.verb, it.id, it.uri)).collect();
    let program = c::with_library(program).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_message_is_one_line_with_its_cause_and_the_same_in_every_language() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let file = format!("embedded:{}", file.display());
    let store = format!("embedded:{}", dir.path().join("store").display());
    let ((_port, refused), web) = (refused(), http());
    let mut cases = vec![
        case("acquire", "a", &store, &["OK: "]),
        case("count-down", "none", &store, &["NOT_FOUND: ", "none"]),
        case("acquire", "a", &file, &["is not a directory"]),
        case("count-down", "a", &file, &["is not a directory"]),
        case("acquire", "a", "embedded:relative/dir", &["INVALID_ARGUMENT: ", "relative/dir", "absolute"]),
        case("acquire", "a", "embedded:/tmp?fence=row", &["INVALID_ARGUMENT: ", "fence"]),
        case("acquire", "a", "redis://h", &["INVALID_ARGUMENT: ", "redis", "hbase"]),
        case("acquire", "", &store, &["INVALID_ARGUMENT: ", "id"]),
        case("acquire", "a", &format!("{store}?ttl=500d"), &["INVALID_ARGUMENT: ", "500d", "365 days"]),
    ];
    cases.push(case("reach", "", &store, &["OK: "]));
    for verb in ["acquire", "count-down", "reach"] {
        for (address, says) in [(&refused, "nothing listens at"), (&web, "an HTTP server answers at")] {
            for uri in [
                format!("hbase://{address}/t"),
                format!("hbase+thrift://{address}/t"),
                format!("aerospike://{address}/test/t"),
            ] {
                cases.push(case(verb, "a", &uri, &["CONNECTION_ERROR: ", says, address]));
            }
        }
    }
    let rust: Vec<_> = cases.iter().map(in_rust).collect();
    for (case, said) in cases.iter().zip(&rust) {
        for text in &case.says {
            assert!(said.contains(text), "{} of {:?} at {}: {said}", case.verb, case.id, case.uri);
        }
        assert!(!said.contains('\n') && !said.contains("\\n") && !said.contains("  "), "{said}");
    }

    let place = Place::new();
    if has("gcc") {
        assert_eq!(printed(&mut Command::new(place.c("gcc", "messages", Link::Shared, &[])), &cases), rust);
    }
    if has("g++") {
        let program = place.cpp_of("g++", "messages", Link::Shared, &[]);
        assert_eq!(printed(&mut Command::new(program), &cases), rust);
    }
    if go::has_go() {
        let program = dir.path().join("messages");
        let mut build = go::tool("go");
        c::run(build.args(["test", go::tags(Link::Shared), "-c", "-o"]).arg(&program).arg(".")).unwrap();
        assert_eq!(printed(Command::new(program).env("DLM_GO_TEST_CHILD", "messages"), &cases), rust);
    }
}

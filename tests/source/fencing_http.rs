//! The example of a service that compares fences, with the requests that docs/fencing.md shows.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

#[allow(dead_code, unreachable_pub, reason = "its main is for the command line")]
#[path = "../../examples/fenced_http_receiver.rs"]
mod receiver;

/// Starts a service in a new temporary directory. It runs until the test program ends.
fn start() -> (tempfile::TempDir, PathBuf, SocketAddr) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let path = log.clone();
    let serve = move || receiver::serve(&listener, &path).unwrap();
    thread::Builder::new().name("dlm-test-receiver".into()).spawn(serve).unwrap();
    (dir, log, address)
}

fn answer(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn request(headers: &str, body: &str) -> String {
    format!("POST /log HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn status(address: SocketAddr, headers: &str, body: &str) -> String {
    answer(address, &request(headers, body)).split(' ').nth(1).unwrap().to_owned()
}

/// The two HTTP messages of the page: a request, which is accepted while its fence is the highest, and the answer to
/// a request with a lower fence.
#[test]
fn the_messages_of_the_page_are_those_of_the_service() {
    let page = include_str!("../../docs/fencing.md");
    let blocks: Vec<_> =
        page.split("```http\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [shown_request, shown_answer] = blocks[..] else { panic!("{} messages", blocks.len()) };
    let (head, body) = shown_request.split_once("\n\n").unwrap();
    let shown_request = format!("{}\r\n\r\n{body}", head.replace('\n', "\r\n"));

    let (_dir, log, address) = start();
    assert!(answer(address, &shown_request).starts_with("HTTP/1.1 204 No Content\r\n"));
    assert_eq!(fs::read_to_string(&log).unwrap(), "total 7\n");
    assert_eq!(status(address, "X-Fence: 124\r\n", "total 8\n"), "204");
    let refused = answer(address, &shown_request);
    assert!(shown_answer.lines().all(|line| refused.lines().any(|it| it == line)), "{refused}");
    assert_eq!(fs::read_to_string(&log).unwrap(), "total 7\ntotal 8\n");
}

#[test]
fn a_request_that_is_not_whole_writes_nothing() {
    let (_dir, log, address) = start();
    assert_eq!(status(address, "", "a"), "428");
    for fence in ["", "x", "-1", "0", "1.5", "9223372036854775808", "99999999999999999999"] {
        assert_eq!(status(address, &format!("X-Fence: {fence}\r\n"), "a"), "400", "{fence:?}");
    }
    assert!(answer(address, "POST /log HTTP/1.1\r\nX-Fence: 1\r\n\r\n").starts_with("HTTP/1.1 411 "));
    assert!(answer(address, "GET /log HTTP/1.1\r\nContent-Length: 0\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert_eq!(fs::read_to_string(&log).unwrap(), "");
}

#[test]
fn clients_at_once_write_in_the_order_of_their_fences() {
    let (_dir, log, address) = start();
    let codes: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    let send = |_| {
                        let fence = dlm::Moment::now().as_nanos();
                        thread::sleep(Duration::from_micros(fastrand::u64(..500)));
                        status(address, &format!("x-fence: {fence}\r\n"), &format!("{fence}\n"))
                    };
                    (0..40).map(send).collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let written = fs::read_to_string(&log).unwrap();
    let fences: Vec<u64> = written.lines().map(|line| line.parse().unwrap()).collect();
    assert!(fences.is_sorted(), "{fences:?}");
    assert_eq!(codes.iter().filter(|code| *code == "204").count(), fences.len());
    assert!(codes.iter().all(|code| code == "204" || code == "409"), "{codes:?}");
}

//! A gateway that answers nonsense, by mistake or by malice: an error within the deadline, no panic, no
//! memory to speak of, and no lock whose state is misjudged.
#![cfg(feature = "gateway")]

mod support {
    pub(crate) mod fault;
    #[allow(unreachable_pub, reason = "public for every test program that takes it in")]
    pub(crate) mod hbase;
    pub(crate) mod proxy;
    pub(crate) mod skip;
    pub(crate) mod table;
}

use std::alloc::System;
use std::net::SocketAddr;
use std::time::Duration;

use dlm::{Code, Level, LockManager, Moment};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::fault::{Fault, Proxy};
use support::table;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TIMEOUT: Duration = Duration::from_millis(250);
/// How late an answer may be on a machine that is busy.
const SLACK: Duration = Duration::from_secs(10);
const HEADER: [u8; 4] = [0x80, 0x01, 0x00, 0x02];

const STRING: u8 = 11;
const STRUCT: u8 = 12;
const MAP: u8 = 13;
const LIST: u8 = 15;

/// With an address at which nonsense is answered.
fn manager(address: SocketAddr, client: &str) -> LockManager {
    let uri = table::uri(address);
    LockManager::builder().store_uri(&uri).client(client).timeout(TIMEOUT).open().unwrap()
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

/// A reply to the first request of a connection, with `result` as the fields of its result.
fn reply(method: &str, kind: u8, number: u32, result: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80, 0x01, 0x00, kind];
    bytes.extend(text(method.as_bytes()));
    bytes.extend(number.to_be_bytes());
    bytes.extend(result);
    bytes
}

fn field(kind: u8, number: u16, value: &[u8]) -> Vec<u8> {
    [&[kind], &number.to_be_bytes()[..], value].concat()
}

/// Replies that no gateway should give to `method`, each with what is wrong about it.
fn nonsense(method: &str) -> Vec<(&'static str, Vec<u8>)> {
    let whole = |result: &[u8]| reply(method, 2, 1, result);
    let lengths = [u32::MAX, 0x8000_0000, 0x7fff_ffff, 0x4000_0000, 0x0010_0001];
    let mut all = vec![
        ("a web server", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("a shell", b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec()),
        ("a framed gateway", [&[0, 0, 0, 30][..], &whole(&[0])].concat()),
        ("zeros", vec![0; 4096]),
        ("ones", vec![0xff; 4096]),
        ("nothing in the result", whole(&[0])),
        ("another method", reply("getTableNames", 2, 1, &[2, 0, 0, 1, 0])),
        ("another number", reply(method, 2, 4711, &[2, 0, 0, 1, 0])),
        ("a request", reply(method, 1, 1, &[2, 0, 0, 1, 0])),
        ("a message of no kind", reply(method, 9, 1, &[2, 0, 0, 1, 0])),
        ("a field of no type", whole(&[200, 0, 0, 1, 0])),
        ("the wrong type", whole(&field(10, 0, &[1; 8]))),
        ("the end of the result is missing", whole(&[2, 0, 0, 1])),
        ("an exception of no type", reply(method, 3, 1, &[0])),
        ("structures in structures", whole(&[STRUCT, 0, 9].repeat(100_000))),
        ("lists in lists", whole(&[&field(LIST, 9, &[]), &[LIST, 0, 0, 0, 1].repeat(100_000)[..]].concat())),
        ("more than a reply may have", whole(&field(STRING, 9, &text(&vec![b'x'; 2 << 20])))),
        ("no end", whole(&field(2, 9, &[1]).repeat(600_000))),
    ];
    for length in lengths {
        let length = length.to_be_bytes();
        all.push(("the length of the name", [&HEADER, &length[..]].concat()));
        all.push(("the length of a string", whole(&field(STRING, 9, &length))));
        for kind in [2, STRING, STRUCT] {
            all.push(("the size of a list", whole(&field(LIST, 0, &[&[kind], &length[..]].concat()))));
            all.push(("the size of a map", whole(&field(MAP, 0, &[&[kind, kind], &length[..]].concat()))));
        }
        let message = [&field(STRING, 1, &length)[..], &[0, 0]].concat();
        all.push(("the length of a message", whole(&field(STRUCT, 1, &message))));
        all.push(("the length of an error", reply(method, 3, 1, &message)));
    }
    all
}

/// All that is ever allocated in one case, by the proxy and by other tests as well, is far below. A
/// length that was believed is far above, also where nothing would be written to that memory.
const ALLOCATED_MAX: usize = 16 << 20;

#[test]
fn nonsense_is_an_error_within_the_deadline_and_costs_no_memory() {
    let Some(gateway) = table::gateway() else { return };
    for (number, (what, bytes)) in nonsense("checkAndPut").into_iter().enumerate() {
        let memory = Region::new(ALLOCATOR);
        let proxy = Proxy::before(gateway);
        proxy.later("*", 0, usize::MAX, Fault::Answer(bytes));
        let manager = manager(proxy.address(), "hostile");
        let lock = manager.lock(&format!("write-{number}-{:?}", Moment::now()), Level::Xdc).unwrap();
        let began = Moment::now();
        let error = lock.try_acquire().expect_err(what);
        let took = Moment::now().since(began);
        // The request was sent, and what came back does not tell whether it was carried out. Some of it
        // reads as a "yes" at first sight, and then the nonsense is met by the next request.
        let expected = [Code::InDoubt, Code::RetriesExhausted];
        assert!(expected.contains(&error.code()), "{what}: {}", error.chain());
        assert!(took < TIMEOUT + SLACK, "{what}: {took:?}");
        assert!(error.chain().len() < 2000, "{what}: a message of {} bytes", error.chain().len());
        assert!(proxy.hits() > 0);
        proxy.heal();
        let lease = lock.try_acquire().unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
        assert!(lease.release().unwrap(), "{what}");
        assert_modest(&memory, what);
    }
    for (what, bytes) in nonsense("get") {
        // A list without cells is how a gateway says that there is nothing.
        let memory = Region::new(ALLOCATOR);
        let proxy = Proxy::before(gateway);
        proxy.later("*", 0, usize::MAX, Fault::Answer(bytes));
        let lock = manager(proxy.address(), "hostile").lock("read", Level::Xdc).unwrap();
        let began = Moment::now();
        let error = lock.inspect().expect_err(what);
        let took = Moment::now().since(began);
        assert!(error.is_retryable() && !error.is_in_doubt(), "{what}: {}", error.chain());
        assert!(took < TIMEOUT + SLACK, "{what}: {took:?}");
        proxy.heal();
        assert!(lock.inspect().is_ok(), "{what}");
        assert_modest(&memory, what);
    }
}

#[track_caller]
fn assert_modest(memory: &Region<'_, System>, what: &str) {
    let allocated = memory.change().bytes_allocated;
    assert!(allocated < ALLOCATED_MAX, "{what}: {} MiB were asked for", allocated >> 20);
}

/// A stray reply must not be taken for that of the next request.
#[test]
fn a_connection_with_a_word_too_much_is_not_used_again() {
    let Some(gateway) = table::gateway() else { return };
    let proxy = Proxy::before(gateway);
    let manager = manager(proxy.address(), "stray");
    let lock = manager.lock(&format!("{:?}", Moment::now()), Level::Xdc).unwrap();
    let refused = reply("checkAndPut", 2, 1, &[2, 0, 0, 0, 0]);
    let granted = reply("checkAndPut", 2, 2, &[2, 0, 0, 1, 0]);
    // "No" to this request, and behind it a "yes" to the next one.
    proxy.next("checkAndPut", Fault::Answer([refused, granted].concat()));
    let lease = lock.try_acquire().unwrap();
    let other = self::manager(gateway, "stray").lock(lock_id(&lock), Level::Xdc).unwrap();
    assert_eq!(other.try_acquire().unwrap_err().code(), Code::LockUnavailable);
    assert!(lease.release().unwrap());
    assert_eq!(proxy.connections(), 2);
}

fn lock_id(lock: &dlm::Lock) -> &str {
    lock.name().key().rsplit('#').next().unwrap()
}

/// An exception that the gateway's interface declares, as HBase's gateway words it.
#[test]
fn what_the_gateway_refuses_is_told_by_its_cause() {
    let Some(gateway) = table::gateway() else { return };
    let cases = [
        ("org.apache.hadoop.hbase.TableNotFoundException: locks", Code::TableCreationError),
        ("org.apache.hadoop.hbase.TableNotEnabledException: locks is disabled.", Code::TableCreationError),
        (
            "...NoSuchColumnFamilyException: Column family D does not exist in region",
            Code::TableCreationError,
        ),
        // The gateway may say so between two tries of its own, of which the first was applied.
        ("...DoNotRetryIOException: Zookeeper LIST could not be completed in 10000 ms", Code::InDoubt),
        ("...RetriesExhaustedException: Failed after attempts=16", Code::InDoubt),
        ("something that no version said before", Code::InDoubt),
        ("", Code::InDoubt),
    ];
    for (message, expected) in cases {
        let proxy = Proxy::before(gateway);
        let error = [&field(STRING, 1, &text(message.as_bytes()))[..], &[0, 0]].concat();
        let refusal = reply("checkAndPut", 2, 1, &field(STRUCT, 1, &error));
        proxy.later("*", 0, usize::MAX, Fault::Answer(refusal));
        let lock = manager(proxy.address(), "refused").lock("a", Level::Xdc).unwrap();
        let error = lock.try_acquire().unwrap_err();
        assert_eq!(error.code(), expected, "{message}: {}", error.chain());
    }
}

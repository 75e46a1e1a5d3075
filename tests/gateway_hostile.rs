//! A gateway that sends nonsense, by mistake or by malice. The result is an error within the deadline, with no panic,
//! little memory and no wrong state of a lock. A separate program, because it counts every allocation of its
//! process.
#![cfg(feature = "gateway")]

use std::alloc::System;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::{LatchName, LockStore};
use dlm::{Code, Deadline, Error, Level, LockManager, Moment, NamePolicy};
use dlm_fixtures::table;
use dlm_fixtures::thrift_proxy;
use dlm_testkit::{Fault, eventually};
use parking_lot::Mutex;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Time limits of a call whose gateway sends nonsense. A case is repeated with the next one if the machine was too slow: if
/// no request was sent in that time, or if good answers take longer.
const TIMEOUTS: [Duration; 3] = [Duration::from_millis(250), Duration::from_secs(3), Duration::from_secs(20)];
/// How late an answer may be on a busy machine.
const SLACK: Duration = Duration::from_secs(30);
/// How long a case waits for a good answer in time, before it is repeated with a longer time limit.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time limit of a call that is answered.
const PLENTY: Duration = Duration::from_secs(60);
/// For replies of about a mebibyte. Reading them takes this program some time.
const TIMEOUTS_LARGE: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(60)];
const HEADER: [u8; 4] = [0x80, 0x01, 0x00, 0x02];

const STRING: u8 = 11;
const STRUCT: u8 = 12;
const MAP: u8 = 13;
const SET: u8 = 14;
const LIST: u8 = 15;

/// The allocator counts for the whole program, so the tests that read its counters run one after another.
static MEASURING: Mutex<()> = Mutex::new(());

/// Opens a manager whose gateway is at `address`.
fn manager(address: SocketAddr, client: &str, timeout: Duration) -> LockManager {
    let uri = table::uri(address);
    LockManager::builder().store_uri(&uri).client(client).timeout(timeout).open().unwrap()
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

/// Returns a reply with these fields as its result. The first request of a connection has the number 1.
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

/// Returns replies that no gateway should send for `method`, each with the name of its defect.
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

/// Limit of the bytes allocated in one case, by the proxy and by other tests as well. Normal cases stay far below. If
/// the library trusted a length, the allocation would be far above, even if that memory were never written.
const ALLOCATED_MAX: usize = 16 << 20;

#[test]
fn nonsense_is_an_error_within_the_deadline_and_costs_no_memory() {
    let Some(gateway) = table::gateway() else { return };
    let _alone = MEASURING.lock();
    for (number, (what, bytes)) in nonsense("checkAndPut").into_iter().enumerate() {
        patiently(&TIMEOUTS, what, |timeout| nonsense_for_a_write(gateway, number, what, &bytes, timeout));
    }
    for (what, bytes) in nonsense("get") {
        patiently(&TIMEOUTS, what, |timeout| nonsense_for_a_read(gateway, what, &bytes, timeout));
    }
}

/// Runs a case with one time limit after the other, until it does not return `None`.
#[track_caller]
fn patiently(timeouts: &[Duration], what: &str, case: impl Fn(Duration) -> Option<()>) {
    let is_done = timeouts.iter().any(|timeout| case(*timeout).is_some());
    assert!(is_done, "{what}: the machine was too slow for {timeouts:?}");
}

fn nonsense_for_a_write(
    gateway: SocketAddr,
    number: usize,
    what: &str,
    bytes: &[u8],
    timeout: Duration,
) -> Option<()> {
    let memory = Region::new(ALLOCATOR);
    let proxy = thrift_proxy::before(gateway);
    let manager = manager(proxy.address(), "hostile", timeout);
    // A gateway that has never answered is greeted before it is asked for a change.
    manager.reach(timeout).ok()?;
    proxy.later("*", 0, usize::MAX, Fault::Answer(bytes.to_vec()));
    let lock = manager.lock(&format!("write-{number}-{:?}", Moment::now()), Level::Xdc).unwrap();
    let began = Moment::now();
    let error = lock.try_acquire().expect_err(what);
    let took = Moment::now().since(began);
    assert!(took < timeout + SLACK, "{what}: {took:?}");
    assert!(error.chain().len() < 2000, "{what}: a message of {} bytes", error.chain().len());
    if proxy.hits() == 0 {
        assert!(error.is_retryable(), "{what}: {}", error.chain());
        return None;
    }
    // The request was sent, and the reply does not show whether it was carried out. Some replies look like a
    // "yes" at first. Then the next request meets the nonsense.
    let expected = [Code::InDoubt, Code::RetriesExhausted];
    assert!(expected.contains(&error.code()), "{what}: {}", error.chain());
    proxy.heal();
    let lease = served(what, || lock.try_acquire())?;
    assert!(served(what, || lease.release())?, "{what}");
    assert_modest(&memory, what, proxy.hits() * bytes.len());
    Some(())
}

fn nonsense_for_a_read(gateway: SocketAddr, what: &str, bytes: &[u8], timeout: Duration) -> Option<()> {
    // None of these replies is a list without cells, which would mean that the row is empty.
    let memory = Region::new(ALLOCATOR);
    let proxy = thrift_proxy::before(gateway);
    let manager = manager(proxy.address(), "hostile", timeout);
    // Otherwise the nonsense answers the greeting.
    manager.reach(timeout).ok()?;
    proxy.later("*", 0, usize::MAX, Fault::Answer(bytes.to_vec()));
    let lock = manager.lock("read", Level::Xdc).unwrap();
    let began = Moment::now();
    let error = lock.inspect().expect_err(what);
    let took = Moment::now().since(began);
    assert!(error.is_retryable() && !error.is_in_doubt(), "{what}: {}", error.chain());
    assert!(took < timeout + SLACK, "{what}: {took:?}");
    proxy.heal();
    served(what, || lock.inspect())?;
    assert_modest(&memory, what, proxy.hits() * bytes.len());
    Some(())
}

/// Repeats a call that times out. On a busy machine a good answer may take longer than a short time-out: then it returns
/// `None` after a while. If an attempt that timed out has acquired the lock, the lock is freed in the background.
fn served<T>(what: &str, call: impl Fn() -> dlm::Result<T>) -> Option<T> {
    let patience = Deadline::after(PATIENCE);
    loop {
        match call() {
            Ok(value) => return Some(value),
            Err(error) if error.chain().contains("timed out") => {}
            Err(error) if error.code() == Code::LockUnavailable => {
                thread::sleep(Duration::from_millis(50));
            }
            Err(error) => panic!("{what}: {}", error.chain()),
        }
        if patience.passed() {
            return None;
        }
    }
}

/// `sent` is the number of bytes that the proxy has copied to send them.
#[track_caller]
fn assert_modest(memory: &Region<'_, System>, what: &str, sent: usize) {
    let allocated = memory.change().bytes_allocated;
    assert!(allocated < ALLOCATED_MAX + sent, "{what}: {} MiB were allocated", allocated >> 20);
}

/// Announced sizes of containers. An element takes more bytes in memory than in a reply, and generated code reserves
/// memory for all elements before it reads the first one.
const SIZES: [u32; 8] =
    [0xffff_ffff, 0x8000_0000, 0x7fff_ffff, 0x4000_0000, 0x2aaa_aaab, 0x1000_0000, 0x0010_0000, 0x0001_0000];

fn list(kind: u8, size: u32, elements: &[u8]) -> Vec<u8> {
    [&[kind], &size.to_be_bytes()[..], elements].concat()
}

fn map(key: u8, value: u8, size: u32, entries: &[u8]) -> Vec<u8> {
    [&[key], &list(value, size, entries)[..]].concat()
}

/// The request that a hostile reply answers.
#[derive(Clone, Copy)]
enum Call {
    CheckAndPut,
    Get,
    GetRows,
}

impl Call {
    fn method(self) -> &'static str {
        match self {
            Call::CheckAndPut => "checkAndPut",
            Call::Get => "get",
            Call::GetRows => "getRowsWithColumns",
        }
    }

    fn whole(self, result: &[u8]) -> Vec<u8> {
        reply(self.method(), 2, 1, result)
    }

    fn make(
        self,
        (manager, store): (&LockManager, &dyn LockStore),
        id: &str,
        timeout: Duration,
    ) -> Result<(), Error> {
        match self {
            Call::CheckAndPut => manager.lock(id, Level::Xdc)?.try_acquire()?.release().map(drop),
            Call::Get => manager.lock(id, Level::Xdc)?.inspect().map(drop),
            Call::GetRows => {
                let name = LatchName::new("hostile", "dc1", id, NamePolicy::Strict)?;
                let latches = store.latches().expect("a gateway has latches");
                let mut counts = latches.counts(&[(&name, Level::Dc)], Deadline::after(timeout))?;
                counts.pop().expect("one was asked for").map(drop)
            }
        }
    }
}

/// Sets the flag when it is dropped, also by a panic. Otherwise the other thread would run for ever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Answers one call with `bytes`. That call fails by its deadline and uses little memory. Meanwhile another manager
/// renews its lock over another connection. The next call succeeds.
fn assert_only_this_call_fails(
    gateway: SocketAddr,
    call: Call,
    what: &str,
    bytes: Vec<u8>,
    timeouts: &[Duration],
) {
    let what = format!("{}: {what}", call.method());
    patiently(timeouts, &what, |timeout| only_this_call_fails(gateway, call, &what, &bytes, timeout));
}

/// Returns `None` if the machine was too slow for the time-out.
fn only_this_call_fails(
    gateway: SocketAddr,
    call: Call,
    what: &str,
    bytes: &[u8],
    timeout: Duration,
) -> Option<()> {
    let proxy = thrift_proxy::before(gateway);
    let uri = table::uri(proxy.address());
    let manager = LockManager::builder().store_uri(&uri).client("hostile").timeout(timeout).open().unwrap();
    let store = dlm::store::open(&uri).unwrap();
    let id = format!("attacked-{:?}", Moment::now());
    let calm = manager_of_calm(&uri);
    let lease = calm.lock(&format!("calm-{id}"), Level::Xdc).unwrap().try_acquire().unwrap();
    // Requests contain the names of locks and latches unencoded.
    proxy.naming(
        format!("hostile{}", if matches!(call, Call::GetRows) { "_" } else { "#" }).as_bytes(),
        Fault::Answer(bytes.to_vec()),
    );
    let memory = Region::new(ALLOCATOR);
    let over = AtomicBool::new(false);
    let is_sent = thread::scope(|scope| {
        let renewing = scope.spawn(|| {
            let mut renewed = 0;
            while !over.load(Ordering::SeqCst) || renewed == 0 {
                lease.renew().unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
                renewed += 1;
                thread::sleep(Duration::from_millis(20));
            }
        });
        let began = Moment::now();
        let ending = Ending(&over);
        let outcome = call.make((&manager, &*store), &id, timeout);
        let took = Moment::now().since(began);
        drop(ending);
        renewing.join().unwrap();
        let error = outcome.expect_err(what);
        let doubtful = error.code() == Code::InDoubt;
        if doubtful {
            // A request in doubt was sent, although a slow proxy may not have read it yet.
            eventually("the proxy reads the request", || proxy.hits() > 0);
        }
        let is_sent = proxy.hits() > 0;
        let expected = is_sent && matches!(call, Call::CheckAndPut);
        assert_eq!(doubtful, expected, "{what}: {}", error.chain());
        assert!(doubtful || error.is_retryable(), "{what}: {}", error.chain());
        assert!(took < timeout + SLACK, "{what}: {took:?}");
        assert!(error.chain().len() < 2000, "{what}: a message of {} bytes", error.chain().len());
        is_sent
    });
    if !is_sent {
        return None;
    }
    assert_modest(&memory, what, proxy.hits() * bytes.len());
    proxy.heal();
    let attempt = AtomicUsize::new(0);
    served(what, || {
        let attempt = attempt.fetch_add(1, Ordering::SeqCst);
        call.make((&manager, &*store), &format!("{id}-{attempt}"), PATIENCE)
    })?;
    assert!(lease.release().unwrap(), "{what}");
    Some(())
}

/// Opens a manager whose calls are all answered.
fn manager_of_calm(uri: &str) -> LockManager {
    LockManager::builder().store_uri(uri).client("calm").timeout(PLENTY).ttl(10 * PLENTY).open().unwrap()
}

/// Returns results that announce a container or a string of `size`, in fields that the call reads or skips.
fn announced(call: Call, size: u32) -> Vec<(&'static str, Vec<u8>)> {
    let cell_value = [&list(STRUCT, 1, &[])[..], &field(STRING, 1, &size.to_be_bytes())].concat();
    let row = |inner: &[u8]| field(LIST, 0, &[&list(STRUCT, 1, &[])[..], inner].concat());
    let message = field(STRING, 1, &size.to_be_bytes());
    let mut all = vec![
        ("the message of a declared exception", field(STRUCT, 1, &message)),
        ("a list to be skipped", field(LIST, 9, &list(2, size, &[]))),
        ("a set to be skipped", field(SET, 9, &list(STRUCT, size, &[]))),
        ("a map to be skipped", field(MAP, 9, &map(STRING, STRUCT, size, &[]))),
        ("a string to be skipped", field(STRING, 9, &size.to_be_bytes())),
    ];
    match call {
        Call::CheckAndPut => {}
        Call::Get => {
            all.push(("the list of cells", field(LIST, 0, &list(STRUCT, size, &[]))));
            all.push(("the value of a cell", field(LIST, 0, &cell_value)));
        }
        Call::GetRows => {
            all.push(("the list of rows", field(LIST, 0, &list(STRUCT, size, &[]))));
            all.push(("the columns of a row", row(&field(MAP, 2, &map(STRING, STRUCT, size, &[])))));
            all.push(("the sorted columns of a row", row(&field(LIST, 3, &list(STRUCT, size, &[])))));
            all.push(("the key of a row", row(&field(STRING, 1, &size.to_be_bytes()))));
        }
    }
    all
}

/// CVE-2026-43868: a few bytes announce a size, and the readers of the `thrift` crate reserve that much memory.
/// Without a limit of the depth, nested values use up the stack in the same way.
#[test]
fn cve_2026_43868_an_announced_size_reserves_no_memory() {
    const DEEP: usize = 20_000;
    let Some(gateway) = table::gateway() else { return };
    let _alone = MEASURING.lock();
    for call in [Call::CheckAndPut, Call::Get, Call::GetRows] {
        for size in SIZES {
            for (what, result) in announced(call, size) {
                let what = format!("{size:#x} as the size of {what}");
                assert_only_this_call_fails(gateway, call, &what, call.whole(&result), &TIMEOUTS);
            }
        }
        let nested = [
            ("structures", field(STRUCT, 9, &[STRUCT, 0, 9].repeat(DEEP))),
            ("lists", field(LIST, 9, &list(LIST, 1, &[]).repeat(DEEP))),
            ("sets", field(SET, 9, &list(SET, 1, &[]).repeat(DEEP))),
            ("maps", field(MAP, 9, &map(2, MAP, 1, &[1]).repeat(DEEP))),
        ];
        for (what, result) in nested {
            let what = format!("{what} in {what}");
            assert_only_this_call_fails(gateway, call, &what, call.whole(&result), &TIMEOUTS);
        }
    }
}

/// CVE-2026-58389: in the older encoding a message begins with the length of its name, and the reader of the `thrift`
/// crate does not check it. The library's reader refuses every message of that encoding, even a valid one.
#[test]
fn cve_2026_58389_a_message_of_the_older_encoding_is_refused() {
    let Some(gateway) = table::gateway() else { return };
    let _alone = MEASURING.lock();
    for call in [Call::CheckAndPut, Call::Get, Call::GetRows] {
        for size in SIZES {
            let name = size.to_be_bytes();
            let what = format!("{size:#x} as the length of the name");
            assert_only_this_call_fails(gateway, call, &what, name.to_vec(), &TIMEOUTS);
            let strict = [&HEADER[..], &name].concat();
            assert_only_this_call_fails(gateway, call, &format!("{what}, strict"), strict, &TIMEOUTS);
        }
        let result = match call {
            Call::CheckAndPut => field(2, 0, &[1]),
            Call::Get | Call::GetRows => field(LIST, 0, &list(STRUCT, 0, &[])),
        };
        let message = [&text(call.method().as_bytes())[..], &[2, 0, 0, 0, 1], &result, &[0]].concat();
        assert_only_this_call_fails(gateway, call, "a valid message", message, &TIMEOUTS);
    }
}

/// CVE-2026-82458: each size is allowed, but the containers have fewer bytes than elements, or hardly more. A
/// structure without fields is one byte in a reply and up to 80 bytes in memory.
#[test]
fn cve_2026_82458_elements_of_hardly_any_bytes_take_no_memory_to_speak_of() {
    const SIZE: u32 = 1 << 14;
    const TIMES: usize = 60;
    let Some(gateway) = table::gateway() else { return };
    let _alone = MEASURING.lock();
    let empty = list(STRUCT, SIZE, &vec![0; SIZE as usize]);
    for (call, what, result) in [
        (Call::Get, "cells, again and again", field(LIST, 0, &empty).repeat(TIMES)),
        (Call::GetRows, "rows, again and again", field(LIST, 0, &empty).repeat(TIMES)),
        (Call::GetRows, "rows, each with as many columns", {
            let row = [&field(LIST, 3, &empty)[..], &[0]].concat();
            field(LIST, 0, &list(STRUCT, SIZE, &row.repeat(TIMES)))
        }),
        (Call::GetRows, "columns of one row, again and again", {
            field(LIST, 0, &list(STRUCT, 1, &field(LIST, 3, &empty).repeat(TIMES)))
        }),
        (Call::GetRows, "columns of one row by name", {
            let entries: Vec<_> = (0..u32::from(u16::MAX) * 2)
                .flat_map(|number| [&text(&number.to_be_bytes()[1..])[..], &[0]].concat())
                .collect();
            field(LIST, 0, &list(STRUCT, 1, &field(MAP, 2, &map(STRING, STRUCT, 0x1_0000, &entries))))
        }),
    ] {
        let bytes = call.whole(&result);
        assert!(bytes.len() < 2 << 20);
        assert_only_this_call_fails(gateway, call, what, bytes, &TIMEOUTS_LARGE);
    }
    for call in [Call::Get, Call::GetRows] {
        // The gateway sends nothing more, and the call waits until its deadline.
        for (what, result) in announced(call, SIZE) {
            let what = format!("nothing of {SIZE} in {what}");
            assert_only_this_call_fails(gateway, call, &what, call.whole(&result), &TIMEOUTS);
        }
    }
}

/// An extra reply must not be used as the answer to the next request.
#[test]
fn a_connection_with_a_word_too_much_is_not_used_again() {
    let Some(gateway) = table::gateway() else { return };
    let proxy = thrift_proxy::before(gateway);
    let manager = manager(proxy.address(), "stray", PLENTY);
    manager.reach(PLENTY).unwrap();
    let before = proxy.connections();
    let lock = manager.lock(&format!("{:?}", Moment::now()), Level::Xdc).unwrap();
    let refused = reply("checkAndPut", 2, 1, &[2, 0, 0, 0, 0]);
    let granted = reply("checkAndPut", 2, 2, &[2, 0, 0, 1, 0]);
    // A "no" to this request, followed by a "yes" to the next one.
    proxy.next("checkAndPut", Fault::Answer([refused, granted].concat()));
    let lease = lock.try_acquire().unwrap();
    let other = self::manager(gateway, "stray", PLENTY).lock(lock_id(&lock), Level::Xdc).unwrap();
    assert_eq!(other.try_acquire().unwrap_err().code(), Code::LockUnavailable);
    assert!(lease.release().unwrap());
    assert_eq!(proxy.connections() - before, 2);
}

fn lock_id(lock: &dlm::Lock) -> &str {
    lock.name().key().rsplit('#').next().unwrap()
}

/// Exceptions that the gateway's interface declares, with messages of HBase's gateway.
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
        // The gateway retries by itself. It may report this after a first try that was applied.
        ("...DoNotRetryIOException: Zookeeper LIST could not be completed in 10000 ms", Code::InDoubt),
        ("...RetriesExhaustedException: Failed after attempts=16", Code::InDoubt),
        ("a message that no version sends", Code::InDoubt),
        ("", Code::InDoubt),
    ];
    for (message, expected) in cases {
        patiently(&TIMEOUTS, message, |timeout| {
            let proxy = thrift_proxy::before(gateway);
            let error = [&field(STRING, 1, &text(message.as_bytes()))[..], &[0, 0]].concat();
            let refusal = reply("checkAndPut", 2, 1, &field(STRUCT, 1, &error));
            let manager = manager(proxy.address(), "refused", timeout);
            manager.reach(timeout).ok()?;
            proxy.later("*", 0, usize::MAX, Fault::Answer(refusal));
            let lock = manager.lock("a", Level::Xdc).unwrap();
            let began = Moment::now();
            let error = lock.try_acquire().unwrap_err();
            // Without a request or its reply in time.
            let is_late = proxy.hits() == 0 || Moment::now().since(began) >= timeout;
            if error.code() != expected && is_late && error.is_retryable() {
                return None;
            }
            assert_eq!(error.code(), expected, "{message}: {}", error.chain());
            Some(())
        });
    }
}

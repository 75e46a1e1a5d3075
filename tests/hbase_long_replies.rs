//! Replies over the size limit, on a socket that several threads share. Such a reply fails the call that it answers,
//! uses no memory and delays no other call. A separate program, because it measures the memory of its process.
#![cfg(feature = "hbase")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::store::LockStore;
use dlm::{Code, Deadline, Level, LockName, Moment, NamePolicy};
use dlm_fixtures::fake::{Answer, Fake, Request, holds};
use dlm_fixtures::memory::PeakMemory;
use dlm_testkit::{LONG, until};

/// How late an answer may be on a busy machine.
const SLACK: Duration = Duration::from_secs(30);

/// Locks on one store. Each fence counter has a different number.
struct Shared {
    fake: Fake,
    store: Arc<dyn LockStore>,
    names: Vec<LockName>,
}

const COUNTER: u64 = 1 << 41;

fn shared(names: usize) -> Shared {
    let fake = Fake::honest();
    let name = |id: usize| LockName::new(Level::Xdc, "shared", None, &id.to_string(), NamePolicy::Strict);
    let names: Vec<_> = (0..names).map(|id| name(id).unwrap()).collect();
    for (id, name) in names.iter().enumerate() {
        fake.put(HbaseStore::fence_row(name), "F", (COUNTER + id as u64).to_be_bytes().to_vec());
    }
    let store = dlm::store::open(&format!("hbase://{}/t", fake.address)).unwrap();
    let shared = Shared { fake, store, names };
    assert_eq!(shared.counter(0, LONG).unwrap(), COUNTER, "connected");
    shared
}

impl Shared {
    /// Reads the fence counter of a lock. This sends two Gets.
    fn counter(&self, id: usize, timeout: Duration) -> dlm::Result<u64> {
        let found = self.store.inspect(&self.names[id], Deadline::after(timeout))?;
        Ok(found.fence.expect("the counter exists").0)
    }

    fn is_of(request: &Request, name: &LockName) -> bool {
        holds(&request.parameter, &HbaseStore::fence_row(name))
    }
}

/// Largest frame that the library reads. It skips the content of a larger one.
const FRAME_MAX: u32 = 4 << 20;

/// A call that waits while other calls use the same socket.
struct Waiting {
    answer: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

/// Answers the call of the first lock when the flag `answer` is set. Answers the call of the second lock with a frame
/// of `length` bytes, of which at most `sent` bytes are sent.
fn with_long_reply(shared: &Shared, length: u32, sent: u32) -> Waiting {
    let waiting = Waiting { answer: Arc::default(), asked: Arc::default() };
    let (slow, long) = (shared.names[0].clone(), shared.names[1].clone());
    let (answer, asked) = (Arc::clone(&waiting.answer), Arc::clone(&waiting.asked));
    shared.fake.act(move |request| {
        if Shared::is_of(request, &slow) {
            asked.fetch_add(1, Ordering::SeqCst);
            return Answer::When(Arc::clone(&answer));
        }
        if Shared::is_of(request, &long) { Answer::Long(length, sent) } else { Answer::Honest }
    });
    waiting
}

#[track_caller]
fn assert_too_long(answer: dlm::Result<u64>, length: u32) {
    let error = answer.unwrap_err();
    assert_eq!(error.code(), Code::InternalError, "{}", error.chain());
    let told = format!("a reply of {length} bytes, over the limit of 4 MiB");
    assert!(error.chain().contains(&told), "{}", error.chain());
}

#[test]
fn a_reply_over_the_limit_fails_its_own_call_and_no_other_on_the_socket() {
    // If the largest reply were stored, the memory limit below would be exceeded.
    for length in [FRAME_MAX + 1, 5 << 20, 200 << 20] {
        let shared = shared(3);
        let waiting = with_long_reply(&shared, length, length);
        let memory = PeakMemory::measure();
        thread::scope(|scope| {
            let work = || assert_eq!(shared.counter(0, LONG).unwrap(), COUNTER);
            let slow = thread::Builder::new().name("dlm-test-slow".into()).spawn_scoped(scope, work).unwrap();
            until("a call waits for its reply", || waiting.asked.load(Ordering::SeqCst) == 1);
            let long = shared.counter(1, LONG);
            waiting.answer.store(true, Ordering::SeqCst);
            assert_too_long(long, length);
            slow.join().unwrap();
        });
        assert_eq!(waiting.asked.load(Ordering::SeqCst), 1, "{length}: the other call was sent again");
        assert_eq!(shared.counter(2, LONG).unwrap(), COUNTER + 2);
        if length < 64 << 20 {
            assert_eq!(shared.fake.connections("ClientService"), 1, "{length}: the socket was closed");
        }
        let grown = memory.grown_kib();
        assert!(grown < 32 * 1024, "{length}: {grown} KiB more than before");
    }
}

/// No other call needs the socket, and the rest of the reply may never arrive, so it is not skipped.
#[test]
fn a_socket_with_the_rest_of_a_long_reply_is_closed_when_nobody_waits() {
    let shared = shared(3);
    let waiting = with_long_reply(&shared, 5 << 20, 1 << 20);
    assert_too_long(shared.counter(1, LONG), 5 << 20);
    assert_eq!(shared.counter(2, LONG).unwrap(), COUNTER + 2);
    assert_eq!(shared.fake.connections("ClientService"), 2);
    assert_eq!(waiting.asked.load(Ordering::SeqCst), 0);
}

/// The bytes that a length announces may never arrive, or may arrive for hours.
#[test]
fn a_long_reply_of_no_end_keeps_nobody_beyond_the_own_deadline() {
    // On a slow machine, no request may be sent in the first of these times.
    const TIMEOUTS: [Duration; 3] =
        [Duration::from_millis(500), Duration::from_secs(4), Duration::from_secs(20)];
    for sent in [0, u32::MAX] {
        let is_sent = TIMEOUTS.into_iter().any(|timeout| long_reply_of_no_end(sent, timeout));
        assert!(is_sent, "no request was sent in {:?}", TIMEOUTS[2]);
    }
}

/// Returns `false` if the call with this time-out sent no request.
fn long_reply_of_no_end(sent: u32, timeout: Duration) -> bool {
    let shared = shared(3);
    let waiting = with_long_reply(&shared, u32::MAX - 100, sent);
    let is_sent = || waiting.asked.load(Ordering::SeqCst) >= 1;
    thread::scope(|scope| {
        let work = || {
            let begin = Moment::now();
            let error = shared.counter(0, timeout).unwrap_err();
            assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
            assert!(Moment::now().since(begin) < timeout + SLACK);
        };
        let slow = thread::Builder::new().name("dlm-test-slow".into()).spawn_scoped(scope, work).unwrap();
        until("a call waits for its reply", || is_sent() || slow.is_finished());
        let begin = Moment::now();
        assert_too_long(shared.counter(1, LONG), u32::MAX - 100);
        assert!(Moment::now().since(begin) < SLACK, "the call failed only after the reply was skipped");
        slow.join().unwrap();
    });
    // The next call does not wait behind that reply.
    assert_eq!(shared.counter(2, LONG).unwrap(), COUNTER + 2);
    assert_eq!(shared.fake.connections("ClientService"), 2);
    is_sent()
}

/// The server sent a reply, so it handled the write. Only a read shows whether the write took effect.
#[test]
fn a_write_whose_reply_is_over_the_limit_is_in_doubt_and_is_looked_at() {
    let fake = Fake::honest();
    let uri = format!("hbase://{}/t?client=shared", fake.address);
    let manager = dlm::LockManager::builder().store_uri(&uri).timeout(LONG).open().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let mut long = true;
    fake.act(move |request| match request.method.as_str() {
        "Multi" if std::mem::take(&mut long) => Answer::Long(5 << 20, 5 << 20),
        _ => Answer::Honest,
    });
    let lease = lock.try_acquire().unwrap();
    assert!(fake.count("Get") >= 1, "the result was not read back");
    assert!(lease.release().unwrap());
    fake.assert_no_write_was_repeated_blindly();
    fake.act(|request| match request.method.as_str() {
        "Multi" | "Get" => Answer::Long(5 << 20, 5 << 20),
        _ => Answer::Honest,
    });
    let error = lock.try_acquire().unwrap_err();
    assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
    assert!(error.chain().contains("over the limit of 4 MiB"), "{}", error.chain());
    fake.assert_no_write_was_repeated_blindly();
    fake.act(|_| Answer::Honest);
}

//! Servers that violate HBase's RPC protocol, by mistake, under load or by malice. The outcome is right, or an error
//! within the deadline. There is no panic, memory is bounded, and no write is sent again blindly. A separate program,
//! because it measures the memory of its process.
#![cfg(feature = "hbase")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::store::{Acquired, Attempt, Identity, LockStore, OwnerRecord, Renewal};
use dlm::{Code, Deadline, Lease, Level, Lock, LockManager, LockName, Moment, NamePolicy};
use dlm_fixtures::fake::{Answer, Fake, Pb, Request, actions, always, holds, reply};
use dlm_fixtures::memory::PeakMemory;
use dlm_testkit::until;
use parking_lot::Mutex;

/// Time limit of a call whose server misbehaves.
const TIMEOUT: Duration = Duration::from_millis(300);
/// How late an answer may be on a busy machine. Some calls end with a clean-up of two seconds.
const SLACK: Duration = Duration::from_secs(30);
/// Time limit of a call that should be answered in time.
const PLENTY: Duration = Duration::from_secs(60);
/// TTL of leases that do not end during a test.
const TTL: Duration = Duration::from_secs(1800);

/// Runs a case with a time-out, and then with longer ones if the machine was too slow. The case returns `None` if the
/// server did not receive enough, or if its answers did not arrive in that time.
#[track_caller]
fn patiently(timeout: Duration, mut case: impl FnMut(Duration) -> Option<()>) {
    for times in [1, 6, 36] {
        if case(timeout * times).is_some() {
            return;
        }
    }
    panic!("too little happened in {:?}", timeout * 36);
}

const NOT_SERVING: &str = "org.apache.hadoop.hbase.NotServingRegionException";
const MOVED: &str = "org.apache.hadoop.hbase.exceptions.RegionMovedException";
const IO: &str = "java.io.IOException";

fn manager(address: SocketAddr, timeout: Duration) -> LockManager {
    let uri = format!("hbase://{address}/t?client=hostile&farm=dc1");
    LockManager::builder().store_uri(&uri).timeout(timeout).open().unwrap()
}

fn lock(address: SocketAddr, timeout: Duration) -> Lock {
    manager(address, timeout).lock("a", Level::Xdc).unwrap()
}

#[test]
fn a_store_that_serves_is_reached_in_the_shortest_time() {
    let fake = Fake::honest();
    let manager = manager(fake.address, PLENTY);
    // Before it has answered, and after.
    for _ in 0..2 {
        manager.reach(Duration::ZERO).unwrap_or_else(|error| panic!("{}", error.chain()));
    }
}

/// Answers the first request of the method with `answer`, and all others honestly.
fn once(method: &'static str, answer: Answer) -> impl FnMut(&Request) -> Answer + Send {
    let mut answer = Some(answer);
    move |request| match request.method == method {
        true => answer.take().unwrap_or(Answer::Honest),
        false => Answer::Honest,
    }
}

/// Returns the bytes of all writes that the server received.
fn writes(fake: &Fake) -> Vec<Vec<u8>> {
    let multis = fake.log().into_iter().filter(|(request, _)| request.method == "Multi");
    multis.map(|(request, _)| request.parameter).collect()
}

#[track_caller]
fn acquired_and_released(fake: &Fake, lock: &Lock) {
    let lease = lock.try_acquire().unwrap_or_else(|error| panic!("{}", error.chain()));
    works(fake, &lease, lock);
}

#[track_caller]
fn works(fake: &Fake, lease: &Lease, lock: &Lock) {
    let row = HbaseStore::lock_row(lock.name());
    assert!(lease.fence().is_some(), "a grant has a fence");
    assert!(fake.cell(&row, "L").is_some_and(|value| !value.is_empty()), "granted, but the row is empty");
    lease.renew().unwrap();
    assert!(lease.release().unwrap());
    assert_eq!(fake.cell(&row, "L"), Some(Vec::new()));
}

#[test]
fn an_honest_fake_is_a_server_for_locks() {
    let fake = Fake::honest();
    let lock = lock(fake.address, PLENTY);
    acquired_and_released(&fake, &lock);
    let first = lock.try_acquire().unwrap();
    assert_eq!(lock.try_acquire().unwrap_err().code(), Code::LockUnavailable);
    assert!(first.release().unwrap());
    fake.assert_no_write_was_repeated_blindly();
    assert_eq!((fake.count("Scan"), fake.connections("ClientService")), (1, 1));
}

/// Returns answers that are not valid replies, each with the name of its defect.
fn nonsense() -> Vec<(&'static str, Answer)> {
    let raw = |bytes: &[u8]| Answer::Raw(bytes.to_vec());
    let framed = |bytes: &[u8]| Answer::Raw([&(bytes.len() as u32).to_be_bytes(), bytes].concat());
    vec![
        ("a web server", raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")),
        ("a shell", raw(b"SSH-2.0-OpenSSH_9.2p1\r\n")),
        ("zeros", raw(&[0; 4096])),
        ("ones", raw(&[0xff; 4096])),
        ("a negative length", raw(&[0x80, 0, 0, 0, 1, 2, 3])),
        ("a length of 2 GiB", raw(&[0x7f, 0xff, 0xff, 0xff, 1, 2, 3])),
        ("a length just over the limit", raw(&[0, 0x40, 0, 1, 1, 2, 3])),
        ("a length within the limit, and no more", raw(&[0, 0x3f, 0, 0, 1, 2, 3])),
        ("an empty frame", framed(&[])),
        ("a header longer than its frame", framed(&[200, 1, 8, 0])),
        ("a header of no end", framed(&[0xff; 11])),
        ("a message longer than its frame", framed(&[2, 8, 0, 200, 1])),
        ("a message shorter than its frame", framed(&[2, 8, 0, 0, 0, 0])),
        ("a header of another type", framed(&[3, 0x0d, 0, 0])),
        ("groups in groups", framed(&[&[100][..], &[0x0b; 100]].concat())),
        ("a call that was not made", Answer::WrongId),
        ("the call of all calls", Answer::Fatal(Some(u32::MAX), "x", "")),
        ("no call", Answer::Fatal(None, "", "")),
        ("an exception of no class", Answer::Refuse("", String::new())),
        ("a stack trace of a megabyte", Answer::Refuse(IO, "at a.b.C\n".repeat(120_000))),
        ("a reply cut in its length", Answer::Cut(2)),
        ("a reply cut in its header", Answer::Cut(5)),
        ("a reply cut at its last byte", Answer::Cut(usize::MAX)),
        ("a slow drip", Answer::Drip(Duration::from_millis(60))),
        ("silence", Answer::Silence),
        ("the end", Answer::Close),
        ("an answer that says nothing", Answer::Reply(Vec::new())),
        ("an answer of another kind", Answer::Reply(Pb::new().int(1, 1).int(2, 2).int(5, 5).0)),
        (
            "answers in answers",
            Answer::Reply((0..30).fold(Vec::new(), |inner, _| Pb::new().bytes(1, &inner).0)),
        ),
        ("frames without end", Answer::Flood(reply(4711, b"late"))),
        (
            "two gigabytes, and they do come",
            Answer::Flood([&[0x7f, 0xff, 0xff, 0xff][..], &[1; 60_000]].concat()),
        ),
        ("bytes without end", Answer::Flood([&[0, 0x3f, 0, 0][..], &[1; 60_000]].concat())),
    ]
}

/// Sends every kind of nonsense in place of every kind of reply that an acquire needs.
#[test]
fn nonsense_in_any_place_is_an_error_within_the_deadline_and_costs_no_memory() {
    let memory = PeakMemory::measure();
    let methods = ["GetMetaRegionLocations", "Scan", "Multi", "Get"];
    thread::scope(|scope| {
        for method in methods {
            // Three threads for each method, because they wait most of the time.
            for third in 0..3 {
                let work = move || {
                    for (what, answer) in nonsense().into_iter().skip(third).step_by(3) {
                        nonsense_at(method, what, answer);
                    }
                };
                let name = format!("dlm-test-{method}-{third}");
                thread::Builder::new().name(name).spawn_scoped(scope, work).unwrap();
            }
        }
    });
    let grown = memory.grown_kib();
    // Room for one frame of the largest allowed size in each thread, and for memory that the allocator keeps.
    assert!(grown < 128 * 1024, "{grown} KiB more than before");
}

fn nonsense_at(method: &'static str, what: &str, answer: Answer) {
    // The library sends a Get only if the result of a Multi is in doubt.
    let silent_multi = method == "Get";
    let fake = Fake::start(move |request| match request.method.as_str() {
        "Multi" if silent_multi => Answer::ApplyAndThrow(IO, "Java heap space".into()),
        other if other == method => answer.clone(),
        _ => Answer::Honest,
    });
    let lock = lock(fake.address, TIMEOUT);
    let begin = Moment::now();
    let outcome = lock.try_acquire().map(|lease| lease.fence());
    let took = Moment::now().since(begin);
    assert!(took <= TIMEOUT + SLACK, "{method}, {what}: {took:?}");
    let error = outcome.expect_err(&format!("{method}, {what}: granted"));
    let expected = [
        Code::ConnectionError,
        Code::RetriesExhausted,
        Code::InDoubt,
        Code::InternalError,
        Code::TableCreationError,
        Code::LockUnavailable,
    ];
    assert!(expected.contains(&error.code()), "{method}, {what}: {}", error.chain());
    let text = error.chain();
    assert!(text.len() < 2000 && !text.contains(char::is_control), "{method}, {what}: {text:.3000}");
    fake.assert_no_write_was_repeated_blindly();
}

#[test]
fn a_drip_that_is_over_in_time_is_a_reply_like_another() {
    let fake = Fake::start(always("Multi", Answer::Drip(Duration::from_millis(1))));
    acquired_and_released(&fake, &lock(fake.address, PLENTY));
}

/// Each exception class means "not applied" and is thrown once. The library then makes the write, and makes it once.
#[test]
fn a_write_that_was_refused_for_now_is_made_later() {
    let classes = [
        NOT_SERVING,
        "org.apache.hadoop.hbase.exceptions.RegionOpeningException",
        "org.apache.hadoop.hbase.regionserver.WrongRegionException",
        "org.apache.hadoop.hbase.RegionTooBusyException",
        "org.apache.hadoop.hbase.CallQueueTooBigException",
        "org.apache.hadoop.hbase.CallDroppedException",
        "org.apache.hadoop.hbase.quotas.RpcThrottlingException",
        "org.apache.hadoop.hbase.regionserver.RegionServerStoppedException",
        "org.apache.hadoop.hbase.regionserver.RegionServerAbortedException",
        "org.apache.hadoop.hbase.ipc.ServerNotRunningYetException",
        MOVED, // without the new address
    ];
    for class in classes {
        for answer in [Answer::Refuse(class, "x".into()), Answer::RefuseInside(class, "x".into())] {
            let fake = Fake::start(once("Multi", answer));
            acquired_and_released(&fake, &lock(fake.address, PLENTY));
            // Acquire refused, acquire, renewal, release.
            assert_eq!(fake.count("Multi"), 4, "{class}");
            assert_eq!(writes(&fake).iter().collect::<BTreeSet<_>>().len(), 3, "{class}");
        }
    }
}

#[test]
fn where_the_region_is_is_looked_up_again_when_it_is_not_there() {
    let (old, new) = (Fake::honest(), Fake::honest());
    let lock = lock(old.address, PLENTY);
    acquired_and_released(&old, &lock);
    old.catalogue(new.address);
    old.act(always("Multi", Answer::Refuse(NOT_SERVING, "closed".into())));
    acquired_and_released(&new, &lock);
    assert_eq!(old.count("Scan"), 2);
}

#[test]
fn a_region_that_moved_is_followed_without_asking_meta() {
    let told_in_text = |to: SocketAddr| {
        let text = format!(
            "Region moved to: hostname={} port={} startCode=17. As of locationSeqNum=5.",
            to.ip(),
            to.port()
        );
        Answer::RefuseInside(MOVED, text)
    };
    for told in [Answer::MovedTo as fn(SocketAddr) -> Answer, told_in_text] {
        let (old, new) = (Fake::honest(), Fake::honest());
        let lock = lock(old.address, PLENTY);
        old.act(always("Multi", told(new.address)));
        acquired_and_released(&new, &lock);
        assert_eq!((old.count("Scan"), old.count("Multi")), (1, 1), "followed, and remembered");
    }
}

/// This happens when a region moved from one server to another and back, and was then split.
#[test]
fn two_servers_that_send_us_to_each_other_for_ever_are_not_believed() {
    let (meta, one, other, right) = (Fake::honest(), Fake::honest(), Fake::honest(), Fake::honest());
    one.act(always("Multi", Answer::MovedTo(other.address)));
    other.act(always("Multi", Answer::MovedTo(one.address)));
    meta.catalogue(one.address);
    let lock = lock(meta.address, PLENTY);
    let address = right.address;
    // From the second Scan on, hbase:meta names the right server.
    let mut looks = 0;
    let shared = Arc::new(meta);
    let catalogue = Arc::downgrade(&shared);
    shared.act(move |request| {
        looks += usize::from(request.method == "Scan");
        if looks == 2 {
            catalogue.upgrade().unwrap().catalogue(address);
        }
        Answer::Honest
    });
    acquired_and_released(&right, &lock);
    assert!(one.count("Multi") + other.count("Multi") <= 4, "went in circles");
}

#[test]
fn a_server_that_is_always_busy_is_an_error_by_the_deadline_and_not_a_storm() {
    patiently(4 * TIMEOUT, |timeout| {
        let busy = Answer::Refuse("org.apache.hadoop.hbase.RegionTooBusyException", "x".into());
        let fake = Fake::start(always("Multi", busy));
        let begin = Moment::now();
        let error = lock(fake.address, timeout).try_acquire().unwrap_err();
        let (took, asked) = (Moment::now().since(begin), fake.count("Multi"));
        assert!(took <= timeout + SLACK);
        // It asks again after pauses of up to half a second.
        assert!(
            asked <= 20 * (timeout.as_millis() / TIMEOUT.as_millis()) as usize / 4,
            "asked {asked} times"
        );
        if asked < 2 {
            assert!(error.is_retryable(), "{}", error.chain());
            return None;
        }
        // On a busy machine a request gets no answer in time. A refusal that was read is never in doubt.
        if error.code() == Code::InDoubt && error.chain().contains("no answer") {
            return None;
        }
        assert_eq!(error.code(), Code::RetriesExhausted, "{}", error.chain());
        assert!(error.chain().contains("RegionTooBusyException"), "{}", error.chain());
        Some(())
    });
}

/// A retry would get the same answer.
#[test]
fn a_request_that_is_refused_for_good_is_made_once() {
    let refusals = [
        ("Multi", "org.apache.hadoop.hbase.security.AccessDeniedException", Code::InternalError),
        (
            "Multi",
            "org.apache.hadoop.hbase.regionserver.NoSuchColumnFamilyException",
            Code::TableCreationError,
        ),
        ("Multi", "org.apache.hadoop.hbase.TableNotEnabledException", Code::TableCreationError),
        ("Scan", "org.apache.hadoop.hbase.security.AccessDeniedException", Code::InternalError),
        ("Scan", "org.apache.hadoop.hbase.DoNotRetryIOException", Code::RetriesExhausted),
        ("GetMetaRegionLocations", "org.apache.hadoop.hbase.DoNotRetryIOException", Code::RetriesExhausted),
    ];
    for (method, class, code) in refusals {
        let fake = Fake::start(always(method, Answer::Refuse(class, "no".into())));
        let begin = Moment::now();
        let error = lock(fake.address, PLENTY).try_acquire().unwrap_err();
        assert_eq!(error.code(), code, "{method} {class}: {}", error.chain());
        assert_eq!(fake.count(method), 1, "{method} {class}");
        assert!(Moment::now().since(begin) < PLENTY / 2, "{method} {class}: waited for the deadline");
    }
}

/// An overloaded server throws these exceptions, and may have carried out the request or not.
#[test]
fn an_exception_that_proves_nothing_is_settled_by_looking() {
    let thrown: [(fn() -> Answer, usize); 5] = [
        (|| Answer::ApplyAndThrow(IO, "Java heap space".into()), 1),
        (|| Answer::Refuse(IO, "Java heap space".into()), 2),
        (|| Answer::RefuseInside(IO, "Java heap space".into()), 2),
        (|| Answer::ApplyAndThrow("org.example.NeverHeardOfException", "?".into()), 1),
        (|| Answer::ApplyAndThrow("org.apache.hadoop.hbase.DoNotRetryIOException", "?".into()), 1),
    ];
    for (answer, attempts) in thrown {
        let fake = Fake::start(once("Multi", answer()));
        let lock = lock(fake.address, PLENTY);
        let lease = lock.try_acquire().unwrap();
        assert!(fake.count("Get") >= 1, "the result was not read back");
        let sent: BTreeSet<_> = acquires(&fake).into_iter().collect();
        assert_eq!(
            (sent.len(), acquires(&fake).len()),
            (attempts, attempts),
            "two attempts had the same owner token"
        );
        works(&fake, &lease, &lock);
        fake.assert_no_write_was_repeated_blindly();
    }
}

/// Returns the shortest time for this number of requests. The first pause is 10 ms, and the pauses double up to half
/// a second. Jitter shortens each by at most a tenth.
fn pauses(rounds: usize) -> Duration {
    let pause = |round: u32| Duration::from_millis(10 << round.min(6)).min(Duration::from_millis(500));
    (0..u32::try_from(rounds).unwrap().saturating_sub(1)).map(|round| pause(round).mul_f64(0.89)).sum()
}

/// The exception class is not in the library's lists. Reads show that the write was not applied, so it is sent again.
#[test]
fn an_exception_that_nobody_listed_is_met_with_pauses_and_is_quoted() {
    // The refused step: the acquire, the renewal, the release, or only the fence count of an acquire.
    for refused in ["acquire", "renew", "release", "count"] {
        // Enough for about seven rounds.
        patiently(4 * TIMEOUT, |timeout| unlisted(refused, timeout));
    }
}

/// Returns `None` if the machine was so slow that there was no time for a retry.
fn unlisted(refused: &'static str, timeout: Duration) -> Option<()> {
    const UNLISTED: &str = "org.apache.hadoop.hbase.DoNotRetryIOException";
    let refuse = || Answer::Refuse(UNLISTED, "no space is left".into());
    let fake = Fake::honest();
    let manager = manager(fake.address, timeout);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let lease = match refused {
        "acquire" | "count" => None,
        _ => match lock.try_acquire() {
            Err(error) if error.is_retryable() => return None,
            lease => Some(lease.unwrap()),
        },
    };
    let (before, mut taken) = (fake.count("Multi"), false);
    fake.act(move |request| match request.method.as_str() {
        "Multi" if refused == "count" && !std::mem::replace(&mut taken, true) => {
            Answer::ApplyFirst(UNLISTED, "no space is left".into())
        }
        // The release after the failed count.
        "Multi" if refused == "count" && !holds(&request.parameter, b"F#XDC#") => Answer::Honest,
        "Multi" => refuse(),
        _ => Answer::Honest,
    });
    let begin = Moment::now();
    let error = match (refused, &lease) {
        ("renew", Some(lease)) => lease.renew().unwrap_err(),
        ("release", Some(lease)) => lease.release().unwrap_err(),
        _ => lock.try_acquire().unwrap_err(),
    };
    let took = Moment::now().since(begin);
    assert!(took <= timeout + SLACK, "{refused}: {took:?}");
    // Writes that are not retries. A failed acquire ends with an empty cell over the free lock, which keeps a
    // hidden record hidden. In the case `count`, the first write stores the record and the last one releases it.
    let others = match refused {
        "acquire" => 1,
        "count" => 2,
        _ => 0,
    };
    let writes = (fake.count("Multi") - before).saturating_sub(others);
    assert!(took >= pauses(writes), "{refused}: {writes} writes in {took:?}");
    fake.act(|_| Answer::Honest);
    if writes < 2 {
        assert!(error.is_retryable(), "{refused}: {}", error.chain());
        return None;
    }
    let code = if refused == "count" { Code::RetriesExhausted } else { Code::InDoubt };
    assert_eq!(error.code(), code, "{refused}: {}", error.chain());
    assert!(error.chain().contains("DoNotRetryIOException"), "{refused}: {}", error.chain());
    assert!(error.chain().contains("no space is left"), "{refused}: {}", error.chain());
    Some(())
}

/// The error does not show whether the change was applied. So the latch is read back, and that read fails as well.
#[test]
fn what_a_server_said_of_a_latch_is_not_lost_over_a_look_that_fails() {
    const UNLISTED: &str = "org.apache.hadoop.hbase.DoNotRetryIOException";
    type Change = fn(&dlm::Latch) -> dlm::Result<()>;
    // Each change, and the number of reads before it.
    let changes: [(Change, usize); 3] = [
        (|latch| latch.create(1), 1),
        (|latch| latch.count_down(), 0),
        (|latch| latch.count_down_as("w").map(drop), 1),
    ];
    for (number, (change, reads)) in changes.into_iter().enumerate() {
        patiently(TIMEOUT, |timeout| {
            let fake = Fake::honest();
            let manager = manager(fake.address, timeout);
            let latch = manager.latch("a", Level::Dc, dlm::LatchKind::CountDown).unwrap();
            if number > 0 {
                fake.put(HbaseStore::latch_row(latch.name()), "count_dc1", 5i64.to_be_bytes().to_vec());
            }
            let mut asked = 0;
            fake.act(move |request| {
                asked += usize::from(request.method == "Get");
                match request.method.as_str() {
                    "Multi" => Answer::Refuse(UNLISTED, "no space is left".into()),
                    "Get" if asked > reads => Answer::Close,
                    _ => Answer::Honest,
                }
            });
            let error = change(&latch).unwrap_err();
            // The look follows the answer to the change.
            if fake.count("Get") <= reads {
                assert!(error.is_retryable(), "{number}: {}", error.chain());
                return None;
            }
            assert_eq!(error.code(), Code::InDoubt, "{number}: {}", error.chain());
            assert!(error.chain().contains("DoNotRetryIOException"), "{number}: {}", error.chain());
            assert!(error.chain().contains("no space is left"), "{number}: {}", error.chain());
            assert_eq!(fake.count("Multi"), 1, "{number}: the change was sent again");
            Some(())
        });
    }
}

#[test]
fn a_wait_for_a_latch_that_we_may_not_read_ends_with_what_the_server_said() {
    const DENIED: &str = "org.apache.hadoop.hbase.security.AccessDeniedException";
    let refusals = [Answer::Refuse(DENIED, "not you".into()), Answer::RefuseInside(DENIED, "not you".into())];
    for refusal in refusals {
        let fake = Fake::honest();
        let latch = manager(fake.address, PLENTY).latch("a", Level::Dc, dlm::LatchKind::CountDown).unwrap();
        fake.put(HbaseStore::latch_row(latch.name()), "count_dc1", 5i64.to_be_bytes().to_vec());
        assert!(!latch.await_open_for(Duration::ZERO).unwrap());
        fake.act(always("Multi", refusal));
        let waiter = thread::Builder::new().name("dlm-test-waiter".into());
        let waiter = waiter.spawn(move || latch.await_open()).unwrap();
        until("a wait without a limit ends", || waiter.is_finished());
        let error = waiter.join().unwrap().unwrap_err();
        assert_eq!(error.code(), Code::InternalError, "{}", error.chain());
        assert!(error.chain().contains("AccessDeniedException: "), "{}", error.chain());
        assert!(error.chain().contains("not you"), "{}", error.chain());
    }
}

/// Returns the writes that acquire the lock. They contain the row of the fence, which renewals and releases do not
/// change, and the record, which a count alone does not write.
fn acquires(fake: &Fake) -> Vec<Vec<u8>> {
    let takes = |write: &Vec<u8>| holds(write, b"F#XDC#") && holds(write, b"M\x01");
    writes(fake).into_iter().filter(takes).collect()
}

#[test]
fn a_reply_lost_after_the_write_was_applied_is_settled_by_looking() {
    for lost in [Answer::ApplyAndClose, Answer::Cut(9)] {
        // The lost reply: of the acquire, of the renewal, of the release.
        for number in 0..3 {
            let (mut seen, lost) = (0, lost.clone());
            let fake = Fake::start(move |request| {
                seen += usize::from(request.method == "Multi");
                if request.method == "Multi" && seen == number + 1 { lost.clone() } else { Answer::Honest }
            });
            let lock = lock(fake.address, PLENTY);
            acquired_and_released(&fake, &lock);
            assert!(fake.count("Get") >= 1, "the result was not read back");
            assert_eq!(acquires(&fake).len(), 1, "an acquire that had been applied was sent again");
            fake.assert_no_write_was_repeated_blindly();
        }
    }
}

#[test]
fn a_write_whose_fate_cannot_be_found_out_is_in_doubt_and_is_freed_later() {
    patiently(TIMEOUT, |timeout| {
        let fake = Fake::start(|request| match request.method.as_str() {
            "Multi" => Answer::ApplyAndClose,
            "Get" => Answer::Close,
            _ => Answer::Honest,
        });
        let hasty = lock(fake.address, timeout);
        let error = hasty.try_acquire().unwrap_err();
        if fake.count("Multi") == 0 {
            assert!(error.is_retryable(), "{}", error.chain());
            return None;
        }
        assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
        let row = HbaseStore::lock_row(hasty.name());
        assert!(fake.cell(&row, "L").is_some_and(|value| !value.is_empty()), "the write was not applied");
        fake.assert_no_write_was_repeated_blindly();
        fake.act(|_| Answer::Honest);
        until("the lock of the request in doubt is freed", || fake.cell(&row, "L") == Some(Vec::new()));
        acquired_and_released(&fake, &lock(fake.address, PLENTY));
        Some(())
    });
}

/// A Delete of the Java library can hide a record of the same millisecond. The record is visible again when a
/// compaction has removed the Delete.
#[test]
fn a_record_that_was_hidden_when_it_was_to_be_handed_back_is_freed_when_it_shows() {
    let fake = Arc::new(Fake::honest());
    let lock = lock(fake.address, PLENTY);
    let row = HbaseStore::lock_row(lock.name());
    let (hidden, hiding) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&fake));
    // The record is written. Then the count of the fence fails, and the record is hidden.
    let (record, at) = (Arc::clone(&hidden), row.clone());
    let mut multis = 0;
    fake.act(move |request| {
        multis += usize::from(request.method == "Multi");
        match multis {
            1 if request.method == "Multi" => Answer::ApplyFirst(IO, "no".into()),
            2 if request.method == "Multi" => {
                let fake = hiding.upgrade().unwrap();
                *record.lock() = fake.cell(&at, "L").expect("the record was written");
                fake.put(at.clone(), "L", Vec::new());
                Answer::Refuse("org.apache.hadoop.hbase.security.AccessDeniedException", "no".into())
            }
            _ => Answer::Honest,
        }
    });
    let error = lock.try_acquire().unwrap_err();
    assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
    assert!(error.chain().contains("AccessDenied"), "{}", error.chain());
    fake.put(row.clone(), "L", hidden.lock().clone());
    until("the lock is freed", || fake.cell(&row, "L") == Some(Vec::new()));
    acquired_and_released(&fake, &lock);
}

#[test]
fn a_server_that_refuses_us_altogether_is_quoted_at_once() {
    let refusals = [
        (
            Some(u32::MAX),
            "org.apache.hadoop.hbase.security.AccessDeniedException",
            "Authentication is required",
            "Kerberos",
        ),
        (
            None,
            "org.apache.hadoop.hbase.security.AccessDeniedException",
            "Authentication is required",
            "Kerberos",
        ),
        (Some(u32::MAX), "org.apache.hadoop.hbase.ipc.BadAuthException", "no such auth", "Kerberos"),
        (Some(u32::MAX), "org.apache.hadoop.hbase.ipc.FatalConnectionException", "go away", "go away"),
        (Some(u32::MAX), "org.apache.hadoop.hbase.ipc.WrongVersionException", "version 9", "version 9"),
    ];
    for (id, class, text, expected) in refusals {
        for method in ["GetMetaRegionLocations", "Scan"] {
            let fake = Fake::start(always(method, Answer::Fatal(id, class, text)));
            let begin = Moment::now();
            let error = lock(fake.address, PLENTY).try_acquire().unwrap_err();
            assert_eq!(error.code(), Code::ConnectionError, "{class}: {}", error.chain());
            assert!(error.chain().contains(expected) && error.chain().contains(text), "{}", error.chain());
            assert!(Moment::now().since(begin) < PLENTY / 2, "{class}: waited for the deadline");
            assert_eq!(fake.count(method), 1, "{class}: the request was sent again");
        }
    }
}

/// A server that refuses the connection has not applied the write, so nothing is in doubt.
#[test]
fn a_write_to_a_server_that_refuses_us_was_not_made() {
    let refusal =
        Answer::Fatal(Some(u32::MAX), "org.apache.hadoop.hbase.security.AccessDeniedException", "no");
    let (meta, region) = (Fake::honest(), Fake::start(always("Multi", refusal)));
    meta.catalogue(region.address);
    let error = lock(meta.address, PLENTY).try_acquire().unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
    assert_eq!(region.count("Multi"), 1);
}

#[test]
fn a_server_that_speaks_tls_or_says_nothing_is_named_as_such() {
    // The alert that TLS servers send when the client does not use TLS.
    let fake = Fake::start(|_| Answer::Raw(vec![0x15, 3, 3, 0, 2, 2, 10]));
    let begin = Moment::now();
    let error = lock(fake.address, PLENTY).try_acquire().unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
    assert!(error.chain().contains("tls=on"), "{}", error.chain());
    assert!(Moment::now().since(begin) < PLENTY / 2, "waited for the deadline");
    fake.act(|_| Answer::Close);
    patiently(TIMEOUT, |timeout| {
        let error = lock(fake.address, timeout).try_acquire().unwrap_err();
        assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
        error.chain().contains("without an answer").then_some(())
    });
}

/// The deadline ends the last try without an answer. The error must quote the last answer before that.
#[test]
fn a_server_that_says_why_and_then_nothing_is_quoted() {
    patiently(5 * TIMEOUT, |timeout| {
        let mut asked = 0;
        let fake = Fake::start(move |_| {
            asked += 1;
            if asked <= 2 { Answer::Close } else { Answer::Silence }
        });
        let error = lock(fake.address, timeout).try_acquire().unwrap_err();
        assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
        error.chain().contains("without an answer").then_some(())
    });
}

/// The next active master continues the procedure.
#[test]
fn a_master_that_dies_while_it_makes_the_table_is_no_failure() {
    for dies_at in ["CreateTable", "getProcedureResult"] {
        let family = Pb::new().bytes(1, b"D");
        let described = Pb::new().bytes(1, &Pb::new().bytes(3, &family.0).0).0;
        let mut dead = false;
        let fake = Fake::start(move |request| match request.method.as_str() {
            "GetTableDescriptors" if dead => Answer::Reply(described.clone()),
            "getProcedureResult" if dies_at == "CreateTable" => panic!("no reply had a number"),
            method if method == dies_at => {
                dead = true;
                Answer::Close
            }
            _ => Answer::Honest,
        });
        let initialized = manager(fake.address, PLENTY).initialize();
        initialized.unwrap_or_else(|error| panic!("{dies_at}: {}", error.chain()));
        assert_eq!((fake.count("CreateTable"), fake.count(dies_at)), (1, 1));
    }
}

#[test]
fn initialize_says_what_the_master_said() {
    let denied = Answer::Refuse("org.apache.hadoop.hbase.security.AccessDeniedException", "not you".into());
    let fake = Fake::start(always("CreateTable", denied.clone()));
    let error = manager(fake.address, PLENTY).initialize().unwrap_err();
    assert_eq!(error.code(), Code::TableCreationError);
    let said = error.chain();
    assert!(said.contains("not you") && said.contains("the right CREATE"), "{said}");
    // A table whose schema is not shown to this user is there, and it serves.
    let fake = Fake::start(always("GetTableDescriptors", denied));
    manager(fake.address, PLENTY).initialize().unwrap();
    assert_eq!(fake.count("CreateTable"), 0);
    // Descriptors that cannot be read, procedures that never end, and a master that is not the active one.
    for (method, answer) in [
        ("GetTableDescriptors", Answer::Raw(vec![0xff; 64])),
        ("GetTableDescriptors", Answer::Refuse("org.apache.hadoop.hbase.PleaseHoldException", "x".into())),
        ("CreateTable", Answer::Silence),
        ("getProcedureResult", Answer::Reply(Pb::new().int(1, 1).0)),
    ] {
        let (bad, not_yet) = (answer.clone(), Answer::Refuse(NOT_SERVING, "opening".into()));
        let fake = Fake::start(move |request| match request.method.as_str() {
            "Get" => not_yet.clone(),
            called if called == method => bad.clone(),
            _ => Answer::Honest,
        });
        let begin = Moment::now();
        let store = dlm::store::open(&format!("hbase://{}/t", fake.address)).unwrap();
        let error = store.initialize(Deadline::after(TIMEOUT)).unwrap_err();
        assert!(Moment::now().since(begin) <= TIMEOUT + SLACK, "{method} {answer:?}");
        let codes = [Code::TableCreationError, Code::ConnectionError];
        assert!(codes.contains(&error.code()), "{method} {answer:?}: {}", error.chain());
    }
}

/// Leases of one store, to be renewed together.
struct Many {
    store: Arc<dyn LockStore>,
    leases: Vec<(LockName, OwnerRecord)>,
}

/// The answer to one renewal, and how long it took.
type Told = (dlm::Result<Option<OwnerRecord>>, Duration);

impl Many {
    fn new(address: SocketAddr, count: usize) -> Many {
        let store = dlm::store::open(&format!("hbase://{address}/t")).unwrap();
        let identity = Identity::this_process("").unwrap();
        let lease = |id: usize| {
            let name =
                LockName::new(Level::Xdc, "hostile", None, &id.to_string(), NamePolicy::Strict).unwrap();
            let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: Deadline::after(PLENTY) };
            match store.acquire(attempt, &mut Vec::new()).unwrap() {
                Acquired::Granted(grant) => (name.clone(), grant.owner_record),
                Acquired::Held(holder) => panic!("held by {holder}"),
            }
        };
        let leases = (0..count).map(lease).collect();
        Many { store, leases }
    }

    fn renew_until(&self, by: Deadline, alone: impl Fn(usize) -> bool) -> Vec<Told> {
        let renewal = |(at, (name, owner_record)): (usize, &'_ (LockName, OwnerRecord))| {
            // They live as long as this struct.
            (at, name.clone(), owner_record.clone())
        };
        let asked: Vec<_> = self.leases.iter().enumerate().map(renewal).collect();
        let renewals: Vec<_> = asked
            .iter()
            .map(|(at, name, owner_record)| Renewal { name, owner_record, ttl: 2 * TTL, alone: alone(*at) })
            .collect();
        let (begin, mut answers) = (Moment::now(), Vec::new());
        answers.resize_with(renewals.len(), || None);
        self.store.renew_many(&renewals, by, &mut |at, since, answer| {
            assert!(since >= begin && since <= Moment::now());
            let took = Moment::now().since(begin);
            assert!(answers[at].replace((answer, took)).is_none(), "reported twice");
        });
        answers.into_iter().map(|answer| answer.expect("reported")).collect()
    }

    fn renew(&self) -> Vec<Told> {
        self.renew_until(Deadline::after(PLENTY), |_| false)
    }

    fn row(&self, at: usize) -> Vec<u8> {
        HbaseStore::lock_row(&self.leases[at].0)
    }
}

/// Returns the number of region actions of each Multi after the first `before` ones.
fn sizes(fake: &Fake, before: usize) -> Vec<usize> {
    let multis = fake.log().into_iter().filter(|(request, _)| request.method == "Multi");
    multis.skip(before).map(|(request, _)| actions(&request)).collect()
}

#[track_caller]
fn assert_codes(told: &[Told], codes: &[Option<Code>]) {
    let seen: Vec<_> =
        told.iter().map(|(answer, _)| answer.as_ref().err().map(|error| error.code())).collect();
    assert_eq!(seen, codes);
    assert!(told.iter().all(|(answer, _)| !matches!(answer, Ok(None))), "lost");
}

#[test]
fn many_renewals_share_requests_and_each_has_its_own_answer() {
    let fake = Fake::honest();
    let many = Many::new(fake.address, 70);
    let [gone, taken, newer, alone] = [1, 2, 3, 69];
    let other = Many::new(Fake::honest().address, 1).leases.remove(0).1;
    fake.put(many.row(gone), "L", Vec::new());
    fake.put(many.row(taken), "L", other.as_bytes().to_vec());
    let (name, record) = &many.leases[newer];
    many.store.renew(name, record, TTL + TTL / 2, Deadline::after(PLENTY)).unwrap().unwrap();
    let before = fake.count("Multi");
    let told = many.renew_until(Deadline::after(PLENTY), |at| at == alone);
    for (at, (answer, _)) in told.into_iter().enumerate() {
        assert_eq!(answer.unwrap().is_none(), [gone, taken].contains(&at), "{at}");
    }
    let sizes = sizes(&fake, before);
    // The one alone comes first. The refused ones are read, and one of them has a newer record.
    assert_eq!(sizes[..4], [1, 23, 23, 23]);
    assert_eq!(sizes[4..].iter().sum::<usize>(), 3 + 1, "{sizes:?}");
    assert_eq!((fake.count("Get"), fake.connections("ClientService")), (0, 1));
    assert_eq!(fake.cell(&many.row(gone), "L"), Some(Vec::new()), "brought back");
    assert_eq!(fake.cell(&many.row(taken), "L").as_deref(), Some(other.as_bytes()), "overwritten");
}

#[test]
fn several_requests_are_sent_before_one_is_answered() {
    let fake = Fake::honest();
    let many = Many::new(fake.address, 256);
    let (before, may_answer) = (fake.count("Multi"), Arc::new(AtomicBool::new(false)));
    fake.act(always("Multi", Answer::When(Arc::clone(&may_answer))));
    thread::scope(|scope| {
        let renewing = scope.spawn(|| many.renew());
        until("four requests are sent", || fake.count("Multi") == before + 4);
        may_answer.store(true, Ordering::SeqCst);
        assert_codes(&renewing.join().unwrap(), &[None; 256]);
    });
    assert_eq!(sizes(&fake, before), [64; 4]);
}

#[test]
fn an_exception_for_one_renewal_leaves_the_others_alone() {
    for (class, code, writes) in [
        (IO, Some(Code::InDoubt), 3),
        ("org.apache.hadoop.hbase.security.AccessDeniedException", Some(Code::InternalError), 3),
        // Surely not applied: they are sent again.
        (NOT_SERVING, None, 5),
    ] {
        let fake = Fake::honest();
        let many = Many::new(fake.address, 3);
        let before = writes_of_locks(&fake);
        fake.act(once("Multi", Answer::ApplyFirst(class, "no".into())));
        assert_codes(&many.renew(), &[None, code, code]);
        assert_eq!(writes_of_locks(&fake) - before, writes, "{class}");
    }
}

fn writes_of_locks(fake: &Fake) -> usize {
    sizes(fake, 0).iter().sum()
}

#[test]
fn an_exception_for_all_renewals_is_that_of_each() {
    for (class, code) in
        [(IO, Some(Code::InDoubt)), (NOT_SERVING, None), ("x.CallQueueTooBigException", None)]
    {
        for answer in [Answer::Refuse(class, "no".into()), Answer::RefuseInside(class, "no".into())] {
            let fake = Fake::honest();
            let many = Many::new(fake.address, 3);
            fake.act(once("Multi", answer));
            assert_codes(&many.renew(), &[code; 3]);
        }
    }
}

#[test]
fn renewals_without_a_result_of_their_own_are_in_doubt() {
    let yes = Pb::new().int(3, 1).0;
    let result = |count: usize| (0..count).fold(Pb::new(), |body, _| body.bytes(1, &yes)).0;
    let odd = [0, 1, 2, 4].map(|count| Answer::Reply(result(count))).into_iter();
    let empty = Answer::Reply((0..3).fold(Pb::new(), |body, _| body.bytes(1, b"")).0);
    for answer in
        odd.chain([empty, Answer::ApplyAndClose, Answer::Close, Answer::Cut(9), Answer::Long(1 << 27, 9)])
    {
        let fake = Fake::honest();
        let many = Many::new(fake.address, 3);
        let before = fake.count("Multi");
        fake.act(once("Multi", answer.clone()));
        assert_codes(&many.renew(), &[Some(Code::InDoubt); 3]);
        assert_eq!(fake.count("Multi") - before, 1, "sent again: {answer:?}");
        // They were applied or not. Either way they may be repeated.
        assert_codes(&many.renew(), &[None; 3]);
    }
}

#[test]
fn a_server_that_hangs_delays_no_renewal_on_another_server() {
    let (fake, hung) = (Fake::honest(), Fake::honest());
    // The rows begin with a hash byte, so about half of them are in each region.
    fake.split(&[0x80]);
    fake.second_region(hung.address);
    let many = Many::new(fake.address, 600);
    let rows: Vec<_> = (0..600).map(|at| many.row(at)).collect();
    let is_hung = |at: usize| rows[at][0] >= 0x80;
    assert!((0..600).any(is_hung) && !(0..600).all(is_hung));
    hung.act(always("Multi", Answer::Silence));
    hung_delays_no_other(&many, is_hung);
    // A store that has no connections, and does not know the regions.
    let store = dlm::store::open(&format!("hbase://{}/t", fake.address)).unwrap();
    let many = Many { store, leases: many.leases.clone() };
    hung_delays_no_other(&many, is_hung);
    hung.act(|_| Answer::Honest);
    assert_codes(&many.renew(), &[None; 600]);
}

fn hung_delays_no_other(many: &Many, is_hung: impl Fn(usize) -> bool) {
    patiently(12 * TIMEOUT, |timeout| {
        let begin = Moment::now();
        let told = many.renew_until(Deadline::after(timeout), |at| at == 0);
        let took = Moment::now().since(begin);
        assert!(took < timeout + timeout / 2 + SLACK, "{took:?}");
        let (mut in_doubt, mut unsent) = (0, 0);
        for (at, (answer, took)) in told.iter().enumerate() {
            match answer {
                Ok(renewed) => assert!(renewed.is_some() && !is_hung(at)),
                Err(error) if !is_hung(at) => {
                    assert!(error.is_retryable() && *took >= timeout / 2, "{at}: {}", error.chain());
                }
                Err(error) => match error.code() {
                    Code::InDoubt => in_doubt += 1,
                    Code::ConnectionError => unsent += 1,
                    code => panic!("{code:?}: {}", error.chain()),
                },
            }
        }
        // The other server answers within half of the time, unless the machine is very busy.
        let is_late = |(at, (_, took)): (usize, &Told)| !is_hung(at) && *took >= timeout / 2;
        if told.iter().enumerate().any(is_late) {
            return None;
        }
        // Four requests at most are under way. The lease that goes alone may be on this server.
        assert!([256, 193].contains(&in_doubt), "{in_doubt}");
        assert_eq!(in_doubt + unsent, (0..600).filter(|at| is_hung(*at)).count());
        Some(())
    });
}

#[test]
fn renewals_follow_their_region_to_another_server() {
    let (old, new) = (Fake::honest(), Fake::honest());
    let many = Many::new(old.address, 70);
    for at in 0..70 {
        new.put(many.row(at), "L", old.cell(&many.row(at), "L").unwrap());
    }
    old.catalogue(new.address);
    let moved =
        |to: SocketAddr| format!("Region moved to: hostname={} port={} startCode=17.", to.ip(), to.port());
    for answer in [
        Answer::RefuseInside(NOT_SERVING, "closed".into()),
        Answer::RefuseInside(MOVED, moved(new.address)),
        Answer::Refuse(NOT_SERVING, "closed".into()),
    ] {
        let many = Many {
            store: dlm::store::open(&format!("hbase://{}/t", old.address)).unwrap(),
            leases: many.leases.clone(),
        };
        // It knows the old server.
        old.catalogue(old.address);
        assert!(many.store.holder(&many.leases[0].0, Deadline::after(PLENTY)).unwrap().is_some());
        old.catalogue(new.address);
        old.act(always("Multi", answer));
        assert_codes(&many.renew(), &[None; 70]);
    }
}

#[test]
fn renewals_on_a_server_that_is_down_fail_by_the_deadline_and_are_not_in_doubt() {
    let (fake, gone) = (Fake::honest(), Fake::honest());
    fake.split(&[0x80]);
    fake.second_region(gone.address);
    let many = Many::new(fake.address, 100);
    drop(gone);
    patiently(8 * TIMEOUT, |timeout| {
        let told = many.renew_until(Deadline::after(timeout), |_| false);
        let mut is_late = false;
        for (at, (answer, took)) in told.into_iter().enumerate() {
            let is_there = many.row(at)[0] < 0x80;
            match answer {
                Ok(renewed) => assert!(renewed.is_some() && is_there),
                // The server that is there did not answer in time.
                Err(error) if is_there => {
                    assert!(error.is_retryable() && took >= timeout / 2, "{}", error.chain());
                    is_late = true;
                }
                Err(error) => {
                    assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
                    assert!(took < timeout + SLACK, "{took:?}");
                }
            }
        }
        (!is_late).then_some(())
    });
}

/// The thread that renews waits for each request in turn. Between these waits another thread must read the connection.
#[test]
fn renewals_without_an_answer_do_not_keep_other_calls_from_theirs() {
    patiently(16 * TIMEOUT, |timeout| {
        let fake = Fake::honest();
        let many = Many::new(fake.address, 100);
        fake.act(always("Multi", Answer::Silence));
        let is_quick = thread::scope(|scope| {
            let renewing = scope.spawn(|| many.renew_until(Deadline::after(timeout), |_| false));
            until("the renewals are sent", || fake.count("Multi") >= 2 || renewing.is_finished());
            let (mut reads, mut longest) = (0, Duration::ZERO);
            while !renewing.is_finished() {
                let (begin, by) = (Moment::now(), Deadline::after(PLENTY));
                assert!(many.store.holder(&many.leases[0].0, by).unwrap().is_some());
                longest = longest.max(Moment::now().since(begin));
                reads += 1;
            }
            let told = renewing.join().unwrap();
            // A read that waits for the renewals takes until their end.
            let is_quick = reads > 10 && longest < timeout / 2 && fake.count("Multi") >= 2;
            if is_quick {
                assert_codes(&told, &[Some(Code::InDoubt); 100]);
            }
            is_quick
        });
        assert_eq!(fake.connections("ClientService"), 1, "each of them was heard");
        is_quick.then_some(())
    });
}

//! Stores in which a writer or a reader waits for ever are found. No history shows that, because a wait may time out. So
//! these cases go step by step, and count who gets the lock meanwhile.

use std::sync::Arc;
use std::time::Duration;

use dlm::store::{LockStore, MemoryStore};
use dlm::{AcquireOptions, Code, Lease, Level, Lock, LockManager, Pending};
use dlm_testkit::mutants::{LockMutant, LockMutation};
use dlm_testkit::{Call, LONG, Spy, until};

const RETRY: Duration = Duration::from_millis(10);

/// So many readers may get the lock while a writer waits. In the case below nobody has waited long enough for a turn, so
/// only those may pass who asked before the writer's intent was in the store.
const BOUND: usize = 2;

fn healthy() -> Arc<dyn LockStore> {
    Arc::new(MemoryStore::new())
}

fn mutant(mutation: LockMutation) -> Arc<dyn LockStore> {
    Arc::new(LockMutant::new(healthy(), mutation))
}

/// Returns a lock of a manager of its own, like a process.
fn lock(store: &Arc<Spy>, id: &str) -> Lock {
    let builder = LockManager::builder().store(store.clone()).client("starved").retry(RETRY);
    builder.ttl(30 * LONG).wait(LONG).open().unwrap().lock(id, Level::Xdc).unwrap()
}

fn start(lock: &Lock, wait: Duration) -> Pending {
    lock.start(&AcquireOptions::new().wait(wait)).unwrap()
}

/// Two readers take turns, so that one of them holds the lock at any time, until one is refused. Meanwhile a writer waits.
/// Returns how many readers got the lock, up to a few more than [`BOUND`].
fn readers_let_in_before_a_writer(store: Arc<dyn LockStore>) -> usize {
    let spy = Spy::on(store);
    let (mut next, mut last, writer) = (lock(&spy, "a").shared(), lock(&spy, "a").shared(), lock(&spy, "a"));
    let mut held = last.acquire().unwrap();
    let waiting = start(&writer, LONG);
    until("the writer says that it waits", || spy.calls_of(Call::Announce) > 0);
    let mut let_in = 0;
    while let_in < 10 * BOUND {
        match next.try_acquire() {
            Ok(lease) => {
                assert!(held.release().unwrap());
                held = lease;
                let_in += 1;
            }
            Err(error) => {
                assert_eq!(error.code(), Code::LockUnavailable, "{error}");
                break;
            }
        }
        std::mem::swap(&mut next, &mut last);
    }
    assert!(waiting.take().unwrap().is_none(), "there was a reader at any time");
    assert!(held.release().unwrap());
    until("the writer gets the lock", || waiting.take().unwrap().is_some());
    let_in
}

#[test]
fn a_writer_waits_for_the_readers_that_are_there_and_for_no_others() {
    let let_in = readers_let_in_before_a_writer(healthy());
    assert!(let_in <= BOUND, "{let_in} readers");
}

#[test]
fn a_writer_that_readers_never_let_pass_is_found() {
    let let_in = readers_let_in_before_a_writer(mutant(LockMutation::IgnoresIntent));
    assert!(let_in > BOUND, "{let_in} readers");
}

/// Two processes read a lock each and want that of the other, while writers wait for both. Returns what the readers got.
fn crosswise(store: Arc<dyn LockStore>, wait: Duration) -> [dlm::Result<Lease>; 2] {
    let spy = Spy::on(store);
    let held = ["a", "b"].map(|id| lock(&spy, id).shared().acquire().unwrap());
    let writers = ["a", "b"].map(|id| start(&lock(&spy, id), LONG));
    until("both writers say that they wait", || spy.calls_of(Call::Announce) > 1);
    // These managers do not hold the lock that they want.
    let readers = ["b", "a"].map(|id| start(&lock(&spy, id).shared(), wait));
    let got = readers.map(|reader| {
        let mut got = None;
        until("the wait of a reader ends", || {
            got = reader.take().transpose();
            got.is_some()
        });
        got.expect("it has ended")
    });
    held.iter().for_each(|lease| assert!(lease.release().unwrap()));
    got.iter().flatten().for_each(|lease| assert!(lease.release().unwrap()));
    for writer in writers {
        until("a writer gets the lock", || writer.take().unwrap().is_some());
    }
    got
}

#[test]
fn two_readers_and_two_writers_crosswise_all_get_their_locks() {
    assert!(crosswise(healthy(), LONG).iter().all(Result::is_ok));
}

/// Intents keep readers out for ten retry intervals at most.
#[test]
fn a_reader_that_writers_keep_out_for_ever_is_found() {
    for got in crosswise(mutant(LockMutation::IgnoresTurn), 50 * RETRY) {
        assert_eq!(got.unwrap_err().code(), Code::LockUnavailable);
    }
}

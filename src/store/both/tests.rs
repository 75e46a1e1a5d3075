//! Tests of the layout `both` over two scripted registers.

use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::error::Code;
use crate::names::holder::Identity;
use crate::names::lock_name::{Level, NamePolicy};
use crate::runtime::sync::real::Mutex;
use crate::store::remote::{Capabilities, Create, Created, Found, ReadBack, Record, Replace, Standing};
use crate::testing::patience::LONG;

/// The deadline of an acquire that must not succeed.
const BRIEF: Duration = Duration::from_millis(300);
pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) const JAVA: usize = 0;
pub(crate) const OWN: usize = 1;

/// The fate of one request.
#[derive(Clone, Copy)]
pub(crate) enum Fate {
    /// The request is applied, and the answer is lost.
    ReplyLost,
    /// The request is lost. The client cannot distinguish this from `ReplyLost`.
    RequestLost,
    Down,
    /// Something happens before the request arrives.
    After(fn(&mut Halves)),
}

#[derive(Default)]
pub(crate) struct Halves {
    pub(crate) records: [Option<Record>; 2],
    numbers: [u64; 2],
    /// The next fates of requests, by their names.
    fates: VecDeque<(&'static str, Fate)>,
    pub(crate) requests: Vec<&'static str>,
}

impl fmt::Debug for Halves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Halves")
    }
}

pub(crate) type Server = Arc<Mutex<Halves>>;

/// One of the two registers.
#[derive(Debug)]
pub(crate) struct Half(Server, usize);

fn ask<T>(
    server: &Server,
    request: [&'static str; 2],
    half: usize,
    run: impl FnOnce(&mut Halves) -> T,
) -> Result<T> {
    let server = &mut *server.lock();
    let request = request[half];
    server.requests.push(request);
    let planned = server.fates.iter().position(|(planned, _)| *planned == request);
    let lost = || Error::InDoubt { what: request.into(), source: None };
    match planned.and_then(|at| server.fates.remove(at)) {
        None => Ok(run(server)),
        Some((_, Fate::ReplyLost)) => {
            run(server);
            Err(lost())
        }
        Some((_, Fate::RequestLost)) => Err(lost()),
        Some((_, Fate::Down)) => {
            Err(Error::Connection { store: "scripted".into(), what: request.into(), source: None })
        }
        Some((_, Fate::After(change))) => {
            change(server);
            Ok(run(server))
        }
    }
}

fn standing(record: Option<&Record>) -> Standing {
    record.map_or(Standing::Free, |record| {
        Standing::Held(Found { record: Some(record.clone()), ..Found::default() })
    })
}

impl Register for Half {
    fn describe(&self) -> String {
        ["java:", "own:"][self.1].into()
    }

    fn capabilities(&self) -> Capabilities {
        let own =
            Capabilities { counts_in_record: true, read_back: ReadBack::Never, ..Capabilities::default() };
        if self.1 == OWN { own } else { Capabilities::default() }
    }

    fn initialize(&self, _: Deadline) -> Result<()> {
        ask(&self.0, ["java init", "own init"], self.1, |_| ())
    }

    fn create(&self, create: &Create<'_>, _: Deadline) -> Reply<Created> {
        let half = self.1;
        let created = ask(&self.0, ["java create", "own create"], half, |server| {
            if server.records[half].is_some() {
                return Reply::No(Some(standing(server.records[half].as_ref())));
            }
            let next = server.numbers[half] + 1;
            server.numbers[half] = if half == OWN { next.max(create.count.unwrap()) } else { next };
            let number = server.numbers[half];
            server.records[half] =
                Some(if half == OWN { create.record.numbered(number) } else { create.record.clone() });
            let standing = Some(standing(server.records[half].as_ref()));
            Reply::Yes(Created { count: Some(number), standing })
        });
        Reply::of(created, |reply| reply)
    }

    fn replace(&self, replace: &Replace<'_>, _: Deadline) -> Reply {
        let half = self.1;
        Reply::of_bool(ask(&self.0, ["java replace", "own replace"], half, |server| {
            let is = server.records[half].as_ref() == Some(&replace.expected);
            if is {
                server.records[half] = Some(replace.record.clone());
            }
            is
        }))
    }

    fn remove(&self, _: &LockName, expected: &Record, _: Deadline) -> Reply {
        let half = self.1;
        Reply::of_bool(ask(&self.0, ["java remove", "own remove"], half, |server| {
            let is = server.records[half].as_ref() == Some(expected);
            if is {
                server.records[half] = None;
            }
            is
        }))
    }

    fn read(&self, _: &LockName, _: Deadline) -> Result<Standing> {
        let half = self.1;
        ask(&self.0, ["java read", "own read"], half, |server| standing(server.records[half].as_ref()))
    }

    fn count(&self, _: &LockName, _: u64, _: Deadline) -> Result<u64> {
        unreachable!("the number comes with the creation")
    }

    fn last_count(&self, _: &LockName, _: Deadline) -> Result<Option<u64>> {
        let half = self.1;
        let number = ask(&self.0, ["java number", "own number"], half, |server| server.numbers[half])?;
        Ok(Some(number).filter(|number| *number > 0))
    }
}

#[derive(Debug)]
pub(crate) struct Scripted {
    java: RemoteStore<Half>,
    own: RemoteStore<Half>,
    server: Server,
}

impl LayoutBridge for Scripted {
    type Java = Half;
    type Own = Half;

    fn java(&self) -> &RemoteStore<Half> {
        &self.java
    }

    fn own(&self) -> &RemoteStore<Half> {
        &self.own
    }

    fn set_count(&self, _: &LockName, from: Option<u64>, to: u64, _: Deadline) -> Reply {
        Reply::of_bool(ask(&self.server, ["set"; 2], JAVA, |server| {
            let is = server.numbers[JAVA] == from.unwrap_or_default();
            if is {
                server.numbers[JAVA] = to;
            }
            is
        }))
    }

    fn check_ttl(&self, ttl: Duration) -> Result<()> {
        if ttl <= LONG { Ok(()) } else { Err(Error::invalid("ttl", "long", "at most a minute")) }
    }

    fn promises(&self) -> Vec<Promise> {
        Vec::new()
    }

    fn unpaired(&self, _: Deadline) -> Result<Vec<Diagnostic>> {
        Ok(Vec::new())
    }
}

/// A store whose half `own` has answered, and its server.
pub(crate) fn store() -> (BothStore<Scripted>, Server) {
    let server = Server::default();
    let [java, own] = [JAVA, OWN].map(|half| RemoteStore::new(Half(Arc::clone(&server), half)));
    let store = BothStore::new(Scripted { java, own, server: Arc::clone(&server) });
    store.own_answered.store(true, Ordering::Relaxed);
    (store, server)
}

fn name() -> LockName {
    LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap()
}

fn draw() -> Record {
    Record::draw(TTL, &Identity::this_process("tests").unwrap()).unwrap()
}

/// Returns the answer of an acquire and the records in doubt.
fn acquire(store: &BothStore<Scripted>, by: Duration) -> (Result<Acquired>, Vec<OwnerRecord>) {
    let (name, identity, mut doubtful) = (name(), Identity::this_process("tests").unwrap(), Vec::new());
    let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: Deadline::after(by) };
    (store.acquire(attempt, &mut doubtful), doubtful)
}

#[track_caller]
fn granted(store: &BothStore<Scripted>) -> Grant {
    let (answer, doubtful) = acquire(store, LONG);
    assert!(doubtful.is_empty());
    match answer.unwrap() {
        Acquired::Granted(grant) => grant,
        Acquired::Held(holder) => panic!("held by {holder}"),
    }
}

fn release(store: &BothStore<Scripted>, record: &OwnerRecord) -> Result<Released> {
    store.release(&name(), record, Deadline::after(LONG))
}

pub(crate) fn plan(server: &Server, request: &'static str, fate: Fate) {
    server.lock().fates.push_back((request, fate));
}

fn requests(server: &Server) -> Vec<&'static str> {
    std::mem::take(&mut server.lock().requests)
}

pub(crate) fn are_held(server: &Server) -> [bool; 2] {
    server.lock().records.each_ref().map(Option::is_some)
}

/// Which parts the records have.
fn parts(doubtful: &[OwnerRecord]) -> Vec<[bool; 2]> {
    let parts = doubtful.iter().map(|record| OwnerParts::decode(record).unwrap());
    parts.map(|OwnerParts { java, own }| [java.is_some(), own.is_some()]).collect()
}

#[test]
fn the_locks_are_acquired_in_one_order_and_released_in_the_other() {
    let (store, server) = store();
    let grant = granted(&store);
    assert_eq!(requests(&server), ["java create", "own create"]);
    let renewed = store.renew(&name(), &grant.owner_record, TTL, Deadline::after(LONG)).unwrap().unwrap();
    assert_eq!(requests(&server), ["java replace", "own replace"]);
    assert_eq!(release(&store, &renewed).unwrap(), Released::Freed);
    assert_eq!(requests(&server), ["own remove", "java remove"]);
    assert_eq!(release(&store, &renewed).unwrap(), Released::NotOurs);
}

#[test]
fn a_lock_that_is_held_in_the_second_half_is_given_back_in_the_first() {
    let (store, server) = store();
    server.lock().records[OWN] = Some(draw().numbered(7));
    let (answer, doubtful) = acquire(&store, LONG);
    let Acquired::Held(holder) = answer.unwrap() else { panic!("granted") };
    assert_eq!(holder.identity.unwrap().purpose, "tests");
    assert!(doubtful.is_empty());
    assert_eq!(requests(&server), ["java create", "own create", "java remove"]);
    assert_eq!(are_held(&server), [false, true]);
}

/// Its request may be applied later.
#[test]
fn a_second_half_in_doubt_is_in_doubt_and_only_its_record_may_appear() {
    let (store, server) = store();
    plan(&server, "own create", Fate::RequestLost);
    for _ in 0..20 {
        plan(&server, "own read", Fate::Down);
    }
    let (answer, doubtful) = acquire(&store, BRIEF);
    assert_eq!(answer.unwrap_err().code(), Code::InDoubt);
    assert_eq!((parts(&doubtful), are_held(&server)), (vec![[false, true]], [false, false]));
    // The background threads release it.
    server.lock().fates.clear();
    let own = OwnerParts::decode(&doubtful[0]).unwrap().own.unwrap();
    server.lock().records[OWN] = Some(Record::decode(own.as_bytes()).unwrap().numbered(9));
    assert_eq!(release(&store, &doubtful[0]).unwrap(), Released::Freed);
    assert_eq!(are_held(&server), [false, false]);
}

#[test]
fn a_first_half_that_cannot_be_given_back_is_left_to_the_background() {
    for held in [true, false] {
        let (store, server) = store();
        if held {
            server.lock().records[OWN] = Some(draw().numbered(7));
        } else {
            plan(&server, "own create", Fate::Down);
        }
        plan(&server, "java remove", Fate::RequestLost);
        for _ in 0..50 {
            plan(&server, "java read", Fate::Down);
        }
        let (answer, doubtful) = acquire(&store, LONG);
        if held {
            assert!(matches!(answer.unwrap(), Acquired::Held(_)));
        } else {
            assert_eq!(answer.unwrap_err().code(), Code::InDoubt, "the lock may be ours");
        }
        assert_eq!((parts(&doubtful), are_held(&server)), (vec![[true, false]], [true, held]));
        server.lock().fates.clear();
        assert_eq!(release(&store, &doubtful[0]).unwrap(), Released::Freed);
        assert_eq!(are_held(&server), [false, held]);
    }
}

#[test]
fn a_second_half_that_is_down_leaves_nothing_and_says_so() {
    let (store, server) = store();
    plan(&server, "own create", Fate::Down);
    let (answer, doubtful) = acquire(&store, LONG);
    assert_eq!(answer.unwrap_err().code(), Code::ConnectionError);
    assert_eq!((doubtful.len(), are_held(&server)), (0, [false, false]));
}

#[test]
fn both_counters_have_the_fence_before_it_is_returned() {
    let (store, server) = store();
    for ([java, own], fence, sets) in
        [([4, 2], 5, false), ([4, 4], 5, false), ([4, 7], 8, true), ([0, 7], 8, true)]
    {
        server.lock().numbers = [java, own];
        let grant = granted(&store);
        assert_eq!((grant.fence, server.lock().numbers), (Some(Fence(fence)), [fence, fence]));
        assert_eq!(requests(&server).contains(&"set"), sets);
        assert_eq!(release(&store, &grant.owner_record).unwrap(), Released::Freed);
        requests(&server);
    }
}

#[test]
fn a_counter_is_set_though_messages_are_lost_and_others_count() {
    let counted: Fate = Fate::After(|server| server.numbers[JAVA] += 1);
    let far_ahead: Fate = Fate::After(|server| server.numbers[JAVA] += 100);
    let fates = [&[Fate::ReplyLost][..], &[Fate::RequestLost], &[Fate::Down], &[counted], &[far_ahead]];
    for fates in fates.into_iter().chain([&[counted, Fate::RequestLost, counted][..]]) {
        let (store, server) = store();
        server.lock().numbers = [4, 50];
        fates.iter().for_each(|fate| plan(&server, "set", *fate));
        let grant = granted(&store);
        assert_eq!(grant.fence, Some(Fence(51)));
        let number = server.lock().numbers[JAVA];
        assert!(number == 51 || number == 105, "{number}");
        let sent = requests(&server);
        // Only a request that was not applied leaves no doubt.
        let reads_back = !matches!(fates, [Fate::Down]);
        assert_eq!(sent.last() == Some(&"java read"), reads_back, "{sent:?}");
    }
}

/// Somebody counted meanwhile, and has the lock: its fence may be lower than ours.
#[test]
fn a_first_half_that_was_lost_before_its_counter_was_set_is_no_grant() {
    let (store, server) = store();
    server.lock().numbers = [4, 50];
    plan(
        &server,
        "set",
        Fate::After(|server| {
            server.numbers[JAVA] += 1;
            server.records[JAVA] = Some(draw());
        }),
    );
    let (answer, doubtful) = acquire(&store, LONG);
    assert!(matches!(answer.unwrap(), Acquired::Held(_)));
    assert_eq!(are_held(&server), [true, false], "the other's lock stays, and ours is given back");
    assert_eq!(parts(&doubtful), [[true, false]], "ours may be hidden");
}

#[test]
fn a_counter_that_cannot_be_set_is_no_grant_and_leaves_nothing() {
    for (fate, code) in [(Fate::Down, Code::ConnectionError), (Fate::RequestLost, Code::RetriesExhausted)] {
        let (store, server) = store();
        server.lock().numbers = [4, 50];
        for _ in 0..50 {
            plan(&server, "set", fate);
        }
        let (answer, doubtful) = acquire(&store, BRIEF);
        assert_eq!(answer.unwrap_err().code(), code);
        assert_eq!((doubtful.len(), are_held(&server)), (0, [false, false]));
    }
}

#[test]
fn a_lease_that_lost_one_half_is_lost_and_the_other_half_is_released() {
    for lost in [JAVA, OWN] {
        let (store, server) = store();
        let grant = granted(&store);
        server.lock().records[lost] = None;
        let renewed = store.renew(&name(), &grant.owner_record, TTL, Deadline::after(LONG)).unwrap();
        assert!(renewed.is_none());
        assert_eq!(are_held(&server), [false, false]);
        // If that failed, the background threads try again.
        assert!(store.may_leave_parts());
    }
}

#[test]
fn a_renewal_in_doubt_leaves_both_halves_and_may_be_repeated() {
    for request in ["java replace", "own replace"] {
        let (store, server) = store();
        let grant = granted(&store);
        plan(&server, request, Fate::RequestLost);
        for read in ["java read", "own read"] {
            for _ in 0..50 {
                plan(&server, read, Fate::Down);
            }
        }
        let renew = |by| store.renew(&name(), &grant.owner_record, 2 * TTL, Deadline::after(by));
        assert_eq!(renew(BRIEF).unwrap_err().code(), Code::InDoubt, "{request}");
        server.lock().fates.clear();
        let renewed = renew(LONG).unwrap().expect("it is ours");
        assert_eq!(release(&store, &renewed).unwrap(), Released::Freed);
        assert_eq!(are_held(&server), [false, false]);
    }
}

#[test]
fn a_release_says_what_both_halves_said() {
    let answers = [
        (&[][..], [true, true], Released::Freed),
        (&[], [true, false], Released::NotOurs),
        (&[], [false, true], Released::NotOurs),
        (&["own remove"], [true, true], Released::Gone),
        (&["java remove"], [true, true], Released::Gone),
        (&["java remove"], [true, false], Released::NotOurs),
    ];
    for (lost, [java, own], expected) in answers {
        let (store, server) = store();
        let grant = granted(&store);
        for (half, stands) in [(JAVA, java), (OWN, own)] {
            if !stands {
                server.lock().records[half] = None;
            }
        }
        lost.iter().for_each(|request| plan(&server, request, Fate::ReplyLost));
        let by = Deadline::after(LONG);
        assert_eq!(store.release(&name(), &grant.owner_record, by).unwrap(), expected, "{lost:?}");
        assert_eq!(are_held(&server), [false, false]);
    }
    let (store, server) = store();
    let grant = granted(&store);
    plan(&server, "java remove", Fate::Down);
    assert_eq!(release(&store, &grant.owner_record).unwrap_err().code(), Code::ConnectionError);
    assert_eq!(are_held(&server), [true, false]);
    assert_eq!(
        release(&store, &grant.owner_record).unwrap(),
        Released::NotOurs,
        "the first half was freed before"
    );
    assert_eq!(are_held(&server), [false, false]);
}

/// A holder was told that its lock was broken, and who broke it that nothing was.
#[test]
fn of_a_release_and_a_break_at_one_time_one_has_ended_the_grant() {
    let by = Deadline::after(LONG);
    // The holder has freed its first half.
    let (store, server) = store();
    let grant = granted(&store);
    server.lock().records[OWN] = None;
    assert_eq!(store.release_broken(&name(), &grant.owner_record, by).unwrap(), Released::NotOurs);
    assert_eq!(are_held(&server), [true, false], "the second half is left to the holder");
    // The holder frees the second half after the first one was broken.
    let (store, server) = self::store();
    let grant = granted(&store);
    plan(&server, "java remove", Fate::After(|server| server.records[JAVA] = None));
    assert_eq!(store.release_broken(&name(), &grant.owner_record, by).unwrap(), Released::Freed);
    assert_eq!(are_held(&server), [false, false]);
}

#[test]
fn a_store_without_the_second_table_and_a_long_lease_are_refused_before_the_first_half_is_touched() {
    let (store, server) = store();
    store.own_answered.store(false, Ordering::Relaxed);
    plan(&server, "own read", Fate::Down);
    assert_eq!(acquire(&store, LONG).0.unwrap_err().code(), Code::ConnectionError);
    server.lock().records[OWN] = Some(draw().numbered(7));
    assert!(matches!(acquire(&store, LONG).0.unwrap(), Acquired::Held(_)));
    assert_eq!(requests(&server), ["own read", "own read"]);
    server.lock().records[OWN] = None;
    let grant = granted(&store);
    assert_eq!(requests(&server), ["java create", "own create"], "only once");
    assert_eq!(release(&store, &grant.owner_record).unwrap(), Released::Freed);
    requests(&server);
    let (name, identity) = (name(), Identity::this_process("tests").unwrap());
    let by = Deadline::after(LONG);
    let attempt = Attempt { name: &name, ttl: 2 * LONG, identity: &identity, by };
    assert_eq!(store.acquire(attempt, &mut Vec::new()).unwrap_err().code(), Code::InvalidArgument);
    let renewed = store.renew(&name, &grant.owner_record, 2 * LONG, by);
    assert_eq!(renewed.unwrap_err().code(), Code::InvalidArgument);
    assert!(requests(&server).is_empty());
}

#[test]
fn a_holder_of_either_half_is_the_holder() {
    let (store, server) = store();
    for half in [JAVA, OWN] {
        server.lock().records = Default::default();
        assert!(store.holder(&name(), Deadline::after(LONG)).unwrap().is_none());
        server.lock().records[half] = Some(draw());
        assert!(store.holder(&name(), Deadline::after(LONG)).unwrap().is_some());
        let inspected = store.inspect(&name(), Deadline::after(LONG)).unwrap();
        assert!(inspected.holder.is_some() && inspected.layout == Some("both"));
    }
}

/// Leases that were kept elsewhere, such as in a token, contain these bytes.
#[test]
fn records_have_a_tag_and_those_of_other_layouts_are_refused() {
    let [java, own] = [&b"java"[..], b"own"].map(OwnerRecord::from_bytes);
    let both = OwnerParts { java: Some(java.clone()), own: Some(own.clone()) }.encode();
    assert_eq!(both.as_bytes(), b"\x03\x00\x04javaown");
    assert_eq!(OwnerParts::of_java(java.clone()).encode().as_bytes(), b"\x03\x00\x04java");
    assert_eq!(OwnerParts::of_own(own.clone()).encode().as_bytes(), b"\x03\x00\x00own");
    let decoded = OwnerParts::decode(&both).unwrap();
    assert!(decoded.java == Some(java) && decoded.own == Some(own));
    let record = draw();
    let (one, two) = (record.as_bytes(), record.numbered(1));
    let others = [
        &b""[..],
        b"\x03",
        b"\x03\x00",
        b"\x03\x00\x00",
        b"\x03\x00\x05java",
        one,
        two.as_bytes(),
        b"\x02token",
    ];
    for bytes in others {
        let (store, server) = store();
        let record = OwnerRecord::from_bytes(bytes);
        let renewed = store.renew(&name(), &record, TTL, Deadline::after(LONG)).map(drop);
        for answer in [renewed, release(&store, &record).map(drop)] {
            assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
        }
        assert!(requests(&server).is_empty());
        // The other layouts refuse the record of this one.
        for half in [JAVA, OWN] {
            let other = RemoteStore::new(Half(Arc::clone(&server), half));
            assert_eq!(
                other.release(&name(), &both, Deadline::after(LONG)).unwrap_err().code(),
                Code::InvalidArgument
            );
        }
    }
}

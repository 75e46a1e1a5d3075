//! Tests of the protocol over a scripted register.

mod copies;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::answers::{Found, Reply, Standing};
use super::lock::RemoteStore;
use super::record::Record;
use super::register::{
    Capabilities, Compares, Create, Created, OnReply, ReadBack, Register, Replace, replace_one_by_one,
};
use crate::error::{Error, Result};
use crate::names::holder::Identity;
use crate::names::lock_name::{Level, LockName, NamePolicy};
use crate::names::owner::OwnerRecord;
use crate::runtime::sync::real::Mutex;
use crate::runtime::time::{Deadline, Moment};
use crate::store::{Acquired, Attempt, Grant, LockStore, Released, Renewal, StoreCounters};
use crate::{Code, Fence};

const LONG: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(30);

thread_local! {
    /// How long answers to this thread have been late on purpose.
    static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The fate of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Served,
    /// The request is applied, and the answer is lost.
    ReplyLost,
    /// The request is lost. The client cannot distinguish this from `ReplyLost`.
    RequestLost,
    Down,
    /// The request is applied, and the answer arrives late.
    Late,
    /// The request is applied and sent again on the way. The client receives the second answer, late.
    Twice,
    /// The request is applied and answered Yes. Then a peer's delete hides the record.
    Hidden,
    /// The request is refused, but no record is stored a moment later.
    Refused,
    /// The record that is stored expires before the request arrives.
    Expired,
}

#[derive(Debug, Default)]
struct Server {
    record: Option<Record>,
    number: u64,
    fates: VecDeque<Fate>,
    requests: Vec<&'static str>,
    /// The records of all creations and exchanges, each with the record that it expected.
    writes: Vec<(Option<Record>, Record)>,
    covered: usize,
    cannot_count: bool,
    /// How long a record of an earlier grant lasts.
    beneath: Duration,
    /// Each of many changes is answered a second time, without a reply.
    answers_twice: bool,
}

#[derive(Debug)]
struct Scripted {
    server: Arc<Mutex<Server>>,
    can: Capabilities,
    /// Whether the count travels with the creation.
    one_request: bool,
}

impl Scripted {
    fn change(&self, request: &'static str, change: impl Fn(&mut Server) -> bool) -> Reply {
        let server = &mut *self.server.lock();
        server.requests.push(request);
        let lost = || Error::InDoubt { what: "no answer".into(), source: None };
        match server.fates.pop_front().unwrap_or(Fate::Served) {
            Fate::Served => Reply::of_bool(Ok(change(server))),
            Fate::ReplyLost => {
                change(server);
                Reply::Lost(lost())
            }
            Fate::RequestLost => Reply::Lost(lost()),
            Fate::Down => Reply::Down(down()),
            Fate::Late => {
                let answer = change(server);
                self.be_late();
                Reply::of_bool(Ok(answer))
            }
            Fate::Twice => {
                change(server);
                self.be_late();
                Reply::of_bool(Ok(change(server)))
            }
            Fate::Hidden => {
                let answer = change(server);
                server.record = None;
                Reply::of_bool(Ok(answer))
            }
            Fate::Refused => Reply::No(None),
            Fate::Expired => {
                server.record = None;
                Reply::of_bool(Ok(change(server)))
            }
        }
    }

    fn be_late(&self) {
        let began = Moment::now();
        thread::sleep(self.can.repeats_after.unwrap_or_default());
        SLEPT.set(SLEPT.get() + Moment::now().since(began));
    }

    fn stands(&self, server: &Server, expected: &Record) -> bool {
        server.record.as_ref().is_some_and(|record| match self.can.compares {
            Compares::Record => record == expected,
            Compares::Token => record.same_owner(expected),
        })
    }
}

fn down() -> Error {
    Error::Connection { store: "scripted".into(), what: "down".into(), source: None }
}

impl Register for Scripted {
    fn describe(&self) -> String {
        "scripted".into()
    }

    fn capabilities(&self) -> Capabilities {
        self.can
    }

    fn initialize(&self, _: Deadline) -> Result<()> {
        Ok(())
    }

    fn create(&self, create: &Create<'_>, _: Deadline) -> Reply<Created> {
        self.server.lock().writes.push((None, create.record.clone()));
        let numbered = self.can.counts_in_record && !self.server.lock().cannot_count;
        let reply = self.change("create", |server| {
            let free = server.record.is_none();
            if free {
                server.number += u64::from(numbered);
                let number = server.number;
                let record = create.record;
                server.record = Some(if numbered { record.numbered(number) } else { record.clone() });
            }
            free
        });
        let server = &mut *self.server.lock();
        match reply {
            Reply::Yes(()) if numbered => Reply::Yes(Created { count: Some(server.number), standing: None }),
            Reply::Yes(()) if self.one_request => {
                server.number += 1;
                Reply::Yes(Created { count: create.count.map(|_| server.number), standing: None })
            }
            Reply::Yes(()) => Reply::Yes(Created::default()),
            Reply::No(known) => Reply::No(known),
            Reply::Lost(error) => Reply::Lost(error),
            Reply::Down(error) => Reply::Down(error),
        }
    }

    fn replace(&self, replace: &Replace<'_>, _: Deadline) -> Reply {
        self.server.lock().writes.push((Some(replace.expected.clone()), replace.record.clone()));
        self.change("replace", |server| {
            // Like Aerospike: a replace that would shorten the lease is refused.
            let lasts_longer = |stored: &Record| stored.ttl() > replace.record.ttl();
            let refused =
                self.can.compares == Compares::Token && server.record.as_ref().is_some_and(lasts_longer);
            let holds = self.stands(server, &replace.expected) && !refused;
            if holds {
                let stored = server.record.as_ref().filter(|_| self.can.compares == Compares::Token);
                let longer = stored.map(|stored| stored.renewed(replace.record.ttl()));
                server.record = Some(longer.unwrap_or_else(|| replace.record.clone()));
            }
            holds
        })
    }

    fn replace_many<'a>(&self, changes: Vec<Replace<'a>>, by: Deadline, answered: OnReply<'_, 'a>) {
        let again = self.server.lock().answers_twice;
        let mut answered = |change: &Replace<'a>, since: Moment, reply: Reply| {
            let next = answered(change, since, reply);
            if again {
                let lost = Error::InDoubt { what: "a second answer".into(), source: None };
                assert!(answered(change, since, Reply::Lost(lost)).is_none());
            }
            next
        };
        replace_one_by_one(changes, by, &mut answered, |change| self.replace(change, by));
    }

    fn remove(&self, _: &LockName, expected: &Record, _: Deadline) -> Reply {
        self.change("remove", |server| {
            let holds = self.stands(server, expected);
            if holds {
                server.record = None;
            }
            holds
        })
    }

    fn read(&self, _: &LockName, _: Deadline) -> Result<Standing> {
        let server = &mut *self.server.lock();
        server.requests.push("read");
        match server.fates.pop_front().unwrap_or(Fate::Served) {
            Fate::Down => Err(down()),
            _ => Ok(server.record.clone().map_or(Standing::Free, |record| {
                let beneath = Some(server.beneath).filter(|beneath| *beneath > record.ttl());
                Standing::Held(Found { record: Some(record), beneath, ..Found::default() })
            })),
        }
    }

    fn count(&self, _: &LockName, least: u64, _: Deadline) -> Result<u64> {
        assert!(least > 0);
        if self.server.lock().cannot_count {
            return Err(down());
        }
        self.change("count", |server| {
            server.number += 1;
            true
        })
        .settled()
        .map(|_| self.server.lock().number)
    }

    fn last_count(&self, _: &LockName, _: Deadline) -> Result<Option<u64>> {
        let number = self.server.lock().number;
        Ok((number > 0).then_some(number))
    }

    fn cover(&self, _: &LockName, _: Duration, _: Deadline) -> Result<()> {
        self.server.lock().covered += 1;
        Ok(())
    }
}

struct Stage {
    server: Arc<Mutex<Server>>,
    store: RemoteStore<Scripted>,
    name: LockName,
}

fn stage(can: Capabilities) -> Stage {
    stage_with(can, false)
}

fn stage_with(can: Capabilities, one_request: bool) -> Stage {
    let server = Arc::new(Mutex::new(Server::default()));
    Stage {
        store: RemoteStore::new(Scripted { server: Arc::clone(&server), can, one_request }),
        server,
        name: LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap(),
    }
}

impl Stage {
    fn next<const N: usize>(&self, fates: [Fate; N]) {
        let mut server = self.server.lock();
        server.fates = fates.into();
        server.requests.clear();
    }

    fn acquire(&self) -> (Result<Acquired>, usize) {
        self.acquire_for(TTL, Deadline::after(LONG))
    }

    fn acquire_for(&self, ttl: Duration, by: Deadline) -> (Result<Acquired>, usize) {
        let (answer, doubtful) = self.acquire_with_doubts(ttl, by);
        (answer, doubtful.len())
    }

    fn acquire_with_doubts(&self, ttl: Duration, by: Deadline) -> (Result<Acquired>, Vec<OwnerRecord>) {
        let (identity, mut doubtful) = (Identity::this_process("").unwrap(), Vec::new());
        let answer =
            self.store.acquire(Attempt { name: &self.name, ttl, identity: &identity, by }, &mut doubtful);
        (answer, doubtful)
    }

    /// A grant, and the number of records that the background threads must release.
    fn granted(&self) -> (Grant, usize) {
        match self.acquire() {
            (Ok(Acquired::Granted(grant)), doubtful) => (grant, doubtful),
            other => panic!("{other:?}"),
        }
    }

    fn renew(&self, owner_record: &OwnerRecord, ttl: Duration) -> Result<Option<OwnerRecord>> {
        self.store.renew(&self.name, owner_record, ttl, Deadline::after(LONG))
    }

    fn release(&self, owner_record: &OwnerRecord) -> Result<Released> {
        self.store.release(&self.name, owner_record, Deadline::after(LONG))
    }

    fn requests(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.server.lock().requests)
    }

    fn is_free(&self) -> bool {
        self.server.lock().record.is_none()
    }
}

/// A store that compares records, and a store that compares tokens.
fn both() -> [Capabilities; 2] {
    [Compares::Record, Compares::Token].map(|compares| Capabilities { compares, ..Capabilities::default() })
}

/// The same stores, and the same with the number in the record.
fn all() -> [Capabilities; 4] {
    let [record, token] = both();
    let numbered = |can| Capabilities { counts_in_record: true, read_back: ReadBack::Never, ..can };
    [record, token, numbered(record), numbered(token)]
}

/// The requests that follow a creation which took effect.
fn after_creation(can: Capabilities) -> &'static [&'static str] {
    if can.counts_in_record { &[] } else { &["count", "read"] }
}

/// Also if another version of its record is stored, which must be replaced instead.
#[test]
fn of_many_renewals_each_is_reported_once_though_a_register_answers_twice() {
    for can in all() {
        let stage = stage(can);
        let (grant, _) = stage.granted();
        let before = grant.owner_record;
        assert!(stage.renew(&before, 2 * TTL).unwrap().is_some());
        stage.server.lock().answers_twice = true;
        let renewal = Renewal { name: &stage.name, owner_record: &before, ttl: 3 * TTL, alone: false };
        let mut answers = Vec::new();
        let mut report = |at: usize, _: Moment, answer: Result<Option<OwnerRecord>>| {
            answers.push((at, answer.unwrap().is_some()))
        };
        stage.store.renew_many(&[renewal], Deadline::after(LONG), &mut report);
        assert_eq!(answers, [(0, true)], "{can:?}");
        assert_eq!(stage.server.lock().record.as_ref().map(Record::ttl), Some(3 * TTL));
    }
}

#[test]
fn a_record_that_an_older_one_would_outlast_is_written_again_with_its_ttl() {
    let found_again = ["create", "count", "read", "replace", "read", "count", "read"];
    let cases: [(Fate, Vec<_>); 4] = [
        (Fate::Served, found_again[..4].into()),
        (Fate::ReplyLost, found_again.into()),
        (Fate::RequestLost, [&found_again[..], &["replace"]].concat()),
        (Fate::Expired, [&found_again[..5], &found_again[..4]].concat()),
    ];
    for (fate, requests) in cases {
        let stage = stage(Capabilities { read_back: ReadBack::Always, ..Capabilities::default() });
        stage.server.lock().beneath = 3 * TTL;
        stage.next([Fate::Served, Fate::Served, Fate::Served, fate]);
        let (grant, _) = stage.granted();
        assert_eq!(stage.requests(), requests, "{fate:?}");
        assert_eq!(stage.server.lock().record.as_ref().unwrap().ttl(), 3 * TTL, "{fate:?}");
        // A renewal and the release know the longer TTL.
        let renewed = stage.renew(&grant.owner_record, TTL).unwrap().unwrap();
        assert_eq!(stage.server.lock().record.as_ref().unwrap().ttl(), 3 * TTL, "{fate:?}");
        assert_eq!(stage.release(&renewed).unwrap(), Released::Freed, "{fate:?}");
    }
}

#[test]
fn an_acquire_counts_and_then_reads_back_unless_both_travel_with_it() {
    let can = Capabilities::default();
    let cases = [
        (can, false, vec!["create", "count", "read"]),
        (can, true, vec!["create"]),
        (Capabilities { read_back: ReadBack::Never, ..can }, false, vec!["create", "count"]),
        (Capabilities { read_back: ReadBack::Always, ..can }, true, vec!["create", "read"]),
        (Capabilities { counts: false, ..can }, false, vec!["create"]),
        (Capabilities { counts: false, read_back: ReadBack::Always, ..can }, false, vec!["create", "read"]),
        (all()[2], false, vec!["create"]),
        (all()[3], false, vec!["create"]),
    ];
    for (can, one_request, requests) in cases {
        let stage = stage_with(can, one_request);
        let (grant, doubtful) = stage.granted();
        assert_eq!((stage.requests(), doubtful), (requests, 0), "{can:?}");
        assert_eq!(grant.fence, can.counts.then_some(Fence(1)));
        stage.next([]);
        assert_eq!(stage.release(&grant.owner_record).unwrap(), Released::Freed);
        assert_eq!(stage.requests(), ["remove"], "{can:?}: the lease has the record as it is stored");
    }
}

#[test]
fn an_acquire_whose_reply_was_lost_finds_its_record() {
    for can in all() {
        let stage = stage(can);
        stage.next([Fate::ReplyLost]);
        let (grant, doubtful) = stage.granted();
        assert_eq!(stage.requests(), [&["create", "read"], after_creation(can)].concat());
        assert_eq!(stage.store.counters(), StoreCounters::default(), "no creation was refused");
        assert!(doubtful == 0 && !grant.may_reappear);
        assert_eq!(grant.fence, Some(Fence(1)), "{can:?}");
        assert_eq!(stage.release(&grant.owner_record).unwrap(), Released::Freed);
    }
}

#[test]
fn an_acquire_whose_request_was_lost_tries_again_and_leaves_the_lost_one_to_the_background() {
    for can in all() {
        let stage = stage(can);
        stage.next([Fate::RequestLost]);
        let (grant, doubtful) = stage.granted();
        assert_eq!(stage.requests(), [&["create", "read", "create"], after_creation(can)].concat());
        assert_eq!(doubtful, 1);
        assert_eq!(stage.release(&grant.owner_record).unwrap(), Released::Freed);
    }
}

#[test]
fn a_hidden_record_is_no_grant_and_is_left_to_the_background() {
    let stage = stage(Capabilities { hides: true, read_back: ReadBack::Always, ..Capabilities::default() });
    stage.next([Fate::Hidden]);
    let (_, doubtful) = stage.granted();
    assert_eq!(stage.requests(), ["create", "count", "read", "create", "count", "read"]);
    assert_eq!(doubtful, 1);
}

#[test]
fn a_record_that_ended_before_it_was_read_back_is_no_grant_and_leaves_nothing_to_do() {
    let stage = stage(Capabilities { read_back: ReadBack::Always, ..Capabilities::default() });
    stage.next([Fate::Hidden]);
    assert_eq!(stage.granted().1, 0);
}

#[test]
fn a_lock_that_is_free_at_every_look_and_never_ours_is_held_and_what_may_be_hidden_is_covered() {
    for hides in [true, false] {
        let stage = stage(Capabilities { hides, ..Capabilities::default() });
        // Each refusal is followed by a read.
        stage.server.lock().fates = [Fate::Refused, Fate::Served].repeat(16).into();
        assert!(matches!(stage.acquire(), (Ok(Acquired::Held(_)), 0)));
        assert_eq!(stage.server.lock().covered, usize::from(hides));
    }
}

#[test]
fn a_held_lock_names_its_holder_and_one_that_cannot_be_read_is_held_all_the_same() {
    let stage = stage(Capabilities::default());
    stage.granted();
    assert_eq!(stage.store.counters().reads_after_refusal, 0);
    match stage.acquire() {
        (Ok(Acquired::Held(holder)), 0) => assert_eq!(holder.identity.unwrap().pid, std::process::id()),
        other => panic!("{other:?}"),
    }
    assert_eq!(stage.store.counters().reads_after_refusal, 1);
    stage.next([Fate::Served, Fate::Down]);
    assert!(matches!(stage.acquire(), (Ok(Acquired::Held(holder)), 0) if holder.identity.is_none()));
}

#[test]
fn a_failure_after_a_lost_reply_is_in_doubt_and_says_what_failed() {
    let stage = stage(Capabilities::default());
    stage.server.lock().fates = [Fate::RequestLost].into_iter().chain([Fate::Down; 99]).collect();
    let (failed, doubtful) = stage.acquire_for(TTL, Deadline::after(Duration::from_millis(50)));
    let failed = failed.unwrap_err();
    assert!(failed.code() == Code::InDoubt && failed.to_string().contains("down"), "{failed}");
    assert_eq!(doubtful, 1);
}

#[test]
fn a_grant_whose_fence_cannot_be_counted_is_handed_back() {
    for can in both() {
        let stage = stage(can);
        stage.server.lock().cannot_count = true;
        // The deadline passes before the fence is counted. The release has extra time.
        let (failed, doubtful) = stage.acquire_for(TTL, Deadline::after(Duration::from_millis(25)));
        assert!(failed.is_err() && doubtful == 0, "{failed:?}");
        assert!(stage.is_free() && stage.requests().contains(&"remove"));
    }
}

/// A lease without its number could not be released.
#[test]
fn a_record_without_its_number_is_an_error_and_is_handed_back() {
    for can in &all()[2..] {
        for fate in [Fate::Served, Fate::ReplyLost] {
            let stage = stage(*can);
            stage.server.lock().cannot_count = true;
            stage.next([fate]);
            let (failed, doubtful) = stage.acquire();
            assert_eq!((failed.unwrap_err().code(), doubtful), (Code::InternalError, 0), "{can:?} {fate:?}");
            assert!(stage.is_free());
        }
    }
}

#[test]
fn a_number_that_comes_after_the_end_of_the_lease_is_refused_where_nothing_is_read_back() {
    let stage = stage(Capabilities { read_back: ReadBack::Never, ..Capabilities::default() });
    let (failed, doubtful) = stage.acquire_for(Duration::ZERO, Deadline::after(LONG));
    assert_eq!((failed.unwrap_err().code(), doubtful), (Code::RetriesExhausted, 0));
    assert!(stage.is_free());
}

#[test]
fn a_release_whose_reply_was_lost_is_gone_or_freed_and_never_touches_another_record() {
    for can in all() {
        let stage = stage(can);
        let (grant, _) = stage.granted();
        stage.next([Fate::ReplyLost]);
        assert_eq!(stage.release(&grant.owner_record).unwrap(), Released::Gone, "{can:?}");
        let (other, _) = stage.granted();
        assert_eq!(stage.release(&grant.owner_record).unwrap(), Released::NotOurs);
        stage.next([Fate::RequestLost]);
        assert_eq!(stage.release(&other.owner_record).unwrap(), Released::Freed);
        assert!(stage.is_free());
    }
}

#[test]
fn a_release_that_was_sent_twice_is_in_doubt_if_the_lock_cannot_be_read() {
    let repeats_after = Some(Duration::from_millis(1));
    let stage = stage(Capabilities { repeats_after, ..Capabilities::default() });
    let (grant, _) = stage.granted();
    stage.next([Fate::Twice, Fate::Down]);
    assert_eq!(stage.release(&grant.owner_record).unwrap_err().code(), Code::InDoubt);
    assert!(stage.is_free());
}

#[test]
fn a_renewal_whose_reply_was_lost_is_renewed_and_its_record_can_be_released() {
    for can in all() {
        for fate in [Fate::ReplyLost, Fate::RequestLost] {
            let stage = stage(can);
            let (grant, _) = stage.granted();
            stage.next([fate]);
            let renewed = stage.renew(&grant.owner_record, 2 * TTL).unwrap().unwrap();
            assert_eq!(stage.server.lock().record.as_ref().unwrap().ttl(), 2 * TTL);
            assert_eq!(stage.release(&renewed).unwrap(), Released::Freed, "{can:?} {fate:?}");
        }
    }
}

/// Renewals for the same TTL write the same version of a record, so that version does not show which of them was applied.
#[test]
fn a_renewal_whose_request_was_lost_is_not_taken_for_an_earlier_one_of_the_same_length() {
    for can in all() {
        let stage = stage(can);
        let (grant, _) = stage.granted();
        stage.renew(&grant.owner_record, 2 * TTL).unwrap().unwrap();
        stage.next([Fate::RequestLost]);
        stage.renew(&grant.owner_record, 2 * TTL).unwrap().unwrap();
        let requests = &stage.server.lock().requests;
        assert_eq!(requests.last(), Some(&"replace"), "{can:?}: {requests:?}");
    }
}

#[test]
fn a_renewal_that_would_shorten_the_lease_is_a_success_that_changes_nothing() {
    for can in all() {
        let stage = stage(can);
        let (grant, _) = stage.granted();
        let longer = stage.renew(&grant.owner_record, 3 * TTL).unwrap().unwrap();
        let renewed = stage.renew(&longer, TTL).unwrap().unwrap();
        assert_eq!(stage.server.lock().record.as_ref().unwrap().ttl(), 3 * TTL);
        assert_eq!(stage.release(&renewed).unwrap(), Released::Freed);
        assert_eq!(stage.renew(&renewed, TTL).unwrap(), None, "lost");
    }
}

/// After another process renewed a lease, this process still has the older version of its record.
#[test]
fn an_older_version_of_a_record_is_renewed_and_released() {
    for can in all() {
        let stage = stage(can);
        let (grant, _) = stage.granted();
        stage.renew(&grant.owner_record, 2 * TTL).unwrap().unwrap();
        assert!(stage.renew(&grant.owner_record, 3 * TTL).unwrap().is_some());
        assert_eq!(stage.release(&grant.owner_record).unwrap(), Released::Freed);
    }
}

#[test]
fn an_owner_record_of_another_kind_of_store_is_refused_before_any_request() {
    for can in all() {
        let stage = stage(can);
        let others = all().map(|other| (other != can).then(|| self::stage(other).granted().0.owner_record));
        for odd in others.into_iter().flatten().chain([OwnerRecord::from_bytes([7; 15])]) {
            assert_eq!(stage.renew(&odd, TTL).unwrap_err().code(), Code::InvalidArgument);
            assert_eq!(stage.release(&odd).unwrap_err().code(), Code::InvalidArgument);
        }
        assert!(stage.requests().is_empty());
    }
}

#[test]
fn a_lost_reply_is_in_doubt_whatever_error_a_register_gives_with_it() {
    let lost: Reply = Reply::Lost(down());
    assert_eq!(lost.settled().unwrap_err().code(), Code::InDoubt);
}

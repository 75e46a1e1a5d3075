//! The rows of the table of states, over a register that answers as each test plans it.

use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use crate::Code;
use crate::names::holder::Identity;
use crate::names::lock_name::{Level, NamePolicy};
use crate::runtime::sync::real::Mutex;
use crate::store::Released;
use crate::store::remote::{Create, Created, Replace, Reply, Standing, StoredHolds};

const LONG: Duration = Duration::from_secs(60);
/// For a call that finds nothing out until its deadline.
const SHORT: Duration = Duration::from_millis(200);
const TTL: Duration = Duration::from_secs(30);
const NUMBER: u64 = 7;

/// The answer to a request that changes something.
#[derive(Debug, Clone, Copy)]
enum Said {
    Yes,
    /// The hold is stored without a number.
    YesUnnumbered,
    /// Others hold the lock.
    Held,
    /// Another version of the record is stored, or none.
    NotStored,
    Lost,
    Down,
}

/// What a read shows.
#[derive(Debug, Clone, Copy)]
enum Shows {
    Nothing,
    /// The hold of somebody else.
    Other,
    /// The record of the request at this position.
    Sent(usize),
    /// The record that is to be replaced.
    Old,
    /// The same, as a renewal by somebody with the same token has left it.
    OldRenewed,
    /// The read fails.
    Down,
}

#[derive(Debug, Default)]
struct Plan {
    said: VecDeque<Said>,
    shows: VecDeque<Shows>,
    /// The records that were to be replaced, and the new ones.
    sent: Vec<(Option<Record>, Record)>,
    numbers: VecDeque<bool>,
    removed: usize,
    cannot_remove: bool,
}

#[derive(Debug)]
struct Planned(Mutex<Plan>);

fn lost() -> Error {
    Error::InDoubt { what: "no answer".into(), source: None }
}

fn down() -> Error {
    Error::Connection { store: "planned".into(), what: "down".into(), source: None }
}

fn other() -> Holder {
    Holder::new(Some(Identity::this_process("another").unwrap()), None, None)
}

fn found(record: Record) -> StoredHolds {
    let holds = vec![Found { record: Some(record), ..Found::default() }];
    StoredHolds { holds, ..StoredHolds::default() }
}

impl Planned {
    fn change<N>(&self, held: Option<&Record>, record: &Record, no: fn(Said) -> N) -> Reply<Record, N> {
        let plan = &mut *self.0.lock();
        plan.sent.push((held.cloned(), record.clone()));
        match plan.said.pop_front().expect("an answer is planned") {
            Said::Yes => Reply::Yes(record.numbered(NUMBER)),
            Said::YesUnnumbered => Reply::Yes(record.clone()),
            Said::Lost => Reply::Lost(lost()),
            Said::Down => Reply::Down(down()),
            said => Reply::No(no(said)),
        }
    }
}

impl ModeRegister for Planned {
    fn join(&self, join: &Join<'_>, _: Deadline) -> Reply<Record, Holder> {
        self.change(None, join.record, |_| other())
    }

    fn change_mode(&self, change: &ChangeMode<'_>, _: Deadline) -> Reply<Record, NotChanged> {
        self.change(Some(change.held), change.record, |said| match said {
            Said::Held => NotChanged::Held(other()),
            _ => NotChanged::NotStored,
        })
    }

    fn read_holds(&self, _: &LockName, _: Deadline) -> Result<StoredHolds> {
        let plan = &mut *self.0.lock();
        // When no other is planned, the last one is repeated.
        let shows = plan.shows.pop_front().expect("a read is planned");
        if plan.shows.is_empty() {
            plan.shows.push_back(shows);
        }
        let old = || plan.sent.first().and_then(|(held, _)| held.clone()).expect("it was sent");
        Ok(match shows {
            Shows::Nothing => StoredHolds::default(),
            Shows::Other => found(drawn("another").placed(Mode::Shared, 9).numbered(NUMBER)),
            Shows::Sent(at) => found(plan.sent[at].1.numbered(NUMBER)),
            Shows::Old => found(old()),
            Shows::OldRenewed => found(old().renewed(2 * TTL)),
            Shows::Down => return Err(down()),
        })
    }

    fn announce(&self, _: &LockName, _: Intent<'_>, _: Deadline) -> Result<()> {
        Ok(())
    }

    fn withdraw(&self, _: &LockName, _: IntentId, _: Deadline) -> Result<()> {
        Ok(())
    }
}

impl Register for Planned {
    fn describe(&self) -> String {
        "planned".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { counts_in_record: true, ..Capabilities::default() }
    }

    fn initialize(&self, _: Deadline) -> Result<()> {
        Ok(())
    }

    fn create(&self, _: &Create<'_>, _: Deadline) -> Reply<Created> {
        Reply::Down(down())
    }

    fn replace(&self, _: &Replace<'_>, _: Deadline) -> Reply {
        Reply::Down(down())
    }

    fn remove(&self, _: &LockName, _: &Record, _: Deadline) -> Reply {
        let plan = &mut *self.0.lock();
        plan.removed += 1;
        if plan.cannot_remove { Reply::Down(down()) } else { Reply::Yes(()) }
    }

    fn read(&self, _: &LockName, _: Deadline) -> Result<Standing> {
        Err(down())
    }

    fn count(&self, _: &LockName, _: u64, _: Deadline) -> Result<u64> {
        Err(down())
    }

    fn number_of(&self, _: &LockName, _: &Record, _: u64, _: Deadline) -> Result<u64> {
        let can = self.0.lock().numbers.pop_front().expect("a number is planned");
        if can { Ok(NUMBER) } else { Err(Error::Closed) }
    }

    fn last_count(&self, _: &LockName, _: Deadline) -> Result<Option<u64>> {
        Ok(None)
    }

    fn modes(&self) -> Option<&dyn ModeRegister> {
        Some(self)
    }
}

fn drawn(purpose: &str) -> Record {
    Record::draw(TTL, &Identity::this_process(purpose).unwrap()).unwrap()
}

fn store(said: &[Said], shows: &[Shows]) -> RemoteStore<Planned> {
    let plan = Plan {
        said: said.iter().copied().collect(),
        shows: shows.iter().copied().collect(),
        ..Plan::default()
    };
    RemoteStore::new(Planned(Mutex::new(plan)))
}

fn name() -> LockName {
    LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap()
}

/// Asks for the lock as a reader. Returns the answer, the records that may still be stored, and the records of the requests.
fn join(
    store: &RemoteStore<Planned>,
    within: Duration,
) -> (Result<Acquired>, Vec<OwnerRecord>, Vec<OwnerRecord>) {
    let (name, identity) = (name(), Identity::this_process("tests").unwrap());
    let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: Deadline::after(within) };
    let mut doubtful = Vec::new();
    let answer = store.acquire_mode(attempt, ModeTerms::new(Mode::Shared), &mut doubtful);
    let sent = store.register().0.lock().sent.iter().map(|(_, record)| bytes(record)).collect();
    (answer, doubtful, sent)
}

fn bytes(record: &Record) -> OwnerRecord {
    OwnerRecord::from_bytes(record.as_bytes())
}

fn granted(answer: Result<Acquired>) -> Grant {
    match answer {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

/// Whether this record is that of the request at this position, with its number.
fn is_of(store: &RemoteStore<Planned>, at: usize, owner_record: &OwnerRecord) -> bool {
    *owner_record == bytes(&store.register().0.lock().sent[at].1.numbered(NUMBER))
}

#[test]
fn a_join_ends_with_its_first_answer() {
    let yes = store(&[Said::Yes], &[]);
    let (answer, doubtful, _) = join(&yes, LONG);
    let grant = granted(answer);
    assert!(is_of(&yes, 0, &grant.owner_record) && doubtful.is_empty());
    assert_eq!((grant.epoch, grant.fence), (Some(Epoch(NUMBER)), None));
    let (answer, doubtful, _) = join(&store(&[Said::Held], &[]), LONG);
    assert!(matches!(answer, Ok(Acquired::Held(_))) && doubtful.is_empty());
    let (answer, doubtful, _) = join(&store(&[Said::Down], &[]), LONG);
    assert!(answer.unwrap_err().code() == Code::ConnectionError && doubtful.is_empty());
}

#[test]
fn a_join_without_an_answer_is_what_a_read_shows() {
    let shown = store(&[Said::Lost], &[Shows::Sent(0)]);
    let (answer, doubtful, _) = join(&shown, LONG);
    assert!(is_of(&shown, 0, &granted(answer).owner_record) && doubtful.is_empty());
    // It is sent again with another token, and the first one may still come.
    let again = store(&[Said::Lost, Said::Yes], &[Shows::Nothing]);
    let (answer, doubtful, sent) = join(&again, LONG);
    assert!(is_of(&again, 1, &granted(answer).owner_record));
    assert_eq!(doubtful, sent[..1]);
    assert_ne!(sent[0], sent[1]);
}

/// What stands in the way of the second request may be the first one.
#[test]
fn a_join_that_is_refused_after_one_without_an_answer_is_read_too() {
    let first = store(&[Said::Lost, Said::Held], &[Shows::Nothing, Shows::Sent(0)]);
    let (answer, doubtful, _) = join(&first, LONG);
    assert!(is_of(&first, 0, &granted(answer).owner_record) && doubtful.is_empty());
    let another = store(&[Said::Lost, Said::Held], &[Shows::Nothing, Shows::Other]);
    let (answer, doubtful, sent) = join(&another, LONG);
    assert!(matches!(answer, Ok(Acquired::Held(_))));
    assert_eq!(doubtful, sent[..1]);
}

#[test]
fn a_join_that_finds_nothing_out_is_in_doubt_with_all_that_may_come() {
    let down = [[Said::Lost].as_slice(), &[Said::Down; ROUNDS]].concat();
    let (answer, doubtful, sent) = join(&store(&down, &[Shows::Nothing]), SHORT);
    assert_eq!(answer.unwrap_err().code(), Code::InDoubt);
    assert_eq!((doubtful.len(), &doubtful[0]), (1, &sent[0]));
    let (answer, doubtful, sent) = join(&store(&[Said::Lost; 20], &[Shows::Nothing]), LONG);
    assert_eq!(answer.unwrap_err().code(), Code::InDoubt);
    assert_eq!((doubtful.len(), sent.len()), (ROUNDS, ROUNDS), "it has a bound");
    let (answer, doubtful, _) = join(&store(&[Said::Lost], &[Shows::Down]), SHORT);
    assert!(answer.unwrap_err().code() == Code::InDoubt && doubtful.len() == 1);
}

#[test]
fn a_hold_without_a_number_gets_one_or_is_released() {
    let numbered = store(&[Said::YesUnnumbered], &[]);
    numbered.register().0.lock().numbers.push_back(true);
    assert_eq!(granted(join(&numbered, LONG).0).epoch, Some(Epoch(NUMBER)));
    let released = store(&[Said::YesUnnumbered], &[]);
    released.register().0.lock().numbers.push_back(false);
    let (answer, doubtful, _) = join(&released, LONG);
    assert!(answer.unwrap_err().code() == Code::RetriesExhausted && doubtful.is_empty());
    assert_eq!(released.register().0.lock().removed, 1);
    let left = store(&[Said::YesUnnumbered], &[]);
    left.register().0.lock().numbers.push_back(false);
    left.register().0.lock().cannot_remove = true;
    let (answer, doubtful, sent) = join(&left, LONG);
    assert_eq!((answer.unwrap_err().code(), doubtful), (Code::InDoubt, sent));
}

/// Asks for an upgrade. Returns the answer, the records that may still be stored, and the old record.
fn upgrade(store: &RemoteStore<Planned>, within: Duration) -> (Result<Converted>, Vec<OwnerRecord>, Record) {
    let (name, identity) = (name(), Identity::this_process("tests").unwrap());
    let held = drawn("tests").placed(Mode::Update, 3).numbered(NUMBER - 1);
    let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: Deadline::after(within) };
    let (owner_record, mut doubtful) = (bytes(&held), Vec::new());
    let conversion =
        Conversion { owner_record: &owner_record, from: Mode::Update, to: Mode::Exclusive, intent: None };
    (store.convert(attempt, conversion, &mut doubtful), doubtful, held)
}

#[track_caller]
fn converted(answer: Result<Converted>) -> Grant {
    match answer {
        Ok(Converted::Granted(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_change_ends_with_its_first_answer_if_that_says_all() {
    let yes = store(&[Said::Yes], &[]);
    let grant = converted(upgrade(&yes, LONG).0);
    assert!(is_of(&yes, 0, &grant.owner_record));
    assert_eq!(grant.fence, Some(Fence(NUMBER)));
    assert!(matches!(upgrade(&store(&[Said::Held], &[]), LONG).0, Ok(Converted::Held(_))));
    let (answer, doubtful, _) = upgrade(&store(&[Said::Down], &[]), LONG);
    assert!(answer.unwrap_err().code() == Code::ConnectionError && doubtful.is_empty());
}

#[test]
fn a_change_without_an_answer_is_what_a_read_shows_and_is_sent_again_with_the_same_token() {
    let shown = store(&[Said::Lost], &[Shows::Sent(0)]);
    assert!(is_of(&shown, 0, &converted(upgrade(&shown, LONG).0).owner_record));
    let gone = store(&[Said::Lost], &[Shows::Other]);
    let (answer, doubtful, _) = upgrade(&gone, LONG);
    assert!(matches!(answer, Ok(Converted::NotOurs)) && doubtful.is_empty());
    let again = store(&[Said::Lost, Said::Yes], &[Shows::Old]);
    converted(upgrade(&again, LONG).0);
    let sent = std::mem::take(&mut again.register().0.lock().sent);
    assert_eq!(sent[0], sent[1]);
}

/// A renewal of the same lease may have written the record.
#[test]
fn a_change_is_asked_for_again_with_the_version_of_the_record_that_is_stored() {
    let store = store(&[Said::NotStored, Said::Yes], &[Shows::OldRenewed]);
    let (answer, _, held) = upgrade(&store, LONG);
    converted(answer);
    let sent = std::mem::take(&mut store.register().0.lock().sent);
    assert_eq!([&sent[0].0, &sent[1].0], [&Some(held.clone()), &Some(held.renewed(2 * TTL))]);
    assert_eq!(sent[0].1, sent[1].1);
}

/// The first request may still be applied, and then the hold is exclusive.
#[test]
fn a_change_that_is_refused_after_one_without_an_answer_is_in_doubt() {
    let refused = [[Said::Lost].as_slice(), &[Said::Held; ROUNDS]].concat();
    let store = store(&refused, &[Shows::Old]);
    let (answer, doubtful, _) = upgrade(&store, SHORT);
    assert_eq!(answer.unwrap_err().code(), Code::InDoubt);
    assert_eq!(doubtful, [bytes(&store.register().0.lock().sent[0].1)]);
}

/// Nothing is read or sent for it.
#[test]
fn a_record_of_another_mode_is_not_converted() {
    let (store, name) = (store(&[], &[]), name());
    let identity = Identity::this_process("tests").unwrap();
    let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: Deadline::after(LONG) };
    let owner_record = bytes(&drawn("tests").placed(Mode::Shared, 3).numbered(NUMBER));
    let conversion =
        Conversion { owner_record: &owner_record, from: Mode::Update, to: Mode::Exclusive, intent: None };
    let answer = store.convert(attempt, conversion, &mut Vec::new());
    assert!(matches!(answer, Ok(Converted::NotOurs)));
    assert_eq!(store.release(&name, &owner_record, Deadline::after(LONG)).unwrap(), Released::Freed);
}

//! The rows of the table of states, over a register that answers as each test plans it.

use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use crate::Code;
use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::{Level, NamePolicy};
use crate::runtime::sync::real::Mutex;
use crate::store::remote::{Create, Created, NotGranted, Replace, Reply, Standing, StoredHolds};

const LONG: Duration = Duration::from_secs(60);
/// For a call that finds nothing out until its deadline.
const SHORT: Duration = Duration::from_millis(200);
const TTL: Duration = Duration::from_secs(30);
const NUMBER: u64 = 7;

/// The answer to a request for permits.
#[derive(Debug, Clone, Copy)]
enum Said {
    Yes,
    Held,
    OtherSize,
    Lost,
    Down,
}

/// What a read shows.
#[derive(Debug, Clone, Copy)]
enum Shows {
    Nothing,
    /// So many permits of the request at this position.
    Sent(usize, usize),
    Down,
}

#[derive(Debug, Default)]
struct Plan {
    said: VecDeque<Said>,
    shows: VecDeque<Shows>,
    /// Whether a grant may be told. `None`: that cannot be found out. When none is planned, it may be.
    confirms: VecDeque<Option<bool>>,
    sent: Vec<Vec<Record>>,
    removed: Vec<OwnerRecord>,
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

/// The records as they are stored, in the reverse order of their places.
fn stored(records: &[Record]) -> Vec<Record> {
    let numbered = |(at, record): (usize, &Record)| record.placed(Mode::Permit, at as u8).numbered(NUMBER);
    records.iter().enumerate().map(numbered).rev().collect()
}

impl PermitRegister for Planned {
    fn grant(&self, grant: &GrantPermits<'_>, _: Deadline) -> Reply<Vec<Record>, NotGranted> {
        let plan = &mut *self.0.lock();
        plan.sent.push(grant.records.to_vec());
        match plan.said.pop_front().expect("an answer is planned") {
            Said::Yes => {
                let mut granted = stored(grant.records);
                granted.reverse();
                Reply::Yes(granted)
            }
            Said::Held => Reply::No(NotGranted::Held(Holder::unknown())),
            Said::OtherSize => Reply::No(NotGranted::OtherSize(9)),
            Said::Lost => Reply::Lost(lost()),
            Said::Down => Reply::Down(down()),
        }
    }

    fn confirm(&self, _: &LockName, _: &[Record], _: Deadline) -> Result<bool> {
        self.0.lock().confirms.pop_front().unwrap_or(Some(true)).ok_or_else(down)
    }

    fn read_permits(&self, _: &LockName, _: Deadline) -> Result<(Option<u16>, StoredHolds)> {
        let plan = &mut *self.0.lock();
        // When no other is planned, the last one is repeated.
        let shows = plan.shows.pop_front().expect("a read is planned");
        if plan.shows.is_empty() {
            plan.shows.push_back(shows);
        }
        let records = match shows {
            Shows::Nothing => Vec::new(),
            Shows::Sent(at, count) => stored(&plan.sent[at]).into_iter().take(count).collect(),
            Shows::Down => return Err(down()),
        };
        let found = |record| Found { record: Some(record), ..Found::default() };
        let holds = records.into_iter().map(found).collect();
        Ok((Some(5), StoredHolds { holds, ..StoredHolds::default() }))
    }

    fn resize(&self, _: &LockName, _: u16, _: Deadline) -> Result<Option<u16>> {
        Ok(None)
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

    fn remove(&self, _: &LockName, record: &Record, _: Deadline) -> Reply {
        let plan = &mut *self.0.lock();
        if plan.cannot_remove {
            return Reply::Down(down());
        }
        plan.removed.push(bytes(record));
        Reply::Yes(())
    }

    fn read(&self, _: &LockName, _: Deadline) -> Result<Standing> {
        Err(down())
    }

    fn count(&self, _: &LockName, _: u64, _: Deadline) -> Result<u64> {
        Err(down())
    }

    fn last_count(&self, _: &LockName, _: Deadline) -> Result<Option<u64>> {
        Ok(None)
    }

    fn permits(&self) -> Option<&dyn PermitRegister> {
        Some(self)
    }
}

fn bytes(record: &Record) -> OwnerRecord {
    OwnerRecord::from_bytes(record.as_bytes())
}

/// A call for two permits, and what it left.
struct Asked {
    answer: Result<AcquiredPermits>,
    doubtful: Vec<OwnerRecord>,
    sent: Vec<Vec<Record>>,
    removed: Vec<OwnerRecord>,
}

impl Asked {
    /// Asserts that the permits of the request at this position were granted, in order.
    #[track_caller]
    fn granted(&self, at: usize) {
        let Ok(AcquiredPermits::Granted(grants)) = &self.answer else { panic!("{:?}", self.answer) };
        let found: Vec<_> = grants.iter().map(|it| (it.permit, it.grant.owner_record.clone())).collect();
        let expected: Vec<_> = stored(&self.sent[at])
            .iter()
            .rev()
            .map(|record| (record.place().unwrap(), bytes(record)))
            .collect();
        assert_eq!(found, expected);
        assert!(grants.iter().all(|it| it.grant.fence == Some(Fence(NUMBER)) && it.grant.epoch.is_none()));
    }

    fn records(&self, at: usize) -> Vec<OwnerRecord> {
        self.sent[at].iter().map(bytes).collect()
    }

    fn code(&self) -> Code {
        self.answer.as_ref().expect_err("it must fail").code()
    }
}

fn ask_as_planned(plan: Plan, within: Duration) -> Asked {
    let store = RemoteStore::new(Planned(Mutex::new(plan)));
    let name = LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap();
    let identity = Identity::this_process("tests").unwrap();
    let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: Deadline::after(within) };
    let mut doubtful = Vec::new();
    let answer = store.acquire_permits(attempt, PermitTerms { permits: 5, count: 2 }, &mut doubtful);
    let plan = std::mem::take(&mut *store.register().0.lock());
    Asked { answer, doubtful, sent: plan.sent, removed: plan.removed }
}

fn ask(said: &[Said], shows: &[Shows], within: Duration) -> Asked {
    let (said, shows) = (said.iter().copied().collect(), shows.iter().copied().collect());
    ask_as_planned(Plan { said, shows, ..Plan::default() }, within)
}

#[test]
fn a_call_ends_with_its_first_answer() {
    let yes = ask(&[Said::Yes], &[], LONG);
    yes.granted(0);
    let (held, other) = (ask(&[Said::Held], &[], LONG), ask(&[Said::OtherSize], &[], LONG));
    assert!(matches!(held.answer, Ok(AcquiredPermits::Held(_))));
    assert!(matches!(other.answer, Ok(AcquiredPermits::OtherSize(9))));
    let failed = ask(&[Said::Down], &[], LONG);
    assert_eq!(failed.code(), Code::ConnectionError);
    assert!([yes, held, other, failed].iter().all(|it| it.doubtful.is_empty() && it.removed.is_empty()));
}

#[test]
fn a_request_without_an_answer_is_what_a_read_shows() {
    let shown = ask(&[Said::Lost], &[Shows::Sent(0, 2)], LONG);
    shown.granted(0);
    assert!(shown.doubtful.is_empty());
    // It is sent again with other tokens, and the first one may still come.
    let again = ask(&[Said::Lost, Said::Yes], &[Shows::Nothing], LONG);
    again.granted(1);
    assert_eq!(again.doubtful, again.records(0));
    assert_ne!(again.records(0), again.records(1));
    // Too few may be free because of the first one.
    let first = ask(&[Said::Lost, Said::Held], &[Shows::Nothing, Shows::Sent(0, 2)], LONG);
    first.granted(0);
    assert!(first.doubtful.is_empty());
}

/// One of them was broken, or has ended. What is left of the request is released.
#[test]
fn a_part_of_a_request_is_no_grant() {
    let asked = ask(&[Said::Lost, Said::Held], &[Shows::Sent(0, 1)], LONG);
    assert!(matches!(asked.answer, Ok(AcquiredPermits::Held(_))), "{:?}", asked.answer);
    assert_eq!(asked.doubtful, asked.records(0));
}

#[test]
fn a_call_that_cannot_find_out_what_became_of_its_request_is_in_doubt() {
    let asked = ask(&[Said::Lost], &[Shows::Down], SHORT);
    assert_eq!(asked.code(), Code::InDoubt);
    assert_eq!(asked.doubtful, asked.records(0));
}

/// Another layout of the store has counted further.
#[test]
fn permits_with_too_low_a_fence_are_released_and_asked_for_again() {
    for said in [vec![Said::Yes, Said::Yes], vec![Said::Lost, Said::Yes]] {
        let confirms = [Some(false)].into();
        let shows = [Shows::Sent(0, 2)].into();
        let asked = ask_as_planned(Plan { said: said.into(), shows, confirms, ..Plan::default() }, LONG);
        asked.granted(1);
        assert_eq!(asked.removed.len(), 2);
        assert!(asked.doubtful.is_empty());
    }
}

#[test]
fn permits_whose_fence_cannot_be_compared_are_released_at_once_or_later() {
    for said in [Said::Yes, Said::Lost] {
        for cannot_remove in [false, true] {
            let (said, shows, confirms) = ([said].into(), [Shows::Sent(0, 2)].into(), [None].into());
            let plan = Plan { said, shows, confirms, cannot_remove, ..Plan::default() };
            let asked = ask_as_planned(plan, LONG);
            let expected = if cannot_remove { Code::InDoubt } else { Code::RetriesExhausted };
            assert_eq!(asked.code(), expected);
            let (removed, doubtful) = if cannot_remove { (0, 2) } else { (2, 0) };
            assert_eq!((asked.removed.len(), asked.doubtful.len()), (removed, doubtful));
        }
    }
}

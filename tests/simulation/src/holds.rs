//! Locks in all modes on a simulated server.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::remote::{
    Capabilities, ChangeMode, Compares, Create, Created, Found, Join, ModeRegister, NotChanged, ReadBack,
    Record, Register, Replace, Reply, Standing, StoredHolds, StoredIntent,
};
use dlm::store::{INTENT_MAX, Identity, Intent, IntentId};
use dlm::{Deadline, Error, Holder, LockName, Mode, Result};
use parking_lot::Mutex;

use crate::engine::{SERVER, engine};
use crate::network::{Network, Outcome};

/// A [`Register`] with modes on a simulated server, which all processes share. Each change is one step of the server, as
/// those of the layouts `own` are.
#[derive(Debug)]
pub struct SimulatedHolds {
    network: Arc<Network>,
    locks: Arc<Mutex<HashMap<String, Holds>>>,
}

/// What the server stores for a lock.
#[derive(Debug, Default)]
struct Holds {
    holds: Vec<StoredRecord>,
    intents: Vec<WaitingProcess>,
    turn_ends_ms: u64,
    /// The number of the last grant that began one.
    last: u64,
}

#[derive(Debug)]
struct StoredRecord {
    record: Record,
    written_ms: u64,
    ends_ms: u64,
}

#[derive(Debug)]
struct WaitingProcess {
    id: IntentId,
    identity: Identity,
    since_ms: u64,
    ends_ms: u64,
}

fn server_ms() -> u64 {
    let engine = engine();
    engine.clock(SERVER).wall_ms(engine.time())
}

fn ends_ms(ttl: Duration) -> u64 {
    server_ms() + ttl.as_millis() as u64 + 1
}

impl Holds {
    /// Forgets what has ended.
    fn sweep(&mut self) {
        let now = server_ms();
        self.holds.retain(|hold| now < hold.ends_ms);
        self.intents.retain(|intent| now < intent.ends_ms);
    }

    fn all(&self) -> StoredHolds {
        let now = server_ms();
        let left = |ends_ms: u64| Some(Duration::from_millis(ends_ms.saturating_sub(now)));
        let hold = |hold: &StoredRecord| Found {
            record: Some(hold.record.clone()),
            written_ms: Some(hold.written_ms),
            left: left(hold.ends_ms),
            beneath: None,
        };
        let intent = |intent: &WaitingProcess| StoredIntent {
            identity: Some(intent.identity.clone()),
            waited: Duration::from_millis(now.saturating_sub(intent.since_ms)),
            left: left(intent.ends_ms),
        };
        StoredHolds {
            holds: self.holds.iter().map(hold).collect(),
            intents: self.intents.iter().map(intent).collect(),
            has_turn: now < self.turn_ends_ms,
        }
    }

    fn standing(&self) -> Standing {
        let mut all = self.all();
        all.holds.sort_by_key(|found| found.left);
        all.holds.pop().map_or(Standing::Free, Standing::Held)
    }

    fn standing_of(&self, token: &Record) -> Standing {
        let is_own =
            |found: &Found| found.record.as_ref().is_some_and(|record| record.token() == token.token());
        self.all().holds.into_iter().find(is_own).map_or(Standing::Free, Standing::Held)
    }

    /// Returns the place of this version of a hold.
    fn find(&self, record: &Record) -> Option<usize> {
        self.holds.iter().position(|hold| hold.record == *record)
    }

    fn put(&mut self, record: Record) {
        let (written_ms, ends_ms) = (server_ms(), ends_ms(record.ttl()));
        self.holds.push(StoredRecord { record, written_ms, ends_ms });
    }

    fn next_number(&mut self, least: u64, numbers: u64) -> u64 {
        self.last = (least + numbers - 1).max(self.last + numbers);
        self.last
    }

    fn end_intent(&mut self, id: Option<IntentId>) {
        self.intents.retain(|intent| Some(intent.id) != id);
    }

    fn join(
        &mut self,
        record: &Record,
        least: u64,
        nested_in: Option<&Record>,
        turn: Option<Duration>,
    ) -> Reply<Record, Holder> {
        let mode = record.mode();
        if let Some(blocker) = self.all().blocker(mode, nested_in, turn.is_some()) {
            return Reply::No(blocker);
        }
        // The first one begins a number, and others join it.
        let number = if self.holds.is_empty() { self.next_number(least, 1) } else { self.last };
        let taken = |place: u8| self.holds.iter().any(|hold| hold.record.place() == Some(place));
        let Some(place) = (0..=u8::MAX).find(|place| !taken(*place)) else {
            return Reply::No(self.all().last_to_end().expect("it is full").holder());
        };
        let stored = record.placed(mode, place).numbered(number);
        self.put(stored.clone());
        if let Some(turn) = turn {
            self.turn_ends_ms = self.turn_ends_ms.max(ends_ms(turn));
        }
        Reply::Yes(stored)
    }

    fn change_mode(
        &mut self,
        held: &Record,
        record: &Record,
        least: u64,
        intent: Option<IntentId>,
    ) -> Reply<Record, NotChanged> {
        let Some(at) = self.find(held) else { return Reply::No(NotChanged::NotStored) };
        let (from, to) = (held.mode(), record.mode());
        if let Some(holder) = self.all().hold_against(to, Some(held)) {
            return Reply::No(NotChanged::Held(holder));
        }
        let begins = from == Mode::Exclusive || to == Mode::Exclusive;
        let number = if begins { self.next_number(least, 1) } else { self.last };
        self.holds.remove(at);
        let stored = record.placed(to, held.place().unwrap_or_default()).numbered(number);
        self.put(stored.clone());
        if to == Mode::Exclusive {
            self.end_intent(intent);
        }
        Reply::Yes(stored)
    }
}

impl SimulatedHolds {
    /// Makes a server without locks.
    pub fn new(network: &Arc<Network>) -> SimulatedHolds {
        SimulatedHolds { network: Arc::clone(network), locks: Arc::default() }
    }

    /// Sends a request to the server.
    fn call<T: 'static>(
        &self,
        name: &LockName,
        by: Deadline,
        serve: impl Fn(&mut Holds) -> T + 'static,
    ) -> Outcome<T> {
        let (locks, name) = (Arc::clone(&self.locks), name.to_string());
        let serve = Rc::new(move || {
            let mut locks = locks.lock();
            let holds = locks.entry(name.clone()).or_default();
            holds.sweep();
            serve(holds)
        });
        self.network.call_through(by, None, serve)
    }
}

impl Register for SimulatedHolds {
    fn describe(&self) -> String {
        "simulated:".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            counts_in_record: true,
            reserves: true,
            compares: Compares::Record,
            read_back: ReadBack::Never,
            ..Capabilities::default()
        }
    }

    fn initialize(&self, _by: Deadline) -> Result<()> {
        Ok(())
    }

    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created> {
        let (record, least, numbers) =
            (create.record.clone(), create.count.unwrap_or_default(), create.numbers);
        let intent = create.intent;
        let created = self.call(create.name, by, move |holds| {
            if !holds.holds.is_empty() {
                return Reply::No(Some(holds.standing()));
            }
            let number = holds.next_number(least, numbers);
            holds.put(record.numbered(number));
            holds.end_intent(intent);
            Reply::Yes(Created { count: Some(number), standing: None })
        });
        Reply::of(created.of_change(), |reply| reply)
    }

    fn replace(&self, replace: &Replace<'_>, by: Deadline) -> Reply {
        let (expected, record) = (replace.expected.clone(), replace.record.clone());
        let replaced = self.call(replace.name, by, move |holds| {
            let Some(at) = holds.find(&expected) else { return Reply::No(None) };
            holds.holds.remove(at);
            holds.put(record.clone());
            Reply::Yes(())
        });
        Reply::of(replaced.of_change(), |reply| reply)
    }

    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        let expected = expected.clone();
        let removed = self.call(name, by, move |holds| {
            let Some(at) = holds.find(&expected) else { return Reply::No(None) };
            holds.holds.remove(at);
            Reply::Yes(())
        });
        Reply::of(removed.of_change(), |reply| reply)
    }

    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        self.call(name, by, |holds| holds.standing()).of_read()
    }

    fn read_own(&self, name: &LockName, record: &Record, by: Deadline) -> Result<Standing> {
        let record = record.clone();
        self.call(name, by, move |holds| holds.standing_of(&record)).of_read()
    }

    fn count(&self, _: &LockName, _: u64, _: Deadline) -> Result<u64> {
        let what = "a lock is counted only when it is acquired".into();
        Err(Error::Internal { what, source: None })
    }

    fn last_count(&self, name: &LockName, by: Deadline) -> Result<Option<u64>> {
        self.call(name, by, |holds| Some(holds.last).filter(|last| *last > 0)).of_read()
    }

    fn modes(&self) -> Option<&dyn ModeRegister> {
        Some(self)
    }
}

impl ModeRegister for SimulatedHolds {
    fn join(&self, join: &Join<'_>, by: Deadline) -> Reply<Record, Holder> {
        let (record, least, turn) = (join.record.clone(), join.least, join.turn);
        let nested_in = join.nested_in.cloned();
        let joined =
            self.call(join.name, by, move |holds| holds.join(&record, least, nested_in.as_ref(), turn));
        Reply::of(joined.of_change(), |reply| reply)
    }

    fn change_mode(&self, change: &ChangeMode<'_>, by: Deadline) -> Reply<Record, NotChanged> {
        let (held, record) = (change.held.clone(), change.record.clone());
        let (least, intent) = (change.least, change.intent);
        let changed =
            self.call(change.name, by, move |holds| holds.change_mode(&held, &record, least, intent));
        Reply::of(changed.of_change(), |reply| reply)
    }

    fn read_holds(&self, name: &LockName, by: Deadline) -> Result<StoredHolds> {
        self.call(name, by, |holds| holds.all()).of_read()
    }

    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()> {
        let (id, identity, lasts) = (intent.id, intent.identity.clone(), intent.lasts.min(INTENT_MAX));
        let announced = self.call(name, by, move |holds| {
            let before = holds.intents.iter().find(|intent| intent.id == id).map(|intent| intent.since_ms);
            let since_ms = before.unwrap_or_else(server_ms);
            holds.end_intent(Some(id));
            let identity = identity.clone();
            holds.intents.push(WaitingProcess { id, identity, since_ms, ends_ms: ends_ms(lasts) });
        });
        announced.of_change()
    }

    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()> {
        self.call(name, by, move |holds| holds.end_intent(Some(intent))).of_change()
    }
}

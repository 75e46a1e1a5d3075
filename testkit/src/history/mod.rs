//! Histories: logs of calls by many clients, and rules that every such log must satisfy.
//!
//! Clients log each call before it is made and after it has returned, with a [`Recorder`]. All processes of a machine
//! share the clock of [`dlm::Moment`]. So if one call returned before another was made, it took effect before. The
//! rules use nothing else: a slow machine makes calls long, and so makes the rules weaker, but never wrong.
//!
//! ```
//! use std::time::Duration;
//! use dlm::Mode;
//! use dlm_testkit::history::{Answer, History, Operation, Recorder, Rule, Tolerances, check};
//!
//! let mut logs = [Recorder::new("A", Vec::new()), Recorder::new("B", Vec::new())];
//! for log in &mut logs {
//!     // Both clients are granted the lock, with one fence.
//!     let (ttl, wait, mode) = (Duration::from_secs(60), Duration::ZERO, Mode::Exclusive);
//!     let acquire = log.call("orders/1", Operation::Acquire { ttl, wait, mode });
//!     log.returned(&acquire, Answer::Granted { fence: Some(7), ends: dlm::Moment::now() });
//! }
//! let texts = logs.map(|log| String::from_utf8(log.into_inner()).unwrap());
//! let violations = check(&History::parse(texts)?, &Tolerances::default());
//! assert!(violations.iter().any(|violation| violation.rule == Rule::UniqueFences));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! | Rules | Module |
//! |---|---|
//! | U, A, A2, B, C, D, E, F, G | [`lock_rules`] |
//! | P, C, and the other rules of locks for each permit | [`permit_rules`] |
//! | L1 to L7 | [`latch_rules`] |
//! | R | [`row_rules`], with the search of [`linearizability`] |
//!
//! [`timeline_svg`] draws a history with its violations. See [`Rule`] for what each rule says. A history must contain
//! every call on its keys: a holder that does not log is a phantom to the rules. A test that delays messages or stops
//! servers logs that too, as [`Operation::Delay`] and [`Operation::Outage`].

mod event;
mod grant;
mod latch_history;
pub mod latch_rules;
mod late_effects;
mod line;
pub mod linearizability;
pub mod lock_rules;
pub mod permit_rules;
mod recorder;
pub mod row_rules;
mod timeline;
mod tolerances;
mod violation;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dlm::Moment;

pub use event::{Answer, CallId, Event, Operation};
pub use grant::{Grant, LockHistory, PermitNumber, PossibleHold, Request};
pub use latch_history::{CountBounds, Creation, LatchHistory};
pub use late_effects::LateEffects;
use line::Line;
pub use recorder::Recorder;
pub use timeline::timeline_svg;
pub use tolerances::Tolerances;
pub use violation::{Rule, Violation};

/// A gap between two signs of life is a stall if it is longer than so many intervals.
const STALL_INTERVALS: u32 = 4;

/// All calls of all clients, in the order in which they were called.
#[derive(Debug, Clone, Default)]
pub struct History {
    events: Vec<Event>,
}

impl History {
    /// Makes a history of these calls.
    pub fn new(mut events: Vec<Event>) -> History {
        events.sort_by(|a, b| a.called.cmp(&b.called).then_with(|| a.id.cmp(&b.id)));
        History { events }
    }

    /// Reads the logs in these files. See [`parse`](History::parse).
    ///
    /// # Errors
    /// A file cannot be read, or is not a log.
    pub fn read(files: impl IntoIterator<Item = impl AsRef<Path>>) -> io::Result<History> {
        let texts: io::Result<Vec<String>> = files.into_iter().map(std::fs::read_to_string).collect();
        History::parse(texts?)
    }

    /// Merges logs and pairs each call with its return. A call without a return has [`Answer::Unknown`]. The last line
    /// of a log is ignored if it has no line feed: its writer was killed.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for a line that cannot be read, a return without a call or before it, and two
    /// calls or returns of one number.
    pub fn parse(logs: impl IntoIterator<Item = impl AsRef<str>>) -> io::Result<History> {
        let mut calls = Calls::default();
        for log in logs {
            let whole = log.as_ref().rsplit_once('\n').map_or("", |(whole, _)| whole);
            for text in whole.lines() {
                calls.add(text)?;
            }
        }
        calls.pair_rest()?;
        Ok(History::new(calls.events.into_values().collect()))
    }

    /// Returns the calls, in the order in which they were called.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the calls on each key, keys and calls in the order in which they were called.
    pub fn by_key(&self) -> Vec<(Arc<str>, Vec<&Event>)> {
        let mut keys: Vec<(Arc<str>, Vec<&Event>)> = Vec::new();
        let mut numbers: HashMap<&Arc<str>, usize> = HashMap::new();
        for event in &self.events {
            let number = *numbers.entry(&event.key).or_insert_with(|| {
                keys.push((Arc::clone(&event.key), Vec::new()));
                keys.len() - 1
            });
            keys[number].1.push(event);
        }
        keys
    }

    /// Returns the calls that were under way from `margin` before the calls of a violation to `margin` after them, to
    /// draw them. Do not check the result: calls are missing from it.
    pub fn around(&self, violation: &Violation, margin: Duration) -> History {
        let called = violation.events.iter().map(|event| event.called).min();
        let returned = violation.events.iter().map(Event::last_seen).max();
        let (Some(called), Some(returned)) = (called, returned) else { return self.clone() };
        let (from, to) = (tolerances::before(called, margin), returned.after(margin));
        let near = self.events.iter().filter(|event| event.called <= to && event.last_seen() >= from);
        History { events: near.cloned().collect() }
    }

    /// Returns for how long a client may have been held up within this time: by stalls, by delays of its messages, and
    /// because a server was away.
    pub fn held_up_within(&self, client: &str, from: Moment, to: Moment) -> Duration {
        self.stalled_within(from, to) + LateEffects::of(self).held_up_within(client, from, to)
    }

    /// Returns for how long the machine or the process stood still within this time, as far as the log shows it: see
    /// [`Operation::Beat`].
    pub fn stalled_within(&self, from: Moment, to: Moment) -> Duration {
        let mut last: HashMap<&str, Moment> = HashMap::new();
        let mut stalled = Duration::ZERO;
        for event in &self.events {
            let Operation::Beat { every } = event.operation else { continue };
            if let Some(last) = last.insert(&event.id.client, event.called)
                && event.called.since(last) > every * STALL_INTERVALS
            {
                stalled += event.called.min(to).since(last.max(from));
            }
        }
        stalled
    }
}

/// Calls that were read, with the returns that were read so far. A history may have millions of calls, so each name is
/// kept once.
#[derive(Default)]
struct Calls {
    events: HashMap<CallId, Event>,
    /// Returns that were read before their calls.
    early: Vec<(CallId, Moment, Answer, String)>,
    names: HashSet<Arc<str>>,
}

impl Calls {
    fn add(&mut self, text: &str) -> io::Result<()> {
        match Line::parse(text).ok_or_else(|| invalid("this line cannot be read", text))? {
            Line::Call { id, at, key, operation } => {
                let id = CallId { client: self.kept(&id.client), ..id };
                let (key, answer) = (self.kept(&key), Answer::Unknown);
                let event = Event { id: id.clone(), key, called: at, returned: None, operation, answer };
                if self.events.insert(id, event).is_some() {
                    return Err(invalid("a call of this client and number was logged before", text));
                }
            }
            Line::Return { id, at, answer } => match self.events.get_mut(&id) {
                Some(event) => pair(event, at, answer, text)?,
                None => self.early.push((id, at, answer, text.to_owned())),
            },
        }
        Ok(())
    }

    fn pair_rest(&mut self) -> io::Result<()> {
        for (id, at, answer, text) in self.early.drain(..) {
            let event = self.events.get_mut(&id).ok_or_else(|| invalid("this return has no call", &text))?;
            pair(event, at, answer, &text)?;
        }
        Ok(())
    }

    fn kept(&mut self, name: &str) -> Arc<str> {
        if let Some(kept) = self.names.get(name) {
            return Arc::clone(kept);
        }
        let kept: Arc<str> = name.into();
        self.names.insert(Arc::clone(&kept));
        kept
    }
}

fn pair(event: &mut Event, at: Moment, answer: Answer, text: &str) -> io::Result<()> {
    if event.returned.is_some() || at < event.called {
        return Err(invalid("this call has returned before", text));
    }
    (event.returned, event.answer) = (Some(at), answer);
    Ok(())
}

fn invalid(what: &str, line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {line:?}"))
}

/// Checks all rules.
pub fn check(history: &History, tolerances: &Tolerances) -> Vec<Violation> {
    let mut violations = lock_rules::check(history, tolerances);
    violations.extend(permit_rules::check(history, tolerances));
    violations.extend(latch_rules::check(history, tolerances));
    violations.extend(row_rules::check(history, tolerances));
    violations
}

//! What calls may do after they have returned, because a test delayed their messages or stopped a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlm::Moment;

use super::History;
use super::event::{Event, Operation};
use super::tolerances::Tolerances;

/// Delays of messages and outages of servers that the log shows: see [`Operation::Delay`] and [`Operation::Outage`].
#[derive(Debug, Clone, Default)]
pub struct LateEffects {
    /// By the beginning of the names of the clients.
    delays: BTreeMap<Arc<str>, Vec<Delay>>,
    outages: Vec<(Moment, Moment)>,
}

/// One delay. They are sorted by their beginnings.
#[derive(Debug, Clone, Copy)]
struct Delay {
    from: Moment,
    to: Moment,
    longest: Duration,
    /// The latest end of this delay and those before it.
    latest: Moment,
}

impl LateEffects {
    /// Finds the delays and outages of a history.
    pub fn of(history: &History) -> LateEffects {
        let mut effects = LateEffects::default();
        for event in history.events() {
            // One that has no end lasts until the end of the log.
            let (from, to) = (event.called, event.returned.unwrap_or(Moment::from_nanos(u64::MAX)));
            match event.operation {
                Operation::Delay { longest } => {
                    let delays = effects.delays.entry(Arc::clone(&event.key)).or_default();
                    let latest = delays.last().map_or(to, |last| last.latest.max(to));
                    delays.push(Delay { from, to, longest, latest });
                }
                Operation::Outage => effects.outages.push((from, to)),
                _ => {}
            }
        }
        effects
    }

    /// Returns the longest delay of messages of a call; `None` if none of its messages was delayed or lost.
    pub fn delay(&self, event: &Event) -> Option<Duration> {
        self.delays_of(&event.id.client, event.called, event.last_seen()).max()
    }

    /// Returns for how long messages of this client were delayed and servers were away within this time, together.
    pub fn held_up_within(&self, client: &str, from: Moment, to: Moment) -> Duration {
        let away = self.outages.iter().map(|(begin, end)| (*end).min(to).since((*begin).max(from)));
        self.delays_of(client, from, to).chain(away).sum()
    }

    /// Returns whether a server that went away within this time may have forgotten a release.
    pub fn forgets(&self, from: Moment, to: Moment) -> bool {
        self.outages.iter().any(|(begin, _)| (from..=to).contains(begin))
    }

    /// Returns until when a record may last that this call may have written.
    pub(super) fn latest_end(&self, event: &Event, ttl: Duration, tolerances: &Tolerances) -> Moment {
        let late = self.lateness(event, tolerances);
        tolerances.possibly_until(event.last_seen().after(late), ttl)
    }

    /// Returns how long after its end a request of this call may still take effect.
    pub(super) fn lateness(&self, event: &Event, tolerances: &Tolerances) -> Duration {
        let doubt = if event.answer.is_in_doubt() { tolerances.late } else { Duration::ZERO };
        let delay = self.delay(event).filter(|delay| !delay.is_zero()).map(|delay| delay + tolerances.stall);
        delay.unwrap_or_default().max(doubt)
    }

    fn delays_of(&self, client: &str, from: Moment, to: Moment) -> impl Iterator<Item = Duration> {
        let concerned = self.delays.iter().filter(move |(clients, _)| client.starts_with(&***clients));
        concerned.flat_map(move |(_, delays)| {
            let begun = &delays[..delays.partition_point(|delay| delay.from <= to)];
            let near = begun.iter().rev().take_while(move |delay| delay.latest >= from);
            near.filter(move |delay| delay.to >= from).map(|delay| delay.longest)
        })
    }
}

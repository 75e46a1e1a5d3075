//! **Only processes that answer are in a queue.** A process that registers over UDP, or is sent along by another, gets a
//! challenge, unless it has answered lately. With its answer it registers, whatever has become of the lock meanwhile. So
//! nobody can register the addresses of others.

use std::time::Duration;

use super::datagram::{Datagram, SentEntry};
use super::lock_queue::{Effect, REMEMBERED};
use super::rate_limit::RateLimit;
use crate::names::notice_endpoint::NoticeEndpoint;
use crate::runtime::sync::HashMap;
use crate::runtime::time::Moment;

/// How long an endpoint that has answered gets no challenge.
pub(super) const KNOWN_LASTS: Duration = Duration::from_secs(600);
/// Highest number of endpoints that are known, and of challenges without an answer.
pub(super) const KNOWN_MAX: usize = 1024;
/// Challenges in one second.
pub(super) const CHALLENGES_MAX: u32 = 1000;

/// A process that registers as soon as it answers a challenge.
#[derive(Debug)]
pub(super) struct Challenged {
    /// What its register quoted.
    pub(super) key: u64,
    pub(super) entry: SentEntry,
    at: Moment,
}

/// The processes that have answered lately, and those that are asked to.
pub(super) struct Answering {
    own: NoticeEndpoint,
    random: fn() -> u64,
    /// Until when a UDP endpoint is known to be that of a process with notices.
    known: HashMap<NoticeEndpoint, Moment>,
    /// By the nonces of the challenges.
    challenged: HashMap<u64, Challenged>,
    challenges: RateLimit,
}

impl Answering {
    pub(super) fn new(own: NoticeEndpoint, random: fn() -> u64) -> Answering {
        let challenges = RateLimit::new(CHALLENGES_MAX, Duration::from_secs(1));
        Answering { own, random, known: HashMap::default(), challenged: HashMap::default(), challenges }
    }

    /// Returns those of these processes that have answered lately. The others get a challenge, and register with this key
    /// when they answer it.
    pub(super) fn known_of(
        &mut self,
        key: u64,
        mut entries: Vec<SentEntry>,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) -> Vec<SentEntry> {
        entries.retain(|entry| {
            let is_known = self.is_known(entry.endpoint, now);
            if !is_known {
                self.challenge(key, *entry, now, effects);
            }
            is_known
        });
        entries
    }

    /// Whether a process receives at this endpoint. A datagram to a local socket without a receiver fails at once.
    fn is_known(&self, endpoint: NoticeEndpoint, now: Moment) -> bool {
        match endpoint {
            NoticeEndpoint::Local(_) => true,
            NoticeEndpoint::Udp(_) => self.known.get(&endpoint).is_some_and(|until| now < *until),
        }
    }

    /// The process at this endpoint has quoted a number that was drawn for it, and sent to nobody else.
    pub(super) fn know(&mut self, endpoint: NoticeEndpoint, now: Moment) {
        if matches!(endpoint, NoticeEndpoint::Local(_)) {
            return;
        }
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&endpoint) {
            self.known.retain(|_, until| now < *until);
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
        }
        self.known.insert(endpoint, now.after(KNOWN_LASTS));
    }

    fn challenge(&mut self, key: u64, entry: SentEntry, now: Moment, effects: &mut Vec<Effect>) {
        if entry.endpoint == self.own || !self.challenges.allows(now) {
            return;
        }
        // Its last registration counts.
        let is_other = |it: &Challenged| (it.key, it.entry.endpoint) != (key, entry.endpoint);
        self.challenged.retain(|_, it| is_other(it) && now.since(it.at) < REMEMBERED);
        if self.challenged.len() < KNOWN_MAX {
            let nonce = (self.random)();
            self.challenged.insert(nonce, Challenged { key, entry, at: now });
            effects.push(Effect::Send(entry.endpoint, Datagram::Challenge { nonce }));
        }
    }

    /// Returns who has answered a challenge, and is known from now on.
    pub(super) fn answered(&mut self, nonce: u64, from: NoticeEndpoint, now: Moment) -> Option<Challenged> {
        self.challenged.get(&nonce).filter(|it| it.entry.endpoint == from)?;
        let mut challenged = self.challenged.remove(&nonce)?;
        self.know(from, now);
        challenged.entry.waited = challenged.entry.waited.saturating_add(now.since(challenged.at));
        Some(challenged)
    }

    /// Returns the number of challenges without an answer, for tests.
    #[cfg(test)]
    pub(super) fn challenged(&self) -> usize {
        self.challenged.len()
    }

    /// This waiter does not wait any more.
    pub(super) fn left(&mut self, endpoint: NoticeEndpoint, nonce: u64) {
        self.challenged.retain(|_, it| (it.entry.endpoint, it.entry.nonce) != (endpoint, nonce));
    }
}

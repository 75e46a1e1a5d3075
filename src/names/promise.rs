//! What a store promises for locks and latches. See [`LockManager::promises`](crate::LockManager::promises).

use std::fmt;

use crate::names::diagnostic::{Diagnostic, Severity};

/// What is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PromiseTopic {
    /// While a lease lasts, there is no other holder.
    Exclusion,
    /// Each grant has a higher fence than all earlier ones.
    Fences,
    /// A lease ends for its holder before it ends in the store.
    LeaseEnd,
    /// A granted lock survives the crash of a server.
    Durability,
    /// A request did not happen, happened, or is in doubt, and the caller is told which.
    Outcomes,
    /// The lock of a process that has died is free soon.
    DeadHolder,
    /// A waiter gets a released lock within milliseconds, about in order of arrival.
    Waiting,
    /// Each count-down of a latch counts exactly once.
    Latches,
    /// An operator can break the lock of any holder, and of no other.
    Breaks,
}

impl PromiseTopic {
    /// All of them, in the order in which people read them.
    pub const ALL: &[PromiseTopic] = &[
        PromiseTopic::Exclusion,
        PromiseTopic::Fences,
        PromiseTopic::LeaseEnd,
        PromiseTopic::Durability,
        PromiseTopic::Outcomes,
        PromiseTopic::DeadHolder,
        PromiseTopic::Waiting,
        PromiseTopic::Latches,
        PromiseTopic::Breaks,
    ];

    /// Returns whether a diagnostic of this topic says something about the promise.
    fn concerns(self, topic: &str) -> bool {
        let topics: &[&str] = match self {
            // The configuration of the store. The others are about this machine.
            PromiseTopic::Exclusion => return !["clock", "latency", "notices"].contains(&topic),
            PromiseTopic::Fences => &["a lock"],
            PromiseTopic::LeaseEnd => &["clock", "clocks", "nodes' clocks"],
            PromiseTopic::Durability => {
                &["writes", "replication", "durability", "eviction", "consistency", "table"]
            }
            PromiseTopic::Waiting => &["notices"],
            PromiseTopic::Outcomes
            | PromiseTopic::DeadHolder
            | PromiseTopic::Latches
            | PromiseTopic::Breaks => &[],
        };
        topics.contains(&topic)
    }
}

/// Writes the promise as a sentence.
impl fmt::Display for PromiseTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PromiseTopic::Exclusion => "while a lease lasts, there is no other holder",
            PromiseTopic::Fences => "each grant has a higher fence than all earlier ones",
            PromiseTopic::LeaseEnd => "a lease ends for its holder before it ends in the store",
            PromiseTopic::Durability => "a granted lock survives the crash of a server",
            PromiseTopic::Outcomes => {
                "a request did not happen, happened, or is in doubt, and the caller is told which"
            }
            PromiseTopic::DeadHolder => "the lock of a process that has died is free soon",
            PromiseTopic::Waiting => {
                "a waiter gets a released lock within milliseconds, about in order of arrival"
            }
            PromiseTopic::Latches => "each count-down of a latch counts exactly once",
            PromiseTopic::Breaks => "an operator can break the lock of any holder, and of no other",
        })
    }
}

/// How far a promise holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Without a limit.
    Holds,
    /// With the limit that the reason gives.
    Limited,
    /// Not at all.
    Fails,
}

/// Writes `holds`, `limited` or `fails`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Holds => "holds",
            Verdict::Limited => "limited",
            Verdict::Fails => "fails",
        })
    }
}

/// Whether a promise holds in one store with its options, why, and what proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Promise {
    /// What is promised.
    pub topic: PromiseTopic,
    /// How far it holds.
    pub verdict: Verdict,
    /// The reason, or the limit.
    pub why: String,
    /// The command that runs the tests which prove it.
    pub proof: String,
}

impl Promise {
    /// Makes a promise. For stores.
    pub fn new(
        topic: PromiseTopic,
        verdict: Verdict,
        why: impl Into<String>,
        proof: impl Into<String>,
    ) -> Promise {
        Promise { topic, verdict, why: why.into(), proof: proof.into() }
    }

    /// Makes the promise of a store that says nothing about it.
    pub(crate) fn unknown(topic: PromiseTopic) -> Promise {
        let proof = "tests/run -- contract!    (dlm-testkit, in the crate of the store)";
        Promise::new(topic, Verdict::Limited, "the store does not say; see its documentation", proof)
    }

    /// Weakens the promise by the diagnostics that concern it, and adds them to the reason.
    pub(crate) fn judged_by(mut self, found: &[Diagnostic]) -> Promise {
        for diagnostic in found.iter().filter(|diagnostic| self.topic.concerns(diagnostic.topic)) {
            self.verdict = self.verdict.max(match diagnostic.severity {
                Severity::Ok => continue,
                Severity::Warn => Verdict::Limited,
                Severity::Fail => Verdict::Fails,
            });
            self.why += &format!("; {diagnostic}");
        }
        self
    }
}

/// Returns the command that runs a part of the contract tests, which are in the file `tests`.
pub(crate) fn suite(tests: &str, part: &str) -> String {
    format!("tests/run -- {tests}::{part}")
}

/// What all stores on servers promise in the same way, in addition to [`of_any_store`]. `losses` is the file of the tests in
/// which messages are lost.
#[cfg(any(feature = "aerospike", feature = "hbase"))]
pub(crate) fn of_any_server(tests: &str, losses: &str) -> Vec<Promise> {
    let mut promises = of_any_store(tests);
    promises.extend([
        Promise::new(
            PromiseTopic::Outcomes,
            Verdict::Holds,
            "a lost reply is settled by a read, or reported as IN_DOUBT; no write is repeated blindly",
            format!("tests/run -- {losses}"),
        ),
        Promise::new(
            PromiseTopic::DeadHolder,
            Verdict::Limited,
            "at the end of its TTL: a server cannot distinguish a dead process from one that it cannot reach",
            suite(tests, "waits::a_holder_that_vanished"),
        ),
    ]);
    promises
}

/// What a store whose locks clients of the Java library use promises about other holders.
#[cfg(any(feature = "aerospike", feature = "hbase"))]
pub(crate) fn exclusion_beside_java(how: &str, proof: &str) -> Promise {
    let why = format!("{how}; a Java client may release a lock that it has lost, and trusts its own clock");
    Promise::new(PromiseTopic::Exclusion, Verdict::Limited, why, proof)
}

/// The promise of fences that an option has switched off.
#[cfg(any(feature = "aerospike", feature = "hbase"))]
pub(crate) fn fences_are_off(tests: &str) -> Promise {
    let proof = suite(tests, "stores::fences_rise");
    Promise::new(PromiseTopic::Fences, Verdict::Fails, "fence=off: leases have no fences", proof)
}

/// What all stores of this library promise in the same way. `tests` is the file of the store's contract tests.
pub(crate) fn of_any_store(tests: &str) -> Vec<Promise> {
    vec![
        Promise::new(
            PromiseTopic::Fences,
            Verdict::Holds,
            "the store counts them, and the clock gives the first one",
            suite(tests, "stores::fences_rise"),
        ),
        Promise::new(
            PromiseTopic::LeaseEnd,
            Verdict::Holds,
            "it counts from before the request, and is shorter by clock_margin",
            suite(tests, "leases"),
        ),
        Promise::new(
            PromiseTopic::Latches,
            Verdict::Holds,
            "the store notes each step and applies it once",
            suite(tests, "latch_stores"),
        ),
        Promise::new(
            PromiseTopic::Breaks,
            Verdict::Holds,
            "the release of the record that was shown, under its own condition",
            suite(tests, "breaks"),
        ),
    ]
}

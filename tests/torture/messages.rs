//! A network that loses and delays messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlm_testkit::{Fault, Gate, Proxy};
use fastrand::Rng;

use crate::incidents::{Incidents, Loss};

/// Bytes of a short reply. A reply that is late arrives byte by byte, and most have one to three times as many.
const SHORT_REPLY: u32 = 128;

/// How the messages of a store are disturbed.
#[derive(Debug, Clone)]
pub(crate) struct Storm {
    /// One in so many messages.
    pub(crate) one_in: u64,
    /// Longest delay of a message.
    pub(crate) longest: Duration,
    /// Whether a request of this method changes something.
    pub(crate) writes: fn(&str) -> bool,
}

impl Storm {
    /// Disturbs messages that pass this proxy while `blows`. All of them belong to the clients whose names begin with
    /// `clients`.
    pub(crate) fn over(
        &self,
        proxy: &Proxy,
        clients: String,
        mut random: Rng,
        blows: Arc<AtomicBool>,
        incidents: Arc<Incidents>,
    ) {
        let Storm { one_in, longest, writes } = self.clone();
        proxy.storm(move |method| {
            if random.u64(..one_in) > 0 || !blows.load(Ordering::Acquire) {
                return None;
            }
            let delay = longest.mul_f64(random.f64());
            let gate = || Arc::new(Gate::opening_after(delay));
            let (loss, fault, delay) = match random.u8(..10) {
                0..4 => (Loss::Reply, Fault::LoseReply, Duration::ZERO),
                4 => (Loss::Reply, Fault::CutReply(random.usize(1..8)), Duration::ZERO),
                5 => (Loss::Request, Fault::LoseRequest, Duration::ZERO),
                6 => (Loss::Late, Fault::Keep(gate()), delay),
                7 => (Loss::Late, Fault::KeepAndBreak(gate()), delay),
                // Replies to reads may be long: a list of all partitions would take minutes.
                _ if !writes(method) => return None,
                _ => (Loss::LateReply, Fault::Drip(delay / SHORT_REPLY), delay * 4),
            };
            incidents.message(&clients, loss, writes(method), delay);
            Some(fault)
        });
    }
}

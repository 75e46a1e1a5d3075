//! What happens to locks and leases, for `-v`; with `-vv` also each call to the store.

use std::time::Duration;

use dlm::Fence;
use dlm::events::{Event, EventSink};

/// Writes events to the log.
#[derive(Debug)]
pub(crate) struct Narrator;

impl EventSink for Narrator {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Acquired { lock, fence, waited, .. } => {
                log::info!("lock {lock} acquired after {}{}", time(*waited), with(*fence));
            }
            Event::Unavailable { lock, code, waited, .. } => {
                log::info!("lock {lock} not acquired after {}: {}", time(*waited), code.name());
            }
            Event::Renewed { lock, left, .. } => log::info!("lease of {lock} renewed; {} left", time(*left)),
            Event::RenewalFailed { lock, code, left, .. } => {
                log::info!("lease of {lock} not renewed: {}; {} left", code.name(), time(*left));
            }
            Event::AtRisk { lock, left, .. } => {
                log::info!("lease of {lock} at risk: no renewal succeeds; {} left", time(*left));
            }
            Event::Lost { lock, reason, held, .. } => {
                log::info!("lease of {lock} lost after {}: {reason:?}", time(*held));
            }
            Event::Released { lock, held, freed, .. } => {
                let how = if *freed { "" } else { "; the store has not confirmed that it is free" };
                log::info!("lock {lock} released after {}{how}", time(*held));
            }
            Event::ModeChanged { lock, from, to, fence, waited, .. } => {
                let fence = with(*fence);
                log::info!(
                    "lock {lock} held in mode {to} after mode {from}, waited {}{fence}",
                    time(*waited)
                );
            }
            Event::ModeNotChanged { lock, from, to, code, waited, .. } => {
                let (waited, code) = (time(*waited), code.name());
                log::info!("lock {lock} not changed from mode {from} to {to} after {waited}: {code}");
            }
            Event::HandedOn { lock, held, .. } => {
                log::info!("lease of {lock} handed on after {}; the lock stays held", time(*held));
            }
            Event::InDoubt { lock, call, .. } => {
                log::info!("{call} of lock {lock} may or may not have taken effect");
            }
            Event::StoreCall { call, lock, outcome, took, .. } => {
                let of = lock.map(|lock| format!(" of {lock}")).unwrap_or_default();
                log::debug!("{call}{of}: {outcome}, {} ms", took.as_millis());
            }
            // Later versions of the library may have others.
            #[allow(unreachable_patterns, reason = "not outside of the library")]
            _ => {}
        }
    }
}

fn with(fence: Option<Fence>) -> String {
    fence.map(|Fence(number)| format!(", fence {number}")).unwrap_or_default()
}

fn time(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

//! What a person at a terminal sees while a command waits: whom it waits for, and for how long.

use std::time::Duration;

use dlm::store::Identity;
use dlm::{Holder, Latch, Lock, Moment, Semaphore};

use crate::cli::late_line::LateLine;
use crate::cli::ls::held_by;

/// A shorter wait is not worth a line.
const AFTER: Duration = Duration::from_secs(2);

/// Of a wait for locks. `wait`: how long it lasts at most, `None` if the store's URI or the default says that. Names the
/// first lock that another process holds.
pub(crate) fn for_locks(locks: &[Lock], wait: Option<Duration>) -> Option<LateLine> {
    let (locks, began) = (locks.to_vec(), Moment::now());
    LateLine::after(AFTER, move || {
        let in_the_way = locks.iter().find_map(|lock| match lock.inspect() {
            Ok(seen) => {
                let holder = seen.holder.filter(|holder| !is_this_process(holder))?;
                Some((lock, format!("is held by {}", held_by(&holder))))
            }
            Err(error) => Some((lock, error.to_string())),
        });
        let (lock, what) = match (in_the_way, locks.first()) {
            (Some(found), _) => found,
            (None, Some(first)) => (first, "is free: this process asks for it".into()),
            (None, None) => return limit(wait, began),
        };
        format!("waiting for lock {}: {what}; {}", lock.name(), limit(wait, began))
    })
}

/// Of a wait for a permit of a semaphore.
pub(crate) fn for_permit(semaphore: Semaphore, wait: Option<Duration>) -> Option<LateLine> {
    let began = Moment::now();
    LateLine::after(AFTER, move || {
        let what = match semaphore.holders() {
            Ok(holders) => format!("{} of {} are held", holders.len(), semaphore.permits()),
            Err(error) => error.chain(),
        };
        format!("waiting for a permit of semaphore {}: {what}; {}", semaphore.name(), limit(wait, began))
    })
}

/// Of a wait for a latch.
pub(crate) fn for_latch(latch: Latch, wait: Option<Duration>) -> Option<LateLine> {
    let began = Moment::now();
    let wait = wait.unwrap_or(Duration::MAX);
    LateLine::after(AFTER, move || {
        let what = match latch.count() {
            Ok(count) => {
                let pending = latch.roster().map(|roster| roster.pending).unwrap_or_default();
                let names =
                    if pending.is_empty() { String::new() } else { format!(": {}", pending.join(", ")) };
                let plural = if count == 1 { "count-down is" } else { "count-downs are" };
                format!("{count} {plural} missing{names}")
            }
            Err(error) => error.chain(),
        };
        format!("waiting for latch {}: {what}; {}", latch.name(), limit(Some(wait), began))
    })
}

fn is_this_process(holder: &Holder) -> bool {
    Identity::this_process("")
        .ok()
        .zip(holder.identity.as_ref())
        .is_some_and(|(own, holder)| own.host == holder.host && own.pid == holder.pid)
}

/// Says how long the wait goes on.
fn limit(wait: Option<Duration>, began: Moment) -> String {
    let end = "Ctrl-C ends the wait";
    match wait {
        None => end.into(),
        Some(Duration::MAX) => format!("waits without limit; {end}"),
        Some(wait) => {
            let left = wait.saturating_sub(Moment::now().since(began));
            format!("waits for another {} s; {end}", left.as_secs())
        }
    }
}

//! How a held lock changes its mode: from the lease of one mode to that of another.
//!
//! A change begins and ends in [`HeldLock`](crate::lease::held_lock). In between the store is asked, once for fewer rights. For
//! more rights the caller waits in the queue of the lock, before all others, until the readers have left.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::handles::acquire::unavailable;
use crate::handles::lease::Lease;
use crate::lease::held_lock::HeldLock;
use crate::lease::leases::{ConvertAnswer, ModeChange};
use crate::names::mode::Mode;
use crate::runtime::time::{Deadline, Moment};
use crate::session::Session;
use crate::store::IntentId;
use crate::wait::intents::ModeWait;
use crate::wait::local_queues::{Answer, Ended, Terms};

/// Asks the store once for fewer rights.
pub(crate) fn downgrade(session: &Session, lock: &Arc<HeldLock>, to: Mode) -> Result<ModeChange> {
    match ask(session, lock, to, None)? {
        ConvertAnswer::Changed(change) => Ok(change),
        ConvertAnswer::Held(holder) => {
            let what = format!("the store refused fewer rights for lock {}: held by {holder}", lock.name());
            Err(Error::Internal { what, source: None })
        }
    }
}

fn ask(session: &Session, lock: &Arc<HeldLock>, to: Mode, intent: Option<IntentId>) -> Result<ConvertAnswer> {
    session.leases.convert(session.modes(to)?, lock, to, intent, &session.identity)
}

/// Asks the store until the readers have left or the wait is over. Blocks this thread.
pub(crate) fn upgrade(session: &Arc<Session>, lock: &Arc<HeldLock>, wait: Duration) -> Result<ModeChange> {
    let (began, name) = (Moment::now(), lock.name());
    let by = Deadline::at(began.after(wait));
    let mut waits = ModeWait::default();
    let terms = Terms {
        by,
        retry: session.settings.retry,
        mode: Mode::Exclusive,
        cancel: None,
        // Only this lease is concerned.
        speaks_for_all: false,
    };
    let got = session.queue.wait_first(name, &terms, |_| {
        session.usable()?;
        match ask(session, lock, Mode::Exclusive, waits.intent())? {
            ConvertAnswer::Changed(change) => {
                waits.granted();
                Ok(Answer::Got(change))
            }
            ConvertAnswer::Held(holder) => {
                if waits.refused(Mode::Exclusive, &holder) && !by.passed() {
                    waits.announced(session.intents.announce(name));
                }
                Ok(Answer::Busy(Some(holder)))
            }
        }
    });
    waits.ended();
    let waited = || if wait.is_zero() { Duration::ZERO } else { Moment::now().since(began) };
    match got {
        Ok(change) => Ok(change),
        Err(Ended::Unavailable(holder)) => {
            Err(unavailable(session, name, holder.map(|holder| *holder), waited()))
        }
        Err(Ended::Cancelled) => Err(Error::Cancelled { waited: waited() }),
        Err(Ended::Failed(error)) => Err(error),
    }
}

/// Makes the lease that goes on.
pub(crate) fn leased(session: &Arc<Session>, change: ModeChange) -> Result<Lease> {
    let ModeChange { lock, kept_until } = change;
    let lease = Lease::of(session, lock)?;
    if let Some(until) = kept_until {
        lease.keep_until(until)?;
    }
    Ok(lease)
}

//! Diagnosis of a store: checks its settings, and the whole life of one lock.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::holder::Identity;
use crate::names::lock_name::{Level, LockName};
use crate::runtime::time::{Deadline, Moment, slew_ppm};
use crate::settings::manager_options::Settings;
use crate::store::{Acquired, Attempt, LockStore, Released};

/// See [`LockManager::diagnose`](crate::LockManager::diagnose).
pub(crate) fn diagnose(store: &dyn LockStore, settings: &Settings, identity: &Identity) -> Vec<Diagnostic> {
    let reached = store.greet(Deadline::after(settings.timeout));
    let mut found = match reached.and_then(|()| store.diagnose(Deadline::after(settings.timeout))) {
        Ok(found) => found,
        Err(error) => {
            let advice = "check that the store is up and that the URI names it; read its logs";
            return vec![Diagnostic::fail("reach", error.chain(), advice)];
        }
    };
    match probe(store, settings, identity) {
        Ok(look) => {
            found.push(Diagnostic::ok("a lock", "was acquired, renewed and released"));
            found.push(Diagnostic::latency(look));
        }
        Err(error) => {
            let advice = "`dlm init` creates what is missing; otherwise see the findings above";
            found.push(Diagnostic::fail("a lock", error.chain(), advice));
        }
    }
    found.extend(slew_ppm().map(|ppm| Diagnostic::slew(ppm, settings.clock_margin_ppm)));
    found
}

/// Doctors that may run on one machine at the same time. Each uses another lock. The number is small, because a store
/// keeps the fence of each lock for weeks.
const PROBES: u32 = 8;

/// Acquires, reads, renews and releases a lock that only doctors of this machine use. Returns how long a read takes.
fn probe(store: &dyn LockStore, settings: &Settings, identity: &Identity) -> Result<Duration> {
    const TTL: Duration = Duration::from_secs(60);
    let by = Deadline::after(settings.timeout);
    let odd = |what: &str| Error::Internal { what: what.to_owned(), source: None };
    let mut acquired = None;
    for number in 0..PROBES {
        let id = format!("dlm doctor {} {number}", identity.host);
        let name = LockName::new(Level::Xdc, &settings.client, None, &id, settings.names)?;
        let attempt = Attempt { name: &name, ttl: TTL, identity, by };
        if let Acquired::Granted(grant) = store.acquire(attempt, &mut Vec::new())? {
            acquired = Some((name, grant));
            break;
        }
    }
    let (name, grant) = acquired.ok_or_else(|| {
        odd("the locks of this check are held by other processes on this machine; try again in a minute")
    })?;
    let mut look = Duration::MAX;
    for _ in 0..5 {
        let before = Moment::now();
        store.holder(&name, by)?.ok_or_else(|| odd("a lock that was granted appears free"))?;
        look = look.min(Moment::now().since(before));
    }
    let renewed = store.renew(&name, &grant.owner_record, TTL, by)?;
    let owner_record = renewed.ok_or_else(|| odd("a lock that was granted cannot be renewed"))?;
    match store.release(&name, &owner_record, by)? {
        Released::NotOurs => Err(odd("a lock that was granted cannot be released")),
        Released::Freed | Released::Gone => Ok(look),
    }
}

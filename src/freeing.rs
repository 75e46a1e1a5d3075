//! Freeing a lock in the background, after a request of which nobody knows whether it was applied.
//!
//! A try is a release, so it is always safe: it touches no other holder's record.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::store::{LockName, LockStore, Proof, Released};
use crate::time::Deadline;
use crate::watcher::Next;

/// Pauses between tries: short at first, doubled each time.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);
/// While the store does not serve.
const PAUSE_LONGEST_UNSERVED: Duration = Duration::from_secs(300);
/// How long a request may still be applied after its client has given up: a gateway goes on for minutes.
const ASTRAY_FOR: Duration = Duration::from_secs(300);
/// For one try. Others wait for the thread.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What is in doubt about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// A request that takes the lock may yet be applied.
    MayBeTaken,
    /// A release failed, so the lock may still be held. No request is under way that would take it again.
    MayBeHeld,
}

/// A lock to be freed, as a job of the pool.
pub(crate) struct Freeing {
    store: Arc<dyn LockStore>,
    name: LockName,
    proof: Proof,
    pause: Duration,
    /// From then on the store's word that the lock is not ours is the last word.
    settled: Deadline,
    /// From then on the TTL has ended whatever was applied.
    gone: Deadline,
}

impl Freeing {
    /// `ttl`: for how long the store may keep the record.
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        name: LockName,
        proof: Proof,
        ttl: Duration,
        doubt: Doubt,
    ) -> Freeing {
        let astray_for = match doubt {
            Doubt::MayBeTaken => ASTRAY_FOR,
            Doubt::MayBeHeld => Duration::ZERO,
        };
        let settled = Deadline::after(astray_for);
        let gone = Deadline::after(astray_for.saturating_add(ttl));
        Freeing { store, name, proof, pause: PAUSE_FIRST, settled, gone }
    }

    /// How long after the request the first try is made.
    pub(crate) const FIRST_TRY: Duration = PAUSE_FIRST;

    pub(crate) fn try_once(&mut self) -> Next {
        let answer = self.store.release(&self.name, &self.proof, Deadline::after(TIMEOUT));
        self.after(&answer)
    }

    fn after(&mut self, answer: &Result<Released>) -> Next {
        let longest = match answer {
            Ok(Released::Freed) => {
                log::info!("lock {}, left in doubt, was freed", self.name);
                return Next::Done;
            }
            Ok(Released::NotOurs | Released::Gone) if self.settled.passed() => return Next::Done,
            Err(_) if self.gone.passed() => return Next::Done,
            Ok(Released::NotOurs | Released::Gone) => PAUSE_LONGEST,
            Err(_) => PAUSE_LONGEST_UNSERVED,
        };
        self.pause = (self.pause * 2).min(longest);
        Next::After(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::store::{Level, MemoryStore, NamePolicy};
    use crate::time::Moment;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn freeing(doubt: Doubt) -> Freeing {
        let name = LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap();
        Freeing::new(Arc::new(MemoryStore::new()), name, Proof::from_bytes([1; 16]), DAY, doubt)
    }

    fn broken() -> Result<Released> {
        Err(Error::Connection { store: "test".into(), what: "gone".into(), source: None })
    }

    #[test]
    fn a_failed_release_is_over_when_the_store_says_that_the_lock_is_not_ours() {
        let mut job = freeing(Doubt::MayBeHeld);
        assert_ne!(job.after(&broken()), Next::Done);
        assert_eq!(job.try_once(), Next::Done, "the store in memory knows no such lock");
        assert_eq!(freeing(Doubt::MayBeHeld).after(&Ok(Released::Gone)), Next::Done);
        assert_eq!(freeing(Doubt::MayBeHeld).after(&Ok(Released::Freed)), Next::Done);
    }

    /// A lock taken for a day was looked for during a day.
    #[test]
    fn a_request_to_take_the_lock_is_looked_for_while_it_may_be_under_way_and_not_for_its_ttl() {
        let mut job = freeing(Doubt::MayBeTaken);
        let until = job.settled.moment().since(Moment::now());
        assert!(until <= ASTRAY_FOR && until > ASTRAY_FOR / 2, "{until:?}");
        for answer in [Released::NotOurs, Released::Gone] {
            assert_ne!(job.after(&Ok(answer)), Next::Done, "it may come yet");
        }
        job.settled = Deadline::after(Duration::ZERO);
        assert_ne!(job.after(&broken()), Next::Done, "it may have come");
        assert_eq!(job.after(&Ok(Released::NotOurs)), Next::Done);
        job.gone = Deadline::after(Duration::ZERO);
        assert_eq!(job.after(&broken()), Next::Done);
    }

    #[test]
    fn pauses_grow_to_half_a_minute_and_to_five_where_the_store_does_not_serve() {
        let last = |answer: Result<Released>| {
            let mut job = freeing(Doubt::MayBeTaken);
            assert_eq!(job.after(&answer), Next::After(2 * PAUSE_FIRST));
            (0..20).map(|_| job.after(&answer)).last().unwrap()
        };
        assert_eq!(last(Ok(Released::NotOurs)), Next::After(PAUSE_LONGEST));
        assert_eq!(last(broken()), Next::After(PAUSE_LONGEST_UNSERVED));
    }
}

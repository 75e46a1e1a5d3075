//! Freeing a lock in the background, after a request of which nobody knows whether it was applied.
//!
//! A try is a release, so it is always safe: it touches no other holder's record.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::name::LockName;
use crate::owner::OwnerRecord;
use crate::store::{LockStore, Released};
use crate::time::Deadline;
use crate::wait::background::Next;

/// Pauses between tries: short at first, doubled each time.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);
/// Later: a record that a Java client's Delete hides shows again when the Delete is compacted away.
const PAUSE_LONGEST_LATER: Duration = Duration::from_secs(3600);
/// For how long a request may still be applied once a store that did not serve answers again.
const IN_FLIGHT_FOR_THEN: Duration = Duration::from_secs(60);
/// For one try. Others wait for the thread.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What is in doubt about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockDoubt {
    /// A request that takes the lock may yet be applied, or its record show again.
    MayBeTaken,
    /// A release failed, so the lock may still be held. No request is under way that would take it again.
    MayBeHeld,
}

/// A lock to be freed, as a job of the pool.
pub(crate) struct Freeing {
    store: Arc<dyn LockStore>,
    name: LockName,
    owner_record: OwnerRecord,
    pause: Duration,
    /// Until then a request may be applied.
    in_flight: Deadline,
    /// From then on the answer "not ours" ends the job.
    settled: Deadline,
    /// From then on the TTL has ended whatever was applied.
    gone: Deadline,
}

impl Freeing {
    /// `ttl`: for how long the store may keep the record.
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        name: LockName,
        owner_record: OwnerRecord,
        ttl: Duration,
        doubt: LockDoubt,
    ) -> Freeing {
        let in_flight_for = match doubt {
            LockDoubt::MayBeTaken => store.in_flight_for(),
            LockDoubt::MayBeHeld => Duration::ZERO,
        };
        let settled = match doubt {
            LockDoubt::MayBeTaken => Deadline::after(in_flight_for.max(ttl)),
            LockDoubt::MayBeHeld => Deadline::after(Duration::ZERO),
        };
        let gone = Deadline::after(in_flight_for.saturating_add(ttl));
        Freeing {
            store,
            name,
            owner_record,
            pause: PAUSE_FIRST,
            in_flight: Deadline::after(in_flight_for),
            settled,
            gone,
        }
    }

    /// How long after the request the first try is made.
    pub(crate) const FIRST_TRY: Duration = PAUSE_FIRST;

    pub(crate) fn try_once(&mut self) -> Next {
        let answer = self.store.release(&self.name, &self.owner_record, Deadline::after(TIMEOUT));
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
            Ok(Released::NotOurs | Released::Gone) if self.in_flight.passed() => PAUSE_LONGEST_LATER,
            Ok(Released::NotOurs | Released::Gone) => PAUSE_LONGEST,
            Err(_) => {
                // What a gateway keeps is applied when its server is back.
                if !self.settled.passed() {
                    let then = Deadline::after(IN_FLIGHT_FOR_THEN);
                    (self.in_flight, self.settled) = (self.in_flight.max(then), self.settled.max(then));
                }
                self.pause = self.pause.min(PAUSE_LONGEST / 2);
                PAUSE_LONGEST
            }
        };
        self.pause = (self.pause * 2).min(longest);
        Next::After(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::name::{Level, NamePolicy};
    use crate::store::MemoryStore;
    use crate::time::Moment;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn freeing(doubt: LockDoubt) -> Freeing {
        let name = LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap();
        Freeing::new(Arc::new(MemoryStore::new()), name, OwnerRecord::from_bytes([1; 16]), DAY, doubt)
    }

    fn broken() -> Result<Released> {
        Err(Error::Connection { store: "test".into(), what: "gone".into(), source: None })
    }

    #[test]
    fn a_failed_release_is_over_when_the_store_says_that_the_lock_is_not_ours() {
        let mut job = freeing(LockDoubt::MayBeHeld);
        assert_ne!(job.after(&broken()), Next::Done);
        assert_eq!(job.try_once(), Next::Done, "the store in memory knows no such lock");
        assert_eq!(freeing(LockDoubt::MayBeHeld).after(&Ok(Released::Gone)), Next::Done);
        assert_eq!(freeing(LockDoubt::MayBeHeld).after(&Ok(Released::Freed)), Next::Done);
    }

    /// A lock taken for a day was looked for every half minute during that day.
    #[test]
    fn a_request_to_take_the_lock_is_looked_for_while_it_may_be_under_way_and_rarely_later() {
        let mut job = freeing(LockDoubt::MayBeTaken);
        let in_flight_for = MemoryStore::new().in_flight_for();
        let until = job.in_flight.moment().since(Moment::now());
        assert!(until <= in_flight_for && until > in_flight_for / 2, "{until:?}");
        let pauses = |job: &mut Freeing| -> Duration {
            let pause = |job: &mut Freeing| match job.after(&Ok(Released::NotOurs)) {
                Next::After(pause) => pause,
                Next::Done => panic!("it may come yet"),
            };
            (0..20).map(|_| pause(job)).max().unwrap()
        };
        assert_eq!(pauses(&mut job), PAUSE_LONGEST);
        job.in_flight = Deadline::after(Duration::ZERO);
        assert_eq!(pauses(&mut job), PAUSE_LONGEST_LATER, "a hidden record may show again");
        job.settled = Deadline::after(Duration::ZERO);
        assert_eq!(job.after(&Ok(Released::NotOurs)), Next::Done);
    }

    /// A gateway applies what it kept when its server is back, just after it has answered our look.
    #[test]
    fn an_outage_makes_a_request_that_may_be_applied_last_longer_until_its_ttl_is_over() {
        let mut job = freeing(LockDoubt::MayBeTaken);
        job.in_flight = Deadline::after(Duration::ZERO);
        job.settled = Deadline::after(Duration::from_secs(1));
        assert_eq!((0..20).map(|_| job.after(&broken())).last(), Some(Next::After(PAUSE_LONGEST)));
        assert!(job.settled.remaining() > IN_FLIGHT_FOR_THEN / 2, "{:?}", job.settled.remaining());
        job.gone = Deadline::after(Duration::ZERO);
        assert_eq!(job.after(&broken()), Next::Done);
    }
}

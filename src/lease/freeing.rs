//! Frees a lock in the background, after a request that may or may not have been applied.
//!
//! Each try is a release. It is always safe, because a release never touches the record of another holder.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerRecord;
use crate::runtime::background::Next;
use crate::runtime::time::Deadline;
use crate::store::{LockStore, Released};

/// First and longest pause between two tries. The pause doubles each time.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);
/// Longest pause after the request can no longer be applied. A record that a Java client's Delete hides is visible
/// again when a compaction removes the Delete.
const PAUSE_LONGEST_LATER: Duration = Duration::from_secs(3600);
/// Time in which a request may still be applied after a store that did not serve answers again.
const IN_FLIGHT_FOR_THEN: Duration = Duration::from_secs(60);
/// Time limit of one try. Other jobs wait for the thread.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What is in doubt about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockDoubt {
    /// A request that acquires the lock may still be applied, or its record may become visible again.
    MayBeTaken,
    /// A release failed, so the lock may still be held. No request is in flight that would acquire it again.
    MayBeHeld,
}

/// A lock to be freed. It is a job of the background threads.
pub(crate) struct Freeing {
    store: Arc<dyn LockStore>,
    name: LockName,
    owner_record: OwnerRecord,
    pause: Duration,
    /// Until this moment a request may still be applied.
    in_flight: Deadline,
    /// After this moment the answer "not ours" ends the job.
    settled: Deadline,
    /// After this moment the TTL has ended every record that may have been written.
    gone: Deadline,
}

impl Freeing {
    /// `ttl` is the longest time for which the store may keep the record.
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

    /// Time between the request and the first try.
    pub(crate) const FIRST_TRY: Duration = PAUSE_FIRST;
    pub(crate) fn try_once(&mut self) -> Next {
        let answer = self.store.release(&self.name, &self.owner_record, Deadline::after(TIMEOUT));
        self.after(&answer)
    }

    fn after(&mut self, answer: &Result<Released>) -> Next {
        let longest = match answer {
            Ok(Released::Freed) => {
                log::info!("lock {} was released in the background", self.name);
                return Next::Done;
            }
            Ok(Released::NotOurs | Released::Gone) if self.settled.passed() => return Next::Done,
            Err(_) if self.gone.passed() => return Next::Done,
            Ok(Released::NotOurs | Released::Gone) if self.in_flight.passed() => PAUSE_LONGEST_LATER,
            Ok(Released::NotOurs | Released::Gone) => PAUSE_LONGEST,
            Err(_) => {
                // A gateway applies the requests that it keeps when its server is back.
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
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::runtime::time::Moment;
    use crate::store::MemoryStore;

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

    /// A lock acquired for a day must not be read every half minute during that day.
    #[test]
    fn a_request_to_take_the_lock_is_looked_for_while_it_may_be_under_way_and_rarely_later() {
        let mut job = freeing(LockDoubt::MayBeTaken);
        let in_flight_for = MemoryStore::new().in_flight_for();
        let until = job.in_flight.moment().since(Moment::now());
        assert!(until <= in_flight_for && until > in_flight_for / 2, "{until:?}");
        let pauses = |job: &mut Freeing| -> Duration {
            let pause = |job: &mut Freeing| match job.after(&Ok(Released::NotOurs)) {
                Next::After(pause) => pause,
                Next::Done => panic!("the request may still be applied"),
            };
            (0..20).map(|_| pause(job)).max().unwrap()
        };
        assert_eq!(pauses(&mut job), PAUSE_LONGEST);
        job.in_flight = Deadline::after(Duration::ZERO);
        assert_eq!(pauses(&mut job), PAUSE_LONGEST_LATER, "a hidden record may show again");
        job.settled = Deadline::after(Duration::ZERO);
        assert_eq!(job.after(&Ok(Released::NotOurs)), Next::Done);
    }

    /// A gateway applies a request that it kept when its server is back, perhaps just after it answered a release.
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

//! Requests that something on the way sends twice.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::*;

/// More time than an answer takes, also on a machine that stalls now and then.
const LIMITS: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(3), Duration::from_secs(18)];

/// Runs `case` with the time after which an answer is late. The cases that need a late answer wait that long. If a case
/// fails, and this thread paused for so long that another answer may have been late, runs it again with more time.
fn with_limit(case: impl Fn(Duration)) {
    for limit in LIMITS {
        SLEPT.set(Duration::ZERO);
        let began = Moment::now();
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(limit))) else { return };
        let awake = Moment::now().since(began).saturating_sub(SLEPT.get());
        if awake < limit || limit == LIMITS[2] {
            resume_unwind(panic);
        }
    }
}

fn gateway(limit: Duration) -> Capabilities {
    Capabilities { repeats_after: Some(limit), ..Capabilities::default() }
}

fn gateway_by_token(limit: Duration) -> Capabilities {
    Capabilities { compares: Compares::Token, ..gateway(limit) }
}

impl Stage {
    fn granted_with_doubts(&self) -> (Grant, Vec<OwnerRecord>) {
        match self.acquire_with_doubts(TTL, Deadline::after(LONG)) {
            (Ok(Acquired::Granted(grant)), doubtful) => (grant, doubtful),
            other => panic!("{other:?}"),
        }
    }

    /// Another client holds the lock and releases it, after our record has expired.
    fn used_by_another(&self) {
        self.server.lock().record = None;
        let (other, _) = self.granted();
        assert_eq!(self.release(&other.owner_record).unwrap(), Released::Freed);
    }

    /// The store applies the copies of these writes. Returns how many took effect.
    fn copies(&self, writes: &[usize]) -> usize {
        let server = &mut *self.server.lock();
        let apply = |at: &&usize| {
            let (expected, record) = &server.writes[**at];
            let holds = server.record == *expected;
            if holds {
                server.record = Some(record.clone());
            }
            holds
        };
        writes.iter().filter(apply).count()
    }
}

#[test]
fn a_creation_that_is_answered_in_time_is_granted_without_further_requests() {
    with_limit(|limit| {
        let stage = stage(gateway(limit));
        let (grant, doubtful) = stage.granted();
        assert_eq!(stage.requests(), ["create", "count", "read"]);
        assert!(doubtful == 0 && !grant.may_reappear);
    });
}

#[test]
fn a_creation_that_is_answered_late_is_exchanged_and_its_copy_revives_no_lease() {
    with_limit(|limit| {
        let (stage, began) = (stage(gateway(limit)), Moment::now());
        stage.next([Fate::Late]);
        let (grant, doubtful) = stage.granted_with_doubts();
        assert_eq!(stage.requests(), ["create", "replace", "count", "read"]);
        assert!(
            !grant.may_reappear && grant.since >= began.after(limit),
            "the lease counts from the exchange"
        );
        stage.used_by_another();
        assert_eq!(stage.copies(&[0]), 1);
        assert_eq!(stage.renew(&grant.owner_record, TTL).unwrap(), None, "the expired lease was renewed");
        let [copy] = doubtful.try_into().expect("the copy of the creation is not released");
        assert_eq!(stage.release(&copy).unwrap(), Released::Freed);
    });
}

/// The number that came with the creation was counted before another client may have held the lock.
#[test]
fn the_fence_of_an_exchanged_record_is_counted_after_the_exchange() {
    with_limit(|limit| {
        let stage = stage_with(gateway(limit), true);
        stage.next([Fate::Late]);
        let (grant, _) = stage.granted();
        assert_eq!(stage.requests(), ["create", "replace", "count", "read"]);
        assert_eq!(grant.fence, Some(Fence(2)));
    });
}

#[test]
fn a_creation_whose_reply_was_lost_is_exchanged_however_soon_that_was_known() {
    with_limit(|limit| {
        let stage = stage(gateway(limit));
        stage.next([Fate::ReplyLost]);
        let (grant, doubtful) = stage.granted();
        assert_eq!(stage.requests(), ["create", "read", "replace", "count", "read"]);
        assert!(doubtful == 1 && !grant.may_reappear);
        stage.used_by_another();
        assert_eq!(stage.copies(&[0]), 1);
        assert_eq!(stage.renew(&grant.owner_record, TTL).unwrap(), None);
    });
}

#[test]
fn a_refused_creation_may_be_ours_only_where_something_repeats_requests() {
    with_limit(|limit| {
        for can in both() {
            let stage = stage(can);
            stage.next([Fate::Twice]);
            assert!(matches!(stage.acquire(), (Ok(Acquired::Held(_)), 0)), "{can:?}");
        }
        let stage = stage(gateway(limit));
        stage.next([Fate::Twice]);
        let (grant, doubtful) = stage.granted();
        assert_eq!(stage.requests(), ["create", "read", "replace", "count", "read"]);
        assert!(doubtful == 1 && !grant.may_reappear);
    });
}

#[test]
fn a_creation_that_is_refused_late_is_released_in_the_background() {
    with_limit(|limit| {
        let stage = stage(gateway(limit));
        stage.granted();
        assert!(matches!(stage.acquire(), (Ok(Acquired::Held(_)), 0)), "refused in time");
        stage.next([Fate::Late]);
        assert!(matches!(stage.acquire(), (Ok(Acquired::Held(_)), 1)), "refused late");
    });
}

#[test]
fn an_exchange_that_is_answered_late_is_followed_by_another_and_two_copies_revive_no_lease() {
    with_limit(|limit| {
        let stage = stage(gateway(limit));
        stage.next([Fate::Late, Fate::Late]);
        let (grant, doubtful) = stage.granted();
        assert_eq!(stage.requests(), ["create", "replace", "replace", "count", "read"]);
        assert!(doubtful == 2 && !grant.may_reappear);
        stage.used_by_another();
        assert_eq!(stage.copies(&[0, 1]), 2);
        assert_eq!(stage.renew(&grant.owner_record, TTL).unwrap(), None);
    });
}

/// Otherwise a gateway that is always slow would grant no lock.
#[test]
fn after_two_late_exchanges_the_record_is_granted_and_looked_for_after_its_release() {
    with_limit(|limit| {
        let stage = stage(gateway(limit));
        stage.next([Fate::Late; 3]);
        let (grant, doubtful) = stage.granted();
        assert_eq!(stage.requests(), ["create", "replace", "replace", "count", "read"]);
        assert!(doubtful == 2 && grant.may_reappear);
    });
}

#[test]
fn an_exchange_without_a_clear_answer_is_settled_by_a_read() {
    with_limit(|limit| {
        for fate in [Fate::ReplyLost, Fate::RequestLost, Fate::Twice, Fate::Refused] {
            let stage = stage(gateway(limit));
            stage.next([Fate::Late, fate]);
            let (grant, doubtful) = stage.granted();
            assert_eq!(
                stage.requests(),
                ["create", "replace", "read", "replace", "count", "read"],
                "{fate:?}"
            );
            assert!(!grant.may_reappear);
            // A refusal in time proves that the new record was not written.
            assert_eq!(doubtful, if fate == Fate::Refused { 1 } else { 2 }, "{fate:?}");
            assert_eq!(stage.release(&grant.owner_record).unwrap(), Released::Freed);
        }
    });
}

#[test]
fn a_record_that_expired_before_its_exchange_is_no_grant_and_the_next_attempt_is() {
    with_limit(|limit| {
        let stage = stage(gateway(limit));
        stage.next([Fate::Late, Fate::Expired]);
        let (_, doubtful) = stage.granted();
        assert_eq!(stage.requests(), ["create", "replace", "read", "create", "count", "read"]);
        assert_eq!(doubtful, 1);
    });
}

#[test]
fn an_exchange_that_fails_releases_the_lock_and_is_in_doubt() {
    with_limit(|limit| {
        let stage = stage(gateway(limit));
        stage.server.lock().fates = [Fate::Late].into_iter().chain([Fate::Down; 4]).collect();
        let by = Deadline::after(limit + Duration::from_millis(25));
        let (failed, doubtful) = stage.acquire_for(TTL, by);
        assert_eq!(failed.unwrap_err().code(), Code::InDoubt);
        assert!(doubtful == 1 && !stage.requests().contains(&"count"));
    });
}

/// Such a store keeps the token of a record, so its lease may be revived. It is looked for after its release.
#[test]
fn a_store_that_compares_tokens_exchanges_none() {
    with_limit(|limit| {
        for fate in [Fate::Late, Fate::Twice, Fate::ReplyLost] {
            let stage = stage(gateway_by_token(limit));
            stage.next([fate]);
            let (grant, doubtful) = stage.granted();
            assert!(
                grant.may_reappear && doubtful == 0 && !stage.requests().contains(&"replace"),
                "{fate:?}"
            );
        }
    });
}

#[test]
fn a_lock_that_is_handed_back_and_may_reappear_is_left_to_the_background() {
    with_limit(|limit| {
        let stage = stage(gateway_by_token(limit));
        stage.next([Fate::Twice]);
        stage.server.lock().cannot_count = true;
        let (failed, doubtful) = stage.acquire_for(TTL, Deadline::after(limit + Duration::from_millis(25)));
        assert!(stage.is_free() && doubtful == 1, "{failed:?}");
        assert_eq!(failed.unwrap_err().code(), Code::InDoubt);
    });
}

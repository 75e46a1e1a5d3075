//! Tests of requests that begin and end at the same time.

use super::requests::{BegunRelease, ReleaseEnd, Releasing, RenewalEnd};
use super::*;
use crate::error::Error;
use crate::names::lease_state::LeaseState;
use crate::names::lock_name::{Level, NamePolicy};
use crate::settings::manager_options::Settings;
use crate::store::Released;

const LONG: Duration = Duration::from_secs(60);

fn lock() -> HeldLock {
    let name = LockName::new(Level::Xdc, "t", None, "a", NamePolicy::Strict).unwrap();
    let since = Moment::now();
    let grant = Grant {
        owner_record: record(0),
        fence: Some(Fence(7)),
        epoch: None,
        fences: 4,
        since,
        may_reappear: false,
    };
    let ends = since.after(LONG);
    HeldLock::new(
        name,
        grant,
        LeaseTerms { mode: Mode::Exclusive, ttl: LONG, asked: LONG, ends, until_death: false, notices: None },
    )
}

fn record(version: u8) -> OwnerRecord {
    OwnerRecord::from_bytes([version; 16])
}

fn begin(lock: &HeldLock) -> Releasing<'_> {
    let BegunRelease::Ask(releasing) = lock.begin_release() else { panic!("it is not held") };
    releasing
}

fn failed<T>() -> Result<T> {
    Err(Error::Closed)
}

#[test]
fn of_several_renewals_the_one_that_began_last_says_when_the_lease_ends() {
    let (lock, settings, since) = (lock(), Settings::default(), Moment::now());
    for first_ends_last in [true, false] {
        let first = lock.begin_renewal(LONG * 2, &settings).unwrap();
        let last = lock.begin_renewal(LONG * 3, &settings).unwrap();
        let mut both = [(first, 1), (last, 2)];
        if first_ends_last {
            both.reverse();
        }
        for (renewing, version) in both {
            let end = renewing.end(since, Ok(Some(record(version))), &settings, false);
            assert!(matches!(end, RenewalEnd::Renewed));
        }
        assert_eq!(lock.ends(), settings.lease_end(since, LONG * 3));
        assert_eq!(lock.ttl(), LONG * 3);
        assert!(lock.record().unwrap() == record(2));
    }
    // A renewal in the background that began before one for a shorter time makes the lease no longer.
    lock.life.keep(since.after(LONG * 100));
    let kept = lock.begin_kept_renewal(&settings).unwrap();
    let shorter = lock.begin_renewal(LONG, &settings).unwrap();
    assert!(matches!(shorter.end(since, Ok(Some(record(3))), &settings, false), RenewalEnd::Renewed));
    assert!(matches!(kept.end(since, Ok(Some(record(4))), &settings, false), RenewalEnd::Superseded));
    assert_eq!(lock.ends(), settings.lease_end(since, LONG));
    // And one that began later does not undo what the caller has asked for.
    let longer = lock.begin_renewal(LONG * 5, &settings).unwrap();
    let kept = lock.begin_kept_renewal(&settings).unwrap();
    assert!(matches!(kept.end(since, Ok(Some(record(5))), &settings, false), RenewalEnd::Renewed));
    assert!(matches!(longer.end(since, Ok(Some(record(6))), &settings, false), RenewalEnd::Renewed));
    assert_eq!((lock.ends(), lock.ttl()), (settings.lease_end(since, LONG * 5), LONG * 5));
    assert!(lock.record().unwrap() == record(5), "the version of the one that began last");
    // Nor does one that began meanwhile make a lease longer that the caller wants shorter.
    let shorter = lock.begin_renewal(LONG, &settings).unwrap();
    let kept = lock.begin_kept_renewal(&settings).unwrap();
    assert!(matches!(shorter.end(since, Ok(Some(record(7))), &settings, false), RenewalEnd::Renewed));
    assert!(matches!(kept.end(since, Ok(Some(record(8))), &settings, false), RenewalEnd::Superseded));
    assert_eq!(lock.ends(), settings.lease_end(since, LONG));
}

#[test]
fn a_renewal_that_ends_after_a_release_has_begun_changes_nothing_here() {
    let settings = Settings::default();
    for answer in [Some(record(1)), None] {
        for release in [Ok(Released::Freed), failed()] {
            let lock = lock();
            let renewing = lock.begin_renewal(LONG, &settings).unwrap();
            let releasing = begin(&lock);
            assert!(lock.begin_renewal(LONG, &settings).is_err());
            let end = renewing.end(Moment::now(), Ok(answer.clone()), &settings, false);
            assert!(matches!(end, RenewalEnd::Superseded));
            assert_eq!(lock.life.state(), LeaseState::Released);
            let is_open = release.is_err();
            releasing.end(release, false);
            assert_eq!(lock.is_open(), is_open);
            if is_open {
                assert!(begin(&lock).record == answer.clone().unwrap_or(record(0)));
            }
        }
    }
}

#[test]
fn of_several_releases_one_is_true() {
    let in_parts = |in_parts, first, second| {
        let lock = lock();
        let releases = [begin(&lock), begin(&lock)].into_iter().zip([first, second]);
        let ends: Vec<_> = releases.map(|(release, answer)| release.end(answer, in_parts)).collect();
        assert!(!lock.is_open() || ends.iter().any(|end| matches!(end, ReleaseEnd::Failed(..))));
        <[ReleaseEnd; 2]>::try_from(ends).ok().unwrap()
    };
    let both = |first, second| in_parts(false, first, second);
    use ReleaseEnd::{Failed, Freed, Lost, NotHeld};
    assert!(matches!(both(Ok(Released::Freed), Ok(Released::NotOurs)), [Freed(_), NotHeld]));
    assert!(matches!(both(Ok(Released::NotOurs), Ok(Released::Freed)), [NotHeld, Freed(_)]));
    assert!(matches!(both(Ok(Released::Gone), Ok(Released::Freed)), [Freed(_), NotHeld]));
    assert!(matches!(both(Ok(Released::NotOurs), Ok(Released::NotOurs)), [NotHeld, Lost(_)]));
    assert!(matches!(both(Ok(Released::Freed), failed()), [Freed(_), NotHeld]));
    // Each has freed one of two places.
    let each = in_parts(true, Ok(Released::NotOurs), Ok(Released::NotOurs));
    assert!(matches!(each, [Freed(_), NotHeld]));
    // The one without an answer may have freed it.
    assert!(matches!(both(failed(), Ok(Released::NotOurs)), [Failed(..), Freed(_)]));
    assert!(matches!(both(Ok(Released::NotOurs), failed()), [NotHeld, Failed(..)]));
}

#[test]
fn the_record_of_a_release_that_fails_after_the_lease_was_given_up_is_left_once() {
    let lock = lock();
    let releases = [begin(&lock), begin(&lock)];
    assert!(matches!(lock.give_up(), GivenUp::Left));
    assert!(!lock.is_open(), "it is dropped once");
    let left = releases.map(|release| {
        assert!(!lock.is_over(), "who waits is told by the one that ends last");
        matches!(release.end(failed(), false), ReleaseEnd::Failed(_, Some(_)))
    });
    assert_eq!(left, [false, true]);
    assert!(lock.is_over() && matches!(lock.give_up(), GivenUp::Over));
    // After the last one has failed, it is left at once.
    let lock = self::lock();
    begin(&lock).end(failed(), false);
    assert!(lock.record().is_ok(), "it can be handed on");
    assert!(matches!(lock.give_up(), GivenUp::Free(_)));
}

#[test]
fn a_lock_does_not_stay_while_a_renewal_is_under_way_or_after_one_in_doubt() {
    let settings = Settings::default();
    let lock = lock();
    let [first, second] = [(); 2].map(|()| lock.begin_renewal(LONG, &settings).unwrap());
    assert!(lock.linger(LONG).is_none());
    first.end(Moment::now(), Ok(Some(record(1))), &settings, false);
    assert!(lock.linger(LONG).is_none(), "the other one is under way");
    second.end(Moment::now(), failed(), &settings, false);
    assert!(lock.linger(LONG).is_none(), "it may be applied later");
    drop(lock.begin_renewal(LONG, &settings).unwrap());
    assert!(lock.linger(LONG).is_none(), "a store that panics may have applied it");
    let third = lock.begin_renewal(LONG, &settings).unwrap();
    third.end(Moment::now(), Ok(Some(record(2))), &settings, false);
    assert!(lock.linger(LONG).unwrap().record == record(2));
    assert!(!lock.is_open());
}

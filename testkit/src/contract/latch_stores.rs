//! The contract of `dlm::store::LatchStore`.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use dlm::store::{
    LISTENERS_MAX, LatchListener, LatchName, LatchNote, LatchQuery, LatchStore, ListedLatch, LockStore,
    NewLatch, NoticeEndpoint, Step, Stepped,
};
use dlm::{Code, Deadline, Level, Moment, NamePolicy};

use super::stores::ODD_IDS;
use super::{HELD, LONG, Site, code, eventually, patiently, soon, take};

/// A TTL that is longer than any case.
const TTL: Duration = Duration::from_secs(3600);

fn name_in(site: &Site, farm: &str, id: &str) -> LatchName {
    LatchName::new(site.client(), farm, id, NamePolicy::Strict).unwrap()
}

fn name(site: &Site, id: &str) -> LatchName {
    name_in(site, "dc1", id)
}

fn latches(store: &dyn LockStore) -> &dyn LatchStore {
    store.latches().expect("this suite is for stores that keep latches")
}

fn create_for(
    store: &dyn LockStore,
    name: &LatchName,
    count: i64,
    roster: &[String],
    ttl: Duration,
) -> dlm::Result<bool> {
    latches(store).create_latch(&NewLatch { name, count, roster, ttl, by: soon() })
}

fn create(store: &dyn LockStore, name: &LatchName, count: i64, ttl: Duration) -> bool {
    create_for(store, name, count, &[], ttl).unwrap()
}

fn step_as(
    store: &dyn LockStore,
    name: &LatchName,
    add: i64,
    participant: Option<&str>,
    ttl: Duration,
) -> dlm::Result<Stepped> {
    latches(store).step(&Step { name, add, participant, ttl, by: soon() })
}

fn step(store: &dyn LockStore, name: &LatchName, add: i64) -> dlm::Result<Stepped> {
    step_as(store, name, add, None, TTL)
}

fn count_at(store: &dyn LockStore, name: &LatchName, level: Level) -> Option<i64> {
    let counts = latches(store).counts(&[(name, level)], soon()).unwrap();
    let [count] = counts.try_into().unwrap();
    count.unwrap()
}

fn count(store: &dyn LockStore, name: &LatchName) -> Option<i64> {
    count_at(store, name, Level::Dc)
}

pub fn a_latch_is_made_once_and_never_added_to(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), name(site, "a"));
    assert_eq!(count(&*theirs, &name), None);
    assert!(create(&*ours, &name, 3, TTL));
    for store in [&ours, &theirs] {
        assert!(!create(&**store, &name, 5, TTL));
        assert_eq!(count(&**store, &name), Some(3));
    }
    step(&*theirs, &name, -1).unwrap();
    assert!(!create(&*ours, &name, 3, TTL));
    assert_eq!(count(&*ours, &name), Some(2), "a second create changed the count");
}

pub fn of_many_who_make_a_latch_at_once_one_does(site: &Site) {
    const ASKING: usize = 6;
    let barrier = Barrier::new(ASKING);
    for round in 0..site.rounds.div_ceil(20) {
        let name = name(site, &round.to_string());
        let made: Vec<bool> = thread::scope(|scope| {
            let asking = (0..ASKING).map(|asking| {
                let (store, name, barrier) = (site.store(), &name, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    create(&*store, name, 10 + asking as i64, TTL)
                })
            });
            let asking: Vec<_> = asking.collect();
            asking.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let maker = made.iter().position(|made| *made).expect("nobody created it");
        assert_eq!(made.iter().filter(|made| **made).count(), 1, "round {round}");
        assert_eq!(count(&*site.store(), &name), Some(10 + maker as i64), "not the creator's");
    }
}

pub fn each_step_counts_once_and_tells_the_count(site: &Site) {
    let (stores, name) = ([site.store(), site.store()], name(site, "a"));
    assert!(create(&*stores[0], &name, 2, TTL));
    let mut expected = 2;
    // The count may be negative: too many arrivals must be visible.
    for (round, add) in [-1, -1, -1, 1, 1, 1, -1, -1, -1, -1].into_iter().enumerate() {
        expected += add;
        match step(&*stores[round % 2], &name, add).unwrap() {
            Stepped::Counted(told) => assert!(told.is_none_or(|told| told == expected), "{told:?}"),
            Stepped::Already => panic!("a step without a name counted as a repetition"),
        }
        for store in &stores {
            assert_eq!(count(&**store, &name), Some(expected));
        }
    }
}

pub fn steps_of_many_at_once_are_all_counted(site: &Site) {
    const ASKING: usize = 6;
    let (name, rounds) = (name(site, "a"), site.rounds.div_ceil(8));
    assert!(create(&*site.store(), &name, 0, TTL));
    thread::scope(|scope| {
        for asking in 0..ASKING {
            let (store, name) = (site.store(), &name);
            let add = if asking % 3 == 0 { 1 } else { -1 };
            scope.spawn(move || {
                for _ in 0..rounds {
                    eventually("the step is not refused", || match step(&*store, name, add) {
                        Ok(stepped) => matches!(stepped, Stepped::Counted(_)),
                        Err(error) if !site.settles && error.is_retryable() && !error.is_in_doubt() => false,
                        Err(error) => panic!("{}", error.chain()),
                    });
                }
            });
        }
    });
    assert_eq!(count(&*site.store(), &name), Some(-((ASKING * rounds / 3) as i64)));
}

pub fn a_latch_that_is_not_there_is_not_found_and_not_made(site: &Site) {
    let (store, name) = (site.store(), name(site, "a"));
    for add in [-1, 1] {
        assert_eq!(code(step(&*store, &name, add)), Code::NotFound);
    }
    if site.names {
        assert_eq!(code(step_as(&*store, &name, -1, Some("a"), TTL)), Code::NotFound);
        assert_eq!(code(latches(&*store).roster(&name, soon())), Code::NotFound);
    }
    for level in [Level::Dc, Level::Xdc] {
        assert_eq!(count_at(&*store, &name, level), None, "a step created the latch");
    }
}

/// Creates a latch with a short TTL. Returns `None` if the machine was too slow to be sure that it still exists.
fn create_briefly(store: &dyn LockStore, name: &LatchName, count: i64, ttl: Duration) -> Option<()> {
    let asked = Moment::now();
    let made = create(store, name, count, ttl);
    (made && Moment::now().since(asked) < ttl / 2).then_some(())
}

fn until_gone(store: &dyn LockStore, name: &LatchName) -> Moment {
    eventually("the latch is gone", || count(store, name).is_none());
    Moment::now()
}

pub fn a_latch_is_gone_after_its_ttl_and_may_be_made_anew(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs, name) = (site.store(), site.store(), name(site, &format!("{ttl:?}")));
        let asked = Moment::now();
        create_briefly(&*ours, &name, 7, ttl)?;
        if count(&*theirs, &name) != Some(7) {
            assert!(Moment::now().since(asked) >= ttl, "expired too early");
            return None;
        }
        let gone = until_gone(&*theirs, &name);
        // Servers count milliseconds of their own clock.
        assert!(gone.since(asked) >= ttl - Duration::from_millis(5), "{:?} early", ttl - gone.since(asked));
        assert_eq!(code(step_as(&*ours, &name, -1, None, ttl)), Code::NotFound);
        assert_eq!(count(&*ours, &name), None);
        assert!(create(&*ours, &name, 2, TTL));
        assert_eq!(count(&*theirs, &name), Some(2), "an old count became visible again");
        Some(())
    });
}

pub fn each_step_gives_the_latch_its_whole_ttl_again(site: &Site) {
    patiently(|ttl| {
        let (store, name) = (site.store(), name(site, &format!("{ttl:?}")));
        let asked = Moment::now();
        create_briefly(&*store, &name, 7, ttl)?;
        thread::sleep(ttl / 2);
        let before_step = Moment::now();
        if let Err(error) = step_as(&*store, &name, -1, None, ttl) {
            assert!(error.code() == Code::NotFound && Moment::now().since(asked) >= ttl, "{}", error.chain());
            return None;
        }
        thread::sleep((ttl * 3 / 4).saturating_sub(Moment::now().since(before_step)));
        let seen = count(&*store, &name);
        if Moment::now().since(before_step) >= ttl {
            return None;
        }
        assert_eq!(seen, Some(6), "the step did not restart the TTL");
        let gone = until_gone(&*store, &name).since(before_step);
        assert!(gone >= ttl - Duration::from_millis(5), "gone {gone:?} after a step with a TTL of {ttl:?}");
        Some(())
    });
}

pub fn a_farm_counts_for_itself_and_all_are_summed(site: &Site) {
    let store = site.store();
    let [one, two, three] = ["dc1", "dc2", "dc3"].map(|farm| name_in(site, farm, "a"));
    assert!(create(&*store, &one, 3, TTL));
    assert_eq!(code(step(&*store, &two, -1)), Code::NotFound, "another farm's count");
    assert_eq!(count(&*store, &two), None);
    assert_eq!(count_at(&*store, &two, Level::Xdc), Some(3));
    assert!(create(&*store, &two, 4, TTL));
    step(&*store, &one, -1).unwrap();
    for (name, own) in [(&one, Some(2)), (&two, Some(4)), (&three, None)] {
        assert_eq!(count_at(&*store, name, Level::Dc), own, "{name:?}");
        assert_eq!(count_at(&*store, name, Level::Xdc), Some(6), "{name:?}");
    }
}

pub fn counts_of_many_latches_come_in_their_order(site: &Site) {
    let (store, many) = (site.store(), site.rounds.clamp(40, 300) as i64);
    let names: Vec<_> = (0..many).map(|number| name(site, &number.to_string())).collect();
    let missing = |number: i64| number % 7 == 3;
    for (number, name) in (0..many).zip(&names).filter(|(number, _)| !missing(*number)) {
        assert!(create(&*store, name, number, TTL));
    }
    assert_eq!(latches(&*store).counts(&[], soon()).unwrap().len(), 0);
    let level = |number: i64| if number % 2 == 0 { Level::Dc } else { Level::Xdc };
    let asked: Vec<_> = (0..many).zip(&names).map(|(number, name)| (name, level(number))).collect();
    // One latch appears twice, the second time at the end.
    let asked = [&asked[..], &[(&names[5], Level::Dc)]].concat();
    let counts = latches(&*store).counts(&asked, soon()).unwrap();
    let expected = (0..many).map(|number| (!missing(number)).then_some(number)).chain([Some(5)]);
    assert_eq!(
        counts.into_iter().map(|count| count.unwrap()).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub fn a_participant_counts_once_and_the_roster_tells_who_has_not(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), name(site, "a"));
    // Names that a careless encoding would confuse: a prefix, a delimiter, a name that looks like a number.
    let longest = "é".repeat(127);
    let expected = ["worker-1", "worker-10", "a_b", "a_b_1", "a#b", "1", " ", "日本語", &longest];
    let mut sorted = owned(&expected);
    sorted.sort();
    let created = create_for(&*ours, &name, expected.len() as i64, &sorted, TTL);
    if !site.names {
        assert_eq!(code(created), Code::InvalidArgument);
        assert_eq!(count(&*ours, &name), None, "the refused latch was created");
        assert!(create(&*ours, &name, 3, TTL));
        assert_eq!(code(step_as(&*ours, &name, -1, Some("a"), TTL)), Code::InvalidArgument);
        assert_eq!(code(latches(&*ours).roster(&name, soon())), Code::InvalidArgument);
        assert_eq!(count(&*ours, &name), Some(3));
        return;
    }
    assert!(created.unwrap());
    let roster = |store: &dyn LockStore| latches(store).roster(&name, soon()).unwrap();
    assert_eq!((roster(&*theirs).pending, roster(&*theirs).arrived), (sorted.clone(), vec![]));
    let mut left = sorted.clone();
    for (number, participant) in expected.iter().enumerate() {
        left.retain(|name| name != participant);
        for (store, again) in [(&ours, false), (&theirs, true), (&ours, true)] {
            let stepped = step_as(&**store, &name, -1, Some(participant), TTL).unwrap();
            assert_eq!(stepped == Stepped::Already, again, "{participant:?}");
            assert_eq!(roster(&**store).pending, left, "{participant:?}");
            assert_eq!(count(&**store, &name), Some((expected.len() - number - 1) as i64));
        }
    }
    assert_eq!(roster(&*ours).arrived, sorted);
    // When all have come, a participant that was not expected also counts, and the roster contains it.
    assert!(matches!(step_as(&*theirs, &name, -1, Some("guest"), TTL), Ok(Stepped::Counted(_))));
    assert_eq!(step_as(&*ours, &name, -1, Some("guest"), TTL).unwrap(), Stepped::Already);
    assert!(roster(&*ours).pending.is_empty() && roster(&*ours).arrived.contains(&"guest".to_owned()));
    assert_eq!(count(&*ours, &name), Some(-1));
}

/// A name that is spelt wrong would open the latch too early, and so would a count without a name.
pub fn while_a_participant_is_missing_nobody_else_counts(site: &Site) {
    if !site.names {
        return;
    }
    // The second one has read nothing of the latch when it counts.
    let (ours, theirs, name) = (site.store(), site.store(), name(site, "a"));
    let others = [(-1, Some("b1")), (-1, Some("B")), (-1, None), (1, None)];
    assert!(create_for(&*ours, &name, 2, &owned(&["a", "b"]), TTL).unwrap());
    for store in [&theirs, &ours] {
        for (add, participant) in others {
            let error = step_as(&**store, &name, add, participant, TTL).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{add} {participant:?}: {error}");
            assert!(error.to_string().contains("\"b\""), "the names are not told: {error}");
        }
    }
    assert_eq!(count(&*ours, &name), Some(2));
    assert_eq!(
        step_as(&*theirs, &name, -1, Some("a"), TTL).map(|it| it == Stepped::Already).ok(),
        Some(false)
    );
    assert_eq!(step_as(&*ours, &name, -1, Some("a"), TTL).unwrap(), Stepped::Already);
    for (add, participant) in others {
        assert_eq!(code(step_as(&*ours, &name, add, participant, TTL)), Code::InvalidArgument);
    }
    let roster = latches(&*theirs).roster(&name, soon()).unwrap();
    assert_eq!((roster.pending, roster.arrived), (owned(&["b"]), owned(&["a"])));
    step_as(&*ours, &name, -1, Some("b"), TTL).unwrap();
    assert_eq!(count(&*theirs, &name), Some(0));

    // A latch without names accepts everybody, also after somebody has counted by name.
    let free = self::name(site, "free");
    assert!(create(&*ours, &free, 9, TTL));
    for store in [&ours, &theirs, &ours] {
        for (add, participant) in others {
            step_as(&**store, &free, add, participant, TTL).unwrap();
        }
    }
    // Two names once, and three times one down and one up.
    assert_eq!(count(&*theirs, &free), Some(7));
}

pub fn a_new_latch_knows_nothing_of_the_names_of_the_last(site: &Site) {
    if !site.names {
        return;
    }
    patiently(|ttl| {
        let (store, name) = (site.store(), name(site, &format!("{ttl:?}")));
        let asked = Moment::now();
        assert!(create_for(&*store, &name, 2, &owned(&["a", "b"]), ttl).unwrap());
        let stepped = step_as(&*store, &name, -1, Some("a"), ttl);
        if Moment::now().since(asked) >= ttl {
            return None;
        }
        assert!(matches!(stepped, Ok(Stepped::Counted(_))), "{stepped:?}");
        until_gone(&*store, &name);
        assert_eq!(code(latches(&*store).roster(&name, soon())), Code::NotFound);
        assert!(create_for(&*store, &name, 2, &owned(&["a", "c"]), TTL).unwrap());
        let roster = latches(&*store).roster(&name, soon()).unwrap();
        assert_eq!((roster.pending, roster.arrived), (owned(&["a", "c"]), vec![]));
        assert!(matches!(step_as(&*store, &name, -1, Some("a"), TTL), Ok(Stepped::Counted(_))));
        assert_eq!(count(&*store, &name), Some(1));
        // Of the last one.
        assert_eq!(code(step_as(&*store, &name, -1, Some("b"), TTL)), Code::InvalidArgument);
        Some(())
    });
}

fn reset(store: &dyn LockStore, name: &LatchName, count: i64, roster: &[String]) -> dlm::Result<()> {
    latches(store).reset_latch(&NewLatch { name, count, roster, ttl: TTL, by: soon() })
}

fn delete(store: &dyn LockStore, name: &LatchName) -> dlm::Result<()> {
    latches(store).delete_latch(name, TTL, soon())
}

/// Whether the store ends incarnations. If not, it must say so and change nothing.
fn replaces(site: &Site) -> bool {
    if !site.names {
        let (store, name) = (site.store(), name(site, "refused"));
        assert!(create(&*store, &name, 3, TTL));
        assert_eq!(code(reset(&*store, &name, 5, &[])), Code::InvalidArgument);
        assert_eq!(code(delete(&*store, &name)), Code::InvalidArgument);
        assert_eq!(count(&*store, &name), Some(3), "a refused call changed the count");
    }
    site.names
}

pub fn a_latch_that_is_reset_begins_anew_for_everybody(site: &Site) {
    if !replaces(site) {
        return;
    }
    let (ours, theirs, name) = (site.store(), site.store(), name(site, "a"));
    assert_eq!(code(reset(&*ours, &name, 3, &[])), Code::NotFound);
    assert_eq!(count(&*ours, &name), None, "a reset made the latch");
    assert!(create(&*ours, &name, 3, TTL));
    // Both have read what the latch was before.
    for store in [&ours, &theirs] {
        step(&**store, &name, -1).unwrap();
    }
    for round in 0..3 {
        let by = [&ours, &theirs][round % 2];
        reset(&**by, &name, 5, &[]).unwrap();
        for (store, left) in [(&theirs, 4), (&ours, 3), (&theirs, 2)] {
            assert!(matches!(step(&**store, &name, -1), Ok(Stepped::Counted(_))), "round {round}");
            for store in [&ours, &theirs] {
                assert_eq!(count(&**store, &name), Some(left), "round {round}");
            }
        }
    }
    assert!(!create(&*ours, &name, 9, TTL), "a latch that was reset exists");
    // From zero and below, which is what it is for.
    for _ in 0..3 {
        step(&*ours, &name, -1).unwrap();
    }
    reset(&*theirs, &name, 2, &[]).unwrap();
    assert_eq!(count(&*ours, &name), Some(2));
}

pub fn a_reset_latch_knows_nothing_of_the_names_of_before(site: &Site) {
    if !replaces(site) {
        return;
    }
    let (ours, theirs, name) = (site.store(), site.store(), name(site, "a"));
    let roster = |store: &dyn LockStore| latches(store).roster(&name, soon()).unwrap();
    assert!(create_for(&*ours, &name, 2, &owned(&["a", "b"]), TTL).unwrap());
    for store in [&ours, &theirs] {
        step_as(&**store, &name, -1, Some("a"), TTL).unwrap();
    }
    reset(&*ours, &name, 2, &owned(&["a", "c"])).unwrap();
    for store in [&theirs, &ours] {
        assert_eq!((roster(&**store).pending, roster(&**store).arrived), (owned(&["a", "c"]), vec![]));
        assert_eq!(code(step_as(&**store, &name, -1, Some("b"), TTL)), Code::InvalidArgument);
        assert_eq!(code(step(&**store, &name, -1)), Code::InvalidArgument);
    }
    assert!(matches!(step_as(&*theirs, &name, -1, Some("a"), TTL), Ok(Stepped::Counted(_))));
    assert_eq!(step_as(&*ours, &name, -1, Some("a"), TTL).unwrap(), Stepped::Already);
    assert_eq!(count(&*ours, &name), Some(1));
    // Without names it waits for nobody, and who has counted before counts once more.
    reset(&*theirs, &name, 4, &[]).unwrap();
    for store in [&ours, &theirs] {
        assert_eq!(roster(&**store).pending, owned(&[]));
        step(&**store, &name, -1).unwrap();
    }
    assert!(matches!(step_as(&*ours, &name, -1, Some("a"), TTL), Ok(Stepped::Counted(_))));
    assert_eq!(step_as(&*theirs, &name, -1, Some("a"), TTL).unwrap(), Stepped::Already);
    assert_eq!((count(&*ours, &name), roster(&*ours).arrived), (Some(1), owned(&["a"])));
}

pub fn a_deleted_latch_is_gone_and_may_be_made_anew(site: &Site) {
    if !replaces(site) {
        return;
    }
    let (ours, theirs, name) = (site.store(), site.store(), name(site, "a"));
    assert_eq!(code(delete(&*ours, &name)), Code::NotFound);
    for round in 0..3 {
        let names = if round == 1 { owned(&[]) } else { owned(&["a", "b"]) };
        assert!(create_for(&*ours, &name, 2, &names, TTL).unwrap(), "round {round}");
        assert_eq!(count(&*theirs, &name), Some(2), "round {round}");
        for store in [&theirs, &ours] {
            step_as(&**store, &name, -1, Some("a"), TTL).unwrap();
        }
        assert_eq!(count(&*theirs, &name), Some(1), "round {round}");
        delete(&*theirs, &name).unwrap();
        for store in [&ours, &theirs] {
            assert_eq!((count(&**store, &name), count_at(&**store, &name, Level::Xdc)), (None, None));
            assert_eq!(code(step(&**store, &name, -1)), Code::NotFound);
            assert_eq!(code(step_as(&**store, &name, -1, Some("b"), TTL)), Code::NotFound);
            assert_eq!(code(latches(&**store).roster(&name, soon())), Code::NotFound);
            assert_eq!(code(reset(&**store, &name, 2, &[])), Code::NotFound);
            assert_eq!(code(delete(&**store, &name)), Code::NotFound);
            assert!(!listen(&**store, (&name, Level::Dc), listener(1), TTL), "there is no latch");
        }
    }
}

pub fn a_farm_resets_and_deletes_its_own_count(site: &Site) {
    if !replaces(site) {
        return;
    }
    let store = site.store();
    let [one, two] = ["dc1", "dc2"].map(|farm| name_in(site, farm, "a"));
    assert!(create(&*store, &one, 3, TTL) && create(&*store, &two, 4, TTL));
    reset(&*store, &one, 7, &[]).unwrap();
    let counts = || [&one, &two].map(|name| count(&*store, name));
    assert_eq!((counts(), count_at(&*store, &one, Level::Xdc)), ([Some(7), Some(4)], Some(11)));
    delete(&*store, &one).unwrap();
    assert_eq!((counts(), count_at(&*store, &one, Level::Xdc)), ([None, Some(4)], Some(4)));
    assert_eq!(code(step(&*store, &one, -1)), Code::NotFound);
    step(&*store, &two, -1).unwrap();
    assert!(create(&*store, &one, 1, TTL));
    assert_eq!((counts(), count_at(&*store, &two, Level::Xdc)), ([Some(1), Some(3)], Some(4)));
    delete(&*store, &two).unwrap();
    delete(&*store, &one).unwrap();
    assert_eq!(count_at(&*store, &one, Level::Xdc), None);
}

/// Every change that was answered before a reset has no effect after it, also if many are made at once.
pub fn resets_among_many_steps_leave_the_count_of_one_of_them(site: &Site) {
    if !replaces(site) {
        return;
    }
    let (name, rounds) = (name(site, "a"), site.rounds.div_ceil(10));
    const GAP: i64 = 1_000_000;
    assert!(create(&*site.store(), &name, GAP, TTL));
    thread::scope(|scope| {
        for asking in 0..4 {
            let (store, name) = (site.store(), &name);
            scope.spawn(move || {
                for round in 0..rounds {
                    for number in 0..3 {
                        let by_name = format!("{asking}-{round}-{number}");
                        let who = (number == 1).then_some(by_name.as_str());
                        step_as(&*store, name, -1, who, TTL).unwrap();
                    }
                }
            });
        }
        let (store, name) = (site.store(), &name);
        scope.spawn(move || {
            for round in 1..=rounds as i64 {
                reset(&*store, name, round * GAP, &[]).unwrap();
                let (left, all) = (count(&*store, name).unwrap(), 12 * rounds as i64);
                assert!((round * GAP - all..=round * GAP).contains(&left), "{left} in round {round}");
            }
        });
    });
    let store = site.store();
    reset(&*store, &name, 5, &[]).unwrap();
    for _ in 0..3 {
        assert_eq!(count(&*store, &name), Some(5));
    }
}

fn listed(store: &dyn LockStore, client: &str, prefix: &str, most: usize) -> Vec<ListedLatch> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let asked = LatchQuery { client, prefix, after: after.as_ref(), most, by: soon() };
        let page = latches(store).list_latches(&asked).unwrap();
        // Records of Java services do not say whose they are.
        all.extend(page.latches.into_iter().filter(|latch| latch.id.is_some()));
        after = page.next;
        if after.is_none() {
            all.sort_by(|a, b| a.key.cmp(&b.key));
            return all;
        }
    }
}

pub fn latches_are_listed_with_the_counts_of_their_farms(site: &Site) {
    let (store, client) = (site.store(), site.client());
    assert_eq!(listed(&*store, client, "", 10), []);
    let ids = ["b-1", "a-1", "a-10", "a-2", "a", "日本#語_"];
    for (number, id) in ids.iter().enumerate() {
        assert!(create(&*store, &name(site, id), number as i64, TTL));
    }
    assert!(create(&*store, &name_in(site, "dc2", "a-1"), 7, TTL));
    step(&*store, &name(site, "a-2"), -1).unwrap();
    // Beginnings of the client id are other clients.
    let other = LatchName::new(&client[..client.len() - 1], "dc1", "a-3", NamePolicy::Strict).unwrap();
    assert!(create(&*store, &other, 1, TTL));
    let counts = |id: &str| -> BTreeMap<String, i64> {
        let number = ids.iter().position(|it| *it == id).unwrap() as i64;
        let own = [("dc1".to_owned(), number - i64::from(id == "a-2"))];
        own.into_iter().chain((id == "a-1").then(|| ("dc2".to_owned(), 7))).collect()
    };
    for (prefix, most) in
        [("", 100), ("", 1), ("", 2), ("a", 2), ("a-1", 10), ("a-10", 1), ("c", 10), ("日", 1)]
    {
        let mut wanted: Vec<_> = ids.into_iter().filter(|id| id.starts_with(prefix)).collect();
        wanted.sort_unstable();
        let wanted: Vec<_> = wanted.into_iter().map(|id| ListedLatch::new(client, id, counts(id))).collect();
        assert_eq!(listed(&*store, client, prefix, most), wanted, "{prefix:?}, {most} a page");
    }
    if site.names {
        delete(&*store, &name(site, "a-1")).unwrap();
        delete(&*store, &name(site, "b-1")).unwrap();
        let names: Vec<_> =
            listed(&*store, client, "", 10).into_iter().map(|latch| latch.id.unwrap()).collect();
        assert_eq!(names, ["a", "a-1", "a-10", "a-2", "日本#語_"], "a-1 has a count in dc2");
    }
}

pub fn latches_of_odd_names_are_as_good_as_others(site: &Site) {
    let store = site.store();
    let longest = "é".repeat(512);
    let ids: Vec<_> = ODD_IDS.into_iter().chain([longest.as_str()]).collect();
    for (number, id) in ids.iter().enumerate() {
        assert!(create(&*store, &name(site, id), 100 + number as i64, TTL), "{id:?} exists already");
    }
    for (number, id) in ids.iter().enumerate() {
        step(&*store, &name(site, id), -1).unwrap();
        assert_eq!(count(&*store, &name(site, id)), Some(99 + number as i64), "{id:?}");
    }
}

pub fn latches_and_locks_of_one_name_do_not_touch_each_other(site: &Site) {
    let store = site.store();
    let (lock, latch) = (site.name("a"), name(site, "a"));
    let grant = take(&*store, &lock, HELD);
    assert!(create(&*store, &latch, 3, TTL));
    step(&*store, &latch, -1).unwrap();
    assert!(store.renew(&lock, &grant.owner_record, HELD, soon()).unwrap().is_some());
    store.release(&lock, &grant.owner_record, soon()).unwrap();
    assert_eq!(count(&*store, &latch), Some(2));
    assert_eq!(store.holder(&lock, soon()).unwrap(), None);
}

pub fn initializing_latches_again_does_no_harm(site: &Site) {
    let name = name(site, "a");
    assert!(create(&*site.store(), &name, 3, TTL));
    thread::scope(|scope| {
        for _ in 0..4 {
            let store = site.store();
            scope.spawn(move || latches(&*store).initialize_latches(Deadline::after(LONG)).unwrap());
        }
    });
    assert_eq!(count(&*site.store(), &name), Some(3));
}

/// The call may be carried out or refused. It must return in time, and must never be half done.
pub fn a_call_on_latches_that_is_late_already_comes_back(site: &Site) {
    let (store, name) = (site.store(), name(site, "a"));
    assert!(create(&*store, &name, 3, TTL));
    let by = Deadline::after(Duration::ZERO);
    let began = Moment::now();
    let stepped = latches(&*store).step(&Step { name: &name, add: -1, participant: None, ttl: TTL, by });
    assert!(Moment::now().since(began) < LONG);
    let expected = match &stepped {
        Ok(_) => Some(2),
        Err(error) if error.is_in_doubt() => None,
        Err(error) => {
            assert!(error.is_retryable(), "{}", error.chain());
            Some(3)
        }
    };
    let counted = count(&*store, &name).expect("it is there");
    assert!(expected.is_none_or(|expected| counted == expected), "{counted} after {stepped:?}");
    let began = Moment::now();
    let _ = latches(&*store).counts(&[(&name, Level::Xdc)], by);
    assert!(Moment::now().since(began) < LONG);
}

/// A process at this port.
fn listener(port: u16) -> LatchListener {
    let endpoint = NoticeEndpoint::Udp(([192, 0, 2, 7], port).into());
    LatchListener { endpoint, nonce: u64::MAX - u64::from(port) }
}

fn listen(
    store: &dyn LockStore,
    (name, level): (&LatchName, Level),
    listener: LatchListener,
    lasts: Duration,
) -> bool {
    latches(store).listen(&LatchNote { name, level, listener, lasts, by: soon() }).unwrap()
}

fn listeners(store: &dyn LockStore, name: &LatchName) -> Vec<LatchListener> {
    let mut listeners = latches(store).listeners(name, soon()).unwrap();
    listeners.sort_by_key(|listener| u64::MAX - listener.nonce);
    listeners
}

pub fn who_waits_for_a_latch_is_noted_once_for_a_while(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    let (here, there) = (name_in(site, "dc1", "a"), name_in(site, "dc2", "a"));
    for level in [Level::Dc, Level::Xdc] {
        assert!(!listen(&*ours, (&here, level), listener(1), TTL), "there is no latch");
    }
    assert_eq!((listeners(&*ours, &here), count(&*ours, &here)), (vec![], None), "a note made a latch");
    assert!(create(&*ours, &here, 3, TTL));
    let noted = listen(&*ours, (&here, Level::Dc), listener(1), TTL);
    assert_eq!(noted, site.listeners, "whether the store keeps notes");
    if !noted {
        return assert_eq!(listeners(&*ours, &here), []);
    }
    assert!(listen(&*theirs, (&there, Level::Xdc), listener(2), TTL));
    assert!(!listen(&*theirs, (&there, Level::Dc), listener(3), TTL), "this farm has no count");
    let again = LatchListener { nonce: 5, ..listener(2) };
    assert!(listen(&*theirs, (&there, Level::Xdc), again, TTL));
    for (store, name) in [(&ours, &here), (&theirs, &there)] {
        assert_eq!(listeners(&**store, name), [listener(1), again]);
    }
    assert_eq!(listeners(&*ours, &name(site, "b")), [], "of another latch");
    for level in [Level::Dc, Level::Xdc] {
        assert_eq!(count_at(&*ours, &here, level), Some(3), "a note changed the count");
    }
    let most = u16::try_from(LISTENERS_MAX).unwrap();
    for port in 10..10 + most {
        assert!(listen(&*ours, (&here, Level::Dc), listener(port), TTL * 2));
    }
    let kept = listeners(&*ours, &here);
    assert!(kept.len() <= LISTENERS_MAX && kept.contains(&listener(9 + most)), "{}", kept.len());
}

/// A latch whose TTL grew with every note would not end while anybody waits for it.
pub fn noting_who_waits_prolongs_no_latch_and_makes_none(site: &Site) {
    if !site.listeners {
        return;
    }
    patiently(|ttl| {
        let (store, name) = (site.store(), name(site, &format!("{ttl:?}")));
        let asked = Moment::now();
        create_briefly(&*store, &name, 7, ttl)?;
        let created = Moment::now();
        let mut noted = 0;
        eventually("the latch is gone", || {
            noted += usize::from(listen(&*store, (&name, Level::Dc), listener(1), TTL));
            thread::sleep(ttl / 20);
            count(&*store, &name).is_none()
        });
        let gone = Moment::now();
        if noted < 3 {
            return None;
        }
        assert!(gone.since(asked) >= ttl - Duration::from_millis(5), "{:?} early", ttl - gone.since(asked));
        // The first note after half of the TTL would have prolonged it by the other half.
        if gone.since(created) >= ttl * 3 / 2 {
            return None;
        }
        for level in [Level::Dc, Level::Xdc] {
            assert!(!listen(&*store, (&name, level), listener(1), TTL), "the latch has ended");
            assert_eq!(count_at(&*store, &name, level), None, "a note made a latch");
        }
        Some(())
    });
}

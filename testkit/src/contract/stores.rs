//! The contract of `dlm::store::LockStore`.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, SystemTime};

use dlm::store::{
    Acquired, Attempt, Grant, Identity, LockName, LockStore, OwnerRecord, OwnerToken, Released, Renewal,
};
use dlm::{Deadline, Fence, Moment};

use super::{HELD, LONG, Site, attempt, patiently, soon, take, take_briefly, take_when_free};

/// Ids that a careless encoding would truncate, fold or confuse.
pub const ODD_IDS: [&str; 13] = [
    "#",
    "##",
    "a#b",
    "a",
    "A",
    " ",
    "a ",
    "a\nb",
    "a\u{1b}[31mb",
    "日本語",
    "💥",
    "e\u{301}",
    "../../etc/passwd?x=1&y=%00",
];

pub fn a_free_lock_is_granted_and_a_held_one_refused_with_its_holder(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    assert_eq!(ours.holder(&name, soon()).unwrap(), None);
    let grant = take(&*ours, &name, HELD);
    for store in [&ours, &theirs] {
        let holder = match attempt(&**store, &name, HELD).unwrap() {
            Acquired::Held(holder) => holder,
            Acquired::Granted(_) => panic!("granted twice"),
        };
        let identity = holder.identity.as_ref().expect("our records name their writer");
        assert_eq!((identity.pid, identity.purpose.as_str()), (std::process::id(), "contract"));
        assert_eq!(theirs.holder(&name, soon()).unwrap().unwrap().identity, holder.identity);
    }
    assert_eq!(ours.release(&name, &grant.owner_record, soon()).unwrap(), Released::Freed);
}

pub fn releasing_frees_the_lock_and_doing_it_twice_changes_nothing(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    let first = take(&*ours, &name, HELD);
    assert_eq!(ours.release(&name, &first.owner_record, soon()).unwrap(), Released::Freed);
    assert_eq!(theirs.holder(&name, soon()).unwrap(), None);
    assert_eq!(ours.release(&name, &first.owner_record, soon()).unwrap(), Released::NotOurs);
    let second = take(&*theirs, &name, HELD);
    assert_eq!(ours.release(&name, &first.owner_record, soon()).unwrap(), Released::NotOurs);
    assert!(theirs.holder(&name, soon()).unwrap().is_some(), "the second holder was released by the first");
    assert_eq!(ours.release(&name, &second.owner_record, soon()).unwrap(), Released::Freed, "by any process");
}

pub fn of_many_who_ask_at_once_exactly_one_is_granted(site: &Site) {
    const ASKING: usize = 8;
    let barrier = Barrier::new(ASKING);
    for round in 0..site.rounds.div_ceil(10) {
        // Both a used name and a new one: in some stores a free lock has two forms.
        let name = site.name(["again", &round.to_string()][round % 2]);
        let grants: Vec<_> = thread::scope(|scope| {
            let asking = (0..ASKING).map(|_| {
                let (store, name, barrier) = (site.store(), &name, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    attempt(&*store, name, HELD).unwrap()
                })
            });
            let asking: Vec<_> = asking.collect();
            asking.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let granted: Vec<_> = grants
            .into_iter()
            .filter_map(|answer| match answer {
                Acquired::Granted(grant) => Some(grant),
                Acquired::Held(_) => None,
            })
            .collect();
        assert_eq!(granted.len(), 1, "round {round}");
        assert_eq!(site.store().release(&name, &granted[0].owner_record, soon()).unwrap(), Released::Freed);
    }
}

pub fn fences_rise_with_every_grant_whoever_asks(site: &Site) {
    let (stores, name) = ([site.store(), site.store()], site.name("a"));
    let mut last = None;
    for round in 0..site.rounds {
        let store = &stores[round % 2];
        let grant = take(&**store, &name, HELD);
        assert!(grant.fence.is_some() && grant.fence > last, "{:?} after {last:?}", grant.fence);
        last = grant.fence;
        store.release(&name, &grant.owner_record, soon()).unwrap();
    }
    assert!(last > Some(Fence(0)));
}

pub fn a_fence_rises_over_a_lease_that_ran_out(site: &Site) {
    patiently(|ttl| {
        let (store, name) = (site.store(), site.name(&format!("{ttl:?}")));
        let first = take_briefly(&*store, &name, ttl)?;
        let (second, _) = take_when_free(&*store, &name, HELD);
        assert!(second.fence > first.fence, "{:?} after {:?}", second.fence, first.fence);
        Some(())
    });
}

pub fn the_proof_of_another_grant_changes_nothing(site: &Site) {
    let (store, name, other) = (site.store(), site.name("a"), site.name("b"));
    let grant = take(&*store, &name, HELD);
    let stranger = take(&*store, &other, HELD);
    assert_eq!(store.release(&name, &stranger.owner_record, soon()).unwrap(), Released::NotOurs);
    assert!(store.renew(&name, &stranger.owner_record, LONG, soon()).unwrap().is_none());
    assert!(store.renew(&other, &grant.owner_record, LONG, soon()).unwrap().is_none());
    // A store may refuse records that it did not write. It must not release or renew anything.
    let drawn = OwnerToken::draw().unwrap();
    for foreign in [&b""[..], b"M", drawn.as_bytes(), &[0; 64]] {
        let foreign = OwnerRecord::from_bytes(foreign);
        assert!(!matches!(store.release(&name, &foreign, soon()), Ok(Released::Freed)));
        assert!(!matches!(store.renew(&name, &foreign, LONG, soon()), Ok(Some(_))));
    }
    for (name, grant) in [(&name, &grant), (&other, &stranger)] {
        assert_eq!(store.release(name, &grant.owner_record, soon()).unwrap(), Released::Freed);
    }
}

pub fn a_lease_ends_not_before_its_ttl_and_then_lets_the_next_in(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs, name) = (site.store(), site.store(), site.name(&format!("{ttl:?}")));
        let first = take_briefly(&*ours, &name, ttl)?;
        let (second, seen) = take_when_free(&*theirs, &name, HELD);
        let ends = first.since.after(ttl);
        assert!(seen >= ends, "let in {:?} early", ends.since(seen));
        assert!(ours.renew(&name, &first.owner_record, LONG, soon()).unwrap().is_none());
        assert_eq!(ours.release(&name, &first.owner_record, soon()).unwrap(), Released::NotOurs);
        assert_eq!(theirs.release(&name, &second.owner_record, soon()).unwrap(), Released::Freed);
        Some(())
    });
}

pub fn a_renewed_lease_outlives_its_first_ttl_and_leaves_nothing_behind(site: &Site) {
    patiently(|ttl| {
        let (store, name) = (site.store(), site.name(&format!("{ttl:?}")));
        let grant = take_briefly(&*store, &name, ttl)?;
        let (mut owner_record, mut since) = (grant.owner_record, grant.since);
        // There are two versions of the record below the last one. None of them may become visible again.
        while Moment::now().since(grant.since) < 2 * ttl {
            let asked = Moment::now();
            match store.renew(&name, &owner_record, ttl, soon()).unwrap() {
                Some(renewed) => (owner_record, since) = (renewed, asked),
                None if Moment::now().since(since) < ttl => panic!("lost before its TTL was over"),
                None => return None,
            }
            thread::sleep(ttl / 4);
        }
        let refused = matches!(attempt(&*site.store(), &name, HELD).unwrap(), Acquired::Held(_));
        match store.release(&name, &owner_record, soon()).unwrap() {
            Released::Freed => assert!(refused, "granted to another while held"),
            _ if Moment::now().since(since) < ttl => panic!("lost before its TTL was over"),
            _ => return None,
        }
        let watch = Deadline::after(2 * ttl);
        while !watch.passed() {
            assert_eq!(store.holder(&name, soon()).unwrap(), None, "a released record came back");
            thread::sleep(ttl / 10);
        }
        Some(())
    });
}

pub fn a_lease_that_ran_out_cannot_be_renewed(site: &Site) {
    patiently(|ttl| {
        let (store, name) = (site.store(), site.name(&format!("{ttl:?}")));
        let grant = take_briefly(&*store, &name, ttl)?;
        super::eventually("the lease ends", || store.holder(&name, soon()).unwrap().is_none());
        assert!(store.renew(&name, &grant.owner_record, LONG, soon()).unwrap().is_none());
        assert_eq!(store.holder(&name, soon()).unwrap(), None, "a renewal brought the lease back");
        assert_eq!(store.release(&name, &grant.owner_record, soon()).unwrap(), Released::NotOurs);
        Some(())
    });
}

pub fn a_shorter_renewal_never_frees_the_lock_too_soon_nor_brings_it_back(site: &Site) {
    patiently(|long| {
        let (store, name) = (site.store(), site.name(&format!("{long:?}")));
        let short = long / 20;
        let grant = take_briefly(&*store, &name, long)?;
        let asked = Moment::now();
        let Some(owner_record) = store.renew(&name, &grant.owner_record, short, soon()).unwrap() else {
            assert!(Moment::now().since(grant.since) >= long, "lost before its TTL was over");
            return None;
        };
        // The lock may stay held for the first TTL. But once it is free, it must stay free.
        let (second, seen) = take_when_free(&*store, &name, HELD);
        assert!(seen >= asked.after(short));
        assert_eq!(store.release(&name, &owner_record, soon()).unwrap(), Released::NotOurs);
        assert_eq!(store.release(&name, &second.owner_record, soon()).unwrap(), Released::Freed);
        while Moment::now().since(grant.since) < 2 * long {
            assert_eq!(store.holder(&name, soon()).unwrap(), None, "a record came back");
            thread::sleep(short);
        }
        Some(())
    });
}

pub fn a_shorter_renewal_never_shortens_what_stands(site: &Site) {
    patiently(|short| {
        let (store, name) = (site.store(), site.name(&format!("long {short:?}")));
        let grant = take(&*store, &name, HELD);
        let owner_record =
            store.renew(&name, &grant.owner_record, short, soon()).unwrap().expect("held for ten minutes");
        // Another lease starts later with the same short TTL, and ends.
        let beside = site.name(&format!("short {short:?}"));
        take_briefly(&*store, &beside, short)?;
        super::eventually("the short lease ends", || store.holder(&beside, soon()).unwrap().is_none());
        assert!(store.holder(&name, soon()).unwrap().is_some(), "the shorter renewal shortened the lease");
        assert!(matches!(attempt(&*site.store(), &name, HELD).unwrap(), Acquired::Held(_)));
        assert_eq!(store.release(&name, &owner_record, soon()).unwrap(), Released::Freed);
        Some(())
    });
}

pub fn locks_of_odd_names_are_as_good_as_others(site: &Site) {
    let store = site.store();
    let longest = ["x".repeat(1024), "é".repeat(512), format!("{}y", "x".repeat(1023))];
    let ids: Vec<&str> = ODD_IDS.into_iter().chain(longest.iter().map(String::as_str)).collect();
    let names: Vec<_> = ids.iter().map(|id| site.name(id)).collect();
    let grants: Vec<_> = names.iter().map(|name| take(&*store, name, HELD)).collect();
    for (name, grant) in names.iter().zip(&grants) {
        assert!(matches!(attempt(&*site.store(), name, HELD).unwrap(), Acquired::Held(_)), "{name}");
        assert_eq!(store.release(name, &grant.owner_record, soon()).unwrap(), Released::Freed, "{name}");
    }
}

pub fn one_lock_does_not_touch_another(site: &Site) {
    let store = site.store();
    let names: Vec<_> = (0..20).map(|id| site.name(&id.to_string())).collect();
    let grants: Vec<_> = names.iter().map(|name| take(&*store, name, HELD)).collect();
    for (name, grant) in names.iter().zip(&grants).step_by(2) {
        assert_eq!(store.release(name, &grant.owner_record, soon()).unwrap(), Released::Freed);
    }
    for (at, (name, grant)) in names.iter().zip(&grants).enumerate() {
        assert_eq!(store.holder(name, soon()).unwrap().is_some(), at % 2 == 1, "{name}");
        let renewed = store.renew(name, &grant.owner_record, LONG, soon()).unwrap();
        assert_eq!(renewed.is_some(), at % 2 == 1, "{name}");
    }
}

pub fn what_is_told_about_a_lock_is_true(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let nothing = store.inspect(&name, soon()).unwrap();
    assert_eq!((nothing.holder, nothing.fence), (None, None));
    let before = SystemTime::now();
    let grant = take(&*store, &name, HELD);
    let found = site.store().inspect(&name, soon()).unwrap();
    assert_eq!(found.fence, grant.fence);
    let holder = found.holder.unwrap();
    let remaining = holder.remaining.expect("this store must know");
    assert!(remaining <= HELD + site.slack && remaining > HELD / 2, "{remaining:?}");
    // The two times are from clocks of one machine, one in whole milliseconds. The clock may be corrected in between.
    let since = holder.since.expect("this store must know");
    let off = since.duration_since(before).unwrap_or_else(|error| error.duration());
    assert!(off < LONG, "{off:?}");
    store.release(&name, &grant.owner_record, soon()).unwrap();
    let after = store.inspect(&name, soon()).unwrap();
    assert_eq!(after.holder, None);
    assert!(after.fence.is_none() || after.fence == grant.fence, "{:?}", after.fence);
}

/// A store that compares tokens receives a record without an identity for the renewal.
/// Held, held and released, and never used.
pub fn many_locks_that_are_read_at_once_are_what_each_of_them_is(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    let names: Vec<_> = (0..40).map(|number| site.name(&number.to_string())).collect();
    for (number, name) in names.iter().enumerate().filter(|(number, _)| number % 4 != 0) {
        let grant = take(&*ours, name, HELD);
        if number % 4 == 1 {
            assert_eq!(ours.release(name, &grant.owner_record, soon()).unwrap(), Released::Freed);
        }
    }
    let mut seen = vec![None; names.len()];
    theirs.holders(&names, soon(), &mut |index, holder| {
        assert!(seen[index].replace(holder).is_none(), "reported twice");
    });
    if site.reads_many {
        assert!(seen.iter().all(Option::is_some), "not all were read: {seen:?}");
    }
    for (index, seen) in seen.into_iter().enumerate().filter_map(|(index, seen)| Some((index, seen?))) {
        let alone = theirs.holder(&names[index], soon()).unwrap();
        assert_eq!(seen.is_some(), index % 4 > 1, "lock {index}: {seen:?}");
        assert_eq!(
            seen.as_ref().map(|holder| (&holder.identity, holder.remaining.is_some())),
            alone.as_ref().map(|holder| (&holder.identity, holder.remaining.is_some()))
        );
        let remaining = seen.and_then(|holder| holder.remaining).unwrap_or_default();
        assert!(remaining <= HELD + site.slack + Duration::from_secs(1), "{remaining:?}");
    }
    // Nothing is known in time.
    theirs.holders(&names, Deadline::after(Duration::ZERO), &mut |_, _| {});
    theirs.holders(&[], soon(), &mut |_, _| panic!("there is no lock"));
}

pub fn a_renewed_lock_still_names_its_holder(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let grant = take(&*store, &name, HELD);
    let renewed = store.renew(&name, &grant.owner_record, LONG, soon()).unwrap().expect("it is held");
    let holder = site.store().inspect(&name, soon()).unwrap().holder.expect("it is held");
    assert_eq!(holder.identity.expect("a record of this library").pid, std::process::id());
    assert_eq!(store.release(&name, &renewed, soon()).unwrap(), Released::Freed);
}

/// Renews each lock with its grant, and returns the answers in the order of the locks. One is missing if the lock was not
/// reported.
fn renewed(
    store: &dyn LockStore,
    asked: &[(LockName, Grant, Duration)],
    alone: impl Fn(usize) -> bool,
    by: Deadline,
) -> Vec<Option<dlm::Result<Option<OwnerRecord>>>> {
    let mut renewals = Vec::new();
    for (at, (name, grant, ttl)) in asked.iter().enumerate() {
        let owner_record = &grant.owner_record;
        renewals.push(Renewal { name, owner_record, ttl: *ttl, alone: alone(at) });
    }
    let begin = Moment::now();
    let mut answers: Vec<_> = asked.iter().map(|_| None).collect();
    store.renew_many(&renewals, by, &mut |at, since, answer| {
        assert!(since >= begin && since <= Moment::now());
        assert!(answers[at].replace(answer).is_none(), "renewal {at} was reported twice");
    });
    answers
}

pub fn of_many_renewals_each_has_its_own_answer(site: &Site) {
    // More than a store puts into one request.
    let many = if site.rounds >= 1000 { 300 } else { 70 };
    patiently(|brief| {
        let (store, other) = (site.store(), site.store());
        let name = |at: usize| site.name(&format!("{brief:?} {at}"));
        // The first leases, then many like the first one, then one that is short.
        let [fine, gone, taken, alone, newer, first] = [0, 1, 2, 3, 4, 5];
        let longer = first + many;
        let mut asked: Vec<_> =
            (0..longer).map(|at| (name(at), take(&*store, &name(at), HELD), 2 * HELD)).collect();
        let record = |at: usize| &asked[at].1.owner_record;
        assert_eq!(other.release(&name(gone), record(gone), soon()).unwrap(), Released::Freed);
        assert_eq!(other.release(&name(taken), record(taken), soon()).unwrap(), Released::Freed);
        let next = take(&*other, &name(taken), HELD);
        // Another process renews this one, so a newer version of the record is stored.
        other.renew(&name(newer), record(newer), HELD + LONG, soon()).unwrap().expect("it is held");
        // The last one: it must not end before the renewals.
        let grant = take_briefly(&*store, &name(longer), brief)?;
        let since = grant.since;
        asked.push((name(longer), grant, 2 * HELD));
        let answers = renewed(&*store, &asked, |at| at == alone, soon());
        if Moment::now() >= since.after(brief) {
            return None;
        }
        for (at, (answer, (name, ..))) in answers.into_iter().zip(&asked).enumerate() {
            let answer = answer.unwrap_or_else(|| panic!("renewal {at} was not reported"));
            let renewed = answer.unwrap_or_else(|error| panic!("{at}: {}", error.chain()));
            if [gone, taken].contains(&at) {
                assert_eq!(renewed, None, "{at}: renewed, though it was lost");
                continue;
            }
            let renewed = renewed.unwrap_or_else(|| panic!("{at}: lost"));
            if [fine, alone, newer, longer - 1].contains(&at) {
                let holder = other.inspect(name, soon()).unwrap().holder.expect("it is held");
                // Before the renewals, none was held for so long.
                assert!(holder.remaining.is_none_or(|left| left > HELD + 2 * LONG), "{at}: {holder:?}");
            }
            if at == longer {
                thread::sleep(since.after(2 * brief).since(Moment::now()));
                assert!(other.holder(name, soon()).unwrap().is_some(), "it ended with its first TTL");
            }
            assert_eq!(other.release(name, &renewed, soon()).unwrap(), Released::Freed, "{at}");
        }
        assert!(other.holder(&name(gone), soon()).unwrap().is_none(), "brought back");
        assert_eq!(other.release(&name(taken), &next.owner_record, soon()).unwrap(), Released::Freed);
        Some(())
    });
}

/// An error other than IN_DOUBT means that a renewal was not made.
pub fn many_renewals_that_are_late_already_take_no_lease_away(site: &Site) {
    let store = site.store();
    let mut asked: Vec<_> = Vec::new();
    for at in 0..10 {
        let name = site.name(&at.to_string());
        let grant = take(&*store, &name, HELD);
        asked.push((name, grant, 2 * HELD));
    }
    let answers = renewed(&*store, &asked, |at| at % 2 == 0, Deadline::after(Duration::ZERO));
    for answer in answers.into_iter().flatten() {
        match answer {
            Ok(renewed) => assert!(renewed.is_some(), "lost"),
            Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
        }
    }
    for answer in renewed(&*store, &asked, |_| false, soon()) {
        assert!(answer.expect("there was time").unwrap().is_some(), "lost");
    }
    renewed(&*store, &[], |_| false, soon());
}

/// An error other than IN_DOUBT means that the request had no effect and will have none.
pub fn a_call_that_is_late_already_leaves_nothing_behind(site: &Site) {
    let (store, name, identity) = (site.store(), site.name("a"), Identity::this_process("contract").unwrap());
    let late = Deadline::after(Duration::ZERO);
    let mut doubtful = Vec::new();
    match store.acquire(Attempt { name: &name, ttl: LONG, identity: &identity, by: late }, &mut doubtful) {
        Ok(Acquired::Granted(grant)) => {
            assert_eq!(store.release(&name, &grant.owner_record, soon()).unwrap(), Released::Freed);
        }
        Ok(Acquired::Held(holder)) => panic!("held by {holder}"),
        Err(error) => assert!(error.is_retryable(), "{error}"),
    }
    for owner_record in doubtful {
        store.release(&name, &owner_record, soon()).unwrap();
    }
    assert_eq!(store.holder(&name, soon()).unwrap(), None);
}

pub fn initializing_again_and_at_once_does_no_harm(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let grant = take(&*store, &name, HELD);
    thread::scope(|scope| {
        for _ in 0..4 {
            let store = site.store();
            scope.spawn(move || store.initialize(soon()).unwrap());
        }
    });
    assert_eq!(
        store.release(&name, &grant.owner_record, soon()).unwrap(),
        Released::Freed,
        "initializing lost a lock"
    );
}

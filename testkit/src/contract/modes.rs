//! The contract of `dlm::store::ModeStore`: holds of one lock in several modes, their numbers and their changes of mode.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::{
    Acquired, Attempt, Conversion, Converted, Grant, GrantRecord, Identity, LatchName, ListCursor, LockHold,
    LockName, LockQuery, LockStore, Mode, ModeStore, ModeTerms, NewLatch, OwnerRecord, Released, Renewal,
};
use dlm::{Code, Deadline, Holder, Level, Moment, NamePolicy};
use parking_lot::Mutex;

use super::stores::ODD_IDS;
use super::{HELD, LONG, LONGEST, Site, code, eventually, patiently, soon, take_when_free};
use crate::patience::sleep;

/// The pairs of modes in which a lock may be held at one time.
const TOGETHER: [(Mode, Mode); 3] =
    [(Mode::Shared, Mode::Shared), (Mode::Shared, Mode::Update), (Mode::Update, Mode::Shared)];

/// The changes of mode that a hold can make.
const CONVERSIONS: [(Mode, Mode); 4] = [
    (Mode::Exclusive, Mode::Update),
    (Mode::Exclusive, Mode::Shared),
    (Mode::Update, Mode::Shared),
    (Mode::Update, Mode::Exclusive),
];

/// How much longer than it lasts the store may keep something that has no owner any more.
const GRACE: Duration = Duration::from_secs(10);

pub(super) fn modes(store: &dyn LockStore) -> &dyn ModeStore {
    store.modes().expect("this suite is for stores that keep locks in several modes")
}

pub(super) fn process(purpose: &str) -> Identity {
    Identity::this_process(purpose).unwrap()
}

/// Makes one attempt as a process with this purpose.
pub(super) fn ask_as(
    purpose: &str,
    store: &dyn LockStore,
    name: &LockName,
    ttl: Duration,
    terms: ModeTerms<'_>,
) -> Acquired {
    let (identity, mut doubtful) = (process(purpose), Vec::new());
    let attempt = Attempt { name, ttl, identity: &identity, by: soon() };
    let answer = modes(store).acquire_mode(attempt, terms, &mut doubtful);
    assert!(doubtful.is_empty(), "a healthy store leaves no doubt");
    let acquired = answer.unwrap_or_else(|error| panic!("{}", error.chain()));
    if let Acquired::Granted(grant) = &acquired {
        check_number(grant, terms.mode);
    }
    acquired
}

pub(super) fn ask(store: &dyn LockStore, name: &LockName, terms: ModeTerms<'_>) -> Acquired {
    ask_as("contract", store, name, HELD, terms)
}

/// Acquires a lock that allows this mode.
#[track_caller]
pub(super) fn take(store: &dyn LockStore, name: &LockName, mode: Mode) -> Grant {
    take_as("contract", store, name, mode, HELD)
}

#[track_caller]
pub(super) fn take_as(
    purpose: &str,
    store: &dyn LockStore,
    name: &LockName,
    mode: Mode,
    ttl: Duration,
) -> Grant {
    match ask_as(purpose, store, name, ttl, ModeTerms::new(mode)) {
        Acquired::Granted(grant) => grant,
        Acquired::Held(holder) => panic!("{name} should allow {mode} and is held by {holder}"),
    }
}

/// Acquires a lock that allows this mode, for a short time. Returns `None` if the machine was so slow that the lease ended
/// before the store answered.
fn take_briefly(store: &dyn LockStore, name: &LockName, mode: Mode, ttl: Duration) -> Option<Grant> {
    let asked = Moment::now();
    let grant = take_as("brief", store, name, mode, ttl);
    (Moment::now().since(asked) < ttl).then_some(grant)
}

/// Asks for a mode that the lock must refuse, and returns what stands in the way.
#[track_caller]
pub(super) fn refused(store: &dyn LockStore, name: &LockName, mode: Mode) -> Holder {
    match ask(store, name, ModeTerms::new(mode)) {
        Acquired::Held(holder) => holder,
        Acquired::Granted(_) => panic!("{mode} of {name} was granted beside a hold that excludes it"),
    }
}

/// Asks for the lock as a version without modes does, and returns the holder that refuses it.
#[track_caller]
fn refused_without_modes(store: &dyn LockStore, name: &LockName) -> Holder {
    match super::attempt(store, name, HELD).unwrap() {
        Acquired::Held(holder) => holder,
        Acquired::Granted(_) => panic!("a version without modes got {name}, which is held"),
    }
}

#[track_caller]
pub(super) fn release(store: &dyn LockStore, name: &LockName, grant: &Grant) {
    let released = store.release(name, &grant.owner_record, soon()).unwrap();
    assert_eq!(released, Released::Freed, "a hold of {name} was lost");
}

#[track_caller]
fn lives(store: &dyn LockStore, name: &LockName, grant: &Grant) {
    let renewed = store.renew(name, &grant.owner_record, LONG, soon()).unwrap();
    assert!(renewed.is_some(), "a hold of {name} was lost");
}

/// Asserts that the record holds nothing.
#[track_caller]
fn is_void(store: &dyn LockStore, name: &LockName, owner_record: &OwnerRecord) {
    assert_eq!(store.renew(name, owner_record, LONG, soon()).unwrap(), None, "a void record was renewed");
    let released = store.release(name, owner_record, soon()).unwrap();
    assert_eq!(released, Released::NotOurs, "a void record was released");
}

/// Asks for a change of mode.
pub(super) fn change(
    store: &dyn LockStore,
    name: &LockName,
    ttl: Duration,
    conversion: Conversion<'_>,
) -> dlm::Result<Converted> {
    let (identity, mut doubtful) = (process("contract"), Vec::new());
    let attempt = Attempt { name, ttl, identity: &identity, by: soon() };
    let answer = modes(store).convert(attempt, conversion, &mut doubtful);
    assert!(doubtful.is_empty(), "a healthy store leaves no doubt");
    if let Ok(Converted::Granted(grant)) = &answer {
        check_number(grant, conversion.to);
    }
    answer
}

pub(super) fn step(owner_record: &OwnerRecord, from: Mode, to: Mode) -> Conversion<'_> {
    Conversion { owner_record, from, to, intent: None }
}

/// Changes the mode of a hold that can make this change.
#[track_caller]
pub(super) fn convert(store: &dyn LockStore, name: &LockName, grant: &Grant, from: Mode, to: Mode) -> Grant {
    match change(store, name, HELD, step(&grant.owner_record, from, to)).unwrap() {
        Converted::Granted(changed) => changed,
        other => panic!("{from} to {to} of {name}: {other:?}"),
    }
}

/// Asserts that an exclusive grant has a fence, and any other an epoch.
#[track_caller]
fn check_number(grant: &Grant, mode: Mode) {
    let has = (grant.fence.is_some(), grant.epoch.is_some());
    let is_exclusive = mode == Mode::Exclusive;
    assert_eq!(has, (is_exclusive, !is_exclusive), "fence and epoch of {mode}");
}

#[track_caller]
pub(super) fn number(grant: &Grant) -> u64 {
    let fence = grant.fence.map(|fence| fence.0);
    fence.or(grant.epoch.map(|epoch| epoch.0)).expect("each grant has a number")
}

pub(super) fn holds(store: &dyn LockStore, name: &LockName) -> Vec<LockHold> {
    modes(store).holds(name, soon()).unwrap()
}

fn purpose(holder: &Holder) -> &str {
    &holder.identity.as_ref().expect("our records name their writer").purpose
}

/// Returns the purposes of all holds, sorted.
fn purposes(store: &dyn LockStore, name: &LockName) -> Vec<String> {
    let mut found: Vec<_> = holds(store, name).iter().map(|hold| purpose(&hold.holder).to_owned()).collect();
    found.sort();
    found
}

/// Waits until something has ended that lasts for `lasts` from now on at most, by the store's clock. On a slow machine it
/// has ended as well, so a limit below [`LONG`] does no harm.
#[track_caller]
pub(super) fn ends_within(site: &Site, lasts: Duration, what: &str, mut has_ended: impl FnMut() -> bool) {
    let by = Deadline::after(lasts + site.slack + GRACE);
    loop {
        let is_over = by.passed();
        if has_ended() {
            return;
        }
        assert!(!is_over, "has not ended: {what}");
        sleep(Duration::from_millis(5));
    }
}

pub fn modes_go_together_as_the_table_says_and_a_refusal_names_the_holder(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    for held in Mode::OF_LOCKS {
        for asked in Mode::OF_LOCKS {
            let name = site.name(&format!("{held} {asked}"));
            let first = take_as("first", &*ours, &name, held, HELD);
            if TOGETHER.contains(&(held, asked)) {
                assert_eq!(modes(&*theirs).blocker(&name, asked, soon()).unwrap(), None, "{held} {asked}");
                let second = take(&*theirs, &name, asked);
                release(&*theirs, &name, &second);
            } else {
                let blocker = modes(&*theirs).blocker(&name, asked, soon()).unwrap().expect("it is held");
                for holder in [refused(&*theirs, &name, asked), refused(&*ours, &name, asked), blocker] {
                    let seen = (purpose(&holder), holder.mode, holder.is_waiting);
                    assert_eq!(seen, ("first", held, false), "{asked}");
                }
            }
            lives(&*theirs, &name, &first);
            release(&*ours, &name, &first);
            let next = take(&*theirs, &name, asked);
            release(&*theirs, &name, &next);
        }
    }
}

/// A hold that goes together with some of the others is refused because of the rest.
pub fn a_hold_must_go_together_with_all_others(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    let readers = [take(&*ours, &name, Mode::Shared), take(&*theirs, &name, Mode::Shared)];
    let update = take_as("update", &*ours, &name, Mode::Update, HELD);
    let late = take(&*theirs, &name, Mode::Shared);
    let holder = refused(&*theirs, &name, Mode::Update);
    assert_eq!((purpose(&holder), holder.mode), ("update", Mode::Update));
    assert!(!refused(&*theirs, &name, Mode::Exclusive).is_waiting);
    release(&*ours, &name, &update);
    let next = take(&*theirs, &name, Mode::Update);
    for grant in readers.iter().chain([&late]) {
        release(&*ours, &name, grant);
        refused_without_modes(&*theirs, &name);
    }
    release(&*theirs, &name, &next);
    release(&*ours, &name, &take(&*ours, &name, Mode::Exclusive));
}

pub fn each_of_many_readers_renews_and_releases_alone(site: &Site) {
    const READERS: usize = 20;
    let (stores, name) = ([site.store(), site.store(), site.store()], site.name("a"));
    let stranger = take(&*stores[0], &site.name("b"), Mode::Shared);
    let mut readers: Vec<_> = (0..READERS)
        .map(|at| take_as(&format!("reader-{at:02}"), &*stores[at % 3], &name, Mode::Shared, HELD))
        .collect();
    let epoch = number(&readers[0]);
    assert!(readers.iter().all(|grant| number(grant) == epoch), "readers of one time have one epoch");
    is_void(&*stores[0], &name, &stranger.owner_record);
    // Two holders renew by turns, each with its own length.
    for (at, grant) in readers.iter_mut().enumerate() {
        let (store, ttl) = (&stores[(at + 1) % 3], HELD * (1 + at as u32 % 2));
        let renewed = store.renew(&name, &grant.owner_record, ttl, soon()).unwrap();
        grant.owner_record = renewed.expect("it is held");
    }
    let mut left: Vec<String> = (0..READERS).map(|at| format!("reader-{at:02}")).collect();
    assert_eq!(purposes(&*stores[0], &name), left);
    // In an order that is neither that of the grants nor its reverse.
    for round in 0..READERS {
        let at = (round * 7 + 3) % READERS;
        let store = &stores[round % 3];
        release(&**store, &name, &readers[at]);
        is_void(&**store, &name, &readers[at].owner_record);
        left.retain(|purpose| *purpose != format!("reader-{at:02}"));
        assert_eq!(purposes(&**store, &name), left);
        if round + 1 < READERS {
            let still = (round + 1..READERS).map(|later| &readers[(later * 7 + 3) % READERS]);
            still.step_by(5).for_each(|grant| lives(&**store, &name, grant));
            refused(&**store, &name, Mode::Exclusive);
        }
    }
    take(&*stores[0], &name, Mode::Exclusive);
}

pub fn a_dead_reader_ends_with_its_own_ttl_while_others_go_on(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs, name) = (site.store(), site.store(), site.name(&format!("{ttl:?}")));
        let mut living = take_as("living", &*ours, &name, Mode::Shared, HELD);
        let dead = take_briefly(&*theirs, &name, Mode::Shared, ttl)?;
        let later = take_as("later", &*theirs, &name, Mode::Shared, HELD);
        let is_listed = || purposes(&*theirs, &name).contains(&"brief".to_owned());
        // Each renewal, also the first, leaves the end of the dead reader as it is.
        ends_within(site, ttl, "the hold of a dead reader, while others renew theirs", || {
            let renewed = ours.renew(&name, &living.owner_record, HELD, soon()).unwrap();
            living.owner_record = renewed.expect("a reader that renews was lost");
            !is_listed()
        });
        let ends = dead.since.after(ttl);
        assert!(Moment::now() >= ends, "it ended too early");
        is_void(&*theirs, &name, &dead.owner_record);
        refused(&*theirs, &name, Mode::Exclusive);
        assert_eq!(purposes(&*ours, &name), ["later", "living"]);
        release(&*ours, &name, &living);
        release(&*ours, &name, &later);
        take(&*theirs, &name, Mode::Exclusive);
        Some(())
    });
}

pub fn a_long_reader_is_not_shortened_by_short_ones(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs, name) = (site.store(), site.store(), site.name(&format!("{ttl:?}")));
        let long = take_as("long", &*ours, &name, Mode::Shared, HELD);
        let short = take_briefly(&*theirs, &name, Mode::Shared, ttl)?;
        let asked = Moment::now();
        match theirs.renew(&name, &short.owner_record, ttl, soon()).unwrap() {
            Some(_) => {}
            None if Moment::now().since(short.since) < ttl => panic!("lost before its TTL was over"),
            None => return None,
        }
        // A shorter renewal of its own does not shorten it either.
        let renewed = ours.renew(&name, &long.owner_record, ttl, soon()).unwrap().expect("it is held");
        let is_listed = || purposes(&*theirs, &name).contains(&"brief".to_owned());
        ends_within(site, ttl, "the short reader", || !is_listed());
        assert!(Moment::now() >= asked.after(ttl), "the renewed reader ended too early");
        sleep(ttl);
        assert_eq!(purposes(&*theirs, &name), ["long"], "it ended with the short one");
        refused_without_modes(&*theirs, &name);
        assert_eq!(ours.release(&name, &renewed, soon()).unwrap(), Released::Freed);
        Some(())
    });
}

pub fn a_renewed_reader_outlives_its_first_ttl_beside_others(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs, name) = (site.store(), site.store(), site.name(&format!("{ttl:?}")));
        let first = take(&*ours, &name, Mode::Shared);
        let second = take_briefly(&*theirs, &name, Mode::Shared, ttl)?;
        let update = take_briefly(&*theirs, &name, Mode::Update, ttl)?;
        let mut renewed = Vec::new();
        for grant in [&second, &update] {
            match ours.renew(&name, &grant.owner_record, HELD, soon()).unwrap() {
                Some(owner_record) => renewed.push(owner_record),
                None if Moment::now().since(grant.since) < ttl => panic!("lost before its TTL was over"),
                None => return None,
            }
        }
        sleep(2 * ttl);
        assert_eq!(holds(&*ours, &name).len(), 3, "it ended with its first TTL");
        for owner_record in &renewed {
            assert_eq!(theirs.release(&name, owner_record, soon()).unwrap(), Released::Freed);
        }
        release(&*ours, &name, &first);
        Some(())
    });
}

/// `LockStore::acquire` is what a version without modes calls.
pub fn versions_without_modes_find_the_lock_held_until_the_last_hold_is_released(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    let before = take(&*ours, &name, Mode::Exclusive);
    release(&*ours, &name, &before);
    let reader = take_as("reader", &*ours, &name, Mode::Shared, HELD);
    let update = take_as("update", &*ours, &name, Mode::Update, 2 * HELD);
    let mut last = None;
    for (grant, ends_last, mode) in [(&update, "update", Mode::Update), (&reader, "reader", Mode::Shared)] {
        let holder = refused_without_modes(&*theirs, &name);
        assert!(!holder.is_waiting && holder.mode != Mode::Exclusive, "{holder:?}");
        let holder = theirs.holder(&name, soon()).unwrap().expect("it is held");
        assert_eq!((purpose(&holder), holder.mode), (ends_last, mode), "the holder whose lease ends last");
        let inspected = theirs.inspect(&name, soon()).unwrap();
        assert!(inspected.holder.is_some() && inspected.grant.is_some());
        assert!(inspected.fence.is_none_or(|fence| fence.0 == number(grant)), "{inspected:?}");
        theirs.holders(&[site.name("b"), name.clone()], soon(), &mut |at, holder| {
            assert_eq!(holder.is_some(), at == 1, "{holder:?}");
        });
        assert_eq!(listed(site, &*theirs, &name), site.lists.then_some(ends_last.to_owned()));
        release(&*theirs, &name, grant);
        last = Some(number(grant));
    }
    assert_eq!(theirs.holder(&name, soon()).unwrap(), None);
    assert_eq!(theirs.inspect(&name, soon()).unwrap().holder, None);
    assert_eq!(listed(site, &*theirs, &name), None);
    let next = super::take(&*theirs, &name, HELD);
    assert!(next.fence.map(|fence| fence.0) > last && next.epoch.is_none(), "{next:?} after {last:?}");
    assert_eq!(refused(&*ours, &name, Mode::Shared).mode, Mode::Exclusive);
}

/// Returns the purpose of the holder with which the lock is listed.
fn listed(site: &Site, store: &dyn LockStore, name: &LockName) -> Option<String> {
    let query = LockQuery::new().prefix(name.key()).held_only();
    if !site.lists {
        return None;
    }
    let (mut after, mut found): (Option<ListCursor>, Vec<_>) = (None, Vec::new());
    loop {
        let page = store.list(&query, after.as_ref(), 10, soon()).unwrap();
        found.extend(page.locks.into_iter().filter(|lock| lock.name.as_ref() == Some(name)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(found.len() <= 1, "listed twice");
    found.pop().map(|lock| purpose(&lock.holder.expect("only held ones were asked for")).to_owned())
}

pub fn versions_without_modes_get_the_lock_when_the_last_hold_has_ended(site: &Site) {
    for mode in [Mode::Shared, Mode::Update] {
        patiently(|ttl| {
            let (ours, theirs) = (site.store(), site.store());
            let name = site.name(&format!("{mode} {ttl:?}"));
            let short = take_briefly(&*ours, &name, Mode::Shared, ttl)?;
            let long = take_briefly(&*ours, &name, mode, 2 * ttl)?;
            let (next, seen) = take_when_free(&*theirs, &name, HELD);
            let ends = short.since.after(ttl).max(long.since.after(2 * ttl));
            assert!(seen >= ends, "let in {:?} early", ends.since(seen));
            assert!(next.fence.map(|fence| fence.0) > Some(number(&long)));
            is_void(&*ours, &name, &short.owner_record);
            is_void(&*ours, &name, &long.owner_record);
            release(&*theirs, &name, &next);
            Some(())
        });
    }
}

pub fn a_number_begins_with_each_writer_and_with_the_first_reader_after_one(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    let mut last = 0;
    for round in 0..site.rounds.div_ceil(20) {
        let writer = match round % 2 {
            0 => super::take(&*ours, &name, HELD),
            _ => take(&*theirs, &name, Mode::Exclusive),
        };
        assert!(number(&writer) > last, "a writer after readers");
        release(&*ours, &name, &writer);
        let first = take(&*theirs, &name, [Mode::Shared, Mode::Update][round % 2]);
        let epoch = number(&first);
        assert!(epoch > number(&writer), "readers after a writer");
        let second = take(&*ours, &name, Mode::Shared);
        assert_eq!(number(&second), epoch, "who joins has the epoch of the others");
        release(&*theirs, &name, &first);
        let third = take(&*theirs, &name, [Mode::Update, Mode::Shared][round % 2]);
        assert_eq!(number(&third), epoch, "the first one has left, and others hold the lock still");
        assert!(holds(&*ours, &name).iter().all(|hold| hold.epoch.is_none_or(|it| it.0 == epoch)));
        release(&*ours, &name, &second);
        release(&*ours, &name, &third);
        // Nobody holds the lock, so its next reader begins a number, though no writer came.
        let again = take(&*ours, &name, Mode::Shared);
        assert!(number(&again) > epoch, "readers after nobody");
        last = number(&again);
        release(&*ours, &name, &again);
    }
}

pub fn a_number_begins_after_a_reader_that_ran_out(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs, name) = (site.store(), site.store(), site.name(&format!("{ttl:?}")));
        let first = take_briefly(&*ours, &name, Mode::Shared, ttl)?;
        eventually("the lease ends", || holds(&*theirs, &name).is_empty());
        let second = take(&*theirs, &name, Mode::Shared);
        assert!(number(&second) > number(&first), "nobody held the lock");
        release(&*theirs, &name, &second);
        Some(())
    });
}

pub fn readers_come_above_all_fences_that_a_writer_has_reserved(site: &Site) {
    const FENCES: u64 = 100;
    let (store, identity) = (site.store(), process("contract"));
    for (id, by_mode, steps_down) in [("a", false, false), ("b", true, false), ("c", true, true)] {
        let name = site.name(id);
        let writer = if by_mode {
            let terms = ModeTerms { fences: FENCES, ..ModeTerms::new(Mode::Exclusive) };
            ask(&*store, &name, terms)
        } else {
            let attempt = Attempt { name: &name, ttl: HELD, identity: &identity, by: soon() };
            store.acquire_with_fences(attempt, FENCES, &mut Vec::new()).unwrap()
        };
        let Acquired::Granted(writer) = writer else { panic!("{name} should be free") };
        assert!((1..=FENCES).contains(&writer.fences));
        assert!(writer.fences > 1 || !store.reserves_fences());
        let reader = if steps_down {
            convert(&*store, &name, &writer, Mode::Exclusive, Mode::Shared)
        } else {
            release(&*store, &name, &writer);
            take(&*store, &name, Mode::Shared)
        };
        assert!(number(&reader) >= number(&writer) + writer.fences, "{reader:?} after {writer:?}");
        assert_eq!(reader.fences, 1);
    }
}

pub fn a_conversion_changes_the_mode_and_voids_the_earlier_record(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    for (from, to) in CONVERSIONS {
        let name = site.name(&format!("{from} {to}"));
        let first = take(&*ours, &name, from);
        let second = convert(&*theirs, &name, &first, from, to);
        match (from, to) {
            (Mode::Update, Mode::Shared) => assert_eq!(number(&second), number(&first), "nobody wrote"),
            _ => assert!(number(&second) > number(&first), "{from} to {to} begins a number"),
        }
        let found = holds(&*ours, &name);
        assert_eq!(found.iter().map(|hold| hold.holder.mode).collect::<Vec<_>>(), [to]);
        assert!(found[0].epoch.is_none_or(|epoch| epoch.0 == number(&second)));
        is_void(&*theirs, &name, &first.owner_record);
        let again = change(&*ours, &name, HELD, step(&first.owner_record, from, to)).unwrap();
        assert!(matches!(again, Converted::NotOurs), "{again:?}");
        for asked in Mode::OF_LOCKS {
            match TOGETHER.contains(&(to, asked)) {
                true => {
                    let other = take(&*ours, &name, asked);
                    assert_eq!(number(&other), number(&second), "who joins has the new epoch");
                    release(&*ours, &name, &other);
                }
                false => assert_eq!(refused(&*ours, &name, asked).mode, to),
            }
        }
        refused_without_modes(&*theirs, &name);
        lives(&*theirs, &name, &second);
        release(&*ours, &name, &second);
        assert_eq!(holds(&*ours, &name), []);
    }
}

/// Each change is of the record that the one before has returned.
pub fn a_hold_that_changes_its_mode_again_and_again_has_rising_numbers(site: &Site) {
    let (stores, name) = ([site.store(), site.store()], site.name("a"));
    let mut grant = take(&*stores[0], &name, Mode::Exclusive);
    for round in 0..site.rounds.div_ceil(8) {
        let store = &*stores[round % 2];
        let down = convert(store, &name, &grant, Mode::Exclusive, Mode::Update);
        assert!(number(&down) > number(&grant), "a step down");
        grant = convert(store, &name, &down, Mode::Update, Mode::Exclusive);
        assert!(number(&grant) > number(&down), "an upgrade");
    }
    assert_eq!(holds(&*stores[0], &name).len(), 1);
    let reader = convert(&*stores[1], &name, &grant, Mode::Exclusive, Mode::Shared);
    release(&*stores[0], &name, &reader);
    let next = take(&*stores[0], &name, Mode::Exclusive);
    assert!(number(&next) > number(&reader));
}

pub fn an_upgrade_is_refused_while_a_reader_is_there_and_leaves_the_hold_as_it_was(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    let update = take(&*ours, &name, Mode::Update);
    let reader = take_as("reader", &*theirs, &name, Mode::Shared, HELD);
    for _ in 0..2 {
        match change(&*ours, &name, HELD, step(&update.owner_record, Mode::Update, Mode::Exclusive)).unwrap()
        {
            Converted::Held(holder) => {
                assert_eq!((purpose(&holder), holder.mode), ("reader", Mode::Shared));
            }
            other => panic!("{other:?}"),
        }
    }
    lives(&*ours, &name, &update);
    lives(&*theirs, &name, &reader);
    assert_eq!(refused(&*theirs, &name, Mode::Update).mode, Mode::Update, "the hold is as it was");
    release(&*theirs, &name, &reader);
    let writer = convert(&*ours, &name, &update, Mode::Update, Mode::Exclusive);
    assert!(number(&writer) > number(&update));
    // To fewer rights a hold changes beside readers too.
    let update = convert(&*ours, &name, &writer, Mode::Exclusive, Mode::Update);
    let reader = take(&*theirs, &name, Mode::Shared);
    let other = convert(&*ours, &name, &update, Mode::Update, Mode::Shared);
    assert_eq!(number(&other), number(&reader));
    let next = take(&*theirs, &name, Mode::Update);
    for grant in [&reader, &other, &next] {
        release(&*ours, &name, grant);
    }
}

/// Sets a flag when it is dropped, so that other threads end whatever fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

pub fn nobody_gets_the_lock_during_a_conversion(site: &Site) {
    let (store, toggled) = (site.store(), site.name("toggled"));
    let rounds = site.rounds.div_ceil(4);
    let down: Vec<_> = (0..rounds).map(|round| site.name(&format!("down {round}"))).collect();
    let mut held = take(&*store, &toggled, Mode::Exclusive);
    // The lock of the round. That of a round which is over is still held, shared.
    let (current, over) = (AtomicUsize::new(rounds), AtomicBool::new(false));
    thread::scope(|scope| {
        let (down, toggled, current, over) = (&down, &toggled, &current, &over);
        let hammer = |has_modes: bool| {
            let store = site.store();
            scope.spawn(move || {
                let mut intruder = None;
                while intruder.is_none() && !over.load(Ordering::Acquire) {
                    let names = [Some(toggled), down.get(current.load(Ordering::Acquire))];
                    intruder = names.into_iter().flatten().find(|name| {
                        let mode = if *name == toggled { Mode::Update } else { Mode::Exclusive };
                        let answer = match has_modes {
                            true => ask(&*store, name, ModeTerms::new(mode)),
                            false => super::attempt(&*store, name, HELD).unwrap(),
                        };
                        matches!(answer, Acquired::Granted(_))
                    });
                }
                intruder
            })
        };
        let hammers = [hammer(false), hammer(true)];
        let ends = Ends(over);
        for (round, name) in down.iter().enumerate() {
            let update = convert(&*store, toggled, &held, Mode::Exclusive, Mode::Update);
            held = convert(&*store, toggled, &update, Mode::Update, Mode::Exclusive);
            let writer = take(&*store, name, Mode::Exclusive);
            current.store(round, Ordering::Release);
            convert(&*store, name, &writer, Mode::Exclusive, Mode::Shared);
        }
        drop(ends);
        for hammer in hammers {
            assert_eq!(hammer.join().unwrap(), None, "somebody got the lock in between");
        }
    });
    release(&*store, &toggled, &held);
    for name in &down {
        assert_eq!(holds(&*store, name).len(), 1);
    }
}

pub fn conversions_that_are_not_allowed_are_refused(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    for mode in Mode::OF_LOCKS {
        let grant = take(&*store, &name, mode);
        for (from, to) in Mode::OF_LOCKS.into_iter().flat_map(|from| Mode::OF_LOCKS.map(|to| (from, to))) {
            let is_allowed = CONVERSIONS.contains(&(from, to));
            if is_allowed && from == mode {
                continue;
            }
            let answer = change(&*store, &name, HELD, step(&grant.owner_record, from, to));
            if is_allowed {
                // The hold has another mode than the caller believes.
                assert!(matches!(answer, Ok(Converted::NotOurs)), "{mode}: {from} to {to}: {answer:?}");
            } else {
                assert_eq!(code(answer), Code::InvalidArgument, "{from} to {to}");
            }
        }
        let found = holds(&*store, &name);
        assert_eq!(found.iter().map(|hold| hold.holder.mode).collect::<Vec<_>>(), [mode]);
        release(&*store, &name, &grant);
    }
}

pub fn a_record_that_holds_nothing_converts_nothing(site: &Site) {
    let (ours, theirs, name, other) = (site.store(), site.store(), site.name("a"), site.name("b"));
    let stranger = take(&*ours, &other, Mode::Update);
    let released = take(&*ours, &name, Mode::Update);
    release(&*ours, &name, &released);
    let convert = |name: &LockName, owner_record: &OwnerRecord| {
        change(&*theirs, name, HELD, step(owner_record, Mode::Update, Mode::Exclusive))
    };
    for record in [&released.owner_record, &stranger.owner_record] {
        assert!(matches!(convert(&name, record).unwrap(), Converted::NotOurs), "of a free lock");
    }
    let held = take(&*ours, &name, Mode::Update);
    for record in [&released.owner_record, &stranger.owner_record] {
        assert!(matches!(convert(&name, record).unwrap(), Converted::NotOurs), "of another's lock");
    }
    // A store may refuse records that it did not write.
    for foreign in [&b""[..], b"M", &[7; 16], &[0; 64]] {
        let foreign = OwnerRecord::from_bytes(foreign);
        assert!(!matches!(convert(&name, &foreign), Ok(Converted::Granted(_))));
    }
    release(&*ours, &name, &held);
    release(&*ours, &other, &stranger);
    patiently(|ttl| {
        let name = site.name(&format!("{ttl:?}"));
        let ended = take_briefly(&*ours, &name, Mode::Update, ttl)?;
        eventually("the lease ends", || holds(&*theirs, &name).is_empty());
        assert!(matches!(convert(&name, &ended.owner_record).unwrap(), Converted::NotOurs));
        assert_eq!(holds(&*theirs, &name), []);
        Some(())
    });
}

/// Several threads may use one lease.
pub fn a_record_from_before_a_longer_renewal_converts_the_hold(site: &Site) {
    for (from, to) in CONVERSIONS {
        let (store, name) = (site.store(), site.name(&format!("{from}-{to}")));
        let grant = take(&*store, &name, from);
        assert!(store.renew(&name, &grant.owner_record, 2 * HELD, soon()).unwrap().is_some());
        let changed = convert(&*store, &name, &grant, from, to);
        is_void(&*store, &name, &grant.owner_record);
        release(&*store, &name, &changed);
    }
}

pub fn a_converted_hold_lasts_for_its_new_ttl(site: &Site) {
    for (from, to) in CONVERSIONS {
        patiently(|ttl| {
            let (ours, theirs) = (site.store(), site.store());
            let longer = site.name(&format!("{from} {to} longer {ttl:?}"));
            let grant = take_briefly(&*ours, &longer, from, ttl)?;
            let changed = match change(&*ours, &longer, HELD, step(&grant.owner_record, from, to)).unwrap() {
                Converted::Granted(changed) => changed,
                Converted::NotOurs if Moment::now().since(grant.since) >= ttl => return None,
                other => panic!("{from} to {to}: {other:?}"),
            };
            // The lock may stay held for the first TTL, but not less than for the new one.
            let shorter = site.name(&format!("{from} {to} shorter {ttl:?}"));
            let grant = take_briefly(&*ours, &shorter, from, 2 * ttl)?;
            let asked = Moment::now();
            let short = match change(&*ours, &shorter, ttl, step(&grant.owner_record, from, to)).unwrap() {
                Converted::Granted(short) => short,
                Converted::NotOurs if Moment::now().since(grant.since) >= 2 * ttl => return None,
                other => panic!("{from} to {to}: {other:?}"),
            };
            assert!(short.since >= asked);
            ends_within(site, 2 * ttl, "a hold with its new TTL", || holds(&*theirs, &shorter).is_empty());
            assert!(Moment::now() >= asked.after(ttl), "it ended too early");
            is_void(&*ours, &shorter, &short.owner_record);
            assert_eq!(holds(&*theirs, &longer).len(), 1, "it ended with its first TTL");
            refused(&*theirs, &longer, Mode::Exclusive);
            release(&*ours, &longer, &changed);
            Some(())
        });
    }
}

pub fn all_holds_are_listed_and_one_is_broken_alone(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    assert_eq!(holds(&*ours, &name), []);
    let grants = [
        take_as("reader-0", &*ours, &name, Mode::Shared, HELD),
        take_as("reader-1", &*ours, &name, Mode::Shared, 2 * HELD),
        take_as("update", &*theirs, &name, Mode::Update, HELD),
        take_as("reader-3", &*theirs, &name, Mode::Shared, HELD),
    ];
    let mut found = holds(&*theirs, &name);
    found.sort_by_key(|hold| purpose(&hold.holder).to_owned());
    let seen: Vec<_> = found.iter().map(|hold| (purpose(&hold.holder), hold.holder.mode)).collect();
    let expected = [
        ("reader-0", Mode::Shared),
        ("reader-1", Mode::Shared),
        ("reader-3", Mode::Shared),
        ("update", Mode::Update),
    ];
    assert_eq!(seen, expected);
    for hold in &found {
        let ttl = if purpose(&hold.holder) == "reader-1" { 2 * HELD } else { HELD };
        let remaining = hold.holder.remaining.expect("this store must know");
        assert!(remaining <= ttl + site.slack + Duration::from_secs(1) && remaining > ttl / 2, "{hold:?}");
        assert!(hold.epoch.is_none_or(|epoch| epoch.0 == number(&grants[0])), "{hold:?}");
        assert!(hold.fence().is_none() && !hold.holder.is_waiting, "{hold:?}");
    }
    let record = |hold: &LockHold| match &hold.grant {
        GrantRecord::Ours(owner_record) => owner_record.clone(),
        GrantRecord::Stamped(_) => panic!("a record of this library"),
    };
    // A grant and its record, as it was read, have one number, which no other has.
    let listed = |purpose_of: &str| {
        found.iter().find(|hold| purpose(&hold.holder) == purpose_of).map(record).expect("it is listed")
    };
    let purposes_of = ["reader-0", "reader-1", "update", "reader-3"];
    let mut numbers: Vec<_> = Vec::new();
    for (grant, purpose_of) in grants.iter().zip(purposes_of) {
        let number = ours.grant_number(&grant.owner_record);
        assert_eq!(theirs.grant_number(&listed(purpose_of)), number, "{purpose_of}");
        numbers.extend(number);
    }
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "two grants have one number");
    for (at, left) in [(1, &["reader-0", "reader-3", "update"][..]), (2, &["reader-0", "reader-3"])] {
        let broken = theirs.release_broken(&name, &listed(purposes_of[at]), soon()).unwrap();
        assert_eq!(broken, Released::Freed);
        is_void(&*ours, &name, &grants[at].owner_record);
        assert_eq!(purposes(&*ours, &name), left);
        refused(&*ours, &name, Mode::Exclusive);
        let again = theirs.release_broken(&name, &listed(purposes_of[at]), soon()).unwrap();
        assert_eq!(again, Released::NotOurs);
    }
    for at in [0, 3] {
        lives(&*ours, &name, &grants[at]);
        release(&*ours, &name, &grants[at]);
    }
    let writer = take_as("writer", &*ours, &name, Mode::Exclusive, HELD);
    let found = holds(&*theirs, &name);
    assert_eq!((found.len(), purpose(&found[0].holder)), (1, "writer"));
    assert!(found[0].fence().is_none_or(|fence| Some(fence) == writer.fence));
    let broken = theirs.release_broken(&name, &record(&found[0]), soon()).unwrap();
    assert_eq!(broken, Released::Freed);
    is_void(&*ours, &name, &writer.owner_record);
    take(&*ours, &name, Mode::Shared);
}

pub fn a_blocker_is_found_where_an_attempt_is_refused(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    let states: [&[Mode]; 6] = [
        &[],
        &[Mode::Shared],
        &[Mode::Shared, Mode::Shared],
        &[Mode::Update],
        &[Mode::Shared, Mode::Update],
        &[Mode::Exclusive],
    ];
    for (at, held) in states.into_iter().enumerate() {
        let name = site.name(&at.to_string());
        held.iter().for_each(|mode| drop(take(&*ours, &name, *mode)));
        for asked in Mode::OF_LOCKS {
            let blocker = modes(&*theirs).blocker(&name, asked, soon()).unwrap();
            let allowed = held.iter().all(|mode| TOGETHER.contains(&(*mode, asked)));
            assert_eq!(blocker.is_none(), allowed, "{asked} beside {held:?}: {blocker:?}");
            let in_the_way = |mode: Mode| held.contains(&mode) && !TOGETHER.contains(&(mode, asked));
            assert!(blocker.is_none_or(|holder| in_the_way(holder.mode) && !holder.is_waiting));
            match ask(&*theirs, &name, ModeTerms::new(asked)) {
                Acquired::Granted(grant) => {
                    assert!(allowed);
                    release(&*theirs, &name, &grant);
                }
                Acquired::Held(holder) => assert!(!allowed && in_the_way(holder.mode), "{holder:?}"),
            }
        }
    }
}

pub fn of_many_renewals_of_all_modes_each_has_its_own_answer(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    // Even ones are lost: released, or replaced by a conversion.
    let count = if site.rounds >= 1000 { 60 } else { 18 };
    let asked: Vec<_> = (0..count)
        .map(|at| {
            let (name, mode) = (site.name(&at.to_string()), Mode::OF_LOCKS[at % 3]);
            // Another hold is not taken for one that is lost.
            if mode != Mode::Exclusive {
                take(&*theirs, &name, Mode::Shared);
            }
            let grant = take_as("asked", &*ours, &name, mode, HELD);
            match (at % 2, mode) {
                (0, Mode::Update) => drop(convert(&*theirs, &name, &grant, mode, Mode::Shared)),
                (0, _) => release(&*theirs, &name, &grant),
                _ => {}
            }
            (name, grant)
        })
        .collect();
    let renewals: Vec<_> = asked
        .iter()
        .enumerate()
        .map(|(at, (name, grant))| Renewal {
            name,
            owner_record: &grant.owner_record,
            ttl: 3 * HELD,
            alone: at % 5 == 0,
        })
        .collect();
    let mut answers: Vec<_> = asked.iter().map(|_| None).collect();
    ours.renew_many(&renewals, soon(), &mut |at, _, answer| {
        assert!(answers[at].replace(answer).is_none(), "renewal {at} was reported twice");
    });
    for (at, (answer, (name, _))) in answers.into_iter().zip(&asked).enumerate() {
        let answer = answer.unwrap_or_else(|| panic!("renewal {at} was not reported"));
        let renewed = answer.unwrap_or_else(|error| panic!("{at}: {}", error.chain()));
        assert_eq!(renewed.is_some(), at % 2 == 1, "renewal {at} of {}", Mode::OF_LOCKS[at % 3]);
        let found = holds(&*theirs, name);
        let long = found.iter().filter(|hold| hold.holder.remaining.is_some_and(|left| left > 2 * HELD));
        let long: Vec<_> = long.map(|hold| purpose(&hold.holder)).collect();
        assert_eq!(long, vec!["asked"; at % 2], "{at}: another hold was renewed");
        if let Some(owner_record) = renewed {
            assert_eq!(theirs.release(name, &owner_record, soon()).unwrap(), Released::Freed, "{at}");
        }
    }
}

/// What the threads of one case hold, as far as they know. A hold is in it only while the store has granted it.
#[derive(Default)]
struct Table {
    /// The mode of each holder, and its number unless that changes just now.
    held: HashMap<usize, (Mode, Option<u64>)>,
    highest: u64,
    /// How often each mode was granted.
    granted: HashMap<Mode, usize>,
    violations: Vec<String>,
}

impl Table {
    fn is_enough(&self, wanted: usize) -> bool {
        let count = |mode| self.granted.get(&mode).copied().unwrap_or_default();
        !self.violations.is_empty() || Mode::OF_LOCKS.into_iter().all(|mode| count(mode) >= wanted)
    }

    /// Notes that a holder has had this grant at least since now.
    fn granted(&mut self, who: usize, mode: Mode, number: u64) {
        self.held.remove(&who);
        for (other, other_number) in self.held.values() {
            if !TOGETHER.contains(&(mode, *other)) {
                self.violations.push(format!("{mode} was granted beside {other}"));
            } else if other_number.is_some_and(|other| other != number) {
                self.violations.push(format!("{mode} has {number} beside {other_number:?} of {other}"));
            }
        }
        let is_lower = if mode == Mode::Exclusive { number <= self.highest } else { number < self.highest };
        if is_lower {
            self.violations.push(format!("{mode} has {number} after {}", self.highest));
        }
        self.highest = self.highest.max(number);
        self.held.insert(who, (mode, Some(number)));
        *self.granted.entry(mode).or_default() += 1;
    }

    /// Notes that a holder is about to have this mode and any number, or has it already.
    fn is_changing(&mut self, who: usize, mode: Mode) {
        self.held.insert(who, (mode, None));
    }
}

pub fn of_many_who_ask_in_all_modes_those_that_exclude_each_other_never_overlap(site: &Site) {
    const ASKING: usize = 6;
    let (name, table) = (site.name("a"), Mutex::new(Table::default()));
    let (wanted, by) = (site.rounds.div_ceil(10), Deadline::after(LONGEST));
    let hold = Duration::from_millis(1);
    thread::scope(|scope| {
        for who in 0..ASKING {
            let (store, name, table) = (site.store(), &name, &table);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(who as u64);
                while !table.lock().is_enough(wanted) && !by.passed() {
                    let mode = Mode::OF_LOCKS[random.usize(..3)];
                    let Acquired::Granted(mut grant) = ask(&*store, name, ModeTerms::new(mode)) else {
                        sleep(hold * random.u32(1..4));
                        continue;
                    };
                    table.lock().granted(who, mode, number(&grant));
                    let began = Moment::now();
                    sleep(hold * random.u32(..2));
                    let mut holds = mode;
                    for (from, to) in CONVERSIONS {
                        if from != holds || random.bool() {
                            continue;
                        }
                        let before = number(&grant);
                        table.lock().is_changing(who, if to == Mode::Exclusive { from } else { to });
                        let conversion = step(&grant.owner_record, from, to);
                        match change(&*store, name, HELD, conversion) {
                            Ok(Converted::Granted(changed)) => {
                                (grant, holds) = (changed, to);
                                table.lock().granted(who, to, number(&grant));
                            }
                            Ok(Converted::Held(_)) if to == Mode::Exclusive => {
                                table.lock().granted(who, from, before);
                            }
                            other => table.lock().violations.push(format!("{from} to {to}: {other:?}")),
                        }
                        sleep(hold * random.u32(..2));
                    }
                    if random.bool() {
                        let renewed = store.renew(name, &grant.owner_record, LONG, soon()).unwrap();
                        match renewed {
                            Some(owner_record) => grant.owner_record = owner_record,
                            None => table.lock().violations.push(format!("{holds} was lost")),
                        }
                    }
                    table.lock().held.remove(&who);
                    let released = store.release(name, &grant.owner_record, soon()).unwrap();
                    if released != Released::Freed {
                        table.lock().violations.push(format!("{holds} was lost: {released:?}"));
                    }
                    // However slow the store is, the lock is free now and then.
                    sleep((hold + Moment::now().since(began)) * random.u32(..4));
                }
            });
        }
    });
    let table = table.into_inner();
    assert!(table.violations.is_empty(), "{:?}", table.violations);
    assert!(table.is_enough(wanted), "granted {:?} of {wanted} each", table.granted);
    assert_eq!(holds(&*site.store(), &name), []);
}

/// An error other than IN_DOUBT means that the request had no effect and will have none.
pub fn a_call_about_modes_that_is_late_already_leaves_nothing_behind(site: &Site) {
    let (store, identity, late) = (site.store(), process("contract"), Deadline::after(Duration::ZERO));
    let free = |name: &LockName, doubtful: Vec<OwnerRecord>| {
        for owner_record in doubtful {
            store.release(name, &owner_record, soon()).unwrap();
        }
        assert_eq!(holds(&*store, name), []);
        release(&*store, name, &take(&*store, name, Mode::Exclusive));
    };
    for mode in Mode::OF_LOCKS {
        let (name, mut doubtful) = (site.name(mode.name()), Vec::new());
        let attempt = Attempt { name: &name, ttl: LONG, identity: &identity, by: late };
        match modes(&*store).acquire_mode(attempt, ModeTerms::new(mode), &mut doubtful) {
            Ok(Acquired::Granted(grant)) => release(&*store, &name, &grant),
            Ok(Acquired::Held(holder)) => panic!("held by {holder}"),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        free(&name, doubtful);
    }
    for (from, to) in CONVERSIONS {
        let (name, mut doubtful) = (site.name(&format!("{from} {to}")), Vec::new());
        let grant = take(&*store, &name, from);
        let attempt = Attempt { name: &name, ttl: HELD, identity: &identity, by: late };
        match modes(&*store).convert(attempt, step(&grant.owner_record, from, to), &mut doubtful) {
            Ok(Converted::Granted(changed)) => release(&*store, &name, &changed),
            Ok(other) => panic!("{from} to {to}: {other:?}"),
            Err(error) if error.is_in_doubt() => doubtful.push(grant.owner_record),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                let found = holds(&*store, &name);
                assert_eq!(found.iter().map(|hold| hold.holder.mode).collect::<Vec<_>>(), [from]);
                release(&*store, &name, &grant);
            }
        }
        free(&name, doubtful);
    }
}

pub fn locks_of_odd_names_have_holds_of_their_own(site: &Site) {
    let store = site.store();
    let longest = ["x".repeat(1024), "é".repeat(512), format!("{}y", "x".repeat(1023))];
    let ids: Vec<&str> = ODD_IDS.into_iter().chain(longest.iter().map(String::as_str)).collect();
    let names: Vec<_> = ids.iter().map(|id| site.name(id)).collect();
    let mode = |at: usize| Mode::OF_LOCKS[at % 3];
    let grants: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(at, name)| take_as(&format!("holder-{at}"), &*store, name, mode(at), HELD))
        .collect();
    for (at, (name, grant)) in names.iter().zip(&grants).enumerate() {
        assert_eq!(purposes(&*store, name), [format!("holder-{at}")], "{name}");
        refused_without_modes(&*site.store(), name);
        let later = (mode(at) != Mode::Exclusive).then(|| take(&*store, name, Mode::Shared));
        release(&*store, name, grant);
        assert_eq!(holds(&*store, name).len(), usize::from(later.is_some()), "{name}");
    }
}

/// For a store that keeps latches too.
pub fn holds_and_latches_of_one_name_do_not_touch_each_other(site: &Site) {
    let (store, name) = (site.store(), site.name("a"));
    let Some(latches) = store.latches() else { return };
    let latch = LatchName::new(site.client(), "dc1", "a", NamePolicy::Strict).unwrap();
    let readers = [take(&*store, &name, Mode::Shared), take(&*store, &name, Mode::Update)];
    let new = NewLatch { name: &latch, count: 3, roster: &[], ttl: HELD, by: soon() };
    assert!(latches.create_latch(&new).unwrap());
    assert_eq!(holds(&*store, &name).len(), 2);
    readers.iter().for_each(|grant| release(&*store, &name, grant));
    take(&*store, &name, Mode::Exclusive);
    let counts = latches.counts(&[(&latch, Level::Dc)], soon()).unwrap();
    assert_eq!(counts.into_iter().map(|count| count.unwrap()).collect::<Vec<_>>(), [Some(3)]);
}

//! The contract of `dlm::store::ModeStore`: processes that wait exclusively, and turns of the readers.

use std::time::Duration;

use dlm::store::{
    Acquired, Conversion, Converted, Grant, INTENT_MAX, Intent, IntentId, LockName, LockStore, Mode,
    ModeTerms, OwnerRecord, TURN_MAX,
};
use dlm::{Deadline, Holder, Moment};

use super::modes::{
    ask, change, convert, ends_within, holds, modes, number, process, refused, release, step, take,
};
use super::{HELD, Site, soon};
use crate::patience::sleep;

/// A process that waits for a lock exclusively.
struct Waiting<'a> {
    store: &'a dyn LockStore,
    name: &'a LockName,
    id: IntentId,
    purpose: &'static str,
}

impl<'a> Waiting<'a> {
    fn new(store: &'a dyn LockStore, name: &'a LockName, purpose: &'static str) -> Waiting<'a> {
        Waiting { store, name, id: IntentId::draw().unwrap(), purpose }
    }

    /// Reads the lock, as everybody does who asks for it before waiting. A store may give the waits of a lock numbers, and
    /// two processes that have not seen each other may choose the same one.
    fn look(&self) {
        modes(self.store).holds(self.name, soon()).unwrap();
    }

    /// Announces the intent. Returns a moment before which it has not ended.
    fn announce(&self, lasts: Duration) -> Moment {
        let asked = Moment::now();
        let intent = Intent { id: self.id, identity: &process(self.purpose), lasts };
        modes(self.store).announce(self.name, intent, soon()).unwrap();
        asked.after(lasts.min(INTENT_MAX))
    }

    fn withdraw(&self) {
        modes(self.store).withdraw(self.name, self.id, soon()).unwrap();
    }

    /// Asks for a mode while the intent stands, which must refuse it.
    #[track_caller]
    fn refuses(&self, store: &dyn LockStore, terms: ModeTerms<'_>) {
        let mut refusal = None;
        hurriedly(|_| {
            let ends = self.announce(INTENT_MAX);
            match ask(store, self.name, terms) {
                Acquired::Held(holder) => refusal = Some(holder),
                Acquired::Granted(grant) => {
                    assert!(Moment::now() >= ends, "{} was granted in spite of an intent", terms.mode);
                    release(store, self.name, &grant);
                    return None;
                }
            }
            Some(())
        });
        self.is_named(&refusal.unwrap());
    }

    #[track_caller]
    fn is_named(&self, holder: &Holder) {
        let purpose = holder.identity.as_ref().map(|identity| identity.purpose.as_str());
        let seen = (holder.is_waiting, holder.mode, purpose);
        assert_eq!(seen, (true, Mode::Exclusive, Some(self.purpose)), "{holder:?}");
    }
}

/// Runs a case that must be over before an intent ends, with the number of the attempt, and again if the machine was too slow
/// for that. The case returns `None` then.
#[track_caller]
fn hurriedly(mut case: impl FnMut(usize) -> Option<()>) {
    for attempt in 0..40 {
        if case(attempt).is_some() {
            return;
        }
    }
    panic!("an intent ended before a few calls did, 40 times: the store hangs, or ends intents too soon");
}

/// Returns the grant, or `None` if what stood in the way of readers until `ends`, or let them pass, is over by now.
#[track_caller]
fn granted_before(ends: Moment, acquired: Acquired, what: &str) -> Option<Grant> {
    match acquired {
        Acquired::Granted(grant) => Some(grant),
        Acquired::Held(holder) => {
            assert!(Moment::now() >= ends, "{what}: refused because of {holder}");
            None
        }
    }
}

fn reads() -> ModeTerms<'static> {
    ModeTerms::new(Mode::Shared)
}

fn nested_in(owner_record: &OwnerRecord) -> ModeTerms<'_> {
    ModeTerms { nested_in: Some(owner_record), ..reads() }
}

fn in_turn(turn: Duration) -> ModeTerms<'static> {
    ModeTerms { turn: Some(turn), ..reads() }
}

pub fn while_a_process_waits_exclusively_no_reader_is_let_in_and_holders_go_on(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    let (free, held) = (site.name("free"), site.name("held"));
    let mut reader = take(&*ours, &held, Mode::Shared);
    let update = take(&*ours, &held, Mode::Update);
    for name in [&free, &held] {
        let writer = Waiting::new(&*theirs, name, "writer");
        for store in [&*ours, &*theirs] {
            writer.refuses(store, reads());
        }
        if name == &held {
            reader.owner_record =
                theirs.renew(name, &reader.owner_record, 2 * HELD, soon()).unwrap().expect("it is held");
            release(&*ours, name, &update);
        }
        writer.refuses(&*ours, ModeTerms::new(Mode::Update));
        // The intent is no hold.
        assert_eq!(holds(&*ours, name).len(), usize::from(name == &held));
        assert_eq!(ours.holder(name, soon()).unwrap().is_some(), name == &held);
        for mode in [Mode::Shared, Mode::Update] {
            hurriedly(|_| {
                let ends = writer.announce(INTENT_MAX);
                let Some(blocker) = modes(&*ours).blocker(name, mode, soon()).unwrap() else {
                    assert!(Moment::now() >= ends, "no blocker for {mode}");
                    return None;
                };
                writer.is_named(&blocker);
                Some(())
            });
        }
        writer.withdraw();
        release(&*ours, name, &take(&*ours, name, Mode::Update));
    }
    assert_eq!(holds(&*ours, &held).len(), 1);
    release(&*ours, &held, &reader);
}

pub fn an_intent_holds_up_no_writer_and_no_conversion(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    for (id, mine) in [("without", false), ("own", true)] {
        let name = site.name(id);
        let (writer, other) = (Waiting::new(&*theirs, &name, "writer"), Waiting::new(&*ours, &name, "other"));
        writer.announce(INTENT_MAX);
        assert_eq!(modes(&*ours).blocker(&name, Mode::Exclusive, soon()).unwrap(), None);
        let intent = mine.then_some(other.id);
        let Acquired::Granted(grant) =
            ask(&*ours, &name, ModeTerms { intent, ..ModeTerms::new(Mode::Exclusive) })
        else {
            panic!("another process gets the lock exclusively, whoever waits");
        };
        writer.announce(INTENT_MAX);
        let update = convert(&*ours, &name, &grant, Mode::Exclusive, Mode::Update);
        writer.announce(INTENT_MAX);
        let grant = convert(&*ours, &name, &update, Mode::Update, Mode::Exclusive);
        writer.announce(INTENT_MAX);
        let update = convert(&*ours, &name, &grant, Mode::Exclusive, Mode::Update);
        writer.announce(INTENT_MAX);
        let reader = convert(&*ours, &name, &update, Mode::Update, Mode::Shared);
        // It still stands.
        writer.refuses(&*ours, reads());
        release(&*ours, &name, &reader);
    }
    // As a version without modes asks.
    let name = site.name("older");
    let writer = Waiting::new(&*theirs, &name, "writer");
    writer.announce(INTENT_MAX);
    super::take(&*ours, &name, HELD);
    writer.announce(INTENT_MAX);
    assert_eq!(holds(&*theirs, &name).len(), 1, "an intent depends on no holder and ends none");
}

pub fn an_intent_ends_at_its_end_and_lasts_no_longer_than_its_maximum(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    for (id, lasts) in [("short", INTENT_MAX / 10), ("longest", INTENT_MAX), ("too long", HELD)] {
        let name = site.name(id);
        let ends = Waiting::new(&*theirs, &name, "writer").announce(lasts);
        let mut reader = None;
        ends_within(site, lasts.min(INTENT_MAX), "an intent", || match ask(&*ours, &name, reads()) {
            Acquired::Granted(grant) => {
                reader = Some(grant);
                true
            }
            Acquired::Held(holder) => {
                assert!(holder.is_waiting);
                let longest = INTENT_MAX + site.slack + Duration::from_secs(1);
                assert!(holder.remaining.is_none_or(|left| left <= longest), "{holder:?}");
                false
            }
        });
        assert!(Moment::now() >= ends, "an intent of {lasts:?} ended too early");
        release(&*ours, &name, &reader.unwrap());
    }
}

pub fn an_intent_that_is_announced_again_lasts_longer(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    let writer = Waiting::new(&*theirs, &name, "writer");
    writer.announce(INTENT_MAX / 10);
    let mut ends = writer.announce(INTENT_MAX / 2);
    for _ in 0..4 {
        sleep(INTENT_MAX / 20);
        ends = writer.announce(INTENT_MAX / 2);
    }
    let mut readers = Vec::new();
    ends_within(site, INTENT_MAX, "an intent that was announced again", || {
        if let Acquired::Granted(grant) = ask(&*ours, &name, reads()) {
            readers.push(grant);
        }
        !readers.is_empty()
    });
    assert!(Moment::now() >= ends, "an intent ended as if it had been announced once");
}

/// The longer a writer has waited, the longer a reader waits for its turn.
pub fn a_refusal_names_the_writer_that_has_waited_longest_and_for_how_long(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    hurriedly(|attempt| {
        let name = site.name(&attempt.to_string());
        let [first, second] = ["first", "second"].map(|purpose| Waiting::new(&*theirs, &name, purpose));
        first.announce(INTENT_MAX);
        let since = Moment::now();
        sleep(INTENT_MAX / 20);
        second.announce(INTENT_MAX);
        let ends = first.announce(INTENT_MAX).min(second.announce(INTENT_MAX));
        let asked = Moment::now();
        match ask(&*ours, &name, reads()) {
            Acquired::Held(holder) => {
                first.is_named(&holder);
                let waited = holder.waited.expect("it waits");
                // Announcing it again begins no new wait. The store's clock may be another one.
                assert!(waited + INTENT_MAX / 100 >= asked.since(since), "{waited:?}");
                assert!(waited <= Moment::now().since(since) + HELD, "{waited:?}");
                Some(())
            }
            Acquired::Granted(grant) => {
                assert!(Moment::now() >= ends, "granted in spite of two intents");
                release(&*ours, &name, &grant);
                None
            }
        }
    });
}

pub fn an_intent_ends_when_its_own_process_withdraws_it(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    let first = Waiting::new(&*ours, &name, "first");
    let second = Waiting::new(&*theirs, &name, "second");
    // Of a lock without intents.
    first.withdraw();
    hurriedly(|_| {
        let ends = first.announce(INTENT_MAX);
        second.look();
        let ends = ends.min(second.announce(INTENT_MAX));
        first.withdraw();
        first.withdraw();
        match ask(&*ours, &name, reads()) {
            Acquired::Held(holder) => second.is_named(&holder),
            Acquired::Granted(grant) => {
                assert!(Moment::now() >= ends, "a withdrawal ended the intent of another process");
                release(&*ours, &name, &grant);
                return None;
            }
        }
        second.withdraw();
        let reader = take(&*ours, &name, Mode::Shared);
        release(&*ours, &name, &reader);
        Some(())
    });
    // The same lock of another site has none of them.
    second.announce(INTENT_MAX);
    release(&*ours, &site.name("b"), &take(&*ours, &site.name("b"), Mode::Shared));
    second.refuses(&*ours, reads());
}

pub fn an_intent_ends_with_the_grant_that_it_waits_for_and_with_no_other(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    let exclusive = |intent| ModeTerms { intent, ..ModeTerms::new(Mode::Exclusive) };
    for (id, upgrades) in [("acquired", false), ("upgraded", true)] {
        let name = site.name(id);
        let (writer, other) = (Waiting::new(&*ours, &name, "writer"), Waiting::new(&*theirs, &name, "other"));
        // Gets the lock exclusively, ends that by a step down, and returns the hold.
        let serve = |intent: Option<IntentId>, update: Option<Grant>| {
            let granted = match &update {
                None => match ask(&*ours, &name, exclusive(intent)) {
                    Acquired::Granted(grant) => grant,
                    Acquired::Held(holder) => panic!("held by {holder}"),
                },
                Some(update) => {
                    let (from, to) = (Mode::Update, Mode::Exclusive);
                    let conversion = Conversion { owner_record: &update.owner_record, from, to, intent };
                    match change(&*ours, &name, HELD, conversion).unwrap() {
                        Converted::Granted(grant) => grant,
                        answer => panic!("{answer:?}"),
                    }
                }
            };
            convert(&*ours, &name, &granted, Mode::Exclusive, Mode::Shared)
        };
        hurriedly(|_| {
            // Of an earlier attempt that was too slow.
            writer.withdraw();
            // Its own grant. The lock is open to readers at once.
            let update = upgrades.then(|| take(&*ours, &name, Mode::Update));
            writer.announce(INTENT_MAX);
            let held = serve(Some(writer.id), update);
            let reader = take(&*theirs, &name, Mode::Shared);
            for grant in [&held, &reader] {
                release(&*ours, &name, grant);
            }
            // The grant of another one, and one that carries no intent.
            for intent in [Some(other.id), None] {
                let update = upgrades.then(|| take(&*ours, &name, Mode::Update));
                let ends = writer.announce(INTENT_MAX);
                let held = serve(intent, update);
                let answer = ask(&*theirs, &name, reads());
                release(&*ours, &name, &held);
                match answer {
                    Acquired::Held(holder) => writer.is_named(&holder),
                    Acquired::Granted(grant) => {
                        assert!(Moment::now() >= ends, "the grant of another one ended the intent");
                        release(&*theirs, &name, &grant);
                        return None;
                    }
                }
                writer.withdraw();
            }
            Some(())
        });
    }
    // An attempt that is refused does not end it.
    let name = site.name("refused");
    let writer = Waiting::new(&*ours, &name, "writer");
    let reader = take(&*theirs, &name, Mode::Shared);
    let update = take(&*ours, &name, Mode::Update);
    hurriedly(|_| {
        let ends = writer.announce(INTENT_MAX);
        assert!(matches!(ask(&*ours, &name, exclusive(Some(writer.id))), Acquired::Held(_)));
        let conversion = Conversion {
            intent: Some(writer.id),
            ..step(&update.owner_record, Mode::Update, Mode::Exclusive)
        };
        let answer = change(&*ours, &name, HELD, conversion).unwrap();
        assert!(matches!(answer, Converted::Held(_)), "{answer:?}");
        match ask(&*theirs, &name, reads()) {
            Acquired::Held(holder) => writer.is_named(&holder),
            Acquired::Granted(grant) => {
                assert!(Moment::now() >= ends, "a refused attempt ended the intent");
                release(&*theirs, &name, &grant);
                return None;
            }
        }
        Some(())
    });
    release(&*theirs, &name, &reader);
}

/// A reader that waited for a writer which waits for the same reader would wait for ever.
pub fn who_holds_the_lock_already_reads_on_in_spite_of_an_intent(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    let writer = Waiting::new(&*theirs, &name, "writer");
    let released = take(&*ours, &name, Mode::Shared);
    release(&*ours, &name, &released);
    let stranger = take(&*ours, &site.name("b"), Mode::Shared);
    for mode in [Mode::Shared, Mode::Update] {
        let mut outer = take(&*ours, &name, mode);
        writer.announce(INTENT_MAX);
        let Acquired::Granted(inner) = ask(&*ours, &name, nested_in(&outer.owner_record)) else {
            panic!("a process that holds the lock waits for itself");
        };
        assert_eq!(number(&inner), number(&outer));
        outer.owner_record =
            ours.renew(&name, &outer.owner_record, 2 * HELD, soon()).unwrap().expect("it is held");
        writer.announce(INTENT_MAX);
        let Acquired::Granted(third) = ask(&*theirs, &name, nested_in(&outer.owner_record)) else {
            panic!("a renewed hold is one as well");
        };
        // Update is no nested read, and other records hold nothing here.
        if mode == Mode::Shared {
            writer.refuses(&*ours, ModeTerms { mode: Mode::Update, ..nested_in(&outer.owner_record) });
        }
        writer.refuses(&*ours, nested_in(&released.owner_record));
        writer.refuses(&*ours, nested_in(&stranger.owner_record));
        writer.refuses(&*ours, reads());
        // It does not depend on the outer one any more.
        release(&*ours, &name, &outer);
        writer.refuses(&*ours, nested_in(&outer.owner_record));
        for grant in [&inner, &third] {
            release(&*ours, &name, grant);
        }
        writer.withdraw();
    }
    // A writer holds it: this is no matter of intents.
    let exclusive = take(&*ours, &name, Mode::Exclusive);
    assert!(matches!(ask(&*ours, &name, nested_in(&exclusive.owner_record)), Acquired::Held(_)));
}

pub fn a_turn_lets_readers_pass_intents_until_its_end(site: &Site) {
    let (ours, theirs) = (site.store(), site.store());
    for (id, turn) in [("short", TURN_MAX / 2), ("longest", TURN_MAX), ("too long", HELD)] {
        hurriedly(|attempt| {
            let name = site.name(&format!("{id} {attempt}"));
            let writer = Waiting::new(&*theirs, &name, "writer");
            writer.refuses(&*ours, reads());
            let asked = Moment::now();
            let Acquired::Granted(first) = ask(&*ours, &name, in_turn(turn)) else {
                panic!("an intent stood in the way of a turn");
            };
            let ends = asked.after(turn.min(TURN_MAX));
            for mode in [Mode::Shared, Mode::Update] {
                writer.announce(INTENT_MAX);
                assert!(
                    modes(&*theirs).blocker(&name, mode, soon()).unwrap().is_none() || Moment::now() >= ends
                );
                let answer = ask(&*theirs, &name, ModeTerms::new(mode));
                let other = granted_before(ends, answer, "during a turn")?;
                release(&*theirs, &name, &other);
            }
            // Those who come during the turn do not make it longer, also if they would have begun one.
            let prolonged = Moment::now().after(TURN_MAX);
            if let Acquired::Granted(other) = ask(&*theirs, &name, in_turn(TURN_MAX)) {
                release(&*theirs, &name, &other);
            }
            let mut is_slow = Moment::now() >= ends;
            if is_slow {
                return None;
            }
            ends_within(site, turn.min(TURN_MAX), "a turn of readers", || {
                let intent_ends = writer.announce(INTENT_MAX);
                match ask(&*theirs, &name, reads()) {
                    Acquired::Held(holder) => {
                        writer.is_named(&holder);
                        true
                    }
                    Acquired::Granted(grant) => {
                        release(&*theirs, &name, &grant);
                        is_slow = Moment::now() >= intent_ends;
                        is_slow
                    }
                }
            });
            // A turn that became longer ends late on every machine, and in every attempt.
            if is_slow || (turn < TURN_MAX && Moment::now() >= prolonged) {
                return None;
            }
            assert!(Moment::now() >= ends, "a turn of {turn:?} ended too early");
            writer.refuses(&*ours, ModeTerms::new(Mode::Update));
            release(&*ours, &name, &first);
            Some(())
        });
    }
}

pub fn a_turn_lets_nobody_in_beside_a_writer(site: &Site) {
    let (ours, theirs, name) = (site.store(), site.store(), site.name("a"));
    let held = take(&*ours, &name, Mode::Exclusive);
    let writer = Waiting::new(&*theirs, &name, "writer");
    for mode in [Mode::Shared, Mode::Update] {
        match ask(&*theirs, &name, ModeTerms { mode, ..in_turn(TURN_MAX) }) {
            Acquired::Held(holder) => assert!(holder.mode == Mode::Exclusive && !holder.is_waiting),
            Acquired::Granted(_) => panic!("{mode} was granted beside a writer, because of its turn"),
        }
    }
    release(&*ours, &name, &held);
    // What was refused has begun no turn.
    writer.refuses(&*theirs, reads());
    let update = match ask(&*ours, &name, ModeTerms { mode: Mode::Update, ..in_turn(TURN_MAX) }) {
        Acquired::Granted(grant) => grant,
        Acquired::Held(holder) => panic!("an intent stood in the way of a turn: {holder}"),
    };
    let second = ModeTerms { mode: Mode::Update, ..in_turn(TURN_MAX) };
    assert!(matches!(ask(&*theirs, &name, second), Acquired::Held(holder) if holder.mode == Mode::Update));
    // A writer that comes during the turn excludes readers as ever.
    release(&*ours, &name, &update);
    let held = super::take(&*ours, &name, HELD);
    assert_eq!(refused(&*theirs, &name, Mode::Shared).mode, Mode::Exclusive);
    assert!(matches!(ask(&*theirs, &name, in_turn(TURN_MAX)), Acquired::Held(_)));
    release(&*ours, &name, &held);
}

/// Two processes read one lock each and want to read the other one, and writers wait for both. Without turns they would
/// stand for ever.
pub fn with_turns_readers_and_writers_that_wait_crosswise_get_on(site: &Site) {
    let (ours, theirs, writers) = (site.store(), site.store(), site.store());
    let (one, two) = (site.name("one"), site.name("two"));
    let (first, second) = (take(&*ours, &one, Mode::Shared), take(&*theirs, &two, Mode::Shared));
    let waiting = [Waiting::new(&*writers, &one, "writer"), Waiting::new(&*writers, &two, "writer")];
    waiting[1].refuses(&*ours, reads());
    waiting[0].refuses(&*theirs, reads());
    for writer in &waiting {
        writer.announce(INTENT_MAX);
    }
    let mut got = Vec::new();
    for (store, name) in [(&ours, &two), (&theirs, &one)] {
        match ask(&**store, name, in_turn(TURN_MAX)) {
            Acquired::Granted(grant) => got.push(grant),
            Acquired::Held(holder) => panic!("{name}: {holder} stood in the way of a turn"),
        }
    }
    release(&*ours, &one, &first);
    release(&*theirs, &one, &got[1]);
    release(&*theirs, &two, &second);
    release(&*ours, &two, &got[0]);
    // And then the writers do, whosever turn it is.
    for writer in &waiting {
        let terms = ModeTerms { intent: Some(writer.id), ..ModeTerms::new(Mode::Exclusive) };
        assert!(matches!(ask(&*writers, writer.name, terms), Acquired::Granted(_)));
    }
}

/// The calls may be carried out or refused.
pub fn an_intent_that_is_late_already_does_no_harm(site: &Site) {
    let (store, name, late) = (site.store(), site.name("a"), Deadline::after(Duration::ZERO));
    let writer = Waiting::new(&*store, &name, "writer");
    let intent = Intent { id: writer.id, identity: &process("writer"), lasts: INTENT_MAX };
    for answer in
        [modes(&*store).announce(&name, intent, late), modes(&*store).withdraw(&name, writer.id, late)]
    {
        assert!(answer.as_ref().err().is_none_or(dlm::Error::is_retryable), "{answer:?}");
    }
    writer.withdraw();
    release(&*store, &name, &take(&*store, &name, Mode::Exclusive));
    ends_within(site, INTENT_MAX, "an intent that came late", || match ask(&*store, &name, reads()) {
        Acquired::Granted(grant) => {
            release(&*store, &name, &grant);
            true
        }
        Acquired::Held(_) => false,
    });
}

//! Tests of the queues: single steps, and worlds of many processes whose datagrams are lost, doubled and late.

use super::super::answering::{CHALLENGES_MAX, KNOWN_LASTS, KNOWN_MAX};
use super::super::datagram::ENTRIES_MAX;
use super::super::lock_queue::{
    ANSWER, ENTRY_LASTS, HOPS_MAX, KEYS_MAX, READS_MAX, REMEMBERED, RENEW, SENDS_MAX,
};
use super::*;
use crate::names::lock_name::{Level, NamePolicy};

pub(super) const MS: Duration = Duration::from_millis(1);
const RETRY: Duration = Duration::from_secs(1);
pub(super) const NOBODY: LocalQueueAtRelease =
    LocalQueueAtRelease { front: None, since: None, yield_until: None };

pub(super) fn name() -> LockName {
    LockName::new(Level::Xdc, "tests", None, "queue", NamePolicy::Strict).unwrap()
}

pub(super) fn at(ms: u64) -> Moment {
    Moment::from_nanos(1_000_000_000_000).after(MS * u32::try_from(ms).unwrap())
}

fn writer(at: Moment) -> Arrival {
    Arrival { at, mode: Mode::Exclusive }
}

pub(super) fn endpoint(process: u64) -> NoticeEndpoint {
    NoticeEndpoint::Local(process)
}

pub(super) fn queues(process: u64) -> LockQueues {
    LockQueues::new(endpoint(process), || fastrand::u64(..))
}

pub(super) fn sends(queues: &mut LockQueues) -> Vec<(NoticeEndpoint, Datagram)> {
    let send = |effect| if let Effect::Send(to, datagram) = effect { Some((to, datagram)) } else { None };
    queues.effects().into_iter().filter_map(send).collect()
}

/// LockQueues of process 0, which holds the lock with key 7, and of waiters that have registered in this order.
fn held_and_wanted(waiters: u64) -> (LockQueues, Vec<LockQueues>) {
    let mut holder = queues(0);
    holder.granted(&name(), 7, Mode::Exclusive, at(0));
    let waiting = (1..=waiters).map(|number| {
        let mut waiter = queues(number);
        let grant = GrantEndpoint { endpoint: endpoint(0), grant: 7 };
        waiter.refused(&name(), Some(grant), false, writer(at(number)), at(number));
        let sent = sends(&mut waiter);
        let [(to, register)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(*to, endpoint(0));
        assert!(holder.received(endpoint(number), register.clone(), at(number)));
        let acknowledged = sends(&mut holder);
        assert!(matches!(acknowledged[..], [(to, Datagram::Registered { .. })] if to == endpoint(number)));
        assert!(waiter.received(endpoint(0), acknowledged[0].1.clone(), at(number)));
        assert_eq!(waiter.effects(), [Effect::Acknowledged(name())]);
        waiter
    });
    let waiting = waiting.collect();
    (holder, waiting)
}

/// Releases the lock, and returns what the first waiter is told.
fn told(holder: &mut LockQueues, now: Moment) -> (NoticeEndpoint, Datagram) {
    assert_eq!(holder.released(&name(), 7, NOBODY, now), NextTurn::Theirs);
    let mut sent = sends(holder);
    assert_eq!(sent.len(), 1, "one datagram, however many wait: {sent:?}");
    sent.remove(0)
}

pub(super) fn key_of(ask: &Datagram) -> u64 {
    let Datagram::Ask { key, .. } = ask else { panic!("{ask:?}") };
    *key
}

#[test]
fn the_first_is_told_with_the_rest_of_the_queue_and_asks_once() {
    let (mut holder, mut waiters) = held_and_wanted(3);
    let (to, ask) = told(&mut holder, at(100));
    assert_eq!(to, endpoint(1));
    let first = &mut waiters[0];
    assert!(first.received(endpoint(0), ask.clone(), at(100)));
    let effects = first.effects();
    let received = Effect::Send(endpoint(0), Datagram::Received { key: key_of(&ask) });
    assert_eq!(effects, [Effect::Ask(name(), Duration::ZERO), received]);
    assert_eq!(first.sizes()[1], 2, "the others wait behind it");
    // The nonce is used up: a second copy is refused, and makes nobody ask.
    assert!(!first.received(endpoint(0), ask.clone(), at(101)));
    assert_eq!(sends(first), [(endpoint(0), Datagram::Declined { key: key_of(&ask) })]);
    assert!(holder.received(endpoint(1), Datagram::Received { key: key_of(&ask) }, at(101)));
    holder.tick(at(1000));
    assert_eq!(sends(&mut holder), [], "it has received it");
    first.granted(&name(), 8, Mode::Exclusive, at(102));
    assert_eq!(first.released(&name(), 8, NOBODY, at(103)), NextTurn::Theirs);
    assert!(matches!(sends(first)[..], [(to, Datagram::Ask { .. })] if to == endpoint(2)));
}

#[test]
fn the_next_is_told_if_the_first_is_silent_or_does_not_want_the_lock() {
    for declines in [false, true] {
        let (mut holder, _) = held_and_wanted(3);
        let (_, ask) = told(&mut holder, at(100));
        let now = if declines { at(101) } else { at(100).after(ANSWER) };
        match declines {
            true => assert!(holder.received(endpoint(1), Datagram::Declined { key: key_of(&ask) }, now)),
            false => {
                holder.tick(at(100).after(ANSWER - MS));
                assert_eq!(sends(&mut holder), [], "it has time to answer");
                assert_eq!(holder.next(), Some(now));
                holder.tick(now);
            }
        }
        let sent = sends(&mut holder);
        let [(to, Datagram::Ask { entries, .. })] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((*to, entries.len()), (endpoint(2), 1));
        // A late answer of the first changes nothing.
        assert!(!holder.received(endpoint(1), Datagram::Received { key: key_of(&ask) }, now));
    }
}

#[test]
fn a_local_waiter_that_came_first_has_its_turn_first_and_one_that_came_last_waits_in_the_queue() {
    let (mut holder, _) = held_and_wanted(2);
    let front = |ms| LocalQueueAtRelease { front: Some(writer(at(ms))), ..NOBODY };
    assert_eq!(holder.released(&name(), 7, front(0), at(100)), NextTurn::Ours);
    assert_eq!(sends(&mut holder), []);
    holder.granted(&name(), 8, Mode::Exclusive, at(100));
    assert_eq!(holder.released(&name(), 8, front(50), at(101)), NextTurn::Theirs);
    let sent = sends(&mut holder);
    let [(to, Datagram::Ask { entries, .. })] = &sent[..] else { panic!("{sent:?}") };
    let order: Vec<_> = entries.iter().map(|entry| entry.endpoint).collect();
    assert_eq!((*to, order), (endpoint(1), vec![endpoint(2), endpoint(0)]));
}

#[test]
fn a_waiter_that_comes_after_the_release_is_told_or_sent_on() {
    let (mut holder, _) = held_and_wanted(1);
    let (_, ask) = told(&mut holder, at(100));
    let late = |nonce| Datagram::Register {
        key: 7,
        nonce,
        waited: MS,
        mode: Mode::Exclusive,
        was_told: false,
        entries: Vec::new(),
    };
    assert!(holder.received(endpoint(5), late(1), at(101)));
    let moved = Datagram::Moved { nonce: 1, to: endpoint(1), key: key_of(&ask) };
    assert_eq!(sends(&mut holder), [(endpoint(5), moved)]);

    let mut alone = queues(0);
    alone.granted(&name(), 7, Mode::Exclusive, at(0));
    assert_eq!(alone.released(&name(), 7, NOBODY, at(1)), NextTurn::Ours);
    assert!(alone.received(endpoint(5), late(1), at(2)));
    assert!(matches!(sends(&mut alone)[..], [(to, Datagram::Ask { nonce: 1, .. })] if to == endpoint(5)));
    assert!(!alone.received(endpoint(5), late(1), at(2).after(REMEMBERED * 2)), "long after");
    assert_eq!(sends(&mut alone), [(endpoint(5), Datagram::NotHere { nonce: 1 })]);
}

#[test]
fn a_grant_that_is_over_without_a_release_tells_nobody() {
    let (mut holder, _) = held_and_wanted(2);
    holder.ended(&name(), 8, at(10));
    assert_eq!(holder.sizes()[1], 2, "another grant");
    holder.ended(&name(), 7, at(10));
    assert_eq!(holder.released(&name(), 7, NOBODY, at(11)), NextTurn::Ours);
    assert_eq!((holder.effects(), holder.sizes()[1]), (vec![], 0));
    // The record may still be there, and others may register by it.
    let register = Datagram::Register {
        key: 7,
        nonce: 1,
        waited: MS,
        mode: Mode::Exclusive,
        was_told: false,
        entries: Vec::new(),
    };
    assert!(!holder.received(endpoint(9), register, at(12)));
    assert_eq!(sends(&mut holder), [(endpoint(9), Datagram::NotHere { nonce: 1 })]);
}

#[test]
fn a_waiter_that_is_told_that_the_lock_is_not_here_looks_a_few_times_and_then_polls() {
    let mut waiter = queues(1);
    let mut looks = 0;
    for round in 0..20 {
        let grant = GrantEndpoint { endpoint: endpoint(0), grant: 7 };
        waiter.refused(&name(), Some(grant), false, writer(at(0)), at(round));
        let sent = sends(&mut waiter);
        let Some((_, Datagram::Register { nonce, .. })) = sent.first() else { continue };
        let not_here = Datagram::NotHere { nonce: *nonce };
        assert!(!waiter.received(endpoint(3), not_here.clone(), at(round)), "another process");
        assert!(waiter.received(endpoint(0), not_here, at(round)));
        looks += waiter.effects().into_iter().filter(|it| *it == Effect::Read(name())).count();
    }
    assert_eq!(looks, READS_MAX as usize);
}

#[test]
fn a_waiter_that_is_told_in_vain_again_and_again_only_polls() {
    let mut waiter = queues(1);
    let grant = GrantEndpoint { endpoint: endpoint(0), grant: 7 };
    let mut told = 0;
    for round in 0..20 {
        waiter.refused(&name(), Some(grant), false, writer(at(0)), at(round));
        let sent = sends(&mut waiter);
        let Some((_, Datagram::Register { nonce, .. })) = sent.first() else { break };
        let ask = Datagram::Ask { nonce: *nonce, key: round, age: MS, entries: Vec::new() };
        assert!(waiter.received(endpoint(0), ask, at(round)));
        told += waiter.effects().into_iter().filter(|it| matches!(it, Effect::Ask(..))).count();
    }
    assert_eq!(told, READS_MAX as usize + 1);
}

#[test]
fn a_waiter_is_sent_on_a_bounded_number_of_times() {
    let (_, mut waiters) = held_and_wanted(1);
    let waiter = &mut waiters[0];
    let nonce = waiter.nonces.keys().copied().next().unwrap();
    let mut hops = 0;
    for hop in 0..50 {
        let moved = Datagram::Moved { nonce, to: endpoint(hop + 1 + u64::from(hop > 0)), key: hop };
        let from = waiter.queues.values().next().unwrap().with();
        let Some((from, _)) = from else { break };
        waiter.received(from, moved, at(10));
        hops += sends(waiter).len();
    }
    assert!(hops <= usize::from(HOPS_MAX), "{hops}");
}

#[test]
fn at_the_end_of_the_quantum_all_pause_and_then_the_first_is_told() {
    let (mut holder, mut waiters) = held_and_wanted(2);
    let queue = LocalQueueAtRelease { front: None, since: Some(at(0)), yield_until: Some(at(1300)) };
    assert_eq!(holder.released(&name(), 7, queue, at(100)), NextTurn::Yield);
    let sent = sends(&mut holder);
    assert_eq!(sent.len(), 2);
    for ((to, pause), waiter) in sent.into_iter().zip(&mut waiters) {
        assert!(matches!(pause, Datagram::Pause { pause, .. } if pause == MS * 1200));
        assert_eq!(to, waiter.own);
        assert!(waiter.received(endpoint(0), pause, at(100)));
        assert_eq!(waiter.effects(), [Effect::Pause(name(), at(1300))]);
    }
    holder.tick(at(1299));
    assert_eq!(sends(&mut holder), []);
    holder.tick(at(1300));
    let sent = sends(&mut holder);
    assert!(matches!(&sent[..], [(to, Datagram::Ask { age, .. })] if *to == endpoint(1) && age.is_zero()));
}

#[test]
fn a_refused_process_gives_the_queue_to_the_one_that_was_faster() {
    let (mut holder, mut waiters) = held_and_wanted(3);
    let (_, ask) = told(&mut holder, at(100));
    let first = &mut waiters[0];
    first.received(endpoint(0), ask, at(100));
    first.effects();
    let faster = GrantEndpoint { endpoint: endpoint(9), grant: 99 };
    first.refused(&name(), Some(faster), false, writer(at(1)), at(101));
    let sent = sends(first);
    let [(to, Datagram::Register { key: 99, entries, .. })] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((*to, entries.len()), (endpoint(9), 2));
    let mut winner = queues(9);
    winner.granted(&name(), 99, Mode::Exclusive, at(100));
    assert!(winner.received(endpoint(1), sent[0].1.clone(), at(101)));
    assert_eq!(winner.sizes()[1], 3);
}

#[test]
fn a_process_that_cannot_ask_or_has_left_tells_the_next() {
    for left in [false, true] {
        let (mut holder, mut waiters) = held_and_wanted(2);
        let (_, ask) = told(&mut holder, at(100));
        let first = &mut waiters[0];
        first.received(endpoint(0), ask, at(100));
        first.effects();
        if left {
            first.left(&name(), at(101));
        } else {
            first.failed(&name(), at(101));
        }
        assert!(matches!(sends(first)[..], [(to, Datagram::Ask { .. })] if to == endpoint(2)));
    }
}

#[test]
fn a_register_is_repeated_until_it_is_answered_and_not_for_ever() {
    let mut waiter = queues(1);
    let grant = GrantEndpoint { endpoint: endpoint(0), grant: 7 };
    waiter.refused(&name(), Some(grant), false, writer(at(0)), at(0));
    let mut sent = sends(&mut waiter).len();
    while let Some(next) = waiter.next() {
        waiter.tick(next);
        sent += sends(&mut waiter).len();
        assert!(sent < 10);
    }
    assert_eq!(sent, usize::from(SENDS_MAX));
}

#[test]
fn a_holder_that_never_answers_is_asked_once_more_at_each_look_for_ever() {
    let mut waiter = queues(1);
    let grant = GrantEndpoint { endpoint: endpoint(0), grant: 7 };
    for look in 0..1000 {
        waiter.refused(&name(), Some(grant), false, writer(at(0)), at(look * 1000));
        assert_eq!(sends(&mut waiter).len(), 1);
    }
}

/// The age comes with a datagram. An age beyond the quantum makes its receiver leave the lock free for a while.
#[test]
fn an_age_of_any_length_makes_a_process_yield_no_more_than_once_in_a_quantum() {
    let mut waiter = queues(1);
    let ages: Vec<_> = [0, 5_000, 10_000]
        .into_iter()
        .map(|ms| {
            let grant = GrantEndpoint { endpoint: endpoint(0), grant: 7 };
            waiter.refused(&name(), Some(grant), false, writer(at(ms)), at(ms));
            let sent = sends(&mut waiter);
            let [(_, Datagram::Register { nonce, .. })] = sent[..] else { panic!("{sent:?}") };
            let age = Duration::from_millis(u32::MAX.into());
            let ask = Datagram::Ask { nonce, key: ms + 1, age, entries: Vec::new() };
            assert!(waiter.received(endpoint(0), ask, at(ms + 1)));
            let effects = waiter.effects();
            let [Effect::Ask(_, age), Effect::Send(..)] = effects[..] else { panic!("{effects:?}") };
            waiter.granted(&name(), ms + 2, Mode::Exclusive, at(ms + 2));
            let yields = age > RETRY * 10;
            let yield_until = yields.then(|| at(ms + 1000));
            waiter.released(&name(), ms + 2, LocalQueueAtRelease { yield_until, ..NOBODY }, at(ms + 3));
            waiter.effects();
            age
        })
        .collect();
    // It had yielded until 1,000.
    assert!(ages[0] > RETRY * 10 && ages[1..] == [MS * 4001, MS * 9001], "{ages:?}");
}

#[test]
fn datagrams_that_quote_nothing_change_nothing_and_get_few_replies() {
    let (mut holder, _) = held_and_wanted(3);
    let sizes = holder.sizes();
    let mut replies = 0;
    for number in 0..1_000_000_u64 {
        let (key, nonce) = (fastrand::u64(..), fastrand::u64(..));
        let datagram = match number % 8 {
            0 => Datagram::Register {
                key,
                nonce,
                waited: MS,
                mode: Mode::Exclusive,
                was_told: false,
                entries: Vec::new(),
            },
            1 => Datagram::Registered { nonce },
            2 => Datagram::Moved { nonce, to: endpoint(3), key },
            3 => Datagram::NotHere { nonce },
            4 => Datagram::Ask { nonce, key, age: MS, entries: Vec::new() },
            5 => Datagram::Received { key },
            6 => Datagram::Declined { key },
            _ => Datagram::Pause { nonce, pause: RETRY },
        };
        assert!(!holder.received(endpoint(number % 100), datagram, at(10)));
        let effects = holder.effects();
        assert!(effects.iter().all(|it| matches!(it, Effect::Send(..))), "{effects:?}");
        replies += effects.len();
    }
    assert_eq!((holder.sizes(), replies), (sizes, REPLIES_MAX as usize));
}

/// As another waiter could send, which has read the record and knows the nonces of others.
#[test]
fn what_the_holder_tells_is_taken_from_the_holder_only() {
    let (mut holder, mut waiters) = held_and_wanted(1);
    let Datagram::Ask { nonce, .. } = told(&mut holder, at(5)).1 else { panic!("it is told") };
    let waiter = &mut waiters[0];
    for forged in
        [Datagram::Registered { nonce }, Datagram::NotHere { nonce }, Datagram::Pause { nonce, pause: RETRY }]
    {
        assert!(!waiter.received(endpoint(2), forged.clone(), at(5)), "{forged:?}");
        assert_eq!(waiter.effects(), []);
        assert!(waiter.received(endpoint(0), forged, at(5)));
        waiter.effects();
        waiter.refused(
            &name(),
            Some(GrantEndpoint { endpoint: endpoint(0), grant: 7 }),
            false,
            writer(at(1)),
            at(5),
        );
        waiter.effects();
    }
}

/// Over UDP it answers a challenge first, and by then the queue has gone on.
#[test]
fn a_waiter_follows_the_queue_with_which_it_was_sent_along() {
    let (_, mut waiters) = held_and_wanted(1);
    let waiter = &mut waiters[0];
    let nonce = waiter.nonces.keys().copied().next().unwrap();
    let moved = |nonce| Datagram::Moved { nonce, to: endpoint(3), key: 1 };
    assert!(!waiter.received(endpoint(2), moved(nonce ^ 1), at(5)));
    assert_eq!(waiter.effects(), []);
    assert!(waiter.received(endpoint(2), moved(nonce), at(5)));
    let sent = sends(waiter);
    assert!(matches!(sent[..], [(to, Datagram::Register { key: 1, .. })] if to == endpoint(3)), "{sent:?}");
}

#[test]
fn queues_and_entries_are_bounded() {
    let mut queues = queues(0);
    for number in 0..10_000_u64 {
        let id = LockName::new(Level::Xdc, "tests", None, &number.to_string(), NamePolicy::Strict).unwrap();
        queues.granted(&id, number + 1, Mode::Exclusive, at(0));
        queues.released(&id, number + 1, NOBODY, at(0));
        queues.effects();
    }
    assert!(queues.sizes()[0] <= FREE_MAX + 1, "{:?}", queues.sizes());
    assert!(queues.sizes()[2] <= (FREE_MAX + 1) * KEYS_MAX);
    queues.granted(&name(), 7, Mode::Exclusive, at(0));
    for number in 1..200 {
        let register = Datagram::Register {
            key: 7,
            nonce: number,
            waited: MS,
            mode: Mode::Exclusive,
            was_told: false,
            entries: Vec::new(),
        };
        queues.received(endpoint(number), register, at(0));
    }
    assert_eq!(queues.sizes()[1], ENTRIES_MAX);
    // One process has one entry, whatever it sends.
    for nonce in 1..200 {
        let register = Datagram::Register {
            key: 7,
            nonce,
            waited: MS,
            mode: Mode::Exclusive,
            was_told: false,
            entries: Vec::new(),
        };
        queues.received(endpoint(1), register, at(0));
    }
    assert_eq!(queues.sizes()[1], ENTRIES_MAX);
}

// ---- Entries of a queue --------------------------------------------------------------------------

fn udp(port: u16) -> NoticeEndpoint {
    NoticeEndpoint::Udp(([127, 0, 0, 1], port).into())
}

fn register(nonce: u64, entries: &[SentEntry]) -> Datagram {
    Datagram::Register {
        key: 7,
        nonce,
        waited: MS,
        mode: Mode::Exclusive,
        was_told: false,
        entries: entries.to_vec(),
    }
}

/// LockQueues of a process at a UDP address, which holds the lock with key 7.
fn held_at_udp() -> LockQueues {
    let mut holder = LockQueues::new(udp(1), || fastrand::u64(1..));
    holder.granted(&name(), 7, Mode::Exclusive, at(0));
    holder
}

/// Returns the number of the only challenge, and to whom it goes.
#[track_caller]
fn challenge_in(sent: &[(NoticeEndpoint, Datagram)]) -> (NoticeEndpoint, u64) {
    let [(to, Datagram::Challenge { nonce })] = sent else { panic!("{sent:?}") };
    (*to, *nonce)
}

#[test]
fn a_process_whose_last_waiter_has_left_says_so_and_is_in_no_queue_any_more() {
    let (mut holder, mut waiters) = held_and_wanted(3);
    waiters[0].left(&name(), at(10));
    let sent = sends(&mut waiters[0]);
    let [(to, leave @ Datagram::Leave { key: 7, nonce })] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(*to, endpoint(0));
    // Of another process, with other numbers, or for a lock that is not here.
    for (from, forged) in [
        (endpoint(2), leave.clone()),
        (endpoint(1), Datagram::Leave { key: 7, nonce: nonce ^ 1 }),
        (endpoint(1), Datagram::Leave { key: 8, nonce: *nonce }),
    ] {
        holder.received(from, forged, at(11));
        assert_eq!(holder.sizes()[1], 3);
    }
    assert!(holder.received(endpoint(1), leave.clone(), at(11)));
    assert_eq!(holder.sizes()[1], 2);
    let (to, ask) = told(&mut holder, at(100));
    let Datagram::Ask { entries, .. } = ask else { panic!() };
    assert_eq!((to, entries.len()), (endpoint(2), 1));
    // While the next is being told, the rest is still here.
    waiters[2].left(&name(), at(101));
    let leave = sends(&mut waiters[2]).remove(0).1;
    assert!(holder.received(endpoint(3), leave, at(101)));
    holder.tick(at(100).after(ANSWER));
    assert_eq!(sends(&mut holder), [], "nobody is left");
    // A process that got the lock, or never registered, has nothing to take back.
    waiters[1].granted(&name(), 8, Mode::Exclusive, at(102));
    waiters[1].left(&name(), at(102));
    assert_eq!(sends(&mut waiters[1]), []);
}

#[test]
fn an_entry_ends_by_itself_unless_its_process_registers_again() {
    let (mut holder, mut waiters) = held_and_wanted(2);
    let mut now = at(0);
    while now < at(0).after(ENTRY_LASTS + RENEW) {
        now = now.after(MS * 100);
        waiters[1].tick(now);
        for (_, register) in sends(&mut waiters[1]) {
            assert!(holder.received(endpoint(2), register, now));
        }
        holder.tick(now);
        for (to, registered) in sends(&mut holder) {
            assert_eq!(to, endpoint(2));
            waiters[1].received(endpoint(0), registered, now);
        }
        assert!(holder.sizes()[1] >= 1, "it renews in time");
    }
    assert_eq!((holder.sizes()[1], waiters[1].sizes()[3]), (1, 1));
    let (to, ask) = told(&mut holder, now);
    assert_eq!(to, endpoint(2));
    assert!(waiters[1].received(endpoint(0), ask, now), "it knows the number");
}

#[test]
fn a_local_process_that_has_ended_is_passed_over_at_once_in_all_queues() {
    let (mut holder, _) = held_and_wanted(3);
    let other = LockName::new(Level::Xdc, "tests", None, "other", NamePolicy::Strict).unwrap();
    holder.granted(&other, 8, Mode::Exclusive, at(10));
    let register = Datagram::Register {
        key: 8,
        nonce: 1,
        waited: MS,
        mode: Mode::Exclusive,
        was_told: false,
        entries: Vec::new(),
    };
    assert!(holder.received(endpoint(1), register, at(10)));
    holder.effects();
    let (to, _) = told(&mut holder, at(100));
    assert_eq!(to, endpoint(1));
    holder.gone(endpoint(1), at(100));
    assert!(matches!(sends(&mut holder)[..], [(to, Datagram::Ask { .. })] if to == endpoint(2)));
    assert_eq!(holder.sizes()[1], 0);
}

/// As with all that a record of the store says.
#[test]
fn whoever_can_read_a_record_registers_no_address_that_does_not_answer() {
    let mut holder = held_at_udp();
    let entry = |port| SentEntry {
        endpoint: udp(port),
        nonce: port.into(),
        waited: Duration::from_secs(9),
        mode: Mode::Exclusive,
        was_told: false,
    };
    let foreign: Vec<_> = (100..140).map(entry).collect();
    let hostile = register(3, &foreign);
    assert!(holder.received(udp(99), hostile.clone(), at(1)));
    let sent = sends(&mut holder);
    let to: Vec<_> = sent.iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [udp(99)].into_iter().chain((100..140).map(udp)).collect::<Vec<_>>());
    assert!(sent.iter().all(|(_, it)| matches!(it, Datagram::Challenge { .. })), "{sent:?}");
    // The answers of others, and wrong ones.
    for (_, challenge) in &sent {
        let &Datagram::Challenge { nonce } = challenge else { panic!() };
        assert!(!holder.received(udp(99), Datagram::NotHere { nonce: nonce ^ 1 }, at(2)));
        if *challenge != sent[0].1 {
            assert!(!holder.received(udp(99), Datagram::NotHere { nonce }, at(2)));
        }
    }
    assert_eq!((holder.sizes()[1], sends(&mut holder)), (0, vec![]));
    // A flood of them.
    let mut sent = 0;
    for number in 0..1000_u64 {
        let foreign: Vec<_> = (1000 + number as u16 * 40..).take(40).map(entry).collect();
        holder.received(udp(99), register(number, &foreign), at(3));
        sent += sends(&mut holder).len();
    }
    assert!(sent <= CHALLENGES_MAX as usize, "{sent}");
    assert!(holder.answering.challenged() <= KNOWN_MAX);
    assert_eq!(holder.released(&name(), 7, NOBODY, at(2000)), NextTurn::Ours);
    assert_eq!(sends(&mut holder), [], "nobody is told");
}

#[test]
fn a_process_that_answers_a_challenge_is_registered_and_gets_no_other_for_a_while() {
    let mut holder = held_at_udp();
    let mut waiter = LockQueues::new(udp(2), || fastrand::u64(1..));
    let grant = GrantEndpoint { endpoint: udp(1), grant: 7 };
    let mut exchanges = 0;
    let mut talk = |waiter: &mut LockQueues, holder: &mut LockQueues, now| {
        let mut under_way: Vec<_> = sends(waiter);
        for _ in 0..6 {
            let to_waiter: Vec<_> = under_way
                .drain(..)
                .flat_map(|(_, it)| {
                    // Through the bytes, as on a network.
                    holder.received(udp(2), Datagram::decode(&it.encode()).unwrap(), now);
                    sends(holder)
                })
                .collect();
            exchanges += to_waiter.len();
            for (_, it) in to_waiter {
                waiter.received(udp(1), Datagram::decode(&it.encode()).unwrap(), now);
                under_way.extend(sends(waiter));
            }
        }
        std::mem::take(&mut exchanges)
    };
    waiter.refused(&name(), Some(grant), false, writer(at(1)), at(1));
    assert_eq!(talk(&mut waiter, &mut holder, at(1)), 2, "a challenge, and registered");
    assert_eq!(holder.sizes()[1], 1);
    let renewed = at(1).after(RENEW);
    waiter.tick(renewed);
    assert_eq!(talk(&mut waiter, &mut holder, renewed), 1, "registered");
    let late = at(1).after(KNOWN_LASTS);
    waiter.tick(late);
    assert_eq!(talk(&mut waiter, &mut holder, late), 2, "a challenge again");
    let (to, ask) = told(&mut holder, late);
    assert!(to == udp(2) && waiter.received(udp(1), ask, late));
}

#[test]
fn whoever_answers_after_the_release_is_told_or_sent_on() {
    for others in [false, true] {
        let mut holder = held_at_udp();
        assert!(holder.received(udp(2), register(5, &[]), at(1)));
        let (to, nonce) = challenge_in(&sends(&mut holder));
        assert_eq!(to, udp(2));
        if others {
            holder.answering.know(udp(3), at(1));
            assert!(holder.received(udp(3), register(6, &[]), at(1)));
            holder.effects();
            assert_eq!(holder.released(&name(), 7, NOBODY, at(2)), NextTurn::Theirs);
        } else {
            assert_eq!(holder.released(&name(), 7, NOBODY, at(2)), NextTurn::Ours);
        }
        holder.effects();
        assert!(holder.received(udp(2), Datagram::NotHere { nonce }, at(3)));
        let sent = sends(&mut holder);
        let [(to, datagram)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(*to, udp(2));
        match datagram {
            Datagram::Ask { nonce: 5, .. } => assert!(!others),
            Datagram::Moved { nonce: 5, to, .. } => assert!(others && *to == udp(3)),
            other => panic!("{other:?}"),
        }
    }
}

/// What comes with the lock was perhaps registered by somebody else.
#[test]
fn those_who_come_with_the_lock_answer_first_as_well() {
    let mut next = LockQueues::new(udp(2), || fastrand::u64(1..));
    next.refused(&name(), Some(GrantEndpoint { endpoint: udp(1), grant: 7 }), false, writer(at(1)), at(1));
    let sent = sends(&mut next);
    let [(_, Datagram::Register { nonce, .. })] = sent[..] else { panic!("{sent:?}") };
    let entries =
        vec![SentEntry { endpoint: udp(3), nonce: 9, waited: MS, mode: Mode::Exclusive, was_told: false }];
    assert!(next.received(udp(1), Datagram::Ask { nonce, key: 8, age: MS, entries }, at(2)));
    let (asked, sent): (Vec<_>, Vec<_>) =
        next.effects().into_iter().partition(|it| !matches!(it, Effect::Send(..)));
    assert!(matches!(asked[..], [Effect::Ask(..)]));
    let [Effect::Send(_, Datagram::Received { key: 8 }), Effect::Send(to, Datagram::Challenge { nonce })] =
        sent[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!((to, next.sizes()[1]), (udp(3), 0));
    next.granted(&name(), 10, Mode::Exclusive, at(3));
    assert!(next.received(udp(3), Datagram::NotHere { nonce }, at(4)));
    assert_eq!(sends(&mut next), [(udp(3), Datagram::Registered { nonce: 9 })]);
    assert_eq!(next.sizes()[1], 1);
}

// ---- Worlds --------------------------------------------------------------------------------------

#[derive(Clone, Copy)]
enum Doing {
    /// Waits since the first moment, and reads the store at the second one.
    Waits(Moment, Moment),
    /// Holds the lock until this moment.
    Holds(Moment),
}

struct World {
    now: Moment,
    processes: Vec<(LockQueues, Doing)>,
    /// Start of the quantum, as each process knows it.
    since: Vec<Option<Moment>>,
    /// Who holds the lock, and the random bits of the grant.
    holder: Option<(usize, u64)>,
    under_way: Vec<(Moment, usize, NoticeEndpoint, Datagram)>,
    /// Of a hundred datagrams, so many are lost, and so many come twice.
    lost: u32,
    doubled: u32,
    waits: Vec<(usize, Duration)>,
}

const HOLD: Duration = Duration::from_millis(2);

impl World {
    fn new(processes: usize, lost: u32, doubled: u32, seed: u64) -> World {
        fastrand::seed(seed);
        let (now, since) = (at(0), vec![None; processes]);
        let processes = (0..processes).map(|it| (queues(it as u64), Doing::Waits(now, now))).collect();
        World { now, processes, since, holder: None, under_way: Vec::new(), lost, doubled, waits: Vec::new() }
    }

    fn effects(&mut self, process: usize) {
        for effect in self.processes[process].0.effects() {
            match effect {
                Effect::Send(NoticeEndpoint::Local(to), datagram) => {
                    let from = endpoint(process as u64);
                    // Through the bytes, as on a network.
                    let datagram = Datagram::decode(&datagram.encode()).unwrap();
                    let copies = 1 - u32::from(fastrand::u32(..100) < self.lost)
                        + u32::from(fastrand::u32(..100) < self.doubled);
                    for _ in 0..copies {
                        let delay =
                            Duration::from_micros(if self.lost > 0 { fastrand::u64(50..5_000) } else { 50 });
                        self.under_way.push((self.now.after(delay), to as usize, from, datagram.clone()));
                    }
                }
                Effect::Send(..) | Effect::SendWaiters(..) => unreachable!(),
                Effect::Ask(..) | Effect::Read(_) => {
                    if let Effect::Ask(_, age) = effect {
                        self.since[process] = Some(at(0).after(self.now.since(at(0)).saturating_sub(age)));
                    }
                    if let Doing::Waits(_, next) = &mut self.processes[process].1 {
                        *next = self.now;
                    }
                }
                Effect::Pause(_, until) => {
                    if let Doing::Waits(_, next) = &mut self.processes[process].1 {
                        *next = until.max(*next);
                    }
                }
                Effect::Wanted(_) => unreachable!("these processes let no locks stay"),
                Effect::Acknowledged(_) => {
                    if let Doing::Waits(_, next) = &mut self.processes[process].1 {
                        *next = (*next).max(self.now.after(RETRY / 2));
                    }
                }
            }
        }
    }

    /// Does what is due, and moves to the next moment at which something is.
    fn step(&mut self) {
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.under_way).into_iter().partition(|it| it.0 <= now);
        self.under_way = later;
        let due: Vec<(Moment, usize, NoticeEndpoint, Datagram)> = due;
        for (_, to, from, datagram) in due {
            self.processes[to].0.received(from, datagram, now);
            self.effects(to);
        }
        for process in 0..self.processes.len() {
            let (queues, doing) = &mut self.processes[process];
            queues.tick(now);
            match *doing {
                Doing::Waits(arrived, next) if next <= now => match self.holder {
                    None => {
                        let grant = fastrand::u64(..);
                        self.holder = Some((process, grant));
                        self.since[process].get_or_insert(now);
                        queues.granted(&name(), grant, Mode::Exclusive, now);
                        queues.left(&name(), now);
                        *doing = Doing::Holds(now.after(HOLD));
                        self.waits.push((process, now.since(arrived)));
                    }
                    Some((holder, grant)) => {
                        let endpoint = endpoint(holder as u64);
                        *doing = Doing::Waits(arrived, now.after(RETRY));
                        self.since[process] = None;
                        queues.refused(
                            &name(),
                            Some(GrantEndpoint { endpoint, grant }),
                            false,
                            writer(arrived),
                            now,
                        );
                    }
                },
                Doing::Holds(until) if until <= now => {
                    let (_, grant) = self.holder.take().expect("it is held");
                    let since = self.since[process];
                    let is_over = since.is_some_and(|since| now.since(since) > RETRY * 10);
                    let yield_until = is_over.then(|| now.after(RETRY * 6 / 5));
                    queues.released(
                        &name(),
                        grant,
                        LocalQueueAtRelease { front: None, since, yield_until },
                        now,
                    );
                    let is_registered = queues.joined(&name(), Mode::Exclusive, now);
                    let next = if is_registered { now.after(ANSWER) } else { now };
                    *doing = Doing::Waits(now, yield_until.unwrap_or(next));
                }
                Doing::Waits(..) | Doing::Holds(_) => {}
            }
            self.effects(process);
        }
        let moments = self.processes.iter().flat_map(|(queues, doing)| {
            let (Doing::Waits(_, next) | Doing::Holds(next)) = *doing;
            [Some(next), queues.next()].into_iter().flatten()
        });
        let next = moments.chain(self.under_way.iter().map(|it| it.0)).min().unwrap();
        self.now = next.max(now.after(Duration::from_micros(1)));
    }

    fn run(&mut self, grants: usize) {
        while self.waits.len() < grants {
            self.step();
        }
    }

    fn grants_of(&self, process: usize) -> usize {
        self.waits.iter().filter(|(of, _)| *of == process).count()
    }
}

#[test]
fn with_no_loss_the_lock_goes_round_in_order_of_arrival() {
    for seed in 0..20 {
        let processes = 2 + seed as usize;
        let mut world = World::new(processes, 0, 0, seed);
        world.run(processes * 100);
        let settled = &world.waits[processes * 2..];
        let round = (HOLD + MS) * u32::try_from(processes).unwrap();
        let longest = settled.iter().map(|(_, wait)| *wait).max().unwrap();
        assert!(longest <= round, "{processes} processes, one waited {longest:?}");
        for pair in settled.windows(processes + 1) {
            assert_eq!(pair[0].0, pair[processes].0, "out of turn");
        }
        let sizes: Vec<_> = world.processes.iter().map(|(queues, _)| queues.sizes()).collect();
        assert!(
            sizes
                .iter()
                .all(|[queues, entries, keys, ..]| *queues == 1 && *entries < processes && *keys <= KEYS_MAX)
        );
    }
}

#[test]
fn with_losses_copies_and_delays_everybody_gets_turns_by_polling_at_least() {
    for seed in 0..8 {
        let lost = [10, 30, 50, 90][seed as usize % 4];
        let mut world = World::new(8, lost, 20, seed);
        let until = world.now.after(RETRY * 40);
        while world.now < until {
            world.step();
        }
        for process in 0..8 {
            let grants = world.grants_of(process);
            assert!(grants > 1, "seed {seed}: process {process} got {grants} of {}", world.waits.len());
        }
        for (queues, _) in &world.processes {
            let [queues, entries, keys, nonces, handed] = queues.sizes();
            assert!(queues == 1 && entries <= 8 && keys <= KEYS_MAX && nonces <= 2 && handed <= 1);
        }
    }
}

#[test]
fn a_world_whose_datagrams_are_all_lost_is_one_without_notices() {
    let mut world = World::new(3, 100, 0, 1);
    let until = world.now.after(RETRY * 200);
    while world.now < until {
        world.step();
    }
    assert!((0..3).all(|process| world.grants_of(process) > 0), "somebody never got the lock");
}

#[test]
fn who_waits_is_told_to_whoever_quotes_the_grant_without_what_a_notice_quotes() {
    let (mut holder, _) = held_and_wanted(3);
    let ask = |key| Datagram::WhoWaits { key, nonce: 9 };
    assert!(holder.received(endpoint(8), ask(7), at(50)));
    let effects = holder.effects();
    let [Effect::SendWaiters(to, 9, of, entries)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((*to, of), (endpoint(8), &name()));
    let expected: Vec<_> = (1..=3)
        .map(|number| SentEntry {
            endpoint: endpoint(number),
            nonce: 0,
            waited: MS * (50 - u32::try_from(number).unwrap()),
            mode: Mode::Exclusive,
            was_told: false,
        })
        .collect();
    assert_eq!(*entries, expected);
    let refused = [(endpoint(8), Datagram::NotHere { nonce: 9 })];
    assert!(!holder.received(endpoint(8), ask(6), at(50)));
    assert_eq!(sends(&mut holder), refused);
    // The lock is not here any more.
    let _ = told(&mut holder, at(60));
    assert!(!holder.received(endpoint(8), ask(7), at(61)));
    assert_eq!(sends(&mut holder), refused);
}

#[test]
fn a_holder_keeps_in_mind_that_somebody_who_does_not_wait_wants_the_lock() {
    let mut holder = queues(0);
    holder.granted(&name(), 7, Mode::Exclusive, at(0));
    holder.report_wanted();
    // Only the grant that holds the lock counts, whoever asks.
    assert!(!holder.received(endpoint(1), Datagram::Want { key: 8 }, at(1)));
    assert!(!holder.is_wanted(&name()) && holder.effects().is_empty());
    assert!(holder.received(endpoint(1), Datagram::Want { key: 7 }, at(2)));
    assert_eq!(holder.effects(), [Effect::Wanted(name())]);
    assert!(holder.is_wanted(&name()));
    assert_eq!(holder.sizes()[1], 0, "nobody is told later");
    // The release sends no notice, and the next grant knows nothing of it.
    assert_eq!(holder.released(&name(), 7, NOBODY, at(3)), NextTurn::Ours);
    assert!(!holder.is_wanted(&name()));
    assert!(!holder.received(endpoint(1), Datagram::Want { key: 7 }, at(4)));
    holder.granted(&name(), 9, Mode::Exclusive, at(5));
    assert!(!holder.is_wanted(&name()) && holder.effects().is_empty());
}

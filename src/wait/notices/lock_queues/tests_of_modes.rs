//! Tests of the queues of locks that several processes hold at once.

use super::super::datagram::ENTRIES_MAX;
use super::super::lock_queue::{ANSWER, ENTRY_LASTS, READS_BESIDE_READERS_MAX, READS_MAX, REMEMBERED};
use super::tests::{MS, NOBODY, at, endpoint, key_of, name, queues, sends};
use super::*;

fn grant(process: u64, grant: u64) -> Option<GrantEndpoint> {
    Some(GrantEndpoint { endpoint: endpoint(process), grant })
}

/// Lets a process be refused because of what `by` has, and delivers what follows.
fn register(waiter: &mut LockQueues, mode: Mode, by: &mut LockQueues, key: u64, now: Moment) {
    let first = Arrival { at: now, mode };
    waiter.refused(&name(), Some(GrantEndpoint { endpoint: by.own, grant: key }), true, first, now);
    for (to, datagram) in sends(waiter) {
        assert_eq!(to, by.own);
        assert!(by.received(waiter.own, datagram, now), "it is here");
    }
    for (to, datagram) in sends(by) {
        assert!(matches!(datagram, Datagram::Registered { .. }), "{datagram:?}");
        assert_eq!(to, waiter.own);
        assert!(waiter.received(by.own, datagram, now));
    }
    waiter.effects();
}

/// Delivers the notices of a process, and returns who was told.
fn tell(from: &mut LockQueues, to: &mut [LockQueues], now: Moment) -> Vec<NoticeEndpoint> {
    let asks = sends(from).into_iter().filter(|(_, datagram)| matches!(datagram, Datagram::Ask { .. }));
    let asks: Vec<_> = asks.collect();
    for (endpoint, ask) in &asks {
        let waiter = to.iter_mut().find(|waiter| waiter.own == *endpoint).expect("it waits");
        assert!(waiter.received(from.own, ask.clone(), now));
        for effect in waiter.effects() {
            match effect {
                Effect::Send(to, answer) => assert!(to == from.own && from.received(*endpoint, answer, now)),
                effect => assert_eq!(effect, Effect::Ask(name(), Duration::ZERO)),
            }
        }
    }
    asks.into_iter().map(|(endpoint, _)| endpoint).collect()
}

/// A process that holds the lock exclusively with key 7, and others that wait for it in these modes.
fn held_by_a_writer(waiting: &[Mode]) -> (LockQueues, Vec<LockQueues>) {
    let mut holder = queues(0);
    holder.granted(&name(), 7, Mode::Exclusive, at(0));
    let waiter = |(number, mode): (u64, &Mode)| {
        let mut waiter = queues(number);
        register(&mut waiter, *mode, &mut holder, 7, at(number));
        waiter
    };
    let waiters = (1..).zip(waiting).map(waiter).collect();
    (holder, waiters)
}

use Mode::{Exclusive, Shared, Update};

#[test]
fn readers_before_the_next_writer_are_told_as_soon_as_the_first_of_them_has_the_lock() {
    let (mut holder, mut waiters) = held_by_a_writer(&[Shared, Update, Shared, Update, Exclusive, Shared]);
    assert_eq!(holder.released(&name(), 7, NOBODY, at(50)), NextTurn::Theirs);
    assert_eq!(tell(&mut holder, &mut waiters, at(50)), [endpoint(1)]);
    let (first, others) = waiters.split_first_mut().unwrap();
    first.granted(&name(), 8, Shared, at(51));
    // One updater at a time.
    assert_eq!(tell(first, others, at(51)), [endpoint(2), endpoint(3)]);
    assert_eq!(first.sizes()[1], 3, "the others stay in its queue");
    assert_eq!(first.released(&name(), 8, NOBODY, at(60)), NextTurn::Theirs);
    assert_eq!(
        tell(first, others, at(60)),
        [endpoint(4)],
        "it is refused, and takes the queue to the updater"
    );
}

/// The store has no intent of a writer that has not asked it, and new readers would come without end.
#[test]
fn who_wants_the_lock_again_asks_the_store_if_it_writes_beside_readers() {
    for (other, joins, registers) in
        [(Shared, Shared, true), (Shared, Exclusive, false), (Exclusive, Exclusive, true)]
    {
        let (mut holder, mut waiter) = (queues(0), queues(1));
        if other == Shared {
            holder.granted(&name(), 6, Shared, at(0));
            assert_eq!(holder.released(&name(), 6, NOBODY, at(0)), NextTurn::Ours);
        }
        holder.granted(&name(), 7, Exclusive, at(0));
        register(&mut waiter, other, &mut holder, 7, at(1));
        assert_eq!(holder.released(&name(), 7, NOBODY, at(50)), NextTurn::Theirs);
        tell(&mut holder, &mut [waiter], at(50));
        assert_eq!(holder.joined(&name(), joins, at(60)), registers, "{joins} beside {other}");
        assert_eq!(sends(&mut holder).len(), usize::from(registers));
    }
}

#[test]
fn a_process_passes_its_queue_on_when_it_holds_the_lock_no_more() {
    for ends_with_a_release in [false, true] {
        let mut reader = queues(0);
        // Threads that ask at the same time have different grants.
        for grant in [7, 8, 8] {
            reader.granted(&name(), grant, Shared, at(0));
        }
        assert_eq!(reader.grant_beside_others(&name(), Shared), Some(8));
        let mut writer = queues(1);
        register(&mut writer, Exclusive, &mut reader, 7, at(1));
        reader.ended(&name(), 8, at(2));
        assert_eq!(reader.released(&name(), 7, NOBODY, at(3)), NextTurn::Ours);
        assert_eq!(reader.released(&name(), 7, NOBODY, at(3)), NextTurn::Ours, "it is released already");
        assert_eq!((sends(&mut reader), reader.sizes()[1]), (vec![], 1), "another thread still reads");
        if ends_with_a_release {
            assert_eq!(reader.released(&name(), 8, NOBODY, at(4)), NextTurn::Theirs);
            assert_eq!(tell(&mut reader, &mut [writer], at(4)), [endpoint(1)]);
        } else {
            reader.ended(&name(), 8, at(4));
            assert_eq!((sends(&mut reader), reader.sizes()[1]), (vec![], 0), "nothing was released");
        }
        assert_eq!(reader.grant_beside_others(&name(), Shared), None);
    }
}

#[test]
fn an_exclusive_grant_is_not_used_again() {
    let mut holder = queues(0);
    holder.granted(&name(), 7, Exclusive, at(0));
    assert_eq!(holder.grant_beside_others(&name(), Shared), None);
    // Its lease was lost. Nobody has said so yet.
    holder.granted(&name(), 8, Exclusive, at(1));
    let mut waiter = queues(1);
    register(&mut waiter, Exclusive, &mut holder, 8, at(2));
    holder.ended(&name(), 7, at(3));
    assert_eq!(holder.released(&name(), 8, NOBODY, at(4)), NextTurn::Theirs);
}

/// It may be told by each reader that leaves, and they are many.
#[test]
fn a_writer_goes_with_its_queue_from_reader_to_reader() {
    let mut writer = queues(0);
    let mut behind = queues(1);
    let mut readers: Vec<_> = (10..30).map(queues).collect();
    for (key, reader) in (10..).zip(&mut readers) {
        reader.granted(&name(), key, Shared, at(0));
    }
    register(&mut writer, Exclusive, &mut readers[0], 10, at(1));
    register(&mut behind, Exclusive, &mut readers[0], 10, at(2));
    for (number, key) in (0..19).zip(10..) {
        assert_eq!(readers[number].released(&name(), key, NOBODY, at(key)), NextTurn::Theirs);
        assert_eq!(tell(&mut readers[number], std::slice::from_mut(&mut writer), at(key)), [endpoint(0)]);
        let first = Arrival { at: at(1), mode: Exclusive };
        writer.refused(&name(), grant(key + 1, key + 1), true, first, at(key));
        let next = &mut readers[number + 1];
        for (to, datagram) in sends(&mut writer) {
            assert_eq!(to, next.own);
            assert!(next.received(endpoint(0), datagram, at(key)));
        }
        assert_eq!(next.sizes()[1], 2, "both wait there");
        sends(next);
    }
    assert_eq!(readers[19].released(&name(), 29, NOBODY, at(100)), NextTurn::Theirs);
    tell(&mut readers[19], std::slice::from_mut(&mut writer), at(100));
    writer.granted(&name(), 5, Exclusive, at(101));
    assert_eq!(writer.released(&name(), 5, NOBODY, at(102)), NextTurn::Theirs);
    assert_eq!(tell(&mut writer, std::slice::from_mut(&mut behind), at(102)), [endpoint(1)]);
}

/// Somebody may send such notices for ever.
#[test]
fn a_writer_that_is_told_in_vain_by_readers_only_polls_in_the_end() {
    assert_eq!(told_in_vain(queues(1), true), READS_BESIDE_READERS_MAX as usize + 1);
    let mut updater = queues(1);
    updater.granted(&name(), 3, Update, at(0));
    assert_eq!(told_in_vain(updater, false), READS_BESIDE_READERS_MAX as usize);
}

fn told_in_vain(mut writer: LockQueues, has_readers: bool) -> usize {
    let mut told = 0;
    for key in 0..1000 {
        let first = Arrival { at: at(0), mode: Exclusive };
        writer.refused(&name(), grant(0, 7), has_readers, first, at(0));
        let sent = sends(&mut writer);
        let Some((_, Datagram::Register { nonce, .. })) = sent.first() else { break };
        let ask = Datagram::Ask { nonce: *nonce, key, age: MS, entries: Vec::new() };
        assert!(writer.received(endpoint(0), ask, at(0)));
        told += writer.effects().into_iter().filter(|it| matches!(it, Effect::Ask(..))).count();
    }
    told
}

#[test]
fn readers_that_a_waiting_writer_keeps_out_wait_in_its_queue() {
    let mut writer = queues(0);
    writer.announced(&name(), 5, at(0));
    let mut others: Vec<_> = (1..=3).map(queues).collect();
    // Longer than a released lock is remembered.
    let late = at(10).after(REMEMBERED * 3);
    for (reader, now) in others.iter_mut().zip([at(1), at(2), late]) {
        register(reader, Shared, &mut writer, 5, now);
    }
    writer.granted(&name(), 6, Exclusive, late);
    writer.withdrawn(&name(), 5, late);
    assert_eq!(sends(&mut writer), []);
    register(&mut queues(9), Shared, &mut writer, 5, late);
    assert_eq!(writer.released(&name(), 6, NOBODY, late), NextTurn::Theirs);
    assert_eq!(tell(&mut writer, &mut others, late), [endpoint(1)]);
    let (first, others) = others.split_first_mut().unwrap();
    assert_eq!(first.sizes()[1], 3);
    first.granted(&name(), 8, Shared, late);
    let told: Vec<_> = sends(first).into_iter().map(|(to, _)| to).collect();
    assert_eq!(told, [endpoint(2), endpoint(3), endpoint(9)]);
    assert_eq!(others.len(), 2);
}

#[test]
fn a_writer_that_gives_up_tells_the_readers_that_it_kept_out() {
    let mut writer = queues(0);
    writer.announced(&name(), 5, at(0));
    let mut readers: Vec<_> = (1..=2).map(queues).collect();
    for (reader, now) in readers.iter_mut().zip([at(1), at(2)]) {
        register(reader, Shared, &mut writer, 5, now);
    }
    writer.withdrawn(&name(), 4, at(3));
    assert_eq!(sends(&mut writer), [], "another announcement");
    writer.left(&name(), at(3));
    assert_eq!(sends(&mut writer), [], "the store has the intent");
    writer.withdrawn(&name(), 5, at(3));
    assert_eq!(tell(&mut writer, &mut readers, at(3)), [endpoint(1)]);
    assert_eq!(writer.sizes(), [1, 0, 0, 0, 1], "it only remembers to whom it has passed the queue on");
    let mut late = queues(9);
    late.refused(&name(), grant(0, 5), true, Arrival { at: at(4), mode: Shared }, at(4));
    let (_, register) = sends(&mut late).remove(0);
    assert!(!writer.received(endpoint(9), register, at(4)));
    assert!(matches!(sends(&mut writer)[..], [(_, Datagram::NotHere { .. })]));
}

/// A reader was told, and the store has kept it out because of the writer.
#[test]
fn a_waiting_writer_reads_the_store_when_the_turn_has_come_to_those_that_it_keeps_out() {
    let (mut writer, mut reader) = (queues(0), queues(1));
    writer.announced(&name(), 5, at(0));
    register(&mut reader, Shared, &mut writer, 5, at(1));
    let Some((_, Datagram::Register { nonce, .. })) = again(&mut reader, 6) else { panic!() };
    let ask = Datagram::Ask { nonce, key: 9, age: MS, entries: Vec::new() };
    assert!(reader.received(endpoint(3), ask, at(2)));
    reader.effects();
    // This register is lost.
    assert!(matches!(again(&mut reader, 6), Some((_, Datagram::Register { was_told: true, .. }))));
    let (to, register) = again(&mut reader, 5).unwrap();
    assert!(to == endpoint(0) && matches!(register, Datagram::Register { was_told: true, .. }));
    assert!(writer.received(endpoint(1), register, at(3)));
    let mut effects = writer.effects();
    effects.retain(|effect| match effect {
        Effect::Send(_, registered) => !reader.received(endpoint(0), registered.clone(), at(3)),
        _ => true,
    });
    assert_eq!(effects, [Effect::Read(name())]);
    let Some((_, Datagram::Register { was_told: false, .. })) = again(&mut reader, 6) else {
        panic!("it was told once")
    };
}

/// Lets a reader be refused because of this key of process 0, and returns its register.
fn again(reader: &mut LockQueues, key: u64) -> Option<(NoticeEndpoint, Datagram)> {
    reader.refused(&name(), grant(0, key), true, Arrival { at: at(1), mode: Shared }, at(2));
    sends(reader).pop()
}

/// A queue that only waits is not one of the free ones, which are forgotten.
#[test]
fn the_queue_of_a_waiting_writer_is_not_forgotten() {
    let mut writer = queues(0);
    writer.announced(&name(), 5, at(0));
    for number in 0..2 * FREE_MAX as u64 {
        let id = LockName::new(
            crate::names::lock_name::Level::Xdc,
            "tests",
            None,
            &number.to_string(),
            crate::names::lock_name::NamePolicy::Strict,
        );
        let id = id.unwrap();
        writer.granted(&id, number + 100, Exclusive, at(1));
        writer.released(&id, number + 100, NOBODY, at(1));
        writer.effects();
    }
    register(&mut queues(1), Shared, &mut writer, 5, at(2));
}

#[test]
fn who_steps_down_tells_those_that_may_hold_the_lock_beside_it() {
    let (mut holder, mut waiters) = held_by_a_writer(&[Shared, Update, Exclusive]);
    holder.granted(&name(), 8, Update, at(50));
    assert_eq!(sends(&mut holder), []);
    assert_eq!(holder.released(&name(), 7, NOBODY, at(50)), NextTurn::Ours, "it has become the other");
    assert_eq!(tell(&mut holder, &mut waiters, at(50)), [endpoint(1)]);
    holder.granted(&name(), 9, Shared, at(51));
    assert_eq!(sends(&mut holder), [], "an updater beside an updater");
    assert_eq!(holder.released(&name(), 8, NOBODY, at(52)), NextTurn::Ours);
    assert_eq!(tell(&mut holder, &mut waiters, at(52)), [endpoint(2)]);
    assert_eq!(holder.released(&name(), 9, NOBODY, at(53)), NextTurn::Theirs);
    assert_eq!(tell(&mut holder, &mut waiters, at(53)), [endpoint(3)]);
}

#[test]
fn who_wants_to_write_beside_what_it_reads_asks_when_another_reader_leaves() {
    let (mut updater, mut reader) = (queues(0), queues(1));
    updater.granted(&name(), 7, Update, at(0));
    reader.granted(&name(), 8, Shared, at(0));
    register(&mut updater, Exclusive, &mut reader, 8, at(1));
    assert_eq!(reader.released(&name(), 8, NOBODY, at(2)), NextTurn::Theirs);
    assert_eq!(tell(&mut reader, std::slice::from_mut(&mut updater), at(2)), [endpoint(0)]);
    updater.granted(&name(), 9, Exclusive, at(3));
    assert_eq!(updater.released(&name(), 7, NOBODY, at(3)), NextTurn::Ours, "it has become the other");
    assert!(updater.received(endpoint(5), Datagram::Want { key: 9 }, at(4)), "it holds the lock");
}

/// Over UDP, a process must answer a challenge first.
#[test]
fn readers_that_came_with_the_queue_are_told_although_they_answer_later() {
    let udp = |port: u16| NoticeEndpoint::Udp(([127, 0, 0, 1], port).into());
    let mut first = queues(1);
    first.refused(&name(), grant(0, 7), true, Arrival { at: at(0), mode: Shared }, at(0));
    let [(_, Datagram::Register { nonce, .. })] = sends(&mut first)[..] else { panic!() };
    let waiting = |(port, mode)| SentEntry {
        endpoint: udp(port),
        nonce: port.into(),
        waited: MS,
        mode,
        was_told: false,
    };
    let entries = [(2, Shared), (3, Exclusive)].map(waiting).to_vec();
    assert!(first.received(endpoint(0), Datagram::Ask { nonce, key: 8, age: MS, entries }, at(1)));
    let challenges = sends(&mut first);
    first.granted(&name(), 9, Shared, at(2));
    let mut told = Vec::new();
    for (to, datagram) in challenges {
        let Datagram::Challenge { nonce } = datagram else { continue };
        assert!(first.received(to, Datagram::NotHere { nonce }, at(3)));
        told.extend(sends(&mut first));
    }
    let asks: Vec<_> = told.into_iter().filter(|(_, sent)| matches!(sent, Datagram::Ask { .. })).collect();
    assert_eq!(
        asks,
        [(udp(2), Datagram::Ask { nonce: 2, key: 9, age: Duration::ZERO, entries: Vec::new() })]
    );
}

/// The store has granted the lock to a process that does not know of it yet, and has nobody wait.
#[test]
fn a_queue_goes_with_its_process_until_another_has_taken_it() {
    let (mut holder, mut waiters) = held_by_a_writer(&[Exclusive, Exclusive, Exclusive]);
    holder.released(&name(), 7, NOBODY, at(50));
    tell(&mut holder, &mut waiters, at(50));
    let first = &mut waiters[0];
    let refused = |first: &mut LockQueues, key, ms| {
        first.refused(&name(), grant(9, key), false, Arrival { at: at(1), mode: Exclusive }, at(ms));
        let sent = sends(first);
        let [(to, Datagram::Register { nonce, entries, .. })] = &sent[..] else { panic!("{sent:?}") };
        let with: Vec<_> = entries.iter().map(|entry| entry.endpoint).collect();
        assert_eq!(*to, endpoint(9));
        (*nonce, with)
    };
    let (nonce, with) = refused(first, 1, 51);
    assert_eq!(with, [endpoint(2), endpoint(3)]);
    assert!(first.received(endpoint(9), Datagram::NotHere { nonce }, at(52)));
    assert_eq!(first.effects(), [Effect::Read(name())]);
    let (nonce, with) = refused(first, 2, 53);
    assert_eq!(with, [endpoint(2), endpoint(3)]);
    assert!(first.received(endpoint(9), Datagram::Registered { nonce }, at(54)));
    first.effects();
    assert_eq!(refused(first, 3, 55).1, []);
    assert_eq!(first.sizes()[1], 0);
}

#[test]
fn a_queue_that_was_not_taken_stays_with_whoever_gets_the_lock_or_leaves() {
    for leaves in [false, true] {
        let (mut holder, mut waiters) = held_by_a_writer(&[Exclusive, Exclusive]);
        holder.released(&name(), 7, NOBODY, at(50));
        tell(&mut holder, &mut waiters, at(50));
        let first = &mut waiters[0];
        first.refused(&name(), grant(9, 1), false, Arrival { at: at(1), mode: Exclusive }, at(51));
        assert_eq!((sends(first).len(), first.sizes()[1]), (1, 1));
        if leaves {
            first.left(&name(), at(52));
        } else {
            first.granted(&name(), 8, Exclusive, at(52));
            assert_eq!(first.released(&name(), 8, NOBODY, at(53)), NextTurn::Theirs);
        }
        let sent = sends(first);
        let told = |(to, sent): &(_, _)| *to == endpoint(2) && matches!(sent, Datagram::Ask { .. });
        assert!(sent.iter().any(told), "{sent:?}");
    }
}

#[test]
fn a_holder_that_is_silent_or_has_ended_makes_its_waiter_read_the_store_once() {
    let mut waiter = queues(1);
    let first = Arrival { at: at(0), mode: Exclusive };
    waiter.refused(&name(), grant(0, 7), false, first, at(0));
    let mut effects = waiter.effects();
    while let Some(next) = waiter.next() {
        waiter.tick(next);
        effects.extend(waiter.effects());
        assert!(effects.len() < 10);
    }
    assert_eq!(effects.iter().filter(|it| **it == Effect::Read(name())).count(), 1);
    assert_eq!(effects.last(), Some(&Effect::Read(name())), "after the registers");

    let mut waiter = queues(1);
    waiter.refused(&name(), grant(0, 7), false, first, at(0));
    waiter.effects();
    waiter.gone(endpoint(2), at(1));
    assert_eq!(waiter.effects(), [], "another process");
    waiter.gone(endpoint(0), at(1));
    assert_eq!(waiter.effects(), [Effect::Read(name())]);
}

/// An entry that went from queue to queue may be older than the register of its process.
#[test]
fn what_a_process_says_itself_counts_more_than_what_others_bring_of_it() {
    let mut holder = queues(0);
    holder.granted(&name(), 7, Exclusive, at(0));
    let bring = |of: u64, nonce, entries: &[SentEntry]| {
        let (waited, mode, was_told) = (MS, Exclusive, false);
        (
            endpoint(of),
            Datagram::Register { key: 7, nonce, waited, mode, was_told, entries: entries.to_vec() },
        )
    };
    let old =
        SentEntry { endpoint: endpoint(1), nonce: 10, waited: MS * 9, mode: Exclusive, was_told: false };
    for (from, datagram) in [bring(1, 11, &[]), bring(2, 20, &[old])] {
        assert!(holder.received(from, datagram, at(10)));
    }
    holder.effects();
    assert_eq!(holder.released(&name(), 7, NOBODY, at(11)), NextTurn::Theirs);
    let sent = sends(&mut holder);
    let [(_, Datagram::Ask { nonce: 20 | 11, entries, .. })] = &sent[..] else { panic!("{sent:?}") };
    assert!(entries.iter().all(|entry| entry.nonce != 10), "{entries:?}");
}

/// Returns a process that was told and refused, with the nonces of its wait before and of this one.
fn told_and_waiting_again() -> (LockQueues, [u64; 2]) {
    let mut waiter = queues(1);
    let nonces = [7, 8].map(|key| {
        let first = Arrival { at: at(0), mode: Exclusive };
        waiter.refused(&name(), grant(0, key), true, first, at(key));
        let [(_, Datagram::Register { nonce, .. })] = sends(&mut waiter)[..] else { panic!() };
        if key == 7 {
            let ask = Datagram::Ask { nonce, key: 1, age: MS, entries: Vec::new() };
            assert!(waiter.received(endpoint(0), ask, at(7)));
            waiter.effects();
        }
        nonce
    });
    (waiter, nonces)
}

/// Somebody has brought it along, and its process was told meanwhile, and waits again.
#[test]
fn a_notice_with_the_nonce_of_the_wait_before_counts_while_its_process_waits() {
    let (mut waiter, nonces) = told_and_waiting_again();
    let old = Datagram::Ask { nonce: nonces[0], key: 2, age: MS, entries: Vec::new() };
    assert!(waiter.received(endpoint(5), old.clone(), at(9)));
    assert!(waiter.effects().contains(&Effect::Ask(name(), MS)));
    assert!(!waiter.received(endpoint(5), old, at(9)), "it does not wait now");
}

/// A grant is in the record of the lock, which others may read.
#[test]
fn who_quotes_the_grant_of_a_reader_has_not_answered_a_challenge() {
    let udp = |port: u16| NoticeEndpoint::Udp(([127, 0, 0, 1], port).into());
    let mut reader = queues(0);
    reader.granted(&name(), 7, Shared, at(0));
    reader.received(udp(9), Datagram::Received { key: 7 }, at(1));
    let register = Datagram::Register {
        key: 7,
        nonce: 1,
        waited: MS,
        mode: Exclusive,
        was_told: false,
        entries: Vec::new(),
    };
    assert!(reader.received(udp(9), register, at(2)));
    assert!(matches!(sends(&mut reader)[..], [(_, Datagram::Challenge { .. })]));
}

/// A notice beside other holders is not repeated: who does not get it polls.
#[test]
fn a_reader_that_does_not_answer_is_not_waited_for() {
    let (mut holder, mut waiters) = held_by_a_writer(&[Shared, Shared, Exclusive]);
    holder.released(&name(), 7, NOBODY, at(50));
    tell(&mut holder, &mut waiters, at(50));
    let first = &mut waiters[0];
    first.granted(&name(), 8, Shared, at(51));
    assert!(matches!(sends(first)[..], [(to, Datagram::Ask { .. })] if to == endpoint(2)));
    first.tick(at(51).after(ANSWER * 2));
    assert_eq!(sends(first), []);
    assert_eq!(first.released(&name(), 8, NOBODY, at(200)), NextTurn::Theirs);
    let (to, ask) = sends(first).remove(0);
    assert_eq!(to, endpoint(3));
    assert_ne!(key_of(&ask), 8);
}

/// It holds the lock itself, so its own hold keeps nobody out: the writer does.
#[test]
fn readers_that_an_upgrade_keeps_out_are_told_when_it_gives_up_and_not_before() {
    let (mut updater, mut reader) = (queues(0), queues(1));
    updater.granted(&name(), 7, Update, at(0));
    updater.announced(&name(), 5, at(0));
    register(&mut reader, Shared, &mut updater, 5, at(1));
    assert_eq!(updater.sizes()[1], 1, "it waits, and is not told to ask in vain");
    updater.withdrawn(&name(), 5, at(2));
    assert_eq!(tell(&mut updater, std::slice::from_mut(&mut reader), at(2)), [endpoint(1)]);
}

/// Another thread of the process was faster, and has not ended the intent.
#[test]
fn readers_register_with_a_waiting_writer_whatever_other_threads_of_its_process_get() {
    let (mut writer, mut reader) = (queues(0), queues(1));
    writer.announced(&name(), 5, at(0));
    register(&mut reader, Shared, &mut writer, 5, at(1));
    writer.granted(&name(), 6, Exclusive, at(2));
    let front = Some(Arrival { at: at(3), mode: Exclusive });
    let local = LocalQueueAtRelease { front, ..NOBODY };
    assert_eq!(writer.released(&name(), 6, local, at(4)), NextTurn::Theirs);
    assert_eq!(tell(&mut writer, std::slice::from_mut(&mut reader), at(4)), [endpoint(1)]);
    // The intent keeps it out.
    reader.refused(&name(), grant(0, 5), true, Arrival { at: at(1), mode: Shared }, at(5));
    for (_, register) in sends(&mut reader) {
        assert!(writer.received(endpoint(1), register, at(5)));
    }
    assert!(writer.effects().contains(&Effect::Read(name())), "it is the turn of the writer");
}

#[test]
fn readers_that_a_writer_keeps_out_are_not_forgotten_with_a_lease_of_its_process() {
    let (mut process, mut reader) = (queues(0), queues(1));
    process.granted(&name(), 7, Shared, at(0));
    process.announced(&name(), 5, at(0));
    register(&mut reader, Shared, &mut process, 5, at(1));
    process.ended(&name(), 7, at(2));
    assert_eq!(process.sizes()[1], 1);
    process.withdrawn(&name(), 5, at(3));
    assert_eq!(tell(&mut process, std::slice::from_mut(&mut reader), at(3)), [endpoint(1)]);
}

#[test]
fn readers_that_a_writer_keeps_out_are_not_forgotten_when_a_holder_without_notices_refuses_it() {
    let (mut writer, mut reader, mut holder) = (queues(0), queues(1), queues(2));
    holder.granted(&name(), 7, Shared, at(0));
    writer.announced(&name(), 5, at(0));
    register(&mut writer, Exclusive, &mut holder, 7, at(1));
    register(&mut reader, Shared, &mut writer, 5, at(2));
    holder.released(&name(), 7, NOBODY, at(3));
    tell(&mut holder, std::slice::from_mut(&mut writer), at(3));
    writer.refused(&name(), None, true, Arrival { at: at(1), mode: Exclusive }, at(4));
    assert_eq!(writer.sizes()[1], 1);
    writer.granted(&name(), 8, Exclusive, at(5));
    assert_eq!(writer.released(&name(), 8, NOBODY, at(6)), NextTurn::Theirs);
    assert_eq!(tell(&mut writer, std::slice::from_mut(&mut reader), at(6)), [endpoint(1)]);
}

/// The other process came first, and cannot get the lock before this one has left.
#[test]
fn who_wants_to_write_beside_what_it_reads_looks_when_another_was_told_in_its_place() {
    let (mut updater, mut writer, mut reader) = (queues(0), queues(1), queues(2));
    updater.granted(&name(), 7, Update, at(0));
    reader.granted(&name(), 8, Shared, at(0));
    register(&mut writer, Exclusive, &mut reader, 8, at(1));
    register(&mut updater, Exclusive, &mut reader, 8, at(2));
    assert_eq!(reader.released(&name(), 8, NOBODY, at(3)), NextTurn::Theirs);
    assert_eq!(tell(&mut reader, std::slice::from_mut(&mut writer), at(3)), [endpoint(1)]);
    writer.refused(&name(), grant(0, 7), true, Arrival { at: at(1), mode: Exclusive }, at(4));
    for (_, register) in sends(&mut writer) {
        assert!(updater.received(endpoint(1), register, at(4)));
    }
    assert!(updater.effects().contains(&Effect::Read(name())));
}

/// Its next hold may have another mode, and ends on its own.
#[test]
fn only_holds_of_one_mode_have_one_grant() {
    let mut holder = queues(0);
    holder.granted(&name(), 7, Shared, at(0));
    assert_eq!(holder.grant_beside_others(&name(), Update), None);
    holder.granted(&name(), 8, Update, at(0));
    assert_eq!(holder.grant_beside_others(&name(), Shared), Some(7));
    assert_eq!(holder.grant_beside_others(&name(), Update), Some(8));
}

#[test]
fn a_held_lock_is_found_by_its_grant_however_many_grants_come_after_it() {
    let mut holder = queues(0);
    holder.granted(&name(), 7, Shared, at(0));
    for key in 100..120 {
        holder.granted(&name(), key, Update, at(1));
        holder.released(&name(), key, NOBODY, at(1));
    }
    register(&mut queues(1), Exclusive, &mut holder, 7, at(2));
}

/// Its lease was given to a process that others cannot register with, and its record stays.
#[test]
fn a_grant_that_is_not_here_again_and_again_costs_few_looks() {
    let mut waiter = queues(1);
    let (mut now, mut reads) = (at(0), 0);
    while now < at(0).after(REMEMBERED) {
        waiter.refused(&name(), grant(0, 7), true, Arrival { at: at(0), mode: Exclusive }, now);
        for (_, datagram) in sends(&mut waiter) {
            let Datagram::Register { nonce, .. } = datagram else { panic!("{datagram:?}") };
            assert!(waiter.received(endpoint(0), Datagram::NotHere { nonce }, now));
        }
        let mut effects = waiter.effects();
        if let Some(next) = waiter.next().filter(|_| effects.is_empty()) {
            now = now.max(next);
            waiter.tick(now);
            effects = waiter.effects();
        }
        if !effects.contains(&Effect::Read(name())) {
            break;
        }
        reads += 1;
    }
    assert_eq!(reads, 1 + READS_MAX);
}

/// A process that knows the nonce may bring other ones each time.
#[test]
fn a_queue_that_no_other_process_takes_is_bounded_and_ends_by_itself() {
    let mut waiter = queues(1);
    for round in 1..5 {
        waiter.refused(&name(), grant(0, round), true, Arrival { at: at(0), mode: Exclusive }, at(round));
        let Some((_, Datagram::Register { nonce, .. })) = sends(&mut waiter).pop() else { panic!() };
        let entry = |number| SentEntry {
            endpoint: endpoint(1000 * round + number),
            nonce: number,
            waited: MS,
            mode: Exclusive,
            was_told: false,
        };
        let entries = (0..40).map(entry).collect();
        assert!(waiter.received(
            endpoint(0),
            Datagram::Ask { nonce, key: round, age: MS, entries },
            at(round)
        ));
        assert_eq!(waiter.sizes()[1], ENTRIES_MAX);
        waiter.announced(&name(), 5, at(round));
        let waited = MS;
        let others = (0..40).map(|number| entry(100 + number)).collect();
        waiter.refused(&name(), grant(0, round), true, Arrival { at: at(0), mode: Exclusive }, at(round));
        let register =
            Datagram::Register { key: 5, nonce: 9, waited, mode: Shared, was_told: false, entries: others };
        assert!(waiter.received(endpoint(7), register, at(round)));
        waiter.effects();
    }
    assert!(waiter.sizes()[1] <= 2 * ENTRIES_MAX, "{:?}", waiter.sizes());
    waiter.tick(at(5).after(ENTRY_LASTS));
    assert_eq!(waiter.sizes()[1], 0);
    let mut waiter = queues(1);
    waiter.refused(&name(), grant(0, 1), true, Arrival { at: at(0), mode: Exclusive }, at(0));
    let Some((_, Datagram::Register { nonce, .. })) = sends(&mut waiter).pop() else { panic!() };
    let (endpoint_of, mode, was_told) = (endpoint(9), Exclusive, false);
    let entries = vec![SentEntry { endpoint: endpoint_of, nonce: 9, waited: MS, mode, was_told }];
    assert!(waiter.received(endpoint(0), Datagram::Ask { nonce, key: 2, age: MS, entries }, at(0)));
    waiter.refused(&name(), grant(0, 1), true, Arrival { at: at(0), mode: Exclusive }, at(0));
    while let Some(next) = waiter.next() {
        waiter.tick(next);
    }
    assert_eq!(waiter.sizes()[1], 0, "nobody has answered");
}

/// The queue in which somebody brought it along has moved. It has been told by another since, and waits elsewhere.
#[test]
fn a_process_that_is_registered_does_not_follow_the_queue_of_its_wait_before() {
    let (mut waiter, nonces) = told_and_waiting_again();
    let moved = |nonce| Datagram::Moved { nonce, to: endpoint(3), key: 4 };
    assert!(waiter.received(endpoint(0), Datagram::Registered { nonce: nonces[1] }, at(9)));
    waiter.effects();
    waiter.received(endpoint(2), moved(nonces[0]), at(10));
    assert_eq!(sends(&mut waiter), []);
    waiter.received(endpoint(2), moved(nonces[1]), at(11));
    assert!(matches!(sends(&mut waiter)[..], [(to, Datagram::Register { .. })] if to == endpoint(3)));
}

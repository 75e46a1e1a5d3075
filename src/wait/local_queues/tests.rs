//! Tests of one queue: which waiter asks when, and how each wait ends.

use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;
use crate::names::lock_name::{Level, NamePolicy};
#[cfg(feature = "embedded")]
use crate::settings::limits::NoticesSetting;
use crate::store::MemoryStore;
use crate::testing::patience::{LONG, until};

const RETRY: Duration = Duration::from_millis(20);
/// More than a test of many steps needs.
const WAIT: Duration = Duration::from_secs(5 * 60);

fn name() -> LockName {
    LockName::new(Level::Xdc, "tests", None, "queue", NamePolicy::Strict).unwrap()
}

fn terms(wait: Duration) -> Terms<'static> {
    Terms {
        by: Deadline::after(wait),
        retry: RETRY,
        mode: Mode::Exclusive,
        is_within: false,
        joins_together: false,
        cancel: None,
        speaks_for_all: true,
    }
}

fn rarely() -> Terms<'static> {
    Terms { retry: Duration::from_secs(60), ..terms(WAIT) }
}

fn in_queue(queues: &LocalQueues) -> usize {
    queues.by_name.lock().values().map(|queue| queue.state.lock().waiting.len()).sum()
}

#[test]
fn a_wait_of_zero_asks_once_and_leaves_no_queue_behind() {
    let queues = LocalQueues::default();
    let mut asked = 0;
    let ended = queues.wait::<()>(&name(), &terms(Duration::ZERO), |_| {
        asked += 1;
        Ok(Answer::Busy(None))
    });
    assert!(matches!(ended, Err(Ended::Unavailable(None))), "{ended:?}");
    assert_eq!((asked, queues.by_name.lock().len()), (1, 0));
}

#[test]
fn only_the_front_asks_and_each_release_goes_to_the_next_in_order() {
    let queues = LocalQueues::default();
    let free = AtomicBool::new(false);
    let refusals = AtomicUsize::new(0);
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..50 {
            let (queues, free, refusals, order) = (&queues, &free, &refusals, &order);
            scope.spawn(move || {
                let terms = Terms { retry: Duration::from_secs(3600), ..terms(WAIT) };
                queues
                    .wait(&name(), &terms, |_| {
                        if free.swap(false, Ordering::SeqCst) {
                            return Ok(Answer::Got(()));
                        }
                        refusals.fetch_add(1, Ordering::SeqCst);
                        Ok(Answer::Busy(None))
                    })
                    .unwrap();
                order.lock().push(number);
                free.store(true, Ordering::SeqCst);
                queues.released(&name(), None, Duration::from_secs(3600));
            });
            until("the thread joins the queue", || in_queue(queues) == number + 1);
        }
        until("the front asks", || refusals.load(Ordering::SeqCst) == 1);
        free.store(true, Ordering::SeqCst);
        queues.released(&name(), None, Duration::from_secs(3600));
    });
    assert_eq!(*order.lock(), (0..50).collect::<Vec<_>>());
    assert_eq!(refusals.load(Ordering::SeqCst), 1, "only the front may ask the store");
    assert!(queues.by_name.lock().is_empty());
}

#[test]
fn a_cancelled_or_panicking_front_makes_way_for_the_next() {
    let queues = LocalQueues::default();
    let token = CancelToken::new();
    let free = AtomicBool::new(false);
    thread::scope(|scope| {
        let front = scope.spawn(|| {
            let terms = Terms { cancel: Some(&token), ..terms(Duration::MAX) };
            queues.wait::<()>(&name(), &terms, |_| Ok(Answer::Busy(None)))
        });
        until("the front is in queue", || in_queue(&queues) == 1);
        let panicking =
            scope.spawn(|| queues.wait::<()>(&name(), &terms(Duration::MAX), |_| panic!("planted")));
        until("the second is in queue", || in_queue(&queues) == 2);
        let last = scope.spawn(|| {
            queues.wait(&name(), &terms(Duration::MAX), |_| {
                Ok(if free.load(Ordering::SeqCst) { Answer::Got(7) } else { Answer::Busy(None) })
            })
        });
        until("the third is in queue", || in_queue(&queues) == 3);
        token.cancel();
        assert!(matches!(front.join().unwrap(), Err(Ended::Cancelled)));
        assert!(panicking.join().is_err());
        free.store(true, Ordering::SeqCst);
        assert_eq!(last.join().unwrap().unwrap(), 7);
    });
    assert!(queues.by_name.lock().is_empty());
}

#[test]
fn a_store_that_fails_the_front_fails_the_line_and_a_doubt_does_not() {
    let queues = LocalQueues::default();
    let down = AtomicBool::new(false);
    let ask = |_| -> Result<Answer<()>> {
        if down.load(Ordering::SeqCst) {
            return Err(Error::Connection { store: "s".into(), what: "refused".into(), source: None });
        }
        Ok(Answer::Busy(None))
    };
    thread::scope(|scope| {
        let waiters: Vec<_> =
            (0..20).map(|_| scope.spawn(|| queues.wait(&name(), &terms(Duration::MAX), ask))).collect();
        until("all are in queue", || in_queue(&queues) == 20);
        down.store(true, Ordering::SeqCst);
        for waiter in waiters {
            match waiter.join().unwrap() {
                Err(Ended::Failed(error)) => assert_eq!(error.code(), Code::ConnectionError),
                other => panic!("{other:?}"),
            }
        }
    });
    assert!(queues.by_name.lock().is_empty());

    let hurried = AtomicBool::new(true);
    let ask = |_| match hurried.swap(false, Ordering::SeqCst) {
        true => Err(Error::Connection { store: "s".into(), what: "no answer in 1 ms".into(), source: None }),
        false => Ok(Answer::Got(())),
    };
    thread::scope(|scope| {
        let front = scope.spawn(|| {
            let terms = Terms { speaks_for_all: false, ..terms(Duration::MAX) };
            queues.wait(&name(), &terms, |how| {
                until("another is in queue", || in_queue(&queues) == 2);
                ask(how)
            })
        });
        until("the front is in queue", || in_queue(&queues) == 1);
        let other = scope.spawn(|| queues.wait(&name(), &terms(Duration::MAX), ask));
        assert!(front.join().unwrap().is_err());
        assert!(other.join().unwrap().is_ok(), "a waiter with less time fails alone");
    });

    let doubts = AtomicUsize::new(0);
    let ask = |_| match doubts.fetch_add(1, Ordering::SeqCst) {
        0 => Err(Error::InDoubt { what: "lost".into(), source: None }),
        _ => Ok(Answer::Got(())),
    };
    let wait = || queues.wait(&name(), &terms(Duration::MAX), ask);
    let granted = thread::scope(|scope| {
        let both = [scope.spawn(wait), scope.spawn(wait)];
        both.into_iter().filter_map(|waiter| waiter.join().unwrap().ok()).count()
    });
    assert_eq!(granted, 1, "the doubt concerns only the waiter that asked");
}

/// It would say that the lock is held, though nobody has said so.
#[test]
fn a_wait_that_ends_behind_a_request_without_an_answer_asks_once() {
    let (held, over) = (Holder::new(None, None, None), terms(Duration::ZERO));
    for (known, is_granted) in [(None, false), (Some(held), false), (None, true)] {
        let queues = LocalQueues::new(Arc::new(Notices::off()), Arc::new(MemoryStore::new()));
        let [front, next] = [(); 2].map(|()| queues.join_without_thread(&name(), &rarely(), || {}));
        let Ok(QueueStep::Ask(_, releases)) = front.step(&rarely(), false) else { panic!("its turn") };
        let is_known = known.is_some() || is_granted;
        if known.is_some() {
            front.refused(known, &rarely(), releases);
        }
        match is_granted {
            true => front.granted(&rarely()),
            false => {
                let doubt = Error::InDoubt { what: "lost".into(), source: None };
                assert_eq!(front.failed(doubt, &rarely(), releases).code(), Code::InDoubt);
            }
        }
        drop(front);
        match next.step(&over, false) {
            Ok(QueueStep::Ask(Ask::Attempt, _)) => assert!(!is_known),
            Err(Ended::Unavailable(_)) => assert!(is_known),
            other => panic!("{other:?}"),
        }
        assert!(matches!(next.step(&over, true), Err(Ended::Unavailable(_))), "once");
    }
}

/// What was in the way of the one before it need not be in its own.
#[test]
fn a_wait_that_is_over_asks_once_unless_the_known_holder_excludes_it() {
    for (before, holder, mode, asks) in [
        (Mode::Permit, Mode::Permit, Mode::Permit, true),
        (Mode::Exclusive, Mode::Shared, Mode::Shared, true),
        (Mode::Exclusive, Mode::Shared, Mode::Exclusive, false),
        (Mode::Shared, Mode::Exclusive, Mode::Shared, false),
        (Mode::Update, Mode::Update, Mode::Update, false),
    ] {
        for is_waiting in [false, true] {
            let queues = LocalQueues::default();
            let front = queues.join(&name(), &in_mode(before));
            let over = Terms { by: Deadline::after(Duration::ZERO), ..in_mode(mode) };
            let next = queues.join(&name(), &over);
            let holder = held_as(holder).map(|holder| Holder { is_waiting, ..holder });
            front.refused(holder, &in_mode(before), 0);
            drop(front);
            match next.step(&over, false) {
                Ok(QueueStep::Ask(Ask::Attempt, _)) => assert!(asks && !is_waiting, "{before} {mode}"),
                Err(Ended::Unavailable(Some(_))) => assert!(!asks || is_waiting, "{before} {mode}"),
                other => panic!("{before} {mode}: {other:?}"),
            }
            assert!(matches!(next.step(&over, true), Err(Ended::Unavailable(_))), "once");
        }
    }
}

#[test]
fn closing_wakes_every_waiter() {
    let queues = LocalQueues::default();
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..10)
            .map(|_| {
                let terms = Terms { retry: Duration::from_secs(3600), ..terms(Duration::MAX) };
                let queues = &queues;
                scope.spawn(move || queues.wait::<()>(&name(), &terms, |_| Ok(Answer::Busy(None))))
            })
            .collect();
        until("all are in queue", || in_queue(&queues) == 10);
        queues.close();
        for waiter in waiters {
            assert!(matches!(waiter.join().unwrap(), Err(Ended::Failed(Error::Closed))));
        }
    });
}

/// Without the yield, a process with two busy threads would keep the lock from all others for ever.
#[test]
fn after_its_quantum_the_queue_yields_for_one_interval() {
    let queues = LocalQueues::default();
    let ticket = queues.join(&name(), &terms(WAIT));
    ticket.granted(&terms(WAIT));
    queues.released(&name(), None, Duration::from_secs(60));
    assert!(ticket.queue.state.lock().next_ask <= Moment::now(), "a hand-over is immediate");
    let long_ago = Moment::now().as_nanos() - (RETRY * (QUANTUM + 1)).as_nanos() as u64;
    ticket.queue.state.lock().ours_since = Some(Moment::from_nanos(long_ago));
    let before = Moment::now();
    queues.released(&name(), None, RETRY);
    let state = ticket.queue.state.lock();
    assert!(state.next_ask >= before.after(RETRY.mul_f64(1.1)), "others get one interval");
    assert!(state.ours_since.is_none());
}

#[test]
fn a_loop_of_one_thread_yields_after_its_quantum_and_a_brief_wait_asks_all_the_same() {
    let queues = LocalQueues::default();
    let got = |wait| queues.wait(&name(), &terms(wait), |how| Ok(Answer::Got(how))).unwrap();
    let (long_ago, by) = (Moment::from_nanos(0), Deadline::after(LONG));
    loop {
        queues.recent.lock().held(name(), long_ago);
        let released = Moment::now();
        queues.released(&name(), None, RETRY);
        let how = got(Duration::MAX);
        assert!(Moment::now().since(released) >= RETRY.mul_f64(1.1), "others get one interval");
        assert!(queues.by_name.lock().is_empty());
        assert!(matches!(queues.recent.lock().take(&name()), Past::Held(since) if since >= released));
        // If this thread paused for the whole interval, there is nothing left to wait for.
        if how == Ask::Read {
            break;
        }
        assert!(!by.passed(), "it never looked first");
    }

    queues.recent.lock().held(name(), long_ago);
    queues.released(&name(), None, RETRY);
    got(Duration::ZERO);
}

#[test]
fn a_loop_of_one_thread_asks_at_once_for_as_long_as_its_quantum_lasts() {
    let queues = LocalQueues::default();
    let an_hour = Duration::from_secs(3600);
    let got = || queues.wait(&name(), &terms(Duration::MAX), |how| Ok(Answer::Got(how))).unwrap();
    assert_eq!(got(), Ask::Attempt);
    let Past::Held(since) = queues.recent.lock().take(&name()) else { panic!("it was forgotten") };
    queues.recent.lock().held(name(), since);
    for _ in 0..10 {
        queues.released(&name(), None, an_hour);
        assert_eq!(got(), Ask::Attempt);
    }
    assert_eq!(queues.recent.lock().take(&name()), Past::Held(since), "the quantum began anew");
}

/// The store answers "busy" to the front, and the lock is released here before the answer arrives.
#[test]
fn a_release_while_the_front_asks_is_not_lost() {
    let queues = LocalQueues::default();
    let ticket = queues.join(&name(), &terms(WAIT));
    let seen = ticket.queue.state.lock().releases;
    queues.released(&name(), None, Duration::from_secs(60));
    ticket.refused(None, &rarely(), seen);
    let state = ticket.queue.state.lock();
    assert!(state.next_ask <= Moment::now() && state.how == Ask::Attempt);
}

#[test]
fn holds_longer_than_the_interval_end_the_quantum_too() {
    let queues = LocalQueues::default();
    let ticket = queues.join(&name(), &terms(WAIT));
    ticket.granted(&terms(WAIT));
    ticket.refused(None, &terms(Duration::from_secs(60)), 0);
    assert!(ticket.queue.state.lock().ours_since.is_some(), "refused by ourselves");
    ticket.queue.state.lock().ours = false;
    ticket.refused(None, &terms(Duration::from_secs(60)), 0);
    assert!(ticket.queue.state.lock().ours_since.is_none(), "refused by another");
}

#[test]
fn the_next_question_comes_no_later_than_the_lease_it_waits_for() {
    let queues = LocalQueues::default();
    let ticket = queues.join(&name(), &terms(WAIT));
    let before = Moment::now();
    let holder = |left| Some(Holder::new(None, Some(left), None));
    ticket.refused(holder(Duration::from_secs(5)), &rarely(), 0);
    let wait = ticket.queue.state.lock().next_ask.since(before);
    assert!(wait >= Duration::from_secs(5) && wait < Duration::from_secs(50), "{wait:?}");
    ticket.refused(holder(Duration::ZERO), &rarely(), 0);
    let wait = ticket.queue.state.lock().next_ask.since(before);
    assert!(wait >= Duration::from_secs(3), "clocks that disagree must not make it spin: {wait:?}");
}

/// The length of a pause comes with a datagram, which anybody may have sent.
#[test]
fn a_pause_of_any_length_delays_one_poll_by_little_and_never_past_the_end_of_the_lease() {
    let (queues, retry) = (LocalQueues::default(), Duration::from_secs(60));
    let ticket = queues.join(&name(), &Terms { retry, ..terms(WAIT) });
    let next_ask = || ticket.queue.state.lock().next_ask;
    let before = Moment::now();
    ticket.refused(None, &rarely(), 0);
    queues.pause(&name(), Moment::NEVER);
    let paused = next_ask();
    assert!(paused > before.after(retry * 11 / 10), "it pauses");
    assert!(paused <= Moment::now().after(retry * 6 / 5), "{:?}", paused.since(before));
    queues.pause(&name(), Moment::NEVER);
    assert_eq!(next_ask(), paused, "one pause until it has looked at the store");
    let holder = Some(Holder::new(None, Some(retry / 4), None));
    ticket.refused(holder, &rarely(), 0);
    queues.pause(&name(), Moment::NEVER);
    assert!(next_ask() <= Moment::now().after(retry / 4), "the lease ends earlier");
    // A holder whose end is not known.
    ticket.refused(None, &rarely(), 0);
    let polled = next_ask();
    queues.pause(&name(), Moment::now().after(retry / 10));
    assert_eq!(next_ask(), polled, "a short pause makes nobody ask earlier");
    queues.pause(&name(), Moment::now().after(retry * 23 / 20));
    assert!(next_ask() > polled, "and prevents no later one");
}

#[test]
fn a_waiter_polls_on_whatever_pauses_it_is_told() {
    let (queues, is_over) = (LocalQueues::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                queues.pause(&name(), Moment::NEVER);
                thread::yield_now();
            }
        });
        let mut polls = 0;
        let ended = queues.wait(&name(), &terms(LONG), |_| {
            polls += 1;
            Ok(if polls == 10 { Answer::Got(()) } else { Answer::Busy(None) })
        });
        is_over.store(true, Ordering::SeqCst);
        assert!(ended.is_ok(), "it asked {polls} times: {ended:?}");
    });
}

#[test]
fn the_reads_of_many_locks_fall_together_and_those_of_few_do_not() {
    let (queues, retry) = (LocalQueues::default(), Duration::from_secs(8));
    let name =
        |id: usize| LockName::new(Level::Xdc, "tests", None, &format!("{id}"), NamePolicy::Strict).unwrap();
    let moments = |tickets: &[QueueTicket<&LocalQueues>]| {
        let began = Moment::now();
        for ticket in tickets {
            ticket.refused(None, &Terms { retry, ..rarely() }, 0);
        }
        let next = tickets.iter().map(|ticket| ticket.queue.state.lock().next_ask);
        let mut moments: Vec<_> = next.collect();
        assert!(moments.iter().all(|at| at.since(began) > retry / 2), "{moments:?}");
        let latest = Moment::now().after(retry * 2);
        assert!(moments.iter().all(|at| *at < latest), "{moments:?}");
        moments.sort();
        moments.dedup();
        (moments.len(), Moment::now().since(began))
    };
    let mut tickets: Vec<_> =
        (0..MANY - 1).map(|id| queues.join(&name(id), &Terms { retry, ..terms(WAIT) })).collect();
    assert_eq!(moments(&tickets).0, MANY - 1);
    assert!(!queues.waits_for_many());
    tickets.extend((MANY..300).map(|id| queues.join(&name(id), &Terms { retry, ..terms(WAIT) })));
    assert!(queues.waits_for_many());
    let (many, took) = moments(&tickets);
    // A tenth more or less than the interval, in eighths of it, and those that passed meanwhile.
    assert!(many as u64 <= 4 + took.as_secs(), "{many} moments in {took:?}");
}

fn in_mode(mode: Mode) -> Terms<'static> {
    Terms { mode, retry: Duration::from_secs(60), ..terms(WAIT) }
}

/// Returns the modes of the waiters, the front first.
fn modes(ticket: &QueueTicket<&LocalQueues>) -> Vec<Mode> {
    ticket.queue.state.lock().waiting.iter().map(|waiter| waiter.mode).collect()
}

fn held_as(mode: Mode) -> Option<Holder> {
    Some(Holder::new(None, None, None).with_mode(mode))
}

/// Readers that come once in a while must not make the quantum of a process longer: others poll, and do not find them.
#[test]
fn a_short_hold_of_readers_does_not_begin_another_quantum() {
    let queues = LocalQueues::default();
    let ticket = queues.join(&name(), &terms(WAIT));
    let refused_by = |mode, retry| {
        ticket.granted(&terms(WAIT));
        let since = ticket.queue.state.lock().ours_since;
        queues.released(&name(), None, Duration::from_secs(60));
        let releases = ticket.queue.state.lock().releases;
        ticket.refused(held_as(mode), &terms(WAIT), releases);
        ticket.granted(&Terms { retry, ..terms(WAIT) });
        ticket.queue.state.lock().ours_since == since
    };
    assert!(refused_by(Mode::Shared, Duration::from_secs(60)));
    assert!(refused_by(Mode::Update, Duration::from_secs(60)));
    assert!(!refused_by(Mode::Shared, Duration::from_nanos(1)), "each other process has polled meanwhile");
    assert!(!refused_by(Mode::Exclusive, Duration::from_secs(60)));
}

/// It keeps new readers out, so those that it found may be the last ones.
#[test]
fn a_writer_that_readers_keep_out_asks_after_half_an_interval_but_not_for_long() {
    let queues = LocalQueues::default();
    let waits = |mode, held, times: usize| {
        let ticket = queues.join(&name(), &in_mode(mode));
        let (terms, half) = (in_mode(mode), Duration::from_secs(30));
        let waits = (0..times).map(|_| {
            let asked = Moment::now();
            ticket.refused(held_as(held), &terms, 0);
            let next = ticket.queue.state.lock().next_ask;
            (next < Moment::now().after(half * 3 / 2), next > asked.after(half * 3 / 4))
        });
        let waits: Vec<_> = waits.collect();
        ticket.granted(&terms);
        waits
    };
    let (half, whole) = ((true, true), (false, true));
    for held in [Mode::Shared, Mode::Update] {
        let early = usize::from(ASKS_BESIDE_READERS);
        let expected = [vec![half; early], vec![whole; 2]].concat();
        assert_eq!(waits(Mode::Exclusive, held, early + 2), expected, "{held}");
    }
    assert_eq!(waits(Mode::Exclusive, Mode::Exclusive, 1), [whole]);
    assert_eq!(waits(Mode::Shared, Mode::Exclusive, 1), [whole]);
    assert_eq!(waits(Mode::Update, Mode::Update, 1), [whole]);
}

/// A thread that asks locks one queue, one that leaves locks all of them and then its own. Whoever locks them in another
/// order stops both for ever.
#[test]
fn waiters_that_are_refused_and_waiters_that_leave_never_stop_each_other() {
    let queues = Arc::new(LocalQueues::default());
    let (done, all_done) = crossbeam_channel::bounded(4);
    for mode in [Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Update] {
        let (queues, done) = (Arc::clone(&queues), done.clone());
        // Not joined: a failure is reported although they stand still.
        thread::spawn(move || {
            let terms = Terms { mode, ..terms(Duration::ZERO) };
            // With fewer, one run in ten is over before two of them meet.
            for number in 0..20_000 {
                let got = queues.wait::<()>(&name(), &terms, |_| match number % 3 {
                    0 => Ok(Answer::Busy(held_as(Mode::Shared))),
                    1 => Ok(Answer::Busy(held_as(Mode::Exclusive))),
                    _ => Ok(Answer::Got(())),
                });
                if got.is_ok() {
                    queues.released(&name(), None, RETRY);
                }
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..4 {
        all_done.recv_timeout(LONG).expect("the threads stand still");
    }
}

/// One after the other, each would wait for the answers to all before it.
#[test]
fn readers_behind_a_reader_that_got_the_lock_ask_at_the_same_time_up_to_the_next_writer() {
    let queues = LocalQueues::default();
    for joins_together in [true, false] {
        let terms = |mode| Terms { joins_together, ..in_mode(mode) };
        let join = |mode| queues.join(&name(), &terms(mode));
        let modes = [Mode::Shared, Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Shared];
        let tickets = modes.map(join);
        let asks = |at: usize| {
            let step = tickets[at].step(&terms(modes[at]), false).unwrap();
            matches!(step, QueueStep::Ask(Ask::Attempt, _))
        };
        assert_eq!([0, 1, 2, 3, 4].map(asks), [true, false, false, false, false], "only the front");
        tickets[0].granted(&in_mode(Mode::Shared));
        // The front asks again at once, because it stands for the one that follows it.
        assert_eq!([1, 2, 3, 4].map(asks), [joins_together, joins_together, false, false]);
        assert_eq!([1, 2].map(asks), [false; 2], "once");
        drop(tickets);
    }
}

/// Both can have the lock, and the updater waits for another one.
#[test]
fn a_reader_goes_before_one_that_waits_for_an_updater_for_a_while() {
    let queues = LocalQueues::default();
    let join = |mode| queues.join(&name(), &in_mode(mode));
    let updater = join(Mode::Update);
    let before = join(Mode::Shared);
    assert_eq!(modes(&updater), [Mode::Update, Mode::Shared], "nobody knows what the updater waits for");
    updater.refused(held_as(Mode::Update), &in_mode(Mode::Update), 0);
    drop(before);
    let passing = join(Mode::Shared);
    assert_eq!(modes(&updater), [Mode::Shared, Mode::Update]);
    assert_eq!(passing.step(&in_mode(Mode::Shared), true).unwrap(), QueueStep::Ask(Ask::Attempt, 1));
    let writer = join(Mode::Exclusive);
    let behind = join(Mode::Shared);
    assert_eq!(modes(&updater), [Mode::Shared, Mode::Update, Mode::Exclusive, Mode::Shared]);
    drop((passing, writer, behind));
    // Its interval is so short that readers have passed it for long enough.
    let short = || Terms { retry: Duration::from_nanos(1), ..in_mode(Mode::Update) };
    let other = queues.join(&name(), &Terms { is_within: true, ..short() });
    let releases = other.queue.state.lock().releases;
    other.refused(held_as(Mode::Update), &short(), releases);
    drop(updater);
    let reader = join(Mode::Shared);
    assert_eq!(modes(&reader), [Mode::Update, Mode::Shared]);
}

#[test]
fn readers_that_have_waited_behind_a_writer_for_long_go_before_it_together() {
    let queues = LocalQueues::default();
    let join = |terms: &Terms<'_>| queues.join(&name(), terms);
    let writer = join(&in_mode(Mode::Exclusive));
    writer.refused(held_as(Mode::Shared), &in_mode(Mode::Exclusive), 0);
    let readers = [join(&in_mode(Mode::Shared)), join(&in_mode(Mode::Update))];
    let patient = Terms { retry: Duration::from_millis(1), ..in_mode(Mode::Shared) };
    let last = join(&patient);
    assert!(matches!(readers[0].step(&in_mode(Mode::Shared), false), Ok(QueueStep::Park(_))));
    thread::sleep(Duration::from_millis(1) * QUANTUM);
    // One that has waited for its own ten intervals takes all with it that want no more than it does.
    assert!(matches!(last.step(&patient, false), Ok(QueueStep::Park(_))), "the first of them asks");
    assert_eq!(modes(&last), [Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Update]);
    assert!(matches!(readers[0].step(&in_mode(Mode::Shared), false), Ok(QueueStep::Ask(Ask::Attempt, _))));
    // What the writer is told now says nothing about when the first reader asks.
    let asks = last.queue.state.lock().next_ask;
    let releases = last.queue.state.lock().releases;
    writer.refused(held_as(Mode::Shared), &in_mode(Mode::Exclusive), releases);
    assert_eq!(last.queue.state.lock().next_ask, asks);
}

#[test]
fn a_reader_whose_wait_is_over_behind_an_updater_asks_once() {
    let queues = LocalQueues::default();
    let updater = queues.join(&name(), &in_mode(Mode::Update));
    updater.refused(held_as(Mode::Shared), &in_mode(Mode::Update), 0);
    let over = Terms { by: Deadline::after(Duration::ZERO), ..in_mode(Mode::Shared) };
    let reader = queues.join(&name(), &over);
    assert!(matches!(reader.step(&over, false), Ok(QueueStep::Ask(Ask::Attempt, _))));
    assert!(matches!(reader.step(&over, true), Err(Ended::Unavailable(_))));
    let writer = queues.join(&name(), &Terms { is_within: true, ..in_mode(Mode::Exclusive) });
    assert!(matches!(reader.step(&over, false), Err(Ended::Unavailable(_))), "a writer is before it");
    drop(writer);
}

/// The request of a reader in front of it may hang.
#[test]
fn an_updater_whose_wait_is_over_behind_readers_asks_once() {
    let queues = LocalQueues::default();
    let _reader = queues.join(&name(), &in_mode(Mode::Shared));
    let over = |mode| Terms { by: Deadline::after(Duration::ZERO), ..in_mode(mode) };
    let updater = queues.join(&name(), &over(Mode::Update));
    let (second, writer) =
        (queues.join(&name(), &over(Mode::Update)), queues.join(&name(), &over(Mode::Exclusive)));
    let step = |ticket: &QueueTicket<_>, mode, asked| ticket.step(&over(mode), asked);
    assert!(matches!(step(&updater, Mode::Update, false), Ok(QueueStep::Ask(Ask::Attempt, _))));
    assert!(matches!(step(&updater, Mode::Update, true), Err(Ended::Unavailable(_))));
    assert!(matches!(step(&second, Mode::Update, false), Err(Ended::Unavailable(_))), "another is before it");
    assert!(matches!(step(&writer, Mode::Exclusive, false), Err(Ended::Unavailable(_))));
}

/// Otherwise readers that read longer than ten intervals would leave no gap for a writer.
#[test]
fn a_reader_waits_for_as_long_as_the_writer_in_front_of_it_had_waited() {
    let queues = LocalQueues::default();
    let writer = queues.join(&name(), &in_mode(Mode::Exclusive));
    thread::sleep(Duration::from_millis(20));
    let hasty = Terms { retry: Duration::from_nanos(1), ..in_mode(Mode::Shared) };
    let [reader, patient] = [queues.join(&name(), &hasty), queues.join(&name(), &in_mode(Mode::Shared))];
    let state = reader.queue.state.lock();
    let waited = reader.waiter.arrived.since(writer.waiter.arrived);
    assert!(waited >= Duration::from_millis(20));
    assert_eq!(state.turn_of(&reader.waiter), Some(reader.waiter.arrived.after(waited)));
    assert_eq!(
        state.turn_of(&patient.waiter),
        Some(patient.waiter.turn_at()),
        "ten of its intervals are longer"
    );
    assert_eq!(state.turn_of(&writer.waiter), None);
    drop(state);
}

#[cfg(feature = "embedded")]
type PollersSite = (tempfile::TempDir, Arc<dyn LockStore>, [Arc<LocalQueues>; 2]);

/// A store that knows who polls, and queues of two managers that use it: one without notices, one with them. `None` if files are
/// not changed through the memory map here.
#[cfg(feature = "embedded")]
fn where_pollers_are_known() -> Option<PollersSite> {
    let directory = tempfile::tempdir().unwrap();
    let store: Arc<dyn LockStore> = Arc::new(crate::store::EmbeddedStore::open(directory.path()).unwrap());
    if !store.shared_directory().unwrap().join("words").exists() {
        eprintln!("*** SKIPPED: the folder for temporary files is not on ext4 or tmpfs");
        return None;
    }
    let with = Notices::new(&NoticesSetting::Local, false, store.shared_directory()).unwrap();
    assert!(with.are_open());
    let queues =
        [Notices::off(), with].map(|notices| LocalQueues::new(Arc::new(notices), Arc::clone(&store)));
    Some((directory, store, queues))
}

#[cfg(feature = "embedded")]
#[test]
fn a_queue_that_passes_a_lock_on_yields_only_if_somebody_polls() {
    let Some((_directory, store, queues)) = where_pollers_are_known() else { return };
    let yields = |queues: &Arc<LocalQueues>| {
        let terms = Terms { retry: Duration::from_millis(1), ..terms(WAIT) };
        let front = queues.join(&name(), &terms);
        let _behind = queues.join(&name(), &terms);
        front.granted(&terms);
        drop(front);
        thread::sleep(2 * QUANTUM * terms.retry);
        queues.released(&name(), None, terms.retry);
        queues.by_name.lock()[&name()].state.lock().yielding
    };
    let [without, with] = queues;
    assert!(!yields(&with));
    assert!(yields(&without), "it does not know of others");
    store.note_poller(Moment::now().after(LONG));
    assert!(yields(&with));
}

#[cfg(feature = "embedded")]
#[test]
fn who_is_refused_and_does_not_wait_in_the_queue_of_other_processes_notes_that_it_polls() {
    let refused = |has_notices: usize, times: usize, is_held_here: bool| {
        let (_directory, store, queues) = where_pollers_are_known()?;
        let terms = Terms { retry: Duration::from_secs(60), ..terms(WAIT) };
        let waiter = queues[has_notices].join(&name(), &terms);
        if is_held_here {
            waiter.granted(&terms);
        }
        (0..times).for_each(|_| waiter.refused(None, &terms, 0));
        Some(store.may_have_pollers())
    };
    let Some(may_have_pollers) = refused(0, 0, false) else { return };
    assert!(!may_have_pollers);
    assert_eq!(refused(0, 1, false), Some(true), "it has no notices");
    assert_eq!(refused(1, 1, false), Some(false), "it may be registered soon");
    assert_eq!(refused(1, 2, false), Some(true), "nobody has answered");
    assert_eq!(refused(1, 2, true), Some(false), "a thread of this process has it");
}

//! One shard: the ids that hash to it, and how an id passes from one thread to the next.
//!
//! All decisions are made under the shard's mutex, which nobody holds for longer than a lookup. So a
//! waiter cannot both be granted and time out, and no atomics but those of the mutex are needed.
//! States of an id:
//!
//! | entry | the id is | waiters |
//! |---|---|---|
//! | none | free | none |
//! | `Held` | held | none |
//! | `Queued`, `held` | held | one or more, parked or waking up |
//! | `Queued`, not `held` | free for the first thread that takes it | one or more; the first one has been called |
//!
//! The last row is the invariant that prevents lost wake-ups: while an id is free and has waiters,
//! `called` is set. Only the first waiter, when it wakes up or leaves, and a hand-over clear it.

use std::collections::VecDeque;
use std::hint;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hashbrown::HashTable;

use crate::runtime::process::threads;
use crate::runtime::sync::{Condvar, Mutex};
use crate::runtime::time::instant;

/// How long newcomers may take an id that has waiters. After this time, one release is a hand-over.
///
/// A hand-over costs a thread switch: some microseconds in which nobody uses the id. Once in 500 us,
/// this cost does not matter. A waiter waits at most about this time for each thread in front of it.
const HAND_OVER_EVERY: Duration = Duration::from_micros(500);

/// How often a thread tries again to take an id before it parks. It spins before the first tries, and yields
/// before the later ones.
const SPINS: u32 = 6;
/// How many of these tries spin: for 2, 4 and 8 loops.
const PAUSES: u32 = 3;

/// Aligned, to keep two shards from sharing a cache line or a pair of lines that are fetched together.
#[repr(align(128))]
pub(super) struct Shard<K> {
    entries: Mutex<Entries<K>>,
}

/// Only the key's `Eq` can panic under the mutex. It is called before anything changes, so nobody sees a
/// half-changed shard.
impl<K> RefUnwindSafe for Shard<K> {}

impl<K> Shard<K> {
    pub(super) fn len(&self) -> usize {
        self.entries.lock().len()
    }
}

impl<K: Eq + Clone> Shard<K> {
    #[inline]
    pub(super) fn try_lock(&self, hash: u64, id: &K) -> bool {
        // Cloned before the mutex is locked. If it is not needed, it is dropped after the unlock.
        let mut spare = Some(id.clone());
        self.entries.lock().take(hash, id, &mut spare)
    }

    /// Locks the id. Returns false at the deadline; without one, waits for ever.
    #[inline]
    pub(super) fn lock_until(&self, hash: u64, id: &K, deadline: Option<Instant>) -> bool {
        self.try_lock(hash, id) || self.lock_slow(hash, id, deadline)
    }

    #[cold]
    fn lock_slow(&self, hash: u64, id: &K, deadline: Option<Instant>) -> bool {
        let mut spare = Some(id.clone());
        for spin in 1..=SPINS {
            if deadline.is_some_and(|deadline| deadline <= instant()) {
                return false;
            }
            if spin <= PAUSES {
                (0..1 << spin).for_each(|_| hint::spin_loop());
            } else {
                threads::yield_now();
            }
            if self.entries.lock().take(hash, id, &mut spare) {
                return true;
            }
        }
        self.wait(hash, id, spare, deadline)
    }

    /// Joins the queue and waits until it is granted the id, finds it free, is dismissed or times out.
    fn wait(&self, hash: u64, id: &K, mut spare: Option<K>, deadline: Option<Instant>) -> bool {
        let mut entries = self.entries.lock();
        if entries.take(hash, id, &mut spare) {
            return true;
        }
        let me = Arc::new(IdWaiter::default());
        entries.find(hash, id).expect("a held id has an entry").enqueue(&me, instant());

        loop {
            let timed_out = match deadline {
                None => {
                    me.called.wait(&mut entries);
                    false
                }
                Some(deadline) => me.called.wait_until(&mut entries, deadline).timed_out(),
            };
            match me.fate.load(Relaxed) {
                IdWaiter::GRANTED => return true,
                IdWaiter::DISMISSED => return false,
                _ => {}
            }
            let entry = entries.find(hash, id).expect("an id with waiters has an entry");
            if let Some(locked) = entry.wake(&me, timed_out) {
                return locked;
            }
        }
    }
}

impl<K: Eq> Shard<K> {
    /// Releases the id. Returns whether it was held; for the owner of a guard it always was.
    #[inline]
    pub(super) fn unlock(&self, hash: u64, id: &K) -> bool {
        // The entry is dropped and the waiter is woken after the mutex is released: dropping a key may be
        // slow, and a thread woken earlier would block on the mutex.
        let mut entries = self.entries.lock();
        let Some(entry) = entries.find(hash, id) else { return false };
        match &entry.state {
            IdState::Held => {
                let removed = entries.remove(hash, id);
                drop(entries);
                drop(removed);
            }
            IdState::Queued(queue) if !queue.held => return false,
            IdState::Queued(_) => {
                let next = entry.pass_on(instant());
                drop(entries);
                if let Some(next) = next {
                    next.called.notify_one();
                }
            }
        }
        true
    }
}

#[cfg(feature = "capi")]
impl<K> Shard<K> {
    /// Empties the shard. Its waiters return without the id.
    pub(super) fn evict(&self) {
        let mut entries = self.entries.lock();
        let evicted = std::mem::take(&mut *entries);
        let near = evicted.near.into_iter().flatten();
        let waiters: Vec<_> = near
            .chain(evicted.far.into_iter().map(|(_, entry)| entry))
            .filter_map(
                |entry| if let IdState::Queued(queue) = entry.state { Some(queue.waiters) } else { None },
            )
            .flatten()
            .collect();
        // Set before the mutex is released: a waiter that wakes up no longer finds its id.
        waiters.iter().for_each(|waiter| waiter.fate.store(IdWaiter::DISMISSED, Relaxed));
        drop(entries);
        waiters.iter().for_each(|waiter| {
            waiter.called.notify_one();
        });
    }

    #[cfg(test)]
    pub(super) fn waiters(&self) -> usize {
        let entries = self.entries.lock();
        let entries = entries.near.iter().flatten().chain(entries.far.iter().map(|(_, entry)| entry));
        entries.map(|it| if let IdState::Queued(queue) = &it.state { queue.waiters.len() } else { 0 }).sum()
    }
}

impl<K> Default for Shard<K> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

/// The ids of one shard that are held or waited for.
///
/// The first few are in the shard itself. There are seldom more if there are fewer threads than shards,
/// so locking allocates nothing and touches one or two cache lines. The rest are in a table.
struct Entries<K> {
    near: [Option<IdEntry<K>>; NEAR],
    /// Stored with their hashes, to grow and shrink without calling the key's code.
    far: HashTable<(u64, IdEntry<K>)>,
}

/// With this number, a shard of 8-byte ids takes 128 bytes.
const NEAR: usize = 3;

/// Largest table that is not worth shrinking.
const SMALL_TABLE: usize = 16;

struct Removed<K> {
    _entry: IdEntry<K>,
    _table: Option<HashTable<(u64, IdEntry<K>)>>,
}

impl<K> Entries<K> {
    fn len(&self) -> usize {
        self.near.iter().flatten().count() + self.far.len()
    }
}

impl<K: Eq> Entries<K> {
    /// Makes the caller the holder if the id is free. A new entry is made from `spare`, a clone of the id.
    #[inline]
    fn take(&mut self, hash: u64, id: &K, spare: &mut Option<K>) -> bool {
        if let Some(entry) = self.find(hash, id) {
            return entry.take();
        }
        let id = spare.take().expect("only success takes it");
        let entry = IdEntry { id, state: IdState::Held };
        match self.near.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(entry),
            None => {
                self.far.insert_unique(hash, (hash, entry), |(hash, _)| *hash);
            }
        }
        true
    }

    #[inline]
    fn find(&mut self, hash: u64, id: &K) -> Option<&mut IdEntry<K>> {
        if let Some(entry) = self.near.iter_mut().flatten().find(|entry| entry.id == *id) {
            return Some(entry);
        }
        if self.far.is_empty() {
            return None;
        }
        self.far.find_mut(hash, |(_, entry)| entry.id == *id).map(|(_, entry)| entry)
    }

    #[inline]
    fn remove(&mut self, hash: u64, id: &K) -> Option<Removed<K>> {
        let is_it = |entry: &IdEntry<K>| entry.id == *id;
        if let Some(slot) = self.near.iter_mut().find(|slot| slot.as_ref().is_some_and(is_it)) {
            return slot.take().map(|entry| Removed { _entry: entry, _table: None });
        }
        let found = self.far.find_entry(hash, |(_, entry)| entry.id == *id).ok()?;
        let ((_, entry), _) = found.remove();
        Some(Removed { _entry: entry, _table: self.trim() })
    }

    /// Frees unused memory of the table. Returns an empty table, to be dropped without the mutex. Shrinks a
    /// table to twice its load once less than an eighth of it is in use, which keeps moves rare.
    fn trim(&mut self) -> Option<HashTable<(u64, IdEntry<K>)>> {
        let (len, size) = (self.far.len(), self.far.num_buckets());
        if len == 0 {
            return Some(std::mem::take(&mut self.far));
        }
        if size > SMALL_TABLE && len < size / 8 {
            self.far.shrink_to(len * 2, |(hash, _)| *hash);
        }
        None
    }
}

impl<K> Default for Entries<K> {
    fn default() -> Self {
        Self { near: [const { None }; NEAR], far: HashTable::new() }
    }
}

struct IdEntry<K> {
    id: K,
    state: IdState,
}

enum IdState {
    Held,
    /// Boxed, to keep the entry of an id without waiters small.
    Queued(Box<IdQueue>),
}

struct IdQueue {
    held: bool,
    /// The first waiter has been woken and has not run yet, so nobody else must be woken.
    called: bool,
    hand_over_at: Instant,
    /// In the order of arrival; never empty.
    waiters: VecDeque<Arc<IdWaiter>>,
}

#[derive(Default)]
struct IdWaiter {
    called: Condvar,
    /// Read and written under the shard's mutex only.
    fate: AtomicU8,
}

impl IdWaiter {
    /// The id was handed over to this waiter, which has left the queue. (Zero means that it is in the queue.)
    const GRANTED: u8 = 1;
    /// The shard was evicted, together with the queue.
    const DISMISSED: u8 = 2;

    #[cfg(test)]
    fn granted(&self) -> bool {
        self.fate.load(Relaxed) == IdWaiter::GRANTED
    }
}

impl<K> IdEntry<K> {
    fn take(&mut self) -> bool {
        match &mut self.state {
            IdState::Queued(queue) if !queue.held => {
                queue.held = true;
                true
            }
            _ => false,
        }
    }

    /// Adds a waiter to an id that is held.
    fn enqueue(&mut self, waiter: &Arc<IdWaiter>, now: Instant) {
        if let IdState::Held = self.state {
            self.state = IdState::Queued(Box::new(IdQueue {
                held: true,
                called: false,
                hand_over_at: now + HAND_OVER_EVERY,
                waiters: VecDeque::new(),
            }));
        }
        if let IdState::Queued(queue) = &mut self.state {
            queue.waiters.push_back(Arc::clone(waiter));
        }
    }

    /// Releases an id that has waiters. Returns the waiter to wake, if any.
    fn pass_on(&mut self, now: Instant) -> Option<Arc<IdWaiter>> {
        let IdState::Queued(queue) = &mut self.state else { return None };
        if now < queue.hand_over_at {
            queue.held = false;
            let called = std::mem::replace(&mut queue.called, true);
            return queue.waiters.front().filter(|_| !called).cloned();
        }
        queue.hand_over_at = now + HAND_OVER_EVERY;
        let called = std::mem::take(&mut queue.called);
        let next = queue.waiters.pop_front()?;
        next.fate.store(IdWaiter::GRANTED, Relaxed);
        if queue.waiters.is_empty() {
            self.state = IdState::Held;
        }
        (!called).then_some(next)
    }

    /// Handles a waiter that woke up: called, timed out, or spuriously. Returns `None` if it must wait on.
    /// Otherwise it has left the queue, with the id if true. It takes a free id even after a time-out, because
    /// the id would stay free without anybody to wake the next waiter.
    fn wake(&mut self, waiter: &Arc<IdWaiter>, timed_out: bool) -> Option<bool> {
        let IdState::Queued(queue) = &mut self.state else { unreachable!("an id with a waiter has a queue") };
        let index = queue.waiters.iter().position(|other| Arc::ptr_eq(other, waiter));
        let index = index.expect("a waiter stays in the queue until granted");
        if index == 0 {
            queue.called = false;
        }
        let locked = !queue.held;
        if !locked && !timed_out {
            return None;
        }
        queue.held = true;
        queue.waiters.remove(index);
        if queue.waiters.is_empty() {
            self.state = IdState::Held;
        }
        Some(locked)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_shard_of_numbers_does_not_outgrow_its_128_bytes() {
        assert_eq!(size_of::<Shard<u64>>(), 128);
    }

    /// Makes an entry that is held, with this number of waiters since `now`.
    fn queued(waiters: usize, now: Instant) -> (IdEntry<u64>, Vec<Arc<IdWaiter>>) {
        let mut entry = IdEntry { id: 7, state: IdState::Held };
        let waiters: Vec<_> = (0..waiters).map(|_| Arc::default()).collect();
        waiters.iter().for_each(|waiter| entry.enqueue(waiter, now));
        (entry, waiters)
    }

    fn is(waiter: Option<Arc<IdWaiter>>, expected: &Arc<IdWaiter>) -> bool {
        waiter.is_some_and(|waiter| Arc::ptr_eq(&waiter, expected))
    }

    #[test]
    fn releases_do_not_stampede_the_waiters() {
        let early = Instant::now();
        let (mut entry, waiters) = queued(3, early);
        assert!(is(entry.pass_on(early), &waiters[0]));
        for _ in 0..10 {
            // A newcomer is faster than the called waiter. Its release calls nobody else.
            assert!(entry.take());
            assert!(!entry.take(), "held twice");
            assert!(entry.pass_on(early).is_none());
        }
        assert!(entry.take());
        assert_eq!(entry.wake(&waiters[0], false), None, "it is held, so wait on");
        assert!(is(entry.pass_on(early), &waiters[0]), "parked again, so call again");
        assert_eq!(entry.wake(&waiters[0], false), Some(true));
        assert!(is(entry.pass_on(early), &waiters[1]));
    }

    #[test]
    fn the_longest_waiter_is_not_passed_over_for_ever() {
        let mut now = Instant::now();
        let (mut entry, waiters) = queued(2, now);
        now += HAND_OVER_EVERY;
        assert!(is(entry.pass_on(now), &waiters[0]));
        assert!(waiters[0].granted());
        assert!(!entry.take(), "handed over, so not up for grabs");
        // Not on every release: that would switch threads each time.
        assert!(is(entry.pass_on(now), &waiters[1]));
        assert!(!waiters[1].granted());
        assert!(entry.take());
        // It has been called already and will find the grant.
        now += HAND_OVER_EVERY;
        assert!(entry.pass_on(now).is_none());
        assert!(waiters[1].granted());
        assert!(matches!(entry.state, IdState::Held), "the queue must go with its last waiter");
    }

    #[test]
    fn a_waiter_that_gives_up_takes_no_wake_up_with_it() {
        let early = Instant::now();
        let (mut entry, waiters) = queued(2, early);
        assert!(is(entry.pass_on(early), &waiters[0]));
        assert!(entry.take());
        assert_eq!(entry.wake(&waiters[0], true), Some(false));
        assert!(is(entry.pass_on(early), &waiters[1]));
        assert_eq!(entry.wake(&waiters[1], true), Some(true), "free, so taken even if late");
        assert!(matches!(entry.state, IdState::Held));
    }

    /// A holder that locks again right after its release would exclude all others if an id always went to the
    /// first thread that asks.
    #[test]
    fn a_greedy_thread_does_not_starve_a_waiter() {
        const ID: u64 = 7;
        let shard = Shard::default();
        let lock = || shard.lock_until(0, &ID, None);
        let waits =
            || shard.entries.lock().find(0, &ID).is_some_and(|e| matches!(e.state, IdState::Queued(_)));
        // One round may pass by luck, if the waiter happens to run right after the release.
        for _ in 0..if cfg!(miri) { 2 } else { 20 } {
            let (let_go, may_let_go) = mpsc::channel::<()>();
            thread::scope(|scope| {
                assert!(shard.try_lock(0, &ID), "left behind by the round before");
                let shard = &shard;
                let waiter = move || {
                    assert!(lock());
                    // Ends when the test goes on or has failed.
                    let _ = may_let_go.recv();
                    shard.unlock(0, &ID);
                };
                thread::Builder::new()
                    .name("dlm-test-waiter".to_owned())
                    .spawn_scoped(scope, waiter)
                    .unwrap();
                while !waits() {
                    thread::yield_now();
                }
                thread::sleep(HAND_OVER_EVERY);
                shard.unlock(0, &ID);
                let overtook = shard.try_lock(0, &ID);
                if overtook {
                    shard.unlock(0, &ID);
                }
                drop(let_go);
                assert!(!overtook, "overtook a thread that had waited long enough");
            });
        }
        assert_eq!(shard.len(), 0);
    }

    /// Walks at random through all events of one id. Each step is one critical section of the mutex, so threads
    /// can only change the order of the steps.
    #[test]
    fn no_order_of_events_loses_a_wake_up_or_grants_twice() {
        let mut random = 0x1234_5678_9abc_def1_u64;
        let mut below = |bound: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 33) as usize % bound
        };
        for _ in 0..if cfg!(miri) { 20 } else { 5_000 } {
            let mut world = World::new();
            for _ in 0..100 {
                world.step(below(7), &mut below);
            }
            for step in 0.. {
                assert!(step < 10_000, "waiters that never get in");
                if world.held && world.waiters.is_empty() {
                    break;
                }
                // No more newcomers: only releases, and waiters that have been woken.
                world.step(3 + below(2), &mut below);
            }
            assert!(matches!(world.entry.state, IdState::Held), "a queue left behind");
        }
    }

    /// One id that is held or waited for, and its expected state.
    struct World {
        entry: IdEntry<u64>,
        held: bool,
        now: Instant,
        /// The waiters without the id, and whether they have been woken.
        waiters: Vec<(Arc<IdWaiter>, bool)>,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            let (entry, _) = queued(0, now);
            Self { entry, held: true, now, waiters: Vec::new() }
        }

        fn step(&mut self, event: usize, below: &mut impl FnMut(usize) -> usize) {
            match event {
                0 if self.held && self.waiters.len() < 6 => {
                    let waiter = Arc::default();
                    self.entry.enqueue(&waiter, self.now);
                    self.waiters.push((waiter, false));
                }
                1 => {
                    let granted = self.entry.take();
                    self.grant(granted);
                }
                2 => self.now += HAND_OVER_EVERY / 3,
                3 if self.held && !self.waiters.is_empty() => self.release(),
                4 => {
                    if let Some(index) = self.waiters.iter().position(|(_, woken)| *woken) {
                        self.come_back(index, false);
                    }
                }
                // Timed out, or woken spuriously.
                5 | 6 if !self.waiters.is_empty() => {
                    self.come_back(below(self.waiters.len()), event == 5);
                }
                _ => {}
            }
            let nobody_comes = self.waiters.iter().all(|(_, woken)| !woken);
            assert!(self.held || !nobody_comes, "free and waited for, but nobody is on the way");
        }

        fn release(&mut self) {
            self.held = false;
            if let Some(called) = self.entry.pass_on(self.now) {
                let waiter = self.waiters.iter_mut().find(|(waiter, _)| Arc::ptr_eq(waiter, &called));
                let (_, woken) = waiter.expect("called, so waiting");
                assert!(!*woken, "woken twice");
                *woken = true;
            }
            let granted = self.waiters.iter().position(|(waiter, _)| waiter.granted());
            if let Some(index) = granted {
                let (_, woken) = self.waiters.remove(index);
                assert!(woken, "granted in its sleep");
                self.grant(true);
            }
        }

        fn come_back(&mut self, index: usize, timed_out: bool) {
            self.waiters[index].1 = false;
            if let Some(locked) = self.entry.wake(&self.waiters[index].0, timed_out) {
                assert!(locked || timed_out, "gave up early");
                self.waiters.remove(index);
                self.grant(locked);
            }
        }

        fn grant(&mut self, granted: bool) {
            assert!(!(granted && self.held), "granted while held");
            self.held |= granted;
        }
    }
}

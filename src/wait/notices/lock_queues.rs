//! The queues of all locks of a process, and by what they are found: names, keys, nonces, times. What becomes of one queue is
//! in `lock_queue`, who may be in it in `answering`. No I/O, no threads, no store.
//!
//! A process has a queue for a lock while it holds the lock or waits for it, and for a while after that.

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_modes;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::answering::{Answering, Challenged};
use super::datagram::{Datagram, SentEntry};
use super::lock_queue::{Arrival, Effect, LocalQueueAtRelease, LockQueue, NextTurn, NoticeStep, QueueIndex};
use super::rate_limit::RateLimit;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::notice_endpoint::{GrantEndpoint, NoticeEndpoint};
use crate::runtime::sync::HashMap;
use crate::runtime::time::Moment;

/// Highest number of free queues that are remembered.
const FREE_MAX: usize = 256;
/// Replies in one second to datagrams that quote nothing of this process.
const REPLIES_MAX: u32 = 1000;

type QueueId = u64;

pub(super) struct LockQueues {
    own: NoticeEndpoint,
    random: fn() -> u64,
    ids: HashMap<LockName, QueueId>,
    queues: HashMap<QueueId, LockQueue>,
    keys: HashMap<u64, QueueId>,
    nonces: HashMap<u64, QueueId>,
    handed: HashMap<u64, QueueId>,
    timers: BTreeSet<(Moment, QueueId)>,
    /// Free queues, in the order in which they became free. May name a queue twice, or one that is not free any more.
    free: VecDeque<(QueueId, Moment)>,
    entries: usize,
    drawn: QueueId,
    /// Replies to datagrams that quote nothing.
    replies: RateLimit,
    answering: Answering,
    effects: Vec<Effect>,
    tells_wanted: bool,
}

impl LockQueues {
    /// `random` draws numbers that nobody can guess.
    pub(super) fn new(own: NoticeEndpoint, random: fn() -> u64) -> LockQueues {
        LockQueues {
            own,
            random,
            ids: HashMap::default(),
            queues: HashMap::default(),
            keys: HashMap::default(),
            nonces: HashMap::default(),
            handed: HashMap::default(),
            timers: BTreeSet::new(),
            free: VecDeque::new(),
            entries: 0,
            drawn: 0,
            replies: RateLimit::new(REPLIES_MAX, Duration::from_secs(1)),
            answering: Answering::new(own, random),
            effects: Vec::new(),
            tells_wanted: false,
        }
    }

    /// Returns what is to be done after the calls so far.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        self.forget_oldest();
        std::mem::take(&mut self.effects)
    }

    /// Returns when to call [`tick`](LockQueues::tick).
    pub(super) fn next(&self) -> Option<Moment> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The store granted the lock to this process.
    pub(super) fn granted(&mut self, name: &LockName, grant: u64, mode: Mode, now: Moment) {
        let id = self.queue(name, now);
        self.step(id, now, |queue, step| queue.granted(grant, mode, step));
    }

    /// See [`LockQueue::grant_beside_others`].
    pub(super) fn grant_beside_others(&self, name: &LockName, mode: Mode) -> Option<u64> {
        self.queues.get(self.ids.get(name)?)?.grant_beside_others(mode)
    }

    /// See [`LockQueue::announced`].
    pub(super) fn announced(&mut self, name: &LockName, key: u64, now: Moment) {
        let id = self.queue(name, now);
        self.step(id, now, |queue, _| queue.announced(key));
    }

    /// See [`LockQueue::withdrawn`].
    pub(super) fn withdrawn(&mut self, name: &LockName, key: u64, now: Moment) {
        self.step_if_there(name, now, |queue, step| queue.withdrawn(key, step));
    }

    /// The grant is over without a release: it was lost, or given to another process.
    pub(super) fn ended(&mut self, name: &LockName, grant: u64, now: Moment) {
        self.step_if_there(name, now, |queue, _| queue.ended(grant, now));
    }

    /// The store confirmed a release.
    pub(super) fn released(
        &mut self,
        name: &LockName,
        grant: u64,
        local: LocalQueueAtRelease,
        now: Moment,
    ) -> NextTurn {
        let turn = self.step_if_there(name, now, |queue, step| queue.released(grant, local, step));
        turn.unwrap_or(NextTurn::Ours)
    }

    /// A waiter of this process begins to wait for a lock that no other waiter of this process waits for. Returns whether
    /// it was registered with the process that got the last notice.
    pub(super) fn joined(&mut self, name: &LockName, mode: Mode, now: Moment) -> bool {
        self.step_if_there(name, now, |queue, step| queue.joined(mode, step)).unwrap_or(false)
    }

    /// From now on, reports when another process waits for a lock of this one.
    pub(super) fn report_wanted(&mut self) {
        self.tells_wanted = true;
    }

    /// Whether another process waits for the lock, which is held here.
    pub(super) fn is_wanted(&self, name: &LockName) -> bool {
        let queue = self.ids.get(name).and_then(|id| self.queues.get(id));
        queue.is_some_and(LockQueue::is_wanted)
    }

    /// Whether this process waits, and the one with which it is registered has answered.
    pub(super) fn is_acknowledged(&self, name: &LockName) -> bool {
        let queue = self.ids.get(name).and_then(|id| self.queues.get(id));
        queue.is_some_and(LockQueue::is_acknowledged)
    }

    /// The store refused the lock to the first waiter of this process. `has_readers`: because of readers, or of a writer that
    /// waits for them.
    pub(super) fn refused(
        &mut self,
        name: &LockName,
        holder: Option<GrantEndpoint>,
        has_readers: bool,
        first: Arrival,
        now: Moment,
    ) {
        match holder {
            Some(holder) if holder.endpoint == self.own => {}
            Some(holder) => {
                let id = self.queue(name, now);
                self.step(id, now, |queue, step| queue.refused(holder, has_readers, first, step));
            }
            None => {
                self.step_if_there(name, now, |queue, _| queue.refused_without_notices(now));
            }
        }
    }

    /// A waiter of this process could not ask the store.
    pub(super) fn failed(&mut self, name: &LockName, now: Moment) {
        self.step_if_there(name, now, LockQueue::failed);
    }

    /// The last waiter of this process has left.
    pub(super) fn left(&mut self, name: &LockName, now: Moment) {
        self.step_if_there(name, now, LockQueue::left);
    }

    /// Returns `false` for a datagram that quotes nothing of this process.
    pub(super) fn received(&mut self, from: NoticeEndpoint, datagram: Datagram, now: Moment) -> bool {
        self.taken(from, datagram, now).is_some()
    }

    fn taken(&mut self, from: NoticeEndpoint, datagram: Datagram, now: Moment) -> Option<()> {
        match datagram {
            Datagram::Register { key, nonce, waited, mode, was_told, mut entries } => {
                entries.insert(0, SentEntry { endpoint: from, nonce, waited, mode, was_told });
                if self.registered(key, entries, now).is_none() {
                    return self.reply(from, Datagram::NotHere { nonce }, now);
                }
            }
            Datagram::Registered { nonce } => {
                let id = self.waits_with(nonce, from)?;
                self.step(id, now, LockQueue::acknowledged);
            }
            Datagram::Moved { nonce, to, key } => {
                // It may come from a process to which the entry was sent along. Whoever quotes the nonce has had the entry.
                let id = *self.nonces.get(&nonce)?;
                self.step(id, now, |queue, step| queue.moved(nonce, to, key, step));
            }
            Datagram::NotHere { nonce } => {
                if let Some(Challenged { key, entry, .. }) = self.answering.answered(nonce, from, now) {
                    let not_here = Datagram::NotHere { nonce: entry.nonce };
                    if self.registered(key, vec![entry], now).is_none() {
                        self.reply(from, not_here, now);
                    }
                    return Some(());
                }
                let id = self.waits_with(nonce, from)?;
                self.step(id, now, LockQueue::not_here);
            }
            Datagram::Ask { nonce, key, age, entries } => {
                let Some(&id) = self.nonces.get(&nonce) else {
                    return self.reply(from, Datagram::Declined { key }, now);
                };
                self.step(id, now, |queue, step| queue.told(from, key, age, step));
                let known = self.answering.known_of(key, entries, now, &mut self.effects);
                self.step(id, now, |queue, step| queue.add(&known, None, step));
            }
            Datagram::Received { key } => {
                match self.handed_to(key, from) {
                    Some(id) => {
                        self.answering.know(from, now);
                        self.step(id, now, |queue, _| queue.received());
                    }
                    // It takes the lock beside this process, which has quoted its own grant. Others may know that as well.
                    None => _ = self.keys.get(&key)?,
                }
            }
            Datagram::Declined { key } => {
                let id = self.handed_to(key, from)?;
                self.step(id, now, LockQueue::declined);
            }
            Datagram::Pause { nonce, pause } => {
                let name = self.queues.get(&self.waits_with(nonce, from)?)?.name().clone();
                self.effects.push(Effect::Pause(name, now.after(pause)));
            }
            Datagram::WhoWaits { key, nonce } => {
                let queue = self.keys.get(&key).and_then(|id| self.queues.get(id));
                let Some(queue) = queue.filter(|queue| !queue.is_free()) else {
                    return self.reply(from, Datagram::NotHere { nonce }, now);
                };
                let (name, waiters) = (queue.name().clone(), queue.waiters(now));
                self.effects.push(Effect::SendWaiters(from, nonce, name, waiters));
            }
            Datagram::Leave { key, nonce } => {
                let id = *self.keys.get(&key)?;
                self.answering.left(from, nonce);
                self.step(id, now, |queue, _| queue.forget_entry(from, nonce));
            }
            Datagram::Challenge { nonce } => {
                self.reply(from, Datagram::NotHere { nonce }, now);
            }
            Datagram::Want { key } => {
                let id = *self.keys.get(&key)?;
                self.step(id, now, |queue, step| queue.wanted(key, step)).then_some(())?;
            }
            // Of a latch, and to who asked: not of a lock.
            Datagram::Opened { .. } | Datagram::Waiting { .. } => return None,
        }
        Some(())
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Moment) {
        let due: Vec<_> = self.timers.range(..=(now, QueueId::MAX)).copied().collect();
        for (_, id) in due {
            self.step(id, now, LockQueue::tick);
        }
    }

    /// A process with a socket in the directory of the store has ended. Whatever else was sent to it is lost with it.
    pub(super) fn gone(&mut self, endpoint: NoticeEndpoint, now: Moment) {
        let concerned = self.queues.iter().filter(|(_, queue)| queue.concerns(endpoint));
        let ids: Vec<_> = concerned.map(|(id, _)| *id).collect();
        for id in ids {
            self.step(id, now, |queue, step| queue.gone(endpoint, step));
        }
    }

    /// Returns the numbers of queues, entries, keys and nonces, for tests.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 5] {
        [self.queues.len(), self.entries, self.keys.len(), self.nonces.len(), self.handed.len()]
    }

    /// The first of these processes has registered, and brings the others. `None` if the lock was not here lately.
    fn registered(&mut self, key: u64, entries: Vec<SentEntry>, now: Moment) -> Option<()> {
        let &id = self.keys.get(&key)?;
        self.queues.get(&id).filter(|queue| !queue.is_over(now))?;
        let sender = entries.first()?.endpoint;
        let known = self.answering.known_of(key, entries, now, &mut self.effects);
        self.step(id, now, |queue, step| queue.registered(key, &known, sender, step));
        Some(())
    }

    /// Returns the queue with this nonce, if its wait is registered with this process.
    fn waits_with(&self, nonce: u64, from: NoticeEndpoint) -> Option<QueueId> {
        let &id = self.nonces.get(&nonce)?;
        self.queues.get(&id)?.waits_with(from).then_some(id)
    }

    fn handed_to(&self, key: u64, from: NoticeEndpoint) -> Option<QueueId> {
        let &id = self.handed.get(&key)?;
        self.queues.get(&id)?.was_handed_to(from).then_some(id)
    }

    /// Replies to a datagram that quotes nothing of this process, unless there are too many of them. Returns `None`.
    fn reply(&mut self, to: NoticeEndpoint, datagram: Datagram, now: Moment) -> Option<()> {
        if self.replies.allows(now) {
            self.effects.push(Effect::Send(to, datagram));
        }
        None
    }

    fn queue(&mut self, name: &LockName, now: Moment) -> QueueId {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        self.drawn += 1;
        let (id, queue) = (self.drawn, LockQueue::new(name.clone(), now));
        self.index(id, QueueIndex::default(), queue.index());
        self.ids.insert(name.clone(), id);
        self.queues.insert(id, queue);
        id
    }

    fn step_if_there<T>(
        &mut self,
        name: &LockName,
        now: Moment,
        step: impl FnOnce(&mut LockQueue, &mut NoticeStep<'_>) -> T,
    ) -> Option<T> {
        let id = *self.ids.get(name)?;
        Some(self.step(id, now, step))
    }

    /// Lets one queue take a step, and notes by what it is found from then on.
    fn step<T>(
        &mut self,
        id: QueueId,
        now: Moment,
        step: impl FnOnce(&mut LockQueue, &mut NoticeStep<'_>) -> T,
    ) -> T {
        let queue = self.queues.get_mut(&id).expect("the maps name queues that are there");
        let before = queue.index();
        let result = step(
            queue,
            &mut NoticeStep {
                now,
                own: self.own,
                random: self.random,
                others: self.entries - before.entries,
                tells_wanted: self.tells_wanted,
                effects: &mut self.effects,
            },
        );
        let after = queue.index();
        self.index(id, before, after);
        result
    }

    fn index(&mut self, id: QueueId, before: QueueIndex, after: QueueIndex) {
        /// Takes out what the queue is not found by any more, and adds what it is found by now.
        fn rename(
            found: &mut HashMap<u64, QueueId>,
            id: QueueId,
            before: &[Option<u64>],
            after: &[Option<u64>],
        ) {
            if before != after {
                for it in before.iter().flatten() {
                    found.remove(it);
                }
                found.extend(after.iter().flatten().map(|it| (*it, id)));
            }
        }
        rename(&mut self.keys, id, &before.keys, &after.keys);
        rename(&mut self.nonces, id, &before.nonces, &after.nonces);
        rename(&mut self.handed, id, &[before.handed], &[after.handed]);
        if before.timer != after.timer {
            before.timer.map(|at| self.timers.remove(&(at, id)));
            after.timer.map(|at| self.timers.insert((at, id)));
        }
        if let Some(at) = after.free_since.filter(|_| before.free_since != after.free_since) {
            self.free.push_back((id, at));
        }
        self.entries = self.entries - before.entries + after.entries;
    }

    /// Forgets the oldest free queues if there are too many. A few at a time, which is more than a call adds.
    fn forget_oldest(&mut self) {
        for _ in 0..4 {
            if self.free.len() <= FREE_MAX {
                return;
            }
            let Some((oldest, at)) = self.free.pop_front() else { return };
            let Some(index) = self.queues.get(&oldest).map(LockQueue::index) else { continue };
            match (index.nonces[0], index.free_since == Some(at)) {
                (None, true) => self.forget(oldest, index),
                (Some(_), true) => self.free.push_back((oldest, at)),
                (_, false) => {}
            }
        }
    }

    fn forget(&mut self, id: QueueId, index: QueueIndex) {
        self.index(id, index, QueueIndex::default());
        if let Some(queue) = self.queues.remove(&id) {
            self.ids.remove(queue.name());
        }
    }
}

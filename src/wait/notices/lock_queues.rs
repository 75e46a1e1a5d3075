//! The queues of waiting processes, one for each lock: which one gets the next notice. No I/O, no threads, no store.
//!
//! A process has a queue for a lock while it holds the lock or waits for it, and for a while after that.
//!
//! | turn | means | a register is answered |
//! |---|---|---|
//! | held | this process holds the lock | registered |
//! | asking | it got a notice, or a thread of it is next: it asks the store | registered |
//! | yields | it has released the lock, and sends no notice for one interval | registered |
//! | free | it has released the lock, and has sent a notice to the next process (`handed`), or none waited | moved, or ask |
//!
//! Whoever gets the lock by a notice gets the rest of the queue with it, so one hand-over costs two datagrams, however
//! many wait. The queue is in one place only. If it is lost there, as when its process is killed, nothing happens but
//! this: its processes find the lock by polling, as without notices, and register with the next holder.
//!
//! **Only processes that answer are in a queue.** A process that registers over UDP, or is sent along by another, gets a
//! challenge, unless it has answered lately. With its answer it registers, whatever has become of the lock meanwhile. So
//! nobody can register the addresses of others. An entry ends by itself, its process renews it, and takes it back when it
//! does not wait any more.
//!
//! A key is what a register must quote: the random bits of a grant, which are in its record, or the random bits with
//! which the last holder sent to the next one. A nonce is what a notice must quote. It is drawn by the waiter and used once.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::datagram::{Datagram, ENTRIES_MAX, SentEntry};
use crate::names::lock_name::LockName;
use crate::names::notice_endpoint::{GrantEndpoint, NoticeEndpoint};
use crate::runtime::sync::HashMap;
use crate::runtime::time::Moment;

/// How long a process that got a notice has to answer before the next one gets one, and a register before it is repeated.
pub(crate) const ANSWER: Duration = Duration::from_millis(50);
/// How often a register is sent at most.
const SENDS_MAX: u8 = 3;
/// How long after a release a register is still answered, and a waiter of this process goes to the next holder first.
const REMEMBERED: Duration = Duration::from_secs(2);
/// How long an entry lasts that is not renewed. Earlier versions renew none.
const ENTRY_LASTS: Duration = Duration::from_secs(60);
/// How long after its registration a waiter renews it.
const RENEW: Duration = Duration::from_secs(20);
/// How long an endpoint that has answered gets no challenge.
const KNOWN_LASTS: Duration = Duration::from_secs(600);
/// Highest number of endpoints that are known, and of challenges without an answer.
const KNOWN_MAX: usize = 1024;
/// Challenges in one second.
const CHALLENGES_MAX: u32 = 1000;
/// Highest number of free queues that are remembered.
const FREE_MAX: usize = 256;
/// Highest number of entries of all queues.
const ENTRIES_ALL: usize = 8192;
/// Keys of a queue that are still accepted: those of the last grants.
const KEYS_MAX: usize = 6;
/// Redirections that a wait follows between two reads the store.
const HOPS_MAX: u8 = 8;
/// Early reads the store in one [`REMEMBERED`].
const READS_MAX: u8 = 4;
/// Replies in one second to datagrams that quote nothing of this process.
const REPLIES_MAX: u32 = 1000;

/// What the caller does after a call, without the mutex of the queues.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Send(NoticeEndpoint, Datagram),
    /// A waiter of this process asks the store now. The quantum of the queue began this long ago.
    Ask(LockName, Duration),
    /// A waiter of this process reads the store now.
    Read(LockName),
    /// The waiters of this process wait until this moment.
    Pause(LockName, Moment),
    /// The next process knows of our waiter, which polls as always.
    Acknowledged(LockName),
    /// Another process waits for a lock of this process.
    Wanted(LockName),
    /// Somebody asked, with this nonce, who waits for a lock of this process: these do, and threads of its own.
    SendWaiters(NoticeEndpoint, u64, LockName, Vec<SentEntry>),
}

/// What the threads of this process do after a release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// The first of them asks the store.
    Ours,
    /// Another process got a notice.
    Theirs,
    /// They wait until this moment, so that processes without notices find the lock free.
    Yield,
}

/// What the caller knows about its queue when it releases a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalQueueAtRelease {
    /// When the first waiter of this process arrived.
    pub(crate) front: Option<Moment>,
    /// Since when processes with notices have passed the lock on.
    pub(crate) since: Option<Moment>,
    /// If the quantum is over: the end of the pause.
    pub(crate) yield_until: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueTurn {
    Held(u64),
    Asking,
    Yields(Moment),
    Free(Moment),
}

#[derive(Debug, Clone, Copy)]
struct QueueEntry {
    endpoint: NoticeEndpoint,
    nonce: u64,
    arrived: Moment,
    ends: Moment,
}

/// A process that registers as soon as it answers a challenge.
#[derive(Debug)]
struct Challenged {
    /// What its register quoted.
    key: u64,
    entry: SentEntry,
    at: Moment,
}

/// The wait of this process.
#[derive(Debug)]
struct OwnWait {
    arrived: Moment,
    nonce: u64,
    /// Where it is registered, and the key that was quoted.
    with: Option<(NoticeEndpoint, u64)>,
    is_acknowledged: bool,
    sends: u8,
    /// When it registers again: soon if the last register was not answered, otherwise to renew its entry.
    send_again: Moment,
    /// Redirections since the last look at the store.
    hops: u8,
}

/// The last hand-over of a queue to another process.
#[derive(Debug)]
struct HandedOn {
    to: NoticeEndpoint,
    key: u64,
    at: Moment,
    is_received: bool,
    rest: Vec<QueueEntry>,
}

#[derive(Debug)]
struct LockQueue {
    name: LockName,
    turn: QueueTurn,
    /// Waiting processes, in order of arrival.
    entries: Vec<QueueEntry>,
    /// Whether a process that does not wait wants the lock, which is held here.
    is_wanted: bool,
    /// Oldest first.
    keys: VecDeque<u64>,
    wait: Option<OwnWait>,
    handed: Option<HandedOn>,
    /// Since when processes with notices have passed the lock on.
    since: Moment,
    /// When this process last ended a quantum and its pause.
    yielded: Moment,
    timer: Option<Moment>,
    /// Early reads the store since this moment.
    reads: (Moment, u8),
}

type QueueId = u64;

pub(super) struct LockQueues {
    own: NoticeEndpoint,
    random: fn() -> u64,
    ids: HashMap<LockName, QueueId>,
    queues: HashMap<QueueId, LockQueue>,
    /// LockQueues by the keys by which others may register.
    keys: HashMap<u64, QueueId>,
    /// LockQueues by the nonces of this process.
    nonces: HashMap<u64, QueueId>,
    /// LockQueues by the keys of their last hand-over.
    handed: HashMap<u64, QueueId>,
    timers: BTreeSet<(Moment, QueueId)>,
    /// Free queues, in the order in which they became free. May name a queue twice, or one that is not free any more.
    free: VecDeque<(QueueId, Moment)>,
    entries: usize,
    drawn: QueueId,
    /// Replies to datagrams that quote nothing, since this moment.
    replies: (Moment, u32),
    /// Until when a UDP endpoint is known to be that of a process with notices.
    known: HashMap<NoticeEndpoint, Moment>,
    /// By the nonces of the challenges.
    challenged: HashMap<u64, Challenged>,
    /// Challenges since this moment.
    challenges: (Moment, u32),
    effects: Vec<Effect>,
    /// Whether to report when another process waits for a lock of this one.
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
            replies: (Moment::OVER, 0),
            known: HashMap::default(),
            challenged: HashMap::default(),
            challenges: (Moment::OVER, 0),
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
    pub(super) fn granted(&mut self, name: &LockName, grant: u64, now: Moment) {
        let id = self.queue(name, now);
        self.forget_wait(id);
        self.add_key(id, grant);
        let queue = self.at(id);
        queue.turn = QueueTurn::Held(grant);
        queue.is_wanted = false;
        let handed = queue.handed.take();
        self.forget_handed(handed);
        self.set_timer(id);
    }

    /// The grant is over without a release: it was lost, or given to another process.
    pub(super) fn ended(&mut self, name: &LockName, grant: u64, now: Moment) {
        let Some(&id) = self.ids.get(name) else { return };
        if self.at(id).turn == QueueTurn::Held(grant) {
            self.drop_entries(id);
            self.set_free(id, now);
            // The record may still be there. A process that registers by it gets the answer that the lock is not here.
            let keys = std::mem::take(&mut self.at(id).keys);
            for key in keys {
                self.keys.remove(&key);
            }
        }
    }

    /// The store confirmed a release.
    pub(super) fn released(
        &mut self,
        name: &LockName,
        grant: u64,
        local: LocalQueueAtRelease,
        now: Moment,
    ) -> NextTurn {
        let Some(&id) = self.ids.get(name) else { return NextTurn::Ours };
        let queue = self.at(id);
        if queue.turn != QueueTurn::Held(grant) {
            return NextTurn::Ours;
        }
        queue.since = local.since.unwrap_or(now);
        queue.yielded = local.yield_until.unwrap_or(queue.yielded);
        let Some(first) = queue.entries.first().map(|entry| entry.arrived) else {
            self.set_free(id, now);
            return NextTurn::Ours;
        };
        if let Some(until) = local.yield_until {
            queue.turn = QueueTurn::Yields(until);
            queue.since = until;
            let waiting: Vec<_> = queue.entries.iter().map(|entry| (entry.endpoint, entry.nonce)).collect();
            for (endpoint, nonce) in waiting {
                self.effects.push(Effect::Send(endpoint, Datagram::Pause { nonce, pause: until.since(now) }));
            }
            self.set_timer(id);
            return NextTurn::Yield;
        }
        if local.front.is_some_and(|front| front <= first) {
            queue.turn = QueueTurn::Asking;
            return NextTurn::Ours;
        }
        if let Some(front) = local.front {
            self.wait(id, front);
        }
        self.pass(id, now);
        NextTurn::Theirs
    }

    /// A waiter of this process begins to wait for a lock that no other waiter of this process waits for. Returns whether
    /// it was registered with the process that got the last notice.
    pub(super) fn joined(&mut self, name: &LockName, now: Moment) -> bool {
        let Some(&id) = self.ids.get(name) else { return false };
        let queue = self.at(id);
        let handed = queue.handed.as_ref().filter(|handed| now.since(handed.at) < REMEMBERED);
        let Some(with) = handed.map(|handed| (handed.to, handed.key)) else { return false };
        if !matches!(queue.turn, QueueTurn::Free(_)) {
            return false;
        }
        self.wait(id, now);
        self.register(id, with, Vec::new(), now);
        true
    }

    /// From now on, reports when another process waits for a lock of this one.
    pub(super) fn report_wanted(&mut self) {
        self.tells_wanted = true;
    }

    /// Whether another process waits for the lock, which is held here.
    pub(super) fn is_wanted(&self, name: &LockName) -> bool {
        let queue = self.ids.get(name).and_then(|id| self.queues.get(id));
        queue.is_some_and(|queue| {
            matches!(queue.turn, QueueTurn::Held(_)) && (queue.is_wanted || !queue.entries.is_empty())
        })
    }

    /// The store refused the lock to a waiter of this process that arrived at `arrived`.
    pub(super) fn refused(
        &mut self,
        name: &LockName,
        holder: Option<GrantEndpoint>,
        arrived: Moment,
        now: Moment,
    ) {
        let Some(GrantEndpoint { endpoint, grant }) = holder.filter(|holder| holder.endpoint != self.own)
        else {
            // A thread of this process, or somebody without notices. Whoever waits behind us finds out by polling.
            if let Some(&id) = self.ids.get(name).filter(|_| holder.is_none()) {
                self.give_up(id, now);
            }
            return;
        };
        let id = self.queue(name, now);
        let was_told = self.at(id).turn == QueueTurn::Asking;
        let waiting = self.give_up(id, now);
        self.wait(id, arrived);
        if was_told && !self.may_read(id, now) {
            // Notices again and again though another process holds the lock. Their sender does not know.
            self.forget_with(id);
            return;
        }
        let wait = self.at(id).wait.as_mut().expect("it was just set");
        wait.hops = 0;
        if wait.with == Some((endpoint, grant)) && wait.is_acknowledged && waiting.is_empty() {
            return;
        }
        self.register(id, (endpoint, grant), waiting, now);
    }

    /// A waiter of this process could not ask the store.
    pub(super) fn failed(&mut self, name: &LockName, now: Moment) {
        if let Some(&id) = self.ids.get(name)
            && self.at(id).turn == QueueTurn::Asking
        {
            self.pass(id, now);
        }
    }

    /// The last waiter of this process has left.
    pub(super) fn left(&mut self, name: &LockName, now: Moment) {
        let Some(&id) = self.ids.get(name) else { return };
        if let Some(OwnWait { nonce, with: Some((to, key)), .. }) = self.forget_wait(id) {
            self.effects.push(Effect::Send(to, Datagram::Leave { key, nonce }));
        }
        if self.at(id).turn == QueueTurn::Asking {
            self.pass(id, now);
        }
        self.set_timer(id);
    }

    /// Returns `false` for a datagram that quotes nothing of this process.
    pub(super) fn received(&mut self, from: NoticeEndpoint, datagram: Datagram, now: Moment) -> bool {
        match datagram {
            Datagram::Register { key, nonce, waited, entries } => {
                let mut entries = entries;
                entries.insert(0, SentEntry { endpoint: from, nonce, waited });
                if !self.registered_here(key, entries, now) {
                    self.reply(from, Datagram::NotHere { nonce }, now);
                    return false;
                }
            }
            Datagram::Registered { nonce } => {
                let Some(id) = self.waits_with(nonce, from) else { return false };
                let wait = self.at(id).wait.as_mut().expect("it has this nonce");
                (wait.is_acknowledged, wait.send_again) = (true, now.after(RENEW));
                let name = self.at(id).name.clone();
                self.effects.push(Effect::Acknowledged(name));
                self.set_timer(id);
            }
            Datagram::Moved { nonce, to, key } => {
                let Some(id) = self.waits_with(nonce, from) else { return false };
                let own = self.own;
                let wait = self.at(id).wait.as_mut().expect("it has this nonce");
                wait.hops = wait.hops.saturating_add(1);
                if to != own && wait.hops <= HOPS_MAX {
                    self.register(id, (to, key), Vec::new(), now);
                } else {
                    self.forget_with(id);
                }
            }
            Datagram::NotHere { nonce } => {
                if let Some(Challenged { key, entry, at }) = self.answered(nonce, from) {
                    self.know(from, now);
                    let waited = entry.waited.saturating_add(now.since(at));
                    let entry = SentEntry { waited, ..entry };
                    if !self.registered_here(key, vec![entry], now) {
                        self.reply(from, Datagram::NotHere { nonce: entry.nonce }, now);
                    }
                    return true;
                }
                let Some(id) = self.waits_with(nonce, from) else { return false };
                self.forget_with(id);
                if self.may_read(id, now) {
                    let name = self.at(id).name.clone();
                    self.effects.push(Effect::Read(name));
                }
            }
            Datagram::Ask { nonce, key, age, entries } => {
                let Some(&id) = self.nonces.get(&nonce) else {
                    self.reply(from, Datagram::Declined { key }, now);
                    return false;
                };
                self.forget_wait(id);
                self.add_key(id, key);
                let queue = self.at(id);
                if !matches!(queue.turn, QueueTurn::Held(_)) {
                    queue.turn = QueueTurn::Asking;
                    // An age that is too great makes this process leave the lock free, but once in a quantum at most.
                    queue.since = earlier(now, age).max(queue.yielded);
                    let (age, name, handed) =
                        (now.since(queue.since), queue.name.clone(), queue.handed.take());
                    self.forget_handed(handed);
                    self.effects.push(Effect::Ask(name, age));
                }
                self.effects.push(Effect::Send(from, Datagram::Received { key }));
                let known = self.known_of(key, entries, now);
                known.iter().for_each(|entry| self.add_entry(id, entry, now));
                self.set_timer(id);
            }
            Datagram::Received { key } => {
                let Some((id, handed)) = self.handed_to(key, from) else { return false };
                handed.is_received = true;
                handed.rest = Vec::new();
                self.know(from, now);
                self.set_timer(id);
            }
            Datagram::Declined { key } => {
                let Some((id, handed)) = self.handed_to(key, from) else { return false };
                if !handed.is_received {
                    self.pass_again(id, now);
                }
            }
            Datagram::Pause { nonce, pause } => {
                let Some(id) = self.waits_with(nonce, from) else { return false };
                let name = self.at(id).name.clone();
                self.effects.push(Effect::Pause(name, now.after(pause)));
            }
            Datagram::WhoWaits { key, nonce } => {
                let id = self.keys.get(&key).copied();
                let Some(id) = id.filter(|id| !matches!(self.at(*id).turn, QueueTurn::Free(_))) else {
                    self.reply(from, Datagram::NotHere { nonce }, now);
                    return false;
                };
                let queue = self.at(id);
                // Without the nonces: a notice that quotes one is believed.
                let entries =
                    sent(&queue.entries, now).into_iter().map(|entry| SentEntry { nonce: 0, ..entry });
                let (name, entries) = (queue.name.clone(), entries.collect());
                self.effects.push(Effect::SendWaiters(from, nonce, name, entries));
            }
            Datagram::Leave { key, nonce } => {
                let Some(&id) = self.keys.get(&key) else { return false };
                self.challenged.retain(|_, it| (it.entry.endpoint, it.entry.nonce) != (from, nonce));
                self.drop_entries_of(id, |entry| (entry.endpoint, entry.nonce) == (from, nonce));
            }
            Datagram::Challenge { nonce } => self.reply(from, Datagram::NotHere { nonce }, now),
            Datagram::Want { key } => {
                let Some(&id) = self.keys.get(&key) else { return false };
                if self.at(id).turn != QueueTurn::Held(key) {
                    return false;
                }
                self.at(id).is_wanted = true;
                if self.tells_wanted {
                    let name = self.at(id).name.clone();
                    self.effects.push(Effect::Wanted(name));
                }
            }
            // Of a latch, and to who asked: not of a lock.
            Datagram::Opened { .. } | Datagram::Waiting { .. } => return false,
        }
        true
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Moment) {
        let due: Vec<_> = self.timers.range(..=(now, QueueId::MAX)).copied().collect();
        for (at, id) in due {
            if !self.timers.remove(&(at, id)) {
                continue;
            }
            self.at(id).timer = None;
            self.drop_entries_of(id, |entry| entry.ends <= now);
            let queue = self.at(id);
            if matches!(queue.turn, QueueTurn::Yields(until) if until <= now) {
                queue.turn = QueueTurn::Asking;
                self.pass(id, now);
            }
            let queue = self.at(id);
            let is_silent = |handed: &HandedOn| !handed.is_received && handed.at.after(ANSWER) <= now;
            if queue.handed.as_ref().is_some_and(is_silent) {
                self.pass_again(id, now);
            }
            let again = self.at(id).wait.as_ref().filter(|wait| wait.send_again <= now);
            if let Some(with) = again.and_then(|wait| wait.with) {
                self.register(id, with, Vec::new(), now);
            }
            self.set_timer(id);
        }
    }

    /// A process with a socket in the directory of the store has ended. Whatever else was sent to it is lost with it.
    pub(super) fn gone(&mut self, endpoint: NoticeEndpoint, now: Moment) {
        let has_notice = |queue: &LockQueue| {
            queue.handed.as_ref().is_some_and(|handed| handed.to == endpoint && !handed.is_received)
        };
        let is_in = |queue: &LockQueue| queue.entries.iter().any(|entry| entry.endpoint == endpoint);
        let queues = self.queues.iter().filter(|(_, queue)| has_notice(queue) || is_in(queue));
        let ids: Vec<_> = queues.map(|(id, queue)| (*id, has_notice(queue))).collect();
        for (id, has_notice) in ids {
            self.drop_entries_of(id, |entry| entry.endpoint == endpoint);
            if has_notice {
                self.pass_again(id, now);
            }
        }
    }

    /// Returns the numbers of queues, entries, keys and nonces, for tests.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 5] {
        [self.queues.len(), self.entries, self.keys.len(), self.nonces.len(), self.handed.len()]
    }

    fn at(&mut self, id: QueueId) -> &mut LockQueue {
        self.queues.get_mut(&id).expect("the maps name queues that are there")
    }

    fn queue(&mut self, name: &LockName, now: Moment) -> QueueId {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        self.drawn += 1;
        let id = self.drawn;
        let queue = LockQueue {
            name: name.clone(),
            turn: QueueTurn::Free(now),
            entries: Vec::new(),
            is_wanted: false,
            keys: VecDeque::new(),
            wait: None,
            handed: None,
            since: now,
            yielded: Moment::OVER,
            timer: None,
            reads: (Moment::OVER, 0),
        };
        self.ids.insert(name.clone(), id);
        self.queues.insert(id, queue);
        self.remember_free(id, now);
        id
    }

    fn set_free(&mut self, id: QueueId, now: Moment) {
        self.at(id).turn = QueueTurn::Free(now);
        self.remember_free(id, now);
        self.set_timer(id);
    }

    fn remember_free(&mut self, id: QueueId, now: Moment) {
        self.free.push_back((id, now));
    }

    /// Forgets the oldest free queues if there are too many. A few at a time, which is more than a call adds.
    fn forget_oldest(&mut self) {
        for _ in 0..4 {
            if self.free.len() <= FREE_MAX {
                return;
            }
            let Some((oldest, at)) = self.free.pop_front() else { return };
            let Some(queue) = self.queues.get(&oldest) else { continue };
            match (&queue.wait, queue.turn == QueueTurn::Free(at)) {
                (None, true) => self.forget(oldest),
                (Some(_), true) => self.free.push_back((oldest, at)),
                (_, false) => {}
            }
        }
    }

    fn forget(&mut self, id: QueueId) {
        self.drop_entries(id);
        self.forget_wait(id);
        let Some(queue) = self.queues.remove(&id) else { return };
        if let Some(at) = queue.timer {
            self.timers.remove(&(at, id));
        }
        for key in &queue.keys {
            self.keys.remove(key);
        }
        self.forget_handed(queue.handed);
        self.ids.remove(&queue.name);
    }

    fn add_key(&mut self, id: QueueId, key: u64) {
        self.keys.insert(key, id);
        let queue = self.at(id);
        queue.keys.push_back(key);
        let oldest = if queue.keys.len() > KEYS_MAX { queue.keys.pop_front() } else { None };
        oldest.map(|key| self.keys.remove(&key));
    }

    /// This process waits since `arrived`.
    fn wait(&mut self, id: QueueId, arrived: Moment) {
        let random = self.random;
        let queue = self.at(id);
        if let Some(wait) = &mut queue.wait {
            wait.arrived = arrived;
            return;
        }
        let nonce = random();
        let send_again = Moment::NEVER;
        let (is_acknowledged, sends, hops) = (false, 0, 0);
        queue.wait = Some(OwnWait { arrived, nonce, with: None, is_acknowledged, sends, send_again, hops });
        self.nonces.insert(nonce, id);
    }

    fn forget_wait(&mut self, id: QueueId) -> Option<OwnWait> {
        let wait = self.at(id).wait.take()?;
        self.nonces.remove(&wait.nonce);
        Some(wait)
    }

    fn forget_with(&mut self, id: QueueId) {
        if let Some(wait) = &mut self.at(id).wait {
            (wait.with, wait.is_acknowledged, wait.sends) = (None, false, 0);
            wait.send_again = Moment::NEVER;
        }
        self.set_timer(id);
    }

    /// Sends a register for the wait of this process, and for the processes behind it.
    fn register(&mut self, id: QueueId, with: (NoticeEndpoint, u64), behind: Vec<QueueEntry>, now: Moment) {
        let Some(wait) = &mut self.at(id).wait else { return };
        if wait.with != Some(with) || wait.is_acknowledged {
            (wait.with, wait.is_acknowledged, wait.sends) = (Some(with), false, 0);
        }
        // At each look at the store, for as long as the holder is silent.
        wait.sends = wait.sends.saturating_add(1);
        wait.send_again = if wait.sends < SENDS_MAX { now.after(ANSWER) } else { Moment::NEVER };
        let (to, key) = with;
        let (nonce, waited) = (wait.nonce, now.since(wait.arrived));
        let entries = sent(&behind, now);
        self.effects.push(Effect::Send(to, Datagram::Register { key, nonce, waited, entries }));
        self.set_timer(id);
    }

    /// Returns the queue with this nonce, if its wait is registered with this process.
    fn waits_with(&mut self, nonce: u64, from: NoticeEndpoint) -> Option<QueueId> {
        let &id = self.nonces.get(&nonce)?;
        let wait = self.at(id).wait.as_ref()?;
        wait.with.filter(|(with, _)| *with == from).map(|_| id)
    }

    fn may_read(&mut self, id: QueueId, now: Moment) -> bool {
        let (since, count) = &mut self.at(id).reads;
        if now.since(*since) >= REMEMBERED {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= READS_MAX
    }

    /// Replies to a datagram that quotes nothing of this process, unless there are too many of them.
    fn reply(&mut self, to: NoticeEndpoint, datagram: Datagram, now: Moment) {
        let (since, count) = &mut self.replies;
        if now.since(*since) >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        if *count < REPLIES_MAX {
            *count += 1;
            self.effects.push(Effect::Send(to, datagram));
        }
    }

    /// The first of these processes has registered, and brings the others. Returns `false` if the lock was not here lately.
    fn registered_here(&mut self, key: u64, entries: Vec<SentEntry>, now: Moment) -> bool {
        let Some(id) = self.keys.get(&key).copied() else { return false };
        if matches!(self.at(id).turn, QueueTurn::Free(at) if now.since(at) >= REMEMBERED) {
            return false;
        }
        let sender = entries[0].endpoint;
        let known = self.known_of(key, entries, now);
        // The others register when they answer.
        let Some(&SentEntry { endpoint: from, nonce, .. }) = known.first() else { return true };
        let is_sender = from == sender;
        match self.at(id).turn {
            QueueTurn::Held(_) | QueueTurn::Asking | QueueTurn::Yields(_) => {
                known.iter().for_each(|entry| self.add_entry(id, entry, now));
                self.set_timer(id);
                if is_sender && self.at(id).entries.iter().any(|entry| entry.nonce == nonce) {
                    self.effects.push(Effect::Send(from, Datagram::Registered { nonce }));
                    if self.tells_wanted && matches!(self.at(id).turn, QueueTurn::Held(_)) {
                        let name = self.at(id).name.clone();
                        self.effects.push(Effect::Wanted(name));
                    }
                }
            }
            QueueTurn::Free(_) => {
                let handed = self.at(id).handed.as_ref().filter(|handed| now.since(handed.at) < REMEMBERED);
                if let Some(HandedOn { to, key, .. }) = handed {
                    let (to, key) = (*to, *key);
                    if to == from {
                        // A notice was sent to it. Perhaps it did not arrive.
                        return true;
                    }
                    if is_sender {
                        self.effects.push(Effect::Send(from, Datagram::Moved { nonce, to, key }));
                    }
                    return true;
                }
                self.at(id).turn = QueueTurn::Asking;
                known.iter().for_each(|entry| self.add_entry(id, entry, now));
                self.at(id).since = now;
                self.pass(id, now);
            }
        }
        true
    }

    /// Returns those of these processes that have answered lately. The others get a challenge, and register with this key
    /// when they answer it.
    fn known_of(&mut self, key: u64, mut entries: Vec<SentEntry>, now: Moment) -> Vec<SentEntry> {
        entries.retain(|entry| {
            let is_known = self.is_known(entry.endpoint, now);
            if !is_known {
                self.challenge(key, *entry, now);
            }
            is_known
        });
        entries
    }

    /// Whether a process receives at this endpoint. A datagram to a local socket without a receiver fails at once.
    fn is_known(&self, endpoint: NoticeEndpoint, now: Moment) -> bool {
        match endpoint {
            NoticeEndpoint::Local(_) => true,
            NoticeEndpoint::Udp(_) => self.known.get(&endpoint).is_some_and(|until| now < *until),
        }
    }

    /// The process at this endpoint has quoted a number that was drawn for it, and sent to nobody else.
    fn know(&mut self, endpoint: NoticeEndpoint, now: Moment) {
        if matches!(endpoint, NoticeEndpoint::Local(_)) {
            return;
        }
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&endpoint) {
            self.known.retain(|_, until| now < *until);
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
        }
        self.known.insert(endpoint, now.after(KNOWN_LASTS));
    }

    fn challenge(&mut self, key: u64, entry: SentEntry, now: Moment) {
        let (since, count) = &mut self.challenges;
        if now.since(*since) >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        if *count >= CHALLENGES_MAX || entry.endpoint == self.own {
            return;
        }
        *count += 1;
        // Its last registration counts.
        let is_other = |it: &Challenged| (it.key, it.entry.endpoint) != (key, entry.endpoint);
        self.challenged.retain(|_, it| is_other(it) && now.since(it.at) < REMEMBERED);
        if self.challenged.len() < KNOWN_MAX {
            let nonce = (self.random)();
            self.challenged.insert(nonce, Challenged { key, entry, at: now });
            self.effects.push(Effect::Send(entry.endpoint, Datagram::Challenge { nonce }));
        }
    }

    /// Returns who has answered a challenge.
    fn answered(&mut self, nonce: u64, from: NoticeEndpoint) -> Option<Challenged> {
        self.challenged.get(&nonce).filter(|it| it.entry.endpoint == from)?;
        self.challenged.remove(&nonce)
    }

    fn add_entry(&mut self, id: QueueId, entry: &SentEntry, now: Moment) {
        let &SentEntry { endpoint, nonce, waited } = entry;
        if endpoint == self.own {
            return;
        }
        let arrived = earlier(now, waited);
        let has_room = self.entries < ENTRIES_ALL;
        let queue = self.at(id);
        let before = queue.entries.len();
        // One entry for each process.
        queue.entries.retain(|entry| entry.endpoint != endpoint);
        if queue.entries.len() < ENTRIES_MAX && (has_room || queue.entries.len() < before) {
            let index = queue.entries.partition_point(|entry| entry.arrived <= arrived);
            let ends = now.after(ENTRY_LASTS);
            queue.entries.insert(index, QueueEntry { endpoint, nonce, arrived, ends });
        }
        let after = queue.entries.len();
        self.entries = self.entries - before + after;
    }

    fn drop_entries(&mut self, id: QueueId) -> Vec<QueueEntry> {
        let entries = std::mem::take(&mut self.at(id).entries);
        self.entries -= entries.len();
        entries
    }

    /// Drops these entries of the queue, and of what was sent along with the last hand-over.
    fn drop_entries_of(&mut self, id: QueueId, is_dropped: impl Fn(&QueueEntry) -> bool) {
        let queue = self.at(id);
        let before = queue.entries.len();
        queue.entries.retain(|entry| !is_dropped(entry));
        let dropped = before - queue.entries.len();
        if let Some(handed) = &mut queue.handed {
            handed.rest.retain(|entry| !is_dropped(entry));
        }
        self.entries -= dropped;
        self.set_timer(id);
    }

    /// Ends the turn of this process, which did not get the lock. Returns the queue that it had.
    fn give_up(&mut self, id: QueueId, now: Moment) -> Vec<QueueEntry> {
        match self.at(id).turn {
            QueueTurn::Asking => {
                let entries = self.drop_entries(id);
                self.set_free(id, now);
                entries
            }
            QueueTurn::Held(_) | QueueTurn::Yields(_) | QueueTurn::Free(_) => Vec::new(),
        }
    }

    /// Notifies the first process of the queue, and gives it the rest.
    fn pass(&mut self, id: QueueId, now: Moment) {
        let mut entries = self.drop_entries(id);
        let own = self.own;
        if let Some(OwnWait { arrived, nonce, .. }) = self.at(id).wait {
            let index = entries.partition_point(|entry| entry.arrived <= arrived);
            let ends = now.after(ENTRY_LASTS);
            entries.insert(index, QueueEntry { endpoint: own, nonce, arrived, ends });
        }
        self.set_free(id, now);
        self.pass_to_first(id, entries, now);
    }

    fn pass_again(&mut self, id: QueueId, now: Moment) {
        let Some(handed) = self.at(id).handed.take() else { return };
        self.handed.remove(&handed.key);
        self.pass_to_first(id, handed.rest, now);
        self.set_timer(id);
    }

    fn pass_to_first(&mut self, id: QueueId, mut entries: Vec<QueueEntry>, now: Moment) {
        // Our own waiter may have left meanwhile.
        let nonce = self.at(id).wait.as_ref().map(|wait| wait.nonce);
        let own = self.own;
        entries.retain(|entry| entry.endpoint != own || Some(entry.nonce) == nonce);
        if entries.is_empty() {
            return;
        }
        let first = entries.remove(0);
        let since = self.at(id).since;
        if first.endpoint == own {
            self.forget_wait(id);
            self.entries += entries.len();
            let queue = self.at(id);
            queue.turn = QueueTurn::Asking;
            queue.entries = entries;
            let name = queue.name.clone();
            self.effects.push(Effect::Ask(name, now.since(since)));
            return;
        }
        let key = (self.random)();
        let sent = sent(&entries, now);
        let ask = Datagram::Ask { nonce: first.nonce, key, age: now.since(since), entries: sent };
        self.effects.push(Effect::Send(first.endpoint, ask));
        let handed = HandedOn { to: first.endpoint, key, at: now, is_received: false, rest: entries };
        let queue = self.at(id);
        if let Some(wait) = &mut queue.wait {
            wait.with = Some((first.endpoint, key));
            // It goes with the queue, so it need not be sent.
            (wait.is_acknowledged, wait.send_again) = (true, now.after(RENEW));
        }
        let before = queue.handed.replace(handed);
        self.forget_handed(before);
        self.handed.insert(key, id);
        self.set_timer(id);
    }

    fn handed_to(&mut self, key: u64, from: NoticeEndpoint) -> Option<(QueueId, &mut HandedOn)> {
        let &id = self.handed.get(&key)?;
        let handed = self.at(id).handed.as_mut()?;
        (handed.to == from).then_some((id, handed))
    }

    fn forget_handed(&mut self, handed: Option<HandedOn>) {
        if let Some(handed) = handed {
            self.handed.remove(&handed.key);
        }
    }

    fn set_timer(&mut self, id: QueueId) {
        let queue = self.at(id);
        let yields = match queue.turn {
            QueueTurn::Yields(until) => Some(until),
            QueueTurn::Held(_) | QueueTurn::Asking | QueueTurn::Free(_) => None,
        };
        let handed =
            queue.handed.as_ref().filter(|handed| !handed.is_received).map(|handed| handed.at.after(ANSWER));
        let wait = queue.wait.as_ref().map(|wait| wait.send_again).filter(|at| *at != Moment::NEVER);
        let ends = queue.entries.iter().map(|entry| entry.ends).min();
        let at = [yields, handed, wait, ends].into_iter().flatten().min();
        let before = std::mem::replace(&mut queue.timer, at);
        if before != at {
            before.map(|before| self.timers.remove(&(before, id)));
            at.map(|at| self.timers.insert((at, id)));
        }
    }
}

/// Returns the moment that was so long ago, or the start of the machine.
fn earlier(now: Moment, ago: Duration) -> Moment {
    let nanos = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
    Moment::from_nanos(now.as_nanos().saturating_sub(nanos))
}

fn sent(entries: &[QueueEntry], now: Moment) -> Vec<SentEntry> {
    let sent = |entry: &QueueEntry| SentEntry {
        endpoint: entry.endpoint,
        nonce: entry.nonce,
        waited: now.since(entry.arrived),
    };
    entries.iter().take(ENTRIES_MAX).map(sent).collect()
}

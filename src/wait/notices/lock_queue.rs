//! The queue of waiting processes for one lock: a state machine without I/O, threads or clocks of its own. Each step returns
//! nothing but [`Effect`]s, in the list that it is given.
//!
//! | turn | means | a register is answered |
//! |---|---|---|
//! | held | this process holds the lock | registered |
//! | asking | it got a notice, or a thread of it is next: it asks the store | registered |
//! | yields | it has released the lock, and sends no notice for one interval | registered |
//! | free | it has released the lock, and has sent a notice to the next process (`handed`), or none waited | moved, or ask |
//!
//! A process that gets the lock by a notice gets the rest of the queue with it. So one hand-over costs two datagrams, however
//! many wait. The queue of an exclusive lock is in one place only. If it is lost there, as when its process is killed, nothing happens but
//! this: its processes find the lock by polling, as without notices, and register with the next holder.
//!
//! Several processes may hold a lock that is not exclusive. Each has a queue of its own, with those that register there, and
//! passes it on when it holds the lock no more. A process that is refused, because others still hold the lock, takes its queue
//! to one of them. Whoever is granted a lock that others may hold beside it notifies those that come before the next writer.
//! A writer that waits for readers has announced itself in the store, with a key. Readers that it keeps out register with it.
//!
//! A key is what a register must quote: the random bits of a grant or of such a writer, which are in its record, or the random
//! bits with which the last holder sent to the next one. A nonce is what a notice must quote. It is drawn by the waiter and used once.
//! An entry ends by itself, its process renews it, and takes it back when it does not wait any more.

use std::time::Duration;

use super::datagram::{Datagram, ENTRIES_MAX, SentEntry};
use super::rate_limit::RateLimit;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::notice_endpoint::{GrantEndpoint, NoticeEndpoint};
use crate::runtime::time::Moment;

/// How long a process that got a notice has to answer before the next one gets one, and a register before it is repeated.
pub(crate) const ANSWER: Duration = Duration::from_millis(50);
/// How often a register is sent at most. If the last one is not answered either, the holder has ended or cannot be reached, and
/// the waiter reads the store once.
pub(super) const SENDS_MAX: u8 = 3;
/// How long after a release a register is still answered, and a waiter of this process goes to the next holder first.
pub(super) const REMEMBERED: Duration = Duration::from_secs(2);
/// How long an entry lasts that is not renewed. Earlier versions renew none.
pub(super) const ENTRY_LASTS: Duration = Duration::from_secs(60);
/// How long after its registration a waiter renews it.
pub(super) const RENEW: Duration = Duration::from_secs(20);
/// Highest number of entries of all queues.
const ENTRIES_ALL: usize = 8192;
/// Keys of a queue that are still accepted: those of the last grants.
pub(super) const KEYS_MAX: usize = 6;
/// Redirections that a wait follows between two reads of the store.
pub(super) const HOPS_MAX: u8 = 8;
/// Early reads of the store in one [`REMEMBERED`].
pub(super) const READS_MAX: u32 = 4;
/// The same for a lock that has readers: one for each of them that leaves, and for each writer that was faster.
pub(super) const READS_BESIDE_READERS_MAX: u32 = 256;

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

/// The first waiter of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) at: Moment,
    pub(crate) mode: Mode,
}

/// What the caller knows about its queue when it releases a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalQueueAtRelease {
    pub(crate) front: Option<Arrival>,
    /// Since when processes with notices have passed the lock on.
    pub(crate) since: Option<Moment>,
    /// If the quantum is over: the end of the pause.
    pub(crate) yield_until: Option<Moment>,
}

/// What a step of one queue needs to know, and what it leaves behind.
pub(super) struct NoticeStep<'a> {
    pub(super) now: Moment,
    pub(super) own: NoticeEndpoint,
    /// Draws numbers that nobody can guess.
    pub(super) random: fn() -> u64,
    /// Entries of all other queues.
    pub(super) others: usize,
    /// Whether to report when another process waits for a lock of this one.
    pub(super) tells_wanted: bool,
    pub(super) effects: &'a mut Vec<Effect>,
}

impl NoticeStep<'_> {
    fn send(&mut self, to: NoticeEndpoint, datagram: Datagram) {
        self.effects.push(Effect::Send(to, datagram));
    }
}

/// By what a queue is found, and what it takes up. [`Default`]: a queue that is not there.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueIndex {
    /// By which others may register.
    pub(super) keys: [Option<u64>; KEYS_MAX + 1],
    /// Of the wait of this process, and of its wait before, which others may still bring along.
    pub(super) nonces: [Option<u64>; 2],
    /// The key of the last hand-over.
    pub(super) handed: Option<u64>,
    /// When the queue has something to do.
    pub(super) timer: Option<Moment>,
    pub(super) entries: usize,
    pub(super) free_since: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueTurn {
    Held,
    Asking,
    Yields(Moment),
    Free(Moment),
}

#[derive(Debug, Clone, Copy)]
struct QueueEntry {
    endpoint: NoticeEndpoint,
    nonce: u64,
    mode: Mode,
    arrived: Moment,
    ends: Moment,
    /// Whether the process has registered here itself. What others bring of it may be older.
    is_own: bool,
}

/// A grant that this process has.
#[derive(Debug, Clone, Copy)]
struct OwnHold {
    grant: u64,
    mode: Mode,
}

/// The wait of this process.
#[derive(Debug)]
struct OwnWait {
    first: Arrival,
    nonce: u64,
    /// Where it is registered, and the key that was quoted.
    with: Option<(NoticeEndpoint, u64)>,
    is_acknowledged: bool,
    sends: u8,
    /// When it registers again: soon if the last register was not answered, otherwise to renew its entry.
    send_again: Moment,
    /// Redirections since the last look at the store.
    hops: u8,
    /// Whether it was told to ask, and then refused. Goes with its register until that is answered.
    was_told: bool,
    /// The queue of this process, which goes with its register until that is answered.
    behind: Vec<QueueEntry>,
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
pub(super) struct LockQueue {
    name: LockName,
    turn: QueueTurn,
    /// What this process holds. Several only if the lock is not exclusive.
    holds: Vec<OwnHold>,
    /// The key of a writer of this process that waits for readers.
    announced: Option<u64>,
    /// Waiting processes, in order of arrival.
    entries: Vec<QueueEntry>,
    /// Whether a process that does not wait wants the lock, which is held here.
    is_wanted: bool,
    /// Newest first.
    keys: [Option<u64>; KEYS_MAX],
    wait: Option<OwnWait>,
    /// The nonce of the wait before.
    nonce_before: Option<u64>,
    handed: Option<HandedOn>,
    /// Since when processes with notices have passed the lock on.
    since: Moment,
    /// When this process last ended a quantum and its pause.
    yielded: Moment,
    /// Whether the lock has had readers. Then a notice in vain is no sign that its sender does not know.
    has_readers: bool,
    /// The process that answered last that it does not have the lock, and the key that was quoted.
    not_here: Option<(NoticeEndpoint, u64)>,
    /// Early reads of the store.
    reads: RateLimit,
    reads_beside_readers: RateLimit,
}

impl LockQueue {
    pub(super) fn new(name: LockName, now: Moment) -> LockQueue {
        LockQueue {
            name,
            turn: QueueTurn::Free(now),
            holds: Vec::new(),
            announced: None,
            entries: Vec::new(),
            is_wanted: false,
            keys: [None; KEYS_MAX],
            wait: None,
            nonce_before: None,
            handed: None,
            since: now,
            yielded: Moment::OVER,
            has_readers: false,
            not_here: None,
            reads: RateLimit::new(READS_MAX, REMEMBERED),
            reads_beside_readers: RateLimit::new(READS_BESIDE_READERS_MAX, REMEMBERED),
        }
    }

    pub(super) fn name(&self) -> &LockName {
        &self.name
    }

    pub(super) fn index(&self) -> QueueIndex {
        let (yields, free_since) = match self.turn {
            QueueTurn::Yields(until) => (Some(until), None),
            QueueTurn::Free(at) => (None, Some(at).filter(|_| self.announced.is_none())),
            QueueTurn::Held | QueueTurn::Asking => (None, None),
        };
        let unanswered = self.handed.as_ref().filter(|handed| !handed.is_received);
        let silent = unanswered.map(|handed| handed.at.after(ANSWER));
        let wait = self.wait.as_ref().map(|wait| wait.send_again).filter(|at| *at != Moment::NEVER);
        let behind = self.wait.as_ref().map_or(&[][..], |wait| &wait.behind);
        let ends = self.entries.iter().chain(behind).map(|entry| entry.ends).min();
        let mut keys = [self.announced; KEYS_MAX + 1];
        keys[..KEYS_MAX].copy_from_slice(&self.keys);
        QueueIndex {
            keys,
            nonces: [
                self.wait.as_ref().map(|wait| wait.nonce),
                self.nonce_before.filter(|_| self.wait.is_some()),
            ],
            handed: self.handed.as_ref().map(|handed| handed.key),
            timer: [yields, silent, wait, ends].into_iter().flatten().min(),
            entries: self.entries.len() + behind.len(),
            free_since,
        }
    }

    pub(super) fn is_free(&self) -> bool {
        matches!(self.turn, QueueTurn::Free(_))
    }

    /// Whether the lock was not here lately.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        matches!(self.turn, QueueTurn::Free(at) if now.since(at) >= REMEMBERED) && self.announced.is_none()
    }

    /// Whether another process waits for the lock, which is held here.
    pub(super) fn is_wanted(&self) -> bool {
        self.turn == QueueTurn::Held && (self.is_wanted || !self.entries.is_empty())
    }

    /// Whether this process waits, and the one with which it is registered has answered.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.is_acknowledged)
    }

    /// Whether this process waits, registered with the process at this endpoint.
    pub(super) fn waits_with(&self, from: NoticeEndpoint) -> bool {
        self.with().is_some_and(|(with, _)| with == from)
    }

    /// Where this process is registered, and the key that was quoted.
    pub(super) fn with(&self) -> Option<(NoticeEndpoint, u64)> {
        self.wait.as_ref().and_then(|wait| wait.with)
    }

    pub(super) fn was_handed_to(&self, from: NoticeEndpoint) -> bool {
        self.handed.as_ref().is_some_and(|handed| handed.to == from)
    }

    /// Whether the process at this endpoint is in the queue, or got a notice and has not answered, or our waiter registered
    /// with it.
    pub(super) fn concerns(&self, endpoint: NoticeEndpoint) -> bool {
        self.has_notice(endpoint)
            || self.waits_with(endpoint)
            || self.entries.iter().any(|entry| entry.endpoint == endpoint)
    }

    fn has_notice(&self, endpoint: NoticeEndpoint) -> bool {
        self.handed.as_ref().is_some_and(|handed| handed.to == endpoint && !handed.is_received)
    }

    /// Returns the grant of a hold in this mode that others may be beside, to be used for the next one as well. Not that of a
    /// hold in another mode: it would not be known which of the two ends.
    pub(super) fn grant_beside_others(&self, mode: Mode) -> Option<u64> {
        let is_alike = |hold: &&OwnHold| hold.mode == mode && mode != Mode::Exclusive;
        self.holds.iter().rfind(is_alike).map(|hold| hold.grant)
    }

    /// The store granted the lock to this process.
    pub(super) fn granted(&mut self, grant: u64, mode: Mode, step: &mut NoticeStep<'_>) {
        if mode == Mode::Exclusive {
            // What it held before is over, or becomes this.
            self.holds.clear();
        }
        self.has_readers |= mode != Mode::Exclusive;
        self.holds.push(OwnHold { grant, mode });
        self.add_key(grant);
        self.turn = QueueTurn::Held;
        self.is_wanted = false;
        self.end_wait();
        self.handed = None;
        self.tell_those_beside(step);
    }

    /// A writer of this process waits for readers. The store has this key for those that it keeps out.
    pub(super) fn announced(&mut self, key: u64) {
        self.has_readers = true;
        self.announced = Some(key);
    }

    /// The store has its intent no more: it has got the lock, or waits no more.
    pub(super) fn withdrawn(&mut self, key: u64, step: &mut NoticeStep<'_>) {
        if self.announced != Some(key) {
            return;
        }
        self.announced = None;
        if self.turn == QueueTurn::Held {
            // A reader may have read it before.
            self.add_key(key);
            self.tell_those_beside(step);
        }
        if self.is_free() && !self.entries.is_empty() {
            self.since = step.now;
            self.pass(step);
        }
    }

    /// The grant is over without a release: it was lost, or given to another process.
    pub(super) fn ended(&mut self, grant: u64, now: Moment) {
        if self.take_hold(grant).is_some() && self.holds.is_empty() {
            if self.announced.is_none() {
                self.entries.clear();
            }
            self.turn = QueueTurn::Free(now);
            // The record may still be there. A process that registers by it gets the answer that the lock is not here.
            self.keys = [None; KEYS_MAX];
        }
    }

    /// The store confirmed a release.
    pub(super) fn released(
        &mut self,
        grant: u64,
        local: LocalQueueAtRelease,
        step: &mut NoticeStep<'_>,
    ) -> NextTurn {
        let Some(released) = self.take_hold(grant) else { return NextTurn::Ours };
        if !self.holds.is_empty() {
            if released.mode != Mode::Shared {
                self.tell_those_beside(step);
            }
            return NextTurn::Ours;
        }
        self.since = local.since.unwrap_or(step.now);
        self.yielded = local.yield_until.unwrap_or(self.yielded);
        let Some(first) = self.entries.first().map(|entry| entry.arrived) else {
            self.turn = QueueTurn::Free(step.now);
            return NextTurn::Ours;
        };
        if let Some(until) = local.yield_until {
            self.turn = QueueTurn::Yields(until);
            self.since = until;
            let pause = until.since(step.now);
            for QueueEntry { endpoint, nonce, .. } in &self.entries {
                step.send(*endpoint, Datagram::Pause { nonce: *nonce, pause });
            }
            return NextTurn::Yield;
        }
        if local.front.is_some_and(|front| front.at <= first) {
            self.turn = QueueTurn::Asking;
            return NextTurn::Ours;
        }
        if let Some(front) = local.front {
            self.wait(front, step);
        }
        self.pass(step);
        NextTurn::Theirs
    }

    /// A waiter of this process begins to wait for a lock that no other waiter of this process waits for. Returns whether
    /// it was registered with the process that got the last notice. A writer of a lock with readers is not: it must ask the
    /// store, because a refusal lets it announce itself, which keeps new readers out.
    pub(super) fn joined(&mut self, mode: Mode, step: &mut NoticeStep<'_>) -> bool {
        if mode == Mode::Exclusive && self.has_readers {
            return false;
        }
        let handed = self.handed.as_ref().filter(|handed| step.now.since(handed.at) < REMEMBERED);
        let Some(with) = handed.map(|handed| (handed.to, handed.key)).filter(|_| self.is_free()) else {
            return false;
        };
        self.wait(Arrival { at: step.now, mode }, step);
        self.register(with, step);
        true
    }

    /// The store refused the lock to this waiter. The process at that endpoint holds it with that grant, or waits for it with
    /// that key. `has_readers`: it is a reader, or a writer that waits for readers.
    pub(super) fn refused(
        &mut self,
        holder: GrantEndpoint,
        has_readers: bool,
        first: Arrival,
        step: &mut NoticeStep<'_>,
    ) {
        let GrantEndpoint { endpoint, grant } = holder;
        let was_told = self.turn == QueueTurn::Asking;
        let waiting = self.give_up(step.now);
        self.has_readers |= has_readers;
        let is_told_in_vain = was_told && !self.may_read(step.now);
        let takes_along = !waiting.is_empty();
        let wait = self.wait(first, step);
        wait.was_told |= was_told;
        wait.behind.retain(|old| !waiting.iter().any(|new| new.endpoint == old.endpoint));
        wait.behind.extend(waiting);
        wait.behind.truncate(ENTRIES_MAX);
        wait.hops = 0;
        if is_told_in_vain {
            // Notices again and again though another process holds the lock. Their sender does not know.
            self.forget_with();
            return;
        }
        if wait.with == Some((endpoint, grant)) && wait.is_acknowledged && !takes_along {
            return;
        }
        self.register((endpoint, grant), step);
    }

    /// The store refused the lock to a waiter of this process, and its holder has no notices. Whoever waits behind us finds
    /// out by polling, but those that a writer of this process keeps out wait for that writer.
    pub(super) fn refused_without_notices(&mut self, now: Moment) {
        let waiting = self.give_up(now);
        if self.announced.is_some() {
            self.entries.extend(waiting);
        }
    }

    /// A waiter of this process could not ask the store.
    pub(super) fn failed(&mut self, step: &mut NoticeStep<'_>) {
        if self.turn == QueueTurn::Asking {
            self.pass(step);
        }
    }

    /// The last waiter of this process has left.
    pub(super) fn left(&mut self, step: &mut NoticeStep<'_>) {
        if let Some(OwnWait { nonce, with: Some((to, key)), .. }) = self.end_wait() {
            step.send(to, Datagram::Leave { key, nonce });
        }
        if self.is_free() && self.announced.is_none() && !self.entries.is_empty() {
            self.turn = QueueTurn::Asking;
        }
        self.failed(step);
    }

    /// The first of these processes has registered with this key, if it is the one at `sender`, and brings the others. All are
    /// known.
    pub(super) fn registered(
        &mut self,
        key: u64,
        known: &[SentEntry],
        sender: NoticeEndpoint,
        step: &mut NoticeStep<'_>,
    ) {
        // The others register when they answer.
        let Some(&SentEntry { endpoint: from, nonce, was_told, .. }) = known.first() else { return };
        let is_sender = from == sender;
        if !self.is_free() || self.announced == Some(key) {
            self.add(known, Some(sender), step);
            if is_sender && self.entries.iter().any(|entry| entry.nonce == nonce) {
                step.send(from, Datagram::Registered { nonce });
                if step.tells_wanted && self.turn == QueueTurn::Held {
                    step.effects.push(Effect::Wanted(self.name.clone()));
                }
            }
            if was_told && (self.is_free() || self.wait.is_some()) {
                // A lock was released, but it is the turn of our writer. Nobody else tells it.
                self.read(step);
            }
            if self.announced.is_none() {
                // They came with the rest of a queue, and this process has got the lock meanwhile.
                self.tell_those_beside(step);
            }
            return;
        }
        match self.handed.as_ref().filter(|handed| step.now.since(handed.at) < REMEMBERED) {
            // A notice was sent to it. Perhaps it did not arrive.
            Some(handed) if handed.to == from => {}
            Some(HandedOn { to, key, .. }) => {
                if is_sender {
                    step.send(from, Datagram::Moved { nonce, to: *to, key: *key });
                }
            }
            None => {
                self.turn = QueueTurn::Asking;
                self.add(known, Some(sender), step);
                self.since = step.now;
                self.pass(step);
            }
        }
    }

    /// The process where our waiter registered has answered.
    pub(super) fn acknowledged(&mut self, step: &mut NoticeStep<'_>) {
        if let Some(wait) = &mut self.wait {
            (wait.is_acknowledged, wait.send_again) = (true, step.now.after(RENEW));
            (wait.behind, wait.was_told) = (Vec::new(), false);
            step.effects.push(Effect::Acknowledged(self.name.clone()));
        }
    }

    /// The queue in which our waiter registered has gone there. With the nonce of the wait before it says nothing about a
    /// waiter that another process has registered since.
    pub(super) fn moved(&mut self, nonce: u64, to: NoticeEndpoint, key: u64, step: &mut NoticeStep<'_>) {
        let is_of = |wait: &&mut OwnWait| wait.nonce == nonce || !wait.is_acknowledged;
        let Some(wait) = self.wait.as_mut().filter(is_of) else { return };
        wait.hops = wait.hops.saturating_add(1);
        if to != step.own && wait.hops <= HOPS_MAX {
            self.register((to, key), step);
        } else {
            self.forget_with();
        }
    }

    /// The process where our waiter registered has no such lock.
    pub(super) fn not_here(&mut self, step: &mut NoticeStep<'_>) {
        let with = self.with();
        let is_again = self.has_readers && with.is_some() && self.not_here == with;
        self.not_here = with;
        self.forget_with();
        if !is_again {
            self.read(step);
        } else if self.reads.allows(step.now)
            && let Some(wait) = &mut self.wait
        {
            // That process does not know of its grant yet, or the lease was given to another process and its record stays.
            wait.send_again = step.now.after(ANSWER);
        }
    }

    fn read(&mut self, step: &mut NoticeStep<'_>) {
        if self.may_read(step.now) {
            step.effects.push(Effect::Read(self.name.clone()));
        }
    }

    /// Another process has passed the lock on to our waiter, and the rest of the queue with this key.
    pub(super) fn told(&mut self, from: NoticeEndpoint, key: u64, age: Duration, step: &mut NoticeStep<'_>) {
        self.end_wait();
        self.add_key(key);
        if self.turn != QueueTurn::Held {
            self.turn = QueueTurn::Asking;
            // An age that is too great makes this process leave the lock free, but once in a quantum at most.
            self.since = earlier(step.now, age).max(self.yielded);
            self.handed = None;
            step.effects.push(Effect::Ask(self.name.clone(), step.now.since(self.since)));
        } else if self.holds.iter().all(|hold| hold.mode != Mode::Exclusive) && self.may_read(step.now) {
            // A waiter of this process wants to write, beside what the process reads.
            step.effects.push(Effect::Ask(self.name.clone(), Duration::ZERO));
        }
        step.send(from, Datagram::Received { key });
    }

    /// The process to which the queue was passed on has it.
    pub(super) fn received(&mut self) {
        if let Some(handed) = &mut self.handed {
            handed.is_received = true;
            handed.rest = Vec::new();
        }
    }

    /// The process to which the queue was passed on does not want the lock.
    pub(super) fn declined(&mut self, step: &mut NoticeStep<'_>) {
        if self.handed.as_ref().is_some_and(|handed| !handed.is_received) {
            self.pass_again(step);
        }
    }

    /// Returns who waits, for those who ask. Without the nonces: a notice that quotes one is believed.
    pub(super) fn waiters(&self, now: Moment) -> Vec<SentEntry> {
        sent(&self.entries, now).into_iter().map(|entry| SentEntry { nonce: 0, ..entry }).collect()
    }

    /// A process that does not wait wants the lock. Returns whether it is held here, with this grant.
    pub(super) fn wanted(&mut self, grant: u64, step: &mut NoticeStep<'_>) -> bool {
        if !self.holds.iter().any(|hold| hold.grant == grant) {
            return false;
        }
        self.is_wanted = true;
        if step.tells_wanted {
            step.effects.push(Effect::Wanted(self.name.clone()));
        }
        true
    }

    /// This waiter does not wait any more.
    pub(super) fn forget_entry(&mut self, endpoint: NoticeEndpoint, nonce: u64) {
        self.drop_entries_of(|entry| (entry.endpoint, entry.nonce) == (endpoint, nonce));
    }

    /// The process at this endpoint has ended.
    pub(super) fn gone(&mut self, endpoint: NoticeEndpoint, step: &mut NoticeStep<'_>) {
        self.drop_entries_of(|entry| entry.endpoint == endpoint);
        if self.has_notice(endpoint) {
            self.pass_again(step);
        }
        if self.waits_with(endpoint) {
            self.not_here(step);
        }
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, step: &mut NoticeStep<'_>) {
        let now = step.now;
        self.drop_entries_of(|entry| entry.ends <= now);
        if matches!(self.turn, QueueTurn::Yields(until) if until <= now) {
            self.turn = QueueTurn::Asking;
            self.pass(step);
        }
        let is_silent = |handed: &HandedOn| !handed.is_received && handed.at.after(ANSWER) <= now;
        if self.handed.as_ref().is_some_and(is_silent) {
            self.pass_again(step);
        }
        let Some(wait) = self.wait.as_mut().filter(|wait| wait.send_again <= now) else { return };
        match wait.with {
            Some(with) if wait.is_acknowledged || wait.sends < SENDS_MAX => {
                self.register(with, step);
            }
            _ => {
                wait.send_again = Moment::NEVER;
                self.read(step);
            }
        }
    }

    /// Adds these processes, which are known. `sender` has registered itself, and brings the others.
    pub(super) fn add(&mut self, known: &[SentEntry], sender: Option<NoticeEndpoint>, step: &NoticeStep<'_>) {
        for &SentEntry { endpoint, nonce, waited, mode, .. } in known {
            if endpoint == step.own {
                continue;
            }
            let arrived = earlier(step.now, waited);
            let has_room = step.others + self.entries.len() < ENTRIES_ALL;
            let before = self.entries.len();
            let is_own = sender == Some(endpoint);
            if !is_own && self.entries.iter().any(|entry| entry.endpoint == endpoint && entry.is_own) {
                continue;
            }
            // One entry for each process.
            self.entries.retain(|entry| entry.endpoint != endpoint);
            if self.entries.len() < ENTRIES_MAX && (has_room || self.entries.len() < before) {
                let ends = step.now.after(ENTRY_LASTS);
                self.insert(QueueEntry { endpoint, nonce, mode, arrived, ends, is_own });
            }
        }
    }

    fn insert(&mut self, entry: QueueEntry) {
        let index = self.entries.partition_point(|it| it.arrived <= entry.arrived);
        self.entries.insert(index, entry);
    }

    fn add_key(&mut self, key: u64) {
        if self.keys.contains(&Some(key)) {
            return;
        }
        // In the place of the oldest that no hold has.
        let is_held = |key: &Option<u64>| self.holds.iter().any(|hold| Some(hold.grant) == *key);
        let oldest = self.keys.iter().rposition(|key| !is_held(key)).unwrap_or(KEYS_MAX - 1);
        self.keys[..=oldest].rotate_right(1);
        self.keys[0] = Some(key);
    }

    /// Whether this process may read the store early once more.
    fn may_read(&mut self, now: Moment) -> bool {
        if self.has_readers { self.reads_beside_readers.allows(now) } else { self.reads.allows(now) }
    }

    /// Takes the grant out of what this process holds.
    fn take_hold(&mut self, grant: u64) -> Option<OwnHold> {
        let at = self.holds.iter().position(|hold| hold.grant == grant)?;
        Some(self.holds.remove(at))
    }

    /// Notifies the processes that may hold the lock beside this one, up to the next writer.
    fn tell_those_beside(&mut self, step: &mut NoticeStep<'_>) {
        let Some(&OwnHold { grant, mode }) = self.holds.last() else { return };
        if mode == Mode::Exclusive || self.entries.is_empty() {
            return;
        }
        let mut beside: Vec<Mode> = self.holds.iter().map(|hold| hold.mode).collect();
        let mut may_pass = true;
        self.entries.retain(|entry| {
            may_pass &= entry.mode != Mode::Exclusive;
            let is_told = may_pass && beside.iter().all(|mode| entry.mode.is_compatible_with(*mode));
            if is_told {
                beside.push(entry.mode);
                let QueueEntry { endpoint, nonce, .. } = *entry;
                let (age, entries) = (Duration::ZERO, Vec::new());
                step.send(endpoint, Datagram::Ask { nonce, key: grant, age, entries });
            }
            !is_told
        });
    }

    /// This process waits.
    fn wait(&mut self, first: Arrival, step: &NoticeStep<'_>) -> &mut OwnWait {
        let wait = self.wait.get_or_insert_with(|| OwnWait {
            first,
            nonce: (step.random)(),
            with: None,
            is_acknowledged: false,
            sends: 0,
            send_again: Moment::NEVER,
            hops: 0,
            was_told: false,
            behind: Vec::new(),
        });
        wait.first = first;
        wait
    }

    /// This process does not wait any more. What its last register has not brought to another process stays here.
    fn end_wait(&mut self) -> Option<OwnWait> {
        let mut wait = self.wait.take()?;
        self.nonce_before = Some(wait.nonce);
        for entry in std::mem::take(&mut wait.behind) {
            let is_there = self.entries.iter().any(|it| it.endpoint == entry.endpoint);
            if !is_there && self.entries.len() < ENTRIES_MAX {
                self.insert(entry);
            }
        }
        Some(wait)
    }

    fn forget_with(&mut self) {
        if let Some(wait) = &mut self.wait {
            (wait.with, wait.is_acknowledged, wait.sends) = (None, false, 0);
            wait.send_again = Moment::NEVER;
        }
    }

    /// Sends a register for the wait of this process, and for the processes behind it.
    fn register(&mut self, with: (NoticeEndpoint, u64), step: &mut NoticeStep<'_>) {
        let Some(wait) = &mut self.wait else { return };
        if wait.with != Some(with) || wait.is_acknowledged {
            (wait.with, wait.is_acknowledged, wait.sends) = (Some(with), false, 0);
        }
        // At each look at the store, for as long as the holder is silent.
        wait.sends = wait.sends.saturating_add(1);
        wait.send_again = if wait.sends <= SENDS_MAX { step.now.after(ANSWER) } else { Moment::NEVER };
        let ((to, key), nonce, Arrival { at, mode }) = (with, wait.nonce, wait.first);
        let (waited, entries) = (step.now.since(at), sent(&wait.behind, step.now));
        let was_told = wait.was_told;
        step.send(to, Datagram::Register { key, nonce, waited, mode, was_told, entries });
    }

    /// Drops these entries of the queue, and of what was sent along with the last hand-over.
    fn drop_entries_of(&mut self, is_dropped: impl Fn(&QueueEntry) -> bool) {
        self.entries.retain(|entry| !is_dropped(entry));
        if let Some(wait) = &mut self.wait {
            wait.behind.retain(|entry| !is_dropped(entry));
        }
        if let Some(handed) = &mut self.handed {
            handed.rest.retain(|entry| !is_dropped(entry));
        }
    }

    /// Ends the turn of this process, which did not get the lock. Returns the queue that it had.
    fn give_up(&mut self, now: Moment) -> Vec<QueueEntry> {
        if self.turn != QueueTurn::Asking {
            return Vec::new();
        }
        self.turn = QueueTurn::Free(now);
        std::mem::take(&mut self.entries)
    }

    /// Notifies the first process of the queue, and gives it the rest.
    fn pass(&mut self, step: &mut NoticeStep<'_>) {
        if let Some(OwnWait { first: Arrival { at, mode }, nonce, .. }) = self.wait {
            let ends = step.now.after(ENTRY_LASTS);
            let (endpoint, is_own) = (step.own, true);
            self.insert(QueueEntry { endpoint, nonce, mode, arrived: at, ends, is_own });
        }
        self.turn = QueueTurn::Free(step.now);
        let entries = std::mem::take(&mut self.entries);
        self.pass_to_first(entries, step);
    }

    fn pass_again(&mut self, step: &mut NoticeStep<'_>) {
        if let Some(handed) = self.handed.take() {
            self.pass_to_first(handed.rest, step);
        }
    }

    fn pass_to_first(&mut self, mut entries: Vec<QueueEntry>, step: &mut NoticeStep<'_>) {
        // Our own waiter may have left meanwhile.
        let nonce = self.wait.as_ref().map(|wait| wait.nonce);
        entries.retain(|entry| entry.endpoint != step.own || Some(entry.nonce) == nonce);
        if entries.is_empty() {
            return;
        }
        let first = entries.remove(0);
        let age = step.now.since(self.since);
        if first.endpoint == step.own {
            (self.turn, self.entries) = (QueueTurn::Asking, entries);
            self.end_wait();
            step.effects.push(Effect::Ask(self.name.clone(), age));
            return;
        }
        let key = (step.random)();
        let sent = sent(&entries, step.now);
        step.send(first.endpoint, Datagram::Ask { nonce: first.nonce, key, age, entries: sent });
        if let Some(wait) = &mut self.wait {
            wait.with = Some((first.endpoint, key));
            // It goes with the queue, so it need not be sent.
            (wait.is_acknowledged, wait.send_again) = (true, step.now.after(RENEW));
        }
        let to = first.endpoint;
        self.handed = Some(HandedOn { to, key, at: step.now, is_received: false, rest: entries });
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
        mode: entry.mode,
        was_told: false,
    };
    entries.iter().take(ENTRIES_MAX).map(sent).collect()
}

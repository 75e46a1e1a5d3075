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
//! many wait. The queue is in one place only. If it is lost there, as when its process is killed, nothing happens but
//! this: its processes find the lock by polling, as without notices, and register with the next holder.
//!
//! A key is what a register must quote: the random bits of a grant, which are in its record, or the random bits with
//! which the last holder sent to the next one. A nonce is what a notice must quote. It is drawn by the waiter and used once.
//! An entry ends by itself, its process renews it, and takes it back when it does not wait any more.

use std::time::Duration;

use super::datagram::{Datagram, ENTRIES_MAX, SentEntry};
use super::rate_limit::RateLimit;
use crate::names::lock_name::LockName;
use crate::names::notice_endpoint::{GrantEndpoint, NoticeEndpoint};
use crate::runtime::time::Moment;

/// How long a process that got a notice has to answer before the next one gets one, and a register before it is repeated.
pub(crate) const ANSWER: Duration = Duration::from_millis(50);
/// How often a register is sent at most.
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
    pub(super) keys: [Option<u64>; KEYS_MAX],
    /// Of the wait of this process.
    pub(super) nonce: Option<u64>,
    /// The key of the last hand-over.
    pub(super) handed: Option<u64>,
    /// When the queue has something to do.
    pub(super) timer: Option<Moment>,
    pub(super) entries: usize,
    pub(super) free_since: Option<Moment>,
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
pub(super) struct LockQueue {
    name: LockName,
    turn: QueueTurn,
    /// Waiting processes, in order of arrival.
    entries: Vec<QueueEntry>,
    /// Whether a process that does not wait wants the lock, which is held here.
    is_wanted: bool,
    /// Newest first.
    keys: [Option<u64>; KEYS_MAX],
    wait: Option<OwnWait>,
    handed: Option<HandedOn>,
    /// Since when processes with notices have passed the lock on.
    since: Moment,
    /// When this process last ended a quantum and its pause.
    yielded: Moment,
    /// Early reads of the store.
    reads: RateLimit,
}

impl LockQueue {
    pub(super) fn new(name: LockName, now: Moment) -> LockQueue {
        LockQueue {
            name,
            turn: QueueTurn::Free(now),
            entries: Vec::new(),
            is_wanted: false,
            keys: [None; KEYS_MAX],
            wait: None,
            handed: None,
            since: now,
            yielded: Moment::OVER,
            reads: RateLimit::new(READS_MAX, REMEMBERED),
        }
    }

    pub(super) fn name(&self) -> &LockName {
        &self.name
    }

    pub(super) fn index(&self) -> QueueIndex {
        let (yields, free_since) = match self.turn {
            QueueTurn::Yields(until) => (Some(until), None),
            QueueTurn::Free(at) => (None, Some(at)),
            QueueTurn::Held(_) | QueueTurn::Asking => (None, None),
        };
        let unanswered = self.handed.as_ref().filter(|handed| !handed.is_received);
        let silent = unanswered.map(|handed| handed.at.after(ANSWER));
        let wait = self.wait.as_ref().map(|wait| wait.send_again).filter(|at| *at != Moment::NEVER);
        let ends = self.entries.iter().map(|entry| entry.ends).min();
        QueueIndex {
            keys: self.keys,
            nonce: self.wait.as_ref().map(|wait| wait.nonce),
            handed: self.handed.as_ref().map(|handed| handed.key),
            timer: [yields, silent, wait, ends].into_iter().flatten().min(),
            entries: self.entries.len(),
            free_since,
        }
    }

    pub(super) fn is_free(&self) -> bool {
        matches!(self.turn, QueueTurn::Free(_))
    }

    /// Whether the lock was not here lately.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        matches!(self.turn, QueueTurn::Free(at) if now.since(at) >= REMEMBERED)
    }

    /// Whether another process waits for the lock, which is held here.
    pub(super) fn is_wanted(&self) -> bool {
        matches!(self.turn, QueueTurn::Held(_)) && (self.is_wanted || !self.entries.is_empty())
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

    /// Whether the process at this endpoint is in the queue, or got a notice and has not answered.
    pub(super) fn concerns(&self, endpoint: NoticeEndpoint) -> bool {
        self.has_notice(endpoint) || self.entries.iter().any(|entry| entry.endpoint == endpoint)
    }

    fn has_notice(&self, endpoint: NoticeEndpoint) -> bool {
        self.handed.as_ref().is_some_and(|handed| handed.to == endpoint && !handed.is_received)
    }

    /// The store granted the lock to this process.
    pub(super) fn granted(&mut self, grant: u64) {
        self.add_key(grant);
        self.turn = QueueTurn::Held(grant);
        self.is_wanted = false;
        (self.wait, self.handed) = (None, None);
    }

    /// The grant is over without a release: it was lost, or given to another process.
    pub(super) fn ended(&mut self, grant: u64, now: Moment) {
        if self.turn == QueueTurn::Held(grant) {
            self.entries.clear();
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
        if self.turn != QueueTurn::Held(grant) {
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
        if local.front.is_some_and(|front| front <= first) {
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
    /// it was registered with the process that got the last notice.
    pub(super) fn joined(&mut self, step: &mut NoticeStep<'_>) -> bool {
        let handed = self.handed.as_ref().filter(|handed| step.now.since(handed.at) < REMEMBERED);
        let Some(with) = handed.map(|handed| (handed.to, handed.key)).filter(|_| self.is_free()) else {
            return false;
        };
        self.wait(step.now, step);
        self.register(with, Vec::new(), step);
        true
    }

    /// The store refused the lock, which the process at that endpoint holds with that grant, to a waiter that arrived at `arrived`.
    pub(super) fn refused(&mut self, holder: GrantEndpoint, arrived: Moment, step: &mut NoticeStep<'_>) {
        let GrantEndpoint { endpoint, grant } = holder;
        let was_told = self.turn == QueueTurn::Asking;
        let waiting = self.give_up(step.now);
        self.wait(arrived, step);
        if was_told && !self.reads.allows(step.now) {
            // Notices again and again though another process holds the lock. Their sender does not know.
            self.forget_with();
            return;
        }
        let wait = self.wait.as_mut().expect("it was just set");
        wait.hops = 0;
        if wait.with == Some((endpoint, grant)) && wait.is_acknowledged && waiting.is_empty() {
            return;
        }
        self.register((endpoint, grant), waiting, step);
    }

    /// The store refused the lock to a waiter of this process, and its holder has no notices. Whoever waits behind us finds
    /// out by polling.
    pub(super) fn refused_without_notices(&mut self, now: Moment) {
        self.give_up(now);
    }

    /// A waiter of this process could not ask the store.
    pub(super) fn failed(&mut self, step: &mut NoticeStep<'_>) {
        if self.turn == QueueTurn::Asking {
            self.pass(step);
        }
    }

    /// The last waiter of this process has left.
    pub(super) fn left(&mut self, step: &mut NoticeStep<'_>) {
        if let Some(OwnWait { nonce, with: Some((to, key)), .. }) = self.wait.take() {
            step.send(to, Datagram::Leave { key, nonce });
        }
        self.failed(step);
    }

    /// The first of these processes has registered, if it is the one at `sender`, and brings the others. All are known.
    pub(super) fn registered(
        &mut self,
        known: &[SentEntry],
        sender: NoticeEndpoint,
        step: &mut NoticeStep<'_>,
    ) {
        // The others register when they answer.
        let Some(&SentEntry { endpoint: from, nonce, .. }) = known.first() else { return };
        let is_sender = from == sender;
        match self.turn {
            QueueTurn::Held(_) | QueueTurn::Asking | QueueTurn::Yields(_) => {
                self.add(known, step);
                if is_sender && self.entries.iter().any(|entry| entry.nonce == nonce) {
                    step.send(from, Datagram::Registered { nonce });
                    if step.tells_wanted && matches!(self.turn, QueueTurn::Held(_)) {
                        step.effects.push(Effect::Wanted(self.name.clone()));
                    }
                }
            }
            QueueTurn::Free(_) => {
                let handed = self.handed.as_ref().filter(|handed| step.now.since(handed.at) < REMEMBERED);
                match handed {
                    // A notice was sent to it. Perhaps it did not arrive.
                    Some(handed) if handed.to == from => {}
                    Some(HandedOn { to, key, .. }) => {
                        if is_sender {
                            step.send(from, Datagram::Moved { nonce, to: *to, key: *key });
                        }
                    }
                    None => {
                        self.turn = QueueTurn::Asking;
                        self.add(known, step);
                        self.since = step.now;
                        self.pass(step);
                    }
                }
            }
        }
    }

    /// The process where our waiter registered has answered.
    pub(super) fn acknowledged(&mut self, step: &mut NoticeStep<'_>) {
        if let Some(wait) = &mut self.wait {
            (wait.is_acknowledged, wait.send_again) = (true, step.now.after(RENEW));
            step.effects.push(Effect::Acknowledged(self.name.clone()));
        }
    }

    /// The queue in which our waiter registered has gone there.
    pub(super) fn moved(&mut self, to: NoticeEndpoint, key: u64, step: &mut NoticeStep<'_>) {
        let Some(wait) = &mut self.wait else { return };
        wait.hops = wait.hops.saturating_add(1);
        if to != step.own && wait.hops <= HOPS_MAX {
            self.register((to, key), Vec::new(), step);
        } else {
            self.forget_with();
        }
    }

    /// The process where our waiter registered has no such lock.
    pub(super) fn not_here(&mut self, step: &mut NoticeStep<'_>) {
        self.forget_with();
        if self.reads.allows(step.now) {
            step.effects.push(Effect::Read(self.name.clone()));
        }
    }

    /// Another process has passed the lock on to our waiter, and the rest of the queue with this key.
    pub(super) fn told(&mut self, from: NoticeEndpoint, key: u64, age: Duration, step: &mut NoticeStep<'_>) {
        self.wait = None;
        self.add_key(key);
        if !matches!(self.turn, QueueTurn::Held(_)) {
            self.turn = QueueTurn::Asking;
            // An age that is too great makes this process leave the lock free, but once in a quantum at most.
            self.since = earlier(step.now, age).max(self.yielded);
            self.handed = None;
            step.effects.push(Effect::Ask(self.name.clone(), step.now.since(self.since)));
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
        if self.turn != QueueTurn::Held(grant) {
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
        let again = self.wait.as_ref().filter(|wait| wait.send_again <= now);
        if let Some(with) = again.and_then(|wait| wait.with) {
            self.register(with, Vec::new(), step);
        }
    }

    /// Adds these processes, which are known.
    pub(super) fn add(&mut self, known: &[SentEntry], step: &NoticeStep<'_>) {
        for &SentEntry { endpoint, nonce, waited } in known {
            if endpoint == step.own {
                continue;
            }
            let arrived = earlier(step.now, waited);
            let has_room = step.others + self.entries.len() < ENTRIES_ALL;
            let before = self.entries.len();
            // One entry for each process.
            self.entries.retain(|entry| entry.endpoint != endpoint);
            if self.entries.len() < ENTRIES_MAX && (has_room || self.entries.len() < before) {
                self.insert(QueueEntry { endpoint, nonce, arrived, ends: step.now.after(ENTRY_LASTS) });
            }
        }
    }

    fn insert(&mut self, entry: QueueEntry) {
        let index = self.entries.partition_point(|it| it.arrived <= entry.arrived);
        self.entries.insert(index, entry);
    }

    fn add_key(&mut self, key: u64) {
        self.keys.rotate_right(1);
        self.keys[0] = Some(key);
    }

    /// This process waits since `arrived`.
    fn wait(&mut self, arrived: Moment, step: &NoticeStep<'_>) {
        if let Some(wait) = &mut self.wait {
            wait.arrived = arrived;
            return;
        }
        let (nonce, send_again) = ((step.random)(), Moment::NEVER);
        let (is_acknowledged, sends, hops) = (false, 0, 0);
        self.wait = Some(OwnWait { arrived, nonce, with: None, is_acknowledged, sends, send_again, hops });
    }

    fn forget_with(&mut self) {
        if let Some(wait) = &mut self.wait {
            (wait.with, wait.is_acknowledged, wait.sends) = (None, false, 0);
            wait.send_again = Moment::NEVER;
        }
    }

    /// Sends a register for the wait of this process, and for the processes behind it.
    fn register(&mut self, with: (NoticeEndpoint, u64), behind: Vec<QueueEntry>, step: &mut NoticeStep<'_>) {
        let Some(wait) = &mut self.wait else { return };
        if wait.with != Some(with) || wait.is_acknowledged {
            (wait.with, wait.is_acknowledged, wait.sends) = (Some(with), false, 0);
        }
        // At each look at the store, for as long as the holder is silent.
        wait.sends = wait.sends.saturating_add(1);
        wait.send_again = if wait.sends < SENDS_MAX { step.now.after(ANSWER) } else { Moment::NEVER };
        let ((to, key), nonce, waited) = (with, wait.nonce, step.now.since(wait.arrived));
        let entries = sent(&behind, step.now);
        step.send(to, Datagram::Register { key, nonce, waited, entries });
    }

    /// Drops these entries of the queue, and of what was sent along with the last hand-over.
    fn drop_entries_of(&mut self, is_dropped: impl Fn(&QueueEntry) -> bool) {
        self.entries.retain(|entry| !is_dropped(entry));
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
        if let Some(OwnWait { arrived, nonce, .. }) = self.wait {
            let ends = step.now.after(ENTRY_LASTS);
            self.insert(QueueEntry { endpoint: step.own, nonce, arrived, ends });
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
            (self.turn, self.wait, self.entries) = (QueueTurn::Asking, None, entries);
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
    };
    entries.iter().take(ENTRIES_MAX).map(sent).collect()
}

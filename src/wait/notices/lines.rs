//! The lines of waiting processes, one for each lock: who is told next. No I/O, no threads, no store.
//!
//! A process has a line for a lock while it holds the lock or waits for it, and for a while after that.
//!
//! | turn | means | a register is answered |
//! |---|---|---|
//! | held | this process holds the lock | registered |
//! | asking | it was told, or a thread of it is next: it asks the store | registered |
//! | yields | it has released the lock, and tells nobody for one interval | registered |
//! | free | it has released the lock, and has told the next process (`handed`) or had nobody to tell | moved, or ask |
//!
//! Whoever gets the lock by a notice gets the rest of the line with it, so one hand-over costs two datagrams, however
//! many wait. The line is in one place only. If it is lost there, as when its process is killed, nothing happens but
//! this: its processes find the lock by polling, as without notices, and register with the next holder.
//!
//! **Only processes that answer are in a line.** A process that registers over UDP, or is sent along by another, gets a
//! challenge, unless it has answered lately. With its answer it registers, whatever has become of the lock meanwhile. So
//! nobody can register the addresses of others. An entry ends by itself, its process renews it, and takes it back when it
//! does not wait any more.
//!
//! A key is what a register must quote: the random bits of a grant, which are in its record, or the random bits with
//! which the last holder told the next one. A nonce is what a notice must quote. It is drawn by the waiter and used once.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::datagram::{Datagram, ENTRIES_MAX, SentEntry};
use crate::names::lock_name::LockName;
use crate::names::notice_endpoint::{GrantEndpoint, NoticeEndpoint};
use crate::runtime::sync::HashMap;
use crate::runtime::time::Moment;

/// How long a process that was told has to answer before the next one is told, and a register before it is repeated.
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
/// Highest number of free lines that are remembered.
const FREE_MAX: usize = 256;
/// Highest number of entries of all lines.
const ENTRIES_ALL: usize = 8192;
/// Keys of a line that are still accepted: those of the last grants.
const KEYS_MAX: usize = 6;
/// Redirections that a wait follows between two looks at the store.
const HOPS_MAX: u8 = 8;
/// Early looks at the store in one [`REMEMBERED`].
const LOOKS_MAX: u8 = 4;
/// Replies in one second to datagrams that quote nothing of this process.
const REPLIES_MAX: u32 = 1000;

/// What the caller does after a call, without the mutex of the lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Send(NoticeEndpoint, Datagram),
    /// A waiter of this process asks the store now. The quantum of the line began this long ago.
    Ask(LockName, Duration),
    /// A waiter of this process looks at the store now.
    Look(LockName),
    /// The waiters of this process wait until this moment.
    Pause(LockName, Moment),
    /// The next process knows of our waiter, which polls as always.
    Acknowledged(LockName),
    /// Another process waits for a lock of this process.
    Wanted(LockName),
    /// Somebody asked, with this nonce, who waits for a lock of this process: these do, and threads of its own.
    TellWaiting(NoticeEndpoint, u64, LockName, Vec<SentEntry>),
}

/// What the threads of this process do after a release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// The first of them asks the store.
    Ours,
    /// Another process was told.
    Told,
    /// They wait until this moment, so that processes without notices find the lock free.
    Yield,
}

/// What the caller knows about its queue when it releases a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueAtRelease {
    /// When the first waiter of this process arrived.
    pub(crate) front: Option<Moment>,
    /// Since when processes with notices have passed the lock on.
    pub(crate) since: Option<Moment>,
    /// If the quantum is over: the end of the pause.
    pub(crate) yield_until: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineTurn {
    Held(u64),
    Asking,
    Yields(Moment),
    Free(Moment),
}

#[derive(Debug, Clone, Copy)]
struct LineEntry {
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

/// The last hand-over of a line to another process.
#[derive(Debug)]
struct HandedOn {
    to: NoticeEndpoint,
    key: u64,
    at: Moment,
    is_heard: bool,
    rest: Vec<LineEntry>,
}

#[derive(Debug)]
struct NoticeLine {
    name: LockName,
    turn: LineTurn,
    /// Waiting processes, in order of arrival.
    entries: Vec<LineEntry>,
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
    /// Early looks at the store since this moment.
    looks: (Moment, u8),
}

type LineId = u64;

pub(super) struct Lines {
    own: NoticeEndpoint,
    random: fn() -> u64,
    ids: HashMap<LockName, LineId>,
    lines: HashMap<LineId, NoticeLine>,
    /// Lines by the keys by which others may register.
    keys: HashMap<u64, LineId>,
    /// Lines by the nonces of this process.
    nonces: HashMap<u64, LineId>,
    /// Lines by the keys of their last hand-over.
    handed: HashMap<u64, LineId>,
    timers: BTreeSet<(Moment, LineId)>,
    /// Free lines, in the order in which they became free. May name a line twice, or one that is not free any more.
    free: VecDeque<(LineId, Moment)>,
    entries: usize,
    drawn: LineId,
    /// Replies to datagrams that quote nothing, since this moment.
    replies: (Moment, u32),
    /// Until when a UDP endpoint is known to be that of a process with notices.
    known: HashMap<NoticeEndpoint, Moment>,
    /// By the nonces of the challenges.
    challenged: HashMap<u64, Challenged>,
    /// Challenges since this moment.
    challenges: (Moment, u32),
    effects: Vec<Effect>,
    /// Whether to tell when another process waits for a lock of this one.
    tells_wanted: bool,
}

impl Lines {
    /// `random` draws numbers that nobody can guess.
    pub(super) fn new(own: NoticeEndpoint, random: fn() -> u64) -> Lines {
        Lines {
            own,
            random,
            ids: HashMap::default(),
            lines: HashMap::default(),
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

    /// Returns when to call [`tick`](Lines::tick).
    pub(super) fn next(&self) -> Option<Moment> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The store granted the lock to this process.
    pub(super) fn granted(&mut self, name: &LockName, grant: u64, now: Moment) {
        let id = self.line(name, now);
        self.forget_wait(id);
        self.add_key(id, grant);
        let line = self.at(id);
        line.turn = LineTurn::Held(grant);
        line.is_wanted = false;
        let handed = line.handed.take();
        self.forget_handed(handed);
        self.set_timer(id);
    }

    /// The grant is over without a release: it was lost, or given to another process.
    pub(super) fn ended(&mut self, name: &LockName, grant: u64, now: Moment) {
        let Some(&id) = self.ids.get(name) else { return };
        if self.at(id).turn == LineTurn::Held(grant) {
            self.drop_entries(id);
            self.set_free(id, now);
            // The record may still be there. Whoever registers by it is told that the lock is not here.
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
        queue: QueueAtRelease,
        now: Moment,
    ) -> NextTurn {
        let Some(&id) = self.ids.get(name) else { return NextTurn::Ours };
        let line = self.at(id);
        if line.turn != LineTurn::Held(grant) {
            return NextTurn::Ours;
        }
        line.since = queue.since.unwrap_or(now);
        line.yielded = queue.yield_until.unwrap_or(line.yielded);
        let Some(first) = line.entries.first().map(|entry| entry.arrived) else {
            self.set_free(id, now);
            return NextTurn::Ours;
        };
        if let Some(until) = queue.yield_until {
            line.turn = LineTurn::Yields(until);
            line.since = until;
            let told: Vec<_> = line.entries.iter().map(|entry| (entry.endpoint, entry.nonce)).collect();
            for (endpoint, nonce) in told {
                self.effects.push(Effect::Send(endpoint, Datagram::Pause { nonce, pause: until.since(now) }));
            }
            self.set_timer(id);
            return NextTurn::Yield;
        }
        if queue.front.is_some_and(|front| front <= first) {
            line.turn = LineTurn::Asking;
            return NextTurn::Ours;
        }
        if let Some(front) = queue.front {
            self.wait(id, front);
        }
        self.pass(id, now);
        NextTurn::Told
    }

    /// A waiter of this process begins to wait for a lock that no other waiter of this process waits for. Returns whether
    /// it was registered with the process that was told last.
    pub(super) fn joined(&mut self, name: &LockName, now: Moment) -> bool {
        let Some(&id) = self.ids.get(name) else { return false };
        let line = self.at(id);
        let handed = line.handed.as_ref().filter(|handed| now.since(handed.at) < REMEMBERED);
        let Some(with) = handed.map(|handed| (handed.to, handed.key)) else { return false };
        if !matches!(line.turn, LineTurn::Free(_)) {
            return false;
        }
        self.wait(id, now);
        self.register(id, with, Vec::new(), now);
        true
    }

    /// From now on, tells when another process waits for a lock of this one.
    pub(super) fn tell_wanted(&mut self) {
        self.tells_wanted = true;
    }

    /// Whether another process waits for the lock, which is held here.
    pub(super) fn is_wanted(&self, name: &LockName) -> bool {
        let line = self.ids.get(name).and_then(|id| self.lines.get(id));
        line.is_some_and(|line| {
            matches!(line.turn, LineTurn::Held(_)) && (line.is_wanted || !line.entries.is_empty())
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
        let id = self.line(name, now);
        let was_told = self.at(id).turn == LineTurn::Asking;
        let waiting = self.give_up(id, now);
        self.wait(id, arrived);
        if was_told && !self.may_look(id, now) {
            // Told again and again though another process holds the lock. Whoever tells us has no say in it.
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
            && self.at(id).turn == LineTurn::Asking
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
        if self.at(id).turn == LineTurn::Asking {
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
                if self.may_look(id, now) {
                    let name = self.at(id).name.clone();
                    self.effects.push(Effect::Look(name));
                }
            }
            Datagram::Ask { nonce, key, age, entries } => {
                let Some(&id) = self.nonces.get(&nonce) else {
                    self.reply(from, Datagram::Declined { key }, now);
                    return false;
                };
                self.forget_wait(id);
                self.add_key(id, key);
                let line = self.at(id);
                if !matches!(line.turn, LineTurn::Held(_)) {
                    line.turn = LineTurn::Asking;
                    // An age that is too great makes this process leave the lock free, but once in a quantum at most.
                    line.since = earlier(now, age).max(line.yielded);
                    let (age, name, handed) = (now.since(line.since), line.name.clone(), line.handed.take());
                    self.forget_handed(handed);
                    self.effects.push(Effect::Ask(name, age));
                }
                self.effects.push(Effect::Send(from, Datagram::Heard { key }));
                let known = self.known_of(key, entries, now);
                known.iter().for_each(|entry| self.add_entry(id, entry, now));
                self.set_timer(id);
            }
            Datagram::Heard { key } => {
                let Some((id, handed)) = self.handed_to(key, from) else { return false };
                handed.is_heard = true;
                handed.rest = Vec::new();
                self.know(from, now);
                self.set_timer(id);
            }
            Datagram::Declined { key } => {
                let Some((id, handed)) = self.handed_to(key, from) else { return false };
                if !handed.is_heard {
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
                let Some(id) = id.filter(|id| !matches!(self.at(*id).turn, LineTurn::Free(_))) else {
                    self.reply(from, Datagram::NotHere { nonce }, now);
                    return false;
                };
                let line = self.at(id);
                // Without the nonces: a notice that quotes one is believed.
                let entries =
                    sent(&line.entries, now).into_iter().map(|entry| SentEntry { nonce: 0, ..entry });
                let (name, entries) = (line.name.clone(), entries.collect());
                self.effects.push(Effect::TellWaiting(from, nonce, name, entries));
            }
            Datagram::Leave { key, nonce } => {
                let Some(&id) = self.keys.get(&key) else { return false };
                self.challenged.retain(|_, it| (it.entry.endpoint, it.entry.nonce) != (from, nonce));
                self.drop_entries_of(id, |entry| (entry.endpoint, entry.nonce) == (from, nonce));
            }
            Datagram::Challenge { nonce } => self.reply(from, Datagram::NotHere { nonce }, now),
            Datagram::Want { key } => {
                let Some(&id) = self.keys.get(&key) else { return false };
                if self.at(id).turn != LineTurn::Held(key) {
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
        let due: Vec<_> = self.timers.range(..=(now, LineId::MAX)).copied().collect();
        for (at, id) in due {
            if !self.timers.remove(&(at, id)) {
                continue;
            }
            self.at(id).timer = None;
            self.drop_entries_of(id, |entry| entry.ends <= now);
            let line = self.at(id);
            if matches!(line.turn, LineTurn::Yields(until) if until <= now) {
                line.turn = LineTurn::Asking;
                self.pass(id, now);
            }
            let line = self.at(id);
            if line.handed.as_ref().is_some_and(|handed| !handed.is_heard && handed.at.after(ANSWER) <= now) {
                self.pass_again(id, now);
            }
            let again = self.at(id).wait.as_ref().filter(|wait| wait.send_again <= now);
            if let Some(with) = again.and_then(|wait| wait.with) {
                self.register(id, with, Vec::new(), now);
            }
            self.set_timer(id);
        }
    }

    /// A process with a socket in the directory of the store has ended. Whatever else it was told is lost with it.
    pub(super) fn gone(&mut self, endpoint: NoticeEndpoint, now: Moment) {
        let is_told = |line: &NoticeLine| {
            line.handed.as_ref().is_some_and(|handed| handed.to == endpoint && !handed.is_heard)
        };
        let is_in = |line: &NoticeLine| line.entries.iter().any(|entry| entry.endpoint == endpoint);
        let lines = self.lines.iter().filter(|(_, line)| is_told(line) || is_in(line));
        let ids: Vec<_> = lines.map(|(id, line)| (*id, is_told(line))).collect();
        for (id, is_told) in ids {
            self.drop_entries_of(id, |entry| entry.endpoint == endpoint);
            if is_told {
                self.pass_again(id, now);
            }
        }
    }

    /// Returns the numbers of lines, entries, keys and nonces, for tests.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 5] {
        [self.lines.len(), self.entries, self.keys.len(), self.nonces.len(), self.handed.len()]
    }

    fn at(&mut self, id: LineId) -> &mut NoticeLine {
        self.lines.get_mut(&id).expect("the maps name lines that are there")
    }

    fn line(&mut self, name: &LockName, now: Moment) -> LineId {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        self.drawn += 1;
        let id = self.drawn;
        let line = NoticeLine {
            name: name.clone(),
            turn: LineTurn::Free(now),
            entries: Vec::new(),
            is_wanted: false,
            keys: VecDeque::new(),
            wait: None,
            handed: None,
            since: now,
            yielded: Moment::OVER,
            timer: None,
            looks: (Moment::OVER, 0),
        };
        self.ids.insert(name.clone(), id);
        self.lines.insert(id, line);
        self.remember_free(id, now);
        id
    }

    fn set_free(&mut self, id: LineId, now: Moment) {
        self.at(id).turn = LineTurn::Free(now);
        self.remember_free(id, now);
        self.set_timer(id);
    }

    fn remember_free(&mut self, id: LineId, now: Moment) {
        self.free.push_back((id, now));
    }

    /// Forgets the oldest free lines if there are too many. A few at a time, which is more than a call adds.
    fn forget_oldest(&mut self) {
        for _ in 0..4 {
            if self.free.len() <= FREE_MAX {
                return;
            }
            let Some((oldest, at)) = self.free.pop_front() else { return };
            let Some(line) = self.lines.get(&oldest) else { continue };
            match (&line.wait, line.turn == LineTurn::Free(at)) {
                (None, true) => self.forget(oldest),
                (Some(_), true) => self.free.push_back((oldest, at)),
                (_, false) => {}
            }
        }
    }

    fn forget(&mut self, id: LineId) {
        self.drop_entries(id);
        self.forget_wait(id);
        let Some(line) = self.lines.remove(&id) else { return };
        if let Some(at) = line.timer {
            self.timers.remove(&(at, id));
        }
        for key in &line.keys {
            self.keys.remove(key);
        }
        self.forget_handed(line.handed);
        self.ids.remove(&line.name);
    }

    fn add_key(&mut self, id: LineId, key: u64) {
        self.keys.insert(key, id);
        let line = self.at(id);
        line.keys.push_back(key);
        let oldest = if line.keys.len() > KEYS_MAX { line.keys.pop_front() } else { None };
        oldest.map(|key| self.keys.remove(&key));
    }

    /// This process waits since `arrived`.
    fn wait(&mut self, id: LineId, arrived: Moment) {
        let random = self.random;
        let line = self.at(id);
        if let Some(wait) = &mut line.wait {
            wait.arrived = arrived;
            return;
        }
        let nonce = random();
        let send_again = Moment::NEVER;
        let (is_acknowledged, sends, hops) = (false, 0, 0);
        line.wait = Some(OwnWait { arrived, nonce, with: None, is_acknowledged, sends, send_again, hops });
        self.nonces.insert(nonce, id);
    }

    fn forget_wait(&mut self, id: LineId) -> Option<OwnWait> {
        let wait = self.at(id).wait.take()?;
        self.nonces.remove(&wait.nonce);
        Some(wait)
    }

    fn forget_with(&mut self, id: LineId) {
        if let Some(wait) = &mut self.at(id).wait {
            (wait.with, wait.is_acknowledged, wait.sends) = (None, false, 0);
            wait.send_again = Moment::NEVER;
        }
        self.set_timer(id);
    }

    /// Sends a register for the wait of this process, and for the processes behind it.
    fn register(&mut self, id: LineId, with: (NoticeEndpoint, u64), behind: Vec<LineEntry>, now: Moment) {
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

    /// Returns the line with this nonce, if its wait is registered with this process.
    fn waits_with(&mut self, nonce: u64, from: NoticeEndpoint) -> Option<LineId> {
        let &id = self.nonces.get(&nonce)?;
        let wait = self.at(id).wait.as_ref()?;
        wait.with.filter(|(with, _)| *with == from).map(|_| id)
    }

    fn may_look(&mut self, id: LineId, now: Moment) -> bool {
        let (since, count) = &mut self.at(id).looks;
        if now.since(*since) >= REMEMBERED {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= LOOKS_MAX
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
        if matches!(self.at(id).turn, LineTurn::Free(at) if now.since(at) >= REMEMBERED) {
            return false;
        }
        let sender = entries[0].endpoint;
        let known = self.known_of(key, entries, now);
        // The others register when they answer.
        let Some(&SentEntry { endpoint: from, nonce, .. }) = known.first() else { return true };
        let is_sender = from == sender;
        match self.at(id).turn {
            LineTurn::Held(_) | LineTurn::Asking | LineTurn::Yields(_) => {
                known.iter().for_each(|entry| self.add_entry(id, entry, now));
                self.set_timer(id);
                if is_sender && self.at(id).entries.iter().any(|entry| entry.nonce == nonce) {
                    self.effects.push(Effect::Send(from, Datagram::Registered { nonce }));
                    if self.tells_wanted && matches!(self.at(id).turn, LineTurn::Held(_)) {
                        let name = self.at(id).name.clone();
                        self.effects.push(Effect::Wanted(name));
                    }
                }
            }
            LineTurn::Free(_) => {
                let handed = self.at(id).handed.as_ref().filter(|handed| now.since(handed.at) < REMEMBERED);
                if let Some(HandedOn { to, key, .. }) = handed {
                    let (to, key) = (*to, *key);
                    if to == from {
                        // It was told. Perhaps it has not heard it.
                        return true;
                    }
                    if is_sender {
                        self.effects.push(Effect::Send(from, Datagram::Moved { nonce, to, key }));
                    }
                    return true;
                }
                self.at(id).turn = LineTurn::Asking;
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

    /// Whether a process hears this endpoint. A datagram to a local socket that nobody hears fails at once.
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

    fn add_entry(&mut self, id: LineId, entry: &SentEntry, now: Moment) {
        let &SentEntry { endpoint, nonce, waited } = entry;
        if endpoint == self.own {
            return;
        }
        let arrived = earlier(now, waited);
        let has_room = self.entries < ENTRIES_ALL;
        let line = self.at(id);
        let before = line.entries.len();
        // One entry for each process.
        line.entries.retain(|entry| entry.endpoint != endpoint);
        if line.entries.len() < ENTRIES_MAX && (has_room || line.entries.len() < before) {
            let place = line.entries.partition_point(|entry| entry.arrived <= arrived);
            let ends = now.after(ENTRY_LASTS);
            line.entries.insert(place, LineEntry { endpoint, nonce, arrived, ends });
        }
        let after = line.entries.len();
        self.entries = self.entries - before + after;
    }

    fn drop_entries(&mut self, id: LineId) -> Vec<LineEntry> {
        let entries = std::mem::take(&mut self.at(id).entries);
        self.entries -= entries.len();
        entries
    }

    /// Drops these entries of the line, and of what was sent along with the last hand-over.
    fn drop_entries_of(&mut self, id: LineId, is_dropped: impl Fn(&LineEntry) -> bool) {
        let line = self.at(id);
        let before = line.entries.len();
        line.entries.retain(|entry| !is_dropped(entry));
        let dropped = before - line.entries.len();
        if let Some(handed) = &mut line.handed {
            handed.rest.retain(|entry| !is_dropped(entry));
        }
        self.entries -= dropped;
        self.set_timer(id);
    }

    /// Ends the turn of this process, which did not get the lock. Returns the line that it had.
    fn give_up(&mut self, id: LineId, now: Moment) -> Vec<LineEntry> {
        match self.at(id).turn {
            LineTurn::Asking => {
                let entries = self.drop_entries(id);
                self.set_free(id, now);
                entries
            }
            LineTurn::Held(_) | LineTurn::Yields(_) | LineTurn::Free(_) => Vec::new(),
        }
    }

    /// Tells the first process of the line, and gives it the rest.
    fn pass(&mut self, id: LineId, now: Moment) {
        let mut entries = self.drop_entries(id);
        let own = self.own;
        if let Some(OwnWait { arrived, nonce, .. }) = self.at(id).wait {
            let place = entries.partition_point(|entry| entry.arrived <= arrived);
            let ends = now.after(ENTRY_LASTS);
            entries.insert(place, LineEntry { endpoint: own, nonce, arrived, ends });
        }
        self.set_free(id, now);
        self.pass_to_first(id, entries, now);
    }

    fn pass_again(&mut self, id: LineId, now: Moment) {
        let Some(handed) = self.at(id).handed.take() else { return };
        self.handed.remove(&handed.key);
        self.pass_to_first(id, handed.rest, now);
        self.set_timer(id);
    }

    fn pass_to_first(&mut self, id: LineId, mut entries: Vec<LineEntry>, now: Moment) {
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
            let line = self.at(id);
            line.turn = LineTurn::Asking;
            line.entries = entries;
            let name = line.name.clone();
            self.effects.push(Effect::Ask(name, now.since(since)));
            return;
        }
        let key = (self.random)();
        let sent = sent(&entries, now);
        let ask = Datagram::Ask { nonce: first.nonce, key, age: now.since(since), entries: sent };
        self.effects.push(Effect::Send(first.endpoint, ask));
        let handed = HandedOn { to: first.endpoint, key, at: now, is_heard: false, rest: entries };
        let line = self.at(id);
        if let Some(wait) = &mut line.wait {
            wait.with = Some((first.endpoint, key));
            // It is told with the line, so it need not be sent.
            (wait.is_acknowledged, wait.send_again) = (true, now.after(RENEW));
        }
        let before = line.handed.replace(handed);
        self.forget_handed(before);
        self.handed.insert(key, id);
        self.set_timer(id);
    }

    fn handed_to(&mut self, key: u64, from: NoticeEndpoint) -> Option<(LineId, &mut HandedOn)> {
        let &id = self.handed.get(&key)?;
        let handed = self.at(id).handed.as_mut()?;
        (handed.to == from).then_some((id, handed))
    }

    fn forget_handed(&mut self, handed: Option<HandedOn>) {
        if let Some(handed) = handed {
            self.handed.remove(&handed.key);
        }
    }

    fn set_timer(&mut self, id: LineId) {
        let line = self.at(id);
        let yields = match line.turn {
            LineTurn::Yields(until) => Some(until),
            LineTurn::Held(_) | LineTurn::Asking | LineTurn::Free(_) => None,
        };
        let handed =
            line.handed.as_ref().filter(|handed| !handed.is_heard).map(|handed| handed.at.after(ANSWER));
        let wait = line.wait.as_ref().map(|wait| wait.send_again).filter(|at| *at != Moment::NEVER);
        let ends = line.entries.iter().map(|entry| entry.ends).min();
        let at = [yields, handed, wait, ends].into_iter().flatten().min();
        let before = std::mem::replace(&mut line.timer, at);
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

fn sent(entries: &[LineEntry], now: Moment) -> Vec<SentEntry> {
    let sent = |entry: &LineEntry| SentEntry {
        endpoint: entry.endpoint,
        nonce: entry.nonce,
        waited: now.since(entry.arrived),
    };
    entries.iter().take(ENTRIES_MAX).map(sent).collect()
}

//! Notices: processes that wait for one lock notify each other when it is free, and the process that opens a latch notifies those
//! that wait for it.
//!
//! HBase and Aerospike report no release of a lock. Without notices each waiting process asks once per retry
//! interval. With them a process that releases a lock notifies the process that has waited longest.
//!
//! **The store alone decides who holds a lock.** A notice makes a waiter ask the store earlier, and nothing else. So a
//! notice that is lost, late, doubled or forged costs one early request to the store at most. A waiter polls as it does
//! without notices.
//!
//! ```text
//! waiter                      holder
//!   | reads the store: held, by the process at this endpoint, with these random bits
//!   |---- register (quotes the bits) ---->|
//!   |<--------- registered ---------------|
//!   |                                     | releases the lock in the store
//!   |<--- ask (and who waits behind you) -|
//!   |---- received ---------------------->|
//!   | asks the store: granted
//! ```
//!
//! A process that waits for a latch leaves a note in the store, with its endpoint and random bits. Whoever opens the latch
//! reads the notes and notifies each process, quoting its bits. There is no queue: all of them read the latch.
//!
//! `lock_queues` decides, `datagram` has the bytes, `socket` sends them. The socket is opened with the manager. One thread,
//! `dlm-notices`, receives them. It is started by the first attempt to acquire a lock or the first note at a latch, and ended
//! by `stop`.

mod answering;
mod ask_holders;
mod datagram;
mod lock_queue;
mod lock_queues;
mod rate_limit;
mod socket;

use std::io;
#[cfg(not(dlm_simulation))]
use std::io::{Read, Write};
#[cfg(not(dlm_simulation))]
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

#[cfg(not(dlm_simulation))]
use rustix::event::{PollFd, PollFlags, poll};
#[cfg(not(dlm_simulation))]
use rustix::time::Timespec;

pub(crate) use self::ask_holders::ask_holders;
use self::datagram::{BYTES_MAX, Datagram};
use self::lock_queue::Effect;
pub(crate) use self::lock_queue::{ANSWER, Arrival, LocalQueueAtRelease, NextTurn};
use self::lock_queues::LockQueues;
use self::socket::NoticeSocket;
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::notice_endpoint::{GrantEndpoint, LatchListener, NoticeEndpoint};
use crate::names::promise::{Promise, PromiseTopic, Verdict};
#[cfg(not(dlm_simulation))]
use crate::runtime::process::descriptors::above_streams;
use crate::runtime::process::threads::{SharedWithThreads, WorkerThread};
use crate::runtime::random;
use crate::runtime::sync::Mutex;
use crate::runtime::sync::{AtomicBool, AtomicU64};
use crate::runtime::time::{self, Moment};
use crate::settings::limits::NoticesSetting;

/// How long the thread looks for timers that others have set, after the last datagram. Then it waits to be woken.
const ACTIVE: Duration = Duration::from_secs(1);
/// How long a notice of this process to itself may take.
const PROBE: Duration = Duration::from_secs(1);
/// Highest number of datagrams between two checks of the timers.
const BATCH: usize = 64;

/// The waiters of a manager.
pub(crate) trait LocalWaiters: Send + Sync {
    /// The first waiter asks the store now. Returns `false` if nobody waits. The quantum began this long ago.
    fn ask_now(&self, name: &LockName, age: Duration) -> bool;
    /// The first waiter reads the store now.
    fn read_now(&self, name: &LockName);
    /// All waiters wait until this moment, which comes from a datagram: for an interval of their own at most, once between
    /// two reads the store, and not after the lease that they wait for has ended.
    fn pause(&self, name: &LockName, until: Moment);
    /// The first waiter need not look at the store earlier than usual.
    fn acknowledged(&self, name: &LockName);
    /// Returns how many threads wait, and for how long the first has.
    fn waiting_for(&self, name: &LockName) -> (usize, Duration);
}

/// The waits for latches of a manager.
pub(crate) trait LatchWaits: Send + Sync {
    /// The latch whose note has these random bits was opened. Calls `count` before a wait can end by it. Returns `false` if
    /// there is no such note.
    fn opened(self: Arc<Self>, nonce: u64, count: &dyn Fn()) -> bool;
}

/// Called with the name of a lock of this process for which another process waits.
pub(crate) type OnWanted = Box<dyn Fn(&LockName) + Send + Sync>;

/// Numbers of notices since the manager was opened.
#[derive(Debug, Default)]
struct NoticeCounters {
    sent: AtomicU64,
    unsent: AtomicU64,
    ignored: AtomicU64,
    early: AtomicU64,
}

/// What [`Stats`](crate::Stats) says about notices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoticeCounts {
    pub(crate) sent: u64,
    pub(crate) unsent: u64,
    pub(crate) ignored: u64,
    pub(crate) early: u64,
}

/// Notices of one manager.
pub(crate) struct Notices {
    shared: SharedWithThreads<NoticesShared>,
    thread: Mutex<Option<WorkerThread>>,
    /// Whether the thread was started.
    runs: AtomicBool,
}

struct NoticesShared {
    /// Whether all who use the locks have notices.
    all: bool,
    /// `None` if notices are off.
    open: Option<OpenNotices>,
    waiters: OnceLock<Weak<dyn LocalWaiters>>,
    latch_waits: OnceLock<Weak<dyn LatchWaits>>,
    wanted: OnceLock<OnWanted>,
    counters: NoticeCounters,
}

struct OpenNotices {
    socket: NoticeSocket,
    own: NoticeEndpoint,
    state: Mutex<NoticesState>,
    /// Wakes the thread.
    #[cfg(not(dlm_simulation))]
    wake: UnixStream,
    #[cfg(not(dlm_simulation))]
    woken: UnixStream,
    #[cfg(dlm_simulation)]
    waker: crate::runtime::sync::Waker,
}

struct NoticesState {
    queues: LockQueues,
    bits: DrawnBits,
    /// Until when the thread parks. It looks at the timers before it parks again.
    parked_until: Moment,
    /// Number of a datagram that this process has sent to itself, until it arrives.
    probe: Option<u64>,
    is_stopping: bool,
}

/// Random bits for the next grants, drawn for several at once: a draw is a system call. Bits that are the same in two copies
/// of a virtual machine do no harm, because whoever quotes them also needs the address.
struct DrawnBits {
    bytes: [u8; 256],
    left: usize,
}

impl DrawnBits {
    fn draw(&mut self) -> io::Result<u64> {
        if self.left == 0 {
            random::secret(&mut self.bytes).map_err(io::Error::other)?;
            self.left = self.bytes.len() / 8;
        }
        self.left -= 1;
        let (bytes, _) = self.bytes[8 * self.left..].split_first_chunk().expect("whole numbers");
        Ok(u64::from_be_bytes(*bytes))
    }
}

impl Notices {
    /// Opens the socket. `directory` is the store's.
    ///
    /// # Errors
    /// CONNECTION_ERROR if the UDP address cannot be used. Without a local socket notices are off.
    pub(crate) fn new(setting: &NoticesSetting, all: bool, directory: Option<&Path>) -> Result<Notices> {
        let open = match (setting, directory) {
            (NoticesSetting::Off, _) | (NoticesSetting::Local, None) => None,
            (NoticesSetting::Local, Some(directory)) => OpenNotices::local(directory)
                .inspect_err(|error| log::warn!("waiters receive no notices, and poll: {error}"))
                .ok(),
            (NoticesSetting::Udp(address), _) => {
                let opened = NoticeSocket::udp(*address).and_then(OpenNotices::new);
                Some(opened.map_err(|error| Error::Connection {
                    store: format!("udp://{address}"),
                    what: "this process cannot receive notices there: check the option notices".into(),
                    source: Some(error.into()),
                })?)
            }
        };
        let (waiters, latch_waits, wanted) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let counters = NoticeCounters::default();
        let shared =
            SharedWithThreads::new(NoticesShared { all, open, waiters, latch_waits, wanted, counters });
        Ok(Notices { shared, thread: Mutex::default(), runs: AtomicBool::new(false) })
    }

    /// Returns notices that are off.
    #[cfg(test)]
    pub(crate) fn off() -> Notices {
        Notices::new(&NoticesSetting::Off, false, None).expect("nothing is opened")
    }

    /// Sets who is woken. Called once, before the first attempt.
    pub(crate) fn set_waiters(&self, waiters: Weak<dyn LocalWaiters>) {
        let _ = self.shared.waiters.set(waiters);
    }

    /// Sets the receiver of notices that a latch was opened. Called once, before the first wait for a latch.
    pub(crate) fn set_latch_waits(&self, waits: Weak<dyn LatchWaits>) {
        let _ = self.shared.latch_waits.set(waits);
    }

    /// Sets what is called when another process waits for a lock of this one. Called once.
    pub(crate) fn set_wanted(&self, wanted: OnWanted) {
        let _ = self.shared.wanted.set(wanted);
        self.shared.with(|queues, _| queues.report_wanted());
    }

    /// Whether another process waits for the lock, which is held here.
    pub(crate) fn is_wanted(&self, name: &LockName) -> bool {
        let Some(open) = &self.shared.open else { return false };
        open.state.lock().queues.is_wanted(name)
    }

    /// Returns what a note at a latch says to others. `None` as for [`draw`](Notices::draw).
    pub(crate) fn for_latch(&self) -> Option<LatchListener> {
        let GrantEndpoint { endpoint, grant } = self.draw()?;
        Some(LatchListener { endpoint, nonce: grant })
    }

    /// Notifies other processes that a latch for which they wait was opened.
    pub(crate) fn tell_opened(&self, listeners: &[LatchListener]) {
        let Some(open) = &self.shared.open else { return };
        let others = listeners.iter().filter(|listener| listener.endpoint != open.own);
        let wakes = others
            .map(|listener| Effect::Send(listener.endpoint, Datagram::Opened { nonce: listener.nonce }));
        self.shared.run(open, wakes.collect());
    }

    /// Returns what the record of the next grant says to others. `None` as for [`draw`](Notices::draw).
    pub(crate) fn for_grant(&self, name: &LockName, mode: Mode) -> Option<GrantEndpoint> {
        let open = self.shared.open.as_ref()?;
        let beside = || open.state.lock().queues.grant_beside_others(name, mode);
        match Some(mode).filter(|mode| *mode != Mode::Exclusive).and_then(|_| beside()) {
            Some(grant) => Some(GrantEndpoint { endpoint: open.own, grant }),
            None => self.draw(),
        }
    }

    /// Returns where this process receives notices, with new random bits. `None` if notices are off, or if the process has no
    /// random bits or threads for them: then its locks work as without notices.
    fn draw(&self) -> Option<GrantEndpoint> {
        let endpoint = self.shared.open.as_ref()?.own;
        if !self.runs.load(Ordering::Acquire) {
            self.start()?;
        }
        let grant = self.shared.open.as_ref()?.state.lock().bits.draw().ok()?;
        Some(GrantEndpoint { endpoint, grant })
    }

    /// Whether nobody polls for the locks, so that no time must be left to those who do.
    pub(crate) fn are_all(&self) -> bool {
        self.shared.all && self.are_open()
    }

    /// Whether this process receives notices.
    pub(crate) fn are_open(&self) -> bool {
        self.shared.open.is_some()
    }

    /// The store granted the lock with these random bits in its record.
    pub(crate) fn granted(&self, name: &LockName, grant: u64, mode: Mode) {
        self.shared.with(|queues, now| queues.granted(name, grant, mode, now));
    }

    /// A writer of this process is about to announce itself to readers. Returns what the store says to those that it keeps
    /// out. `None` as for [`draw`](Notices::draw).
    pub(crate) fn announced(&self, name: &LockName) -> Option<GrantEndpoint> {
        let writer = self.draw()?;
        self.shared.with(|queues, now| queues.announced(name, writer.grant, now));
        Some(writer)
    }

    /// The store has its intent no more: it has got the lock, or waits no more.
    pub(crate) fn withdrawn(&self, name: &LockName, writer: GrantEndpoint) {
        self.shared.with(|queues, now| queues.withdrawn(name, writer.grant, now));
    }

    /// The grant is over without a release.
    pub(crate) fn ended(&self, name: &LockName, grant: u64) {
        self.shared.with(|queues, now| queues.ended(name, grant, now));
    }

    /// The store confirmed a release. Notifies the next process, if it is the turn of another one.
    pub(crate) fn released(&self, name: &LockName, grant: u64, queue: LocalQueueAtRelease) -> NextTurn {
        self.shared.with(|queues, now| queues.released(name, grant, queue, now)).unwrap_or(NextTurn::Ours)
    }

    /// See [`LockQueues::joined`].
    pub(crate) fn joined(&self, name: &LockName, mode: Mode) -> bool {
        self.shared.with(|queues, now| queues.joined(name, mode, now)) == Some(true)
    }

    /// Whether this process waits in the queue of those with notices.
    pub(crate) fn are_expected(&self, name: &LockName) -> bool {
        self.shared.with(|queues, _| queues.is_acknowledged(name)) == Some(true)
    }

    /// See [`LockQueues::refused`].
    pub(crate) fn refused(
        &self,
        name: &LockName,
        holder: Option<GrantEndpoint>,
        has_readers: bool,
        first: Arrival,
    ) {
        self.shared.with(|queues, now| queues.refused(name, holder, has_readers, first, now));
    }

    /// The store refused the lock to somebody who does not wait. If nobody holds it and it only stays with this holder, it is
    /// given back.
    pub(crate) fn want(&self, holder: GrantEndpoint) {
        let Some(open) = self.shared.open.as_ref().filter(|open| open.own != holder.endpoint) else { return };
        self.shared.run(open, vec![Effect::Send(holder.endpoint, Datagram::Want { key: holder.grant })]);
    }

    /// A waiter could not ask the store.
    pub(crate) fn failed(&self, name: &LockName) {
        self.shared.with(|queues, now| queues.failed(name, now));
    }

    /// The last waiter has left.
    pub(crate) fn left(&self, name: &LockName) {
        self.shared.with(|queues, now| queues.left(name, now));
    }

    /// Returns what waiters are promised.
    pub(crate) fn promise(&self) -> Promise {
        let (verdict, why) = match self.are_open() {
            true => (Verdict::Holds, "processes notify each other (notices)"),
            false => (
                Verdict::Limited,
                "a waiter of another process or manager asks once per `retry`; set notices=udp://ADDRESS",
            ),
        };
        Promise::new(PromiseTopic::Waiting, verdict, why, "tests/run -- stores_notices")
    }

    /// Sends a notice to this process, and reports whether it arrives. `None` if notices are off.
    pub(crate) fn diagnose(&self) -> Option<Diagnostic> {
        let open = self.shared.open.as_ref()?;
        let own = match open.own {
            NoticeEndpoint::Udp(address) => format!("udp://{address}"),
            NoticeEndpoint::Local(_) => "a socket in the directory of the store".into(),
        };
        let began = Moment::now();
        let received = self.start().and_then(|()| random::secret_number().ok()).is_some_and(|key| {
            open.state.lock().probe = Some(key);
            let sent = open.socket.send(open.own, &Datagram::Received { key }.encode());
            let is_open = || open.state.lock().probe == Some(key);
            while sent.is_ok() && is_open() && Moment::now().since(began) < PROBE {
                time::sleep(PROBE / 500);
            }
            sent.is_ok() && !is_open()
        });
        let advice = "open the address and port for UDP, and give the IP address at which other processes reach this one";
        Some(match received {
            true => Diagnostic::ok("notices", format!("received at {own}")),
            false => Diagnostic::warn(
                "notices",
                format!("a notice to {own} did not arrive, so waiters poll"),
                advice,
            ),
        })
    }

    pub(crate) fn counts(&self) -> NoticeCounts {
        let NoticeCounters { sent, unsent, ignored, early } = &self.shared.counters;
        let [sent, unsent, ignored, early] =
            [sent, unsent, ignored, early].map(|counter| counter.load(Ordering::Relaxed));
        NoticeCounts { sent, unsent, ignored, early }
    }

    /// Ends the thread, and removes the socket.
    pub(crate) fn stop(&self) {
        let Some(open) = self.shared.in_its_process().and_then(|shared| shared.open.as_ref()) else { return };
        let was_stopping = std::mem::replace(&mut open.state.lock().is_stopping, true);
        open.wake();
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(WorkerThread::join);
        if !was_stopping {
            open.socket.remove();
        }
    }

    /// Starts the thread.
    fn start(&self) -> Option<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let started = WorkerThread::start("dlm-notices", "receives notices", move || receive(&shared));
            let started =
                started.inspect_err(|error| log::warn!("waiters receive no notices, and poll: {error}"));
            *thread = Some(started.ok()?);
        }
        self.runs.store(true, Ordering::Release);
        Some(())
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.stop();
    }
}

impl NoticesShared {
    /// Calls `change`, and does what follows from it. `None` if notices are off.
    fn with<T>(&self, change: impl FnOnce(&mut LockQueues, Moment) -> T) -> Option<T> {
        let open = self.open.as_ref()?;
        let mut state = open.state.lock();
        let result = change(&mut state.queues, Moment::now());
        let effects = state.queues.effects();
        let is_late = state.queues.next().is_some_and(|next| next < state.parked_until);
        if is_late {
            state.parked_until = Moment::OVER;
        }
        drop(state);
        if is_late {
            open.wake();
        }
        self.run(open, effects);
        Some(result)
    }

    /// Whether the datagram says that a latch was opened for which this process waits. Wakes its waits.
    fn is_opening(&self, datagram: &Datagram) -> bool {
        let Datagram::Opened { nonce } = datagram else { return false };
        let waits = self.latch_waits.get().and_then(Weak::upgrade);
        let count = || _ = self.counters.early.fetch_add(1, Ordering::Relaxed);
        waits.is_some_and(|waits| waits.opened(*nonce, &count))
    }

    fn run(&self, open: &OpenNotices, effects: Vec<Effect>) {
        let waiters = || self.waiters.get().and_then(Weak::upgrade);
        for effect in effects {
            match effect {
                Effect::Send(to, datagram) => {
                    let sent = open.socket.send(to, &datagram.encode());
                    let counter = if sent.is_ok() { &self.counters.sent } else { &self.counters.unsent };
                    counter.fetch_add(1, Ordering::Relaxed);
                    if datagram.is_of_a_wait() && sent.is_err_and(|error| has_no_receiver(to, &error)) {
                        // The next one gets a notice at once. It may be gone as well, but none gets two. Whoever waited for
                        // the process reads the store.
                        self.with(|queues, now| queues.gone(to, now));
                    }
                }
                Effect::Ask(name, age) => {
                    self.counters.early.fetch_add(1, Ordering::Relaxed);
                    if !waiters().is_some_and(|waiters| waiters.ask_now(&name, age)) {
                        self.with(|queues, now| queues.left(&name, now));
                    }
                }
                Effect::Read(name) => {
                    self.counters.early.fetch_add(1, Ordering::Relaxed);
                    waiters().iter().for_each(|waiters| waiters.read_now(&name));
                }
                Effect::Pause(name, until) => {
                    waiters().iter().for_each(|waiters| waiters.pause(&name, until))
                }
                Effect::Wanted(name) => self.wanted.get().into_iter().for_each(|wanted| wanted(&name)),
                Effect::Acknowledged(name) => {
                    waiters().iter().for_each(|waiters| waiters.acknowledged(&name))
                }
                Effect::SendWaiters(to, nonce, name, entries) => {
                    let waiting = waiters().map(|waiters| waiters.waiting_for(&name));
                    let (threads, waited) = waiting.unwrap_or_default();
                    let threads = u32::try_from(threads).unwrap_or(u32::MAX);
                    self.run(
                        open,
                        vec![Effect::Send(to, Datagram::Waiting { nonce, threads, waited, entries })],
                    );
                }
            }
        }
    }
}

impl OpenNotices {
    fn local(directory: &Path) -> io::Result<OpenNotices> {
        let number = random::secret_number().map_err(io::Error::other)?;
        OpenNotices::new(NoticeSocket::local(directory, number)?)
    }

    fn new((socket, own): (NoticeSocket, NoticeEndpoint)) -> io::Result<OpenNotices> {
        let queues = LockQueues::new(own, || random::secret_number().unwrap_or_default());
        let bits = DrawnBits { bytes: [0; 256], left: 0 };
        let state =
            NoticesState { queues, bits, parked_until: Moment::OVER, probe: None, is_stopping: false };
        let state = Mutex::new(state);
        #[cfg(dlm_simulation)]
        return Ok(OpenNotices { socket, own, state, waker: crate::runtime::sync::Waker::default() });
        #[cfg(not(dlm_simulation))]
        {
            let (wake, woken) = above_streams(UnixStream::pair)?;
            wake.set_nonblocking(true)?;
            woken.set_nonblocking(true)?;
            Ok(OpenNotices { socket, own, state, wake, woken })
        }
    }

    fn is_probe(&self, from: NoticeEndpoint, datagram: &Datagram) -> bool {
        let Datagram::Received { key } = datagram else { return false };
        from == self.own && self.state.lock().probe.take_if(|probe| probe == key).is_some()
    }

    #[cfg(not(dlm_simulation))]
    fn wake(&self) {
        // A full pipe wakes the thread as well.
        let _ = (&self.wake).write(&[0]);
    }

    #[cfg(dlm_simulation)]
    fn wake(&self) {
        self.waker.wake();
    }

    /// Waits for a datagram, for [`wake`](OpenNotices::wake) or until this moment. May return early.
    #[cfg(not(dlm_simulation))]
    fn wait(&self, now: Moment, until: Moment) {
        let park = until.since(now);
        let timeout = Timespec { tv_sec: park.as_secs() as i64, tv_nsec: park.subsec_nanos().into() };
        let timeout = if until == Moment::NEVER { None } else { Some(&timeout) };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.woken, PollFlags::IN)];
        // An interrupted or failed call ends this round early.
        let _ = poll(&mut fds, timeout);
        if fds[1].revents().contains(PollFlags::IN) {
            let _ = (&self.woken).read(&mut [0; 64]);
        }
    }

    #[cfg(dlm_simulation)]
    fn wait(&self, _now: Moment, until: Moment) {
        self.waker.wait(until);
    }
}

/// Whether a datagram could not be sent because no process receives at the endpoint any more.
fn has_no_receiver(to: NoticeEndpoint, error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, ConnectionRefused, NotFound};
    matches!(to, NoticeEndpoint::Local(_))
        && [AddrNotAvailable, ConnectionRefused, NotFound].contains(&error.kind())
}

/// The thread that receives notices.
fn receive(shared: &Arc<NoticesShared>) {
    let Some(open) = &shared.open else { return };
    let mut bytes = [0; BYTES_MAX];
    let mut active_until = Moment::OVER;
    loop {
        let now = Moment::now();
        let mut state = open.state.lock();
        if state.is_stopping {
            return;
        }
        let next = state.queues.next().unwrap_or(Moment::NEVER);
        let until = if now < active_until { next.min(now.after(ANSWER)) } else { next };
        state.parked_until = if now < active_until { Moment::OVER } else { until };
        drop(state);
        open.wait(now, until);
        for _ in 0..BATCH {
            let (len, from) = match open.socket.receive(&mut bytes) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                // The error of an earlier datagram, which was sent to a process that has ended.
                Err(_) => continue,
            };
            active_until = Moment::now().after(ACTIVE);
            let datagram = from.and_then(|from| Some((from, Datagram::decode(&bytes[..len])?)));
            let is_ours = datagram.is_some_and(|(from, datagram)| {
                open.is_probe(from, &datagram)
                    || shared.is_opening(&datagram)
                    || shared.with(|queues, now| queues.received(from, datagram, now)) == Some(true)
            });
            if !is_ours {
                shared.counters.ignored.fetch_add(1, Ordering::Relaxed);
            }
        }
        shared.with(|queues, now| queues.tick(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn a_process_that_has_ended_is_passed_over_before_the_release_returns() {
        let directory = tempfile::tempdir().unwrap();
        let holder = Notices::new(&NoticesSetting::Local, false, Some(directory.path())).unwrap();
        let name = LockName::new(Level::Xdc, "tests", None, "told", NamePolicy::Strict).unwrap();
        holder.granted(&name, 7, Mode::Exclusive);
        let [ended, next] = [1, 2].map(|number| NoticeSocket::local(directory.path(), number).unwrap());
        for (endpoint, waited) in [(ended.1, 9), (next.1, 5)] {
            let waited = Duration::from_secs(waited);
            let (nonce, mode, was_told) = (waited.as_secs(), Mode::Exclusive, false);
            let register = Datagram::Register { key: 7, nonce, waited, mode, was_told, entries: Vec::new() };
            let is_ours = holder.shared.with(|queues, now| queues.received(endpoint, register, now));
            assert_eq!(is_ours, Some(true));
        }
        drop(ended);
        let queue = LocalQueueAtRelease { front: None, since: None, yield_until: None };
        assert_eq!(holder.released(&name, 7, queue), NextTurn::Theirs);
        let (mut bytes, mut last) = ([0; BYTES_MAX], None);
        while let Some((len, _)) = next.0.receive(&mut bytes).unwrap() {
            last = Datagram::decode(&bytes[..len]);
        }
        assert!(matches!(last, Some(Datagram::Ask { nonce: 5, .. })), "{last:?}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn a_socket_that_is_full_is_not_one_without_a_receiver() {
        let directory = tempfile::tempdir().unwrap();
        let [(ours, _), (theirs, to)] =
            [1, 2].map(|number| NoticeSocket::local(directory.path(), number).unwrap());
        let mut failed = None;
        for _ in 0..100_000 {
            failed = ours.send(to, b"full").err();
            if failed.is_some() {
                break;
            }
        }
        assert!(!has_no_receiver(to, &failed.expect("a local socket keeps few datagrams")));
        // As after a kill, which leaves the file, and after an orderly end.
        drop(theirs);
        assert!(has_no_receiver(to, &ours.send(to, b"ended").unwrap_err()));
        std::fs::remove_file(directory.path().join("notices-0000000000000002")).unwrap();
        assert!(has_no_receiver(to, &ours.send(to, b"ended").unwrap_err()));
        let udp = NoticeEndpoint::Udp(([127, 0, 0, 1], 9).into());
        assert!(!has_no_receiver(udp, &ours.send(udp, b"another network").unwrap_err()));
    }

    #[test]
    fn no_two_grants_have_the_same_bits() {
        let mut bits = DrawnBits { bytes: [0; 256], left: 0 };
        let drawn: std::collections::HashSet<_> = (0..1000).map(|_| bits.draw().unwrap()).collect();
        assert_eq!(drawn.len(), 1000);
    }
}

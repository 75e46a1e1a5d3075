//! Clients that acquire, renew and release locks, and send writes to a receiver that compares fences. What they do in modes
//! that are not exclusive is in [`modes`](super::modes).

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::LockStore;
use dlm::{Deadline, Lease, Level, LockManager, Mode};
use fastrand::Rng;

use super::party::{self, Log};
use crate::history::{Answer, CallId, History, Operation, Recorder};
use crate::mutants::Receiver;
use crate::patience::sleep;

/// Shortest retry interval that a manager accepts.
const RETRY_MIN: Duration = Duration::from_millis(1);

/// A workload of locks. Some holders outlast their leases and go on as if nothing had happened, and some vanish
/// without a release.
#[derive(Debug, Clone)]
pub struct LockWorkload {
    /// Seed of all choices.
    pub seed: u64,
    /// Number of clients: threads, each with a manager of its own, like processes.
    pub clients: u64,
    /// Number of locks.
    pub locks: u64,
    /// TTL of all leases.
    pub ttl: Duration,
    /// How long the clients go on. The last leases may take one TTL longer.
    pub lasts: Duration,
    /// Number of further locks of each client that no other client uses. Between two uses of the other locks, a client
    /// uses each of these once.
    pub quiet_locks: u64,
    /// Longest pause between two calls. A tenth of the TTL if there is none.
    pub pace: Option<Duration>,
    /// A holder outlasts its lease in one of so many steps.
    pub outlast_one_in: u64,
    /// Two renewals in three ask for half of the TTL or for twice the TTL.
    pub other_ttls: bool,
    /// How long released locks stay with their manager: see [`Builder::linger`](dlm::Builder::linger). The managers then
    /// hear notices over UDP.
    pub linger: Duration,
    /// The clients use all modes, mostly the shared one, and convert their leases. With readers they send reads to the receiver.
    /// The store must keep modes.
    pub modes: bool,
    /// If it is not 0, the locks are semaphores with so many permits, and the clients acquire one permit at a time. Now and then
    /// one counts on another number, which the store must refuse.
    pub permits: u16,
    /// The clients change the number of permits now and then.
    pub resizes: bool,
}

impl LockWorkload {
    /// Six clients and two locks, with leases of 60 ms, for 1.5 s.
    pub fn new(seed: u64) -> LockWorkload {
        let [ttl, lasts] = [60, 1500].map(Duration::from_millis);
        LockWorkload {
            seed,
            clients: 6,
            locks: 2,
            ttl,
            lasts,
            quiet_locks: 0,
            pace: None,
            outlast_one_in: 8,
            other_ttls: false,
            linger: Duration::ZERO,
            modes: false,
            permits: 0,
            resizes: false,
        }
    }

    /// Runs the clients. In the end, every lock is acquired and released once more.
    ///
    /// # Panics
    /// If a call fails that cannot fail on a store that serves.
    pub fn run(&self, store: &Arc<dyn LockStore>, receiver: &Receiver) -> History {
        // Names of their own, so that workloads may share a store.
        let client_id = format!("history-{}", fastrand::u64(..));
        let client_id = &client_id;
        let clients = (0..self.clients).map(|number| {
            move |log: &mut Log| self.run_client(store, client_id, number, Some(receiver), log)
        });
        party::run(clients.collect(), |log| self.drain(&self.manager(store, client_id), log))
    }

    /// Runs one client in this thread, for clients that are processes of their own. They need the same `client_id`,
    /// which names the locks, and different numbers and names in the log. Without a receiver they send no writes.
    ///
    /// # Panics
    /// See [`run`](LockWorkload::run).
    pub fn run_client(
        &self,
        store: &Arc<dyn LockStore>,
        client_id: &str,
        number: u64,
        receiver: Option<&Receiver>,
        log: &mut Recorder<impl Write>,
    ) {
        self.run_thread(&self.manager(store, client_id), number, receiver, log);
    }

    /// Runs one client in this thread, for processes with several clients. They share a manager of
    /// [`manager`](LockWorkload::manager).
    ///
    /// # Panics
    /// See [`run`](LockWorkload::run).
    pub fn run_thread(
        &self,
        manager: &LockManager,
        number: u64,
        receiver: Option<&Receiver>,
        log: &mut Recorder<impl Write>,
    ) {
        let by = Deadline::after(self.lasts);
        let mut client = self.client(manager, number, receiver);
        while !by.passed() {
            client.use_locks(log, by);
        }
    }

    /// Acquires and releases each lock of all clients, as soon as it is free, with [`modes`](LockWorkload::modes) also as a
    /// reader. Call it when the clients have ended: a lock that stays held breaks a rule, and so does one that stays free for
    /// a writer.
    ///
    /// # Panics
    /// See [`run`](LockWorkload::run).
    pub fn drain(&self, manager: &LockManager, log: &mut Recorder<impl Write>) {
        let mut client = self.client(manager, self.clients, None);
        let quiet =
            (0..self.clients).flat_map(|owner| (0..self.quiet_locks).map(move |n| quiet_key(owner, n)));
        for key in (0..self.locks).map(|number| self.key(number)).chain(quiet) {
            client.drain(log, &key, Mode::Exclusive);
            if self.modes {
                client.drain(log, &key, Mode::Shared);
            }
        }
    }

    /// Opens a manager for clients of this workload. `client_id` is part of the names of the locks.
    ///
    /// # Panics
    /// If the settings of this workload are not allowed, or the store does not keep the modes that the workload uses.
    pub fn manager(&self, store: &Arc<dyn LockStore>, client_id: &str) -> LockManager {
        assert!(!self.modes || store.modes().is_some(), "{} keeps no modes", store.describe());
        assert!(
            self.permits == 0 || store.semaphores().is_some(),
            "{} keeps no semaphores",
            store.describe()
        );
        let mut builder = LockManager::builder().store(Arc::clone(store)).client(client_id).ttl(self.ttl);
        if !self.linger.is_zero() {
            builder = builder.linger(self.linger).notices("udp://127.0.0.1");
        }
        builder.retry((self.ttl / 12).max(RETRY_MIN)).open().expect("these settings are allowed")
    }

    /// Returns the id of the lock with this number. All clients use these locks.
    pub fn key(&self, number: u64) -> String {
        format!("lock-{number}")
    }

    fn client<'a>(
        &'a self,
        manager: &LockManager,
        number: u64,
        receiver: Option<&'a Receiver>,
    ) -> LockClient<'a> {
        let random = Rng::with_seed(self.seed << 8 | number);
        let pace = self.pace.unwrap_or(self.ttl / 10);
        let granted = HashSet::new();
        LockClient { manager: manager.clone(), random, receiver, number, pace, granted, workload: self }
    }
}

pub(super) struct LockClient<'a> {
    pub(super) manager: LockManager,
    pub(super) random: Rng,
    pub(super) receiver: Option<&'a Receiver>,
    number: u64,
    pace: Duration,
    /// The semaphores of which it has had a permit.
    pub(super) granted: HashSet<String>,
    pub(super) workload: &'a LockWorkload,
}

impl LockClient<'_> {
    fn use_locks(&mut self, log: &mut Recorder<impl Write>, by: Deadline) {
        let wait = if self.random.u8(..4) == 0 { self.workload.ttl } else { Duration::ZERO };
        let chosen = self.random.u64(..self.workload.locks);
        self.use_a_lock(log, &self.workload.key(chosen), wait);
        for number in (0..self.workload.quiet_locks).take_while(|_| !by.passed()) {
            self.use_quietly(log, &quiet_key(self.number, number));
        }
    }

    fn use_a_lock(&mut self, log: &mut Recorder<impl Write>, key: &str, wait: Duration) {
        let mode = self.any_mode();
        if let Some((lease, id)) = self.acquire(log, key, mode, wait) {
            self.hold(log, key, lease, id);
        }
        self.pause();
    }

    /// Mostly acquires and releases the lock at once.
    fn use_quietly(&mut self, log: &mut Recorder<impl Write>, key: &str) {
        if self.random.u64(..8 * self.workload.outlast_one_in) == 0 {
            return self.use_a_lock(log, key, Duration::ZERO);
        }
        let mode = self.any_mode();
        if let Some((lease, id)) = self.acquire(log, key, mode, Duration::ZERO) {
            if self.random.u8(..16) == 0 {
                check(log, key, &lease, &id);
                self.use_receiver(log, key, &lease, &id);
            }
            release(log, key, &lease, &id);
        }
        self.pause();
    }

    fn acquire(
        &mut self,
        log: &mut Recorder<impl Write>,
        key: &str,
        mode: Mode,
        wait: Duration,
    ) -> Option<(Lease, CallId)> {
        if self.workload.permits != 0 {
            return self.acquire_permit(log, key, wait);
        }
        let lock = self.manager.lock(key, Level::Xdc).expect("a valid name");
        let lock = match mode {
            Mode::Shared => lock.shared(),
            Mode::Update => lock.update(),
            _ => lock,
        };
        let ttl = self.workload.ttl;
        let id = log.call(key, Operation::Acquire { ttl, wait, mode });
        let acquired =
            if wait.is_zero() { lock.try_acquire_with_ttl(ttl) } else { lock.acquire_within(ttl, wait) };
        log.returned(&id, granted(&acquired));
        acquired.ok().map(|lease| (lease, id))
    }

    fn hold(&mut self, log: &mut Recorder<impl Write>, key: &str, mut lease: Lease, mut id: CallId) {
        for _ in 0..self.random.u8(1..5) {
            match self.random.u64(..self.workload.outlast_one_in) {
                0 => sleep(self.workload.ttl * 13 / 10),
                step if step % 4 == 1 => renew(log, key, &lease, &id, self.renewal_ttl(&lease)),
                step if step % 4 == 2 && self.workload.modes => {
                    (lease, id) = self.convert(log, key, lease, id);
                }
                _ => self.pause(),
            }
            check(log, key, &lease, &id);
            self.use_receiver(log, key, &lease, &id);
        }
        match self.random.u8(..8) {
            // The holder vanishes: nobody can release the lock any more.
            0 => drop(lease.into_token()),
            1 => {
                release(log, key, &lease, &id);
                release(log, key, &lease, &id);
            }
            _ => release(log, key, &lease, &id),
        }
    }

    fn renewal_ttl(&mut self, lease: &Lease) -> Duration {
        let ttl = self.workload.ttl;
        match self.workload.other_ttls {
            true => [ttl / 2, ttl, ttl * 2][self.random.usize(..3)],
            false => lease.ttl(),
        }
    }

    /// An exclusive holder and that of a permit write, any other reads.
    fn use_receiver(&self, log: &mut Recorder<impl Write>, key: &str, lease: &Lease, id: &CallId) {
        match (lease.mode(), lease.permit()) {
            (Mode::Exclusive, _) => self.write(log, key, key, lease, id),
            // Each permit has a receiver of its own.
            (Mode::Permit, Some(permit)) => self.write(log, key, &format!("{key}[{permit}]"), lease, id),
            _ => self.read(log, key, lease, id),
        }
    }

    fn write(&self, log: &mut Recorder<impl Write>, key: &str, to: &str, lease: &Lease, id: &CallId) {
        let (Some(receiver), Some(fence)) = (self.receiver, lease.fence().map(|fence| fence.0)) else {
            return;
        };
        let write = log.call(key, Operation::Write { lease: id.clone(), fence });
        log.returned(&write, received(receiver.write(to, fence)));
    }

    pub(super) fn pause(&mut self) {
        if !self.pace.is_zero() {
            sleep(self.pace.mul_f64(self.random.f64()));
        }
    }

    fn drain(&mut self, log: &mut Recorder<impl Write>, key: &str, mode: Mode) {
        let by = Deadline::after(crate::LONG);
        while !by.passed() {
            if let Some((lease, id)) = self.acquire(log, key, mode, Duration::ZERO) {
                release(log, key, &lease, &id);
                break;
            }
            // Not too often: a killed holder's lease may last for seconds.
            sleep(self.workload.ttl / 10);
        }
    }
}

fn quiet_key(owner: u64, number: u64) -> String {
    format!("quiet-{owner}-{number}")
}

/// Returns how an acquisition or a conversion is logged. Members of a lock have an epoch in place of a fence.
pub(super) fn granted(answer: &dlm::Result<Lease>) -> Answer {
    match answer {
        Ok(lease) => {
            let epoch = || lease.epoch().map(|epoch| epoch.0);
            let fence = lease.fence().map_or_else(epoch, |fence| Some(fence.0));
            Answer::Granted { fence, ends: lease.ends() }
        }
        Err(error) => Answer::from(error),
    }
}

/// Returns how the answer of a receiver is logged.
pub(super) fn received(answer: Result<(), u64>) -> Answer {
    answer.map_or_else(|highest| Answer::Refused { highest }, |()| Answer::Ok)
}

pub(super) fn renew(log: &mut Recorder<impl Write>, key: &str, lease: &Lease, id: &CallId, ttl: Duration) {
    let renew = log.call(key, Operation::Renew { lease: id.clone(), ttl });
    let answer = match lease.renew_for(ttl) {
        Ok(()) => Answer::Renewed { ends: lease.ends() },
        Err(error) => Answer::from(&error),
    };
    log.returned(&renew, answer);
}

pub(super) fn release(log: &mut Recorder<impl Write>, key: &str, lease: &Lease, id: &CallId) {
    let release = log.call(key, Operation::Release { lease: id.clone() });
    let answer = match lease.release() {
        Ok(true) => Answer::Ok,
        Ok(false) => Answer::No,
        Err(error) => Answer::from(&error),
    };
    log.returned(&release, answer);
}

pub(super) fn check(log: &mut Recorder<impl Write>, key: &str, lease: &Lease, id: &CallId) {
    let check = log.call(key, Operation::Check { lease: id.clone() });
    log.returned(&check, lease.check().map_or_else(|error| Answer::from(&error), |()| Answer::Ok));
}

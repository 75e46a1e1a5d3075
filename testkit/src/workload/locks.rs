//! Clients that acquire, renew and release locks, and send writes to a receiver that compares fences.

use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlm::store::LockStore;
use dlm::{Deadline, Lease, Level, LockManager};
use fastrand::Rng;

use super::party::{self, Log};
use crate::history::{Answer, CallId, History, Operation, Recorder};
use crate::mutants::Receiver;

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
}

impl LockWorkload {
    /// Six clients and two locks, with leases of 60 ms, for 1.5 s.
    pub fn new(seed: u64) -> LockWorkload {
        let [ttl, lasts] = [60, 1500].map(Duration::from_millis);
        LockWorkload { seed, clients: 6, locks: 2, ttl, lasts }
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
        party::run(clients.collect(), |log| self.client(store, client_id, self.clients, None).drain(log))
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
        let by = Deadline::after(self.lasts);
        let mut client = self.client(store, client_id, number, receiver);
        while !by.passed() {
            client.use_a_lock(log);
        }
    }

    fn client<'a>(
        &'a self,
        store: &Arc<dyn LockStore>,
        client_id: &str,
        number: u64,
        receiver: Option<&'a Receiver>,
    ) -> LockClient<'a> {
        let random = Rng::with_seed(self.seed << 8 | number);
        LockClient { manager: self.manager(store, client_id), random, receiver, workload: self }
    }

    fn manager(&self, store: &Arc<dyn LockStore>, client: &str) -> LockManager {
        let builder = LockManager::builder().store(Arc::clone(store)).client(client).ttl(self.ttl);
        builder.retry((self.ttl / 12).max(RETRY_MIN)).open().expect("these settings are allowed")
    }
}

struct LockClient<'a> {
    manager: LockManager,
    random: Rng,
    receiver: Option<&'a Receiver>,
    workload: &'a LockWorkload,
}

impl LockClient<'_> {
    fn use_a_lock(&mut self, log: &mut Recorder<impl Write>) {
        let key = key(self.random.u64(..self.workload.locks));
        let wait = if self.random.u8(..4) == 0 { self.workload.ttl } else { Duration::ZERO };
        if let Some((lease, id)) = self.acquire(log, &key, wait) {
            self.hold(log, &key, lease, &id);
        }
        self.pause(self.workload.ttl / 10);
    }

    fn acquire(
        &mut self,
        log: &mut Recorder<impl Write>,
        key: &str,
        wait: Duration,
    ) -> Option<(Lease, CallId)> {
        let lock = self.manager.lock(key, Level::Xdc).expect("a valid name");
        let ttl = self.workload.ttl;
        let id = log.call(key, Operation::Acquire { ttl, wait });
        let acquired =
            if wait.is_zero() { lock.try_acquire_with_ttl(ttl) } else { lock.acquire_within(ttl, wait) };
        let (lease, answer) = match acquired {
            Ok(lease) => {
                let fence = lease.fence().map(|fence| fence.0);
                let ends = lease.ends();
                (Some(lease), Answer::Granted { fence, ends })
            }
            Err(error) => (None, Answer::from(&error)),
        };
        log.returned(&id, answer);
        lease.map(|lease| (lease, id))
    }

    fn hold(&mut self, log: &mut Recorder<impl Write>, key: &str, lease: Lease, id: &CallId) {
        for _ in 0..self.random.u8(1..5) {
            match self.random.u8(..8) {
                0 => thread::sleep(self.workload.ttl * 13 / 10),
                1 | 2 => renew(log, key, &lease, id),
                _ => self.pause(self.workload.ttl / 8),
            }
            check(log, key, &lease, id);
            self.write(log, key, &lease, id);
        }
        match self.random.u8(..8) {
            // The holder vanishes: nobody can release the lock any more.
            0 => drop(lease.into_token()),
            1 => {
                release(log, key, &lease, id);
                release(log, key, &lease, id);
            }
            _ => release(log, key, &lease, id),
        }
    }

    fn write(&self, log: &mut Recorder<impl Write>, key: &str, lease: &Lease, id: &CallId) {
        let (Some(receiver), Some(fence)) = (self.receiver, lease.fence().map(|fence| fence.0)) else {
            return;
        };
        let write = log.call(key, Operation::Write { lease: id.clone(), fence });
        let received = receiver.write(key, fence);
        log.returned(&write, received.map_or_else(|highest| Answer::Refused { highest }, |()| Answer::Ok));
    }

    fn pause(&mut self, longest: Duration) {
        thread::sleep(longest.mul_f64(self.random.f64()));
    }

    /// Acquires and releases each lock, as soon as it is free.
    fn drain(&mut self, log: &mut Recorder<impl Write>) {
        for key in (0..self.workload.locks).map(key) {
            let by = Deadline::after(crate::LONG);
            while !by.passed() {
                if let Some((lease, id)) = self.acquire(log, &key, Duration::ZERO) {
                    release(log, &key, &lease, &id);
                    break;
                }
                self.pause(self.workload.ttl / 10);
            }
        }
    }
}

fn key(number: u64) -> String {
    format!("lock-{number}")
}

fn renew(log: &mut Recorder<impl Write>, key: &str, lease: &Lease, id: &CallId) {
    let renew = log.call(key, Operation::Renew { lease: id.clone(), ttl: lease.ttl() });
    let answer = match lease.renew() {
        Ok(()) => Answer::Renewed { ends: lease.ends() },
        Err(error) => Answer::from(&error),
    };
    log.returned(&renew, answer);
}

fn release(log: &mut Recorder<impl Write>, key: &str, lease: &Lease, id: &CallId) {
    let release = log.call(key, Operation::Release { lease: id.clone() });
    let answer = match lease.release() {
        Ok(true) => Answer::Ok,
        Ok(false) => Answer::No,
        Err(error) => Answer::from(&error),
    };
    log.returned(&release, answer);
}

fn check(log: &mut Recorder<impl Write>, key: &str, lease: &Lease, id: &CallId) {
    let check = log.call(key, Operation::Check { lease: id.clone() });
    log.returned(&check, lease.check().map_or_else(|error| Answer::from(&error), |()| Answer::Ok));
}

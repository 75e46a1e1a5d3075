//! This library. The unlucky client reaches the server through a proxy, which loses and keeps messages.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dlm::{Code, Lease, Level, LockManager};
use dlm_testkit::{Fault, Gate, Proxy, until};

use crate::side::{CLIENTS, Side, UNLUCKY};

/// The names of a store's requests on the wire.
pub(crate) struct Requests {
    pub(crate) acquire: &'static str,
    pub(crate) release: &'static str,
    /// Requests that a client may make after a release whose reply was lost.
    pub(crate) after_release: &'static [&'static str],
}

pub(crate) struct Ours {
    clients: Vec<LockManager>,
    leases: HashMap<(usize, u64), Lease>,
    proxy: Proxy,
    requests: Requests,
    gate: Arc<Gate>,
    /// Releases whose requests the proxy keeps.
    releasing: Vec<JoinHandle<()>>,
}

/// No request that the proxy keeps may time out before it is delivered.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Ours {
    /// Makes clients of the server, and a proxy in front of it for the unlucky one. `uri` makes the store's URI for an
    /// address. `name` makes the names of locks differ between runs.
    pub(crate) fn new(
        server: SocketAddr,
        proxy: Proxy,
        uri: impl Fn(SocketAddr) -> String,
        name: &str,
        requests: Requests,
    ) -> Ours {
        let client = |number: usize| {
            let address = if number == UNLUCKY { proxy.address() } else { server };
            let builder = LockManager::builder().store_uri(&uri(address)).client(name).timeout(TIMEOUT);
            builder.open().expect("a good URI")
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        // Makes the table. The proxies are for requests about locks.
        clients[CLIENTS - 1].initialize().expect("the server is ready");
        Ours { clients, leases: HashMap::new(), proxy, requests, gate: Arc::default(), releasing: Vec::new() }
    }

    /// Releases a lock in its own thread, because the call waits for the kept request.
    fn release_in_background(&mut self, lock: u64) {
        let lease = self.leases.remove(&(UNLUCKY, lock)).expect("it was granted");
        let hits = self.proxy.hits();
        let thread = thread::Builder::new().name("dlm-bench-late".into());
        self.releasing.push(thread.spawn(move || release(&lease)).expect("a thread"));
        // The request, and the lost one before it if there is one.
        until("the request is kept", || self.proxy.hits() > hits);
    }
}

/// A lease that is over is no failure: the library says so, which is what the caller needs.
fn release(lease: &Lease) {
    match lease.release() {
        Ok(_) => {}
        Err(error) if error.code() == Code::LeaseLost => {}
        Err(error) => panic!("{error:?}"),
    }
}

impl Side for Ours {
    fn acquire(&mut self, client: usize, lock: u64, ttl: Duration) -> bool {
        let handle = self.clients[client].lock(&lock.to_string(), Level::Xdc).expect("a good name");
        match handle.try_acquire_with_ttl(ttl) {
            Ok(lease) => {
                self.leases.insert((client, lock), lease);
                true
            }
            Err(error) if error.code() == Code::LockUnavailable => false,
            Err(error) if error.code() == Code::InDoubt => {
                // On a busy machine the answer may arrive after the end of the lease. Nothing is held then.
                eprintln!("lock {lock}: {error:?}");
                false
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn release(&mut self, client: usize, lock: u64) {
        if let Some(lease) = self.leases.remove(&(client, lock)) {
            release(&lease);
        }
    }

    fn acquire_with_lost_reply(&mut self, lock: u64, ttl: Duration) -> bool {
        let hits = self.proxy.hits();
        self.proxy.next(self.requests.acquire, Fault::LoseReply);
        let granted = self.acquire(UNLUCKY, lock, ttl);
        assert_eq!(self.proxy.hits(), hits + 1, "the reply was not lost");
        granted
    }

    fn release_late(&mut self, lock: u64) {
        self.proxy.next(self.requests.release, Fault::Keep(Arc::clone(&self.gate)));
        self.release_in_background(lock);
    }

    fn release_with_lost_reply(&mut self, lock: u64) {
        let hits = self.proxy.hits();
        self.proxy.next(self.requests.release, Fault::LoseReply);
        for method in self.requests.after_release {
            self.proxy.later(method, 0, usize::MAX, Fault::Keep(Arc::clone(&self.gate)));
        }
        self.release_in_background(lock);
        until("the repetition is kept", || self.proxy.hits() >= hits + 2);
    }

    fn deliver(&mut self) {
        self.proxy.heal();
        std::mem::take(&mut self.gate).open();
        for thread in self.releasing.drain(..) {
            thread.join().expect("a release");
        }
    }
}

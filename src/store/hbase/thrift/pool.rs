//! A bounded pool of connections to the gateway.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::wire::Link;
use crate::error::{Error, Result};
use crate::time::{Deadline, Moment, jittered};

/// A connection unused for this long is closed rather than used: gateways drop them after a minute,
/// firewalls without saying so.
const IDLE_MAX: Duration = Duration::from_secs(45);
/// Connecting changes nothing at the gateway, so it may be repeated.
const CONNECT_TRIES: u32 = 3;
const CONNECT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Pool {
    address: String,
    connect_timeout: Duration,
    state: Mutex<State>,
    /// Signalled when a connection or a place for one becomes free.
    freed: Condvar,
}

struct State {
    /// Most recently used last, and used first: the others age and go.
    idle: Vec<(Link, Moment)>,
    /// Places for connections that are neither idle nor in use.
    vacant: usize,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("idle", &self.idle.len()).field("vacant", &self.vacant).finish()
    }
}

/// A connection in use. Goes back to the pool by [`keep`](Lent::keep), is closed on drop.
pub(super) struct Lent<'a> {
    pool: &'a Pool,
    link: Option<Link>,
    keep: bool,
}

impl Pool {
    pub(super) fn new(address: &str, size: usize, connect_timeout: Duration) -> Pool {
        Pool {
            address: address.to_owned(),
            connect_timeout,
            state: Mutex::new(State { idle: Vec::new(), vacant: size }),
            freed: Condvar::new(),
        }
    }

    /// A connection that is open as far as can be told, waiting for a place in the pool if need be.
    ///
    /// # Errors
    /// CONNECTION_ERROR when none can be made; RETRIES_EXHAUSTED when all are in use until `by`.
    pub(super) fn lend(&self, by: Deadline) -> Result<Lent<'_>> {
        let mut lent = Lent { pool: self, link: self.reserve(by)?, keep: false };
        if lent.link.as_ref().is_none_or(|link| !link.is_open()) {
            lent.link = Some(self.connect(by)?);
        }
        Ok(lent)
    }

    /// Takes a place, with the connection used last if there is one.
    fn reserve(&self, by: Deadline) -> Result<Option<Link>> {
        // Declared before the lock, so dropped after it: sockets are not closed under it.
        let mut closing = Vec::new();
        let mut state = self.state.lock();
        loop {
            let now = Moment::now();
            let stale = state.idle.iter().take_while(|(_, used)| now.since(*used) > IDLE_MAX).count();
            closing.extend(state.idle.drain(..stale));
            state.vacant += stale;
            if let Some((link, _)) = state.idle.pop() {
                return Ok(Some(link));
            }
            if state.vacant > 0 {
                state.vacant -= 1;
                return Ok(None);
            }
            let left = by.remaining();
            if left.is_zero() || self.freed.wait_for(&mut state, left).timed_out() {
                return Err(Error::RetriesExhausted {
                    store: self.address.clone(),
                    what: "all connections were in use for too long; raise the option `pool`".into(),
                    source: None,
                });
            }
        }
    }

    fn connect(&self, by: Deadline) -> Result<Link> {
        let mut tries = 1;
        loop {
            let error = match self.connect_once(by) {
                Ok(link) => return Ok(link),
                Err(error) => error,
            };
            if tries == CONNECT_TRIES || by.remaining() <= CONNECT_PAUSE {
                return Err(Error::Connection {
                    store: self.address.clone(),
                    what: format!("connecting failed {tries} times; check the address and that it runs"),
                    source: Some(error.into()),
                });
            }
            tries += 1;
            std::thread::sleep(jittered(CONNECT_PAUSE));
        }
    }

    fn connect_once(&self, by: Deadline) -> io::Result<Link> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        // The look-up has the time-outs of the system's resolver, which cannot be set from here.
        for address in self.address.to_socket_addrs()?.collect::<Vec<SocketAddr>>() {
            match Link::connect(&address, by.sooner(Deadline::after(self.connect_timeout))) {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Lent<'_> {
    pub(super) fn link(&mut self) -> &mut Link {
        self.link.as_mut().expect("only drop takes it out")
    }

    /// Gives the connection back for others to use: its last reply was read to the end.
    pub(super) fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let kept = self.link.take().filter(|_| self.keep);
        let mut state = self.pool.state.lock();
        match kept {
            Some(link) => state.idle.push((link, Moment::now())),
            None => state.vacant += 1,
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}

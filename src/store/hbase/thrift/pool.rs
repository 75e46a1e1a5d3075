//! A bounded pool of connections to the gateway.
//!
//! A gateway answers a request for a region that is down after minutes, and until then the request occupies a
//! connection. So no region's requests may have all of them: a region is lent one more only while more are
//! free than its requests occupy already. The first region that is down gets half of the pool, each further one
//! half of what is left, and at least one connection while there is one: five can use up a pool of 16.
//!
//! A gateway does not tell where regions begin. The tables are split by the first byte of a row, so rows with
//! one first byte count as one region.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::wire::Link;
use crate::error::{Error, Result};
use crate::store::hbase::cell_store::Content;
use crate::time::{self, Deadline, Moment, jittered};

/// A connection unused for this long is closed rather than used: gateways drop them after a minute,
/// firewalls without saying so.
const IDLE_MAX: Duration = Duration::from_secs(45);
/// Connecting changes nothing at the gateway, so it may be repeated.
const CONNECT_TRIES: u32 = 3;
const CONNECT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Pool {
    address: String,
    size: usize,
    connect_timeout: Duration,
    state: Mutex<PoolState>,
    /// Signalled when a connection or a place for one becomes free.
    freed: Condvar,
}

/// Rows that share a fate: of one table, with one first byte. `None`: a request for several rows, or for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PoolShare {
    pub(super) table: Content,
    pub(super) first: Option<u8>,
}

struct PoolState {
    /// Connections and places that requests have now, by whose they are.
    lent: HashMap<PoolShare, usize>,
    /// Most recently used last, and used first: the others age and go.
    idle: Vec<(Link, Moment)>,
    /// Places for connections that are neither idle nor in use.
    vacant: usize,
}

impl std::fmt::Debug for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("idle", &self.idle.len()).field("vacant", &self.vacant).finish()
    }
}

/// A connection in use. Goes back to the pool by [`keep`](PooledConnection::keep), is closed on drop.
pub(super) struct PooledConnection<'a> {
    pool: &'a Pool,
    share: PoolShare,
    link: Option<Link>,
    keep: bool,
}

impl Pool {
    pub(super) fn new(address: &str, size: usize, connect_timeout: Duration) -> Pool {
        Pool {
            address: address.to_owned(),
            size,
            connect_timeout,
            state: Mutex::new(PoolState { lent: HashMap::new(), idle: Vec::new(), vacant: size }),
            freed: Condvar::new(),
        }
    }

    /// A connection that is open as far as can be told, waiting for a place in the pool if need be.
    ///
    /// # Errors
    /// CONNECTION_ERROR when none can be made; RETRIES_EXHAUSTED when until `by` all are in use, or as many
    /// as `share` may have.
    pub(super) fn lend(&self, share: PoolShare, by: Deadline) -> Result<PooledConnection<'_>> {
        let mut pooled = self.reserve(share, by)?;
        if pooled.link.as_ref().is_none_or(|link| !link.is_open()) {
            pooled.link = Some(self.connect(by)?);
        }
        Ok(pooled)
    }

    /// Takes a place, with the connection used last if there is one.
    fn reserve(&self, share: PoolShare, by: Deadline) -> Result<PooledConnection<'_>> {
        // Declared before the lock, so dropped after it: sockets are not closed under it.
        let mut closing = Vec::new();
        let mut state = self.state.lock();
        loop {
            let now = Moment::now();
            let stale = state.idle.iter().take_while(|(_, used)| now.since(*used) > IDLE_MAX).count();
            closing.extend(state.idle.drain(..stale));
            state.vacant += stale;
            let free = state.idle.len() + state.vacant;
            let taken = state.lent.get(&share).copied().unwrap_or(0);
            if taken < free {
                state.lent.insert(share, taken + 1);
                let link = state.idle.pop().map(|(link, _)| link);
                state.vacant -= usize::from(link.is_none());
                return Ok(PooledConnection { pool: self, share, link, keep: false });
            }
            let left = by.remaining();
            if left.is_zero() || self.freed.wait_for(&mut state, left).timed_out() {
                return Err(Error::RetriesExhausted {
                    store: self.address.clone(),
                    what: self.used_up(share, taken, free),
                    source: None,
                });
            }
        }
    }

    fn used_up(&self, share: PoolShare, taken: usize, free: usize) -> String {
        let size = self.size;
        if free == 0 {
            return format!("all {size} connections were in use for too long; raise the option `pool`");
        }
        let rows = match share.first {
            Some(first) => format!("rows that begin with the byte {first:02x}"),
            None => "requests that concern more than one row".to_owned(),
        };
        format!(
            "{taken} of {size} connections (option `pool`) wait for {rows}, and that share is used up: the \
             {free} others are kept for other rows. The region of these rows may be down; if it is only busy, \
             raise `pool`"
        )
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
            time::sleep(jittered(CONNECT_PAUSE));
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

impl PooledConnection<'_> {
    pub(super) fn link(&mut self) -> &mut Link {
        self.link.as_mut().expect("only drop takes it out")
    }

    /// Gives the connection back for others to use: its last reply was read to the end.
    pub(super) fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        let kept = self.link.take().filter(|_| self.keep);
        let mut state = self.pool.state.lock();
        match kept {
            Some(link) => state.idle.push((link, Moment::now())),
            None => state.vacant += 1,
        }
        match state.lent.get_mut(&self.share) {
            Some(lent) if *lent > 1 => *lent -= 1,
            _ => {
                state.lent.remove(&self.share);
            }
        }
        drop(state);
        // Not only one: that one's share may be used up.
        self.pool.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Code;

    const LONG: Duration = Duration::from_secs(60);

    fn pool(size: usize) -> Pool {
        Pool::new("nowhere:1", size, LONG)
    }

    fn share(first: u8) -> PoolShare {
        PoolShare { table: Content::Locks, first: Some(first) }
    }

    /// As many places as rows of this share get, all of them kept.
    fn all_of(pool: &Pool, share: PoolShare) -> Vec<PooledConnection<'_>> {
        std::iter::from_fn(|| pool.reserve(share, Deadline::after(Duration::ZERO)).ok()).collect()
    }

    #[test]
    fn rows_of_one_first_byte_get_half_of_the_pool_and_one_at_least() {
        for (size, most) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (16, 8), (17, 9), (1024, 512)] {
            let pool = pool(size);
            assert_eq!(all_of(&pool, share(7)).len(), most, "of {size}");
            // All are given back.
            assert_eq!(all_of(&pool, share(7)).len(), most, "of {size}, again");
        }
    }

    #[test]
    fn regions_that_are_down_leave_connections_to_the_others() {
        let pool = pool(16);
        let mut held = Vec::new();
        for (first, left) in [(1, 8), (2, 4), (3, 2), (4, 1)] {
            held.extend(all_of(&pool, share(first)));
            assert_eq!(16 - held.len(), left, "after region {first}");
        }
        // Of the other table too, and those that concern no row.
        let latches = PoolShare { table: Content::Latches, first: Some(1) };
        for other in [share(5), latches, PoolShare { table: Content::Locks, first: None }] {
            pool.reserve(other, Deadline::after(Duration::ZERO)).expect("the last one is for others");
        }
        drop(held);
        assert!(pool.state.lock().lent.is_empty());
        assert_eq!(all_of(&pool, share(1)).len(), 8);
    }

    #[test]
    fn a_share_that_is_used_up_is_told_from_a_pool_that_is() {
        let pool = pool(2);
        let first = all_of(&pool, share(0xab));
        let text = |share| {
            let error = pool.reserve(share, Deadline::after(Duration::ZERO)).err().unwrap();
            assert_eq!(error.code(), Code::RetriesExhausted);
            error.to_string()
        };
        let used_up = text(share(0xab));
        assert!(used_up.contains("1 of 2 connections (option `pool`)"), "{used_up}");
        assert!(used_up.contains("the byte ab") && used_up.contains("share is used up"), "{used_up}");
        let second = all_of(&pool, share(0xcd));
        let all = text(share(0xef));
        assert!(all.contains("all 2 connections") && all.contains("`pool`"), "{all}");
        drop((first, second));
    }

    /// A place that is given back may be of no use to whoever waits longest.
    #[test]
    fn a_place_that_is_given_back_finds_the_one_who_may_have_it() {
        let pool = &pool(2);
        let (dead, serving) =
            (pool.reserve(share(1), Deadline::after(LONG)).unwrap(), all_of(pool, share(2)));
        assert_eq!(serving.len(), 1);
        let waiting = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let waiter = |first: u8| {
                let waiting = &waiting;
                let work = move || {
                    waiting.fetch_add(1, Ordering::SeqCst);
                    pool.reserve(share(first), Deadline::after(LONG)).map(|pooled| pooled.share)
                };
                std::thread::Builder::new().name("dlm-test-waiter".into()).spawn_scoped(scope, work).unwrap()
            };
            let same: Vec<_> = (0..3).map(|_| waiter(1)).collect();
            let other = waiter(3);
            while waiting.load(Ordering::SeqCst) < 4 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            drop(serving);
            assert_eq!(other.join().unwrap().unwrap(), share(3), "the place is free, and it did not get it");
            drop(dead);
            same.into_iter().for_each(|waiter| assert_eq!(waiter.join().unwrap().unwrap(), share(1)));
        });
    }
}

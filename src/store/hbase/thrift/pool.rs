//! A bounded pool of connections to the gateway.
//!
//! A gateway answers a request for a region that is down only after minutes. Until then the request occupies a
//! connection. So the requests for one region must not get all connections: a region gets one more connection only
//! while the pool has more free connections than the region occupies. The first region that is down gets half of
//! the pool. Each further region gets half of the rest, and at least one connection while one is free. Five regions
//! can use up a pool of 16.
//!
//! A gateway does not report where regions begin. The tables are split by the first byte of a row, so rows with the
//! same first byte count as one region.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use super::wire::Link;
use crate::error::{Error, Result};
use crate::runtime::process::name_lookup::addresses_of;
use crate::runtime::sync::real::{Condvar, Mutex};
use crate::runtime::time::{self, Deadline, Moment, jittered};
use crate::store::hbase::cell_store::Content;

/// A connection that was idle for this long is closed and not used again. Gateways close idle connections after a
/// minute; firewalls drop them without notice.
const IDLE_MAX: Duration = Duration::from_secs(45);
/// Most tries to connect. Connecting changes nothing at the gateway, so it can be repeated.
const CONNECT_TRIES: u32 = 3;
const CONNECT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Pool {
    address: String,
    size: usize,
    connect_timeout: Duration,
    state: Mutex<PoolState>,
    /// Signalled when a connection is returned or closed.
    freed: Condvar,
}

/// Requests that count as one region: rows of one table with the same first byte. `None`: requests that do not
/// concern exactly one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PoolShare {
    pub(super) table: Content,
    pub(super) first: Option<u8>,
}

struct PoolState {
    /// Number of connections that each share uses now.
    lent: HashMap<PoolShare, usize>,
    /// Idle connections, the most recently used one last. It is used first, so the others grow old and are closed.
    idle: Vec<(Link, Moment)>,
    /// Number of connections that may still be opened.
    vacant: usize,
}

impl std::fmt::Debug for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("idle", &self.idle.len()).field("vacant", &self.vacant).finish()
    }
}

/// A connection in use. [`give_back`](PooledConnection::give_back) returns it to the pool; a plain drop closes it.
pub(super) struct PooledConnection<'a> {
    pool: &'a Pool,
    share: PoolShare,
    link: Option<Link>,
    is_whole: bool,
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

    /// Returns a connection that this side has not seen closed. Blocks, at most until `by`, while the pool or this
    /// share is used up, and while a new connection is opened. A name look-up may block longer.
    ///
    /// # Errors
    /// CONNECTION_ERROR when connecting fails. RETRIES_EXHAUSTED when all connections, or all that `share` may
    /// have, are in use until `by`.
    pub(super) fn lend(&self, share: PoolShare, by: Deadline) -> Result<PooledConnection<'_>> {
        let mut pooled = self.reserve(share, by)?;
        if pooled.link.as_ref().is_none_or(|link| !link.is_open()) {
            pooled.link = Some(self.connect(by)?);
        }
        Ok(pooled)
    }

    /// Reserves a connection for `share`: the idle one that was used last, or the right to open a new one.
    fn reserve(&self, share: PoolShare, by: Deadline) -> Result<PooledConnection<'_>> {
        // Declared before the lock and so dropped after it. Sockets must not be closed under the lock.
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
                return Ok(PooledConnection { pool: self, share, link, is_whole: false });
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
            "{taken} of {size} connections (option `pool`) wait for {rows}, and that share is used up; the \
             {free} free ones are reserved for other rows. The region of these rows may be down; if it is only \
             busy, raise `pool`"
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
                    what: format!("connecting failed {tries} times; check the address and the gateway"),
                    source: Some(error.into()),
                });
            }
            tries += 1;
            time::sleep(jittered(CONNECT_PAUSE));
        }
    }

    fn connect_once(&self, by: Deadline) -> io::Result<Link> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        for address in addresses_of(&self.address)? {
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

    /// Returns the connection to the pool. Only for a connection whose last reply was read to its end.
    pub(super) fn give_back(mut self) {
        self.is_whole = true;
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        let whole = self.link.take().filter(|_| self.is_whole);
        let mut state = self.pool.state.lock();
        match whole {
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
        // All waiters are woken: the share of a single one may be used up.
        self.pool.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Code;
    use crate::testing::patience::{LONG, until};

    fn pool(size: usize) -> Pool {
        Pool::new("nowhere:1", size, LONG)
    }

    fn share(first: u8) -> PoolShare {
        PoolShare { table: Content::Locks, first: Some(first) }
    }

    /// Reserves connections for this share until no more are available, and holds them.
    fn all_of(pool: &Pool, share: PoolShare) -> Vec<PooledConnection<'_>> {
        std::iter::from_fn(|| pool.reserve(share, Deadline::after(Duration::ZERO)).ok()).collect()
    }

    #[test]
    fn rows_of_one_first_byte_get_half_of_the_pool_and_one_at_least() {
        for (size, most) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (16, 8), (17, 9), (1024, 512)] {
            let pool = pool(size);
            assert_eq!(all_of(&pool, share(7)).len(), most, "of {size}");
            // All were returned.
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
        // The other table, and requests that concern no row, get one too.
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

    /// The waiter that has waited longest may not be allowed to use the connection that is returned.
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
            until("all have begun", || waiting.load(Ordering::SeqCst) == 4);
            // Those that wait look in vain, and wait again.
            pool.freed.notify_all();
            std::thread::sleep(Duration::from_millis(50));
            drop(serving);
            assert_eq!(other.join().unwrap().unwrap(), share(3), "a connection is free and was not used");
            drop(dead);
            same.into_iter().for_each(|waiter| assert_eq!(waiter.join().unwrap().unwrap(), share(1)));
        });
    }
}

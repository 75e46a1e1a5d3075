//! Looking host names up.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use super::descriptors::above_streams;
use super::fork_pause::ForkPause;

/// Returns the addresses of a server, in the order of the C library. Blocks for as long as the system's resolver needs: it
/// has limits of its own, which this library cannot set.
///
/// The C library reads its configuration under a lock that a child would inherit (glibc 2.36: `resolv_conf.c`). So a fork
/// by another thread waits, but not for a name server that is slow.
pub(crate) fn addresses_of(server: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    above_streams(|| {
        let _pause = ForkPause::for_lookup();
        Ok(server.to_socket_addrs()?.collect())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::fork_pause::LONGEST_FOR_LOOKUP;
    use super::*;
    use crate::testing::fork::{alone, in_forked_child};
    use crate::testing::patience::until;

    /// A look-up that takes a while.
    struct Slow<'a> {
        begun: &'a AtomicBool,
        ended: &'a AtomicBool,
    }

    impl ToSocketAddrs for Slow<'_> {
        type Iter = std::iter::Empty<SocketAddr>;

        fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
            self.begun.store(true, SeqCst);
            // The fork would be over by now.
            thread::sleep(Duration::from_millis(50));
            self.ended.store(true, SeqCst);
            Ok(std::iter::empty())
        }
    }

    #[test]
    fn a_fork_waits_for_a_lookup() {
        if !alone() {
            return;
        }
        let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| addresses_of(Slow { begun: &begun, ended: &ended }).unwrap());
            until("the look-up has begun", || begun.load(SeqCst));
            let start = Instant::now();
            let has_waited = in_forked_child(|| ended.load(SeqCst));
            assert!(has_waited || start.elapsed() >= LONGEST_FOR_LOOKUP, "the fork has not waited");
        });
    }
}

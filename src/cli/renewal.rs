//! The lease of a running command goes on: a thread renews it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use dlm::{Code, Error, Lease};

use crate::cli::exit::CommandFailure;

/// Longest pause between two tries while the store does not serve.
const RETRY_MAX: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(10);

/// The thread `dlm-renew`, until it is dropped. That may block for one call to the store.
#[derive(Debug)]
pub(crate) struct Renewal {
    lost: Receiver<Error>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Renewal {
    /// Renews `lease` whenever a third of the time that it lasted has passed.
    pub(crate) fn start(lease: &Arc<Lease>) -> Result<Renewal, CommandFailure> {
        let (stop, stopped) = bounded(0);
        let (tell_lost, lost) = bounded(1);
        let lease = Arc::clone(lease);
        let thread = std::thread::Builder::new()
            .name("dlm-renew".into())
            .spawn(move || keep(&lease, &stopped, &tell_lost))
            .map_err(|error| CommandFailure::internal(format!("no thread to renew the lease: {error}")))?;
        Ok(Renewal { lost, stop: Some(stop), thread: Some(thread) })
    }

    /// Gets one message, if the store says that the lease is lost. A store that does not answer is no
    /// loss: the lease lasts until its end.
    pub(crate) fn lost(&self) -> &Receiver<Error> {
        &self.lost
    }

    /// Ends the thread, and hears its last word.
    pub(crate) fn end(mut self) -> Option<Error> {
        self.join();
        self.lost.try_recv().ok()
    }

    fn join(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was printed by the thread itself, and the lease ends with its TTL.
            let _ = thread.join();
        }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.join();
    }
}

/// The thread: ends when it is told to, or when the lease is lost.
fn keep(lease: &Lease, stopped: &Receiver<()>, lost: &Sender<Error>) {
    let ttl = lease.ttl();
    let until_due = || (lease.remaining() / 3).max(RETRY_MIN);
    let mut pause = until_due();
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        match lease.renew() {
            Ok(()) => {
                log::debug!("the lease was renewed and lasts for {:.1} s", lease.remaining().as_secs_f64());
                pause = until_due();
            }
            Err(error) if error.code() == Code::LeaseLost => {
                // There is room for one, and this is the one.
                let _ = lost.try_send(error);
                return;
            }
            Err(error) => {
                log::warn!(
                    "the lease is not renewed yet and ends in {:.1} s: {}",
                    lease.remaining().as_secs_f64(),
                    error.chain()
                );
                pause = (ttl / 15).clamp(RETRY_MIN, RETRY_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlm::{Level, LockManager};

    fn leases() -> (LockManager, Arc<Lease>, Lease) {
        let manager = LockManager::open("memory:?client=tests&ttl=300ms").unwrap();
        let token = manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap().into_token().unwrap();
        let lease = Arc::new(manager.adopt(token.clone()).unwrap());
        let other = manager.adopt(token).unwrap();
        (manager, lease, other)
    }

    #[test]
    fn a_lease_that_the_store_does_not_know_any_more_is_reported_once() {
        let (_manager, lease, other) = leases();
        let renewal = Renewal::start(&lease).unwrap();
        other.release().unwrap();
        let error = renewal.lost().recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(error.code(), Code::LeaseLost);
        assert!(renewal.end().is_none());
    }

    #[test]
    fn a_lease_goes_on_and_ending_the_thread_does_not_wait_for_the_next_renewal() {
        let (_manager, lease, _other) = leases();
        let first_end = lease.ends();
        let renewal = Renewal::start(&lease).unwrap();
        let by = dlm::Deadline::after(Duration::from_secs(30));
        while lease.ends() <= first_end {
            assert!(!by.passed(), "it was not renewed");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(renewal.end().is_none());
    }
}

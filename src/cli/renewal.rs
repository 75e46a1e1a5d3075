//! The thread that renews the lease of a running command.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use dlm::{Code, Error, Lease};

use crate::cli::exit::CommandFailure;

/// Longest and shortest pause between two attempts while the store does not serve.
const RETRY_MAX: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(10);

/// Handle of the thread `dlm-renew`. Dropping it ends the thread, and may block for one call to the store.
#[derive(Debug)]
pub(crate) struct Renewal {
    lost: Receiver<Error>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Renewal {
    /// Starts the thread. It renews `lease` after a third of its remaining time.
    pub(crate) fn start(lease: &Arc<Lease>) -> Result<Renewal, CommandFailure> {
        let (stop, stopped) = bounded(0);
        let (tell_lost, lost) = bounded(1);
        let lease = Arc::clone(lease);
        let thread = std::thread::Builder::new()
            .name("dlm-renew".into())
            .spawn(move || keep(&lease, &stopped, &tell_lost))
            .map_err(|error| {
                CommandFailure::internal(format!("no thread can be started to renew the lease: {error}"))
            })?;
        Ok(Renewal { lost, stop: Some(stop), thread: Some(thread) })
    }

    /// Receives one message if the store reports that the lease is lost. There is none if the store does not
    /// answer: the lease then lasts until its end.
    pub(crate) fn lost(&self) -> &Receiver<Error> {
        &self.lost
    }

    /// Ends the thread. Returns its message if there is an unread one.
    pub(crate) fn end(mut self) -> Option<Error> {
        self.join();
        self.lost.try_recv().ok()
    }

    fn join(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The thread has printed its own panic. The lease then ends with its TTL.
            let _ = thread.join();
        }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.join();
    }
}

/// Runs in the thread. Returns when [`Renewal`] is dropped, or when the lease is lost.
fn keep(lease: &Lease, stopped: &Receiver<()>, lost: &Sender<Error>) {
    let ttl = lease.ttl();
    let until_due = || (lease.remaining() / 3).max(RETRY_MIN);
    let mut pause = until_due();
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        match lease.renew() {
            Ok(()) => {
                log::debug!("the lease was renewed and has {:.1} s left", lease.remaining().as_secs_f64());
                pause = until_due();
            }
            Err(error) if error.code() == Code::LeaseLost => {
                // The channel has room for one message, and this is the only one.
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

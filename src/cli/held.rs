//! The locks that are held while a command runs: one lock, or several as one.

use std::os::fd::OwnedFd;
use std::slice;

use crossbeam_channel::Receiver;
use dlm::{Lease, LeaseSet, LostReason, Moment};

/// One lease or several, which are valid while all of them are.
#[derive(Debug)]
pub(crate) enum CommandLocks {
    One(Lease),
    Several(LeaseSet),
}

impl CommandLocks {
    /// Returns the leases in the order of the command line.
    pub(crate) fn leases(&self) -> &[Lease] {
        match self {
            CommandLocks::One(lease) => slice::from_ref(lease),
            CommandLocks::Several(leases) => leases.leases(),
        }
    }

    /// Takes out the first lease. The others are released.
    pub(crate) fn into_first(self) -> Option<Lease> {
        match self {
            CommandLocks::One(lease) => Some(lease),
            CommandLocks::Several(leases) => leases.into_leases().into_iter().next(),
        }
    }

    pub(crate) fn keep(&self) -> dlm::Result<()> {
        self.leases().iter().try_for_each(|lease| lease.keep(std::time::Duration::MAX))
    }

    pub(crate) fn changes(&self) -> dlm::Result<Vec<Receiver<()>>> {
        self.leases().iter().map(Lease::changes).collect()
    }

    /// Returns the descriptors that a process must have so that it counts as a holder, too.
    pub(crate) fn liveness_fds(&self) -> dlm::Result<Vec<OwnedFd>> {
        self.leases().iter().filter_map(|lease| lease.liveness_fd().transpose()).collect()
    }

    /// Returns the lease that ends first.
    pub(crate) fn first_to_end(&self) -> &Lease {
        let first = self.leases().iter().min_by_key(|lease| lease.ends());
        first.expect("a set has at least one lease")
    }

    pub(crate) fn ends(&self) -> Moment {
        self.first_to_end().ends()
    }

    /// Returns the first lease that was lost in another way than by its end.
    pub(crate) fn lost(&self) -> Option<&Lease> {
        self.leases()
            .iter()
            .find(|lease| lease.state().lost().is_some_and(|reason| reason != LostReason::Expired))
    }

    pub(crate) fn release(&self) -> dlm::Result<bool> {
        match self {
            CommandLocks::One(lease) => lease.release(),
            CommandLocks::Several(leases) => leases.release(),
        }
    }
}

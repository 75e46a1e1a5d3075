//! What the clients of a [`LockWorkload`](super::LockWorkload) do in modes that are not exclusive: they choose modes, read,
//! and convert their leases.

use std::io::Write;
use std::time::Duration;

use dlm::{Lease, Mode};

use super::locks::{LockClient, check, granted, received, release, renew};
use crate::history::{CallId, Operation, Recorder};

impl LockClient<'_> {
    /// Returns a mode, mostly [`Mode::Shared`]. It is always exclusive in a workload without modes.
    pub(super) fn any_mode(&mut self) -> Mode {
        if !self.workload.modes {
            return Mode::Exclusive;
        }
        match self.random.u8(..10) {
            0..6 => Mode::Shared,
            6..8 => Mode::Update,
            _ => Mode::Exclusive,
        }
    }

    /// Sends a read with the epoch of the lease. Does not ask whether the lease lasts: the receiver decides.
    pub(super) fn read(&self, log: &mut Recorder<impl Write>, key: &str, lease: &Lease, id: &CallId) {
        let (Some(receiver), Some(epoch)) = (self.receiver, lease.epoch().map(|epoch| epoch.0)) else {
            return;
        };
        let read = log.call(key, Operation::Read { lease: id.clone(), epoch });
        log.returned(&read, received(receiver.read(key, epoch)));
    }

    /// Converts a lease to another mode, and returns the one that holds the lock then. Only pauses with a shared lease, which
    /// cannot be converted.
    pub(super) fn convert(
        &mut self,
        log: &mut Recorder<impl Write>,
        key: &str,
        lease: Lease,
        id: CallId,
    ) -> (Lease, CallId) {
        let Some(mode) = self.mode_after(lease.mode()) else {
            self.pause();
            return (lease, id);
        };
        // Two that wait for each other do so for a part of their leases only.
        let waits = mode == Mode::Exclusive && self.random.bool();
        let (ttl, wait) = (lease.ttl(), if waits { self.workload.ttl / 4 } else { Duration::ZERO });
        let called = log.call(key, Operation::Convert { lease: id.clone(), mode, ttl, wait });
        let converted = if mode == Mode::Exclusive { lease.upgrade(wait) } else { lease.downgrade(mode) };
        log.returned(&called, granted(&converted));
        let Ok(new) = converted else { return (lease, id) };
        // Some go on with the lease that is over, which must have no effect.
        match self.random.u8(..4) {
            0 => check(log, key, &lease, &id),
            1 => renew(log, key, &lease, &id, ttl),
            2 => release(log, key, &lease, &id),
            _ => {}
        }
        (new, called)
    }

    /// Returns a mode to which a lease may be converted. `None` if there is none.
    fn mode_after(&mut self, mode: Mode) -> Option<Mode> {
        let allowed: Vec<Mode> = Mode::OF_LOCKS.into_iter().filter(|to| mode.converts_to(*to)).collect();
        self.random.choice(allowed)
    }
}

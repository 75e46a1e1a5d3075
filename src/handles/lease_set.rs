//! Several locks that are held together: all of them or none.
//!
//! The locks are acquired one after the other, ordered by their stored keys. So of two callers that want the same locks,
//! the one that gets the first of them gets all. Those that are held already are kept alive while the others are waited
//! for.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::handles::acquire_options::AcquireOptions;
use crate::handles::lease::{Lease, check_keep};
use crate::handles::lock::Lock;
use crate::names::fence::Fence;
use crate::runtime::time::Deadline;
use crate::settings::limits::checked_ttl;
use crate::settings::manager_options::Settings;

/// The leases of several locks that [`LockManager::acquire_all`](crate::LockManager::acquire_all) has acquired together, or of
/// several permits of a [`Semaphore`](crate::Semaphore). It is valid while all of them are.
///
/// Several threads may use it. Dropping it releases all locks, as dropping each [`Lease`] does.
#[derive(Debug)]
#[must_use = "dropping it releases the locks"]
pub struct LeaseSet {
    /// In the order of the caller.
    leases: Vec<Lease>,
    /// Indices of `leases`, ordered by stored key.
    order: Vec<usize>,
}

impl LeaseSet {
    /// See [`LockManager::acquire_all`](crate::LockManager::acquire_all).
    pub(crate) fn acquire(
        locks: &[&Lock],
        options: &AcquireOptions,
        settings: &Settings,
    ) -> Result<LeaseSet> {
        let order = ordered(locks)?;
        let ttl = checked_ttl(options.ttl.unwrap_or(settings.ttl))?;
        options.check(ttl)?;
        options.check_not_reentrant("several locks together")?;
        if locks.len() > 1 {
            check_keep(ttl, Duration::MAX)?;
        }
        let by = Deadline::after(options.wait.unwrap_or(settings.wait));
        let each = AcquireOptions { max_hold: None, min_hold: None, ..options.clone() };
        let mut held = Held { leases: Vec::with_capacity(locks.len()) };
        for &index in &order {
            held.keep()?;
            let lease = locks[index].acquire_with(&each.clone().wait(by.remaining()))?;
            held.leases.push((index, lease));
            held.check()?;
        }
        held.refresh()?;
        let mut leases = std::mem::take(&mut held.leases);
        leases.sort_by_key(|(index, _)| *index);
        let set = LeaseSet { leases: leases.into_iter().map(|(_, lease)| lease).collect(), order };
        if let Some(max_hold) = options.max_hold {
            set.keep(max_hold)?;
        }
        if let Some(min_hold) = options.min_hold {
            set.leases.iter().try_for_each(|lease| lease.hold_at_least(min_hold))?;
        }
        Ok(set)
    }

    /// Makes the set of permits, in the order of their numbers.
    pub(crate) fn of_permits(leases: Vec<Lease>) -> LeaseSet {
        let order = (0..leases.len()).collect();
        LeaseSet { leases, order }
    }

    /// Returns the numbers of the permits, in the order of [`leases`](LeaseSet::leases). Empty for locks.
    pub fn permits(&self) -> Vec<u8> {
        self.leases.iter().filter_map(Lease::permit).collect()
    }

    /// Returns the leases, in the order in which the locks were passed. For renewals of single leases, and for their
    /// descriptors.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Takes the leases out, in the order in which the locks were passed, or in that of the numbers of permits.
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }

    /// Returns the fences, in the order in which the locks were passed. See [`Lease::fence`].
    pub fn fences(&self) -> Vec<Option<Fence>> {
        self.leases.iter().map(Lease::fence).collect()
    }

    /// Checks by this machine's clock that no lease has expired. No I/O and no locks.
    ///
    /// # Errors
    /// Those of [`Lease::check`] for the first lease that is not valid.
    pub fn check(&self) -> Result<()> {
        self.leases.iter().try_for_each(Lease::check)
    }

    /// Returns the fences for the next write, in the order in which the locks were passed, if no lease has expired. No
    /// I/O and no locks.
    ///
    /// # Errors
    /// Those of [`Lease::guard`] for the first lease that is not valid.
    pub fn guard(&self) -> Result<Vec<Fence>> {
        // All are checked first, so that all were valid at one moment.
        self.check()?;
        self.leases.iter().map(Lease::guard).collect()
    }

    /// Returns the remaining time of the lease that ends first: zero once one has ended. No I/O, no locks.
    pub fn remaining(&self) -> Duration {
        self.leases.iter().map(Lease::remaining).min().unwrap_or_default()
    }

    /// Keeps all leases alive, for `max_hold` at most. See [`Lease::keep`].
    ///
    /// # Errors
    /// Those of [`Lease::keep`] for the first lease that is not valid.
    pub fn keep(&self, max_hold: Duration) -> Result<()> {
        self.check()?;
        self.leases.iter().try_for_each(|lease| lease.keep(max_hold))
    }

    /// Renews all leases, one after the other. Blocks for one call to the store for each: see [`Lease::renew`].
    ///
    /// # Errors
    /// Those of [`Lease::renew`], for the first lease that could not be renewed. The others are renewed nevertheless.
    pub fn renew(&self) -> Result<()> {
        let answers: Vec<_> = self.in_order().map(Lease::renew).collect();
        answers.into_iter().collect()
    }

    /// Releases all locks. Blocks for one call to the store for each: see [`Lease::release`].
    ///
    /// Returns `true` if all locks were these leases' and are free now.
    ///
    /// # Errors
    /// Those of [`Lease::release`], for the first release that failed. The others are released nevertheless.
    pub fn release(&self) -> Result<bool> {
        let answers: Vec<_> = self.in_order().rev().map(Lease::release).collect();
        answers.into_iter().try_fold(true, |all, freed| Ok(freed? && all))
    }

    fn in_order(&self) -> impl DoubleEndedIterator<Item = &Lease> {
        self.order.iter().map(|&index| &self.leases[index])
    }
}

/// Leases while others are waited for. Dropping it releases them, the last one first.
struct Held {
    leases: Vec<(usize, Lease)>,
}

impl Held {
    fn check(&self) -> Result<()> {
        self.leases.iter().try_for_each(|(_, lease)| lease.check())
    }

    /// Begins to renew the last one in the background.
    fn keep(&self) -> Result<()> {
        self.leases.last().map_or(Ok(()), |(_, lease)| lease.keep(Duration::MAX))
    }

    /// Ends the renewals in the background, and renews those leases that have waited.
    fn refresh(&self) -> Result<()> {
        let Some(((_, last), others)) = self.leases.split_last() else { return Ok(()) };
        for (_, lease) in others {
            lease.stop_keeping()?;
        }
        let ends = last.ends();
        for (_, lease) in others {
            // So that the caller has as much time for all of them as for the last one.
            if lease.ends().after(last.ttl() / 20) < ends {
                lease.renew()?;
            }
        }
        self.check()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        while let Some(lease) = self.leases.pop() {
            drop(lease);
        }
    }
}

/// Returns the indices of the locks, ordered by their stored keys.
fn ordered(locks: &[&Lock]) -> Result<Vec<usize>> {
    if locks.is_empty() {
        return Err(Error::invalid("locks", "none", "at least one"));
    }
    let mut order: Vec<usize> = (0..locks.len()).collect();
    order.sort_by_key(|&index| locks[index].name().key());
    match order.windows(2).find(|pair| locks[pair[0]].name() == locks[pair[1]].name()) {
        Some(pair) => {
            let name = locks[pair[0]].name().to_string();
            Err(Error::invalid("locks", format!("{name} twice"), "each lock once"))
        }
        None => Ok(order),
    }
}

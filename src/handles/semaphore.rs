//! The handle of a semaphore.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::handles::acquire::{self, AcquireTerms, leased};
use crate::handles::acquire_options::AcquireOptions;
use crate::handles::lease_set::LeaseSet;
use crate::handles::pending::{Pending, PendingWork};
use crate::lease::freeing::LockDoubt;
use crate::lease::held_lock::{HeldLock, LeaseTerms, Leftover};
use crate::names::holder::Holder;
use crate::names::lock_name::{Level, LockName};
use crate::names::mode::Mode;
use crate::runtime::time::Deadline;
use crate::session::Session;
use crate::store::{
    AcquiredPermits, Attempt, LockHold, PermitGrant, PermitTerms, SemaphoreState, checked_size,
};
use crate::wait::local_queues::{Answer, Ask};

/// A semaphore: a name, a level, and a number of permits. Making this handle does no I/O, and any number of threads may share it.
///
/// At most as many permits are held at one time as the semaphore has. Each permit has a number, from 0 on, and is held by one
/// [`Lease`](crate::Lease) at a time, with a TTL, a fence and a loss of its own: see [`LeaseSet`]. A permit whose process has died
/// is free when its TTL ends.
///
/// **Fences.** The fences of one permit rise, so a receiver can refuse what an earlier holder of the same permit sends late. Fences
/// of different permits say nothing about each other. So a receiver keeps one highest fence for each permit, such as one
/// [`FenceGate`](crate::FenceGate) each.
///
/// A semaphore is kept under the name of a lock, and nobody can acquire that lock while a permit is held. Use the name for one of
/// them only.
#[derive(Clone)]
pub struct Semaphore {
    name: LockName,
    permits: u16,
    session: Arc<Session>,
}

impl Semaphore {
    /// See [`LockManager::semaphore`](crate::LockManager::semaphore).
    pub(crate) fn new(session: &Arc<Session>, id: &str, level: Level, permits: u16) -> Result<Semaphore> {
        let (settings, permits) = (&session.settings, checked_size(permits)?);
        session.semaphores()?;
        let name = LockName::new(level, &settings.client, settings.farm.as_deref(), id, settings.names)?;
        Ok(Semaphore { name, permits, session: Arc::clone(session) })
    }

    /// Returns the full name, as stored.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the number of permits.
    pub fn permits(&self) -> u16 {
        self.permits
    }

    /// Tries once to acquire so many permits, all or none, with the manager's default TTL (90 s). Blocks for one call to the store.
    ///
    /// # Errors
    /// * [`Code::LockUnavailable`](crate::Code::LockUnavailable): too few are free.
    /// * [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a count of zero or above the number of permits. The same if the
    ///   store knows the semaphore with another number of permits: see [`resize`](Semaphore::resize).
    /// * All others of [`Lock::try_acquire`](crate::Lock::try_acquire).
    pub fn try_acquire(&self, count: u16) -> Result<LeaseSet> {
        self.try_acquire_with(count, &AcquireOptions::new())
    }

    /// See [`try_acquire`](Semaphore::try_acquire). The options must not have a wait.
    pub(crate) fn try_acquire_with(&self, count: u16, how: &AcquireOptions) -> Result<LeaseSet> {
        let (wanted, terms) = self.terms(count, how)?;
        let ask = || self.ask(wanted, &terms);
        acquire::once_with(&self.session, &self.name, &terms, ask, LeaseSet::leases)
    }

    /// Acquires so many permits, all or none, waiting for them if necessary, with the manager's defaults (TTL 90 s, wait 90 s).
    ///
    /// Threads of one manager acquire permits in the order of arrival, whatever their counts are. Processes poll: one that asks for
    /// many permits may find too few again and again while others ask for fewer.
    ///
    /// ```
    /// # let manager = dlm::LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// let licences = manager.semaphore("licences", dlm::Level::Xdc, 3)?;
    /// let permits = licences.acquire(2)?;
    /// assert_eq!((permits.permits(), licences.available()?), (vec![0, 1], 1));
    /// for lease in permits.leases() {
    ///     let _fence = lease.guard()?; // Send it along with each write for this permit.
    /// }
    /// assert!(permits.release()?);
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Code::LockUnavailable`](crate::Code::LockUnavailable), with the time waited: the wait timed out.
    /// * All others of [`try_acquire`](Semaphore::try_acquire). They end the wait at once.
    pub fn acquire(&self, count: u16) -> Result<LeaseSet> {
        self.acquire_with(count, &AcquireOptions::new())
    }

    /// Acquires so many permits with these options, waiting for them if necessary. See [`acquire`](Semaphore::acquire).
    ///
    /// # Errors
    /// Those of `acquire`, and [`Code::InvalidArgument`](crate::Code::InvalidArgument) for options that permits cannot have: another
    /// mode, an outer lease, and a lease that dies with its process. [`Code::Cancelled`](crate::Code::Cancelled).
    pub fn acquire_with(&self, count: u16, how: &AcquireOptions) -> Result<LeaseSet> {
        let (wanted, terms) = self.terms(count, how)?;
        let ask = |_| self.ask(wanted, &terms);
        acquire::wait_with(&self.session, &self.name, &terms, ask, LeaseSet::leases)
    }

    /// Starts to acquire so many permits, all or none, and returns at once. See [`Lock::start`](crate::Lock::start).
    ///
    /// Never blocks, except that its first call starts a thread.
    ///
    /// # Errors
    /// Those of `Lock::start`, and [`Code::InvalidArgument`](crate::Code::InvalidArgument) as for
    /// [`acquire_with`](Semaphore::acquire_with). [`Pending::take`] returns all other errors.
    pub fn start(&self, count: u16, how: &AcquireOptions) -> Result<Pending<LeaseSet>> {
        let (wanted, terms) = self.terms(count, how)?;
        Pending::start(&self.session, &self.name, terms, self.pending_work(wanted))
    }

    /// See [`Pending::start_here`].
    #[cfg(feature = "capi")]
    pub(crate) fn start_here(&self, count: u16, how: &AcquireOptions) -> Result<(Pending<LeaseSet>, bool)> {
        let (wanted, terms) = self.terms(count, how)?;
        Pending::start_here(&self.session, &self.name, terms, self.pending_work(wanted))
    }

    fn pending_work(&self, permits: PermitTerms) -> PendingWork<LeaseSet> {
        let semaphore = self.clone();
        let ask = move |_: Ask, terms: &AcquireTerms| semaphore.ask(permits, terms);
        PendingWork { ask: Box::new(ask), leases: LeaseSet::leases }
    }

    /// Returns how many permits are free: a hint, because others may take them meanwhile. None is while one with a number above the
    /// size is held: see [`resize`](Semaphore::resize). Blocks for one or two reads of the store.
    ///
    /// # Errors
    /// Those of [`Lock::inspect`](crate::Lock::inspect).
    pub fn available(&self) -> Result<u16> {
        let Some(SemaphoreState { permits, held }) = self.read()? else { return Ok(self.permits) };
        let is_above =
            |hold: &LockHold| hold.holder.permit.is_some_and(|permit| u16::from(permit) >= permits);
        if held.iter().any(is_above) {
            return Ok(0);
        }
        Ok(permits.saturating_sub(u16::try_from(held.len()).unwrap_or(u16::MAX)))
    }

    /// Returns the number of permits that the store knows, whatever that of this handle is. `None` if it knows no semaphore of this
    /// name: see [`resize`](Semaphore::resize). Blocks for one or two reads of the store.
    ///
    /// # Errors
    /// Those of [`Lock::inspect`](crate::Lock::inspect).
    pub fn size(&self) -> Result<Option<u16>> {
        Ok(self.read()?.map(|state| state.permits))
    }

    /// Returns who holds permits, each with [its number](Holder::permit), ordered by number. Blocks for one or two reads of the
    /// store.
    ///
    /// # Errors
    /// Those of [`Lock::inspect`](crate::Lock::inspect).
    pub fn holders(&self) -> Result<Vec<Holder>> {
        let held = self.read()?.map(|state| state.held).unwrap_or_default();
        let mut holders: Vec<_> = held.into_iter().map(|LockHold { holder, .. }| holder).collect();
        holders.sort_by_key(|holder| holder.permit);
        Ok(holders)
    }

    /// Changes the number of permits in the store (1 to 256), and returns a handle with this number. Permits that are held stay so:
    /// if there are fewer now, none is granted before those with higher numbers are free. Other handles keep their number, and are
    /// refused from now on.
    ///
    /// Blocks for one call to the store.
    ///
    /// # Errors
    /// * [`Code::NotFound`](crate::Code::NotFound): the store knows no semaphore of this name. It remembers one for 30 days after its
    ///   last use, and the embedded and the memory store until they begin anew. The first grant decides the number then.
    /// * [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a number that is not allowed.
    /// * [`Code::InDoubt`](crate::Code::InDoubt): it may be changed. The call may be repeated.
    /// * Those of a store that does not serve; [`Code::Closed`](crate::Code::Closed), [`Code::Forked`](crate::Code::Forked).
    pub fn resize(&self, permits: u16) -> Result<Semaphore> {
        let permits = checked_size(permits)?;
        self.session.usable()?;
        let by = Deadline::after(self.session.settings.timeout);
        match self.session.semaphores()?.resize(&self.name, permits, by)? {
            Some(_) => Ok(Semaphore { permits, ..self.clone() }),
            None => Err(Error::NotFound { name: self.name.to_string() }),
        }
    }

    fn read(&self) -> Result<Option<SemaphoreState>> {
        self.session.usable()?;
        let by = Deadline::after(self.session.settings.timeout);
        self.session.semaphores()?.semaphore(&self.name, by)
    }

    fn terms(&self, count: u16, how: &AcquireOptions) -> Result<(PermitTerms, AcquireTerms)> {
        let permits = self.permits;
        if !(1..=permits).contains(&count) {
            return Err(Error::invalid("count of permits", count.to_string(), format!("1 to {permits}")));
        }
        let terms = AcquireTerms::new(&self.session, &self.name, Mode::Permit, how)?;
        Ok((PermitTerms { permits, count }, terms))
    }

    /// Sends one request to the store.
    fn ask(&self, wanted: PermitTerms, terms: &AcquireTerms) -> Result<Answer<LeaseSet>> {
        let (session, name, ttl) = (&self.session, &self.name, terms.ttl);
        session.usable()?;
        // A grant that arrives after its lease has expired is useless.
        let by = Deadline::after(session.settings.timeout.min(ttl));
        let asked = session.settings.asked_ttl(ttl);
        let attempt = Attempt { name, ttl: asked, identity: &session.identity, by };
        let mut doubtful = Vec::new();
        let answer = session.semaphores()?.acquire_permits(attempt, wanted, &mut doubtful);
        for record in doubtful {
            let doubt = LockDoubt::MayBeTaken;
            session.leases.free(name.clone(), Leftover { record, ttl: asked, doubt });
        }
        match answer {
            Ok(AcquiredPermits::Granted(grants)) => self.leases(grants, ttl, asked).map(Answer::Got),
            Ok(AcquiredPermits::Held(holder)) => Ok(Answer::Busy(Some(holder))),
            Ok(AcquiredPermits::OtherSize(stored)) => {
                let allowed = format!("{stored}: so many has semaphore {name} in the store");
                Err(Error::invalid("permits", wanted.permits.to_string(), allowed))
            }
            Err(error) => Err(error.context(format!("acquiring permits of semaphore {name}"))),
        }
    }

    /// Makes the leases of permits that were granted. If one of them fails, all are released.
    fn leases(&self, grants: Vec<PermitGrant>, ttl: Duration, asked: Duration) -> Result<LeaseSet> {
        // First all of them, so that the end of an earlier one forgets no later one.
        let held: Vec<_> = grants
            .into_iter()
            .map(|PermitGrant { permit, grant }| {
                let ends = self.session.settings.lease_end(grant.since, ttl);
                let (mode, until_death, notices) = (Mode::Permit, false, None);
                let terms = LeaseTerms { mode, ttl, asked, ends, until_death, notices };
                HeldLock::new(self.name.clone(), grant, terms).of_permit(permit)
            })
            .collect();
        let leases: Vec<_> = held.into_iter().map(|lock| leased(&self.session, lock)).collect();
        leases.into_iter().collect::<Result<_>>().map(LeaseSet::of_permits)
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

//! The lock manager: where locks and latches come from.

use std::fmt;
use std::sync::Arc;

#[cfg(any(feature = "capi", test))]
use crate::config::Settings;
use crate::diagnosis::diagnose;
use crate::diagnostic::{Diagnostic, Severity};
use crate::error::{Error, Result};
use crate::latch::{Latch, LatchKind};
use crate::lease::Lease;
use crate::lease_token::LeaseToken;
use crate::lock::Lock;
use crate::name::Level;
use crate::session::Session;

/// Takes locks and counts latches in one store for one client id. Cheap to clone; all clones are the same
/// manager.
///
/// It may be used from any number of threads. It starts no thread until a request is in doubt or somebody
/// waits for a latch, and then two at the most, named `dlm-bg-1` and so on: see
/// [`Builder::background_threads`](crate::Builder::background_threads). [`close`](LockManager::close) releases
/// what is held and joins them; dropping the last clone, [`Lock`], [`Lease`] and [`Latch`] joins them too.
#[derive(Clone)]
pub struct LockManager {
    session: Arc<Session>,
}

/// Answer of [`LockManager::stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Leases acquired here and not released, lost or ended by close. Those whose time is over count
    /// until that is noticed by a call.
    pub leases_held: u64,
    /// Threads of this process that wait for a lock.
    pub threads_waiting: u64,
}

impl LockManager {
    pub(crate) fn new(session: Session) -> LockManager {
        LockManager { session: Arc::new(session) }
    }

    /// Creates what is missing in the store (the table), and checks that the store answers. Blocks, for
    /// up to a minute where a table is made. Safe to repeat, and to run in many processes at once.
    ///
    /// # Errors
    /// TABLE_CREATION_ERROR with the cause; CONNECTION_ERROR; CLOSED; FORKED.
    pub fn initialize(&self) -> Result<()> {
        self.session.usable()?;
        self.session.store.initialize(self.session.by_for_tables())
    }

    /// Looks at the store with a lock's eyes: what its version, schema and settings mean, how far its
    /// clock is from ours, whether a lock can be taken, renewed and released, and how long a look takes.
    /// Writes one lock of its own, and what a lock leaves behind. Blocks, up to a few store time-outs.
    ///
    /// A store that cannot be reached is a diagnostic, too.
    ///
    /// # Errors
    /// CLOSED; FORKED.
    pub fn diagnose(&self) -> Result<Vec<Diagnostic>> {
        self.session.usable()?;
        Ok(diagnose(&*self.session.store, &self.session.settings, &self.session.identity))
    }

    /// For `strict`: the first failure that [`diagnose`](LockManager::diagnose) finds is an error.
    pub(crate) fn refuse_failures(&self) -> Result<()> {
        match self.diagnose()?.into_iter().find(|diagnostic| diagnostic.severity == Severity::Fail) {
            None => Ok(()),
            Some(diagnostic) => Err(Error::RetriesExhausted {
                store: self.store(),
                what: format!("strict=true refuses this store: {diagnostic}"),
                source: None,
            }),
        }
    }

    /// The lock `id` of this manager's client id. No I/O.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the id is empty, longer than 1024 bytes or contains NUL, or when a lock of
    /// level DC is asked for and no farm is set.
    pub fn lock(&self, id: &str, level: Level) -> Result<Lock> {
        Lock::new(&self.session, id, level)
    }

    /// The latch `id` of this manager's client id. No I/O: it is made by [`create`](Latch::create), in this
    /// process or another. All who use it must agree on level and kind.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the id is empty, longer than 1024 bytes or contains NUL, when no farm is set,
    /// or when the store keeps locks only.
    pub fn latch(&self, id: &str, level: Level, kind: LatchKind) -> Result<Latch> {
        Latch::new(&self.session, id, level, kind)
    }

    /// Creates what latches need in the store (a table), and checks that it answers, as
    /// [`initialize`](LockManager::initialize) does for locks. A latch that is made does it where it is
    /// missing; this is for those who may not create tables later, or would not have the first latch wait
    /// for that.
    ///
    /// # Errors
    /// As `initialize`, and INVALID_ARGUMENT when the store keeps locks only.
    pub fn initialize_latches(&self) -> Result<()> {
        self.session.usable()?;
        self.session.latches()?.initialize_latches(self.session.by_for_tables())
    }

    /// Takes over a lease that another process handed on as text. Does not ask the store: whether the lock
    /// is still ours is learned by renewing or releasing it.
    ///
    /// Between processes of one machine the lease ends here when it would have ended there. From another
    /// machine, from before a restart of this one, from a time namespace with a clock of its own, or as a
    /// text of version 1 (`dlm1.`), its end is not known: wall clocks of two machines are not compared.
    /// [`check`](Lease::check) then answers LEASE_LOST until the first [`renew`](Lease::renew), and so does a
    /// [`release`](Lease::release) that freed the lock although its reply was lost.
    ///
    /// The lease is the caller's now: dropping it releases the lock.
    /// [`into_token`](Lease::into_token) lets go of it again.
    ///
    /// # Errors
    /// CLOSED, FORKED.
    pub fn adopt(&self, token: LeaseToken) -> Result<Lease> {
        Lease::adopt(&self.session, token)
    }

    #[cfg(any(feature = "capi", test))]
    pub(crate) fn settings(&self) -> &Settings {
        &self.session.settings
    }

    #[cfg(test)]
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// What is going on right now, for a program's own gauges. Takes locks of the library for a moment.
    pub fn stats(&self) -> Stats {
        Stats {
            leases_held: self.session.held() as u64,
            threads_waiting: self.session.queue.waiting() as u64,
        }
    }

    /// The store, as a URI without credentials.
    pub fn store(&self) -> String {
        self.session.store.describe()
    }

    /// Ends the manager: waiting threads return CLOSED, held leases are released, the library's threads are
    /// joined. From now on `check` of a lease answers LEASE_LOST, its `release` `false`, all else CLOSED.
    /// Closing twice does nothing.
    ///
    /// Takes up to one store time-out (10 s unless set) for the releases, another where a renewal or a look
    /// at latches is under way, and a few seconds for the threads.
    ///
    /// # Errors
    /// The first release that failed: that lock is free when its TTL ends. The others were tried all the
    /// same, each with its share of the time.
    pub fn close(&self) -> Result<()> {
        self.session.close()
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.store())
            .field("settings", &self.session.settings)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Code;
    use crate::lease_token::TokenEnd;
    use crate::owner::OwnerRecord;
    use crate::time::Moment;

    fn manager() -> LockManager {
        LockManager::builder().store_uri("memory:").client("tests").open().unwrap()
    }

    /// However long ago it ended, and however short a time this machine has been up.
    #[test]
    fn an_adopted_lease_that_is_over_is_not_held() {
        let manager = manager();
        let name = manager.lock("a", Level::Xdc).unwrap().name().clone();
        let token = LeaseToken {
            name,
            fence: None,
            ends: TokenEnd::at(Moment::from_nanos(1_000)),
            ttl: Duration::from_secs(365 * 24 * 3600),
            owner_record: OwnerRecord::from_bytes([1; 16]),
        };
        let lease = manager.adopt(token).unwrap();
        assert!(lease.check().is_err() && lease.remaining().is_zero(), "{lease:?}");
    }

    /// A virtual machine that went back to a snapshot has the same boot id and an earlier boot clock.
    #[test]
    fn an_adopted_lease_lasts_no_longer_than_its_ttl_whatever_its_token_says() {
        let manager = manager();
        let ttl = Duration::from_secs(90);
        let token = LeaseToken {
            name: manager.lock("a", Level::Xdc).unwrap().name().clone(),
            fence: None,
            ends: TokenEnd::at(Moment::now().after(1000 * ttl)),
            ttl,
            owner_record: OwnerRecord::from_bytes([1; 16]),
        };
        let lease = manager.adopt(token).unwrap();
        assert!(lease.check().is_ok() && lease.remaining() <= ttl, "{lease:?}");
    }

    /// Its wall clock may be a day ahead of ours, and the lease long over.
    #[test]
    fn the_end_of_a_lease_from_another_machine_is_not_known_until_it_is_renewed() {
        let manager = manager();
        let lock = manager.lock("a", Level::Xdc).unwrap();
        let (fence, token) = {
            let lease = lock.acquire().unwrap();
            (lease.fence(), lease.into_token().unwrap())
        };
        let text = token.to_string();
        let adopted = manager.adopt(text.parse().unwrap()).unwrap();
        adopted.check().expect("the same machine");
        drop(adopted.into_token().unwrap());
        for elsewhere in [token.clone().of_another_boot(), token.in_version_1().parse().unwrap()] {
            let lease = manager.adopt(elsewhere.clone()).unwrap();
            let said = lease.check().unwrap_err();
            assert!(said.code() == Code::LeaseLost && said.to_string().contains("renew"), "{said}");
            assert!(lease.remaining().is_zero() && lease.fence() == fence);
            assert_eq!(lease.into_token().unwrap(), elsewhere, "nothing is lost of what was told");
            let lease = manager.adopt(elsewhere).unwrap();
            lease.renew().unwrap();
            lease.check().unwrap();
            assert!(lease.into_token().unwrap().ends.here().is_some());
        }
        assert_eq!(lock.try_acquire().unwrap_err().code(), Code::LockUnavailable);
    }

    /// chrony slews by up to 83,333 ppm: by a thousandth alone, the holder of a lease of 90 s would go on for
    /// 7 s after the next one was granted.
    #[test]
    fn a_lease_ends_here_sooner_than_in_the_store_by_the_clock_margin() {
        const SECOND: Duration = Duration::from_secs(1);
        let builder = || LockManager::builder().store_uri("memory:").client("tests");
        let managers = [
            (builder().open().unwrap(), 900),
            (builder().option("clock_margin", "160000ppm").open().unwrap(), 840),
            (LockManager::open("memory:?client=tests&clock_margin=50000ppm").unwrap(), 950),
            (builder().clock_margin_ppm(0).open().unwrap(), 1000),
        ];
        for (manager, useful_s) in managers {
            let lock = manager.lock("a", Level::Xdc).unwrap();
            let before = Moment::now();
            let lease = lock.try_acquire_with_ttl(1000 * SECOND).unwrap();
            let useful = |since: Moment| since.after(useful_s * SECOND);
            assert!((useful(before)..=useful(Moment::now())).contains(&lease.ends()), "{useful_s}");
            let before = Moment::now();
            lease.renew().unwrap();
            assert!((useful(before)..=useful(Moment::now())).contains(&lease.ends()), "renewed: {useful_s}");
        }
        assert_eq!(builder().clock_margin_ppm(500_001).open().unwrap_err().code(), Code::InvalidArgument);
    }

    /// A process may take and lose locks for years.
    #[test]
    fn a_manager_keeps_no_lease_that_is_over() {
        let manager = manager();
        let lock = manager.lock("a", Level::Xdc).unwrap();
        let kept = || manager.session.held();

        let lease = lock.acquire().unwrap();
        assert_eq!(kept(), 1);
        assert!(lease.release().unwrap());
        assert_eq!(kept(), 0, "released");

        drop(lock.acquire().unwrap());
        assert_eq!(kept(), 0, "dropped");

        let finds: [fn(&Lease) -> Result<()>; 2] = [Lease::renew, |lease| lease.release().map(drop)];
        for finds_it_lost in finds {
            let token = lock.acquire().unwrap().into_token().unwrap();
            assert_eq!(kept(), 0, "handed on");
            let [ours, other] = [(); 2].map(|()| manager.adopt(token.clone()).unwrap());
            assert!(other.release().unwrap());
            assert_eq!(finds_it_lost(&ours).unwrap_err().code(), Code::LeaseLost);
            assert_eq!(kept(), 0, "found lost");
        }
    }
}

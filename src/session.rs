//! State shared by a manager and its locks, leases and latches: the store, the queues of waiters, the held leases,
//! and whether the manager is closed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::events::event::EventSink;
use crate::events::history_writer::HistoryWriter;
use crate::events::metrics::{ClassGauges, MetricFamily, Metrics};
use crate::events::observed_store::ObservedStore;
use crate::events::sinks::EventSinks;
use crate::latch::poller::{LatchPoller, PollTerms};
use crate::lease::held_lock::HeldLock;
use crate::lease::leases::Leases;
use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::waiters::Waiters;
use crate::runtime::background::Background;
use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::sync::AtomicBool;
use crate::runtime::time::{Deadline, Moment};
use crate::settings::manager_options::Settings;
use crate::store::{LatchStore, LivenessStore, LockStore, ModeStore, SemaphoreStore, locks_only};
use crate::wait::asking::{Askers, READ_MAX};
use crate::wait::intents::Intents;
use crate::wait::local_queues::LocalQueues;
use crate::wait::notices::{Notices, ask_holders};
use crate::wait::shared_reads::SharedReads;

/// Shortest time-out for creating a table, which takes longer than other calls.
const MAKING_TABLES: Duration = Duration::from_secs(60);

/// Longest time for which the drop of the last handle gives back the locks that stay.
const GIVING_BACK: Duration = Duration::from_secs(2);

/// Longest time for which `close` ends intents. They end by themselves soon after.
const ENDING_INTENTS: Duration = Duration::from_secs(1);

pub(crate) struct Session {
    /// The store, each call of which is reported as an event.
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) events: Arc<EventSinks>,
    /// From the first page on.
    metrics: OnceLock<Arc<Metrics>>,
    pub(crate) settings: Settings,
    pub(crate) queue: Arc<LocalQueues>,
    reads: SharedReads,
    pub(crate) askers: Arc<Askers>,
    pub(crate) poller: Arc<LatchPoller>,
    pub(crate) identity: Identity,
    /// The process that opened the manager, see [`ProcessMark`].
    process: ProcessMark,
    background: Arc<Background>,
    pub(crate) leases: Leases,
    pub(crate) intents: Arc<Intents>,
    /// `None` if the manager writes no history.
    history: Option<Arc<HistoryWriter>>,
    closed: AtomicBool,
}

impl Session {
    /// Does no I/O; the first call does. `settings` must be checked.
    ///
    /// # Errors
    /// CONNECTION_ERROR if the address for notices cannot be used. INVALID_ARGUMENT if locks should stay that the store
    /// cannot let stay.
    pub(crate) fn new(
        unobserved: Arc<dyn LockStore>,
        settings: Settings,
        identity: Identity,
        mut events: EventSinks,
    ) -> Result<Session> {
        let history = match settings.history.is_zero() {
            true => None,
            false if unobserved.history().is_none() => {
                let allowed = format!("0s for {}, which keeps no history of locks", unobserved.describe());
                return Err(Error::invalid("history", format!("{:?}", settings.history), allowed));
            }
            false => {
                let (store, timeout) = (Arc::clone(&unobserved), settings.timeout);
                Some(Arc::new(HistoryWriter::new(store, identity.clone(), settings.history, timeout)))
            }
        };
        if let Some(history) = &history {
            events.push(Arc::clone(history) as Arc<dyn EventSink>);
        }
        let events = Arc::new(events);
        let observed = ObservedStore::new(unobserved, Arc::clone(&events));
        let store: Arc<dyn LockStore> = Arc::new(observed);
        let notices =
            Arc::new(Notices::new(&settings.notices, settings.notices_all, store.shared_directory())?);
        let background = Arc::new(Background::new(settings.background_threads));
        let terms = PollTerms { poll: settings.poll, timeout: settings.timeout };
        let poller =
            LatchPoller::new(Arc::clone(&store), Arc::clone(&background), Arc::clone(&notices), terms);
        let queue = LocalQueues::new(Arc::clone(&notices), Arc::clone(&store));
        let leases = {
            let (store, events) = (Arc::clone(&store), Arc::clone(&events));
            Leases::new(store, settings.clone(), events, Arc::clone(&queue), Arc::clone(&background))?
        };
        let intents = {
            let (store, background) = (Arc::clone(&store), Arc::clone(&background));
            Intents::new(store, background, notices, identity.clone(), settings.timeout)
        };
        let askers = {
            let (store, limit) = (Arc::clone(&store), settings.timeout.min(READ_MAX));
            Askers::new(Box::new(move |names, report| {
                store.holders(names, Deadline::after(limit), report);
            }))
        };
        Ok(Session {
            history,
            store,
            events,
            metrics: OnceLock::new(),
            settings,
            queue,
            reads: SharedReads::default(),
            askers: Arc::new(askers),
            poller,
            identity,
            process: ProcessMark::current(),
            background,
            leases,
            intents,
            closed: AtomicBool::new(false),
        })
    }

    /// Fails with CLOSED after `close`, and with FORKED in a forked child.
    pub(crate) fn usable(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { self.not_forked() }
    }

    pub(crate) fn not_forked(&self) -> Result<()> {
        self.process.check()
    }

    pub(crate) fn latches(&self) -> Result<&dyn LatchStore> {
        self.store.latches().ok_or_else(|| locks_only(&*self.store))
    }

    /// Returns the part of the store for locks in this mode. Does no I/O.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the store has no such part.
    pub(crate) fn modes(&self, mode: Mode) -> Result<&dyn ModeStore> {
        self.store.modes().ok_or_else(|| {
            let allowed = format!(
                "EXCLUSIVE for {}; memory:, embedded:, and hbase:// and aerospike:// with layout=own keep locks in \
                 other modes too",
                self.store.describe()
            );
            Error::invalid("mode", mode.name(), allowed)
        })
    }

    /// Returns the part of the store for semaphores. Does no I/O.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the store has no such part.
    pub(crate) fn semaphores(&self) -> Result<&dyn SemaphoreStore> {
        let allowed =
            "memory:, embedded:, or hbase:// or aerospike:// with layout=own, which keep semaphores";
        self.store.semaphores().ok_or_else(|| Error::invalid("store", self.store.describe(), allowed))
    }

    /// Returns what stands in the way of a grant in this mode. One read of the store.
    pub(crate) fn blocker(&self, name: &LockName, mode: Mode) -> Result<Option<Holder>> {
        self.usable()?;
        self.modes(mode)?.blocker(name, mode, Deadline::after(self.settings.timeout))
    }

    /// Returns the part of the store for leases that die with their process. Does no I/O.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the store has no such part, or if the manager has a lock delay: its successor must wait.
    pub(crate) fn liveness(&self) -> Result<&dyn LivenessStore> {
        if !self.settings.lock_delay.is_zero() {
            let allowed = "for a manager without a lock delay, which others must wait for";
            return Err(Error::invalid("dies_with_process", "true", allowed));
        }
        self.store.liveness().ok_or_else(|| {
            let allowed = format!(
                "for a store that can tell whether a process has died, such as embedded:, and not for {}",
                self.store.describe()
            );
            Error::invalid("dies_with_process", "true", allowed)
        })
    }

    pub(crate) fn by_for_tables(&self) -> Deadline {
        Deadline::after(self.settings.timeout.max(MAKING_TABLES))
    }

    /// Returns the holder of the lock, for a thread that waits for it. If the process waits for many locks, the read is
    /// put together with those of other threads.
    pub(crate) fn read_holder(&self, name: &LockName) -> Result<Option<Holder>> {
        self.usable()?;
        let by = Deadline::after(self.settings.timeout);
        let read_one = || self.store.holder(name, by);
        if !self.queue.waits_for_many() {
            return read_one();
        }
        let read_many = |names: &[LockName], report: &mut dyn FnMut(usize, Option<Holder>)| {
            self.store.holders(names, by, report);
        };
        self.reads.read(name, self.settings.retry, &read_many, read_one)
    }

    /// Asks a holder once to give the lock back if it only stays there.
    pub(crate) fn ask_once(&self, holder: Option<&Holder>) {
        if let Some(notices) = holder.and_then(|holder| holder.identity.as_ref()?.notices) {
            self.queue.notices().want(notices);
        }
    }

    /// See [`LockManager::waiting`](crate::LockManager::waiting).
    pub(crate) fn waiting(&self, holders: &[Holder]) -> Vec<Option<Waiters>> {
        let endpoint_of = |holder: &Holder| holder.identity.as_ref().and_then(|identity| identity.notices);
        let grants: Vec<_> = holders.iter().map(endpoint_of).collect();
        ask_holders(&grants, self.store.shared_directory())
    }

    /// Makes a page of metrics. `counts` are those of the manager. The first page begins to count events.
    pub(crate) fn metrics_page(&self, counts: &[(MetricFamily, u64)]) -> String {
        let metrics = self.metrics.get_or_init(|| {
            let metrics = Arc::new(Metrics::new());
            self.events.push_late(Arc::clone(&metrics) as _);
            metrics
        });
        let now = Moment::now();
        let held = self.leases.held();
        let of_held = held.iter().map(|lock: &Arc<HeldLock>| {
            (lock.name(), ClassGauges::of_lease(lock.mode(), now.since(lock.since())))
        });
        let waits = self.queue.waits();
        let of_waits = waits.iter().map(|(name, waiting, since)| {
            let (waiting, longest_wait) = (*waiting as u64, now.since(*since));
            (name, ClassGauges { waiting, longest_wait, ..ClassGauges::default() })
        });
        metrics.page(of_held.chain(of_waits), counts)
    }

    /// See [`LockManager::close`](crate::LockManager::close).
    pub(crate) fn close(&self) -> Result<()> {
        self.not_forked()?;
        self.closed.store(true, Ordering::Release);
        self.queue.close();
        self.intents.close(Deadline::after(self.settings.timeout.min(ENDING_INTENTS)));
        self.poller.close();
        let released = self.leases.close();
        self.askers.stop();
        self.leases.keeper.stop();
        self.background.stop();
        self.queue.notices().stop();
        if let Some(history) = &self.history {
            history.stop(Deadline::after(self.settings.timeout));
        }
        released.map_err(|error| error.context("closing the lock manager"))
    }
}

impl Drop for Session {
    /// Stops the threads here and not in the drop of `Background`, whose last handle one of its own threads may
    /// have.
    fn drop(&mut self) {
        if self.not_forked().is_ok() {
            self.leases.give_back(Deadline::after(self.settings.timeout.min(GIVING_BACK)));
        }
        self.askers.stop();
        self.leases.keeper.stop();
        self.background.stop();
        self.queue.notices().stop();
        if let Some(history) = &self.history {
            history.stop(Deadline::after(self.settings.timeout.min(GIVING_BACK)));
        }
        if self.not_forked().is_err() {
            // A thread that does not exist in this child may have been changing the poller.
            std::mem::forget(Arc::clone(&self.poller));
        }
    }
}

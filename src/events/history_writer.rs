//! Writes the history of locks into the store.
//!
//! It is an event sink. An event is put into a queue of bounded length, and a thread of its own, `dlm-history`, writes the
//! entries one after the other. So no caller waits for a history, and a store that does not keep up costs entries and
//! nothing else.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::events::event::{Event, EventSink};
use crate::names::history_entry::{HistoryEntry, HistoryKind};
use crate::names::holder::Identity;
use crate::names::lock_name::LockName;
use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::process::threads::WorkerThread;
use crate::runtime::sync::{AtomicU64, Mutex};
use crate::runtime::time::Deadline;
use crate::store::{HistoryOf, LockStore};

/// Most entries that wait to be written.
const QUEUED_MAX: usize = 1024;
/// How often an entry is written, if a reply is lost.
const WRITES: usize = 3;

pub(crate) struct HistoryWriter {
    store: Arc<dyn LockStore>,
    identity: Identity,
    /// How long each entry is kept.
    lasts: Duration,
    timeout: Duration,
    process: ProcessMark,
    state: Mutex<WriterState>,
    stop_by: Arc<Mutex<Option<Deadline>>>,
    dropped: AtomicU64,
}

type QueuedEntry = (LockName, HistoryEntry);

#[derive(Default)]
struct WriterState {
    /// `None` before the first entry, and after the end.
    queue: Option<Sender<QueuedEntry>>,
    thread: Option<WorkerThread>,
    is_over: bool,
}

impl HistoryWriter {
    /// Starts no thread; the first entry does.
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        identity: Identity,
        lasts: Duration,
        timeout: Duration,
    ) -> HistoryWriter {
        HistoryWriter {
            store,
            identity,
            lasts,
            timeout,
            process: ProcessMark::current(),
            state: Mutex::default(),
            stop_by: Arc::default(),
            dropped: AtomicU64::new(0),
        }
    }

    fn write(&self, name: &LockName, entry: HistoryEntry) {
        let mut state = self.state.lock();
        if state.is_over {
            return;
        }
        if state.queue.is_none() {
            let (queue, entries) = bounded(QUEUED_MAX);
            let (store, lasts, timeout) = (Arc::clone(&self.store), self.lasts, self.timeout);
            let stop_by = Arc::clone(&self.stop_by);
            let run = move || write_all(&*store, &entries, lasts, timeout, &stop_by);
            match WorkerThread::start("dlm-history", "writes the history of locks", run) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => {
                    state.is_over = true;
                    drop(state);
                    log::error!("no history is written, because its thread cannot be started: {error}");
                    return;
                }
            }
            state.queue = Some(queue);
        }
        let is_queued =
            state.queue.as_ref().is_some_and(|queue| queue.try_send((name.clone(), entry)).is_ok());
        drop(state);
        if !is_queued {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                log::warn!(
                    "the store does not keep up with the history of locks: {dropped} entries were dropped"
                );
            }
        }
    }

    /// Writes what is queued, until `by`, and ends the thread. Later events are not written.
    pub(crate) fn stop(&self, by: Deadline) {
        if !self.process.is_current() {
            return;
        }
        let WriterState { queue, thread, .. } =
            mem::replace(&mut *self.state.lock(), WriterState { is_over: true, ..WriterState::default() });
        *self.stop_by.lock() = Some(by);
        drop(queue);
        thread.into_iter().for_each(WorkerThread::join);
    }
}

impl EventSink for HistoryWriter {
    fn on_event(&self, event: &Event<'_>) {
        let entry = |kind| HistoryEntry::now(kind, &self.identity);
        match event {
            Event::Acquired { lock, mode, fence, waited, .. } => {
                let (mode, fence, took) = (*mode, *fence, Some(*waited));
                self.write(lock, HistoryEntry { mode, fence, took, ..entry(HistoryKind::Acquired) });
            }
            Event::Released { lock, mode, fence, held, .. } => {
                let (mode, fence, took) = (*mode, *fence, Some(*held));
                self.write(lock, HistoryEntry { mode, fence, took, ..entry(HistoryKind::Released) });
            }
            Event::Lost { lock, mode, fence, held, reason, .. } => {
                let (mode, fence, took, text) = (*mode, *fence, Some(*held), reason.name().to_owned());
                self.write(lock, HistoryEntry { mode, fence, took, text, ..entry(HistoryKind::Lost) });
            }
            Event::ModeChanged { lock, from, to, fence, held, .. } => {
                let (mode, mode_before, fence, took) = (*to, Some(*from), *fence, Some(*held));
                let entry = entry(HistoryKind::ModeChanged);
                self.write(lock, HistoryEntry { mode, mode_before, fence, took, ..entry });
            }
            _ => {}
        }
    }
}

/// Writes entries until the writer is stopped and none is left, or its time is over.
fn write_all(
    store: &dyn LockStore,
    entries: &Receiver<QueuedEntry>,
    lasts: Duration,
    timeout: Duration,
    stop_by: &Mutex<Option<Deadline>>,
) {
    let Some(history) = store.history() else { return };
    let mut failed: u64 = 0;
    for (name, entry) in entries {
        let stop_by = *stop_by.lock();
        if stop_by.is_some_and(|by| by.passed()) {
            log::warn!("{} entries of histories were not written before the end", entries.len() + 1);
            return;
        }
        let by = Deadline::after(timeout);
        let by = stop_by.map_or(by, |stop| by.sooner(stop));
        // Adding an entry again changes nothing.
        let write = || history.append(HistoryOf::Lock(&name), &entry, lasts, by);
        let mut answer = write();
        for _ in 1..WRITES {
            if !answer.as_ref().is_err_and(|error| error.is_in_doubt()) || by.passed() {
                break;
            }
            answer = write();
        }
        if let Err(error) = answer {
            failed += 1;
            if failed.is_power_of_two() {
                log::warn!("{failed} entries of histories could not be written: {}", error.chain());
            }
        }
    }
}

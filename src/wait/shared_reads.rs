//! Reads of many locks in few requests, for the threads of one process that wait for different locks.
//!
//! Each queue's front reads its lock once per retry interval. If many locks are waited for, the queues choose the moments
//! of these reads so that many fall together. The first thread then waits a moment for others, and reads for all of them
//! with one call of the store. What that call does not report, each thread reads for itself.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::runtime::sync::{Condvar, Mutex};
use crate::runtime::time::{self, Moment};

/// How long a thread waits for others, as a part of the retry interval, and at most.
const GATHER_PART: u32 = 50;
const GATHER_MAX: Duration = Duration::from_millis(2);
/// Most locks that are read together.
const NAMES_MAX: usize = 1024;
/// After a call that reported nothing, each thread reads for itself for so long: the store cannot read several locks at
/// once, or does not answer.
const APART: Duration = Duration::from_secs(10);

/// Reads several locks, and reports the position and the holder of each that it has read.
pub(crate) type ReadMany<'a> = &'a dyn Fn(&[LockName], &mut dyn FnMut(usize, Option<Holder>));

#[derive(Debug, Default)]
pub(crate) struct SharedReads {
    state: Mutex<SharedReadsState>,
}

#[derive(Debug, Default)]
struct SharedReadsState {
    /// The threads that wait for the one that will read. `None` while nobody gathers.
    gathered: Option<Vec<(LockName, Arc<SharedReader>)>>,
    /// Until then each thread reads for itself.
    apart_until: Option<Moment>,
}

/// A thread that waits until another one has read its lock.
#[derive(Debug, Default)]
struct SharedReader {
    seen: Mutex<Glimpse>,
    wake: Condvar,
}

#[derive(Debug, Default, Clone)]
enum Glimpse {
    #[default]
    NotYet,
    Known(Option<Holder>),
    /// The thread that read for all has ended without an answer for this lock.
    Unknown,
}

/// The threads that wait for this one. They wait no longer than it reads, also if the store panics.
struct Led(Vec<Arc<SharedReader>>);

impl Drop for Led {
    fn drop(&mut self) {
        self.0.iter().for_each(|reader| reader.report(Glimpse::Unknown));
    }
}

impl SharedReader {
    fn report(&self, glimpse: Glimpse) {
        let mut seen = self.seen.lock();
        if matches!(*seen, Glimpse::NotYet) {
            *seen = glimpse;
            self.wake.notify_one();
        }
    }

    fn wait(&self) -> Option<Option<Holder>> {
        let mut seen = self.seen.lock();
        loop {
            match &*seen {
                Glimpse::NotYet => self.wake.wait(&mut seen),
                Glimpse::Known(holder) => return Some(holder.clone()),
                Glimpse::Unknown => return None,
            }
        }
    }
}

impl SharedReads {
    /// Returns the holder of the lock, read together with the locks of other threads that call this at about the same time.
    /// Blocks for one call of the store, or two.
    pub(crate) fn read(
        &self,
        name: &LockName,
        retry: Duration,
        read_many: ReadMany<'_>,
        read_one: impl FnOnce() -> Result<Option<Holder>>,
    ) -> Result<Option<Holder>> {
        match self.with_others(name, retry, read_many) {
            Some(holder) => Ok(holder),
            None => read_one(),
        }
    }

    fn with_others(
        &self,
        name: &LockName,
        retry: Duration,
        read_many: ReadMany<'_>,
    ) -> Option<Option<Holder>> {
        let mut state = self.state.lock();
        if state.apart_until.is_some_and(|until| Moment::now() < until) {
            return None;
        }
        match &mut state.gathered {
            Some(others) if others.len() < NAMES_MAX => {
                let reader = Arc::new(SharedReader::default());
                others.push((name.clone(), Arc::clone(&reader)));
                drop(state);
                return reader.wait();
            }
            Some(_) => return None,
            None => state.gathered = Some(Vec::new()),
        }
        drop(state);
        time::sleep((retry / GATHER_PART).min(GATHER_MAX));
        let (mut names, mut led) = (vec![name.clone()], Led(Vec::new()));
        for (name, reader) in self.state.lock().gathered.take().unwrap_or_default() {
            names.push(name);
            led.0.push(reader);
        }
        if led.0.is_empty() {
            return None;
        }
        let (mut own, mut is_silent) = (None, true);
        read_many(&names, &mut |index, holder| {
            is_silent = false;
            match index.checked_sub(1) {
                None => own = Some(holder),
                Some(other) => led.0[other].report(Glimpse::Known(holder)),
            }
        });
        if is_silent {
            self.state.lock().apart_until = Some(Moment::now().after(APART));
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::runtime::time::Deadline;
    use crate::testing::patience::LONG;

    fn name(id: usize) -> LockName {
        LockName::new(Level::Xdc, "tests", None, &format!("{id}"), NamePolicy::Strict).unwrap()
    }

    fn holder(id: usize) -> Option<Holder> {
        Some(Holder::new(None, Some(Duration::from_secs(id as u64)), None))
    }

    /// Lets so many threads look, each at its own lock, while the first of them waits for the others. Returns what each saw,
    /// how many calls read several locks, and how many read one.
    fn read_all(
        reads: &SharedReads,
        threads: usize,
        read_many: impl Fn(&[LockName], &mut dyn FnMut(usize, Option<Holder>)) + Sync,
    ) -> (Vec<Option<Holder>>, usize, usize) {
        let (many, one, seen) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(vec![None; threads]));
        let at_once = Barrier::new(threads);
        thread::scope(|scope| {
            for id in 0..threads {
                let (many, one, seen, read_many, at_once) = (&many, &one, &seen, &read_many, &at_once);
                scope.spawn(move || {
                    let counted = |names: &[LockName], report: &mut dyn FnMut(usize, Option<Holder>)| {
                        many.fetch_add(1, Ordering::SeqCst);
                        read_many(names, report);
                    };
                    at_once.wait();
                    let found = reads.read(&name(id), LONG, &counted, || {
                        one.fetch_add(1, Ordering::SeqCst);
                        Ok(holder(id))
                    });
                    seen.lock()[id] = found.unwrap();
                });
            }
        });
        (seen.into_inner(), many.into_inner(), one.into_inner())
    }

    fn id_of(name: &LockName) -> usize {
        let text = name.to_string();
        text.trim_matches('"').rsplit('#').next().unwrap().parse().unwrap()
    }

    #[test]
    fn each_thread_gets_the_answer_for_its_own_lock_and_few_calls_read_them() {
        let all: Vec<_> = (0..40).map(holder).collect();
        let (mut fewest, by) = (usize::MAX, Deadline::after(LONG));
        // How many calls it takes depends on when the threads run.
        while fewest > 4 {
            assert!(!by.passed(), "{fewest} calls for 40 locks at best");
            let (seen, many, one) = read_all(&SharedReads::default(), 40, |names, report| {
                names.iter().enumerate().rev().for_each(|(at, name)| report(at, holder(id_of(name))));
            });
            assert_eq!(seen, all);
            fewest = fewest.min(many + one);
        }
    }

    #[test]
    fn what_is_not_reported_each_thread_reads_for_itself() {
        let by = Deadline::after(LONG);
        loop {
            let (seen, many, one) = read_all(&SharedReads::default(), 10, |names, report| {
                for (at, name) in names.iter().enumerate().filter(|(_, name)| id_of(name).is_multiple_of(2)) {
                    report(at, holder(id_of(name)));
                }
            });
            assert_eq!(seen, (0..10).map(holder).collect::<Vec<_>>());
            assert!(one >= 5, "{one}");
            if many > 0 {
                return;
            }
            assert!(!by.passed(), "no two threads came together");
        }
    }

    #[test]
    fn after_a_call_that_reported_nothing_nobody_gathers_for_a_while() {
        let reads = SharedReads::default();
        let (mut apart, by) = (0, Deadline::after(LONG));
        // Rounds in which each thread read for itself.
        while apart < 50 {
            assert!(!by.passed(), "{apart} rounds");
            let before = reads.state.lock().apart_until;
            let many = read_all(&reads, 10, |_, _| {}).1;
            match before {
                Some(until) if Moment::now() < until => {
                    assert_eq!(many, 0, "somebody gathered");
                    apart += 1;
                }
                _ => {
                    assert!(many <= 5, "{many}: those under way at once at most");
                    assert_eq!(many > 0, reads.state.lock().apart_until != before);
                }
            }
        }
    }

    #[test]
    fn a_panic_of_the_store_leaves_no_thread_waiting() {
        let reads = SharedReads::default();
        let (mut panicked, mut rounds, by) = (false, 0, Deadline::after(LONG));
        while !panicked || rounds < 50 {
            assert!(panicked || !by.passed(), "no two threads came together");
            rounds += 1;
            let at_once = Barrier::new(4);
            let panics = AtomicUsize::new(0);
            let seen = thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|id| {
                        let (reads, panics, at_once) = (&reads, &panics, &at_once);
                        scope.spawn(move || {
                            let fails = |_: &[LockName], _: &mut dyn FnMut(usize, Option<Holder>)| {
                                panics.fetch_add(1, Ordering::SeqCst);
                                std::panic::resume_unwind(Box::new("panicked"));
                            };
                            at_once.wait();
                            let read = || reads.read(&name(id), LONG, &fails, || Ok(holder(id)));
                            catch_unwind(AssertUnwindSafe(read)).map(|found| found.unwrap())
                        })
                    })
                    .collect();
                threads.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>()
            });
            let failed = seen.iter().filter(|seen| seen.is_err()).count();
            assert_eq!(failed, panics.into_inner());
            for (id, seen) in seen.into_iter().enumerate().filter_map(|(id, seen)| Some((id, seen.ok()?))) {
                assert_eq!(seen, holder(id));
            }
            panicked |= failed > 0;
        }
    }
}

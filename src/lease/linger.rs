//! Locks that stay: records of released locks that this process keeps in the store for a while, so that it can take the
//! locks again without asking. See [`retake_right`](crate::lease::retake_right) for why that is safe.
//!
//! | a lingering record | until | next |
//! |---|---|---|
//! | lingering | this process takes the lock again | held |
//! | lingering | its time is over, another process wants it, this process must yield, or the manager is closed | given back |
//! | given back | the store answers | gone |
//!
//! The time of staying begins with the first release that lets a lock stay, and later releases do not make it longer. When
//! it is over, this process leaves the lock to others for an interval: they poll, and could not find it free before.
//!
//! Readers share a lock, so one of the holds of this process stays, and is taken again in its own mode. They leave nothing to
//! others when its time is over: the store keeps new readers out while a writer waits. Updaters do, because another updater
//! does not announce itself.
//!
//! One job of the background threads waits for the first lock whose time will be over, however many stay. Jobs that give
//! back locks have threads of their own, and take the locks of a server that has just hung last.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::Result;
use crate::lease::freeing::{Freeing, LockDoubt};
use crate::lease::retake_right::{NoRight, RecordWrite, RetakeRight, SpareFences};
use crate::names::fence::{Epoch, Fence};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerRecord;
use crate::runtime::background::{Background, JobLane, Next, Ticket};
use crate::runtime::sync::{AtomicU64, HashMap, Mutex};
use crate::runtime::time::{Deadline, Moment};
use crate::settings::manager_options::Settings;
use crate::store::LockStore;
use crate::wait::local_queues::LocalQueues;

/// How many fences a grant of a lock reserves at first, and at least and at most later. A block that is used up is eight
/// times as large the next time, and one of which little was used is half as large.
pub(crate) const BLOCK_FIRST: u64 = 64;
pub(crate) const BLOCK_LEAST: u64 = 16;
const BLOCK_MOST: u64 = 65_536;
/// Most locks whose blocks are remembered. Then all are forgotten.
const BLOCKS_REMEMBERED: usize = 4096;
/// Time limit of giving back a lock in the background.
const GIVE_BACK: Duration = Duration::from_secs(2);
/// Most locks of a manager that stay at one time. Closing it gives back all of them.
const LINGERING_MAX: usize = 1024;

/// A released lock whose record stays in the store.
#[derive(Debug)]
pub(crate) struct LingeringLock {
    pub(crate) record: OwnerRecord,
    pub(crate) mode: Mode,
    /// The epoch of a hold that is not exclusive.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) write: RecordWrite,
    pub(crate) spare: SpareFences,
    /// Longest time for which the store may keep the record.
    pub(crate) longest_ttl: Duration,
    /// The random bits in the record, by which others register.
    pub(crate) notices: Option<u64>,
    /// When the lock must not stay any longer.
    pub(crate) until: Moment,
    /// The same for all records that this process has for it without a pause.
    pub(crate) stay_ends: Moment,
}

/// Why a lock that stayed is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveBack {
    /// Its time is over: this process leaves it to those who poll.
    TimeIsOver,
    /// It is the turn of other processes.
    Yields,
    /// Another process waits, or the lock cannot stay.
    Otherwise,
}

/// A lock that was taken again.
pub(crate) struct Retaken {
    pub(crate) lingering: LingeringLock,
    pub(crate) fence: Option<Fence>,
    pub(crate) at: Moment,
}

/// What became of a lock that this process wants again.
pub(crate) enum Retake {
    Retaken(Retaken),
    /// Its record must be released first, for this reason.
    Not(LingeringLock, NoRight),
}

/// The lingering locks of one manager.
pub(crate) struct Linger {
    store: Arc<dyn LockStore>,
    background: Arc<Background>,
    queue: Arc<LocalQueues>,
    settings: Settings,
    state: Mutex<LingerState>,
    retaken: AtomicU64,
}

#[derive(Default)]
struct LingerState {
    is_closed: bool,
    slots: HashMap<LockName, LingerSlot>,
    blocks: HashMap<LockName, FenceBlock>,
    /// When to look after the slots.
    due: BTreeMap<DueAt, LockName>,
    /// Locks to be given back now.
    back: VecDeque<(LockName, LingeringLock, GiveBack)>,
    /// The background job that looks after what is due next, and its number.
    timer: Option<(Ticket, u64)>,
    /// Numbers drawn for slots and timers.
    drawn: u64,
    /// Parts of the store that did not answer the last time.
    failing: BTreeSet<u8>,
}

/// The fences that the last grant of a lock has reserved. However its lease ends, the next grant knows how many were used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FenceBlock {
    size: u64,
    used: u64,
}

/// A moment, and a number that makes it unique.
type DueAt = (Moment, u64);

/// A lock that stays, or stayed and is held again.
struct LingerSlot {
    lingering: Option<LingeringLock>,
    due: DueAt,
}

impl LingerState {
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn take(&mut self, name: &LockName) -> Option<LingeringLock> {
        // The slot is removed when it is due, unless the lock stays again by then.
        self.slots.get_mut(name)?.lingering.take()
    }

    /// Keeps the lock. Hands it back if there are too many, or if another hold of it stays.
    fn add(
        &mut self,
        name: &LockName,
        lingering: LingeringLock,
    ) -> std::result::Result<(), Box<LingeringLock>> {
        let until = lingering.until;
        if let Some(slot) = self.slots.get_mut(name) {
            if slot.lingering.is_some() {
                return Err(lingering.into());
            }
            slot.lingering = Some(lingering);
            if until < slot.due.0 {
                self.due.remove(&slot.due);
                slot.due.0 = until;
                self.due.insert(slot.due, name.clone());
            }
            return Ok(());
        }
        if self.slots.len() + self.back.len() >= LINGERING_MAX {
            return Err(lingering.into());
        }
        let due = (until, self.draw());
        self.slots.insert(name.clone(), LingerSlot { lingering: Some(lingering), due });
        self.due.insert(due, name.clone());
        Ok(())
    }

    /// Moves the locks whose time is over to those that are given back.
    fn end_what_is_due(&mut self, now: Moment) {
        while let Some((&due, _)) = self.due.first_key_value() {
            if now < due.0 {
                return;
            }
            let Some(name) = self.due.remove(&due) else { return };
            let Some(slot) = self.slots.get_mut(&name) else { continue };
            match &slot.lingering {
                Some(lingering) if now < lingering.until => {
                    slot.due = (lingering.until, due.1);
                    self.due.insert(slot.due, name);
                }
                Some(_) | None => {
                    if let Some(lingering) = self.slots.remove(&name).and_then(|slot| slot.lingering) {
                        self.back.push_back((name, lingering, GiveBack::TimeIsOver));
                    }
                }
            }
        }
    }

    /// Takes the next lock to give back: of a part of the store that answers, if there is one.
    fn take_back(&mut self, shard: impl Fn(&LockName) -> u8) -> Option<(LockName, LingeringLock, GiveBack)> {
        let answers = self.back.iter().position(|(name, ..)| !self.failing.contains(&shard(name)));
        self.back.remove(answers.unwrap_or(0))
    }

    /// When to do something next. `now` at the earliest, so that jobs of others that are due go first.
    fn next(&self, now: Moment) -> Option<Moment> {
        let first = self.due.first_key_value().map(|((at, _), _)| *at);
        if self.back.is_empty() { first.map(|at| at.max(now)) } else { Some(now) }
    }
}

impl Linger {
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        background: Arc<Background>,
        queue: Arc<LocalQueues>,
        settings: Settings,
    ) -> Arc<Linger> {
        let linger = Arc::new(Linger {
            store,
            background,
            queue,
            settings,
            state: Mutex::default(),
            retaken: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&linger);
        linger.queue.notices().set_wanted(Box::new(move |name| {
            if let Some(linger) = weak.upgrade() {
                linger.give_back(name, GiveBack::Otherwise);
            }
        }));
        linger
    }

    /// Returns how many fences the next grant of this lock reserves.
    pub(crate) fn fences(&self, name: &LockName) -> u64 {
        self.state.lock().blocks.get(name).map_or(BLOCK_FIRST, |block| block.next_size())
    }

    /// Remembers that the store has granted the lock with so many fences.
    pub(crate) fn granted(&self, name: &LockName, fences: u64) {
        let blocks = &mut self.state.lock().blocks;
        let block = FenceBlock { size: fences, used: 1 };
        if let Some(last) = blocks.get_mut(name) {
            *last = block;
            return;
        }
        if blocks.len() >= BLOCKS_REMEMBERED {
            blocks.clear();
        }
        blocks.insert(name.clone(), block);
    }

    /// Returns how often a lock was taken again without asking the store.
    pub(crate) fn retaken(&self) -> u64 {
        self.retaken.load(Ordering::Relaxed)
    }

    /// Whether this lock may stay, beside those that do. Of several holds of a lock one may.
    pub(crate) fn has_room(&self, name: &LockName) -> bool {
        let state = self.state.lock();
        if let Some(slot) = state.slots.get(name) {
            return slot.lingering.is_none();
        }
        state.slots.len() + state.back.len() < LINGERING_MAX
    }

    /// Whether the lock is lingering here.
    pub(crate) fn has(&self, name: &LockName) -> bool {
        self.state.lock().slots.get(name).is_some_and(|slot| slot.lingering.is_some())
    }

    /// Keeps a lock that was just released. Hands it back if that is not possible.
    pub(crate) fn add(
        self: &Arc<Linger>,
        name: &LockName,
        lingering: LingeringLock,
    ) -> std::result::Result<(), Box<LingeringLock>> {
        let mut state = self.state.lock();
        if state.is_closed || lingering.until <= Moment::now() {
            return Err(lingering.into());
        }
        state.add(name, lingering)?;
        match self.set_timer(&mut state) {
            Ok(()) => Ok(()),
            // Without a thread.
            Err(_) => state.take(name).map_or(Ok(()), |lingering| Err(lingering.into())),
        }
    }

    /// Takes the lock again, for a lease of `ttl` in this mode. `None` means that it is not lingering here.
    /// `needs_new_record`: only to give it back first.
    pub(crate) fn retake(
        &self,
        name: &LockName,
        ttl: Duration,
        mode: Mode,
        needs_new_record: bool,
    ) -> Option<Retake> {
        let mut lingering = self.state.lock().take(name)?;
        let now = Moment::now();
        if needs_new_record || lingering.mode != mode {
            let is_over = lingering.until <= now;
            let why = if is_over { NoRight::TimeIsOver } else { NoRight::OtherRecord };
            return Some(Retake::Not(lingering, why));
        }
        let (write, spare, longest) = (lingering.write, lingering.spare, lingering.longest_ttl);
        let mut right = RetakeRight { write, spare, longest, until: lingering.until };
        match right.retake(now, ttl, &self.settings) {
            Ok(fence) => {
                if mode == Mode::Exclusive
                    && let Some(block) = self.state.lock().blocks.get_mut(name)
                {
                    block.used = block.used.saturating_add(1);
                }
                lingering.spare = right.spare;
                self.retaken.fetch_add(1, Ordering::Relaxed);
                Some(Retake::Retaken(Retaken { lingering, fence, at: now }))
            }
            Err(why) => Some(Retake::Not(lingering, why)),
        }
    }

    /// Gives the lock back in the background, if it is lingering here.
    pub(crate) fn give_back(self: &Arc<Linger>, name: &LockName, why: GiveBack) {
        let mut state = self.state.lock();
        let Some(lingering) = state.take(name) else { return };
        state.back.push_back((name.clone(), lingering, why));
        // It fails only while the manager is closed, or without a thread: the TTL of the record ends then.
        if let Err(error) = self.set_timer(&mut state) {
            log::warn!("lock {name} stays until its TTL ends: {error}");
        }
    }

    /// Releases the record of a lingering lock, and notifies those who wait.
    pub(crate) fn release(
        &self,
        name: &LockName,
        lingering: &LingeringLock,
        why: GiveBack,
        by: Deadline,
    ) -> Result<()> {
        if why == GiveBack::TimeIsOver && lingering.mode != Mode::Shared {
            self.queue.leaves(name, self.settings.retry);
        }
        self.store.release(name, &lingering.record, by)?;
        self.report_released(name, (lingering.mode, lingering.notices), why);
        Ok(())
    }

    /// `released`: in which mode this process had the lock, and the random bits of the grant.
    fn report_released(&self, name: &LockName, released: (Mode, Option<u64>), why: GiveBack) {
        let (mode, grant) = released;
        match (mode, why) {
            (Mode::Exclusive | Mode::Update, GiveBack::TimeIsOver) => {
                self.queue.left_to_others(name, grant, self.settings.retry)
            }
            (Mode::Shared | Mode::Update | Mode::Permit, _) => self.queue.reader_left(name, grant),
            (Mode::Exclusive, GiveBack::Yields) => self.queue.given_back(name, grant, self.settings.retry),
            (Mode::Exclusive, GiveBack::Otherwise) => self.queue.released(name, grant, self.settings.retry),
        }
    }

    /// Releases the record, in the background if the store does not answer. Returns whether it has answered.
    pub(crate) fn release_or_free(
        self: &Arc<Linger>,
        name: &LockName,
        lingering: LingeringLock,
        why: GiveBack,
        by: Deadline,
    ) -> bool {
        match self.release(name, &lingering, why, by) {
            Ok(()) => true,
            Err(error) => {
                log::warn!("lock {name} is released in the background: {}", error.chain());
                self.free(name, lingering, why);
                false
            }
        }
    }

    /// Releases a record after a release that failed.
    pub(crate) fn free(self: &Arc<Linger>, name: &LockName, lingering: LingeringLock, why: GiveBack) {
        let LingeringLock { record, mode, longest_ttl, notices, .. } = lingering;
        let doubt = LockDoubt::MayBeHeld;
        let mut freeing = Freeing::new(Arc::clone(&self.store), name.clone(), record, longest_ttl, doubt);
        let (linger, named) = (Arc::downgrade(self), name.clone());
        let will_run = self.background.free(Freeing::FIRST_TRY, move || {
            let next = freeing.try_once();
            if next == Next::Done
                && let Some(linger) = linger.upgrade()
            {
                linger.report_released(&named, (mode, notices), why);
            }
            next
        });
        if let Some(grant) = notices.filter(|_| !will_run) {
            self.queue.notices().ended(name, grant);
        }
    }

    /// Gives back all lingering locks. From now on none is lingering.
    pub(crate) fn close(self: &Arc<Linger>, by: Deadline) {
        let (slots, back) = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.due.clear();
            (std::mem::take(&mut state.slots), std::mem::take(&mut state.back))
        };
        let slots = slots.into_iter().filter_map(|(name, slot)| Some((name, slot.lingering?)));
        let lingering: Vec<_> =
            back.into_iter().map(|(name, lingering, _)| (name, lingering)).chain(slots).collect();
        let mut left = lingering.len() as u32;
        for (name, lingering) in lingering {
            // A release that hangs must leave time for the others.
            let share = by.remaining() / left;
            left -= 1;
            self.release_or_free(&name, lingering, GiveBack::Otherwise, by.sooner(Deadline::after(share)));
        }
    }

    /// Schedules the job that looks after what is due next.
    fn set_timer(self: &Arc<Linger>, state: &mut LingerState) -> io::Result<()> {
        let Some(due) = state.next(Moment::now()) else { return Ok(()) };
        if let Some((ticket, _)) = state.timer {
            if ticket.due() <= due {
                return Ok(());
            }
            self.background.cancel(ticket);
            state.timer = None;
        }
        let (linger, number): (Weak<Linger>, u64) = (Arc::downgrade(self), state.draw());
        let job = move || {
            if let Some(linger) = linger.upgrade() {
                linger.give_back_one(number);
            }
            Next::Done
        };
        let ticket = self.background.run_at(JobLane::LingeringLocks, due, job)?;
        state.timer = Some((ticket, number));
        Ok(())
    }

    /// Runs as a background job and gives back one lock. `timer` is the number of this job.
    fn give_back_one(self: &Arc<Linger>, timer: u64) {
        let mut state = self.state.lock();
        if state.timer.is_some_and(|(_, number)| number == timer) {
            state.timer = None;
        }
        state.end_what_is_due(Moment::now());
        let one = state.take_back(|name| self.store.shard(name));
        // Another thread may give back the next one at the same time.
        if let Err(error) = self.set_timer(&mut state) {
            log::warn!("locks stay until their TTL ends: {error}");
        }
        drop(state);
        let Some((name, lingering, why)) = one else { return };
        let by = Deadline::after(GIVE_BACK.min(self.settings.timeout));
        let answers = self.release_or_free(&name, lingering, why, by);
        let (shard, mut state) = (self.store.shard(&name), self.state.lock());
        match answers {
            true => drop(state.failing.remove(&shard)),
            false => drop(state.failing.insert(shard)),
        }
    }
}

impl FenceBlock {
    fn next_size(self) -> u64 {
        if self.used >= self.size {
            (8 * self.size).min(BLOCK_MOST)
        } else if self.used <= self.size / 8 {
            (self.size / 2).max(BLOCK_LEAST)
        } else {
            self.size
        }
    }
}

impl fmt::Debug for Linger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linger").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};

    #[test]
    fn a_block_grows_when_it_is_used_up_and_shrinks_when_it_is_not_used() {
        let next = |size, used| FenceBlock { size, used }.next_size();
        assert_eq!(
            [next(64, 64), next(64, 63), next(64, 9), next(64, 8), next(64, 1)],
            [512, 64, 64, 32, 32]
        );
        assert_eq!([next(BLOCK_LEAST, 1), next(BLOCK_MOST, BLOCK_MOST)], [BLOCK_LEAST, BLOCK_MOST]);
    }

    fn name(id: usize) -> LockName {
        LockName::new(Level::Xdc, "tests", None, &id.to_string(), NamePolicy::Strict).unwrap()
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn lingering(until: Moment) -> LingeringLock {
        LingeringLock {
            record: OwnerRecord::from_bytes([1; 16]),
            mode: Mode::Exclusive,
            epoch: None,
            write: RecordWrite { sent: Moment::OVER, asked: Duration::from_secs(1) },
            spare: SpareFences::after(None, 1),
            longest_ttl: Duration::from_secs(1),
            notices: None,
            until,
            stay_ends: until,
        }
    }

    fn names(back: &VecDeque<(LockName, LingeringLock, GiveBack)>) -> Vec<LockName> {
        back.iter().map(|(name, ..)| name.clone()).collect()
    }

    #[test]
    fn each_lock_is_given_back_when_its_last_time_of_staying_is_over() {
        let mut state = LingerState::default();
        state.add(&name(1), lingering(at(100))).unwrap();
        state.add(&name(2), lingering(at(50))).unwrap();
        assert_eq!(state.next(at(1)), Some(at(50)));
        // The second one is taken again, and stays for longer than it would have. The first stays for less.
        assert!(state.take(&name(2)).is_some() && state.take(&name(2)).is_none());
        state.add(&name(2), lingering(at(200))).unwrap();
        state.take(&name(1)).unwrap();
        state.add(&name(1), lingering(at(20))).unwrap();
        assert_eq!((state.next(at(1)), state.next(at(30))), (Some(at(20)), Some(at(30))));
        state.end_what_is_due(at(60));
        assert_eq!(names(&state.back), [name(1)]);
        assert_eq!(state.next(at(60)), Some(at(60)), "jobs that were due before go first");
        assert!(
            matches!(state.take_back(|_| 0), Some((_, _, GiveBack::TimeIsOver)))
                && state.take_back(|_| 0).is_none()
        );
        // One that is held when its time is over leaves nothing.
        state.take(&name(2)).unwrap();
        state.end_what_is_due(at(200));
        assert!(state.back.is_empty() && state.slots.is_empty() && state.due.is_empty());
        assert_eq!(state.next(at(200)), None);
    }

    #[test]
    fn locks_of_a_part_of_the_store_that_fails_are_given_back_last() {
        let mut state = LingerState::default();
        let (fails, others) = (name(0), name(1));
        let shard = |name: &LockName| u8::from(*name == others);
        state.failing.insert(shard(&fails));
        for name in [&fails, &fails, &others] {
            state.back.push_back((name.clone(), lingering(at(1)), GiveBack::Otherwise));
        }
        let order: Vec<_> = std::iter::from_fn(|| state.take_back(shard)).map(|(name, ..)| name).collect();
        assert_eq!(order, [others, fails.clone(), fails]);
    }

    #[test]
    fn so_many_locks_stay_and_no_more() {
        let mut state = LingerState::default();
        (0..LINGERING_MAX).for_each(|id| state.add(&name(id), lingering(at(1))).unwrap());
        assert!(state.add(&name(LINGERING_MAX), lingering(at(1))).is_err());
        assert!(state.add(&name(1), lingering(at(1))).is_err(), "one hold of a lock stays");
        state.take(&name(1)).unwrap();
        assert!(state.add(&name(1), lingering(at(1))).is_ok(), "it has stayed before");
        // Those that are being given back count as well.
        state.end_what_is_due(at(1));
        assert!(state.add(&name(LINGERING_MAX), lingering(at(2))).is_err());
        state.take_back(|_| 0).unwrap();
        assert!(state.add(&name(LINGERING_MAX), lingering(at(2))).is_ok());
    }
}

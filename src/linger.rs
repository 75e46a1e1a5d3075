//! Locks that stay: records of released locks that this process keeps in the store for a while, so that it can take the
//! locks again without asking. See [`retake_right`](crate::retake_right) for why that is safe.
//!
//! | a kept record | until | next |
//! |---|---|---|
//! | kept | this process takes the lock again | held |
//! | kept | its time is over, another process wants it, this process must yield, or the manager is closed | given back |
//! | given back | the store answers | gone |

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::config::Settings;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::LockName;
use crate::owner::OwnerRecord;
use crate::retake_right::{RecordWrite, RetakeRight, SpareFences};
use crate::store::LockStore;
use crate::sync::{AtomicU64, HashMap, Mutex};
use crate::time::{Deadline, Moment};
use crate::wait::background::{Background, Next};
use crate::wait::freeing::{Freeing, LockDoubt};
use crate::wait::queue::Queue;

/// How many fences a grant of a lock reserves at first, and at least and at most later. A block that is used up is eight
/// times as large the next time, and one of which little was used is half as large.
const BLOCK_FIRST: u64 = 64;
const BLOCK_LEAST: u64 = 16;
const BLOCK_MOST: u64 = 65_536;
/// Most locks whose blocks are remembered. Then all are forgotten.
const BLOCKS_REMEMBERED: usize = 4096;
/// Time limit of giving back a lock in the background.
const GIVE_BACK: Duration = Duration::from_secs(2);

/// A released lock whose record stays in the store.
#[derive(Debug)]
pub(crate) struct KeptLock {
    pub(crate) record: OwnerRecord,
    pub(crate) write: RecordWrite,
    pub(crate) spare: SpareFences,
    /// Longest time for which the store may keep the record.
    pub(crate) longest_ttl: Duration,
    /// The random bits in the record, by which others register.
    pub(crate) notices: Option<u64>,
    /// How long the lock stays after the last write of its record.
    pub(crate) linger: Duration,
    /// It is the turn of other processes.
    pub(crate) yields: bool,
}

/// A lock that was taken again.
pub(crate) struct Retaken {
    pub(crate) kept: KeptLock,
    pub(crate) fence: Option<Fence>,
    pub(crate) at: Moment,
}

/// The kept locks of one manager.
pub(crate) struct Linger {
    store: Arc<dyn LockStore>,
    background: Arc<Background>,
    queue: Arc<Queue>,
    settings: Settings,
    state: Mutex<LingerState>,
    retaken: AtomicU64,
}

#[derive(Default)]
struct LingerState {
    is_closed: bool,
    slots: HashMap<LockName, KeptSlot>,
    blocks: HashMap<LockName, FenceBlock>,
}

/// The fences that the last grant of a lock has reserved. However its lease ends, the next grant knows how many were used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FenceBlock {
    size: u64,
    used: u64,
}

#[derive(Default)]
struct KeptSlot {
    kept: Option<KeptLock>,
    /// A job of the background threads looks after this slot.
    has_timer: bool,
}

impl Linger {
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        background: Arc<Background>,
        queue: Arc<Queue>,
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
                linger.give_back(name, false);
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

    /// Whether the lock is kept here.
    pub(crate) fn has(&self, name: &LockName) -> bool {
        self.state.lock().slots.get(name).is_some_and(|slot| slot.kept.is_some())
    }

    /// Keeps a lock that was just released. Hands it back if that is not possible.
    pub(crate) fn keep(
        self: &Arc<Linger>,
        name: &LockName,
        kept: KeptLock,
    ) -> std::result::Result<(), KeptLock> {
        let until = kept.until();
        let mut state = self.state.lock();
        if state.is_closed || until <= Moment::now() {
            return Err(kept);
        }
        if let Some(slot) = state.slots.get_mut(name) {
            slot.kept = Some(kept);
            return Ok(());
        }
        if self.set_timer(name, until).is_err() {
            return Err(kept);
        }
        state.slots.insert(name.clone(), KeptSlot { kept: Some(kept), has_timer: true });
        Ok(())
    }

    /// Takes the lock again, for a lease of `ttl`. The outer `None` means that it is not kept here, and the error that its
    /// record must be released first.
    pub(crate) fn retake(
        &self,
        name: &LockName,
        ttl: Duration,
    ) -> Option<std::result::Result<Retaken, KeptLock>> {
        let mut kept = self.take(name)?;
        let now = Moment::now();
        let (write, spare, longest) = (kept.write, kept.spare, kept.longest_ttl);
        let mut right = RetakeRight { write, spare, longest, until: kept.until() };
        let Some(fence) = right.retake(now, ttl, &self.settings) else { return Some(Err(kept)) };
        if let Some(block) = self.state.lock().blocks.get_mut(name) {
            block.used = block.used.saturating_add(1);
        }
        kept.spare = right.spare;
        self.retaken.fetch_add(1, Ordering::Relaxed);
        Some(Ok(Retaken { kept, fence, at: now }))
    }

    fn take(&self, name: &LockName) -> Option<KeptLock> {
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(name)?;
        let kept = slot.kept.take();
        if !slot.has_timer {
            state.slots.remove(name);
        }
        kept
    }

    /// Gives the lock back in the background, if it is kept here. `yields` says that this process leaves it to others.
    pub(crate) fn give_back(self: &Arc<Linger>, name: &LockName, yields: bool) {
        let Some(kept) = self.take(name) else { return };
        let kept = KeptLock { yields, ..kept };
        let mut open = Some((Arc::downgrade(self), name.clone(), kept));
        let job = move || {
            if let Some((linger, name, kept)) = open.take()
                && let Some(linger) = linger.upgrade()
            {
                linger.release_or_free(&name, kept, Deadline::after(GIVE_BACK.min(linger.settings.timeout)));
            }
            Next::Done
        };
        // It fails only while the manager is closed, or without a thread: the TTL of the record ends then.
        if let Err(error) = self.background.run_at(Moment::now(), job) {
            log::warn!("lock {name} stays until its TTL ends: {error}");
        }
    }

    /// Releases the record of a kept lock, and tells those who wait.
    pub(crate) fn release(&self, name: &LockName, kept: &KeptLock, by: Deadline) -> Result<()> {
        self.store.release(name, &kept.record, by)?;
        self.tell_released(name, kept.notices, kept.yields);
        Ok(())
    }

    fn tell_released(&self, name: &LockName, grant: Option<u64>, yields: bool) {
        match yields {
            true => self.queue.given_back(name, grant, self.settings.retry),
            false => self.queue.released(name, grant, self.settings.retry),
        }
    }

    /// Releases the record, in the background if the store does not answer.
    fn release_or_free(self: &Arc<Linger>, name: &LockName, kept: KeptLock, by: Deadline) {
        if let Err(error) = self.release(name, &kept, by) {
            log::warn!("lock {name} is released in the background: {}", error.chain());
            self.free(name, kept);
        }
    }

    /// Releases a record after a release that failed.
    pub(crate) fn free(self: &Arc<Linger>, name: &LockName, kept: KeptLock) {
        let KeptLock { record, longest_ttl, notices, yields, .. } = kept;
        let doubt = LockDoubt::MayBeHeld;
        let mut freeing = Freeing::new(Arc::clone(&self.store), name.clone(), record, longest_ttl, doubt);
        let (linger, name) = (Arc::downgrade(self), name.clone());
        self.background.run(Freeing::FIRST_TRY, move || {
            let next = freeing.try_once();
            if next == Next::Done
                && let Some(linger) = linger.upgrade()
            {
                linger.tell_released(&name, notices, yields);
            }
            next
        });
    }

    /// Gives back all kept locks. From now on none is kept.
    pub(crate) fn close(self: &Arc<Linger>, by: Deadline) {
        let slots = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.slots)
        };
        let kept: Vec<_> = slots.into_iter().filter_map(|(name, slot)| Some((name, slot.kept?))).collect();
        let mut left = kept.len() as u32;
        for (name, kept) in kept {
            // A release that hangs must leave time for the others.
            let share = by.remaining() / left;
            left -= 1;
            self.release_or_free(&name, kept, by.sooner(Deadline::after(share)));
        }
    }

    /// Lets the background threads look after the slot when the lock must not stay any longer.
    fn set_timer(self: &Arc<Linger>, name: &LockName, until: Moment) -> std::io::Result<()> {
        let (linger, name): (Weak<Linger>, LockName) = (Arc::downgrade(self), name.clone());
        let job = move || linger.upgrade().map_or(Next::Done, |linger| linger.look_after(&name));
        self.background.run_at(until, job).map(drop)
    }

    fn look_after(self: &Arc<Linger>, name: &LockName) -> Next {
        let now = Moment::now();
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(name) else { return Next::Done };
        if let Some(until) = slot.kept.as_ref().map(KeptLock::until).filter(|until| now < *until) {
            return Next::After(until.since(now));
        }
        let kept = state.slots.remove(name).and_then(|slot| slot.kept);
        drop(state);
        if let Some(kept) = kept {
            self.release_or_free(name, kept, Deadline::after(GIVE_BACK.min(self.settings.timeout)));
        }
        Next::Done
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

impl KeptLock {
    /// When the lock must not stay any longer.
    fn until(&self) -> Moment {
        self.write.sent.after(self.linger)
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
    use crate::lease::Lease;
    use crate::lock::Lock;
    use crate::manager::LockManager;
    use crate::name::Level;

    #[test]
    fn a_block_grows_when_it_is_used_up_and_shrinks_when_it_is_not_used() {
        let next = |size, used| FenceBlock { size, used }.next_size();
        assert_eq!(
            [next(64, 64), next(64, 63), next(64, 9), next(64, 8), next(64, 1)],
            [512, 64, 64, 32, 32]
        );
        assert_eq!([next(BLOCK_LEAST, 1), next(BLOCK_MOST, BLOCK_MOST)], [BLOCK_LEAST, BLOCK_MOST]);
    }

    fn acquire(lock: &Lock) -> Lease {
        lock.try_acquire_with_ttl(Duration::from_secs(3600)).unwrap()
    }

    fn fence(lease: &Lease) -> u64 {
        lease.fence().unwrap().0
    }

    /// Ends a lease in another way than by letting its lock stay.
    fn hand_on(manager: &LockManager, lease: Lease) {
        assert!(manager.adopt(lease.into_token().unwrap()).unwrap().release().unwrap());
    }

    /// Returns how many fences the next grant reserves.
    fn reserved(manager: &LockManager, lock: &Lock) -> u64 {
        let fences = [(); 2].map(|()| {
            let lease = acquire(lock);
            let fence = fence(&lease);
            hand_on(manager, lease);
            fence
        });
        fences[1] - fences[0]
    }

    /// Grants reserved the 65,536 fences of a lock that was used much for ever, and for every other lock of the manager.
    #[test]
    fn what_is_reserved_is_learnt_at_every_end_and_for_each_lock() {
        let builder = LockManager::builder().store_uri("memory:").client("tests");
        let manager = builder.linger(Duration::from_secs(1800)).open().unwrap();
        let lock = |id| manager.lock(id, Level::Xdc).unwrap();
        let (busy, idle) = (lock("busy"), lock("idle"));
        // Blocks of 64, 512 and 4,096.
        for _ in 0..700 {
            assert!(acquire(&busy).release().unwrap());
        }
        assert_eq!(reserved(&manager, &idle), BLOCK_FIRST);
        hand_on(&manager, acquire(&busy));
        assert_eq!(reserved(&manager, &busy), 2048);
        for _ in 0..20 {
            hand_on(&manager, acquire(&busy));
        }
        assert_eq!(reserved(&manager, &busy), BLOCK_LEAST);
    }
}

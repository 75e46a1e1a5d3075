//! Handles: numbers that C code sees as pointers.
//!
//! The library never dereferences a handle. A handle names a slot of a table, and one use of that slot. The
//! library therefore always detects a handle that was freed, belongs to another type or is invalid, and never
//! reads memory through it. No address looks like a handle: a program that dereferences one crashes at once.
//!
//! | bits | | |
//! |---|---|---|
//! | 62-63 | 01 | with these bits the number is not an address on any 64-bit machine |
//! | 55-61 | type | 1 to 127: a type that is removed leaves its number unused |
//! | 49-54 | process | number of forks before the process created the handle |
//! | 25-48 | use | counts the uses of the slot; a slot whose count is full is not used again |
//! | 0-24 | slot | slot in the table of the type |

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::failure::Failure;
use crate::runtime::sync::real::Mutex;

pub(super) const PROCESSES: u8 = 1 << 6;
const KINDS: u8 = 1 << 7;
const USES: u32 = 1 << 24;
const SLOTS: u32 = 1 << 25;
/// The upper two bits of each handle.
const MARK: usize = 0b01;

/// The parts of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) kind: u8,
    pub(super) process: u8,
    pub(super) usage: u32,
    pub(super) slot: u32,
}

impl Parts {
    #[inline]
    pub(super) fn of(bits: usize) -> Parts {
        // Without the mark it is no handle, and no type has the number 0.
        let is_handle = bits >> 62 == MARK;
        Parts {
            kind: if is_handle { (bits >> 55) as u8 & (KINDS - 1) } else { 0 },
            process: (bits >> 49) as u8 & (PROCESSES - 1),
            usage: (bits >> 25) as u32 & (USES - 1),
            slot: bits as u32 & (SLOTS - 1),
        }
    }

    pub(super) fn bits(self) -> usize {
        MARK << 62
            | (self.kind as usize) << 55
            | (self.process as usize) << 49
            | (self.usage as usize) << 25
            | self.slot as usize
    }
}

/// A slot, and one use of it.
pub(super) type SlotUse = (u32, u32);

/// The objects of one type. Their slots are reused and never freed.
#[derive(Debug)]
pub(super) struct HandleTable<T> {
    slots: Slots<Mutex<Slot<T>>>,
}

#[derive(Debug)]
struct Slot<T> {
    usage: u32,
    object: Option<Arc<T>>,
}

impl<T> HandleTable<T> {
    /// `None` if the table is full, at some 33 million handles.
    pub(super) fn insert(&self, object: T) -> Option<SlotUse> {
        let (index, slot) = self.slots.take()?;
        let mut slot = slot.lock();
        slot.object = Some(Arc::new(object));
        Some((index, slot.usage))
    }

    /// Returns the object. It lives until the result is dropped, even if its handle is freed before that.
    pub(super) fn get(&self, (index, usage): SlotUse) -> Result<Arc<T>, Missing> {
        let slot = self.slots.get(index).ok_or(Missing::Never)?.lock();
        match &slot.object {
            Some(object) if slot.usage == usage => Ok(Arc::clone(object)),
            _ if usage < slot.usage => Err(Missing::Freed),
            _ => Err(Missing::Never),
        }
    }

    /// Ends the use. The caller drops the object, without holding the slot's lock.
    pub(super) fn remove(&self, (index, usage): SlotUse) -> Result<Arc<T>, Missing> {
        let mut slot = self.slots.get(index).ok_or(Missing::Never)?.lock();
        if usage < slot.usage {
            return Err(Missing::Freed);
        }
        let object = if slot.usage == usage { slot.object.take() } else { None };
        let object = object.ok_or(Missing::Never)?;
        slot.usage += 1;
        let more = slot.usage < USES;
        drop(slot);
        self.slots.give(index, more);
        Ok(object)
    }

    pub(super) fn len(&self) -> u64 {
        self.slots.used()
    }
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self { slots: Slots::default() }
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { usage: 0, object: None }
    }
}

/// Objects for calls of a few nanoseconds. A lookup writes to no memory that threads share, so the table does
/// not know which threads still use an object. Objects are therefore never dropped, only reused. State that one
/// use left in an object must not affect the next use.
#[derive(Debug, Default)]
pub(super) struct LastingTable<T> {
    slots: Slots<Lasting<T>>,
}

#[derive(Debug)]
pub(super) struct Lasting<T> {
    usage: AtomicU32,
    object: OnceLock<T>,
}

impl<T> LastingTable<T> {
    pub(super) fn insert(&self, make: impl FnOnce() -> T) -> Option<SlotUse> {
        let (index, slot) = self.slots.take()?;
        slot.object.get_or_init(make);
        Some((index, slot.usage.load(Ordering::Acquire)))
    }

    #[inline]
    pub(super) fn get(&self, (index, usage): SlotUse) -> Result<(&T, &Lasting<T>), Missing> {
        let slot = self.slots.get(index).ok_or(Missing::Never)?;
        let object = slot.object.get().ok_or(Missing::Never)?;
        slot.check(usage).map(|()| (object, slot))
    }

    /// Ends the use. Then `clear` removes its state from the object.
    pub(super) fn remove(&self, (index, usage): SlotUse, clear: impl FnOnce(&T)) -> Result<(), Missing> {
        let (object, slot) = self.get((index, usage))?;
        slot.usage
            .compare_exchange(usage, usage + 1, Ordering::AcqRel, Ordering::Acquire)
            .map_err(|_| Missing::Freed)?;
        clear(object);
        self.slots.give(index, usage + 1 < USES);
        Ok(())
    }

    pub(super) fn len(&self) -> u64 {
        self.slots.used()
    }
}

impl<T> Lasting<T> {
    /// Fails if use `usage` of the slot has ended, or has not begun.
    #[inline]
    pub(super) fn check(&self, usage: u32) -> Result<(), Missing> {
        match self.usage.load(Ordering::Acquire) {
            current if current == usage => Ok(()),
            current if usage < current => Err(Missing::Freed),
            _ => Err(Missing::Never),
        }
    }
}

impl<T> Default for Lasting<T> {
    fn default() -> Self {
        Self { usage: AtomicU32::new(0), object: OnceLock::new() }
    }
}

/// Why a handle is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Freed,
    Never,
}

impl Missing {
    #[cold]
    pub(super) fn failure(self, kind: &str) -> Failure {
        match self {
            Missing::Freed => Failure::closed(format!("this {kind} was freed")),
            Missing::Never => Failure::invalid(format!("this is not a {kind}")),
        }
    }
}

/// Slots that never move, in pieces of doubling size. They are found without a lock.
#[derive(Debug)]
struct Slots<P> {
    pieces: [OnceLock<Box<[P]>>; PIECES],
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// Slots that were returned and can be reused.
    spare: Vec<u32>,
    next: u32,
    used: u64,
}

/// The first piece has this many slots.
const FIRST: usize = 64;
const PIECES: usize = (SLOTS.ilog2() - FIRST.ilog2()) as usize;

impl<P> Slots<P> {
    #[inline]
    fn get(&self, index: u32) -> Option<&P> {
        let (piece, offset) = piece(index)?;
        self.pieces[piece].get()?.get(offset)
    }

    fn give(&self, index: u32, usable: bool) {
        let mut free = self.free.lock();
        free.used -= 1;
        if usable {
            free.spare.push(index);
        }
    }

    fn used(&self) -> u64 {
        self.free.lock().used
    }
}

impl<P: Default> Slots<P> {
    fn take(&self) -> Option<(u32, &P)> {
        let mut free = self.free.lock();
        let index = match free.spare.pop() {
            Some(index) => index,
            None => {
                let index = free.next;
                piece(index)?;
                free.next += 1;
                index
            }
        };
        free.used += 1;
        drop(free);
        let (piece, offset) = piece(index)?;
        let slots = self.pieces[piece].get_or_init(|| (0..FIRST << piece).map(|_| P::default()).collect());
        Some((index, &slots[offset]))
    }
}

impl<P> Default for Slots<P> {
    fn default() -> Self {
        Self { pieces: [const { OnceLock::new() }; PIECES], free: Mutex::default() }
    }
}

/// Piece `k` holds the slots from `FIRST * (2^k - 1)` on.
#[inline]
fn piece(index: u32) -> Option<(usize, usize)> {
    let from_first = index as usize + FIRST;
    let piece = (from_first.ilog2() - FIRST.ilog2()) as usize;
    (piece < PIECES).then(|| (piece, from_first - (FIRST << piece)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_what_was_put_into_it_and_is_no_address() {
        for kind in [1, 30, 31, 64, KINDS - 1] {
            for (process, usage, slot) in [(0, 0, 0), (63, USES - 1, SLOTS - 1), (1, 77, 12345)] {
                let parts = Parts { kind, process, usage, slot };
                assert_eq!(Parts::of(parts.bits()), parts);
                // On all machines in use, the upper bits of an address are all clear or all set.
                assert!(!matches!(parts.bits() >> 56, 0 | 0xff), "{parts:?}");
            }
        }
    }

    #[test]
    fn a_freed_handle_is_told_for_ever() {
        let table = HandleTable::default();
        let first = table.insert(1).unwrap();
        assert_eq!(*table.get(first).unwrap(), 1);
        assert_eq!(*table.remove(first).unwrap(), 1);
        let second = table.insert(2).unwrap();
        assert_eq!(second.0, first.0, "the slot is reused");
        assert_eq!(table.get(first).unwrap_err(), Missing::Freed);
        assert_eq!(table.remove(first).unwrap_err(), Missing::Freed);
        assert_eq!(table.get((second.0, second.1 + 1)).unwrap_err(), Missing::Never);
        assert_eq!(table.remove((second.0, second.1 + 1)).unwrap_err(), Missing::Never);
        assert_eq!(table.get((SLOTS - 1, 0)).unwrap_err(), Missing::Never);
        assert_eq!((*table.get(second).unwrap(), table.len()), (2, 1));
    }

    #[test]
    fn a_place_is_given_up_before_its_count_of_uses_starts_again() {
        let table = HandleTable::default();
        let (index, _) = table.insert(1).unwrap();
        table.slots.get(index).unwrap().lock().usage = USES - 1;
        table.remove((index, USES - 1)).unwrap();
        assert_ne!(table.insert(2).unwrap().0, index);
    }

    #[test]
    fn every_place_has_its_own_memory() {
        let mut expected = (0, 0);
        for index in 0..if cfg!(miri) { 1_000 } else { 200_000 } {
            assert_eq!(piece(index), Some(expected));
            expected = match expected {
                (piece, offset) if offset + 1 == FIRST << piece => (piece + 1, 0),
                (piece, offset) => (piece, offset + 1),
            };
        }
        let (last, offset) = piece(SLOTS - FIRST as u32 - 1).unwrap();
        assert_eq!((last, offset + 1), (PIECES - 1, FIRST << last));
        assert_eq!(piece(SLOTS - FIRST as u32), None);
    }

    #[test]
    fn what_lasts_is_used_again_and_the_old_use_is_told() {
        let table = LastingTable::default();
        let first = table.insert(|| Mutex::new(1)).unwrap();
        let slot = table.get(first).unwrap().1;
        table.remove(first, |object| *object.lock() = 0).unwrap();
        assert_eq!(slot.check(first.1), Err(Missing::Freed));
        assert_eq!(table.remove(first, |_| unreachable!()), Err(Missing::Freed));
        let second = table.insert(|| unreachable!("an object can be reused")).unwrap();
        assert_eq!(*table.get(second).unwrap().0.lock(), 0);
        assert_eq!((table.get(first).err(), table.len()), (Some(Missing::Freed), 1));
    }
}

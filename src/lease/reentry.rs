//! Reentrancy: several leases of one owner share a lock that this process holds. The store knows nothing of it. The leases are
//! counted in [`SharedHold`].
//!
//! The owner is a key of the caller's. It is never the thread: threads serve many owners, and leases move between threads.
//!
//! | shares | event | then |
//! |---|---|---|
//! | 1 or more | the owner acquires the lock once more, and the lease is valid | one more |
//! | 2 or more | one of the leases is released or dropped | one less; the lock stays held |
//! | 1 | the last lease is released, dropped or handed on | 0: nobody joins any more, and the lock is released |

use std::sync::{Arc, Weak};

use crate::lease::held_lock::HeldLock;
use crate::lease::held_lock::shared_hold::SharedHold;
use crate::names::lock_name::LockName;
use crate::runtime::sync::{HashMap, Mutex};

/// The holds of one manager that their owners may enter once more.
#[derive(Default)]
pub(crate) struct ReentrantHolds {
    by_owner: Mutex<HashMap<HoldKey, Weak<HeldLock>>>,
}

/// A lock, and the key of its owner.
type HoldKey = (LockName, Arc<str>);

impl ReentrantHolds {
    /// Joins the valid hold that the owner has of this lock, if there is one. The caller has to make a lease of it.
    pub(crate) fn enter(&self, name: &LockName, owner: &Arc<str>) -> Option<Arc<HeldLock>> {
        let key = (name.clone(), Arc::clone(owner));
        let lock = self.by_owner.lock().get(&key).and_then(Weak::upgrade)?;
        let is_entered = lock.check().is_ok() && lock.shared().is_some_and(SharedHold::enter);
        is_entered.then_some(lock)
    }

    /// Remembers a hold, if it is an owner's.
    pub(crate) fn began(&self, lock: &Arc<HeldLock>) {
        if let Some(shared) = lock.shared() {
            let key = (lock.name().clone(), Arc::clone(&shared.owner));
            self.by_owner.lock().insert(key, Arc::downgrade(lock));
        }
    }

    /// Forgets a hold. One that the owner has begun after it stays.
    pub(crate) fn ended(&self, lock: &Arc<HeldLock>) {
        let Some(shared) = lock.shared() else { return };
        let key = (lock.name().clone(), Arc::clone(&shared.owner));
        let mut by_owner = self.by_owner.lock();
        if by_owner.get(&key).is_some_and(|held| std::ptr::eq(held.as_ptr(), Arc::as_ptr(lock))) {
            by_owner.remove(&key);
        }
    }
}

//! Locks that stay, seen by those who hold them.

use std::time::Duration;

use crate::lease::linger::{BLOCK_FIRST, BLOCK_LEAST};
use crate::{Lease, Level, Lock, LockManager};

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
    // Readers use no fences.
    let retaken = manager.stats().leases_retaken;
    for _ in 0..40 {
        assert!(busy.shared().try_acquire_with_ttl(Duration::from_secs(3600)).unwrap().release().unwrap());
    }
    assert_eq!(manager.stats().leases_retaken, retaken + 39);
    assert_eq!(reserved(&manager, &busy), BLOCK_LEAST);
}

//! One attempt to acquire a lock, and its answer.

use std::time::Duration;

use crate::names::fence::{Epoch, Fence};
use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerRecord;
use crate::runtime::time::{Deadline, Moment};

/// One attempt to acquire a lock.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The length of the lease.
    pub ttl: Duration,
    /// The process that asks. It is stored in the record, and `dlm show` prints it.
    pub identity: &'a Identity,
    /// The deadline of the call.
    pub by: Deadline,
}

/// A lock that was granted.
#[derive(Debug)]
pub struct Grant {
    /// The record that renews and releases the lock.
    pub owner_record: OwnerRecord,
    /// The fence of this grant, higher than the number of every earlier grant of the lock. `None` if fencing is switched off
    /// in the store's options, and if the grant is not exclusive.
    pub fence: Option<Fence>,
    /// The epoch of a grant that is not exclusive: see [`ModeStore`](super::ModeStore).
    pub epoch: Option<Epoch>,
    /// How many consecutive fences belong to this grant, beginning with `fence`: 1 unless more were reserved.
    pub fences: u64,
    /// A moment before the request that took effect was sent. The lease counts from this moment.
    pub since: Moment,
    /// Whether something on the way, such as a gateway, may have sent the request twice. The second copy can
    /// then put the record back after it was released or has expired. If `true`, the library looks for the record
    /// in the background for a while after the release, and a renewal must succeed before the lease expires.
    pub may_reappear: bool,
}

/// Answer of [`LockStore::acquire`](super::LockStore::acquire).
#[derive(Debug)]
pub enum Acquired {
    /// The caller holds the lock.
    Granted(Grant),
    /// Another owner holds the lock.
    Held(Holder),
}

/// The record of one grant, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantRecord {
    /// A record of this library. Whoever has it can release the lock. Contains a secret.
    Ours(OwnerRecord),
    /// A record without an owner token, such as one of the Java library. The bytes tell when it was written. Only the store
    /// that read them understands them.
    Stamped(Box<[u8]>),
}

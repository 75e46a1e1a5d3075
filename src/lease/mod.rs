//! One granted lock in this process: its state, its renewal, its loss, its release, and staying after it.

pub(crate) mod events;
pub(crate) mod freeing;
pub(crate) mod held_lock;
pub(crate) mod keeper;
pub(crate) mod leases;
pub(crate) mod life;
pub(crate) mod linger;
pub(crate) mod loss;
pub(crate) mod reentry;
pub(crate) mod reported;
pub(crate) mod retake_right;
pub(crate) mod token;

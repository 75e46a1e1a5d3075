//! A receiver of writes and reads that compares fences and epochs.

use std::collections::HashMap;

use parking_lot::Mutex;

/// What a lock guards: for each key it refuses writes with a lower fence than the highest it has seen, and reads with a
/// lower epoch than that. It may be shared between threads.
#[derive(Debug, Default)]
pub struct Receiver {
    highest: Mutex<HashMap<String, u64>>,
    careless: bool,
}

impl Receiver {
    /// Makes a receiver that has seen no fence.
    pub fn new() -> Receiver {
        Receiver::default()
    }

    /// Makes a receiver that accepts every write and every read.
    pub fn careless() -> Receiver {
        Receiver { careless: true, ..Receiver::default() }
    }

    /// Receives a write.
    ///
    /// # Errors
    /// The write is stale: the higher fence that was seen.
    pub fn write(&self, key: &str, fence: u64) -> Result<(), u64> {
        let mut seen = self.highest.lock();
        let highest = seen.entry(key.to_owned()).or_default();
        if fence < *highest && !self.careless {
            return Err(*highest);
        }
        *highest = fence.max(*highest);
        Ok(())
    }

    /// Receives a read. Its epoch is compared with the fences of the writes before it. It makes no later write stale, and
    /// all readers of one epoch pass.
    ///
    /// # Errors
    /// The read is stale: the higher fence that was seen in a write.
    pub fn read(&self, key: &str, epoch: u64) -> Result<(), u64> {
        let highest = self.highest.lock().get(key).copied().unwrap_or(0);
        if epoch < highest && !self.careless { Err(highest) } else { Ok(()) }
    }
}

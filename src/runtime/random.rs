//! All random numbers of the library: secrets from the operating system, and cheap numbers that spread load.

#[cfg(all(feature = "embedded", not(dlm_simulation)))]
use std::cell::RefCell;

#[cfg(all(feature = "embedded", not(dlm_simulation)))]
use crate::runtime::process::process_mark::ProcessMark;
#[cfg(dlm_simulation)]
use crate::runtime::simulation;

/// Fills `bytes` with random bytes that nobody can guess.
#[cfg(not(dlm_simulation))]
pub(crate) fn secret(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    getrandom::fill(bytes)
}

/// Fills `bytes` with random bytes of the simulation.
#[cfg(dlm_simulation)]
pub(crate) fn secret(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    bytes.fill_with(|| simulation::random() as u8);
    Ok(())
}

/// Like [`secret`], for what is compared only within one machine. The bits may have been drawn some time ago, for many
/// calls at once. So two machines that are resumed from one snapshot may draw the same, but never a process and its child.
#[cfg(all(feature = "embedded", not(dlm_simulation)))]
pub(crate) fn secret_within_machine(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    // A thread that is about to end has none.
    AHEAD.try_with(|ahead| ahead.borrow_mut().take(bytes)).unwrap_or_else(|_| secret(bytes))
}

/// Fills `bytes` with random bytes of the simulation.
#[cfg(all(feature = "embedded", dlm_simulation))]
pub(crate) fn secret_within_machine(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    secret(bytes)
}

#[cfg(all(feature = "embedded", not(dlm_simulation)))]
const AHEAD_BYTES: usize = 1024;

#[cfg(all(feature = "embedded", not(dlm_simulation)))]
thread_local! {
    static AHEAD: RefCell<Ahead> = const { RefCell::new(Ahead { process: None, bytes: [0; AHEAD_BYTES], left: 0 }) };
}

/// Random bytes that a thread has drawn ahead.
#[cfg(all(feature = "embedded", not(dlm_simulation)))]
struct Ahead {
    /// The process that has drawn them.
    process: Option<ProcessMark>,
    bytes: [u8; AHEAD_BYTES],
    /// How many are left, from the start.
    left: usize,
}

#[cfg(all(feature = "embedded", not(dlm_simulation)))]
impl Ahead {
    fn take(&mut self, bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        let process = ProcessMark::current();
        if bytes.len() > AHEAD_BYTES {
            return secret(bytes);
        }
        if self.process != Some(process) || self.left < bytes.len() {
            (self.process, self.left) = (None, 0);
            secret(&mut self.bytes)?;
            (self.process, self.left) = (Some(process), AHEAD_BYTES);
        }
        self.left -= bytes.len();
        let taken = &mut self.bytes[self.left..][..bytes.len()];
        bytes.copy_from_slice(taken);
        taken.fill(0);
        Ok(())
    }
}

/// Returns a number that nobody can guess.
pub(crate) fn secret_number() -> Result<u64, getrandom::Error> {
    let mut bytes = [0; 8];
    secret(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// Returns a number from 0 to 1, for pauses that should differ between processes.
pub(crate) fn fraction() -> f64 {
    #[cfg(not(dlm_simulation))]
    return fastrand::f64();
    #[cfg(dlm_simulation)]
    return (simulation::random() >> 11) as f64 / (1_u64 << 53) as f64;
}

#[cfg(all(test, feature = "embedded", not(dlm_simulation)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::fork::{alone, in_forked_child};

    fn drawn() -> [u8; 16] {
        let mut bytes = [0; 16];
        secret_within_machine(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn no_two_draws_are_the_same_in_a_process_and_its_children() {
        if !alone() {
            return;
        }
        let mut seen: BTreeSet<_> = (0..1000).map(|_| drawn()).collect();
        assert_eq!(seen.len(), 1000);
        // What the parent draws next is what the child would draw if it took the rest of its parent's.
        let parents = AHEAD.with(|ahead| ahead.borrow().bytes);
        let differs = in_forked_child(|| {
            let child: BTreeSet<_> = (0..200).map(|_| drawn()).collect();
            child.len() == 200
                && child.iter().all(|bytes| !parents.chunks_exact(16).any(|theirs| theirs == bytes))
        });
        assert!(differs);
        assert!((0..200).all(|_| seen.insert(drawn())));
    }
}

//! All random numbers of the library: secrets from the operating system, and cheap numbers that spread load.

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

//! All random numbers of the library: secrets from the operating system, and cheap numbers that spread load.

/// Fills `bytes` with random bytes that nobody can guess.
pub(crate) fn secret(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    getrandom::fill(bytes)
}

/// Returns a number that is not secret, for example for a unique name.
pub(crate) fn number() -> u64 {
    fastrand::u64(..)
}

/// Returns a number from 0 to 1, for pauses that should differ between processes.
pub(crate) fn fraction() -> f64 {
    fastrand::f64()
}

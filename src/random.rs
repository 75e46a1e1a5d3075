//! All randomness of the library: secrets from the operating system, and cheap numbers that spread load.

/// Fills `bytes` with random bytes that nobody can guess.
pub(crate) fn secret(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    getrandom::fill(bytes)
}

/// A number that is not secret, such as a part of a name that nobody else uses.
pub(crate) fn number() -> u64 {
    fastrand::u64(..)
}

/// A number from 0 to 1, for pauses that processes should not take in step.
pub(crate) fn fraction() -> f64 {
    fastrand::f64()
}

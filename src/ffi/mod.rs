//! The only unsafe code of the library: where another language's promises have to be taken on trust.
//! Each file argues why they hold.
#![allow(unsafe_code)]

#[cfg(feature = "capi")]
mod capi;
#[cfg(test)]
mod fork;
#[cfg(feature = "embedded")]
pub(crate) mod lmdb;
pub(crate) mod process_mark;
pub(crate) mod signals;

//! For unit tests: what needs several layers at once.

#[cfg(feature = "hbase")]
mod both;
pub(crate) mod fork;
#[cfg(feature = "embedded")]
mod forked_latches;
mod linger;
pub(crate) mod patience;

//! For unit tests: what needs several layers at once.

#[cfg(feature = "hbase")]
mod both;
mod descriptors;
pub(crate) mod fork;
#[cfg(feature = "embedded")]
mod forked_latches;
#[cfg(feature = "embedded")]
pub(crate) mod kills;
mod linger;
pub(crate) mod patience;
mod store_options;

//! For unit tests: what needs several layers at once.

pub(crate) mod fork;
pub(crate) mod patience;

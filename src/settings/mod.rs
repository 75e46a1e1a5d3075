//! Options: their keys, defaults and limits.

pub(crate) mod config;
pub(crate) mod limits;
pub(crate) mod manager_options;
pub(crate) mod options;
pub(crate) mod store_option;

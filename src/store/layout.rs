//! The option `layout`: how a store for HBase or Aerospike keeps locks.

use crate::error::{Error, Result};
use crate::settings::options::Options;
use crate::settings::store_option::StoreOption;

pub(super) const LAYOUT: StoreOption =
    StoreOption::new("layout", "java", "`java`, `both`, `own`: how locks are kept");

/// Clients of different layouts refuse each other's tables and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Layout {
    /// As PhonePe's DLM 1.0.1, whose clients may use the same store.
    #[default]
    Java,
    /// While a fleet moves between the other two: excludes clients of both.
    Both,
    /// Record and fence together. Only this library can use it.
    Own,
}

impl Layout {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Layout::Java => "java",
            Layout::Both => "both",
            Layout::Own => "own",
        }
    }

    pub(crate) fn take(options: &mut Options) -> Result<Layout> {
        match options.take("layout").as_deref() {
            None | Some("java") => Ok(Layout::Java),
            Some("both") => Ok(Layout::Both),
            Some("own") => Ok(Layout::Own),
            Some(other) => Err(Error::invalid("layout", other, "java, both or own")),
        }
    }
}

//! Policies of the client crate, for requests that the tests make without the library. The crate's own time-out of a
//! second is too short for a busy machine.
#![cfg(feature = "aerospike")]

use ::aerospike::{BasePolicy, ClientPolicy, ReadPolicy, WritePolicy};

/// A minute in milliseconds: `dlm_testkit::LONG`.
const LONG_MS: u32 = 60_000;

fn with_long_time(policy: BasePolicy) -> BasePolicy {
    BasePolicy { total_timeout: LONG_MS, socket_timeout: LONG_MS, ..policy }
}

pub(crate) fn client_policy() -> ClientPolicy {
    ClientPolicy { timeout: LONG_MS, login_timeout: LONG_MS, ..ClientPolicy::default() }
}

pub(crate) fn read_policy() -> ReadPolicy {
    ReadPolicy { base_policy: with_long_time(BasePolicy::default()) }
}

/// A write is sent once.
pub(crate) fn write_policy() -> WritePolicy {
    let policy = WritePolicy::default();
    WritePolicy { base_policy: with_long_time(policy.base_policy.clone()), ..policy }
}

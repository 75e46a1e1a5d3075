//! HBase through its Thrift1 gateway: what the gateway's answers mean.
//!
//! A gateway goes on with a request after its client has hung up, and by default retries it for
//! minutes; the README gives the settings that suit locks.

mod gateway;
mod latches;
mod pool;
mod rows;
mod wire;

pub(super) use self::gateway::Gateway;
pub(super) use self::latches::GatewayLatches;
pub(super) use self::rows::GatewayRows;

//! HBase through its Thrift1 gateway.
//!
//! A gateway goes on with a request after its client has closed the connection. By default it retries the request
//! for minutes. `docs/hbase.md` lists the gateway settings for locks.

mod gateway;
mod latches;
mod pool;
mod rows;
mod wire;

pub(super) use self::gateway::Gateway;
pub(super) use self::latches::GatewayLatches;
pub(super) use self::rows::GatewayRows;

//! Locks, latches and rows in the HBase server that all tests share: directly (`hbase_*`) and through its Thrift1
//! gateway (`gateway_*`). Tests that stop a server or slow it down are in `hbase_servers`.

mod gateway_contract;
mod gateway_losses;
mod gateway_pool;
mod hbase_both;
mod hbase_both_move;
mod hbase_covers;
mod hbase_latches;
mod hbase_losses;
mod hbase_native;
mod hbase_own;
mod hbase_own_modes;
mod hbase_rows;
mod hbase_shared_socket;
mod hbase_table;
mod hbase_table_hostile;
mod hbase_table_losses;
mod hbase_table_pauses;
#[cfg(feature = "gateway")]
mod raw;
#[cfg(all(feature = "hbase", feature = "embedded"))]
mod rows;

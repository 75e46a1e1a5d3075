//! Locks, latches and records in Aerospike. A test that kills a server starts its own.

mod aerospike_both;
mod aerospike_by_crate;
mod aerospike_contract;
mod aerospike_hostile;
mod aerospike_java;
mod aerospike_losses;
mod aerospike_modes;
mod aerospike_own;
mod aerospike_raw;
mod aerospike_records;
mod aerospike_restarts;
mod aerospike_split;

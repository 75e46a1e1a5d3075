//! Torture: several processes use the locks of a store while they are killed, stopped and cut off, and while their
//! messages are lost or late. What they have logged must break no rule of `dlm_testkit::history`.
//!
//! `docs/evidence.md` describes how to run it. A run in which too few faults had an effect is a failure.

mod aerospike;
mod bites;
mod crew;
mod embedded;
mod hbase;
mod incidents;
mod messages;
mod neighbour;
mod report;
mod restarts;
mod role;
mod round;
mod subject;
mod validity;

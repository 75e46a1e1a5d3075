//! The C interface. `include/dlm.h` is generated from these files, comments included.
//!
//! ```text
//! dlm_lock_acquire(lock, ..., &lease, &error)
//!        |
//!    answer     writes status, output and error; guard catches panics
//!        |
//!    arguments  NULL, bad UTF-8 and numbers out of range become INVALID_ARGUMENT
//!        |
//!    process    lock -> Arc<Lock>, in a table for each type; a forked child has its own tables
//!        |
//!    handles    a handle is a number in a table and is never dereferenced
//!        |
//!    the public Rust types
//! ```
//!
//! The library trusts its callers only in what it cannot check: text ends with NUL, outputs are writable,
//! arrays are as long as stated. It checks every handle.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "C names")]
#![allow(unreachable_pub, reason = "public in C")]
#![allow(clippy::missing_safety_doc, reason = "the header's opening comment has the contract")]

#[cfg(not(all(target_pointer_width = "64", any(target_os = "linux", target_os = "android"))))]
compile_error!("the feature `capi` is for Linux on 64-bit machines");

mod acquire_options;
mod answer;
mod arguments;
mod bytes;
mod call;
mod cancel;
mod completions;
mod described;
mod election;
mod error;
mod failure;
mod go_only;
mod guard;
mod handles;
mod history;
mod id_lock;
mod inspection;
mod key_lock;
mod latch;
mod lease;
mod lease_row;
mod lease_set;
mod lease_state;
mod lock;
mod lock_list;
mod log;
mod lost_reason;
mod manager;
mod mode;
mod options;
mod pending;
mod permits;
mod process;
mod row;
#[cfg_attr(not(feature = "hbase"), allow(unreachable_code, unused_variables, reason = "there is no row"))]
mod row_cells;
mod seen;
mod semaphore;
mod status;
mod structs;
mod table;
#[cfg(test)]
mod tests;
mod texts;
mod version;
mod waiting;
mod waiting_line;
#[cfg(not(feature = "hbase"))]
mod without_hbase;

//! The C interface: `include/dlm.h` is made from these files, their comments included.
//!
//! ```text
//! dlm_lock_acquire(lock, ..., &lease, &error)
//!        |
//!    answer     status, output and error; guard: no panic gets out
//!        |
//!    arguments  NULL, bad UTF-8 and wild numbers become INVALID_ARGUMENT
//!        |
//!    process    lock -> Arc<Lock>, in the table beside the type: a forked child has tables of its own
//!        |
//!    handles    a number looked up, not a pointer followed
//!        |
//!    the public Rust types
//! ```
//!
//! What has to be taken on trust is little: that text ends with NUL, that outputs can be written, that
//! arrays are as long as said. Handles are not trusted.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "names of C")]
#![allow(unreachable_pub, reason = "public in C")]
#![allow(clippy::missing_safety_doc, reason = "the contract of all functions opens the header")]

#[cfg(not(all(target_pointer_width = "64", any(target_os = "linux", target_os = "android"))))]
compile_error!("the feature `capi` is for Linux on 64-bit machines");

mod answer;
mod arguments;
mod bytes;
mod cancel;
mod error;
mod failure;
mod guard;
mod handles;
mod id_lock;
mod key_lock;
mod latch;
mod lease;
mod lease_row;
mod lock;
mod log;
mod manager;
mod names;
mod options;
mod process;
mod row;
#[cfg_attr(not(feature = "hbase"), allow(unreachable_code, unused_variables, reason = "there is no row"))]
mod row_cells;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod version;
mod waiting;
#[cfg(not(feature = "hbase"))]
mod without_hbase;

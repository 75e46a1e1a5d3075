//! Replies, messages, exceptions and records of HBase: read or refused, whatever the bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dlm::store::fuzz(bytes));

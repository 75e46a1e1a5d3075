//! Parses any bytes as replies, messages, exceptions and records of HBase. Must not panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dlm::store::fuzz_hbase(bytes));

//! Parses any bytes as replies of Aerospike. Must not panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dlm::store::fuzz_aerospike(bytes));

//! Tests of the interface for C, C++ and Go. They are one program, which builds the library only once.

#[cfg(feature = "embedded")]
mod capi_go;
mod capi_header;
mod capi_languages;
#[cfg(all(feature = "embedded", feature = "hbase", feature = "gateway", feature = "aerospike"))]
mod capi_messages;
mod capi_metrics;
#[cfg(feature = "cli")]
mod capi_own_build;
#[cfg(feature = "embedded")]
mod capi_packaging;
#[cfg(feature = "embedded")]
mod capi_programs;
#[cfg(feature = "embedded")]
mod capi_python;
#[cfg(feature = "embedded")]
mod capi_surroundings;
#[cfg(all(feature = "embedded", feature = "hbase"))]
mod closer;

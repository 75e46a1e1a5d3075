//! The interface for C, C++ and Go: one program, which builds the library that the others need once.

#[cfg(feature = "embedded")]
mod capi_go;
mod capi_header;
#[cfg(feature = "cli")]
mod capi_own_build;
#[cfg(feature = "embedded")]
mod capi_packaging;
#[cfg(feature = "embedded")]
mod capi_programs;
#[cfg(all(feature = "embedded", feature = "hbase"))]
mod closer;

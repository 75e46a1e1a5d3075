//! A packed expression of the servers' language, which other files put together.

/// A packed expression. The name of the function that makes one says what it means: see `expression/build.rs`.
///
/// A bin that is missing, or of another type, makes an expression unknown: as a condition it does not hold, and a bin that
/// it should be written to is not written, which fails the request.
#[derive(Debug, Clone)]
pub(crate) struct Expr(pub(super) Vec<u8>);

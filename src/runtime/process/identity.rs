//! How this process identifies itself in its records.

use crate::error::{Error, Result};
use crate::names::holder::{Identity, PART_BYTES_MAX};
use crate::runtime::time;

impl Identity {
    /// Returns the identity of this process: host name, process id, wall-clock time of this call and `purpose`.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) when `purpose` is longer than 255 bytes or contains
    /// control characters.
    pub fn this_process(purpose: &str) -> Result<Identity> {
        if purpose.len() > PART_BYTES_MAX || purpose.chars().any(char::is_control) {
            return Err(Error::invalid("purpose", purpose, "at most 255 bytes without control characters"));
        }
        let mut host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        while host.len() > PART_BYTES_MAX {
            host.pop();
        }
        let (pid, start_ms) = (std::process::id(), time::wall_ms());
        Ok(Identity { host, pid, start_ms, purpose: purpose.to_owned(), notices: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_described_and_bad_purposes_are_refused() {
        let identity = Identity::this_process("tests").unwrap();
        assert_eq!((identity.pid, identity.purpose.as_str()), (std::process::id(), "tests"));
        assert!(!identity.host.is_empty());
        assert!(Identity::this_process(&"p".repeat(256)).is_err());
        assert!(Identity::this_process("a\nb").is_err());
    }
}

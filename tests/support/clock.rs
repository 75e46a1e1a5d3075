//! The wall clock of a server, to be set while it runs: see `tests/c/server_clock.c`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::skip::skipped;

/// Shows the true time until it is set.
pub(crate) struct Clock {
    directory: tempfile::TempDir,
}

impl Clock {
    /// `None`, after saying so, on a machine without a C compiler.
    #[track_caller]
    pub(crate) fn new_or_skip() -> Option<Clock> {
        let clock = Clock { directory: tempfile::tempdir().unwrap() };
        fs::write(clock.offset(), 0i64.to_ne_bytes()).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/server_clock.c");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(clock.library()).arg(source);
        match compile.status() {
            Ok(status) => assert!(status.success(), "{compile:?}: {status}"),
            Err(error) => {
                skipped("gcc", format!("there is no C compiler: {error}"));
                return None;
            }
        }
        Some(clock)
    }

    /// Sets it that far ahead of the true time.
    pub(crate) fn set_ahead(&self, by: Duration) {
        let offset = i64::try_from(by.as_millis()).unwrap();
        // In place, as it is mapped into the server; such a small write is seen whole.
        let file = fs::File::options().write(true).open(self.offset()).unwrap();
        file.write_all_at(&offset.to_ne_bytes(), 0).unwrap();
    }

    /// What goes by this clock has the library in LD_PRELOAD, and this in its environment.
    pub(crate) fn environment(&self) -> (&'static str, OsString) {
        ("DLM_TEST_CLOCK", self.offset().into())
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.directory.path().join("clock.so")
    }

    fn offset(&self) -> PathBuf {
        self.directory.path().join("offset")
    }
}

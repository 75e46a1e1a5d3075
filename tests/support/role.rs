//! This test program, started again as a process with a role. The program has an ignored test named
//! `role`, which does what [`asked`] says.

#![allow(dead_code, reason = "no test program uses all of it")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What it is to be, in its environment.
pub(crate) const ROLE: &str = "DLM_TEST_ROLE";
/// The directory that the test and its processes share.
pub(crate) const DIR: &str = "DLM_TEST_STORE";

/// The role and the directory, in a process of a test.
pub(crate) fn asked() -> Option<(String, PathBuf)> {
    Some((env::var(ROLE).ok()?, PathBuf::from(env::var_os(DIR)?)))
}

/// A process in `dir`, which writes to nowhere.
pub(crate) fn process(role: &str, dir: &Path) -> Command {
    process_of(&env::current_exe().unwrap(), role, dir)
}

/// The same, of a copy of this program.
pub(crate) fn process_of(binary: &Path, role: &str, dir: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .args(["--ignored", "--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(DIR, dir);
    command.current_dir(dir).stdout(Stdio::null());
    command
}

/// A process that ends with its test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails when it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! The real HBase that integration tests run against: `tests/hbase/server`, started when the first
//! test needs it and shared by every test binary. It stops by itself when it is no longer used.
//!
//! ```ignore
//! mod support {
//!     pub(crate) mod hbase;
//!     pub(crate) mod skip;
//! }
//! use support::hbase;
//!
//! #[test]
//! fn two_clients_never_hold_one_lock() {
//!     let Some(hbase) = hbase::hbase_or_skip() else { return };
//!     let table = hbase::fresh_table("contract");
//!     let uri = format!("hbase+thrift://{}/{table}", hbase.thrift);
//! }
//! ```

#![allow(dead_code)] // no test binary uses all of it

use std::env;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::skip::skipped;

/// How the script says that this machine has no JDK or no Maven, or cannot reach a Maven registry.
const STATUS_UNAVAILABLE: i32 = 69;

/// A running server and where it listens.
#[derive(Debug)]
pub struct Hbase {
    /// The gateway for the older interface, which has `checkAndPut` with attributes.
    pub thrift: SocketAddr,
    /// The master, for clients that speak HBase's own protocol.
    pub master: SocketAddr,
    pub zookeeper: SocketAddr,
    dir: PathBuf,
    private: bool,
}

/// The server that all tests share: create tables of your own (see [`fresh_table`]), and do not stop
/// it or its gateways. Blocks until it serves, which takes up to two minutes when it has to be
/// started, and longer if HBase must be downloaded. `None`, after saying so, on a machine without a JDK
/// or Maven, unless [`skipped`] refuses to leave the test out.
///
/// # Panics
///
/// When a server should have started and did not, with the script's own words.
pub fn hbase_or_skip() -> Option<&'static Hbase> {
    match shared() {
        Ok(hbase) => Some(hbase),
        Err(Unavailable { reason, tools: true }) => {
            skipped("hbase", reason);
            None
        }
        Err(reason) => panic!("these tests need HBase: {reason}"),
    }
}

/// As [`hbase_or_skip`], for tests that are never left out.
pub fn hbase() -> &'static Hbase {
    match shared() {
        Ok(hbase) => hbase,
        Err(reason) => panic!("these tests need HBase: {reason}"),
    }
}

/// A table name no other test has used, in this run or another. The table is not created.
pub fn fresh_table(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}_{:x}_{:x}_{count}", since_epoch.as_millis(), process::id())
}

impl Hbase {
    /// A server for one test alone, which may stop and kill its parts; dropping it stops it and
    /// drops its data. `name` is part of a folder's name and must be this test's own. Such a server
    /// costs about ten seconds and 700 MB. Skips and panics as [`hbase_or_skip`] does.
    pub fn private(name: &str) -> Option<Hbase> {
        let shared = hbase_or_skip()?;
        let mut dir = shared.dir.clone().into_os_string();
        dir.push(format!("-{name}"));
        match start(PathBuf::from(dir), true) {
            Ok(hbase) => Some(hbase),
            Err(reason) => panic!("a private HBase: {reason}"),
        }
    }

    /// Kills ZooKeeper, master and RegionServer at once, as a crash would.
    pub fn kill(&self) {
        self.control("kill");
    }

    /// Starts what does not run and waits until it serves. The data of a killed server is kept, and
    /// every address stays the same.
    pub fn start(&self) {
        self.control("start");
    }

    pub fn stop_gateways(&self) {
        self.control("gateway-stop");
    }

    pub fn start_gateways(&self) {
        self.control("gateway-start");
    }

    fn control(&self, command: &str) {
        assert!(self.private, "`{command}` on the server that other tests are using");
        if let Err(reason) = script(command, &self.dir) {
            panic!("{command}: {reason}");
        }
    }
}

impl Drop for Hbase {
    fn drop(&mut self) {
        if self.private {
            // Not a panic: the test may be failing already, and the server ends when idle.
            let _ = script("stop", &self.dir);
        }
    }
}

#[derive(Debug)]
struct Unavailable {
    reason: String,
    /// Whether it is only that this machine lacks the tools.
    tools: bool,
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

fn shared() -> Result<&'static Hbase, &'static Unavailable> {
    static SHARED: OnceLock<Result<Hbase, Unavailable>> = OnceLock::new();
    SHARED
        .get_or_init(|| {
            let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/hbase-fixture");
            let dir = env::var_os("DLM_TEST_DIR").map_or_else(default, PathBuf::from);
            let hbase = start(dir, false)?;
            stay_in_use(&hbase.dir);
            Ok(hbase)
        })
        .as_ref()
}

fn start(dir: PathBuf, private: bool) -> Result<Hbase, Unavailable> {
    let output = script("start", &dir)?;
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let address = |name: &str| {
        let value = listing.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|value| value.parse().ok()).ok_or_else(|| Unavailable {
            reason: format!("no {name} in what the script printed:\n{listing}"),
            tools: false,
        })
    };
    Ok(Hbase {
        thrift: address("DLM_TEST_HBASE_THRIFT")?,
        master: address("DLM_TEST_HBASE_MASTER")?,
        zookeeper: address("DLM_TEST_HBASE_ZOOKEEPER")?,
        dir,
        private,
    })
}

fn script(command: &str, dir: &Path) -> Result<Output, Unavailable> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hbase/server");
    let output = Command::new(&path).arg(command).env("DLM_TEST_DIR", dir).output();
    let output = output.map_err(|error| Unavailable {
        reason: format!("cannot run {}: {error}", path.display()),
        tools: false,
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let tools = output.status.code() == Some(STATUS_UNAVAILABLE);
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Unavailable { reason: format!("{}\n{}", output.status, said.trim_end()), tools })
}

/// Tells the supervisor once a minute that the server is in use, until this process ends: a test
/// binary may run for longer than the supervisor waits.
fn stay_in_use(dir: &Path) {
    let last_use = dir.join("last-use");
    let touch = move || loop {
        thread::sleep(Duration::from_secs(60));
        let touched = File::options().append(true).open(&last_use);
        // Gone: the server was stopped, and is not to be brought back to life by a timestamp.
        let Ok(file) = touched else { return };
        let _ = file.set_modified(SystemTime::now());
    };
    thread::Builder::new().name("dlm-test-last-use".into()).spawn(touch).expect("spawn a thread");
}

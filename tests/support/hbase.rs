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
use std::ffi::OsString;
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
    /// That one and those that stand by, as a store's URI has them.
    pub masters: String,
    pub zookeeper: SocketAddr,
    dir: PathBuf,
    private: bool,
    kind: Kind,
}

/// What a private server is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As the shared one: everything in one JVM, with gateways.
    Single,
    /// As `Single`, and all speak TLS. Needs HBase 2.6 and openssl.
    Tls,
    /// So many RegionServers and masters, of which one is active and the others stand by; each of them
    /// and ZooKeeper in a JVM of its own. Without gateways.
    Cluster { servers: u8, masters: u8 },
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
    available(shared())
}

/// As [`hbase_or_skip`], for tests that are never left out.
pub fn hbase() -> &'static Hbase {
    match shared() {
        Ok(hbase) => hbase,
        Err(reason) => panic!("these tests need HBase: {reason}"),
    }
}

/// What was started, unless it is only that this machine lacks the tools.
fn available<'a>(started: Result<&'a Hbase, &'a Unavailable>) -> Option<&'a Hbase> {
    match started {
        Ok(hbase) => Some(hbase),
        Err(Unavailable { reason, tools: true }) => {
            skipped("hbase", reason);
            None
        }
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
        Hbase::private_of(name, Kind::Single)
    }

    /// As [`private`](Hbase::private), of another kind. Where there is no shared server yet, this does
    /// not start one.
    pub fn private_of(name: &str, kind: Kind) -> Option<Hbase> {
        Hbase::private_in(name, kind, &[])
    }

    /// As [`private_of`](Hbase::private_of), with more in the environment of the script that starts it.
    pub fn private_in(name: &str, kind: Kind, environment: &[(&str, OsString)]) -> Option<Hbase> {
        let mut dir = shared_dir().into_os_string();
        dir.push(format!("-{name}"));
        let started = start(PathBuf::from(dir), true, kind, environment);
        let hbase = available(started.as_ref()).is_some();
        hbase.then(|| started.expect("it is available"))
    }

    /// HBase's class path, for programs on its Java client.
    pub fn classpath(&self) -> String {
        match script(&["classpath"], &self.dir, self.kind) {
            Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            Err(reason) => panic!("classpath: {reason}"),
        }
    }

    /// The folder with the PEM files of a [`Kind::Tls`]: `ca.pem`, `client.pem`, `client.key`, and
    /// `stranger.pem` and `stranger.key`, which nobody trusts.
    pub fn tls_dir(&self) -> PathBuf {
        self.dir.join("tls")
    }

    /// Kills ZooKeeper, master and RegionServer at once, as a crash would.
    pub fn kill(&self) {
        self.control(&["kill"]);
    }

    /// Kills one RegionServer of a cluster, counted from one.
    pub fn kill_region_server(&self, number: u8) {
        self.control(&["kill-region-server", &number.to_string()]);
    }

    /// Kills one master of a cluster, counted from one. The first is the active one until it is killed.
    pub fn kill_master(&self, number: u8) {
        self.control(&["kill-master", &number.to_string()]);
    }

    /// Starts what does not run and waits until it serves. The data of a killed server is kept, and
    /// every address stays the same.
    pub fn start(&self) {
        self.control(&["start"]);
    }

    pub fn stop_gateways(&self) {
        self.control(&["gateway-stop"]);
    }

    pub fn start_gateways(&self) {
        self.control(&["gateway-start"]);
    }

    fn control(&self, command: &[&str]) {
        assert!(self.private, "{command:?} on the server that other tests are using");
        if let Err(reason) = script(command, &self.dir, self.kind) {
            panic!("{command:?}: {reason}");
        }
    }
}

impl Drop for Hbase {
    fn drop(&mut self) {
        if self.private {
            // Not a panic: the test may be failing already, and the server ends when idle.
            let _ = script(&["stop"], &self.dir, self.kind);
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
            let hbase = start(shared_dir(), false, Kind::Single, &[])?;
            stay_in_use(&hbase.dir);
            Ok(hbase)
        })
        .as_ref()
}

fn shared_dir() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/hbase-fixture");
    env::var_os("DLM_TEST_DIR").map_or_else(default, PathBuf::from)
}

fn start(
    dir: PathBuf,
    private: bool,
    kind: Kind,
    environment: &[(&str, OsString)],
) -> Result<Hbase, Unavailable> {
    let output = script_in(&["start"], &dir, kind, environment)?;
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |name: &str| {
        let value = listing.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.ok_or_else(|| Unavailable {
            reason: format!("no {name} in what the script printed:\n{listing}"),
            tools: false,
        })
    };
    let address = |name: &str| {
        value(name)?.parse().map_err(|error| Unavailable { reason: format!("{name}: {error}"), tools: false })
    };
    Ok(Hbase {
        thrift: address("DLM_TEST_HBASE_THRIFT")?,
        master: address("DLM_TEST_HBASE_MASTER")?,
        masters: value("DLM_TEST_HBASE_MASTERS")?.to_owned(),
        zookeeper: address("DLM_TEST_HBASE_ZOOKEEPER")?,
        dir,
        private,
        kind,
    })
}

fn script(command: &[&str], dir: &Path, kind: Kind) -> Result<Output, Unavailable> {
    script_in(command, dir, kind, &[])
}

fn script_in(
    command: &[&str],
    dir: &Path,
    kind: Kind,
    environment: &[(&str, OsString)],
) -> Result<Output, Unavailable> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hbase/server");
    let (servers, masters, tls) = match kind {
        Kind::Single => (0, 1, "0"),
        Kind::Tls => (0, 1, "1"),
        Kind::Cluster { servers, masters } => (servers, masters, "0"),
    };
    let output = Command::new(&path)
        .args(command)
        .env("DLM_TEST_DIR", dir)
        .env("DLM_TEST_SERVERS", servers.to_string())
        .env("DLM_TEST_MASTERS", masters.to_string())
        .env("DLM_TEST_TLS", tls)
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .output();
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

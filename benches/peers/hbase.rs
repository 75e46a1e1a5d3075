//! An HBase for a benchmark, and HBase's Java client for comparison.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dlm_fixtures::java::{Java, class_path};

/// A server for this run only. It compiles its code as in production.
pub(crate) struct Server {
    pub(crate) master: String,
    pub(crate) thrift: String,
    zookeeper: String,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::try_start().unwrap_or_else(|why| panic!("{why}"))
    }

    /// The same. Returns an error if HBase does not start, for example because there is no JDK.
    pub(crate) fn try_start() -> Result<Server, String> {
        let output = Server::command("start").stderr(Stdio::inherit()).output().expect("bash runs");
        if !output.status.success() {
            return Err("no HBase: see above".into());
        }
        let lines = String::from_utf8(output.stdout).unwrap();
        let value = |key: &str| {
            let line = lines.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_else(|| panic!("{key} in {lines}")).to_owned()
        };
        Ok(Server {
            master: value("DLM_TEST_HBASE_MASTER"),
            thrift: value("DLM_TEST_HBASE_THRIFT"),
            zookeeper: value("DLM_TEST_HBASE_ZOOKEEPER"),
        })
    }

    /// Starts HBase's Java client in its own process: `tests/fixtures/hbase/Peer.java`.
    pub(crate) fn java(&self) -> Java {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hbase");
        let class_path = class_path(&root.join("pom.xml"), "hbase-peer").expect("Maven and a registry");
        let mut command = Command::new("java");
        command.args(["-cp", &class_path]).arg(root.join("Peer.java"));
        command.arg(self.zookeeper.rsplit(':').next().unwrap());
        Java::start(&mut command).expect("the server runs on a JDK, so there is one")
    }

    fn command(what: &str) -> Command {
        let mut command =
            Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hbase/server"));
        command
            .arg(what)
            .env("DLM_TEST_DIR", PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hbase-bench"))
            .env("DLM_TEST_JAVA", "")
            // Four tables of 257 regions, each with a memstore chunk of 2 MB, take two gigabytes.
            .env("DLM_TEST_HEAP", "5g");
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Server::command("stop").status();
    }
}

//! HBase's own Java client in a process of its own, `tests/hbase/Peer.java`: what a Java service does to
//! the tables, and what an administrator does to the regions.

#![allow(dead_code, reason = "no test program uses all of it")]

use std::fmt::Write as _;
use std::process::Command;

use super::hbase::Hbase;
use super::java::Java;

/// One at a time: every request waits for its answer.
pub(crate) struct Peer(Java);

impl Peer {
    /// Compiles it and connects, which takes some seconds.
    pub(crate) fn start(hbase: &Hbase) -> Peer {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hbase/Peer.java");
        let mut java = Command::new("java");
        java.args(["-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", &hbase.classpath(), source])
            .arg(hbase.zookeeper.port().to_string());
        Peer(Java::start(&mut java).expect("the server runs on a JDK, so there is one"))
    }

    /// Its answer to a request, which may be "error ...".
    pub(crate) fn try_ask(&mut self, request: &str) -> String {
        self.0.ask(request)
    }

    /// Its answer to a request that must succeed.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        let answer = self.try_ask(request);
        assert!(!answer.starts_with("error"), "{request}: {answer}");
        answer
    }

    /// Takes a lock as the Java library does.
    pub(crate) fn acquires(&mut self, table: &str, row: &[u8], ttl_ms: u64) -> bool {
        match self.ask(&format!("acquire {table} {} {ttl_ms}", hex(row))).as_str() {
            "acquired" => true,
            "unavailable" => false,
            other => panic!("{other}"),
        }
    }

    /// Frees a lock as the Java library does, whoever's it is.
    pub(crate) fn releases(&mut self, table: &str, row: &[u8]) {
        assert_eq!(self.ask(&format!("release {table} {}", hex(row))), "ok");
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

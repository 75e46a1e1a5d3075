//! The vendor's Java client in a process of its own, `tests/aerospike/Peer.java`: what a Java service does
//! to locks and latches.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::aerospike::Place;

/// One at a time: every request waits for its answer.
pub(crate) struct Java {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Java {
    /// Fetches the client with Maven the first time, compiles the peer and connects. `Err`: why it cannot.
    pub(crate) fn start(place: &Place) -> Result<Java, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aerospike");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("aerospike-peer");
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let list = folder.join("classpath");
        if !list.exists() {
            let output = format!("-Dmdep.outputFile={}", list.display());
            let fetched = Command::new("mvn")
                .args(["-q", "-B", "-f"])
                .arg(root.join("pom.xml"))
                .args(["dependency:build-classpath", &output])
                .stdout(Stdio::null())
                .status();
            if !fetched.as_ref().is_ok_and(|status| status.success()) {
                return Err(format!("mvn: {fetched:?}"));
            }
        }
        let class_path = fs::read_to_string(&list).map_err(|error| error.to_string())?;
        let address = place.address;
        let mut child = Command::new("java")
            .args(["-cp", class_path.trim()])
            .arg(root.join("Peer.java"))
            .args([&address.ip().to_string(), &address.port().to_string(), &place.namespace])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("java: {error}"))?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut java = Java { child, requests, answers };
        match java.line().as_str() {
            "ready" => Ok(java),
            other => Err(format!("java said {other:?}")),
        }
    }

    /// Its answer, which may be "error ...".
    pub(crate) fn ask(&mut self, request: &str) -> String {
        let requests = self.requests.as_mut().expect("open until dropped");
        writeln!(requests, "{request}").expect("the Java client listens");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the Java client answers");
        line.trim().to_owned()
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        // The end of its input ends it; a test that failed does not wait for that.
        self.requests = None;
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

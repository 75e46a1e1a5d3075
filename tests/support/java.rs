//! A Java program in a process of its own that is asked by lines: it says "ready", and then answers each
//! line on its standard input with one on its standard output.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// One at a time: every request waits for its answer. Dropping it ends the process.
pub(crate) struct Java {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Java {
    /// Runs `command`, such as `java -cp ... Peer.java`, until it is ready, which takes some seconds. `Err`:
    /// why it is not.
    pub(crate) fn start(command: &mut Command) -> Result<Java, String> {
        let mut child = command
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
        writeln!(requests, "{request}").expect("the Java program listens");
        let answer = self.line();
        assert!(!answer.is_empty(), "{request}: the Java program has ended");
        answer
    }

    /// Empty when it has ended.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the Java program answers in text");
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

/// The class path of what `pom` depends on. Maven fetches that the first time; `folder`, of this name below
/// the target directory, remembers it. `Err`: why it cannot be had.
#[allow(dead_code, reason = "the HBase of the tests knows its own")]
pub(crate) fn class_path(pom: &Path, folder: &str) -> Result<String, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let list = folder.join("classpath");
    if !list.exists() {
        let output = format!("-Dmdep.outputFile={}", list.display());
        let fetched = Command::new("mvn")
            .args(["-q", "-B", "-f"])
            .arg(pom)
            .args(["dependency:build-classpath", &output])
            .stdout(Stdio::null())
            .status();
        if !fetched.as_ref().is_ok_and(|status| status.success()) {
            return Err(format!("mvn: {fetched:?}"));
        }
    }
    fs::read_to_string(&list).map(|list| list.trim().to_owned()).map_err(|error| error.to_string())
}

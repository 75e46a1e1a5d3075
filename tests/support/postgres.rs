//! A PostgreSQL server of this test program: a cluster in a directory of its own, reached by a socket there, and
//! sessions of `psql` with it.

use std::cell::Cell;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use super::patience::{LONG, until};
use super::skip::skipped;

/// The server refuses to run as root. Debian's package makes the first of these users.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// What `psql` is told to print when it has done what was sent.
const DONE: &str = "dlm-test-done";

struct Server {
    directory: PathBuf,
    programs: PathBuf,
    /// A shell that ends the server when its input ends: with this process.
    _keeper: Child,
}

/// Tables of one test, which no other sees.
pub(crate) struct Schema {
    name: String,
    server: &'static Server,
}

/// A schema of the test's own; `None`, after saying so, where there is no server.
#[track_caller]
pub(crate) fn schema_or_skip() -> Option<Schema> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let Some(server) = SHARED.get_or_init(Server::start) else {
        skipped(
            "postgres",
            "there is no initdb in /usr/lib/postgresql or on the PATH; apt-get install postgresql",
        );
        return None;
    };
    let schema = Schema { name: format!("test_{}", MADE.fetch_add(1, Ordering::SeqCst)), server };
    assert_eq!(schema.session().run(&format!("CREATE SCHEMA {};", schema.name)), ["CREATE SCHEMA"]);
    Some(schema)
}

impl Server {
    fn start() -> Option<Server> {
        let programs = programs()?;
        let directory = tempfile::tempdir().unwrap().keep();
        let is_root = rustix::process::geteuid().is_root();
        let owns = |user: &&str| {
            let chown = Command::new("chown").arg(user).arg(&directory).stderr(Stdio::null()).status();
            chown.unwrap().success()
        };
        // No test crashes the server, so its data need not be on the disk.
        let script = r#"cd "$1" && "$2/initdb" --no-sync -A trust -U postgres -E UTF8 --locale=C data >log 2>&1 &&
            "$2/postgres" -D data -k "$1" -c listen_addresses= -c fsync=off >>log 2>&1 </dev/null & pid=$!
            cat >/dev/null; kill -QUIT $pid; wait $pid; rm -rf "$1""#;
        let mut keeper = if is_root {
            let mut command = Command::new("runuser");
            command.args(["-u", USERS.into_iter().find(owns).expect("a user"), "--", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        keeper.args(["-c", script, "postgres"]).arg(&directory).arg(&programs).stdin(Stdio::piped());
        let keeper = keeper.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a shell");
        let server = Server { directory, programs, _keeper: keeper };
        until("the server answers", || {
            let log = fs::read_to_string(server.directory.join("log")).unwrap_or_default();
            assert!(!log.contains("FATAL") || log.contains("starting up"), "it does not start: {log}");
            let mut ask = server.psql();
            ask.args(["-c", "SELECT 1"]).stdout(Stdio::null()).stderr(Stdio::null());
            ask.status().expect("psql").success()
        });
        Some(server)
    }

    /// Line by line, with errors among the results, and of them the SQLSTATE only.
    fn psql(&self) -> Command {
        let mut command = Command::new("stdbuf");
        command
            .arg("-oL")
            .arg(self.programs.join("psql"))
            .args(["-X", "-A", "-t", "-h"])
            .arg(&self.directory);
        command.args(["-U", "postgres", "-d", "postgres", "-v", "VERBOSITY=sqlstate"]);
        command
    }
}

/// Where the server's programs are: Debian has them in a directory of the version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let on_path = env::split_paths(&env::var_os("PATH")?).collect::<Vec<_>>();
    debian
        .chain(on_path)
        .find(|folder| has(folder, "initdb") && has(folder, "postgres") && has(folder, "psql"))
}

fn has(folder: &Path, program: &str) -> bool {
    folder.join(program).is_file()
}

impl Schema {
    /// At READ COMMITTED, the default.
    pub(crate) fn session(&self) -> Session {
        self.session_at("read committed")
    }

    pub(crate) fn session_at(&self, isolation: &str) -> Session {
        let isolation = isolation.replace(' ', "\\ ");
        let options = format!("-c search_path={} -c default_transaction_isolation={isolation}", self.name);
        let psql = self.server.psql();
        // Errors go where results go, in their order.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$0" "$@" 2>&1"#]).arg(psql.get_program()).args(psql.get_args());
        command.env("PGOPTIONS", options).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("psql");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (sender, answers) = channel();
        // Ends with psql, or when nobody listens any more.
        thread::Builder::new()
            .name("dlm-test-psql".into())
            .spawn(move || lines.into_iter().all(|line| sender.send(line).is_ok()))
            .unwrap();
        let mut session =
            Session { input: child.stdin.take().unwrap(), child, answers, backend: Cell::default() };
        let backend = session.run("SELECT pg_backend_pid();");
        session.backend.set(backend[0].parse().unwrap());
        session
    }

    /// Returns when the server has made the session wait for another transaction.
    pub(crate) fn until_waiting(&self, session: &Session) {
        let backend = session.backend.get();
        let question = format!("SELECT wait_event_type FROM pg_stat_activity WHERE pid = {backend};");
        let mut asking = self.session();
        until("it waits for another transaction", || asking.run(&question) == ["Lock"]);
    }
}

/// One connection. What it answers are the lines that `psql` prints: rows, command tags, `ERROR:  SQLSTATE`.
pub(crate) struct Session {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    backend: Cell<u32>,
}

impl Session {
    /// What is sent gets an answer, also where the server waits for another transaction first.
    pub(crate) fn send(&mut self, sql: &str) {
        writeln!(self.input, "{sql}\n\\echo {DONE}").expect("psql has ended");
    }

    /// The answer to what was sent.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.answers.recv_timeout(LONG) {
                Ok(line) if line == DONE => return lines,
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("no answer, after {lines:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("psql has ended, after {lines:?}"),
            }
        }
    }

    #[track_caller]
    pub(crate) fn run(&mut self, sql: &str) -> Vec<String> {
        self.send(sql);
        self.answer()
    }

    /// Gives the names of a statement their values.
    pub(crate) fn set(&mut self, values: &[(&str, &str)]) -> &mut Session {
        for (name, value) in values {
            writeln!(self.input, "\\set {name} '{}'", value.replace('\'', "''")).expect("psql has ended");
        }
        self
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Fails when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Breaks the lines of the list one by one, and sees whether their tests fail.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::Instant;

use crate::command::{self, Program};
use crate::list::{Break, Fault};
use crate::tree::Tree;

/// Limit of one run of cargo, in seconds. It includes the build.
const LIMIT_S: u32 = 1800;
/// Exit status of `timeout` when the limit was reached.
const TOO_LONG: i32 = 124;

/// In the manifest: the libraries for C, which only the tests of the C interface need. Linking them takes longer than
/// building the rest.
const LIBRARIES: [&str; 2] = [r#"crate-type = ["lib", "cdylib", "staticlib"]"#, r#"crate-type = ["lib"]"#];

/// Crates that are built again after each change. Without debug information this takes less time.
const BUILT_AGAIN: [&str; 3] = ["dlm", "dlm-testkit", "dlm-fixtures"];

/// Fewer broken lines are run one after another: a second copy of the source tree would have to be built first.
const FEW: usize = 20;
/// Maximum number of copies of the source tree. Each needs four gigabytes on the disk.
const WORKERS_MAX: usize = 4;

/// The broken lines of each program: the number of the fault, the line, and the name of the test.
type Programs<'a> = BTreeMap<Program, Vec<(usize, &'a Break, String)>>;

/// What a run of one test showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    /// The machine cannot run the test.
    Skipped(String),
    NoSuchTest,
    DidNotBuild,
    TookTooLong,
}

/// Reads the output of `cargo test`.
pub fn judge(status: Option<i32>, stdout: &str, stderr: &str) -> Verdict {
    if status == Some(TOO_LONG) {
        return Verdict::TookTooLong;
    }
    let began = stdout.lines().filter_map(|line| line.strip_prefix("running "));
    let counts: Vec<u32> = began.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect();
    if counts.is_empty() {
        return Verdict::DidNotBuild;
    }
    if counts.iter().sum::<u32>() == 0 {
        return Verdict::NoSuchTest;
    }
    if status != Some(0) {
        // The program may also have been ended by a signal.
        return Verdict::Failed;
    }
    let left_out = ["SKIPPED, it did not run", "is left to the long run"];
    match stderr.lines().find(|line| left_out.iter().any(|words| line.contains(words))) {
        Some(line) => Verdict::Skipped(line.trim_start_matches(['*', ' ']).to_owned()),
        None => Verdict::Passed,
    }
}

/// What became of one broken line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Noticed,
    Unnoticed,
    /// The machine cannot run the test.
    Skipped(String),
    /// The list or the test is wrong.
    Wrong(String),
}

/// The number of outcomes of each kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub noticed: usize,
    pub unnoticed: usize,
    pub skipped: usize,
    pub wrong: usize,
}

impl Counts {
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Noticed => self.noticed += 1,
            Outcome::Unnoticed => self.unnoticed += 1,
            Outcome::Skipped(_) => self.skipped += 1,
            Outcome::Wrong(_) => self.wrong += 1,
        }
    }

    fn plus(self, other: Counts) -> Counts {
        Counts {
            noticed: self.noticed + other.noticed,
            unnoticed: self.unnoticed + other.unnoticed,
            skipped: self.skipped + other.skipped,
            wrong: self.wrong + other.wrong,
        }
    }

    /// Whether no broken line went unnoticed.
    pub fn is_good(&self) -> bool {
        self.unnoticed == 0 && self.wrong == 0
    }
}

/// Breaks lines of its own copy of the source tree, one after another.
#[derive(Debug)]
struct Worker {
    tree: Tree,
    target: PathBuf,
    hbase: PathBuf,
}

/// Runs the broken lines of these faults, ordered by test program. Prints a line for each.
///
/// # Errors
/// Of reading and writing, and if cargo cannot be run.
pub fn run(faults: &[Fault]) -> io::Result<Counts> {
    let mut programs: Programs<'_> = BTreeMap::new();
    for fault in faults {
        for broken in &fault.breaks {
            let (program, name) = command::of(&broken.fails).map_err(io::Error::other)?;
            programs.entry(program).or_default().push((fault.number, broken, name));
        }
    }
    let lines: usize = programs.values().map(Vec::len).sum();
    // Most of the time one processor compiles and links one library.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let count = if lines < FEW { 1 } else { processors.min(WORKERS_MAX) };
    let workers: Vec<_> = (1..=count).map(Worker::new).collect::<io::Result<_>>()?;
    let programs = &programs;
    thread::scope(|scope| {
        let workers: Vec<_> = workers
            .iter()
            .enumerate()
            .map(|(at, worker)| scope.spawn(move || worker.run(programs, at, count)))
            .collect();
        workers.into_iter().try_fold(Counts::default(), |sum, worker| {
            Ok(sum.plus(worker.join().map_err(|_| io::Error::other("a worker panicked"))??))
        })
    })
}

impl Worker {
    /// Copies the source tree of this program to a folder of this worker in `target/mutations`.
    fn new(number: usize) -> io::Result<Worker> {
        let root = crate::root();
        let own = root.join(format!("target/mutations/{number}"));
        Ok(Worker {
            tree: Tree::copy(root, own.join("tree"))?,
            target: own.join("target"),
            hbase: root.join("target/hbase-fixture"),
        })
    }

    /// Runs each `workers`th broken line of each program, from `at` on.
    fn run(&self, programs: &Programs<'_>, at: usize, workers: usize) -> io::Result<Counts> {
        let mut counts = Counts::default();
        for (program, broken_lines) in programs {
            let own: Vec<_> = broken_lines.iter().skip(at).step_by(workers).collect();
            if own.is_empty() {
                continue;
            }
            let for_c = program.0.iter().any(|argument| argument == "capi");
            let _manifest =
                if for_c { None } else { Some(self.tree.break_line(&without_libraries_for_c())?) };
            // Without any change first: a test that fails then proves nothing. All of them before the first change,
            // because each change builds the library again.
            println!("{}: {} broken lines", program.0.join(" "), own.len());
            let mut whole = BTreeMap::new();
            for (_, _, name) in &own {
                if !whole.contains_key(name) {
                    whole.insert(name, self.test(program, name)?.0);
                }
            }
            for (number, broken, name) in &own {
                let began = Instant::now();
                let outcome = match &whole[name] {
                    Verdict::Passed => self.outcome(program, name, broken)?,
                    Verdict::Skipped(why) => Outcome::Skipped(why.clone()),
                    other => Outcome::Wrong(format!("without the change the test did this: {other:?}")),
                };
                counts.add(&outcome);
                let seconds = began.elapsed().as_secs();
                println!("fault {number:2} {outcome:?} ({seconds} s) {} by {}", broken.file, broken.fails);
            }
        }
        Ok(counts)
    }

    fn outcome(&self, program: &Program, name: &str, broken: &Break) -> io::Result<Outcome> {
        let line = self.tree.break_line(broken)?;
        let (verdict, output) = self.test(program, name)?;
        drop(line);
        Ok(match verdict {
            Verdict::Failed => Outcome::Noticed,
            Verdict::Passed => Outcome::Unnoticed,
            Verdict::Skipped(why) => Outcome::Skipped(why),
            other => Outcome::Wrong(format!("{other:?}: {}", last_error(&output))),
        })
    }

    fn test(&self, program: &Program, name: &str) -> io::Result<(Verdict, Output)> {
        // `timeout` ends the test program too, and not only cargo.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &LIMIT_S.to_string()]);
        command.arg(env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).arg("test").args(&program.0);
        for name in BUILT_AGAIN {
            command.args(["--config", &format!("profile.dev.package.{name}.debug=false")]);
        }
        command.args(["--", name]).current_dir(self.tree.folder()).env("CARGO_TARGET_DIR", &self.target);
        for (variable, _) in env::vars_os() {
            // Cargo sets them for this program. Build scripts would run again for others.
            let text = variable.to_string_lossy();
            if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") {
                command.env_remove(&variable);
            }
        }
        // Most of the library is the same after a change.
        command.env("CARGO_INCREMENTAL", "1");
        // The short form of a test must notice its line.
        command.env_remove("DLM_TEST_LONG").env_remove("DLM_TEST_LEFT_OUT");
        if env::var_os("DLM_TEST_DIR").is_none() {
            // The tests of the source tree may have a server there, which is used again.
            command.env("DLM_TEST_DIR", &self.hbase);
        }
        let output = command.output()?;
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
        Ok((judge(output.status.code(), &stdout, &stderr), output))
    }
}

fn without_libraries_for_c() -> Break {
    let [piece, replacement] = LIBRARIES.map(str::to_owned);
    Break { file: "Cargo.toml".into(), piece, replacement, fails: String::new() }
}

fn last_error(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let error = text.lines().find(|line| line.starts_with("error"));
    error.unwrap_or("no message").to_owned()
}

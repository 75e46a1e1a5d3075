//! Breaks the lines of the list one by one, and sees whether their tests fail.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::command::{self, Program};
use crate::list::{Break, Fault};
use crate::switches::{self, Line};
use crate::tree::Tree;

/// Limit of one build, in seconds.
const BUILD_LIMIT_S: u32 = 1800;
/// Limit of one test, in seconds.
const TEST_LIMIT_S: u32 = 600;
/// Exit status of `timeout` when the limit was reached.
const TOO_LONG: i32 = 124;

/// Crates that have switches, or are built with them. Without debug information this takes less time.
const BUILT_AGAIN: [&str; 3] = ["dlm", "dlm-testkit", "dlm-fixtures"];

/// Tests at one time, for each processor. Nearly all of them wait: for servers and clocks, and with a broken line often for
/// what never comes.
const AT_ONCE: usize = 8;

/// What a run of one test showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    /// The machine cannot run the test.
    Skipped(String),
    NoSuchTest,
    DidNotRun,
    TookTooLong,
}

/// Reads the output of a test program.
pub fn judge(status: Option<i32>, stdout: &str, stderr: &str) -> Verdict {
    if status == Some(TOO_LONG) {
        return Verdict::TookTooLong;
    }
    let began = stdout.lines().filter_map(|line| line.strip_prefix("running "));
    let counts: Vec<u32> = began.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect();
    if counts.is_empty() {
        return Verdict::DidNotRun;
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

    /// Whether no broken line went unnoticed.
    pub fn is_good(&self) -> bool {
        self.unnoticed == 0 && self.wrong == 0
    }
}

/// A test in its program.
type Test = (Program, String);

/// A broken line that has to be noticed.
struct Chosen<'a> {
    number: usize,
    fault: usize,
    broken: &'a Break,
    test: Test,
}

/// The source tree with all switches, and what was built from it.
#[derive(Debug)]
struct Built {
    tree: Tree,
    /// The texts of the files before they got switches.
    whole: BTreeMap<String, String>,
    /// The lines that have no switch.
    apart: BTreeSet<usize>,
    programs: BTreeMap<Program, PathBuf>,
    target: PathBuf,
    hbase: PathBuf,
}

/// Runs the broken lines of the faults with these numbers, and of all if there are none. Prints a line for each.
///
/// # Errors
/// Of reading and writing, and if the copy with the switches cannot be built.
pub fn run(faults: &[Fault], rows: &[usize]) -> io::Result<Counts> {
    let all: Vec<(usize, &Fault, &Break)> = faults
        .iter()
        .flat_map(|fault| fault.breaks.iter().map(move |broken| (fault, broken)))
        .enumerate()
        .map(|(at, (fault, broken))| (at + 1, fault, broken))
        .collect();
    // All get a switch, so that the next run with other rows builds nothing.
    let lines: Vec<Line<'_>> = all.iter().map(|(number, _, broken)| (*number, *broken)).collect();
    let mut chosen = Vec::new();
    for (number, fault, broken) in &all {
        if rows.is_empty() || rows.contains(&fault.number) {
            let test = command::of(&broken.fails).map_err(io::Error::other)?;
            chosen.push(Chosen { number: *number, fault: fault.number, broken, test });
        }
    }
    let built = Built::new(&lines, chosen.iter().map(|line| line.test.0.clone()).collect())?;

    let mut tests: BTreeMap<&Test, Vec<&Chosen<'_>>> = BTreeMap::new();
    for line in &chosen {
        tests.entry(&line.test).or_default().push(line);
    }
    println!("{} broken lines, {} tests", chosen.len(), tests.len());
    let counts = Mutex::new(Counts::default());
    let note = |line: &Chosen<'_>, outcome: &Outcome, began: Instant| {
        counts.lock().expect("no panic").add(outcome);
        let (fault, broken, seconds) = (line.fault, line.broken, began.elapsed().as_secs());
        println!("fault {fault:2} {outcome:?} ({seconds} s) {} by {}", broken.file, broken.fails);
    };
    let apart = Mutex::new(Vec::new());
    // The tests in `src`, which are the quickest, come last.
    let tests: Vec<_> = tests.into_iter().rev().collect();
    side_by_side(&tests, |(test, lines)| {
        // Without any change first: a test that fails then proves nothing.
        let as_it_is = built.test(test, None)?.0;
        for line in lines {
            let began = Instant::now();
            let outcome = match &as_it_is {
                Verdict::Passed if built.apart.contains(&line.number) => {
                    apart.lock().expect("no panic").push(*line);
                    continue;
                }
                Verdict::Passed => outcome(built.test(test, Some(line.number))?),
                Verdict::Skipped(why) => Outcome::Skipped(why.clone()),
                other => Outcome::Wrong(format!("without the change the test did this: {other:?}")),
            };
            note(line, &outcome, began);
        }
        Ok(())
    })?;
    for line in apart.into_inner().expect("no panic") {
        let began = Instant::now();
        note(line, &built.apart((line.number, line.broken), &lines, &line.test)?, began);
    }
    Ok(counts.into_inner().expect("no panic"))
}

/// Does this for each of them, some at a time.
fn side_by_side<T: Sync>(all: &[T], each: impl Fn(&T) -> io::Result<()> + Sync) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            each(one)?;
        }
        Ok(())
    };
    let count = AT_ONCE * thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| io::Error::other("a worker panicked"))?)
    })
}

fn outcome((verdict, output): (Verdict, Output)) -> Outcome {
    match verdict {
        Verdict::Failed => Outcome::Noticed,
        Verdict::Passed => Outcome::Unnoticed,
        Verdict::Skipped(why) => Outcome::Skipped(why),
        other => Outcome::Wrong(format!("{other:?}: {}", last_error(&output))),
    }
}

impl Built {
    /// Copies the source tree of this program into `target/mutations`, puts the lines behind switches and builds the
    /// programs.
    fn new(lines: &[Line<'_>], programs: BTreeSet<Program>) -> io::Result<Built> {
        let root = crate::root();
        let (mut whole, mut changed, mut apart) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for file in lines.iter().map(|(_, broken)| broken.file.as_str()).chain([switches::ROOT]) {
            if whole.contains_key(file) {
                continue;
            }
            let text = std::fs::read_to_string(root.join(file))?;
            let switched = switches::of(file, &text, &in_file(file, lines)).map_err(io::Error::other)?;
            apart.extend(switched.apart);
            changed.insert(file.to_owned(), switched.text);
            whole.insert(file.to_owned(), text);
        }
        let own = root.join("target/mutations");
        let mut built = Built {
            tree: Tree::copy(root, own.join("tree"), &changed)?,
            whole,
            apart,
            programs: BTreeMap::new(),
            target: own.join("target"),
            hbase: root.join("target/hbase-fixture"),
        };
        println!("building {} lines behind switches", lines.len() - built.apart.len());
        for program in programs {
            let path = built.build(&program)?.map_err(io::Error::other)?;
            built.programs.insert(program, path);
        }
        Ok(built)
    }

    /// Breaks a line in the text, builds and runs its test.
    fn apart(&self, (number, broken): Line<'_>, lines: &[Line<'_>], test: &Test) -> io::Result<Outcome> {
        let text = &self.whole[&broken.file];
        if text.matches(&broken.piece).count() != 1 {
            return Ok(Outcome::Wrong(format!("{} is not there once", broken.piece)));
        }
        let text = text.replace(&broken.piece, &broken.replacement);
        // With the switches of the others, so that less is built again.
        let others: Vec<_> =
            in_file(&broken.file, lines).into_iter().filter(|(other, _)| *other != number).collect();
        let text = switches::of(&broken.file, &text, &others).map_err(io::Error::other)?.text;
        let _changed = self.tree.change(&broken.file, &text)?;
        Ok(match self.build(&test.0)? {
            Ok(path) => outcome(self.test_in(&path, test, None)?),
            Err(error) => Outcome::Wrong(error),
        })
    }

    /// Builds a program and returns its path, or the compiler's first error.
    fn build(&self, program: &Program) -> io::Result<Result<PathBuf, String>> {
        let mut command = limited(BUILD_LIMIT_S);
        command
            .arg(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .arg("test")
            .args(program.arguments());
        for name in BUILT_AGAIN {
            command.args(["--config", &format!("profile.dev.package.{name}.debug=false")]);
        }
        command.arg("--no-run").current_dir(self.tree.folder()).env("CARGO_TARGET_DIR", &self.target);
        // Most of the library is the same after a change.
        command.env("CARGO_INCREMENTAL", "1");
        let output = command.output()?;
        let printed = String::from_utf8_lossy(&output.stderr);
        Ok(match program.executable(&printed) {
            Some(path) if output.status.success() => Ok(self.tree.folder().join(path)),
            _ => Err(last_error(&output)),
        })
    }

    fn test(&self, test: &Test, line: Option<usize>) -> io::Result<(Verdict, Output)> {
        self.test_in(&self.programs[&test.0], test, line)
    }

    /// Runs a test, with this line broken.
    fn test_in(
        &self,
        path: &PathBuf,
        (_, name): &Test,
        line: Option<usize>,
    ) -> io::Result<(Verdict, Output)> {
        let mut command = limited(TEST_LIMIT_S);
        command.arg(path).arg(name).current_dir(self.tree.folder());
        if let Some(line) = line {
            command.env(switches::VARIABLE, line.to_string());
        }
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

/// A command that `timeout` ends, with all that it has started.
fn limited(seconds: u32) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &seconds.to_string()]);
    for (variable, _) in env::vars_os() {
        // Cargo sets them for this program. Build scripts would run again for others.
        let text = variable.to_string_lossy();
        if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") {
            command.env_remove(&variable);
        }
    }
    command
}

fn in_file<'a>(file: &str, lines: &[Line<'a>]) -> Vec<Line<'a>> {
    lines.iter().filter(|(_, broken)| broken.file == file).copied().collect()
}

fn last_error(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut lines = text.lines().skip_while(|line| !line.starts_with("error"));
    let error: Vec<_> = lines.by_ref().take(2).map(str::trim).collect();
    if error.is_empty() { "no message".to_owned() } else { error.join(" ") }
}

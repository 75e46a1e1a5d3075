//! Compares the library with that of another commit.
//!
//! Both are built as the same small program: `worker.rs` with the library. The programs take turns, A B B A in one round
//! and B A A B in the next. A cell that seems slower is measured once more, because among many cells one seems slower by
//! chance now and then.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::arguments::Group;
use crate::host::Host;
use crate::row::{Cell, Row};
use crate::scale::Scale;
use crate::spread::{Spread, ratio_of_round};
use crate::{THREADS, peers};

/// Measures all groups. Returns the rows, and the names of cells that are slower than with the commit.
pub(crate) fn measure(
    groups: &[Group],
    commit: &str,
    scale: &Scale,
) -> Result<(Vec<Row>, Vec<String>), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let commit = git(root, &["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")])
        .map_err(|_| format!("there is no commit {commit} in this clone"))?;
    // Only these, because a build of all of them takes minutes.
    let features: Vec<_> = groups.iter().flat_map(|group| group.features()).collect();
    let sides = Sides {
        then: build(&checkout(root, &commit)?, &commit[..12], &features)?,
        now: build(root, "now", &features)?,
        commit: commit[..12].to_owned(),
    };
    let (mut rows, mut slower) = (Vec::new(), Vec::new());
    for &group in groups {
        match Host::start(group) {
            Ok(host) => sides.measure(group, &host, scale, &mut rows, &mut slower)?,
            Err(why) => eprintln!("*** without {group:?}: {why}"),
        }
    }
    Ok((rows, slower))
}

/// The two programs.
struct Sides {
    then: PathBuf,
    now: PathBuf,
    commit: String,
}

impl Sides {
    fn measure(
        &self,
        group: Group,
        host: &Host,
        scale: &Scale,
        rows: &mut Vec<Row>,
        slower: &mut Vec<String>,
    ) -> Result<(), String> {
        // They have places of their own, because the commit may use another format.
        for ((name, then), (_, now)) in host.stores("then").into_iter().zip(host.stores("now")) {
            let mut pair = Pair {
                then: Program::start(&self.then, &then)?,
                now: Program::start(&self.now, &now)?,
                time: scale.time(group),
            };
            let began = Instant::now();
            while began.elapsed() < scale.warm_up(group) {
                pair.round(16, 0)?;
            }
            let mut cells = Vec::new();
            for threads in THREADS {
                let mut cell = pair.cell(threads, scale.rounds)?;
                if cell.ratio.is_slower() {
                    cell = pair.cell(threads, scale.rounds)?;
                    if cell.ratio.is_slower() {
                        slower.push(format!("{name}, {}", crate::row::of_threads(threads)));
                    }
                }
                cells.push(cell);
            }
            rows.push(Row { subject: name.to_owned(), peer: format!("commit {}", self.commit), cells });
        }
        Ok(())
    }
}

/// The two programs, with one store each.
struct Pair {
    then: Program,
    now: Program,
    time: Duration,
}

impl Pair {
    fn cell(&mut self, threads: usize, rounds: usize) -> Result<Cell, String> {
        let (mut then, mut now, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        // The first round warms up caches and connections.
        for number in 0..=rounds {
            let (seen_then, seen_now) = self.round(threads, number)?;
            if number > 0 {
                ratios.push(ratio_of_round(seen_then, seen_now));
                then.extend(seen_then);
                now.extend(seen_now);
            }
        }
        Ok(Cell {
            threads,
            subject_per_s: peers::median(now.into_iter()),
            peer_per_s: peers::median(then.into_iter()),
            ratio: Spread::of(&ratios),
        })
    }

    /// Measures A B B A, or B A A B in every second round.
    fn round(&mut self, threads: usize, number: usize) -> Result<([f64; 2], [f64; 2]), String> {
        let Pair { then, now, time } = self;
        let then_is_first = number.is_multiple_of(2);
        let [first, second] = if then_is_first { [then, now] } else { [now, then] };
        let outer = first.pairs_per_s(threads, *time)?;
        let inner = [second.pairs_per_s(threads, *time)?, second.pairs_per_s(threads, *time)?];
        let outer = [outer, first.pairs_per_s(threads, *time)?];
        Ok(if then_is_first { (outer, inner) } else { (inner, outer) })
    }
}

/// A program that measures one library on one store. It ends when its input ends.
struct Program {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Program {
    fn start(program: &Path, what: &str) -> Result<Program, String> {
        let mut child = Command::new(program)
            .arg(what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut program = Program { child, requests, answers };
        match program.answer()?.as_str() {
            "ready" => Ok(program),
            why => Err(format!("{what}: {why}")),
        }
    }

    fn pairs_per_s(&mut self, threads: usize, time: Duration) -> Result<f64, String> {
        let requests = self.requests.as_mut().expect("open until dropped");
        writeln!(requests, "{threads} {}", time.as_millis()).map_err(|error| error.to_string())?;
        let answer = self.answer()?;
        answer.parse().map_err(|_| format!("not a number: {answer:?}"))
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| error.to_string())?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.child.wait();
    }
}

/// Where the sources of other commits and of the programs are kept between runs.
fn folder(root: &Path) -> PathBuf {
    root.join("target/against")
}

/// Copies the files of a commit to a folder, unless they are there. Returns the folder.
fn checkout(root: &Path, commit: &str) -> Result<PathBuf, String> {
    let files = folder(root).join(commit);
    if !files.exists() {
        // An interrupted copy must not look complete.
        let incomplete = files.with_extension("incomplete");
        let _ = fs::remove_dir_all(&incomplete);
        fs::create_dir_all(&incomplete).map_err(|error| error.to_string())?;
        let archive = files.with_extension("tar");
        let [archive_text, incomplete_text] = [&archive, &incomplete].map(|path| path.display().to_string());
        git(root, &["archive", "--format=tar", "--output", &archive_text, commit])?;
        run(Command::new("tar").args(["-xf", &archive_text, "-C", &incomplete_text]))?;
        fs::remove_file(&archive).map_err(|error| error.to_string())?;
        fs::rename(&incomplete, &files).map_err(|error| error.to_string())?;
    }
    Ok(files)
}

/// Builds `worker.rs` with the library in `library`, with the library's own versions of its dependencies. Returns the
/// program.
fn build(library: &Path, label: &str, features: &[&str]) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (name, program) = (format!("summary-{label}"), folder(root).join(format!("program-{label}")));
    let manifest = format!(
        "[package]\nname = {name:?}\nedition = \"2024\"\npublish = false\n\n\
         [dependencies]\ndlm = {{ path = {library:?}, default-features = false, features = {features:?} }}\n\n\
         # Not a member of the workspace above this folder.\n[workspace]\n"
    );
    let main = format!(
        "#[path = {:?}]\nmod worker;\n\nfn main() -> Result<(), String> {{\n    \
         let what = std::env::args().nth(1).expect(\"what to measure\");\n    \
         worker::serve(&what, std::io::stdin().lock(), std::io::stdout())\n}}\n",
        root.join("benches/summary/worker.rs")
    );
    fs::create_dir_all(program.join("src")).map_err(|error| error.to_string())?;
    for (file, text) in [("Cargo.toml", manifest), ("src/main.rs", main)] {
        fs::write(program.join(file), text).map_err(|error| error.to_string())?;
    }
    fs::copy(library.join("Cargo.lock"), program.join("Cargo.lock")).map_err(|error| error.to_string())?;
    eprintln!("building {name}");
    let target = root.join("target");
    run(dlm_fixtures::cargo()
        .args(["build", "--quiet", "--release", "--manifest-path"])
        .arg(program.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target))?;
    Ok(target.join("release").join(name))
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    run(Command::new("git").arg("-C").arg(root).args(arguments))
}

/// Runs a program and returns its output.
fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

//! What a failed run leaves behind: its seed, all logs, the violations, and pictures of them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlm_testkit::history::{History, Tolerances, Violation, timeline_svg};

/// Number of violations that are drawn.
const DRAWN_MAX: usize = 5;
/// What a picture shows before and after the calls of a violation.
const MARGIN: Duration = Duration::from_millis(200);

/// Returns a new directory for the logs of a round. It is kept unless the round passes.
pub(crate) fn directory(name: &str, seed: u64) -> PathBuf {
    let directory = dlm_fixtures::target_tmp().join("torture").join(format!("{name}-{seed}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Writes all that is known about the violations beside the logs, and fails.
pub(crate) fn fail(
    logs: &Path,
    seed: u64,
    history: &History,
    tolerances: &Tolerances,
    violations: &[Violation],
) -> ! {
    let left = logs.join("failed");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("seed"), format!("{seed}\n")).unwrap();
    let mut text = String::new();
    for violation in violations {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{violation}");
    }
    fs::write(left.join("violations.txt"), &text).unwrap();
    for (number, violation) in (1..).zip(violations.iter().take(DRAWN_MAX)) {
        let near = history.around(violation, MARGIN);
        let picture = timeline_svg(&near, tolerances, std::slice::from_ref(violation));
        fs::write(left.join(format!("violation-{number}.svg")), picture).unwrap();
    }
    let first: Vec<&str> = text.lines().take(12).collect();
    panic!(
        "{} violations with seed {seed}. Logs are in {}, pictures in {}:\n{}",
        violations.len(),
        logs.display(),
        left.display(),
        first.join("\n")
    );
}

//! How cargo runs a test of the list, which is named by its path: `tests/local/id_lock.rs::trying_does_not_wait`.

/// A test program, as arguments of `cargo test`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program(pub Vec<String>);

/// Returns the program that contains the test, and the test's name in this program. The name of a test in `src` is
/// the end of its full name.
///
/// # Errors
/// If the path is not that of a test in Rust.
pub fn of(test: &str) -> Result<(Program, String), String> {
    let wrong = || format!("{test}: not the path of a test in Rust");
    let (file, name) = test.split_once(".rs::").ok_or_else(wrong)?;
    let steps: Vec<_> = file.split('/').collect();
    let program = |arguments: &[&str]| Program(arguments.iter().map(|it| (*it).to_owned()).collect());
    match steps[..] {
        ["src", ..] => Ok((program(&["--all-features", "--lib"]), name.to_owned())),
        ["tests", "models", "tests", single] => {
            Ok((program(&["-p", "dlm-models", "--test", single]), name.to_owned()))
        }
        ["tests", single] => Ok((program(&["--all-features", "--test", single]), name.to_owned())),
        ["tests", folder, "main"] => Ok((program(&["--all-features", "--test", folder]), name.to_owned())),
        ["tests", folder, module] => {
            Ok((program(&["--all-features", "--test", folder]), format!("{module}::{name}")))
        }
        _ => Err(wrong()),
    }
}

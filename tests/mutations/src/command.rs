//! How cargo builds the program of a test of the list, which is named by its path:
//! `tests/local/id_lock.rs::trying_does_not_wait`.

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    package: Package,
    /// None for the tests in `src`.
    test: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Package {
    Library,
    Models,
}

impl Program {
    /// The arguments of `cargo test` that choose this program.
    pub fn arguments(&self) -> Vec<&str> {
        let mut arguments = match self.package {
            Package::Library => vec!["-p", "dlm", "--all-features"],
            Package::Models => vec!["-p", "dlm-models"],
        };
        match &self.test {
            Some(test) => arguments.extend(["--test", test]),
            None => arguments.push("--lib"),
        }
        arguments
    }

    /// Returns the path of the program after `cargo test --no-run`, from what cargo printed on its standard error.
    pub fn executable<'a>(&self, printed: &'a str) -> Option<&'a str> {
        let built = printed.lines().filter_map(|line| line.trim_start().strip_prefix("Executable "));
        let own = |source: &str| match &self.test {
            Some(test) => {
                [format!("tests/{test}.rs"), format!("tests/{test}/main.rs")].iter().any(|it| it == source)
            }
            None => source == "unittests src/lib.rs",
        };
        built.filter_map(|line| line.rsplit_once(" (")).find(|(source, _)| own(source))?.1.strip_suffix(')')
    }
}

/// Returns the program that contains the test, and the test's name in this program. The name of a test in `src` is
/// the end of its full name.
///
/// # Errors
/// If the path is not that of a test in Rust.
pub fn of(test: &str) -> Result<(Program, String), String> {
    let wrong = || format!("{test}: not the path of a test in Rust");
    let (file, name) = test.split_once(".rs::").ok_or_else(wrong)?;
    let steps: Vec<_> = file.split('/').collect();
    let program = |package, test: Option<&str>| Program { package, test: test.map(str::to_owned) };
    let own = |test| program(Package::Library, Some(test));
    match steps[..] {
        ["src", ..] => Ok((program(Package::Library, None), name.to_owned())),
        ["tests", "models", "tests", single] => Ok((program(Package::Models, Some(single)), name.to_owned())),
        ["tests", single] => Ok((own(single), name.to_owned())),
        ["tests", folder, "main"] => Ok((own(folder), name.to_owned())),
        ["tests", folder, module] => Ok((own(folder), format!("{module}::{name}"))),
        _ => Err(wrong()),
    }
}

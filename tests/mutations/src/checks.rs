//! Checks of the list. Each returns one message for each thing that is wrong.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::command;
use crate::list::Fault;

/// Number of faults in the list.
pub const FAULTS: usize = 52;

/// Each fault from 1 to [`FAULTS`] is there once and in order. Each has a name, a promise, a test and a broken line.
pub fn rows(faults: &[Fault]) -> Vec<String> {
    let mut wrong = Vec::new();
    let numbers: Vec<_> = faults.iter().map(|fault| fault.number).collect();
    if numbers != (1..=FAULTS).collect::<Vec<_>>() {
        wrong.push(format!("the faults are not 1 to {FAULTS}, in order: {numbers:?}"));
    }
    for fault in faults {
        for (what, missing) in [
            ("name", fault.name.is_empty()),
            ("promise", fault.promise.is_empty()),
            ("test", fault.tests.is_empty()),
            ("broken line", fault.breaks.is_empty()),
        ] {
            if missing {
                wrong.push(format!("fault {} has no {what}", fault.number));
            }
        }
        for broken in &fault.breaks {
            if !fault.tests.contains(&broken.fails) {
                let number = fault.number;
                wrong.push(format!("fault {number}: {} fails and is not one of its tests", broken.fails));
            }
            if let Err(error) = command::of(&broken.fails) {
                wrong.push(format!("fault {}: {error}", fault.number));
            }
        }
    }
    wrong
}

/// Each test that the list names is in the file that the list names, or in a suite that the file runs.
pub fn tests(faults: &[Fault], root: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    for fault in faults {
        let mut seen = BTreeSet::new();
        for test in &fault.tests {
            if !seen.insert(test) {
                wrong.push(format!("fault {}: {test} is named twice", fault.number));
            }
            if let Err(error) = test_exists(test, root) {
                wrong.push(format!("fault {}: {error}", fault.number));
            }
        }
    }
    wrong
}

/// Suites of the testkit: the macro that a file calls, and the folder with the cases.
const SUITES: [(&str, &str); 3] = [
    ("dlm_testkit::contract!", "testkit/src/contract"),
    ("dlm_testkit::latch_contract!", "testkit/src/contract"),
    ("dlm_testkit::losses!", "testkit/src"),
];

fn test_exists(test: &str, root: &Path) -> Result<(), String> {
    let (file, path) = test.split_once("::").ok_or_else(|| format!("{test} has no name behind its file"))?;
    let text = fs::read_to_string(root.join(file)).map_err(|error| format!("{test}: {file}: {error}"))?;
    let (modules, name) =
        path.rsplit_once("::").map_or((None, path), |(modules, name)| (Some(modules), name));
    let declared = |text: &str| {
        // Rust, and Go.
        [format!("fn {name}("), format!("func {name}(")].iter().any(|it| text.contains(it))
    };
    let suites = SUITES.iter().filter(|(call, _)| text.contains(call)).map(|(_, folder)| folder);
    match modules {
        None if declared(&text) => return Ok(()),
        Some(module) if declared(&text) && text.contains(&format!("mod {module} {{")) => return Ok(()),
        _ => {}
    }
    for folder in suites {
        let case = root.join(folder).join(format!("{}.rs", modules.unwrap_or("losses")));
        if fs::read_to_string(case).is_ok_and(|cases| declared(&cases)) {
            return Ok(());
        }
    }
    Err(format!("there is no test {test}"))
}

/// Each piece that the list breaks is in its file of the library once, and the replacement differs from it.
pub fn lines(faults: &[Fault], root: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    for fault in faults {
        for broken in &fault.breaks {
            let place = format!("fault {}: {}", fault.number, broken.file);
            if !["src/", "go/", "include/"].iter().any(|folder| broken.file.starts_with(folder)) {
                wrong.push(format!("{place} is no file of the library"));
            }
            let text = match fs::read_to_string(root.join(&broken.file)) {
                Ok(text) => text,
                Err(error) => {
                    wrong.push(format!("{place}: {error}"));
                    continue;
                }
            };
            let times = if broken.piece.is_empty() { 0 } else { text.matches(&broken.piece).count() };
            if times != 1 {
                wrong.push(format!("{place} has {times} times, and not once: {}", broken.piece));
            }
            if broken.piece == broken.replacement {
                wrong.push(format!("{place}: the replacement changes nothing: {}", broken.piece));
            }
        }
    }
    wrong
}

/// Returns the number of broken lines that the short run notices, and a message for each fault of which it notices none.
/// A test is left to the long run if its own code says so, or if the function that gives its suite a store does.
pub fn in_the_short_run(faults: &[Fault], root: &Path) -> (usize, Vec<String>) {
    let (mut noticed, mut unnoticed) = (0, Vec::new());
    for fault in faults {
        let short =
            fault.breaks.iter().filter(|broken| !is_left_to_the_long_run(&broken.fails, root)).count();
        if short == 0 {
            unnoticed.push(format!("fault {}: only the long run notices its broken lines", fault.number));
        }
        noticed += short;
    }
    (noticed, unnoticed)
}

/// Returns whether the short run leaves this test of the list out.
pub fn is_left_to_the_long_run(test: &str, root: &Path) -> bool {
    let Some((file, path)) = test.split_once("::") else { return false };
    let Ok(text) = fs::read_to_string(root.join(file)) else { return false };
    let function = |name: &str| {
        let body = text.split(&format!("fn {name}(")).nth(1);
        body.and_then(|body| body.split("\n}\n").next()).unwrap_or_default()
    };
    let says_so = |name: &str| function(name).contains("left_to_the_long_run()");
    let (modules, name) = path.rsplit_once("::").unwrap_or(("", path));
    // A suite is a macro: `linger_contract!(site)`, or `contract! { site => linger: .. }`.
    let in_suite = text.split("_contract!(").skip(1).chain(text.split("contract! { ").skip(1)).any(|rest| {
        let maker = rest.split([')', ' ']).next().unwrap_or_default();
        let layer = text[..text.len() - rest.len()].ends_with("linger_contract!(");
        (layer && modules == "linger" || rest.starts_with(&format!("{maker} => {modules}:")))
            && says_so(maker)
    });
    says_so(name) || in_suite
}

//! Makes `docs/faults.md` from the list.

use std::fmt::Write as _;

use crate::checks::is_left_to_the_long_run;
use crate::list::Fault;
use crate::root;

/// The page, from the root of the repository.
pub const PATH: &str = "docs/faults.md";

const HEAD: &str = "\
# Faults

Each row is a fault that a distributed lock meets in production. It says what the library promises, which tests show it,
and which line of the library a test guards. A program builds a copy of the source tree in which each of these lines can
be broken by a variable of the environment, runs each test with its line broken, and expects that it fails:

<!-- checked by: each_line_of_a_function_gets_a_body_of_its_own, the_copy_is_changed_and_mended -->
```text
cargo run -p dlm-mutations              all rows
cargo run -p dlm-mutations -- 2 14      these rows
```

`tests/run --long` does this for all rows. A test fails if a named test or a named line is gone. This page is generated
from `tests/mutations/faults.txt`: `DLM_BLESS=1 cargo test -p dlm-mutations` writes it. `tests/run` runs all tests of the
list but those with (long run), which `tests/run --long` has.

## The rows

<!-- checked by: every_fault_is_there, every_named_test_exists, every_line_to_break_is_there_once, the_page_is_what_the_list_says -->
| | fault | promise | tests | broken line |
|---|---|---|---|---|
";

const WEAK: &str = "
## What is weak

The tests of these rows show less than the promise says:

";

/// Returns the page.
pub fn of(faults: &[Fault]) -> String {
    let mut page = HEAD.to_owned();
    for fault in faults {
        let tests: Vec<_> = fault.tests.iter().map(|test| test_cell(test)).collect();
        let breaks: Vec<_> = fault
            .breaks
            .iter()
            .map(|it| {
                let name = it.fails.rsplit("::").next().unwrap_or_default();
                format!(
                    "`{}`: {} becomes {}, and `{name}` fails",
                    it.file,
                    code(&it.piece),
                    code(&it.replacement)
                )
            })
            .collect();
        writeln!(
            page,
            "| {} | {} | {} | {} | {} |",
            fault.number,
            fault.name,
            fault.promise,
            tests.join("<br>"),
            breaks.join("<br>")
        )
        .expect("a String takes all text");
    }
    page += WEAK;
    for fault in faults.iter().filter(|fault| !fault.weak.is_empty()) {
        writeln!(page, "* **{}, {}**: {}", fault.number, fault.name, fault.weak)
            .expect("a String takes all text");
    }
    page
}

fn test_cell(test: &str) -> String {
    let (file, name) = test.split_once("::").unwrap_or((test, ""));
    let long = if is_left_to_the_long_run(test, root()) { " (long run)" } else { "" };
    format!("`{file}` `{name}`{long}")
}

/// Code in a cell: on one line, with its pipes escaped.
fn code(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    if line.is_empty() { "nothing".to_owned() } else { format!("`{line}`") }
}

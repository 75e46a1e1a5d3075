//! The code for C and Go on the page on metrics.

use std::fs;
use std::process::Command;

use dlm_fixtures::c::{self, Link};

/// Returns the first block of this language on the page.
fn block(language: &str) -> String {
    let page = fs::read_to_string(c::root().join("docs/metrics.md")).unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).expect("the page has such a block");
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_page_on_metrics_shows_a_function_that_c_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("serve.c"), dir.path().join("serve"));
    let main = "int main(void)\n{\n    struct dlm_manager *manager = NULL;\n    \
                if (dlm_manager_open(\"memory:?client=docs\", NULL, &manager, NULL) != DLM_OK)\n        return 1;\n    \
                serve_metrics(manager, 1);\n    dlm_manager_free(manager);\n    return 0;\n}\n";
    fs::write(&source, format!("#include <stdio.h>\n#include <dlm.h>\n\n{}\n{main}", block("c"))).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror"]).arg(&source).arg("-o").arg(&program);
    c::run(Link::Shared.add_to(&mut compile)).unwrap();
    let answer = c::run(c::with_library(&mut Command::new(&program))).unwrap();
    assert!(answer.contains("HTTP/1.1 200 OK") && answer.contains("\n# HELP dlm_"), "{answer}");
}

/// The example of the Go package, which its tests run, has the same lines.
#[test]
fn the_page_on_metrics_shows_a_handler_that_go_runs() {
    let lines = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let example = fs::read_to_string(c::root().join("go/example_test.go")).unwrap();
    assert!(lines(&example).contains(&lines(&block("go"))), "go/example_test.go has another handler");
}

//! The list of faults is whole: its tests and lines exist, and the page says what the list says. Each check is also
//! shown something that is wrong.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use dlm_mutations::list::{self, Break, Fault};
use dlm_mutations::run::{Counts, Outcome, Verdict, judge};
use dlm_mutations::tree::Tree;
use dlm_mutations::{LIST, checks, command, page, root, switches};

fn faults() -> Vec<Fault> {
    list::read(LIST).unwrap()
}

#[track_caller]
fn nothing(wrong: &[String]) {
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[track_caller]
fn only(wrong: &[String], words: &str) {
    assert!(wrong.len() == 1 && wrong[0].contains(words), "{wrong:#?}");
}

#[test]
fn every_fault_is_there() {
    nothing(&checks::rows(&faults()));
}

#[test]
fn every_named_test_exists() {
    nothing(&checks::tests(&faults(), root()));
}

#[test]
fn every_line_to_break_is_there_once() {
    nothing(&checks::lines(&faults(), root()));
}

/// Faults of which only the long run notices a broken line, with the reason.
const ONLY_IN_THE_LONG_RUN: [(usize, &str); 0] = [];

#[test]
fn the_short_run_notices_most_lines_and_one_of_each_fault() {
    let (noticed, unnoticed) = checks::in_the_short_run(&faults(), root());
    let unexplained: Vec<_> = unnoticed
        .into_iter()
        .filter(|it| {
            !ONLY_IN_THE_LONG_RUN.iter().any(|(fault, _)| it.starts_with(&format!("fault {fault}:")))
        })
        .collect();
    nothing(&unexplained);
    assert!(noticed >= 50, "the short run notices {noticed} broken lines");
}

#[test]
fn a_fault_that_only_the_long_run_notices_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = |test: &str| {
        fs::create_dir_all(dir.path().join("tests")).unwrap();
        fs::write(dir.path().join("tests/a.rs"), test).unwrap();
        let mut fault = faults().remove(0);
        fault.breaks.truncate(1);
        fault.breaks[0].fails = "tests/a.rs::linger::a_case".into();
        checks::in_the_short_run(&[fault], dir.path())
    };
    let left = "{\n    if left_to_the_long_run() {\n        return;\n    }\n}\n";
    for long in [
        format!("fn a_case() {left}"),
        format!("dlm_testkit::linger_contract!(site);\nfn site(test: &str) {left}"),
        format!("dlm_testkit::contract! {{ site => linger:\n a_case }}\nfn site(test: &str) {left}"),
    ] {
        let (noticed, unnoticed) = file(&long);
        assert_eq!(noticed, 0, "{long}");
        only(&unnoticed, "only the long run");
    }
    let short =
        format!("fn a_case() {{\n}}\ndlm_testkit::linger_contract!(other);\nfn site(test: &str) {left}");
    assert_eq!(file(&short), (1, vec![]));
}

#[test]
fn the_page_is_what_the_list_says() {
    let (path, page) = (root().join(page::PATH), page::of(&faults()));
    if env::var_os("DLM_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "{} is old: run DLM_BLESS=1 cargo test -p dlm-mutations", page::PATH);
}

#[test]
fn a_page_tells_of_every_change_of_the_list() {
    let (whole, before) = (faults(), page::of(&faults()));
    type Change = fn(&mut Fault);
    let changes: [Change; 6] = [
        |fault| fault.name.push('x'),
        |fault| fault.promise.push('x'),
        |fault| fault.tests[0].push('x'),
        |fault| fault.weak.push('x'),
        |fault| fault.breaks[0].piece.push('x'),
        |fault| fault.breaks[0].replacement.push('x'),
    ];
    for change in changes {
        let mut changed = whole.clone();
        change(&mut changed[4]);
        assert_ne!(page::of(&changed), before);
    }
}

#[test]
fn a_fault_that_is_missing_or_there_twice_is_reported() {
    let mut missing = faults();
    missing.remove(6);
    only(&checks::rows(&missing), "not 1 to 52");
    let mut twice = faults();
    twice.push(twice[3].clone());
    only(&checks::rows(&twice), "not 1 to 52");
}

#[test]
fn a_fault_without_a_part_is_reported() {
    let changed = |change: fn(&mut Fault)| {
        let mut faults = faults();
        change(&mut faults[0]);
        checks::rows(&faults)
    };
    only(&changed(|fault| fault.name.clear()), "fault 1 has no name");
    only(&changed(|fault| fault.promise.clear()), "fault 1 has no promise");
    only(&changed(|fault| fault.breaks.clear()), "fault 1 has no broken line");
    let without_tests = changed(|fault| fault.tests.clear());
    assert!(without_tests[0].contains("fault 1 has no test"), "{without_tests:?}");
    only(&changed(|fault| fault.breaks[0].fails = "tests/a/b.rs::c".into()), "is not one of its tests");
}

#[test]
fn a_test_that_is_gone_is_reported() {
    let with = |test: &str| {
        let mut faults = faults();
        faults[0].tests = vec![test.to_owned()];
        checks::tests(&faults, root())
    };
    nothing(&with("tests/mutations/tests/faults.rs::a_test_that_is_gone_is_reported"));
    nothing(&with("tests/local/memory_contract.rs::locks::a_dropped_lease_frees_the_lock"));
    // In two parts, so that no file contains the name.
    only(&with(concat!("tests/mutations/tests/faults.rs::a_test_that", "_never_was")), "there is no test");
    only(&with("tests/mutations/tests/gone.rs::a"), "gone.rs");
    only(&with("tests/local/memory_contract.rs::leases::a_dropped_lease_frees_the_lock"), "there is no test");
    only(&with("tests/processes/stores_kills.rs::redis::processes_count_exactly"), "there is no test");
    only(&with("tests/local/id_lock.rs"), "no name");
    let mut twice = faults();
    let first = twice[0].tests[0].clone();
    twice[0].tests.push(first);
    only(&checks::tests(&twice, root()), "named twice");
}

#[test]
fn a_line_that_is_gone_or_there_twice_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("src/a.rs"), "one\ntwo two\n").unwrap();
    let with = |file: &str, piece: &str, replacement: &str| {
        let broken = Break {
            file: file.into(),
            piece: piece.into(),
            replacement: replacement.into(),
            ..Break::default()
        };
        checks::lines(&[Fault { breaks: vec![broken], ..Fault::default() }], folder.path())
    };
    nothing(&with("src/a.rs", "one\ntwo t", "x"));
    only(&with("src/a.rs", "three", "x"), "0 times");
    only(&with("src/a.rs", "two", "x"), "2 times");
    only(&with("src/a.rs", "", "x"), "0 times");
    only(&with("src/a.rs", "one", "one"), "changes nothing");
    only(&with("src/b.rs", "one", "x"), "src/b.rs");
    fs::create_dir(folder.path().join("tests")).unwrap();
    fs::write(folder.path().join("tests/a.rs"), "one").unwrap();
    only(&with("tests/a.rs", "one", "x"), "no file of the library");
}

#[test]
fn a_list_is_read_with_all_its_parts() {
    let text = "# a comment\nfault 7: a name\npromise: one\n  two\ntests:\n  a.rs::b\n  c.rs::d\nweak: three\nbreak: src/a.rs\n  \
                - x\n  -     y\n  + z\n  fails: a.rs::b\n";
    let broken = Break {
        file: "src/a.rs".into(),
        piece: "x\n    y".into(),
        replacement: "z".into(),
        fails: "a.rs::b".into(),
    };
    let fault = Fault {
        number: 7,
        name: "a name".into(),
        promise: "one two".into(),
        tests: vec!["a.rs::b".into(), "c.rs::d".into()],
        weak: "three".into(),
        breaks: vec![broken],
    };
    assert_eq!(list::read(text).unwrap(), [fault]);
    for (text, line) in [
        ("promise: too soon\n", "line 1"),
        ("fault x: a name\n", "line 1"),
        ("fault 1: a name\nhope: this\n", "line 2"),
        ("fault 1: a name\n  more\n", "line 2"),
        ("fault 1: a name\nbreak: src/a.rs\n  ! x\n", "line 3"),
    ] {
        let error = list::read(text).unwrap_err();
        assert!(error.starts_with(line), "{error}");
    }
}

#[test]
fn cargo_is_told_program_and_name_of_a_test() {
    let of = |test: &str| command::of(test).map(|(program, name)| (program.arguments().join(" "), name));
    let told = |program: &str, name: &str| Ok((program.to_owned(), name.to_owned()));
    let local = "-p dlm --all-features --test local";
    assert_eq!(of("tests/local/id_lock.rs::a"), told(local, "id_lock::a"));
    assert_eq!(of("tests/local/x.rs::y::a"), told(local, "x::y::a"));
    assert_eq!(of("tests/local/main.rs::a"), told(local, "a"));
    assert_eq!(of("tests/memory_latches.rs::a"), told("-p dlm --all-features --test memory_latches", "a"));
    assert_eq!(of("tests/models/tests/limits.rs::a"), told("-p dlm-models --test limits", "a"));
    assert_eq!(of("src/wait/queue/tests.rs::a"), told("-p dlm --all-features --lib", "a"));
    assert!(of("go/lock_test.go::TestA").is_err());
}

#[test]
fn cargo_says_where_a_program_was_built() {
    let printed = "   Compiling dlm v0.1.0 (/a)\n  Executable unittests src/lib.rs (/a/target/debug/deps/dlm-1)\n  \
                   Executable tests/hbase/main.rs (/a/target/debug/deps/hbase-2)\n  \
                   Executable tests/hbase_hostile.rs (/a/target/debug/deps/hbase_hostile-3)\n";
    let path = |test: &str| command::of(test).unwrap().0.executable(printed);
    assert_eq!(path("src/a.rs::b"), Some("/a/target/debug/deps/dlm-1"));
    assert_eq!(path("tests/hbase/a.rs::b"), Some("/a/target/debug/deps/hbase-2"));
    assert_eq!(path("tests/hbase_hostile.rs::b"), Some("/a/target/debug/deps/hbase_hostile-3"));
    assert_eq!(path("tests/local/a.rs::b"), None);
}

fn broken(piece: &str, replacement: &str) -> Break {
    Break {
        file: "src/a.rs".into(),
        piece: piece.into(),
        replacement: replacement.into(),
        ..Break::default()
    }
}

#[test]
fn each_line_of_a_function_gets_a_body_of_its_own() {
    let text = "impl A {\n    fn ä(&self) -> u8 {\n        one(|| { two })\n    }\n}\nunsafe extern \"C\" fn b() {\n    three;\n}\n";
    let lines = [broken("one", "1"), broken("two", "2"), broken("three", "3")];
    let numbered: Vec<_> = (11..).zip(&lines).collect();
    let switched = switches::of("src/a.rs", text, &numbered).unwrap();
    assert_eq!(switched.apart, Vec::<usize>::new());
    let words: Vec<_> = switched.text.split_whitespace().collect();
    assert_eq!(
        words.join(" "),
        "impl A { fn ä(&self) -> u8 { match crate::broken_line() { 11 => { 1(|| { two }) } \
         12 => { one(|| { 2 }) } _ => { one(|| { two }) } } } } \
         unsafe extern \"C\" fn b() { match crate::broken_line() { 13 => { 3; } _ => { three; } } }"
    );
    let root = switches::of(switches::ROOT, "fn a() { one }", &[(11, &lines[0])]).unwrap().text;
    assert!(root.contains("fn broken_line()") && root.contains(switches::VARIABLE), "{root}");
}

#[test]
fn a_line_that_cannot_have_a_switch_is_left_apart() {
    let apart = |file: &str, text: &str| {
        let (line, outer) = (broken("piece", "x"), broken("outer", "x"));
        let switched = switches::of(file, text, &[(1, &line), (2, &outer)]).unwrap();
        switched.apart.into_iter().filter(|number| *number == 1 || text.contains("outer")).collect::<Vec<_>>()
    };
    for text in [
        "const A: u8 = piece;",
        "const unsafe fn a() { piece }",
        "const extern \"C\" fn a() { piece }",
        "fn a() -> impl Iterator<Item = u8> { piece }",
        "fn a() -> Option<impl Copy> { piece }",
        "macro_rules! a { () => { fn b() { piece } } }",
        "struct A { a: fn(), b: [u8; { piece }] }",
        "trait A { fn a(); const B: u8 = { piece }; }",
        "fn a() { piece } fn b() { piece }",
        "fn a() { nothing }",
    ] {
        assert_eq!(apart("src/a.rs", text), [1], "{text}");
    }
    assert_eq!(apart("go/a.go", "func a() { piece }"), [1]);
    assert_eq!(apart("src/a.rs", "const A: u8 = 1;\nfn a() { let b: fn() = c; piece }"), [0; 0]);
    assert_eq!(apart("src/a.rs", "fn a(b: impl Copy, c: fn() -> u8) { const D: u8 = 1; piece }"), [0; 0]);
    // The function inside has its switch, so the text of the one around is not what it was.
    assert_eq!(apart("src/a.rs", "fn a() { fn b() { piece } outer }"), [2]);
    assert!(switches::of("src/a.rs", "fn a() {", &[]).is_err());
}

#[test]
fn an_output_is_judged_by_what_the_tests_did() {
    assert_eq!(judge(Some(0), "running 1 test\n", ""), Verdict::Passed);
    assert_eq!(judge(Some(101), "running 1 test\n", ""), Verdict::Failed);
    assert_eq!(judge(None, "running 1 test\n", ""), Verdict::Failed);
    assert_eq!(judge(Some(127), "", "timeout: No such file or directory\n"), Verdict::DidNotRun);
    assert_eq!(judge(Some(0), "running 0 tests\n", ""), Verdict::NoSuchTest);
    assert_eq!(judge(Some(124), "running 1 test\n", ""), Verdict::TookTooLong);
    let skipped = judge(Some(0), "running 1 test\n", "\n*** a SKIPPED, it did not run: no asd\n");
    assert_eq!(skipped, Verdict::Skipped("a SKIPPED, it did not run: no asd".into()));
}

#[test]
fn a_line_that_goes_unnoticed_is_a_failure_and_a_skipped_one_is_not() {
    let counts = |outcome: Outcome| {
        let mut counts = Counts::default();
        counts.add(&Outcome::Noticed);
        counts.add(&outcome);
        counts.is_good()
    };
    assert!(counts(Outcome::Noticed) && counts(Outcome::Skipped(String::new())));
    assert!(!counts(Outcome::Unnoticed) && !counts(Outcome::Wrong(String::new())));
}

#[test]
fn the_copy_is_changed_and_mended() {
    let (source, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let write = |path: &Path, text: &str| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(&source.path().join("src/a.rs"), "one two");
    write(&source.path().join("target/b"), "built");
    write(&copy.path().join("src/gone.rs"), "of an older copy");
    let copied = |changed: &BTreeMap<String, String>| {
        Tree::copy(source.path(), copy.path().to_owned(), changed).unwrap()
    };
    let (none, file) = (BTreeMap::new(), "src/a.rs");
    let tree = copied(&none);
    let read = |folder: &Path| fs::read_to_string(folder.join(file)).unwrap();
    assert!(!copy.path().join("target").exists() && !copy.path().join("src/gone.rs").exists());
    let line = tree.change(file, "one x").unwrap();
    assert_eq!((read(source.path()), read(copy.path())), ("one two".into(), "one x".into()));
    drop(line);
    assert_eq!(read(copy.path()), "one two");
    assert!(tree.change("src/b.rs", "x").is_err());
    // What another change left is not there in the next copy. Files that are as they have to be keep their times.
    let switched = BTreeMap::from([(file.to_owned(), "switched".to_owned())]);
    for (changed, text) in [(&none, "one two"), (&switched, "switched")] {
        copied(changed);
        let before = fs::metadata(copy.path().join(file)).unwrap().modified().unwrap();
        copied(changed);
        assert_eq!(fs::metadata(copy.path().join(file)).unwrap().modified().unwrap(), before);
        fs::write(copy.path().join(file), "left broken").unwrap();
        copied(changed);
        assert_eq!(read(copy.path()), text);
    }
}

//! The page of languages says which functions of the C library C++ and Go have. It is made from the headers and sources.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::fs;

use dlm_fixtures::c;

const BEGIN: &str = "<!-- checked by: the_table_of_languages_is_that_of_the_headers -->\n";

/// Functions that a language does not call, and how it does without.
const WITHOUT: [(&str, &str, &str); 37] = [
    ("C++", "dlm_error_status", "`Error::status`"),
    ("C++", "dlm_handles_open", "the C function"),
    ("C++", "dlm_lock_look", "`Lock::inspect`"),
    ("C++", "dlm_log_to", "the C function"),
    ("C++", "dlm_status_name", "the C function"),
    ("C++", "dlm_version_number", "the C function"),
    ("Go", "dlm_call_", "goroutines"),
    ("Go", "dlm_cancel_", "contexts"),
    ("Go", "dlm_error_holder_left_ms", "`Manager.Inspect`"),
    ("Go", "dlm_error_status", "`Error.Code`"),
    ("Go", "dlm_id_lock_", "none: a call from Go to C costs more than a mutex of Go"),
    ("Go", "dlm_key_lock_", "none: a call from Go to C costs more than a mutex of Go"),
    ("Go", "dlm_latch_await_open", "`Latch.Wait`"),
    ("Go", "dlm_latch_name", "`Name`"),
    ("Go", "dlm_completions_wait", "goroutines park"),
    ("Go", "dlm_lease_at_risk_fd", "`Lease.AtRisk`"),
    ("Go", "dlm_lease_ends_ns", "`Lease.Remaining`"),
    ("Go", "dlm_lease_guard", "`Lease.Guard`"),
    ("Go", "dlm_lease_lost_fd", "`Lease.Lost`"),
    ("Go", "dlm_lease_name", "`Lease.Name`"),
    ("Go", "dlm_lease_release_start", "`Lease.Release` in a goroutine"),
    ("Go", "dlm_lease_renew_start", "`Lease.Renew` in a goroutine"),
    ("Go", "dlm_lease_set_", "`LeaseSet`"),
    ("Go", "dlm_lock_acquire", "`Manager.Lock`"),
    ("Go", "dlm_lock_acquire_start", "`Manager.Lock`, whose goroutine parks"),
    ("Go", "dlm_lock_campaign", "`Election.Campaign`"),
    ("Go", "dlm_lock_in_mode", "`Manager.RLock`"),
    ("Go", "dlm_semaphore_acquire", "`Semaphore.Acquire`"),
    ("Go", "dlm_semaphore_acquire_start", "`Semaphore.Acquire`, whose goroutine parks"),
    ("Go", "dlm_semaphore_name", "`Semaphore.Name`"),
    ("Go", "dlm_semaphore_permits", "`Semaphore.Permits`"),
    ("Go", "dlm_lock_look", "`Manager.Inspect`"),
    ("Go", "dlm_lock_name", "`Name`"),
    ("Go", "dlm_lock_observe", "`Election.Observe`"),
    ("Go", "dlm_manager_acquire_all", "`Manager.LockAll`"),
    ("Go", "dlm_pending_fd", "goroutines park"),
    ("Go", "dlm_row_cells_", "the maps of `Cells`"),
];

/// Returns what a language has in place of a function. Names that end with `_` stand for all that begin so.
fn instead(language: &str, function: &str) -> Option<&'static str> {
    let is = |name: &str| name == function || (name.ends_with('_') && function.starts_with(name));
    let found = WITHOUT.iter().find(|(of, name, _)| *of == language && is(name));
    found.map(|(_, _, how)| *how)
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect()
}

/// Returns the name of the function without its object: `dlm_lease_set_keep` is `keep` of `dlm_lease_set`.
fn object_of(function: &str) -> &str {
    const OBJECTS: [&str; 27] = [
        "dlm_call",
        "dlm_manager",
        "dlm_lock_list",
        "dlm_seen",
        "dlm_semaphore",
        "dlm_history",
        "dlm_lock",
        "dlm_lease_set",
        "dlm_lease",
        "dlm_pending",
        "dlm_completions",
        "dlm_latch",
        "dlm_watch",
        "dlm_texts",
        "dlm_table",
        "dlm_row_cells",
        "dlm_row",
        "dlm_cancel",
        "dlm_options",
        "dlm_error",
        "dlm_id_lock",
        "dlm_key_lock",
        "dlm_log",
        "dlm_version",
        "dlm_abi",
        "dlm_handles",
        "dlm_status",
    ];
    let is = |object: &&&str| {
        function.strip_prefix(**object).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    OBJECTS.iter().find(is).unwrap_or_else(|| panic!("{function} belongs to no object"))
}

/// Returns whether the source of a language has a type `Name`, or a method or a field of it as `Name.name` or `Name::name`.
fn has(source: &str, language: &str, name: &str) -> bool {
    let (kind, member) = name.split_once('.').or_else(|| name.split_once("::")).unwrap_or((name, ""));
    let keyword = if language == "Go" { "type" } else { "class" };
    let Some((_, body)) = source.split_once(&format!("\n{keyword} {kind} ")) else { return false };
    let body = body.split("\n}").next().unwrap();
    let is_field = |line: &str| line.trim().starts_with(&format!("{member} "));
    let is_method = |line: &str| {
        let of = line.starts_with("func (")
            && (line.contains(&format!(" {kind}) {member}("))
                || line.contains(&format!(" *{kind}) {member}(")));
        of && language == "Go"
    };
    let is_function = language == "C++" && body.contains(&format!(" {member}("));
    member.is_empty() || is_function || body.lines().any(is_field) || source.lines().any(is_method)
}

fn table() -> String {
    let read = |name: &str| fs::read_to_string(c::root().join("include").join(name)).unwrap();
    let hpp = read("dlm.hpp") + &read("dlm_rows.hpp");
    let mut go = String::new();
    for entry in fs::read_dir(c::root().join("go")).unwrap() {
        let path = entry.unwrap().path();
        let is_code = path.extension().is_some_and(|it| it == "go" || it == "h");
        if is_code && !["dlm.h", "dlm_rows.h", "dlm_go.h"].iter().any(|it| path.ends_with(it)) {
            go += &fs::read_to_string(path).unwrap();
        }
    }
    let languages = [("C++", words(&hpp)), ("Go", words(&go))];
    let mut used = BTreeSet::new();
    let mut by_object = BTreeMap::<String, Vec<String>>::new();
    let public = ["include/dlm.h", "include/dlm_rows.h"];
    for function in public.iter().flat_map(|header| c::functions_of(header)) {
        let name = &function.name;
        let mut cells = Vec::new();
        for (language, words) in &languages {
            let how = instead(language, name);
            if words.contains(name.as_str()) {
                assert!(
                    how.is_none_or(|_| !WITHOUT.iter().any(|(of, it, _)| of == language && it == name)),
                    "{language} calls {name}: remove it from the list"
                );
                cells.push("calls it".to_owned());
            } else {
                let how = how.unwrap_or_else(|| panic!("{language} has no way to do what {name} does"));
                used.insert((*language, how));
                cells.push(how.to_owned());
            }
        }
        let row = format!("| `{name}` | {} | {} |", cells[0], cells[1]);
        by_object.entry(object_of(name).to_owned()).or_default().push(row);
    }
    for (language, how) in &used {
        let source = if *language == "Go" { &go } else { &hpp };
        for name in how.split('`').skip(1).step_by(2) {
            assert!(has(source, language, name), "{language} has no {name}");
        }
    }
    let idle: Vec<_> = WITHOUT.iter().filter(|(of, _, how)| !used.contains(&(*of, *how))).collect();
    assert!(idle.is_empty(), "no longer needed: {idle:?}");
    let mut text = String::from("| C | C++ | Go |\n|---|---|---|\n");
    for row in by_object.into_values().flatten() {
        let _ = writeln!(text, "{row}");
    }
    text
}

/// To update the page: `DLM_BLESS=1 cargo test --all-features --test capi capi_languages`.
#[test]
fn the_table_of_languages_is_that_of_the_headers() {
    let path = c::root().join("docs/languages.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, _) = page.split_once(BEGIN).expect("the page has the comment");
    let made = format!("{head}{BEGIN}{}", table());
    if env::var_os("DLM_BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(
        page == made || env::var_os("DLM_BLESS").is_some(),
        "docs/languages.md is out of date: see the comment of this test"
    );
}

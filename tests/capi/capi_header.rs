//! The checked-in C header is the one that is generated from `src/capi`, and its names do not clash with others.

use std::collections::BTreeSet;
use std::env;
use std::fs;

use dlm_fixtures::c;
use dlm_testkit::skipped;

/// To update the copies: `DLM_BLESS=1 cargo test --all-features --test capi capi_header`.
///
/// The Go module has its own copies, because files outside of a module's folder do not belong to the module.
#[test]
fn the_checked_in_headers_are_not_old_ones() {
    for (headers, made) in [
        (&["include/dlm.h", "go/dlm.h"][..], include_str!(concat!(env!("OUT_DIR"), "/dlm.h"))),
        (&["include/dlm_rows.h", "go/dlm_rows.h"], include_str!(concat!(env!("OUT_DIR"), "/dlm_rows.h"))),
        (&["go/dlm_go.h"], include_str!(concat!(env!("OUT_DIR"), "/dlm_go.h"))),
    ] {
        for header in headers {
            let path = c::root().join(header);
            if env::var_os("DLM_BLESS").is_some() {
                fs::write(&path, made).unwrap();
            }
            let old = fs::read_to_string(path).ok().is_none_or(|checked_in| checked_in != made);
            assert!(!old, "{header} is missing or out of date: see the comment of this test");
        }
    }
}

#[test]
fn the_headers_declare_what_the_library_exports_and_nothing_else() {
    let declared: BTreeSet<_> = c::functions().into_iter().map(|it| it.name).collect();
    assert!(declared.len() > 30);
    assert_eq!(c::exported(&c::library("libdlm.so")), declared);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_compiler_for_32_bits_refuses_the_header() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("narrow.c");
    fs::write(&program, "#include <dlm.h>\n").unwrap();
    let compile = |width: &str| {
        let mut gcc = std::process::Command::new("gcc");
        // With the compiler's own headers: those of the system may lack the files for 32 bits.
        gcc.args([width, "-ffreestanding", "-fsyntax-only", "-I"]).arg(c::root().join("include"));
        c::run(gcc.arg(&program))
    };
    if compile("-m64").is_err() {
        return skipped("gcc", "it compiles nothing");
    }
    let refused = compile("-m32").unwrap_err();
    assert!(refused.contains("libdlm is for 64-bit machines"), "{refused}");
}

/// The header is the only list of stores that a C program has.
#[test]
fn the_header_names_every_kind_of_store_that_the_readme_names() {
    let header = fs::read_to_string(c::root().join("include/dlm.h")).unwrap();
    let readme = fs::read_to_string(c::root().join("README.md")).unwrap();
    let section = readme.split_once("## Options\n").unwrap().1.split_once("\n|").unwrap().0;
    let quoted = section.split('`').skip(1).step_by(2);
    let schemes: BTreeSet<_> =
        quoted.filter_map(|uri| uri.split_once(':')).map(|(scheme, _)| scheme).collect();
    assert!(schemes.len() >= 5, "{schemes:?}");
    for scheme in schemes {
        assert!(header.contains(&format!("\"{scheme}:")), "{scheme}");
    }
}

#[test]
fn the_header_explains_the_options_of_managers_and_tables_as_the_code_does() {
    let read = |name: &str| fs::read_to_string(c::root().join("include").join(name)).unwrap();
    let headers = read("dlm.h") + &read("dlm_rows.h");
    let told: Vec<Vec<_>> = headers
        .split("/// | key | default | |\n/// |---|---|---|\n")
        .skip(1)
        .map(|it| it.lines().map_while(|line| line.strip_prefix("/// | ")?.strip_suffix(" |")).collect())
        .collect();
    assert_eq!(told[0], listed(&dlm::store::MANAGER_OPTIONS));
    #[cfg(feature = "hbase")]
    {
        let (_, options) = dlm::store::TABLE_OPTIONS[0];
        assert_eq!(told[1], listed(options));
    }
}

fn listed(options: &[dlm::store::StoreOption]) -> Vec<String> {
    options
        .iter()
        .map(|it| {
            let default = if it.default.is_empty() { "none" } else { it.default };
            format!("{} | {default} | {}", it.key, it.meaning.replace('`', ""))
        })
        .collect()
}

/// The new names are in the headers, and each function of the interface 0 that is gone has its row.
#[test]
fn the_changelog_says_what_became_of_each_function() {
    let changelog = fs::read_to_string(c::root().join("CHANGELOG.md")).unwrap();
    let read = |name: &str| fs::read_to_string(c::root().join("include").join(name)).unwrap();
    let headers: String = ["dlm.h", "dlm_rows.h", "dlm.hpp", "dlm_rows.hpp"].map(read).concat();
    let words = |text: &str| -> BTreeSet<String> {
        text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_').map(str::to_owned).collect()
    };
    let (known, mut old) = (words(&headers), BTreeSet::new());
    for table in changelog.split("checked by: the_changelog_says_what_became_of_each_function").skip(1) {
        let rows = table.lines().skip(3).take_while(|line| line.starts_with('|'));
        for (before, after) in rows.map(|row| row[1..].split_once('|').unwrap()) {
            old.extend(words(before));
            for name in words(after).iter().filter(|it| it.starts_with("dlm_") || it.starts_with("DLM_")) {
                // The headers themselves, of which the last is for the Go package.
                let is_header = name == "dlm_rows" || name == "dlm_go";
                assert!(is_header || known.contains(name), "{name} is in no header");
            }
        }
    }
    for function in c::functions_of("tests/c/abi0/dlm.h") {
        let name = function.name;
        assert!(
            known.contains(&name) || old.contains(&name),
            "the changelog does not say that {name} is gone"
        );
    }
    assert!(old.contains("dlm_history_at_ms") && old.len() > 40, "{old:?}");
}

#[test]
fn every_exported_name_begins_with_dlm() {
    for name in c::exported(&c::library("libdlm.so")) {
        assert!(name.starts_with("dlm_"), "{name}");
    }
}

/// Names of libdlm3 4.2.0, the kernel DLM's library in Debian 12.
const KERNEL_DLM: [&str; 26] = [
    "dlm_close_lockspace",
    "dlm_create_lockspace",
    "dlm_dispatch",
    "dlm_get_fd",
    "dlm_kernel_version",
    "dlm_library_version",
    "dlm_lock",
    "dlm_lock_wait",
    "dlm_ls_deadlock_cancel",
    "dlm_ls_get_fd",
    "dlm_ls_lock",
    "dlm_ls_lock_wait",
    "dlm_ls_lockx",
    "dlm_ls_pthread_init",
    "dlm_ls_purge",
    "dlm_ls_unlock",
    "dlm_ls_unlock_wait",
    "dlm_new_lockspace",
    "dlm_open_lockspace",
    "dlm_pthread_cleanup",
    "dlm_pthread_init",
    "dlm_release_lockspace",
    "dlm_unlock",
    "dlm_unlock_wait",
    "lock_resource",
    "unlock_resource",
];

#[test]
fn no_function_is_named_as_one_of_the_kernel_dlm() {
    let ours = c::exported(&c::library("libdlm.so"));
    for name in KERNEL_DLM {
        assert!(!ours.contains(name), "{name}");
    }
}

/// The list above is from one version. This test also checks the current package and includes its header.
#[test]
fn the_kernel_dlm_of_this_system_can_be_used_in_the_same_program() {
    let dir = tempfile::tempdir().unwrap();
    let script = "apt-get download libdlm3 libdlm-dev && for it in *.deb; do dpkg-deb -x $it .; done";
    let fetched = c::run(std::process::Command::new("sh").args(["-ec", script]).current_dir(dir.path()));
    if let Err(failure) = fetched {
        return skipped("libdlm3", format!("the packages cannot be downloaded: {failure}"));
    }
    let found = c::find(dir.path(), |name| name.starts_with("libdlm.so.3."));
    let theirs = c::exported(&found.expect("a library in the package"));
    assert!(theirs.contains("dlm_lock"), "{theirs:?}");
    let shared: Vec<_> = c::exported(&c::library("libdlm.so")).intersection(&theirs).cloned().collect();
    assert!(shared.is_empty(), "{shared:?}");

    let program = dir.path().join("both.c");
    fs::write(
        &program,
        "#include <sys/types.h>\n#include <libdlm.h>\n#include <dlm.h>\nint main(void) { return 0; }\n",
    )
    .unwrap();
    for (compiler, standard) in [("gcc", "-std=gnu99"), ("g++", "-xc++")] {
        let mut command = std::process::Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).arg(&program);
        command.arg("-I").arg(dir.path().join("usr/include")).arg("-I").arg(c::root().join("include"));
        c::run(&mut command).unwrap();
    }
}

//! With the feature `capi`: the C header, made from `src/capi`, and the name of the shared library.
//!
//! The header goes to cargo's output directory. `include/dlm.h` is a copy: `tests/capi/capi_header.rs` compares the
//! two, and replaces the copy when told to.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "capi")]
    capi::main();
}

#[cfg(feature = "capi")]
mod capi {
    use std::env;
    use std::fmt::Write as _;
    use std::path::PathBuf;

    use cbindgen::{Builder, Config, DocumentationStyle, Language, SortKey, Style};

    const OPENING: &str = "\
/* dlm.h: distributed locks and leases, and locks for threads by id.
 * Made from src/capi by build.rs; do not edit.
 *
 * Handles (struct dlm_...) are opaque. Each is made by one function, owned by the caller, and freed by
 * the _free of its type, exactly once, in any order; every _free accepts NULL. No call consumes or keeps
 * a handle. A handle that was freed is told apart from a good one: calls with it fail with DLM_CLOSED,
 * and with what never was a handle of the type with DLM_INVALID_ARGUMENT. They do not crash.
 *
 * Threads: every function may be called from any thread, on the same handle too. Any thread may release
 * what another acquired. A handle may be freed while other threads are in calls with it: those go on, or
 * fail with DLM_CLOSED.
 *
 * Outputs come last and end in _out. They are written whatever happens: NULL, 0, false or -1 on failure,
 * so that all of them may be freed in any case. error_out may be NULL; it is set to an error that the
 * caller owns on failure, and to NULL on DLM_OK. No other pointer may be NULL unless its text says so:
 * a NULL fails with DLM_INVALID_ARGUMENT. All functions may fail with this, with DLM_FORKED and with
 * DLM_PANIC; what else they fail with is listed. Compilers warn where a status is ignored, see DLM_NODISCARD.
 *
 * Text is UTF-8, ends with NUL and is copied. Times are milliseconds. Functions that block say so.
 *
 * fork(): all handles belong to the process that made them. In a child made by fork() they answer
 * DLM_FORKED and touch nothing; freeing them there is allowed and does nothing. A child may make its own.
 *
 * The library starts threads only where it must, named dlm-...; it installs no signal handlers and no
 * exit handlers, and once loaded it stays loaded. A program that exits without releasing its leases
 * leaves them to end by themselves.
 *
 * Signals: no call raises SIGPIPE. The library's threads block all signals but those that a thread raises
 * itself (SIGSEGV and its like), so that the program's own threads, its sigwait() or signalfd(), receive
 * them. A call leaves the signal mask as it was.
 *
 * The kernel's DLM has a library of the same name (Debian: libdlm3, libdlm-dev). No function here is
 * named as one of its, and both headers can be included together. */
";

    const NODISCARD: &str = "\
/// Stands before every function that returns a status: compilers warn where it is ignored. A program that
/// defines it as nothing is not warned.
#ifndef DLM_NODISCARD
#if defined(__cplusplus) && __cplusplus >= 201703L
#define DLM_NODISCARD [[nodiscard]]
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L
#define DLM_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define DLM_NODISCARD __attribute__((warn_unused_result))
#else
#define DLM_NODISCARD
#endif
#endif

";

    const TEXT: &str = "\
/// A literal text for two arguments or fields: its bytes and how many they are, without the NUL.
#define DLM_TEXT(literal) \"\" literal, sizeof(literal) - 1

";

    /// A part of the page: its title, and how the names begin of what belongs there. The longest
    /// beginning wins.
    const SECTIONS: [(&str, &[&str]); 12] = [
        ("Results", &["dlm_status", "dlm_error"]),
        ("Versions", &["DLM_ABI", "dlm_version", "dlm_abi_check", "dlm_handles_open"]),
        ("Options", &["dlm_options"]),
        ("Managers", &["dlm_manager", "dlm_stats", "DLM_LEVEL"]),
        ("Locks", &["dlm_lock", "DLM_DEFAULT", "DLM_FOREVER"]),
        ("Leases", &["dlm_lease"]),
        (
            "Latches",
            &[
                "dlm_latch",
                "dlm_watch",
                "dlm_names",
                "DLM_LATCH",
                "dlm_manager_latch",
                "dlm_manager_initialize_latches",
            ],
        ),
        (
            "Rows of applications' tables in HBase",
            &[
                "dlm_table",
                "dlm_family",
                "dlm_bytes",
                "dlm_row",
                "dlm_lease_row",
                "dlm_cell",
                "dlm_change",
                "DLM_CHANGE",
            ],
        ),
        ("Ending waits", &["dlm_cancel"]),
        ("Locks by id, for the threads of one process", &["dlm_id_lock"]),
        ("Locks by key, for the threads of one process", &["dlm_key_lock"]),
        ("Log", &["dlm_log", "DLM_LOG"]),
    ];

    pub(super) fn main() {
        println!("cargo::rerun-if-changed=src/capi");
        let items = items();
        let abi = items.iter().find_map(|item| item.code().strip_prefix("#define DLM_ABI "));
        let abi = abi.expect("the header has a number").trim();
        // Without a name of its own, a program that was linked with it would also run with whatever
        // libdlm.so it finds. Never unloaded: its threads would run on in memory that is gone.
        let argument = format!("-Wl,-soname,libdlm.so.{abi},-z,nodelete");
        println!("cargo::rustc-cdylib-link-arg={argument}");
        // The same for a crate that builds a libdlm.so with stores of its own, where it is called
        // DEP_DLM_CDYLIB_LINK_ARG.
        println!("cargo::metadata=CDYLIB_LINK_ARG={argument}");
        std::fs::write(path("OUT_DIR").join("dlm.h"), page(&items))
            .expect("cargo's directory can be written");
    }

    fn path(variable: &str) -> PathBuf {
        env::var_os(variable).expect("cargo sets it").into()
    }

    /// A declaration with its comment.
    struct Item {
        text: String,
        section: usize,
    }

    impl Item {
        fn new(text: &str) -> Item {
            let name = name(text.lines().find(|line| !line.starts_with("///")).expect("more than a comment"));
            let fits =
                |names: &[&str]| names.iter().filter(|it| name.starts_with(**it)).map(|it| it.len()).max();
            let section = (0..SECTIONS.len())
                .filter_map(|at| Some((fits(SECTIONS[at].1)?, at)))
                .max()
                .unwrap_or_else(|| panic!("{name} belongs to no section of the header"))
                .1;
            let mut item = Item { text: text.trim_end().to_owned(), section };
            if item.code().starts_with("enum dlm_status dlm_") {
                item.text.insert_str(item.text.len() - item.code().len(), "DLM_NODISCARD\n");
            }
            item
        }

        fn code(&self) -> &str {
            let at = self.text.lines().take_while(|line| line.starts_with("///")).map(|line| line.len() + 1);
            &self.text[at.sum()..]
        }
    }

    /// What a line declares: `#define NAME ...`, `struct NAME...`, `typedef ... (*NAME)(...`, `... NAME(...`.
    fn name(line: &str) -> &str {
        let end = line.find(['(', ';', '{']).unwrap_or(line.len());
        if let Some(rest) = line.strip_prefix("#define ") {
            rest.split(' ').next().unwrap_or(rest)
        } else if let Some((_, rest)) = line.split_once("(*") {
            rest.split(')').next().unwrap_or(rest)
        } else {
            line[..end].trim_end().rsplit([' ', '*']).next().unwrap_or(line)
        }
    }

    fn items() -> Vec<Item> {
        let mut config = Config {
            language: Language::C,
            style: Style::Tag,
            documentation_style: DocumentationStyle::Cxx,
            usize_is_size_t: true,
            no_includes: true,
            line_length: 110,
            tab_width: 4,
            ..Config::default()
        };
        config.function.sort_by = Some(SortKey::None);
        let files = path("CARGO_MANIFEST_DIR").join("src/capi");
        let mut builder = Builder::new().with_config(config);
        // In this order within a section.
        for file in [
            "version",
            "status",
            "error",
            "arguments",
            "options",
            "manager",
            "lock",
            "lease",
            "latch",
            "names",
            "table",
            "bytes",
            "lease_row",
            "row",
            "row_cells",
            "cancel",
            "id_lock",
            "key_lock",
            "log",
            "waiting",
        ] {
            builder = builder.with_src(files.join(file).with_extension("rs"));
        }
        let mut text = Vec::new();
        builder.generate().expect("src/capi can be read as C").write(&mut text);
        String::from_utf8(text)
            .expect("text")
            .split("\n\n")
            .map(str::trim)
            .filter(|it| !it.is_empty())
            .map(Item::new)
            .collect()
    }

    fn page(items: &[Item]) -> String {
        let mut page = OPENING.to_owned();
        page += "#ifndef DLM_H\n#define DLM_H\n\n";
        page += "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\n";
        page += NODISCARD;
        page += TEXT;
        page += "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n";
        // For the functions that take a handle of a later section.
        for item in
            items.iter().map(Item::code).filter(|it| it.starts_with("struct ") && !it.contains(['*', '{']))
        {
            let _ = writeln!(page, "{}", item.trim_end());
        }
        for (at, &(title, _)) in SECTIONS.iter().enumerate() {
            let _ = write!(page, "\n/* ---- {title} ---- */\n\n");
            if title == "Versions" {
                page += &version();
            }
            for item in items.iter().filter(|item| item.section == at) {
                let _ = write!(page, "{}\n\n", item.text);
            }
            page.pop();
        }
        page + "\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n"
    }

    fn version() -> String {
        let mut text = String::from("/// Version of this header.\n");
        for part in ["MAJOR", "MINOR", "PATCH"] {
            let number = env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it");
            let _ = writeln!(text, "#define DLM_VERSION_{part} {number}");
        }
        let whole = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
        text + &format!("#define DLM_VERSION \"{whole}\"\n\n")
    }
}

//! With the feature `capi`: generates the C headers from `src/capi` and sets the name of the shared library.
//!
//! The headers go to cargo's output directory. `include/dlm.h` and the others are copies. `tests/capi/capi_header.rs` compares
//! them, and replaces the copies if `DLM_BLESS` is set.

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
/* dlm.h: distributed locks, leases and latches, and locks by id or key for the threads of one process.
 * Generated from src/capi by build.rs; do not edit.
 *
 * Handles (struct dlm_...) are opaque. The caller owns every handle that a call returns or writes to an
 * output, and frees it exactly once with the _free function of its type. Handles may be freed in any
 * order. Every _free accepts NULL. No other call takes ownership of a handle.
 *
 * A call with a freed handle fails with DLM_CLOSED. A call with a pointer that never was a handle of the
 * type fails with DLM_INVALID_ARGUMENT. Neither crashes. A _free then does nothing and logs a warning.
 * Functions that return no status then return the same as for NULL. Each type can have some 33 million open
 * handles. Beyond that, its _new function returns NULL, and calls that create such a handle fail with
 * DLM_INTERNAL_ERROR.
 *
 * Threads: every function may be called from any thread, also with a handle that other threads are using.
 * Any thread may release what another thread acquired. A handle may be freed while other threads are in
 * calls with it. Those calls continue, or fail with DLM_CLOSED.
 *
 * Outputs are the last arguments, and their names end in _out. Every call writes them: on failure NULL, 0,
 * false or -1. Outputs that are handles may therefore be freed in any case. error_out may be NULL. If it is
 * not, the call sets it to NULL on DLM_OK, and on failure to an error that the caller owns. No other pointer
 * may be NULL, unless the function's comment allows it.
 *
 * Errors: every function may fail with DLM_INVALID_ARGUMENT, DLM_FORKED and DLM_PANIC, and with DLM_CLOSED
 * for a freed handle. Its comment lists the other errors. Compilers warn if a program ignores a status, see
 * DLM_NODISCARD. C computes the arguments of one call in any order: show(dlm_lease_check(lease, &error), error)
 * may pass the error of before the check. So keep the status in a variable first.
 *
 * Text is UTF-8 and ends with NUL. Calls copy text and arrays. No other thread may change them, or use the
 * outputs, during the call. A text that a call returns is a const char * and lives until the handle that it came
 * from is freed, or for ever where the comment says that it is static. Only dlm_inspection has its texts in itself.
 *
 * const: a call changes nothing that another call or process could notice, if it takes a pointer to const.
 *
 * Structs grow: later versions append fields. So a call takes the size that the struct had when the program was
 * compiled, in the argument that ends in _size, or in the first field of dlm_acquire_options. Fields that the
 * program's version lacks count as 0. Fields that the library's version lacks must be 0, and are set to 0 in outputs.
 * The calls fail with DLM_INVALID_ARGUMENT for a size below that of the first version, and above 4096.
 *
 * Times are in milliseconds. A function that can block says so in its comment.
 *
 * fork(): a handle belongs to the process that created it. In a child process, calls with the parent's
 * handles fail with DLM_FORKED and change nothing. Freeing them there is allowed and does nothing. A child
 * may create its own handles, up to 62 forks deep, also if it executes no program and other threads of its
 * parent were in calls during the fork. fork() waits, for 10 s at most, while another thread opens or closes
 * an embedded store, or connects to Aerospike. If that takes longer, the child can open no embedded store. A
 * log function must not wait for a thread that forks.
 * A host name is looked up by the C library, whose locks a child may inherit from such a thread: where
 * children look names up, give the servers by address. A child made by a bare clone system call must not
 * use the library.
 *
 * Process: the library starts threads only when it needs them, with names that begin with dlm-. It installs
 * no signal handlers and no exit handlers. Once loaded, it is never unloaded. If a program exits without
 * releasing its leases, they expire. If there is no memory left, the library ends the program by abort().
 *
 * pthread_cancel() does not end a thread inside a call, also not in a call that blocks. It ends the thread at
 * its next cancellation point after the call. To end a wait, use struct dlm_cancel. A thread whose type is
 * PTHREAD_CANCEL_ASYNCHRONOUS must not call the library.
 *
 * Signals: no call raises SIGPIPE. The library's threads block all signals except those that a thread
 * raises itself (SIGSEGV and the like). The other signals therefore reach the program's own threads, its
 * sigwait() and its signalfd(). A call leaves the signal mask unchanged. A signal handler may call
 * dlm_cancel_trigger_fd(), and no other function.
 *
 * The kernel's DLM has a library of the same name (Debian: libdlm3, libdlm-dev). The two libraries have no
 * function name in common, and a program may include both headers. */
";

    const ROWS_OPENING: &str = "\
/* dlm_rows.h: rows of an application's own tables in HBase. Their changes can carry the fence of a lease.
 * Generated from src/capi by build.rs; do not edit. The rules of dlm.h apply. */
";

    const GO_OPENING: &str = "\
/* dlm_go.h: functions of libdlm for the Go package, and for no other program: they change only with DLM_ABI.
 * Generated from src/capi by build.rs; do not edit. */
";

    const NODISCARD: &str = "\
/// Marks every function that returns a status: compilers warn if a program ignores the status. Define it as
/// nothing before including this header to turn the warning off.
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

    const WIDTH: &str = "\
#if UINTPTR_MAX < UINT64_MAX
#error \"libdlm is for 64-bit machines: its handles have 64 bits\"
#endif

";

    /// Follows the struct.
    const ACQUIRE_OPTIONS: &str = "\
/// The options of an acquisition that asks for nothing in particular.
#define DLM_ACQUIRE_OPTIONS \
    {sizeof(struct dlm_acquire_options), DLM_DEFAULT, DLM_DEFAULT, 0, 0, NULL, 0, false, {0, 0, 0}, NULL, NULL}

";

    const TEXT: &str = "\
/// Passes a string literal as two arguments or fields: its bytes, and their number without the NUL.
#define DLM_TEXT(literal) \"\" literal, sizeof(literal) - 1

";

    /// The title of the section that is a header of its own.
    const ROWS: &str = "Rows of application tables in HBase";
    /// As above, for the Go package.
    const GO: &str = "For the Go package";

    /// Sections of the headers: the title, and the prefixes of the names that belong there. The longest
    /// prefix wins.
    const SECTIONS: [(&str, &[&str]); 16] = [
        ("Results", &["dlm_status", "dlm_error"]),
        ("Versions", &["DLM_ABI", "dlm_version", "dlm_abi_check", "dlm_handles_open"]),
        ("Options", &["dlm_options"]),
        ("Managers", &["dlm_manager", "dlm_stats", "DLM_LEVEL"]),
        (
            "Locks",
            &["dlm_lock", "dlm_acquire_options", "dlm_inspection", "DLM_DEFAULT", "DLM_FOREVER", "DLM_MODE"],
        ),
        ("Leases", &["dlm_lease", "dlm_lease_set", "DLM_STATE", "DLM_LOST"]),
        (
            "Looking after the locks of all clients",
            &[
                "dlm_lock_list",
                "dlm_manager_list",
                "dlm_manager_lock_named",
                "dlm_seen",
                "dlm_lock_see",
                "dlm_lock_waiting",
                "dlm_history",
                "dlm_lock_history",
            ],
        ),
        (
            "Calls that do not block",
            &[
                "dlm_pending",
                "dlm_completion",
                "DLM_COMPLETION",
                "dlm_lease_notify",
                "dlm_lock_acquire_start",
                "dlm_semaphore_acquire_start",
                "dlm_call",
                "dlm_lease_release_start",
                "dlm_lease_renew_start",
            ],
        ),
        ("Semaphores", &["dlm_semaphore", "dlm_manager_semaphore"]),
        (
            "Latches",
            &[
                "dlm_latch",
                "dlm_watch",
                "dlm_texts",
                "DLM_LATCH",
                "dlm_manager_latch",
                "dlm_manager_initialize_latches",
            ],
        ),
        (
            ROWS,
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
        ("Cancellation", &["dlm_cancel"]),
        ("Locks by id, for the threads of one process", &["dlm_id_lock"]),
        ("Locks by key, for the threads of one process", &["dlm_key_lock"]),
        ("Log", &["dlm_log", "DLM_LOG"]),
        (GO, &["dlm_lock_acquire_start_here", "dlm_semaphore_acquire_start_here", "dlm_pending_ask"]),
    ];

    pub(super) fn main() {
        println!("cargo::rerun-if-changed=src/capi");
        let items = items();
        let abi = items.iter().find_map(|item| item.code().strip_prefix("#define DLM_ABI "));
        let abi = abi.expect("the header defines DLM_ABI").trim();
        // -soname: without the number, a linked program would also load a library of another binary interface.
        // The kernel DLM's library has the name libdlm.so.3, which ours must never have. -z nodelete: the library's
        // threads would go on running in unmapped memory.
        let argument = format!("-Wl,-soname,libdlm-locks.so.{abi},-z,nodelete");
        println!("cargo::rustc-cdylib-link-arg={argument}");
        // The same argument for a crate that builds a libdlm.so with its own stores. Its build script
        // reads it from DEP_DLM_CDYLIB_LINK_ARG.
        println!("cargo::metadata=CDYLIB_LINK_ARG={argument}");
        for (name, page) in [
            ("dlm.h", page(&items)),
            ("dlm_rows.h", small_page(&items, ROWS_OPENING, "DLM_ROWS_H", ROWS)),
            ("dlm_go.h", small_page(&items, GO_OPENING, "DLM_GO_H", GO)),
        ] {
            std::fs::write(path("OUT_DIR").join(name), page).expect("cargo's output directory is writable");
        }
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

    /// The name that a line declares: `#define NAME ...`, `struct NAME...`, `typedef ... (*NAME)(...`,
    /// `... NAME(...`.
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
        // The items of a section keep this order of files.
        for file in [
            "version",
            "status",
            "error",
            "arguments",
            "acquire_options",
            "options",
            "manager",
            "lock",
            "inspection",
            "lock_list",
            "seen",
            "history",
            "election",
            "lease",
            "lease_set",
            "lost_reason",
            "mode",
            "lease_state",
            "pending",
            "completions",
            "call",
            "semaphore",
            "latch",
            "texts",
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
            "waiting_line",
            "go_only",
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
        page += WIDTH;
        page += NODISCARD;
        page += TEXT;
        page += "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n";
        // Some functions take a handle that a later section declares.
        page += &handles(items, |title| title != ROWS);
        page += "struct dlm_acquire_options;\n";
        for &(title, _) in SECTIONS.iter().filter(|(title, _)| ![ROWS, GO].contains(title)) {
            let _ = write!(page, "\n/* ---- {title} ---- */\n\n");
            if title == "Versions" {
                page += &version();
            }
            page += &section(items, title);
        }
        page + "\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n"
    }

    /// A header with one section, which includes `dlm.h`.
    fn small_page(items: &[Item], opening: &str, guard: &str, title: &str) -> String {
        let mut page = opening.to_owned();
        let _ = write!(page, "#ifndef {guard}\n#define {guard}\n\n#include \"dlm.h\"\n\n");
        page += "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n";
        let handles = handles(items, |it| it == title);
        if !handles.is_empty() {
            page += &(handles + "\n");
        }
        page += &section(items, title);
        page + "\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n"
    }

    /// The declarations of the handles of these sections.
    fn handles(items: &[Item], is_wanted: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        for item in items.iter().filter(|item| is_wanted(SECTIONS[item.section].0)) {
            if item.code().starts_with("struct ") && !item.code().contains(['*', '{']) {
                let _ = writeln!(text, "{}", item.code().trim_end());
            }
        }
        text
    }

    fn section(items: &[Item], title: &str) -> String {
        let mut text = String::new();
        for item in items.iter().filter(|item| SECTIONS[item.section].0 == title) {
            let _ = write!(text, "{}\n\n", item.text);
            if item.code().starts_with("struct dlm_acquire_options {") {
                text += ACQUIRE_OPTIONS;
            }
        }
        text.pop();
        text
    }

    fn version() -> String {
        let mut text = String::from("/// Version of this header.\n");
        for part in ["MAJOR", "MINOR", "PATCH"] {
            let number = env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it");
            let _ = writeln!(text, "#define DLM_VERSION_{part} {number}");
        }
        let whole = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
        let number = "(DLM_VERSION_MAJOR * 1000000 + DLM_VERSION_MINOR * 1000 + DLM_VERSION_PATCH)";
        let _ = writeln!(text, "#define DLM_VERSION_NUMBER {number}");
        text + &format!("#define DLM_VERSION \"{whole}\"\n\n")
    }
}

//! The tables and examples of docs/tuning.md.

use std::path::Path;

use dlm::store::{MANAGER_OPTIONS, schemes};
use dlm::{Code, LockManager};
use dlm_fixtures::console::Console;

use super::tables::{code_in, rows_after};

const PAGE: &str = include_str!("../../docs/tuning.md");

/// A number and its unit. Durations are in milliseconds.
fn number(text: &str) -> (u64, &'static str) {
    let digits = text.trim_end_matches(|it: char| it.is_alphabetic());
    let factor = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "ppm" => return (digits.parse().unwrap(), "ppm"),
        _ => return (digits.parse().unwrap(), ""),
    };
    (digits.parse::<u64>().unwrap() * factor, "ms")
}

/// A URI that opens without a server.
fn uri(stores: &str, option: &str, value: &str) -> String {
    let store = match stores {
        "all" => "memory:",
        "`hbase://`" => "hbase://127.0.0.1:1/locks",
        "`hbase+thrift://`" => "hbase+thrift://127.0.0.1:1/locks",
        "`aerospike://`" => "aerospike://127.0.0.1:1/test/locks",
        other => panic!("no store is called {other}"),
    };
    format!("{store}?client=c&farm=f&{option}={value}")
}

#[test]
fn the_settings_of_the_page_have_these_defaults_and_limits() {
    let rows = rows_after(PAGE, "# Settings and their values\n");
    for row in &rows {
        let (option, stores, default) = (code_in(&row[0])[0], row[1].as_str(), code_in(&row[2])[0]);
        if stores == "`aerospike://`" && !cfg!(feature = "aerospike") {
            continue;
        }
        let known = match stores.trim_matches('`') {
            "all" => &MANAGER_OPTIONS[..],
            store => schemes().iter().find(|scheme| scheme.form().starts_with(store)).unwrap().options(),
        };
        let in_code = known.iter().find(|known| known.key == option).unwrap_or_else(|| panic!("{option}"));
        assert_eq!(in_code.default, default, "the default of {option}");

        let refused = |value: &str| {
            let opened = LockManager::open(&uri(stores, option, value));
            matches!(opened, Err(error) if error.code() == Code::InvalidArgument)
        };
        assert!(!refused(default), "{option}={default}");
        let limits: Vec<_> = code_in(&row[3]);
        let (least, unit) = number(limits[0]);
        assert!(!refused(limits[0]), "{option}={}", limits[0]);
        // No history at all is allowed too.
        if least > 0 && !(option == "history" && least == 1) {
            let below = format!("{}{unit}", least - 1);
            assert!(refused(&below), "{option}={below} is allowed");
        }
        match limits[..] {
            [_, most] => {
                let above = format!("{}{unit}", number(most).0 + 1);
                assert!(!refused(most), "{option}={most}");
                assert!(refused(&above), "{option}={above} is allowed");
            }
            _ => assert_eq!((option, row[3].as_str()), ("wait", "`0s` or more")),
        }
    }
    // Options whose values are numbers, and no others, are in the table.
    let numeric = |default: &str| default.starts_with(|it: char| it.is_ascii_digit());
    let of_stores: Vec<_> = schemes().iter().flat_map(|scheme| scheme.options()).collect();
    for option in MANAGER_OPTIONS
        .iter()
        .chain(of_stores)
        .filter(|option| numeric(option.default) && option.key != "slack")
    {
        assert!(rows.iter().any(|row| code_in(&row[0])[0] == option.key), "{} is not explained", option.key);
    }
}

#[test]
fn the_fractions_of_the_page_are_those_of_the_source() {
    let keeper = include_str!("../../src/lease/keeper.rs");
    let life = include_str!("../../src/lease/life.rs");
    let run = include_str!("../../src/cli/run.rs");
    let rows = rows_after(PAGE, "\n## Renewal\n");
    let told = [
        ("after a third of the lease, or up to a tenth", keeper, "jittered(length / 3).mul_f64(1.0 / 1.1)"),
        ("a fifteenth of the lease, 5 s at most", keeper, "length(lock) / 15).clamp(RETRY_MIN, RETRY_MAX)"),
        ("less than a third of the lease", life, "third: length / 3,"),
        ("a quarter of the TTL", run, "(self.ttl / 4).min(TERM_AHEAD_MAX)"),
        ("a tenth of the TTL", run, "(self.ttl / 10).min(KILL_AHEAD_MAX)"),
    ];
    assert_eq!(rows.len(), told.len());
    for (row, (words, source, code)) in rows.iter().zip(told) {
        assert!(row[1].contains(words), "{row:?}");
        assert!(source.contains(code), "the source no longer has {code:?}");
    }
    assert!(keeper.contains("const RETRY_MAX: Duration = Duration::from_secs(5);"));
    for (row, name) in [(&rows[3], "TERM_AHEAD_MAX"), (&rows[4], "KILL_AHEAD_MAX")] {
        let (_, limit) = run.split_once(&format!("const {name}: Duration = Duration::from_secs(")).unwrap();
        let limit = limit.split_once(')').unwrap().0;
        assert!(row[1].ends_with(&format!(", {limit} s at most")), "{row:?}");
    }
}

#[test]
fn the_examples_of_the_page_work() {
    let console = Console::new(Path::new(env!("CARGO_BIN_EXE_dlm")));
    let store = format!("embedded:{}?", console.dir().join("store").display());
    console.place("embedded:?", &store).run_blocks_of(PAGE, "the_examples_of_the_page_work");
}

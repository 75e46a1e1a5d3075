//! `dlm doctor --report`: which promises hold with this store and these options, why, and which tests prove it.

use std::fmt::Write as _;

use dlm::{Diagnostic, Severity};
use serde_json::json;

use crate::cli::args::Global;
use crate::cli::open::{in_uri, option_in, scheme};

/// The stores of this library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreKind {
    Embedded,
    Memory,
    Hbase,
    Gateway,
    Aerospike,
    Other,
}

impl StoreKind {
    fn of(uri: &str) -> StoreKind {
        match scheme(uri).as_str() {
            "embedded" => StoreKind::Embedded,
            "memory" => StoreKind::Memory,
            "hbase" => StoreKind::Hbase,
            "hbase+thrift" => StoreKind::Gateway,
            "aerospike" => StoreKind::Aerospike,
            _ => StoreKind::Other,
        }
    }

    /// Returns the words after `tests/run --` that run this suite of the store.
    fn suite(self, layer: &str) -> String {
        let file = match self {
            StoreKind::Embedded => "embedded_contract",
            StoreKind::Memory => "memory_contract",
            StoreKind::Hbase => "hbase_native",
            StoreKind::Gateway => "gateway_contract",
            StoreKind::Aerospike => "aerospike_contract",
            StoreKind::Other => {
                return "tests/run -- contract!    (dlm-testkit, in the crate of the store)".into();
            }
        };
        format!("tests/run -- {file}::{layer}")
    }
}

/// How far a promise holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Holds,
    /// It holds with the limit that the reason gives.
    Limited,
    Fails,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Limited => "limited",
            Verdict::Fails => "fails",
        }
    }
}

struct Promise {
    what: &'static str,
    verdict: Verdict,
    why: String,
    proof: String,
}

/// Returns the report as text, or with `--json` one object a promise and line.
pub(crate) fn report(global: &Global, store: &str, found: &[Diagnostic]) -> String {
    let promises = promises(&global.store, found);
    if global.json {
        let object = |promise: &Promise| {
            let Promise { what, verdict, why, proof } = promise;
            json!({ "promise": what, "verdict": verdict.name(), "why": why, "proof": proof }).to_string()
        };
        return promises.iter().map(object).collect::<Vec<_>>().join("\n");
    }
    let mut text = store.to_owned();
    for Promise { what, verdict, why, proof } in promises {
        let _ =
            write!(text, "\n{:<8} {what}\n         why:   {why}\n         proof: {proof}", verdict.name());
    }
    text
}

fn promises(uri: &str, found: &[Diagnostic]) -> Vec<Promise> {
    use StoreKind::{Aerospike, Embedded, Gateway, Hbase, Memory, Other};
    let kind = StoreKind::of(uri);
    let is = |key: &str, value: &str| option_in(uri, key).as_deref() == Some(value);
    let layout = |name: &str| is("layout", name);
    let has_java = matches!(kind, Hbase | Gateway | Aerospike) && !layout("own") && !layout("both");
    let torture = match kind {
        Embedded => "tests/run -- torture_breaks_no_rule_on_the_embedded_store".into(),
        Hbase if layout("own") => {
            "tests/run --long -- torture_breaks_no_rule_on_hbase_in_the_layout_own".into()
        }
        Hbase => "tests/run -- torture_breaks_no_rule_on_hbase".into(),
        Gateway => "tests/run --long -- torture_breaks_no_rule_through_a_gateway".into(),
        Aerospike if layout("own") => {
            "tests/run --long -- torture_breaks_no_rule_on_aerospike_in_the_layout_own".into()
        }
        Aerospike => "tests/run -- torture_breaks_no_rule_on_aerospike".into(),
        Memory | Other => kind.suite("waits"),
    };
    let exclusion = match kind {
        Embedded => "one transaction checks and writes; the kernel's clock ends leases",
        Memory => "one mutex; only the threads of this manager",
        Hbase | Gateway => "the RegionServer checks and writes in one step, and its clock ends leases",
        Aerospike => "the record's node checks and writes in one step, and its clock ends leases",
        Other => "see the documentation of the store",
    };
    let java = "; a Java client may release a lock that it has lost, and trusts its own clock";
    let exclusion = format!("{exclusion}{}", if has_java { java } else { "" });
    let fences_off = is("fence", "off");
    let notices = matches!(kind, Embedded | Memory) && !is("notices", "off")
        || option_in(uri, "notices").is_some_and(|value| value.starts_with("udp:"));
    vec![
        judged(
            "while a lease lasts, there is no other holder",
            if has_java { Verdict::Limited } else { Verdict::Holds },
            exclusion,
            torture,
            found,
            |topic| !["clock", "latency", "notices"].contains(&topic),
        ),
        judged(
            "each grant has a higher fence than all earlier ones",
            if fences_off { Verdict::Fails } else { Verdict::Holds },
            if fences_off {
                "fence=off: leases have no fences".into()
            } else {
                "the store counts them, and the clock gives the first one".into()
            },
            kind.suite("stores::fences_rise"),
            found,
            |topic| topic == "a lock",
        ),
        judged(
            "a lease ends for its holder before it ends in the store",
            Verdict::Holds,
            "it counts from before the request, and is shorter by clock_margin".into(),
            kind.suite("leases"),
            found,
            |topic| ["clock", "clocks", "nodes' clocks"].contains(&topic),
        ),
        judged(
            "a granted lock survives the crash of a server",
            match kind {
                Memory => Verdict::Fails,
                Aerospike | Other => Verdict::Limited,
                Embedded | Hbase | Gateway => Verdict::Holds,
            },
            match kind {
                Memory => "the locks end with the process",
                Embedded => "there is no server; a restart of the machine ends every lease",
                Hbase | Gateway => "a grant is answered when the server's log is synced",
                Aerospike => "as long as one copy of its record survives",
                Other => "see the documentation of the store",
            }
            .into(),
            match kind {
                Hbase | Gateway => "tests/run --long -- a_crash_of_hbase_frees_no_lock_early".into(),
                Aerospike => "tests/run -- aerospike_restarts".into(),
                Embedded => "tests/run -- embedded_processes".into(),
                Memory | Other => kind.suite("stores"),
            },
            found,
            |topic| ["writes", "replication", "durability", "eviction", "consistency", "table"].contains(&topic),
        ),
        judged(
            "a request did not happen, happened, or is in doubt, and the caller is told which",
            Verdict::Holds,
            match kind {
                Memory | Embedded => "there is no reply that could be lost",
                _ => "a lost reply is settled by a read, or reported as IN_DOUBT; no write is repeated blindly",
            }
            .into(),
            match kind {
                Hbase => "tests/run -- hbase_losses".into(),
                Gateway => "tests/run -- gateway_losses".into(),
                Aerospike => "tests/run -- aerospike_losses".into(),
                _ => kind.suite("stores"),
            },
            found,
            |_| false,
        ),
        judged(
            "the lock of a process that has died is free soon",
            if kind == Embedded { Verdict::Holds } else { Verdict::Limited },
            match kind {
                Embedded => "at once if its lease dies with it (dies_with_process, `dlm run`), otherwise at the end of the TTL",
                _ => "at the end of its TTL: a server cannot distinguish a dead process from one that it cannot reach",
            }
            .into(),
            match kind {
                Embedded => "tests/run -- embedded_liveness".into(),
                _ => kind.suite("waits::a_holder_that_vanished"),
            },
            found,
            |_| false,
        ),
        judged(
            "a waiter gets a released lock within milliseconds, in order of arrival",
            if notices { Verdict::Holds } else { Verdict::Limited },
            match notices {
                true => "processes notify each other (notices)",
                false => "between processes a waiter asks once per `retry`; set notices=udp://ADDRESS",
            }
            .into(),
            "tests/run -- stores_notices".into(),
            found,
            |topic| topic == "notices",
        ),
        judged(
            "each count-down of a latch counts exactly once",
            if kind == Gateway { Verdict::Limited } else { Verdict::Holds },
            match kind {
                Gateway => "a lost reply is IN_DOUBT, because Thrift1 can set no mark in the same step",
                _ => "the store notes each step and applies it once",
            }
            .into(),
            kind.suite("latch_stores"),
            found,
            |_| false,
        ),
        judged(
            "an operator can break the lock of any holder, and of no other",
            if kind == Gateway { Verdict::Limited } else { Verdict::Holds },
            match kind {
                Gateway => "not that of a Java client: Thrift1 compares no time of a write",
                _ => "the release of the record that was shown, under its own condition",
            }
            .into(),
            kind.suite("breaks"),
            found,
            |_| false,
        ),
    ]
    .into_iter()
    .map(|promise| if in_uri(uri, "strict") { promise.strict() } else { promise })
    .collect()
}

impl Promise {
    /// `strict=true` has refused a store with a failure before.
    fn strict(mut self) -> Promise {
        self.why += "; strict=true refuses a store that fails a check";
        self
    }
}

/// Judges a promise by what holds for its store and by the diagnostics about it.
fn judged(
    what: &'static str,
    verdict: Verdict,
    mut why: String,
    proof: String,
    found: &[Diagnostic],
    concerns: impl Fn(&str) -> bool,
) -> Promise {
    let mut verdict = verdict;
    for diagnostic in found.iter().filter(|diagnostic| concerns(diagnostic.topic)) {
        match diagnostic.severity {
            Severity::Ok => continue,
            Severity::Fail => verdict = Verdict::Fails,
            _ if verdict == Verdict::Holds => verdict = Verdict::Limited,
            _ => {}
        }
        let _ = write!(why, "; {diagnostic}");
    }
    Promise { what, verdict, why, proof }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URIS: [&str; 9] = [
        "embedded:",
        "memory:",
        "hbase://m:16000/locks",
        "hbase://m:16000/locks?layout=own",
        "hbase+thrift://h:9090/locks",
        "aerospike://h:3000/test/locks",
        "aerospike://h:3000/test/locks?layout=own",
        "other:",
        "EMBEDDED:?notices=o%66f",
    ];

    #[test]
    fn findings_and_options_weaken_the_promises_that_they_concern() {
        let verdict = |uri: &str, found: &[Diagnostic], what: &str| {
            let promises = promises(uri, found);
            promises.into_iter().find(|promise| promise.what.contains(what)).unwrap().verdict
        };
        assert_eq!(verdict("embedded:", &[], "no other holder"), Verdict::Holds);
        assert_eq!(verdict("hbase://m:1/t?fence=off", &[], "fence"), Verdict::Fails);
        let evicts = Diagnostic::fail("eviction", "is on", "switch it off");
        assert_eq!(
            verdict("aerospike://h/n/s", std::slice::from_ref(&evicts), "no other holder"),
            Verdict::Fails
        );
        assert_eq!(verdict("aerospike://h/n/s", &[evicts], "fence"), Verdict::Holds);
        let clock = Diagnostic::warn("clock", "is fast", "slow it down");
        assert_eq!(verdict("embedded:", &[clock], "before it ends in the store"), Verdict::Limited);
    }

    /// The command that proves a promise runs tests that exist.
    #[test]
    fn each_proof_names_tests_of_this_repository() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        if !root.join("tests/torture").exists() {
            return;
        }
        let mut sources = String::new();
        for dir in [
            "tests/torture",
            "tests/local",
            "tests/hbase",
            "tests/hbase_servers",
            "tests/aerospike",
            "tests/processes",
            "testkit/src/contract",
        ] {
            for file in std::fs::read_dir(root.join(dir)).unwrap().flatten() {
                sources += &format!("mod {};\n", file.path().file_stem().unwrap().to_string_lossy());
                sources += &std::fs::read_to_string(file.path()).unwrap_or_default();
            }
        }
        for uri in URIS {
            for Promise { what, proof, .. } in promises(uri, &[]) {
                let words =
                    ["tests/run -- ", "tests/run --long -- "].iter().find_map(|it| proof.strip_prefix(it));
                let words = words.unwrap_or_else(|| panic!("{proof}"));
                // The short run of such a test proves nothing.
                let test =
                    sources.split(&format!("fn {words}")).nth(1).and_then(|it| it.split("\n}\n").next());
                let is_long = test.is_some_and(|test| test.contains("left_to_the_long_run()"));
                assert_eq!(proof.contains("--long"), is_long, "{what}: {proof}");
                for word in words.split_whitespace().next().unwrap().split("::") {
                    let named = [format!("mod {word}"), format!("fn {word}"), format!("{word} {{")];
                    assert!(
                        named.iter().any(|name| sources.contains(name)) || word == "contract!",
                        "{what}: {proof}"
                    );
                }
            }
        }
    }
}

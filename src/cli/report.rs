//! `dlm doctor --report`: which promises hold with this store and these options, why, and which tests prove it.

use std::fmt::Write as _;

use dlm::store::Promise;
use dlm::{Diagnostic, LockManager};
use serde_json::json;

/// Returns the report as text, or as JSON with one object a promise and line.
pub(crate) fn report(manager: &LockManager, found: &[Diagnostic], as_json: bool) -> String {
    let promises = manager.promises(found);
    if as_json {
        let object = |promise: &Promise| {
            let Promise { topic, verdict, why, proof, .. } = promise;
            let (what, verdict) = (topic.to_string(), verdict.to_string());
            json!({ "promise": what, "verdict": verdict, "why": why, "proof": proof }).to_string()
        };
        return promises.iter().map(object).collect::<Vec<_>>().join("\n");
    }
    let mut text = manager.store();
    for Promise { topic, verdict, why, proof, .. } in promises {
        let _ = write!(text, "\n{verdict:<8} {topic}\n         why:   {why}\n         proof: {proof}");
    }
    text
}

#[cfg(test)]
mod tests {
    use dlm::store::{PromiseTopic, Verdict};

    use super::*;

    /// Returns the promises of a store that is not reached. The scheme `embedded` has a directory.
    fn promises(uri: &str, found: &[Diagnostic]) -> Vec<Promise> {
        let manager = LockManager::builder().store_uri(uri).client("c").open().unwrap();
        manager.promises(found)
    }

    #[test]
    fn findings_and_options_weaken_the_promises_that_they_concern() {
        let verdict = |uri: &str, found: &[Diagnostic], topic: PromiseTopic| {
            promises(uri, found).into_iter().find(|promise| promise.topic == topic).unwrap().verdict
        };
        let dir = tempfile::tempdir().unwrap();
        let embedded = format!("embedded:{}", dir.path().join("store").display());
        assert_eq!(verdict(&embedded, &[], PromiseTopic::Exclusion), Verdict::Holds);
        assert_eq!(verdict(&embedded, &[], PromiseTopic::Waiting), Verdict::Holds);
        let off = format!("{embedded}?notices=o%66f");
        assert_eq!(verdict(&off, &[], PromiseTopic::Waiting), Verdict::Limited);
        let clock = Diagnostic::warn("clock", "is fast", "slow it down");
        assert_eq!(verdict(&embedded, &[clock], PromiseTopic::LeaseEnd), Verdict::Limited);
        if !cfg!(feature = "hbase") || !cfg!(feature = "aerospike") {
            return;
        }
        // What an option says, and not its text elsewhere in the URI.
        let hbase = |option: &str| format!("hbase://m:1/t?{option}");
        assert_eq!(verdict(&hbase("fence=off"), &[], PromiseTopic::Fences), Verdict::Fails);
        assert_eq!(verdict(&hbase("purpose=fence%3Doff"), &[], PromiseTopic::Fences), Verdict::Holds);
        assert_eq!(verdict(&hbase("layout=own"), &[], PromiseTopic::Exclusion), Verdict::Holds);
        assert_eq!(verdict(&hbase(""), &[], PromiseTopic::Exclusion), Verdict::Limited);
        let own = "aerospike://h/n/s?layout=own";
        let evicts = Diagnostic::fail("eviction", "is on", "switch it off");
        let evicts = std::slice::from_ref(&evicts);
        assert_eq!(verdict(own, evicts, PromiseTopic::Exclusion), Verdict::Fails);
        assert_eq!(verdict(own, evicts, PromiseTopic::Fences), Verdict::Holds);
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
        let dir = tempfile::tempdir().unwrap();
        let uris = [
            &format!("embedded:{}", dir.path().join("store").display()),
            "memory:",
            "hbase://m:16000/locks",
            "hbase://m:16000/locks?layout=own",
            "hbase://m:16000/locks?layout=both",
            "hbase+thrift://h:9090/locks?fence=off",
            "aerospike://h:3000/test/locks",
            "aerospike://h:3000/test/locks?layout=own",
            "aerospike://h:3000/test/locks?layout=both",
        ];
        for uri in uris {
            let is_built = |scheme: &str, built: bool| built || !uri.starts_with(scheme);
            if !is_built("hbase:", cfg!(feature = "hbase"))
                || !is_built("hbase+thrift:", cfg!(feature = "gateway"))
                || !is_built("aerospike:", cfg!(feature = "aerospike"))
            {
                continue;
            }
            for Promise { topic, proof, .. } in promises(uri, &[]) {
                let words =
                    ["tests/run -- ", "tests/run --long -- "].iter().find_map(|it| proof.strip_prefix(it));
                let words = words.unwrap_or_else(|| panic!("{proof}"));
                // The short run of such a test proves nothing.
                let test =
                    sources.split(&format!("fn {words}")).nth(1).and_then(|it| it.split("\n}\n").next());
                let is_long = test.is_some_and(|test| test.contains("left_to_the_long_run()"));
                assert_eq!(proof.contains("--long"), is_long, "{topic}: {proof}");
                for word in words.split_whitespace().next().unwrap().split("::") {
                    let named = [format!("mod {word}"), format!("fn {word}"), format!("{word} {{")];
                    assert!(named.iter().any(|name| sources.contains(name)), "{topic}: {proof}");
                }
            }
        }
    }
}

//! What a store on HBase promises: see [`Promise`].

use crate::names::promise::{exclusion_beside_java, fences_are_off, of_any_server, suite};
use crate::store::{Promise, PromiseTopic, Verdict};

/// The contract tests of the layouts, and those through a gateway.
const NATIVE: &str = "hbase_native";
const GATEWAY: &str = "gateway_contract";

const EXCLUSION: &str = "the RegionServer checks and writes in one step, and its clock ends leases";

/// Promises of a store whose locks clients of the Java library use too.
pub(super) fn beside_java(through_gateway: bool, has_fences: bool) -> Vec<Promise> {
    let mut promises = if through_gateway {
        let mut promises = of_hbase(GATEWAY, "gateway_losses");
        promises.extend([
            exclusion_beside_java(EXCLUSION, "tests/run --long -- torture_breaks_no_rule_through_a_gateway"),
            Promise::new(
                PromiseTopic::Latches,
                Verdict::Limited,
                "a lost reply is IN_DOUBT, because Thrift1 can set no mark in the same step",
                suite(GATEWAY, "latch_stores"),
            ),
            Promise::new(
                PromiseTopic::Breaks,
                Verdict::Limited,
                "not that of a Java client: Thrift1 compares no time of a write",
                suite(GATEWAY, "breaks"),
            ),
        ]);
        promises
    } else {
        let mut promises = of_hbase(NATIVE, "hbase_losses");
        promises.push(exclusion_beside_java(EXCLUSION, "tests/run -- torture_breaks_no_rule_on_hbase"));
        promises
    };
    if !has_fences {
        promises.push(fences_are_off(if through_gateway { GATEWAY } else { NATIVE }));
    }
    promises
}

/// Promises of the layout `own`.
pub(super) fn own() -> Vec<Promise> {
    let mut promises = of_hbase(NATIVE, "hbase_losses");
    let torture = "tests/run --long -- torture_breaks_no_rule_on_hbase_in_the_layout_own";
    promises.push(Promise::new(PromiseTopic::Exclusion, Verdict::Holds, EXCLUSION, torture));
    promises
}

/// Promises of the layout `both`, beside which Java clients may run.
pub(super) fn both() -> Vec<Promise> {
    let mut promises = own();
    promises.push(exclusion_beside_java(EXCLUSION, "tests/run -- torture_breaks_no_rule_on_hbase"));
    promises
}

fn of_hbase(tests: &str, losses: &str) -> Vec<Promise> {
    let mut promises = of_any_server(tests, losses);
    promises.push(Promise::new(
        PromiseTopic::Durability,
        Verdict::Holds,
        "a grant is answered when the server's log is synced",
        "tests/run --long -- a_crash_of_hbase_frees_no_lock_early",
    ));
    promises
}

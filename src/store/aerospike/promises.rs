//! What a store on Aerospike promises: see [`Promise`].

use crate::names::promise::{exclusion_beside_java, fences_are_off, of_any_server};
use crate::store::{Promise, PromiseTopic, Verdict};

const TESTS: &str = "aerospike_contract";

const EXCLUSION: &str = "the record's node checks and writes in one step, and its clock ends leases";

/// Promises of a store whose locks clients of the Java library use too.
pub(super) fn beside_java(has_fences: bool) -> Vec<Promise> {
    let mut promises = of_aerospike();
    promises.push(exclusion_beside_java(EXCLUSION, "tests/run -- torture_breaks_no_rule_on_aerospike"));
    if !has_fences {
        promises.push(fences_are_off(TESTS));
    }
    promises
}

/// Promises of the layout `own`.
pub(super) fn own() -> Vec<Promise> {
    let mut promises = of_aerospike();
    let torture = "tests/run --long -- torture_breaks_no_rule_on_aerospike_in_the_layout_own";
    promises.push(Promise::new(PromiseTopic::Exclusion, Verdict::Holds, EXCLUSION, torture));
    promises
}

/// Promises of the layout `both`, beside which Java clients may run.
pub(super) fn both() -> Vec<Promise> {
    let mut promises = own();
    promises.push(exclusion_beside_java(EXCLUSION, "tests/run -- torture_breaks_no_rule_on_aerospike"));
    promises
}

fn of_aerospike() -> Vec<Promise> {
    let mut promises = of_any_server(TESTS, "aerospike_losses");
    promises.push(Promise::new(
        PromiseTopic::Durability,
        Verdict::Limited,
        "as long as one copy of its record survives",
        "tests/run -- aerospike_restarts",
    ));
    promises
}

//! One seed gives one history, to the last byte.
#![cfg(dlm_simulation)]

use std::env;
use std::process::Command;

use dlm_simulation::world::World;

/// Set in the other process: the seeds whose histories it prints.
const PRINTS: &str = "DLM_SIMULATION_PRINTS";

const SEEDS: std::ops::Range<u64> = 0..40;

fn texts() -> String {
    SEEDS.map(|seed| World::of(seed).run().text).collect()
}

#[test]
fn a_seed_gives_the_same_history_again_and_in_another_process() {
    let ours = texts();
    if env::var_os(PRINTS).is_some() {
        println!("{PRINTS}{ours}{PRINTS}");
        return;
    }
    assert!(ours.lines().count() > 1000, "{ours}");
    assert!(ours == texts(), "in this process");
    let test = "a_seed_gives_the_same_history_again_and_in_another_process";
    let other = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(PRINTS, "1")
        .output()
        .unwrap();
    let output = String::from_utf8(other.stdout).unwrap();
    let theirs = output.split(PRINTS).nth(1).unwrap_or_else(|| panic!("{output}"));
    assert!(ours == theirs, "in another process");
}

//! `dlm` on a real HBase server, given by a URI.

use dlm_fixtures::{hbase, table};

use super::Shell;

#[test]
fn a_table_is_made_once_and_a_lock_of_all_data_centres_is_taken_shown_renewed_and_released() {
    let Some(hbase) = hbase::hbase_or_skip() else { return };
    let table = hbase::fresh_table("dlm_test_cli");
    let shell = Shell::on(format!("hbase+thrift://{}/{table}?timeout=60s", hbase.thrift));
    let acquire = ["acquire", "--json", "--level", "xdc", "--ttl", "10m", "job"];
    let line = shell.run(&acquire).fails_with(69);
    assert!(line.contains(&table) && line.contains("dlm init"), "{line}");
    shell.run(&["init"]).ok();
    shell.run(&["init"]).ok();

    let got = shell.json(&acquire);
    let lease = got["lease"].as_str().unwrap();
    let shown = || shell.json(&["show", "--json", "--level", "xdc", "job"]);
    let (held, before) = (shown(), got["deadline_ms"].as_u64().unwrap());
    assert_eq!((&held["held"], &held["fence"]), (&true.into(), &got["fence"]));
    assert!(held["holder"]["remaining_ms"].as_u64().unwrap() <= 600_000, "{held}");
    shell.run(&["acquire", "--no-wait", "--level", "xdc", "job"]).fails_with(75);
    let renewed = shell.json(&["renew", "--json", "--ttl", "20m", lease]);
    assert!(renewed["deadline_ms"].as_u64().unwrap() > before);
    assert!(shown()["holder"]["remaining_ms"].as_u64().unwrap() > 600_000, "it was not renewed");
    assert_eq!(shell.json(&["release", "--json", lease])["released"], true);
    assert_eq!(shown()["held"], false);
    shell.run(&["release", lease]).fails_with(77);
}

#[test]
fn a_move_makes_both_tables_shows_the_layout_and_lists_the_locks_that_hold_it_up() {
    let Some(hbase) = hbase::hbase_or_skip() else { return };
    let table = hbase::fresh_table("dlm_test_cli");
    let java = Shell::on(format!("hbase://{}/{table}?timeout=60s", hbase.master));
    java.run(&["init", "--layout", "both"]).ok();
    let both = Shell::on(format!("hbase://{}/{table}?layout=both&timeout=60s", hbase.master));
    let own = Shell::on(format!("hbase://{}/{table}_own?layout=own&timeout=60s", hbase.master));
    let acquire = ["acquire", "--json", "--level", "xdc", "--ttl", "10m", "job"];
    let got = both.json(&acquire);
    let lease = got["lease"].as_str().unwrap();
    let shown = both.json(&["show", "--json", "--level", "xdc", "job"]);
    assert_eq!((&shown["held"], &shown["layout"]), (&true.into(), &"both".into()), "{shown}");
    for other in [&java, &own] {
        other.run(&["acquire", "--no-wait", "--level", "xdc", "job"]).fails_with(75);
        other.run(&["release", lease]).fails_with(64);
    }
    assert_eq!(both.json(&["release", "--json", lease])["released"], true);
    let old = java.json(&acquire);
    let found = both.run(&["doctor"]).ok();
    let line = found.out.lines().find(|line| line.contains("held in the layout java only")).unwrap();
    assert!(line.contains("WARN") && line.contains("1 locks") && line.contains("#job"), "{}", found.out);
    assert_eq!(java.json(&["release", "--json", old["lease"].as_str().unwrap()])["released"], true);
}

#[test]
fn the_demo_finds_no_overlap_and_no_fence_that_fell() {
    let Some(gateway) = table::gateway() else { return };
    let shell = Shell::on(format!("{}?timeout=60s", table::uri(gateway)));
    // With the default client id, other runs would use the same locks.
    let client = hbase::fresh_table("demo");
    // Rounds and no seconds, so that a busy machine grants as many locks.
    let demo = shell.json(&["--client", &client, "demo", "--rounds", "5", "--json"]);
    assert_eq!((&demo["overlaps"], &demo["fences_fell"]), (&0.into(), &0.into()), "{demo}");
    assert!(demo["grants"].as_u64().unwrap() > 0, "{demo}");
}

#[test]
fn the_port_of_a_master_and_that_of_a_gateway_are_told_apart() {
    let Some(hbase) = hbase::hbase_or_skip() else { return };
    let stores = [
        (
            format!("hbase+thrift://{}/t", hbase.master),
            "an HBase server (a master or a RegionServer) answers at",
        ),
        (format!("hbase://{}/t", hbase.thrift), "a Thrift server answers at"),
        (
            format!("aerospike://{}/test/t", hbase.master),
            "an HBase server (a master or a RegionServer) answers at",
        ),
    ];
    for (store, said) in stores {
        for verb in [&["init"][..], &["run", "--level", "xdc", "x", "--", "true"]] {
            let line = Shell::on(store.clone()).run(verb).fails_with(69);
            assert!(line.contains(said) && line.lines().count() == 1, "{store} {verb:?}: {line}");
        }
    }
}

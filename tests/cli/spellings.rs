//! One store has one name, however its URI is spelt.

use std::net::SocketAddr;

use dlm_fixtures::hbase;

use super::Shell;

/// Acquires through the first spelling. Every other one finds the lock held, releases it, and counts the same latch.
fn are_one(spellings: &[String]) {
    let shells: Vec<_> = spellings.iter().map(|store| Shell::on(store.clone())).collect();
    let job = ["--level", "xdc", "job"];
    let (first, others) = shells.split_first().unwrap();
    // Both protocols of HBase have one table.
    let latch = format!("loaded-{}", first.store.split(':').next().unwrap().replace('+', "-"));
    let farm = ["--farm", "f", "--client", "c", "latch"];
    first.run(&[&farm[..], &["create", &latch, "9"]].concat()).ok();
    let mut count = 9;
    for other in others {
        let lease = first.run(&[&["acquire", "--ttl", "10m"], &job[..]].concat()).ok().out;
        let line = other.run(&[&["acquire", "--no-wait"], &job[..]].concat()).fails_with(75);
        assert!(line.contains("XDC#dlm#job"), "{}: {line}", other.store);
        other.run(&["release", lease.trim_end()]).ok();
        let shown = first.json(&[&["show", "--json"], &job[..]].concat());
        assert_eq!(shown["held"], false, "{}", other.store);
        other.run(&[&farm[..], &["down", &latch]].concat()).ok();
        count -= 1;
        let left = first.run(&[&farm[..], &["count", &latch]].concat()).ok().out;
        assert_eq!(left, format!("{count}\n"), "{}", other.store);
    }
    let names: Vec<_> = shells.iter().map(|shell| shell.run(&["init"]).ok().out).collect();
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
}

/// Returns the options that a test on a busy machine needs.
fn slow(uri: String) -> String {
    uri + "?timeout=60s"
}

#[test]
fn a_directory_is_one_store_by_whatever_path() {
    let shell = Shell::new();
    let root = shell.dir.path().canonicalize().unwrap();
    std::fs::create_dir(root.join("sub")).unwrap();
    std::os::unix::fs::symlink(&root, root.join("link")).unwrap();
    let at = root.display();
    are_one(&[
        format!("embedded:{at}/store"),
        format!("embedded:{at}/store/"),
        format!("embedded:{at}/store/."),
        format!("embedded:{at}/sub/../store"),
        format!("embedded:{at}/link/store"),
        format!("embedded:{at}//st%6Fre"),
        format!("EMBEDDED:{at}/store"),
    ]);
    // The tool knows what it opens, so the command's lock is free as soon as it is killed, and farm is `local`.
    let upper = Shell::on(format!("Embedded:{at}/store"));
    assert_eq!(upper.json(&["show", "--json", "x"])["lock"], "DC#local#dlm#x");
    let line = Shell::on("Memory:".into()).run(&["demo", "--seconds", "1"]).fails_with(64);
    assert!(line.contains("one process"), "{line}");
}

#[test]
fn a_table_of_hbase_is_one_store_in_whatever_spelling() {
    let Some(hbase) = hbase::hbase_or_skip() else { return };
    let table = hbase::fresh_table("dlm_test_spelt");
    let host = |address: SocketAddr| format!("LOCALHOST:0{}", address.port());
    let master = hbase.master;
    let plain = |scheme: &str, port: u16| slow(format!("{scheme}://localhost:{port}/{table}"));
    Shell::on(plain("hbase", master.port())).run(&["init", "--latches"]).ok();
    are_one(&[
        plain("hbase", master.port()),
        slow(format!("HBase://{}/default:{table}", host(master))),
        slow(format!("hbase://LocalHost:{}/%64{}/", master.port(), &table[1..])),
    ]);
    let wrong = Shell::on(slow(format!("hbase://localhost/{table}")));
    let line = wrong.run(&["show", "--level", "xdc", "x"]).fails_with(64);
    assert!(line.contains("host:port"), "{line}");
    are_one(&[
        plain("hbase+thrift", hbase.thrift.port()),
        slow(format!("Hbase+Thrift://{}/default%3A{table}/", host(hbase.thrift))),
    ]);
}

#[cfg(feature = "aerospike")]
#[test]
fn a_set_of_aerospike_is_one_store_in_whatever_spelling() {
    let Some(place) = dlm_fixtures::aerospike::aerospike_or_skip() else { return };
    let (port, namespace) = (place.address.port(), &place.namespace);
    let set = hbase::fresh_table("s");
    are_one(&[
        slow(format!("aerospike://127.0.0.1:{port}/{namespace}/{set}")),
        slow(format!("AEROSPIKE://127.0.0.1.:0{port}/{namespace}/%73{}/", &set[1..])),
        slow(format!("aerospike://127.0.0.1:{port},127.0.0.1:{port}/{namespace}/{set}")),
    ]);
}

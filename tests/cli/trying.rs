//! The commands of docs/trying.md, unchanged, on each store.

use std::path::Path;

use dlm_fixtures::console::Console;
use dlm_fixtures::hbase::hbase_or_skip;

const PAGE: &str = include_str!("../../docs/trying.md");

fn console() -> Console {
    Console::new(Path::new(env!("CARGO_BIN_EXE_dlm")))
}

#[test]
fn the_embedded_store_is_tried_as_the_page_says() {
    console().run_blocks_of(PAGE, "the_embedded_store_is_tried_as_the_page_says");
}

/// The page stops its server, so it gets one that no other test uses.
#[test]
fn hbase_is_tried_as_the_page_says() {
    const SERVER: &str = "tests/fixtures/hbase/server";
    // Says why if it cannot run here, and downloads HBase if it has to.
    if hbase_or_skip().is_none() {
        return;
    }
    let (root, mut console) = (dlm_fixtures::root().display(), console());
    console.run(&format!(
        "cd {root}; export DLM_TEST_DIR={root}/target/hbase-fixture-trying DLM_TEST_IDLE_S=600"
    ));
    // A run that was killed may have left one.
    assert_eq!(console.run(&format!("{SERVER} stop")).0, 0);
    let mut console = console.place("/locks", "/locks?timeout=300s");
    console.run_blocks_of(PAGE, "hbase_is_tried_as_the_page_says");
    assert_ne!(console.run(&format!("{SERVER} status")).0, 0, "the server still runs");
}

#[cfg(feature = "aerospike")]
#[test]
fn aerospike_is_tried_as_the_page_says() {
    use std::net::SocketAddr;

    use dlm_fixtures::aerospike::info;
    use dlm_fixtures::server::{Server, free_ports, is_installed};
    use dlm_testkit::{skipped, until};

    if !is_installed("asd") {
        skipped("asd", "there is no asd on the PATH");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let ports: [u16; 4] = free_ports();
    let here = |text: &str| {
        let text = text.replace("/tmp/trial", directory.path().to_str().unwrap());
        let named = ["3000", "3001", "3002", "3008"].into_iter().zip(ports);
        named.fold(text, |text, (on_page, port)| text.replace(on_page, &port.to_string()))
    };
    let (_, configuration) = PAGE.split_once("```text\n").unwrap();
    let configuration = here(configuration.split_once("```").unwrap().0);
    std::fs::write(directory.path().join("aerospike.conf"), configuration).unwrap();
    let (_, start) = PAGE.split_once("Start it with `").unwrap();
    // Instead of the shell, so that it ends with its keeper.
    let start = here(start.split_once('`').unwrap().0).replace("&& asd", "&& exec asd");
    let console = console().place("127.0.0.1:3000", &format!("127.0.0.1:{}", ports[0]));
    let console = console.place("/locks/trial", "/locks/trial?timeout=300s");
    let _server = Server::start(directory, "sh", &["-c", &start]);
    until("asd takes writes", || {
        let stable = info(SocketAddr::from(([127, 0, 0, 1], ports[0])), "cluster-stable:");
        stable.is_ok_and(|answer| !answer.contains("ERROR"))
    });
    let mut console = console;
    console.run_blocks_of(PAGE, "aerospike_is_tried_as_the_page_says");
}

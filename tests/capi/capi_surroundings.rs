//! C programs in unusual processes: with closed standard streams, with small stacks, with files that may not grow.

use std::process::Command;

use dlm_fixtures::c::{self, Link};

use super::capi_programs::{Place, has};

/// Runs a program of `tests/c` with these arguments after its compilation.
fn run(name: &str, args: &[&str]) {
    if !has("gcc") {
        return;
    }
    let place = Place::new();
    let program = place.c("gcc", name, Link::Shared, &["-pthread"]);
    c::run(c::with_library(&mut Command::new(program)).args(args)).unwrap();
}

fn new_store() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}", dir.path().join("store").display());
    (dir, uri)
}

#[test]
fn a_program_with_closed_streams_writes_into_no_file_of_the_embedded_store() {
    let (_dir, uri) = new_store();
    run("streams", &[&uri, "20", "latches"]);
    // A process of its own boot: the files are there.
    run("streams", &[&uri, "5", "latches"]);
}

#[test]
fn a_program_with_closed_streams_uses_a_store_in_memory() {
    run("streams", &["memory:", "20", "latches"]);
}

#[cfg(feature = "gateway")]
#[test]
fn a_program_with_closed_streams_writes_into_no_connection_to_hbase() {
    use dlm_fixtures::{hbase, table};
    let (Some(gateway), Some(servers)) = (table::gateway(), hbase::hbase_or_skip()) else { return };
    run("streams", &[&table::uri(gateway), "3"]);
    run("streams", &[&format!("hbase://{}/{}", servers.master, table::TABLE), "3"]);
    // A name that has to be looked up.
    run("streams", &[&format!("hbase://localhost:{}/{}", servers.master.port(), table::TABLE), "1"]);
}

#[cfg(feature = "aerospike")]
#[test]
fn a_program_with_closed_streams_writes_into_no_connection_to_aerospike() {
    let Some(server) = dlm_fixtures::aerospike::aerospike_or_skip() else { return };
    run("streams", &[&server.uri(), "3", "latches"]);
}

/// Threads of the C library musl have 128 KiB, and programs with many threads give them less.
#[test]
fn threads_with_small_stacks_use_every_store() {
    let (_dir, uri) = new_store();
    run("limits", &["stacks", &uri, SMALL, "latches"]);
    run("limits", &["stacks", "memory:", SMALL, "latches"]);
    #[cfg(feature = "aerospike")]
    if let Some(server) = dlm_fixtures::aerospike::aerospike_or_skip() {
        run("limits", &["stacks", &server.uri(), SMALL, "latches"]);
    }
    #[cfg(feature = "gateway")]
    if let (Some(gateway), Some(servers)) =
        (dlm_fixtures::table::gateway(), dlm_fixtures::hbase::hbase_or_skip())
    {
        use dlm_fixtures::table;
        run("limits", &["stacks", &table::uri(gateway), SMALL]);
        run("limits", &["stacks", &format!("hbase://{}/{}", servers.master, table::TABLE), SMALL]);
    }
}

/// What docs/c.md names.
const SMALL: &str = "131072";

#[test]
fn a_thread_whose_stack_is_too_small_is_told_so() {
    let (_dir, uri) = new_store();
    run("limits", &["little", &uri]);
}

#[test]
fn files_that_may_not_grow_are_an_error_and_do_not_end_the_program() {
    let (_dir, uri) = new_store();
    run("limits", &["sizes", &uri]);
}

//! The Go package: its own tests, its example, its builds.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use dlm_fixtures::c::{self, Link};
use dlm_fixtures::{go, hbase};
use dlm_testkit::shortened;
use rustix::event::{PollFd, PollFlags, poll};

#[test]
fn the_package_passes_its_tests_under_the_race_detector() {
    if !go::has_go() {
        return;
    }
    assert_eq!(c::run(go::tool("gofmt").args(["-l", "."])).unwrap(), "", "not formatted");
    let tags = go::tags(Link::Static);
    c::run(go::tool("go").args(["vet", tags, "./..."])).unwrap();
    let mut command = go::tool("go");
    command.args(["test", tags, "-count=1", "-v", "-timeout=3600s"]);
    // The race detector builds Go's own packages again, and makes the tests about ten times slower.
    if !shortened("all tests, but without the race detector") {
        command.arg("-race");
    }
    command.arg("./...");
    let mut expected = vec![
        "TestTwoProcessesExcludeEachOther",
        "TestACancelledCallReturnsAtOnce",
        "TestAProcessThatLoopsInOneGoroutineLeavesOthersTheirTurn",
        "ExampleLatch",
        "TestEveryReasonForALossIsTold",
    ];
    if cfg!(feature = "aerospike")
        && let Some(server) = dlm_fixtures::aerospike::aerospike_or_skip()
    {
        command.env("DLM_TEST_AEROSPIKE", server.uri());
    }
    // These tests need a server. The others do not.
    if let Some(hbase) = hbase::hbase_or_skip() {
        command.env("DLM_TEST_HBASE_THRIFT", hbase.thrift.to_string());
        expected.push("TestADeadRegionLeavesTheOthersTheirPlaces");
        if cfg!(feature = "hbase") {
            command.env("DLM_TEST_HBASE_MASTER", hbase.master.to_string());
            expected.push("TestManyGoroutinesModifyARow");
            expected.push("TestALaterHolderShutsAnEarlierOneOut");
        }
    }
    let output = c::run(&mut command).unwrap();
    // The measurements of the tests. `--nocapture` shows them.
    output.lines().filter(|line| line.contains("_test.go:")).for_each(|line| println!("{}", line.trim()));
    for shown in expected {
        assert!(output.contains(&format!("--- PASS: {shown} ")), "{shown} did not run:\n{output}");
    }
}

/// Three goroutines in one process, and two threads and a pending acquisition in another, want one lock all the time.
/// Both processes have the same queue, so they get the same share: `--nocapture` shows it. The test allows much more,
/// because the machine may be busy.
#[test]
fn goroutines_and_threads_of_another_process_get_equal_shares() {
    const GRANTS: u64 = 2_000;
    if !go::has_go() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("compete");
    let mut build = go::tool("go");
    c::run(build.args(["test", go::tags(Link::Shared), "-c", "-o"]).arg(&program).arg(".")).unwrap();
    let store = dir.path().join("store");
    let uri = format!("embedded:{}?client=shares&retry=10ms&ttl=10m&timeout=60s", store.display());
    let manager = dlm::LockManager::open(&uri).unwrap();
    manager.initialize().unwrap();
    let lock = manager.lock("shared", dlm::Level::Xdc).unwrap();
    let mut command = Command::new(&program);
    c::with_library(&mut command).envs([("DLM_GO_TEST_CHILD", "compete"), ("DLM_GO_TEST_URI", &uri)]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "ready");

    // The fence counts the grants of both processes.
    let (ours, first, last) =
        (AtomicU64::new(0), lock.acquire().unwrap().fence().unwrap().0, AtomicU64::new(0));
    let turns = AtomicU64::new(0);
    let forever = dlm::AcquireOptions::new().wait(Duration::MAX);
    let hold = |lease: dlm::Lease| {
        let fence = lease.fence().unwrap().0;
        ours.fetch_add(1, Ordering::SeqCst);
        // The other process had the lock in between.
        if last.fetch_max(fence, Ordering::SeqCst) + 1 < fence {
            turns.fetch_add(1, Ordering::SeqCst);
        }
        thread::sleep(Duration::from_millis(2));
        assert!(lease.release().unwrap());
    };
    let goes_on = || last.load(Ordering::SeqCst) < first + GRANTS;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while goes_on() {
                    hold(lock.acquire_with(&forever).unwrap());
                }
            });
        }
        while goes_on() {
            let pending = lock.start(&forever).unwrap();
            poll(&mut [PollFd::new(&pending.fd().unwrap(), PollFlags::IN)], None).unwrap();
            hold(pending.take().unwrap().expect("its descriptor is readable"));
        }
    });
    let (ours, all) = (ours.load(Ordering::SeqCst), last.load(Ordering::SeqCst) - first);
    drop(child.stdin.take());
    let theirs: u64 = said.next().unwrap().unwrap().parse().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(ours + theirs >= all);
    let turns = turns.into_inner();
    println!("of {all} grants, {ours} went to Rust and {} to Go, in {turns} turns each", all - ours);
    assert!((all / 5..=all * 4 / 5).contains(&ours), "{ours} of {all} grants");
}

#[test]
fn programs_in_go_run_with_the_shared_library() {
    if !go::has_go() {
        return;
    }
    let tests = ["test", go::tags(Link::Shared), "-count=1", "-run=^Example", "."];
    c::run(c::with_library(go::tool("go").args(tests))).unwrap();
}

#[test]
fn the_example_takes_a_lock_and_gives_it_back() {
    if !go::has_go() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", dir.path().join("store").display());
    let program = dir.path().join("lock");
    let mut build = go::tool("go");
    build.args(["build", "-buildvcs=false", go::tags(Link::Shared), "-o"]).arg(&program);
    c::run(build.arg("./examples/lock")).unwrap();
    for _ in 0..2 {
        let output = c::run(c::with_library(&mut Command::new(&program)).arg(&store)).unwrap();
        let steps: Vec<_> = output.lines().map(|line| line.split(" with fence ").next().unwrap()).collect();
        assert_eq!(steps, ["step 0 written", "step 1 written", "step 2 written"], "{output}");
    }
}

#[test]
#[cfg(feature = "hbase")]
fn the_example_moves_money_between_two_accounts_from_two_processes() {
    if !go::has_go() {
        return;
    }
    let Some(hbase) = hbase::hbase_or_skip() else { return };
    // A long timeout, for a busy machine.
    let table = format!("hbase://{}/{}?timeout=1m", hbase.master, hbase::fresh_table("go_transfer"));
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("transfer");
    let mut build = go::tool("go");
    build.args(["build", "-buildvcs=false", go::tags(Link::Shared), "-o"]).arg(&program);
    c::run(build.arg("./examples/transfer")).unwrap();
    let said = std::thread::scope(|scope| {
        let running = [(); 2].map(|()| {
            scope.spawn(|| c::run(c::with_library(&mut Command::new(&program)).arg(&table)).unwrap())
        });
        running.map(|process| process.join().unwrap())
    });
    for output in &said {
        assert!(output.ends_with("the balances add up to 200\n"), "{output}");
    }
    let opened = said.iter().filter(|output| output.starts_with("opened the accounts: true\n")).count();
    assert_eq!(opened, 1, "{said:?}");
}

/// Runs all steps of the README's section in a user's module.
#[test]
fn a_module_beside_a_clone_uses_the_package_as_the_readme_says() {
    if !go::has_go() {
        return;
    }
    let readme = include_str!("../../README.md");
    let section = readme.split("\n## Go\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let block = |kind: &str| section.split(kind).nth(1).unwrap().split("```").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("orders");
    fs::create_dir(&module).unwrap();
    std::os::unix::fs::symlink(c::root(), dir.path().join("dlm")).unwrap();
    // The store of the example is one that other programs of this machine may use.
    let store = format!("\"embedded:{}\"", dir.path().join("store").display());
    let program = block("```go\n");
    assert!(program.contains("\"embedded:\""));
    fs::write(module.join("main.go"), program.replace("\"embedded:\"", &store)).unwrap();
    c::run(go::tool("go").current_dir(&module).args(["mod", "init", "orders"])).unwrap();
    let mut ran = 0;
    for line in block("```sh\n").lines() {
        let line = line.split(" #").next().unwrap().trim();
        if line.starts_with("cargo build ") {
            continue; // the library of this run was built with it
        }
        let mut words = line.split(' ');
        let mut command = go::tool(words.next().unwrap());
        command.args(words).current_dir(&module).env("GOFLAGS", "-buildvcs=false");
        let output = c::run(&mut command).unwrap();
        if line.starts_with("go run ") {
            assert!(output.starts_with("writing with fence "), "{output}");
        }
        ran += 1;
    }
    assert_eq!(ran, 2, "{section}");
}

/// A build with vendored modules has only this module's folder, so no path may lead out of it.
#[test]
fn a_module_that_vendors_the_package_builds_and_runs() {
    if !go::has_go() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("orders");
    fs::create_dir(&module).unwrap();
    fs::copy(go::root().join("examples/lock/main.go"), module.join("main.go")).unwrap();
    let go = |arguments: &[&str]| {
        c::run(go::tool("go").current_dir(&module).env("GOFLAGS", "-buildvcs=false").args(arguments)).unwrap()
    };
    go(&["mod", "init", "orders"]);
    let replace = format!("-replace=libdlm.org/dlm={}", go::root().display());
    go(&["mod", "edit", "-require=libdlm.org/dlm@v0.0.0", &replace]);
    go(&["mod", "vendor"]);
    let vendored = module.join("vendor/libdlm.org/dlm");
    let header = fs::read(vendored.join("dlm.h")).expect("the header is vendored");
    assert!(header == fs::read(c::root().join("include/dlm.h")).unwrap(), "the header is a different one");
    // A machine that builds from the vendored folder has no files outside of it.
    for file in fs::read_dir(&vendored).unwrap().map(|entry| entry.unwrap().path()) {
        let source = fs::read_to_string(&file).unwrap();
        let outside =
            source.lines().find(|line| line.starts_with("#include \"../") || line.contains("-I${SRCDIR}/.."));
        assert_eq!(outside, None, "{}", file.display());
    }
    let program = dir.path().join("lock");
    go(&["build", "-mod=vendor", go::tags(Link::Static), "-o", program.to_str().unwrap(), "."]);
    let store = format!("embedded:{}", dir.path().join("store").display());
    let output = c::run(Command::new(&program).arg(&store)).unwrap();
    assert!(output.starts_with("step 0 written"), "{output}");
}

#[test]
fn without_cgo_the_build_says_what_is_missing() {
    if !go::has_go() {
        return;
    }
    let failure = c::run(go::tool("go").arg("build").env("CGO_ENABLED", "0")).unwrap_err();
    let complaints: Vec<_> = failure.lines().filter(|line| line.contains(".go:")).collect();
    assert_eq!(complaints.len(), 1, "{failure}");
    assert!(complaints[0].contains("set_CGO_ENABLED_to_1_and_install_a_C_compiler"), "{failure}");
}

#[test]
fn a_static_build_links_the_systems_libraries_that_the_readme_lists() {
    let source = fs::read_to_string(go::root().join("capi.go")).unwrap();
    let line = source.lines().find_map(|line| line.strip_prefix("#cgo dlm_static LDFLAGS: -l:libdlm.a "));
    assert_eq!(line.unwrap(), c::system_libraries().join(" "));
}

//! Many processes create the same rows and change the same counters. Each row has one creator and each sum is
//! exact, even when replies are lost, regions are split and moved, and a RegionServer is killed.
//!
//! `DLM_TEST_LONG=1` runs the full size: 10,000 rows and 20,000 changes. `DLM_TEST_ROWS` and `DLM_TEST_CHANGES` set
//! other sizes.
#![cfg(feature = "hbase")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use dlm::Code;
use dlm::hbase::{Cells, Changes, Creation, RowCells, Select, Table};
use dlm_fixtures::dialogue::{Dialogue, next_order, say};
use dlm_fixtures::hbase::{Hbase, Kind, fresh_table, hbase, hbase_or_skip};
use dlm_fixtures::peer::{Peer, hex};
use dlm_fixtures::role;
use dlm_fixtures::rpc_proxy;
use dlm_testkit::{Fault, Proxy, eventually, is_long, left_to_the_long_run};

const PROCESSES: usize = 16;
/// Number of threads in each process that creates rows.
const THREADS: usize = 3;
const COUNTERS: usize = 10;
const URI: &str = "DLM_TEST_URI";
const PROCESS: &str = "DLM_TEST_PROCESS";
const SIZE: &str = "DLM_TEST_SIZE";
/// Options of the tables. The death of a RegionServer is noticed after twenty seconds.
const TIMEOUT: &str = "timeout=600s&attempts=10000";

fn size(variable: &str, short: usize, full: usize) -> usize {
    let set = env::var(variable).ok().map(|size| size.parse().expect("a number"));
    set.unwrap_or(if is_long() { full } else { short })
}

fn rows_size(short: usize) -> usize {
    size("DLM_TEST_ROWS", short, 10_000)
}

/// Returns a number with which each process makes as many changes of each kind as the others.
fn changes_size(short: usize) -> usize {
    size("DLM_TEST_CHANGES", short, 20_000).next_multiple_of(4 * PROCESSES)
}

/// Not a test: the code of the processes that the tests start.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, _)) = role::asked() else { return };
    let setting = |name: &str| env::var(name).unwrap();
    let table = Table::open(&setting(URI)).unwrap();
    let (process, size) = (setting(PROCESS).parse().unwrap(), setting(SIZE).parse().unwrap());
    say(format_args!("ready"));
    assert_eq!(next_order().as_deref(), Some("go"));
    match role.as_str() {
        "create" => create(&table, process, size),
        "count" => count(&table, size),
        other => panic!("no such role: {other}"),
    }
}

fn key(number: usize) -> String {
    format!("{:02x}-{number}", number % 251)
}

/// Creates all rows in a random order, and reports which ones it has created.
fn create(table: &Table, process: usize, rows: usize) {
    let mut order: Vec<_> = (0..rows).collect();
    fastrand::shuffle(&mut order);
    let (next, exists, doubts) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&number) = order.get(at) else { break };
                    if at % 100 == 0 {
                        say(format_args!("at {at}"));
                    }
                    let ours = format!("{process}-{at}");
                    let cells = Cells::new().put("d:id", &*ours).put("e:x", &*ours);
                    match table.row(key(number)).exactly_once().create(&cells) {
                        Ok(Creation::Created) => say(format_args!("created {number} {ours}")),
                        Ok(Creation::AlreadyExists) => drop(exists.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => {
                            eprintln!("{}", error.chain());
                            assert_eq!(error.code(), Code::InDoubt);
                            doubts.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    say(format_args!("exist {} {}", exists.into_inner(), doubts.into_inner()));
}

/// Adds 1 this many times, in turn: to a counter with `modify`, to one with `increment`, and to one with both.
fn count(table: &Table, changes: usize) {
    let (mut attempts, mut unknown) = (0, 0);
    for change in 0..changes {
        let row = table.row(key(fastrand::usize(..COUNTERS))).exactly_once();
        let modify = |column: &'static str| {
            let add = |found: &RowCells| {
                let sum = found.counter(column).unwrap_or_default() + 1;
                Some(Changes::new().put(column, sum.to_be_bytes()))
            };
            row.modify(&[column], add).unwrap_or_else(|error| panic!("{}", error.chain())).attempts
        };
        let increment = |column: &str| {
            let sum = row.increment(column, 1).unwrap_or_else(|error| panic!("{}", error.chain()));
            usize::from(sum.is_none())
        };
        match change % 4 {
            0 => attempts += modify("d:modified"),
            1 => unknown += increment("d:incremented"),
            2 => attempts += modify("e:both"),
            _ => unknown += increment("e:both"),
        }
        if change % 50 == 0 {
            say(format_args!("at {change}"));
        }
    }
    say(format_args!("counted {attempts} {unknown}"));
}

fn start(role: &str, uri: &str, size: usize) -> Vec<Dialogue> {
    let processes: Vec<_> = (0..PROCESSES)
        .map(|process| {
            let mut command = role::process(module_path!(), role, &env::temp_dir());
            command.env(URI, uri).env(PROCESS, process.to_string()).env(SIZE, size.to_string());
            Dialogue::start(&mut command)
        })
        .collect();
    processes.iter().for_each(|process| drop(process.report("ready")));
    processes
}

fn go(processes: &mut [Dialogue]) {
    processes.iter_mut().for_each(|process| process.order("go"));
}

/// Waits for the processes. Returns their reports, except those of progress.
fn finish(processes: Vec<Dialogue>) -> Vec<Vec<String>> {
    let reports = processes.into_iter().flat_map(Dialogue::finish);
    reports.filter(|report| report[0] != "at").collect()
}

fn numbers<const N: usize>(words: &[String]) -> [usize; N] {
    let numbers: Vec<_> = words.iter().map(|word| word.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// Checks that each row has one creator, and the cells of that creator.
fn judge_rows(table: &Table, reports: &[Vec<String>], rows: usize) {
    let (mut makers, mut exist, mut doubts) = (HashMap::new(), 0, 0);
    for report in reports {
        match report[0].as_str() {
            "created" => {
                let number: usize = report[1].parse().unwrap();
                let before = makers.insert(number, report[2].clone());
                assert_eq!(before, None, "row {number} was created twice, the second time by {report:?}");
            }
            "exist" => {
                let [of_one, in_doubt] = numbers(&report[1..]);
                (exist, doubts) = (exist + of_one, doubts + in_doubt);
            }
            other => panic!("{other}"),
        }
    }
    println!("{} created, {exist} existed, {doubts} in doubt", makers.len());
    assert_eq!((makers.len(), exist, doubts), (rows, rows * (PROCESSES - 1), 0));
    let keys: Vec<_> = (0..rows).map(key).collect();
    for (number, found) in table.get_many(&keys, &Select::all()).unwrap().into_iter().enumerate() {
        let found = found.unwrap().unwrap_or_else(|| panic!("row {number} is gone"));
        let maker = makers[&number].as_bytes();
        assert_eq!((found.value("d:id"), found.value("e:x")), (Some(maker), Some(maker)), "row {number}");
    }
}

fn judge_counters(table: &Table, reports: &[Vec<String>], changes: usize) {
    let sums = reports.iter().map(|report| numbers::<2>(&report[1..]));
    let [attempts, unknown] = sums.fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
    println!("{} modifications in {attempts} tries, {unknown} sums lost with their replies", changes / 2);
    let sum = |column: &str| -> i64 {
        let found = (0..COUNTERS).filter_map(|number| table.row(key(number)).get().unwrap());
        found.map(|found| found.counter(column).unwrap_or_default()).sum()
    };
    let expected = changes as i64 / 4;
    let sums = ["d:modified", "d:incremented", "e:both"].map(sum);
    assert_eq!(sums, [expected, expected, 2 * expected]);
}

/// Starts a proxy that loses a tenth of the replies. Each loss breaks the connection, so calls of other threads on
/// it fail too.
fn lossy() -> Proxy {
    let proxy = rpc_proxy::before(hbase().master);
    proxy.sometimes("Multi", 10, Fault::LoseReply);
    proxy.sometimes("Multi", 40, Fault::LoseRequest);
    proxy.sometimes("Get", 40, Fault::LoseReply);
    proxy
}

#[test]
fn counters_of_many_processes_are_exact_though_a_tenth_of_the_replies_is_lost() {
    if left_to_the_long_run() {
        return;
    }
    if hbase_or_skip().is_none() {
        return;
    }
    let (changes, name, proxy) = (changes_size(1600), fresh_table("counts"), lossy());
    let table = Table::open(&format!("hbase://{}/{name}{}", hbase().master, "?timeout=300s")).unwrap();
    table.create_if_missing(&super::families(), &[b"05"]).unwrap();
    let began = Instant::now();
    let uri = format!("hbase://{}/{name}?{TIMEOUT}", proxy.address());
    let mut processes = start("count", &uri, changes / PROCESSES);
    go(&mut processes);
    judge_counters(&table, &finish(processes), changes);
    println!("{changes} changes in {:?}, {} messages lost", began.elapsed(), proxy.hits());
    assert!(proxy.hits() > changes / 20, "too few losses to show anything");
}

#[test]
fn rows_that_many_processes_create_have_one_maker_each_though_replies_are_lost() {
    if left_to_the_long_run() {
        return;
    }
    if hbase_or_skip().is_none() {
        return;
    }
    let (size, name, proxy) = (rows_size(150), fresh_table("makers"), lossy());
    let table = Table::open(&format!("hbase://{}/{name}{}", hbase().master, "?timeout=300s")).unwrap();
    table.create_if_missing(&super::families(), &[b"8"]).unwrap();
    let began = Instant::now();
    let uri = format!("hbase://{}/{name}?{TIMEOUT}", proxy.address());
    let mut processes = start("create", &uri, size);
    go(&mut processes);
    judge_rows(&table, &finish(processes), size);
    println!("{size} rows in {:?}, {} messages lost", began.elapsed(), proxy.hits());
    assert!(proxy.hits() > size / 2, "too few losses to show anything");
}

#[test]
fn rows_and_counters_live_through_splits_moves_and_the_death_of_a_region_server() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = Hbase::private_of("table-races", Kind::Cluster { servers: 2, masters: 1 }) else {
        return;
    };
    let uri = |table: &str| format!("hbase://{}/{table}?{TIMEOUT}", hbase.masters);
    let tables = ["makers", "counts"].map(|name| Table::open(&uri(name)).unwrap());
    for table in &tables {
        eventually("the cluster creates tables", || table.create_if_missing(&super::families(), &[]).is_ok());
    }
    let (rows, changes) = (rows_size(600), changes_size(1600));
    let began = Instant::now();
    let mut peer = Peer::start(&hbase);
    eventually("both RegionServers serve", || peer.ask("servers").split(' ').count() == 2);
    let mut creating = start("create", &uri("makers"), rows);
    let mut counting = start("count", &uri("counts"), changes / PROCESSES);
    let began_work = Instant::now();
    go(&mut creating);
    go(&mut counting);
    let working = thread::spawn(move || (finish(creating), finish(counting), began_work.elapsed()));
    let administer = || {
        let (mut moves, mut splits, mut rounds) = (0, 0, 0);
        let mut ask = |request: String, counter: &mut usize| match peer.try_ask(&request) {
            refused if refused.starts_with("error") => println!("{request}: {refused:.200}"),
            _ => *counter += 1,
        };
        // After nine rounds it only moves regions, because there are enough of them.
        while !working.is_finished() {
            let (row, counter) = (format!("{rounds}0"), format!("0{rounds}"));
            for (table, key) in [("makers", row), ("counts", counter)] {
                if rounds < 9 {
                    ask(format!("split {table} {}", hex(key.as_bytes())), &mut splits);
                }
                ask(format!("move {table} {}", hex(key.as_bytes())), &mut moves);
            }
            rounds += 1;
        }
        (moves, splits)
    };
    let (moves, splits) = thread::scope(|scope| {
        let administering = scope.spawn(administer);
        thread::sleep(Duration::from_millis(1500));
        hbase.kill_region_server(1);
        println!("killed after {:?}", began_work.elapsed());
        assert!(!working.is_finished(), "the work ended before the kill: too little to show anything");
        hbase.start();
        administering.join().unwrap()
    });
    println!("{moves} moves, {splits} splits and a kill");
    let (created, counted, took) = working.join().unwrap();
    println!("{rows} rows and {changes} changes in {took:?}, and {:?} with the cluster", began.elapsed());
    judge_rows(&tables[0], &created, rows);
    judge_counters(&tables[1], &counted, changes);
    assert!(moves >= 2 && splits >= 2, "too few moves and splits to show anything");
}

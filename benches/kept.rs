//! Renewals of many leases: one by one against together, and what leases cost that are kept alive.
//!
//! `cargo bench --bench kept --features hbase,aerospike` measures the embedded store, an HBase and an Aerospike that it
//! starts, in each layout. That takes about ten minutes. Set `DLM_TEST_JAVA=` for it: the default heap of the HBase for
//! tests is too small for two tables in use. Names of stores, such as `-- hbase`, select some of them, and a number sets the seconds for which
//! leases are kept, 60 by default. With `-- --test` it takes a few seconds, which only proves that it runs.
//!
//! | column | meaning |
//! |---|---|
//! | one by one, together | milliseconds for 1,000 renewals: one call of `renew` each, and one call of `renew_many`; medians of 7 rounds |
//! | threads | threads of the library that renew, while 10,000 leases with a TTL of 30 s are kept |
//! | CPU | processor time of this process for one lease in one minute, in microseconds |
//! | lost | leases that were not valid at the end |

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, Identity, LockStore, OwnerRecord, Renewal};
use dlm::{AcquireOptions, Deadline, Level, LockManager, LockName, Moment, NamePolicy};
use dlm_fixtures::aerospike::{IN_MEMORY, own_server_or_skip};
use dlm_fixtures::hbase::{fresh_table, hbase_or_skip};

const LONG: Duration = Duration::from_secs(120);
const TTL: Duration = Duration::from_secs(30);

struct Size {
    rounds: usize,
    together: usize,
    kept: usize,
    keeping: Duration,
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    // `cargo test` runs benchmarks too.
    let quick = !std::env::args().any(|it| it == "--bench") || std::env::args().any(|it| it == "--test");
    let size = match quick {
        true => Size { rounds: 1, together: 50, kept: 50, keeping: Duration::from_secs(1) },
        false => Size { rounds: 7, together: 1000, kept: 10_000, keeping: Duration::from_secs(60) },
    };
    let seconds = arguments.iter().find_map(|it| it.parse().ok()).map(Duration::from_secs);
    let size = Size { keeping: seconds.unwrap_or(size.keeping), ..size };
    let stores: Vec<_> = arguments.iter().filter(|it| it.parse::<u64>().is_err()).collect();
    let wanted = |store: &str| stores.is_empty() || stores.iter().any(|it| *it == store);
    println!("| store | one by one, ms | together, ms | ratio | threads | CPU, us | lost |");
    println!("|---|---|---|---|---|---|---|");
    if wanted("embedded") {
        let dir = tempfile::tempdir().unwrap();
        row("embedded", &format!("embedded:{}", dir.path().display()), &size);
    }
    if wanted("hbase")
        && let Some(hbase) = hbase_or_skip()
    {
        let table = fresh_table("kept");
        row("HBase, java", &format!("hbase://{}/{table}", hbase.master), &size);
        row("HBase, own", &format!("hbase://{}/{table}_own?layout=own", hbase.master), &size);
    }
    if wanted("aerospike")
        && let Some(server) = own_server_or_skip(&IN_MEMORY.replace("512M", "1G"))
    {
        let uri = server.place().uri();
        row("Aerospike, java", &uri, &size);
        row("Aerospike, own", &format!("{}?layout=own", uri.replace("/tests", "/own")), &size);
    }
}

fn row(name: &str, uri: &str, size: &Size) {
    let store = dlm::store::open(uri).unwrap();
    store.initialize(Deadline::after(LONG)).unwrap();
    let [one_by_one, together] = renewals(&*store, size);
    drop(store);
    let (threads, cpu_us, lost) = kept(uri, size);
    let ratio = one_by_one / together;
    println!("| {name} | {one_by_one:.1} | {together:.1} | {ratio:.1} | {threads} | {cpu_us:.0} | {lost} |");
}

/// Returns the milliseconds for many renewals one by one and together.
fn renewals(store: &dyn LockStore, size: &Size) -> [f64; 2] {
    let identity = Identity::this_process("bench").unwrap();
    let mut leases: Vec<(LockName, OwnerRecord)> = (0..size.together)
        .map(|id| {
            let name =
                LockName::new(Level::Xdc, "bench", None, &format!("r{id}"), NamePolicy::Strict).unwrap();
            let attempt = Attempt { name: &name, ttl: LONG, identity: &identity, by: Deadline::after(LONG) };
            match store.acquire(attempt, &mut Vec::new()).unwrap() {
                Acquired::Granted(grant) => (name.clone(), grant.owner_record),
                Acquired::Held(holder) => panic!("{name} is held by {holder}"),
            }
        })
        .collect();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..size.rounds {
        let begin = Moment::now();
        for (name, record) in &mut leases {
            *record = store.renew(name, record, LONG, Deadline::after(LONG)).unwrap().expect("it is ours");
        }
        times[0].push(millis(begin));
        let asked = leases.clone();
        let renewals: Vec<_> = asked
            .iter()
            .map(|(name, owner_record)| Renewal { name, owner_record, ttl: LONG, alone: false })
            .collect();
        let (begin, mut answers) = (Moment::now(), 0);
        store.renew_many(&renewals, Deadline::after(LONG), &mut |at, _, answer| {
            leases[at].1 = answer.unwrap().expect("it is ours");
            answers += 1;
        });
        times[1].push(millis(begin));
        assert_eq!(answers, leases.len());
    }
    for (name, record) in &leases {
        store.release(name, record, Deadline::after(LONG)).unwrap();
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}

fn millis(since: Moment) -> f64 {
    Moment::now().since(since).as_secs_f64() * 1e3
}

/// Keeps leases for some time. Returns the threads that renew, the microseconds of processor time for each lease in a
/// minute, and the number of leases that were lost.
fn kept(uri: &str, size: &Size) -> (usize, f64, usize) {
    let manager = Arc::new(
        LockManager::builder().store_uri(uri).client("bench").farm("dc1").timeout(LONG).open().unwrap(),
    );
    let options = AcquireOptions::new().ttl(TTL).wait(Duration::ZERO).keep(Duration::MAX);
    let leases: Vec<_> = (0..size.kept)
        .map(|id| manager.lock(&format!("k{id}"), Level::Xdc).unwrap().acquire_with(&options).unwrap())
        .collect();
    // The first renewals of all are spread like the acquires, and those after them too.
    thread::sleep(size.keeping / 4);
    let (begin, before) = (Moment::now(), cpu());
    thread::sleep(size.keeping);
    let (used, minutes) = (cpu() - before, Moment::now().since(begin).as_secs_f64() / 60.0);
    let threads = renewing();
    let lost = leases.iter().filter(|lease| lease.check().is_err()).count();
    if let Err(error) = manager.close() {
        eprintln!("*** {}", error.chain());
    }
    (threads, used.as_secs_f64() * 1e6 / (size.kept as f64 * minutes), lost)
}

/// Returns the processor time of this process.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the number of threads that renew leases.
fn renewing() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("dlm-keep")).count()
}

//! Whether a lock that is acquired and released again and again becomes slower, on a real HBase:
//!
//! ```sh
//! cargo bench --bench hbase_hot --features gateway            # 20,000 cycles
//! cargo bench --bench hbase_hot --features gateway -- 50000
//! cargo bench --bench hbase_hot --features gateway -- own     # the layout own, without the gateway
//! ```
//!
//! Prints the median and the 99th percentile of an acquire for each thousand cycles, and the ratio of the last median
//! to the first. With Deletes in place of empty cells the ratio was 3 and more. Fails when the ratio is over 1.2. The
//! machine must do nothing else.

use dlm::{Level, LockManager, Moment};

const RATIO_MAX: f64 = 1.2;

fn main() {
    // `cargo test --benches` runs this too, only to see that it starts.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let cycles = std::env::args().find_map(|argument| argument.parse().ok());
    let cycles: usize = if measuring { cycles.unwrap_or(20_000) } else { 100 };
    let (Some(gateway), Some(hbase)) = (dlm_fixtures::table::gateway(), dlm_fixtures::hbase::hbase_or_skip())
    else {
        return;
    };
    let table = dlm_fixtures::hbase::fresh_table("hot");
    let uri = if std::env::args().any(|argument| argument == "own") {
        format!("hbase://{}/{table}?layout=own", hbase.master)
    } else {
        dlm_fixtures::table::uri(gateway)
    };
    let ratio = measure(&uri, &table, cycles);
    println!("p50 of the last thousand is {ratio:.2} times that of the first");
    if measuring && ratio > RATIO_MAX {
        std::process::exit(1);
    }
}

/// Returns the ratio of the last median to the first.
fn measure(uri: &str, client: &str, cycles: usize) -> f64 {
    let manager = LockManager::builder().store_uri(uri).client(client).open().unwrap();
    manager.initialize().unwrap();
    let lock = manager.lock("hot", Level::Xdc).unwrap();
    // The first calls of a process warm up the gateway, the connection and the caches of both sides.
    for _ in 0..cycles.min(1000) {
        lock.try_acquire().unwrap().release().unwrap();
    }
    let mut medians = Vec::new();
    println!("{:>10} {:>12} {:>12}", "cycles", "p50", "p99");
    let mut times = Vec::with_capacity(1000);
    for cycle in 1..=cycles {
        let began = Moment::now();
        let lease = lock.try_acquire().unwrap();
        times.push(Moment::now().since(began));
        assert!(lease.release().unwrap());
        if times.len() == 1000 || cycle == cycles {
            times.sort_unstable();
            let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
            println!("{cycle:>10} {p50:>12.1?} {p99:>12.1?}");
            medians.push(p50);
            times.clear();
        }
    }
    medians[medians.len() - 1].as_secs_f64() / medians[0].as_secs_f64()
}

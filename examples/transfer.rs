//! Transfer: two counters in one row under contention. Each transfer reads both and is applied if they are unchanged.
//!
//!     cargo run --example transfer --features hbase -- hbase://master:16000/accounts
//!
//! The table is created if it does not exist.

use std::thread;

use dlm::hbase::{Cells, Changes, Family, RowCells, Table};

const THREADS: i64 = 8;
const TRANSFERS: i64 = 50;
const BEGIN: i64 = 1_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let uri = std::env::args().nth(1).ok_or("usage: transfer hbase://master:16000/table")?;
    // All threads change one row, and one of them may lose each race for long: the time is the limit, not the tries.
    let table = Table::open(&format!("{uri}?timeout=1m&attempts=10000"))?;
    table.create_if_missing(&[Family::new("d")], &[])?;
    let row = table.row(format!("account-{}", std::process::id())).exactly_once();
    row.create(&Cells::new().put("d:checking", BEGIN.to_be_bytes()).put("d:savings", 0i64.to_be_bytes()))?;

    let tries: u32 = thread::scope(|scope| {
        let work = |_| scope.spawn(|| (0..TRANSFERS).map(|_| transfer(&row)).sum::<dlm::Result<u32>>());
        let running: Vec<_> = (0..THREADS).map(work).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).sum::<dlm::Result<u32>>()
    })?;

    let found = row.get()?.ok_or("the row is gone")?;
    let (checking, savings) = (amount(&found, "d:checking"), amount(&found, "d:savings"));
    println!("{} transfers: {checking} + {savings} = {}", THREADS * TRANSFERS, checking + savings);
    eprintln!("{tries} tries");
    Ok(())
}

/// Moves 1 and returns the number of tries.
fn transfer(row: &dlm::hbase::Row) -> dlm::Result<u32> {
    let modified = row.modify(&["d:checking", "d:savings"], |found| {
        let (checking, savings) = (amount(found, "d:checking"), amount(found, "d:savings"));
        let changes = Changes::new().put("d:checking", (checking - 1).to_be_bytes());
        (checking > 0).then(|| changes.put("d:savings", (savings + 1).to_be_bytes()))
    })?;
    Ok(modified.attempts)
}

fn amount(found: &RowCells, column: &str) -> i64 {
    found.counter(column).unwrap_or_default()
}

//! A fenced writer. A lock holder is stopped for longer than its lease, and another one acquires the lock. When the
//! first holder continues, HBase itself refuses its write.
//!
//!     cargo run --example fenced_writer --features hbase -- hbase://master:16000/orders
//!
//! The lock is in this machine's embedded store and the row is in HBase. Both could be in HBase. The table is created
//! if it does not exist.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use dlm::hbase::{Cells, Family, Table};
use dlm::{Level, LockManager};

const TTL: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().ok_or("usage: fenced_writer hbase://master:16000/table")?;
    let table = Table::open(&format!("{uri}?family=d&timeout=1m"))?;
    let lock = LockManager::builder().client("fenced-writer").open()?.lock("order-42", Level::Xdc)?;
    if arguments.next().is_some() {
        return holder(&table, &lock);
    }

    table.create_if_missing(&[Family::new("d")], &[])?;
    let mut first = Command::new(std::env::current_exe()?)
        .args([&uri, "holder"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut says = BufReader::new(first.stdout.take().expect("a pipe")).lines();
    println!("first holder:  {}", says.next().ok_or("the first holder ended")??);

    signal("STOP", first.id())?;
    println!("first holder:  stopped, for longer than its lease of {TTL:?}");
    let lease = lock.acquire()?;
    lease.row(&table, "order-42")?.put(&Cells::new().put("d:state", "from the second holder"))?;
    println!("second holder: wrote with a higher fence");

    signal("CONT", first.id())?;
    writeln!(first.stdin.take().expect("a pipe"), "write")?;
    println!("first holder:  {}", says.next().ok_or("the first holder ended")??);
    let row = table.row("order-42").get()?.ok_or("the row is gone")?;
    println!("the row says:  {}", String::from_utf8_lossy(row.value("d:state").unwrap_or_default()));
    first.wait()?;
    lease.release()?;
    Ok(())
}

/// Writes, and writes again when it receives a line. It does not check whether its lease is still valid.
fn holder(table: &Table, lock: &dlm::Lock) -> Result<(), Box<dyn std::error::Error>> {
    let lease = lock.acquire_with_ttl(TTL)?;
    let row = lease.row(table, "order-42")?;
    row.put(&Cells::new().put("d:state", "from the first holder"))?;
    println!("wrote");
    std::io::stdin().read_line(&mut String::new())?;
    match row.put(&Cells::new().put("d:state", "late")) {
        Ok(()) => println!("wrote too late, and nobody noticed"),
        Err(error) => println!("refused with {}", error.code()),
    }
    Ok(())
}

fn signal(name: &str, process: u32) -> std::io::Result<()> {
    let status = Command::new("kill").args([format!("-{name}"), process.to_string()]).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other("kill failed")) }
}

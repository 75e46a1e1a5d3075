//! Create or update: many processes create the same rows. For each row, exactly one learns that it created the row.
//!
//!     cargo run --example create_or_update --features hbase -- hbase://master:16000/orders
//!
//! The table is created if it does not exist.

use std::process::{Command, Stdio};

use dlm::hbase::{Cells, Creation, Family, Table, Update};

const PROCESSES: usize = 8;
const ROWS: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().ok_or("usage: create_or_update hbase://master:16000/table")?;
    let table = Table::open(&format!("{uri}?anchor=d:id&timeout=1m"))?;
    if let Some(process) = arguments.next() {
        println!("{}", work(&table, &process)?);
        return Ok(());
    }

    table.create_if_missing(&[Family::new("d")], &[])?;
    let run = format!("{}", std::process::id());
    let mut running = Vec::new();
    for process in 0..PROCESSES {
        let process = format!("{run}-{process}");
        let mut command = Command::new(std::env::current_exe()?);
        running.push(command.args([&uri, &process]).stdout(Stdio::piped()).spawn()?);
    }
    let mut created = 0;
    for child in running {
        let output = child.wait_with_output()?;
        created += String::from_utf8(output.stdout)?.trim().parse::<usize>()?;
    }
    println!("{PROCESSES} processes, {ROWS} rows: {created} times \"created\"");
    Ok(())
}

/// Creates each row, or updates the row that another process created. Returns how many rows it created.
fn work(table: &Table, process: &str) -> dlm::Result<usize> {
    let run = process.split('-').next().unwrap_or_default();
    let mut created = 0;
    for number in 0..ROWS {
        let key = format!("{run}-{number}");
        // Exactly once: after a lost reply the request is sent again, and it is never applied twice.
        let row = table.row(&key).exactly_once();
        let cells = Cells::new().put("d:id", key.as_str()).put("d:made_by", process);
        match row.create(&cells)? {
            Creation::Created => created += 1,
            Creation::AlreadyExists => {
                let updated = row.update(&Cells::new().put("d:seen_by", process))?;
                assert_eq!(updated, Update::Updated);
            }
        }
    }
    Ok(created)
}

//! Breaks the lines of `faults.txt` in a copy of the source tree, each for a run of the test that must then fail. The arguments are numbers of rows; without any, it runs all.
//!
//! Ends with 1 if a broken line went unnoticed, and with 2 if it could not work.

use std::env;
use std::process::ExitCode;

use dlm_mutations::list;
use dlm_mutations::run;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("dlm-mutations: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let faults = list::read(dlm_mutations::LIST)?;
    let mut rows = Vec::new();
    for argument in env::args().skip(1) {
        let row: usize = argument.parse().map_err(|_| format!("{argument} is not the number of a row"))?;
        if !faults.iter().any(|fault| fault.number == row) {
            return Err(format!("there is no row {row}"));
        }
        rows.push(row);
    }
    let counts = run::run(&faults, &rows).map_err(|error| error.to_string())?;
    println!(
        "{} rows: {} broken lines were noticed, {} went unnoticed, {} could not be run here, {} are wrong",
        if rows.is_empty() { faults.len() } else { rows.len() },
        counts.noticed,
        counts.unnoticed,
        counts.skipped,
        counts.wrong
    );
    Ok(counts.is_good())
}

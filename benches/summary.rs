//! The speed of this library in one table: pairs of acquire and release per second, as ratios to what others do in the
//! same place.
//!
//! ```sh
//! cargo bench --bench summary --all-features                          # everything: two minutes
//! cargo bench --bench summary --all-features -- id_lock embedded      # without servers: 20 seconds
//! cargo bench --bench summary --all-features -- --against             # this tree against the commit in summary.commit
//! cargo bench --bench summary --all-features -- --against 0123abcd    # or against another one
//! ```
//!
//! HBase's part needs a JDK and Maven, Aerospike's also `asd`. What is missing is left out and named. The peers take
//! turns within each round, in random order. A ratio is taken within a round. The table shows the median of the ratios
//! and, in parentheses, their first and third quartile. The results are also in `target/summary.tsv` for programs, and
//! in `target/summary.svg` as a picture. With `DLM_BLESS=1` the picture also replaces `docs/performance.svg`.
//!
//! `--against` exits with status 1 if a cell is slower than with the commit, beyond its spread: see
//! [`spread::Spread::is_slower`]. Its results are in `target/against.tsv`.

#[path = "summary/against.rs"]
mod against;
#[path = "summary/arguments.rs"]
mod arguments;
#[path = "summary/contest.rs"]
mod contest;
#[path = "summary/host.rs"]
mod host;
#[path = "id_lock/locks.rs"]
mod locks;
mod peers;
#[path = "summary/picture.rs"]
mod picture;
#[path = "summary/row.rs"]
mod row;
#[path = "summary/scale.rs"]
mod scale;
#[path = "summary/spread.rs"]
mod spread;
#[path = "summary/worker.rs"]
mod worker;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use arguments::Arguments;
use peers::THREADS;
use scale::Scale;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(env::args().skip(1), include_str!("summary.commit").trim()) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    if cfg!(debug_assertions) {
        println!("Built without optimisation: these figures mean nothing.");
    }
    let scale = Scale::new(arguments.is_quick);
    println!(
        "pairs of acquire and release; medians and quartiles of the ratios in {} rounds\n",
        scale.rounds
    );
    match &arguments.against {
        None => summarise(&arguments, &scale),
        Some(commit) => compare(&arguments, commit, &scale),
    }
}

fn summarise(arguments: &Arguments, scale: &Scale) -> ExitCode {
    let rows = contest::compare_with_peers(&arguments.groups, scale);
    let picture = picture::svg(&rows);
    println!("{}", row::markdown(&rows));
    write("target/summary.tsv", &row::tsv(&rows));
    write("target/summary.svg", &picture);
    if env::var_os("DLM_BLESS").is_some() {
        write("docs/performance.svg", &picture);
    }
    ExitCode::SUCCESS
}

fn compare(arguments: &Arguments, commit: &str, scale: &Scale) -> ExitCode {
    let (rows, slower) = match against::measure(&arguments.groups, commit, scale) {
        Ok(measured) => measured,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    println!("{}", row::markdown(&rows));
    write("target/against.tsv", &row::tsv(&rows));
    for cell in &slower {
        println!("slower: {cell}");
    }
    if slower.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Writes a file whose path is relative to the root of the repository.
fn write(path: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder can be made");
    fs::write(&path, text).expect("the file can be written");
    println!("wrote {}", path.display());
}

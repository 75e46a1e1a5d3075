//! The results: rows of a table, as text for people and for programs.

use std::fmt::Write as _;

use crate::THREADS;
use crate::spread::Spread;

/// What was measured, against what.
pub(crate) struct Row {
    pub(crate) subject: String,
    pub(crate) peer: String,
    /// One for each number of threads in [`THREADS`].
    pub(crate) cells: Vec<Cell>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) threads: usize,
    /// Median of the pairs per second.
    pub(crate) subject_per_s: f64,
    pub(crate) peer_per_s: f64,
    /// The ratios within each round. Above 1, the subject is faster than the peer.
    pub(crate) ratio: Spread,
}

/// Returns the rows as a table in Markdown: the median of the ratios, and the quartiles in parentheses.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut text = String::from("| | compared with |");
    THREADS.iter().for_each(|threads| add(&mut text, format_args!(" {} |", of_threads(*threads))));
    text.push_str("\n|---|---|---|---|---|\n");
    for row in rows {
        add(&mut text, format_args!("| {} | {} |", row.subject, row.peer));
        for Cell { ratio, .. } in &row.cells {
            add(&mut text, format_args!(" {:.2} ({:.2} to {:.2}) |", ratio.median, ratio.low, ratio.high));
        }
        text.push('\n');
    }
    text
}

/// Returns the rows for programs: one line for each cell, fields separated by tabs, names of the fields in the first line.
pub(crate) fn tsv(rows: &[Row]) -> String {
    let mut text = String::from(
        "subject\tpeer\tthreads\tsubject_pairs_per_s\tpeer_pairs_per_s\tratio\tratio_quartile_1\tratio_quartile_3\n",
    );
    for row in rows {
        for Cell { threads, subject_per_s, peer_per_s, ratio } in &row.cells {
            let names = format!("{}\t{}\t{threads}", row.subject, row.peer);
            let speeds = format!("{subject_per_s:.1}\t{peer_per_s:.1}");
            let ratios = format!("{:.4}\t{:.4}\t{:.4}", ratio.median, ratio.low, ratio.high);
            add(&mut text, format_args!("{names}\t{speeds}\t{ratios}\n"));
        }
    }
    text
}

pub(crate) fn of_threads(threads: usize) -> String {
    if threads == 1 { "1 thread".into() } else { format!("{threads} threads") }
}

/// Writing to a string cannot fail.
fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
}

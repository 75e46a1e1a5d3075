//! Clients that write and read rows, and lose some of the replies.

use std::thread;

use fastrand::Rng;

use super::party::{self, Log};
use crate::history::{Answer, History, Operation};
use crate::mutants::ModelRow;

/// A workload of rows.
#[derive(Debug, Clone)]
pub struct RowWorkload {
    /// Seed of all choices.
    pub seed: u64,
    /// Number of clients: threads.
    pub clients: u64,
    /// Calls of each client.
    pub calls: u64,
    /// One call in so many loses its reply: it is in doubt, whether it was carried out or not.
    pub doubt_every: u64,
}

impl RowWorkload {
    /// Four clients with 1000 calls each, of which one in a hundred is in doubt.
    pub fn new(seed: u64) -> RowWorkload {
        RowWorkload { seed, clients: 4, calls: 1000, doubt_every: 100 }
    }

    /// Runs the clients. In the end, each row is read once more.
    pub fn run(&self, rows: &[ModelRow]) -> History {
        let client =
            |number: u64| RowClient { random: Rng::with_seed(self.seed << 8 | number), rows, number };
        let clients = (0..self.clients).map(client).map(|mut client| {
            move |log: &mut Log| {
                for call in 0..self.calls {
                    client.call(log, self, call);
                }
            }
        });
        party::run(clients.collect(), |log| {
            for (number, row) in rows.iter().enumerate() {
                let id = log.call(&key(number), Operation::Get);
                log.returned(&id, Answer::Value(row.get()));
            }
        })
    }
}

struct RowClient<'a> {
    random: Rng,
    rows: &'a [ModelRow],
    number: u64,
}

impl RowClient<'_> {
    fn call(&mut self, log: &mut Log, workload: &RowWorkload, call: u64) {
        let number = self.random.usize(..self.rows.len());
        let row = &self.rows[number];
        let operation = self.operation(row, call);
        let doubtful = self.random.u64(..workload.doubt_every) == 0;
        let lost = doubtful && self.random.bool();
        let id = log.call(&key(number), operation.clone());
        // Longer calls overlap more.
        if self.random.u8(..4) == 0 {
            thread::yield_now();
        }
        let answer = if lost { Answer::InDoubt } else { carry_out(row, &operation) };
        log.returned(&id, if doubtful { Answer::InDoubt } else { answer });
    }

    /// Each value is written once, so that a read says which write it saw.
    fn operation(&mut self, row: &ModelRow, call: u64) -> Operation {
        let value = (self.number << 32 | call << 8) as i64;
        match self.random.u8(..12) {
            0 => Operation::CreateRow { value },
            1 => Operation::Put { value },
            2 | 3 => Operation::Increment { by: 1 },
            4 | 5 => Operation::Modify { by: 1 },
            6..9 => {
                let expected = row.get();
                // Other clients write in between.
                thread::yield_now();
                Operation::CompareAndSet { expected, value }
            }
            _ => Operation::Get,
        }
    }
}

fn carry_out(row: &ModelRow, operation: &Operation) -> Answer {
    let yes_or_no = |done| if done { Answer::Ok } else { Answer::No };
    match *operation {
        Operation::CreateRow { value } => yes_or_no(row.create(value)),
        Operation::CompareAndSet { expected, value } => yes_or_no(row.compare_and_set(expected, value)),
        Operation::Put { value } => {
            row.put(value);
            Answer::Ok
        }
        Operation::Increment { by } => Answer::Value(Some(row.increment(by))),
        Operation::Modify { by } => Answer::Value(Some(row.modify(by))),
        _ => Answer::Value(row.get()),
    }
}

fn key(number: usize) -> String {
    format!("row-{number}")
}

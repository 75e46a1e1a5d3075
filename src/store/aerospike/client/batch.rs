//! Changes of many records, in batches to the nodes that have them, sent and awaited by one thread. Each record has its own
//! condition and its own answer.
//!
//! A batch is sent to each node before the thread waits for one. It then waits for each batch for a short time, in turn, so
//! a node that hangs keeps only its own records until the deadline. A record without an answer of its own is lost: the
//! change may have been made, or may still be made.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::node_sockets::{BatchReply, BatchUnderWay, NoReply, NodeSockets};
use super::operation::Write;
use super::wire::{RecordDigest, RecordReply};
use crate::time::{Deadline, Moment};

/// Most records in one batch.
const RECORDS_MAX: usize = 256;
/// Most batches under way at one node. Each has a connection.
const UNDER_WAY_MAX: usize = 4;
/// Limits of the wait for one batch while there are others.
const SLICE_FIRST: Duration = Duration::from_millis(1);
const SLICE_LONGEST: Duration = Duration::from_millis(16);
/// Connecting and sending take at most this part of the remaining time.
const PARTS: u32 = 4;

/// One change.
pub(super) struct BatchRow<'a> {
    /// Its position, for the caller.
    pub(super) at: usize,
    pub(super) write: &'a Write<'a>,
    pub(super) digest: &'a RecordDigest,
    /// Whether its request must not carry any other change.
    pub(super) alone: bool,
    /// The node that has the record.
    pub(super) node: &'a NodeSockets,
}

/// Called with the position of a change, a moment before its batch was sent, and its answer.
type Answered<'a> = &'a mut dyn FnMut(usize, Moment, Result<RecordReply, NoReply>);

/// Makes all changes. Returns when each has an answer, at the latest a moment after `by`.
pub(super) fn run(namespace: &str, rows: Vec<BatchRow<'_>>, by: Deadline, answered: Answered<'_>) {
    let mut lanes: Vec<Lane<'_>> = Vec::new();
    // Those with little time go first.
    let (alone, together): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.alone);
    for row in alone.into_iter().chain(together) {
        match lanes.iter_mut().find(|lane| std::ptr::eq(lane.node, row.node)) {
            Some(lane) => lane.waiting.push_back(row),
            None => lanes.push(Lane { node: row.node, waiting: [row].into(), under_way: Vec::new() }),
        }
    }
    // A new connection takes time.
    lanes.sort_by_key(|lane| !lane.node.has_idle_line());
    Batches { namespace, by, lanes, slice: SLICE_FIRST, answered }.run();
}

struct Batches<'a, 'b> {
    namespace: &'a str,
    by: Deadline,
    lanes: Vec<Lane<'a>>,
    slice: Duration,
    answered: Answered<'b>,
}

/// The batches to one node.
struct Lane<'a> {
    node: &'a NodeSockets,
    waiting: VecDeque<BatchRow<'a>>,
    under_way: Vec<Flight<'a>>,
}

struct Flight<'a> {
    batch: BatchUnderWay<'a>,
    since: Moment,
    /// The position of each row that has no answer yet.
    open: Vec<Option<usize>>,
}

impl Batches<'_, '_> {
    fn run(&mut self) {
        while !self.by.passed() {
            for lane in 0..self.lanes.len() {
                while self.send(lane) {}
            }
            if self.lanes.iter().all(|lane| lane.waiting.is_empty() && lane.under_way.is_empty()) {
                return;
            }
            self.receive();
        }
        for lane in std::mem::take(&mut self.lanes) {
            for Flight { since, open, .. } in lane.under_way {
                self.lost(since, open, &io::ErrorKind::TimedOut.into());
            }
            for row in lane.waiting {
                let error = io::ErrorKind::TimedOut.into();
                (self.answered)(row.at, Moment::now(), Err(NoReply::NotSent(error)));
            }
        }
    }

    /// Sends a batch to this node. Returns `false` if none can be sent now.
    fn send(&mut self, lane: usize) -> bool {
        let lane = &mut self.lanes[lane];
        if lane.waiting.is_empty() || lane.under_way.len() == UNDER_WAY_MAX {
            return false;
        }
        let most = match lane.waiting.front() {
            Some(first) if first.alone => 1,
            _ => RECORDS_MAX.min(lane.waiting.len()),
        };
        let sent_by = Deadline::after(self.by.remaining() / PARTS).sooner(self.by);
        // If other threads use all connections of the node, the first batch waits for one.
        let lent_by = if lane.under_way.is_empty() { sent_by } else { Deadline::at(Moment::OVER) };
        let writes: Vec<_> = lane.waiting.iter().take(most).map(|row| (row.write, row.digest)).collect();
        let since = Moment::now();
        match lane.node.start(self.namespace, &writes, lent_by, sent_by, self.by) {
            Ok(Some(batch)) => {
                let open = lane.waiting.drain(..most).map(|row| Some(row.at)).collect();
                lane.under_way.push(Flight { batch, since, open });
                true
            }
            Ok(None) => false,
            Err(error) => {
                for row in std::mem::take(&mut lane.waiting) {
                    (self.answered)(row.at, since, Err(NoReply::NotSent(repeated(&error))));
                }
                false
            }
        }
    }

    /// Receives what arrives within a short time, or by the deadline if there is only one batch.
    fn receive(&mut self) {
        let under_way: usize = self.lanes.iter().map(|lane| lane.under_way.len()).sum();
        let has_more = self.lanes.iter().any(|lane| !lane.waiting.is_empty());
        let alone = under_way == 1 && !has_more;
        let (slice, by) = (self.slice, self.by);
        let until = || if alone { by } else { Deadline::after(slice).sooner(by) };
        if under_way == 0 {
            crate::time::sleep(until().remaining());
        }
        let mut arrived = Vec::new();
        for lane in &mut self.lanes {
            let mut at = 0;
            while at < lane.under_way.len() {
                let flight = &mut lane.under_way[at];
                let (rows, end) = match flight.batch.receive(until()) {
                    Ok(BatchReply::Nothing) => (Vec::new(), None),
                    Ok(BatchReply::Rows(rows)) => (rows, None),
                    Ok(BatchReply::Last(rows, code)) => (rows, Some(Ok(code))),
                    Err(error) => (Vec::new(), Some(Err(error))),
                };
                for (row, reply) in rows {
                    // A second answer to one row is ignored.
                    arrived.extend(flight.open[row].take().map(|at| (at, flight.since, Ok(reply))));
                }
                let Some(end) = end else {
                    at += 1;
                    continue;
                };
                let Flight { batch, since, open } = lane.under_way.remove(at);
                let ended = |error: &io::Error| NoReply::Lost(repeated(error));
                let open = open.into_iter().flatten();
                match end {
                    Ok(None) => {
                        let error = io::Error::new(io::ErrorKind::InvalidData, "the reply has no such row");
                        arrived.extend(open.map(|at| (at, since, Err(ended(&error)))));
                        batch.give_back();
                    }
                    // The node stopped: the code concerns the rows without an answer.
                    Ok(Some(code)) => {
                        arrived.extend(open.map(|at| (at, since, Ok(RecordReply::refusal(code)))));
                        batch.give_back();
                    }
                    Err(error) => arrived.extend(open.map(|at| (at, since, Err(ended(&error))))),
                }
            }
        }
        self.slice = if arrived.is_empty() { (self.slice * 2).min(SLICE_LONGEST) } else { SLICE_FIRST };
        for (at, since, reply) in arrived {
            (self.answered)(at, since, reply);
        }
    }

    fn lost(&mut self, since: Moment, open: Vec<Option<usize>>, error: &io::Error) {
        for at in open.into_iter().flatten() {
            (self.answered)(at, since, Err(NoReply::Lost(repeated(error))));
        }
    }
}

/// Returns the same error once more, for another record.
fn repeated(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

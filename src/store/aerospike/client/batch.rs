//! Requests for many records, in batches to the nodes that have them, sent and awaited by one thread. Each record has its
//! own condition and its own answer.
//!
//! A batch is sent to each node before the thread waits for one. It then waits for each batch for a short time, in turn, so
//! a node that hangs keeps only its own records until the deadline. A record without an answer of its own is lost: a
//! change may have been made, or may still be made.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::node_sockets::{BatchReply, BatchUnderWay, NoReply, NodeSockets};
use super::wire::{Asked, RecordDigest, RecordReply};
use crate::runtime::time::{Deadline, Moment};
use crate::store::aerospike::keys::RecordKey;

/// Most records in one batch.
const RECORDS_MAX: usize = 256;
/// Most batches under way at one node. Each has a connection.
const UNDER_WAY_MAX: usize = 4;
/// Limits of the wait for one batch while there are others.
const SLICE_FIRST: Duration = Duration::from_millis(1);
const SLICE_LONGEST: Duration = Duration::from_millis(16);
/// Connecting and sending take at most this part of the remaining time.
const PARTS: u32 = 4;
/// The codes by which a node refuses a whole batch: batches are switched off, too many records, too many batches.
const REFUSED_BATCH: std::ops::RangeInclusive<u8> = 150..=152;

/// A request for one record.
pub(super) struct BatchRow<'a> {
    /// Its position, for the caller.
    pub(super) at: usize,
    pub(super) record_key: &'a RecordKey,
    pub(super) asked: Asked<'a>,
    pub(super) digest: &'a RecordDigest,
    /// Whether it must not be in a batch with others.
    pub(super) alone: bool,
    /// The node that has the record.
    pub(super) node: &'a NodeSockets,
}

/// Called with the position of a request, a moment before its batch was sent, and its answer.
type OnAnswer<'a> = &'a mut dyn FnMut(usize, Moment, Result<RecordReply, NoReply>);

/// Sends all requests. Returns when each has an answer, at the latest a moment after `by`.
pub(super) fn run(namespace: &str, rows: Vec<BatchRow<'_>>, by: Deadline, answered: OnAnswer<'_>) {
    let mut lanes: Vec<NodeLane<'_>> = Vec::new();
    // Those with little time go first.
    let (alone, together): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.alone);
    for row in alone.into_iter().chain(together) {
        match lanes.iter_mut().find(|lane| std::ptr::eq(lane.node, row.node)) {
            Some(lane) => lane.waiting.push_back(row),
            None => lanes.push(NodeLane { node: row.node, waiting: [row].into(), under_way: Vec::new() }),
        }
    }
    // A new connection takes time.
    lanes.sort_by_key(|lane| !lane.node.has_idle_connection());
    Batches { namespace, by, lanes, slice: SLICE_FIRST, answered }.run();
}

struct Batches<'a, 'b> {
    namespace: &'a str,
    by: Deadline,
    lanes: Vec<NodeLane<'a>>,
    slice: Duration,
    answered: OnAnswer<'b>,
}

/// The batches to one node.
struct NodeLane<'a> {
    node: &'a NodeSockets,
    waiting: VecDeque<BatchRow<'a>>,
    under_way: Vec<SentBatch<'a>>,
}

struct SentBatch<'a> {
    batch: BatchUnderWay<'a>,
    since: Moment,
    /// The rows that have no answer yet.
    open: Vec<Option<BatchRow<'a>>>,
}

impl<'a> Batches<'a, '_> {
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
            for SentBatch { since, open, .. } in lane.under_way {
                for row in open.into_iter().flatten() {
                    let error = io::ErrorKind::TimedOut.into();
                    (self.answered)(row.at, since, Err(NoReply::Lost(error)));
                }
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
            _ => lane.waiting.iter().take(RECORDS_MAX).take_while(|row| !row.alone).count(),
        };
        let sent_by = Deadline::after(self.by.remaining() / PARTS).sooner(self.by);
        // If other threads use all connections of the node, the first batch waits for one.
        let lent_by = if lane.under_way.is_empty() { sent_by } else { Deadline::at(Moment::OVER) };
        let asked = |row: &BatchRow<'a>| (row.record_key, row.asked, row.digest);
        let rows: Vec<_> = lane.waiting.iter().take(most).map(asked).collect();
        let since = Moment::now();
        match lane.node.start(self.namespace, &rows, lent_by, sent_by, self.by) {
            Ok(Some(batch)) => {
                let open = lane.waiting.drain(..most).map(Some).collect();
                lane.under_way.push(SentBatch { batch, since, open });
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
            crate::runtime::time::sleep(until().remaining());
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
                    arrived.extend(flight.open[row].take().map(|row| (row.at, flight.since, Ok(reply))));
                }
                let Some(end) = end else {
                    at += 1;
                    continue;
                };
                let SentBatch { batch, since, open } = lane.under_way.remove(at);
                let ended = |error: &io::Error| NoReply::Lost(repeated(error));
                let is_untouched = open.iter().all(Option::is_some);
                let open = open.into_iter().flatten();
                match end {
                    Ok(None) => {
                        let error = io::Error::new(io::ErrorKind::InvalidData, "the reply has no such row");
                        arrived.extend(open.map(|row| (row.at, since, Err(ended(&error)))));
                        batch.give_back();
                    }
                    Ok(Some(code)) if is_untouched && REFUSED_BATCH.contains(&code) => {
                        lane.waiting.extend(open.map(|row| BatchRow { alone: true, ..row }));
                        batch.give_back();
                    }
                    // The node stopped: the code concerns the rows without an answer.
                    Ok(Some(code)) => {
                        arrived.extend(open.map(|row| (row.at, since, Ok(RecordReply::refusal(code)))));
                        batch.give_back();
                    }
                    Err(error) => arrived.extend(open.map(|row| (row.at, since, Err(ended(&error))))),
                }
            }
        }
        self.slice = if arrived.is_empty() { (self.slice * 2).min(SLICE_LONGEST) } else { SLICE_FIRST };
        for (at, since, reply) in arrived {
            (self.answered)(at, since, reply);
        }
    }
}

/// Returns the same error once more, for another record.
fn repeated(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::thread;

    use super::super::operation::{BinOperation, BinValue, RecordExistsAction, Write};
    use super::*;
    use crate::testing::patience::LONG;

    const SHORT: Duration = Duration::from_millis(300);
    /// Time limits, for cases in which some nodes answer and others never do. On a slow machine an answer may come after
    /// the first of them.
    const LIMITS: [Duration; 3] = [SHORT, Duration::from_secs(3), LONG];
    /// The server's codes for a record that is not there, a filter that was false, and a device that is overloaded.
    const MISSING: u8 = 2;
    const FILTERED_OUT: u8 = 27;
    const OVERLOADED: u8 = 18;

    /// What a scripted node sends for its first, second and further requests. The last one is repeated.
    type Script = Vec<Vec<u8>>;

    /// Returns the connections to a node that sends these bytes. It ends with the program.
    fn node(script: Script) -> NodeSockets {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(script);
        let serve = move || {
            for stream in listener.incoming() {
                let (mut stream, script) = (stream.unwrap(), Arc::clone(&script));
                thread::spawn(move || {
                    let mut sent = script.iter().chain(std::iter::repeat(script.last().unwrap()));
                    while read_request(&mut stream).is_ok() {
                        stream.write_all(sent.next().unwrap()).unwrap();
                    }
                });
            }
        };
        thread::Builder::new().name("dlm-test-node".into()).spawn(serve).unwrap();
        NodeSockets::new(address, 8, LONG)
    }

    fn read_request(stream: &mut TcpStream) -> io::Result<()> {
        let mut prefix = [0; 8];
        stream.read_exact(&mut prefix)?;
        let mut rest = vec![0; (u64::from_be_bytes(prefix) & 0xffff_ffff_ffff) as usize];
        stream.read_exact(&mut rest)
    }

    /// A part of a reply. Without an error it has the number of the row.
    fn part(index: u32, code: u8, flags: u8, number: Option<i64>) -> Vec<u8> {
        let head = [&[22, 0, 0, flags, 0, code][..], &[0; 8], &index.to_be_bytes(), &[0; 3]].concat();
        let operation =
            number.map(|number| [&[0, 0, 0, 13, 7, 1, 0, 1, b'#'][..], &number.to_be_bytes()].concat());
        [head, vec![u8::from(operation.is_some())], operation.unwrap_or_default()].concat()
    }

    /// The answer to a row of the first batch on a connection.
    fn row(index: u32, code: u8) -> Vec<u8> {
        part(index, code, 0, (code == 0).then_some(1 << 31 ^ i64::from(index)))
    }

    fn end(code: u8) -> Vec<u8> {
        part(0, code, 1, None)
    }

    fn message(parts: &[Vec<u8>]) -> Vec<u8> {
        let body = parts.concat();
        [&(2u64 << 56 | 3 << 48 | body.len() as u64).to_be_bytes()[..], &body].concat()
    }

    /// The answer to a change.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Seen {
        Code(u8),
        Lost,
        NotSent,
    }

    /// Makes changes of records: those of the first node, and then those of the second one. Returns the answers, and when
    /// each was known.
    fn change(nodes: &[(&NodeSockets, usize)], alone: bool, limit: Duration) -> Vec<(Seen, Duration)> {
        let record_key = RecordKey { set: "XDC#s".into(), key: "c#i".into() };
        let steps = [BinOperation::Put("b", BinValue::Int(1))];
        let (exists, ttl_s) = (RecordExistsAction::UpdateOnly, 9);
        let write = &Write { record_key: &record_key, exists, when: None, steps: &steps, ttl_s };
        let digest = &RecordDigest::of(&record_key);
        let nodes = nodes.iter().flat_map(|(node, count)| std::iter::repeat_n(*node, *count));
        let (record_key, asked) = (write.record_key, Asked::Write(write));
        let row = |(at, node)| BatchRow { at, record_key, asked, digest, alone, node };
        let rows: Vec<_> = nodes.enumerate().map(row).collect();
        let mut seen = vec![None; rows.len()];
        let begin = Moment::now();
        run("test", rows, Deadline::after(limit), &mut |at, since, reply| {
            assert!(since >= begin);
            let answer = match reply {
                Ok(reply) => Seen::Code(reply.code),
                Err(NoReply::Lost(_)) => Seen::Lost,
                Err(NoReply::NotSent(_)) => Seen::NotSent,
            };
            assert_eq!(seen[at].replace((answer, Moment::now().since(begin))), None, "answered twice");
        });
        seen.into_iter().map(|seen| seen.expect("answered")).collect()
    }

    /// Makes changes at a node that sends these bytes, and checks their answers. An answer that came too late may be missing
    /// with the shorter limits.
    #[track_caller]
    fn assert_answers(script: &[Vec<u8>], expected: &[Seen]) {
        for limit in LIMITS {
            let seen_all = change(&[(&node(vec![script.concat()]), expected.len())], false, limit);
            let seen: Vec<_> = seen_all.into_iter().map(|(seen, _)| seen).collect();
            if seen == expected {
                return;
            }
            let is_late =
                seen.iter().all(|seen| expected.contains(seen) || [Seen::Lost, Seen::NotSent].contains(seen));
            assert!(is_late && limit < LONG, "{seen:?} instead of {expected:?} in {limit:?}");
        }
    }

    #[test]
    fn each_row_has_its_own_answer_in_any_order_and_in_several_messages() {
        let rows = [row(2, FILTERED_OUT), row(0, 0), row(1, MISSING)];
        let all = [Seen::Code(0), Seen::Code(MISSING), Seen::Code(FILTERED_OUT)];
        assert_answers(&[message(&rows), message(&[end(0)])], &all);
        assert_answers(&[message(&rows[..1]), message(&rows[1..]), message(&[end(0)])], &all);
        assert_answers(&[message(&[&rows[..], &[end(0)]].concat())], &all);
    }

    #[test]
    fn a_row_without_an_answer_is_lost() {
        let (ok, lost) = (Seen::Code(0), [Seen::Lost; 3]);
        let whole = message(&[row(0, 0), row(1, 0), row(2, 0)]);
        // Too few of them, the end of the connection, silence.
        assert_answers(&[message(&[row(1, 0), end(0)])], &[Seen::Lost, ok, Seen::Lost]);
        assert_answers(&[message(&[row(1, 0)])], &[Seen::Lost, ok, Seen::Lost]);
        assert_answers(&[whole[..whole.len() - 1].to_vec()], &lost);
        assert_answers(&[Vec::new()], &lost);
        assert_answers(&[b"HTTP/1.1 400 Bad Request\r\n".to_vec()], &lost);
        // No such row.
        assert_answers(&[message(&[row(0, 0), row(1, 0), row(3, 0)])], &lost);
        // After the end.
        assert_answers(&[message(&[end(0), row(0, 0)])], &lost);
    }

    #[test]
    fn what_stops_a_batch_is_the_answer_to_the_rows_without_one() {
        let (ok, busy) = (Seen::Code(0), Seen::Code(OVERLOADED));
        assert_answers(&[message(&[row(1, 0), end(OVERLOADED)])], &[busy, ok, busy]);
        assert_answers(&[message(&[end(OVERLOADED)])], &[busy; 3]);
    }

    /// Whoever used a connection again after a late reply would take it for the next one.
    #[test]
    fn a_row_of_another_batch_is_not_taken_for_an_answer() {
        let of_the_next = part(0, 0, 0, Some(2 << 31));
        assert_answers(&[message(&[of_the_next, end(0)])], &[Seen::Lost; 2]);
        assert_answers(&[message(&[part(0, 0, 0, None), end(0)])], &[Seen::Lost; 2]);
    }

    #[test]
    fn a_connection_is_used_again_only_after_the_end_of_the_batch() {
        let second = [part(0, 0, 0, Some(2 << 31)), part(1, 0, 0, Some(2 << 31 ^ 1)), end(0)];
        let node = node(vec![message(&[row(0, 0), row(1, 0), end(0)]), message(&second)]);
        for _ in 0..2 {
            let seen_all = change(&[(&node, 2)], false, LONG);
            assert!(seen_all.iter().all(|(seen, _)| *seen == Seen::Code(0)), "{seen_all:?}");
        }
        assert!(node.has_idle_connection());
        let cut = self::node(vec![message(&[row(0, 0), row(1, 0)])]);
        for limit in LIMITS {
            let seen_all = change(&[(&cut, 2)], false, limit);
            assert!(!cut.has_idle_connection());
            let are_answered = seen_all.iter().all(|(seen, _)| *seen == Seen::Code(0));
            assert!(are_answered || limit < LONG, "{seen_all:?}");
            if are_answered {
                break;
            }
        }
    }

    #[test]
    fn a_change_alone_is_no_batch() {
        // The number of a single request is not that of a row.
        let node = node(vec![message(&[part(0, 0, 0, Some(1))])]);
        let seen_all = change(&[(&node, 3)], true, LONG);
        assert!(seen_all.iter().all(|(seen, _)| *seen == Seen::Code(0)), "{seen_all:?}");
        assert_answers(&[message(&[part(0, 0, 0, Some(2))])], &[Seen::Lost]);
    }

    #[test]
    fn a_node_that_hangs_delays_no_change_on_another_node() {
        let hung = node(vec![Vec::new()]);
        let rows: Vec<_> = (0..200).map(|index| row(index, 0)).collect();
        let answer = message(&[rows, vec![end(0)]].concat());
        // More than may be under way at the first node.
        let many = 5 * RECORDS_MAX;
        // The healthy node answers within half of the limit.
        for limit in LIMITS {
            let healthy = node(vec![answer.clone()]);
            let seen_all = change(&[(&hung, many), (&healthy, 200)], false, limit);
            let mut late = None;
            for (at, (seen, took)) in seen_all.into_iter().enumerate() {
                let (expected, within) = match at {
                    _ if at >= many => (Seen::Code(0), limit / 2),
                    _ if at >= UNDER_WAY_MAX * RECORDS_MAX => (Seen::NotSent, 2 * limit),
                    _ => (Seen::Lost, 2 * limit),
                };
                assert!([expected, Seen::Lost, Seen::NotSent].contains(&seen), "{at}: {seen:?}");
                if seen != expected || took >= within {
                    late = Some((at, seen, took));
                }
            }
            if late.is_none() {
                return;
            }
            assert!(limit < LONG, "{late:?} in {limit:?}");
        }
    }

    #[test]
    fn changes_go_one_by_one_if_the_node_refuses_batches() {
        for code in REFUSED_BATCH {
            let single = |number: i64| message(&[part(0, 0, 0, Some(number))]);
            let node = node(vec![message(&[end(code)]), single(2), single(3), single(4)]);
            // The refused changes use the same connection again, or new ones, which begin with the first answer.
            let seen_all = change(&[(&node, 1), (&node, 1)], false, LONG);
            assert_eq!(seen_all.len(), 2);
            assert_eq!(seen_all[0].0, Seen::Code(0), "{code}");
        }
    }

    #[test]
    fn a_node_that_is_down_is_no_doubt() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let seen_all = change(&[(&NodeSockets::new(address, 8, LONG), 3)], false, LONG);
        assert!(seen_all.iter().all(|(seen, _)| *seen == Seen::NotSent), "{seen_all:?}");
    }
}

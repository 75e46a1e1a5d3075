//! Many rows in few requests, sent and awaited by one thread. Each row has a region action of its own in a Multi, with its
//! own condition and its own result: the server runs them one after another, and they do not depend on each other.
//!
//! | an action | what follows |
//! |---|---|
//! | its region is known, and fewer than [`UNDER_WAY_MAX`] requests are under way at its server | it is sent, with [`ACTIONS_MIN`] to [`ACTIONS_MAX`] in one request if there are so many |
//! | its region is not known, or its server is not connected | looked up or connected, when nothing else can be sent; takes a part of the time at most |
//! | it has a result | returned to the caller, who may send another action for the same row |
//! | it was surely not applied, and may be sent again | after a pause it is located and sent again |
//! | it was sent, and has no result of its own | no answer: a write is in doubt |
//! | it was not sent by the deadline | it fails, and was not applied |
//!
//! A server that hangs keeps its own actions until the deadline. The others are read meanwhile: the thread waits for each
//! request for a short time, in turn.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;

use super::address::Address;
use super::connection::{CallFailure, CallOutcome, CallTicket, Connection};
use super::messages::{MultiRequest, MultiResponse, RegionAction, RegionActionResult};
use super::region::Region;
use super::request::check;
use super::rpc::{Native, PAUSE_FIRST, PAUSE_LONGEST};
use super::send_error::{SendError, may_be_sent_again, protocol_violation};
use super::servers::{CLIENT_SERVICE, decoded, share};
use crate::error::Result;
use crate::runtime::time::{self, Deadline, Moment, jittered};
use crate::store::request_kind::RequestKind;

/// Most actions in one request. The server syncs its log after each of them, in one handler.
const ACTIONS_MAX: usize = 64;
/// More actions than this are spread over several requests, whose handlers share the syncs.
const ACTIONS_MIN: usize = 16;
/// Most requests under way at one server. They occupy this many of its handlers, and fit into the buffers of a socket from
/// which a hung server reads nothing.
const UNDER_WAY_MAX: usize = 4;
/// Limits of the wait for one request while there are others.
const SLICE_FIRST: Duration = Duration::from_millis(1);
const SLICE_LONGEST: Duration = Duration::from_millis(16);
/// A look-up, a connect and the sending of a request each take at most this part of the remaining time.
const PARTS: usize = 4;

/// What to do with one row.
pub(super) struct RowAction<T> {
    /// What the caller asks for. The batch does not read it.
    pub(super) item: T,
    pub(super) row: Bytes,
    /// Its region is filled in when it is sent.
    pub(super) action: RegionAction,
    /// With its name in messages.
    pub(super) kind: (RequestKind, &'static str),
    /// Whether the request must not carry any other action.
    pub(super) alone: bool,
}

/// One action for each row, under way.
pub(super) struct ActionBatch<'a, T> {
    native: &'a Native,
    by: Deadline,
    rows: Vec<ActionRow<T>>,
    /// Rows to be put into the lane of their server. Like all lists here, of positions in `rows`.
    fresh: VecDeque<usize>,
    /// Rows whose region is not known.
    unlocated: VecDeque<usize>,
    /// Rows to be sent again, and when.
    resting: Vec<(Moment, usize)>,
    lanes: Vec<ServerLane>,
    slice: Duration,
    ended: VecDeque<(usize, Moment, Result<RegionActionResult>)>,
}

struct ActionRow<T> {
    action: RowAction<T>,
    region: Option<Arc<Region>>,
    /// The next pause before it is sent again.
    pause: Duration,
    /// Whether a server has named the region's new server before: see [`Native::learn`].
    has_followed: bool,
    /// Why it was not applied so far.
    refused: Option<SendError>,
}

/// The requests to one server.
struct ServerLane {
    server: Address,
    waiting: VecDeque<usize>,
    under_way: Vec<SentActions>,
}

/// A request that was sent.
struct SentActions {
    ticket: CallTicket,
    since: Moment,
    rows: Vec<usize>,
}

impl<T> ActionRow<T> {
    fn new(action: RowAction<T>) -> ActionRow<T> {
        ActionRow { action, region: None, pause: PAUSE_FIRST, has_followed: false, refused: None }
    }
}

impl SentActions {
    /// Ends the call, so another call on the connection can become the leader. The caller of the batch may make such calls.
    fn landed(self) -> (Moment, Vec<usize>) {
        (self.since, self.rows)
    }
}

impl<'a, T> ActionBatch<'a, T> {
    /// No I/O: see [`next`](ActionBatch::next).
    pub(super) fn new(native: &'a Native, rows: Vec<RowAction<T>>, by: Deadline) -> ActionBatch<'a, T> {
        let rows: Vec<_> = rows.into_iter().map(ActionRow::new).collect();
        // Those with little time go first.
        let mut fresh: Vec<_> = (0..rows.len()).collect();
        fresh.sort_by_key(|at| !rows[*at].action.alone);
        let (unlocated, resting, lanes) = (VecDeque::new(), Vec::new(), Vec::new());
        let (slice, ended) = (SLICE_FIRST, VecDeque::new());
        ActionBatch { native, by, rows, fresh: fresh.into(), unlocated, resting, lanes, slice, ended }
    }

    /// Goes on with all actions until one has ended. Returns the position of its row, a moment before its request was sent,
    /// and its result; `None` when all have ended, at the latest a moment after the deadline.
    pub(super) fn next(&mut self) -> Option<(usize, Moment, Result<RegionActionResult>)> {
        if self.ended.is_empty() {
            self.run();
        }
        self.ended.pop_front()
    }

    pub(super) fn row(&mut self, at: usize) -> &mut RowAction<T> {
        &mut self.rows[at].action
    }

    /// Sends another action for a row whose action has ended.
    pub(super) fn send_next(&mut self, at: usize, kind: (RequestKind, &'static str), action: RegionAction) {
        let row = &mut self.rows[at];
        (row.region, row.pause, row.has_followed, row.refused) = (None, PAUSE_FIRST, false, None);
        (row.action.kind, row.action.action) = (kind, action);
        self.fresh.push_back(at);
    }

    /// Goes on until an action has ended, if there is one.
    fn run(&mut self) {
        while self.ended.is_empty() && !self.by.passed() {
            self.locate();
            for lane in 0..self.lanes.len() {
                if self.can_send(lane) && self.native.locator.servers().answers(&self.lanes[lane].server) {
                    self.send(lane);
                }
            }
            if !self.ended.is_empty() {
                return;
            }
            let unconnected = (0..self.lanes.len()).find(|lane| self.can_send(*lane));
            let has_more = unconnected.is_some() || !self.unlocated.is_empty() || !self.fresh.is_empty();
            if self.receive(has_more) || !self.fresh.is_empty() {
                continue;
            }
            if let Some(lane) = unconnected {
                self.send(lane);
            } else if let Some(at) = self.unlocated.pop_front() {
                self.look_up(at);
            } else if self.lanes.iter().all(|lane| lane.under_way.is_empty()) {
                let Some(wake) = self.next_wake() else { return };
                time::sleep(self.by.moment().min(wake).since(Moment::now()));
            }
        }
        if self.ended.is_empty() {
            self.give_up();
        }
    }

    fn next_wake(&self) -> Option<Moment> {
        self.resting.iter().map(|(at, _)| *at).min()
    }

    /// Puts rows whose region is known into the lane of its server.
    fn locate(&mut self) {
        let now = Moment::now();
        let (fresh, unlocated) = (&mut self.fresh, &mut self.unlocated);
        self.resting.retain(|(at, row)| {
            let rests = *at > now;
            if !rests {
                fresh.push_back(*row);
            }
            rests
        });
        // One of them may have been found by another row's look-up.
        fresh.extend(unlocated.drain(..));
        while let Some(at) = self.fresh.pop_front() {
            let row = &mut self.rows[at];
            row.region = self.native.locator.known(&row.action.row);
            match row.region.as_ref().map(|region| region.server.clone()) {
                Some(server) => self.lane(server).waiting.push_back(at),
                None => self.unlocated.push_back(at),
            }
        }
    }

    fn lane(&mut self, server: Address) -> &mut ServerLane {
        let at = self.lanes.iter().position(|lane| lane.server == server).unwrap_or_else(|| {
            self.lanes.push(ServerLane { server, waiting: VecDeque::new(), under_way: Vec::new() });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    fn look_up(&mut self, at: usize) {
        match self.native.locator.region(&self.rows[at].action.row, share(self.by, PARTS)) {
            Ok(_) => self.fresh.push_back(at),
            Err(lookup) => self.failed(at, Moment::now(), SendError::Lookup(lookup)),
        }
    }

    fn can_send(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        !lane.waiting.is_empty() && lane.under_way.len() < UNDER_WAY_MAX
    }

    /// Sends what may be sent to one server. Connects if necessary.
    fn send(&mut self, lane: usize) {
        let (servers, server) = (self.native.locator.servers(), &self.lanes[lane].server);
        match servers.connection(server, CLIENT_SERVICE, share(self.by, PARTS)) {
            Ok(connection) => while self.can_send(lane) && self.send_one(lane, &connection) {},
            Err(error) => {
                let failure = CallFailure::before_sending(error);
                for at in std::mem::take(&mut self.lanes[lane].waiting) {
                    self.failed(at, Moment::now(), SendError::Call(failure.repeated()));
                }
            }
        }
    }

    /// Sends one request. Returns `false` if that failed.
    fn send_one(&mut self, lane: usize, connection: &Arc<Connection>) -> bool {
        let ServerLane { waiting, under_way, .. } = &mut self.lanes[lane];
        let all = &mut self.rows;
        let share_of_each = waiting.len().div_ceil(UNDER_WAY_MAX - under_way.len());
        let actions = share_of_each.clamp(ACTIONS_MIN, ACTIONS_MAX);
        let most = match waiting.front() {
            Some(first) if all[*first].action.alone => 1,
            _ => waiting.iter().take(actions).take_while(|at| !all[**at].action.alone).count(),
        };
        let rows: Vec<_> = waiting.drain(..most).collect();
        let region_action = rows.iter().map(|at| {
            let ActionRow { action, region, .. } = &mut all[*at];
            let action = std::mem::take(&mut action.action);
            RegionAction { region: region.as_ref().and_then(|region| region.specifier()), ..action }
        });
        let request = MultiRequest { region_action: region_action.collect() };
        let since = Moment::now();
        let started = Arc::clone(connection).start("Multi", &request, share(self.by, PARTS), self.by);
        for (at, action) in rows.iter().zip(request.region_action) {
            all[*at].action.action = action;
        }
        match started {
            Ok(ticket) => {
                self.lanes[lane].under_way.push(SentActions { ticket, since, rows });
                true
            }
            Err(failure) => {
                for at in rows {
                    self.failed(at, since, SendError::Call(failure.repeated()));
                }
                false
            }
        }
    }

    /// Reads the answers that arrive within a short time, or by the deadline if there is nothing else to do. Returns
    /// whether there were any.
    fn receive(&mut self, has_more: bool) -> bool {
        let under_way: usize = self.lanes.iter().map(|lane| lane.under_way.len()).sum();
        let last = self.by.sooner(Deadline::at(self.next_wake().unwrap_or(self.by.moment())));
        let until = || match (has_more, under_way) {
            (true, _) => last.sooner(Deadline::after(SLICE_FIRST)),
            (false, 1) => last,
            (false, _) => last.sooner(Deadline::after(self.slice)),
        };
        let mut arrived = Vec::new();
        for lane in &mut self.lanes {
            let mut read: Option<Arc<Connection>> = None;
            let mut at = 0;
            while at < lane.under_way.len() {
                let ticket = &mut lane.under_way[at].ticket;
                // Whoever waits for one answer also reads the others on the same connection.
                let was_read = read.as_ref().is_some_and(|read| Arc::ptr_eq(read, ticket.connection()));
                let until = if was_read { Deadline::at(Moment::OVER) } else { until() };
                match ticket.wait_until(until) {
                    Some(outcome) => arrived.push((lane.under_way.remove(at).landed(), outcome)),
                    None => {
                        read = Some(Arc::clone(ticket.connection()));
                        at += 1;
                    }
                }
            }
        }
        self.slice = if arrived.is_empty() { (self.slice * 2).min(SLICE_LONGEST) } else { SLICE_FIRST };
        let has_arrived = !arrived.is_empty();
        for (landed, outcome) in arrived {
            self.answered(landed, outcome);
        }
        has_arrived
    }

    fn answered(&mut self, (since, rows): (Moment, Vec<usize>), outcome: CallOutcome) {
        let results = match outcome.and_then(decoded::<MultiResponse>) {
            Ok(answer) if answer.region_action_result.len() == rows.len() => answer.region_action_result,
            // It is not known which of the actions the results belong to.
            Ok(_) => return rows.into_iter().for_each(|at| self.failed(at, since, protocol_violation())),
            Err(failure) => {
                for at in rows {
                    self.failed(at, since, SendError::Call(failure.repeated()));
                }
                return;
            }
        };
        for (at, result) in rows.into_iter().zip(results) {
            match check(&result) {
                Ok(()) => self.end(at, since, Ok(result)),
                Err(send_error) => self.failed(at, since, send_error),
            }
        }
    }

    /// Sends the action again later if that is safe and there is time. Otherwise it ends with the error.
    fn failed(&mut self, at: usize, since: Moment, send_error: SendError) {
        let row = &mut self.rows[at];
        let told = row
            .region
            .take()
            .is_some_and(|region| self.native.learn(&region, &send_error, !row.has_followed));
        let (kind, what) = row.action.kind;
        // A try that the deadline cut short explains less than the try before it.
        let cut_short = send_error.is_out_of_time_unsent();
        let is_over = self.by.passed() || self.by.remaining() <= row.pause;
        if is_over || !may_be_sent_again(kind, &send_error) {
            let telling = row.refused.take().filter(|_| cut_short).unwrap_or(send_error);
            let error = self.native.explain(kind, what, telling);
            return self.end(at, since, Err(error));
        }
        if !cut_short {
            row.refused = Some(send_error);
        }
        if told {
            row.has_followed = true;
            return self.fresh.push_back(at);
        }
        self.resting.push((Moment::now().after(jittered(row.pause)), at));
        row.pause = (row.pause * 2).min(PAUSE_LONGEST);
    }

    fn end(&mut self, at: usize, since: Moment, result: Result<RegionActionResult>) {
        self.ended.push_back((at, since, result));
    }

    /// Ends what has not ended by the deadline.
    fn give_up(&mut self) {
        for lane in std::mem::take(&mut self.lanes) {
            let ServerLane { server, waiting, under_way } = lane;
            self.fresh.extend(waiting);
            for mut flight in under_way {
                // Another thread may have read the answer.
                if let Some(outcome) = flight.ticket.wait_until(self.by) {
                    self.answered(flight.landed(), outcome);
                    continue;
                }
                let failure = flight.ticket.out_of_time();
                let (since, rows) = flight.landed();
                let answers = self.native.locator.servers().answers(&server);
                for at in rows {
                    // As in `learn`, for all rows at once.
                    if let Some(region) = self.rows[at].region.take().filter(|_| !answers) {
                        self.native.locator.forget(&region);
                    }
                    self.failed(at, since, SendError::Call(failure.repeated()));
                }
            }
        }
        self.fresh.extend(self.unlocated.drain(..));
        self.fresh.extend(self.resting.drain(..).map(|(_, at)| at));
        while let Some(at) = self.fresh.pop_front() {
            let error = CallFailure::NotSent(io::ErrorKind::TimedOut.into());
            self.rows[at].region = None;
            self.failed(at, Moment::now(), SendError::Call(error));
        }
    }
}

//! Reads the counts of many latches at once, with few requests to each server that serves some of them.

use std::collections::HashMap;
use std::sync::Arc;

use prost::bytes::Bytes;

use super::address::Address;
use super::bytes::constant;
use super::connection::CallFailure;
use super::filter;
use super::messages::{self, Get, RegionAction};
use super::region::{Lookup, Region};
use super::request::{self, cells, in_turn, reading};
use super::rpc::{DISABLED, Native, PAUSE_FIRST, PAUSE_LONGEST, StateDoubts};
use super::send_error::{SendError, may_be_sent_again};
use super::servers::share;
use crate::error::{Error, Result};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::Level;
use crate::runtime::time::{self, Deadline, jittered};
use crate::store::hbase::cell_store::Content;
use crate::store::hbase::latches::{count_column, count_columns, count_in, is_no_table, row_of};
use crate::store::request_kind::RequestKind;

/// Most latches in one request. A server can be configured to log or refuse requests with thousands of rows.
const BATCH: usize = 500;

struct Question<'a> {
    name: &'a LatchName,
    level: Level,
    row: Bytes,
    answer: Option<Result<Option<i64>>>,
    /// Reason why there is no answer yet.
    send_error: Option<Arc<Error>>,
    /// No server served its region.
    away: bool,
}

/// See [`counts`](crate::store::LatchStore::counts). Retries until the deadline the latches whose region was not
/// found or whose server did not answer.
pub(super) fn read(
    native: &Native,
    asked: &[(&LatchName, Level)],
    by: Deadline,
) -> Result<Vec<Result<Option<i64>>>> {
    let mut questions: Vec<_> = asked.iter().map(|(name, level)| Question::new(name, *level)).collect();
    let (mut pause, mut doubts) = (PAUSE_FIRST, StateDoubts::default());
    loop {
        for (_, group) in located(native, &mut questions, by) {
            // Leaves the servers after this one their share of the time.
            for batch in group.batches {
                ask(native, &mut questions, &batch, share(by, group.behind + 1));
            }
        }
        let open = questions.iter().any(|question| question.answer.is_none());
        if !open || by.remaining() <= pause {
            break;
        }
        let away = |question: &Question<'_>| question.answer.is_none() && question.away;
        if questions.iter().any(away) && doubts.arise(pause) && native.is_disabled(by) {
            let error = Arc::new(native.of_table(DISABLED));
            let away = questions.iter_mut().filter(|question| away(question));
            away.for_each(|question| question.failed_as(Arc::clone(&error), false));
        }
        time::sleep(jittered(pause));
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
    let none_read = questions.iter().all(|question| question.send_error.is_some());
    let mut answers: Vec<_> = questions.into_iter().map(Question::answer).collect();
    if none_read && !answers.is_empty() {
        return answers.swap_remove(0).map(|_| Vec::new());
    }
    Ok(answers)
}

/// The questions for one server.
#[derive(Default)]
struct CountGroup {
    batches: Vec<Vec<(usize, Arc<Region>)>>,
    /// Number of servers that are asked after this one.
    behind: usize,
}

/// Groups the open questions by the server that can answer them.
fn located(native: &Native, questions: &mut [Question<'_>], by: Deadline) -> Vec<(Address, CountGroup)> {
    let mut groups: HashMap<Address, CountGroup> = HashMap::new();
    // Look-ups may take half of the time. The server of hbase:meta may hang while the other servers answer.
    let mut until = share(by, 2);
    for (number, question) in questions.iter_mut().enumerate().filter(|(_, q)| q.answer.is_none()) {
        match native.locator.region(&question.row, until) {
            Ok(region) => {
                let batches = &mut groups.entry(region.server.clone()).or_default().batches;
                match batches.last_mut().filter(|batch| batch.len() < BATCH) {
                    Some(batch) => batch.push((number, region)),
                    None => batches.push(vec![(number, region)]),
                }
            }
            Err(lookup) => {
                if matches!(lookup, Lookup::Call(..)) {
                    // From here on, only known regions are used. They need no time.
                    until = Deadline::after(std::time::Duration::ZERO);
                }
                question.failed(native, SendError::Lookup(lookup));
            }
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    let servers = groups.len();
    for (number, (_, group)) in groups.iter_mut().enumerate() {
        group.behind = servers - 1 - number;
    }
    groups
}

/// Sends one request to the server of the first region. All regions of the batch are on that server.
fn ask(native: &Native, questions: &mut [Question<'_>], batch: &[(usize, Arc<Region>)], by: Deadline) {
    let actions = batch.iter().map(|(number, region)| questions[*number].action(region)).collect();
    match native.multi(&batch[0].1, actions, by) {
        Ok(results) => {
            for ((number, region), result) in batch.iter().zip(results) {
                let question = &mut questions[*number];
                match cells(&result) {
                    Ok(cells) => question.answered(cells),
                    Err(send_error) => {
                        native.learn(region, &send_error, true);
                        question.failed(native, send_error);
                    }
                }
            }
        }
        // One latch with very many counts must not make the others of its batch unreadable.
        Err(SendError::Call(CallFailure::TooLong(..))) if batch.len() > 1 => {
            let (first, second) = batch.split_at(batch.len() / 2);
            ask(native, questions, first, share(by, 2));
            ask(native, questions, second, by);
        }
        Err(send_error) => {
            batch.iter().for_each(|(_, region)| {
                native.learn(region, &send_error, true);
            });
            let (again, away) = (may_be_sent_again(RequestKind::Read, &send_error), send_error.is_away());
            batch.iter().for_each(|(number, _)| questions[*number].away = away);
            let error = Arc::new(native.explain(RequestKind::Read, "reading latches", send_error));
            batch.iter().for_each(|(number, _)| questions[*number].failed_as(Arc::clone(&error), again));
        }
    }
}

impl<'a> Question<'a> {
    fn new(name: &'a LatchName, level: Level) -> Question<'a> {
        let (row, answer) = match row_of(name) {
            Ok(row) => (row.into(), None),
            Err(error) => (Bytes::new(), Some(Err(error))),
        };
        Question { name, level, row, answer, send_error: None, away: false }
    }

    /// Builds a read of the counts only, without the other columns of the row.
    fn action(&self, region: &Region) -> RegionAction {
        let family = &constant(Content::Latches.family());
        let get = match self.level {
            Level::Dc => request::get(&self.row, family, &[count_column(self.name.farm()).into()]),
            Level::Xdc => Get {
                filter: Some(filter::columns_beginning(vec![count_columns().into()])),
                ..request::get(&self.row, family, &[])
            },
        };
        in_turn(region, vec![reading(get)])
    }

    fn answered<'c>(&mut self, cells: impl Iterator<Item = &'c messages::Cell>) {
        let cells = cells.map(|cell| (cell.qualifier.as_slice(), cell.value.as_slice()));
        self.answer = Some(count_in(cells, self.name, self.level));
        self.send_error = None;
    }

    fn failed(&mut self, native: &Native, send_error: SendError) {
        let again = may_be_sent_again(RequestKind::Read, &send_error);
        self.away = send_error.is_away();
        self.failed_as(Arc::new(native.explain(RequestKind::Read, "reading latches", send_error)), again);
    }

    fn failed_as(&mut self, error: Arc<Error>, again: bool) {
        if is_no_table(&error) {
            self.answer = Some(Ok(None));
            self.send_error = None;
            return;
        }
        if !again {
            self.answer = Some(Err(self.explained(Arc::clone(&error))));
        }
        self.send_error = Some(error);
    }

    fn explained(&self, source: Arc<Error>) -> Error {
        Error::Context { doing: format!("reading latch {}", self.name), source }
    }

    fn answer(mut self) -> Result<Option<i64>> {
        match (self.answer.take(), self.send_error.take()) {
            (Some(answer), _) => answer,
            (None, Some(send_error)) => Err(self.explained(send_error)),
            (None, None) => {
                Err(Error::Internal { what: format!("latch {} was not read", self.name), source: None })
            }
        }
    }
}

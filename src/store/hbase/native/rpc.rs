//! Requests to the region of a row: sends them to the region's server, retries where that is safe, and converts
//! failures to errors.

use std::sync::Arc;
use std::time::Duration;

use super::connection::CallFailure;
use super::exception::{Exception, RetryClass};
use super::frame::FRAME_BYTES_MAX;
use super::locator::Locator;
use super::messages::{MultiRequest, MultiResponse, RegionAction, RegionActionResult};
use super::options::NativeSetup;
use super::region::{Lookup, Region};
use super::send_error::{SendError, may_be_sent_again, protocol_violation};
use super::servers::{CLIENT_SERVICE, ServerAccess, share};
use crate::error::{Error, Result};
use crate::runtime::time::{self, Deadline, Moment, jittered};
use crate::settings::options::Options;
use crate::store::first_contact::NoAnswer;
use crate::store::hbase::cell_store::{Content, NO_TABLE, lacks_right};
use crate::store::hbase::options::{HBASE, TABLE};
use crate::store::request_kind::RequestKind;

/// Pauses between retries while a region moves, a server starts or a queue is full.
pub(super) const PAUSE_FIRST: Duration = Duration::from_millis(10);
pub(super) const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// When a pause is at least this long, a region without a server may belong to a disabled table.
const PAUSE_BEFORE_DOUBT: Duration = Duration::from_millis(80);
/// Time between the first two checks whether a table is disabled. Each later time is twice as long.
const DOUBT_AGAIN_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(in crate::store::hbase) struct Native {
    pub(super) uri: String,
    pub(super) table: String,
    pub(super) content: Content,
    pub(super) locator: Arc<Locator>,
}

/// Error text for a table that an administrator has disabled.
pub(super) const DISABLED: &str = "is disabled; enable it in the HBase shell";

/// Decides when to check whether a table is disabled: after its region was away for a while, and then again after
/// longer and longer times. One check is not enough. While a table is being disabled, its regions are away already,
/// and hbase:meta does not call it disabled yet.
#[derive(Default)]
pub(super) struct StateDoubts {
    /// When the next check is due, and how long after it the one after that.
    next: Option<(Moment, Duration)>,
}

impl StateDoubts {
    /// Returns whether to check now, if the caller will pause for `pause` otherwise.
    pub(super) fn arise(&mut self, pause: Duration) -> bool {
        self.arise_at(Moment::now(), pause)
    }

    fn arise_at(&mut self, now: Moment, pause: Duration) -> bool {
        let (due, gap) = self.next.unwrap_or((now, DOUBT_AGAIN_AFTER));
        let arises = pause >= PAUSE_BEFORE_DOUBT && now >= due;
        if arises {
            self.next = Some((now.after(gap), gap * 2));
        }
        arises
    }
}

impl Native {
    /// Opens a table for locks in one of the two layouts. Reads the files of the TLS options. Does no other I/O; the first call connects.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an unknown option or a value out of its limits.
    pub(in crate::store::hbase) fn new(
        masters: &str,
        table: &str,
        content: Content,
        options: Options,
    ) -> Result<Native> {
        let NativeSetup { masters, uri, auth, security, connect_timeout } =
            NativeSetup::read(masters, table, options, &HBASE)?;
        let access = ServerAccess { auth, security, connect_timeout, reply_max: FRAME_BYTES_MAX };
        let locator = Arc::new(Locator::new(masters, table, access));
        Ok(Native { uri, table: table.to_owned(), content, locator })
    }

    /// Opens a table of an application. See [`Native::new`].
    pub(super) fn for_rows(masters: &str, table: &str, options: Options, reply_max: u32) -> Result<Native> {
        let NativeSetup { masters, uri, auth, security, connect_timeout } =
            NativeSetup::read(masters, table, options, &TABLE)?;
        let access = ServerAccess { auth, security, connect_timeout, reply_max };
        let locator = Arc::new(Locator::new(masters, table, access));
        Ok(Native { uri, table: table.to_owned(), content: Content::Rows, locator })
    }

    /// Returns another table of the same cluster that uses the same connections.
    pub(in crate::store::hbase) fn beside(&self, table: &str, content: Content) -> Native {
        let masters = self.uri.strip_suffix(&self.table).unwrap_or(&self.uri);
        Native {
            uri: format!("{masters}{table}"),
            table: table.to_owned(),
            content,
            locator: Arc::new(self.locator.beside(table)),
        }
    }

    /// Returns the same table once more. Both know the same regions.
    pub(in crate::store::hbase) fn again(&self) -> Native {
        let (uri, table) = (self.uri.clone(), self.table.clone());
        Native { uri, table, content: self.content, locator: Arc::clone(&self.locator) }
    }

    /// Returns the purpose of the table.
    pub(in crate::store::hbase) fn content(&self) -> Content {
        self.content
    }

    /// Builds a request for the region that holds `row` and sends it to that region's server. Until `by`, sends it
    /// again where [`may_be_sent_again`] allows it.
    pub(super) fn on_region<T>(
        &self,
        kind: RequestKind,
        what: &str,
        row: &[u8],
        by: Deadline,
        request: impl Fn(&Region, Deadline) -> Result<T, SendError>,
    ) -> Result<T> {
        let (mut pause, mut followed, mut before) = (PAUSE_FIRST, false, None);
        let mut doubts = StateDoubts::default();
        loop {
            let (send_error, told) = match self.locator.region(row, by) {
                Ok(region) => match request(&region, by) {
                    Ok(answer) => return Ok(answer),
                    Err(send_error) => {
                        let told = self.learn(&region, &send_error, !followed);
                        (send_error, told)
                    }
                },
                Err(lookup) => (SendError::Lookup(lookup), false),
            };
            // A try that the deadline cut short explains less than the try before it.
            let cut_short = send_error.is_out_of_time_unsent();
            if by.passed() || !may_be_sent_again(kind, &send_error) || by.remaining() <= pause {
                let telling = before.filter(|_| cut_short).unwrap_or(send_error);
                return Err(self.explain(kind, what, telling));
            }
            if send_error.is_away() && doubts.arise(pause) && self.is_disabled(by) {
                return Err(self.of_table(DISABLED));
            }
            if !cut_short {
                before = Some(send_error);
            }
            if told {
                followed = true;
                continue;
            }
            time::sleep(jittered(pause));
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Asks the masters once which of them is active. Any answer counts, also that none is.
    pub(super) fn hello(&self, by: Deadline) -> std::result::Result<(), NoAnswer> {
        let Err(Lookup::Call(step, failure)) = self.locator.active_master(by) else { return Ok(()) };
        let again = matches!(failure, CallFailure::NotSent(_) | CallFailure::Lost(_));
        match failure {
            CallFailure::Exception(_) => Ok(()),
            failure => {
                let (store, what) = (self.uri.clone(), step.to_owned());
                let error = Error::Connection { store, what, source: Some(failure.into()) };
                Err(if again { NoAnswer::Again(error) } else { NoAnswer::Final(error) })
            }
        }
    }

    /// Returns whether the table is known to be disabled. `false` also if the state cannot be read.
    pub(super) fn is_disabled(&self, by: Deadline) -> bool {
        self.locator.is_disabled(share(by, 2)).unwrap_or(false)
    }

    /// Updates the cached location of the region after a failure. Returns whether the server named the new server.
    /// Then the caller can retry there at once.
    ///
    /// `believe` allows this. `on_region` allows it only once in a call: if a region moved to another server and
    /// back and was then split, each of the two servers names the other one. Only hbase:meta has the correct
    /// location.
    pub(super) fn learn(&self, region: &Region, send_error: &SendError, believe: bool) -> bool {
        match send_error {
            SendError::Call(CallFailure::Exception(exception)) => match exception.retry_class() {
                RetryClass::Elsewhere(Some(to)) if believe => {
                    self.locator.moved(region, to);
                    return true;
                }
                RetryClass::Elsewhere(_) | RetryClass::Leave => self.locator.forget(region),
                RetryClass::Busy | RetryClass::Refused | RetryClass::Unknown => {}
            },
            // The server is slow but reachable: it would report if it no longer served the region. Forgetting the
            // region would make all threads look it up again because of one slow call.
            SendError::Call(CallFailure::NotSent(error) | CallFailure::Lost(error))
                if error.kind() == std::io::ErrorKind::TimedOut
                    && self.locator.servers().answers(&region.server) => {}
            SendError::Call(CallFailure::NotSent(_) | CallFailure::Lost(_) | CallFailure::Unwelcome(_)) => {
                self.locator.forget(region);
            }
            SendError::Call(CallFailure::TooLong(..)) | SendError::Lookup(_) => {}
        }
        false
    }

    pub(super) fn explain(&self, kind: RequestKind, what: &str, send_error: SendError) -> Error {
        let store = self.uri.clone();
        match send_error {
            SendError::Lookup(Lookup::NoTable) => self.of_table(NO_TABLE),
            SendError::Lookup(Lookup::Call(step, CallFailure::Exception(exception)))
                if !exception.may_pass() =>
            {
                self.explain_exception(RequestKind::Read, step, exception)
            }
            SendError::Lookup(Lookup::Call(step, failure @ CallFailure::TooLong(..))) => {
                Error::Internal { what: format!("{store}: {step}"), source: Some(failure.into()) }
            }
            SendError::Lookup(Lookup::Call(step, failure))
                if !matches!(failure, CallFailure::Exception(_)) =>
            {
                let error = Error::Connection { store, what: step.into(), source: Some(failure.into()) };
                self.locator.contact().named(error)
            }
            SendError::Lookup(lookup) => {
                Error::RetriesExhausted { store, what: what.into(), source: Some(lookup.into()) }
            }
            SendError::Call(CallFailure::Exception(exception)) => {
                self.explain_exception(kind, what, exception)
            }
            SendError::Call(failure @ CallFailure::Lost(_)) if kind != RequestKind::Read => {
                Error::InDoubt { what: format!("{store}: {what}: no answer"), source: Some(failure.into()) }
            }
            // The server ran the request. A retry would get the same long reply.
            SendError::Call(failure @ CallFailure::TooLong(..)) => match kind {
                RequestKind::Read => {
                    Error::Internal { what: format!("{store}: {what}"), source: Some(failure.into()) }
                }
                RequestKind::Write | RequestKind::Repeatable => {
                    Error::InDoubt { what: format!("{store}: {what}"), source: Some(failure.into()) }
                }
            },
            SendError::Call(failure) => {
                Error::Connection { store, what: what.into(), source: Some(failure.into()) }
            }
        }
    }

    pub(super) fn explain_exception(&self, kind: RequestKind, what: &str, exception: Exception) -> Error {
        let store = self.uri.clone();
        match exception.class.as_str() {
            "TableNotFoundException" => {
                return self.of_table(NO_TABLE);
            }
            "TableNotEnabledException" => return self.of_table(DISABLED),
            "NoSuchColumnFamilyException" => {
                return self.of_table(&self.content.lacking());
            }
            _ => {}
        }
        // Only for applications' rows. A latch reads its cell instead, and its error names the column.
        if self.content == Content::Rows
            && let Some(told) = exception.refused_input()
        {
            return Error::invalid("row", told, "counters of 8 bytes, and cells within the server's limit");
        }
        match exception.retry_class() {
            RetryClass::Unknown if kind != RequestKind::Read => {
                Error::InDoubt { what: format!("{store}: {what}"), source: Some(exception.into()) }
            }
            RetryClass::Refused => {
                let hint = if exception.is_denied() { lacks_right(kind, &self.table) } else { String::new() };
                Error::Internal { what: format!("{store}: {what}{hint}"), source: Some(exception.into()) }
            }
            _ => Error::RetriesExhausted { store, what: what.into(), source: Some(exception.into()) },
        }
    }

    pub(super) fn of_table(&self, what: &str) -> Error {
        Error::TableCreation { table: self.table.clone(), what: what.into(), source: None }
    }

    pub(super) fn multi(
        &self,
        region: &Region,
        actions: Vec<RegionAction>,
        by: Deadline,
    ) -> Result<Vec<RegionActionResult>, SendError> {
        let expected = actions.len();
        let request = MultiRequest { region_action: actions };
        let answer: MultiResponse = self
            .locator
            .servers()
            .call(&region.server, CLIENT_SERVICE, "Multi", &request, by)
            .map_err(SendError::Call)?;
        if answer.region_action_result.len() == expected {
            Ok(answer.region_action_result)
        } else {
            Err(protocol_violation())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_not_disabled_yet_is_checked_again_and_less_and_less_often() {
        let (mut doubts, begin) = (StateDoubts::default(), Moment::now());
        let at = |ms: u64| begin.after(Duration::from_millis(ms));
        assert!(!doubts.arise_at(at(0), PAUSE_FIRST), "the region may only be moving");
        let checks: Vec<u64> = (0..10_000).filter(|ms| doubts.arise_at(at(*ms), PAUSE_LONGEST)).collect();
        assert_eq!(checks, [0, 500, 1500, 3500, 7500]);
    }
}

//! Requests to the region of a row: sent to its server, sent again where that is safe, and what a failure means.

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
use crate::options::Options;
use crate::store::hbase::cell_store::{Content, NO_TABLE};
use crate::store::request_kind::RequestKind;
use crate::store_option;
use crate::time::{self, Deadline, jittered};

/// Pauses between looks at a region that is moving, a server that starts, a queue that is full.
pub(super) const PAUSE_FIRST: Duration = Duration::from_millis(10);
pub(super) const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// As soon as a pause is this long, a region that nobody serves may be one of a table that is disabled.
const PAUSE_BEFORE_DOUBT: Duration = Duration::from_millis(80);

#[derive(Debug)]
pub(in crate::store::hbase) struct Native {
    pub(super) place: String,
    pub(super) table: String,
    pub(super) content: Content,
    pub(super) locator: Locator,
}

/// What is wrong with a table that an administrator has taken out of service.
pub(super) const DISABLED: &str = "is disabled; enable it in the HBase shell";

/// Whether it is time to ask if a table is disabled: once in a call, when its region has been away for a while.
#[derive(Default)]
pub(super) struct StateDoubts {
    asked: bool,
}

impl StateDoubts {
    pub(super) fn arise(&mut self, pause: Duration) -> bool {
        pause >= PAUSE_BEFORE_DOUBT && !std::mem::replace(&mut self.asked, true)
    }
}

impl Native {
    /// No I/O until the first call, but for reading the files that the TLS options name.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an unknown option or a value out of its limits.
    pub(in crate::store::hbase) fn new(masters: &str, table: &str, options: Options) -> Result<Native> {
        let NativeSetup { masters, place, user, security, connect_timeout } =
            NativeSetup::read(masters, table, options, &store_option::HBASE)?;
        let access = ServerAccess { user, security, connect_timeout, reply_max: FRAME_BYTES_MAX };
        let locator = Locator::new(masters, table, access);
        Ok(Native { place, table: table.to_owned(), content: Content::Locks, locator })
    }

    /// A table of an application. See [`Native::new`].
    pub(super) fn for_rows(masters: &str, table: &str, options: Options, reply_max: u32) -> Result<Native> {
        let NativeSetup { masters, place, user, security, connect_timeout } =
            NativeSetup::read(masters, table, options, &store_option::TABLE)?;
        let access = ServerAccess { user, security, connect_timeout, reply_max };
        let locator = Locator::new(masters, table, access);
        Ok(Native { place, table: table.to_owned(), content: Content::Rows, locator })
    }

    /// Another table of the same cluster, over the same connections.
    pub(super) fn beside(&self, table: &str, content: Content) -> Native {
        let masters = self.place.strip_suffix(&self.table).unwrap_or(&self.place);
        Native {
            place: format!("{masters}{table}"),
            table: table.to_owned(),
            content,
            locator: self.locator.beside(table),
        }
    }

    /// Builds a request for the region that holds `row` and sends it to that region's server. Sends it again where
    /// the request was surely not applied, until `by`.
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
            // A try that the deadline cut short tells less than the one before it.
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

    /// Whether the table is known to be disabled. Where that cannot be learned, the next call may learn it.
    pub(super) fn is_disabled(&self, by: Deadline) -> bool {
        self.locator.is_disabled(share(by, 2)).unwrap_or(false)
    }

    /// What a failure tells about where the region is; whether it was told where to ask at once.
    ///
    /// Only one server's word is taken for that in a call. Of a region that was split after it moved to
    /// and fro, two servers say of each other that it went there, and only meta knows better.
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
            // Slow, and there: it would say so if it had the region no more. All threads would have to look it
            // up again for one call's sake, and wait for that.
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
        let store = self.place.clone();
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
                Error::Connection { store, what: step.into(), source: Some(failure.into()) }
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
            // It was served: asked again it would be answered in the same way.
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
        let store = self.place.clone();
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
        // A latch looks at its cell instead, and names it.
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
                Error::Internal { what: format!("{store}: {what}"), source: Some(exception.into()) }
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

//! Finds out after a lost reply whether the operation was applied. It asks until it knows, or until the deadline
//! of the operation.

use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::runtime::time::{self, Deadline, jittered};

const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// The shortest time of one try, unless the deadline is sooner.
const TRY_AT_LEAST: Duration = Duration::from_millis(100);

/// Returns the deadline of one try: the end of the first of `parts` equal parts of the time until `by`.
pub(crate) fn part(by: Deadline, parts: u32) -> Deadline {
    by.sooner(Deadline::after((by.remaining() / parts.max(1)).max(TRY_AT_LEAST)))
}

/// Whether a reply of the running operation was lost.
pub(crate) struct Doubt {
    by: Deadline,
    lost: Option<Error>,
}

impl Doubt {
    /// Creates the state of an operation with the deadline `by` and no lost reply.
    pub(crate) fn none(by: Deadline) -> Doubt {
        Doubt { by, lost: None }
    }

    /// Returns whether a reply was lost.
    pub(crate) fn is_open(&self) -> bool {
        self.lost.is_some()
    }

    /// Sends the request. After a lost reply, repeats it until it is answered.
    pub(crate) fn ask<T>(&self, mut request: impl FnMut() -> Result<T>) -> Result<T> {
        if self.is_open() { until_answered(self.by, request) } else { request() }
    }

    /// Remembers a lost reply and returns `Ok` if there is time to find out what it means. Returns the error to
    /// report otherwise, and for an error that is not in doubt.
    pub(crate) fn go_on(&mut self, error: Error) -> Result<()> {
        if !error.is_in_doubt() || self.by.passed() {
            return Err(self.or(error));
        }
        self.lost.get_or_insert(error);
        Ok(())
    }

    /// Returns the error to report: that of the first lost reply, or `error` if no reply was lost.
    pub(crate) fn or(&mut self, error: Error) -> Error {
        self.lost.take().unwrap_or(error)
    }
}

/// Jittered pauses between the rounds of an operation. Each is twice the one before, up to half a second.
pub(crate) struct Pauses {
    by: Deadline,
    next: Duration,
}

impl Pauses {
    /// Creates the pauses of an operation with the deadline `by`.
    pub(crate) fn until(by: Deadline) -> Pauses {
        Pauses { by, next: PAUSE_FIRST }
    }

    /// Sleeps. Returns `false` at once if the deadline would pass during the pause.
    pub(crate) fn rest(&mut self) -> bool {
        if self.by.remaining() <= self.next {
            return false;
        }
        time::sleep(jittered(self.next));
        self.next = (self.next * 2).min(PAUSE_LONGEST);
        true
    }
}

/// Repeats the request while the store cannot be reached or is busy, until the deadline.
///
/// Use it only if another result depends on the answer, such as whether an earlier request acquired the lock.
/// Then it is worth waiting for a server that is back in a second. Otherwise a failure is reported at once.
pub(crate) fn until_answered<T>(by: Deadline, mut request: impl FnMut() -> Result<T>) -> Result<T> {
    let mut pauses = Pauses::until(by);
    loop {
        match request() {
            Err(error) if was_not_served(&error) && pauses.rest() => {}
            answer => return answer,
        }
    }
}

fn was_not_served(error: &Error) -> bool {
    matches!(error.code(), Code::ConnectionError | Code::RetriesExhausted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn unreachable() -> Error {
        Error::Connection { store: "test".into(), what: "gone".into(), source: None }
    }

    fn lost(what: &str) -> Error {
        Error::InDoubt { what: what.into(), source: None }
    }

    /// Returns `error` for the first `failures` requests.
    fn failing(failures: usize, error: fn() -> Error) -> impl FnMut() -> Result<usize> {
        let mut asked = 0;
        move || {
            asked += 1;
            if asked <= failures { Err(error()) } else { Ok(asked) }
        }
    }

    #[test]
    fn a_store_that_comes_back_in_time_settles_a_doubt() {
        let mut doubt = Doubt::none(Deadline::after(LONG));
        assert_eq!(doubt.ask(failing(1, unreachable)).unwrap_err().code(), Code::ConnectionError);
        doubt.go_on(lost("a release")).unwrap();
        assert_eq!(doubt.ask(failing(5, unreachable)).unwrap(), 6);
    }

    #[test]
    fn a_second_doubt_and_a_refusal_are_not_asked_again() {
        let by = Deadline::after(LONG);
        assert_eq!(until_answered(by, failing(1, || lost("a write"))).unwrap_err().code(), Code::InDoubt);
        assert_eq!(until_answered(by, failing(1, || Error::Closed)).unwrap_err().code(), Code::Closed);
    }

    #[test]
    fn the_first_reply_that_was_lost_is_what_the_caller_hears_of() {
        let mut doubt = Doubt::none(Deadline::after(LONG));
        doubt.go_on(lost("the first")).unwrap();
        doubt.go_on(lost("the second")).unwrap();
        assert_eq!(doubt.go_on(unreachable()).unwrap_err().to_string(), "in doubt: the first");
        assert_eq!(doubt.or(unreachable()).code(), Code::ConnectionError);
    }

    #[test]
    fn when_the_time_is_over_nothing_more_is_asked() {
        let mut doubt = Doubt::none(Deadline::after(Duration::ZERO));
        assert_eq!(doubt.go_on(lost("late")).unwrap_err().code(), Code::InDoubt);
        let gone = until_answered(Deadline::after(Duration::ZERO), failing(1, unreachable));
        assert_eq!(gone.unwrap_err().code(), Code::ConnectionError);
    }
}

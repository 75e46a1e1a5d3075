//! Finding out, once a reply was lost, what became of the operation: asking until it is known or the
//! operation's time is over.

use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::time::{self, Deadline, jittered};

const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// No try is given less, where there is as much.
const TRY_AT_LEAST: Duration = Duration::from_millis(100);

/// When one try must be over: at the end of the first of so many parts of the time until `by`.
pub(crate) fn part(by: Deadline, parts: u32) -> Deadline {
    by.sooner(Deadline::after((by.remaining() / parts.max(1)).max(TRY_AT_LEAST)))
}

/// What an operation on its way is in doubt about, if it is.
pub(crate) struct Doubt {
    by: Deadline,
    lost: Option<Error>,
}

impl Doubt {
    /// Of an operation that has until `by`, and of which nothing was lost yet.
    pub(crate) fn none(by: Deadline) -> Doubt {
        Doubt { by, lost: None }
    }

    /// Whether a reply was lost.
    pub(crate) fn is_open(&self) -> bool {
        self.lost.is_some()
    }

    /// Makes the request; while a reply is missing, until it is answered.
    pub(crate) fn ask<T>(&self, mut request: impl FnMut() -> Result<T>) -> Result<T> {
        if self.is_open() { until_answered(self.by, request) } else { request() }
    }

    /// Goes on after a failure that leaves open what became of the request, if there is time to find out.
    pub(crate) fn go_on(&mut self, error: Error) -> Result<()> {
        if !error.is_in_doubt() || self.by.passed() {
            return Err(self.or(error));
        }
        self.lost.get_or_insert(error);
        Ok(())
    }

    /// What the caller must know: the first reply that was lost; `error` where none was.
    pub(crate) fn or(&mut self, error: Error) -> Error {
        self.lost.take().unwrap_or(error)
    }
}

/// Pauses between the rounds of an operation: jittered, each longer than the one before.
pub(crate) struct Pauses {
    by: Deadline,
    next: Duration,
}

impl Pauses {
    /// Of an operation that has until `by`.
    pub(crate) fn until(by: Deadline) -> Pauses {
        Pauses { by, next: PAUSE_FIRST }
    }

    /// Pauses. `false`, at once, where no time would be left afterwards.
    pub(crate) fn rest(&mut self) -> bool {
        if self.by.remaining() <= self.next {
            return false;
        }
        time::sleep(jittered(self.next));
        self.next = (self.next * 2).min(PAUSE_LONGEST);
        true
    }
}

/// Makes the request again for as long as it did not happen because the store was not there, or busy.
///
/// One failure may be reported at once. Where something else hangs on the answer, as whether an earlier
/// request of ours took the lock, a server that is back in a second is worth the wait.
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

    /// Answers the first `failures` requests with `error`.
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

//! The first contact with the servers of a store, and the reason if there is none: a port at which nothing listens, a host
//! name that does not exist, or another service than the store's.
//!
//! A store that has not answered yet is most likely not the store that the caller means. So a greeting of it, which
//! changes nothing, ends as soon as that is known, and its errors name what was found at its addresses. A store that has
//! answered once is down when it does not answer, and is waited for as always.

mod strangers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(in crate::store) use self::strangers::Service;
use self::strangers::{Peer, Survey};
use crate::error::{Code, Error, Result};
use crate::runtime::sync::real::{Mutex, TimedMutex};
use crate::runtime::time::{self, Deadline, Moment, jittered};

/// Time limit of the first try of a greeting. A store that takes longer is tried again, after its addresses were looked at:
/// some strangers wait for the end of a message that never comes.
const FIRST_TRY: Duration = Duration::from_millis(600);
/// How many times longer each try is than the one before. The last has all that is left: a store that starts may take so
/// long.
const TRY_GROWTH: u32 = 4;
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit for looking at all addresses while there is time, and after a call has used up its time. Only servers that
/// answer nothing take so long. Not counted: the resolver, which has limits of its own.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_LATE: Duration = Duration::from_millis(350);
/// How often addresses are looked at again that are silent though somebody there has answered a greeting.
const LOOKS_MAX: u32 = 3;
/// What was found is used again for this long, so that many threads do not look at once.
const FRESH: Duration = Duration::from_secs(2);

/// Why a greeting was not answered.
pub(in crate::store) enum NoAnswer {
    /// It may be sent again.
    Again(Error),
    /// Another one would end the same way.
    Final(Error),
}

/// Whether the servers of a store have ever answered, and who else does.
#[derive(Debug)]
pub(in crate::store) struct FirstContact {
    peers: Vec<Peer>,
    service: Service,
    /// Whether the store uses TLS. Then servers that speak TLS are no strangers.
    is_secure: bool,
    has_answered: AtomicBool,
    /// Locked by the thread that greets the store for the first time. The others wait for what it finds, for as long as
    /// its first try lasts.
    greeting: TimedMutex<()>,
    last: Mutex<Option<(Moment, Survey)>>,
    /// See [`FRESH`].
    fresh: Duration,
    /// How long a thread waits for the greeting of another one.
    turn: Duration,
}

impl FirstContact {
    /// `peers` are the addresses of the store's URI.
    pub(in crate::store) fn new(
        service: Service,
        is_secure: bool,
        peers: impl IntoIterator<Item = (String, u16)>,
    ) -> FirstContact {
        let peers = peers.into_iter().map(|(host, port)| Peer { host, port }).collect();
        FirstContact {
            peers,
            service,
            is_secure,
            has_answered: AtomicBool::new(false),
            greeting: TimedMutex::new(()),
            last: Mutex::default(),
            fresh: FRESH,
            turn: FIRST_TRY,
        }
    }

    /// A server of the store has answered, with whatever answer.
    pub(in crate::store) fn answered(&self) {
        // Read first: this is called for each answer, by many threads.
        if !self.has_answered() {
            self.has_answered.store(true, Ordering::Relaxed);
        }
    }

    pub(in crate::store) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Greets the store until it answers, at most until `by`. Ends sooner if it has never answered, and if at each address
    /// nothing listens, no such host exists, or another service answers.
    ///
    /// `hello` sends one request that changes nothing.
    pub(in crate::store) fn greet(
        &self,
        by: Deadline,
        hello: impl Fn(Deadline) -> std::result::Result<(), NoAnswer>,
    ) -> Result<()> {
        let was_known = self.has_answered();
        // A crowd that starts at once would use up the connections for greetings. But a greeting that hangs must not shut
        // out others: perhaps only its connection is broken.
        let _turn = if was_known { None } else { self.greeting.try_lock_for(self.turn.min(by.remaining())) };
        if !was_known && self.has_answered() {
            return Ok(());
        }
        let (mut share, mut looks) = (FIRST_TRY, 0);
        loop {
            let is_last = was_known || by.remaining() < TRY_GROWTH * share;
            let limit = if is_last { by } else { Deadline::after(share).sooner(by) };
            let (error, is_final) = match hello(limit) {
                Ok(()) => {
                    self.answered();
                    return Ok(());
                }
                // Another call has been answered meanwhile.
                Err(_) if self.has_answered() && !was_known => return Ok(()),
                Err(NoAnswer::Final(error)) => (error, true),
                Err(NoAnswer::Again(error)) => (error, false),
            };
            let ends = if self.has_answered() {
                is_final
            } else {
                let survey = self.survey(LOOK.min(by.remaining()).max(LOOK_LATE));
                // Somebody has answered the greeting, and is found by another look on a busy machine.
                let is_late = is_final && survey.is_silent() && looks < LOOKS_MAX;
                if is_late {
                    self.look_again();
                    looks += 1;
                }
                survey.is_final() || is_final && !is_late
            };
            if ends || by.remaining() <= PAUSE {
                return Err(self.named(error));
            }
            time::sleep(jittered(PAUSE));
            share = share.saturating_mul(TRY_GROWTH);
        }
    }

    /// Adds to a CONNECTION_ERROR what was found at the addresses, if the store has never answered.
    pub(in crate::store) fn named(&self, error: Error) -> Error {
        if self.has_answered() || error.code() != Code::ConnectionError {
            return error;
        }
        let survey = self.survey(LOOK_LATE);
        match (survey.text(self.service), error) {
            (Some(what), Error::Connection { store, .. }) if survey.is_final() => {
                Error::Connection { store, what, source: None }
            }
            // What the call has found may be the cause, such as a certificate.
            (Some(what), Error::Connection { store, what: found, source }) => {
                Error::Connection { store, what, source: source.or_else(|| Some(found.into())) }
            }
            (_, error) => error,
        }
    }

    /// Returns whether a server that may be one of the store answers at one of the addresses.
    #[cfg(feature = "aerospike")]
    pub(in crate::store) fn finds_the_store(&self) -> bool {
        self.survey(LOOK).may_be_the_store()
    }

    /// Makes the next survey a new one.
    fn look_again(&self) {
        if let Some((at, _)) = &mut *self.last.lock() {
            *at = Moment::OVER;
        }
    }

    fn survey(&self, limit: Duration) -> Survey {
        // Held during the survey: other threads wait for what it finds.
        let mut last = self.last.lock();
        match &*last {
            Some((at, survey)) if Moment::now().since(*at) < self.fresh => survey.clone(),
            before => {
                let by = Deadline::after(limit);
                let mut survey = Survey::of(&self.peers, self.service, self.is_secure, by);
                if let Some((_, before)) = before {
                    survey = survey.after(before);
                }
                *last = Some((Moment::now(), survey.clone()));
                survey
            }
        }
    }
}

#[cfg(all(test, feature = "aerospike"))]
mod tests {
    use std::cell::Cell;
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;
    use crate::testing::patience::LONG;

    fn contact(port: u16) -> FirstContact {
        FirstContact::new(Service::Aerospike, false, [("127.0.0.1".to_owned(), port)])
    }

    fn down() -> Error {
        Error::Connection { store: "s".into(), what: "down".into(), source: None }
    }

    fn closed_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn a_store_that_never_answered_is_given_up_at_a_closed_port_and_one_that_has_answered_is_waited_for() {
        let contact = contact(closed_port());
        let tries = Cell::new(0);
        let hello = |_: Deadline| {
            tries.set(tries.get() + 1);
            if tries.get() == 4 { Ok(()) } else { Err(NoAnswer::Again(down())) }
        };
        let error = contact.greet(Deadline::after(LONG), hello).unwrap_err();
        assert_eq!(tries.get(), 1);
        assert!(error.chain().contains("nothing listens at 127.0.0.1:"), "{}", error.chain());
        contact.answered();
        contact.greet(Deadline::after(LONG), hello).unwrap();
        assert_eq!(tries.get(), 4);
        assert!(contact.named(down()).chain().contains("down"), "its own error");
    }

    #[test]
    fn many_failures_probe_the_addresses_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let contact = FirstContact { fresh: LONG, ..contact(listener.local_addr().unwrap().port()) };
        let served = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&served);
        let web = move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                count.fetch_add(1, Ordering::Relaxed);
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        };
        thread::Builder::new().name("dlm-test-web".into()).spawn(web).unwrap();
        for _ in 0..20 {
            let said = contact.named(down()).chain();
            assert!(said.contains("an HTTP server answers") && said.contains("3000"), "{said}");
        }
        // One connection for each protocol.
        let served = served.load(Ordering::Relaxed);
        assert!((1..=3).contains(&served), "{served}");
    }

    /// A busy machine answers nothing for a second. The next try of the greeting took all of the time then.
    #[test]
    fn a_stranger_that_was_silent_at_first_is_named_long_before_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let contact =
            FirstContact { fresh: Duration::ZERO, ..contact(listener.local_addr().unwrap().port()) };
        let web = move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                if silent.len() < 3 {
                    silent.push(stream);
                } else {
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                }
            }
        };
        thread::Builder::new().name("dlm-test-web".into()).spawn(web).unwrap();
        let by = Deadline::after(LONG);
        let hello = |limit: Deadline| {
            thread::sleep(limit.remaining());
            Err(NoAnswer::Again(down()))
        };
        let error = contact.greet(by, hello).unwrap_err();
        assert!(error.chain().contains("an HTTP server answers"), "{}", error.chain());
        assert!(!by.passed(), "the greeting took all of the time");
    }

    /// Such as a gateway that waits for its master.
    #[test]
    fn the_last_try_of_a_greeting_has_all_that_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let contact = contact(listener.local_addr().unwrap().port());
        let (by, tries) = (Deadline::after(Duration::from_secs(10)), Cell::new(0));
        let hello = |limit: Deadline| {
            tries.set(tries.get() + 1);
            if limit.moment() == by.moment() { Ok(()) } else { Err(NoAnswer::Again(down())) }
        };
        contact.greet(by, hello).unwrap();
        assert_eq!(tries.get(), 2);
    }

    /// It is looked at a few times more, and not until the deadline.
    #[test]
    fn a_final_answer_of_a_server_that_is_silent_otherwise_ends_a_greeting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let contact = contact(listener.local_addr().unwrap().port());
        let tries = Cell::new(0);
        let hello = |_: Deadline| {
            tries.set(tries.get() + 1);
            Err(NoAnswer::Final(down()))
        };
        contact.greet(Deadline::after(LONG), hello).unwrap_err();
        assert_eq!(tries.get(), 1 + LOOKS_MAX);
    }

    #[test]
    fn an_answer_to_another_call_ends_a_greeting() {
        let contact = contact(closed_port());
        let hello = |_: Deadline| {
            contact.answered();
            Err(NoAnswer::Final(down()))
        };
        contact.greet(Deadline::after(LONG), hello).unwrap();
    }

    /// A cold start of many threads through a small pool failed acquires, because their greetings used up the connections.
    #[test]
    fn of_a_crowd_one_thread_greets() {
        let contact = FirstContact { turn: LONG, ..contact(closed_port()) };
        let greetings = AtomicUsize::new(0);
        let hello = |_: Deadline| {
            greetings.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(50));
            Ok(())
        };
        thread::scope(|scope| {
            for number in 0..16 {
                let greet = || contact.greet(Deadline::after(LONG), hello).unwrap();
                thread::Builder::new().name(format!("dlm-test-{number}")).spawn_scoped(scope, greet).unwrap();
            }
        });
        assert_eq!(greetings.into_inner(), 1);
    }

    /// A cancelled call of Go whose greeting hung shut out the next one in the queue.
    #[test]
    fn a_greeting_that_hangs_shuts_out_nobody() {
        let contact = contact(closed_port());
        let (is_greeted, greeted) = crossbeam_channel::bounded::<()>(0);
        let (began, has_begun) = crossbeam_channel::bounded::<()>(1);
        thread::scope(|scope| {
            let contact = &contact;
            let hang = move || {
                let hello = |_: Deadline| {
                    began.send(()).unwrap();
                    let _ = greeted.recv();
                    Ok(())
                };
                contact.greet(Deadline::after(LONG), hello).unwrap();
            };
            thread::Builder::new().name("dlm-test-hung".into()).spawn_scoped(scope, hang).unwrap();
            has_begun.recv().unwrap();
            let by = Deadline::after(LONG);
            contact.greet(by, |_| Ok(())).unwrap();
            assert!(!by.passed(), "it waited for the other greeting");
            drop(is_greeted);
        });
    }

    /// Such as a certificate that does not fit: a server that closes or says nothing may be the store.
    #[test]
    fn the_own_cause_of_a_failure_stays_unless_the_address_is_wrong() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let contact = contact(listener.local_addr().unwrap().port());
        let said = contact.named(down()).chain();
        assert!(said.contains("127.0.0.1:") && said.contains("down"), "{said}");
    }
}

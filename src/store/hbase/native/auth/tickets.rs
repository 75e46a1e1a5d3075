//! The thread that gets tickets.
//!
//! While it has nothing to do, it looks at the tickets four times in the life of each, so that new ones are there when they are
//! needed. It ends with the store. If the KDC hangs then, it ends when the library gives up.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::runtime::process::descriptors::above_streams;
use crate::runtime::process::gssapi::{self, Context, Credentials, GssError, TicketSource};
use crate::runtime::process::threads::WorkerThread;
use crate::runtime::sync::real::Mutex;
use crate::runtime::time::{Deadline, Moment};

/// How often the tickets are looked at, at most and at least.
const LOOK_MIN: Duration = Duration::from_secs(5);
const LOOK_MAX: Duration = Duration::from_secs(600);
/// The most servers whose tickets are renewed before they are needed.
const TARGETS_MAX: usize = 1024;
/// How long the end of a store waits for the thread.
const END_WITHIN: Duration = Duration::from_secs(1);

/// A context that was begun with one server, and its first token.
pub(in crate::store::hbase::native) type BegunContext = (Context, Vec<u8>);

pub(super) type TicketAnswer = Result<BegunContext, TicketError>;

/// What is known of our tickets, for people.
#[derive(Debug, Default)]
pub(super) struct TicketsSeen {
    /// Whose the tickets are, and when the ticket for tickets ends.
    pub(super) tickets: Option<(String, Moment)>,
}

struct TicketRequest {
    target: String,
    by: Deadline,
    answer: Sender<TicketAnswer>,
}

/// The thread, for its owner.
pub(super) struct TicketThread {
    requests: Sender<TicketRequest>,
    is_closing: Arc<AtomicBool>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    thread: WorkerThread,
}

impl TicketThread {
    pub(super) fn start(
        source: TicketSource,
        principal: Option<String>,
        seen: Arc<Mutex<TicketsSeen>>,
    ) -> io::Result<TicketThread> {
        let (requests, received) = unbounded();
        let (ends, ended) = bounded(0);
        let is_closing = Arc::new(AtomicBool::new(false));
        let (targets, has_warned) = (BTreeSet::new(), false);
        let tickets =
            Tickets { source, principal, targets, seen, is_closing: Arc::clone(&is_closing), has_warned };
        let work = move || {
            let _ends: Sender<()> = ends;
            tickets.serve(&received);
        };
        let thread = WorkerThread::start("dlm-tickets", "gets tickets of Kerberos", work)?;
        Ok(TicketThread { requests, is_closing, ended, thread })
    }

    /// Asks for a context with `target`. The answer does not come if `by` is over before it is its turn.
    pub(super) fn ask(&self, target: &str, by: Deadline) -> io::Result<Receiver<TicketAnswer>> {
        let (answer, answered) = bounded(1);
        let request = TicketRequest { target: target.to_owned(), by, answer };
        self.requests.send(request).map_err(|_| io::Error::other("the thread for tickets has ended"))?;
        Ok(answered)
    }

    /// Ends the thread. One that waits for the KDC ends later, when the library gives up.
    pub(super) fn end(self) {
        let TicketThread { requests, is_closing, ended, thread } = self;
        is_closing.store(true, Ordering::SeqCst);
        drop(requests);
        if let Err(RecvTimeoutError::Disconnected) = ended.recv_timeout(END_WITHIN) {
            thread.join();
        }
    }
}

/// What the thread has.
struct Tickets {
    source: TicketSource,
    principal: Option<String>,
    /// The servers whose tickets are renewed.
    targets: BTreeSet<String>,
    seen: Arc<Mutex<TicketsSeen>>,
    is_closing: Arc<AtomicBool>,
    /// Whether it was said that no new ticket comes.
    has_warned: bool,
}

impl Tickets {
    fn serve(mut self, requests: &Receiver<TicketRequest>) {
        let mut next_look = Deadline::after(LOOK_MAX);
        loop {
            let request = match requests.recv_timeout(next_look.remaining()) {
                _ if self.is_closing.load(Ordering::SeqCst) => break,
                Ok(request) => request,
                Err(RecvTimeoutError::Timeout) => {
                    next_look = Deadline::after(self.look());
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if !request.by.passed() {
                let begun = self.begin(&request.target);
                if let Ok((_, left)) = &begun {
                    next_look = next_look.sooner(Deadline::after(pause(*left)));
                    if self.targets.len() < TARGETS_MAX {
                        self.targets.insert(request.target);
                    }
                }
                // The caller may have given up.
                let _ = request.answer.send(begun.map(|(begun, _)| begun));
            }
            if next_look.passed() {
                next_look = Deadline::after(self.look());
            }
        }
        self.source.forget();
    }

    fn begin(&self, target: &str) -> Result<(BegunContext, Duration), TicketError> {
        gssapi::available().map_err(TicketError::Library)?;
        // From tickets that are there. The library would ask the KDC for newer ones first, which may not answer.
        if let Some(begun) = self.source.cached().and_then(|cached| self.begin_from(&cached, target).ok()) {
            return Ok(begun);
        }
        self.begin_from(&self.source, target)
    }

    fn begin_from(
        &self,
        source: &TicketSource,
        target: &str,
    ) -> Result<(BegunContext, Duration), TicketError> {
        if let TicketSource::Keytab { file, .. } = source {
            // The library would say that there is no ticket cache.
            above_streams(|| File::open(file)).map_err(|error| TicketError::Keytab(file.clone(), error))?;
        }
        let credentials = Arc::new(Credentials::acquire(source, self.principal.as_deref())?);
        let begun = Context::begin(Arc::clone(&credentials), target)?;
        let (principal, left) = credentials.inquire()?;
        self.seen.lock().tickets = Some((principal, Moment::now().after(left)));
        Ok((begun, left))
    }

    /// Renews the tickets, as far as it is time. Returns when to look again.
    fn look(&mut self) -> Duration {
        let (mut next, mut failed, mut unknown) = (LOOK_MAX, None, Vec::new());
        for target in &self.targets {
            if self.is_closing.load(Ordering::SeqCst) {
                break;
            }
            match self.begin_from(&self.source, target) {
                Ok((_, left)) => next = next.min(pause(left)),
                // A server that is gone.
                Err(TicketError::Gss(error)) if error.code() == code::SERVER_UNKNOWN => {
                    unknown.push(target.clone());
                }
                Err(error) => failed = Some((target.clone(), error)),
            }
        }
        self.targets.retain(|target| !unknown.contains(target));
        match &failed {
            Some((target, error)) if !self.has_warned => {
                log::warn!("the ticket for {target} cannot be renewed: {error}");
            }
            _ => {}
        }
        self.has_warned = failed.is_some();
        if self.has_warned { 2 * LOOK_MIN } else { next }
    }
}

fn pause(left: Duration) -> Duration {
    (left / 4).clamp(LOOK_MIN, LOOK_MAX)
}

/// Error codes of Kerberos, as they are in `krb5.h`.
mod code {
    pub(super) const CLIENT_UNKNOWN: i32 = -1_765_328_378;
    pub(super) const SERVER_UNKNOWN: i32 = -1_765_328_377;
    pub(super) const PREAUTH_FAILED: i32 = -1_765_328_360;
    pub(super) const TICKET_EXPIRED: i32 = -1_765_328_352;
    pub(super) const SKEW: i32 = -1_765_328_347;
    pub(super) const REALM_UNKNOWN: i32 = -1_765_328_230;
    pub(super) const KDC_UNREACHABLE: i32 = -1_765_328_228;
    pub(super) const KEY_NOT_FOUND: i32 = -1_765_328_203;
    pub(super) const NO_CACHE: i32 = -1_765_328_189;
}

/// Why there is no ticket.
#[derive(Debug, thiserror::Error)]
pub(super) enum TicketError {
    #[error("{0}")]
    Library(String),
    #[error("{0:?}: {1}")]
    Keytab(String, #[source] io::Error),
    #[error(transparent)]
    Gss(#[from] GssError),
}

impl TicketError {
    /// Returns the error for a caller, with what to do. `PermissionDenied` if another try would end alike.
    pub(super) fn explained(&self, source: &TicketSource) -> io::Error {
        const FINAL: io::ErrorKind = io::ErrorKind::PermissionDenied;
        // The KDC, or what is needed to ask it, may come back.
        const PASSING: io::ErrorKind = io::ErrorKind::ConnectionRefused;
        let has_keytab = matches!(source, TicketSource::Keytab { .. });
        let (kind, advice) = match self {
            TicketError::Library(_) => {
                (FINAL, "its library is missing: install libgssapi-krb5-2 (Debian) or krb5-libs (Red Hat)")
            }
            TicketError::Keytab(_, error) if is_lack(error) => (PASSING, "the keytab cannot be read now"),
            TicketError::Keytab(..) => (FINAL, "the keytab cannot be read"),
            TicketError::Gss(error) => match error.code() {
                code::CLIENT_UNKNOWN => (FINAL, "the realm does not know our principal: check principal="),
                code::SERVER_UNKNOWN => (
                    FINAL,
                    "the realm does not know the server: check server_principal=, master_principal= and the server's \
                     name",
                ),
                code::PREAUTH_FAILED => {
                    (FINAL, "the key does not fit: the keytab may be older than the principal's last key")
                }
                code::KEY_NOT_FOUND => {
                    (FINAL, "the keytab has no key of the principal: check keytab= and principal=")
                }
                code::SKEW => {
                    (FINAL, "the clocks of this machine and of the KDC differ by more than 5 minutes")
                }
                code::TICKET_EXPIRED if has_keytab => (PASSING, "no KDC has given a new ticket yet"),
                code::KDC_UNREACHABLE | code::REALM_UNKNOWN => {
                    (PASSING, "no KDC of the realm answers, or none is known: see krb5.conf")
                }
                code::TICKET_EXPIRED | code::NO_CACHE if !has_keytab => {
                    (FINAL, "there is no valid ticket: run kinit, or set keytab= and principal=")
                }
                _ if !error.is_no_credentials() => (PASSING, "no ticket for the server"),
                _ if has_keytab => (
                    FINAL,
                    "no ticket for the server: the keytab may lack the principal, check keytab= and principal=",
                ),
                _ => (FINAL, "there is no ticket: run kinit, or set keytab= and principal="),
            },
        };
        io::Error::new(kind, format!("Kerberos: {advice} ({self})"))
    }
}

/// Whether this process or the machine lacks something for the moment.
fn is_lack(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOMEM].contains(&errno))
}

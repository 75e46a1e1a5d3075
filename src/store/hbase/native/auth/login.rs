//! Our login: asks for tickets in a thread of its own, because the library for Kerberos asks DNS and the KDC without a deadline.
//!
//! | a caller | waits for |
//! |---|---|
//! | opens a connection to a server | the first token for that server, at most until its deadline |
//! | uses a connection whose ticket will end | nothing: it asks for the first token of the next connection, and looks later |

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::principals::{ServedBy, ServerPrincipals};
use super::protection::Protection;
use super::tickets::{BegunContext, TicketAnswer, TicketThread, TicketsSeen};
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::runtime::process::gssapi::TicketSource;
use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::random;
use crate::runtime::sync::real::Mutex;
use crate::runtime::time::{Deadline, Moment};

/// How long a token that was prepared may be used. The server compares the time in it with its clock.
const FRESH: Duration = Duration::from_secs(60);
/// Pause after a token could not be prepared.
const PREPARE_AGAIN: Duration = Duration::from_secs(10);

/// The client's principal and the source of its tickets, and the principals of the servers.
pub(in crate::store::hbase::native) struct KerberosLogin {
    source: TicketSource,
    principal: Option<String>,
    servers: ServerPrincipals,
    least: Protection,
    /// Started by the first connection.
    thread: Mutex<Option<TicketThread>>,
    seen: Arc<Mutex<TicketsSeen>>,
    /// The weakest protection that was agreed.
    weakest: Mutex<Option<Protection>>,
    /// Contexts for connections that take the place of others, by principal.
    prepared: Mutex<BTreeMap<String, PreparedContext>>,
    /// A forked child has none of the threads.
    process: ProcessMark,
}

enum PreparedContext {
    /// It was asked for at this time.
    UnderWay(Receiver<TicketAnswer>, Moment),
    Failed(Moment),
}

impl fmt::Debug for KerberosLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KerberosLogin { source, principal, servers, .. } = self;
        f.debug_struct("KerberosLogin")
            .field("source", source)
            .field("principal", principal)
            .field("servers", servers)
            .finish_non_exhaustive()
    }
}

impl KerberosLogin {
    pub(super) fn new(
        source: TicketSource,
        principal: Option<String>,
        servers: ServerPrincipals,
        least: Protection,
    ) -> KerberosLogin {
        KerberosLogin {
            source,
            principal,
            servers,
            least,
            thread: Mutex::default(),
            seen: Arc::default(),
            weakest: Mutex::default(),
            prepared: Mutex::default(),
            process: ProcessMark::current(),
        }
    }

    /// Returns the name of a cache that nobody else in this process uses.
    pub(super) fn own_cache() -> Result<String> {
        let number = random::secret_number().map_err(|error| Error::Internal {
            what: "no random number for the name of a ticket cache".into(),
            source: Some(error.into()),
        })?;
        Ok(format!("dlm-{number:016x}"))
    }

    /// Returns the least protection of what is sent.
    pub(in crate::store::hbase::native) fn least(&self) -> Protection {
        self.least
    }

    /// Returns the principals that a server may have, the likelier one first.
    pub(in crate::store::hbase::native) fn targets(&self, served_by: ServedBy, host: &str) -> Vec<String> {
        self.servers.of(served_by, host)
    }

    /// Begins a context with the server `target`. Waits for tickets at most until `by`.
    ///
    /// # Errors
    /// `PermissionDenied` if another try would end alike. `TimedOut` if the KDC has not answered by then.
    pub(in crate::store::hbase::native) fn begin(
        &self,
        target: &str,
        by: Deadline,
    ) -> io::Result<BegunContext> {
        match self.ask(target, by)?.recv_timeout(by.remaining()) {
            Ok(answer) => answer.map_err(|error| error.explained(&self.source)),
            Err(RecvTimeoutError::Timeout) => {
                let what = "no ticket for the server yet: the KDC has not answered";
                Err(io::Error::new(io::ErrorKind::TimedOut, what))
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the thread for tickets has ended")),
        }
    }

    /// Returns a context with the server `target` if one is prepared. If not, has one prepared. Does not wait.
    pub(in crate::store::hbase::native) fn prepared(&self, target: &str) -> Option<BegunContext> {
        let mut prepared = self.prepared.lock();
        let now = Moment::now();
        match prepared.get(target) {
            Some(PreparedContext::UnderWay(answer, since)) => {
                let is_fresh = now.since(*since) < FRESH;
                match answer.try_recv() {
                    Ok(Ok(begun)) if is_fresh => {
                        prepared.remove(target);
                        return Some(begun);
                    }
                    Ok(Err(error)) => {
                        log::debug!("no ticket for {target} yet: {error}");
                        prepared.insert(target.to_owned(), PreparedContext::Failed(now));
                        return None;
                    }
                    Err(_) if is_fresh => return None,
                    Ok(Ok(_)) | Err(_) => {}
                }
            }
            Some(PreparedContext::Failed(at)) if now.since(*at) < PREPARE_AGAIN => return None,
            Some(PreparedContext::Failed(_)) | None => {}
        }
        let state = match self.ask(target, Deadline::at(now.after(FRESH))) {
            Ok(answer) => PreparedContext::UnderWay(answer, now),
            Err(error) => {
                log::debug!("no ticket for {target} yet: {error}");
                PreparedContext::Failed(now)
            }
        };
        prepared.insert(target.to_owned(), state);
        None
    }

    /// Notes what a connection has agreed on.
    pub(in crate::store::hbase::native) fn agreed(&self, protection: Protection) {
        let mut weakest = self.weakest.lock();
        *weakest = Some(weakest.map_or(protection, |weakest| weakest.min(protection)));
    }

    /// Reports as whom we are known, and for how long.
    pub(in crate::store::hbase::native) fn diagnose(&self) -> Diagnostic {
        const SOON: Duration = Duration::from_secs(600);
        const TOPIC: &str = "Kerberos";
        let Some((principal, ends)) = self.seen.lock().tickets.clone() else {
            return Diagnostic::warn(TOPIC, "no ticket was needed yet", "");
        };
        let left = ends.since(Moment::now());
        let protection = self.weakest.lock().map_or("none yet", Protection::name);
        let told =
            format!("known as {principal}, protection {protection}, the ticket lasts {} s", left.as_secs());
        match self.source {
            TicketSource::Keytab { .. } if left.is_zero() => {
                Diagnostic::warn(TOPIC, told, "no new ticket comes: see whether the KDC answers, and the log")
            }
            // New tickets come by themselves.
            TicketSource::Keytab { .. } => Diagnostic::ok(TOPIC, told),
            _ if left > SOON => Diagnostic::ok(TOPIC, told),
            _ => Diagnostic::warn(TOPIC, told, "renew it (kinit -R), or set keytab= and principal="),
        }
    }

    /// Hands a request to the thread, which skips it after `by`.
    fn ask(&self, target: &str, by: Deadline) -> io::Result<Receiver<TicketAnswer>> {
        let mut thread = self.thread.lock();
        let running = match &mut *thread {
            Some(running) => running,
            None => thread.insert(TicketThread::start(
                self.source.clone(),
                self.principal.clone(),
                Arc::clone(&self.seen),
            )?),
        };
        running.ask(target, by)
    }
}

impl Drop for KerberosLogin {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().take();
        if self.process.is_current() {
            if let Some(thread) = thread {
                thread.end();
            }
        } else {
            std::mem::forget((thread, std::mem::take(self.prepared.get_mut())));
        }
    }
}

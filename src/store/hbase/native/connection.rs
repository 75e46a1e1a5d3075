//! One connection to one service of one server, shared by any number of threads.
//!
//! There is no reader thread: of the threads that wait for a reply, one receives for all, hands each
//! reply to the thread it belongs to, and passes the duty on when its own has come. A single thread thus
//! sends and receives without ever being switched.
//!
//! | a waiting call | woken by | leaves with |
//! |---|---|---|
//! | receives | its own deadline | its reply, and another waiter receives |
//! | parked | the receiving thread | its reply; or the duty to receive; or the connection is broken |

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use prost::Message;

use super::channel::Channel;
use super::exception::Exception;
use super::frame;
use crate::time::{Deadline, Moment};

/// A connection unused for this long is replaced rather than used: firewalls forget such ones.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The server did not get the whole request, and an incomplete one is not run.
    #[error("the request could not be sent")]
    NotSent(#[source] io::Error),
    /// The request was sent; whether it was run is not known.
    #[error("no answer")]
    Lost(#[source] io::Error),
    /// The server answered with an exception.
    #[error("the server refused")]
    Exception(#[source] Exception),
    /// The server accepts no requests from us at all, and would not if asked again.
    #[error("the server refused the connection")]
    Unwelcome(#[source] io::Error),
}

impl Failure {
    /// Of a request that was not sent because of `error`.
    pub(super) fn before_sending(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Failure::Unwelcome(error),
            _ => Failure::NotSent(error),
        }
    }

    fn after_sending(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Failure::Unwelcome(error),
            _ => Failure::Lost(error),
        }
    }
}

pub(super) struct Connection {
    channel: Channel,
    /// Held while a request is written, so that frames do not mix.
    sending: Mutex<()>,
    /// Touched by the receiving thread only.
    inbox: Mutex<Inbox>,
    calls: Mutex<Calls>,
}

struct Calls {
    next_id: u32,
    waiting: HashMap<u32, Slot>,
    /// Whether a thread is receiving.
    receiving: bool,
    broken: Option<(io::ErrorKind, String)>,
    used: Moment,
    /// Replies received.
    heard: u64,
    /// A call waited until its deadline and nothing at all came meanwhile. A firewall that forgot the
    /// connection, or a host that is gone, looks like that for many minutes.
    silent: bool,
}

struct Slot {
    reply: Option<Result<Vec<u8>, Exception>>,
    wake: Arc<Condvar>,
    /// Whether the caller waits for its turn to receive; until then it is still sending.
    parked: bool,
}

/// Bytes received and not yet taken apart.
#[derive(Default)]
struct Inbox {
    buffer: Vec<u8>,
    filled: usize,
}

impl Connection {
    /// Says hello. The server answers nothing to it.
    pub(super) fn open(channel: Channel, service: &str, user: &str, by: Deadline) -> io::Result<Connection> {
        channel.send(&frame::hello(service, user), by)?;
        let calls = Calls {
            next_id: 0,
            waiting: HashMap::new(),
            receiving: false,
            broken: None,
            used: Moment::now(),
            heard: 0,
            silent: false,
        };
        Ok(Connection {
            channel,
            sending: Mutex::new(()),
            inbox: Mutex::new(Inbox::default()),
            calls: Mutex::new(calls),
        })
    }

    /// Whether a new call should use it. Calls under way stay with a connection that others avoid.
    pub(super) fn is_usable(&self) -> bool {
        let calls = self.calls.lock();
        let idle = calls.waiting.is_empty() && !calls.receiving;
        calls.broken.is_none()
            && !calls.silent
            && (!idle || (Moment::now().since(calls.used) < IDLE_MAX && !self.channel.is_closed()))
    }

    /// Makes one call and waits for its answer, at most until `by`. The server is told the deadline.
    pub(super) fn call(
        &self,
        method: &str,
        parameter: &impl Message,
        by: Deadline,
    ) -> Result<Vec<u8>, Failure> {
        let ticket = self.enter()?;
        let timeout_ms = u32::try_from(by.remaining().as_millis()).unwrap_or(u32::MAX).max(1);
        let request = frame::request(ticket.id, method, timeout_ms, parameter);
        let sent = match self.sending.try_lock_for(by.remaining()) {
            // Nothing of this request is on the wire: the connection is as good as before.
            Some(_turn) if by.passed() => Err(io::ErrorKind::TimedOut.into()),
            Some(_turn) => self.channel.send(&request, by).inspect_err(|error| self.break_off(error)),
            None => Err(io::ErrorKind::TimedOut.into()),
        };
        sent.map_err(Failure::before_sending)?;
        ticket.wait(by)
    }

    fn enter(&self) -> Result<Ticket<'_>, Failure> {
        let mut calls = self.calls.lock();
        if let Some(error) = calls.broken() {
            return Err(Failure::before_sending(error));
        }
        let id = calls.next_id;
        // Not the number by which servers speak of the connection itself.
        calls.next_id = (id + 1) & 0x7fff_ffff;
        calls.used = Moment::now();
        let wake = Arc::new(Condvar::new());
        calls.waiting.insert(id, Slot { reply: None, wake: Arc::clone(&wake), parked: false });
        Ok(Ticket { connection: self, id, wake, heard: calls.heard })
    }

    fn break_off(&self, error: &io::Error) {
        let mut calls = self.calls.lock();
        calls.broken.get_or_insert((error.kind(), error.to_string()));
        for slot in calls.waiting.values() {
            slot.wake.notify_one();
        }
        self.channel.shut();
    }

    /// Receives one reply, whosoever's it is.
    fn receive(&self, by: Deadline) -> io::Result<frame::Reply> {
        let inbox = &mut *self.inbox.lock();
        let prefix = inbox.fill(&self.channel, 4, by)?;
        let length = frame::reply_length([prefix[0], prefix[1], prefix[2], prefix[3]])?;
        let reply = frame::reply(&inbox.fill(&self.channel, 4 + length, by)?[4..]);
        inbox.take(4 + length);
        Ok(reply?)
    }
}

impl Calls {
    fn broken(&self) -> Option<io::Error> {
        self.broken.as_ref().map(|(kind, why)| io::Error::new(*kind, why.clone()))
    }

    /// Hands a reply to its caller. One that nobody waits for any more came too late.
    fn deliver(&mut self, reply: frame::Reply) -> io::Result<()> {
        self.heard += 1;
        self.silent = false;
        let outcome = reply.outcome.map_err(Exception::from);
        match reply.call_id {
            Some(id) if id < 0x8000_0000 => {
                if let Some(slot) = self.waiting.get_mut(&id) {
                    slot.reply = Some(outcome);
                    slot.wake.notify_one();
                }
                Ok(())
            }
            // Of the whole connection: wrong version, no access, a server that wants SASL.
            _ => Err(match outcome {
                Err(exception) => exception.of_connection(),
                Ok(_) => io::Error::new(io::ErrorKind::InvalidData, "a reply to no call"),
            }),
        }
    }

    /// Says more of an end that came before any reply: a server that wants TLS, or a service that it does
    /// not have, closes without a word.
    fn explain(&self, error: io::Error) -> io::Error {
        if self.heard > 0 || error.kind() != io::ErrorKind::UnexpectedEof {
            return error;
        }
        let what = "the server closed the connection without a word; it may demand TLS (tls=on), or be none of HBase's";
        io::Error::new(error.kind(), what)
    }
}

impl Inbox {
    /// The first `count` bytes, received if need be. A time-out keeps what has come so far.
    fn fill(&mut self, channel: &Channel, count: usize, by: Deadline) -> io::Result<&[u8]> {
        const STEP: usize = 16 * 1024;
        while self.filled < count {
            if self.buffer.len() < self.filled + STEP {
                self.buffer.resize(self.filled + STEP, 0);
            }
            self.filled += channel.receive(&mut self.buffer[self.filled..], by)?;
        }
        Ok(&self.buffer[..count])
    }

    fn take(&mut self, count: usize) {
        self.buffer.copy_within(count..self.filled, 0);
        self.filled -= count;
        // A rare large reply must not be paid for as long as the connection lasts.
        self.buffer.truncate(self.filled.max(64 * 1024));
        self.buffer.shrink_to(64 * 1024);
    }
}

/// A call's place among those that wait; given up on drop.
struct Ticket<'a> {
    connection: &'a Connection,
    id: u32,
    wake: Arc<Condvar>,
    /// Replies received by the connection before this call.
    heard: u64,
}

impl Ticket<'_> {
    fn wait(&self, by: Deadline) -> Result<Vec<u8>, Failure> {
        let mut calls = self.connection.calls.lock();
        if let Some(slot) = calls.waiting.get_mut(&self.id) {
            slot.parked = true;
        }
        loop {
            if let Some(reply) = calls.waiting.get_mut(&self.id).and_then(|slot| slot.reply.take()) {
                return reply.map_err(Failure::Exception);
            }
            if let Some(error) = calls.broken() {
                return Err(Failure::after_sending(error));
            }
            if by.passed() {
                calls.silent |= calls.heard == self.heard;
                return Err(Failure::Lost(io::ErrorKind::TimedOut.into()));
            }
            if calls.receiving {
                self.wake.wait_for(&mut calls, by.remaining());
                continue;
            }
            calls.receiving = true;
            let received = MutexGuard::unlocked(&mut calls, || self.connection.receive(by));
            calls.receiving = false;
            let delivered = match received {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
                received => {
                    received.map_err(|error| calls.explain(error)).and_then(|reply| calls.deliver(reply))
                }
            };
            if let Err(error) = delivered {
                MutexGuard::unlocked(&mut calls, || self.connection.break_off(&error));
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut calls = self.connection.calls.lock();
        calls.waiting.remove(&self.id);
        calls.used = Moment::now();
        if !calls.receiving
            && let Some(next) = calls.waiting.values().find(|slot| slot.parked && slot.reply.is_none())
        {
            next.wake.notify_one();
        }
    }
}

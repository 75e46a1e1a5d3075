//! One connection to one service of one server, shared by any number of threads.
//!
//! The connection has no reader thread. The threads that wait for a reply use the Leader/Followers pattern: the
//! leader receives for all and hands each reply to the thread that waits for it. When the leader receives its own
//! reply, it makes a follower the leader. So a single thread sends and receives without a context switch.
//!
//! | a waiting call | woken by | ends with |
//! |---|---|---|
//! | leader | a reply, or its own deadline | its reply, or a time-out; a follower becomes the leader |
//! | follower, parked | the leader, or its own deadline | its reply, a time-out or an error; or the leader role |
//!
//! One thread may have several calls under way, on one or more connections: it starts them all, and then waits for each
//! in turn, for a short time. Between two such waits a call is not parked, so it never becomes the leader.
//!
//! A reply over the limit fails only the call that it answers. The leader skips the rest of that reply until its
//! own deadline, and the next leader continues. If no call waits any more, the connection is closed.
//!
//! Locks are acquired in the order `calls`, `news`. Neither is held while a thread sends or receives.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prost::Message;

use super::auth::{
    BegunContext, ERROR_AFTER_HANDSHAKE, Protection, TicketEnd, authenticate, refused_after_handshake,
};
use super::channel::Channel;
use super::exception::Exception;
use super::frame;
use crate::runtime::sync::real::{Condvar, Mutex, TimedMutex};
use crate::runtime::time::{Deadline, Moment};

/// A connection that was idle for this long is replaced, because firewalls drop idle connections.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A connection used within this time is not checked for a close by the server. The check is a system call.
const IDLE_AT_LEAST: Duration = Duration::from_millis(1);

/// New calls do not use a connection on which a reply longer than this is skipped. They would wait behind it.
const SKIPPED_AT_MOST: u32 = 64 << 20;

/// Failure of a call.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallFailure {
    /// The server did not receive the whole request. A server does not run an incomplete request.
    #[error("the request could not be sent")]
    NotSent(#[source] io::Error),
    /// The request was sent. It is not known whether the server ran it.
    #[error("no answer")]
    Lost(#[source] io::Error),
    /// The server sent a reply over the limit. Its content, and so the result of the request, is not known. The
    /// fields are the length of the reply and the limit, in bytes.
    #[error("a reply of {0} bytes, over the limit of {max} MiB", max = .1 >> 20)]
    TooLong(u32, u32),
    /// The server answered with an exception.
    #[error("the server refused")]
    Exception(#[source] Exception),
    /// One side refuses the other, or there is no ticket for the server. A retry would not help.
    #[error("no connection is possible")]
    Unwelcome(#[source] io::Error),
}

impl CallFailure {
    /// Converts an error because of which a request was not sent.
    pub(super) fn before_sending(error: io::Error) -> CallFailure {
        match error.kind() {
            io::ErrorKind::PermissionDenied => CallFailure::Unwelcome(error),
            _ => CallFailure::NotSent(error),
        }
    }

    /// Returns the same failure once more, for another request that it concerns.
    pub(super) fn repeated(&self) -> CallFailure {
        let again = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        match self {
            CallFailure::NotSent(error) => CallFailure::NotSent(again(error)),
            CallFailure::Lost(error) => CallFailure::Lost(again(error)),
            CallFailure::TooLong(length, max) => CallFailure::TooLong(*length, *max),
            CallFailure::Exception(exception) => CallFailure::Exception(exception.clone()),
            CallFailure::Unwelcome(error) => CallFailure::Unwelcome(again(error)),
        }
    }

    fn after_sending(error: io::Error) -> CallFailure {
        match error.kind() {
            io::ErrorKind::PermissionDenied => CallFailure::Unwelcome(error),
            _ => CallFailure::Lost(error),
        }
    }
}

/// The identity with which a connection is opened.
pub(super) enum ClientIdentity<'a> {
    User(&'a str),
    /// A context that was begun with the server, and the least protection.
    Login(BegunContext, Protection),
}

pub(super) struct Connection {
    channel: Channel,
    /// What was agreed in a handshake.
    protection: Option<Protection>,
    ticket: Option<TicketEnd>,
    /// See [`frame::FRAME_BYTES_MAX`].
    reply_max: u32,
    /// Held while a request is written, so frames do not mix.
    sending: TimedMutex<()>,
    /// Only the receiving thread uses it.
    inbox: Mutex<Inbox>,
    calls: Mutex<Calls>,
}

struct Calls {
    next_id: u32,
    /// Calls without a reply.
    waiting: HashMap<u32, Arc<SentCall>>,
    /// Whether a thread receives for all.
    has_leader: bool,
    broken: Option<(io::ErrorKind, String)>,
    used: Moment,
    /// Replies received.
    received: u64,
    /// A call waited until its deadline, and the connection received no reply in that time. A connection that a
    /// firewall dropped, or whose host is gone, behaves like this for many minutes.
    silent: bool,
    /// The rest of a reply over the limit may still be arriving. It has ended when the next reply arrives.
    skipping: bool,
}

/// The place where one call waits. It has its own lock, so a woken thread need not wait for the lock of all calls.
#[derive(Default)]
struct SentCall {
    news: Mutex<News>,
    wake: Condvar,
    /// Whether the caller waits for a reply. Before that it is still sending and cannot become the leader.
    parked: AtomicBool,
}

/// Message to a waiting call.
#[derive(Default)]
enum News {
    #[default]
    None,
    ReplyFrame(CallOutcome),
    /// The call is the leader from now on.
    Lead,
    /// The connection is broken. `Calls::broken` has the reason.
    Broken,
}

pub(super) type CallOutcome = Result<Vec<u8>, CallFailure>;

/// One received reply.
enum Received {
    ReplyFrame(frame::ReplyFrame),
    /// The beginning of a reply over the limit: the call that it answers, and its length.
    TooLong(u32, u32),
}

/// Bytes that were received but not decoded yet.
#[derive(Default)]
struct Inbox {
    buffer: Vec<u8>,
    filled: usize,
    /// Number of bytes of a reply over the limit that must be skipped before the next reply begins.
    skip: u64,
}

impl Connection {
    /// Sends the hello of the protocol, which the server does not answer: that of a user, or one after the handshake of a
    /// `login`. Replies over `reply_max` bytes are skipped.
    pub(super) fn open(
        mut channel: Channel,
        service: &str,
        identity: ClientIdentity<'_>,
        reply_max: u32,
        by: Deadline,
    ) -> io::Result<Connection> {
        let (protection, ticket) = match identity {
            ClientIdentity::User(user) => {
                channel.send(&frame::hello(service, user), by)?;
                (None, None)
            }
            ClientIdentity::Login(begun, least) => {
                let established = authenticate(&channel, begun, least, reply_max, by)?;
                channel.protect(established.layer);
                channel.send(&frame::hello_again(service), by)?;
                (Some(established.protection), Some(established.ticket))
            }
        };
        let calls = Calls {
            next_id: 0,
            waiting: HashMap::new(),
            has_leader: false,
            broken: None,
            used: Moment::now(),
            received: 0,
            silent: false,
            skipping: false,
        };
        Ok(Connection {
            channel,
            protection,
            ticket,
            reply_max,
            sending: TimedMutex::new(()),
            inbox: Mutex::new(Inbox::default()),
            calls: Mutex::new(calls),
        })
    }

    pub(super) fn protection(&self) -> Option<Protection> {
        self.protection
    }

    /// Returns whether another connection should take its place. This one is used until then.
    pub(super) fn is_to_be_renewed(&self) -> bool {
        self.ticket.is_some_and(|ticket| Moment::now() >= ticket.renew_at)
    }

    /// Returns whether a connection whose ticket lasts so long from now on would do so for longer than this one.
    pub(super) fn ends_before(&self, lasts: Duration) -> bool {
        const LONGER: Duration = Duration::from_secs(1);
        self.ticket.is_some_and(|ticket| Moment::now().after(lasts) > ticket.ends.after(LONGER))
    }

    /// Returns the address of the server.
    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        self.channel.peer()
    }

    /// Returns whether a new call should use this connection. Calls under way stay on a connection that new calls
    /// avoid.
    pub(super) fn is_usable(&self) -> bool {
        let calls = self.calls.lock();
        let unused = Moment::now().since(calls.used);
        let idle = calls.waiting.is_empty() && !calls.has_leader && unused > IDLE_AT_LEAST;
        calls.broken.is_none() && !calls.silent && (!idle || (unused < IDLE_MAX && !self.channel.is_closed()))
    }

    /// Sends the request of one call, at most until `sent_by`. The request contains the time until `by` as the server's
    /// time-out.
    pub(super) fn start(
        self: Arc<Self>,
        method: &'static str,
        parameter: &impl Message,
        sent_by: Deadline,
        by: Deadline,
    ) -> Result<CallTicket, CallFailure> {
        let ticket = self.enter()?;
        let connection = &ticket.connection;
        let timeout_ms = u32::try_from(by.remaining().as_millis()).unwrap_or(u32::MAX).max(1);
        let request = frame::request(ticket.id, method, timeout_ms, parameter);
        let sent = match connection.sending.try_lock_for(sent_by.remaining()) {
            // Nothing of this request was written, so the connection stays usable.
            Some(_turn) if sent_by.passed() => Err(io::ErrorKind::TimedOut.into()),
            Some(_turn) => {
                connection.channel.send(&request, sent_by).inspect_err(|error| connection.break_off(error))
            }
            None => Err(io::ErrorKind::TimedOut.into()),
        };
        frame::reuse(request);
        sent.map_err(CallFailure::before_sending)?;
        Ok(ticket)
    }

    fn enter(self: Arc<Self>) -> Result<CallTicket, CallFailure> {
        let mut calls = self.calls.lock();
        if let Some(error) = calls.broken() {
            return Err(CallFailure::before_sending(error));
        }
        let id = calls.next_id;
        // 31 bits. Servers use the call id -1 for errors of the connection itself.
        calls.next_id = (id + 1) & 0x7fff_ffff;
        calls.used = Moment::now();
        let pending = Arc::new(SentCall::default());
        calls.waiting.insert(id, Arc::clone(&pending));
        let received = calls.received;
        drop(calls);
        Ok(CallTicket { connection: self, id, pending, received, leads: false })
    }

    fn break_off(&self, error: &io::Error) {
        let mut calls = self.calls.lock();
        calls.broken.get_or_insert((error.kind(), error.to_string()));
        for pending in calls.waiting.values() {
            pending.wake(News::Broken);
        }
        self.channel.shut();
    }

    /// Receives the next reply, for any call.
    fn receive(&self, by: Deadline) -> io::Result<Received> {
        let inbox = &mut *self.inbox.lock();
        inbox.skip(&self.channel, by)?;
        let prefix = inbox.fill(&self.channel, 4, by)?;
        match frame::reply_length([prefix[0], prefix[1], prefix[2], prefix[3]], self.reply_max)? {
            frame::Length::Short(ERROR_AFTER_HANDSHAKE) if self.protection.is_some() => {
                Err(refused_after_handshake(io::ErrorKind::PermissionDenied))
            }
            frame::Length::Short(length) => {
                let reply = frame::reply(&inbox.fill(&self.channel, 4 + length, by)?[4..]);
                inbox.take(4 + length);
                Ok(Received::ReplyFrame(reply?))
            }
            frame::Length::Long(length) => loop {
                if let Some(call_id) = frame::long_reply(length, &inbox.buffer[4..inbox.filled])? {
                    inbox.skip = 4 + u64::from(length);
                    return Ok(Received::TooLong(call_id, length));
                }
                // A few bytes are enough, fewer than the smallest long reply has.
                inbox.fill(&self.channel, inbox.filled + 1, by)?;
            },
        }
    }

    /// Returns whether the buffer already contains another whole reply.
    fn has_received_more(&self) -> bool {
        let inbox = self.inbox.lock();
        let prefix = inbox.buffer[..inbox.filled].first_chunk().filter(|_| inbox.skip == 0);
        match prefix.map(|prefix| frame::reply_length(*prefix, self.reply_max)) {
            Some(Ok(frame::Length::Short(length))) => inbox.filled >= 4 + length,
            _ => false,
        }
    }
}

impl Calls {
    fn broken(&self) -> Option<io::Error> {
        self.broken.as_ref().map(|(kind, why)| io::Error::new(*kind, why.clone()))
    }

    /// Finds the call that a reply answers, and the call's outcome. `None` if no call waits for this reply any
    /// more. Fails if the reply concerns the whole connection.
    fn address(
        &mut self,
        received: Received,
        reply_max: u32,
    ) -> io::Result<Option<(Arc<SentCall>, CallOutcome)>> {
        self.received += 1;
        self.skipping = matches!(received, Received::TooLong(..));
        self.silent = matches!(received, Received::TooLong(_, SKIPPED_AT_MOST..));
        let reply = match received {
            Received::ReplyFrame(reply) => reply,
            Received::TooLong(id, length) => {
                return Ok(self
                    .waiting
                    .remove(&id)
                    .map(|pending| (pending, Err(CallFailure::TooLong(length, reply_max)))));
            }
        };
        let outcome = reply.outcome.map_err(Exception::from);
        match reply.call_id {
            Some(id) if id < 0x8000_0000 => {
                Ok(self.waiting.remove(&id).map(|pending| (pending, outcome.map_err(CallFailure::Exception))))
            }
            // It concerns the whole connection: wrong version, no access, or a server that requires SASL.
            _ => Err(match outcome {
                Err(exception) => exception.of_connection(),
                Ok(_) => io::Error::new(io::ErrorKind::InvalidData, "a reply without a valid call id"),
            }),
        }
    }

    /// Makes a follower the leader. Does nothing on a broken connection: all calls were notified of the break, and
    /// another message would overwrite that.
    fn promote_follower(&mut self) {
        if self.broken.is_some() {
            return;
        }
        let next = self.waiting.values().find(|pending| pending.parked.load(Ordering::Relaxed));
        self.has_leader = next.is_some();
        if let Some(next) = next {
            next.wake(News::Lead);
        }
    }

    /// Adds an explanation to an end of the connection before the first reply. A server closes the connection
    /// without an answer if it requires TLS or does not have the requested service.
    fn explain(&self, error: io::Error) -> io::Error {
        if self.received > 0 || error.kind() != io::ErrorKind::UnexpectedEof {
            return error;
        }
        let what = "the server closed the connection without an answer; it may require TLS (tls=on), or it is not HBase";
        io::Error::new(error.kind(), what)
    }
}

impl SentCall {
    fn wake(&self, news: News) {
        *self.news.lock() = news;
        self.wake.notify_one();
    }
}

impl Inbox {
    /// Returns the first `count` bytes and receives them if necessary. A time-out keeps the bytes received so far.
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

    /// Skips the rest of a reply over the limit. After a time-out the next call continues.
    fn skip(&mut self, channel: &Channel, by: Deadline) -> io::Result<()> {
        while self.skip > 0 {
            if self.filled == 0 {
                self.fill(channel, 1, by)?;
            }
            let here = usize::try_from(self.skip).unwrap_or(usize::MAX).min(self.filled);
            self.skip -= here as u64;
            self.take(here);
        }
        Ok(())
    }

    fn take(&mut self, count: usize) {
        self.buffer.copy_within(count..self.filled, 0);
        self.filled -= count;
        // A rare large reply must not keep its memory for the lifetime of the connection.
        self.buffer.truncate(self.filled.max(64 * 1024));
        self.buffer.shrink_to(64 * 1024);
    }
}

/// A call that was sent and has no answer yet. A drop ends it.
pub(super) struct CallTicket {
    connection: Arc<Connection>,
    id: u32,
    pending: Arc<SentCall>,
    /// Replies received by the connection before this call.
    received: u64,
    leads: bool,
}

impl CallTicket {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Waits for the answer, at most until `by`.
    pub(super) fn wait(mut self, by: Deadline) -> CallOutcome {
        self.wait_until(by).unwrap_or_else(|| Err(self.out_of_time()))
    }

    /// Waits for the answer, at most until `until`. `None` if it has not arrived: the call goes on.
    pub(super) fn wait_until(&mut self, until: Deadline) -> Option<CallOutcome> {
        if !self.becomes_leader() {
            loop {
                match self.news(until) {
                    News::ReplyFrame(outcome) => return Some(outcome),
                    News::Lead => {
                        self.leads = true;
                        break;
                    }
                    News::Broken => {
                        let error = self.connection.calls.lock().broken();
                        return Some(Err(broken_off(error)));
                    }
                    News::None if until.passed() => return self.step_down(),
                    News::None => {}
                }
            }
        }
        self.receive_for_all(until).or_else(|| self.step_down())
    }

    /// Ends the wait and not the call: another call becomes the leader. Returns the answer if it has just arrived.
    fn step_down(&mut self) -> Option<CallOutcome> {
        let mut calls = self.connection.calls.lock();
        self.pending.parked.store(false, Ordering::Relaxed);
        let news = std::mem::take(&mut *self.pending.news.lock());
        if self.leads || matches!(news, News::Lead) {
            self.leads = false;
            calls.promote_follower();
        }
        match news {
            News::ReplyFrame(outcome) => Some(outcome),
            News::Broken => Some(Err(broken_off(calls.broken()))),
            News::Lead | News::None => None,
        }
    }

    /// Parks the call, and makes it the leader if the connection has none and its reply has not arrived yet.
    /// Returns whether it is the leader.
    fn becomes_leader(&mut self) -> bool {
        let mut calls = self.connection.calls.lock();
        self.pending.parked.store(true, Ordering::Relaxed);
        self.leads = !calls.has_leader && calls.broken.is_none() && calls.waiting.contains_key(&self.id);
        calls.has_leader |= self.leads;
        self.leads
    }

    fn news(&self, by: Deadline) -> News {
        let mut news = self.pending.news.lock();
        if matches!(*news, News::None) {
            self.pending.wake.wait_for(&mut news, by.remaining());
        }
        std::mem::take(&mut *news)
    }

    /// Receives replies and hands them out until this call's own reply arrives. Then hands out the replies that are
    /// already in the buffer. `None` if its reply did not arrive in time.
    fn receive_for_all(&self, until: Deadline) -> Option<CallOutcome> {
        let mut mine = None;
        while mine.is_none() || self.connection.has_received_more() {
            let addressed = match self.connection.receive(until) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return mine,
                Err(error) => Err(self.connection.calls.lock().explain(error)),
                Ok(reply) => self.connection.calls.lock().address(reply, self.connection.reply_max),
            };
            match addressed {
                Ok(Some((pending, outcome))) if Arc::ptr_eq(&pending, &self.pending) => mine = Some(outcome),
                Ok(Some((pending, outcome))) => pending.wake(News::ReplyFrame(outcome)),
                Ok(None) => {}
                Err(error) => {
                    self.connection.break_off(&error);
                    if mine.is_none() {
                        return Some(Err(CallFailure::after_sending(error)));
                    }
                }
            }
        }
        mine
    }

    /// Returns the failure of a call whose time is over. New calls avoid a connection on which nothing arrived meanwhile.
    pub(super) fn out_of_time(&self) -> CallFailure {
        let mut calls = self.connection.calls.lock();
        calls.silent |= calls.received == self.received;
        CallFailure::Lost(io::ErrorKind::TimedOut.into())
    }
}

/// Returns the failure of a call on a connection that broke.
fn broken_off(why: Option<io::Error>) -> CallFailure {
    CallFailure::after_sending(why.unwrap_or_else(|| io::ErrorKind::Other.into()))
}

impl Drop for CallTicket {
    fn drop(&mut self) {
        let mut calls = self.connection.calls.lock();
        calls.waiting.remove(&self.id);
        calls.used = Moment::now();
        if calls.skipping && calls.waiting.is_empty() && calls.broken.is_none() {
            // No call waits any more, so nobody would skip the rest.
            let why = "a reply over the limit was left unread".to_owned();
            calls.broken = Some((io::ErrorKind::ConnectionAborted, why));
            self.connection.channel.shut();
        }
        // This call may have become the leader after its last check of `news`.
        if self.leads || matches!(*self.pending.news.lock(), News::Lead) {
            calls.promote_follower();
        }
    }
}

//! Connections of our own to one node. A connection has one request under way.
//!
//! The protocol has no request ids. A connection is used again only after the whole reply to its last request arrived,
//! and nothing more. After anything else it is closed: a time-out, an error, a byte too many, or a reply that answers
//! another request.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::wire::{self, Asked, PREFIX, RecordDigest, RecordReply};
use crate::runtime::sync::real::{Condvar, Mutex};
use crate::runtime::time::{Deadline, Moment};
use crate::store::aerospike::keys::RecordKey;
use crate::store::deadline_socket::{Arrived, DeadlineSocket};

/// A connection that was idle for this long is replaced, because firewalls and servers drop idle connections.
const IDLE_MAX: Duration = Duration::from_secs(50);
/// Buffers that grew beyond this are not kept.
const BUFFER_KEPT: usize = 64 << 10;
const BUFFER_FIRST: usize = 1024;

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum NoReply {
    /// The node did not receive the whole request. Nodes do not run an incomplete request.
    NotSent(io::Error),
    /// The request was sent. It is not known whether the node ran it.
    Lost(io::Error),
}

/// The connections to one node.
pub(super) struct NodeSockets {
    address: SocketAddr,
    /// The maximum number of connections.
    most: usize,
    connect_timeout: Duration,
    connections: Mutex<NodeConnections>,
    /// A connection was returned or closed.
    freed: Condvar,
}

#[derive(Default)]
struct NodeConnections {
    idle: Vec<NodeConnection>,
    /// Including those in use.
    open: usize,
    waiting: usize,
}

/// A connection, and the buffers of its requests and replies.
struct NodeConnection {
    socket: DeadlineSocket,
    request: Vec<u8>,
    reply: Vec<u8>,
    /// The number of the last request.
    number: u32,
    used: Moment,
}

/// A connection in use. It is closed when dropped, unless it is returned.
struct PooledSocket<'a> {
    sockets: &'a NodeSockets,
    connection: Option<NodeConnection>,
}

impl NodeSockets {
    pub(super) fn new(address: SocketAddr, most: usize, connect_timeout: Duration) -> NodeSockets {
        let (connections, freed) = (Mutex::default(), Condvar::new());
        NodeSockets { address, most, connect_timeout, connections, freed }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends one request and waits for its reply.
    pub(super) fn ask(
        &self,
        record: (&str, &RecordKey, &RecordDigest),
        asked: Asked<'_>,
        by: Deadline,
    ) -> Result<RecordReply, NoReply> {
        let mut lent = self.lend(by, by).map_err(NoReply::NotSent)?;
        let connection = lent.connection.as_mut().expect("there until it is returned");
        connection.number = connection.number.wrapping_add(1);
        let left_ms = u32::try_from(by.remaining().as_millis()).unwrap_or(u32::MAX / 2).max(1);
        wire::request(&mut connection.request, record, asked, connection.number, left_ms);
        connection.socket.write_all(&connection.request, by).map_err(NoReply::NotSent)?;
        let reply = connection.receive(by).map_err(NoReply::Lost)?;
        if !reply.answers(asked, connection.number) {
            let what = "the reply answers another request";
            return Err(NoReply::Lost(io::Error::new(io::ErrorKind::InvalidData, what)));
        }
        lent.give_back();
        Ok(reply)
    }

    /// Sends a batch of changes, or one change without a batch, which is less work for the node. `None` if all connections are in use and none gets free until `lent_by`.
    pub(super) fn start<'a>(
        &'a self,
        namespace: &str,
        rows: &[(&'a RecordKey, Asked<'a>, &'a RecordDigest)],
        lent_by: Deadline,
        sent_by: Deadline,
        by: Deadline,
    ) -> io::Result<Option<BatchUnderWay<'a>>> {
        let mut lent = match self.lend(lent_by, sent_by) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !sent_by.passed() => return Ok(None),
            lent => lent?,
        };
        let connection = lent.connection.as_mut().expect("there until it is returned");
        connection.number = connection.number.wrapping_add(1);
        let left_ms = u32::try_from(by.remaining().as_millis()).unwrap_or(u32::MAX / 2).max(1);
        let single = match *rows {
            [(record_key, asked, digest)] => {
                wire::request(
                    &mut connection.request,
                    (namespace, record_key, digest),
                    asked,
                    connection.number,
                    left_ms,
                );
                Some(asked)
            }
            _ => {
                wire::batch(&mut connection.request, namespace, rows, connection.number, left_ms);
                None
            }
        };
        connection.socket.write_all(&connection.request, sent_by)?;
        Ok(Some(BatchUnderWay { lent, single, rows: rows.len(), filled: 0 }))
    }

    /// Returns whether a request can probably be sent at once.
    pub(super) fn has_idle_connection(&self) -> bool {
        !self.connections.lock().idle.is_empty()
    }

    /// Returns an idle connection or a new one. Waits until `by` if there are as many as allowed.
    fn lend(&self, by: Deadline, connected_by: Deadline) -> io::Result<PooledSocket<'_>> {
        loop {
            match self.idle_connection(by)? {
                // Checked without the lock, because the check is a system call.
                Some(connection) if !connection.is_usable() => {
                    drop(PooledSocket { sockets: self, connection: Some(connection) })
                }
                Some(connection) => return Ok(PooledSocket { sockets: self, connection: Some(connection) }),
                None => break,
            }
        }
        let connected = DeadlineSocket::connect(
            &self.address,
            Deadline::after(self.connect_timeout).sooner(connected_by),
        );
        let socket = connected.inspect_err(|_| self.has_closed())?;
        let (request, reply) = (Vec::with_capacity(BUFFER_FIRST), vec![0; BUFFER_FIRST]);
        let connection = NodeConnection { socket, request, reply, number: 0, used: Moment::now() };
        Ok(PooledSocket { sockets: self, connection: Some(connection) })
    }

    /// Takes the connection that was used last. `None` means that the caller may open a new one, which is counted already.
    fn idle_connection(&self, by: Deadline) -> io::Result<Option<NodeConnection>> {
        let mut connections = self.connections.lock();
        loop {
            if let Some(connection) = connections.idle.pop() {
                return Ok(Some(connection));
            }
            if connections.open < self.most {
                connections.open += 1;
                return Ok(None);
            }
            if by.passed() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            connections.waiting += 1;
            self.freed.wait_for(&mut connections, by.remaining());
            connections.waiting -= 1;
        }
    }

    /// Counts a connection that is closed.
    fn has_closed(&self) {
        let mut connections = self.connections.lock();
        connections.open -= 1;
        if connections.waiting > 0 {
            self.freed.notify_one();
        }
    }
}

/// A batch whose reply has not arrived yet. A drop closes its connection.
pub(super) struct BatchUnderWay<'a> {
    lent: PooledSocket<'a>,
    /// The request, if there is only one.
    single: Option<Asked<'a>>,
    rows: usize,
    /// Bytes of the reply that were received and not parsed.
    filled: usize,
}

/// What has arrived of the reply to a batch.
pub(super) enum BatchReply {
    /// Nothing, or not enough to be parsed.
    Nothing,
    /// The answers to some rows, each with its index.
    Rows(Vec<(usize, RecordReply)>),
    /// The same, and no others will come. With the reason if the node stopped early.
    Last(Vec<(usize, RecordReply)>, Option<u8>),
}

impl BatchUnderWay<'_> {
    /// Receives answers, at most until `until`. After an error or [`BatchReply::Last`] no others will come.
    pub(super) fn receive(&mut self, until: Deadline) -> io::Result<BatchReply> {
        let connection = self.lent.connection.as_mut().expect("there until it is returned");
        let message = match connection.receive_message(&mut self.filled, until) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(BatchReply::Nothing),
            message => message?,
        };
        if let Some(asked) = self.single {
            let reply = wire::reply(&connection.reply[PREFIX..message])?;
            if self.filled > message || !reply.answers(asked, connection.number) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the reply answers another request"));
            }
            self.filled = 0;
            return Ok(BatchReply::Last(vec![(0, reply)], None));
        }
        let (mut rows, mut end) = (Vec::new(), None);
        for part in wire::batch_parts(&connection.reply[PREFIX..message])? {
            if end.is_some() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a row after the last one"));
            }
            match part.end() {
                Some(code) => end = Some(code),
                None => rows.push(part.row(connection.number, self.rows)?),
            }
        }
        connection.reply.copy_within(message..self.filled, 0);
        self.filled -= message;
        Ok(match end {
            Some(code) => BatchReply::Last(rows, Some(code).filter(|code| *code != 0)),
            None => BatchReply::Rows(rows),
        })
    }

    /// Returns the connection for the next request, after [`BatchReply::Last`].
    pub(super) fn give_back(self) {
        if self.filled == 0 {
            self.lent.give_back();
        }
    }
}

impl NodeConnection {
    /// Returns whether the node still has the connection open, and sent nothing that nobody asked for.
    fn is_usable(&self) -> bool {
        Moment::now().since(self.used) < IDLE_MAX && self.socket.arrived() == Arrived::Nothing
    }

    /// Receives a message. Returns its length. `filled` is the number of bytes of it, and of those after it, that were
    /// received. A time-out keeps them.
    fn receive_message(&mut self, filled: &mut usize, by: Deadline) -> io::Result<usize> {
        loop {
            let length = match self.reply[..*filled].first_chunk() {
                Some(prefix) => PREFIX + wire::reply_length(*prefix)?,
                None => PREFIX,
            };
            if *filled >= length && length > PREFIX {
                return Ok(length);
            }
            if self.reply.len() < length {
                self.reply.resize(length, 0);
            }
            *filled += self.socket.read_some(&mut self.reply[*filled..], by)?;
        }
    }

    fn receive(&mut self, by: Deadline) -> io::Result<RecordReply> {
        let mut filled = 0;
        let length = self.receive_message(&mut filled, by)?;
        if filled > length {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes that nobody asked for"));
        }
        wire::reply(&self.reply[PREFIX..length])
    }
}

impl PooledSocket<'_> {
    /// Returns the connection for the next request.
    fn give_back(mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        connection.used = Moment::now();
        if connection.reply.len() > BUFFER_KEPT || connection.request.capacity() > BUFFER_KEPT {
            (connection.request, connection.reply) =
                (Vec::with_capacity(BUFFER_FIRST), vec![0; BUFFER_FIRST]);
        }
        let mut connections = self.sockets.connections.lock();
        // The first in the list was idle for the longest time.
        let is_old =
            connections.idle.first().is_some_and(|first| connection.used.since(first.used) >= IDLE_MAX);
        let old = is_old.then(|| connections.idle.remove(0));
        connections.idle.push(connection);
        if connections.waiting > 0 {
            self.sockets.freed.notify_one();
        }
        drop(connections);
        drop(old.map(|connection| PooledSocket { sockets: self.sockets, connection: Some(connection) }));
    }
}

impl Drop for PooledSocket<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // Closed before another one may be opened.
            drop(connection);
            self.sockets.has_closed();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::super::operation::{BinOperation, BinValue, RecordExistsAction, Write};
    use super::*;
    use crate::testing::patience::{LONG, until};

    const SHORT: Duration = Duration::from_millis(200);

    /// What a scripted node does with one request. The reply that it would send is correct.
    type Script = fn(&mut TcpStream, Vec<u8>) -> io::Result<()>;

    /// Returns the connections to a node that follows the script with each request, and the number of connections that
    /// it accepts in all. It ends with the last of them.
    fn node(connections: usize, script: Script) -> NodeSockets {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move || {
            for stream in listener.incoming().take(connections) {
                let mut stream = stream.unwrap();
                thread::spawn(move || while serve_one(&mut stream, script).is_ok() {});
            }
        };
        thread::Builder::new().name("dlm-test-node".into()).spawn(serve).unwrap();
        NodeSockets::new(address, 1, LONG)
    }

    fn serve_one(stream: &mut TcpStream, script: Script) -> io::Result<()> {
        let mut prefix = [0; PREFIX];
        stream.read_exact(&mut prefix)?;
        let mut request = vec![0; (u64::from_be_bytes(prefix) & 0xffff_ffff_ffff) as usize];
        stream.read_exact(&mut request)?;
        // The number follows the name of its operation and the head of an array of two.
        let at = request.windows(2).position(|pair| pair == [b'#', 0x92]).unwrap() + 2;
        script(stream, reply_to(request[at]))
    }

    /// Returns the reply to a request with this number, which is below 128.
    fn reply_to(number: u8) -> Vec<u8> {
        let header = [&[22, 0, 0, 0, 0, 0][..], &1u32.to_be_bytes(), &[0; 10], &1u16.to_be_bytes()].concat();
        let operation = [&[0, 0, 0, 13, 1, 1, 0, 1, b'#'][..], &u64::from(number).to_be_bytes()].concat();
        let length = (header.len() + operation.len()) as u64;
        [&(2u64 << 56 | 3 << 48 | length).to_be_bytes()[..], &header, &operation].concat()
    }

    fn ask(node: &NodeSockets, limit: Duration) -> Result<RecordReply, NoReply> {
        let record_key = RecordKey { set: "XDC#s".into(), key: "c#i".into() };
        let steps = [BinOperation::Put("b", BinValue::Int(1))];
        let (exists, ttl_s) = (RecordExistsAction::Update, 9);
        let write = Write { record_key: &record_key, exists, when: None, steps: &steps, ttl_s };
        let digest = RecordDigest::of(&record_key);
        node.ask(("test", &record_key, &digest), Asked::Write(&write), Deadline::after(limit))
    }

    #[track_caller]
    fn assert_lost(reply: Result<RecordReply, NoReply>) {
        assert!(matches!(reply, Err(NoReply::Lost(_))), "{reply:?}");
    }

    /// Waits until the idle connection was closed, or has bytes that nobody asked for. It must not be used again then.
    #[track_caller]
    fn until_spoilt(node: &NodeSockets) {
        until("something arrives", || node.connections.lock().idle[0].socket.arrived() != Arrived::Nothing);
        assert!(!node.connections.lock().idle[0].is_usable());
    }

    fn open(node: &NodeSockets) -> (usize, usize) {
        let connections = node.connections.lock();
        (connections.open, connections.idle.len())
    }

    #[test]
    fn one_connection_serves_many_requests() {
        let node = node(1, |stream, reply| stream.write_all(&reply));
        for number in 1..100 {
            assert_eq!(ask(&node, LONG).unwrap().number(), Some(number));
        }
        assert_eq!(open(&node), (1, 1));
    }

    /// The reply to the first request arrives after its time limit. Whoever used the connection again would take it
    /// for the reply to the second.
    #[test]
    fn a_connection_whose_reply_came_too_late_is_not_used_again() {
        static GAVE_UP: AtomicBool = AtomicBool::new(false);
        let node = node(10, |stream, reply| {
            until("the first gives up", || GAVE_UP.load(Ordering::SeqCst));
            stream.write_all(&reply)
        });
        // On a slow machine the time may be over before the request is sent.
        let mut tries = [SHORT, 10 * SHORT, LONG / 2].into_iter().map(|limit| ask(&node, limit));
        let first = tries.find(|reply| !matches!(reply, Err(NoReply::NotSent(_))));
        assert_lost(first.expect("a request was sent"));
        assert_eq!(open(&node), (0, 0), "closed");
        GAVE_UP.store(true, Ordering::SeqCst);
        assert!(ask(&node, LONG).is_ok());
    }

    /// What a client would see that used such a connection again.
    #[test]
    fn a_reply_to_the_request_before_is_not_taken_for_an_answer() {
        let node = node(2, |stream, reply| {
            let number = reply[reply.len() - 1];
            stream.write_all(&reply_to(number.saturating_sub(1)))
        });
        assert_lost(ask(&node, LONG));
        assert_eq!(open(&node), (0, 0), "closed");
    }

    #[test]
    fn bytes_that_nobody_asked_for_close_the_connection() {
        // With the reply.
        let twice = node(2, |stream, reply| stream.write_all(&[&reply[..], &reply].concat()));
        assert_lost(ask(&twice, LONG));
        assert_eq!(open(&twice), (0, 0));
        // After the reply.
        static TAKEN: AtomicBool = AtomicBool::new(false);
        static AGAIN: AtomicBool = AtomicBool::new(false);
        let later = node(2, |stream, reply| {
            stream.write_all(&reply)?;
            if AGAIN.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            until("the reply is taken", || TAKEN.load(Ordering::SeqCst));
            stream.write_all(&reply)
        });
        ask(&later, LONG).unwrap();
        TAKEN.store(true, Ordering::SeqCst);
        until_spoilt(&later);
        assert_eq!(ask(&later, LONG).unwrap().number(), Some(1), "a new connection");
    }

    #[test]
    fn a_connection_that_the_node_closed_is_replaced_before_a_request_is_sent() {
        let node = node(3, |stream, reply| {
            stream.write_all(&reply)?;
            stream.shutdown(std::net::Shutdown::Both)
        });
        for _ in 0..3 {
            assert_eq!(ask(&node, LONG).unwrap().number(), Some(1));
            until_spoilt(&node);
        }
    }

    #[test]
    fn what_is_cut_or_nonsense_is_lost_and_what_was_not_connected_is_not_sent() {
        assert_lost(ask(&node(1, |stream, _| stream.shutdown(std::net::Shutdown::Both)), LONG));
        assert_lost(ask(
            &node(1, |stream, reply| {
                stream.write_all(&reply[..reply.len() - 1])?;
                stream.shutdown(std::net::Shutdown::Both)
            }),
            LONG,
        ));
        assert_lost(ask(&node(1, |stream, _| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n")), LONG));
        assert_lost(ask(&node(1, |stream, _| stream.write_all(&[0xff; 64])), LONG));
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let reply = ask(&NodeSockets::new(closed, 1, LONG), LONG);
        assert!(matches!(reply, Err(NoReply::NotSent(_))), "{reply:?}");
    }

    #[test]
    fn who_finds_all_connections_in_use_waits_for_one_until_the_deadline() {
        static KEEPS: AtomicBool = AtomicBool::new(false);
        let node = node(1, |stream, reply| {
            thread::sleep(SHORT / 10);
            until("it may answer", || !KEEPS.load(Ordering::SeqCst));
            stream.write_all(&reply)
        });
        thread::scope(|scope| {
            let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| ask(&node, LONG))).collect();
            assert!(asking.into_iter().all(|asking| asking.join().unwrap().is_ok()));
            KEEPS.store(true, Ordering::SeqCst);
            let held = scope.spawn(|| ask(&node, LONG));
            until("the connection is in use", || open(&node).1 == 0);
            let late = ask(&node, SHORT / 4);
            assert!(matches!(&late, Err(NoReply::NotSent(error)) if error.kind() == io::ErrorKind::TimedOut));
            KEEPS.store(false, Ordering::SeqCst);
            held.join().unwrap().unwrap();
        });
        assert_eq!(open(&node), (1, 1));
    }
}

//! What networks do to messages, and the proxy that does it to chosen ones: it stands between a client and
//! a real server, and loses, delays, cuts or replaces what it is told to.
//!
//! What travels is known to `proxy.rs` (HBase's gateway, Aerospike) and `rpc_proxy.rs` (HBase's own
//! protocol). There a message is passed on only when it is whole, so that "the reply was lost" always
//! means that the request had been carried out.
//!
//! Every thread is named, ends with its connection, and is joined when the proxy is dropped.

#![allow(dead_code, reason = "no test program needs every fault")]

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// What happens to one request and its reply.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The request is carried out, and the connection breaks before the reply.
    LoseReply,
    /// The connection breaks before the server has the request.
    LoseRequest,
    /// The request is carried out twice, and the second reply is the client's: as from a gateway that
    /// heard nothing of the first and asked again by itself.
    Twice,
    /// The request is carried out, and the connection breaks in the middle of the reply, behind so
    /// many bytes.
    CutReply(usize),
    /// The request is kept until the gate opens, and carried out then, whoever still waits for it.
    Keep(Arc<Gate>),
    /// As `Keep`, and the client sees the connection break at once.
    KeepAndBreak(Arc<Gate>),
    /// The server never hears of the request and the client never hears anything.
    Swallow,
    /// The request is carried out, and the reply comes a byte at a time with so much between them.
    Drip(Duration),
    /// The server never hears of the request; the client is answered this, and nothing more.
    Answer(Vec<u8>),
}

/// Holds requests back until it is opened.
#[derive(Debug)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    opens_after: Duration,
}

impl Default for Gate {
    /// The bound is there so that a bug fails and does not hang.
    fn default() -> Gate {
        Gate::opening_after(Duration::from_secs(120))
    }
}

impl Gate {
    /// One that holds each request back for so long at most.
    pub(crate) fn opening_after(opens_after: Duration) -> Gate {
        Gate { open: Mutex::default(), opened: Condvar::new(), opens_after }
    }

    pub(crate) fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    pub(super) fn pass(&self) {
        let mut open = self.open.lock();
        self.opened.wait_while_for(&mut open, |open| !*open, self.opens_after);
    }
}

/// The rule for one method.
struct Rule {
    method: &'static str,
    /// Requests of that method to let through first.
    after: usize,
    /// Requests to hit then.
    times: usize,
    /// Of those, one in so many is hit, by chance.
    one_in: usize,
    fault: Fault,
}

/// Which requests meet which fault, if not those of a rule.
type Storm = Box<dyn FnMut(&str) -> Option<Fault> + Send>;

/// Stands before a server, and passes everything on until told otherwise. See the module; made by those who
/// know a protocol.
pub(crate) struct Proxy(pub(super) Arc<Wire>);

/// What the proxy and its threads share.
#[derive(Default)]
pub(crate) struct Wire {
    listening: Mutex<Vec<SocketAddr>>,
    stopping: AtomicBool,
    rules: Mutex<Vec<Rule>>,
    storm: Mutex<Option<Storm>>,
    /// What happens to requests that have these bytes somewhere.
    naming: Mutex<Option<(Vec<u8>, Fault)>>,
    hits: AtomicUsize,
    pub(super) late: AtomicUsize,
    connections: AtomicUsize,
    open: AtomicUsize,
    open_at_once: AtomicUsize,
    requests: Mutex<Vec<String>>,
    /// Those that hold something back.
    gates: Mutex<Vec<Arc<Gate>>>,
    /// Both sides of every connection, to be shut down.
    streams: Mutex<Vec<TcpStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Wire {
    /// Where clients are to connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listening.lock()[0]
    }

    /// The next request of `method` meets `fault`, once. `*` stands for every method.
    pub(crate) fn next(&self, method: &'static str, fault: Fault) {
        self.later(method, 0, 1, fault);
    }

    /// Of the requests of `method` from now on, `times` meet `fault` after `after` went well, not counting
    /// those that meet the fault of an earlier rule.
    pub(crate) fn later(&self, method: &'static str, after: usize, times: usize, fault: Fault) {
        self.rules.lock().push(Rule { method, after, times, one_in: 1, fault });
    }

    /// From now on one request of `method` in so many meets `fault`, by chance.
    pub(crate) fn sometimes(&self, method: &'static str, one_in: usize, fault: Fault) {
        self.rules.lock().push(Rule { method, after: 0, times: usize::MAX, one_in, fault });
    }

    /// Asks `storm` about each request from now on, by its method.
    pub(crate) fn storm(&self, storm: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        *self.storm.lock() = Some(Box::new(storm));
    }

    /// Each request that has `bytes` somewhere meets `fault` from now on. Not for HBase's own protocol.
    pub(crate) fn naming(&self, bytes: &[u8], fault: Fault) {
        *self.naming.lock() = Some((bytes.to_vec(), fault));
    }

    /// Forgets what was to happen.
    pub(crate) fn heal(&self) {
        *self.naming.lock() = None;
        *self.storm.lock() = None;
        self.rules.lock().clear();
    }

    /// How many requests met a fault so far: a test of one that no request met shows nothing.
    pub(crate) fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// How many requests that were kept back have been carried out.
    pub(crate) fn late(&self) -> usize {
        self.late.load(Ordering::SeqCst)
    }

    /// Connections taken so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The most connections there were at a time. One that the client has closed counts until the proxy
    /// has noticed.
    pub(crate) fn connections_at_once(&self) -> usize {
        self.open_at_once.load(Ordering::SeqCst)
    }

    /// Methods asked for so far, in order.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// Closes all connections, as a server does with those it finds idle.
    pub(crate) fn hang_up(&self) {
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// As [`fault_for`](Wire::fault_for), of a request whose bytes count as well.
    pub(super) fn fault_for_request(&self, method: String, request: &[u8]) -> Option<Fault> {
        // Copied only for a request that meets it: an answer may be a mebibyte, and tests count memory.
        let is_named =
            |(bytes, _): &&(Vec<u8>, Fault)| request.windows(bytes.len()).any(|part| part == bytes);
        let Some((_, fault)) = self.naming.lock().as_ref().filter(is_named).cloned() else {
            return self.fault_for(method);
        };
        self.requests.lock().push(method);
        self.hits.fetch_add(1, Ordering::SeqCst);
        if let Fault::Keep(gate) | Fault::KeepAndBreak(gate) = &fault {
            self.gates.lock().push(Arc::clone(gate));
        }
        Some(fault)
    }

    /// Takes note of a request, and says what is to happen to it.
    pub(super) fn fault_for(&self, method: String) -> Option<Fault> {
        let rule = |rule: &mut Rule| {
            if rule.method != method && rule.method != "*" {
                return None;
            }
            if rule.after > 0 {
                rule.after -= 1;
                return None;
            }
            let hit = rule.times > 0 && (rule.one_in == 1 || fastrand::usize(..rule.one_in) == 0);
            hit.then(|| {
                rule.times -= 1;
                rule.fault.clone()
            })
        };
        let fault = self.rules.lock().iter_mut().find_map(rule);
        let fault = fault.or_else(|| self.storm.lock().as_mut().and_then(|storm| storm(&method)));
        self.requests.lock().push(method);
        self.hits.fetch_add(usize::from(fault.is_some()), Ordering::SeqCst);
        if let Some(Fault::Keep(gate) | Fault::KeepAndBreak(gate)) = &fault {
            self.gates.lock().push(Arc::clone(gate));
        }
        fault
    }

    /// Has every connection that is made to `listener` served by `serve`. Errors are connections that end,
    /// which is what they do here.
    pub(super) fn listen(
        self: &Arc<Wire>,
        listener: TcpListener,
        serve: impl Fn(&TcpStream) -> io::Result<()> + Clone + Send + 'static,
    ) {
        self.listening.lock().push(listener.local_addr().unwrap());
        let wire = Arc::clone(self);
        self.spawn(move || {
            for client in listener.incoming() {
                if wire.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                wire.connections.fetch_add(1, Ordering::SeqCst);
                let open = wire.open.fetch_add(1, Ordering::SeqCst) + 1;
                wire.open_at_once.fetch_max(open, Ordering::SeqCst);
                let (serving, serve) = (Arc::clone(&wire), serve.clone());
                wire.spawn(move || {
                    let _ = serving.own(&client).and_then(|()| serve(&client));
                    let _ = client.shutdown(Shutdown::Both);
                    serving.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
    }

    pub(super) fn connect(&self, server: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(server)?;
        self.own(&stream)?;
        Ok(stream)
    }

    /// Sees to it that the connection ends with the proxy.
    fn own(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        self.streams.lock().push(stream.try_clone()?);
        if self.stopping.load(Ordering::SeqCst) {
            self.hang_up();
        }
        Ok(())
    }

    pub(super) fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        let thread = thread::Builder::new().name("dlm-test-proxy".into()).spawn(work).unwrap();
        let mut threads = self.threads.lock();
        // One that has ended keeps its stack until it is joined or let go.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }
}

impl Deref for Proxy {
    type Target = Wire;

    fn deref(&self) -> &Wire {
        &self.0
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        for address in self.listening.lock().iter() {
            // Wakes the listener.
            let _ = TcpStream::connect(address);
        }
        // Threads may start others until all are gone.
        loop {
            self.gates.lock().iter().for_each(|gate| gate.open());
            self.hang_up();
            let Some(thread) = self.threads.lock().pop() else { break };
            let _ = thread.join();
        }
    }
}

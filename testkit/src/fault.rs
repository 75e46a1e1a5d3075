//! What networks do to messages, and the proxy that does it to chosen ones: it stands between a client and
//! a real server, and loses, delays, cuts or replaces what it is told to.
//!
//! A message is passed on only when it is whole, so that "the reply was lost" always means that the request
//! had been carried out. Where a message ends and what it is called is known to a
//! [`Dialect`](crate::Dialect), or to whoever writes a proxy of its own over [`Wire`].
//!
//! Every thread is named, ends with its connection, and is joined when the proxy is dropped.

use std::fmt;
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
pub enum Fault {
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
pub struct Gate {
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
    pub fn opening_after(opens_after: Duration) -> Gate {
        Gate { open: Mutex::default(), opened: Condvar::new(), opens_after }
    }

    /// Lets all requests pass from now on.
    pub fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    /// Waits until the gate is open.
    pub fn pass(&self) {
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

/// Stands before a server, and passes everything on until it is told otherwise: see the methods of [`Wire`].
/// Made by [`Proxy::speaking`], or by whoever knows a protocol, over a [`Wire`].
pub struct Proxy(Arc<Wire>);

/// What the proxy and its threads share.
#[derive(Default)]
pub struct Wire {
    listening: Mutex<Vec<SocketAddr>>,
    stopping: AtomicBool,
    rules: Mutex<Vec<Rule>>,
    storm: Mutex<Option<Storm>>,
    /// What happens to requests that have these bytes somewhere.
    naming: Mutex<Option<(Vec<u8>, Fault)>>,
    hits: AtomicUsize,
    late: AtomicUsize,
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
    pub fn address(&self) -> SocketAddr {
        self.listening.lock()[0]
    }

    /// The next request of `method` meets `fault`, once. `*` stands for every method.
    pub fn next(&self, method: &'static str, fault: Fault) {
        self.later(method, 0, 1, fault);
    }

    /// Of the requests of `method` from now on, `times` meet `fault` after `after` went well, not counting
    /// those that meet the fault of an earlier rule.
    pub fn later(&self, method: &'static str, after: usize, times: usize, fault: Fault) {
        self.rules.lock().push(Rule { method, after, times, one_in: 1, fault });
    }

    /// From now on one request of `method` in so many meets `fault`, by chance.
    pub fn sometimes(&self, method: &'static str, one_in: usize, fault: Fault) {
        self.rules.lock().push(Rule { method, after: 0, times: usize::MAX, one_in, fault });
    }

    /// Asks `storm` about each request from now on, by its method.
    pub fn storm(&self, storm: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        *self.storm.lock() = Some(Box::new(storm));
    }

    /// Each request that has `bytes` somewhere meets `fault` from now on. Not for HBase's own protocol.
    pub fn naming(&self, bytes: &[u8], fault: Fault) {
        *self.naming.lock() = Some((bytes.to_vec(), fault));
    }

    /// Forgets what was to happen.
    pub fn heal(&self) {
        *self.naming.lock() = None;
        *self.storm.lock() = None;
        self.rules.lock().clear();
    }

    /// How many requests met a fault so far: a test of one that no request met shows nothing.
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// How many requests that were kept back have been carried out.
    pub fn late(&self) -> usize {
        self.late.load(Ordering::SeqCst)
    }

    /// To be called when a request that was kept back has been carried out.
    pub fn carried_out_late(&self) {
        self.late.fetch_add(1, Ordering::SeqCst);
    }

    /// Connections taken so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The most connections there were at a time. One that the client has closed counts until the proxy
    /// has noticed.
    pub fn connections_at_once(&self) -> usize {
        self.open_at_once.load(Ordering::SeqCst)
    }

    /// Methods asked for so far, in order.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// Closes all connections, as a server does with those it finds idle.
    pub fn hang_up(&self) {
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// As [`fault_for`](Wire::fault_for), of a request whose bytes count as well: see
    /// [`naming`](Wire::naming).
    pub fn fault_for_request(&self, method: String, request: &[u8]) -> Option<Fault> {
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

    /// Records a request, and returns what is to happen to it.
    pub fn fault_for(&self, method: String) -> Option<Fault> {
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

    /// Serves every connection to `listener` with `serve`, each in a thread of its own. An error of `serve`
    /// ends the connection, as any other end of it does.
    pub fn listen(
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

    /// A connection to the server, which ends with the proxy.
    pub fn connect(&self, server: SocketAddr) -> io::Result<TcpStream> {
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

    /// Starts a thread that is joined when the proxy is dropped.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        let thread = thread::Builder::new().name("dlm-test-proxy".into()).spawn(work).unwrap();
        let mut threads = self.threads.lock();
        // One that has ended keeps its stack until it is joined or let go.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }
}

impl Proxy {
    /// A proxy whose connections are served by what [`Wire::listen`] was given.
    pub fn over(wire: Arc<Wire>) -> Proxy {
        Proxy(wire)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Proxy").field(&self.0).finish()
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("listening", &*self.listening.lock()).finish_non_exhaustive()
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

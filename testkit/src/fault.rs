//! Network faults, and a proxy that applies them to chosen messages. The proxy stands between a client and a real
//! server. It loses, delays, cuts or replaces messages.
//!
//! The proxy passes on only whole messages. So "the reply was lost" always means that the request had been carried
//! out. A [`Dialect`](crate::Dialect) knows where a message ends and what it is called. For other protocols, write a
//! proxy over [`Wire`].
//!
//! Every thread has a name and ends with its connection. Dropping the proxy joins all threads.

use std::fmt;
use std::fs;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::patience::until;

/// What the proxy does to one request and its reply.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The server carries out the request. The connection breaks before the reply.
    LoseReply,
    /// The connection breaks before the server receives the request.
    LoseRequest,
    /// The server carries out the request, and after this pause once more. The client receives the second reply. A
    /// gateway does this when it receives no reply and sends the request again by itself.
    Twice(Duration),
    /// The server carries out the request, and the client receives the reply after this pause. When the gate opens,
    /// the server carries out the request once more. A gateway does this if the request that it sends again is late.
    CopyLate(Duration, Arc<Gate>),
    /// The server carries out the request. The connection breaks in the reply, after this number of bytes.
    CutReply(usize),
    /// The proxy keeps the request until the gate opens. Then the server carries it out, even if the client no longer
    /// waits.
    Keep(Arc<Gate>),
    /// Like `Keep`, but the client's connection breaks at once.
    KeepAndBreak(Arc<Gate>),
    /// The server does not receive the request. The client receives no reply, and the connection stays open.
    Swallow,
    /// The server carries out the request. The reply arrives byte by byte, with this pause after each byte.
    Drip(Duration),
    /// The server does not receive the request. The client receives these bytes as the reply.
    Answer(Vec<u8>),
}

/// A gate that delays requests until it is opened.
#[derive(Debug)]
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    opens_after: Duration,
}

impl Default for Gate {
    /// A gate that opens by itself after 10 min. With it, a bug makes a test fail and not hang.
    fn default() -> Gate {
        Gate::opening_after(Duration::from_secs(600))
    }
}

impl Gate {
    /// A gate that delays each request for at most this time.
    pub fn opening_after(opens_after: Duration) -> Gate {
        Gate { open: Mutex::default(), opened: Condvar::new(), opens_after }
    }

    /// Lets all requests pass from now on.
    pub fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    /// Blocks until the gate is open, or until the request was delayed for the maximum time.
    pub fn pass(&self) {
        let mut open = self.open.lock();
        self.opened.wait_while_for(&mut open, |open| !*open, self.opens_after);
    }
}

/// The rule for one method.
struct Rule {
    method: &'static str,
    /// Number of requests of the method that pass first.
    after: usize,
    /// Number of requests that meet the fault after that.
    times: usize,
    /// Each request meets the fault with a probability of 1 / `one_in`.
    one_in: usize,
    fault: Fault,
}

/// Chooses a fault for the requests that no rule matches.
type Storm = Box<dyn FnMut(&str) -> Option<Fault> + Send>;

/// A proxy in front of a server. It passes everything on until a method of [`Wire`] gives it a rule. Create it with
/// [`Proxy::speaking`], or over a [`Wire`] for other protocols.
pub struct Proxy(Arc<Wire>);

/// Whether a connection is open for its first end, as `/proc/net/tcp` says. It is not if the other end has closed it.
fn is_open(table: &str, from: SocketAddr, to: SocketAddr) -> bool {
    let hex = |address: SocketAddr| match address {
        SocketAddr::V4(it) => format!("{:08X}:{:04X}", u32::from_ne_bytes(it.ip().octets()), it.port()),
        // Those are in another table. No proxy listens at one.
        SocketAddr::V6(_) => String::new(),
    };
    let open = [hex(from), hex(to), "01".to_owned()];
    table.lines().any(|line| line.split_whitespace().skip(1).take(3).eq(open.iter().map(String::as_str)))
}

/// The state that a proxy shares with its threads.
#[derive(Default)]
pub struct Wire {
    listening: Mutex<Vec<SocketAddr>>,
    stopping: AtomicBool,
    rules: Mutex<Vec<Rule>>,
    storm: Mutex<Option<Storm>>,
    /// The fault for requests that contain these bytes.
    naming: Mutex<Option<(Vec<u8>, Fault)>>,
    hits: AtomicUsize,
    late: AtomicUsize,
    connections: AtomicUsize,
    open: AtomicUsize,
    open_at_once: AtomicUsize,
    requests: Mutex<Vec<String>>,
    /// Gates that delay requests.
    gates: Mutex<Vec<Arc<Gate>>>,
    /// Both sides of every connection. They are shut down at the end.
    streams: Mutex<Vec<TcpStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Wire {
    /// Returns the address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.listening.lock()[0]
    }

    /// The next request of `method` meets `fault`. The method `*` means any method.
    pub fn next(&self, method: &'static str, fault: Fault) {
        self.later(method, 0, 1, fault);
    }

    /// After `after` further requests of `method`, `times` requests meet `fault`. Requests that meet the fault of an
    /// earlier rule are not counted.
    pub fn later(&self, method: &'static str, after: usize, times: usize, fault: Fault) {
        self.rules.lock().push(Rule { method, after, times, one_in: 1, fault });
    }

    /// From now on each request of `method` meets `fault` with a probability of 1 / `one_in`.
    pub fn sometimes(&self, method: &'static str, one_in: usize, fault: Fault) {
        self.rules.lock().push(Rule { method, after: 0, times: usize::MAX, one_in, fault });
    }

    /// From now on calls `storm` with the method of each request that no rule matches, to choose its fault.
    pub fn storm(&self, storm: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        *self.storm.lock() = Some(Box::new(storm));
    }

    /// From now on each request that contains `bytes` meets `fault`. This does not work for HBase's native protocol.
    pub fn naming(&self, bytes: &[u8], fault: Fault) {
        *self.naming.lock() = Some((bytes.to_vec(), fault));
    }

    /// Deletes all rules.
    pub fn heal(&self) {
        *self.naming.lock() = None;
        *self.storm.lock() = None;
        self.rules.lock().clear();
    }

    /// Returns how many requests met a fault so far. A test should check that this is not 0.
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// Returns how many delayed requests have been carried out.
    pub fn late(&self) -> usize {
        self.late.load(Ordering::SeqCst)
    }

    /// Counts a delayed request that has been carried out. Call it after the server has answered.
    pub fn carried_out_late(&self) {
        self.late.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Returns the largest number of connections at one time. A connection that the client has closed counts until
    /// the proxy has noticed that.
    pub fn connections_at_once(&self) -> usize {
        self.open_at_once.load(Ordering::SeqCst)
    }

    /// Returns the methods of all requests so far, in order.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// Closes all connections, as a server does with idle ones.
    pub fn hang_up(&self) {
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Like [`hang_up`](Wire::hang_up), but returns when the sockets of the clients know it. On a busy machine this takes
    /// the operating system a moment. On Linux only: elsewhere it does not wait.
    #[track_caller]
    pub fn hang_up_and_wait(&self) {
        let listening = self.listening.lock().clone();
        let ends = |stream: &TcpStream| Some((stream.peer_addr().ok()?, stream.local_addr().ok()?));
        let mut clients: Vec<_> = self.streams.lock().iter().filter_map(ends).collect();
        clients.retain(|(_, own)| listening.contains(own));
        self.hang_up();
        until("the clients see that their connections are closed", || {
            let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
            clients.retain(|(client, own)| is_open(&table, *client, *own));
            clients.is_empty()
        });
    }

    /// Like [`fault_for`](Wire::fault_for), but the fault may also depend on the bytes of the request: see
    /// [`naming`](Wire::naming).
    pub fn fault_for_request(&self, method: String, request: &[u8]) -> Option<Fault> {
        // The fault is cloned only for a request that meets it: an answer may be 1 MiB, and tests measure memory.
        let is_named =
            |(bytes, _): &&(Vec<u8>, Fault)| request.windows(bytes.len()).any(|part| part == bytes);
        let Some((_, fault)) = self.naming.lock().as_ref().filter(is_named).cloned() else {
            return self.fault_for(method);
        };
        self.requests.lock().push(method);
        self.hits.fetch_add(1, Ordering::SeqCst);
        if let Fault::Keep(gate) | Fault::KeepAndBreak(gate) | Fault::CopyLate(_, gate) = &fault {
            self.gates.lock().push(Arc::clone(gate));
        }
        Some(fault)
    }

    /// Records a request and returns its fault, if any.
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
        if let Some(Fault::Keep(gate) | Fault::KeepAndBreak(gate) | Fault::CopyLate(_, gate)) = &fault {
            self.gates.lock().push(Arc::clone(gate));
        }
        fault
    }

    /// Serves every connection to `listener` with `serve`, each in its own thread. The connection is closed when
    /// `serve` returns, with or without an error.
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

    /// Opens a connection to the server. It is closed when the proxy is dropped.
    pub fn connect(&self, server: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(server)?;
        self.own(&stream)?;
        Ok(stream)
    }

    /// Makes sure that the connection is closed when the proxy is dropped.
    fn own(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let own = stream.try_clone()?;
        let mut streams = self.streams.lock();
        // One that is closed at both ends keeps its descriptor until it is dropped.
        streams.retain(|stream| stream.peer_addr().is_ok());
        streams.push(own);
        drop(streams);
        if self.stopping.load(Ordering::SeqCst) {
            self.hang_up();
        }
        Ok(())
    }

    /// Starts a thread that is joined when the proxy is dropped.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        let thread = thread::Builder::new().name("dlm-test-proxy".into()).spawn(work).unwrap();
        let mut threads = self.threads.lock();
        // A thread that has ended keeps its stack until it is joined or detached.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }
}

impl Proxy {
    /// Makes a proxy from a wire whose connections [`Wire::listen`] serves.
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
            // Wakes the thread that accepts connections.
            let _ = TcpStream::connect(address);
        }
        // Threads may start other threads until all have ended.
        loop {
            self.gates.lock().iter().for_each(|gate| gate.open());
            self.hang_up();
            let Some(thread) = self.threads.lock().pop() else { break };
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// A long test makes more connections than a process may have descriptors.
    #[test]
    fn connections_that_have_ended_keep_no_descriptor() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Proxy::over(Arc::default());
        proxy.0.listen(listener, |_| Ok(()));
        for _ in 0..100 {
            let _ = TcpStream::connect(address).unwrap().read(&mut [0]);
        }
        until("they have ended", || {
            let _ = TcpStream::connect(address).unwrap().read(&mut [0]);
            proxy.streams.lock().len() < 10
        });
    }
}

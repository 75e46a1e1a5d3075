//! A server that does what networks do: it stands between a client and the real server, here called the
//! gateway, and loses, delays, cuts or replaces chosen messages.
//!
//! A message is passed on only when it is whole, so that "the reply was lost" always means that the
//! request had been carried out.
//!
//! Every thread is named, ends with its connection, and is joined when the proxy is dropped.

#![allow(dead_code, reason = "no test program needs every fault")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use self::dialect::Dialect;

#[path = "dialect.rs"]
mod dialect;

/// What happens to one request and its reply.
#[derive(Clone)]
pub(crate) enum Fault {
    /// The request is carried out, and the connection breaks before the reply.
    LoseReply,
    /// The connection breaks before the gateway has the request.
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
    /// The gateway never hears of the request and the client never hears anything.
    Swallow,
    /// The request is carried out, and the reply comes a byte at a time with so much between them.
    Drip(Duration),
    /// The gateway never hears of the request; the client is answered this, and nothing more.
    Answer(Vec<u8>),
}

/// Holds requests back until it is opened.
#[derive(Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut open = self.open.lock();
        self.opened.wait_while_for(&mut open, |open| !*open, Duration::from_secs(120));
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

struct Shared {
    dialect: Dialect,
    address: SocketAddr,
    gateway: SocketAddr,
    stopping: AtomicBool,
    rules: Mutex<Vec<Rule>>,
    storm: Mutex<Option<Storm>>,
    hits: AtomicUsize,
    late: AtomicUsize,
    connections: AtomicUsize,
    open: AtomicUsize,
    open_at_once: AtomicUsize,
    requests: Mutex<Vec<String>>,
    /// A client's side and the gateway's side of every connection, to be shut down.
    streams: Mutex<Vec<TcpStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// See the module.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

impl Proxy {
    /// In front of HBase's `gateway`, passing everything on until told otherwise.
    pub(crate) fn before(gateway: SocketAddr) -> Proxy {
        Proxy::speaking(Dialect::Thrift, gateway)
    }

    /// In front of an Aerospike node. Clients are told that the node's address is the proxy's.
    pub(crate) fn before_aerospike(node: SocketAddr) -> Proxy {
        Proxy::speaking(Dialect::Aerospike, node)
    }

    fn speaking(dialect: Dialect, gateway: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            dialect,
            address,
            gateway,
            stopping: AtomicBool::new(false),
            rules: Mutex::default(),
            storm: Mutex::default(),
            hits: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            open_at_once: AtomicUsize::new(0),
            requests: Mutex::default(),
            streams: Mutex::default(),
            threads: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        let thread = thread::Builder::new().name("dlm-test-proxy".into());
        let listener = thread.spawn(move || accept(&listener, &accepting)).unwrap();
        Proxy { address, shared, listener: Some(listener) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next request of `method` meets `fault`, once. `*` stands for every method.
    pub(crate) fn next(&self, method: &'static str, fault: Fault) {
        self.later(method, 0, 1, fault);
    }

    /// Of the requests of `method` from now on, `times` meet `fault` after `after` went well.
    pub(crate) fn later(&self, method: &'static str, after: usize, times: usize, fault: Fault) {
        self.shared.rules.lock().push(Rule { method, after, times, one_in: 1, fault });
    }

    /// From now on one request of `method` in so many meets `fault`, by chance.
    pub(crate) fn sometimes(&self, method: &'static str, one_in: usize, fault: Fault) {
        self.shared.rules.lock().push(Rule { method, after: 0, times: usize::MAX, one_in, fault });
    }

    /// Asks `storm` about each request from now on, by its method.
    pub(crate) fn storm(&self, storm: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        *self.shared.storm.lock() = Some(Box::new(storm));
    }

    /// Forgets what was to happen.
    pub(crate) fn heal(&self) {
        *self.shared.storm.lock() = None;
        for rule in &mut *self.shared.rules.lock() {
            (rule.after, rule.times) = (0, 0);
        }
    }

    /// How many requests met a fault so far: a test of one that no request met shows nothing.
    pub(crate) fn hits(&self) -> usize {
        self.shared.hits.load(Ordering::SeqCst)
    }

    /// How many requests that were kept back have been carried out.
    pub(crate) fn late(&self) -> usize {
        self.shared.late.load(Ordering::SeqCst)
    }

    /// Connections taken so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// The most connections there were at a time. One that the client has closed counts until the proxy
    /// has noticed.
    pub(crate) fn connections_at_once(&self) -> usize {
        self.shared.open_at_once.load(Ordering::SeqCst)
    }

    /// Methods asked for so far, in order.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().clone()
    }

    /// Closes all connections, as a gateway does with those it finds idle.
    pub(crate) fn hang_up(&self) {
        for stream in self.shared.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for rule in self.shared.rules.lock().iter() {
            if let Fault::Keep(gate) | Fault::KeepAndBreak(gate) = &rule.fault {
                gate.open();
            }
        }
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        self.hang_up();
        let threads = std::mem::take(&mut *self.shared.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        let number = shared.connections.fetch_add(1, Ordering::SeqCst);
        let open = shared.open.fetch_add(1, Ordering::SeqCst) + 1;
        shared.open_at_once.fetch_max(open, Ordering::SeqCst);
        let serving = Arc::clone(shared);
        let thread = thread::Builder::new().name(format!("dlm-test-proxy-{number}"));
        let thread = thread.spawn(move || {
            // Errors are connections that end, which is what they do here.
            let _ = serve(client, &serving);
            serving.open.fetch_sub(1, Ordering::SeqCst);
        });
        shared.threads.lock().push(thread.unwrap());
    }
}

/// Passes requests and replies until a side hangs up or a fault ends the connection.
fn serve(client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    let gateway = TcpStream::connect(shared.gateway)?;
    gateway.set_nodelay(true)?;
    shared.streams.lock().extend([client.try_clone()?, gateway.try_clone()?]);
    let outcome = pass_messages(&client, &gateway, shared);
    let _ = client.shutdown(Shutdown::Both);
    let _ = gateway.shutdown(Shutdown::Both);
    outcome
}

fn pass_messages(mut client: &TcpStream, mut gateway: &TcpStream, shared: &Shared) -> io::Result<()> {
    loop {
        let request = read_message(client, shared.dialect)?;
        match shared.fault_for(&request) {
            None => {
                gateway.write_all(&request)?;
                client.write_all(&reply(gateway, shared)?)?;
            }
            Some(Fault::LoseReply) => {
                gateway.write_all(&request)?;
                reply(gateway, shared)?;
                return Ok(());
            }
            Some(Fault::LoseRequest) => return Ok(()),
            Some(Fault::Twice) => {
                gateway.write_all(&request)?;
                reply(gateway, shared)?;
                gateway.write_all(&request)?;
                client.write_all(&reply(gateway, shared)?)?;
            }
            Some(Fault::CutReply(bytes)) => {
                gateway.write_all(&request)?;
                let reply = reply(gateway, shared)?;
                client.write_all(&reply[..bytes.min(reply.len() - 1)])?;
                return Ok(());
            }
            Some(Fault::Keep(gate)) => {
                gate.pass();
                gateway.write_all(&request)?;
                let reply = reply(gateway, shared)?;
                shared.late.fetch_add(1, Ordering::SeqCst);
                let _ = client.write_all(&reply);
            }
            Some(Fault::KeepAndBreak(gate)) => {
                client.shutdown(Shutdown::Both)?;
                gate.pass();
                gateway.write_all(&request)?;
                reply(gateway, shared)?;
                shared.late.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            Some(Fault::Swallow) => {
                // Until the client has had enough.
                read_message(client, shared.dialect)?;
                return Ok(());
            }
            Some(Fault::Drip(pause)) => {
                gateway.write_all(&request)?;
                for byte in reply(gateway, shared)? {
                    client.write_all(&[byte])?;
                    thread::sleep(pause);
                }
            }
            Some(Fault::Answer(bytes)) => {
                client.write_all(&bytes)?;
                read_message(client, shared.dialect)?;
                return Ok(());
            }
        }
    }
}

impl Shared {
    fn fault_for(&self, request: &[u8]) -> Option<Fault> {
        let method = self.dialect.method(request);
        self.requests.lock().push(method.clone());
        let mut rules = self.rules.lock();
        for rule in rules.iter_mut().filter(|rule| rule.method == method || rule.method == "*") {
            if rule.after > 0 {
                rule.after -= 1;
            } else if rule.times > 0 && (rule.one_in == 1 || fastrand::usize(..rule.one_in) == 0) {
                rule.times -= 1;
                self.hits.fetch_add(1, Ordering::SeqCst);
                return Some(rule.fault.clone());
            }
        }
        let fault = self.storm.lock().as_mut().and_then(|storm| storm(&method));
        self.hits.fetch_add(usize::from(fault.is_some()), Ordering::SeqCst);
        fault
    }
}

/// The gateway's answer, as if the proxy were the gateway.
fn reply(gateway: &TcpStream, shared: &Shared) -> io::Result<Vec<u8>> {
    let reply = read_message(gateway, shared.dialect)?;
    Ok(shared.dialect.readdressed(reply, shared.gateway, shared.address))
}

/// Reads one whole message. An error also when the other side ends or goes on after it: nobody here
/// sends a second request before the first is answered.
fn read_message(mut stream: &TcpStream, dialect: Dialect) -> io::Result<Vec<u8>> {
    let mut message = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match dialect.end_of_message(&message) {
            Some(end) if end == message.len() => return Ok(message),
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
            None => {}
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => message.extend_from_slice(&buffer[..count]),
        }
    }
}

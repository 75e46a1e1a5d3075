//! Stands between a client that speaks HBase's own protocol and a server of one machine, and loses what
//! networks lose: chosen requests, their replies, or requests that arrive long after their connection.
//!
//! The client is given this proxy's address as that of the master. Where replies name the RegionServer,
//! its port is replaced by that of the proxy's second listener: by one with as many digits, so that no
//! length changes. A message is passed on only when it is whole, so that "the reply was lost" always means
//! that the request was carried out.
//!
//! Every thread is named, ends with its connection, and is joined when the proxy is dropped.

#![allow(dead_code, reason = "no test program needs every fault")]

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// What happens to one request and its reply.
#[derive(Clone)]
pub(crate) enum Loss {
    /// The request is carried out, and the connection breaks before the reply.
    Reply,
    /// The connection breaks before the server has the request.
    Request,
    /// The connection breaks; the request arrives on its own as soon as the gate is open.
    Late(Arc<Gate>),
    /// The same, after a time.
    LateBy(Duration),
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

/// Decides over each request by its method.
type Rule = Box<dyn FnMut(&str) -> Option<Loss> + Send>;

struct Shared {
    master: SocketAddr,
    /// Where the RegionServer listens, once a reply has told.
    server_port: AtomicU16,
    /// Where it seems to listen.
    seeming_port: u16,
    stopping: AtomicBool,
    rule: Mutex<Option<Rule>>,
    hits: AtomicUsize,
    late: AtomicUsize,
    streams: Mutex<Vec<TcpStream>>,
    gates: Mutex<Vec<Arc<Gate>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// See the module.
pub(crate) struct RpcProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl RpcProxy {
    /// In front of the server whose master listens there. Passes everything on until told otherwise.
    pub(crate) fn before(master: SocketAddr) -> RpcProxy {
        let [masters, servers] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let shared = Arc::new(Shared {
            master,
            server_port: AtomicU16::new(0),
            seeming_port: servers.local_addr().unwrap().port(),
            stopping: AtomicBool::new(false),
            rule: Mutex::default(),
            hits: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
            streams: Mutex::default(),
            gates: Mutex::default(),
            threads: Mutex::default(),
        });
        let address = masters.local_addr().unwrap();
        for (listener, is_master) in [(masters, true), (servers, false)] {
            let accepting = Arc::clone(&shared);
            shared.spawn(move || accept(&listener, is_master, &accepting));
        }
        RpcProxy { address, shared }
    }

    /// What to give the client as the master's address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next request of `method` to a RegionServer, once.
    pub(crate) fn next(&self, method: &'static str, loss: Loss) {
        let mut loss = Some(loss);
        self.decide(move |asked| if asked == method { loss.take() } else { None });
    }

    /// Asks `rule` about each request to a RegionServer from now on.
    pub(crate) fn decide(&self, rule: impl FnMut(&str) -> Option<Loss> + Send + 'static) {
        *self.shared.rule.lock() = Some(Box::new(rule));
    }

    /// Passes everything on again.
    pub(crate) fn heal(&self) {
        *self.shared.rule.lock() = None;
    }

    /// How many requests met a loss.
    pub(crate) fn hits(&self) -> usize {
        self.shared.hits.load(Ordering::SeqCst)
    }

    /// How many late requests have been carried out.
    pub(crate) fn late(&self) -> usize {
        self.shared.late.load(Ordering::SeqCst)
    }
}

impl Drop for RpcProxy {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.gates.lock().iter().for_each(|gate| gate.open());
        for port in [self.address.port(), self.shared.seeming_port] {
            // Wakes the listener.
            let _ = TcpStream::connect(("127.0.0.1", port));
        }
        // Threads may start others until all are gone.
        loop {
            for stream in self.shared.streams.lock().drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
            let Some(thread) = self.shared.threads.lock().pop() else { break };
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        let thread = thread::Builder::new().name("dlm-test-rpc-proxy".into()).spawn(work).unwrap();
        self.threads.lock().push(thread);
    }

    fn loss_of(&self, method: &str) -> Option<Loss> {
        self.rule.lock().as_mut().and_then(|rule| rule(method))
    }

    fn connect(&self, to_master: bool) -> io::Result<TcpStream> {
        let port = if to_master { self.master.port() } else { self.server_port.load(Ordering::SeqCst) };
        let stream = TcpStream::connect((self.master.ip(), port))?;
        stream.set_nodelay(true)?;
        self.streams.lock().push(stream.try_clone()?);
        Ok(stream)
    }
}

fn accept(listener: &TcpListener, is_master: bool, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        let serving = Arc::clone(shared);
        // Errors are connections that end, which is what they do here.
        shared.spawn(move || drop(serve(&client, is_master, &serving)));
    }
}

/// Replies that must not reach the client, by the number of their call.
type Lost = Arc<Mutex<HashSet<u64>>>;

fn serve(client: &TcpStream, is_master: bool, shared: &Arc<Shared>) -> io::Result<()> {
    client.set_nodelay(true)?;
    shared.streams.lock().push(client.try_clone()?);
    let mut server = shared.connect(is_master)?;
    let lost = Lost::default();
    let (back, from, replies, losing) =
        (client.try_clone()?, server.try_clone()?, Arc::clone(shared), Arc::clone(&lost));
    shared.spawn(move || {
        let _ = pass_replies(&back, &from, &replies, &losing);
        let _ = (back.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    });
    let outcome = pass_requests(client, &mut server, is_master, shared, &lost);
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    outcome
}

fn pass_requests(
    mut client: &TcpStream,
    server: &mut TcpStream,
    is_master: bool,
    shared: &Arc<Shared>,
    lost: &Lost,
) -> io::Result<()> {
    let mut hello = vec![0; 6];
    client.read_exact(&mut hello)?;
    hello.extend(frame(client)?);
    server.write_all(&hello)?;
    loop {
        let request = frame(client)?;
        let (call, method) = header(&request);
        let loss = if is_master { None } else { shared.loss_of(&method) };
        shared.hits.fetch_add(usize::from(loss.is_some()), Ordering::SeqCst);
        match loss {
            None => server.write_all(&request)?,
            Some(Loss::Reply) => {
                lost.lock().insert(call);
                server.write_all(&request)?;
            }
            Some(Loss::Request) => return Ok(()),
            Some(Loss::Late(gate)) => {
                shared.gates.lock().push(Arc::clone(&gate));
                arrive_late(shared, [hello, request].concat(), move || gate.pass());
                return Ok(());
            }
            Some(Loss::LateBy(time)) => {
                arrive_late(shared, [hello, request].concat(), move || thread::sleep(time));
                return Ok(());
            }
        }
    }
}

fn arrive_late(shared: &Arc<Shared>, bytes: Vec<u8>, wait: impl FnOnce() + Send + 'static) {
    let arriving = Arc::clone(shared);
    shared.spawn(move || {
        wait();
        let carried_out = arriving.connect(false).and_then(|mut server| {
            server.write_all(&bytes)?;
            frame(&server)
        });
        if carried_out.is_ok() {
            arriving.late.fetch_add(1, Ordering::SeqCst);
        }
    });
}

fn pass_replies(mut client: &TcpStream, server: &TcpStream, shared: &Shared, lost: &Lost) -> io::Result<()> {
    loop {
        let mut reply = frame(server)?;
        if lost.lock().remove(&header(&reply).0) {
            return Ok(());
        }
        shared.readdress(&mut reply);
        client.write_all(&reply)?;
    }
}

impl Shared {
    /// Puts the proxy's port where a reply has the RegionServer's: as a number behind its name in what the
    /// master says, as text behind its name in hbase:meta.
    fn readdress(&self, reply: &mut [u8]) {
        const NAME: &[u8] = b"\x0a\x09localhost\x10";
        let seeming = u32::from(self.seeming_port);
        let places = |reply: &[u8], of: &[u8]| -> Vec<usize> {
            (0..reply.len().saturating_sub(of.len())).filter(|&at| reply[at..].starts_with(of)).collect()
        };
        for at in places(reply, NAME) {
            let digits = &mut reply[at + NAME.len()..][..3];
            let port = digits.iter().rev().fold(0u32, |port, digit| port << 7 | u32::from(digit & 0x7f));
            // The active master is named in the same way, and needs no proxy.
            if digits[2] & 0x80 != 0 || port == u32::from(self.master.port()) {
                continue;
            }
            self.server_port.store(port.try_into().expect("a port"), Ordering::SeqCst);
            digits.copy_from_slice(&[
                seeming as u8 | 0x80,
                (seeming >> 7) as u8 | 0x80,
                (seeming >> 14) as u8,
            ]);
        }
        let told = format!("localhost:{}", self.server_port.load(Ordering::SeqCst));
        let instead = format!("localhost:{seeming}");
        assert_eq!(told.len(), instead.len(), "the ports must have as many digits");
        for at in places(reply, told.as_bytes()) {
            reply[at..][..instead.len()].copy_from_slice(instead.as_bytes());
        }
    }
}

/// One message, its length in front.
fn frame(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    stream.read_exact(&mut bytes)?;
    let length = u32::from_be_bytes(bytes[..].try_into().unwrap()) as usize;
    bytes.resize(4 + length, 0);
    stream.read_exact(&mut bytes[4..])?;
    Ok(bytes)
}

/// Number and method of a call: fields 1 and 3 of a request's header. A reply has the number alone.
fn header(frame: &[u8]) -> (u64, String) {
    let mut rest = &frame[4..];
    let length = varint(&mut rest) as usize;
    let (mut header, mut call, mut method) = (&rest[..length], 0, String::new());
    while !header.is_empty() {
        match (varint(&mut header), varint(&mut header)) {
            (0x08, number) => call = number,
            (tag, length) if tag & 7 == 2 => {
                let (field, after) = header.split_at(length as usize);
                if tag == 0x1a {
                    method = String::from_utf8_lossy(field).into_owned();
                }
                header = after;
            }
            _ => {}
        }
    }
    (call, method)
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let Some((&byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

//! The proxy before a server of one machine that speaks HBase's own protocol.
//!
//! The client is given this proxy's address as that of the master, of which all is passed on. Where
//! replies name the RegionServer, its port is replaced by that of the proxy's second listener: by one with
//! as many digits, so that no length changes.
//!
//! Calls of many threads share a connection, and whatever breaks it for one breaks it for all of them.
//! A request that is kept or swallowed lets the others pass.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use parking_lot::Mutex;

use super::fault::{Fault, Gate, Proxy, Wire};

impl Proxy {
    /// In front of the server whose master listens there. Faults are for requests to the RegionServer.
    pub(crate) fn before_master(master: SocketAddr) -> Proxy {
        let [masters, servers] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let wire = Arc::new(Wire::default());
        let places = Arc::new(Places {
            wire: Arc::clone(&wire),
            master,
            server_port: AtomicU16::new(0),
            seeming_port: servers.local_addr().unwrap().port(),
        });
        for (listener, is_master) in [(masters, true), (servers, false)] {
            let places = Arc::clone(&places);
            wire.listen(listener, move |client| serve(client, is_master, &places));
        }
        Proxy(wire)
    }
}

struct Places {
    wire: Arc<Wire>,
    master: SocketAddr,
    /// Where the RegionServer listens, once a reply has told.
    server_port: AtomicU16,
    /// Where it seems to listen.
    seeming_port: u16,
}

/// A client's connection: one reply at a time is written to it.
struct Client {
    stream: Mutex<TcpStream>,
    /// What happens to replies, by the number of their call.
    faults: Mutex<HashMap<u64, Fault>>,
}

fn serve(client: &TcpStream, is_master: bool, places: &Arc<Places>) -> io::Result<()> {
    let port = if is_master { places.master.port() } else { places.server_port.load(Ordering::SeqCst) };
    let server = places.wire.connect((places.master.ip(), port).into())?;
    let back = Arc::new(Client { stream: Mutex::new(client.try_clone()?), faults: Mutex::default() });
    let (from, replies, to) = (server.try_clone()?, Arc::clone(places), Arc::clone(&back));
    places.wire.spawn(move || {
        let _ = pass_replies(&to, &from, &replies);
        let _ = (to.stream.lock().shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    });
    let outcome = pass_requests(client, &server, is_master, places, &back);
    let _ = server.shutdown(Shutdown::Both);
    outcome
}

fn pass_requests(
    mut client: &TcpStream,
    mut server: &TcpStream,
    is_master: bool,
    places: &Arc<Places>,
    back: &Arc<Client>,
) -> io::Result<()> {
    let mut hello = vec![0; 6];
    client.read_exact(&mut hello)?;
    hello.extend(frame(client)?);
    server.write_all(&hello)?;
    loop {
        let request = frame(client)?;
        let (call, method) = header(&request);
        match if is_master { None } else { places.wire.fault_for(method) } {
            None => server.write_all(&request)?,
            Some(fault @ (Fault::LoseReply | Fault::CutReply(_) | Fault::Drip(_))) => {
                back.faults.lock().insert(call, fault);
                server.write_all(&request)?;
            }
            Some(Fault::LoseRequest) => return Ok(()),
            Some(Fault::Swallow) => {}
            Some(Fault::Keep(gate)) => {
                arrive_late(places, server.peer_addr()?, [&hello[..], &request].concat(), gate, Some(back));
            }
            Some(Fault::KeepAndBreak(gate)) => {
                arrive_late(places, server.peer_addr()?, [hello, request].concat(), gate, None);
                return Ok(());
            }
            Some(fault @ (Fault::Twice | Fault::Answer(_))) => panic!("{fault:?} is not for this protocol"),
        }
    }
}

/// Sends what was kept when the gate is open, on its own: its connection may be gone by then.
fn arrive_late(
    places: &Arc<Places>,
    server: SocketAddr,
    bytes: Vec<u8>,
    gate: Arc<Gate>,
    back: Option<&Arc<Client>>,
) {
    let (places, back) = (Arc::clone(places), back.map(Arc::clone));
    let wire = Arc::clone(&places.wire);
    wire.spawn(move || {
        gate.pass();
        let answered = places.wire.connect(server).and_then(|mut server| {
            server.write_all(&bytes)?;
            frame(&server)
        });
        let Ok(reply) = answered else { return };
        places.wire.late.fetch_add(1, Ordering::SeqCst);
        if let Some(back) = back {
            let _ = back.stream.lock().write_all(&reply);
        }
    });
}

fn pass_replies(client: &Client, server: &TcpStream, places: &Places) -> io::Result<()> {
    loop {
        let mut reply = frame(server)?;
        places.readdress(&mut reply);
        let fault = client.faults.lock().remove(&header(&reply).0);
        let mut stream = client.stream.lock();
        match fault {
            None => stream.write_all(&reply)?,
            Some(Fault::CutReply(bytes)) => return stream.write_all(&reply[..bytes.min(reply.len() - 1)]),
            Some(Fault::Drip(pause)) => {
                for byte in reply {
                    stream.write_all(&[byte])?;
                    thread::sleep(pause);
                }
            }
            Some(_) => return Ok(()),
        }
    }
}

impl Places {
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

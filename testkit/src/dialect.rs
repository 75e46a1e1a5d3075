//! A proxy for servers that answer the requests of a connection one after another.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use crate::fault::{Fault, Gate, Proxy, Wire};

/// A protocol. It tells the proxy where messages end and what they are called.
///
/// Both sides send whole messages in turn. The proxy closes the connection of a client that sends a second request
/// before the first is answered. For other kinds of protocol, write a proxy over [`Wire`].
pub trait Dialect: Send + Sync + 'static {
    /// Returns the length of the first message in `bytes`; `None` if the message is not complete. `bytes` may be a
    /// request or a reply.
    fn end_of_message(&self, bytes: &[u8]) -> Option<usize>;

    /// Returns the method of a request, such as `get`. The rules of the proxy name it.
    fn method(&self, request: &[u8]) -> String;

    /// Returns the reply to send to the client. If a reply contains the server's address, replace that address with
    /// the proxy's here.
    fn readdressed(&self, reply: Vec<u8>, server: SocketAddr, proxy: SocketAddr) -> Vec<u8> {
        let _ = (server, proxy);
        reply
    }
}

impl Proxy {
    /// Starts a proxy in front of a server that speaks `dialect`. It listens on a free port of 127.0.0.1.
    pub fn speaking(dialect: impl Dialect, server: SocketAddr) -> Proxy {
        let (wire, dialect): (_, Arc<dyn Dialect>) = (Arc::new(Wire::default()), Arc::new(dialect));
        let serving = Arc::clone(&wire);
        wire.listen(TcpListener::bind("127.0.0.1:0").unwrap(), move |client| {
            let stream = serving.connect(server)?;
            let outcome = Link { wire: &serving, dialect: &dialect, client, server: &stream }.pass_messages();
            let _ = stream.shutdown(Shutdown::Both);
            outcome
        });
        Proxy::over(wire)
    }
}

/// One client's connection to the proxy and the proxy's connection to the server.
struct Link<'a> {
    wire: &'a Arc<Wire>,
    dialect: &'a Arc<dyn Dialect>,
    client: &'a TcpStream,
    server: &'a TcpStream,
}

impl Link<'_> {
    /// Passes requests and replies on until a side closes the connection or a fault ends it.
    fn pass_messages(&self) -> io::Result<()> {
        let mut client = self.client;
        loop {
            let request = self.read(client)?;
            match self.wire.fault_for_request(self.dialect.method(&request), &request) {
                None => client.write_all(&self.ask(&request)?)?,
                Some(Fault::LoseReply) => return self.ask(&request).map(drop),
                Some(Fault::LoseRequest) => return Ok(()),
                Some(Fault::Twice(pause)) => {
                    self.ask(&request)?;
                    thread::sleep(pause);
                    client.write_all(&self.ask(&request)?)?;
                }
                Some(Fault::CopyLate(pause, gate)) => {
                    let reply = self.ask(&request)?;
                    self.copy(request, gate)?;
                    thread::sleep(pause);
                    client.write_all(&reply)?;
                }
                Some(Fault::CutReply(bytes)) => {
                    let reply = self.ask(&request)?;
                    return client.write_all(&reply[..bytes.min(reply.len() - 1)]);
                }
                Some(Fault::Keep(gate)) => {
                    gate.pass();
                    let reply = self.ask_late(&request)?;
                    let _ = client.write_all(&reply);
                }
                Some(Fault::KeepAndBreak(gate)) => {
                    client.shutdown(Shutdown::Both)?;
                    gate.pass();
                    return self.ask_late(&request).map(drop);
                }
                // Reads until the client closes the connection.
                Some(Fault::Swallow) => return self.read(client).map(drop),
                Some(Fault::Drip(pause)) => {
                    for byte in self.ask(&request)? {
                        client.write_all(&[byte])?;
                        thread::sleep(pause);
                    }
                }
                Some(Fault::Answer(bytes)) => client.write_all(&bytes)?,
            }
        }
    }

    /// Sends the request to the server and returns its reply, with the proxy's address in place of the server's.
    fn ask(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut server = self.server;
        server.write_all(request)?;
        let reply = self.read(server)?;
        Ok(self.dialect.readdressed(reply, server.peer_addr()?, self.wire.address()))
    }

    /// Sends the request once more when the gate opens, over a connection of its own.
    fn copy(&self, request: Vec<u8>, gate: Arc<Gate>) -> io::Result<()> {
        let (wire, dialect) = (Arc::clone(self.wire), Arc::clone(self.dialect));
        let server = wire.connect(self.server.peer_addr()?)?;
        self.wire.spawn(move || {
            gate.pass();
            let link = Link { wire: &wire, dialect: &dialect, client: &server, server: &server };
            let _ = link.ask_late(&request);
            let _ = server.shutdown(Shutdown::Both);
        });
        Ok(())
    }

    fn ask_late(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let reply = self.ask(request)?;
        self.wire.carried_out_late();
        Ok(reply)
    }

    /// Reads one whole message. It is an error if the other side closes the connection first, or sends more than one
    /// message: no side may send a second request before the first is answered.
    fn read(&self, mut stream: &TcpStream) -> io::Result<Vec<u8>> {
        let mut message = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.dialect.end_of_message(&message) {
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
}

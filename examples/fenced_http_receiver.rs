//! A service that appends data to a file. It refuses data from stale holders of the lock that guards the file.
//!
//! ```sh
//! cargo run --example fenced_http_receiver -- 127.0.0.1:8080 /var/lib/log
//! curl -i -H 'X-Fence: 123' -d 'total 7' http://127.0.0.1:8080/log
//! ```
//!
//! It answers 204 after a write, 409 with the higher fence for a stale fence, 428 for a request without a fence, and
//! 503 when the client may repeat the request. It is an example for fences, not for web servers.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use std::{env, thread};

use dlm::{Code, Fence, FenceGate};

const TIMEOUT: Duration = Duration::from_secs(10);
const BODY_BYTES_MAX: usize = 1 << 20;
const HEAD_BYTES_MAX: u64 = 1 << 16;

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: fenced_http_receiver ADDRESS:PORT FILE";
    let (address, file) = (env::args().nth(1).ok_or(usage)?, env::args().nth(2).ok_or(usage)?);
    serve(&TcpListener::bind(address)?, Path::new(&file))?;
    Ok(())
}

/// Serves for ever. The gate's file is next to the file that it guards.
pub fn serve(listener: &TcpListener, path: &Path) -> Result<(), Box<dyn Error>> {
    let gate = FenceGate::open(path.with_extension("gate"))?;
    let file = File::options().create(true).append(true).open(path)?;
    thread::scope(|scope| {
        for stream in listener.incoming() {
            let (gate, file) = (&gate, &file);
            scope.spawn(move || {
                if let Err(error) = stream.and_then(|stream| answer(&stream, gate, file)) {
                    eprintln!("a connection failed: {error}");
                }
            });
        }
    });
    Ok(())
}

/// Reads one request and sends one answer.
fn answer(stream: &TcpStream, gate: &FenceGate, mut file: &File) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let (status, stored) = match read(stream)? {
        Request::Refused(status) => (status, None),
        Request::Write(fence, body) => {
            // The gate compares the fence and writes in one step: no other request writes meanwhile.
            let written = gate.write(fence, || file.write_all(&body).and_then(|()| file.sync_data()));
            match written {
                Ok(Ok(())) => ("204 No Content", None),
                Ok(Err(error)) => {
                    eprintln!("the file cannot be written: {error}");
                    ("500 Internal Server Error", None)
                }
                Err(error) => match (error.stale_fence(), error.code()) {
                    (Some((_, stored)), _) => ("409 Conflict", Some(stored)),
                    (None, Code::InvalidArgument) => ("400 Bad Request", None),
                    _ => {
                        eprintln!("{}", error.chain());
                        ("503 Service Unavailable", None)
                    }
                },
            }
        }
    };
    let fence = stored.map_or_else(String::new, |stored| format!("X-Fence: {stored}\r\n"));
    // A 204 answer must not have a Content-Length (RFC 9110, section 8.6).
    let length = if status.starts_with("204") { "" } else { "Content-Length: 0\r\n" };
    (&mut &*stream)
        .write_all(format!("HTTP/1.1 {status}\r\n{fence}{length}Connection: close\r\n\r\n").as_bytes())
}

enum Request {
    Write(Fence, Vec<u8>),
    Refused(&'static str),
}

fn read(stream: &TcpStream) -> io::Result<Request> {
    let mut reader = BufReader::new(stream);
    let mut head = reader.by_ref().take(HEAD_BYTES_MAX).lines();
    let first = head.next().transpose()?.unwrap_or_default();
    let (mut fence, mut length) = (None, None);
    loop {
        let line = head.next().transpose()?.unwrap_or_default();
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "x-fence" => fence = Some(value.trim().parse().ok().map(Fence)),
            "content-length" => length = value.trim().parse::<usize>().ok(),
            _ => {}
        }
    }
    let Some(length) = length.filter(|length| *length <= BODY_BYTES_MAX) else {
        return Ok(Request::Refused("411 Length Required"));
    };
    let mut body = vec![0; length];
    // Read the whole body before the gate is locked, so a slow client does not delay others.
    reader.read_exact(&mut body)?;
    Ok(match fence {
        _ if !first.starts_with("POST ") => Request::Refused("405 Method Not Allowed"),
        None => Request::Refused("428 Precondition Required"),
        Some(None) => Request::Refused("400 Bad Request"),
        Some(Some(fence)) => Request::Write(fence, body),
    })
}

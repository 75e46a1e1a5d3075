//! A server that speaks as much of HBase's RPC as an acquire needs, honestly or not: a master, a
//! RegionServer with one region and a few cells, and hbase:meta, all on one port.
//!
//! A script says for each request what becomes of it. Protobuf is written here by hand, so that a wrong
//! field number in the library has no second place to be wrong in.

#![allow(dead_code, reason = "no test program needs all of it")]

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// One request, as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Number of the connection, from zero.
    pub(crate) connection: usize,
    pub(crate) service: String,
    pub(crate) method: String,
    pub(crate) parameter: Vec<u8>,
    id: u64,
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Honest,
    /// Not carried out: an exception, in the header of the reply.
    Refuse(&'static str, String),
    /// Not carried out: an exception with the place to go to in the fields of its own.
    MovedTo(SocketAddr),
    /// Not carried out: an exception inside the reply to a Multi.
    RefuseInside(&'static str, String),
    /// Of a Multi, the first part alone is carried out; each of the others has an exception.
    ApplyFirst(&'static str, String),
    /// Carried out, and an exception all the same.
    ApplyAndThrow(&'static str, String),
    /// Carried out, and the connection breaks before the reply.
    ApplyAndClose,
    /// Carried out, and the reply ends after so many bytes, and the connection with it.
    Cut(usize),
    /// Carried out, and the reply comes byte by byte.
    Drip(Duration),
    /// Carried out, and the reply has the number of no call.
    WrongId,
    /// Carried out, and answered with these bytes for a message.
    Reply(Vec<u8>),
    /// Carried out at once, answered after this time.
    Late(Duration),
    /// Carried out, and answered together with others, the last first.
    Batch(usize),
    /// Carried out at once, answered when this is set.
    When(Arc<AtomicBool>),
    /// Carried out, and answered with a message that makes a frame of so many bytes, of which no more than
    /// so many are sent.
    Long(u32, u32),
    /// Not carried out, never answered.
    Silence,
    /// Not carried out: the connection is closed.
    Close,
    /// Not carried out: these bytes, raw.
    Raw(Vec<u8>),
    /// These bytes again and again for as long as they are taken.
    Flood(Vec<u8>),
    /// An exception that speaks of the connection, by its number or by having none; then the end.
    Fatal(Option<u32>, &'static str, &'static str),
}

impl Answer {
    /// For the log: some of them are large.
    fn without_bytes(&self) -> Answer {
        match self {
            Answer::Refuse(class, _) => Answer::Refuse(class, String::new()),
            Answer::Reply(_) => Answer::Reply(Vec::new()),
            Answer::Raw(_) => Answer::Raw(Vec::new()),
            Answer::Flood(_) => Answer::Flood(Vec::new()),
            other => other.clone(),
        }
    }
}

/// By row and qualifier.
type Cells = BTreeMap<(Vec<u8>, Vec<u8>), Vec<u8>>;

/// A script that meets all requests of the method with `answer`, and the others honestly.
pub(crate) fn always(method: &'static str, answer: Answer) -> impl FnMut(&Request) -> Answer + Send {
    move |request| if request.method == method { answer.clone() } else { Answer::Honest }
}

type Script = Box<dyn FnMut(&Request) -> Answer + Send>;

pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    address: SocketAddr,
    script: Mutex<Script>,
    cells: Mutex<Cells>,
    /// Where meta says that the region is.
    region_at: Mutex<SocketAddr>,
    log: Mutex<Vec<(Request, Answer)>>,
    streams: Mutex<Vec<TcpStream>>,
    stop: AtomicBool,
}

impl Fake {
    pub(crate) fn start(script: impl FnMut(&Request) -> Answer + Send + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            address,
            script: Mutex::new(Box::new(script)),
            cells: Mutex::default(),
            region_at: Mutex::new(address),
            log: Mutex::default(),
            streams: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let accepting = thread::Builder::new()
            .name("dlm-test-fake".into())
            .spawn(move || accept(&listener, &of_thread))
            .unwrap();
        Fake { address, shared, accepting: Some(accepting) }
    }

    pub(crate) fn honest() -> Fake {
        Fake::start(|_| Answer::Honest)
    }

    /// Another script from now on.
    pub(crate) fn act(&self, script: impl FnMut(&Request) -> Answer + Send + 'static) {
        *self.shared.script.lock() = Box::new(script);
    }

    /// Has meta say that the region is on another server.
    pub(crate) fn catalogue(&self, region_at: SocketAddr) {
        *self.shared.region_at.lock() = region_at;
    }

    /// Puts a cell in.
    pub(crate) fn put(&self, row: Vec<u8>, column: &str, value: Vec<u8>) {
        self.shared.cells.lock().insert((row, column.into()), value);
    }

    pub(crate) fn cell(&self, row: &[u8], column: &str) -> Option<Vec<u8>> {
        self.shared.cells.lock().get(&(row.to_vec(), column.into())).cloned()
    }

    /// The requests so far, and what became of them.
    pub(crate) fn log(&self) -> Vec<(Request, Answer)> {
        self.shared.log.lock().clone()
    }

    pub(crate) fn count(&self, method: &str) -> usize {
        self.log().iter().filter(|(request, _)| request.method == method).count()
    }

    /// How many connections have made requests of the service.
    pub(crate) fn connections(&self, service: &str) -> usize {
        let log = self.log();
        let of_service = log.iter().filter(|(request, _)| request.service == service);
        of_service.map(|(request, _)| request.connection).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// A write that may have been applied is sent again only after a look at what it did.
    #[track_caller]
    pub(crate) fn assert_no_write_was_repeated_blindly(&self) {
        let log = self.log();
        // A count alone has no condition on D:L; made twice it skips a number, which is allowed.
        let is_conditional = |r: &Request| holds(&r.parameter, b"\x1a\x01L");
        for (first, (write, fate)) in log.iter().enumerate().filter(|(_, (r, _))| is_conditional(r)) {
            let surely_not_applied = matches!(
                fate,
                Answer::Refuse(class, _) | Answer::RefuseInside(class, _) if *class != "java.io.IOException"
            ) || matches!(fate, Answer::MovedTo(_));
            let rest = &log[first + 1..];
            let again = rest.iter().position(|(r, _)| r.method == "Multi" && r.parameter == write.parameter);
            if let Some(again) = again.filter(|_| !surely_not_applied) {
                let looked = rest[..again].iter().any(|(r, _)| r.method == "Get");
                let calls: Vec<_> = log.iter().map(|(r, fate)| format!("{} {fate:.60?}", r.method)).collect();
                assert!(looked, "a write that met {fate:?} was sent again blindly: {calls:?}");
            }
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        for stream in self.shared.streams.lock().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut serving = Vec::new();
    for (number, stream) in listener.incoming().enumerate() {
        let Ok(stream) = stream else { break };
        if shared.stop.load(Ordering::SeqCst) {
            break;
        }
        shared.streams.lock().push(stream.try_clone().unwrap());
        let shared = Arc::clone(shared);
        let serve = move || {
            let mut connection = Connection { number, stream, shared, buffer: Vec::new(), later: Vec::new() };
            let _ = connection.serve();
            let _ = connection.stream.shutdown(Shutdown::Both);
        };
        let name = format!("dlm-test-fake-{number}");
        serving.push(thread::Builder::new().name(name).spawn(serve).unwrap());
    }
    for thread in serving {
        let _ = thread.join();
    }
}

struct Connection {
    number: usize,
    stream: TcpStream,
    shared: Arc<Shared>,
    buffer: Vec<u8>,
    /// Replies kept back.
    later: Vec<(Due, Vec<u8>)>,
}

/// When a reply that was kept back is sent.
enum Due {
    At(Instant),
    /// When there are so many such replies, or nothing more comes.
    Batch(usize),
    When(Arc<AtomicBool>),
}

/// The end of a connection, for whatever reason.
struct Over;

impl From<std::io::Error> for Over {
    fn from(_: std::io::Error) -> Over {
        Over
    }
}

impl Connection {
    fn serve(&mut self) -> Result<(), Over> {
        self.stream.set_read_timeout(Some(Duration::from_millis(10)))?;
        self.stream.set_nodelay(true)?;
        let preamble = self.take(6)?;
        if preamble != b"HBas\x00\x50" {
            return self.fatal(
                Some(u32::MAX),
                "org.apache.hadoop.hbase.ipc.FatalConnectionException",
                "no HBas",
            );
        }
        let header = self.frame()?;
        let service = text(&header, 2);
        loop {
            let frame = self.frame()?;
            let (header, rest) = delimited(&frame);
            let request = Request {
                connection: self.number,
                service: service.clone(),
                method: text(header, 3),
                parameter: delimited(rest).0.to_vec(),
                id: int(header, 1),
            };
            let answer = (self.shared.script.lock())(&request);
            self.shared.log.lock().push((request.clone(), answer.without_bytes()));
            self.answer(&request, answer)?;
        }
    }

    fn answer(&mut self, request: &Request, answer: Answer) -> Result<(), Over> {
        let honest = |connection: &Connection| reply(request.id, &connection.carry_out(request));
        match answer {
            Answer::Honest => self.send(&honest(self)),
            Answer::Refuse(class, text) => self.send(&thrown(Some(request.id), class, &text, None)),
            Answer::MovedTo(to) => {
                let class = "org.apache.hadoop.hbase.exceptions.RegionMovedException";
                self.send(&thrown(Some(request.id), class, "moved", Some(to)))
            }
            Answer::RefuseInside(class, text) => self.multi(request, 0, class, &text),
            Answer::ApplyFirst(class, text) => self.multi(request, 1, class, &text),
            Answer::ApplyAndThrow(class, text) => {
                self.carry_out(request);
                self.send(&thrown(Some(request.id), class, &text, None))
            }
            Answer::ApplyAndClose => {
                self.carry_out(request);
                Err(Over)
            }
            Answer::Cut(bytes) => {
                let whole = honest(self);
                self.send(&whole[..bytes.min(whole.len() - 1)])?;
                Err(Over)
            }
            Answer::Drip(pause) => honest(self).iter().try_for_each(|byte| {
                thread::sleep(pause);
                self.send(&[*byte])
            }),
            Answer::WrongId => {
                let body = self.carry_out(request);
                self.send(&reply(request.id + 4711, &body))
            }
            Answer::Reply(body) => {
                self.carry_out(request);
                self.send(&reply(request.id, &body))
            }
            Answer::Late(after) => {
                let whole = honest(self);
                self.later.push((Due::At(Instant::now() + after), whole));
                Ok(())
            }
            Answer::Batch(size) => {
                let whole = honest(self);
                self.later.push((Due::Batch(size), whole));
                Ok(())
            }
            Answer::When(set) => {
                let whole = honest(self);
                self.later.push((Due::When(set), whole));
                Ok(())
            }
            Answer::Long(length, sent) => {
                self.carry_out(request);
                self.long(request.id, length, sent)
            }
            Answer::Silence => Ok(()),
            Answer::Close => Err(Over),
            Answer::Raw(bytes) => self.send(&bytes),
            Answer::Flood(bytes) => loop {
                self.send(&bytes)?;
            },
            Answer::Fatal(id, class, text) => self.fatal(id, class, text),
        }
    }

    /// The beginning of a frame of this length, or all of it.
    fn long(&mut self, id: u64, length: u32, sent: u32) -> Result<(), Over> {
        let header = Pb::new().int(1, id).0;
        let header = [varint(header.len() as u64), header].concat();
        // The message and its own length, which has five bytes from 256 MiB on and four below.
        let behind = length - header.len() as u32;
        let delimiter = if behind < (1 << 28) { 4 } else { 5 };
        let message = behind - delimiter;
        let mut bytes = [length.to_be_bytes().to_vec(), header, varint(message.into())].concat();
        assert_eq!(bytes.len() - 4 + message as usize, length as usize, "the lengths must fit");
        let mut left = sent.min(message) as usize;
        self.send(&bytes)?;
        bytes = vec![0; 64 * 1024];
        while left > 0 {
            let piece = left.min(bytes.len());
            self.send(&bytes[..piece])?;
            left -= piece;
        }
        Ok(())
    }

    /// Carries out so many parts of a Multi; the rest have an exception each.
    fn multi(&mut self, request: &Request, parts: usize, class: &str, text: &str) -> Result<(), Over> {
        let exception = Pb::new().bytes(1, class.as_bytes()).bytes(2, text.as_bytes());
        let refused = Pb::new().bytes(2, &exception.0).0;
        let results = all(&request.parameter, 1).enumerate().map(|(number, action)| {
            if number < parts { self.region_action(&action) } else { refused.clone() }
        });
        let body = results.fold(Pb::new(), |body, result| body.bytes(1, &result));
        self.send(&reply(request.id, &body.0))
    }

    fn fatal(&mut self, id: Option<u32>, class: &str, text: &str) -> Result<(), Over> {
        self.send(&thrown(id.map(u64::from), class, text, None))?;
        Err(Over)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Over> {
        Ok(self.stream.write_all(bytes)?)
    }

    fn frame(&mut self) -> Result<Vec<u8>, Over> {
        let length = self.take(4)?.try_into().map(u32::from_be_bytes).unwrap();
        self.take(length as usize)
    }

    fn take(&mut self, count: usize) -> Result<Vec<u8>, Over> {
        while self.buffer.len() < count {
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Over),
                Ok(read) => self.buffer.extend(&bytes[..read]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.send_later(true)?;
                }
                Err(_) => return Err(Over),
            }
        }
        self.send_later(false)?;
        Ok(self.buffer.drain(..count).collect())
    }

    /// Sends what was kept back and is due; a batch is due also when nothing more comes.
    fn send_later(&mut self, idle: bool) -> Result<(), Over> {
        let batched = self.later.iter().filter(|(due, _)| matches!(due, Due::Batch(_))).count();
        let mut due = Vec::new();
        self.later.retain(|(when, reply)| {
            let is_due = match when {
                Due::At(at) => Instant::now() >= *at,
                Due::Batch(size) => idle || batched >= *size,
                Due::When(set) => set.load(Ordering::SeqCst),
            };
            if is_due {
                due.push(reply.clone());
            }
            !is_due
        });
        due.iter().rev().try_for_each(|reply| self.send(reply))
    }

    fn carry_out(&self, request: &Request) -> Vec<u8> {
        let here = self.shared.address;
        let at = |address: SocketAddr| {
            Pb::new().bytes(1, address.ip().to_string().as_bytes()).int(2, address.port().into())
        };
        match request.method.as_str() {
            "GetMetaRegionLocations" => {
                let table = Pb::new().bytes(1, b"hbase").bytes(2, b"meta");
                let info = Pb::new().int(1, 1).bytes(2, &table.0);
                Pb::new().bytes(1, &Pb::new().bytes(1, &info.0).bytes(2, &at(here).0).0).0
            }
            "GetActiveMaster" => Pb::new().bytes(1, &at(here).0).0,
            "Scan" => {
                // Every table is there, with the one region.
                let from = bytes(&bytes(&request.parameter, 2), 3);
                let table = from.split(|byte| *byte == b',').next().unwrap_or_default();
                let table = Pb::new().bytes(1, b"default").bytes(2, table);
                let info = Pb::new().int(1, 7).bytes(2, &table.0);
                let info = [b"PBUF", info.0.as_slice()].concat();
                let server = self.shared.region_at.lock().to_string();
                let row = [("regioninfo", info), ("server", server.into())]
                    .iter()
                    .fold(Pb::new(), |row, (q, v)| row.bytes(1, &cell(b"t,,7.x.", "info", q, v)));
                Pb::new().bytes(5, &row.0).0
            }
            "Get" => Pb::new().bytes(1, &self.read(&bytes(&request.parameter, 2))).0,
            "Multi" => {
                let actions = all(&request.parameter, 1);
                actions.fold(Pb::new(), |body, action| body.bytes(1, &self.region_action(&action))).0
            }
            _ => Vec::new(),
        }
    }

    /// A Get: a result with the newest cell, or with none.
    fn read(&self, get: &[u8]) -> Vec<u8> {
        let (row, column) = (bytes(get, 1), bytes(get, 2));
        let qualifier = bytes(&column, 2);
        let found = self.shared.cells.lock().get(&(row.clone(), qualifier.clone())).cloned();
        found.map_or_else(Vec::new, |value| {
            Pb::new().bytes(1, &cell(&row, "D", std::str::from_utf8(&qualifier).unwrap(), &value)).0
        })
    }

    fn region_action(&self, action: &[u8]) -> Vec<u8> {
        let condition = bytes(action, 4);
        if !condition.is_empty() {
            let key = (bytes(&condition, 1), bytes(&condition, 3));
            let with = bytes(&bytes(&bytes(&bytes(&condition, 5), 2), 1), 1);
            let equal = self.shared.cells.lock().get(&key).cloned().unwrap_or_default() == with;
            // EQUAL is 2, NOT_EQUAL 3.
            if equal != (int(&condition, 4) == 2) {
                return Pb::new().int(3, 0).0;
            }
        }
        let mut result = Pb::new();
        for action in all(action, 3) {
            let (mutation, get) = (bytes(&action, 2), bytes(&action, 3));
            let found = if get.is_empty() { self.mutate(&mutation) } else { self.read(&get) };
            result = result.bytes(1, &Pb::new().int(1, 0).bytes(2, &found).0);
        }
        result.int(3, 1).0
    }

    fn mutate(&self, mutation: &[u8]) -> Vec<u8> {
        let (row, column) = (bytes(mutation, 1), bytes(&bytes(mutation, 3), 2));
        let (qualifier, value) = (bytes(&column, 1), bytes(&column, 2));
        let mut cells = self.shared.cells.lock();
        let key = (row.clone(), qualifier.clone());
        if int(mutation, 2) == 2 {
            cells.insert(key, value);
            return Vec::new();
        }
        let before = cells.get(&key).and_then(|value| value.as_slice().try_into().ok());
        // A counter is as one that was used before: the first use of one takes more calls.
        let sum = before.map_or(1 << 41, i64::from_be_bytes) + value.try_into().map_or(0, i64::from_be_bytes);
        cells.insert(key, sum.to_be_bytes().to_vec());
        Pb::new().bytes(1, &cell(&row, "D", std::str::from_utf8(&qualifier).unwrap(), &sum.to_be_bytes())).0
    }
}

pub(crate) fn reply(id: u64, body: &[u8]) -> Vec<u8> {
    let header = Pb::new().int(1, id).0;
    framed(&[varint(header.len() as u64), header, varint(body.len() as u64), body.to_vec()].concat())
}

pub(crate) fn thrown(id: Option<u64>, class: &str, text: &str, moved_to: Option<SocketAddr>) -> Vec<u8> {
    let mut exception =
        Pb::new().bytes(1, class.as_bytes()).bytes(2, format!("{class}: {text}\n\tat x").as_bytes());
    if let Some(to) = moved_to {
        exception = exception.bytes(3, to.ip().to_string().as_bytes()).int(4, to.port().into());
    }
    let header = id.map_or_else(Pb::new, |id| Pb::new().int(1, id)).bytes(2, &exception.0).0;
    framed(&[varint(header.len() as u64), header].concat())
}

pub(crate) fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

fn cell(row: &[u8], family: &str, qualifier: &str, value: &[u8]) -> Vec<u8> {
    let key = Pb::new().bytes(1, row).bytes(2, family.as_bytes()).bytes(3, qualifier.as_bytes());
    key.int(4, 1_700_000_000_000).int(5, 4).bytes(6, value).0
}

/// A message of protobuf, written field by field.
pub(crate) struct Pb(pub(crate) Vec<u8>);

impl Pb {
    pub(crate) fn new() -> Pb {
        Pb(Vec::new())
    }

    pub(crate) fn int(mut self, field: u64, value: u64) -> Pb {
        self.0.extend(varint(field << 3));
        self.0.extend(varint(value));
        self
    }

    pub(crate) fn bytes(mut self, field: u64, value: &[u8]) -> Pb {
        self.0.extend(varint(field << 3 | 2));
        self.0.extend(varint(value.len() as u64));
        self.0.extend(value);
        self
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn read_varint(bytes: &[u8]) -> (u64, &[u8]) {
    let length = bytes.iter().take_while(|byte| **byte >= 0x80).count() + 1;
    let value = bytes[..length].iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
    (value, &bytes[length..])
}

/// What a length before it says, and the rest.
fn delimited(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = read_varint(bytes);
    rest.split_at(length as usize)
}

/// All fields: number, integer or zero, bytes or none.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (key, rest) = read_varint(bytes);
        if key & 7 == 0 {
            let (value, rest) = read_varint(rest);
            fields.push((key >> 3, value, &[][..]));
            bytes = rest;
        } else {
            let (value, rest) = delimited(rest);
            fields.push((key >> 3, 0, value));
            bytes = rest;
        }
    }
    fields
}

fn all(message: &[u8], field: u64) -> impl Iterator<Item = Vec<u8>> {
    let fields = fields(message).into_iter().filter(move |(number, ..)| *number == field);
    fields.map(|(_, _, value)| value.to_vec()).collect::<Vec<_>>().into_iter()
}

fn bytes(message: &[u8], field: u64) -> Vec<u8> {
    all(message, field).next().unwrap_or_default()
}

fn text(message: &[u8], field: u64) -> String {
    String::from_utf8(bytes(message, field)).unwrap()
}

fn int(message: &[u8], field: u64) -> u64 {
    fields(message).into_iter().find(|(number, ..)| *number == field).map_or(0, |(_, value, _)| value)
}

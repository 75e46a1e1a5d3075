//! A store of your own: locks in one Redis 7 server, over [`Register`]. See `docs/stores.md`.
//!
//!     cargo run --example redis_store -- redis://127.0.0.1:6379/locks
//!
//! Each change is a Lua script, so it is one atomic step. A grant is only as durable as the server. A server that
//! evicts keys, or loses its last writes in a crash or a failover, can grant a lock twice.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlm::store::remote::{Create, Created, Found, Record, Register, RemoteStore, Replace, Reply, Standing};
use dlm::store::{LockStore, StoreUri};
use dlm::{Deadline, Error, Level, LockManager, LockName, Result};

// KEYS[1] is the lock's record, KEYS[2] is its counter. A script whose condition does not hold returns false.
const CREATE: &str = "-- create
    if not redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3]) then return false end ";
// Numbers are compared as text, because Lua's numbers cannot hold all 64-bit values.
const COUNT: &str = "-- count
    local n, least = redis.call('GET', KEYS[2]) or '', ARGV[1]
    if #n < #least or (#n == #least and n < least) then redis.call('SET', KEYS[2], least)
    else redis.call('INCR', KEYS[2]) end
    redis.call('PEXPIRE', KEYS[2], 2592000000)
    return redis.call('GET', KEYS[2])";
const REPLACE: &str = "-- replace
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
    redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
    return redis.call('PEXPIRE', KEYS[1], ARGV[3], 'GT')";
const REMOVE: &str = "-- remove
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
    return redis.call('DEL', KEYS[1])";
const READ: &str = "-- read
    local record = redis.call('GET', KEYS[1])
    return record and redis.call('PTTL', KEYS[1]) .. ' ' .. record";
const LAST: &str = "-- last
    return redis.call('GET', KEYS[2])";

/// The result of a script, or the server's error. Replies over 1 MiB are refused.
type Answer = std::result::Result<Option<Vec<u8>>, String>;

#[derive(Debug)]
struct Redis {
    uri: String,
    server: String,
    prefix: String,
    idle: Mutex<Vec<TcpStream>>,
}

fn open(uri: &mut StoreUri) -> Result<Arc<dyn LockStore>> {
    if uri.authority().is_empty() || uri.path().len() < 2 {
        return Err(uri.invalid("redis://host:6379/prefix"));
    }
    let (server, prefix) = (uri.authority().to_owned(), uri.path()[1..].to_owned());
    Ok(Arc::new(RemoteStore::new(Redis { uri: uri.to_string(), server, prefix, idle: Mutex::default() })))
}

dlm::register_store!("redis://host:6379/prefix", &[], open);

impl Register for Redis {
    fn describe(&self) -> String {
        self.uri.clone()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.connect(by).map(drop).map_err(|error| self.unreachable(error.into()))
    }

    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created> {
        let (record, least) = (create.record, create.count.unwrap_or_default().to_string());
        let args = [least.as_bytes(), record.as_bytes(), &record.ttl().as_millis().to_string().into_bytes()];
        let answer = self.ask(&[CREATE, COUNT].concat(), create.name, &args, by);
        let created = |number: Vec<u8>| Created { count: as_number(&number), standing: None };
        Reply::of(answer, |number| number.map_or(Reply::No(None), |number| Reply::Yes(created(number))))
    }

    fn replace(&self, replace: &Replace<'_>, by: Deadline) -> Reply {
        let Replace { name, expected, record, .. } = replace;
        let args =
            [expected.as_bytes(), record.as_bytes(), &record.ttl().as_millis().to_string().into_bytes()];
        Reply::of_bool(self.ask(REPLACE, name, &args, by).map(|answer| answer.is_some()))
    }

    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        Reply::of_bool(self.ask(REMOVE, name, &[expected.as_bytes()], by).map(|answer| answer.is_some()))
    }

    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        let Some(found) = self.look(READ, name, by)? else { return Ok(Standing::Free) };
        let (left, record) = found.split_at(found.iter().position(|byte| *byte == b' ').unwrap_or(0));
        let left = Duration::from_millis(as_number(left).unwrap_or_default());
        Ok(Standing::Held(Found::lasting(record.get(1..).and_then(Record::decode), left)))
    }

    fn count(&self, name: &LockName, least: u64, by: Deadline) -> Result<u64> {
        let number = self.ask(COUNT, name, &[least.to_string().as_bytes()], by)?.unwrap_or_default();
        as_number(&number).ok_or(Error::Internal { what: "the counter is not a number".into(), source: None })
    }

    fn last_count(&self, name: &LockName, by: Deadline) -> Result<Option<u64>> {
        Ok(self.look(LAST, name, by)?.and_then(|number| as_number(&number)))
    }
}

impl Redis {
    /// Runs a script and returns its answer. Fails with IN_DOUBT if the script may have run or may still run.
    fn ask(&self, script: &str, name: &LockName, args: &[&[u8]], by: Deadline) -> Result<Option<Vec<u8>>> {
        let mut stream = self.connect(by).map_err(|error| self.unreachable(error.into()))?;
        let [record, counter] = ["lock", "fence"].map(|it| format!("{}:{it}:{}", self.prefix, name.key()));
        let mut parts = vec![&b"EVAL"[..], script.as_bytes(), b"2", record.as_bytes(), counter.as_bytes()];
        parts.extend(args);
        let mut request = format!("*{}\r\n", parts.len()).into_bytes();
        for part in parts {
            request.extend([format!("${}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
        }
        // Once the first byte is sent, the server may read and run the whole request.
        match send(&mut stream, &request, by) {
            Ok(Ok(answer)) => {
                self.idle.lock().unwrap().push(stream);
                Ok(answer)
            }
            // The error of a script that ran contains the word "script".
            Ok(Err(what)) if !what.contains("script") => {
                Err(Error::RetriesExhausted { store: self.uri.clone(), what, source: None })
            }
            Ok(Err(what)) => Err(Error::InDoubt { what, source: None }),
            Err(error) => Err(Error::InDoubt { what: "no answer".into(), source: Some(error.into()) }),
        }
    }

    /// Runs a script that changes nothing, so a missing answer is a plain failure and not in doubt.
    fn look(&self, script: &str, name: &LockName, by: Deadline) -> Result<Option<Vec<u8>>> {
        self.ask(script, name, &[], by).map_err(|error| self.unreachable(error.into()))
    }

    /// Returns an idle connection that the server has not closed, or a new one.
    fn connect(&self, by: Deadline) -> io::Result<TcpStream> {
        while let Some(stream) = { self.idle.lock().unwrap().pop() } {
            stream.set_nonblocking(true)?;
            let is_quiet = matches!(stream.peek(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock);
            if is_quiet && stream.set_nonblocking(false).is_ok() {
                return Ok(stream);
            }
        }
        let address = self.server.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let stream = TcpStream::connect_timeout(&address, left(by)?)?;
        stream.set_nodelay(true).map(|()| stream)
    }

    fn unreachable(&self, source: dlm::Cause) -> Error {
        Error::Connection { store: self.uri.clone(), what: "no answer".into(), source: Some(source) }
    }
}

fn send(stream: &mut TcpStream, request: &[u8], by: Deadline) -> io::Result<Answer> {
    stream.set_write_timeout(Some(left(by)?))?;
    stream.write_all(request)?;
    let (mut reply, mut chunk) = (Vec::new(), [0; 4096]);
    while reply.len() < 1 << 20 {
        stream.set_read_timeout(Some(left(by)?))?;
        let count = stream.read(&mut chunk)?;
        reply.extend(&chunk[..count]);
        match parse(&reply) {
            None if count > 0 => {}
            answer => return answer.ok_or(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Parses a complete reply: a status, an error, a number, or text after its length. `None`: more bytes are needed.
fn parse(reply: &[u8]) -> Option<Answer> {
    let end = reply.windows(2).position(|two| two == b"\r\n")?;
    let (kind, line) = reply[..end].split_first()?;
    let (text, rest) = (String::from_utf8_lossy(line), &reply[end + 2..]);
    match (kind, text.parse::<usize>()) {
        (b'+' | b':', _) => Some(Ok(Some(line.to_vec()))),
        (b'$', Err(_)) => Some(Ok(None)),
        (b'$', Ok(n)) if rest.len() >= n.saturating_add(2) => Some(Ok(Some(rest[..n].to_vec()))),
        (b'-', _) => Some(Err(text.into_owned())),
        _ => None,
    }
}

fn as_number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn left(by: Deadline) -> io::Result<Duration> {
    Some(by.remaining()).filter(|left| !left.is_zero()).ok_or(io::ErrorKind::TimedOut.into())
}

fn main() -> Result<()> {
    let uri = std::env::args().nth(1).unwrap_or("redis://127.0.0.1:6379/locks".into());
    let manager = LockManager::builder().store_uri(&uri).client("example").open()?;
    let lease = manager.lock("order-42", Level::Xdc)?.acquire()?;
    println!("held with fence {}", lease.fence().expect("this store fences"));
    lease.release().map(drop)
}

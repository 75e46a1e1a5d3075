//! One connection to the gateway: a socket with a deadline for each call, and Thrift's binary protocol with limits,
//! because a reply is untrusted input.
//!
//! The reader of the crate `thrift` is not used, for two reasons. It allocates any length that a reply announces,
//! even a negative one. And a socket time-out applies to each read, so a server that sends one byte at a time would
//! block the caller forever.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use hbase_thrift::hbase::HbaseSyncClient;
use rustix::net::RecvFlags;
use thrift::protocol::{
    TBinaryOutputProtocol, TFieldIdentifier, TInputProtocol, TListIdentifier, TMapIdentifier,
    TMessageIdentifier, TMessageType, TSetIdentifier, TStructIdentifier, TType,
};
use thrift::{ProtocolError, ProtocolErrorKind};

use crate::runtime::process::descriptors::above_streams;
use crate::runtime::sync::real::Mutex;
use crate::runtime::time::Deadline;
use crate::store::deadline_socket::left;

/// Largest reply, in bytes. Most replies for this library have one or two cells; the list of a table's families is
/// the largest.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Most elements in all containers of one reply together. The generated code reserves up to 80 bytes of memory for
/// each announced element, although an empty structure takes only one byte of the reply. An element with a value,
/// as this library reads them, takes more than the 32 bytes that this limit allows for each.
const REPLY_ELEMENTS_MAX: usize = REPLY_BYTES_MAX / 32;
const READ_AHEAD: usize = 4096;
/// First two bytes of the header of a message in strict binary encoding.
const VERSION_1: [u8; 2] = [0x80, 0x01];

pub(super) type ThriftClient = HbaseSyncClient<LinkReader, TBinaryOutputProtocol<LinkWriter>>;

/// A connection and the Thrift client that uses it.
pub(super) struct Link {
    pub(super) client: ThriftClient,
    shared: Arc<WireState>,
}

struct WireState {
    stream: TcpStream,
    call: Mutex<Call>,
}

/// State of the call under way. It has a lock because reader and writer are separate values. The lock is never
/// contended.
struct Call {
    by: Deadline,
    /// The operating system accepted the whole request, so the gateway may have acted on it.
    sent: bool,
    /// Number of bytes that the reply may still have.
    reply_left: usize,
    elements_left: usize,
    inbox: WireInbox,
}

/// Bytes received and not yet read.
struct WireInbox {
    buffer: Vec<u8>,
    from: usize,
    to: usize,
}

impl Link {
    pub(super) fn connect(address: &SocketAddr, by: Deadline) -> io::Result<Link> {
        let left = left(by)?;
        let stream = above_streams(|| TcpStream::connect_timeout(address, left))?;
        stream.set_nodelay(true)?;
        let inbox = WireInbox { buffer: vec![0; READ_AHEAD], from: 0, to: 0 };
        let call =
            Call { by, sent: false, reply_left: REPLY_BYTES_MAX, elements_left: REPLY_ELEMENTS_MAX, inbox };
        let shared = Arc::new(WireState { stream, call: Mutex::new(call) });
        let reader = LinkReader { shared: Arc::clone(&shared) };
        let writer = LinkWriter { shared: Arc::clone(&shared), buffer: Vec::new() };
        Ok(Link { client: ThriftClient::new(reader, TBinaryOutputProtocol::new(writer, true)), shared })
    }

    /// Prepares the connection for a call with this deadline.
    pub(super) fn begin(&mut self, by: Deadline) {
        let mut call = self.shared.call.lock();
        (call.by, call.sent) = (by, false);
        (call.reply_left, call.elements_left) = (REPLY_BYTES_MAX, REPLY_ELEMENTS_MAX);
    }

    /// Returns whether the gateway may have received the whole request. A gateway does not act on a part of one.
    pub(super) fn sent(&self) -> bool {
        self.shared.call.lock().sent
    }

    /// Returns whether the connection can be used, as far as this side knows. A gateway closes connections that
    /// were idle for a minute. Unexpected bytes make a connection unusable too.
    pub(super) fn is_open(&self) -> bool {
        let inbox = &self.shared.call.lock().inbox;
        if inbox.from < inbox.to {
            return false;
        }
        let mut byte = [0; 1];
        let peeked = rustix::net::recv(&self.shared.stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(rustix::io::Errno::WOULDBLOCK))
    }
}

/// Converts `WouldBlock` to `TimedOut`: sockets report an expired time-out as `WouldBlock`.
fn timed(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

/// Collects a request and sends it as a whole.
pub(super) struct LinkWriter {
    shared: Arc<WireState>,
    buffer: Vec<u8>,
}

impl Write for LinkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let request = std::mem::take(&mut self.buffer);
        let mut rest = &request[..];
        let by = self.shared.call.lock().by;
        while !rest.is_empty() {
            self.shared.stream.set_write_timeout(Some(left(by)?))?;
            match (&self.shared.stream).write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => rest = &rest[taken..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(timed(error)),
            }
        }
        self.shared.call.lock().sent = true;
        Ok(())
    }
}

/// Reads replies in Thrift's strict binary encoding, with limits on time and size.
pub(super) struct LinkReader {
    shared: Arc<WireState>,
}

impl WireInbox {
    fn fill(&mut self, mut stream: &TcpStream, by: Deadline) -> io::Result<()> {
        loop {
            stream.set_read_timeout(Some(left(by)?))?;
            match stream.read(&mut self.buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    (self.from, self.to) = (0, count);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(timed(error)),
            }
        }
    }
}

impl LinkReader {
    fn exact(&mut self, out: &mut [u8]) -> thrift::Result<()> {
        let call = &mut *self.shared.call.lock();
        call.reply_left =
            call.reply_left.checked_sub(out.len()).ok_or_else(|| garbage("a reply of more than 1 MiB"))?;
        let inbox = &mut call.inbox;
        let mut filled = 0;
        while filled < out.len() {
            if inbox.from == inbox.to {
                inbox.fill(&self.shared.stream, call.by)?;
            }
            let take = (out.len() - filled).min(inbox.to - inbox.from);
            out[filled..filled + take].copy_from_slice(&inbox.buffer[inbox.from..inbox.from + take]);
            inbox.from += take;
            filled += take;
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> thrift::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.exact(&mut bytes)?;
        Ok(bytes)
    }

    fn ttype(&mut self) -> thrift::Result<TType> {
        Ok(match self.read_byte()? {
            0x00 => TType::Stop,
            0x01 => TType::Void,
            0x02 => TType::Bool,
            0x03 => TType::I08,
            0x04 => TType::Double,
            0x06 => TType::I16,
            0x08 => TType::I32,
            0x0a => TType::I64,
            0x0b => TType::String,
            0x0c => TType::Struct,
            0x0d => TType::Map,
            0x0e => TType::Set,
            0x0f => TType::List,
            _ => return Err(garbage("unknown field type")),
        })
    }

    /// Reads the size of a container. Its elements count against the limit of the reply. Each element takes at
    /// least one byte.
    fn size(&mut self) -> thrift::Result<i32> {
        let size = self.read_i32()?;
        let call = &mut *self.shared.call.lock();
        let count = usize::try_from(size).ok().filter(|&count| count <= call.reply_left);
        let left = count.and_then(|count| call.elements_left.checked_sub(count));
        call.elements_left =
            left.ok_or_else(|| garbage("containers of an impossible size, or a reply of more than 1 MiB"))?;
        Ok(size)
    }
}

fn garbage(what: &str) -> thrift::Error {
    thrift::Error::Protocol(ProtocolError::new(ProtocolErrorKind::InvalidData, what))
}

impl TInputProtocol for LinkReader {
    fn read_message_begin(&mut self) -> thrift::Result<TMessageIdentifier> {
        let header: [u8; 4] = self.array()?;
        if header[..2] != VERSION_1 {
            return Err(garbage("not a message of Thrift's strict binary encoding"));
        }
        let message_type = TMessageType::try_from(header[3])?;
        let name = self.read_string()?;
        Ok(TMessageIdentifier::new(name, message_type, self.read_i32()?))
    }

    fn read_field_begin(&mut self) -> thrift::Result<TFieldIdentifier> {
        let field_type = self.ttype()?;
        let id = if field_type == TType::Stop { 0 } else { self.read_i16()? };
        Ok(TFieldIdentifier::new::<Option<String>, String, i16>(None, field_type, id))
    }

    fn read_bytes(&mut self) -> thrift::Result<Vec<u8>> {
        let length = self.read_i32()?;
        let left = self.shared.call.lock().reply_left;
        let length = usize::try_from(length).ok().filter(|&length| length <= left);
        let mut bytes = vec![
            0;
            length.ok_or_else(|| garbage(
                "a string of an impossible length, or a reply of more than 1 MiB"
            ))?
        ];
        self.exact(&mut bytes)?;
        Ok(bytes)
    }

    fn read_string(&mut self) -> thrift::Result<String> {
        // Only names and messages are strings. A message in the gateway's platform charset must still be readable.
        Ok(String::from_utf8_lossy(&self.read_bytes()?).into_owned())
    }

    fn read_list_begin(&mut self) -> thrift::Result<TListIdentifier> {
        Ok(TListIdentifier::new(self.ttype()?, self.size()?))
    }

    fn read_set_begin(&mut self) -> thrift::Result<TSetIdentifier> {
        Ok(TSetIdentifier::new(self.ttype()?, self.size()?))
    }

    fn read_map_begin(&mut self) -> thrift::Result<TMapIdentifier> {
        let (key, value) = (self.ttype()?, self.ttype()?);
        Ok(TMapIdentifier::new(key, value, self.size()?))
    }

    fn read_bool(&mut self) -> thrift::Result<bool> {
        Ok(self.read_byte()? != 0)
    }

    fn read_byte(&mut self) -> thrift::Result<u8> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    fn read_i8(&mut self) -> thrift::Result<i8> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    fn read_i16(&mut self) -> thrift::Result<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    fn read_i32(&mut self) -> thrift::Result<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    fn read_i64(&mut self) -> thrift::Result<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    fn read_double(&mut self) -> thrift::Result<f64> {
        Ok(f64::from_be_bytes(self.array()?))
    }

    // The binary encoding has no bytes for these.

    fn read_message_end(&mut self) -> thrift::Result<()> {
        Ok(())
    }

    fn read_struct_begin(&mut self) -> thrift::Result<Option<TStructIdentifier>> {
        Ok(None)
    }

    fn read_struct_end(&mut self) -> thrift::Result<()> {
        Ok(())
    }

    fn read_field_end(&mut self) -> thrift::Result<()> {
        Ok(())
    }

    fn read_list_end(&mut self) -> thrift::Result<()> {
        Ok(())
    }

    fn read_set_end(&mut self) -> thrift::Result<()> {
        Ok(())
    }

    fn read_map_end(&mut self) -> thrift::Result<()> {
        Ok(())
    }
}

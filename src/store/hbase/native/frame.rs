//! Frames of HBase's RPC: the byte layout of requests and replies. Pure functions over bytes.
//!
//! ```text
//! hello     "HBas" 00 50, then u32 length | ConnectionHeader
//! request   u32 length | varint length, RequestHeader | varint length, parameter
//! reply     u32 length | varint length, ResponseHeader | varint length, message (not after an exception)
//! ```

use std::cell::Cell;
use std::io;

use prost::Message;
use prost::bytes::Buf;

use super::bytes::constant;
use super::messages::{ConnectionHeader, ExceptionResponse, RequestHeader, ResponseHeader, UserInformation};

/// Largest reply that is read into memory, in bytes. A larger one is skipped. An application's table may set a
/// higher limit. Most replies for locks and latches have a few cells; table descriptors and stack traces are the
/// largest replies.
pub(super) const FRAME_BYTES_MAX: u32 = 4 << 20;

/// Largest header of a long reply that carries a message. The header of an exception may be longer, because it
/// contains the stack trace; only its beginning is read.
const HEADER_BYTES_MAX: usize = 1024;
/// Tags of the fields of a ResponseHeader: call_id, exception.
const CALL_ID: u8 = 0x08;
const EXCEPTION: u8 = 0x12;

/// Magic, version 0, and "no SASL".
const PREAMBLE: [u8; 6] = *b"HBas\x00\x50";

/// Most memory that a thread keeps for its next request or reply.
const BUFFER_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Reason why bytes are not a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("a reply that cannot be read")]
    Broken,
    #[error("the server speaks TLS: set tls=on")]
    Tls,
}

impl From<Unreadable> for io::Error {
    fn from(why: Unreadable) -> io::Error {
        let kind = match why {
            Unreadable::Broken => io::ErrorKind::InvalidData,
            // The server has understood nothing of what this client sent.
            Unreadable::Tls => io::ErrorKind::PermissionDenied,
        };
        io::Error::new(kind, why)
    }
}

/// One reply.
#[derive(Debug, PartialEq)]
pub(super) struct ReplyFrame {
    /// The call that it answers; `None` if the reply concerns the whole connection.
    pub(super) call_id: Option<u32>,
    pub(super) outcome: Result<Vec<u8>, ExceptionResponse>,
}

/// Length of a reply, announced by its first four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Short(usize),
    /// Over the limit. [`long_reply`] checks whether it is a reply at all.
    Long(u32),
}

/// Builds the first bytes of a connection. They must be sent in one write.
pub(super) fn hello(service: &str, user: &str) -> Vec<u8> {
    let mut bytes = PREAMBLE.to_vec();
    header(&mut bytes, service, Some(user));
    bytes
}

/// Builds the first bytes of a connection after a handshake. The server knows the user from that.
pub(super) fn hello_again(service: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    header(&mut bytes, service, None);
    bytes
}

fn header(bytes: &mut Vec<u8>, service: &str, user: Option<&str>) {
    let header = ConnectionHeader {
        user_info: user.map(|user| UserInformation { effective_user: user.to_owned() }),
        service_name: service.to_owned(),
    };
    let header = header.encode_to_vec();
    bytes.extend_from_slice(&length(header.len()));
    bytes.extend_from_slice(&header);
}

/// Builds a request, in a [`buffer`].
pub(super) fn request(
    call_id: u32,
    method: &'static str,
    timeout_ms: u32,
    parameter: &impl Message,
) -> Vec<u8> {
    let header = RequestHeader {
        call_id: Some(call_id),
        method_name: constant(method),
        request_param: true,
        timeout_ms,
    };
    let (header_len, parameter_len) = (header.encoded_len(), parameter.encoded_len());
    let total = delimited(header_len) + delimited(parameter_len);
    let mut bytes = buffer();
    bytes.reserve(4 + total);
    bytes.extend_from_slice(&length(total));
    header.encode_length_delimited(&mut bytes).expect("a Vec grows");
    parameter.encode_length_delimited(&mut bytes).expect("a Vec grows");
    bytes
}

/// Decodes the length of a reply from its first four bytes. `max`: see [`FRAME_BYTES_MAX`].
pub(super) fn reply_length(prefix: [u8; 4], max: u32) -> Result<Length, Unreadable> {
    match u32::from_be_bytes(prefix) {
        length if length <= max => Ok(Length::Short(length as usize)),
        // An alert of TLS 1.0 to 1.3: the answer of a TLS server to a client without TLS.
        0x1503_0000..=0x1503_04ff => Err(Unreadable::Tls),
        length => Ok(Length::Long(length)),
    }
}

/// Finds the call that a reply over the limit answers. `begun` contains its first bytes, without the length.
/// Returns `None` if more bytes are needed.
///
/// # Errors
/// [`Unreadable::Broken`] if this is not a reply of HBase. The bytes of another protocol can look like a great
/// length too. So the parts of the frame must fill it exactly, and the first field must be the call's number.
pub(super) fn long_reply(length: u32, begun: &[u8]) -> Result<Option<u32>, Unreadable> {
    let Some((header_len, rest)) = varint(begun)? else { return Ok(None) };
    let header_end = (begun.len() - rest.len()) as u64 + header_len;
    if rest.first().is_some_and(|tag| *tag != CALL_ID) || header_end > u64::from(length) {
        return Err(Unreadable::Broken);
    }
    let exception_only = header_end == u64::from(length);
    if header_len > HEADER_BYTES_MAX as u64 && !exception_only {
        return Err(Unreadable::Broken);
    }
    let Some((call_id, behind)) = rest.get(1..).map_or(Ok(None), varint)? else { return Ok(None) };
    let call_id = u32::try_from(call_id).ok().filter(|id| *id < 0x8000_0000).ok_or(Unreadable::Broken)?;
    if exception_only {
        return match behind.first() {
            None => Ok(None),
            Some(&EXCEPTION) => Ok(Some(call_id)),
            Some(_) => Err(Unreadable::Broken),
        };
    }
    let header_len = header_len as usize;
    let Some(header) = rest.get(..header_len) else { return Ok(None) };
    let header = ResponseHeader::decode(header).map_err(|_| Unreadable::Broken)?;
    if header.call_id != Some(call_id) || header.exception.is_some() {
        return Err(Unreadable::Broken);
    }
    let Some((message_len, rest)) = varint(&rest[header_len..])? else { return Ok(None) };
    let end = (begun.len() - rest.len()) as u64 + message_len;
    if end == u64::from(length) { Ok(Some(call_id)) } else { Err(Unreadable::Broken) }
}

/// Decodes a number of up to 35 bits. Returns it and the bytes after it; `None` if its end is missing.
fn varint(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, Unreadable> {
    let mut number = 0;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((number, &bytes[index + 1..])));
        }
    }
    if bytes.len() < 5 { Ok(None) } else { Err(Unreadable::Broken) }
}

/// Decodes a reply without its length. The message is in a [`buffer`].
pub(super) fn reply(frame: &[u8]) -> Result<ReplyFrame, Unreadable> {
    let mut rest = frame;
    let header = ResponseHeader::decode_length_delimited(&mut rest).map_err(|_| Unreadable::Broken)?;
    if let Some(exception) = header.exception {
        return Ok(ReplyFrame { call_id: header.call_id, outcome: Err(exception) });
    }
    let length = prost::decode_length_delimiter(&mut rest).map_err(|_| Unreadable::Broken)?;
    if length != rest.remaining() {
        return Err(Unreadable::Broken);
    }
    let mut message = buffer();
    message.extend_from_slice(rest);
    Ok(ReplyFrame { call_id: header.call_id, outcome: Ok(message) })
}

/// Takes the buffer of this thread, which is empty. A thread has one, so a second buffer is a new one.
fn buffer() -> Vec<u8> {
    // A lease may be dropped at the end of its thread, when the buffer is gone.
    BUFFER.try_with(Cell::take).unwrap_or_default()
}

/// Keeps a buffer for the next request or reply of this thread. A large one is dropped, because most are small.
pub(super) fn reuse(mut bytes: Vec<u8>) {
    if bytes.capacity() <= BUFFER_BYTES_MAX {
        bytes.clear();
        let _ = BUFFER.try_with(|buffer| buffer.set(bytes));
    }
}

fn delimited(len: usize) -> usize {
    prost::length_delimiter_len(len) + len
}

/// Encodes the length of a request. Requests hold a few rows and values of limited size, far below 4 GiB.
fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("a request is small").to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::super::messages::{Get, GetRequest};
    use super::*;

    fn framed(header: &ResponseHeader, message: Option<&[u8]>) -> Vec<u8> {
        let mut bytes = header.encode_length_delimited_to_vec();
        if let Some(message) = message {
            prost::encode_length_delimiter(message.len(), &mut bytes).unwrap();
            bytes.extend_from_slice(message);
        }
        bytes
    }

    /// These bytes are from a connection that a server accepted.
    #[test]
    fn the_hello_is_preamble_then_length_then_header() {
        let bytes = hello("ClientService", "me");
        assert_eq!(&bytes[..10], b"HBas\x00\x50\x00\x00\x00\x15");
        assert_eq!(&bytes[10..], b"\x0a\x04\x0a\x02me\x12\x0dClientService");
    }

    #[test]
    fn a_request_has_both_parts_also_when_the_parameter_is_empty() {
        let empty = request(7, "GetClusterId", 100, &super::super::messages::Empty {});
        assert_eq!(empty[..4], u32::to_be_bytes(empty.len() as u32 - 4));
        assert_eq!(empty.last(), Some(&0));
        let get = GetRequest { region: None, get: Some(Get { row: constant("r"), ..Get::default() }) };
        let bytes = request(7, "Get", 100, &get);
        assert!(bytes.ends_with(b"\x05\x12\x03\x0a\x01r"), "{bytes:?}");
    }

    #[test]
    fn lengths_that_no_reply_has_are_refused_before_allocation() {
        assert_eq!(reply_length([0, 0, 1, 0], FRAME_BYTES_MAX), Ok(Length::Short(256)));
        assert_eq!(reply_length([0, 0x40, 0, 0], FRAME_BYTES_MAX), Ok(Length::Short(4 << 20)));
        assert_eq!(reply_length([0, 0x40, 0, 1], FRAME_BYTES_MAX), Ok(Length::Long((4 << 20) + 1)));
        assert_eq!(reply_length([0xff; 4], FRAME_BYTES_MAX), Ok(Length::Long(u32::MAX)));
        assert_eq!(reply_length([0x15, 3, 3, 0], FRAME_BYTES_MAX), Err(Unreadable::Tls));
    }

    #[test]
    fn a_thread_keeps_one_empty_buffer_and_no_large_one() {
        reuse(Vec::with_capacity(BUFFER_BYTES_MAX + 1));
        assert_eq!(buffer().capacity(), 0);
        reuse(vec![7; 100]);
        let kept = buffer();
        assert!(kept.is_empty() && kept.capacity() >= 100);
        assert_eq!(buffer().capacity(), 0, "it is taken");
    }

    /// The first few bytes decide whether a long frame is a reply.
    #[test]
    fn a_long_reply_names_its_call_and_anything_else_of_great_length_is_none() {
        let header = ResponseHeader { call_id: Some(300), exception: None };
        let whole = framed(&header, Some(&vec![7; 5 << 20]));
        let length = whole.len() as u32;
        // Header and its length, length of the message.
        let needed = 1 + 3 + 4;
        for begun in 0..needed {
            assert_eq!(long_reply(length, &whole[..begun]), Ok(None), "{begun} bytes");
        }
        assert_eq!(long_reply(length, &whole[..needed]), Ok(Some(300)));
        assert_eq!(long_reply(length, &whole), Ok(Some(300)));
        for other in [length - 1, length + 1, u32::MAX] {
            assert_eq!(long_reply(other, &whole), Err(Unreadable::Broken), "the parts do not fill {other}");
        }
        let stack = "at a.b.C\n".repeat(600_000);
        let exception = ExceptionResponse { class: "a.B".into(), stack, ..Default::default() };
        let failed = framed(&ResponseHeader { call_id: Some(5), exception: Some(exception.clone()) }, None);
        assert_eq!(long_reply(failed.len() as u32, &failed[..64]), Ok(Some(5)));
        assert_eq!(long_reply(failed.len() as u32 + 1, &failed[..64]), Err(Unreadable::Broken));
        let nobody = framed(&ResponseHeader { call_id: None, exception: Some(exception) }, None);
        assert_eq!(long_reply(nobody.len() as u32, &nobody[..64]), Err(Unreadable::Broken));
        let all =
            framed(&ResponseHeader { call_id: Some(u32::MAX), exception: None }, Some(&vec![7; 5 << 20]));
        assert_eq!(long_reply(all.len() as u32, &all[..64]), Err(Unreadable::Broken));
        for garbage in [&b"HTTP/1.1 400"[..], b"SSH-2.0", &[0xff; 12], &[0x7f, 0xff, 0xff, 0xff, 1, 1, 1]] {
            let prefix = garbage.first_chunk::<4>().unwrap();
            let Ok(Length::Long(length)) = reply_length(*prefix, FRAME_BYTES_MAX) else {
                panic!("{garbage:?}")
            };
            assert_eq!(long_reply(length, &garbage[4..]), Err(Unreadable::Broken), "{garbage:?}");
        }
    }

    #[test]
    fn a_reply_cut_anywhere_is_an_error_and_never_a_panic() {
        let header = ResponseHeader { call_id: Some(3), exception: None };
        let whole = framed(&header, Some(b"message"));
        assert_eq!(reply(&whole).unwrap(), ReplyFrame { call_id: Some(3), outcome: Ok(b"message".to_vec()) });
        for cut in 0..whole.len() {
            assert!(reply(&whole[..cut]).is_err(), "cut at {cut}");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(reply(&longer).is_err(), "bytes behind the message");
        let exception = ExceptionResponse { class: "a.B".into(), ..Default::default() };
        let failed = framed(&ResponseHeader { call_id: None, exception: Some(exception.clone()) }, None);
        assert_eq!(reply(&failed).unwrap(), ReplyFrame { call_id: None, outcome: Err(exception) });
    }
}

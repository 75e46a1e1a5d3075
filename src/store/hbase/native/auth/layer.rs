//! What protects the bytes of a connection after the handshake: RFC 4422, section 3.7, with the tokens of RFC 4121.
//!
//! ```text
//! u32 length | token, u32 length | token, ...
//! ```
//!
//! The bytes in the tokens, one after another, are those of a connection without protection: an end of a token is no end of a
//! message. Tokens are numbered by the context, so one that is missing, comes twice or was changed is an error, and the connection
//! ends.

use std::io;

use super::protection::{ERROR_AFTER_HANDSHAKE, refused_after_handshake};
use crate::runtime::process::gssapi::{Context, GssError};
use crate::runtime::sync::real::{Mutex, TimedMutex};
use crate::runtime::time::Deadline;
use crate::store::deadline_socket::left;

/// The longest token that is received, unless longer replies are expected. A server protects a whole reply with one token, and
/// only a whole token can be read.
const TOKEN_MAX: usize = 64 << 20;
/// What a token has beside a reply, and more.
const BESIDE_REPLY: usize = 1 << 20;
/// The least that a token of ours protects. A server that takes less is not one of HBase.
const PIECE_MIN: usize = 256;
/// The most that a token of ours protects.
const PIECE_MAX: usize = 64 << 10;
/// The kind of an error that the server has not protected. Anybody on the way can send it, so a request may have been run.
const UNPROVEN: io::ErrorKind = io::ErrorKind::ConnectionAborted;
/// Memory that is kept for the next token.
const KEPT: usize = 64 << 10;

pub(in crate::store::hbase::native) struct SecurityLayer {
    /// One call of it at a time.
    context: TimedMutex<Context>,
    is_private: bool,
    /// How many bytes one token protects.
    piece: usize,
    /// Only one thread at a time receives.
    received: Mutex<ReceivedTokens>,
}

/// What has arrived.
struct ReceivedTokens {
    token_max: usize,
    /// Whether no token has arrived yet.
    is_first: bool,
    /// The beginning of a token, with its length in front.
    raw: Vec<u8>,
    /// What the last token protected.
    plain: Vec<u8>,
    /// So many bytes of it were taken.
    taken: usize,
}

impl SecurityLayer {
    /// The server takes tokens of `token_max` bytes, and sends replies of `reply_max`.
    pub(super) fn new(
        mut context: Context,
        is_private: bool,
        (token_max, reply_max): (u32, u32),
    ) -> io::Result<SecurityLayer> {
        let piece = context.wrap_limit(is_private, token_max).map_err(|error| broken(&error))?.min(PIECE_MAX);
        if piece < PIECE_MIN {
            let what = format!("the server takes tokens of {token_max} bytes, which is too little");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(SecurityLayer {
            context: TimedMutex::new(context),
            is_private,
            piece,
            received: Mutex::new(ReceivedTokens::new(reply_max)),
        })
    }

    /// Returns the tokens that protect these bytes. They must be sent before those of the next call.
    pub(in crate::store::hbase::native) fn protect(&self, bytes: &[u8], by: Deadline) -> io::Result<Vec<u8>> {
        let mut context = self.context.try_lock_for(left(by)?).ok_or(io::ErrorKind::TimedOut)?;
        let mut out = Vec::with_capacity(bytes.len() + 128);
        for piece in bytes.chunks(self.piece) {
            let token = context.wrap(piece, self.is_private).map_err(|error| broken(&error))?;
            let length = u32::try_from(token.len()).expect("a token of a piece");
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&token);
        }
        Ok(out)
    }

    /// Receives some of the bytes that the server has protected, at least one. `receive` receives some bytes of the connection.
    /// No bytes are lost if it fails with `TimedOut`.
    pub(in crate::store::hbase::native) fn receive(
        &self,
        out: &mut [u8],
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.received.lock().receive(out, &mut receive, |token| {
            // Without a deadline: nobody keeps it for long, and the token would be lost.
            let (plain, was_hidden) = self.context.lock().unwrap(token).map_err(|error| broken(&error))?;
            if self.is_private && !was_hidden {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the server sent something that is not hidden",
                ));
            }
            Ok(plain)
        })
    }
}

impl ReceivedTokens {
    fn new(reply_max: u32) -> ReceivedTokens {
        let token_max = TOKEN_MAX.max(reply_max as usize + BESIDE_REPLY);
        ReceivedTokens { token_max, is_first: true, raw: Vec::new(), plain: Vec::new(), taken: 0 }
    }

    fn receive(
        &mut self,
        out: &mut [u8],
        receive: &mut impl FnMut(&mut [u8]) -> io::Result<usize>,
        unwrap: impl Fn(&[u8]) -> io::Result<Vec<u8>>,
    ) -> io::Result<usize> {
        while self.taken == self.plain.len() {
            let missing = self.missing()?;
            if missing > 0 {
                let begun = self.raw.len();
                self.raw.resize(begun + missing.min(KEPT), 0);
                let count = receive(&mut self.raw[begun..]);
                self.raw.truncate(begun + count.as_ref().copied().unwrap_or(0));
                count?;
                continue;
            }
            self.plain = unwrap(&self.raw[4..])?;
            (self.taken, self.is_first) = (0, false);
            self.raw.clear();
            self.raw.shrink_to(KEPT);
        }
        let rest = &self.plain[self.taken..];
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }

    /// Returns how many bytes of the token are missing, or of its length.
    fn missing(&self) -> io::Result<usize> {
        let Some(length) = self.raw.first_chunk::<4>() else { return Ok(4 - self.raw.len()) };
        match u32::from_be_bytes(*length) as usize {
            ERROR_AFTER_HANDSHAKE if self.is_first => Err(refused_after_handshake(UNPROVEN)),
            length if length > self.token_max => {
                let what = format!("a protected reply of {length} bytes, above {} MiB", self.token_max >> 20);
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            length => Ok(4 + length - self.raw.len()),
        }
    }
}

fn broken(error: &GssError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("what protects the connection failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a connection that arrive in pieces of any size. None arrive at some of the looks.
    struct Arriving {
        bytes: Vec<u8>,
        at: usize,
        random: fastrand::Rng,
    }

    impl Arriving {
        fn receive(&mut self, out: &mut [u8]) -> io::Result<usize> {
            if self.random.u8(..4) == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let rest = &self.bytes[self.at..];
            if rest.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let count = self.random.usize(1..=rest.len().min(out.len()));
            out[..count].copy_from_slice(&rest[..count]);
            self.at += count;
            Ok(count)
        }
    }

    /// In the place of a context: a token is its text, with each bit changed.
    fn unwrap(token: &[u8]) -> io::Result<Vec<u8>> {
        Ok(token.iter().map(|byte| !byte).collect())
    }

    #[test]
    fn bytes_come_in_their_order_whatever_arrives_at_once_and_none_is_lost_at_a_time_out() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut sent, mut bytes) = (Vec::new(), Vec::new());
            // Also tokens that protect nothing.
            for _ in 0..20 {
                let piece: Vec<u8> = (0..random.usize(..300)).map(|_| random.u8(..)).collect();
                let token = unwrap(&piece).unwrap();
                bytes.extend_from_slice(&(token.len() as u32).to_be_bytes());
                bytes.extend_from_slice(&token);
                sent.extend_from_slice(&piece);
            }
            let (mut tokens, mut arriving) =
                (ReceivedTokens::new(4 << 20), Arriving { bytes, at: 0, random: random.fork() });
            let mut received = Vec::new();
            loop {
                let mut out = vec![0; random.usize(1..100)];
                match tokens.receive(&mut out, &mut |raw| arriving.receive(raw), unwrap) {
                    Ok(count) => received.extend_from_slice(&out[..count]),
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                        break;
                    }
                }
            }
            assert_eq!(received, sent, "seed {seed}");
        }
    }

    /// A server that cannot use our name says so where a token is expected. It must not look as if no request was run.
    #[test]
    fn a_refusal_in_the_place_of_the_first_token_is_told_from_a_token() {
        let receive = |tokens: &mut ReceivedTokens, mut bytes: &[u8]| {
            tokens.receive(&mut [0; 9], &mut |raw| io::Read::read(&mut bytes, raw), unwrap)
        };
        let refusal = [0, 0, 0, 1, 0, 0, 0, 1, b'C', 0, 0, 0, 1, b'm'];
        let mut tokens = ReceivedTokens::new(4 << 20);
        let error = receive(&mut tokens, &refusal).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert!(error.to_string().contains("auth_to_local"), "{error}");
        let mut tokens = ReceivedTokens::new(4 << 20);
        assert_eq!(receive(&mut tokens, &[0, 0, 0, 2, 7, 7]).unwrap(), 2);
        assert_eq!(receive(&mut tokens, &refusal).unwrap(), 1, "a token of one byte");
    }

    #[test]
    fn a_length_that_no_token_has_is_an_error_before_memory_is_taken_for_it() {
        let mut tokens = ReceivedTokens::new(4 << 20);
        let mut left = 4;
        let error = tokens.receive(
            &mut [0; 10],
            &mut |raw| {
                assert!(raw.len() <= 4 && left > 0, "it asks for a token of 4 GiB");
                raw.fill(0xff);
                left -= raw.len();
                Ok(raw.len())
            },
            unwrap,
        );
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(tokens.raw.capacity() < 100);
    }
}

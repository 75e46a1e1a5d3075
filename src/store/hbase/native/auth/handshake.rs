//! The handshake with one server: SASL with the mechanism GSSAPI (RFC 4752), as HBase frames it.
//!
//! ```text
//! client   "HBas" 00 51, then u32 length | token
//! server   i32 status: 0, then i32 length | token
//!                      1, then two texts, each u32 length | bytes: the class of the exception and its message
//! client   u32 length | token, which may be empty ...
//! ```
//!
//! | the client has | the server's token is | the client answers |
//! |---|---|---|
//! | sent its ticket | the server's proof | an empty token |
//! | checked the proof | wrapped: what protections it offers (1 byte, a bit each), and its largest token (3 bytes) | wrapped: the one that it chose, and its own largest token |
//! | chosen | - | the header of the connection, protected as agreed |
//!
//! A length of -88 instead of the first token says that the server has no security. A client that went on would send everything to
//! whoever pretends to be a server without it. So this is an error (HBase calls it "fallback").
//!
//! Source: `AbstractHBaseSaslRpcClient`, `HBaseSaslRpcClient` and `ServerRpcConnection` of HBase 2.6.

use std::io;

use super::layer::SecurityLayer;
use super::protection::{ERROR_STATUS, Protection};
use crate::runtime::process::gssapi::{Context, ContextFlags, GssError};
use crate::runtime::time::{Deadline, Moment};
use crate::store::hbase::native::channel::Channel;

/// Magic, version 0, and "Kerberos".
const PREAMBLE: [u8; 6] = *b"HBas\x00\x51";
const SUCCESS: u32 = 0;
/// Instead of the length of a token: "go on without security".
const SIMPLE: i32 = -88;
/// The longest token that is read. Tickets with the groups of a user have up to 64 KiB.
const TOKEN_MAX: u32 = 1 << 20;
/// The longest text that is read.
const TEXT_MAX: u32 = 64 << 10;
/// The most characters of a server's text in an error.
const SAID_MAX: usize = 300;
/// The largest token that we say we take, as Java does. Servers of HBase send larger ones.
const OUR_TOKEN_MAX: u32 = 0x1_0000;

/// When the ticket of a connection ends.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::hbase::native) struct TicketEnd {
    pub(in crate::store::hbase::native) ends: Moment,
    /// From then on another connection should take its place.
    pub(in crate::store::hbase::native) renew_at: Moment,
}

/// A connection whose two sides know each other.
pub(in crate::store::hbase::native) struct Established {
    /// `None`: what is sent is not protected.
    pub(in crate::store::hbase::native) layer: Option<SecurityLayer>,
    pub(in crate::store::hbase::native) protection: Protection,
    pub(in crate::store::hbase::native) ticket: TicketEnd,
}

/// Authenticates with the server at the other end. `first` is the first token of the context. `least` is the least protection.
///
/// # Errors
/// `PermissionDenied` if another try would end alike.
pub(in crate::store::hbase::native) fn authenticate(
    channel: &Channel,
    (mut context, first): (Context, Vec<u8>),
    least: Protection,
    reply_max: u32,
    by: Deadline,
) -> io::Result<Established> {
    channel.send(&[&PREAMBLE[..], &framed(&first)].concat(), by)?;
    while !context.is_complete() {
        let token = receive(channel, by).map_err(silent_end)?;
        let answer = context.step(&token).map_err(|error| not_proven(&error))?;
        channel.send(&framed(&answer), by)?;
    }
    // The library may agree to less than it was asked for.
    if !context.flags().has(ContextFlags::MUTUAL) {
        return Err(refused("the server has not proven who it is"));
    }
    let (now, lasts) = (Moment::now(), context.lasts());
    let ticket = TicketEnd { ends: now.after(lasts), renew_at: now.after(lasts / 5 * 4) };
    let offer = receive(channel, by).map_err(silent_end)?;
    let (offer, _) = context.unwrap(&offer).map_err(|error| not_proven(&error))?;
    let (protection, token_max) = choose(&offer, least, context.flags())?;
    let ours = if protection == Protection::Authentication { 0 } else { OUR_TOKEN_MAX };
    let choice = (protection as u32) << 24 | ours;
    let answer = context.wrap(&choice.to_be_bytes(), false).map_err(|error| not_proven(&error))?;
    channel.send(&framed(&answer), by)?;
    let layer = match protection {
        Protection::Authentication => None,
        _ => Some(SecurityLayer::new(context, protection == Protection::Privacy, (token_max, reply_max))?),
    };
    Ok(Established { layer, protection, ticket })
}

/// Chooses the strongest protection that the server offers and the context can give. Also returns the server's largest token.
fn choose(offer: &[u8], least: Protection, flags: ContextFlags) -> io::Result<(Protection, u32)> {
    let Ok(offer) = <[u8; 4]>::try_from(offer) else {
        return Err(refused(format!("an offer of protections of {} bytes, and not of 4", offer.len())));
    };
    let (offered, token_max) = (offer[0], u32::from_be_bytes([0, offer[1], offer[2], offer[3]]));
    let can = |protection: &&Protection| match protection {
        Protection::Authentication => true,
        Protection::Integrity => flags.has(ContextFlags::INTEGRITY),
        Protection::Privacy => flags.has(ContextFlags::CONFIDENTIALITY),
    };
    let offers = |protection: &&Protection| offered & **protection as u8 != 0;
    let best = Protection::ALL.iter().filter(offers).find(can);
    match best {
        Some(best) if *best >= least => Ok((*best, token_max)),
        _ => {
            let names: Vec<_> = Protection::ALL.iter().filter(offers).map(|it| it.name()).collect();
            let names = if names.is_empty() { "nothing".to_owned() } else { names.join(" and ") };
            Err(refused(format!(
                "the server offers {names} (hbase.rpc.protection), and protection={} asks for more",
                least.name()
            )))
        }
    }
}

/// Receives one token.
fn receive(channel: &Channel, by: Deadline) -> io::Result<Vec<u8>> {
    match u32::from_be_bytes(exactly(channel, by)?) {
        SUCCESS => {}
        ERROR_STATUS => return Err(said(&text(channel, by)?, &text(channel, by)?)),
        _ => return Err(refused("the server's answer is not one of a handshake: it may not be HBase")),
    }
    let length = i32::from_be_bytes(exactly(channel, by)?);
    if length == SIMPLE {
        return Err(refused(
            "the server has no Kerberos (hbase.security.authentication=simple), and auth=kerberos asks for it",
        ));
    }
    bytes(channel, length as u32, TOKEN_MAX, by)
}

fn text(channel: &Channel, by: Deadline) -> io::Result<String> {
    // An exception without a message has the length -1.
    let length = match u32::from_be_bytes(exactly(channel, by)?) {
        u32::MAX => 0,
        length => length,
    };
    Ok(String::from_utf8_lossy(&bytes(channel, length, TEXT_MAX, by)?).into_owned())
}

fn exactly(channel: &Channel, by: Deadline) -> io::Result<[u8; 4]> {
    let mut out = [0; 4];
    fill(channel, &mut out, by)?;
    Ok(out)
}

fn bytes(channel: &Channel, length: u32, max: u32, by: Deadline) -> io::Result<Vec<u8>> {
    if length > max {
        return Err(refused(format!("a length of {length} in the handshake, above {max}")));
    }
    let mut out = vec![0; length as usize];
    fill(channel, &mut out, by)?;
    Ok(out)
}

fn fill(channel: &Channel, out: &mut [u8], by: Deadline) -> io::Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        filled += channel.receive(&mut out[filled..], by)?;
    }
    Ok(())
}

fn framed(token: &[u8]) -> Vec<u8> {
    let length = u32::try_from(token.len()).expect("tokens of a context are small");
    [&length.to_be_bytes()[..], token].concat()
}

/// Returns what the server said, by a class of Java and its message.
fn said(class: &str, message: &str) -> io::Error {
    let class = class.rsplit('.').next().unwrap_or(class);
    let message: String = message.chars().take(SAID_MAX).collect();
    // Two contexts of one microsecond look like one that somebody sends again. Another try has another time.
    let kind = if message.contains("Request is a replay") {
        io::ErrorKind::ConnectionAborted
    } else {
        io::ErrorKind::PermissionDenied
    };
    io::Error::new(kind, format!("the server refused the login: {message:?} ({class})"))
}

fn refused(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what.into())
}

fn not_proven(error: &GssError) -> io::Error {
    refused(format!("the handshake with the server failed: {error}"))
}

/// Servers end the connection without a word if they cannot use the client's token at all.
fn silent_end(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::UnexpectedEof {
        return error;
    }
    let what =
        "the server closed the connection in the handshake; it may require TLS (tls=on), or it is not HBase";
    io::Error::new(error.kind(), what)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const BOTH: ContextFlags = ContextFlags::CONFIDENTIALITY;

    #[test]
    fn the_strongest_protection_that_both_can_is_chosen_and_less_than_asked_is_refused() {
        let all = ContextFlags::INTEGRITY.and(BOTH);
        assert_eq!(
            choose(&[7, 1, 0, 0], Protection::Authentication, all).unwrap(),
            (Protection::Privacy, 0x1_0000)
        );
        assert_eq!(
            choose(&[3, 0, 0, 9], Protection::Authentication, all).unwrap(),
            (Protection::Integrity, 9)
        );
        assert_eq!(
            choose(&[1, 0, 0, 0], Protection::Authentication, all).unwrap().0,
            Protection::Authentication
        );
        let weak = choose(&[7, 1, 0, 0], Protection::Authentication, ContextFlags::INTEGRITY).unwrap().0;
        assert_eq!(weak, Protection::Integrity, "the context cannot hide anything");
        let error = choose(&[3, 0, 0, 9], Protection::Privacy, all).unwrap_err();
        assert!(error.to_string().contains("offers integrity and authentication"), "{error}");
        for offer in [&[][..], &[1, 0, 0], &[1, 0, 0, 0, 0], &[0, 0, 0, 0], &[0xf8, 0, 0, 0]] {
            assert!(choose(offer, Protection::Authentication, all).is_err(), "{offer:?}");
        }
    }

    /// Returns what a client makes of these bytes in the place of a server's token.
    fn received(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || listener.accept().unwrap().0.write_all(bytes).unwrap());
            let by = Deadline::after(std::time::Duration::from_secs(60));
            receive(&Channel::connect(&address, "localhost", &None, by).unwrap(), by)
        })
    }

    #[test]
    fn only_a_token_is_taken_for_one() {
        let answer = |status: u32, rest: &[&[u8]]| [&status.to_be_bytes()[..], &rest.concat()].concat();
        let text = |text: &str| framed(text.as_bytes());
        assert_eq!(received(&answer(SUCCESS, &[&framed(b"token")])).unwrap(), b"token");
        assert_eq!(received(&answer(SUCCESS, &[&framed(b"")])).unwrap(), b"");
        for (bytes, why) in [
            (answer(SUCCESS, &[&SIMPLE.to_be_bytes()]), "the server has no Kerberos"),
            (answer(SUCCESS, &[&(TOKEN_MAX + 1).to_be_bytes()]), "above 1048576"),
            (answer(SUCCESS, &[&(-1_i32).to_be_bytes()]), "above 1048576"),
            (answer(SUCCESS, &[&i32::MIN.to_be_bytes()]), "above 1048576"),
            (
                answer(ERROR_STATUS, &[&text("a.b.C"), &text("no \u{1b}[31mentry\n")]),
                "\"no \\u{1b}[31mentry\\n\" (C)",
            ),
            (answer(ERROR_STATUS, &[&text("C"), &text(&"x".repeat(60_000))]), "xxx"),
            (answer(ERROR_STATUS, &[&text("a.b.C"), &u32::MAX.to_be_bytes()]), "(C)"),
            (answer(ERROR_STATUS, &[&(TEXT_MAX + 1).to_be_bytes()]), "above 65536"),
            (answer(2, &[]), "not one of a handshake"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "not one of a handshake"),
        ] {
            let error = received(&bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            assert!(error.to_string().contains(why) && error.to_string().len() < 1000, "{why}: {error}");
        }
        let whole = answer(SUCCESS, &[&framed(b"token")]);
        for cut in 0..whole.len() {
            assert_eq!(
                received(&whole[..cut]).unwrap_err().kind(),
                io::ErrorKind::UnexpectedEof,
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_replay_may_be_tried_again_and_other_refusals_may_not() {
        let replay =
            said("javax.security.sasl.SaslException", "GSS initiate failed: Request is a replay (34)");
        assert_eq!(replay.kind(), io::ErrorKind::ConnectionAborted);
        let other = said("javax.security.sasl.SaslException", "GSS initiate failed");
        assert_eq!(other.kind(), io::ErrorKind::PermissionDenied);
        assert!(
            other.to_string().contains("GSS initiate failed")
                && other.to_string().contains("(SaslException)")
        );
    }
}

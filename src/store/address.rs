//! Addresses of servers in a store's URI. One server has one spelling behind this point, whatever the URI says.
//!
//! | in the URI | becomes |
//! |---|---|
//! | `HOST.example.org:9090`, `%68ost.example.org:9090` | `host.example.org:9090` |
//! | `host`, `host:03000` (Aerospike) | `host:3000` |
//! | `[0:0::1]:9090`, `[fe80::1%25eth0]:9090` | `[::1]:9090`, `[fe80::1%eth0]:9090` |
//! | `127.0.0.1.:9090` | `127.0.0.1:9090` |
//! | `a:1,b:1,A:1` | `a:1,b:1` |
//! | `127.1:9090`, `::1:9090`, `host:+90` | refused with the right spelling |
//!
//! A dot at the end of a host name stays in the address, because a resolver does not try its search list for such
//! a name. It is left out of the text that [`described`] returns.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::store_uri::{decode, without_secrets};
use crate::error::{Error, Result};

/// What the addresses of a kind of store look like.
pub(crate) struct AddressForm {
    /// The port of an address without one. `None`: an address without a port is refused.
    pub(crate) port: Option<u16>,
    /// Whether several addresses may be given, with commas between them.
    pub(crate) several: bool,
    /// An address, for messages.
    pub(crate) example: &'static str,
}

/// Returns the servers that `text` names, each once and in one spelling, in the order given: `host:port,host:port`.
///
/// # Errors
/// INVALID_ARGUMENT, which shows the address that is not allowed. It never shows what may be a password.
pub(crate) fn servers(text: &str, form: &AddressForm) -> Result<String> {
    if text.contains('@') {
        let allowed = format!("{} without user and password: see the option user", form.example);
        return Err(Error::invalid("store address", without_secrets(text), allowed));
    }
    let allowed = match form.several {
        false if text.contains([',', ';']) => {
            Some(format!("one address, such as {}; for several gateways use a load balancer", form.example))
        }
        true if text.contains(';') => Some("addresses with commas between them".to_owned()),
        _ => None,
    };
    if let Some(allowed) = allowed {
        return Err(Error::invalid("store address", text, allowed));
    }
    let mut servers = Vec::new();
    for address in text.split(',') {
        let server = server(address, form)?;
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    Ok(servers.join(","))
}

/// Returns the text for messages, which is the same for every order of `servers`, and with and without a dot at the end of
/// a host name.
pub(crate) fn described(servers: &str) -> String {
    let without_dot = |server: &str| match server.rsplit_once(':') {
        Some((host, port)) => format!("{}:{port}", host.strip_suffix('.').unwrap_or(host)),
        None => server.to_owned(),
    };
    let mut all: Vec<_> = servers.split(',').map(without_dot).collect();
    all.sort();
    all.dedup();
    all.join(",")
}

/// Returns `host:port` or `[v6]:port` in its one spelling.
fn server(text: &str, form: &AddressForm) -> Result<String> {
    let refuse = |allowed: String| Error::invalid("store address", text, allowed);
    let usual = || refuse(format!("host:port, such as {}", form.example));
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(usual)?;
            (format!("[{}]", ipv6(host).ok_or_else(usual)?), port)
        }
        None => {
            let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            if port.matches(':').count() > 1 {
                return Err(refuse(format!(
                    "an IPv6 address in brackets, such as [::1]:{}",
                    form.example_port()
                )));
            }
            (named(host).map_err(|allowed| allowed.map_or_else(usual, |it| refuse(it.into())))?, port)
        }
    };
    let port = match (port.strip_prefix(':'), form.port) {
        (None, Some(implied)) if port.is_empty() => implied,
        (Some(digits), _) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().ok().filter(|&port| port != 0).ok_or_else(usual)?
        }
        _ => return Err(usual()),
    };
    Ok(format!("{host}:{port}"))
}

impl AddressForm {
    fn example_port(&self) -> &'static str {
        self.example.rsplit_once(':').map_or("", |(_, port)| port)
    }
}

/// Parses the part in brackets: an IPv6 address, which may have a zone after `%` or after `%25`, its form in URIs.
fn ipv6(text: &str) -> Option<String> {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    let address: Ipv6Addr = address.parse().ok()?;
    let Some(zone) = zone else { return Some(address.to_string()) };
    let zone = zone.strip_prefix("25").filter(|zone| !zone.is_empty()).unwrap_or(zone);
    let is_zone = !zone.is_empty() && zone.chars().all(|c| c.is_ascii_alphanumeric() || "-._~".contains(c));
    is_zone.then(|| format!("{address}%{zone}"))
}

/// Checks a host name or an IPv4 address. The error says what is allowed, or nothing if the usual text does.
///
/// Resolvers read `127.1` and `0x7f000001` as addresses too, so that one server would have many spellings.
fn named(text: &str) -> std::result::Result<String, Option<&'static str>> {
    let host = decode("store address", text).map_err(|_| None)?.to_lowercase();
    let legal = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if host.is_empty() || host.starts_with('.') || !host.chars().all(legal) {
        return Err(None);
    }
    let labels = host.strip_suffix('.').unwrap_or(&host);
    let last = labels.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    match labels.parse::<Ipv4Addr>() {
        Ok(address) => Ok(address.to_string()),
        Err(_) if is_number => {
            Err(Some("an IPv4 address of four decimal numbers, such as 10.0.0.7, or a host name"))
        }
        Err(_) => Ok(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HBASE: AddressForm = AddressForm { port: None, several: true, example: "master:16000" };
    const AEROSPIKE: AddressForm = AddressForm { port: Some(3000), several: true, example: "host:3000" };

    #[test]
    fn every_spelling_of_a_server_is_one() {
        for (text, one) in [
            ("Master.Example.org:16000", "master.example.org:16000"),
            ("%6Daster:016000", "master:16000"),
            ("a:1,B:2,A:1,a:01", "a:1,b:2"),
            ("127.0.0.1.:1", "127.0.0.1:1"),
            ("[::1]:1,[0:0:0:0:0:0:0:1]:1,[0::0001]:1", "[::1]:1"),
            ("[FE80::1%25eth0]:1,[fe80::1%eth0]:1", "[fe80::1%eth0]:1"),
            ("a_b-1.x:1", "a_b-1.x:1"),
        ] {
            assert_eq!(servers(text, &HBASE).unwrap(), one);
            assert_eq!(servers(one, &HBASE).unwrap(), one);
        }
        assert_eq!(servers("h,H:3000,[::1],h:4000", &AEROSPIKE).unwrap(), "h:3000,[::1]:3000,h:4000");
    }

    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    #[test]
    fn the_text_for_messages_depends_on_neither_order_nor_dots() {
        let text = |given| described(&servers(given, &HBASE).unwrap());
        assert_eq!(text("b.org.:2,a.org:1"), "a.org:1,b.org:2");
        assert_eq!(text("a.org:1,b.org:2,b.org.:2"), "a.org:1,b.org:2");
        // The resolver receives the dot.
        assert_eq!(servers("b.org.:2", &HBASE).unwrap(), "b.org.:2");
    }

    #[test]
    fn what_has_another_spelling_is_refused_with_it() {
        for (text, told) in [
            ("127.1:1", "four decimal numbers"),
            ("0x7f000001:1", "four decimal numbers"),
            ("127.0.0.01:1", "four decimal numbers"),
            ("::1:16000", "in brackets, such as [::1]:16000"),
            ("fe80::2:1", "in brackets"),
            ("host", "host:port, such as master:16000"),
            ("host:", "host:port"),
            ("host:+1", "host:port"),
            ("host:0", "host:port"),
            ("host:99999", "host:port"),
            ("[::1", "host:port"),
            ("[::1]x:1", "host:port"),
            ("[host]:1", "host:port"),
            ("[::1%]:1", "host:port"),
            ("", "host:port"),
            ("a:1,,b:2", "host:port"),
            ("a:1;b:2", "commas between"),
            ("a b:1", "host:port"),
            ("%zz:1", "host:port"),
            (".a:1", "host:port"),
        ] {
            let error = servers(text, &HBASE).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        let error = servers("me:hunter2@a:1", &HBASE).unwrap_err().to_string();
        assert!(error.contains("option user") && !error.contains("hunter2"), "{error}");
    }
}

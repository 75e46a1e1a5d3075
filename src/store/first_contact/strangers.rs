//! Finds out which server answers at an address, from the first bytes of its answer to requests of several protocols. None of
//! them changes anything at a server that understands it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::names::text::quoted;
use crate::runtime::process::name_lookup::addresses_of;
use crate::runtime::time::{Deadline, Moment};
use crate::store::deadline_socket::DeadlineSocket;

/// What the store expects at its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Service {
    #[cfg(feature = "hbase")]
    HbaseMaster,
    #[cfg(feature = "gateway")]
    Thrift1,
    #[cfg(feature = "aerospike")]
    Aerospike,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "hbase")]
            Service::HbaseMaster => "HBase master",
            #[cfg(feature = "gateway")]
            Service::Thrift1 => "Thrift1 gateway of HBase",
            #[cfg(feature = "aerospike")]
            Service::Aerospike => "Aerospike node",
        }
    }

    fn port(self) -> &'static str {
        match self {
            #[cfg(feature = "hbase")]
            Service::HbaseMaster => "the RPC ports of the HBase masters, 16000 by default",
            #[cfg(feature = "gateway")]
            Service::Thrift1 => "the port of a Thrift1 gateway, 9090 by default",
            #[cfg(feature = "aerospike")]
            Service::Aerospike => "the service ports of Aerospike nodes, 3000 by default",
        }
    }

    /// Returns whether this answer may be one of the store's own servers.
    fn may_be(self, answer: &[u8]) -> bool {
        match self {
            #[cfg(feature = "hbase")]
            Service::HbaseMaster => is_hbase(answer),
            #[cfg(feature = "gateway")]
            Service::Thrift1 => answer.starts_with(&THRIFT),
            #[cfg(feature = "aerospike")]
            Service::Aerospike => is_aerospike(answer),
        }
    }
}

/// An address of the store's URI.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) host: String,
    pub(super) port: u16,
}

/// What is at an address. The later one counts if a host has several.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum AtPeer {
    NoHost(String),
    Refused,
    NoRoute(String),
    Silent,
    /// It says nothing now. This one answered the last time.
    SilentNow(String),
    Closes,
    Stranger(String),
    /// Perhaps the store.
    Store,
}

/// What is at the addresses of a store.
#[derive(Debug, Clone, Default)]
pub(super) struct Survey {
    found: Vec<(String, AtPeer)>,
}

impl Survey {
    /// Looks at each address, until `by` at most. A name look-up may take longer.
    pub(super) fn of(peers: &[Peer], service: Service, is_secure: bool, by: Deadline) -> Survey {
        let mut found = Vec::with_capacity(peers.len());
        for (at, peer) in peers.iter().enumerate() {
            let share = by.remaining() / (peers.len() - at) as u32;
            let by = by.sooner(Deadline::after(share));
            let shown = if peer.host.contains(':') {
                format!("[{}]:{}", peer.host, peer.port)
            } else {
                format!("{}:{}", peer.host, peer.port)
            };
            found.push((shown, peer.probe(service, is_secure, by)));
        }
        Survey { found }
    }

    /// Returns this survey, with who answered before at the addresses that say nothing now. A busy machine is silent for a
    /// while. But the store may have come in place of a stranger, so it is not taken for one.
    pub(super) fn after(mut self, before: &Survey) -> Survey {
        for (now, (_, was)) in self.found.iter_mut().map(|(_, found)| found).zip(&before.found) {
            if let (AtPeer::Silent, AtPeer::Stranger(who) | AtPeer::SilentNow(who)) = (&now, was) {
                *now = AtPeer::SilentNow(who.clone());
            }
        }
        self
    }

    /// Returns whether no address can be one of the store now, so that trying again is of no use.
    pub(super) fn is_final(&self) -> bool {
        self.found
            .iter()
            .all(|(_, found)| matches!(found, AtPeer::NoHost(_) | AtPeer::Refused | AtPeer::Stranger(_)))
    }

    /// Returns whether there are servers that say nothing, and no others.
    pub(super) fn is_silent(&self) -> bool {
        self.found.iter().all(|(_, found)| matches!(found, AtPeer::Silent | AtPeer::SilentNow(_)))
    }

    pub(super) fn may_be_the_store(&self) -> bool {
        self.found.iter().any(|(_, found)| *found == AtPeer::Store)
    }

    /// Returns what an error says about it. `None` if the store may be there.
    pub(super) fn text(&self, service: Service) -> Option<String> {
        if self.found.is_empty() || self.may_be_the_store() {
            return None;
        }
        let said = self.found.iter().map(|(peer, found)| match found {
            AtPeer::NoHost(why) => format!("the host of {peer} is not known ({why})"),
            AtPeer::Refused => format!("nothing listens at {peer} (connection refused)"),
            AtPeer::NoRoute(why) => format!("{peer} cannot be reached ({why})"),
            AtPeer::Silent => format!("{peer} accepts connections and answers nothing"),
            AtPeer::Closes => format!("{peer} closes connections without an answer"),
            AtPeer::Stranger(who) | AtPeer::SilentNow(who) => {
                format!("{who} answers at {peer}, and no {}", service.name())
            }
            AtPeer::Store => String::new(),
        });
        let said = said.collect::<Vec<_>>().join("; ");
        Some(format!("{said}; the URI needs {}", service.port()))
    }
}

/// Whether the resolver said that there is no such host, and not that it cannot say. Only the text tells.
fn is_unknown_host(error: &std::io::Error) -> bool {
    let text = error.to_string();
    ["not known", "No address associated", "does not resolve", "nodename nor servname"]
        .iter()
        .any(|it| text.contains(it))
}

impl Peer {
    fn probe(&self, service: Service, is_secure: bool, by: Deadline) -> AtPeer {
        let addresses = match addresses_of((self.host.as_str(), self.port)) {
            Ok(addresses) => addresses,
            Err(error) if is_unknown_host(&error) => return AtPeer::NoHost(said(&error)),
            // The resolver does not answer, or this process has no descriptor left.
            Err(error) => return AtPeer::NoRoute(said(&error)),
        };
        let found = addresses.iter().enumerate().map(|(at, address)| {
            let share = by.remaining() / (addresses.len() - at) as u32;
            probe(address, service, is_secure, by.sooner(Deadline::after(share)))
        });
        found.max().unwrap_or(AtPeer::NoHost("it has no address".into()))
    }
}

/// What is sent, each over a connection of its own. A server that speaks first does so on any of them.
const REQUESTS: [&[u8]; 3] = [
    // HTTP servers and Redis answer it, and HBase's RPC says which beginning it expects.
    b"GET / HTTP/1.0\r\n\r\n",
    // Aerospike's info protocol: version 2, type 1, a length of six bytes, and the question.
    b"\x02\x01\x00\x00\x00\x00\x00\x06build\n",
    // A call of getThriftServerType without arguments in Thrift's strict binary encoding.
    b"\x80\x01\x00\x01\x00\x00\x00\x13getThriftServerType\x00\x00\x00\x01\x00",
];

/// First bytes of a message in Thrift's strict binary encoding.
const THRIFT: [u8; 3] = [0x80, 0x01, 0x00];

fn probe(address: &SocketAddr, service: Service, is_secure: bool, by: Deadline) -> AtPeer {
    let mut sockets = Vec::with_capacity(REQUESTS.len());
    let mut best = AtPeer::Silent;
    for request in REQUESTS {
        match DeadlineSocket::connect(address, by) {
            Ok(socket) => {
                // A server that has closed the connection may have said why.
                let _ = socket.write_all(request, by);
                sockets.push(socket);
            }
            Err(error) if !sockets.is_empty() => {
                // It accepts few connections. The first one has its request.
                log::debug!("{address}: {error}");
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return AtPeer::Refused,
            Err(error) => return AtPeer::NoRoute(said(&error)),
        }
    }
    for (at, socket) in sockets.iter().enumerate() {
        let share = by.remaining() / (sockets.len() - at) as u32;
        let mut answer = [0; 512];
        let found = match receive(socket, &mut answer, by.sooner(Deadline::after(share))) {
            Ok(count) => named(&answer[..count], service, is_secure),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => AtPeer::Silent,
            Err(_) => AtPeer::Closes,
        };
        best = best.max(found);
        if matches!(best, AtPeer::Stranger(_) | AtPeer::Store) {
            break;
        }
    }
    best
}

/// Receives the beginning of an answer. A short one is given a moment to go on.
fn receive(socket: &DeadlineSocket, answer: &mut [u8], by: Deadline) -> io::Result<usize> {
    const MOMENT: Duration = Duration::from_millis(20);
    let mut count = socket.read_some(answer, by)?;
    let end = Deadline::at(Moment::now().after(MOMENT)).sooner(by);
    while count < 16 {
        match socket.read_some(&mut answer[count..], end) {
            Ok(more) => count += more,
            Err(_) => break,
        }
    }
    Ok(count)
}

fn named(answer: &[u8], service: Service, is_secure: bool) -> AtPeer {
    if service.may_be(answer) {
        return AtPeer::Store;
    }
    let starts = |with: &str| answer.starts_with(with.as_bytes());
    let is_tls = answer.starts_with(&[0x15, 0x03]);
    if is_tls && is_secure {
        return AtPeer::Store;
    }
    let who = if starts("HTTP/") {
        "an HTTP server".into()
    } else if ["-ERR", "-NOAUTH", "-DENIED", "-NOPERM", "-LOADING", "-MISCONF"].into_iter().any(starts) {
        "Redis".into()
    } else if is_hbase(answer) {
        "an HBase server (a master or a RegionServer)".into()
    } else if answer.starts_with(&THRIFT) {
        "a Thrift server".into()
    } else if is_aerospike(answer) {
        "an Aerospike node".into()
    } else if is_tls {
        "a server that requires TLS (tls=on if it is the right one)".into()
    } else if starts("SSH-") {
        "an SSH server".into()
    } else if starts("220") {
        "a mail or FTP server".into()
    } else if starts("ERROR") {
        "memcached".into()
    } else {
        let first = String::from_utf8_lossy(&answer[..answer.len().min(16)]).into_owned();
        format!("a server of another kind, whose answer begins with {},", quoted(&first))
    };
    AtPeer::Stranger(who)
}

/// HBase's RPC answers a strange beginning with the name of an exception.
fn is_hbase(answer: &[u8]) -> bool {
    answer.windows(24).any(|part| part == b"org.apache.hadoop.hbase.")
}

fn is_aerospike(answer: &[u8]) -> bool {
    answer.starts_with(&[2, 1, 0, 0]) || answer.starts_with(&[2, 3, 0, 0])
}

fn said(error: &io::Error) -> String {
    error.to_string().replace("failed to lookup address information: ", "")
}

#[cfg(all(test, feature = "aerospike"))]
mod tests {
    use super::*;

    /// What glibc, musl and the BSDs say.
    #[test]
    fn a_name_service_that_does_not_answer_is_no_unknown_host() {
        let is_unknown = |text: &str| is_unknown_host(&io::Error::other(text));
        for text in [
            "failed to lookup address information: Name or service not known",
            "failed to lookup address information: No address associated with hostname",
            "failed to lookup address information: Name does not resolve",
            "failed to lookup address information: nodename nor servname provided, or not known",
        ] {
            assert!(is_unknown(text), "{text}");
        }
        for text in [
            "failed to lookup address information: Temporary failure in name resolution",
            "failed to lookup address information: Try again",
            "Too many open files (os error 24)",
        ] {
            assert!(!is_unknown(text), "{text}");
        }
    }

    #[test]
    fn servers_are_known_by_their_first_bytes() {
        let name = |answer: &[u8]| match named(answer, Service::Aerospike, false) {
            AtPeer::Stranger(who) => who,
            found => format!("{found:?}"),
        };
        assert_eq!(name(b"HTTP/1.1 400 Bad Request\r\n"), "an HTTP server");
        assert_eq!(name(b"-ERR wrong number of arguments for 'get' command\r\n"), "Redis");
        assert_eq!(name(b"SSH-2.0-OpenSSH_9.2p1\r\n"), "an SSH server");
        assert_eq!(name(b"\x80\x01\x00\x02\x00\x00"), "a Thrift server");
        assert_eq!(name(b"\x02\x01\x00\x00\x00\x00\x00\x0ebuild\t8.1"), "Store");
        assert_eq!(
            name(b"\x15\x03\x03\x00\x02\x02"),
            "a server that requires TLS (tls=on if it is the right one)"
        );
        let hbase = b"\x00\x00\x00\x63\x61\x08\xff org.apache.hadoop.hbase.ipc.FatalConnectionException";
        assert_eq!(name(hbase), "an HBase server (a master or a RegionServer)");
        let hostile = name(b"\x1b[31m\nroot\xff");
        assert!(!hostile.contains(['\n', '\x1b']), "{hostile}");
        assert_eq!(named(b"\x15\x03\x03", Service::Aerospike, true), AtPeer::Store);
    }

    fn survey(all: &[AtPeer]) -> Survey {
        Survey { found: all.iter().map(|found| ("h:1".to_owned(), found.clone())).collect() }
    }

    /// Programs that were tried against strangers on a busy machine said that nobody answers there.
    #[test]
    fn a_stranger_that_is_silent_for_a_while_is_named_until_somebody_answers() {
        let stranger = AtPeer::Stranger("Redis".into());
        let before = survey(&[stranger.clone(), stranger.clone(), AtPeer::Closes]);
        let now = survey(&[AtPeer::Silent, AtPeer::Refused, AtPeer::Silent]).after(&before);
        let now = survey(&[AtPeer::Silent, AtPeer::Refused, AtPeer::Silent]).after(&now);
        assert!(!now.is_final(), "the store may have come in its place");
        assert!(now.text(Service::Aerospike).unwrap().contains("Redis answers at h:1"));
        let found: Vec<_> = now.found.into_iter().map(|(_, found)| found).collect();
        assert_eq!(found, [AtPeer::SilentNow("Redis".into()), AtPeer::Refused, AtPeer::Silent]);
        assert!(survey(&[AtPeer::Store]).after(&before).may_be_the_store());
    }

    #[test]
    fn one_address_that_may_be_the_store_is_enough_to_go_on() {
        let stranger = AtPeer::Stranger("Redis".into());
        let gone = survey(&[AtPeer::Refused, stranger.clone(), AtPeer::NoHost("unknown".into())]);
        assert!(gone.is_final());
        let said = gone.text(Service::Aerospike).unwrap();
        assert!(said.contains("nothing listens at h:1") && said.contains("Redis answers at h:1"), "{said}");
        for other in [AtPeer::Silent, AtPeer::Closes, AtPeer::NoRoute("no route".into()), AtPeer::Store] {
            assert!(!survey(&[AtPeer::Refused, other]).is_final());
        }
        assert_eq!(survey(&[stranger, AtPeer::Store]).text(Service::Aerospike), None);
    }
}

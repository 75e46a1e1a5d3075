//! Where a process receives notices, and how others learn that: a holder in its record, a waiter at its latch.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Address of a process that receives notices. See `wait/notices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoticeEndpoint {
    /// A UDP address.
    Udp(SocketAddr),
    /// A datagram socket in the directory of an embedded store, by the number in its name.
    Local(u64),
}

const UDP_V4: u8 = 1;
const UDP_V6: u8 = 2;
const LOCAL: u8 = 3;

impl NoticeEndpoint {
    /// Appends `kind:u8`, then `ip:[u8; 4] port:u16`, `ip:[u8; 16] port:u16` or `number:u64`.
    pub(crate) fn encode_into(self, out: &mut Vec<u8>) {
        match self {
            NoticeEndpoint::Udp(address) => {
                match address.ip() {
                    IpAddr::V4(ip) => {
                        out.push(UDP_V4);
                        out.extend_from_slice(&ip.octets());
                    }
                    IpAddr::V6(ip) => {
                        out.push(UDP_V6);
                        out.extend_from_slice(&ip.octets());
                    }
                }
                out.extend_from_slice(&address.port().to_be_bytes());
            }
            NoticeEndpoint::Local(number) => {
                out.push(LOCAL);
                out.extend_from_slice(&number.to_be_bytes());
            }
        }
    }

    /// Reads what [`encode_into`](NoticeEndpoint::encode_into) wrote, and returns it with the bytes after it.
    pub(crate) fn split(bytes: &[u8]) -> Option<(NoticeEndpoint, &[u8])> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            UDP_V4 => {
                let (ip, rest) = rest.split_first_chunk::<4>()?;
                let (port, rest) = rest.split_first_chunk::<2>()?;
                Some((udp(Ipv4Addr::from(*ip).into(), *port), rest))
            }
            UDP_V6 => {
                let (ip, rest) = rest.split_first_chunk::<16>()?;
                let (port, rest) = rest.split_first_chunk::<2>()?;
                Some((udp(Ipv6Addr::from(*ip).into(), *port), rest))
            }
            LOCAL => {
                let (number, rest) = rest.split_first_chunk::<8>()?;
                Some((NoticeEndpoint::Local(u64::from_be_bytes(*number)), rest))
            }
            _ => None,
        }
    }
}

/// `10.0.0.7:4242`, or the name of the socket in the directory of the store.
impl fmt::Display for NoticeEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoticeEndpoint::Udp(address) => write!(f, "{address}"),
            NoticeEndpoint::Local(number) => write!(f, "notices-{number:016x}"),
        }
    }
}

fn udp(ip: IpAddr, port: [u8; 2]) -> NoticeEndpoint {
    NoticeEndpoint::Udp(SocketAddr::new(ip, u16::from_be_bytes(port)))
}

/// Where the holder of one grant receives notices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GrantEndpoint {
    /// The address of its process.
    pub endpoint: NoticeEndpoint,
    /// Random bits that were drawn for this grant. Whoever quotes them has read the record.
    pub grant: u64,
}

/// Marks the bytes of a [`GrantEndpoint`] in a record.
const MARK: u8 = b'N';

impl GrantEndpoint {
    /// Appends `'N' grant:u64 endpoint`. Part of the records of all stores, after the identity.
    pub(crate) fn encode_into(self, out: &mut Vec<u8>) {
        out.push(MARK);
        out.extend_from_slice(&self.grant.to_be_bytes());
        self.endpoint.encode_into(out);
    }

    /// Reads what [`encode_into`](GrantEndpoint::encode_into) wrote, and returns it with the bytes after it. `None` for
    /// anything else, such as a record of an earlier version.
    pub(crate) fn split(bytes: &[u8]) -> Option<(GrantEndpoint, &[u8])> {
        let (grant, rest) = bytes.strip_prefix(&[MARK])?.split_first_chunk::<8>()?;
        let (endpoint, rest) = NoticeEndpoint::split(rest)?;
        Some((GrantEndpoint { endpoint, grant: u64::from_be_bytes(*grant) }, rest))
    }
}

/// Omits the random bits.
impl fmt::Debug for GrantEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantEndpoint").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// A process that waits for a latch and wants a notice when it opens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LatchListener {
    /// The address of the process.
    pub endpoint: NoticeEndpoint,
    /// Random bits that the process has drawn. A notice that does not quote them is ignored.
    pub nonce: u64,
}

/// Omits the random bits.
impl fmt::Debug for LatchListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatchListener").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_cut_bytes_are_refused() {
        for endpoint in [
            NoticeEndpoint::Udp("192.0.2.7:4711".parse().unwrap()),
            NoticeEndpoint::Udp("[2001:db8::7]:65535".parse().unwrap()),
            NoticeEndpoint::Local(0x0123_4567_89ab_cdef),
        ] {
            let grant = GrantEndpoint { endpoint, grant: u64::MAX - 1 };
            let mut bytes = Vec::new();
            grant.encode_into(&mut bytes);
            for cut in 0..bytes.len() {
                assert_eq!(GrantEndpoint::split(&bytes[..cut]), None, "{endpoint:?} cut at {cut}");
            }
            bytes.push(7);
            assert_eq!(GrantEndpoint::split(&bytes), Some((grant, &[7][..])));
            assert!(!format!("{grant:?}").contains(&(u64::MAX - 1).to_string()));
        }
        assert_eq!(NoticeEndpoint::split(&[9; 20]), None);
    }
}

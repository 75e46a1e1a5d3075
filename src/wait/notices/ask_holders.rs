//! Asks the holders of locks who waits for them, for an operator's tool. It has sockets of its own for the question, so it
//! needs no notices: only the holders do.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::datagram::{BYTES_MAX, Datagram};
use super::socket::NoticeSocket;
use crate::notice_endpoint::{GrantEndpoint, NoticeEndpoint};
use crate::random;
use crate::sync::HashMap;
use crate::time::Moment;
use crate::waiting_line::{WaitingLine, WaitingProcess};

/// How long to wait for answers before the question is sent again.
const ANSWERS: Duration = Duration::from_millis(50);
/// How often it is sent.
const SENDS: usize = 4;
/// How many holders are asked at once. Their answers fit into the buffer of a socket.
const AT_ONCE: usize = 64;

/// The sockets of the question, one for each kind of address.
struct Sockets<'a> {
    /// Of the store, for holders with a local socket.
    directory: Option<&'a Path>,
    open: [Option<NoticeSocket>; 3],
}

/// Asks the holders of these grants, and returns their answers in the same order. `None` if one does not answer within
/// 200 ms, or does not hold the lock any more. `directory` is the store's.
pub(crate) fn ask_holders(
    holders: &[Option<GrantEndpoint>],
    directory: Option<&Path>,
) -> Vec<Option<WaitingLine>> {
    let mut sockets = Sockets { directory, open: [None, None, None] };
    let answers = holders.chunks(AT_ONCE).flat_map(|some| sockets.ask(some)).collect();
    sockets.remove();
    answers
}

impl Sockets<'_> {
    fn ask(&mut self, holders: &[Option<GrantEndpoint>]) -> Vec<Option<WaitingLine>> {
        let mut answers = vec![None; holders.len()];
        // By the nonce of the question.
        let mut open: HashMap<u64, (usize, GrantEndpoint)> = HashMap::default();
        for (at, holder) in holders.iter().enumerate() {
            if let (Some(holder), Ok(nonce)) = (holder, random::secret_number()) {
                open.insert(nonce, (at, *holder));
            }
        }
        for _ in 0..SENDS {
            for (&nonce, (_, GrantEndpoint { endpoint, grant })) in &open {
                let question = Datagram::WhoWaits { key: *grant, nonce };
                // A holder that cannot be reached does not answer.
                let _ = self.to(*endpoint).and_then(|socket| socket.send(*endpoint, &question.encode()));
            }
            let until = Moment::now().after(ANSWERS);
            while !open.is_empty() && Moment::now() < until {
                for (from, datagram) in self.received(until) {
                    let (nonce, line) = match datagram {
                        Datagram::NotHere { nonce } => (nonce, None),
                        Datagram::Waiting { nonce, threads, waited, entries } => {
                            let processes = entries.iter().map(|entry| WaitingProcess {
                                endpoint: entry.endpoint,
                                waited: entry.waited,
                            });
                            let processes = processes.collect();
                            (nonce, Some(WaitingLine { threads, threads_waited: waited, processes }))
                        }
                        _ => continue,
                    };
                    if open.get(&nonce).is_some_and(|(_, holder)| holder.endpoint == from) {
                        let (at, _) = open.remove(&nonce).expect("it is there");
                        answers[at] = line;
                    }
                }
            }
            if open.is_empty() {
                break;
            }
        }
        answers
    }

    /// Returns the socket that reaches an endpoint. Opens it if it is the first of its kind.
    fn to(&mut self, endpoint: NoticeEndpoint) -> io::Result<&NoticeSocket> {
        let any = |ip: IpAddr| NoticeSocket::udp(SocketAddr::new(ip, 0));
        let (at, ip) = match endpoint {
            NoticeEndpoint::Udp(SocketAddr::V4(_)) => (0, Some(Ipv4Addr::UNSPECIFIED.into())),
            NoticeEndpoint::Udp(SocketAddr::V6(_)) => (1, Some(Ipv6Addr::UNSPECIFIED.into())),
            NoticeEndpoint::Local(_) => (2, None),
        };
        if self.open[at].is_none() {
            let (socket, _) = match (ip, self.directory) {
                (Some(ip), _) => any(ip)?,
                (None, Some(directory)) => {
                    let number = random::secret_number().map_err(io::Error::other)?;
                    NoticeSocket::local(directory, number)?
                }
                (None, None) => return Err(io::ErrorKind::AddrNotAvailable.into()),
            };
            self.open[at] = Some(socket);
        }
        self.open[at].as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Returns what has arrived, and waits for it until this moment.
    fn received(&self, until: Moment) -> Vec<(NoticeEndpoint, Datagram)> {
        let open: Vec<_> = self.open.iter().flatten().collect();
        let mut fds: Vec<_> = open.iter().map(|socket| PollFd::new(*socket, PollFlags::IN)).collect();
        let left = until.since(Moment::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // An interrupted or failed call ends this round early.
        let _ = poll(&mut fds, Some(&timeout));
        let (mut bytes, mut all) = ([0; BYTES_MAX], Vec::new());
        for socket in open {
            for _ in 0..AT_ONCE {
                let Ok(Some((len, from))) = socket.receive(&mut bytes) else { break };
                let datagram = from.and_then(|from| Some((from, Datagram::decode(&bytes[..len])?)));
                all.extend(datagram);
            }
        }
        all
    }

    fn remove(&self) {
        self.open.iter().flatten().for_each(NoticeSocket::remove);
    }
}

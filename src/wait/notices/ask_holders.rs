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
use crate::names::notice_endpoint::{GrantEndpoint, NoticeEndpoint};
use crate::names::waiters::{Waiters, WaitingProcess};
use crate::runtime::random;
use crate::runtime::time::Moment;

/// How many holders are asked at once. Their answers fit into the buffer of a UDP socket.
const AT_ONCE: usize = 64;
/// How long they have to answer.
const PATIENCE: Duration = Duration::from_millis(200);
/// After this time without an answer a question is sent again.
const AGAIN: Duration = Duration::from_millis(50);
/// Kinds of addresses: UDP over IPv4, UDP over IPv6, local. Each has a socket.
const KINDS: usize = 3;
const LOCAL: usize = 2;
/// How many questions of a kind are under way at once. Linux keeps 10 datagrams for a local socket that does not read them
/// (`net.unix.max_dgram_qlen`), and drops no others: whoever sends one more gets an error.
const UNDER_WAY: [usize; KINDS] = [AT_ONCE, AT_ONCE, 8];

/// The sockets of the questions.
struct Sockets<'a> {
    /// Of the store, for holders with a local socket.
    directory: Option<&'a Path>,
    open: [Option<NoticeSocket>; KINDS],
}

/// A question that is not answered.
struct HolderQuestion {
    /// The place of its answer.
    at: usize,
    holder: GrantEndpoint,
    nonce: u64,
    /// When it is sent next.
    due: Moment,
}

/// Asks the holders of these grants, and returns their answers in the same order. `None` if one does not answer within
/// 200 ms, or does not hold the lock any more. `directory` is the store's.
pub(crate) fn ask_holders(
    holders: &[Option<GrantEndpoint>],
    directory: Option<&Path>,
) -> Vec<Option<Waiters>> {
    let mut sockets = Sockets { directory, open: [const { None }; KINDS] };
    let answers = holders.chunks(AT_ONCE).flat_map(|some| sockets.ask(some)).collect();
    sockets.remove();
    answers
}

impl Sockets<'_> {
    fn ask(&mut self, holders: &[Option<GrantEndpoint>]) -> Vec<Option<Waiters>> {
        let mut answers = vec![None; holders.len()];
        let question = |(at, holder): (usize, &Option<GrantEndpoint>)| {
            let (holder, nonce) = ((*holder)?, random::secret_number().ok()?);
            Some(HolderQuestion { at, holder, nonce, due: Moment::OVER })
        };
        let mut open: Vec<_> = holders.iter().enumerate().filter_map(question).collect();
        let end = Moment::now().after(PATIENCE);
        loop {
            let now = Moment::now();
            self.send_due(&mut open, now);
            if open.is_empty() || now >= end {
                return answers;
            }
            let next = open.iter().map(|question| question.due).filter(|due| *due > now).min();
            for (from, datagram) in self.received(next.unwrap_or(end).min(end)) {
                let (nonce, waiters) = match datagram {
                    Datagram::NotHere { nonce } => (nonce, None),
                    Datagram::Waiting { nonce, threads, waited, entries } => {
                        let processes = entries
                            .iter()
                            .map(|entry| WaitingProcess { endpoint: entry.endpoint, waited: entry.waited });
                        let processes = processes.collect();
                        (nonce, Some(Waiters { threads, threads_waited: waited, processes }))
                    }
                    _ => continue,
                };
                let is_answered = |it: &HolderQuestion| it.nonce == nonce && it.holder.endpoint == from;
                if let Some(index) = open.iter().position(is_answered) {
                    answers[open.swap_remove(index).at] = waiters;
                }
            }
        }
    }

    /// Sends the questions that are due, those first that were sent least recently. Removes those that cannot be sent.
    fn send_due(&mut self, open: &mut Vec<HolderQuestion>, now: Moment) {
        let mut under_way = [0; KINDS];
        for question in open.iter().filter(|question| question.due > now) {
            under_way[kind(question.holder.endpoint)] += 1;
        }
        open.sort_by_key(|question| question.due);
        open.retain_mut(|question| {
            let GrantEndpoint { endpoint, grant } = question.holder;
            let kind = kind(endpoint);
            if question.due > now || under_way[kind] == UNDER_WAY[kind] {
                return true;
            }
            under_way[kind] += 1;
            question.due = now.after(AGAIN);
            let bytes = Datagram::WhoWaits { key: grant, nonce: question.nonce }.encode();
            let sent = self.to(endpoint).and_then(|socket| socket.send(endpoint, &bytes));
            // A UDP socket may report an error of an earlier datagram, to another holder.
            sent.is_ok()
                || kind != LOCAL
                || sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        });
    }

    /// Returns the socket that reaches an endpoint. Opens it if it is the first of its kind.
    fn to(&mut self, endpoint: NoticeEndpoint) -> io::Result<&NoticeSocket> {
        let socket = &mut self.open[kind(endpoint)];
        if socket.is_none() {
            let any = |ip: IpAddr| NoticeSocket::udp(SocketAddr::new(ip, 0));
            let (opened, _) = match (endpoint, self.directory) {
                (NoticeEndpoint::Udp(SocketAddr::V4(_)), _) => any(Ipv4Addr::UNSPECIFIED.into())?,
                (NoticeEndpoint::Udp(SocketAddr::V6(_)), _) => any(Ipv6Addr::UNSPECIFIED.into())?,
                (NoticeEndpoint::Local(_), Some(directory)) => {
                    NoticeSocket::local(directory, random::secret_number().map_err(io::Error::other)?)?
                }
                (NoticeEndpoint::Local(_), None) => return Err(io::ErrorKind::AddrNotAvailable.into()),
            };
            *socket = Some(opened);
        }
        socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
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

fn kind(endpoint: NoticeEndpoint) -> usize {
    match endpoint {
        NoticeEndpoint::Udp(SocketAddr::V4(_)) => 0,
        NoticeEndpoint::Udp(SocketAddr::V6(_)) => 1,
        NoticeEndpoint::Local(_) => LOCAL,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;

    use super::*;
    use crate::runtime::time::Deadline;
    use crate::testing::patience::LONG;

    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket
    }

    fn answer(nonce: u64, threads: u32) -> Vec<u8> {
        let waited = Duration::from_millis(7);
        Datagram::Waiting { nonce, threads, waited, entries: Vec::new() }.encode()
    }

    /// Asks a holder that acts for the first two questions as given, and gives the true answer to the third. Returns the
    /// number of threads that it was said to have.
    fn asked(acts: impl Fn(&UdpSocket, SocketAddr, u64) + Send + 'static) -> Option<u32> {
        let socket = socket();
        let holder = GrantEndpoint { endpoint: NoticeEndpoint::Udp(socket.local_addr().unwrap()), grant: 5 };
        let holds = move || {
            let mut bytes = [0; BYTES_MAX];
            for number in 0..3 {
                let (len, from) = socket.recv_from(&mut bytes).unwrap();
                let Some(Datagram::WhoWaits { key: 5, nonce }) = Datagram::decode(&bytes[..len]) else {
                    panic!("it quotes the grant")
                };
                if number == 2 {
                    socket.send_to(&answer(nonce, 3), from).unwrap();
                } else {
                    acts(&socket, from, nonce);
                }
            }
        };
        let holder_thread = thread::spawn(holds);
        let waiters = ask_holders(&[Some(holder)], None).pop().unwrap();
        // A slow machine may have given up before the third question.
        let ended = holder_thread.is_finished() || waiters.is_some();
        if ended {
            holder_thread.join().unwrap();
        }
        waiters.map(|waiters| waiters.threads)
    }

    /// A slow machine may get no answer in time. It must never get a wrong one.
    #[track_caller]
    fn only_the_true_answer_counts(acts: impl Fn(&UdpSocket, SocketAddr, u64) + Copy + Send + 'static) {
        let by = Deadline::after(LONG);
        loop {
            match asked(acts) {
                Some(threads) => return assert_eq!(threads, 3),
                None => assert!(!by.passed(), "never answered in {PATIENCE:?}"),
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn a_question_or_answer_that_is_lost_is_repeated() {
        only_the_true_answer_counts(|_, _, _| {});
    }

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn garbage_late_and_forged_answers_are_ignored() {
        only_the_true_answer_counts(|holder, from, nonce| {
            holder.send_to(b"garbage", from).unwrap();
            holder.send_to(&answer(nonce, 99)[..9], from).unwrap();
            // Of an earlier question.
            holder.send_to(&answer(nonce ^ 1, 99), from).unwrap();
            // By somebody else, who has even guessed the number.
            socket().send_to(&answer(nonce, 99), from).unwrap();
            holder.send_to(&Datagram::Opened { nonce }.encode(), from).unwrap();
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn who_does_not_answer_costs_the_patience_and_no_more() {
        let silent = socket();
        let endpoint = NoticeEndpoint::Udp(silent.local_addr().unwrap());
        let holders = vec![Some(GrantEndpoint { endpoint, grant: 5 }); 2 * AT_ONCE];
        let began = Moment::now();
        assert!(ask_holders(&holders, None).iter().all(Option::is_none));
        let took = Moment::now().since(began);
        assert!(took >= 2 * PATIENCE && took < LONG, "{took:?}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn a_holder_that_is_gone_is_not_waited_for_in_the_directory_of_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let gone = GrantEndpoint { endpoint: NoticeEndpoint::Local(7), grant: 5 };
        let mut open = vec![HolderQuestion { at: 0, holder: gone, nonce: 1, due: Moment::OVER }];
        let mut sockets = Sockets { directory: Some(directory.path()), open: [const { None }; KINDS] };
        sockets.send_due(&mut open, Moment::now());
        assert!(open.is_empty());
        sockets.remove();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the socket is still there");
    }

    #[test]
    #[cfg_attr(miri, ignore = "no sockets there")]
    fn a_local_socket_gets_no_more_questions_at_once_than_it_keeps() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, endpoint) = NoticeSocket::local(directory.path(), 7).unwrap();
        let holder = GrantEndpoint { endpoint, grant: 5 };
        let mut open: Vec<_> =
            (0..20).map(|at| HolderQuestion { at, holder, nonce: at as u64, due: Moment::OVER }).collect();
        let mut sockets = Sockets { directory: Some(directory.path()), open: [const { None }; KINDS] };
        let now = Moment::now();
        let received = || {
            let mut bytes = [0; BYTES_MAX];
            let mut nonces = Vec::new();
            while let Some((len, _)) = socket.receive(&mut bytes).unwrap() {
                let Some(Datagram::WhoWaits { nonce, .. }) = Datagram::decode(&bytes[..len]) else {
                    panic!()
                };
                nonces.push(nonce);
            }
            nonces
        };
        sockets.send_due(&mut open, now);
        assert_eq!(received(), (0..8).collect::<Vec<_>>());
        sockets.send_due(&mut open, now);
        assert_eq!(received(), [0; 0], "those are under way");
        // Without answers, the others have their turn.
        sockets.send_due(&mut open, now.after(AGAIN));
        assert_eq!(received(), (8..16).collect::<Vec<_>>());
        assert_eq!(open.len(), 20);
        sockets.remove();
    }
}

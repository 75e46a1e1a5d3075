//! Datagrams between processes, and those of somebody who reads all of them and may send any.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use dlm::simulation::ThreadNumber;
use fastrand::Rng;

/// Longest time of a datagram.
const LATE: Duration = Duration::from_millis(20);
/// Datagrams that wait for a process. Later ones are lost.
const WAITING_MAX: usize = 64;
/// Numbers that somebody has read in datagrams: the last ones.
const READ_MAX: usize = 32;
/// The kinds of datagrams, and one that nobody knows.
const KINDS: std::ops::RangeInclusive<u8> = 1..=13;
/// The kind that tells a waiter that its holder knows it.
const REGISTERED: u8 = 2;
/// Kinds that only a process that waits may get: registered, moved, ask, pause.
const OF_WAITERS: [u8; 4] = [2, 3, 5, 8];

/// What happens to datagrams.
#[derive(Debug, Clone, Copy, Default)]
pub struct Datagrams {
    /// Of a hundred datagrams, so many are lost, and as many come twice.
    pub lost: u8,
    /// Somebody reads them, and forges one for every few: with any address, with the numbers that others have quoted, and
    /// with any number that is a time or a count.
    pub forged: bool,
}

/// An address that no process has.
pub(crate) fn foreign() -> SocketAddr {
    ([10, 9, 9, 9], 9).into()
}

#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) datagrams: Datagrams,
    boxes: HashMap<SocketAddr, Mailbox>,
    /// In order, so that one seed fixes which of them is drawn.
    addresses: Vec<SocketAddr>,
    read: VecDeque<u64>,
    delivered: u64,
    misdirected: Vec<String>,
}

#[derive(Debug, Default)]
struct Mailbox {
    waiting: VecDeque<(Vec<u8>, SocketAddr)>,
    listener: ThreadNumber,
}

#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) delay: Duration,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl Mail {
    /// Returns what arrives because a process sends a datagram.
    pub(crate) fn sent(
        &mut self,
        random: &mut Rng,
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Vec<Sent> {
        // A process that has received nothing yet may have been answered for by somebody who reads its challenge.
        let may_be_forged = self.datagrams.forged && to != foreign();
        if !self.boxes.contains_key(&to) && !may_be_forged && OF_WAITERS.contains(&bytes[5]) {
            self.misdirected.push(format!("notice of kind {} to {to}, which never answered", bytes[5]));
        }
        // Nobody reads what goes to another network.
        let numbers = bytes[6..].chunks_exact(8).take(if to == foreign() { 0 } else { 2 });
        self.read.extend(numbers.map(|number| u64::from_be_bytes(number.try_into().expect("8 bytes"))));
        while self.read.len() > READ_MAX {
            self.read.pop_front();
        }
        let mut all = Vec::new();
        let Datagrams { lost, forged } = self.datagrams;
        let copies = 1 - u8::from(random.u8(..100) < lost) + u8::from(random.u8(..100) < lost);
        for _ in 0..copies {
            let late = if random.u8(..100) < lost { LATE } else { LATE / 100 };
            let delay = Duration::from_micros(random.u64(50..late.as_micros() as u64));
            all.push(Sent { delay, from, to, bytes: bytes.to_vec() });
        }
        if forged && random.u8(..4) == 0 {
            let (from, to) = if random.bool() { (from, to) } else { (to, from) };
            let from = if random.u8(..4) == 0 { self.address(random) } else { from };
            let delay = Duration::from_micros(random.u64(50..LATE.as_micros() as u64));
            all.push(Sent { delay, from, to, bytes: self.forge(random) });
        }
        if forged && bytes[5] == REGISTERED && random.bool() {
            // As if the holder had asked the waiter to leave the lock free for 49 days.
            let bytes = [b"dlmN\x01\x08", &bytes[6..14], &u32::MAX.to_be_bytes()].concat();
            let delay = Duration::from_micros(random.u64(50..LATE.as_micros() as u64));
            all.push(Sent { delay, from, to, bytes });
        }
        all
    }

    fn address(&self, random: &mut Rng) -> SocketAddr {
        match random.usize(..self.addresses.len() + 1) {
            0 => foreign(),
            number => self.addresses[number - 1],
        }
    }

    fn forge(&self, random: &mut Rng) -> Vec<u8> {
        let number = |random: &mut Rng| match self.read.len() {
            0 => random.u64(..),
            read if random.u8(..8) > 0 => self.read[random.usize(..read)],
            _ => random.u64(..),
        };
        let time =
            |random: &mut Rng| [0, 1, random.u32(..100_000), u32::MAX][random.usize(..4)].to_be_bytes();
        let endpoint = |random: &mut Rng, out: &mut Vec<u8>| {
            let SocketAddr::V4(address) = self.address(random) else { unreachable!("all are IPv4") };
            out.push(1);
            out.extend(address.ip().octets());
            out.extend(address.port().to_be_bytes());
        };
        let kind = random.u8(KINDS);
        let mut out = b"dlmN\x01".to_vec();
        out.push(kind);
        out.extend(number(random).to_be_bytes());
        match kind {
            3 => {
                endpoint(random, &mut out);
                out.extend(number(random).to_be_bytes());
            }
            8 => out.extend(time(random)),
            _ => {
                out.extend(number(random).to_be_bytes());
                out.extend(time(random));
                let entries = random.u8(..4);
                out.push(entries);
                for _ in 0..entries {
                    endpoint(random, &mut out);
                    out.extend(number(random).to_be_bytes());
                    out.extend(time(random));
                }
            }
        }
        out
    }

    /// Returns the thread that waits for it.
    pub(crate) fn deliver(&mut self, sent: Sent) -> Option<ThreadNumber> {
        let mailbox = self.boxes.get_mut(&sent.to)?;
        if mailbox.waiting.len() == WAITING_MAX {
            return None;
        }
        self.delivered += 1;
        mailbox.waiting.push_back((sent.bytes, sent.from));
        Some(mailbox.listener)
    }

    pub(crate) fn receive(
        &mut self,
        at: SocketAddr,
        listener: ThreadNumber,
    ) -> Option<(Vec<u8>, SocketAddr)> {
        if !self.boxes.contains_key(&at) {
            self.addresses.push(at);
        }
        let mailbox = self.boxes.entry(at).or_default();
        mailbox.listener = listener;
        mailbox.waiting.pop_front()
    }

    pub(crate) fn ended(&mut self) -> (u64, Vec<String>) {
        (self.delivered, std::mem::take(&mut self.misdirected))
    }
}

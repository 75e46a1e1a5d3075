//! The datagrams between processes that wait for one lock or latch. All integers are big-endian.
//!
//! Each begins with `dlmN`, the version 1 and its kind. Bytes after the last field are ignored.
//!
//! | kind | from, to | fields | means |
//! |---|---|---|---|
//! | 1 register | waiter, holder | `key:u64 nonce:u64 waited_ms:u32 count:u8`, entries, modes and `mode:u8` | notify me when the lock is free |
//! | 2 registered | holder, waiter | `nonce:u64` | I hold the lock, or wait for readers, and shall notify you |
//! | 3 moved | earlier holder, waiter | `nonce:u64 endpoint key:u64` | that one is next: register there |
//! | 4 not here | any, waiter | `nonce:u64` | I do not hold it: look at the store |
//! | 5 ask | earlier holder, first waiter | `nonce:u64 key:u64 age_ms:u32 count:u8`, entries and modes | the lock is free, or you may hold it beside me: ask for it; these wait behind you |
//! | 6 received | first waiter, earlier holder | `key:u64` | I ask for it |
//! | 7 declined | first waiter, earlier holder | `key:u64` | I do not want it any more |
//! | 8 pause | holder, waiter | `nonce:u64 ms:u32` | nobody with notices asks for this time, so that others get a turn |
//! | 9 opened | who opened a latch, waiter | `nonce:u64` | the latch is probably open: look at the store |
//! | 10 who waits | an operator's tool, holder | `key:u64 nonce:u64` | who waits for the lock |
//! | 11 waiting | holder, an operator's tool | `nonce:u64 threads:u32 waited_ms:u32 count:u8` and entries | so many threads of mine wait, the first for so long, and these processes |
//! | 12 leave | waiter, holder | `key:u64 nonce:u64` | I do not wait any more |
//! | 13 want | who was refused and does not wait, holder | `key:u64` | if the lock only stays with you, give it back |
//!
//! A register whose key is 0 is a challenge: `not here` with its nonce shows that the process receives at this endpoint. Every
//! version answers so. Kinds that a version does not know are ignored.
//!
//! An entry is another waiting process: `endpoint nonce:u64 waited_ms:u32`. Its nonce is 0 in `waiting`: it is for the
//! holder alone. The modes are those that the entries wait for, a byte each. The highest bit of a byte says that the process was
//! told to ask before it was refused. Without modes, as earlier versions send it, all wait for an exclusive lock. `register` and
//! `who waits` are padded, so that no reply is longer than the datagram it answers.

use std::time::Duration;

use crate::names::mode::Mode;
use crate::names::notice_endpoint::NoticeEndpoint;

const MAGIC: &[u8; 4] = b"dlmN";
const VERSION: u8 = 1;
/// Longest datagram. It fits into one packet of every common network.
pub(super) const BYTES_MAX: usize = 1400;
/// Length of the longest reply to a register.
const REPLY_MAX: usize = 6 + 8 + 19 + 8;
/// Length of the longest reply to a question who waits.
const WAITING_MAX: usize = 6 + 8 + 4 + 4 + 1 + ENTRIES_MAX * (19 + 8 + 4);
/// In the byte of a mode.
const WAS_TOLD: u8 = 0x80;
/// What a challenge quotes. No grant has it.
const NO_KEY: u64 = 0;
/// Highest number of entries in one datagram, and so in the queue of one lock.
pub(super) const ENTRIES_MAX: usize = 40;

/// A waiting process in a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentEntry {
    pub(super) endpoint: NoticeEndpoint,
    pub(super) nonce: u64,
    pub(super) waited: Duration,
    pub(super) mode: Mode,
    /// Whether it was told to ask, and then refused.
    pub(super) was_told: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Datagram {
    Register { key: u64, nonce: u64, waited: Duration, mode: Mode, was_told: bool, entries: Vec<SentEntry> },
    Registered { nonce: u64 },
    Moved { nonce: u64, to: NoticeEndpoint, key: u64 },
    NotHere { nonce: u64 },
    Ask { nonce: u64, key: u64, age: Duration, entries: Vec<SentEntry> },
    Received { key: u64 },
    Declined { key: u64 },
    Pause { nonce: u64, pause: Duration },
    Opened { nonce: u64 },
    WhoWaits { key: u64, nonce: u64 },
    Waiting { nonce: u64, threads: u32, waited: Duration, entries: Vec<SentEntry> },
    Leave { key: u64, nonce: u64 },
    Challenge { nonce: u64 },
    Want { key: u64 },
}

impl Datagram {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        out.push(self.kind());
        match self {
            Datagram::Register { key, nonce, waited, mode, was_told, entries } => {
                put(&mut out, &[*key, *nonce]);
                put_entries(&mut out, *waited, entries);
                put_modes(&mut out, entries);
                out.push(mode_byte(*mode, *was_told));
                out.resize(out.len().max(REPLY_MAX), 0);
            }
            // Not padded: it is shorter than any entry that causes it.
            Datagram::Challenge { nonce } => {
                put(&mut out, &[NO_KEY, *nonce]);
                put_entries(&mut out, Duration::ZERO, &[]);
            }
            Datagram::Leave { key, nonce } => put(&mut out, &[*key, *nonce]),
            Datagram::Ask { nonce, key, age, entries } => {
                put(&mut out, &[*nonce, *key]);
                put_entries(&mut out, *age, entries);
                put_modes(&mut out, entries);
            }
            Datagram::Moved { nonce, to, key } => {
                put(&mut out, &[*nonce]);
                to.encode_into(&mut out);
                put(&mut out, &[*key]);
            }
            Datagram::Registered { nonce: number }
            | Datagram::NotHere { nonce: number }
            | Datagram::Received { key: number }
            | Datagram::Declined { key: number }
            | Datagram::Opened { nonce: number }
            | Datagram::Want { key: number } => put(&mut out, &[*number]),
            Datagram::Pause { nonce, pause } => {
                put(&mut out, &[*nonce]);
                out.extend_from_slice(&millis(*pause).to_be_bytes());
            }
            Datagram::WhoWaits { key, nonce } => {
                put(&mut out, &[*key, *nonce]);
                out.resize(WAITING_MAX, 0);
            }
            Datagram::Waiting { nonce, threads, waited, entries } => {
                put(&mut out, &[*nonce]);
                out.extend_from_slice(&threads.to_be_bytes());
                put_entries(&mut out, *waited, entries);
            }
        }
        out
    }

    /// Returns `None` for anything that is not a whole datagram of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Datagram> {
        let (&kind, rest) = bytes.strip_prefix(MAGIC)?.strip_prefix(&[VERSION])?.split_first()?;
        let (first, rest) = number(rest)?;
        Some(match kind {
            1 => {
                let (nonce, rest) = number(rest)?;
                let (waited, mut entries, rest) = entries(rest)?;
                let (mode, was_told) = take_modes(&mut entries, rest);
                match first {
                    NO_KEY => Datagram::Challenge { nonce },
                    key => Datagram::Register { key, nonce, waited, mode, was_told, entries },
                }
            }
            2 => Datagram::Registered { nonce: first },
            3 => {
                let (to, rest) = NoticeEndpoint::split(rest)?;
                Datagram::Moved { nonce: first, to, key: number(rest)?.0 }
            }
            4 => Datagram::NotHere { nonce: first },
            5 => {
                let (key, rest) = number(rest)?;
                let (age, mut entries, rest) = entries(rest)?;
                take_modes(&mut entries, rest);
                Datagram::Ask { nonce: first, key, age, entries }
            }
            6 => Datagram::Received { key: first },
            7 => Datagram::Declined { key: first },
            8 => Datagram::Pause { nonce: first, pause: duration(rest)?.0 },
            9 => Datagram::Opened { nonce: first },
            // Without its padding it may be shorter than the answer.
            10 if bytes.len() >= WAITING_MAX => Datagram::WhoWaits { key: first, nonce: number(rest)?.0 },
            11 => {
                let (threads, rest) = rest.split_first_chunk()?;
                let (waited, entries, _) = entries(rest)?;
                Datagram::Waiting { nonce: first, threads: u32::from_be_bytes(*threads), waited, entries }
            }
            12 => Datagram::Leave { key: first, nonce: number(rest)?.0 },
            13 => Datagram::Want { key: first },
            _ => return None,
        })
    }

    /// Whether it goes to a process that waits, or is said to, or to one that this process waits for.
    pub(super) fn is_of_a_wait(&self) -> bool {
        match self {
            Datagram::Register { .. }
            | Datagram::Registered { .. }
            | Datagram::Moved { .. }
            | Datagram::Ask { .. }
            | Datagram::Pause { .. }
            | Datagram::Challenge { .. } => true,
            Datagram::NotHere { .. }
            | Datagram::Received { .. }
            | Datagram::Declined { .. }
            | Datagram::Opened { .. }
            | Datagram::WhoWaits { .. }
            | Datagram::Waiting { .. }
            | Datagram::Leave { .. }
            | Datagram::Want { .. } => false,
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Datagram::Register { .. } | Datagram::Challenge { .. } => 1,
            Datagram::Registered { .. } => 2,
            Datagram::Moved { .. } => 3,
            Datagram::NotHere { .. } => 4,
            Datagram::Ask { .. } => 5,
            Datagram::Received { .. } => 6,
            Datagram::Declined { .. } => 7,
            Datagram::Pause { .. } => 8,
            Datagram::Opened { .. } => 9,
            Datagram::WhoWaits { .. } => 10,
            Datagram::Waiting { .. } => 11,
            Datagram::Leave { .. } => 12,
            Datagram::Want { .. } => 13,
        }
    }
}

fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
}

fn put_entries(out: &mut Vec<u8>, time: Duration, entries: &[SentEntry]) {
    let entries = fitting(entries);
    out.extend_from_slice(&millis(time).to_be_bytes());
    out.push(entries.len() as u8);
    for entry in entries {
        entry.endpoint.encode_into(out);
        put(out, &[entry.nonce]);
        out.extend_from_slice(&millis(entry.waited).to_be_bytes());
    }
}

fn put_modes(out: &mut Vec<u8>, entries: &[SentEntry]) {
    out.extend(fitting(entries).iter().map(|entry| mode_byte(entry.mode, entry.was_told)));
}

fn mode_byte(mode: Mode, was_told: bool) -> u8 {
    mode.code() | if was_told { WAS_TOLD } else { 0 }
}

fn fitting(entries: &[SentEntry]) -> &[SentEntry] {
    &entries[..entries.len().min(ENTRIES_MAX)]
}

/// Sets the modes of the entries, and returns the one after them.
fn take_modes(entries: &mut [SentEntry], bytes: &[u8]) -> (Mode, bool) {
    // A mode of a later version is taken for the strictest one.
    let mode = |byte: u8| Mode::from_code(byte & !WAS_TOLD).unwrap_or(Mode::Exclusive);
    let mut modes = bytes.iter().map(|byte| (mode(*byte), byte & WAS_TOLD != 0));
    entries.iter_mut().zip(&mut modes).for_each(|(entry, of)| (entry.mode, entry.was_told) = of);
    modes.next().unwrap_or_default()
}

/// Returns a time, the entries, and the bytes after them.
fn entries(bytes: &[u8]) -> Option<(Duration, Vec<SentEntry>, &[u8])> {
    let (time, rest) = duration(bytes)?;
    let (&count, mut rest) = rest.split_first()?;
    let mut entries = Vec::new();
    for _ in 0..usize::from(count).min(ENTRIES_MAX) {
        let (endpoint, after) = NoticeEndpoint::split(rest)?;
        let (nonce, after) = number(after)?;
        let (waited, after) = duration(after)?;
        entries.push(SentEntry { endpoint, nonce, waited, mode: Mode::Exclusive, was_told: false });
        rest = after;
    }
    Some((time, entries, rest))
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

fn duration(bytes: &[u8]) -> Option<(Duration, &[u8])> {
    let (ms, rest) = bytes.split_first_chunk()?;
    Some((Duration::from_millis(u32::from_be_bytes(*ms).into()), rest))
}

/// Returns whole milliseconds, 49 days at most.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Datagram> {
        let endpoint = NoticeEndpoint::Udp("[2001:db8::1]:9".parse().unwrap());
        let (mode, was_told) = (Mode::Exclusive, false);
        let entry = SentEntry { endpoint, nonce: 5, waited: Duration::from_millis(70), mode, was_told };
        let (nonce, key, waited) = (u64::MAX, 3, Duration::from_secs(4));
        vec![
            Datagram::Register { key, nonce, waited, mode, was_told, entries: Vec::new() },
            Datagram::Register { key, nonce, waited, mode, was_told, entries: vec![entry; ENTRIES_MAX] },
            Datagram::Registered { nonce },
            Datagram::Moved { nonce, to: endpoint, key },
            Datagram::NotHere { nonce },
            Datagram::Ask { nonce, key, age: waited, entries: vec![entry] },
            Datagram::Received { key },
            Datagram::Declined { key },
            Datagram::Pause { nonce, pause: waited },
            Datagram::Opened { nonce },
            Datagram::WhoWaits { key, nonce },
            Datagram::Want { key },
            Datagram::Waiting { nonce, threads: 3, waited, entries: vec![entry; ENTRIES_MAX] },
            Datagram::Leave { key, nonce },
            Datagram::Challenge { nonce },
        ]
    }

    #[test]
    fn what_is_written_is_read_back_and_fits_and_bytes_after_it_are_ignored() {
        for sample in samples() {
            let mut bytes = sample.encode();
            assert!(bytes.len() <= BYTES_MAX, "{sample:?}");
            bytes.push(9);
            assert_eq!(Datagram::decode(&bytes), Some(sample));
        }
    }

    #[test]
    fn the_modes_of_who_waits_come_after_the_entries_and_are_exclusive_without_them() {
        let endpoint = NoticeEndpoint::Local(7);
        let waiting = |mode| SentEntry {
            endpoint,
            nonce: 5,
            waited: Duration::ZERO,
            mode,
            was_told: mode == Mode::Update,
        };
        let (nonce, key, age) = (1, 3, Duration::ZERO);
        let entries = vec![waiting(Mode::Shared), waiting(Mode::Exclusive), waiting(Mode::Update)];
        let (mode, was_told) = (Mode::Shared, true);
        let register =
            Datagram::Register { key, nonce, waited: age, mode, was_told, entries: entries.clone() };
        assert_eq!(Datagram::decode(&register.encode()), Some(register));
        let ask = Datagram::Ask { nonce, key, age, entries };
        let bytes = ask.encode();
        let Some(Datagram::Ask { entries, .. }) = Datagram::decode(&bytes[..bytes.len() - 3]) else {
            panic!("earlier versions send it so")
        };
        let is_as_before = |entry: &SentEntry| entry.mode == Mode::Exclusive && !entry.was_told;
        assert!(entries.iter().all(is_as_before) && entries.len() == 3);
        let unknown = [&bytes[..bytes.len() - 1], &[77]].concat();
        let Some(Datagram::Ask { entries, .. }) = Datagram::decode(&unknown) else { panic!() };
        let modes: Vec<_> = entries.iter().map(|entry| entry.mode).collect();
        assert_eq!(modes, [Mode::Shared, Mode::Exclusive, Mode::Exclusive]);
        assert_eq!(Datagram::decode(&bytes), Some(ask));
    }

    #[test]
    fn no_reply_is_longer_than_what_it_answers() {
        let length = |at: usize| samples()[at].encode().len();
        for reply in 2..5 {
            assert!(length(reply) <= length(0), "{:?}", samples()[reply]);
        }
        assert!(length(11) <= length(10) && length(4) <= length(10));
    }

    /// The bytes of earlier versions, which know the kinds 1 to 11.
    #[test]
    fn what_earlier_versions_send_is_understood_and_what_they_do_not_know_has_a_kind_of_its_own() {
        let nonce = 0x0102_0304_0506_0708_u64;
        let old = |kind: u8, fields: &[&[u8]]| [b"dlmN\x01", &[kind][..], &fields.concat()].concat();
        let (key, bytes) = (9_u64.to_be_bytes(), nonce.to_be_bytes());
        let register = old(1, &[&key, &bytes, &[0, 0, 0, 70, 0], &[0; 14]]);
        let waited = Duration::from_millis(70);
        let (mode, was_told) = (Mode::Exclusive, false);
        let expected = Datagram::Register { key: 9, nonce, waited, mode, was_told, entries: Vec::new() };
        assert_eq!((Datagram::decode(&register), expected.encode()), (Some(expected), register));
        assert_eq!(Datagram::decode(&old(4, &[&bytes])), Some(Datagram::NotHere { nonce }));
        // They take it for a register that quotes nothing, and answer `not here`.
        assert_eq!(Datagram::Challenge { nonce }.encode(), old(1, &[&[0; 8], &bytes, &[0; 5]]));
        assert_eq!(Datagram::Leave { key: 9, nonce }.encode(), old(12, &[&key, &bytes]));
        assert_eq!(Datagram::Want { key: 9 }.encode(), old(13, &[&key]));
        for kind in (0..=u8::MAX).filter(|kind| !(1..=13).contains(kind)) {
            assert_eq!(Datagram::decode(&old(kind, &[&[7; 1300]])), None, "{kind}");
        }
    }

    #[test]
    fn cut_foreign_and_random_bytes_are_no_datagram_or_a_harmless_one() {
        for sample in samples() {
            let bytes = sample.encode();
            for cut in 0..bytes.len() {
                let decoded = Datagram::decode(&bytes[..cut]);
                // Only the padding of a register may be cut.
                assert!(decoded.is_none() || decoded.as_ref() == Some(&sample), "{sample:?} cut at {cut}");
            }
        }
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..100_000 {
            let mut bytes = samples()[random.usize(..samples().len())].encode();
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
            if let Some(decoded) = Datagram::decode(&bytes) {
                assert!(decoded.encode().len() <= BYTES_MAX);
            }
        }
        assert_eq!(Datagram::decode(b"GET / HTTP/1.1"), None);
    }
}

//! What happened to a lock, as an entry of its history.
//!
//! | bytes | meaning |
//! |---|---|
//! | 01 | version |
//! | u8 | kind |
//! | u64 | milliseconds since 1970, by the clock of the process that wrote the entry |
//! | u64 | random number, which distinguishes this entry from others |
//! | u64 | the random number of the entry that this one takes back; 0 for other kinds |
//! | u64 | hash of the owner token of the grant that was broken (`OwnerToken::hash`); 0 for other kinds |
//! | u64 | fence; 0 if there is none |
//! | u64 | milliseconds that it took; the highest number if that is not known |
//! | u16 and bytes | text |
//! | u16 and bytes | the process that wrote the entry, see [`Identity`] |
//! | u16 and bytes | the holder that was broken; empty for other kinds |
//! | u8 | [number of the mode](Mode::code) |
//! | u8 | number of the mode before; ff for other kinds than a change of mode |
//!
//! Integers are big-endian. Later versions may append. The modes are missing in an entry about an exclusive hold that is no
//! change of mode, which so has the bytes that it had before there were modes. Versions without modes ignore them, and pass
//! over changes of mode as over any kind that they do not know.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::names::fence::Fence;
use crate::names::holder::{Identity, PART_BYTES_MAX};
use crate::names::mode::Mode;
use crate::names::text::quoted;
use crate::runtime::random;
use crate::runtime::time;

const VERSION: u8 = 1;
/// Stands for a duration that is not known.
const UNKNOWN_MS: u64 = u64::MAX;
/// Stands for the mode before, if the mode was not changed.
const NO_MODE: u8 = 0xff;
/// Longest encoded identity: two parts and their lengths, numbers, an endpoint.
const IDENTITY_BYTES_MAX: usize = 4 + 8 + 2 * (1 + PART_BYTES_MAX) + 64;

/// What happened to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum HistoryKind {
    /// It was acquired. `took` is the time waited for it.
    Acquired = 1,
    /// It was released. `took` is the time for which it was held.
    Released = 2,
    /// A holder lost it. `took` is the time for which it was held, `text` the name of the reason.
    Lost = 3,
    /// An operator broke it. `text` is the reason, `victim` the holder, `fence` the last fence before.
    Broken = 4,
    /// An operator wanted to break it, but the holder had gone before. It takes back an entry that says `Broken`.
    NotBroken = 5,
    /// Its holder went on in another mode. `took` is the time for which it was held in the mode before.
    ModeChanged = 6,
}

impl HistoryKind {
    const ALL: [HistoryKind; 6] = [
        HistoryKind::Acquired,
        HistoryKind::Released,
        HistoryKind::Lost,
        HistoryKind::Broken,
        HistoryKind::NotBroken,
        HistoryKind::ModeChanged,
    ];

    /// Returns the name that the command `dlm history` and the other languages use.
    pub fn name(self) -> &'static str {
        match self {
            HistoryKind::Acquired => "acquired",
            HistoryKind::Released => "released",
            HistoryKind::Lost => "lost",
            HistoryKind::Broken => "broken",
            HistoryKind::NotBroken => "not broken",
            HistoryKind::ModeChanged => "mode changed",
        }
    }
}

/// Writes the name.
impl fmt::Display for HistoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One entry of the history of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// What happened.
    pub kind: HistoryKind,
    /// When, in milliseconds since 1970, by the clock of the process that wrote the entry.
    pub at_ms: u64,
    /// How the lock is or was held. An entry of an earlier version says `Exclusive`.
    pub mode: Mode,
    /// How it was held before its mode was changed; `None` for other kinds.
    pub mode_before: Option<Mode>,
    /// The fence of the grant; `None` unless it is exclusive. For a broken lock the last fence that the store knew before.
    pub fence: Option<Fence>,
    /// How long it took: see [`HistoryKind`].
    pub took: Option<Duration>,
    /// A reason: see [`HistoryKind`].
    pub text: String,
    /// The process that wrote the entry: the holder, or the one that broke the lock.
    pub by: Identity,
    /// The holder of a lock that was broken. `None` also if its record did not say who it is.
    pub victim: Option<Identity>,
    /// Distinguishes this entry from others of the same time.
    pub(crate) id: u64,
    /// The `id` of the entry that this one takes back; 0 for other kinds.
    pub(crate) takes_back: u64,
    /// Identifies the grant that was broken; 0 for other kinds, and for records without an owner token.
    pub(crate) grant: u64,
}

impl HistoryEntry {
    /// Makes an entry that happened now.
    pub(crate) fn now(kind: HistoryKind, by: &Identity) -> HistoryEntry {
        let mut id = [0; 8];
        // Without random bytes two entries of one millisecond may be one.
        let _ = random::secret(&mut id);
        HistoryEntry {
            kind,
            at_ms: time::wall_ms(),
            mode: Mode::Exclusive,
            mode_before: None,
            fence: None,
            took: None,
            text: String::new(),
            by: Identity { notices: None, ..by.clone() },
            victim: None,
            id: u64::from_be_bytes(id),
            takes_back: 0,
            grant: 0,
        }
    }

    /// Returns when it happened.
    pub fn at(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.at_ms)).unwrap_or(UNIX_EPOCH)
    }

    /// Returns the same entry of another time and with another number, for stores and their tests.
    #[doc(hidden)]
    pub fn numbered(&self, at_ms: u64, id: u64) -> HistoryEntry {
        HistoryEntry { at_ms, id, ..self.clone() }
    }

    /// Returns the bytes that stores keep.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.kind as u8];
        let took_ms =
            self.took.map_or(UNKNOWN_MS, |took| u64::try_from(took.as_millis()).unwrap_or(UNKNOWN_MS));
        let fence = self.fence.map_or(0, |fence| fence.0);
        for number in [self.at_ms, self.id, self.takes_back, self.grant, fence, took_ms] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        let identity = |identity: &Identity| {
            let mut bytes = Vec::new();
            identity.encode_into(&mut bytes);
            bytes.truncate(IDENTITY_BYTES_MAX);
            bytes
        };
        let text = &self.text.as_bytes()[..self.text.len().min(PART_BYTES_MAX)];
        let victim = self.victim.as_ref().map(identity).unwrap_or_default();
        for part in [text, &identity(&self.by), &victim] {
            out.extend_from_slice(&(part.len() as u16).to_be_bytes());
            out.extend_from_slice(part);
        }
        if self.mode != Mode::Exclusive || self.mode_before.is_some() {
            out.extend([self.mode.code(), self.mode_before.map_or(NO_MODE, Mode::code)]);
        }
        out
    }

    /// Reads what [`encode`](HistoryEntry::encode) returned. Returns `None` for anything but an entry of a kind and of modes
    /// that this version knows.
    pub fn decode(bytes: &[u8]) -> Option<HistoryEntry> {
        let (&kind, rest) = bytes.strip_prefix(&[VERSION])?.split_first()?;
        let kind = HistoryKind::ALL.into_iter().find(|known| *known as u8 == kind)?;
        let (at_ms, rest) = number(rest)?;
        let (id, rest) = number(rest)?;
        let (takes_back, rest) = number(rest)?;
        let (grant, rest) = number(rest)?;
        let (fence, rest) = number(rest)?;
        let (took_ms, rest) = number(rest)?;
        let (text, rest) = part(rest)?;
        let (by, rest) = part(rest)?;
        let (victim, rest) = part(rest)?;
        let (mode, mode_before) = match *rest {
            [] => (Mode::Exclusive, None),
            [mode, NO_MODE, ..] => (Mode::from_code(mode)?, None),
            [mode, before, ..] => (Mode::from_code(mode)?, Some(Mode::from_code(before)?)),
            [_] => return None,
        };
        Some(HistoryEntry {
            kind,
            at_ms,
            mode,
            mode_before,
            fence: (fence != 0).then_some(Fence(fence)),
            took: (took_ms != UNKNOWN_MS).then(|| Duration::from_millis(took_ms)),
            text: String::from_utf8_lossy(text).into_owned(),
            by: Identity::decode(by)?,
            victim: Identity::decode(victim),
            id,
            takes_back,
            grant,
        })
    }
}

/// Describes an entry in one line, without its time.
impl fmt::Display for HistoryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.kind, self.by)?;
        match self.mode_before {
            Some(before) => write!(f, " from {before} to {}", self.mode)?,
            // Of the hold that was broken, and not of the process that broke it.
            None if self.mode != Mode::Exclusive && self.victim.is_none() => write!(f, " ({})", self.mode)?,
            None => {}
        }
        let took = self.took.map(|took| format!("{:.3} s", took.as_secs_f64()));
        match (self.kind, took) {
            (HistoryKind::ModeChanged, Some(took)) => write!(f, ", held before for {took}")?,
            (HistoryKind::Acquired, Some(took)) => write!(f, ", waited {took}")?,
            (HistoryKind::Released | HistoryKind::Lost, Some(took)) => write!(f, ", held for {took}")?,
            _ => {}
        }
        if let Some(victim) = &self.victim {
            write!(f, ", held by {victim}")?;
            if self.mode != Mode::Exclusive {
                write!(f, " ({})", self.mode)?;
            }
        }
        if let Some(Fence(fence)) = self.fence {
            write!(f, ", fence {fence}")?;
        }
        if self.text.is_empty() { Ok(()) } else { write!(f, ", because {}", quoted(&self.text)) }
    }
}

/// Checks why a lock is to be broken.
pub(crate) fn checked_reason(reason: &str) -> Result<&str> {
    if (1..=PART_BYTES_MAX).contains(&reason.len()) && !reason.chars().any(char::is_control) {
        return Ok(reason);
    }
    let allowed = format!("1 to {PART_BYTES_MAX} bytes without control characters");
    Err(Error::invalid("reason", reason, allowed))
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(purpose: &str) -> Identity {
        Identity { host: "h".into(), pid: 42, start_ms: 7, purpose: purpose.into(), notices: None }
    }

    fn sample() -> HistoryEntry {
        HistoryEntry {
            kind: HistoryKind::Broken,
            at_ms: 1_700_000_000_123,
            mode: Mode::Exclusive,
            mode_before: None,
            fence: Some(Fence(9)),
            took: Some(Duration::from_millis(250)),
            text: "it hangs".into(),
            by: identity("break"),
            victim: Some(identity("run")),
            id: 5,
            takes_back: 6,
            grant: 7,
        }
    }

    fn change() -> HistoryEntry {
        let (kind, mode, mode_before) = (HistoryKind::ModeChanged, Mode::Exclusive, Some(Mode::Update));
        HistoryEntry { kind, mode, mode_before, victim: None, text: String::new(), ..sample() }
    }

    #[test]
    fn an_entry_is_read_back_and_a_cut_one_is_none() {
        let bare = HistoryEntry { victim: None, took: None, fence: None, text: String::new(), ..sample() };
        for entry in [sample(), bare, change(), HistoryEntry { mode: Mode::Shared, ..sample() }] {
            let mut bytes = entry.encode();
            assert_eq!(HistoryEntry::decode(&bytes), Some(entry.clone()));
            // Without the modes it is an entry of an earlier version.
            let of_earlier = HistoryEntry { mode: Mode::Exclusive, mode_before: None, ..entry }.encode();
            for cut in (0..bytes.len()).filter(|cut| *cut != of_earlier.len()) {
                assert_eq!(HistoryEntry::decode(&bytes[..cut]), None, "cut at {cut}");
            }
            if bytes.len() > of_earlier.len() {
                bytes.push(7);
                assert!(HistoryEntry::decode(&bytes).is_some(), "later versions may append");
            }
        }
    }

    fn hex(entry: &HistoryEntry) -> String {
        entry.encode().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// They are also what versions without modes wrote, and what those read.
    const EXCLUSIVE: &str = "01040000018bcfe5687b000000000000000500000000000000060000000000000007000000000000000900000000000000fa00086974206861\
                             6e67730014\
                             0000002a000000000000000701680562726561\
                             6b00120000002a00000000000000070168037275\
                             6e";

    #[test]
    fn the_bytes_stay_as_they_are() {
        assert_eq!(hex(&sample()), EXCLUSIVE);
    }

    #[test]
    fn an_entry_in_another_mode_begins_as_one_of_versions_without_modes() {
        assert_eq!(hex(&HistoryEntry { mode: Mode::Shared, ..sample() }), format!("{EXCLUSIVE}01ff"));
        let change = HistoryEntry { kind: HistoryKind::Broken, ..change() };
        let without = HistoryEntry { mode_before: None, ..change.clone() };
        assert_eq!(hex(&change), format!("{}0002", hex(&without)));
    }

    #[test]
    fn an_entry_of_a_mode_to_come_is_none() {
        for at_end in [[4, NO_MODE], [1, 4]] {
            let bytes = [sample().encode(), at_end.to_vec()].concat();
            assert_eq!(HistoryEntry::decode(&bytes), None, "{at_end:?}");
        }
    }

    #[test]
    fn an_entry_of_a_kind_or_version_to_come_is_none() {
        let mut bytes = sample().encode();
        bytes[1] = 7;
        assert_eq!(HistoryEntry::decode(&bytes), None);
        let mut bytes = sample().encode();
        bytes[0] = 2;
        assert_eq!(HistoryEntry::decode(&bytes), None);
    }

    #[test]
    fn an_entry_is_described_in_one_line() {
        let expected = r#"broken by pid 42 on h for "break", held by pid 42 on h for "run", fence 9, because "it hangs""#;
        assert_eq!(sample().to_string(), expected);
        let acquired =
            HistoryEntry { kind: HistoryKind::Acquired, victim: None, text: String::new(), ..sample() };
        assert_eq!(acquired.to_string(), r#"acquired by pid 42 on h for "break", waited 0.250 s, fence 9"#);
        let shared = HistoryEntry { mode: Mode::Shared, fence: None, ..acquired };
        assert_eq!(shared.to_string(), r#"acquired by pid 42 on h for "break" (SHARED), waited 0.250 s"#);
        let broken = HistoryEntry { mode: Mode::Shared, fence: None, ..sample() };
        let expected = r#"broken by pid 42 on h for "break", held by pid 42 on h for "run" (SHARED), because "it hangs""#;
        assert_eq!(broken.to_string(), expected);
        let expected = r#"mode changed by pid 42 on h for "break" from UPDATE to EXCLUSIVE, held before for 0.250 s, fence 9"#;
        assert_eq!(change().to_string(), expected);
    }

    #[test]
    fn a_reason_that_could_forge_lines_is_refused() {
        assert!(checked_reason("it hangs").is_ok() && checked_reason(&"x".repeat(255)).is_ok());
        for reason in ["", "a\nb", &"x".repeat(256)] {
            assert_eq!(checked_reason(reason).unwrap_err().code(), crate::Code::InvalidArgument);
        }
    }
}

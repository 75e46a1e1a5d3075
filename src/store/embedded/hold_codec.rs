//! The holds of a lock in other modes than exclusive, and those who wait for it exclusively, as a record beside the record
//! of the lock. Integers are big-endian.
//!
//! | part | bytes |
//! |---|---|
//! | key | `LATCH#`, four NULs, the name of the lock |
//! | head | the head of a latch's record: version `1`, the last end of all entries, zero (8 each), no farms (2) |
//! | begin | version `1`, the owner token of the base (16), number of entries (4) |
//! | each entry | kind, end (8), length of the rest (2), the rest |
//! | a hold, kind `1` | code of the mode, owner token (16), number (8), since in milliseconds since 1970 (8), holder |
//! | an intent, kind `2` | id (8), when it was announced first (8), the process that waits |
//! | the turn of the readers, kind `3` | nothing |
//! | the size of a semaphore, kind `4` | number of permits (2), the end (8) until which it is remembered |
//!
//! The entry of a size ends with the last hold if there are any, because earlier versions take it for one. A hold with the mode of a permit is one permit of the semaphore, whose number (1) comes behind the holder.
//!
//! An exclusive hold has only the record of the lock, as it had before there were modes. While there are other holds, that
//! record is a base (see `record`): its token is drawn at random and owns nothing, and it ends with the last hold. The holds
//! quote that token. If the record of the lock is not a live base with the token that they quote, they are void: somebody has
//! broken them all, or they have expired. Intents, the turn and the size need no base. Then the token is zeros.
//!
//! **Versions without modes** use the file too. To them:
//!
//! * The base is an exclusive hold. They cannot acquire the lock, and whoever breaks it deletes the base, so that all
//!   holds are void. No exclusive grant need read this record, because no hold lasts longer than the base.
//! * This key is that of a latch. Their lists of locks and their searches for liveness files pass over it. It is the key
//!   of no latch, of no note of a listener and of no entry of a history, since no client id is empty or contains a NUL, and no
//!   name of a lock begins with one.
//! * This record is that of a latch without counts. Their sweep deletes it when the last entry has ended, and no sooner. So
//!   does that of this version.
//!
//! **Later versions** may append to the rest of a hold, use other codes of modes and add kinds. What is not known here is a
//! hold that is compatible with nothing, and is written back as it was. They must change the second version if that is not
//! enough: this version then reports that it cannot read the record.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::latch_codec::{self, Head, PREFIX};
use super::record::number;
use crate::names::holder::Identity;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerToken;
use crate::runtime::time::Moment;
use crate::store::latch_record::LatchRecord;
use crate::store::lock_holds::{HoldRecord, IntentRecord, LockHolds, SizeRecord};
use crate::store::mode_store::IntentId;

const VERSION: u8 = 1;
const HOLD: u8 = 1;
const INTENT: u8 = 2;
const TURN: u8 = 3;
const SIZE: u8 = 4;

/// What the token of the base is if there are no holds.
const NO_BASE: [u8; OwnerToken::LEN] = [0; OwnerToken::LEN];

/// The record as it was read. It may contain what has ended.
#[derive(Default)]
pub(super) struct ModesRecord {
    /// The token of the base that the holds belong to. `None` if there are no holds.
    pub(super) base: Option<OwnerToken>,
    pub(super) of: LockHolds,
    pub(super) later: LaterParts,
}

/// What a later version has written and this one does not know.
#[derive(Debug, Default)]
pub(super) struct LaterParts {
    holds: Vec<LaterHold>,
    entries: Vec<LaterEntry>,
}

/// A hold with a mode that is not known, or with something appended.
#[derive(Debug)]
struct LaterHold {
    owner: OwnerToken,
    mode: u8,
    appended: Vec<u8>,
}

/// An entry of a kind that is not known.
#[derive(Debug)]
struct LaterEntry {
    kind: u8,
    ends: Moment,
    rest: Vec<u8>,
}

impl LaterParts {
    /// Forgets the entries that have ended.
    pub(super) fn expire(&mut self, now: Moment) {
        self.entries.retain(|entry| now < entry.ends);
    }

    /// Returns the last end of the entries of kinds that are not known.
    pub(super) fn ends(&self) -> Option<Moment> {
        self.entries.iter().map(|entry| entry.ends).max()
    }

    /// Returns the code of the mode of this hold, if this version does not know it.
    pub(super) fn mode_of(&self, hold: &HoldRecord) -> Option<u8> {
        // In this record that mode stands for one that is not known.
        self.hold(hold).filter(|_| hold.mode == Mode::Exclusive).map(|later| later.mode)
    }

    fn hold(&self, hold: &HoldRecord) -> Option<&LaterHold> {
        self.holds.iter().find(|later| later.owner == hold.owner)
    }
}

/// Returns the mode with this code, if a hold in this record can have it.
fn known(code: u8) -> Option<Mode> {
    Mode::from_code(code).filter(|mode| *mode != Mode::Exclusive)
}

/// Returns the key of the record.
pub(super) fn key(name: &LockName) -> Vec<u8> {
    [PREFIX, b"\0\0\0\0", name.key().as_bytes()].concat()
}

/// Encodes the holds that belong to this base, or none if there is no base, and the intents and the turn.
pub(super) fn encode(base: Option<&OwnerToken>, of: &LockHolds, later: &LaterParts) -> Vec<u8> {
    let mut entries = Vec::new();
    if let Some(base) = base {
        // A hold with the token of the base stands for entries of other kinds.
        let holds = of.holds.iter().filter(|hold| hold.owner != *base);
        entries.extend(holds.map(|hold| (HOLD, hold.ends, hold_bytes(hold, later.hold(hold)))));
        entries.extend(later.entries.iter().map(|entry| (entry.kind, entry.ends, entry.rest.clone())));
    }
    for intent in &of.intents {
        let mut rest = intent.id.0.to_be_bytes().to_vec();
        rest.extend_from_slice(&intent.since.as_nanos().to_be_bytes());
        intent.identity.encode_into(&mut rest);
        entries.push((INTENT, intent.ends, rest));
    }
    if of.turn_ends != Moment::OVER {
        entries.push((TURN, of.turn_ends, Vec::new()));
    }
    if let Some(SizeRecord { permits, ends }) = of.size {
        let last = of.holds.iter().map(|hold| hold.ends).max().filter(|_| base.is_some());
        let rest = [&permits.to_be_bytes()[..], &ends.as_nanos().to_be_bytes()].concat();
        entries.push((SIZE, last.map_or(ends, |last| last.min(ends)), rest));
    }
    let ends = entries.iter().map(|(_, ends, _)| *ends).chain(of.size.map(|size| size.ends)).max();
    let ends = ends.unwrap_or(Moment::OVER);
    let mut out = latch_codec::encode(&LatchRecord { ends, ..LatchRecord::absent() });
    out.push(VERSION);
    out.extend_from_slice(base.map_or(&NO_BASE[..], |base| base.as_bytes().as_slice()));
    out.extend_from_slice(&(entries.len() as u32).to_be_bytes());
    for (kind, ends, rest) in entries {
        out.push(kind);
        out.extend_from_slice(&ends.as_nanos().to_be_bytes());
        // What this version writes has less than a kilobyte, and what it read had such a length.
        out.extend_from_slice(&(rest.len() as u16).to_be_bytes());
        out.extend_from_slice(&rest);
    }
    out
}

fn hold_bytes(hold: &HoldRecord, later: Option<&LaterHold>) -> Vec<u8> {
    let mut out = vec![later.map_or(hold.mode.code(), |later| later.mode)];
    out.extend_from_slice(hold.owner.as_bytes());
    for number in [hold.number, wall_ms_of(hold.since)] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    hold.identity.encode_into(&mut out);
    out.extend(hold.permit);
    out.extend_from_slice(later.map_or(&[], |later| &later.appended));
    out
}

/// Decodes the record; `None` if it is of another version, or damaged.
pub(super) fn decode(bytes: &[u8]) -> Option<ModesRecord> {
    let (_, rest) = Head::decode(bytes)?;
    let (base, rest) = rest.strip_prefix(&[VERSION])?.split_first_chunk()?;
    let (entries, mut rest) = rest.split_first_chunk()?;
    let base = Some(*base).filter(|base| *base != NO_BASE).map(OwnerToken::from_bytes);
    let mut record = ModesRecord { base, ..ModesRecord::default() };
    for _ in 0..u32::from_be_bytes(*entries) {
        let (&kind, after) = rest.split_first()?;
        let (ends, after) = number(after)?;
        let (length, after) = after.split_first_chunk()?;
        let (entry, after) = after.split_at_checked(u16::from_be_bytes(*length).into())?;
        record.add(kind, Moment::from_nanos(ends), entry)?;
        rest = after;
    }
    rest.is_empty().then_some(record)
}

impl ModesRecord {
    fn add(&mut self, kind: u8, ends: Moment, entry: &[u8]) -> Option<()> {
        match kind {
            HOLD => self.add_hold(ends, entry)?,
            INTENT => {
                let (id, rest) = number(entry)?;
                let (since, rest) = number(rest)?;
                let (since, identity) = (Moment::from_nanos(since), Identity::decode(rest)?);
                self.of.intents.push(IntentRecord { id: IntentId(id), since, identity, ends });
            }
            TURN => self.of.turn_ends = ends,
            SIZE if entry.len() == 10 => {
                let (permits, ends) = entry.split_first_chunk()?;
                let (ends, _) = number(ends)?;
                let (permits, ends) = (u16::from_be_bytes(*permits), Moment::from_nanos(ends));
                self.of.size = Some(SizeRecord { permits, ends });
            }
            kind => self.later.entries.push(LaterEntry { kind, ends, rest: entry.to_vec() }),
        }
        Some(())
    }

    fn add_hold(&mut self, ends: Moment, entry: &[u8]) -> Option<()> {
        let (&mode, rest) = entry.split_first()?;
        let (owner, rest) = rest.split_first_chunk()?;
        let owner = OwnerToken::from_bytes(*owner);
        let (number_of_hold, rest) = number(rest)?;
        let (since_ms, rest) = number(rest)?;
        let (identity, appended) = Identity::split(rest)?;
        let (known, permit, appended) = match (known(mode), appended) {
            (Some(Mode::Permit), [permit, appended @ ..]) => (Some(Mode::Permit), Some(*permit), appended),
            (Some(Mode::Permit), []) => (None, None, appended),
            (known, _) => (known, None, appended),
        };
        if known.is_none() || !appended.is_empty() {
            self.later.holds.push(LaterHold { owner, mode, appended: appended.to_vec() });
        }
        self.of.holds.push(HoldRecord {
            owner,
            // The mode that is compatible with nothing.
            mode: known.unwrap_or(Mode::Exclusive),
            number: number_of_hold,
            since: wall_at(since_ms),
            ends,
            identity,
            permit,
        });
        Some(())
    }
}

/// Returns the time in milliseconds since 1970. For people only.
pub(super) fn wall_ms_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time so many milliseconds after 1970, or 1970 if there is no such time.
pub(super) fn wall_at(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::store::HistoryOf;
    use crate::store::embedded::{history, listener_codec};

    fn base() -> OwnerToken {
        OwnerToken::from_bytes([9; OwnerToken::LEN])
    }

    fn identity(purpose: &str) -> Identity {
        Identity { host: "höst".into(), pid: 42, start_ms: 5, purpose: purpose.into(), notices: None }
    }

    fn hold(byte: u8, mode: Mode, ends: u64) -> HoldRecord {
        HoldRecord {
            owner: OwnerToken::from_bytes([byte; OwnerToken::LEN]),
            mode,
            number: u64::MAX - 1,
            since: wall_at(1_700_000_000_123),
            ends: Moment::from_nanos(ends),
            identity: identity("nightly"),
            permit: None,
        }
    }

    fn sample() -> LockHolds {
        let intent = IntentRecord {
            id: IntentId(0x0102),
            since: Moment::from_nanos(6),
            identity: identity(""),
            ends: Moment::from_nanos(3),
        };
        let holds = vec![hold(7, Mode::Shared, 1), hold(8, Mode::Update, 2)];
        LockHolds { holds, intents: vec![intent], turn_ends: Moment::from_nanos(4), size: None }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn again(bytes: &[u8]) -> Option<Vec<u8>> {
        let ModesRecord { base, of, later } = decode(bytes)?;
        Some(encode(base.as_ref(), &of, &later))
    }

    /// Processes of several versions use one file.
    #[test]
    fn the_bytes_of_the_record_stay_as_they_are() {
        let head = "0100000000000000040000000000000000 0000 01 09090909090909090909090909090909 00000004";
        let holder = "0000002a 0000000000000005 0568c3b67374";
        let since = "0000018bcfe5687b";
        let shared = format!(
            "01 0000000000000001 003b 01 07070707070707070707070707070707 fffffffffffffffe {since} {holder} \
             076e696768746c79"
        );
        let update = format!(
            "01 0000000000000002 003b 02 08080808080808080808080808080808 fffffffffffffffe {since} {holder} \
             076e696768746c79"
        );
        let intent = format!("02 0000000000000003 0023 0000000000000102 0000000000000006 {holder} 00");
        let turn = "03 0000000000000004 0000";
        let expected = format!("{head}{shared}{update}{intent}{turn}").replace(' ', "");
        assert_eq!(hex(&encode(Some(&base()), &sample(), &LaterParts::default())), expected);
    }

    #[test]
    fn the_bytes_of_a_semaphore_stay_as_they_are() {
        let permit = HoldRecord { permit: Some(200), ..hold(7, Mode::Permit, 1) };
        let size = SizeRecord { permits: 256, ends: Moment::from_nanos(5) };
        let of = LockHolds { holds: vec![permit], size: Some(size), ..LockHolds::default() };
        let expected = "0100000000000000050000000000000000 0000 01 09090909090909090909090909090909 00000002 \
            01 0000000000000001 003c 03 07070707070707070707070707070707 fffffffffffffffe 0000018bcfe5687b \
            0000002a 0000000000000005 0568c3b67374 076e696768746c79 c8 \
            04 0000000000000001 000a 0100 0000000000000005";
        let bytes = encode(Some(&base()), &of, &LaterParts::default());
        assert_eq!(hex(&bytes), expected.replace(' ', ""));
        let read = decode(&bytes).unwrap();
        assert_eq!((read.of.holds[0].permit, read.of.size), (Some(200), Some(size)));
        assert_eq!(again(&bytes), Some(bytes.clone()));
        // Without its number it is one of a kind that is not known.
        let cut = [&bytes[..49], &[0, 59], &bytes[51..110], &bytes[111..]].concat();
        let read = decode(&cut).unwrap();
        assert_eq!(
            (read.of.holds[0].mode, read.later.mode_of(&read.of.holds[0])),
            (Mode::Exclusive, Some(3))
        );
        assert_eq!(again(&cut), Some(cut));
        // Nobody holds a permit.
        let free = encode(None, &of, &LaterParts::default());
        assert_eq!(decode(&free).unwrap().of.size, Some(size));
        assert_eq!(again(&free), Some(free));
    }

    #[test]
    fn a_record_is_read_back_and_any_cut_of_it_is_refused() {
        let bytes = encode(Some(&base()), &sample(), &LaterParts::default());
        assert_eq!(again(&bytes), Some(bytes.clone()));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_none(), "cut at {cut}");
        }
        assert!(decode(&[&bytes[..], &[0]].concat()).is_none(), "something behind it");
        let waiting = encode(None, &sample(), &LaterParts::default());
        let read = decode(&waiting).unwrap();
        assert!(read.of.holds.is_empty() && read.base.is_none());
        assert_eq!((read.of.intents.len(), read.of.turn_ends), (1, Moment::from_nanos(4)));
    }

    #[test]
    fn a_record_of_another_version_is_refused_rather_than_misread() {
        let bytes = encode(Some(&base()), &sample(), &LaterParts::default());
        for version_at in [0, 19] {
            let mut later = bytes.clone();
            assert_eq!(later[version_at], 1);
            later[version_at] = 2;
            assert!(decode(&later).is_none(), "at {version_at}");
        }
    }

    /// Whatever is not known here excludes everybody, and the next write does not lose it.
    #[test]
    fn what_a_later_version_has_added_is_a_hold_and_is_written_back_as_it_was() {
        let of = LockHolds { holds: vec![hold(7, Mode::Shared, 1)], ..LockHolds::default() };
        let bytes = encode(Some(&base()), &of, &LaterParts::default());
        let (mode_at, length_at, count_at) = (51, 49, 39);
        assert_eq!((bytes[mode_at], bytes[length_at + 1], bytes[count_at]), (1, 59, 1));
        for code in [0, 4, 200] {
            let mut later = bytes.clone();
            later[mode_at] = code;
            let read = decode(&later).unwrap();
            assert_eq!(read.of.holds[0].mode, Mode::Exclusive, "{code}");
            assert_eq!(read.later.mode_of(&read.of.holds[0]), Some(code));
            assert_eq!(again(&later), Some(later));
        }
        let mut longer = [&bytes[..], b"more"].concat();
        longer[length_at + 1] += 4;
        let read = decode(&longer).unwrap();
        assert_eq!((read.of.holds[0].mode, read.later.mode_of(&read.of.holds[0])), (Mode::Shared, None));
        assert_eq!(again(&longer), Some(longer));
        let entry = [&[5][..], &6_u64.to_be_bytes(), &[0, 3], b"new"].concat();
        let mut further = [&bytes[..], &entry].concat();
        further[count_at] = 2;
        let read = decode(&further).unwrap();
        assert_eq!((read.of.holds.len(), read.later.ends()), (1, Some(Moment::from_nanos(6))));
        let rewritten = again(&further).unwrap();
        assert!(rewritten.ends_with(&entry));
        let (head, _) = Head::decode(&rewritten).unwrap();
        assert!(head.is_live(Moment::from_nanos(5)), "the sweep must not delete it before its end");
    }

    /// To versions without modes it is a latch without counts, which their sweep deletes at its end.
    #[test]
    fn the_record_begins_like_that_of_a_latch_and_has_a_key_of_its_own() {
        let bytes = encode(Some(&base()), &sample(), &LaterParts::default());
        let (head, _) = Head::decode(&bytes).unwrap();
        assert!(head.counts.is_empty());
        assert!(head.is_live(Moment::from_nanos(3)) && !head.is_live(Moment::from_nanos(4)));
        let lock = LockName::new(Level::Xdc, "a", None, "b", NamePolicy::Compat).unwrap();
        let latch = crate::names::latch_name::LatchName::new("a", "dc1", "b", NamePolicy::Compat).unwrap();
        let key = key(&lock);
        assert!(latch_codec::is_key(&key) && key < latch_codec::BEHIND_LATCHES.to_vec());
        for of in [HistoryOf::Lock(&lock), HistoryOf::Grant(&lock, 7)] {
            assert!(!key.starts_with(&history::keys_of(of)), "a history would count it");
        }
        assert!(key != latch_codec::key(&latch) && key != listener_codec::key(&latch));
    }
}

//! The record of a held lock, as bytes.
//!
//! | bytes | meaning |
//! |---|---|
//! | `M` | held: the Java library takes a value that begins with this byte for a held lock |
//! | 01, 02, 11, 12 or 13 | format |
//! | 16 bytes | owner token |
//! | u64, big-endian | TTL in milliseconds: the longest TTL of all versions of this record |
//! | u64, big-endian | not in format 01: the number of the grant, its fence or its epoch; 0 while it is not known |
//! | u8 | formats 11 (a shared hold), 12 (an update hold) and 13 (a permit) only: the place of the hold among those of the lock, or the number of the permit |
//! | the rest | holder: `pid:u32 start_ms:u64 host_len:u8 host purpose_len:u8 purpose`; later versions may append |

use std::fmt;
use std::time::Duration;

use crate::error::Result;
use crate::names::holder::Identity;
use crate::names::mode::Mode;
use crate::names::owner::OwnerToken;

const MARK: u8 = b'M';
const FORMAT: u8 = 1;
const FORMAT_NUMBERED: u8 = 2;
/// The format of a hold that others go beside is this and the [code](Mode::code) of its mode.
const FORMAT_BESIDE: u8 = 0x10;
const FORMAT_AT: usize = 1;
const TOKEN_AT: usize = 2;
const TTL_AT: usize = TOKEN_AT + OwnerToken::LEN;
const TTL_END: usize = TTL_AT + 8;
const NUMBER_END: usize = TTL_END + 8;
const PLACE_END: usize = NUMBER_END + 1;

/// The record of one grant: its owner token, its TTL and its holder. It is as secret as the token.
///
/// A store may keep the bytes, or keep the parts separately.
#[derive(Clone, PartialEq, Eq)]
pub struct Record(Box<[u8]>);

impl Record {
    /// Creates the record of a new attempt, with a new random token.
    ///
    /// # Errors
    /// [`Code::InternalError`](crate::Code::InternalError) if the operating system returns no random bytes.
    pub fn draw(ttl: Duration, identity: &Identity) -> Result<Record> {
        let mut encoded = Vec::new();
        identity.encode_into(&mut encoded);
        Ok(Record::of_parts(&OwnerToken::draw()?, ttl, &encoded))
    }

    /// Creates a record from its parts, for stores that keep them separately. `identity` holds the bytes from
    /// [`identity_bytes`](Record::identity_bytes), or is empty.
    pub fn of_parts(token: &OwnerToken, ttl: Duration, identity: &[u8]) -> Record {
        Record(encoded(token, ttl, None, identity))
    }

    /// Returns the same record with the number of the grant, in format 2. 0 means that the number is not known yet.
    pub fn numbered(&self, number: u64) -> Record {
        match self.place() {
            None => Record(encoded(&self.token(), self.ttl(), Some(number), self.identity_bytes())),
            Some(_) => {
                let mut bytes = self.0.clone();
                bytes[TTL_END..NUMBER_END].copy_from_slice(&number.to_be_bytes());
                Record(bytes)
            }
        }
    }

    /// Returns the record of the same grant as a hold of this mode, at this place among the holds of the lock. A record of
    /// [`Mode::Exclusive`] has no place.
    pub fn placed(&self, mode: Mode, place: u8) -> Record {
        let number = self.number().unwrap_or_default();
        let mut bytes = encoded(&self.token(), self.ttl(), Some(number), &[]).into_vec();
        if mode != Mode::Exclusive {
            bytes[FORMAT_AT] = FORMAT_BESIDE | mode.code();
            bytes.push(place);
        }
        bytes.extend_from_slice(self.identity_bytes());
        Record(bytes.into())
    }

    /// Returns what the bytes of every record of this mode begin with. `None` for [`Mode::Exclusive`], whose records have two
    /// formats.
    pub fn begins(mode: Mode) -> Option<[u8; 2]> {
        (mode != Mode::Exclusive).then(|| [MARK, FORMAT_BESIDE | mode.code()])
    }

    /// Returns the mode of the hold.
    pub fn mode(&self) -> Mode {
        let code = self.0[FORMAT_AT].checked_sub(FORMAT_BESIDE);
        code.and_then(Mode::from_code).unwrap_or(Mode::Exclusive)
    }

    /// Returns the place of a hold that is not exclusive.
    pub fn place(&self) -> Option<u8> {
        (self.mode() != Mode::Exclusive).then(|| self.0[NUMBER_END])
    }

    /// Creates the record with these bytes. Returns `None` if they are not a record of this library in a format
    /// that this version knows.
    pub fn decode(bytes: impl Into<Box<[u8]>>) -> Option<Record> {
        let bytes = bytes.into();
        let least = match bytes.as_ref() {
            [MARK, FORMAT, ..] => TTL_END,
            [MARK, FORMAT_NUMBERED, ..] => NUMBER_END,
            [MARK, format, ..] if is_beside(*format) => PLACE_END,
            _ => return None,
        };
        (bytes.len() >= least).then_some(Record(bytes))
    }

    /// Returns the bytes. Two versions of one grant have different bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the owner token.
    pub fn token(&self) -> OwnerToken {
        let bytes = self.0[TOKEN_AT..].first_chunk().expect("a record is at least that long");
        OwnerToken::from_bytes(*bytes)
    }

    /// Returns the longest TTL of all versions of this record. A value that replaces this record must not expire
    /// sooner: in a store that keeps old versions, the older version would appear again.
    pub fn ttl(&self) -> Duration {
        let bytes = self.0[TTL_AT..].first_chunk().expect("a record is at least that long");
        Duration::from_millis(u64::from_be_bytes(*bytes))
    }

    /// Returns whether the record has a format with a number.
    pub(crate) fn has_number(&self) -> bool {
        self.0[FORMAT_AT] != FORMAT
    }

    /// Returns the number of the grant. `None` in format 1, and while the number is not known.
    pub fn number(&self) -> Option<u64> {
        let bytes = if self.has_number() { self.0[TTL_END..].first_chunk() } else { None };
        bytes.map(|bytes| u64::from_be_bytes(*bytes)).filter(|number| *number != 0)
    }

    /// Returns the holder. `None` if the record has no holder, or one that cannot be decoded.
    pub fn identity(&self) -> Option<Identity> {
        Identity::decode(self.identity_bytes())
    }

    /// Returns the holder as bytes. Empty if the record has none.
    pub fn identity_bytes(&self) -> &[u8] {
        let at = match (self.has_number(), self.place()) {
            (_, Some(_)) => PLACE_END,
            (true, None) => NUMBER_END,
            (false, None) => TTL_END,
        };
        &self.0[at..]
    }

    /// Returns the same record with the longer of `ttl` and its own TTL.
    pub(crate) fn renewed(&self, ttl: Duration) -> Record {
        let mut bytes = self.0.clone();
        bytes[TTL_AT..TTL_END].copy_from_slice(&ttl_ms(self.ttl().max(ttl)).to_be_bytes());
        Record(bytes)
    }

    /// Returns whether both records have the same owner token: they are versions of one grant.
    pub(crate) fn same_owner(&self, other: &Record) -> bool {
        self.0[TOKEN_AT..TTL_AT] == other.0[TOKEN_AT..TTL_AT]
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Record(***)")
    }
}

fn encoded(token: &OwnerToken, ttl: Duration, number: Option<u64>, identity: &[u8]) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(NUMBER_END + identity.len());
    bytes.extend([MARK, if number.is_some() { FORMAT_NUMBERED } else { FORMAT }]);
    bytes.extend_from_slice(token.as_bytes());
    bytes.extend_from_slice(&ttl_ms(ttl).to_be_bytes());
    bytes.extend(number.iter().flat_map(|number| number.to_be_bytes()));
    bytes.extend_from_slice(identity);
    bytes.into()
}

fn is_beside(format: u8) -> bool {
    let mode = format.checked_sub(FORMAT_BESIDE).and_then(Mode::from_code);
    mode.is_some_and(|mode| mode != Mode::Exclusive)
}

fn ttl_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(90);

    fn draw() -> Record {
        Record::draw(TTL, &Identity::this_process("tests").unwrap()).unwrap()
    }

    #[test]
    fn a_record_is_its_parts_and_never_shows_in_debug_output() {
        let record = draw();
        assert_eq!(Record::of_parts(&record.token(), record.ttl(), record.identity_bytes()), record);
        assert_eq!(Record::decode(record.as_bytes()), Some(record.clone()));
        assert_eq!(format!("{record:?}"), "Record(***)");
    }

    #[test]
    fn a_renewed_record_has_the_same_owner_and_never_a_shorter_ttl() {
        let record = draw();
        assert_eq!(record.ttl(), TTL);
        let longer = record.renewed(2 * TTL);
        assert!(longer.same_owner(&record) && longer != record);
        assert_eq!(longer.ttl(), 2 * TTL);
        assert_eq!(longer.renewed(TTL / 2).ttl(), 2 * TTL);
        assert!(!draw().same_owner(&record));
    }

    #[test]
    fn a_number_changes_nothing_else_and_stays_in_renewed_records() {
        let record = draw();
        assert_eq!((record.number(), record.numbered(0).number()), (None, None));
        let numbered = record.numbered(7).numbered(1 << 60);
        assert_eq!(numbered.number(), Some(1 << 60));
        assert_eq!((numbered.token(), numbered.ttl()), (record.token(), record.ttl()));
        assert_eq!(numbered.identity_bytes(), record.identity_bytes());
        assert_eq!(numbered.renewed(2 * TTL).number(), Some(1 << 60));
        assert!(numbered.same_owner(&record) && numbered != record && numbered != record.numbered(7));
    }

    /// Leases that were kept elsewhere, such as in a token, contain these bytes.
    #[test]
    fn the_bytes_of_both_formats_stay_as_they_are() {
        let token = OwnerToken::from_bytes([7; OwnerToken::LEN]);
        let record = Record::of_parts(&token, Duration::from_millis(258), b"who");
        let (start, ttl) = ([7; OwnerToken::LEN], [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(record.as_bytes(), [&b"M\x01"[..], &start, &ttl, b"who"].concat());
        let number = [0, 0, 0, 0, 0, 0, 3, 4];
        assert_eq!(record.numbered(772).as_bytes(), [&b"M\x02"[..], &start, &ttl, &number, b"who"].concat());
    }

    /// They stand in tables, beside those of exclusive locks.
    #[test]
    fn the_bytes_of_a_hold_beside_others_stay_as_they_are() {
        let token = OwnerToken::from_bytes([7; OwnerToken::LEN]);
        let record = Record::of_parts(&token, Duration::from_millis(258), b"who").numbered(772);
        let (start, rest) = ([7; OwnerToken::LEN], [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 200]);
        for (mode, format) in [(Mode::Shared, 0x11), (Mode::Update, 0x12), (Mode::Permit, 0x13)] {
            let placed = record.placed(mode, 200);
            assert_eq!(placed.as_bytes(), [&[b'M', format][..], &start, &rest, b"who"].concat());
            assert!(Record::begins(mode).is_some_and(|begins| placed.as_bytes().starts_with(&begins)));
            assert_eq!((placed.mode(), placed.place(), placed.number()), (mode, Some(200), Some(772)));
            assert_eq!(Record::decode(placed.as_bytes()), Some(placed.clone()));
            assert_eq!(placed.renewed(Duration::from_secs(9)).numbered(8).identity_bytes(), b"who");
            assert!(placed.same_owner(&record) && placed.placed(Mode::Exclusive, 0) == record);
        }
        assert_eq!((record.mode(), record.place()), (Mode::Exclusive, None));
    }

    #[test]
    fn a_record_that_was_cut_is_none() {
        let placed = draw().placed(Mode::Update, 3);
        for (record, identity_at) in
            [(draw(), TTL_END), (draw().numbered(1), NUMBER_END), (placed, PLACE_END)]
        {
            let bytes = record.as_bytes();
            assert_eq!(Record::decode(bytes), Some(record.clone()));
            for cut in 0..identity_at {
                assert_eq!(Record::decode(&bytes[..cut]), None, "cut at {cut}");
            }
            for cut in identity_at..bytes.len() {
                assert_eq!(Record::decode(&bytes[..cut]).unwrap().identity(), None, "cut at {cut}");
            }
        }
        for format in [3, 0x10, 0x14, 0x18] {
            assert_eq!(Record::decode([&[b'M', format][..], &[0; 64]].concat()), None, "a format to come");
        }
    }
}

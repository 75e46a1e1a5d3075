//! A lease as one line of text, for handing it to another process.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::fence::{Epoch, Fence};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerRecord;
use crate::runtime::boot::Boot;
use crate::runtime::time::{Moment, wall_ms};
use crate::settings::limits::checked_ttl;

/// Prefix of the format for leases that are not exclusive. Earlier versions refuse it.
const PREFIX_4: &str = "dlm4.";
/// Prefix of the current format for exclusive leases. A later format gets another one.
const PREFIX: &str = "dlm3.";
/// Prefix of the second format, which has no id of the store. Still accepted, and written for a lease whose store is not
/// known.
const PREFIX_2: &str = "dlm2.";
/// Prefix of the first format, which has the end by the wall clock only. Still accepted.
const PREFIX_1: &str = "dlm1.";

/// A lease as text. Any process that reaches the same store can renew and release the lock with it, by
/// [`LockManager::adopt`](crate::LockManager::adopt).
///
/// Its text (`to_string`, `parse`) proves ownership. Treat it like a password: `Debug` does not show it, and it
/// must not be logged.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseToken {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) fence: Option<Fence>,
    /// Of a lease that is not exclusive.
    pub(crate) epoch: Option<Epoch>,
    /// Of a permit of a semaphore.
    pub(crate) permit: Option<u8>,
    pub(crate) ends: TokenEnd,
    pub(crate) ttl: Duration,
    pub(crate) owner_record: OwnerRecord,
    /// The store that granted the lease. `None` in the first two formats.
    pub(crate) store: Option<StoreId>,
}

/// Identifies a store: a hash of its URI without options. Two spellings of one store may have two ids, so an id
/// explains a failure and never causes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreId(u64);

impl StoreId {
    /// `described` is what [`LockStore::describe`](crate::store::LockStore::describe) returns.
    pub(crate) fn of(described: &str) -> StoreId {
        const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        // FNV-1a, as part of the format: the same in every version and on every machine.
        StoreId(described.bytes().fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)))
    }
}

/// End of the lease in a token, unless the lease is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenEnd {
    /// By the wall clock, in milliseconds since 1970. For people.
    wall_ms: u64,
    /// By the boot clock, which all processes of a machine share until it restarts.
    boot: Option<(Boot, Moment)>,
}

impl TokenEnd {
    pub(crate) fn at(ends: Moment) -> TokenEnd {
        let left_ms = u64::try_from(ends.since(Moment::now()).as_millis()).unwrap_or(u64::MAX);
        TokenEnd {
            wall_ms: wall_ms().saturating_add(left_ms),
            boot: Boot::current().map(|boot| (boot, ends)),
        }
    }

    /// Returns the end on this process's lease clock. `None` if the lease comes from another machine, from before
    /// a restart of this one, from another time namespace, or in the first format. Wall clocks of two machines
    /// cannot be compared.
    pub(crate) fn here(self) -> Option<Moment> {
        self.boot.filter(|(boot, _)| Boot::current().as_ref() == Some(boot)).map(|(_, ends)| ends)
    }
}

impl LeaseToken {
    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// See [`Lease::mode`](crate::Lease::mode).
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// See [`Lease::epoch`](crate::Lease::epoch).
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch.or(self.fence.filter(|_| self.mode == Mode::Exclusive).map(Epoch::from))
    }

    /// See [`Lease::permit`](crate::Lease::permit).
    pub fn permit(&self) -> Option<u8> {
        self.permit
    }

    /// See [`Lease::fence`](crate::Lease::fence).
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Returns when the lease expires unless it is renewed, in milliseconds since 1970, by the wall clock of the
    /// machine that made this token.
    pub fn ends_ms(&self) -> u64 {
        self.ends.wall_ms
    }

    /// Encodes `key_len:u16 key fence:u64 (0 = none) ends_ms:u64 ttl_ms:u64 boot:[u8; 16] (0 = unknown)
    /// boot_clock_ends_ns:u64 store:u64 owner_record_len:u16 owner_record`, big-endian. Version 2 has no `store`. Version
    /// 1 also has neither `boot` nor `boot_clock_ends_ns`. Version 4 is for a lease that is not exclusive: it begins with
    /// `mode:u8`, and has the epoch in place of the fence, and 0 as the store if that is not known. Of a permit, `permit:u8` comes
    /// next, and it has its fence.
    fn encode(&self) -> Vec<u8> {
        let key = self.name.key().as_bytes();
        let mut bytes = Vec::with_capacity(59 + key.len() + self.owner_record.as_bytes().len());
        let is_exclusive = self.mode == Mode::Exclusive;
        if !is_exclusive {
            bytes.push(self.mode.code());
            bytes.extend(self.permit);
        }
        // Fits in 16 bits: a name is at most about 1.6 KiB, which was checked when it was made.
        bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
        bytes.extend_from_slice(key);
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let number = self.fence.map(|fence| fence.0).or(self.epoch.map(|epoch| epoch.0));
        for number in [number.unwrap_or_default(), self.ends.wall_ms, ttl_ms] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        let (boot, ends) = self.ends.boot.unwrap_or((UNKNOWN_BOOT, Moment::OVER));
        bytes.extend_from_slice(boot.as_bytes());
        bytes.extend_from_slice(&ends.as_nanos().to_be_bytes());
        if let Some(StoreId(store)) = self.store.or((!is_exclusive).then_some(StoreId(0))) {
            bytes.extend_from_slice(&store.to_be_bytes());
        }
        // Fits too: the parts of an owner record are at most 255 bytes each.
        bytes.extend_from_slice(&(self.owner_record.as_bytes().len() as u16).to_be_bytes());
        bytes.extend_from_slice(self.owner_record.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8], version: Version) -> Option<LeaseToken> {
        let (mode, permit, bytes) = match version {
            Version::Four => {
                let (code, rest) = bytes.split_first()?;
                match Mode::from_code(*code).filter(|mode| *mode != Mode::Exclusive)? {
                    Mode::Permit => {
                        let (permit, rest) = rest.split_first()?;
                        (Mode::Permit, Some(*permit), rest)
                    }
                    mode => (mode, None, rest),
                }
            }
            _ => (Mode::Exclusive, None, bytes),
        };
        let (key_len, rest) = bytes.split_first_chunk::<2>()?;
        let (key, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*key_len)))?;
        let (fence, rest) = rest.split_first_chunk::<8>()?;
        let (ends_ms, rest) = rest.split_first_chunk::<8>()?;
        let (ttl_ms, rest) = rest.split_first_chunk::<8>()?;
        let (boot, rest) = match version {
            Version::One => (None, rest),
            Version::Two | Version::Three | Version::Four => {
                let (boot, rest) = rest.split_first_chunk::<{ Boot::LEN }>()?;
                let (ends, rest) = rest.split_first_chunk::<8>()?;
                let ends = Moment::from_nanos(u64::from_be_bytes(*ends));
                (Some((Boot::from_bytes(*boot), ends)).filter(|(boot, _)| *boot != UNKNOWN_BOOT), rest)
            }
        };
        let (store, rest) = match version {
            Version::One | Version::Two => (None, rest),
            Version::Three => {
                let (store, rest) = rest.split_first_chunk::<8>()?;
                (Some(StoreId(u64::from_be_bytes(*store))), rest)
            }
            Version::Four => {
                let (store, rest) = rest.split_first_chunk::<8>()?;
                let id = u64::from_be_bytes(*store);
                ((id != 0).then_some(StoreId(id)), rest)
            }
        };
        let (owner_record_len, owner_record) = rest.split_first_chunk::<2>()?;
        // Refuses a text that was cut by a careless copy.
        if owner_record.is_empty() || owner_record.len() != usize::from(u16::from_be_bytes(*owner_record_len))
        {
            return None;
        }
        let number = Some(u64::from_be_bytes(*fence)).filter(|number| *number != 0);
        let has_fence = matches!(mode, Mode::Exclusive | Mode::Permit);
        let ttl = checked_ttl(Duration::from_millis(u64::from_be_bytes(*ttl_ms))).ok()?;
        Some(LeaseToken {
            name: LockName::from_key(std::str::from_utf8(key).ok()?).ok()?,
            mode,
            fence: number.filter(|_| has_fence).map(Fence),
            epoch: number.filter(|_| !has_fence).map(Epoch),
            permit,
            ends: TokenEnd { wall_ms: u64::from_be_bytes(*ends_ms), boot },
            ttl,
            owner_record: OwnerRecord::from_bytes(owner_record),
            store,
        })
    }
}

#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
    Three,
    Four,
}

const UNKNOWN_BOOT: Boot = Boot::from_bytes([0; Boot::LEN]);

/// Writes the secret text.
impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.mode, self.store) {
            (Mode::Exclusive, Some(_)) => PREFIX,
            (Mode::Exclusive, None) => PREFIX_2,
            _ => PREFIX_4,
        })?;
        self.encode().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for LeaseToken {
    type Err = Error;

    /// Reads the text of a token, ignoring white space around it.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the text is not a complete lease. The message
    /// does not repeat the text.
    fn from_str(text: &str) -> Result<LeaseToken> {
        let text = text.trim();
        let versions = [
            (PREFIX, Version::Three),
            (PREFIX_4, Version::Four),
            (PREFIX_2, Version::Two),
            (PREFIX_1, Version::One),
        ];
        versions
            .into_iter()
            .find_map(|(prefix, version)| Some((unhex(text.strip_prefix(prefix)?)?, version)))
            .and_then(|(bytes, version)| LeaseToken::decode(&bytes, version))
            .ok_or_else(|| Error::InvalidArgument {
                what: "lease",
                value: "(not shown)".into(),
                allowed: "the whole line that `dlm acquire` printed".into(),
            })
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseToken")
            .field("name", &self.name)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl LeaseToken {
    /// Returns the token as if another machine had made it.
    pub(crate) fn of_another_boot(mut self) -> LeaseToken {
        self.ends.boot = self.ends.boot.map(|(_, ends)| (Boot::from_bytes([7; Boot::LEN]), ends));
        self
    }

    /// Returns the text in the second format.
    pub(crate) fn in_version_2(&self) -> String {
        LeaseToken { store: None, ..self.clone() }.to_string()
    }

    /// Returns the text in the first format.
    pub(crate) fn in_version_1(&self) -> String {
        let bytes = LeaseToken { store: None, ..self.clone() }.encode();
        let boot_at = 2 + self.name.key().len() + 3 * 8;
        let (head, rest) = bytes.split_at(boot_at);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{PREFIX_1}{}{}", hex(head), hex(&rest[Boot::LEN + 8..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};

    fn sample(owner_record_len: usize) -> LeaseToken {
        LeaseToken {
            name: LockName::new(Level::Dc, "svc", Some("dc1"), "a#b é", NamePolicy::Strict).unwrap(),
            mode: Mode::Exclusive,
            fence: Some(Fence(77)),
            epoch: None,
            permit: None,
            ends: TokenEnd {
                wall_ms: 1_800_000_000_000,
                boot: Some((Boot::from_bytes([7; Boot::LEN]), Moment::from_nanos(5_000_000_000))),
            },
            ttl: Duration::from_secs(90),
            owner_record: OwnerRecord::from_bytes(vec![0xab; owner_record_len]),
            store: Some(StoreId::of("embedded:/tmp/a")),
        }
    }

    #[test]
    fn a_lease_survives_the_way_through_text() {
        for owner_record_len in [1, 16, 255, 700] {
            let token = sample(owner_record_len);
            assert_eq!(format!(" {token}\n").parse::<LeaseToken>().unwrap(), token);
        }
        let unknown = TokenEnd { boot: None, ..sample(16).ends };
        let unknown = LeaseToken { ends: unknown, ..sample(16) };
        assert_eq!(unknown.to_string().parse::<LeaseToken>().unwrap(), unknown);
        let unfenced = LeaseToken { fence: None, ..sample(16) };
        assert_eq!(unfenced.to_string().parse::<LeaseToken>().unwrap().fence(), None);
    }

    /// Processes of different versions may hand on leases while a fleet is updated.
    #[test]
    fn texts_of_all_versions_are_read_and_the_format_does_not_change() {
        const HEAD: &str = "0011444323646331237376632361236220c3a9000000000000004d000001a3185c50000000000000\
                            015f90";
        const BOOT: &str = "07070707070707070707070707070707000000012a05f200";
        const PROOF: &str = "0004abababab";
        const STORE: &str = "410d510d3ebe4ed9";
        let token = sample(4);
        assert_eq!(token.to_string(), format!("dlm3.{HEAD}{BOOT}{STORE}{PROOF}"));
        assert_eq!(token.to_string().parse::<LeaseToken>().unwrap(), token);
        let second = LeaseToken { store: None, ..token.clone() };
        assert_eq!(token.in_version_2(), format!("dlm2.{HEAD}{BOOT}{PROOF}"));
        assert_eq!(token.in_version_2().parse::<LeaseToken>().unwrap(), second);
        let first: LeaseToken = format!("dlm1.{HEAD}{PROOF}").parse().unwrap();
        assert_eq!(first, LeaseToken { ends: TokenEnd { boot: None, ..token.ends }, ..second });
        assert_eq!(token.in_version_1(), format!("dlm1.{HEAD}{PROOF}"));
        assert!(format!("dlm1.{HEAD}{BOOT}{PROOF}").parse::<LeaseToken>().is_err());
        assert!(format!("dlm2.{HEAD}{BOOT}{STORE}{PROOF}").parse::<LeaseToken>().is_err());
        assert!(format!("dlm3.{HEAD}{BOOT}{PROOF}").parse::<LeaseToken>().is_err());
        assert!(format!("dlm2.{HEAD}{PROOF}").parse::<LeaseToken>().is_err());
    }

    /// Versions without modes refuse the prefix. They would take a reader for the one holder.
    #[test]
    fn a_lease_that_is_not_exclusive_has_a_prefix_of_its_own() {
        let token = LeaseToken { mode: Mode::Shared, fence: None, epoch: Some(Epoch(77)), ..sample(4) };
        let text = token.to_string();
        let exclusive = sample(4).to_string();
        assert_eq!(text, format!("dlm4.01{}", exclusive.strip_prefix("dlm3.").unwrap()));
        assert_eq!(text.parse::<LeaseToken>().unwrap(), token);
        let unknown = LeaseToken { mode: Mode::Update, store: None, ..token.clone() };
        assert_eq!(unknown.to_string().parse::<LeaseToken>().unwrap(), unknown);
        for (code, why) in [("00", "exclusive"), ("03", "a mode to come")] {
            let other = text.replacen("dlm4.01", &format!("dlm4.{code}"), 1);
            assert!(other.parse::<LeaseToken>().is_err(), "{why}");
        }
        for cut in 0..text.len() {
            assert!(text[..cut].parse::<LeaseToken>().is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_cut_or_foreign_text_is_refused_without_repeating_it() {
        let text = sample(16).to_string();
        for cut in 0..text.len() {
            assert!(text[..cut].parse::<LeaseToken>().is_err(), "cut at {cut}");
        }
        for text in [
            "", "dlm1.", "dlm2.", "dlm2.zz", "dlm2.é0", "dlm1.00", "dlm2.00", "dlm3.", "dlm3.00", "dlm4.00",
            "dlm5.00", "+1", "dlm4.", "dlm4.01",
        ] {
            let error = text.parse::<LeaseToken>().unwrap_err();
            assert_eq!(error.code(), crate::Code::InvalidArgument);
        }
        let error = "dlm3.534543524554".parse::<LeaseToken>().unwrap_err();
        assert!(!error.to_string().contains("53454"), "{error}");
    }

    #[test]
    fn debug_output_does_not_hold_the_proof() {
        assert!(!format!("{:?}", sample(16)).contains("ab, ab"));
        assert!(!format!("{:?}", sample(16)).contains("abab"));
    }
}

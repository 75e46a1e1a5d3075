//! Names and numbers in Aerospike: sets, keys, bins, whole seconds. Pure functions.
//!
//! | what | set | key | bins |
//! |---|---|---|---|
//! | lock, level DC | `DC#<farm>#<suffix>` | `<client>#<id>` | `<farm>##data`, `<farm>##uat`, ours |
//! | lock, level XDC | `XDC#<suffix>` | `<client>#<id>` | `##data`, `##uat`, ours |
//! | lock, layout `own` | as the two above | | see [`own_bins`] |
//! | processes that wait for a lock exclusively | `D_WAIT#<suffix>` | the lock's whole name | `waits` |
//! | fence of a lock | `D_FNC#<suffix>` | the lock's whole name | `fence` |
//! | history of a lock | `D_HIST#<suffix>` | the lock's whole name | `entries` |
//! | breaks of a grant | `D_HIST#<suffix>` | the lock's whole name, a NUL, the grant's number in 16 hexadecimal digits | `entries` |
//! | latch | `D_LTCH#<suffix>` | `D_LTCH#<client>#<id>` | `count#<farm>`, ours for each farm, [`LISTENERS`], [`LATCH`] |
//!
//! Locks and latches have the names of PhonePe's DLM 1.0.1 and DistributedLatch 1.0.0-2. The Java libraries never
//! read a lock's bins, only whether the record exists. For a latch they add up every bin whose name contains
//! `count#`, so the other bins of this library must not contain it.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerToken;
use crate::store::HistoryOf;

/// Limits of Aerospike.
const BIN_BYTES_MAX: usize = 15;
const SET_BYTES_MAX: usize = 63;
const NAMESPACE_BYTES_MAX: usize = 31;
/// The room for the farm in a bin's name beside `count#` or `##data`.
pub(crate) const FARM_BYTES_MAX: usize = BIN_BYTES_MAX - "count#".len();
/// The longest set name is `DC#<farm>#<suffix>`.
pub(crate) const SUFFIX_BYTES_MAX: usize = SET_BYTES_MAX - "DC##".len() - FARM_BYTES_MAX;

/// The bin of a fence's record.
pub(crate) const FENCE: &str = "fence";
/// The bin of a latch's record with the processes that wait for it: a map from endpoints to notes.
pub(crate) const LISTENERS: &str = "hears";
/// The bin of a latch's record with `<client>#<id>`, for lists: the server keeps only a digest of the key. Java
/// does not write it.
pub(crate) const LATCH: &str = "latch";
/// A fence is kept this long after its last use.
pub(crate) const FENCE_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// The bins of this library in a lock's record in the layout `java`.
pub(crate) mod java_bins {
    /// The token of the lease.
    pub(crate) const TOKEN: &str = "dlm_token";
    /// The holder.
    pub(crate) const WHO: &str = "dlm_who";
    /// The full name of the lock: see [`own_bins::NAME`](super::own_bins::NAME).
    pub(crate) const NAME: &str = "dlm_name";
}

/// The bins of a lock's record in the layout `own`.
pub(crate) mod own_bins {
    /// The token of the last lease.
    pub(crate) const TOKEN: &str = "own_token";
    /// How long the lease lasts since the record was written, in milliseconds. -1 after a release. Each record of the
    /// layout has this bin, and no other record does.
    pub(crate) const LASTS_MS: &str = "own_lasts_ms";
    /// The value of [`LASTS_MS`] in the record of a free lock.
    pub(crate) const RELEASED: i64 = -1;
    /// The last fence. Negative until it was compared with the fence of the layout `java`.
    pub(crate) const FENCE: &str = "own_fence";
    /// The holder.
    pub(crate) const WHO: &str = "own_who";
    /// The full name of the lock, for lists: the server keeps only a digest of the key. Versions of this library without
    /// lists do not write it.
    pub(crate) const NAME: &str = "own_name";
    /// The holds in other modes than exclusive, while the token is [`BASE`](super::BASE): a map from [keys](super::hold_key) to
    /// lists of the end in milliseconds since 1970, the length in milliseconds, and the holder. For a permit of a semaphore its
    /// number and its fence follow.
    pub(crate) const HOLDS: &str = "own_holds";
    /// The end of the turn of the readers, in milliseconds since 1970.
    pub(crate) const TURN: &str = "own_turn";
    /// Until when processes may wait for the lock exclusively, in milliseconds since 1970. Who finds it over need not read
    /// their [record](super::waits_key).
    pub(crate) const WAITS: &str = "own_waits";
    /// The number of permits of a semaphore.
    pub(crate) const SIZE: &str = "own_size";
}

/// The token of a lock that is held in other modes than exclusive. It is nobody's: those of leases are random.
pub(crate) const BASE: [u8; OwnerToken::LEN] = *b"dlm-several-hold";

/// Returns the key of a hold in the map [`HOLDS`](own_bins::HOLDS): the code of the mode and the token.
pub(crate) fn hold_key(mode: Mode, token: &OwnerToken) -> [u8; 1 + OwnerToken::LEN] {
    let mut key = [mode.code(); 1 + OwnerToken::LEN];
    key[1..].copy_from_slice(token.as_bytes());
    key
}

/// The set and the key of a record in the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordKey {
    pub(crate) set: String,
    pub(crate) key: String,
}

/// A lock's keys in a namespace.
#[derive(Debug)]
pub(crate) struct LockKeys {
    pub(crate) lock: RecordKey,
    /// The farm in the names of the bins that the Java library writes. Empty for level XDC.
    farm: String,
}

impl LockKeys {
    /// Returns the keys of a lock.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a farm id that makes the names of its bins too long.
    pub(crate) fn of(name: &LockName, suffix: &str) -> Result<LockKeys> {
        let (farm, key) = name.farm_and_rest();
        let set = match farm {
            Some(farm) => format!("DC#{}#{suffix}", checked_farm(farm)?),
            None => format!("XDC#{suffix}"),
        };
        Ok(LockKeys {
            lock: RecordKey { set, key: key.to_owned() },
            farm: farm.unwrap_or_default().to_owned(),
        })
    }

    pub(crate) fn data_bin(&self) -> String {
        format!("{}##data", self.farm)
    }

    pub(crate) fn updated_bin(&self) -> String {
        format!("{}##uat", self.farm)
    }
}

/// Returns whether `bin` holds the time at which a lock's record was written.
pub(crate) fn is_updated(bin: &str) -> bool {
    bin.ends_with("##uat")
}

/// Returns the key of the lock's fence. The fence has a separate record, because a Java client deletes the lock's
/// record.
pub(crate) fn fence_key(name: &LockName, suffix: &str) -> RecordKey {
    RecordKey { set: fence_set(suffix), key: name.key().to_owned() }
}

/// Returns the key of the history of a lock, or of the breaks of a grant. No name contains a NUL.
pub(crate) fn history_key(of: HistoryOf<'_>, suffix: &str) -> RecordKey {
    let key = match of {
        HistoryOf::Lock(name) => name.key().to_owned(),
        HistoryOf::Grant(name, grant) => format!("{}\0{grant:016x}", name.key()),
    };
    RecordKey { set: format!("D_HIST#{suffix}"), key }
}

/// Returns the key of the record with the processes that wait for the lock exclusively.
pub(crate) fn waits_key(name: &LockName, suffix: &str) -> RecordKey {
    RecordKey { set: format!("D_WAIT#{suffix}"), key: name.key().to_owned() }
}

/// Returns the set of the fences.
pub(crate) fn fence_set(suffix: &str) -> String {
    format!("D_FNC#{suffix}")
}

/// A latch's record, and the bins of one farm in it.
#[derive(Debug)]
pub(crate) struct LatchKeys {
    pub(crate) record_key: RecordKey,
    pub(crate) count: String,
    /// The bin with the map of marked steps: names of participants that have counted, and numbers of other steps.
    pub(crate) steps: String,
    /// The bin with the list of expected participants.
    pub(crate) due: String,
    /// The bin with the random bytes of the incarnation. A step for one incarnation does not count in another with
    /// the same name. The bin is missing if the count was created by Java, or by an old version of this library.
    pub(crate) made: String,
}

impl LatchKeys {
    /// Returns the keys of a latch.
    ///
    /// # Errors
    /// As for [`LockKeys::of`].
    pub(crate) fn of(name: &LatchName, suffix: &str) -> Result<LatchKeys> {
        let farm = checked_farm(name.farm())?;
        Ok(LatchKeys {
            record_key: RecordKey {
                set: latch_set(suffix),
                key: format!("D_LTCH#{}#{}", name.client(), name.id()),
            },
            count: format!("count#{farm}"),
            steps: format!("steps#{farm}"),
            due: format!("due#{farm}"),
            made: format!("made#{farm}"),
        })
    }
}

/// Returns the set of the latches.
pub(crate) fn latch_set(suffix: &str) -> String {
    format!("D_LTCH#{suffix}")
}

/// Returns whether the Java library takes the bin for a farm's count.
pub(crate) fn is_count(bin: &str) -> bool {
    bin.contains("count#")
}

fn checked_farm(farm: &str) -> Result<&str> {
    if farm.len() <= FARM_BYTES_MAX {
        return Ok(farm);
    }
    let allowed = format!(
        "at most {FARM_BYTES_MAX} bytes in Aerospike, because a bin name (here count#<farm>) has at most \
         {BIN_BYTES_MAX} bytes"
    );
    Err(Error::invalid("farm id", farm, allowed))
}

/// Checks `namespace/setSuffix` of a store's URI.
pub(crate) fn checked_suffix(namespace: &str, suffix: &str) -> Result<()> {
    checked_namespace(namespace)?;
    if !is_clean(suffix) || suffix.len() > SUFFIX_BYTES_MAX {
        let allowed = format!(
            "1 to {SUFFIX_BYTES_MAX} bytes without '/', ':' and ';', because the set name DC#<farm>#<suffix> \
             has at most {SET_BYTES_MAX} bytes"
        );
        return Err(Error::invalid("set suffix", suffix, allowed));
    }
    Ok(())
}

/// Checks `namespace/set` of an application's records.
pub(crate) fn checked_set(namespace: &str, set: &str) -> Result<()> {
    checked_namespace(namespace)?;
    if !is_clean(set) || set.len() > SET_BYTES_MAX {
        let allowed = format!("1 to {SET_BYTES_MAX} bytes without '/', ':' and ';'");
        return Err(Error::invalid("set", set, allowed));
    }
    if ["DC#", "XDC#", "D_FNC#", "D_HIST#", "D_LTCH#", "D_WAIT#"].iter().any(|ours| set.starts_with(ours)) {
        return Err(Error::invalid(
            "set",
            set,
            "a set that belongs to the application: this set is for locks and latches",
        ));
    }
    Ok(())
}

/// Checks the name of a bin in an application's record.
pub(crate) fn checked_bin(name: &str) -> Result<&str> {
    if (1..=BIN_BYTES_MAX).contains(&name.len()) && no_controls(name) {
        return Ok(name);
    }
    Err(Error::invalid("bin", name, format!("1 to {BIN_BYTES_MAX} bytes without control characters")))
}

fn checked_namespace(namespace: &str) -> Result<()> {
    if is_clean(namespace) && namespace.len() <= NAMESPACE_BYTES_MAX {
        return Ok(());
    }
    let allowed = format!("1 to {NAMESPACE_BYTES_MAX} bytes without '/', ':' and ';'");
    Err(Error::invalid("namespace", namespace, allowed))
}

fn is_clean(text: &str) -> bool {
    !text.is_empty() && !text.contains(['/', ':', ';']) && no_controls(text)
}

fn no_controls(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// Returns `ttl` in whole seconds, rounded up. Never zero, which would select the namespace's default TTL.
pub(crate) fn whole_seconds(ttl: Duration) -> u32 {
    // The longest TTL that a manager accepts is a year.
    let seconds = ttl.as_nanos().div_ceil(1_000_000_000).max(1);
    u32::try_from(seconds).unwrap_or(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};

    fn lock(level: Level, farm: Option<&str>) -> LockName {
        LockName::new(level, "CLIENT_ID", farm, "LOCK#ID", NamePolicy::Strict).unwrap()
    }

    /// The Java classes are `AerospikeStore` and `AerospikeLatchStorage`.
    #[test]
    fn sets_keys_and_bins_are_those_of_the_java_libraries() {
        let dc = LockKeys::of(&lock(Level::Dc, Some("FA1")), "test").unwrap();
        assert_eq!(dc.lock, RecordKey { set: "DC#FA1#test".into(), key: "CLIENT_ID#LOCK#ID".into() });
        assert_eq!((dc.data_bin().as_str(), dc.updated_bin().as_str()), ("FA1##data", "FA1##uat"));
        let xdc = LockKeys::of(&lock(Level::Xdc, None), "test").unwrap();
        assert_eq!(xdc.lock, RecordKey { set: "XDC#test".into(), key: "CLIENT_ID#LOCK#ID".into() });
        let latch = LatchName::new("CLIENT_ID", "FA1", "LATCH", NamePolicy::Strict).unwrap();
        let latch = LatchKeys::of(&latch, "test").unwrap();
        assert_eq!(
            latch.record_key,
            RecordKey { set: "D_LTCH#test".into(), key: "D_LTCH#CLIENT_ID#LATCH".into() }
        );
        assert_eq!(latch.count, "count#FA1");
        assert!(is_count(&latch.count));
        let others = [&latch.steps, &latch.due, &latch.made];
        assert!(others.into_iter().map(String::as_str).chain([LISTENERS, LATCH]).all(|bin| !is_count(bin)));
    }

    #[test]
    fn the_longest_farm_and_suffix_fit_and_longer_ones_are_refused_with_the_limit() {
        let (farm, suffix) = ("f".repeat(FARM_BYTES_MAX), "s".repeat(SUFFIX_BYTES_MAX));
        let keys = LockKeys::of(&lock(Level::Dc, Some(&farm)), &suffix).unwrap();
        assert_eq!((keys.lock.set.len(), keys.data_bin().len()), (SET_BYTES_MAX, BIN_BYTES_MAX));
        assert!(fence_key(&lock(Level::Dc, Some(&farm)), &suffix).set.len() <= SET_BYTES_MAX);
        let latch = LatchName::new("c", &farm, "l", NamePolicy::Strict).unwrap();
        let latch = LatchKeys::of(&latch, &suffix).unwrap();
        assert!(latch.record_key.set.len() <= SET_BYTES_MAX);
        assert!(
            [&latch.count, &latch.steps, &latch.due, &latch.made]
                .iter()
                .all(|bin| bin.len() <= BIN_BYTES_MAX)
        );

        let error = LockKeys::of(&lock(Level::Dc, Some(&format!("{farm}f"))), "s").unwrap_err();
        assert!(error.to_string().contains("at most 9 bytes"), "{error}");
        assert!(checked_suffix("test", &suffix).is_ok());
        let error = checked_suffix("test", &format!("{suffix}s")).unwrap_err();
        assert!(error.to_string().contains("1 to 50 bytes"), "{error}");
        for (namespace, suffix) in [("", "s"), ("n", ""), ("a/b", "s"), ("n", "a;b"), ("n", "a\nb")] {
            assert!(checked_suffix(namespace, suffix).is_err(), "{namespace:?} {suffix:?}");
        }
    }

    #[test]
    fn a_ttl_is_rounded_up_to_seconds_and_never_becomes_the_namespaces_default() {
        for (ms, seconds) in
            [(1, 1), (999, 1), (1000, 1), (1001, 2), (90_000, 90), (31_536_000_000, 31_536_000)]
        {
            assert_eq!(whole_seconds(Duration::from_millis(ms)), seconds, "{ms} ms");
        }
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert!(whole_seconds(Duration::MAX) > 0);
    }
}

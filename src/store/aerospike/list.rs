//! Lists of the locks in a namespace, of both layouts, and of its latches.
//!
//! A set has the locks of one farm, or those of level XDC. Each set is read by ranges of its partitions. A record is in
//! one partition only, so no lock is read twice. A record contains the name of its lock if this library wrote it. The same
//! holds for latches, which have one set.

use std::collections::{BTreeMap, HashSet};

use super::client::{BinValue, Client, FoundRecord, PARTITIONS, RecordDigest, SetPart, When};
use super::keys::{LATCH, LockKeys, RecordKey, java_bins, latch_set, own_bins};
use super::nodes::Node;
use super::standing::{STANDING_READS, java_record, own};
use crate::error::Result;
use crate::names::fence::Fence;
use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::LockName;
use crate::runtime::time::Deadline;
use crate::store::layout::Layout;
use crate::store::remote::Standing;
use crate::store::{LatchPage, LatchQuery, ListCursor, ListedLatch, ListedLock, LockPage, LockQuery};

/// Where a page begins: a partition of a set.
struct SetPosition {
    set: String,
    partition: usize,
}

impl SetPosition {
    /// `partition:u16`, then the set.
    fn encode(&self) -> ListCursor {
        ListCursor::from_bytes([&(self.partition as u16).to_be_bytes(), self.set.as_bytes()].concat())
    }

    fn decode(cursor: &ListCursor) -> Result<SetPosition> {
        let split = || {
            let (partition, set) = cursor.as_bytes().split_first_chunk()?;
            let partition = usize::from(u16::from_be_bytes(*partition));
            (partition < PARTITIONS).then_some(())?;
            Some(SetPosition { set: std::str::from_utf8(set).ok()?.to_owned(), partition })
        };
        split().ok_or_else(|| cursor.refused())
    }
}

/// Reads the locks of some partitions of one set.
pub(super) fn page(
    client: &Client,
    suffix: &str,
    query: &LockQuery,
    after: Option<&ListCursor>,
    most: usize,
    by: Deadline,
) -> Result<LockPage> {
    let nodes = Node::ask_all(client, &[], by)?;
    let sets = sets_of_locks(&nodes, suffix, query.prefix_text());
    let at = match after.map(SetPosition::decode).transpose()? {
        Some(at) => at,
        None => match sets.first() {
            Some(set) => SetPosition { set: set.clone(), partition: 0 },
            None => return Ok(LockPage::default()),
        },
    };
    let objects: u64 = nodes.iter().map(|node| node.objects(&at.set)).sum();
    let count = partitions_of_page(objects, most).min(PARTITIONS - at.partition);
    let part = SetPart { set: &at.set, begin: at.partition, count };
    let held = client.read_part(&part, &When::HeldInAny { lasts_ms: own_bins::LASTS_MS }, by)?;
    let free = match query.is_held_only() {
        true => Vec::new(),
        false => client.read_part(&part, &When::Free { lasts_ms: own_bins::LASTS_MS }, by)?,
    };
    // A node that has just taken over a partition may send it once more. A lock may be released between the two reads.
    let mut seen = HashSet::new();
    let held = held.into_iter().map(|(digest, found)| (digest, found, true));
    let both = held.chain(free.into_iter().map(|(digest, found)| (digest, found, false)));
    let read: Vec<_> = both.filter(|(digest, ..)| seen.insert(*digest)).collect();
    let mut locks: Vec<_> = read
        .iter()
        .map(|(digest, found, is_held)| listed(&at.set, suffix, digest, found, *is_held))
        .filter(|lock| lock.key.starts_with(query.prefix_text()))
        .collect();
    tell_ends(client, suffix, &mut locks, by);
    let next = match at.partition + count {
        partition if partition < PARTITIONS => Some(SetPosition { set: at.set, partition }),
        _ => sets.into_iter().find(|set| *set > at.set).map(|set| SetPosition { set, partition: 0 }),
    };
    Ok(LockPage::new(locks, next.map(|next| next.encode())))
}

/// Reads the latches of some partitions of their set.
pub(super) fn latches(client: &Client, suffix: &str, asked: &LatchQuery<'_>) -> Result<LatchPage> {
    let set = latch_set(suffix);
    let begin = match asked.after.map(SetPosition::decode).transpose()? {
        Some(at) if at.set == set => at.partition,
        Some(_) => return Err(asked.after.map(ListCursor::refused).expect("it was decoded")),
        None => 0,
    };
    let objects: u64 = Node::ask_all(client, &[], asked.by)?.iter().map(|node| node.objects(&set)).sum();
    let count = partitions_of_page(objects, asked.most).min(PARTITIONS - begin);
    let part = SetPart { set: &set, begin, count };
    // Of any time.
    let found = client.read_part(&part, &When::WrittenAfter(0), asked.by)?;
    let mut seen = HashSet::new();
    let listed = found.iter().filter(|(digest, _)| seen.insert(*digest));
    let listed = listed.filter_map(|(digest, found)| listed_latch(&set, asked, digest, found)).collect();
    let partition = begin + count;
    let next = (partition < PARTITIONS).then(|| SetPosition { set, partition }.encode());
    Ok(LatchPage::new(listed, next))
}

/// Returns `None` for a record without counts, and for the latch of another client.
fn listed_latch(
    set: &str,
    asked: &LatchQuery<'_>,
    digest: &[u8; 20],
    found: &FoundRecord,
) -> Option<ListedLatch> {
    let counts: BTreeMap<String, i64> = found
        .bins
        .iter()
        .filter_map(|(bin, value)| match value {
            BinValue::Int(count) => Some((bin.strip_prefix("count#")?.to_owned(), *count)),
            _ => None,
        })
        .collect();
    if counts.is_empty() {
        return None;
    }
    // A record with the name of another latch would hide that one.
    let is_its = |text: &&str| {
        let key = RecordKey { set: set.to_owned(), key: format!("D_LTCH#{text}") };
        RecordDigest::of(&key).as_bytes() == digest
    };
    let Some(text) = found.text(LATCH).filter(is_its) else {
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        return Some(ListedLatch::unnamed(format!("{set} {digest}"), counts));
    };
    let id = text.strip_prefix(asked.client)?.strip_prefix('#')?;
    id.starts_with(asked.prefix).then(|| ListedLatch::new(asked.client, id, counts))
}

/// Returns the sets of locks with names of this prefix, sorted.
fn sets_of_locks(nodes: &[Node], suffix: &str, prefix: &str) -> Vec<String> {
    let xdc = format!("XDC#{suffix}");
    // The name of a lock begins like that of its set: `DC#<farm>#` or `XDC#`. A record without a name has the name of
    // its set and a space.
    let fits = |set: &&str| {
        let begin = set.strip_suffix(suffix).unwrap_or(set);
        prefix.starts_with(begin) || begin.starts_with(prefix) || set.starts_with(prefix.trim_end())
    };
    let is_locks =
        |set: &&str| *set == xdc || (set.starts_with("DC#") && set.ends_with(&format!("#{suffix}")));
    let mut sets: Vec<_> =
        nodes.iter().flat_map(Node::set_names).filter(is_locks).filter(fits).map(str::to_owned).collect();
    sets.sort_unstable();
    sets.dedup();
    sets
}

/// Returns how many partitions of a set with so many records have about `most` records.
fn partitions_of_page(objects: u64, most: usize) -> usize {
    let wanted = (most.max(1) as u64).saturating_mul(PARTITIONS as u64) / objects.max(1);
    usize::try_from(wanted).unwrap_or(PARTITIONS).clamp(1, PARTITIONS)
}

fn listed(set: &str, suffix: &str, digest: &[u8; 20], found: &FoundRecord, is_held: bool) -> ListedLock {
    let is_own = found.bin(own_bins::LASTS_MS).is_some();
    let name_bin = if is_own { own_bins::NAME } else { java_bins::NAME };
    // A record with the name of another lock would hide that lock in a list.
    let key = |name: &LockName| LockKeys::of(name, suffix).ok().map(|keys| keys.lock);
    let name = found.text(name_bin).and_then(|text| LockName::from_key(text).ok());
    let name = name.filter(|name| {
        key(name).is_some_and(|key| key.set == set && RecordDigest::of(&key).as_bytes() == digest)
    });
    let lock = match name {
        Some(name) => ListedLock::new(name),
        None => {
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            ListedLock::unnamed(format!("{set} {digest}"))
        }
    };
    let holder = || match is_own {
        true => Holder::new(found.bytes(own_bins::WHO).and_then(Identity::decode), None, None),
        false => java_record(found).holder(),
    };
    let fence = found.int(own_bins::FENCE).filter(|_| is_own).map(i64::unsigned_abs).map(Fence);
    let layout = Some(if is_own { Layout::Own.name() } else { Layout::Java.name() });
    ListedLock { holder: is_held.then(holder), fence, layout, ..lock }
}

/// Asks for the remaining time of leases in the layout `own`, which a scan does not return. It is only for people.
fn tell_ends(client: &Client, suffix: &str, locks: &mut [ListedLock], by: Deadline) {
    let key = |lock: &ListedLock| Some(LockKeys::of(lock.name.as_ref()?, suffix).ok()?.lock);
    let is_asked = |lock: &ListedLock| lock.layout == Some(Layout::Own.name()) && lock.holder.is_some();
    let (indexes, keys): (Vec<usize>, Vec<RecordKey>) = locks
        .iter()
        .enumerate()
        .filter(|(_, lock)| is_asked(lock))
        .filter_map(|(index, lock)| Some((index, key(lock)?)))
        .unzip();
    client.read_steps_many(&keys, &STANDING_READS, by, &mut |at, found| {
        if let Some(Standing::Held(found)) = found.as_ref().map(own) {
            locks[indexes[at]].holder = Some(found.holder());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_all_partitions_of_a_small_set_and_few_of_a_large_one() {
        assert_eq!(partitions_of_page(0, 500), PARTITIONS);
        assert_eq!(partitions_of_page(500, 500), PARTITIONS);
        assert_eq!(partitions_of_page(10_000, 500), 204);
        assert_eq!(partitions_of_page(u64::MAX, 500), 1);
        assert_eq!(partitions_of_page(1000, 0), 4);
    }

    #[test]
    fn only_sets_that_may_have_such_names_are_read() {
        let sets =
            "set=XDC#locks;set=DC#eu#locks;set=DC#us#locks;set=D_FNC#locks;set=XDC#other;set=D_LTCH#locks";
        let answers = ["", "", "", sets, ""].map(str::to_owned);
        let nodes = [Node::of("a".into(), answers.to_vec())];
        let all = ["DC#eu#locks", "DC#us#locks", "XDC#locks"];
        for (prefix, expected) in [
            ("", &all[..]),
            ("DC#", &all[..2]),
            ("DC#eu#orders#7", &all[..1]),
            ("XDC#orders", &all[2..]),
            ("XDC#locks 00ff", &all[2..]),
            ("other", &[]),
        ] {
            assert_eq!(sets_of_locks(&nodes, "locks", prefix), expected, "{prefix}");
        }
    }

    #[test]
    fn a_cursor_that_this_list_did_not_make_is_refused() {
        let cursor = SetPosition { set: "XDC#locks".into(), partition: 4095 }.encode();
        assert_eq!(SetPosition::decode(&cursor).unwrap().partition, 4095);
        for bytes in [&b""[..], b"\x10", b"\x10\x00XDC#locks", b"\0\0\xff"] {
            assert!(SetPosition::decode(&ListCursor::from_bytes(bytes)).is_err(), "{bytes:?}");
        }
    }
}

//! A million names of locks and latches, drawn at random. Two different names never have the same key, and a refused
//! part is never part of a key.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

#[cfg(feature = "hbase")]
use dlm::store::HbaseStore;
use dlm::{Code, LatchName, Level, LockName, NamePolicy};

const NAMES: usize = 1_000_000;

/// Characters that the keys are joined with, and others that are not allowed everywhere. One part in eight has them, so
/// careless keys would meet often.
const ODD: [&str; 6] = ["#", "\0", "\n", "a#b", "F#", ""];
const EVEN: [&str; 6] = ["_", "a", "b", "DC", "XDC", "é"];

fn part(random: &mut fastrand::Rng) -> String {
    let letters = if random.u8(..8) == 0 { ODD } else { EVEN };
    let mut part = String::from(letters[random.usize(..letters.len())]);
    (0..random.usize(..4)).for_each(|_| part.push_str(EVEN[random.usize(..EVEN.len())]));
    part
}

/// Remembers which name has which key. Stores hashes instead of texts, because a million names are many bytes. Two of
/// a million names have the same 64-bit hash in one of 30 million runs.
#[derive(Default)]
struct Seen {
    hasher: RandomState,
    by_key: HashMap<u64, u64>,
    names: usize,
}

impl Seen {
    #[track_caller]
    fn add(&mut self, key: &[u8], name: &(impl std::hash::Hash + std::fmt::Debug)) {
        self.names += 1;
        let name_hash = self.hasher.hash_one(name);
        let before = *self.by_key.entry(self.hasher.hash_one(key)).or_insert(name_hash);
        assert!(
            before == name_hash,
            "{name:?} and another name both have the key {:?}",
            String::from_utf8_lossy(key)
        );
    }
}

/// Returns whether a client or farm id is allowed in names that never meet.
fn is_strict(part: &str) -> bool {
    (1..=255).contains(&part.len()) && !part.chars().any(|c| c == '#' || c.is_control())
}

fn is_id(id: &str) -> bool {
    (1..=1024).contains(&id.len()) && !id.contains('\0')
}

/// Returns the rows in HBase, and what each is for.
fn rows_of(name: &LockName) -> Vec<(&'static str, Vec<u8>)> {
    #[cfg(feature = "hbase")]
    return vec![("lock", HbaseStore::lock_row(name)), ("fence", HbaseStore::fence_row(name))];
    #[cfg(not(feature = "hbase"))]
    return vec![("lock", name.key().as_bytes().to_vec())];
}

#[test]
fn of_a_million_lock_names_no_two_have_the_same_key() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut keys, mut rows) = (Seen::default(), Seen::default());
    let mut refused = 0;
    while keys.names < NAMES {
        let (client, farm, id) = (part(&mut random), part(&mut random), part(&mut random));
        let farm = random.bool().then_some(farm.as_str());
        let level = if farm.is_some() { Level::Dc } else { Level::Xdc };
        let allowed = is_strict(&client) && is_id(&id) && farm.is_none_or(is_strict);
        match LockName::new(level, &client, farm, &id, NamePolicy::Strict) {
            Ok(name) => {
                assert!(allowed, "{name} has a part that is not allowed");
                let from = (&client, farm, &id);
                keys.add(name.key().as_bytes(), &from);
                for (of, row) in rows_of(&name) {
                    rows.add(&row, &(from, of));
                }
            }
            Err(error) => {
                assert!(!allowed, "{client:?} {farm:?} {id:?}: {error}");
                assert_eq!(error.code(), Code::InvalidArgument, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > NAMES / 10, "only {refused} names were refused");
    assert!(keys.by_key.len() > NAMES / 100, "only {} of the names are different", keys.by_key.len());
}

/// The farm is not part of a latch's place: each farm has its own count in it.
#[test]
fn two_latch_names_are_equal_only_if_all_their_parts_are() {
    let mut random = fastrand::Rng::with_seed(fastrand::u64(..));
    let mut shown = Seen::default();
    for _ in 0..NAMES / 10 {
        let (client, farm, id) = (part(&mut random), part(&mut random), part(&mut random));
        let allowed = is_strict(&client) && is_strict(&farm) && is_id(&id);
        match LatchName::new(&client, &farm, &id, NamePolicy::Strict) {
            Ok(name) => {
                assert!(allowed, "{name} has a part that is not allowed");
                shown.add(name.to_string().as_bytes(), &(&client, &id));
            }
            Err(error) => assert!(!allowed, "{client:?} {farm:?} {id:?}: {error}"),
        }
    }
    assert!(shown.names > NAMES / 100, "only {} names were allowed", shown.names);
}

//! A set of short names in its stored form. Reading and writing it only copies bytes, because a latch with
//! thousands of participants is changed thousands of times.

use std::cmp::Ordering;

/// Names of 1 to 255 bytes, sorted, without duplicates. Each is stored as one length byte and the name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::store) struct NameSet {
    bytes: Vec<u8>,
}

impl NameSet {
    /// Decodes bytes from [`as_bytes`](NameSet::as_bytes). Returns `None` for any other bytes.
    #[cfg(any(feature = "embedded", test))]
    pub(in crate::store) fn from_bytes(bytes: &[u8]) -> Option<NameSet> {
        let (mut rest, mut last) = (bytes, None);
        while let Some((&length, after)) = rest.split_first() {
            let (name, after) = after.split_at_checked(length.into())?;
            std::str::from_utf8(name).ok().filter(|_| last < Some(name))?;
            (rest, last) = (after, Some(name));
        }
        Some(NameSet { bytes: bytes.to_vec() })
    }

    #[cfg(any(feature = "embedded", test))]
    pub(in crate::store) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the names in order.
    pub(in crate::store) fn to_vec(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut rest = self.bytes.as_slice();
        while let Some((&length, after)) = rest.split_first() {
            let (name, after) = after.split_at(length.into());
            names.push(String::from_utf8_lossy(name).into_owned());
            rest = after;
        }
        names
    }

    pub(in crate::store) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(in crate::store) fn contains(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Adds `name`. Returns `false` if it was already in the set.
    pub(in crate::store) fn insert(&mut self, name: &str) -> bool {
        let Err(at) = self.find(name) else { return false };
        self.bytes.splice(at..at, std::iter::once(length(name)).chain(name.bytes()));
        true
    }

    /// Removes `name`. Returns `false` if it was not in the set.
    pub(in crate::store) fn remove(&mut self, name: &str) -> bool {
        let Ok(at) = self.find(name) else { return false };
        self.bytes.drain(at..at + 1 + name.len());
        true
    }

    /// Returns the offset of `name`: `Ok` if it is in the set, `Err` with the place to insert it if not.
    fn find(&self, name: &str) -> Result<usize, usize> {
        let mut at = 0;
        while let Some(&length) = self.bytes.get(at) {
            let end = at + 1 + usize::from(length);
            match self.bytes[at + 1..end].cmp(name.as_bytes()) {
                Ordering::Less => at = end,
                Ordering::Equal => return Ok(at),
                Ordering::Greater => break,
            }
        }
        Err(at)
    }
}

fn length(name: &str) -> u8 {
    u8::try_from(name.len()).expect("the length of names was checked before")
}

impl<'a> FromIterator<&'a str> for NameSet {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> NameSet {
        let mut sorted: Vec<&str> = names.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        // Written in order, without a search for each name.
        let stored = sorted.into_iter().flat_map(|name| std::iter::once(length(name)).chain(name.bytes()));
        NameSet { bytes: stored.collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_behave_as_a_sorted_set_does_and_survive_storing() {
        let (mut names, mut model) = (NameSet::default(), BTreeSet::new());
        for _ in 0..5_000 {
            let name = "ab\u{e9}"[..fastrand::usize(1..=2)].repeat(fastrand::usize(1..6)) + "x";
            if fastrand::bool() {
                assert_eq!(names.insert(&name), model.insert(name));
            } else {
                assert_eq!(names.remove(&name), model.remove(&name));
            }
            assert_eq!(names.to_vec(), model.iter().cloned().collect::<Vec<_>>());
            assert_eq!(NameSet::from_bytes(names.as_bytes()).as_ref(), Some(&names));
        }
        let longest = "é".repeat(127);
        let made: NameSet = ["b", &longest, "a", "b"].into_iter().collect();
        assert_eq!(made.to_vec(), ["a", "b", &longest]);
    }

    #[test]
    fn what_is_no_set_of_names_is_refused() {
        for bytes in [&b"\x02a"[..], b"\x01\xff", b"\x01b\x01a", b"\x01a\x01a", b"\x05"] {
            assert_eq!(NameSet::from_bytes(bytes), None, "{bytes:?}");
        }
        assert_eq!(NameSet::from_bytes(b""), Some(NameSet::default()));
    }
}

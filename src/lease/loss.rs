//! Finds out why a lease was lost.

use crate::lease::held_lock::HeldLock;
use crate::names::history_entry::{HistoryEntry, HistoryKind};
use crate::names::lease_state::LostReason;
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerRecord;
use crate::runtime::time::Deadline;
use crate::store::{HISTORY_MAX, HistoryOf, LockStore};

/// Finds out why the record of a lease is gone. `unless_taken` is the reason unless another holder has the lock. Up to three
/// reads of the store.
pub(crate) fn find_reason(
    store: &dyn LockStore,
    lock: &HeldLock,
    owner_record: &OwnerRecord,
    unless_taken: LostReason,
    by: Deadline,
) -> LostReason {
    if is_broken(store, lock, owner_record, by) {
        return LostReason::Broken;
    }
    // Others may have acquired the lock because of it.
    if unless_taken == LostReason::ProcessStopped {
        return unless_taken;
    }
    match store.holder(lock.name(), by) {
        Ok(Some(_)) => LostReason::TakenOver,
        Ok(None) | Err(_) => unless_taken,
    }
}

/// Finds out whether an operator broke the lock. The lease remembers who and why.
pub(crate) fn is_broken(
    store: &dyn LockStore,
    lock: &HeldLock,
    owner_record: &OwnerRecord,
    by: Deadline,
) -> bool {
    let found = find_break(store, lock.name(), owner_record, by);
    found.map(|found| lock.broken(found)).is_some()
}

/// Finds out who broke the lock of the lease with this record, and why. Two reads of the store at most.
fn find_break(
    store: &dyn LockStore,
    name: &LockName,
    owner_record: &OwnerRecord,
    by: Deadline,
) -> Option<String> {
    let grant = store.grant_number(owner_record)?;
    // Without a history, or if it cannot be read, the lease is lost for a reason that is not known.
    let history = store.history()?;
    let read = |of| history.entries(of, 0, HISTORY_MAX, by).ok();
    let mut entries = read(HistoryOf::Grant(name, grant))?;
    if entries.is_empty() {
        // Earlier versions write a break only into the history of the lock.
        entries = read(HistoryOf::Lock(name))?;
    }
    let taken_back = |entry: &HistoryEntry| {
        entries.iter().any(|it| it.kind == HistoryKind::NotBroken && it.takes_back == entry.id)
    };
    let is_ours = |entry: &&HistoryEntry| {
        entry.kind == HistoryKind::Broken && entry.grant == grant && !taken_back(entry)
    };
    let found = entries.iter().find(is_ours)?;
    Some(format!("it was broken by {} because {:?}", found.by, found.text))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::names::holder::Identity;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::store::{HistoryStore, MemoryStore};

    const LONG: Duration = Duration::from_secs(60);

    fn identity(pid: u32) -> Identity {
        Identity { host: "h".into(), pid, start_ms: 7, purpose: String::new(), notices: None }
    }

    fn name() -> LockName {
        LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap()
    }

    fn broken(grant: u64, text: &str) -> HistoryEntry {
        let entry = HistoryEntry::now(HistoryKind::Broken, &identity(1));
        HistoryEntry { text: text.into(), grant, ..entry }
    }

    /// Returns what the holder of a lease with this record receives. The entries are numbered.
    fn told(entries: &[HistoryEntry], owner_record: &OwnerRecord) -> Option<String> {
        let (store, by) = (MemoryStore::new(), Deadline::after(LONG));
        for (at, entry) in entries.iter().enumerate() {
            let entry = entry.numbered(at as u64, at as u64);
            store.append(HistoryOf::Lock(&name()), &entry, LONG, by).unwrap();
        }
        find_break(&store, &name(), owner_record, by)
    }

    #[test]
    fn a_holder_is_told_of_the_break_of_its_own_grant_and_of_no_other() {
        let (ours, other) = (OwnerRecord::from_bytes([1; 16]), OwnerRecord::from_bytes([2; 16]));
        let grant = |record| MemoryStore::new().grant_number(record).unwrap();
        let entries = [broken(grant(&ours), "first"), broken(grant(&other), "second")];
        let expected = r#"it was broken by pid 1 on h because "first""#;
        assert_eq!(told(&entries, &ours).as_deref(), Some(expected));
        assert!(told(&entries, &other).unwrap().contains("second"));
        assert_eq!(told(&entries, &OwnerRecord::from_bytes([3; 16])), None);
        assert_eq!(told(&entries, &OwnerRecord::from_bytes([1; 15])), None);
    }

    /// A busy lock has 256 newer entries in seconds.
    #[test]
    fn a_break_is_found_by_its_grant_whatever_happened_to_the_lock_since() {
        let (store, by) = (MemoryStore::new(), Deadline::after(LONG));
        let [ours, other] = [1, 2].map(|byte| OwnerRecord::from_bytes([byte; 16]));
        let grant = store.grant_number(&ours).unwrap();
        let entry = broken(grant, "first").numbered(1, 1);
        store.append(HistoryOf::Grant(&name(), grant), &entry, LONG, by).unwrap();
        store.append(HistoryOf::Lock(&name()), &entry, LONG, by).unwrap();
        for at in 2..HISTORY_MAX as u64 + 3 {
            let later = HistoryEntry::now(HistoryKind::Acquired, &identity(1)).numbered(at, at);
            store.append(HistoryOf::Lock(&name()), &later, LONG, by).unwrap();
        }
        assert!(find_break(&store, &name(), &ours, by).unwrap().contains("first"));
        assert_eq!(find_break(&store, &name(), &other, by), None);
        let back = HistoryEntry::now(HistoryKind::NotBroken, &identity(1));
        let back = HistoryEntry { takes_back: 1, ..back };
        store.append(HistoryOf::Grant(&name(), grant), &back, LONG, by).unwrap();
        assert_eq!(find_break(&store, &name(), &ours, by), None);
    }

    #[test]
    fn a_break_that_was_taken_back_is_not_told() {
        let ours = OwnerRecord::from_bytes([1; 16]);
        let entry = broken(MemoryStore::new().grant_number(&ours).unwrap(), "first");
        let back = |takes_back| HistoryEntry {
            takes_back,
            ..HistoryEntry::now(HistoryKind::NotBroken, &identity(1))
        };
        assert_eq!(told(&[entry.clone(), back(0)], &ours), None);
        assert!(told(&[entry.clone(), back(9)], &ours).is_some());
        let again = HistoryEntry { text: "second".into(), ..entry.clone() };
        assert!(told(&[entry, back(0), again], &ours).unwrap().contains("second"));
    }
}

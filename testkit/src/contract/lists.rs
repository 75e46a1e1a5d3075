//! The contract of `dlm::store::LockStore::list`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dlm::store::{ListCursor, ListedLock, LockQuery, LockStore};
use dlm::{Code, Level, LockName, Moment, NamePolicy};

use super::stores::ODD_IDS;
use super::{HELD, Site, code, eventually, patiently, soon, spawn, take, take_briefly};

/// Reads all pages of a list.
fn list(store: &dyn LockStore, query: &LockQuery, most: usize) -> Vec<ListedLock> {
    let (mut all, mut after) = (Vec::new(), None);
    for _ in 0..100_000 {
        let page = store.list(query, after.as_ref(), most, soon()).unwrap();
        all.extend(page.locks);
        match page.next {
            None => return all,
            next => after = next,
        }
    }
    panic!("the list has no end");
}

/// Counts how often each lock is listed.
fn counted(listed: &[ListedLock]) -> BTreeMap<LockName, usize> {
    let mut counts = BTreeMap::new();
    for lock in listed {
        *counts.entry(lock.name.clone().expect("records of this library name their locks")).or_default() += 1;
    }
    counts
}

/// A store that cannot list its locks says so.
fn lists(site: &Site) -> bool {
    if !site.lists {
        assert_eq!(code(site.store().list(&LockQuery::new(), None, 10, soon())), Code::InvalidArgument);
    }
    site.lists
}

fn held(site: &Site) -> LockQuery {
    LockQuery::new().prefix(&format!("XDC#{}#", site.client())).held_only()
}

pub fn held_locks_are_listed_with_their_holders_and_free_ones_are_not(site: &Site) {
    if !lists(site) {
        return;
    }
    let store = site.store();
    let taken: Vec<_> = (0..30)
        .map(|number| {
            let name = site.name(&format!("lock-{number}"));
            (take(&*store, &name, HELD), name)
        })
        .collect();
    for (grant, name) in taken.iter().step_by(2) {
        store.release(name, &grant.owner_record, soon()).unwrap();
    }
    // Another way to open the store sees the same.
    for (store, most) in [(&store, 1), (&site.store(), 7), (&store, 1000)] {
        let listed = list(&**store, &held(site), most);
        let expected: BTreeMap<_, _> =
            taken.iter().skip(1).step_by(2).map(|(_, name)| (name.clone(), 1)).collect();
        assert_eq!(counted(&listed), expected, "pages of {most}");
        for lock in listed {
            let identity =
                lock.holder.and_then(|holder| holder.identity).expect("our records name their writer");
            assert_eq!((identity.pid, identity.purpose.as_str()), (std::process::id(), "contract"));
            assert_eq!(lock.key, lock.name.unwrap().key());
        }
    }
    // All locks that the store remembers: those that are held, and maybe others.
    let known = list(&*store, &LockQuery::new().prefix(&format!("XDC#{}#", site.client())), 10);
    let (held, free): (Vec<_>, Vec<_>) = known.into_iter().partition(|lock| lock.holder.is_some());
    assert_eq!(held.len(), 15);
    assert!(counted(&free).iter().all(|(name, count)| *count == 1 && name.key().contains("lock-")));
}

pub fn a_list_of_a_prefix_has_just_the_names_that_begin_with_it(site: &Site) {
    if !lists(site) {
        return;
    }
    let store = site.store();
    let dc = |id| LockName::new(Level::Dc, site.client(), Some("dc1"), id, NamePolicy::Strict).unwrap();
    let names = [site.name("a"), site.name("ab"), site.name("b"), dc("a"), dc("ac")];
    for name in &names {
        take(&*store, name, HELD);
    }
    let client = site.client();
    for (prefix, expected) in [
        (format!("XDC#{client}#"), &names[..3]),
        (format!("XDC#{client}#a"), &names[..2]),
        (format!("XDC#{client}#ab"), &names[1..2]),
        (format!("XDC#{client}#abc"), &[]),
        (format!("XDC#{client}#b"), &names[2..3]),
        (format!("DC#dc1#{client}#"), &names[3..]),
        (format!("DC#dc1#{client}#ac"), &names[4..]),
        (format!("dc#dc1#{client}#"), &[]),
        (format!("#{client}"), &[]),
    ] {
        let listed = list(&*store, &LockQuery::new().prefix(&prefix).held_only(), 2);
        assert_eq!(counted(&listed).into_keys().collect::<Vec<_>>(), {
            let mut sorted = expected.to_vec();
            sorted.sort();
            sorted
        });
    }
    // Locks of all clients, among them ours. Those of other cases may be records of the Java library, without a name.
    for prefix in ["", "DC", "DC#dc1", "X"] {
        let mut listed = list(&*store, &LockQuery::new().prefix(prefix).held_only(), 1000);
        listed.retain(|lock| lock.name.is_some());
        let listed = counted(&listed);
        for name in &names {
            let count = listed.get(name).copied().unwrap_or_default();
            assert_eq!(count, usize::from(name.key().starts_with(prefix)), "{name} in {prefix:?}");
        }
    }
}

pub fn locks_of_odd_names_are_listed_once(site: &Site) {
    if !lists(site) {
        return;
    }
    let store = site.store();
    let mut names: Vec<_> = ODD_IDS.iter().map(|id| site.name(id)).collect();
    names.push(site.name(&"x".repeat(1024)));
    for name in &names {
        take(&*store, name, HELD);
    }
    let listed = counted(&list(&*store, &held(site), 3));
    assert_eq!(listed, names.into_iter().map(|name| (name, 1)).collect());
}

pub fn a_lock_whose_lease_has_ended_is_not_listed_as_held(site: &Site) {
    if !lists(site) {
        return;
    }
    patiently(|ttl| {
        let (store, name) = (site.store(), site.name(&format!("{ttl:?}")));
        let begun = Moment::now();
        take_briefly(&*store, &name, ttl)?;
        let listed = counted(&list(&*store, &held(site), 100));
        if Moment::now().since(begun) >= ttl {
            return None;
        }
        assert!(listed.contains_key(&name));
        eventually("the lease ends", || !counted(&list(&*store, &held(site), 100)).contains_key(&name));
        assert!(Moment::now().since(begun) >= ttl, "a list called a held lock free");
        Some(())
    });
}

/// Some locks stay held, some stay free, and all others come and go.
pub fn of_locks_that_come_and_go_those_that_stay_are_listed_once(site: &Site) {
    if !lists(site) {
        return;
    }
    let store = site.store();
    let staying: Vec<_> = (0..20).map(|number| site.name(&format!("stays-{number}"))).collect();
    let free: Vec<_> = (0..20).map(|number| site.name(&format!("free-{number}"))).collect();
    for name in free.iter().chain(&staying) {
        let grant = take(&*store, name, HELD);
        if free.contains(name) {
            store.release(name, &grant.owner_record, soon()).unwrap();
        }
    }
    let over = std::sync::Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..2)
        .map(|worker| {
            let (store, over) = (site.store(), std::sync::Arc::clone(&over));
            let names: Vec<_> = (0..40).map(|number| site.name(&format!("goes-{worker}-{number}"))).collect();
            spawn("comes-and-goes", move || {
                for name in names.iter().cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let grant = take(&*store, name, HELD);
                    thread::yield_now();
                    store.release(name, &grant.owner_record, soon()).unwrap();
                }
            })
        })
        .collect();
    for round in 0..(site.rounds / 10).max(3) {
        let listed = counted(&list(&*store, &held(site), [3, 1000][round % 2]));
        for name in &staying {
            assert_eq!(listed.get(name), Some(&1), "{name}, which is held, in round {round}");
        }
        for name in &free {
            assert_eq!(listed.get(name), None, "{name}, which is free, in round {round}");
        }
        assert!(listed.values().all(|count| *count <= 2), "a lock that came and went was listed many times");
    }
    over.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

pub fn lists_that_make_no_sense_are_refused(site: &Site) {
    if !lists(site) {
        return;
    }
    let manager = site.manager();
    for prefix in ["a\0b", &"x".repeat(4000)] {
        let query = LockQuery::new().prefix(prefix);
        assert_eq!(code(manager.lock_page(&query, None)), Code::InvalidArgument);
        assert_eq!(manager.locks(&query).count(), 1, "it ends with the error");
    }
    // A store may understand any bytes as a place in its order.
    let _ = manager.lock_page(&held(site), Some(&ListCursor::from_bytes([0xff; 3000])));
    manager.close().unwrap();
    assert_eq!(code(manager.lock_page(&held(site), None)), Code::Closed);
}

/// Through the manager, which reads page by page.
pub fn a_manager_lists_the_locks_of_all_clients(site: &Site) {
    if !lists(site) {
        return;
    }
    let (manager, store) = (site.manager(), site.store());
    let name = LockName::new(Level::Xdc, &format!("{}-other", site.client()), None, "a", NamePolicy::Strict);
    let (name, lease) = (name.unwrap(), manager.lock("a", Level::Xdc).unwrap().acquire().unwrap());
    let grant = take(&*store, &name, HELD);
    let query = LockQuery::new().prefix(&format!("XDC#{}", site.client())).held_only();
    let listed: Vec<_> = manager.locks(&query).collect::<dlm::Result<_>>().unwrap();
    assert_eq!(counted(&listed), BTreeMap::from([(lease.name().clone(), 1), (name.clone(), 1)]));
    let found = manager.lock_named(&name).inspect().unwrap();
    assert!(found.holder.is_some(), "a lock of another client can be inspected by its full name");
    store.release(&name, &grant.owner_record, soon()).unwrap();
}

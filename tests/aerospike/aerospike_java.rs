//! Java services that use the same records. They and this library exclude each other and count together.
#![cfg(feature = "aerospike")]

use std::time::{SystemTime, UNIX_EPOCH};

use dlm::store::LockQuery;
use dlm::{Code, Deadline, LatchKind, Level, LockManager};
use dlm_fixtures::aerospike::{Place, aerospike_or_skip};
use dlm_fixtures::aerospike_java;
use dlm_fixtures::java::Java;
use dlm_testkit::{LONG, skipped, until};

const FARM: &str = "dc1";

/// Returns a manager, its client id, and a Java client of the same server. If this machine lacks one of them, it
/// says so and returns `None`.
fn both() -> Option<(LockManager, String, Java)> {
    let place: Place = aerospike_or_skip()?;
    let java = match aerospike_java::start(&place) {
        Ok(java) => java,
        Err(why) => {
            skipped("maven", why);
            return None;
        }
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let client = format!("java-{since}");
    let builder = LockManager::builder().store_uri(&place.uri()).client(&client).farm(FARM);
    let builder = builder.notices("udp://127.0.0.1").ttl(10 * LONG).timeout(LONG);
    Some((builder.open().unwrap(), client, java))
}

#[test]
fn a_lock_that_java_holds_is_refused_here_and_the_other_way_round() {
    let Some((manager, client, mut java)) = both() else { return };
    for (level, set) in [(Level::Dc, "DC#dc1#tests"), (Level::Xdc, "XDC#tests")] {
        let lock = manager.lock("a", level).unwrap();
        let place = format!("{set} {client}#a");
        let mut fence = None;
        for _ in 0..3 {
            let lease = lock.try_acquire().unwrap();
            assert!(lease.fence() > fence, "a release by Java set the fence back");
            fence = lease.fence();
            assert_eq!(java.ask(&format!("acquire {place} {FARM} 600")), "unavailable");
            lease.renew().unwrap();
            assert_eq!(java.ask(&format!("acquire {place} {FARM} 600")), "unavailable");
            assert!(lease.release().unwrap());

            assert_eq!(java.ask(&format!("acquire {place} {FARM} 600")), "acquired");
            let error = lock.try_acquire().unwrap_err();
            assert_eq!(error.code(), Code::LockUnavailable);
            let holder = lock.inspect().unwrap().holder.unwrap();
            assert!(holder.identity.is_none() && holder.since.is_some() && holder.remaining.is_some());
            assert_eq!(java.ask(&format!("release {place}")), "released");
        }
        // The Java library releases a lock even if another holder owns it. Our holder gets LEASE_LOST.
        let lease = lock.try_acquire().unwrap();
        assert_eq!(java.ask(&format!("release {place}")), "released");
        assert_eq!(lease.renew().unwrap_err().code(), Code::LeaseLost);
    }
}

/// A record of Java has no owner token and no name. So the time of its write is compared.
#[test]
fn a_lock_that_java_holds_is_listed_and_broken_and_no_later_grant_of_java_is() {
    let Some((manager, client, mut java)) = both() else { return };
    for (level, set) in [(Level::Dc, "DC#dc1#tests"), (Level::Xdc, "XDC#tests")] {
        let (lock, place) = (manager.lock("a", level).unwrap(), format!("{set} {client}#a"));
        let unnamed = || {
            let query = LockQuery::new().prefix(&format!("{set} ")).held_only();
            let locks = manager.locks(&query).map(|lock| lock.unwrap());
            locks.filter(|lock| lock.name.is_none() && lock.holder.is_some()).count()
        };
        let mut last = None;
        for _ in 0..3 {
            assert_eq!(java.ask(&format!("acquire {place} {FARM} 600")), "acquired");
            assert!(unnamed() >= 1, "a record of Java is listed without a name");
            let before = lock.inspected().unwrap();
            assert_eq!(java.ask(&format!("release {place}")), "released");
            assert_eq!(before.break_holder("it hangs").unwrap(), None, "a free lock");
            assert_eq!(java.ask(&format!("acquire {place} {FARM} 600")), "acquired");
            assert_eq!(before.break_holder("it hangs").unwrap(), None, "a later grant was broken");
            let broken = lock.inspected().unwrap().break_holder("it hangs").unwrap().unwrap();
            assert!(broken.fence > last);
            last = broken.fence;
            let lease = lock.try_acquire().unwrap();
            assert!(lease.fence() > last && lease.release().unwrap());
        }
    }
}

#[test]
fn a_latch_is_counted_by_java_and_here_alike() {
    let Some((manager, client, mut java)) = both() else { return };
    let latch = |id: &str, level| manager.latch(id, level, LatchKind::CountUpDown).unwrap();
    let place = |id: &str| format!("D_LTCH#tests D_LTCH#{client}#{id}");

    let ours = latch("ours", Level::Dc);
    ours.create_for(&["a", "b", "c"]).unwrap();
    assert!(ours.count_down_as("a").unwrap());
    // A process that waits leaves a note.
    let watch = latch("ours", Level::Xdc).watch().unwrap();
    let store = dlm::store::open(&aerospike_or_skip().unwrap().uri()).unwrap();
    until("its note is there", || {
        let listeners = store.latches().unwrap().listeners(ours.name(), Deadline::after(LONG)).unwrap();
        listeners.len() == 1
    });
    assert_eq!(java.ask(&format!("add {} count#{FARM} -1 600", place("ours"))), "ok");
    assert_eq!(java.ask(&format!("count {} count#{FARM}", place("ours"))), "1");
    assert_eq!(java.ask(&format!("sum {}", place("ours"))), "1", "Java added up our notes");
    assert_eq!((ours.count().unwrap(), ours.pending().unwrap().len()), (1, 2));
    assert!(java.ask(&format!("create {} count#{FARM} 9 600", place("ours"))).starts_with("error"));
    assert!(!watch.is_open().unwrap());

    assert_eq!(java.ask(&format!("create {} count#{FARM} 2 600", place("theirs"))), "ok");
    let theirs = latch("theirs", Level::Xdc);
    assert_eq!(theirs.create(5).unwrap_err().code(), Code::AlreadyExists);
    theirs.count_down().unwrap();
    assert!(theirs.count_down_as("late").unwrap() && !theirs.count_down_as("late").unwrap());
    assert_eq!(java.ask(&format!("count {} count#{FARM}", place("theirs"))), "0");
    theirs.await_open().unwrap();

    // Reset, Java counts on. After a deletion, Java finds nothing and may create it.
    theirs.reset_for(&["a", "b"]).unwrap();
    assert_eq!(java.ask(&format!("add {} count#{FARM} -1 600", place("theirs"))), "ok");
    assert_eq!(java.ask(&format!("sum {}", place("theirs"))), "1");
    theirs.delete().unwrap();
    assert!(java.ask(&format!("count {} count#{FARM}", place("theirs"))).starts_with("error"));
    assert_eq!(java.ask(&format!("create {} count#{FARM} 1 600", place("theirs"))), "ok");
    assert!(theirs.count_down_as("a").unwrap());
    assert_eq!(java.ask(&format!("count {} count#{FARM}", place("theirs"))), "0");
    theirs.await_open().unwrap();
}

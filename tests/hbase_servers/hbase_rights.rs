//! HBase's own access control: users who may do less than they ask for.
#![cfg(feature = "hbase")]

use std::time::Duration;

use dlm::hbase::{Cells, Table};
use dlm::store::LockQuery;
use dlm::{Code, Error, LatchKind, Level, LockManager, Severity};
use dlm_fixtures::hbase::{Hbase, Kind};
use dlm_testkit::until;

/// Time-out of calls that are refused long before.
const LONGEST: Duration = Duration::from_secs(600);
/// A superuser of the fixture.
const ROOT: &str = "hbase";

struct Place(String);

impl Place {
    fn uri(&self, user: &str, table: &str, more: &str) -> String {
        format!("hbase://{}/{table}?user={user}&connect_timeout=1m&{more}", self.0)
    }

    fn open(&self, user: &str, table: &str, more: &str) -> LockManager {
        let builder = LockManager::builder().store_uri(&self.uri(user, table, more));
        builder.client("rights").farm("dc1").timeout(LONGEST).ttl(LONGEST).open().unwrap()
    }

    /// Gives the user these rights on the table, and no others: `R`, `W`, `C`, `A`. It does what the HBase shell's `grant` did
    /// before HBase 2.2: the servers watch this table.
    fn grant(&self, user: &str, table: &str, rights: &str) {
        let rights_of = Table::open(&self.uri(ROOT, "hbase:acl", "timeout=10m")).unwrap();
        rights_of.row(table).put(&Cells::new().put(format!("l:{user}").as_str(), rights)).unwrap();
    }
}

#[track_caller]
fn says<T: std::fmt::Debug>(answer: dlm::Result<T>, code: Code, words: &[&str]) {
    let error: Error = answer.expect_err("it is refused");
    println!("{}", error.chain());
    assert_eq!(error.code(), code, "{}", error.chain());
    for words in words.iter().chain(&["AccessDeniedException"]) {
        assert!(error.chain().contains(words), "{words:?} is missing: {}", error.chain());
    }
}

#[test]
fn who_lacks_a_right_is_told_which_one_on_which_table() {
    let access = [("DLM_TEST_ACCESS", "on".into())];
    let Some(hbase) = Hbase::private_in("rights", Kind::Single, &access) else { return };
    let place = Place(format!("localhost:{}", hbase.master.port()));
    // Dave may create tables in the namespace, and gets the rights on those that he has created.
    place.grant("dave", "@default", "C");
    let dave = place.open("dave", "daves", "layout=own");
    until("the servers know of the right", || dave.initialize().is_ok());
    assert!(dave.lock("a", Level::Xdc).unwrap().try_acquire().unwrap().release().unwrap());
    for (table, more) in [("locks", ""), ("own", "layout=own&latches=locks")] {
        let (root, carol) = (place.open(ROOT, table, more), place.open("carol", table, more));
        let (lock, latch) = (
            carol.lock("a", Level::Xdc).unwrap(),
            carol.latch("b", Level::Dc, LatchKind::CountDown).unwrap(),
        );
        let both = format!("the rights READ and WRITE on the table {table:?}");
        let (read, create) =
            (format!("the right READ on the table {table:?}"), "the right CREATE in its namespace");

        says(carol.initialize(), Code::TableCreationError, &[create, table, "carol"]);
        root.initialize().unwrap();
        if more.is_empty() {
            root.initialize_latches().unwrap();
        }
        says(carol.initialize(), Code::TableCreationError, &["exists but cannot be used", &read]);
        // Which of the two comes first is for the layout to choose.
        let on_table = format!("on the table {table:?}");
        says(lock.try_acquire(), Code::InternalError, &[&on_table]);
        says(lock.inspect(), Code::InternalError, &[&read]);
        if more.is_empty() {
            says(latch.count(), Code::InternalError, &["the right READ on the table \"D_LTCH_locks\""]);
        }
        let found = carol.diagnose().unwrap();
        assert!(
            found.iter().any(|it| it.severity == Severity::Fail && it.seen.contains(&on_table)),
            "{found:?}"
        );

        place.grant("carol", table, "R");
        until("the servers know of the right", || lock.inspect().is_ok());
        says(lock.try_acquire(), Code::InternalError, &[&both, "carol"]);

        // All that a service needs.
        place.grant("carol", table, "RW");
        until("the servers know of the right", || {
            lock.try_acquire().is_ok_and(|lease| lease.release().unwrap())
        });
        carol.initialize().unwrap();
        let lease = lock.acquire().unwrap();
        lease.renew().unwrap();
        assert!(lease.release().unwrap());
        if more.is_empty() {
            assert!(lock.try_acquire().unwrap().release().unwrap());
        } else {
            let readers = carol.lock("readers", Level::Xdc).unwrap();
            assert!(readers.shared().try_acquire().unwrap().release().unwrap());
        }
        assert!(carol.locks(&LockQuery::new()).all(|found| found.is_ok()));
        let found = carol.diagnose().unwrap();
        let bad: Vec<_> = found.iter().filter(|it| it.severity != Severity::Ok).collect();
        assert!(bad.len() == 1 && bad[0].seen.contains("the right CREATE or ADMIN"), "{bad:?}");

        // A right that is taken away ends no lease. Its holder can give it back when it has the right again.
        let lease = lock.acquire().unwrap();
        place.grant("carol", table, "R");
        until("the servers know of it", || lease.renew().is_err());
        says(lease.renew(), Code::InternalError, &[&both]);
        lease.check().unwrap();
        place.grant("carol", table, "RW");
        until("the servers know of the right", || lease.renew().is_ok());
        assert!(lease.release().unwrap());
    }
}

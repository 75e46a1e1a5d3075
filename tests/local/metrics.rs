//! The page of metrics of a manager.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlm::{AcquireOptions, Error, LeaseState, Level, LockManager, LostReason, Mode};
use dlm_testkit::{LONG, Scripted, skipped, unless_stalled, until};

/// No lease with this TTL expires during a test.
const TTL: Duration = Duration::from_secs(1800);

fn manager(store: &Arc<Scripted>) -> LockManager {
    let builder = LockManager::builder().store(store.clone()).client("metrics").ttl(TTL).wait(5 * LONG);
    builder.retry(Duration::from_millis(20)).open().unwrap()
}

/// The series of a page, with their values.
fn series(page: &str) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let before = series.insert(name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")));
        assert!(before.is_none(), "twice: {line}");
    }
    series
}

/// Returns what Prometheus' own tool says about the page.
fn promtool(page: &str) {
    let mut tool = Command::new("promtool");
    tool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut tool) = tool.stdout(Stdio::piped()).spawn() else {
        return skipped("prometheus", "no promtool, of the package prometheus");
    };
    tool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{page}");
}

#[test]
fn a_page_counts_what_has_happened_by_class() {
    let store = Arc::new(Scripted::default());
    let manager = manager(&store);
    let early = manager.lock("early-1", Level::Xdc).unwrap().acquire().unwrap();
    let first = series(&manager.metrics_text());
    assert!(!first.contains_key(r#"dlm_acquired_total{class="order",mode="EXCLUSIVE"}"#), "{first:?}");

    let order = manager.lock("order-1", Level::Xdc).unwrap();
    let lease = order.acquire().unwrap();
    order.try_acquire().unwrap_err();
    lease.renew().unwrap();
    store.to_renew(|_| {
        Err(Error::Connection { store: "scripted:".into(), what: "planted".into(), source: None })
    });
    lease.renew().unwrap_err();
    store.to_renew(|_| Err(Error::InDoubt { what: "planted".into(), source: None }));
    lease.renew().unwrap_err();
    store.to_renew(|_| Ok(None));
    lease.renew().unwrap_err();
    assert!(early.release().unwrap());
    let held = manager.lock("order-2", Level::Xdc).unwrap().acquire().unwrap();
    let token = manager.lock("order-3", Level::Xdc).unwrap().acquire().unwrap().into_token().unwrap();
    drop(token);
    let waits = thread::spawn({
        let lock = manager.lock("order-2", Level::Xdc).unwrap();
        move || lock.acquire().map(drop)
    });
    until("it waits", || manager.stats().threads_waiting == 1);
    thread::sleep(Duration::from_millis(30));

    let page = manager.metrics_text();
    let found = series(&page);
    for (name, value) in [
        (r#"dlm_acquired_total{class="order",mode="EXCLUSIVE"}"#, 3),
        (r#"dlm_unavailable_total{class="order",mode="EXCLUSIVE",code="LOCK_UNAVAILABLE"}"#, 1),
        (r#"dlm_wait_seconds_count{class="order",mode="EXCLUSIVE"}"#, 4),
        (r#"dlm_wait_seconds_bucket{class="order",mode="EXCLUSIVE",le="+Inf"}"#, 4),
        (r#"dlm_renewed_total{class="order"}"#, 1),
        (r#"dlm_renewal_failures_total{class="order",code="CONNECTION_ERROR"}"#, 1),
        (r#"dlm_renewal_failures_total{class="order",code="IN_DOUBT"}"#, 1),
        (r#"dlm_renewal_failures_total{class="order",code="RETRIES_EXHAUSTED"}"#, 0),
        (r#"dlm_at_risk_total{class="order"}"#, 0),
        (r#"dlm_lost_total{class="order",mode="EXCLUSIVE",reason="TAKEN_OVER"}"#, 1),
        (r#"dlm_lost_total{class="order",mode="EXCLUSIVE",reason="EXPIRED"}"#, 0),
        (r#"dlm_released_total{class="early",mode="EXCLUSIVE"}"#, 1),
        (r#"dlm_acquired_total{class="early",mode="EXCLUSIVE"}"#, 0),
        (r#"dlm_handed_on_total{class="order"}"#, 1),
        (r#"dlm_hold_seconds_count{class="order",mode="EXCLUSIVE"}"#, 2),
        (r#"dlm_in_doubt_total{class="order",call="renew"}"#, 1),
        (r#"dlm_in_doubt_total{class="order",call="acquire"}"#, 0),
        (r#"dlm_leases_held{class="order",mode="EXCLUSIVE"}"#, 1),
        (r#"dlm_leases_held{class="early",mode="EXCLUSIVE"}"#, 0),
        (r#"dlm_threads_waiting{class="order"}"#, 1),
        (r#"dlm_store_calls_total{call="acquire",outcome="ok"}"#, 3),
        (r#"dlm_store_calls_total{call="renew",outcome="not_ours"}"#, 1),
        (r#"dlm_store_calls_total{call="renew",outcome="CONNECTION_ERROR"}"#, 1),
        (r#"dlm_store_call_seconds_count{call="renew"}"#, 4),
        ("dlm_notices_sent_total", 0),
    ] {
        assert_eq!(found.get(name), Some(&f64::from(value)), "{name}\n{page}");
    }
    let version = format!(r#"dlm_build_info{{version="{}"}}"#, env!("CARGO_PKG_VERSION"));
    assert_eq!(found[&version], 1.0);
    assert!(found[r#"dlm_longest_hold_seconds{class="order",mode="EXCLUSIVE"}"#] >= 0.03, "{page}");
    assert!(found[r#"dlm_longest_wait_seconds{class="order"}"#] >= 0.03, "{page}");
    assert_eq!(found[r#"dlm_longest_wait_seconds{class="early"}"#], 0.0);
    drop(held);
    waits.join().unwrap().unwrap();
    promtool(&page);
}

/// A class whose locks are exclusive has no series of other modes.
#[test]
fn a_page_has_the_modes_in_which_locks_were_used_and_counts_their_changes() {
    let manager = manager(&Arc::new(Scripted::default()));
    manager.metrics_text();
    let lock = manager.lock("order-1", Level::Xdc).unwrap();
    let reader = lock.shared().acquire().unwrap();
    lock.try_acquire().unwrap_err();
    let update = lock.update().acquire().unwrap();
    update.upgrade(Duration::ZERO).unwrap_err();
    let found = series(&manager.metrics_text());
    let held =
        Mode::OF_LOCKS.map(|mode| found[&format!(r#"dlm_leases_held{{class="order",mode="{mode}"}}"#)]);
    assert_eq!(held, [0.0, 1.0, 1.0]);
    assert!(!found.keys().any(|name| name.contains("PERMIT")), "no semaphore was used");
    assert!(reader.release().unwrap());
    let writing = update.upgrade(Duration::from_secs(1)).unwrap();
    let page = manager.metrics_text();
    assert_eq!(series(&page)[r#"dlm_leases_held{class="order",mode="EXCLUSIVE"}"#], 1.0, "{page}");
    let reading = writing.downgrade(Mode::Shared).unwrap();
    assert!(reading.release().unwrap());
    drop(manager.lock("report", Level::Xdc).unwrap().acquire().unwrap());

    let page = manager.metrics_text();
    let found = series(&page);
    for (name, value) in [
        (r#"dlm_acquired_total{class="order",mode="SHARED"}"#, 1),
        (r#"dlm_acquired_total{class="order",mode="UPDATE"}"#, 1),
        (r#"dlm_acquired_total{class="order",mode="EXCLUSIVE"}"#, 0),
        (r#"dlm_unavailable_total{class="order",mode="EXCLUSIVE",code="LOCK_UNAVAILABLE"}"#, 1),
        (r#"dlm_wait_seconds_count{class="order",mode="SHARED"}"#, 1),
        (r#"dlm_wait_seconds_count{class="order",mode="UPDATE"}"#, 1),
        // The attempt that was refused, and two upgrades.
        (r#"dlm_wait_seconds_count{class="order",mode="EXCLUSIVE"}"#, 3),
        (
            r#"dlm_mode_change_failures_total{class="order",from="UPDATE",to="EXCLUSIVE",code="LOCK_UNAVAILABLE"}"#,
            1,
        ),
        (r#"dlm_mode_changes_total{class="order",from="UPDATE",to="EXCLUSIVE"}"#, 1),
        (r#"dlm_mode_changes_total{class="order",from="EXCLUSIVE",to="SHARED"}"#, 1),
        // A change of mode is no release.
        (r#"dlm_released_total{class="order",mode="SHARED"}"#, 2),
        (r#"dlm_released_total{class="order",mode="EXCLUSIVE"}"#, 0),
        (r#"dlm_hold_seconds_count{class="order",mode="SHARED"}"#, 2),
        (r#"dlm_hold_seconds_count{class="order",mode="UPDATE"}"#, 1),
        (r#"dlm_hold_seconds_count{class="order",mode="EXCLUSIVE"}"#, 1),
        (r#"dlm_lost_total{class="order",mode="SHARED",reason="EXPIRED"}"#, 0),
        (r#"dlm_leases_held{class="order",mode="EXCLUSIVE"}"#, 0),
    ] {
        assert_eq!(found.get(name), Some(&f64::from(value)), "{name}\n{page}");
    }
    assert!(
        found.keys().filter(|name| name.contains("report")).all(|name| !name.contains("SHARED")),
        "{page}"
    );
    promtool(&page);
}

/// Each id would be a class of its own.
#[test]
fn a_page_has_a_limited_number_of_classes() {
    let manager = manager(&Arc::new(Scripted::default()));
    manager.metrics_text();
    for id in 0..200 {
        drop(manager.lock(&format!("{id}"), Level::Xdc).unwrap().acquire().unwrap());
    }
    let page = manager.metrics_text();
    let classes: BTreeSet<_> =
        page.split("class=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(classes.len() == 65 && classes.contains("other"), "{classes:?}");
    let found = series(&page);
    assert_eq!(found[r#"dlm_acquired_total{class="other",mode="EXCLUSIVE"}"#], 136.0);
    assert!(found.len() < 65 * 70, "{} series", found.len());
}

#[test]
fn any_id_makes_a_page_that_prometheus_reads() {
    let manager = manager(&Arc::new(Scripted::default()));
    manager.metrics_text();
    for id in ["a\"b", "a\\b", "a\nb", "{}", "é ü", "\r\t", "-", "dlm_total 1"] {
        drop(manager.lock(id, Level::Xdc).unwrap().acquire().unwrap());
    }
    let page = manager.metrics_text();
    assert_eq!(series(&page)[r#"dlm_acquired_total{class="a\nb",mode="EXCLUSIVE"}"#], 1.0);
    promtool(&page);
}

/// Leases that were acquired before the first page are seen from then on.
#[test]
fn a_lease_that_is_older_than_the_first_page_is_counted_from_then_on() {
    unless_stalled(Duration::from_millis(500), || {
        let store = Arc::new(Scripted::default());
        let manager = manager(&store);
        let ttl = Duration::from_secs(4);
        let options = AcquireOptions::new().ttl(ttl).keep(Duration::MAX);
        let lease = manager.lock("leader", Level::Xdc).unwrap().acquire_with(&options).unwrap();
        for _ in 0..10_000 {
            store.to_renew(|_| Err(Error::InDoubt { what: "planted".into(), source: None }));
        }
        let first = series(&manager.metrics_text());
        assert_eq!(first[r#"dlm_leases_held{class="leader",mode="EXCLUSIVE"}"#], 1.0);
        assert_eq!(
            first[r#"dlm_lost_total{class="leader",mode="EXCLUSIVE",reason="EXPIRED"}"#], 0.0,
            "before it happens"
        );
        let count = |name: &str| series(&manager.metrics_text())[name];
        let is_lost = || count(r#"dlm_lost_total{class="leader",mode="EXCLUSIVE",reason="EXPIRED"}"#) == 1.0;
        until("it is lost", || is_lost() || lease.state() == LeaseState::Lost(LostReason::ProcessStopped));
        assert!(is_lost(), "nobody renewed it");
        assert_eq!(count(r#"dlm_at_risk_total{class="leader"}"#), 1.0);
        drop(lease);
        assert_eq!(count(r#"dlm_leases_held{class="leader",mode="EXCLUSIVE"}"#), 0.0);
    });
}

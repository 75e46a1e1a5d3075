//! Latches in a real HBase. Counts stay exact when messages are lost or late, and when services that use the Java
//! library share the rows.
#![cfg(feature = "gateway")]

use std::cell::Cell;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use dlm::store::HbaseStore;
use dlm::store::{
    LatchListener, LatchName, LatchNote, LatchStore, LockStore, NewLatch, NoticeEndpoint, Roster, Step,
    Stepped,
};
use dlm::{Code, Deadline, Error, LatchKind, Level, LockManager, Moment, NamePolicy};
use dlm_fixtures::hbase::{self, Hbase, hbase_or_skip};
use dlm_fixtures::peer::{Peer, hex};
use dlm_fixtures::role::test_in;
use dlm_fixtures::rpc_proxy;
use dlm_fixtures::table;
use dlm_fixtures::thrift_proxy;
use dlm_testkit::{Fault, Gate, LONG, LONGEST, Proxy, eventually, until};

use super::raw::Raw;

/// A TTL that does not end during a test. Tests of expiry use shorter ones.
const TTL: Duration = Duration::from_secs(3600);
const TABLE: &str = "D_LTCH_dlm_test_locks";

/// A latch as one process uses it.
struct Latch {
    store: Arc<dyn LockStore>,
    name: LatchName,
    timeout: Duration,
}

impl Latch {
    fn open(uri: &str, client: &str) -> Latch {
        let name = LatchName::new(client, "dc1", "a", NamePolicy::Strict).unwrap();
        Latch { store: dlm::store::open(uri).unwrap(), name, timeout: LONGEST }
    }

    fn store(&self) -> &dyn LatchStore {
        self.store.latches().unwrap()
    }

    fn create(&self, count: i64) -> dlm::Result<bool> {
        self.create_for(count, &[], TTL)
    }

    fn create_for(&self, count: i64, names: &[&str], ttl: Duration) -> dlm::Result<bool> {
        let roster: Vec<_> = names.iter().map(|name| name.to_string()).collect();
        let by = Deadline::after(self.timeout);
        self.store().create_latch(&NewLatch { name: &self.name, count, roster: &roster, ttl, by })
    }

    fn step(&self, add: i64, participant: Option<&str>) -> dlm::Result<Stepped> {
        self.step_with(add, participant, TTL)
    }

    fn step_with(&self, add: i64, participant: Option<&str>, ttl: Duration) -> dlm::Result<Stepped> {
        let by = Deadline::after(self.timeout);
        self.store().step(&Step { name: &self.name, add, participant, ttl, by })
    }

    fn reset(&self, count: i64, names: &[&str]) -> dlm::Result<()> {
        let roster: Vec<_> = names.iter().map(|name| name.to_string()).collect();
        let by = Deadline::after(self.timeout);
        self.store().reset_latch(&NewLatch { name: &self.name, count, roster: &roster, ttl: TTL, by })
    }

    fn delete(&self) -> dlm::Result<()> {
        self.store().delete_latch(&self.name, TTL, Deadline::after(self.timeout))
    }

    fn count(&self, level: Level) -> dlm::Result<Option<i64>> {
        self.store().counts(&[(&self.name, level)], Deadline::after(LONG)).unwrap().pop().unwrap()
    }

    fn dc(&self) -> Option<i64> {
        self.count(Level::Dc).unwrap()
    }

    /// Leaves a note of a process that waits. A gateway leaves none.
    fn note(&self) {
        let listener = LatchListener {
            endpoint: NoticeEndpoint::Udp("[2001:db8::7]:4711".parse().unwrap()),
            nonce: u64::MAX,
        };
        let (name, level, lasts, by) = (&self.name, Level::Xdc, TTL, Deadline::after(LONG));
        let noted = self.store().listen(&LatchNote { name, level, listener, lasts, by }).unwrap();
        let listeners = self.store().listeners(name, by).unwrap();
        assert_eq!(listeners, if noted { vec![listener] } else { vec![] });
    }

    fn roster(&self) -> Roster {
        self.store().roster(&self.name, Deadline::after(LONG)).unwrap()
    }
}

fn fresh(test: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    format!("{test}-{since}")
}

fn direct(master: SocketAddr) -> String {
    format!("hbase://{master}/{}", table::TABLE)
}

/// Returns the shared server when its tables exist. If no HBase can run on this machine, it says so and returns
/// `None`.
fn server() -> Option<&'static Hbase> {
    table::gateway()?;
    let hbase = hbase_or_skip()?;
    let store = dlm::store::open(&direct(hbase.master)).unwrap();
    store.latches().unwrap().initialize_latches(Deadline::after(LONGEST)).unwrap();
    Some(hbase)
}

/// Returns a proxy, and a latch as two processes see it: the first through the proxy, the second directly.
fn stage(test: &str) -> Option<(Proxy, Latch, Latch)> {
    let hbase = server()?;
    let (proxy, client) = (rpc_proxy::before(hbase.master), fresh(test));
    let ours = Latch::open(&direct(proxy.address()), &client);
    // Opens the connections and looks up the regions.
    assert_eq!(ours.dc(), None);
    Some((proxy, ours, Latch::open(&direct(hbase.master), &client)))
}

#[track_caller]
fn code<T: std::fmt::Debug>(answer: dlm::Result<T>) -> Code {
    answer.expect_err("this must fail").code()
}

/// Calls until the answer is not in doubt. A gateway that is slow to refuse a change leaves it in doubt, and the next
/// answer is that of the first call: here no message is lost.
#[track_caller]
fn settled<T>(call: impl Fn() -> dlm::Result<T>) -> dlm::Result<T> {
    let mut answer = None;
    eventually("the change is not in doubt", || {
        answer = Some(call()).filter(|answer| !answer.as_ref().is_err_and(Error::is_in_doubt));
        answer.is_some()
    });
    answer.unwrap()
}

#[track_caller]
fn counted(answer: dlm::Result<Stepped>) {
    match answer {
        Ok(Stepped::Counted(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_change_of_which_a_message_is_lost_counts_once() {
    let Some((proxy, ours, theirs)) = stage("lost-change") else { return };
    assert!(theirs.create(100).unwrap());
    let mut hits = 0;
    for (round, loss) in [Fault::LoseReply, Fault::LoseRequest, Fault::LoseReply].into_iter().enumerate() {
        for participant in [None, Some(format!("w{round}"))] {
            proxy.next("Multi", loss.clone());
            counted(ours.step(-1, participant.as_deref()));
            hits += 1;
            assert_eq!(proxy.hits(), hits, "no message was lost");
        }
    }
    assert_eq!(theirs.dc(), Some(94));
    assert_eq!(theirs.roster().arrived, ["w0", "w1", "w2"]);
    // This name has arrived already. A new step in its name must not be mistaken for the step that counted.
    proxy.next("Multi", Fault::LoseReply);
    assert_eq!(ours.step(-1, Some("w0")).unwrap(), Stepped::Already);
    assert_eq!(theirs.dc(), Some(94));
}

#[test]
fn a_latch_whose_making_lost_its_reply_is_ours_and_anothers_is_not() {
    let Some((proxy, ours, theirs)) = stage("lost-making") else { return };
    proxy.next("Multi", Fault::LoseReply);
    assert!(ours.create(3).unwrap(), "our own latch was taken for another's");
    assert_eq!((proxy.hits(), theirs.dc()), (1, Some(3)));
    assert!(!ours.create(3).unwrap() && !theirs.create(3).unwrap(), "it was created twice");
    assert_eq!(theirs.dc(), Some(3));
}

/// The request arrives after its process has made later changes.
#[test]
fn a_request_that_arrives_after_later_changes_does_not_count_again() {
    let Some((proxy, ours, theirs)) = stage("late-change") else { return };
    assert!(theirs.create(100).unwrap());
    for (round, participant) in [None, Some("w")].into_iter().enumerate() {
        let gate = Arc::new(Gate::default());
        proxy.next("Multi", Fault::KeepAndBreak(Arc::clone(&gate)));
        counted(ours.step(-1, participant));
        // Each of these changes would overwrite the mark if its slot were used again. It is not, because a request
        // is still in flight.
        for _ in 0..3 {
            counted(ours.step(1, None));
        }
        let before = theirs.dc();
        gate.open();
        until("the late request is carried out", || proxy.late() == round + 1);
        assert_eq!(theirs.dc(), before, "it counted twice, participant: {participant:?}");
    }
}

#[test]
fn a_latch_that_was_not_found_is_not_counted_when_it_is_made_later() {
    let Some((proxy, ours, theirs)) = stage("late-not-found") else { return };
    let gate = Arc::new(Gate::default());
    proxy.next("Multi", Fault::KeepAndBreak(Arc::clone(&gate)));
    assert_eq!(code(ours.step(-1, None)), Code::NotFound);
    assert!(theirs.create(3).unwrap());
    gate.open();
    until("the late request is carried out", || proxy.late() == 1);
    assert_eq!(theirs.dc(), Some(3), "a count-down that returned NOT_FOUND was counted");
}

/// The row of an expired latch is not empty. It still contains marks and names.
#[test]
fn a_latch_that_expired_is_not_found_and_not_brought_back() {
    let Some((_proxy, ours, theirs)) = stage("expired") else { return };
    const SHORT: Duration = Duration::from_millis(500);
    for name in [None, Some("w")] {
        assert!(ours.create_for(3, &[], SHORT).unwrap());
        let stepped = ours.step_with(-1, name, SHORT);
        until("the latch expires", || theirs.dc().is_none());
        for name in [None, Some("w"), Some("x")] {
            assert_eq!(code(ours.step(-1, name)), Code::NotFound, "{stepped:?}");
        }
        assert_eq!(theirs.count(Level::Xdc).unwrap(), None);
    }
}

/// Makes a change whose request is kept until the gate opens. All later messages are lost, so the change is in doubt.
/// Returns whether the request was sent at all: a machine may be too slow for that.
fn keep(proxy: &Proxy, gate: &Arc<Gate>, change: impl FnOnce() -> dlm::Result<Stepped>) -> bool {
    let is_sent = Arc::new(AtomicBool::new(false));
    let (sending, gate) = (Arc::clone(&is_sent), Arc::clone(gate));
    proxy.storm(move |method| match sending.load(Ordering::SeqCst) {
        false if method != "Multi" => None,
        false => {
            sending.store(true, Ordering::SeqCst);
            Some(Fault::KeepAndBreak(Arc::clone(&gate)))
        }
        true => Some(Fault::LoseRequest),
    });
    let answer = code(change());
    proxy.heal();
    let is_sent = is_sent.load(Ordering::SeqCst);
    assert!(answer == Code::InDoubt || !is_sent, "{answer:?}");
    is_sent
}

#[test]
fn a_late_request_of_an_old_incarnation_has_no_effect_on_the_next() {
    let Some((proxy, mut ours, theirs)) = stage("late-incarnation") else { return };
    let ends = [
        ("reset", (|latch| latch.reset(5, &[]).unwrap()) as fn(&Latch)),
        ("reset for names", |latch| latch.reset(5, &["a", "b", "c", "d", "e"]).unwrap()),
        ("deleted", |latch| {
            latch.delete().unwrap();
            assert!(latch.create(5).unwrap());
        }),
    ];
    let mut late = 0;
    for (end, begin_anew) in ends {
        for names in [&[][..], &["a"]] {
            let gate = Arc::new(Gate::opening_after(LONGEST));
            let participant = names.first().copied();
            // A latch that never had an incarnation, and one that had.
            ours.name = LatchName::new(&fresh("late-incarnation"), "dc1", "a", NamePolicy::Strict).unwrap();
            let theirs =
                Latch { name: ours.name.clone(), store: Arc::clone(&theirs.store), timeout: LONGEST };
            assert!(theirs.create_for(3, names, TTL).unwrap());
            // Again with more time if this machine was too slow to send the request.
            let is_sent = [700, 3_500, 14_000].into_iter().any(|timeout_ms| {
                ours.timeout = Duration::from_millis(timeout_ms);
                keep(&proxy, &gate, || ours.step(-1, participant))
            });
            assert!(is_sent, "no request was sent in 14 s");
            assert_eq!(theirs.dc(), Some(3));
            begin_anew(&theirs);
            gate.open();
            late += 1;
            until("the late request is carried out", || proxy.late() == late);
            assert_eq!(theirs.dc(), Some(5), "a late count, {end}, {participant:?}");
            assert_eq!(theirs.roster().arrived, [""; 0], "a late name, {end}, {participant:?}");
        }
    }
}

#[test]
fn a_reset_or_a_deletion_of_which_a_message_is_lost_is_made_once() {
    let Some((proxy, ours, theirs)) = stage("lost-reset") else { return };
    assert!(theirs.create(3).unwrap());
    let mut hits = 0;
    for loss in [Fault::LoseReply, Fault::LoseRequest] {
        proxy.next("Multi", loss.clone());
        ours.reset(7, &[]).unwrap();
        counted(theirs.step(-1, None));
        proxy.next("Multi", loss.clone());
        ours.delete().unwrap();
        hits += 2;
        assert_eq!((proxy.hits(), theirs.dc()), (hits, None), "no message was lost");
        assert!(theirs.create(3).unwrap());
    }
    // One that arrives late has no effect either.
    let changes = [|latch: &Latch| latch.reset(7, &[]), |latch: &Latch| latch.delete()];
    for (late, change) in (1..).zip(changes) {
        let gate = Arc::new(Gate::default());
        proxy.next("Multi", Fault::KeepAndBreak(Arc::clone(&gate)));
        change(&ours).unwrap();
        let _ = theirs.create(7).unwrap();
        counted(theirs.step(-1, None));
        gate.open();
        until("the late request is carried out", || proxy.late() == late);
        assert_eq!(theirs.dc(), Some(6), "a late request began it anew");
    }
}

/// The deletion has an incarnation of its own. A change that was not answered must not go on with that.
#[test]
fn a_change_in_doubt_is_not_made_after_another_has_deleted_the_latch() {
    let Some((proxy, ours, theirs)) = stage("doubt-deleted") else { return };
    let changes = [|latch: &Latch| latch.reset(7, &[]), |latch: &Latch| latch.delete()];
    for change in changes {
        assert!(theirs.create(3).unwrap());
        let other = Latch { name: theirs.name.clone(), store: Arc::clone(&theirs.store), timeout: LONGEST };
        let (sent, read) = (AtomicI64::new(0), AtomicI64::new(0));
        proxy.storm(move |method| match method {
            // The first request is lost, and when the second one arrives, the latch has another incarnation.
            "Multi" if sent.fetch_add(1, Ordering::SeqCst) == 0 => {
                other.reset(9, &[]).unwrap();
                Some(Fault::LoseRequest)
            }
            // The first read finds that it was not made. Before the second one the latch is deleted.
            "Get" if sent.load(Ordering::SeqCst) > 0 && read.fetch_add(1, Ordering::SeqCst) == 1 => {
                other.delete().unwrap();
                None
            }
            _ => None,
        });
        let answer = change(&ours);
        proxy.heal();
        assert_eq!(code(answer), Code::NotFound, "it was made of a latch that is not there");
        assert_eq!(theirs.dc(), None);
    }
}

#[test]
fn a_gateway_finds_no_latch_that_was_deleted_directly_and_creates_it_anew() {
    let Some(hbase) = server() else { return };
    let client = fresh("gateway-deleted");
    let direct = Latch::open(&direct(hbase.master), &client);
    let gateway = Latch::open(&table::uri(hbase.thrift), &client);
    assert!(direct.create_for(2, &["a", "b"], TTL).unwrap());
    counted(direct.step(-1, Some("a")));
    direct.delete().unwrap();
    assert_eq!((gateway.dc(), gateway.count(Level::Xdc).unwrap()), (None, None));
    assert_eq!(code(gateway.step(-1, None)), Code::NotFound);
    assert!(settled(|| gateway.create(4)).unwrap());
    assert!(!settled(|| gateway.create(5)).unwrap());
    // It waits for none of the names of before.
    counted(direct.step(-1, Some("a")));
    counted(gateway.step(-1, None));
    assert_eq!((direct.dc(), gateway.dc()), (Some(2), Some(2)));
}

#[test]
fn a_late_creation_does_not_bring_a_deleted_latch_back() {
    let Some((proxy, mut ours, theirs)) = stage("late-creation") else { return };
    for (late, names) in (1..).zip([&[][..], &["a"]]) {
        ours.name = LatchName::new(&fresh("late-creation"), "dc1", "a", NamePolicy::Strict).unwrap();
        let theirs = Latch { name: ours.name.clone(), store: Arc::clone(&theirs.store), timeout: LONGEST };
        // The first one follows nothing, and the second one a deletion.
        for round in 0..2 {
            let gate = Arc::new(Gate::default());
            proxy.next("Multi", Fault::KeepAndBreak(Arc::clone(&gate)));
            assert!(ours.create_for(3, names, TTL).unwrap());
            theirs.delete().unwrap();
            gate.open();
            until("the late request is carried out", || proxy.late() == 2 * (late - 1) + round + 1);
            assert_eq!(theirs.dc(), None, "a late request created it once more");
        }
        assert!(theirs.create(4).unwrap());
        assert_eq!((theirs.dc(), theirs.roster()), (Some(4), Roster::default()));
    }
}

#[test]
fn a_late_request_in_a_name_does_not_count_for_the_next_latch() {
    let Some((proxy, mut ours, theirs)) = stage("late-name") else { return };
    let gate = Arc::new(Gate::opening_after(LONGEST));
    // Again with more time if this machine was too slow to send the request.
    let is_sent = [1u32, 5, 20].into_iter().any(|slower| {
        assert!(theirs.create_for(3, &["a"], slower * Duration::from_secs(2)).unwrap());
        ours.timeout = slower * Duration::from_millis(700);
        let is_sent = keep(&proxy, &gate, || ours.step(-1, Some("a")));
        until("the latch expires", || theirs.dc().is_none());
        is_sent
    });
    assert!(is_sent, "no request was sent in 14 s");
    assert!(theirs.create_for(3, &["a"], TTL).unwrap());
    gate.open();
    until("the late request is carried out", || proxy.late() == 1);
    assert_eq!(theirs.dc(), Some(3));
    assert_eq!(theirs.roster().pending, ["a"]);
}

#[test]
fn a_change_that_cannot_be_settled_in_time_is_in_doubt() {
    let Some((proxy, mut ours, theirs)) = stage("doubt") else { return };
    assert!(theirs.create(3).unwrap());
    for participant in [None, Some("w")] {
        let before = theirs.dc().unwrap();
        // Again with a longer time-out if this machine was too slow to send the request.
        let is_sent = [700, 3_500, 14_000].into_iter().any(|timeout_ms| {
            ours.timeout = Duration::from_millis(timeout_ms);
            let is_sent = Arc::new(AtomicBool::new(false));
            let sending = Arc::clone(&is_sent);
            // The change is made. Its reply and all later messages are lost.
            proxy.storm(move |method| {
                sending.fetch_or(method == "Multi", Ordering::SeqCst);
                let loss = if method == "Multi" { Fault::LoseReply } else { Fault::LoseRequest };
                sending.load(Ordering::SeqCst).then_some(loss)
            });
            let answer = code(ours.step(-1, participant));
            proxy.heal();
            let is_sent = is_sent.load(Ordering::SeqCst);
            assert!(answer == Code::InDoubt || !is_sent, "{answer:?}");
            is_sent
        });
        assert!(is_sent, "no request was sent in 14 s");
        // The server may still be carrying it out.
        until("the change is made", || theirs.dc() != Some(before));
        assert_eq!(theirs.dc(), Some(before - 1));
    }
}

/// If the TTL were shorter, the older count would show again after its end.
#[test]
fn a_change_with_a_shorter_ttl_than_the_latch_was_made_with_does_not_bring_an_old_count_back() {
    let Some((_proxy, ours, theirs)) = stage("ttl") else { return };
    assert!(theirs.create(5).unwrap());
    counted(ours.step_with(-1, None, Duration::from_millis(200)));
    thread::sleep(Duration::from_millis(600));
    assert_eq!(theirs.dc(), Some(4));
}

#[test]
fn names_outlast_the_ttl_of_a_latch_that_is_kept_alive_and_go_with_it() {
    let Some((_proxy, ours, theirs)) = stage("names") else { return };
    // Again with a longer TTL if the machine stood still until the latch expired.
    let was_kept = [2, 8, 20].map(Duration::from_secs).into_iter().any(|ttl| {
        let was_kept = names_outlast_the_ttl(&ours, &theirs, ttl).is_some();
        until("the latch expires", || theirs.dc().is_none());
        was_kept
    });
    assert!(was_kept, "no latch was kept alive");
    assert!(ours.create(9).unwrap(), "not created after a latch with names");
    assert_eq!(theirs.roster(), Roster::default());
    counted(theirs.step(-1, Some("a")));
}

/// Returns `None` if the latch expired because it was not changed in time.
fn names_outlast_the_ttl(ours: &Latch, theirs: &Latch, ttl: Duration) -> Option<()> {
    let made = Moment::now();
    // When the last change was made, at the earliest.
    let kept = Cell::new(made);
    let in_time = |change: &dyn Fn() -> dlm::Result<Stepped>| {
        let asked = Moment::now();
        match change() {
            Ok(stepped) => {
                kept.set(asked);
                Some(stepped)
            }
            Err(error) if error.code() == Code::NotFound => {
                assert!(Moment::now().since(kept.get()) >= ttl, "it expired too soon");
                None
            }
            Err(error) => panic!("{}", error.chain()),
        }
    };
    // Some of those whom it waits for keep it alive.
    let late: Vec<_> = (0..40).map(|number| format!("late-{number}")).collect();
    let names: Vec<_> = ["a", "b", "c"].into_iter().chain(late.iter().map(String::as_str)).collect();
    let mut late = late.iter();
    assert!(ours.create_for(names.len() as i64, &names, ttl).unwrap());
    let first = in_time(&|| ours.step_with(-1, Some("a"), ttl))?;
    counted(Ok(first));
    while Moment::now().since(made) < ttl + ttl / 2 {
        thread::sleep(ttl / 10);
        let name = late.next().expect("a pause is a tenth of the TTL");
        in_time(&|| theirs.step_with(-1, Some(name), ttl))?;
    }
    assert_eq!(in_time(&|| theirs.step_with(-1, Some("a"), ttl))?, Stepped::Already);
    let roster = theirs.store().roster(&theirs.name, Deadline::after(LONGEST));
    if Moment::now().since(kept.get()) >= ttl {
        return None;
    }
    let Roster { pending, arrived } = roster.unwrap();
    assert_eq!((&pending[..2], arrived[0].as_str()), (&["b".to_owned(), "c".to_owned()][..], "a"));
    assert_eq!(pending.len() + arrived.len(), names.len());
    Some(())
}

/// A gateway cannot count by name, but it can see that names are missing.
#[test]
fn a_gateway_counts_no_latch_that_waits_for_names() {
    let Some(hbase) = server() else { return };
    let client = fresh("gateway-names");
    let (ours, gateway) =
        (Latch::open(&direct(hbase.master), &client), Latch::open(&table::uri(hbase.thrift), &client));
    assert!(ours.create_for(2, &["a", "b"], TTL).unwrap());
    for add in [-1, 1] {
        let error = gateway.step(add, None).unwrap_err();
        assert!(
            error.code() == Code::InvalidArgument && error.to_string().contains("\"a\", \"b\""),
            "{error}"
        );
    }
    counted(ours.step(-1, Some("a")));
    assert_eq!(code(gateway.step(-1, None)), Code::InvalidArgument);
    counted(ours.step(-1, Some("b")));
    counted(gateway.step(-1, None));
    assert_eq!(ours.dc(), Some(-1));
}

#[test]
fn marks_of_settled_changes_do_not_pile_up() {
    let Some((_proxy, ours, theirs)) = stage("marks") else { return };
    assert!(ours.create(100).unwrap());
    for _ in 0..20 {
        counted(ours.step(-1, None));
    }
    let mut raw = Raw::connect(table::gateway().unwrap(), TABLE);
    let row = raw.row(HbaseStore::latch_row(&theirs.name));
    let marks: Vec<_> = row.keys().filter(|column| column.starts_with("C:op_")).collect();
    assert_eq!(marks.len(), 1, "{marks:?}");
    assert_eq!(row.len(), 2, "{:?}", row.keys());
}

#[test]
fn a_count_of_another_kind_is_an_error_that_names_its_column() {
    let Some(hbase) = server() else { return };
    let mut raw = Raw::connect(hbase.thrift, TABLE);
    for uri in [direct(hbase.master), table::uri(hbase.thrift)] {
        let latch = Latch::open(&uri, &fresh("odd"));
        raw.put(HbaseStore::latch_row(&latch.name), b"C:count_dc1", b"abc");
        for answer in [
            latch.count(Level::Dc).map(|_| ()),
            latch.count(Level::Xdc).map(|_| ()),
            latch.step(-1, None).map(|_| ()),
        ] {
            let error = answer.unwrap_err();
            assert_eq!(error.code(), Code::InternalError, "{}", error.chain());
            assert!(error.chain().contains("C:count_dc1"), "{}", error.chain());
        }
        assert!(!settled(|| latch.create(3)).unwrap(), "the count was overwritten");
        assert_eq!(raw.row(HbaseStore::latch_row(&latch.name))["C:count_dc1"], b"abc");
        // In a read of many latches it does not affect the others.
        let other = Latch::open(&uri, &fresh("even"));
        assert!(other.create(7).unwrap());
        let both = [(&latch.name, Level::Dc), (&other.name, Level::Dc)];
        let counts = latch.store().counts(&both, Deadline::after(LONG)).unwrap();
        assert!(counts[0].is_err());
        assert_eq!(*counts[1].as_ref().unwrap(), Some(7));
    }
}

/// Opens a manager that polls its latches every 50 ms.
fn watching(uri: &str, latches: &str) -> LockManager {
    LockManager::builder()
        .store_uri(&format!("{uri}?client=waits&farm=dc1&latches={latches}"))
        .timeout(LONGEST)
        .poll(Duration::from_millis(50))
        .open()
        .unwrap()
}

/// Waits without a limit in a new thread. If the wait does not end, the test fails and does not hang.
fn waiter(latch: dlm::Latch) -> thread::JoinHandle<dlm::Result<()>> {
    thread::Builder::new().name("dlm-test-waiter".into()).spawn(move || latch.await_open()).unwrap()
}

#[track_caller]
fn ended(waiter: thread::JoinHandle<dlm::Result<()>>) -> dlm::Result<()> {
    eventually("a wait ends", || waiter.is_finished());
    waiter.join().unwrap()
}

/// Servers do not enable a disabled table by themselves, so a wait for its latches must not continue.
#[test]
fn a_table_that_is_disabled_ends_waits_and_is_named_at_once() {
    let Some(hbase) = server() else { return };
    let suffix = hbase::fresh_table("disabled");
    let table = format!("D_LTCH_{suffix}");
    let mut raw = Raw::connect(hbase.thrift, &table);
    raw.create_table("C:");
    let managers = [direct(hbase.master), table::uri(hbase.thrift)].map(|uri| watching(&uri, &suffix));
    let latch = |at: usize, id: &str| managers[at].latch(id, Level::Dc, LatchKind::CountDown).unwrap();
    for (at, id) in ["direct", "gateway"].into_iter().enumerate() {
        latch(at, id).create(1).unwrap();
    }
    let waiters = [(0, "direct"), (1, "gateway"), (0, "gateway")].map(|(at, id)| waiter(latch(at, id)));
    for (at, id) in ["direct", "gateway"].into_iter().enumerate() {
        assert!(!latch(at, id).await_open_for(Duration::from_millis(200)).unwrap());
    }
    raw.disable_table();
    for waiter in waiters {
        let error = ended(waiter).unwrap_err();
        assert_eq!(error.code(), Code::TableCreationError, "{}", error.chain());
        assert!(error.chain().contains("disabled"), "{}", error.chain());
    }
    for (at, id) in ["direct", "gateway"].into_iter().enumerate() {
        let begin = Moment::now();
        for answer in
            [latch(at, id).await_open(), latch(at, id).count_down(), latch(at, id).count().map(drop)]
        {
            let error = answer.unwrap_err();
            assert_eq!(error.code(), Code::TableCreationError, "{id}: {}", error.chain());
        }
        assert!(Moment::now().since(begin) < LONGEST / 2, "{id}: waited for the deadline");
    }
    raw.enable_table();
    for (at, id) in ["direct", "gateway"].into_iter().enumerate() {
        latch(at, id).count_down().unwrap();
        latch(at, id).await_open().unwrap();
    }
    raw.drop_table();
}

/// Without a table there is no latch. A table without the family can never contain one.
#[test]
fn a_wait_in_no_table_and_in_one_without_the_family_ends() {
    let Some(hbase) = server() else { return };
    let [none, other] = ["none", "other"].map(hbase::fresh_table);
    let mut raw = Raw::connect(hbase.thrift, &format!("D_LTCH_{other}"));
    raw.create_table("X:");
    for uri in [direct(hbase.master), table::uri(hbase.thrift)] {
        let wait = |suffix: &str| {
            let latch = watching(&uri, suffix).latch("a", Level::Dc, LatchKind::CountDown).unwrap();
            ended(waiter(latch)).unwrap_err()
        };
        let error = wait(&none);
        assert_eq!(error.code(), Code::NotFound, "{}", error.chain());
        let error = wait(&other);
        assert_eq!(error.code(), Code::TableCreationError, "{}", error.chain());
        assert!(error.chain().contains("has no family C"), "{}", error.chain());
    }
    raw.drop_table();
}

/// For level XDC a gateway reads whole rows, many of them with one request.
#[test]
fn a_row_that_is_too_large_for_a_gateways_reply_hides_no_other_latch() {
    let Some(hbase) = server() else { return };
    let uri = format!("hbase+thrift://{}/{}", hbase.thrift, table::TABLE);
    let client = fresh("large-row");
    let store = dlm::store::open(&uri).unwrap();
    let name = |id: usize| LatchName::new(&client, "dc1", &id.to_string(), NamePolicy::Strict).unwrap();
    let names: Vec<_> = (0..7).map(name).collect();
    for (name, count) in names.iter().zip(0..) {
        let new = NewLatch { name, count, roster: &[], ttl: TTL, by: Deadline::after(LONGEST) };
        assert!(store.latches().unwrap().create_latch(&new).unwrap());
    }
    Raw::connect(hbase.thrift, TABLE).put(
        HbaseStore::latch_row(&names[3]),
        b"C:op_large_dc1",
        &vec![0; 1100 << 10],
    );
    let asked: Vec<_> = names.iter().map(|name| (name, Level::Xdc)).collect();
    let counts = store.latches().unwrap().counts(&asked, Deadline::after(LONGEST)).unwrap();
    for (id, count) in counts.into_iter().enumerate() {
        match count {
            Ok(count) => assert_eq!(count, Some(id as i64)),
            Err(error) => assert!(id == 3 && error.chain().contains("1 MiB"), "{id}: {}", error.chain()),
        }
    }
}

/// All names of a roster are read with one reply, whose size is limited.
#[test]
fn a_roster_that_could_not_be_read_back_is_refused() {
    let Some((_proxy, ours, _)) = stage("large-roster") else { return };
    let names: Vec<_> = (0..20_000).map(|number| format!("{number:x>20}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let error = ours.create_for(20_000, &names, TTL).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{}", error.chain());
    assert_eq!(ours.dc(), None);
    let fewer = &names[..14_000];
    assert!(ours.create_for(14_000, fewer, TTL).unwrap());
    assert_eq!(ours.roster().pending.len(), fewer.len());
}

#[test]
fn a_client_whose_name_could_end_elsewhere_is_refused_before_any_io() {
    let silent = "127.0.0.1:1";
    for uri in [format!("hbase://{silent}/locks"), format!("hbase+thrift://{silent}/locks")] {
        let latch = Latch::open(&uri, "a_b");
        assert_eq!(code(latch.create(1)), Code::InvalidArgument);
        assert_eq!(code(latch.step(-1, None)), Code::InvalidArgument);
        assert_eq!(code(latch.count(Level::Dc)), Code::InvalidArgument);
    }
    let latch = Latch::open(&format!("hbase+thrift://{silent}/locks"), "a");
    for answer in [latch.create_for(1, &["w"], TTL).map(|_| ()), latch.step(-1, Some("w")).map(|_| ())] {
        let error = answer.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("use hbase://"), "{error}");
    }
    let by = Deadline::after(LONG);
    assert_eq!(code(latch.store().roster(&latch.name, by)), Code::InvalidArgument);
}

#[test]
fn a_cluster_that_cannot_be_reached_fails_a_read_of_many_latches_as_a_whole() {
    for uri in ["hbase://127.0.0.1:1/locks", "hbase+thrift://127.0.0.1:1/locks"] {
        let latch = Latch::open(uri, "a");
        let asked = [(&latch.name, Level::Dc), (&latch.name, Level::Xdc)];
        let answer = latch.store().counts(&asked, Deadline::after(Duration::from_millis(500)));
        assert_eq!(code(answer), Code::ConnectionError, "{uri}");
        assert!(latch.store().counts(&[], Deadline::after(LONG)).unwrap().is_empty());
    }
}

#[test]
fn java_services_and_ours_count_one_latch_and_read_one_sum() {
    let Some(hbase) = server() else { return };
    let mut peer = Peer::start(hbase);
    for uri in [direct(hbase.master), table::uri(hbase.thrift)] {
        let latch = Latch::open(&uri, &fresh("java"));
        let row = hex(&HbaseStore::latch_row(&latch.name));
        let (dc, xdc) = (format!("latch-dc {TABLE} {row} dc1"), format!("latch-xdc {TABLE} {row}"));
        // Created by Java, changed by both.
        peer.ask(&format!("latch-init {TABLE} {row} dc1 10 3600"));
        peer.ask(&format!("latch-init {TABLE} {row} dc2 100 3600"));
        assert!(!settled(|| latch.create(3)).unwrap());
        counted(latch.step(-1, None));
        peer.ask(&format!("latch-add {TABLE} {row} dc1 -1"));
        counted(latch.step(1, None));
        if uri.starts_with("hbase://") {
            counted(latch.step(-1, Some("w")));
            assert_eq!(latch.step(-1, Some("w")).unwrap(), Stepped::Already);
            counted(latch.step(1, None));
        }
        latch.note();
        assert_eq!((latch.dc(), latch.count(Level::Xdc).unwrap()), (Some(9), Some(109)));
        assert_eq!((peer.ask(&dc).as_str(), peer.ask(&xdc).as_str()), ("9", "109"), "{uri}");
        // Created by this library.
        let latch = Latch::open(&uri, &fresh("java"));
        let row = hex(&HbaseStore::latch_row(&latch.name));
        let names: &[&str] = if uri.starts_with("hbase://") { &["w", "x"] } else { &[] };
        assert!(latch.create_for(5, names, TTL).unwrap());
        latch.note();
        peer.ask(&format!("latch-add {TABLE} {row} dc1 -1"));
        counted(latch.step(-1, names.first().copied()));
        let xdc = peer.ask(&format!("latch-xdc {TABLE} {row}"));
        assert_eq!((latch.dc(), xdc.as_str()), (Some(3), "3"), "{uri}");
    }
}

/// What docs/hbase.md says of Java services beside a latch that was reset or deleted.
#[test]
fn java_counts_a_latch_that_was_reset_and_fails_at_one_that_was_deleted() {
    let Some(hbase) = server() else { return };
    let mut peer = Peer::start(hbase);
    let latch = Latch::open(&direct(hbase.master), &fresh("java-reset"));
    let row = hex(&HbaseStore::latch_row(&latch.name));
    let (dc, xdc) = (format!("latch-dc {TABLE} {row} dc1"), format!("latch-xdc {TABLE} {row}"));
    let add = format!("latch-add {TABLE} {row} dc1 -1");
    peer.ask(&format!("latch-init {TABLE} {row} dc1 10 3600"));
    peer.ask(&format!("latch-init {TABLE} {row} dc2 100 3600"));
    for names in [&[][..], &["w"]] {
        peer.ask(&add);
        latch.reset(3, names).unwrap();
        peer.ask(&add);
        let sums = (latch.dc(), peer.ask(&dc), latch.count(Level::Xdc).unwrap(), peer.ask(&xdc));
        assert_eq!(sums, (Some(2), "2".to_owned(), Some(102), "102".to_owned()));
    }
    // Of its count Java reads nothing that looks like one.
    latch.delete().unwrap();
    let init = format!("latch-init {TABLE} {row} dc1 10 3600");
    for request in [&dc, &xdc, &add, &init] {
        let answer = peer.try_ask(request);
        assert!(answer.starts_with("error"), "{request}: {answer}");
    }
    assert_eq!((latch.dc(), latch.count(Level::Xdc).unwrap()), (None, Some(100)));
    assert!(latch.create(4).unwrap());
    peer.ask(&add);
    assert_eq!((peer.ask(&dc), peer.ask(&xdc)), ("3".to_owned(), "103".to_owned()));
}

/// Not a test: the code of a process that counts down over a network that loses and delays messages.
#[test]
fn worker() {
    let Ok(order) = env::var("DLM_TEST_LATCHER") else { return };
    let [master, client, number, rounds] = order.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let proxy = rpc_proxy::before(master.parse().unwrap());
    let latch = Latch::open(&direct(proxy.address()), client);
    assert!(latch.dc().is_some());
    proxy.storm(|_| match fastrand::u8(..100) {
        ..20 => Some(Fault::LoseReply),
        20..23 => Some(Fault::LoseRequest),
        23..26 => Some(Fault::KeepAndBreak(Arc::new(Gate::opening_after(Duration::from_millis(
            fastrand::u64(..300),
        ))))),
        _ => None,
    });
    let rounds: usize = rounds.parse().unwrap();
    let named = AtomicI64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (latch, named) = (&latch, &named);
            scope.spawn(move || {
                for round in 0..rounds {
                    counted(latch.step(-1, None));
                    if round % 10 == 0 {
                        // All processes use this name. Only one of them counts.
                        let name = format!("{thread}-{round}");
                        match latch.step(-1, Some(&name)).unwrap() {
                            Stepped::Counted(_) => drop(named.fetch_add(1, Ordering::SeqCst)),
                            Stepped::Already => {}
                        }
                    }
                }
            });
        }
    });
    proxy.heal();
    println!("\nlatcher {number} {} {} {}", named.into_inner(), proxy.hits(), proxy.late());
}

const THREADS: usize = 3;

#[test]
fn processes_on_a_network_that_loses_a_fifth_of_all_replies_count_down_exactly() {
    const PROCESSES: usize = 3;
    let Some(hbase) = server() else { return };
    let rounds: usize = env::var("DLM_TEST_STORM").map_or(40, |rounds| rounds.parse().unwrap());
    let client = fresh("storm");
    let latch = Latch::open(&direct(hbase.master), &client);
    let names = THREADS * rounds.div_ceil(10);
    let total = (PROCESSES * THREADS * rounds + names) as i64;
    assert!(latch.create(total).unwrap());
    let children: Vec<Child> = (0..PROCESSES)
        .map(|number| {
            Command::new(env::current_exe().unwrap())
                .args([&test_in(module_path!(), "worker"), "--exact", "--nocapture", "--test-threads=1"])
                .env("DLM_TEST_LATCHER", format!("{} {client} {number} {rounds}", hbase.master))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let (mut named, mut hits) = (0, 0);
    for child in children {
        let done = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{text}");
        let told = text.lines().find_map(|line| line.strip_prefix("latcher ")).unwrap();
        println!("{told}");
        let told: Vec<usize> = told.split(' ').map(|number| number.parse().unwrap()).collect();
        named += told[1];
        hits += told[2];
    }
    // Late requests arrive within 300 ms.
    thread::sleep(Duration::from_millis(500));
    println!("{total} count-downs, {hits} losses");
    assert_eq!(named, names, "each name counts for one process");
    assert_eq!(latch.dc(), Some(0));
    assert_eq!(latch.roster().arrived.len(), names);
    assert!(hits > total as usize / 5, "only {hits} losses");
}

#[test]
fn a_late_refusal_by_a_gateway_is_in_doubt_unless_its_pause_is_longer() {
    let Some(hbase) = server() else { return };
    let client = fresh("gateway-late-refusal");
    let proxy = thrift_proxy::before(hbase.thrift);
    assert!(Latch::open(&table::uri(hbase.thrift), &client).create(0).unwrap());
    // The reply has more than 20 bytes.
    let late = || proxy.next("checkAndPut", Fault::Drip(Duration::from_millis(30)));
    let usual = Latch::open(&table::uri(proxy.address()), &client);
    late();
    assert_eq!(usual.create(0).unwrap_err().code(), Code::InDoubt);
    let patient = Latch::open(&format!("{}?gateway_pause=10m", table::uri(proxy.address())), &client);
    late();
    assert!(!patient.create(0).unwrap());
    assert_eq!(proxy.hits(), 2);
}

#[test]
fn through_a_gateway_what_was_lost_is_in_doubt_and_the_count_lies_within_the_doubts() {
    const PROCESSES: usize = 3;
    let Some(hbase) = server() else { return };
    let rounds: usize = env::var("DLM_TEST_STORM").map_or(40, |rounds| rounds.parse().unwrap());
    let client = fresh("gateway-storm");
    let latch = Latch::open(&table::uri(hbase.thrift), &client);
    assert!(latch.create(0).unwrap());
    let done = [0; 3].map(AtomicI64::new);
    let [counted, doubts, refused] = &done;
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            let client = &client;
            scope.spawn(move || {
                let proxy = thrift_proxy::before(hbase.thrift);
                let latch = Latch::open(&table::uri(proxy.address()), client);
                // A fifth of all replies and some requests: of the changes, and of the reads.
                let mut numbers = [0, 0];
                proxy.storm(move |method| {
                    let number = &mut numbers[usize::from(method == "checkAndPut")];
                    *number += 1;
                    match *number {
                        number if number % 5 == 0 => Some(Fault::LoseReply),
                        number if number % 33 == 0 => Some(Fault::LoseRequest),
                        _ => None,
                    }
                });
                for _ in 0..rounds {
                    let outcome = match latch.step(-1, None) {
                        Ok(_) => counted,
                        Err(error) if error.is_in_doubt() => doubts,
                        // Only reads were sent, or the count was changed by others before each try.
                        Err(Error::Connection { .. } | Error::RetriesExhausted { .. }) => refused,
                        Err(error) => panic!("{}", error.chain()),
                    };
                    outcome.fetch_add(1, Ordering::SeqCst);
                }
                assert!(proxy.hits() > rounds / 5, "only {} losses", proxy.hits());
            });
        }
    });
    let [counted, doubts, refused] = done.map(AtomicI64::into_inner);
    let found = -latch.dc().unwrap();
    println!("{counted} counted, {doubts} in doubt, {refused} refused: {found}");
    assert!((counted..=counted + doubts).contains(&found), "{counted} <= {found} <= {}", counted + doubts);
    assert!(doubts > 0 && counted > 0);
}

//! Replies about applications' rows in which a part failed. A change that was made is not made again.
#![cfg(all(feature = "hbase", feature = "embedded"))]

use std::time::{Duration, Instant};

use dlm::hbase::{Cells, Changes, Creation, Row, Table};
use dlm::{Code, Lease, Level, LockManager};
use dlm_fixtures::fake::{Answer, Fake, Pb};
use dlm_testkit::LONG;

const NOT_SERVING: &str = "org.apache.hadoop.hbase.NotServingRegionException";

/// Result of one part of a Multi.
#[derive(Clone, Copy)]
enum Part {
    Made,
    NotMade,
    Failed,
    /// A read that returns these cells.
    Read(&'static [(&'static str, &'static str)]),
}
use Part::{Failed, Made, NotMade, Read};

fn multi(parts: &[Part]) -> Answer {
    let exception = Pb::new().bytes(1, NOT_SERVING.as_bytes()).bytes(2, b"closing");
    let cell = |(qualifier, value): &(&str, &str)| {
        Pb::new()
            .bytes(1, b"r")
            .bytes(2, b"D")
            .bytes(3, qualifier.as_bytes())
            .int(4, 1 << 40)
            .int(5, 4)
            .bytes(6, value.as_bytes())
    };
    let part = |part: &Part| match part {
        Made => Pb::new().bytes(1, &Pb::new().int(1, 0).bytes(2, b"").0).int(3, 1),
        NotMade => Pb::new().int(3, 0),
        Failed => Pb::new().bytes(2, &exception.0),
        Read(cells) => {
            let row = cells.iter().map(cell).fold(Pb::new(), |row, cell| row.bytes(1, &cell.0));
            Pb::new().bytes(1, &Pb::new().int(1, 0).bytes(2, &row.0).0)
        }
    };
    Answer::Reply(parts.iter().map(part).fold(Pb::new(), |body, part| body.bytes(1, &part.0)).0)
}

/// Starts a server that gives these answers to the first Multis, in order. All later Multis get the last answer.
fn answering(answers: &[&[Part]]) -> Fake {
    let mut answers: Vec<_> = answers.iter().rev().map(|parts| multi(parts)).collect();
    Fake::start(move |request| match (request.method.as_str(), answers.len()) {
        ("Multi", 2..) => answers.pop().unwrap(),
        ("Multi", _) => answers[0].clone(),
        _ => Answer::Honest,
    })
}

fn table(fake: &Fake) -> Table {
    table_within(fake, "5m")
}

fn table_within(fake: &Fake, timeout: &str) -> Table {
    Table::open(&format!("hbase://{}/t?family=D&timeout={timeout}", fake.address)).unwrap()
}

/// Makes a call that lasts until its time-out, on a server that `start` starts. Makes it again with a longer time-out
/// if this machine was so slow that the server received fewer requests of a method than the call sends at least.
fn until_its_time_is_over<T>(
    start: impl Fn() -> Fake,
    (method, least): (&str, usize),
    call: impl Fn(&Row) -> dlm::Result<T>,
) -> (Fake, dlm::Result<T>) {
    for timeout in ["2s", "10s", "50s"] {
        let fake = start();
        let answer = call(&table_within(&fake, timeout).row("r"));
        if fake.count(method) >= least {
            return (fake, answer);
        }
        assert!(answer.is_err_and(|error| error.is_retryable()));
    }
    panic!("less than {least} {method} in 50 s");
}

fn lease() -> (tempfile::TempDir, Lease) {
    let place = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}", place.path().display());
    let manager = LockManager::builder().store_uri(&uri).client("rows").timeout(LONG).open().unwrap();
    let lease = manager.lock("guard", Level::Xdc).unwrap().acquire().unwrap();
    (place, lease)
}

fn id(value: &str) -> Cells {
    Cells::new().put("D:id", value)
}

#[test]
fn a_change_that_was_made_is_not_made_again_where_the_read_behind_it_failed() {
    let (_place, lease) = lease();
    type Call = fn(&Row) -> bool;
    let cases: [(&[Part], bool, Call); 6] = [
        (&[Made, Failed], false, |row| row.compare_and_set("D:id", Some(b"1"), Some(b"2")).unwrap()),
        (&[Made, Made, Failed], false, |row| row.compare_and_set("D:n", None, Some(b"2")).unwrap()),
        (&[Made, Failed], false, |row| row.update(&id("1")).unwrap() == dlm::hbase::Update::Updated),
        (&[Made, Made, Made, Failed], true, |row| row.increment("D:n", 1).is_ok()),
        (&[NotMade, Failed, Made, Failed], true, |row| row.put(&id("1")).is_ok()),
        (&[Made, Failed], false, |row| row.create(&id("7")).unwrap() == Creation::Created),
    ];
    for (number, (parts, fenced, call)) in cases.into_iter().enumerate() {
        let fake = answering(&[parts]);
        fake.put(b"r".into(), "id", b"7".into());
        fake.put(b"r".into(), "n", b"2".into());
        let table = table(&fake);
        let row = if fenced { lease.row(&table, "r").unwrap() } else { table.row("r") };
        assert!(call(&row), "{number}");
        assert_eq!(fake.count("Multi"), 1, "{number}: it was made again");
    }
}

#[test]
fn a_change_that_was_made_and_cannot_be_read_back_is_in_doubt() {
    let start = || cut(&[Made, Failed]);
    let (fake, created) = until_its_time_is_over(start, ("Multi", 1), |row| row.create(&id("7")));
    let error = created.unwrap_err();
    assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
    assert_eq!(fake.count("Multi"), 1);
}

/// Starts a server that gives this answer to one Multi, and refuses all reads.
fn cut(parts: &'static [Part]) -> Fake {
    let mut multi = Some(multi(parts));
    Fake::start(move |request| match request.method.as_str() {
        "Multi" => multi.take().unwrap(),
        "Get" => Answer::Refuse(NOT_SERVING, "closed".into()),
        _ => Answer::Honest,
    })
}

/// The region opened again between two steps of the request.
#[test]
fn a_change_that_was_made_behind_a_step_that_failed_is_not_made_again() {
    let (_place, lease) = lease();
    let fake = answering(&[&[Failed, Failed, Made, Read(&[])]]);
    lease.row(&table(&fake), "r").unwrap().increment("D:n", 1).unwrap();
    assert_eq!(fake.count("Multi"), 1, "it was made again");
}

#[test]
fn a_change_that_was_not_made_behind_a_step_that_failed_is_tried_again() {
    let fake = answering(&[&[Failed, NotMade, Read(&[])], &[Made, Made, Read(&[("n", "2")])]]);
    assert!(table(&fake).row("r").compare_and_set("D:n", None, Some(b"2")).unwrap());
    assert_eq!(fake.count("Multi"), 2);
}

/// Another column may be missing already: another client deleted it, or its TTL was a millisecond.
#[test]
fn a_row_whose_anchor_is_there_was_created_whatever_became_of_its_other_columns() {
    let fake = answering(&[&[Made, Read(&[("id", "7")])], &[NotMade, Read(&[("id", "7")])]]);
    assert_eq!(table(&fake).row("r").create(&id("7").put("D:x", "")).unwrap(), Creation::Created);
    assert_eq!(fake.count("Multi"), 1);
}

/// A Delete with a timestamp in the future hides the put. Later reads may see it.
#[test]
fn what_was_put_and_is_never_seen_is_in_doubt() {
    let start = || answering(&[&[Made, Read(&[])]]);
    // It is put again, because nobody else may have seen it.
    let (_fake, created) = until_its_time_is_over(start, ("Multi", 2), |row| row.create(&id("7")));
    let error = created.unwrap_err();
    assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
}

/// Our put may be hidden, or another client may have replaced it. A second put could bring back a deleted row. The
/// answer "exists" could leave a row that no caller knows to have created.
#[test]
fn a_row_that_was_created_and_shows_another_anchor_is_in_doubt() {
    let fake = answering(&[&[Made, Read(&[("id", "8")])], &[NotMade, Read(&[("id", "8")])]]);
    let error = table(&fake).row("r").create(&id("7")).unwrap_err();
    assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
    assert_eq!(fake.count("Multi"), 1);
}

/// Other clients had time to delete the row.
#[test]
fn a_row_that_was_created_and_is_gone_when_it_is_read_later_is_not_created_again() {
    let fake = answering(&[&[Made, Failed]]);
    fake.act(|request| match request.method.as_str() {
        "Multi" => multi(&[Made, Failed]),
        "Get" => Answer::Reply(Vec::new()),
        _ => Answer::Honest,
    });
    let error = table(&fake).row("r").create(&id("7")).unwrap_err();
    assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
    assert_eq!(fake.count("Multi"), 1);
}

/// A change that depends on no absent cell needs no read-back. A refused change did not happen.
#[test]
fn a_read_back_that_fails_takes_nothing_from_an_answer_that_needs_none() {
    // The read shows that the answer to the change has arrived.
    let (_fake, made) = until_its_time_is_over(
        || cut(&[Made, Failed]),
        ("Get", 1),
        |row| row.compare_and_set("D:id", Some(b"1"), Some(b"2")),
    );
    assert!(made.unwrap());
    let (_fake, refused) = until_its_time_is_over(
        || cut(&[Made, NotMade, Failed]),
        ("Get", 1),
        |row| row.compare_and_set("D:id", None, Some(b"2")),
    );
    let error = refused.unwrap_err();
    // The last read may have had no answer in time.
    let expected = [Code::RetriesExhausted, Code::ConnectionError];
    assert!(expected.contains(&error.code()), "{}", error.chain());
}

/// If the change were made again, the counter would be added to twice.
#[test]
fn a_change_of_which_only_a_part_was_hidden_is_not_made_again() {
    let fake = answering(&[&[Made, Made, Read(&[])]]);
    let row = table(&fake).row("r");
    let error = row.modify(&["D:id"], |_| Some(Changes::new().put("D:id", "1").add("D:n", 1))).unwrap_err();
    assert_eq!(error.code(), Code::InDoubt, "{}", error.chain());
    assert_eq!(fake.count("Multi"), 1);
}

/// The closure does not see the library's marks and fences, nor the columns that it only writes.
#[test]
fn each_try_of_modify_sees_the_columns_that_were_asked_for_and_no_others() {
    let refused = Read(&[("\0dlm_op_1", "."), ("_fence", "12345678"), ("x", "1"), ("y", "2")]);
    let fake = answering(&[&[Made, NotMade, refused]]);
    let table = table(&fake);
    let mut tries = 0;
    let modified = table.row("r").modify(&["D:x"], |found| {
        tries += 1;
        let seen: Vec<_> = found.iter().map(|(column, _)| column.to_string()).collect();
        if tries == 1 {
            return Some(Changes::new().put("D:y", "3"));
        }
        assert_eq!(seen, ["D:x"]);
        None
    });
    assert!(!modified.unwrap().changed && tries == 2);
}

/// No later put may have a timestamp that the Delete hides.
#[test]
fn a_delete_waits_until_the_millisecond_of_what_it_deletes_is_over() {
    let fake = answering(&[&[Made, Read(&[])]]);
    let row = table(&fake).row("r");
    let took = (0..20).map(|_| {
        fake.put(b"r".into(), "id", b"7".into());
        let began = Instant::now();
        assert!(row.compare_and_set("D:id", Some(b"7"), None).unwrap());
        began.elapsed()
    });
    let took = took.min().unwrap();
    assert!(took >= Duration::from_millis(2), "{took:?}");
    let took = (0..20).map(|_| {
        fake.put(b"r".into(), "id", b"7".into());
        let began = Instant::now();
        assert!(row.modify(&["D:id"], |_| Some(Changes::new().delete("D:id"))).unwrap().changed);
        began.elapsed()
    });
    let took = took.min().unwrap();
    assert!(took >= Duration::from_millis(2), "{took:?}");
}

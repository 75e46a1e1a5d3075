//! The SQL of docs/fencing.md, unchanged, on a real PostgreSQL. Late writers are refused in every order in which two
//! transactions can run.

use std::thread;

use dlm_fixtures::postgres::{Schema, Session, schema_or_skip};

const PAGE: &str = include_str!("../../docs/fencing.md");
const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];
/// "could not serialize access due to concurrent update": the client must repeat the transaction.
const REPEAT: [&str; 1] = ["ERROR:  40001"];
const STALE: [&str; 1] = ["UPDATE 0"];
const WRITTEN: [&str; 1] = ["UPDATE 1"];
const NOT_PASSED: [&str; 1] = ["INSERT 0 0"];
const PASSED: [&str; 1] = ["INSERT 0 1"];

/// Returns the blocks of the page: language and text.
fn blocks() -> Vec<(&'static str, &'static str)> {
    PAGE.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').expect("a language")).collect()
}

/// Returns the statement below the comment with this name.
fn sql(name: &str) -> &'static str {
    let named = |(language, text): &(&str, &'static str)| {
        let (comment, statement) = text.split_once('\n')?;
        (*language == "sql" && comment == format!("-- {name}")).then_some(statement)
    };
    let found: Vec<_> = blocks().iter().filter_map(named).collect();
    assert_eq!(found.len(), 1, "the page must contain this statement once: {name:?}");
    found[0]
}

/// The Rust blocks run as documentation tests of the crate, the HTTP blocks in `fencing_http`, the SQL blocks here.
#[test]
fn every_block_of_the_page_is_run_by_a_test() {
    let these_tests = include_str!("fencing_postgres.rs");
    for (language, text) in blocks() {
        match language {
            "rust" | "http" => {}
            "sql" => {
                let name = text.lines().next().unwrap().strip_prefix("-- ").expect("a name");
                assert!(these_tests.contains(&format!("sql(\"{name}\")")), "{name:?} is not run");
            }
            other => panic!("nothing runs blocks that begin with {other:?}"),
        }
    }
}

/// Sets the variables for a holder with this fence, on account 1.
fn holder(session: &mut Session, fence: u64, balance: i64) -> &mut Session {
    session.set(&[("id", "1"), ("fence", &fence.to_string()), ("balance", &balance.to_string())])
}

fn account(schema: &Schema) -> Vec<String> {
    schema.session().run("SELECT balance, fence FROM accounts WHERE id = 1;")
}

/// Creates a table with account 1. Its balance is 100, and it was written with fence 5.
fn accounts() -> Option<Schema> {
    let schema = schema_or_skip()?;
    let mut session = schema.session();
    assert_eq!(session.run(sql("make the table")), ["CREATE TABLE"]);
    assert_eq!(holder(&mut session, 5, 100).run(sql("write or insert the row")), PASSED);
    Some(schema)
}

// ---- One row -----------------------------------------------------------------------------------

#[test]
fn a_lower_fence_writes_nothing_and_an_equal_one_writes() {
    let Some(schema) = accounts() else { return };
    let mut session = schema.session();
    for write in [sql("write the row"), sql("write or insert the row")] {
        let tags = if write.starts_with("UPDATE") { [STALE, WRITTEN] } else { [NOT_PASSED, PASSED] };
        assert_eq!(holder(&mut session, 4, 1).run(write), tags[0]);
        assert_eq!(account(&schema), ["100|5"]);
        assert_eq!(holder(&mut session, 5, 100).run(write), tags[1]);
    }
    assert_eq!(holder(&mut session, 6, 70).run(sql("write the row")), WRITTEN);
    assert_eq!(holder(&mut session, 5, 1).run(sql("write or insert the row")), NOT_PASSED);
    let highest = i64::MAX as u64;
    assert_eq!(holder(&mut session, highest, 60).run(sql("write or insert the row")), PASSED);
    assert_eq!(holder(&mut session, highest - 1, 1).run(sql("write the row")), STALE);
    assert_eq!(account(&schema), [format!("60|{highest}")]);
    // The stored fence distinguishes a stale fence from a row that does not exist.
    assert_eq!(session.run(sql("the stored fence")), [highest.to_string()]);
    session.set(&[("id", "2")]);
    assert_eq!(session.run(sql("write the row")), STALE);
    assert_eq!(session.run(sql("the stored fence")), [""; 0]);
}

#[test]
fn readers_of_one_epoch_read_the_row_and_one_from_before_a_writer_does_not() {
    let Some(schema) = accounts() else { return };
    let mut session = schema.session();
    let read = |session: &mut Session, epoch: u64| {
        session.set(&[("id", "1"), ("epoch", &epoch.to_string())]);
        session.run(sql("read the row"))
    };
    for _ in 0..2 {
        assert_eq!(read(&mut session, 6), ["100"], "two readers after the writer with fence 5");
    }
    assert_eq!(read(&mut session, 5), ["100"], "the writer itself, which has stepped down");
    assert_eq!(holder(&mut session, 7, 70).run(sql("claim the row")), ["100", "UPDATE 1"]);
    assert_eq!(read(&mut session, 6), [""; 0], "a writer has claimed the row since");
    assert_eq!(read(&mut session, 8), ["100"]);
}

#[test]
fn a_column_that_is_added_lets_the_first_holder_in() {
    let Some(schema) = schema_or_skip() else { return };
    let mut session = schema.session();
    session.run("CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);");
    session.run("INSERT INTO accounts VALUES (1, 100);");
    assert_eq!(session.run(sql("or add the column")), ["ALTER TABLE"]);
    assert_eq!(holder(&mut session, 7, 0).run(sql("claim the row")), ["100", "UPDATE 1"]);
    assert_eq!(holder(&mut session, 6, 1).run(sql("write the row")), STALE);
    assert_eq!(account(&schema), ["100|7"]);
}

/// If a new holder reads and then writes, it overwrites what the old holder wrote in between. A claim prevents that.
#[test]
fn a_claim_keeps_late_writes_from_what_was_read() {
    let Some(schema) = accounts() else { return };
    let (mut old, mut new) = (schema.session(), schema.session());
    let read = new.run("SELECT balance FROM accounts WHERE id = 1;");
    assert_eq!(holder(&mut old, 5, 90).run(sql("write the row")), WRITTEN);
    assert_eq!(holder(&mut new, 6, read[0].parse().unwrap()).run(sql("write the row")), WRITTEN);
    assert_eq!(account(&schema), ["100|6"], "without a claim the write of 90 is lost, as the page says");

    assert_eq!(holder(&mut new, 7, 0).run(sql("claim the row")), ["100", "UPDATE 1"]);
    assert_eq!(holder(&mut old, 6, 90).run(sql("write the row")), STALE);
    assert_eq!(holder(&mut old, 6, 90).run(sql("claim the row")), STALE);
    assert_eq!(holder(&mut new, 7, 80).run(sql("write the row")), WRITTEN);
    assert_eq!(account(&schema), ["80|7"]);
}

/// The old holder's statement arrives while the next holder's transaction is open.
#[test]
fn a_late_statement_that_waits_for_the_next_holder_is_refused_at_every_level() {
    for level in LEVELS {
        let Some(schema) = accounts() else { return };
        for (round, write) in [sql("write the row"), sql("write or insert the row")].into_iter().enumerate() {
            let (mut old, mut new) = (schema.session_at(level), schema.session_at(level));
            let fence = 6 + round as u64;
            new.run("BEGIN;");
            holder(&mut new, fence, 70).run(write);
            holder(&mut old, fence - 1, 1).send(write);
            schema.until_waiting(&old);
            assert_eq!(new.run("COMMIT;"), ["COMMIT"]);
            let refused = if round == 0 { STALE } else { NOT_PASSED };
            let answer = old.answer();
            if level == "read committed" {
                assert_eq!(answer, refused);
            } else {
                assert_eq!(answer, REPEAT, "{level}");
                assert_eq!(old.run(write), refused, "{level}");
            }
            assert_eq!(account(&schema), [format!("70|{fence}")], "{level}");
        }
    }
}

/// The next holder's statement arrives while the old holder's transaction is open. It waits for that transaction.
#[test]
fn the_next_holder_waits_for_what_the_old_one_has_begun() {
    for (end, seen) in [("COMMIT", "90"), ("ROLLBACK", "100")] {
        let Some(schema) = accounts() else { return };
        let (mut old, mut new) = (schema.session(), schema.session());
        old.run("BEGIN;");
        assert_eq!(holder(&mut old, 5, 90).run(sql("write the row")), WRITTEN);
        holder(&mut new, 6, 0).send(sql("claim the row"));
        schema.until_waiting(&new);
        assert_eq!(old.run(&format!("{end};")), [end]);
        assert_eq!(new.answer(), [seen, "UPDATE 1"]);
        assert_eq!(holder(&mut old, 5, 1).run(sql("write the row")), STALE);
    }
}

#[test]
fn many_writers_at_once_end_with_the_highest_fence_and_never_go_back() {
    const WRITERS: usize = 6;
    const WRITES: usize = 150;
    let Some(schema) = schema_or_skip() else { return };
    let mut session = schema.session();
    session.run(sql("make the table"));
    // Records every version of the row, in the order of the writes.
    session.run("CREATE TABLE versions (at bigserial, fence bigint, balance bigint);");
    session.run(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           INSERT INTO versions (fence, balance) VALUES (NEW.fence, NEW.balance); RETURN NEW; END $$;",
    );
    session
        .run("CREATE TRIGGER note AFTER INSERT OR UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION note();");
    let mut fences: Vec<_> = (1..=(WRITERS * WRITES) as u64).collect();
    // The fences rise overall, but some arrive late.
    fences.chunks_mut(8 * WRITERS).for_each(fastrand::shuffle);
    let written: usize = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (fences, schema) = (&fences, &schema);
                scope.spawn(move || {
                    let mut session = schema.session();
                    let own = fences.iter().skip(writer).step_by(WRITERS);
                    own.filter(|fence| {
                        let tag = holder(&mut session, **fence, -(**fence as i64))
                            .run(sql("write or insert the row"));
                        assert!(tag == PASSED || tag == NOT_PASSED, "{tag:?}");
                        tag == PASSED
                    })
                    .count()
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    let highest = WRITERS * WRITES;
    assert_eq!(account(&schema), [format!("-{highest}|{highest}")]);
    let versions = session.run("SELECT fence, balance FROM versions ORDER BY at;");
    let fences: Vec<i64> =
        versions.iter().map(|line| line.split('|').next().unwrap().parse().unwrap()).collect();
    assert_eq!(fences.len(), written, "an answer was wrong");
    assert!(fences.is_sorted(), "the fence of the row fell");
    assert!(versions.iter().all(|line| line.split_once('|').is_some_and(|(f, b)| b == format!("-{f}"))));
    assert!(written > 5 && written < highest, "{written} of {highest} were written: there was no contention");
}

/// The page advises to keep deleted rows. This is the reason.
#[test]
fn a_deleted_row_forgets_its_fence() {
    let Some(schema) = accounts() else { return };
    let mut session = schema.session();
    session.run("DELETE FROM accounts WHERE id = 1;");
    assert_eq!(holder(&mut session, 4, 1).run(sql("write or insert the row")), PASSED);
}

// ---- Several rows ------------------------------------------------------------------------------

/// Creates the tables for the transactions of two holders.
fn several() -> Option<Schema> {
    let schema = schema_or_skip()?;
    assert_eq!(schema.session().run(sql("make the table of fences")), ["CREATE TABLE"]);
    schema.session().run("CREATE TABLE entries (at bigserial, fence bigint);");
    Some(schema)
}

fn guarded(session: &mut Session, fence: u64) -> &mut Session {
    session.set(&[("lock", "'orders'"), ("fence", &fence.to_string())])
}

fn write(session: &mut Session) -> Vec<String> {
    session.run("INSERT INTO entries (fence) VALUES (:fence);")
}

fn entries(schema: &Schema) -> Vec<String> {
    schema.session().run("SELECT fence FROM entries ORDER BY at;")
}

/// Creates the same tables, with a row for the lock unless this is its first use.
fn begun(first_use: bool) -> Option<Schema> {
    let schema = several()?;
    if !first_use {
        assert_eq!(guarded(&mut schema.session(), 5).run(sql("pass the fence")), PASSED);
    }
    Some(schema)
}

#[test]
fn transactions_of_two_holders_come_one_after_the_other() {
    for first_use in [true, false] {
        let Some(schema) = begun(first_use) else { return };
        let (mut old, mut new) = (schema.session(), schema.session());
        old.run("BEGIN;");
        assert_eq!(guarded(&mut old, 5).run(sql("pass the fence")), PASSED);
        new.run("BEGIN;");
        guarded(&mut new, 6).send(sql("pass the fence"));
        schema.until_waiting(&new);
        assert_eq!(write(&mut old), PASSED);
        assert_eq!(old.run("COMMIT;"), ["COMMIT"]);
        assert_eq!(new.answer(), PASSED);
        assert_eq!(new.run("SELECT fence FROM entries;"), ["5"], "the next holder must see all writes");
        write(&mut new);
        assert_eq!(new.run("COMMIT;"), ["COMMIT"]);

        old.run("BEGIN;");
        assert_eq!(old.run(sql("pass the fence")), NOT_PASSED);
        old.run("ROLLBACK;");
        assert_eq!(entries(&schema), ["5", "6"]);
        // Another lock has a separate number.
        old.set(&[("lock", "'invoices'")]);
        assert_eq!(old.run(sql("pass the fence")), PASSED);
    }
}

#[test]
fn a_late_transaction_that_waits_for_the_next_holders_is_refused_at_every_level() {
    for (level, first_use) in LEVELS.into_iter().flat_map(|level| [(level, true), (level, false)]) {
        for end in ["COMMIT", "ROLLBACK"] {
            let Some(schema) = begun(first_use) else { return };
            let (mut old, mut new) = (schema.session_at(level), schema.session_at(level));
            new.run("BEGIN;");
            assert_eq!(guarded(&mut new, 6).run(sql("pass the fence")), PASSED);
            old.run("BEGIN;");
            guarded(&mut old, 5).send(sql("pass the fence"));
            schema.until_waiting(&old);
            new.run(&format!("{end};"));
            let answer = old.answer();
            match (end, level) {
                ("ROLLBACK", _) => assert_eq!(answer, PASSED, "{level}"),
                (_, "read committed") => assert_eq!(answer, NOT_PASSED),
                _ => {
                    assert_eq!(answer, REPEAT, "{level}");
                    old.run("ROLLBACK; BEGIN;");
                    assert_eq!(old.run(sql("pass the fence")), NOT_PASSED, "{level}");
                }
            }
        }
    }
}

#[test]
fn transactions_of_one_holder_run_at_once_and_keep_the_next_holder_out() {
    let Some(schema) = several() else { return };
    let mut first = schema.session();
    assert_eq!(guarded(&mut first, 5).run(sql("pass a fence that was raised")), [""; 0], "it was not raised");
    assert_eq!(first.run(sql("pass the fence")), PASSED);
    assert_eq!(guarded(&mut first, 6).run(sql("pass a fence that was raised")), [""; 0], "6 was not raised");
    let (mut second, mut new) = (schema.session(), schema.session());
    for session in [&mut first, &mut second] {
        session.run("BEGIN;");
        assert_eq!(guarded(session, 5).run(sql("pass a fence that was raised")), ["5"]);
    }
    guarded(&mut new, 6).send(&format!("BEGIN;\n{}", sql("pass the fence")));
    schema.until_waiting(&new);
    for session in [&mut first, &mut second] {
        assert_eq!(write(session), PASSED);
        schema.until_waiting(&new);
        assert_eq!(session.run("COMMIT;"), ["COMMIT"]);
    }
    assert_eq!(new.answer(), ["BEGIN", PASSED[0]]);
    // Now the old holder waits for the next one.
    first.send(sql("pass a fence that was raised"));
    schema.until_waiting(&first);
    assert_eq!(new.run("COMMIT;"), ["COMMIT"]);
    assert_eq!(first.answer(), [""; 0], "a late transaction passed");
    assert_eq!(second.run(sql("pass a fence that was raised")), [""; 0]);
}

/// The page warns of this.
#[test]
fn a_plain_select_lets_late_transactions_through_at_every_level() {
    for level in LEVELS {
        let Some(schema) = begun(false) else { return };
        let (mut old, mut new) = (schema.session_at(level), schema.session_at(level));
        old.run("BEGIN;");
        let asked = guarded(&mut old, 5).run("SELECT fence <= :fence FROM fences WHERE lock = :lock;");
        assert_eq!(asked, ["t"]);
        new.run("BEGIN;");
        assert_eq!(guarded(&mut new, 6).run(sql("pass the fence")), PASSED);
        write(&mut new);
        assert_eq!(new.run("COMMIT;"), ["COMMIT"]);
        write(&mut old);
        assert_eq!(old.run("COMMIT;"), ["COMMIT"], "{level}");
        assert_eq!(entries(&schema).len(), 2, "{level}");
    }
}

#[test]
fn what_was_read_before_the_fence_was_passed_may_be_old() {
    let Some(schema) = begun(false) else { return };
    let (mut old, mut new) = (schema.session(), schema.session());
    new.run("BEGIN;");
    assert_eq!(new.run("SELECT count(*) FROM entries;"), ["0"]);
    assert_eq!(guarded(&mut old, 5).run(sql("pass the fence")), PASSED);
    write(&mut old);
    assert_eq!(guarded(&mut new, 6).run(sql("pass the fence")), PASSED);
    assert_eq!(new.run("SELECT count(*) FROM entries;"), ["1"]);
}

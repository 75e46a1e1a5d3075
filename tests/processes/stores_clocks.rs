//! The wall clock of a client is set while it waits for locks and latches, and while it holds locks. Only the times
//! that are shown to people change. This program starts itself again as that client, under libfaketime.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

use dlm::{Code, Latch, LatchKind, LeaseToken, Level, Lock, LockManager, Moment};
use dlm_fixtures::dialogue::{Dialogue, next_order, say};
use dlm_fixtures::role::{self, Running};
use dlm_testkit::{LONG, LONGEST, eventually, skipped, until};

/// How far the clock is set, in seconds.
const STEPS: [i64; 4] = [-DAY, -30, 30, DAY];
const DAY: i64 = 24 * 3600;

/// TTLs of the leases that expire, and of those that are renewed. The clock is set long before their end. The next
/// one is used if this machine was too slow for that, or for the renewals of a command.
const TTLS: [Duration; 3] = [Duration::from_secs(6), Duration::from_secs(20), Duration::from_secs(60)];
/// TTL of all other leases. They do not expire during a test.
const HELD_TTL: Duration = LONG.saturating_mul(10);
/// Allowed error when readings of two clocks are compared, in milliseconds. Times are shown in tenths of a second,
/// and clocks may be slewed.
const READING_MS: i64 = 1_000;

const URI: &str = "DLM_TEST_URI";
const CLIENT: &str = "DLM_TEST_CLIENT";
const LATCHES: &str = "DLM_TEST_LATCHES";
const TTL_S: &str = "DLM_TEST_TTL_S";

/// The store and the client name that the processes of one test share.
#[derive(Clone)]
struct Place {
    uri: String,
    client: String,
    /// Whether latches need no separate table.
    latches: bool,
    /// Whether the record contains the time of the grant by the client's clock.
    stamped_by_client: bool,
}

impl Place {
    fn new(uri: String) -> Place {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        // Also for the commands.
        let uri = if uri.contains('?') { uri } else { format!("{uri}?timeout=1m") };
        Place { uri, client: format!("clocks-{since}"), latches: true, stamped_by_client: true }
    }

    fn manager(&self) -> LockManager {
        let builder = LockManager::builder().store_uri(&self.uri).client(&self.client).farm("f");
        let pause = Duration::from_millis(100);
        builder.ttl(HELD_TTL).wait(LONGEST).timeout(LONG).retry(pause).poll(pause).open().unwrap()
    }
}

fn lock(manager: &LockManager, id: &str) -> Lock {
    manager.lock(id, Level::Xdc).unwrap()
}

fn latch(manager: &LockManager, id: &str) -> Latch {
    manager.latch(id, Level::Xdc, LatchKind::CountDown).unwrap()
}

/// How long the client waits for a lock or latch that it does not get. The clock is set before the wait is over.
fn wait_within(ttl: Duration) -> Duration {
    ttl * 2 / 3
}

/// Reads the wall clock, in milliseconds, and the clock that nobody sets, in nanoseconds, at about the same time.
fn both_clocks() -> (i64, u64) {
    loop {
        let before = Moment::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        let after = Moment::now();
        // Otherwise this thread stood still in between.
        if after.since(before) < Duration::from_millis(READING_MS as u64 / 10) {
            return (wall, after.as_nanos());
        }
    }
}

// ---- The client whose clock is set -------------------------------------------------------------

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, _)) = role::asked() else { return };
    assert_eq!(role, "client");
    let setting = |name: &str| env::var(name).unwrap();
    let place = Place { client: setting(CLIENT), ..Place::new(setting(URI)) };
    let ttl = Duration::from_secs(setting(TTL_S).parse().unwrap());
    be_the_client(&place.manager(), setting(LATCHES) == "true", ttl);
}

/// Reports `slow` if a lease ended too soon, and then waits until it is killed.
fn be_the_client(manager: &LockManager, latches: bool, ttl: Duration) {
    let (wait, is_over) = (wait_within(ttl), AtomicBool::new(false));
    thread::scope(|scope| {
        let spawn = |name: &str, job: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(format!("dlm-test-{name}")).spawn_scoped(scope, job).unwrap();
        };
        let before = granted(manager, "before");
        let handed_on = lock(manager, "token").acquire().unwrap();
        let handed_on_ends = handed_on.ends();
        let token: LeaseToken = handed_on.into_token().unwrap();
        assert_eq!(next_order().as_deref(), Some("wait"));
        let wait_in_vain = || {
            wait_for_lock(manager, "taken", wait);
            is_over.store(true, Ordering::SeqCst);
        };
        spawn("taken", Box::new(wait_in_vain));
        spawn("freed", Box::new(|| wait_for_lock(manager, "freed", 2 * LONGEST)));
        until("both wait", || manager.stats().threads_waiting == 2 || is_over.load(Ordering::SeqCst));
        if latches {
            spawn("shut", Box::new(|| wait_for_latch(manager, "shut", wait)));
            spawn("opened", Box::new(|| wait_for_latch(manager, "opened", 2 * LONGEST)));
        }
        let asked = Moment::now();
        let acquired = ["renewed", "ending"].map(|id| lock(manager, id).acquire_with_ttl(ttl));
        let [Ok(renewed), Ok(ending)] = acquired else {
            assert!(Moment::now().since(asked) >= ttl / 2, "not granted in time");
            return be_slow();
        };
        if is_over.load(Ordering::SeqCst) {
            return be_slow();
        }
        let (wall, now) = both_clocks();
        say(format_args!("ready {wall} {now} {}", ending.ends().as_nanos()));
        assert_eq!(next_order().as_deref(), Some("stepped"));
        let (wall, now) = both_clocks();
        say(format_args!("stepped {wall} {now}"));

        // A renewal extends the lease from now on, by the clock that was not set.
        let adopted = manager.adopt(token).unwrap();
        assert_eq!(adopted.ends(), handed_on_ends);
        for lease in [&renewed, &adopted] {
            let (ttl, asked) = (lease.ttl(), Moment::now());
            let useful = ttl - ttl / 10; // the clock margin
            let ends = lease.ends();
            if let Err(error) = lease.renew() {
                assert!(Moment::now() >= ends, "{}", error.chain());
                return be_slow();
            }
            if Moment::now().since(asked) >= useful / 2 {
                return be_slow();
            }
            assert!(lease.ends() >= asked.after(useful), "{:?}", lease.ends());
            assert!(lease.ends() <= Moment::now().after(useful), "{:?}", lease.ends());
            lease.check().unwrap();
            assert!(lease.release().unwrap());
        }
        let after = granted(manager, "after");
        // The assertions above do not need the time that passes from here on.
        let ends = ending.ends();
        let mut last = Moment::from_nanos(0);
        let over = loop {
            let asked = Moment::now();
            if ending.check().is_err() {
                break Moment::now();
            }
            last = asked;
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(ending.ends(), ends);
        assert!(last < ends && over >= ends, "{last:?} {ends:?} {over:?}");
        say(format_args!("ended {} {}", last.as_nanos(), over.as_nanos()));
        while next_order().is_some() {}
        assert!(before.release().unwrap() && after.release().unwrap());
    });
}

fn be_slow() {
    say(format_args!("slow"));
    while next_order().is_some() {}
}

fn granted(manager: &LockManager, id: &str) -> dlm::Lease {
    let asked = Moment::now();
    let lease = lock(manager, id).acquire().unwrap();
    say(format_args!("granted {id} {} {}", asked.as_nanos(), Moment::now().as_nanos()));
    lease
}

fn wait_for_lock(manager: &LockManager, id: &str, wait: Duration) {
    let asked = Moment::now();
    let answer = lock(manager, id).acquire_within(HELD_TTL, wait);
    let waited = Moment::now().since(asked);
    let word = answer.as_ref().map_or_else(|error| error.code().name(), |_| "OK");
    say(format_args!("waited {id} {word} {}", waited.as_nanos()));
}

fn wait_for_latch(manager: &LockManager, id: &str, wait: Duration) {
    let asked = Moment::now();
    let open = latch(manager, id).await_open_for(wait).unwrap();
    let waited = Moment::now().since(asked);
    say(format_args!("waited {id} {open} {}", waited.as_nanos()));
}

// ---- The test ----------------------------------------------------------------------------------

/// Returns the path of libfaketime. If it is not installed, says so and returns `None`.
#[track_caller]
fn libfaketime_or_skip() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = folders.chain(["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from));
    let library = folders.map(|it| it.join("faketime/libfaketime.so.1")).find(|it| it.is_file());
    if library.is_none() {
        skipped("faketime", "libfaketime is not installed (on Debian: apt-get install faketime)");
    }
    library
}

/// A clock that can be set for some processes only.
struct Clock<'a> {
    libfaketime: &'a Path,
    directory: tempfile::TempDir,
}

impl Clock<'_> {
    /// Returns a clock that shows the true time.
    fn new(libfaketime: &Path) -> Clock<'_> {
        let clock = Clock { libfaketime, directory: tempfile::tempdir().unwrap() };
        clock.set(0);
        clock
    }

    fn set(&self, seconds: i64) {
        let [file, new] = [self.file(), self.directory.path().join("new")];
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        // Atomically, because the file is read all the time.
        fs::rename(new, file).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("offset")
    }

    /// Makes the process use this clock. Its monotonic clocks do not change.
    fn rule<'p>(&self, process: &'p mut Command) -> &'p mut Command {
        process
            .env("LD_PRELOAD", self.libfaketime)
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Returns a `dlm` command that uses this clock.
    fn dlm(&self, place: &Place, args: &[&str]) -> Command {
        let mut dlm = Command::new(env!("CARGO_BIN_EXE_dlm"));
        dlm.args(["--store", &place.uri, "--client", &place.client]).args(args).stdin(Stdio::null());
        self.rule(&mut dlm);
        dlm
    }

    /// Returns the output of `dlm show` for a lock.
    fn show(&self, place: &Place, args: &[&str]) -> String {
        let output = self.dlm(place, &["show", "--level", "xdc"]).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns how long ago the lock was granted, in milliseconds, from the output for people.
    fn shown_age(&self, place: &Place, id: &str) -> i64 {
        let shown = self.show(place, &[id]);
        let since = shown.lines().find_map(|line| line.strip_prefix("since ")?.strip_suffix(" s ago"));
        (since.unwrap_or_else(|| panic!("{shown}")).parse::<f64>().unwrap() * 1000.0) as i64
    }

    /// Returns when the lock was granted, in milliseconds since 1970, from the JSON output.
    fn shown_since(&self, place: &Place, id: &str) -> i64 {
        let shown: serde_json::Value = serde_json::from_str(&self.show(place, &["--json", id])).unwrap();
        shown["holder"]["since_ms"].as_i64().unwrap_or_else(|| panic!("{shown}"))
    }
}

/// Tests all steps at the same time, each with a separate client.
fn a_wall_clock_that_is_set_changes_no_lease_and_no_wait(place: &Place) {
    let Some(libfaketime) = libfaketime_or_skip() else { return };
    thread::scope(|scope| {
        for step in STEPS {
            let libfaketime = &libfaketime;
            let work = move || {
                let done = TTLS.into_iter().find_map(|ttl| {
                    // A round that was too slow leaves locks behind.
                    let client = format!("{}{step:+}-{}", place.client, ttl.as_secs());
                    let place = Place { client, ..place.clone() };
                    set_the_clock_of_a_client(&place, &Clock::new(libfaketime), step, ttl)
                });
                done.expect("a lease was lost, even one of a minute");
            };
            thread::Builder::new().name(format!("dlm-test{step:+}")).spawn_scoped(scope, work).unwrap();
        }
    });
}

/// Returns `None` if a lease expired because this machine was too slow.
fn set_the_clock_of_a_client(place: &Place, clock: &Clock<'_>, step: i64, ttl: Duration) -> Option<()> {
    let ours = place.manager();
    let [taken, freed] = ["taken", "freed"].map(|id| lock(&ours, id).acquire().unwrap());
    if place.latches {
        for id in ["shut", "opened"] {
            latch(&ours, id).create(1).unwrap();
        }
    }
    let files = tempfile::tempdir().unwrap();
    let [began, go] = ["began", "go"].map(|name| files.path().join(name));
    let mut command = Running(start_a_command(clock, place, ttl, &began, &go));
    let mut client = role::process(module_path!(), "client", files.path());
    client.env(URI, &place.uri).env(CLIENT, &place.client).env(LATCHES, place.latches.to_string());
    client.env(TTL_S, ttl.as_secs().to_string());
    let mut client = Dialogue::start(clock.rule(&mut client));
    let before = times(&client.report("granted")[1..]);
    eventually("the command runs", || began.exists() || command.0.try_wait().unwrap().is_some());
    if !began.exists() {
        return None;
    }
    let looked = Moment::now();
    let age = clock.shown_age(place, "before");
    must_be_between(age, looked, Moment::now(), &before, 0);

    client.order("wait");
    let mut reports = Reports::default();
    let ready = times(&reports.next(&client, "ready")?);
    clock.set(step);
    if Moment::now().as_nanos() as i64 >= ready[2] {
        return None;
    }
    client.order("stepped");
    // All waits and leases continue unchanged. Only the times that are shown to people have moved.
    let stepped = times(&reports.next(&client, "stepped")?);
    let moved = (stepped[0] - ready[0]) - (stepped[1] - ready[1]) / 1_000_000;
    assert!((moved - step * 1000).abs() < READING_MS, "the client's clock moved by {moved} ms");
    let looked = Moment::now();
    let age = clock.shown_age(place, "before");
    must_be_between(age, looked, Moment::now(), &before, step);
    assert!(freed.release().unwrap());
    if place.latches {
        latch(&ours, "opened").count_down().unwrap();
    }

    let mut left = if place.latches { 6 } else { 4 };
    left -= reports.0.len();
    (0..left).try_for_each(|_| reports.take(&client))?;
    let after = times(&reports.one("granted")[1..]);
    if place.stamped_by_client {
        let moved = clock.shown_since(place, "after") - clock.shown_since(place, "before");
        let least = (after[0] - before[1]) / 1_000_000 + step * 1000 - READING_MS;
        let most = (after[1] - before[0]) / 1_000_000 + step * 1000 + READING_MS;
        assert!((least..=most).contains(&moved), "`since` moved by {moved} ms");
    }
    let unavailable = Code::LockUnavailable.name();
    // A wait that used the wall clock would last for a day, or end too soon.
    let wait = wait_within(ttl);
    reports.must_have_waited("taken", unavailable, wait, wait + LONGEST);
    reports.must_have_waited("freed", "OK", Duration::ZERO, LONGEST);
    if place.latches {
        reports.must_have_waited("shut", "false", wait, wait + LONGEST);
        reports.must_have_waited("opened", "true", Duration::ZERO, LONGEST);
    }
    reports.one("ended");
    assert_eq!(client.finish(), Vec::<Vec<String>>::new());
    assert!(taken.release().unwrap());

    // The lease of the command has been renewed several times. It is lost if this machine was too slow for a renewal.
    let was_stopped = command.0.try_wait().unwrap().is_some();
    fs::write(go, "").unwrap();
    eventually("the command ends", || command.0.try_wait().unwrap().is_some());
    let has_succeeded = command.0.wait().unwrap().success();
    (!was_stopped && has_succeeded).then_some(())
}

/// Starts a command that runs under a lock until the file `go` exists, or its directory is gone.
fn start_a_command(
    clock: &Clock<'_>,
    place: &Place,
    ttl: Duration,
    began: &Path,
    go: &Path,
) -> std::process::Child {
    let ttl = format!("{}s", ttl.as_secs());
    let script = r#": >"$0"; until [ -e "$1" ] || ! [ -e "$0" ]; do sleep 0.1; done"#;
    let mut command = clock.dlm(place, &["run", "--level", "xdc", "--ttl", &ttl, "command", "--"]);
    command.args(["sh", "-c", script]).args([began, go]).spawn().unwrap()
}

fn times(words: &[String]) -> Vec<i64> {
    words.iter().map(|word| word.parse().unwrap()).collect()
}

/// Checks the age that a clock shows after it was moved by `step` seconds. `granted` contains the moments of the
/// request and of the grant.
#[track_caller]
fn must_be_between(age: i64, looked: Moment, saw: Moment, granted: &[i64], step: i64) {
    let ago = |now: Moment, then: i64| (now.as_nanos() as i64 - then) / 1_000_000 + step * 1000;
    let least = (ago(looked, granted[1]) - READING_MS).max(0);
    let most = (ago(saw, granted[0]) + READING_MS).max(0);
    assert!((least..=most).contains(&age), "{age} ms ago, not {least} to {most}");
}

/// Reports of the client, in any order.
#[derive(Default)]
struct Reports(Vec<Vec<String>>);

impl Reports {
    /// Takes one more report. Returns `None` if it is that the client was too slow.
    fn take(&mut self, client: &Dialogue) -> Option<()> {
        let report = client.any_report();
        if report[0] == "slow" {
            return None;
        }
        self.0.push(report);
        Some(())
    }

    /// Takes reports until one begins with this word, and returns its other words. On a slow machine, a wait may end
    /// before.
    fn next(&mut self, client: &Dialogue, word: &str) -> Option<Vec<String>> {
        loop {
            self.take(client)?;
            if self.0.last().is_some_and(|report| report[0] == word) {
                return self.0.pop().map(|report| report[1..].to_vec());
            }
        }
    }

    #[track_caller]
    fn one(&mut self, word: &str) -> Vec<String> {
        let at = self.0.iter().position(|report| report[0] == word);
        let at = at.unwrap_or_else(|| panic!("no {word:?} in {:?}", self.0));
        self.0.swap_remove(at).split_off(1)
    }

    /// Checks the answer of a wait, and that the wait was neither too short nor much too long.
    #[track_caller]
    fn must_have_waited(&self, id: &str, answer: &str, least: Duration, most: Duration) {
        let found = self.0.iter().find(|report| report[0] == "waited" && report[1] == id);
        let found = found.unwrap_or_else(|| panic!("no wait for {id:?} in {:?}", self.0));
        assert_eq!(found[2], answer, "{id}");
        let waited = Duration::from_nanos(found[3].parse().unwrap());
        assert!(waited >= least && waited < most, "{id}: waited {waited:?}");
    }
}

#[test]
fn a_wall_clock_that_is_set_changes_no_lease_and_no_wait_on_the_embedded_store() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::new(format!("embedded:{}", directory.path().display()));
    a_wall_clock_that_is_set_changes_no_lease_and_no_wait(&place);
}

#[cfg(feature = "hbase")]
#[test]
fn a_wall_clock_that_is_set_changes_no_lease_and_no_wait_on_hbase() {
    if dlm_fixtures::table::gateway().is_none() {
        return;
    }
    let uri = format!("hbase://{}/{}", dlm_fixtures::hbase::hbase().masters, dlm_fixtures::table::TABLE);
    let place = Place { latches: false, stamped_by_client: false, ..Place::new(uri) };
    a_wall_clock_that_is_set_changes_no_lease_and_no_wait(&place);
}

#[cfg(feature = "aerospike")]
#[test]
fn a_wall_clock_that_is_set_changes_no_lease_and_no_wait_on_aerospike() {
    let Some(server) = dlm_fixtures::aerospike::aerospike_or_skip() else { return };
    a_wall_clock_that_is_set_changes_no_lease_and_no_wait(&Place::new(server.uri()));
}

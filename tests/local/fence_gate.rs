//! A fence gate. Threads and processes that pass it write in the order of their fences, also when they are killed,
//! when they are stopped until their leases have expired, and when the file is damaged.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use dlm::{Code, Deadline, Epoch, Fence, FenceGate, Moment};
use dlm_fixtures::role::{self, Running, process};
use dlm_testkit::{LONG, skipped, until};

/// Module with the test `role`, which the processes of these tests run.
const HERE: &str = module_path!();

const HIGHEST_POSSIBLE: Fence = Fence(i64::MAX as u64);

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, dir)) = role::asked() else { return };
    match role.as_str() {
        "write" => write(&dir),
        "hammer" => hammer(&dir),
        "steps" => steps(&dir),
        #[cfg(feature = "embedded")]
        "hold" => pauses::hold(&dir),
        role => panic!("no role {role:?}"),
    }
}

/// Opens a gate in a new temporary directory.
fn fresh() -> (tempfile::TempDir, PathBuf, FenceGate) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gate");
    let gate = FenceGate::open(&path).unwrap();
    (dir, path, gate)
}

fn code<T>(answer: dlm::Result<T>) -> Option<Code> {
    answer.err().map(|error| error.code())
}

/// Returns how many descriptors of this process name the file: one for each pass, and one for each thread that waits for a
/// pass of another gate.
fn descriptors(path: &Path) -> usize {
    let path = path.canonicalize().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|named| named == path)).count()
}

// ---- One gate ------------------------------------------------------------------------------------

#[test]
fn a_lower_fence_is_refused_and_told_which_one_was_there() {
    let (_dir, path, gate) = fresh();
    assert_eq!(gate.highest().unwrap(), None);
    for fence in [3, 3, 7, 7, 1 << 40] {
        let pass = gate.pass(Fence(fence)).unwrap();
        assert_eq!(pass.fence(), Fence(fence));
    }
    let error = gate.pass(Fence(7)).unwrap_err();
    assert_eq!((error.code(), error.code().number()), (Code::StaleFence, 15));
    assert_eq!(error.stale_fence(), Some((Fence(7), Fence(1 << 40))));
    let place = path.canonicalize().unwrap();
    let place =
        format!("fence gate {place:?} refused the write: fence 7 is stale, it has seen fence 1099511627776");
    assert!(error.to_string().starts_with(&place), "{error}");
    assert!(!error.is_retryable());
    assert_eq!(gate.highest().unwrap(), Some(Fence(1 << 40)), "a refused fence was stored");

    drop(gate);
    let gate = FenceGate::open(&path).unwrap();
    assert_eq!(code(gate.pass(Fence(7))), Some(Code::StaleFence), "the number was lost");
    gate.pass(HIGHEST_POSSIBLE).map(drop).unwrap();
}

#[test]
fn a_write_that_is_refused_is_not_made() {
    let (_dir, _, gate) = fresh();
    let gate = gate.with_sync(false);
    let mut written = Vec::new();
    assert_eq!(gate.write(Fence(2), || written.push(2)).unwrap(), ());
    assert_eq!(code(gate.write(Fence(1), || written.push(1))), Some(Code::StaleFence));
    assert_eq!(gate.write(Fence(2), || written.len()).unwrap(), 1);
}

#[test]
fn one_passes_at_a_time_and_the_others_wait_no_longer_than_they_say() {
    let (_dir, path, gate) = fresh();
    let others = [FenceGate::open(&path).unwrap(), FenceGate::open(&path).unwrap()];
    let pass = gate.pass(Fence(5)).unwrap();
    for (gate, wait) in [(&gate, 0), (&gate, 30), (&others[0], 0), (&others[0], 30)] {
        // In another thread, because a thread that has a pass would wait for itself.
        let (began, wait) = (Moment::now(), Duration::from_millis(wait));
        let error = thread::scope(|scope| {
            scope.spawn(|| gate.pass_within(Fence(9), wait).map(drop).unwrap_err()).join().unwrap()
        });
        assert_eq!(error.code(), Code::LockUnavailable);
        assert!(error.is_retryable() && error.to_string().starts_with("lock of fence gate \"/"), "{error}");
        let waited = Moment::now().since(began);
        assert!((wait..LONG).contains(&waited), "{waited:?}");
        assert_eq!(gate.highest().unwrap(), Some(Fence(5)), "stored without a pass");
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| others[1].pass_within(Fence(6), LONG).map(|pass| pass.fence()).unwrap());
        until("the thread waits", || descriptors(&path) == 2);
        thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        drop(pass);
        assert_eq!(waiting.join().unwrap(), Fence(6));
    });
    assert_eq!(code(gate.pass(Fence(5))), Some(Code::StaleFence));
}

#[test]
fn threads_never_have_a_pass_at_the_same_time() {
    let (_dir, path, shared) = fresh();
    let shared = shared.with_sync(false);
    let own: Vec<_> = (0..4).map(|_| FenceGate::open(&path).unwrap().with_sync(false)).collect();
    let inside = std::sync::atomic::AtomicUsize::new(0);
    let relaxed = std::sync::atomic::Ordering::SeqCst;
    thread::scope(|scope| {
        for gate in own.iter().chain([&shared; 4]) {
            scope.spawn(|| {
                for _ in 0..300 {
                    let _pass = gate.pass_within(Fence(1), LONG).unwrap();
                    assert_eq!(inside.fetch_add(1, relaxed), 0, "two threads have a pass");
                    thread::yield_now();
                    inside.fetch_sub(1, relaxed);
                }
            });
        }
    });
}

// ---- What is refused ---------------------------------------------------------------------------

#[test]
fn readers_of_one_epoch_pass_together_and_not_after_a_later_writer() {
    let (_dir, path, gate) = fresh();
    let (before, epoch) = (Fence(10), Epoch(11));
    drop(gate.pass(before).unwrap());
    let one = gate.read_pass(epoch).unwrap();
    let other = FenceGate::open(&path).unwrap();
    let two = other.read_pass_within(epoch, Duration::ZERO).unwrap();
    let three = gate.read_pass_within(Epoch::from(before), Duration::ZERO).expect("no writer came since");
    assert_eq!((one.epoch(), two.epoch(), three.epoch()), (epoch, epoch, Epoch(10)));
    // Nobody writes while somebody reads.
    assert_eq!(code(other.pass_within(Fence(12), Duration::ZERO)), Some(Code::LockUnavailable));
    assert_eq!(code(gate.pass_within(Fence(12), Duration::ZERO)), Some(Code::LockUnavailable));
    drop((one, two, three));
    assert_eq!(gate.highest().unwrap(), Some(before), "a reader changes nothing");
    let writing = gate.pass(Fence(12)).unwrap();
    assert_eq!(code(other.read_pass_within(Epoch(12), Duration::ZERO)), Some(Code::LockUnavailable));
    drop(writing);
    let refused = gate.read_pass(epoch).unwrap_err();
    assert_eq!((refused.code(), refused.stale_fence()), (Code::StaleFence, Some((Fence(11), Fence(12)))));
    assert!(refused.to_string().contains("refused the reader: epoch 11 is over"), "{refused}");
    let mut has_read = false;
    assert_eq!(code(other.read(epoch, || has_read = true)), Some(Code::StaleFence));
    assert!(!has_read);
    assert_eq!(gate.read(Epoch(12), || 7).unwrap(), 7);
    for epoch in [0, i64::MAX as u64 + 1].map(Epoch) {
        assert_eq!(code(gate.read_pass(epoch)), Some(Code::InvalidArgument));
    }
    assert_eq!(descriptors(&path), 0);
}

#[test]
fn a_reader_that_waits_for_a_writer_reads_what_it_has_written() {
    let (_dir, path, gate) = fresh();
    let writing = gate.pass(Fence(5)).unwrap();
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let gate = FenceGate::open(&path).unwrap();
            thread::spawn(move || gate.read_pass_within(Epoch(4), LONG).map(drop).unwrap_err().code())
        })
        .collect();
    until("all wait", || descriptors(&path) == 5);
    drop(writing);
    for reader in readers {
        assert_eq!(reader.join().unwrap(), Code::StaleFence, "the writer is later than they");
    }
}

#[test]
fn bad_arguments_are_refused_and_say_what_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("directory")).unwrap();
    fs::write(at("target"), "precious").unwrap();
    symlink(at("target"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let named = |name: &str| at(name).to_str().unwrap().to_owned();
    let mut refused: Vec<_> =
        ["directory", "link", "dangling", "pipe", "x/", "x/.", "x/..", "x\0y"].map(named).into();
    refused.extend(["", "/", ".", "..", "/dev/null"].map(str::to_owned));
    for path in refused {
        let error = FenceGate::open(&path).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{path:?}: {error}");
        assert!(error.to_string().contains(" is not allowed: "), "{error}");
    }
    for path in [at("missing/gate"), at("target/gate")] {
        assert_eq!(code(FenceGate::open(&path)), Some(Code::ConnectionError), "{path:?}");
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "a refused call created a file: {left:?}");
    assert_eq!(fs::read_to_string(at("target")).unwrap(), "precious");

    let gate = FenceGate::open(at("gate")).unwrap();
    for fence in [0, HIGHEST_POSSIBLE.0 + 1, u64::MAX] {
        let error = gate.pass(Fence(fence)).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("1 to 9223372036854775807"), "{error}");
    }
    assert_eq!(gate.highest().unwrap(), None);
}

/// The gate keeps the absolute path of its file, so the link may be deleted after opening.
#[test]
fn the_file_is_the_owners_and_the_directory_may_be_a_link() {
    let (dir, path, gate) = fresh();
    gate.pass(Fence(4)).map(drop).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o7777, metadata.len()), (0o600, 8192));
    let entries = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(entries, 1, "a temporary file is left");

    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    let by_link = FenceGate::open(link.join("gate")).unwrap();
    fs::remove_file(&link).unwrap();
    assert_eq!(code(by_link.pass(Fence(3))), Some(Code::StaleFence));
}

/// Returns the errors of a gate that was already open, and of opening it again.
fn answers(open: &FenceGate, path: &Path) -> Vec<String> {
    let opened = FenceGate::open(path).map(drop);
    let all = [open.pass(HIGHEST_POSSIBLE).map(drop), open.highest().map(drop), opened];
    all.into_iter()
        .map(|answer| {
            let error = answer.expect_err("a gate without its number let somebody pass");
            assert_eq!(error.code(), Code::InternalError, "{error}");
            error.to_string()
        })
        .collect()
}

#[test]
fn a_damaged_file_lets_nobody_pass_and_is_not_made_anew() {
    let sound = {
        let (_dir, path, gate) = fresh();
        gate.pass(Fence(0x0707)).map(drop).unwrap();
        fs::read(&path).unwrap()
    };
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = sound.clone();
        change(&mut bytes);
        bytes
    };
    let damaged = [
        (changed(&Vec::clear), "0 bytes"),
        (changed(&|bytes| bytes.truncate(1)), "1 bytes"),
        (changed(&|bytes| bytes.truncate(4096)), "4096 bytes"),
        (changed(&|bytes| bytes.truncate(8191)), "8191 bytes"),
        (changed(&|bytes| bytes.push(0)), "8193 bytes"),
        (changed(&|bytes| bytes.fill(0)), "both copies"),
        (changed(&|bytes| bytes.fill(b'x')), "both copies"),
        (changed(&|bytes| [23, 4096 + 23].into_iter().for_each(|at| bytes[at] = 0)), "both copies"),
        (changed(&|bytes| [0, 4096 + 31].into_iter().for_each(|at| bytes[at] ^= 1)), "both copies"),
    ];
    for (bytes, why) in damaged {
        let (_dir, path, gate) = fresh();
        fs::write(&path, &bytes).unwrap();
        for answer in answers(&gate, &path) {
            assert!(answer.contains(why) && answer.contains("The highest fence is not known"), "{answer}");
        }
        assert_eq!(fs::read(&path).unwrap(), bytes, "it was changed");
    }
}

/// After a partial write, the number is the old or the new one.
#[test]
fn a_write_that_was_torn_does_not_lower_the_number() {
    let (_dir, path, gate) = fresh();
    let bytes_with = |fence| {
        gate.pass(Fence(fence)).map(drop).unwrap();
        fs::read(&path).unwrap()
    };
    let (old, new) = (bytes_with(0x01ff), bytes_with(0x0200));
    for (at, least) in [(0, 0x01ff), (4096, 0x0200)] {
        for torn_after in 0..=32 {
            let mut bytes = old.clone();
            bytes[..at + torn_after].copy_from_slice(&new[..at + torn_after]);
            fs::write(&path, &bytes).unwrap();
            let stored = gate.highest().unwrap().unwrap().0;
            assert!((least..=0x0200).contains(&stored), "torn at {at} after {torn_after}: {stored:#x}");
            assert_eq!(code(gate.pass(Fence(least - 1))), Some(Code::StaleFence));
            gate.pass(Fence(0x0200)).map(drop).unwrap();
            assert_eq!(fs::read(&path).unwrap(), new, "torn at {at} after {torn_after}: it was not repaired");
        }
    }
}

#[test]
fn a_file_that_was_deleted_or_replaced_is_noticed() {
    let (dir, path, gate) = fresh();
    gate.pass(Fence(7)).map(drop).unwrap();
    fs::remove_file(&path).unwrap();
    let error = gate.pass(Fence(8)).unwrap_err();
    assert!(error.code() == Code::InternalError && error.to_string().contains("deleted"), "{error}");
    assert!(!path.exists(), "the file was created again, with another number");
    let other = FenceGate::open(&path).unwrap();
    for answer in [gate.pass(Fence(8)).map(drop), gate.highest().map(drop)] {
        let error = answer.unwrap_err();
        assert!(error.code() == Code::InternalError && error.to_string().contains("replaced"), "{error}");
    }
    // The file is replaced while a thread waits for a pass.
    let third = FenceGate::open(&path).unwrap();
    let pass = third.pass(Fence(1)).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.pass_within(Fence(2), LONG).map(drop).unwrap_err());
        // From then on it waits for the file of the pass, and not for the one that replaces it.
        until("the thread waits", || descriptors(&path) == 2);
        let kept = fs::read(&path).unwrap();
        fs::rename(&path, dir.path().join("old")).unwrap();
        fs::write(&path, kept).unwrap();
        drop(pass);
        let error = waiting.join().unwrap();
        assert!(error.code() == Code::InternalError && error.to_string().contains("replaced"), "{error}");
    });
    other.pass(Fence(1)).map(drop).unwrap();
    drop(dir);
    assert_eq!(code(other.pass(Fence(2))), Some(Code::InternalError));
}

// ---- Processes -----------------------------------------------------------------------------------

/// Each process writes a line in two parts while it has a pass.
#[test]
fn processes_write_in_the_order_of_their_fences() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<_> =
        (0..WRITERS).map(|_| Running(process(HERE, "write", dir.path()).spawn().unwrap())).collect();
    for mut child in children {
        assert!(child.0.wait().unwrap().success());
    }
    let lines = fs::read_to_string(dir.path().join("written")).unwrap();
    let fences: Vec<u64> = lines.lines().map(|line| line.parse().expect("two wrote at once")).collect();
    assert!(fences.is_sorted(), "a lower fence wrote after a higher one");
    let refused = fs::read_to_string(dir.path().join("refused")).unwrap().lines().count();
    assert_eq!(fences.len() + refused, WRITERS * WRITES);
    assert!(fences.len() > WRITES / 4 && refused > 0, "{} written, {refused} refused", fences.len());
}

const WRITERS: usize = 6;
const WRITES: usize = 300;

fn write(dir: &Path) {
    let gate = FenceGate::open(dir.join("gate")).unwrap().with_sync(false);
    let append = |name: &str| File::options().create(true).append(true).open(dir.join(name)).unwrap();
    let (mut written, mut refused) = (append("written"), append("refused"));
    // All begin together. Otherwise the first one may be done before the last one begins.
    append("begun").write_all(b"begun\n").unwrap();
    until("all have begun", || fs::read_to_string(dir.join("begun")).unwrap().lines().count() == WRITERS);
    for _ in 0..WRITES {
        // All processes draw from one clock, as if a lock granted the fences. In the pause, others may get a higher
        // fence.
        let fence = Fence(Moment::now().as_nanos());
        if fastrand::bool() {
            thread::sleep(Duration::from_micros(fastrand::u64(..300)));
        }
        match gate.pass_within(fence, LONG) {
            Ok(_pass) => {
                let digits = fence.to_string();
                let (head, tail) = digits.split_at(digits.len() / 2);
                written.write_all(head.as_bytes()).unwrap();
                thread::yield_now();
                written.write_all(format!("{tail}\n").as_bytes()).unwrap();
            }
            Err(error) => {
                assert_eq!(error.code(), Code::StaleFence, "{}", error.chain());
                refused.write_all(b"refused\n").unwrap();
            }
        }
    }
}

/// Child processes create the gate, pass, and are killed at random moments. The numbers that they printed are not
/// lost, and the gate still opens.
#[test]
fn killed_processes_leave_a_gate_that_opens_and_a_number_that_is_not_lower() {
    // Long enough for some passes. How long that is depends on the machine, so the value changes below.
    const KILL_WITHIN_US: u64 = 12_000;
    let (mut passes, mut kill_within_us) = (0, KILL_WITHIN_US);
    let by = Deadline::after(5 * LONG);
    for round in 0.. {
        // On a slow machine it may take more rounds until enough have passed.
        if round >= 60 && (passes > 60 || by.passed()) {
            break;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut children: Vec<Running> = (0..3)
            .map(|_| Running(process(HERE, "hammer", dir.path()).stdout(Stdio::piped()).spawn().unwrap()))
            .collect();
        for child in &mut children {
            thread::sleep(Duration::from_micros(fastrand::u64(0..kill_within_us)));
            child.0.kill().unwrap();
        }
        let (mut highest, before) = (0, passes);
        for mut child in children {
            child.0.wait().unwrap();
            let told = BufReader::new(child.0.stdout.take().unwrap()).lines();
            // The last line may be cut by the kill.
            for fence in told.map_while(Result::ok).filter_map(|line| line.strip_suffix('.')?.parse().ok()) {
                highest = highest.max(fence);
                passes += 1;
            }
        }
        kill_within_us = match passes - before {
            0 => (2 * kill_within_us).min(10_000_000),
            1..50 => kill_within_us,
            _ => (kill_within_us / 2).max(KILL_WITHIN_US),
        };
        let gate = FenceGate::open(dir.path().join("gate")).unwrap();
        let stored = gate.highest().unwrap().map_or(0, |fence| fence.0);
        assert!(stored >= highest, "round {round}: stored {stored}, but {highest} had passed");
        let next = Fence(Moment::now().as_nanos());
        gate.pass(next).map(drop).unwrap_or_else(|error| panic!("round {round}: {}", error.chain()));
    }
    assert!(passes > 60, "only {passes} passes: the processes were killed too early");
}

/// Prints the fence of each pass while it has the pass.
fn hammer(dir: &Path) {
    let gate = FenceGate::open(dir.join("gate")).unwrap();
    let mut out = std::io::stdout().lock();
    for _ in 0..1_000_000 {
        let fence = Fence(Moment::now().as_nanos());
        match gate.pass(fence) {
            Ok(_pass) => writeln!(out, "{fence}.").unwrap(),
            Err(error) => assert_eq!(error.code(), Code::StaleFence, "{}", error.chain()),
        }
    }
}

const STEPS: [u64; 3] = [5, 5, 600];

/// Opens a gate, passes with each of [`STEPS`] and writes them to the file `told`.
fn steps(dir: &Path) {
    let gate = FenceGate::open(dir.join("gate")).unwrap();
    let mut told = File::options().create(true).append(true).open(dir.join("told")).unwrap();
    for fence in STEPS {
        gate.write(Fence(fence), || writeln!(told, "{fence}")).unwrap().unwrap();
    }
}

/// Runs the role `steps` under strace. Returns whether it succeeded, and its system calls.
fn traced(dir: &Path, options: &[&str]) -> (bool, String) {
    let trace = dir.join("trace");
    let run = process(HERE, "steps", dir);
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(&trace).args(options).arg(run.get_program()).args(run.get_args());
    command.envs(run.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let status = command.current_dir(dir).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    (status.success(), fs::read_to_string(trace).unwrap())
}

fn has_strace() -> bool {
    Command::new("strace")
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|it| it.success())
}

const NO_STRACE: &str = "strace is not installed";

/// Sends SIGKILL at each system call in turn that changes files or locks.
#[test]
fn a_process_killed_at_any_system_call_leaves_a_gate_that_works() {
    if !has_strace() {
        return skipped("strace", NO_STRACE);
    }
    let mut killed = 0;
    for call in ["openat", "pwrite64", "flock", "fsync", "fdatasync", "link,linkat", "unlink,unlinkat"] {
        for when in 1..200 {
            let dir = tempfile::tempdir().unwrap();
            let kill = format!("inject={call}:signal=KILL:when={when}");
            let (to_its_end, _) = traced(dir.path(), &["-e", &kill]);
            let at = format!("killed at {call} number {when}");
            let told = fs::read_to_string(dir.path().join("told")).unwrap_or_default();
            let told = told.lines().map(|line| line.parse::<u64>().unwrap()).max().unwrap_or(0);
            let gate = FenceGate::open(dir.path().join("gate"))
                .unwrap_or_else(|error| panic!("{at}: {}", error.chain()));
            let stored = gate.highest().unwrap().map_or(0, |fence| fence.0);
            assert!(stored >= told, "{at}: stored {stored}, but {told} had passed");
            gate.pass_within(Fence(700), Duration::ZERO).map(drop).unwrap();
            if to_its_end {
                assert_eq!(told, 600, "{at}");
                break;
            }
            killed += 1;
        }
    }
    assert!(killed > 20, "killed only {killed} times");
}

/// A failed write or sync lets nobody pass, and the next call works.
#[test]
fn a_disk_that_fails_lets_nobody_pass() {
    if !has_strace() {
        return skipped("strace", NO_STRACE);
    }
    let mut failed = 0;
    for (call, error) in [("pwrite64", "EIO"), ("pwrite64", "ENOSPC"), ("fdatasync", "EIO"), ("fsync", "EIO")]
    {
        for when in 1..20 {
            let dir = tempfile::tempdir().unwrap();
            let inject = format!("inject={call}:error={error}:when={when}");
            let (to_its_end, _) = traced(dir.path(), &["-e", &inject]);
            if to_its_end {
                break;
            }
            failed += 1;
            let told = fs::read_to_string(dir.path().join("told")).unwrap_or_default();
            let told = told.lines().map(|line| line.parse::<u64>().unwrap()).max().unwrap_or(0);
            assert!(told < 600, "{inject}: passed despite the failure");
            let gate = FenceGate::open(dir.path().join("gate")).unwrap();
            assert!(gate.highest().unwrap().map_or(0, |fence| fence.0) >= told);
            gate.pass(Fence(600)).map(drop).unwrap();
        }
    }
    assert!(failed > 8, "failed only {failed} times");
}

/// Checks the order of the system calls. The crash tests in the library rely on this order.
#[test]
fn a_sync_stands_before_each_write_of_a_number() {
    if !has_strace() {
        return skipped("strace", NO_STRACE);
    }
    let dir = tempfile::tempdir().unwrap();
    let (_, trace) = traced(dir.path(), &["-e", "trace=pwrite64,fdatasync,fsync"]);
    let steps: Vec<_> = trace
        .lines()
        .filter_map(|line| match line.split_whitespace().nth(1)?.split('(').next()? {
            // After the bytes, strace prints their number and their offset.
            "pwrite64" => {
                Some(line.rsplit_once(')')?.0.rsplitn(3, ", ").take(2).collect::<Vec<_>>().join(" gets "))
            }
            call @ ("fdatasync" | "fsync") => Some(call.to_owned()),
            _ => None,
        })
        .collect();
    // To create the file: a write, a sync of the file, a sync of the directory. Then two new numbers. The equal
    // number needs no write.
    let number = ["fdatasync", "0 gets 32", "fdatasync", "4096 gets 32"];
    let expected: Vec<_> =
        ["0 gets 8192", "fsync", "fsync"].into_iter().chain(number).chain(number).collect();
    assert_eq!(steps, expected, "{trace}");
}

// ---- Holders that are stopped past their leases ----------------------------------------------------

#[cfg(feature = "embedded")]
mod pauses {
    use std::fs::{self, File};
    use std::io::Write as _;
    use std::path::Path;
    use std::time::Duration;
    use std::{env, thread};

    use dlm::{Code, Fence, FenceGate, Lease, Level, LockManager};

    use dlm_fixtures::dialogue::{Dialogue, next_order, say};
    use dlm_fixtures::role::process;
    use dlm_testkit::{LONG, until};

    const PROCESSES: usize = 4;
    const LOCKS: usize = 25;
    const TTL: Duration = Duration::from_secs(2);
    const PROCESS: &str = "DLM_TEST_PROCESS";

    fn manager(dir: &Path, ttl: Duration) -> LockManager {
        let uri = format!("embedded:{}", dir.join("store").display());
        let builder = LockManager::builder().store_uri(&uri).client("gates").ttl(ttl).wait(5 * LONG);
        let manager = builder.retry(Duration::from_millis(50)).timeout(LONG).open().unwrap();
        manager.initialize().unwrap();
        manager
    }

    fn acquire(manager: &LockManager, process: usize, lock: usize) -> (Lease, Fence) {
        let lock = manager.lock(&format!("{process}-{lock}"), Level::Xdc).unwrap();
        let mut lease = None;
        // On a slow machine, a grant may come only after its short lease has ended.
        until("the lock is acquired", || {
            lease = lock.acquire().ok();
            lease.is_some()
        });
        let lease = lease.unwrap();
        let fence = lease.fence().expect("this store fences");
        (lease, fence)
    }

    fn gate(dir: &Path, process: usize, lock: usize) -> FenceGate {
        FenceGate::open(dir.join(format!("{process}-{lock}.gate"))).unwrap()
    }

    fn append(dir: &Path, process: usize, lock: usize, line: &str) {
        let path = dir.join(format!("{process}-{lock}.written"));
        writeln!(File::options().create(true).append(true).open(path).unwrap(), "{line}").unwrap();
    }

    /// Acquires its locks and writes. On the order `write` it writes again without checking its leases, like a holder
    /// that was paused between the check and the write.
    pub(super) fn hold(dir: &Path) {
        let process = env::var(PROCESS).unwrap().parse().unwrap();
        let manager = manager(dir, TTL);
        let held: Vec<_> = (0..LOCKS)
            .map(|lock| {
                let (lease, fence) = acquire(&manager, process, lock);
                let gate = gate(dir, process, lock);
                gate.write(fence, || append(dir, process, lock, "holder")).unwrap();
                (lease, fence, gate)
            })
            .collect();
        say(format_args!("holds"));
        assert_eq!(next_order().as_deref(), Some("write"));
        for (lock, (lease, fence, gate)) in held.iter().enumerate() {
            let answer = gate.write(*fence, || append(dir, process, lock, "late"));
            let answer = answer.map_or_else(|error| error.code().name(), |()| "written");
            say(format_args!("late {lock} {answer} {}", lease.check().is_err()));
        }
        // The leases have expired, so there is nothing to release.
        held.into_iter().for_each(|(lease, ..)| drop(lease));
    }

    #[test]
    fn holders_stopped_past_their_leases_are_refused_after_their_successors_first_pass() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut holders: Vec<_> = (0..PROCESSES)
            .map(|number| Dialogue::start(process(super::HERE, "hold", dir).env(PROCESS, number.to_string())))
            .collect();
        for holder in &mut holders {
            holder.report("holds");
            holder.pause();
            // The holder reads this order when it continues.
            holder.order("write");
        }
        let manager = manager(dir, 30 * LONG);
        let mut successors = Vec::new();
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..PROCESSES * LOCKS)
                .map(|number| {
                    let manager = &manager;
                    scope.spawn(move || {
                        let (process, lock) = (number / LOCKS, number % LOCKS);
                        let (lease, fence) = acquire(manager, process, lock);
                        gate(dir, process, lock).pass_within(fence, LONG).map(drop).unwrap();
                        lease
                    })
                })
                .collect();
            successors.extend(waiting.into_iter().map(|one| one.join().unwrap()));
        });
        let mut refused = 0;
        for holder in &holders {
            holder.go_on();
            for _ in 0..LOCKS {
                let words = holder.report("late");
                assert_eq!(words[1..], [Code::StaleFence.name(), "true"], "{words:?}");
                refused += 1;
            }
        }
        assert_eq!(refused, 100);
        for (number, lease) in successors.iter().enumerate() {
            let (process, lock) = (number / LOCKS, number % LOCKS);
            lease.check().unwrap();
            let fence = lease.fence().unwrap();
            gate(dir, process, lock).write(fence, || append(dir, process, lock, "successor")).unwrap();
            let written = fs::read_to_string(dir.join(format!("{process}-{lock}.written"))).unwrap();
            assert_eq!(written, "holder\nsuccessor\n", "{number}");
        }
        holders.into_iter().for_each(|holder| drop(holder.finish()));
    }
}

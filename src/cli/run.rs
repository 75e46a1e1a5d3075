//! `dlm run`: runs a command while holding a lock, and ends it when the lock is lost.
//!
//! | event | sent to the command | exit status |
//! |---|---|---|
//! | the command ended | nothing | its own |
//! | `dlm` got a signal | the signal; to processes left running TERM, [`LEFT_GRACE`] later KILL | its own |
//! | the store reports that the lease is lost | TERM; [`LOST_GRACE`] later KILL to all its processes | 77 |
//! | no renewal succeeded and the lease is about to end | TERM; KILL to all its processes before that end | 77 |
//!
//! A store that does not answer is no loss yet: the command goes on while its lease lasts.

use std::ffi::OsString;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select};
use dlm::{AcquireOptions, Code, Fence, LockManager, LostReason, Moment};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::cli::args::{Global, RunArgs};
use crate::cli::exit::{CommandFailure, CommandOutcome, LOST};
use crate::cli::held::CommandLocks;
use crate::cli::lease::take;
use crate::cli::process::Command;
use crate::cli::signals::{ReceivedSignal, Signals};
use crate::cli::target::CommandTarget;
use crate::cli::{around, open};

pub(crate) const CAUGHT: [i32; 7] = [SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD];

/// If a lease cannot be renewed, TERM is sent a quarter of the TTL before its end, and KILL a tenth of the TTL
/// before its end. These are the limits of both times.
const TERM_AHEAD_MAX: Duration = Duration::from_secs(15);
const KILL_AHEAD_MAX: Duration = Duration::from_secs(3);
/// Time between TERM and KILL if the lease is already lost and another holder may have the lock.
const LOST_GRACE: Duration = Duration::from_millis(500);
/// Time between TERM and KILL for processes that a command leaves running after a signal asked it to end.
const LEFT_GRACE: Duration = Duration::from_secs(5);
/// A process that KILL does not end within this time hangs in the kernel.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// Interval of checks of the lease. A timer for its end would not advance while the machine is suspended.
const LOOK: Duration = Duration::from_secs(1);
/// Interval of checks for processes that were started while all were being killed.
const LOOK_AFTER_KILL: Duration = Duration::from_millis(10);

/// Attempts of a release if the store does not answer, and the pause between two of them.
const RELEASES: u32 = 3;
const RELEASE_PAUSE: Duration = Duration::from_millis(500);

/// `dlm run`
pub(crate) fn run(global: &Global, args: &RunArgs) -> CommandOutcome {
    let manager = open::manager(global, Some(&args.terms), &format!("run {}", program_name(&args.command)))?;
    let names: Vec<&String> = args.name.iter().chain(&args.locks).collect();
    let target = CommandTarget::of(&manager, global, args.terms.level, &names, &args.how)?;
    let signals = Signals::catch(&CAUGHT)?;
    // Others must wait for the minimum, also if all processes here have died.
    let takeover = !args.no_takeover && args.min_hold.is_none() && target.may_die_with_process();
    let options = options(&manager, takeover);
    let options = args.min_hold.map_or(options.clone(), |time| options.min_hold(time));
    let held = take(&manager, &target, options, &args.terms, &signals)?;
    let not_before = args.min_hold.map(|time| Moment::now().after(time));
    command(&manager, held, &names, &args.command, &signals, not_before).outcome
}

/// Returns options with which others may have the lock at once if `dlm` and all processes of its command have died, unless
/// `takeover` is false.
pub(crate) fn options(manager: &LockManager, takeover: bool) -> AcquireOptions {
    let dies = takeover && manager.can_die_with_process();
    if dies { AcquireOptions::new().dies_with_process() } else { AcquireOptions::new() }
}

/// How a command that ran while a lock was held has ended.
pub(crate) struct CommandEnd {
    pub(crate) outcome: CommandOutcome,
    /// The lease was lost, all processes of the command have ended, and nobody has asked it to end.
    pub(crate) may_run_again: bool,
}

/// Runs the command while the leases are valid, and releases the locks, but not before `not_before`. `names`: as the command
/// line has them.
pub(crate) fn command(
    manager: &LockManager,
    held: CommandLocks,
    names: &[&String],
    command: &[OsString],
    signals: &Signals,
    not_before: Option<Moment>,
) -> CommandEnd {
    let failed = |failure: CommandFailure| CommandEnd { outcome: Err(failure), may_run_again: false };
    let changes = match held.keep().and_then(|()| held.changes()) {
        Ok(changes) => changes,
        Err(error) => return failed(error.into()),
    };
    // The command and its descendants count as the holder too.
    let started = held.liveness_fds().map_err(CommandFailure::from);
    let started =
        started.and_then(|inherited| Command::start(command, &variables(manager, names, &held), &inherited));
    let command = match started {
        Ok(command) => command,
        Err(failure) => return failed(failure),
    };
    let mut watch = LeaseWatch::new(command, &held);
    watch.until_over(signals, &changes);
    let hangs = watch.hangs();
    let LeaseWatch { command, lost, asked_to_end, .. } = watch;
    if hangs {
        leave(held);
        return failed(hanging(lost));
    }
    let may_run_again = lost.is_some() && !asked_to_end;
    // A loss that nobody noticed before the command had ended.
    let late = held.leases().iter().find_map(|lease| lease.check().err());
    let is_whole = lost.is_none() && late.is_none() && !asked_to_end;
    if is_whole {
        wait_until(signals, not_before);
    }
    CommandEnd { outcome: end(manager, held, &command, lost, late, is_whole), may_run_again }
}

/// Returns the command's file name. The path and the arguments may be confidential.
pub(crate) fn program_name(command: &[OsString]) -> String {
    let program = command.first().map(std::path::Path::new).and_then(|path| path.file_name());
    program.unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns environment variables for the command. The first lock has the names without a number.
fn variables(manager: &LockManager, names: &[&String], held: &CommandLocks) -> Vec<(String, Option<String>)> {
    let left = u64::try_from(held.first_to_end().remaining().as_millis()).unwrap_or(u64::MAX);
    // Those of a `dlm run` around this one, which may have held more locks or fences.
    let around = std::env::vars_os().filter_map(|(key, _)| key.into_string().ok());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let of_locks = |key: &String| {
        let number = key.strip_prefix("DLM_LOCK_").or_else(|| key.strip_prefix("DLM_FENCE_"));
        ["DLM_FENCE", "DLM_PERMIT"].contains(&key.as_str()) || number.is_some_and(is_number)
    };
    let mut all: Vec<_> = around.filter(of_locks).map(|key| (key, None)).collect();
    for (number, (name, lease)) in (1..).zip(names.iter().zip(held.leases())) {
        let suffix = if number == 1 { String::new() } else { format!("_{number}") };
        all.push((format!("DLM_LOCK{suffix}"), Some((*name).clone())));
        if let Some(Fence(fence)) = lease.fence() {
            all.push((format!("DLM_FENCE{suffix}"), Some(fence.to_string())));
        }
        if let Some(permit) = lease.permit() {
            all.push(("DLM_PERMIT".into(), Some(permit.to_string())));
        }
    }
    let locks = held.leases().iter().map(|lease| lease.name());
    all.push((around::VARIABLE.into(), Some(around::with(manager, locks))));
    all.push(("DLM_DEADLINE_MS".into(), Some(open::wall_ms().saturating_add(left).to_string())));
    all
}

/// Waits until `not_before`, or until a signal asks this process to end. The locks then stay held for the rest of the time,
/// although they are released: see [`AcquireOptions::min_hold`].
fn wait_until(signals: &Signals, not_before: Option<Moment>) {
    if let Some(not_before) = not_before {
        signals.pause(not_before.since(Moment::now()));
    }
}

fn exit_status(command: &Command) -> CommandOutcome {
    command.status().ok_or_else(|| CommandFailure::internal("the command ended without a status"))
}

/// Releases the locks and determines the exit status. `lost`: for which the command was ended. `late`: a loss that was found
/// when it had ended. `is_whole`: it has ended by itself, under valid leases.
fn end(
    manager: &LockManager,
    held: CommandLocks,
    command: &Command,
    lost: Option<String>,
    late: Option<dlm::Error>,
    is_whole: bool,
) -> CommandOutcome {
    let (found, is_confirmed) = release(manager, &held);
    if !is_confirmed {
        // Dropping a lease would try again and report the error a second time.
        leave(held);
    }
    match (lost, late.or(found)) {
        (Some(why), _) => Err(CommandFailure::new(
            LOST,
            format!("{why}; the command was ended: check what it left unfinished"),
        )),
        (None, Some(error)) if is_whole && error.lost_reason() == Some(LostReason::Expired) => {
            // It has ended in time. Only the rest of its minimum hold, or the release, was too late.
            log::warn!("the command has ended, and its lease ended before the release: {error}");
            exit_status(command)
        }
        (None, Some(error)) => Err(CommandFailure::new(
            LOST,
            format!("{error}; check the command's work: another may have run at the same time"),
        )),
        (None, None) => exit_status(command),
    }
}

/// Releases each lease. Returns the first loss, and whether the store has confirmed all others. A store that is down for a
/// moment is asked again.
fn release(manager: &LockManager, held: &CommandLocks) -> (Option<dlm::Error>, bool) {
    let (mut lost, mut is_confirmed) = (None, true);
    for lease in held.leases().iter().rev() {
        let mut released = lease.release();
        for _ in 1..RELEASES {
            match &released {
                Err(error) if error.is_retryable() => {}
                _ => break,
            }
            std::thread::sleep(RELEASE_PAUSE);
            released = lease.release();
        }
        match released {
            Ok(true) => {}
            // Found lost before: nobody else releases it.
            Ok(false) => lost = lost.or(lease.check().err()),
            Err(error) if error.code() == Code::LeaseLost => lost = lost.or(Some(error)),
            Err(error) => {
                is_confirmed = false;
                log::warn!(
                    "the command has ended, but {} did not confirm the release of lock {}, which is free when its TTL \
                     ends: {error}",
                    manager.store(),
                    lease.name()
                );
            }
        }
    }
    (lost, is_confirmed)
}

/// Lets the record of the lease stay in the store. A token would need the store if the lease dies with this process, and
/// the lock would be released if the store failed.
fn leave(held: CommandLocks) {
    std::mem::forget(held);
}

/// Builds the failure for a process that KILL did not end. The lock is not released, because the next holder would
/// run at the same time.
fn hanging(lost: Option<String>) -> CommandFailure {
    let why = lost.unwrap_or_else(|| "the command was asked to end".into());
    CommandFailure::new(
        LOST,
        format!(
            "{why}; one of its processes cannot be killed, so the lock is held until its TTL ends: find it with ps"
        ),
    )
}

/// A running command and the state of its lease.
struct LeaseWatch<'a> {
    command: Command,
    held: &'a CommandLocks,
    /// TTL of the leases when the command started.
    ttl: Duration,
    /// Why the lease can no longer be relied on.
    lost: Option<String>,
    /// A signal that asks to end was passed on.
    asked_to_end: bool,
    /// The processes that the command left running have been sent TERM.
    swept: bool,
    /// When all processes get KILL, and when to give up after that.
    kill_at: Option<Moment>,
    give_up_at: Option<Moment>,
}

impl<'a> LeaseWatch<'a> {
    fn new(command: Command, held: &'a CommandLocks) -> LeaseWatch<'a> {
        LeaseWatch {
            command,
            held,
            ttl: held.first_to_end().ttl(),
            lost: None,
            asked_to_end: false,
            swept: false,
            kill_at: None,
            give_up_at: None,
        }
    }

    /// Blocks until the command, and its other processes if they must, have ended or hang.
    fn until_over(&mut self, signals: &Signals, changes: &[Receiver<()>]) {
        let mut any = Select::new();
        any.recv(signals.received());
        for changes in changes {
            any.recv(changes);
        }
        loop {
            self.command.reap();
            if self.is_over() {
                return;
            }
            let pause = self.act(Moment::now());
            // What it was that ended the pause is found below.
            let _ = any.ready_timeout(pause);
            changes.iter().for_each(|changes| changes.try_iter().for_each(drop));
            signals.received().try_iter().for_each(|signal| self.heed(signal));
        }
    }

    fn is_over(&self) -> bool {
        let ended = self.command.status().is_some();
        let must_all_end = self.lost.is_some() || self.asked_to_end;
        ended && (!must_all_end || !self.command.is_any_alive()) || self.hangs()
    }

    /// Whether a process is still running after [`KILL_GRACE`].
    fn hangs(&self) -> bool {
        self.give_up_at.is_some_and(|at| Moment::now() >= at) && self.command.is_any_alive()
    }

    /// Does what is due. Returns the time until the next check.
    fn act(&mut self, now: Moment) -> Duration {
        let ends = self.held.ends();
        let lost = self.held.lost().filter(|_| self.lost.is_none());
        if let Some(lost) = lost {
            if let Err(error) = lost.check() {
                self.lose(error.chain());
            }
        } else if self.lost.is_none() && ends.since(now) <= (self.ttl / 4).min(TERM_AHEAD_MAX) {
            let what =
                if now < ends { "could not be renewed and is about to end" } else { "expired unnoticed" };
            self.lose(format!("the lease of lock {} {what}", self.held.first_to_end().name()));
        }
        if self.command.status().is_some() && !self.swept {
            self.swept = true;
            self.command.signal_all(Signal::TERM);
            self.kill_by(now.after(LEFT_GRACE));
        }
        let mut pause = LOOK;
        if let Some(kill_at) = self.kill_at {
            pause = pause.min(kill_at.since(now));
            if now >= kill_at {
                self.give_up_at.get_or_insert(now.after(KILL_GRACE));
                self.command.signal_all(Signal::KILL);
                pause = LOOK_AFTER_KILL;
            }
        } else if self.lost.is_none() {
            let term_at = ends.since(now).saturating_sub((self.ttl / 4).min(TERM_AHEAD_MAX));
            pause = pause.min(term_at);
        }
        pause
    }

    /// Asks the command to end, because another holder has the lock or may soon have it.
    fn lose(&mut self, why: String) {
        let now = Moment::now();
        let left = self.held.ends().since(now).saturating_sub((self.ttl / 10).min(KILL_AHEAD_MAX));
        self.command.signal(Signal::TERM);
        self.kill_by(now.after(if left.is_zero() { LOST_GRACE } else { left }));
        log::info!("{why}; the command gets TERM");
        self.lost = Some(why);
    }

    fn kill_by(&mut self, moment: Moment) {
        self.kill_at = Some(self.kill_at.map_or(moment, |before| before.min(moment)));
    }

    fn heed(&mut self, signal: ReceivedSignal) {
        let Some(number) = Signal::from_named_raw(signal.number).filter(|_| signal.number != SIGCHLD) else {
            return;
        };
        if signal.from_kernel && self.command.has_got(number) {
            return;
        }
        self.command.signal(number);
        self.asked_to_end |= signal.is_ending();
        if number == Signal::HUP {
            // As the kernel does for those whose terminal is closed: a stopped process could not end.
            self.command.signal(Signal::CONT);
        }
    }
}

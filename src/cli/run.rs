//! `dlm run`: a command that runs under a lock, and never on without it.
//!
//! | found | what the command gets | status |
//! |---|---|---|
//! | it ended | nothing | its own |
//! | a signal was sent to us | the signal; what it leaves running then, TERM and in a while KILL | its own |
//! | the store says the lease is lost | TERM, [`LOST_GRACE`] later everything KILL | 77 |
//! | no renewal got through and the end is near | TERM, everything KILL while the lease still lasts | 77 |
//!
//! A store that does not answer is no loss by itself: the command goes on for as long as the lease it
//! has allows.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::select;
use dlm::{Code, Fence, Lease, LockManager, Moment};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::cli::args::{Global, RunArgs};
use crate::cli::exit::{CommandFailure, CommandOutcome, LOST};
use crate::cli::lease::take;
use crate::cli::open;
use crate::cli::process::Command;
use crate::cli::renewal::Renewal;
use crate::cli::signals::{ReceivedSignal, Signals};

const CAUGHT: [i32; 7] = [SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD];

/// Before the end of a lease that could not be renewed, TERM is sent a fourth of the TTL ahead, KILL a
/// tenth; but not earlier than these.
const TERM_AHEAD_MAX: Duration = Duration::from_secs(15);
const KILL_AHEAD_MAX: Duration = Duration::from_secs(3);
/// Between TERM and KILL when the lease is lost already and another may hold the lock.
const LOST_GRACE: Duration = Duration::from_millis(500);
/// Between TERM and KILL for what a command leaves running after it was told to end.
const LEFT_GRACE: Duration = Duration::from_secs(5);
/// A process that KILL does not end within this time hangs in the kernel.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// The lease is looked at so often: a timer stands still while the machine is suspended.
const LOOK: Duration = Duration::from_secs(1);
/// How soon to look again for processes that were started while all were being killed.
const LOOK_AFTER_KILL: Duration = Duration::from_millis(10);

/// A release is sent again so often, so long apart, if the store does not answer.
const RELEASES: u32 = 3;
const RELEASE_PAUSE: Duration = Duration::from_millis(500);

/// `dlm run`
pub(crate) fn run(global: &Global, args: &RunArgs) -> CommandOutcome {
    let manager = open::manager(global, Some(&args.terms), &format!("run {}", program_name(args)))?;
    let lock = open::lock(&manager, global, args.terms.level, &args.name)?;
    let signals = Signals::catch(&CAUGHT)?;
    let lease = Arc::new(take(&lock, &args.terms, &signals)?);
    let renewal = Renewal::start(&lease)?;
    let command = Command::start(&args.command, &variables(&args.name, &lease))?;
    let mut watch = LeaseWatch::new(command, &lease);
    watch.until_over(&signals, &renewal);
    let hangs = watch.hangs();
    let LeaseWatch { command, mut lost, .. } = watch;
    if let Some(error) = renewal.end() {
        lost.get_or_insert_with(|| error.chain());
    }
    if hangs {
        let _ = Arc::into_inner(lease).map(Lease::into_token);
        return Err(hanging(lost));
    }
    end(&manager, lease, &command, lost)
}

/// The command's name without its path and arguments, which may be nobody's business.
fn program_name(args: &RunArgs) -> String {
    let program = args.command.first().map(std::path::Path::new).and_then(|path| path.file_name());
    program.unwrap_or_default().to_string_lossy().into_owned()
}

fn variables(name: &str, lease: &Lease) -> [(&'static str, Option<String>); 3] {
    let left = u64::try_from(lease.remaining().as_millis()).unwrap_or(u64::MAX);
    [
        ("DLM_LOCK", Some(name.to_owned())),
        // Removed where there is none: it could be that of a lock around this one.
        ("DLM_FENCE", lease.fence().map(|Fence(number)| number.to_string())),
        ("DLM_DEADLINE_MS", Some(open::wall_ms().saturating_add(left).to_string())),
    ]
}

/// Gives the lock back and finds the exit status.
fn end(manager: &LockManager, lease: Arc<Lease>, command: &Command, lost: Option<String>) -> CommandOutcome {
    let released = release(&lease);
    if released.is_err() {
        // Told below: dropped, it would go on trying and report it a second time. The thread that had a
        // share in it has ended.
        let _ = Arc::into_inner(lease).map(Lease::into_token);
    }
    if let Some(why) = lost {
        return Err(CommandFailure::new(
            LOST,
            format!("{why}; the command was ended: check what it left half done"),
        ));
    }
    match released {
        Ok(_) => {}
        Err(error) if error.code() == Code::LeaseLost => {
            let line =
                format!("{}; check what the command did: another may have run beside it", error.chain());
            return Err(CommandFailure::new(LOST, line));
        }
        Err(error) => log::warn!(
            "the command has ended, but {} did not confirm the release; the lock is free when its TTL ends: {}",
            manager.store(),
            error.chain()
        ),
    }
    command.status().ok_or_else(|| CommandFailure::internal("the command ended without a status"))
}

fn release(lease: &Lease) -> dlm::Result<bool> {
    let mut released = lease.release();
    for _ in 1..RELEASES {
        match &released {
            Err(error) if error.is_retryable() => {}
            _ => break,
        }
        std::thread::sleep(RELEASE_PAUSE);
        released = lease.release();
    }
    released
}

/// Releasing would let the next in beside what is still running.
fn hanging(lost: Option<String>) -> CommandFailure {
    let why = lost.unwrap_or_else(|| "the command was told to end".into());
    CommandFailure::new(
        LOST,
        format!(
            "{why}; a process of it cannot be killed, so the lock ends with its TTL: look for it with ps"
        ),
    )
}

/// A running command and what is known of its lease.
struct LeaseWatch<'a> {
    command: Command,
    lease: &'a Lease,
    /// Of the lease. Read once: asking it waits for a renewal under way.
    ttl: Duration,
    /// Why the lease is not to be relied on any more.
    lost: Option<String>,
    /// A signal that asks to end was passed on.
    told_to_end: bool,
    /// What the command left running has been sent TERM.
    swept: bool,
    /// When everything gets KILL, and then when to give up.
    kill_at: Option<Moment>,
    give_up_at: Option<Moment>,
}

impl<'a> LeaseWatch<'a> {
    fn new(command: Command, lease: &'a Lease) -> LeaseWatch<'a> {
        LeaseWatch {
            command,
            lease,
            ttl: lease.ttl(),
            lost: None,
            told_to_end: false,
            swept: false,
            kill_at: None,
            give_up_at: None,
        }
    }

    /// Returns when the command has ended and all that had to be done about it is done.
    fn until_over(&mut self, signals: &Signals, renewal: &Renewal) {
        let never = crossbeam_channel::never();
        loop {
            self.command.reap();
            if self.is_over() {
                return;
            }
            let pause = self.act(Moment::now());
            // Its one message ends the channel, which would then answer at once for ever.
            let lost = if self.lost.is_none() { renewal.lost() } else { &never };
            select! {
                recv(signals.received()) -> signal => if let Ok(signal) = signal {
                    self.heed(signal);
                },
                recv(lost) -> error => self.lose(match error {
                    Ok(error) => error.chain(),
                    Err(_) => "the lease is not renewed any more, which is a bug: please report it".into(),
                }),
                default(pause) => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        let ended = self.command.status().is_some();
        let must_all_end = self.lost.is_some() || self.told_to_end;
        ended && (!must_all_end || self.command.alive().is_empty()) || self.hangs()
    }

    /// Whether something goes on running that was to end.
    fn hangs(&self) -> bool {
        self.give_up_at.is_some_and(|at| Moment::now() >= at) && !self.command.alive().is_empty()
    }

    /// Does what is due, and tells when to look again.
    fn act(&mut self, now: Moment) -> Duration {
        let ends = self.lease.ends();
        // Zero: found lost, and the message about it is on its way.
        let known = self.lost.is_none() && ends.as_nanos() > 0;
        if known && ends.since(now) <= (self.ttl / 4).min(TERM_AHEAD_MAX) {
            let what =
                if now < ends { "could not be renewed and is about to end" } else { "ran out unnoticed" };
            self.lose(format!("the lease of lock {} {what}", self.lease.name()));
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

    /// The lock may be another's now, or soon: the command has to end before.
    fn lose(&mut self, why: String) {
        let now = Moment::now();
        let left = self.lease.ends().since(now).saturating_sub((self.ttl / 10).min(KILL_AHEAD_MAX));
        log::info!("{why}; the command is told to end");
        self.lost = Some(why);
        self.command.signal(Signal::TERM);
        self.kill_by(now.after(if left.is_zero() { LOST_GRACE } else { left }));
    }

    fn kill_by(&mut self, moment: Moment) {
        self.kill_at = Some(self.kill_at.map_or(moment, |before| before.min(moment)));
    }

    fn heed(&mut self, signal: ReceivedSignal) {
        let Some(number) = Signal::from_named_raw(signal.number).filter(|_| signal.number != SIGCHLD) else {
            return;
        };
        // What a key of the terminal sent, the command has from there.
        if !signal.from_terminal {
            self.command.signal(number);
            self.told_to_end |= signal.is_ending();
        }
    }
}

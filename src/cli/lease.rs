//! Leases that outlive the process: `dlm acquire`, `dlm renew` and `dlm release`.

use std::io::Read as _;
use std::time::Duration;

use dlm::{AcquireOptions, Deadline, Error, Fence, Holder, LeaseToken, LockManager, Moment};
use serde_json::json;

use crate::cli::args::{self, Global, TermArgs};
use crate::cli::exit::{CommandFailure, CommandOutcome};
use crate::cli::held::CommandLocks;
use crate::cli::signals::{ENDING, NOT_USED, Signals};
use crate::cli::target::CommandTarget;
use crate::cli::{around, open, output};

/// Limit for a lease line. It has some hundred bytes, and 5 KiB with the longest names.
const LEASE_LINE_MAX: u64 = 64 << 10;

/// Acquires the target as `options` and `terms` say. A signal ends the wait.
pub(crate) fn take(
    manager: &LockManager,
    target: &CommandTarget,
    options: AcquireOptions,
    terms: &TermArgs,
    signals: &Signals,
) -> Result<CommandLocks, CommandFailure> {
    let waits = terms.wait.map(Deadline::after);
    open::reach(manager, terms.wait)?;
    if let Some(why) = target.held_around(&manager.store(), &around::all())? {
        return Err(CommandFailure::new(terms.unavailable_status, why));
    }
    // The first contact was a part of the wait.
    let wait = match terms.wait {
        _ if terms.no_wait => Some(Duration::ZERO),
        Some(Duration::MAX) => Some(Duration::MAX),
        _ => waits.map(Deadline::remaining),
    };
    let options = wait.map_or(options.clone(), |wait| options.wait(wait));
    let options = options.cancel(&signals.cancel);
    let note = if terms.no_wait { None } else { target.note(wait) };
    let taken = target.acquire(manager, &options);
    drop(note);
    // A signal may arrive after the lock was granted. It ends the command all the same.
    match (taken, signals.ending()) {
        (Ok(held), None) => Ok(held),
        (Ok(held), Some(signal)) => {
            held.release()?;
            Err(Signals::ended_by(signal, NOT_USED))
        }
        (Err(error), Some(signal)) if error.code() == dlm::Code::Cancelled => {
            Err(Signals::ended_by(signal, NOT_USED))
        }
        (Err(error), _) => {
            let failure = CommandFailure::with_unavailable(&error, terms.unavailable_status);
            Err(match holder_of(&error).is_some_and(is_around) {
                true => {
                    failure.with("; its holder is the `dlm` that runs this command, so it waits for itself")
                }
                false => failure,
            })
        }
    }
}

fn holder_of(error: &Error) -> Option<&Holder> {
    match error {
        Error::LockUnavailable { holder, .. } => holder.as_deref(),
        Error::Context { source, .. } => holder_of(source),
        _ => None,
    }
}

/// Whether the holder is a process that started this one, directly or through others.
fn is_around(holder: &Holder) -> bool {
    let Some(identity) = &holder.identity else { return false };
    let host = rustix::system::uname();
    if host.nodename().to_str() != Ok(identity.host.as_str()) {
        return false;
    }
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    std::iter::successors(parent(std::process::id()), |pid| parent(*pid)).any(|pid| pid == identity.pid)
}

/// `dlm acquire`
pub(crate) fn acquire(global: &Global, args: &args::AcquireArgs) -> CommandOutcome {
    output::refuse_closed()?;
    let manager = open::manager(global, Some(&args.terms), "acquire, its lease handed on")?;
    let target = CommandTarget::of(&manager, global, args.terms.level, &[&args.name], &args.how)?;
    let signals = Signals::catch(&ENDING)?;
    let began = Moment::now();
    let held = take(&manager, &target, AcquireOptions::new(), &args.terms, &signals)?;
    let waited = Moment::now().since(began);
    let Some(lease) = held.into_first() else {
        return Err(CommandFailure::internal("a lock was asked for, and none was granted"));
    };
    let permit = lease.permit();
    let token = lease.into_token()?;
    let text = if global.json {
        let mut object = as_json(&token);
        object["waited_ms"] = json!(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        object["permit"] = json!(permit);
        output::json(object)
    } else {
        token.to_string()
    };
    if let Err(error) = output::line(&text) {
        // Nobody has received the line, so nobody could release the lock.
        manager.adopt(token)?.release()?;
        return Err(CommandFailure::internal(format!(
            "the lease cannot be written to standard output ({error}), so the lock was released; check where it goes"
        )));
    }
    Ok(0)
}

/// `dlm renew`
pub(crate) fn renew(global: &Global, args: &args::Renew) -> CommandOutcome {
    let token = read_lease(&args.lease)?;
    let manager = open::manager(global, None, "renew")?;
    open::reach(&manager, None)?;
    let lease = manager.adopt(token)?;
    let renewed = match args.ttl {
        Some(ttl) => lease.renew_for(ttl),
        None => lease.renew(),
    };
    // Also after a failure, because dropping the lease would release it.
    let token = lease.into_token();
    renewed?;
    if global.json {
        output::show(&output::json(as_json(&token?)))?;
    }
    Ok(0)
}

/// `dlm release`
pub(crate) fn release(global: &Global, args: &args::ReleaseArgs) -> CommandOutcome {
    let token = read_lease(&args.lease)?;
    let name = token.name().clone();
    let manager = open::manager(global, None, "release")?;
    open::reach(&manager, None)?;
    let lease = manager.adopt(token)?;
    if let Err(error) = lease.release() {
        // Dropping the lease would try again and report a second error.
        let _ = lease.into_token();
        return Err(error.into());
    }
    if global.json {
        output::show(&output::json(json!({ "lock": name.key(), "released": true })))?;
    }
    Ok(0)
}

fn as_json(token: &LeaseToken) -> serde_json::Value {
    json!({
        "lock": token.name().key(),
        "lease": token.to_string(),
        "mode": token.mode().name(),
        "fence": token.fence().map(|Fence(number)| number.to_string()),
        "deadline_ms": token.ends_ms(),
    })
}

/// Parses the lease in `text`, or reads it from standard input if `text` is `-`.
fn read_lease(text: &str) -> Result<LeaseToken, CommandFailure> {
    if text != "-" {
        return Ok(text.parse()?);
    }
    let mut text = String::new();
    std::io::stdin().take(LEASE_LINE_MAX).read_to_string(&mut text).map_err(|error| {
        CommandFailure::usage(format!("the lease cannot be read from standard input: {error}"))
    })?;
    Ok(text.parse()?)
}

//! `dlm elect`: runs a command while this process leads, and shows who leads.

use std::io::ErrorKind;
use std::time::Duration;

use dlm::{Code, Election, Fence, LockManager, Observed};
use serde_json::json;

use crate::cli::args::{ElectArgs, Global};
use crate::cli::exit::{CommandFailure, CommandOutcome};
use crate::cli::held::CommandLocks;
use crate::cli::run::{self, CAUGHT, program_name};
use crate::cli::show::holder_json;
use crate::cli::signals::{NOT_USED, Signals};
use crate::cli::{names, open, output, waiting};

/// Pause after a read that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// `dlm elect`
pub(crate) fn elect(global: &Global, args: &ElectArgs) -> CommandOutcome {
    if args.observe {
        let manager = open(global, args, "elect --observe")?;
        return observe(global, &election(&manager, global, args)?);
    }
    let manager = open(global, args, &format!("elect {}", program_name(&args.command)))?;
    let election = election(&manager, global, args)?;
    let signals = Signals::catch(&CAUGHT)?;
    loop {
        let note = waiting::for_locks(&[manager.lock_named(election.name())], Some(Duration::MAX));
        let term = election.campaign(&run::options(&manager, !args.no_takeover).cancel(&signals.cancel));
        drop(note);
        let term = match (term, signals.ending()) {
            (Ok(term), None) => term,
            (Ok(term), Some(signal)) => {
                term.resign()?;
                return Err(Signals::ended_by(signal, NOT_USED));
            }
            (Err(error), Some(signal)) if error.code() == Code::Cancelled => {
                return Err(Signals::ended_by(signal, NOT_USED));
            }
            (Err(error), _) => return Err(error.into()),
        };
        let ended = run::command(
            &manager,
            CommandLocks::One(term.into_lease()),
            &[&args.name],
            &args.command,
            &signals,
            None,
        );
        match ended.outcome {
            Err(failure) if ended.may_run_again => log::warn!("{}; a candidate again", failure.line()),
            outcome => return outcome,
        }
    }
}

fn open(global: &Global, args: &ElectArgs, purpose: &str) -> Result<LockManager, CommandFailure> {
    let mut builder = open::builder(global, purpose);
    if let Some(ttl) = args.ttl {
        builder = builder.ttl(ttl);
    }
    if let Some(retry) = args.retry {
        builder = builder.retry(retry);
    }
    Ok(builder.open()?)
}

fn election(manager: &LockManager, global: &Global, args: &ElectArgs) -> Result<Election, CommandFailure> {
    let Some(full) = names::full_name(&args.name) else {
        return Ok(manager.election(&args.name, open::lock_level(global, args.level)?)?);
    };
    match names::own_id(manager, &full) {
        Some((id, level)) => Ok(manager.election(&id, level)?),
        None => Err(CommandFailure::usage(format!(
            "{} is the full name of a lock of another client or data centre: name them with --client and --farm",
            names::shown(full.key())
        ))),
    }
}

/// Prints who leads, and each change, until a signal ends the process.
fn observe(global: &Global, election: &Election) -> CommandOutcome {
    let mut observer = election.observe();
    loop {
        let seen = match observer.wait_for_change(Duration::MAX) {
            Ok(Some(seen)) => seen,
            Ok(None) => continue,
            Err(error) if error.is_retryable() => {
                log::warn!("{}", error.chain());
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let text = if global.json { output::json(as_json(election, &seen)) } else { as_text(&seen) };
        match output::line(&text) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(0),
            Err(error) => {
                return Err(CommandFailure::internal(format!(
                    "standard output cannot be written: {error}; check where it goes"
                )));
            }
        }
    }
}

fn as_text(seen: &Observed) -> String {
    let Observed::Leads(leader) = seen else { return "nobody leads".into() };
    let who = leader.holder.identity.as_ref().map(ToString::to_string);
    let who = who.unwrap_or_else(|| "a client that does not identify itself".into());
    match leader.fence {
        Some(Fence(fence)) => format!("leader: {who}, fence {fence}"),
        None => format!("leader: {who}"),
    }
}

fn as_json(election: &Election, seen: &Observed) -> serde_json::Value {
    let leader = if let Observed::Leads(leader) = seen { Some(leader) } else { None };
    json!({
        "election": election.name().key(),
        "leader": leader.map(|leader| holder_json(&leader.holder)),
        "fence": leader.and_then(|leader| leader.fence).map(|Fence(number)| number.to_string()),
    })
}

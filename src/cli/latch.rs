//! `dlm latch`: counts that processes share, and waits until a count is zero.

use std::time::Duration;

use dlm::store::ListedLatch;
use dlm::{AwaitOptions, Code, Deadline, Latch, LatchKind, LockManager, Moment};
use serde_json::{Value, json};

use crate::cli::args::{Global, LatchAction, LatchArg, LatchVerb};
use crate::cli::exit::{self, CommandFailure, CommandOutcome, UNAVAILABLE};
use crate::cli::names::{client_of, shown};
use crate::cli::signals::{ENDING, Signals};
use crate::cli::{open, output, waiting};

/// Longest pause between two looks whether a latch was created.
const CREATED_POLL: Duration = Duration::from_secs(1);

/// `dlm latch ...`
pub(crate) fn latch(global: &Global, action: &LatchAction) -> CommandOutcome {
    match &action.verb {
        LatchVerb::Create { latch, count, participants, ttl } => {
            let latch = open(global, latch, *ttl)?;
            let created = match count {
                Some(count) => latch.create(*count),
                None => latch.create_for(participants),
            };
            created.map_err(|error| CommandFailure::of_latch(&error, false))?;
            output(global, || count_json(&latch, count.unwrap_or(participants.len() as i64)), None)
        }
        LatchVerb::Reset { latch, count, participants, ttl } => {
            let latch = open(global, latch, *ttl)?;
            let reset = match count {
                Some(count) => latch.reset(*count),
                None => latch.reset_for(participants),
            };
            reset.map_err(|error| CommandFailure::of_latch(&error, false))?;
            output(global, || count_json(&latch, count.unwrap_or(participants.len() as i64)), None)
        }
        LatchVerb::Rm { latch, ttl } => {
            let latch = open(global, latch, *ttl)?;
            latch.delete().map_err(|error| CommandFailure::of_latch(&error, false))?;
            output(global, || named(&latch, json!({ "deleted": true })), None)
        }
        LatchVerb::Ls { prefix } => ls(global, prefix.as_deref().unwrap_or_default()),
        LatchVerb::Down { latch, participant, ttl } => {
            let latch = open(global, latch, *ttl)?;
            let counted = match participant {
                Some(participant) => latch.count_down_as(participant),
                None => latch.count_down().map(|()| true),
            };
            let counted = match counted {
                // Only a latch that waits for names refuses that.
                Err(error) if error.code() == Code::InvalidArgument && participant.is_none() => {
                    return Err(CommandFailure::usage(format!("{error}; count with --as")));
                }
                counted => {
                    counted.map_err(|error| CommandFailure::of_latch(&error, participant.is_some()))?
                }
            };
            output(global, || named(&latch, json!({ "counted": counted })), None)
        }
        LatchVerb::Up { latch, ttl } => {
            let latch = open(global, latch, *ttl)?;
            latch.count_up().map_err(|error| match error.code() {
                Code::InvalidArgument => {
                    CommandFailure::usage(format!("{error}; only `down --as` counts it"))
                }
                _ => CommandFailure::of_latch(&error, false),
            })?;
            output(global, || named(&latch, json!({ "counted": true })), None)
        }
        LatchVerb::Count { latch } => {
            let latch = open(global, latch, None)?;
            let count = latch.count()?;
            output(global, || count_json(&latch, count), Some(count.to_string()))
        }
        LatchVerb::Pending { latch } => {
            let latch = open(global, latch, None)?;
            let roster = latch.roster()?;
            let lines = (!roster.pending.is_empty()).then(|| roster.pending.join("\n"));
            let whole = || {
                let (pending, arrived) = (&roster.pending, &roster.arrived);
                named(&latch, json!({ "pending": pending, "arrived": arrived }))
            };
            output(global, whole, lines)
        }
        LatchVerb::Await { latch, timeout, until_created, poll } => {
            await_open(global, latch, *timeout, *until_created, *poll)
        }
    }
}

fn ls(global: &Global, prefix: &str) -> CommandOutcome {
    let manager = open::builder(global, "latch").open()?;
    open::reach(&manager, None)?;
    let mut listed = 0_u64;
    for latch in manager.latches(prefix) {
        let latch = latch?;
        listed += 1;
        let line = if global.json { output::json(listed_json(&latch)) } else { listed_text(&latch) };
        if !output::line_is_read(&line)? {
            return Ok(0);
        }
    }
    if listed == 0 {
        let names = if prefix.is_empty() {
            String::new()
        } else {
            format!(" whose name begins with {}", shown(prefix))
        };
        exit::to_stderr(&format!(
            "{} has no latch of client {}{names}",
            manager.store(),
            client_of(&manager)
        ));
    }
    Ok(0)
}

fn listed_text(latch: &ListedLatch) -> String {
    let count = |(farm, count): (&String, &i64)| format!("{}: {count}", farm.escape_debug());
    let counts: Vec<_> = latch.counts.iter().map(count).collect();
    let name =
        if latch.id.is_some() { shown(&latch.key) } else { format!("(unnamed record {:?})", latch.key) };
    format!("{name}  {}", counts.join(", "))
}

fn listed_json(latch: &ListedLatch) -> Value {
    json!({
        "latch": latch.id.as_ref().map(|_| &latch.key),
        // A record whose name is not known.
        "record": if latch.id.is_none() { Some(&latch.key) } else { None },
        "counts": latch.counts,
    })
}

fn await_open(
    global: &Global,
    name: &LatchArg,
    timeout: Option<Duration>,
    until_created: bool,
    poll: Option<Duration>,
) -> CommandOutcome {
    let manager = open::builder(global, "latch await");
    let manager = match poll {
        Some(poll) => manager.poll(poll),
        None => manager,
    };
    let manager = manager.open()?;
    let latch = handle(&manager, global, name, None)?;
    let began = Moment::now();
    let by = Deadline::after(timeout.unwrap_or(Duration::MAX));
    open::reach(&manager, timeout)?;
    let signals = Signals::catch(&ENDING)?;
    let note = waiting::for_latch(latch.clone(), timeout);
    let pause = poll.unwrap_or(CREATED_POLL).min(CREATED_POLL);
    let answer = loop {
        let how = AwaitOptions::new().wait(by.remaining()).cancel(&signals.cancel);
        match latch.await_open_with(&how) {
            // Not created yet, and not in time.
            Err(error) if until_created && error.code() == Code::NotFound && by.passed() => break Ok(false),
            Err(error) if until_created && error.code() == Code::NotFound => {
                // The signal stays in the channel, and the next wait ends by its token.
                signals.pause(pause.min(by.remaining()));
            }
            answer => break answer,
        }
    };
    drop(note);
    let waited = Moment::now().since(began);
    let open = match (answer, signals.ending()) {
        (Err(error), Some(signal)) if error.code() == Code::Cancelled => {
            return Err(Signals::ended_by(signal, "the latch was open"));
        }
        (answer, _) => answer?,
    };
    let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
    let whole = || named(&latch, json!({ "open": open, "waited_ms": waited_ms }));
    output(global, whole, None)?;
    if open {
        return Ok(0);
    }
    let line = format!(
        "latch {} did not open within {:.3} s; see `dlm latch count`, or wait longer with --timeout",
        latch.name(),
        waited.as_secs_f64()
    );
    Err(CommandFailure::new(UNAVAILABLE, line))
}

fn open(global: &Global, name: &LatchArg, ttl: Option<Duration>) -> Result<Latch, CommandFailure> {
    let manager = open::builder(global, "latch").open()?;
    let latch = handle(&manager, global, name, ttl)?;
    open::reach(&manager, None)?;
    Ok(latch)
}

/// Opens a handle of kind `CountUpDown`. The store does not keep the kind, so the users of a latch must agree on it.
fn handle(
    manager: &LockManager,
    global: &Global,
    name: &LatchArg,
    ttl: Option<Duration>,
) -> Result<Latch, CommandFailure> {
    let level = open::latch_level(global, name.level)?;
    let latch = manager.latch(&name.name, level, LatchKind::CountUpDown)?;
    Ok(match ttl {
        Some(ttl) => latch.with_ttl(ttl)?,
        None => latch,
    })
}

/// Prints `whole` with --json, otherwise `text` if there is one.
fn output(global: &Global, whole: impl Fn() -> Value, text: Option<String>) -> CommandOutcome {
    match text {
        _ if global.json => output::show(&output::json(whole()))?,
        Some(text) => output::show(&text)?,
        None => {}
    }
    Ok(0)
}

fn count_json(latch: &Latch, count: i64) -> Value {
    named(latch, json!({ "count": count, "open": count <= 0 }))
}

/// Adds the full name of the latch, as those of locks are given, and the data centre whose count it is.
fn named(latch: &Latch, mut object: Value) -> Value {
    let name = latch.name();
    object["latch"] = format!("{}#{}", name.client(), name.id()).into();
    object["farm"] = name.farm().into();
    object
}

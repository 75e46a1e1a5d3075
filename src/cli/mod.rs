//! The `dlm` command: locks of any store of the library, from the shell.
//!
//! It uses the crate's public interface and nothing else, by the name `dlm`: `tests/cli_public.rs` compiles this
//! folder outside the crate.
//!
//! ```text
//! args      what may be typed            exit      what the shell is told, in one line and a number
//! open      the store and the lock       output    standard output, which may be closed
//! lease     acquire, renew, release      run       a command under a lock
//! show      show, init                     signals   what was sent to us
//! latch     counts, and waiting for them   renewal   the lease goes on
//! demo/     processes that contend         process   the command and all that it started
//! logger    warnings of the library        doctor    does the store do for locks?
//! ```

mod args;
mod demo;
mod doctor;
mod exit;
mod latch;
mod lease;
mod logger;
mod open;
mod output;
mod process;
mod renewal;
mod run;
mod show;
mod signals;

use std::process::ExitCode;

use self::args::{Cli, Verb};
use self::exit::CommandOutcome;

/// The `dlm` command: reads the arguments of this process, does what they say, and returns the exit status.
///
/// A program that calls this from its own `main` is the command `dlm` with the stores that are registered in
/// it, see [`register_store!`](crate::register_store). `--help` and `--version` end the process here. `dlm run`
/// and `dlm demo` start the same program again with commands of their own, so call this before anything else.
/// It sets the process's logger.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     dlm::cli::main()
/// }
/// ```
pub fn main() -> ExitCode {
    match args::parse().and_then(|cli| dispatch(&cli)) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failure.report(),
    }
}

fn dispatch(cli: &Cli) -> CommandOutcome {
    logger::start(cli.global.verbose)?;
    let global = &cli.global;
    match &cli.action {
        Verb::Run(run) => run::run(global, run),
        Verb::Acquire(acquire) => lease::acquire(global, acquire),
        Verb::Renew(renew) => lease::renew(global, renew),
        Verb::Release(release) => lease::release(global, release),
        Verb::Show(show) => show::show(global, show),
        Verb::Latch(action) => latch::latch(global, action),
        Verb::Doctor => doctor::doctor(global),
        Verb::Init(init) => show::init(global, init),
        Verb::Demo(demo) => demo::demo(global, demo),
        Verb::DemoWorker(worker) => demo::worker::work(global, worker),
        Verb::Exec(exec) => process::become_command(exec),
    }
}

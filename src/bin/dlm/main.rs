//! The `dlm` command: locks of any store of the library, from the shell.
//!
//! ```text
//! cli       what may be typed            exit      what the shell is told, in one line and a number
//! open      the store and the lock       output    standard output, which may be closed
//! lease     acquire, renew, release      run       a command under a lock
//! show      show, init                     signals   what was sent to us
//! latch     counts, and waiting for them   renewal   the lease goes on
//! demo/     processes that contend         process   the command and all that it started
//! logger    warnings of the library        doctor    does the store do for locks?
//! ```

mod cli;
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

use cli::{Action, Cli};
use exit::Outcome;

fn main() -> ExitCode {
    match cli::parse().and_then(|cli| dispatch(&cli)) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failure.report(),
    }
}

fn dispatch(cli: &Cli) -> Outcome {
    logger::start(cli.global.verbose)?;
    let global = &cli.global;
    match &cli.action {
        Action::Run(run) => run::run(global, run),
        Action::Acquire(acquire) => lease::acquire(global, acquire),
        Action::Renew(renew) => lease::renew(global, renew),
        Action::Release(release) => lease::release(global, release),
        Action::Show(show) => show::show(global, show),
        Action::Latch(action) => latch::latch(global, action),
        Action::Doctor => doctor::doctor(global),
        Action::Init(init) => show::init(global, init),
        Action::Demo(demo) => demo::demo(global, demo),
        Action::DemoWorker(worker) => demo::worker::work(global, worker),
        Action::Exec(exec) => process::become_command(exec),
    }
}

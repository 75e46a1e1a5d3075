//! The `dlm` command: locks and latches of any store of the library, for the shell.
//!
//! It uses only the crate's public interface, under the name `dlm`. `tests/cli_public.rs` compiles this folder
//! outside the crate.
//!
//! ```text
//! args      arguments and help           exit      exit statuses, messages on standard error
//! open      opens stores and locks       output    writes to standard output, which may be closed
//! lease     acquire, renew, release      run       a command that runs while the lock is held
//! show      show, init                   signals   signals sent to this process
//! latch     counts and waits             process   the command of `run` and its descendants
//! names     what is printed is taken     hints     what a wrong command line should have been
//! objects   what --json prints
//! ls, top   the locks of a store         break_lock  takes a lock from its holder
//! history   history, why                 report    which promises hold
//! demo/     processes that contend       doctor    is the store safe for locks?
//! logger    the library's warnings           elect     who leads, a command of the leader
//! narrator  events, for -v               waiting   what is waited for, on a terminal
//! held      the locks of a command       shell_files  manual pages, completions
//! target    what a command acquires      around    what the commands around this one hold
//! semaphore shows and resizes one
//! ```

mod args;
mod around;
mod break_lock;
mod demo;
mod doctor;
mod elect;
mod exit;
mod held;
mod hints;
mod history;
mod latch;
mod late_line;
mod lease;
mod logger;
mod ls;
mod names;
mod narrator;
mod objects;
mod open;
mod output;
mod process;
mod report;
mod run;
mod semaphore;
mod shell_files;
mod show;
mod signals;
mod target;
mod top;
mod waiting;

use std::process::ExitCode;

use self::args::{Cli, Verb};
use self::exit::CommandOutcome;

/// Runs the `dlm` command with the arguments of this process, and returns its exit status.
///
/// A program that calls this from its own `main` is the `dlm` command plus the stores that the program registers,
/// see [`register_store!`](crate::register_store). Call it before anything else, because `dlm run` and `dlm demo`
/// start the same program again with hidden commands. `--help` and `--version` end the process. The call sets the
/// process's logger.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     dlm::cli::main()
/// }
/// ```
pub fn main() -> ExitCode {
    let ended = args::parse().and_then(|cli| dispatch(&cli));
    log::logger().flush();
    match ended {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failure.report(args::wants_json(std::env::args_os())),
    }
}

fn dispatch(cli: &Cli) -> CommandOutcome {
    signals::prepare()?;
    logger::start(cli.global.verbose)?;
    let global = &cli.global;
    open::refuse_empty(global)?;
    if !matches!(cli.action, Verb::Doctor(_) | Verb::Exec(_) | Verb::ShellFiles(_)) {
        open::refuse_memory(global)?;
    }
    match &cli.action {
        Verb::Run(run) => run::run(global, run),
        Verb::Elect(elect) => elect::elect(global, elect),
        Verb::Acquire(acquire) => lease::acquire(global, acquire),
        Verb::Renew(renew) => lease::renew(global, renew),
        Verb::Release(release) => lease::release(global, release),
        Verb::Show(show) => show::show(global, show),
        Verb::Ls(list) => ls::ls(global, list),
        Verb::Break(broken) => break_lock::break_lock(global, broken),
        Verb::History(history) => history::history(global, history),
        Verb::Why(why) => history::why(global, why),
        Verb::Top(top) => top::top(global, top),
        Verb::Semaphore(args) => semaphore::semaphore(global, args),
        Verb::Latch(action) => latch::latch(global, action),
        Verb::Doctor(doctor) => doctor::doctor(global, doctor),
        Verb::Init(init) => show::init(global, init),
        Verb::Demo(demo) => demo::demo(global, demo),
        Verb::DemoWorker(worker) => demo::worker::work(global, worker),
        Verb::Exec(exec) => process::become_command(exec),
        Verb::ShellFiles(to) => shell_files::write(to),
    }
}

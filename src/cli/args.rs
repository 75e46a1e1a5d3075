//! The command line of `dlm`. The grammar and the exit statuses are a contract: scripts depend on them.

mod common;
mod fleet;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use dlm::Mode;
use dlm::store::{MANAGER_OPTIONS, schemes};

pub(crate) use self::common::Reach;
use self::common::{duration, poll, retry, ttl, wait};
pub(crate) use self::fleet::{Break, HistoryArgs, LockArg, Ls, Top, Why};
use crate::cli::exit::{CommandFailure, UNAVAILABLE};
use crate::cli::hints;

const AFTER_HELP: &str = "\
Exit status:
  0      success
  64     wrong usage, or a name, store URI or lease that is not allowed
  66     the latch does not exist, or has expired
  69     the store cannot be reached, does not serve requests, or lacks its table (run `dlm init`)
  70     internal error, or standard output cannot be written
  73     the latch already exists
  74     in doubt: the request may or may not have taken effect
  75     another holder has the lock (run and acquire: -E sets another status), or the latch did
         not open in time
  77     the lease is lost: it expired, or another holder has acquired the lock since
  78     the store is not safe for locks (doctor)
  128+N  signal N ended a wait of `dlm`, or the demo
  `dlm run` exits with the status of its command: 128+N if signal N ended the command, 126 if the
  command cannot be executed, 127 if it is not found.

Stores:
  embedded:                           processes of one user on this machine (default); the files are
                                      in /var/tmp/dlm-<uid>
  embedded:/path                      the same, in another directory; with ?group=on for all users of
                                      the directory's group, who must trust each other
  hbase://master:16000/table          HBase, by its own protocol; create the table with `dlm init`
  hbase+thrift://host:9090/table      HBase, through a Thrift1 gateway
  aerospike://host:3000/namespace/setSuffix
                                      Aerospike
REGISTERED
  A store URI may end with options, as ?key=value&key=value:
OPTIONS

A TIME is a whole number and a unit: 500ms, 90s, 2m, 1h, 1d.
An option of the command line overrides its environment variable, and both override the store URI.
`dlm <COMMAND> --help` explains one command.

Examples:
  dlm demo
  dlm run nightly-report -- ./report.sh
  lease=$(dlm acquire --ttl 10m deploy) && ./deploy.sh; echo \"$lease\" | dlm release -
  dlm show deploy
  dlm ls --held
  dlm latch create regions-loaded 3 && dlm latch await regions-loaded";

const AFTER_RUN: &str = "\
Exit status:
  that of the command; 128+N if signal N ended it, 126 if it cannot be executed, 127 if it is not found
  75   another holder has the lock; the command did not run (-E sets another status)
  77   the lease was lost; a running command was ended
  See `dlm --help` for the others.

Example:
  dlm run --ttl 2m --wait 10m nightly-report -- ./report.sh";

const AFTER_ELECT: &str = "\
Exit status:
  that of the command; 128+N if signal N ended it, 126 if it cannot be executed, 127 if it is not found
  See `dlm --help` for the others.

Examples:
  dlm elect --ttl 15s scheduler -- ./scheduler
  dlm elect --observe scheduler";

const AFTER_ACQUIRE: &str = "\
Exit status:
  0    the lock is held, and its lease was printed
  75   another holder has the lock (-E sets another status)
  See `dlm --help` for the others.

Example:
  lease=$(dlm acquire --ttl 10m deploy) && ./deploy.sh; echo \"$lease\" | dlm release -";

const AFTER_RENEW: &str = "\
Exit status:
  77   the lease is lost: another holder has the lock, or the lease had ended
  See `dlm --help` for the others.

Example:
  echo \"$lease\" | dlm renew --ttl 20m -";

const AFTER_RELEASE: &str = "\
Exit status:
  77   the lease was lost before: another holder has the lock, or the lease had ended
  See `dlm --help` for the others.

Example:
  echo \"$lease\" | dlm release -";

const AFTER_SHOW: &str = "\
Exit status: see `dlm --help`.

Example:
  dlm show --json deploy";

const AFTER_DOCTOR: &str = "\
Exit status:
  0    no check failed
  78   a check failed, also if the store cannot be reached
  See `dlm --help` for the others.

Example:
  dlm --store hbase://master:16000/locks doctor";

const AFTER_SEMAPHORE: &str = "\
Exit status:
  66   --resize: the store knows no semaphore of this name
  See `dlm --help` for the others.

Examples:
  dlm run --permits 5 licences -- ./compile.sh
  dlm semaphore licences
  dlm semaphore --resize 8 licences";

const AFTER_LATCH: &str = "\
Exit status:
  66   the latch does not exist, or has expired
  73   create: the latch already exists
  75   await: the latch did not open in time
  See `dlm --help` for the others.

Example:
  dlm latch create regions-loaded --for eu --for us
  dlm latch down regions-loaded --as eu
  dlm latch await regions-loaded";

const AFTER_LATCH_CREATE: &str = "\
Exit status:
  73   the latch already exists
  See `dlm --help` for the others.

Examples:
  dlm latch create regions-loaded 3
  dlm latch create regions-loaded --for eu --for us";

const AFTER_LATCH_RESET: &str = "\
Exit status:
  66   the latch does not exist, or has expired
  74   in doubt: it may or may not have been reset
  See `dlm --help` for the others.

Examples:
  dlm latch reset regions-loaded 3
  dlm latch reset regions-loaded --for eu --for us";

const AFTER_LATCH_RM: &str = "\
Exit status:
  66   the latch does not exist, or has expired
  74   in doubt: it may or may not have been deleted
  See `dlm --help` for the others.

Example:
  dlm latch rm regions-loaded";

const AFTER_LATCH_LS: &str = "\
Exit status: see `dlm --help`.

Examples:
  dlm latch ls
  dlm latch ls --json import-";

const AFTER_LATCH_DOWN: &str = "\
Exit status:
  0    it counted, or WHO had counted before
  66   the latch does not exist, or has expired
  74   in doubt: it may or may not have counted
  See `dlm --help` for the others.

Example:
  dlm latch down regions-loaded --as eu";

const AFTER_LATCH_UP: &str = "\
Exit status:
  66   the latch does not exist, or has expired
  74   in doubt: it may or may not have counted
  See `dlm --help` for the others.

Example:
  dlm latch up regions-loaded";

const AFTER_LATCH_COUNT: &str = "\
Exit status:
  66   the latch does not exist, or has expired
  See `dlm --help` for the others.

Example:
  dlm latch count regions-loaded";

const AFTER_LATCH_PENDING: &str = "\
Exit status:
  66   the latch does not exist, or has expired
  See `dlm --help` for the others.

Example:
  dlm latch pending regions-loaded";

const AFTER_LATCH_AWAIT: &str = "\
Exit status:
  0    the latch is open
  66   the latch does not exist, or has expired
  69   the time is over, and the store did not answer
  75   the latch did not open in time
  See `dlm --help` for the others.

Example:
  dlm latch await --timeout 10m regions-loaded";

const AFTER_INIT: &str = "\
Exit status: see `dlm --help`.

Example:
  dlm --store hbase://master:16000/locks init --latches";

const AFTER_DEMO: &str = "\
Exit status:
  0      no overlap, and every fence was higher than the one before
  69     the store did not serve the processes
  70     an overlap, or a fence that did not rise
  128+N  ended by signal N
  See `dlm --help` for the others.

Example:
  dlm demo --workers 6 --locks 2 --seconds 10";

fn after_help() -> String {
    let (mut forms, mut options) = (String::new(), String::new());
    let mut stores = vec![("all", &MANAGER_OPTIONS[..])];
    for scheme in schemes() {
        // The tool refuses `memory:`, which no other process sees.
        if scheme.name() != "memory" && !AFTER_HELP.contains(&format!("\n  {}:", scheme.name())) {
            forms += &format!("  {}\n", scheme.form());
        }
        stores.push((scheme.name(), scheme.options()));
    }
    for (stores, known) in stores.into_iter().filter(|(_, known)| !known.is_empty()) {
        let mut line = format!("    {stores}: ");
        for option in known {
            if line.len() + option.key.len() > 95 {
                options.push_str(line.trim_end());
                options.push('\n');
                line = "      ".into();
            }
            line.push_str(option.key);
            line.push_str(", ");
        }
        options.push_str(line.trim_end_matches(", "));
        options.push('\n');
    }
    AFTER_HELP.replace("REGISTERED\n", &forms).replace("OPTIONS\n", &options)
}

/// Distributed locks and latches for processes of one machine or of many.
#[derive(Debug, Parser)]
#[command(name = "dlm", version, after_help = after_help(), disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) action: Verb,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// URI of the store; `dlm --help` lists the stores
    #[arg(long, value_name = "URI", env = "DLM_STORE", default_value = "embedded:", global = true)]
    pub(crate) store: String,
    /// Client id, part of every name: the service that uses the locks [default: dlm]
    #[arg(long, value_name = "ID", env = "DLM_CLIENT", global = true)]
    pub(crate) client: Option<String>,
    /// Farm id, part of the names of level dc and of latches: the data centre [default: local for
    /// embedded:, none for stores that machines share]
    #[arg(long, value_name = "ID", env = "DLM_FARM", global = true)]
    pub(crate) farm: Option<String>,
    /// Print one JSON object instead of text, also for an error; ls, history, elect --observe and doctor --report print
    /// one a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log more to standard error: -v info, -vv debug, -vvv trace [env: DLM_LOG=info, overrides -v]
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command while holding a lock
    ///
    /// Acquires the lock, runs the command, and releases the lock when the command ends. The lease is
    /// renewed meanwhile, so the command may run longer than the TTL.
    ///
    /// Environment variables for the command:
    ///   DLM_LOCK         NAME
    ///   DLM_FENCE        the fence, a number that grows with every grant; send it with each write that
    ///                    the lock guards; not set for readers, and if the store counts no fences
    ///   DLM_DEADLINE_MS  end of the lease that the command begins with, in milliseconds since 1970; `dlm`
    ///                    renews the lease, so this time is over in a long run
    ///   DLM_LOCK_2, DLM_FENCE_2 and so on  the other locks of --lock
    ///   DLM_PERMIT       with --permits, the number of the permit, from 0 on
    ///   DLM_HELD         what this `dlm` and those around it hold, for `dlm`s that the command starts
    ///
    /// If the lease cannot be renewed, the command gets TERM before the lease ends: a quarter of the TTL
    /// ahead, at most 15 s. The command and all processes that it started get KILL a tenth of the TTL
    /// ahead, at most 3 s. If the store reports that the lease is lost, KILL follows 0.5 s after TERM.
    /// If `dlm` itself is killed with -9, Linux kills the command at once, unless the command runs with
    /// another user's rights (sudo). Processes that it started then go on without the lock, which is
    /// free when its TTL ends. A pause of the whole machine defeats all this; only the fence helps then.
    ///
    /// With --shared, any number of commands run at one time, and none that holds the lock otherwise. With --update, one
    /// command runs beside those. Neither has a fence. With --permits N, at most N commands run at one time, and each
    /// has a permit with a number of its own.
    ///
    /// On embedded: an exclusive lock is free sooner, as soon as `dlm`, the command and all processes that it
    /// started have ended, in whatever way. They inherit a descriptor from which the kernel knows. A
    /// process that closes it, such as sudo, is not waited for: use --no-takeover then.
    ///
    /// `dlm` passes TERM, HUP, INT, QUIT, USR1 and USR2 on to the command. One of the first four also
    /// ends the wait for the lock. If one of them was passed on, `dlm` ends the processes that the
    /// command leaves running before it releases the lock: TERM, and KILL 5 s later. Otherwise `dlm`
    /// does not wait for background processes. Keys such as Ctrl-C reach the command directly. If the
    /// terminal is closed, HUP is passed on.
    #[command(verbatim_doc_comment, after_help = AFTER_RUN)]
    Run(RunArgs),
    /// Run a command while this process leads, or show who leads
    ///
    /// Of all processes that run this command with one NAME, one leads at a time: the holder of the lock
    /// NAME. The others wait without limit, also while the store does not answer. The leader runs the
    /// command as `dlm run` does. If it loses the lock, it ends the command and becomes a candidate again.
    /// If the command ends by itself, `dlm` ends with it, and another candidate leads.
    #[command(verbatim_doc_comment, after_help = AFTER_ELECT)]
    Elect(ElectArgs),
    /// Acquire a lock and print its lease, one line for `renew` and `release`
    ///
    /// The lock is held until it is released or its TTL ends. Any process that has the line can renew
    /// and release the lock: keep the line out of logs and process lists.
    #[command(verbatim_doc_comment, after_help = AFTER_ACQUIRE)]
    Acquire(AcquireArgs),
    /// Renew a lease: its TTL starts again now
    ///
    /// The lease line stays valid. Prints nothing without --json.
    #[command(verbatim_doc_comment, after_help = AFTER_RENEW)]
    Renew(Renew),
    /// Release a lock
    ///
    /// The lock of another holder is never released. Prints nothing without --json.
    #[command(verbatim_doc_comment, after_help = AFTER_RELEASE)]
    Release(ReleaseArgs),
    /// Show who holds a lock, since when, for how long, and its fence
    ///
    /// The exit status is 0 for a free lock as well: scripts read `held` of --json.
    #[command(verbatim_doc_comment, after_help = AFTER_SHOW)]
    Show(Show),
    /// List the locks of a store, of all clients
    ///
    /// One line for each lock, in no particular order: its full name and its holder. With --json one object
    /// a line. Without --held also free locks that the store still remembers. A lock that is held all the
    /// time is listed once; the list is no snapshot. Records without a name are those of Java in Aerospike.
    #[command(verbatim_doc_comment, after_help = fleet::AFTER_LS)]
    Ls(Ls),
    /// Take a lock from a holder that does not release it
    ///
    /// Shows the holder and asks. Breaks only the grant that was shown. The lock is free then, and its fence
    /// higher. Several readers may hold a lock: then --holder or --all says whose holds are broken, and the
    /// others keep theirs. The old holder may go on working until it renews or releases its lease: only receivers that
    /// compare fences are safe from it. Its error says who broke the lock and why, and so does `dlm history`.
    #[command(verbatim_doc_comment, after_help = fleet::AFTER_BREAK)]
    Break(Break),
    /// Print what happened to a lock, the newest last
    ///
    /// Holders write entries if their managers have the option history=TIME. Breaks are always recorded.
    #[command(verbatim_doc_comment, after_help = fleet::AFTER_HISTORY)]
    History(HistoryArgs),
    /// Show who holds a lock, and how long the last ten holds took
    ///
    /// The holds come from the history of the lock.
    #[command(verbatim_doc_comment, after_help = fleet::AFTER_WHY)]
    Why(Why),
    /// Show the held locks, those that end first at the top, again and again
    ///
    /// TTL shows how much of the lease is left, TURNS how often the lock was granted since the last screen.
    /// Ctrl-C ends it.
    #[command(verbatim_doc_comment, after_help = fleet::AFTER_TOP)]
    Top(Top),
    /// Check whether the store is safe for locks
    ///
    /// Checks the store's version, settings, clock and latency. Acquires, renews and releases one lock of
    /// its own. Takes several store timeouts at worst. Prints the store, and then a line for each check:
    ///   OK    nothing has to be done
    ///   WARN  locks work, but a promise is weaker than it could be; the line says what to do
    ///   FAIL  locks do not work, or do not keep their promises; the line says what to do
    #[command(verbatim_doc_comment, after_help = AFTER_DOCTOR)]
    Doctor(Doctor),
    /// Count down to zero together, and wait until the count is zero
    ///
    /// A latch is a count in the store. It is created with the number of count-downs that it needs, and is
    /// open when none is missing. It expires after its TTL, one day by default, which each change restarts.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH)]
    Latch(LatchAction),
    /// Show a semaphore: how many permits it has, and who holds them; or change the number
    ///
    /// `dlm run --permits` and `dlm acquire --permits` acquire a permit. If there are fewer permits than before, none is
    /// granted before those with higher numbers are free. A command that names another number of permits than the store
    /// knows is refused.
    #[command(verbatim_doc_comment, after_help = AFTER_SEMAPHORE)]
    Semaphore(SemaphoreArgs),
    /// Create what the store needs (on HBase its table), and check that the store answers
    ///
    /// Safe to repeat, and to run on several machines at once. Creating a table may take a minute.
    #[command(verbatim_doc_comment, after_help = AFTER_INIT)]
    Init(Init),
    /// Demonstrate locks: processes contend, and a picture shows who held which lock when
    ///
    /// Prints how many overlaps there were: grants of a lock that another process still held. There are
    /// none on a store that works. Ctrl-C ends the demo.
    #[command(verbatim_doc_comment, after_help = AFTER_DEMO)]
    Demo(Demo),
    #[command(name = "__demo-worker", hide = true)]
    DemoWorker(DemoWorker),
    #[command(name = "__exec", hide = true)]
    Exec(Exec),
    #[command(name = "__shell-files", hide = true)]
    ShellFiles(ShellFiles),
}

/// Writes manual pages and completions for packages.
#[derive(Debug, Args)]
pub(crate) struct ShellFiles {
    /// Folder that becomes /usr/share
    pub(crate) folder: PathBuf,
}

/// How to acquire a lock.
#[derive(Debug, Args)]
pub(crate) struct TermArgs {
    /// Whether the lock is for one data centre or for all
    #[arg(long, value_enum, default_value_t = Reach::Dc)]
    pub(crate) level: Reach,
    /// How long the lease lasts if it is not renewed, 1ms to 365d [default: 90s]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) ttl: Option<Duration>,
    /// How long to wait while another holder has the lock, or forever [default: 90s]
    #[arg(long, value_name = "TIME", value_parser = wait, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: try once
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Pause between two reads of the lock while waiting, 1ms to 1h [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = retry)]
    pub(crate) retry: Option<Duration>,
    /// Exit status if another holder has the lock
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = UNAVAILABLE)]
    pub(crate) unavailable_status: u8,
}

/// How a lock is held.
#[derive(Debug, Args)]
pub(crate) struct ModeArgs {
    /// Hold the lock as one of any number of readers
    #[arg(long, conflicts_with_all = ["update", "permits"])]
    pub(crate) shared: bool,
    /// Hold the lock beside readers, as the only one who does so
    #[arg(long, conflicts_with = "permits")]
    pub(crate) update: bool,
    /// Hold one permit of the semaphore NAME, which has N permits: 1 to 256
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) permits: Option<u16>,
}

impl ModeArgs {
    /// Returns the mode of a lock.
    pub(crate) fn mode(&self) -> Mode {
        match self {
            ModeArgs { shared: true, .. } => Mode::Shared,
            ModeArgs { update: true, .. } => Mode::Update,
            _ => Mode::Exclusive,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) terms: TermArgs,
    #[command(flatten)]
    pub(crate) how: ModeArgs,
    /// If `dlm` is killed, let others wait for the TTL (embedded: only). Needed if the command closes descriptors
    /// that it inherits, as sudo does
    #[arg(long)]
    pub(crate) no_takeover: bool,
    /// How long the lock stays held at least, at most the TTL: so a job that takes a second runs once, although the
    /// clocks of the machines that start it differ. `dlm` ends when that time is over. Implies --no-takeover
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,
    /// Name of a lock; repeat the option for each of several locks, which are acquired together
    #[arg(long = "lock", value_name = "NAME")]
    pub(crate) locks: Vec<String>,
    /// Name of the lock, 1 to 1024 bytes
    #[arg(required_unless_present = "locks")]
    pub(crate) name: Option<String>,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ElectArgs {
    /// Whether one process leads in each data centre or in all of them together
    #[arg(long, value_enum, default_value_t = Reach::Dc)]
    pub(crate) level: Reach,
    /// How long the lease lasts if it is not renewed, 100ms to 365d: after that time another process may lead
    /// if the leader dies [default: 90s]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) ttl: Option<Duration>,
    /// Pause between two reads of the lock, 1ms to 1h [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = retry)]
    pub(crate) retry: Option<Duration>,
    /// If `dlm` is killed, let others wait for the TTL (embedded: only). Needed if the command closes descriptors
    /// that it inherits, as sudo does
    #[arg(long)]
    pub(crate) no_takeover: bool,
    /// Print who leads, and a line for each change
    #[arg(long, conflicts_with = "command")]
    pub(crate) observe: bool,
    /// Name of the election, 1 to 1024 bytes
    pub(crate) name: String,
    /// The command and its arguments, after `--`
    #[arg(last = true, required_unless_present = "observe", value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) terms: TermArgs,
    #[command(flatten)]
    pub(crate) how: ModeArgs,
    /// Name of the lock, 1 to 1024 bytes
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// How long the lease lasts from now, 1ms to 365d [default: the TTL in LEASE]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) ttl: Option<Duration>,
    /// The line that `dlm acquire` printed; `-` reads it from standard input
    pub(crate) lease: String,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The line that `dlm acquire` printed; `-` reads it from standard input
    pub(crate) lease: String,
}

#[derive(Debug, Args)]
pub(crate) struct SemaphoreArgs {
    /// Whether the semaphore is for one data centre or for all
    #[arg(long, value_enum, default_value_t = Reach::Dc)]
    pub(crate) level: Reach,
    /// Change the number of permits: 1 to 256
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) resize: Option<u16>,
    /// Name of the semaphore, 1 to 1024 bytes
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) lock: LockArg,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print each promise, whether it holds with this store and these options, why, and the command that
    /// tests it
    #[arg(long)]
    pub(crate) report: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LatchAction {
    #[command(subcommand)]
    pub(crate) verb: LatchVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LatchVerb {
    /// Create a latch with a count, or with named participants
    ///
    /// The count belongs to the data centre of --farm. A latch that exists is not changed.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH_CREATE)]
    Create {
        #[command(flatten)]
        latch: LatchArg,
        /// How many count-downs open the latch, 0 to 2147483647
        #[arg(value_name = "N", required_unless_present = "participants", conflicts_with = "participants")]
        count: Option<i64>,
        /// Name of a participant who has to count down; repeat the option for each of them
        #[arg(long = "for", value_name = "WHO")]
        participants: Vec<String>,
        /// How long the latch lives after its last change, 1ms to 365d [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = ttl)]
        ttl: Option<Duration>,
    },
    /// Begin a latch anew, with a count or with named participants
    ///
    /// Whatever was counted before has no effect any more, and everybody may count again. Reset a latch when all have
    /// counted, and before anybody counts for the next time. Changes the count of the data centre of --farm.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH_RESET)]
    Reset {
        #[command(flatten)]
        latch: LatchArg,
        /// How many count-downs open the latch, 0 to 2147483647
        #[arg(value_name = "N", required_unless_present = "participants", conflicts_with = "participants")]
        count: Option<i64>,
        /// Name of a participant who has to count down; repeat the option for each of them
        #[arg(long = "for", value_name = "WHO")]
        participants: Vec<String>,
        /// How long the latch lives from now; use the TTL of `create` [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = ttl)]
        ttl: Option<Duration>,
    },
    /// Delete a latch
    ///
    /// Deletes the count of the data centre of --farm. Waits for the latch end with exit status 66 if no other data
    /// centre has a count, or if they wait at level dc.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH_RM)]
    Rm {
        #[command(flatten)]
        latch: LatchArg,
        /// The TTL of `create` [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = ttl)]
        ttl: Option<Duration>,
    },
    /// List the latches of this client, each with the counts of all data centres
    ///
    /// In no particular order.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH_LS)]
    Ls {
        /// How the names begin
        prefix: Option<String>,
    },
    /// Count a latch down by one
    ///
    /// Changes the count of the data centre of --farm. After exit status 74, repeat it only with --as.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH_DOWN)]
    Down {
        #[command(flatten)]
        latch: LatchArg,
        /// Name of the participant who counts down; each name counts once. If the latch was created with --for, it
        /// is one of those names
        #[arg(long = "as", value_name = "WHO")]
        participant: Option<String>,
        /// How long the latch lives from now; use the TTL of `create` [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = ttl)]
        ttl: Option<Duration>,
    },
    /// Count a latch up by one
    ///
    /// Changes the count of the data centre of --farm.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH_UP)]
    Up {
        #[command(flatten)]
        latch: LatchArg,
        /// How long the latch lives from now; use the TTL of `create` [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = ttl)]
        ttl: Option<Duration>,
    },
    /// Print how many count-downs are missing
    ///
    /// The latch is open at zero, and below zero if it was counted down too often.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH_COUNT)]
    Count {
        #[command(flatten)]
        latch: LatchArg,
    },
    /// Print the participants who have not counted down, one name a line
    ///
    /// Only those of the data centre of --farm. Prints nothing if none is missing.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH_PENDING)]
    Pending {
        #[command(flatten)]
        latch: LatchArg,
    },
    /// Wait until a latch is open
    ///
    /// Exits at once if it is open. Once the store has answered, the wait goes on while it cannot be reached.
    #[command(verbatim_doc_comment, after_help = AFTER_LATCH_AWAIT)]
    Await {
        #[command(flatten)]
        latch: LatchArg,
        /// How long to wait, such as 10m; then exit with 75 [default: until the latch opens or expires]
        #[arg(long, value_name = "TIME", value_parser = wait)]
        timeout: Option<Duration>,
        /// Wait also for a latch that does not exist yet, and not only until it is open
        #[arg(long)]
        until_created: bool,
        /// Longest pause between two reads of the latch, 10ms to 1h [default: 5s]
        #[arg(long, value_name = "TIME", value_parser = poll)]
        poll: Option<Duration>,
    },
}

/// Name and level of a latch.
#[derive(Debug, Args)]
pub(crate) struct LatchArg {
    /// Which count `count` and `await` read: of one data centre, or the sum over all
    #[arg(long, value_enum, default_value_t = Reach::Dc)]
    pub(crate) level: Reach,
    /// Name of the latch, 1 to 1024 bytes
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Also create what latches need (on HBase a table of their own); the first `latch create` does so, too
    #[arg(long)]
    pub(crate) latches: bool,
    /// How locks are kept, as the URI's option of this name: java, both or own (HBase)
    #[arg(long, value_name = "LAYOUT")]
    pub(crate) layout: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Number of processes, 1 to 26
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=26))]
    pub(crate) workers: u8,
    /// Number of locks, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) locks: u8,
    /// How long the processes contend, in seconds, 1 to 3600
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
    /// Grants for each process, 1 to 100000; then the demo ends, or after two minutes
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: Option<u32>,
}

/// Arguments of a worker process, which the demo starts.
#[derive(Debug, Args)]
pub(crate) struct DemoWorker {
    #[arg(long)]
    pub(crate) letter: char,
    #[arg(long)]
    pub(crate) locks: u8,
    #[arg(long)]
    pub(crate) seconds: u32,
    #[arg(long)]
    pub(crate) rounds: Option<u32>,
    /// The latch at which the workers meet.
    #[arg(long)]
    pub(crate) start: Option<String>,
}

/// Arguments of the process that becomes the command of `dlm run`.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    pub(crate) parent: i32,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Whether the command line asks for JSON, also if it cannot be read.
pub(crate) fn wants_json(args: impl Iterator<Item = OsString>) -> bool {
    args.take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// Parses the command line. `--help` and `--version` print and end the process here.
pub(crate) fn parse() -> Result<Cli, CommandFailure> {
    let args = hints::help_as_option(std::env::args_os().collect());
    Cli::try_parse_from(&args).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // To standard output, which may be closed.
            let _ = error.print();
            std::process::exit(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
            if args.len() < 2 =>
        {
            CommandFailure::usage("a command is missing; see `dlm --help`, or try `dlm demo`")
        }
        _ => {
            let args: Vec<_> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
            CommandFailure::usage(hints::in_words(&error, &Cli::command(), &args))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }
}

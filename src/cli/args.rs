//! What may be typed. The grammar and the exit statuses are a contract: scripts depend on them.

use std::ffi::OsString;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};

use dlm::STORE_OPTIONS;
use dlm::store::schemes;

use crate::cli::exit::{CommandFailure, UNAVAILABLE};

const AFTER_HELP: &str = "\
Exit status:
  0    done
  64   bad usage, or a name, store or lease that is not allowed
  66   there is no such latch
  69   the store cannot be reached, or does not serve
  70   internal error
  73   there is such a latch already
  74   in doubt: the request may or may not have been applied
  75   the lock is held by someone else (run and acquire: -E sets another); the latch is not open in
       time
  77   the lease is lost, or the lock is not ours
  78   the store does not do for locks (doctor)
  `dlm run` exits with the status of its command, 128 + N where signal N ended it, 126 if it
  cannot be executed, 127 if it is not found.

Stores:
  embedded:                           the processes of this machine and user, in /var/tmp/dlm-<uid> (default)
  embedded:/path                      the same, in a directory of your choice; with ?group=on for the
                                      users of its group, who must trust each other
  hbase://master:16000/table          HBase, spoken to directly; make the table with `dlm init`
  hbase+thrift://host:9090/table      HBase through its Thrift1 gateway
  aerospike://host:3000/namespace/setSuffix
                                      Aerospike
REGISTERED
  Options follow as ?key=value&...:
OPTIONS

Durations are a whole number and a unit: 500ms, 90s, 2m, 1h, 1d.

Examples:
  dlm demo
  dlm run nightly-report -- ./report.sh
  lease=$(dlm acquire --ttl 10m deploy) && ./deploy.sh; echo \"$lease\" | dlm release -
  dlm show deploy
  dlm latch create regions-loaded 3 && dlm latch await regions-loaded";

fn after_help() -> String {
    let (mut forms, mut options) = (String::new(), String::new());
    let mut stores: Vec<_> =
        STORE_OPTIONS.iter().map(|(stores, known)| ((*stores).to_owned(), *known)).collect();
    for scheme in schemes() {
        forms += &format!("  {}\n", scheme.form());
        stores.push((scheme.name().to_owned(), scheme.options()));
    }
    for (stores, known) in stores.iter().filter(|(_, known)| !known.is_empty()) {
        let mut line = format!("    {stores}: ");
        for option in *known {
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

/// Locks that processes of one machine, or of many, take in turn.
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
pub(crate) struct Global {
    /// Where the locks are kept
    #[arg(long, value_name = "URI", env = "DLM_STORE", default_value = "embedded:", global = true)]
    pub(crate) store: String,
    /// The service the locks belong to, part of every name [default: dlm]
    #[arg(long, value_name = "ID", env = "DLM_CLIENT", global = true)]
    pub(crate) client: Option<String>,
    /// The data centre, part of the names of level dc [default: local; none where the store is shared
    /// by machines]
    #[arg(long, value_name = "ID", env = "DLM_FARM", global = true)]
    pub(crate) farm: Option<String>,
    /// Print JSON, one object, in place of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Tell more of what goes on, on standard error; twice for debugging [env: DLM_LOG=info]
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command under a lock
    ///
    /// The lock is released when the command ends, and renewed until then, so that the command may run
    /// for longer than the TTL. The command finds in its environment DLM_LOCK (the name), DLM_FENCE (a
    /// number that grows with every grant: send it along with each write the lock guards) and
    /// DLM_DEADLINE_MS (when the lease ends if it is not renewed, in milliseconds since 1970).
    ///
    /// When the lease is lost, or cannot be renewed for so long that it is about to end, the command
    /// gets TERM, then it and all processes it started get KILL before another holder may begin; the
    /// exit status is 77. If `dlm` itself is killed with -9, Linux kills the command at once, unless
    /// that runs under another user's rights (sudo); processes it started go on without the lock, which
    /// is free when the TTL ends. A pause of the whole machine is beyond all this: that is what the
    /// fence is for.
    ///
    /// TERM, HUP, INT, QUIT, USR1 and USR2 sent to `dlm` are passed on to the command. If it ends after
    /// one of the first four, what it leaves running is ended as well before the lock is released.
    /// While `dlm` waits for the lock, they end the wait. Otherwise processes left in the background
    /// are not waited for.
    Run(RunArgs),
    /// Take a lock and print its lease, the line that renews and releases it from any process
    ///
    /// The lock stays taken until it is released, or the TTL ends. The line is as good as the lock:
    /// keep it out of logs and process lists.
    Acquire(AcquireArgs),
    /// Let a lease last for its TTL from now
    ///
    /// The line stays the same. Prints nothing but with --json.
    Renew(Renew),
    /// Give a lock back
    Release(ReleaseArgs),
    /// Tell who holds a lock, for how long, and its fence
    Show(Show),
    /// Look at the store: does it do for locks?
    ///
    /// Tells of its version, its settings, its clock and its speed, a line each: OK; WARN where locks work
    /// and promise less than they could; FAIL where they do not work. Behind it stands what to do. Takes
    /// and releases a lock of its own. The exit status is 78 if anything fails.
    Doctor,
    /// Count down together, and wait until all have come
    ///
    /// A latch is a count in the store. Whoever makes it says how many count-downs it takes; it is open
    /// when they have come. It is gone its TTL after its last change.
    Latch(LatchAction),
    /// Create what the store needs (the table), and check that it answers
    Init(Init),
    /// See it work: processes contend for a few locks, and you see who held which when
    Demo(Demo),
    #[command(name = "__demo-worker", hide = true)]
    DemoWorker(DemoWorker),
    #[command(name = "__exec", hide = true)]
    Exec(Exec),
}

/// How far a lock reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reach {
    /// One data centre: the farm is part of the lock's name
    Dc,
    /// All data centres that share the store
    Xdc,
}

/// On what terms a lock is taken.
#[derive(Debug, Args)]
pub(crate) struct TermArgs {
    /// How far the lock reaches
    #[arg(long, value_enum, default_value_t = Reach::Dc)]
    pub(crate) level: Reach,
    /// How long the lease lasts unless renewed [default: 90s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// How long to wait for the lock [default: 90s]
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Try once
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// How long to sleep between two looks at the lock [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) retry: Option<Duration>,
    /// Exit status when the lock is held by someone else
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = UNAVAILABLE)]
    pub(crate) unavailable_status: u8,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) terms: TermArgs,
    /// Name of the lock, 1 to 1024 bytes
    pub(crate) name: String,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) terms: TermArgs,
    /// Name of the lock, 1 to 1024 bytes
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// How long the lease lasts from now [default: as it was acquired]
    #[arg(long, value_name = "TIME", value_parser = duration)]
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
pub(crate) struct Show {
    /// How far the lock reaches
    #[arg(long, value_enum, default_value_t = Reach::Dc)]
    pub(crate) level: Reach,
    /// Name of the lock
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct LatchAction {
    #[command(subcommand)]
    pub(crate) verb: LatchVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LatchVerb {
    /// Make a latch: with a count, or for participants with names
    Create {
        #[command(flatten)]
        latch: LatchArg,
        /// How many count-downs open it
        #[arg(value_name = "N", required_unless_present = "participants", conflicts_with = "participants")]
        count: Option<i64>,
        /// Someone who is to count down, by name; to be given for each of them
        #[arg(long = "for", value_name = "WHO")]
        participants: Vec<String>,
        /// How long the latch lives after its last change [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Count down by one
    Down {
        #[command(flatten)]
        latch: LatchArg,
        /// In whose name: it counts once
        #[arg(long = "as", value_name = "WHO")]
        participant: Option<String>,
        /// How long the latch lives from now: as it was made with [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Count up by one
    Up {
        #[command(flatten)]
        latch: LatchArg,
        /// How long the latch lives from now: as it was made with [default: 1d]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Print how many count-downs are missing
    Count {
        #[command(flatten)]
        latch: LatchArg,
    },
    /// Print the names of those who have not counted down, a line for each
    Pending {
        #[command(flatten)]
        latch: LatchArg,
    },
    /// Wait until the latch is open
    Await {
        #[command(flatten)]
        latch: LatchArg,
        /// For how long at the most; then the exit status is 75 [default: until it is open or gone]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        timeout: Option<Duration>,
        /// The longest pause between two looks at it [default: 5s]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        poll: Option<Duration>,
    },
}

/// Which latch.
#[derive(Debug, Args)]
pub(crate) struct LatchArg {
    /// Whether the count of one data centre is read, or the sum over all that share the store
    #[arg(long, value_enum, default_value_t = Reach::Dc)]
    pub(crate) level: Reach,
    /// Name of the latch, 1 to 1024 bytes
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Also what latches need (a table of their own); making the first latch does it, too
    #[arg(long)]
    pub(crate) latches: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Processes that contend
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=26))]
    pub(crate) workers: u8,
    /// Locks they contend for
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) locks: u8,
    /// For how long
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
    /// Until each process was granted so many locks, for two minutes at the most
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: Option<u32>,
}

/// One process of the demo, which started it.
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

/// The process that becomes the command of `dlm run`.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    pub(crate) parent: i32,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// The command line, or why not. Help and version are printed here and end the process.
pub(crate) fn parse() -> Result<Cli, CommandFailure> {
    Cli::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // To standard output, which may be closed.
            let _ = error.print();
            std::process::exit(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            CommandFailure::usage("what to do? `dlm --help` tells, `dlm demo` shows")
        }
        _ => CommandFailure::usage(in_short(&error.to_string())),
    })
}

/// What clap says over several paragraphs, without the usage and with a hint where to find it.
fn in_short(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let paragraphs = text.split("\n\n").filter(|paragraph| {
        !paragraph.starts_with("Usage:") && !paragraph.starts_with("For more information")
    });
    let mut parts: Vec<String> =
        paragraphs.map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    parts.retain(|part| !part.is_empty());
    parts.push("see `dlm --help`".into());
    parts.join("; ")
}

/// A duration, refused with what is allowed.
fn duration(text: &str) -> Result<Duration, String> {
    dlm::parse_duration("duration", text).map_err(|error| match error {
        dlm::Error::InvalidArgument { allowed, .. } => allowed,
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_usage_error_is_one_line_with_the_tip_and_without_the_usage() {
        let text = "error: unrecognized subcommand 'rnu'\n\n  tip: a similar subcommand exists: 'run'\n\n\
                    Usage: dlm [OPTIONS] <COMMAND>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            in_short(text),
            "unrecognized subcommand 'rnu'; tip: a similar subcommand exists: 'run'; see `dlm --help`"
        );
    }
}

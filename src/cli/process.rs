//! The command of `dlm run`, and all processes that it started.
//!
//! On Linux this process is the subreaper of its descendants: a descendant whose parent has ended becomes
//! its child. So every descendant stays within reach, also what a shell started in the background.
//!
//! Only the main thread waits for processes and signals them. So the id of a child that is signalled cannot have been
//! reused yet. Other descendants are signalled by a descriptor, so that none is taken for a process that had its id before.
//!
//! Process ids are numbers of a PID namespace. In a container, `/proc` may be that of another namespace, whose numbers mean
//! other processes here. Such a `/proc` is not read: see [`descendants`].

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpgid, getpgrp, getpid,
    getsid, kill_process, pidfd_open, pidfd_send_signal, wait, waitid,
};

use crate::cli::args::{self, Exec};
use crate::cli::exit::{CommandFailure, CommandOutcome, NOT_EXECUTABLE, NOT_FOUND, of_signal};

/// The command, while it runs and after it has ended.
#[derive(Debug)]
pub(crate) struct Command {
    pid: Pid,
    status: Option<WaitStatus>,
    /// The log says that processes cannot be found.
    is_warned: Cell<bool>,
}

impl Command {
    /// Starts `argv`. Sets `variables` in its environment, and removes those without a value. It inherits the descriptors
    /// `inherited`.
    ///
    /// The new process runs [`become_command`] first. If `argv` cannot be executed, its exit status says so.
    pub(crate) fn start(
        argv: &[OsString],
        variables: &[(String, Option<String>)],
        inherited: &[OwnedFd],
    ) -> Result<Command, CommandFailure> {
        adopt_orphans();
        let mut command = std::process::Command::new(this_program()?);
        // Its errors are objects, too.
        command.args(args::wants_json(std::env::args_os()).then_some("--json"));
        command.arg("__exec").arg(std::process::id().to_string()).arg("--").args(argv);
        for (key, value) in variables {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        let failed = |what: &dyn std::fmt::Display| {
            CommandFailure::internal(format!("no process can be started for the command: {what}"))
        };
        for inherited in inherited {
            // No other process is started from here on. These copies are closed when the command has its own.
            fcntl_setfd(inherited, FdFlags::empty()).map_err(|error| failed(&error))?;
        }
        // Only the id is kept: `reap` waits for it, together with the orphans.
        let child = command.spawn().map_err(|error| failed(&error))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Command {
            pid: pid.ok_or_else(|| failed(&"it has an invalid process id"))?,
            status: None,
            is_warned: Cell::new(false),
        })
    }

    /// Waits for every child that has ended, without blocking. Keeps the status of the command.
    pub(crate) fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.pid && (status.exited() || status.signaled()) {
                self.status = Some(status);
            }
        }
    }

    /// Returns the exit status of the command, as shells count it, once the command has ended.
    pub(crate) fn status(&self) -> Option<u8> {
        let status = self.status?;
        let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
        code.or_else(|| status.terminating_signal().map(of_signal))
    }

    /// Sends `signal` to the command, unless the command has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            send(self.pid, signal, || true);
        }
    }

    /// Whether the kernel has sent `signal` to the command as well, if it has sent it to this process.
    ///
    /// The signal of a key goes to all processes of the terminal's foreground job. HUP for a terminal that was closed goes to
    /// the leader of the session alone, and when the leader has ended, to the foreground job.
    pub(crate) fn has_got(&self, signal: Signal) -> bool {
        let is_in_our_job = getpgid(Some(self.pid)).is_ok_and(|job| job == getpgrp());
        match signal {
            Signal::INT | Signal::QUIT => is_in_our_job,
            Signal::HUP => is_in_our_job && getsid(None).is_ok_and(|leader| leader != getpid()),
            _ => false,
        }
    }

    /// Sends `signal` to the command and to all processes that it started. Without `/proc`, only to the command.
    pub(crate) fn signal_all(&self, signal: Signal) {
        let Some(found) = descendants() else {
            self.signal(signal);
            if self.status.is_some() && has_children() && !self.is_warned.replace(true) {
                log::warn!(
                    "processes that the command has left running cannot be found, so they get no signal: /proc does \
                     not show the processes of this PID namespace"
                );
            }
            return;
        };
        for process in found {
            send(process.pid, signal, || stat(process.pid).is_some_and(|now| now.started == process.started));
        }
    }

    /// Returns whether the command or a process that it started is running.
    pub(crate) fn is_any_alive(&self) -> bool {
        // What has lost its parent is a child of this process.
        descendants().map_or_else(has_children, |found| !found.is_empty())
    }
}

/// Whether this process has a child, also one that has ended and was not waited for.
fn has_children() -> bool {
    let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, looks).err() != Some(Errno::CHILD)
}

/// Sends `signal` to the process that has the id now, if `is_it`.
fn send(pid: Pid, signal: Signal, is_it: impl Fn() -> bool) {
    // The descriptor means this process for ever. So the answer holds until the signal is sent.
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return,
        // An older kernel has none, and a filter of system calls may refuse it.
        handle => handle.ok(),
    };
    if !is_it() {
        return;
    }
    let sent = match &handle {
        Some(handle) => pidfd_send_signal(handle, signal),
        None => kill_process(pid, signal),
    };
    match sent {
        // It has ended meanwhile.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => {
            log::warn!("signal {} cannot be sent to process {}: {error}", signal.as_raw(), pid.as_raw_pid())
        }
    }
}

#[cfg(target_os = "linux")]
fn adopt_orphans() {
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        log::info!("processes that the command leaves running cannot be ended: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() {}

/// A process that is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Running {
    pid: Pid,
    parent: i32,
    /// When it was started. Of two processes that had one id, the second was started later.
    started: u64,
}

/// Whether a process has several numbers in this `/proc`: one in its own PID namespace, and others in outer ones.
fn is_nested(status: &str) -> bool {
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
}

/// Returns all running descendants of this process, parents first. `None` without a Linux `/proc` of this PID namespace.
fn descendants() -> Option<Vec<Running>> {
    let this: i32 = rustix::process::getpid().as_raw_pid();
    // In a `/proc` of an outer namespace, this process has another number, or the same one by chance. In any other one, it
    // has none.
    let listed = std::fs::read_link("/proc/self").ok()?.to_str()?.parse();
    if listed != Ok(this) || is_nested("/proc/self/status") {
        return None;
    }
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        processes.extend(pid.and_then(stat));
    }
    // A Linux /proc lists this process at least.
    let mut found = vec![*processes.iter().find(|process| process.pid.as_raw_pid() == this)?];
    let mut seen = 0;
    while let Some(parent) = found.get(seen).map(|process| process.pid.as_raw_pid()) {
        seen += 1;
        let is_child = |process: &&Running| process.parent == parent && process.pid.as_raw_pid() != parent;
        found.extend(processes.iter().filter(is_child));
    }
    found.remove(0);
    Some(found)
}

/// Reads `/proc/<pid>/stat`. `None` for a process that has ended.
fn stat(pid: Pid) -> Option<Running> {
    running(pid, &std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
}

/// Reads a line of `/proc/<pid>/stat`. `None` for a zombie. The second field is a name in brackets that may contain
/// anything.
fn running(pid: Pid, stat: &str) -> Option<Running> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if let "Z" | "X" = fields.next()? {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    // The 22nd field of all.
    let started = fields.nth(17)?.parse().ok()?;
    Some(Running { pid, parent, started })
}

/// Returns the path of this program. On Linux it is valid also if the program's file was replaced meanwhile.
fn this_program() -> Result<std::path::PathBuf, CommandFailure> {
    const SELF: &str = "/proc/self/exe";
    if std::path::Path::new(SELF).exists() {
        return Ok(SELF.into());
    }
    // Without a `/proc` that shows this process. A name without a slash is looked up in PATH, as it was before.
    if cfg!(target_os = "linux")
        && let Some(name) = std::env::args_os().next()
    {
        return Ok(name.into());
    }
    std::env::current_exe()
        .map_err(|error| CommandFailure::internal(format!("the path of this program is unknown: {error}")))
}

/// `dlm __exec`: executes the command in this process. First makes sure that it cannot outlive `dlm run`.
pub(crate) fn become_command(args: &Exec) -> CommandOutcome {
    die_with_parent(args.parent)?;
    let (program, rest) =
        args.command.split_first().ok_or_else(|| CommandFailure::internal("the command is missing"))?;
    let error = std::process::Command::new(program).args(rest).exec();
    Err(cannot_run(program, &error))
}

#[cfg(target_os = "linux")]
fn die_with_parent(parent: i32) -> Result<(), CommandFailure> {
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    set.map_err(|error| CommandFailure::internal(format!("the parent death signal cannot be set: {error}")))?;
    // `dlm run` may have been killed before that call.
    if rustix::process::getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(CommandFailure::internal("dlm was killed before it could start the command"))
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_parent: i32) -> Result<(), CommandFailure> {
    Ok(())
}

fn cannot_run(program: &OsString, error: &io::Error) -> CommandFailure {
    if error.kind() == ErrorKind::NotFound {
        return CommandFailure::new(
            NOT_FOUND,
            format!("command {program:?} is not found; check its name and PATH"),
        );
    }
    CommandFailure::new(
        NOT_EXECUTABLE,
        format!("command {program:?} cannot be executed: {error}; check that it is a program"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_numbers_is_in_a_nested_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        for (text, expected) in
            [("Name:\tx\nNSpid:\t5\n", false), ("NSpid:\t77\t5\n", true), ("Pid:\t5\n", false)]
        {
            std::fs::write(&path, text).unwrap();
            assert_eq!(is_nested(path.to_str().unwrap()), expected, "{text:?}");
        }
        assert!(!is_nested("/nowhere"));
    }

    #[test]
    fn a_process_name_cannot_pass_itself_off_as_another_parent() {
        let pid = Pid::from_raw(42).unwrap();
        let rest = "7 42 42 0 -1 4194560 124 0 0 0 1 2 3 4 20 0 1 0 8812 5 6";
        let found = running(pid, &format!("42 (a) S 1) S {rest}"));
        assert_eq!(found, Some(Running { pid, parent: 7, started: 8812 }));
        assert_eq!(running(pid, &format!("42 (sleep) Z {rest}")), None);
        assert_eq!(running(pid, ""), None);
    }

    #[test]
    fn a_process_that_has_the_id_of_another_gets_no_signal() {
        let mut child = std::process::Command::new("sleep").arg("300").spawn().unwrap();
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
        let now = descendants().unwrap().into_iter().find(|process| process.pid == pid).unwrap();
        assert_eq!(stat(pid), Some(now));
        send(pid, Signal::KILL, || stat(pid).is_some_and(|it| it.started == now.started + 1));
        // It would be over by now.
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none());
        send(pid, Signal::KILL, || stat(pid).is_some_and(|it| it.started == now.started));
        assert!(!child.wait().unwrap().success());
        // It has ended and is waited for.
        send(pid, Signal::KILL, || true);
    }
}

//! The command of `dlm run`, and all processes that it started.
//!
//! On Linux this process is the subreaper of its descendants: a descendant whose parent has ended becomes
//! its child. So every descendant stays within reach, also what a shell started in the background.
//!
//! Only the main thread waits for processes and signals them. So a process id that is signalled cannot have been
//! reused yet.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

use crate::cli::args::Exec;
use crate::cli::exit::{CommandFailure, CommandOutcome, NOT_EXECUTABLE, NOT_FOUND, of_signal};

/// The command, while it runs and after it has ended.
#[derive(Debug)]
pub(crate) struct Command {
    pid: Pid,
    status: Option<WaitStatus>,
}

impl Command {
    /// Starts `argv`. Sets `variables` in its environment, and removes those without a value. It inherits the descriptor
    /// `inherited`.
    ///
    /// The new process runs [`become_command`] first. If `argv` cannot be executed, its exit status says so.
    pub(crate) fn start(
        argv: &[OsString],
        variables: &[(&str, Option<String>)],
        inherited: Option<OwnedFd>,
    ) -> Result<Command, CommandFailure> {
        adopt_orphans();
        let mut command = std::process::Command::new(this_program()?);
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
        if let Some(inherited) = &inherited {
            // No other process is started from here on. This copy is closed when the command has its own.
            fcntl_setfd(inherited, FdFlags::empty()).map_err(|error| failed(&error))?;
        }
        // Only the id is kept: `reap` waits for it, together with the orphans.
        let child = command.spawn().map_err(|error| failed(&error))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Command { pid: pid.ok_or_else(|| failed(&"it has an invalid process id"))?, status: None })
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
            send(self.pid, signal);
        }
    }

    /// Sends `signal` to the command and to all processes that it started.
    pub(crate) fn signal_all(&self, signal: Signal) {
        for pid in self.alive() {
            send(pid, signal);
        }
    }

    /// Returns the running processes among the command and all that it started.
    pub(crate) fn alive(&self) -> Vec<Pid> {
        match descendants() {
            Some(found) => found,
            None => self.status.is_none().then_some(self.pid).into_iter().collect(),
        }
    }
}

fn send(pid: Pid, signal: Signal) {
    match kill_process(pid, signal) {
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

/// Returns all running descendants of this process, parents first. `None` without a Linux `/proc`.
fn descendants() -> Option<Vec<Pid>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // A process that has ended meanwhile has no file.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        processes.extend(parent_of_running(&stat).map(|parent| (pid, parent)));
    }
    // A Linux /proc lists this process at least.
    let this: i32 = rustix::process::getpid().as_raw_pid();
    processes.iter().find(|(pid, _)| *pid == this)?;
    let mut found: Vec<i32> = vec![this];
    let mut seen = 0;
    while let Some(&parent) = found.get(seen) {
        seen += 1;
        found.extend(
            processes.iter().filter(|(pid, of)| *of == parent && *pid != parent).map(|(pid, _)| *pid),
        );
    }
    Some(found.into_iter().skip(1).filter_map(Pid::from_raw).collect())
}

/// Returns the parent's id from a line of `/proc/<pid>/stat`, or `None` for a zombie. The second field is a name in
/// brackets that may contain anything.
fn parent_of_running(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

/// Returns the path of this program. On Linux it is valid also if the program's file was replaced meanwhile.
fn this_program() -> Result<std::path::PathBuf, CommandFailure> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
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
    fn a_process_name_cannot_pass_itself_off_as_another_parent() {
        assert_eq!(parent_of_running("42 (a) S 1) S 7 42 42 0 -1"), Some(7));
        assert_eq!(parent_of_running("42 (sleep) Z 7 42 42 0 -1"), None);
        assert_eq!(parent_of_running(""), None);
    }
}

//! The command that runs under a lock, and all processes it started.
//!
//! On Linux this process makes itself the reaper of its descendants: one whose parent has ended
//! becomes our child. So none of them gets out of reach, and killing "the command" does not leave
//! behind what a shell had started for it.
//!
//! All of it happens in the main thread, so a process id that is signalled is one not yet waited for.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

use crate::cli::args::Exec;
use crate::cli::exit::{CommandFailure, CommandOutcome, NOT_EXECUTABLE, NOT_FOUND, of_signal};

/// The command while it runs, and after.
#[derive(Debug)]
pub(crate) struct Command {
    pid: Pid,
    status: Option<WaitStatus>,
}

impl Command {
    /// Starts `argv` with these variables set, or removed where there is no value.
    ///
    /// It is started by way of [`become_command`], so whether `argv` can be run shows in its status.
    pub(crate) fn start(
        argv: &[OsString],
        variables: &[(&str, Option<String>)],
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
            CommandFailure::internal(format!("no process for the command: {what}"))
        };
        // Only its id is kept: it is waited for below, together with the orphans.
        let child = command.spawn().map_err(|error| failed(&error))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Command { pid: pid.ok_or_else(|| failed(&"its id makes no sense"))?, status: None })
    }

    /// Takes note of every process that has ended.
    pub(crate) fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.pid && (status.exited() || status.signaled()) {
                self.status = Some(status);
            }
        }
    }

    /// Exit status of the command as shells count, once it has ended.
    pub(crate) fn status(&self) -> Option<u8> {
        let status = self.status?;
        let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
        code.or_else(|| status.terminating_signal().map(of_signal))
    }

    /// Sends it to the command, unless that has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            send(self.pid, signal);
        }
    }

    /// Sends it to the command and all it started.
    pub(crate) fn signal_all(&self, signal: Signal) {
        for pid in self.alive() {
            send(pid, signal);
        }
    }

    /// The command and all it started, as far as they run.
    pub(crate) fn alive(&self) -> Vec<Pid> {
        match descendants() {
            Some(found) => found,
            None => self.status.is_none().then_some(self.pid).into_iter().collect(),
        }
    }
}

fn send(pid: Pid, signal: Signal) {
    match kill_process(pid, signal) {
        // It has ended on its own.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => {
            log::warn!("process {} cannot be sent signal {}: {error}", pid.as_raw_pid(), signal.as_raw())
        }
    }
}

#[cfg(target_os = "linux")]
fn adopt_orphans() {
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        log::info!("processes that the command leaves behind cannot be ended with it: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() {}

/// All running descendants of this process, parents first; `None` where the system does not tell.
fn descendants() -> Option<Vec<Pid>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // One that has ended meanwhile has no file any more.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        processes.extend(parent_of_running(&stat).map(|parent| (pid, parent)));
    }
    // Someone must be there, us: else this is not the /proc of Linux.
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

/// The parent's id in a line of `/proc/<pid>/stat`, unless the process has ended and only waits to be
/// waited for. The second field is a name in brackets that may contain anything.
fn parent_of_running(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

/// This very program, also when its file was replaced meanwhile.
fn this_program() -> Result<std::path::PathBuf, CommandFailure> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe()
        .map_err(|error| CommandFailure::internal(format!("this program's file is not known: {error}")))
}

/// `dlm __exec`: becomes the command, after seeing to it that it does not outlive `dlm run`.
pub(crate) fn become_command(args: &Exec) -> CommandOutcome {
    die_with_parent(args.parent)?;
    let (program, rest) =
        args.command.split_first().ok_or_else(|| CommandFailure::internal("no command was handed on"))?;
    let error = std::process::Command::new(program).args(rest).exec();
    Err(cannot_run(program, &error))
}

#[cfg(target_os = "linux")]
fn die_with_parent(parent: i32) -> Result<(), CommandFailure> {
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    set.map_err(|error| CommandFailure::internal(format!("the command cannot be tied to dlm: {error}")))?;
    // It may have been killed before that.
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
        format!("command {program:?} cannot be run: {error}; check that it is a program"),
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

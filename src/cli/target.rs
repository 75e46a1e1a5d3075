//! What a command acquires: a lock in a mode, several locks together, or a permit of a semaphore.

use std::time::Duration;

use dlm::{AcquireOptions, Holder, Lock, LockManager, LockName, Mode, Semaphore};

use crate::cli::args::{Global, ModeArgs, Reach};
use crate::cli::around::Around;
use crate::cli::exit::CommandFailure;
use crate::cli::held::CommandLocks;
use crate::cli::late_line::LateLine;
use crate::cli::{open, waiting};

pub(crate) enum CommandTarget {
    Locks(Vec<Lock>),
    Permit(Semaphore),
}

impl CommandTarget {
    /// Returns what the command line names. No I/O.
    pub(crate) fn of(
        manager: &LockManager,
        global: &Global,
        reach: Reach,
        names: &[&String],
        how: &ModeArgs,
    ) -> Result<CommandTarget, CommandFailure> {
        if let Some(permits) = how.permits {
            let [name] = names else {
                return Err(CommandFailure::usage("--permits is for one semaphore: leave --lock out"));
            };
            return Ok(CommandTarget::Permit(open::own_semaphore(manager, global, reach, name, permits)?));
        }
        let lock = |name: &&String| {
            let lock = open::own_lock(manager, global, reach, name)?;
            Ok(match how.mode() {
                Mode::Shared => lock.shared(),
                Mode::Update => lock.update(),
                _ => lock,
            })
        };
        Ok(CommandTarget::Locks(names.iter().map(lock).collect::<Result<_, CommandFailure>>()?))
    }

    /// Whether others may have it as soon as all processes of its holder have died. The library offers that for exclusive
    /// locks.
    pub(crate) fn may_die_with_process(&self) -> bool {
        match self {
            CommandTarget::Locks(locks) => locks.iter().all(|lock| lock.mode() == Mode::Exclusive),
            CommandTarget::Permit(_) => false,
        }
    }

    pub(crate) fn acquire(
        &self,
        manager: &LockManager,
        options: &AcquireOptions,
    ) -> dlm::Result<CommandLocks> {
        match self {
            CommandTarget::Permit(semaphore) => semaphore.acquire_with(1, options).map(CommandLocks::Several),
            CommandTarget::Locks(locks) => match &locks[..] {
                [lock] => lock.acquire_with(options).map(CommandLocks::One),
                locks => {
                    let locks: Vec<_> = locks.iter().collect();
                    manager.acquire_all(&locks, options).map(CommandLocks::Several)
                }
            },
        }
    }

    /// Returns a line for a terminal, which is shown if the wait takes long.
    pub(crate) fn note(&self, wait: Option<Duration>) -> Option<LateLine> {
        match self {
            CommandTarget::Locks(locks) => waiting::for_locks(locks, wait),
            CommandTarget::Permit(semaphore) => waiting::for_permit(semaphore.clone(), wait),
        }
    }

    /// Returns the message for something that a command around this one holds, so that this one would wait for itself. Reads the
    /// store only if a command around this one says that it holds the same.
    pub(crate) fn held_around(&self, store: &str, around: &[Around]) -> dlm::Result<Option<String>> {
        let of = |name: &LockName| -> Vec<&Around> {
            around.iter().filter(|it| it.store == store && it.name == name.key()).collect()
        };
        let found = match self {
            CommandTarget::Permit(semaphore) => {
                around_permit(semaphore, &of(semaphore.name()))?.map(|holder| (semaphore.name(), holder))
            }
            CommandTarget::Locks(locks) => {
                let first = |lock: &Lock| around_lock(lock, &of(lock.name())).transpose();
                let mut found = locks.iter().filter_map(|lock| Some((lock.name(), first(lock)?)));
                found.next().map(|(name, holder)| holder.map(|holder| (name, holder))).transpose()?
            }
        };
        Ok(found.map(|(name, holder)| {
            format!("{name} is held by {holder}; its holder is the `dlm` that runs this command, so it waits for itself")
        }))
    }
}

/// Returns the holder in the way of this lock that is one of `around`.
fn around_lock(lock: &Lock, around: &[&Around]) -> dlm::Result<Option<Holder>> {
    let holders = if around.is_empty() { Vec::new() } else { lock.holders()? };
    let in_the_way = |it: &Holder| is_one_of(around, it) && !lock.mode().is_compatible_with(it.mode);
    Ok(holders.into_iter().find(in_the_way))
}

/// Returns a holder of the semaphore if all its permits are held by those in `around`.
fn around_permit(semaphore: &Semaphore, around: &[&Around]) -> dlm::Result<Option<Holder>> {
    // Another number of permits is refused with a reason of its own.
    if around.is_empty() || semaphore.size()? != Some(semaphore.permits()) {
        return Ok(None);
    }
    let holders = semaphore.holders()?;
    let are_all = holders.len() >= usize::from(semaphore.permits())
        && holders.iter().all(|holder| is_one_of(around, holder));
    Ok(holders.into_iter().next().filter(|_| are_all))
}

fn is_one_of(around: &[&Around], holder: &Holder) -> bool {
    around.iter().any(|it| it.is(holder))
}

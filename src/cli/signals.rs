//! Catches signals sent to this process, and turns them into messages in a channel.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use dlm::{CancelToken, Deadline};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::backend::Handle;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::cli::exit::{CommandFailure, of_signal};

/// Signals that ask a process to end.
pub(crate) const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// Makes every command end by the signals that ask it to, also if whatever started this process has blocked them. Makes a
/// write to a file that may not grow (`ulimit -f`) an error instead of the end of this process. Changes nothing for signals
/// that are ignored. Programs that this process executes do not inherit it.
pub(crate) fn prepare() -> Result<(), CommandFailure> {
    let ignored = ignored();
    let is_ignored = |number: i32| ignored & (1 << (number - 1)) != 0;
    let ending: Vec<i32> = ENDING.into_iter().filter(|number| !is_ignored(*number)).collect();
    dlm::__receive_signals_after(&ending, || ());
    if !is_ignored(SIGXFSZ) {
        // A handler and not SIG_IGN, which the command of `dlm run` would inherit.
        signal_hook::flag::register(SIGXFSZ, Arc::default())
            .map_err(|error| CommandFailure::internal(format!("signals cannot be caught: {error}")))?;
    }
    Ok(())
}

/// One signal that was received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedSignal {
    pub(crate) number: i32,
    /// The kernel sent the signal, as for a key like Ctrl-C or when the terminal was closed. A child may have received
    /// it as well.
    pub(crate) from_kernel: bool,
}

impl ReceivedSignal {
    pub(crate) fn is_ending(self) -> bool {
        ENDING.contains(&self.number)
    }
}

/// Catches signals until it is dropped. Its thread, `dlm-signals`, puts them in a channel.
#[derive(Debug)]
pub(crate) struct Signals {
    received: Receiver<ReceivedSignal>,
    /// The first signal that asks to end cancels this token, which ends the wait for a lock or a latch.
    pub(crate) cancel: CancelToken,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Before which a signal ends a command that waits for a lock: see [`Signals::ended_by`].
pub(crate) const NOT_USED: &str = "the lock was used; nothing is held";

impl Signals {
    /// Catches the signals `numbers`, except those that were ignored when this process started. `nohup` and a shell's
    /// `&` want those to stay ignored, here and in the command of `dlm run`.
    pub(crate) fn catch(numbers: &[i32]) -> Result<Signals, CommandFailure> {
        let ignored = ignored();
        let wanted = |number: &i32| *number == SIGCHLD || ignored & (1 << (number - 1)) == 0;
        let numbers: Vec<i32> = numbers.iter().copied().filter(wanted).collect();
        let failed =
            |error: std::io::Error| CommandFailure::internal(format!("signals cannot be caught: {error}"));
        // Whatever started this process may have blocked them. The threads and the command of this process inherit that.
        // `signal_hook` installs its handler before it knows what that has to do: a signal between the two would be lost.
        let source = dlm::__receive_signals_after(&numbers, || SignalsInfo::<WithOrigin>::new(&numbers));
        let mut source = source.map_err(failed)?;
        let (sender, received) = unbounded();
        let (handle, cancel) = (source.handle(), CancelToken::new());
        let token = cancel.clone();
        let thread = std::thread::Builder::new()
            .name("dlm-signals".into())
            .spawn(move || hand_on(&mut source, &sender, &token))
            .map_err(failed)?;
        Ok(Signals { received, cancel, handle, thread: Some(thread) })
    }

    /// Returns the channel of received signals, in order of arrival.
    pub(crate) fn received(&self) -> &Receiver<ReceivedSignal> {
        &self.received
    }

    /// Sleeps for `time`, or until a signal asks to end, which stays in the channel.
    pub(crate) fn pause(&self, time: Duration) {
        let by = Deadline::after(time);
        while !self.cancel.is_cancelled() && !by.passed() {
            std::thread::sleep(by.remaining().min(Duration::from_millis(20)));
        }
    }

    /// Returns the first signal in the channel that asks to end. Removes the signals before it.
    pub(crate) fn ending(&self) -> Option<i32> {
        self.received.try_iter().find(|signal| signal.is_ending()).map(|signal| signal.number)
    }

    /// Builds the failure for `signal`, which came before `what`.
    pub(crate) fn ended_by(signal: i32, what: &str) -> CommandFailure {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        CommandFailure::new(of_signal(signal), format!("ended by {name} before {what}"))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // The thread has printed its own panic.
            let _ = thread.join();
        }
    }
}

/// Runs in the thread. Returns when the handle is closed.
fn hand_on(source: &mut SignalsInfo<WithOrigin>, to: &Sender<ReceivedSignal>, cancel: &CancelToken) {
    for Origin { signal, cause, .. } in source.forever() {
        let signal = ReceivedSignal { number: signal, from_kernel: cause == Cause::Kernel };
        // The receiver lives longer than this thread, so this cannot fail.
        let _ = to.send(signal);
        if signal.is_ending() {
            cancel.cancel();
        }
    }
}

/// Returns a bit mask of the signals that this process ignores. Signal 1 is the lowest bit. Zero without a Linux
/// `/proc`.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

//! The clock of leases and waits: monotonic, and running on while the machine is suspended.
//!
//! A lease must also expire while a laptop is suspended. So `CLOCK_BOOTTIME` is used where the system
//! has it; `std::time::Instant` stops during suspend on Linux. Wall time is only shown to people, and
//! never compared.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::runtime::random;
#[cfg(dlm_simulation)]
use crate::runtime::simulation;

#[cfg(all(any(target_os = "linux", target_os = "android"), not(any(dlm_simulation, miri))))]
const CLOCK: ClockId = ClockId::Boottime;
/// Miri has no other one.
#[cfg(all(any(miri, not(any(target_os = "linux", target_os = "android"))), not(dlm_simulation)))]
const CLOCK: ClockId = ClockId::Monotonic;

/// A moment on the lease clock, in nanoseconds since the machine started.
///
/// The clock is `CLOCK_BOOTTIME` on Linux, and `CLOCK_MONOTONIC` on other systems. All processes of one machine
/// share it, so they may compare moments. Moments from before a restart of the machine are meaningless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than every moment of the clock.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);
    /// The start of the machine, which is always in the past.
    pub(crate) const OVER: Moment = Moment(0);

    /// Returns the current moment. Takes some tens of nanoseconds, and no system call on Linux.
    #[cfg(not(dlm_simulation))]
    pub fn now() -> Moment {
        let time = clock_gettime(CLOCK);
        // Neither part of a running clock is negative. The sum overflows after 584 years.
        Moment(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// Returns the current moment of the simulation.
    #[cfg(dlm_simulation)]
    pub fn now() -> Moment {
        Moment(simulation::now_nanos())
    }

    /// Makes a moment from the nanoseconds that [`as_nanos`](Moment::as_nanos) returned on this machine since its
    /// start.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Returns the nanoseconds since the machine started.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the moment `duration` later, or the last moment of the clock if that is earlier.
    pub fn after(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The moment by which a call must return or a wait times out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Moment);

impl Deadline {
    /// Returns the deadline `duration` from now. [`Duration::MAX`], and all that the clock cannot count, mean
    /// never.
    pub fn after(duration: Duration) -> Deadline {
        Deadline(Moment::now().after(duration))
    }

    /// Returns the deadline at `moment`.
    pub fn at(moment: Moment) -> Deadline {
        Deadline(moment)
    }

    /// Returns the earlier of the two.
    pub fn sooner(self, other: Deadline) -> Deadline {
        self.min(other)
    }

    /// Returns the moment of the deadline.
    pub fn moment(self) -> Moment {
        self.0
    }

    /// Returns the remaining time; zero if the deadline has passed.
    pub fn remaining(self) -> Duration {
        self.0.since(Moment::now())
    }

    /// Returns whether the deadline has passed.
    pub fn passed(self) -> bool {
        Moment::now() >= self.0
    }
}

/// A parked thread that waits for a moment wakes at least this often. Its timer does not advance while the machine is
/// suspended, but the lease clock does.
pub(crate) const LONGEST_PARK: Duration = Duration::from_secs(10);

/// Lets this thread sleep. All pauses of the library use this function, and all clock reads use this file.
pub(crate) fn sleep(duration: Duration) {
    #[cfg(not(dlm_simulation))]
    std::thread::sleep(duration);
    #[cfg(dlm_simulation)]
    simulation::sleep(duration);
}

/// Returns the current moment for [`IdLock`](crate::IdLock), which compares moments only within the process.
#[inline]
pub(crate) fn instant() -> Instant {
    #[cfg(not(dlm_simulation))]
    return Instant::now();
    #[cfg(dlm_simulation)]
    return simulation::instant();
}

/// Returns wall time, for people.
pub(crate) fn wall() -> SystemTime {
    #[cfg(not(dlm_simulation))]
    return SystemTime::now();
    #[cfg(dlm_simulation)]
    return simulation::wall();
}

/// Returns wall time in milliseconds since 1970, for people and for seeds; zero if the clock is set to before 1970.
pub(crate) fn wall_ms() -> u64 {
    let since = wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Measures how many parts per million faster the lease clock runs than the machine's oscillator, because a time
/// daemon is correcting it. Returns the smallest of three measurements of 50 ms each, because a pause between two
/// readings looks like a correction. `None` if the system has no uncorrected clock.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn slew_ppm() -> Option<f64> {
    const OVER: Duration = Duration::from_millis(50);
    let raw = || {
        let time = clock_gettime(ClockId::MonotonicRaw);
        Moment(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    };
    let measure = || {
        let before = (Moment::now(), raw());
        sleep(OVER);
        faster_by_ppm(Moment::now().since(before.0), raw().since(before.1))
    };
    (0..3).map(|_| measure()).min_by(|a, b| a.abs().total_cmp(&b.abs()))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn faster_by_ppm(clock: Duration, reference: Duration) -> f64 {
    (clock.as_secs_f64() / reference.as_secs_f64() - 1.0) * 1e6
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn slew_ppm() -> Option<f64> {
    None
}

/// Returns `duration`, shorter or longer by up to a tenth, to keep many waiters from asking at the same time.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.9 + 0.2 * random::fraction())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_further_than_the_clock_goes_never_passes_and_never_overflows() {
        let never = Deadline::after(Duration::MAX);
        assert!(!never.passed());
        assert!(never.remaining() > Duration::from_secs(1_000_000_000));
        assert!(Deadline::after(Duration::ZERO).passed());
        assert_eq!(never.sooner(Deadline::at(Moment(1))).moment(), Moment(1));
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_clock_that_is_being_corrected_is_seen() {
        let reference = Duration::from_secs(10);
        let faster = faster_by_ppm(Duration::from_millis(10_833), reference);
        let slower = faster_by_ppm(Duration::from_millis(9_167), reference);
        assert!((83_299.0..83_301.0).contains(&faster) && (-83_301.0..-83_299.0).contains(&slower));
        // Linux corrects no faster than this.
        assert!(slew_ppm().unwrap().abs() < 110_000.0);
    }

    #[test]
    fn jitter_stays_within_a_tenth() {
        for _ in 0..1000 {
            let d = jittered(Duration::from_secs(10));
            assert!((9.0..=11.0).contains(&d.as_secs_f64()), "{d:?}");
        }
    }
}

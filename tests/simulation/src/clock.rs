//! The clocks of one simulated process.

use std::time::{Duration, SystemTime};

use dlm::Moment;

/// The wall clock at the start of every simulation: some day in 2023.
const WALL_AT_START: Duration = Duration::from_secs(1_700_000_000);

/// The lease clock of a process and its wall clock, as functions of the simulated time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// What the lease clock shows at the start, in nanoseconds.
    pub start: u64,
    /// How much faster than the simulated time the lease clock runs, in parts per million.
    pub faster_ppm: i64,
    /// How far the wall clock is ahead, in milliseconds.
    pub wall_ahead_ms: i64,
}

impl Clock {
    /// Returns what the lease clock shows at this simulated time.
    pub fn shows(self, time: u64) -> u64 {
        self.start.saturating_add(scaled(time, 1_000_000 + self.faster_ppm, 1_000_000))
    }

    /// Returns the first simulated time at which the lease clock shows this or more.
    pub fn time_of(self, shown: u64) -> u64 {
        // A lease clock that shows `u64::MAX` never comes.
        let time = scaled(shown.saturating_sub(self.start), 1_000_000, 1_000_000 + self.faster_ppm);
        if self.shows(time) < shown { time.saturating_add(1) } else { time }
    }

    /// Returns the moment on the clock of the simulation.
    pub fn true_moment(self, moment: Moment) -> Moment {
        Moment::from_nanos(self.time_of(moment.as_nanos()))
    }

    /// Returns what the wall clock shows at this simulated time.
    pub fn wall(self, time: u64) -> SystemTime {
        let running = Duration::from_nanos(scaled(time, 1_000_000 + self.faster_ppm, 1_000_000));
        let unset = SystemTime::UNIX_EPOCH + WALL_AT_START + running;
        let ahead = Duration::from_millis(self.wall_ahead_ms.unsigned_abs());
        if self.wall_ahead_ms < 0 { unset - ahead } else { unset + ahead }
    }

    /// Returns what the wall clock shows at this simulated time, in milliseconds since 1970.
    pub fn wall_ms(self, time: u64) -> u64 {
        let since = self.wall(time).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since.as_millis() as u64
    }
}

fn scaled(time: u64, times: i64, by: i64) -> u64 {
    let scaled = u128::from(time) * times.unsigned_abs() as u128 / by.unsigned_abs() as u128;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

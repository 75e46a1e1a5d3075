//! A file descriptor that becomes readable at a moment of the lease clock.
//!
//! The kernel keeps the time, so no thread of the library is needed, and none can be late.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::runtime::time::Moment;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
use elsewhere::{arm, timer};
#[cfg(any(target_os = "linux", target_os = "android"))]
use linux::{arm, timer};

#[derive(Debug)]
pub(crate) struct Timerfd {
    timer: OwnedFd,
}

impl Timerfd {
    pub(crate) fn at(moment: Moment) -> io::Result<Timerfd> {
        let timerfd = Timerfd { timer: timer()? };
        timerfd.set(moment)?;
        Ok(timerfd)
    }

    /// Makes the descriptor readable at `moment`, and not before. At once if `moment` has passed.
    pub(crate) fn set(&self, moment: Moment) -> io::Result<()> {
        arm(&self.timer, moment)
    }
}

impl AsFd for Timerfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::runtime::process::descriptors::above_streams;
    use crate::runtime::time::Moment;

    /// If a program reads the descriptor, which the documentation forbids, it becomes readable again after this
    /// time. Without reads, the kernel does nothing at these intervals.
    const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

    pub(super) fn timer() -> io::Result<OwnedFd> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(above_streams(|| timerfd_create(TimerfdClockId::Boottime, flags))?)
    }

    pub(super) fn arm(timer: &OwnedFd, moment: Moment) -> io::Result<()> {
        // Zero would disarm the timer.
        let nanos = moment.as_nanos().max(1);
        // The casts fit: no moment is more than 584 years after the start of the machine.
        let value =
            Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as _ };
        let setting = Itimerspec { it_interval: AGAIN, it_value: value };
        timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &setting)?;
        Ok(())
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod elsewhere {
    use std::io;
    use std::os::fd::OwnedFd;

    use crate::runtime::time::Moment;

    pub(super) fn timer() -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn arm(_: &OwnedFd, _: Moment) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::Timespec;

    use super::*;

    fn readable(timerfd: &Timerfd, wait_ms: i64) -> bool {
        let timeout = Timespec { tv_sec: wait_ms / 1000, tv_nsec: wait_ms % 1000 * 1_000_000 };
        poll(&mut [PollFd::new(timerfd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    }

    #[test]
    #[cfg_attr(miri, ignore = "no timers there")]
    fn it_becomes_readable_in_time_stays_so_and_can_be_put_off() {
        let timerfd = Timerfd::at(Moment::now().after(Duration::from_millis(20))).unwrap();
        assert!(readable(&timerfd, 30_000));
        assert!(readable(&timerfd, 0), "still readable");
        timerfd.set(Moment::now().after(Duration::from_secs(3600))).unwrap();
        assert!(!readable(&timerfd, 0), "put off");
        for over in [0, 1, u64::MAX] {
            timerfd.set(Moment::from_nanos(over)).unwrap();
            assert_eq!(readable(&timerfd, 0), over < 2, "{over}");
        }
    }

    /// A read makes the descriptor unreadable for all who poll it. It must become readable again.
    #[test]
    #[cfg_attr(miri, ignore = "no timers there")]
    fn a_reader_does_not_silence_it() {
        let timerfd = Timerfd::at(Moment::from_nanos(0)).unwrap();
        let mut count = [0; 8];
        for _ in 0..3 {
            assert!(readable(&timerfd, 30_000));
            assert_eq!(rustix::io::read(&timerfd, &mut count).unwrap(), 8);
        }
    }
}

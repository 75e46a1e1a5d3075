//! What a look at a store found that matters to locks: see [`LockManager::examine`](crate::LockManager::examine).

use std::fmt;
use std::time::Duration;

/// How good a thing is for locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grade {
    /// As it should be.
    Ok,
    /// Locks work, and promise less than they could.
    Warn,
    /// Locks do not work, or do not keep their promise.
    Fail,
}

/// `OK`, `WARN` or `FAIL`.
impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Grade::Ok => "OK",
            Grade::Warn => "WARN",
            Grade::Fail => "FAIL",
        })
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub topic: &'static str,
    /// How good it is.
    pub grade: Grade,
    /// What was seen.
    pub seen: String,
    /// What to do about it; empty where nothing has to be done.
    pub advice: String,
}

impl Finding {
    /// For stores: all is well.
    pub fn ok(topic: &'static str, seen: impl Into<String>) -> Finding {
        Finding { topic, grade: Grade::Ok, seen: seen.into(), advice: String::new() }
    }

    /// For stores: promises less than it could, and what to do about it.
    pub fn warn(topic: &'static str, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { topic, grade: Grade::Warn, seen: seen.into(), advice: advice.into() }
    }

    /// For stores: does not do for locks, and what to do about it.
    pub fn fail(topic: &'static str, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { topic, grade: Grade::Fail, seen: seen.into(), advice: advice.into() }
    }

    /// How far two clocks are apart. A lease counts on this machine's monotonic clock and ends by the
    /// store's, so a difference alone does no harm; one that changes would.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(super) fn clocks(difference: Duration, precision: Duration) -> Finding {
        /// Where clocks are kept in step they are not further apart than this.
        const FAR: Duration = Duration::from_secs(1);
        let seen = format!("differ by {difference:.0?}, give or take {precision:?}");
        if difference <= FAR + precision {
            Finding::ok("clocks", seen)
        } else {
            let advice = "have this machine and the servers keep their clocks by NTP: a clock that is set \
                          while a lease lasts makes it end too soon or too late";
            Finding::warn("clocks", seen, advice)
        }
    }

    /// How fast this machine's lease clock runs compared with its uncorrected clock, and whether leases allow
    /// for that.
    pub(crate) fn slew(ppm: f64, margin_ppm: u32) -> Finding {
        let margin = f64::from(margin_ppm);
        let seen = format!(
            "this machine's clock is being corrected by {ppm:+.0} ppm; leases end early by {margin_ppm} ppm of \
             their TTL (clock_margin)"
        );
        let advice = "limit how fast the time daemon corrects the clock (chrony: maxslewrate 500), or set \
                      clock_margin higher";
        /// What a measurement on a busy machine may be off by.
        const NOISE_PPM: f64 = 200.0;
        let surely = ppm.abs() - NOISE_PPM;
        // The other half is for the store's clock.
        if surely > margin {
            Finding::fail("clock", seen, advice)
        } else if surely > margin / 2.0 {
            Finding::warn("clock", seen, advice)
        } else {
            Finding::ok("clock", seen)
        }
    }

    /// How long one question takes.
    pub(crate) fn latency(question: Duration) -> Finding {
        /// A thousandth of the default TTL.
        const SLOW: Duration = Duration::from_millis(90);
        let seen = format!("one look at a lock takes {question:.0?}");
        if question <= SLOW {
            Finding::ok("latency", seen)
        } else {
            Finding::warn("latency", seen, "look at the network between, and at the load of the servers")
        }
    }
}

/// `OK    topic: seen; advice`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<6}{}: {}", self.grade, self.topic, self.seen)?;
        if self.advice.is_empty() { Ok(()) } else { write!(f, "; {}", self.advice) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_corrected_faster_than_leases_allow_for_is_a_failure() {
        for (ppm, margin_ppm, grade) in [
            (40.0, 100_000, Grade::Ok),
            (40.0, 0, Grade::Ok),
            (-50_201.0, 100_000, Grade::Warn),
            (83_333.0, 1000, Grade::Fail),
            (-83_333.0, 1000, Grade::Fail),
        ] {
            let finding = Finding::slew(ppm, margin_ppm);
            assert_eq!(finding.grade, grade, "{finding}");
        }
    }

    #[test]
    fn a_finding_is_one_line_with_its_advice_and_the_worst_is_the_highest() {
        let finding = Finding::warn("eviction", "is on", "switch it off");
        assert_eq!(finding.to_string(), "WARN  eviction: is on; switch it off");
        assert_eq!(Finding::ok("version", "8").to_string(), "OK    version: 8");
        assert!(Grade::Fail > Grade::Warn && Grade::Warn > Grade::Ok);
    }

    #[test]
    fn slow_answers_and_clocks_far_apart_are_warned_of() {
        assert_eq!(Finding::latency(Duration::from_millis(1)).grade, Grade::Ok);
        assert_eq!(Finding::latency(Duration::from_secs(1)).grade, Grade::Warn);
        #[cfg(any(feature = "aerospike", feature = "hbase"))]
        {
            let precision = Duration::from_millis(10);
            assert_eq!(Finding::clocks(Duration::from_secs(1), precision).grade, Grade::Ok);
            assert_eq!(Finding::clocks(Duration::from_secs(2), precision).grade, Grade::Warn);
        }
    }
}

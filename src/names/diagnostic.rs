//! Diagnostics: findings about a store that matter to locks. See
//! [`LockManager::diagnose`](crate::LockManager::diagnose).

use std::fmt;
use std::time::Duration;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// No problem.
    Ok,
    /// Locks work, but promise less than they could.
    Warn,
    /// Locks do not work, or are not safe.
    Fail,
}

/// Writes `OK`, `WARN` or `FAIL`.
impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Ok => "OK",
            Severity::Warn => "WARN",
            Severity::Fail => "FAIL",
        })
    }
}

/// One finding about a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// What was checked, in a word or two.
    pub topic: &'static str,
    /// How serious the finding is.
    pub severity: Severity,
    /// What was found.
    pub seen: String,
    /// What to do about it; empty if nothing has to be done.
    pub advice: String,
}

impl Diagnostic {
    /// Makes a finding without a problem, for stores.
    pub fn ok(topic: &'static str, seen: impl Into<String>) -> Diagnostic {
        Diagnostic { topic, severity: Severity::Ok, seen: seen.into(), advice: String::new() }
    }

    /// Makes a finding that limits what locks promise, with advice. For stores.
    pub fn warn(topic: &'static str, seen: impl Into<String>, advice: impl Into<String>) -> Diagnostic {
        Diagnostic { topic, severity: Severity::Warn, seen: seen.into(), advice: advice.into() }
    }

    /// Makes a finding that makes locks unsafe, with advice. For stores.
    pub fn fail(topic: &'static str, seen: impl Into<String>, advice: impl Into<String>) -> Diagnostic {
        Diagnostic { topic, severity: Severity::Fail, seen: seen.into(), advice: advice.into() }
    }

    /// Makes the finding about the difference of two clocks. A lease is measured by this machine's monotonic clock
    /// and by the store's clock. A constant difference is harmless, but a changing one is not.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(crate) fn clocks(difference: Duration, precision: Duration) -> Diagnostic {
        /// Largest difference of synchronized clocks.
        const FAR: Duration = Duration::from_secs(1);
        let seen = format!("differ by {difference:.0?}, plus or minus {precision:?}");
        if difference <= FAR + precision {
            Diagnostic::ok("clocks", seen)
        } else {
            let advice = "synchronize the clocks of this machine and the servers by NTP: a clock that is set \
                          while a lease lasts ends the lease too early or too late";
            Diagnostic::warn("clocks", seen, advice)
        }
    }

    /// Makes the finding about the speed of this machine's lease clock, compared with its uncorrected clock and
    /// with the clock margin of leases.
    pub(crate) fn slew(ppm: f64, margin_ppm: u32) -> Diagnostic {
        let margin = f64::from(margin_ppm);
        let seen = format!(
            "this machine's clock is being corrected by {ppm:+.0} ppm; leases end early by {margin_ppm} ppm of \
             their TTL (clock_margin)"
        );
        let advice = "limit how fast the time daemon corrects the clock (chrony: maxslewrate 500), or set \
                      clock_margin higher";
        /// Largest error of a measurement on a busy machine.
        const NOISE_PPM: f64 = 200.0;
        let surely = ppm.abs() - NOISE_PPM;
        // The other half of the margin is for the store's clock.
        if surely > margin {
            Diagnostic::fail("clock", seen, advice)
        } else if surely > margin / 2.0 {
            Diagnostic::warn("clock", seen, advice)
        } else {
            Diagnostic::ok("clock", seen)
        }
    }

    /// Makes the finding about the time that one read of a lock takes.
    pub(crate) fn latency(question: Duration) -> Diagnostic {
        /// A thousandth of the default TTL.
        const SLOW: Duration = Duration::from_millis(90);
        let seen = format!("one read of a lock takes {question:.0?}");
        if question <= SLOW {
            Diagnostic::ok("latency", seen)
        } else {
            Diagnostic::warn("latency", seen, "check the network to the servers, and their load")
        }
    }
}

/// Writes `OK    topic: seen; advice`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<6}{}: {}", self.severity, self.topic, self.seen)?;
        if self.advice.is_empty() { Ok(()) } else { write!(f, "; {}", self.advice) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_corrected_faster_than_leases_allow_for_is_a_failure() {
        for (ppm, margin_ppm, severity) in [
            (40.0, 100_000, Severity::Ok),
            (40.0, 0, Severity::Ok),
            (-50_201.0, 100_000, Severity::Warn),
            (83_333.0, 1000, Severity::Fail),
            (-83_333.0, 1000, Severity::Fail),
        ] {
            let diagnostic = Diagnostic::slew(ppm, margin_ppm);
            assert_eq!(diagnostic.severity, severity, "{diagnostic}");
        }
    }

    #[test]
    fn a_finding_is_one_line_with_its_advice_and_the_worst_is_the_highest() {
        let diagnostic = Diagnostic::warn("eviction", "is on", "switch it off");
        assert_eq!(diagnostic.to_string(), "WARN  eviction: is on; switch it off");
        assert_eq!(Diagnostic::ok("version", "8").to_string(), "OK    version: 8");
        assert!(Severity::Fail > Severity::Warn && Severity::Warn > Severity::Ok);
    }

    #[test]
    fn slow_answers_and_clocks_far_apart_are_warned_of() {
        assert_eq!(Diagnostic::latency(Duration::from_millis(1)).severity, Severity::Ok);
        assert_eq!(Diagnostic::latency(Duration::from_secs(1)).severity, Severity::Warn);
        #[cfg(any(feature = "aerospike", feature = "hbase"))]
        {
            let precision = Duration::from_millis(10);
            assert_eq!(Diagnostic::clocks(Duration::from_secs(1), precision).severity, Severity::Ok);
            assert_eq!(Diagnostic::clocks(Duration::from_secs(2), precision).severity, Severity::Warn);
        }
    }
}

//! A histogram of durations with fixed bounds.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::runtime::sync::AtomicU64;

#[derive(Debug)]
pub(crate) struct Histogram {
    /// Upper bounds in seconds, which belong to their buckets.
    bounds: &'static [f64],
    /// One for each bound, and one for all that is longer.
    buckets: Vec<AtomicU64>,
    /// In nanoseconds. It overflows after 584 years.
    sum: AtomicU64,
}

/// Returns so many counters.
pub(super) fn counters(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, buckets: counters(bounds.len() + 1), sum: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let at = self.bounds.iter().position(|bound| seconds <= *bound).unwrap_or(self.bounds.len());
        self.buckets[at].fetch_add(1, Relaxed);
        self.sum.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.load(Relaxed) == 0)
    }

    /// Returns each bound with the number of durations up to it, and infinity with all.
    pub(crate) fn cumulative(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.buckets.iter().scan(0, |sum, bucket| {
            *sum += bucket.load(Relaxed);
            Some(*sum)
        });
        bounds.zip(counts).collect()
    }

    pub(crate) fn sum_seconds(&self) -> f64 {
        Duration::from_nanos(self.sum.load(Relaxed)).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket_and_counts_add_up() {
        let histogram = Histogram::new(&[0.001, 1.0]);
        assert!(histogram.is_empty());
        for ms in [0, 1, 2, 1000, 1001, 5000] {
            histogram.add(Duration::from_millis(ms));
        }
        assert_eq!(histogram.cumulative(), [(0.001, 2), (1.0, 4), (f64::INFINITY, 6)]);
        assert!((histogram.sum_seconds() - 7.004).abs() < 1e-9 && !histogram.is_empty());
    }
}

//! How much a ratio differs between rounds, and when a difference is more than that.

/// Rounds that a run measures. With fewer, the quartiles mean little.
pub(crate) const ROUNDS: usize = 7;

/// A cell that is slower by less than this is not reported. Two builds of one source differ by some percent, because
/// the compiler places functions at other addresses.
const TOLERATED: f64 = 0.1;

/// The ratios of two speeds that were measured in the same rounds. A ratio below 1 means slower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// A quarter of the rounds has a lower ratio.
    pub(crate) low: f64,
    pub(crate) median: f64,
    /// A quarter of the rounds has a higher ratio.
    pub(crate) high: f64,
}

impl Spread {
    /// # Panics
    /// If there is no ratio.
    pub(crate) fn of(ratios: &[f64]) -> Spread {
        let mut sorted = ratios.to_vec();
        sorted.sort_by(f64::total_cmp);
        let quartile = |quarters: usize| {
            let at = (sorted.len() - 1) as f64 * quarters as f64 / 4.0;
            let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
            below + (above - below) * at.fract()
        };
        Spread { low: quartile(1), median: quartile(2), high: quartile(3) }
    }

    /// Returns whether this is slower beyond its spread: the median is below 1 by more than the distance between the
    /// quartiles, and by more than what is tolerated.
    pub(crate) fn is_slower(&self) -> bool {
        1.0 - self.median > (self.high - self.low).max(TOLERATED)
    }
}

/// Returns the ratio of B to A in a round that measured A B B A, or B A A B. A machine that becomes slower or faster
/// during the round changes both in the same way.
pub(crate) fn ratio_of_round(a: [f64; 2], b: [f64; 2]) -> f64 {
    (b[0] * b[1] / (a[0] * a[1])).sqrt()
}

//! Prometheus' text format, version 0.0.4.

use std::fmt::Write as _;
use std::time::Duration;

use super::family::MetricFamily;
use super::histogram::Histogram;

/// A page under construction. The format wants all series of a metric together.
#[derive(Default)]
pub(crate) struct Page {
    /// The metrics and their series, in the order in which they came.
    parts: Vec<(MetricFamily, String)>,
}

impl Page {
    pub(crate) fn new() -> Page {
        Page::default()
    }

    pub(crate) fn count(&mut self, family: &MetricFamily, labels: &[(&str, &str)], count: u64) {
        let part = self.part(family);
        write_series(part, family.name, labels, &count.to_string());
    }

    pub(crate) fn seconds(&mut self, family: &MetricFamily, labels: &[(&str, &str)], time: Duration) {
        let part = self.part(family);
        write_series(part, family.name, labels, &time.as_secs_f64().to_string());
    }

    pub(crate) fn histogram(
        &mut self,
        family: &MetricFamily,
        labels: &[(&str, &str)],
        histogram: &Histogram,
    ) {
        // Before the buckets: a duration that is added meanwhile may be missing in the sum, but not in the count.
        let sum = histogram.sum_seconds().to_string();
        let part = self.part(family);
        let mut all = 0;
        for (bound, count) in histogram.cumulative() {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
            let with = [labels, &[("le", bound.as_str())]].concat();
            write_series(part, &format!("{}_bucket", family.name), &with, &count.to_string());
            all = count;
        }
        write_series(part, &format!("{}_sum", family.name), labels, &sum);
        write_series(part, &format!("{}_count", family.name), labels, &all.to_string());
    }

    pub(crate) fn finish(self) -> String {
        let mut text = String::new();
        for (MetricFamily { name, kind, help, .. }, series) in self.parts {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {}\n{series}", kind.name());
        }
        text
    }

    fn part(&mut self, family: &MetricFamily) -> &mut String {
        let at = self.parts.iter().position(|(of, _)| of.name == family.name).unwrap_or_else(|| {
            self.parts.push((*family, String::new()));
            self.parts.len() - 1
        });
        &mut self.parts[at].1
    }
}

fn write_series(text: &mut String, name: &str, labels: &[(&str, &str)], value: &str) {
    text.push_str(name);
    for (at, (label, value)) in labels.iter().enumerate() {
        let before = if at == 0 { '{' } else { ',' };
        let _ = write!(text, "{before}{label}=\"{}\"", escaped(value));
    }
    let after = if labels.is_empty() { "" } else { "}" };
    let _ = writeln!(text, "{after} {value}");
}

/// Escapes the value of a label. The format takes all other characters as they are.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::metrics::family::{ACQUIRED, LONGEST_HOLD_SECONDS, MetricKind};

    #[test]
    fn a_page_has_the_series_of_a_metric_together_and_labels_escaped() {
        let mut page = Page::new();
        page.count(&ACQUIRED, &[("class", "a")], 1);
        page.seconds(&LONGEST_HOLD_SECONDS, &[], Duration::from_millis(1500));
        page.count(&ACQUIRED, &[("class", "b\\ \"c\"\né"), ("code", "x")], u64::MAX);
        let wanted = r#"# HELP dlm_acquired_total Locks granted to this process.
# TYPE dlm_acquired_total counter
dlm_acquired_total{class="a"} 1
dlm_acquired_total{class="b\\ \"c\"\né",code="x"} 18446744073709551615
# HELP dlm_longest_hold_seconds Age of the oldest lease that has not ended. Zero if there is none.
# TYPE dlm_longest_hold_seconds gauge
dlm_longest_hold_seconds 1.5
"#;
        assert_eq!(page.finish(), wanted);
    }

    #[test]
    fn a_histogram_is_cumulative_and_ends_with_infinity() {
        let family =
            MetricFamily { name: "h", kind: MetricKind::Histogram, help: "H.", bounds: &[0.0001, 0.5, 10.0] };
        let histogram = Histogram::new(family.bounds);
        [0, 400, 20_000].iter().for_each(|ms| histogram.add(Duration::from_millis(*ms)));
        let mut page = Page::new();
        page.histogram(&family, &[("class", "a")], &histogram);
        let wanted = r#"# HELP h H.
# TYPE h histogram
h_bucket{class="a",le="0.0001"} 1
h_bucket{class="a",le="0.5"} 2
h_bucket{class="a",le="10"} 2
h_bucket{class="a",le="+Inf"} 3
h_sum{class="a"} 20.4
h_count{class="a"} 3
"#;
        assert_eq!(page.finish(), wanted);
    }
}

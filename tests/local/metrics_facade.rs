//! Events as metrics of the `metrics` crate, with a recorder of the test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlm::events::MetricsSink;
use dlm::{Error, Level, LockManager, Mode};
use dlm_testkit::Scripted;
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Keeps all series by name and labels, written as Prometheus does.
#[derive(Default)]
struct Series {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Values>>>,
    described: Mutex<BTreeMap<String, (Option<Unit>, String)>>,
}

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

fn written(key: &Key) -> String {
    let labels: Vec<_> = key.labels().map(|it| format!("{}=\"{}\"", it.key(), it.value())).collect();
    format!("{}{{{}}}", key.name(), labels.join(","))
}

impl Series {
    fn describe(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.described.lock().unwrap().insert(key.as_str().to_owned(), (unit, text.into_owned()));
    }
}

impl Recorder for Series {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("{key:?} is no event");
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(key, unit, text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(self.counters.lock().unwrap().entry(written(key)).or_default()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        panic!("{key:?} is no event");
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::clone(self.histograms.lock().unwrap().entry(written(key)).or_default()))
    }
}

/// Both are fed with the same calls, so each series of the recorder is on the page, with the same value.
#[test]
fn a_recorder_gets_the_names_labels_and_counts_of_the_page() {
    let series = Series::default();
    let store = Arc::new(Scripted::default());
    let page = metrics::with_local_recorder(&series, || {
        let builder = LockManager::builder().store(store.clone()).client("facade");
        let manager = builder.event_sink(Arc::new(MetricsSink::new())).open().unwrap();
        manager.metrics_text();
        let lock = manager.lock("order-1", Level::Xdc).unwrap();
        let lease = lock.acquire().unwrap();
        lock.try_acquire().unwrap_err();
        lease.renew().unwrap();
        store.to_renew(|_| Err(Error::InDoubt { what: "planted".into(), source: None }));
        lease.renew().unwrap_err();
        store.to_renew(|_| Ok(None));
        lease.renew().unwrap_err();
        drop(manager.lock("report", Level::Xdc).unwrap().acquire().unwrap());
        let update = manager.lock("modes", Level::Xdc).unwrap().update().acquire().unwrap();
        drop(update.upgrade(Duration::ZERO).unwrap().downgrade(Mode::Shared).unwrap());
        manager.lock("token", Level::Xdc).unwrap().acquire().unwrap().into_token().unwrap();
        manager.metrics_text()
    });
    let counters = series.counters.lock().unwrap();
    for (name, count) in &*counters {
        let line = format!("{name} {}", count.load(Ordering::SeqCst));
        assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
    }
    let histograms = series.histograms.lock().unwrap();
    for (name, values) in &*histograms {
        let (values, (name, labels)) = (values.0.lock().unwrap(), name.split_once('{').unwrap());
        let line = format!("{name}_count{{{labels} {}", values.len());
        assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        assert!(values.iter().all(|value| *value < 60.0), "{name} is in seconds: {values:?}");
    }
    // And nothing is missing that the page has counted.
    let is_counted = |line: &&str| {
        let family = line.split(['{', ' ']).next().unwrap();
        page.contains(&format!("# TYPE {family} counter\n")) && !line.ends_with(" 0")
    };
    let counted: BTreeSet<_> =
        page.lines().filter(is_counted).map(|line| line.rsplit_once(' ').unwrap().0).collect();
    assert_eq!(counted, counters.keys().map(String::as_str).collect());
    assert!(counters.len() >= 14 && histograms.len() >= 11, "{counters:?}");
    let described = series.described.lock().unwrap();
    for name in counters.keys().chain(histograms.keys()) {
        let (unit, text) = &described[name.split('{').next().unwrap()];
        assert_eq!(*unit, Some(if name.contains("_seconds") { Unit::Seconds } else { Unit::Count }));
        assert!(page.contains(&format!("# HELP {} {text}\n", name.split('{').next().unwrap())));
    }
}

#[test]
fn a_sink_has_a_limited_number_of_classes() {
    let series = Series::default();
    metrics::with_local_recorder(&series, || {
        let builder =
            LockManager::builder().store_uri("memory:").client("facade").ttl(Duration::from_secs(900));
        let manager = builder.event_sink(Arc::new(MetricsSink::new())).open().unwrap();
        for id in 0..100 {
            drop(manager.lock(&format!("c{id}"), Level::Xdc).unwrap().acquire().unwrap());
        }
    });
    let counters = series.counters.lock().unwrap();
    assert_eq!(counters.keys().filter(|name| name.starts_with("dlm_acquired_total")).count(), 65);
    assert_eq!(counters["dlm_acquired_total{class=\"other\",mode=\"EXCLUSIVE\"}"].load(Ordering::SeqCst), 36);
}

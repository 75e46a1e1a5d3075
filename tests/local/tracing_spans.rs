//! Events as spans and events of the `tracing` crate, with a subscriber of the test.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use dlm::events::TracingSink;
use dlm::{Error, Level, LockManager};
use dlm_testkit::Scripted;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// Writes down spans and events, indented by the spans that the thread is in.
#[derive(Clone, Default)]
struct Tree(Arc<Mutex<Vec<Line>>>, Arc<Mutex<Vec<u64>>>);

struct Line {
    depth: usize,
    text: String,
    is_open: bool,
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if !field.name().ends_with("_s") {
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }
}

impl Tree {
    fn add(
        &self,
        metadata: &Metadata<'_>,
        name: &str,
        is_open: bool,
        fields: impl FnOnce(&mut Fields<'_>),
    ) -> u64 {
        assert_eq!(metadata.target(), "dlm");
        let mut text = format!("{} {name}", metadata.level());
        fields(&mut Fields(&mut text));
        let (mut lines, depth) = (self.0.lock().unwrap(), self.1.lock().unwrap().len());
        lines.push(Line { depth, text, is_open });
        lines.len() as u64
    }

    fn written(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        assert!(
            self.1.lock().unwrap().is_empty() && lines.iter().all(|line| !line.is_open),
            "a span is open"
        );
        lines.iter().map(|line| format!("{}{}", "  ".repeat(line.depth), line.text)).collect()
    }
}

impl Subscriber for Tree {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "dlm"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let metadata = span.metadata();
        Id::from_u64(self.add(metadata, metadata.name(), true, |fields| span.record(fields)))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut Fields(&mut self.0.lock().unwrap()[span.into_u64() as usize - 1].text));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.add(event.metadata(), "event", false, |fields| event.record(fields));
    }

    fn enter(&self, span: &Id) {
        self.1.lock().unwrap().push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        assert_eq!(self.1.lock().unwrap().pop(), Some(span.into_u64()), "the spans end in another order");
    }

    fn try_close(&self, span: Id) -> bool {
        self.0.lock().unwrap()[span.into_u64() as usize - 1].is_open = false;
        true
    }
}

fn traced(run: impl FnOnce(&LockManager, &Scripted)) -> Vec<String> {
    let (tree, store) = (Tree::default(), Arc::new(Scripted::default()));
    // While `tracing` knows one subscriber, a thread without one that reaches a place first switches the place off for all.
    static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Tree::default()));
    LazyLock::force(&ANOTHER);
    tracing::subscriber::with_default(tree.clone(), || {
        let builder =
            LockManager::builder().store(store.clone()).client("traces").ttl(Duration::from_secs(900));
        let manager = builder.event_sink(Arc::new(TracingSink::new())).open().unwrap();
        run(&manager, &store);
    });
    tree.written()
}

#[test]
fn an_acquisition_is_a_span_around_its_calls_to_the_store() {
    let written = traced(|manager, _| {
        let lock = manager.lock("order-1", Level::Xdc).unwrap();
        let lease = lock.acquire().unwrap();
        lock.try_acquire().unwrap_err();
        assert!(lease.release().unwrap());
    });
    let [acquire, store, acquired, try_acquire, refused, unavailable, release, released] = &written[..]
    else {
        panic!("{written:#?}");
    };
    let key = "XDC#traces#order-1";
    assert_eq!(
        *acquire,
        format!("INFO dlm.acquire class=\"order\" lock=\"{key}\" mode=\"EXCLUSIVE\" outcome=\"acquired\"")
    );
    assert_eq!(
        *store,
        format!("  DEBUG dlm.store call=\"acquire\" class=\"order\" lock=\"{key}\" outcome=\"ok\"")
    );
    assert!(acquired.starts_with("  DEBUG event message=acquired class=\"order\""), "{acquired}");
    assert!(try_acquire.ends_with("outcome=\"LOCK_UNAVAILABLE\""), "{try_acquire}");
    assert!(refused.starts_with("  DEBUG dlm.store") && refused.ends_with("outcome=\"held\""), "{refused}");
    assert!(unavailable.contains("code=\"LOCK_UNAVAILABLE\""), "{unavailable}");
    assert!(release.starts_with("DEBUG dlm.store call=\"release\"") && release.ends_with("outcome=\"ok\""));
    assert!(released.contains("message=released") && released.ends_with("freed=true"), "{released}");
}

#[test]
fn a_change_of_mode_is_an_event_with_both_modes() {
    let written = traced(|manager, _| {
        let update = manager.lock("order-1", Level::Xdc).unwrap().update().acquire().unwrap();
        let writing = update.upgrade(Duration::ZERO).unwrap();
        assert!(writing.release().unwrap());
    });
    let changes: Vec<_> = written.iter().filter(|line| line.contains("message=mode changed")).collect();
    let [change] = &changes[..] else { panic!("{written:#?}") };
    assert!(change.contains("mode=\"EXCLUSIVE\" from=\"UPDATE\" fence="), "{change}");
    let released = written.iter().find(|line| line.contains("message=released")).unwrap();
    assert!(released.contains("mode=\"EXCLUSIVE\" fence="), "{released}");
    assert!(written[0].contains("mode=\"UPDATE\" outcome=\"acquired\""), "{}", written[0]);
}

#[test]
fn what_the_person_on_call_should_see_is_a_warning() {
    let written = traced(|manager, store| {
        let lease = manager.lock("order-1", Level::Xdc).unwrap().acquire().unwrap();
        store.to_renew(|_| Err(Error::InDoubt { what: "planted".into(), source: None }));
        lease.renew().unwrap_err();
        store.to_renew(|_| Ok(None));
        lease.renew().unwrap_err();
    });
    let warnings: Vec<_> = written.iter().filter(|line| line.trim_start().starts_with("WARN")).collect();
    let [doubt, failed, lost] = &warnings[..] else { panic!("{written:#?}") };
    assert!(doubt.contains("message=a request is in doubt") && doubt.ends_with("call=\"renew\""), "{doubt}");
    assert!(failed.contains("message=a renewal failed") && failed.contains("code=\"IN_DOUBT\""), "{failed}");
    assert!(lost.contains("message=a lease is lost") && lost.contains("reason=\"TAKEN_OVER\""), "{lost}");
    // The span of a renewal ends with its own outcome, and the read that follows has none of its own.
    let renewals: Vec<_> = written.iter().filter(|line| line.contains("call=\"renew\" class")).collect();
    assert!(renewals.len() == 2 && renewals[0].ends_with("outcome=\"IN_DOUBT\""), "{renewals:?}");
    assert!(renewals[1].ends_with("outcome=\"not_ours\""), "{renewals:?}");
}

/// A sink whose subscriber wants nothing makes no spans.
#[test]
fn without_a_subscriber_nothing_happens() {
    let builder = LockManager::builder().store_uri("memory:").client("traces");
    let manager = builder.event_sink(Arc::new(TracingSink::new())).open().unwrap();
    assert!(manager.lock("a", Level::Xdc).unwrap().acquire().unwrap().release().unwrap());
    assert!(tracing::Span::current().is_none());
}

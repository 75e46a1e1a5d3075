//! The metrics on their pages, the alert rules, and a real Prometheus that scrapes a process and fires them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, thread};

use dlm::events::{Event, EventSink, StoreCall};
use dlm::{AcquireOptions, Error, LatchKind, Level, LockManager, LostReason, Mode};
use dlm_fixtures::dialogue::Dialogue;
use dlm_fixtures::role::{self, Running};
use dlm_fixtures::root;
use dlm_testkit::{LONG, Scripted, skipped, until};
use serde_json::Value;

fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Returns whether the tools of Debian's package `prometheus` are there.
#[track_caller]
fn has_prometheus() -> bool {
    let is_there = |tool: &str| {
        Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let found = ["prometheus", "promtool"].into_iter().all(is_there);
    if !found {
        skipped("prometheus", "no prometheus or promtool, of the package prometheus");
    }
    found
}

#[track_caller]
fn promtool(args: &[&str]) {
    let output = Command::new("promtool").args(args).current_dir(root()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn each_alert_fires_when_it_should_and_at_no_other_time() {
    let rules = page("tests/alerts/rules_test.yml");
    for alert in alerts() {
        let cases: Vec<_> = rules
            .split("- eval_time:")
            .skip(1)
            .filter(|case| case.contains(&format!("alertname: {alert}\n")))
            .collect();
        let fires = cases.iter().filter(|case| case.contains("exp_alerts:")).count();
        assert!(fires > 0, "no case in which {alert} fires");
    }
    if has_prometheus() {
        promtool(&["check", "rules", "docs/alerts.yml"]);
        promtool(&["test", "rules", "tests/alerts/rules_test.yml"]);
    }
}

/// Returns the names of the alerts.
fn alerts() -> Vec<String> {
    let rules = page("docs/alerts.yml");
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let names: Vec<_> = names.map(str::to_owned).collect();
    assert!(names.len() >= 7, "{names:?}");
    names
}

#[test]
fn the_runbook_has_a_section_for_each_alert() {
    let (rules, runbook) = (page("docs/alerts.yml"), page("docs/runbook.md"));
    let sections: Vec<_> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(sections, alerts());
    for (alert, section) in alerts().iter().zip(runbook.split("\n## ").skip(1)) {
        for part in ["**It means:**", "**Look at**", "**Do:**"] {
            assert!(section.contains(part), "{alert} has no {part}");
        }
        let link = format!("runbook: docs/runbook.md#{}\n", alert.to_lowercase());
        let rule = rules.split("- alert: ").find(|rule| rule.starts_with(&format!("{alert}\n"))).unwrap();
        assert!(rule.contains(&link) && rule.contains("severity: "), "{alert}");
    }
}

#[test]
fn the_runbook_explains_each_reason() {
    let runbook = page("docs/runbook.md");
    let table = runbook.split("| reason |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows: Vec<_> =
        table.lines().skip(2).map(|row| row.split('|').nth(1).unwrap().trim().trim_matches('`')).collect();
    let (told, all): (BTreeSet<_>, BTreeSet<_>) =
        (rows.into_iter().collect(), LostReason::ALL.iter().map(|reason| reason.name()).collect());
    assert_eq!(told, all);
}

/// Makes a page with a series of each metric.
fn full_page() -> String {
    let builder = LockManager::builder().store_uri("memory:").client("pages").farm("dc1");
    let manager = builder.open().unwrap();
    manager.metrics_text();
    let lock = manager.lock("order-1", Level::Dc).unwrap();
    let reading = lock.acquire().unwrap().downgrade(Mode::Shared).unwrap();
    lock.update().acquire().unwrap().upgrade(Duration::ZERO).unwrap_err();
    drop(reading);
    manager.latch("a", Level::Dc, LatchKind::CountDown).unwrap().create(1).unwrap();
    manager.metrics_text()
}

/// To update the page: `DLM_BLESS=1 cargo test --test alerts`.
#[test]
fn the_table_of_metrics_is_that_of_the_code() {
    let text = full_page();
    let mut labels = BTreeMap::<&str, BTreeSet<&str>>::new();
    for series in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = series.split_once(['{', ' ']).unwrap();
        let name =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let own = labels.entry(name).or_default();
        // No value of this page contains `="`.
        own.extend(rest.split("=\"").map(|part| part.rsplit([',', ' ', '"']).next().unwrap()));
        own.retain(|label| !label.is_empty() && *label != "le" && label.parse::<f64>().is_err());
    }
    let mut table = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let kind = lines.next().unwrap().rsplit(' ').next().unwrap();
        let labels: Vec<_> = ["class", "mode", "from", "to", "code", "reason", "call", "outcome", "version"]
            .into_iter()
            .filter(|label| labels[name].contains(label))
            .map(|label| format!("`{label}`"))
            .collect();
        let help = help.trim_end_matches('.');
        table += &format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "));
    }
    let path = root().join("docs/metrics.md");
    let old = page("docs/metrics.md");
    let (head, rest) =
        old.split_once("| metric | type | labels | what it is |\n|---|---|---|---|\n").unwrap();
    let tail = &rest[rest.find("\n\n").unwrap() + 1..];
    let new = format!("{head}| metric | type | labels | what it is |\n|---|---|---|---|\n{table}{tail}");
    if env::var_os("DLM_BLESS").is_some() {
        fs::write(path, &new).unwrap();
        return;
    }
    assert!(old == new, "the table of docs/metrics.md should be\n{table}");
    // The numbers of the table of labels.
    let most = |label: &str| {
        let row = old.lines().find(|line| line.starts_with(&format!("| `{label}` |"))).unwrap();
        row.rsplit('|').nth(1).unwrap().trim().parse::<usize>().unwrap()
    };
    assert_eq!(most("mode"), Mode::ALL.len());
    for label in ["from", "to"] {
        assert_eq!(most(label), Mode::OF_LOCKS.len());
    }
    assert_eq!(most("code"), dlm::Code::ALL.len());
    assert_eq!(most("reason"), LostReason::ALL.len());
    assert_eq!(most("call"), StoreCall::ALL.len());
    assert_eq!(most("outcome"), dlm::Code::ALL.len() + 3);
}

#[test]
fn the_rules_and_the_runbook_name_metrics_and_labels_that_exist() {
    let text = full_page();
    let is_metric = |name: &str| {
        let family =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        text.contains(&format!("# TYPE {family} "))
    };
    for file in ["docs/alerts.yml", "docs/runbook.md", "docs/metrics.md", "tests/alerts/rules_test.yml"] {
        let content = page(file);
        let words = content.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let metrics: BTreeSet<_> = words
            .filter(|word| {
                word.starts_with("dlm_")
                    && (file.ends_with(".yml") || word.contains("_total") || word.contains("_seconds"))
            })
            .collect();
        for metric in metrics {
            assert!(is_metric(metric), "{file}: {metric}");
        }
    }
    // The outcomes that the rule counts as failures are names of codes.
    let rules = page("docs/alerts.yml");
    let outcomes = rules.split("outcome=~\"").nth(1).unwrap().split('"').next().unwrap();
    for outcome in outcomes.split('|') {
        assert!(dlm::Code::ALL.iter().any(|code| code.name() == outcome), "{outcome}");
    }
}

/// A process that holds a lock and serves its metrics. Order `fail`: no renewal succeeds from then on.
#[test]
#[ignore = "a process of the tests below"]
fn role() {
    if role::asked().is_none() {
        return;
    }
    /// Says on which thread nothing waits.
    struct Lost;
    impl EventSink for Lost {
        fn on_event(&self, event: &Event<'_>) {
            if let Event::Lost { reason, .. } = event {
                dlm_fixtures::dialogue::say(format_args!("lost {}", reason.name()));
            }
        }
    }
    let store = Arc::new(Scripted::default());
    let builder = LockManager::builder().store(store.clone()).client("alerts").event_sink(Arc::new(Lost));
    let manager = builder.open().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    dlm_fixtures::dialogue::say(format_args!("serves {}", listener.local_addr().unwrap()));
    let served = manager.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.set_read_timeout(Some(LONG));
            let _ = stream.read(&mut [0; 4096]);
            let page = served.metrics_text();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close";
            let _ = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{page}", page.len());
        }
    });
    let options = AcquireOptions::new().ttl(Duration::from_secs(20)).keep(Duration::MAX);
    let lease = manager.lock("order-42", Level::Xdc).unwrap().acquire_with(&options).unwrap();
    for order in std::io::stdin().lock().lines() {
        assert_eq!(order.unwrap(), "fail");
        for _ in 0..100_000 {
            store.to_renew(|_| {
                Err(Error::Connection { store: "scripted:".into(), what: "planted".into(), source: None })
            });
        }
    }
    drop(lease);
}

/// Returns what Prometheus answers.
fn ask(address: SocketAddr, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LONG)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if !head.contains(" 200 ") {
        return None;
    }
    let answer: Value = serde_json::from_str(body).ok()?;
    (answer["status"] == "success").then(|| answer["data"].clone())
}

/// Returns the names of the alerts that fire, each with its class. Blocks until Prometheus answers.
fn firing(address: SocketAddr) -> BTreeSet<(String, String)> {
    let mut data = None;
    until("Prometheus answers", || {
        data = ask(address, "/api/v1/alerts");
        data.is_some()
    });
    let data = data.unwrap();
    let alerts = data["alerts"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let firing = alerts.filter(|alert| alert["state"] == "firing");
    firing.map(|alert| (text(&alert["labels"]["alertname"]), text(&alert["labels"]["class"]))).collect()
}

/// Starts a Prometheus that scrapes `target`, and waits until it answers.
fn start_prometheus(dir: &Path, target: &str) -> (Running, SocketAddr) {
    let config = format!(
        "global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}}\n\
         rule_files: ['{}']\n\
         scrape_configs: [{{job_name: orders, static_configs: [{{targets: ['{target}']}}]}}]\n",
        root().join("docs/alerts.yml").display()
    );
    let file = dir.join("prometheus.yml");
    fs::write(&file, config).unwrap();
    // Another program may take the port before Prometheus does. Then Prometheus ends.
    for number in 0..5 {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut prometheus = Command::new("prometheus");
        prometheus
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join(format!("data-{number}")).display()))
            .arg(format!("--web.listen-address={address}"))
            .current_dir(dir);
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut running = Running(prometheus.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let mut is_over = false;
        until("Prometheus answers, or ends", || {
            is_over = running.0.try_wait().unwrap().is_some();
            is_over || ask(address, "/api/v1/alerts").is_some()
        });
        if !is_over {
            return (running, address);
        }
    }
    panic!("Prometheus does not start: {}", fs::read_to_string(dir.join("log")).unwrap());
}

#[test]
fn a_real_prometheus_fires_when_renewals_fail() {
    if !has_prometheus() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut process = Dialogue::start(&mut role::process(module_path!(), "holds", dir.path()));
    let target = process.report("serves").remove(0);
    let (_prometheus, address) = start_prometheus(dir.path(), &target);
    let count = |query: &str| -> Option<f64> {
        let data = ask(address, &format!("/api/v1/query?query={query}"))?;
        data["result"][0]["value"][1].as_str()?.parse().ok()
    };
    until("it has scraped the process twice", || count("count_over_time(dlm_leases_held[1m])") >= Some(2.0));
    // No value is there after a scrape that took too long.
    let mut held = None;
    until("the lease is seen", || {
        held = count("dlm_leases_held");
        held.is_some()
    });
    assert_eq!(held, Some(1.0));
    assert_eq!(firing(address), BTreeSet::new(), "all is well");

    process.order("fail");
    let fires = |name: &str| firing(address).contains(&(name.to_owned(), "order".to_owned()));
    until("the first alert fires", || fires("DlmRenewalsFail"));
    until("the next alert fires", || fires("DlmLeaseAtRisk"));
    until("the last alert fires", || fires("DlmLeaseLost"));
    assert_eq!(process.report("lost"), ["EXPIRED"]);
    let firing: Vec<_> = firing(address).into_iter().map(|(name, _)| name).collect();
    assert!(
        firing.iter().all(|name| name.starts_with("DlmRenew")
            || name.starts_with("DlmLease")
            || name == "DlmStoreErrors"),
        "{firing:?}"
    );
}

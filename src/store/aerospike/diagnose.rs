//! What a namespace's configuration means for locks. Pure functions, except for the request that reads it.

use std::time::Duration;

use super::client::Client;
use super::diagnose_layout;
use super::nodes::Node;
use crate::error::Result;
use crate::names::diagnostic::Diagnostic;
use crate::runtime::time::{Deadline, wall_ms};
use crate::store::layout::Layout;

/// 2010-01-01, the start of the servers' clock, in seconds since 1970.
const EPOCH_S: u64 = 1_262_304_000;

/// Diagnoses the namespace for locks in `layout`. `slack` returns that of the layout `own` on one node or on several.
pub(super) fn look_over(
    client: &Client,
    suffix: &str,
    layout: Layout,
    slack: impl Fn(bool) -> Duration,
    by: Deadline,
) -> Result<Vec<Diagnostic>> {
    let asked_ms = wall_ms();
    let nodes = Node::ask_all(client, &diagnose_layout::QUESTIONS, by)?;
    let took = Duration::from_millis(wall_ms().saturating_sub(asked_ms));
    let mut found = diagnostics(client.namespace(), suffix, &nodes, asked_ms, took);
    if nodes.iter().all(Node::has_namespace) {
        found.extend(diagnose_layout::of_settings(&nodes, layout, slack(nodes.len() == 1)));
        found.extend(diagnose_layout::of_records(client, suffix, &nodes, layout, by));
    }
    Ok(found)
}

fn diagnostics(
    namespace: &str,
    suffix: &str,
    nodes: &[Node],
    asked_ms: u64,
    took: Duration,
) -> Vec<Diagnostic> {
    let Some(first) = nodes.first() else {
        return vec![Diagnostic::fail("cluster", "has no nodes", "start it, and name its nodes in the URI")];
    };
    let mut found = vec![Diagnostic::ok(
        "version",
        format!("{} {}, {} node{}", first.edition, first.build, nodes.len(), plural(nodes.len())),
    )];
    match nodes.iter().find(|node| !node.stable) {
        None => found.push(Diagnostic::ok("cluster", "all nodes agree on the members")),
        Some(node) => found.push(Diagnostic::fail(
            "cluster",
            format!("node {} does not know the members", node.name),
            "wait until the cluster has formed, or check the heartbeat section of its configuration",
        )),
    }
    if let Some(node) = nodes.iter().find(|node| !node.has_namespace()) {
        found.push(Diagnostic::fail(
            "namespace",
            format!("{namespace:?} does not exist on node {}", node.name),
            "add it to aerospike.conf and restart the servers, or name another namespace",
        ));
        return found;
    }
    found.extend([ttl(nodes), writable(nodes), eviction(namespace, suffix, nodes)]);
    found.extend([replication(nodes), consistency(nodes)]);
    found.extend(conflicts(nodes));
    found.extend(overrides(nodes));
    found.push(durability(nodes));
    if let Ok(server_s) = first.says("current_time").unwrap_or_default().parse::<u64>() {
        let server_ms = (server_s + EPOCH_S) * 1000;
        // The servers report whole seconds, rounded down.
        let difference = Duration::from_millis((server_ms + 500).abs_diff(asked_ms));
        found.push(Diagnostic::clocks(difference, took + Duration::from_millis(500)));
    }
    found
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn ttl(nodes: &[Node]) -> Diagnostic {
    let refuses = nodes
        .iter()
        .find(|node| node.number("nsup-period") == 0 && !node.is("allow-ttl-without-nsup", "true"));
    if let Some(node) = refuses {
        let seen = format!("node {} refuses records that expire (nsup-period 0)", node.name);
        return Diagnostic::fail("TTL", seen, "set e.g. `nsup-period 120` in the namespace's configuration");
    }
    let strong = nodes.iter().find(|node| {
        node.is("strong-consistency", "true") && !node.is("strong-consistency-allow-expunge", "true")
    });
    if let Some(node) = strong {
        let seen = format!("node {} is strongly consistent and does not let records expire", node.name);
        return Diagnostic::fail("TTL", seen, "set `strong-consistency-allow-expunge true`");
    }
    match nodes.iter().find(|node| node.number("nsup-period") == 0) {
        Some(node) => Diagnostic::warn(
            "TTL",
            format!("records expire, but node {} never deletes them (nsup-period 0)", node.name),
            "set e.g. `nsup-period 120`: otherwise expired records fill the memory",
        ),
        None => Diagnostic::ok(
            "TTL",
            format!("records expire and are deleted every {} s", nodes[0].number("nsup-period")),
        ),
    }
}

fn writable(nodes: &[Node]) -> Diagnostic {
    let full = nodes.iter().find(|node| node.is("stop_writes", "true"));
    let skewed = nodes.iter().find(|node| node.is("clock_skew_stop_writes", "true"));
    let torn =
        nodes.iter().find(|node| node.number("unavailable_partitions") + node.number("dead_partitions") > 0);
    match (full, skewed, torn) {
        (Some(node), ..) => Diagnostic::fail(
            "writes",
            format!("node {} refuses them: the namespace is full", node.name),
            "add memory or disks, or delete data",
        ),
        (_, Some(node), _) => Diagnostic::fail(
            "writes",
            format!("node {} refuses them: the clocks of the cluster are too far apart", node.name),
            "synchronize the servers' clocks with NTP",
        ),
        (_, _, Some(node)) => Diagnostic::fail(
            "writes",
            format!("partitions of node {} are dead or unavailable", node.name),
            "bring the missing nodes back; see the servers' manual on `revive`",
        ),
        _ => Diagnostic::ok("writes", "are accepted"),
    }
}

/// Checks eviction. It first deletes the records that expire soonest: the locks.
fn eviction(namespace: &str, suffix: &str, nodes: &[Node]) -> Diagnostic {
    // The names of versions 6 to 8.
    const LIMITS: [&str; 7] = [
        "evict-used-pct",
        "evict-sys-memory-pct",
        "evict-indexes-memory-pct",
        "evict-mounts-pct",
        "high-water-memory-pct",
        "high-water-disk-pct",
        "mounts-high-water-pct",
    ];
    let on = nodes.iter().find_map(|node| {
        let limit = LIMITS.iter().find(|limit| node.number(limit) > 0)?;
        Some((node, *limit))
    });
    let Some((node, limit)) = on else { return Diagnostic::ok("eviction", "is off") };
    let exempt = |set: &&str| set.contains("disable-eviction=true");
    let ours = |set: &&str| set.contains(&format!("#{suffix}:"));
    let (kept, all) =
        (node.sets.split(';').filter(ours).filter(exempt).count(), node.sets.split(';').filter(ours).count());
    if all > 0 && kept == all {
        return Diagnostic::ok("eviction", format!("is on, but not for the {all} sets of locks and latches"));
    }
    let advice = format!(
        "set {limit} to 0, or exempt the sets: in the namespace {namespace:?}, `set XDC#{suffix} {{ \
         disable-eviction true }}`, and the same for each of `dlm`'s sets"
    );
    let seen = format!(
        "is on ({limit} {}): if space is short, the records that expire soonest are deleted first",
        node.number(limit)
    );
    Diagnostic::warn("eviction", seen, advice)
}

/// Returns the number of copies of each record.
fn copies(nodes: &[Node]) -> u64 {
    nodes.iter().map(|node| node.number("effective_replication_factor")).min().unwrap_or_default()
}

fn replication(nodes: &[Node]) -> Diagnostic {
    let copies = copies(nodes);
    let seen = format!("{copies} cop{} of each record", if copies == 1 { "y" } else { "ies" });
    if copies >= 2 {
        Diagnostic::ok("replication", seen)
    } else {
        let advice = "a lock is lost with its node: use two nodes or more and `replication-factor 2`";
        Diagnostic::warn("replication", seen, advice)
    }
}

fn consistency(nodes: &[Node]) -> Diagnostic {
    if nodes.iter().all(|node| node.is("strong-consistency", "true")) {
        return Diagnostic::ok("consistency", "strong");
    }
    let advice = "if the network splits the cluster, both halves can grant a lock; compare fences where that \
                  matters, or use `strong-consistency true` (Enterprise edition)";
    Diagnostic::warn("consistency", "the namespace prefers availability", advice)
}

/// Checks which copy of a record stays if a node returns with an older one. With `generation`, the servers'
/// default, the copy with more writes stays. An old holder's record with many renewals then replaces the new
/// holder's record, and a third process can acquire the lock when the old record expires.
fn conflicts(nodes: &[Node]) -> Option<Diagnostic> {
    const TOPIC: &str = "conflicts";
    const POLICY: &str = "conflict-resolution-policy";
    const ADVICE: &str = "set `conflict-resolution-policy last-update-time` on every node, in aerospike.conf and \
                          with `asinfo -v set-config:...` while they run, and synchronize their clocks with NTP";
    let by_generation = nodes.iter().find(|node| !node.keeps_newest());
    let shared = nodes.len() > 1 || copies(nodes) > 1;
    let to_be_shared = nodes.iter().any(|node| node.number("replication-factor") > 1);
    let Some(node) = by_generation else {
        return shared.then(|| Diagnostic::ok(TOPIC, "the newest copy of a record stays"));
    };
    let policy = node.says(POLICY).unwrap_or("generation");
    if shared {
        let seen = format!(
            "node {} has `{POLICY} {policy}`: a node that comes back replaces newer locks with older ones",
            node.name
        );
        return Some(Diagnostic::fail(TOPIC, seen, ADVICE));
    }
    to_be_shared.then(|| {
        let seen = format!("`{POLICY} {policy}`, which is harmless while there is one node");
        Diagnostic::warn(TOPIC, seen, ADVICE)
    })
}

fn overrides(nodes: &[Node]) -> Option<Diagnostic> {
    let weak = nodes.iter().find(|node| node.is("write-commit-level-override", "master"))?;
    let seen = format!("node {} answers before the copies are written", weak.name);
    Some(Diagnostic::warn(
        "commit level",
        seen,
        "leave write-commit-level-override off: an acknowledged lock may be lost with its node",
    ))
}

/// Checks what survives a crash. Lost locks are a warning and not a failure, even in memory, where all locks are
/// lost: the store does not promise that a lock survives its server. It promises that fences rise.
fn durability(nodes: &[Node]) -> Diagnostic {
    const TOPIC: &str = "durability";
    let engine = |node: &Node| node.says("storage-engine").unwrap_or("unknown").to_owned();
    let in_memory = nodes.iter().find(|node| {
        let backed = node.settings.keys().any(|key| key.contains("file[") || key.contains("device["));
        engine(node) == "memory" && !backed
    });
    if in_memory.is_some() {
        let advice = "a restart of all nodes at once forgets every lock; fences still rise";
        return Diagnostic::warn(TOPIC, "records are in memory only", advice);
    }
    // Without commit-to-device a node answers before the record is on the disk.
    let behind = nodes.iter().find(|node| !node.is("commit-to-device", "true"));
    match behind {
        Some(node) if copies(nodes) < 2 => {
            let seen = format!(
                "one copy, which reaches the disk ({}) up to {} ms after the lock was granted",
                engine(node),
                node.number("flush-max-ms")
            );
            let advice = "a server that crashes in between forgets the lock: use two nodes or more and \
                          `replication-factor 2`, or `commit-to-device true` (Enterprise edition)";
            Diagnostic::warn(TOPIC, seen, advice)
        }
        _ => Diagnostic::ok(TOPIC, format!("records are kept ({})", engine(&nodes[0]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::diagnostic::Severity;

    const GOOD: &str = "nsup-period=120;storage-engine=device;strong-consistency=true;\
                        strong-consistency-allow-expunge=true;effective_replication_factor=2;stop_writes=false;\
                        storage-engine.evict-used-pct=0;current_time=532940506";

    fn rated(settings: &str, sets: &str) -> Vec<Diagnostic> {
        rated_nodes(&[settings], sets)
    }

    /// Diagnoses a cluster with one node for each of these settings.
    fn rated_nodes(settings: &[&str], sets: &str) -> Vec<Diagnostic> {
        let answers = |settings: &str| ["8.1.2.0", "Enterprise", settings, sets, "ABC"].map(str::to_owned);
        let named = settings.iter().zip(1..);
        let nodes =
            named.map(|(settings, number)| Node::of(format!("a{number}"), answers(settings).to_vec()));
        let now_ms = (532_940_506 + EPOCH_S) * 1000;
        diagnostics("test", "locks", &nodes.collect::<Vec<_>>(), now_ms, Duration::ZERO)
    }

    fn severity(settings: &str, topic: &str) -> Severity {
        let found = rated(settings, "");
        found.iter().find(|diagnostic| diagnostic.topic == topic).expect(topic).severity
    }

    #[test]
    fn a_good_namespace_is_good_in_everything() {
        for diagnostic in rated(GOOD, "") {
            assert_eq!(diagnostic.severity, Severity::Ok, "{diagnostic}");
        }
    }

    #[test]
    fn each_setting_that_harms_locks_is_found() {
        for (from, to, topic, expected) in [
            ("nsup-period=120", "nsup-period=0", "TTL", Severity::Fail),
            ("nsup-period=120", "nsup-period=0;allow-ttl-without-nsup=true", "TTL", Severity::Warn),
            ("allow-expunge=true", "allow-expunge=false", "TTL", Severity::Fail),
            ("stop_writes=false", "stop_writes=true", "writes", Severity::Fail),
            ("stop_writes=false", "clock_skew_stop_writes=true", "writes", Severity::Fail),
            ("stop_writes=false", "dead_partitions=7", "writes", Severity::Fail),
            ("evict-used-pct=0", "evict-used-pct=70", "eviction", Severity::Warn),
            ("stop_writes=false", "high-water-memory-pct=60", "eviction", Severity::Warn),
            ("factor=2", "factor=1", "replication", Severity::Warn),
            ("consistency=true", "consistency=false", "consistency", Severity::Warn),
            ("stop_writes=false", "write-commit-level-override=master", "commit level", Severity::Warn),
            ("engine=device", "engine=memory", "durability", Severity::Warn),
            ("engine=device", "engine=memory;storage-engine.file[0]=/f", "durability", Severity::Ok),
            ("532940506", "532940000", "clocks", Severity::Warn),
            ("factor=2", "factor=1", "durability", Severity::Warn),
            ("factor=2", "factor=1;storage-engine.commit-to-device=true", "durability", Severity::Ok),
            ("consistency=true", "consistency=false", "conflicts", Severity::Fail),
        ] {
            let settings = GOOD.replacen(from, to, 1);
            assert_ne!(settings, GOOD, "{from}");
            assert_eq!(severity(&settings, topic), expected, "{to}");
        }
    }

    #[test]
    fn one_node_that_resolves_conflicts_by_generation_or_is_behind_its_disk_is_enough() {
        const AVAILABLE: &str = "nsup-period=120;storage-engine=device;strong-consistency=false";
        let policy = |policy: &str, copies: u32, configured: u32| {
            format!(
                "{AVAILABLE};effective_replication_factor={copies};replication-factor={configured};\
                 conflict-resolution-policy={policy}"
            )
        };
        let severity_of = |nodes: &[&str], topic: &str| {
            let found = rated_nodes(nodes, "");
            found
                .into_iter()
                .find(|diagnostic| diagnostic.topic == topic)
                .map(|diagnostic| diagnostic.severity)
        };
        let (by_time, by_generation) = (policy("last-update-time", 2, 2), policy("generation", 2, 2));
        assert_eq!(severity_of(&[&by_time, &by_time], "conflicts"), Some(Severity::Ok));
        for nodes in [[&by_time, &by_generation], [&by_generation, &by_time]] {
            assert_eq!(severity_of(&nodes.map(String::as_str), "conflicts"), Some(Severity::Fail));
        }
        // With one copy of each record, a node that comes back has old records too.
        let one_each = policy("generation", 1, 1);
        assert_eq!(severity_of(&[&one_each, &one_each], "conflicts"), Some(Severity::Fail));
        assert_eq!(severity_of(&[&one_each], "conflicts"), None, "there is nobody to differ from");
        assert_eq!(severity_of(&[&policy("generation", 1, 2)], "conflicts"), Some(Severity::Warn));
        assert_eq!(severity_of(&[GOOD, &by_generation], "consistency"), Some(Severity::Warn));

        let committed = format!("{one_each};storage-engine.commit-to-device=true");
        assert_eq!(severity_of(&[&committed, &committed], "durability"), Some(Severity::Ok));
        assert_eq!(severity_of(&[&committed, &one_each], "durability"), Some(Severity::Warn));
        let in_memory = by_time.replace("engine=device", "engine=memory");
        assert_eq!(severity_of(&[&by_time, &in_memory], "durability"), Some(Severity::Warn));
    }

    #[test]
    fn sets_that_are_exempt_are_not_evicted() {
        let settings = GOOD.replace("evict-used-pct=0", "evict-used-pct=70");
        let set =
            |name: &str, exempt: bool| format!("ns=test:set={name}:objects=1:disable-eviction={exempt};");
        let of = |sets: &str| {
            let found = rated(&settings, sets);
            found.into_iter().find(|diagnostic| diagnostic.topic == "eviction").unwrap().severity
        };
        assert_eq!(of(&(set("XDC#locks", true) + &set("D_FNC#locks", true))), Severity::Ok);
        assert_eq!(of(&(set("XDC#locks", true) + &set("D_FNC#locks", false))), Severity::Warn);
        assert_eq!(of(&set("XDC#other", true)), Severity::Warn);
    }

    #[test]
    fn a_missing_namespace_and_an_unformed_cluster_fail() {
        let found = rated("type=unknown", "");
        assert_eq!(found.last().unwrap().topic, "namespace");
        assert_eq!(found.last().unwrap().severity, Severity::Fail);
        let answers = ["8", "CE", GOOD, "", "ERROR::cluster-not-stable"].map(str::to_owned).to_vec();
        let found = diagnostics("test", "locks", &[Node::of("a1".into(), answers)], 0, Duration::ZERO);
        assert!(
            found
                .iter()
                .any(|diagnostic| diagnostic.topic == "cluster" && diagnostic.severity == Severity::Fail)
        );
        assert_eq!(diagnostics("test", "locks", &[], 0, Duration::ZERO)[0].severity, Severity::Fail);
    }
}

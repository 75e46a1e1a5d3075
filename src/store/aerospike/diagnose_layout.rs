//! What settings and records of a namespace mean for locks in each layout.

use std::time::Duration;

use super::client::{Client, When};
use super::keys::own_bins::LASTS_MS;
use super::nodes::Node;
use crate::error::Result;
use crate::names::diagnostic::Diagnostic;
use crate::runtime::time::{Deadline, wall_ms};
use crate::store::layout::Layout;

/// Questions whose answers [`of_settings`] reads, for [`Node::ask_all`].
pub(super) const QUESTIONS: [&str; 2] = ["statistics", "get-config:context=xdr"];

/// A search of one set takes at most this long, and counts at most so many records.
const SEARCH: Duration = Duration::from_secs(2);
const SEARCH_MOST: u64 = 1000;
/// A record that was written so much later than now, by this machine's clock, is from the future. The server counts the
/// time since such a write as 0, so the lease does not end before.
const AHEAD_MS: i64 = 2000;

/// Diagnoses what the nodes say. `slack` is that of the layout `own`.
pub(super) fn of_settings(nodes: &[Node], layout: Layout, slack: Duration) -> Vec<Diagnostic> {
    [touch(nodes, layout), skew(nodes, layout, slack), xdr(nodes)].into_iter().flatten().collect()
}

/// Checks whether reads extend the life of records. They also count as changes, on which leases of the layout `own`
/// depend. The library's own reads ask for neither.
fn touch(nodes: &[Node], layout: Layout) -> Option<Diagnostic> {
    const SETTING: &str = "default-read-touch-ttl-pct";
    let in_sets = |node: &&Node| {
        node.sets.split([';', ':']).any(|field| {
            field
                .strip_prefix(SETTING)
                .and_then(|rest| rest.strip_prefix('='))
                .is_some_and(|value| value != "0")
        })
    };
    let node = nodes.iter().find(|node| node.number(SETTING) > 0 || in_sets(node))?;
    let seen = format!(
        "node {} has `{SETTING}` above 0: reads by other programs make leases last longer",
        node.name
    );
    let advice = format!("set `{SETTING} 0` for the namespace and for the sets of locks");
    Some(match layout {
        Layout::Java => Diagnostic::warn("read touch", seen, advice),
        Layout::Both | Layout::Own => Diagnostic::fail("read touch", seen, advice),
    })
}

/// Compares the nodes' clocks with each other. When a node fails, another one compares its clock with times that the
/// first one wrote.
fn skew(nodes: &[Node], layout: Layout, slack: Duration) -> Option<Diagnostic> {
    const TOPIC: &str = "nodes' clocks";
    let skew_ms = |node: &Node| -> Option<u64> {
        let fields = node.more.first()?.split(';');
        fields.filter_map(|field| field.strip_prefix("cluster_clock_skew_ms=")).find_map(|ms| ms.parse().ok())
    };
    if nodes.len() < 2 {
        return None;
    }
    let skew = Duration::from_millis(nodes.iter().filter_map(skew_ms).max()?);
    let seen = format!("differ by up to {skew:?}");
    Some(match layout {
        _ if skew <= slack => Diagnostic::ok(TOPIC, seen),
        Layout::Java => Diagnostic::warn(
            TOPIC,
            format!("{seen}: after the failure of a node leases end earlier by that"),
            "synchronize the servers' clocks with NTP",
        ),
        Layout::Both | Layout::Own => Diagnostic::fail(
            TOPIC,
            format!(
                "{seen}, more than the slack of {slack:?}: after the failure of a node a lock may pass on early"
            ),
            "synchronize the servers' clocks with NTP, or set a larger `slack` in every client's URI",
        ),
    })
}

/// Checks whether the servers copy the namespace's records to another cluster, or from one. A copied lock is held in
/// both.
fn xdr(nodes: &[Node]) -> Option<Diagnostic> {
    const TOPIC: &str = "XDR";
    let advice = "exclude the sets of locks and latches from XDR (`ignore-set`)";
    let ships_to = |node: &Node| {
        let fields = node.more.get(1)?.split(';');
        let centres = fields.filter_map(|field| field.strip_prefix("dcs=")).next()?;
        (!centres.is_empty()).then(|| centres.to_owned())
    };
    if let Some((node, centres)) = nodes.iter().find_map(|node| Some((node, ships_to(node)?))) {
        let seen =
            format!("node {} sends records to {centres}: locks in such sets are held there too", node.name);
        return Some(Diagnostic::warn(TOPIC, seen, advice));
    }
    let node = nodes.iter().find(|node| node.number("xdr_client_write_success") > 0)?;
    let seen = format!("node {} has received records of another cluster: they may replace locks", node.name);
    Some(Diagnostic::warn(TOPIC, seen, advice))
}

/// Diagnoses the records of locks: those of the other layout, and those whose time has not come.
pub(super) fn of_records(
    client: &Client,
    suffix: &str,
    nodes: &[Node],
    layout: Layout,
    by: Deadline,
) -> Vec<Diagnostic> {
    let end = format!("#{suffix}");
    let is_locks =
        |set: &&str| (set.starts_with("DC#") || *set == "XDC#".to_owned() + suffix) && set.ends_with(&end);
    let mut sets: Vec<&str> = nodes.iter().flat_map(Node::set_names).filter(is_locks).collect();
    sets.sort_unstable();
    sets.dedup();
    let by = by.sooner(Deadline::after(SEARCH));
    let count = |when: &When<'_>| -> Result<(u64, Duration)> {
        let (mut all, mut longest) = (0, Duration::ZERO);
        for set in &sets {
            let (found, left) = client.count(set, when, SEARCH_MOST, by)?;
            (all, longest) = (all + found, longest.max(left.unwrap_or_default()));
        }
        Ok((all, longest))
    };
    let in_own = count(&When::Has(LASTS_MS));
    let in_java = count(&When::Lacks(LASTS_MS));
    let mut found = match layout {
        Layout::Java => vec![of_other_layout(Layout::Own, in_own, true)],
        Layout::Both => {
            vec![of_other_layout(Layout::Java, in_java, false), of_other_layout(Layout::Own, in_own, false)]
        }
        Layout::Own => vec![of_other_layout(Layout::Java, in_java, false)],
    };
    if layout != Layout::Java {
        let future_ms = i64::try_from(wall_ms()).unwrap_or(i64::MAX).saturating_add(AHEAD_MS);
        found.push(future(count(&When::WrittenAfter(future_ms))));
    }
    found.into_iter().flatten().collect()
}

/// Reports how many locks have a record of `layout`.
fn of_other_layout(layout: Layout, found: Result<(u64, Duration)>, is_refused: bool) -> Option<Diagnostic> {
    let topic = match layout {
        Layout::Own => "layout own",
        Layout::Java | Layout::Both => "layout java",
    };
    let (count, longest) = match found {
        Ok((0, _)) => return None,
        Ok(found) => found,
        Err(error) => {
            let seen = format!("its locks could not be counted in time: {}", error.chain());
            return Some(Diagnostic::warn(topic, seen, "ask again when the servers have less to do"));
        }
    };
    let most = if count >= SEARCH_MOST { " or more" } else { "" };
    let many = if count == 1 { "1 lock".to_owned() } else { format!("{count}{most} locks") };
    let (has, is) = if count == 1 { ("has a record", "is") } else { ("have records", "are") };
    Some(match layout {
        Layout::Own if is_refused => Diagnostic::warn(
            topic,
            format!("{many} {has} of it: this client refuses it"),
            "acquire and release them once with layout=both",
        ),
        Layout::Own => Diagnostic::ok(topic, format!("{many} {has} of it")),
        Layout::Java | Layout::Both => Diagnostic::warn(
            topic,
            format!("{many} {is} held in it; the last record expires in {} s", longest.as_secs()),
            "before all clients use layout=own, wait until none is left",
        ),
    })
}

fn future(found: Result<(u64, Duration)>) -> Option<Diagnostic> {
    // A failure was reported already.
    let count = found.map_or(0, |(count, _)| count);
    (count > 0).then(|| {
        Diagnostic::fail(
            "records from the future",
            format!("{count} written later than now, by this machine's clock"),
            "synchronize the servers' clocks with NTP: these locks are held for longer than their TTL",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::diagnostic::Severity;

    const SLACK: Duration = Duration::from_secs(1);

    fn node(settings: &str, sets: &str, statistics: &str, xdr: &str) -> Node {
        let answers = ["8.1.2.0", "Community", settings, sets, "ABC", statistics, xdr];
        Node::of("a1".into(), answers.map(str::to_owned).to_vec())
    }

    fn severities(nodes: &[Node], layout: Layout) -> Vec<(&'static str, Severity)> {
        of_settings(nodes, layout, SLACK).iter().map(|found| (found.topic, found.severity)).collect()
    }

    #[test]
    fn reads_that_extend_leases_fail_the_layout_own() {
        let touched = [
            node("nsup-period=1;default-read-touch-ttl-pct=50", "", "", ""),
            node("nsup-period=1", "ns=test:set=XDC#s:default-read-touch-ttl-pct=50:x=0;", "", ""),
        ];
        for node in touched {
            let nodes = [node];
            assert_eq!(severities(&nodes, Layout::Java), [("read touch", Severity::Warn)]);
            assert_eq!(severities(&nodes, Layout::Own), [("read touch", Severity::Fail)]);
        }
        let off = "default-read-touch-ttl-pct=0";
        assert_eq!(severities(&[node(off, &format!("set=XDC#s:{off};"), "", "")], Layout::Own), []);
    }

    #[test]
    fn clocks_that_differ_by_more_than_the_slack_fail_the_layout_own() {
        let skewed = |ms: &str| node("", "", &format!("uptime=1;cluster_clock_skew_ms={ms};x=1"), "");
        let nodes = |ms| [skewed("0"), skewed(ms)];
        assert_eq!(severities(&nodes("1000"), Layout::Own), [("nodes' clocks", Severity::Ok)]);
        assert_eq!(severities(&nodes("1001"), Layout::Own), [("nodes' clocks", Severity::Fail)]);
        assert_eq!(severities(&nodes("1001"), Layout::Java), [("nodes' clocks", Severity::Warn)]);
        assert_eq!(severities(&[skewed("5000")], Layout::Own), [], "one node has one clock");
    }

    #[test]
    fn locks_that_are_copied_between_clusters_are_named() {
        for (settings, xdr) in [("", "dcs=east,west;src-id=0"), ("xdr_client_write_success=7", "dcs=")] {
            assert_eq!(severities(&[node(settings, "", "", xdr)], Layout::Java), [("XDR", Severity::Warn)]);
        }
        assert_eq!(severities(&[node("xdr_client_write_success=0", "", "", "dcs=")], Layout::Java), []);
    }
}

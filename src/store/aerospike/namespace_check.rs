//! Whether the namespace is safe for the layout `own`. Every node is asked, again and again while locks are acquired.
//!
//! A record of the layout is written for years, and its generation wraps after 65,535 writes. Where the copy with the
//! higher generation stays, a node that comes back could replace the record of the present holder.

use std::time::Duration;

use super::nodes::Node;
use crate::error::{Code, Error, Result};
use crate::runtime::sync::Mutex;
use crate::runtime::time::{Deadline, Moment};

/// An answer is used for this long. Then one caller asks again, while the others still use it.
const FRESH: Duration = Duration::from_secs(1);
/// An old answer is used for this long while a node does not answer. The client forgets such a node sooner.
const STALE: Duration = Duration::from_secs(30);
/// The time limit of a repeated check, and at most a quarter of the caller's time.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known about a namespace that is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checked {
    /// Whether the namespace has a single node.
    pub(super) is_alone: bool,
    /// Whether there are fences of the layout `java`.
    pub(super) has_java_fences: bool,
}

/// The last answer.
#[derive(Debug, Default)]
pub(super) struct NamespaceCheck {
    last: Mutex<Option<(Moment, Checked)>>,
    /// Held by the caller who asks.
    asking: Mutex<()>,
}

impl NamespaceCheck {
    /// Returns what is known. Calls `ask` if nothing is known, or if the last answer is old.
    ///
    /// # Errors
    /// TABLE_CREATION_ERROR if the namespace is not safe. Any other error of `ask`, unless the last answer can still
    /// be used.
    pub(super) fn checked(
        &self,
        by: Deadline,
        ask: impl FnOnce(Deadline) -> Result<Checked>,
    ) -> Result<Checked> {
        let known = |limit: Duration| {
            let last = *self.last.lock();
            last.filter(|(at, _)| Moment::now().since(*at) < limit).map(|(_, checked)| checked)
        };
        if let Some(checked) = known(FRESH) {
            return Ok(checked);
        }
        let usable = known(STALE);
        let (_asking, by) = match (usable, self.asking.try_lock()) {
            (Some(_), Some(asking)) => {
                let limit = PATIENCE.min(by.remaining() / 4);
                (asking, Deadline::after(limit))
            }
            (Some(checked), None) => return Ok(checked),
            (None, Some(asking)) => (asking, by),
            (None, None) => (self.asking.lock(), by),
        };
        // Another caller may have asked in the meantime.
        if let Some(checked) = known(FRESH) {
            return Ok(checked);
        }
        match ask(by) {
            Ok(checked) => {
                *self.last.lock() = Some((Moment::now(), checked));
                Ok(checked)
            }
            Err(error) if error.code() == Code::TableCreationError => {
                *self.last.lock() = None;
                Err(error)
            }
            Err(error) => usable.ok_or(error),
        }
    }
}

impl NamespaceCheck {
    /// Returns whether the namespace had a single node at the last answer.
    pub(super) fn was_alone(&self) -> bool {
        self.last.lock().is_some_and(|(_, checked)| checked.is_alone)
    }
}

/// Judges the answers of all nodes.
pub(super) fn judged(nodes: &[Node], fence_set: &str, unsafe_: impl Fn(&str) -> Error) -> Result<Checked> {
    if let Some(node) = nodes.iter().find(|node| !node.has_namespace()) {
        return Err(unsafe_(&format!("does not exist on node {}", node.name)));
    }
    let is_alone = nodes.len() == 1 && nodes[0].number("ns_cluster_size") <= 1;
    match nodes.iter().find(|node| !node.keeps_newest()) {
        Some(node) if !is_alone => Err(unsafe_(&format!(
            "is not safe for layout=own: node {} has `conflict-resolution-policy {}`, so a node that comes back could \
             replace newer locks with older ones; set `conflict-resolution-policy last-update-time` on every node",
            node.name,
            node.says("conflict-resolution-policy").unwrap_or("generation"),
        ))),
        _ => Ok(Checked { is_alone, has_java_fences: nodes.iter().any(|node| node.objects(fence_set) > 0) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAFE: Checked = Checked { is_alone: true, has_java_fences: false };

    fn node(settings: &str) -> Node {
        let answers = ["8.1.2.0", "Community", settings, "ns=test:set=D_FNC#s:objects=1;", "ABC"];
        Node::of("a1".into(), answers.map(str::to_owned).to_vec())
    }

    fn judge(nodes: &[&str]) -> std::result::Result<bool, String> {
        let nodes: Vec<_> = nodes.iter().map(|settings| node(settings)).collect();
        let unsafe_ =
            |what: &str| Error::TableCreation { table: "test".into(), what: what.into(), source: None };
        let checked = judged(&nodes, "D_FNC#s", unsafe_);
        checked.map(|checked| checked.is_alone).map_err(|error| error.to_string())
    }

    #[test]
    fn several_nodes_must_all_keep_the_newest_copy() {
        const TIME: &str = "nsup-period=1;conflict-resolution-policy=last-update-time";
        const GENERATION: &str = "nsup-period=1;conflict-resolution-policy=generation";
        const STRONG: &str = "nsup-period=1;strong-consistency=true;conflict-resolution-policy=generation";
        assert_eq!(judge(&[GENERATION]), Ok(true));
        assert_eq!(judge(&[TIME, STRONG]), Ok(false));
        // The client knows one node, and the node knows two.
        assert_eq!(judge(&[&format!("{TIME};ns_cluster_size=2")]), Ok(false));
        for nodes in [&[TIME, GENERATION][..], &[&format!("{GENERATION};ns_cluster_size=2")]] {
            let error = judge(nodes).unwrap_err();
            assert!(error.contains("conflict-resolution-policy last-update-time"), "{error}");
        }
        assert!(judge(&["type=unknown"]).unwrap_err().contains("does not exist on node a1"));
        assert!(judged(&[node(TIME)], "D_FNC#s", |_| unreachable!()).unwrap().has_java_fences);
        assert!(!judged(&[node(TIME)], "D_FNC#other", |_| unreachable!()).unwrap().has_java_fences);
    }

    #[test]
    fn an_answer_serves_for_a_while_and_an_unsafe_namespace_at_once_for_nothing() {
        let by = Deadline::after(Duration::MAX);
        let check = NamespaceCheck::default();
        let unsafe_ = || Error::TableCreation { table: "test".into(), what: "unsafe".into(), source: None };
        let down = || Error::Connection { store: "test".into(), what: "gone".into(), source: None };
        let old = |age: Duration| {
            let at = Moment::from_nanos(Moment::now().as_nanos().saturating_sub(age.as_nanos() as u64));
            *check.last.lock() = Some((at, SAFE));
        };
        assert_eq!(check.checked(by, |_| Err(down())).unwrap_err().code(), Code::ConnectionError);
        assert_eq!(check.checked(by, |_| Ok(SAFE)).unwrap(), SAFE);
        // It stays new, however slow this machine is.
        check.last.lock().as_mut().expect("it is kept").0 = Moment::now().after(STALE);
        assert_eq!(check.checked(by, |_| unreachable!("the answer is new")).unwrap(), SAFE);
        old(FRESH);
        assert_eq!(check.checked(by, |_| Err(down())).unwrap(), SAFE, "a node is down for a moment");
        assert_eq!(check.checked(by, |_| Err(unsafe_())).unwrap_err().code(), Code::TableCreationError);
        assert_eq!(check.checked(by, |_| Err(down())).unwrap_err().code(), Code::ConnectionError);
        old(STALE);
        assert_eq!(check.checked(by, |_| Err(down())).unwrap_err().code(), Code::ConnectionError);
    }
}

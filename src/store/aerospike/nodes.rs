//! What each node of the cluster says about the namespace and its sets.
//!
//! The names of settings and statistics are those of the servers' info protocol, `namespace/<name>` and
//! `sets/<name>`, in versions 6 to 8.

use std::collections::HashMap;

use super::client::Client;
use crate::error::Result;
use crate::runtime::time::Deadline;

/// One node's answers.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) build: String,
    pub(super) edition: String,
    pub(super) settings: HashMap<String, String>,
    pub(super) sets: String,
    pub(super) stable: bool,
    /// The answers to further questions.
    pub(super) more: Vec<String>,
}

impl Node {
    /// Asks every node that the client knows, with further questions.
    pub(super) fn ask_all(client: &Client, more: &[&str], by: Deadline) -> Result<Vec<Node>> {
        let namespace = client.namespace();
        let (settings, sets) = (format!("namespace/{namespace}"), format!("sets/{namespace}"));
        let questions = [&["build", "edition", &settings, &sets, "cluster-stable:"], more].concat();
        Ok(client.info(&questions, by)?.into_iter().map(|(name, answers)| Node::of(name, answers)).collect())
    }

    /// Reads the answers to the questions of [`ask_all`](Node::ask_all).
    pub(super) fn of(name: String, mut answers: Vec<String>) -> Node {
        let more = answers.split_off(answers.len().min(5));
        let [build, edition, settings, sets, stable] = answers.try_into().unwrap_or_default();
        let settings = settings
            .split(';')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let stable = !stable.is_empty() && !stable.contains("ERROR");
        Node { name, build, edition, settings, sets, stable, more }
    }

    pub(super) fn says(&self, key: &str) -> Option<&str> {
        // Some settings of a storage engine have this prefix.
        let named = || self.settings.get(&format!("storage-engine.{key}"));
        self.settings.get(key).or_else(named).map(String::as_str)
    }

    pub(super) fn number(&self, key: &str) -> u64 {
        self.says(key).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    pub(super) fn is(&self, key: &str, value: &str) -> bool {
        self.says(key) == Some(value)
    }

    pub(super) fn has_namespace(&self) -> bool {
        self.settings.contains_key("nsup-period")
    }

    /// Returns whether the newest copy of a record stays if the copies of two nodes differ.
    pub(super) fn keeps_newest(&self) -> bool {
        // A strongly consistent namespace resolves conflicts by another rule.
        self.is("strong-consistency", "true") || self.is("conflict-resolution-policy", "last-update-time")
    }

    /// Returns the names of the sets on this node.
    pub(super) fn set_names(&self) -> impl Iterator<Item = &str> {
        self.sets.split([';', ':']).filter_map(|field| field.strip_prefix("set="))
    }

    /// Returns the number of records of this set on this node.
    pub(super) fn objects(&self, set: &str) -> u64 {
        let fields = self.sets.split(';').map(|fields| fields.split(':'));
        let named = |mut fields: std::str::Split<'_, char>| {
            fields.any(|field| field.strip_prefix("set=") == Some(set))
        };
        let mut found = fields.filter(|fields| named(fields.clone())).flatten();
        found.find_map(|field| field.strip_prefix("objects=")?.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_set_are_counted_by_its_whole_name() {
        let sets = "ns=test:set=D_FNC#tests2:objects=7:x=1;ns=test:set=D_FNC#tests:objects=3:tombstones=0;";
        let answers = ["8.1.2.0", "Community", "nsup-period=1", sets, "ABC"].map(str::to_owned);
        let node = Node::of("a1".into(), answers.to_vec());
        assert_eq!(
            [node.objects("D_FNC#tests"), node.objects("D_FNC#tests2"), node.objects("D_FNC")],
            [3, 7, 0]
        );
        assert!(node.has_namespace() && !node.keeps_newest());
    }
}

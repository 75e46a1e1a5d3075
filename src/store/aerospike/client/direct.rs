//! Requests for one record over our own connections, to the node that has the record.
//!
//! The crate finds the nodes of the cluster. Each of them says which partitions it has. A node forwards a request for
//! a record of another node, so an old answer costs time and no more.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::batch::{self, BatchRow};
use super::node_sockets::{NoReply, NodeSockets};
use super::wire::{Asked, PARTITIONS, RecordDigest, RecordReply};
use crate::runtime::sync::real::{Mutex, TimedMutex};
use crate::runtime::time::{Deadline, Moment};
use crate::store::aerospike::keys::RecordKey;

/// The partitions are asked for again after this time.
const FRESH: Duration = Duration::from_secs(2);
/// After a failed request they are asked for sooner, but not sooner than this after the last time.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The time limit for asking while an older answer can be used.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a node says about its partitions: its address, and its answer to `replicas`.
pub(super) struct NodePartitions {
    pub(super) address: String,
    pub(super) replicas: String,
}

/// One of many requests.
pub(super) struct ManyAsked<'a> {
    pub(super) record_key: &'a RecordKey,
    pub(super) asked: Asked<'a>,
    /// See [`BatchRow::alone`].
    pub(super) alone: bool,
}

/// Our connections, and the partitions of one namespace.
pub(super) struct Direct {
    namespace: String,
    /// The maximum number of connections to one node.
    most: usize,
    connect_timeout: Duration,
    known: Mutex<Known>,
    /// Held by the caller who asks for the partitions.
    asking: TimedMutex<()>,
    /// Whether a request failed because the partitions may have moved.
    is_doubted: AtomicBool,
}

#[derive(Default)]
struct Known {
    partitions: Option<Arc<PartitionMap>>,
    asked: Option<Moment>,
}

/// The node of each partition.
struct PartitionMap {
    nodes: Vec<Arc<NodeSockets>>,
    /// Index of the node, or [`NOBODY`].
    master: Box<[u16; PARTITIONS]>,
}

const NOBODY: u16 = u16::MAX;

impl Direct {
    pub(super) fn new(namespace: &str, most: usize, connect_timeout: Duration) -> Direct {
        Direct {
            namespace: namespace.to_owned(),
            most,
            connect_timeout,
            known: Mutex::default(),
            asking: TimedMutex::default(),
            is_doubted: AtomicBool::new(false),
        }
    }

    /// Sends one request. `ask_nodes` asks each node for its partitions. `None` if no node is known for the record.
    pub(super) fn ask(
        &self,
        record_key: &RecordKey,
        asked: Asked<'_>,
        by: Deadline,
        ask_nodes: impl FnOnce(Deadline) -> Vec<NodePartitions>,
    ) -> Option<Result<RecordReply, NoReply>> {
        let digest = RecordDigest::of(record_key);
        let partitions = self.partitions(by, ask_nodes)?;
        let master = partitions.master[digest.partition()];
        let Some(node) = partitions.nodes.get(usize::from(master)) else {
            self.doubt();
            return None;
        };
        let reply = node.ask((&self.namespace, record_key, &digest), asked, by);
        if reply.is_err() {
            self.doubt();
        }
        Some(reply)
    }

    /// Sends many requests: see [`batch`](super::batch). Returns the positions of those whose node is not known.
    pub(super) fn ask_many(
        &self,
        all: &[ManyAsked<'_>],
        by: Deadline,
        ask_nodes: impl FnOnce(Deadline) -> Vec<NodePartitions>,
        answered: &mut dyn FnMut(usize, Moment, Result<RecordReply, NoReply>),
    ) -> Vec<usize> {
        let Some(partitions) = self.partitions(by, ask_nodes) else { return (0..all.len()).collect() };
        let digests: Vec<_> = all.iter().map(|it| RecordDigest::of(it.record_key)).collect();
        let node = |digest: &RecordDigest| {
            partitions.nodes.get(usize::from(partitions.master[digest.partition()])).map(Arc::as_ref)
        };
        let (mut rows, mut elsewhere) = (Vec::with_capacity(all.len()), Vec::new());
        for (at, (&ManyAsked { record_key, asked, alone }, digest)) in all.iter().zip(&digests).enumerate() {
            match node(digest) {
                Some(node) => rows.push(BatchRow { at, record_key, asked, digest, alone, node }),
                None => elsewhere.push(at),
            }
        }
        let mut has_failed = !elsewhere.is_empty();
        batch::run(&self.namespace, rows, by, &mut |at, since, reply| {
            has_failed |= reply.is_err();
            answered(at, since, reply);
        });
        if has_failed {
            self.doubt();
        }
        elsewhere
    }

    /// The partitions may have moved.
    pub(super) fn doubt(&self) {
        self.is_doubted.store(true, Ordering::Relaxed);
    }

    fn partitions(
        &self,
        by: Deadline,
        ask_nodes: impl FnOnce(Deadline) -> Vec<NodePartitions>,
    ) -> Option<Arc<PartitionMap>> {
        let old = match self.known() {
            (partitions, false) => return partitions,
            (partitions, true) => partitions,
        };
        let (_asking, limit) = match (&old, self.asking.try_lock()) {
            (Some(_), Some(asking)) => (asking, PATIENCE.min(by.remaining() / 4)),
            (None, Some(asking)) => (asking, by.remaining() / 2),
            (Some(_), None) => return old,
            (None, None) => (self.asking.try_lock_for(by.remaining() / 2)?, by.remaining() / 2),
        };
        // Another caller may have asked in the meantime.
        if let (partitions, false) = self.known() {
            return partitions;
        }
        self.is_doubted.store(false, Ordering::Relaxed);
        let partitions = ask_nodes(Deadline::after(limit));
        let found =
            PartitionMap::of(&self.namespace, &partitions, |address| self.node(old.as_deref(), address));
        let mut known = self.known.lock();
        known.asked = Some(Moment::now());
        if let Some(found) = found {
            known.partitions = Some(Arc::new(found));
        }
        known.partitions.clone()
    }

    /// Returns what is known, and whether to ask again.
    fn known(&self) -> (Option<Arc<PartitionMap>>, bool) {
        let known = self.known.lock();
        let age = known.asked.map_or(Duration::MAX, |asked| Moment::now().since(asked));
        let doubted = known.partitions.is_none() || self.is_doubted.load(Ordering::Relaxed);
        (known.partitions.clone(), age >= if doubted { AGAIN_AFTER } else { FRESH })
    }

    /// Returns the connections to this node. Those that exist are kept.
    fn node(&self, old: Option<&PartitionMap>, address: SocketAddr) -> Arc<NodeSockets> {
        let same = old.and_then(|old| old.nodes.iter().find(|node| node.address() == address));
        let new = || Arc::new(NodeSockets::new(address, self.most, self.connect_timeout));
        same.map_or_else(new, Arc::clone)
    }
}

impl PartitionMap {
    /// `None` if nothing is known about the namespace, or if it is strongly consistent.
    fn of(
        namespace: &str,
        reported: &[NodePartitions],
        mut node: impl FnMut(SocketAddr) -> Arc<NodeSockets>,
    ) -> Option<PartitionMap> {
        let mut nodes: HashMap<SocketAddr, u16> = HashMap::new();
        let mut found = PartitionMap { nodes: Vec::new(), master: Box::new([NOBODY; PARTITIONS]) };
        for reported in reported {
            let Some(bits) = master_bits(&reported.replicas, namespace) else { continue };
            // Looking up a name would take unknown time. Servers tell each other's addresses as numbers.
            let Ok(address) = reported.address.parse::<SocketAddr>() else { continue };
            let index = *nodes.entry(address).or_insert_with(|| {
                found.nodes.push(node(address));
                (found.nodes.len() - 1) as u16
            });
            for (at, master) in found.master.iter_mut().enumerate() {
                if bits[at / 8] & 0x80 >> (at % 8) != 0 {
                    *master = index;
                }
            }
        }
        (!found.nodes.is_empty()).then_some(found)
    }
}

/// Reads from a node's answer for which partitions of the namespace it is the master: one bit for each.
///
/// ```text
/// namespace:regime,number of copies,bits of the masters in base64,bits of the second copies,...;namespace:...
/// ```
fn master_bits(replicas: &str, namespace: &str) -> Option<Vec<u8>> {
    let mut all = replicas.trim_end().split(';').filter_map(|part| part.split_once(':'));
    let (_, mut fields) =
        all.find(|(name, _)| *name == namespace).map(|(name, rest)| (name, rest.split(',')))?;
    // Only strongly consistent namespaces have regimes. The crate sends the requests for them.
    fields.next().filter(|regime| *regime == "0")?;
    let bits = BASE64.decode(fields.nth(1)?).ok()?;
    (bits.len() == PARTITIONS / 8).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions_of(port: u16, first_byte: u8) -> NodePartitions {
        let mut bits = [0; PARTITIONS / 8];
        bits[0] = first_byte;
        let bits = BASE64.encode(bits);
        let replicas = format!("other:0,1,{bits};test:0,2,{bits},{bits}");
        NodePartitions { address: format!("127.0.0.1:{port}"), replicas }
    }

    fn nodes(direct: &Direct, partitions: Vec<NodePartitions>) -> Option<Vec<Option<u16>>> {
        let by = Deadline::after(Duration::from_secs(10));
        let partitions = direct.partitions(by, |_| partitions)?;
        let port =
            |at: usize| Some(partitions.nodes.get(usize::from(partitions.master[at]))?.address().port());
        Some((0..4).map(port).collect())
    }

    #[test]
    fn each_partition_has_the_node_that_says_so() {
        let direct = Direct::new("test", 4, Duration::from_secs(1));
        assert_eq!(
            nodes(&direct, vec![partitions_of(1, 0b1010_0000), partitions_of(2, 0b0100_0000)]),
            Some(vec![Some(1), Some(2), Some(1), None])
        );
        assert_eq!(nodes(&direct, Vec::new()).map(|ports| ports[0]), Some(Some(1)), "nobody is asked again");
        let first = Arc::clone(&direct.known().0.unwrap().nodes[0]);
        direct.doubt();
        direct.known.lock().asked = Some(Moment::OVER);
        assert_eq!(
            nodes(&direct, vec![partitions_of(1, 0b0001_0000)]),
            Some(vec![None, None, None, Some(1)])
        );
        assert!(Arc::ptr_eq(&first, &direct.known().0.unwrap().nodes[0]), "its connections are kept");
    }

    #[test]
    fn an_old_answer_is_used_while_no_node_answers() {
        let direct = Direct::new("test", 4, Duration::from_secs(1));
        assert_eq!(nodes(&direct, Vec::new()), None);
        direct.known.lock().asked = Some(Moment::OVER);
        assert!(nodes(&direct, vec![partitions_of(1, 0xff)]).is_some());
        direct.known.lock().asked = Some(Moment::OVER);
        assert!(nodes(&direct, Vec::new()).is_some());
    }

    #[test]
    fn answers_that_cannot_be_used_leave_the_crate_to_do_it() {
        let direct = |partitions: NodePartitions| {
            nodes(&Direct::new("test", 4, Duration::from_secs(1)), vec![partitions])
        };
        let with = |change: fn(&mut NodePartitions)| {
            let mut partitions = partitions_of(1, 0xff);
            change(&mut partitions);
            direct(partitions)
        };
        assert!(with(|_| {}).is_some());
        assert!(with(|partitions| partitions.address = "host.example:3000".into()).is_none());
        assert!(
            with(|partitions| partitions.replicas = partitions.replicas.replace("test:0,", "test:3,"))
                .is_none(),
            "strongly consistent"
        );
        assert!(
            with(|partitions| partitions.replicas = partitions.replicas.replace("test:", "tests:")).is_none()
        );
        for garbage in
            ["", "test", "test:", "test:0", "test:0,1", "test:0,1,@@@", "test:0,1,AAAA", "ERROR:4:x"]
        {
            let partitions = NodePartitions { address: "127.0.0.1:1".into(), replicas: garbage.into() };
            assert!(direct(partitions).is_none(), "{garbage}");
        }
    }
}

//! Compares this library with its peers, which take turns.

use std::time::Instant;

use crate::THREADS;
use crate::arguments::Group;
use crate::host::{Host, Measure};
use crate::peers::{median, take_turns};
use crate::row::{Cell, Row};
use crate::scale::Scale;
use crate::spread::Spread;
use crate::worker::Subject;

/// Compares this library with its peers. What cannot be measured here is named on standard error.
pub(crate) fn compare_with_peers(groups: &[Group], scale: &Scale) -> Vec<Row> {
    let mut rows = Vec::new();
    for &group in groups {
        let measured = Host::start(group).and_then(|host| Contest::new(group, &host)?.rows(scale));
        match measured {
            Ok(measured) => rows.extend(measured),
            Err(why) => eprintln!("*** without {group:?}: {why}"),
        }
    }
    rows
}

/// This library and its peers on one host.
struct Contest {
    group: Group,
    /// This library's stores come first.
    contestants: Vec<(&'static str, Measure)>,
    stores: usize,
}

impl Contest {
    fn new(group: Group, host: &Host) -> Result<Contest, String> {
        let mut contestants: Vec<(&'static str, Measure)> = Vec::new();
        for (name, uri) in host.stores("bench") {
            let subject = Subject::open(&uri)?;
            contestants.push((name, Box::new(move |threads, time| subject.pairs_per_s(threads, time))));
        }
        let stores = contestants.len();
        contestants.extend(host.peers()?);
        Ok(Contest { group, contestants, stores })
    }

    /// Measures all contestants and compares each store with each peer.
    fn rows(mut self, scale: &Scale) -> Result<Vec<Row>, String> {
        let time = scale.time(self.group);
        let began = Instant::now();
        while began.elapsed() < scale.warm_up(self.group) {
            for (_, measure) in &mut self.contestants {
                measure(16, time * 4);
            }
        }
        let many = self.contestants.len();
        let speeds = THREADS
            .map(|threads| take_turns(many, scale.rounds, |turn| (self.contestants[turn].1)(threads, time)));
        let cell = |at: usize, store: usize, peer: usize| {
            let [ours, theirs] = [&speeds[at][store], &speeds[at][peer]];
            let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
            let [subject_per_s, peer_per_s] = [ours, theirs].map(|speeds| median(speeds.iter().copied()));
            Cell { threads: THREADS[at], subject_per_s, peer_per_s, ratio: Spread::of(&ratios) }
        };
        let (stores, peers) = (0..self.stores, self.stores..many);
        let pairs = stores.flat_map(|store| peers.clone().map(move |peer| (store, peer)));
        let row = |(store, peer): (usize, usize)| Row {
            subject: self.contestants[store].0.to_owned(),
            peer: self.contestants[peer].0.to_owned(),
            cells: (0..THREADS.len()).map(|at| cell(at, store, peer)).collect(),
        };
        Ok(pairs.map(row).collect())
    }
}

//! Counts what the processes did, and which faults had an effect on them.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use dlm::{Mode, Moment};
use dlm_testkit::history::{Answer, Event, Grant, History, LockHistory, Operation, Tolerances};

use crate::incidents::{Incidents, Loss, Stop};
use crate::subject::Least;

/// Counts of one or more rounds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) calls: usize,
    pub(crate) grants: usize,
    /// Grants that are not exclusive.
    pub(crate) members: usize,
    /// Leases that were converted to another mode.
    pub(crate) conversions: usize,
    pub(crate) locks: usize,
    /// Locks that several clients acquired.
    pub(crate) contended: usize,
    pub(crate) in_doubt: usize,
    pub(crate) leases_lost: usize,
    pub(crate) kills: usize,
    /// Kills of a process that held a lock or had called the library.
    pub(crate) kills_bit: usize,
    pub(crate) stops: usize,
    /// Stops during which a lease ended that the process used afterwards.
    pub(crate) stops_bit: usize,
    /// Replies that were lost after a request that changes something, while a call was under way.
    pub(crate) lost_replies: usize,
    pub(crate) lost_requests: usize,
    pub(crate) late_requests: usize,
    pub(crate) late_replies: usize,
    pub(crate) others: BTreeMap<&'static str, usize>,
}

impl Tally {
    /// Counts one round. The servers received `late` requests late.
    pub(crate) fn of(
        history: &History,
        tolerances: &Tolerances,
        incidents: &Incidents,
        late: usize,
    ) -> Tally {
        let locks: Vec<LockHistory<'_>> = LockHistory::of(history);
        let used = locks.iter().filter(|lock| !lock.grants.is_empty());
        let contended = used.clone().filter(|lock| is_contended(lock)).count();
        let clients = Clients::of(history, &locks);
        let is = |wanted: fn(&Event) -> bool| history.events().iter().filter(|event| wanted(event)).count();
        let (kills, stops, lost) = (incidents.kills(), incidents.stops(), incidents.lost());
        let bit = |loss: Loss| {
            lost.iter()
                .filter(|it| it.loss == loss && it.writes && clients.are_calling(&it.clients, it.at))
                .count()
        };
        let granted = |wanted: fn(&Grant<'_>) -> bool| {
            locks.iter().flat_map(|lock| &lock.grants).filter(|grant| wanted(grant)).count()
        };
        Tally {
            calls: is(is_call),
            grants: granted(|_| true),
            members: granted(|grant| grant.mode != Mode::Exclusive),
            conversions: granted(|grant| grant.converts.is_some()),
            locks: used.count(),
            contended,
            in_doubt: is(|event| is_call(event) && event.answer == Answer::InDoubt),
            leases_lost: is(|event| event.answer == Answer::Lost),
            kills: kills.len(),
            kills_bit: kills
                .iter()
                .filter(|kill| {
                    clients.are_calling(&kill.clients, kill.at)
                        || clients.hold(&kill.clients, kill.at, tolerances)
                })
                .count(),
            stops: stops.len(),
            stops_bit: stops.iter().filter(|stop| clients.lose_a_lease(stop)).count(),
            lost_replies: bit(Loss::Reply),
            lost_requests: bit(Loss::Request),
            late_requests: late,
            late_replies: bit(Loss::LateReply),
            others: incidents.counts(),
        }
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.calls += other.calls;
        self.grants += other.grants;
        self.members += other.members;
        self.conversions += other.conversions;
        self.locks += other.locks;
        self.contended += other.contended;
        self.in_doubt += other.in_doubt;
        self.leases_lost += other.leases_lost;
        self.kills += other.kills;
        self.kills_bit += other.kills_bit;
        self.stops += other.stops;
        self.stops_bit += other.stops_bit;
        self.lost_replies += other.lost_replies;
        self.lost_requests += other.lost_requests;
        self.late_requests += other.late_requests;
        self.late_replies += other.late_replies;
        for (what, count) in &other.others {
            *self.others.entry(what).or_default() += count;
        }
    }

    /// Returns what is too little to prove anything.
    pub(crate) fn missing(&self, least: &Least, seconds: f64) -> Vec<String> {
        let counts = [
            (self.grants, least.grants, "grants"),
            (self.members, least.members, "grants that are not exclusive"),
            (self.conversions, least.conversions, "conversions"),
            (self.contended, 1.0 / seconds, "locks that several clients acquired"),
            (self.kills_bit, least.kills, "kills of a process that held or called"),
            (self.stops_bit, least.stops, "stops that a lease did not outlast"),
            (self.lost_replies, least.lost_replies, "lost replies to a request that changes something"),
        ];
        let short = counts.into_iter().filter(|(count, rate, _)| (*count as f64) < rate * seconds);
        short
            .map(|(count, rate, what)| format!("{count} {what}, not {:.0}", (rate * seconds).ceil()))
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls, {} grants ({} not exclusive, {} by conversion) of {} locks ({} contended), {} of {} kills and {} of {} stops had an effect, {} lost \
             and {} late replies, {} lost and {} late requests, {} calls in doubt, {} leases lost",
            self.calls,
            self.grants,
            self.members,
            self.conversions,
            self.locks,
            self.contended,
            self.kills_bit,
            self.kills,
            self.stops_bit,
            self.stops,
            self.lost_replies,
            self.late_replies,
            self.lost_requests,
            self.late_requests,
            self.in_doubt,
            self.leases_lost,
        )?;
        self.others.iter().try_for_each(|(what, count)| write!(f, ", {count} {what}"))
    }
}

fn is_call(event: &Event) -> bool {
    !matches!(event.operation, Operation::Delay { .. } | Operation::Outage | Operation::Beat { .. })
}

fn is_contended(lock: &LockHistory<'_>) -> bool {
    let clients =
        lock.grants.iter().map(|grant| &grant.acquire.id.client).filter(|client| &***client != "last");
    // A client of a process that was killed goes on under another name.
    let places: HashSet<(&str, &str)> = clients
        .map(|client| {
            let process = client.split('.').next().unwrap_or_default();
            (process, client.rsplit('/').next().unwrap_or_default())
        })
        .collect();
    places.len() > 1
}

/// Calls and grants of each client, in the order in which they were called.
struct Clients<'h> {
    calls: BTreeMap<Arc<str>, Vec<&'h Event>>,
    grants: BTreeMap<Arc<str>, Vec<&'h Grant<'h>>>,
}

impl<'h> Clients<'h> {
    fn of(history: &'h History, locks: &'h [LockHistory<'h>]) -> Clients<'h> {
        let mut clients = Clients { calls: BTreeMap::new(), grants: BTreeMap::new() };
        for event in history.events().iter().filter(|event| is_call(event)) {
            clients.calls.entry(Arc::clone(&event.id.client)).or_default().push(event);
        }
        for grant in locks.iter().flat_map(|lock| &lock.grants) {
            clients.grants.entry(Arc::clone(&grant.acquire.id.client)).or_default().push(grant);
        }
        clients.grants.values_mut().for_each(|grants| grants.sort_by_key(|grant| grant.acquire.called));
        clients
    }

    /// Whether one of the clients with these names had called the library and not returned.
    fn are_calling(&self, prefix: &str, at: Moment) -> bool {
        let calling = |calls: &[&Event]| {
            let last = calls[..calls.partition_point(|call| call.called <= at)].last();
            last.is_some_and(|call| call.returned.is_none_or(|returned| returned >= at))
        };
        named(&self.calls, prefix).any(|calls| calling(calls))
    }

    /// Whether one of the clients with these names held a lock.
    fn hold(&self, prefix: &str, at: Moment, tolerances: &Tolerances) -> bool {
        self.latest(prefix, at).any(|grant| grant.sure_end(tolerances) > at)
    }

    /// Whether a lease of the process ended during the stop, and the process used the lease afterwards.
    fn lose_a_lease(&self, stop: &Stop) -> bool {
        self.latest(&stop.clients, stop.from).any(|grant| {
            let renewed = grant.renewals.iter().filter_map(|(event, _)| match event.answer {
                Answer::Renewed { ends } if event.last_seen() <= stop.from => Some(ends),
                _ => None,
            });
            let ends = renewed.fold(grant.ends, Moment::max);
            let renewals = grant.renewals.iter().map(|(event, _)| event);
            let mut uses = renewals.chain(&grant.releases).chain(&grant.checks);
            let released = grant.releases.iter().any(|release| release.called <= stop.from);
            !released && stop.from < ends && ends < stop.to && uses.any(|used| used.last_seen() >= stop.to)
        })
    }

    /// The latest grant of each client before this moment.
    fn latest(&self, prefix: &str, at: Moment) -> impl Iterator<Item = &Grant<'h>> {
        named(&self.grants, prefix).filter_map(move |grants| {
            let last = grants[..grants.partition_point(|grant| grant.acquire.called <= at)].last();
            last.copied().filter(|grant| grant.granted <= at)
        })
    }
}

fn named<'a, T>(clients: &'a BTreeMap<Arc<str>, T>, prefix: &str) -> impl Iterator<Item = &'a T> {
    let from = clients.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
    from.take_while(move |(client, _)| client.starts_with(prefix)).map(|(_, value)| value)
}

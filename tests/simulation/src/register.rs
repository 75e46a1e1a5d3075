//! The locks of a simulated server, as each of the real stores keeps them.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlm::store::LatchStore;
use dlm::store::remote::{
    Capabilities, Compares, Create, Created, Found, ReadBack, Record, Register, Replace, Reply, Standing,
};
use dlm::{Deadline, Error, LockName, Result};
use parking_lot::Mutex;

use crate::engine::{SERVER, engine};
use crate::latches::SimulatedLatches;
use crate::network::Network;

/// A counter below this number was created by an increment, without a seed: see `src/store/hbase/locks.rs`.
const SEEDED: u64 = 1 << 40;
/// One in so many creations finds that the counter is in another region, and counts later.
const SPLIT_EVERY: u32 = 50;
/// One in so many requests to HBase comes after a flush of the lock's region.
const FLUSH_EVERY: u32 = 24;
/// How long the empty cell of a release lasts.
const FREE_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// The gateway waits so long for an answer of the server, and then sends the request again.
const GATEWAY_PAUSE: Duration = Duration::from_millis(100);
/// What the library counts on. Its clock may be slower.
const REPEATS_AFTER: Duration = Duration::from_millis(90);

/// Tries of one creation with [`Dialect::HbaseOwn`].
const TRIES: usize = 16;
/// What [`Dialect::AerospikeOwn`] adds to each TTL.
const OWN_SLACK: Duration = Duration::from_millis(20);

/// How a store keeps a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// HBase: record, fence and read-back in one request. The fence is in a row of its own.
    Hbase,
    /// HBase through a gateway: three requests. The gateway may send a request again, and the first copy of it may be
    /// served late.
    Gateway,
    /// Aerospike: two requests, no read-back. TTLs are whole seconds.
    Aerospike,
    /// HBase with `layout=own`: every change writes the record and its number. A creation chooses the number, which
    /// must be above the stored one.
    HbaseOwn,
    /// One record on Aerospike that stays: token, TTL and fence. The server chooses the fence.
    AerospikeOwn,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Dialect; 5] =
        [Dialect::Hbase, Dialect::Gateway, Dialect::Aerospike, Dialect::HbaseOwn, Dialect::AerospikeOwn];

    /// How much longer than its TTL this store may keep a record.
    pub fn slack(self) -> Duration {
        match self {
            Dialect::Aerospike => Duration::from_secs(2),
            Dialect::AerospikeOwn => OWN_SLACK + Duration::from_millis(2),
            _ => Duration::from_millis(1),
        }
    }

    /// Whether the record of an older grant may come back when the record of a holder that is gone has ended.
    pub fn brings_back(self) -> bool {
        matches!(self, Dialect::Hbase | Dialect::Gateway)
    }

    /// Whether the record contains its number.
    fn counts_in_record(self) -> bool {
        matches!(self, Dialect::HbaseOwn | Dialect::AerospikeOwn)
    }

    /// Whether conditions compare the token alone.
    fn compares_tokens(self) -> bool {
        matches!(self, Dialect::Aerospike | Dialect::AerospikeOwn)
    }
}

/// A [`Register`] on a simulated server, which all processes share.
#[derive(Debug)]
pub struct SimulatedRegister {
    dialect: Dialect,
    network: Arc<Network>,
    server: Arc<Mutex<Server>>,
    latches: SimulatedLatches,
}

/// What the server stores.
#[derive(Debug, Default)]
struct Server {
    locks: HashMap<String, Vec<Version>>,
    counters: HashMap<String, u64>,
    /// When each number of [`Dialect::HbaseOwn`] was written.
    numbered_ms: HashMap<String, u64>,
}

/// One version of a record. HBase shows an older version when the newest one has expired.
#[derive(Debug, Clone)]
struct Version {
    /// `None`: the lock is free.
    record: Option<Record>,
    written_ms: u64,
    ends_ms: u64,
    /// Whether a flush has written it to a file. It stays there.
    is_in_file: bool,
}

fn server_ms() -> u64 {
    let engine = engine();
    engine.clock(SERVER).wall_ms(engine.time())
}

impl Server {
    /// Returns the newest version that has not expired.
    fn newest(&self, name: &str) -> Option<&Version> {
        let now = server_ms();
        self.locks.get(name)?.iter().rev().find(|version| now < version.ends_ms)
    }

    fn holder(&self, name: &str) -> Option<(&Record, &Version)> {
        let newest = self.newest(name)?;
        let record = newest.record.as_ref()?;
        // A record of an earlier grant, which a flush has brought back, holds nothing in the layout `own`.
        let last = self.counters.get(name).filter(|_| record.number().is_some());
        (record.number() >= last.copied()).then_some((record, newest))
    }

    fn standing(&self, name: &str) -> Standing {
        match self.holder(name) {
            Some((record, version)) => {
                let left = Duration::from_millis(version.ends_ms.saturating_sub(server_ms()));
                let (record, written_ms) = (Some(record.clone()), Some(version.written_ms));
                Standing::Held(Found { record, written_ms, left: Some(left), beneath: None })
            }
            None => Standing::Free,
        }
    }

    /// Writes what is in memory to a file: of each cell, the newest version that has not expired. The others are gone.
    fn flush(&mut self, name: &str) {
        let now = server_ms();
        let Some(versions) = self.locks.get_mut(name) else { return };
        let lasts = |version: &Version| !version.is_in_file && now < version.ends_ms;
        let newest = versions.iter().rposition(lasts);
        let mut at = 0;
        versions.retain(|version| {
            at += 1;
            version.is_in_file || newest == Some(at - 1)
        });
        versions.iter_mut().for_each(|version| version.is_in_file = true);
    }

    /// Adds a version over the newest one, as HBase does.
    fn put(&mut self, name: &str, record: Option<Record>, ttl: Duration) {
        let seen = self.newest(name).map_or(0, |newest| newest.written_ms);
        self.put_at(name, record, ttl, server_ms().max(seen));
    }

    /// Writes record and number, as the layout `own` on HBase does. No timestamp is older than that of the number.
    fn put_with_number(&mut self, name: &str, record: Option<Record>, ttl: Duration, number: u64) {
        let seen = self.numbered_ms.get(name).copied().unwrap_or_default();
        let written_ms = server_ms().max(seen);
        self.put_at(name, record, ttl, written_ms);
        self.numbered_ms.insert(name.to_owned(), written_ms);
        self.counters.insert(name.to_owned(), number);
    }

    /// Adds a version. The server keeps a few old ones until a compaction.
    fn put_at(&mut self, name: &str, record: Option<Record>, ttl: Duration, written_ms: u64) {
        let ends_ms = written_ms + ttl.as_millis() as u64;
        let versions = self.locks.entry(name.to_owned()).or_default();
        let place = versions.partition_point(|version| version.written_ms <= written_ms);
        versions.insert(place, Version { record, written_ms, ends_ms, is_in_file: false });
        let old = versions.len().saturating_sub(8);
        versions.drain(..old);
    }

    /// Replaces the record, as Aerospike does: it ends with a whole second.
    fn set(&mut self, name: &str, record: Option<Record>, ttl: Duration) {
        let written_ms = server_ms();
        let ends_ms = (written_ms + 1000 * whole_seconds(ttl)).next_multiple_of(1000);
        let versions = self.locks.entry(name.to_owned()).or_default();
        versions.clear();
        versions.push(Version { record, written_ms, ends_ms, is_in_file: false });
    }

    /// Replaces the record, as the layout `own` on Aerospike does: it lasts for its TTL after its last update.
    fn update(&mut self, name: &str, record: Option<Record>, ttl: Duration) {
        let written_ms = server_ms();
        let ends_ms = written_ms + (ttl + OWN_SLACK).as_millis() as u64 + 1;
        let version = Version { record, written_ms, ends_ms, is_in_file: false };
        self.locks.insert(name.to_owned(), vec![version]);
    }

    /// Creates a record with the number that its client has chosen. Returns `None` if it was created, or else the
    /// number that is stored and what stands.
    fn claim(
        &mut self,
        name: &str,
        record: &Record,
        number: u64,
        numbers: u64,
    ) -> Option<(Option<u64>, Standing)> {
        let last = self.counters.get(name).copied();
        if self.holder(name).is_some() || last.is_some_and(|last| last > number - numbers) {
            return Some((last, self.standing(name)));
        }
        self.put_with_number(name, Some(record.numbered(number)), record.ttl(), number);
        None
    }

    /// Counts as HBase's native client does, which seeds a missing counter in the same request.
    fn count(&mut self, name: &str, least: u64, numbers: u64) -> u64 {
        let counter = self.counters.entry(name.to_owned()).or_insert(least - 1);
        *counter += numbers;
        *counter
    }
}

fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_millis().div_ceil(1000) as u64
}

impl SimulatedRegister {
    /// Makes a server without locks.
    pub fn new(dialect: Dialect, network: &Arc<Network>) -> SimulatedRegister {
        let network = Arc::clone(network);
        let latches = SimulatedLatches::new(&network, dialect != Dialect::Gateway);
        SimulatedRegister { dialect, network, server: Arc::default(), latches }
    }

    /// Creates a record with a number, as the layout `own` on HBase does. The number comes from the clock, or is the
    /// one after that in the store.
    fn claim(&self, create: &Create<'_>, by: Deadline) -> Result<Reply<Created>> {
        let numbers = create.numbers;
        let mut number = create.count.unwrap_or_default() + numbers - 1;
        // A client guesses whether the row has cells.
        let mut unused = engine().draw(|random| random.bool());
        for _ in 0..TRIES {
            let record = create.record.clone();
            let claimed = self.call(create.name, by, move |server, name| match unused {
                true if server.counters.contains_key(name) => Some(None),
                true => server.claim(name, &record, number, numbers).map(Some),
                false if server.counters.contains_key(name) => {
                    server.claim(name, &record, number, numbers).map(Some)
                }
                false => Some(Some((None, Standing::Free))),
            });
            match claimed.of_change()? {
                None => return Ok(Reply::Yes(Created { count: Some(number), standing: None })),
                Some(None) => unused = false,
                Some(Some((last, Standing::Free))) => {
                    if last.is_some_and(|last| last > number - numbers) {
                        self.network.counts.stale_numbers.fetch_add(1, Ordering::Relaxed);
                    }
                    unused = last.is_none();
                    number = number.max(last.unwrap_or_default() + numbers);
                }
                Some(Some((_, held))) => return Ok(Reply::No(Some(held))),
            }
        }
        let what = "others took the next number in each try".into();
        Err(Error::RetriesExhausted { store: self.describe(), what, source: None })
    }

    /// Sends a request to the server.
    fn call<T: 'static>(
        &self,
        name: &LockName,
        by: Deadline,
        serve: impl Fn(&mut Server, &str) -> T + 'static,
    ) -> crate::network::Outcome<T> {
        let (server, name) = (Arc::clone(&self.server), name.to_string());
        let flushed = !matches!(self.dialect, Dialect::Aerospike | Dialect::AerospikeOwn)
            && engine().draw(|random| random.u32(..FLUSH_EVERY) == 0);
        let serve = Rc::new(move || {
            let mut server = server.lock();
            if flushed {
                server.flush(&name);
            }
            serve(&mut server, &name)
        });
        let twice = self.dialect == Dialect::Gateway && engine().draw(|random| random.u8(..16) == 0);
        self.network.call_through(by, twice.then_some(GATEWAY_PAUSE), serve)
    }
}

impl Register for SimulatedRegister {
    fn describe(&self) -> String {
        "simulated:".into()
    }

    fn capabilities(&self) -> Capabilities {
        let hbase = Capabilities {
            reserves: self.dialect != Dialect::Gateway,
            read_back: ReadBack::Always,
            hides: true,
            ..Capabilities::default()
        };
        match self.dialect {
            Dialect::Hbase => hbase,
            Dialect::Gateway => Capabilities { repeats_after: Some(REPEATS_AFTER), ..hbase },
            Dialect::Aerospike | Dialect::HbaseOwn | Dialect::AerospikeOwn => Capabilities {
                counts_in_record: self.dialect.counts_in_record(),
                reserves: true,
                compares: if self.dialect.compares_tokens() { Compares::Token } else { Compares::Record },
                read_back: ReadBack::Never,
                ..Capabilities::default()
            },
        }
    }

    fn initialize(&self, _by: Deadline) -> Result<()> {
        Ok(())
    }

    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created> {
        if self.dialect == Dialect::HbaseOwn {
            return Reply::of(self.claim(create, by), |reply| reply);
        }
        let (record, least, dialect) = (create.record.clone(), create.count, self.dialect);
        let split = engine().draw(|random| random.u32(..SPLIT_EVERY) == 0);
        let (read_back, numbers) = (create.read_back, create.numbers);
        let created = self.call(create.name, by, move |server, name| {
            let free = server.holder(name).is_none();
            if free && dialect == Dialect::AerospikeOwn {
                let next = server.counters.get(name).map_or(0, |last| last + numbers);
                let number = next.max(least.unwrap_or_default() + numbers - 1);
                server.counters.insert(name.to_owned(), number);
                server.update(name, Some(record.numbered(number)), record.ttl());
                return Reply::Yes(Created { count: Some(number), standing: None });
            }
            if free {
                match dialect {
                    Dialect::Aerospike => server.set(name, Some(record.clone()), record.ttl()),
                    _ => server.put(name, Some(record.clone()), record.ttl()),
                }
            }
            let (counts, reads) = match dialect {
                // The count is not a part of the condition.
                Dialect::Hbase => (!split, read_back && !split),
                _ => (false, false),
            };
            let count = least.filter(|_| counts).map(|least| server.count(name, least, numbers));
            let standing = reads.then(|| server.standing(name));
            if free { Reply::Yes(Created { count, standing }) } else { Reply::No(standing) }
        });
        Reply::of(created.of_change(), |reply| reply)
    }

    fn replace(&self, replace: &Replace<'_>, by: Deadline) -> Reply {
        let (expected, record, dialect) = (replace.expected.clone(), replace.record.clone(), self.dialect);
        let replaced = self.call(replace.name, by, move |server, name| {
            let Some((stored, version)) = server.holder(name) else { return Reply::No(Some(Standing::Free)) };
            if !dialect.compares_tokens() {
                if *stored != expected {
                    return Reply::No(None);
                }
                match (dialect, expected.number()) {
                    (Dialect::HbaseOwn, Some(number)) => {
                        server.put_with_number(name, Some(record.clone()), record.ttl(), number);
                    }
                    _ => server.put(name, Some(record.clone()), record.ttl()),
                }
                return Reply::Yes(());
            }
            let left_ms = version.ends_ms.saturating_sub(server_ms());
            let lasts_longer = match dialect {
                Dialect::Aerospike => left_ms / 1000 > whole_seconds(record.ttl()),
                _ => left_ms > (record.ttl() + OWN_SLACK).as_millis() as u64,
            };
            if stored.token() != expected.token() || lasts_longer {
                return Reply::No(None);
            }
            let stored = stored.clone();
            match dialect {
                Dialect::Aerospike => server.set(name, Some(stored), record.ttl()),
                _ => server.update(name, Some(stored), record.ttl()),
            }
            Reply::Yes(())
        });
        Reply::of(replaced.of_change(), |reply| reply)
    }

    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        let (expected, dialect) = (expected.clone(), self.dialect);
        let removed = self.call(name, by, move |server, name| {
            let Some((stored, _)) = server.holder(name) else { return Reply::No(None) };
            let stands = match dialect.compares_tokens() {
                true => stored.token() == expected.token(),
                false => *stored == expected,
            };
            if !stands {
                return Reply::No(None);
            }
            match (dialect, expected.number()) {
                (Dialect::Aerospike | Dialect::AerospikeOwn, _) => drop(server.locks.remove(name)),
                (Dialect::HbaseOwn, Some(number)) => {
                    server.put_with_number(name, None, expected.ttl(), number)
                }
                _ => server.put(name, None, FREE_TTL),
            }
            Reply::Yes(())
        });
        Reply::of(removed.of_change(), |reply| reply)
    }

    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        self.call(name, by, |server, name| server.standing(name)).of_read()
    }

    fn count(&self, name: &LockName, least: u64, by: Deadline) -> Result<u64> {
        self.reserve(name, least, 1, by)
    }

    fn reserve(&self, name: &LockName, least: u64, numbers: u64, by: Deadline) -> Result<u64> {
        match self.dialect {
            Dialect::Hbase => {
                self.call(name, by, move |server, name| server.count(name, least, numbers)).of_change()
            }
            Dialect::Aerospike => self
                .call(name, by, move |server, name| {
                    let counter = server.counters.entry(name.to_owned()).or_default();
                    *counter = (least + numbers - 1).max(*counter + numbers);
                    *counter
                })
                .of_change(),
            Dialect::HbaseOwn | Dialect::AerospikeOwn => {
                let what = "a lock is counted only when it is acquired".into();
                Err(Error::Internal { what, source: None })
            }
            Dialect::Gateway => loop {
                let increment = |server: &mut Server, name: &str| server.count(name, 1, 1);
                let number = self.call(name, by, increment).of_change()?;
                if number >= SEEDED {
                    return Ok(number);
                }
                let seed = move |server: &mut Server, name: &str| {
                    let counter = server.counters.get_mut(name).filter(|counter| **counter == number);
                    counter.map(|counter| *counter = least).is_some()
                };
                if self.call(name, by, seed).of_change()? {
                    return Ok(least);
                }
            },
        }
    }

    fn last_count(&self, name: &LockName, by: Deadline) -> Result<Option<u64>> {
        self.call(name, by, |server, name| server.counters.get(name).copied()).of_read()
    }

    fn cover(&self, name: &LockName, _: Duration, by: Deadline) -> Result<()> {
        let covered = self.call(name, by, |server, name| {
            if server.holder(name).is_none() {
                server.put(name, None, FREE_TTL);
            }
        });
        covered.of_change()
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(&self.latches)
    }
}

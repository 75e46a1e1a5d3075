//! The locks of a simulated server, as each of the real stores keeps them.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::LatchStore;
use dlm::store::remote::{
    Capabilities, Compares, Create, Created, Found, ReadBack, Record, Register, Replace, Reply, Standing,
};
use dlm::{Deadline, LockName, Result};
use parking_lot::Mutex;

use crate::engine::{SERVER, engine};
use crate::latches::SimulatedLatches;
use crate::network::Network;

/// A counter below this number was created by an increment, without a seed: see `src/store/hbase/locks.rs`.
const SEEDED: u64 = 1 << 40;
/// One in so many creations finds that the counter is in another region, and counts later.
const SPLIT_EVERY: u32 = 50;

/// The gateway waits so long for an answer of the server, and then sends the request again.
const GATEWAY_PAUSE: Duration = Duration::from_millis(100);
/// What the library counts on. Its clock may be slower.
const REPEATS_AFTER: Duration = Duration::from_millis(90);

/// How a store keeps a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// HBase: record, fence and read-back in one request. The fence is in a row of its own.
    Hbase,
    /// HBase with `fence=lock_row`.
    HbaseLockRow,
    /// HBase through a gateway: three requests. The gateway may send a request again, and the first copy of it may be
    /// served late.
    Gateway,
    /// Aerospike: two requests, no read-back. TTLs are whole seconds.
    Aerospike,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Dialect; 4] =
        [Dialect::Hbase, Dialect::HbaseLockRow, Dialect::Gateway, Dialect::Aerospike];

    /// How much longer than its TTL this store may keep a record.
    pub fn slack(self) -> Duration {
        if self == Dialect::Aerospike { Duration::from_secs(2) } else { Duration::from_millis(1) }
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
}

/// One version of a record. HBase shows an older version when the newest one has expired.
#[derive(Debug, Clone)]
struct Version {
    /// `None`: the lock is free.
    record: Option<Record>,
    written_ms: u64,
    ends_ms: u64,
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
        newest.record.as_ref().map(|record| (record, newest))
    }

    fn standing(&self, name: &str) -> Standing {
        match self.holder(name) {
            Some((record, version)) => {
                let left = Duration::from_millis(version.ends_ms.saturating_sub(server_ms()));
                let (record, written_ms) = (Some(record.clone()), Some(version.written_ms));
                Standing::Held(Found { record, written_ms, left: Some(left) })
            }
            None => Standing::Free,
        }
    }

    /// Adds a version over the newest one, as HBase does. It keeps a few old versions until a compaction.
    fn put(&mut self, name: &str, record: Option<Record>, ttl: Duration) {
        let seen = self.newest(name).map_or(0, |newest| newest.written_ms);
        let written_ms = server_ms().max(seen);
        let ends_ms = written_ms + ttl.as_millis() as u64;
        let versions = self.locks.entry(name.to_owned()).or_default();
        let place = versions.partition_point(|version| version.written_ms <= written_ms);
        versions.insert(place, Version { record, written_ms, ends_ms });
        let old = versions.len().saturating_sub(8);
        versions.drain(..old);
    }

    /// Replaces the record, as Aerospike does: it ends with a whole second.
    fn set(&mut self, name: &str, record: Option<Record>, ttl: Duration) {
        let written_ms = server_ms();
        let ends_ms = (written_ms + 1000 * whole_seconds(ttl)).next_multiple_of(1000);
        let versions = self.locks.entry(name.to_owned()).or_default();
        versions.clear();
        versions.push(Version { record, written_ms, ends_ms });
    }

    /// Counts as HBase's native client does, which seeds a missing counter in the same request.
    fn count(&mut self, name: &str, least: u64) -> u64 {
        let counter = self.counters.entry(name.to_owned()).or_insert(least - 1);
        *counter += 1;
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

    /// Sends a request to the server.
    fn call<T: 'static>(
        &self,
        name: &LockName,
        by: Deadline,
        serve: impl Fn(&mut Server, &str) -> T + 'static,
    ) -> crate::network::Outcome<T> {
        let (server, name) = (Arc::clone(&self.server), name.to_string());
        let serve = Rc::new(move || serve(&mut server.lock(), &name));
        let twice = self.dialect == Dialect::Gateway && engine().draw(|random| random.u8(..16) == 0);
        self.network.call_through(by, twice.then_some(GATEWAY_PAUSE), serve)
    }
}

impl Register for SimulatedRegister {
    fn describe(&self) -> String {
        "simulated:".into()
    }

    fn capabilities(&self) -> Capabilities {
        let hbase = Capabilities { read_back: ReadBack::Always, hides: true, ..Capabilities::default() };
        match self.dialect {
            Dialect::Hbase | Dialect::HbaseLockRow => hbase,
            Dialect::Gateway => Capabilities { repeats_after: Some(REPEATS_AFTER), ..hbase },
            Dialect::Aerospike => Capabilities {
                compares: Compares::Token,
                read_back: ReadBack::Never,
                ..Capabilities::default()
            },
        }
    }

    fn initialize(&self, _by: Deadline) -> Result<()> {
        Ok(())
    }

    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created> {
        let (record, least, dialect) = (create.record.clone(), create.count, self.dialect);
        let split = engine().draw(|random| random.u32(..SPLIT_EVERY) == 0);
        let read_back = create.read_back;
        let created = self.call(create.name, by, move |server, name| {
            let free = server.holder(name).is_none();
            if free {
                match dialect {
                    Dialect::Aerospike => server.set(name, Some(record.clone()), record.ttl()),
                    _ => server.put(name, Some(record.clone()), record.ttl()),
                }
            }
            let (counts, reads) = match dialect {
                // The count is not a part of the condition.
                Dialect::Hbase => (!split, read_back && !split),
                Dialect::HbaseLockRow => (free, read_back),
                Dialect::Gateway | Dialect::Aerospike => (false, false),
            };
            let count = least.filter(|_| counts).map(|least| server.count(name, least));
            let standing = reads.then(|| server.standing(name));
            if free { Ok(Created { count, standing }) } else { Err(standing) }
        });
        Reply::of(created.of_change())
    }

    fn replace(&self, replace: &Replace<'_>, by: Deadline) -> Reply {
        let (expected, record, dialect) = (replace.expected.clone(), replace.record.clone(), self.dialect);
        let replaced = self.call(replace.name, by, move |server, name| {
            let Some((stored, version)) = server.holder(name) else { return Err(Some(Standing::Free)) };
            if dialect != Dialect::Aerospike {
                if *stored != expected {
                    return Err(None);
                }
                server.put(name, Some(record.clone()), record.ttl());
                return Ok(());
            }
            let left_ms = version.ends_ms.saturating_sub(server_ms());
            if stored.token() != expected.token() || left_ms / 1000 > whole_seconds(record.ttl()) {
                return Err(None);
            }
            let stored = stored.clone();
            server.set(name, Some(stored), record.ttl());
            Ok(())
        });
        Reply::of(replaced.of_change())
    }

    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        let (expected, dialect) = (expected.clone(), self.dialect);
        let removed = self.call(name, by, move |server, name| {
            let Some((stored, _)) = server.holder(name) else { return Err(None) };
            if dialect == Dialect::Aerospike {
                if stored.token() != expected.token() {
                    return Err(None);
                }
                server.locks.remove(name);
            } else {
                if *stored != expected {
                    return Err(None);
                }
                server.put(name, None, expected.ttl());
            }
            Ok(())
        });
        Reply::of(removed.of_change())
    }

    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        self.call(name, by, |server, name| server.standing(name)).of_read()
    }

    fn count(&self, name: &LockName, least: u64, by: Deadline) -> Result<u64> {
        match self.dialect {
            Dialect::Hbase | Dialect::HbaseLockRow => {
                self.call(name, by, move |server, name| server.count(name, least)).of_change()
            }
            Dialect::Aerospike => self
                .call(name, by, move |server, name| {
                    let counter = server.counters.entry(name.to_owned()).or_default();
                    *counter = least.max(*counter + 1);
                    *counter
                })
                .of_change(),
            Dialect::Gateway => loop {
                let increment = |server: &mut Server, name: &str| server.count(name, 1);
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

    fn cover(&self, name: &LockName, ttl: Duration, by: Deadline) -> Result<()> {
        let covered = self.call(name, by, move |server, name| {
            if server.holder(name).is_none() {
                server.put(name, None, ttl);
            }
        });
        covered.of_change()
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(&self.latches)
    }
}

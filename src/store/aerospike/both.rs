//! The layout `both`: for a fleet that moves between the layouts `java` and `own`.
//!
//! A lock has one record in both layouts, under the same set and key, so the record that stands decides:
//!
//! | the key has | an acquire | a release |
//! |---|---|---|
//! | no record | creates one of the layout `java` | deletes it |
//! | a record of the layout `own` | takes it, if it is free | raises the fence of the layout `java` to its fence, and deletes it |
//! | a record of the layout `java` | is refused | - |
//!
//! So a lock that a client of this layout has released can be acquired by clients of each layout. The first fence of a
//! new record of the layout `own` is above that of the layout `java`.

use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::locks::AerospikeStore;
use super::options::Setup;
use super::own::{AerospikeOwnStore, refuse_fence, take_slack};
use super::promises;
use crate::error::Result;
use crate::names::diagnostic::Diagnostic;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::owner::{OwnerRecord, OwnerToken};
use crate::names::promise::Promise;
use crate::runtime::time::Deadline;
use crate::settings::options::Options;
use crate::store::counters::StoreCounters;
use crate::store::layout::Layout;
use crate::store::remote::RemoteStore;
use crate::store::remote::resolve::part;
use crate::store::{
    Acquired, Attempt, HistoryStore, Inspection, LatchStore, ListCursor, LockPage, LockQuery, LockStore,
    OnRenewed, Released, Renewal,
};

/// A [`LockStore`] over both layouts. An owner record is that of the layout in which the lock was acquired.
#[derive(Debug)]
pub(crate) struct AerospikeBothStore {
    java: RemoteStore<AerospikeStore>,
    own: RemoteStore<AerospikeOwnStore>,
}

impl AerospikeBothStore {
    /// Creates a store. See [`AerospikeStore::open`].
    pub(crate) fn open(
        hosts: &str,
        namespace: &str,
        suffix: &str,
        mut options: Options,
    ) -> Result<AerospikeBothStore> {
        let slack = take_slack(&mut options)?;
        refuse_fence(&mut options, Layout::Both)?;
        let setup = Setup::read(hosts, namespace, suffix, options)?;
        let client = Arc::new(Client::new(&setup));
        let java = AerospikeStore::beside_own(Arc::clone(&client), setup.suffix.clone());
        let own = AerospikeOwnStore::over(client, setup.suffix, slack, true);
        Ok(AerospikeBothStore { java: RemoteStore::new(java), own: RemoteStore::new(own) })
    }

    /// Returns the store of the layout in which a lock was acquired.
    fn store_of(&self, owner_record: &OwnerRecord) -> &dyn LockStore {
        if owner_record.as_bytes().len() == OwnerToken::LEN { &self.java } else { &self.own }
    }
}

impl LockStore for AerospikeBothStore {
    fn describe(&self) -> String {
        self.own.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.own.initialize(by)
    }

    fn greet(&self, by: Deadline) -> Result<()> {
        self.own.greet(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        match self.java.acquire(attempt, doubtful)? {
            Acquired::Granted(grant) => Ok(Acquired::Granted(grant)),
            Acquired::Held(holder) => match self.own.acquire(attempt, doubtful)? {
                // Only the reader of the layout that wrote the record knows who did.
                Acquired::Held(seen) if seen.identity.is_none() => Ok(Acquired::Held(holder)),
                acquired => Ok(acquired),
            },
        }
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.store_of(owner_record).renew(name, owner_record, ttl, by)
    }

    /// The leases of one layout and then those of the other one, if there are both. So a node that hangs delays those of
    /// the second layout by half of the time at most.
    fn renew_many(&self, renewals: &[Renewal<'_>], by: Deadline, report: OnRenewed<'_>) {
        let is_java = |at: &usize| renewals[*at].owner_record.as_bytes().len() == OwnerToken::LEN;
        let (java, own): (Vec<_>, Vec<_>) = (0..renewals.len()).partition(is_java);
        let java_by = if own.is_empty() { by } else { part(by, 2) };
        let halves: [(&dyn LockStore, _, _); 2] = [(&self.java, java, java_by), (&self.own, own, by)];
        for (store, places, by) in halves.into_iter().filter(|(_, places, _)| !places.is_empty()) {
            let half: Vec<_> = places.iter().map(|at| renewals[*at]).collect();
            store.renew_many(&half, by, &mut |at, since, answer| report(places[at], since, answer));
        }
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.store_of(owner_record).release(name, owner_record, by)
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        match self.own.holder(name, by)? {
            Some(holder) if holder.identity.is_none() => self.java.holder(name, by),
            known => Ok(known),
        }
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        let (java, own) = (self.java.inspect(name, by)?, self.own.inspect(name, by)?);
        let fence = java.fence.max(own.fence);
        // Only the reader of the layout that wrote the record knows who did.
        let known = match own.holder.as_ref().is_some_and(|holder| holder.identity.is_none()) {
            true => java,
            false => own,
        };
        Ok(Inspection { fence, layout: Some(Layout::Both.name()), ..known })
    }

    fn release_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Result<Released> {
        self.java.release_stamped(name, stamp, by)
    }

    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        self.store_of(owner_record).grant_number(owner_record)
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        self.java.history()
    }

    /// The records of both layouts are in the same sets.
    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        self.own.list(query, after, most, by)
    }

    fn in_flight_for(&self) -> Duration {
        self.own.in_flight_for()
    }

    fn promises(&self) -> Vec<Promise> {
        promises::both()
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        self.own.diagnose(by)
    }

    fn counters(&self) -> StoreCounters {
        self.java.counters().plus(self.own.counters())
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.own.latches()
    }
}

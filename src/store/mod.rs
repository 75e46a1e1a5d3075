//! The contract between the stores and the parts that use them (manager, queue, leases).
//!
//! Each request has one of three outcomes, and a store never confuses them. The request *was applied*, it *was not
//! applied*, or it is *in doubt* because a reply was lost. The suite in `testkit/src/contract` tests the contract
//! on every store.
//!
//! The module is public for programs that add a store or wrap one, for example to inject faults into their own
//! tests. Expect additions in minor versions.

#[cfg(any(feature = "aerospike", feature = "hbase"))]
mod address;
#[cfg(feature = "aerospike")]
pub(crate) mod aerospike;
#[cfg(feature = "hbase")]
pub(crate) mod both;
mod counters;
#[cfg(any(feature = "aerospike", feature = "hbase"))]
mod deadline_socket;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(any(feature = "aerospike", feature = "hbase"))]
mod first_contact;
mod grant;
#[cfg(feature = "hbase")]
pub(crate) mod hbase;
mod history_store;
mod latch_record;
mod latch_store;
#[cfg(any(feature = "aerospike", feature = "hbase"))]
mod layout;
mod lock_holds;
mod lock_list;
mod lock_store;
mod memory;
mod mode_store;
pub mod remote;
#[cfg(any(feature = "aerospike", feature = "hbase"))]
mod request_kind;
pub(crate) mod scheme;
mod semaphore_store;
pub(crate) mod store_uri;
#[cfg(any(feature = "aerospike", feature = "hbase"))]
mod tls;
pub(crate) mod uri;

#[cfg(feature = "aerospike")]
pub use self::aerospike::AerospikeStore;
#[cfg(all(feature = "aerospike", fuzzing))]
#[doc(hidden)]
pub use self::aerospike::fuzz_aerospike;
pub use crate::names::diagnostic::{Diagnostic, Severity};
pub use crate::names::fence::{Epoch, Fence};
pub use crate::names::history_entry::{HistoryEntry, HistoryKind};
pub use crate::names::holder::{Holder, Identity};
pub use crate::names::latch_name::LatchName;
pub use crate::names::lock_name::{CLIENT_BYTES_MAX, ID_BYTES_MAX, Level, LockName, NamePolicy};
pub use crate::names::mode::Mode;
pub use crate::names::notice_endpoint::{GrantEndpoint, LatchListener, NoticeEndpoint};
pub use crate::names::owner::{OwnerRecord, OwnerToken};
pub use crate::names::promise::{Promise, PromiseTopic, Verdict};
pub use crate::settings::manager_options::MANAGER as MANAGER_OPTIONS;
pub use crate::settings::store_option::StoreOption;
pub use counters::{LiveCounters, StoreCounters};
#[cfg(feature = "embedded")]
pub use embedded::EmbeddedStore;
pub use grant::{Acquired, Attempt, Grant, GrantRecord};
#[cfg(feature = "hbase")]
pub use hbase::HbaseStore;
#[cfg(all(feature = "hbase", fuzzing))]
#[doc(hidden)]
pub use hbase::fuzz_hbase;
#[cfg(feature = "hbase")]
pub use hbase::options::TABLE_OPTIONS;
pub use history_store::{HISTORY_MAX, HistoryOf, HistoryStore};
pub(crate) use latch_store::check_participant;
#[cfg(feature = "hbase")]
pub(crate) use latch_store::unexpected;
pub use latch_store::{
    LISTENERS_MAX, LatchNote, LatchPage, LatchQuery, LatchStore, ListedLatch, NewLatch,
    PARTICIPANT_BYTES_MAX, Roster, Step, Stepped,
};
pub use lock_list::{ListCursor, ListedLock, LockPage, LockQuery};
pub(crate) use lock_store::locks_only;
pub use lock_store::{Inspection, LivenessStore, LockStore, OnRenewed, Released, Renewal};
pub use memory::MemoryStore;
pub use mode_store::{
    Conversion, Converted, INTENT_MAX, Intent, IntentId, LockHold, ModeStore, ModeTerms, TURN_MAX,
};
pub use scheme::{Scheme, register_scheme};
pub(crate) use semaphore_store::checked_size;
pub use semaphore_store::{
    AcquiredPermits, PERMITS_MAX, PermitGrant, PermitTerms, SemaphoreState, SemaphoreStore,
};
pub use store_uri::StoreUri;
pub use uri::{open, schemes};

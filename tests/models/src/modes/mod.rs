//! A second model: the modes exclusive, shared and update, on the cells of HBase.
//!
//! * [`store`]: the row of one lock
//! * [`requests`]: the conditional mutations, and the wrong protocols
//! * [`client`]: one client
//! * [`model`]: clocks, network, receiver, and the properties
//! * [`crosswise`]: two readers and two writers of two locks

pub mod client;
pub mod crosswise;
pub mod model;
pub mod requests;
pub mod store;

pub use crosswise::Crosswise;
pub use model::{Action, Model, Role};
pub use requests::{Rules, Variant};
pub use store::Kind;

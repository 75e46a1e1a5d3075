//! Authentication with HBase's servers, and the protection of what is sent after it. With `auth=simple` there is neither.
//!
//! ```text
//! options  ->  login  ->  tickets (a thread of its own), principals (whom we expect at the other end)
//! handshake (SASL with one server)  ->  layer (what is sent from then on)  ->  protection
//! ```

mod handshake;
mod layer;
mod login;
mod options;
mod principals;
mod protection;
mod tickets;

pub(super) use self::handshake::{TicketEnd, authenticate};
pub(super) use self::layer::SecurityLayer;
pub(super) use self::options::Auth;
pub(in crate::store::hbase) use self::options::{
    AUTH, KEYTAB, MASTER_PRINCIPAL, PRINCIPAL, PROTECTION, SERVER_PRINCIPAL, TICKET_CACHE,
};
pub(super) use self::principals::ServedBy;
pub(super) use self::protection::{ERROR_AFTER_HANDSHAKE, Protection, refused_after_handshake};
pub(super) use self::tickets::BegunContext;

//! Network address of a server.

/// Host and port of a server, as the cluster reports them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// Checks an address that a server sent. Refuses text that cannot be a host name, because messages to people
    /// contain the host.
    pub(super) fn from_server(host: &str, port: u16) -> Option<Address> {
        let legal = |c: char| c.is_alphanumeric() || "-._:%".contains(c);
        let is_host = (1..=255).contains(&host.len()) && host.chars().all(legal);
        (is_host && port != 0).then(|| Address { host: host.to_owned(), port })
    }
}

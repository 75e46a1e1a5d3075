//! Where a server is.

/// A server's address as the cluster knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// As a server says it. What can be no host is none: it would end up in messages to people.
    pub(super) fn told(host: &str, port: u16) -> Option<Address> {
        let legal = |c: char| c.is_alphanumeric() || "-._:%".contains(c);
        let is_host = (1..=255).contains(&host.len()) && host.chars().all(legal);
        (is_host && port != 0).then(|| Address { host: host.to_owned(), port })
    }
}

//! The principals that the servers of a cluster have.

/// Principals of the servers of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerPrincipals {
    pub(super) region_server: String,
    pub(super) master: String,
}

/// Which servers have a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::hbase::native) enum ServedBy {
    Master,
    RegionServer,
    /// Masters, and RegionServers of HBase 2.5 and later.
    Both,
}

impl ServerPrincipals {
    /// The part that stands for the name of the server.
    const HOST: &'static str = "_HOST";

    /// Returns the principals that a server of this name may have, the likelier one first.
    pub(super) fn of(&self, served_by: ServedBy, host: &str) -> Vec<String> {
        let host = host.to_ascii_lowercase();
        let [master, region_server] =
            [&self.master, &self.region_server].map(|name| name.replace(ServerPrincipals::HOST, &host));
        match served_by {
            ServedBy::Master => vec![master],
            ServedBy::RegionServer => vec![region_server],
            ServedBy::Both if master == region_server => vec![master],
            ServedBy::Both => vec![master, region_server],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_server_stands_in_its_principal_in_lower_case() {
        let servers = ServerPrincipals { region_server: "rs/_HOST@R".into(), master: "m/_HOST@R".into() };
        assert_eq!(servers.of(ServedBy::RegionServer, "A.example"), ["rs/a.example@R"]);
        assert_eq!(servers.of(ServedBy::Master, "a.example"), ["m/a.example@R"]);
        assert_eq!(servers.of(ServedBy::Both, "a.example"), ["m/a.example@R", "rs/a.example@R"]);
        let same = ServerPrincipals { region_server: "hbase/_HOST".into(), master: "hbase/_HOST".into() };
        assert_eq!(same.of(ServedBy::Both, "a"), ["hbase/a"]);
    }
}

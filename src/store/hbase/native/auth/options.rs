//! The options that say who this process is for HBase.

use std::sync::Arc;

use super::login::KerberosLogin;
use super::principals::ServerPrincipals;
use super::protection::Protection;
use crate::error::{Error, Result};
use crate::runtime::process::gssapi::TicketSource;
use crate::settings::options::Options;
use crate::settings::store_option::StoreOption;

pub(in crate::store::hbase) const AUTH: StoreOption =
    StoreOption::new("auth", "simple", "`simple`, `kerberos`: how servers know who we are");
pub(in crate::store::hbase) const PROTECTION: StoreOption = StoreOption::new(
    "protection",
    "authentication",
    "`authentication`, `integrity`, `privacy`: the least protection of what is sent, with `auth=kerberos`",
);
pub(in crate::store::hbase) const PRINCIPAL: StoreOption = StoreOption::new(
    "principal",
    "",
    "our principal; by default that of the ticket cache or of the keytab's first key",
);
pub(in crate::store::hbase) const KEYTAB: StoreOption = StoreOption::new(
    "keytab",
    "",
    "the file with our principal's keys; by default tickets come from the ticket cache",
);
pub(in crate::store::hbase) const TICKET_CACHE: StoreOption = StoreOption::new(
    "ticket_cache",
    "",
    "the ticket cache, such as `FILE:/tmp/krb5cc_0`; by default that of the process",
);
pub(in crate::store::hbase) const SERVER_PRINCIPAL: StoreOption = StoreOption::new(
    "server_principal",
    "hbase/_HOST",
    "the principal of the RegionServers; `_HOST` is the server's name",
);
pub(in crate::store::hbase) const MASTER_PRINCIPAL: StoreOption = StoreOption::new(
    "master_principal",
    "",
    "the principal of the masters; by default that of the RegionServers",
);

/// How connections are authenticated.
#[derive(Debug, Clone)]
pub(in crate::store::hbase::native) enum Auth {
    /// The servers believe the name that we tell them.
    Simple {
        user: String,
    },
    Kerberos(Arc<KerberosLogin>),
}

impl Auth {
    /// Reads and checks the options. No I/O.
    pub(in crate::store::hbase::native) fn read(options: &mut Options) -> Result<Auth> {
        let user = options.take("user");
        let auth = options.take("auth");
        let [protection, principal, keytab, cache, server, master] =
            ["protection", "principal", "keytab", "ticket_cache", "server_principal", "master_principal"]
                .map(|key| (key, options.take(key)));
        match auth.as_deref() {
            None | Some("simple") => {
                let given = [protection, principal, keytab, cache, server, master];
                match given.into_iter().find_map(|(key, value)| value.map(|value| (key, value))) {
                    None => return Ok(Auth::Simple { user: user.unwrap_or_else(login_name) }),
                    Some((key, value)) => return Err(Error::invalid(key, value, "only with auth=kerberos")),
                }
            }
            Some("kerberos") => {
                if let Some(user) = user {
                    return Err(Error::invalid(
                        "user",
                        user,
                        "only with auth=simple: Kerberos has principal=",
                    ));
                }
            }
            Some(other) => return Err(Error::invalid("auth", other, "simple or kerberos")),
        }
        let least = match protection.1.as_deref() {
            None => Protection::Authentication,
            Some(text) => *Protection::ALL
                .iter()
                .find(|it| it.name() == text)
                .ok_or_else(|| Error::invalid("protection", text, "authentication, integrity or privacy"))?,
        };
        let source = match (keytab.1, cache.1) {
            (None, None) => TicketSource::Default,
            (None, Some(cache)) => TicketSource::Cache(text("ticket_cache", cache)?),
            (Some(file), None) => {
                TicketSource::Keytab { file: text("keytab", file)?, cache: KerberosLogin::own_cache()? }
            }
            (Some(_), Some(cache)) => {
                return Err(Error::invalid(
                    "ticket_cache",
                    cache,
                    "no keytab beside it: tickets come from one of them",
                ));
            }
        };
        let principal = principal.1.map(|name| text("principal", name)).transpose()?;
        let region_server =
            text("server_principal", server.1.unwrap_or_else(|| SERVER_PRINCIPAL.default.to_owned()))?;
        let master = master.1.map_or(Ok(region_server.clone()), |name| text("master_principal", name))?;
        let servers = ServerPrincipals { region_server, master };
        Ok(Auth::Kerberos(Arc::new(KerberosLogin::new(source, principal, servers, least))))
    }
}

/// Returns the default user name. The servers log it and do not check it: without Kerberos it protects nothing.
fn login_name() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "dlm".into())
}

/// Checks a text that is given to the library for Kerberos, which reads it up to a NUL.
fn text(what: &'static str, text: String) -> Result<String> {
    if text.is_empty() || text.contains(['\0', '\n']) {
        return Err(Error::invalid(what, text, "one line that is not empty"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)]) -> Result<Auth> {
        let mut options = Options::default();
        for (key, value) in given {
            options.insert((*key).to_owned(), (*value).to_owned()).unwrap();
        }
        let auth = Auth::read(&mut options)?;
        options.finish(&[]).unwrap();
        Ok(auth)
    }

    #[test]
    fn options_of_kerberos_are_refused_without_it_and_wrong_values_with_it() {
        assert!(matches!(read(&[("user", "me")]).unwrap(), Auth::Simple { user } if user == "me"));
        assert!(matches!(read(&[("auth", "simple")]).unwrap(), Auth::Simple { .. }));
        assert!(matches!(read(&[("auth", "kerberos")]).unwrap(), Auth::Kerberos(_)));
        for (given, allowed) in [
            (&[("auth", "ntlm")][..], "simple or kerberos"),
            (&[("keytab", "/k")], "only with auth=kerberos"),
            (&[("auth", "kerberos"), ("user", "me")], "only with auth=simple"),
            (&[("protection", "privacy")], "only with auth=kerberos"),
            (&[("auth", "kerberos"), ("protection", "auth-conf")], "authentication, integrity or privacy"),
            (&[("auth", "kerberos"), ("keytab", "/k"), ("ticket_cache", "FILE:/c")], "no keytab beside it"),
            (&[("auth", "kerberos"), ("principal", "")], "one line"),
            (&[("auth", "kerberos"), ("keytab", "a\0b")], "one line"),
        ] {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(allowed), "{given:?}: {error}");
        }
    }
}

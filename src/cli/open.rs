//! Opens the store and its locks as the command line says.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dlm::{Builder, Level, Lock, LockManager, LockName, Semaphore};

use crate::cli::args::{Global, LockArg, Reach, TermArgs};
use crate::cli::exit::CommandFailure;
use crate::cli::late_line::LateLine;
use crate::cli::names;
use crate::cli::narrator::Narrator;

/// Default client id. It does not depend on the user or host, so scripts exclude each other by default.
const DEFAULT_CLIENT: &str = "dlm";
/// A person at a terminal notices a pause of this length.
const NOTICED: Duration = Duration::from_secs(1);
/// Default farm id for a store of one machine. Stores that machines share have no default. With one, two data
/// centres that both omit the farm would share a lock that should be separate, and a script could use another
/// farm id than a service of its data centre.
const DEFAULT_FARM: &str = "local";

const VARIABLES: [&str; 3] = ["DLM_STORE", "DLM_CLIENT", "DLM_FARM"];

/// Opens the store. Others see `purpose` in `dlm show`.
pub(crate) fn manager(
    global: &Global,
    terms: Option<&TermArgs>,
    purpose: &str,
) -> Result<LockManager, CommandFailure> {
    let mut builder = builder(global, purpose);
    if let Some(terms) = terms {
        if let Some(ttl) = terms.ttl {
            builder = builder.ttl(ttl);
        }
        if let Some(wait) = terms.wait {
            builder = builder.wait(wait);
        }
        if let Some(retry) = terms.retry {
            builder = builder.retry(retry);
        }
    }
    Ok(builder.open()?)
}

/// Waits until the store answers, for the store time-out or `limit` at most. On a terminal, says so after a second. Fails
/// sooner if the address of the store is wrong.
pub(crate) fn reach(manager: &LockManager, limit: Option<Duration>) -> Result<(), CommandFailure> {
    let store = manager.store();
    let _note = LateLine::after(NOTICED, move || format!("waiting for an answer of {store}"));
    Ok(manager.reach(limit.unwrap_or(Duration::MAX))?)
}

/// Returns a builder for the store, with the client id, the farm id and the purpose.
pub(crate) fn builder(global: &Global, purpose: &str) -> Builder {
    let mut builder = LockManager::builder().store_uri(&global.store);
    if log::max_level() >= log::LevelFilter::Info {
        builder = builder.event_sink(Arc::new(Narrator));
    }
    if let Some(client) = &global.client {
        builder = builder.client(client);
    } else if !in_uri(&global.store, "client") {
        builder = builder.client(DEFAULT_CLIENT);
    }
    if let Some(farm) = &global.farm {
        builder = builder.farm(farm);
    } else if is_local(&global.store) && !in_uri(&global.store, "farm") {
        builder = builder.farm(DEFAULT_FARM);
    }
    if !in_uri(&global.store, "purpose") {
        builder = builder.purpose(&purpose_of(purpose));
    }
    builder
}

/// Refuses an empty store, client or farm, which a variable that a script has not set often is.
pub(crate) fn refuse_empty(global: &Global) -> Result<(), CommandFailure> {
    let values = [Some(&global.store), global.client.as_ref(), global.farm.as_ref()];
    for (variable, value) in VARIABLES.into_iter().zip(values) {
        if value.is_none_or(|value| !value.is_empty()) {
            continue;
        }
        let flag = variable.replace("DLM_", "--").to_lowercase();
        let is_set = std::env::var_os(variable).is_some_and(|value| value.is_empty());
        let what = match is_set {
            true => format!("{variable} is set and empty; unset it, or give it a value"),
            false => format!("{flag} is empty; give it a value, or leave it out"),
        };
        return Err(CommandFailure::usage(what));
    }
    Ok(())
}

/// Refuses a store that ends with this process, because it excludes no other one.
pub(crate) fn refuse_memory(global: &Global) -> Result<(), CommandFailure> {
    match scheme(&global.store) == "memory" {
        true => Err(CommandFailure::usage(
            "a memory: store belongs to one process, so a lock in it excludes no other `dlm`; leave --store out, or \
             use embedded:/path",
        )),
        false => Ok(()),
    }
}

/// Returns the lock `name`, which may be a full name. No I/O.
fn unreached(
    manager: &LockManager,
    global: &Global,
    level: Reach,
    name: &str,
) -> Result<Lock, CommandFailure> {
    match names::full_name(name) {
        Some(full) => Ok(manager.lock_named(&full)),
        None => Ok(manager.lock(name, lock_level(global, level)?)?),
    }
}

/// Returns the lock `name`, which may be a full name, once the store answers.
pub(crate) fn lock(
    manager: &LockManager,
    global: &Global,
    level: Reach,
    name: &str,
) -> Result<Lock, CommandFailure> {
    let lock = unreached(manager, global, level, name)?;
    reach(manager, None)?;
    Ok(lock)
}

/// Returns the lock `name`. No I/O. A full name must be one of this client and farm: an id that a script was given could
/// otherwise take a lock of another service.
pub(crate) fn own_lock(
    manager: &LockManager,
    global: &Global,
    level: Reach,
    name: &str,
) -> Result<Lock, CommandFailure> {
    if names::full_name(name).is_some_and(|full| names::own_id(manager, &full).is_none()) {
        return Err(of_others("lock", name));
    }
    unreached(manager, global, level, name)
}

fn of_others(what: &str, name: &str) -> CommandFailure {
    CommandFailure::usage(format!(
        "{} is the full name of a {what} of another client or farm: name them with --client and --farm, and the \
         {what} by its id",
        names::shown(name)
    ))
}

/// Returns the semaphore `name` with so many permits. No I/O. A full name must be one of this client and farm.
pub(crate) fn own_semaphore(
    manager: &LockManager,
    global: &Global,
    level: Reach,
    name: &str,
    permits: u16,
) -> Result<Semaphore, CommandFailure> {
    let (id, level) = match names::full_name(name) {
        None => (name.to_owned(), lock_level(global, level)?),
        Some(full) => names::own_id(manager, &full).ok_or_else(|| of_others("semaphore", name))?,
    };
    Ok(manager.semaphore(&id, level, permits)?)
}

/// Returns the lock with this name or full name, once the store answers.
pub(crate) fn named_lock(
    manager: &LockManager,
    global: &Global,
    named: &LockArg,
) -> Result<Lock, CommandFailure> {
    if named.full && names::full_name(&named.name).is_none() {
        // To get the error.
        LockName::from_key(&named.name)?;
    }
    lock(manager, global, named.level, &named.name)
}

/// Returns the level of a lock.
pub(crate) fn lock_level(global: &Global, reach: Reach) -> Result<Level, CommandFailure> {
    match reach {
        Reach::Dc if !farm_is_known(global) => Err(CommandFailure::usage(
            "a lock of level dc needs a data centre in this store: name it with --farm or DLM_FARM, or use \
                 --level xdc for one lock in all data centres",
        )),
        Reach::Dc => Ok(Level::Dc),
        Reach::Xdc => Ok(Level::Xdc),
    }
}

/// Returns the level of a latch, which says which count is read.
pub(crate) fn latch_level(global: &Global, reach: Reach) -> Result<Level, CommandFailure> {
    if !farm_is_known(global) {
        return Err(CommandFailure::usage(
            "a latch needs a data centre in this store, because each one has its own count: name it with \
             --farm or DLM_FARM",
        ));
    }
    Ok(match reach {
        Reach::Dc => Level::Dc,
        Reach::Xdc => Level::Xdc,
    })
}

fn farm_is_known(global: &Global) -> bool {
    global.farm.is_some() || in_uri(&global.store, "farm") || is_local(&global.store)
}

/// Whether only processes of this machine can use the store.
pub(crate) fn is_local(uri: &str) -> bool {
    ["embedded", "memory"].contains(&scheme(uri).as_str())
}

/// Returns the scheme of the URI, whose case has no meaning.
pub(crate) fn scheme(uri: &str) -> String {
    uri.split(':').next().unwrap_or_default().to_ascii_lowercase()
}

/// Whether the URI has the option `key`, which then overrides the default.
pub(crate) fn in_uri(uri: &str, key: &str) -> bool {
    option_in(uri, key).is_some()
}

/// Returns the value of the option `key` of the URI, both percent-decoded.
pub(crate) fn option_in(uri: &str, key: &str) -> Option<String> {
    let query = uri.split_once('?').map_or("", |(_, query)| query);
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find_map(|(name, value)| (decoded(name) == key).then(|| decoded(value)))
}

/// Decodes percent-encoding. Leaves what is wrong as it is: opening the store refuses it.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let hex = part.get(..2).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[2..]);
            }
            None => bytes.extend_from_slice(format!("%{part}").as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Makes `text` a valid purpose: at most 255 bytes and no control characters.
fn purpose_of(text: &str) -> String {
    let mut purpose = String::new();
    for c in text.chars().map(|c| if c.is_control() { '?' } else { c }) {
        if purpose.len() + c.len_utf8() > 255 {
            break;
        }
        purpose.push(c);
    }
    purpose
}

/// Returns the wall-clock time in milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_never_overrides_what_the_uri_says() {
        let uri = "hbase+thrift://h:9090/t?ttl=1s&client=orders";
        assert!(in_uri(uri, "client") && in_uri(uri, "ttl"));
        assert!(!in_uri(uri, "farm") && !in_uri("embedded:/client=x", "client"));
        // However it is spelt.
        let uri = "EMBEDDED:/x?%63lient=a%62&fence=off";
        assert_eq!(option_in(uri, "client").as_deref(), Some("ab"));
        assert!(is_local(uri) && !is_local("embedded+x:"));
    }

    #[test]
    fn a_purpose_is_cut_between_characters_and_cleaned() {
        assert_eq!(purpose_of("run a\nb"), "run a?b");
        assert_eq!(purpose_of(&"é".repeat(200)).len(), 254);
    }
}

//! The URIs of the embedded store.

use std::path::Path;
use std::sync::Arc;

use super::EmbeddedStore;
use crate::error::{Error, Result};
use crate::settings::store_option::StoreOption;
use crate::store::LockStore;
use crate::store::scheme::Scheme;
use crate::store::store_uri::StoreUri;

const GROUP: StoreOption =
    StoreOption::new("group", "off", "`on` shares the directory with the users of its group");

/// `embedded:` and `embedded:/path`
pub(in crate::store) const SCHEME: Scheme =
    Scheme::new("embedded: or embedded:/path", &[GROUP], open).of_paths();

fn open(uri: &mut StoreUri) -> Result<Arc<dyn LockStore>> {
    let group = match uri.take("group").as_deref() {
        None | Some("off") => false,
        Some("on") => true,
        Some(other) => return Err(Error::invalid("group", other, "on or off")),
    };
    let store = match uri.path() {
        "" if group => {
            let allowed =
                "the default store belongs to one user: name a directory, as in embedded:/path?group=on";
            return Err(Error::invalid("group", "on", allowed));
        }
        "" => EmbeddedStore::open(&EmbeddedStore::default_path()?)?,
        path if !path.starts_with('/') => {
            let home = if path.starts_with('~') { " (a shell replaces no ~ after a colon)" } else { "" };
            return Err(uri.invalid(&format!(
                "an absolute path, such as embedded:/var/lib/locks, so that every process means the same directory{home}; \
                 or embedded: alone"
            )));
        }
        path if group => EmbeddedStore::open_group(Path::new(path))?,
        path => EmbeddedStore::open(Path::new(path))?,
    };
    Ok(Arc::new(store))
}

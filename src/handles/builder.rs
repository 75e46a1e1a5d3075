//! The builder of a manager: collects settings, checks them, and opens a store with them.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::events::event::EventSink;
use crate::events::sinks::EventSinks;
use crate::handles::manager::LockManager;
use crate::names::holder::Identity;
use crate::session::Session;
use crate::settings::manager_options::{self, GivenSettings, MANAGER, manager_options, type_of};
use crate::store::LockStore;
use crate::store::store_uri::without_secrets;
use crate::store::uri::Opener;

/// Collects the settings of a [`LockManager`]. Values set by these methods override those in the store's URI.
#[derive(Default)]
#[must_use = "call open"]
pub struct Builder {
    uri: Option<String>,
    store: Option<Arc<dyn LockStore>>,
    given: GivenSettings,
    options: Vec<(String, String)>,
    events: EventSinks,
}

impl Builder {
    /// Sets the store: `memory:`, `embedded:`, `embedded:/path`, `hbase://master:16000/table`,
    /// `hbase+thrift://host:9090/table` or `aerospike://host:3000/namespace/setSuffix`, with options as
    /// `?key=value&...`. Default: `embedded:`, which uses a directory of this user; see `EmbeddedStore`.
    pub fn store_uri(mut self, uri: &str) -> Builder {
        self.uri = Some(uri.to_owned());
        self
    }

    /// Sets a store that the caller has opened, in place of a URI.
    pub fn store(mut self, store: Arc<dyn LockStore>) -> Builder {
        self.store = Some(store);
        self
    }

    /// Adds code of the program that receives what happens to the locks and leases of this manager: see [`EventSink`]. May
    /// be called several times; the sinks are called in this order.
    pub fn event_sink(mut self, sink: Arc<dyn EventSink>) -> Builder {
        self.events.push(sink);
        self
    }

    /// Sets any option of a store URI by its key, such as `("retry", "200ms")`, for programs that read their
    /// settings from text. It overrides the same key in the URI and in an earlier call. The methods above
    /// override it. [`open`](Builder::open) refuses keys that the store does not know.
    pub fn option(mut self, key: &str, value: &str) -> Builder {
        self.options.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Checks the settings and opens the store. Creates no tables: see [`initialize`](LockManager::initialize).
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) before any I/O, for a setting that is missing
    /// or not allowed. Then the errors of the store: the embedded store is opened here, while HBase is first
    /// contacted by the first call. With [`strict`](Builder::strict),
    /// [`Code::RetriesExhausted`](crate::Code::RetriesExhausted) for an unsafe store.
    pub fn open(self) -> Result<LockManager> {
        let mut uri = match (&self.store, &self.uri) {
            (Some(_), Some(uri)) => {
                return Err(Error::invalid(
                    "store",
                    without_secrets(uri),
                    "set store_uri or store, not both",
                ));
            }
            (Some(_), None) => Opener::parse("memory:")?,
            (None, uri) => Opener::parse(uri.as_deref().unwrap_or("embedded:"))?,
        };
        let options = uri.options().for_manager(&MANAGER);
        for (key, value) in self.options {
            options.replace(key, value);
        }
        let settings = self.given.settled(GivenSettings::take(options)?)?;
        settings.check_names()?;
        let identity = Identity::this_process(&settings.purpose)?;
        let store = match self.store {
            Some(store) => {
                std::mem::take(uri.options()).finish(&[])?;
                store
            }
            None => uri.open()?,
        };
        let manager = LockManager::new(Session::new(store, settings, identity, self.events)?);
        manager.refuse_what_the_store_cannot()?;
        manager.refuse_failures_if_strict()?;
        Ok(manager)
    }
}

macro_rules! setters {
    ($($(#[doc = $doc:literal])* $name:ident = $key:literal: $kind:ident, $default:literal, $meaning:literal, $check:path;)*) => {
        /// Settings. Each can also be given in the store's URI.
        impl Builder {
            $($(#[doc = $doc])*
            pub fn $name(mut self, $name: type_of!(&str, $kind)) -> Builder {
                self.given.$name = Some(manager_options::$kind::given($name));
                self
            })*
        }
    };
}

manager_options!(setters);

impl LockManager {
    /// Returns a builder: `LockManager::builder().store_uri("embedded:").client("orders").open()`.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens a manager with all settings in the URI, such as
    /// `hbase+thrift://gateway:9090/locks?client=orders&farm=dc1&ttl=30s`.
    ///
    /// # Errors
    /// Those of [`Builder::open`].
    pub fn open(uri: &str) -> Result<LockManager> {
        LockManager::builder().store_uri(uri).open()
    }
}

/// Omits what may hold a password: credentials in the URI, and the values of options.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.options.iter().map(|(key, _)| key).collect();
        f.debug_struct("Builder")
            .field("uri", &self.uri.as_deref().map(without_secrets))
            .field("store", &self.store)
            .field("client", &self.given.client)
            .field("farm", &self.given.farm)
            .field("options", &keys)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds an option that is documented but ignored, or whose default is documented wrongly.
    #[test]
    fn every_option_of_a_manager_is_taken_and_has_the_default_that_it_is_said_to_have() {
        let settings = |key: &str, value: &str| {
            let builder = Builder::default().store_uri("memory:").client("a").option(key, value);
            builder.open().map(|manager| format!("{:?}", manager.settings()))
        };
        let unset = settings("client", "a").unwrap();
        for option in MANAGER {
            if !option.default.is_empty() {
                assert_eq!(settings(option.key, option.default).unwrap(), unset, "{}", option.key);
            }
            let changed = match option.key {
                "client" | "farm" | "purpose" => "b",
                "names" => "compat",
                "strict" => "true",
                // Only the embedded store takes `true`.
                "dies_with_process" => continue,
                "clock_margin" => "7ppm",
                "background_threads" => "7",
                "notices" => "udp://127.0.0.1",
                "notices_all" => "true",
                _ => "7s",
            };
            let has_changed = settings(option.key, changed).unwrap() != unset;
            // `client` is set by the builder, which overrides the option.
            assert!(has_changed || option.key == "client", "{}", option.key);
        }
    }
}

//! The builder of a manager: collects settings, checks them, and opens a store with them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::events::event::EventSink;
use crate::events::sinks::EventSinks;
use crate::handles::manager::LockManager;
use crate::names::holder::Identity;
use crate::names::lock_name::NamePolicy;
use crate::session::Session;
use crate::settings::config::{
    DEFAULTS, Settings, checked_background_threads, checked_clock_margin, checked_history, checked_linger,
    checked_lock_delay, checked_poll, checked_retry, checked_timeout, checked_ttl, parse_clock_margin,
    parse_notices,
};
use crate::store::LockStore;
use crate::store::store_uri::without_secrets;
use crate::store::uri::Opener;

/// Collects the settings of a [`LockManager`]. Values set by these methods override those in the store's URI.
#[derive(Default)]
#[must_use = "call open"]
pub struct Builder {
    uri: Option<String>,
    store: Option<Arc<dyn LockStore>>,
    client: Option<String>,
    farm: Option<String>,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    retry: Option<Duration>,
    timeout: Option<Duration>,
    clock_margin_ppm: Option<u32>,
    lock_delay: Option<Duration>,
    linger: Option<Duration>,
    history: Option<Duration>,
    dies_with_process: Option<bool>,
    names: Option<NamePolicy>,
    purpose: Option<String>,
    options: Vec<(String, String)>,
    latch_ttl: Option<Duration>,
    poll: Option<Duration>,
    background_threads: Option<usize>,
    notices: Option<String>,
    notices_all: Option<bool>,
    strict: Option<bool>,
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

    /// Sets the client id: the service that uses the locks, such as `order-service`. It is part of every
    /// name. Required.
    pub fn client(mut self, client: &str) -> Builder {
        self.client = Some(client.to_owned());
        self
    }

    /// Sets the farm id: the data centre of this process, such as `dc1`. It is part of the name of each lock
    /// of level DC. Of a latch, this process changes the count of this farm only. Required for latches and
    /// for locks of level DC.
    pub fn farm(mut self, farm: &str) -> Builder {
        self.farm = Some(farm.to_owned());
        self
    }

    /// Sets how long a lease lasts unless it is renewed. Default 90 s; 1 ms to 365 days.
    pub fn ttl(mut self, ttl: Duration) -> Builder {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long `acquire` waits. Default 90 s; zero tries once, [`Duration::MAX`] waits for ever.
    pub fn wait(mut self, wait: Duration) -> Builder {
        self.wait = Some(wait);
        self
    }

    /// Sets the retry interval: how long a waiting process sleeps between two checks of a lock, plus or minus
    /// a tenth. Default 1 s; 1 ms to 1 h.
    pub fn retry(mut self, retry: Duration) -> Builder {
        self.retry = Some(retry);
        self
    }

    /// Sets how long one call to the store may take. Default 10 s; 10 ms to 10 min.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how much earlier than in the store a lease expires here, in parts per million of its TTL. Default
    /// [`Defaults::clock_margin_ppm`](crate::Defaults::clock_margin_ppm), which explains its value; 0 to 500,000.
    pub fn clock_margin_ppm(mut self, ppm: u32) -> Builder {
        self.clock_margin_ppm = Some(ppm);
        self
    }

    /// Sets the lock delay: how much longer the store keeps the record of a lease than the lease lasts. If a holder
    /// dies, nobody gets the lock during the delay, so that requests it has sent to other services can end before. A
    /// release has no delay. Default zero; at most 1 h. All processes that use the lock should set the same.
    pub fn lock_delay(mut self, delay: Duration) -> Builder {
        self.lock_delay = Some(delay);
        self
    }

    /// Lets the manager write the history of each lock into the store: when it was acquired, released and lost, by whom, and
    /// how long that took. Each entry is kept for this time; zero writes none. Default: 0 s.
    /// [`Lock::history`](crate::Lock::history) and `dlm history` read it.
    ///
    /// A thread of its own writes the entries after the fact, so no caller waits for them. An acquire and a release cost one
    /// more write to the store each. If the store does not keep up, entries are dropped, and a warning is logged. 0 s, or
    /// 1 s to 365 days.
    pub fn history(mut self, history: Duration) -> Builder {
        self.history = Some(history);
        self
    }

    /// Sets how long a lock stays with this process after its release: see [locks that
    /// stay](https://github.com/dlm-rs/dlm/blob/main/docs/linger.md). Default zero: a release frees the lock. At most 1 h,
    /// and for each lease at most its TTL. A holder that dies delays others by TTL and linger. Without
    /// [notices](Builder::notices), others may wait that much longer for a lock that nobody holds. Then this process leaves
    /// it to them for 1.2 [retry](Builder::retry) intervals, unless [all have notices](Builder::notices_all).
    ///
    /// Not through a gateway to HBase and not with `layout=both`: [`open`](Builder::open) refuses that.
    pub fn linger(mut self, linger: Duration) -> Builder {
        self.linger = Some(linger);
        self
    }

    /// Sets whether all leases of this manager die with this process: see
    /// [`AcquireOptions::dies_with_process`](crate::AcquireOptions::dies_with_process). Default: `false`. For the embedded
    /// store only.
    pub fn dies_with_process(mut self, dies: bool) -> Builder {
        self.dies_with_process = Some(dies);
        self
    }

    /// Sets how long a latch lives after its last change. Default one day; 1 ms to 365 days.
    pub fn latch_ttl(mut self, ttl: Duration) -> Builder {
        self.latch_ttl = Some(ttl);
        self
    }

    /// Sets the poll interval: the longest pause between two reads of a latch that has waiters, plus or minus
    /// a tenth. Default 5 s; 10 ms to 1 h. Pauses are shorter at first and when a latch is about to open.
    pub fn poll(mut self, poll: Duration) -> Builder {
        self.poll = Some(poll);
        self
    }

    /// Sets the highest number of background threads. They read latches, and free locks that requests in
    /// doubt may have acquired. Default 2; 1 to 64. Each thread is started when it is needed.
    ///
    /// With two or more threads, one is kept for latches, so a server that hangs while a lock is freed does not
    /// delay reads of latches. With 1, the same thread does both, and freeing a lock may delay the reads by 2 s.
    pub fn background_threads(mut self, threads: usize) -> Builder {
        self.background_threads = Some(threads);
        self
    }

    /// Sets where this process receives notices: other processes that release a lock notify it at once that it may ask for it,
    /// so that it need not wait for the end of its retry interval. Notices change when a process asks the store, never
    /// who holds a lock. See `docs/notices.md`.
    ///
    /// | value | notices are received |
    /// |---|---|
    /// | `local` (default) | in the directory of the store, by the processes of this machine; other stores have none |
    /// | `off` | nowhere, and none are sent |
    /// | `udp://ADDRESS[:PORT]` | at this UDP address, which the other processes must reach; any free port by default |
    ///
    /// UDP is for networks whose hosts are trusted: whoever can read the records of the store can make waiters ask it
    /// earlier.
    pub fn notices(mut self, notices: &str) -> Builder {
        self.notices = Some(notices.to_owned());
        self
    }

    /// Sets whether all processes that use the locks receive notices. If so, nobody depends on finding a lock free by
    /// polling, and processes that pass a lock on do not leave it free now and then. Default: `false`. With `true`, a process
    /// without notices, such as a Java service, may wait for as long as others want the lock.
    pub fn notices_all(mut self, all: bool) -> Builder {
        self.notices_all = Some(all);
        self
    }

    /// Sets what client and farm ids may contain. Default [`NamePolicy::Strict`].
    pub fn names(mut self, names: NamePolicy) -> Builder {
        self.names = Some(names);
        self
    }

    /// Sets what the locks are used for. Others see it when they find a lock held. At most 255 bytes without
    /// control characters.
    pub fn purpose(mut self, purpose: &str) -> Builder {
        self.purpose = Some(purpose.to_owned());
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

    /// Sets whether [`open`](Builder::open) refuses a store that [`diagnose`](LockManager::diagnose) reports
    /// as unsafe. Default: `false`, and `open` does not diagnose.
    pub fn strict(mut self, strict: bool) -> Builder {
        self.strict = Some(strict);
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
        let options = uri.options.for_manager();
        for (key, value) in self.options {
            options.replace(key, value);
        }
        let client = options.take("client");
        let farm = options.take("farm");
        let purpose = options.take("purpose");
        let ttl = options.take_checked("ttl", checked_ttl)?;
        let wait = options.take_duration("wait")?;
        let retry = options.take_checked("retry", checked_retry)?;
        let timeout = options.take_checked("timeout", checked_timeout)?;
        let lock_delay = options.take_checked("lock_delay", checked_lock_delay)?;
        let history = options.take_checked("history", checked_history)?;
        let linger = options.take_checked("linger", checked_linger)?;
        let latch_ttl = options.take_checked("latch_ttl", checked_ttl)?;
        let poll = options.take_checked("poll", checked_poll)?;
        let strict = options.take_flag("strict")?;
        let dies_with_process = options.take_flag("dies_with_process")?;
        let background_threads = options.take_number("background_threads", 0, usize::MAX)?;
        let notices = options.take("notices");
        let notices_all = options.take_flag("notices_all")?;
        let clock_margin = options.take("clock_margin").map(|text| parse_clock_margin(&text)).transpose()?;
        let clock_margin_ppm = self.clock_margin_ppm.or(clock_margin).unwrap_or(DEFAULTS.clock_margin_ppm);
        let names = options.take_names()?;
        let settings = Settings {
            client: self.client.or(client).unwrap_or_default(),
            farm: self.farm.or(farm),
            ttl: checked_ttl(self.ttl.or(ttl).unwrap_or(DEFAULTS.ttl))?,
            wait: self.wait.or(wait).unwrap_or(DEFAULTS.wait),
            retry: checked_retry(self.retry.or(retry).unwrap_or(DEFAULTS.retry))?,
            timeout: checked_timeout(self.timeout.or(timeout).unwrap_or(DEFAULTS.timeout))?,
            clock_margin_ppm: checked_clock_margin(clock_margin_ppm)?,
            lock_delay: checked_lock_delay(self.lock_delay.or(lock_delay).unwrap_or(DEFAULTS.lock_delay))?,
            history: checked_history(self.history.or(history).unwrap_or(DEFAULTS.history))?,
            linger: checked_linger(self.linger.or(linger).unwrap_or(DEFAULTS.linger))?,
            dies_with_process: self.dies_with_process.or(dies_with_process).unwrap_or(false),
            strict: self.strict.or(strict).unwrap_or(false),
            names: self.names.or(names).unwrap_or_default(),
            purpose: self.purpose.or(purpose).unwrap_or_default(),
            latch_ttl: checked_ttl(self.latch_ttl.or(latch_ttl).unwrap_or(DEFAULTS.latch_ttl))?,
            poll: checked_poll(self.poll.or(poll).unwrap_or(DEFAULTS.poll))?,
            background_threads: checked_background_threads(
                self.background_threads.or(background_threads).unwrap_or(DEFAULTS.background_threads),
            )?,
            notices: parse_notices(self.notices.or(notices).as_deref().unwrap_or("local"))?,
            notices_all: self.notices_all.or(notices_all).unwrap_or(false),
        };
        settings.check_names()?;
        let identity = Identity::this_process(&settings.purpose)?;
        let store = match self.store {
            Some(store) => {
                uri.options.finish(&[])?;
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
            .field("client", &self.client)
            .field("farm", &self.farm)
            .field("options", &keys)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::store_option::MANAGER;

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
            // `client` is set by the builder, which overrides the option. `strict` is no setting of the manager:
            // `open` uses it.
            assert!(has_changed || ["client", "strict"].contains(&option.key), "{}", option.key);
        }
    }
}

//! The options of store URIs, each defined once. The parsers accept no others, and `dlm --help` prints them. Tests
//! compare the defaults in the code, the C header, README and docs with this table.

/// One option of a store's URI, given as `?key=value` or by [`Builder::option`](crate::Builder::option).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreOption {
    /// The key.
    pub key: &'static str,
    /// The default value; empty if there is none.
    pub default: &'static str,
    /// The meaning, in a line of Markdown.
    pub meaning: &'static str,
}

impl StoreOption {
    /// Makes an option, for a store that is [registered](crate::store::Scheme). `default` is empty if there is
    /// none, and `meaning` is a line of Markdown.
    pub const fn new(key: &'static str, default: &'static str, meaning: &'static str) -> StoreOption {
        StoreOption { key, default, meaning }
    }
}

const fn option(key: &'static str, default: &'static str, meaning: &'static str) -> StoreOption {
    StoreOption::new(key, default, meaning)
}

/// All options of the stores in this crate, by the store that accepts them. The first row has the options of
/// managers, for all stores. [`schemes`](crate::store::schemes) has the options of stores from other crates.
pub const STORE_OPTIONS: [(&str, &[StoreOption]); 5] = [
    ("all", &MANAGER),
    ("embedded:/path", &EMBEDDED),
    ("hbase://", &HBASE),
    ("hbase+thrift://", &GATEWAY),
    ("aerospike://", &AEROSPIKE),
];

pub(crate) const MANAGER: [StoreOption; 19] = [
    option("client", "", "required: the service that uses the locks; part of every name"),
    option("farm", "", "the data centre; part of the names of level DC; latches need it"),
    option("ttl", "90s", "how long a lease lasts unless it is renewed"),
    option("wait", "90s", "how long an acquire waits"),
    option("retry", "1s", "how long a waiting process pauses between two attempts, plus or minus a tenth"),
    option("timeout", "10s", "the time limit of one call to the store"),
    option(
        "clock_margin",
        "100000ppm",
        "how much earlier a lease ends for its holder than in the store, in parts per million of its TTL: a tenth",
    ),
    option("lock_delay", "0s", "how long nobody gets the lock after the lease of a dead holder"),
    option(
        "linger",
        "0s",
        "how long a released lock stays with its process, which takes it again without the store",
    ),
    option("history", "0s", "how long the store keeps what happened to each lock; `0s` writes nothing"),
    option(
        "dies_with_process",
        "false",
        "`true`: others get the lock at once if the process dies (embedded)",
    ),
    option("names", "strict", "`compat` allows `#` and control characters in client and farm ids"),
    option("purpose", "", "a text that others see while the lock is held"),
    option("strict", "false", "`true` refuses a store that `dlm doctor` reports as unsafe"),
    option("latch_ttl", "1d", "how long a latch lives after its last change"),
    option("poll", "5s", "the longest pause between two reads of an awaited latch, plus or minus a tenth"),
    option("background_threads", "2", "the most threads that poll latches and release locks in doubt"),
    option(
        "notices",
        "local",
        "`local`, `off`, `udp://ADDRESS[:PORT]`: where waiters receive notices of a release",
    ),
    option(
        "notices_all",
        "false",
        "`true`: nobody polls, so waiters need not leave the lock free now and then",
    ),
];

pub(crate) const EMBEDDED: [StoreOption; 1] =
    [option("group", "off", "`on` shares the directory with the users of its group")];

const FENCE: StoreOption = option("fence", "row", "`row`, `lock_row`, `off`: where fences are counted");
const MIXED_FLEET: StoreOption = option("mixed_fleet", "on", "whether Java's DLM uses the table too");
const LATCHES: StoreOption =
    option("latches", "", "the table for latches; by default named after the table for locks");
const CONNECT_TIMEOUT: StoreOption = option("connect_timeout", "3s", "10ms to 10m");
const USER: StoreOption = option("user", "$USER", "the name that the servers log");
const TLS: StoreOption = option("tls", "off", "`on`, `off`");
const TLS_CA: StoreOption =
    option("tls_ca", "", "PEM file: the authority that signed the servers' certificates");
const TLS_CERT: StoreOption = option("tls_cert", "", "PEM file: our certificate");
const TLS_KEY: StoreOption = option("tls_key", "", "PEM file: its key");

const LAYOUT: StoreOption = option("layout", "java", "`java`, `both`, `own`: how locks are kept");

pub(crate) const HBASE: [StoreOption; 11] = [
    LAYOUT,
    option(
        "own_table",
        "",
        "with `layout=both`: the table of the layout `own`; by default the table's name and `_own`",
    ),
    FENCE,
    MIXED_FLEET,
    LATCHES,
    CONNECT_TIMEOUT,
    USER,
    TLS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
];

/// Options of an application's table, by the URIs that accept them. See
/// [`hbase::Table::open`](crate::hbase::Table::open).
#[cfg(feature = "hbase")]
pub const TABLE_OPTIONS: [(&str, &[StoreOption]); 2] =
    [("hbase://", &TABLE), ("hbase+thrift://", &GATEWAY_TABLE)];

#[cfg(feature = "hbase")]
const FAMILY: StoreOption = option("family", "", "the family that keeps the fences of fenced rows");
#[cfg(feature = "hbase")]
const ANCHOR: StoreOption =
    option("anchor", "", "the column that shows that a row exists, as `family:qualifier`");
#[cfg(feature = "hbase")]
const TIMEOUT: StoreOption = option("timeout", "10s", "the time limit of one call");
#[cfg(feature = "hbase")]
const ATTEMPTS: StoreOption = option("attempts", "100", "the most attempts of one `modify`, 1 to 10000");

#[cfg(feature = "hbase")]
pub(crate) const TABLE: [StoreOption; 14] = [
    FAMILY,
    ANCHOR,
    TIMEOUT,
    option("max_value", "4194304", "the most bytes in one value, 1 to 10000000"),
    ATTEMPTS,
    option("fence_ttl", "30d", "how long a fence is kept after it was raised, 1m or more"),
    option("fence_column", "_fence", "the qualifier of the fence"),
    option("fence_of_column", "_fence_of", "the qualifier of the name of the lock that the fence belongs to"),
    CONNECT_TIMEOUT,
    USER,
    TLS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
];

#[cfg(feature = "hbase")]
pub(crate) const GATEWAY_TABLE: [StoreOption; 5] = [
    ANCHOR,
    TIMEOUT,
    option("max_value", "524288", "the most bytes in one value, 1 to 524288"),
    CONNECT_TIMEOUT,
    option("pool", "16", "the most connections, 1 to 1024"),
];

pub(crate) const GATEWAY: [StoreOption; 7] = [
    option("layout", "java", "only `java`: the gateway lacks the conditions that `own` needs"),
    FENCE,
    MIXED_FLEET,
    LATCHES,
    CONNECT_TIMEOUT,
    option("pool", "16", "the most connections, 1 to 1024"),
    option("gateway_pause", "100ms", "the gateway's `hbase.client.pause`, 1ms to 10m"),
];

pub(crate) const AEROSPIKE: [StoreOption; 17] = [
    LAYOUT,
    option(
        "slack",
        "20ms on one node, else 1s",
        "only with `layout=own` and `both`: how much longer than its TTL a lease lasts for others, for differences between the \
         nodes' clocks; 0ms to 1m",
    ),
    option("fence", "record", "`record`, `off`: where fences are counted"),
    option("strong_consistency", "any", "`require` refuses a namespace without it"),
    option("pool", "16", "the most connections to a node, 1 to 256"),
    option("connect_timeout", "1s", "10ms to 10m"),
    option("services_alternate", "off", "`on` uses the nodes' alternate addresses"),
    option("auth", "internal with a user", "`internal`, `external`, `pki`"),
    option("user", "", "the user that logs in"),
    option("password", "", "the user's password"),
    option("password_file", "", "a file with the password in its first line"),
    option("plain_credentials", "refuse", "`allow` sends the password over plain TCP"),
    TLS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    option("tls_name", "the host's", "the name in the servers' certificates"),
];

/// Returns the options of [`Records::open`](crate::aerospike::Records::open): all that concern connections.
#[cfg(feature = "aerospike")]
pub(crate) fn aerospike_records() -> Vec<StoreOption> {
    let timeout = MANAGER.iter().filter(|option| option.key == "timeout");
    timeout
        .chain(AEROSPIKE.iter().filter(|option| !["fence", "layout", "slack"].contains(&option.key)))
        .copied()
        .collect()
}

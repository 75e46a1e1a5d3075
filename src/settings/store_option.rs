//! The options of the stores and of tables. The parsers accept no others, and `dlm --help` prints them. Tests compare the
//! defaults in the code, the C header, README and docs with these tables.

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

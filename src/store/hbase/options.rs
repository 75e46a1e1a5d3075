//! The options of URIs of HBase: for locks and latches, and for an application's table.

use super::native::{AUTH, KEYTAB, MASTER_PRINCIPAL, PRINCIPAL, PROTECTION, SERVER_PRINCIPAL, TICKET_CACHE};
use crate::settings::store_option::StoreOption;
use crate::store::layout::LAYOUT;
use crate::store::tls::{TLS, TLS_CA, TLS_CERT, TLS_KEY};

const fn option(key: &'static str, default: &'static str, meaning: &'static str) -> StoreOption {
    StoreOption::new(key, default, meaning)
}

const FENCE: StoreOption = option("fence", "row", "`row`, `off`: whether locks have fences");
const LATCHES: StoreOption =
    option("latches", "", "the table for latches; by default named after the table for locks");
const CONNECT_TIMEOUT: StoreOption = option("connect_timeout", "3s", "10ms to 10m");
const USER: StoreOption = option("user", "$USER", "the name that the servers log");
const ANCHOR: StoreOption =
    option("anchor", "", "the column that shows that a row exists, as `family:qualifier`");
const TIMEOUT: StoreOption = option("timeout", "10s", "the time limit of one call");
#[cfg(feature = "gateway")]
const POOL: StoreOption = option("pool", "16", "the most connections, 1 to 1024");

/// Of `hbase://`.
pub(super) const HBASE: [StoreOption; 17] = [
    LAYOUT,
    option(
        "own_table",
        "",
        "with `layout=both`: the table of the layout `own`; by default the table's name and `_own`",
    ),
    FENCE,
    LATCHES,
    CONNECT_TIMEOUT,
    USER,
    AUTH,
    PROTECTION,
    PRINCIPAL,
    KEYTAB,
    TICKET_CACHE,
    SERVER_PRINCIPAL,
    MASTER_PRINCIPAL,
    TLS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
];

/// Of `hbase+thrift://`.
#[cfg(feature = "gateway")]
pub(super) const GATEWAY: [StoreOption; 6] = [
    option("layout", "java", "only `java`: the gateway lacks the conditions that `own` needs"),
    FENCE,
    LATCHES,
    CONNECT_TIMEOUT,
    POOL,
    option("gateway_pause", "100ms", "the gateway's `hbase.client.pause`, 1ms to 10m"),
];

/// Options of an application's table, by the URIs that accept them. See
/// [`hbase::Table::open`](crate::hbase::Table::open).
pub const TABLE_OPTIONS: &[(&str, &[StoreOption])] = &[
    ("hbase://", &TABLE),
    #[cfg(feature = "gateway")]
    ("hbase+thrift://", &GATEWAY_TABLE),
];

pub(super) const TABLE: [StoreOption; 21] = [
    option("family", "", "the family that keeps the fences of fenced rows"),
    ANCHOR,
    TIMEOUT,
    option("max_value", "4194304", "the most bytes in one value, 1 to 10000000"),
    option("attempts", "100", "the most attempts of one `modify`, 1 to 10000"),
    option("fence_ttl", "30d", "how long a fence is kept after it was raised, 1m or more"),
    option("fence_column", "_fence", "the qualifier of the fence"),
    option("fence_of_column", "_fence_of", "the qualifier of the name of the lock that the fence belongs to"),
    CONNECT_TIMEOUT,
    USER,
    AUTH,
    PROTECTION,
    PRINCIPAL,
    KEYTAB,
    TICKET_CACHE,
    SERVER_PRINCIPAL,
    MASTER_PRINCIPAL,
    TLS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
];

#[cfg(feature = "gateway")]
pub(super) const GATEWAY_TABLE: [StoreOption; 5] = [
    ANCHOR,
    TIMEOUT,
    option("max_value", "524288", "the most bytes in one value, 1 to 524288"),
    CONNECT_TIMEOUT,
    POOL,
];

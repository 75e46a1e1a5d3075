use std::ffi::{c_char, c_void};

use super::answer::{answer, status};
use super::arguments::{slice, text};
use super::bytes::{dlm_bytes, list};
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::freeing;
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::row::dlm_row;
use super::status::dlm_status;
use super::structs::{Versioned, read_array};
#[cfg(not(feature = "hbase"))]
use super::without_hbase as hbase;
#[cfg(feature = "hbase")]
use crate::hbase;
use crate::names::text::quoted;

/// An application's own table in HBase. Its rows are created and changed safely without row locks. Open one and
/// share it.
pub struct dlm_table(());

static TABLES: PerProcess<HandleTable<hbase::Table>> = PerProcess::new();

impl Handle for dlm_table {
    type Object = hbase::Table;
    const NAME: &str = "dlm_table";
    const KIND: u8 = 12;
    fn table() -> &'static PerProcess<HandleTable<hbase::Table>> {
        &TABLES
    }
}

/// A column family of a table to create. Later versions append fields.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_family {
    /// The name of the family.
    pub name: *const c_char,
    /// Number of versions that HBase keeps of each cell. 1 unless the program reads old versions.
    pub versions: u64,
}

// SAFETY: a number and a pointer.
unsafe impl Versioned for dlm_family {
    const NAME: &str = "dlm_family";
    const FIRST: usize = 16;
}

/// Opens the table at `uri`: "hbase://master1:16000,master2:16000/table", with options as "?key=value&key=value":
///
/// | key | default | |
/// |---|---|---|
/// | family | none | the family that keeps the fences of fenced rows |
/// | anchor | none | the column that shows that a row exists, as family:qualifier |
/// | timeout | 10s | the time limit of one call |
/// | max_value | 4194304 | the most bytes in one value, 1 to 10000000 |
/// | attempts | 100 | the most attempts of one modify, 1 to 10000 |
/// | fence_ttl | 30d | how long a fence is kept after it was raised, 1m or more |
/// | fence_column | _fence | the qualifier of the fence |
/// | fence_of_column | _fence_of | the qualifier of the name of the lock that the fence belongs to |
/// | connect_timeout | 3s | 10ms to 10m |
/// | user | $USER | the name that the servers log |
/// | auth | simple | simple, kerberos: how servers know who we are |
/// | protection | authentication | authentication, integrity, privacy: the least protection of what is sent, with auth=kerberos |
/// | principal | none | our principal; by default that of the ticket cache or of the keytab's first key |
/// | keytab | none | the file with our principal's keys; by default tickets come from the ticket cache |
/// | ticket_cache | none | the ticket cache, such as FILE:/tmp/krb5cc_0; by default that of the process |
/// | server_principal | hbase/_HOST | the principal of the RegionServers; _HOST is the server's name |
/// | master_principal | none | the principal of the masters; by default that of the RegionServers |
/// | tls | off | on, off |
/// | tls_ca | none | PEM file: the authority that signed the servers' certificates |
/// | tls_cert | none | PEM file: our certificate |
/// | tls_key | none | PEM file: its key |
///
/// Reads the TLS files, if any. The first call that needs HBase contacts it. On DLM_OK the caller owns
/// `*table_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also for unknown keys, and always if the library was built without HBase.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_table_open(
    uri: *const c_char,
    table_out: *mut *mut dlm_table,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("table_out", table_out, error_out, || {
            into_handle(hbase::Table::open(text("table URI", uri)?)?)
        })
    }
}

/// Creates the table unless it exists, with these families and split at these keys, and waits until it serves
/// requests. `family_size` is sizeof(struct dlm_family). Safe to repeat, and to call in many processes at once. `splits` may be NULL if `split_count` is 0.
/// Blocks for up to a minute.
///
/// Errors: DLM_TABLE_CREATION_ERROR with the cause, also if the table exists and lacks one of the families;
/// DLM_CONNECTION_ERROR; DLM_RETRIES_EXHAUSTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_table_create_if_missing(
    table: *mut dlm_table,
    families: *const dlm_family,
    family_count: usize,
    family_size: usize,
    splits: *const dlm_bytes,
    split_count: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let table = find(table)?;
            let families: Outcome<Vec<_>> =
                read_array("families", families, family_count, family_size)?.iter().map(made).collect();
            let none = splits.is_null() && split_count == 0;
            let splits = if none { Vec::new() } else { list("splits", splits, split_count)? };
            Ok(table.create_if_missing(&families?, &splits)?)
        })
    }
}

fn made(family: &dlm_family) -> Outcome<hbase::Family> {
    let Ok(versions) = u32::try_from(family.versions) else {
        let what = format!("versions {} is not allowed: at most {}", family.versions, u32::MAX);
        return Err(Failure::invalid(what));
    };
    // SAFETY: the name is as the header asks.
    Ok(hbase::Family::new(unsafe { text("family", family.name) }?).versions(versions))
}

/// Creates a handle of the row whose key is the `key_size` bytes at `key`, 1 to 32000. Does no I/O and creates
/// nothing in HBase: see dlm_row_create(). Never blocks. On DLM_OK the caller owns `*row_out`, which may outlive
/// `table`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_table_row(
    table: *const dlm_table,
    key: *const c_void,
    key_size: usize,
    row_out: *mut *mut dlm_row,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("row_out", row_out, error_out, || {
            let table = find(table)?;
            into_handle(table.row(slice("bytes of the key", key.cast::<u8>(), key_size)?).checked()?)
        })
    }
}

/// Writes a setting of the table, either the value that was set or the default, to `*number_out`: "timeout" in
/// milliseconds, "max_value" in bytes, or "attempts". Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also for other keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_table_setting(
    table: *const dlm_table,
    key: *const c_char,
    number_out: *mut i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("number_out", number_out, error_out, || {
            let table = find(table)?;
            match text("key", key)? {
                "timeout" => Ok(super::arguments::millis(table.timeout())),
                "max_value" => Ok(table.max_value() as i64),
                "attempts" => Ok(i64::from(table.attempts())),
                key => {
                    let what = format!("key {} is not allowed: timeout, max_value or attempts", quoted(key));
                    Err(Failure::invalid(what))
                }
            }
        })
    }
}

/// Frees a table. NULL is allowed. Its rows continue to work. Freeing the last of them closes the connections.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_table_free(table: *mut dlm_table) {
    freeing(|| free(table));
}

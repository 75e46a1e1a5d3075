//! A table of an application: opening, and creation if it is missing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::cells::{Cells, Column, check_family};
use crate::error::{Error, Result};
use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::time::Deadline;
use crate::settings::limits::checked_timeout;
use crate::settings::manager_options::DEFAULTS;
use crate::settings::options::parse_duration;
use crate::store::hbase::marks::IdempotencyMarks;
use crate::store::hbase::steps::{ColumnName, RowStore};
use crate::store::hbase::{TableEndpoint, open_rows};
use crate::store::uri::Opener;

const ATTEMPTS: usize = 100;
const ATTEMPTS_MOST: usize = 10_000;
/// Default TTL of fences: the same as that of fence counters.
const FENCE_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Longest reply of one read, in values of the largest size.
const REPLY_VALUES: usize = 16;
/// Time-out for creating a table.
const MAKING: Duration = Duration::from_secs(60);

/// A table in HBase. Cheap to clone. Clones share their connections, which are closed when the last clone and the
/// last row of the table are dropped. Many threads may use it at the same time. It starts no threads, but with
/// `auth=kerberos` one that gets tickets.
///
/// ```no_run
/// let orders = dlm::hbase::Table::open("hbase://master1:16000/orders?anchor=d:id&family=d")?;
/// # Ok::<(), dlm::Error>(())
/// ```
#[derive(Clone)]
pub struct Table {
    pub(super) inner: Arc<OpenTable>,
}

pub(super) struct OpenTable {
    pub(super) store: Box<dyn RowStore>,
    pub(super) marks: IdempotencyMarks,
    pub(super) anchor: Option<Column>,
    pub(super) fences: Option<FenceColumns>,
    pub(super) fence_ttl: Duration,
    pub(super) max_value: usize,
    pub(super) attempts: u32,
    timeout: Duration,
    /// The process that opened the table, see [`ProcessMark`].
    process: ProcessMark,
}

/// The columns in which fenced rows of a table keep the fence and the name of its lock.
#[derive(Debug)]
pub(super) struct FenceColumns {
    pub(super) fence: ColumnName,
    pub(super) lock: ColumnName,
}

/// A column family of a table to create.
#[derive(Debug, Clone)]
#[must_use = "pass it to create_if_missing"]
pub struct Family {
    name: String,
    versions: u32,
}

impl Family {
    /// Makes a family that keeps one version of each cell.
    pub fn new(name: &str) -> Family {
        Family { name: name.to_owned(), versions: 1 }
    }

    /// Sets how many versions of each cell the family keeps: 1 to 2,147,483,647.
    pub fn versions(mut self, versions: u32) -> Family {
        self.versions = versions;
        self
    }
}

impl Table {
    /// Opens a table: `hbase://master1:16000,master2:16000/table`, or `hbase+thrift://host:9090/table` for the
    /// calls that a Thrift1 gateway can make (see `docs/rows.md`). Options follow as `?key=value&...`: see
    /// [`TABLE_OPTIONS`](crate::store::TABLE_OPTIONS). Reads the files that the options name. No other I/O until the first
    /// call.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the URI or an option is not allowed.
    pub fn open(uri: &str) -> Result<Table> {
        let mut uri = Opener::parse(uri)?.into_uri();
        let (endpoint, mut options) = (TableEndpoint::of(&uri)?, uri.take_options());
        let number = |found: Option<usize>, otherwise: usize| found.unwrap_or(otherwise);
        let (most, otherwise) = endpoint.value_bytes();
        let max_value = number(options.take_number("max_value", 1, most)?, otherwise);
        let timeout = options.take_checked("timeout", checked_timeout)?.unwrap_or(DEFAULTS.timeout);
        let anchor = options.take("anchor").map(|column| Column::from(column.as_str()));
        anchor.as_ref().map_or(Ok(()), Column::check)?;
        // These options are unknown for a gateway, which supports neither `modify` of several columns nor fences.
        let (mut attempts, mut fence_ttl, mut fences) = (ATTEMPTS, FENCE_TTL, None);
        if endpoint.is_native() {
            attempts = number(options.take_number("attempts", 1, ATTEMPTS_MOST)?, ATTEMPTS);
            fence_ttl = options.take("fence_ttl").map_or(Ok(FENCE_TTL), |text| checked_fence_ttl(&text))?;
            fences = FenceColumns::take(
                options.take("family"),
                options.take("fence_column"),
                options.take("fence_of_column"),
            )?;
        }
        let reply_max =
            u32::try_from(max_value.saturating_mul(REPLY_VALUES)).unwrap_or(u32::MAX).max(4 << 20);
        let inner = OpenTable {
            store: open_rows(&endpoint, options, reply_max)?,
            marks: IdempotencyMarks::default(),
            anchor,
            fences,
            fence_ttl,
            max_value,
            attempts: attempts as u32,
            timeout,
            process: ProcessMark::current(),
        };
        Ok(Table { inner: Arc::new(inner) })
    }

    /// Creates the table with these families, split at these keys, unless it exists. Waits until it serves. Blocks
    /// for up to a minute. Safe to repeat, and to run in many processes at once.
    ///
    /// # Errors
    /// * [`Code::TableCreationError`](crate::Code::TableCreationError): the table could not be created, or it
    ///   exists and lacks one of the families. The error names the cause.
    /// * [`Code::ConnectionError`](crate::Code::ConnectionError),
    ///   [`Code::InvalidArgument`](crate::Code::InvalidArgument), [`Code::Forked`](crate::Code::Forked).
    pub fn create_if_missing(&self, families: &[Family], splits: &[&[u8]]) -> Result<()> {
        self.inner.usable()?;
        if families.is_empty() {
            return Err(Error::invalid("families", "", "at least one family"));
        }
        for Family { name, versions } in families {
            check_family(name.as_bytes(), name)?;
            if *versions == 0 || i32::try_from(*versions).is_err() {
                return Err(Error::invalid("versions", versions.to_string(), "1 to 2147483647"));
            }
        }
        if let Some(empty) = splits.iter().position(|key| key.is_empty()) {
            return Err(Error::invalid("split key", format!("number {empty}"), "at least one byte"));
        }
        let families: Vec<_> = families.iter().map(|family| (family.name.clone(), family.versions)).collect();
        let splits: Vec<_> = splits.iter().map(|key| key.to_vec()).collect();
        self.inner.store.ensure(&families, &splits, Deadline::after(MAKING))
    }

    /// Returns how long one call may take.
    #[cfg(feature = "capi")]
    pub(crate) fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// Returns the highest number of attempts of one `modify`.
    #[cfg(feature = "capi")]
    pub(crate) fn attempts(&self) -> u32 {
        self.inner.attempts
    }

    /// Returns the longest value that may be written, in bytes.
    pub fn max_value(&self) -> usize {
        self.inner.max_value
    }
}

impl OpenTable {
    pub(super) fn usable(&self) -> Result<()> {
        self.process.check()
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// Refuses the library's own columns, which only the library may write.
    pub(super) fn check_not_own<'a>(&self, mut columns: impl Iterator<Item = &'a Column>) -> Result<()> {
        match columns.find(|column| self.is_own(&column.0)) {
            Some(own) => Err(Error::invalid(
                "column",
                own.to_string(),
                "a column of the application; this one holds fences",
            )),
            None => Ok(()),
        }
    }

    /// Returns the anchor: the column of `cells` that decides whether the row exists.
    pub(super) fn anchor_among(&self, cells: &Cells) -> Result<Column> {
        let first = || cells.columns().next().cloned();
        let anchor = self.anchor.clone().or_else(first).unwrap_or_else(|| Column::new("", ""));
        match cells.value(&anchor) {
            Some([_, ..]) => Ok(anchor),
            Some([]) => {
                let allowed = "a value that is not empty: HBase treats an empty cell as an absent one";
                Err(Error::invalid("anchor", anchor.to_string(), allowed))
            }
            None => {
                Err(Error::invalid("cells", format!("{cells:?}"), format!("include the anchor {anchor}")))
            }
        }
    }

    /// Returns whether the library writes this column for itself.
    pub(super) fn is_own(&self, column: &ColumnName) -> bool {
        let is_fence = |columns: &FenceColumns| *column == columns.fence || *column == columns.lock;
        column.qualifier.starts_with(super::cells::OWN_PREFIX) || self.fences.as_ref().is_some_and(is_fence)
    }
}

impl FenceColumns {
    fn take(
        family: Option<String>,
        fence: Option<String>,
        lock: Option<String>,
    ) -> Result<Option<FenceColumns>> {
        let Some(family) = family else {
            return match fence.or(lock) {
                None => Ok(None),
                Some(name) => Err(Error::invalid(
                    "fence column",
                    name,
                    "only with the option family, which names the column family of the fences",
                )),
            };
        };
        check_family(family.as_bytes(), &family)?;
        let column = |name: Option<String>, otherwise: &str| {
            let column = Column::new(&family, name.as_deref().unwrap_or(otherwise));
            column.check().map(|()| column.0)
        };
        let (fence, lock) = (column(fence, "_fence")?, column(lock, "_fence_of")?);
        if fence == lock {
            return Err(Error::invalid(
                "fence column",
                fence.to_string(),
                "a column other than that of the lock's name",
            ));
        }
        Ok(Some(FenceColumns { fence, lock }))
    }
}

fn checked_fence_ttl(text: &str) -> Result<Duration> {
    let ttl = parse_duration("fence_ttl", text)?;
    // A holder that is paused for longer than the TTL is not refused.
    let least = Duration::from_secs(60);
    if ttl < least || i64::try_from(ttl.as_millis()).is_err() {
        return Err(Error::invalid("fence_ttl", text, "1m or more"));
    }
    Ok(ttl)
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.inner.store.describe()).finish()
    }
}

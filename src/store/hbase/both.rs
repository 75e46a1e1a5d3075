//! The layout `both` in HBase: a table of the layout `java` and a table of the layout `own`.

use std::time::Duration;

use super::cell_store::{CellStore as _, Content, LockTable as _, RowScan, ScannedRow};
use super::layout::{CellColumn, LOCK, OWN_LOCK};
use super::native::{Native, NativeLatches};
use super::own::{self, checked};
use super::own_store::OwnStore;
use super::rules::take_fence;
use super::steps::shown;
use super::{HbaseOwnStore, HbaseStore, locks, promises};
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::lock_name::LockName;
use crate::names::promise::Promise;
use crate::runtime::time::Deadline;
use crate::settings::options::Options;
use crate::store::both::LayoutBridge;
use crate::store::hbase::table_name::checked_table;
use crate::store::remote::{RemoteStore, Reply, Standing};

/// Most names in one diagnostic.
const NAMES: usize = 5;

/// The two tables, over the same connections. URI: `hbase://master1:16000,master2:16000/table?layout=both`. The URI names
/// the table of the layout `java`.
#[derive(Debug)]
pub(crate) struct HbaseBridge {
    java: RemoteStore<HbaseStore>,
    own: RemoteStore<HbaseOwnStore>,
    /// Both tables once more, for the doctor.
    java_rows: Native,
    own_rows: Native,
}

impl HbaseBridge {
    /// Creates the stores. See [`HbaseStore::native`].
    pub(crate) fn open(masters: &str, table: &str, mut options: Options) -> Result<HbaseBridge> {
        let has_fences = take_fence(&mut options)?;
        if !has_fences {
            let allowed = "row with layout=both: every lock has a fence in the layout own";
            return Err(Error::invalid("fence", "off", allowed));
        }
        let own_table = own_table_name(options.take("own_table"), table)?;
        let latch_table = super::latches::table_name(options.take("latches").as_deref(), table)?;
        let java = Native::new(masters, table, Content::Locks, options)?;
        let own = java.beside(&own_table, Content::OwnLocks);
        let latches = Box::new(NativeLatches::beside(&java, &latch_table));
        let (java_rows, own_rows) = (java.again(), own.again());
        Ok(HbaseBridge {
            java: RemoteStore::new(HbaseStore { rows: Box::new(java), latches, has_fences }),
            own: RemoteStore::new(HbaseOwnStore::over(Box::new(own))),
            java_rows,
            own_rows,
        })
    }

    /// Returns whether the cell of a lock holds a record now.
    fn is_held(&self, table: &Native, row: &[u8], by: Deadline) -> Result<bool> {
        let standing = match table.content() {
            Content::OwnLocks => own::standing(OwnStore::read_cells(table, row, by)?),
            _ => locks::standing(table.get(row, LOCK, by)?),
        };
        Ok(standing != Standing::Free)
    }

    /// Looks for locks that are held in `table` and not in `twin`.
    fn held_in_one(&self, table: &Native, twin: &Native, found: &mut Unpaired, by: Deadline) -> Result<()> {
        let column: CellColumn = if table.content() == Content::OwnLocks { OWN_LOCK } else { LOCK };
        let mut next = Some(Vec::new());
        while let Some(start) = next {
            let scan =
                RowScan { column, beside: None, from: &start, to: b"", filled: true, most: usize::MAX };
            let page = table.scan(&scan, by)?;
            for ScannedRow { row, .. } in page.rows {
                if by.passed() {
                    let (store, what) = (table.describe(), "the time is over".to_owned());
                    return Err(Error::RetriesExhausted { store, what, source: None });
                }
                found.read += 1;
                // A client of this layout acquires and releases both locks, one after the other: it may have been
                // between these steps.
                if !self.is_held(twin, &row, by)? && self.is_held(table, &row, by)? {
                    found.alone += 1;
                    if found.names.len() < NAMES {
                        // The first byte is a hash of the others.
                        found.names.push(shown(row.get(1..).unwrap_or_default()));
                    }
                }
            }
            next = page.next;
        }
        Ok(())
    }
}

/// What was found in one table.
#[derive(Debug, Default)]
struct Unpaired {
    read: usize,
    alone: usize,
    names: Vec<String>,
}

impl Unpaired {
    fn diagnostic(self, layout: &str, stopped: Option<String>) -> Diagnostic {
        let Unpaired { read, alone, names } = self;
        let mut seen = format!("{alone} locks are held in the layout {layout} only");
        if !names.is_empty() {
            seen += &format!(" ({}{})", names.join(", "), if alone > names.len() { ", ..." } else { "" });
        }
        let advice = format!(
            "wait until none is left before you stop using the layout {layout}: clients of other layouts do not \
             see these locks"
        );
        match stopped {
            Some(why) => {
                seen += &format!("; the search stopped early, after {read} held locks, {why}");
                Diagnostic::warn("layout", seen, advice)
            }
            None if alone > 0 => Diagnostic::warn("layout", seen, advice),
            None => Diagnostic::ok("layout", seen),
        }
    }
}

impl LayoutBridge for HbaseBridge {
    type Java = HbaseStore;
    type Own = HbaseOwnStore;

    fn java(&self) -> &RemoteStore<HbaseStore> {
        &self.java
    }

    fn own(&self) -> &RemoteStore<HbaseOwnStore> {
        &self.own
    }

    fn set_count(&self, name: &LockName, from: Option<u64>, to: u64, by: Deadline) -> Reply {
        self.java.register().set_count(name, from, to, by)
    }

    fn check_ttl(&self, ttl: Duration) -> Result<()> {
        checked(ttl)
    }

    fn promises(&self) -> Vec<Promise> {
        promises::both()
    }

    fn unpaired(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        let (java, own) = (&self.java_rows, &self.own_rows);
        // A search asks every region of its table: how long that takes depends on the cluster, so the caller's time-out
        // is the limit.
        let half = Deadline::after(by.remaining() / 2);
        let tables = [("java", java, own, half), ("own", own, java, by)];
        Ok(tables
            .map(|(layout, table, twin, by)| {
                let (mut found, limit) = (Unpaired::default(), by.remaining());
                let stopped = self.held_in_one(table, twin, &mut found, by).err();
                // The last request of a search whose time is over may say nothing about the server.
                let stopped = stopped.map(|error| {
                    let took = limit.saturating_sub(by.remaining());
                    format!("after {took:.1?} of the {limit:.1?} that the time-out left for it: {error}")
                });
                found.diagnostic(layout, stopped)
            })
            .into())
    }
}

/// Returns the name of the table of the layout `own`. Its default is the name of the other table, and `_own`.
///
/// # Errors
/// INVALID_ARGUMENT when HBase does not allow such a table name, and for the name of the other table.
fn own_table_name(given: Option<String>, java_table: &str) -> Result<String> {
    let name = given.unwrap_or_else(|| format!("{java_table}_own"));
    match checked_table(&name) {
        Ok(checked) if checked != java_table => Ok(checked),
        _ => {
            let allowed = "[namespace:]table of ASCII letters, digits, '_', '-' and '.', other than the table of the \
                           layout java";
            Err(Error::invalid("own_table", name, allowed))
        }
    }
}

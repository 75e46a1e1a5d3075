//! The locks and the latches of a store, one after the other.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;

use crate::error::Result;
use crate::names::lock_name::ID_BYTES_MAX;
use crate::runtime::time::Deadline;
use crate::session::Session;
use crate::store::{LatchPage, LatchQuery, ListCursor, ListedLatch, ListedLock, LockPage, LockQuery};

/// Most elements of one page: some hundred kilobytes.
const PAGE: usize = 500;

/// The locks that a query asks for, returned by [`LockManager::locks`](crate::LockManager::locks). Reads a page when it
/// needs one, so `next` blocks for one call to the store from time to time. Ends after an error.
pub struct Locks {
    session: Arc<Session>,
    query: LockQuery,
    read: PagesRead<ListedLock>,
}

/// The latches of a manager's client, returned by [`LockManager::latches`](crate::LockManager::latches). Reads a page
/// when it needs one, so `next` blocks for one call to the store from time to time. Ends after an error.
pub struct Latches {
    session: Arc<Session>,
    prefix: String,
    read: PagesRead<ListedLatch>,
}

/// What was read of a list and not returned yet.
struct PagesRead<T> {
    read: VecDeque<T>,
    /// Where the next page begins.
    position: Position,
}

enum Position {
    Start,
    After(ListCursor),
    End,
}

impl<T> PagesRead<T> {
    fn new() -> PagesRead<T> {
        PagesRead { read: VecDeque::new(), position: Position::Start }
    }

    fn next(
        &mut self,
        page: impl Fn(Option<&ListCursor>) -> Result<(Vec<T>, Option<ListCursor>)>,
    ) -> Option<Result<T>> {
        loop {
            if let Some(element) = self.read.pop_front() {
                return Some(Ok(element));
            }
            let after = match &self.position {
                Position::Start => None,
                Position::After(cursor) => Some(cursor),
                Position::End => return None,
            };
            match page(after) {
                Ok((elements, next)) => {
                    self.read.extend(elements);
                    self.position = next.map_or(Position::End, Position::After);
                }
                Err(error) => {
                    self.position = Position::End;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Locks {
    pub(crate) fn new(session: &Arc<Session>, query: &LockQuery) -> Locks {
        Locks { session: Arc::clone(session), query: query.clone(), read: PagesRead::new() }
    }
}

impl Latches {
    pub(crate) fn new(session: &Arc<Session>, prefix: &str) -> Latches {
        Latches { session: Arc::clone(session), prefix: prefix.to_owned(), read: PagesRead::new() }
    }
}

/// Reads one page.
pub(crate) fn page(session: &Session, query: &LockQuery, after: Option<&ListCursor>) -> Result<LockPage> {
    session.usable()?;
    query.check()?;
    session.store.list(query, after, PAGE, Deadline::after(session.settings.timeout))
}

fn latch_page(session: &Session, prefix: &str, after: Option<&ListCursor>) -> Result<LatchPage> {
    session.usable()?;
    if prefix.len() > ID_BYTES_MAX || prefix.contains('\0') {
        let allowed = format!("0 to {ID_BYTES_MAX} bytes without NUL");
        return Err(crate::Error::invalid("prefix", prefix, allowed));
    }
    let (settings, by) = (&session.settings, Deadline::after(session.settings.timeout));
    let asked = LatchQuery { client: &settings.client, prefix, after, most: PAGE, by };
    session.latches()?.list_latches(&asked)
}

impl Iterator for Locks {
    type Item = Result<ListedLock>;

    fn next(&mut self) -> Option<Result<ListedLock>> {
        let Locks { session, query, read } = self;
        read.next(|after| page(session, query, after).map(|page| (page.locks, page.next)))
    }
}

impl Iterator for Latches {
    type Item = Result<ListedLatch>;

    fn next(&mut self) -> Option<Result<ListedLatch>> {
        let Latches { session, prefix, read } = self;
        read.next(|after| latch_page(session, prefix, after).map(|page| (page.latches, page.next)))
    }
}

impl FusedIterator for Locks {}

impl FusedIterator for Latches {}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("query", &self.query).finish_non_exhaustive()
    }
}

impl fmt::Debug for Latches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latches").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

//! The locks of a store, one after the other.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;

use crate::error::Result;
use crate::runtime::time::Deadline;
use crate::session::Session;
use crate::store::{ListCursor, ListedLock, LockPage, LockQuery};

/// Most locks of one page: some hundred kilobytes.
const PAGE: usize = 500;

/// The locks that a query asks for, returned by [`LockManager::locks`](crate::LockManager::locks). Reads a page when it
/// needs one, so `next` blocks for one call to the store from time to time. Ends after an error.
pub struct Locks {
    session: Arc<Session>,
    query: LockQuery,
    read: VecDeque<ListedLock>,
    /// Where the next page begins.
    position: Position,
}

enum Position {
    Start,
    After(ListCursor),
    End,
}

impl Locks {
    pub(crate) fn new(session: &Arc<Session>, query: &LockQuery) -> Locks {
        let (session, query) = (Arc::clone(session), query.clone());
        Locks { session, query, read: VecDeque::new(), position: Position::Start }
    }
}

/// Reads one page.
pub(crate) fn page(session: &Session, query: &LockQuery, after: Option<&ListCursor>) -> Result<LockPage> {
    session.usable()?;
    query.check()?;
    session.store.list(query, after, PAGE, Deadline::after(session.settings.timeout))
}

impl Iterator for Locks {
    type Item = Result<ListedLock>;

    fn next(&mut self) -> Option<Result<ListedLock>> {
        loop {
            if let Some(lock) = self.read.pop_front() {
                return Some(Ok(lock));
            }
            let after = match &self.position {
                Position::Start => None,
                Position::After(cursor) => Some(cursor),
                Position::End => return None,
            };
            match page(&self.session, &self.query, after) {
                Ok(LockPage { locks, next }) => {
                    self.read.extend(locks);
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

impl FusedIterator for Locks {}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("query", &self.query).finish_non_exhaustive()
    }
}

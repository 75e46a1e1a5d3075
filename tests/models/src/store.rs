//! The store of the model: one lock and its counter, as the trait `Register` describes them.
//!
//! All times are relative to the store's clock, in ticks. A tick is the longest step in which nothing expires.

/// Number of an attempt to acquire the lock. It stands for the owner token and names its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u8);

/// A record. Versions of one grant differ in `ttl`, the longest TTL that was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    pub token: Token,
    pub ttl: u8,
}

/// The part of the expected record that a condition compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compares {
    Record,
    Token,
}

/// How the store keeps the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One record that the store overwrites and deletes.
    Plain(Compares),
    /// Cells of HBase. A release writes an empty cell.
    Cells(Flaw),
}

/// What is wrong with the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// A release writes a Delete instead of an empty cell.
    ReleaseDeletes,
    /// The empty cell of a release has a TTL of one tick instead of the TTL of the record below it.
    ShortMarker,
    /// A Put gets the time of the server's clock, also if the cell that it replaces has a later one.
    LateCellsWin,
}

/// A version of the lock's cell. It is gone as soon as `end` is not positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    written: i8,
    end: i8,
    /// `None` is the empty value: the lock is free.
    value: Option<Record>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Store {
    /// The record, and how long the store keeps it.
    Plain(Option<(Record, u8)>),
    /// The cells, the newest last, and the time of the last Delete. It hides all cells that are not newer.
    Cells(Vec<Cell>, Option<i8>),
}

impl Store {
    pub fn new(kind: Kind) -> Store {
        match kind {
            Kind::Plain(_) => Store::Plain(None),
            Kind::Cells(_) => Store::Cells(Vec::new(), None),
        }
    }

    /// Returns the record, or `None` if the lock is free.
    pub fn read(&self) -> Option<Record> {
        match self {
            Store::Plain(stored) => stored.map(|(record, _)| record),
            Store::Cells(..) => self.cell().and_then(|cell| cell.value),
        }
    }

    /// Returns whether a record with this token is stored, visible or not.
    pub fn mentions(&self, token: Token) -> bool {
        let is_it = |record: &Record| record.token == token;
        match self {
            Store::Plain(stored) => stored.is_some_and(|(record, _)| is_it(&record)),
            Store::Cells(cells, _) => cells.iter().any(|cell| cell.value.as_ref().is_some_and(is_it)),
        }
    }

    pub fn create(&mut self, kind: Kind, record: Record) -> bool {
        let free = self.read().is_none();
        if free {
            self.write(kind, record);
        }
        free
    }

    /// Replaces the expected record. `ttl` is the TTL that was requested, `new` holds the longest one so far.
    pub fn replace(&mut self, kind: Kind, expected: Record, new: Record, ttl: u8) -> bool {
        if let (Store::Plain(Some((stored, left))), Kind::Plain(Compares::Token)) = (&mut *self, kind) {
            // The store keeps the record and only extends its life.
            let extends = stored.token == expected.token && *left <= ttl;
            if extends {
                *left = ttl;
            }
            return extends;
        }
        let stands = self.read() == Some(expected);
        if stands {
            self.write(kind, new);
        }
        stands
    }

    pub fn remove(&mut self, kind: Kind, expected: Record) -> bool {
        let stands = match kind {
            Kind::Plain(Compares::Token) => self.read().is_some_and(|it| it.token == expected.token),
            _ => self.read() == Some(expected),
        };
        if stands {
            self.free(kind, expected.ttl);
        }
        stands
    }

    /// Writes without a condition, as no register may.
    pub fn write(&mut self, kind: Kind, record: Record) {
        match self {
            Store::Plain(stored) => *stored = Some((record, record.ttl)),
            Store::Cells(..) => self.put(kind, Some(record), record.ttl),
        }
    }

    /// Frees the lock without a condition, as no register may.
    pub fn free(&mut self, kind: Kind, ttl: u8) {
        match (&mut *self, kind) {
            (Store::Plain(stored), _) => *stored = None,
            (Store::Cells(_, deleted), Kind::Cells(Flaw::ReleaseDeletes)) => {
                *deleted = Some(0);
                self.tidy();
            }
            (Store::Cells(..), Kind::Cells(Flaw::ShortMarker)) => self.put(kind, None, 1),
            (Store::Cells(..), _) => self.put(kind, None, ttl),
        }
    }

    /// One tick of the store's clock.
    pub fn tick(&mut self) {
        match self {
            Store::Plain(stored) => {
                *stored = stored.and_then(|(record, left)| (left > 1).then(|| (record, left - 1)));
            }
            Store::Cells(cells, deleted) => {
                cells.iter_mut().for_each(|cell| (cell.written, cell.end) = (cell.written - 1, cell.end - 1));
                *deleted = deleted.map(|at| at - 1);
                self.tidy();
            }
        }
    }

    /// Sets the store's clock back by one tick, as when a region moves to a server whose clock is behind.
    pub fn set_back(&mut self) {
        if let Store::Cells(cells, deleted) = self {
            cells.iter_mut().for_each(|cell| (cell.written, cell.end) = (cell.written + 1, cell.end + 1));
            *deleted = deleted.map(|at| at + 1);
        }
    }

    fn cell(&self) -> Option<Cell> {
        let Store::Cells(cells, deleted) = self else { return None };
        cells.last().copied().filter(|cell| deleted.is_none_or(|at| cell.written > at))
    }

    fn put(&mut self, kind: Kind, value: Option<Record>, ttl: u8) {
        let seen = self.cell().map_or(0, |cell| cell.written);
        let written = if kind == Kind::Cells(Flaw::LateCellsWin) { 0 } else { seen.max(0) };
        if let Store::Cells(cells, _) = self {
            let place = cells.iter().take_while(|cell| cell.written <= written).count();
            cells.insert(place, Cell { written, end: written + ttl as i8, value });
        }
        self.tidy();
    }

    /// Drops what can never be seen again.
    fn tidy(&mut self) {
        let Store::Cells(cells, deleted) = self else { return };
        let all = std::mem::take(cells);
        for (at, cell) in all.iter().enumerate() {
            let covered = all[at + 1..].iter().any(|newer| newer.end >= cell.end);
            if cell.end > 0 && !covered {
                cells.push(*cell);
            }
        }
        if deleted.is_some_and(|at| at < 0 && cells.iter().all(|cell| cell.written > at)) {
            *deleted = None;
        }
    }
}

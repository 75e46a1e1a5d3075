//! The row of one lock in the layout `own` of HBase, with the cells that modes add.
//!
//! All times are relative to the server's clock, in ticks.

use std::ops::Range;

use crate::store::Token;

/// What a cell holds. An absent cell is free too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The empty cell of a release.
    Free,
    Exclusive,
    /// Stands in the exclusive place while a member lives. Versions without modes take it for a holder.
    Base,
    Shared,
    Update,
    /// A permit of a semaphore. Each has a number of its own.
    Permit,
    /// A holder of a kind that only a later version knows.
    Unknown,
    /// A writer waits.
    Intent,
    /// While it lives, intents stop no reader.
    Turn,
}

impl Kind {
    /// Whether two holders of these kinds may hold the lock at one time.
    pub fn goes_beside(self, other: Kind) -> bool {
        use Kind::{Permit, Shared, Update};
        matches!((self, other), (Shared, Shared | Update) | (Update, Shared) | (Permit, Permit))
    }

    /// Whether a holder of this kind stands in a slot.
    pub fn is_member(self) -> bool {
        matches!(self, Kind::Shared | Kind::Update | Kind::Permit)
    }
}

/// The token of a record that nobody holds.
pub const NOBODY: Token = Token(u8::MAX);

/// The value of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    pub kind: Kind,
    pub token: Token,
    /// The fence of an exclusive holder or of a permit, the epoch of other members and of the base.
    pub number: u8,
    /// The longest TTL of this record and of all that it covers.
    pub ttl: u8,
}

impl Record {
    pub fn free(ttl: u8) -> Record {
        Record { kind: Kind::Free, token: NOBODY, number: 0, ttl }
    }

    pub fn base(number: u8, ttl: u8) -> Record {
        Record { kind: Kind::Base, token: NOBODY, number, ttl }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Column {
    /// The exclusive place, `O:L`.
    Place,
    Slot(u8),
    Intent,
    Turn,
}

/// A version of a cell. It is gone when `left` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version {
    pub left: u8,
    pub record: Record,
}

/// The versions of a cell that have not ended, the newest last.
pub type Cell = Vec<Version>;

/// What a condition requires of the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Number {
    Any,
    Is(u8),
    Below(u8),
}

/// What a condition requires of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Test {
    /// It is exactly as the client saw it.
    Is(Option<Record>),
    /// It is absent or empty.
    Free,
    /// It is absent, or free and covers nothing that may last longer than this TTL.
    FreeUpTo(u8),
}

/// The condition of a mutation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Condition {
    pub number: Number,
    pub cells: Vec<(Column, Test)>,
    /// The kinds that all other cells may have. `None`: the condition looks at no other cell.
    pub allows: Option<Vec<Kind>>,
    /// Whether a turn must live.
    pub turn: bool,
}

/// A conditional mutation: all of it takes effect, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    pub condition: Condition,
    pub number: Option<u8>,
    pub writes: Vec<(Column, Record)>,
    /// The record of a new grant.
    pub grants: Option<Record>,
    /// The sender is a version without modes.
    pub old: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Row {
    pub number: u8,
    place: Cell,
    slots: Vec<Cell>,
    intent: Cell,
    turn: Cell,
}

impl Row {
    pub fn new(slots: u8) -> Row {
        let slots = vec![Cell::new(); slots.into()];
        Row { number: 0, place: Cell::new(), slots, intent: Cell::new(), turn: Cell::new() }
    }

    pub fn columns(&self) -> impl Iterator<Item = Column> + use<> {
        let slots = self.slots().map(Column::Slot);
        [Column::Place, Column::Intent].into_iter().chain(slots)
    }

    pub fn slots(&self) -> Range<u8> {
        0..self.slots.len() as u8
    }

    pub fn cell(&self, column: Column) -> &Cell {
        match column {
            Column::Place => &self.place,
            Column::Slot(slot) => &self.slots[usize::from(slot)],
            Column::Intent => &self.intent,
            Column::Turn => &self.turn,
        }
    }

    fn cell_mut(&mut self, column: Column) -> &mut Cell {
        match column {
            Column::Place => &mut self.place,
            Column::Slot(slot) => &mut self.slots[usize::from(slot)],
            Column::Intent => &mut self.intent,
            Column::Turn => &mut self.turn,
        }
    }

    /// Returns what a read shows.
    pub fn seen(&self, column: Column) -> Option<Record> {
        self.cell(column).last().map(|version| version.record)
    }

    /// Returns the record that is in the way of others. A record in the exclusive place with a lower number than the row
    /// is of an earlier grant.
    pub fn stands(&self, column: Column) -> Option<Record> {
        self.seen(column).filter(|it| it.kind != Kind::Free && !self.is_outlived(column, it))
    }

    pub fn is_outlived(&self, column: Column, record: &Record) -> bool {
        column == Column::Place && record.number < self.number
    }

    /// Returns the record with this token and its column, if a read shows it.
    pub fn find(&self, token: Token) -> Option<(Column, Record)> {
        self.columns()
            .filter_map(|column| Some((column, self.stands(column)?)))
            .find(|(_, record)| record.token == token)
    }

    /// Whether a version with this token is stored, visible or not.
    pub fn mentions(&self, token: Token) -> bool {
        self.columns().any(|column| self.cell(column).iter().any(|it| it.record.token == token))
    }

    pub fn allows(&self, condition: &Condition) -> bool {
        let Condition { number, cells, allows, turn } = condition;
        let number = match *number {
            Number::Any => true,
            Number::Is(number) => self.number == number,
            Number::Below(number) => self.number < number,
        };
        let test = |column| cells.iter().find(|it| it.0 == column).map(|it| it.1);
        let cell = |column| match test(column) {
            Some(Test::Is(record)) => self.seen(column) == record,
            Some(Test::Free) => self.seen(column).is_none_or(|it| it.kind == Kind::Free),
            Some(Test::FreeUpTo(ttl)) => {
                self.seen(column).is_none_or(|it| it.kind == Kind::Free && it.ttl <= ttl)
            }
            None => self
                .stands(column)
                .is_none_or(|it| allows.as_ref().is_none_or(|kinds| kinds.contains(&it.kind))),
        };
        number && (!turn || self.stands(Column::Turn).is_some()) && self.columns().all(cell)
    }

    /// Writes without a condition. `versions`: whether the cell keeps what the new version covers.
    pub fn put(&mut self, column: Column, record: Record, versions: bool) {
        let cell = self.cell_mut(column);
        if !versions {
            cell.clear();
        }
        cell.push(Version { left: record.ttl, record });
    }

    /// Drops an older version of a cell, as a flush may do.
    pub fn drop_version(&mut self, column: Column, at: usize) {
        self.cell_mut(column).remove(at);
    }

    pub fn tick(&mut self) {
        let Row { place, slots, intent, turn, .. } = self;
        for cell in slots.iter_mut().chain([place, intent, turn]) {
            cell.iter_mut().for_each(|version| version.left -= 1);
            cell.retain(|version| version.left > 0);
        }
    }

    /// Returns the holders that would be seen again after a flush, when the newest version of their cell has ended.
    pub fn ghosts(&self) -> impl Iterator<Item = Record> {
        self.columns().flat_map(move |column| {
            let cell = self.cell(column);
            let (newest, older) =
                cell.split_last().map_or((0, &[][..]), |(newest, older)| (newest.left, older));
            older.iter().filter(move |it| it.left > newest).map(|it| it.record).filter(move |it| {
                (it.kind.is_member() || matches!(it.kind, Kind::Exclusive | Kind::Base))
                    && !self.is_outlived(column, it)
            })
        })
    }
}

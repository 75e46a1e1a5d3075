//! The requests of a client: each is one conditional mutation, composed from what a read showed.
//!
//! ```text
//! exclusive   L free or of an earlier grant, F < n                          -> L: record of n, F: n
//!             L a base of e, as seen, all slots free, F == e                -> L: record of e + 1, F: e + 1
//! first       L as seen, no base; slot free; others compatible, F < n
//!                                                                           -> slot: record of n, L: base of n, F: n
//! join        L a base of e, as seen; slot free; others compatible, F == e
//!                                                                           -> slot: record of e, L: base of e, F: e
//! renew       slot == record, L a base of e, as seen, F == e                -> slot, L: base, F: e
//! step down   L == record of m, all slots free, F == m                      -> slot: record of m + 1, L: base, F: m + 1
//! upgrade     slot == record, L a base of e, as seen, others free, F == e   -> slot: free, L: record of e + 1, F: e + 1
//! release     slot == record, F == e; the last one: others free             -> slot: free, F: e; the last one: L: free
//! ```
//!
//! A free slot may cover nothing that lasts longer than the record that takes it. The base is not compared in the release of the
//! last member: the empty cell that it writes lasts longer than any.
//!
//! A cell is written for the longest TTL of all that it covers, and so is the base, over the members of its epoch.
//! A reader also requires that no intent lives, or that a turn lives, or that its own hold stands in its slot.

use crate::store::Token;

use super::store::{Column, Condition, Kind, Number, Record, Request, Row, Test};

/// The protocol as it is, or a wrong one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    Right,
    /// The condition of a shared grant does not look at the exclusive place.
    IgnoresExclusive,
    /// A member that joins or renews does not write the base.
    LeavesBase,
    /// A renewal requires only its own cell and the number, and writes the base as it was when it was read.
    RenewalIgnoresBase,
    /// The base has the number from before the grant that writes it.
    BaseOfEarlierNumber,
    /// The condition of a grant does not look at the slot that it writes.
    IgnoresSlot,
    /// A grant requires that its slot is free, and not that the slot covers nothing longer.
    SlotOnlyFree,
    /// The record of a new grant, and so its marker, last only as long as they were asked for.
    ForgetsCover,
    /// The renewal of a permit writes the number that its client knows, and does not add 0.
    WritesNumberBack,
    /// A renewal compares its own cell only.
    RenewalIgnoresNumber,
    /// The same, and a new grant forgets what its slot covers.
    RenewalIgnoresNumberAndCover,
    /// A member joins whatever the number is.
    JoinIgnoresNumber,
    FirstMemberKeepsNumber,
    StepDownKeepsNumber,
    /// A cell of an unknown kind is compatible.
    PassesUnknown,
    TwoUpdaters,
    /// While a conversion is under way, its client counts on the mode that it had.
    CountsOnOldMode,
    /// A client whose conversion has no answer, and whose old record stands, goes on as before. If the new record comes,
    /// the background threads release it.
    ForgetsConversion,
    /// While a turn lives, a reader passes everything.
    TurnPassesAll,
}

#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub variant: Variant,
    pub slots: u8,
    /// Ticks by which a lease ends earlier for its holder than in the store.
    pub margin: u8,
    /// Whether cells keep older versions. The newest one covers them in the right protocol: see `NO_GHOST`.
    pub versions: bool,
}

/// The client that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asks {
    pub token: Token,
    pub ttl: u8,
    /// The reader's own hold, with its slot. Beside it, the reader needs no turn.
    pub nested: Option<(Column, Record)>,
}

impl Rules {
    pub fn is(&self, variant: Variant) -> bool {
        self.variant == variant
    }

    /// Returns the request for a new exclusive grant, if the row that was read allows it. `old`: from a version without
    /// modes, which looks at the place and the number only.
    pub fn exclusive(&self, row: &Row, asks: Asks, old: bool) -> Option<Request> {
        let (number, ttl) = (row.number + 1, asks.ttl);
        let record = Record { kind: Kind::Exclusive, token: asks.token, number, ttl };
        let mut condition =
            Condition { number: Number::Below(number), cells: Vec::new(), allows: None, turn: false };
        match row.seen(Column::Place) {
            // A base may outlast its members, which no version without modes knows.
            Some(base) if base.kind == Kind::Base && !row.is_outlived(Column::Place, &base) && !old => {
                condition.number = Number::Is(row.number);
                condition.cells.push((Column::Place, Test::Is(Some(base))));
                condition.allows = Some(self.kinds(&[Kind::Intent]));
            }
            Some(seen) if row.is_outlived(Column::Place, &seen) && seen.kind != Kind::Free => {
                condition.number = Number::Is(row.number);
                condition.cells.push((Column::Place, Test::Is(Some(seen))));
            }
            _ => condition.cells.push((Column::Place, Test::Free)),
        }
        let writes = vec![(Column::Place, record)];
        let request = Request { condition, number: Some(number), writes, grants: Some(record), old };
        row.allows(&request.condition).then_some(request)
    }

    /// Returns the request for a new member in this slot, if the row that was read allows it.
    pub fn member(&self, row: &Row, kind: Kind, slot: u8, asks: Asks) -> Option<Request> {
        let slot = Column::Slot(slot);
        let seen = row.seen(slot);
        let is_exclusive = row.stands(Column::Place).is_some_and(|it| it.kind != Kind::Base);
        if row.stands(slot).is_some() || (is_exclusive && !self.is(Variant::IgnoresExclusive)) {
            return None;
        }
        let place = row.seen(Column::Place);
        let base = row.stands(Column::Place).filter(|it| it.kind == Kind::Base);
        // A permit never joins: it has a number of its own.
        let joins = base.is_some() && kind != Kind::Permit;
        let keeps = self.is(Variant::FirstMemberKeepsNumber) && kind != Kind::Permit;
        let raises = !joins && !keeps;
        let number = row.number + u8::from(raises);
        let record = Record { kind, token: asks.token, number, ttl: self.cover(asks.ttl, seen) };

        let mut allows = self.kinds(&Self::beside(kind));
        if kind == Kind::Update && self.is(Variant::TwoUpdaters) {
            allows.push(Kind::Update);
        }
        let mut cells = vec![(Column::Place, Test::Is(place)), (slot, Test::FreeUpTo(record.ttl))];
        let mut requires = if joins { Number::Is(number) } else { Number::Below(row.number + 1) };
        let mut turn = false;
        match self.variant {
            Variant::IgnoresExclusive => {
                allows.extend([Kind::Exclusive, Kind::Base]);
                cells.remove(0);
            }
            Variant::JoinIgnoresNumber if joins => {
                allows.push(Kind::Base);
                cells.remove(0);
                requires = Number::Any;
            }
            Variant::IgnoresSlot => {
                cells.pop();
            }
            Variant::SlotOnlyFree | Variant::ForgetsCover | Variant::RenewalIgnoresNumberAndCover => {
                cells[1].1 = Test::Free;
            }
            _ => {}
        }
        if kind == Kind::Shared && row.stands(Column::Intent).is_some() {
            match asks.nested {
                Some((column, own)) => cells.push((column, Test::Is(Some(own)))),
                None => turn = true,
            }
            allows.push(Kind::Intent);
        } else if kind != Kind::Shared {
            allows.push(Kind::Intent);
        }
        let all = turn && self.is(Variant::TurnPassesAll);
        let condition = Condition {
            number: if all { Number::Any } else { requires },
            cells: if all { Vec::new() } else { cells },
            allows: (!all).then_some(allows),
            turn,
        };
        let mut writes = vec![(slot, record)];
        if !(joins && self.is(Variant::LeavesBase)) {
            writes.push((Column::Place, self.base(row, number, record.ttl)));
        }
        let request = Request { condition, number: Some(number), writes, grants: Some(record), old: false };
        row.allows(&request.condition).then_some(request)
    }

    /// Returns the renewal of a record, if the row that was read still has it.
    pub fn renew(&self, row: &Row, (column, record): (Column, Record), ttl: u8) -> Option<(Record, Request)> {
        let new = Record { ttl: record.ttl.max(ttl), ..record };
        let mut cells = vec![(column, Test::Is(Some(record)))];
        let mut writes = vec![(column, new)];
        let mut number = Some(record.number);
        let mut requires = Number::Is(record.number);
        if record.kind.is_member() {
            let base = row.stands(Column::Place).filter(|it| it.kind == Kind::Base);
            let longer = |base: Record| Record { ttl: base.ttl.max(new.ttl), ..base };
            let ignores =
                matches!(self.variant, Variant::RenewalIgnoresNumber | Variant::RenewalIgnoresNumberAndCover);
            if ignores {
                let covered = base.map_or(0, |it| it.ttl);
                writes.push((Column::Place, Record::base(record.number, covered.max(new.ttl))));
                requires = Number::Any;
            } else if !self.is(Variant::LeavesBase) {
                writes.push((Column::Place, longer(base?)));
                if !self.is(Variant::RenewalIgnoresBase) {
                    cells.push((Column::Place, Test::Is(base)));
                }
            }
            if record.kind == Kind::Permit {
                requires = Number::Any;
                if !self.is(Variant::WritesNumberBack) {
                    number = None;
                }
            }
        }
        let condition = Condition { number: requires, cells, allows: None, turn: false };
        Some((new, Request { condition, number, writes, grants: None, old: false }))
    }

    /// Returns the step down of an exclusive holder into this slot.
    pub fn step_down(&self, row: &Row, record: Record, to: Kind, slot: u8, asks: Asks) -> Option<Request> {
        let slot = Column::Slot(slot);
        let number = record.number + u8::from(!self.is(Variant::StepDownKeepsNumber));
        let seen = row.seen(slot);
        let new = Record { kind: to, token: asks.token, number, ttl: self.cover(asks.ttl, seen) };
        let cells = vec![(Column::Place, Test::Is(Some(record))), (slot, Test::FreeUpTo(new.ttl))];
        let condition = Condition {
            number: Number::Is(record.number),
            cells,
            allows: Some(self.kinds(&[Kind::Intent])),
            turn: false,
        };
        let writes = vec![(slot, new), (Column::Place, self.base(row, number, new.ttl))];
        let request = Request { condition, number: Some(number), writes, grants: Some(new), old: false };
        row.allows(&request.condition).then_some(request)
    }

    /// Returns the conversion of an updater: to shared, or to exclusive if the others have left.
    pub fn convert(&self, row: &Row, held: (Column, Record), to: Kind, asks: Asks) -> Option<Request> {
        let (slot, record) = held;
        let base = row.stands(Column::Place).filter(|it| it.kind == Kind::Base)?;
        let mut condition = Condition {
            number: Number::Is(record.number),
            cells: vec![(slot, Test::Is(Some(record))), (Column::Place, Test::Is(Some(base)))],
            allows: None,
            turn: false,
        };
        let request = if to == Kind::Exclusive {
            condition.allows = Some(self.kinds(&[Kind::Intent]));
            let number = record.number + 1;
            let new = Record { kind: to, token: asks.token, number, ttl: asks.ttl };
            let writes = vec![(slot, Record::free(record.ttl)), (Column::Place, new)];
            Request { condition, number: Some(number), writes, grants: Some(new), old: false }
        } else {
            let ttl = record.ttl.max(asks.ttl);
            let new = Record { kind: to, token: asks.token, number: record.number, ttl };
            let writes = vec![(slot, new), (Column::Place, self.base(row, record.number, ttl))];
            Request { condition, number: Some(record.number), writes, grants: Some(new), old: false }
        };
        row.allows(&request.condition).then_some(request)
    }

    /// Returns the release of a record. The last member frees the place too.
    pub fn release(&self, row: &Row, (column, record): (Column, Record)) -> Request {
        let mut condition = Condition {
            number: if record.kind == Kind::Permit { Number::Any } else { Number::Is(record.number) },
            cells: vec![(column, Test::Is(Some(record)))],
            allows: None,
            turn: false,
        };
        let mut writes = vec![(column, Record::free(record.ttl))];
        let base = row.stands(Column::Place).filter(|it| it.kind == Kind::Base);
        let alone = row
            .columns()
            .filter(|it| matches!(it, Column::Slot(_)) && *it != column)
            .all(|it| row.stands(it).is_none());
        if let Some(base) = base.filter(|_| record.kind.is_member() && alone) {
            condition.allows = Some(self.kinds(&[Kind::Base, Kind::Intent]));
            writes.push((Column::Place, Record::free(base.ttl)));
        }
        let number = (record.kind != Kind::Permit).then_some(record.number);
        Request { condition, number, writes, grants: None, old: false }
    }

    fn beside(kind: Kind) -> Vec<Kind> {
        [Kind::Shared, Kind::Update, Kind::Permit].into_iter().filter(|it| kind.goes_beside(*it)).collect()
    }

    fn kinds(&self, kinds: &[Kind]) -> Vec<Kind> {
        let mut kinds = kinds.to_vec();
        kinds.extend(self.is(Variant::PassesUnknown).then_some(Kind::Unknown));
        kinds
    }

    /// Returns the TTL of a new record over what was seen in its slot.
    fn cover(&self, ttl: u8, seen: Option<Record>) -> u8 {
        match self.variant {
            Variant::ForgetsCover | Variant::RenewalIgnoresNumberAndCover => ttl,
            _ => seen.map_or(ttl, |seen| seen.ttl.max(ttl)),
        }
    }

    /// Returns the base of the members of this epoch. A base of an earlier number may outlive it: it is of an earlier grant.
    fn base(&self, row: &Row, number: u8, ttl: u8) -> Record {
        let base = row.stands(Column::Place).filter(|it| it.kind == Kind::Base);
        // The members of a semaphore have several numbers and one base.
        let ttl = base.map_or(ttl, |base| base.ttl.max(ttl));
        Record::base(if self.is(Variant::BaseOfEarlierNumber) { row.number.max(1) - 1 } else { number }, ttl)
    }
}

//! One client of a lock with modes: what it holds, what it waits for, and what it counts on meanwhile.
//!
//! | state | event | next state |
//! |---|---|---|
//! | acquiring | Yes | holding |
//! | acquiring | No, or Lost and then a read | holding if a read shows the record of one of its attempts; otherwise idle, and after Lost the attempt is open |
//! | renewing | Yes | holding, longer |
//! | renewing | No, or Lost and then a read | holding with the record that a read shows; otherwise lost |
//! | converting | Yes | holding in the new mode |
//! | converting | No, or Lost and then a read | holding in the new mode if its record is read; lost if neither record is |
//! | converting | the same, and the old record is read | holding in the old mode if no request may still arrive; otherwise the state stays, and the same request may be sent again |
//! | releasing | No, or Lost and then a read | releasing if its record is read; otherwise idle |
//!
//! While it converts, a client counts on the weaker of both modes, for as long as the old lease lasts. A step down may have
//! taken effect as soon as it was sent.

use crate::client::Timer;
use crate::store::Token;

use super::requests::{Rules, Variant};
use super::store::{Column, Kind, Record, Request, Row};

/// A hold, or an attempt to get one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    pub column: Column,
    pub record: Record,
    pub timer: Timer,
    /// The mode that was converted into this one.
    pub from: Option<Kind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    Acquiring(Hold),
    Holding(Hold),
    Renewing {
        held: Hold,
        new: Hold,
    },
    /// `lost`: an earlier copy of the request may still arrive.
    Converting {
        held: Hold,
        new: Hold,
        lost: bool,
    },
    Releasing(Hold),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pending {
    pub request: Request,
    pub answer: Option<bool>,
}

/// What a client counts on. The number is unknown while a conversion raises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub kind: Kind,
    pub number: Option<u8>,
    pub timer: Timer,
    pub from: Option<Kind>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    /// `None` outside of idle and holding: a reply was lost, and the client reads next.
    pub pending: Option<Pending>,
    /// Attempts that may still take effect. The background threads release their records.
    pub open: Vec<Hold>,
    pub next_token: u8,
    pub tokens_left: u8,
    pub renewals_left: u8,
    pub conversions_left: u8,
}

impl Client {
    pub fn claim(&self, rules: &Rules) -> Option<Claim> {
        let of = |held: Hold| Claim {
            kind: held.record.kind,
            number: Some(held.record.number),
            timer: held.timer,
            from: held.from,
        };
        match self.phase {
            Phase::Holding(held) | Phase::Renewing { held, .. } => Some(of(held)),
            Phase::Converting { held, .. } if rules.is(Variant::CountsOnOldMode) => Some(of(held)),
            Phase::Converting { held, new, .. } => {
                let claim = of(held);
                let raises = held.record.kind == Kind::Exclusive;
                let kind = if raises { new.record.kind } else { Kind::min_of(held, new) };
                Some(Claim { kind, number: claim.number.filter(|_| !raises), ..claim })
            }
            Phase::Idle | Phase::Acquiring(_) | Phase::Releasing(_) => None,
        }
        .filter(|claim| claim.timer.left > 0)
    }

    /// Whether the client will release this record.
    pub fn knows(&self, token: Token) -> bool {
        let (first, second) = match self.phase {
            Phase::Idle => (None, None),
            Phase::Acquiring(hold) | Phase::Holding(hold) | Phase::Releasing(hold) => (Some(hold), None),
            Phase::Renewing { held, new } | Phase::Converting { held, new, .. } => (Some(held), Some(new)),
        };
        self.open.iter().copied().chain(first).chain(second).any(|it| it.record.token == token)
    }

    pub fn timers(&mut self) -> impl Iterator<Item = &mut Timer> {
        let (first, second) = match &mut self.phase {
            Phase::Idle | Phase::Releasing(_) => (None, None),
            Phase::Acquiring(hold) | Phase::Holding(hold) => (Some(hold), None),
            Phase::Renewing { held, new } | Phase::Converting { held, new, .. } => (Some(held), Some(new)),
        };
        first.into_iter().chain(second).chain(&mut self.open).map(|hold| &mut hold.timer)
    }

    pub fn draw(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token - 1)
    }

    pub fn send(&mut self, phase: Phase, request: Request) {
        self.phase = phase;
        self.pending = Some(Pending { request, answer: None });
    }

    pub fn release(&mut self, rules: &Rules, row: &Row) {
        let held = match self.phase {
            Phase::Holding(held) => held,
            // Its new record may still come.
            Phase::Converting { held, new, .. } => {
                self.open.push(new);
                held
            }
            _ => unreachable!("nothing is held"),
        };
        let request = rules.release(row, (held.column, held.record));
        self.send(Phase::Releasing(held), request);
    }

    /// The answer is Yes.
    pub fn done(&mut self) {
        self.pending = None;
        self.phase = match self.phase {
            Phase::Acquiring(new) | Phase::Renewing { new, .. } | Phase::Converting { new, .. } => {
                Phase::Holding(new)
            }
            Phase::Releasing(_) => Phase::Idle,
            Phase::Idle | Phase::Holding(_) => unreachable!("no request is pending"),
        };
    }

    /// The answer is No, or it was lost, and the client has read the row.
    pub fn look(&mut self, rules: &Rules, row: &Row, answered: bool) {
        let refused = self.pending.take();
        let stored = |hold: &Hold| {
            let (column, record) = row.find(hold.record.token)?;
            Some(Hold { column, record, ..*hold })
        };
        match self.phase {
            Phase::Acquiring(new) => {
                if answered {
                    // No record has this token, nor ever will.
                    (self.next_token, self.tokens_left) = (self.next_token - 1, self.tokens_left + 1);
                } else {
                    self.open.push(new);
                }
                let ours =
                    self.open.iter().position(|it| it.record.kind == new.record.kind && stored(it).is_some());
                self.phase = match ours.map(|at| self.open.remove(at)).and_then(|it| stored(&it)) {
                    Some(granted) => Phase::Holding(granted),
                    None => Phase::Idle,
                };
            }
            Phase::Renewing { held, .. } => self.phase = stored(&held).map_or(Phase::Idle, Phase::Holding),
            Phase::Converting { held, new, lost } => {
                self.phase = match (stored(&new), stored(&held)) {
                    (Some(granted), _) => Phase::Holding(granted),
                    (None, None) => Phase::Idle,
                    (None, Some(held)) if answered && !lost => {
                        (self.next_token, self.conversions_left) =
                            (self.next_token - 1, self.conversions_left + 1);
                        Phase::Holding(held)
                    }
                    (None, Some(held)) if rules.is(Variant::ForgetsConversion) => {
                        self.open.push(new);
                        Phase::Holding(held)
                    }
                    (None, Some(held)) => Phase::Converting { held, new, lost: true },
                };
            }
            Phase::Releasing(held) => match stored(&held) {
                Some(held) => {
                    let request = rules.release(row, (held.column, held.record));
                    self.send(Phase::Releasing(held), request);
                }
                None => self.phase = Phase::Idle,
            },
            Phase::Idle | Phase::Holding(_) => unreachable!("{refused:?} is pending"),
        }
        self.open.sort_unstable();
    }
}

impl Kind {
    /// The weaker of the modes of an updater's conversion.
    fn min_of(held: Hold, new: Hold) -> Kind {
        if new.record.kind == Kind::Shared { Kind::Shared } else { held.record.kind }
    }
}

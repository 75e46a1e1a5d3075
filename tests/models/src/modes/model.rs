//! Clients, network, clocks, row and receiver together: what may happen next, and what must always hold.

use stateright::Property;

use crate::client::Timer;
use crate::store::Token;

use super::client::{Claim, Client, Hold, Pending, Phase};
use super::requests::{Asks, Rules, Variant};
use super::store::{Column, Kind, NOBODY, Number, Record, Request, Row, Test};

/// What one client may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Role {
    pub acquires: &'static [Kind],
    pub converts: &'static [(Kind, Kind)],
    /// A version without modes. It knows the exclusive place and the number.
    pub old: bool,
    /// The client of the same process whose hold its own one is nested in.
    pub nested_in: Option<usize>,
    /// TTLs that it asks for, if not those of the model.
    pub ttls: Option<&'static [u8]>,
}

impl Role {
    pub const fn of(acquires: &'static [Kind]) -> Role {
        Role { acquires, converts: &[], old: false, nested_in: None, ttls: None }
    }

    pub const fn old() -> Role {
        Role { old: true, ..Role::of(&[Kind::Exclusive]) }
    }

    pub const fn converting(self, converts: &'static [(Kind, Kind)]) -> Role {
        Role { converts, ..self }
    }

    pub const fn asking_for(self, ttls: &'static [u8]) -> Role {
        Role { ttls: Some(ttls), ..self }
    }

    pub const fn nested_in(self, client: usize) -> Role {
        Role { nested_in: Some(client), ..self }
    }
}

/// The rules, and the bounds of the exploration.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub rules: Rules,
    pub roles: &'static [Role],
    /// Attempts of each client.
    pub tokens: u8,
    /// Renewals of each client.
    pub renewals: u8,
    /// Conversions of each client.
    pub conversions: u8,
    /// TTLs of grants and conversions.
    pub ttls: &'static [u8],
    pub renewal_ttls: &'static [u8],
    /// Replies that are lost. A request without a reply may be applied later, or never.
    pub losses: u8,
    /// Ticks that the clocks of clients miss.
    pub missed: u8,
    /// Ticks that the clock of a client may miss during a lease before exclusion is no longer promised.
    pub drift: u8,
    /// Older versions that flushes drop.
    pub flushes: u8,
    /// Times that a waiting writer writes its intent.
    pub intents: u8,
    /// Turns of readers.
    pub turns: u8,
    /// Whether the holders write to the receiver, and readers read from it.
    pub accesses: bool,
    /// A holder of an unknown kind has the last slot at first.
    pub unknown: bool,
}

impl Model {
    pub const SMALL: Model = Model {
        rules: Rules { variant: Variant::Right, slots: 2, margin: 1, versions: false },
        roles: &[],
        tokens: 1,
        renewals: 0,
        conversions: 0,
        ttls: &[2],
        renewal_ttls: &[2],
        losses: 0,
        missed: 0,
        drift: 1,
        flushes: 0,
        intents: 0,
        turns: 0,
        accesses: false,
        unknown: false,
    };

    /// The same model with another variant of the protocol.
    pub const fn with(mut self, variant: Variant) -> Model {
        self.rules.variant = variant;
        self
    }

    /// The same model with cells that keep their older versions.
    pub const fn with_versions(mut self) -> Model {
        self.rules.versions = true;
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub row: Row,
    pub clients: Vec<Client>,
    /// Requests without a sender, which may be applied at any time.
    pub late: Vec<Request>,
    /// The highest number of any grant, and of one that began an epoch or is a permit.
    pub highest: (u8, u8),
    /// Tokens in the order in which the store granted them. Empty without accesses.
    pub order: Vec<Token>,
    /// Grants whose holder sent a write or a read, which may arrive at any time and more than once.
    pub sent: Vec<Record>,
    pub receiver: Receiver,
    pub losses: u8,
    pub missed: u8,
    pub flushes: u8,
    pub intents: u8,
    pub turns: u8,
    pub broken: Broken,
}

/// What the receiver has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Receiver {
    pub highest: u8,
    /// Of the latest grant in the order of grants.
    pub last: Option<Token>,
    pub last_write: Option<Token>,
}

/// Promises that were broken in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Broken {
    pub fences: bool,
    pub number: bool,
    pub accesses: bool,
    pub old_let_in: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A tick of all clocks.
    Tick,
    /// A tick that the clock of one client misses.
    TickMissedBy(usize),
    /// A client reads the row and sends a request for a slot, or for the exclusive place.
    Acquire(usize, Kind, u8, u8),
    Renew(usize, u8),
    Convert(usize, Kind, u8, u8),
    /// The same conversion once more: the answer was lost, and the old record stands.
    Resend(usize),
    Release(usize),
    /// The store applies the pending request of a client.
    Apply(usize),
    /// The answer arrives. After No, the client reads the row.
    Receive(usize),
    /// The client gives up waiting. The request may be applied already, later, or never.
    Lose(usize),
    /// The client reads the row after a lost reply.
    Look(usize),
    /// The store applies a request without a sender.
    ApplyLate(Request),
    /// A background thread releases a record.
    Free(usize, Token),
    /// A flush drops an older version of a cell.
    Flush(Column, usize),
    /// A waiting writer writes its intent.
    Intent(usize),
    /// Begins a turn of the readers.
    Turn,
    /// The holder checks its lease and sends a write, or a read.
    Send(usize),
    /// A write or a read arrives at the receiver.
    Access(Record),
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |at| Client {
            phase: Phase::Idle,
            pending: None,
            open: Vec::new(),
            next_token: at as u8 * TOKENS,
            tokens_left: self.tokens,
            renewals_left: self.renewals,
            conversions_left: self.conversions,
        };
        let mut row = Row::new(self.rules.slots);
        let mut highest = (0, 0);
        if self.unknown {
            let record = Record { kind: Kind::Unknown, token: NOBODY, number: 1, ttl: 2 };
            row.put(Column::Slot(self.rules.slots - 1), record, false);
            row.put(Column::Place, Record::base(1, 2), false);
            (row.number, highest) = (1, (1, 1));
        }
        vec![State {
            row,
            clients: (0..self.roles.len()).map(client).collect(),
            late: Vec::new(),
            highest,
            order: Vec::new(),
            sent: Vec::new(),
            receiver: Receiver::default(),
            losses: self.losses,
            missed: self.missed,
            flushes: self.flushes,
            intents: self.intents,
            turns: self.turns,
            broken: Broken::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for (at, client) in state.clients.iter().enumerate() {
            if state.missed > 0 && client.clone().timers().any(|timer| timer.left > 0) {
                actions.push(Action::TickMissedBy(at));
            }
            actions.extend(client.open.iter().map(|hold| Action::Free(at, hold.record.token)));
            match (&client.pending, client.phase) {
                (Some(pending), _) => {
                    let answered = pending.answer.is_some();
                    actions.push(if answered { Action::Receive(at) } else { Action::Apply(at) });
                    if state.losses > 0 {
                        actions.push(Action::Lose(at));
                    }
                }
                (None, Phase::Idle) => self.acquires(state, at, actions),
                (None, Phase::Holding(held)) => {
                    actions.push(Action::Release(at));
                    if client.renewals_left > 0 {
                        actions.extend(self.renewal_ttls.iter().map(|ttl| Action::Renew(at, *ttl)));
                    }
                    if client.conversions_left > 0 {
                        self.conversions(state, at, held.record.kind, actions);
                    }
                }
                (None, Phase::Converting { lost: true, .. }) => {
                    actions.extend([Action::Look(at), Action::Resend(at), Action::Release(at)]);
                }
                (None, _) => actions.push(Action::Look(at)),
            }
            if let (true, Some(record)) = (self.accesses, self.accesses_with(client))
                && record.number >= state.receiver.highest
                && !state.sent.contains(&record)
            {
                actions.push(Action::Send(at));
            }
            let writes_intents = state.intents > 0 && client.phase == Phase::Idle && client.tokens_left > 0;
            if writes_intents && self.roles[at].acquires.contains(&Kind::Exclusive) {
                actions.push(Action::Intent(at));
            }
        }
        if state.turns > 0 && state.row.stands(Column::Intent).is_some() {
            actions.push(Action::Turn);
        }
        if state.flushes > 0 {
            for column in state.row.columns() {
                let older = state.row.cell(column).len().saturating_sub(1);
                actions.extend((0..older).map(|at| Action::Flush(column, at)));
            }
        }
        actions.extend(state.late.iter().cloned().map(Action::ApplyLate));
        actions.extend(state.sent.iter().copied().map(Action::Access));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let (rules, mut next) = (&self.rules, last.clone());
        match action {
            Action::Tick => next.tick(None, self.drift),
            Action::TickMissedBy(at) => {
                next.missed -= 1;
                next.tick(Some(at), self.drift);
            }
            Action::Acquire(at, kind, slot, ttl) => self.acquire(&mut next, at, kind, slot, ttl)?,
            Action::Renew(at, ttl) => {
                let client = &mut next.clients[at];
                let Phase::Holding(held) = client.phase else { return None };
                client.renewals_left -= 1;
                client.phase = match rules.renew(&next.row, (held.column, held.record), ttl) {
                    Some((record, request)) => {
                        let new = Hold { record, timer: self.start(ttl), ..held };
                        client.pending = Some(Pending { request, answer: None });
                        Phase::Renewing { held, new }
                    }
                    // The base is not that of the member's epoch: the lease is lost.
                    None => Phase::Idle,
                };
            }
            Action::Convert(at, to, slot, ttl) => self.convert(&mut next, at, to, slot, ttl)?,
            Action::Resend(at) => {
                let client = &mut next.clients[at];
                let Phase::Converting { held, new, .. } = client.phase else { return None };
                if next.row.find(held.record.token)? != (held.column, held.record) {
                    return None;
                }
                // Only the new record's token matters to the request that is still under way.
                let request = next.late.iter().find(|it| it.grants == Some(new.record))?.clone();
                client.pending = Some(Pending { request, answer: None });
            }
            Action::Release(at) => next.clients[at].release(rules, &next.row),
            Action::Apply(at) => {
                let request = next.clients[at].pending.as_ref()?.request.clone();
                let answer = self.apply(&mut next, &request);
                next.clients[at].pending.as_mut()?.answer = Some(answer);
            }
            Action::Receive(at) => match next.clients[at].pending.as_ref()?.answer? {
                true => next.clients[at].done(),
                false => next.clients[at].look(rules, &next.row, true),
            },
            Action::Lose(at) => {
                next.losses -= 1;
                let Pending { request, answer } = next.clients[at].pending.take()?;
                if answer.is_none() {
                    next.late.push(request);
                }
                if let Phase::Converting { lost, .. } = &mut next.clients[at].phase {
                    *lost = true;
                }
            }
            Action::Look(at) => next.clients[at].look(rules, &next.row, false),
            Action::ApplyLate(request) => {
                next.late.retain(|it| *it != request);
                self.apply(&mut next, &request);
            }
            Action::Free(at, token) => {
                let found = next.row.find(token)?;
                let request = rules.release(&next.row, found);
                if !self.apply(&mut next, &request) {
                    return None;
                }
                next.clients[at].open.retain(|it| it.record.token != token);
            }
            Action::Flush(column, at) => {
                next.flushes -= 1;
                next.row.drop_version(column, at);
            }
            Action::Intent(_) => {
                next.intents -= 1;
                let record = Record { kind: Kind::Intent, token: NOBODY, number: 0, ttl: 2 };
                next.row.put(Column::Intent, record, false);
            }
            Action::Turn => {
                next.turns -= 1;
                let record = Record { kind: Kind::Turn, token: NOBODY, number: 0, ttl: 1 };
                next.row.put(Column::Turn, record, false);
            }
            Action::Send(at) => {
                next.sent.push(self.accesses_with(&next.clients[at])?);
                next.sent.sort_unstable();
            }
            Action::Access(record) => next.access(record),
        }
        next.tidy(self);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |model, state: &State| {
                let claims: Vec<_> = state.claims(model).map(|it| it.kind).collect();
                let fits = |at: usize| claims[at + 1..].iter().all(|other| claims[at].goes_beside(*other));
                let is_unknown = |it: Column| state.row.stands(it).is_some_and(|it| it.kind == Kind::Unknown);
                (0..claims.len()).all(fits) && (claims.is_empty() || !state.row.columns().any(is_unknown))
            }),
            Property::always(ONE_EPOCH, |model, state: &State| {
                let mut epochs =
                    state.claims(model).filter(|it| it.kind != Kind::Permit).filter_map(|it| it.number);
                let first = epochs.next();
                epochs.all(|it| Some(it) == first)
            }),
            Property::always(FENCES, |_, state: &State| !state.broken.fences),
            Property::always(NEVER_FALLS, |_, state: &State| !state.broken.number),
            Property::always(STORED, |model, state: &State| {
                let stands = |hold: Hold| state.row.find(hold.record.token).is_some();
                let counts =
                    |it: &&Client| it.claim(&model.rules).is_some_and(|it| it.timer.missed <= model.drift);
                state.clients.iter().filter(counts).all(|it| match it.phase {
                    Phase::Converting { held, new, .. } => stands(held) || stands(new),
                    Phase::Holding(held) | Phase::Renewing { held, .. } => stands(held),
                    Phase::Idle | Phase::Acquiring(_) | Phase::Releasing(_) => true,
                })
            }),
            Property::always(ACCESSES, |_, state: &State| !state.broken.accesses),
            Property::always(OLD_OUT, |_, state: &State| !state.broken.old_let_in),
            Property::always(FREE_AGAIN, |model, state: &State| {
                let mut later = state.row.clone();
                let own = model.roles.iter().filter_map(|it| it.ttls).flatten();
                let longest =
                    model.ttls.iter().chain(model.renewal_ttls).chain(own).copied().fold(2, u8::max);
                (0..longest).for_each(|_| later.tick());
                later.columns().all(|column| later.stands(column).is_none())
            }),
            Property::always(NO_GHOST, |_, state: &State| state.row.ghosts().next().is_none()),
            Property::always(KNOWN, |_, state: &State| {
                let is_known = |token| token == NOBODY || state.clients.iter().any(|it| it.knows(token));
                state.row.columns().filter_map(|it| state.row.stands(it)).all(|it| is_known(it.token))
            }),
            Property::sometimes(TWO_READERS, |model, state: &State| {
                state.claims(model).filter(|it| it.kind == Kind::Shared && it.number.is_some()).count() > 1
            }),
            Property::sometimes(READER_BESIDE_UPDATER, |model, state: &State| {
                let has = |kind| state.claims(model).any(|it| it.kind == kind && it.from.is_none());
                has(Kind::Shared) && has(Kind::Update)
            }),
            Property::sometimes(UPGRADED, |model, state: &State| {
                let upgraded = |it: Claim| it.kind == Kind::Exclusive && it.from == Some(Kind::Update);
                state.claims(model).any(upgraded) && state.has_left(model, Kind::Shared)
            }),
            Property::sometimes(WRITER_AFTER_READERS, |model, state: &State| {
                let writes = |it: Claim| it.kind == Kind::Exclusive && it.from.is_none();
                state.claims(model).any(writes) && state.has_left(model, Kind::Shared)
            }),
            Property::sometimes(JOINED, |model, state: &State| {
                let claims: Vec<_> = state.claims(model).filter(|it| it.number.is_some()).collect();
                claims.len() > 1 && claims.iter().any(|it| it.from == Some(Kind::Exclusive))
            }),
            Property::sometimes(PERMITS, |model, state: &State| {
                state.claims(model).filter(|it| it.kind == Kind::Permit).count() > 1
            }),
            Property::sometimes(OLD_HOLDS, |model, state: &State| {
                let claims = |at: usize| state.clients[at].claim(&model.rules).is_some();
                (0..model.roles.len()).any(|at| model.roles[at].old && claims(at))
            }),
            // Its request was sent in this tick, and the intent was written before it.
            Property::sometimes(PAST_AN_INTENT, |model, state: &State| {
                let is_new = |it: Claim| it.kind == Kind::Shared && it.timer == model.start(model.ttls[0]);
                let is_older = state.row.cell(Column::Intent).last().is_some_and(|it| it.left == 1);
                is_older && state.claims(model).any(is_new)
            }),
        ]
    }
}

/// Tokens of one client.
const TOKENS: u8 = 16;

/// No two clients count on modes that exclude each other. Clients whose clocks missed more than the margin covers do not
/// count.
pub const EXCLUSION: &str = "exclusion of modes until expiry";
/// All shared and update holders that count on their leases have one number.
pub const ONE_EPOCH: &str = "one epoch";
/// No grant has a lower number than an earlier one. An exclusive grant, a step down, a first member and a permit have a higher
/// one.
pub const FENCES: &str = "rising numbers";
/// The number of the row never falls.
pub const NEVER_FALLS: &str = "a number that never falls";
/// The record of each lease that a client counts on stands in the row, so that others see it.
pub const STORED: &str = "every lease has its record";
/// The receiver accepts no write of a grant after a write or a read of a later one, and no read after a later write.
pub const ACCESSES: &str = "accesses in the order of the grants";
/// A version without modes is not granted the lock while a member's lease is valid.
pub const OLD_OUT: &str = "an old version stays out";
/// If all clients stop, the lock is free one TTL later, and stays free.
pub const FREE_AGAIN: &str = "free after the TTL of all";
/// No older version of a cell lasts longer than the newest one, which alone is sure to survive a flush.
pub const NO_GHOST: &str = "no record is seen again";
/// Each record that is in the way is known to a client that will release it.
pub const KNOWN: &str = "every record of a mode has an owner";
pub const TWO_READERS: &str = "two readers at once";
pub const READER_BESIDE_UPDATER: &str = "a reader beside an updater";
pub const UPGRADED: &str = "an upgrade after a reader left";
pub const WRITER_AFTER_READERS: &str = "a writer after a reader";
pub const JOINED: &str = "a step down that another client joined";
pub const PERMITS: &str = "two permits at once";
pub const OLD_HOLDS: &str = "an old version holds the lock";
pub const PAST_AN_INTENT: &str = "a reader passes an intent";

impl Model {
    fn start(&self, ttl: u8) -> Timer {
        Timer { left: ttl - self.rules.margin, missed: 0 }
    }

    fn acquires(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        if state.clients[at].tokens_left == 0 {
            return;
        }
        for kind in self.roles[at].acquires {
            let slots = if kind.is_member() { self.rules.slots } else { 1 };
            for ttl in self.roles[at].ttls.unwrap_or(self.ttls) {
                actions.extend((0..slots).map(|slot| Action::Acquire(at, *kind, slot, *ttl)));
            }
        }
    }

    /// Only an updater has a way up. A shared holder that asks for one is refused at once, without a request.
    fn conversions(&self, state: &State, at: usize, from: Kind, actions: &mut Vec<Action>) {
        for (_, to) in self.roles[at].converts.iter().filter(|it| it.0 == from && it.0 != Kind::Shared) {
            let slots = if from == Kind::Exclusive { state.row.slots() } else { 0..1 };
            for ttl in self.roles[at].ttls.unwrap_or(self.ttls) {
                actions.extend(slots.clone().map(|slot| Action::Convert(at, *to, slot, *ttl)));
            }
        }
    }

    fn acquire(&self, next: &mut State, at: usize, kind: Kind, slot: u8, ttl: u8) -> Option<()> {
        let nested = self.roles[at].nested_in.and_then(|outer| match next.clients[outer].phase {
            Phase::Holding(held) | Phase::Renewing { held, .. } => Some((held.column, held.record)),
            _ => None,
        });
        let client = &mut next.clients[at];
        client.tokens_left -= 1;
        let asks = Asks { token: client.draw(), ttl, nested };
        let request = match kind {
            Kind::Exclusive => self.rules.exclusive(&next.row, asks, self.roles[at].old)?,
            _ => self.rules.member(&next.row, kind, slot, asks)?,
        };
        let column = if kind.is_member() { Column::Slot(slot) } else { Column::Place };
        let new = Hold { column, record: request.grants?, timer: self.start(ttl), from: None };
        client.send(Phase::Acquiring(new), request);
        Some(())
    }

    fn convert(&self, next: &mut State, at: usize, to: Kind, slot: u8, ttl: u8) -> Option<()> {
        let client = &mut next.clients[at];
        let Phase::Holding(held) = client.phase else { return None };
        client.conversions_left -= 1;
        let asks = Asks { token: client.draw(), ttl, nested: None };
        let record = held.record;
        let request = match record.kind {
            Kind::Exclusive => self.rules.step_down(&next.row, record, to, slot, asks)?,
            _ => self.rules.convert(&next.row, (held.column, record), to, asks)?,
        };
        let column = match (record.kind, to) {
            (Kind::Exclusive, _) => Column::Slot(slot),
            (_, Kind::Exclusive) => Column::Place,
            _ => held.column,
        };
        let from = Some(record.kind);
        let new = Hold { column, record: request.grants?, timer: self.start(ttl), from };
        client.send(Phase::Converting { held, new, lost: false }, request);
        Some(())
    }

    /// Applies a request if its condition holds. Returns whether it did.
    fn apply(&self, next: &mut State, request: &Request) -> bool {
        if !next.row.allows(&request.condition) {
            return false;
        }
        if let Some(new) = request.grants {
            next.granted(self, new, request.old);
        }
        let number = request.number.unwrap_or(next.row.number);
        next.broken.number |= number < next.row.number;
        next.row.number = number;
        for (column, record) in &request.writes {
            next.row.put(*column, *record, self.rules.versions);
        }
        true
    }

    /// The record that a client's next access quotes. An updater has no number for writes, and reads as a reader does.
    fn accesses_with(&self, client: &Client) -> Option<Record> {
        let (Phase::Holding(held) | Phase::Renewing { held, .. }) = client.phase else { return None };
        (held.timer.left > 0 && held.record.kind != Kind::Permit).then_some(held.record)
    }
}

impl State {
    /// What clients count on, without those whose clock missed too much.
    fn claims<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = Claim> + 'a {
        self.clients
            .iter()
            .filter_map(|it| it.claim(&model.rules))
            .filter(|it| it.timer.missed <= model.drift)
    }

    /// Whether a client that acquires nothing but this mode had the lock and left.
    fn has_left(&self, model: &Model, kind: Kind) -> bool {
        (0..self.clients.len()).any(|at| {
            let client = &self.clients[at];
            let used = client.tokens_left < model.tokens;
            model.roles[at].acquires == [kind]
                && used
                && client.phase == Phase::Idle
                && client.open.is_empty()
        })
    }

    fn tick(&mut self, missed_by: Option<usize>, drift: u8) {
        self.row.tick();
        for (at, client) in self.clients.iter_mut().enumerate() {
            for timer in client.timers() {
                if missed_by == Some(at) {
                    timer.missed = (timer.missed + 1).min(drift + 1);
                } else {
                    timer.left = timer.left.saturating_sub(1);
                }
            }
        }
    }

    /// The store makes a grant.
    fn granted(&mut self, model: &Model, new: Record, old: bool) {
        let (highest, highest_exclusive) = self.highest;
        let is_first = self.row.stands(Column::Place).is_none_or(|it| it.kind != Kind::Base);
        let begins = matches!(new.kind, Kind::Exclusive | Kind::Permit) || is_first;
        self.broken.fences |= if begins { new.number <= highest } else { new.number < highest };
        self.broken.fences |= new.number < highest_exclusive;
        self.highest = (highest.max(new.number), if begins { new.number } else { highest_exclusive });
        let is_member = |it: Claim| it.kind.is_member();
        self.broken.old_let_in |= old && self.claims(model).any(is_member);
        if model.accesses {
            self.order.push(new.token);
        }
    }

    fn access(&mut self, record: Record) {
        if record.number < self.receiver.highest {
            return;
        }
        let place = |token: Token| self.order.iter().position(|it| *it == token);
        let writes = record.kind == Kind::Exclusive;
        let Receiver { last, last_write, .. } = self.receiver;
        let before = if writes { last } else { last_write };
        self.broken.accesses |= before.is_some_and(|before| place(record.token) < place(before));
        let later = |other: Option<Token>| match other {
            Some(other) if place(other) > place(record.token) => Some(other),
            _ => Some(record.token),
        };
        let last_write = if writes { later(last_write) } else { last_write };
        self.receiver = Receiver { highest: record.number, last: later(last), last_write };
    }

    /// Forgets what can have no effect any more, so that equal states meet.
    fn tidy(&mut self, model: &Model) {
        let State { row, clients, late, order, sent, receiver, .. } = self;
        let unapplied = |it: &Client| {
            it.pending.as_ref().filter(|it| it.answer.is_none()).and_then(|it| it.request.grants)
        };
        let granting: Vec<_> = clients.iter().filter_map(unapplied).collect();
        let turns_back =
            matches!(model.rules.variant, Variant::WritesNumberBack | Variant::JoinIgnoresNumber);
        let all = late.clone();
        let may_stand = |token: Token| {
            let grants = |it: &Record| it.token == token;
            row.mentions(token)
                || granting.iter().any(grants)
                || all.iter().filter_map(|it| it.grants.as_ref()).any(grants)
        };
        late.retain(|request| {
            let in_time = match request.condition.number {
                Number::Any => true,
                Number::Is(number) => turns_back || number >= row.number,
                Number::Below(number) => turns_back || number > row.number,
            };
            let has_ended = |test: &(Column, Test)| match test.1 {
                Test::Is(Some(record)) => record.token != NOBODY && !may_stand(record.token),
                _ => false,
            };
            in_time && !request.condition.cells.iter().any(has_ended)
        });
        late.sort_unstable();
        late.dedup();
        let under_way: Vec<_> = late.iter().filter_map(|it| it.grants).collect();
        for client in &mut *clients {
            client.open.retain(|it| {
                let token = it.record.token;
                let grants = |it: &Record| it.token == token;
                row.mentions(token) || granting.iter().any(grants) || under_way.iter().any(grants)
            });
            for timer in client.timers().filter(|timer| timer.left == 0) {
                timer.missed = 0;
            }
        }
        sent.retain(|it| it.number >= receiver.highest);
        if model.accesses {
            order.retain(|token| {
                [receiver.last, receiver.last_write].contains(&Some(*token))
                    || sent.iter().any(|it| it.token == *token)
                    || clients.iter().any(|it| it.knows(*token))
            });
        }
    }
}

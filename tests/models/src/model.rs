//! Clients, network, clocks, store and receiver together: what may happen next, and what must always hold.

use stateright::Property;

use crate::client::{
    Answer, Client, Lease, Pending, Phase, ReadBack, Renewal, Reply, Request, Rules, TOKENS, Variant,
};
use crate::store::{Compares, Flaw, Kind, Record, Store, Token};

/// The rules, and the bounds of the exploration.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub rules: Rules,
    pub clients: u8,
    /// Attempts of each client, over all its acquires.
    pub tokens: u8,
    /// Renewals of each client.
    pub renewals: u8,
    /// TTL of a renewal. It may differ from the TTL of the lease.
    pub renewal_ttls: &'static [u8],
    /// Replies that are lost. A request without a reply may be applied later, or never.
    pub losses: u8,
    /// Requests that are certainly not applied, and reads that fail.
    pub failures: u8,
    /// Requests that a gateway sends twice.
    pub copies: u8,
    /// Requests without a sender that a gateway sends once more.
    pub late_copies: u8,
    /// Ticks that the clocks of clients miss.
    pub missed: u8,
    /// Ticks that the clock of a client may miss during a lease before exclusion is no longer promised.
    pub drift: u8,
    /// Times that the store's clock is set back by a tick.
    pub set_back: u8,
    /// Whether the holders write to the receiver.
    pub writes: bool,
}

impl Model {
    /// A store that compares the whole record, two clients with two attempts each, and no faults.
    pub const REGISTER: Model = Model {
        rules: Rules {
            kind: Kind::Plain(Compares::Record),
            read_back: ReadBack::AfterCount,
            one_request: false,
            repeats: false,
            hides: false,
            ttl: 2,
            margin: 1,
            variant: Variant::Right,
        },
        clients: 2,
        tokens: 2,
        renewals: 0,
        renewal_ttls: &[2, 3],
        losses: 0,
        failures: 0,
        copies: 0,
        late_copies: 0,
        missed: 0,
        drift: 1,
        set_back: 0,
        writes: false,
    };

    /// A store that compares tokens and needs no read-back, as Aerospike.
    pub const fn by_token() -> Model {
        let mut model = Model::REGISTER;
        (model.rules.kind, model.rules.read_back) = (Kind::Plain(Compares::Token), ReadBack::Never);
        model
    }

    /// Cells of HBase, used directly: one request for each acquire.
    pub const fn hbase() -> Model {
        let mut model = Model::REGISTER;
        (model.rules.kind, model.rules.one_request, model.rules.hides) =
            (Kind::Cells(Flaw::None), true, true);
        model
    }

    /// Cells of HBase behind a gateway, which may send a request twice.
    pub const fn gateway() -> Model {
        let mut model = Model::hbase();
        (model.rules.one_request, model.rules.repeats) = (false, true);
        model
    }

    /// The same model with another variant of the protocol.
    pub const fn with(mut self, variant: Variant) -> Model {
        self.rules.variant = variant;
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub store: Store,
    pub counter: u8,
    pub clients: Vec<Client>,
    /// Requests without a sender, which may be applied at any time.
    pub late: Vec<Request>,
    /// Tokens in the order in which the store created their records.
    pub order: Vec<Token>,
    /// All grants so far, with their fences.
    pub granted: Vec<(Token, u8)>,
    /// Grants whose holder sent a write, which may arrive at any time and more than once.
    pub sent: Vec<Token>,
    pub receiver: Receiver,
    pub losses: u8,
    pub failures: u8,
    pub copies: u8,
    pub late_copies: u8,
    pub missed: u8,
    pub set_back: u8,
    pub broken: Broken,
}

/// The writes that the receiver has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Receiver {
    pub highest: u8,
    pub last: Option<Token>,
}

/// Promises that were broken in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Broken {
    pub fences: bool,
    pub writes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A tick of all clocks.
    Tick,
    /// A tick that the clock of one client misses.
    TickMissedBy(usize),
    SetBack,
    Acquire(usize),
    Renew(usize, u8),
    Release(usize),
    /// The store applies the pending request of a client.
    Apply(usize),
    /// The same, and a copy of the request stays under way.
    ApplyAndCopy(usize),
    /// The answer arrives.
    Receive(usize),
    /// The client gives up waiting. The request may be applied already, later, or never.
    Lose(usize),
    /// The request fails and is not applied.
    Fail(usize),
    /// The store applies a request without a sender.
    ApplyLate(Request),
    /// The same, and a copy of the request stays under way.
    ApplyLateAndCopy(Request),
    /// A background thread releases a record.
    Free(usize, Token),
    /// The holder checks its lease and sends a write.
    Send(usize),
    /// A write arrives at the receiver.
    Write(Token),
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |number| Client::new(number, self.tokens, self.renewals);
        vec![State {
            store: Store::new(self.rules.kind),
            counter: 0,
            clients: (0..self.clients).map(client).collect(),
            late: Vec::new(),
            order: Vec::new(),
            granted: Vec::new(),
            sent: Vec::new(),
            receiver: Receiver::default(),
            losses: self.losses,
            failures: self.failures,
            copies: self.copies,
            late_copies: self.late_copies,
            missed: self.missed,
            set_back: self.set_back,
            broken: Broken::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if state.set_back > 0 {
            actions.push(Action::SetBack);
        }
        for (at, client) in state.clients.iter().enumerate() {
            if state.missed > 0 && client.clone().timers().any(|timer| timer.left > 0) {
                actions.push(Action::TickMissedBy(at));
            }
            actions.extend(client.background.iter().map(|token| Action::Free(at, *token)));
            match (client.pending, client.phase) {
                (Some(Pending { request, answer: None, .. }), _) => {
                    actions.push(Action::Apply(at));
                    if state.copies > 0 && changes_the_record(request) {
                        actions.push(Action::ApplyAndCopy(at));
                    }
                    // A read that gets no answer has failed.
                    if state.losses > 0 && request != Request::Read {
                        actions.push(Action::Lose(at));
                    }
                    if state.failures > 0 && !matches!(request, Request::CountRead | Request::ReadWith(_)) {
                        actions.push(Action::Fail(at));
                    }
                }
                (Some(Pending { request, answer: Some(_), .. }), _) => {
                    actions.push(Action::Receive(at));
                    if state.losses > 0 && request != Request::Read {
                        actions.push(Action::Lose(at));
                    }
                }
                (None, Phase::Idle) => {
                    actions.extend((client.tokens_left > 0).then_some(Action::Acquire(at)))
                }
                (None, Phase::Holding(_)) => {
                    actions.push(Action::Release(at));
                    if client.renewals_left > 0 {
                        actions.extend(self.renewal_ttls.iter().map(|ttl| Action::Renew(at, *ttl)));
                    }
                }
                (None, phase) => unreachable!("{phase:?} waits for nothing"),
            }
            if let Some(lease) = client.lease()
                && self.writes
                && lease.timer.left > 0
                && !state.sent.contains(&lease.record.token)
                && (lease.fence > state.receiver.highest || self.rules.variant == Variant::UnfencedReceiver)
            {
                actions.push(Action::Send(at));
            }
        }
        actions.extend(state.late.iter().map(|request| Action::ApplyLate(*request)));
        if state.late_copies > 0 {
            actions.extend(state.late.iter().map(|request| Action::ApplyLateAndCopy(*request)));
        }
        actions.extend(state.sent.iter().map(|token| Action::Write(*token)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let (rules, mut next) = (&self.rules, last.clone());
        match action {
            Action::Tick => next.tick(None, self.drift),
            Action::TickMissedBy(at) => {
                next.missed -= 1;
                next.tick(Some(at), self.drift);
            }
            Action::SetBack => {
                next.set_back -= 1;
                next.store.set_back();
            }
            Action::Acquire(at) => {
                next.clients[at].attempt(rules);
            }
            Action::Renew(at, ttl) => {
                let lease = next.clients[at].lease()?;
                next.clients[at].renew(rules, lease, ttl);
            }
            Action::Release(at) => {
                let Lease { record, may_reappear, .. } = next.clients[at].lease()?;
                next.clients[at].release(rules, record, may_reappear);
            }
            Action::Apply(at) => next.serve(rules, at),
            Action::ApplyAndCopy(at) => {
                next.copies -= 1;
                let pending = next.clients[at].pending.as_mut()?;
                pending.late = matters_late(pending.request);
                next.late.push(pending.request);
                next.serve(rules, at);
            }
            Action::Receive(at) => {
                let answer = next.clients[at].pending?.answer?;
                next.reply(rules, at, Reply::Answer(answer));
            }
            Action::Lose(at) => {
                next.losses -= 1;
                let Pending { request, answer, .. } = next.clients[at].pending?;
                if answer.is_none() && changes_the_record(request) {
                    next.late.push(request);
                }
                next.reply(rules, at, Reply::Lost);
            }
            Action::Fail(at) => {
                next.failures -= 1;
                next.reply(rules, at, Reply::Down);
            }
            Action::ApplyLate(request) => {
                next.late.retain(|it| *it != request);
                next.apply(rules, request);
            }
            Action::ApplyLateAndCopy(request) => {
                next.late_copies -= 1;
                next.apply(rules, request);
            }
            Action::Free(at, token) => {
                let stored = next.store.read()?;
                if stored.token != token || !next.store.remove(rules.kind, stored) {
                    return None;
                }
                // The real job ends here too.
                next.clients[at].background.retain(|it| *it != token);
            }
            Action::Send(at) => {
                next.sent.push(next.clients[at].lease()?.record.token);
                next.sent.sort_unstable();
            }
            Action::Write(token) => next.write(rules, token),
        }
        next.tidy(rules);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |model, state: &State| state.valid_leases(model.drift).count() <= 1),
            Property::always(FENCES, |_, state: &State| !state.broken.fences),
            Property::always(WRITES, |_, state: &State| !state.broken.writes),
            Property::always(LATEST, |model, state: &State| {
                let highest = state.granted.iter().map(|it| it.1).max();
                state.valid_leases(model.drift).all(|lease| Some(lease.fence) >= highest)
            }),
            Property::always(FREE_AGAIN, |model, state: &State| {
                let mut later = state.store.clone();
                let longest = model.renewal_ttls.iter().copied().fold(model.rules.ttl, u8::max);
                (0..longest + model.set_back).for_each(|_| later.tick());
                later.read().is_none()
            }),
            Property::always(NOT_HIDDEN, |model, state: &State| {
                let mut later = state.store.clone();
                let record = Record { token: Token(u8::MAX), ttl: model.rules.ttl };
                !later.create(model.rules.kind, record) || later.read() == Some(record)
            }),
            Property::always(KNOWN, |_, state: &State| {
                let Some(Record { token, .. }) = state.store.read() else { return true };
                state.clients.iter().any(|client| client.knows(token))
            }),
            Property::sometimes(HANDED_OVER, |_, state: &State| {
                let of = |(token, _): &(Token, u8)| token.0 / TOKENS;
                state.granted.iter().any(|grant| of(grant) != of(&state.granted[0]))
                    && state.clients.iter().any(|it| it.lease().is_some())
            }),
            Property::sometimes(TAKEN_AGAIN, |_, state: &State| {
                let of = |(token, _): &(Token, u8)| token.0 / TOKENS;
                state.granted.len() > 1 && state.granted.iter().all(|it| of(it) == of(&state.granted[0]))
            }),
        ]
    }
}

/// Of all clients whose clocks missed no more than the margin covers, at most one has a valid lease.
pub const EXCLUSION: &str = "exclusion until expiry";
/// A lock whose record the store created later has a higher fence.
pub const FENCES: &str = "rising fences";
/// The receiver accepts no write of a holder after one of a later holder.
pub const WRITES: &str = "writes in the order of the holders";
/// No other client was granted the lock since a valid lease was granted, also if the lease was renewed.
pub const LATEST: &str = "no grant during a lease";
/// If all clients stop, the lock is free one TTL later, and stays free.
pub const FREE_AGAIN: &str = "free after the TTL";
/// A record that is created in a free lock can be read.
pub const NOT_HIDDEN: &str = "no hidden record";
/// The record that is stored is known to a client that releases it.
pub const KNOWN: &str = "every record has an owner";
pub const HANDED_OVER: &str = "the lock goes from one client to another";
pub const TAKEN_AGAIN: &str = "a client acquires the lock again";

impl State {
    /// The leases that are valid by their holders' clocks, without those whose clock missed too much.
    fn valid_leases(&self, drift: u8) -> impl Iterator<Item = Lease> {
        let is_valid = move |lease: &Lease| lease.timer.left > 0 && lease.timer.missed <= drift;
        self.clients.iter().filter_map(Client::lease).filter(is_valid)
    }

    fn tick(&mut self, missed_by: Option<usize>, drift: u8) {
        self.store.tick();
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

    /// The store applies the pending request of a client and sends the answer.
    fn serve(&mut self, rules: &Rules, at: usize) {
        let Some(pending) = self.clients[at].pending else { return };
        let answer = match pending.request {
            Request::CreateCountRead(_) => match self.apply(rules, pending.request) {
                true => Err(Request::CountRead),
                false => Ok(Answer::No),
            },
            Request::CountRead => Err(Request::ReadWith(self.count())),
            Request::ReadWith(number) => Ok(Answer::Created(number, self.store.read())),
            Request::Count => Ok(Answer::Number(self.count())),
            Request::Read => Ok(Answer::Stands(self.store.read())),
            request if self.apply(rules, request) => Ok(Answer::Yes),
            _ => Ok(Answer::No),
        };
        let request = answer.err().unwrap_or(pending.request);
        self.clients[at].pending = Some(Pending { request, answer: answer.ok(), ..pending });
    }

    fn count(&mut self) -> u8 {
        self.counter += 1;
        self.counter
    }

    /// Applies a change. Returns whether its condition held.
    fn apply(&mut self, rules: &Rules, request: Request) -> bool {
        let kind = rules.kind;
        match request {
            Request::Create(record) | Request::CreateCountRead(record) => {
                let created = self.store.create(kind, record);
                if created {
                    self.begin(record.token);
                }
                created
            }
            Request::Replace { expected, new, ttl } => {
                let replaced = self.store.replace(kind, expected, new, ttl);
                if replaced && new.token != expected.token {
                    self.begin(new.token);
                }
                replaced
            }
            Request::Remove(expected) => self.store.remove(kind, expected),
            Request::Overwrite(record) => {
                self.store.write(kind, record);
                true
            }
            Request::Delete => {
                self.store.free(kind, rules.ttl);
                true
            }
            Request::Count | Request::Read | Request::CountRead | Request::ReadWith(_) => false,
        }
    }

    /// The store has written the first record with this token. A copy that comes after the grant makes no new holder.
    fn begin(&mut self, token: Token) {
        let is_granted = self.granted.iter().any(|it| it.0 == token) || self.receiver.last == Some(token);
        if !is_granted {
            self.order.retain(|it| *it != token);
            self.order.push(token);
        }
    }

    fn reply(&mut self, rules: &Rules, at: usize, reply: Reply) {
        if let Some((token, fence)) = self.clients[at].receive(rules, reply) {
            let place = |token: Token| self.order.iter().position(|it| *it == token);
            let wrong = |(other, its): &(Token, u8)| (place(*other) < place(token)) != (*its < fence);
            self.broken.fences |= self.granted.iter().any(wrong);
            self.granted.push((token, fence));
            self.granted.sort_unstable();
        }
    }

    fn write(&mut self, rules: &Rules, token: Token) {
        let Some((_, fence)) = self.granted.iter().find(|it| it.0 == token) else { return };
        if *fence < self.receiver.highest && rules.variant != Variant::UnfencedReceiver {
            return;
        }
        let place = |token: Token| self.order.iter().position(|it| *it == token);
        self.broken.writes |= self.receiver.last.is_some_and(|last| place(token) < place(last));
        self.receiver = Receiver { highest: *fence, last: Some(token) };
    }

    /// Forgets what can have no effect any more, so that equal states meet.
    fn tidy(&mut self, rules: &Rules) {
        self.forget_requests();
        self.forget_grants(rules);
        self.number_fences();
    }

    fn forget_requests(&mut self) {
        let unapplied =
            |client: &Client| client.pending.filter(|it| it.answer.is_none()).map(|it| it.request);
        let under_way: Vec<_> =
            self.late.iter().copied().chain(self.clients.iter().filter_map(unapplied)).collect();
        let store = &self.store;
        let creates = |request: &Request, token| match request {
            Request::Create(record) | Request::CreateCountRead(record) => record.token == token,
            Request::Replace { expected, new, .. } => new.token == token && expected.token != token,
            _ => false,
        };
        let may_stand =
            |token| store.mentions(token) || under_way.iter().any(|request| creates(request, token));
        self.late.retain(|request| match request {
            Request::Replace { expected, .. } | Request::Remove(expected) => may_stand(expected.token),
            _ => true,
        });
        self.late.sort_unstable();
        self.late.dedup();
        for client in &mut self.clients {
            client.background.retain(|token| may_stand(*token));
            for timer in client.timers().filter(|timer| timer.left == 0) {
                timer.missed = 0;
            }
        }
    }

    fn forget_grants(&mut self, rules: &Rules) {
        let State { clients, granted, receiver, order, late, sent, store, .. } = self;
        let fence = |granted: &[(Token, u8)], token| granted.iter().find(|it| it.0 == token).map(|it| it.1);
        if rules.variant != Variant::UnfencedReceiver {
            sent.retain(|token| fence(granted, *token) > Some(receiver.highest));
        }
        let acquires = |client: &Client| {
            client.pending.is_some() && !matches!(client.phase, Phase::Renewing(_) | Phase::Releasing { .. })
        };
        if !clients.iter().any(acquires) {
            // All later grants come later in `order`, and with higher fences.
            granted.sort_unstable_by_key(|it| it.1);
            let keep = granted.len().saturating_sub(2);
            let (old, latest) = granted.split_at(keep);
            let is_leased =
                |token| clients.iter().any(|it| it.lease().is_some_and(|it| it.record.token == token));
            let needed = old.iter().filter(|it| is_leased(it.0) || sent.contains(&it.0));
            *granted = needed.chain(latest).copied().collect();
        }
        granted.sort_unstable();
        order.retain(|token| {
            granted.iter().any(|it| it.0 == *token)
                || receiver.last == Some(*token)
                || store.mentions(*token)
                || late.iter().any(|it| match it {
                    Request::Create(record) | Request::Replace { new: record, .. } => record.token == *token,
                    _ => false,
                })
                || clients.iter().any(|it| it.knows(*token))
        });
    }

    /// Only the order of the fences matters.
    fn number_fences(&mut self) {
        let mut all: Vec<u8> = self.fences().map(|fence| *fence).collect();
        all.sort_unstable();
        all.dedup();
        let number = |fence: u8| all.iter().position(|it| *it == fence).map_or(0, |at| at as u8);
        // Zero stays zero: the receiver has accepted nothing.
        let from = u8::from(all.first() != Some(&0));
        self.fences().for_each(|fence| *fence = number(*fence) + from);
        self.counter = all.len() as u8;
    }

    fn fences(&mut self) -> impl Iterator<Item = &mut u8> {
        let clients = self.clients.iter_mut().flat_map(|client| {
            let phase = match &mut client.phase {
                Phase::Creating { counted, .. } => counted.as_mut(),
                Phase::ReadingBack(_, fence) => Some(fence),
                Phase::Holding(lease) | Phase::Renewing(Renewal { lease, .. }) => Some(&mut lease.fence),
                _ => None,
            };
            let pending = match &mut client.pending {
                Some(Pending {
                    answer: Some(Answer::Number(number) | Answer::Created(number, _)), ..
                })
                | Some(Pending { request: Request::ReadWith(number), .. }) => Some(number),
                _ => None,
            };
            phase.into_iter().chain(pending)
        });
        let granted = self.granted.iter_mut().map(|it| &mut it.1);
        clients.chain(granted).chain([&mut self.receiver.highest])
    }
}

/// Whether the client treats a late answer to this request differently.
fn matters_late(request: Request) -> bool {
    match request {
        Request::Create(_) => true,
        Request::Replace { expected, new, .. } => expected.token != new.token,
        _ => false,
    }
}

fn changes_the_record(request: Request) -> bool {
    !matches!(request, Request::Count | Request::Read | Request::CountRead | Request::ReadWith(_))
}

//! One client: what it sends, and what it does with each answer. The state tables are those of
//! `src/store/remote/lock.rs`; `src/lease/held_lock.rs` and `src/session.rs` add what happens to a lease.

use crate::store::{Compares, Kind, Record, Token};

/// When an acquire reads its record back, as in `Capabilities::read_back`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadBack {
    AfterCount,
    Never,
}

/// The protocol as it is, or a wrong one that the checker must see through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    Right,
    /// A release deletes what is stored.
    ReleaseWithoutToken,
    /// A renewal writes the record whatever is stored.
    RenewWithoutToken,
    CountBeforeCreate,
    /// A lost creation is sent again. No then means that another client holds the lock.
    ResentNoIsHeld,
    /// A lost creation is sent again. No then means that the first one was applied.
    ResentNoIsOurs,
    /// The lease counts from the answer.
    LeaseFromAnswer,
    /// The receiver accepts every fence.
    UnfencedReceiver,
    /// A record whose creation may have been copied is granted as it is.
    NoExchange,
    /// It is exchanged once, also if the exchange may have been copied too.
    OneExchange,
    /// It is exchanged, and nothing releases the old record if a copy brings it back.
    ForgetsExchanged,
}

#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub kind: Kind,
    pub read_back: ReadBack,
    /// Create, count and read-back travel in one request. The server runs them one after the other.
    pub one_request: bool,
    /// Whether `Capabilities::repeats_after` is set. An answer is late if a copy of its request was made.
    pub repeats: bool,
    /// `Capabilities::hides`
    pub hides: bool,
    pub ttl: u8,
    /// Ticks by which a lease ends earlier for its holder than in the store.
    pub margin: u8,
    pub variant: Variant,
}

/// The end of a lease by its holder's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timer {
    pub left: u8,
    /// Ticks that the holder's clock missed since the timer was started.
    pub missed: u8,
}

/// An attempt of an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tried {
    pub record: Record,
    pub timer: Timer,
    pub may_reappear: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    pub record: Record,
    pub timer: Timer,
    pub fence: u8,
    pub may_reappear: bool,
}

/// A renewal in progress. `timer` becomes that of the lease if the store has renewed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Renewal {
    pub lease: Lease,
    pub timer: Timer,
    pub new: Record,
    pub expected: Record,
    pub ttl: u8,
    pub in_doubt: bool,
}

/// A request. Those that change the store may arrive after their sender gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    Create(Record),
    Count,
    Read,
    CreateCountRead(Record),
    /// The rest of it, after the creation.
    CountRead,
    /// The rest of it, after the count.
    ReadWith(u8),
    Replace {
        expected: Record,
        new: Record,
        ttl: u8,
    },
    Remove(Record),
    /// A write without a condition, in a wrong variant.
    Overwrite(Record),
    /// A delete without a condition, in a wrong variant.
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    Yes,
    No,
    Number(u8),
    Stands(Option<Record>),
    /// Yes, with the number and the read-back.
    Created(u8, Option<Record>),
}

/// How a request ended for its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Answer(Answer),
    Lost,
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pending {
    pub request: Request,
    pub answer: Option<Answer>,
    /// The answer comes so late that the request may have been sent twice.
    pub late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    /// `counted` and `resent` are for wrong variants.
    Creating {
        tried: Tried,
        counted: Option<u8>,
        resent: bool,
    },
    /// The table calls it `reading`. `refused` was answered with No and may have been sent twice.
    Looking {
        refused: Option<Tried>,
    },
    Exchanging {
        old: Record,
        new: Tried,
    },
    Counting(Tried),
    /// A wrong variant: before the creation.
    CountingFirst(Tried),
    ReadingBack(Tried, u8),
    HandingBack(Tried),
    Holding(Lease),
    Renewing(Renewal),
    Releasing {
        record: Record,
        may_reappear: bool,
        in_doubt: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    pub pending: Option<Pending>,
    /// Attempts of the running acquire that may have taken effect or may still take effect.
    pub open: Vec<Tried>,
    /// Tokens that the background threads release.
    pub background: Vec<Token>,
    pub next_token: u8,
    pub tokens_left: u8,
    pub renewals_left: u8,
}

/// Tokens of one client: those of its attempts, and those that it exchanges them for.
pub const TOKENS: u8 = 16;

impl Client {
    pub fn new(number: u8, tokens: u8, renewals: u8) -> Client {
        Client {
            phase: Phase::Idle,
            pending: None,
            open: Vec::new(),
            background: Vec::new(),
            next_token: number * TOKENS,
            tokens_left: tokens,
            renewals_left: renewals,
        }
    }

    /// Returns the lease, whether its holder's clock says that it is valid or not. None once a release was begun.
    pub fn lease(&self) -> Option<Lease> {
        match self.phase {
            Phase::Holding(lease) | Phase::Renewing(Renewal { lease, .. }) => Some(lease),
            _ => None,
        }
    }

    /// Whether the client still knows this token: it holds it, is busy with it, or releases it in the background.
    pub fn knows(&self, token: Token) -> bool {
        let mut here = match self.phase {
            Phase::Exchanging { old, new } => [Some(old.token), Some(new.record.token)],
            Phase::Creating { tried, .. }
            | Phase::Counting(tried)
            | Phase::CountingFirst(tried)
            | Phase::ReadingBack(tried, _)
            | Phase::HandingBack(tried)
            | Phase::Looking { refused: Some(tried) } => [Some(tried.record.token), None],
            Phase::Holding(lease) | Phase::Renewing(Renewal { lease, .. }) => {
                [Some(lease.record.token), None]
            }
            Phase::Releasing { record, .. } => [Some(record.token), None],
            Phase::Idle | Phase::Looking { refused: None } => [None, None],
        }
        .into_iter()
        .flatten();
        here.any(|it| it == token)
            || self.open.iter().any(|it| it.record.token == token)
            || self.background.contains(&token)
    }

    pub fn timers(&mut self) -> impl Iterator<Item = &mut Timer> {
        let (first, second) = match &mut self.phase {
            Phase::Creating { tried, .. }
            | Phase::Counting(tried)
            | Phase::CountingFirst(tried)
            | Phase::ReadingBack(tried, _)
            | Phase::Exchanging { new: tried, .. }
            | Phase::Looking { refused: Some(tried) } => (Some(&mut tried.timer), None),
            Phase::Holding(lease) => (Some(&mut lease.timer), None),
            Phase::Renewing(Renewal { lease, timer, .. }) => (Some(&mut lease.timer), Some(timer)),
            Phase::HandingBack(_)
            | Phase::Releasing { .. }
            | Phase::Idle
            | Phase::Looking { refused: None } => (None, None),
        };
        first.into_iter().chain(second).chain(self.open.iter_mut().map(|it| &mut it.timer))
    }

    /// Begins an attempt with a new token. Returns false if the bounds of the model allow no more of them.
    pub fn attempt(&mut self, rules: &Rules) -> bool {
        if self.tokens_left == 0 {
            return false;
        }
        self.tokens_left -= 1;
        let tried = self.draw(rules);
        if rules.variant == Variant::CountBeforeCreate {
            self.send(Phase::CountingFirst(tried), Request::Count);
        } else {
            self.create(rules, tried, None, false);
        }
        true
    }

    pub fn renew(&mut self, rules: &Rules, lease: Lease, ttl: u8) {
        self.renewals_left -= 1;
        let Lease { record, .. } = lease;
        let timer = start(rules, ttl);
        self.replace(rules, Renewal { lease, timer, new: record, expected: record, ttl, in_doubt: false });
    }

    pub fn release(&mut self, rules: &Rules, record: Record, may_reappear: bool) {
        let request = match rules.variant {
            Variant::ReleaseWithoutToken => Request::Delete,
            _ => Request::Remove(record),
        };
        self.send(Phase::Releasing { record, may_reappear, in_doubt: false }, request);
    }

    /// Receives the end of the pending request. Returns the token and the fence of a lease that was granted.
    pub fn receive(&mut self, rules: &Rules, reply: Reply) -> Option<(Token, u8)> {
        let Pending { request: asked, late, .. } = self.pending.take().expect("a reply ends a request");
        match self.phase {
            Phase::Creating { tried, counted, resent } => {
                return self.created(rules, tried, counted, resent, late, reply);
            }
            Phase::Looking { refused } => self.looked(rules, refused, reply),
            Phase::Exchanging { old, new } => self.exchanged(rules, old, new, late, reply),
            Phase::CountingFirst(tried) => match reply {
                Reply::Answer(Answer::Number(number)) => self.create(rules, tried, Some(number), false),
                _ => self.finish(),
            },
            Phase::Counting(tried) => match reply {
                Reply::Answer(Answer::Number(number)) => return self.counted(rules, tried, number),
                Reply::Lost => self.send(self.phase, Request::Count),
                _ => self.hand_back(tried),
            },
            Phase::ReadingBack(tried, number) => match reply {
                Reply::Answer(Answer::Stands(stored)) => return self.read_back(rules, tried, number, stored),
                _ => self.hand_back(tried),
            },
            Phase::HandingBack(tried) => {
                let is_gone = match reply {
                    Reply::Answer(Answer::Yes) => true,
                    Reply::Answer(_) => !rules.hides,
                    Reply::Lost | Reply::Down => false,
                };
                if !is_gone || tried.may_reappear {
                    self.open.push(tried);
                }
                self.finish();
            }
            Phase::Renewing(renewal) => self.renewed(rules, renewal, asked, reply),
            Phase::Releasing { record, may_reappear, in_doubt } => {
                self.released(rules, record, may_reappear, in_doubt, asked, reply);
            }
            Phase::Idle | Phase::Holding(_) => unreachable!("no request is pending"),
        }
        None
    }

    fn created(
        &mut self,
        rules: &Rules,
        tried: Tried,
        counted: Option<u8>,
        resent: bool,
        late: bool,
        reply: Reply,
    ) -> Option<(Token, u8)> {
        let resends = matches!(rules.variant, Variant::ResentNoIsHeld | Variant::ResentNoIsOurs);
        match (reply, counted) {
            (Reply::Answer(Answer::Yes), Some(number)) => return self.grant(rules, tried, number),
            (Reply::Answer(Answer::Yes), None) if late && exchanges(rules) => {
                self.exchange(rules, tried.record)
            }
            (Reply::Answer(Answer::Yes), None) => self.send(Phase::Counting(tried), Request::Count),
            (Reply::Answer(Answer::Created(number, stored)), _) => {
                return self.read_back(rules, tried, number, stored);
            }
            (Reply::Answer(_), _) if resent && rules.variant == Variant::ResentNoIsHeld => self.finish(),
            // The number does not matter: the wrong step is the grant.
            (Reply::Answer(_), _) if resent && rules.variant == Variant::ResentNoIsOurs => {
                return self.grant(rules, tried, 0);
            }
            (Reply::Answer(_), _) if exchanges(rules) => {
                self.open.extend(late.then_some(untimed(tried)));
                self.look(None);
            }
            (Reply::Answer(_), _) => self.look(rules.repeats.then_some(tried)),
            (Reply::Lost, _) if resends => self.create(rules, tried, None, true),
            (Reply::Lost, _) => {
                self.open.push(if exchanges(rules) { untimed(tried) } else { tried });
                self.look(None);
            }
            (Reply::Down, _) => self.finish(),
        }
        None
    }

    fn exchange(&mut self, rules: &Rules, old: Record) {
        let new = self.draw(rules);
        let request = Request::Replace { expected: old, new: new.record, ttl: rules.ttl };
        self.send(Phase::Exchanging { old, new }, request);
    }

    fn exchanged(&mut self, rules: &Rules, old: Record, new: Tried, late: bool, reply: Reply) {
        let once = Tried { record: old, timer: Timer::default(), may_reappear: true };
        match reply {
            Reply::Answer(Answer::Yes) => {
                self.open.extend((rules.variant != Variant::ForgetsExchanged).then_some(once));
                match late && rules.variant != Variant::OneExchange {
                    true => self.exchange(rules, new.record),
                    false => self.send(Phase::Counting(new), Request::Count),
                }
            }
            Reply::Answer(_) | Reply::Lost => {
                self.open.push(once);
                self.open.extend((late || reply == Reply::Lost).then_some(untimed(new)));
                self.look(None);
            }
            Reply::Down => self.hand_back(once),
        }
    }

    fn looked(&mut self, rules: &Rules, refused: Option<Tried>, reply: Reply) {
        let stored = match reply {
            Reply::Answer(Answer::Stands(Some(stored))) => stored,
            Reply::Answer(_) => return self.again(rules),
            Reply::Lost | Reply::Down => {
                self.open.extend(refused);
                return self.finish();
            }
        };
        let stands = |tried: &Tried| tried.record.token == stored.token;
        let mine = match self.open.iter().position(stands) {
            Some(at) => Some(self.open.remove(at)),
            None => refused.filter(stands),
        };
        match mine {
            Some(tried) if exchanges(rules) => self.exchange(rules, tried.record),
            Some(tried) => {
                let tried = Tried { may_reappear: rules.repeats, ..tried };
                self.send(Phase::Counting(tried), Request::Count);
            }
            None => self.finish(),
        }
    }

    fn counted(&mut self, rules: &Rules, tried: Tried, number: u8) -> Option<(Token, u8)> {
        match rules.read_back {
            ReadBack::AfterCount => self.send(Phase::ReadingBack(tried, number), Request::Read),
            ReadBack::Never if tried.timer.left > 0 => return self.grant(rules, tried, number),
            ReadBack::Never => self.hand_back(tried),
        }
        None
    }

    fn read_back(
        &mut self,
        rules: &Rules,
        tried: Tried,
        number: u8,
        stored: Option<Record>,
    ) -> Option<(Token, u8)> {
        if stored.is_some_and(|it| it.token == tried.record.token) {
            return self.grant(rules, tried, number);
        }
        if rules.hides || rules.repeats {
            self.open.push(tried);
        }
        match stored {
            Some(_) => self.finish(),
            None => self.again(rules),
        }
        None
    }

    fn grant(&mut self, rules: &Rules, tried: Tried, fence: u8) -> Option<(Token, u8)> {
        self.finish();
        let Tried { record, mut timer, may_reappear } = tried;
        if rules.variant == Variant::LeaseFromAnswer {
            timer = start(rules, rules.ttl);
        }
        // A grant that took longer than the lease is released at once.
        if timer.left == 0 {
            self.release(rules, record, may_reappear);
            return None;
        }
        self.phase = Phase::Holding(Lease { record, timer, fence, may_reappear });
        Some((record.token, fence))
    }

    fn renewed(&mut self, rules: &Rules, renewal: Renewal, asked: Request, reply: Reply) {
        let Renewal { lease, timer, new, expected, in_doubt, .. } = renewal;
        let by_token = rules.kind == Kind::Plain(Compares::Token);
        let stored = match reply {
            Reply::Answer(Answer::Yes) => new,
            Reply::Answer(Answer::Stands(stored)) => match stored.filter(|it| it.token == new.token) {
                // The lease is lost.
                None => return self.phase = Phase::Idle,
                Some(stored) if by_token || (in_doubt && stored == new && stored != expected) => stored,
                Some(stored) => return self.replace(rules, Renewal { expected: stored, ..renewal }),
            },
            Reply::Answer(_) => return self.send(self.phase, Request::Read),
            Reply::Lost if asked == Request::Read => return self.phase = Phase::Holding(lease),
            Reply::Lost => {
                let renewal = Renewal { in_doubt: true, ..renewal };
                return match by_token {
                    true => self.replace(rules, renewal),
                    false => self.send(Phase::Renewing(renewal), Request::Read),
                };
            }
            Reply::Down => return self.phase = Phase::Holding(lease),
        };
        self.phase = Phase::Holding(Lease { record: stored, timer, ..lease });
    }

    fn released(
        &mut self,
        rules: &Rules,
        record: Record,
        may_reappear: bool,
        in_doubt: bool,
        asked: Request,
        reply: Reply,
    ) {
        let by_token = rules.kind == Kind::Plain(Compares::Token);
        let phase = |record, in_doubt| Phase::Releasing { record, may_reappear, in_doubt };
        match reply {
            Reply::Answer(Answer::No) if !by_token => return self.send(self.phase, Request::Read),
            Reply::Answer(Answer::Stands(Some(stored))) if stored.token == record.token => {
                return self.send(phase(stored, in_doubt), Request::Remove(stored));
            }
            Reply::Lost if asked != Request::Read && rules.variant != Variant::ReleaseWithoutToken => {
                let request = if by_token { Request::Remove(record) } else { Request::Read };
                return self.send(phase(record, true), request);
            }
            Reply::Answer(_) if !may_reappear => {}
            // The release failed, or the record can come back.
            _ => self.background.push(record.token),
        }
        self.finish();
    }

    fn send(&mut self, phase: Phase, request: Request) {
        self.phase = phase;
        self.pending = Some(Pending { request, answer: None, late: false });
    }

    fn create(&mut self, rules: &Rules, tried: Tried, counted: Option<u8>, resent: bool) {
        let request = match rules.one_request {
            true => Request::CreateCountRead(tried.record),
            false => Request::Create(tried.record),
        };
        self.send(Phase::Creating { tried, counted, resent }, request);
    }

    fn look(&mut self, refused: Option<Tried>) {
        self.send(Phase::Looking { refused }, Request::Read);
    }

    /// Draws a record with a new token.
    fn draw(&mut self, rules: &Rules) -> Tried {
        let record = Record { token: Token(self.next_token), ttl: rules.ttl };
        self.next_token += 1;
        Tried { record, timer: start(rules, rules.ttl), may_reappear: false }
    }

    /// The lock seems free: begins the next round of the acquire, or gives up.
    fn again(&mut self, rules: &Rules) {
        if !self.attempt(rules) {
            self.finish();
        }
    }

    fn hand_back(&mut self, tried: Tried) {
        self.send(Phase::HandingBack(tried), Request::Remove(tried.record));
    }

    fn replace(&mut self, rules: &Rules, renewal: Renewal) {
        let Renewal { expected, ttl, .. } = renewal;
        let new = Record { ttl: expected.ttl.max(ttl), ..expected };
        let request = match rules.variant {
            Variant::RenewWithoutToken => Request::Overwrite(new),
            _ => Request::Replace { expected, new, ttl },
        };
        self.send(Phase::Renewing(Renewal { new, ..renewal }), request);
    }

    /// Ends an acquire or a release. The background threads get the attempts that may still take effect.
    fn finish(&mut self) {
        self.phase = Phase::Idle;
        self.background.extend(self.open.drain(..).map(|tried| tried.record.token));
        self.background.sort_unstable();
        self.background.dedup();
    }
}

fn exchanges(rules: &Rules) -> bool {
    rules.repeats && rules.variant != Variant::NoExchange
}

/// Forgets when the attempt began. Its record is exchanged before it is granted, and the lease counts from then.
fn untimed(tried: Tried) -> Tried {
    Tried { timer: Timer::default(), ..tried }
}

fn start(rules: &Rules, ttl: u8) -> Timer {
    Timer { left: ttl - rules.margin, missed: 0 }
}

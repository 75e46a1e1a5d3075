//! Two processes each read one lock and want to read the other one too, while a writer waits for each lock. Can they finish?
//!
//! There are no clocks here. A reader keeps what it has until it has both, and a writer that waits keeps its intent alive.

use std::collections::HashSet;

use stateright::{Model as _, Property};

/// The locks are numbered 0 and 1. Reader `n` begins with lock `n`, and writer `n` wants lock `n`.
#[derive(Debug, Clone, Copy)]
pub struct Crosswise {
    /// Whether an intent that has not been served for a while lets a turn of the readers begin.
    pub turns: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reader {
    HasOne,
    HasBoth,
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Writer {
    /// Its intent lives.
    Waits,
    Holds,
    Finished,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    readers: [Reader; 2],
    writers: [Writer; 2],
    /// Whether a turn lives, for each lock.
    turn: [bool; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A reader is granted its second lock.
    Read(usize),
    LeaveBoth(usize),
    Write(usize),
    LeaveWrite(usize),
    /// The quantum of an intent is over.
    BeginTurn(usize),
    EndTurn(usize),
}

impl State {
    fn is_read(&self, lock: usize) -> bool {
        let [own, other] = [self.readers[lock], self.readers[1 - lock]];
        matches!(own, Reader::HasOne | Reader::HasBoth) || other == Reader::HasBoth
    }

    fn all_finished(&self) -> bool {
        self.readers == [Reader::Finished; 2] && self.writers == [Writer::Finished; 2]
    }

    fn lets_a_reader_in(&self, lock: usize) -> bool {
        self.writers[lock] != Writer::Holds && (self.writers[lock] != Writer::Waits || self.turn[lock])
    }
}

impl stateright::Model for Crosswise {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { readers: [Reader::HasOne; 2], writers: [Writer::Waits; 2], turn: [false; 2] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for at in 0..2 {
            actions.extend(match state.readers[at] {
                Reader::HasOne => state.lets_a_reader_in(1 - at).then_some(Action::Read(at)),
                Reader::HasBoth => Some(Action::LeaveBoth(at)),
                Reader::Finished => None,
            });
            actions.extend(match state.writers[at] {
                Writer::Waits => (!state.is_read(at)).then_some(Action::Write(at)),
                Writer::Holds => Some(Action::LeaveWrite(at)),
                Writer::Finished => None,
            });
            if self.turns && state.writers[at] == Writer::Waits {
                actions.push(if state.turn[at] { Action::EndTurn(at) } else { Action::BeginTurn(at) });
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Read(at) => next.readers[at] = Reader::HasBoth,
            Action::LeaveBoth(at) => next.readers[at] = Reader::Finished,
            Action::Write(at) => next.writers[at] = Writer::Holds,
            Action::LeaveWrite(at) => (next.writers[at], next.turn[at]) = (Writer::Finished, false),
            Action::BeginTurn(at) => next.turn[at] = true,
            Action::EndTurn(at) => next.turn[at] = false,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_WRITER_BESIDE_A_READER, |_, state: &State| {
                (0..2).all(|lock| state.writers[lock] != Writer::Holds || !state.is_read(lock))
            }),
            Property::always(CAN_FINISH, |model: &Crosswise, state: &State| model.can_finish(state)),
            Property::sometimes(ALL_FINISH, |_, state: &State| state.all_finished()),
        ]
    }
}

pub const NO_WRITER_BESIDE_A_READER: &str = "no writer beside a reader";
pub const ALL_FINISH: &str = "all finish";
/// From every state there is a path on which all finish.
pub const CAN_FINISH: &str = "all can still finish";

impl Crosswise {
    fn can_finish(&self, state: &State) -> bool {
        let (mut seen, mut next) = (HashSet::new(), vec![state.clone()]);
        while let Some(state) = next.pop() {
            if state.all_finished() {
                return true;
            }
            if seen.insert(state.clone()) {
                next.extend(self.next_steps(&state).into_iter().map(|(_, next)| next));
            }
        }
        false
    }
}

//! Simulated threads, processes and clocks. One seed decides which thread runs next.
//!
//! All threads run in one thread of the operating system. A thread runs until it calls the library's `simulation`
//! module. The time stands still while threads run, except for a little at each step. It moves on to the next timer
//! when no thread can run. If there is no timer either, the threads are deadlocked, and the run fails with their names.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use dlm::simulation::{Runtime, ThreadNumber, with_runtime};
use fastrand::Rng;

use crate::clock::Clock;
use crate::coroutine::{Coroutine, caught, pause};
use crate::datagrams::{Datagrams, Mail};

/// The number of a simulated process.
pub type ProcessNumber = usize;

/// The process of the server. It has a clock, and no threads.
pub const SERVER: ProcessNumber = 0;

/// After so many steps without any progress of the time, threads wait for each other in a loop.
const STEPS_MAX: u64 = 200_000_000;

/// How threads take turns.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// At how many of 256 places where another thread may run, one does.
    pub switches: u8,
    /// At one of so many of these places, the thread stands still for a while. Zero: never.
    pub stalls_every: u32,
    /// For how long at most.
    pub stall: Duration,
}

impl Schedule {
    /// Threads change places at half of all places, and never stand still.
    pub fn fair() -> Schedule {
        Schedule { switches: 128, stalls_every: 0, stall: Duration::ZERO }
    }
}

/// One run of simulated threads. See the [module](self).
pub struct Engine {
    state: RefCell<State>,
}

struct State {
    /// The simulated time, in nanoseconds.
    time: u64,
    random: Rng,
    schedule: Schedule,
    threads: Vec<Thread>,
    runnable: Vec<usize>,
    timers: BTreeMap<TimerKey, Timer>,
    timers_made: u64,
    processes: Vec<Process>,
    /// The running thread; `None` while a timer runs.
    current: Option<usize>,
    mail: Mail,
    switches: u64,
}

type TimerKey = (u64, u64);

enum Timer {
    /// Makes a thread runnable.
    Wake(usize),
    /// Runs without a thread. It must not block.
    Run(Box<dyn FnOnce()>),
}

struct Process {
    clock: Clock,
    /// Stopped until this time.
    stopped_until: u64,
    killed: bool,
}

struct Thread {
    name: String,
    process: ProcessNumber,
    state: ThreadState,
    /// `unpark` was called since the last `park`.
    permit: bool,
    coroutine: Option<Coroutine>,
    body: Option<Box<dyn FnOnce()>>,
    joining: Vec<usize>,
    panic: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    Runnable,
    Parked(Option<TimerKey>),
    /// Stands still until its timer fires, whatever others do.
    Stalled,
    Ended,
    Killed,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

thread_local! {
    static ENGINE: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
}

/// Returns the engine that runs.
///
/// # Panics
/// Outside of [`Engine::run`].
pub fn engine() -> Rc<Engine> {
    ENGINE.with_borrow(Option::clone).expect("only inside of a simulation")
}

/// What a run leaves behind.
#[derive(Debug)]
pub struct Ended {
    /// The simulated time that has passed.
    pub time: Duration,
    /// How often another thread ran.
    pub switches: u64,
    /// Panics of threads, with their names.
    pub panics: Vec<String>,
    /// Names of threads that had not ended.
    pub left: Vec<String>,
    /// Datagrams that arrived, and notices that were sent to an address that never answered.
    pub datagrams: (u64, Vec<String>),
}

impl Engine {
    /// Runs `root` as the first thread of process 1, until it has ended. `clocks` are those of the server and of the
    /// other processes.
    ///
    /// # Panics
    /// If no thread can ever run again before `root` has ended.
    pub fn run(seed: u64, schedule: Schedule, clocks: Vec<Clock>, root: impl FnOnce() + 'static) -> Ended {
        let process = |clock| Process { clock, stopped_until: 0, killed: false };
        let state = State {
            time: 0,
            random: Rng::with_seed(seed),
            schedule,
            threads: Vec::new(),
            runnable: Vec::new(),
            timers: BTreeMap::new(),
            timers_made: 0,
            processes: clocks.into_iter().map(process).collect(),
            current: None,
            mail: Mail::default(),
            switches: 0,
        };
        let engine = Rc::new(Engine { state: RefCell::new(state) });
        ENGINE.set(Some(Rc::clone(&engine)));
        let stuck = with_runtime(Rc::clone(&engine) as Rc<dyn Runtime>, || {
            engine.spawn_in(1, "root".to_owned(), Box::new(root));
            engine.run_all()
        });
        ENGINE.set(None);
        let mut state = engine.state.borrow_mut();
        let alive = |thread: &Thread| !matches!(thread.state, ThreadState::Ended | ThreadState::Killed);
        let names = |thread: &Thread| format!("{} of process {}", thread.name, thread.process);
        let left: Vec<String> = state.threads.iter().filter(|thread| alive(thread)).map(names).collect();
        let panics: Vec<String> = state
            .threads
            .iter()
            .filter_map(|thread| thread.panic.as_ref().map(|panic| format!("{}: {panic}", names(thread))))
            .collect();
        state.threads.drain(..).filter_map(|thread| thread.coroutine).for_each(Coroutine::abandon);
        assert!(!stuck, "deadlock: {left:?}, panics {panics:?}");
        let datagrams = state.mail.ended();
        Ended { time: Duration::from_nanos(state.time), switches: state.switches, panics, left, datagrams }
    }

    /// Runs threads and timers until the first thread has ended. Returns whether it never will.
    fn run_all(&self) -> bool {
        loop {
            if self.state.borrow().threads[0].state == ThreadState::Ended {
                return false;
            }
            match self.next() {
                Turn::Thread(number) => self.resume(number),
                Turn::Timer(run) => run(),
                Turn::Again => {}
                Turn::Never => return true,
            }
        }
    }

    fn next(&self) -> Turn {
        let state = &mut *self.state.borrow_mut();
        let due = state.timers.first_key_value().map(|(key, _)| *key);
        if let Some(key) = due.filter(|(time, _)| *time <= state.time || state.runnable.is_empty()) {
            state.time = state.time.max(key.0);
            return match state.timers.remove(&key) {
                Some(Timer::Run(run)) => Turn::Timer(run),
                Some(Timer::Wake(number)) => {
                    state.wake(number);
                    Turn::Again
                }
                None => Turn::Again,
            };
        }
        if state.runnable.is_empty() {
            return Turn::Never;
        }
        let place = state.random.usize(..state.runnable.len());
        let number = state.runnable.swap_remove(place);
        let until = state.processes[state.threads[number].process].stopped_until;
        if until > state.time {
            state.stall(number, until);
            return Turn::Again;
        }
        state.time += state.random.u64(1..1000);
        state.switches += 1;
        assert!(state.switches < STEPS_MAX, "threads run for ever: {:?}", state.threads[number].name);
        Turn::Thread(number)
    }

    fn resume(&self, number: usize) {
        let mut coroutine = {
            let mut state = self.state.borrow_mut();
            state.current = Some(number);
            state.threads[number].coroutine.take().expect("a thread that can run")
        };
        let ended = coroutine.resume();
        let mut state = self.state.borrow_mut();
        state.current = None;
        if !ended {
            state.threads[number].coroutine = Some(coroutine);
            return;
        }
        state.threads[number].state = ThreadState::Ended;
        state.ended(number);
        drop(state);
        coroutine.recycle();
    }

    /// Runs in each coroutine.
    fn body(&self, number: usize) {
        let body = self.state.borrow_mut().threads[number].body.take().expect("a thread starts once");
        let panic = caught(body).err();
        self.state.borrow_mut().threads[number].panic = panic;
    }

    /// Starts a thread in a process.
    pub fn spawn_in(&self, process: ProcessNumber, name: String, run: Box<dyn FnOnce()>) -> ThreadNumber {
        let mut state = self.state.borrow_mut();
        let number = state.threads.len();
        state.threads.push(Thread {
            name,
            process,
            state: ThreadState::Runnable,
            permit: false,
            coroutine: Some(Coroutine::new(move || engine().body(number))),
            body: Some(run),
            joining: Vec::new(),
            panic: None,
        });
        state.runnable.push(number);
        number as ThreadNumber
    }

    /// Runs `run` at this simulated time, in no thread. It must not block.
    pub fn at(&self, time: u64, run: impl FnOnce() + 'static) {
        self.state.borrow_mut().set_timer(time, Timer::Run(Box::new(run)));
    }

    /// Runs `run` after this time, in no thread. It must not block.
    pub fn after(&self, delay: Duration, run: impl FnOnce() + 'static) {
        let time = self.time() + delay.as_nanos() as u64;
        self.at(time, run);
    }

    /// Says what happens to datagrams from now on.
    pub fn set_datagrams(&self, datagrams: Datagrams) {
        self.state.borrow_mut().mail.datagrams = datagrams;
    }

    /// Returns the simulated time, in nanoseconds.
    pub fn time(&self) -> u64 {
        self.state.borrow().time
    }

    /// Returns the clock of a process.
    pub fn clock(&self, process: ProcessNumber) -> Clock {
        self.state.borrow().processes[process].clock
    }

    /// Sets the wall clock of a process forward or back.
    pub fn set_wall(&self, process: ProcessNumber, by_ms: i64) {
        self.state.borrow_mut().processes[process].clock.wall_ahead_ms += by_ms;
    }

    /// Stops all threads of a process for this time.
    pub fn stop(&self, process: ProcessNumber, time: Duration) {
        let mut state = self.state.borrow_mut();
        let until = state.time + time.as_nanos() as u64;
        state.processes[process].stopped_until = until;
    }

    /// Ends all threads of a process where they are. The running thread must not be among them.
    pub fn kill(&self, process: ProcessNumber) {
        let state = &mut *self.state.borrow_mut();
        state.processes[process].killed = true;
        let of_process: Vec<usize> =
            (0..state.threads.len()).filter(|number| state.threads[*number].process == process).collect();
        for number in of_process {
            let thread = &mut state.threads[number];
            if thread.state == ThreadState::Ended {
                continue;
            }
            if let Some(coroutine) = thread.coroutine.take() {
                coroutine.abandon();
            }
            thread.state = ThreadState::Killed;
            state.runnable.retain(|other| *other != number);
            state.ended(number);
        }
    }

    /// Returns whether the process was killed.
    pub fn is_killed(&self, process: ProcessNumber) -> bool {
        self.state.borrow().processes[process].killed
    }

    /// Returns the name of a thread.
    pub(crate) fn name_of(&self, thread: ThreadNumber) -> String {
        self.state.borrow().threads[thread as usize].name.clone()
    }

    /// Returns the process of the running thread. Outside of threads it is the server.
    pub fn process(&self) -> ProcessNumber {
        self.state.borrow().process()
    }

    /// Calls `draw` with the source of all random numbers.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.state.borrow_mut().random)
    }
}

enum Turn {
    Thread(usize),
    Timer(Box<dyn FnOnce()>),
    Again,
    Never,
}

impl State {
    fn process(&self) -> ProcessNumber {
        self.current.map_or(SERVER, |number| self.threads[number].process)
    }

    fn set_timer(&mut self, time: u64, timer: Timer) -> TimerKey {
        self.timers_made += 1;
        let key = (time.max(self.time), self.timers_made);
        self.timers.insert(key, timer);
        key
    }

    fn stall(&mut self, number: usize, until: u64) {
        self.threads[number].state = ThreadState::Stalled;
        self.set_timer(until, Timer::Wake(number));
    }

    fn wake(&mut self, number: usize) {
        let thread = &mut self.threads[number];
        if let ThreadState::Parked(_) | ThreadState::Stalled = thread.state {
            thread.state = ThreadState::Runnable;
            self.runnable.push(number);
        }
    }

    fn unpark(&mut self, number: usize) {
        match self.threads[number].state {
            ThreadState::Parked(timer) => {
                if let Some(key) = timer {
                    self.timers.remove(&key);
                }
                self.wake(number);
            }
            ThreadState::Runnable | ThreadState::Stalled => self.threads[number].permit = true,
            ThreadState::Ended | ThreadState::Killed => {}
        }
    }

    /// Wakes those who join a thread that has ended.
    fn ended(&mut self, number: usize) {
        for joining in std::mem::take(&mut self.threads[number].joining) {
            self.unpark(joining);
        }
    }
}

impl Runtime for Engine {
    fn now(&self) -> u64 {
        let state = &mut *self.state.borrow_mut();
        // No two readings are equal, so the rules of histories know which came first.
        state.time += 1;
        state.processes[state.process()].clock.shows(state.time)
    }

    fn wall(&self) -> SystemTime {
        let state = self.state.borrow();
        state.processes[state.process()].clock.wall(state.time)
    }

    fn random(&self) -> u64 {
        self.state.borrow_mut().random.u64(..)
    }

    fn current(&self) -> Option<ThreadNumber> {
        self.state.borrow().current.map(|number| number as ThreadNumber)
    }

    fn spawn(&self, name: String, run: Box<dyn FnOnce()>) -> ThreadNumber {
        let process = self.process();
        self.spawn_in(process, name, run)
    }

    fn join(&self, thread: ThreadNumber) -> bool {
        let thread = thread as usize;
        loop {
            {
                let state = &mut *self.state.borrow_mut();
                match state.threads[thread].state {
                    ThreadState::Ended => return state.threads[thread].panic.is_none(),
                    ThreadState::Killed => return false,
                    _ => {}
                }
                let current = state.current.expect("a thread joins");
                state.threads[thread].joining.push(current);
            }
            self.park(None);
        }
    }

    fn step(&self) {
        {
            let state = &mut *self.state.borrow_mut();
            let Some(number) = state.current else { return };
            // A thread that unwinds must not pause: others would seem to unwind too.
            if std::thread::panicking() {
                return;
            }
            let schedule = state.schedule;
            if schedule.stalls_every > 0 && state.random.u32(..schedule.stalls_every) == 0 {
                let stall = state.random.u64(..schedule.stall.as_nanos() as u64);
                state.stall(number, state.time + stall);
            } else if state.random.u8(..) < schedule.switches {
                state.runnable.push(number);
            } else {
                return;
            }
        }
        pause();
    }

    fn park(&self, until: Option<u64>) {
        {
            let state = &mut *self.state.borrow_mut();
            let number = state.current.expect("a thread parks");
            if std::mem::take(&mut state.threads[number].permit) {
                return;
            }
            let clock = state.processes[state.threads[number].process].clock;
            let time = until.map(|until| clock.time_of(until)).filter(|time| *time < u64::MAX / 2);
            let timer = time.map(|time| state.set_timer(time, Timer::Wake(number)));
            state.threads[number].state = ThreadState::Parked(timer);
        }
        pause();
    }

    fn unpark(&self, thread: ThreadNumber) {
        self.state.borrow_mut().unpark(thread as usize);
    }

    fn send(&self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        for sent in state.mail.sent(&mut state.random, from, to, bytes) {
            let time = state.time + sent.delay.as_nanos() as u64;
            let deliver = move || {
                let engine = engine();
                let state = &mut *engine.state.borrow_mut();
                let listener = state.mail.deliver(sent);
                listener.into_iter().for_each(|thread| state.unpark(thread as usize));
            };
            state.set_timer(time, Timer::Run(Box::new(deliver)));
        }
    }

    fn receive(&self, at: SocketAddr) -> Option<(Vec<u8>, SocketAddr)> {
        let current = self.current().expect("a thread receives");
        self.state.borrow_mut().mail.receive(at, current)
    }
}

//! Many worlds, in none of which a rule is broken.
//!
//! * `DLM_SIMULATION_WORLDS=1000000`: how many worlds
//! * `DLM_SIMULATION_FIRST=5000`: the seed of the first one
//! * `DLM_SIMULATION_SEED=17`: only the world with this seed, with everything that happened in it
#![cfg(dlm_simulation)]

use std::env;
use std::fmt::{self, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlm::Mode;
use dlm_simulation::world::{Run, World};
use dlm_testkit::history::{Answer, Event, Operation};

/// Number of worlds in a short run.
const WORLDS: u64 = 1000;

/// Calls are shown that were made up to this time before and after those of a violation.
const AROUND: Duration = Duration::from_secs(2);

fn number(variable: &str) -> Option<u64> {
    let number = env::var(variable).ok()?;
    Some(number.parse().unwrap_or_else(|_| panic!("{variable}={number} is not a number")))
}

#[test]
fn no_world_breaks_a_rule() {
    if let Some(seed) = number("DLM_SIMULATION_SEED") {
        let world = World::of(seed);
        println!("{world:#?}");
        let run = world.run();
        println!("{}", run.text);
        assert!(run.is_clean(), "{}", report(&world, &run));
        return;
    }
    let first = number("DLM_SIMULATION_FIRST").unwrap_or(0);
    let worlds = number("DLM_SIMULATION_WORLDS").unwrap_or(WORLDS);
    let (began, next) = (Instant::now(), AtomicU64::new(first));
    let totals = Mutex::new(Totals::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + worlds {
                return;
            }
            let world = World::of(seed);
            let run = world.run();
            totals.lock().unwrap().add(&world, &run);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(2, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let mut totals = totals.into_inner().unwrap();
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    println!(
        "{worlds} worlds, {:.1} million calls a minute: {totals:?}",
        totals.calls as f64 / minutes / 1e6
    );
    totals.broken.sort();
    let seeds: Vec<u64> = totals.broken.iter().map(|(seed, _)| *seed).collect();
    if let Some((_, report)) = totals.broken.first() {
        panic!("rules are broken in worlds {seeds:?}. The first one:\n{report}");
    }
    let bites = [
        totals.lost,
        totals.late,
        totals.in_doubt,
        totals.leases_lost,
        totals.writes_refused,
        totals.stale_numbers,
        totals.datagrams,
        totals.converted,
        totals.readers_refused,
    ];
    assert!(worlds < WORLDS || bites.iter().all(|times| *times > worlds / 10), "the faults hardly bite");
}

/// What happened in all worlds.
#[derive(Default)]
struct Totals {
    calls: u64,
    /// Requests without a reply.
    lost: u64,
    /// Requests that the server served after their clients had given up.
    late: u64,
    /// Calls whose answer was `InDoubt`.
    in_doubt: u64,
    leases_lost: u64,
    /// Writes that the receiver refused, because it had seen a higher fence.
    writes_refused: u64,
    /// Creations that the store refused for a stale number. One dialect in six has them.
    stale_numbers: u64,
    /// Datagrams of notices that arrived.
    datagrams: u64,
    /// Leases that went on in another mode. One world in six has them.
    converted: u64,
    /// Readers that a writer which waited kept out, or that holds excluded.
    readers_refused: u64,
    /// Worlds in which a rule was broken, each with a report.
    broken: Vec<(u64, String)>,
}

impl Totals {
    fn add(&mut self, world: &World, run: &Run) {
        let answered = |is: fn(&Answer) -> bool| {
            run.history.events().iter().filter(|event| is(&event.answer)).count() as u64
        };
        let [_, lost, late] = run.requests;
        self.calls += answered(|_| true);
        self.lost += lost;
        self.late += late;
        self.in_doubt += answered(|answer| *answer == Answer::InDoubt);
        self.leases_lost += answered(|answer| *answer == Answer::Lost);
        self.writes_refused += answered(|answer| matches!(answer, Answer::Refused { .. }));
        self.converted += run.history.events().iter().filter(|event| is_conversion(event)).count() as u64;
        self.readers_refused +=
            run.history.events().iter().filter(|event| is_refused_reader(event)).count() as u64;
        self.stale_numbers += run.stale_numbers;
        self.datagrams += run.datagrams;
        if !run.is_clean() {
            self.broken.push((world.seed, report(world, run)));
        }
    }
}

fn is_conversion(event: &Event) -> bool {
    matches!(event.operation, Operation::Convert { .. }) && matches!(event.answer, Answer::Granted { .. })
}

fn is_refused_reader(event: &Event) -> bool {
    let is_reader = |mode: Mode| mode != Mode::Exclusive;
    matches!(event.operation, Operation::Acquire { mode, .. } if is_reader(mode))
        && event.answer == Answer::No
}

impl fmt::Debug for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { calls, lost, late, in_doubt, leases_lost, writes_refused, .. } = self;
        let Totals { stale_numbers, datagrams, converted, readers_refused, .. } = self;
        write!(
            f,
            "{calls} calls, {lost} requests without a reply, {late} served late, {in_doubt} calls in doubt, "
        )?;
        write!(
            f,
            "{leases_lost} leases lost, {writes_refused} stale writes refused, {stale_numbers} stale numbers refused, \
             {datagrams} datagrams, {converted} conversions, {readers_refused} readers refused"
        )
    }
}

/// Says what happened, and how to see it again.
fn report(world: &World, run: &Run) -> String {
    let mut text = format!("in world {} ({:?}, {:?}):\n{run}", world.seed, world.dialect, world.events);
    if let Some(violation) = run.violations.first() {
        text += "calls around the first violation, with times in seconds:\n";
        for event in run.history.around(violation, AROUND).events() {
            if event.key != violation.key {
                continue;
            }
            let seconds = |moment: dlm::Moment| moment.as_nanos() as f64 / 1e9;
            let (id, called, returned) = (&event.id, seconds(event.called), event.returned.map(seconds));
            let (operation, answer) = (&event.operation, &event.answer);
            writeln!(text, "{called:.6} {returned:.6?} {id}: {operation:?} -> {answer:?}").unwrap();
        }
    }
    text + &format!("again: DLM_SIMULATION_SEED={} tests/simulation/run --test worlds", world.seed)
}

#![cfg(dlm_simulation)]
//! Many worlds, in none of which a rule is broken.
//!
//! * `DLM_SIMULATION_WORLDS=1000000`: how many worlds
//! * `DLM_SIMULATION_FIRST=5000`: the seed of the first one
//! * `DLM_SIMULATION_SEED=17`: only the world with this seed, with everything that happened in it

use std::env;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlm_simulation::world::{Run, World};

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
    let last = first + number("DLM_SIMULATION_WORLDS").unwrap_or(WORLDS);
    let (next, calls, lost, late) =
        (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (began, broken) = (Instant::now(), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= last {
                return;
            }
            let world = World::of(seed);
            let run = world.run();
            if !run.is_clean() {
                broken.lock().unwrap().push((seed, report(&world, &run)));
            }
            calls.fetch_add(run.history.events().len() as u64, Ordering::Relaxed);
            lost.fetch_add(run.requests[1], Ordering::Relaxed);
            late.fetch_add(run.requests[2], Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(2, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let (calls, minutes) = (calls.into_inner(), began.elapsed().as_secs_f64() / 60.0);
    println!(
        "{} worlds, {calls} calls, {:.1} million a minute; {} requests without a reply, {} served late",
        last - first,
        calls as f64 / minutes / 1e6,
        lost.into_inner(),
        late.into_inner(),
    );
    let mut broken = broken.into_inner().unwrap();
    broken.sort();
    let seeds: Vec<u64> = broken.iter().map(|(seed, _)| *seed).collect();
    if let Some((_, report)) = broken.first() {
        panic!("rules are broken in worlds {seeds:?}. The first one:\n{report}");
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

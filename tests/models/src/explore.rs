//! Runs the checker and prints what it found.

use std::fs::File;
use std::io::Write;
use std::time::Instant;
use std::{env, thread};

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// What the checker needs of a model.
pub trait Checked:
    Model<
        State: Debug + Clone + PartialEq + Hash + Send + Sync,
        Action: Debug + Clone + PartialEq + Send + Sync,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<M> Checked for M where
    M: Model<
            State: Debug + Clone + PartialEq + Hash + Send + Sync,
            Action: Debug + Clone + PartialEq + Send + Sync,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Result of an exploration.
#[derive(Debug)]
pub struct Explored {
    /// Properties that are broken in some state.
    pub broken: Vec<&'static str>,
    /// Things that should be possible and were not found.
    pub not_reached: Vec<&'static str>,
    pub states: usize,
}

/// Visits all states within the bounds of the model.
pub fn explore<M: Checked>(name: &str, model: M) -> Explored {
    let begun = Instant::now();
    let checker = model.clone().checker().finish_when(HasDiscoveries::AllFailures).spawn_bfs().join();
    let found = checker.discoveries();
    let of = |expectation: Expectation, is_found| {
        let properties = model.properties().into_iter();
        let wanted = properties.filter(move |it| it.expectation == expectation);
        wanted.map(|it| it.name).filter(|name| found.contains_key(name) == is_found).collect::<Vec<_>>()
    };
    let explored = Explored {
        broken: of(Expectation::Always, true),
        not_reached: of(Expectation::Sometimes, false),
        states: checker.unique_state_count(),
    };
    let (states, depth, seconds) = (explored.states, checker.max_depth(), begun.elapsed().as_secs_f64());
    print(&format!("model: {name}: {states} states, depth {depth}, {seconds:.1} s"));
    explored
}

/// Returns the actions on a shortest path to a state in which the property is broken.
pub fn counterexample<M: Checked>(name: &str, model: M, property: &'static str) -> Option<Vec<M::Action>> {
    let mut shortest: Option<Vec<M::Action>> = None;
    loop {
        let mut checker = model.clone().checker().finish_when(HasDiscoveries::AllOf([property].into()));
        if let Some(actions) = &shortest {
            // The checker may overwrite the first path that it finds. The first state has depth 1.
            checker = checker.target_max_depth(actions.len() + 1);
        }
        let checker = checker.spawn_bfs().join();
        let Some(path) = checker.discovery(property) else { break };
        shortest = Some(path.into_actions());
    }
    let steps =
        shortest.as_ref().map_or("not found".to_owned(), |it| format!("broken in {} steps", it.len()));
    print(&format!("model: {name}: \"{property}\" {steps}"));
    if env::var_os("DLM_MODEL_PATHS").is_some() {
        shortest.iter().flatten().for_each(|action| print(&format!("    {action:?}")));
    }
    shortest
}

/// Not `eprintln!`: the test harness hides that.
fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns whether this is the long run, `DLM_TEST_LONG=1`, which has wider bounds. Says so otherwise, as the testkit
/// does for the other tests.
pub fn is_long() -> bool {
    let long = env::var("DLM_TEST_LONG").is_ok_and(|long| long == "1");
    if !long {
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let line = format!("{test} does only a part: narrow bounds");
        print(&format!("\n*** {line} (DLM_TEST_LONG=1)"));
        let list = env::var_os("DLM_TEST_LEFT_OUT");
        let list = list.and_then(|list| File::options().append(true).create(true).open(list).ok());
        let _ = list.map(|mut list| writeln!(list, "{line}"));
    }
    long
}

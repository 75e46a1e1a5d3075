//! How often a latch is looked at.

use super::*;
use crate::store::NamePolicy;

const POLL: Duration = Duration::from_secs(5);

fn entry() -> Entry {
    let name = LatchName::new("tests", "dc1", "board", NamePolicy::Strict).unwrap();
    Entry::new(Arc::new((name, Level::Dc)), SHORTEST_PAUSE)
}

/// The pauses after so many looks that see no change, in milliseconds.
fn pauses(entry: &mut Entry, looks: usize) -> Vec<u128> {
    let look = |entry: &mut Entry| {
        entry.looks += 1;
        entry.saw(entry.looks, 7, Moment::now(), POLL).as_millis()
    };
    (0..looks).map(|_| look(entry)).collect()
}

/// What is documented of a wait's first seconds holds for all who wait, not for the first alone.
#[test]
fn a_newcomer_to_an_old_watch_is_looked_after_as_if_it_were_new() {
    let mut entry = entry();
    entry.join(0);
    assert_eq!(pauses(&mut entry, 9), [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    entry.join(1);
    assert_eq!(pauses(&mut entry, 3), [50, 100, 200]);
}

#[test]
fn a_newcomer_during_a_look_has_the_short_pauses_after_its_own_first_look() {
    let mut entry = entry();
    entry.join(0);
    pauses(&mut entry, 9);
    entry.looks += 1;
    entry.join(1);
    entry.saw(entry.looks, 7, Moment::now(), POLL);
    assert_eq!(pauses(&mut entry, 2), [50, 100]);
}

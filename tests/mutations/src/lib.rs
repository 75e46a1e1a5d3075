//! The faults that the library is tested against. `faults.txt` has for each one the promise, the tests, and a line of
//! the library that a test guards.
//!
//! | Module | Content |
//! |---|---|
//! | [`list`] | reads `faults.txt` |
//! | [`checks`] | whether the list is whole, and whether its tests and lines still exist |
//! | [`page`] | makes `docs/faults.md` from the list |
//! | [`command`] | how cargo runs a test of the list |
//! | [`tree`] | a copy of the source tree, in which lines are broken |
//! | [`switches`] | puts lines behind switches, so that one build has them all |
//! | [`run`] | breaks the lines, and sees whether the tests fail |

use std::path::Path;

pub mod checks;
pub mod command;
pub mod list;
pub mod page;
pub mod run;
pub mod switches;
pub mod tree;

/// The list, as it was when this program was built.
pub const LIST: &str = include_str!("../faults.txt");

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("it is two folders down")
}

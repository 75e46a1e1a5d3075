//! Functions that can stop in the middle and go on later, each on a stack of its own.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use generator::{Generator, Gn};

/// Words of a stack: 256 KiB, of which only the used pages take memory.
const STACK_WORDS: usize = 32 * 1024;
/// Most stacks that are kept for the next coroutine.
const KEPT_MAX: usize = 256;

thread_local! {
    static KEPT: RefCell<Vec<Generator<'static, (), ()>>> = const { RefCell::new(Vec::new()) };
}

/// A function that runs on a stack of its own. It does not begin before it is resumed.
pub(crate) struct Coroutine(Generator<'static, (), ()>);

impl Coroutine {
    pub(crate) fn new(run: impl FnOnce() + Send + 'static) -> Coroutine {
        let kept = KEPT.with_borrow_mut(Vec::pop);
        Coroutine(match kept {
            Some(mut kept) => {
                kept.init_code(run);
                kept
            }
            None => Gn::new_opt(STACK_WORDS, run),
        })
    }

    /// Runs the function until it pauses or ends. Returns whether it has ended.
    ///
    /// # Panics
    /// As the function does.
    pub(crate) fn resume(&mut self) -> bool {
        self.0.resume();
        self.0.is_done()
    }

    /// Keeps the stack of a function that has ended, for another one.
    pub(crate) fn recycle(self) {
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < KEPT_MAX {
                kept.push(self.0);
            }
        });
    }

    /// Forgets a function that has not ended. What it owns is not dropped, as in a process that was killed. So its
    /// memory is lost until the test ends.
    pub(crate) fn abandon(self) {
        std::mem::forget(self.0);
    }
}

/// Pauses the running coroutine, until it is resumed.
pub(crate) fn pause() {
    // The other way to pause needs a value that only the outermost function has. Here the library is in between.
    #[allow(deprecated)]
    generator::yield_with(());
}

/// Runs `run`, and returns its panic as text.
pub(crate) fn caught(run: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
    })
}

//! The class of a lock, which is a label of its metrics.
//!
//! Prometheus keeps one series for each combination of labels. Ids of locks are without end, so they are no labels. The class
//! of a lock is its id up to the first `:`, `/`, `#` or `-`: the class of `order-42` is `order`. A manager has at most
//! [`CLASSES_MAX`] classes. Locks of further classes are of the class [`OTHER`], and so are those whose class would be empty
//! or longer than [`CLASS_BYTES_MAX`] bytes.

use std::fmt;
use std::sync::Arc;

use crate::names::lock_name::LockName;
use crate::runtime::sync::{HashMap, Mutex};

/// The most classes of a manager, besides [`OTHER`].
pub(crate) const CLASSES_MAX: usize = 64;
pub(crate) const OTHER: &str = "other";
/// Longest class, in bytes.
const CLASS_BYTES_MAX: usize = 64;

/// Returns the class of a lock.
pub(crate) fn class_of(name: &LockName) -> &str {
    let key = name.key();
    // `DC#<farm>#<client>#<id>` or `XDC#<client>#<id>`.
    let parts = if key.starts_with("DC#") { 4 } else { 3 };
    let id = key.splitn(parts, '#').last().unwrap_or_default();
    let class = id.split([':', '/', '#', '-']).next().unwrap_or_default();
    if (1..=CLASS_BYTES_MAX).contains(&class.len()) { class } else { OTHER }
}

/// Something for each class.
pub(crate) struct Classes<T> {
    by_class: Mutex<HashMap<String, Arc<T>>>,
    new: fn() -> T,
}

impl<T> Classes<T> {
    pub(crate) fn new(new: fn() -> T) -> Classes<T> {
        Classes { by_class: Mutex::default(), new }
    }

    /// Calls `with` for the class, or for [`OTHER`] if there are too many.
    pub(crate) fn with<R>(&self, class: &str, with: impl FnOnce(&str, &T) -> R) -> R {
        let (class, found) = {
            let mut by_class = self.by_class.lock();
            match by_class.get(class) {
                Some(found) => (class, Arc::clone(found)),
                None => {
                    let others = by_class.keys().filter(|known| *known != OTHER).count();
                    let class = if others < CLASSES_MAX { class } else { OTHER };
                    let found = by_class.entry(class.to_owned()).or_insert_with(|| Arc::new((self.new)()));
                    (class, Arc::clone(found))
                }
            }
        };
        with(class, &found)
    }

    /// Returns all classes, sorted.
    pub(crate) fn all(&self) -> Vec<(String, Arc<T>)> {
        let by_class = self.by_class.lock();
        let mut all: Vec<_> = by_class.iter().map(|(class, it)| (class.clone(), Arc::clone(it))).collect();
        drop(by_class);
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}

impl<T> fmt::Debug for Classes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Classes").field("count", &self.by_class.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};

    fn class(level: Level, id: &str) -> String {
        let name = LockName::new(level, "client-1", Some("farm-1"), id, NamePolicy::Strict).unwrap();
        class_of(&name).to_owned()
    }

    #[test]
    fn the_class_is_the_id_up_to_its_first_separator() {
        for level in [Level::Dc, Level::Xdc] {
            for id in ["order-42", "order:42", "order/a/b", "order#42#7", "order", "order-"] {
                assert_eq!(class(level, id), "order", "{id}");
            }
            for id in ["-42", "#", &"x".repeat(65), &"é".repeat(33)] {
                assert_eq!(class(level, id), "other", "{id}");
            }
            assert_eq!(class(level, &"é".repeat(32)), "é".repeat(32));
        }
    }

    #[test]
    fn further_classes_are_one() {
        let classes = Classes::new(|| ());
        let class_for = |number: usize| classes.with(&format!("c{number}"), |class, ()| class.to_owned());
        for number in 0..CLASSES_MAX {
            assert_eq!(class_for(number), format!("c{number}"));
        }
        for number in CLASSES_MAX..1000 {
            assert_eq!(class_for(number), OTHER);
        }
        assert_eq!(class_for(3), "c3", "those before stay");
        assert_eq!(classes.all().len(), CLASSES_MAX + 1);
    }

    /// A lock may be called so.
    #[test]
    fn a_class_named_other_takes_no_place() {
        let classes = Classes::new(|| ());
        classes.with(OTHER, |_, ()| ());
        for number in 0..CLASSES_MAX {
            let class = format!("c{number}");
            assert_eq!(classes.with(&class, |class, ()| class.to_owned()), class);
        }
    }
}

//! Stores of other crates: a scheme of URIs, and the function that opens them.
//!
//! ```text
//! register_store!(...)     in the crate of the store: the linker collects the entries, no code runs
//! register_scheme(...)     a call at the start of `main`
//!         |
//!         v
//!     named(scheme)        asked for each URI whose scheme is none of this crate's
//! ```

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{LockStore, StoreUri};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::store_option::{MANAGER, StoreOption};

/// The schemes of this crate's stores, also of those that a build leaves out.
const BUILT_IN: [&str; 5] = ["memory", "embedded", "hbase", "hbase+thrift", "aerospike"];

/// What [`register_scheme`] was given.
static GIVEN: Mutex<Vec<Scheme>> = Mutex::new(Vec::new());

inventory::collect!(Scheme);

/// A kind of store that this crate does not have: the form of its URIs, its options, and what opens it.
///
/// Once it is registered, its URIs open a store wherever those of this crate's stores do:
/// [`Builder::store_uri`](crate::Builder::store_uri), [`store::open`](super::open), `dlm_manager_open` in C and
/// `dlm --store`. Unknown options are refused, and `dlm --help` lists it.
#[derive(Clone, Copy)]
pub struct Scheme {
    form: &'static str,
    options: &'static [StoreOption],
    open: OpenStore,
}

type OpenStore = fn(&mut StoreUri) -> Result<Arc<dyn LockStore>>;

impl Scheme {
    /// A store whose URIs look like `form`, such as `redis://host:6379/prefix`. The scheme is what stands before
    /// the first colon: lower-case letters, digits, `+`, `-` and `.`, beginning with a letter.
    ///
    /// `options` are all that a URI may have beside those of every manager (`client`, `ttl`, ...), which do not
    /// reach the store. Others are refused before `open` is called.
    ///
    /// `open` opens the store of a URI, or connects later, when the store is first asked. It takes every
    /// option that it lists. It fails with [`StoreUri::invalid`] or [`Error::invalid`] where the URI is not
    /// what it should be, before any I/O.
    pub const fn new(form: &'static str, options: &'static [StoreOption], open: OpenStore) -> Scheme {
        Scheme { form, options, open }
    }

    /// What stands before the colon.
    pub fn name(&self) -> &'static str {
        self.form.split_once(':').map_or("", |(name, _)| name)
    }

    /// What the URIs look like.
    pub fn form(&self) -> &'static str {
        self.form
    }

    /// The options of its URIs.
    pub fn options(&self) -> &'static [StoreOption] {
        self.options
    }

    /// For [`register_store!`](crate::register_store): what can be wrong with an entry ends the compilation.
    #[doc(hidden)]
    #[must_use]
    pub const fn checked(self) -> Scheme {
        match self.fault() {
            None => self,
            Some(fault) => panic!("{}", fault.allowed),
        }
    }

    /// What is wrong with this entry by itself.
    const fn fault(&self) -> Option<Fault> {
        let form = self.form.as_bytes();
        let mut end = 0;
        while end < form.len() && form[end] != b':' {
            let byte = form[end];
            let letter = byte.is_ascii_lowercase();
            if !letter && (end == 0 || !(byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.'))) {
                return Some(Fault::scheme(self.form, NAMES));
            }
            end += 1;
        }
        if end == 0 || end == form.len() {
            return Some(Fault::scheme(self.form, NAMES));
        }
        let (name, _) = self.form.split_at(end);
        let mut at = 0;
        while at < BUILT_IN.len() {
            if equal(name, BUILT_IN[at]) {
                return Some(Fault::scheme(name, "the library has a store of this scheme"));
            }
            at += 1;
        }
        self.fault_of_options()
    }

    const fn fault_of_options(&self) -> Option<Fault> {
        let mut at = 0;
        while at < self.options.len() {
            let key = self.options[at].key;
            if !is_key(key) {
                return Some(Fault::option(key, "an option's key is ASCII letters, digits, _, - and ."));
            }
            let mut other = 0;
            while other < MANAGER.len() {
                if equal(key, MANAGER[other].key) {
                    return Some(Fault::option(key, "every manager has an option of this key"));
                }
                other += 1;
            }
            let mut other = 0;
            while other < at {
                if equal(key, self.options[other].key) {
                    return Some(Fault::option(key, "a store lists each of its options once"));
                }
                other += 1;
            }
            at += 1;
        }
        None
    }

    /// Opens the store of `uri`, whose scheme is this one.
    pub(crate) fn open(&self, uri: StoreUri, options: Options) -> Result<Arc<dyn LockStore>> {
        options.refuse_unknown(self.options)?;
        let mut uri = uri.with_options(options);
        let store = (self.open)(&mut uri)?;
        match uri.left_over() {
            None => Ok(store),
            Some(key) => Err(Error::Internal {
                what: format!("the store {uri} lists the option {key} and did not read it"),
                source: None,
            }),
        }
    }
}

/// The form and the keys of the options.
impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: Vec<_> = self.options.iter().map(|option| option.key).collect();
        f.debug_struct("Scheme").field("form", &self.form).field("options", &options).finish_non_exhaustive()
    }
}

const NAMES: &str = "a scheme and a colon, such as redis://host:6379/prefix; the scheme is lower-case letters, \
                     digits, +, - and ., beginning with a letter";

/// Why an entry is not taken, in the words of an INVALID_ARGUMENT.
struct Fault {
    what: &'static str,
    value: &'static str,
    allowed: &'static str,
}

impl Fault {
    const fn scheme(value: &'static str, allowed: &'static str) -> Fault {
        Fault { what: "store scheme", value, allowed }
    }

    const fn option(value: &'static str, allowed: &'static str) -> Fault {
        Fault { what: "store option", value, allowed }
    }
}

/// `==`, which constants do not have for text.
const fn equal(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

const fn is_key(key: &str) -> bool {
    let bytes = key.as_bytes();
    let mut at = 0;
    while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'_' | b'-' | b'.')) {
        at += 1;
    }
    at == bytes.len() && at > 0
}

/// Registers a store's scheme, for this process and from now on. Call it at the start of `main`.
///
/// The other way is [`register_store!`](crate::register_store), which needs no call, and so also works in a
/// `libdlm.so` that is loaded by a program in another language.
///
/// # Errors
/// INVALID_ARGUMENT for a scheme that is none, is one of this crate's or is registered already, and for an
/// option whose key is none, is a manager's or is listed twice.
pub fn register_scheme(scheme: Scheme) -> Result<()> {
    if let Some(fault) = scheme.fault() {
        return Err(Error::invalid(fault.what, fault.value, fault.allowed));
    }
    let mut given = GIVEN.lock();
    if given.iter().copied().chain(linked()).any(|other| other.name() == scheme.name()) {
        return Err(twice(scheme.name()));
    }
    given.push(scheme);
    Ok(())
}

/// The registered schemes, sorted by name. Those of this crate's stores are not among them.
pub fn schemes() -> Vec<Scheme> {
    let mut all: Vec<_> = GIVEN.lock().iter().copied().chain(linked()).collect();
    all.sort_by_key(Scheme::name);
    all
}

/// The registered scheme of that name.
///
/// # Errors
/// INVALID_ARGUMENT where two crates have registered it: neither is the right one.
pub(crate) fn named(name: &str) -> Result<Option<Scheme>> {
    let mut all = schemes().into_iter().filter(|scheme| scheme.name() == name);
    match (all.next(), all.next()) {
        (Some(_), Some(_)) => Err(twice(name)),
        (found, _) => Ok(found),
    }
}

/// Those of [`register_store!`](crate::register_store).
fn linked() -> impl Iterator<Item = Scheme> {
    inventory::iter::<Scheme>.into_iter().copied()
}

fn twice(name: &str) -> Error {
    Error::invalid("store scheme", name, "it is registered already: two crates must not have the same scheme")
}

/// Registers a store's scheme without any call: it is there in every program, `libdlm.so` and command `dlm`
/// that the crate with this line is linked into.
///
/// The arguments are those of [`Scheme::new`](crate::store::Scheme::new), all constant. What is wrong with
/// them is an error of the compiler. A scheme that two crates register is refused when a URI has it.
///
/// Rust links a crate only where its name is used, so a program without other use for it writes
/// `use my_store as _;`.
///
/// ```
/// use std::sync::Arc;
///
/// use dlm::StoreOption;
/// use dlm::store::{LockStore, MemoryStore, StoreUri};
///
/// const OPTIONS: [StoreOption; 1] = [StoreOption::new("shelf", "top", "where the locks lie")];
///
/// fn open(uri: &mut StoreUri) -> dlm::Result<Arc<dyn LockStore>> {
///     if uri.path() != "" {
///         return Err(uri.invalid("example: and nothing behind it"));
///     }
///     let _shelf = uri.take("shelf");
///     Ok(Arc::new(MemoryStore::new()))
/// }
///
/// dlm::register_store!("example:", &OPTIONS, open);
///
/// fn main() -> dlm::Result<()> {
///     let manager = dlm::LockManager::open("example:?client=order-service&shelf=low")?;
///     assert!(dlm::LockManager::open("example:?client=order-service&shelv=low").is_err());
/// #   drop(manager);
///     Ok(())
/// }
/// ```
///
/// ```compile_fail
/// # use dlm::store::{LockStore, MemoryStore, StoreUri};
/// fn open(uri: &mut StoreUri) -> dlm::Result<std::sync::Arc<dyn LockStore>> {
///     Ok(std::sync::Arc::new(MemoryStore::new()))
/// }
/// dlm::register_store!("memory:", &[], open); // the library has a store of this scheme
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! register_store {
    ($form:expr, $options:expr, $open:expr $(,)?) => {
        $crate::__inventory::submit! { $crate::store::Scheme::new($form, $options, $open).checked() }
    };
}

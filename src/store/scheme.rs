//! Kinds of stores: the scheme of their URIs, their options, and the function that opens them.
//!
//! ```text
//! SCHEME                   in the folder of each store of this crate
//! register_store!(...)     in the crate of another store: the linker collects the entries, no code runs
//! register_scheme(...)     a call at the start of `main`
//!         |
//!         v
//!     uri::schemes()       all that URIs can name
//! ```

use std::fmt;
use std::sync::Arc;

use super::LockStore;
use super::store_uri::{StoreUri, UriShape};
use crate::error::{Error, Result};
use crate::runtime::process::fork_pause::ForkPause;
use crate::runtime::sync::real::Mutex;
use crate::settings::manager_options::MANAGER;
use crate::settings::store_option::StoreOption;

/// The schemes of all stores of this crate, including those that this build leaves out, and the features that have them.
pub(super) const BUILT_IN: [(&str, &str); 5] = [
    ("memory", ""),
    ("embedded", "embedded"),
    ("hbase", "hbase"),
    ("hbase+thrift", "gateway"),
    ("aerospike", "aerospike"),
];

/// The schemes registered with [`register_scheme`].
static GIVEN: Mutex<Vec<Scheme>> = Mutex::new(Vec::new());

inventory::collect!(Scheme);

/// A kind of store: the form of its URIs, its options, and the function that opens it.
///
/// After registration, the URIs of a store from another crate work like those of this crate's stores: in
/// [`Builder::store_uri`](crate::Builder::store_uri), [`store::open`](super::open), `dlm_manager_open` in C and
/// `dlm --store`. The library refuses unknown options, and `dlm --help` lists the scheme.
#[derive(Clone, Copy)]
pub struct Scheme {
    form: &'static str,
    options: &'static [StoreOption],
    open: OpenStore,
    shape: UriShape,
}

type OpenStore = fn(&mut StoreUri) -> Result<Arc<dyn LockStore>>;

impl Scheme {
    /// Creates a scheme.
    ///
    /// * `form` shows what the URIs look like, such as `redis://host:6379/prefix`. The scheme is the part before
    ///   the first colon. It consists of lower-case letters, digits, `+`, `-` and `.`, and begins with a letter.
    /// * `options` lists all options of the store. The options of every manager (`client`, `ttl`, ...) do not reach
    ///   the store. The library refuses all other options before it calls `open`.
    /// * `open` opens the store of a URI. It may connect later, with the first call to the store. It must take
    ///   every option in `options`. If the URI is wrong, it fails with [`StoreUri::invalid`] or [`Error::invalid`]
    ///   before any I/O.
    pub const fn new(form: &'static str, options: &'static [StoreOption], open: OpenStore) -> Scheme {
        Scheme { form, options, open, shape: UriShape::Servers }
    }

    /// Returns this scheme for URIs of a path, without servers.
    pub(crate) const fn of_paths(self) -> Scheme {
        Scheme { shape: UriShape::Path, ..self }
    }

    pub(crate) fn shape(&self) -> UriShape {
        self.shape
    }

    /// Returns the scheme, the part of the form before the colon.
    pub fn name(&self) -> &'static str {
        self.form.split_once(':').map_or("", |(name, _)| name)
    }

    /// Returns the form of the URIs.
    pub fn form(&self) -> &'static str {
        self.form
    }

    /// Returns the options of the URIs.
    pub fn options(&self) -> &'static [StoreOption] {
        self.options
    }

    /// Returns the entry for [`register_store!`](crate::register_store). A wrong entry is a compiler error.
    #[doc(hidden)]
    #[must_use]
    pub const fn checked(self) -> Scheme {
        match self.fault() {
            None => self,
            Some(fault) => panic!("{}", fault.allowed),
        }
    }

    /// Returns what is wrong with this entry, without a comparison with other entries.
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
            if equal(name, BUILT_IN[at].0) {
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

    /// Opens the store of `uri`, which has this scheme.
    pub(crate) fn open(&self, mut uri: StoreUri) -> Result<Arc<dyn LockStore>> {
        uri.options().refuse_unknown(self.options)?;
        let store = (self.open)(&mut uri)?;
        match uri.left_over() {
            None => Ok(store),
            Some(key) => Err(Error::Internal {
                what: format!("the store {uri} lists the option {key} but did not read it"),
                source: None,
            }),
        }
    }
}

/// Shows the form and the keys of the options.
impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: Vec<_> = self.options.iter().map(|option| option.key).collect();
        f.debug_struct("Scheme").field("form", &self.form).field("options", &options).finish_non_exhaustive()
    }
}

const NAMES: &str = "a scheme and a colon, such as redis://host:6379/prefix; a scheme has lower-case letters, \
                     digits, +, - and ., and begins with a letter";

/// Why an entry is refused: the parts of an INVALID_ARGUMENT.
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

/// Compares like `==`, which does not work on text in constants.
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

/// Registers a store's scheme for this process, from now on. Call it at the start of `main`.
///
/// [`register_store!`](crate::register_store) needs no call. It also works in a `libdlm.so` that a program in
/// another language loads.
///
/// # Errors
/// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a scheme that is malformed, belongs to this crate or
/// is already registered, and for an option whose key is malformed, belongs to a manager or is listed twice.
pub fn register_scheme(scheme: Scheme) -> Result<()> {
    if let Some(fault) = scheme.fault() {
        return Err(Error::invalid(fault.what, fault.value, fault.allowed));
    }
    let _pause = ForkPause::new();
    let mut given = GIVEN.lock();
    if given.iter().copied().chain(linked()).any(|other| other.name() == scheme.name()) {
        return Err(twice(scheme.name()));
    }
    given.push(scheme);
    Ok(())
}

/// Returns the schemes of other crates, sorted by name.
pub(crate) fn registered() -> Vec<Scheme> {
    let _pause = ForkPause::new();
    let mut all: Vec<_> = GIVEN.lock().iter().copied().chain(linked()).collect();
    all.sort_by_key(Scheme::name);
    all
}

/// Returns the feature that has the store of this crate with this scheme.
pub(crate) fn feature_of(scheme: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(name, _)| *name == scheme).map(|(_, feature)| *feature)
}

/// Returns the schemes registered with [`register_store!`](crate::register_store).
fn linked() -> impl Iterator<Item = Scheme> {
    inventory::iter::<Scheme>.into_iter().copied()
}

pub(crate) fn twice(name: &str) -> Error {
    Error::invalid("store scheme", name, "it is registered already: two crates must not have the same scheme")
}

/// Registers a store's scheme without a call. The scheme exists in every program, `libdlm.so` and command `dlm`
/// that links the crate with this line.
///
/// The arguments are those of [`Scheme::new`](crate::store::Scheme::new), and must be constants. A wrong argument
/// is a compiler error. If two crates register the same scheme, its URIs are refused.
///
/// Rust links a crate only if its name is used. A program that does not use the crate otherwise writes
/// `use my_store as _;`.
///
/// ```
/// use std::sync::Arc;
///
/// use dlm::store::StoreOption;
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

//! Kerberos as the machine has it: credentials, and contexts in which two processes prove who they are and protect what they send.
//!
//! This is a safe form of GSS-API (RFC 2743, RFC 2744) with the mechanism Kerberos 5 (RFC 4121), as far as clients need it. Its
//! calls are those of MIT Kerberos, see [`library`].
//!
//! Objects that a forked child inherits are not freed there: another thread of the parent may have held a lock of the library.
//!
//! [`Credentials::acquire`] and [`Context::begin`] may ask DNS and the realm's servers (KDC), for as long as the machine's
//! `krb5.conf` lets them. All other calls only compute.

mod library;

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use self::library::{
    Buffer, CredentialPair, CredentialPairs, GssObject, KERBEROS, Library, OidSet, PRINCIPAL,
};
use crate::runtime::process::descriptors::StreamsTaken;
use crate::runtime::process::process_mark::ProcessMark;

/// Bits of a major status that say that the call failed.
const FAILED: u32 = 0xffff_0000;
/// The context needs another token of the other side.
const CONTINUE_NEEDED: u32 = 1;
/// Kinds of status for `gss_display_status`.
const MAJOR: c_int = 1;
const MINOR: c_int = 2;
/// The use of credentials: to begin contexts.
const INITIATE: c_int = 1;
/// No limit of time.
const INDEFINITE: u32 = u32::MAX;
/// The most sentences of the library that an error repeats.
const SENTENCES_MAX: usize = 8;

/// What a context protects, and what was proven: the flags of RFC 2744, section 5.19.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextFlags(u32);

impl ContextFlags {
    /// The server has proven who it is.
    pub(crate) const MUTUAL: ContextFlags = ContextFlags(2);
    const REPLAY: ContextFlags = ContextFlags(4);
    /// A token that is missing or comes twice is noticed.
    const SEQUENCE: ContextFlags = ContextFlags(8);
    pub(crate) const CONFIDENTIALITY: ContextFlags = ContextFlags(16);
    pub(crate) const INTEGRITY: ContextFlags = ContextFlags(32);

    pub(crate) fn has(self, flags: ContextFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    pub(crate) const fn and(self, flags: ContextFlags) -> ContextFlags {
        ContextFlags(self.0 | flags.0)
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GssError {
    major: u32,
    minor: u32,
    text: String,
}

impl GssError {
    /// The error code of Kerberos (`krb5_err.et`), as a number that is negative there.
    pub(crate) fn code(&self) -> i32 {
        self.minor as i32
    }

    /// Whether there are no credentials for what was asked.
    pub(crate) fn is_no_credentials(&self) -> bool {
        const NO_CREDENTIALS: u32 = 7;
        self.major >> 16 & 0xff == NO_CREDENTIALS
    }

    fn other(text: impl Into<String>) -> GssError {
        GssError { major: FAILED, minor: 0, text: text.into() }
    }

    fn new(library: &Library, major: u32, minor: u32) -> GssError {
        let mut sentences = Vec::new();
        for (status, kind) in [(major, MAJOR), (minor, MINOR)] {
            sentences.extend(display(library, status, kind));
        }
        // The general sentence says nothing if there is a particular one.
        sentences.retain(|sentence| !sentence.starts_with("Unspecified GSS failure"));
        sentences.dedup();
        GssError { major, minor, text: sentences.join("; ") }
    }
}

impl fmt::Display for GssError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for GssError {}

fn display(library: &Library, status: u32, kind: c_int) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut more = 0;
    while sentences.len() < SENTENCES_MAX {
        let mut out = Owned::empty(library);
        let mut minor = 0;
        // SAFETY: all pointers are valid for the call. `more` is 0 or what the call before has written.
        let major = unsafe {
            (library.gss_display_status)(
                &raw mut minor,
                status,
                kind,
                &raw const KERBEROS,
                &raw mut more,
                &raw mut out.buffer,
            )
        };
        if major & FAILED != 0 {
            break;
        }
        sentences.push(String::from_utf8_lossy(out.bytes()).into_owned());
        if more == 0 {
            break;
        }
    }
    sentences
}

/// Returns whether the library is there. Loads it.
///
/// # Errors
/// What is missing, as the system says it.
pub(crate) fn available() -> Result<(), String> {
    Library::get().map(|_| ())
}

/// Bytes that the library has allocated.
struct Owned<'a> {
    library: &'a Library,
    buffer: Buffer,
}

impl Owned<'_> {
    fn empty(library: &Library) -> Owned<'_> {
        Owned { library, buffer: Buffer { length: 0, value: ptr::null_mut() } }
    }

    fn bytes(&self) -> &[u8] {
        if self.buffer.value.is_null() {
            return &[];
        }
        // SAFETY: the library has written so many bytes there, which stay until `gss_release_buffer`.
        unsafe { std::slice::from_raw_parts(self.buffer.value.cast(), self.buffer.length) }
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer is empty or was filled by the library.
        unsafe { (self.library.gss_release_buffer)(&raw mut minor, &raw mut self.buffer) };
    }
}

/// Returns a buffer with these bytes for an argument that is only read.
fn borrowed(bytes: &[u8]) -> Buffer {
    Buffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast::<c_void>() }
}

/// Converts the two statuses of a call.
fn checked(library: &Library, major: u32, minor: u32) -> Result<u32, GssError> {
    if major & FAILED == 0 { Ok(major) } else { Err(GssError::new(library, major, minor)) }
}

/// The name of a principal.
#[derive(Debug)]
struct Name {
    library: &'static Library,
    handle: GssObject,
    process: ProcessMark,
}

impl Name {
    fn of_principal(library: &'static Library, principal: &str) -> Result<Name, GssError> {
        let mut name = Name { library, handle: ptr::null_mut(), process: ProcessMark::current() };
        let (text, mut minor) = (borrowed(principal.as_bytes()), 0);
        // SAFETY: all pointers are valid for the call, which copies the text.
        let major = unsafe {
            (library.gss_import_name)(
                &raw mut minor,
                &raw const text,
                &raw const PRINCIPAL,
                &raw mut name.handle,
            )
        };
        checked(library, major, minor).map(|_| name)
    }

    fn text(&self) -> Result<String, GssError> {
        let (mut out, mut minor, mut kind) = (Owned::empty(self.library), 0, ptr::null());
        // SAFETY: the name is one of this library, and all pointers are valid for the call.
        let major = unsafe {
            (self.library.gss_display_name)(&raw mut minor, self.handle, &raw mut out.buffer, &raw mut kind)
        };
        checked(self.library, major, minor)?;
        Ok(String::from_utf8_lossy(out.bytes()).into_owned())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let mut minor = 0;
        // SAFETY: the handle is null or a name that nothing else releases.
        unsafe { (self.library.gss_release_name)(&raw mut minor, &raw mut self.handle) };
    }
}

// SAFETY: names are tied to no thread, and only one thread at a time has this one.
unsafe impl Send for Name {}

/// Where credentials come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TicketSource {
    /// The process's ticket cache, as `kinit` fills it.
    Default,
    /// This ticket cache.
    Cache(String),
    /// The keys in this file. The tickets are in a cache in the memory of this process with that name.
    Keytab { file: String, cache: String },
}

impl TicketSource {
    /// Returns the cache in which tickets of a keytab are.
    pub(crate) fn cached(&self) -> Option<TicketSource> {
        match self {
            TicketSource::Keytab { cache, .. } => Some(TicketSource::Cache(format!("MEMORY:{cache}"))),
            TicketSource::Default | TicketSource::Cache(_) => None,
        }
    }

    /// Deletes the tickets that are in the memory of this process. Credentials of this source cannot be used any more.
    pub(crate) fn forget(&self) {
        let (TicketSource::Keytab { cache, .. }, Ok(library)) = (self, Library::get()) else { return };
        let Ok(name) = CString::new(format!("MEMORY:{cache}")) else { return };
        let _taken = StreamsTaken::new();
        let (mut context, mut found) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: all pointers are valid for the calls. The context is used if it was made, and freed once. The cache is used
        // if it was found, and the call that deletes it also frees the handle.
        unsafe {
            if (library.krb5_init_context)(&raw mut context) != 0 {
                return;
            }
            if (library.krb5_cc_resolve)(context, name.as_ptr(), &raw mut found) == 0 {
                (library.krb5_cc_destroy)(context, found);
            }
            (library.krb5_free_context)(context);
        }
    }
}

/// Tickets of a client.
#[derive(Debug)]
pub(crate) struct Credentials {
    library: &'static Library,
    handle: GssObject,
    process: ProcessMark,
}

// SAFETY: credentials are tied to no thread.
unsafe impl Send for Credentials {}
// SAFETY: the library has a lock in them.
unsafe impl Sync for Credentials {}

impl Credentials {
    /// Acquires the credentials of `principal`, by default those that the source has. May ask the KDC, now or with the first
    /// context. Call it again when tickets of a keytab end: new ones are requested then.
    pub(crate) fn acquire(source: &TicketSource, principal: Option<&str>) -> Result<Credentials, GssError> {
        let library = Library::get().map_err(GssError::other)?;
        let _taken = StreamsTaken::new();
        let name = principal.map(|principal| Name::of_principal(library, principal)).transpose()?;
        let name = name.as_ref().map_or(ptr::null_mut(), |name| name.handle);
        let mechanisms = OidSet { count: 1, elements: &raw const KERBEROS };
        let (mut minor, mut credentials) =
            (0, Credentials { library, handle: ptr::null_mut(), process: ProcessMark::current() });
        let pairs: Vec<(CString, CString)> = match source {
            TicketSource::Default => Vec::new(),
            TicketSource::Cache(cache) => vec![pair("ccache", cache)?],
            TicketSource::Keytab { file, cache } => {
                vec![pair("client_keytab", file)?, pair("ccache", &format!("MEMORY:{cache}"))?]
            }
        };
        let elements: Vec<_> = pairs
            .iter()
            .map(|(key, value)| CredentialPair { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let store = CredentialPairs { count: elements.len() as u32, elements: elements.as_ptr() };
        // SAFETY: all pointers are valid for the call, which copies what it keeps, and null where the call allows it.
        let major = unsafe {
            if elements.is_empty() {
                (library.gss_acquire_cred)(
                    &raw mut minor,
                    name,
                    INDEFINITE,
                    &raw const mechanisms,
                    INITIATE,
                    &raw mut credentials.handle,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            } else {
                (library.gss_acquire_cred_from)(
                    &raw mut minor,
                    name,
                    INDEFINITE,
                    &raw const mechanisms,
                    INITIATE,
                    &raw const store,
                    &raw mut credentials.handle,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            }
        };
        checked(library, major, minor)?;
        Ok(credentials)
    }

    /// Returns whose they are and how long they last. May ask the KDC for the first ticket.
    pub(crate) fn inquire(&self) -> Result<(String, Duration), GssError> {
        let _taken = StreamsTaken::new();
        let mut name =
            Name { library: self.library, handle: ptr::null_mut(), process: ProcessMark::current() };
        let (mut minor, mut left_s) = (0, 0);
        // SAFETY: the credentials are valid, and all pointers are valid for the call, or null where it allows it.
        let major = unsafe {
            (self.library.gss_inquire_cred)(
                &raw mut minor,
                self.handle,
                &raw mut name.handle,
                &raw mut left_s,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        checked(self.library, major, minor)?;
        Ok((name.text()?, seconds(left_s)))
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let _taken = StreamsTaken::new();
        let mut minor = 0;
        // SAFETY: the handle is null or credentials that nothing else releases. Contexts keep what they need of them.
        unsafe { (self.library.gss_release_cred)(&raw mut minor, &raw mut self.handle) };
    }
}

fn pair(key: &str, value: &str) -> Result<(CString, CString), GssError> {
    let text = |text: &str| CString::new(text).map_err(|_| GssError::other(format!("{text:?} contains NUL")));
    Ok((text(key)?, text(value)?))
}

fn seconds(seconds: u32) -> Duration {
    if seconds == INDEFINITE { Duration::MAX } else { Duration::from_secs(seconds.into()) }
}

/// A context with one server. Its calls only compute, except for the first. The caller makes one at a time.
#[derive(Debug)]
pub(crate) struct Context {
    library: &'static Library,
    handle: GssObject,
    credentials: Arc<Credentials>,
    target: Name,
    is_complete: bool,
    flags: ContextFlags,
    lasts: Duration,
    process: ProcessMark,
}

// SAFETY: a context is tied to no thread, and only one thread at a time has this one.
unsafe impl Send for Context {}

impl Context {
    /// Begins a context with the service `target`, a principal such as `hbase/host@REALM`. Returns the token for it. May ask the KDC.
    ///
    /// The context will protect what is sent if the other side can, and both will have proven who they are.
    pub(crate) fn begin(credentials: Arc<Credentials>, target: &str) -> Result<(Context, Vec<u8>), GssError> {
        let _taken = StreamsTaken::new();
        let library = credentials.library;
        let mut context = Context {
            library,
            handle: ptr::null_mut(),
            credentials,
            target: Name::of_principal(library, target)?,
            is_complete: false,
            flags: ContextFlags(0),
            lasts: Duration::ZERO,
            process: ProcessMark::current(),
        };
        let token = context.proceed(None)?;
        Ok((context, token))
    }

    /// Takes a token of the server. Returns the next one for it, which may be empty.
    pub(crate) fn step(&mut self, token: &[u8]) -> Result<Vec<u8>, GssError> {
        self.proceed(Some(token))
    }

    fn proceed(&mut self, token: Option<&[u8]>) -> Result<Vec<u8>, GssError> {
        const ASKED: ContextFlags = ContextFlags::MUTUAL
            .and(ContextFlags::REPLAY)
            .and(ContextFlags::SEQUENCE)
            .and(ContextFlags::CONFIDENTIALITY)
            .and(ContextFlags::INTEGRITY);
        let input = token.map(borrowed);
        let input = input.as_ref().map_or(ptr::null(), |input| &raw const *input);
        let mut out = Owned::empty(self.library);
        let (mut minor, mut flags, mut left_s) = (0, 0, 0);
        // SAFETY: credentials, context and name are those of this library. A context that is null begins one. All pointers are valid for the call, or null where it allows it.
        let major = unsafe {
            (self.library.gss_init_sec_context)(
                &raw mut minor,
                self.credentials.handle,
                &raw mut self.handle,
                self.target.handle,
                &raw const KERBEROS,
                ASKED.0,
                INDEFINITE,
                ptr::null(),
                input,
                ptr::null_mut(),
                &raw mut out.buffer,
                &raw mut flags,
                &raw mut left_s,
            )
        };
        let major = checked(self.library, major, minor)?;
        self.is_complete = major & CONTINUE_NEEDED == 0;
        (self.flags, self.lasts) = (ContextFlags(flags), seconds(left_s));
        Ok(out.bytes().to_vec())
    }

    /// Returns whether both sides have agreed. Before that, the other calls below make no sense.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(crate) fn flags(&self) -> ContextFlags {
        self.flags
    }

    /// Returns how long it lasts, from its last step on.
    pub(crate) fn lasts(&self) -> Duration {
        self.lasts
    }

    /// Protects bytes, and hides them if they are `confidential`.
    pub(crate) fn wrap(&mut self, bytes: &[u8], confidential: bool) -> Result<Vec<u8>, GssError> {
        let input = borrowed(bytes);
        let (mut out, mut minor, mut is_hidden) = (Owned::empty(self.library), 0, 0);
        // SAFETY: the context is one of this library, and all pointers are valid for the call.
        let major = unsafe {
            (self.library.gss_wrap)(
                &raw mut minor,
                self.handle,
                c_int::from(confidential),
                0,
                &raw const input,
                &raw mut is_hidden,
                &raw mut out.buffer,
            )
        };
        checked(self.library, major, minor)?;
        if confidential && is_hidden == 0 {
            return Err(GssError::other("the context cannot hide what is sent"));
        }
        Ok(out.bytes().to_vec())
    }

    /// Returns what a token protects, and whether it was hidden. An error if it was changed, or is not the next one.
    pub(crate) fn unwrap(&mut self, token: &[u8]) -> Result<(Vec<u8>, bool), GssError> {
        let input = borrowed(token);
        let (mut out, mut minor, mut is_hidden, mut quality) = (Owned::empty(self.library), 0, 0, 0);
        // SAFETY: the context is one of this library, and all pointers are valid for the call.
        let major = unsafe {
            (self.library.gss_unwrap)(
                &raw mut minor,
                self.handle,
                &raw const input,
                &raw mut out.buffer,
                &raw mut is_hidden,
                &raw mut quality,
            )
        };
        let supplement = checked(self.library, major, minor)?;
        if supplement != 0 {
            return Err(GssError::new(self.library, supplement, minor));
        }
        Ok((out.bytes().to_vec(), is_hidden != 0))
    }

    /// Returns how many bytes one token of at most `token_max` bytes protects.
    pub(crate) fn wrap_limit(&mut self, confidential: bool, token_max: u32) -> Result<usize, GssError> {
        let (mut minor, mut limit) = (0, 0);
        // SAFETY: the context is one of this library, and all pointers are valid for the call.
        let major = unsafe {
            (self.library.gss_wrap_size_limit)(
                &raw mut minor,
                self.handle,
                c_int::from(confidential),
                0,
                token_max,
                &raw mut limit,
            )
        };
        checked(self.library, major, minor)?;
        Ok(limit as usize)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let mut minor = 0;
        // SAFETY: the handle is null or a context that nothing else deletes. No token for the other side is asked for.
        unsafe {
            (self.library.gss_delete_sec_context)(&raw mut minor, &raw mut self.handle, ptr::null_mut())
        };
    }
}

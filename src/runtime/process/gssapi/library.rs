//! The functions of `libgssapi_krb5.so.2`, which is loaded when it is needed first and stays loaded.
//!
//! The types are those of RFC 2744, section 3, as MIT Kerberos declares them in `gssapi.h` on Linux. So a program that uses this
//! library needs no Kerberos to be built or to start.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::runtime::process::descriptors::above_streams;

/// The library that Debian and its like call `libgssapi-krb5-2`, and Red Hat `krb5-libs`.
pub(super) const NAME: &CStr = c"libgssapi_krb5.so.2";

/// An object of the library: a name, a set of credentials or a context.
pub(super) type GssObject = *mut c_void;

/// `gss_buffer_desc`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) length: usize,
    pub(super) value: *mut c_void,
}

/// `gss_OID_desc`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Oid {
    length: u32,
    elements: *const c_void,
}

// SAFETY: the bytes behind it are constants, and nobody changes them.
unsafe impl Sync for Oid {}

impl Oid {
    const fn of(bytes: &'static [u8]) -> Oid {
        Oid { length: bytes.len() as u32, elements: bytes.as_ptr().cast() }
    }
}

/// The mechanism Kerberos 5: 1.2.840.113554.1.2.2.
pub(super) static KERBEROS: Oid = Oid::of(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02");
/// The form of a name that is a principal: 1.2.840.113554.1.2.2.1.
pub(super) static PRINCIPAL: Oid = Oid::of(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01");

/// `gss_OID_set_desc`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct OidSet {
    pub(super) count: usize,
    pub(super) elements: *const Oid,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CredentialPair {
    pub(super) key: *const c_char,
    pub(super) value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CredentialPairs {
    pub(super) count: u32,
    pub(super) elements: *const CredentialPair,
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $status:ty;)*) => {
        /// Functions of the library. Those of GSS-API return a major status, and write the minor status through their first
        /// argument.
        #[derive(Debug)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $status,)*
        }

        impl Library {
            /// Finds all functions. Returns the name of one that is missing otherwise.
            fn of(loaded: GssObject) -> Result<Library, &'static CStr> {
                $(
                    let name = const {
                        match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name of a function has no NUL"),
                        }
                    };
                    // SAFETY: `loaded` is a library that stays loaded, and the name ends with NUL.
                    let $name = unsafe { libc::dlsym(loaded, name.as_ptr()) };
                    if $name.is_null() {
                        return Err(name);
                    }
                    // SAFETY: the symbol is that function. RFC 2744 and MIT's headers `gssapi_ext.h` and `krb5.h` say what
                    // it takes.
                    let $name = unsafe {
                        std::mem::transmute::<GssObject, unsafe extern "C" fn($($argument),*) -> $status>($name)
                    };
                )*
                Ok(Library { $($name,)* })
            }
        }
    };
}

functions! {
    gss_import_name(*mut u32, *const Buffer, *const Oid, *mut GssObject) -> u32;
    gss_release_name(*mut u32, *mut GssObject) -> u32;
    gss_display_name(*mut u32, GssObject, *mut Buffer, *mut *const Oid) -> u32;
    gss_acquire_cred(*mut u32, GssObject, u32, *const OidSet, c_int, *mut GssObject, *mut *mut OidSet, *mut u32) -> u32;
    gss_acquire_cred_from(
        *mut u32, GssObject, u32, *const OidSet, c_int, *const CredentialPairs, *mut GssObject, *mut *mut OidSet, *mut u32
    ) -> u32;
    gss_inquire_cred(*mut u32, GssObject, *mut GssObject, *mut u32, *mut c_int, *mut *mut OidSet) -> u32;
    gss_release_cred(*mut u32, *mut GssObject) -> u32;
    gss_init_sec_context(
        *mut u32, GssObject, *mut GssObject, GssObject, *const Oid, u32, u32, *const c_void, *const Buffer, *mut *const Oid,
        *mut Buffer, *mut u32, *mut u32
    ) -> u32;
    gss_delete_sec_context(*mut u32, *mut GssObject, *mut Buffer) -> u32;
    gss_wrap(*mut u32, GssObject, c_int, u32, *const Buffer, *mut c_int, *mut Buffer) -> u32;
    gss_unwrap(*mut u32, GssObject, *const Buffer, *mut Buffer, *mut c_int, *mut u32) -> u32;
    gss_wrap_size_limit(*mut u32, GssObject, c_int, u32, u32, *mut u32) -> u32;
    gss_release_buffer(*mut u32, *mut Buffer) -> u32;
    gss_display_status(*mut u32, u32, c_int, *const Oid, *mut u32, *mut Buffer) -> u32;
    // Of `libkrb5`, which the library needs itself.
    krb5_init_context(*mut GssObject) -> i32;
    krb5_free_context(GssObject) -> ();
    krb5_cc_resolve(GssObject, *const c_char, *mut GssObject) -> i32;
    krb5_cc_destroy(GssObject, GssObject) -> i32;
}

impl Library {
    /// Returns the library. Loads it if no call before has.
    ///
    /// # Errors
    /// What is missing, as the system says it.
    pub(super) fn get() -> Result<&'static Library, String> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        match LOADED.get() {
            Some(library) => Ok(library),
            // Two threads load the same.
            None => Library::load().map(|library| LOADED.get_or_init(|| library)),
        }
    }

    fn load() -> Result<Library, String> {
        // Its symbols stay its own, because the program may have another version of Kerberos.
        // SAFETY: the name ends with NUL. The initializers of the library only prepare its own locks and tables.
        let loaded =
            above_streams(|| unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) });
        if loaded.is_null() {
            // SAFETY: the call returns a text of this thread that lasts until its next call, or null.
            let why = unsafe { libc::dlerror() };
            if why.is_null() {
                return Err(format!("{NAME:?} cannot be loaded"));
            }
            // SAFETY: it is not null, and ends with NUL.
            return Err(unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned());
        }
        Library::of(loaded)
            .map_err(|name| format!("{NAME:?} has no function {name:?}: it is older than MIT Kerberos 1.11"))
    }
}

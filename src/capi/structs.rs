//! Structs that cross, of which later versions have more fields.
//!
//! A program passes the size that a struct had when the program was compiled. Fields that its version lacks count as 0. Fields
//! that the library's version lacks must be 0, and are set to 0 in results. So a newer program works with this library as
//! long as it uses nothing newer, and an older one works unchanged.
//!
//! No struct that a program fills in has padding: a later version could give it a meaning, and an older program leaves
//! anything in it.

use std::mem::MaybeUninit;

use super::failure::{Failure, Outcome};
use super::guard::value;

/// A size above this is a mistake: no version of a struct is so large.
const SIZE_MAX: usize = 4096;

/// A struct that crosses.
///
/// # Safety
/// Any bytes are a value of the type, if those at [`BOOLS`](Versioned::BOOLS) are 0 or 1. So are bytes of zero.
pub(super) unsafe trait Versioned: Copy {
    const NAME: &str;
    /// Size in the first version with this binary interface.
    const FIRST: usize;
    /// Offsets of its fields of type bool.
    const BOOLS: &[usize] = &[];
    /// Offsets of its pointers behind the first version. No version ends within one: a part of a pointer would point anywhere.
    const LATER_POINTERS: &[usize] = &[];
}

pub(super) fn check_size<T: Versioned>(size: usize) -> Outcome {
    let cuts = |pointer: &usize| (*pointer + 1..*pointer + size_of::<usize>()).contains(&size);
    if (T::FIRST..=SIZE_MAX).contains(&size) && !T::LATER_POINTERS.iter().any(cuts) {
        return Ok(());
    }
    let (name, right) = (T::NAME, size_of::<T>());
    Err(Failure::invalid(format!("a size of {size} bytes is not allowed: sizeof(struct {name}), {right}")))
}

/// Reads the caller's version of a struct, aligned or not.
///
/// # Safety
/// `from` is readable for `size` bytes, and not NULL.
pub(super) unsafe fn read<T: Versioned>(from: *const T, size: usize) -> Outcome<T> {
    check_size::<T>(size)?;
    let known = size.min(size_of::<T>());
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller guarantees that it is readable. The other end has room for all that this version knows.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping(read.as_mut_ptr().cast(), known) };
    // SAFETY: as above.
    let byte = |at: usize| unsafe { from.cast::<u8>().add(at).read() };
    if (known..size).any(|at| byte(at) != 0) {
        let (name, known) = (T::NAME, size_of::<T>());
        return Err(Failure::invalid(format!(
            "a struct {name} of {size} bytes has something other than 0 behind byte {known}: the library is older than the program and does not know that field"
        )));
    }
    if let Some(at) = T::BOOLS.iter().find(|at| **at < known && byte(**at) > 1) {
        let (name, found) = (T::NAME, byte(*at));
        return Err(Failure::invalid(format!("{found} is no bool, at byte {at} of a struct {name}")));
    }
    // SAFETY: the implementation of the trait says so.
    Ok(unsafe { read.assume_init() })
}

/// Reads the caller's array. `size` is that of one element.
///
/// # Safety
/// `items` is NULL or readable for `count` times `size` bytes.
pub(super) unsafe fn read_array<T: Versioned>(
    what: &str,
    items: *const T,
    count: usize,
    size: usize,
) -> Outcome<Vec<T>> {
    if items.is_null() {
        return Err(Failure::invalid(format!("the {what} are NULL")));
    }
    check_size::<T>(size)?;
    if !items.is_aligned() || !size.is_multiple_of(align_of::<T>()) || count > isize::MAX as usize / size {
        return Err(Failure::invalid(format!("the {what} are misaligned, or {count} are too many")));
    }
    // SAFETY: the caller guarantees it.
    (0..count).map(|at| unsafe { read(items.cast::<u8>().add(at * size).cast::<T>(), size) }).collect()
}

/// Writes a result as the caller's version of the struct.
///
/// # Safety
/// `to` is NULL, or writable for `size` bytes, which [`check_size`] allows.
pub(super) unsafe fn write_struct<T: Versioned>(to: *mut T, size: usize, value: &T) {
    // SAFETY: the caller guarantees it.
    unsafe {
        zero(to, size);
        if !to.is_null() {
            let value: *const T = value;
            value.cast::<u8>().copy_to_nonoverlapping(to.cast(), size.min(size_of::<T>()));
        }
    }
}

/// Sets all fields of a result to 0, also those that this version lacks. It is for the beginning of a call, before anything
/// can fail.
///
/// # Safety
/// `to` is NULL, or writable for `size` bytes, or for the first version of the struct if no version has that size.
pub(super) unsafe fn zero<T: Versioned>(to: *mut T, size: usize) {
    let size = if size <= SIZE_MAX { size } else { T::FIRST };
    if !to.is_null() {
        // SAFETY: the caller guarantees it.
        unsafe { to.cast::<u8>().write_bytes(0, size) };
    }
}

/// Runs a call that returns whether there is something to write.
///
/// # Safety
/// As for [`zero`].
pub(super) unsafe fn found_struct<T: Versioned>(
    to: *mut T,
    size: usize,
    body: impl FnOnce() -> Outcome<Option<T>>,
) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe {
        zero(to, size);
        let found = value(None, || {
            if !to.is_null() {
                check_size::<T>(size)?;
            }
            body()
        });
        if let Some(found) = &found {
            write_struct(to, size, found);
        }
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    #[repr(C)]
    struct Grown {
        first: u64,
        second: u32,
        yes: bool,
        rest: [u8; 3],
        pointer: usize,
    }

    // SAFETY: numbers, and one bool, which is listed.
    unsafe impl Versioned for Grown {
        const NAME: &str = "grown";
        const FIRST: usize = 8;
        const BOOLS: &[usize] = &[offset_of!(Grown, yes)];
        const LATER_POINTERS: &[usize] = &[offset_of!(Grown, pointer)];
    }

    fn read_bytes(bytes: &[u8]) -> Outcome<Grown> {
        // SAFETY: the slice is as long as it says.
        unsafe { read(bytes.as_ptr().cast(), bytes.len()) }
    }

    #[test]
    fn an_older_program_has_zeros_in_the_fields_that_it_lacks() {
        let whole = Grown { first: 7, second: 0, yes: false, rest: [0; 3], pointer: 0 };
        assert_eq!(read_bytes(&7_u64.to_ne_bytes()).unwrap(), whole);
        let mut to = [0xa5_u8; 10];
        let value = Grown { second: 5, ..whole };
        // SAFETY: there is room for it.
        unsafe { write_struct(to.as_mut_ptr().cast(), 8, &value) };
        assert_eq!(to, [7, 0, 0, 0, 0, 0, 0, 0, 0xa5, 0xa5]);
    }

    #[test]
    fn a_newer_program_may_pass_zeros_and_gets_zeros_in_fields_that_are_not_known_here() {
        let mut bytes = [0; 32];
        bytes[12] = 1;
        assert!(read_bytes(&bytes).unwrap().yes);
        bytes[31] = 1;
        assert!(read_bytes(&bytes).is_err());
        let value = Grown { first: 1, second: 2, yes: true, rest: [0; 3], pointer: 0 };
        let mut to = [0xa5_u8; 32];
        // SAFETY: there is room for it.
        unsafe { write_struct(to.as_mut_ptr().cast(), 32, &value) };
        assert_eq!((to[0], to[8], to[12], &to[24..]), (1, 2, 1, &[0; 8][..]));
    }

    #[test]
    fn sizes_that_no_version_has_and_bytes_that_are_no_bool_are_refused() {
        let within_the_pointer = 17..24;
        for size in [0, 7, 4097, usize::MAX].into_iter().chain(within_the_pointer) {
            assert!(check_size::<Grown>(size).is_err(), "{size}");
        }
        for size in [8, 9, 16, 24, 25, 4096] {
            assert!(check_size::<Grown>(size).is_ok(), "{size}");
        }
        let mut bytes = [0; 16];
        bytes[12] = 2;
        assert!(read_bytes(&bytes).is_err());
    }

    #[test]
    fn the_elements_of_an_array_are_as_far_apart_as_the_program_says() {
        let numbers = [1_u64, 0, 0, 2, 0, 0];
        // SAFETY: the array is as long as it says.
        let read = unsafe { read_array::<Grown>("items", numbers.as_ptr().cast(), 2, 24) }.unwrap();
        assert_eq!(read.iter().map(|it| it.first).collect::<Vec<_>>(), [1, 2]);
        // SAFETY: nothing is read.
        unsafe {
            assert!(read_array::<Grown>("items", numbers.as_ptr().cast(), 2, 20).is_err(), "misaligned");
            assert!(read_array::<Grown>("items", numbers.as_ptr().cast(), usize::MAX, 24).is_err());
        }
    }
}

//! Calls the C functions from Rust, for a check under Miri: `cargo +nightly miri test capi`. The programs in
//! `tests/c` test the behaviour from C.

use std::ffi::CStr;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::answer::status;
use super::arguments::{DLM_FOREVER, DLM_LEVEL_XDC};
use super::cancel::{dlm_cancel_free, dlm_cancel_new, dlm_cancel_trigger};
use super::completions::{dlm_completions_free, dlm_completions_new, dlm_lease_notify};
use super::error::{dlm_error, dlm_error_free, dlm_error_message, dlm_error_status};
use super::id_lock::{
    dlm_id_lock, dlm_id_lock_acquire, dlm_id_lock_free, dlm_id_lock_new, dlm_id_lock_release,
};
use super::lease::{dlm_lease_check, dlm_lease_fence, dlm_lease_free, dlm_lease_release};
use super::lock::{dlm_lock_free, dlm_lock_try_acquire};
use super::manager::{dlm_manager_free, dlm_manager_lock, dlm_manager_open};
use super::options::{dlm_options_free, dlm_options_new, dlm_options_set};
use super::pending::{dlm_lock_acquire_start, dlm_pending_free, dlm_pending_notify};
use super::process::find;
use super::status::{dlm_status, dlm_status_name};
use crate::Code;
use crate::testing::patience::until;

/// A handle that is passed to another thread, as C programs do.
#[derive(Clone, Copy)]
struct Sent(*mut dlm_id_lock);

// SAFETY: a handle is a number. The functions that take it may be called from any thread.
unsafe impl Send for Sent {}

#[test]
fn statuses_are_the_codes_of_rust_by_number_and_name() {
    for &code in Code::ALL {
        assert_eq!(dlm_status::from(code) as i32, code.number());
        // SAFETY: static text.
        let name = unsafe { CStr::from_ptr(dlm_status_name(code.number())) };
        assert_eq!(name.to_str().unwrap(), code.name());
    }
}

#[test]
fn a_panic_ends_at_the_boundary_and_is_told() {
    let mut error = null_mut::<dlm_error>();
    // SAFETY: the output is a variable here, and the error is used until it is freed.
    unsafe {
        assert_eq!(status(&mut error, || panic!("planted\0")), dlm_status::DLM_PANIC);
        assert_eq!(dlm_error_status(error), dlm_status::DLM_PANIC);
        assert!(CStr::from_ptr(dlm_error_message(error)).to_str().unwrap().contains("planted"));
        dlm_error_free(error);
        assert_eq!(status(null_mut(), || panic!("planted")), dlm_status::DLM_PANIC);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot tell whose process this is")]
fn a_lock_is_taken_and_given_back_through_c() {
    let options = options_with_a_client();
    let (mut manager, mut lock, mut lease, mut error) = (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: the texts end with NUL, the outputs are variables here.
    unsafe {
        let opened = dlm_manager_open(c"memory:".as_ptr(), options, &mut manager, &mut error);
        assert_eq!(opened, dlm_status::DLM_OK);
        dlm_options_free(options);
        let made = dlm_manager_lock(manager, c"a".as_ptr(), DLM_LEVEL_XDC, &mut lock, &mut error);
        assert_eq!(made, dlm_status::DLM_OK);
        let got = dlm_lock_try_acquire(lock, null(), &mut lease, &mut error);
        assert_eq!(got, dlm_status::DLM_OK);
        assert!(dlm_lease_fence(lease) > 0);
        assert_eq!(dlm_lease_release(lease, null_mut(), null_mut()), dlm_status::DLM_OK);
        dlm_lease_free(lease);
        assert_eq!(dlm_lease_check(lease, null_mut()), dlm_status::DLM_CLOSED);
        dlm_lock_free(lock);
        dlm_manager_free(manager);
    }
}

fn options_with_a_client() -> *mut super::options::dlm_options {
    // SAFETY: the texts end with NUL.
    unsafe {
        let options = dlm_options_new();
        let set = dlm_options_set(options, c"client".as_ptr(), c"c".as_ptr(), null_mut());
        assert_eq!(set, dlm_status::DLM_OK);
        assert_ne!(dlm_options_set(options, c"\xff".as_ptr(), c"c".as_ptr(), null_mut()), dlm_status::DLM_OK);
        options
    }
}

#[test]
fn stale_handles_are_told() {
    // SAFETY: the library never dereferences a handle, even an invalid one.
    unsafe {
        let cancel = dlm_cancel_new();
        dlm_cancel_free(cancel);
        dlm_cancel_free(cancel);
        assert_eq!(dlm_cancel_trigger(cancel, null_mut()), dlm_status::DLM_CLOSED);
        assert_eq!(dlm_cancel_trigger(null_mut(), null_mut()), dlm_status::DLM_INVALID_ARGUMENT);

        let locks = dlm_id_lock_new();
        assert_eq!(dlm_id_lock_acquire(locks, 1, 0, null_mut()), dlm_status::DLM_OK);
        assert_eq!(dlm_id_lock_acquire(locks, 1, 0, null_mut()), dlm_status::DLM_LOCK_UNAVAILABLE);
        dlm_id_lock_free(locks);
        assert_eq!(dlm_id_lock_release(locks, 1, null_mut()), dlm_status::DLM_CLOSED);
    }
}

#[test]
fn freeing_wakes_those_who_wait() {
    // SAFETY: the library never dereferences a handle, even an invalid one.
    unsafe {
        let locks = Sent(dlm_id_lock_new());
        assert_eq!(dlm_id_lock_acquire(locks.0, 1, 0, null_mut()), dlm_status::DLM_OK);
        let begun = Arc::new(AtomicUsize::new(0));
        let waiters = [(); 2].map(|()| {
            let begun = Arc::clone(&begun);
            let wait = move || {
                let locks = locks;
                begun.fetch_add(1, Ordering::SeqCst);
                dlm_id_lock_acquire(locks.0, 1, DLM_FOREVER, null_mut())
            };
            thread::Builder::new().name("dlm-test".into()).spawn(wait).unwrap()
        });
        until("both have begun", || begun.load(Ordering::SeqCst) == 2);
        // So that they wait by now. One that comes later gets the same answer.
        thread::sleep(Duration::from_millis(20));
        dlm_id_lock_free(locks.0);
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), dlm_status::DLM_CLOSED);
        }
    }
}

/// Another thread is in a call with the handle, which it drops only later. A tag is often a pointer.
#[test]
#[cfg_attr(miri, ignore = "Miri cannot tell whose process this is")]
fn after_a_free_no_tag_comes_although_another_thread_is_in_a_call() {
    let (mut manager, mut lock, mut lease, mut pending) = (null_mut(), null_mut(), null_mut(), null_mut());
    let options = options_with_a_client();
    // SAFETY: the texts end with NUL, the outputs are variables here.
    unsafe {
        dlm_manager_open(c"memory:".as_ptr(), options, &mut manager, null_mut());
        dlm_options_free(options);
        dlm_manager_lock(manager, c"a".as_ptr(), DLM_LEVEL_XDC, &mut lock, null_mut());
        dlm_lock_try_acquire(lock, null(), &mut lease, null_mut());
        dlm_lock_acquire_start(lock, null(), &mut pending, null_mut());
        let list = dlm_completions_new();
        assert_eq!(dlm_lease_notify(lease, list, 7, null_mut()), dlm_status::DLM_OK);
        assert_eq!(dlm_pending_notify(pending, list, 8, null_mut()), dlm_status::DLM_OK);
        let (called_lease, called_pending) = (find(lease).unwrap(), find(pending).unwrap());
        dlm_pending_free(pending);
        dlm_lease_free(lease);
        called_pending.cancel();
        called_lease.release().unwrap();
        let completions = find(list).unwrap();
        assert!(
            called_lease.notify(&completions, 7).is_err() && called_pending.notify(&completions, 8).is_err()
        );
        assert_eq!(completions.next(), None);
        drop((called_lease, called_pending));
        assert_eq!(completions.next(), None);
        dlm_completions_free(list);
        dlm_lock_free(lock);
        dlm_manager_free(manager);
    }
}

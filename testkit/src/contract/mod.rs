//! Tests of what every store promises, and of what locks promise over every store.
//!
//! The test program of a store has a function that makes a [`Site`]: a separate set of names in the store. If this
//! machine cannot run the store, the function calls [`skipped`](crate::skipped) and returns `None`.
//! [`contract!`](crate::contract!) makes one test of each case of the suite:
//!
//! ```
//! use std::sync::Arc;
//! use dlm::store::{LockStore, MemoryStore};
//! use dlm_testkit::contract::Site;
//!
//! fn site(test: &str) -> Site {
//!     let store = Arc::new(MemoryStore::new());
//!     Site::new(test, 1000, move || store.clone() as Arc<dyn LockStore>)
//! }
//!
//! dlm_testkit::contract!(site);
//! dlm_testkit::latch_contract!(site); // if LockStore::latches is not None
//! dlm_testkit::modes_contract!(site); // if LockStore::modes is not None
//! ```
//!
//! The site says what the store cannot do: see [`Site::without_names`]. If a store cannot pass a case, name the cases
//! that it passes. Give a reason for each case that is left out:
//!
//! ```
//! # use std::sync::Arc;
//! # use dlm::store::{LockStore, MemoryStore};
//! # use dlm_testkit::contract::Site;
//! # fn site(test: &str) -> Site {
//! #     let store = Arc::new(MemoryStore::new());
//! #     Site::new(test, 1000, move || store.clone() as Arc<dyn LockStore>)
//! # }
//! // One invocation per layer: stores, lists, breaks, locks, leases, kept, linger, sets, elections, waits, pending, calls, latch_stores, latches, modes, intents, mode_leases, mode_linger.
//! dlm_testkit::contract! { site => waits:
//!     a_wait_of_zero_asks_once,
//!     closing_wakes_every_waiter,
//! }
//! ```
//!
//! Times are checked for lower bounds. No upper bound is below [`LONG`], because a slow machine must not fail a
//! store, except of what ends by the store's clock, however slow the machine is. A case that needs a lease to last for a few calls is repeated with longer leases, of up to a minute.

#[doc(hidden)]
pub mod breaks;
#[doc(hidden)]
pub mod calls;
#[doc(hidden)]
pub mod elections;
#[doc(hidden)]
pub mod intents;
#[doc(hidden)]
pub mod kept;
#[doc(hidden)]
pub mod latch_stores;
#[doc(hidden)]
pub mod latches;
#[doc(hidden)]
pub mod leases;
#[doc(hidden)]
pub mod linger;
#[doc(hidden)]
pub mod lists;
#[doc(hidden)]
pub mod locks;
#[doc(hidden)]
pub mod mode_leases;
#[doc(hidden)]
pub mod mode_linger;
#[doc(hidden)]
pub mod modes;
#[doc(hidden)]
pub mod pending;
#[doc(hidden)]
pub mod semaphores;
#[doc(hidden)]
pub mod sets;
#[doc(hidden)]
pub mod stores;
#[doc(hidden)]
pub mod waits;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlm::store::{Acquired, Attempt, Grant, Identity, LockStore};
use dlm::{Builder, Code, Deadline, Lease, Level, Lock, LockManager, LockName, Moment, NamePolicy};

use crate::patience::LONG;
pub(crate) use crate::patience::{LONGEST, eventually};

/// TTL of the leases that do not end during a case.
pub(crate) const HELD: Duration = LONG.saturating_mul(10);

/// The part of a store that one test uses: names that no other test has, and a way to open the store.
pub struct Site {
    client: String,
    open: Box<dyn Fn() -> Arc<dyn LockStore> + Send + Sync>,
    pub(crate) rounds: usize,
    /// Whether the latches have named participants.
    pub(crate) names: bool,
    /// Whether the store carries out each change of a latch even while others change it. Otherwise it may refuse
    /// one.
    pub(crate) settles: bool,
    pub(crate) longest_ttl: Duration,
    pub(crate) slack: Duration,
    /// Whether the store reads many locks with one call.
    pub(crate) reads_many: bool,
    /// Whether the store notes who waits for a latch.
    pub(crate) listeners: bool,
    /// Whether the store lists its locks.
    pub(crate) lists: bool,
    /// Whether the store keeps histories of locks.
    pub(crate) history: bool,
}

impl Site {
    /// Makes a site that no other test of the store uses.
    ///
    /// `test` is the name of the case. `rounds` is the number of calls that this store makes in a fraction of a
    /// second: a thousand in memory, a few dozen over a network. `open` opens the same store anew each time, like
    /// another process.
    pub fn new(
        test: &str,
        rounds: usize,
        open: impl Fn() -> Arc<dyn LockStore> + Send + Sync + 'static,
    ) -> Site {
        // The store may still contain locks of an earlier run, so the name must be new.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // HBase ends the client's part of a latch's key with an underscore, so the client id must not contain one.
        let test = test.replace('_', "-");
        let client = format!("{test:.80}-{since}-{}-{number}", std::process::id());
        let longest_ttl = Duration::from_secs(365 * 24 * 3600);
        Site {
            client,
            open: Box::new(open),
            rounds,
            names: true,
            settles: true,
            longest_ttl,
            slack: Duration::ZERO,
            reads_many: false,
            listeners: true,
            lists: true,
            history: true,
        }
    }

    /// Declares that the store's latches have no named participants.
    pub fn without_names(self) -> Site {
        Site { names: false, ..self }
    }

    /// Declares that the store does not note who waits for a latch: see
    /// [`LatchStore::listen`](dlm::store::LatchStore::listen).
    pub fn without_listeners(self) -> Site {
        Site { listeners: false, ..self }
    }

    /// Declares that the store cannot list its locks: see [`LockStore::list`].
    pub fn without_lists(self) -> Site {
        Site { lists: false, ..self }
    }

    /// Declares that the store keeps no histories of locks: see [`LockStore::history`].
    pub fn without_history(self) -> Site {
        Site { history: false, ..self }
    }

    /// Declares that the store may refuse a change of a latch while others change it.
    pub fn without_settling(self) -> Site {
        Site { settles: false, ..self }
    }

    /// Declares that the store reads many locks with one call: see [`LockStore::holders`].
    pub fn with_many_reads(self) -> Site {
        Site { reads_many: true, ..self }
    }

    /// The store keeps each lease up to `slack` longer than its TTL, and says so.
    #[must_use]
    pub fn with_slack(self, slack: Duration) -> Site {
        Site { slack, ..self }
    }

    /// Declares the longest TTL that the store accepts. Default: a year, the longest that the library accepts.
    pub fn with_longest_ttl(self, longest_ttl: Duration) -> Site {
        Site { longest_ttl, ..self }
    }

    /// Opens the store as another process would.
    pub fn store(&self) -> Arc<dyn LockStore> {
        (self.open)()
    }

    /// Returns the client id of all locks and latches of this site.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Returns the name of a lock at this site.
    pub fn name(&self, id: &str) -> LockName {
        LockName::new(Level::Xdc, &self.client, None, id, NamePolicy::Strict).unwrap()
    }

    /// Opens a manager as another process would. Its TTL is longer than any case, and its pauses are short.
    pub fn manager(&self) -> LockManager {
        self.manager_over(self.store())
    }

    /// Opens such a manager over a store that wraps this site's store, such as a [`Spy`](crate::Spy).
    pub fn manager_over(&self, store: Arc<dyn LockStore>) -> LockManager {
        self.builder().store(store).open().unwrap()
    }

    /// Returns a builder with the same settings, for a manager with other ones. It has no store yet.
    pub fn builder(&self) -> Builder {
        LockManager::builder()
            .client(&self.client)
            .farm("dc1")
            .ttl(HELD)
            .wait(LONGEST)
            .timeout(LONG)
            .retry(Duration::from_millis(20))
            .purpose("contract")
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("client", &self.client).finish_non_exhaustive()
    }
}

/// Returns a deadline for one call.
pub(crate) fn soon() -> Deadline {
    Deadline::after(LONG)
}

/// Makes one attempt to acquire a lock, directly at the store.
pub(crate) fn attempt(store: &dyn LockStore, name: &LockName, ttl: Duration) -> dlm::Result<Acquired> {
    let identity = Identity::this_process("contract").unwrap();
    let mut doubtful = Vec::new();
    let answer = store.acquire(Attempt { name, ttl, identity: &identity, by: soon() }, &mut doubtful);
    assert!(doubtful.is_empty(), "a healthy store leaves no doubt");
    answer
}

/// Acquires a lock that is free.
pub(crate) fn take(store: &dyn LockStore, name: &LockName, ttl: Duration) -> Grant {
    match attempt(store, name, ttl).unwrap() {
        Acquired::Granted(grant) => grant,
        Acquired::Held(holder) => panic!("{name} should be free and is held by {holder}"),
    }
}

/// Acquires a free lock for a short time. Returns `None` if the machine was so slow that the lease ended before the
/// store answered.
pub(crate) fn take_briefly(store: &dyn LockStore, name: &LockName, ttl: Duration) -> Option<Grant> {
    let (identity, asked) = (Identity::this_process("contract").unwrap(), Moment::now());
    let answer = store.acquire(Attempt { name, ttl, identity: &identity, by: soon() }, &mut Vec::new());
    match answer {
        Ok(Acquired::Granted(grant)) => Some(grant),
        other if Moment::now().since(asked) < ttl => panic!("{name} should be free: {other:?}"),
        _ => None,
    }
}

/// Tries until the lock is granted. Also returns when the grant was seen.
pub(crate) fn take_when_free(store: &dyn LockStore, name: &LockName, ttl: Duration) -> (Grant, Moment) {
    let mut granted = None;
    eventually("the lock becomes free", || match attempt(store, name, ttl).unwrap() {
        Acquired::Granted(grant) => {
            granted = Some((grant, Moment::now()));
            true
        }
        Acquired::Held(_) => false,
    });
    granted.unwrap()
}

/// Runs `case` with a short TTL, and then with longer ones if the machine was too slow. The case returns `None` when
/// its lease ended, by the clock, before the case did.
pub(crate) fn patiently(mut case: impl FnMut(Duration) -> Option<()>) {
    for ttl_ms in [400, 3_000, 15_000, 60_000] {
        if case(Duration::from_millis(ttl_ms)).is_some() {
            return;
        }
    }
    panic!("a lease of a minute ended before a few calls did: the store hangs, or ends leases too soon");
}

/// Whether a drop that began then took so long that it may have left the release of its lease to the background: it waits
/// for the store for two seconds at most.
pub(crate) fn was_slow(began: Moment) -> bool {
    Moment::now().since(began) >= Duration::from_secs(1)
}

/// Acquires a lock that a drop has released since `began`.
#[track_caller]
pub(crate) fn acquire_after_drop(began: Moment, lock: &Lock) -> Lease {
    if was_slow(began) { lock.acquire() } else { lock.try_acquire() }.unwrap()
}

/// Returns the value of a call that needs its lease to last. Returns `None` if the call was too slow for that: the store
/// did not answer in time.
#[track_caller]
pub(crate) fn in_time<T>(answer: dlm::Result<T>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(error) if error.is_retryable() && error.code() != Code::LockUnavailable => None,
        Err(error) => panic!("{}", error.chain()),
    }
}

/// Returns the code of a call that must fail.
#[track_caller]
pub(crate) fn code<T: std::fmt::Debug>(answer: dlm::Result<T>) -> Code {
    answer.expect_err("this must fail").code()
}

/// Runs `job` in a thread with this name.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    job: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::Builder::new().name(format!("dlm-test-{name}")).spawn(job).unwrap()
}

/// Makes a test of each case about locks that stay, over the sites that the function makes: for stores that reserve
/// fences. See [`contract`](mod@crate::contract).
#[macro_export]
macro_rules! linger_contract {
    ($site:ident) => {
        $crate::contract! { $site => linger:
            a_lock_that_stays_is_taken_again_without_the_store_and_its_fence_rises,
            another_process_gets_a_lock_that_stays_when_its_time_is_over,
            another_process_with_notices_gets_a_lock_that_stays_at_once,
            fences_rise_over_all_grants_of_all_processes,
            a_block_that_is_used_up_is_followed_by_a_higher_one,
            a_lock_does_not_stay_after_a_token_a_loss_or_a_minimum_hold,
            a_lease_of_another_length_has_a_record_of_its_own,
            closing_and_the_last_handle_give_back_what_stays,
            threads_pass_on_a_lock_that_stays_without_the_store,
            a_lease_of_a_lock_that_stays_ends_before_its_record,
            a_loop_over_a_lock_that_stays_leaves_turns_to_others,
            locks_whose_time_of_staying_is_over_are_left_to_those_who_poll,
            a_release_after_the_time_of_staying_leaves_the_lock_to_others,
            renewals_and_other_lengths_do_not_make_a_lock_stay_longer,
            a_lock_that_was_left_to_others_is_taken_again_after_an_interval,
            a_try_that_is_refused_ends_the_staying,
        }
    };
}

/// Makes a test of each case about semaphores, over the sites that the function makes: for stores that keep them. See
/// [`contract`](mod@crate::contract).
#[macro_export]
macro_rules! semaphores_contract {
    ($site:ident) => {
        $crate::contract! { $site => semaphores:
            permits_have_numbers_and_are_granted_up_to_the_size,
            several_permits_are_granted_in_one_step_or_none,
            the_fences_of_a_semaphore_rise,
            each_permit_is_renewed_released_and_broken_alone,
            a_permit_that_is_not_renewed_is_free_when_its_ttl_ends,
            a_long_permit_is_not_shortened_by_short_ones,
            locks_follow_permits_that_ran_out_and_permits_follow_such_locks,
            versions_without_semaphores_find_the_lock_held_until_the_last_permit_is_released,
            of_many_renewals_of_permits_each_has_its_own_answer,
            another_size_is_refused_and_names_that_in_the_store,
            a_semaphore_that_gets_smaller_grants_nothing_before_higher_permits_are_free,
            locks_and_permits_exclude_each_other,
            of_many_who_ask_never_more_have_permits_than_there_are,
            a_call_about_permits_that_is_late_already_leaves_nothing_behind,
            a_semaphore_lets_in_as_many_as_it_has_permits,
            threads_of_one_process_get_permits_in_the_order_in_which_they_came,
            a_wait_for_permits_ends_by_a_release_a_cancellation_or_the_end_of_its_manager,
            permits_are_kept_alive_and_one_that_was_broken_is_lost_alone,
            a_token_of_a_permit_is_renewed_and_released_by_another_process,
            another_number_of_permits_is_an_error_that_names_both,
            what_no_semaphore_can_have_is_refused_before_any_request,
        }
    };
}

/// Makes a test of each case about modes, over the sites that the function makes: for stores that keep locks in several modes.
/// See [`contract`](mod@crate::contract).
#[macro_export]
macro_rules! modes_contract {
    ($site:ident) => {
        $crate::contract! { $site => modes:
            modes_go_together_as_the_table_says_and_a_refusal_names_the_holder,
            a_hold_must_go_together_with_all_others,
            each_of_many_readers_renews_and_releases_alone,
            a_dead_reader_ends_with_its_own_ttl_while_others_go_on,
            a_long_reader_is_not_shortened_by_short_ones,
            a_renewed_reader_outlives_its_first_ttl_beside_others,
            versions_without_modes_find_the_lock_held_until_the_last_hold_is_released,
            versions_without_modes_get_the_lock_when_the_last_hold_has_ended,
            a_number_begins_with_each_writer_and_with_the_first_reader_after_one,
            a_number_begins_after_a_reader_that_ran_out,
            readers_come_above_all_fences_that_a_writer_has_reserved,
            a_conversion_changes_the_mode_and_voids_the_earlier_record,
            a_hold_that_changes_its_mode_again_and_again_has_rising_numbers,
            an_upgrade_is_refused_while_a_reader_is_there_and_leaves_the_hold_as_it_was,
            nobody_gets_the_lock_during_a_conversion,
            conversions_that_are_not_allowed_are_refused,
            a_record_that_holds_nothing_converts_nothing,
            a_record_from_before_a_longer_renewal_converts_the_hold,
            a_converted_hold_lasts_for_its_new_ttl,
            all_holds_are_listed_and_one_is_broken_alone,
            a_blocker_is_found_where_an_attempt_is_refused,
            of_many_renewals_of_all_modes_each_has_its_own_answer,
            of_many_who_ask_in_all_modes_those_that_exclude_each_other_never_overlap,
            a_call_about_modes_that_is_late_already_leaves_nothing_behind,
            locks_of_odd_names_have_holds_of_their_own,
            holds_and_latches_of_one_name_do_not_touch_each_other,
        }
        $crate::contract! { $site => intents:
            while_a_process_waits_exclusively_no_reader_is_let_in_and_holders_go_on,
            an_intent_holds_up_no_writer_and_no_conversion,
            an_intent_ends_at_its_end_and_lasts_no_longer_than_its_maximum,
            an_intent_that_is_announced_again_lasts_longer,
            a_refusal_names_the_writer_that_has_waited_longest_and_for_how_long,
            an_intent_ends_when_its_own_process_withdraws_it,
            an_intent_ends_with_the_grant_that_it_waits_for_and_with_no_other,
            who_holds_the_lock_already_reads_on_in_spite_of_an_intent,
            a_turn_lets_readers_pass_intents_until_its_end,
            a_turn_lets_nobody_in_beside_a_writer,
            with_turns_readers_and_writers_that_wait_crosswise_get_on,
            an_intent_that_is_late_already_does_no_harm,
        }
        $crate::contract! { $site => mode_leases:
            readers_share_a_lock_and_its_epoch_and_a_writer_has_it_alone,
            a_refusal_says_in_which_mode_the_lock_is_held_and_if_this_process_holds_it,
            a_writer_waits_for_all_readers_and_readers_wait_for_a_writer,
            threads_of_one_manager_are_readers_and_writers_like_any_others,
            readers_that_come_and_go_never_keep_each_other_out,
            a_waiting_writer_keeps_new_readers_out_until_it_has_had_its_turn,
            a_writer_that_gives_up_lets_readers_in,
            a_reader_that_a_writer_keeps_out_for_long_takes_its_turn,
            a_reader_that_came_before_a_writer_passes_it,
            readers_that_want_each_others_locks_go_on_though_writers_wait_for_both,
            readers_that_want_each_others_locks_go_on_though_writers_of_their_processes_wait,
            a_process_whose_readers_overlap_lets_writers_and_updaters_in,
            an_upgrade_is_not_passed_by_another_updater_of_its_process,
            a_nested_reader_passes_a_writer_of_its_process_at_once,
            an_election_has_one_leader,
            a_lease_goes_on_with_fewer_rights_and_nobody_gets_the_lock_in_between,
            an_updater_writes_when_the_readers_have_left_and_before_other_writers,
            a_change_of_mode_that_is_not_allowed_leaves_the_lease_as_it_was,
            a_lease_that_is_over_changes_no_mode,
            a_lease_that_is_kept_alive_stays_so_in_its_next_mode,
            each_reader_ends_with_its_own_ttl,
            a_token_of_a_reader_is_renewed_and_released_by_another_process,
            locks_of_several_modes_are_acquired_together,
            pendings_in_all_modes_wait_in_one_queue,
            closing_releases_readers_and_ends_an_upgrade_that_waits,
            of_several_readers_one_is_broken_and_told_why,
            a_history_has_the_modes_of_holds_and_one_entry_for_each_change,
            a_minimum_hold_of_a_reader_keeps_writers_out_until_it_is_over,
            options_that_no_reader_can_have_are_refused,
        }
        $crate::contract! { $site => mode_linger:
            a_reader_that_stays_is_taken_again_without_the_store_in_its_mode_and_epoch,
            a_writer_with_notices_gets_a_lock_that_readers_have_left_at_once,
            of_several_readers_of_a_process_one_stays,
            what_a_reader_has_left_does_not_keep_an_upgrade_of_its_process_waiting,
            readers_in_a_loop_leave_a_writer_that_polls_its_turn,
            an_updater_leaves_a_lock_that_has_stayed_to_others_and_a_reader_does_not,
            modes_by_turns_do_not_make_a_lock_stay_longer,
            a_writer_of_a_process_gets_what_its_reader_leaves,
            a_writer_is_notified_by_a_process_that_has_held_the_lock_in_several_modes,
        }
    };
}

/// Makes a test of each case about latches, over the sites that the function makes: see
/// [`contract`](mod@crate::contract).
#[macro_export]
macro_rules! latch_contract {
    ($site:ident) => {
        $crate::contract! { $site => latch_stores:
            a_latch_is_made_once_and_never_added_to,
            of_many_who_make_a_latch_at_once_one_does,
            each_step_counts_once_and_tells_the_count,
            steps_of_many_at_once_are_all_counted,
            a_latch_that_is_not_there_is_not_found_and_not_made,
            a_latch_is_gone_after_its_ttl_and_may_be_made_anew,
            each_step_gives_the_latch_its_whole_ttl_again,
            a_farm_counts_for_itself_and_all_are_summed,
            counts_of_many_latches_come_in_their_order,
            a_participant_counts_once_and_the_roster_tells_who_has_not,
            while_a_participant_is_missing_nobody_else_counts,
            a_new_latch_knows_nothing_of_the_names_of_the_last,
            a_latch_that_is_reset_begins_anew_for_everybody,
            a_reset_latch_knows_nothing_of_the_names_of_before,
            a_deleted_latch_is_gone_and_may_be_made_anew,
            a_farm_resets_and_deletes_its_own_count,
            resets_among_many_steps_leave_the_count_of_one_of_them,
            latches_are_listed_with_the_counts_of_their_farms,
            latches_of_odd_names_are_as_good_as_others,
            latches_and_locks_of_one_name_do_not_touch_each_other,
            initializing_latches_again_does_no_harm,
            a_call_on_latches_that_is_late_already_comes_back,
            who_waits_for_a_latch_is_noted_once_for_a_while,
            noting_who_waits_prolongs_no_latch_and_makes_none,
        }
        $crate::contract! { $site => latches:
            making_a_latch_again_says_so_and_changes_nothing,
            a_missing_latch_is_not_found_by_every_call_and_ends_every_wait,
            a_latch_that_expires_ends_every_wait_with_not_found,
            get_or_create_makes_a_latch_once,
            a_latch_counts_down_to_zero_and_below_and_up_only_if_it_may,
            a_latch_of_zero_is_open_at_once,
            a_latch_that_is_reset_opens_a_second_time,
            a_latch_that_is_deleted_ends_every_wait_with_not_found,
            bad_input_for_latches_is_refused_before_any_io,
            levels_farms_and_clients_have_latches_as_they_should,
            named_participants_are_counted_once_and_told,
            a_wait_ends_when_another_process_opens_the_latch,
            a_count_down_in_this_process_wakes_its_waiters_at_once,
            a_sum_over_farms_opens_when_the_last_farm_is_done,
            a_wait_that_is_over_says_no_and_leaves_nothing_behind,
            a_wait_of_zero_for_a_latch_looks_once,
            a_cancelled_wait_for_a_latch_ends_and_leaves_nothing_behind,
            closing_wakes_every_waiter_of_every_latch,
            many_waiters_of_one_latch_cost_one_look_at_a_time,
            processes_that_count_down_open_the_latch_exactly,
            whoever_opens_a_latch_tells_those_who_wait,
        }
    };
}

/// Makes a test of each case about locks, over the sites that the function makes. With a layer and names of its cases
/// it makes only those: see [`contract`](mod@crate::contract). The function is `fn(test: &str) -> Site` or returns
/// `Option<Site>`. Attributes in front of it are those of each test, such as `#[ignore]`.
#[macro_export]
macro_rules! contract {
    (@layer $attributes:tt $site:ident => $layer:ident: $($case:ident),+) => {
        mod $layer {
            $($crate::contract! { @case $attributes $site => $layer: $case })+
        }
    };
    (@case [$($attribute:tt)*] $site:ident => $layer:ident: $case:ident) => {
        #[test]
        $($attribute)*
        fn $case() {
            let site: ::std::option::Option<$crate::contract::Site> = super::$site(stringify!($case)).into();
            if let ::std::option::Option::Some(site) = site {
                $crate::contract::$layer::$case(&site);
            }
        }
    };
    ($(#[$attribute:meta])* $site:ident) => {
        $crate::contract! { $(#[$attribute])* $site => stores:
            a_free_lock_is_granted_and_a_held_one_refused_with_its_holder,
            releasing_frees_the_lock_and_doing_it_twice_changes_nothing,
            of_many_who_ask_at_once_exactly_one_is_granted,
            fences_rise_with_every_grant_whoever_asks,
            a_fence_rises_over_a_lease_that_ran_out,
            the_proof_of_another_grant_changes_nothing,
            a_lease_ends_not_before_its_ttl_and_then_lets_the_next_in,
            a_renewed_lease_outlives_its_first_ttl_and_leaves_nothing_behind,
            a_lease_that_ran_out_cannot_be_renewed,
            a_shorter_renewal_never_frees_the_lock_too_soon_nor_brings_it_back,
            a_shorter_renewal_never_shortens_what_stands,
            locks_of_odd_names_are_as_good_as_others,
            one_lock_does_not_touch_another,
            what_is_told_about_a_lock_is_true,
            many_locks_that_are_read_at_once_are_what_each_of_them_is,
            a_renewed_lock_still_names_its_holder,
            of_many_renewals_each_has_its_own_answer,
            many_renewals_that_are_late_already_take_no_lease_away,
            a_call_that_is_late_already_leaves_nothing_behind,
            initializing_again_and_at_once_does_no_harm,
        }
        $crate::contract! { $(#[$attribute])* $site => lists:
            held_locks_are_listed_with_their_holders_and_free_ones_are_not,
            a_list_of_a_prefix_has_just_the_names_that_begin_with_it,
            locks_of_odd_names_are_listed_once,
            a_lock_whose_lease_has_ended_is_not_listed_as_held,
            of_locks_that_come_and_go_those_that_stay_are_listed_once,
            lists_that_make_no_sense_are_refused,
            a_manager_lists_the_locks_of_all_clients,
        }
        $crate::contract! { $(#[$attribute])* $site => breaks:
            a_broken_lock_is_free_with_a_higher_fence_and_its_holder_is_told_why,
            the_holder_of_a_broken_lock_that_is_kept_alive_is_told_why,
            only_the_grant_that_was_seen_is_broken,
            a_holder_that_lost_its_lease_otherwise_is_not_told_of_an_older_break,
            breaks_that_make_no_sense_are_refused,
            breaks_under_fire_touch_no_other_grant,
            entries_of_a_history_come_newest_first_and_end,
            a_long_history_keeps_its_newest_entries,
            a_holder_is_told_why_whatever_was_added_to_the_history_since,
            a_manager_with_a_history_writes_what_happened_to_its_locks,
        }
        $crate::contract! { $(#[$attribute])* $site => locks:
            a_held_lock_is_refused_at_once_with_its_holder,
            a_second_release_is_false_and_asks_no_store,
            fences_rise_over_managers,
            a_dropped_lease_frees_the_lock,
            a_lease_is_released_once_by_whichever_thread_comes_first,
            levels_farms_and_clients_have_locks_of_their_own,
            locks_of_odd_ids_exclude_each_other_as_any_do,
            bad_input_is_refused_before_any_io,
            the_longest_and_the_shortest_ttl_work,
            inspecting_tells_holder_and_fence_and_changes_nothing,
            a_lease_goes_to_another_process_as_text_and_the_first_lets_go,
            a_text_of_a_released_lease_has_no_power,
            closing_frees_what_is_held_and_ends_everything,
            initializing_from_many_threads_does_no_harm,
            examining_a_store_that_does_finds_no_failure,
        }
        $crate::contract! { $(#[$attribute])* $site => leases:
            a_late_release_says_lost_and_leaves_the_next_holder_alone,
            a_late_release_says_lost_though_nobody_came,
            a_dropped_lost_lease_leaves_the_next_holder_alone,
            a_lease_knows_its_end_without_asking,
            a_renewed_lease_goes_on_and_is_released_as_ours,
            a_lost_lease_cannot_be_renewed,
            a_shorter_renewal_ends_the_lease_sooner_and_is_released_as_ours,
            an_owner_enters_its_lock_again_and_the_last_lease_releases_it,
            an_owner_enters_its_lock_again_past_those_who_wait_for_it,
            an_owner_that_enters_with_a_longer_ttl_has_it_and_a_lost_hold_is_not_entered,
            what_an_owner_cannot_do_is_refused,
        }
        $crate::contract! { $(#[$attribute])* $site => kept:
            a_kept_lease_outlives_its_ttl_and_is_released_as_ours,
            a_lease_is_kept_for_its_longest_time_at_risk_before_that_ends_and_lost_then,
            a_kept_lease_whose_record_goes_is_lost_before_its_end_with_the_reason,
            a_lease_is_not_kept_after_its_release_its_drop_or_its_token,
            a_lease_that_is_no_longer_kept_ends_at_its_end,
            closing_releases_what_is_kept,
            many_leases_are_kept_at_once,
        }
        $crate::contract! { $(#[$attribute])* $site => sets:
            of_several_locks_a_caller_gets_all_or_none,
            callers_of_overlapping_sets_do_not_block_each_other,
            the_locks_of_a_set_are_kept_while_others_are_waited_for,
            a_set_that_loses_a_lock_while_it_waits_is_given_back,
            sets_that_make_no_sense_are_refused_before_any_request,
            a_lock_with_a_minimum_hold_is_free_when_that_is_over_and_not_before,
            after_a_lease_that_expired_nobody_gets_the_lock_during_its_delay,
        }
        $crate::contract! { $(#[$attribute])* $site => calls:
            a_release_and_a_renewal_do_not_block_and_tell_their_results,
            closing_ends_the_calls_that_have_not_begun,
        }
        $crate::contract! { $(#[$attribute])* $site => elections:
            a_candidate_leads_when_nobody_does_and_the_next_one_when_it_resigns,
            the_work_of_a_leader_is_guarded_until_it_returns,
            a_cancelled_candidate_does_not_lead,
            a_candidate_tries_again_when_the_store_fails,
        }
        $crate::contract! { $(#[$attribute])* $site => waits:
            threads_that_wait_for_many_locks_read_them_together,
            acquire_waits_for_a_release_in_another_process,
            acquire_waits_for_a_release_in_this_process,
            a_wait_that_is_over_says_how_long_it_was_and_who_has_the_lock,
            a_wait_of_zero_asks_once,
            a_cancelled_wait_ends_and_holds_nothing,
            a_grant_that_comes_after_the_cancellation_is_given_back,
            closing_wakes_every_waiter,
            a_holder_that_vanished_is_followed_when_its_ttl_ends,
            threads_of_several_managers_never_overlap,
        }
        $crate::contract! { $(#[$attribute])* $site => pending:
            a_pending_acquires_a_free_lock_and_gives_its_result_once,
            a_pending_waits_for_a_release_in_another_process,
            pendings_and_threads_are_one_line_in_order_of_arrival,
            a_pending_whose_wait_is_over_says_so_and_a_wait_of_zero_asks_once,
            a_cancelled_pending_ends_at_once_and_holds_nothing,
            a_grant_that_comes_after_a_pending_was_cancelled_is_given_back,
            closing_ends_every_pending,
            a_lease_that_nobody_took_is_released,
            a_pending_keeps_its_lease_alive_if_asked,
            hundreds_of_pendings_exclude_each_other,
        }
    };
    ($(#[$attribute:meta])* $site:ident => $layer:ident: $($case:ident),+ $(,)?) => {
        $crate::contract! { @layer [$(#[$attribute])*] $site => $layer: $($case),+ }
    };
}

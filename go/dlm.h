/* dlm.h: distributed locks and leases, and locks for threads by id.
 * Made from src/capi by build.rs; do not edit.
 *
 * Handles (struct dlm_...) are opaque. Each is made by one function, owned by the caller, and freed by
 * the _free of its type, exactly once, in any order; every _free accepts NULL. No call consumes or keeps
 * a handle. A handle that was freed is told apart from a good one: calls with it fail with DLM_CLOSED,
 * and with what never was a handle of the type with DLM_INVALID_ARGUMENT. They do not crash.
 *
 * Threads: every function may be called from any thread, on the same handle too. Any thread may release
 * what another acquired. A handle may be freed while other threads are in calls with it: those go on, or
 * fail with DLM_CLOSED.
 *
 * Outputs come last and end in _out. They are written whatever happens: NULL, 0, false or -1 on failure,
 * so that all of them may be freed in any case. error_out may be NULL; it is set to an error that the
 * caller owns on failure, and to NULL on DLM_OK. No other pointer may be NULL unless its text says so:
 * a NULL fails with DLM_INVALID_ARGUMENT. All functions may fail with this, with DLM_FORKED and with
 * DLM_PANIC; what else they fail with is listed. Compilers warn where a status is ignored, see DLM_NODISCARD.
 *
 * Text is UTF-8, ends with NUL and is copied. Times are milliseconds. Functions that block say so.
 *
 * fork(): all handles belong to the process that made them. In a child made by fork() they answer
 * DLM_FORKED and touch nothing; freeing them there is allowed and does nothing. A child may make its own.
 *
 * The library starts threads only where it must, named dlm-...; it installs no signal handlers and no
 * exit handlers, and once loaded it stays loaded. A program that exits without releasing its leases
 * leaves them to end by themselves.
 *
 * Signals: no call raises SIGPIPE. The library's threads block all signals but those that a thread raises
 * itself (SIGSEGV and its like), so that the program's own threads, its sigwait() or signalfd(), receive
 * them. A call leaves the signal mask as it was.
 *
 * The kernel's DLM has a library of the same name (Debian: libdlm3, libdlm-dev). No function here is
 * named as one of its, and both headers can be included together. */
#ifndef DLM_H
#define DLM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Stands before every function that returns a status: compilers warn where it is ignored. A program that
/// defines it as nothing is not warned.
#ifndef DLM_NODISCARD
#if defined(__cplusplus) && __cplusplus >= 201703L
#define DLM_NODISCARD [[nodiscard]]
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L
#define DLM_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define DLM_NODISCARD __attribute__((warn_unused_result))
#else
#define DLM_NODISCARD
#endif
#endif

/// A literal text for two arguments or fields: its bytes and how many they are, without the NUL.
#define DLM_TEXT(literal) "" literal, sizeof(literal) - 1

#ifdef __cplusplus
extern "C" {
#endif

struct dlm_cancel;
struct dlm_error;
struct dlm_id_lock;
struct dlm_key_lock;
struct dlm_latch;
struct dlm_lease;
struct dlm_lock;
struct dlm_manager;
struct dlm_names;
struct dlm_options;
struct dlm_row;
struct dlm_row_cells;
struct dlm_table;
struct dlm_watch;

/* ---- Results ---- */

/// Result of every call that can fail. Numbers never change and new ones may come: keep a `default:`.
enum dlm_status {
    /// Done.
    DLM_OK = 0,
    /// Someone else holds it: now (a wait of 0), or until the wait was over. Nothing is held.
    DLM_LOCK_UNAVAILABLE = 1,
    /// The store was not reached. The request had no effect.
    DLM_CONNECTION_ERROR = 2,
    /// The store was reached and did not serve the request, also not on the bounded retries made.
    DLM_RETRIES_EXHAUSTED = 3,
    /// The table is missing or could not be created.
    DLM_TABLE_CREATION_ERROR = 4,
    /// The store or the library did something that neither should: see the message.
    DLM_INTERNAL_ERROR = 5,
    /// A cancel object ended the wait. Nothing is held.
    DLM_CANCELLED = 6,
    /// The request may or may not have been applied. What it may have taken is freed in the background.
    DLM_IN_DOUBT = 7,
    /// The lease ran out, or another holds the lock by now: stop touching what it protected.
    DLM_LEASE_LOST = 8,
    /// The latch does not exist, or has expired.
    DLM_NOT_FOUND = 9,
    /// What was to be created exists.
    DLM_ALREADY_EXISTS = 10,
    /// An argument was refused, before any I/O: NULL, bad UTF-8, a number or text that is not allowed.
    DLM_INVALID_ARGUMENT = 11,
    /// The manager was closed, or the handle was freed.
    DLM_CLOSED = 12,
    /// The process was forked after the handle was made: make new ones in the child.
    DLM_FORKED = 13,
    /// A bug in the library. The handles stay usable.
    DLM_PANIC = 14,
    /// The receiver of a guarded write has seen a higher fence of the same lock: the caller's lease is over.
    /// The write was refused and had no effect. See dlm_error_fences().
    DLM_STALE_FENCE = 15,
};

/// Why a call failed. Made where a call is given an `error_out`, and independent of everything else.
struct dlm_error;

/// Name of a status, such as "LOCK_UNAVAILABLE"; "UNKNOWN" for numbers this library does not know.
/// Static text. Never blocks.
const char *dlm_status_name(int32_t status);

/// The status of the call that failed. DLM_INVALID_ARGUMENT for NULL. Never blocks.
DLM_NODISCARD
enum dlm_status dlm_error_status(const struct dlm_error *error);

/// What was wrong, with which value, and what to do: one line for people. Never NULL; lives as long as
/// `error`. It may hold names of locks, hosts and tables, never passwords. Never blocks.
const char *dlm_error_message(const struct dlm_error *error);

/// Whether the same call may succeed later without anyone changing anything: the lock may become free,
/// the store may come back. False for NULL. Never blocks.
bool dlm_error_is_retryable(const struct dlm_error *error);

/// The two numbers of a DLM_STALE_FENCE: that of the refused write, and the higher one that the receiver had
/// seen. Either pointer may be NULL. False, and both are 0, for NULL and for every other error. Never blocks.
bool dlm_error_fences(const struct dlm_error *error, uint64_t *fence_out, uint64_t *stored_out);

/// Frees an error. NULL is allowed.
void dlm_error_free(struct dlm_error *error);

/// Remaining lease time of the current holder, in milliseconds, rounded up: when it is worth asking again. The
/// holder may renew or release it. A hint, as it compares clocks of two machines. -1 where the store does not
/// say, for errors other than DLM_LOCK_UNAVAILABLE, and for NULL. Never blocks.
int64_t dlm_error_holder_left_ms(const struct dlm_error *error);

/* ---- Versions ---- */

/// Version of this header.
#define DLM_VERSION_MAJOR 0
#define DLM_VERSION_MINOR 1
#define DLM_VERSION_PATCH 0
#define DLM_VERSION "0.1.0"

/// Number of this header's binary interface. It grows with every change that programs built before do
/// not survive, and not with additions.
#define DLM_ABI 0

/// Version of the library that is loaded, such as "0.1.0"; DLM_VERSION is that of this header. Static
/// text. Never blocks.
const char *dlm_version(void);

/// Whether the library that is loaded serves programs built with this header: pass DLM_ABI. The name of
/// the shared library changes with the number too; this is for programs that open it themselves. Never
/// blocks.
///
/// DLM_INVALID_ARGUMENT when it does not, saying which versions met
DLM_NODISCARD
enum dlm_status dlm_abi_check(uint32_t abi, struct dlm_error **error_out);

/// How many handles of all types were made and not freed yet: 0 at the end of a program that leaks none.
/// Errors count too. Never blocks for long.
uint64_t dlm_handles_open(void);

/* ---- Options ---- */

/// Settings for dlm_manager_open(), by key: those that a store's URI takes.
struct dlm_options;

/// Options without any. NULL only when there are millions of them.
struct dlm_options *dlm_options_new(void);

/// Sets `key` to `value`; both are copied. A later value replaces an earlier one.
///
/// | key | default | |
/// |---|---|---|
/// | client | none | required: the service that uses the locks, part of every name |
/// | farm | none | the data centre, part of the names of level DC; latches need it |
/// | ttl | 90s | how long a lease lasts unless it is renewed |
/// | wait | 90s | how long an acquire waits |
/// | retry | 1s | how soon a waiting process looks again, give or take a tenth |
/// | timeout | 10s | how long one call to the store may take |
/// | clock_margin | 100000ppm | how much earlier than in the store a lease ends in this process: a tenth of its TTL |
/// | names | strict | compat allows # and control characters in client and farm ids |
/// | purpose | none | shown to those who find a lock held |
/// | strict | false | true diagnoses the store when it is opened and refuses one that fails; see dlm doctor |
/// | latch_ttl | 1d | how long a latch lives after its last change |
/// | poll | 5s | how often an awaited latch is looked at, at the least |
/// | background_threads | 2 | background threads: they look at latches and free locks in doubt |
///
/// Times are whole numbers with a unit: ms, s, m, h or d. HBase and Aerospike have more keys: see
/// docs/hbase.md and docs/aerospike.md.
/// Keys and values are looked at by dlm_manager_open(), which refuses those it does not know.
/// May be called from several threads. Never blocks.
///
/// DLM_INVALID_ARGUMENT
DLM_NODISCARD
enum dlm_status dlm_options_set(struct dlm_options *options,
                                const char *key,
                                const char *value,
                                struct dlm_error **error_out);

/// Frees options. NULL is allowed. Managers opened with them do not need them.
void dlm_options_free(struct dlm_options *options);

/* ---- Managers ---- */

/// Level of a lock whose name includes the farm id: each data centre has its own.
#define DLM_LEVEL_DC 1

/// Level of a lock whose name does not include the farm id: one for all data centres.
#define DLM_LEVEL_XDC 2

/// One store and the locks taken in it for one client id. Make one and share it.
struct dlm_manager;

/// Numbers about a manager, right now. Later versions append to it.
struct dlm_stats {
    /// Leases acquired here and not released, lost or ended by close. Those whose time is over count until
    /// that is noticed by a call.
    uint64_t leases_held;
    /// Threads of this process that wait for a lock.
    uint64_t threads_waiting;
};

/// Opens the store at `uri`: "memory:", "embedded:", "embedded:/path",
/// "hbase://master1:16000,master2:16000/table", "hbase+thrift://host:9090/table" or
/// "aerospike://host1:3000,host2/namespace/setSuffix", with options as "?key=value&key=value". `options`
/// may be NULL, and wins over the URI where both have a key.
///
/// "embedded:" is the directory /var/tmp/dlm-<effective uid>, whatever the environment says, and it is
/// refused in a systemd unit with PrivateTmp=. "embedded:/path?group=on" serves the users of the directory's group: a
/// member can end the other members' processes by SIGBUS, so they must trust each other.
///
/// Creates nothing in the store, see dlm_manager_initialize(). Blocks while an embedded store is opened,
/// for milliseconds; HBase and Aerospike are first asked by the first call that needs them. On DLM_OK the
/// caller owns `*manager_out`.
///
/// The option strict=true diagnoses the store here, and refuses one that fails. That blocks for several of
/// the store's time-outs (the option timeout) at worst, and takes, renews and releases one lock.
///
/// DLM_INVALID_ARGUMENT before any I/O, for unknown keys too; DLM_CONNECTION_ERROR, DLM_INTERNAL_ERROR;
/// DLM_RETRIES_EXHAUSTED with strict=true when the store is not safe for locks
DLM_NODISCARD
enum dlm_status dlm_manager_open(const char *uri,
                                 const struct dlm_options *options,
                                 struct dlm_manager **manager_out,
                                 struct dlm_error **error_out);

/// Creates what is missing in the store (the table) and checks that the store answers. Safe to repeat,
/// and to run in many processes at once. Blocks, for up to a minute where a table is made.
///
/// DLM_TABLE_CREATION_ERROR, DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_CLOSED
DLM_NODISCARD
enum dlm_status dlm_manager_initialize(const struct dlm_manager *manager, struct dlm_error **error_out);

/// Makes the lock `id`. Does no I/O and takes nothing: see dlm_lock_acquire(). `level` is DLM_LEVEL_DC or
/// DLM_LEVEL_XDC. Never blocks. On DLM_OK the caller owns `*lock_out`.
///
/// DLM_INVALID_ARGUMENT when the id is empty or longer than 1024 bytes, or for level DC without a farm
DLM_NODISCARD
enum dlm_status dlm_manager_lock(const struct dlm_manager *manager,
                                 const char *id,
                                 int32_t level,
                                 struct dlm_lock **lock_out,
                                 struct dlm_error **error_out);

/// Writes numbers about the manager to `*stats_out`. `size` is sizeof(struct dlm_stats): fields that the
/// library does not know are set to 0. All fields are 0 on failure. Never blocks for long.
///
/// DLM_INVALID_ARGUMENT
DLM_NODISCARD
enum dlm_status dlm_manager_stats(const struct dlm_manager *manager,
                                  struct dlm_stats *stats_out,
                                  size_t size,
                                  struct dlm_error **error_out);

/// Ends the manager: waiting threads return DLM_CLOSED, held leases are released, the library's threads
/// are joined. Its locks and leases answer DLM_CLOSED or DLM_LEASE_LOST from now on; all handles must
/// still be freed. Closing twice does nothing.
///
/// Blocks for up to one store time-out for the releases, another where a renewal is under way, and a few
/// seconds for the threads. On failure: the first release that failed; that lock is free when its TTL
/// ends, and the others were tried all the same.
///
/// DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT
DLM_NODISCARD
enum dlm_status dlm_manager_close(const struct dlm_manager *manager, struct dlm_error **error_out);

/// Frees a manager. NULL is allowed. Its locks and leases go on working until they are freed, so close it
/// first to end them. Blocks for a few seconds at the most, and only for the last of them.
void dlm_manager_free(struct dlm_manager *manager);

/// A setting of the manager in milliseconds, whether it was given or is the default: "ttl", "wait",
/// "retry" or "timeout", as for dlm_options_set(). A wait without an end is DLM_FOREVER. Never blocks.
///
/// DLM_INVALID_ARGUMENT for other keys
DLM_NODISCARD
enum dlm_status dlm_manager_setting_ms(const struct dlm_manager *manager,
                                       const char *key,
                                       int64_t *ms_out,
                                       struct dlm_error **error_out);

/* ---- Locks ---- */

/// In place of a TTL or a wait: the manager's setting.
#define DLM_DEFAULT -2

/// In place of a wait: without an end.
#define DLM_FOREVER -1

/// A name that can be locked, any number of times and from any number of threads. Not reentrant.
struct dlm_lock;

/// Tries once. The lease lasts `ttl_ms` unless renewed, 1 ms to 365 days (DLM_DEFAULT: the manager's, 90 s
/// unless set).
/// Blocks for the store's answer only, and does not stand in line behind waiting threads. On DLM_OK the
/// caller owns `*lease_out`.
///
/// DLM_LOCK_UNAVAILABLE when somebody holds the lock; DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED,
/// DLM_TABLE_CREATION_ERROR, DLM_INTERNAL_ERROR when the store does not serve; DLM_IN_DOUBT when it could
/// not be learned whether the lock was granted; DLM_CLOSED; DLM_INVALID_ARGUMENT
DLM_NODISCARD
enum dlm_status dlm_lock_try_acquire(const struct dlm_lock *lock,
                                     int64_t ttl_ms,
                                     struct dlm_lease **lease_out,
                                     struct dlm_error **error_out);

/// Waits for the lock with the manager's TTL and wait, 90 s each unless set. `cancel` may be NULL.
///
/// Blocks until the lock is held, the wait is over or something fails; a request to the store that is
/// under way when the wait ends is waited for. Threads of one manager are served in the order in which
/// they came. On DLM_OK the caller owns `*lease_out`.
///
/// DLM_LOCK_UNAVAILABLE when the wait was over first; DLM_CANCELLED; and those of dlm_lock_try_acquire(),
/// which end the wait at once
DLM_NODISCARD
enum dlm_status dlm_lock_acquire(const struct dlm_lock *lock,
                                 const struct dlm_cancel *cancel,
                                 struct dlm_lease **lease_out,
                                 struct dlm_error **error_out);

/// As dlm_lock_acquire(), with this TTL and for this long: `wait_ms` 0 tries once, DLM_FOREVER waits for
/// ever. DLM_DEFAULT stands for the manager's setting in both.
DLM_NODISCARD
enum dlm_status dlm_lock_acquire_within(const struct dlm_lock *lock,
                                        int64_t ttl_ms,
                                        int64_t wait_ms,
                                        const struct dlm_cancel *cancel,
                                        struct dlm_lease **lease_out,
                                        struct dlm_error **error_out);

/// Frees a lock. NULL is allowed. Leases acquired through it, and threads that wait in it, go on.
void dlm_lock_free(struct dlm_lock *lock);

/// Reads whether somebody holds the lock, and takes nothing: a read costs a store less than a try that is
/// refused. DLM_OK: it was free. Blocks for the store's answer.
///
/// DLM_LOCK_UNAVAILABLE when it is held, see dlm_error_holder_left_ms(); DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED, DLM_TABLE_CREATION_ERROR, DLM_INTERNAL_ERROR when the store does not serve;
/// DLM_CLOSED
DLM_NODISCARD
enum dlm_status dlm_lock_look(const struct dlm_lock *lock, struct dlm_error **error_out);

/* ---- Leases ---- */

/// A held lock. It ends by itself after its TTL, counted from before it was asked for, unless renewed;
/// then somebody else may hold the lock.
struct dlm_lease;

/// Whether the lease lasts still, by this machine's clock: ask before each step that needs the lock. No
/// I/O, some tens of nanoseconds. It cannot know that this thread will be paused right after; that is what
/// the fence is for.
///
/// DLM_LEASE_LOST when the time is over, or the lease was released or found lost
DLM_NODISCARD
enum dlm_status dlm_lease_check(const struct dlm_lease *lease, struct dlm_error **error_out);

/// The number to send along with every write that the lock guards: it grows with every grant, so that a
/// receiver can refuse numbers lower than it has seen. 0 where fencing is switched off, and for NULL.
/// Never blocks.
uint64_t dlm_lease_fence(const struct dlm_lease *lease);

/// Milliseconds that the lease has left, rounded down; 0 when it is over, and for NULL. Never blocks.
int64_t dlm_lease_remaining_ms(const struct dlm_lease *lease);

/// A descriptor for poll() and the like, readable as soon as dlm_lease_check() would fail: the time is
/// over, or the lease was released or found lost. A renewal puts it off.
///
/// It belongs to the lease, is the same in each call, and is closed by dlm_lease_free(): take it out of
/// the event loop before. Poll it; do not read or close it. The first call waits for a renewal or release
/// under way. `*fd_out` is -1 on failure.
///
/// DLM_INTERNAL_ERROR when the process has no descriptor left
DLM_NODISCARD
enum dlm_status dlm_lease_lost_fd(const struct dlm_lease *lease,
                                  int32_t *fd_out,
                                  struct dlm_error **error_out);

/// Lets the lease end `ttl_ms` from now (DLM_DEFAULT: for as long as it was last granted). Blocks for one
/// call to the store, for no longer than the lease has left. After a shorter TTL than before the lock stays
/// taken for the longer time, unless it is released.
///
/// DLM_LEASE_LOST when it had run out or another holds the lock: it is over. After any other failure the
/// lease ends when it would have: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT, DLM_CLOSED,
/// DLM_INVALID_ARGUMENT
DLM_NODISCARD
enum dlm_status dlm_lease_renew(const struct dlm_lease *lease, int64_t ttl_ms, struct dlm_error **error_out);

/// Gives the lock up. The handle must still be freed. Blocks for one call to the store, and never touches
/// another holder's record. `freed_out` may be NULL: true when the lock was ours and is free now; false
/// when it had been released before, and the store was not asked.
///
/// DLM_LEASE_LOST when it had run out or another holds the lock by now. Any other failure leaves open
/// whether the lock is free: call again, or free the handle, which goes on trying in the background:
/// DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT
DLM_NODISCARD
enum dlm_status dlm_lease_release(const struct dlm_lease *lease,
                                  bool *freed_out,
                                  struct dlm_error **error_out);

/// Frees a lease. NULL is allowed. One that is not released yet is released first: that takes two seconds
/// at the most, and goes on in the background if it fails.
void dlm_lease_free(struct dlm_lease *lease);

/* ---- Latches ---- */

/// Kind of a latch that goes down only: it opens once, when all have come.
#define DLM_LATCH_COUNT_DOWN 1

/// Kind of a latch that goes up and down: it opens whenever nobody is left.
#define DLM_LATCH_COUNT_UP_DOWN 2

/// A count in the store that all processes see, and waiting until it is down to zero. It is never
/// deleted: it is gone its TTL after its last change, and then every call answers DLM_NOT_FOUND.
struct dlm_latch;

/// A list of names.
struct dlm_names;

/// A latch that is watched for an event loop.
struct dlm_watch;

/// The latch `id`. Does no I/O and makes nothing in the store: see dlm_latch_create(). All who use it must
/// agree on `level` (DLM_LEVEL_DC: the count of one's own farm; DLM_LEVEL_XDC: the sum over all farms),
/// `kind` (DLM_LATCH_COUNT_DOWN or DLM_LATCH_COUNT_UP_DOWN) and `ttl_ms`, the time that it lives after each
/// change (DLM_DEFAULT: the option latch_ttl, one day unless set). Never blocks. On DLM_OK the caller owns
/// `*latch_out`.
///
/// DLM_INVALID_ARGUMENT also where the manager has no farm; DLM_CLOSED
DLM_NODISCARD
enum dlm_status dlm_manager_latch(const struct dlm_manager *manager,
                                  const char *id,
                                  int32_t level,
                                  int32_t kind,
                                  int64_t ttl_ms,
                                  struct dlm_latch **latch_out,
                                  struct dlm_error **error_out);

/// Makes the latch in the store: from now on it must be counted down `count` times, 0 to 2147483647. For
/// level XDC this makes the count of one's own farm. Blocks for one call to the store.
///
/// DLM_ALREADY_EXISTS, and the count is what it was; DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED,
/// DLM_TABLE_CREATION_ERROR, DLM_INTERNAL_ERROR when the store does not serve; DLM_IN_DOUBT; DLM_CLOSED;
/// DLM_INVALID_ARGUMENT
DLM_NODISCARD
enum dlm_status dlm_latch_create(const struct dlm_latch *latch, int64_t count, struct dlm_error **error_out);

/// Makes the latch for `count` participants with names: each counts once, see dlm_latch_count_down_as().
/// Blocks and fails as dlm_latch_create(), DLM_INVALID_ARGUMENT also for a name that is not 1 to 255 bytes
/// or is given twice, and where the store cannot keep names.
DLM_NODISCARD
enum dlm_status dlm_latch_create_for(const struct dlm_latch *latch,
                                     const char *const *participants,
                                     size_t count,
                                     struct dlm_error **error_out);

/// Makes the latch unless it exists. `created_out` may be NULL: whether this call made it. Blocks and fails
/// as dlm_latch_create(), without DLM_ALREADY_EXISTS.
DLM_NODISCARD
enum dlm_status dlm_latch_get_or_create(const struct dlm_latch *latch,
                                        int64_t count,
                                        bool *created_out,
                                        struct dlm_error **error_out);

/// How many count-downs are missing right now; below zero when more came than were expected. Blocks for
/// one read of the store.
///
/// DLM_NOT_FOUND; DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_INTERNAL_ERROR; DLM_CLOSED
DLM_NODISCARD
enum dlm_status dlm_latch_count(const struct dlm_latch *latch,
                                int64_t *count_out,
                                struct dlm_error **error_out);

/// Counts one's own farm's count down by one, exactly once, however many replies are lost on the way.
/// Blocks for one call to the store.
///
/// DLM_NOT_FOUND where that count was not made or has expired; DLM_IN_DOUBT when it could not be learned
/// whether it counted: calling again may count twice (dlm_latch_count_down_as() never does); those of
/// dlm_latch_create()
DLM_NODISCARD
enum dlm_status dlm_latch_count_down(const struct dlm_latch *latch, struct dlm_error **error_out);

/// Counts up by one, for latches of kind DLM_LATCH_COUNT_UP_DOWN. Blocks and fails as
/// dlm_latch_count_down(), DLM_INVALID_ARGUMENT for the other kind.
DLM_NODISCARD
enum dlm_status dlm_latch_count_up(const struct dlm_latch *latch, struct dlm_error **error_out);

/// Counts down in the name of a participant, at most once per name. `counted_out` may
/// be NULL: true when it counted now, false when that name had counted before. After DLM_IN_DOUBT it is
/// safe to call again. Blocks and fails as dlm_latch_count_down().
DLM_NODISCARD
enum dlm_status dlm_latch_count_down_as(const struct dlm_latch *latch,
                                        const char *participant,
                                        bool *counted_out,
                                        struct dlm_error **error_out);

/// The names that are expected in this farm and have not counted down. Blocks for one read of the store.
/// On DLM_OK the caller owns `*names_out`. Fails as dlm_latch_count().
DLM_NODISCARD
enum dlm_status dlm_latch_pending(const struct dlm_latch *latch,
                                  struct dlm_names **names_out,
                                  struct dlm_error **error_out);

/// Waits until the latch is open, for up to `wait_ms`: 0 looks once, DLM_FOREVER never gives up. `cancel`
/// may be NULL. `*open_out` is false when the time was over first.
///
/// Blocks; while the store does not serve, the wait goes on. A count-down elsewhere is seen within the
/// option poll, 5 s unless set, and mostly much sooner.
///
/// DLM_NOT_FOUND, also when the latch is gone before it opened; what somebody has to mend first:
/// DLM_TABLE_CREATION_ERROR when the table is disabled or is not one for latches, DLM_INTERNAL_ERROR when the
/// store denies access or holds something that is no count; DLM_CANCELLED; DLM_CLOSED; when the time is
/// over and the store did not serve the last look, what that failed with
DLM_NODISCARD
enum dlm_status dlm_latch_await_open(const struct dlm_latch *latch,
                                     int64_t wait_ms,
                                     const struct dlm_cancel *cancel,
                                     bool *open_out,
                                     struct dlm_error **error_out);

/// Watches the latch without a thread of the caller: see dlm_watch_fd(). However many
/// latches are watched, a manager's few threads look at them, and each latch once for all who watch it.
/// Never blocks. On DLM_OK the caller owns `*watch_out`.
///
/// DLM_CLOSED; DLM_INTERNAL_ERROR when the system has no thread for it
DLM_NODISCARD
enum dlm_status dlm_latch_watch(const struct dlm_latch *latch,
                                struct dlm_watch **watch_out,
                                struct dlm_error **error_out);

/// Frees a latch, not what is in the store. NULL is allowed. Threads that wait for it go on.
void dlm_latch_free(struct dlm_latch *latch);

/// A descriptor for poll() and the like, readable as soon as dlm_watch_is_open() has something else to
/// say than "not yet". It belongs to the watch, as that of dlm_lease_lost_fd() to its lease.
///
/// DLM_INTERNAL_ERROR when the process has no descriptor left
DLM_NODISCARD
enum dlm_status dlm_watch_fd(const struct dlm_watch *watch, int32_t *fd_out, struct dlm_error **error_out);

/// Whether the latch was seen open. Once true it stays so, also if a latch that counts up and down has
/// closed again. No I/O; never blocks.
///
/// DLM_NOT_FOUND when the latch was never made or is gone, DLM_CLOSED, and what else ends a wait for it
DLM_NODISCARD
enum dlm_status dlm_watch_is_open(const struct dlm_watch *watch,
                                  bool *open_out,
                                  struct dlm_error **error_out);

/// Ends a watch and frees it. NULL is allowed. Never blocks.
void dlm_watch_free(struct dlm_watch *watch);

/// Creates what latches need in the store (a table). Making a latch does it where it is missing; this is
/// for those who would not have the first latch wait for that. Blocks and fails as
/// dlm_manager_initialize(), DLM_INVALID_ARGUMENT where the store keeps locks only.
DLM_NODISCARD
enum dlm_status dlm_manager_initialize_latches(const struct dlm_manager *manager,
                                               struct dlm_error **error_out);

/// How many names there are; 0 for NULL. Never blocks.
size_t dlm_names_count(const struct dlm_names *names);

/// The name at `index`, from 0; "" beyond the last. They are sorted. Lives as long as `names`. Never NULL.
/// Never blocks.
const char *dlm_names_at(const struct dlm_names *names, size_t index);

/// Frees a list of names. NULL is allowed.
void dlm_names_free(struct dlm_names *names);

/* ---- Rows of applications' tables in HBase ---- */

/// A change that writes a cell, as dlm_cell has it.
#define DLM_CHANGE_PUT 1

/// A change that adds to an 8-byte counter, as dlm_row_increment() does.
#define DLM_CHANGE_ADD 2

/// A change that deletes a column with all its versions. It must be one of those that were read. Where it was not
/// there, it is left alone.
#define DLM_CHANGE_DELETE 3

/// One row: a key and how its changes are made. A row from dlm_lease_row() carries the fence of the lease with
/// each change, and HBase refuses the change once a later holder of the lock was here. One from
/// dlm_row_exactly_once() can send a change again whose reply was lost.
///
/// Calls that ask HBase block, for the table's option timeout at the most. They fail with
/// * DLM_INVALID_ARGUMENT before any I/O: a column, value or TTL that is not allowed;
/// * DLM_TABLE_CREATION_ERROR: no such table, it is disabled, or it lacks the family;
/// * DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_INTERNAL_ERROR, DLM_CLOSED: it did not happen;
/// * DLM_IN_DOUBT, where they change something: it may have happened, or may yet happen. Rows from
///   dlm_row_exactly_once() answer so only when all of the timeout was not enough to find out, or a
///   server answered with an error that says neither;
/// * DLM_STALE_FENCE, where they change a row from dlm_lease_row(): a later holder was here. It did not happen.
struct dlm_row;

/// Cells of a row as they were read, all at one moment. They never change.
struct dlm_row_cells;

/// A table of an application's own in HBase, for rows that are made and changed safely without row locks. Open
/// one and share it.
struct dlm_table;

/// A column family of a table to be made.
struct dlm_family {
    /// Its name.
    const char *name;
    /// So many versions of each cell are kept: 1 unless old ones are to be read.
    uint32_t versions;
};

/// Some bytes of the caller's: a key, or a column. The call copies them.
struct dlm_bytes {
    /// Not NULL, also where there are none.
    const void *bytes;
    /// How many there are. A text's NUL is none of them: see DLM_TEXT.
    size_t size;
};

/// A cell to be written. The call copies what it points to. A column is the family, a colon and the qualifier, which
/// may be any bytes. With DLM_TEXT: {DLM_TEXT("d:state"), DLM_TEXT("new"), DLM_FOREVER}.
struct dlm_cell {
    /// The column, as family:qualifier.
    const void *column;
    /// Bytes of the column.
    size_t column_size;
    /// Not NULL, also for an empty value.
    const void *value;
    /// Bytes of the value: up to the table's option max_value.
    size_t value_size;
    /// DLM_FOREVER, or after how many milliseconds the server drops the cell, 1 or more. It must not be shorter
    /// than what an older version of the cell still has: HBase would then show that one again.
    int64_t ttl_ms;
};

/// One of the changes that dlm_row_commit_if_unchanged() makes. What its kind does not use is NULL and 0.
struct dlm_change {
    /// DLM_CHANGE_PUT, DLM_CHANGE_ADD or DLM_CHANGE_DELETE.
    int32_t kind;
    /// The column, as family:qualifier. No column may come twice.
    const void *column;
    /// Bytes of the column.
    size_t column_size;
    /// PUT: as in dlm_cell.
    const void *value;
    /// PUT: bytes of the value.
    size_t value_size;
    /// PUT: as in dlm_cell.
    int64_t ttl_ms;
    /// ADD: what is added.
    int64_t by;
};

/// A cell that was read. What it points to lives as long as the dlm_row_cells, and does not end with NUL.
struct dlm_row_cell {
    /// The column, as family:qualifier.
    const void *column;
    /// Bytes of the column.
    size_t column_size;
    /// NULL only where there is no cell. A cell may be empty.
    const void *value;
    /// Bytes of the value.
    size_t value_size;
    /// When the server stamped the cell, in milliseconds since 1970 by its clock.
    uint64_t written_ms;
};

/// Opens the table at `uri`: "hbase://master1:16000,master2:16000/table", with options as "?key=value&key=value":
///
/// | key | default | |
/// |---|---|---|
/// | family | none | the family in which fenced rows keep their fences |
/// | anchor | none | the column that says whether a row exists, as family:qualifier |
/// | timeout | 10s | how long one call may take |
/// | max_value | 4194304 | bytes in one value at the most, 1 to 10000000 |
/// | attempts | 100 | tries of one modify at the most, 1 to 10000 |
/// | fence_ttl | 30d | how long a fence stays after it was raised, 1m or more |
/// | fence_column | _fence | the qualifier of the fence |
/// | fence_of_column | _fence_of | the qualifier of the name of the fence's lock |
/// | connect_timeout | 3s | 10ms to 10m |
/// | user | $USER | the name that the servers log |
/// | tls | off | on, off |
/// | tls_ca | none | PEM file: who signs the servers' certificates |
/// | tls_cert | none | PEM file: our certificate |
/// | tls_key | none | PEM file: its key |
///
/// Never blocks: HBase is first asked by the first call that needs it. On DLM_OK the caller owns `*table_out`.
///
/// DLM_INVALID_ARGUMENT, for unknown keys too, and always where the library was built without HBase
DLM_NODISCARD
enum dlm_status dlm_table_open(const char *uri,
                               struct dlm_table **table_out,
                               struct dlm_error **error_out);

/// Creates the table with these families, split at these keys, unless it exists, and waits until it serves. Safe
/// to repeat, and to run in many processes at once. `splits` may be NULL when `split_count` is 0. Blocks for up
/// to a minute.
///
/// DLM_TABLE_CREATION_ERROR with the cause, also where it exists and lacks one of the families;
/// DLM_CONNECTION_ERROR; DLM_RETRIES_EXHAUSTED; DLM_CLOSED
DLM_NODISCARD
enum dlm_status dlm_table_create_if_missing(const struct dlm_table *table,
                                            const struct dlm_family *families,
                                            size_t family_count,
                                            const struct dlm_bytes *splits,
                                            size_t split_count,
                                            struct dlm_error **error_out);

/// A row of the table, whose key is the `key_size` bytes at `key`, 1 to 32000. Does no I/O and makes nothing in
/// HBase: see dlm_row_create(). Never blocks. On DLM_OK the caller owns `*row_out`, which may outlive `table`.
///
/// DLM_CLOSED
DLM_NODISCARD
enum dlm_status dlm_table_row(const struct dlm_table *table,
                              const void *key,
                              size_t key_size,
                              struct dlm_row **row_out,
                              struct dlm_error **error_out);

/// A setting of the table, whether it was given or is the default: "timeout" in milliseconds, "max_value" in
/// bytes, or "attempts". Never blocks.
///
/// DLM_INVALID_ARGUMENT for other keys; DLM_CLOSED
DLM_NODISCARD
enum dlm_status dlm_table_setting(const struct dlm_table *table,
                                  const char *key,
                                  int64_t *number_out,
                                  struct dlm_error **error_out);

/// Frees a table. NULL is allowed. Its rows go on working; the last of them closes the connections.
void dlm_table_free(struct dlm_table *table);

/// A row whose every change carries the fence of `lease`. The table needs its option family. The row may outlive
/// the lease: a change after the lease is over goes through until a later holder of the lock was here, and never
/// after that. Does no I/O; never blocks. On DLM_OK the caller owns `*row_out`.
///
/// DLM_INVALID_ARGUMENT for a key that is not allowed, a table without the option family, and a lease of a store
/// whose option fence is off; DLM_CLOSED
DLM_NODISCARD
enum dlm_status dlm_lease_row(const struct dlm_lease *lease,
                              const struct dlm_table *table,
                              const void *key,
                              size_t key_size,
                              struct dlm_row **row_out,
                              struct dlm_error **error_out);

/// The same row, whose changes are made exactly once: each writes a mark in the same atomic step, and a change
/// whose reply was lost is sent again until it is answered, for the table's option timeout. A mark is a cell of
/// some 100 bytes in the row, which goes after a minute (two hours where a request is lost for good). Never
/// blocks. On DLM_OK the caller owns `*row_out`, and `row` still.
///
/// DLM_CLOSED
DLM_NODISCARD
enum dlm_status dlm_row_exactly_once(const struct dlm_row *row,
                                     struct dlm_row **row_out,
                                     struct dlm_error **error_out);

/// Reads the whole row, but for the library's own columns. There are no cells where there is no such row. On DLM_OK
/// the caller owns `*cells_out`. Blocks and fails as all calls of dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_get(const struct dlm_row *row,
                            struct dlm_row_cells **cells_out,
                            struct dlm_error **error_out);

/// Reads these columns, one or more, each given as family:qualifier. On DLM_OK the caller owns `*cells_out`, which
/// can be given to dlm_row_commit_if_unchanged(). Blocks and fails as all calls of dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_get_columns(const struct dlm_row *row,
                                    const struct dlm_bytes *columns,
                                    size_t count,
                                    struct dlm_row_cells **cells_out,
                                    struct dlm_error **error_out);

/// Makes the row unless it is there: of all who try at once, one has `*created_out` true. A row is there when its
/// anchor has a value that is not empty. The anchor is the column that the table's option anchor names, or else the
/// first of `cells`. It must be among them, and its value not empty. Blocks and fails as all calls of dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_create(const struct dlm_row *row,
                               const struct dlm_cell *cells,
                               size_t count,
                               bool *created_out,
                               struct dlm_error **error_out);

/// Writes the cells if the row is there; `*updated_out` is false where it is not, and nothing was written. See
/// dlm_row_create() for what that means; without the option anchor, the first of `cells` must be a column that the
/// row has. Blocks and fails as all calls of dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_update(const struct dlm_row *row,
                               const struct dlm_cell *cells,
                               size_t count,
                               bool *updated_out,
                               struct dlm_error **error_out);

/// Writes the cells in one atomic step, whether the row is there or not. Blocks and fails as all calls of dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_put(const struct dlm_row *row,
                            const struct dlm_cell *cells,
                            size_t count,
                            struct dlm_error **error_out);

/// Writes `new_value` into a column if it holds `expected`; `*set_out` tells whether it did. Either may be NULL with
/// size 0, which is the absence of the cell and not an empty value: with NULL for `new_value` the cell is deleted.
/// Blocks and fails as all calls of dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_compare_and_set(const struct dlm_row *row,
                                        const void *column,
                                        size_t column_size,
                                        const void *expected,
                                        size_t expected_size,
                                        const void *new_value,
                                        size_t new_size,
                                        bool *set_out,
                                        struct dlm_error **error_out);

/// Adds `by` to an 8-byte big-endian counter, which begins at 0, and writes the sum to `*sum_out`. It wraps around
/// at the ends of int64_t. `*known_out` is false only on DLM_OK for rows from dlm_row_exactly_once(): it was added
/// once, and the reply with the sum was lost; `*sum_out` is then 0. Blocks and fails as all calls of dlm_row,
/// DLM_INVALID_ARGUMENT also where the cell is not 8 bytes long.
DLM_NODISCARD
enum dlm_status dlm_row_increment(const struct dlm_row *row,
                                  const void *column,
                                  size_t column_size,
                                  int64_t by,
                                  int64_t *sum_out,
                                  bool *known_out,
                                  struct dlm_error **error_out);

/// Deletes the cells of the row if `column` holds `expected`; `*deleted_out` tells whether it did. Cells that others
/// write meanwhile stay, and so do the library's own. Blocks and fails as all calls of dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_delete_if(const struct dlm_row *row,
                                  const void *column,
                                  size_t column_size,
                                  const void *expected,
                                  size_t expected_size,
                                  bool *deleted_out,
                                  struct dlm_error **error_out);

/// Makes the changes in one atomic step if all the columns that were asked for in the dlm_row_get_columns() which
/// answered `as_read` are what it has read, also those that were not there. `*committed_out` is false where one was
/// changed: nothing was written, read again and compute again, for a bounded number of times and with a random pause
/// in between. It is true, too, where there is nothing to do: the changes delete what is not there. What is changed
/// may be in these columns or in others. A column that was changed and changed back counts as unchanged.
///
/// Blocks and fails as all calls of dlm_row, DLM_INVALID_ARGUMENT also for cells from dlm_row_get(), which do not
/// tell what the changes depend on, and for those of another row.
DLM_NODISCARD
enum dlm_status dlm_row_commit_if_unchanged(const struct dlm_row *row,
                                            const struct dlm_row_cells *as_read,
                                            const struct dlm_change *changes,
                                            size_t count,
                                            bool *committed_out,
                                            struct dlm_error **error_out);

/// Writes the lease's fence into a row from dlm_lease_row() without changing anything else: from then on earlier
/// holders are refused. Every change of such a row does that as well; call this where the first change comes late.
/// Blocks and fails as all calls of dlm_row, DLM_INVALID_ARGUMENT also for other rows. After DLM_IN_DOUBT it is safe
/// to call again.
DLM_NODISCARD
enum dlm_status dlm_row_raise_fence(const struct dlm_row *row,
                                    struct dlm_error **error_out);

/// Reads the highest fence that was in the row; `*fence_out` is 0 where there is none. `names_out` may be NULL; on
/// DLM_OK the caller owns `*names_out`, which has the stored name of the fence's lock, or no name where there is no
/// fence. The table needs its option family. Blocks and fails as all calls of dlm_row.
DLM_NODISCARD
enum dlm_status dlm_row_fence(const struct dlm_row *row,
                              uint64_t *fence_out,
                              struct dlm_names **names_out,
                              struct dlm_error **error_out);

/// Frees a row, not what is in HBase. NULL is allowed. Calls that are under way go on.
void dlm_row_free(struct dlm_row *row);

/// How many cells were read: 0 where there is no such row, or none of the columns that were asked for; and 0 for
/// NULL. Never blocks.
size_t dlm_row_cells_count(const struct dlm_row_cells *cells);

/// Writes the cell at `index`, from 0, to `*cell_out`. They are in the order of their columns. False beyond the
/// last, and for NULL: then all is NULL and 0. Never blocks.
bool dlm_row_cells_at(const struct dlm_row_cells *cells,
                      size_t index,
                      struct dlm_row_cell *cell_out);

/// Writes the cell of a column, given as family:qualifier, to `*cell_out`, which may be NULL. False where there is
/// no such cell, or it was not asked for, and for NULL: then all is NULL and 0. Never blocks.
bool dlm_row_cells_find(const struct dlm_row_cells *cells,
                        const void *column,
                        size_t column_size,
                        struct dlm_row_cell *cell_out);

/// Writes the number in a counter's cell to `*number_out`. False where there is no such cell, or it is not 8 bytes
/// long, and for NULL: then it is 0. Never blocks.
bool dlm_row_cells_counter(const struct dlm_row_cells *cells,
                           const void *column,
                           size_t column_size,
                           int64_t *number_out);

/// Frees what was read. NULL is allowed.
void dlm_row_cells_free(struct dlm_row_cells *cells);

/* ---- Ending waits ---- */

/// Ends waits from another thread. One may be given to any number of calls, and stays triggered: make a
/// new one for the next call.
struct dlm_cancel;

/// A cancel object that is not triggered. NULL only when there are millions of them.
struct dlm_cancel *dlm_cancel_new(void);

/// Ends every wait that was given `cancel`, now or later, with DLM_CANCELLED. A request already on its way
/// to the store is waited for, and what it was granted is released. Returns at once. Not for signal
/// handlers.
///
/// DLM_INVALID_ARGUMENT
DLM_NODISCARD
enum dlm_status dlm_cancel_trigger(const struct dlm_cancel *cancel, struct dlm_error **error_out);

/// Frees a cancel object. NULL is allowed. Calls that were given it go on, and cannot be cancelled any
/// more.
void dlm_cancel_free(struct dlm_cancel *cancel);

/* ---- Locks by id, for the threads of one process ---- */

/// Locks for the threads of this process, one for each 64-bit id: made on demand, gone when unused.
///
/// There is no handle of a held id: the number says what is released, and any thread may release it. An
/// id is not reentrant. One dlm_id_lock takes 16 KiB whatever the number of ids, worth sharing.
struct dlm_id_lock;

/// Locks with no id locked. NULL only when there are millions of them.
struct dlm_id_lock *dlm_id_lock_new(void);

/// Locks `id`, waiting for up to `wait_ms`: 0 tries once, DLM_FOREVER never gives up. Blocks meanwhile. Up
/// to thousands of threads may wait; every half millisecond the longest waiting one goes first.
///
/// DLM_LOCK_UNAVAILABLE when it was not free in time; DLM_CLOSED when `lock` was freed meanwhile;
/// DLM_INVALID_ARGUMENT
DLM_NODISCARD
enum dlm_status dlm_id_lock_acquire(const struct dlm_id_lock *lock,
                                    uint64_t id,
                                    int64_t wait_ms,
                                    struct dlm_error **error_out);

/// Releases `id`, whichever thread locked it. Never blocks.
///
/// DLM_INVALID_ARGUMENT when it is not locked
DLM_NODISCARD
enum dlm_status dlm_id_lock_release(const struct dlm_id_lock *lock,
                                    uint64_t id,
                                    struct dlm_error **error_out);

/// Locks all of `count` ids, or none. They are taken in ascending order and each once, however often it
/// is listed, so that callers which lock overlapping sets cannot deadlock. Waits and fails as
/// dlm_id_lock_acquire(); `wait_ms` is for all of them together.
DLM_NODISCARD
enum dlm_status dlm_id_lock_acquire_many(const struct dlm_id_lock *lock,
                                         const uint64_t *ids,
                                         size_t count,
                                         int64_t wait_ms,
                                         struct dlm_error **error_out);

/// Releases all of `count` ids, each once, however often it is listed. Never blocks.
///
/// DLM_INVALID_ARGUMENT when one of them is not locked; the others are released all the same
DLM_NODISCARD
enum dlm_status dlm_id_lock_release_many(const struct dlm_id_lock *lock,
                                         const uint64_t *ids,
                                         size_t count,
                                         struct dlm_error **error_out);

/// How many ids are locked or waited for right now; 0 for NULL. Never blocks for long.
uint64_t dlm_id_lock_count(const struct dlm_id_lock *lock);

/// Frees the locks. NULL is allowed. Ids that are locked are released, and threads that wait return
/// DLM_CLOSED.
void dlm_id_lock_free(struct dlm_id_lock *lock);

/* ---- Locks by key, for the threads of one process ---- */

/// As dlm_id_lock, for keys of bytes: any, also none and NUL. It takes 32 KiB whatever the number of keys.
struct dlm_key_lock;

/// Locks with no key locked. NULL only when there are millions of them.
struct dlm_key_lock *dlm_key_lock_new(void);

/// Locks the `size` bytes at `key`, 64 KiB at the most, which are copied. Waits and fails as
/// dlm_id_lock_acquire().
DLM_NODISCARD
enum dlm_status dlm_key_lock_acquire(const struct dlm_key_lock *lock,
                                     const void *key,
                                     size_t size,
                                     int64_t wait_ms,
                                     struct dlm_error **error_out);

/// Releases a key, whichever thread locked it. Never blocks.
///
/// DLM_INVALID_ARGUMENT when it is not locked
DLM_NODISCARD
enum dlm_status dlm_key_lock_release(const struct dlm_key_lock *lock,
                                     const void *key,
                                     size_t size,
                                     struct dlm_error **error_out);

/// How many keys are locked or waited for right now; 0 for NULL. Never blocks for long.
uint64_t dlm_key_lock_count(const struct dlm_key_lock *lock);

/// Frees the locks, as dlm_id_lock_free() does. NULL is allowed.
void dlm_key_lock_free(struct dlm_key_lock *lock);

/* ---- Log ---- */

/// Something failed and the library could not put it right.
#define DLM_LOG_ERROR 1

/// Something failed and nothing was lost by it.
#define DLM_LOG_WARN 2

/// What an operator may want to know.
#define DLM_LOG_INFO 3

/// What the library does.
#define DLM_LOG_DEBUG 4

/// Receives one line of the library's log. `message` lives until the callback returns.
///
/// It is called from any thread that uses the library and from the library's own, from several at once.
/// It must return soon, must not call the library, and must not leave by longjmp() or an exception.
typedef void (*dlm_log_callback)(void *user, int32_t level, const char *message);

/// Sends lines of `level` (DLM_LOG_ERROR to DLM_LOG_DEBUG) and worse to `callback`, for the whole process;
/// NULL sends them nowhere, which is the default. `user` is handed to the callback.
///
/// When this returns, the callback that was set before is not running any more and will not be called
/// again: its `user` may be freed. A forked child begins without a callback. Blocks while a callback runs.
///
/// DLM_INVALID_ARGUMENT, also from within a callback; DLM_ALREADY_EXISTS when Rust code of the program has
/// set a logger of its own
DLM_NODISCARD
enum dlm_status dlm_log_to(int32_t level,
                           dlm_log_callback callback,
                           void *user,
                           struct dlm_error **error_out);

#ifdef __cplusplus
}
#endif

#endif

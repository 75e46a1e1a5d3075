/* dlm.h: distributed locks, leases and latches, and locks by id or key for the threads of one process.
 * Generated from src/capi by build.rs; do not edit.
 *
 * Handles (struct dlm_...) are opaque. The caller owns every handle that a call returns or writes to an
 * output, and frees it exactly once with the _free function of its type. Handles may be freed in any
 * order. Every _free accepts NULL. No other call takes ownership of a handle.
 *
 * A call with a freed handle fails with DLM_CLOSED. A call with a pointer that never was a handle of the
 * type fails with DLM_INVALID_ARGUMENT. Neither crashes. A _free then does nothing and logs a warning.
 * Functions that return no status then return the same as for NULL. Each type can have some 33 million open
 * handles. Beyond that, its _new function returns NULL, and calls that create such a handle fail with
 * DLM_INTERNAL_ERROR.
 *
 * Threads: every function may be called from any thread, also with a handle that other threads are using.
 * Any thread may release what another thread acquired. A handle may be freed while other threads are in
 * calls with it. Those calls continue, or fail with DLM_CLOSED.
 *
 * Outputs are the last arguments, and their names end in _out. Every call writes them: on failure NULL, 0,
 * false or -1. Outputs that are handles may therefore be freed in any case. error_out may be NULL. If it is
 * not, the call sets it to NULL on DLM_OK, and on failure to an error that the caller owns. No other pointer
 * may be NULL, unless the function's comment allows it.
 *
 * Errors: every function may fail with DLM_INVALID_ARGUMENT, DLM_FORKED and DLM_PANIC, and with DLM_CLOSED
 * for a freed handle. Its comment lists the other errors. Compilers warn if a program ignores a status, see
 * DLM_NODISCARD. C computes the arguments of one call in any order: show(dlm_lease_check(lease, &error), error)
 * may pass the error of before the check. So keep the status in a variable first.
 *
 * Text is UTF-8 and ends with NUL. Calls copy text and arrays. No other thread may change them, or use the
 * outputs, during the call. A text that a call returns is a const char * and lives until the handle that it came
 * from is freed, or for ever where the comment says that it is static. Only dlm_inspection has its texts in itself.
 *
 * const: a call changes nothing that another call or process could notice, if it takes a pointer to const.
 *
 * Structs grow: later versions append fields. So a call takes the size that the struct had when the program was
 * compiled, in the argument that ends in _size, or in the first field of dlm_acquire_options. Fields that the
 * program's version lacks count as 0. Fields that the library's version lacks must be 0, and are set to 0 in outputs.
 * The calls fail with DLM_INVALID_ARGUMENT for a size below that of the first version, and above 4096.
 *
 * Times are in milliseconds. A function that can block says so in its comment.
 *
 * fork(): a handle belongs to the process that created it. In a child process, calls with the parent's
 * handles fail with DLM_FORKED and change nothing. Freeing them there is allowed and does nothing. A child
 * may create its own handles, up to 62 forks deep, also if it executes no program and other threads of its
 * parent were in calls during the fork. fork() waits, for 10 s at most, while another thread opens or closes
 * an embedded store, or connects to Aerospike. If that takes longer, the child can open no embedded store. A
 * log function must not wait for a thread that forks.
 * A host name is looked up by the C library, whose locks a child may inherit from such a thread: where
 * children look names up, give the servers by address. A child made by a bare clone system call must not
 * use the library.
 *
 * Process: the library starts threads only when it needs them, with names that begin with dlm-. It installs
 * no signal handlers and no exit handlers. Once loaded, it is never unloaded. If a program exits without
 * releasing its leases, they expire. If there is no memory left, the library ends the program by abort().
 *
 * pthread_cancel() does not end a thread inside a call, also not in a call that blocks. It ends the thread at
 * its next cancellation point after the call. To end a wait, use struct dlm_cancel. A thread whose type is
 * PTHREAD_CANCEL_ASYNCHRONOUS must not call the library.
 *
 * Signals: no call raises SIGPIPE. The library's threads block all signals except those that a thread
 * raises itself (SIGSEGV and the like). The other signals therefore reach the program's own threads, its
 * sigwait() and its signalfd(). A call leaves the signal mask unchanged. A signal handler may call
 * dlm_cancel_trigger_fd(), and no other function.
 *
 * The kernel's DLM has a library of the same name (Debian: libdlm3, libdlm-dev). The two libraries have no
 * function name in common, and a program may include both headers. */
#ifndef DLM_H
#define DLM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX < UINT64_MAX
#error "libdlm is for 64-bit machines: its handles have 64 bits"
#endif

/// Marks every function that returns a status: compilers warn if a program ignores the status. Define it as
/// nothing before including this header to turn the warning off.
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

/// Passes a string literal as two arguments or fields: its bytes, and their number without the NUL.
#define DLM_TEXT(literal) "" literal, sizeof(literal) - 1

#ifdef __cplusplus
extern "C" {
#endif

struct dlm_call;
struct dlm_cancel;
struct dlm_completions;
struct dlm_error;
struct dlm_history;
struct dlm_id_lock;
struct dlm_key_lock;
struct dlm_latch;
struct dlm_lease;
struct dlm_lease_set;
struct dlm_lock;
struct dlm_lock_list;
struct dlm_manager;
struct dlm_options;
struct dlm_pending;
struct dlm_seen;
struct dlm_semaphore;
struct dlm_texts;
struct dlm_watch;
struct dlm_acquire_options;

/* ---- Results ---- */

/// Result of every call that can fail. The numbers never change. Later versions may add some, so keep a
/// `default:`.
enum dlm_status {
    /// Success.
    DLM_OK = 0,
    /// The lock is held. If the call waited, the wait timed out. The caller acquired nothing.
    DLM_LOCK_UNAVAILABLE = 1,
    /// The store could not be reached. The request had no effect.
    DLM_CONNECTION_ERROR = 2,
    /// The store was reached, but did not serve the request, even after a limited number of retries.
    DLM_RETRIES_EXHAUSTED = 3,
    /// The table or namespace is missing, could not be created, or is unsuitable: disabled, of another kind, or
    /// without TTLs.
    DLM_TABLE_CREATION_ERROR = 4,
    /// The store or the library failed in an unexpected way. See the message.
    DLM_INTERNAL_ERROR = 5,
    /// A cancel object ended the wait. The caller holds nothing.
    DLM_CANCELLED = 6,
    /// The request may or may not have taken effect. A lock that it may have acquired is freed in the
    /// background.
    DLM_IN_DOUBT = 7,
    /// The lease has expired or was released, or the lock has another holder: stop using what the lock protects.
    DLM_LEASE_LOST = 8,
    /// The latch does not exist, or has expired.
    DLM_NOT_FOUND = 9,
    /// What the call should create already exists.
    DLM_ALREADY_EXISTS = 10,
    /// An argument was refused before any I/O: NULL, bad UTF-8, or a number or text that is not allowed.
    /// Functions on rows may refuse one after a read, see dlm_row.
    DLM_INVALID_ARGUMENT = 11,
    /// The manager was closed, or the handle was freed.
    DLM_CLOSED = 12,
    /// A parent process created the handle before fork(). Create a new handle in the child.
    DLM_FORKED = 13,
    /// Code of this library or of a store panicked, which is a bug. The handles stay usable.
    DLM_PANIC = 14,
    /// The receiver of a write with a fence has seen a higher fence of the same lock: the caller's lease
    /// has ended. The write was refused and had no effect. See dlm_error_fences().
    DLM_STALE_FENCE = 15,
    /// A lease of this mode cannot get the rights that were asked for. The lease is as it was.
    DLM_UNSUPPORTED_CONVERSION = 16,
};

/// The reason why a call failed. A failed call creates it if `error_out` is not NULL. It depends on no
/// other handle.
struct dlm_error;

/// Returns the name of a status, such as "LOCK_UNAVAILABLE", or "UNKNOWN" for a number that the library
/// does not know. The text is static. Never blocks.
const char *dlm_status_name(int32_t status);

/// Returns the status of the failed call, or DLM_INVALID_ARGUMENT for NULL. Never blocks.
DLM_NODISCARD
enum dlm_status dlm_error_status(const struct dlm_error *error);

/// Returns one line for people: what was wrong, with which value, and what to do. Never returns NULL. The
/// text lives until `error` is freed. It may contain names of locks, hosts and tables, but no passwords.
/// Never blocks.
const char *dlm_error_message(const struct dlm_error *error);

/// Returns true if the same call may succeed later without a change by the caller: the lock may become
/// free, or the store may recover. False for NULL. Never blocks.
bool dlm_error_is_retryable(const struct dlm_error *error);

/// Writes the two fences of a DLM_STALE_FENCE: `*fence_out` is the fence of the refused write,
/// `*stored_out` the higher fence that the receiver had seen. Either pointer may be NULL. Returns false and
/// writes 0 for any other error and for NULL. Never blocks.
bool dlm_error_fences(const struct dlm_error *error, uint64_t *fence_out, uint64_t *stored_out);

/// Returns why the lease was lost, for a DLM_LEASE_LOST: one of the numbers DLM_LOST_*. DLM_LOST_NOT if the lease was
/// released, for any other error, and for NULL. Never blocks.
int32_t dlm_error_lost_reason(const struct dlm_error *error);

/// Frees an error. NULL is allowed. Never blocks.
void dlm_error_free(struct dlm_error *error);

/// Returns the remaining lease time of the current holder in milliseconds, rounded up. Try again after this
/// time. The holder may renew or release the lease. It is a hint, because it compares the clocks of two
/// machines. -1 if the store does not report it, for errors other than DLM_LOCK_UNAVAILABLE, and for NULL.
/// Never blocks.
int64_t dlm_error_holder_left_ms(const struct dlm_error *error);

/* ---- Versions ---- */

/// Version of this header.
#define DLM_VERSION_MAJOR 0
#define DLM_VERSION_MINOR 1
#define DLM_VERSION_PATCH 0
#define DLM_VERSION_NUMBER (DLM_VERSION_MAJOR * 1000000 + DLM_VERSION_MINOR * 1000 + DLM_VERSION_PATCH)
#define DLM_VERSION "0.1.0"

/// Number of this header's binary interface. A change that breaks existing programs increases it. Additions
/// do not.
#define DLM_ABI 1

/// Returns the version of the loaded library, such as "0.1.0". DLM_VERSION is the version of this header.
/// The text is static. Never blocks.
const char *dlm_version(void);

/// Returns the version of the loaded library as a number to compare: major * 1,000,000 + minor * 1,000 + patch, such as
/// 1000 for 0.1.0. DLM_VERSION_NUMBER is the number of this header, for `#if` too. Never blocks.
uint32_t dlm_version_number(void);

/// Checks that the loaded library has the binary interface of this header. Pass DLM_ABI. The number is also
/// part of the shared library's name, so only programs that load the library themselves need this call.
/// Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT if the interfaces differ. The message has both versions.
DLM_NODISCARD
enum dlm_status dlm_abi_check(uint32_t abi, struct dlm_error **error_out);

/// Returns the number of open handles of all types, including errors: 0 at the end of a program that leaks
/// none. Never blocks for long.
uint64_t dlm_handles_open(void);

/* ---- Options ---- */

/// Settings for dlm_manager_open(), by key. The URI of a store takes the same keys.
struct dlm_options;

/// Creates an empty set of options. Returns NULL only if too many are open. Never blocks.
struct dlm_options *dlm_options_new(void);

/// Sets `key` to `value`. A later value replaces an earlier one. Never blocks.
///
/// | key | default | |
/// |---|---|---|
/// | client | none | required: the service that uses the locks; part of every name |
/// | farm | none | the data centre; part of the names of level DC; latches need it |
/// | ttl | 90s | how long a lease lasts unless it is renewed |
/// | wait | 90s | how long an acquire waits |
/// | retry | 1s | how long a waiting process pauses between two attempts, plus or minus a tenth |
/// | timeout | 10s | the time limit of one call to the store |
/// | clock_margin | 100000ppm | how much earlier a lease ends for its holder than in the store, in parts per million of its TTL: a tenth |
/// | lock_delay | 0s | how long nobody gets the lock after the lease of a dead holder |
/// | linger | 0s | how long a released lock stays with its process, which takes it again without the store |
/// | history | 0s | how long the store keeps what happened to each lock; 0s writes nothing |
/// | dies_with_process | false | true: others get the lock at once if the process dies (embedded) |
/// | names | strict | compat allows # and control characters in client and farm ids |
/// | purpose | none | a text that others see while the lock is held |
/// | strict | false | true refuses a store that dlm doctor reports as unsafe |
/// | latch_ttl | 1d | how long a latch lives after its last change |
/// | poll | 5s | the longest pause between two reads of an awaited latch, plus or minus a tenth |
/// | background_threads | 2 | the most threads that poll latches and release locks in doubt |
/// | notices | local | local, off, udp://ADDRESS[:PORT]: where waiters receive notices of a release |
/// | notices_all | false | true: nobody polls, so waiters need not leave the lock free now and then |
///
/// Times are whole numbers with a unit: ms, s, m, h or d. HBase and Aerospike have more keys, see docs/hbase.md and
/// docs/aerospike.md. This function does not check keys and values: dlm_manager_open() refuses unknown keys and
/// values that are not allowed.
DLM_NODISCARD
enum dlm_status dlm_options_set(struct dlm_options *options,
                                const char *key,
                                const char *value,
                                struct dlm_error **error_out);

/// Frees options. NULL is allowed. Managers that were opened with them do not need them. Never blocks.
void dlm_options_free(struct dlm_options *options);

/* ---- Managers ---- */

/// Level DC: the lock's name includes the farm id, so each data centre has its own lock.
#define DLM_LEVEL_DC 1

/// Level XDC: the lock's name does not include the farm id, so all data centres share one lock.
#define DLM_LEVEL_XDC 2

/// One store, with the locks and latches of one client id in it. Create one and share it.
struct dlm_manager;

/// Current numbers of a manager, and counts of its store since it was opened. Later versions append fields.
struct dlm_stats {
    /// Leases that this manager acquired, and that were not released, lost or ended by dlm_manager_close().
    /// An expired lease counts until a call notices that it has expired.
    uint64_t leases_held;
    /// Threads of this process that wait for a lock of this manager, and pending acquisitions that have not
    /// finished.
    uint64_t threads_waiting;
    /// Tries of an acquire that the store refused although the lock was free, because the lock's last number was
    /// not below the number of the try: the clock of another machine is ahead. HBase with layout=own.
    uint64_t stale_numbers;
    /// Reads that were needed to find out who holds a lock after the store refused to create its record. HBase
    /// and Aerospike.
    uint64_t reads_after_refusal;
    /// Grants of locks for which the store had no number, so that the clock gave the first one: locks that were
    /// never used, or not for so long that their number expired. HBase with layout=own.
    uint64_t fences_seeded;
    /// Notices that were sent. They may be lost on the way.
    uint64_t notices_sent;
    /// Notices that could not be sent: their receiver has ended, or gets too many.
    uint64_t notices_unsent;
    /// Datagrams that quoted nothing of this manager, and were ignored.
    uint64_t notices_ignored;
    /// Times that a notice made a waiter ask the store earlier.
    uint64_t early_asks;
    /// Leases of locks that had stayed with this process, so that the store was not asked: the option linger.
    uint64_t leases_retaken;
};

/// Opens the store at `uri`: "memory:", "embedded:", "embedded:/path",
/// "hbase://master1:16000,master2:16000/table", "hbase+thrift://host:9090/table" or
/// "aerospike://host1:3000,host2/namespace/setSuffix". Options may follow as "?key=value&key=value".
/// `options` may be NULL. If both set a key, `options` wins over the URI. On DLM_OK the caller owns
/// `*manager_out`.
///
/// "embedded:" is the directory /var/tmp/dlm-<effective uid>, regardless of environment variables. It is
/// refused in a systemd unit with PrivateTmp=. "embedded:/path?group=on" serves the users of the
/// directory's group. A member can kill the other members' processes with SIGBUS, so they must trust each
/// other.
///
/// Creates nothing in the store, see dlm_manager_initialize(). Opening an embedded store takes
/// milliseconds, and at most about half a minute while other threads and processes open it. HBase and
/// Aerospike are contacted by the first call that needs them.
///
/// The option strict=true diagnoses the store and refuses it if it is not safe for locks. In the worst case
/// this blocks for several store time-outs (the option timeout). It acquires, renews and releases one lock.
///
/// Errors: DLM_INVALID_ARGUMENT before any I/O, also for unknown keys; DLM_CONNECTION_ERROR or
/// DLM_INTERNAL_ERROR if the store cannot be opened; DLM_RETRIES_EXHAUSTED if strict=true and the store is
/// not safe for locks.
DLM_NODISCARD
enum dlm_status dlm_manager_open(const char *uri,
                                 const struct dlm_options *options,
                                 struct dlm_manager **manager_out,
                                 struct dlm_error **error_out);

/// Checks that the store answers, and changes nothing. For programs that should say at their start that their store is
/// missing, instead of at their first lock. Blocks for `wait_ms` at most, and for about a second longer while it finds out
/// what is at the address, and while the system's resolver looks up a name. DLM_FOREVER means the store time-out, and so
/// does a longer time. A time below a second is one second, which a busy store needs.
///
/// A store that has not answered this manager before fails within a second if nothing listens at its address, if no such
/// host exists, or if another service answers there. The message says what was found. "embedded:" and "memory:" always
/// answer.
///
/// Errors: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_manager_reach(const struct dlm_manager *manager,
                                  int64_t wait_ms,
                                  struct dlm_error **error_out);

/// Creates what locks need in the store (a table) if it is missing, and checks that the store answers. Safe
/// to repeat, and to call in many processes at once. Blocks, for up to a minute if it creates a table.
///
/// Errors: DLM_TABLE_CREATION_ERROR, DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_manager_initialize(struct dlm_manager *manager, struct dlm_error **error_out);

/// Creates a handle of the lock `id`, without acquiring it: see dlm_lock_acquire(). `level` is DLM_LEVEL_DC
/// or DLM_LEVEL_XDC. Does no I/O and never blocks. On DLM_OK the caller owns `*lock_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also if the id is empty or longer than 1024 bytes, or if the level is DC
/// and the manager has no farm.
DLM_NODISCARD
enum dlm_status dlm_manager_lock(const struct dlm_manager *manager,
                                 const char *id,
                                 int32_t level,
                                 struct dlm_lock **lock_out,
                                 struct dlm_error **error_out);

/// Checks whether the store is safe for locks, as `dlm doctor` does. Writes a line for each finding to `*findings_out`:
/// "OK ", "WARN " or "FAIL ", what was checked, and what was found. On DLM_OK the caller owns it. `*is_safe_out` is false
/// if a finding is a failure, and NULL is allowed. Blocks for up to a few store time-outs. Acquires and releases one lock
/// of its own.
///
/// Errors: DLM_CLOSED. A store that does not answer is a finding.
DLM_NODISCARD
enum dlm_status dlm_manager_diagnose(struct dlm_manager *manager,
                                     struct dlm_texts **findings_out,
                                     bool *is_safe_out,
                                     struct dlm_error **error_out);

/// Returns the URI of the store, without credentials. "" for NULL. The text lives until `manager` is freed. Never returns
/// NULL. Never blocks.
const char *dlm_manager_store(const struct dlm_manager *manager);

/// Writes current numbers of the manager to `*stats_out`. `stats_size` is sizeof(struct dlm_stats). On failure all fields
/// are 0. Never blocks for long.
DLM_NODISCARD
enum dlm_status dlm_manager_stats(const struct dlm_manager *manager,
                                  struct dlm_stats *stats_out,
                                  size_t stats_size,
                                  struct dlm_error **error_out);

/// Makes a page of metrics in Prometheus' text format, version 0.0.4: what has happened to the manager's locks since the
/// first call of this function, by class, and its calls to the store. So call it once at the start. docs/metrics.md has the
/// names. `*text_out` is a list of one text: dlm_texts_at(text, 0). On DLM_OK the caller owns it. Never blocks for long.
DLM_NODISCARD
enum dlm_status dlm_manager_metrics_text(struct dlm_manager *manager,
                                         struct dlm_texts **text_out,
                                         struct dlm_error **error_out);

/// Closes the manager: waiting threads fail with DLM_CLOSED, held leases are released, and the library's
/// threads are joined. From then on, dlm_lease_check() fails with DLM_LEASE_LOST, dlm_lease_release() has
/// nothing to release, unless the release by this call failed, and all other calls that use the store fail
/// with DLM_CLOSED. All handles must still be freed. Closing twice does nothing. It may be called from an exit
/// handler (atexit()).
///
/// Blocks for up to one store time-out for the releases, for another one if a renewal, a read of latches or a
/// request of a pending acquisition is in progress, and for a few seconds for the threads.
///
/// Errors: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED or DLM_IN_DOUBT from the first release that failed.
/// That lock becomes free when its TTL ends. The library has tried to release the other locks as well.
DLM_NODISCARD
enum dlm_status dlm_manager_close(struct dlm_manager *manager,
                                  struct dlm_error **error_out);

/// Frees a manager. NULL is allowed. Its locks, leases, latches and watches continue to work until they are
/// freed. To end them, call dlm_manager_close() first. Freeing the last of all these handles joins the
/// library's threads, which blocks for a few seconds, and for up to one store time-out if a read of latches
/// or a request of a pending acquisition is in progress. Otherwise this function does not block.
void dlm_manager_free(struct dlm_manager *manager);

/// Acquires `count` locks of this manager together: all of them or none. The wait of the options is that for all of
/// them together. `options` may be NULL. On DLM_OK the caller owns `*leases_out`.
///
/// The locks are acquired one after the other in one order, whatever the order of `locks` is. So callers of this
/// function never wait for each other in a circle. A caller that already holds a lock which it acquired otherwise
/// may. While it waits, the library renews the leases that it has. At the end all are checked, and have about the
/// whole TTL left. If one was lost, or a lock cannot be acquired, all are released.
///
/// Errors: those of dlm_lock_acquire() for the first lock that cannot be acquired; DLM_LEASE_LOST if a lease
/// was lost while others were waited for; DLM_INVALID_ARGUMENT also for no lock, for a lock twice, for a lock of
/// another manager, and for several locks with a TTL below 100 ms.
DLM_NODISCARD
enum dlm_status dlm_manager_acquire_all(struct dlm_manager *manager,
                                        struct dlm_lock *const *locks,
                                        size_t count,
                                        const struct dlm_acquire_options *options,
                                        struct dlm_lease_set **leases_out,
                                        struct dlm_error **error_out);

/// Writes a setting of the manager in milliseconds, either the value that was set or the default, to
/// `*ms_out`: "ttl", "wait", "retry" or "timeout", see dlm_options_set(). A wait without limit is
/// DLM_FOREVER. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also for other keys.
DLM_NODISCARD
enum dlm_status dlm_manager_setting_ms(const struct dlm_manager *manager,
                                       const char *key,
                                       int64_t *ms_out,
                                       struct dlm_error **error_out);

/* ---- Locks ---- */

/// In dlm_acquire_options: the manager's option, ttl or wait. As another TTL: the one that the function's comment names. No
/// other wait has a default: calls refuse it there.
#define DLM_DEFAULT -2

/// As a wait: no limit. As the TTL of a cell: it does not expire.
#define DLM_FOREVER -1

/// Held by one holder at a time. In dlm_acquire_options: the mode of the lock's handle, see dlm_lock_in_mode().
#define DLM_MODE_EXCLUSIVE 0

/// Held by any number of readers, and by one holder in mode DLM_MODE_UPDATE beside them.
#define DLM_MODE_SHARED 1

/// Held by one reader that may want to write later, beside readers in mode DLM_MODE_SHARED: see dlm_lease_upgrade().
#define DLM_MODE_UPDATE 2

/// One of the permits of a semaphore: see dlm_semaphore_acquire(). Not for locks.
#define DLM_MODE_PERMIT 3

/// A named lock. It may be acquired repeatedly, from any number of threads. It is not reentrant.
struct dlm_lock;

/// How to acquire a lock, for dlm_lock_acquire() and the like. Begin with DLM_ACQUIRE_OPTIONS, and change what should differ:
/// `struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS; how.wait_ms = 5000;`
///
/// Calls read it and do not keep it. NULL in its place means DLM_ACQUIRE_OPTIONS. Later versions append fields, and 0 in them
/// changes nothing.
struct dlm_acquire_options {
    /// sizeof(struct dlm_acquire_options).
    size_t size;
    /// How long the lease lasts unless it is renewed: 1 ms to 365 days. DLM_DEFAULT: the manager's option ttl.
    int64_t ttl_ms;
    /// How long to wait for the lock at most. 0 tries once, DLM_FOREVER waits without limit. DLM_DEFAULT: the manager's
    /// option wait.
    int64_t wait_ms;
    /// 0, or for how long the lease is kept alive from the grant on: see dlm_lease_keep(). DLM_FOREVER sets no limit.
    int64_t max_hold_ms;
    /// 0, or for how long the lock stays held at least: see dlm_lease_hold_at_least().
    int64_t min_hold_ms;
    /// NULL, or an object that ends the wait with DLM_CANCELLED.
    const struct dlm_cancel *cancel;
    /// How the lock is held: DLM_MODE_SHARED or DLM_MODE_UPDATE. 0: in the mode of the lock's handle, which is
    /// DLM_MODE_EXCLUSIVE unless it comes from dlm_lock_in_mode().
    int32_t mode;
    /// If it is true, others get the lock at once when this process ends in any way. For embedded stores only. Not together
    /// with `min_hold_ms`. False: the manager's option dies_with_process.
    bool dies_with_process;
    /// Must be 0.
    uint8_t reserved[3];
    /// NULL, or a lease of the same lock within which the caller reads once more, in mode DLM_MODE_SHARED: writers that wait do not
    /// keep the acquisition out, because they wait for that lease. Release the new one before it.
    const struct dlm_lease *nested_in;
    /// NULL, or a text of 1 to 255 bytes, which is read during the call: a key of the caller's, such as the id of an order.
    /// While this process holds the lock for that key, through this manager, the same key acquires it once more, in any
    /// thread. The leases share one hold with one fence. Each is released by itself, and the lock is free when the last one
    /// is. Blocks for one renewal at most. For DLM_MODE_EXCLUSIVE, dlm_lock_acquire() and dlm_lock_try_acquire(), without
    /// `min_hold_ms`.
    const char *owner;
};

/// The options of an acquisition that asks for nothing in particular.
#define DLM_ACQUIRE_OPTIONS {sizeof(struct dlm_acquire_options), DLM_DEFAULT, DLM_DEFAULT, 0, 0, NULL, 0, false, {0, 0, 0}, NULL, NULL}

/// Who holds a lock. Later versions append fields. Texts end with NUL.
struct dlm_inspection {
    /// Whether somebody holds the lock.
    bool is_held;
    /// 0.
    uint8_t reserved[7];
    /// The fence that was counted last; 0 if the store does not know it.
    uint64_t fence;
    /// Remaining time of the holder's lease in milliseconds, or -1 if it is not known. The holder may renew the
    /// lease. Only a hint, because it compares clocks of two machines.
    int64_t left_ms;
    /// When the lock was granted or last renewed, by the store's clock, in milliseconds since 1970. -1 if it is
    /// not known.
    int64_t since_ms;
    /// Process id of the holder, or -1 if the record does not describe the holder, such as one of the Java
    /// library.
    int64_t pid;
    /// When the holder opened its manager, in milliseconds since 1970, or -1.
    int64_t start_ms;
    /// Host name of the holder, or "".
    char host[256];
    /// What the holder uses its locks for (the option purpose), or "".
    char purpose[256];
    /// The layout in which the store keeps the lock, or "" if it has only one.
    char layout[16];
    /// How the holder holds the lock: one of the numbers DLM_MODE_*. 0 also if nobody does.
    int32_t mode;
    /// Number of the holder's permit, if `mode` is DLM_MODE_PERMIT. 0 otherwise.
    int32_t permit;
};

/// Tries once to acquire the lock. `options` may be NULL. Their `wait_ms` must be 0 or DLM_DEFAULT, and their `cancel` has no
/// effect, because the call does not wait. Blocks for one call to the store, and does not queue behind waiting threads. On
/// DLM_OK the caller owns `*lease_out`. If the lock is held, and this process and the holder have notices, the holder is
/// asked once to give the lock back if it only stays there (the option linger). A later call then finds it free.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the lock is held; DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED,
/// DLM_TABLE_CREATION_ERROR or DLM_INTERNAL_ERROR if the store does not serve the request; DLM_IN_DOUBT if
/// it is unknown whether the store granted the lock; DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_lock_try_acquire(struct dlm_lock *lock,
                                     const struct dlm_acquire_options *options,
                                     struct dlm_lease **lease_out,
                                     struct dlm_error **error_out);

/// Acquires the lock. `options` may be NULL: then the lease lasts for the manager's TTL and the call waits for the manager's
/// wait, by default 90 s each.
///
/// Blocks until the lock is acquired, the wait times out or an error occurs. When the wait ends, the call
/// first completes a request that it has sent to the store. Waiting threads of one manager acquire the lock
/// in the order in which they arrived. On DLM_OK the caller owns `*lease_out`.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the wait timed out; DLM_CANCELLED; and the other errors of
/// dlm_lock_try_acquire(), which end the wait at once.
DLM_NODISCARD
enum dlm_status dlm_lock_acquire(struct dlm_lock *lock,
                                 const struct dlm_acquire_options *options,
                                 struct dlm_lease **lease_out,
                                 struct dlm_error **error_out);

/// Takes over a lease from its `token`, see dlm_lease_into_token(). The token must be of this lock, and may be of a lease in any
/// mode: see dlm_lease_mode(). The lease has the end that it had before. If the token comes from another machine, its end is not known here: renew
/// the lease first. The lease can be renewed and released as before. Does no I/O and never blocks. On DLM_OK
/// the caller owns `*lease_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also if the text is not the whole token of a lease of this lock; DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_lock_adopt(struct dlm_lock *lock,
                               const char *token,
                               struct dlm_lease **lease_out,
                               struct dlm_error **error_out);

/// Returns the name of the lock, as it is stored. "" for NULL. The text lives until `lock` is freed. Never returns NULL. Never
/// blocks.
const char *dlm_lock_name(const struct dlm_lock *lock);

/// Frees a lock. NULL is allowed. Its leases stay valid, and threads that wait for it continue to wait.
/// Blocks only as dlm_manager_free() says.
void dlm_lock_free(struct dlm_lock *lock);

/// Writes who holds the lock to `*inspection_out`. `inspection_size` is sizeof(struct dlm_inspection).
/// On failure all fields are 0. Blocks for one or two reads of the store.
///
/// Errors: those of dlm_lock_try_acquire() for a store that does not serve the request, never DLM_IN_DOUBT.
DLM_NODISCARD
enum dlm_status dlm_lock_inspect(const struct dlm_lock *lock,
                                 struct dlm_inspection *inspection_out,
                                 size_t inspection_size,
                                 struct dlm_error **error_out);

/// Reads all that hold the lock: one exclusive holder, or any number of others, the one whose lease ends last first. It is a list
/// whose elements are inspections of one holder each, see dlm_lock_list_inspection(). Blocks for one or two reads of the store. On
/// DLM_OK the caller owns `*list_out`.
///
/// Errors: those of dlm_lock_inspect().
DLM_NODISCARD
enum dlm_status dlm_lock_holders(const struct dlm_lock *lock,
                                 struct dlm_lock_list **list_out,
                                 struct dlm_error **error_out);

/// Waits until this process leads: until it has acquired the lock. All candidates of an election use the lock of the
/// same name. The lease is kept alive, see dlm_lease_keep(), until it is released (which resigns), freed or lost, or for the
/// `max_hold_ms` of the options. Call dlm_lease_guard() before each step of the leader's work. `options` may be NULL. A
/// candidate that should wait until it leads sets their `wait_ms` to DLM_FOREVER. On DLM_OK the caller owns `*lease_out`.
///
/// Blocks until this process leads, the wait is over or an error ends it. If the store does not answer, the call tries
/// again until the wait is over.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the wait is over, or DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED or DLM_IN_DOUBT if
/// the last attempt has failed so; DLM_CANCELLED; DLM_TABLE_CREATION_ERROR; DLM_INTERNAL_ERROR; DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_lock_campaign(struct dlm_lock *lock,
                                  const struct dlm_acquire_options *options,
                                  struct dlm_lease **lease_out,
                                  struct dlm_error **error_out);

/// Waits until the holder of the lock, such as the leader of an election, is not the one that `*inspection` describes,
/// and writes the new one there. A struct of zeros describes a lock that nobody holds. `*changed_out` is false if the
/// wait timed out; then `*inspection` is as before. `inspection_size` is sizeof(struct dlm_inspection).
/// `cancel` may be NULL.
///
/// Blocks for up to `wait_ms`, and for a read under way. DLM_FOREVER waits without limit. Reads the store once per retry interval, and when the lease would end. Changes between two reads count as one.
///
/// Errors: those of dlm_lock_inspect(); DLM_CANCELLED.
DLM_NODISCARD
enum dlm_status dlm_lock_observe(const struct dlm_lock *lock,
                                 int64_t wait_ms,
                                 const struct dlm_cancel *cancel,
                                 struct dlm_inspection *inspection,
                                 size_t inspection_size,
                                 bool *changed_out,
                                 struct dlm_error **error_out);

/// Creates another handle of the same lock, by which it is acquired in this mode: DLM_MODE_EXCLUSIVE, DLM_MODE_SHARED or
/// DLM_MODE_UPDATE. The handle of dlm_manager_lock() acquires it exclusively. So dlm_manager_acquire_all() can read one lock and
/// write another. Does no I/O and never blocks. On DLM_OK the caller owns `*lock_out`.
///
/// Readers that come after a writer that waits let it pass, and take turns with writers. A store that keeps exclusive locks only
/// refuses other modes when the lock is acquired.
///
/// Errors: DLM_INVALID_ARGUMENT.
DLM_NODISCARD
enum dlm_status dlm_lock_in_mode(const struct dlm_lock *lock,
                                 int32_t mode,
                                 struct dlm_lock **lock_out,
                                 struct dlm_error **error_out);

/// Reads the lock in the store, without acquiring it. DLM_OK means that it was free. This read costs a
/// store less than an unsuccessful dlm_lock_try_acquire(). Blocks for one read of the store.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the lock is held, see dlm_error_holder_left_ms(); DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED, DLM_TABLE_CREATION_ERROR or DLM_INTERNAL_ERROR if the store does not serve the
/// request; DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_lock_look(const struct dlm_lock *lock, struct dlm_error **error_out);

/* ---- Leases ---- */

/// The lease was not lost.
#define DLM_LOST_NOT 0

/// The time of the lease ran out: it was not kept alive, every renewal failed, or its longest time was over.
#define DLM_LOST_EXPIRED 1

/// A renewal or release found the record of another holder.
#define DLM_LOST_TAKEN_OVER 2

/// A renewal or release found no record, although the lease had time left.
#define DLM_LOST_RECORD_GONE 3

/// The time ran out while this process did not run, so that nothing could renew the lease.
#define DLM_LOST_PROCESS_STOPPED 4

/// An operator broke the lock: see dlm_seen_break(). The error says who, and why.
#define DLM_LOST_BROKEN 5

/// The end of the lease is not known here, because its token comes from another machine. A renewal makes it known.
#define DLM_LOST_END_UNKNOWN 6

/// The lease was released, or turned into a token. Also after a release that failed, and for NULL and a freed handle.
#define DLM_STATE_RELEASED 0

/// The lease is valid, and not kept alive.
#define DLM_STATE_HELD 1

/// The lease is valid, and kept alive: see dlm_lease_keep().
#define DLM_STATE_RENEWING 2

/// The lease is valid and kept alive, but less than a third of it is left: renewals fail, or its longest time is nearly
/// over. Finish what the lock guards.
#define DLM_STATE_AT_RISK 3

/// The lease is not valid any more: see dlm_lease_lost_reason().
#define DLM_STATE_LOST 4

/// A held lock. Unless it is renewed, the lease expires after its TTL, counted from the time before the
/// request was sent. After that, the lock may have another holder.
struct dlm_lease;

/// The leases of several locks that were acquired together. It is valid while all of them are.
struct dlm_lease_set;

/// Checks by this machine's clock that the lease has not expired. Call it before each step that needs the
/// lock. It does no I/O and takes some tens of nanoseconds. It cannot detect that the thread is paused
/// right after the check: use the fence for that. Never blocks.
///
/// Errors: DLM_LEASE_LOST if the lease has expired, was released, or was found lost.
DLM_NODISCARD
enum dlm_status dlm_lease_check(const struct dlm_lease *lease, struct dlm_error **error_out);

/// Returns the fence: the number to send with every write that the lock guards. It grows with every grant
/// of the lock, so a receiver can refuse a write whose fence is lower than one it has seen. 0 for a lease in mode DLM_MODE_SHARED
/// or DLM_MODE_UPDATE, see dlm_lease_epoch(), if the store's option fence is off, and for NULL. Never blocks.
uint64_t dlm_lease_fence(const struct dlm_lease *lease);

/// Checks the lease like dlm_lease_check(), and then writes its fence to `*fence_out`, or 0 on failure. Call
/// it before each step that the lock guards, and send the fence with the step. One call cannot forget the
/// check or the fence. Never blocks.
///
/// Errors: DLM_LEASE_LOST as for dlm_lease_check(); DLM_INVALID_ARGUMENT for a lease in mode DLM_MODE_SHARED or
/// DLM_MODE_UPDATE, and if the store's option fence is off.
DLM_NODISCARD
enum dlm_status dlm_lease_guard(const struct dlm_lease *lease,
                                uint64_t *fence_out,
                                struct dlm_error **error_out);

/// Returns the remaining time of the lease in milliseconds, rounded down; 0 if it has ended, and for NULL.
/// Never blocks.
int64_t dlm_lease_remaining_ms(const struct dlm_lease *lease);

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It becomes
/// readable when dlm_lease_check() would fail: the lease has expired, was released, or was found lost. A
/// renewal postpones this.
///
/// The lease owns the descriptor. Every call writes the same one. Do not read or close it. dlm_lease_free()
/// closes it, so remove it from the event loop first.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
DLM_NODISCARD
enum dlm_status dlm_lease_lost_fd(const struct dlm_lease *lease,
                                  int32_t *fd_out,
                                  struct dlm_error **error_out);

/// Renews the lease for `ttl_ms` from now. DLM_DEFAULT: for the TTL of the last grant or renewal. Blocks
/// for one call to the store, at most for the store time-out and, while the lease has not expired, about its
/// remaining time. Of several calls at one time, the one that began last says when the lease
/// ends. A TTL shorter than before does not shorten the record in the store: the lock stays held for the longer
/// time, unless it is released.
///
/// Errors: DLM_LEASE_LOST if the lease has expired in the store, the lock has another holder, or the lease
/// was released. After any other error the lease keeps its previous end: DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT, DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_lease_renew(struct dlm_lease *lease,
                                int64_t ttl_ms,
                                struct dlm_error **error_out);

/// Ends the lease here without releasing the lock, and writes its token to `*token_out`, a text that lives until `lease` is
/// freed. Any process that reaches the same store can take the lease over with the token, see dlm_lock_adopt(). The handle
/// must still be freed. Does not block and does no I/O, except for a lease that dies with its process (the option
/// dies_with_process): the store records first that it does not any more. If that fails, the lease stays as it was.
///
/// The token is one line of text that proves ownership. Treat it like a password, and do not log it.
///
/// Errors: DLM_LEASE_LOST if the lease was released or found lost, or is being released; DLM_CLOSED. For a lease that dies
/// with its process also those of a store that does not serve.
DLM_NODISCARD
enum dlm_status dlm_lease_into_token(struct dlm_lease *lease,
                                     const char **token_out,
                                     struct dlm_error **error_out);

/// Lets the lock stay held for `min_hold_ms` from now, even if it is released sooner: at most the TTL of the lease. So a
/// job that takes a second runs only once, although the clocks of the machines that start it differ by some seconds.
/// Never blocks for long.
///
/// A release then ends the lease at once and sends nothing. The library releases the lock when the time is over. If the
/// manager is closed or the process ends before, the lock is free when its TTL ends.
///
/// Errors: DLM_INVALID_ARGUMENT if the time is longer than the TTL; DLM_LEASE_LOST if the lease is not valid.
DLM_NODISCARD
enum dlm_status dlm_lease_hold_at_least(struct dlm_lease *lease,
                                        int64_t min_hold_ms,
                                        struct dlm_error **error_out);

/// Returns the name of the lock, as it is stored. "" for NULL. The text lives until `lease` is freed. Never returns NULL.
/// Never blocks.
const char *dlm_lease_name(const struct dlm_lease *lease);

/// Returns the TTL in milliseconds with which the lease was granted or last renewed; 0 for NULL. Never blocks.
int64_t dlm_lease_ttl_ms(const struct dlm_lease *lease);

/// Returns when the lease ends, in nanoseconds of the clock CLOCK_BOOTTIME; 0 once it was released or found lost, and
/// for NULL. A renewal changes it. Never blocks.
int64_t dlm_lease_ends_ns(const struct dlm_lease *lease);

/// Releases the lock. Blocks for one call to the store. Never changes another holder's record. The handle
/// must still be freed. `freed_out` may be NULL. `*freed_out` is true if the lock was this lease's and is
/// free now. It is false if the lease was released or found lost before: then the call sends nothing to the
/// store. Of several threads that release it at the same time, at most one gets true. Of leases that share the hold of one
/// owner, see dlm_acquire_options.owner, the lock is free when the last one is released; the others get true without a call
/// to the store.
///
/// Errors: DLM_LEASE_LOST if the lease has expired in the store or the lock has another holder. After any
/// other error the lock may or may not be free: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT.
/// Call again, or free the handle: the library then keeps trying in the background.
DLM_NODISCARD
enum dlm_status dlm_lease_release(struct dlm_lease *lease,
                                  bool *freed_out,
                                  struct dlm_error **error_out);

/// Frees a lease. NULL is allowed. Releases the lock first if it is still held. This blocks for at most two
/// seconds. If it fails, the library keeps trying in the background. Freeing the last handle of a manager
/// blocks as dlm_manager_free() says.
void dlm_lease_free(struct dlm_lease *lease);

/// Checks all leases like dlm_lease_guard(), and then writes their fences to `fences_out`, an array of `count`
/// numbers in the order in which the locks were passed. `count` must be the number of locks. On failure all are 0. Never
/// blocks.
///
/// Errors: those of dlm_lease_guard() for the first lease that is not valid.
DLM_NODISCARD
enum dlm_status dlm_lease_set_guard(const struct dlm_lease_set *set,
                                    uint64_t *fences_out,
                                    size_t count,
                                    struct dlm_error **error_out);

/// Checks that no lease of the set has expired. See dlm_lease_check(). Never blocks.
///
/// Errors: DLM_LEASE_LOST for the first lease that is not valid.
DLM_NODISCARD
enum dlm_status dlm_lease_set_check(const struct dlm_lease_set *set, struct dlm_error **error_out);

/// Returns the remaining time in milliseconds of the lease that ends first, rounded down; 0 if one has ended, and
/// for NULL. Never blocks.
int64_t dlm_lease_set_remaining_ms(const struct dlm_lease_set *set);

/// Keeps all leases of the set alive. See dlm_lease_keep(), whose errors it has for the first lease that is not
/// valid. Never blocks.
DLM_NODISCARD
enum dlm_status dlm_lease_set_keep(struct dlm_lease_set *set,
                                   int64_t max_hold_ms,
                                   struct dlm_error **error_out);

/// Renews all leases of the set for their TTL from now, one after the other. Blocks for one call to the store for
/// each, see dlm_lease_renew().
///
/// Errors: those of dlm_lease_renew(), for the first lease that could not be renewed. The others are renewed
/// nevertheless.
DLM_NODISCARD
enum dlm_status dlm_lease_set_renew(struct dlm_lease_set *set,
                                    struct dlm_error **error_out);

/// Releases all locks of the set. Blocks for one call to the store for each, see dlm_lease_release(). The handle
/// must still be freed. `freed_out` may be NULL. `*freed_out` is true if all locks were these leases' and are free
/// now.
///
/// Errors: those of dlm_lease_release(), for the first release that failed. The others are released nevertheless.
DLM_NODISCARD
enum dlm_status dlm_lease_set_release(struct dlm_lease_set *set,
                                      bool *freed_out,
                                      struct dlm_error **error_out);

/// Frees a set of leases. NULL is allowed. Releases the locks first that are still held, as dlm_lease_free() does for
/// each.
void dlm_lease_set_free(struct dlm_lease_set *set);

/// Returns how the lock is held: one of the numbers DLM_MODE_*. DLM_MODE_EXCLUSIVE for NULL. Later versions may add some. Never
/// blocks.
int32_t dlm_lease_mode(const struct dlm_lease *lease);

/// Returns the number of the period in which the lock is held: all readers of one time have the same, and each exclusive grant
/// begins a new, higher one, which is its fence. A receiver may refuse a reader whose epoch is below the highest fence that it has
/// seen: a writer came since. It is no fence and guards no write, because several holders have it. 0 if the store's option fence
/// is off, for a permit of a semaphore, and for NULL. Never blocks.
uint64_t dlm_lease_epoch(const struct dlm_lease *lease);

/// Returns the number of the permit, from 0 on and below the size of its semaphore; -1 for the lease of a lock, and for NULL.
/// Never blocks.
int32_t dlm_lease_permit(const struct dlm_lease *lease);

/// Goes on with fewer rights: from DLM_MODE_EXCLUSIVE to DLM_MODE_UPDATE or DLM_MODE_SHARED, or from DLM_MODE_UPDATE to
/// DLM_MODE_SHARED. Nobody gets the lock in between. On DLM_OK the caller owns `*lease_out`, which holds the lock now, for the TTL of
/// `lease`. `lease` is over then, and must still be freed. Blocks for one call to the store, and never waits for other holders.
///
/// Others may read as soon as the call has begun. So let no write that the exclusive lease guards be under way then. The new lease
/// is kept alive as long as `lease` was to be. Its descriptors are its own, and dlm_lease_notify() has to be called for it. It does
/// not die with its process.
///
/// Errors: DLM_LEASE_LOST if `lease` is over; DLM_IN_DOUBT if the store did not say in time whether it made the change: `lease` is
/// over then, and the library releases what is left of it; DLM_INVALID_ARGUMENT also for the mode that the lease has, for
/// DLM_MODE_EXCLUSIVE, for a permit, and if another thread changes it; DLM_UNSUPPORTED_CONVERSION for more rights than those of a
/// reader; DLM_INTERNAL_ERROR if the new lease cannot be kept alive: the lock is released. After any other error the lease is as it
/// was: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_lease_downgrade(struct dlm_lease *lease,
                                    int32_t mode,
                                    struct dlm_lease **lease_out,
                                    struct dlm_error **error_out);

/// Goes on exclusively, from DLM_MODE_UPDATE: waits up to `wait_ms` for the readers to leave, before all others who wait. No new ones
/// come meanwhile, except that readers that have waited for long take turns. On DLM_OK the caller owns `*lease_out`, which holds
/// the lock now, with a new fence. `lease` is over then, and must still be freed. 0 tries once, DLM_FOREVER waits without limit.
/// `cancel` may be NULL.
///
/// The lease may end during the wait unless it is kept alive: see dlm_lease_keep(). A reader that waits for another lock of this
/// process makes both wait until one gives up.
///
/// Errors: DLM_LOCK_UNAVAILABLE if readers hold the lock: `lease` is as it was; DLM_UNSUPPORTED_CONVERSION for a shared lease, because
/// two of those would wait for each other; DLM_CANCELLED; those of dlm_lease_downgrade().
DLM_NODISCARD
enum dlm_status dlm_lease_upgrade(struct dlm_lease *lease,
                                  int64_t wait_ms,
                                  const struct dlm_cancel *cancel,
                                  struct dlm_lease **lease_out,
                                  struct dlm_error **error_out);

/// Keeps the lease alive: background threads renew it from now on, for `max_hold_ms` at most. No renewal makes it last
/// longer than that from now. DLM_FOREVER sets no limit. A second call sets a new limit. The TTL of the lease must be
/// 100 ms or longer. Does no I/O and never blocks.
///
/// The library renews after a third of the lease, and repeatedly if that fails. If less than a third is left, the
/// state is DLM_STATE_AT_RISK. If every renewal fails until the end, the lease is lost, and no renewal brings it back.
/// All kept leases of a manager share at most two threads. Still call dlm_lease_guard() before each step.
///
/// Errors: DLM_LEASE_LOST if the lease is not valid; DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_lease_keep(struct dlm_lease *lease,
                               int64_t max_hold_ms,
                               struct dlm_error **error_out);

/// Ends what dlm_lease_keep() has begun: the lease then ends at its end, unless it is renewed. A renewal under way may
/// still make it longer. Does nothing for a lease that is not kept alive. Never blocks for long.
DLM_NODISCARD
enum dlm_status dlm_lease_stop_keeping(struct dlm_lease *lease,
                                       struct dlm_error **error_out);

/// Returns the state of the lease by this machine's clock: one of DLM_STATE_RELEASED, DLM_STATE_HELD,
/// DLM_STATE_RENEWING, DLM_STATE_AT_RISK and DLM_STATE_LOST. Later versions may add some. Never blocks.
int32_t dlm_lease_state(const struct dlm_lease *lease);

/// Returns why the lease was lost, one of the numbers DLM_LOST_*. DLM_LOST_NOT if its state is not DLM_STATE_LOST.
/// Later versions may add reasons. Never blocks.
int32_t dlm_lease_lost_reason(const struct dlm_lease *lease);

/// Writes a file descriptor to `*fd_out`, or -1 on failure. It is readable while the lease is at risk, and once
/// dlm_lease_check() would fail. A renewal makes it unreadable again. See dlm_lease_lost_fd(), whose rules hold for
/// this descriptor too.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
DLM_NODISCARD
enum dlm_status dlm_lease_at_risk_fd(const struct dlm_lease *lease,
                                     int32_t *fd_out,
                                     struct dlm_error **error_out);

/* ---- Looking after the locks of all clients ---- */

/// What happened to a lock, the newest entry first.
struct dlm_history;

/// A page of a list of locks, or the holders of one lock.
struct dlm_lock_list;

/// What a process has seen of a lock: the holder, and which grant it is.
struct dlm_seen;

/// An entry of a history. Its texts live until the dlm_history is freed. Later versions append fields.
struct dlm_history_entry {
    /// What happened: "acquired", "released", "lost", "broken", "not broken" or "mode changed". Later versions may add others.
    const char *kind;
    /// The process that wrote the entry: the holder, or the one that broke the lock.
    const char *by;
    /// The holder of a lock that was broken, or "".
    const char *victim;
    /// Why a lock was broken or lost, or "".
    const char *text;
    /// When it happened, in milliseconds since 1970, by the clock of the process that wrote the entry.
    int64_t at_ms;
    /// How long the caller waited ("acquired"), or for how long the lock was held ("released", "lost"; "mode changed": in the
    /// mode before), in milliseconds. -1 for others.
    int64_t took_ms;
    /// The fence of the grant, or 0 if there is none.
    uint64_t fence;
    /// How the lock is or was held: 0 exclusive, 1 shared, 2 update, 3 a permit of a semaphore. Later versions may add others.
    int32_t mode;
    /// How it was held before, for "mode changed". 0 for others.
    int32_t mode_before;
};

/// Reads one page of the locks of the store, of all clients, whose full names begin with `prefix`, such as
/// "XDC#order-service#"; "" reads all. With `held_only` only locks that are held, otherwise also free locks
/// that the store still remembers. `after` is NULL or "" for the first page, and then dlm_lock_list_next() of the page
/// before. Blocks for one call to the store. On DLM_OK the caller owns `*list_out`.
///
/// The list is no snapshot. Over all pages, a lock that is held all the time is listed exactly once, and one that is free
/// all the time is not listed as held. Pages are in no particular order, and may be empty before the last one.
///
/// Errors: those of dlm_lock_inspect(); DLM_INVALID_ARGUMENT also for `after` of another list and for a store that cannot
/// list its locks.
DLM_NODISCARD
enum dlm_status dlm_manager_list(const struct dlm_manager *manager,
                                 const char *prefix,
                                 bool held_only,
                                 const char *after,
                                 struct dlm_lock_list **list_out,
                                 struct dlm_error **error_out);

/// Returns the number of locks in the page; 0 for NULL. Never blocks.
size_t dlm_lock_list_count(const struct dlm_lock_list *list);

/// Returns the full name of the lock at `index`, from 0, or "" after the last one. For a record that does not contain the
/// name of its lock it says which record it is. The text lives until `list` is freed. Never returns NULL. Never blocks.
const char *dlm_lock_list_key(const struct dlm_lock_list *list,
                              size_t index);

/// Returns whether the record at `index` contains the name of its lock: see dlm_manager_lock_named(). Records of the Java
/// library in Aerospike do not. Never blocks.
bool dlm_lock_list_is_named(const struct dlm_lock_list *list,
                            size_t index);

/// Writes who holds the lock at `index` to `*inspection_out`, as dlm_lock_inspect() does. The fence is 0 unless the store
/// has it in the same record. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT if there is no lock at `index`.
DLM_NODISCARD
enum dlm_status dlm_lock_list_inspection(const struct dlm_lock_list *list,
                                         size_t index,
                                         struct dlm_inspection *inspection_out,
                                         size_t inspection_size,
                                         struct dlm_error **error_out);

/// Returns where the next page begins, or "" after the last one. The text lives until `list` is freed. Never returns
/// NULL. Never blocks.
const char *dlm_lock_list_next(const struct dlm_lock_list *list);

/// Frees a page. NULL is allowed. Never blocks.
void dlm_lock_list_free(struct dlm_lock_list *list);

/// Creates a handle of the lock with this full name, such as "XDC#order-service#order-42", which may be one of another
/// client: for tools that look after the locks of a fleet. Does no I/O and never blocks. On DLM_OK the caller owns
/// `*lock_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also if the text is not the full name of a lock.
DLM_NODISCARD
enum dlm_status dlm_manager_lock_named(const struct dlm_manager *manager,
                                       const char *full_name,
                                       struct dlm_lock **lock_out,
                                       struct dlm_error **error_out);

/// Reads who holds the lock, for dlm_seen_break(). Blocks for one or two reads of the store. On DLM_OK the caller owns
/// `*seen_out`.
///
/// Errors: those of dlm_lock_inspect().
DLM_NODISCARD
enum dlm_status dlm_lock_see(const struct dlm_lock *lock,
                             struct dlm_seen **seen_out,
                             struct dlm_error **error_out);

/// Writes what was seen to `*inspection_out`, as dlm_lock_inspect() does. Never blocks.
DLM_NODISCARD
enum dlm_status dlm_seen_inspection(const struct dlm_seen *seen,
                                    struct dlm_inspection *inspection_out,
                                    size_t inspection_size,
                                    struct dlm_error **error_out);

/// Frees what was seen. NULL is allowed. Never blocks.
void dlm_seen_free(struct dlm_seen *seen);

/// Breaks the lock: takes it from the holder that was seen. For an operator, and a holder that does not release the lock and
/// cannot be reached. `reason` is for the history of the lock and for the holder: 1 to 255 bytes without control
/// characters.
///
/// Breaks just the grant that was seen, and sets `*broken_out` to true. If that grant is over, nothing is changed, and
/// `*broken_out` is false. `*fence_out` is a fence above the old holder's, for the receivers of its writes; 0 if nothing
/// was broken, if fencing is switched off, if another process acquired the lock first, or if the store failed after the
/// break. In the last two cases the fence of the next grant is above the old holder's. `*recorded_out` says whether the
/// history of the lock has an entry for the break. If not, the old holder finds its lease lost without a reason.
/// `recorded_out` may be NULL.
///
/// The old holder may go on working until it renews or releases its lease. That fails with DLM_LEASE_LOST, the reason
/// DLM_LOST_BROKEN, and the text of `reason`. Only receivers that compare fences are safe from it. Blocks for a few calls
/// to the store.
///
/// Errors: DLM_INVALID_ARGUMENT also if the lock was free, and for the lock of a Java client through a Thrift gateway;
/// DLM_IN_DOUBT if the lock may or may not be broken; those of dlm_lock_inspect().
DLM_NODISCARD
enum dlm_status dlm_seen_break(struct dlm_seen *seen,
                               const char *reason,
                               bool *broken_out,
                               uint64_t *fence_out,
                               bool *recorded_out,
                               struct dlm_error **error_out);

/// Reads the newest entries of the lock's history that are not older than `since_ms`, in milliseconds since 1970, at most
/// `most` and 256. Entries are there only if the holders' managers have the option history, except those about breaks.
/// Blocks for one or a few reads of the store. On DLM_OK the caller owns `*history_out`.
///
/// Errors: those of dlm_lock_inspect(); DLM_INVALID_ARGUMENT also if the store keeps no history.
DLM_NODISCARD
enum dlm_status dlm_lock_history(const struct dlm_lock *lock,
                                 uint64_t since_ms,
                                 size_t most,
                                 struct dlm_history **history_out,
                                 struct dlm_error **error_out);

/// Returns the number of entries; 0 for NULL. Never blocks.
size_t dlm_history_count(const struct dlm_history *history);

/// Writes the entry at `index`, from 0, to `*entry_out`. `entry_size` is sizeof(struct dlm_history_entry). Returns false after
/// the last entry and for NULL: all fields are then NULL or 0. Never blocks.
bool dlm_history_at(const struct dlm_history *history,
                    size_t index,
                    struct dlm_history_entry *entry_out,
                    size_t entry_size);

/// Frees a history. NULL is allowed. Never blocks.
void dlm_history_free(struct dlm_history *history);

/// Asks the holder of the lock who waits for it. `*known_out` is false if the lock is free, or if the holder has notices off
/// (the option notices) or does not answer. Then the other outputs are 0.
///
/// `*threads_out` is the number of threads of the holder's process that wait, and `*processes_out` that of other processes,
/// which stops at 40. `*longest_ms_out` is the time that one of them has waited longest, in milliseconds; 0 if nobody
/// waits. Only a hint: processes without notices wait unseen, and a datagram can be forged. This process needs no notices,
/// but an address that the holder can reach. Blocks for one or two reads of the store, and for 200 ms at most for the
/// answer.
///
/// Errors: those of dlm_lock_inspect().
DLM_NODISCARD
enum dlm_status dlm_lock_waiting(const struct dlm_lock *lock,
                                 bool *known_out,
                                 uint64_t *threads_out,
                                 uint64_t *processes_out,
                                 int64_t *longest_ms_out,
                                 struct dlm_error **error_out);

/* ---- Calls that do not block ---- */

/// Kind of a completion: the pending acquisition has finished, see dlm_pending_notify().
#define DLM_COMPLETION_FINISHED 1

/// Kind of a completion: the lease is at risk, see DLM_STATE_AT_RISK and dlm_lease_notify().
#define DLM_COMPLETION_AT_RISK 2

/// Kind of a completion: the lease is not valid any more, see dlm_lease_notify().
#define DLM_COMPLETION_ENDED 3

/// A release or a renewal that does not block. At most 8 threads of a manager make all such calls. They go before requests
/// for locks that wait for a thread, and one thread is left to them.
struct dlm_call;

/// A list of what has happened to pending acquisitions and leases, for programs with many of them: one list serves any number
/// of them, of any managers. A program waits for it with dlm_completions_wait(), or polls its descriptor.
struct dlm_completions;

/// An acquisition that does not block. It waits in the same queue as the threads that block in
/// dlm_lock_acquire(), in the order of arrival, and costs no thread: at most 8 threads of a manager ask the store
/// for all of its pending acquisitions.
struct dlm_pending;

/// One thing that has happened. Later versions append fields and kinds.
struct dlm_completion {
    /// The tag that was given to dlm_pending_notify() or dlm_lease_notify().
    uint64_t tag;
    /// What has happened: one of the numbers DLM_COMPLETION_*.
    int32_t kind;
    /// For DLM_COMPLETION_ENDED: why the lease was lost, one of the numbers DLM_LOST_*. DLM_LOST_NOT if it was released, and
    /// for other kinds.
    int32_t lost_reason;
};

/// Starts to acquire the lock as dlm_lock_acquire() does, and returns at once. `options` may be NULL. On DLM_OK the caller
/// owns `*pending_out`. Never blocks, except that it may start a thread.
///
/// Errors: DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED. dlm_pending_take() returns all other errors.
DLM_NODISCARD
enum dlm_status dlm_lock_acquire_start(struct dlm_lock *lock,
                                       const struct dlm_acquire_options *options,
                                       struct dlm_pending **pending_out,
                                       struct dlm_error **error_out);

/// Writes the lease to `*lease_out` if the lock was acquired, and NULL if the acquisition has not finished. On
/// DLM_OK the caller owns a lease that is not NULL. Only one call returns the result. Never blocks.
///
/// Errors: those of dlm_lock_acquire(), if that is the result; DLM_INVALID_ARGUMENT also if the result was
/// returned before, and for permits, see dlm_pending_take_permits(). If no thread was free to send even the first request until the
/// wait and the store time-out were over, DLM_RETRIES_EXHAUSTED.
DLM_NODISCARD
enum dlm_status dlm_pending_take(struct dlm_pending *pending,
                                 struct dlm_lease **lease_out,
                                 struct dlm_error **error_out);

/// Writes the leases of permits to `permits_out`, an array of `count` handles, if they were acquired, and NULL to each if the
/// acquisition has not finished. `count` is that of dlm_semaphore_acquire_start(). On DLM_OK the caller owns the leases that are not
/// NULL. Only one call returns the result. Never blocks.
///
/// Errors: those of dlm_semaphore_acquire(), if that is the result; DLM_INVALID_ARGUMENT also for another count, for a lock, and if
/// the result was returned before; DLM_RETRIES_EXHAUSTED as for dlm_pending_take().
DLM_NODISCARD
enum dlm_status dlm_pending_take_permits(struct dlm_pending *pending,
                                         struct dlm_lease **permits_out,
                                         size_t count,
                                         struct dlm_error **error_out);

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It becomes readable when
/// the acquisition has finished, and stays so.
///
/// The pending acquisition owns the descriptor. Every call writes the same one. Do not read or close it.
/// dlm_pending_free() closes it, so remove it from the event loop first. Never blocks. Programs with thousands of
/// pending acquisitions use dlm_pending_notify() instead.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
DLM_NODISCARD
enum dlm_status dlm_pending_fd(const struct dlm_pending *pending,
                               int32_t *fd_out,
                               struct dlm_error **error_out);

/// Adds `tag` to `completions` when the acquisition finishes (DLM_COMPLETION_FINISHED), or at once if it has finished. dlm_pending_free() takes
/// the tag out again. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also for a second call.
DLM_NODISCARD
enum dlm_status dlm_pending_notify(struct dlm_pending *pending,
                                   struct dlm_completions *completions,
                                   uint64_t tag,
                                   struct dlm_error **error_out);

/// Cancels the acquisition: it finishes at once with DLM_CANCELLED. A request to the store that is under way goes
/// on, and the library releases the lock if that request acquires it. Does nothing if the acquisition has finished:
/// then dlm_pending_take() has the result. Never blocks. It must not be called in a signal handler, see
/// dlm_cancel_trigger_fd().
DLM_NODISCARD
enum dlm_status dlm_pending_cancel(struct dlm_pending *pending,
                                   struct dlm_error **error_out);

/// Frees a pending acquisition, and cancels it if it has not finished. NULL is allowed. If it acquired something and
/// nobody took the leases, this releases them, which blocks for at most two seconds each. Otherwise it never blocks,
/// except as dlm_manager_free() says.
void dlm_pending_free(struct dlm_pending *pending);

/// Creates an empty list. Returns NULL only if too many are open. Never blocks.
struct dlm_completions *dlm_completions_new(void);

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It is readable while the
/// list is not empty. The list owns the descriptor. Every call writes the same one. Do not read or close it.
/// dlm_completions_free() closes it. Never blocks.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
DLM_NODISCARD
enum dlm_status dlm_completions_fd(const struct dlm_completions *completions,
                                   int32_t *fd_out,
                                   struct dlm_error **error_out);

/// Takes what happened first out of the list and writes it to `*completion_out`. `completion_size` is sizeof(struct
/// dlm_completion). Returns false and writes zeros if the list is empty, was freed or is that of another process, and if the size
/// is not allowed. Call it until it returns false: an empty list's descriptor is not readable. Never blocks.
bool dlm_completions_next(struct dlm_completions *completions,
                          struct dlm_completion *completion_out,
                          size_t completion_size);

/// Waits until the list is not empty, takes what happened first out of it and writes it to `*completion_out`.
/// `completion_size` is sizeof(struct dlm_completion). `*found_out` is false if the wait timed out. For programs that cannot
/// poll a descriptor. Several threads may wait for one list, and each gets something else.
///
/// Blocks for up to `wait_ms`: 0 does not wait, DLM_FOREVER waits without limit. dlm_completions_free() ends the wait.
///
/// Errors: DLM_CLOSED if the list was freed during the wait.
DLM_NODISCARD
enum dlm_status dlm_completions_wait(struct dlm_completions *completions,
                                     int64_t wait_ms,
                                     struct dlm_completion *completion_out,
                                     size_t completion_size,
                                     bool *found_out,
                                     struct dlm_error **error_out);

/// Frees a list. NULL is allowed. Ends the waits for it. Pending acquisitions and leases that were given it continue. Never
/// blocks.
void dlm_completions_free(struct dlm_completions *completions);

/// Adds `tag` to `completions` each time that the lease becomes at risk (DLM_COMPLETION_AT_RISK), and when it is not valid any
/// more (DLM_COMPLETION_ENDED), or at once if that is so already. A renewal by the program may bring back a lease that had
/// expired. Then it may end again. The list has each of the two at most once. The program that takes one reads the state of the lease.
/// dlm_lease_free() takes the tag out again, and adds nothing.
///
/// A change by the clock may be in the list up to 200 ms late, and a second later while the library asks the store why another
/// lease was lost. dlm_lease_check() is never late. All leases of a manager share
/// one thread for this, and need no descriptor. Never blocks, except that it may start that thread.
///
/// Errors: DLM_INVALID_ARGUMENT also for a second call; DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_lease_notify(struct dlm_lease *lease,
                                 struct dlm_completions *completions,
                                 uint64_t tag,
                                 struct dlm_error **error_out);

/// Starts to release the lock as dlm_lease_release() does, and returns at once. Do not use the lease any more, and free it
/// after dlm_call_take() has returned the result: freeing it before that blocks. On DLM_OK the caller owns `*call_out`.
/// Never blocks, except that it may start a thread.
///
/// Errors: DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED. dlm_call_take() returns all others.
DLM_NODISCARD
enum dlm_status dlm_lease_release_start(struct dlm_lease *lease,
                                        struct dlm_call **call_out,
                                        struct dlm_error **error_out);

/// Starts to renew the lease as dlm_lease_renew() does, and returns at once. On DLM_OK the caller owns `*call_out`. Never
/// blocks, except that it may start a thread.
///
/// Errors: DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED. dlm_call_take() returns all others.
DLM_NODISCARD
enum dlm_status dlm_lease_renew_start(struct dlm_lease *lease,
                                      int64_t ttl_ms,
                                      struct dlm_call **call_out,
                                      struct dlm_error **error_out);

/// Writes to `*done_out` whether the call has finished. Only one call of this function returns the result. Of a release,
/// `*freed_out` is what dlm_lease_release() would have written there; otherwise it is false. `freed_out` may be NULL. Never
/// blocks.
///
/// Errors: those of dlm_lease_release() or dlm_lease_renew(), if that is the result: then the call has finished, although
/// `*done_out` is false. DLM_CLOSED if the manager was closed before the call began; DLM_INVALID_ARGUMENT also if the result
/// was returned before.
DLM_NODISCARD
enum dlm_status dlm_call_take(struct dlm_call *call,
                              bool *done_out,
                              bool *freed_out,
                              struct dlm_error **error_out);

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It becomes readable when the call
/// has finished. The call owns it: do not read or close it. dlm_call_free() closes it.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
DLM_NODISCARD
enum dlm_status dlm_call_fd(const struct dlm_call *call,
                            int32_t *fd_out,
                            struct dlm_error **error_out);

/// Frees a call. NULL is allowed. A call that has not finished goes on. Freeing the last handle of a manager blocks as
/// dlm_manager_free() says.
void dlm_call_free(struct dlm_call *call);

/// Starts to acquire `count` permits as dlm_semaphore_acquire() does, and returns at once. dlm_pending_take_permits() has the result.
/// `options` may be NULL. On DLM_OK the caller owns `*pending_out`. Never blocks, except that it may start a thread.
///
/// Errors: DLM_INTERNAL_ERROR if no thread can be started; DLM_INVALID_ARGUMENT as for dlm_semaphore_acquire(), except for a number
/// of permits that the store does not know; DLM_CLOSED. dlm_pending_take_permits() returns all other errors.
DLM_NODISCARD
enum dlm_status dlm_semaphore_acquire_start(struct dlm_semaphore *semaphore,
                                            size_t count,
                                            const struct dlm_acquire_options *options,
                                            struct dlm_pending **pending_out,
                                            struct dlm_error **error_out);

/* ---- Semaphores ---- */

/// A named semaphore: so many permits, of which each has one holder at a time. It may be acquired repeatedly, from any number of
/// threads.
struct dlm_semaphore;

/// Creates a handle of the semaphore `id` with so many permits, 1 to 256. `level` is DLM_LEVEL_DC or DLM_LEVEL_XDC. Does no I/O and
/// never blocks. On DLM_OK the caller owns `*semaphore_out`.
///
/// All processes must use the same number. The first grant decides it, and a handle with another one is refused: see
/// dlm_semaphore_resize(). A semaphore is kept under the name of a lock, and nobody can acquire that lock while a permit is held. Use
/// the name for one of them only.
///
/// Errors: DLM_INVALID_ARGUMENT also for a number that is not allowed, if the store keeps no semaphores, and for an id and a level
/// that dlm_manager_lock() refuses.
DLM_NODISCARD
enum dlm_status dlm_manager_semaphore(const struct dlm_manager *manager,
                                      const char *id,
                                      int32_t level,
                                      int32_t permits,
                                      struct dlm_semaphore **semaphore_out,
                                      struct dlm_error **error_out);

/// Tries once to acquire `count` permits, all or none, and writes their leases to `permits_out`, an array of `count` handles, in the
/// order of their numbers: see dlm_lease_permit(). `options` may be NULL. Their `wait_ms` must be 0 or DLM_DEFAULT. Blocks for one call
/// to the store. On DLM_OK the caller owns the leases. On failure all are NULL.
///
/// Each permit is kept alive, lost and released by itself, and has a fence of its own. The fences of one permit rise. Fences of
/// different permits say nothing about each other, so a receiver keeps one highest fence for each permit.
///
/// Errors: DLM_LOCK_UNAVAILABLE if too few permits are free; DLM_INVALID_ARGUMENT also for a count of zero or above the number of
/// permits, if the store knows the semaphore with another number, and for options that permits cannot have (a mode, an outer lease,
/// dies_with_process); the others of dlm_lock_try_acquire().
DLM_NODISCARD
enum dlm_status dlm_semaphore_try_acquire(struct dlm_semaphore *semaphore,
                                          size_t count,
                                          const struct dlm_acquire_options *options,
                                          struct dlm_lease **permits_out,
                                          struct dlm_error **error_out);

/// Acquires `count` permits, all or none, as dlm_semaphore_try_acquire() does, and waits for them. `options` may be NULL: then the
/// leases last for the manager's TTL and the call waits for the manager's wait, by default 90 s each.
///
/// Blocks until the permits are acquired, the wait times out or an error occurs. Threads of one manager acquire permits in the
/// order in which they arrived, whatever their counts are. Processes poll: one that asks for many permits may find too few again
/// and again while others ask for fewer.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the wait timed out; DLM_CANCELLED; the others of dlm_semaphore_try_acquire(), which end the wait at
/// once.
DLM_NODISCARD
enum dlm_status dlm_semaphore_acquire(struct dlm_semaphore *semaphore,
                                      size_t count,
                                      const struct dlm_acquire_options *options,
                                      struct dlm_lease **permits_out,
                                      struct dlm_error **error_out);

/// Writes how many permits are free to `*available_out`, or -1 on failure: a hint, because others may take them meanwhile. Blocks for
/// one or two reads of the store.
///
/// Errors: those of dlm_lock_inspect().
DLM_NODISCARD
enum dlm_status dlm_semaphore_available(const struct dlm_semaphore *semaphore,
                                        int32_t *available_out,
                                        struct dlm_error **error_out);

/// Reads who holds permits, ordered by their numbers: a list whose elements are inspections of one permit each, see
/// dlm_lock_list_inspection(). All have the name of the semaphore. Blocks for one or two reads of the store. On DLM_OK the caller
/// owns `*list_out`.
///
/// Errors: those of dlm_lock_inspect().
DLM_NODISCARD
enum dlm_status dlm_semaphore_holders(const struct dlm_semaphore *semaphore,
                                      struct dlm_lock_list **list_out,
                                      struct dlm_error **error_out);

/// Changes the number of permits in the store, 1 to 256, and creates a handle with this number. Permits that are held stay so: if
/// there are fewer now, none is granted before those with higher numbers are free. Other handles keep their number, and are refused
/// from now on. Blocks for one call to the store. On DLM_OK the caller owns `*semaphore_out`.
///
/// Errors: DLM_NOT_FOUND if the store knows no semaphore of this name, whose number the first grant decides then; DLM_IN_DOUBT if it
/// may be changed: call again; those of dlm_lock_inspect().
DLM_NODISCARD
enum dlm_status dlm_semaphore_resize(struct dlm_semaphore *semaphore,
                                     int32_t permits,
                                     struct dlm_semaphore **semaphore_out,
                                     struct dlm_error **error_out);

/// Returns the number of permits of this handle; 0 for NULL. Never blocks.
int32_t dlm_semaphore_permits(const struct dlm_semaphore *semaphore);

/// Returns the name of the semaphore, as it is stored. "" for NULL. The text lives until `semaphore` is freed. Never returns NULL.
/// Never blocks.
const char *dlm_semaphore_name(const struct dlm_semaphore *semaphore);

/// Frees a semaphore. NULL is allowed. Its permits stay held, and threads that wait for it continue to wait. Blocks only as
/// dlm_manager_free() says.
void dlm_semaphore_free(struct dlm_semaphore *semaphore);

/* ---- Latches ---- */

/// Kind of a latch that only counts down: it opens once, when its count reaches zero.
#define DLM_LATCH_COUNT_DOWN 1

/// Kind of a latch that counts up and down: it is open whenever its count is zero or less.
#define DLM_LATCH_COUNT_UP_DOWN 2

/// A count in the store that all processes share. They can wait until it reaches zero. A latch
/// expires when its TTL has passed since its last change, or ends by dlm_latch_delete(). Then every call
/// except those that create it fails with DLM_NOT_FOUND.
struct dlm_latch;

/// A list of texts, such as the names of participants, or one text that is made for the caller.
struct dlm_texts;

/// A watch on a latch, for event loops.
struct dlm_watch;

/// Creates a handle of the latch `id`. Does no I/O and creates nothing in the store: see
/// dlm_latch_create(). Never blocks. On DLM_OK the caller owns `*latch_out`. All processes that use the
/// latch must agree on:
/// * `level`: DLM_LEVEL_DC is the count of the manager's farm, DLM_LEVEL_XDC the sum of the counts of all
///   farms;
/// * `kind`: DLM_LATCH_COUNT_DOWN or DLM_LATCH_COUNT_UP_DOWN;
/// * `ttl_ms`: how long the latch lives after each change. DLM_DEFAULT: the option latch_ttl, by default
///   one day.
///
/// Errors: DLM_INVALID_ARGUMENT also if the manager has no farm, the id is empty or longer than 1024 bytes,
/// or the store keeps locks only.
DLM_NODISCARD
enum dlm_status dlm_manager_latch(const struct dlm_manager *manager,
                                  const char *id,
                                  int32_t level,
                                  int32_t kind,
                                  int64_t ttl_ms,
                                  struct dlm_latch **latch_out,
                                  struct dlm_error **error_out);

/// Creates the latch in the store. It opens after `count` count-downs, 0 to 2147483647. For level XDC this
/// creates the count of the manager's farm. Blocks for one call to the store. The first call may also
/// create a table, see dlm_manager_initialize_latches().
///
/// Errors: DLM_ALREADY_EXISTS if the latch exists: its count is unchanged; DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED, DLM_TABLE_CREATION_ERROR or DLM_INTERNAL_ERROR if the store does not serve the
/// request; DLM_IN_DOUBT if it is unknown whether the latch was created; DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_latch_create(struct dlm_latch *latch, int64_t count, struct dlm_error **error_out);

/// Creates the latch for `count` named participants. Each counts down once, see dlm_latch_count_down_as().
/// While one of them is missing, nobody else counts, and no count without a name is possible.
/// Blocks and fails like dlm_latch_create(). DLM_INVALID_ARGUMENT also if a name is not 1 to 255 bytes
/// without control characters, if a name is listed twice, or if the store cannot keep names.
DLM_NODISCARD
enum dlm_status dlm_latch_create_for(struct dlm_latch *latch,
                                     const char *const *participants,
                                     size_t count,
                                     struct dlm_error **error_out);

/// Creates the latch unless it exists. `created_out` may be NULL. `*created_out` is true if this call
/// created the latch. Blocks and fails like dlm_latch_create(), but not with DLM_ALREADY_EXISTS.
DLM_NODISCARD
enum dlm_status dlm_latch_get_or_create(struct dlm_latch *latch,
                                        int64_t count,
                                        bool *created_out,
                                        struct dlm_error **error_out);

/// Begins the latch anew with `count`, 0 to 2147483647, whatever its count is. What was counted before has no
/// effect any more, also if it is still on its way, and everybody may count again. So reset a latch when all
/// have counted, and before anybody counts for the next time. A wait that has not yet seen the latch open waits
/// for its next opening. For level XDC this changes the count of the manager's farm. Blocks for two calls to the store.
///
/// Errors: DLM_NOT_FOUND if that count was never created or has expired; DLM_IN_DOUBT if it is unknown whether the
/// latch was reset: another call resets it once more, with all that was counted in between; DLM_INVALID_ARGUMENT
/// also if the store cannot do this; and the other errors of dlm_latch_create(), except DLM_ALREADY_EXISTS.
DLM_NODISCARD
enum dlm_status dlm_latch_reset(struct dlm_latch *latch,
                                int64_t count,
                                struct dlm_error **error_out);

/// Begins the latch anew for `count` named participants, see dlm_latch_create_for(). Blocks and fails like
/// dlm_latch_reset() and dlm_latch_create_for().
DLM_NODISCARD
enum dlm_status dlm_latch_reset_for(struct dlm_latch *latch,
                                    const char *const *participants,
                                    size_t count,
                                    struct dlm_error **error_out);

/// Deletes the count of the manager's farm. If no other farm has one, the latch does not exist any more: every
/// call but those that create it fails with DLM_NOT_FOUND, and so does every wait. Blocks and fails like
/// dlm_latch_reset(). After DLM_IN_DOUBT, a second call that fails with DLM_NOT_FOUND says that the latch is gone.
DLM_NODISCARD
enum dlm_status dlm_latch_delete(struct dlm_latch *latch,
                                 struct dlm_error **error_out);

/// Writes the current count to `*count_out`: the number of missing count-downs, below zero if there were
/// more than expected. Blocks for one read of the store.
///
/// Errors: DLM_NOT_FOUND if the latch was never created or has expired; DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED or DLM_INTERNAL_ERROR if the store does not serve the request; DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_latch_count(const struct dlm_latch *latch,
                                int64_t *count_out,
                                struct dlm_error **error_out);

/// Counts down the count of the manager's farm by one. It counts exactly once, even if replies are lost.
/// Blocks for one call to the store.
///
/// Errors: DLM_NOT_FOUND if that count was never created or has expired; DLM_IN_DOUBT if it is unknown
/// whether the call counted: another call may count twice (dlm_latch_count_down_as() never does);
/// DLM_INVALID_ARGUMENT while a latch of dlm_latch_create_for() waits for participants; and the other errors of
/// dlm_latch_create(), except DLM_ALREADY_EXISTS.
DLM_NODISCARD
enum dlm_status dlm_latch_count_down(struct dlm_latch *latch,
                                     struct dlm_error **error_out);

/// Counts up by one. Blocks and fails like dlm_latch_count_down(). DLM_INVALID_ARGUMENT unless the latch is
/// of kind DLM_LATCH_COUNT_UP_DOWN.
DLM_NODISCARD
enum dlm_status dlm_latch_count_up(struct dlm_latch *latch, struct dlm_error **error_out);

/// Counts down in the name of a participant, at most once per name. `counted_out` may be NULL.
/// `*counted_out` is true if this call counted, and false if that name had counted before. After
/// DLM_IN_DOUBT it is safe to call again. Blocks and fails like dlm_latch_count_down(). DLM_INVALID_ARGUMENT also for
/// a name that a latch of dlm_latch_create_for() does not wait for.
DLM_NODISCARD
enum dlm_status dlm_latch_count_down_as(struct dlm_latch *latch,
                                        const char *participant,
                                        bool *counted_out,
                                        struct dlm_error **error_out);

/// Writes to `*names_out` the names that are expected in this farm and have not counted down. On DLM_OK the
/// caller owns it. Blocks and fails like dlm_latch_count(). DLM_INVALID_ARGUMENT also if the store cannot
/// keep names.
DLM_NODISCARD
enum dlm_status dlm_latch_pending(const struct dlm_latch *latch,
                                  struct dlm_texts **names_out,
                                  struct dlm_error **error_out);

/// Writes to `*names_out` the names that have counted down in this farm, expected or not. On DLM_OK the caller owns
/// it. Blocks and fails like dlm_latch_pending().
DLM_NODISCARD
enum dlm_status dlm_latch_arrived(const struct dlm_latch *latch,
                                  struct dlm_texts **names_out,
                                  struct dlm_error **error_out);

/// Returns the name of the latch. "" for NULL. The text lives until `latch` is freed. Never returns NULL. Never blocks.
const char *dlm_latch_name(const struct dlm_latch *latch);

/// Waits until the latch is open. Blocks for up to `wait_ms`: 0 reads the latch once, DLM_FOREVER waits
/// without limit. `cancel` may be NULL. `*open_out` is false if the wait timed out.
///
/// The wait continues while the store does not serve requests. It detects a count-down by another process
/// within the option poll, by default 5 s, and usually much sooner.
///
/// Errors: DLM_NOT_FOUND if the latch was never created, or expired before it opened; DLM_CANCELLED;
/// DLM_CLOSED. Two errors that only a person can repair: DLM_TABLE_CREATION_ERROR if the table is disabled
/// or is not a table for latches; DLM_INTERNAL_ERROR if the store denies access or its value is not a
/// count. If the wait times out and the last read of the store failed: the error of that read.
DLM_NODISCARD
enum dlm_status dlm_latch_await_open(const struct dlm_latch *latch,
                                     int64_t wait_ms,
                                     const struct dlm_cancel *cancel,
                                     bool *open_out,
                                     struct dlm_error **error_out);

/// Watches the latch without a thread of the caller: see dlm_watch_fd(). The manager's background threads
/// read all watched latches, and read each latch once for all its watches. Never blocks. On DLM_OK the
/// caller owns `*watch_out`.
///
/// Errors: DLM_INTERNAL_ERROR if the system cannot start a thread; DLM_CLOSED.
DLM_NODISCARD
enum dlm_status dlm_latch_watch(const struct dlm_latch *latch,
                                struct dlm_watch **watch_out,
                                struct dlm_error **error_out);

/// Frees the handle of a latch. The latch in the store is unchanged. NULL is allowed. Threads that wait for
/// the latch continue to wait. Blocks only as dlm_manager_free() says.
void dlm_latch_free(struct dlm_latch *latch);

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It becomes
/// readable when the latch was seen open, or dlm_watch_is_open() would fail. The watch owns the descriptor.
/// Every call writes the same one. Do not read or close it. dlm_watch_free() closes it. Never blocks.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
DLM_NODISCARD
enum dlm_status dlm_watch_fd(const struct dlm_watch *watch, int32_t *fd_out, struct dlm_error **error_out);

/// Sets `*open_out` to true if the latch was seen open. It then stays true, even if a latch that counts up
/// and down has closed again. Does no I/O and never blocks.
///
/// Errors: DLM_NOT_FOUND if the latch was never created or has expired; DLM_CLOSED; and the other errors
/// that end a wait in dlm_latch_await_open().
DLM_NODISCARD
enum dlm_status dlm_watch_is_open(const struct dlm_watch *watch,
                                  bool *open_out,
                                  struct dlm_error **error_out);

/// Ends a watch and frees it. NULL is allowed. Blocks only as dlm_manager_free() says.
void dlm_watch_free(struct dlm_watch *watch);

/// Creates what latches need in the store (a table) if it is missing, and checks that it answers. Without
/// this call, the first dlm_latch_create() creates the table, and takes longer. Blocks and fails like
/// dlm_manager_initialize(). DLM_INVALID_ARGUMENT also if the store keeps locks only.
DLM_NODISCARD
enum dlm_status dlm_manager_initialize_latches(struct dlm_manager *manager, struct dlm_error **error_out);

/// Returns the number of texts; 0 for NULL. Never blocks.
size_t dlm_texts_count(const struct dlm_texts *texts);

/// Returns the text at `index`, from 0, or "" after the last one. Names of participants are sorted. The text lives until
/// `texts` is freed. Never returns NULL. Never blocks.
const char *dlm_texts_at(const struct dlm_texts *texts,
                         size_t index);

/// Frees a list of texts. NULL is allowed. Never blocks.
void dlm_texts_free(struct dlm_texts *texts);

/* ---- Cancellation ---- */

/// Ends waits from another thread. Any number of calls may share one. Once triggered it stays triggered, so
/// create a new one for the next call.
struct dlm_cancel;

/// Creates a cancel object that is not triggered. Returns NULL only if too many are open. Never blocks.
struct dlm_cancel *dlm_cancel_new(void);

/// Ends all current and future waits that were given `cancel`: they fail with DLM_CANCELLED. A wait for a
/// lock first completes a request that it has sent, and releases the lock if the store granted it. This
/// function does not block. It must not be called in a signal handler: see dlm_cancel_trigger_fd().
DLM_NODISCARD
enum dlm_status dlm_cancel_trigger(struct dlm_cancel *cancel, struct dlm_error **error_out);

/// Writes a file descriptor for dlm_cancel_trigger_fd() to `*fd_out`, or -1 on failure. The first call starts a
/// thread, which waits for the trigger. Every call writes the same descriptor. The cancel object owns it:
/// dlm_cancel_free() closes it and ends the thread, once no call uses the object. Prevent the handler from running
/// before that. Never blocks.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left, or the thread cannot be started.
DLM_NODISCARD
enum dlm_status dlm_cancel_signal_fd(const struct dlm_cancel *cancel,
                                     int32_t *fd_out,
                                     struct dlm_error **error_out);

/// Triggers the cancel object of a descriptor from dlm_cancel_signal_fd(), as dlm_cancel_trigger() does, a moment
/// later. This function is async-signal-safe: a signal handler may call it. It is the only such function of the
/// library. It makes one write() to the descriptor and leaves errno unchanged. In a child process after fork(), it
/// triggers the parent's object. Never blocks.
void dlm_cancel_trigger_fd(int32_t fd);

/// Frees a cancel object. NULL is allowed. Calls that were given it continue, and can no longer be
/// cancelled. Never blocks.
void dlm_cancel_free(struct dlm_cancel *cancel);

/* ---- Locks by id, for the threads of one process ---- */

/// Locks for the threads of this process, one for each 64-bit id. The lock of an id exists only while
/// threads hold it or wait for it.
///
/// A held id has no handle: any thread may release it by its number. Ids are not reentrant. One dlm_id_lock
/// takes 16 KiB, and more only while threads wait or several hundred ids are locked. Create one and share
/// it.
struct dlm_id_lock;

/// Creates a set of locks with no id locked. Returns NULL only if too many are open. Never blocks.
struct dlm_id_lock *dlm_id_lock_new(void);

/// Locks `id`. Blocks for up to `wait_ms`: 0 tries once, DLM_FOREVER waits without limit. Thousands of
/// threads may wait for an id. Every half millisecond, one release hands the id to the thread that has
/// waited longest.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the id is still locked after the wait; DLM_CLOSED also if `lock` was
/// freed during the wait.
DLM_NODISCARD
enum dlm_status dlm_id_lock_acquire(struct dlm_id_lock *lock,
                                    uint64_t id,
                                    int64_t wait_ms,
                                    struct dlm_error **error_out);

/// Releases `id`. Any thread may release it. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also if the id is not locked.
DLM_NODISCARD
enum dlm_status dlm_id_lock_release(struct dlm_id_lock *lock, uint64_t id, struct dlm_error **error_out);

/// Locks all of `count` ids, or none. Acquires each id once, in ascending order, even if it is listed more
/// than once. Callers that lock overlapping sets therefore cannot deadlock. `wait_ms` limits the wait for
/// all ids together. Blocks and fails like dlm_id_lock_acquire().
DLM_NODISCARD
enum dlm_status dlm_id_lock_acquire_many(struct dlm_id_lock *lock,
                                         const uint64_t *ids,
                                         size_t count,
                                         int64_t wait_ms,
                                         struct dlm_error **error_out);

/// Releases each of `count` ids once, even if it is listed more than once. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also if one of the ids is not locked. The others are released anyway.
DLM_NODISCARD
enum dlm_status dlm_id_lock_release_many(struct dlm_id_lock *lock,
                                         const uint64_t *ids,
                                         size_t count,
                                         struct dlm_error **error_out);

/// Returns the number of ids that are locked or waited for right now; 0 for NULL. Never blocks for long.
uint64_t dlm_id_lock_count(const struct dlm_id_lock *lock);

/// Frees the locks. NULL is allowed. Releases all locked ids. Waiting threads fail with DLM_CLOSED.
void dlm_id_lock_free(struct dlm_id_lock *lock);

/* ---- Locks by key, for the threads of one process ---- */

/// Like dlm_id_lock, for keys of any bytes: NUL is allowed, and so is the empty key. One dlm_key_lock takes
/// 32 KiB.
struct dlm_key_lock;

/// Creates a set of locks with no key locked. Returns NULL only if too many are open. Never blocks.
struct dlm_key_lock *dlm_key_lock_new(void);

/// Locks the key of `size` bytes at `key`, at most 64 KiB. Blocks and fails like dlm_id_lock_acquire().
DLM_NODISCARD
enum dlm_status dlm_key_lock_acquire(struct dlm_key_lock *lock,
                                     const void *key,
                                     size_t size,
                                     int64_t wait_ms,
                                     struct dlm_error **error_out);

/// Releases a key. Any thread may release it. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also if the key is not locked.
DLM_NODISCARD
enum dlm_status dlm_key_lock_release(struct dlm_key_lock *lock,
                                     const void *key,
                                     size_t size,
                                     struct dlm_error **error_out);

/// Returns the number of keys that are locked or waited for right now; 0 for NULL. Never blocks for long.
uint64_t dlm_key_lock_count(const struct dlm_key_lock *lock);

/// Frees the locks, like dlm_id_lock_free(). NULL is allowed.
void dlm_key_lock_free(struct dlm_key_lock *lock);

/* ---- Log ---- */

/// Log level: a failure that the library could not repair.
#define DLM_LOG_ERROR 1

/// Log level: a failure that caused no loss.
#define DLM_LOG_WARN 2

/// Log level: events for operators.
#define DLM_LOG_INFO 3

/// Log level: what the library does.
#define DLM_LOG_DEBUG 4

/// Receives one line of the library's log. `message` lives until the callback returns.
///
/// Any thread that uses the library and the library's own threads may call it, several at the same time. It
/// must return soon, must not call the library, and must not exit by longjmp() or an exception.
typedef void (*dlm_log_callback)(void *user, int32_t level, const char *message);

/// Sends log lines of `level` (DLM_LOG_ERROR to DLM_LOG_DEBUG) and more severe ones to `callback`, for the
/// whole process. A NULL callback, the default, discards them. The callback receives `user`, which may be
/// NULL.
///
/// Blocks while the previous callback runs. When this function returns, that callback is not called again,
/// and its `user` may be freed. A forked child starts without a callback.
///
/// Errors: DLM_INVALID_ARGUMENT also if a callback calls this function; DLM_ALREADY_EXISTS if Rust code of
/// the program has set its own logger.
DLM_NODISCARD
enum dlm_status dlm_log_to(int32_t level,
                           dlm_log_callback callback,
                           void *user,
                           struct dlm_error **error_out);

#ifdef __cplusplus
}
#endif

#endif

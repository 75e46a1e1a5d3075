//go:build cgo

package dlm

// Only the files capi*.go call C. Handles are numbers that the library checks, not addresses: a call with a freed
// handle fails and does not crash. C keeps no Go memory: texts are lent for one call, and results are returned by
// value.

/*
#cgo LDFLAGS: -L${SRCDIR}/../target/release
#cgo !dlm_static LDFLAGS: -ldlm
#cgo dlm_static LDFLAGS: -l:libdlm.a -lutil -lrt -lpthread -lm -ldl

#include <stdlib.h>
#include "dlm_go.h"
#include "named.h"

// These functions return results by value, so no Go variable has to be placed where C can write to it. They make
// several library calls at once, because a call from Go to C and back costs more than some of those calls.

struct dlm_go_grant {
	enum dlm_status status;
	struct dlm_lease *lease;
	uint64_t fence, epoch;
	int32_t mode, permit;
	struct dlm_error *error;
};

static void dlm_go_describe(struct dlm_go_grant *to) {
	to->fence = dlm_lease_fence(to->lease);
	to->mode = dlm_lease_mode(to->lease);
	to->epoch = to->mode == DLM_MODE_EXCLUSIVE ? to->fence : dlm_lease_epoch(to->lease);
	to->permit = to->mode == DLM_MODE_PERMIT ? dlm_lease_permit(to->lease) : -1;
}

struct dlm_go_manager {
	enum dlm_status status;
	struct dlm_manager *manager;
	struct dlm_error *error;
};

struct dlm_go_number {
	enum dlm_status status;
	int64_t number;
	struct dlm_error *error;
};

struct dlm_go_stats {
	enum dlm_status status;
	struct dlm_stats stats;
	struct dlm_error *error;
};

static struct dlm_go_number dlm_go_check_abi(void) {
	struct dlm_go_number to = {0};
	to.status = dlm_abi_check(DLM_ABI, &to.error);
	return to;
}

static struct dlm_go_manager dlm_go_open(const char *uri, const struct dlm_options *options) {
	struct dlm_go_manager to = {0};
	to.status = dlm_manager_open(uri, options, &to.manager, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_option(struct dlm_options *options, const char *key, const char *value) {
	struct dlm_go_number to = {0};
	to.status = dlm_options_set(options, key, value, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_setting(const struct dlm_manager *manager, const char *key) {
	struct dlm_go_number to = {0};
	to.status = dlm_manager_setting_ms(manager, key, &to.number, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_reach(const struct dlm_manager *manager) {
	struct dlm_go_number to = {0};
	to.status = dlm_manager_reach(manager, DLM_FOREVER, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_initialize(struct dlm_manager *manager) {
	struct dlm_go_number to = {0};
	to.status = dlm_manager_initialize(manager, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_initialize_latches(struct dlm_manager *manager) {
	struct dlm_go_number to = {0};
	to.status = dlm_manager_initialize_latches(manager, &to.error);
	return to;
}

static struct dlm_go_stats dlm_go_stats(const struct dlm_manager *manager) {
	struct dlm_go_stats to = {0};
	to.status = dlm_manager_stats(manager, &to.stats, sizeof to.stats, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_close(struct dlm_manager *manager) {
	struct dlm_go_number to = {0};
	to.status = dlm_manager_close(manager, &to.error);
	dlm_manager_free(manager);
	return to;
}

struct dlm_go_started {
	enum dlm_status status;
	struct dlm_pending *pending;
	bool turn;
	struct dlm_error *error;
};

static struct dlm_go_started dlm_go_start(const struct dlm_manager *manager, const char *id, int32_t level,
                                          int64_t ttl_ms, int64_t wait_ms, int32_t mode,
                                          const struct dlm_lease *nested_in) {
	struct dlm_go_started to = {0};
	struct dlm_lock *lock;
	to.status = dlm_go_lock(manager, id, level, &lock, &to.error);
	if (to.status == DLM_OK) {
		struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
		how.ttl_ms = ttl_ms;
		how.wait_ms = wait_ms;
		how.mode = mode;
		how.nested_in = nested_in;
		to.status = dlm_lock_acquire_start_here(lock, &how, &to.pending, &to.turn, &to.error);
	}
	dlm_lock_free(lock);
	return to;
}

static struct dlm_go_grant dlm_go_take(struct dlm_pending *pending) {
	struct dlm_go_grant to = {0};
	to.status = dlm_pending_take(pending, &to.lease, &to.error);
	dlm_go_describe(&to);
	return to;
}

static struct dlm_go_grant dlm_go_ask_here(struct dlm_pending *pending) {
	struct dlm_go_grant to = {0};
	to.status = dlm_pending_ask(pending, &to.error);
	return to.status == DLM_OK ? dlm_go_take(pending) : to;
}

static struct dlm_go_number dlm_go_notify(struct dlm_pending *pending,
                                          struct dlm_completions *completions, uint64_t tag) {
	struct dlm_go_number to = {0};
	to.status = dlm_pending_notify(pending, completions, tag, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_completions_fd(const struct dlm_completions *completions) {
	struct dlm_go_number to = {0};
	int32_t fd;
	to.status = dlm_completions_fd(completions, &fd, &to.error);
	to.number = fd;
	return to;
}

static struct dlm_completion dlm_go_next(struct dlm_completions *completions) {
	struct dlm_completion next;
	dlm_completions_next(completions, &next, sizeof next);
	return next;
}

static struct dlm_go_number dlm_go_notify_of_end(struct dlm_lease *lease, struct dlm_completions *completions,
                                                 uint64_t tag) {
	struct dlm_go_number to = {0};
	to.status = dlm_lease_notify(lease, completions, tag, &to.error);
	return to;
}

static void dlm_go_cancel(struct dlm_pending *pending) {
	enum dlm_status status = dlm_pending_cancel(pending, NULL);
	(void)status; // the pending acquisition may have been freed
}

static struct dlm_go_grant dlm_go_try(const struct dlm_manager *manager, const char *id, int32_t level,
                                      int64_t ttl_ms, int32_t mode, const struct dlm_lease *nested_in) {
	struct dlm_go_grant to = {0};
	struct dlm_lock *lock;
	to.status = dlm_go_lock(manager, id, level, &lock, &to.error);
	if (to.status == DLM_OK) {
		struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
		how.ttl_ms = ttl_ms;
		how.mode = mode;
		how.nested_in = nested_in;
		to.status = dlm_lock_try_acquire(lock, &how, &to.lease, &to.error);
		dlm_go_describe(&to);
	}
	dlm_lock_free(lock);
	return to;
}

static struct dlm_go_grant dlm_go_adopt(const struct dlm_manager *manager, const char *id, int32_t level,
                                        const char *token) {
	struct dlm_go_grant to = {0};
	struct dlm_lock *lock;
	to.status = dlm_go_lock(manager, id, level, &lock, &to.error);
	if (to.status == DLM_OK) {
		to.status = dlm_lock_adopt(lock, token, &to.lease, &to.error);
		dlm_go_describe(&to);
	}
	dlm_lock_free(lock);
	return to;
}

static struct dlm_go_number dlm_go_inspect(const struct dlm_manager *manager, const char *id, int32_t level,
                                           struct dlm_inspection *seen) {
	struct dlm_go_number to = {0};
	struct dlm_lock *lock;
	to.status = dlm_go_lock(manager, id, level, &lock, &to.error);
	if (to.status == DLM_OK)
		to.status = dlm_lock_inspect(lock, seen, sizeof *seen, &to.error);
	dlm_lock_free(lock);
	return to;
}

struct dlm_go_token {
	enum dlm_status status;
	const char *token; // lives as long as the lease
	struct dlm_error *error;
};

static struct dlm_go_token dlm_go_into_token(struct dlm_lease *lease) {
	struct dlm_go_token to = {0};
	to.status = dlm_lease_into_token(lease, &to.token, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_check(const struct dlm_lease *lease) {
	struct dlm_go_number to = {0};
	to.status = dlm_lease_check(lease, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_keep(struct dlm_lease *lease, int64_t max_hold_ms) {
	struct dlm_go_number to = {0};
	to.status = dlm_lease_keep(lease, max_hold_ms, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_stop_keeping(struct dlm_lease *lease) {
	struct dlm_go_number to = {0};
	to.status = dlm_lease_stop_keeping(lease, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_hold_at_least(struct dlm_lease *lease, int64_t min_hold_ms) {
	struct dlm_go_number to = {0};
	to.status = dlm_lease_hold_at_least(lease, min_hold_ms, &to.error);
	return to;
}

struct dlm_go_findings {
	enum dlm_status status;
	bool is_safe;
	struct dlm_texts *findings;
	struct dlm_error *error;
};

static struct dlm_go_findings dlm_go_diagnose(const struct dlm_manager *manager) {
	struct dlm_go_findings to = {0};
	to.status = dlm_manager_diagnose(manager, &to.findings, &to.is_safe, &to.error);
	return to;
}

static struct dlm_go_findings dlm_go_metrics_text(struct dlm_manager *manager) {
	struct dlm_go_findings to = {0};
	to.status = dlm_manager_metrics_text(manager, &to.findings, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_renew(struct dlm_lease *lease, int64_t ttl_ms) {
	struct dlm_go_number to = {0};
	to.status = dlm_lease_renew(lease, ttl_ms, &to.error);
	return to;
}

static struct dlm_go_number dlm_go_release(struct dlm_lease *lease) {
	struct dlm_go_number to = {0};
	bool freed;
	to.status = dlm_lease_release(lease, &freed, &to.error);
	to.number = freed;
	dlm_lease_free(lease);
	return to;
}

#cgo noescape dlm_go_open
#cgo noescape dlm_go_option
#cgo noescape dlm_go_setting
#cgo noescape dlm_go_try
#cgo noescape dlm_go_start
#cgo noescape dlm_go_adopt
#cgo noescape dlm_go_inspect
#cgo nocallback dlm_go_try
#cgo nocallback dlm_go_start
#cgo nocallback dlm_go_take
#cgo nocallback dlm_go_ask_here
#cgo nocallback dlm_go_check
#cgo nocallback dlm_go_renew
#cgo nocallback dlm_go_release
*/
import "C"

import (
	"strings"
	"time"
	"unsafe"
)

const (
	levelDC   = C.DLM_LEVEL_DC
	levelXDC  = C.DLM_LEVEL_XDC
	levelFull = C.DLM_GO_FULL_NAME
)

type (
	managerHandle     = *C.struct_dlm_manager
	leaseHandle       = *C.struct_dlm_lease
	pendingHandle     = *C.struct_dlm_pending
	completionsHandle = *C.struct_dlm_completions
)

// Version returns the version of the library that this program runs with, such as "0.1.0".
func Version() string { return C.GoString(C.dlm_version()) }

// VersionNumber returns the version of the library as a number to compare: major * 1,000,000 + minor * 1,000 + patch.
func VersionNumber() int { return int(C.dlm_version_number()) }

func openManager(uri string, options []setting) (managerHandle, error) {
	// A library that was built from another header might read the arguments differently.
	if to := C.dlm_go_check_abi(); to.status != C.DLM_OK {
		return nil, failure(to.status, to.error)
	}
	given := C.dlm_options_new()
	defer C.dlm_options_free(given)
	for _, option := range options {
		key, err := lent(option.key)
		if err != nil {
			return nil, err
		}
		value, err := lent(option.value)
		if err != nil {
			return nil, err
		}
		if to := C.dlm_go_option(given, key, value); to.status != C.DLM_OK {
			return nil, failure(to.status, to.error)
		}
	}
	text, err := lent(uri)
	if err != nil {
		return nil, err
	}
	logOpened() // first, because dlm_manager_open may log
	to := C.dlm_go_open(text, given)
	err = failure(to.status, to.error)
	if err != nil {
		logClosed()
	}
	return to.manager, err
}

func managerSetting(manager managerHandle, key string) (time.Duration, error) {
	text, err := lent(key)
	if err != nil {
		return 0, err
	}
	to := C.dlm_go_setting(manager, text)
	if ms := int64(to.number); ms != C.DLM_FOREVER && ms < int64(Forever/time.Millisecond) {
		return time.Duration(ms) * time.Millisecond, failure(to.status, to.error)
	}
	return Forever, failure(to.status, to.error)
}

func reachStore(manager managerHandle) error {
	to := C.dlm_go_reach(manager)
	return failure(to.status, to.error)
}

func initializeManager(manager managerHandle) error {
	to := C.dlm_go_initialize(manager)
	return failure(to.status, to.error)
}

func initializeLatches(manager managerHandle) error {
	to := C.dlm_go_initialize_latches(manager)
	return failure(to.status, to.error)
}

// readStats returns the numbers that the library keeps. They are zero if the manager is closed.
func readStats(manager managerHandle) (Stats, error) {
	to := C.dlm_go_stats(manager)
	return Stats{
		LeasesHeld:        int(to.stats.leases_held),
		Waiting:           int(to.stats.threads_waiting),
		StaleNumbers:      int(to.stats.stale_numbers),
		ReadsAfterRefusal: int(to.stats.reads_after_refusal),
		FencesSeeded:      int(to.stats.fences_seeded),
		NoticesSent:       int(to.stats.notices_sent),
		NoticesUnsent:     int(to.stats.notices_unsent),
		NoticesIgnored:    int(to.stats.notices_ignored),
		EarlyAsks:         int(to.stats.early_asks),
		LeasesRetaken:     int(to.stats.leases_retaken),
	}, failure(to.status, to.error)
}

func closeManager(manager managerHandle) error {
	to := C.dlm_go_close(manager)
	logClosed()
	return failure(to.status, to.error)
}

// tryLock tries once to acquire the lock.
func tryLock(manager managerHandle, name Name, how acquisition) (grant, error) {
	id, err := name.lent()
	if err != nil {
		return grant{}, err
	}
	to := C.dlm_go_try(manager, id, C.int32_t(name.level), C.int64_t(millis(how.ttl)), C.int32_t(how.mode), how.outer())
	return grantOf(to), failure(to.status, to.error)
}

// startLock starts to acquire the lock. It waits without limit when wait is Forever. When turn is true, the caller
// must call [askForLock] soon. The caller frees the handle.
func startLock(manager managerHandle, name Name, how acquisition, wait time.Duration) (pending pendingHandle, turn bool, err error) {
	id, err := name.lent()
	if err != nil {
		return nil, false, err
	}
	to := C.dlm_go_start(manager, id, C.int32_t(name.level), C.int64_t(millis(how.ttl)), waitMillis(wait), C.int32_t(how.mode),
		how.outer())
	return to.pending, bool(to.turn), failure(to.status, to.error)
}

func waitMillis(wait time.Duration) C.int64_t {
	if wait < Forever/2 {
		return C.int64_t(millis(wait))
	}
	return C.DLM_FOREVER
}

// askForLock sends the first request from this thread. It returns no lease and no error when the lock is held.
func askForLock(pending pendingHandle) ([]grant, error) {
	to := C.dlm_go_ask_here(pending)
	return grantsOf(to), failure(to.status, to.error)
}

// takeLease returns the result. It returns no lease and no error when there is none yet.
func takeLease(pending pendingHandle) ([]grant, error) {
	to := C.dlm_go_take(pending)
	return grantsOf(to), failure(to.status, to.error)
}

func grantsOf(to C.struct_dlm_go_grant) []grant {
	if to.lease == nil {
		return nil
	}
	return []grant{grantOf(to)}
}

func grantOf(to C.struct_dlm_go_grant) grant {
	return grant{to.lease, uint64(to.fence), uint64(to.epoch), Mode(to.mode), int(to.permit)}
}

func cancelPending(pending pendingHandle) { C.dlm_go_cancel(pending) }

func freePending(pending pendingHandle) { C.dlm_pending_free(pending) }

// notifyOf puts the tag into the list when the acquisition finishes.
func notifyOf(pending pendingHandle, completions completionsHandle, tag uint64) error {
	to := C.dlm_go_notify(pending, completions, C.uint64_t(tag))
	return failure(to.status, to.error)
}

func newCompletions() (completionsHandle, error) {
	completions := C.dlm_completions_new()
	if completions == nil {
		return nil, newError(CodeInternal, "too many open lists of completions")
	}
	return completions, nil
}

func completionsDescriptor(completions completionsHandle) (int, error) {
	to := C.dlm_go_completions_fd(completions)
	return int(to.number), failure(to.status, to.error)
}

// The kinds of completions.
const (
	completionFinished = C.DLM_COMPLETION_FINISHED
	completionAtRisk   = C.DLM_COMPLETION_AT_RISK
	completionEnded    = C.DLM_COMPLETION_ENDED
)

// nextCompletion takes the next tag out of the list, with what has happened. It returns a kind of 0 when the list is empty.
func nextCompletion(completions completionsHandle) (tag uint64, kind int) {
	next := C.dlm_go_next(completions)
	return uint64(next.tag), int(next.kind)
}

// notifyOfEnd puts the tag into the list when the lease is at risk, and when it has ended.
func notifyOfEnd(lease leaseHandle, completions completionsHandle, tag uint64) error {
	to := C.dlm_go_notify_of_end(lease, completions, C.uint64_t(tag))
	return failure(to.status, to.error)
}

func freeCompletions(completions completionsHandle) { C.dlm_completions_free(completions) }

// adoptLease makes the lease of a token of this lock.
func adoptLease(manager managerHandle, name Name, token string) (grant, error) {
	id, err := name.lent()
	if err != nil {
		return grant{}, err
	}
	text, err := lent(token)
	if err != nil {
		return grant{}, err
	}
	to := C.dlm_go_adopt(manager, id, C.int32_t(name.level), text)
	return grantOf(to), failure(to.status, to.error)
}

func inspectLock(manager managerHandle, name Name) (Inspection, error) {
	id, err := name.lent()
	if err != nil {
		return Inspection{}, err
	}
	var seen C.struct_dlm_inspection
	to := C.dlm_go_inspect(manager, id, C.int32_t(name.level), &seen)
	if err := failure(to.status, to.error); err != nil {
		return Inspection{}, err
	}
	return inspectionOf(&seen), nil
}

func inspectionOf(seen *C.struct_dlm_inspection) Inspection {
	inspection := Inspection{Fence: uint64(seen.fence), Layout: C.GoString(&seen.layout[0])}
	if bool(seen.is_held) {
		inspection.Holder = &Holder{
			Host:      C.GoString(&seen.host[0]),
			PID:       max(int(seen.pid), 0),
			Started:   since1970(seen.start_ms),
			Purpose:   C.GoString(&seen.purpose[0]),
			Remaining: max(time.Duration(seen.left_ms)*time.Millisecond, -1),
			Since:     since1970(seen.since_ms),
			Mode:      Mode(seen.mode),
			Permit:    int(seen.permit),
		}
	}
	return inspection
}

// since1970 returns the zero time for a time that is not known.
func since1970(ms C.int64_t) time.Time {
	if ms < 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms))
}

// leaseIntoToken ends the lease and returns its token. The handle must still be freed.
func leaseIntoToken(lease leaseHandle) (string, error) {
	to := C.dlm_go_into_token(lease)
	return C.GoString(to.token), failure(to.status, to.error)
}

func checkLease(lease leaseHandle) error {
	to := C.dlm_go_check(lease)
	return failure(to.status, to.error)
}

func leaseRemaining(lease leaseHandle) time.Duration {
	return time.Duration(C.dlm_lease_remaining_ms(lease)) * time.Millisecond
}

func leaseState(lease leaseHandle) (LeaseState, LostReason) {
	state := LeaseState(C.dlm_lease_state(lease))
	return state, LostReason(C.dlm_lease_lost_reason(lease))
}

// keepLease keeps the lease alive, for ever when maxHold is Forever.
func keepLease(lease leaseHandle, maxHold time.Duration) error {
	ms := C.int64_t(C.DLM_FOREVER)
	if maxHold != Forever {
		ms = C.int64_t(millis(maxHold))
	}
	to := C.dlm_go_keep(lease, ms)
	return failure(to.status, to.error)
}

func stopKeepingLease(lease leaseHandle) error {
	to := C.dlm_go_stop_keeping(lease)
	return failure(to.status, to.error)
}

func holdLease(lease leaseHandle, minHold time.Duration) error {
	to := C.dlm_go_hold_at_least(lease, C.int64_t(millis(minHold)))
	return failure(to.status, to.error)
}

func leaseTTL(lease leaseHandle) time.Duration {
	return time.Duration(C.dlm_lease_ttl_ms(lease)) * time.Millisecond
}

// diagnoseStore returns a line for each finding.
func diagnoseStore(manager managerHandle) (findings []string, isSafe bool, err error) {
	to := C.dlm_go_diagnose(manager)
	defer C.dlm_texts_free(to.findings)
	return textsOf(to.findings), bool(to.is_safe), failure(to.status, to.error)
}

// metricsText returns a page of metrics.
func metricsText(manager managerHandle) (string, error) {
	to := C.dlm_go_metrics_text(manager)
	defer C.dlm_texts_free(to.findings)
	return C.GoString(C.dlm_texts_at(to.findings, 0)), failure(to.status, to.error)
}

func textsOf(list *C.struct_dlm_texts) []string {
	var texts []string
	for at := range C.dlm_texts_count(list) {
		texts = append(texts, C.GoString(C.dlm_texts_at(list, at)))
	}
	return texts
}

// storeOf returns the URI of the store, or "" if the manager is closed.
func storeOf(manager managerHandle) string { return C.GoString(C.dlm_manager_store(manager)) }

// renewLease renews the lease for ttl from now, or for its last TTL when ttl is 0.
func renewLease(lease leaseHandle, ttl time.Duration) error {
	ms := int64(C.DLM_DEFAULT)
	if ttl != 0 {
		ms = millis(ttl)
	}
	to := C.dlm_go_renew(lease, C.int64_t(ms))
	return failure(to.status, to.error)
}

// releaseLease releases the lease and frees the handle. After a failure the library continues to retry.
func releaseLease(lease leaseHandle) (released bool, err error) {
	to := C.dlm_go_release(lease)
	return to.number != 0, failure(to.status, to.error)
}

func freeLease(lease leaseHandle) { C.dlm_lease_free(lease) }

// handlesOpen returns the number of library handles that are not freed, in the whole process.
func handlesOpen() int { return int(C.dlm_handles_open()) }

// statusName returns the name of a code in documentation, logs and the other languages.
func statusName(code Code) string {
	number := C.int32_t(code)
	if Code(number) != code {
		number = -1 // no code
	}
	return C.GoString(C.dlm_status_name(number))
}

// inGo returns the message for a handle that was freed, in words of this package. No other message that calls of it cause
// has names of C.
func inGo(message string) string {
	handle, isFreed := strings.CutSuffix(message, " was freed")
	switch kind := strings.TrimPrefix(handle, "this dlm_"); {
	case !isFreed || kind == handle:
		return message
	case kind == "manager" || kind == "table":
		return "the " + kind + " was closed"
	case kind == "lease":
		return "the lease was released"
	default:
		return "this " + strings.ReplaceAll(kind, "_", " ") + " is over"
	}
}

// failure converts the error and frees it. It returns nil for DLM_OK.
func failure(status C.enum_dlm_status, from *C.struct_dlm_error) error {
	if status == C.DLM_OK {
		return nil
	}
	defer C.dlm_error_free(from)
	err := newError(Code(status), inGo(C.GoString(C.dlm_error_message(from))))
	err.Retryable = bool(C.dlm_error_is_retryable(from))
	var fence, stored C.uint64_t
	if bool(C.dlm_error_fences(from, &fence, &stored)) {
		err.Fence, err.StoredFence = uint64(fence), uint64(stored)
	}
	err.Reason = LostReason(C.dlm_error_lost_reason(from))
	return err
}

// lent returns the id for one call. The level must not be that of the zero value.
func (n Name) lent() (*C.char, error) {
	if n == (Name{}) {
		return nil, unmade("Name", "DC or XDC")
	}
	return lent(n.id)
}

// lent returns a C string that is valid for one call.
func lent(text string) (*C.char, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return nil, newError(CodeInvalidArgument, "text with a NUL in it is not allowed")
	}
	bytes := make([]byte, len(text)+1)
	copy(bytes, text)
	return borrowed(bytes), nil
}

func borrowed(bytes []byte) *C.char { return (*C.char)(unsafe.Pointer(unsafe.SliceData(bytes))) }

// millis rounds up to milliseconds: a short time must not become 0.
func millis(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

//go:build cgo

package dlm

/*
#include "dlm_go.h"
#include "named.h"

struct dlm_go_changed {
	enum dlm_status status;
	struct dlm_lease *lease;
	struct dlm_error *error;
};

static struct dlm_go_changed dlm_go_downgrade(struct dlm_lease *lease, int32_t mode) {
	struct dlm_go_changed to = {0};
	to.status = dlm_lease_downgrade(lease, mode, &to.lease, &to.error);
	return to;
}

static struct dlm_go_changed dlm_go_upgrade(struct dlm_lease *lease, int64_t wait_ms, const struct dlm_cancel *cancel) {
	struct dlm_go_changed to = {0};
	to.status = dlm_lease_upgrade(lease, wait_ms, cancel, &to.lease, &to.error);
	return to;
}

static void dlm_go_trigger(struct dlm_cancel *cancel) {
	enum dlm_status status = dlm_cancel_trigger(cancel, NULL);
	(void)status; // the call may be over
}

struct dlm_go_holders {
	enum dlm_status status;
	struct dlm_lock_list *list;
	struct dlm_error *error;
};

static struct dlm_go_holders dlm_go_lock_holders(const struct dlm_manager *manager, const char *id, int32_t level) {
	struct dlm_go_holders to = {0};
	struct dlm_lock *lock;
	to.status = dlm_go_lock(manager, id, level, &lock, &to.error);
	if (to.status == DLM_OK)
		to.status = dlm_lock_holders(lock, &to.list, &to.error);
	dlm_lock_free(lock);
	return to;
}

struct dlm_go_semaphore {
	enum dlm_status status;
	struct dlm_semaphore *semaphore;
	struct dlm_pending *pending;
	bool turn;
	int32_t number;
	struct dlm_lock_list *list;
	struct dlm_error *error;
};

static struct dlm_go_semaphore dlm_go_semaphore(const struct dlm_manager *manager, const char *id, int32_t level,
                                                int32_t permits) {
	struct dlm_go_semaphore to = {0};
	to.status = dlm_manager_semaphore(manager, id, level, permits, &to.semaphore, &to.error);
	return to;
}

// The caller frees the semaphore.
static struct dlm_go_semaphore dlm_go_start_permits(struct dlm_semaphore *semaphore, int64_t ttl_ms, int64_t wait_ms,
                                                    size_t count) {
	struct dlm_go_semaphore to = {0};
	struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
	how.ttl_ms = ttl_ms;
	how.wait_ms = wait_ms;
	to.status = dlm_semaphore_acquire_start_here(semaphore, count, &how, &to.pending, &to.turn, &to.error);
	return to;
}

static struct dlm_go_semaphore dlm_go_try_permits(struct dlm_semaphore *semaphore, int64_t ttl_ms, size_t count,
                                                  struct dlm_lease **permits) {
	struct dlm_go_semaphore to = {0};
	struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
	how.ttl_ms = ttl_ms;
	to.status = dlm_semaphore_try_acquire(semaphore, count, &how, permits, &to.error);
	return to;
}

static struct dlm_go_semaphore dlm_go_ask_for_permits(struct dlm_pending *pending) {
	struct dlm_go_semaphore to = {0};
	to.status = dlm_pending_ask(pending, &to.error);
	return to;
}

static struct dlm_go_semaphore dlm_go_take_permits(struct dlm_pending *pending, struct dlm_lease **permits, size_t count) {
	struct dlm_go_semaphore to = {0};
	to.status = dlm_pending_take_permits(pending, permits, count, &to.error);
	return to;
}

static struct dlm_go_semaphore dlm_go_available(const struct dlm_semaphore *semaphore) {
	struct dlm_go_semaphore to = {0};
	to.status = dlm_semaphore_available(semaphore, &to.number, &to.error);
	return to;
}

static struct dlm_go_semaphore dlm_go_permit_holders(const struct dlm_semaphore *semaphore) {
	struct dlm_go_semaphore to = {0};
	to.status = dlm_semaphore_holders(semaphore, &to.list, &to.error);
	return to;
}

static struct dlm_go_semaphore dlm_go_resize(struct dlm_semaphore *semaphore, int32_t permits) {
	struct dlm_go_semaphore to = {0};
	to.status = dlm_semaphore_resize(semaphore, permits, &to.semaphore, &to.error);
	return to;
}

#cgo noescape dlm_go_try_permits
#cgo noescape dlm_go_take_permits
#cgo nocallback dlm_go_try_permits
#cgo nocallback dlm_go_take_permits
#cgo nocallback dlm_go_ask_for_permits
*/
import "C"

import (
	"math"
	"time"
)

type (
	cancelHandle    = *C.struct_dlm_cancel
	semaphoreHandle = *C.struct_dlm_semaphore
)

func newCancel() (cancelHandle, error) {
	cancel := C.dlm_cancel_new()
	if cancel == nil {
		return nil, newError(CodeInternal, "too many upgrades at one time")
	}
	return cancel, nil
}

func triggerCancel(cancel cancelHandle) { C.dlm_go_trigger(cancel) }

func freeCancel(cancel cancelHandle) { C.dlm_cancel_free(cancel) }

func downgradeLease(lease leaseHandle, mode Mode) (grant, error) {
	to := C.dlm_go_downgrade(lease, C.int32_t(mode))
	return grantOfLease(to.lease), failure(to.status, to.error)
}

// upgradeLease waits without limit when wait is Forever.
func upgradeLease(lease leaseHandle, wait time.Duration, cancel cancelHandle) (grant, error) {
	to := C.dlm_go_upgrade(lease, waitMillis(wait), cancel)
	return grantOfLease(to.lease), failure(to.status, to.error)
}

// grantOfLease reads what a lease was granted with.
func grantOfLease(lease leaseHandle) grant {
	return grant{
		lease, uint64(C.dlm_lease_fence(lease)), uint64(C.dlm_lease_epoch(lease)), Mode(C.dlm_lease_mode(lease)),
		int(C.dlm_lease_permit(lease)),
	}
}

func lockHolders(manager managerHandle, name Name) ([]Holder, error) {
	id, err := name.lent()
	if err != nil {
		return nil, err
	}
	to := C.dlm_go_lock_holders(manager, id, C.int32_t(name.level))
	return holdersOf(to.list), failure(to.status, to.error)
}

// holdersOf reads a list of holders and frees it.
func holdersOf(list *C.struct_dlm_lock_list) []Holder {
	defer C.dlm_lock_list_free(list)
	var holders []Holder
	for at := range C.dlm_lock_list_count(list) {
		if seen, err := inspectionAt(list, at); err == nil && seen.Holder != nil {
			holders = append(holders, *seen.Holder)
		}
	}
	return holders
}

// withSemaphore runs use with a handle of the semaphore.
func withSemaphore(manager managerHandle, name Name, permits int, use func(semaphoreHandle) C.struct_dlm_go_semaphore) (C.struct_dlm_go_semaphore, error) {
	id, err := name.lent()
	if err != nil {
		return C.struct_dlm_go_semaphore{}, err
	}
	if name.level == levelFull {
		return C.struct_dlm_go_semaphore{}, invalid("a full name is not allowed for a semaphore: DC or XDC")
	}
	to := C.dlm_go_semaphore(manager, id, C.int32_t(name.level), size(permits))
	if err := failure(to.status, to.error); err != nil {
		return to, err
	}
	defer C.dlm_semaphore_free(to.semaphore)
	to = use(to.semaphore)
	return to, failure(to.status, to.error)
}

// size returns a number of permits that the library can refuse.
func size(permits int) C.int32_t {
	return C.int32_t(max(math.MinInt32, min(permits, math.MaxInt32)))
}

func checkSemaphore(manager managerHandle, name Name, permits int) error {
	_, err := withSemaphore(manager, name, permits, func(semaphoreHandle) C.struct_dlm_go_semaphore {
		return C.struct_dlm_go_semaphore{}
	})
	return err
}

// tryPermits tries once to acquire the permits.
func tryPermits(manager managerHandle, s *Semaphore, ttl time.Duration, count int) ([]grant, error) {
	var leases [permitsMax]leaseHandle
	_, err := withSemaphore(manager, s.name, s.permits, func(semaphore semaphoreHandle) C.struct_dlm_go_semaphore {
		return C.dlm_go_try_permits(semaphore, C.int64_t(millis(ttl)), C.size_t(count), &leases[0])
	})
	return grantsOfLeases(leases[:count]), err
}

// startPermits starts to acquire the permits. When turn is true, the caller must call [askForPermits] soon. The caller frees the
// handle.
func startPermits(manager managerHandle, s *Semaphore, ttl, wait time.Duration, count int) (pending pendingHandle, turn bool, err error) {
	to, err := withSemaphore(manager, s.name, s.permits, func(semaphore semaphoreHandle) C.struct_dlm_go_semaphore {
		return C.dlm_go_start_permits(semaphore, C.int64_t(millis(ttl)), waitMillis(wait), C.size_t(count))
	})
	return to.pending, bool(to.turn), err
}

// askForPermits sends the first request from this thread.
func askForPermits(pending pendingHandle) error {
	to := C.dlm_go_ask_for_permits(pending)
	return failure(to.status, to.error)
}

// takePermits returns the result. It returns no grants and no error when there is none yet.
func takePermits(pending pendingHandle, count int) ([]grant, error) {
	var leases [permitsMax]leaseHandle
	to := C.dlm_go_take_permits(pending, &leases[0], C.size_t(count))
	return grantsOfLeases(leases[:count]), failure(to.status, to.error)
}

func grantsOfLeases(leases []leaseHandle) []grant {
	var granted []grant
	for _, lease := range leases {
		if lease != nil {
			granted = append(granted, grantOfLease(lease))
		}
	}
	return granted
}

func availablePermits(manager managerHandle, s *Semaphore) (int, error) {
	to, err := withSemaphore(manager, s.name, s.permits, func(semaphore semaphoreHandle) C.struct_dlm_go_semaphore {
		return C.dlm_go_available(semaphore)
	})
	return int(to.number), err
}

func permitHolders(manager managerHandle, s *Semaphore) ([]Holder, error) {
	to, err := withSemaphore(manager, s.name, s.permits, func(semaphore semaphoreHandle) C.struct_dlm_go_semaphore {
		return C.dlm_go_permit_holders(semaphore)
	})
	return holdersOf(to.list), err
}

// resizeSemaphore changes the number of permits in the store.
func resizeSemaphore(manager managerHandle, s *Semaphore, permits int) error {
	to, err := withSemaphore(manager, s.name, s.permits, func(semaphore semaphoreHandle) C.struct_dlm_go_semaphore {
		return C.dlm_go_resize(semaphore, size(permits))
	})
	C.dlm_semaphore_free(to.semaphore)
	return err
}

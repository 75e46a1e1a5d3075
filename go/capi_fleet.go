//go:build cgo

package dlm

/*
#include "named.h"

struct dlm_go_listed {
	enum dlm_status status;
	struct dlm_lock_list *list;
	struct dlm_error *error;
};

static struct dlm_go_listed dlm_go_list(const struct dlm_manager *manager, const char *prefix, bool held_only,
                                        const char *after) {
	struct dlm_go_listed to = {0};
	to.status = dlm_manager_list(manager, prefix, held_only, after, &to.list, &to.error);
	return to;
}

struct dlm_go_seen {
	enum dlm_status status;
	struct dlm_seen *seen;
	struct dlm_inspection inspection;
	struct dlm_error *error;
};

static struct dlm_go_seen dlm_go_see(const struct dlm_manager *manager, const char *id, int32_t level) {
	struct dlm_go_seen to = {0};
	struct dlm_lock *lock;
	to.status = dlm_go_lock(manager, id, level, &lock, &to.error);
	if (to.status == DLM_OK)
		to.status = dlm_lock_see(lock, &to.seen, &to.error);
	if (to.status == DLM_OK)
		to.status = dlm_seen_inspection(to.seen, &to.inspection, sizeof to.inspection, &to.error);
	dlm_lock_free(lock);
	return to;
}

struct dlm_go_broken {
	enum dlm_status status;
	bool is_broken, is_recorded;
	uint64_t fence;
	struct dlm_error *error;
};

static struct dlm_go_broken dlm_go_break(struct dlm_seen *seen, const char *reason) {
	struct dlm_go_broken to = {0};
	to.status = dlm_seen_break(seen, reason, &to.is_broken, &to.fence, &to.is_recorded, &to.error);
	return to;
}

struct dlm_go_waiting {
	enum dlm_status status;
	bool is_known;
	uint64_t threads, processes;
	int64_t longest_ms;
	struct dlm_error *error;
};

static struct dlm_go_waiting dlm_go_ask_waiting(const struct dlm_manager *manager, const char *id, int32_t level) {
	struct dlm_go_waiting to = {0};
	struct dlm_lock *lock;
	to.status = dlm_go_lock(manager, id, level, &lock, &to.error);
	if (to.status == DLM_OK)
		to.status = dlm_lock_waiting(lock, &to.is_known, &to.threads, &to.processes, &to.longest_ms, &to.error);
	dlm_lock_free(lock);
	return to;
}

struct dlm_go_history {
	enum dlm_status status;
	struct dlm_history *history;
	struct dlm_error *error;
};

static struct dlm_go_history dlm_go_read_history(const struct dlm_manager *manager, const char *id, int32_t level,
                                                 uint64_t since_ms, size_t most) {
	struct dlm_go_history to = {0};
	struct dlm_lock *lock;
	to.status = dlm_go_lock(manager, id, level, &lock, &to.error);
	if (to.status == DLM_OK)
		to.status = dlm_lock_history(lock, since_ms, most, &to.history, &to.error);
	dlm_lock_free(lock);
	return to;
}

static struct dlm_history_entry dlm_go_entry_at(const struct dlm_history *history, size_t at) {
	struct dlm_history_entry entry;
	dlm_history_at(history, at, &entry, sizeof entry);
	return entry;
}
*/
import "C"

import "time"

// lockPage is a part of a list of locks.
type lockPage struct {
	locks []ListedLock
	next  string
}

func listLocks(manager managerHandle, prefix string, heldOnly bool, after string) (lockPage, error) {
	begin, err := lent(prefix)
	if err != nil {
		return lockPage{}, err
	}
	cursor, err := lent(after)
	if err != nil {
		return lockPage{}, err
	}
	to := C.dlm_go_list(manager, begin, C.bool(heldOnly), cursor)
	defer C.dlm_lock_list_free(to.list)
	if err := failure(to.status, to.error); err != nil {
		return lockPage{}, err
	}
	page := lockPage{next: C.GoString(C.dlm_lock_list_next(to.list))}
	for at := range C.dlm_lock_list_count(to.list) {
		inspection, err := inspectionAt(to.list, at)
		if err != nil {
			return lockPage{}, err
		}
		page.locks = append(page.locks, ListedLock{
			FullName:   C.GoString(C.dlm_lock_list_key(to.list, at)),
			Named:      bool(C.dlm_lock_list_is_named(to.list, at)),
			Inspection: inspection,
		})
	}
	return page, nil
}

func inspectionAt(list *C.struct_dlm_lock_list, at C.size_t) (Inspection, error) {
	var seen C.struct_dlm_inspection
	var failed *C.struct_dlm_error
	status := C.dlm_lock_list_inspection(list, at, &seen, C.size_t(C.sizeof_struct_dlm_inspection), &failed)
	return inspectionOf(&seen), failure(status, failed)
}

type seenHandle = *C.struct_dlm_seen

func seeLock(manager managerHandle, name Name) (seenHandle, Inspection, error) {
	id, err := name.lent()
	if err != nil {
		return nil, Inspection{}, err
	}
	to := C.dlm_go_see(manager, id, C.int32_t(name.level))
	if err := failure(to.status, to.error); err != nil {
		C.dlm_seen_free(to.seen)
		return nil, Inspection{}, err
	}
	return to.seen, inspectionOf(&to.inspection), nil
}

func freeSeen(seen seenHandle) { C.dlm_seen_free(seen) }

func breakLock(seen seenHandle, reason string) (Broken, error) {
	why, err := lent(reason)
	if err != nil {
		return Broken{}, err
	}
	to := C.dlm_go_break(seen, why)
	return Broken{bool(to.is_broken), uint64(to.fence), bool(to.is_recorded)}, failure(to.status, to.error)
}

func askWaiting(manager managerHandle, name Name) (*Waiters, error) {
	id, err := name.lent()
	if err != nil {
		return nil, err
	}
	to := C.dlm_go_ask_waiting(manager, id, C.int32_t(name.level))
	if err := failure(to.status, to.error); err != nil || !bool(to.is_known) {
		return nil, err
	}
	longest := time.Duration(to.longest_ms) * time.Millisecond
	return &Waiters{int(to.threads), int(to.processes), longest}, nil
}

func readHistory(manager managerHandle, name Name, since time.Time, most int) ([]HistoryEntry, error) {
	id, err := name.lent()
	if err != nil {
		return nil, err
	}
	sinceMS := C.uint64_t(max(since.UnixMilli(), 0))
	to := C.dlm_go_read_history(manager, id, C.int32_t(name.level), sinceMS, C.size_t(max(most, 0)))
	defer C.dlm_history_free(to.history)
	if err := failure(to.status, to.error); err != nil {
		return nil, err
	}
	var entries []HistoryEntry
	for at := range C.dlm_history_count(to.history) {
		entry := C.dlm_go_entry_at(to.history, at)
		entries = append(entries, HistoryEntry{
			Kind:       C.GoString(entry.kind),
			At:         time.UnixMilli(int64(entry.at_ms)),
			Fence:      uint64(entry.fence),
			Took:       max(time.Duration(entry.took_ms)*time.Millisecond, -1),
			Text:       C.GoString(entry.text),
			By:         C.GoString(entry.by),
			Victim:     C.GoString(entry.victim),
			Mode:       int(entry.mode),
			ModeBefore: int(entry.mode_before),
		})
	}
	return entries, nil
}

//go:build cgo

package dlm

// The calls of capi.go for latches.

/*
#include <stdlib.h>
#include <string.h>
#include "dlm.h"

struct dlm_go_latch {
	const struct dlm_manager *manager;
	const char *id;
	int32_t level, kind;
	int64_t ttl_ms;
};

struct dlm_go_answer {
	enum dlm_status status;
	int64_t number;
	struct dlm_texts *names;
	struct dlm_error *error;
};

enum dlm_go_latch_call {
	DLM_GO_CREATE,
	DLM_GO_GET_OR_CREATE,
	DLM_GO_COUNT,
	DLM_GO_COUNT_DOWN,
	DLM_GO_COUNT_UP,
	DLM_GO_COUNT_DOWN_AS,
	DLM_GO_PENDING,
	DLM_GO_ARRIVED,
	DLM_GO_RESET,
	DLM_GO_DELETE,
};

static struct dlm_latch *dlm_go_find_latch(struct dlm_go_latch of, struct dlm_go_answer *to) {
	struct dlm_latch *latch;
	to->status = dlm_manager_latch(of.manager, of.id, of.level, of.kind, of.ttl_ms, &latch, &to->error);
	return latch;
}

static struct dlm_go_answer dlm_go_call_latch(const struct dlm_manager *manager, const char *id, int32_t level,
                                              int32_t kind, int64_t ttl_ms, enum dlm_go_latch_call call,
                                              int64_t count, const char *participant) {
	struct dlm_go_answer to = {0};
	struct dlm_latch *latch = dlm_go_find_latch((struct dlm_go_latch){manager, id, level, kind, ttl_ms}, &to);
	bool yes = false;
	if (to.status != DLM_OK)
		return to;
	switch (call) {
	case DLM_GO_CREATE:
		to.status = dlm_latch_create(latch, count, &to.error);
		break;
	case DLM_GO_GET_OR_CREATE:
		to.status = dlm_latch_get_or_create(latch, count, &yes, &to.error);
		to.number = yes;
		break;
	case DLM_GO_COUNT:
		to.status = dlm_latch_count(latch, &to.number, &to.error);
		break;
	case DLM_GO_COUNT_DOWN:
		to.status = dlm_latch_count_down(latch, &to.error);
		break;
	case DLM_GO_COUNT_UP:
		to.status = dlm_latch_count_up(latch, &to.error);
		break;
	case DLM_GO_COUNT_DOWN_AS:
		to.status = dlm_latch_count_down_as(latch, participant, &yes, &to.error);
		to.number = yes;
		break;
	case DLM_GO_PENDING:
		to.status = dlm_latch_pending(latch, &to.names, &to.error);
		break;
	case DLM_GO_ARRIVED:
		to.status = dlm_latch_arrived(latch, &to.names, &to.error);
		break;
	case DLM_GO_RESET:
		to.status = dlm_latch_reset(latch, count, &to.error);
		break;
	case DLM_GO_DELETE:
		to.status = dlm_latch_delete(latch, &to.error);
		break;
	}
	dlm_latch_free(latch);
	return to;
}

// Each participant ends with a NUL. The next one follows directly.
static struct dlm_go_answer dlm_go_latch_for(const struct dlm_manager *manager, const char *id, int32_t level,
                                             int32_t kind, int64_t ttl_ms, enum dlm_go_latch_call call,
                                             const char *participants, size_t count) {
	struct dlm_go_answer to = {0};
	struct dlm_latch *latch = dlm_go_find_latch((struct dlm_go_latch){manager, id, level, kind, ttl_ms}, &to);
	const char **list;
	if (to.status != DLM_OK)
		return to;
	list = calloc(count + 1, sizeof *list);
	for (size_t at = 0; list && at < count; at++) {
		list[at] = participants;
		participants += strlen(participants) + 1;
	}
	if (call == DLM_GO_RESET)
		to.status = dlm_latch_reset_for(latch, list, count, &to.error);
	else
		to.status = dlm_latch_create_for(latch, list, count, &to.error);
	free(list);
	dlm_latch_free(latch);
	return to;
}

struct dlm_go_watch {
	enum dlm_status status;
	struct dlm_watch *watch;
	int32_t fd; // -1 when the process has no free descriptor
	struct dlm_error *error;
};

static struct dlm_go_watch dlm_go_watch_latch(const struct dlm_manager *manager, const char *id, int32_t level,
                                              int32_t kind, int64_t ttl_ms) {
	struct dlm_go_watch to = {.fd = -1};
	struct dlm_go_answer found = {0};
	struct dlm_latch *latch =
		dlm_go_find_latch((struct dlm_go_latch){manager, id, level, kind, ttl_ms}, &found);
	to.status = found.status;
	to.error = found.error;
	if (to.status == DLM_OK) {
		to.status = dlm_latch_watch(latch, &to.watch, &to.error);
		dlm_latch_free(latch);
	}
	// Without a descriptor the caller polls the watch.
	if (to.status == DLM_OK && dlm_watch_fd(to.watch, &to.fd, NULL) != DLM_OK)
		to.fd = -1;
	return to;
}

static struct dlm_go_answer dlm_go_watch_is_open(const struct dlm_watch *watch) {
	struct dlm_go_answer to = {0};
	bool open;
	to.status = dlm_watch_is_open(watch, &open, &to.error);
	to.number = open;
	return to;
}
*/
import "C"

import "time"

type (
	latchCall   C.enum_dlm_go_latch_call
	watchHandle = *C.struct_dlm_watch
)

const (
	kindCountDown   = C.DLM_LATCH_COUNT_DOWN
	kindCountUpDown = C.DLM_LATCH_COUNT_UP_DOWN

	latchCreate      latchCall = C.DLM_GO_CREATE
	latchGetOrCreate latchCall = C.DLM_GO_GET_OR_CREATE
	latchCount       latchCall = C.DLM_GO_COUNT
	latchCountDown   latchCall = C.DLM_GO_COUNT_DOWN
	latchCountUp     latchCall = C.DLM_GO_COUNT_UP
	latchCountDownAs latchCall = C.DLM_GO_COUNT_DOWN_AS
	latchPending     latchCall = C.DLM_GO_PENDING
	latchArrived     latchCall = C.DLM_GO_ARRIVED
	latchReset       latchCall = C.DLM_GO_RESET
	latchDelete      latchCall = C.DLM_GO_DELETE
)

// callLatch returns a number (1 for yes) or names, depending on the call.
func callLatch(l *Latch, call latchCall, count int64, participant string) (int64, []string, error) {
	id, err := l.lent()
	if err != nil {
		return 0, nil, err
	}
	who, err := lent(participant)
	if err != nil {
		return 0, nil, err
	}
	to := C.dlm_go_call_latch(l.manager.handle, id, C.int32_t(l.name.level), C.int32_t(l.kind), latchTTL(l),
		uint32(call), C.int64_t(count), who)
	defer C.dlm_texts_free(to.names)
	return int64(to.number), textsOf(to.names), failure(to.status, to.error)
}

// callLatchFor creates or resets a latch for named participants.
func callLatchFor(l *Latch, call latchCall, participants []string) error {
	id, err := l.lent()
	if err != nil {
		return err
	}
	text := make([]byte, 0, 16*len(participants))
	for _, participant := range participants {
		if _, err := lent(participant); err != nil {
			return err
		}
		text = append(append(text, participant...), 0)
	}
	list, _ := lent("")
	if len(text) > 0 {
		list = borrowed(text)
	}
	to := C.dlm_go_latch_for(l.manager.handle, id, C.int32_t(l.name.level), C.int32_t(l.kind), latchTTL(l),
		uint32(call), list, C.size_t(len(participants)))
	return failure(to.status, to.error)
}

// watchLatch also returns a descriptor, or -1 if the process has no free one.
func watchLatch(l *Latch) (watchHandle, int, error) {
	id, err := l.lent()
	if err != nil {
		return nil, -1, err
	}
	to := C.dlm_go_watch_latch(l.manager.handle, id, C.int32_t(l.name.level), C.int32_t(l.kind), latchTTL(l))
	return to.watch, int(to.fd), failure(to.status, to.error)
}

func watchIsOpen(watch watchHandle) (bool, error) {
	to := C.dlm_go_watch_is_open(watch)
	return to.number != 0, failure(to.status, to.error)
}

func freeWatch(watch watchHandle) { C.dlm_watch_free(watch) }

func latchTTL(l *Latch) C.int64_t {
	if l.ttl == defaultTTL {
		return C.DLM_DEFAULT
	}
	return C.int64_t(millis(max(l.ttl, 0)))
}

func (l *Latch) lent() (*C.char, error) {
	if err := l.made(); err != nil {
		return nil, err
	}
	return l.name.lent()
}

const defaultTTL time.Duration = -1 << 63

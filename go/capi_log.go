//go:build cgo

package dlm

// The calls of capi.go for the library's log.

/*
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>
#include "dlm.h"

struct dlm_go_line {
	int32_t level;
	uint32_t length;
	char text[PIPE_BUF - 8];
};

static uint64_t dlm_go_dropped;

// The library calls this in any thread that logs, and holds one of its locks. So it must not block and must not call
// into Go. write() to a pipe is atomic up to PIPE_BUF bytes: a line is written whole or not at all.
static void dlm_go_log_line(void *user, int32_t level, const char *message) {
	struct dlm_go_line line = {.level = level};
	int before = errno;
	size_t length = strlen(message);
	if (length > sizeof line.text) {
		length = sizeof line.text;
		memcpy(line.text, message, length - 3);
		memcpy(line.text + length - 3, "...", 3);
	} else {
		memcpy(line.text, message, length);
	}
	line.length = (uint32_t)length;
	if (write((int)(intptr_t)user, &line, 8 + length) < 0)
		__atomic_add_fetch(&dlm_go_dropped, 1, __ATOMIC_RELAXED);
	errno = before;
}

struct dlm_go_done {
	enum dlm_status status;
	struct dlm_error *error;
};

static struct dlm_go_done dlm_go_log_to(int32_t level, int32_t fd) {
	struct dlm_go_done to = {0};
	to.status = dlm_log_to(level, fd < 0 ? NULL : dlm_go_log_line, (void *)(intptr_t)fd, &to.error);
	return to;
}

static uint64_t dlm_go_take_dropped(void) { return __atomic_exchange_n(&dlm_go_dropped, 0, __ATOMIC_RELAXED); }
*/
import "C"

import "log/slog"

// logLevels are sorted, the lowest first.
var logLevels = [...]struct {
	library int32
	here    slog.Level
}{
	{C.DLM_LOG_DEBUG, slog.LevelDebug},
	{C.DLM_LOG_INFO, slog.LevelInfo},
	{C.DLM_LOG_WARN, slog.LevelWarn},
	{C.DLM_LOG_ERROR, slog.LevelError},
}

// logTo makes the library write lines of this level and worse into a pipe. A negative fd turns its log off.
func logTo(level int32, fd int) error {
	to := C.dlm_go_log_to(C.int32_t(level), C.int32_t(fd))
	return failure(to.status, to.error)
}

// linesDropped returns how many lines did not fit since the last call.
func linesDropped() uint64 { return uint64(C.dlm_go_take_dropped()) }

//go:build cgo

package dlm

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// libraryLog passes the library's own log on to a logger. The process has one, because the library has one log whose
// lines do not name a manager.
//
// It works while a manager is open. The library writes lines into a pipe and a goroutine reads them. So a slow
// handler does not delay the thread that logs.
var libraryLog struct {
	mu       sync.Mutex
	managers int
	// given is the target that SetLogger set; nil before its first call.
	given *logTarget
	// stop ends the goroutine that passes lines on. done is closed when the logger has all of them. stop is nil when
	// there is no such goroutine.
	stop func() (done <-chan struct{})
}

// logTarget is the logger that receives lines. The handler is foreign code, so it is asked for its levels before the
// mutex is locked.
type logTarget struct {
	logger func() *slog.Logger
	// level is the library's number of the lowest level that the logger has enabled; 0 if it has none.
	level int32
}

func newLogTarget(logger func() *slog.Logger) logTarget {
	for _, of := range logLevels {
		if logger().Enabled(context.Background(), of.here) {
			return logTarget{logger, of.library}
		}
	}
	return logTarget{}
}

// logPatience is how long the end of the log waits for a slow handler. Tests change it.
var logPatience = time.Second

// SetLogger sets the logger for the library's own log, for all managers of the process. This log has warnings, for
// example that a lock in doubt is left to its TTL, and errors. The default is [slog.Default]. With nil, the log is
// off. The option [Logger] of a manager is only for messages about that manager.
//
// Lines are passed on while a manager is open, by a goroutine of this package, in the order in which they were
// logged. A slow handler delays no other goroutine. When 64 KiB of lines wait for it, further lines are dropped, and
// a warning says how many. SetLogger asks the logger which levels it has enabled; the default logger is asked when a
// manager is opened. Lines of other levels are not produced. The last [Manager.Close] waits up to a second until the
// handler has received the last line.
//
// SetLogger may be called from any goroutine. A program whose C code calls dlm_log_to() must call SetLogger(nil)
// before it opens a manager. If Rust code in the process has set a logger, lines go to that logger instead.
func SetLogger(logger *slog.Logger) {
	var target logTarget
	if logger != nil {
		target = newLogTarget(func() *slog.Logger { return logger })
	}
	l := &libraryLog
	l.mu.Lock()
	passedOn := stopLog()
	l.given = &target
	startLog(target)
	l.mu.Unlock()
	waitForLog(passedOn)
}

// logOpened counts a manager that was opened. logClosed counts one that was closed.
func logOpened() {
	target := newLogTarget(slog.Default)
	l := &libraryLog
	l.mu.Lock()
	defer l.mu.Unlock()
	l.managers++
	if l.given != nil {
		target = *l.given
	}
	startLog(target)
}

func logClosed() {
	l := &libraryLog
	l.mu.Lock()
	l.managers--
	var passedOn <-chan struct{}
	if l.managers == 0 {
		passedOn = stopLog()
	}
	l.mu.Unlock()
	waitForLog(passedOn)
}

// stopLog stops the log if it is running. The caller holds the mutex of libraryLog.
func stopLog() (passedOn <-chan struct{}) {
	l := &libraryLog
	if l.stop == nil {
		return nil
	}
	passedOn = l.stop()
	l.stop = nil
	return passedOn
}

// waitForLog waits until the handler has all lines. It gives up after logPatience, because the handler may be slow or
// may wait for the caller.
func waitForLog(passedOn <-chan struct{}) {
	if passedOn == nil {
		return
	}
	select {
	case <-passedOn:
	case <-time.After(logPatience):
	}
}

// startLog starts to pass lines on if a logger wants them and the log is not running. When the process has no free
// descriptor there is no log, but the manager opens all the same. The caller holds the mutex of libraryLog.
func startLog(target logTarget) {
	l := &libraryLog
	if l.managers == 0 || l.stop != nil || target.level == 0 {
		return
	}
	var ends [2]int
	if syscall.Pipe2(ends[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK) != nil {
		return
	}
	file := os.NewFile(uintptr(ends[0]), "log")
	if logTo(target.level, ends[1]) != nil {
		_ = syscall.Close(ends[1])
		_ = file.Close()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer file.Close()
		passLinesOn(file, target.logger)
	}()
	l.stop = func() <-chan struct{} {
		// When logTo returns, the library no longer writes into the pipe.
		_ = logTo(target.level, -1)
		_ = syscall.Close(ends[1])
		return done
	}
}

// passLinesOn reads lines until the pipe ends. A line is its level, its length and its text.
func passLinesOn(pipe io.Reader, logger func() *slog.Logger) {
	in := bufio.NewReaderSize(pipe, 64<<10)
	for {
		var head [8]byte
		_, err := io.ReadFull(in, head[:])
		// Reported here and not at the moment of the loss, because the pipe has room only now.
		if count := linesDropped(); count > 0 {
			guarded(func() {
				logger().Warn(fmt.Sprintf("dlm: %d lines of the library's log were dropped, the handler was too slow", count))
			})
		}
		if err != nil {
			return
		}
		text := make([]byte, binary.NativeEndian.Uint32(head[4:]))
		if _, err := io.ReadFull(in, text); err != nil {
			return
		}
		level := slog.LevelError
		for _, of := range logLevels {
			if of.library == int32(binary.NativeEndian.Uint32(head[:4])) {
				level = of.here
			}
		}
		guarded(func() { logger().Log(context.Background(), level, "dlm: "+strings.ToValidUTF8(string(text), "")) })
	}
}

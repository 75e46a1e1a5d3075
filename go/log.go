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

// libraryLog passes the library's own log on to a logger. There is one for the process, because the library has
// one: its lines do not say which manager they concern.
//
// It works while a manager is open: the library puts lines into a pipe, and a goroutine reads them. So what a
// handler does, and how long it takes, is no matter of the thread that logs.
var libraryLog struct {
	mu       sync.Mutex
	managers int
	// given is what SetLogger was told; nil before it was called.
	given *logTarget
	// stop ends what passes lines on, and is over when the logger has all of them; nil when nothing does.
	stop func() (done <-chan struct{})
}

// logTarget is where lines go. Its handler is asked for levels before the mutex is taken: it is code of others.
type logTarget struct {
	logger func() *slog.Logger
	// level is the library's number of the lowest level that the logger wants; 0 if it wants none.
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

// logPatience is how long the end of the log waits for a handler that is slow. Tests change it.
var logPatience = time.Second

// SetLogger tells where the library's own log goes, for all managers of the process: warnings, such as that a lock
// in doubt is left to its TTL, and errors. It is [slog.Default] unless set. With nil, the log goes nowhere. What a
// manager is given with [Logger] is for the messages of that manager alone.
//
// Lines are passed on while a manager is open, by a goroutine of this package, in the order in which they were
// logged. A handler that is slow keeps nobody waiting; when 64 KiB of lines wait for it, further ones are dropped,
// and a warning says how many. The logger is asked here for the levels that it has enabled, and [slog.Default] when
// a manager is opened, so that lines nobody wants are not made. The last [Manager.Close] waits for up to a second
// until the handler has the last line.
//
// A program with C code that calls dlm_log_to() itself is to call SetLogger(nil) before it opens a manager. Where
// code in Rust has set a logger for the process, lines go there instead.
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

// logOpened counts a manager that was opened, logClosed one that is closed.
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

// stopLog ends it, if it goes on. The mutex of libraryLog is held.
func stopLog() (passedOn <-chan struct{}) {
	l := &libraryLog
	if l.stop == nil {
		return nil
	}
	passedOn = l.stop()
	l.stop = nil
	return passedOn
}

// waitForLog waits for a handler, which may be slow, or wait itself for the caller.
func waitForLog(passedOn <-chan struct{}) {
	if passedOn == nil {
		return
	}
	select {
	case <-passedOn:
	case <-time.After(logPatience):
	}
}

// startLog begins to pass lines on, if that is wanted and not done yet. Without a descriptor left in the process
// there is no log, which is no reason not to open a manager. The mutex of libraryLog is held.
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
		// From its return on the library does not write into the pipe.
		_ = logTo(target.level, -1)
		_ = syscall.Close(ends[1])
		return done
	}
}

// passLinesOn reads lines until the pipe ends: each is its level and its length, and then the text.
func passLinesOn(pipe io.Reader, logger func() *slog.Logger) {
	in := bufio.NewReaderSize(pipe, 64<<10)
	for {
		var head [8]byte
		_, err := io.ReadFull(in, head[:])
		// Said here and not where they were dropped: there is room only now.
		if count := linesDropped(); count > 0 {
			logger().Warn(fmt.Sprintf("dlm: %d lines of the library's log were dropped, the handler was too slow", count))
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
		logger().Log(context.Background(), level, "dlm: "+strings.ToValidUTF8(string(text), ""))
	}
}

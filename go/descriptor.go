//go:build cgo

package dlm

import (
	"context"
	"os"
	"syscall"
	"time"
)

// duplicate makes an os.File from a copy of a library descriptor. The library may close its own at any time.
func duplicate(fd int, name string) (*os.File, error) {
	copied, _, errno := syscall.RawSyscall( // fcntl does not block here
		syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("fcntl", errno)
	}
	return os.NewFile(copied, name), nil
}

// parkUntil calls done once, and then each time that the file becomes readable, until it returns true. Between the
// calls the goroutine parks in the runtime's poller and holds no thread.
func parkUntil(file *os.File, done func() bool) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(uintptr) bool { return done() })
}

// pollUntil calls done ten times a second until it returns true or ctx ends. It replaces parkUntil when the process
// has no free descriptor.
func pollUntil(ctx context.Context, done func() bool) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

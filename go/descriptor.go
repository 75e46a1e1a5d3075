//go:build cgo

package dlm

import (
	"context"
	"os"
	"syscall"
	"time"
)

// duplicate makes a file of Go's own from a descriptor of the library, which closes its own when it likes.
func duplicate(fd int, name string) (*os.File, error) {
	copied, _, errno := syscall.RawSyscall( // it cannot block
		syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("fcntl", errno)
	}
	return os.NewFile(copied, name), nil
}

// parkUntil asks done, and again each time that the file becomes readable, until it says yes. Meanwhile the
// goroutine is in the runtime's poller and holds no thread.
func parkUntil(file *os.File, done func() bool) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(uintptr) bool { return done() })
}

// pollUntil does the same without a descriptor, when the process has none left: it asks ten times a second.
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

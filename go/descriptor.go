//go:build cgo

package dlm

import (
	"os"
	"syscall"
)

// duplicate makes a file of Go's own from a descriptor of the library, which closes its own when it likes.
func duplicate(fd int, name string) (*os.File, error) {
	copied, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
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

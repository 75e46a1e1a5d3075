//go:build cgo

package dlm

import (
	"context"
	"errors"
	"time"
)

// What can go wrong. The errors that calls return are of type [*Error] and wrap one of these, and the
// context's error where that ended the call: ask with [errors.Is].
var (
	// ErrLocked means that somebody else holds the lock: now, or until the wait was over.
	ErrLocked = errors.New("dlm: the lock is held")
	// ErrConnection means that the store was not reached. The request had no effect.
	ErrConnection = errors.New("dlm: the store was not reached")
	// ErrRetriesExhausted means that the store was reached and did not serve the request, or that the manager's
	// other calls left no turn for it: see the package's comment.
	ErrRetriesExhausted = errors.New("dlm: the store did not serve the request")
	// ErrTableCreation means that the table is missing or could not be created.
	ErrTableCreation = errors.New("dlm: there is no table")
	// ErrInternal means that the store or the library did something that neither should.
	ErrInternal = errors.New("dlm: something happened that should not")
	// ErrInDoubt means that the request may or may not have been applied, or may yet be. A lock that it may
	// have taken is released in the background.
	ErrInDoubt = errors.New("dlm: it is not known whether the request was applied")
	// ErrLost means that the lease is over, and that somebody else may hold the lock already: stop touching
	// what it protected.
	ErrLost = errors.New("dlm: the lease is over")
	// ErrNotFound means that the latch does not exist, or has expired.
	ErrNotFound = errors.New("dlm: there is no such latch")
	// ErrExists means that what was to be created exists.
	ErrExists = errors.New("dlm: it exists already")
	// ErrInvalid means that an argument was refused, before any I/O.
	ErrInvalid = errors.New("dlm: an argument is not allowed")
	// ErrClosed means that the manager, or the table, was closed.
	ErrClosed = errors.New("dlm: the manager or table is closed")
	// ErrForked cannot happen to programs that leave starting processes to package os/exec.
	ErrForked = errors.New("dlm: the process was forked")
	// ErrPanic means a bug in the library. The program may go on using it.
	ErrPanic = errors.New("dlm: the library panicked")
	// ErrStaleFence means that the receiver of a guarded write has seen a higher fence of the same lock: the
	// lease is over, and the write was refused without effect. See [Error.Fence] and [Error.StoredFence].
	ErrStaleFence = errors.New("dlm: the fence is stale")
)

// Code is the number of an error, the same in all languages and in all versions.
type Code int

// The codes, each with the error that stands for it.
const (
	CodeLocked           Code = 1  // ErrLocked
	CodeConnection       Code = 2  // ErrConnection
	CodeRetriesExhausted Code = 3  // ErrRetriesExhausted
	CodeTableCreation    Code = 4  // ErrTableCreation
	CodeInternal         Code = 5  // ErrInternal
	CodeCancelled        Code = 6  // the context's error
	CodeInDoubt          Code = 7  // ErrInDoubt
	CodeLost             Code = 8  // ErrLost
	CodeNotFound         Code = 9  // ErrNotFound
	CodeExists           Code = 10 // ErrExists
	CodeInvalidArgument  Code = 11 // ErrInvalid
	CodeClosed           Code = 12 // ErrClosed
	CodeForked           Code = 13 // ErrForked
	CodePanic            Code = 14 // ErrPanic
	CodeStaleFence       Code = 15 // ErrStaleFence
)

var sentinels = map[Code]error{
	CodeLocked:           ErrLocked,
	CodeConnection:       ErrConnection,
	CodeRetriesExhausted: ErrRetriesExhausted,
	CodeTableCreation:    ErrTableCreation,
	CodeInternal:         ErrInternal,
	CodeInDoubt:          ErrInDoubt,
	CodeLost:             ErrLost,
	CodeNotFound:         ErrNotFound,
	CodeExists:           ErrExists,
	CodeInvalidArgument:  ErrInvalid,
	CodeClosed:           ErrClosed,
	CodeForked:           ErrForked,
	CodePanic:            ErrPanic,
	CodeStaleFence:       ErrStaleFence,
}

// Error is what a call failed with.
type Error struct {
	Code Code
	// Message says what was wrong, with which value, and what to do, in one line for people. It may hold
	// names of locks, hosts and tables, never passwords.
	Message string
	// Retryable says whether the same call may succeed later without anyone changing anything.
	Retryable bool
	// Fence and StoredFence are set for CodeStaleFence: the fence of the refused write, and the higher one that
	// the receiver had seen.
	Fence, StoredFence uint64

	// holderLeft is how long the lease has left that stood in the way; negative when that is not known.
	holderLeft time.Duration
	wraps      []error
}

func (e *Error) Error() string { return "dlm: " + e.Message }

// Unwrap makes [errors.Is] find the errors of this package, and those of contexts.
func (e *Error) Unwrap() []error { return e.wraps }

func newError(code Code, message string) *Error {
	err := &Error{Code: code, Message: message, holderLeft: -1}
	if sentinel := sentinels[code]; sentinel != nil {
		err.wraps = append(err.wraps, sentinel)
	}
	return err
}

// also makes errors.Is find another error besides.
func (e *Error) also(other error) *Error {
	e.wraps = append(e.wraps, other)
	return e
}

func invalid(message string) error { return newError(CodeInvalidArgument, message) }

// closedError is for "manager" or "table".
func closedError(of string) error { return newError(CodeClosed, "the "+of+" was closed") }

// ended is the error of a call that ctx has ended while it was doing something.
func ended(ctx context.Context, code Code, doing string) error {
	cause := context.Cause(ctx)
	err := newError(code, doing+": "+cause.Error()).also(ctx.Err())
	err.Retryable = true
	if !errors.Is(cause, ctx.Err()) {
		return err.also(cause)
	}
	return err
}

func codeOf(err error) Code {
	var of *Error
	if errors.As(err, &of) {
		return of.Code
	}
	return 0
}

// servesNobody is whether the error is about the store and not about one request.
func servesNobody(err error) bool {
	code := codeOf(err)
	return code == CodeConnection || code == CodeRetriesExhausted || code == CodeTableCreation
}

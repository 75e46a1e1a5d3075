//go:build cgo

package dlm

import (
	"context"
	"errors"
)

// The causes of failures. The errors that calls return are of type [*Error] and wrap one of these, and also the
// context's error when that ended the call. Test for them with [errors.Is].
var (
	// ErrLocked means that somebody else holds the lock: now, or until the wait ended.
	ErrLocked = errors.New("dlm: the lock is held")
	// ErrConnection means that the store was not reached. The request had no effect.
	ErrConnection = errors.New("dlm: the store was not reached")
	// ErrRetriesExhausted means that the store was reached but did not serve the request, or that the manager's
	// other calls left no turn for it: see the package's comment.
	ErrRetriesExhausted = errors.New("dlm: the store did not serve the request")
	// ErrTableCreation means that the table or namespace is missing, could not be created, or is unsuitable: disabled,
	// of another kind, or without TTLs.
	ErrTableCreation = errors.New("dlm: the table is missing or unsuitable")
	// ErrInternal means that the store or the library did something unexpected: see the message.
	ErrInternal = errors.New("dlm: the store or the library did something unexpected")
	// ErrInDoubt means that it is unknown whether the request was applied. It may still be applied later. A lock
	// that it may have acquired is released in the background.
	ErrInDoubt = errors.New("dlm: it is unknown whether the request was applied")
	// ErrLost means that the lease has ended and that somebody else may hold the lock already. Stop using what the
	// lock protected.
	ErrLost = errors.New("dlm: the lease is over")
	// ErrNotFound means that the latch does not exist, or has expired.
	ErrNotFound = errors.New("dlm: there is no such latch")
	// ErrExists means that the object to create exists already.
	ErrExists = errors.New("dlm: the object exists already")
	// ErrInvalid means that an argument was refused, before any I/O unless the call says otherwise.
	ErrInvalid = errors.New("dlm: an argument is not allowed")
	// ErrClosed means that the manager or the table was closed.
	ErrClosed = errors.New("dlm: the manager or table is closed")
	// ErrForked means that the process was forked after the manager was opened. It cannot happen in programs that
	// start processes only with package os/exec.
	ErrForked = errors.New("dlm: the process was forked")
	// ErrPanic means that code of the library or of a store panicked, which is a bug. The program may continue to use
	// the library.
	ErrPanic = errors.New("dlm: the library panicked")
	// ErrStaleFence means that the receiver of a guarded write has seen a higher fence of the same lock. The lease
	// has ended. The write was refused and had no effect. See [Error.Fence] and [Error.StoredFence].
	ErrStaleFence = errors.New("dlm: the fence is stale")
	// ErrUnsupportedConversion means that a lease of this mode cannot get the rights that were asked for. The lease is as it
	// was.
	ErrUnsupportedConversion = errors.New("dlm: the lease cannot get these rights")
)

// Code is the number of an error. It is the same in all languages and in all versions.
type Code int

// String returns the name that documentation, logs and the other languages use, such as "LOCK_UNAVAILABLE"; "OK" for 0 and
// "UNKNOWN" for a number that the library does not know.
func (c Code) String() string { return statusName(c) }

// The codes, each with the error that it stands for.
const (
	CodeLocked                Code = 1  // ErrLocked
	CodeConnection            Code = 2  // ErrConnection
	CodeRetriesExhausted      Code = 3  // ErrRetriesExhausted
	CodeTableCreation         Code = 4  // ErrTableCreation
	CodeInternal              Code = 5  // ErrInternal
	CodeCancelled             Code = 6  // the context's error
	CodeInDoubt               Code = 7  // ErrInDoubt
	CodeLost                  Code = 8  // ErrLost
	CodeNotFound              Code = 9  // ErrNotFound
	CodeExists                Code = 10 // ErrExists
	CodeInvalidArgument       Code = 11 // ErrInvalid
	CodeClosed                Code = 12 // ErrClosed
	CodeForked                Code = 13 // ErrForked
	CodePanic                 Code = 14 // ErrPanic
	CodeStaleFence            Code = 15 // ErrStaleFence
	CodeUnsupportedConversion Code = 16 // ErrUnsupportedConversion
)

var sentinels = map[Code]error{
	CodeLocked:                ErrLocked,
	CodeConnection:            ErrConnection,
	CodeRetriesExhausted:      ErrRetriesExhausted,
	CodeTableCreation:         ErrTableCreation,
	CodeInternal:              ErrInternal,
	CodeInDoubt:               ErrInDoubt,
	CodeLost:                  ErrLost,
	CodeNotFound:              ErrNotFound,
	CodeExists:                ErrExists,
	CodeInvalidArgument:       ErrInvalid,
	CodeClosed:                ErrClosed,
	CodeForked:                ErrForked,
	CodePanic:                 ErrPanic,
	CodeStaleFence:            ErrStaleFence,
	CodeUnsupportedConversion: ErrUnsupportedConversion,
}

// Error is the error of a call.
type Error struct {
	Code Code
	// Message is one line for people: what was wrong, with which value, and what to do. It may contain names of
	// locks, hosts and tables, but never passwords.
	Message string
	// Retryable reports whether the same call may succeed later although nobody changes anything.
	Retryable bool
	// Fence and StoredFence are set for CodeStaleFence. Fence is that of the refused write. StoredFence is the higher
	// one that the receiver had seen.
	Fence, StoredFence uint64

	// Reason is set for CodeLost: why the lease was lost. It is NotLost when the lease was released.
	Reason LostReason

	wraps []error
}

func (e *Error) Error() string { return "dlm: " + e.Message }

// Unwrap lets [errors.Is] find the errors of this package and those of contexts.
func (e *Error) Unwrap() []error { return e.wraps }

func newError(code Code, message string) *Error {
	err := &Error{Code: code, Message: message}
	if sentinel := sentinels[code]; sentinel != nil {
		err.wraps = append(err.wraps, sentinel)
	}
	return err
}

// also lets errors.Is find another error too.
func (e *Error) also(other error) *Error {
	e.wraps = append(e.wraps, other)
	return e
}

func invalid(message string) error { return newError(CodeInvalidArgument, message) }

// unmade returns the error of a call with a zero value of a type that only by makes.
func unmade(of, by string) error {
	return invalid("the zero value of " + of + " is not allowed: " + by + " makes one")
}

// noContext returns the error of a call with a nil context.
func noContext(ctx context.Context) error {
	if ctx == nil {
		return invalid("a nil context is not allowed: context.Background() never ends")
	}
	return nil
}

// closedError returns the error for a closed "manager" or "table".
func closedError(of string) error { return newError(CodeClosed, "the "+of+" was closed") }

// ended returns the error of a call that ctx ended. doing says what the call did.
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

// servesNobody reports whether the error concerns the store and not only this request.
func servesNobody(err error) bool {
	code := codeOf(err)
	return code == CodeConnection || code == CodeRetriesExhausted || code == CodeTableCreation
}

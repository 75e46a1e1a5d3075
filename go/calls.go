//go:build cgo

package dlm

import (
	"context"
	"fmt"
	"time"
)

// callsAtOnce bounds the threads that the calls of one manager hold. The bound applies separately to calls that
// acquire locks or use latches, to calls that renew or release, and to calls without I/O. A crowd that asks a slow
// store therefore cannot block renewals and releases.
const callsAtOnce = 16

// slots limits calls into the library that do no I/O but may still hold a thread.
type slots struct {
	places chan struct{}
	closed <-chan struct{}
}

func newSlots(closed <-chan struct{}) slots {
	return slots{places: make(chan struct{}, callsAtOnce), closed: closed}
}

// fate is the outcome of a call.
type fate int

const (
	// answered: the call was made and has its answer.
	answered fate = iota
	// notBegun: ctx ended, or the manager was closed, before the call got a place.
	notBegun
	// crowded: the call got no place in time.
	crowded
	// goesOn: ctx ended, or the manager was closed, while the call was under way. The call continues.
	goesOn
)

// take waits for a slot. It returns false when ctx ends or the manager is closed first.
func (s slots) take(ctx context.Context) bool {
	select {
	case s.places <- struct{}{}:
		return true
	default:
	}
	select {
	case s.places <- struct{}{}:
		return true
	case <-ctx.Done():
	case <-s.closed:
	}
	return false
}

func (s slots) give() { <-s.places }

// briefly runs, in a slot, a function that blocks only while a lock is held. On a busy machine this can take long
// enough that the runtime starts another thread. Without slots a crowd would get one thread each.
func (s slots) briefly(run func()) {
	s.places <- struct{}{}
	defer s.give()
	run()
}

// question is a call that asks the store.
type question struct {
	in *shares
	at region
	// patience is how long the call waits for a place at most.
	patience time.Duration
	// doing says what the call does. Error messages contain it.
	doing string
}

// allowed returns the error of a call of a zero value, which has no places, and of a nil context.
func (q question) allowed(ctx context.Context) error {
	if q.in == nil {
		return invalid(q.doing + ": the zero value of a type is not allowed: Open and OpenTable make what is needed")
	}
	return noContext(ctx)
}

// call takes a place and runs a function that may block. If it returns before the function has ended, it passes the
// later outcome to late, in another goroutine.
//
// When ctx cannot end, run is called in this goroutine: a switch to another goroutine and back costs as much as a
// fast store.
func call[T any](ctx context.Context, q question, run func() (T, error), late func(T, error)) (T, fate, error) {
	type outcome struct {
		answer T
		err    error
	}
	var nothing T
	seat, fate := q.in.take(ctx, q.at, q.patience)
	if seat == nil {
		return nothing, fate, nil
	}
	seated := func() (got outcome) {
		// The place must be freed after a panic too.
		defer func() { seat.give(got.err) }()
		got.answer, got.err = run()
		return got
	}
	if ctx.Done() == nil {
		got := seated()
		return got.answer, answered, got.err
	}
	done := make(chan outcome, 1)
	go func() { done <- seated() }()
	select {
	case got := <-done:
		return got.answer, answered, got.err
	case <-ctx.Done():
	case <-q.in.closed:
	}
	go func() {
		got := <-done
		late(got.answer, got.err)
	}()
	return nothing, goesOn, nil
}

// stopped returns the error of a call without an answer: ctx ended, the manager was closed, or there was no place.
// The error is in doubt when the call continues and changes something.
func (q question) stopped(ctx context.Context, fate fate) error {
	if fate == crowded {
		err := newError(CodeRetriesExhausted, fmt.Sprintf("%s: no turn in %v: %s", q.doing, q.patience, q.in.crowd(q.at)))
		err.Retryable = true
		return err
	}
	return stopped(ctx, fate, q.in.of, q.doing)
}

func stopped(ctx context.Context, fate fate, of, doing string) error {
	switch {
	case ctx.Err() == nil && fate == notBegun:
		return closedError(of)
	case ctx.Err() == nil:
		return newError(CodeInDoubt, doing+": the "+of+" was closed meanwhile").also(ErrClosed)
	case fate == notBegun:
		return ended(ctx, CodeCancelled, doing)
	default:
		return ended(ctx, CodeInDoubt, doing)
	}
}

// answerTo runs call for a request that cannot be undone, and returns its error. changes says whether the request
// changes something. Only then can its outcome be in doubt.
func answerTo[T any](ctx context.Context, q question, changes bool, run func() (T, error)) (T, error) {
	if err := q.allowed(ctx); err != nil {
		var nothing T
		return nothing, err
	}
	got, fate, err := call(ctx, q, run, func(T, error) {})
	if fate == answered {
		return got, err
	}
	if !changes && fate == goesOn {
		fate = notBegun
	}
	return got, q.stopped(ctx, fate)
}

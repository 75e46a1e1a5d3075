//go:build cgo

package dlm

import (
	"context"
	"time"
)

// callsAtOnce bounds the threads that one manager's calls can hold: so many for those who want something, as
// many again for those who have it, so that a crowd asking a slow store keeps nobody from renewing or
// releasing.
const callsAtOnce = 16

// slots are places for calls into the library that may block, and hold a thread while they do.
type slots struct {
	places chan struct{}
	closed <-chan struct{}
}

func newSlots(closed <-chan struct{}) slots {
	return slots{places: make(chan struct{}, callsAtOnce), closed: closed}
}

// fate is what became of a call.
type fate int

const (
	// answered: it was made, and this is its answer.
	answered fate = iota
	// notBegun: ctx was over, or the manager closed, before there was a slot for it.
	notBegun
	// goesOn: ctx was over, or the manager closed, while it was under way.
	goesOn
)

// take waits for a slot; false when ctx was over, or the manager closed, before there was one.
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

// enter takes a slot for what must be done, also when the manager is closed; false when patience was over
// first, where there is one.
func (s slots) enter(patience <-chan time.Time) bool {
	select {
	case s.places <- struct{}{}:
		return true
	case <-patience:
		return false
	}
}

func (s slots) give() { <-s.places }

// briefly runs in a slot what blocks no longer than a lock is held: on a busy machine that may be long enough
// for the runtime to start a thread in its place, so that a crowd would get one each.
func (s slots) briefly(run func()) {
	s.enter(nil)
	defer s.give()
	run()
}

// call runs what may block, in a slot. A call that goes on tells late, in a goroutine of its own, what became
// of it.
//
// Without a ctx that can end, run is called right here: the way to another goroutine and back costs as much
// as a fast store.
func call[T any](ctx context.Context, s slots, run func() T, late func(T)) (T, fate) {
	var nothing T
	if !s.take(ctx) {
		return nothing, notBegun
	}
	if ctx.Done() == nil {
		defer s.give()
		return run(), answered
	}
	done := make(chan T, 1)
	go func() {
		defer s.give()
		done <- run()
	}()
	select {
	case answer := <-done:
		return answer, answered
	case <-ctx.Done():
	case <-s.closed:
	}
	go func() { late(<-done) }()
	return nothing, goesOn
}

// stopped is the error of a call that was not answered: the end of ctx, or that of the manager. It is in
// doubt where the call goes on and changes something.
func (s slots) stopped(ctx context.Context, fate fate, doing string) error {
	switch {
	case ctx.Err() == nil && fate == notBegun:
		return closedError()
	case ctx.Err() == nil:
		return newError(CodeInDoubt, doing+": the manager was closed meanwhile").also(ErrClosed)
	case fate == notBegun:
		return ended(ctx, CodeCancelled, doing)
	default:
		return ended(ctx, CodeInDoubt, doing)
	}
}

// inSlot is call for what cannot be undone, with its error. changes is whether there is something to be in
// doubt about.
func inSlot[T any](ctx context.Context, s slots, changes bool, doing string, run func() (T, error)) (T, error) {
	type outcome struct {
		answer T
		err    error
	}
	got, fate := call(ctx, s, func() outcome {
		answer, err := run()
		return outcome{answer, err}
	}, func(outcome) {})
	if fate == answered {
		return got.answer, got.err
	}
	if !changes {
		fate = notBegun
	}
	return got.answer, s.stopped(ctx, fate, doing)
}

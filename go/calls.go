//go:build cgo

package dlm

import (
	"context"
	"fmt"
	"time"
)

// callsAtOnce bounds the threads that one manager's calls can hold: so many for those who want something, as
// many again for those who have it, so that a crowd asking a slow store keeps nobody from renewing or
// releasing.
const callsAtOnce = 16

// slots are places for calls into the library that ask no store, and may hold a thread all the same.
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
	// notBegun: ctx was over, or the manager closed, before there was a place for it.
	notBegun
	// crowded: there was no place for it in time.
	crowded
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

func (s slots) give() { <-s.places }

// briefly runs in a slot what blocks no longer than a lock is held: on a busy machine that may be long enough
// for the runtime to start a thread in its place, so that a crowd would get one each.
func (s slots) briefly(run func()) {
	s.places <- struct{}{}
	defer s.give()
	run()
}

// question is a call that asks the store.
type question struct {
	in *shares
	at region
	// patience is for how long it waits for a place at the most.
	patience time.Duration
	// doing is what it does, for errors.
	doing string
}

// call runs what may block, in a place of its own. A call that goes on tells late, in a goroutine of its own,
// what became of it.
//
// Without a ctx that can end, run is called right here: the way to another goroutine and back costs as much
// as a fast store.
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
		// A panic, too, must give the place back.
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

// stopped is the error of a call that was not answered: the end of ctx, that of the manager, or that it had no
// place. It is in doubt where the call goes on and changes something.
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

// answerTo is call for what cannot be undone, with its error. changes is whether there is something to be in
// doubt about.
func answerTo[T any](ctx context.Context, q question, changes bool, run func() (T, error)) (T, error) {
	got, fate, err := call(ctx, q, run, func(T, error) {})
	if fate == answered {
		return got, err
	}
	if !changes && fate == goesOn {
		fate = notBegun
	}
	return got, q.stopped(ctx, fate)
}

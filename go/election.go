//go:build cgo

package dlm

import (
	"context"
	"errors"
	"time"
)

// Election lets one of several candidates lead at a time. It is the lock of the same name, and to lead is to hold its
// lease, which is kept alive. Any number of goroutines may use it.
type Election struct {
	manager *Manager
	name    Name
}

// Election returns the election with this name. It does no I/O. Do not use the lock of the same name for something else.
func (m *Manager) Election(name Name) *Election { return &Election{manager: m, name: name} }

// Name returns the name of the election.
func (e *Election) Name() Name { return e.name }

// Campaign waits until this process leads, until ctx ends, or for the time of the option [Wait]. The lease is kept alive
// until it is released, which resigns, or lost. Call its [Lease.Guard] before each step of the leader's work.
//
// While the store does not answer, the candidate tries again, once per retry interval.
//
// It fails with the error that ended ctx, with [ErrLocked] when the wait is over, and with [ErrClosed], [ErrInvalid],
// [ErrTableCreation] and [ErrInternal].
func (e *Election) Campaign(ctx context.Context, options ...LockOption) (*Lease, error) {
	how, err := e.manager.acquisition(ctx, options)
	if err != nil {
		return nil, err
	}
	if how.isOfLocksOnly() {
		return nil, invalid("InMode and NestedIn are not allowed for an election: its leader holds the lock exclusively")
	}
	var deadline time.Time
	wait := Forever
	if how.hasWait && how.wait != Forever {
		wait, deadline = how.wait, time.Now().Add(how.wait)
	}
	for {
		lease, err := e.manager.Lock(ctx, e.name, TTL(how.ttl), Wait(wait))
		if err == nil {
			if err = lease.KeepAlive(Forever); err == nil {
				return lease, nil
			}
			_ = lease.Release()
		}
		if !deadline.IsZero() {
			wait = max(time.Until(deadline), 0)
		}
		again := errors.Is(err, ErrConnection) || errors.Is(err, ErrRetriesExhausted) || errors.Is(err, ErrInDoubt) ||
			errors.Is(err, ErrLost)
		if !again || wait == 0 || ctx.Err() != nil {
			return nil, err
		}
		select {
		case <-time.After(min(e.manager.queue.retry, wait)):
		case <-ctx.Done():
			return nil, ended(ctx, CodeCancelled, "campaigning for "+e.name.String())
		}
	}
}

// Lead waits until this process leads, does the work, and resigns. The context of the work ends when the lease is lost,
// with the reason as its cause. The work calls the lease's [Lease.Guard] before each step, and returns when that fails.
//
// It returns the error of [Election.Campaign] or of the work.
func (e *Election) Lead(ctx context.Context, work func(ctx context.Context, term *Lease) error, options ...LockOption) error {
	if work == nil {
		return invalid("a nil work is not allowed: Campaign leads without one")
	}
	term, err := e.Campaign(ctx, options...)
	if err != nil {
		return err
	}
	defer func() { _ = term.Release() }()
	ctx, cancel := term.Context(ctx)
	defer cancel()
	return work(ctx, term)
}

// Leader returns who leads now. The Holder is nil if nobody does. It blocks and fails as [Manager.Inspect] does.
func (e *Election) Leader(ctx context.Context) (Inspection, error) {
	if err := e.manager.made(); err != nil {
		return Inspection{}, err
	}
	return e.manager.Inspect(ctx, e.name)
}

// Observe calls report with who leads now, and then after each change, until ctx ends or report returns an error, which Observe
// then returns. The Holder is nil while nobody leads. It reads the store once per retry interval, and when the lease of the
// leader would end. Changes between two reads are reported as one. While the store does not answer, it tries again.
func (e *Election) Observe(ctx context.Context, report func(Inspection) error) error {
	type term struct {
		host    string
		pid     int
		started time.Time
		fence   uint64
		held    bool
	}
	if err := e.manager.made(); err != nil {
		return err
	}
	if err := noContext(ctx); err != nil {
		return err
	}
	if report == nil {
		return invalid("a nil function is not allowed: nobody would receive the changes")
	}
	var last term
	isFirst := true
	for {
		pause := e.manager.queue.retry
		seen, err := e.Leader(ctx)
		var failed *Error
		switch {
		case ctx.Err() != nil:
			return ended(ctx, CodeCancelled, "observing "+e.name.String())
		case errors.As(err, &failed) && failed.Retryable:
		case err != nil:
			return err
		default:
			var now term
			if holder := seen.Holder; holder != nil {
				now = term{holder.Host, holder.PID, holder.Started, seen.Fence, true}
				if holder.Remaining >= 0 {
					pause = min(pause, max(holder.Remaining, pause/20))
				}
			}
			if isFirst || now != last {
				isFirst, last = false, now
				if err := report(seen); err != nil {
					return err
				}
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

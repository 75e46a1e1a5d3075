//go:build cgo

package dlm

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// permitsMax is the largest size of a semaphore. The library refuses larger ones; this keeps a wrong count from needing memory.
const permitsMax = 256

// Semaphore is a name and a number of permits, of which each has one holder at a time. Any number of goroutines may use it.
//
// Each permit has a number, from 0 on, and is held by one [Lease] at a time, with a TTL, a fence and a loss of its own: see
// [Lease.Permit]. A permit whose process has died is free when its TTL ends. The fences of one permit rise. Fences of different
// permits say nothing about each other, so a receiver keeps one highest fence for each permit.
//
// A semaphore is kept under the name of a lock, and nobody can acquire that lock while a permit is held. Use the name for one of
// them only.
type Semaphore struct {
	manager *Manager
	name    Name
	permits int
}

// Semaphore returns the semaphore with this name and so many permits: 1 to 256. It does no I/O.
//
// All processes must use the same number. The first grant decides it, and another one is refused: see [Semaphore.Resize].
//
// It fails with [ErrInvalid] also when the store keeps no semaphores, and with [ErrClosed].
func (m *Manager) Semaphore(name Name, permits int) (*Semaphore, error) {
	if err := m.made(); err != nil {
		return nil, err
	}
	defer runtime.KeepAlive(m)
	if err := checkSemaphore(m.handle, name, permits); err != nil {
		return nil, err
	}
	return &Semaphore{m, name, permits}, nil
}

// made returns an error for the zero value.
func (s *Semaphore) made() error {
	if s.manager == nil {
		return unmade("Semaphore", "Manager.Semaphore")
	}
	return nil
}

// Name returns the name of the semaphore.
func (s *Semaphore) Name() Name { return s.name }

// Permits returns the number of permits.
func (s *Semaphore) Permits() int { return s.permits }

// Acquire acquires so many permits, all or none, and waits for them as [Manager.Lock] does, with the same options. The set has their
// leases in the order of their numbers.
//
// Goroutines of one manager acquire permits in the order of their arrival, whatever their counts are. Processes poll: one that asks
// for many permits may find too few again and again while others ask for fewer.
//
// It fails with the errors of Lock, and with [ErrInvalid] for a count of zero or above the number of permits, for a mode and an outer
// lease, and when the store knows the semaphore with another number of permits.
func (s *Semaphore) Acquire(ctx context.Context, count int, options ...LockOption) (*LeaseSet, error) {
	how, err := s.acquisition(ctx, count, options)
	if err != nil {
		return nil, err
	}
	m := s.manager
	defer runtime.KeepAlive(m)
	got, err := m.waitFor(ctx, s.name, how, s.wanted(count, how))
	return s.set(got, err)
}

// TryAcquire tries once to acquire so many permits, all or none. See [Manager.TryLock], whose errors and those of
// [Semaphore.Acquire] it has.
func (s *Semaphore) TryAcquire(ctx context.Context, count int, options ...LockOption) (*LeaseSet, error) {
	how, err := s.acquisition(ctx, count, options)
	if err != nil {
		return nil, err
	}
	if how.hasWait {
		return nil, invalid("TryAcquire does not wait: use Acquire")
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, CodeCancelled, "trying "+s.name.String())
	}
	m := s.manager
	defer runtime.KeepAlive(m)
	got, err := m.tryFor(ctx, s.name, func() ([]grant, error) { return tryPermits(m.handle, s, how.ttl, count) })
	return s.set(got, err)
}

func (s *Semaphore) acquisition(ctx context.Context, count int, options []LockOption) (acquisition, error) {
	if err := s.made(); err != nil {
		return acquisition{}, err
	}
	how, err := s.manager.acquisition(ctx, options)
	switch {
	case err != nil:
		return how, err
	case count < 1 || count > s.permits:
		return how, invalid(fmt.Sprintf("a count of %d permits is not allowed: 1 to %d", count, s.permits))
	case how.isOfLocksOnly():
		return how, invalid("InMode and NestedIn are not allowed for a semaphore: they are options of locks")
	}
	return how, nil
}

func (s *Semaphore) wanted(count int, how acquisition) wanted {
	take := func(pending pendingHandle) ([]grant, error) { return takePermits(pending, count) }
	return wanted{
		start: func(wait time.Duration) (pendingHandle, bool, error) {
			return startPermits(s.manager.handle, s, how.ttl, wait, count)
		},
		ask: func(pending pendingHandle) ([]grant, error) {
			if err := askForPermits(pending); err != nil {
				return nil, err
			}
			return take(pending)
		},
		take: take,
	}
}

// set makes the leases of permits.
func (s *Semaphore) set(granted []grant, err error) (*LeaseSet, error) {
	if err != nil {
		return nil, err
	}
	set := new(LeaseSet)
	for at, one := range granted {
		set.leases = append(set.leases, newLease(s.manager, s.name, one))
		set.order = append(set.order, at)
	}
	return set, nil
}

// Available returns how many permits are free: a hint, because others may take them meanwhile. It blocks for one or two reads of the
// store, and fails with the errors of [Manager.Inspect].
func (s *Semaphore) Available(ctx context.Context) (int, error) {
	return readSemaphore(ctx, s, false, func(m *Manager) (int, error) { return availablePermits(m.handle, s) })
}

// Holders returns who holds permits, ordered by their numbers. It blocks for one or two reads of the store, and fails with the
// errors of [Manager.Inspect].
func (s *Semaphore) Holders(ctx context.Context) ([]Holder, error) {
	return readSemaphore(ctx, s, false, func(m *Manager) ([]Holder, error) { return permitHolders(m.handle, s) })
}

// Resize changes the number of permits in the store, 1 to 256, and returns the semaphore with this number. Permits that are held
// stay so: when there are fewer now, none is granted before those with higher numbers are free. Semaphores with the old number
// are refused from now on. It blocks for one call to the store.
//
// It fails with [ErrNotFound] when the store knows no semaphore of this name, whose number the first grant decides then; with
// [ErrInDoubt] when it may be changed: call it again; and with the errors of [Manager.Inspect].
func (s *Semaphore) Resize(ctx context.Context, permits int) (*Semaphore, error) {
	return readSemaphore(ctx, s, true, func(m *Manager) (*Semaphore, error) {
		if err := resizeSemaphore(m.handle, s, permits); err != nil {
			return nil, err
		}
		return &Semaphore{m, s.name, permits}, nil
	})
}

func readSemaphore[T any](ctx context.Context, s *Semaphore, changes bool, read func(*Manager) (T, error)) (T, error) {
	if err := s.made(); err != nil {
		var nothing T
		return nothing, err
	}
	m := s.manager
	question := question{m.asking, m.identity.lockRegion(s.name), m.timeout, "asking for semaphore " + s.name.String()}
	return answerTo(ctx, question, changes, func() (T, error) {
		defer runtime.KeepAlive(m)
		return read(m)
	})
}

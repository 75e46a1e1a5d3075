//go:build cgo

package dlm

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Forever is for [Wait].
const Forever time.Duration = math.MaxInt64

// Name of a lock or a latch: an id and a level. Names can be compared, and be keys of maps. Locks and latches
// of one name have nothing to do with each other.
type Name struct {
	id    string
	level int32
}

// DC is a name that includes the farm id: each data centre has its own.
func DC(id string) Name { return Name{id, levelDC} }

// XDC is a name that does not include the farm id: one for all data centres.
func XDC(id string) Name { return Name{id, levelXDC} }

func (n Name) String() string {
	switch n.level {
	case levelDC:
		return "DC#" + n.id
	case levelXDC:
		return "XDC#" + n.id
	default:
		return "no name"
	}
}

// LockOption is how one acquisition differs from the manager's settings.
type LockOption func(*acquisition)

type acquisition struct {
	ttl, wait       time.Duration
	hasTTL, hasWait bool
}

// TTL is how long the lease lasts unless renewed: 1 ms to 365 days, rounded up to what the store keeps.
func TTL(d time.Duration) LockOption {
	return func(a *acquisition) { a.ttl, a.hasTTL = d, true }
}

// Wait is how long to wait for the lock at the most: 0 tries once, [Forever] leaves it to the context.
func Wait(d time.Duration) LockOption {
	return func(a *acquisition) { a.wait, a.hasWait = d, true }
}

// TryLock tries once to take the lock, for the manager's TTL unless told. It does not stand in line behind
// those who wait, and blocks for the store's answer only, or until ctx ends; what is granted after that is
// released.
//
// It fails with [ErrLocked] when somebody holds the lock; with [ErrConnection], [ErrRetriesExhausted],
// [ErrTableCreation] or [ErrInternal] when the store does not serve; with [ErrInDoubt] when it could not be
// learned whether the lock was granted; with [ErrClosed], [ErrInvalid], and with what ended ctx.
func (m *Manager) TryLock(ctx context.Context, name Name, options ...LockOption) (*Lease, error) {
	how, err := m.acquisition(options)
	if err != nil {
		return nil, err
	}
	if how.hasWait {
		return nil, invalid("TryLock does not wait: use Lock")
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, CodeCancelled, "trying "+name.String())
	}
	return m.ask(ctx, name, how.ttl, false)
}

// Lock takes the lock, for the manager's TTL unless told, and waits for it: until ctx ends, or for the time
// given as [Wait]. With neither Wait nor a deadline in ctx, it waits for the manager's setting, 90 s unless
// set.
//
// The goroutine parks and no thread is held, see the package's comment. When ctx ends, Lock returns at once;
// what the store grants after that is released. Goroutines of one manager are served in the order in which
// they came. A goroutine that takes a lock in a loop, without a pause and for 50 retry intervals (10 if
// goroutines pass the lock on), waits for a little over one interval, so that other processes find it free. A
// wait that ends sooner than that asks all the same.
//
// It fails with [ErrLocked] when the wait was over first, saying who holds the lock; with what ended ctx (the
// message says the same); and with the errors of [Manager.TryLock], which end the wait at once.
func (m *Manager) Lock(ctx context.Context, name Name, options ...LockOption) (*Lease, error) {
	how, err := m.acquisition(options)
	if err != nil {
		return nil, err
	}
	terms := terms{name: name, speaksForAll: how.ttl >= m.timeout}
	_, limited := ctx.Deadline()
	if wait := how.wait; how.hasWait || !limited {
		if !how.hasWait {
			wait = m.wait
		}
		if until := time.Now().Add(wait); wait < Forever/2 {
			terms.until = until
		}
	}
	return wait(ctx, m.queue, terms, func(look bool) (*Lease, error) {
		return m.ask(ctx, name, how.ttl, look)
	})
}

func (m *Manager) acquisition(options []LockOption) (acquisition, error) {
	var how acquisition
	for _, option := range options {
		option(&how)
	}
	switch {
	case how.hasTTL && how.ttl <= 0:
		return how, invalid(fmt.Sprintf("TTL %v is not allowed: 1ms to 365 days", how.ttl))
	case how.wait < 0:
		return how, invalid(fmt.Sprintf("Wait %v is not allowed: 0 or more", how.wait))
	case !how.hasTTL:
		how.ttl = m.ttl
	}
	return how, nil
}

// grant is an answer of the store.
type grant struct {
	lease leaseHandle
	fence uint64
}

// ask is one question to the store.
func (m *Manager) ask(ctx context.Context, name Name, ttl time.Duration, look bool) (*Lease, error) {
	question := question{m.asking, m.identity.lockRegion(name), m.timeout, "asking for " + name.String()}
	answer, fate, err := call(ctx, question, func() (grant, error) {
		lease, fence, err := askStore(m.handle, name, ttl, look)
		return grant{lease, fence}, err
	}, func(late grant, err error) {
		if err == nil {
			m.giveBack(name, late.lease)
		}
	})
	switch {
	case fate == goesOn:
		// What it is granted is given back: there is nothing to be in doubt about.
		return nil, question.stopped(ctx, notBegun)
	case fate != answered:
		return nil, question.stopped(ctx, fate)
	case err != nil:
		return nil, err
	}
	return newLease(m, name, answer.lease, answer.fence), nil
}

// giveBack releases what nobody wants any more.
func (m *Manager) giveBack(name Name, lease leaseHandle) {
	seat := m.holding.enter(m.identity.lockRegion(name), nil)
	_, err := releaseLease(lease)
	seat.give(err)
	m.queue.released(name)
}

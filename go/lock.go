//go:build cgo

package dlm

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"
)

// Forever is a duration for [Wait]: the wait ends only with its context.
const Forever time.Duration = math.MaxInt64

// Name is the name of a lock or a latch: an id and a level. Names are comparable and can be keys of maps. A lock and
// a latch with the same name are independent.
type Name struct {
	id    string
	level int32
}

// DC returns a name that includes the farm id. Each data centre has its own lock of that name.
func DC(id string) Name { return Name{id, levelDC} }

// XDC returns a name that does not include the farm id. All data centres share one lock of that name.
func XDC(id string) Name { return Name{id, levelXDC} }

func (n Name) String() string {
	switch n.level {
	case levelDC:
		return "DC#" + n.id
	case levelXDC:
		return "XDC#" + n.id
	case levelFull:
		return n.id
	default:
		return "no name"
	}
}

// LockOption changes one setting of the manager for one acquisition.
type LockOption func(*acquisition)

type acquisition struct {
	ttl, wait       time.Duration
	hasTTL, hasWait bool
	mode            Mode
	nestedIn        *Lease
	isNested        bool
}

// TTL sets how long the lease lasts unless it is renewed: 1 ms to 365 days, rounded up to the store's resolution.
func TTL(d time.Duration) LockOption {
	return func(a *acquisition) { a.ttl, a.hasTTL = d, true }
}

// Wait sets how long to wait for the lock at most. 0 tries once. With [Forever], only the context ends the wait.
func Wait(d time.Duration) LockOption {
	return func(a *acquisition) { a.wait, a.hasWait = d, true }
}

// TryLock tries once to acquire the lock. The lease has the manager's TTL unless the option [TTL] is given. TryLock
// does not queue behind waiting goroutines. It blocks until the store answers or ctx ends. A lock that the store
// grants after that is released.
//
// It fails with [ErrLocked] when somebody holds the lock. It fails with [ErrConnection], [ErrRetriesExhausted],
// [ErrTableCreation] or [ErrInternal] when the store does not serve the request, and with [ErrInDoubt] when it is
// unknown whether the lock was granted. Other errors are [ErrClosed], [ErrInvalid], and the error that ended ctx.
func (m *Manager) TryLock(ctx context.Context, name Name, options ...LockOption) (*Lease, error) {
	how, err := m.acquisition(ctx, options)
	if err != nil {
		return nil, err
	}
	if how.hasWait {
		return nil, invalid("TryLock does not wait: use Lock")
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, CodeCancelled, "trying "+name.String())
	}
	return m.try(ctx, name, how)
}

// Lock acquires the lock and waits for it until ctx ends, or for the time of the option [Wait]. With neither Wait
// nor a deadline in ctx it waits for the manager's default, 90 s unless set. The lease has the manager's TTL unless
// the option [TTL] is given.
//
// The waiting goroutine parks and holds no thread: see the package's comment. When ctx ends, Lock returns at once,
// and a lock that the store grants after that is released. Goroutines of one manager are served in the order of
// their arrival.
//
// A goroutine that acquires a lock in a loop without a pause yields after 50 retry intervals, or after 10 if
// goroutines pass the lock on. It then waits for a little more than one interval, in which other processes find the
// lock free. If its own wait ends earlier than that, it asks the store without yielding.
//
// Lock fails with [ErrLocked] when the wait ended first; the message says who holds the lock. It fails with the error
// that ended ctx; the message says the same. Errors of [Manager.TryLock] other than ErrLocked end the wait at once.
func (m *Manager) Lock(ctx context.Context, name Name, options ...LockOption) (*Lease, error) {
	how, err := m.acquisition(ctx, options)
	if err != nil {
		return nil, err
	}
	got, err := m.waitFor(ctx, name, how, wanted{
		start: func(wait time.Duration) (pendingHandle, bool, error) { return startLock(m.handle, name, how, wait) },
		ask:   askForLock,
		take:  takeLease,
	})
	if err != nil {
		return nil, err
	}
	return newLease(m, name, got[0]), nil
}

// wanted is what a goroutine waits for: a lock, or permits of a semaphore. ask and take return no grants and no error while
// there is no result.
type wanted struct {
	start func(wait time.Duration) (pending pendingHandle, turn bool, err error)
	ask   func(pendingHandle) ([]grant, error)
	take  func(pendingHandle) ([]grant, error)
}

// waitFor acquires what is wanted, and waits for it until ctx ends or the wait is over.
func (m *Manager) waitFor(ctx context.Context, name Name, how acquisition, what wanted) ([]grant, error) {
	doing := "waiting for " + name.String()
	if ctx.Err() != nil {
		return nil, ended(ctx, CodeCancelled, doing)
	}
	wait := m.wait
	if how.hasWait {
		wait = how.wait
	}
	deadline, limited := ctx.Deadline()
	// The library must know when the wait ends: a wait that ends soon asks although this process yields.
	untilDeadline := limited && (!how.hasWait || time.Until(deadline) <= wait)
	if untilDeadline {
		wait = max(time.Until(deadline), 0)
	}
	var pending pendingHandle
	var turn bool
	var err error
	m.brief.briefly(func() { pending, turn, err = what.start(wait) })
	runtime.KeepAlive(how.nestedIn)
	if err != nil {
		return nil, err
	}
	defer m.brief.briefly(func() { freePending(pending) })
	got, err := m.acquire(ctx, name, pending, turn, what)
	if codeOf(err) == CodeLocked && untilDeadline {
		<-ctx.Done() // the library's clock was a little ahead
		return nil, ended(ctx, CodeCancelled, err.(*Error).Message)
	}
	return got, err
}

// acquire waits for the result of a pending acquisition. With turn, it first sends the first request: a change to
// another thread and back costs as much as a fast store.
func (m *Manager) acquire(ctx context.Context, name Name, pending pendingHandle, turn bool, what wanted) ([]grant, error) {
	if turn {
		question := question{m.asking, m.identity.lockRegion(name), m.timeout, "asking for " + name.String()}
		got, fate, err := call(ctx, question, func() ([]grant, error) {
			return what.ask(pending)
		}, func(late []grant, _ error) {
			m.giveBack(name, late...)
		})
		switch {
		case fate == goesOn:
			// The request goes on, and the library releases a lock that it acquires.
			return m.giveUp(ctx, name, pending, what)
		case fate == notBegun:
			return m.giveUp(ctx, name, pending, what)
		case fate == crowded:
			return nil, question.stopped(ctx, fate)
		case err != nil || got != nil:
			return got, err
		}
	}
	if err := m.queue.wait(ctx, pending); err != nil {
		return nil, err
	}
	var got []grant
	var err error
	m.brief.briefly(func() { got, err = what.take(pending) })
	if err != nil || got != nil {
		return got, err
	}
	return m.giveUp(ctx, name, pending, what)
}

// giveUp ends a pending acquisition because ctx ended or the manager was closed.
func (m *Manager) giveUp(ctx context.Context, name Name, pending pendingHandle, what wanted) ([]grant, error) {
	var got []grant
	var err error
	m.brief.briefly(func() {
		cancelPending(pending)
		got, err = what.take(pending)
	})
	if err == nil {
		// It was granted at the last moment. The release must not hold up the caller.
		go m.giveBack(name, got...)
	}
	if ctx.Err() == nil {
		return nil, closedError("manager")
	}
	doing := "waiting for " + name.String()
	// The wait may also have ended by itself, at the same moment.
	if code := codeOf(err); code == CodeCancelled || code == CodeLocked {
		doing = err.(*Error).Message // who holds the lock, and how long the wait was
	}
	return nil, ended(ctx, CodeCancelled, doing)
}

func (m *Manager) acquisition(ctx context.Context, options []LockOption) (acquisition, error) {
	var how acquisition
	if err := m.made(); err != nil {
		return how, err
	}
	if err := noContext(ctx); err != nil {
		return how, err
	}
	for _, option := range options {
		if option == nil {
			return how, invalid("a nil LockOption is not allowed: leave it out")
		}
		option(&how)
	}
	switch {
	case how.hasTTL && how.ttl <= 0:
		return how, invalid(fmt.Sprintf("TTL %v is not allowed: 1ms to 365 days", how.ttl))
	case how.wait < 0:
		return how, invalid(fmt.Sprintf("Wait %v is not allowed: 0 or more", how.wait))
	case how.isNested && (how.nestedIn == nil || how.nestedIn.made() != nil):
		return how, invalid("NestedIn of no lease is not allowed: a lease of Lock or RLock")
	case !how.mode.isOfLocks():
		return how, invalid(fmt.Sprintf("mode %d is not allowed: Exclusive, Shared or Update", int(how.mode)))
	case !how.hasTTL:
		how.ttl = m.ttl
	}
	return how, nil
}

// outer returns the lease within which the lock is acquired once more.
func (a *acquisition) outer() leaseHandle {
	if a.nestedIn == nil {
		return nil
	}
	return a.nestedIn.handle
}

// grant is a lease as the store granted it.
type grant struct {
	handle       leaseHandle
	fence, epoch uint64
	mode         Mode
	permit       int
}

// try sends one request to the store.
func (m *Manager) try(ctx context.Context, name Name, how acquisition) (*Lease, error) {
	got, err := m.tryFor(ctx, name, func() ([]grant, error) {
		defer runtime.KeepAlive(how.nestedIn)
		got, err := tryLock(m.handle, name, how)
		return []grant{got}, err
	})
	if err != nil {
		return nil, err
	}
	return newLease(m, name, got[0]), nil
}

// tryFor makes one call to the store, which acquires something. What is acquired after ctx has ended is released.
func (m *Manager) tryFor(ctx context.Context, name Name, try func() ([]grant, error)) ([]grant, error) {
	question := question{m.asking, m.identity.lockRegion(name), m.timeout, "asking for " + name.String()}
	got, fate, err := call(ctx, question, try, func(late []grant, _ error) { m.giveBack(name, late...) })
	switch {
	case fate == goesOn:
		// What is granted later is released, so the caller has nothing in doubt.
		return nil, question.stopped(ctx, notBegun)
	case fate != answered:
		return nil, question.stopped(ctx, fate)
	}
	return got, err
}

// Adopt takes over a lease from its token, see [Lease.IntoToken]. The token must be of the lock with this name, in any mode. The lease
// has the end that it had before. If the token comes from another machine, its end is not known here: renew the lease
// first.
//
// It fails with [ErrInvalid] if the text is not the whole token of a lease of this lock, and with [ErrClosed]. It does no
// I/O.
func (m *Manager) Adopt(name Name, token string) (*Lease, error) {
	if err := m.made(); err != nil {
		return nil, err
	}
	defer runtime.KeepAlive(m)
	granted, err := adoptLease(m.handle, name, token)
	if err != nil {
		return nil, err
	}
	return newLease(m, name, granted), nil
}

// Holder is the holder of a lock, as its record describes it.
type Holder struct {
	// Host and PID name the process. They are "" and 0 if the record does not describe the holder, such as one of the
	// Java library.
	Host string
	PID  int
	// Started is when the process opened its manager. It is the zero time if that is not known.
	Started time.Time
	// Purpose is the holder's setting "purpose".
	Purpose string
	// Remaining is the remaining time of the lease, or -1 if the store does not report it. It is only a hint, because it
	// compares clocks of two machines.
	Remaining time.Duration
	// Since is when the lock was granted or last renewed, by the store's clock, or the zero time.
	Since time.Time
	// Mode is how it holds the lock.
	Mode Mode
	// Permit is the number of its permit, when Mode is Permit, and 0 otherwise.
	Permit int
}

// Inspection says who holds a lock.
type Inspection struct {
	// Holder is nil if the lock is free.
	Holder *Holder
	// Fence is the fence that was counted last, or 0 if the store does not know it.
	Fence uint64
	// Layout is the layout in which the store keeps the lock, or "" if it has only one.
	Layout string
}

// Inspect reads who holds the lock. It blocks for one or two reads of the store.
//
// It fails with the errors of [Manager.TryLock] for a store that does not serve the request, never with [ErrInDoubt].
func (m *Manager) Inspect(ctx context.Context, name Name) (Inspection, error) {
	question := question{m.asking, m.identity.lockRegion(name), m.timeout, "inspecting " + name.String()}
	return answerTo(ctx, question, false, func() (Inspection, error) {
		defer runtime.KeepAlive(m)
		return inspectLock(m.handle, name)
	})
}

// giveBack releases leases that no caller has.
func (m *Manager) giveBack(name Name, granted ...grant) {
	for _, one := range granted {
		if one.handle == nil {
			continue
		}
		seat := m.holding.enter(m.identity.lockRegion(name), nil)
		_, err := releaseLease(one.handle)
		seat.give(err)
	}
}

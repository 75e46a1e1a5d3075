//go:build cgo

package dlm

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Lease is a held lock. It ends by itself after its TTL, counted from before it was asked for, unless renewed;
// then somebody else may hold the lock.
//
// It may be used by any number of goroutines, and released by another one than acquired it. It is to be
// released: a lease that is dropped is released by the garbage collector some time, which says so in the log.
type Lease struct {
	*held
	cleanup runtime.Cleanup
}

// held is what a watcher of the lease may keep when the caller has dropped it.
type held struct {
	manager *Manager
	name    Name
	handle  leaseHandle
	fence   uint64

	released atomic.Bool
	// copying is held while the library's descriptor is copied, so that its number is nobody else's by then.
	copying sync.Mutex
	watch   sync.Once
	lost    chan struct{}
}

func newLease(m *Manager, name Name, handle leaseHandle, fence uint64) *Lease {
	l := &Lease{held: &held{manager: m, name: name, handle: handle, fence: fence, lost: make(chan struct{})}}
	l.cleanup = runtime.AddCleanup(l, (*held).forgotten, l.held)
	return l
}

// Name is that of the lock.
func (l *Lease) Name() Name { return l.name }

// Fence is the number to send along with every write that the lock guards: it grows with every grant, so that
// a receiver can refuse numbers lower than it has seen. It is 0 where fencing is switched off in the store's
// options.
func (l *Lease) Fence() uint64 { return l.fence }

// Check says whether the lease lasts still, by this machine's clock: ask before each step that needs the
// lock. It costs no I/O and some tens of nanoseconds. It cannot know that the goroutine will be paused right
// after; that is what [Lease.Fence] is for.
//
// It fails with [ErrLost] when the time is over, or the lease was released or found lost.
func (l *Lease) Check() error {
	defer runtime.KeepAlive(l)
	return l.check()
}

func (h *held) check() error {
	if h.released.Load() {
		return h.over("it was released")
	}
	err := checkLease(h.handle)
	if codeOf(err) == CodeClosed { // released meanwhile
		return h.over("it was released")
	}
	return err
}

// Remaining is how long the lease has left, in whole milliseconds, rounded down; 0 when it is over.
func (l *Lease) Remaining() time.Duration {
	defer runtime.KeepAlive(l)
	return leaseRemaining(l.handle)
}

// Lost returns a channel that is closed as soon as [Lease.Check] fails: the time is over, or the lease was
// released or found lost. A renewal puts it off.
//
// The first call opens a file descriptor and starts a goroutine, which end with the lease.
func (l *Lease) Lost() <-chan struct{} {
	l.watch.Do(l.startWatch)
	return l.lost
}

// Context returns one that ends as soon as the lease is lost, with [ErrLost] as its cause, or when ctx does.
// The function releases what it holds and is to be called.
func (l *Lease) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	lost, held := l.Lost(), l.held
	go func() {
		select {
		case <-lost:
			cancel(held.over("its context ends with it"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// Renew lets the lease end from now after the time for which it was last granted. It blocks for one call to
// the store, for no longer than the lease has left.
//
// It fails with [ErrLost] when the lease had run out or another holds the lock: it is over. After any other
// failure it ends when it would have, or later if it is renewed yet: [ErrConnection], [ErrRetriesExhausted],
// [ErrInDoubt], [ErrClosed], and what ended ctx.
func (l *Lease) Renew(ctx context.Context) error { return l.renew(ctx, 0) }

// RenewFor is [Lease.Renew] with another TTL, which may be shorter: 1 ms to 365 days. It fails also with
// [ErrInvalid].
func (l *Lease) RenewFor(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return invalid(fmt.Sprintf("TTL %v is not allowed: 1ms to 365 days", ttl))
	}
	return l.renew(ctx, ttl)
}

func (l *Lease) renew(ctx context.Context, ttl time.Duration) error {
	defer runtime.KeepAlive(l)
	held := l.held
	if held.released.Load() {
		return held.over("it was released")
	}
	m := held.manager
	// After the lease there is nothing to renew. What it has left is rounded down.
	patience := min(m.timeout, leaseRemaining(held.handle)+time.Millisecond)
	question := question{m.holding, m.identity.lockRegion(held.name), patience, "renewing " + held.name.String()}
	err := m.do(ctx, question, func() error { return renewLease(held.handle, ttl) })
	if codeOf(err) == CodeClosed && held.released.Load() {
		return held.over("it was released")
	}
	if codeOf(err) == CodeRetriesExhausted {
		// The lease may have run out while the call had no place.
		if lost := held.check(); lost != nil {
			return lost
		}
	}
	return err
}

// Release gives the lock up. It takes no context, so that the end of a request does not keep its lock from
// being released; it blocks for one call to the store, which the store's time-out bounds. It never touches
// another holder's record.
//
// It fails with [ErrLost] when the lease had run out or another holds the lock by now, and when it was
// released before, with [ErrClosed] too when that was by closing the manager. After any other failure it is
// open whether the lock is free, and the library goes on trying in the background until the TTL ends it:
// [ErrConnection], [ErrRetriesExhausted], [ErrInDoubt]. In any case the lease is over.
func (l *Lease) Release() error {
	if !l.released.CompareAndSwap(false, true) {
		return l.over("it was released before")
	}
	l.cleanup.Stop()
	l.copying.Lock() // from now on, whoever would copy sees that it was released
	l.copying.Unlock()
	patience := time.NewTimer(l.manager.timeout)
	defer patience.Stop()
	seat := l.manager.holding.enter(l.manager.identity.lockRegion(l.name), patience.C)
	if seat == nil {
		// Calls of others hold the places, the store hangs.
		go l.giveBack()
		return newError(CodeInDoubt, "releasing "+l.name.String()+": the store does not answer")
	}
	freed, err := releaseLease(l.handle)
	seat.give(err)
	switch {
	case err != nil || freed:
		l.manager.queue.released(l.name)
		return err
	case l.manager.closed():
		return newError(CodeClosed, "closing the manager has released "+l.name.String()).also(ErrLost)
	default:
		return l.over("it was found lost before")
	}
}

func (h *held) giveBack() { h.manager.giveBack(h.name, h.handle) }

// forgotten is called by the garbage collector, which must not be held up.
func (h *held) forgotten() {
	what := leak{logger: h.manager.logger, about: h.name.String(), free: h.giveBack}
	what.what = "a lease was forgotten and is released now"
	if h.check() != nil {
		// It was left to its TTL.
		go h.giveBack()
		return
	}
	forgotten(what)
}

func (h *held) over(why string) error {
	return newError(CodeLost, fmt.Sprintf("the lease of %v is over: %s", h.name, why))
}

// startWatch has lost closed when the lease is over. The kernel keeps the time, as it counts the time in which
// the machine sleeps; the goroutine parks in the runtime's poller.
func (h *held) startWatch() {
	file, err := h.lostFile()
	brief := h.manager.brief
	// A renewal may have put it off since the timer went off.
	over := func() (over bool) {
		brief.briefly(func() { over = h.check() != nil })
		return over
	}
	go func() {
		defer close(h.lost)
		if err == nil {
			err = parkUntil(file, over)
			brief.briefly(func() { _ = file.Close() })
		}
		if err != nil {
			// The process has no descriptor left.
			pollUntil(context.Background(), over)
		}
	}()
}

// lostFile is a copy of the lease's descriptor, to be closed.
func (h *held) lostFile() (*os.File, error) {
	h.copying.Lock()
	defer h.copying.Unlock()
	if err := h.check(); err != nil {
		return nil, err
	}
	fd, err := lostDescriptor(h.handle)
	if err != nil {
		return nil, err
	}
	return duplicate(fd, "lease")
}

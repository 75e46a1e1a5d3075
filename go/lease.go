//go:build cgo

package dlm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Lease is a held lock. It ends after its TTL unless it is renewed; after that somebody else may hold the lock. The
// TTL is counted from before the request was sent.
//
// Any number of goroutines may use a lease. A goroutine may release a lease that another one acquired. Release every
// lease. When the program drops a lease, the garbage collector releases it at some later time and logs a warning.
type Lease struct {
	*held
	cleanup runtime.Cleanup
}

// held is the part of a lease that background goroutines may keep after the caller has dropped the lease.
type held struct {
	manager *Manager
	name    Name
	grant

	released atomic.Bool
	// converted is set when another lease goes on in place of this one.
	converted atomic.Bool
	// watch makes the queue of the manager notice the end.
	watch  sync.Once
	lost   chan struct{}
	atRisk chan struct{}

	mu sync.Mutex
	// tag is the lease's number in the queue, or 0 if it is not watched.
	tag            uint64
	isLost, isRisk bool
	// afterLost are called once the lease is lost.
	afterLost map[int]func()
	added     int
}

// neverHeld is the channel of a lease that never was.
var neverHeld = func() chan struct{} {
	ended := make(chan struct{})
	close(ended)
	return ended
}()

func newLease(m *Manager, name Name, granted grant) *Lease {
	l := &Lease{held: &held{
		manager: m, name: name, grant: granted,
		lost: make(chan struct{}), atRisk: make(chan struct{}),
	}}
	l.cleanup = runtime.AddCleanup(l, (*held).forgotten, l.held)
	return l
}

// made returns an error for the zero value.
func (l *Lease) made() error {
	if l.held == nil {
		return unmade("Lease", "Lock")
	}
	return nil
}

// Name returns the name of the lock.
func (l *Lease) Name() Name {
	if l.made() != nil {
		return Name{}
	}
	return l.name
}

// Fence returns the number to send with every write that the lock protects. It grows with every grant, so a
// receiver can refuse numbers lower than the highest it has seen. It is 0 for readers, see [Lease.Epoch], and where the
// store's options switch fencing off.
func (l *Lease) Fence() uint64 {
	if l.made() != nil {
		return 0
	}
	return l.fence
}

// Check returns nil while the lease is valid by this machine's clock. Call it before each step that needs the lock.
// It does no I/O and takes some tens of nanoseconds. The goroutine may be paused right after the check; use
// [Lease.Fence] against that.
//
// It fails with [ErrLost] when the lease has expired, was released or was found lost. If closing the manager released it, the
// error is also [ErrClosed].
func (l *Lease) Check() error {
	defer runtime.KeepAlive(l)
	if err := l.made(); err != nil {
		return err
	}
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
	var lost *Error
	if errors.As(err, &lost) && lost.Reason == NotLost && h.manager.closed() {
		return lost.also(ErrClosed)
	}
	return err
}

// Guard returns the fence for the next write, if the lease is valid. It is [Lease.Check] and [Lease.Fence] in one call,
// so that no step can forget one of them. Call it before each step that the lock guards.
//
// It fails with [ErrLost] as Check does, and with [ErrInvalid] for readers and where the store's options switch fencing off.
func (l *Lease) Guard() (uint64, error) {
	if err := l.Check(); err != nil {
		return 0, err
	}
	switch {
	case l.fence != 0:
		return l.fence, nil
	case l.mode == Shared || l.mode == Update:
		return 0, invalid("a lease in mode " + l.mode.String() + " has no fence: only one holder may write (see Lease.Epoch)")
	default:
		return 0, invalid("the lease has no fence: fencing is switched off in the options of its store (fence=off)")
	}
}

// Remaining returns the remaining time of the lease, rounded down to milliseconds; 0 when the lease has ended.
func (l *Lease) Remaining() time.Duration {
	defer runtime.KeepAlive(l)
	if l.made() != nil {
		return 0
	}
	return leaseRemaining(l.handle)
}

// Lost returns a channel that is closed as soon as [Lease.Check] fails: the lease has expired, was released or was
// found lost. A renewal postpones this.
//
// It costs no descriptor and no goroutine: one goroutine of the manager watches all leases. The channel is closed up to
// 200 ms after a change by the clock, and a second later while the library asks the store why another lease was lost.
// [Lease.Check] is never late.
func (l *Lease) Lost() <-chan struct{} {
	if l.made() != nil {
		return neverHeld
	}
	l.held.watched()
	return l.held.lost
}

// Context returns a context that ends when ctx ends or when the lease is lost. In the second case its cause is an
// [*Error] with its reason, which wraps [ErrLost]. Call the returned function to free the resources of the context.
func (l *Lease) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if err := l.made(); err != nil {
		cancel(err)
		return ctx, func() {}
	}
	held := l.held // the functions must not refer to l, which could then never be collected
	stop := held.whenLost(func() { cancel(held.whyLost()) })
	context.AfterFunc(ctx, stop)
	held.watched()
	return ctx, func() { cancel(context.Canceled) }
}

// Renew extends the lease: from now on it lasts for the TTL of its last grant or renewal. It blocks for its turn and
// for one call to the store, each at most for the setting "timeout" and, while the lease has not expired, about its
// remaining time.
//
// It fails with [ErrLost] when the lease has expired or another holds the lock; the lease has then ended. After any
// other failure the lease keeps its old end, or a later one if the renewal still succeeds. Such failures are
// [ErrConnection], [ErrRetriesExhausted], [ErrInDoubt], [ErrClosed], and the error that ended ctx.
func (l *Lease) Renew(ctx context.Context) error { return l.renew(ctx, 0) }

// RenewFor renews the lease as [Lease.Renew] does, with another TTL of 1 ms to 365 days. The TTL may be shorter:
// the lease then ends earlier, but the lock stays held for the longer time unless it is released. RenewFor also fails
// with [ErrInvalid].
func (l *Lease) RenewFor(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return invalid(fmt.Sprintf("TTL %v is not allowed: 1ms to 365 days", ttl))
	}
	return l.renew(ctx, ttl)
}

func (l *Lease) renew(ctx context.Context, ttl time.Duration) error {
	defer runtime.KeepAlive(l)
	if err := l.made(); err != nil {
		return err
	}
	held := l.held
	if held.released.Load() {
		return held.over("it was released")
	}
	m := held.manager
	// A renewal after the end of the lease is useless. The remaining time is rounded down, so add 1 ms.
	patience := min(m.timeout, leaseRemaining(held.handle)+time.Millisecond)
	question := question{m.holding, m.identity.lockRegion(held.name), patience, "renewing " + held.name.String()}
	err := m.do(ctx, question, func() error { return renewLease(held.handle, ttl) })
	if codeOf(err) == CodeClosed && held.released.Load() {
		return held.over("it was released")
	}
	if codeOf(err) == CodeRetriesExhausted {
		// The lease may have expired while the call waited for its turn.
		if lost := held.check(); lost != nil {
			return lost
		}
	}
	return err
}

// Release releases the lock. It takes no context, because the lock should be released even when a request's context
// has ended. It blocks for its turn and for one call to the store, each limited by the setting "timeout". It never
// touches the record of another holder. After Release the lease has ended, whether Release failed or not.
//
// A second Release does nothing and returns nil, and so does the Release of a lease that closing the manager has released or
// that was turned into a token, as in all languages of the library. So a deferred Release may follow another one, whose error
// counts.
//
// It fails with [ErrLost] when the lease had expired in the store, when another holder has the lock, or when the lease was
// found lost before. After any other failure it is unknown whether the lock is free, and the library retries in the background until the
// TTL ends: [ErrConnection], [ErrRetriesExhausted], [ErrInDoubt].
func (l *Lease) Release() error {
	if err := l.made(); err != nil {
		return err
	}
	if !l.released.CompareAndSwap(false, true) {
		return nil
	}
	l.cleanup.Stop()
	l.ended()
	patience := time.NewTimer(l.manager.timeout)
	defer patience.Stop()
	seat := l.manager.holding.enter(l.manager.identity.lockRegion(l.name), patience.C)
	if seat == nil {
		// Other calls use all places because the store hangs.
		go l.giveBack()
		return newError(CodeInDoubt, "releasing "+l.name.String()+": the store does not answer")
	}
	freed, err := releaseLease(l.handle)
	seat.give(err)
	switch {
	case err != nil || freed:
		return err
	case l.manager.closed() || l.converted.Load():
		return nil
	default:
		return l.over("it was found lost earlier")
	}
}

// IntoToken ends the lease here without releasing the lock, and returns it as one line of text. Any process that
// reaches the same store can take the lease over with it, see [Manager.Adopt]. The text proves ownership. Treat it like a
// password, and do not log it.
//
// It fails with [ErrLost] when the lease was released or found lost, and with [ErrClosed]. It does no I/O.
func (l *Lease) IntoToken() (string, error) {
	if err := l.made(); err != nil {
		return "", err
	}
	if !l.released.CompareAndSwap(false, true) {
		return "", l.over("it was released earlier")
	}
	var token string
	var err error
	l.manager.brief.briefly(func() { token, err = leaseIntoToken(l.handle) })
	if err != nil {
		if l.converted.Load() {
			l.cleanup.Stop()
			l.ended()
			freeLease(l.handle)
		} else {
			l.released.Store(false)
		}
		return "", err
	}
	l.cleanup.Stop()
	l.ended()
	freeLease(l.handle)
	return token, nil
}

func (h *held) giveBack() {
	h.manager.giveBack(h.name, h.grant)
	h.ended()
}

// forgotten is called by the garbage collector and must not block.
func (h *held) forgotten() {
	what := leak{logger: h.manager.logger, about: h.name.String(), free: h.giveBack}
	what.what = "a lease was forgotten and is released now"
	if h.check() != nil {
		// The lease has already ended, so there is nothing to warn about.
		go h.giveBack()
		return
	}
	forgotten(what)
}

func (h *held) over(why string) error {
	return newError(CodeLost, fmt.Sprintf("the lease of %v is over: %s", h.name, why))
}

// whyLost returns the error of a lease that is not valid any more.
func (h *held) whyLost() error {
	if err := h.check(); err != nil {
		return err
	}
	return h.over("it was lost, and renewed by the program since")
}

// watched makes the queue of the manager notice the end of the lease.
func (h *held) watched() { h.watch.Do(func() { h.manager.queue.watch(h) }) }

// whenLost calls the function once the lease is lost, in any goroutine. The function must not block. stop prevents the call.
func (h *held) whenLost(call func()) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isLost {
		go call()
		return func() {}
	}
	if h.afterLost == nil {
		h.afterLost = make(map[int]func())
	}
	h.added++
	number := h.added
	h.afterLost[number] = call
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.afterLost, number)
	}
}

// riskBegan closes the channel of AtRisk.
func (h *held) riskBegan() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.isRisk {
		h.isRisk = true
		close(h.atRisk)
	}
}

// look closes the channels if it is time to. It returns whether the lease is over.
func (h *held) look() bool {
	if state, _ := h.state(); state == AtRisk {
		h.riskBegan()
	}
	over := h.check() != nil
	if over {
		h.ended()
	}
	return over
}

// ended closes both channels, and ends the watch.
func (h *held) ended() {
	h.riskBegan()
	h.mu.Lock()
	wasLost, calls, tag := h.isLost, h.afterLost, h.tag
	h.isLost, h.afterLost = true, nil
	h.mu.Unlock()
	if wasLost {
		return
	}
	close(h.lost)
	if tag != 0 {
		h.manager.queue.leave(tag)
	}
	for _, call := range calls {
		call()
	}
}

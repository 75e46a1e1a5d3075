//go:build cgo

package dlm

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Mode says how a lock is held, and so who may hold it at the same time. Later versions may add some. The numbers are the same
// in all languages.
type Mode int

// The modes.
const (
	// Exclusive means that there is one holder.
	Exclusive Mode = 0
	// Shared means that there may be any number of readers, and one holder in mode Update.
	Shared Mode = 1
	// Update means that there may be readers in mode Shared besides. It is for those who read and may write later: see
	// [Lease.Upgrade]. Only one holder at a time has it, so two of them never wait for each other.
	Update Mode = 2
	// Permit means that it is one of the permits of a [Semaphore].
	Permit Mode = 3
)

func (m Mode) String() string {
	switch m {
	case Exclusive:
		return "EXCLUSIVE"
	case Shared:
		return "SHARED"
	case Update:
		return "UPDATE"
	case Permit:
		return "PERMIT"
	default:
		return fmt.Sprintf("mode %d", int(m))
	}
}

// isOfLocksOnly returns whether there are options that only locks have.
func (a *acquisition) isOfLocksOnly() bool { return a.mode != Exclusive || a.isNested }

func (m Mode) isOfLocks() bool { return m == Exclusive || m == Shared || m == Update }

// InMode sets how the lock is held: [Exclusive], [Shared] or [Update]. A store that keeps exclusive locks only refuses the others.
func InMode(mode Mode) LockOption {
	return func(a *acquisition) { a.mode = mode }
}

// NestedIn is for a reader that reads once more what it reads already with the lease outer of the same lock: in mode [Shared].
// Writers that wait do not keep it out, because they wait for outer. Release the new lease before outer. A nil lease is refused with
// [ErrInvalid], and so is one of another lock.
func NestedIn(outer *Lease) LockOption {
	return func(a *acquisition) { a.nestedIn, a.isNested = outer, true }
}

// RLock acquires the lock as one of any number of readers. It is [Manager.Lock] with [InMode]([Shared]).
//
// Readers that come after a writer that waits let it pass, and take turns with writers.
func (m *Manager) RLock(ctx context.Context, name Name, options ...LockOption) (*Lease, error) {
	return m.Lock(ctx, name, append(options[:len(options):len(options)], InMode(Shared))...)
}

// TryRLock tries once to acquire the lock as one of any number of readers. It is [Manager.TryLock] with [InMode]([Shared]).
func (m *Manager) TryRLock(ctx context.Context, name Name, options ...LockOption) (*Lease, error) {
	return m.TryLock(ctx, name, append(options[:len(options):len(options)], InMode(Shared))...)
}

// Holders returns all that hold the lock: one exclusive holder, or any number of others. It blocks for one or two reads of the
// store.
//
// It fails with the errors of [Manager.Inspect].
func (m *Manager) Holders(ctx context.Context, name Name) ([]Holder, error) {
	question := question{m.asking, m.identity.lockRegion(name), m.timeout, "inspecting " + name.String()}
	return answerTo(ctx, question, false, func() ([]Holder, error) {
		defer runtime.KeepAlive(m)
		return lockHolders(m.handle, name)
	})
}

// Mode returns how the lock is held.
func (l *Lease) Mode() Mode {
	if l.made() != nil {
		return Exclusive
	}
	return l.mode
}

// Epoch returns the number of the period in which the lock is held: all readers of one time have the same, and each exclusive grant
// begins a new, higher one, which is its fence. A receiver may refuse a reader whose epoch is below the highest fence that it has
// seen: a writer came since. It is no fence and guards no write, because several holders have it. It is 0 for a permit of a
// semaphore, and where the store's options switch fencing off.
func (l *Lease) Epoch() uint64 {
	if l.made() != nil {
		return 0
	}
	return l.epoch
}

// Permit returns the number of the permit, from 0 on and below the size of its [Semaphore], or -1 for the lease of a lock.
func (l *Lease) Permit() int {
	if l.made() != nil {
		return -1
	}
	return l.permit
}

// Downgrade goes on with fewer rights: from [Exclusive] to [Update] or [Shared], or from Update to Shared. Nobody gets the lock
// in between. It returns the lease that holds the lock now, for the TTL of this one. This one is over then, and its Release does
// nothing. It blocks for its turn and for one call to the store, each limited by the setting "timeout", and never waits for other
// holders.
//
// Others may read as soon as the call has begun. So let no write that the exclusive lease guards be under way then. The new lease
// is kept alive as long as this one was to be. Its channels are its own.
//
// It fails with [ErrLost] when the lease is over; with [ErrInDoubt] when the store did not say in time whether it made the change:
// the lease is over then, and the library releases what is left of it; with [ErrInvalid] for the mode that the lease has, for
// Exclusive, for a permit, and while another goroutine changes it; and with [ErrUnsupportedConversion] for more rights than those of
// a reader. After [ErrInternal] the lease is over, and the lock is released. After any other error the lease is as it was.
func (l *Lease) Downgrade(mode Mode) (*Lease, error) {
	if err := l.made(); err != nil {
		return nil, err
	}
	if !mode.isOfLocks() {
		return nil, invalid(fmt.Sprintf("mode %d is not allowed: Shared or Update", int(mode)))
	}
	if mode == Exclusive && l.mode == Update {
		return nil, invalid("mode EXCLUSIVE is not allowed: fewer rights than those of the lease; see Lease.Upgrade")
	}
	if l.released.Load() {
		return nil, l.over("it was released")
	}
	patience := time.NewTimer(l.manager.timeout)
	defer patience.Stop()
	seat := l.manager.holding.enter(l.manager.identity.lockRegion(l.name), patience.C)
	if seat == nil {
		err := newError(CodeRetriesExhausted, "changing the mode of "+l.name.String()+": the store does not answer")
		err.Retryable = true
		return nil, err
	}
	granted, err := downgradeLease(l.handle, mode)
	seat.give(err)
	return l.followed(granted, err)
}

// Upgrade goes on exclusively, from mode [Update]. It waits for the readers to leave, before all others who wait, until ctx ends or
// for this time: 0 tries once, [Forever] has no limit. No new readers come meanwhile, except that those that have waited for long
// take turns. It returns the lease that holds the lock now, with a new fence. This one is over then, and its Release does nothing.
//
// Upgrade holds a thread while it waits, unlike Lock. When ctx ends, it returns after a request that is under way, which takes the
// setting "timeout" at most. The lease may end during the wait unless it is kept alive. A reader that waits for another lock of
// this program makes both wait until one gives up.
//
// It fails with [ErrLocked] when readers hold the lock, and with the error that ended ctx: the lease is as it was. It fails with
// [ErrUnsupportedConversion] for a shared lease, because two of those would wait for each other, and with the errors of
// [Lease.Downgrade].
func (l *Lease) Upgrade(ctx context.Context, wait time.Duration) (*Lease, error) {
	if err := l.made(); err != nil {
		return nil, err
	}
	if err := noContext(ctx); err != nil {
		return nil, err
	}
	if wait < 0 {
		return nil, invalid(fmt.Sprintf("the wait %v is not allowed: 0 or more", wait))
	}
	if l.released.Load() {
		return nil, l.over("it was released")
	}
	doing := "upgrading the lease of " + l.name.String()
	if ctx.Err() != nil {
		return nil, ended(ctx, CodeCancelled, doing)
	}
	cancel, err := newCancel()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { triggerCancel(cancel) })
	granted, err := upgradeLease(l.handle, wait, cancel)
	stop()
	freeCancel(cancel)
	if codeOf(err) == CodeCancelled {
		return nil, ended(ctx, CodeCancelled, doing)
	}
	return l.followed(granted, err)
}

// followed returns the lease that goes on in place of this one.
func (l *Lease) followed(granted grant, err error) (*Lease, error) {
	defer runtime.KeepAlive(l)
	if err != nil {
		if codeOf(err) == CodeClosed && l.released.Load() {
			return nil, l.over("it was released")
		}
		return nil, err
	}
	l.converted.Store(true)
	if l.released.CompareAndSwap(false, true) {
		l.cleanup.Stop()
		l.ended()
		freeLease(l.handle)
	}
	return newLease(l.manager, l.name, granted), nil
}

//go:build cgo

package dlm

import (
	"runtime"
	"time"
)

// LeaseState is the state of a [Lease]. Later versions may add some.
type LeaseState int

// The states of a lease.
const (
	// Released means that the lease was released or turned into a token. Also after a release that failed.
	Released LeaseState = 0
	// Held means that the lease is valid, and not kept alive.
	Held LeaseState = 1
	// Renewing means that the lease is valid, and kept alive: see [Lease.KeepAlive].
	Renewing LeaseState = 2
	// AtRisk means that the lease is valid and kept alive, but less than a third of it is left: renewals fail, or its
	// longest time is nearly over. Finish what the lock guards.
	AtRisk LeaseState = 3
	// Lost means that the lease is not valid any more.
	Lost LeaseState = 4
)

// LostReason says why a lease was lost. The numbers are the same in all languages. Later versions may add some.
type LostReason int

// The reasons.
const (
	// NotLost means that the lease is valid, or was released.
	NotLost LostReason = 0
	// LostExpired means that the time of the lease ran out: it was not kept alive, every renewal failed, or its longest
	// time was over.
	LostExpired LostReason = 1
	// LostTakenOver means that a renewal or release found the record of another holder.
	LostTakenOver LostReason = 2
	// LostRecordGone means that a renewal or release found no record, although the lease had time left.
	LostRecordGone LostReason = 3
	// LostProcessStopped means that the time ran out while this process did not run, so that nothing could renew the
	// lease.
	LostProcessStopped LostReason = 4
	// LostBroken means that an operator broke the lock: see [Seen.Break]. The error says who, and why.
	LostBroken LostReason = 5
	// LostEndUnknown means that the end of the lease is not known here, because its token comes from another machine. A
	// renewal makes it known.
	LostEndUnknown LostReason = 6
)

// State returns the state of the lease by this machine's clock, and why it was lost if it was. It does no I/O.
func (l *Lease) State() (LeaseState, LostReason) {
	defer runtime.KeepAlive(l)
	if l.made() != nil {
		return Released, NotLost
	}
	return l.state()
}

func (h *held) state() (LeaseState, LostReason) {
	if h.released.Load() {
		return Released, NotLost
	}
	return leaseState(h.handle)
}

// KeepAlive keeps the lease alive: threads of the library renew it from now on, for maxHold at most. No renewal makes it
// last longer than maxHold from now. [Forever] sets no limit, and a second call sets a new one. KeepAlive does no I/O.
//
// The library renews after a third of the lease, and repeatedly if that fails. When less than a third is left, the
// channel of [Lease.AtRisk] is closed. When every renewal fails until the end, the lease is lost, and no renewal brings it
// back. All kept leases of a manager share at most two threads. Still call [Lease.Guard] before each step.
//
// It fails with [ErrLost] when the lease is not valid, with [ErrInvalid] when maxHold is not above zero or the TTL of the
// lease is below 100 ms, and with [ErrClosed].
func (l *Lease) KeepAlive(maxHold time.Duration) error {
	defer runtime.KeepAlive(l)
	if err := l.made(); err != nil {
		return err
	}
	if maxHold <= 0 {
		return invalid("the longest time " + maxHold.String() + " is not allowed: above zero, or Forever")
	}
	if l.released.Load() {
		return l.over("it was released")
	}
	err := keepLease(l.handle, maxHold)
	if codeOf(err) == CodeClosed && l.released.Load() {
		return l.over("it was released")
	}
	return err
}

// StopKeepAlive ends what [Lease.KeepAlive] has begun: the lease then ends at its end, unless it is renewed. A renewal under
// way may still make it longer. It does nothing for a lease that is not kept alive, or that was released.
func (l *Lease) StopKeepAlive() error {
	defer runtime.KeepAlive(l)
	if err := l.made(); err != nil {
		return err
	}
	if l.released.Load() {
		return nil
	}
	err := stopKeepingLease(l.handle)
	if codeOf(err) == CodeClosed && l.released.Load() {
		return nil
	}
	return err
}

// HoldAtLeast lets the lock stay held for this time from now, even if the lease is released sooner: at most the TTL. So a
// job that takes a second runs only once, although the clocks of the machines that start it differ by some seconds. A
// release then ends the lease at once and sends nothing. The library releases the lock when the time is over. When the
// manager is closed or the process ends before, the lock is free when its TTL ends.
//
// It fails with [ErrInvalid] for a time below zero or longer than the TTL, and with [ErrLost].
func (l *Lease) HoldAtLeast(minHold time.Duration) error {
	defer runtime.KeepAlive(l)
	if err := l.made(); err != nil {
		return err
	}
	if l.released.Load() {
		return l.over("it was released")
	}
	if minHold < 0 {
		return invalid("the minimum hold " + minHold.String() + " is not allowed: 0 to the TTL")
	}
	return holdLease(l.handle, minHold)
}

// TTL returns the TTL with which the lease was granted or last renewed.
func (l *Lease) TTL() time.Duration {
	defer runtime.KeepAlive(l)
	if l.made() != nil {
		return 0
	}
	return leaseTTL(l.handle)
}

// AtRisk returns a channel that is closed as soon as the lease is at risk for the first time, or has ended. See
// [Lease.KeepAlive].
//
// It costs as little as [Lease.Lost], and is as late.
func (l *Lease) AtRisk() <-chan struct{} {
	if l.made() != nil {
		return neverHeld
	}
	l.held.watched()
	return l.held.atRisk
}

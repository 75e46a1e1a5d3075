//go:build cgo

package dlm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// LeaseSet holds the leases of several locks that [Manager.LockAll] has acquired together. It is valid while all of them
// are. Any number of goroutines may use it. Release every set.
type LeaseSet struct {
	leases []*Lease // in the order of the caller
	order  []int    // indices of leases, in the order in which they were acquired
}

// LockAll acquires several locks together, and waits for them as [Manager.Lock] does: all of them or none. The wait is the
// time for all locks together.
//
// The locks are acquired one after the other in one order, whatever the order of names is. So callers of LockAll never
// wait for each other in a circle, and neither do programs in other languages that do the same. A caller that already holds
// a lock which it acquired otherwise may.
//
// While LockAll waits, the library renews the leases that it has. At the end all are checked, and have about the whole TTL
// left. When one was lost or a lock cannot be acquired, all are released.
//
// It fails with the errors of Lock for the first lock that cannot be acquired, with [ErrLost] when a lease was lost while
// others were waited for, and with [ErrInvalid] for no name, for a name twice, and for several locks with a TTL below
// 100 ms.
func (m *Manager) LockAll(ctx context.Context, names []Name, options ...LockOption) (*LeaseSet, error) {
	how, err := m.acquisition(ctx, options)
	if err != nil {
		return nil, err
	}
	order, err := ordered(names)
	if err != nil {
		return nil, err
	}
	if len(names) > 1 && how.ttl < 100*time.Millisecond {
		return nil, invalid(fmt.Sprintf("TTL %v is not allowed: 100ms or more for several locks", how.ttl))
	}
	wait := m.wait
	if how.hasWait {
		wait = how.wait
	} else if _, limited := ctx.Deadline(); limited {
		wait = Forever
	}
	began := time.Now()
	set := &LeaseSet{leases: make([]*Lease, len(names))}
	for _, at := range order {
		if err := set.keepLast(); err != nil {
			return nil, set.giveBack(err)
		}
		left := wait
		if wait != Forever {
			left = max(wait-time.Since(began), 0)
		}
		options := []LockOption{TTL(how.ttl), Wait(left), InMode(how.mode)}
		if how.isNested {
			options = append(options, NestedIn(how.nestedIn))
		}
		lease, err := m.Lock(ctx, names[at], options...)
		if err != nil {
			return nil, set.giveBack(err)
		}
		set.leases[at] = lease
		set.order = append(set.order, at)
	}
	if err := set.refresh(ctx); err != nil {
		return nil, set.giveBack(err)
	}
	return set, nil
}

// ordered returns the indices of the names, ordered as the library orders their keys.
func ordered(names []Name) ([]int, error) {
	if len(names) == 0 {
		return nil, invalid("no name is not allowed: at least one")
	}
	order := make([]int, len(names))
	for at := range names {
		order[at] = at
	}
	// Keys begin with the level. "DC" is before "XDC".
	compare := func(a, b int) int {
		if names[a].level != names[b].level {
			return cmp.Compare(names[a].String(), names[b].String())
		}
		return cmp.Compare(names[a].id, names[b].id)
	}
	slices.SortFunc(order, compare)
	for at := 1; at < len(order); at++ {
		if names[order[at]] == names[order[at-1]] {
			return nil, invalid(fmt.Sprintf("%v twice is not allowed: each name once", names[order[at]]))
		}
	}
	return order, nil
}

func (s *LeaseSet) keepLast() error {
	if len(s.order) == 0 {
		return nil
	}
	return s.leases[s.order[len(s.order)-1]].KeepAlive(Forever)
}

// refresh ends the renewals in the background, and renews those leases that have waited, so that the caller has as much
// time for all of them as for the last one.
func (s *LeaseSet) refresh(ctx context.Context) error {
	last := s.leases[s.order[len(s.order)-1]]
	for _, at := range s.order[:len(s.order)-1] {
		lease := s.leases[at]
		if err := lease.StopKeepAlive(); err != nil {
			return err
		}
		if lease.Remaining()+last.TTL()/20 < last.Remaining() {
			if err := lease.Renew(ctx); err != nil {
				return err
			}
		}
	}
	return s.Check()
}

// giveBack releases what was acquired so far, the last one first.
func (s *LeaseSet) giveBack(err error) error {
	for _, at := range slices.Backward(s.order) {
		_ = s.leases[at].Release()
	}
	return err
}

// made returns an error for the zero value, whose leases must not all seem valid.
func (s *LeaseSet) made() error {
	if len(s.leases) == 0 {
		return unmade("LeaseSet", "LockAll")
	}
	return nil
}

// Leases returns the leases, in the order in which the names were passed.
func (s *LeaseSet) Leases() []*Lease { return slices.Clone(s.leases) }

// Check returns nil while all leases are valid. It fails as [Lease.Check] does for the first lease that is not.
func (s *LeaseSet) Check() error {
	if err := s.made(); err != nil {
		return err
	}
	for _, lease := range s.leases {
		if err := lease.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Guard returns the fences for the next write, in the order in which the names were passed, if all leases are valid. It
// fails as [Lease.Guard] does for the first lease that is not.
func (s *LeaseSet) Guard() ([]uint64, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	fences := make([]uint64, len(s.leases))
	for at, lease := range s.leases {
		fence, err := lease.Guard()
		if err != nil {
			return nil, err
		}
		fences[at] = fence
	}
	return fences, nil
}

// Remaining returns the remaining time of the lease that ends first.
func (s *LeaseSet) Remaining() time.Duration {
	if s.made() != nil {
		return 0
	}
	left := s.leases[0].Remaining()
	for _, lease := range s.leases[1:] {
		left = min(left, lease.Remaining())
	}
	return left
}

// KeepAlive keeps all leases alive, for maxHold at most. See [Lease.KeepAlive], whose errors it has.
func (s *LeaseSet) KeepAlive(maxHold time.Duration) error {
	if err := s.made(); err != nil {
		return err
	}
	for _, lease := range s.leases {
		if err := lease.KeepAlive(maxHold); err != nil {
			return err
		}
	}
	return nil
}

// Renew renews all leases, one after the other. It returns the first error of [Lease.Renew], and renews the others
// nevertheless.
func (s *LeaseSet) Renew(ctx context.Context) error {
	if err := s.made(); err != nil {
		return err
	}
	var first error
	for _, at := range s.order {
		if err := s.leases[at].Renew(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Release releases all locks. A second Release does nothing and returns nil. Release returns the first error of [Lease.Release], and releases the others nevertheless.
func (s *LeaseSet) Release() error {
	if err := s.made(); err != nil {
		return err
	}
	var first error
	for _, at := range slices.Backward(s.order) {
		if err := s.leases[at].Release(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

//go:build cgo

package dlm

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// fine fails the test if there is an error.
func fine(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestReadersGoTogetherAndAnUpdaterWritesWhenTheyHaveLeft(t *testing.T) {
	ctx := t.Context()
	m := open(t, embedded(t), Retry(20*time.Millisecond))
	name := XDC("prices")
	one, err := m.RLock(ctx, name)
	fine(t, err)
	other, err := m.TryRLock(ctx, name, NestedIn(one))
	fine(t, err)
	updating := lock(t, m, name, InMode(Update))
	if one.Mode() != Shared || updating.Mode() != Update || one.Epoch() == 0 || one.Epoch() != other.Epoch() || one.Permit() != -1 {
		t.Fatalf("%v %v %d %d", one.Mode(), updating.Mode(), one.Epoch(), other.Epoch())
	}
	_, err = one.Guard()
	wants(t, err, ErrInvalid)
	if one.Fence() != 0 || !strings.Contains(err.Error(), "SHARED") {
		t.Fatal(one.Fence(), err)
	}
	_, err = m.TryLock(ctx, name)
	wants(t, err, ErrLocked)
	holders := must(m.Holders(ctx, name))
	count := map[Mode]int{}
	for _, holder := range holders {
		count[holder.Mode]++
	}
	if len(holders) != 3 || count[Shared] != 2 || count[Update] != 1 {
		t.Fatalf("%+v", holders)
	}

	_, err = updating.Upgrade(ctx, 0)
	wants(t, err, ErrLocked)
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = updating.Upgrade(soon, Forever)
	wants(t, err, context.DeadlineExceeded)
	fine(t, updating.Check())
	_, err = one.Upgrade(ctx, 0)
	wants(t, err, ErrUnsupportedConversion)
	_, err = updating.Downgrade(Exclusive)
	wants(t, err, ErrInvalid)
	_, err = updating.Upgrade(ctx, -1)
	wants(t, err, ErrInvalid)

	release(t, other)
	var upgraded *Lease
	done := make(chan struct{})
	go func() {
		defer close(done)
		upgraded = must(updating.Upgrade(ctx, Forever))
	}()
	eventually(t, "it waits", func() bool { return m.Stats().Waiting == 1 })
	release(t, one)
	<-done
	if fence := must(upgraded.Guard()); fence <= one.Epoch() {
		t.Fatal(fence, one.Epoch())
	}
	<-updating.Lost()
	if !updating.released.Load() {
		t.Fatal("the handle of the old lease stays open")
	}
	release(t, updating) // it is over, and its release does nothing
	fine(t, upgraded.Check())
	_, err = updating.Downgrade(Shared)
	wants(t, err, ErrLost)
	_, err = updating.Upgrade(ctx, 0)
	wants(t, err, ErrLost)

	fine(t, upgraded.KeepAlive(Forever))
	reading := must(upgraded.Downgrade(Shared))
	if state, _ := reading.State(); state != Renewing || reading.Epoch() <= one.Epoch() {
		t.Fatal(state, reading.Epoch())
	}
	// Not TryRLock: the intent of the wait that was given up above may not have ended in the store yet.
	beside := must(m.RLock(ctx, name))
	token := must(reading.IntoToken())
	adopted := must(m.Adopt(name, token))
	if adopted.Mode() != Shared || adopted.Epoch() != beside.Epoch() {
		t.Fatal(adopted.Mode(), adopted.Epoch(), beside.Epoch())
	}
	release(t, adopted)
	release(t, beside)
}

func TestAReleaseEndsAnUpgradeThatWaits(t *testing.T) {
	ctx := t.Context()
	m := open(t, embedded(t), Retry(20*time.Millisecond))
	name := XDC("prices")
	reading, updating := lock(t, m, name, InMode(Shared)), lock(t, m, name, InMode(Update))
	done := make(chan error)
	go func() {
		_, err := updating.Upgrade(ctx, Forever)
		done <- err
	}()
	eventually(t, "it waits", func() bool { return m.Stats().Waiting == 1 })
	release(t, updating)
	wants(t, <-done, ErrLost)
	release(t, reading)
	release(t, lock(t, m, name))
}

func TestModesThatNoLockHasAreRefused(t *testing.T) {
	m := open(t, "memory:", Client("modes"))
	for _, mode := range []Mode{-1, Permit, 4, 1 << 40} {
		_, err := m.TryLock(t.Context(), XDC("a"), InMode(mode))
		wants(t, err, ErrInvalid)
		lease := lock(t, m, XDC("b"))
		_, err = lease.Downgrade(mode)
		wants(t, err, ErrInvalid)
		release(t, lease)
	}
	other := lock(t, m, XDC("other"), InMode(Shared))
	_, err := m.TryRLock(t.Context(), XDC("a"), NestedIn(other))
	wants(t, err, ErrInvalid)
	for _, outer := range []*Lease{nil, new(Lease)} {
		_, err := m.TryRLock(t.Context(), XDC("a"), NestedIn(outer))
		wants(t, err, ErrInvalid)
	}
	_, err = m.Election(XDC("a")).Campaign(t.Context(), InMode(Shared))
	wants(t, err, ErrInvalid)
	set := must(m.LockAll(t.Context(), []Name{XDC("c"), XDC("d")}, InMode(Shared)))
	release(t, must(m.TryRLock(t.Context(), XDC("c"), NestedIn(set.Leases()[0]))))
	fine(t, set.Release())
	if Mode(9).String() != "mode 9" || Permit.String() != "PERMIT" {
		t.Fatal(Mode(9), Permit)
	}
}

func TestPermitsHaveNumbersAndFencesAndAreAcquiredTogether(t *testing.T) {
	ctx := t.Context()
	m := open(t, embedded(t), Retry(20*time.Millisecond))
	licences := must(m.Semaphore(XDC("licences"), 3))
	_, err := licences.Resize(ctx, 2)
	wants(t, err, ErrNotFound)
	two := must(licences.TryAcquire(ctx, 2))
	for at, lease := range two.Leases() {
		if lease.Permit() != at || lease.Mode() != Permit || lease.Epoch() != 0 || must(lease.Guard()) == 0 {
			t.Fatalf("%d: %d %v", at, lease.Permit(), lease.Mode())
		}
	}
	if free := must(licences.Available(ctx)); free != 1 {
		t.Fatal(free)
	}
	_, err = licences.TryAcquire(ctx, 2)
	wants(t, err, ErrLocked)
	_, err = licences.Acquire(ctx, 2, Wait(10*time.Millisecond))
	wants(t, err, ErrLocked)
	cancelled, cancel := context.WithCancel(ctx)
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = licences.Acquire(cancelled, 2, Wait(Forever))
	wants(t, err, context.Canceled)
	for _, count := range []int{-1, 0, 4, 1 << 20} {
		_, err := licences.Acquire(ctx, count)
		wants(t, err, ErrInvalid)
	}
	_, err = licences.TryAcquire(ctx, 1, InMode(Shared))
	wants(t, err, ErrInvalid)
	_, err = licences.TryAcquire(ctx, 1, Wait(1))
	wants(t, err, ErrInvalid)
	_, err = must(m.Semaphore(XDC("licences"), 4)).TryAcquire(ctx, 1)
	wants(t, err, ErrInvalid)
	for _, permits := range []int{-65535, 0, 257, 1 << 40} {
		_, err := m.Semaphore(XDC("licences"), permits)
		wants(t, err, ErrInvalid)
		_, err = licences.Resize(ctx, permits)
		wants(t, err, ErrInvalid)
	}
	holders := must(licences.Holders(ctx))
	if len(holders) != 2 || holders[1].Permit != 1 || holders[1].Mode != Permit {
		t.Fatalf("%+v", holders)
	}

	done := make(chan *LeaseSet)
	go func() { done <- must(licences.Acquire(ctx, 2)) }()
	eventually(t, "it waits", func() bool { return m.Stats().Waiting == 1 })
	fence := two.Leases()[0].Fence()
	release(t, two.Leases()[0])
	next := <-done
	if leases := next.Leases(); leases[0].Permit() != 0 || leases[1].Permit() != 2 || leases[0].Fence() <= fence {
		t.Fatal(leases[0].Permit(), leases[1].Permit(), leases[0].Fence(), fence)
	}
	fine(t, next.Renew(ctx))
	fine(t, next.Release())
	larger := must(licences.Resize(ctx, 256))
	if larger.Permits() != 256 || larger.Name() != XDC("licences") {
		t.Fatal(larger.Permits(), larger.Name())
	}
	fine(t, must(larger.Acquire(ctx, 255)).Release())
	fine(t, two.Release())
}

// Goroutines beyond the number of permits never hold more than there are.
func TestNoMoreGoroutinesThanPermitsHoldOne(t *testing.T) {
	ctx := t.Context()
	m := open(t, embedded(t), Retry(20*time.Millisecond))
	pool := must(m.Semaphore(XDC("pool"), 3))
	var mu sync.Mutex
	var group sync.WaitGroup
	held, most := map[int]bool{}, 0
	for range 30 {
		group.Add(1)
		go func() {
			defer group.Done()
			set, err := pool.Acquire(ctx, 1, Wait(Forever))
			if err != nil {
				t.Error(err)
				return
			}
			permit := set.Leases()[0].Permit()
			mu.Lock()
			if held[permit] {
				t.Errorf("permit %d has two holders", permit)
			}
			held[permit] = true
			most = max(most, len(held))
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			delete(held, permit)
			mu.Unlock()
			if err := set.Release(); err != nil && !errors.Is(err, ErrLost) {
				t.Error(err)
			}
		}()
	}
	group.Wait()
	if most < 1 || most > 3 {
		t.Fatal(most)
	}
}

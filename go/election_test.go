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

func TestACandidateLeadsAfterTheLeaderResigns(t *testing.T) {
	uri, ctx := embedded(t), context.Background()
	first, second := open(t, uri).Election(XDC("e")), open(t, uri).Election(XDC("e"))
	term, err := first.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if state, _ := term.State(); state != Renewing {
		t.Fatalf("the term is not kept alive: %v", state)
	}
	leader, err := second.Leader(ctx)
	if err != nil || leader.Holder == nil || leader.Fence != term.Fence() {
		t.Fatalf("%+v %v", leader, err)
	}
	if _, err := second.Campaign(ctx, Wait(10*time.Millisecond)); !errors.Is(err, ErrLocked) {
		t.Fatalf("two lead at once: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := second.Campaign(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	led := make(chan uint64)
	go func() {
		_ = second.Lead(ctx, func(_ context.Context, term *Lease) error {
			fence, _ := term.Guard()
			led <- fence
			return nil
		})
		close(led)
	}()
	if err := term.Release(); err != nil {
		t.Fatal(err)
	}
	if fence := <-led; fence <= term.Fence() {
		t.Fatalf("fence %d after %d", fence, term.Fence())
	}
	<-led
	if leader, err := first.Leader(ctx); err != nil || leader.Holder != nil {
		t.Fatalf("the term goes on after the work: %+v %v", leader, err)
	}
}

// Another process takes the lock away by the token of the term.
func TestTheWorkOfALeaderIsToldOfTheLoss(t *testing.T) {
	patiently(t, 900*time.Millisecond, workIsToldOfTheLoss)
}

func workIsToldOfTheLoss(t *testing.T, ttl time.Duration) bool {
	uri, ctx := embedded(t), context.Background()
	m, other := open(t, uri), open(t, uri)
	lease := brief(t, m, XDC("lost"), ttl)
	token, err := lease.IntoToken()
	if isLate(t, err) {
		_ = lease.Release()
		return false
	}
	ours, err := m.Adopt(XDC("lost"), token)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ours.Release() }() // frees the handle
	if isLate(t, ours.KeepAlive(Forever)) {
		return false
	}
	work, cancel := ours.Context(ctx)
	defer cancel()
	theirs, err := other.Adopt(XDC("lost"), token)
	if err != nil {
		t.Fatal(err)
	}
	if isLate(t, theirs.Release()) {
		return false
	}
	<-work.Done()
	var why *Error
	if !errors.As(context.Cause(work), &why) || why.Reason == NotLost {
		t.Fatalf("no reason: %v", context.Cause(work))
	}
	if _, err := ours.Guard(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	return true
}

func TestAnObserverIsToldOfEachChange(t *testing.T) {
	uri := embedded(t)
	ctx, stop := context.WithCancel(context.Background())
	election := open(t, uri, Retry(5*time.Millisecond)).Election(XDC("e"))
	seen, ended := make(chan Inspection), make(chan error, 1)
	go func() {
		ended <- election.Observe(ctx, func(now Inspection) error {
			seen <- now
			return nil
		})
	}()
	if now := <-seen; now.Holder != nil {
		t.Fatalf("%+v", now)
	}
	term, err := open(t, uri).Election(XDC("e")).Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if now := <-seen; now.Holder == nil || now.Fence != term.Fence() {
		t.Fatalf("%+v", now)
	}
	if err := term.Release(); err != nil {
		t.Fatal(err)
	}
	if now := <-seen; now.Holder != nil {
		t.Fatalf("%+v", now)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	if err := election.Observe(context.Background(), func(Inspection) error { return enough }); err != enough {
		t.Fatal(err)
	}
}

func TestSeveralLocksAreAcquiredTogetherOrNotAtAll(t *testing.T) {
	uri, ctx := embedded(t), context.Background()
	ours, theirs := open(t, uri), open(t, uri)
	a, b := XDC("a"), DC("b")
	set, err := ours.LockAll(ctx, []Name{a, b})
	if err != nil {
		t.Fatal(err)
	}
	fences, err := set.Guard()
	if err != nil || len(fences) != 2 || set.Leases()[1].Name() != b {
		t.Fatalf("%v %v", fences, err)
	}
	for _, lease := range set.Leases() {
		if state, _ := lease.State(); state != Held {
			t.Fatalf("still kept alive: %v", state)
		}
	}
	if _, err := theirs.TryLock(ctx, a); !errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	if err := set.Renew(ctx); err != nil || set.Remaining() <= 0 {
		t.Fatal(err)
	}
	if err := set.KeepAlive(Forever); err != nil {
		t.Fatal(err)
	}
	if err := set.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := set.Guard(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	held, err := theirs.TryLock(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	// b is the first in the order, and is given back.
	if _, err := ours.LockAll(ctx, []Name{a, b}, Wait(10*time.Millisecond)); !errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	free, err := theirs.TryLock(ctx, b)
	if err != nil {
		t.Fatalf("a part of the set is left: %v", err)
	}
	for _, lease := range []*Lease{held, free} {
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range [][]Name{nil, {a, b, a}} {
		if _, err := ours.LockAll(ctx, wrong); !errors.Is(err, ErrInvalid) {
			t.Fatalf("%v: %v", wrong, err)
		}
	}
	if _, err := ours.LockAll(ctx, []Name{a, b}, TTL(99*time.Millisecond)); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
}

func TestOverlappingSetsDoNotBlockEachOther(t *testing.T) {
	uri, ctx := embedded(t), context.Background()
	managers := []*Manager{open(t, uri, Retry(time.Millisecond)), open(t, uri, Retry(time.Millisecond))}
	names := []Name{XDC("a"), XDC("b"), DC("c")}
	var inside sync.Mutex
	var group sync.WaitGroup
	for worker := range 6 {
		group.Add(1)
		go func() {
			defer group.Done()
			// Each pair of sets has a name in common.
			pair := []Name{names[worker%3], names[(worker+1)%3]}
			if worker >= 3 {
				pair[0], pair[1] = pair[1], pair[0]
			}
			for range 50 {
				set, err := managers[worker%2].LockAll(ctx, pair, Wait(Forever))
				if err != nil {
					t.Error(err)
					return
				}
				if !inside.TryLock() {
					t.Error("two sets with a common lock at once")
					return
				}
				inside.Unlock()
				if err := set.Release(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
}

func TestALockWithAMinimumHoldIsFreeWhenThatIsOverAndNotBefore(t *testing.T) {
	const minHold = 200 * time.Millisecond
	uri, ctx := embedded(t), context.Background()
	lease, err := open(t, uri).TryLock(ctx, XDC("hold"))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []time.Duration{-1, lease.TTL() + time.Millisecond} {
		if err := lease.HoldAtLeast(wrong); !errors.Is(err, ErrInvalid) {
			t.Fatalf("%v: %v", wrong, err)
		}
	}
	began := time.Now()
	if err := lease.HoldAtLeast(minHold); err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	next, err := open(t, uri, Retry(5*time.Millisecond)).Lock(ctx, XDC("hold"))
	if err != nil {
		t.Fatal(err)
	}
	if held := time.Since(began); held < minHold {
		t.Fatalf("free after %v", held)
	}
	if err := next.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestALeaseThatIsNoLongerKeptIsHeld(t *testing.T) {
	lease, err := open(t, embedded(t)).TryLock(context.Background(), XDC("kept"))
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.KeepAlive(Forever); err != nil {
		t.Fatal(err)
	}
	if err := lease.StopKeepAlive(); err != nil {
		t.Fatal(err)
	}
	if state, _ := lease.State(); state != Held {
		t.Fatal(state)
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if err := lease.StopKeepAlive(); err != nil {
		t.Fatal(err)
	}
}

func TestTheStoreIsNamedAndDiagnosed(t *testing.T) {
	ctx := context.Background()
	m := open(t, embedded(t))
	if uri := m.Store(); !strings.HasPrefix(uri, "embedded:") {
		t.Fatal(uri)
	}
	findings, isSafe, err := m.Diagnose(ctx)
	if err != nil || !isSafe || len(findings) == 0 {
		t.Fatalf("%v %v %v", findings, isSafe, err)
	}
	if err := m.InitializeLatches(ctx); err != nil {
		t.Fatal(err)
	}
	latch := m.Latch(XDC("l"), CountDown)
	if err := latch.CreateFor(ctx, "x", "y"); err != nil {
		t.Fatal(err)
	}
	if _, err := latch.CountDownAs(ctx, "y"); err != nil {
		t.Fatal(err)
	}
	if arrived, err := latch.Arrived(ctx); err != nil || len(arrived) != 1 || arrived[0] != "y" {
		t.Fatalf("%v %v", arrived, err)
	}
	if VersionNumber() < 1000 {
		t.Fatal(VersionNumber())
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if uri := m.Store(); uri != "" {
		t.Fatal(uri)
	}
}

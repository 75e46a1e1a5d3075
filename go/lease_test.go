//go:build cgo

package dlm

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

func TestGuardReturnsTheFenceOfAValidLeaseAndNothingElse(t *testing.T) {
	m := open(t, embedded(t))
	lease, err := m.TryLock(context.Background(), XDC("guarded"))
	if err != nil {
		t.Fatal(err)
	}
	if fence, err := lease.Guard(); err != nil || fence == 0 || fence != lease.Fence() {
		t.Fatalf("%v %v, and the fence is %v", fence, err, lease.Fence())
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if fence, err := lease.Guard(); !errors.Is(err, ErrLost) || fence != 0 {
		t.Fatalf("%v %v after the release", fence, err)
	}
}

func TestALeaseGoesToAnotherManagerAsAToken(t *testing.T) {
	uri, ctx := embedded(t), context.Background()
	from, to := open(t, uri), open(t, uri)
	lease, err := from.TryLock(ctx, XDC("handed-on"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := lease.IntoToken()
	if err != nil || token == "" {
		t.Fatalf("%d bytes, %v", len(token), err)
	}
	if err := lease.Check(); !errors.Is(err, ErrLost) {
		t.Fatalf("the lease is still here: %v", err)
	}
	if _, err := lease.IntoToken(); !errors.Is(err, ErrLost) {
		t.Fatalf("a second token: %v", err)
	}
	if stats := from.Stats(); stats.LeasesHeld != 0 {
		t.Fatalf("%+v", stats)
	}
	for _, wrong := range []string{"", "dlm2.00", token[:len(token)-2], "a\x00b"} {
		if _, err := to.Adopt(XDC("handed-on"), wrong); !errors.Is(err, ErrInvalid) {
			t.Fatalf("a wrong token was adopted: %v", err)
		}
	}
	if _, err := to.Adopt(XDC("another"), token); !errors.Is(err, ErrInvalid) {
		t.Fatalf("a token of another lock was adopted: %v", err)
	}
	adopted, err := to.Adopt(XDC("handed-on"), token)
	if err != nil {
		t.Fatal(err)
	}
	if adopted.Fence() != lease.Fence() || adopted.Remaining() == 0 {
		t.Fatalf("fence %d, %v left", adopted.Fence(), adopted.Remaining())
	}
	if err := adopted.Renew(ctx); err != nil {
		t.Fatal(err)
	}
	if err := adopted.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := from.TryLock(ctx, XDC("handed-on"))
	if err != nil {
		t.Fatalf("the lock is not free: %v", err)
	}
	if err := again.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestInspectSaysWhoHoldsTheLock(t *testing.T) {
	ctx := context.Background()
	m := open(t, embedded(t), Purpose("tests"))
	if seen, err := m.Inspect(ctx, XDC("seen")); err != nil || seen.Holder != nil || seen.Fence != 0 {
		t.Fatalf("%+v %v", seen, err)
	}
	lease, err := m.TryLock(ctx, XDC("seen"), TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	seen, err := m.Inspect(ctx, XDC("seen"))
	if err != nil || seen.Holder == nil || seen.Fence != lease.Fence() {
		t.Fatalf("%+v %v", seen, err)
	}
	host, _ := os.Hostname()
	holder := *seen.Holder
	if holder.PID != os.Getpid() || holder.Host != host || holder.Purpose != "tests" || holder.Started.IsZero() {
		t.Fatalf("%+v", holder)
	}
	if holder.Remaining <= 0 || holder.Remaining > time.Minute {
		t.Fatalf("%v left", holder.Remaining)
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if seen, err := m.Inspect(ctx, XDC("seen")); err != nil || seen.Holder != nil {
		t.Fatalf("%+v %v", seen, err)
	}
}

func TestAKeptLeaseOutlivesItsTTLUntilItsLongestTimeIsOver(t *testing.T) {
	patiently(t, 900*time.Millisecond, isKeptUntilItsLongestTimeIsOver)
}

func isKeptUntilItsLongestTimeIsOver(t *testing.T, ttl time.Duration) bool {
	manager := open(t, embedded(t))
	lease := brief(t, manager, XDC("a"), ttl)
	defer func() { _ = lease.Release() }()
	switch state, reason := lease.State(); {
	case state == Lost:
		return false
	case state != Held || reason != NotLost:
		t.Fatal(state, reason)
	}
	if err := lease.KeepAlive(0); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	began := time.Now()
	work, cancel := lease.Context(t.Context())
	defer cancel()
	if isLate(t, lease.KeepAlive(ttl*10/3)) {
		return false
	}
	<-lease.AtRisk()
	if state, _ := lease.State(); state != AtRisk && state != Lost {
		t.Fatal(state)
	}
	<-lease.Lost()
	if kept := time.Since(began); kept < ttl {
		t.Fatalf("kept for %v only", kept)
	}
	<-work.Done()
	var why *Error
	if cause := context.Cause(work); !errors.As(cause, &why) || why.Reason != LostExpired && why.Reason != LostProcessStopped || !errors.Is(cause, ErrLost) {
		t.Fatal(cause)
	}
	if state, reason := lease.State(); state != Lost || reason != LostExpired && reason != LostProcessStopped {
		t.Fatal(state, reason)
	}
	if err := lease.KeepAlive(Forever); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	_ = lease.Release()
	if state, reason := lease.State(); state != Released || reason != NotLost {
		t.Fatal(state, reason)
	}
	if err := lease.KeepAlive(Forever); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	return true
}

func TestALostLeaseSaysThatAnotherHasTakenIt(t *testing.T) {
	patiently(t, 3*time.Second, saysThatAnotherHasTakenIt)
}

func saysThatAnotherHasTakenIt(t *testing.T, ttl time.Duration) bool {
	manager := open(t, embedded(t))
	lease := brief(t, manager, XDC("a"), ttl)
	token, err := lease.IntoToken()
	if isLate(t, err) {
		_ = lease.Release()
		return false
	}
	kept, err := manager.Adopt(XDC("a"), token)
	if err != nil {
		t.Fatal(err)
	}
	other, err := manager.Adopt(XDC("a"), token)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if isLate(t, kept.KeepAlive(Forever)) || isLate(t, other.Release()) {
		return false
	}
	next, err := manager.TryLock(t.Context(), XDC("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	// The first renewal comes a little later. It must not come before the other one has the lock.
	isInTime := time.Since(began) < ttl/5
	<-kept.Lost()
	state, reason := kept.State()
	if !isInTime && reason == LostRecordGone {
		return false
	}
	if state != Lost || reason != LostTakenOver && reason != LostExpired && reason != LostProcessStopped {
		t.Fatal(state, reason)
	}
	if err := next.Check(); err != nil {
		t.Fatal(err)
	}
	return true
}

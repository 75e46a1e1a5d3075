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

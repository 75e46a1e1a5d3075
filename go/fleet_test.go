//go:build cgo

package dlm_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"libdlm.org/dlm"
)

func TestLocksAreListedAndBrokenAndTheirHoldersAreTold(t *testing.T) {
	ctx, uri := context.Background(), "embedded:"+t.TempDir()+"?ttl=10m&wait=10m&timeout=60s"
	open := func(client string) *dlm.Manager {
		manager, err := dlm.Open(uri, dlm.Client(client), dlm.Farm("dc1"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { manager.Close() })
		return manager
	}
	holder, tool := open("orders"), open("tool")
	lease, err := holder.TryLock(ctx, dlm.XDC("order-42"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := holder.TryLock(ctx, dlm.DC("other"))
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.KeepAlive(other)
	var names []string
	for lock, err := range tool.Locks(ctx, "XDC#orders#", true) {
		if err != nil || !lock.Named || lock.Holder == nil || lock.Fence != lease.Fence() {
			t.Fatal(lock, err)
		}
		names = append(names, lock.FullName)
	}
	if len(names) != 1 || names[0] != "XDC#orders#order-42" {
		t.Fatal(names)
	}
	for range tool.Locks(ctx, "", true) {
		break // an early end
	}
	for _, err := range tool.Locks(ctx, "a\x00b", true) {
		if !errors.Is(err, dlm.ErrInvalid) {
			t.Fatal(err)
		}
	}

	seen, err := tool.See(ctx, dlm.Full(names[0]))
	if err != nil || seen.Holder == nil {
		t.Fatal(seen, err)
	}
	if _, err := seen.Break(ctx, ""); !errors.Is(err, dlm.ErrInvalid) {
		t.Fatal(err)
	}
	broken, err := seen.Break(ctx, "it hangs")
	if err != nil || !broken.IsBroken || !broken.IsRecorded || broken.Fence <= lease.Fence() {
		t.Fatal(broken, err)
	}
	if again, err := seen.Break(ctx, "it hangs"); err != nil || again.IsBroken {
		t.Fatal(again, err)
	}
	err = lease.Renew(ctx)
	if !errors.Is(err, dlm.ErrLost) || !strings.Contains(err.Error(), `because "it hangs"`) {
		t.Fatal(err)
	}
	if state, why := lease.State(); state != dlm.Lost || why != dlm.LostBroken {
		t.Fatal(state, why)
	}
	entries, err := tool.History(ctx, dlm.Full(names[0]), time.Time{}, 10)
	if err != nil || len(entries) != 3 {
		t.Fatal(entries, err)
	}
	kinds := map[string]int{}
	for _, entry := range entries {
		kinds[entry.Kind]++
		if entry.Mode != 0 || entry.ModeBefore != 0 || entry.Text != "it hangs" || entry.By == "" || time.Since(entry.At) > time.Hour {
			t.Fatal(entry)
		}
	}
	if kinds["broken"] != 2 || kinds["not broken"] != 1 {
		t.Fatal(kinds)
	}
	if _, err := tool.See(ctx, dlm.Full("order-42")); !errors.Is(err, dlm.ErrInvalid) {
		t.Fatal(err)
	}
	none, err := tool.History(ctx, dlm.XDC("order-42"), time.Now().Add(time.Hour), 10)
	if err != nil || len(none) != 0 {
		t.Fatal(none, err)
	}
}

func TestTheHolderSaysWhoWaits(t *testing.T) {
	ctx, uri := context.Background(), "embedded:"+t.TempDir()+"?ttl=10m&wait=10m&timeout=60s"
	open := func() *dlm.Manager {
		manager, err := dlm.Open(uri, dlm.Client("orders"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { manager.Close() })
		return manager
	}
	holder, other := open(), open()
	name := dlm.XDC("order-42")
	if waiters, err := other.Waiting(ctx, name); err != nil || waiters != nil {
		t.Fatal(waiters, err)
	}
	lease, err := holder.TryLock(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.KeepAlive(lease)
	waiting, end := context.WithCancel(ctx)
	var ended sync.WaitGroup
	for _, manager := range []*dlm.Manager{holder, holder, other} {
		ended.Add(1)
		go func() {
			defer ended.Done()
			if _, err := manager.Lock(waiting, name); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
	}
	// A holder on a busy machine may not answer in time.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		waiters, err := other.Waiting(ctx, name)
		if err != nil || time.Now().After(deadline) {
			t.Fatal(waiters, err)
		}
		if waiters != nil && waiters.Threads == 2 && waiters.Processes == 1 && waiters.Longest > 0 {
			break
		}
	}
	end()
	ended.Wait()
	if _, err := other.Waiting(ctx, dlm.XDC("a\x00b")); !errors.Is(err, dlm.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestALockHasTheSameHolderByItsFullName(t *testing.T) {
	ctx := context.Background()
	manager, err := dlm.Open("embedded:"+t.TempDir()+"?ttl=1h&timeout=60s", dlm.Client("orders"), dlm.Farm("dc1"))
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	lease, err := manager.TryLock(ctx, dlm.Full("DC#dc1#orders#order-42"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manager.TryLock(ctx, dlm.DC("order-42")); !errors.Is(err, dlm.ErrLocked) {
		t.Fatal(err)
	}
	seen, err := manager.Inspect(ctx, dlm.Full("DC#dc1#orders#order-42"))
	if err != nil || seen.Holder == nil || seen.Fence != lease.Fence() {
		t.Fatal(seen, err)
	}
	if _, err := manager.TryLock(ctx, dlm.Full("order-42")); !errors.Is(err, dlm.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestAListOfManyPagesHasEachLockOnce(t *testing.T) {
	ctx := context.Background()
	manager, err := dlm.Open("embedded:"+t.TempDir()+"?ttl=1h&timeout=60s", dlm.Client("orders"), dlm.Farm("dc1"))
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	const count = 1200      // more than two pages
	var leases []*dlm.Lease // a lease that is forgotten is released
	for at := range count {
		lease, err := manager.TryLock(ctx, dlm.XDC(fmt.Sprint("order-", at)))
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	found := map[string]bool{}
	for lock, err := range manager.Locks(ctx, "XDC#orders#order-", true) {
		if err != nil || found[lock.FullName] {
			t.Fatal(lock, err)
		}
		found[lock.FullName] = true
	}
	if len(found) != count {
		t.Fatal(len(found))
	}
	runtime.KeepAlive(leases)
}

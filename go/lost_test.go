//go:build cgo

package dlm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Time to live of a lease that is lost in a test. A busy machine gets longer ones.
const lostTTL = 2 * time.Second

func init() {
	// keep keeps a lease alive until it is lost, and writes the reason to a file.
	children["keep"] = func(uri string) {
		ttl, err := time.ParseDuration(os.Getenv("DLM_GO_TEST_TTL"))
		if err != nil {
			panic(err)
		}
		m, err := Open(uri, DefaultTTL(ttl))
		if err != nil {
			panic(err)
		}
		lease, err := m.Lock(context.Background(), XDC("stopped"))
		for errors.Is(err, ErrRetriesExhausted) { // the grant took longer than the lease
			lease, err = m.Lock(context.Background(), XDC("stopped"))
		}
		if err != nil {
			panic(err)
		}
		if err := lease.KeepAlive(Forever); err != nil && !errors.Is(err, ErrLost) {
			panic(err)
		}
		fmt.Println("kept")
		<-lease.Lost()
		_, reason := lease.State()
		file := os.Getenv("DLM_GO_TEST_FILE")
		if err := os.WriteFile(file+".new", []byte(fmt.Sprint(int(reason))), 0o600); err != nil {
			panic(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			panic(err)
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = lease.Release()
		_ = m.Close()
	}
}

// lockStores returns the URIs of all stores that these tests can use.
func lockStores(t *testing.T) map[string]string {
	client := fmt.Sprintf("lost-%d", time.Now().UnixNano())
	stores := map[string]string{"embedded": embedded(t)}
	if master := os.Getenv("DLM_TEST_HBASE_MASTER"); master != "" {
		stores["hbase"] = "hbase://" + master + "/go_lost?farm=dc1&timeout=2m&client=" + client
	}
	if uri := os.Getenv("DLM_TEST_AEROSPIKE"); uri != "" {
		options := "?"
		if strings.Contains(uri, "?") {
			options = "&"
		}
		stores["aerospike"] = uri + options + "farm=dc1&timeout=2m&client=" + client
	}
	for name, uri := range stores {
		if err := open(t, uri).Initialize(t.Context()); err != nil {
			t.Fatal(name, err)
		}
	}
	return stores
}

func TestEveryReasonForALossIsTold(t *testing.T) {
	for name, uri := range lockStores(t) {
		each := func(what string, ttl time.Duration, run func(*testing.T, string, time.Duration) bool) {
			t.Run(name+"/"+what, func(t *testing.T) {
				patiently(t, ttl, func(t *testing.T, ttl time.Duration) bool { return run(t, uri, ttl) })
			})
		}
		each("expired", lostTTL, expires)
		each("gone", 4*lostTTL, func(t *testing.T, uri string, ttl time.Duration) bool { return goes(t, uri, ttl, false) })
		each("taken", 4*lostTTL, func(t *testing.T, uri string, ttl time.Duration) bool { return goes(t, uri, ttl, true) })
		each("stopped", lostTTL, isStopped)
	}
}

// The longest time of the lease is over.
func expires(t *testing.T, uri string, ttl time.Duration) bool {
	lease := brief(t, open(t, uri), XDC("expires"), ttl)
	defer func() { _ = lease.Release() }()
	if isLate(t, lease.KeepAlive(ttl*3/2)) {
		return false
	}
	<-lease.AtRisk()
	<-lease.Lost()
	// The second reason is that of a machine that is too busy to renew.
	if state, reason := lease.State(); state != Lost || reason != LostExpired && reason != LostProcessStopped {
		t.Fatal(state, reason)
	}
	if _, err := lease.Guard(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	return true
}

// Another manager releases the lock by the token of the lease, and perhaps acquires it.
func goes(t *testing.T, uri string, ttl time.Duration, taken bool) bool {
	name := XDC(fmt.Sprint("goes ", taken))
	m, other := open(t, uri), open(t, uri)
	held := brief(t, m, name, ttl)
	token, err := held.IntoToken()
	if isLate(t, err) {
		_ = held.Release()
		return false
	}
	lease, err := m.Adopt(name, token)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release() }()
	theirs, err := other.Adopt(name, token)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if isLate(t, lease.KeepAlive(Forever)) || isLate(t, theirs.Release()) {
		return false
	}
	wanted := LostRecordGone
	if taken {
		wanted = LostTakenOver
		next, err := other.TryLock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = next.Release() }()
	}
	// The first renewal comes a little later. It has to find what was done here.
	if time.Since(began) > ttl/5 {
		return false
	}
	<-lease.Lost()
	state, reason := lease.State()
	if taken && reason == LostRecordGone {
		return false // it was renewed before the other one had acquired the lock
	}
	if state != Lost || reason != wanted {
		t.Fatal(state, reason)
	}
	var lost *Error
	if _, err := lease.Guard(); !errors.As(err, &lost) || lost.Reason != wanted {
		t.Fatal(err)
	}
	return true
}

// A process with a kept lease is stopped for longer than the lease lasts.
func isStopped(t *testing.T, uri string, ttl time.Duration) bool {
	file := filepath.Join(t.TempDir(), "reason")
	t.Setenv("DLM_GO_TEST_FILE", file)
	t.Setenv("DLM_GO_TEST_TTL", ttl.String())
	process, end := child(t, "keep", uri)
	if err := process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * ttl)
	_, err := os.Stat(file)
	wasLostBefore := err == nil
	if err := process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var said []byte
	eventually(t, "the stopped process finds out", func() bool {
		var err error
		said, err = os.ReadFile(file)
		return err == nil
	})
	end()
	if wasLostBefore {
		return false
	}
	// A renewal under way during the stop may have found out more.
	for _, reason := range []LostReason{LostProcessStopped, LostRecordGone} {
		if string(said) == fmt.Sprint(int(reason)) {
			return true
		}
	}
	t.Fatalf("reason %s", said)
	return false
}

// One goroutine of the manager watches all leases.
func TestTheEndsOfManyLeasesCostNoDescriptorAndNoGoroutineEach(t *testing.T) {
	const crowd = 100
	m := open(t, embedded(t))
	// Starts what a manager has once.
	first := lock(t, m, XDC("first"), TTL(10*time.Minute))
	ended := first.Lost()
	if first.Lost() != ended {
		t.Fatal("another channel")
	}
	files, goroutines := descriptorsWithoutCollector(t), runtime.NumGoroutine()
	var leases []*Lease
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for at := range crowd {
		lease := lock(t, m, XDC(fmt.Sprint("crowd ", at)), TTL(10*time.Minute))
		lost, risk := lease.Lost(), lease.AtRisk()
		held, done := lease.Context(ctx)
		defer done()
		select {
		case <-lost:
			t.Fatal("lost")
		case <-risk:
			t.Fatal("at risk")
		case <-held.Done():
			t.Fatal(context.Cause(held))
		default:
		}
		leases = append(leases, lease)
	}
	if now := runtime.NumGoroutine(); now >= goroutines+crowd/2 {
		t.Errorf("%d goroutines, %d before", now, goroutines)
	}
	if now := descriptors(t); now >= files+crowd/2 {
		t.Errorf("%d descriptors, %d before", now, files)
	}
	held, done := leases[0].Context(ctx)
	defer done()
	if err := leases[0].Release(); err != nil {
		t.Fatal(err)
	}
	<-leases[0].Lost()
	<-leases[0].AtRisk()
	<-held.Done()
	if cause := context.Cause(held); !errors.Is(cause, ErrLost) {
		t.Fatal(cause)
	}
	over, done := leases[0].Context(ctx)
	defer done()
	<-over.Done()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	for _, lease := range leases {
		<-lease.Lost()
		<-lease.AtRisk()
	}
	late, done := leases[1].Context(ctx)
	defer done()
	<-late.Done()
}

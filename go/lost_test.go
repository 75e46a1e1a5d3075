//go:build cgo

package dlm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Time to live of a lease that is lost in a test.
const lostTTL = 2 * time.Second

func init() {
	// keep keeps a lease alive until it is lost, and writes the reason to a file.
	children["keep"] = func(uri string) {
		m, err := Open(uri, DefaultTTL(lostTTL))
		if err != nil {
			panic(err)
		}
		lease, err := m.Lock(context.Background(), XDC("stopped"))
		if err != nil {
			panic(err)
		}
		if err := lease.KeepAlive(Forever); err != nil {
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
		stores["hbase"] = "hbase://" + master + "/go_lost?farm=dc1&client=" + client
	}
	if uri := os.Getenv("DLM_TEST_AEROSPIKE"); uri != "" {
		options := "?"
		if strings.Contains(uri, "?") {
			options = "&"
		}
		stores["aerospike"] = uri + options + "farm=dc1&client=" + client
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
		t.Run(name+"/expired", func(t *testing.T) { expires(t, uri) })
		t.Run(name+"/gone", func(t *testing.T) { goes(t, uri, false) })
		t.Run(name+"/taken", func(t *testing.T) { goes(t, uri, true) })
		t.Run(name+"/stopped", func(t *testing.T) { isStopped(t, uri) })
	}
}

// The longest time of the lease is over.
func expires(t *testing.T, uri string) {
	lease, err := open(t, uri).Lock(t.Context(), XDC("expires"), TTL(lostTTL))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release() }()
	if err := lease.KeepAlive(lostTTL + time.Second); err != nil {
		t.Fatal(err)
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
}

// Another manager releases the lock by the token of the lease, and perhaps acquires it.
func goes(t *testing.T, uri string, taken bool) {
	name := XDC(fmt.Sprint("goes ", taken))
	m, other := open(t, uri), open(t, uri)
	held, err := m.Lock(t.Context(), name, TTL(4*lostTTL))
	if err != nil {
		t.Fatal(err)
	}
	token, err := held.IntoToken()
	if err != nil {
		t.Fatal(err)
	}
	lease, err := m.Adopt(name, token)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release() }()
	if err := lease.KeepAlive(Forever); err != nil {
		t.Fatal(err)
	}
	theirs, err := other.Adopt(name, token)
	if err != nil {
		t.Fatal(err)
	}
	if err := theirs.Release(); err != nil {
		t.Fatal(err)
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
	<-lease.Lost()
	if state, reason := lease.State(); state != Lost || reason != wanted {
		t.Fatal(state, reason)
	}
	var lost *Error
	if _, err := lease.Guard(); !errors.As(err, &lost) || lost.Reason != wanted {
		t.Fatal(err)
	}
}

// A process with a kept lease is stopped for longer than the lease lasts.
func isStopped(t *testing.T, uri string) {
	file := filepath.Join(t.TempDir(), "reason")
	t.Setenv("DLM_GO_TEST_FILE", file)
	process, end := child(t, "keep", uri)
	if err := process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * lostTTL)
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
	// A renewal under way during the stop may have found out more.
	for _, reason := range []LostReason{LostProcessStopped, LostRecordGone} {
		if string(said) == fmt.Sprint(int(reason)) {
			return
		}
	}
	t.Fatalf("reason %s", said)
}

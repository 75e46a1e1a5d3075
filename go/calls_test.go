//go:build cgo

package dlm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// long is a time that no step of a test takes on any machine. With it, a bug makes a test fail and not hang.
const long = 2 * time.Minute

// eventually waits until done returns true. It fails the test after a long time.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(long); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen in %v", what, long)
		}
	}
}

// patiently runs a case with a short time, and with longer ones if it returns false: this machine was too slow for it.
func patiently(t *testing.T, short time.Duration, run func(t *testing.T, length time.Duration) bool) {
	t.Helper()
	for _, factor := range []time.Duration{1, 5, 25} {
		if run(t, factor*short) {
			return
		}
		t.Logf("%v was too short", factor*short)
	}
	t.Fatal("the machine was too slow three times")
}

// isLate returns whether a call failed because its lease had ended before. It fails the test after other errors.
func isLate(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrRetriesExhausted) {
		t.Fatal(err)
	}
	return err != nil
}

// brief acquires a lock for a short time. On a busy machine the grant may take longer than the lease, and is tried again.
func brief(t testing.TB, m *Manager, name Name, ttl time.Duration) *Lease {
	t.Helper()
	for end := time.Now().Add(long); ; {
		lease, err := m.Lock(t.Context(), name, TTL(ttl))
		if err == nil {
			return lease
		}
		if !errors.Is(err, ErrRetriesExhausted) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func refusal() error { return newError(CodeLocked, "planted: held") }

// An abandoned call to a store that hangs blocks neither its caller nor its place. Its late result is passed on.
func TestACallThatIsGivenUpTellsWhatBecameOfIt(t *testing.T) {
	shares := newShares(make(chan struct{}))
	ctx, cancel := context.WithCancel(t.Context())
	store := make(chan int)
	late := make(chan int)
	ended := make(chan fate)
	go func() {
		question := question{shares, 7, time.Minute, "testing"}
		_, fate, _ := call(ctx, question, func() (int, error) { return <-store, nil }, func(it int, _ error) { late <- it })
		ended <- fate
	}()
	eventually(t, "the call", func() bool { return shares.underWay() == 1 })
	cancel()
	if fate := <-ended; fate != goesOn {
		t.Fatal(fate)
	}
	store <- 7
	if it := <-late; it != 7 {
		t.Fatal(it)
	}
	eventually(t, "its slot freed", func() bool { return shares.underWay() == 0 })
}

// full returns shares whose places are all in use, by calls to the necessary number of regions.
func full(t *testing.T, closed <-chan struct{}) (*shares, []*seat) {
	t.Helper()
	shares := newShares(closed)
	var seats []*seat
	for number := range callsAtOnce {
		seat, _ := shares.take(t.Context(), region(number/regionCalls), time.Minute)
		if seat == nil {
			t.Fatalf("no place for call %d", number)
		}
		seats = append(seats, seat)
	}
	return shares, seats
}

func TestWhoWaitsForASlotLeavesWithTheContextOrTheManagerOrItsPatience(t *testing.T) {
	for _, of := range []struct {
		end      string
		patience time.Duration
		want     error
	}{
		{"cancel", time.Hour, context.Canceled},
		{"close", time.Hour, ErrClosed},
		{"patience", 50 * time.Millisecond, ErrRetriesExhausted},
	} {
		closed := make(chan struct{})
		shares, seats := full(t, closed)
		ctx, cancel := context.WithCancel(t.Context())
		switch of.end {
		case "cancel":
			cancel()
		case "close":
			close(closed)
		}
		began := time.Now()
		question := question{shares, 100, of.patience, "testing"}
		_, fate, _ := call(ctx, question, func() (int, error) { panic("there was no slot") }, nil)
		err := question.stopped(ctx, fate)
		if !errors.Is(err, of.want) || errors.Is(err, ErrInDoubt) {
			t.Fatal(err)
		}
		if of.end == "patience" {
			if time.Since(began) < of.patience {
				t.Fatalf("it waited only %v", time.Since(began))
			}
			if !strings.Contains(err.Error(), "testing: no turn in 50ms: all 16 calls at once of this manager are in use") {
				t.Fatal(err)
			}
			if !err.(*Error).Retryable {
				t.Fatal("the error must be retryable: a place may become free")
			}
		}
		cancel()
		if shares.waiting.Len() != 0 || shares.underWay() != callsAtOnce {
			t.Fatal(shares.waiting.Len(), shares.underWay())
		}
		for _, seat := range seats {
			seat.give(nil)
		}
		if shares.underWay() != 0 {
			t.Fatal(shares.underWay())
		}
	}
}

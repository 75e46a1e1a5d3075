//go:build cgo

package dlm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// eventually waits until done returns true. It fails the test after 30 s, which is enough for slow machines.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen in 30 s", what)
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

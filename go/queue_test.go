//go:build cgo

package dlm

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
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

func inLine(q *queue) int { return q.waiting() }

func TestOnlyTheFrontAsksAndEachReleaseGoesToTheNextInOrder(t *testing.T) {
	q := &queue{retry: time.Hour}
	name := XDC("a")
	var free atomic.Bool
	var refusals atomic.Int32
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	for number := range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			_, err := wait(t.Context(), q, terms{name: name}, func(bool) (int, error) {
				if free.Swap(false) {
					return 0, nil
				}
				refusals.Add(1)
				return 0, refusal()
			})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			order = append(order, number)
			mu.Unlock()
			free.Store(true)
			q.released(name)
		}()
		eventually(t, "joining the line", func() bool { return inLine(q) == number+1 })
	}
	eventually(t, "the front asking", func() bool { return refusals.Load() == 1 })
	free.Store(true)
	q.released(name)
	all.Wait()
	for at, number := range order {
		if at != number {
			t.Fatalf("not first come first served: %v", order)
		}
	}
	if refusals.Load() != 1 || len(q.lines) != 0 {
		t.Fatalf("the crowd reached the store %d times, %d lines are left", refusals.Load(), len(q.lines))
	}
}

func TestAFrontWhoseContextEndsMakesWayForTheNext(t *testing.T) {
	q := &queue{retry: time.Hour}
	ctx, cancel := context.WithCancelCause(t.Context())
	first := make(chan error)
	go func() {
		_, err := wait(ctx, q, terms{name: XDC("a")}, func(bool) (int, error) { return 0, refusal() })
		first <- err
	}()
	eventually(t, "the front joining", func() bool { return inLine(q) == 1 })
	second := make(chan int)
	go func() {
		got, _ := wait(t.Context(), q, terms{name: XDC("a")}, func(bool) (int, error) { return 7, nil })
		second <- got
	}()
	eventually(t, "the second joining", func() bool { return inLine(q) == 2 })
	why := errors.New("the user went away")
	cancel(why)
	err := <-first
	if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	// The second waiter need not wait for the hour to pass: a release makes it ask at once.
	q.released(XDC("a"))
	if got := <-second; got != 7 || len(q.lines) != 0 {
		t.Fatalf("%d, %d lines are left", got, len(q.lines))
	}
}

// The front's own end says nothing about the lock, so the next one must not wait for an interval.
func TestAFrontThatGivesUpACallLeavesItsTurnToTheNext(t *testing.T) {
	q := &queue{retry: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := wait(ctx, q, terms{name: XDC("a")}, func(bool) (int, error) {
			<-ctx.Done()
			return 0, ended(ctx, CodeCancelled, "planted")
		})
		first <- err
	}()
	eventually(t, "the front joining", func() bool { return inLine(q) == 1 })
	second := make(chan error)
	go func() {
		_, err := wait(t.Context(), q, terms{name: XDC("a")}, func(bool) (int, error) { return 0, nil })
		second <- err
	}()
	eventually(t, "the second joining", func() bool { return inLine(q) == 2 })
	cancel()
	wants(t, <-first, context.Canceled)
	select {
	case err := <-second:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the second one waits for an interval of an hour")
	}
}

func TestAStoreThatFailsTheFrontFailsTheLineAndADoubtDoesNot(t *testing.T) {
	q := &queue{retry: time.Millisecond}
	var down atomic.Bool
	var failed atomic.Int32
	failures := make(chan error)
	for range 20 {
		go func() {
			_, err := wait(t.Context(), q, terms{name: XDC("a"), speaksForAll: true}, func(bool) (int, error) {
				if down.Load() {
					failed.Add(1)
					return 0, newError(CodeConnection, "planted: down")
				}
				return 0, refusal()
			})
			failures <- err
		}()
	}
	eventually(t, "all joining", func() bool { return inLine(q) == 20 })
	down.Store(true)
	for range 20 {
		if err := <-failures; !errors.Is(err, ErrConnection) {
			t.Fatal(err)
		}
	}
	if failed.Load() != 1 || len(q.lines) != 0 {
		t.Fatalf("%d of them asked a store that is down, %d lines are left", failed.Load(), len(q.lines))
	}

	for _, own := range []struct {
		err   error
		terms terms
	}{
		{newError(CodeInDoubt, "planted: lost"), terms{name: XDC("a"), speaksForAll: true}},
		{newError(CodeConnection, "planted: no answer in 1 ms"), terms{name: XDC("a")}},
	} {
		q := &queue{retry: time.Millisecond}
		front := make(chan error)
		go func() {
			_, err := wait(t.Context(), q, own.terms, func(bool) (int, error) {
				eventually(t, "another joining", func() bool { return inLine(q) == 2 })
				return 0, own.err
			})
			front <- err
		}()
		eventually(t, "the front joining", func() bool { return inLine(q) == 1 })
		_, err := wait(t.Context(), q, terms{name: XDC("a")}, func(bool) (int, error) { return 0, nil })
		if other := <-front; err != nil || !errors.Is(other, own.err) {
			t.Fatalf("a failure %v of the front alone reached another waiter: %v", other, err)
		}
	}
}

func TestClosingWakesAllWhoWait(t *testing.T) {
	q := &queue{retry: time.Hour}
	ends := make(chan error)
	for range 10 {
		go func() {
			_, err := wait(context.Background(), q, terms{name: XDC("a")}, func(bool) (int, error) { return 0, refusal() })
			ends <- err
		}()
	}
	eventually(t, "all joining", func() bool { return inLine(q) == 10 })
	q.close()
	for range 10 {
		if err := <-ends; !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
}

func TestAWaitOfZeroAsksOnceAndLeavesNoLineBehind(t *testing.T) {
	q := &queue{retry: time.Hour}
	asked := 0
	_, err := wait(t.Context(), q, terms{name: XDC("a"), until: time.Now()}, func(bool) (int, error) {
		asked++
		return 0, refusal()
	})
	if !errors.Is(err, ErrLocked) || asked != 1 || len(q.lines) != 0 {
		t.Fatalf("%v, asked %d times, %d lines are left", err, asked, len(q.lines))
	}
}

// Without the yielding, a process with two busy goroutines would keep the lock from all others for ever.
func TestAfterItsTenureTheLineStandsBackForOneInterval(t *testing.T) {
	q := &queue{retry: time.Minute}
	ticket := q.join(XDC("a"))
	ticket.granted()
	q.released(XDC("a"))
	if time.Now().Before(ticket.line.nextAsk) || ticket.line.look {
		t.Fatal("the release did not make the front ask at once")
	}
	ticket.line.oursSince = time.Now().Add(-q.retry*quantum - time.Second)
	before := time.Now()
	q.released(XDC("a"))
	// Other processes ask once per interval, which jitter lengthens by up to a tenth.
	if ticket.line.nextAsk.Sub(before) < q.retry*11/10 || !ticket.line.oursSince.IsZero() {
		t.Fatal("the line does not yield for an interval")
	}
}

// take makes one wait that is granted when it asks. It returns whether the wait was told to read the lock first.
func take(t *testing.T, q *queue, ctx context.Context, terms terms) (look bool) {
	t.Helper()
	look, err := wait(ctx, q, terms, func(look bool) (bool, error) { return look, nil })
	if err != nil {
		t.Fatal(err)
	}
	if len(q.lines) != 0 {
		t.Fatal("a line is left")
	}
	return look
}

func TestALoopOfOneGoroutineStandsBackAfterItsTenure(t *testing.T) {
	q := &queue{retry: 50 * time.Millisecond}
	q.recent.held(XDC("a"), time.Now().Add(-time.Hour))
	released := time.Now()
	q.released(XDC("a"))
	if look := take(t, q, t.Context(), terms{name: XDC("a")}); !look {
		t.Fatal("another process may hold the lock, but it was not read first")
	}
	if pause := time.Since(released); pause < q.retry*11/10 {
		t.Fatalf("others got %v of an interval of %v", pause, q.retry)
	}
	if past := q.recent.take(XDC("a")); past.state != heldHere || past.since.Before(released) {
		t.Fatal("no new quantum began: ", past)
	}
}

func TestABriefWaitAsksAlthoughItIsTheOthersTurn(t *testing.T) {
	inAMinute := time.Now().Add(time.Minute)
	brief, cancel := context.WithDeadline(t.Context(), inAMinute)
	defer cancel()
	for what, of := range map[string]struct {
		ctx   context.Context
		terms terms
	}{
		"a wait of zero":              {t.Context(), terms{name: XDC("a"), until: time.Now()}},
		"a wait":                      {t.Context(), terms{name: XDC("a"), until: inAMinute}},
		"a deadline":                  {brief, terms{name: XDC("a")}},
		"a deadline, and a long wait": {brief, terms{name: XDC("a"), until: inAMinute.Add(24 * time.Hour)}},
	} {
		q := &queue{retry: time.Hour}
		q.recent.held(XDC("a"), time.Now().Add(-100*time.Hour))
		q.released(XDC("a"))
		began := time.Now()
		take(t, q, of.ctx, of.terms)
		if time.Since(began) > 30*time.Second {
			t.Errorf("%s did not ask at once", what)
		}

		// The wait asks once, and then waits while the others have their turn.
		q.recent.take(XDC("a"))
		q.recent.held(XDC("a"), time.Now().Add(-100*time.Hour))
		q.released(XDC("a"))
		asked := 0
		soon, end := context.WithTimeout(of.ctx, 50*time.Millisecond)
		_, err := wait(soon, q, of.terms, func(bool) (int, error) { asked++; return 0, refusal() })
		end()
		if err == nil || asked != 1 {
			t.Errorf("%s: %v, asked %d times", what, err, asked)
		}
	}
}

func TestALongWaitLeavesTheOthersTheirTurn(t *testing.T) {
	q := &queue{retry: 50 * time.Millisecond}
	long, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	q.recent.held(XDC("a"), time.Now().Add(-time.Hour))
	released := time.Now()
	q.released(XDC("a"))
	take(t, q, long, terms{name: XDC("a"), until: time.Now().Add(time.Minute)})
	if pause := time.Since(released); pause < q.retry*11/10 {
		t.Fatalf("others got %v of an interval of %v", pause, q.retry)
	}
}

func TestALoopOfOneGoroutineAsksAtOnceForAsLongAsItsTenureLasts(t *testing.T) {
	q := &queue{retry: time.Hour}
	if take(t, q, t.Context(), terms{name: XDC("a")}) {
		t.Fatal("the lock was read first, although nobody was seen to hold it")
	}
	first := q.recent.take(XDC("a"))
	if first.state != heldHere {
		t.Fatal("it was forgotten")
	}
	q.recent.held(XDC("a"), first.since)
	for range 10 {
		q.released(XDC("a"))
		if take(t, q, t.Context(), terms{name: XDC("a")}) {
			t.Fatal("the lock was read first, although nobody was seen to hold it")
		}
	}
	if past := q.recent.take(XDC("a")); past.state != heldHere || past.since != first.since {
		t.Fatal("a new quantum began: ", past)
	}
}

// A goroutine of this process holds the lock while another one joins and leaves. No other process had a turn.
func TestAWaitInVainDoesNotEndTheTenureOfTheHolder(t *testing.T) {
	q := &queue{retry: time.Hour}
	take(t, q, t.Context(), terms{name: XDC("a")})
	since := q.recent.entries[0].past.since
	for _, end := range []error{refusal(), newError(CodeConnection, "planted: down")} {
		terms := terms{name: XDC("a"), until: time.Now(), speaksForAll: true}
		if _, err := wait(t.Context(), q, terms, func(bool) (int, error) { return 0, end }); err == nil {
			t.Fatal("it was granted")
		}
		past := q.recent.take(XDC("a"))
		if past.state != heldHere || past.since != since || len(q.recent.entries) != 0 {
			t.Fatalf("after %v: %v, and %d more", end, past, len(q.recent.entries))
		}
		q.recent.held(XDC("a"), past.since)
	}
}

func TestHoldsLongerThanTheIntervalEndTheTenureToo(t *testing.T) {
	q := &queue{retry: time.Minute}
	ticket := q.join(XDC("a"))
	ticket.granted()
	ticket.refused(refusal(), 0)
	if ticket.line.oursSince.IsZero() {
		t.Fatal("a refusal by this process ended the quantum")
	}
	ticket.line.ours = false
	ticket.refused(refusal(), 0)
	if !ticket.line.oursSince.IsZero() {
		t.Fatal("a refusal by another process did not end the quantum")
	}
}

// The lock is released here before the front receives the answer "held".
func TestAReleaseWhileTheFrontAsksIsNotLost(t *testing.T) {
	q := &queue{retry: time.Hour}
	ticket := q.join(XDC("a"))
	seen := ticket.line.releases
	q.released(XDC("a"))
	ticket.refused(refusal(), seen)
	if time.Now().Before(ticket.line.nextAsk) || ticket.line.look {
		t.Fatal("the release was lost")
	}
}

func TestTheNextQuestionComesNoLaterThanTheLeaseItWaitsFor(t *testing.T) {
	q := &queue{retry: time.Minute}
	ticket := q.join(XDC("a"))
	for _, of := range []struct{ left, least, most time.Duration }{
		{-1, 50 * time.Second, 67 * time.Second},
		{5 * time.Second, 5 * time.Second, 10 * time.Second},
		{0, 3 * time.Second, 8 * time.Second}, // no tight loop when clocks disagree
	} {
		busy := newError(CodeLocked, "planted: held")
		busy.holderLeft = of.left
		before := time.Now()
		ticket.refused(busy, 0)
		if pause := ticket.line.nextAsk.Sub(before); pause < of.least || pause > of.most {
			t.Fatalf("%v with %v left", pause, of.left)
		}
	}
}

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

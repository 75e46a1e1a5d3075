//go:build cgo

package dlm

import (
	"fmt"
	"testing"
	"time"
)

func TestALoopGoesOnUntilItsTenureIsOverAndStandsBackThen(t *testing.T) {
	var recent recent
	name, now := XDC("a"), time.Now()
	recent.held(name, now)
	if past := recent.take(name); past.state != heldHere || past.since != now {
		t.Fatal(past)
	}
	recent.held(name, now)
	recent.released(name, time.Hour)
	if past := recent.take(name); past.state != quantumGoesOn || past.since != now {
		t.Fatal(past)
	}
	if past := recent.take(name); past.state != nothing {
		t.Fatal("the name was not removed: ", past)
	}

	// One minute before the end of the quantum, and the first moment after it.
	recent.held(name, now.Add(-loopQuantum*time.Hour+time.Minute))
	recent.released(name, time.Hour)
	if past := recent.take(name); past.state != quantumGoesOn {
		t.Fatal(past)
	}
	recent.held(name, now.Add(-loopQuantum*time.Hour-time.Nanosecond))
	recent.released(name, time.Hour)
	if past := recent.take(name); past.state != yielding || past.until.Before(now.Add(time.Hour*11/10)) {
		t.Fatal("the yielding is too short: ", past)
	}
}

func TestALockThatWasFreeForAWhileBeginsANewTenure(t *testing.T) {
	var recent recent
	recent.held(XDC("a"), time.Now())
	recent.released(XDC("a"), time.Millisecond)
	time.Sleep(time.Millisecond)
	if past := recent.take(XDC("a")); past.state != nothing {
		t.Fatal(past)
	}

	recent.held(XDC("a"), time.Now().Add(-time.Hour))
	recent.released(XDC("a"), time.Millisecond)
	time.Sleep(2 * time.Millisecond)
	if past := recent.take(XDC("a")); past.state != nothing {
		t.Fatal("the yielding did not end: ", past)
	}
}

// A service may acquire millions of locks, each of them once.
func TestNamesDoNotPileUpAndTheLatestAreKept(t *testing.T) {
	var recent recent
	now := time.Now()
	for number := range 1000 {
		recent.held(XDC(fmt.Sprint(number)), now)
	}
	if len(recent.entries) != recentMax || cap(recent.entries) > 2*recentMax {
		t.Fatal(len(recent.entries), cap(recent.entries))
	}
	for number := range 1000 {
		want := nothing
		if number >= 1000-recentMax {
			want = heldHere
		}
		if past := recent.take(XDC(fmt.Sprint(number))); past.state != want {
			t.Fatal(number, past)
		}
	}
	recent.released(XDC("0"), time.Hour)
	if len(recent.entries) != 0 {
		t.Fatal("the release of an unknown name added an entry")
	}
}

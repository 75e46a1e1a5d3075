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
		t.Fatal("it is not forgotten: ", past)
	}

	// The last moment of the quantum, give or take a minute, and the first after it.
	recent.held(name, now.Add(-loopQuantum*time.Hour+time.Minute))
	recent.released(name, time.Hour)
	if past := recent.take(name); past.state != quantumGoesOn {
		t.Fatal(past)
	}
	recent.held(name, now.Add(-loopQuantum*time.Hour-time.Nanosecond))
	recent.released(name, time.Hour)
	if past := recent.take(name); past.state != yielding || past.until.Before(now.Add(time.Hour*11/10)) {
		t.Fatal("others may not have looked: ", past)
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
		t.Fatal("others have had their turn: ", past)
	}
}

// A service may take millions of locks once each.
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
		t.Fatal("a release of a name that is not known makes one")
	}
}

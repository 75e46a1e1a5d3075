//go:build cgo

package dlm

import (
	"container/list"
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// regionCalls is how many calls may be made at once to one region.
	regionCalls = callsAtOnce / 4
	// failingCalls is how many calls may be made at once to all regions together that fail.
	failingCalls = callsAtOnce / 2
	// stuckAfter is how long a call may take before its region counts as one that fails.
	stuckAfter = time.Second
)

// region is a part of the store that may fail while the others serve: the first byte of the rows in it. HBase
// keeps rows with one first byte together. The other stores have no such parts; there it is a mere hash.
type region uint16

const (
	// everywhere is for calls that concern no single name.
	everywhere region = 256
	regions           = 257
)

// regionOf is the first byte of the row that HBase has for a key: Java's hash of signed bytes from 1, then the
// low byte of the absolute value. It is one_byte_hash of src/name.rs. A value that differed from that one
// would do no harm but share the places out less well.
func regionOf(key string) region {
	hash := int32(1)
	for _, b := range []byte(key) {
		hash = hash*31 + int32(int8(b))
	}
	if hash < 0 {
		hash = -hash // the lowest number stays itself, its low byte is 0
	}
	return region(hash & 0xff)
}

// identity is what the manager adds to names.
type identity struct{ client, farm string }

// identityOf reads the options as Open passes them on: those of the list win over those in the URI.
func identityOf(uri string, list []setting) identity {
	var of identity
	set := func(key, value string) {
		switch key {
		case "client":
			of.client = value
		case "farm":
			of.farm = value
		}
	}
	_, query, _ := strings.Cut(uri, "?")
	for _, pair := range strings.Split(query, "&") {
		key, value, _ := strings.Cut(pair, "=")
		if value, err := url.PathUnescape(value); err == nil {
			set(key, value)
		}
	}
	for _, option := range list {
		set(option.key, option.value)
	}
	return of
}

func (i identity) lockRegion(name Name) region {
	if name.level == levelDC {
		return regionOf("DC#" + i.farm + "#" + i.client + "#" + name.id)
	}
	return regionOf("XDC#" + i.client + "#" + name.id)
}

func (i identity) latchRegion(name Name) region { return regionOf(i.client + "_" + name.id) }

// shares are places for calls that ask the store, callsAtOnce of them. A region that does not answer must not
// take the places of all others:
//
//   - No region has more than a quarter of the places.
//   - Regions that fail have no more than half of the places together. A region fails from when a call to it
//     was not served, or has been under way for more than a second, until a call to it is answered.
//
// So one dead region leaves 12 places to the others at any time. A dead server has many regions. They may take
// all places, but not again once their calls have ended.
type shares struct {
	closed <-chan struct{}
	// of and things are whose calls they are and what they are about, for errors.
	of, things string

	mu      sync.Mutex
	calls   []*seat       // under way
	failed  [regions]bool // by their last call
	waiting list.List     // of *seat, the first come first
}

// seat is a place for one call, or the wait for one.
type seat struct {
	shares *shares
	at     region
	// began is when the call got its place. Guarded by the mutex of the shares, as is inLine.
	began  time.Time
	inLine *list.Element
	// ready is closed when the place is there; nil if it was there at once.
	ready chan struct{}
}

func newShares(closed <-chan struct{}) *shares {
	return &shares{closed: closed, of: "manager", things: "locks"}
}

func (s *shares) over() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// underWay is how many calls have a place.
func (s *shares) underWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// take waits for a place until ctx is over, the manager closed, or patience over. Without a place, the fate is
// notBegun or crowded.
func (s *shares) take(ctx context.Context, at region, patience time.Duration) (*seat, fate) {
	seat := s.sit(at)
	if seat.ready == nil {
		return seat, answered
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	fate := notBegun
	select {
	case <-seat.ready:
		return seat, answered
	case <-ctx.Done():
	case <-s.closed:
	case <-timer.C:
		fate = crowded
	}
	seat.leave()
	return nil, fate
}

// enter waits for a place for what must be done, also when the manager is closed. It is nil when patience was
// over first, where there is one.
func (s *shares) enter(at region, patience <-chan time.Time) *seat {
	seat := s.sit(at)
	if seat.ready == nil {
		return seat
	}
	select {
	case <-seat.ready:
		return seat
	case <-patience:
		seat.leave()
		return nil
	}
}

func (s *shares) sit(at region) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	seat, now := &seat{shares: s, at: at}, time.Now()
	// Those who wait had no room when the last call ended, and have none now.
	if view := s.view(now); view.room(at) {
		s.begin(seat, now, &view)
	} else {
		seat.ready = make(chan struct{})
		seat.inLine = s.waiting.PushBack(seat)
	}
	return seat
}

// view is a count of the calls under way.
type view struct {
	all, failing int
	in           [regions]uint8
	fails        [regions]bool
}

func (s *shares) view(now time.Time) (view view) {
	view.fails = s.failed
	for _, call := range s.calls {
		view.all++
		view.in[call.at]++
		if now.Sub(call.began) > stuckAfter {
			view.fails[call.at] = true
		}
	}
	for _, call := range s.calls {
		if view.fails[call.at] {
			view.failing++
		}
	}
	return view
}

func (v *view) room(at region) bool {
	return v.all < callsAtOnce && v.in[at] < regionCalls && !(v.fails[at] && v.failing >= failingCalls)
}

func (s *shares) begin(seat *seat, now time.Time, view *view) {
	seat.began = now
	s.calls = append(s.calls, seat)
	view.all++
	view.in[seat.at]++
	if view.fails[seat.at] {
		view.failing++
	}
}

// leave gives up the wait for a place, or a place that came too late.
func (t *seat) leave() {
	t.shares.mu.Lock()
	defer t.shares.mu.Unlock()
	if t.inLine != nil {
		t.shares.waiting.Remove(t.inLine)
		return
	}
	t.shares.end(t)
}

// give ends the call, with what it failed with.
func (t *seat) give(err error) {
	s := t.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	switch code := codeOf(err); {
	case servesNobody(err) || code == CodeInDoubt:
		s.failed[t.at] = true
	case code == CodeInvalidArgument || code == CodeClosed || code == CodeForked || code == CodePanic:
		// The store was not asked.
	default:
		s.failed[t.at] = false
	}
	s.end(t)
}

// end takes the call out, and lets those begin who have room now.
func (s *shares) end(ended *seat) {
	for at, call := range s.calls {
		if call == ended {
			last := len(s.calls) - 1
			s.calls[at], s.calls[last] = s.calls[last], nil
			s.calls = s.calls[:last]
			break
		}
	}
	if s.waiting.Len() == 0 {
		return
	}
	now := time.Now()
	view := s.view(now)
	for next := s.waiting.Front(); next != nil && view.all < callsAtOnce; {
		seat := next.Value.(*seat)
		next = next.Next()
		if view.room(seat.at) {
			s.waiting.Remove(seat.inLine)
			seat.inLine = nil
			s.begin(seat, now, &view)
			close(seat.ready)
		}
	}
}

// crowd says why there is no place for a call there.
func (s *shares) crowd(at region) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	view, stuck := s.view(now), 0
	for _, call := range s.calls {
		if now.Sub(call.began) > stuckAfter {
			stuck++
		}
	}
	which := fmt.Sprintf("%d calls at once of this %s", callsAtOnce, s.of)
	switch {
	case view.all >= callsAtOnce:
	case view.in[at] >= regionCalls:
		which = fmt.Sprintf("%d calls at once for %s in the same region of the store", regionCalls, s.things)
	case view.fails[at] && view.failing >= failingCalls:
		which = fmt.Sprintf("%d calls at once for %s that the store does not serve", failingCalls, s.things)
	}
	return fmt.Sprintf("all %s are in use; of the %d under way the store has left %d without an answer for more "+
		"than %v", which, view.all, stuck, stuckAfter)
}

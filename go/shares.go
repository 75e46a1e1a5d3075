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
	// regionCalls is how many calls to one region may run at once.
	regionCalls = callsAtOnce / 4
	// failingCalls is how many calls to failing regions may run at once, all these regions together.
	failingCalls = callsAtOnce / 2
	// stuckAfter is how long a call may take before its region counts as failing.
	stuckAfter = time.Second
)

// region is a part of the store that may fail while the others work. It is the first byte of a row key: HBase keeps
// rows with the same first byte together. The other stores have no such parts, and the byte is only a hash.
type region uint16

const (
	// everywhere is for calls that do not concern a single name.
	everywhere region = 256
	regions           = 257
)

// regionOf returns the first byte of the HBase row of a key: Java's hash of signed bytes with start value 1, then the
// low byte of the absolute value. It is one_byte_hash of src/names/lock_name.rs. A difference would only make the sharing of
// places less effective.
func regionOf(key string) region {
	hash := int32(1)
	for _, b := range []byte(key) {
		hash = hash*31 + int32(int8(b))
	}
	if hash < 0 {
		hash = -hash // the lowest number has no positive one; its low byte is 0
	}
	return region(hash & 0xff)
}

// identity holds what the manager adds to names.
type identity struct{ client, farm string }

// identityOf reads the options in the order in which Open applies them: those of the list override those of the URI.
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
	switch name.level {
	case levelFull:
		return regionOf(name.id)
	case levelDC:
		return regionOf("DC#" + i.farm + "#" + i.client + "#" + name.id)
	default:
		return regionOf("XDC#" + i.client + "#" + name.id)
	}
}

func (i identity) latchRegion(name Name) region { return regionOf(i.client + "_" + name.id) }

// shares holds callsAtOnce places for calls that ask the store. A region that does not answer must not use up the
// places of all others:
//
//   - No region has more than a quarter of the places.
//   - All failing regions together have at most half of the places. A region fails from the moment that the store
//     does not serve a call to it, or a call to it takes more than a second. It stops failing when a call to it is
//     answered.
//
// So one dead region always leaves 12 places to the others. A dead server has many regions. They may use all places
// once, until their first calls have ended.
type shares struct {
	closed <-chan struct{}
	// of and things are for error messages: who makes the calls, and what they are about.
	of, things string

	mu      sync.Mutex
	calls   []*seat       // under way
	failed  [regions]bool // whether the last call to it failed
	waiting list.List     // of *seat, in order of arrival
}

// seat is one call's place, or its wait for a place.
type seat struct {
	shares *shares
	at     region
	// began is when the call got its place. The mutex of the shares guards it and inLine.
	began  time.Time
	inLine *list.Element
	// ready is closed when the call gets its place; nil if it got one at once.
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

// underWay returns how many calls have a place.
func (s *shares) underWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// take waits for a place until ctx ends, the manager is closed, or patience has passed. Without a place it returns
// nil and the fate notBegun or crowded.
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

// enter waits for a place for a call that must be made even after the manager is closed. It returns nil when patience
// fires first. A nil patience never fires.
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
	// Waiting calls need no check: they had no room when the last call ended, so they have none now.
	if view := s.view(now); view.room(at) {
		s.begin(seat, now, &view)
	} else {
		seat.ready = make(chan struct{})
		seat.inLine = s.waiting.PushBack(seat)
	}
	return seat
}

// view holds counts of the calls under way.
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

// leave stops waiting for a place. If the place has just arrived, leave frees it.
func (t *seat) leave() {
	t.shares.mu.Lock()
	defer t.shares.mu.Unlock()
	if t.inLine != nil {
		t.shares.waiting.Remove(t.inLine)
		return
	}
	t.shares.end(t)
}

// give ends the call and frees its place. err is the call's error; it tells whether the region fails.
func (t *seat) give(err error) {
	s := t.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	switch code := codeOf(err); {
	case servesNobody(err) || code == CodeInDoubt:
		s.failed[t.at] = true
	case code == CodeInvalidArgument || code == CodeClosed || code == CodeForked || code == CodePanic:
		// The store was not asked, so nothing is known about the region.
	default:
		s.failed[t.at] = false
	}
	s.end(t)
}

// end removes the call and starts the waiting calls that have room now.
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

// crowd says why there is no place for a call to this region.
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
	return fmt.Sprintf("all %s are in use; of the %d under way, %d have had no answer from the store for more "+
		"than %v", which, view.all, stuck, stuckAfter)
}

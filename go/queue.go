//go:build cgo

package dlm

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// quantum is how many retry intervals a lock may be passed on within this process before other processes,
// which ask once per interval, are given one interval in which they find it free.
const quantum = 10

// queue is the waiting of one manager: a line per lock, first come first served.
//
// Only the goroutine at the front asks the store; the others park. So a crowd of goroutines costs the store
// one question per retry interval and no thread, and a lock released in this process goes straight to the
// next in line.
//
//	who     waits for                                         leaves when
//	front   nextAsk, or a local release that brings it forward  granted, failed, ctx or wait over, closed
//	others  becoming the front                                ctx or wait over, closed, or the front met an
//	                                                          error that concerns all
//
// A process that hands a lock from goroutine to goroutine would keep it from every other process for ever,
// so after its quantum the line yields for one interval. So does, after longer, a single goroutine that
// takes a lock in a loop: see recent. A wait that would be over by then asks all the same.
type queue struct {
	retry time.Duration

	mu     sync.Mutex
	closed bool
	lines  map[Name]*line
	recent recent
}

// line is guarded by the mutex of its queue, as is all in it.
type line struct {
	waiting list.List // of *place, the front first
	nextAsk time.Time
	// look says that the lock was held a moment ago: read first, so that a refusal costs a read only.
	look bool
	// yielding says that nextAsk is put off for the sake of other processes.
	yielding bool
	// oursSince is since when this process has had the lock without anyone else getting a turn; zero if it
	// does not have it.
	oursSince time.Time
	// ours is whether a goroutine of this process has the lock.
	ours bool
	// refusal says who held the lock when the store was asked last.
	refusal error
	// releases counts the local ones: one that comes while the front asks makes its answer old.
	releases uint64
}

// place is that of one goroutine in a line.
type place struct {
	wake chan struct{}
	// failure is set by the front when it met an error that concerns everybody in the line.
	failure error
}

// terms are those of one wait.
type terms struct {
	name Name
	// until is when the wait is over; zero if only its context ends it.
	until time.Time
	// speaksForAll is whether a failure to reach the store concerns the whole line. Not if this goroutine
	// gives the store less time than the others do.
	speaksForAll bool
}

// wait stands in line; at the front, it calls ask until that brings an answer to leave with: a lease, or an
// error other than ErrLocked. ask is called at least once, unless others are in front or ctx is over.
func wait[T any](ctx context.Context, q *queue, terms terms, ask func(look bool) (T, error)) (T, error) {
	var nothing T
	began := time.Now()
	ticket := q.join(terms.name)
	defer ticket.leave()
	for asked := false; ; asked = true {
		turn, err := ticket.turn(ctx, terms, began, asked)
		if err != nil {
			return nothing, err
		}
		got, err := ask(turn.look)
		switch code := codeOf(err); {
		case err == nil:
			ticket.granted()
			return got, nil
		case code == CodeLocked:
			ticket.refused(err, turn.releases)
		case code == CodeCancelled:
			// Nobody knows yet: the next one asks.
			return nothing, err
		default:
			ticket.failed(err, terms, turn.releases)
			return nothing, err
		}
	}
}

// released tells the line of a lock that it was released in this process.
func (q *queue) released(name Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.lines[name]
	if line == nil {
		q.recent.released(name, q.retry)
		return
	}
	line.releases++
	line.ours = false
	now := time.Now()
	if !line.oursSince.IsZero() && now.Sub(line.oursSince) > q.retry*quantum {
		line.oursSince = time.Time{}
		line.yieldUntil(othersTurn(now, q.retry))
		return
	}
	line.askAt(now, false)
	line.wakeFront()
}

// waiting is how many goroutines are in line.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	count := 0
	for _, line := range q.lines {
		count += line.waiting.Len()
	}
	return count
}

// close ends every wait with ErrClosed, those to come included.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, line := range q.lines {
		for at := line.waiting.Front(); at != nil; at = at.Next() {
			at.Value.(*place).rouse()
		}
	}
}

func (q *queue) join(name Name) *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	in := q.lines[name]
	if in == nil {
		if q.lines == nil {
			q.lines = make(map[Name]*line)
		}
		in = newLine(q.recent.take(name))
		q.lines[name] = in
	}
	place := &place{wake: make(chan struct{}, 1)}
	return &ticket{queue: q, name: name, line: in, place: place, at: in.waiting.PushBack(place)}
}

// remove ends a line. A line that failed may have been replaced by a new one already.
func (q *queue) remove(name Name, line *line) {
	if q.lines[name] != line {
		return
	}
	delete(q.lines, name)
	if line.ours && !line.oursSince.IsZero() {
		q.recent.held(name, line.oursSince)
	}
}

// newLine is a line whose first goroutine asks at once, unless the past says that it is the others' turn.
func newLine(past past) *line {
	line := new(line)
	switch past.state {
	case heldHere:
		line.ours, line.oursSince = true, past.since
	case quantumGoesOn:
		line.oursSince = past.since
	case yielding:
		line.yieldUntil(past.until)
	}
	return line
}

func (l *line) askAt(when time.Time, look bool) { l.nextAsk, l.look, l.yielding = when, look, false }

func (l *line) yieldUntil(until time.Time) {
	l.askAt(until, true)
	l.yielding = true
}

func (l *line) wakeFront() {
	if front := l.waiting.Front(); front != nil {
		front.Value.(*place).rouse()
	}
}

func (p *place) rouse() {
	select {
	case p.wake <- struct{}{}:
	default: // it will look up anyway
	}
}

// ticket is a goroutine's place in a line, to be given back.
type ticket struct {
	queue *queue
	name  Name
	line  *line
	place *place
	at    *list.Element
}

// step is what a goroutine in line is to do next: ask the store, or park and look up again.
type step struct {
	ask, look bool
	// releases is their number when the store is asked.
	releases uint64
	// park is for how long at the most; negative: until woken.
	park time.Duration
}

// turn parks until it is this goroutine's turn to ask the store. asked is whether it did already, so that
// even a wait of zero asks once.
func (t *ticket) turn(ctx context.Context, terms terms, began time.Time, asked bool) (step, error) {
	for {
		next, err := t.next(ctx, terms, began, asked)
		if next.ask || err != nil {
			return next, err
		}
		t.park(ctx, next.park)
	}
}

func (t *ticket) next(ctx context.Context, terms terms, began time.Time, asked bool) (step, error) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	now := time.Now()
	switch {
	case t.place.failure != nil:
		return step{}, t.place.failure
	case t.queue.closed:
		return step{}, closedError("manager")
	case ctx.Err() != nil:
		return step{}, ended(ctx, CodeCancelled, t.waited(now.Sub(began)))
	}
	limited := !terms.until.IsZero()
	over := limited && !now.Before(terms.until)
	front := t.line.waiting.Front() == t.at
	// A wait that is over before the others have had their turn asks once all the same.
	brief := t.line.yielding && !asked && endsBy(ctx, terms, t.line.nextAsk)
	if front && (brief || !now.Before(t.line.nextAsk)) && !(asked && over) {
		return step{ask: true, look: t.line.look, releases: t.line.releases}, nil
	}
	if over {
		err := newError(CodeLocked, t.waited(now.Sub(began)))
		err.Retryable = true
		return step{}, err
	}
	park := time.Duration(-1)
	if limited {
		park = terms.until.Sub(now)
	}
	if front && (park < 0 || t.line.nextAsk.Sub(now) < park) {
		park = t.line.nextAsk.Sub(now)
	}
	return step{park: park}, nil
}

// endsBy is whether the wait is over by then, as far as its terms and its context tell beforehand.
func endsBy(ctx context.Context, terms terms, then time.Time) bool {
	deadline, limited := ctx.Deadline()
	return limited && !deadline.After(then) || !terms.until.IsZero() && !terms.until.After(then)
}

func (t *ticket) park(ctx context.Context, pause time.Duration) {
	var over <-chan time.Time
	if pause >= 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-ctx.Done():
	case <-t.place.wake:
	case <-over:
	}
}

// waited says what the wait was for, and who holds it.
func (t *ticket) waited(time time.Duration) string {
	held := fmt.Sprintf("lock %q is held", t.name.id)
	var refusal *Error
	if errors.As(t.line.refusal, &refusal) {
		held = refusal.Message
	}
	return fmt.Sprintf("%s, after a wait of %.3f s", held, time.Seconds())
}

func (t *ticket) granted() {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	line, now := t.line, time.Now()
	if line.oursSince.IsZero() {
		line.oursSince = now
	}
	line.refusal = nil
	line.ours = true
	// The next in line need not ask while a goroutine of this process holds the lock: its release brings
	// the question forward.
	line.askAt(now.Add(jittered(t.queue.retry)), true)
}

// refused notes who holds the lock. releases is their number when the store was asked.
func (t *ticket) refused(err error, releases uint64) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	line := t.line
	if line.releases != releases {
		// Released here meanwhile: the next question is due as the release has set it.
		return
	}
	pause := jittered(t.queue.retry)
	var refusal *Error
	if errors.As(err, &refusal) && refusal.holderLeft >= 0 {
		// Not after the lease has ended; and not in a tight loop when clocks disagree about that.
		pause = min(pause, max(refusal.holderLeft, t.queue.retry/20))
	}
	// Refused by a goroutine of this process is no turn of another's.
	if !line.ours {
		line.oursSince = time.Time{}
	}
	line.refusal = err
	line.askAt(time.Now().Add(pause), true)
}

// failed tells the line: a store that does not serve the front serves none of them, and all leave with that
// error. A doubt about the front's own request is its own.
func (t *ticket) failed(err error, terms terms, releases uint64) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	line := t.line
	if line.releases == releases {
		line.askAt(time.Now().Add(jittered(t.queue.retry)), true)
	}
	if !terms.speaksForAll || !servesNobody(err) {
		return
	}
	for at := line.waiting.Front(); at != nil; at = at.Next() {
		if at != t.at {
			other := at.Value.(*place)
			other.failure = err
			other.rouse()
		}
	}
	// Those who come now begin anew.
	t.queue.remove(t.name, line)
}

func (t *ticket) leave() {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	wasFront := t.line.waiting.Front() == t.at
	t.line.waiting.Remove(t.at)
	if wasFront {
		t.line.wakeFront()
	}
	if t.line.waiting.Len() == 0 {
		t.queue.remove(t.name, t.line)
	}
}

// jittered is around d, give or take a tenth, so that processes do not ask in step.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

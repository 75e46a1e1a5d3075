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

// quantum is for how many retry intervals a lock may be passed on within this process. Then the process yields for
// one interval, in which other processes, which ask once per interval, find the lock free.
const quantum = 10

// queue holds the waiting goroutines of one manager. Each lock has a line: its waiters, first in, first out.
//
// Only the goroutine at the front asks the store. The others park. So a crowd of goroutines costs the store one
// request per retry interval, and it costs no thread. A lock released in this process goes straight to the next
// goroutine in line.
//
//	position  waits for                                    leaves when
//	front     nextAsk, or an earlier local release         granted, failed, ctx or wait ended, closed
//	others    becoming the front                           ctx or wait ended, closed, or the front met an
//	                                                       error that concerns all
//
// A process that passes a lock from goroutine to goroutine would keep it from every other process for ever, so after
// its quantum the line yields for one interval. A single goroutine that acquires a lock in a loop also yields, after
// a longer time: see recent. A goroutine whose wait ends before the yielding does asks the store once anyway.
type queue struct {
	retry time.Duration

	mu     sync.Mutex
	closed bool
	lines  map[Name]*line
	recent recent
}

// line is the queue of one lock. The mutex of its queue guards it and all that it contains.
type line struct {
	waiting list.List // of *place, the front at the head
	nextAsk time.Time
	// look says that the lock was held a moment ago, so the front reads it first: a refusal then costs only a read.
	look bool
	// yielding says that nextAsk is postponed for the sake of other processes.
	yielding bool
	// oursSince is since when this process has kept the lock without a turn for another process; zero if it does
	// not have the lock.
	oursSince time.Time
	// ours says whether a goroutine of this process holds the lock.
	ours bool
	// refusal is the store's last refusal, which says who held the lock.
	refusal error
	// releases counts local releases. When one happens while the front asks the store, the answer is out of date.
	releases uint64
}

// place is the place of one goroutine in a line.
type place struct {
	wake chan struct{}
	// failure is set by the front when it met an error that concerns all in the line.
	failure error
}

// terms are the conditions of one wait.
type terms struct {
	name Name
	// until is when the wait ends; zero if only its context ends it.
	until time.Time
	// speaksForAll says whether a failure to reach the store concerns the whole line. It is false if this goroutine
	// allows the store less time than the others do.
	speaksForAll bool
}

// wait queues in the line of a lock. At the front it calls ask until that returns a lease or an error other than
// ErrLocked. It calls ask at least once, unless others stay in front or ctx ends.
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
			// This says nothing about the lock, so the next goroutine asks.
			return nothing, err
		default:
			ticket.failed(err, terms, turn.releases)
			return nothing, err
		}
	}
}

// released tells the line of a lock that this process has released the lock.
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

// waiting returns how many goroutines are in all lines.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	count := 0
	for _, line := range q.lines {
		count += line.waiting.Len()
	}
	return count
}

// close ends every present and future wait with ErrClosed.
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

// remove deletes a line. A new line may already have replaced a line that failed.
func (q *queue) remove(name Name, line *line) {
	if q.lines[name] != line {
		return
	}
	delete(q.lines, name)
	if line.ours && !line.oursSince.IsZero() {
		q.recent.held(name, line.oursSince)
	}
}

// newLine returns a line whose first goroutine asks at once, unless this process is yielding.
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
	default: // a wake-up is already pending
	}
}

// ticket is a goroutine's place in a line. The goroutine must call leave.
type ticket struct {
	queue *queue
	name  Name
	line  *line
	place *place
	at    *list.Element
}

// step is the next action of a goroutine in line: ask the store, or park and check again.
type step struct {
	ask, look bool
	// releases is the line's count of releases when the store is asked.
	releases uint64
	// park is how long to park at most; negative means until woken.
	park time.Duration
}

// turn parks until it is this goroutine's turn to ask the store. asked says whether it has asked before, because
// even a wait of 0 asks once.
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
	// A wait that ends before the yielding does asks once anyway.
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

// endsBy reports whether the wait ends by then, as far as its terms and the deadline of its context say.
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

// waited returns a message that says what the goroutine waited for, how long, and who holds the lock.
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
	// The next in line need not ask while a goroutine of this process holds the lock. The release of that goroutine
	// makes the line ask at once.
	line.askAt(now.Add(jittered(t.queue.retry)), true)
}

// refused records who holds the lock. releases is the line's count of releases when the store was asked.
func (t *ticket) refused(err error, releases uint64) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	line := t.line
	if line.releases != releases {
		// The lock was released here meanwhile. The release has set the time of the next request.
		return
	}
	pause := jittered(t.queue.retry)
	var refusal *Error
	if errors.As(err, &refusal) && refusal.holderLeft >= 0 {
		// Ask at the latest when the lease ends, but not in a tight loop when clocks disagree about that end.
		pause = min(pause, max(refusal.holderLeft, t.queue.retry/20))
	}
	// If this process holds the lock, the refusal does not mean that another process had a turn.
	if !line.ours {
		line.oursSince = time.Time{}
	}
	line.refusal = err
	line.askAt(time.Now().Add(pause), true)
}

// failed records an error of the front. If the store does not serve the front, it serves none of the line, and all
// leave with that error. An error that concerns only the front's own request is not passed on.
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
	// Goroutines that arrive from now on form a new line.
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

// jittered returns d plus or minus a random part of up to a tenth. Processes then do not ask in step.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

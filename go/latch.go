//go:build cgo

package dlm

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"
)

// Latch is a count in the store that all processes see, and waiting until it is down to zero. Making this
// handle does no I/O, needs no Close, and any number of goroutines may share it.
//
// The latch itself is made by whoever [Latch.Create]s it. It is open while its count is zero or less. It is
// never deleted: it is gone its TTL (one day unless set) after its last change, and then every call fails
// with [ErrNotFound].
//
// Unlike those of locks, names of [DC] and [XDC] with the same id are the same latch: it has a count in each
// farm that made one, and changes concern that of one's own. For DC only that one is read; for XDC the sum of
// all. Both need a farm.
//
// Calls block for one call to the store, or until ctx ends. They fail with [ErrNotFound]; with
// [ErrConnection], [ErrRetriesExhausted], [ErrTableCreation] or [ErrInternal] when the store does not serve;
// with [ErrClosed], [ErrInvalid], and with what ended ctx. Those that change the latch fail with [ErrInDoubt]
// when it could not be learned whether they did, also because ctx ended first.
type Latch struct {
	manager *Manager
	name    Name
	kind    LatchKind
	ttl     time.Duration
}

// LatchKind is which way the count of a latch may go.
type LatchKind int32

const (
	// CountDown only: the latch opens once, when all have come.
	CountDown LatchKind = kindCountDown
	// CountUpDown: the latch opens whenever nobody is left.
	CountUpDown LatchKind = kindCountUpDown
)

// Latch is the latch of this name. All who use it must agree on the level of the name and on the kind.
func (m *Manager) Latch(name Name, kind LatchKind) *Latch {
	return &Latch{manager: m, name: name, kind: kind, ttl: defaultTTL}
}

// WithTTL is the same latch with another TTL: how long it lives after each change. All who change it must give
// the same. 1 ms to 365 days.
func (l *Latch) WithTTL(ttl time.Duration) *Latch {
	other := *l
	other.ttl = max(ttl, 0)
	return &other
}

// Create makes the latch: from now on it must be counted down so many times, 0 to 2,147,483,647; zero is open
// at once. It fails with [ErrExists] too, and the count is what it was: it is never added to.
func (l *Latch) Create(ctx context.Context, count int) error {
	_, _, err := l.call(ctx, latchCreate, int64(count), "")
	return err
}

// CreateFor makes the latch for participants with names: its count is their number, each may count down once
// with [Latch.CountDownAs], and [Latch.Pending] tells who has not. It fails as Create, with [ErrInvalid] too for
// a name that is not 1 to 255 bytes without control characters, for one that is given twice, and where the
// store cannot keep names.
func (l *Latch) CreateFor(ctx context.Context, participants ...string) error {
	return l.manager.do(ctx, l.question(latchCreate), func() error { return createLatchFor(l, participants) })
}

// GetOrCreate makes the latch unless it exists, and says whether it did. Of many who call this at once, one
// makes it.
func (l *Latch) GetOrCreate(ctx context.Context, count int) (created bool, err error) {
	yes, _, err := l.call(ctx, latchGetOrCreate, int64(count), "")
	return yes != 0, err
}

// Count is how many count-downs are missing right now, below zero when more came than were expected.
func (l *Latch) Count(ctx context.Context) (int, error) {
	count, _, err := l.call(ctx, latchCount, 0, "")
	return int(count), err
}

// CountDown counts one's own farm's count down by one, exactly once, however many replies are lost on the way.
// After [ErrInDoubt], calling again may count twice; [Latch.CountDownAs] never does.
func (l *Latch) CountDown(ctx context.Context) error {
	_, _, err := l.call(ctx, latchCountDown, 0, "")
	return err
}

// CountUp counts up by one, for latches of kind [CountUpDown]; for others it fails with [ErrInvalid].
func (l *Latch) CountUp(ctx context.Context) error {
	_, _, err := l.call(ctx, latchCountUp, 0, "")
	return err
}

// CountDownAs counts down in the name of a participant, at most once per name. It says
// whether it counted now; false: that name had counted before. Any name may count, also one that was not
// expected. After [ErrInDoubt] it is safe to call again.
func (l *Latch) CountDownAs(ctx context.Context, participant string) (counted bool, err error) {
	yes, _, err := l.call(ctx, latchCountDownAs, 0, participant)
	return yes != 0, err
}

// Pending is who was expected by name in one's own farm and has not counted down, sorted.
func (l *Latch) Pending(ctx context.Context) ([]string, error) {
	_, names, err := l.call(ctx, latchPending, 0, "")
	return names, err
}

// Wait waits until the latch is open, or ctx ends. It returns at once if the latch is open.
//
// The goroutine parks and no thread is held; a file descriptor is, for as long as it waits. A count-down in
// this process that opens the latch of one farm is noticed at once; others at the next look, the first 50 ms
// after the wait began or the count changed, then at doubling intervals up to the setting "poll" (5 s unless
// set). All waits of a manager for one latch share the looks. While the store does not serve, the wait goes on.
//
// It fails with [ErrNotFound] when the latch was never made, or is gone before it opened; with
// [ErrTableCreation] when the table is disabled or is not one for latches; with [ErrInternal] when the store
// denies access or holds something that is no count; with [ErrClosed], [ErrInvalid], and with what ended ctx.
func (l *Latch) Wait(ctx context.Context) error {
	defer runtime.KeepAlive(l.manager)
	doing := "waiting for latch " + l.name.String()
	if ctx.Err() != nil {
		return ended(ctx, CodeCancelled, doing)
	}
	watch, fd, err := l.watch(ctx, doing)
	if err != nil {
		return err
	}
	brief := l.manager.brief
	defer brief.briefly(func() { freeWatch(watch) })
	over, result := false, error(nil)
	done := func() bool {
		brief.briefly(func() {
			var open bool
			open, result = watchIsOpen(watch)
			over = open || result != nil
		})
		return over
	}
	if file, err := duplicate(fd, "latch"); err == nil {
		defer brief.briefly(func() { _ = file.Close() })
		stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
		err = parkUntil(file, done)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return newError(CodeInternal, doing+": "+err.Error())
		}
	} else {
		// The process has no descriptor left.
		pollUntil(ctx, done)
	}
	if !over {
		return ended(ctx, CodeCancelled, doing)
	}
	return result
}

// watch has the library watch the latch. It does not block, but has locks that a crowd contends for.
func (l *Latch) watch(ctx context.Context, doing string) (watchHandle, int, error) {
	in := l.manager.brief
	if !in.take(ctx) {
		return nil, -1, stopped(ctx, notBegun, "manager", doing)
	}
	defer in.give()
	return watchLatch(l)
}

// call is one call to the store. Its answer is a number (1 for yes) or names.
func (l *Latch) call(ctx context.Context, which latchCall, count int64, participant string) (int64, []string, error) {
	type answer struct {
		number int64
		names  []string
	}
	got, err := answerTo(ctx, l.question(which), which.changes(), func() (answer, error) {
		defer runtime.KeepAlive(l.manager)
		number, names, err := callLatch(l, which, count, participant)
		return answer{number, names}, err
	})
	return got.number, got.names, err
}

func (l *Latch) question(which latchCall) question {
	m := l.manager
	return question{m.asking, m.identity.latchRegion(l.name), m.timeout, which.doing() + " latch " + l.name.String()}
}

func (c latchCall) changes() bool { return c != latchCount && c != latchPending }

func (c latchCall) doing() string {
	switch c {
	case latchCreate, latchGetOrCreate:
		return "creating"
	case latchCount, latchPending:
		return "reading"
	default:
		return "counting"
	}
}

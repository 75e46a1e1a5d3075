//go:build cgo

package dlm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
)

// Latch is a count in the store that all processes see. They can wait until it reaches zero. Creating this handle
// does no I/O. The handle needs no Close, and any number of goroutines may share it.
//
// [Latch.Create] creates the latch in the store. The latch is open while its count is zero or less. It ends by
// [Latch.Delete], or expires its TTL (one day unless set) after its last change. Then every call except those that
// create it fails with [ErrNotFound].
//
// Names of [DC] and [XDC] with the same id mean the same latch, unlike with locks. The latch has one count in each
// farm that created it, and a change applies to the count of the manager's own farm. A DC handle reads only that
// count. An XDC handle reads the sum of all. Both need a farm.
//
// Calls block for one call to the store, or until ctx ends. They fail with [ErrNotFound]; with [ErrConnection],
// [ErrRetriesExhausted], [ErrTableCreation] or [ErrInternal] when the store does not serve the request; with
// [ErrClosed], [ErrInvalid], and the error that ended ctx. Calls that change the latch fail with [ErrInDoubt] when it
// is unknown whether the change was applied, for example because ctx ended first.
type Latch struct {
	manager *Manager
	name    Name
	kind    LatchKind
	ttl     time.Duration
}

// LatchKind says in which directions the count of a latch may go.
type LatchKind int32

const (
	// CountDown is the kind of a latch that only counts down. It opens once, when all have counted.
	CountDown LatchKind = kindCountDown
	// CountUpDown is the kind of a latch that counts up and down. It opens each time that its count reaches zero.
	CountUpDown LatchKind = kindCountUpDown
)

// Latch returns a handle for the latch of this name. All users of the latch must agree on the level of the name and
// on the kind.
func (m *Manager) Latch(name Name, kind LatchKind) *Latch {
	return &Latch{manager: m, name: name, kind: kind, ttl: defaultTTL}
}

// WithTTL returns a handle for the same latch with another TTL: how long the latch lives after each change, 1 ms to
// 365 days. All who change the latch must use the same TTL.
func (l *Latch) WithTTL(ttl time.Duration) *Latch {
	other := *l
	other.ttl = max(ttl, 0)
	return &other
}

// Create creates the latch with this count, 0 to 2,147,483,647. A latch with count 0 is open at once. It also fails
// with [ErrExists]; the count of the existing latch does not change.
func (l *Latch) Create(ctx context.Context, count int) error {
	_, _, err := l.call(ctx, latchCreate, int64(count), "")
	return err
}

// CreateFor creates the latch for named participants. Its count is the number of names. Each participant counts down
// once with [Latch.CountDownAs], and [Latch.Pending] returns those who have not. While one is missing, other names and
// counts without a name fail with [ErrInvalid]. It fails as [Latch.Create] does, and
// with [ErrInvalid] for a name that is not 1 to 255 bytes or has control characters, for a name that is given twice,
// and where the store cannot keep names.
func (l *Latch) CreateFor(ctx context.Context, participants ...string) error {
	return l.manager.do(ctx, l.question(latchCreate), func() error { return callLatchFor(l, latchCreate, participants) })
}

// Reset begins the latch anew with this count, 0 to 2,147,483,647, whatever its count is. What was counted before has no
// effect any more, also if it is still on its way, and everybody may count again. So reset a latch when all have counted,
// and before anybody counts for the next time. A wait that has not yet seen the latch open waits for its next opening.
// After [ErrInDoubt], another call resets the latch once more, with all that was counted in between.
func (l *Latch) Reset(ctx context.Context, count int) error {
	_, _, err := l.call(ctx, latchReset, int64(count), "")
	return err
}

// ResetFor begins the latch anew for named participants, as [Latch.CreateFor] creates it.
func (l *Latch) ResetFor(ctx context.Context, participants ...string) error {
	return l.manager.do(ctx, l.question(latchReset), func() error { return callLatchFor(l, latchReset, participants) })
}

// Delete deletes the count of the manager's own farm. If no other farm has one, the latch does not exist any more: every
// call but those that create it fails with [ErrNotFound], and so does every wait.
func (l *Latch) Delete(ctx context.Context) error {
	_, _, err := l.call(ctx, latchDelete, 0, "")
	return err
}

// GetOrCreate creates the latch unless it exists, and reports whether it did. Of many concurrent calls, exactly one
// creates it.
func (l *Latch) GetOrCreate(ctx context.Context, count int) (created bool, err error) {
	yes, _, err := l.call(ctx, latchGetOrCreate, int64(count), "")
	return yes != 0, err
}

// Count returns how many count-downs are missing now. It is negative after more count-downs than expected.
func (l *Latch) Count(ctx context.Context) (int, error) {
	count, _, err := l.call(ctx, latchCount, 0, "")
	return int(count), err
}

// CountDown decreases the count of the manager's own farm by one, exactly once even when replies are lost. After
// [ErrInDoubt], another call may count twice; [Latch.CountDownAs] never does.
func (l *Latch) CountDown(ctx context.Context) error {
	_, _, err := l.call(ctx, latchCountDown, 0, "")
	return err
}

// CountUp increases the count by one. It fails with [ErrInvalid] for latches that are not of kind [CountUpDown].
func (l *Latch) CountUp(ctx context.Context) error {
	_, _, err := l.call(ctx, latchCountUp, 0, "")
	return err
}

// CountDownAs counts down in the name of a participant, at most once per name. It reports whether this call counted;
// false means that the name had counted before. If the latch was made with a number, any name may count; if it was made
// with [Latch.CreateFor], a name that is not one of its participants fails with [ErrInvalid] while one of them is missing.
// After [ErrInDoubt] it is safe to call again.
func (l *Latch) CountDownAs(ctx context.Context, participant string) (counted bool, err error) {
	yes, _, err := l.call(ctx, latchCountDownAs, 0, participant)
	return yes != 0, err
}

// Pending returns the names that the manager's own farm expects and that have not counted down, sorted.
func (l *Latch) Pending(ctx context.Context) ([]string, error) {
	_, names, err := l.call(ctx, latchPending, 0, "")
	return names, err
}

// Arrived returns the names that have counted down in the manager's own farm, expected or not, sorted.
func (l *Latch) Arrived(ctx context.Context) ([]string, error) {
	_, names, err := l.call(ctx, latchArrived, 0, "")
	return names, err
}

// Wait waits until the latch is open or ctx ends. It returns at once if the latch is open.
//
// The goroutine parks and holds no thread, but it holds a file descriptor while it waits. A count-down in this
// process that opens a latch of level DC ends the wait at once. Other changes are seen at the next poll. The first
// poll is made at once, the next after 50 ms, then at doubling intervals up to the setting "poll", 5 s unless set.
// After a change of the count, the next poll follows after half the time in which the latch would open at that pace,
// at least 50 ms. All waits of a manager for one latch share its polls. While the store does not serve the polls, the
// wait continues.
//
// It fails with [ErrNotFound] when the latch was never created or expires before it opens; with [ErrTableCreation]
// when the table is disabled or is not a table for latches; with [ErrInternal] when the store denies access or holds
// a value that is not a count; with [ErrClosed], [ErrInvalid], and the error that ended ctx.
func (l *Latch) Wait(ctx context.Context) error {
	defer runtime.KeepAlive(l.manager)
	if err := l.manager.made(); err != nil {
		return err
	}
	if err := noContext(ctx); err != nil {
		return err
	}
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
		// The process has no free descriptor.
		pollUntil(ctx, done)
	}
	if !over {
		return ended(ctx, CodeCancelled, doing)
	}
	return result
}

// watch subscribes to the latch in the library. It does no I/O, but it takes locks that a crowd contends for, so it
// needs a slot.
func (l *Latch) watch(ctx context.Context, doing string) (watchHandle, int, error) {
	in := l.manager.brief
	if !in.take(ctx) {
		return nil, -1, stopped(ctx, notBegun, "manager", doing)
	}
	defer in.give()
	return watchLatch(l)
}

// call makes one call to the store. The answer is a number (1 for yes) or names.
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

// made returns an error for a name that is the zero value, and for a kind that is none.
func (l *Latch) made() error {
	if l.name == (Name{}) {
		return unmade("Name", "DC or XDC")
	}
	if l.kind != CountDown && l.kind != CountUpDown {
		return invalid(fmt.Sprintf("LatchKind %d is not allowed: CountDown or CountUpDown", l.kind))
	}
	return nil
}

func (l *Latch) question(which latchCall) question {
	m := l.manager
	if m == nil {
		m = new(Manager)
	}
	return question{m.asking, m.identity.latchRegion(l.name), m.timeout, which.doing() + " latch " + l.name.String()}
}

func (c latchCall) changes() bool { return c != latchCount && c != latchPending && c != latchArrived }

func (c latchCall) doing() string {
	switch c {
	case latchCreate, latchGetOrCreate:
		return "creating"
	case latchCount, latchPending, latchArrived:
		return "reading"
	case latchReset:
		return "resetting"
	case latchDelete:
		return "deleting"
	default:
		return "counting"
	}
}

//go:build cgo

package dlm

import (
	"context"
	"os"
	"sync"
	"time"
)

// queue lets the goroutines of one manager wait for locks, and for the ends of leases. The queue of each lock is the
// library's: a goroutine is in it as a pending acquisition, so goroutines and the threads of other languages follow the same
// rules. A waiting goroutine parks and holds no thread.
//
// One list of completions serves all goroutines and leases: one goroutine of the queue parks on its descriptor, and wakes
// those whose acquisition has finished or whose lease has ended. It starts with the first goroutine that has to wait or the
// first lease that is watched, and ends after the manager is closed.
type queue struct {
	retry time.Duration
	// closed is closed when the manager begins to close, and over when that is done: no lease is valid any more.
	closed, over <-chan struct{}
	brief        slots

	mu          sync.Mutex
	completions completionsHandle
	// file is a copy of the descriptor of completions; nil if the process had none left.
	file *os.File
	// waiting holds a channel for each waiting goroutine, by its tag. The channel is closed when it may go on.
	waiting map[uint64]chan struct{}
	// leases holds the leases that are watched, by their tags.
	leases map[uint64]*held
	tags   uint64
	// isOver is set when nobody reads the list any more.
	isOver bool
}

func newQueue(closed, over <-chan struct{}, brief slots) *queue {
	return &queue{
		closed: closed, over: over, brief: brief,
		waiting: make(map[uint64]chan struct{}), leases: make(map[uint64]*held),
	}
}

// wait parks until the pending acquisition has finished, ctx ends, or the manager is closed.
func (q *queue) wait(ctx context.Context, pending pendingHandle) error {
	tag, finished, completions, err := q.join()
	if err != nil {
		return err
	}
	defer q.leave(tag)
	q.brief.briefly(func() { err = notifyOf(pending, completions, tag) })
	if err != nil {
		return err
	}
	select {
	case <-finished:
	case <-ctx.Done():
	case <-q.closed:
	}
	return nil
}

func (q *queue) join() (tag uint64, finished chan struct{}, completions completionsHandle, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-q.closed:
		return 0, nil, nil, closedError("manager")
	default:
	}
	if err := q.start(); err != nil {
		return 0, nil, nil, err
	}
	q.tags++
	finished = make(chan struct{})
	q.waiting[q.tags] = finished
	return q.tags, finished, q.completions, nil
}

// watch calls the methods riskBegan and ended of the lease when it is at risk, and when it has ended.
func (q *queue) watch(lease *held) {
	tag, completions, err := q.add(lease)
	if err == nil {
		q.brief.briefly(func() { err = notifyOfEnd(lease.handle, completions, tag) })
	}
	if err == nil {
		return
	}
	// It has ended, or the system cannot start a thread.
	q.leave(tag)
	go func() {
		pollUntil(context.Background(), func() (over bool) {
			q.brief.briefly(func() { over = lease.look() })
			return over
		})
	}()
}

func (q *queue) add(lease *held) (tag uint64, completions completionsHandle, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isOver {
		return 0, nil, closedError("manager")
	}
	if err := q.start(); err != nil {
		return 0, nil, err
	}
	q.tags++
	lease.mu.Lock()
	defer lease.mu.Unlock()
	if !lease.isLost {
		lease.tag = q.tags
		q.leases[q.tags] = lease
	}
	return q.tags, q.completions, nil
}

func (q *queue) leave(tag uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, tag)
	delete(q.leases, tag)
}

// start makes the list and starts the goroutine that waits for it, unless that was done. The goroutine does not refer to the
// manager, which could then never be collected.
func (q *queue) start() error {
	if q.completions != nil {
		return nil
	}
	completions, err := newCompletions()
	if err != nil {
		return err
	}
	q.completions = completions
	if fd, err := completionsDescriptor(completions); err == nil {
		q.file, _ = duplicate(fd, "completions")
	}
	file := q.file
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-q.over
		cancel()
		if file != nil {
			_ = file.Close() // ends parkUntil
		}
	}()
	go func() {
		if file != nil {
			_ = parkUntil(file, func() bool { q.wake(completions); return ctx.Err() != nil })
		}
		// The process has no free descriptor, or the manager was closed.
		pollUntil(ctx, func() bool { q.wake(completions); return ctx.Err() != nil })
		q.end(completions)
	}()
	return nil
}

// wake lets all goroutines go on whose acquisition has finished, and tells leases what has happened to them.
func (q *queue) wake(completions completionsHandle) {
	q.brief.briefly(func() {
		for tag, kind := nextCompletion(completions); kind != 0; tag, kind = nextCompletion(completions) {
			q.mu.Lock()
			finished, lease := q.waiting[tag], q.leases[tag]
			delete(q.waiting, tag)
			q.mu.Unlock()
			switch {
			case kind == completionFinished && finished != nil:
				close(finished)
			case kind == completionAtRisk && lease != nil:
				lease.riskBegan()
			case kind == completionEnded && lease != nil:
				lease.look() // a renewal may have brought it back
			}
		}
	})
}

// end ends the watch of all leases, after the manager is closed: none is valid.
func (q *queue) end(completions completionsHandle) {
	q.mu.Lock()
	q.isOver = true
	leases := q.leases
	q.leases = make(map[uint64]*held)
	q.mu.Unlock()
	for _, lease := range leases {
		lease.ended()
	}
	freeCompletions(completions)
}

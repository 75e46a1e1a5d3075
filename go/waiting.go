//go:build cgo

package dlm

import (
	"context"
	"os"
	"sync"
	"time"
)

// queue lets the goroutines of one manager wait for locks. The queue of each lock is the library's: a goroutine is in it
// as a pending acquisition, so goroutines and the threads of other languages follow the same rules. A waiting goroutine
// parks and holds no thread.
//
// One list of completions serves all goroutines: one goroutine of the queue parks on its descriptor, and wakes those
// whose acquisition has finished. It starts with the first goroutine that has to wait, and ends with the manager.
type queue struct {
	retry  time.Duration
	closed <-chan struct{}
	brief  slots

	mu          sync.Mutex
	completions completionsHandle
	// file is a copy of the descriptor of completions; nil if the process had none left.
	file *os.File
	// waiting holds a channel for each waiting goroutine, by its tag. The channel is closed when it may go on.
	waiting map[uint64]chan struct{}
	tags    uint64
}

func newQueue(closed <-chan struct{}, brief slots) *queue {
	return &queue{closed: closed, brief: brief, waiting: make(map[uint64]chan struct{})}
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
	if q.completions == nil {
		if err := q.start(); err != nil {
			return 0, nil, nil, err
		}
	}
	q.tags++
	finished = make(chan struct{})
	q.waiting[q.tags] = finished
	return q.tags, finished, q.completions, nil
}

func (q *queue) leave(tag uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, tag)
}

// start makes the list and starts the goroutine that waits for it. The goroutine does not refer to the manager, which
// could then never be collected.
func (q *queue) start() error {
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
		<-q.closed
		cancel()
		if file != nil {
			_ = file.Close() // ends parkUntil
		}
	}()
	go func() {
		defer freeCompletions(completions)
		if file != nil {
			_ = parkUntil(file, func() bool { q.wake(completions); return ctx.Err() != nil })
		}
		// The process has no free descriptor, or the manager was closed.
		pollUntil(ctx, func() bool { q.wake(completions); return ctx.Err() != nil })
	}()
	return nil
}

// wake lets all goroutines go on whose acquisition has finished.
func (q *queue) wake(completions completionsHandle) {
	q.brief.briefly(func() {
		for tag := nextCompletion(completions); tag != 0; tag = nextCompletion(completions) {
			q.mu.Lock()
			if finished := q.waiting[tag]; finished != nil {
				delete(q.waiting, tag)
				close(finished)
			}
			q.mu.Unlock()
		}
	})
}

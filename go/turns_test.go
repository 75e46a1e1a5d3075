//go:build cgo

package dlm

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"
)

// loopRetry and loopHold are settings of a process that acquires a lock again and again. It holds the lock so much
// longer than it leaves it free that another process finds it free by chance in only one of many hundreds of polls.
const (
	loopRetry = 50 * time.Millisecond
	loopHold  = 200 * time.Millisecond
)

func init() {
	// loop acquires one lock in a loop in one goroutine until its input ends.
	children["loop"] = func(uri string) {
		m, err := Open(uri, Retry(loopRetry))
		if err != nil {
			panic(err)
		}
		defer m.Close()
		ended := make(chan struct{})
		go func() {
			_, _ = os.Stdin.Read(make([]byte, 1))
			close(ended)
		}()
		for ready := false; ; ready = true {
			lease, err := m.Lock(context.Background(), XDC("looped"), Wait(Forever))
			if err != nil {
				panic(err)
			}
			if !ready {
				os.Stdout.WriteString("ready\n")
			}
			over := false
			select {
			case <-ended:
				over = true
			case <-time.After(loopHold):
			}
			if err := lease.Release(); err != nil {
				panic(err)
			}
			if over {
				return
			}
		}
	}
}

// Another process polls the lock once per interval. Without the yielding it would find the lock free only by chance.
func TestAProcessThatLoopsInOneGoroutineLeavesOthersTheirTurn(t *testing.T) {
	const turns = 5
	uri := embedded(t) + "&notices=off"
	child(t, "loop", uri)
	m := open(t, uri, Retry(loopRetry))
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for turn := range turns {
		lease, err := m.Lock(ctx, XDC("looped"), Wait(Forever))
		if err != nil {
			t.Fatalf("%d turns of %d after %v: %v", turn, turns, time.Since(began), err)
		}
		t.Logf("turn %d after %v", turn+1, time.Since(began).Round(time.Millisecond))
		release(t, lease)
		// The next turn begins when the other process holds the lock again.
		eventually(t, "the loop going on", func() bool {
			lease, err := m.TryLock(ctx, XDC("looped"))
			if err == nil {
				release(t, lease)
				time.Sleep(loopRetry)
			}
			return err != nil
		})
	}
}

// The same, seen from inside one process: for goroutines that pass a lock on, and for a single goroutine that leaves
// nobody in the queue when it releases. A process stands back for processes that poll, and here it is one of them.
func TestAProcessThatKeepsTakingALockStandsBackNowAndThen(t *testing.T) {
	const retry = 50 * time.Millisecond
	for _, goroutines := range []int{3, 1} {
		m := open(t, embedded(t)+"&notices=off", Retry(retry))
		var mu sync.Mutex
		var released time.Time
		pauses, rounds := 0, 0
		end := time.Now().Add(5 * time.Minute)
		done := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return pauses >= 2 || time.Now().After(end)
		}
		var all sync.WaitGroup
		for range goroutines {
			all.Add(1)
			go func() {
				defer all.Done()
				for !done() {
					lease, err := m.Lock(t.Context(), XDC("a"), Wait(Forever))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					rounds++
					if !released.IsZero() && time.Since(released) >= retry*12/10 {
						pauses++
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					released = time.Now()
					mu.Unlock()
					if err := lease.Release(); err != nil {
						t.Error(err)
						return
					}
				}
			}()
		}
		all.Wait()
		if pauses < 2 {
			t.Errorf("%d goroutines yielded %d times in %d rounds", goroutines, pauses, rounds)
		}
	}
}

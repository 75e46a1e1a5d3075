//go:build cgo

package dlm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The library's own tests are the tests of the queue. These tests show that goroutines are in that queue.

func init() {
	children["waiting without descriptors"] = waitWithoutDescriptors
	children["compete"] = compete
}

// elsewhere holds a lock in another manager over the same store.
func elsewhere(t *testing.T, uri string, name Name, options ...LockOption) *Lease {
	t.Helper()
	m := open(t, uri)
	lease, err := m.TryLock(t.Context(), name, options...)
	for end := time.Now().Add(long); errors.Is(err, ErrRetriesExhausted) && time.Now().Before(end); {
		// On a busy machine the grant may take longer than a short lease.
		lease, err = m.TryLock(t.Context(), name, options...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// inQueue waits until this many goroutines are in the queue.
func inQueue(t *testing.T, m *Manager, count int) {
	t.Helper()
	eventually(t, fmt.Sprint(count, " in the queue"), func() bool { return m.Stats().Waiting == count })
}

func TestGoroutinesAreServedInTheOrderOfTheirArrival(t *testing.T) {
	m := open(t, embedded(t), Retry(time.Hour))
	held := lock(t, m, XDC("a"))
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	for number := range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			// Contexts that can end, and contexts that cannot.
			ctx := t.Context()
			if number%2 == 0 {
				ctx = context.Background()
			}
			lease, err := m.Lock(ctx, XDC("a"), Wait(Forever))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, number)
			mu.Unlock()
			if err := lease.Release(); err != nil {
				t.Error(err)
			}
		}()
		inQueue(t, m, number+1)
	}
	release(t, held)
	all.Wait()
	for at, number := range order {
		if at != number {
			t.Fatalf("not first come first served: %v", order)
		}
	}
	inQueue(t, m, 0)
	if stats := m.Stats(); stats != (Stats{}) {
		t.Fatal(stats)
	}
}

func TestAGoroutineThatGivesUpMakesWayForTheNext(t *testing.T) {
	uri := embedded(t)
	held := elsewhere(t, uri, XDC("a"))
	m := open(t, uri, Retry(20*time.Millisecond))
	ctx, cancel := context.WithCancelCause(t.Context())
	first := make(chan error)
	go func() {
		_, err := m.Lock(ctx, XDC("a"), Wait(Forever))
		first <- err
	}()
	inQueue(t, m, 1)
	second := make(chan *Lease)
	go func() { second <- lock(t, m, XDC("a")) }()
	inQueue(t, m, 2)
	eventually(t, "the first one refused", func() bool { return m.asking.underWay() == 0 })
	why := errors.New("the user went away")
	cancel(why)
	err := <-first
	if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	release(t, held)
	release(t, <-second)
}

// hung is a gateway that answers greetings, and counts all other requests and never answers them.
func hung(t *testing.T) (uri string, asked *atomic.Int32) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	asked = new(atomic.Int32)
	serve := func(connection net.Conn) {
		// A call in Thrift's strict binary encoding: version and kind, the length of the name, the name, a number, and
		// no arguments.
		const greeting = "\x80\x01\x00\x01\x00\x00\x00\x13getThriftServerType"
		call := make([]byte, len(greeting)+5)
		for {
			if _, err := io.ReadFull(connection, call[:1]); err != nil {
				return
			}
			if _, err := io.ReadFull(connection, call[1:]); err != nil || string(call[:len(greeting)]) != greeting {
				asked.Add(1)
				return
			}
			// The reply has the same name and number, and an i32 as its field 0.
			reply := append([]byte(nil), call[:len(call)-1]...)
			reply[3] = 2
			_, _ = connection.Write(append(reply, "\x08\x00\x00\x00\x00\x00\x01\x00"...))
		}
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = connection.Close() })
			go serve(connection)
		}
	}()
	return "hbase+thrift://" + listener.Addr().String() + "/locks?client=tests&connect_timeout=5s", asked
}

// The end of the first one says nothing about the lock, so the next one must not wait for an interval, nor for the
// request of the first.
func TestAGoroutineThatGivesUpACallLeavesItsTurnToTheNext(t *testing.T) {
	patiently(t, 8*time.Second, leavesItsTurnToTheNext)
}

// leavesItsTurnToTheNext returns false if the timeout has ended the first call before that was given up.
func leavesItsTurnToTheNext(t *testing.T, timeout time.Duration) bool {
	uri, asked := hung(t)
	began := time.Now()
	m := open(t, uri, Retry(time.Hour), Timeout(timeout))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ends := make(chan error, 2)
	wait := func(ctx context.Context) {
		_, err := m.Lock(ctx, XDC("a"), Wait(Forever))
		ends <- err
	}
	go wait(ctx)
	isOver := func() bool { return time.Since(began) > timeout }
	eventually(t, "a request", func() bool { return asked.Load() == 1 || isOver() })
	rest, end := context.WithCancel(t.Context())
	defer end()
	go wait(rest)
	eventually(t, "2 in the queue", func() bool { return m.Stats().Waiting == 2 || isOver() })
	cancel()
	err := <-ends
	if isOver() {
		return false
	}
	wants(t, err, context.Canceled)
	eventually(t, "a request of the next", func() bool { return asked.Load() == 2 || isOver() })
	isInTime := !isOver()
	end()
	err = <-ends
	if isInTime {
		wants(t, err, context.Canceled)
	}
	return isInTime
}

func TestAStoreThatFailsEndsAllWaits(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	m := open(t, "hbase+thrift://"+listener.Addr().String()+"/locks?client=tests", Retry(time.Hour))
	ends := make(chan error)
	for range 20 {
		go func() {
			_, err := m.Lock(t.Context(), XDC("a"), Wait(Forever))
			ends <- err
		}()
	}
	for range 20 {
		wants(t, <-ends, ErrConnection)
	}
	if stats := m.Stats(); stats != (Stats{}) {
		t.Fatal(stats)
	}
}

func TestAWaitOfZeroAsksOnce(t *testing.T) {
	uri := embedded(t)
	m := open(t, uri, Retry(time.Hour))
	release(t, lock(t, m, XDC("a"), Wait(0)))
	held := elsewhere(t, uri, XDC("a"))
	for range 3 {
		_, err := m.Lock(t.Context(), XDC("a"), Wait(0))
		wants(t, err, ErrLocked)
	}
	release(t, held)
	release(t, lock(t, m, XDC("a"), Wait(0)))
	// A try that is refused asks the holder once whether the lock only stays with it.
	if stats := m.Stats(); stats != (Stats{NoticesSent: 3}) {
		t.Fatal(stats)
	}
}

// A loop yields after 50 intervals. A wait that ends before that asks all the same: otherwise it would fail although
// the lock is free.
func TestABriefWaitAsksAlthoughItIsTheTurnOfOthers(t *testing.T) {
	const retry = 20 * time.Millisecond
	for what, wait := range map[string]func(*Manager) (*Lease, error){
		"a wait of zero": func(m *Manager) (*Lease, error) { return m.Lock(t.Context(), XDC("a"), Wait(0)) },
		"a deadline, and a long wait": func(m *Manager) (*Lease, error) {
			// The deadline is before the end of the yielding, and far enough away for one request.
			ctx, cancel := context.WithTimeout(t.Context(), retry)
			defer cancel()
			return m.Lock(ctx, XDC("a"), Wait(time.Hour))
		},
	} {
		m := open(t, embedded(t), Retry(retry))
		for end := time.Now().Add(70 * retry); time.Now().Before(end); {
			lease, err := wait(m)
			if errors.Is(err, context.DeadlineExceeded) {
				continue // on a busy machine, 20 ms may pass before the request
			}
			if err != nil {
				t.Fatal(what, ": ", err)
			}
			release(t, lease)
		}
	}
}

// The holder has vanished. The store says when its lease ends, and the wait does not last for an interval.
func TestTheNextRequestComesWhenTheLeaseEndsThatItWaitsFor(t *testing.T) {
	uri := embedded(t)
	gone := elsewhere(t, uri, XDC("a"), TTL(300*time.Millisecond))
	// No request comes sooner than a twentieth of the interval after the last one.
	m := open(t, uri, Retry(time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	lease, err := m.Lock(ctx, XDC("a"))
	if err != nil {
		t.Fatal(err)
	}
	if lease.Fence() <= gone.Fence() {
		t.Fatal("the fence did not grow")
	}
	release(t, lease)
	_ = gone.Release()
}

func TestAWaitThatEndsSaysWhoHoldsTheLock(t *testing.T) {
	uri := embedded(t)
	defer release(t, elsewhere(t, uri, XDC("a")))
	m := open(t, uri, Retry(5*time.Millisecond))
	// On a busy machine it takes longer until the store has answered.
	patiently(t, 50*time.Millisecond, func(t *testing.T, pause time.Duration) bool {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := m.Lock(ctx, XDC("a"), Wait(Forever))
			failed <- err
		}()
		inQueue(t, m, 1)
		eventually(t, "a refusal", func() bool { return m.asking.underWay() == 0 })
		time.Sleep(pause)
		cancel()
		err := <-failed
		wants(t, err, context.Canceled)
		return strings.Contains(err.Error(), "is held by pid ")
	})
}

// One descriptor serves all goroutines.
func TestACrowdThatWaitsHoldsFewDescriptors(t *testing.T) {
	const crowd = 1000
	uri := embedded(t)
	defer release(t, elsewhere(t, uri, XDC("a")))
	m := open(t, uri, Retry(10*time.Millisecond))
	files := descriptorsWithoutCollector(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for number := range crowd {
		all.Add(1)
		go func() {
			defer all.Done()
			_, err := m.Lock(ctx, XDC([]string{"a", fmt.Sprint(number)}[min(number%10, 1)]), Wait(Forever))
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
	}
	inQueue(t, m, crowd/10)
	// The list's timer and its copy; the runtime's poller may own two, and the store some.
	if now := descriptors(t); now > files+12 {
		t.Errorf("%d descriptors, %d before", now, files)
	}
	cancel()
	all.Wait()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the descriptors closed", func() bool { return descriptors(t) <= files+2 })
}

func TestWithoutDescriptorsALockIsAcquiredAllTheSame(t *testing.T) {
	_, end := child(t, "waiting without descriptors", embedded(t))
	end()
}

func waitWithoutDescriptors(uri string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	m, err := Open(uri, Retry(time.Hour))
	must(err)
	ctx := context.Background()
	held, err := m.Lock(ctx, XDC("a"))
	must(err)
	time.Sleep(time.Millisecond) // timers need the runtime's poller, which needs a descriptor
	must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: 0}))
	ends := make(chan error)
	go func() {
		lease, err := m.Lock(ctx, XDC("a"), Wait(Forever))
		if err == nil {
			err = lease.Release()
		}
		ends <- err
	}()
	for m.Stats().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	must(held.Release())
	must(<-ends)
	must(m.Close())
}

// compete acquires a lock again and again in three goroutines until its input ends, and prints how often it got it. The
// test of the C interface runs it beside a process in Rust.
func compete(uri string) {
	m, err := Open(uri)
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	ctx, cancel := context.WithCancel(context.Background())
	var grants atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		all.Add(1)
		go func() {
			defer all.Done()
			for {
				lease, err := m.Lock(ctx, XDC("shared"), Wait(Forever))
				if errors.Is(err, context.Canceled) {
					return
				}
				if err != nil {
					panic(err)
				}
				grants.Add(1)
				time.Sleep(2 * time.Millisecond)
				if err := lease.Release(); err != nil {
					panic(err)
				}
			}
		}()
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	cancel()
	all.Wait()
	if err := m.Close(); err != nil {
		panic(err)
	}
	fmt.Println(grants.Load())
}

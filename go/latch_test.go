//go:build cgo

package dlm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

func init() {
	children["count down"] = func(uri string) {
		m, err := Open(uri)
		if err != nil {
			panic(err)
		}
		defer m.Close()
		fmt.Println("ready")
		for _, name := range []Name{DC("a"), XDC("b")} {
			if err := m.Latch(name, CountDown).CountDown(context.Background()); err != nil {
				panic(err)
			}
		}
	}
	children["without descriptors"] = withoutDescriptors
}

func TestALatchIsResetAndDeleted(t *testing.T) {
	for _, uri := range []string{"memory:?client=tests&farm=dc1", embedded(t)} {
		m := open(t, uri)
		ctx := t.Context()
		latch := m.Latch(DC("a"), CountDown)
		for _, call := range []func() error{
			func() error { return latch.Reset(ctx, 1) },
			func() error { return latch.ResetFor(ctx, "x") },
			func() error { return latch.Delete(ctx) },
		} {
			wants(t, call(), ErrNotFound)
		}
		if err := latch.Create(ctx, 0); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := latch.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if err := latch.ResetFor(ctx, "x"); err != nil {
				t.Fatal(err)
			}
			if pending, err := latch.Pending(ctx); len(pending) != 1 || err != nil {
				t.Fatal(pending, err)
			}
			if counted, err := latch.CountDownAs(ctx, "x"); !counted || err != nil {
				t.Fatal(counted, err)
			}
		}
		wants(t, latch.Reset(ctx, -1), ErrInvalid)
		wants(t, latch.ResetFor(ctx, "x", "x"), ErrInvalid)
		if err := latch.Reset(ctx, 3); err != nil {
			t.Fatal(err)
		}
		if count, err := latch.Count(ctx); count != 3 || err != nil {
			t.Fatal(count, err)
		}
		if err := latch.Delete(ctx); err != nil {
			t.Fatal(err)
		}
		wants(t, latch.Wait(ctx), ErrNotFound)
		wants(t, latch.Delete(ctx), ErrNotFound)
	}
}

func TestALatchIsMadeCountedDownAndOpens(t *testing.T) {
	for _, uri := range []string{"memory:?client=tests&farm=dc1", embedded(t)} {
		m := open(t, uri)
		ctx := t.Context()
		latch := m.Latch(DC("a"), CountDown)
		for _, call := range []func() error{
			func() error { _, err := latch.Count(ctx); return err },
			func() error { return latch.CountDown(ctx) },
			func() error { return latch.Wait(ctx) },
		} {
			wants(t, call(), ErrNotFound)
		}
		if err := latch.Create(ctx, 2); err != nil {
			t.Fatal(err)
		}
		wants(t, latch.Create(ctx, 5), ErrExists)
		if created, err := latch.GetOrCreate(ctx, 5); created || err != nil {
			t.Fatal(created, err)
		}
		wants(t, latch.CountUp(ctx), ErrInvalid)
		wants(t, latch.Create(ctx, -1), ErrInvalid)
		for left := 1; left >= 0; left-- {
			if err := latch.CountDown(ctx); err != nil {
				t.Fatal(err)
			}
			if count, err := latch.Count(ctx); count != left || err != nil {
				t.Fatal(count, err)
			}
		}
		if err := latch.Wait(ctx); err != nil {
			t.Fatal(err)
		}

		upDown := m.Latch(XDC("b"), CountUpDown)
		if created, err := upDown.GetOrCreate(ctx, 0); !created || err != nil {
			t.Fatal(created, err)
		}
		if err := upDown.CountUp(ctx); err != nil {
			t.Fatal(err)
		}
		if count, err := upDown.Count(ctx); count != 1 || err != nil {
			t.Fatal(count, err)
		}

		short := m.Latch(DC("short"), CountDown).WithTTL(30 * time.Millisecond)
		if err := short.Create(ctx, 1); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the end of its TTL", func() bool { _, err := short.Count(ctx); return errors.Is(err, ErrNotFound) })
		for _, ttl := range []time.Duration{0, -time.Second, -2 * time.Millisecond, Forever} {
			wants(t, latch.WithTTL(ttl).Create(ctx, 1), ErrInvalid)
		}
		wants(t, m.Latch(DC("a\x00b"), CountDown).Create(ctx, 1), ErrInvalid)
		wants(t, m.Latch(DC("a"), 0).Create(ctx, 1), ErrInvalid)
	}
	noFarm := open(t, "memory:?client=tests")
	wants(t, noFarm.Latch(XDC("a"), CountDown).Create(t.Context(), 1), ErrInvalid)
}

func TestParticipantsCountOncePerName(t *testing.T) {
	m := open(t, embedded(t))
	ctx := t.Context()
	latch := m.Latch(DC("a"), CountDown)
	wants(t, latch.CreateFor(ctx, "twice", "twice"), ErrInvalid)
	wants(t, latch.CreateFor(ctx, "a\x00b"), ErrInvalid)
	if err := latch.CreateFor(ctx, "worker-2", "worker-1"); err != nil {
		t.Fatal(err)
	}
	for _, first := range []bool{true, false} {
		if counted, err := latch.CountDownAs(ctx, "worker-2"); counted != first || err != nil {
			t.Fatal(counted, err)
		}
	}
	if pending, err := latch.Pending(ctx); !slices.Equal(pending, []string{"worker-1"}) || err != nil {
		t.Fatal(pending, err)
	}
	_, err := latch.CountDownAs(ctx, "worker-3")
	wants(t, err, ErrInvalid)
	wants(t, latch.CountDown(ctx), ErrInvalid)
	if _, err := latch.CountDownAs(ctx, "worker-1"); err != nil {
		t.Fatal(err)
	}
	if pending, err := latch.Pending(ctx); len(pending) != 0 || err != nil {
		t.Fatal(pending, err)
	}
	if err := latch.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.Latch(DC("nobody"), CountDown).CreateFor(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestALatchOpensForAllWhoWaitAlsoFromAnotherProcess(t *testing.T) {
	uri := embedded(t)
	m := open(t, uri, Setting("poll", "50ms"))
	files := descriptorsWithoutCollector(t)
	for _, name := range []Name{DC("a"), XDC("b")} {
		if err := m.Latch(name, CountDown).Create(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
	}
	ends := make(chan error)
	for number := range 100 {
		latch := m.Latch([]Name{DC("a"), XDC("b")}[number%2], CountDown)
		go func() { ends <- latch.Wait(t.Context()) }()
	}
	_, end := child(t, "count down", uri)
	end()
	select {
	case err := <-ends:
		t.Fatalf("open with one count missing: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	for _, name := range []Name{DC("a"), XDC("b")} {
		if err := m.Latch(name, CountDown).CountDown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		if err := <-ends; err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all descriptors closed", func() bool { return descriptors(t) <= files+1 })
}

func TestACrowdThatWaitsForLatchesHoldsFewThreads(t *testing.T) {
	const crowd = 1000
	m := open(t, embedded(t), Setting("poll", "1h"))
	ctx, cancel := context.WithCancel(t.Context())
	files := descriptorsWithoutCollector(t)
	var all sync.WaitGroup
	for number := range crowd {
		latch := m.Latch(DC(fmt.Sprint("latch-", number%100)), CountDown)
		if _, err := latch.GetOrCreate(ctx, 1); err != nil {
			t.Fatal(err)
		}
		all.Add(1)
		go func() {
			defer all.Done()
			wants(t, latch.Wait(ctx), context.Canceled)
		}()
	}
	eventually(t, "all waiting", func() bool { return descriptors(t) >= files+crowd })
	most := 0
	for range 20 {
		most = max(most, threads(t))
		time.Sleep(10 * time.Millisecond)
	}
	began := time.Now()
	cancel()
	all.Wait()
	took := time.Since(began)
	t.Logf("1000 goroutines waiting for 100 latches: %d threads; all returned %v after cancel", most, took)
	if most > threadsAtMost {
		t.Errorf("%d threads, more than %d", most, threadsAtMost)
	}
	if took > 30*time.Second {
		t.Error("they did not return at once")
	}
}

func TestClosingEndsWaitsForLatches(t *testing.T) {
	m := open(t, embedded(t))
	latch := m.Latch(DC("a"), CountDown)
	if err := latch.Create(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	files := descriptorsWithoutCollector(t)
	ends := make(chan error)
	for range 20 {
		go func() { ends <- latch.Wait(context.Background()) }()
	}
	eventually(t, "all waiting", func() bool { return descriptors(t) >= files+20 })
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		wants(t, <-ends, ErrClosed)
	}
	wants(t, latch.Wait(t.Context()), ErrClosed)
	wants(t, latch.CountDown(t.Context()), ErrClosed)
}

// An abandoned request may still be applied later. The caller must not assume that it was not.
func TestAChangeThatIsGivenUpIsInDoubtAndAReadIsNot(t *testing.T) {
	m := open(t, embedded(t))
	for _, of := range []struct {
		call    latchCall
		inDoubt bool
	}{
		{latchCreate, true},
		{latchGetOrCreate, true},
		{latchCountDown, true},
		{latchCountUp, true},
		{latchCountDownAs, true},
		{latchCount, false},
		{latchPending, false},
		{latchArrived, false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		hang := make(chan struct{})
		question := question{m.asking, 7, time.Minute, "testing"}
		_, err := answerTo(ctx, question, of.call.changes(), func() (int, error) {
			cancel()
			<-hang
			return 0, nil
		})
		wants(t, err, context.Canceled)
		if errors.Is(err, ErrInDoubt) != of.inDoubt {
			t.Fatal(of.call, err)
		}
		close(hang)
	}
}

func TestWithoutDescriptorsTheEndIsNoticedAllTheSame(t *testing.T) {
	_, end := child(t, "without descriptors", embedded(t))
	end()
}

func withoutDescriptors(uri string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	m, err := Open(uri)
	must(err)
	ctx := context.Background()
	latch := m.Latch(DC("a"), CountDown)
	must(latch.Create(ctx, 1))
	lease, err := m.Lock(ctx, XDC("a"), TTL(time.Second))
	for errors.Is(err, ErrRetriesExhausted) { // on a busy machine the grant may take longer than the lease
		lease, err = m.Lock(ctx, XDC("a"), TTL(time.Second))
	}
	must(err)

	time.Sleep(time.Millisecond) // timers need the runtime's poller, which needs a descriptor
	must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: 0}))
	if _, err := os.Open(os.DevNull); err == nil {
		panic("there is a descriptor left")
	}
	waited := make(chan error)
	go func() { waited <- latch.Wait(ctx) }()
	select {
	case err := <-waited:
		panic(err)
	case <-lease.Lost():
	}
	if lease.Check() == nil {
		panic("lost too soon")
	}
	must(latch.CountDown(ctx))
	must(<-waited)
	brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	must(m.Latch(DC("b"), CountDown).Create(ctx, 1))
	if err := m.Latch(DC("b"), CountDown).Wait(brief); !errors.Is(err, context.DeadlineExceeded) {
		panic(err)
	}
	must(m.Close())
}

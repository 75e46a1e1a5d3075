//go:build cgo

package dlm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("DLM_GO_TEST_CHILD"); role != "" {
		children[role](os.Getenv("DLM_GO_TEST_URI"))
		os.Exit(0)
	}
	code := m.Run()
	if code == 0 {
		code = leftOver()
	}
	os.Exit(code)
}

// leftOver returns 1 if the tests together left library handles open.
func leftOver() int {
	for range 12000 {
		runtime.GC() // some tests leave handles to the garbage collector
		if handlesOpen() == 0 {
			return 0
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "FAIL: handles left open:", handlesOpen())
	return 1
}

func embedded(t testing.TB) string {
	return "embedded:" + filepath.Join(t.TempDir(), "store") + "?client=tests&farm=dc1&timeout=60s"
}

func open(t testing.TB, uri string, options ...Option) *Manager {
	t.Helper()
	m, err := Open(uri, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func lock(t testing.TB, m *Manager, name Name, options ...LockOption) *Lease {
	t.Helper()
	lease, err := m.Lock(t.Context(), name, options...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func release(t testing.TB, lease *Lease) {
	t.Helper()
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
}

// wants fails the test unless err is each of these errors.
func wants(t testing.TB, err error, all ...error) {
	t.Helper()
	for _, want := range all {
		if !errors.Is(err, want) {
			t.Fatalf("%v is not %v", err, want)
		}
	}
}

// child starts this test program in another role, as another process that uses the same store.
func child(t testing.TB, role, uri string) (*exec.Cmd, func()) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), "DLM_GO_TEST_CHILD="+role, "DLM_GO_TEST_URI="+uri)
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 16)); err != nil {
		t.Fatalf("child %s is not ready: %v", role, err)
	}
	end := sync.OnceFunc(func() {
		_ = stdin.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("child %s: %v", role, err)
		}
	})
	t.Cleanup(end)
	return command, end
}

var children = map[string]func(uri string){
	// hold holds "held" and "held-0" to "held-999" until its input ends.
	"hold": func(uri string) {
		m, err := Open(uri)
		if err != nil {
			panic(err)
		}
		for number := range 1001 {
			name := XDC("held")
			if number > 0 {
				name = XDC("held-" + strconv.Itoa(number-1))
			}
			if _, err := m.TryLock(context.Background(), name, TTL(time.Hour)); err != nil {
				panic(err)
			}
		}
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
		if err := m.Close(); err != nil {
			panic(err)
		}
	},
	"count": func(uri string) {
		fmt.Println("ready")
		if err := count(uri, os.Getenv("DLM_GO_TEST_FILE")); err != nil {
			panic(err)
		}
	},
}

const rounds = 200

// count increments the number in a file. Without mutual exclusion some increments are lost.
func count(uri, file string) error {
	m, err := Open(uri, Retry(2*time.Millisecond))
	if err != nil {
		return err
	}
	defer m.Close()
	for range rounds {
		lease, err := m.Lock(context.Background(), XDC("counter"))
		if err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		number, err := strconv.Atoi(string(text))
		if err != nil {
			return err
		}
		runtime.Gosched()
		if err := os.WriteFile(file, []byte(strconv.Itoa(number+1)), 0o600); err != nil {
			return err
		}
		if err := lease.Release(); err != nil {
			return err
		}
	}
	return nil
}

func TestTwoProcessesExcludeEachOther(t *testing.T) {
	uri, file := embedded(t), filepath.Join(t.TempDir(), "number")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DLM_GO_TEST_FILE", file)
	_, end := child(t, "count", uri)
	if err := count(uri, file); err != nil {
		t.Fatal(err)
	}
	end()
	if text, _ := os.ReadFile(file); string(text) != strconv.Itoa(2*rounds) {
		t.Fatalf("%s of %d counts are left", text, 2*rounds)
	}
}

func TestALockIsHeldReleasedAndHeldAgainWithAHigherFence(t *testing.T) {
	for _, uri := range []string{"memory:?client=tests&farm=dc1", embedded(t)} {
		m := open(t, uri)
		if err := m.Initialize(t.Context()); err != nil {
			t.Fatal(err)
		}
		lease := lock(t, m, DC("a"))
		if lease.Check() != nil || lease.Fence() == 0 || lease.Name() != DC("a") {
			t.Fatal(lease.Check(), lease.Fence(), lease.Name())
		}
		if left := lease.Remaining(); left < 60*time.Second || left > 90*time.Second {
			t.Fatal(left)
		}
		_, err := m.TryLock(t.Context(), DC("a"))
		wants(t, err, ErrLocked)
		if !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
			t.Fatalf("%v does not say who", err)
		}
		other := lock(t, m, XDC("a")) // another level, another lock
		if stats := m.Stats(); stats != (Stats{LeasesHeld: 2}) {
			t.Fatal(stats)
		}
		page, err := m.MetricsText()
		if err != nil || !strings.Contains(page, "\ndlm_leases_held{class=\"a\",mode=\"EXCLUSIVE\"} 2\n") {
			t.Fatal(err, page)
		}
		release(t, other)
		release(t, lease)
		again := lock(t, m, DC("a"), TTL(10*time.Second))
		if again.Fence() <= lease.Fence() || again.Remaining() > 10*time.Second {
			t.Fatal(again.Fence(), lease.Fence(), again.Remaining())
		}
		release(t, again)
	}
}

func TestASecondReleaseDoesNothingAndIsNoError(t *testing.T) {
	m := open(t, embedded(t))
	lease := lock(t, m, XDC("a"))
	results := make(chan error)
	for range 50 {
		go func() { results <- lease.Release() }()
		go func() { _, _, _ = lease.Check(), lease.Remaining(), lease.Lost() }()
	}
	for range 50 {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	wants(t, lease.Check(), ErrLost)
	wants(t, lease.Renew(t.Context()), ErrLost)
	if lease.Remaining() != 0 {
		t.Fatal(lease.Remaining())
	}
	next := lock(t, m, XDC("a"))
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if next.Check() != nil || next.Renew(t.Context()) != nil {
		t.Fatal("an old release touched the next holder")
	}
	release(t, next)
}

func TestALeaseThatRanOutIsLostAndTheNextHolderIsLeftAlone(t *testing.T) {
	m := open(t, embedded(t), Retry(5*time.Millisecond))
	lease := brief(t, m, XDC("a"), 300*time.Millisecond)
	next := lock(t, m, XDC("a"))
	wants(t, lease.Check(), ErrLost)
	wants(t, lease.Renew(t.Context()), ErrLost)
	wants(t, lease.Release(), ErrLost)
	if next.Fence() <= lease.Fence() {
		t.Fatal("the fence did not grow")
	}
	release(t, next)
}

func TestLostIsClosedWhenTheLeaseIsOver(t *testing.T) {
	m := open(t, embedded(t))
	open := func(lost <-chan struct{}) bool {
		select {
		case <-lost:
			return false
		default:
			return true
		}
	}
	soon := func(what string, lost <-chan struct{}) {
		t.Helper()
		select {
		case <-lost:
		case <-time.After(long):
			t.Fatalf("the end by %s was not reported", what)
		}
	}
	files := descriptorsWithoutCollector(t)

	lease := lock(t, m, XDC("release"))
	lost := lease.Lost()
	if !open(lost) || lost != lease.Lost() {
		t.Fatal("lost while held")
	}
	release(t, lease)
	soon("release", lost)
	soon("release, asked later", lease.Lost())

	lease = brief(t, m, XDC("ttl"), 100*time.Millisecond)
	lost = lease.Lost()
	began := time.Now()
	soon("its TTL", lost)
	wants(t, lease.Check(), ErrLost)
	t.Logf("a TTL of 100 ms ended after %v", time.Since(began))
	_ = lease.Release()

	patiently(t, 2*time.Second, func(t *testing.T, ttl time.Duration) bool {
		lease = brief(t, m, XDC("renewed"), ttl)
		lost = lease.Lost()
		if isLate(t, lease.RenewFor(t.Context(), time.Hour)) {
			_ = lease.Release()
			return false
		}
		time.Sleep(ttl + 100*time.Millisecond)
		return true
	})
	if !open(lost) || lease.Check() != nil {
		t.Fatal("the first TTL ended a renewed lease")
	}
	if err := lease.RenewFor(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	soon("a shorter TTL", lost)
	_ = lease.Release()

	lease = lock(t, m, XDC("context"))
	ctx, cancel := lease.Context(t.Context())
	defer cancel()
	release(t, lease)
	soon("a context", ctx.Done())
	wants(t, context.Cause(ctx), ErrLost)

	// The runtime's poller may own two of them. Those of the store are still open as well.
	eventually(t, "all descriptors closed", func() bool { return descriptors(t) <= files+2 })

	lease = lock(t, m, XDC("close"))
	lost = lease.Lost()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	soon("closing the manager", lost)
	_, err := lease.Guard()
	wants(t, err, ErrLost, ErrClosed)
	if !strings.Contains(err.Error(), "manager was closed") {
		t.Fatal(err)
	}
	release(t, lease)
}

// descriptorsWithoutCollector counts the open descriptors. From then on the garbage collector closes none.
func descriptorsWithoutCollector(t *testing.T) int {
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	return descriptors(t)
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestArgumentsThatAreNotAllowedAreRefused(t *testing.T) {
	for _, uri := range []string{"nothing:", "memory:", "memory:?client=a&colour=red", "memory:?client=a\x00b"} {
		_, err := Open(uri)
		wants(t, err, ErrInvalid)
	}
	_, err := Open("memory:", Client("a"), DefaultTTL(-time.Second))
	wants(t, err, ErrInvalid)
	_, err = Open("memory:", Client("a"), Setting("colour", "red"))
	wants(t, err, ErrInvalid)
	m := open(t, "memory:", Client("a"), DefaultTTL(30*time.Second), DefaultWait(time.Minute), Timeout(time.Second))
	if m.ttl != 30*time.Second || m.wait != time.Minute || m.timeout != time.Second || m.queue.retry != time.Second {
		t.Fatal(m.ttl, m.wait, m.timeout, m.queue.retry)
	}
	for _, bad := range []struct {
		name    Name
		options []LockOption
	}{
		{Name{}, nil},
		{XDC(""), nil},
		{XDC("a\x00b"), nil},
		{XDC(strings.Repeat("a", 1025)), nil},
		{DC("no farm"), nil},
		{XDC("a"), []LockOption{TTL(0)}},
		{XDC("a"), []LockOption{TTL(-2 * time.Millisecond)}},
		{XDC("a"), []LockOption{TTL(400 * 24 * time.Hour)}},
		{XDC("a"), []LockOption{Wait(-time.Second)}},
	} {
		_, err := m.Lock(t.Context(), bad.name, bad.options...)
		wants(t, err, ErrInvalid)
	}
	_, err = m.TryLock(t.Context(), XDC("a"), Wait(time.Second))
	wants(t, err, ErrInvalid)
	if stats := m.Stats(); stats != (Stats{}) {
		t.Fatal(stats)
	}
}

func TestAWaitEndsWithItsTimeOrItsContext(t *testing.T) {
	m := open(t, embedded(t), DefaultWait(20*time.Millisecond))
	lease := lock(t, m, XDC("a"))
	defer release(t, lease)

	_, err := m.Lock(t.Context(), XDC("a")) // waits for the manager's default
	wants(t, err, ErrLocked)
	if !strings.Contains(err.Error(), "is held by pid ") {
		t.Fatal(err)
	}
	_, err = m.Lock(t.Context(), XDC("a"), Wait(10*time.Millisecond))
	wants(t, err, ErrLocked)
	var ctx context.Context
	patiently(t, 300*time.Millisecond, func(t *testing.T, timeout time.Duration) bool {
		began := time.Now()
		var cancel func()
		ctx, cancel = context.WithTimeout(t.Context(), timeout)
		t.Cleanup(cancel)
		_, err = m.Lock(ctx, XDC("a")) // the deadline of the context replaces the manager's default, which is shorter
		wants(t, err, context.DeadlineExceeded)
		if errors.Is(err, ErrLocked) || time.Since(began) < timeout*5/6 {
			t.Fatal(err, time.Since(began))
		}
		// On a busy machine the store may not have answered in this time.
		return strings.Contains(err.Error(), "is held by pid")
	})
	_, err = m.TryLock(ctx, XDC("b")) // ctx has ended, so the store is not asked
	wants(t, err, context.DeadlineExceeded)
	_, err = m.Lock(ctx, XDC("b"))
	wants(t, err, context.DeadlineExceeded)
}

// silent returns the URI of a store that accepts connections and never answers.
func silent(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			if _, err := listener.Accept(); err != nil {
				return
			}
		}
	}()
	return "hbase+thrift://" + listener.Addr().String() + "/locks?client=tests&connect_timeout=5s"
}

// A cancelled call must not wait for the lock, for its turn, or for a store that hangs.
func TestACancelledCallReturnsAtOnce(t *testing.T) {
	uri := embedded(t)
	child(t, "hold", uri)
	elsewhere := open(t, uri)
	here := open(t, embedded(t))
	held := lock(t, here, XDC("held"), TTL(time.Hour))
	defer release(t, held)
	patiently(t, 5*time.Second, func(t *testing.T, timeout time.Duration) bool {
		return returnAtOnce(t, elsewhere, here, open(t, silent(t), Timeout(timeout)), timeout)
	})
}

// returnAtOnce cancels calls. Those to the store that hangs would last for its timeout. It returns whether each of them
// has returned much sooner.
func returnAtOnce(t *testing.T, elsewhere, here, hung *Manager, timeout time.Duration) bool {
	areSoon := true
	for _, of := range []struct {
		what    string
		manager *Manager
		call    func(context.Context) error
	}{
		{"Lock, held by another process", elsewhere, func(ctx context.Context) error {
			_, err := elsewhere.Lock(ctx, XDC("held"), Wait(Forever))
			return err
		}},
		{"Lock, held in this process", here, func(ctx context.Context) error {
			_, err := here.Lock(ctx, XDC("held"), Wait(Forever))
			return err
		}},
		{"Lock, store hangs", hung, func(ctx context.Context) error {
			_, err := hung.Lock(ctx, XDC("held"), Wait(Forever))
			return err
		}},
		{"TryLock, store hangs", hung, func(ctx context.Context) error {
			_, err := hung.TryLock(ctx, XDC("held"))
			return err
		}},
		{"Initialize, store hangs", hung, hung.Initialize},
		{"Reach, store hangs", hung, hung.Reach},
	} {
		var slowest time.Duration
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error)
			go func() { failed <- of.call(ctx) }()
			time.Sleep(30 * time.Millisecond)
			began := time.Now()
			cancel()
			err := <-failed
			slowest = max(slowest, time.Since(began))
			if time.Since(began) < timeout/5 {
				wants(t, err, context.Canceled)
			}
		}
		t.Logf("%-32s %8v from cancel to return, the slowest of 5", of.what, slowest.Round(time.Microsecond))
		areSoon = areSoon && slowest <= timeout/5
	}
	return areSoon
}

// threadsAtMost is what the package's comment promises per manager, for the two managers of a test, plus the threads
// of the runtime.
const threadsAtMost = 2*50 + 30

// threads counts the operating system threads of the process.
func threads(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestACrowdThatWaitsHoldsFewThreads(t *testing.T) {
	const crowd = 1000
	uri := embedded(t)
	child(t, "hold", uri)
	many := open(t, uri, Retry(50*time.Millisecond))
	each := func(number int) Name { return XDC(fmt.Sprint("held-", number)) }
	waitInACrowd(t, "on one lock", many, crowd, func(int) Name { return XDC("held") }, time.Hour)
	waitInACrowd(t, "on 1000 locks", many, crowd, each, time.Hour)
	patiently(t, 3*time.Second, func(t *testing.T, timeout time.Duration) bool {
		hung := open(t, silent(t), Timeout(timeout))
		return waitInACrowd(t, "on 1000 locks of a store that hangs", hung, crowd, each, timeout)
	})
}

// waitInACrowd lets many goroutines wait, and cancels them. It returns false if that took longer than the time after
// which their calls fail.
func waitInACrowd(t *testing.T, what string, m *Manager, crowd int, name func(int) Name, fails time.Duration) bool {
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	errs := make(chan error, crowd)
	for number := range crowd {
		go func() {
			_, err := m.Lock(ctx, name(number), Wait(Forever))
			errs <- err
		}()
	}
	eventually(t, "all in the queue", func() bool { return m.Stats().Waiting == crowd || time.Since(began) > fails })
	most := 0
	for range 40 {
		most = max(most, threads(t))
		time.Sleep(10 * time.Millisecond)
	}
	cancelled := time.Now()
	cancel()
	isInTime := time.Since(began) < fails
	for range crowd {
		if err := <-errs; isInTime && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	t.Logf("%d goroutines %s: %d threads; all returned %v after cancel",
		crowd, what, most, time.Since(cancelled).Round(time.Millisecond))
	if most > threadsAtMost {
		t.Errorf("%d threads, more than %d", most, threadsAtMost)
	}
	if left := m.Stats().Waiting; left != 0 {
		t.Errorf("%d are left in line", left)
	}
	return isInTime
}

// At whatever moment the context ends, either the caller has the lease or nobody has it.
func TestAGrantThatComesTooLateIsReleased(t *testing.T) {
	m := open(t, embedded(t), Retry(time.Millisecond))
	var all sync.WaitGroup
	var mu sync.Mutex
	granted, given := 0, 0
	for number := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for round := range 100 {
				after := time.Duration((round*37+number*11)%400) * time.Microsecond
				ctx, cancel := context.WithTimeout(t.Context(), after)
				lease, err := m.Lock(ctx, XDC("a"))
				cancel()
				mu.Lock()
				if err == nil {
					granted++
				} else {
					given++
				}
				mu.Unlock()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					continue
				}
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	t.Logf("%d were granted, %d were abandoned", granted, given)
	// A request that goes on without its caller is neither a lease nor a waiter of the manager.
	eventually(t, "a release of all late grants", func() bool {
		lease, err := m.TryLock(t.Context(), XDC("a"))
		if err != nil {
			wants(t, err, ErrLocked)
			return false
		}
		release(t, lease)
		return true
	})
	eventually(t, "the end of all leases", func() bool { return m.Stats() == Stats{} })
}

func TestAReleaseGoesStraightToTheNextInLine(t *testing.T) {
	m := open(t, embedded(t), Retry(time.Hour))
	lease := lock(t, m, XDC("a"))
	next := make(chan *Lease)
	for range 20 {
		go func() {
			lease, err := m.Lock(t.Context(), XDC("a"))
			if err != nil {
				t.Error(err)
			}
			next <- lease
		}()
	}
	eventually(t, "all in the queue", func() bool { return m.Stats().Waiting == 20 })
	for range 20 {
		release(t, lease)
		select {
		case lease = <-next:
		case <-time.After(long):
			t.Fatal("the next one waits for its interval of an hour")
		}
	}
	release(t, lease)
}

func TestClosingWakesAllWhoWaitAndReleasesWhatIsHeld(t *testing.T) {
	uri := embedded(t)
	m := open(t, uri, Retry(time.Hour))
	lease := lock(t, m, XDC("a"))
	ends := make(chan error)
	for range 100 {
		go func() {
			_, err := m.Lock(context.Background(), XDC("a"), Wait(Forever))
			ends <- err
		}()
	}
	eventually(t, "all in the queue", func() bool { return m.Stats().Waiting == 100 })
	closed := make(chan error)
	for range 3 {
		go func() { closed <- m.Close() }()
	}
	for range 100 {
		wants(t, <-ends, ErrClosed)
	}
	for range 3 {
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
	}
	wants(t, lease.Check(), ErrLost, ErrClosed)
	release(t, lease)
	for _, call := range []func() error{
		func() error { _, err := m.Lock(t.Context(), XDC("a")); return err },
		func() error { _, err := m.TryLock(t.Context(), XDC("a")); return err },
		func() error { return m.Initialize(t.Context()) },
	} {
		wants(t, call(), ErrClosed)
	}
	if stats := m.Stats(); stats != (Stats{}) {
		t.Fatal(stats)
	}
	other := open(t, uri)
	next, err := other.TryLock(t.Context(), XDC("a"))
	if err != nil {
		t.Fatal(err)
	}
	release(t, next)
}

func TestClosingEndsCallsToAStoreThatHangs(t *testing.T) {
	patiently(t, 3*time.Second, func(t *testing.T, timeout time.Duration) bool {
		began := time.Now()
		hung := open(t, silent(t), Timeout(timeout))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ends := make(chan error, 2*callsAtOnce)
		for number := range 2 * callsAtOnce {
			go func() {
				_, err := hung.Lock(ctx, XDC(fmt.Sprint(number)))
				ends <- err
			}()
		}
		eventually(t, "all slots taken", func() bool {
			return hung.asking.underWay() == callsAtOnce || time.Since(began) > timeout
		})
		// Later, calls may have ended by themselves.
		isInTime := time.Since(began) < timeout/2
		if err := hung.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 * callsAtOnce {
			if err := <-ends; isInTime {
				wants(t, err, ErrClosed)
			}
		}
		return isInTime
	})
}

func TestWhatIsForgottenIsSaidAndGivenUp(t *testing.T) {
	var log buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	uri := embedded(t)
	func() {
		m, err := Open(uri, Logger(logger))
		if err != nil {
			t.Fatal(err)
		}
		_ = lock(t, m, XDC("forgotten"))
		over := brief(t, m, XDC("left to its TTL"), 300*time.Millisecond)
		<-over.Lost()
	}()
	other := open(t, uri)
	eventually(t, "the forgotten lease released", func() bool {
		runtime.GC()
		lease, err := other.TryLock(t.Context(), XDC("forgotten"))
		return err == nil && lease.Release() == nil
	})
	eventually(t, "both said", func() bool {
		runtime.GC()
		said := log.String()
		return strings.Contains(said, "a lease was forgotten") && strings.Contains(said, "of=XDC#forgotten") &&
			strings.Contains(said, "a manager was forgotten")
	})
	if strings.Contains(log.String(), "left to its TTL") {
		t.Fatal("an expired lease must not be logged")
	}
}

// buffer is a text buffer that goroutines may share.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestTheVersionIsThatOfTheLibrary(t *testing.T) {
	if strings.Count(Version(), ".") != 2 {
		t.Fatal(Version())
	}
}

func BenchmarkLockPair(b *testing.B) {
	for _, of := range []struct {
		what    string
		context func() context.Context
	}{
		{"background", context.Background},
		{"cancellable", b.Context},
	} {
		b.Run(of.what, func(b *testing.B) {
			m := open(b, embedded(b))
			ctx := of.context()
			for b.Loop() {
				lease, err := m.Lock(ctx, XDC("bench"))
				if err != nil {
					b.Fatal(err)
				}
				if err := lease.Release(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	m := open(b, embedded(b))
	lease := lock(b, m, XDC("bench"))
	for b.Loop() {
		if err := lease.Check(); err != nil {
			b.Fatal(err)
		}
	}
	release(b, lease)
}

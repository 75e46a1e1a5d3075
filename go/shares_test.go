//go:build cgo

package dlm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// sit takes a place. It fails the test if there is none.
func sit(t *testing.T, s *shares, at region) *seat {
	t.Helper()
	seat, fate := s.take(t.Context(), at, 0)
	if seat == nil {
		t.Fatalf("no place in region %d: %v", at, fate)
	}
	// On a machine that stands still, it must not count as stuck.
	s.mu.Lock()
	defer s.mu.Unlock()
	seat.began = seat.began.Add(time.Hour)
	return seat
}

// standing asks for a place. It fails the test if there is one.
func standing(t *testing.T, s *shares, at region) {
	t.Helper()
	if seat, fate := s.take(t.Context(), at, 0); seat != nil || fate != crowded {
		t.Fatalf("a place in region %d: %v", at, fate)
	}
}

func TestNoRegionHasMoreThanAQuarterOfThePlaces(t *testing.T) {
	s := newShares(make(chan struct{}))
	var seats []*seat
	for range 4 {
		seats = append(seats, sit(t, s, 7))
	}
	standing(t, s, 7)
	for number := range 12 {
		seats = append(seats, sit(t, s, region(100+number)))
	}
	standing(t, s, 8)
	for _, seat := range seats {
		seat.give(nil)
	}
	sit(t, s, 7).give(nil)
	if s.underWay() != 0 {
		t.Fatal(s.underWay())
	}
}

func TestRegionsThatFailHaveNoMoreThanHalfOfThePlacesTogether(t *testing.T) {
	s := newShares(make(chan struct{}))
	for _, err := range []error{
		newError(CodeConnection, "planted"), newError(CodeRetriesExhausted, "planted"), newError(CodeInDoubt, "planted"),
	} {
		for at := range region(100) {
			sit(t, s, at).give(err)
			sit(t, s, at).give(invalid("it was not asked"))
		}
		var failing []*seat
		for at := range region(8) {
			failing = append(failing, sit(t, s, at))
		}
		standing(t, s, 99)
		served := sit(t, s, 200)

		// A region whose call was answered no longer fails, whatever the answer was.
		failing[0].give(refusal())
		again := sit(t, s, 0)
		sit(t, s, 99).give(nil)
		served.give(nil)
		for _, seat := range append(failing[1:], again) {
			seat.give(err)
		}
	}
}

func TestARegionWhoseCallIsStuckFailsUntilThatIsAnswered(t *testing.T) {
	s := newShares(make(chan struct{}))
	var stuck []*seat
	for at := range region(failingCalls) {
		seat := sit(t, s, at)
		seat.began = time.Now().Add(-stuckAfter - time.Millisecond)
		stuck = append(stuck, seat)
	}
	standing(t, s, 0)
	sit(t, s, 100).give(nil)
	stuck[0].give(nil)
	sit(t, s, 0).give(nil)
	if s.failed[0] {
		t.Fatal("the region still fails after an answer")
	}
}

func TestPlacesGoToThoseWhoCameFirstAndHaveRoom(t *testing.T) {
	s, seats := full(t, make(chan struct{}))
	var mu sync.Mutex
	var order []region
	var all sync.WaitGroup
	for number, at := range []region{0, 0, 50, 60} {
		all.Add(1)
		go func() {
			defer all.Done()
			seat, _ := s.take(context.Background(), at, time.Hour)
			mu.Lock()
			order = append(order, at)
			mu.Unlock()
			seat.give(nil)
		}()
		eventually(t, "waiting", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.waiting.Len() == number+1
		})
	}
	// Free a place of another region. Region 0 still has its quarter in use.
	seats[callsAtOnce-1].give(nil)
	eventually(t, "the places given", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(order) == 2
	})
	if order[0] != 50 || order[1] != 60 {
		t.Fatal(order)
	}
	for _, seat := range seats[:callsAtOnce-1] {
		seat.give(nil)
	}
	all.Wait()
	if s.underWay() != 0 || s.waiting.Len() != 0 {
		t.Fatal(s.underWay(), s.waiting.Len())
	}
}

// In any order of events, no place is lost and none is used twice.
func TestPlacesAreNotLostWhenWaitsEnd(t *testing.T) {
	s := newShares(make(chan struct{}))
	var atOnce, most atomic.Int32
	var all sync.WaitGroup
	for number := range 100 {
		all.Add(1)
		go func() {
			defer all.Done()
			for round := range 50 {
				seat, _ := s.take(t.Context(), region(number%6), time.Duration(round*number%300)*time.Microsecond)
				if seat == nil {
					continue
				}
				for now := atOnce.Add(1); ; {
					if before := most.Load(); now <= before || most.CompareAndSwap(before, now) {
						break
					}
				}
				time.Sleep(100 * time.Microsecond)
				atOnce.Add(-1)
				seat.give(nil)
			}
		}()
	}
	all.Wait()
	if most.Load() > callsAtOnce || s.underWay() != 0 || s.waiting.Len() != 0 {
		t.Fatal(most.Load(), s.underWay(), s.waiting.Len())
	}
}

// The Java library computed these bytes. The tests of src/names/lock_name.rs use the same ones.
func TestARegionIsTheFirstByteOfTheRow(t *testing.T) {
	for key, want := range map[string]region{
		"": 0x01, "a": 0x80, "XDC#CLIENT_ID#LOCK_ID": 0xd2, "DC#FA1#CLIENT_ID#LOCK_ID": 0xcb, "client_latch": 0xaf,
		"é": 0xf9, "日本語": 0xd9, "💥lock": 0x6e, "polygenelubricants": 0xc1, strings.Repeat("x", 1000): 0xff,
		"XDC#svc#order-42": 0xb3, "KWK-!-;": 0x00, "\xff\xff\xff\xff": 0x41,
	} {
		if got := regionOf(key); got != want {
			t.Errorf("%q: %#x is not %#x", key, got, want)
		}
	}
	for _, of := range []struct {
		uri     string
		options []Option
	}{
		{"memory:?client=CLIENT_ID&farm=FA1", nil},
		{"memory:?client=CLIENT%5FID&farm=%46A1&ttl=1s", nil},
		{"memory:", []Option{Client("CLIENT_ID"), Farm("FA1")}},
		{"memory:?client=another&farm=another", []Option{Client("CLIENT_ID"), Farm("another"), Farm("FA1")}},
	} {
		m := open(t, of.uri, of.options...)
		if m.identity.lockRegion(XDC("LOCK_ID")) != 0xd2 || m.identity.lockRegion(DC("LOCK_ID")) != 0xcb {
			t.Errorf("%s: %v", of.uri, m.identity)
		}
	}
	if (identity{client: "client"}).latchRegion(DC("latch")) != 0xaf {
		t.Error("the region of a latch is wrong")
	}
}

// A wait for a place must end even when the context never ends.
func TestACallWithoutAPlaceSaysSoWhenItsPatienceIsOver(t *testing.T) {
	patiently(t, 10*time.Second, saysThatThereIsNoPlace)
}

// saysThatThereIsNoPlace makes calls while others use all places until their timeout. It returns false if that was over
// too soon.
func saysThatThereIsNoPlace(t *testing.T, timeout time.Duration) bool {
	began := time.Now()
	m := open(t, silent(t), Timeout(timeout))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for number := range callsAtOnce {
		all.Add(1)
		go func() {
			defer all.Done()
			_, _ = m.Lock(ctx, XDC(fmt.Sprint(number)), Wait(Forever))
		}()
	}
	eventually(t, "all places taken", func() bool {
		return m.asking.underWay() == callsAtOnce || time.Since(began) > timeout
	})
	m.timeout = 100 * time.Millisecond // the library's own timeout is longer
	for what, call := range map[string]func() error{
		"Lock":       func() error { _, err := m.Lock(context.Background(), XDC("a"), Wait(Forever)); return err },
		"TryLock":    func() error { _, err := m.TryLock(context.Background(), XDC("a")); return err },
		"Initialize": func() error { return m.Initialize(context.Background()) },
	} {
		err := call()
		if time.Since(began) > timeout {
			return false
		}
		wants(t, err, ErrRetriesExhausted)
		if !strings.Contains(err.Error(), "no turn in 100ms: all 16 calls at once of this manager are in use") {
			t.Errorf("%s: %v", what, err)
		}
	}
	return true
}

// Renewals have their own places. A renewal that gets no place fails before the lease ends, or reports that it ended.
func TestARenewalWithoutAPlaceSaysWhetherTheLeaseIsOver(t *testing.T) {
	m := open(t, embedded(t))
	var seats []*seat
	for at := range region(callsAtOnce) {
		seats = append(seats, sit(t, m.holding, at))
	}
	long, short := lock(t, m, XDC("long")), brief(t, m, XDC("short"), 500*time.Millisecond)
	began := time.Now()
	wants(t, short.Renew(t.Context()), ErrLost)
	if waited := time.Since(began); waited > m.timeout/2 {
		t.Errorf("a renewal of a lease of 500 ms took %v", waited)
	}
	m.timeout = 50 * time.Millisecond
	err := long.Renew(t.Context())
	wants(t, err, ErrRetriesExhausted)
	if long.Check() != nil || errors.Is(err, ErrInDoubt) {
		t.Fatal(err, long.Check())
	}
	for _, seat := range seats {
		seat.give(nil)
	}
	release(t, long)
	_ = short.Release()
}

// gateway returns the address of the gateway of a real HBase. Without one it skips the test.
func gateway(t *testing.T) string {
	address := os.Getenv("DLM_TEST_HBASE_THRIFT")
	if address == "" {
		t.Skip("DLM_TEST_HBASE_THRIFT does not say where the gateway of an HBase listens")
	}
	return address
}

// deafTo starts a proxy that passes all requests on to a store, except requests that contain the mark. It never
// answers these, as if the region of their row had no server, and it counts them.
func deafTo(t *testing.T, mark, store string) (address string, swallowed *atomic.Int32, answers *answers) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	swallowed, answers = new(atomic.Int32), newAnswers()
	pass := func(client net.Conn) {
		defer client.Close()
		server, err := net.Dial("tcp", store)
		if err != nil {
			return
		}
		defer server.Close()
		defer answers.end(client)
		go func() {
			defer client.Close()
			buffer := make([]byte, 64<<10)
			for {
				count, err := server.Read(buffer)
				if err != nil {
					return
				}
				answers.end(client)
				if _, err := client.Write(buffer[:count]); err != nil {
					return
				}
			}
		}()
		buffer := make([]byte, 64<<10)
		for {
			count, err := client.Read(buffer)
			if err != nil {
				return
			}
			if bytes.Contains(buffer[:count], []byte(mark)) {
				swallowed.Add(1)
				_, _ = io.Copy(io.Discard, client) // until the client closes the connection
				return
			}
			answers.begin(client)
			if _, err := server.Write(buffer[:count]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go pass(client)
		}
	}()
	return listener.Addr().String(), swallowed, answers
}

// answers measures how long a store takes for its answers, also for those that have not come yet.
type answers struct {
	mu      sync.Mutex
	pending map[net.Conn]time.Time
	longest time.Duration
}

func newAnswers() *answers { return &answers{pending: map[net.Conn]time.Time{}} }

func (a *answers) begin(at net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pending[at] = time.Now()
}

func (a *answers) end(at net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if began, ok := a.pending[at]; ok {
		a.longest = max(a.longest, time.Since(began))
		delete(a.pending, at)
	}
}

// slowest returns the longest time since the last call.
func (a *answers) slowest() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	longest := a.longest
	for _, began := range a.pending {
		longest = max(longest, time.Since(began))
	}
	a.longest = 0
	return longest
}

// deadTimeout is how long a call to a dead region lasts.
const deadTimeout = 8 * time.Second

// A region has no server, and each call for a lock in it lasts until its timeout. Locks in other regions must not be
// delayed.
func TestADeadRegionLeavesTheOthersTheirPlaces(t *testing.T) {
	store := gateway(t)
	for _, of := range []struct {
		what string
		dead func(region) bool
		// warm is how long the dead regions may delay the others.
		warm time.Duration
	}{
		{"one region", func(at region) bool { return at == 17 }, 0},
		// Each dead region must fail once first.
		{"a server with a third of the regions", func(at region) bool { return at%3 == 0 }, 3 * deadTimeout},
	} {
		t.Run(of.what, func(t *testing.T) {
			t.Parallel()
			leavesPlaces(t, store, of.dead, of.warm)
		})
	}
}

func leavesPlaces(t *testing.T, store string, dead func(region) bool, warm time.Duration) {
	const crowd = 32
	table := fmt.Sprintf("goregions_%x_%x", time.Now().UnixNano(), os.Getpid())
	direct := open(t, "hbase+thrift://"+store+"/"+table+"?client=tests", Timeout(5*time.Minute))
	if err := direct.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxied, swallowed, answers := deafTo(t, "dead-", store)
	m := open(t, "hbase+thrift://"+proxied+"/"+table+"?client=tests&pool=64", Timeout(deadTimeout))
	in := func(prefix string, wanted func(region) bool, count int) (names []Name) {
		for number := 0; len(names) < count; number++ {
			if name := XDC(fmt.Sprint(prefix, number)); wanted(m.identity.lockRegion(name)) {
				names = append(names, name)
			}
		}
		return names
	}

	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, name := range in("dead-", dead, crowd) {
		all.Add(1)
		go func() {
			defer all.Done()
			for ctx.Err() == nil {
				lease, err := m.Lock(ctx, name, Wait(Forever))
				if err == nil {
					t.Errorf("%v was granted by a dead region: %v", name, lease.Fence())
					return
				}
				if !errors.Is(err, context.Canceled) && !errors.Is(err, ErrConnection) &&
					!errors.Is(err, ErrRetriesExhausted) && !errors.Is(err, ErrInDoubt) {
					t.Error(err)
				}
			}
		}()
	}
	defer all.Wait()
	defer cancel()
	eventually(t, "calls to the dead region", func() bool { return swallowed.Load() >= regionCalls })
	time.Sleep(warm)

	var slowest time.Duration
	rounds, skipped := 0, 0
	names := in("live-", func(at region) bool { return !dead(at) }, 30)
	for end := time.Now().Add(deadTimeout); time.Now().Before(end) || rounds == 0; {
		began := time.Now()
		answers.slowest()
		lease, err := m.Lock(t.Context(), names[(rounds+skipped)%len(names)], Wait(Forever))
		if err == nil {
			err = lease.Release()
		}
		// A store that itself takes long says nothing about the places. A call of a second counts as failing.
		if answers.slowest() > stuckAfter/2 {
			skipped++
			if skipped > 100 {
				t.Fatalf("the store is too slow: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		rounds++
		slowest = max(slowest, time.Since(began))
	}
	t.Logf("the slowest lock of a live region took %v in %d rounds; %d rounds were left out; %d requests went to dead regions",
		slowest, rounds, skipped, swallowed.Load())
	if slowest > deadTimeout {
		t.Errorf("a lock of a live region took %v", slowest)
	}
}

//go:build cgo

package dlm

import (
	"context"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// Manager acquires locks and counts latches in one store for one client id. Open one and share it: any number of
// goroutines may use it. Close it when it is no longer needed.
type Manager struct {
	handle  managerHandle
	logger  *slog.Logger
	ttl     time.Duration
	wait    time.Duration
	timeout time.Duration

	// identity computes the region of the store that a name is in.
	identity identity

	queue *queue
	// asking is for calls that acquire locks or use latches. holding is for calls that renew and release leases.
	// brief is for calls that do no I/O.
	asking, holding *shares
	brief           slots

	close   func() error
	cleanup runtime.Cleanup
}

// Stats holds current numbers about a manager, and counts of its store since it was opened.
type Stats struct {
	// LeasesHeld counts the leases acquired here that are not released, not found lost and not ended by Close. An
	// expired lease counts until a call notices that it has expired.
	LeasesHeld int
	// Waiting is the number of goroutines that wait for a lock.
	Waiting int
	// StaleNumbers counts the tries of an acquire that the store refused although the lock was free, because the lock's
	// last number was not below the number of the try: the clock of another machine is ahead. HBase with layout=own.
	StaleNumbers int
	// ReadsAfterRefusal counts the reads that were needed to find out who holds a lock after the store refused to
	// create its record. HBase and Aerospike.
	ReadsAfterRefusal int
	// FencesSeeded counts the grants of locks for which the store had no number, so that the clock gave the first one:
	// locks that were never used, or not for so long that their number expired. HBase with layout=own.
	FencesSeeded int
	// NoticesSent counts the notices that were sent. They may be lost on the way.
	NoticesSent int
	// NoticesUnsent counts the notices that could not be sent: their receiver has ended, or gets too many.
	NoticesUnsent int
	// NoticesIgnored counts the datagrams that quoted nothing of this manager, and were ignored.
	NoticesIgnored int
	// EarlyAsks counts how often a notice made a waiter ask the store earlier.
	EarlyAsks int
	// LeasesRetaken counts the leases of locks that had stayed with this process, so that the store was not asked: the
	// option linger.
	LeasesRetaken int
}

// Option is an option of a manager. Options override those in the store's URI.
type Option func(*settings)

type settings struct {
	list   []setting
	logger *slog.Logger
}

type setting struct{ key, value string }

func (s *settings) set(key, value string) { s.list = append(s.list, setting{key, value}) }

// Client sets the client id: the service that uses the locks, such as "order-service". It is part of every name. It
// is required, here or in the URI.
func Client(id string) Option { return Setting("client", id) }

// Farm sets the data centre, such as "dc1". It is part of the names that [DC] makes, and it selects the count of a
// latch that this manager changes.
func Farm(id string) Option { return Setting("farm", id) }

// Purpose sets a text that is shown to those who find a lock held. It has at most 255 bytes without control
// characters.
func Purpose(text string) Option { return Setting("purpose", text) }

// DefaultTTL sets how long a lease lasts unless it is renewed: 90 s unless set, 1 ms to 365 days.
func DefaultTTL(d time.Duration) Option { return duration("ttl", d) }

// DefaultWait sets how long [Manager.Lock] waits with a context that has no deadline. It is 90 s unless set.
func DefaultWait(d time.Duration) Option { return duration("wait", d) }

// Retry sets the interval at which a waiting process asks the store again, plus or minus a tenth: 1 s unless set,
// 1 ms to 1 h.
func Retry(d time.Duration) Option { return duration("retry", d) }

// Timeout sets how long one call to the store may take: 10 s unless set, 10 ms to 10 min.
func Timeout(d time.Duration) Option { return duration("timeout", d) }

// Setting sets any option of a store's URI by its key, for programs that read their settings from text. [Open]
// refuses keys that the store does not know.
func Setting(key, value string) Option { return func(s *settings) { s.set(key, value) } }

// Logger sets the logger for warnings about leases and managers that the program dropped without Release or Close.
// It is [slog.Default] unless set, and with nil. The library's own log is common to the process: see [SetLogger].
func Logger(logger *slog.Logger) Option { return func(s *settings) { s.logger = logger } }

func duration(key string, d time.Duration) Option {
	return Setting(key, strconv.FormatInt(millis(d), 10)+"ms")
}

// Open opens the store at uri: "memory:", "embedded:", "embedded:/path",
// "hbase://master1:16000,master2:16000/table", "hbase+thrift://host:9090/table" or
// "aerospike://host:3000/namespace/setSuffix", with options as "?key=value&key=value".
//
// "embedded:" is the directory /var/tmp/dlm-<effective uid>, in any environment. It is refused in a systemd unit
// with PrivateTmp=. "embedded:/path?group=on" serves the users of the directory's group. A member of the group
// can end the other members' processes by SIGBUS, so they must trust each other.
//
// Open creates nothing in the store: see [Manager.Initialize]. Opening an embedded store takes milliseconds, and at
// most about half a minute while other threads and processes open it. The other stores are first contacted by the
// first call that needs them.
//
// It fails with [ErrInvalid] before any I/O; after that with [ErrConnection] or [ErrInternal], and with
// [ErrRetriesExhausted] when the setting strict is true and the store is not safe for locks. That check blocks for
// several store time-outs at worst.
func Open(uri string, options ...Option) (*Manager, error) {
	settings := settings{logger: slog.Default()}
	for _, option := range options {
		if option == nil {
			return nil, invalid("a nil Option is not allowed: leave it out")
		}
		option(&settings)
	}
	if settings.logger == nil {
		settings.logger = slog.Default()
	}
	handle, err := openManager(uri, settings.list)
	if err != nil {
		return nil, err
	}
	closed, over := make(chan struct{}), make(chan struct{})
	brief := newSlots(closed)
	m := &Manager{
		handle: handle, logger: settings.logger, queue: newQueue(closed, over, brief),
		identity: identityOf(uri, settings.list),
		asking:   newShares(closed), holding: newShares(closed), brief: brief,
	}
	var retry time.Duration
	for key, to := range map[string]*time.Duration{
		"ttl": &m.ttl, "wait": &m.wait, "timeout": &m.timeout, "retry": &retry,
	} {
		if *to, err = managerSetting(handle, key); err != nil {
			_ = closeManager(handle)
			return nil, err
		}
	}
	m.queue.retry = retry
	m.close = sync.OnceValue(func() error {
		close(closed)
		defer close(over)
		return closeManager(handle)
	})
	what := leak{logger: m.logger, what: "a manager was forgotten and is closed now", about: uri}
	what.free = func() {
		close(closed) // nobody can call m.close any more
		_ = closeManager(handle)
		close(over)
	}
	m.cleanup = runtime.AddCleanup(m, forgotten, what)
	return m, nil
}

// Reach checks that the store answers, and changes nothing. It is for programs that should say at their start that their
// store is missing, instead of at their first lock. It blocks for the store time-out at most, and for about a second longer
// while it finds out what is at the address. If ctx ends first, the check goes on without the caller.
//
// A store that has not answered this manager before fails within a second if nothing listens at its address, if no such
// host exists, or if another service answers there. The error says what was found.
//
// It fails with [ErrConnection], [ErrRetriesExhausted], [ErrClosed], and the error that ended ctx.
func (m *Manager) Reach(ctx context.Context) error {
	question := question{m.asking, everywhere, m.timeout, "reaching the store"}
	return m.do(ctx, question, func() error { return reachStore(m.handle) })
}

// Initialize creates what is missing in the store (the table) and checks that the store answers. It is safe to
// repeat, and to call in many processes at once. It blocks for up to a minute while it creates a table. If ctx ends
// first, the creation continues.
//
// It fails with [ErrTableCreation], [ErrConnection], [ErrRetriesExhausted], [ErrClosed], and the error that ended
// ctx.
func (m *Manager) Initialize(ctx context.Context) error {
	question := question{m.asking, everywhere, m.timeout, "initializing the store"}
	return m.do(ctx, question, func() error { return initializeManager(m.handle) })
}

// InitializeLatches creates what latches need in the store (a table) and checks that the store answers, as
// [Manager.Initialize] does for locks. Without it, the first latch creates it. It also fails with [ErrInvalid] when the
// store keeps locks only.
func (m *Manager) InitializeLatches(ctx context.Context) error {
	question := question{m.asking, everywhere, m.timeout, "initializing the store for latches"}
	return m.do(ctx, question, func() error { return initializeLatches(m.handle) })
}

// Stats returns current numbers about the manager, for example for a program's gauges.
func (m *Manager) Stats() Stats {
	defer runtime.KeepAlive(m)
	stats, _ := readStats(m.handle) // fails if the manager is closed
	return stats
}

// MetricsText returns a page of metrics in Prometheus' text format, version 0.0.4: what has happened to the manager's locks
// since the first call of this method, by class, and its calls to the store. So call it once at the start. The page
// docs/metrics.md has the names, and a handler for net/http.
func (m *Manager) MetricsText() (string, error) {
	defer runtime.KeepAlive(m)
	return metricsText(m.handle)
}

// Store returns the URI of the store, without credentials, or "" when the manager is closed.
func (m *Manager) Store() string {
	defer runtime.KeepAlive(m)
	return storeOf(m.handle)
}

// Diagnose checks whether the store is safe for locks, as `dlm doctor` does. It returns a line for each finding, which
// begins with OK, WARN or FAIL, and false when one of them is a failure. It blocks for up to a few store time-outs, and
// acquires and releases one lock of its own. A store that does not answer is a finding.
//
// It fails with [ErrClosed] and with the error that ended ctx.
func (m *Manager) Diagnose(ctx context.Context) (findings []string, isSafe bool, err error) {
	question := question{m.asking, everywhere, m.timeout, "diagnosing the store"}
	type answer struct {
		findings []string
		isSafe   bool
	}
	got, err := answerTo(ctx, question, false, func() (answer, error) {
		defer runtime.KeepAlive(m)
		findings, isSafe, err := diagnoseStore(m.handle)
		return answer{findings, isSafe}, err
	})
	return got.findings, got.isSafe, err
}

// Close ends the manager: waiting calls return [ErrClosed], held leases are released, and the library's threads end.
// All leases of the manager have then ended. Closing twice does nothing more.
//
// Close blocks for up to one store time-out for the releases, another one if a renewal, a read of latches or a
// request for a lock is under way, and a few seconds for the threads. It returns the error of the first release that failed. It tries the other
// releases all the same. A lock that was not released is free when its TTL ends.
func (m *Manager) Close() error {
	if err := m.made(); err != nil {
		return err
	}
	m.cleanup.Stop()
	return m.close()
}

// made returns an error for the zero value.
func (m *Manager) made() error {
	if m == nil || m.handle == nil {
		return unmade("Manager", "Open")
	}
	return nil
}

func (m *Manager) closed() bool { return m.asking.over() }

// do runs a call that changes something and cannot be undone.
func (m *Manager) do(ctx context.Context, question question, run func() error) error {
	_, err := answerTo(ctx, question, true, func() (struct{}, error) {
		defer runtime.KeepAlive(m)
		return struct{}{}, run()
	})
	return err
}

// leak describes an object that the program dropped. It must not refer to that object, which could then never be
// collected.
type leak struct {
	logger      *slog.Logger
	what, about string
	free        func()
}

// forgotten is called by the garbage collector and must not block.
func forgotten(leak leak) {
	go func() {
		defer leak.free()
		guarded(func() { leak.logger.Warn("dlm: "+leak.what, "of", leak.about) })
	}()
}

// guarded runs a log handler in a goroutine of this package. A handler that panics must not end the program from there.
func guarded(handler func()) {
	defer func() { _ = recover() }()
	handler()
}

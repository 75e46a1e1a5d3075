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

// Manager takes locks and counts latches in one store for one client id. Make one and share it: any number
// of goroutines may use it. It is to be closed.
type Manager struct {
	handle  managerHandle
	logger  *slog.Logger
	ttl     time.Duration
	wait    time.Duration
	timeout time.Duration

	// identity tells which region of the store a name is in.
	identity identity

	queue *queue
	// asking is for calls of those who want something, holding for those who have it; brief is for those that
	// ask no store.
	asking, holding *shares
	brief           slots

	close   func() error
	cleanup runtime.Cleanup
}

// Stats are numbers about a manager, right now.
type Stats struct {
	// LeasesHeld counts the leases acquired here and not released, lost or ended by Close. Those whose time
	// is over count until that is noticed by a call.
	LeasesHeld int
	// Waiting counts the goroutines that wait for a lock.
	Waiting int
}

// Option of a manager. Options win over those in the store's URI.
type Option func(*settings)

type settings struct {
	list   []setting
	logger *slog.Logger
}

type setting struct{ key, value string }

func (s *settings) set(key, value string) { s.list = append(s.list, setting{key, value}) }

// Client is the service that uses the locks, such as "order-service": part of every name. It is required,
// here or in the URI.
func Client(id string) Option { return Setting("client", id) }

// Farm is the data centre, such as "dc1": part of the names that [DC] makes, and whose count of a latch is
// one's own.
func Farm(id string) Option { return Setting("farm", id) }

// Purpose is shown to those who find a lock held. At most 255 bytes.
func Purpose(text string) Option { return Setting("purpose", text) }

// DefaultTTL is how long a lease lasts unless renewed. It is 90 s unless set; 1 ms to 365 days.
func DefaultTTL(d time.Duration) Option { return duration("ttl", d) }

// DefaultWait is how long [Manager.Lock] waits with a context that has no deadline. It is 90 s unless set.
func DefaultWait(d time.Duration) Option { return duration("wait", d) }

// Retry is how soon a waiting process looks again at a lock, give or take a tenth. It is 1 s unless set;
// 1 ms to 1 h.
func Retry(d time.Duration) Option { return duration("retry", d) }

// Timeout is how long one call to the store may take. It is 10 s unless set; 10 ms to 10 min.
func Timeout(d time.Duration) Option { return duration("timeout", d) }

// Setting is any option of a store's URI by its key, for programs that read their settings from text. Keys
// that the store does not know are refused by [Open].
func Setting(key, value string) Option { return func(s *settings) { s.set(key, value) } }

// Logger is told of leases and managers that were forgotten: dropped without Release or Close. It is
// [slog.Default] unless set. The library's own log is that of the process: see [SetLogger].
func Logger(logger *slog.Logger) Option { return func(s *settings) { s.logger = logger } }

func duration(key string, d time.Duration) Option {
	return Setting(key, strconv.FormatInt(millis(d), 10)+"ms")
}

// Open opens the store at uri: "memory:", "embedded:", "embedded:/path",
// "hbase://master1:16000,master2:16000/table", "hbase+thrift://host:9090/table" or
// "aerospike://host:3000/namespace/setSuffix", with options as "?key=value&key=value".
//
// "embedded:" is the directory /var/tmp/dlm-<effective uid>, whatever the environment says, and it is refused
// in a systemd unit with PrivateTmp=. "embedded:/path?group=on" serves the users of the directory's group: a
// member can end the other members' processes by SIGBUS, so they must trust each other.
//
// It creates nothing in the store: see [Manager.Initialize]. It blocks while an embedded store is opened,
// for milliseconds; the others are first asked by the first call that needs it.
//
// It fails with [ErrInvalid] before any I/O; then with [ErrConnection] or [ErrInternal].
func Open(uri string, options ...Option) (*Manager, error) {
	settings := settings{logger: slog.Default()}
	for _, option := range options {
		option(&settings)
	}
	handle, err := openManager(uri, settings.list)
	if err != nil {
		return nil, err
	}
	closed := make(chan struct{})
	m := &Manager{
		handle: handle, logger: settings.logger, queue: new(queue),
		identity: identityOf(uri, settings.list),
		asking:   newShares(closed), holding: newShares(closed), brief: newSlots(closed),
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
	queue := m.queue
	m.close = sync.OnceValue(func() error {
		close(closed)
		queue.close()
		return closeManager(handle)
	})
	what := leak{logger: m.logger, what: "a manager was forgotten and is closed now", about: uri}
	what.free = func() { _ = closeManager(handle) }
	m.cleanup = runtime.AddCleanup(m, forgotten, what)
	return m, nil
}

// Initialize creates what is missing in the store (the table), and checks that the store answers. It may be
// repeated, and called in many processes at once. It blocks, for up to a minute where a table is made; if
// ctx ends first, that goes on.
//
// It fails with [ErrTableCreation], [ErrConnection], [ErrRetriesExhausted], [ErrClosed], and with what
// ended ctx.
func (m *Manager) Initialize(ctx context.Context) error {
	question := question{m.asking, everywhere, m.timeout, "initializing the store"}
	return m.do(ctx, question, func() error { return initializeManager(m.handle) })
}

// Stats returns numbers about the manager, for a program's own gauges.
func (m *Manager) Stats() Stats {
	defer runtime.KeepAlive(m)
	held, err := leasesHeld(m.handle)
	if err != nil {
		held = 0 // closed
	}
	return Stats{LeasesHeld: held, Waiting: m.queue.waiting()}
}

// Close ends the manager: whoever waits returns [ErrClosed], held leases are released, and the library's
// threads end. Its leases are over from then on. Closing twice does nothing more.
//
// It blocks for up to one store time-out for the releases, another where a renewal is under way, and a few
// seconds for the threads. It fails with that of the first release that failed; that lock is free when its
// TTL ends, and the others were tried all the same.
func (m *Manager) Close() error {
	m.cleanup.Stop()
	return m.close()
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

// leak is what is left of something that was forgotten. It must not lead to that thing.
type leak struct {
	logger      *slog.Logger
	what, about string
	free        func()
}

// forgotten is called by the garbage collector, which must not be held up.
func forgotten(leak leak) {
	go func() {
		leak.logger.Warn("dlm: "+leak.what, "of", leak.about)
		leak.free()
	}()
}

//go:build cgo

package dlm

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// complaint returns a function that makes the library log a warning in the calling thread, about a freed handle.
func complaint(t *testing.T) (complain func()) {
	m, err := Open("memory:?client=tests")
	if err != nil {
		t.Fatal(err)
	}
	freed := lock(t, m, XDC("freed"))
	release(t, freed)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return func() { freeLease(freed.handle) }
}

// loggingTo sets the logger of the library's log during one test.
func loggingTo(t *testing.T, level slog.Level, out io.Writer) {
	SetLogger(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})))
	t.Cleanup(func() {
		libraryLog.mu.Lock()
		defer libraryLog.mu.Unlock()
		stopLog()
		libraryLog.given = nil
		startLog(newLogTarget(slog.Default))
	})
}

// patient makes Close wait for the last line on a slow machine too.
func patient(t *testing.T) {
	before := logPatience
	logPatience = time.Minute
	t.Cleanup(func() { logPatience = before })
}

// nobody returns an address on which no server listens.
func nobody(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestWhatTheLibraryLogsReachesTheLogger(t *testing.T) {
	complain := complaint(t)
	var log buffer
	loggingTo(t, slog.LevelDebug, &log)
	complain()
	m := open(t, "hbase+thrift://"+nobody(t)+"/locks?client=tests&farm=dc1", Timeout(time.Second))
	if log.String() != "" {
		t.Fatal("before a manager was opened: ", log.String())
	}
	complain()
	eventually(t, "the warning of a call", func() bool {
		return strings.Contains(log.String(), `level=WARN msg="dlm: `) && strings.Contains(log.String(), "nothing was freed")
	})

	// A thread of the library logs too.
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() { waited <- m.Latch(DC("a"), CountDown).Wait(ctx) }()
	eventually(t, "the warning of a thread of the library", func() bool {
		return strings.Contains(log.String(), `level=WARN msg="dlm: latches are read again later: `)
	})
	cancel()
	wants(t, <-waited, context.Canceled)
}

func TestTheLastCloseHandsTheLastLineOver(t *testing.T) {
	complain := complaint(t)
	patient(t)
	// Threads of managers of earlier tests may log as well, so only complaints are counted.
	complaints := func(log *buffer) int { return strings.Count(log.String(), "nothing was freed") }
	for range 20 {
		var log buffer
		loggingTo(t, slog.LevelWarn, &log)
		first, second := open(t, embedded(t)), open(t, embedded(t))
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		const lines = 50
		for range lines {
			complain()
		}
		if err := second.Close(); err != nil {
			t.Fatal(err)
		}
		if said := complaints(&log); said != lines {
			t.Fatalf("%d lines of %d", said, lines)
		}
		complain()
		if said := complaints(&log); said != lines {
			t.Fatal("lines are passed on although no manager is open")
		}
	}
	// The pipe is closed when its goroutine ends.
	files := descriptorsWithoutCollector(t)
	for range 50 {
		loggingTo(t, slog.LevelWarn, io.Discard)
		m := open(t, "memory:?client=tests")
		SetLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
		_ = m.Close()
	}
	if now := descriptors(t); now > files {
		t.Fatalf("%d descriptors, there were %d before", now, files)
	}
}

func TestTheLoggerIsTheProgramsDefaultUnlessSet(t *testing.T) {
	complain := complaint(t)
	patient(t)
	var log buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	m := open(t, embedded(t))
	complain()
	eventually(t, "the warning", func() bool { return strings.Contains(log.String(), "nothing was freed") })
	// The default logger is looked up for each line.
	var later buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&later, nil)))
	complain()
	eventually(t, "the warning", func() bool { return strings.Contains(later.String(), "nothing was freed") })

	said := log.String() + later.String()
	loggingTo(t, slog.LevelError, &log)
	complain()
	SetLogger(nil)
	complain()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if now := log.String() + later.String(); now != said {
		t.Fatal("a warning was logged although the logger is for errors or off: ", now)
	}
}

// blocked is a writer that blocks until its gate is closed.
type blocked struct {
	buffer
	gate chan struct{}
}

func (b *blocked) Write(text []byte) (int, error) {
	<-b.gate
	return b.buffer.Write(text)
}

// A handler that hangs must block neither the thread that logs nor Close.
func TestAHandlerThatHangsKeepsNobodyWaiting(t *testing.T) {
	complain := complaint(t)
	const lines = 5000
	log := &blocked{gate: make(chan struct{})}
	loggingTo(t, slog.LevelWarn, log)
	m := open(t, embedded(t))
	var all sync.WaitGroup
	for range 10 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range lines / 10 {
				complain()
			}
		}()
	}
	all.Wait()
	release(t, lock(t, m, XDC("a")))
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	close(log.gate)
	count := func() (said, dropped int) {
		said = strings.Count(log.String(), "nothing was freed")
		for _, found := range regexp.MustCompile(`dlm: (\d+) lines of the library's log were dropped`).
			FindAllStringSubmatch(log.String(), -1) {
			number, _ := strconv.Atoi(found[1])
			dropped += number
		}
		return said, dropped
	}
	eventually(t, "all lines logged or counted", func() bool {
		// Threads of managers of earlier tests may log as well, and their lines may be dropped.
		said, dropped := count()
		return said+dropped >= lines
	})
	said, dropped := count()
	t.Logf("%d lines were logged and %d dropped", said, dropped)
	if said < 100 || dropped < 100 {
		t.Fatal(said, dropped)
	}
}

// calling is a handler that runs a function each time that it is asked whether a level is enabled.
type calling struct {
	slog.Handler
	run func()
}

func (c calling) Enabled(context.Context, slog.Level) bool {
	c.run()
	return true
}

// A handler may call this package, and the called function may replace the handler.
func TestAHandlerMayCallThePackage(t *testing.T) {
	complain := complaint(t)
	m := open(t, embedded(t))
	called := make(chan struct{})
	once := sync.OnceFunc(func() { close(called) })
	loggingTo(t, slog.LevelWarn, writer(func(text []byte) {
		SetLogger(nil)
		other, err := Open("memory:?client=tests")
		if err == nil {
			err = other.Close()
		}
		if err != nil {
			t.Error(err)
		}
		once()
	}))
	complain()
	select {
	case <-called:
	case <-time.After(30 * time.Second):
		t.Fatal("it hangs")
	}
	_ = m.Close()

	set := make(chan struct{})
	go func() {
		defer close(set)
		SetLogger(slog.New(calling{slog.Default().Handler(), func() { SetLogger(nil) }}))
	}()
	select {
	case <-set:
	case <-time.After(30 * time.Second):
		t.Fatal("it hangs in Enabled")
	}
}

type writer func(text []byte)

func (w writer) Write(text []byte) (int, error) {
	w(text)
	return len(text), nil
}

// Loggers are set while managers are opened and closed. The logger that was set last receives the lines.
func TestTheLogSurvivesChangesAtOneTime(t *testing.T) {
	complain := complaint(t)
	patient(t)
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 50 {
				loggingTo(t, slog.LevelWarn, io.Discard)
				m, err := Open("memory:?client=tests")
				if err != nil {
					t.Error(err)
					return
				}
				complain()
				_ = m.Close()
			}
		}()
	}
	all.Wait()
	var log buffer
	loggingTo(t, slog.LevelWarn, &log)
	m := open(t, embedded(t))
	complain()
	_ = m.Close()
	if strings.Count(log.String(), "nothing was freed") != 1 {
		t.Fatal(log.String())
	}
	libraryLog.mu.Lock()
	defer libraryLog.mu.Unlock()
	if libraryLog.stop != nil && libraryLog.managers == 0 {
		t.Fatal("the log runs without a manager")
	}
}

// A line that is longer than one atomic write to a pipe is truncated.
func TestALongLineIsCut(t *testing.T) {
	var log buffer
	loggingTo(t, slog.LevelWarn, &log)
	first := nobody(t)
	masters := first
	for host := range 400 {
		masters += fmt.Sprintf(",127.1.%d.%d:%s", host/200, host%200+1, strings.TrimPrefix(first, "127.0.0.1:"))
	}
	m := open(t, "hbase://"+masters+"/locks?client=tests&farm=dc1", Timeout(time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() { waited <- m.Latch(DC("a"), CountDown).Wait(ctx) }()
	// Threads that managers of earlier tests have left may log as well.
	var line string
	eventually(t, "a line about the masters", func() bool {
		for _, found := range strings.SplitAfter(log.String(), "\n") {
			if strings.HasSuffix(found, "\n") && strings.Contains(found, "127.0.0.1:") {
				line = strings.TrimSuffix(found, "\n")
				return true
			}
		}
		return false
	})
	cancel()
	<-waited
	_, quoted, _ := strings.Cut(line, "msg=")
	text, err := strconv.Unquote(quoted)
	if err != nil {
		t.Fatal(err, line)
	}
	if text := strings.TrimPrefix(text, "dlm: "); len(text) != 4096-8 || !strings.HasSuffix(text, "...") {
		t.Fatal(len(text), line)
	}
}

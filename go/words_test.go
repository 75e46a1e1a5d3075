//go:build cgo

package dlm

import (
	"context"
	"errors"
	"iter"
	"math"
	"reflect"
	"regexp"
	"testing"
	"time"
)

// ofC matches what only a program in C or Rust calls so.
var ofC = regexp.MustCompile(`dlm_[a-z]|DLM_|[a-z]_(ms|out)\b|sizeof|NULL|[a-z]::|\(\)`)

func inWordsOfGo(t *testing.T, name string, err error) {
	t.Helper()
	var of *Error
	if errors.As(err, &of) && ofC.MatchString(of.Message) {
		t.Errorf("%s: %v", name, err)
	}
}

// callAll calls all methods of the values with zero arguments. None may answer in words of C.
func callAll(t *testing.T, values []any, except ...string) {
	t.Helper()
	for _, value := range values {
	methods:
		for at := range reflect.TypeOf(value).NumMethod() {
			method := reflect.TypeOf(value).Method(at)
			for _, left := range append(except, "Context") {
				if method.Name == left {
					continue methods
				}
			}
			results, panicked := callZero(t, value, method, false)
			if panicked != nil {
				t.Errorf("%T.%s panics: %v", value, method.Name, panicked)
			}
			if len(results) == 0 {
				continue
			}
			switch result := results[len(results)-1].Interface().(type) {
			case error:
				inWordsOfGo(t, method.Name, result)
			case iter.Seq2[ListedLock, error]:
				for _, err := range result {
					inWordsOfGo(t, method.Name, err)
				}
			}
		}
	}
}

func TestErrorsHaveNoNamesOfC(t *testing.T) {
	ctx := context.Background()
	m := open(t, "memory:", Client("words"), Farm("dc1"), DefaultWait(time.Millisecond))
	odd := func() []any {
		seen := must(m.See(ctx, DC("free")))
		latches := []any{m.Latch(Name{}, CountDown), m.Latch(DC("l"), LatchKind(77)), m.Latch(DC("l"), 0), m.Latch(DC(""), CountDown).WithTTL(0)}
		return append(latches, m, seen, m.Election(Name{}), m.Election(DC("\xff")))
	}()
	lease := lock(t, m, DC("held"))
	set := must(m.LockAll(ctx, []Name{DC("a"), DC("b")}))
	made := append(odd, lease, set, lock(t, m, DC("read"), InMode(Update)), must(m.Semaphore(DC("s"), 3)))
	callAll(t, made, "Close", "Wait", "Release", "IntoToken", "Lost", "AtRisk")
	for _, d := range []time.Duration{math.MinInt64, -1, 0, 1, math.MaxInt64 - 1, Forever} {
		_, err := m.TryLock(ctx, DC("b"), TTL(d))
		inWordsOfGo(t, "TTL", err)
		_, err = m.Lock(ctx, DC("c"), Wait(min(d, time.Millisecond)), TTL(d))
		inWordsOfGo(t, "Wait", err)
		for _, err := range []error{
			lease.RenewFor(ctx, d), lease.KeepAlive(d), lease.HoldAtLeast(d), set.KeepAlive(d),
			m.Latch(DC("l"), CountDown).WithTTL(d).Create(ctx, -1), m.Latch(DC("l"), CountDown).Create(ctx, math.MaxInt64),
		} {
			inWordsOfGo(t, d.String(), err)
		}
		for _, option := range []Option{DefaultTTL(d), DefaultWait(d), Retry(d), Timeout(d), Setting("background_threads", d.String())} {
			opened, err := Open("memory:", Client("words"), option)
			inWordsOfGo(t, "Open", err)
			if err == nil {
				_ = opened.Close()
			}
		}
	}
	for _, uri := range []string{"", "memory:", "nowhere:", "\x00", "\xff", "memory:?client=%00", "hbase://h", "memory:?key=1"} {
		_, err := Open(uri)
		inWordsOfGo(t, uri, err)
		_, err = OpenTable(uri)
		inWordsOfGo(t, uri, err)
	}
	if table, err := OpenTable("hbase://127.0.0.1:1/t?family=d&timeout=50ms"); err == nil {
		row := table.Row("r")
		inWordsOfGo(t, "PutFor", row.Put(ctx, new(Cells).PutFor("d:a", nil, 0)))
		inWordsOfGo(t, "PutFor", row.Put(ctx, new(Cells).Put("", nil)))
		table.Close()
		callAll(t, []any{table, row}, "Close")
	}

	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	callAll(t, made)
	_, err := m.Adopt(DC("held"), "dlm2.")
	inWordsOfGo(t, "Adopt", err)
}

// A code is shown by the name that the other languages and the documentation use.
func TestCodesHaveTheNamesOfTheOtherLanguages(t *testing.T) {
	for code, name := range map[Code]string{
		0: "OK", CodeLocked: "LOCK_UNAVAILABLE", CodeStaleFence: "STALE_FENCE", 99: "UNKNOWN", -1: "UNKNOWN",
		Code(math.MaxInt32) + 2: "UNKNOWN", Code(math.MaxInt32)*2 + 3: "UNKNOWN",
	} {
		if code.String() != name {
			t.Errorf("%d: %v", int(code), code)
		}
	}
}

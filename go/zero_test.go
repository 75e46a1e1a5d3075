//go:build cgo

package dlm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
)

// zeroValues are pointers to zero values of all exported types with methods that call the library.
func zeroValues() []any {
	return []any{
		new(Manager), new(Lease), new(LeaseSet), new(Latch), new(Election), new(Seen), new(Table), new(Row), new(Semaphore),
	}
}

// callZero calls a method of the value with zero arguments, and returns what it returns or panics with. A context is
// context.Background() unless withoutContext.
func callZero(t *testing.T, value any, method reflect.Method, withoutContext bool) (results []reflect.Value, panicked any) {
	t.Helper()
	arguments := []reflect.Value{reflect.ValueOf(value)}
	for at := 1; at < method.Type.NumIn(); at++ {
		if method.Type.IsVariadic() && at == method.Type.NumIn()-1 {
			break
		}
		argument := reflect.Zero(method.Type.In(at))
		if method.Type.In(at) == reflect.TypeFor[context.Context]() && !withoutContext {
			argument = reflect.ValueOf(context.Background())
		}
		arguments = append(arguments, argument)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		results = method.Func.Call(arguments)
	}()
	select {
	case <-done:
	case <-time.After(long):
		t.Fatalf("%T.%s hangs", value, method.Name)
	}
	return results, panicked
}

func TestCallsOfZeroValuesAreRefused(t *testing.T) {
	for _, zero := range zeroValues() {
		kind := reflect.TypeOf(zero)
		for at := range kind.NumMethod() {
			method := kind.Method(at)
			name := fmt.Sprintf("%T.%s", zero, method.Name)
			if name == "*dlm.Lease.Context" {
				continue // its context must not be nil, as those of package context
			}
			results, panicked := callZero(t, zero, method, false)
			if panicked != nil {
				t.Errorf("%s panics: %v", name, panicked)
				continue
			}
			if len(results) == 0 {
				continue
			}
			switch result := results[len(results)-1].Interface().(type) {
			case error:
				if !errors.Is(result, ErrInvalid) {
					t.Errorf("%s: %v", name, result)
				}
			case <-chan struct{}:
				<-result
			case iter.Seq2[ListedLock, error]:
				for _, err := range result {
					if !errors.Is(err, ErrInvalid) {
						t.Errorf("%s: %v", name, err)
					}
				}
			case nil:
				t.Errorf("%s succeeds", name)
			}
		}
	}
	ctx, cancel := new(Lease).Context(context.Background())
	defer cancel()
	if !errors.Is(context.Cause(ctx), ErrInvalid) {
		t.Errorf("the context of no lease ends with %v", context.Cause(ctx))
	}
}

// Only in the goroutine of the caller.
func TestCallsOfNilPointersEndAtOnce(t *testing.T) {
	for _, zero := range zeroValues() {
		none := reflect.Zero(reflect.TypeOf(zero))
		for at := range none.Type().NumMethod() {
			callZero(t, none.Interface(), none.Type().Method(at), false)
		}
	}
}

func TestANilContextOrFunctionOrOptionIsRefused(t *testing.T) {
	m := open(t, "memory:", Client("zero"), Farm("dc1"))
	lease := lock(t, m, DC("held"))
	defer release(t, lease)
	set := must(m.LockAll(context.Background(), []Name{DC("a")}))
	defer func() { _ = set.Release() }()
	seen := must(m.See(context.Background(), DC("held")))
	for _, made := range []any{m, lease, set, m.Latch(DC("l"), CountDown), m.Election(DC("e")), seen} {
		kind := reflect.TypeOf(made)
		for at := range kind.NumMethod() {
			method := kind.Method(at)
			takesContext := method.Type.NumIn() > 1 && method.Type.In(1) == reflect.TypeFor[context.Context]()
			if !takesContext || method.Name == "Context" {
				continue
			}
			results, panicked := callZero(t, made, method, true)
			if panicked != nil {
				t.Errorf("%T.%s panics: %v", made, method.Name, panicked)
				continue
			}
			if err, _ := results[len(results)-1].Interface().(error); err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("%T.%s: %v", made, method.Name, err)
			}
		}
	}
	ctx, election := context.Background(), m.Election(DC("e"))
	_, asOption := Open("memory:", Client("zero"), nil)
	_, asLockOption := m.Lock(ctx, DC("a"), nil)
	_, asTable := lease.Row(nil, "row")
	_, asZeroTable := lease.Row(new(Table), "row")
	for _, err := range []error{
		asOption, asLockOption, asTable, asZeroTable, election.Lead(ctx, nil), election.Observe(ctx, nil),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	}
	// No call has kept a place.
	for range 2 * callsAtOnce {
		if _, err := m.Inspect(ctx, DC("held")); err != nil {
			t.Fatal(err)
		}
	}
}

// panicking is a log handler with a mistake.
type panicking struct{ slog.Handler }

func (panicking) Handle(context.Context, slog.Record) error { panic("a mistake in a handler") }

func TestALoggerThatIsNilOrPanicsEndsNoProgram(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	told := new(buffer)
	slog.SetDefault(slog.New(slog.NewTextHandler(told, nil)))
	broken := slog.New(panicking{slog.NewTextHandler(io.Discard, nil)})
	for _, logger := range []*slog.Logger{nil, new(slog.Logger), broken} {
		m := open(t, "memory:", Client("zero"), Farm("dc1"), Logger(logger))
		forgetLease(t, m, DC("forgotten"))
		eventually(t, "the release of the forgotten lease", func() bool {
			runtime.GC()
			return must(m.Inspect(context.Background(), DC("forgotten"))).Holder == nil
		})
	}
	if !strings.Contains(told.String(), "a lease was forgotten") {
		t.Error("with a nil logger, the default logger was not told")
	}
}

//go:noinline
func forgetLease(t *testing.T, m *Manager, name Name) {
	t.Helper()
	_ = lock(t, m, name)
}

func must[T any](got T, err error) T {
	if err != nil {
		panic(err)
	}
	return got
}

//go:build cgo

package dlm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// rowsURI returns the URI of a table that no other test uses. Its timeout is long enough for a busy machine.
func rowsURI(t testing.TB) string {
	t.Helper()
	address := os.Getenv("DLM_TEST_HBASE_MASTER")
	if address == "" {
		t.Skip("DLM_TEST_HBASE_MASTER does not say where the master of an HBase listens")
	}
	return fmt.Sprintf("hbase://%s/go_rows_%x_%x?family=d&timeout=1m", address, time.Now().UnixNano(), os.Getpid())
}

func openRows(t testing.TB, uri string) *Table {
	t.Helper()
	table, err := OpenTable(uri)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	return table
}

func newRows(t testing.TB) (*Table, string) {
	t.Helper()
	uri := rowsURI(t)
	table := openRows(t, uri)
	families := []Family{{Name: "d"}, {Name: "e", Versions: 2}}
	for range 2 {
		if err := table.CreateIfMissing(t.Context(), families, "m"); err != nil {
			t.Fatal(err)
		}
	}
	return table, uri
}

// is returns a function that fails the test unless a call succeeded with this result.
func is[T comparable](t testing.TB, want T) func(got T, err error) {
	t.Helper()
	return func(got T, err error) {
		t.Helper()
		if err != nil || got != want {
			t.Fatalf("%v, %v instead of %v", got, err, want)
		}
	}
}

func put(column, value string) *Cells { return new(Cells).Put(column, []byte(value)) }

func value(t testing.TB, row *Row, column string) string {
	t.Helper()
	cells, err := row.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(cells.Value(column))
}

// eachWay runs body with each kind of row: plain, exactly once, fenced, and both.
func eachWay(t *testing.T, body func(t *testing.T, row, plain *Row)) {
	table, _ := newRows(t)
	lease := lock(t, open(t, embedded(t)), XDC("guard"), TTL(time.Hour))
	fenced := func(key string) *Row {
		row, err := lease.Row(table, key)
		if err != nil {
			t.Fatal(err)
		}
		return row
	}
	for name, row := range map[string]*Row{
		"plain": table.Row("plain"), "once": table.Row("once").ExactlyOnce(),
		"fenced": fenced("fenced"), "both": fenced("both").ExactlyOnce(),
	} {
		t.Run(name, func(t *testing.T) { body(t, row, table.Row(name)) })
	}
}

func TestRowsAreMadeChangedAndDeleted(t *testing.T) {
	eachWay(t, func(t *testing.T, row, _ *Row) {
		ctx := t.Context()
		is(t, false)(row.Update(ctx, put("d:id", "1")))
		is(t, true)(row.Create(ctx, put("d:id", "1").Put("e:\x00\xff:", nil).PutFor("d:short", []byte("s"), time.Hour)))
		is(t, false)(row.Create(ctx, put("d:id", "2")))
		is(t, true)(row.Update(ctx, put("d:id", "3")))
		if err := row.Put(ctx, put("d:x", "x")); err != nil {
			t.Fatal(err)
		}
		cells, err := row.Get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var columns []string
		for cell := range cells.All() {
			columns = append(columns, cell.Column)
			if cell.Value == nil || time.Since(cell.Written).Abs() > 24*time.Hour {
				t.Fatalf("%+v", cell)
			}
		}
		if got := strings.Join(columns, " "); got != "d:id d:short d:x e:\x00\xff:" || cells.Len() != 4 {
			t.Fatalf("%q", got)
		}
		if empty := cells.Value("e:\x00\xff:"); empty == nil || len(empty) != 0 || cells.Value("d:none") != nil {
			t.Fatal("an empty value and an absent one look the same")
		}
		cells, err = row.GetColumns(ctx, "d:x", "d:none")
		if err != nil || cells.Len() != 1 {
			t.Fatal(cells, err)
		}

		is(t, false)(row.CompareAndSet(ctx, "d:a", []byte{}, []byte("x")))
		is(t, true)(row.CompareAndSet(ctx, "d:a", nil, []byte{}))
		is(t, false)(row.CompareAndSet(ctx, "d:a", nil, []byte("x")))
		is(t, true)(row.CompareAndSet(ctx, "d:a", []byte{}, []byte("1")))
		is(t, true)(row.CompareAndSet(ctx, "d:a", []byte("1"), nil))
		is(t, true)(row.CompareAndSet(ctx, "d:a", nil, []byte("2")))

		if sum, known, err := row.Increment(ctx, "d:n", 40); sum != 40 || !known || err != nil {
			t.Fatal(sum, known, err)
		}
		_, known, err := row.Increment(ctx, "d:x", 1)
		wants(t, err, ErrInvalid)
		if known {
			t.Fatal("a failed increment returned a sum")
		}
		cells, _ = row.Get(ctx)
		if n, ok := cells.Counter("d:n"); n != 40 || !ok {
			t.Fatal(n, ok)
		}
		if _, ok := cells.Counter("d:x"); ok {
			t.Fatal("a text was read as a counter")
		}

		is(t, false)(row.DeleteIf(ctx, "d:id", []byte("1")))
		is(t, true)(row.DeleteIf(ctx, "d:id", []byte("3")))
		cells, err = row.Get(ctx)
		if err != nil || cells.Len() != 0 {
			t.Fatal(cells, err)
		}
	})
}

func TestARowIsModifiedOnWhatWasRead(t *testing.T) {
	eachWay(t, func(t *testing.T, row, plain *Row) {
		ctx := t.Context()
		calls := 0
		modified, err := row.Modify(ctx, []string{"d:a", "d:b"}, func(cells *RowCells) (*Changes, error) {
			if calls++; calls == 1 {
				if err := plain.Put(ctx, put("d:b", "")); err != nil {
					return nil, err
				}
			} else if cells.Value("d:b") == nil {
				t.Error("the changed value was not read again")
			}
			return new(Changes).Put("d:a", []byte("1")).Add("d:n", 7).Delete("d:b").PutFor("d:t", nil, time.Hour), nil
		})
		if err != nil || modified != (Modified{true, 2}) || calls != 2 {
			t.Fatal(modified, err, calls)
		}
		cells, err := row.Get(ctx)
		if n, _ := cells.Counter("d:n"); err != nil || n != 7 || string(cells.Value("d:a")) != "1" || cells.Value("d:b") != nil {
			t.Fatal(cells, err)
		}
		planted := errors.New("planted")
		modified, err = row.Modify(ctx, []string{"d:a"}, func(*RowCells) (*Changes, error) { return nil, planted })
		if err != planted || modified.Changed {
			t.Fatal(err, modified)
		}
		modified, err = row.Modify(ctx, []string{"d:a"}, func(*RowCells) (*Changes, error) { return nil, nil })
		if err != nil || modified != (Modified{false, 1}) {
			t.Fatal(err, modified)
		}
		for _, bad := range []*Changes{
			{}, new(Changes).Put("a", nil), new(Changes).Delete("d:other"), new(Changes).PutFor("d:a", nil, 0),
			new(Changes).PutFor("d:a", nil, noTTL), new(Changes).Add("d:n", 1).Put("d:n", nil),
		} {
			_, err = row.Modify(ctx, []string{"d:a"}, func(*RowCells) (*Changes, error) { return bad, nil })
			wants(t, err, ErrInvalid)
		}
		_, err = row.Modify(ctx, nil, func(*RowCells) (*Changes, error) { return nil, nil })
		wants(t, err, ErrInvalid)
	})
}

func TestAModificationThatNeverWinsSaysHowOftenItTried(t *testing.T) {
	_, uri := newRows(t)
	row := openRows(t, uri+"&attempts=3").Row("r")
	calls := 0
	modified, err := row.Modify(t.Context(), []string{"d:a"}, func(*RowCells) (*Changes, error) {
		calls++
		return new(Changes).Put("d:b", nil), row.Put(t.Context(), put("d:a", strconv.Itoa(calls)))
	})
	wants(t, err, ErrRetriesExhausted)
	if calls != 3 || modified.Attempts != 3 || !strings.Contains(err.Error(), `row "r"`) || !strings.Contains(err.Error(), "3 tries") {
		t.Fatal(calls, modified, err)
	}
}

func TestManyGoroutinesModifyARow(t *testing.T) {
	table, _ := newRows(t)
	row := table.Row("shared")
	const goroutines, turns = 20, 5
	var all sync.WaitGroup
	for range goroutines {
		all.Add(1)
		go func() {
			defer all.Done()
			for range turns {
				modified, err := row.Modify(t.Context(), []string{"d:text"}, func(cells *RowCells) (*Changes, error) {
					number, _ := strconv.Atoi(string(cells.Value("d:text")))
					return new(Changes).Put("d:text", strconv.AppendInt(nil, int64(number+1), 10)), nil
				})
				if err != nil || !modified.Changed {
					t.Error(modified, err)
				}
			}
		}()
	}
	all.Wait()
	if got := value(t, row, "d:text"); got != strconv.Itoa(goroutines*turns) {
		t.Fatal(got)
	}
}

func TestALaterHolderShutsAnEarlierOneOut(t *testing.T) {
	ctx := t.Context()
	table, _ := newRows(t)
	m := open(t, embedded(t), DefaultTTL(time.Hour))
	first := lock(t, m, XDC("guard"))
	early, err := first.Row(table, "guarded")
	if err != nil {
		t.Fatal(err)
	}
	if fence, lock, err := early.Fence(ctx); fence != 0 || lock != "" || err != nil {
		t.Fatal(fence, lock, err)
	}
	if err := early.Put(ctx, put("d:a", "first")); err != nil {
		t.Fatal(err)
	}
	if fence, lock, err := table.Row("guarded").Fence(ctx); fence != first.Fence() || !strings.Contains(lock, "guard") || err != nil {
		t.Fatal(fence, lock, err)
	}
	release(t, first)
	_, err = first.Row(table, "guarded")
	wants(t, err, ErrLost)
	second := lock(t, m, XDC("guard"))
	late, err := second.Row(table, "guarded")
	if err != nil {
		t.Fatal(err)
	}
	if err := late.RaiseFence(ctx); err != nil {
		t.Fatal(err)
	}
	wants(t, table.Row("guarded").RaiseFence(ctx), ErrInvalid)
	for _, row := range []*Row{early, early.ExactlyOnce()} {
		err := row.Put(ctx, put("d:a", "stale"))
		wants(t, err, ErrStaleFence)
		var of *Error
		if !errors.As(err, &of) || of.Fence != first.Fence() || of.StoredFence != second.Fence() || of.Retryable {
			t.Fatalf("%+v", of)
		}
		_, err = row.Modify(ctx, []string{"d:a"}, func(*RowCells) (*Changes, error) {
			return new(Changes).Put("d:a", []byte("stale")), nil
		})
		wants(t, err, ErrStaleFence)
	}
	if got := value(t, late, "d:a"); got != "first" {
		t.Fatal(got)
	}
}

func TestRowsRefuseWhatIsNotAllowed(t *testing.T) {
	ctx := t.Context()
	for _, uri := range []string{"memory:", "hbase://127.0.0.1:1/t?client=c", "hbase://127.0.0.1:1/t\x00", ""} {
		_, err := OpenTable(uri)
		wants(t, err, ErrInvalid)
	}
	table := openRows(t, "hbase://127.0.0.1:1/t?timeout=50ms")
	row := table.Row("r")
	for _, cells := range []*Cells{
		{}, put("a", ""), put("", ""), put("d:\x00dlm_op_1", ""), put("d:a", "").Put("d:a", nil),
		new(Cells).PutFor("d:a", nil, 0), new(Cells).PutFor("d:a", nil, noTTL), new(Cells).PutFor("d:a", nil, -1),
		new(Cells).Put("d:a", make([]byte, 4<<20+1)),
	} {
		wants(t, row.Put(ctx, cells), ErrInvalid)
	}
	for _, key := range []string{"", strings.Repeat("k", 32768)} {
		_, err := table.Row(key).Get(ctx)
		wants(t, err, ErrInvalid)
	}
	_, err := row.GetColumns(ctx)
	wants(t, err, ErrInvalid)
	wants(t, table.CreateIfMissing(ctx, nil), ErrInvalid)
	wants(t, table.CreateIfMissing(ctx, []Family{{Name: "d:"}}), ErrInvalid)
	wants(t, table.CreateIfMissing(ctx, []Family{{Name: "d"}}, ""), ErrInvalid)
	_, err = row.Get(ctx)
	wants(t, err, ErrConnection)
	_, err = lock(t, open(t, embedded(t)), XDC("guard")).Row(table, "r") // no family
	wants(t, err, ErrInvalid)
}

func TestAContextAndCloseEndCallsWithRows(t *testing.T) {
	table, _ := newRows(t)
	row := table.Row("r")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := row.Get(ctx)
	wants(t, err, context.Canceled)
	err = row.Put(ctx, put("d:a", "1"))
	wants(t, err, context.Canceled)
	// The context ends between two tries.
	ctx, cancel = context.WithCancel(t.Context())
	_, err = row.Modify(ctx, []string{"d:a"}, func(*RowCells) (*Changes, error) {
		cancel()
		return new(Changes).Put("d:b", nil), nil
	})
	wants(t, err, context.Canceled)
	lease := lock(t, open(t, embedded(t)), XDC("guard"), TTL(time.Hour))
	fenced, err := lease.Row(table, "fenced")
	if err != nil {
		t.Fatal(err)
	}
	table.Close()
	table.Close()
	for _, row := range []*Row{row, row.ExactlyOnce(), fenced, fenced.ExactlyOnce(), table.Row("other")} {
		_, err = row.Get(t.Context())
		wants(t, err, ErrClosed)
		if !strings.Contains(err.Error(), "the table was closed") {
			t.Fatal(err)
		}
	}
	// A fenced row keeps the connections open, but its calls fail too.
	wants(t, fenced.Put(context.Background(), put("d:a", "1")), ErrClosed)
	_, err = lease.Row(table, "fenced")
	wants(t, err, ErrClosed)
	if !strings.Contains(err.Error(), "the table was closed") {
		t.Fatal(err)
	}
}

func TestLargeValuesComeBack(t *testing.T) {
	table, _ := newRows(t)
	row, large := table.Row("r"), bytes.Repeat([]byte("0123456789abcdef"), 4<<20/16)
	if err := row.Put(t.Context(), new(Cells).Put("d:a", large).Put("d:b", nil).Put("d:c", large)); err != nil {
		t.Fatal(err)
	}
	cells, err := row.Get(t.Context())
	if err != nil || !bytes.Equal(cells.Value("d:a"), large) || !bytes.Equal(cells.Value("d:c"), large) {
		t.Fatal(err)
	}
}

//go:build cgo

package dlm

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Table is a table of an application's own in HBase, for rows that are made and changed safely without row locks.
// Open one and share it: any number of goroutines may use it. It is to be closed.
//
// At the most 16 calls of one table that ask HBase run at once, and 4 for one row; the others wait for their turn,
// for as long as the setting "timeout" allows.
type Table struct {
	handle   tableHandle
	attempts int
	timeout  time.Duration
	asking   *shares

	close   func()
	cleanup runtime.Cleanup
}

// Family is a column family of a table to be made.
type Family struct {
	Name string
	// Versions of each cell are kept, so many; 0 stands for 1.
	Versions int
}

// OpenTable opens the table at uri: "hbase://master1:16000,master2:16000/table", with options as
// "?key=value&key=value". The header dlm.h lists them at dlm_table_open; those that concern this package:
//
//   - family: the family in which rows of [Lease.Row] keep their fences;
//   - anchor: the column that every row has, as "family:qualifier": it says whether a row exists;
//   - timeout: how long one call may take, 10s unless set;
//   - attempts: tries of one [Row.Modify] at the most, 100 unless set.
//
// It does no I/O: HBase is first asked by the first call that needs it. It fails with [ErrInvalid].
func OpenTable(uri string) (*Table, error) {
	handle, attempts, timeout, err := openTable(uri)
	if err != nil {
		freeTable(handle)
		return nil, err
	}
	closed := make(chan struct{})
	t := &Table{handle: handle, attempts: attempts, timeout: timeout, asking: newShares(closed)}
	t.asking.of, t.asking.things = "table", "rows"
	t.close = sync.OnceFunc(func() {
		close(closed)
		freeTable(handle)
	})
	what := leak{logger: slog.Default(), what: "a table was forgotten and is closed now", about: uri}
	what.free = func() { freeTable(handle) }
	t.cleanup = runtime.AddCleanup(t, forgotten, what)
	return t, nil
}

// Close ends the table: calls with its rows fail with [ErrClosed] from then on. It does not block; calls that are
// under way go on in the library. Closing twice does nothing more.
func (t *Table) Close() {
	t.cleanup.Stop()
	t.close()
}

// CreateIfMissing creates the table with these families, split at these keys, unless it exists, and waits until it
// serves. It may be repeated, and called in many processes at once. It blocks for up to a minute; if ctx ends
// first, that goes on.
//
// It fails with [ErrTableCreation], also where the table exists and lacks one of the families; with [ErrConnection],
// [ErrRetriesExhausted], [ErrInvalid], [ErrClosed], and with what ended ctx.
func (t *Table) CreateIfMissing(ctx context.Context, families []Family, splits ...string) error {
	families, splits = slices.Clone(families), slices.Clone(splits)
	question := question{t.asking, everywhere, t.timeout, "creating the table"}
	_, err := answerTo(ctx, question, true, func() (struct{}, error) {
		defer runtime.KeepAlive(t)
		return struct{}{}, createTable(t.handle, families, splits)
	})
	return err
}

// Row is the row with this key, of 1 to 32,000 bytes. It does no I/O; a key that is not allowed is refused by the
// row's calls.
func (t *Table) Row(key string) *Row { return &Row{table: t, key: key} }

// Row is a row whose every change carries the fence of the lease: HBase refuses the change once a later holder of
// the lock was here. The table needs its option family. The row may outlive the lease. It does no I/O.
//
// It fails with [ErrInvalid] for a key that is not allowed, for a table without the option family and where the
// option fence of the lease's store is off; with [ErrLost] when the lease was released; with [ErrClosed] when the
// table is.
func (l *Lease) Row(table *Table, key string) (*Row, error) {
	defer runtime.KeepAlive(l)
	defer runtime.KeepAlive(table)
	if l.released.Load() {
		return nil, l.over("it was released")
	}
	if table.asking.over() {
		return nil, closedError("table")
	}
	handle, err := leaseRow(l.handle, table.handle, key)
	if codeOf(err) == CodeClosed && l.released.Load() {
		return nil, l.over("it was released")
	}
	if err != nil {
		return nil, err
	}
	return fencedRow(table, key, handle), nil
}

// Row is one row: a key and how its changes are made. Any number of goroutines may share it.
//
// Columns are given as "family:qualifier"; the qualifier may be any bytes. Values are any bytes.
//
// Calls block for the table's setting "timeout" at the most, or until ctx ends. They fail with
//
//   - [ErrInvalid] before any I/O: a key, column, value or TTL that is not allowed;
//   - [ErrTableCreation]: no such table, it is disabled, or it lacks the family;
//   - [ErrConnection], [ErrRetriesExhausted], [ErrInternal], [ErrClosed]: it did not happen;
//   - [ErrInDoubt], where they change something: it may have happened, or may yet happen, also because ctx ended
//     first. Without an end of ctx, rows from [Row.ExactlyOnce] fail so only when all of the timeout was not enough
//     to find out;
//   - [ErrStaleFence], where they change a row from [Lease.Row]: a later holder was here, and it did not happen;
//   - what ended ctx.
type Row struct {
	table *Table
	key   string
	once  bool
	// handle is there for rows with a fence, which remember that it was raised.
	handle rowHandle
	// err is what the calls fail with.
	err error
}

func fencedRow(table *Table, key string, handle rowHandle) *Row {
	r := &Row{table: table, key: key, handle: handle}
	runtime.AddCleanup(r, freeRow, handle)
	return r
}

// Key is that of the row.
func (r *Row) Key() string { return r.key }

// ExactlyOnce is the same row, whose changes are made exactly once: each writes a mark in the same atomic step, and
// a change whose reply was lost is sent again until it is answered, for the table's setting "timeout". A mark is a
// cell of some 100 bytes in the row, which goes after a minute (two hours where a request is lost for good).
func (r *Row) ExactlyOnce() *Row {
	if r.handle == nil {
		return &Row{table: r.table, key: r.key, once: true, err: r.err}
	}
	defer runtime.KeepAlive(r)
	handle, err := exactlyOnce(r.handle)
	if err != nil {
		return &Row{table: r.table, key: r.key, err: err}
	}
	return fencedRow(r.table, r.key, handle)
}

// Cells are to be written in one atomic step. The zero value has none:
//
//	new(dlm.Cells).Put("d:id", []byte("42")).Put("d:state", []byte("new"))
type Cells struct{ list []change }

// Put adds a cell. An empty value, or nil, is a value: the cell is there.
func (c *Cells) Put(column string, value []byte) *Cells {
	c.list = append(c.list, change{kind: changePut, column: column, value: value, ttl: noTTL})
	return c
}

// PutFor adds a cell that the server drops after this time, 1 ms or more, rounded up to milliseconds. It must not be
// shorter than what an older version of the cell still has: HBase would then show that one again.
func (c *Cells) PutFor(column string, value []byte, ttl time.Duration) *Cells {
	c.list = append(c.list, change{kind: changePut, column: column, value: value, ttl: max(ttl, 0)})
	return c
}

// Changes are what [Row.Modify] is to do with a row, in one atomic step; no column may come twice. The zero value
// has none.
type Changes struct{ list []change }

// Put is that of [Cells].
func (c *Changes) Put(column string, value []byte) *Changes {
	c.list = append(c.list, change{kind: changePut, column: column, value: value, ttl: noTTL})
	return c
}

// PutFor is that of [Cells].
func (c *Changes) PutFor(column string, value []byte, ttl time.Duration) *Changes {
	c.list = append(c.list, change{kind: changePut, column: column, value: value, ttl: max(ttl, 0)})
	return c
}

// Add adds to an 8-byte counter. See [Row.Increment].
func (c *Changes) Add(column string, by int64) *Changes {
	c.list = append(c.list, change{kind: changeAdd, column: column, by: by})
	return c
}

// Delete deletes a column with all its versions. It must be one of those that were read. One that was not there is
// left alone.
func (c *Changes) Delete(column string) *Changes {
	c.list = append(c.list, change{kind: changeDelete, column: column})
	return c
}

type change struct {
	kind   int
	column string
	value  []byte
	ttl    time.Duration
	by     int64
}

const noTTL time.Duration = -1 << 63

// RowCells are cells of a row as they were read, all at one moment.
type RowCells struct{ list []RowCell }

// RowCell is a cell that was read.
type RowCell struct {
	Column string
	// Value is never nil.
	Value []byte
	// Written is when the server stamped the cell, by its clock.
	Written time.Time
}

// Len is how many cells were read. 0: there is no such row, or nothing of what was asked for.
func (c *RowCells) Len() int { return len(c.list) }

// Value is that of a column; nil where there is no such cell. An empty value is one, and not nil.
func (c *RowCells) Value(column string) []byte {
	cell, _ := c.Cell(column)
	return cell.Value
}

// Cell is that of a column, and whether there is one.
func (c *RowCells) Cell(column string) (RowCell, bool) {
	for _, cell := range c.list {
		if cell.Column == column {
			return cell, true
		}
	}
	return RowCell{}, false
}

// Counter is the value of a counter; false where there is no such cell, or it is not 8 bytes long.
func (c *RowCells) Counter(column string) (int64, bool) {
	value := c.Value(column)
	if len(value) != 8 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(value)), true
}

// All are the cells in the order of their columns.
func (c *RowCells) All() iter.Seq[RowCell] { return slices.Values(c.list) }

// Get reads the whole row, but for the library's own columns. There are no cells where there is no such row.
func (r *Row) Get(ctx context.Context) (*RowCells, error) {
	cells, handle, err := r.read(ctx, rowRead, nil)
	freeCells(handle)
	return cells, err
}

// GetColumns reads these columns, one or more.
func (r *Row) GetColumns(ctx context.Context, columns ...string) (*RowCells, error) {
	cells, handle, err := r.read(ctx, rowReadColumns, columns)
	freeCells(handle)
	return cells, err
}

// Create makes the row unless it is there, and says whether it did: of all who try at once, one is told so. A row is
// there when its anchor has a value that is not empty. The anchor is the column that the table's option anchor
// names, or else the first of cells. It must be among them, and its value not empty.
func (r *Row) Create(ctx context.Context, cells *Cells) (created bool, err error) {
	answer, err := r.write(ctx, rowCreate, cells)
	return answer.yes, err
}

// Update writes the cells if the row is there, and says whether it did. See [Row.Create] for what that means;
// without the option anchor, the first of cells must be a column that the row has.
func (r *Row) Update(ctx context.Context, cells *Cells) (updated bool, err error) {
	answer, err := r.write(ctx, rowUpdate, cells)
	return answer.yes, err
}

// Put writes the cells, whether the row is there or not.
func (r *Row) Put(ctx context.Context, cells *Cells) error {
	_, err := r.write(ctx, rowPut, cells)
	return err
}

// CompareAndSet writes value into a column if it holds expected, and says whether it did. nil is the absence of the
// cell, for both; an empty value is not nil: []byte{}.
func (r *Row) CompareAndSet(ctx context.Context, column string, expected, value []byte) (set bool, err error) {
	var with items
	with.compared(column, expected)
	with.compared("", value)
	answer, err := r.call(ctx, rowCompareAndSet, nil, with)
	return answer.yes, err
}

// Increment adds to an 8-byte big-endian counter, which begins at 0. The sum wraps around at the ends of int64. It
// is not known, without an error, only for rows from [Row.ExactlyOnce]: it was added once, and the reply with the
// sum was lost. It fails with [ErrInvalid] too where the cell is not 8 bytes long.
func (r *Row) Increment(ctx context.Context, column string, by int64) (sum int64, known bool, err error) {
	var with items
	with.change(change{kind: changeAdd, column: column, by: by})
	answer, err := r.call(ctx, rowIncrement, nil, with)
	return answer.number, answer.yes, err
}

// DeleteIf deletes the cells of the row if the column holds expected, which may be empty, and says whether it did.
// Cells that others write meanwhile stay.
func (r *Row) DeleteIf(ctx context.Context, column string, expected []byte) (deleted bool, err error) {
	var with items
	with.compared(column, expected)
	answer, err := r.call(ctx, rowDeleteIf, nil, with)
	return answer.yes, err
}

// RaiseFence writes the lease's fence into the row without changing anything else: from then on earlier holders are
// refused. Every change of a row from [Lease.Row] does that as well; call this where the first change comes late. It
// fails with [ErrInvalid] for other rows. After [ErrInDoubt] it is safe to call again.
func (r *Row) RaiseFence(ctx context.Context) error {
	_, err := r.call(ctx, rowRaiseFence, nil, items{})
	return err
}

// Fence is the highest fence that was in the row, and the stored name of its lock; 0 and "" where there is none. The
// table needs its option family.
func (r *Row) Fence(ctx context.Context) (fence uint64, lock string, err error) {
	answer, err := r.call(ctx, rowFence, nil, items{})
	return answer.fence, answer.lock, err
}

// Modified is what [Row.Modify] has done.
type Modified struct {
	// Changed says whether the row is as the changes have it; false where the function left it as it was.
	Changed bool
	// Attempts is how often the row was read and the function called.
	Attempts int
}

// The pauses before another try: a random part of a time that doubles from the first to the last of these.
const (
	modifyPauseFirst = time.Millisecond
	modifyPauseLast  = 64 * time.Millisecond
)

// Modify reads these columns, lets change compute what is to be done with the row, and does it if none of them was
// changed meanwhile; otherwise once more, up to the table's settings "attempts" (100 unless set) and "timeout". What
// change writes may be in these columns or in others. Without changes, nil, the row stays as it is; an error of
// change ends Modify and is returned as it is.
//
// change must have no effects of its own: it is called for each try. A column that was changed and changed back
// counts as unchanged.
//
// It fails with [ErrRetriesExhausted] too where others changed the columns at each try; with [ErrInvalid] for no
// columns.
func (r *Row) Modify(
	ctx context.Context, columns []string, change func(*RowCells) (*Changes, error),
) (Modified, error) {
	end := time.Now().Add(r.table.timeout)
	pause := modifyPauseFirst
	for attempt := 1; ; attempt++ {
		changed, refused, err := r.try(ctx, columns, change)
		if !refused || err != nil {
			return Modified{changed, attempt}, err
		}
		if attempt >= r.table.attempts || time.Until(end) <= pause {
			err := newError(CodeRetriesExhausted,
				fmt.Sprintf("row %s: others changed it at each of %d tries", r.shown(), attempt))
			err.Retryable = true
			return Modified{false, attempt}, err
		}
		timer := time.NewTimer(rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return Modified{false, attempt}, ended(ctx, CodeCancelled, "modifying row "+r.shown())
		}
		pause = min(2*pause, modifyPauseLast)
	}
}

// try is one attempt; refused is whether somebody else was faster.
func (r *Row) try(
	ctx context.Context, columns []string, change func(*RowCells) (*Changes, error),
) (changed, refused bool, err error) {
	cells, handle, err := r.read(ctx, rowReadColumns, columns)
	defer freeCells(handle)
	if err != nil {
		return false, false, err
	}
	changes, err := change(cells)
	if err != nil || changes == nil {
		return false, false, err
	}
	var with items
	for _, change := range changes.list {
		with.change(change)
	}
	answer, err := r.call(ctx, rowCommit, handle, with)
	return answer.yes, !answer.yes, err
}

// read answers with a handle of what was read, to be freed.
func (r *Row) read(ctx context.Context, which rowCall, columns []string) (*RowCells, cellsHandle, error) {
	var with items
	for _, column := range columns {
		with.column(column)
	}
	answer, err := r.call(ctx, which, nil, with)
	if err != nil {
		return nil, nil, err
	}
	return cellsOf(answer.cells), answer.cells, nil
}

func (r *Row) write(ctx context.Context, which rowCall, cells *Cells) (rowAnswer, error) {
	var with items
	for _, cell := range cells.list {
		with.cell(cell.column, cell.value, cell.ttl)
	}
	return r.call(ctx, which, nil, with)
}

func (r *Row) call(ctx context.Context, which rowCall, asRead cellsHandle, with items) (rowAnswer, error) {
	if r.err != nil {
		return rowAnswer{}, r.err
	}
	t := r.table
	if t.asking.over() {
		return rowAnswer{}, closedError("table")
	}
	// Rows of one application may all begin alike: a hash of the key stands for the region.
	question := question{t.asking, regionOf(r.key), t.timeout, which.doing() + " row " + r.shown()}
	late := func(answer rowAnswer, _ error) { freeCells(answer.cells) }
	answer, fate, err := call(ctx, question, func() (rowAnswer, error) {
		defer runtime.KeepAlive(r)
		return callRow(r, which, asRead, &with)
	}, late)
	switch {
	case fate == answered && codeOf(err) == CodeClosed:
		return rowAnswer{}, closedError("table")
	case fate == answered:
		return answer, err
	case fate == goesOn && !which.changes():
		fate = notBegun
	}
	return answer, question.stopped(ctx, fate)
}

func (c rowCall) changes() bool { return c != rowRead && c != rowReadColumns && c != rowFence }

func (c rowCall) doing() string {
	switch c {
	case rowRead, rowReadColumns, rowFence:
		return "reading"
	case rowCreate:
		return "creating"
	case rowDeleteIf:
		return "deleting"
	default:
		return "changing"
	}
}

// shown is the key for people.
func (r *Row) shown() string {
	const longest = 80
	if len(r.key) > longest {
		return fmt.Sprintf("%q...", r.key[:longest])
	}
	return fmt.Sprintf("%q", r.key)
}

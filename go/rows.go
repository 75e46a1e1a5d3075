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

// Table is an HBase table of the application. Its rows are created and changed safely without row locks. Open one and
// share it: any number of goroutines may use it. Close it when it is no longer needed.
//
// A table runs at most 16 calls to HBase at once, and at most 4 for one row. Further calls wait for their turn, up to
// the setting "timeout".
type Table struct {
	handle   tableHandle
	attempts int
	timeout  time.Duration
	asking   *shares

	close   func()
	cleanup runtime.Cleanup
}

// Family is a column family of a table to create.
type Family struct {
	Name string
	// Versions is how many versions of each cell are kept; 0 means 1.
	Versions int
}

// OpenTable opens the table at uri: "hbase://master1:16000,master2:16000/table", with options as
// "?key=value&key=value". The header dlm.h lists all options at dlm_table_open. These concern this package:
//
//   - family: the family in which rows of [Lease.Row] keep their fences
//   - anchor: the column that says whether a row exists, as "family:qualifier"
//   - timeout: how long one call may take; 10s unless set
//   - attempts: how many tries one [Row.Modify] makes at most; 100 unless set
//
// OpenTable reads the TLS files, if any. The first call that needs HBase connects to it. OpenTable fails with
// [ErrInvalid].
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

// Close ends the table: later calls on its rows fail with [ErrClosed]. Close does not block. Calls under way continue
// in the library. Closing twice does nothing more.
func (t *Table) Close() {
	if t.made() != nil {
		return
	}
	t.cleanup.Stop()
	t.close()
}

// CreateIfMissing creates the table with these families, split at these keys, unless it exists, and waits until HBase
// serves it. It is safe to repeat, and to call in many processes at once. It blocks for up to a minute. If ctx ends
// first, the creation continues.
//
// It fails with [ErrTableCreation], also when the table exists but lacks one of the families; with [ErrConnection],
// [ErrRetriesExhausted], [ErrInvalid], [ErrClosed], and the error that ended ctx.
func (t *Table) CreateIfMissing(ctx context.Context, families []Family, splits ...string) error {
	families, splits = slices.Clone(families), slices.Clone(splits)
	question := question{t.asking, everywhere, t.timeout, "creating the table"}
	_, err := answerTo(ctx, question, true, func() (struct{}, error) {
		defer runtime.KeepAlive(t)
		return struct{}{}, createTable(t.handle, families, splits)
	})
	return err
}

// made returns an error for the zero value.
func (t *Table) made() error {
	if t == nil || t.handle == nil {
		return unmade("Table", "OpenTable")
	}
	return nil
}

// Row returns a handle for the row with this key of 1 to 32,000 bytes. It does no I/O. The calls of the row fail with
// [ErrInvalid] if the key is not allowed.
func (t *Table) Row(key string) *Row { return &Row{table: t, key: key} }

// Row returns a row whose changes carry the fence of the lease. HBase refuses such a change after a later holder of
// the lock has written its fence to the row. The table needs the option family. The row may outlive the lease. Row
// does no I/O.
//
// It fails with [ErrInvalid] for a key that is not allowed, for a table without the option family, and when the
// option fence of the lease's store is off. It fails with [ErrLost] when the lease was released, and with [ErrClosed]
// when the table was closed.
func (l *Lease) Row(table *Table, key string) (*Row, error) {
	defer runtime.KeepAlive(l)
	defer runtime.KeepAlive(table)
	if err := l.made(); err != nil {
		return nil, err
	}
	if err := table.made(); err != nil {
		return nil, err
	}
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

// Row is one row: a key, and how its changes are made. Any number of goroutines may share it.
//
// A column is given as "family:qualifier". The qualifier and the value may be any bytes.
//
// Calls block, at the longest until ctx ends. Each request to HBase blocks at most for the table's setting "timeout",
// and may wait as long for its turn: see [Table]. [Row.DeleteIf], a [Row.CompareAndSet] that deletes, and
// [Row.Modify] send several requests. Calls fail with
//
//   - [ErrInvalid] before any I/O: a key, column, value or TTL is not allowed; after a read: the row has the fence
//     of another lock, and the call had no effect
//   - [ErrTableCreation]: the table does not exist, is disabled or lacks the family
//   - [ErrConnection], [ErrRetriesExhausted], [ErrInternal], [ErrClosed]: the call had no effect
//   - [ErrInDoubt], only for changes: it is unknown whether the change was made, and it may still be made later; for
//     example because ctx ended first. While ctx lasts, rows from [Row.ExactlyOnce] fail with it only when the
//     timeout was too short to find out, or a server answered with an error that does not tell
//   - [ErrStaleFence], only for changes of a row from [Lease.Row]: a later holder has written its fence, and the
//     change was not made
//   - the error that ended ctx
type Row struct {
	table *Table
	key   string
	once  bool
	// handle is set for rows with a fence. It remembers that the fence was raised.
	handle rowHandle
	// err is the error of all calls, if it is not nil.
	err error
}

func fencedRow(table *Table, key string, handle rowHandle) *Row {
	r := &Row{table: table, key: key, handle: handle}
	runtime.AddCleanup(r, freeRow, handle)
	return r
}

// Key returns the key of the row.
func (r *Row) Key() string { return r.key }

// ExactlyOnce returns the same row with changes that are made exactly once. Each change writes an idempotency mark in
// the same atomic step. A change whose reply was lost is sent again until it is answered, at most for the table's
// setting "timeout". A mark is a cell of about 100 bytes in the row. It expires after a few minutes, or after two
// hours when a request was lost for good.
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

// Cells are cells to write in one atomic step. The zero value has none:
//
//	new(dlm.Cells).Put("d:id", []byte("42")).Put("d:state", []byte("new"))
type Cells struct{ list []change }

// Put adds a cell. A nil or empty value writes an empty cell.
func (c *Cells) Put(column string, value []byte) *Cells {
	c.list = append(c.list, change{kind: changePut, column: column, value: value, ttl: noTTL})
	return c
}

// PutFor adds a cell that the server drops after ttl, 1 ms or more, rounded up to milliseconds. The ttl must not be
// shorter than the remaining time of an older version of the cell: HBase would then show that version again.
func (c *Cells) PutFor(column string, value []byte, ttl time.Duration) *Cells {
	c.list = append(c.list, change{kind: changePut, column: column, value: value, ttl: max(ttl, 0)})
	return c
}

// Changes are what [Row.Modify] changes in a row in one atomic step. No column may appear twice. The zero value has
// no changes.
type Changes struct{ list []change }

// Put adds a cell to write. See [Cells.Put].
func (c *Changes) Put(column string, value []byte) *Changes {
	c.list = append(c.list, change{kind: changePut, column: column, value: value, ttl: noTTL})
	return c
}

// PutFor adds a cell to write that the server drops after ttl. See [Cells.PutFor].
func (c *Changes) PutFor(column string, value []byte, ttl time.Duration) *Changes {
	c.list = append(c.list, change{kind: changePut, column: column, value: value, ttl: max(ttl, 0)})
	return c
}

// Add adds a number to an 8-byte counter. See [Row.Increment].
func (c *Changes) Add(column string, by int64) *Changes {
	c.list = append(c.list, change{kind: changeAdd, column: column, by: by})
	return c
}

// Delete deletes a column with all its versions. The column must be one of those that were read. It may be absent.
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

// RowCells are the cells of a row, all read at the same moment.
type RowCells struct{ list []RowCell }

// RowCell is a cell that was read.
type RowCell struct {
	Column string
	// Value may be empty but is never nil.
	Value []byte
	// Written is the server's timestamp of the cell, by the server's clock.
	Written time.Time
}

// Len returns how many cells were read. 0 means that the row does not exist or has none of the requested columns.
func (c *RowCells) Len() int { return len(c.list) }

// Value returns the value of a column, or nil if the cell does not exist. An empty value is not nil.
func (c *RowCells) Value(column string) []byte {
	cell, _ := c.Cell(column)
	return cell.Value
}

// Cell returns the cell of a column and whether it exists.
func (c *RowCells) Cell(column string) (RowCell, bool) {
	for _, cell := range c.list {
		if cell.Column == column {
			return cell, true
		}
	}
	return RowCell{}, false
}

// Counter returns the value of a counter. It returns false if the cell does not exist or is not 8 bytes long.
func (c *RowCells) Counter(column string) (int64, bool) {
	value := c.Value(column)
	if len(value) != 8 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(value)), true
}

// All returns the cells in the order of their columns.
func (c *RowCells) All() iter.Seq[RowCell] { return slices.Values(c.list) }

// Get reads the whole row without the library's own columns. The result is empty if the row does not exist.
func (r *Row) Get(ctx context.Context) (*RowCells, error) {
	cells, handle, err := r.read(ctx, rowRead, nil)
	freeCells(handle)
	return cells, err
}

// GetColumns reads these columns. It needs at least one.
func (r *Row) GetColumns(ctx context.Context, columns ...string) (*RowCells, error) {
	cells, handle, err := r.read(ctx, rowReadColumns, columns)
	freeCells(handle)
	return cells, err
}

// Create creates the row unless it exists, and reports whether it did. Of many concurrent calls, exactly one returns
// true. A row exists when its anchor has a value that is not empty. The anchor is the column that the table's option
// anchor names, or otherwise the first of cells. The anchor must be among the cells, with a value that is not empty.
func (r *Row) Create(ctx context.Context, cells *Cells) (created bool, err error) {
	answer, err := r.write(ctx, rowCreate, cells)
	return answer.yes, err
}

// Update writes the cells if the row exists, and reports whether it did. [Row.Create] says when a row exists. Without
// the option anchor, the first of cells must be a column that the row has.
func (r *Row) Update(ctx context.Context, cells *Cells) (updated bool, err error) {
	answer, err := r.write(ctx, rowUpdate, cells)
	return answer.yes, err
}

// Put writes the cells, whether or not the row exists.
func (r *Row) Put(ctx context.Context, cells *Cells) error {
	_, err := r.write(ctx, rowPut, cells)
	return err
}

// CompareAndSet writes value into a column if the column holds expected, and reports whether it did. A nil expected
// means that the cell is absent. A nil value deletes the cell. An empty value is []byte{}, not nil.
func (r *Row) CompareAndSet(ctx context.Context, column string, expected, value []byte) (set bool, err error) {
	var with items
	with.compared(column, expected)
	with.compared("", value)
	answer, err := r.call(ctx, rowCompareAndSet, nil, with)
	return answer.yes, err
}

// Increment adds by to an 8-byte big-endian counter, which begins at 0. The sum wraps around at the ends of int64.
// known is false without an error only for rows from [Row.ExactlyOnce]: by was added once, but the reply with the sum
// was lost. Increment also fails with [ErrInvalid] when the cell is not 8 bytes long.
func (r *Row) Increment(ctx context.Context, column string, by int64) (sum int64, known bool, err error) {
	var with items
	with.change(change{kind: changeAdd, column: column, by: by})
	answer, err := r.call(ctx, rowIncrement, nil, with)
	return answer.number, answer.yes, err
}

// DeleteIf deletes the cells of the row if the column holds expected, which may be empty. It reports whether it did.
// Cells that others write meanwhile stay.
func (r *Row) DeleteIf(ctx context.Context, column string, expected []byte) (deleted bool, err error) {
	var with items
	with.compared(column, expected)
	answer, err := r.call(ctx, rowDeleteIf, nil, with)
	return answer.yes, err
}

// RaiseFence writes the lease's fence into the row and changes nothing else. From then on HBase refuses changes by
// earlier holders. Every change of a row from [Lease.Row] does this too, so call RaiseFence only when the first
// change comes late. It fails with [ErrInvalid] for other rows. After [ErrInDoubt] it is safe to call again.
func (r *Row) RaiseFence(ctx context.Context) error {
	_, err := r.call(ctx, rowRaiseFence, nil, items{})
	return err
}

// Fence returns the highest fence that was written to the row and the stored name of its lock; 0 and "" if there is
// none. The table needs the option family.
func (r *Row) Fence(ctx context.Context) (fence uint64, lock string, err error) {
	answer, err := r.call(ctx, rowFence, nil, items{})
	return answer.fence, answer.lock, err
}

// Modified is the result of [Row.Modify].
type Modified struct {
	// Changed is true when the row is as the changes require, and false when the function returned no changes.
	Changed bool
	// Attempts is how often the row was read and the function was called.
	Attempts int
}

// The pause before another try is a random part of a time that doubles from the first of these to the last.
const (
	modifyPauseFirst = time.Millisecond
	modifyPauseLast  = 64 * time.Millisecond
)

// Modify reads these columns, calls change to compute the changes, and applies them if the columns are unchanged.
// Otherwise it tries again, up to the table's settings "attempts" (100 unless set) and "timeout". The changes may be
// in these columns or in others. When change returns nil changes, the row stays as it is. An error of change ends
// Modify and is returned unchanged.
//
// change must have no side effects, because it is called for each try. A column that was changed and changed back
// counts as unchanged.
//
// Modify also fails with [ErrRetriesExhausted] when others changed the columns at each try, and with [ErrInvalid]
// when columns is empty.
func (r *Row) Modify(
	ctx context.Context, columns []string, change func(*RowCells) (*Changes, error),
) (Modified, error) {
	if err := r.table.made(); err != nil {
		return Modified{}, err
	}
	if err := noContext(ctx); err != nil {
		return Modified{}, err
	}
	if change == nil {
		return Modified{}, invalid("a nil function is not allowed: it says what to change")
	}
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

// try makes one attempt. refused says whether somebody else changed the columns first.
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
	if err := allowedTTLs(changes.list); err != nil {
		return false, false, err
	}
	var with items
	for _, change := range changes.list {
		with.change(change)
	}
	answer, err := r.call(ctx, rowCommit, handle, with)
	return answer.yes, !answer.yes, err
}

// read also returns the handle of the result. The caller frees it.
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

// allowedTTLs returns an error for a cell that would not live.
func allowedTTLs(list []change) error {
	for _, cell := range list {
		if cell.kind == changePut && cell.ttl == 0 {
			return invalid(fmt.Sprintf("the TTL of the cell %q is not allowed: 1ms or more, or Put without a TTL", cell.column))
		}
	}
	return nil
}

func (r *Row) write(ctx context.Context, which rowCall, cells *Cells) (rowAnswer, error) {
	var with items
	if cells == nil {
		cells = new(Cells) // the library says that there are none
	}
	if err := allowedTTLs(cells.list); err != nil {
		return rowAnswer{}, err
	}
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
	if err := t.made(); err != nil {
		return rowAnswer{}, err
	}
	if err := noContext(ctx); err != nil {
		return rowAnswer{}, err
	}
	if t.asking.over() {
		return rowAnswer{}, closedError("table")
	}
	// All rows of an application may begin with the same byte, so a hash of the key stands for the region.
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

// shown returns the key as people read it, shortened if it is long.
func (r *Row) shown() string {
	const longest = 80
	if len(r.key) > longest {
		return fmt.Sprintf("%q...", r.key[:longest])
	}
	return fmt.Sprintf("%q", r.key)
}
